//! Hints between brokers: who committed tells the others to read the log now, and they do where polls are parked.
//!
//!     a shard's commit > Mail::Committed > the next hint > NOTIFY ... a listening connection > the log is read at once
//!
//! Holds: a hint says nothing but "read it now": one that is lost costs the time until the next read. None is sent with a
//! hot commit, or more than one per [`HINT_PERIOD_MIN`]; a broker that is alone sends none and listens to none. Where LISTEN
//! does not work (behind a pooler that shares sessions) that is said once, and reads alone find what others commit.
//! Source: operations 7.2, 7.3; architecture (Several brokers).

use crate::bell::Bell;
use crate::limits::{HINT_PERIOD_MAX, HINT_PERIOD_MIN, HINT_PROBE_MAX, HINT_REST};
use crate::rt;
use crate::store::{self, Conn, Target, log};
use queen_shards::effect::StoreError;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two tries to listen.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Whether something was committed that no hint has told of, for all threads.
#[derive(Debug, Default)]
pub struct Untold(AtomicBool);

impl Untold {
    /// True for the first one since the last hint: who asks then tells the control thread.
    pub fn note(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }

    /// Whether there was something; a hint tells of it now.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// This broker's hints; on the control thread.
pub struct Hints {
    broker: String,
    committed: Bell,
    /// Others were there at the last read of the log.
    others: Cell<bool>,
    company: Bell,
    /// Our own hint came back.
    echo: Rc<Bell>,
    /// It did on this session: hints are heard.
    hears: Cell<bool>,
}

impl Hints {
    pub fn new(broker: u128) -> Hints {
        Hints {
            broker: uuid::Uuid::from_u128(broker).hyphenated().to_string(),
            committed: Bell::default(),
            others: Cell::new(false),
            company: Bell::default(),
            echo: Rc::default(),
            hears: Cell::new(false),
        }
    }

    /// Whether the hints of others are heard as they come.
    pub fn hears(&self) -> bool {
        self.hears.get()
    }

    /// A shard has committed something that others may wait for.
    pub fn committed(&self) {
        self.committed.ring();
    }

    /// Whether other brokers are there.
    pub fn met(&self, others: bool) {
        if others && !self.others.replace(others) {
            self.company.ring();
        }
        self.others.set(others);
    }

    /// Tells the others, for ever: at once, then after a rest.
    pub async fn tell(&self, untold: &Untold, conn: &Conn) {
        loop {
            self.committed.wait().await;
            if untold.take() && self.others.get() {
                let began = Instant::now();
                // Without an answer it is lost, as hints may be.
                let _ = self.send(conn).await;
                rt::sleep((began.elapsed() * HINT_REST).clamp(HINT_PERIOD_MIN, HINT_PERIOD_MAX)).await;
            }
        }
    }

    async fn send(&self, conn: &Conn) -> Result<(), StoreError> {
        store::within(conn, HINT_PROBE_MAX, async |client| log::hint(client, &self.broker).await).await
    }

    /// Listens while others are there and calls `heard` for each of their hints, and after each break. Ends where listening
    /// is in vain.
    pub async fn listen(&self, target: Target, name: String, notify: &Conn, heard: Rc<dyn Fn()>) {
        let (own, echo, told) = (self.broker.clone(), self.echo.clone(), heard.clone());
        let listener = Conn::listening(target, name, move |payload| match payload == own {
            true => echo.ring(),
            false => told(),
        });
        loop {
            while !self.others.get() {
                self.company.wait().await;
            }
            let client = store::within(&listener, HINT_PROBE_MAX, async |client| log::listen(client).await).await;
            if client.is_ok() && self.send(notify).await.is_ok() {
                if rt::timeout(HINT_PROBE_MAX, self.echo.wait()).await.is_none() {
                    crate::info!(
                        "sync",
                        "LISTEN hears nothing here, as behind a pooler that shares sessions: other brokers' commits are found by reading"
                    );
                    return;
                }
                self.hears.set(true);
                heard();
                listener.closed().await;
                self.hears.set(false);
            }
            rt::sleep(LISTEN_PAUSE).await;
        }
    }
}
