//! The store is another one: a standby was promoted, or a backup was restored. What is remembered of the one before is
//! dropped, and whatever was under way begins again from names and keys.
//!
//!     Event::OtherStore > queues, lanes, cursors, windows, tails, sealed runs go > calls that wait or fly have failed
//!     > moves that wait are decided anew, bundles prepared anew > who waits for messages is woken
//!
//! Holds: no number, offset, version or record of one store is used on another one. What the disk holds stays: it is known
//! by names and keys. Commits and calls that were asked for before are refused by the other store: the edge sees to that.
//! Source: rule 12.

use crate::bundle::BundleVerdict;
use crate::command::Verdict;
use crate::effect::StoreError;
use crate::ids::{CallId, Micros, Stamp};
use crate::shard::Shard;
use crate::slab::Ref;

impl Shard {
    /// `now`, before `at`: the clock of the store that there is now. It may be behind the one before.
    pub(crate) fn hear_other_store(&mut self, now: Stamp, at: Micros) {
        self.set_clock(now, at);
        self.stores += 1;
        let waiting = self.calls.take_waiting();
        self.severed = CallId(self.calls.last_sent().0 + waiting.len() as u64);
        (self.fence, self.followed) = (self.severed, self.severed);
        self.absent.clear();
        let queues: Vec<Ref> = self.queues.slab.refs().collect();
        for queue in queues {
            if self.queues.slab.get(queue).is_some() {
                self.forget_queue(queue);
                self.forget_empty_queue(queue);
            }
        }
        for pending in waiting {
            let call = self.calls.put_in_flight(self.now, pending);
            self.resume(call, Err(other_store()));
        }
        for queued in self.take_waiting_moves() {
            self.abandon(queued);
        }
        for slot in self.take_waiting_bundles() {
            self.reply(slot, Verdict::Bundle(BundleVerdict::Stale));
        }
        for hash in self.watched_lanes() {
            self.wake_hash(hash, None);
        }
    }

    /// Whether a call was asked for when there was another store.
    pub(crate) fn is_severed(&self, call: CallId) -> bool {
        call <= self.severed
    }
}

/// Why an answer of another store does not count.
pub(crate) fn other_store() -> StoreError {
    StoreError::Unavailable("the store is another one".into())
}
