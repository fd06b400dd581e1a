//! For tests: one shard and what it asks, answered by hand.

use crate::command::{Codec, Command, Event, Pop, PopFrom, Record, SpoolRecord, Start, Verdict};
use crate::effect::{
    Append, Call, CursorMove, CursorOutcome, CursorRow, Effect, FoundLane, GroupRow, LaneRow, MoveOutcome, QueueRow,
    Reply, ScanRow, SeededCursor, StoreError,
};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{CallId, CommitId, GroupId, LeaseId, Micros, Offset, PartitionId, QueueId, Slot, Stamp, TenantId};
use crate::lease_id::LeaseSeed;
use crate::limits::ShardConfig;
use crate::queue::IMPLICIT_OPTIONS;
use crate::shard::Shard;

pub const START: u64 = 1 << 40;
/// The one partition that there is: `p` of queue `q`, with one message.
pub const PARTITION: PartitionId = PartitionId(4096);

pub struct Fake {
    pub shard: Shard,
    pub now: u64,
    pub calls: Vec<(CallId, Call)>,
    pub moves: Vec<(CommitId, Vec<CursorMove>)>,
    pub appends: Vec<(CommitId, Append)>,
    pub replies: Vec<(Slot, Verdict)>,
    pub woken: Vec<Slot>,
    /// Records for the disk, by token.
    pub spooled: Vec<(u64, SpoolRecord)>,
}

impl Fake {
    pub fn new() -> Fake {
        Fake::with(ShardConfig::default())
    }

    pub fn with(config: ShardConfig) -> Fake {
        let shard = Shard::new(config);
        let (calls, moves, appends, replies, woken, spooled) = Default::default();
        let mut fake = Fake { shard, now: START, calls, moves, appends, replies, woken, spooled };
        fake.turn(vec![Event::Clock { now: Stamp(START as i64), at: Micros(START) }]);
        fake
    }

    pub fn turn(&mut self, mut events: Vec<Event>) {
        let mut effects = Vec::new();
        self.shard.turn(Micros(self.now), &mut events, &mut effects);
        for effect in effects {
            match effect {
                Effect::Call { call, ask } => self.calls.push((call, ask)),
                Effect::Move { commit, moves } => self.moves.push((commit, moves)),
                Effect::Append { commit, append } => self.appends.push((commit, append)),
                Effect::Reply { slot, verdict } => self.replies.push((slot, verdict)),
                Effect::Wake { slot } => self.woken.push(slot),
                Effect::Spool { token, record } => self.spooled.push((token, record)),
                other => panic!("not in these tests: {other:?}"),
            }
        }
    }

    pub fn ask(&mut self, slot: u64, command: Command) {
        self.turn(vec![Event::Command { slot: Slot(slot), command }]);
    }

    /// Answers the calls that wait, in one turn.
    pub fn answer(&mut self, reply: impl Fn(&Call) -> Result<Reply, StoreError>) {
        let answered = std::mem::take(&mut self.calls).into_iter();
        self.turn(answered.map(|(call, ask)| Event::Returned { call, result: reply(&ask) }).collect());
    }

    /// Answers calls as the store would, until none waits.
    pub fn settle(&mut self) {
        while !self.calls.is_empty() {
            self.answer(|call| Ok(plain(call)));
        }
    }

    /// Answers the one commit of moves that waits.
    pub fn moved(&mut self, outcomes: Vec<CursorOutcome>) {
        assert_eq!(self.moves.len(), 1, "one commit");
        let (commit, _) = self.moves.remove(0);
        let outcome = MoveOutcome { now: Stamp(self.now as i64), moves: outcomes };
        self.turn(vec![Event::Moved { commit, result: Ok(outcome) }]);
    }

    pub fn reply(&mut self, slot: u64) -> Option<Verdict> {
        let at = self.replies.iter().position(|(of, _)| *of == Slot(slot))?;
        Some(self.replies.remove(at).1)
    }
}

pub const QUEUE: QueueRow = QueueRow { id: QueueId(7), options: IMPLICIT_OPTIONS };

pub fn row(version: i64) -> CursorRow {
    CursorRow {
        version,
        committed: Offset::NONE,
        lease: LeaseId::NONE,
        lease_left_us: 0,
        batch_end: None,
        conflating: false,
        retry_count: 0,
        attempt_start: None,
        attempt_count: 0,
    }
}

pub fn moved(version: i64) -> CursorOutcome {
    CursorOutcome::Moved { version, lease_left_us: 60_000_000, last_offset: Offset(0), log_start: Offset(0) }
}

pub fn lane() -> FoundLane {
    let (partition, last_offset, log_start) = (PARTITION, Offset(0), Offset(0));
    let row = LaneRow { queue: QUEUE, partition, last_offset, log_start, last_created_at: Stamp(START as i64) };
    FoundLane { queue: "q".into(), partition: "p".into(), row }
}

fn record() -> Record {
    let mut frames = FrameWriter::default();
    frames.push(&FrameHead::default(), b"1");
    let body = frames.into_bytes();
    Record {
        base: Offset(0),
        created_at: Stamp(START as i64),
        count: 1,
        codec: Codec::Raw,
        flags: 0,
        raw_len: body.len() as u32,
        body,
        frames: None,
        keys: 7u128.to_le_bytes().to_vec().into(),
    }
}

/// What a store says in which the number of a group is its name.
pub fn plain(call: &Call) -> Reply {
    let now = Stamp(START as i64);
    match call {
        Call::OpenGroup { group, .. } => {
            let group = GroupId(group.parse().expect("a number"));
            Reply::Group(Some(GroupRow { queue: QUEUE, group, registered: true, conflation: false, made: false }))
        }
        Call::Scan { group, .. } => {
            let lane = lane();
            let rows = vec![ScanRow {
                partition: PARTITION,
                name: lane.partition,
                last_offset: lane.row.last_offset,
                log_start: lane.row.log_start,
                last_created_at: lane.row.last_created_at,
                cursor: Some(row(group.0)),
            }];
            Reply::Scanned { rows, next: None, now }
        }
        Call::SeedCursors { group, partitions, .. } => {
            let seeded = SeededCursor { row: row(group.0), last_offset: Offset(0), log_start: Offset(0) };
            Reply::Cursors { rows: vec![Some(seeded); partitions.len()], now }
        }
        Call::ReadRecords { .. } => Reply::Records { records: vec![record()], log_start: Offset(0) },
        Call::FindLane { .. } => Reply::Lanes(vec![Some(lane().row)]),
        Call::FindPartitions { ids, .. } => Reply::Found(ids.iter().map(|_| Some(lane())).collect()),
        Call::FindCursors { cursors } => {
            let id = |group: &str| GroupId(group.parse().expect("a number"));
            Reply::FoundCursors(cursors.iter().map(|(_, group)| Some((id(group), row(id(group).0)))).collect())
        }
        Call::FindQueue { .. } => Reply::Queue(Some(QUEUE)),
        other => panic!("not asked in these tests: {other:?}"),
    }
}

pub fn pop(group: &str) -> Command {
    Command::Pop(plain_pop(group))
}

pub fn plain_pop(group: &str) -> Pop {
    Pop {
        from: PopFrom::Queue { tenant: TenantId::DEFAULT, queue: "q".into() },
        makes_queue: true,
        group: group.into(),
        start: Start::All,
        batch: 1,
        partitions: 1,
        conflating_partitions: 1,
        conflation: None,
        bytes: 1 << 20,
        said: Default::default(),
        lease_secs: None,
        auto_ack: false,
        lease: None,
        seed: LeaseSeed { millis: 1, counter: group.parse().expect("a number"), wide: false },
        more: false,
        at_least: 0,
    }
}
