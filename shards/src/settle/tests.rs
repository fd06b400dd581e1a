use crate::command::{AckItem, AckOutcome, AckSet, Command, Disposition, Verdict};
use crate::effect::{Call, CursorRow, KeysRow, Reply, StoreError};
use crate::fake::{Fake, PARTITION, START, lane, moved, plain, row};
use crate::ids::{GroupId, Key, LeaseId, Offset, PartitionId, Stamp, TenantId};
use crate::limits::BELOW_PAGES_MAX;
use crate::queue::IMPLICIT_OPTIONS;
use std::cell::Cell;

/// More than a recursion of one step each would have stack for.
const MANY: u64 = 100_000;

fn set(partition: PartitionId, lease: u64) -> AckSet {
    let items = vec![AckItem { key: Key(7), word: Disposition::Completed, error: None }];
    AckSet { tenant: TenantId::DEFAULT, partition, group: "1".into(), lease: Some(LeaseId(lease as u128)), items }
}

fn many_leases() -> Fake {
    let mut fake = Fake::new();
    fake.ask(1, Command::Ack { sets: (1..=MANY).map(|lease| set(PARTITION, lease)).collect() });
    assert_eq!(fake.calls.len(), 1, "one partition");
    fake.answer(|call| Ok(plain(call)));
    assert_eq!(fake.calls.len(), 1, "one cursor");
    fake
}

fn outcomes(fake: &mut Fake) -> Vec<AckOutcome> {
    match fake.reply(1) {
        Some(Verdict::Ack(sets)) => sets.into_iter().flat_map(|set| set.items).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sets_under_dead_leases_of_one_cursor_are_refused_together() {
    let mut fake = many_leases();
    fake.answer(|call| Ok(plain(call)));
    assert_eq!(fake.moves[0].1.len(), 1);
    fake.moved(vec![moved(1)]);
    assert!(fake.moves.is_empty());
    assert!(outcomes(&mut fake) == vec![AckOutcome::InvalidLease; MANY as usize]);
}

#[test]
fn sets_that_wait_for_a_move_that_fails_do_not_nest() {
    let mut fake = many_leases();
    fake.answer(|call| Ok(plain(call)));
    let (commit, _) = fake.moves.remove(0);
    let result = Err(StoreError::Unavailable("away".into()));
    fake.turn(vec![crate::command::Event::Moved { commit, result }]);
    fake.answer(|_| Err(StoreError::Unavailable("away".into())));
    let refused = outcomes(&mut fake);
    assert!(refused.len() == MANY as usize && refused.iter().all(|outcome| *outcome == AckOutcome::StoreFailed));
}

#[test]
fn partitions_of_one_call_are_looked_for_together() {
    let mut fake = Fake::new();
    let ids = (1..=1000).map(|n| PartitionId(n << 12));
    fake.ask(1, Command::Ack { sets: ids.map(|id| set(id, 5)).collect() });
    let asked: Vec<usize> = fake
        .calls
        .iter()
        .map(|(_, call)| if let Call::FindPartitions { ids, .. } = call { ids.len() } else { 0 })
        .collect();
    assert_eq!(asked, [512, 488]);
}

/// An ack of 250,000 partitions, none of which is in memory.
#[test]
fn an_ack_of_very_many_partitions_leaves_the_connection_to_others() {
    const PARTITIONS: i64 = 250_000;
    let mut fake = Fake::new();
    fake.ask(1, Command::Ack { sets: (1..=PARTITIONS).map(|n| set(PartitionId(n << 12), 5)).collect() });
    let (mut calls, mut most) = (0, 0);
    while fake.reply(1).is_none() {
        // Whatever is asked for meanwhile goes out in the turn in which it is asked for.
        fake.ask(2, crate::fake::pop("1"));
        assert!(calls > 0 || fake.calls.iter().any(|(_, call)| matches!(call, Call::OpenGroup { .. })));
        let finds = |call: &&(_, Call)| matches!(call.1, Call::FindPartitions { .. } | Call::FindCursors { .. });
        most = most.max(fake.calls.iter().filter(finds).count());
        calls += fake.calls.iter().filter(finds).count();
        fake.answer(|call| match call {
            Call::FindPartitions { ids, .. } => Ok(Reply::Found(ids.iter().map(|id| found(*id)).collect())),
            Call::FindCursors { cursors } => Ok(Reply::FoundCursors(vec![None; cursors.len()])),
            Call::OpenGroup { .. } => Err(StoreError::Unavailable("away".into())),
            other => panic!("{other:?}"),
        });
    }
    let calls_of = (PARTITIONS as usize).div_ceil(crate::limits::FIND_MAX);
    assert_eq!(most, crate::limits::FINDS_MAX);
    assert!((2 * calls_of..2 * calls_of + 10).contains(&calls), "{calls}");
}

fn found(id: PartitionId) -> Option<crate::effect::FoundLane> {
    let mut lane = lane();
    (lane.row.partition, lane.partition) = (id, id.0.to_string().into());
    Some(lane)
}

/// Pages that are read for a key nobody ever pushed, of a long partition whose keys are so old; at most `most`.
fn pages_read(completed_secs: u32, age_secs: i64, most: u32) -> u32 {
    let mut fake = Fake::new();
    let end = Offset(100_000_000);
    fake.ask(1, Command::Ack { sets: vec![AckSet { lease: None, ..set(PARTITION, 0) }] });
    let created_at = Stamp(START as i64 - age_secs * 1_000_000);
    let pages = Cell::new(0);
    while fake.moves.is_empty() && pages.get() < most {
        fake.answer(|call| match call {
            Call::FindPartitions { .. } => {
                let mut lane = lane();
                lane.row.last_offset = end;
                lane.row.queue.options.completed_secs = completed_secs;
                Ok(Reply::Found(vec![Some(lane)]))
            }
            Call::FindCursors { .. } => {
                Ok(Reply::FoundCursors(vec![Some((GroupId(1), CursorRow { committed: end, ..row(1) }))]))
            }
            Call::ReadKeys { to, newest_first: true, .. } => {
                pages.set(pages.get() + 1);
                let keys = vec![0; 160].into();
                let row = KeysRow { base: to.plus(-9), created_at, accepted_at: None, keys };
                Ok(Reply::Keys { rows: vec![row], complete: false, now: Stamp(START as i64) })
            }
            other => panic!("{other:?}"),
        });
    }
    pages.get()
}

#[test]
fn a_key_that_was_never_pushed_is_not_looked_for_in_all_of_a_partition() {
    let window = IMPLICIT_OPTIONS.dedup_secs as i64;
    assert_eq!(pages_read(0, window + 1, 1000), BELOW_PAGES_MAX);
    assert_eq!(pages_read(0, window - 1, 1000), 1000, "as far as the contract goes");
    assert_eq!(pages_read(86_400, 86_401, 1000), BELOW_PAGES_MAX);
    assert_eq!(pages_read(86_400, 86_399, 1000), 1000, "completed messages are remembered for longer");
}

/// A body of a client can name as many of both as it has room for.
#[test]
fn many_leases_of_a_bundle_cost_little_for_each_of_many_sets() {
    let leases: Vec<LeaseId> = (1..=250_000).map(LeaseId).collect();
    let mut free = set(PARTITION, 0);
    free.lease = None;
    let mut slab = crate::slab::Slab::default();
    let prepares = super::PreparesSets { job: slab.insert(()), leases, first: Some(LeaseId(7)), moves: Vec::new() };
    let (slot, verdicts) = (crate::ids::Slot(0), Vec::new());
    let job = super::AckJob { slot, sets: vec![free], verdicts, left: 1, prepares: Some(Box::new(prepares)) };
    let began = std::time::Instant::now();
    assert!((1..=250_000).all(|held| job.lease_of(0, LeaseId(held)) == Some(LeaseId(held))));
    assert_eq!(job.lease_of(0, LeaseId(300_000)), Some(LeaseId(7)), "the one named first");
    assert!(began.elapsed() < std::time::Duration::from_secs(1), "{:?}", began.elapsed());
}
