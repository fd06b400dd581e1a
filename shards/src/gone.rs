//! Cursors that the store does not have any more: their group was deleted, or their partition.
//!
//!     a move that is answered `Gone`, a seeding without a row > the group is opened anew > FindPartitions > lanes that are gone go
//!
//! Holds: of other groups nothing is forgotten unless the partition is gone as well, and the store has said so. Source: data
//! plane 11.6; rule 19.

use crate::calls::Pending;
use crate::command::Verdict;
use crate::effect::{Call, FoundLane, StoreError};
use crate::ids::{GroupId, PartitionId, Slot, TenantId};
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use std::sync::Arc;

impl Shard {
    /// Cursors of group `id` on `lanes` are gone; what was under way on them is over.
    pub(crate) fn cursors_gone(&mut self, group: Ref, id: GroupId, lanes: Vec<Ref>) {
        let known = self.queues.groups.get(group).filter(|known| known.id == id);
        if known.is_some_and(|known| !matches!(known.state, GroupState::Unknown | GroupState::Opening)) {
            self.forget_group(group);
        }
        let mut gone: Vec<(Ref, PartitionId)> = Vec::new();
        let mut tenant = None;
        for at in lanes {
            let Some(lane) = self.lanes.slab.get_mut(at) else { continue };
            tenant = Some(lane.key.tenant);
            gone.push((at, lane.id));
            if let Some(cursor) = lane.cursor_mut(group) {
                cursor.forget = true;
            }
            self.free_cursor(at, group);
        }
        let Some(tenant) = tenant else { return };
        let ids = gone.iter().map(|(_, id)| *id).collect();
        self.ask(Call::FindPartitions { tenant, ids }, Pending::FindGone { lanes: gone });
    }

    /// A group may have been deleted in a queue, or in any. A step for each queue, and for each lane of those that know it.
    pub(crate) fn group_changed(&mut self, slot: Slot, tenant: TenantId, queue: Option<Arc<str>>, name: &str) {
        self.fence = self.calls.last_sent();
        let queues: Vec<Ref> = match queue {
            Some(queue) => self.queues.find(tenant, &queue).into_iter().collect(),
            None => self.queues.slab.refs().collect(),
        };
        for queue in queues {
            let known = self.queues.slab.get(queue).filter(|known| known.tenant == tenant);
            if let Some(group) = known.and_then(|_| self.queues.group(queue, name)) {
                self.forget_group(group);
            }
        }
        for hash in self.watched_lanes() {
            self.wake_hash(hash, Some(name));
        }
        self.reply(slot, Verdict::Done);
    }

    /// A group was deleted, and may be there again under another number: nothing that is remembered of its cursors counts.
    pub(crate) fn forget_group(&mut self, group: Ref) {
        let queue = self.queues.groups[group].queue;
        let (now, mut past) = (self.now, 0);
        for i in 0..self.lanes.of_queue(queue).len() {
            let lane = self.lanes.of_queue(queue)[i];
            if let Some(cursor) = self.lanes[lane].cursor_mut(group) {
                past += usize::from(cursor.forget_soon(now));
            }
        }
        self.timers.are_past(past, &self.lanes);
        self.reopen_group(group);
    }

    /// The store's word on partitions whose cursors are gone. Without it the next move finds out.
    pub(crate) fn gone_found(
        &mut self,
        lanes: Vec<(Ref, PartitionId)>,
        found: Result<Vec<Option<FoundLane>>, StoreError>,
    ) {
        let Ok(found) = found else { return };
        for ((lane, id), found) in lanes.into_iter().zip(found) {
            // Numbers are given once: what is gone stays gone.
            if found.is_none() && self.lanes.slab.get(lane).is_some_and(|known| known.id == id) {
                self.forget_lane(lane);
            }
        }
    }
}

#[cfg(test)]
mod tests;
