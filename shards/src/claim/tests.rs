use crate::command::{Event, LogLane, Verdict};
use crate::effect::Call;
use crate::fake::{Fake, PARTITION, lane, moved, plain, pop};
use crate::ids::{CallId, TenantId};
use crate::place::LaneKey;

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
    fake.turn(vec![Event::Log { lanes: vec![grown], freed: Vec::new(), changed: Vec::new(), lost: false }]);
    assert!(settle_but_scans(&mut fake).is_empty(), "one page at a time");
    fake.moved(vec![moved(2)]);
    assert!(matches!(fake.reply(1), Some(Verdict::Pop(pop)) if pop.claims.len() == 1), "the first that came");
    assert!(fake.reply(2).is_none(), "the scan may still find something");
    fake.calls = scans;
    fake.settle();
    assert!(matches!(fake.reply(2), Some(Verdict::Pop(pop)) if pop.claims.is_empty()));
}
