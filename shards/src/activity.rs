//! What happened to each queue since the last report: the numbers behind the busiest-queues lines and the minutes of queues.
//!
//! The engine counts messages, by commit and claim. Requests and polls are whole only at the edge, which counts them into
//! the same numbers. Source: operations 5.4.3, 5.5.

use crate::ids::{PartitionId, Stamp, TenantId};
use crate::shard::Shard;
use crate::slab::Ref;
use std::cmp::Ordering;
use std::sync::Arc;

/// What was done with one queue on one shard in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests with messages for the queue.
    pub push_requests: u64,
    pub pushed: u64,
    pub popped: u64,
    /// Pops of the queue, or of one of its partitions, that were answered with nothing.
    pub pop_empty: u64,
    /// Committed transactions that pushed to it or acked in it.
    pub transactions: u64,
    /// Accepted acks; deliveries with autoAck count as both.
    pub acked: u64,
    /// Acks that were answered with an error.
    pub ack_failed: u64,
    /// Positions that acks of conflating leases retired undelivered.
    pub conflated: u64,
    /// Time from store to claim in microseconds, of the oldest message of each claim: sum, and claims in it.
    pub lag_us: u64,
    pub claims: u64,
    /// The longest of them.
    pub lag_max_us: u64,
    /// Microseconds that polls were parked on it, summed over the polls.
    pub parked_us: u64,
}

impl Activity {
    /// What "busiest" compares.
    pub fn messages(&self) -> u64 {
        self.pushed + self.popped + self.acked
    }

    /// Whether there was nothing but polls that wait, or found nothing.
    pub fn is_idle(&self) -> bool {
        Activity { pop_empty: 0, parked_us: 0, ..*self } == Activity::default()
    }

    /// Takes in what was counted elsewhere of the same queue.
    pub fn add(&mut self, other: &Activity) {
        self.push_requests += other.push_requests;
        self.pushed += other.pushed;
        self.popped += other.popped;
        self.pop_empty += other.pop_empty;
        self.transactions += other.transactions;
        self.acked += other.acked;
        self.ack_failed += other.ack_failed;
        self.conflated += other.conflated;
        self.lag_us += other.lag_us;
        self.claims += other.claims;
        self.lag_max_us = self.lag_max_us.max(other.lag_max_us);
        self.parked_us += other.parked_us;
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
        self.activity.add(&other.activity);
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

    /// `conflated`: what the acks retired undelivered.
    pub(crate) fn count_acked(&mut self, lane: Ref, messages: u64, conflated: u64) {
        let queue = self.lanes[lane].queue;
        let activity = &mut self.queues.slab[queue].activity;
        activity.acked += messages;
        activity.conflated += conflated;
    }

    /// Acks that were refused. They are nobody's where the partition is not known, or another tenant's.
    pub(crate) fn count_ack_failed(&mut self, tenant: TenantId, partition: PartitionId, messages: u64) {
        let lane = self.lanes.by_number(partition).map(|at| &self.lanes[at]);
        if let Some(lane) = lane.filter(|lane| lane.key.tenant == tenant) {
            self.queues.slab[lane.queue].activity.ack_failed += messages;
        }
    }

    /// The queues something happened to since the last call, busiest first, `most` at most, and a fresh start for all.
    /// Walks every queue in memory: for reports, not for turns.
    pub fn take_busy(&mut self, most: usize) -> Vec<BusyQueue> {
        let mut busy = Vec::new();
        for queue in self.queues.slab.values_mut() {
            let activity = std::mem::take(&mut queue.activity);
            if activity == Activity::default() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{AckItem, AckOutcome, AckSet, Command, Disposition, Verdict};
    use crate::effect::{Call, CursorOutcome, CursorRow, KeysRow, Reply};
    use crate::fake::{Fake, PARTITION, START, lane, plain, row};
    use crate::ids::{GroupId, Key, LeaseId, Offset};

    const LEASE: u128 = 5;
    /// Key of the message that the lease delivered.
    const DELIVERED: u128 = 7;

    fn set(tenant: TenantId, lease: u128, key: u128) -> AckSet {
        let items = vec![AckItem { key: Key(key), word: Disposition::Completed, error: None }];
        AckSet { tenant, partition: PARTITION, group: "1".into(), lease: Some(LeaseId(lease)), items }
    }

    /// What a store says in which a conflating lease covers ten messages and has delivered the last of them.
    fn conflating(call: &Call) -> Reply {
        match call {
            Call::FindPartitions { ids, .. } => {
                let mut lane = lane();
                lane.row.last_offset = Offset(9);
                Reply::Found(vec![Some(lane); ids.len()])
            }
            Call::FindCursors { cursors } => {
                let (lease, batch_end) = (LeaseId(LEASE), Some(Offset(9)));
                let row = CursorRow { lease, lease_left_us: 60_000_000, batch_end, conflating: true, ..row(1) };
                Reply::FoundCursors(vec![Some((GroupId(1), row)); cursors.len()])
            }
            Call::ReadKeys { from, to, .. } => {
                let holds = (*from..=*to).contains(&Offset(9));
                let keys = DELIVERED.to_le_bytes().to_vec().into();
                let delivered = KeysRow { base: Offset(9), created_at: Stamp(START as i64), accepted_at: None, keys };
                let rows = if holds { vec![delivered] } else { Vec::new() };
                Reply::Keys { rows, complete: true, now: Stamp(START as i64) }
            }
            other => plain(other),
        }
    }

    fn settle(fake: &mut Fake) {
        while !fake.calls.is_empty() || !fake.moves.is_empty() {
            fake.answer(|call| Ok(conflating(call)));
            if let Some((_, moves)) = fake.moves.first() {
                let outcomes = moves.iter().map(|one| CursorOutcome::Moved {
                    version: one.version + 1,
                    lease_left_us: 60_000_000,
                    last_offset: Offset(9),
                    log_start: Offset(0),
                });
                fake.moved(outcomes.collect());
            }
        }
    }

    fn acked(fake: &mut Fake, set: AckSet) -> AckOutcome {
        fake.ask(1, Command::Ack { sets: vec![set] });
        settle(fake);
        match fake.reply(1) {
            Some(Verdict::Ack(sets)) => sets[0].items[0],
            other => panic!("{other:?}"),
        }
    }

    fn told(fake: &mut Fake) -> Option<Activity> {
        let told = fake.shard.take_busy(10);
        assert!(told.iter().all(|busy| &*busy.queue == "q" && busy.tenant == TenantId::DEFAULT), "{told:?}");
        assert_eq!(fake.shard.take_busy(10), [], "told once");
        told.first().map(|busy| busy.activity)
    }

    #[test]
    fn acks_count_for_their_queue_by_result_with_what_they_retire() {
        let mut fake = Fake::new();
        assert_eq!(acked(&mut fake, set(TenantId::DEFAULT, LEASE + 1, DELIVERED)), AckOutcome::InvalidLease);
        assert_eq!(told(&mut fake), Some(Activity { ack_failed: 1, ..Activity::default() }));
        assert_eq!(acked(&mut fake, set(TenantId::DEFAULT, LEASE, DELIVERED + 1)), AckOutcome::Unresolvable);
        assert_eq!(told(&mut fake), Some(Activity { ack_failed: 1, ..Activity::default() }));
        assert_eq!(acked(&mut fake, set(TenantId::DEFAULT, LEASE, DELIVERED)), AckOutcome::Accepted);
        assert_eq!(told(&mut fake), Some(Activity { acked: 1, conflated: 9, ..Activity::default() }));
    }

    #[test]
    fn acks_of_partitions_that_are_not_there_or_not_theirs_count_for_no_queue() {
        let mut fake = Fake::new();
        assert_eq!(acked(&mut fake, set(TenantId::DEFAULT, LEASE, DELIVERED)), AckOutcome::Accepted);
        told(&mut fake);
        assert_eq!(acked(&mut fake, set(TenantId(2), LEASE, DELIVERED)), AckOutcome::NotOwned);
        fake.ask(1, Command::Ack { sets: vec![AckSet { partition: PartitionId(1), ..set(TenantId(2), 1, 1) }] });
        fake.answer(|_| Ok(Reply::Found(vec![None])));
        assert!(matches!(fake.reply(1), Some(Verdict::Ack(sets)) if sets[0].items == [AckOutcome::NotOwned]));
        assert_eq!(told(&mut fake), None);
    }

    #[test]
    fn what_a_bundle_would_ack_is_told_to_who_asks_and_counted_by_nobody_yet() {
        let mut fake = Fake::new();
        for (lease, outcome, conflated) in [(LEASE, AckOutcome::Accepted, 9), (LEASE + 1, AckOutcome::InvalidLease, 0)]
        {
            let sets = vec![set(TenantId::DEFAULT, lease, DELIVERED)];
            fake.ask(1, Command::Prepare { lanes: Vec::new(), sets, leases: Vec::new() });
            settle(&mut fake);
            let Some(Verdict::Prepared(prepared)) = fake.reply(1) else { panic!("no answer") };
            let set = &prepared.sets[0];
            assert_eq!((&set.items[..], set.queue.as_deref(), set.conflated), (&[outcome][..], Some("q"), conflated));
            assert!(set.cursor_move.is_some());
        }
        assert_eq!(told(&mut fake), None);
    }
}
