//! Whether every shard can store a push: what `/health` says, and so what a load balancer may rely on.
//!
//! Holds: a push that comes after a healthy answer is not spooled for what a shard has not heard yet, but while files of an
//! earlier process are being counted: that may take long, and `/health` says it. The last shard that hears of them ends that,
//! so nothing lies between the two. Source: operations 5.1, 4.6.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Of all shards of this broker.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Shards whose store answered lately.
    up: AtomicUsize,
    /// Shards that know which of their partitions had records in the spool at the start, or that nothing is known to be there.
    found: AtomicUsize,
    /// Shards that know it because the files were counted.
    counted: AtomicUsize,
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

    /// A shard that has called [`Readiness::spool_found`] heard it of files that were counted; once each. True: it is the last
    /// one of all, so the spool is not recovering any more.
    pub fn spool_counted(&self, shards: usize) -> bool {
        self.counted.fetch_add(1, Ordering::AcqRel) + 1 == shards
    }

    /// `recovering`: files of an earlier process are being counted, which delays nobody: pushes are `buffered` meanwhile. It is
    /// to be read before this is asked.
    pub fn is_ready(&self, shards: usize, recovering: bool) -> bool {
        shards <= self.up.load(Ordering::Acquire) && (recovering || shards <= self.found.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::Status;

    const SHARDS: usize = 3;

    /// Where everybody is: a shard that hears of the spool takes two steps, `/health` reads `recovering` and then asks.
    #[derive(Clone, Copy)]
    struct Steps {
        shards: [u8; SHARDS],
        health: u8,
    }

    /// What has happened, in order: `Some(shard)`, or `/health`.
    fn every_order(at: Steps, order: &mut Vec<Option<usize>>, check: &mut impl FnMut(&[Option<usize>])) {
        if at.shards == [2; SHARDS] && at.health == 2 {
            return check(order);
        }
        for shard in (0..SHARDS).filter(|shard| at.shards[*shard] < 2) {
            let mut next = at;
            next.shards[shard] += 1;
            order.push(Some(shard));
            every_order(next, order, check);
            order.pop();
        }
        if at.health < 2 {
            order.push(None);
            every_order(Steps { health: at.health + 1, ..at }, order, check);
            order.pop();
        }
    }

    /// `early`: the shards were told before that no directory is there.
    fn check_order(order: &[Option<usize>], early: bool) {
        let (readiness, status) = (Readiness::default(), Status::default());
        (0..SHARDS).for_each(|_| readiness.store(true));
        if early {
            (0..SHARDS).for_each(|_| readiness.spool_found());
        }
        status.recovering(true);
        let (mut steps, mut seen) = ([0; SHARDS], None);
        for who in order {
            match (who, seen) {
                (Some(shard), _) => {
                    match steps[*shard] {
                        0 if early => {}
                        0 => readiness.spool_found(),
                        _ if readiness.spool_counted(SHARDS) => status.recovering(false),
                        _ => {}
                    }
                    steps[*shard] += 1;
                }
                (None, None) => seen = Some(status.numbers().recovering),
                (None, Some(recovering)) => {
                    assert!(readiness.is_ready(SHARDS, recovering), "{order:?}");
                    assert!(recovering || steps == [2; SHARDS], "a shard has not heard of it: {order:?}");
                }
            }
        }
        assert!(!status.numbers().recovering, "{order:?}");
    }

    #[test]
    fn health_does_not_flap_when_recovery_ends_in_whatever_order_the_shards_hear_of_it() {
        let mut orders = 0;
        every_order(Steps { shards: [0; SHARDS], health: 0 }, &mut Vec::new(), &mut |order| {
            check_order(order, false);
            check_order(order, true);
            orders += 1;
        });
        assert_eq!(orders, 2520, "8 steps, two of each of four");
    }

    #[test]
    fn it_takes_every_shard_to_be_ready() {
        let readiness = Readiness::default();
        for shard in 0..SHARDS {
            assert!(!readiness.is_ready(SHARDS, true), "{shard} shards see the store");
            readiness.store(true);
        }
        assert!(readiness.is_ready(SHARDS, true));
        for shard in 0..SHARDS {
            assert!(!readiness.is_ready(SHARDS, false), "{shard} shards know of the spool");
            readiness.spool_found();
        }
        assert!(readiness.is_ready(SHARDS, false));
        readiness.store(false);
        assert!(!readiness.is_ready(SHARDS, true) && !readiness.is_ready(SHARDS, false));
    }
}
