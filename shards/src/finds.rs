//! Partitions and cursors that ack sets need read: what several sets need is asked for once, many with one call.
//!
//!     start_set > find_partition, find_cursor > (end of the turn) send_finds > partitions_found, cursors_found > start_set
//!
//! Holds: an answer is for sets only that were there when it was asked for. However many partitions an ack names, at most
//! FINDS_MAX calls of them are on their way: what pushes and pops ask for does not wait behind all of them. Nor does a small ack
//! behind a large one: a call is filled from all of them in turns.

use crate::calls::Pending;
use crate::effect::Call;
use crate::ids::{PartitionId, TenantId};
use crate::lane::Ticket;
use crate::limits::{FIND_MAX, FINDS_MAX};
use crate::shard::Shard;
use crate::slab::Ref;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Finds {
    partitions: Wanted<(TenantId, PartitionId)>,
    cursors: Wanted<(Ref, Arc<str>)>,
    /// Calls without an answer.
    out: usize,
}

/// Things to read, each with the sets that wait for it.
#[derive(Debug)]
struct Wanted<K> {
    sets: HashMap<K, Vec<Ticket>>,
    /// What each ack job wants, in order; of several that want the same thing the first whose turn it is has it read.
    jobs: HashMap<Ref, VecDeque<K>>,
    /// Whose turn it is.
    turns: VecDeque<Ref>,
}

impl<K> Default for Wanted<K> {
    fn default() -> Self {
        Wanted { sets: HashMap::new(), jobs: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash> Wanted<K> {
    fn want(&mut self, key: K, ticket: Ticket) {
        let turns = &mut self.turns;
        let keys = self.jobs.entry(ticket.job).or_insert_with(|| {
            turns.push_back(ticket.job);
            VecDeque::new()
        });
        keys.push_back(key.clone());
        self.sets.entry(key).or_default().push(ticket);
    }

    /// Takes up to `most` things that are alike, one of each job in turn.
    fn take(&mut self, most: usize, alike: impl Fn(&K, &K) -> bool) -> Vec<(K, Vec<Ticket>)> {
        let mut taken: Vec<(K, Vec<Ticket>)> = Vec::new();
        let mut passed = Vec::new();
        while taken.len() < most
            && let Some(job) = self.turns.pop_front()
        {
            let Some(keys) = self.jobs.get_mut(&job) else { continue };
            while keys.front().is_some_and(|key| !self.sets.contains_key(key)) {
                keys.pop_front();
            }
            let Some(key) = keys.front() else {
                self.jobs.remove(&job);
                continue;
            };
            if taken.first().is_some_and(|(first, _)| !alike(first, key)) {
                passed.push(job);
                continue;
            }
            self.turns.push_back(job);
            taken.extend(keys.pop_front().and_then(|key| self.sets.remove_entry(&key)));
        }
        passed.into_iter().rev().for_each(|job| self.turns.push_front(job));
        taken
    }
}

impl Finds {
    pub fn find_partition(&mut self, tenant: TenantId, id: PartitionId, ticket: Ticket) {
        self.partitions.want((tenant, id), ticket);
    }

    pub fn find_cursor(&mut self, lane: Ref, group: Arc<str>, ticket: Ticket) {
        self.cursors.want((lane, group), ticket);
    }

    /// A call was answered.
    pub fn one_answered(&mut self) {
        self.out -= 1;
    }
}

impl Shard {
    /// Cursors first: with them sets are decided, and wait for nothing more.
    pub(crate) fn send_finds(&mut self) {
        while self.finds.out < FINDS_MAX && (self.send_cursors() || self.send_partitions()) {}
    }

    /// One call; false when there is nothing to ask for.
    fn send_partitions(&mut self) -> bool {
        let wanted = self.finds.partitions.take(FIND_MAX, |(tenant, _), (other, _)| tenant == other);
        let Some(&((tenant, _), _)) = wanted.first() else { return false };
        let (ids, tickets) = wanted.into_iter().map(|((_, id), sets)| (id, sets)).unzip();
        self.finds.out += 1;
        self.ask(Call::FindPartitions { tenant, ids }, Pending::FindPartitions { tickets });
        true
    }

    /// One call; false when there is nothing to ask for.
    fn send_cursors(&mut self) -> bool {
        let (mut cursors, mut waiting) = (Vec::new(), Vec::new());
        while cursors.len() < FIND_MAX {
            let wanted = self.finds.cursors.take(FIND_MAX - cursors.len(), |_, _| true);
            if wanted.is_empty() {
                break;
            }
            for ((lane, group), tickets) in wanted {
                match self.lanes.slab.get(lane).map(|lane| lane.id) {
                    Some(partition) => {
                        cursors.push((partition, group));
                        waiting.push((lane, tickets));
                    }
                    // Forgotten since: by its number it may be there.
                    None => tickets.into_iter().for_each(|ticket| self.start_set(ticket)),
                }
            }
        }
        if cursors.is_empty() {
            return false;
        }
        self.finds.out += 1;
        self.ask(Call::FindCursors { cursors }, Pending::FindCursors { waiting });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn acks_take_turns_and_what_several_want_is_read_once() {
        let mut jobs = Slab::default();
        let [large, small, other] = [(), (), ()].map(|()| jobs.insert(()));
        let mut wanted: Wanted<(u32, usize)> = Wanted::default();
        let ticket = |job, set| Ticket { job, set };
        (0..250_000).for_each(|n| wanted.want((0, n), ticket(large, n)));
        wanted.want((1, 0), ticket(other, 0));
        wanted.want((0, 249_999), ticket(small, 0));
        wanted.want((0, 249_999), ticket(small, 1));
        let mut take = || wanted.take(512, |(a, _), (b, _)| a == b);
        let first = take();
        let sets = [ticket(large, 249_999), ticket(small, 0), ticket(small, 1)];
        assert_eq!(
            (first.len(), &first[1]),
            (512, &((0, 249_999), sets.to_vec())),
            "the small one is in the first call"
        );
        assert_eq!(take(), [((1, 0), vec![ticket(other, 0)])], "who was passed over is next");
        let mut left = 249_999 - 511;
        while left > 0 {
            let some = take();
            assert_eq!(some.len(), left.min(512));
            left -= some.len();
        }
        assert!(take().is_empty() && wanted.sets.is_empty() && wanted.jobs.is_empty() && wanted.turns.is_empty());
    }
}
