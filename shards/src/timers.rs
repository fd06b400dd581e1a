//! Moments at which something is looked at again.
//!
//! Holds: an entry for a cursor counts while the cursor is armed for its moment. Of entries that do not count, because the cursor
//! is armed for an earlier one or has left memory, no more stay than of others: taking one out does not search.

use crate::ids::Micros;
use crate::lane::Lanes;
use crate::slab::Ref;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something to look at again at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The lease, delay or window of a lane's group may be over.
    Offer { lane: Ref, group: Ref },
    /// A lane whose row was locked may try to close again.
    Close { lane: Ref },
    /// A lane of which nothing is known since a commit without an answer is read again.
    Reread { lane: Ref },
    /// Moves whose rows were locked may try again.
    Moves,
    /// Partitions that could not be looked for.
    Meet,
    /// Whoever watches is looked at again, whatever became of its hint.
    Recheck,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Micros, Timer)>>,
    /// Entries that do not count any more.
    past: usize,
}

impl Timers {
    pub fn arm(&mut self, at: Micros, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    pub fn next_at(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next one whose moment has come.
    pub fn take_due(&mut self, now: Micros) -> Option<(Micros, Timer)> {
        self.next_at().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse(due)| due)
    }

    /// All of them, earliest first.
    pub fn take_all(&mut self) -> impl Iterator<Item = (Micros, Timer)> + use<> {
        let all = std::mem::take(self).heap.into_sorted_vec();
        all.into_iter().rev().map(|Reverse(one)| one)
    }

    /// One that was taken did not count.
    pub fn was_past(&mut self) {
        self.past = self.past.saturating_sub(1);
    }

    /// So many entries of cursors do not count from now on.
    pub fn are_past(&mut self, entries: usize, lanes: &Lanes) {
        self.past += entries;
        if self.heap.len() < 2 * self.past {
            self.heap.retain(|Reverse((at, timer))| match timer {
                Timer::Offer { lane, group } => {
                    let cursor = lanes.slab.get(*lane).and_then(|lane| lane.cursor(*group));
                    cursor.is_some_and(|cursor| cursor.timer == Some(*at))
                }
                _ => true,
            });
            self.past = 0;
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.heap.len()
    }
}
