//! The accept loop of one shard, and what its connections share.

use super::answer::http_date;
use super::budget::Budget;
use super::connection::Connection;
use super::watch::Clock;
use super::{Limits, Service};
use crate::limits::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, CLOSING_GRACE};
use crate::rt::{Listener, Stream, race, sleep, spawn, timeout, yield_now};
use crate::tls::Tls;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::SystemTime;

/// What the connections of one shard share.
pub(super) struct Shared<S> {
    pub service: Rc<S>,
    pub limits: Limits,
    pub clock: Clock,
    pub budget: Rc<Budget>,
    /// `None`: connections are not secured.
    tls: Option<Arc<Tls>>,
    /// Open connections.
    count: Cell<usize>,
    /// The accept loop, when it waits for one to close.
    waiting: RefCell<Option<Waker>>,
    /// The `Date` of this second.
    date: RefCell<(u64, Rc<str>)>,
}

/// Accepts and serves connections until the service shuts down; then stops accepting, closes idle connections, lets
/// requests be answered, and returns when the last connection has closed or its time is over: how many are left then.
pub async fn serve<S: Service>(service: Rc<S>, listener: Listener, limits: Limits, tls: Option<Arc<Tls>>) -> usize {
    let shared = Shared::new(service, limits, tls);
    let ticking = Rc::downgrade(&shared);
    spawn(async move {
        while let Some(shared) = ticking.upgrade() {
            shared.clock.tick();
            let period = shared.limits.tick;
            drop(shared);
            sleep(period).await;
        }
    });
    race(shared.service.shutdown(), shared.accept(&listener)).await;
    let closing = async {
        shared.clock.close_after_answers();
        while let Some(stream) = listener.accept_waiting().await {
            shared.start(stream);
        }
        drop(listener);
        sleep(CLOSING_GRACE).await;
        shared.clock.close_idle();
        shared.below(1).await;
    };
    timeout(shared.limits.shutdown_timeout, closing).await;
    shared.count.get()
}

impl<S: Service> Shared<S> {
    pub(super) fn new(service: Rc<S>, limits: Limits, tls: Option<Arc<Tls>>) -> Rc<Shared<S>> {
        Rc::new(Shared {
            clock: Clock::new(limits.tick),
            budget: Budget::new(limits.body_budget_bytes),
            service,
            tls,
            limits,
            count: Cell::new(0),
            waiting: RefCell::default(),
            date: RefCell::new((0, "".into())),
        })
    }

    /// Never returns.
    async fn accept(self: &Rc<Self>, listener: &Listener) {
        let mut accepted = 0u32;
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    self.room().await;
                    self.start(stream);
                }
                // A peer that left before it was accepted; descriptors or memory ran out. Both pass.
                Err(e) if is_shortage(&e) => sleep(ACCEPT_PAUSE).await,
                Err(_) => {}
            }
            accepted = accepted.wrapping_add(1);
            if accepted.is_multiple_of(ACCEPTS_PER_TURN) {
                yield_now().await;
            }
        }
    }

    /// Waits for room for one connection, which is made at the cost of whoever is idle. Without one the newcomer
    /// waits here and those behind it in the kernel.
    async fn room(&self) {
        while self.count.get() >= self.limits.connections {
            self.clock.make_room();
            timeout(self.limits.tick, self.below(self.limits.connections)).await;
            self.clock.has_room();
        }
    }

    fn start(self: &Rc<Self>, stream: Stream) {
        let Some(tls) = &self.tls else { return spawn(self.connection(stream).run()) };
        // A handshake is one of the connections, and waits for nobody but its own client.
        self.count.set(self.count.get() + 1);
        let (shared, config) = (self.clone(), tls.config());
        spawn(async move {
            let secured = timeout(shared.limits.head_timeout, stream.secure(config)).await;
            let connection = match secured {
                Some(Ok(stream)) => Some(shared.connection(stream)),
                Some(Err(_)) | None => None,
            };
            shared.closed();
            if let Some(connection) = connection {
                connection.run().await;
            }
        });
    }

    /// A connection, counted until it is dropped.
    pub(super) fn connection(self: &Rc<Self>, stream: Stream) -> Connection<S> {
        self.count.set(self.count.get() + 1);
        Connection::new(self.clone(), stream)
    }

    /// A connection has closed.
    pub(super) fn closed(&self) {
        self.count.set(self.count.get() - 1);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    /// Waits until fewer than `count` connections are open.
    async fn below(&self, count: usize) {
        std::future::poll_fn(|cx| {
            if self.count.get() < count {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The `Date` header's value; made once a second.
    pub(super) fn date(&self) -> Rc<str> {
        let now = SystemTime::now();
        let secs = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut date = self.date.borrow_mut();
        if date.0 != secs || date.1.is_empty() {
            *date = (secs, http_date(now).into());
        }
        date.1.clone()
    }
}

fn is_shortage(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
