//! What happened to each queue since the last report: the numbers behind the busiest-queues lines. Source: operations 5.5.

use crate::ids::{Stamp, TenantId};
use crate::shard::Shard;
use crate::slab::Ref;
use std::cmp::Ordering;
use std::sync::Arc;

/// Messages of one queue on one shard in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub pushed: u64,
    pub popped: u64,
    /// Accepted acks; deliveries with autoAck count as both.
    pub acked: u64,
    /// Time from store to claim in microseconds, of the oldest message of each claim: sum, and claims in it.
    pub lag_us: u64,
    pub claims: u64,
    /// The longest of them.
    pub lag_max_us: u64,
}

impl Activity {
    /// What "busiest" compares.
    pub fn messages(&self) -> u64 {
        self.pushed + self.popped + self.acked
    }
}

/// A queue's activity with its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyQueue {
    pub tenant: TenantId,
    pub queue: Arc<str>,
    pub activity: Activity,
    /// Partitions in the ready rings of its groups now.
    pub hot: u64,
}

impl BusyQueue {
    pub fn busiest_first(a: &BusyQueue, b: &BusyQueue) -> Ordering {
        (b.activity.messages(), a.tenant, &a.queue).cmp(&(a.activity.messages(), b.tenant, &b.queue))
    }

    /// Takes in what another shard counted of the same queue.
    pub fn add(&mut self, other: &BusyQueue) {
        self.activity.pushed += other.activity.pushed;
        self.activity.popped += other.activity.popped;
        self.activity.acked += other.activity.acked;
        self.activity.lag_us += other.activity.lag_us;
        self.activity.claims += other.activity.claims;
        self.activity.lag_max_us = self.activity.lag_max_us.max(other.activity.lag_max_us);
        self.hot += other.hot;
    }
}

impl Shard {
    pub(crate) fn count_pushed(&mut self, lane: Ref, messages: u64) {
        let queue = self.lanes[lane].queue;
        self.queues.slab[queue].activity.pushed += messages;
    }

    /// `oldest`: stamp of the first message of the claim.
    pub(crate) fn count_popped(&mut self, lane: Ref, messages: u64, oldest: Stamp, auto_ack: bool) {
        let lag = (self.stamp().0 - oldest.0).max(0) as u64;
        let queue = self.lanes[lane].queue;
        let activity = &mut self.queues.slab[queue].activity;
        activity.popped += messages;
        activity.acked += if auto_ack { messages } else { 0 };
        activity.lag_us += lag;
        activity.claims += 1;
        activity.lag_max_us = activity.lag_max_us.max(lag);
    }

    pub(crate) fn count_acked(&mut self, lane: Ref, messages: u64) {
        let queue = self.lanes[lane].queue;
        self.queues.slab[queue].activity.acked += messages;
    }

    /// The queues something happened to since the last call, busiest first, `most` at most, and a fresh start for all.
    /// Walks every queue in memory: for reports, not for turns.
    pub fn take_busy(&mut self, most: usize) -> Vec<BusyQueue> {
        let mut busy = Vec::new();
        for queue in self.queues.slab.values_mut() {
            let activity = std::mem::take(&mut queue.activity);
            if activity.messages() == 0 {
                continue;
            }
            let hot = queue.groups.iter().filter_map(|&group| self.queues.groups.get(group));
            let hot = hot.map(|group| group.ring.len() as u64).sum();
            busy.push(BusyQueue { tenant: queue.tenant, queue: queue.name.clone(), activity, hot });
        }
        busy.sort_by(BusyQueue::busiest_first);
        busy.truncate(most);
        busy
    }
}
