use super::bytes_of;
use crate::command::{Codec, Event, LogLane, Record, Said, Verdict};
use crate::effect::Call;
use crate::fake::{Fake, PARTITION, lane, moved, plain, pop};
use crate::ids::{CallId, Micros, Offset, Stamp, TenantId};
use crate::place::LaneKey;
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
