//! Whether every shard can store a push: what `/health` says, and so what a load balancer may rely on.
//!
//! Holds: a push that comes after a healthy answer is not spooled for what a shard has not heard yet, but while files of an
//! earlier process are being counted: that may take long, and `/health` says it. Source: operations 5.1, 4.6.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Of all shards of this broker.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Shards whose store answered lately.
    up: AtomicUsize,
    /// Shards that know which of their partitions had records in the spool at the start.
    found: AtomicUsize,
}

impl Readiness {
    /// A shard saw the store come or go.
    pub fn store(&self, up: bool) {
        match up {
            true => self.up.fetch_add(1, Ordering::AcqRel),
            false => self.up.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// A shard heard what the spool holds; once each.
    pub fn spool_found(&self) {
        self.found.fetch_add(1, Ordering::AcqRel);
    }

    /// `recovering`: files of an earlier process are being counted, which delays nobody: pushes are `buffered` meanwhile.
    pub fn is_ready(&self, shards: usize, recovering: bool) -> bool {
        shards <= self.up.load(Ordering::Acquire) && (recovering || shards <= self.found.load(Ordering::Acquire))
    }
}
