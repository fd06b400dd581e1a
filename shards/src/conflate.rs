//! Conflating groups: of each claimed partition the newest visible message is delivered, the lease covers all before it.
//!
//!     ready > (stamp of the first waiting message) > newest in the tail, or a cold read > claim
//!
//! Holds: what is delivered is the newest record known to be visible when the claim is made; nothing beyond it is leased,
//! so a message pushed afterwards is delivered by a later claim. Window and delay hold a partition back exactly as without
//! conflation. The rules of its acks are in [`crate::ack`]. Source: data plane 4.10.

use crate::calls::Pending;
use crate::command::Record;
use crate::effect::{Call, Contact, StoreError};
use crate::ids::{Offset, Stamp};
use crate::lane::Lane;
use crate::place::LaneKey;
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::visible::newest_visible;

impl Shard {
    /// A pinned pop that asks for conflation registers its group as a wildcard pop does, but makes no queue. False while
    /// it waits for that.
    pub(crate) fn registers_pinned(&mut self, at: Ref, key: &LaneKey) -> bool {
        let (start, name) = (self.pops[at].pop.start, self.pops[at].pop.group.clone());
        let queue = self.queues.entry(key.tenant, &key.queue);
        let group = self.queues.group_entry(queue, &name, self.now);
        match &self.queues.groups[group] {
            state if state.state == GroupState::Opening => self.wait_in(group, at),
            state if state.state == GroupState::Unknown || !state.registered => {
                self.open_group(at, group, Contact::PinnedConflating(start));
            }
            _ => {
                self.adopt_conflation(at, group);
                return true;
            }
        }
        false
    }

    /// Claims the newest visible message of a lane that is ready from `start` on, or reads what is missing for that.
    pub(crate) fn serve_newest(&mut self, at: Ref, group: Ref, lane_ref: Ref, start: Offset) {
        let stamp = self.stamp();
        let lane = &self.lanes[lane_ref];
        let options = self.queues.slab[lane.queue].options();
        if (options.delay_secs > 0 || options.window_secs > 0) && !knows_stamp(lane, group, start) {
            return self.read_claim(at, group, lane_ref, start);
        }
        let not_after = newest_visible(stamp, options.delay_secs);
        match lane.tail.newest(not_after, lane.end).filter(|record| start <= record.last()).cloned() {
            Some(record) => self.claim(at, group, lane_ref, start, record.last(), vec![record]),
            None => self.read_newest(at, group, lane_ref, start, not_after),
        }
    }

    fn read_newest(&mut self, at: Ref, group: Ref, lane_ref: Ref, start: Offset, not_after: Stamp) {
        let lane = &mut self.lanes[lane_ref];
        lane.cursor_entry(group).busy = true;
        let (partition, to) = (lane.id, lane.end);
        self.pops[at].reserve(1);
        let call = Call::ReadNewest { partition, to, not_after };
        self.ask_for(at, call, Pending::ReadNewest { job: at, group, lane: lane_ref, start });
    }

    pub(crate) fn newest_read(
        &mut self,
        at: Ref,
        group: Ref,
        lane_ref: Ref,
        start: Offset,
        read: Result<(Vec<Record>, Offset), StoreError>,
    ) {
        let job = &mut self.pops[at];
        job.release(1);
        let wants = job.wants();
        if let (Some(lane), Some(_)) = (self.lanes.slab.get_mut(lane_ref), self.queues.groups.get(group)) {
            match read {
                Ok((records, log_start)) => {
                    lane.log_start = lane.log_start.max(log_start);
                    let newest = records.into_iter().find(|record| start.max(lane.log_start) <= record.last());
                    match newest {
                        Some(record) if wants => {
                            let start = start.max(lane.log_start);
                            self.claim(at, group, lane_ref, start, record.last(), vec![record]);
                        }
                        Some(_) => self.free_cursor(lane_ref, group),
                        None => {
                            // Retention took it meanwhile; or the rows are missing, and asking again would never end.
                            if lane.log_start <= start {
                                lane.log_start = lane.end.plus(1);
                            }
                            self.free_cursor(lane_ref, group);
                        }
                    }
                }
                Err(_) => {
                    self.pops[at].fail();
                    self.free_cursor(lane_ref, group);
                }
            }
        }
        self.run_pop(at);
    }
}

fn knows_stamp(lane: &Lane, group: Ref, at: Offset) -> bool {
    let remembered = lane.cursor(group).and_then(|cursor| cursor.stamp_at);
    lane.tail.created_at(at).is_some() || remembered.is_some_and(|(offset, _)| offset == at)
}
