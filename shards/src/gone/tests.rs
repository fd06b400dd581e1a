use crate::command::{AckItem, AckSet, Command, Disposition, Pop, PopFrom, Verdict};
use crate::effect::{Call, Contact, CursorOutcome, CursorRow, GroupRow, Reply, SeededCursor};
use crate::fake::{Fake, PARTITION, QUEUE, moved, plain, plain_pop, pop, row};
use crate::ids::{GroupId, Key, LeaseId, Offset, TenantId};
use crate::place::LaneKey;

fn ack(group: &str) -> Command {
    let item = AckItem { key: Key(7), word: Disposition::Completed, error: None };
    let set =
        AckSet { tenant: TenantId::DEFAULT, partition: PARTITION, group: group.into(), lease: None, items: vec![item] };
    Command::Ack { sets: vec![set] }
}

/// Two groups are about to claim the one message, in one commit.
fn two_claims() -> Fake {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.ask(2, pop("2"));
    fake.settle();
    assert_eq!(fake.moves[0].1.iter().map(|one| one.group).collect::<Vec<_>>(), [GroupId(1), GroupId(2)]);
    fake
}

fn claims(fake: &mut Fake, slot: u64) -> Option<usize> {
    fake.reply(slot).map(|verdict| match verdict {
        Verdict::Pop(pop) => pop.claims.len(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_end_of_one_group_leaves_the_claims_of_others_alone() {
    let mut fake = two_claims();
    fake.moved(vec![CursorOutcome::Gone, moved(20)]);
    assert_eq!(claims(&mut fake, 2), Some(1), "it is durable");
    assert_eq!(claims(&mut fake, 1), None, "its group is opened again first");
    let asked = |fake: &Fake, what: fn(&Call) -> bool| fake.calls.iter().any(|(_, call)| what(call));
    assert!(asked(&fake, |call| matches!(call, Call::OpenGroup { group, .. } if &**group == "1")));
    assert!(asked(&fake, |call| matches!(call, Call::FindPartitions { ids, .. } if ids == &[PARTITION])));
    fake.settle();
    fake.moved(vec![moved(11)]);
    assert_eq!(claims(&mut fake, 1), Some(1), "made again");
    // What its lease handed out is known still.
    fake.ask(3, ack("2"));
    assert!(fake.calls.is_empty(), "{:?}", fake.calls);
    assert_eq!(fake.moves[0].1[0].version, 20);
}

#[test]
fn a_partition_leaves_memory_when_the_store_has_said_that_it_is_gone() {
    let mut fake = two_claims();
    fake.moved(vec![CursorOutcome::Gone, CursorOutcome::Gone]);
    assert_eq!(fake.shard.sizes().lanes, 1, "a group that is gone looks the same");
    fake.answer(|call| match call {
        Call::FindPartitions { ids, .. } => Ok(Reply::Found(vec![None; ids.len()])),
        Call::Scan { .. } => Ok(Reply::Scanned { rows: Vec::new(), next: None, now: crate::ids::Stamp(0) }),
        other => Ok(plain(other)),
    });
    assert_eq!(fake.shard.sizes().lanes, 0);
}

#[test]
fn a_group_that_an_ack_finds_made_again_is_scanned_again() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.answer(|call| Ok(plain(call)));
    let scan = fake.calls.pop().expect("the scan of group 1");
    assert!(matches!(scan.1, Call::Scan { group: GroupId(1), .. }), "{scan:?}");
    fake.ask(2, ack("1"));
    fake.answer(|call| Ok(plain(call)));
    fake.answer(|call| match call {
        Call::FindCursors { .. } => Ok(Reply::FoundCursors(vec![Some((GroupId(9), row(9)))])),
        // The pop was told of the partition: somebody else has it.
        Call::SeedCursors { .. } => {
            let row = CursorRow { lease: LeaseId(5), lease_left_us: 60_000_000, ..row(1) };
            let (last_offset, log_start) = (Offset(0), Offset(0));
            let now = crate::ids::Stamp(crate::fake::START as i64);
            Ok(Reply::Cursors { rows: vec![Some(SeededCursor { row, last_offset, log_start })], now })
        }
        other => Ok(plain(other)),
    });
    let opens = |(_, call): &(_, Call)| matches!(call, Call::OpenGroup { .. });
    assert!(fake.calls.iter().any(opens), "the pop that waits for the scan asks anew: {:?}", fake.calls);
}

/// It was met by a pinned pop, and registered as conflating by another shard: before that is answered this one has heard.
#[test]
fn a_pinned_pop_asks_again_when_its_group_has_a_record_that_it_had_not() {
    let mut fake = Fake::new();
    let from = PopFrom::Partition(LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()));
    let pinned = || Command::Pop(Pop { from: from.clone(), ..plain_pop("1") });
    let said = |fake: &mut Fake, slot, conflation| {
        fake.ask(slot, pinned());
        while !fake.calls.is_empty() {
            fake.answer(|call| match call {
                Call::OpenGroup { contact: Contact::Pinned, .. } => {
                    let (group, registered, made) = (GroupId(1), conflation, false);
                    Ok(Reply::Group(Some(GroupRow { queue: QUEUE, group, registered, conflation, made })))
                }
                Call::ReadNewest { .. } => Ok(Reply::Records { records: Vec::new(), log_start: Offset(0) }),
                other => Ok(plain(other)),
            });
        }
        if !fake.moves.is_empty() {
            fake.moved(vec![moved(2)]);
        }
        let Some(Verdict::Pop(verdict)) = fake.reply(slot) else { panic!("answered") };
        verdict.conflation
    };
    assert_eq!(said(&mut fake, 1, false), Some(false));
    let told =
        |queue: &str| Command::GroupChanged { tenant: TenantId::DEFAULT, queue: Some(queue.into()), group: "1".into() };
    for (slot, queue, conflation) in [(2, "other", false), (3, "q", true)] {
        fake.ask(slot, told(queue));
        assert!(matches!(fake.reply(slot), Some(Verdict::Done)), "without asking the store");
        assert_eq!(said(&mut fake, 10 + slot, true), Some(conflation), "{queue}");
    }
}
