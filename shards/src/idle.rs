//! Groups that nobody asks for leave memory, with what is remembered of their cursors. Whoever names one next opens it again.
//!
//! Not while somebody waits for one, while something is under way on one of its cursors, or while a lease or a hold that will end
//! is to wake somebody.

use crate::limits::GROUPS_LOOKED;
use crate::shard::Shard;
use crate::slab::Ref;

impl Shard {
    /// Looks at some groups. A look is a step; one that leaves takes a step for each lane of its queue.
    pub(crate) fn forget_idle_groups(&mut self) {
        for _ in 0..self.queues.groups.len().min(GROUPS_LOOKED) {
            self.group_hand = self.group_hand.wrapping_add(1);
            let Some(at) = self.queues.groups.at_hand(self.group_hand) else { continue };
            let group = &mut self.queues.groups[at];
            let waits = !group.waiters.is_empty() || !group.pops.is_empty();
            if waits || self.now.since(group.touched) < self.config.group_idle_us {
                continue;
            }
            // Whatever comes of it: the next look is as far off.
            group.touched = self.now;
            let queue = group.queue;
            if self.is_unused(queue, at) {
                self.remove_group(queue, at);
                self.forget_empty_queue(queue);
                return;
            }
        }
    }

    fn is_unused(&self, queue: Ref, group: Ref) -> bool {
        self.lanes
            .of_queue(queue)
            .iter()
            .map(|&at| &self.lanes[at])
            .all(|lane| lane.cursor(group).is_none_or(|c| !c.busy && c.waiting.is_empty() && !self.is_to_wake(lane, c)))
    }

    fn remove_group(&mut self, queue: Ref, group: Ref) {
        let mut armed = 0;
        for i in 0..self.lanes.of_queue(queue).len() {
            let lane = self.lanes.of_queue(queue)[i];
            let cursors = &mut self.lanes[lane].cursors;
            if let Some(place) = cursors.iter().position(|cursor| cursor.group == group) {
                let cursor = cursors.swap_remove(place);
                if cursors.is_empty() {
                    cursors.shrink_to_fit();
                }
                armed += usize::from(cursor.timer.is_some());
                self.memo_left(cursor.memo);
            }
        }
        self.timers.are_past(armed, &self.lanes);
        self.queues.remove_group(queue, group);
        self.groups_left += 1;
    }
}

#[cfg(test)]
mod tests;
