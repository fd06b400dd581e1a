use crate::command::{Codec, Command, Draft, Event, Pop, PopFrom, QUEUE_MODE, Record, Start, Watch};
use crate::effect::{
    AppendOutcome, Call, CursorRow, Effect, GroupRow, LaneOutcome, LaneRow, Options, QueueRow, Reply, ScanRow,
};
use crate::fake::plain_pop;
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{GroupId, LeaseId, Micros, Offset, PartitionId, QueueId, Slot, Stamp, TenantId};
use crate::limits::{LANE_IDLE_US, RECHECK_US, SWEEP_STEP, ShardConfig};
use crate::place::LaneKey;
use crate::shard::Shard;
use bytes::Bytes;

const START: u64 = 1 << 40;

fn queue() -> QueueRow {
    let options = Options {
        lease_secs: 60,
        retry_limit: 3,
        dead_letter: true,
        delay_secs: 0,
        window_secs: 0,
        dedup_secs: 0,
        fill_wait_ms: 0,
        encrypted: false,
        completed_secs: 0,
    };
    QueueRow { id: QueueId(7), options }
}

fn answer(ask: &Call, now: Stamp) -> Reply {
    match ask {
        Call::OpenGroup { .. } => {
            let (registered, conflation, made) = (false, false, false);
            Reply::Group(Some(GroupRow { queue: queue(), group: GroupId(1), registered, conflation, made }))
        }
        Call::Scan { .. } => Reply::Scanned { rows: Vec::new(), next: None, now },
        Call::Provision { .. } => {
            let (last_offset, log_start) = (Offset(-1), Offset(0));
            let partition = PartitionId(4096);
            Reply::Lanes(vec![Some(LaneRow {
                queue: queue(),
                partition,
                last_offset,
                log_start,
                last_created_at: now,
            })])
        }
        other => panic!("not asked in these tests: {other:?}"),
    }
}

/// Turns at `now` until nothing happens any more; the slots that were woken.
fn turns(shard: &mut Shard, now: u64, mut events: Vec<Event>) -> Vec<Slot> {
    let stamp = Stamp(now as i64);
    let mut woken = Vec::new();
    loop {
        let mut effects = Vec::new();
        shard.turn(Micros(now), &mut events, &mut effects);
        for effect in effects {
            match effect {
                Effect::Wake { slot } => woken.push(slot),
                Effect::Call { call, ask } => events.push(Event::Returned { call, result: Ok(answer(&ask, stamp)) }),
                Effect::Append { commit, append } => {
                    let stored = append.segments.iter().map(|_| (Codec::Raw, Bytes::new())).collect();
                    let lanes = vec![LaneOutcome::Appended { created_at: stamp }];
                    events.push(Event::Appended { commit, result: Ok(AppendOutcome { now: stamp, lanes, stored }) });
                }
                Effect::Reply { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if events.is_empty() && shard.deadline().is_none_or(|at| now < at.0) {
            return woken;
        }
    }
}

fn command(slot: Slot, command: Command) -> Event {
    Event::Command { slot, command }
}

fn pop(from: &PopFrom) -> Pop {
    Pop { from: from.clone(), group: QUEUE_MODE.into(), ..plain_pop("1") }
}

fn push() -> Command {
    push_of(7)
}

fn push_of(key: u128) -> Command {
    let mut frames = FrameWriter::default();
    frames.push(&FrameHead::default(), b"1");
    let lane = LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into());
    let keys = key.to_le_bytes().to_vec().into();
    let frames = frames.into_bytes();
    Command::Push { drafts: vec![Draft { lane, count: 1, keys, all_minted: false, frames, packed: None, flags: 0 }] }
}

#[test]
fn a_hint_that_was_lost_goes_to_the_next_parked_poll_within_a_second() {
    let of_queue = PopFrom::Queue { tenant: TenantId::DEFAULT, queue: "q".into() };
    let of_lane = PopFrom::Partition(LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()));
    for from in [&of_queue, &of_lane] {
        let mut shard = Shard::new(ShardConfig::default());
        let clock = Event::Clock { now: Stamp(START as i64), at: Micros(START) };
        turns(&mut shard, START, vec![clock, command(Slot(1), Command::Pop(pop(&of_queue)))]);
        let watch = || Command::Watch(Watch { from: from.clone(), group: QUEUE_MODE.into(), start: Start::All });
        let polls = [Slot(2), Slot(3), Slot(4), Slot(5)];
        let woken = turns(&mut shard, START, polls.map(|slot| command(slot, watch())).into());
        assert_eq!(woken, [], "{from:?}: nothing is there");
        // Whoever is woken never asks and never leaves.
        let mut told = turns(&mut shard, START + 1, vec![command(Slot(9), push())]);
        assert!(!told.is_empty() && told.len() < polls.len(), "{from:?}: {told:?}");
        for second in 1..=polls.len() as u64 {
            assert_eq!(turns(&mut shard, START + second * RECHECK_US - 1, vec![]), [], "{from:?}: not before its time");
            let woken = turns(&mut shard, START + second * RECHECK_US + 1, vec![]);
            assert_eq!(woken.len(), usize::from(told.len() < polls.len()), "{from:?}: one a second");
            told.extend(woken);
        }
        assert_eq!(told, polls, "{from:?}");
        turns(&mut shard, START, polls.map(|slot| command(slot, Command::Unwatch)).into());
        turns(&mut shard, START + 6 * RECHECK_US, vec![]);
        assert_eq!(shard.deadline(), None, "{from:?}: nobody watches, nothing is looked at");
    }
}

/// How many lanes are in memory after a push, later than a lane is idle.
fn lanes_left(kept: usize) -> usize {
    let mut shard = Shard::new(ShardConfig { lanes_kept: kept, ..ShardConfig::default() });
    let clock = Event::Clock { now: Stamp(START as i64), at: Micros(START) };
    turns(&mut shard, START, vec![clock, command(Slot(1), push())]);
    turns(&mut shard, START + LANE_IDLE_US / 2, vec![]);
    assert_eq!(shard.sizes().lanes, 1, "not before its time");
    turns(&mut shard, START + LANE_IDLE_US + 1, vec![]);
    shard.sizes().lanes
}

#[test]
fn a_lane_with_nothing_to_do_leaves_memory() {
    assert_eq!(lanes_left(0), 0);
    assert_eq!(lanes_left(1), 1, "so many are kept");
}

/// PostgreSQL stands still between two answers: one that it had ready comes when it goes on, and says an old time. What is
/// accepted and spooled at that moment was accepted after what was accepted before.
#[test]
fn a_late_answer_does_not_put_acceptance_back() {
    const PAUSE: u64 = 3_000_000;
    let mut shard = Shard::new(ShardConfig::default());
    let clock = Event::Clock { now: Stamp(START as i64), at: Micros(START) };
    turns(&mut shard, START, vec![clock, command(Slot(1), push())]);
    // The commit is asked for now, and answered with this moment after the pause.
    let mut effects = Vec::new();
    shard.turn(Micros(START + 1000), &mut vec![command(Slot(2), push_of(8))], &mut effects);
    let commit = effects.iter().find_map(|effect| match effect {
        Effect::Append { commit, .. } => Some(*commit),
        _ => None,
    });
    let lanes = vec![LaneOutcome::Appended { created_at: Stamp(START as i64 + 1500) }];
    let stored = vec![(Codec::Raw, Bytes::new())];
    let outcome = AppendOutcome { now: Stamp(START as i64 + 1500), lanes, stored };
    let late = Event::Appended { commit: commit.expect("a commit"), result: Ok(outcome) };
    effects.clear();
    let after = START + PAUSE;
    // As while pushes are switched to the spool.
    let Command::Push { drafts } = push_of(9) else { panic!("a push") };
    let mut events = vec![late, command(Slot(3), Command::Spool { drafts })];
    shard.turn(Micros(after), &mut events, &mut effects);
    let accepted = effects.iter().find_map(|effect| match effect {
        Effect::Spool { record, .. } => Some(record.accepted_at),
        _ => None,
    });
    assert_eq!(accepted, Some(Stamp(after as i64)));
}

/// Another broker's lease is met while PostgreSQL's clock is five minutes back: it seems to last five minutes longer. When
/// the clock is right again, a poll that is parked, or one that comes, does not wait for them.
#[test]
fn a_lease_that_the_clock_has_leapt_over_holds_nobody_up() {
    const BACK_US: i64 = 300_000_000;
    const LEASE_US: i64 = 2_000_000;
    let of_queue = PopFrom::Queue { tenant: TenantId::DEFAULT, queue: "q".into() };
    let mut shard = Shard::new(ShardConfig::default());
    let row = CursorRow {
        version: 1,
        committed: Offset(-1),
        lease: LeaseId(1 << 64),
        lease_left_us: BACK_US + LEASE_US,
        batch_end: Some(Offset(0)),
        conflating: false,
        retry_count: 0,
        attempt_start: None,
        attempt_count: 0,
    };
    let scanned = |now: Stamp| {
        let (last_offset, log_start) = (Offset(1), Offset(0));
        let (partition, name) = (PartitionId(4096), "p".into());
        let row = ScanRow { partition, name, last_offset, log_start, last_created_at: now, cursor: Some(row) };
        Reply::Scanned { rows: vec![row], next: None, now }
    };
    let clock = |us: i64, at: u64| Event::Clock { now: Stamp(START as i64 + us), at: Micros(at) };
    let mut events = vec![clock(0, START), clock(-BACK_US, START), command(Slot(1), Command::Pop(pop(&of_queue)))];
    let (mut now, mut told) = (START, Vec::new());
    let mut turn = |now: u64, events: &mut Vec<Event>| {
        let mut effects = Vec::new();
        shard.turn(Micros(now), events, &mut effects);
        for effect in effects {
            match effect {
                Effect::Wake { slot } | Effect::Reply { slot, .. } => told.push(slot),
                Effect::Call { call, ask: Call::Scan { .. } } => {
                    let stamp = Stamp(now as i64 - BACK_US);
                    events.push(Event::Returned { call, result: Ok(scanned(stamp)) });
                }
                Effect::Call { call, ask } => {
                    events.push(Event::Returned { call, result: Ok(answer(&ask, Stamp(now as i64 - BACK_US))) });
                }
                other => panic!("{other:?}"),
            }
        }
        told.clone()
    };
    while !events.is_empty() {
        turn(now, &mut events);
    }
    let watch = Command::Watch(Watch { from: of_queue.clone(), group: QUEUE_MODE.into(), start: Start::All });
    assert_eq!(turn(now, &mut vec![command(Slot(2), watch)]), [Slot(1)], "leased: nothing for the pop");
    // The clock is right again while the lease lasts ...
    now += LEASE_US as u64 / 2;
    assert_eq!(turn(now, &mut vec![clock(LEASE_US / 2, now)]), [Slot(1)], "the lease is not over");
    // ... and it ends when it ends.
    now += LEASE_US as u64 / 2;
    assert_eq!(turn(now, &mut Vec::new()), [Slot(1), Slot(2)]);
}

/// Partitions come and go, each with a few bytes in its tail, far from the budget.
#[test]
fn tails_of_lanes_that_left_memory_leave_nothing_behind() {
    let mut shard = Shard::new(ShardConfig::default());
    for n in 0..10_000 {
        let key = LaneKey::new(TenantId::DEFAULT, "q".into(), n.to_string().into());
        let lane = shard.lane_entry(&key);
        let record = Record {
            base: Offset(0),
            created_at: Stamp(0),
            count: 1,
            codec: Codec::Raw,
            flags: 0,
            raw_len: 1,
            body: Bytes::from_static(b"1"),
            frames: None,
            keys: Bytes::from_static(&[7; 16]),
        };
        shard.feed_tail(lane, [record]);
        shard.forget_lane(lane);
        shard.turn(Micros(START), &mut Vec::new(), &mut Vec::new());
        assert!(shard.tail_order.len() <= SWEEP_STEP, "{}", shard.tail_order.len());
    }
    assert_eq!((shard.sizes().tail_bytes, shard.recounted()), (0, shard.sizes()));
}
