//! A group is opened: registered where it must be, then the partitions of its queue are scanned for what it has left.
//!
//!     open > Call::OpenGroup > scan, page after page, while the ready ring has room > whoever waits is served
//!
//! Holds: one page of a group is on its way at most. Does not claim. Source: data plane 4.4.

use crate::calls::Pending;
use crate::command::QUEUE_MODE;
use crate::effect::{Call, Contact, GroupRow, ScanRow, StoreError};
use crate::ids::PartitionId;
use crate::limits::{SCAN_LOOK, SCAN_PAGE};
use crate::place::LaneKey;
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;

impl Shard {
    pub(crate) fn open_group(&mut self, at: Ref, group: Ref, contact: Contact) {
        let state = &mut self.queues.groups[group];
        state.state = GroupState::Opening;
        let (name, queue, epoch) = (state.name.clone(), state.queue, state.epoch);
        self.wait_in(group, at);
        let (tenant, queue_name) = (self.queues.slab[queue].tenant, self.queues.slab[queue].name.clone());
        let call = Call::OpenGroup { tenant, queue: queue_name, group: name, contact };
        self.ask(call, Pending::OpenGroup { group, epoch, contact });
    }

    pub(crate) fn group_opened(&mut self, group: Ref, contact: Contact, row: Result<Option<GroupRow>, StoreError>) {
        let Some(state) = self.queues.groups.get_mut(group) else { return };
        if state.state != GroupState::Opening {
            return;
        }
        let queue = state.queue;
        match row {
            Ok(Some(row)) => {
                if self.queues.slab[queue].row.is_some_and(|known| known.id != row.queue.id) {
                    self.queues.groups[group].state = GroupState::Unknown;
                    self.forget_queue(queue);
                    return self.learn_queue(queue, row.queue);
                }
                self.learn_queue(queue, row.queue);
                let state = &mut self.queues.groups[group];
                state.id = row.group;
                state.registered = row.registered || *state.name == *QUEUE_MODE;
                state.conflation = Some(row.conflation);
                state.state = GroupState::Met;
                // The first one that is not pinned begins the scan.
                self.run_pops(group);
            }
            Ok(None) => {
                state.state = GroupState::Unknown;
                for pop in state.pops.take(&self.pops) {
                    // One that makes its queue asks for that, if it waited for the answer to one that does not.
                    match self.pops[pop].pop.makes_queue && !contact.makes_queue() {
                        true => self.run_pop(pop),
                        false => self.finish_pop(pop),
                    }
                }
                self.forget_empty_queue(queue);
            }
            Err(why) => self.opening_failed(group, &why),
        }
    }

    /// The store could not be asked: who waits is told so, and the next one asks again.
    fn opening_failed(&mut self, group: Ref, why: &StoreError) {
        let state = &mut self.queues.groups[group];
        (state.state, state.again) = (GroupState::Unknown, None);
        for pop in state.pops.take(&self.pops) {
            self.pops[pop].fail_for(why);
            self.finish_pop(pop);
        }
    }

    pub(crate) fn scan(&mut self, group: Ref, after: PartitionId) {
        let state = &mut self.queues.groups[group];
        state.state = GroupState::Scanning(after);
        let (id, epoch) = (state.id, state.epoch);
        let queue = self.queues.slab[state.queue].row.expect("an opened group's queue is known").id;
        let (shard, shards) = (self.config.index as u32, self.config.shards as u32);
        let call = Call::Scan { queue, group: id, shard, shards, after, limit: SCAN_PAGE, look: SCAN_LOOK };
        self.ask(call, Pending::Scan { group, epoch });
    }

    /// Goes on with a scan that rests, when the ring holds little.
    pub(crate) fn scan_on(&mut self, group: Ref) {
        let state = &self.queues.groups[group];
        if let GroupState::Resting(after) = state.state
            && state.ring.len() < self.config.ready_low
        {
            self.scan(group, after);
        }
    }

    pub(crate) fn scanned(&mut self, group: Ref, page: Result<(Vec<ScanRow>, Option<PartitionId>), StoreError>) {
        let Some(state) = self.queues.groups.get_mut(group) else { return };
        let GroupState::Scanning(_) = state.state else { return };
        let (rows, next) = match page {
            Ok(page) => page,
            Err(why) => return self.opening_failed(group, &why),
        };
        let queue = state.queue;
        let (tenant, name) = (self.queues.slab[queue].tenant, self.queues.slab[queue].name.clone());
        for row in rows {
            let key = LaneKey::new(tenant, name.clone(), row.name.clone());
            let at = self.meet_lane(&key, row.partition, row.last_offset, row.log_start, row.last_created_at);
            let (now, asked) = (self.now, self.asked);
            // A lease that the log has told the end of must not be learned again.
            if let Some(cursor_row) = row.cursor.filter(|_| !self.is_overtaken()) {
                let cursor = self.lanes[at].cursor_entry(group);
                if cursor.lacks_row(asked) {
                    cursor.learn(cursor_row, now);
                }
            }
            self.offer(at, group);
        }
        let state = &mut self.queues.groups[group];
        state.state = match next.or_else(|| state.again.take()) {
            Some(after) => GroupState::Resting(after),
            None => GroupState::Open,
        };
        self.scan_on(group);
        let state = &self.queues.groups[group];
        if !state.ring.is_empty() || !matches!(state.state, GroupState::Scanning(_)) {
            self.run_pops(group);
        }
    }
}
