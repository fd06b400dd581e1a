//! Partitions and cursors that ack sets need read: what several sets of a turn need is asked for once.
//!
//!     start_set > find_partition, find_cursor > (end of the turn) send_finds > partition_found, cursor_found > start_set
//!
//! Holds: an answer is for sets only that were there when it was asked for.

use crate::calls::Pending;
use crate::effect::Call;
use crate::ids::{PartitionId, TenantId};
use crate::lane::Ticket;
use crate::limits::FIND_MAX;
use crate::shard::Shard;
use crate::slab::Ref;
use hashbrown::HashMap;
use std::sync::Arc;

/// Each with the sets that wait for it, in the order in which the first of them came.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    partitions: Vec<((TenantId, PartitionId), Vec<Ticket>)>,
    cursors: Vec<((Ref, Arc<str>), Vec<Ticket>)>,
    partition_at: HashMap<(TenantId, PartitionId), usize>,
    cursor_at: HashMap<(Ref, Arc<str>), usize>,
}

impl Finds {
    fn is_empty(&self) -> bool {
        self.partitions.is_empty() && self.cursors.is_empty()
    }

    pub fn find_partition(&mut self, tenant: TenantId, id: PartitionId, ticket: Ticket) {
        let key = (tenant, id);
        let at = *self.partition_at.entry(key).or_insert(self.partitions.len());
        if at == self.partitions.len() {
            self.partitions.push((key, Vec::new()));
        }
        self.partitions[at].1.push(ticket);
    }

    pub fn find_cursor(&mut self, lane: Ref, group: Arc<str>, ticket: Ticket) {
        let at = *self.cursor_at.entry((lane, group.clone())).or_insert(self.cursors.len());
        if at == self.cursors.len() {
            self.cursors.push(((lane, group), Vec::new()));
        }
        self.cursors[at].1.push(ticket);
    }
}

impl Shard {
    pub(crate) fn send_finds(&mut self) {
        while !self.finds.is_empty() {
            let finds = std::mem::take(&mut self.finds);
            self.send(finds);
        }
    }

    fn send(&mut self, finds: Finds) {
        let Finds { partitions, cursors, .. } = finds;
        let mut partitions = partitions.into_iter().peekable();
        while let Some(((tenant, id), tickets)) = partitions.next() {
            let mut wanted = vec![(id, tickets)];
            while wanted.len() < FIND_MAX
                && let Some(((_, id), tickets)) = partitions.next_if(|((of, _), _)| *of == tenant)
            {
                wanted.push((id, tickets));
            }
            let ids = wanted.iter().map(|(id, _)| *id).collect();
            let tickets = wanted.into_iter().map(|(_, tickets)| tickets).collect();
            self.ask(Call::FindPartitions { tenant, ids }, Pending::FindPartitions { tickets });
        }
        for ((lane, group), tickets) in cursors {
            match self.lanes.slab.get(lane).map(|lane| lane.id) {
                Some(partition) => {
                    self.ask(Call::FindCursor { partition, group }, Pending::FindCursor { lane, tickets })
                }
                // Forgotten since: by its number it may be there.
                None => tickets.into_iter().for_each(|ticket| self.start_set(ticket)),
            }
        }
    }
}
