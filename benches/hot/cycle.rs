//! One shard's turns: a push is judged and closes into a commit, a pop claims, an ack settles, each on its own clock.
//!
//! The store is the small twin below: it answers at once and holds one queue, so that what is measured is the engine.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use queen_shards::command::{
    AckItem, AckSet, Codec, Command, Disposition, Draft, DraftVerdict, Event, Pop, PopFrom, QUEUE_MODE, Start, Verdict,
};
use queen_shards::effect::{
    Append, AppendOutcome, Call, CursorMove, CursorOutcome, CursorRow, Effect, GroupRow, LaneOutcome, LaneRow, LeaseTo,
    MoveOutcome, Options, QueueRow, Reply, ScanRow, SeededCursor,
};
use queen_shards::ids::{GroupId, Key, LeaseId, Micros, Offset, PartitionId, QueueId, Slot, Stamp, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::lease_id::LeaseSeed;
use queen_shards::limits::ShardConfig;
use queen_shards::place::LaneKey;
use queen_shards::shard::Shard;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOT: Slot = Slot(1);
const GROUP: GroupId = GroupId(1);
/// PostgreSQL's clock goes on by a second with each commit, so that the window of a minute stays small.
const SECOND: i64 = 1_000_000;
const QUEUE: QueueRow = QueueRow {
    id: QueueId(9),
    options: Options {
        lease_secs: 60,
        retry_limit: 3,
        dead_letter: true,
        delay_secs: 0,
        window_secs: 0,
        dedup_secs: 60,
        fill_wait_ms: 0,
        encrypted: false,
        completed_secs: 0,
    },
};

/// A shard, and the partitions and cursors that its store would hold.
struct Stage {
    shard: Shard,
    now: Micros,
    clock: Stamp,
    lanes: Vec<(LaneKey, LaneRow, CursorRow)>,
    hasher: KeyHasher,
    sent: u64,
}

impl Stage {
    fn new(partitions: usize) -> Stage {
        let lane = |n: usize| {
            let key = LaneKey::new(TenantId::DEFAULT, "orders".into(), format!("p-{n}").into());
            let partition = PartitionId((n as i64 + 1) << 12 | i64::from(key.slot()));
            let row = LaneRow {
                queue: QUEUE,
                partition,
                last_offset: Offset::NONE,
                log_start: Offset(0),
                last_created_at: Stamp(0),
            };
            let cursor = CursorRow {
                version: 1,
                committed: Offset::NONE,
                lease: LeaseId::NONE,
                lease_left_us: 0,
                batch_end: None,
                conflating: false,
                retry_count: 0,
                attempt_start: None,
                attempt_count: 0,
            };
            (key, row, cursor)
        };
        let lanes = (0..partitions).map(lane).collect();
        let (now, clock) = (Micros(1), Stamp(1_789_200_930_123_456));
        let hasher = KeyHasher::new(&[7; 16]);
        let mut stage = Stage { shard: Shard::new(ShardConfig::default()), now, clock, lanes, hasher, sent: 0 };
        let mut events = vec![Event::Clock { now: clock, at: now }, Event::Store { up: true }];
        stage.shard.turn(now, &mut events, &mut Vec::new());
        stage
    }

    /// The verdict on a command, and how long the shard's turns took for it.
    fn ask(&mut self, command: Command) -> (Verdict, Duration) {
        let mut events = vec![Event::Command { slot: SLOT, command }];
        let (mut effects, mut took) = (Vec::new(), Duration::ZERO);
        loop {
            self.now = self.now.plus(10);
            let begun = Instant::now();
            self.shard.turn(self.now, &mut events, &mut effects);
            took += begun.elapsed();
            let mut verdict = None;
            for effect in effects.drain(..) {
                match effect {
                    Effect::Reply { verdict: reply, .. } => verdict = Some(reply),
                    Effect::Append { commit, append } => {
                        events.push(Event::Appended { commit, result: Ok(self.append(append)) });
                    }
                    Effect::Move { commit, moves } => {
                        events.push(Event::Moved { commit, result: Ok(self.move_cursors(&moves)) });
                    }
                    Effect::Call { call, ask } => events.push(Event::Returned { call, result: Ok(self.call(ask)) }),
                    Effect::Wake { .. } => {}
                    other => panic!("no part of a push, a pop or an ack: {other:?}"),
                }
            }
            if let Some(verdict) = verdict {
                return (verdict, took);
            }
            assert!(!events.is_empty(), "the shard waits for nothing");
        }
    }

    fn lane(&mut self, partition: PartitionId) -> &mut (LaneKey, LaneRow, CursorRow) {
        &mut self.lanes[(partition.0 >> 12) as usize - 1]
    }

    fn append(&mut self, append: Append) -> AppendOutcome {
        self.clock.0 += SECOND;
        let created_at = self.clock;
        for lane in &append.lanes {
            let row = &mut self.lane(lane.partition).1;
            assert_eq!(row.last_offset, lane.expect);
            (row.last_offset, row.last_created_at) = (lane.expect.plus(i64::from(lane.count)), created_at);
        }
        AppendOutcome {
            now: created_at,
            lanes: vec![LaneOutcome::Appended { created_at }; append.lanes.len()],
            stored: append.segments.into_iter().map(|segment| (Codec::Raw, segment.frames)).collect(),
        }
    }

    fn move_cursors(&mut self, moves: &[CursorMove]) -> MoveOutcome {
        let moved = |one: &CursorMove| {
            let (_, row, cursor) = self.lane(one.partition);
            assert_eq!(cursor.version, one.version);
            let to = one.to.expect("every move here moves");
            let (lease, lease_left_us) = match to.lease {
                LeaseTo::Keep => (cursor.lease, cursor.lease_left_us),
                LeaseTo::Clear => (LeaseId::NONE, 0),
                LeaseTo::Set { id, secs, .. } => (id, i64::from(secs) * SECOND),
            };
            *cursor = CursorRow {
                version: cursor.version + 1,
                committed: to.committed,
                lease,
                lease_left_us,
                batch_end: to.batch_end,
                retry_count: to.retry_count,
                attempt_start: to.attempt_start,
                attempt_count: to.attempt_count,
                ..*cursor
            };
            let (last_offset, log_start) = (row.last_offset, row.log_start);
            CursorOutcome::Moved { version: cursor.version, lease_left_us, last_offset, log_start }
        };
        MoveOutcome { moves: moves.iter().map(moved).collect(), now: self.clock }
    }

    fn call(&mut self, call: Call) -> Reply {
        let now = self.clock;
        match call {
            Call::Provision { lanes } => {
                let row = |key: &LaneKey| self.lanes.iter().find(|(known, ..)| known == key).map(|(_, row, _)| *row);
                Reply::Lanes(lanes.iter().map(row).collect())
            }
            Call::ReadKeys { .. } => Reply::Keys { rows: vec![], complete: true, now },
            Call::FindQueue { .. } => Reply::Queue(Some(QUEUE)),
            Call::OpenGroup { .. } => Reply::Group(Some(GroupRow {
                queue: QUEUE,
                group: GROUP,
                registered: false,
                conflation: false,
                made: false,
            })),
            Call::Scan { after, .. } => {
                let behind = self
                    .lanes
                    .iter()
                    .filter(|(_, row, cursor)| after < row.partition && cursor.committed < row.last_offset);
                let row = |(key, row, cursor): &(LaneKey, LaneRow, CursorRow)| ScanRow {
                    partition: row.partition,
                    name: key.partition.clone(),
                    last_offset: row.last_offset,
                    log_start: row.log_start,
                    last_created_at: row.last_created_at,
                    cursor: Some(*cursor),
                };
                Reply::Scanned { rows: behind.map(row).collect(), next: None, now }
            }
            Call::SeedCursors { partitions, .. } => {
                let seeded = |partition: PartitionId| {
                    let (_, row, cursor) = self.lane(partition);
                    Some(SeededCursor { row: *cursor, last_offset: row.last_offset, log_start: row.log_start })
                };
                Reply::Cursors { rows: partitions.into_iter().map(seeded).collect(), now }
            }
            other => panic!("no part of a push, a pop or an ack: {other:?}"),
        }
    }

    /// Pushes new messages to a partition, pops them and acks the last: how long each took.
    fn cycle(&mut self, partition: usize, messages: u32) -> [Duration; 3] {
        let keys: Vec<Key> =
            (0..u64::from(messages)).map(|n| self.hasher.key(&(self.sent + n).to_le_bytes())).collect();
        self.sent += u64::from(messages);
        let draft = Draft {
            lane: self.lanes[partition].0.clone(),
            count: messages,
            keys: keys.iter().flat_map(|key| key.0.to_le_bytes()).collect::<Vec<u8>>().into(),
            all_minted: false,
            frames: Bytes::from(vec![b'x'; 320 * messages as usize]),
            packed: None,
            flags: 0,
        };
        let (verdict, push) = self.ask(Command::Push { drafts: vec![draft] });
        let Verdict::Push(verdicts) = verdict else { panic!("{verdict:?}") };
        assert!(matches!(&verdicts[..], [DraftVerdict::Stored { duplicates, .. }] if duplicates.is_empty()));
        let group: Arc<str> = QUEUE_MODE.into();
        let wanted = Pop {
            from: PopFrom::Queue { tenant: TenantId::DEFAULT, queue: "orders".into() },
            makes_queue: true,
            group: group.clone(),
            start: Start::All,
            batch: messages,
            partitions: 1,
            conflating_partitions: 1,
            conflation: None,
            bytes: u64::MAX,
            said: Default::default(),
            lease_secs: None,
            auto_ack: false,
            lease: None,
            seed: LeaseSeed { millis: self.sent, counter: 0, wide: false },
            more: false,
            at_least: 0,
        };
        let (verdict, pop) = self.ask(Command::Pop(wanted));
        let Verdict::Pop(popped) = verdict else { panic!("{verdict:?}") };
        let [claim] = &popped.claims[..] else { panic!("{popped:?}") };
        assert_eq!(claim.end.0 - claim.start.0 + 1, i64::from(messages));
        let set = AckSet {
            tenant: TenantId::DEFAULT,
            partition: claim.partition,
            group,
            lease: popped.lease,
            items: vec![AckItem { key: keys[keys.len() - 1], word: Disposition::Completed, error: None }],
        };
        let (verdict, ack) = self.ask(Command::Ack { sets: vec![set] });
        assert!(matches!(&verdict, Verdict::Ack(sets) if sets[0].released), "{verdict:?}");
        [push, pop, ack]
    }
}

pub fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cycle");
    for (messages, partitions) in [(1, 1), (100, 1), (100, 1000)] {
        let mut stage = Stage::new(partitions);
        group.throughput(Throughput::Elements(u64::from(messages)));
        for (step, what) in ["push", "claim", "ack"].into_iter().enumerate() {
            let mut turn = 0;
            group.bench_function(format!("{what}, {messages} messages, {partitions} partitions"), |b| {
                b.iter_custom(|times| {
                    let mut took = Duration::ZERO;
                    for _ in 0..times {
                        turn += 1;
                        took += stage.cycle(turn % partitions, messages)[step];
                    }
                    took
                });
            });
        }
    }
}
