//! Lanes with nothing to do leave memory: what is idle costs nothing, however many partitions there are.
//!
//! A lane may go when nothing waits for it and every group that takes what is not in memory for empty has nothing left in it,
//! or will look at it again. Whoever names it next, a push, an ack or the commit log, reads it again.

use crate::lane::{Cursor, Lane, LaneState};
use crate::limits::{LANE_IDLE_CROWDED_US, LANES_CROWD, SWEEP_PER_LANE, SWEEP_STEP};
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::standing::{Standing, standing};

impl Shard {
    /// Looks at some lanes, and forgets those that are idle, while there are more than are kept: so many that a hand that
    /// goes round meets idle lanes faster than new ones are made.
    pub(crate) fn evict_idle_lanes(&mut self) {
        let made = std::mem::take(&mut self.lanes_made);
        for _ in 0..self.lanes.slab.len().min(SWEEP_STEP.max(SWEEP_PER_LANE * made)) {
            if self.lanes.slab.len() <= self.config.lanes_kept {
                return;
            }
            self.lane_hand = self.lane_hand.wrapping_add(1);
            if let Some(at) = self.lanes.slab.at_hand(self.lane_hand)
                && self.is_idle(at)
            {
                self.forget_lane(at);
                self.lanes_evicted += 1;
            }
        }
    }

    fn is_idle(&self, at: Ref) -> bool {
        let lane = &self.lanes[at];
        let idle_us = match self.lanes.slab.len() > LANES_CROWD {
            true => self.config.lane_idle_us.min(LANE_IDLE_CROWDED_US),
            false => self.config.lane_idle_us,
        };
        let still = lane.state == LaneState::Ready
            && self.now.since(lane.touched) > idle_us
            && !lane.closing
            && !lane.to_spool
            && lane.drafts.is_empty()
            && lane.preparing.is_empty()
            && lane.lookup.is_none()
            && lane.runs().is_none();
        let free =
            lane.cursors.iter().all(|c| !c.busy && c.waiting.is_empty() && !c.in_ready && !self.is_to_wake(lane, c));
        still && free && self.nothing_left(at)
    }

    /// Whether the timer of a cursor is to wake somebody: a lease or a hold will end, or what the store said of one will. One that
    /// is over a moment before its timer says so, PostgreSQL's clock being further by now, has woken nobody yet. A timer stays
    /// armed when its lease is settled, and is for nothing where nothing is left.
    pub(crate) fn is_to_wake(&self, lane: &Lane, cursor: &Cursor) -> bool {
        let options = self.queues.slab[lane.queue].options();
        let stands = || standing(lane, Some(cursor), &options, self.now, self.stamp(), self.config.window_batch);
        cursor.timer.is_some() && stands() != Standing::Nothing
    }

    /// No group relies on this memory to know that it has something left in the lane.
    fn nothing_left(&self, at: Ref) -> bool {
        let lane = &self.lanes[at];
        let queue = &self.queues.slab[lane.queue];
        queue.groups.iter().all(|&group| {
            let group_state = &self.queues.groups[group];
            let cursor = lane.cursor(group);
            match group_state.state {
                GroupState::Unknown | GroupState::Met => true,
                // What is told of a lane meanwhile is kept by it alone.
                GroupState::Opening => false,
                // The page that is on its way may tell what a cursor was before it moved, or before its row was forgotten. A
                // look to come does not mend that.
                GroupState::Scanning(after) if after < lane.id && cursor.is_some_and(Cursor::was_known) => false,
                _ if group_state.finds_again(lane.id) => true,
                GroupState::Scanning(_) | GroupState::Resting(_) | GroupState::Open => {
                    let options = queue.options();
                    let stands = standing(lane, cursor, &options, self.now, self.stamp(), self.config.window_batch);
                    // What was never read and is not in the ring: the scan that came by found nothing, or is still to come by.
                    matches!(stands, Standing::Nothing | Standing::Unread)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
