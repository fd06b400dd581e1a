use super::bytes_of;
use crate::command::{Codec, Command, Event, LogLane, Pop, Record, Said, Start, Verdict};
use crate::effect::{Call, Contact, CursorOutcome, Reply, ScanRow};
use crate::fake::{Fake, PARTITION, START, lane, moved, plain, pop, row};
use crate::ids::{CallId, Micros, Offset, PartitionId, Slot, Stamp, TenantId};
use crate::limits::{CALLS_MAX, SEED_MAX};
use crate::place::LaneKey;
use crate::slab::looks;
use crate::tail::fitting;

fn record(base: i64, count: u32, raw_len: u32) -> Record {
    Record {
        base: Offset(base),
        created_at: Stamp(0),
        count,
        codec: Codec::Raw,
        flags: 0,
        raw_len,
        body: Default::default(),
        frames: None,
        keys: Default::default(),
    }
}

/// The names of a tiny message may be many times its size: as much of a log is claimed as fits with them.
#[test]
fn what_is_said_of_each_message_counts_with_it() {
    let records = [record(0, 100, 1000), record(100, 900, 9000)];
    let said = Said { bytes: 300, names: 2 };
    for (name, budget, last) in
        [("", 3100, 9), ("p", 3120, 9), (&*"p".repeat(845), 20_000, 9), ("", 100 * 310 + 309, 99)]
    {
        let said = said.of_each(name);
        let end = fitting(&records, Offset(0), u32::MAX, budget, said);
        assert_eq!(end, Offset(last), "{budget}");
        let taken = |end| bytes_of(&records, Offset(0), end, said);
        assert!(taken(end) <= budget && budget < taken(end.plus(1)), "counted in the same way");
    }
    assert_eq!(fitting(&records, Offset(5), u32::MAX, 1, said.of_each("p")), Offset(5), "one message however large");
    assert_eq!(fitting(&records, Offset(5), u32::MAX, u64::MAX, 0), Offset(999));
}

/// Answers what waits and takes out a page of a scan, which the store is still reading.
fn settle_but_scans(fake: &mut Fake) -> Vec<(CallId, Call)> {
    let mut scans = Vec::new();
    while !fake.calls.is_empty() {
        let of_scan = |(_, call): &mut (CallId, Call)| matches!(call, Call::Scan { .. });
        scans.extend(fake.calls.extract_if(.., of_scan));
        fake.answer(|call| Ok(plain(call)));
    }
    scans
}

#[test]
fn pops_that_wait_for_a_scan_are_served_by_what_comes_meanwhile() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.ask(2, pop("1"));
    let scans = settle_but_scans(&mut fake);
    assert_eq!((scans.len(), fake.moves.len()), (1, 0));
    let row = lane().row;
    let grown = LogLane {
        key: LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()),
        partition: PARTITION,
        last_offset: row.last_offset,
        log_start: row.log_start,
        last_created_at: row.last_created_at,
    };
    fake.turn(vec![Event::Log {
        began: Micros(fake.now),
        lanes: vec![grown],
        freed: Vec::new(),
        changed: Vec::new(),
        lost: false,
    }]);
    assert!(settle_but_scans(&mut fake).is_empty(), "one page at a time");
    fake.moved(vec![moved(2)]);
    assert!(matches!(fake.reply(1), Some(Verdict::Pop(pop)) if pop.claims.len() == 1), "the first that came");
    assert!(fake.reply(2).is_none(), "the scan may still find something");
    fake.calls = scans;
    fake.settle();
    assert!(matches!(fake.reply(2), Some(Verdict::Pop(pop)) if pop.claims.is_empty()));
}

/// Answers what opens a group, and leaves its scan under way.
fn scanning(fake: &mut Fake) -> CallId {
    let open = fake.calls.remove(0);
    fake.turn(vec![Event::Returned { call: open.0, result: Ok(plain(&open.1)) }]);
    let [(scan, Call::Scan { .. })] = &fake.calls[..] else { panic!("{:?}", fake.calls) };
    *scan
}

/// A scan of very many partitions, and consumers that wait no longer than they said, and come again.
#[test]
fn pops_that_are_withdrawn_leave_the_line_and_cost_no_claim() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    scanning(&mut fake);
    fake.ask(1, Command::Withdraw);
    for slot in 2..10_000 {
        fake.ask(slot, pop("1"));
        fake.ask(slot, Command::Withdraw);
        let Some(Verdict::Pop(verdict)) = fake.reply(slot) else { panic!("{slot} is not answered") };
        assert!(verdict.claims.is_empty() && !verdict.failed);
    }
    assert_eq!(fake.shard.sizes().waiting_pops, 0);
    fake.ask(10_000, pop("1"));
    fake.ask(10_001, pop("1"));
    // Twice, and of nobody: nothing.
    fake.ask(1, Command::Withdraw);
    fake.ask(77_777, Command::Withdraw);
    fake.settle();
    assert_eq!(fake.moves.iter().map(|(_, moves)| moves.len()).sum::<usize>(), 1, "one claim");
    fake.moved(vec![moved(2)]);
    let Some(Verdict::Pop(first)) = fake.reply(10_000) else { panic!("the first that waits is served") };
    assert_eq!(first.claims.len(), 1);
}

/// Withdrawn out of order, as those leave whose time is over first.
#[test]
fn a_line_keeps_no_more_of_those_that_left_than_of_others() {
    let mut fake = Fake::new();
    (1..1000).for_each(|slot| fake.ask(slot, pop("1")));
    scanning(&mut fake);
    (1..1000).filter(|slot| slot % 10 != 0).for_each(|slot| fake.ask(slot, Command::Withdraw));
    assert_eq!((fake.shard.sizes().waiting_pops, fake.shard.pop_slots.len()), (99, 99));
    fake.settle();
    fake.moved(vec![moved(2)]);
    let Some(Verdict::Pop(first)) = fake.reply(10) else { panic!("in their order") };
    assert_eq!(first.claims.len(), 1);
    assert_eq!((fake.shard.sizes().waiting_pops, fake.shard.pop_slots.len()), (0, 0));
}

#[test]
fn a_pop_that_is_withdrawn_while_its_claim_is_on_its_way_is_told_of_it() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    assert_eq!(fake.moves.len(), 1);
    fake.ask(1, Command::Withdraw);
    assert!(fake.reply(1).is_none(), "whether it claims is not known");
    fake.moved(vec![moved(2)]);
    let Some(Verdict::Pop(verdict)) = fake.reply(1) else { panic!("answered") };
    assert_eq!((verdict.claims.len(), verdict.lease.is_some()), (1, true));
}

/// A claim that came to nothing: the pop is not tried again, and does not wait in its group.
#[test]
fn a_pop_that_is_withdrawn_tries_no_second_claim() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    fake.ask(1, Command::Withdraw);
    let stale = CursorOutcome::Stale { row: row(9), last_offset: Offset(0), log_start: Offset(0) };
    fake.moved(vec![stale]);
    let Some(Verdict::Pop(verdict)) = fake.reply(1) else { panic!("answered") };
    assert!(verdict.claims.is_empty() && fake.moves.is_empty());
    assert_eq!(fake.shard.sizes().waiting_pops, 0);
}

/// What is read for a pop comes when it is gone: the cursor is free for the next one.
#[test]
fn a_read_for_a_pop_that_was_withdrawn_holds_nobody_up() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    while !fake.calls.iter().any(|(_, call)| matches!(call, Call::ReadRecords { .. })) {
        fake.answer(|call| Ok(plain(call)));
    }
    fake.ask(1, Command::Withdraw);
    assert!(fake.reply(1).is_some());
    fake.settle();
    assert!(fake.moves.is_empty());
    fake.ask(2, pop("1"));
    fake.settle();
    fake.moved(vec![moved(2)]);
    let Some(Verdict::Pop(verdict)) = fake.reply(2) else { panic!("answered") };
    assert_eq!(verdict.claims.len(), 1);
}

/// A scanned partition with messages to `last` of which the group has no cursor yet.
fn unread(partition: i64, last: i64) -> ScanRow {
    ScanRow {
        partition: PartitionId(partition << 12),
        name: partition.to_string().into(),
        last_offset: Offset(last),
        log_start: Offset(0),
        last_created_at: Stamp(START as i64),
        cursor: None,
    }
}

/// The store is silent, and the time of very many pops is over at once. Each reads a record, of which most are not sent; or some
/// read cursors, and the others wait for that.
#[test]
fn a_pop_with_reads_pending_is_withdrawn_in_a_few_steps_however_many_there_are() {
    const N: u64 = 10_000;
    for (known, reads) in [(true, N as usize), (false, (N as usize).div_ceil(SEED_MAX))] {
        let mut fake = Fake::new();
        let asked = |slot| Event::Command { slot: Slot(slot), command: pop("1") };
        fake.turn((1..=2 * N).map(asked).collect());
        let scan = scanning(&mut fake);
        fake.calls.clear();
        let found = |n| ScanRow { cursor: known.then(|| row(1)), ..unread(n, 0) };
        let (rows, next, now) = ((1..=N as i64).map(found).collect(), None, Stamp(START as i64));
        fake.turn(vec![Event::Returned { call: scan, result: Ok(Reply::Scanned { rows, next, now }) }]);
        assert_eq!((fake.calls.len(), fake.shard.sizes().calls), (CALLS_MAX, reads));
        let before = looks();
        // Between two turns those that wait take over the many cursors that one reads.
        for some in (1..=2 * N).collect::<Vec<_>>().chunks(if known { 1 } else { 2 * N as usize }) {
            let withdrawn = |slot: &u64| Event::Command { slot: Slot(*slot), command: Command::Withdraw };
            fake.turn(some.iter().map(withdrawn).collect());
        }
        let steps = (looks() - before) as u64;
        assert!(steps <= 100 * 2 * N, "{steps} steps");
        assert_eq!((fake.shard.sizes().waiting_pops, fake.shard.sizes().calls), (0, CALLS_MAX), "those that were sent");
        let empty = |verdict: &Verdict| matches!(verdict, Verdict::Pop(pop) if pop.claims.is_empty() && !pop.failed);
        assert_eq!(fake.replies.drain(..).filter(|(_, verdict)| empty(verdict)).count() as u64, 2 * N);
        // Their answers are for nobody, and their cursors are free.
        fake.settle();
        assert!(fake.moves.is_empty());
        fake.ask(3 * N, pop("1"));
        fake.settle();
        fake.moved(vec![moved(2)]);
        assert!(matches!(fake.reply(3 * N), Some(Verdict::Pop(pop)) if pop.claims.len() == 1));
    }
}

/// A row of a log is missing, of which nobody knows: what lies beyond it is another claim, and no budget is exceeded.
#[test]
fn a_claim_that_is_read_ends_before_a_hole() {
    let mut fake = Fake::new();
    let Command::Pop(three) = pop("1") else { panic!("a pop") };
    for (slot, first, last) in [(1, 0, 1), (2, 6, 8)] {
        fake.ask(slot, Command::Pop(Pop { batch: 3, auto_ack: true, ..three.clone() }));
        while !fake.calls.is_empty() {
            fake.answer(|call| match call {
                Call::Scan { group, .. } => {
                    let rows = vec![ScanRow { cursor: Some(row(group.0)), ..unread(1, 9) }];
                    Ok(Reply::Scanned { rows, next: None, now: Stamp(START as i64) })
                }
                Call::ReadRecords { from, .. } => {
                    let records = [record(0, 2, 20), record(6, 4, 40)];
                    let records = records.into_iter().filter(|record| *from <= record.last()).collect();
                    Ok(Reply::Records { records, log_start: Offset(0) })
                }
                call => Ok(plain(call)),
            });
        }
        let (last_offset, log_start) = (Offset(9), Offset(0));
        fake.moved(vec![CursorOutcome::Moved { version: 1 + slot as i64, lease_left_us: 0, last_offset, log_start }]);
        let Some(Verdict::Pop(verdict)) = fake.reply(slot) else { panic!("answered") };
        let [claim] = &verdict.claims[..] else { panic!("{verdict:?}") };
        assert_eq!((claim.start, claim.end, claim.records.len()), (Offset(first), Offset(last), 1));
    }
}

/// A discovery pop asks for a queue that is gone, and a pop that names it waits for the same answer. Source: data plane 4.3.
#[test]
fn only_who_names_a_queue_makes_it() {
    let mut fake = Fake::new();
    let Command::Pop(found) = pop("1") else { panic!("a pop") };
    fake.ask(1, Command::Pop(Pop { makes_queue: false, ..found.clone() }));
    fake.ask(2, Command::Pop(found));
    fake.answer(|call| {
        let Call::OpenGroup { contact, .. } = call else { panic!("{call:?}") };
        assert_eq!(*contact, Contact::Found(Start::All));
        Ok(Reply::Group(None))
    });
    let Some(Verdict::Pop(verdict)) = fake.reply(1) else { panic!("answered") };
    assert!(verdict.claims.is_empty() && !verdict.failed);
    let [(_, Call::OpenGroup { contact, .. })] = &fake.calls[..] else { panic!("{:?}", fake.calls) };
    assert_eq!(*contact, Contact::Register(Start::All));
    fake.settle();
    fake.moved(vec![moved(2)]);
    assert!(matches!(fake.reply(2), Some(Verdict::Pop(verdict)) if verdict.claims.len() == 1));
}
