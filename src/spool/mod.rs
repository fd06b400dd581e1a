//! The spool: pushes the store could not take, durable on this broker's disk until it can.
//!
//!     shard --Write--> thread: one write, one fdatasync for all that wait --Spooled--> shard: `buffered`
//!     thread: oldest first, while the store answers --Drain--> shard: stored --Decided--> thread: file removed
//!
//! One thread owns the directory, with direct I/O on a glommio ring, or with plain files where memlock or the file system
//! does not allow that: the same format, the same syncs. Shards never wait for it: they go on with other work.
//! Source: operations 4; architecture (When PostgreSQL is away); reliability 7.

pub mod clock;
pub mod format;

mod active;
mod direct;
mod disk;
mod files;
mod legacy;
mod lock;
mod status;
mod thread;

#[cfg(test)]
mod tests;

pub use files::Limits;
pub use lock::{Lock, LockError};
pub use status::{Numbers, Status};
pub use thread::{Setup, open_dir, start};

use crossbeam::queue::SegQueue;
use futures_util::task::AtomicWaker;
use queen_shards::command::{DrainVerdict, SpoolId, SpoolRecord};
use queen_shards::ids::{Micros, Stamp};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Poll;

/// To the spool's thread.
#[derive(Debug)]
pub enum ToSpool {
    /// Records of a shard, each under its token.
    Write {
        shard: usize,
        records: Vec<(u64, SpoolRecord)>,
    },
    Decided {
        verdicts: Vec<(SpoolId, DrainVerdict)>,
    },
    /// The store can be used from now on; keys are hashed with this.
    Ready {
        hash_secret: [u8; 16],
    },
    /// Whether the store answered a moment ago, and what its clock said when.
    Store {
        clock: Option<(Stamp, Micros)>,
    },
    /// Push maintenance: nothing is drained.
    Maintenance {
        on: bool,
    },
    /// The broker ends: close the file that is being written, then say so.
    Stop {
        done: Sender<()>,
    },
}

/// The way to the spool. Cheap to clone, any thread.
#[derive(Clone)]
pub struct Spool(Arc<Inner>);

struct Inner {
    // Bounded by the pushes that wait for an answer, and by what was handed over.
    queue: SegQueue<ToSpool>,
    waker: AtomicWaker,
    status: Arc<Status>,
}

impl Spool {
    #[allow(clippy::new_without_default, reason = "it is nothing without its thread")]
    pub fn new() -> Spool {
        Spool(Arc::new(Inner { queue: SegQueue::new(), waker: AtomicWaker::new(), status: Arc::default() }))
    }

    pub fn status(&self) -> &Arc<Status> {
        &self.0.status
    }

    pub fn send(&self, mail: ToSpool) {
        self.0.queue.push(mail);
        self.0.waker.wake();
    }

    fn take(&self) -> Option<ToSpool> {
        self.0.queue.pop()
    }

    /// Returns when there is mail.
    async fn wait(&self) {
        poll_fn(|cx| {
            if !self.0.queue.is_empty() {
                return Poll::Ready(());
            }
            self.0.waker.register(cx.waker());
            if self.0.queue.is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await
    }
}
