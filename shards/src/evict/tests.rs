use crate::command::{
    AckItem, AckSet, Codec, Command, Disposition, Draft, Event, Left, LogLane, Pop, PopFrom, Start, Verdict, Watch,
};
use crate::effect::{
    AppendOutcome, Call, CursorOutcome, CursorRow, FoundLane, GroupRow, LaneOutcome, LaneRow, LeaseTo, Options,
    QueueRow, Reply, ScanRow,
};
use crate::fake::{Fake, PARTITION, QUEUE, lane, plain, pop, row};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{GroupId, Key, LeaseId, Micros, Offset, PartitionId, Slot, Stamp, TenantId};
use crate::limits::{LANE_IDLE_US, ShardConfig};
use crate::place::LaneKey;

const LANES: i64 = 400;
const LEASE_SECS: u32 = 3600;

/// A shard that keeps ten lanes, of a queue with many partitions, each with one message for group 1.
fn popped() -> Fake {
    let mut fake = Fake::with(ShardConfig { lanes_kept: 10, ..ShardConfig::default() });
    let Command::Pop(one) = pop("1") else { panic!("a pop") };
    let (batch, partitions, lease_secs) = (LANES as u32, LANES as u32, Some(LEASE_SECS));
    fake.ask(1, Command::Pop(Pop { batch, partitions, lease_secs, more: true, ..one }));
    while !fake.calls.is_empty() {
        fake.answer(|call| match call {
            Call::Scan { group, .. } => {
                let scanned = |n: i64| {
                    let FoundLane { row: found, .. } = lane();
                    ScanRow {
                        partition: PartitionId(n << 12),
                        name: n.to_string().into(),
                        last_offset: found.last_offset,
                        log_start: found.log_start,
                        last_created_at: found.last_created_at,
                        cursor: Some(row(group.0)),
                    }
                };
                let now = Stamp(crate::fake::START as i64);
                Ok(Reply::Scanned { rows: (1..=LANES).map(scanned).collect(), next: None, now })
            }
            call => Ok(plain(call)),
        });
    }
    moved(&mut fake, 2, LEASE_SECS as i64 * 1_000_000);
    assert_eq!(fake.shard.sizes().lanes, LANES as usize);
    fake
}

fn moved(fake: &mut Fake, version: i64, lease_left_us: i64) {
    while !fake.moves.is_empty() {
        let (last_offset, log_start) = (Offset(0), Offset(0));
        let moved = CursorOutcome::Moved { version, lease_left_us, last_offset, log_start };
        let moves = fake.moves[0].1.len();
        fake.moved(vec![moved; moves]);
    }
}

fn ack(fake: &mut Fake, lanes: std::ops::RangeInclusive<i64>) {
    let Some(Verdict::Pop(popped)) = fake.reply(1) else { panic!("a verdict") };
    let lease: Option<LeaseId> = popped.lease;
    let set = |n| AckSet {
        tenant: TenantId::DEFAULT,
        partition: PartitionId(n << 12),
        group: "1".into(),
        lease,
        items: vec![AckItem { key: Key(7), word: Disposition::Completed, error: None }],
    };
    fake.ask(2, Command::Ack { sets: lanes.map(set).collect() });
    moved(fake, 3, 0);
    assert!(matches!(fake.reply(2), Some(Verdict::Ack(_))));
}

fn idle(fake: &mut Fake) {
    fake.now += LANE_IDLE_US + 1;
    (0..LANES).for_each(|_| fake.turn(Vec::new()));
}

#[test]
fn a_settled_lease_does_not_keep_its_lane_however_long_it_would_have_been() {
    let mut fake = popped();
    ack(&mut fake, 1..=LANES);
    idle(&mut fake);
    assert_eq!(fake.shard.sizes().lanes, 10);
    // Nor do the moments at which those leases would have ended pile up.
    assert!(fake.shard.timers.len() <= 21, "{}", fake.shard.timers.len());
    assert_eq!(fake.shard.recounted(), fake.shard.sizes());
}

#[test]
fn a_lane_stays_until_the_end_of_a_lease_that_is_not_settled() {
    let mut fake = popped();
    ack(&mut fake, 1..=LANES / 2);
    idle(&mut fake);
    assert_eq!(fake.shard.sizes().lanes, LANES as usize / 2);
    fake.now += LEASE_SECS as u64 * 1_000_000;
    fake.turn(Vec::new());
    assert_eq!(fake.shard.timers.len(), 0);
}

/// The lanes' cursors of group 1, as the log tells of them.
fn freed(lanes: std::ops::RangeInclusive<i64>, left: Left) -> Vec<(PartitionId, GroupId, Left)> {
    lanes.map(|n| (PartitionId(n << 12), GroupId(1), left)).collect()
}

#[test]
fn a_lease_that_another_broker_settled_does_not_keep_its_lane() {
    let mut fake = popped();
    let end = fake.now + LEASE_SECS as u64 * 1_000_000;
    let mut freed = freed(1..=LANES - 50, Left::Nothing);
    freed.extend(self::freed(LANES - 49..=LANES, Left::Leased(Stamp(end as i64))));
    fake.now += 1;
    let (began, lanes, changed) = (Micros(fake.now), Vec::new(), Vec::new());
    fake.turn(vec![Event::Log { began, lanes, freed, changed, lost: false }]);
    assert!(fake.shard.timers.len() <= 101, "{}", fake.shard.timers.len());
    idle(&mut fake);
    assert_eq!(fake.shard.sizes().lanes, 50, "those that another lease holds are looked at when it ends");
    assert_eq!(fake.shard.recounted(), fake.shard.sizes());
}

#[test]
fn a_queue_that_changed_does_not_keep_its_lanes() {
    let mut fake = popped();
    fake.now += 1;
    let (began, changed) = (Micros(fake.now), vec![(TenantId::DEFAULT, "q".into())]);
    fake.turn(vec![Event::Log { began, lanes: Vec::new(), freed: Vec::new(), changed, lost: false }]);
    fake.settle();
    assert!(fake.shard.timers.len() <= 1, "{}", fake.shard.timers.len());
    idle(&mut fake);
    assert_eq!(fake.shard.sizes().lanes, 10);
}

/// The log was asked before a push was stored, and answered after: it says that nothing is left, and is not believed.
#[test]
fn what_was_stored_while_the_log_was_read_is_offered() {
    let mut fake = popped();
    let began = Micros(fake.now);
    fake.now += 1;
    let from = PopFrom::Queue { tenant: TenantId::DEFAULT, queue: "q".into() };
    fake.ask(2, Command::Watch(Watch { from, group: "1".into(), start: Start::All }));
    let (partition, end) = (PartitionId(7 << 12), Offset(1));
    let at = fake.shard.lanes.by_number(partition).expect("in memory");
    fake.shard.lanes[at].saw_end(end, Micros(fake.now));
    fake.shard.offer_all(at);
    fake.turn(Vec::new());
    assert_eq!(fake.woken, [], "it is leased");
    let (lanes, changed, freed) = (Vec::new(), Vec::new(), freed(7..=7, Left::Nothing));
    fake.turn(vec![Event::Log { began, lanes, freed, changed, lost: false }]);
    assert_eq!(fake.woken, [Slot(2)]);
}

/// A scan of millions of partitions takes a minute: what is done with meanwhile must not add up.
#[test]
fn a_lane_with_nothing_left_leaves_memory_during_a_scan() {
    let mut fake = Fake::new();
    fake.shard.config.lanes_kept = 0;
    fake.ask(1, pop("1"));
    fake.answer(|call| Ok(plain(call)));
    assert!(matches!(&fake.calls[..], [(_, Call::Scan { .. })]), "{:?}", fake.calls);
    for (name, log_start) in [("p", 0), ("empty", 1)] {
        let grown = LogLane {
            key: LaneKey::new(TenantId::DEFAULT, "q".into(), name.into()),
            partition: crate::ids::PartitionId(PARTITION.0 * (1 + log_start)),
            last_offset: Offset(0),
            log_start: Offset(log_start),
            last_created_at: lane().row.last_created_at,
        };
        fake.turn(vec![Event::Log {
            began: Micros(fake.now),
            lanes: vec![grown],
            freed: Vec::new(),
            changed: Vec::new(),
            lost: false,
        }]);
    }
    assert_eq!(fake.shard.sizes().lanes, 2);
    fake.now += LANE_IDLE_US + 1;
    fake.turn(Vec::new());
    assert_eq!(fake.shard.sizes().lanes, 1, "the one that a cursor is read for stays");
}

/// A message of key 7 to a partition that is new.
fn push(fake: &mut Fake, slot: u64, n: i64) {
    let mut frames = FrameWriter::default();
    frames.push(&FrameHead::default(), b"1");
    let draft = Draft {
        lane: LaneKey::new(TenantId::DEFAULT, "q".into(), n.to_string().into()),
        count: 1,
        keys: 7u128.to_le_bytes().to_vec().into(),
        all_minted: false,
        frames: frames.into_bytes(),
        packed: None,
        flags: 0,
    };
    fake.ask(slot, Command::Push { drafts: vec![draft] });
    let (partition, last_offset, last_created_at) = (PartitionId(n << 12), Offset::NONE, Stamp(0));
    let made = LaneRow { partition, last_offset, last_created_at, ..lane().row };
    fake.answer(|_| Ok(Reply::Lanes(vec![Some(made)])));
    let (commit, append) = fake.appends.remove(0);
    let now = Stamp(fake.now as i64);
    let lanes = vec![LaneOutcome::Appended { created_at: now }];
    let stored = append.segments.iter().map(|segment| (Codec::Raw, segment.frames.clone())).collect();
    fake.turn(vec![Event::Appended { commit, result: Ok(AppendOutcome { now, lanes, stored }) }]);
    fake.settle();
}

/// A lane has given all it had while a page that looks at it is on its way, and the scan is to come by once more: the page may tell
/// of the lease that is over, and nobody else knows better.
#[test]
fn what_a_page_on_its_way_may_tell_wrongly_stays_in_memory() {
    let mut fake = Fake::with(ShardConfig { lanes_kept: 0, ready_max: 1, ..ShardConfig::default() });
    fake.ask(1, pop("1"));
    fake.answer(|call| Ok(plain(call)));
    let page = fake.calls.pop().expect("a page of the scan");
    push(&mut fake, 10, 9);
    let leased = fake.moves[0].1[0].to.expect("a claim").lease;
    moved(&mut fake, 2, LEASE_SECS as i64 * 1_000_000);
    ack(&mut fake, 9..=9);
    // One more is in the ring, which has no room for another: the scan comes by again, from below the lane.
    push(&mut fake, 11, 2);
    push(&mut fake, 12, 3);
    idle(&mut fake);
    let LeaseTo::Set { id, .. } = leased else { panic!("{leased:?}") };
    let before = CursorRow { lease: id, lease_left_us: LEASE_SECS as i64 * 1_000_000, ..row(1) };
    let told = ScanRow {
        partition: PartitionId(9 << 12),
        name: "9".into(),
        last_offset: Offset(0),
        log_start: Offset(0),
        last_created_at: lane().row.last_created_at,
        cursor: Some(before),
    };
    let reply = Reply::Scanned { rows: vec![told], next: None, now: Stamp(fake.now as i64) };
    fake.turn(vec![Event::Returned { call: page.0, result: Ok(reply) }]);
    let at = fake.shard.lanes.by_number(PartitionId(9 << 12)).expect("in memory");
    let cursor = &fake.shard.lanes[at].cursors[0];
    assert!(!cursor.leased(Micros(fake.now)), "{cursor:?}");
    assert_eq!(cursor.row.expect("known").version, 3);
}

/// PostgreSQL's clock turns out to be a little further than was known: what is held back may be had some moments before the
/// timer that is to say so. Lane and group stay until it does.
#[test]
fn a_hold_that_is_over_before_its_timer_wakes_who_waits_all_the_same() {
    const DELAY_US: u64 = 2_000_000;
    let start = crate::fake::START;
    let mut fake =
        Fake::with(ShardConfig { lanes_kept: 0, lane_idle_us: 1, group_idle_us: 1, ..ShardConfig::default() });
    let queue = QueueRow { options: Options { delay_secs: 2, ..QUEUE.options }, ..QUEUE };
    let from = PopFrom::Partition(LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()));
    let Command::Pop(one) = pop("1") else { panic!("a pop") };
    fake.ask(1, Command::Pop(Pop { from: from.clone(), ..one }));
    while !fake.calls.is_empty() {
        fake.answer(|call| match call {
            Call::FindLane { .. } => Ok(Reply::Lanes(vec![Some(LaneRow { queue, ..lane().row })])),
            Call::OpenGroup { .. } => {
                let (registered, conflation, made) = (false, false, false);
                Ok(Reply::Group(Some(GroupRow { queue, group: GroupId(1), registered, conflation, made })))
            }
            call => Ok(plain(call)),
        });
    }
    assert!(matches!(fake.reply(1), Some(Verdict::Pop(pop)) if pop.claims.is_empty()), "held back");
    fake.ask(2, Command::Watch(Watch { from, group: "1".into(), start: Start::All }));
    fake.now = start + DELAY_US - 100_000;
    let ahead = Event::Clock { now: Stamp((start + DELAY_US) as i64), at: Micros(fake.now) };
    fake.turn(vec![ahead]);
    (0..10).for_each(|_| fake.turn(Vec::new()));
    fake.now = start + DELAY_US;
    fake.turn(Vec::new());
    assert_eq!(fake.woken, [Slot(2)]);
}
