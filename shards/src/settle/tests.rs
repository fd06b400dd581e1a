use crate::command::{AckItem, AckOutcome, AckSet, Command, Disposition, Verdict};
use crate::effect::{Call, StoreError};
use crate::fake::{Fake, PARTITION, moved, plain};
use crate::ids::{Key, LeaseId, PartitionId, TenantId};

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
