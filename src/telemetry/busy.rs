//! What happened to queues since somebody last asked, added up by tenant and name.
//!
//!     reports > add, each as it comes > take
//!
//! Holds: memory is bounded by queues, however long nobody asks; polls that wait, or found nothing, are forgotten before a
//! message is. Source: operations 5.4.3, 5.5.

use queen_shards::activity::{Activity, BusyQueue};
use queen_shards::ids::TenantId;
use std::collections::HashMap;
use std::sync::Arc;

/// Queues remembered at once: about 2 MB. What further ones did is counted in the sums of the broker only.
pub const QUEUES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct BusyQueues {
    by_name: HashMap<(TenantId, Arc<str>), BusyQueue>,
    /// How many of them are idle.
    idle: usize,
}

impl BusyQueues {
    /// Adds a later report. Where there is no room one of an idle queue is left out, and one of another queue takes the place
    /// of those that are idle; all of these go at once, so that the look through all queues is paid by many.
    pub fn add(&mut self, busy: BusyQueue) {
        let (name, idle) = ((busy.tenant, busy.queue.clone()), busy.activity.is_idle());
        if let Some(known) = self.by_name.get_mut(&name) {
            self.idle -= usize::from(known.activity.is_idle() && !idle);
            known.activity.add(&busy.activity);
            // What is there now, not what was since.
            known.hot = known.hot.max(busy.hot);
            return;
        }
        if QUEUES_MAX <= self.by_name.len() && 0 < self.idle && !idle {
            self.by_name.retain(|_, queue| !queue.activity.is_idle());
            self.idle = 0;
        }
        if self.by_name.len() < QUEUES_MAX {
            self.idle += usize::from(idle);
            self.by_name.insert(name, busy);
        }
    }

    /// Adds to one queue what `count` counts. One look-up by name.
    pub fn count(&mut self, tenant: TenantId, queue: &Arc<str>, count: impl FnOnce(&mut Activity)) {
        let mut activity = Activity::default();
        count(&mut activity);
        self.add(BusyQueue { tenant, queue: queue.clone(), activity, hot: 0 });
    }

    /// All that was added since the last call, each queue once.
    pub fn take(&mut self) -> Vec<BusyQueue> {
        std::mem::take(self).by_name.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> Activity {
        Activity { pop_empty: 1, parked_us: 1000, ..Activity::default() }
    }

    fn busy(queue: impl ToString, activity: Activity) -> BusyQueue {
        BusyQueue { tenant: TenantId::DEFAULT, queue: queue.to_string().into(), activity, hot: 1 }
    }

    fn pushed(pushed: u64) -> Activity {
        Activity { pushed, ..Activity::default() }
    }

    #[test]
    fn reports_of_a_queue_are_added_up_and_told_once() {
        let mut queues = BusyQueues::default();
        for hot in [3, 7, 5] {
            queues.add(BusyQueue { hot, ..busy("q", pushed(2)) });
        }
        queues.add(BusyQueue { tenant: TenantId(2), ..busy("q", idle()) });
        let mut told = queues.take();
        told.sort_by(BusyQueue::busiest_first);
        assert_eq!(told[0], BusyQueue { hot: 7, ..busy("q", pushed(6)) });
        assert_eq!((told.len(), told[1].activity), (2, idle()));
        assert_eq!(queues.take(), []);
    }

    #[test]
    fn queues_without_messages_make_room_and_never_take_it() {
        let mut queues = BusyQueues::default();
        (0..QUEUES_MAX).for_each(|n| queues.add(busy(n, idle())));
        queues.add(busy("idle", idle()));
        // One of those that were idle is not any more.
        for queue in ["0", "messages", "more"] {
            queues.add(busy(queue, pushed(1)));
        }
        (0..2 * QUEUES_MAX).for_each(|n| queues.add(busy(n, idle())));
        (0..QUEUES_MAX).for_each(|n| queues.add(busy(format!("busy {n}"), pushed(1))));
        (0..QUEUES_MAX).for_each(|n| queues.add(busy(n, idle())));
        queues.add(busy("too many", pushed(1)));
        queues.add(busy("more", pushed(1)));
        assert_eq!(queues.idle, 0);
        let told = queues.take();
        assert_eq!(told.len(), QUEUES_MAX);
        let of = |queue: &str| told.iter().find(|told| &*told.queue == queue).map(|told| told.activity);
        assert_eq!(of("0").map(|told| (told.pushed, told.pop_empty)), Some((1, 3)));
        assert_eq!((of("messages"), of("more")), (Some(pushed(1)), Some(pushed(2))));
        assert_eq!((of("idle"), of("too many")), (None, None));
        assert!(told.iter().all(|told| told.activity.messages() > 0));
    }

    /// Whatever comes in whichever order: the idle ones are counted right, and there are never too many.
    #[test]
    fn the_count_of_idle_queues_is_right() {
        let (mut queues, mut most) = (BusyQueues::default(), 0);
        for round in 0..4 * QUEUES_MAX as u64 {
            let n = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            queues.add(busy(n % (2 * QUEUES_MAX as u64), if n % 5 == 0 { pushed(1) } else { idle() }));
            most = most.max(queues.by_name.len());
            if round % 1000 == 0 {
                let all = queues.by_name.values();
                assert_eq!(queues.idle, all.filter(|queue| queue.activity.is_idle()).count(), "round {round}");
            }
        }
        assert_eq!(most, QUEUES_MAX);
    }
}
