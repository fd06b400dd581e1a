//! Partitions and cursors that ack sets need read: what several sets need is asked for once, many with one call.
//!
//!     start_set > find_partition, find_cursor > (end of the turn) send_finds > partitions_found, cursors_found > start_set
//!
//! Holds: an answer is for sets only that were there when it was asked for. However many partitions an ack names, at most
//! FINDS_MAX calls of them are on their way: what pushes and pops ask for does not wait behind all of them.

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

/// Things to read, each with the sets that wait for it, in the order in which the first of them came.
#[derive(Debug)]
struct Wanted<K> {
    entries: VecDeque<(K, Vec<Ticket>)>,
    /// Number of each among all there ever were.
    number: HashMap<K, usize>,
    first: usize,
}

impl<K> Default for Wanted<K> {
    fn default() -> Self {
        Wanted { entries: VecDeque::new(), number: HashMap::new(), first: 0 }
    }
}

impl<K: Clone + Eq + Hash> Wanted<K> {
    fn want(&mut self, key: K, ticket: Ticket) {
        let next = self.first + self.entries.len();
        let number = *self.number.entry(key.clone()).or_insert(next);
        if number == next {
            self.entries.push_back((key, Vec::new()));
        }
        self.entries[number - self.first].1.push(ticket);
    }

    /// Takes the first, if it is one of those.
    fn take_if(&mut self, one_of: impl Fn(&K) -> bool) -> Option<(K, Vec<Ticket>)> {
        self.entries.front().filter(|(key, _)| one_of(key))?;
        let (key, tickets) = self.entries.pop_front()?;
        self.number.remove(&key);
        self.first += 1;
        Some((key, tickets))
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
        let Some(((tenant, id), sets)) = self.finds.partitions.take_if(|_| true) else { return false };
        let (mut ids, mut tickets) = (vec![id], vec![sets]);
        while ids.len() < FIND_MAX
            && let Some(((_, id), sets)) = self.finds.partitions.take_if(|(of, _)| *of == tenant)
        {
            ids.push(id);
            tickets.push(sets);
        }
        self.finds.out += 1;
        self.ask(Call::FindPartitions { tenant, ids }, Pending::FindPartitions { tickets });
        true
    }

    /// One call; false when there is nothing to ask for.
    fn send_cursors(&mut self) -> bool {
        let (mut cursors, mut waiting) = (Vec::new(), Vec::new());
        while cursors.len() < FIND_MAX
            && let Some(((lane, group), tickets)) = self.finds.cursors.take_if(|_| true)
        {
            match self.lanes.slab.get(lane).map(|lane| lane.id) {
                Some(partition) => {
                    cursors.push((partition, group));
                    waiting.push((lane, tickets));
                }
                // Forgotten since: by its number it may be there.
                None => tickets.into_iter().for_each(|ticket| self.start_set(ticket)),
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
