//! A PostgreSQL of our own: the tables, and what the two hot statements do to them.
//!
//! Holds: every call is one atomic step under one clock. Cold calls are in [`crate::cold`], what other people do to
//! the tables (retention, configure, delete, seek) in [`crate::admin`]. Source: effect.rs; docs/rules.md.

use crate::rng::Rng;
use bytes::Bytes;
use queen_shards::command::{Codec, Start};
use queen_shards::effect::{
    Append, AppendLane, AppendOutcome, CursorMove, CursorOutcome, CursorRow, DeadLetter, LaneOutcome, LaneRow,
    LeaseMust, LeaseTo, MoveOutcome, Options, QueueRow, StoreError,
};
use queen_shards::ids::{GroupId, LeaseId, Offset, PartitionId, QueueId, Stamp};
use queen_shards::sealed::RunId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A bug put into the world on purpose, to see whether the oracle wakes. Source: reliability 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// An append is written whatever the row says.
    BlindAppend,
    /// A segment of a commit is not written.
    DropSegment,
    /// A byte of a stored body changes.
    AlterBody,
    /// Keys of older rows are not found.
    ForgetKeys,
    /// A cursor is written whatever its version and lease.
    BlindMove,
    /// A cursor move is answered and not written.
    LoseMove,
    /// A live lease is read as over.
    ForgetLease,
    /// Stamps are told two seconds younger than they are.
    EarlyStamp,
    /// A dead letter is not filed.
    LoseDeadLetter,
    /// A verdict never arrives.
    LoseVerdict,
    /// A verdict arrives twice.
    TwoVerdicts,
    /// Wakes are lost.
    LoseWake,
    /// A store answer is handed to the engine twice in the place of another: a lane's outcome as its neighbour's.
    ShiftedOutcome,
    /// Of a bundle the pushes are written and the cursors are not moved.
    HalfBundle,
    /// Retention forgets the keys of what it deletes.
    LoseEvidence,
    /// Rows of sealed runs come back empty.
    EmptyRunRow,
    /// A record that was answered is not on disk.
    LoseSpooled,
    /// The spool drains from its end.
    DrainNewestFirst,
    /// Acceptance times of stored messages are not told.
    ForgetAcceptance,
    /// A restart loses records that were answered.
    SpooledEarly,
    /// A conflating lease is not marked.
    ForgetMark,
    /// The newest record is not the newest.
    OldNewest,
    /// A commit of another broker is not told.
    LoseLogLine,
}

pub const PLANTED: &[Planted] = &[
    Planted::BlindAppend,
    Planted::DropSegment,
    Planted::AlterBody,
    Planted::ForgetKeys,
    Planted::BlindMove,
    Planted::LoseMove,
    Planted::ForgetLease,
    Planted::EarlyStamp,
    Planted::LoseDeadLetter,
    Planted::LoseVerdict,
    Planted::TwoVerdicts,
    Planted::LoseWake,
    Planted::ShiftedOutcome,
    Planted::HalfBundle,
    Planted::LoseEvidence,
    Planted::EmptyRunRow,
    Planted::LoseSpooled,
    Planted::DrainNewestFirst,
    Planted::ForgetAcceptance,
    Planted::SpooledEarly,
    Planted::ForgetMark,
    Planted::OldNewest,
    Planted::LoseLogLine,
];

pub struct Queue {
    pub name: Arc<str>,
    pub options: Options,
}

pub struct Partition {
    pub queue: QueueId,
    pub name: Arc<str>,
    pub last_offset: Offset,
    pub log_start: Offset,
    pub last_created_at: Stamp,
}

#[derive(Clone)]
pub struct Segment {
    pub count: u32,
    pub created_at: Stamp,
    pub accepted_at: Option<Stamp>,
    pub codec: Codec,
    pub flags: u8,
    pub raw_len: u32,
    pub keys: Bytes,
    pub body: Bytes,
}

pub struct Evidence {
    pub count: u32,
    pub created_at: Stamp,
    pub accepted_at: Option<Stamp>,
    pub keys: Bytes,
}

pub struct Group {
    pub queue: QueueId,
    pub name: Arc<str>,
    /// How it was registered, and when.
    pub mode: Option<(Start, Stamp)>,
    pub high_water: i64,
    /// Kept by a registration that made no cursors. Source: migrations/0015.
    pub seed_at: Option<Stamp>,
    pub conflation: bool,
}

/// A row of `cursors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub version: i64,
    pub committed: Offset,
    pub lease: LeaseId,
    pub expires: Stamp,
    pub batch_end: Option<Offset>,
    pub conflating: bool,
    pub retry_count: u32,
    pub attempt_start: Option<Offset>,
    pub attempt_count: u32,
}

impl Cursor {
    /// Whether the lease holds.
    pub fn live(&self, now: Stamp) -> bool {
        self.lease.is_some() && self.expires > now
    }
    pub fn row(&self, now: Stamp) -> CursorRow {
        CursorRow {
            version: self.version,
            committed: self.committed,
            lease: self.lease,
            lease_left_us: if self.lease.is_some() { self.expires.0 - now.0 } else { 0 },
            batch_end: self.batch_end,
            conflating: self.conflating,
            retry_count: self.retry_count,
            attempt_start: self.attempt_start,
            attempt_count: self.attempt_count,
        }
    }
}

/// A row of `dead_letters`.
#[derive(Clone, Debug)]
pub struct DeadRow {
    pub partition: PartitionId,
    pub group: GroupId,
    pub letter: DeadLetter,
}

#[derive(Default)]
pub struct Store {
    pub queues: BTreeMap<QueueId, Queue>,
    pub queue_names: BTreeMap<Arc<str>, QueueId>,
    pub partitions: BTreeMap<PartitionId, Partition>,
    pub partition_names: BTreeMap<(QueueId, Arc<str>), PartitionId>,
    pub segments: BTreeMap<(PartitionId, Offset), Segment>,
    pub evidence: BTreeMap<(PartitionId, Offset), Evidence>,
    pub groups: BTreeMap<GroupId, Group>,
    pub group_names: BTreeMap<(QueueId, Arc<str>), GroupId>,
    pub cursors: BTreeMap<(PartitionId, GroupId), Cursor>,
    pub dead: Vec<DeadRow>,
    /// Sealed runs: the run as encoded, and its rows.
    pub runs: BTreeMap<(PartitionId, RunId), (Bytes, Vec<Bytes>)>,
    /// Cursors made since the oracle last looked.
    pub seeded: Vec<(PartitionId, GroupId, Cursor)>,
    /// The commit log.
    pub lines: Vec<crate::log::Line>,
    pub planted: Option<Planted>,
    /// Rows found locked, per mille.
    pub busy: u32,
    /// A row that somebody holds, and until when; its cursors with it.
    pub locked: Option<(PartitionId, Stamp)>,
    /// A group that is being deleted: its cursors are locked.
    pub dying: Option<GroupId>,
    /// Partitions that are not found once they were made, because their queue was deleted, per mille; and the generator
    /// that says which.
    pub lost: (u32, Option<Rng>),
    /// Keys in one answer at most, whatever is asked for: pages are there to be met.
    pub keys_page: u64,
    /// Registrations make no cursors; partitions looked at by one page of a scan.
    pub sparse: bool,
    pub look: usize,
    /// From when on it takes what it refused.
    pub cured: Option<Stamp>,
    pub numbers: Numbers,
}

/// The sequences.
#[derive(Default)]
pub struct Numbers {
    queue: u128,
    partition: i64,
    group: i64,
    version: i64,
}

impl Numbers {
    pub fn queue(&mut self) -> QueueId {
        self.queue += 1;
        QueueId(self.queue)
    }
    pub fn partition(&mut self, slot: u16) -> PartitionId {
        self.partition += 1;
        PartitionId(self.partition << 12 | slot as i64)
    }
    pub fn group(&mut self) -> GroupId {
        self.group += 1;
        GroupId(self.group)
    }
    pub fn version(&mut self) -> i64 {
        self.version += 1;
        self.version
    }
    /// Highest partition number given, without slot bits.
    pub fn high_water(&self) -> i64 {
        self.partition
    }
}

impl Store {
    /// Whether a bug is planted and strikes now.
    pub fn strikes(&self, rng: &mut Rng, bug: Planted, per_mille: u32) -> bool {
        self.planted == Some(bug) && rng.chance(per_mille)
    }

    /// Whether poison is refused.
    pub fn refuses(&self, now: Stamp) -> bool {
        self.cured.is_none_or(|cured| now < cured)
    }

    /// The fused push commit: compare-and-set per lane, all lanes in one step.
    pub fn append(&mut self, now: Stamp, rng: &mut Rng, append: &Append) -> Result<AppendOutcome, StoreError> {
        if self.refuses(now) && append.segments.iter().any(|segment| contains(&segment.raw(), POISON)) {
            return Err(StoreError::Refused("invalid byte sequence (simulated 22021)".into()));
        }
        let mut outcome = AppendOutcome { now, lanes: Vec::new(), stored: Vec::new() };
        let mut written = Vec::with_capacity(append.lanes.len());
        for lane in &append.lanes {
            let blind = self.strikes(rng, Planted::BlindAppend, 500);
            let locked = self.is_locked(lane.partition, now);
            let behind = append.wait && self.may_go_behind(lane, append);
            let Some(row) = self.partitions.get_mut(&lane.partition) else {
                outcome.lanes.push(LaneOutcome::Gone);
                written.push(None);
                continue;
            };
            if rng.chance(self.busy) || locked {
                outcome.lanes.push(LaneOutcome::Busy);
                written.push(None);
            } else if row.last_offset != lane.expect && !blind && !behind {
                outcome.lanes.push(LaneOutcome::Moved { last: row.last_offset });
                written.push(None);
            } else {
                let created_at = now.max(row.last_created_at);
                let expect = if behind && !blind { row.last_offset } else { lane.expect };
                if lane.count > 0 {
                    row.last_offset = expect.plus(lane.count as i64);
                    row.last_created_at = created_at;
                }
                written.push(Some((expect.plus(1), created_at)));
                let told = Stamp(created_at.0 - self.early(rng));
                outcome.lanes.push(match expect == lane.expect {
                    true => LaneOutcome::Appended { created_at: told },
                    false => LaneOutcome::Behind { base: expect.plus(1), created_at: told },
                });
            }
        }
        for segment in &append.segments {
            assert_eq!(queen_shards::frames::count(&segment.raw()), Ok(segment.count), "a segment of other frames");
            let Some((first, created_at)) = written[segment.lane as usize] else {
                outcome.stored.push((Codec::Raw, Bytes::new()));
                continue;
            };
            let (codec, mut body) = pack_as_edge(rng, segment.packed.as_ref(), &segment.raw());
            outcome.stored.push((codec, body.clone()));
            if self.strikes(rng, Planted::AlterBody, 20) {
                let mut bytes = body.to_vec();
                *bytes.last_mut().expect("never empty") ^= 1;
                body = bytes.into();
            }
            let row = Segment {
                count: segment.count,
                created_at,
                accepted_at: segment.accepted_at,
                codec,
                flags: segment.flags,
                raw_len: segment.raw_len() as u32,
                keys: segment.keys.clone(),
                body,
            };
            if !self.strikes(rng, Planted::DropSegment, 20) {
                self.segments.insert((self.lane_of(append, segment.lane), first.plus(segment.rel as i64)), row);
            }
        }
        if outcome.lanes.len() > 1 && self.strikes(rng, Planted::ShiftedOutcome, 300) {
            outcome.lanes.rotate_left(1);
        }
        Ok(outcome)
    }

    /// Whether what was written since the lane was verified holds none of the keys of the commit.
    fn may_go_behind(&self, lane: &AppendLane, append: &Append) -> bool {
        let Some(row) = self.partitions.get(&lane.partition) else { return false };
        if row.last_offset <= lane.expect || lane.count == 0 {
            return false;
        }
        let since = (lane.partition, lane.expect.plus(1))..=(lane.partition, row.last_offset);
        let stored = self.segments.range(since.clone()).map(|(_, row)| &row.keys);
        let mut theirs = stored.chain(self.evidence.range(since).map(|(_, row)| &row.keys));
        let ours: BTreeSet<&[u8]> = append.segments.iter().flat_map(|segment| segment.keys.chunks(16)).collect();
        theirs.all(|keys| !keys.chunks(16).any(|key| ours.contains(key)))
    }

    pub fn is_locked(&self, partition: PartitionId, now: Stamp) -> bool {
        self.locked.is_some_and(|(held, until)| held == partition && now < until)
    }

    fn lane_of(&self, append: &Append, lane: u32) -> PartitionId {
        append.lanes[lane as usize].partition
    }

    fn early(&self, rng: &mut Rng) -> i64 {
        if self.strikes(rng, Planted::EarlyStamp, 500) { 2_000_000 } else { 0 }
    }

    /// The fused cursor commit: compare-and-set per row.
    pub fn moves(&mut self, now: Stamp, rng: &mut Rng, moves: &[CursorMove]) -> MoveOutcome {
        let outcomes = moves.iter().map(|step| self.apply(now, rng, step)).collect();
        MoveOutcome { now, moves: outcomes }
    }

    fn apply(&mut self, now: Stamp, rng: &mut Rng, step: &CursorMove) -> CursorOutcome {
        let (blind, lost) = (self.strikes(rng, Planted::BlindMove, 500), self.strikes(rng, Planted::LoseMove, 30));
        let no_letter = self.strikes(rng, Planted::LoseDeadLetter, 500);
        let busy = rng.chance(self.busy) || self.is_locked(step.partition, now) || self.dying == Some(step.group);
        let forgets = self.strikes(rng, Planted::ForgetLease, 300);
        let forgets_mark = self.strikes(rng, Planted::ForgetMark, 500);
        let Some(partition) = self.partitions.get(&step.partition) else { return CursorOutcome::Gone };
        let Some(cursor) = self.cursors.get_mut(&(step.partition, step.group)) else { return CursorOutcome::Gone };
        if busy {
            return CursorOutcome::Busy;
        }
        let (last_offset, log_start) = (partition.last_offset, partition.log_start);
        let fits = match step.lease {
            LeaseMust::Any => true,
            LeaseMust::Live => cursor.live(now),
            LeaseMust::Over => !cursor.live(now) || forgets,
        };
        if !blind && (cursor.version != step.version || !fits) {
            let mut row = cursor.row(now);
            if forgets {
                row.lease_left_us = 0;
            }
            return CursorOutcome::Stale { row, last_offset, log_start };
        }
        if let Some(to) = step.to {
            let mut next = Cursor {
                version: self.numbers.version(),
                committed: to.committed,
                batch_end: to.batch_end,
                retry_count: to.retry_count,
                attempt_start: to.attempt_start,
                attempt_count: to.attempt_count,
                ..*cursor
            };
            match to.lease {
                LeaseTo::Keep => {}
                LeaseTo::Clear => (next.lease, next.expires, next.conflating) = (LeaseId::NONE, Stamp(0), false),
                LeaseTo::Set { id, secs, conflating } => {
                    (next.lease, next.expires) = (id, Stamp(now.0 + secs as i64 * 1_000_000));
                    next.conflating = conflating && !forgets_mark;
                }
            }
            if !lost {
                *cursor = next;
            }
        }
        let row = cursor.row(now);
        if let (Some(letter), false) = (&step.dead_letter, no_letter) {
            self.dead.push(DeadRow { partition: step.partition, group: step.group, letter: letter.clone() });
        }
        CursorOutcome::Moved { version: row.version, lease_left_us: row.lease_left_us, last_offset, log_start }
    }

    pub fn queue_row(&self, id: QueueId) -> QueueRow {
        QueueRow { id, options: self.queues[&id].options }
    }

    pub fn lane_row(&self, id: PartitionId, rng: &mut Rng) -> Option<LaneRow> {
        let row = self.partitions.get(&id)?;
        Some(LaneRow {
            queue: self.queue_row(row.queue),
            partition: id,
            last_offset: row.last_offset,
            log_start: row.log_start,
            last_created_at: Stamp((row.last_created_at.0 - self.early(rng)).max(0)),
        })
    }
}

/// A payload with this in it is refused by the store, again and again.
pub const POISON: &[u8] = b"POISON";

/// Whether `needle` occurs. Payloads of the simulation are short.
fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|at| at == needle)
}

/// Bodies over this are sometimes compressed by the edge; the real limit is larger, the simulated payloads are small.
const PACK_OVER: usize = 600;

fn pack_as_edge(rng: &mut Rng, packed: Option<&Bytes>, frames: &Bytes) -> (Codec, Bytes) {
    match packed {
        Some(packed) => (Codec::Zstd, packed.clone()),
        None if frames.len() > PACK_OVER && rng.chance(100) => (Codec::Zstd, zstd(frames)),
        None => (Codec::Raw, frames.clone()),
    }
}

/// One zstd frame.
pub fn zstd(bytes: &[u8]) -> Bytes {
    zstd::bulk::compress(bytes, 1).expect("compresses").into()
}
