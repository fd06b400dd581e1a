//! What other brokers committed: their log tells it, and memory follows.
//!
//!     Event::Log > lanes grew: offered to their groups > cursors are free again: forgotten, offered > queues changed
//!
//! Holds: an answer of the store that was asked for before teaches nothing that the log has overtaken. What is told twice
//! does no harm. Does not read anything: whoever is woken asks. Source: rules 8, 10, 11.

use crate::calls::Pending;
use crate::command::{Left, LogLane, Verdict};
use crate::effect::{Call, LaneRow, QueueRow, StoreError};
use crate::ids::{GroupId, Micros, Offset, PartitionId, Slot, Stamp, TenantId};
use crate::lane::LaneState;
use crate::place::LaneKey;
use crate::shard::Shard;
use crate::slab::Ref;
use std::sync::Arc;

impl Shard {
    /// Takes a read of the log. `lost`: there was more, which nobody knows any more.
    pub(crate) fn hear_log(
        &mut self,
        began: Micros,
        lanes: Vec<LogLane>,
        freed: Vec<(PartitionId, GroupId, Left)>,
        changed: Vec<(TenantId, Arc<str>)>,
        lost: bool,
    ) {
        self.followed = self.calls.last_sent();
        for row in lanes {
            let (partition, end) = (row.partition, row.last_offset);
            self.lane_grew(row);
            if let Some(at) = self.lanes.by_number(partition).filter(|&at| self.lanes[at].end == end) {
                // The reader has seen all of it.
                self.lanes[at].grown = Micros(0);
            }
        }
        for (partition, group, left) in freed {
            self.cursor_freed(began, partition, group, left);
        }
        for (tenant, queue) in changed {
            self.absent.clear();
            self.look_anew(tenant, queue);
        }
        if lost {
            self.look_everywhere();
        }
    }

    /// Whether the answer being taken was asked for before the log was read.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.answering <= self.followed
    }

    /// A partition that this broker's edge wrote to by a call of its own (a replay).
    pub(crate) fn read_grown(&mut self, slot: Slot, lane: LaneKey) {
        self.ask(Call::FindLane { lane: lane.clone() }, Pending::ReadGrown { slot, lane });
    }

    pub(crate) fn grown_read(&mut self, slot: Slot, key: LaneKey, row: Result<Option<LaneRow>, StoreError>) {
        match row {
            Ok(Some(LaneRow { partition, last_offset, log_start, last_created_at, .. })) => {
                self.lane_grew(LogLane { key, partition, last_offset, log_start, last_created_at });
            }
            // Deleted since.
            Ok(None) => {}
            Err(_) => self.look_anew(key.tenant, key.queue.clone()),
        }
        self.reply(slot, Verdict::Done);
    }

    fn lane_grew(&mut self, row: LogLane) {
        self.absent.remove(&row.key.hash());
        let mut is_offered = false;
        if let Some(queue) = self.queues.find(row.key.tenant, &row.key.queue) {
            let known = self.lanes.find(&row.key);
            match known.map(|at| (at, self.lanes[at].id)) {
                // Numbers rise: the row is of a partition that is gone.
                Some((_, id)) if row.partition < id => return,
                Some((at, id)) if id.0 != 0 && id < row.partition => self.forget_lane(at),
                _ => {}
            }
            if self.lanes.find(&row.key).is_some() || !self.queues.slab[queue].groups.is_empty() {
                let LogLane { key, partition, last_offset, log_start, last_created_at } = &row;
                let at = self.meet_lane(key, *partition, *last_offset, *log_start, *last_created_at);
                self.offer_all(at);
                is_offered = true;
            }
        }
        if !is_offered {
            self.wake_hash(row.key.hash(), None);
        }
    }

    /// A lane as a row of the store tells it; its memory is made when there is none.
    pub(crate) fn meet_lane(
        &mut self,
        key: &LaneKey,
        partition: PartitionId,
        last_offset: Offset,
        log_start: Offset,
        last_created_at: Stamp,
    ) -> Ref {
        let at = self.lane_entry(key);
        // A lane is judged by its queue's options: without them its first push asks for both.
        let options_known = self.queues.slab[self.lanes[at].queue].row.is_some();
        let lane = &mut self.lanes[at];
        if lane.id.0 == 0 {
            if lane.state == LaneState::Unknown && options_known {
                lane.state = LaneState::Ready;
                lane.verified = last_offset;
                lane.last_created_at = last_created_at;
            }
            // Also while a provisioning is under way: what it will say of the number is known already.
            self.lanes.identify(at, partition);
        }
        let lane = &mut self.lanes[at];
        lane.saw_end(last_offset, self.now);
        lane.log_start = lane.log_start.max(log_start);
        at
    }

    /// Another broker ended the lease of a cursor. Without this the lane would be thought leased when it grows later, or
    /// when a lease that was granted since ends sooner, which nobody tells. With nothing left nobody is to be woken when the
    /// lease would have ended.
    fn cursor_freed(&mut self, began: Micros, partition: PartitionId, id: GroupId, left: Left) {
        let Some(at) = self.lanes.by_number(partition) else { return };
        let groups = &self.queues.slab[self.lanes[at].queue].groups;
        let Some(group) = groups.iter().copied().find(|&group| self.queues.groups[group].id == id) else { return };
        let now = self.now;
        if let Some(cursor) = self.lanes[at].cursor_mut(group) {
            let past = usize::from(cursor.forget_soon(now));
            self.timers.are_past(past, &self.lanes);
        }
        match left {
            // What was stored meanwhile the log's reader need not have seen.
            Left::Nothing if began <= self.lanes[at].grown => self.offer(at, group),
            Left::Nothing => {}
            Left::Something => self.offer(at, group),
            Left::Leased(end) => self.offer_at(at, group, self.moment_of(end)),
        }
    }

    /// Options, groups or cursors of a queue are not what they were, or the queue is gone.
    fn look_anew(&mut self, tenant: TenantId, name: Arc<str>) {
        let Some(queue) = self.queues.find(tenant, &name) else { return };
        self.fence = self.calls.last_sent();
        self.forget_cursors(queue);
        let call = Call::FindQueue { tenant, queue: name.clone() };
        self.ask(call, Pending::FindQueue { slot: None, tenant, queue: name });
    }

    /// The answer to that. What is as it was teaches nothing: its cursors were forgotten when it was asked for.
    pub(crate) fn queue_read_anew(&mut self, tenant: TenantId, name: &Arc<str>, row: Option<QueueRow>) {
        let known = self.queues.find(tenant, name).and_then(|queue| self.queues.slab[queue].row);
        if row.is_none() || known != row {
            self.queue_found(tenant, name, row);
        }
    }

    /// Nothing is known of what others did: every group is scanned again, every queue read.
    pub(crate) fn look_everywhere(&mut self) {
        self.absent.clear();
        // Of a lane that held nothing only its number said so.
        let empty: Vec<Ref> = self.lanes.slab.refs().filter(|&at| self.held_nothing(at)).collect();
        empty.into_iter().for_each(|at| self.forget_lane(at));
        let queues: Vec<Ref> = self.queues.slab.refs().collect();
        for queue in queues {
            let Some(known) = self.queues.slab.get(queue) else { continue };
            let (tenant, name) = (known.tenant, known.name.clone());
            self.look_anew(tenant, name);
        }
        let pinned: Vec<u64> = self.watched_lanes();
        pinned.into_iter().for_each(|hash| self.wake_hash(hash, None));
    }

    fn held_nothing(&self, at: Ref) -> bool {
        let lane = &self.lanes[at];
        lane.state == LaneState::Ready
            && lane.end < lane.log_start
            && lane.drafts.is_empty()
            && lane.preparing.is_empty()
            && lane.cursors.iter().all(|cursor| !cursor.busy && cursor.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests;
