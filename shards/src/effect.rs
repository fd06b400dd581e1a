//! What a shard asks of the store, and what comes back. Shapes only; the SQL is the edge's.
//!
//! Two kinds of fused commit, each with a connection of its own, and cold calls. In every answer PostgreSQL's clock
//! comes along; no broker clock decides anything that is stored.

use crate::bundle::Bundle;
use crate::command::{Codec, DrainVerdict, Record, SpoolId, SpoolRecord, Start, Verdict};
use crate::ids::{
    CallId, CommitId, GroupId, Key, LeaseId, MessageId, Offset, PartitionId, QueueId, Slot, Stamp, TenantId,
};
use crate::inflated;
use crate::place::LaneKey;
use crate::sealed::{RowId, Run, RunId, Slice};
use bytes::Bytes;
use std::sync::Arc;

#[derive(Debug)]
pub enum Effect {
    /// At most one in flight per shard; answered by `Event::Appended`.
    Append { commit: CommitId, append: Append },
    /// At most one in flight per shard; answered by `Event::Moved`.
    Move { commit: CommitId, moves: Vec<CursorMove> },
    /// At most one in flight per shard; each bundle is decided by itself. Once the outcome is known, the owners hear of it
    /// ([`crate::bundle::news`]) before `Event::Bundled` answers.
    Bundle { commit: CommitId, bundles: Vec<Arc<Bundle>> },
    /// Any number up to a bound in flight; answered by `Event::Returned`.
    Call { call: CallId, ask: Call },
    /// To disk; answered by `Event::Spooled` under the same token. Records of one shard keep their order.
    Spool { token: u64, record: SpoolRecord },
    /// A drained record is decided, durably.
    Drained { id: SpoolId, verdict: DrainVerdict },
    /// Exactly one per command that is answered.
    Reply { slot: Slot, verdict: Verdict },
    /// A watch fired; it fires no more, and is there until `Command::Unwatch`. A hint: what it saw may be taken by the time
    /// the slot asks.
    Wake { slot: Slot },
}

/// One fused push commit: lanes in ascending id order, each at most once.
#[derive(Debug, Default)]
pub struct Append {
    pub lanes: Vec<AppendLane>,
    /// In lane order, then offset order.
    pub segments: Vec<AppendSegment>,
    /// Of a lane that others write all the time (bundles, other brokers): it is alone here, its row is waited for, and it
    /// is written behind what came meanwhile, unless one of its keys is among that.
    pub wait: bool,
}

/// Compare-and-set of one partition row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendLane {
    pub partition: PartitionId,
    /// The last offset the engine verified; the lane is written only where the locked row still says so.
    pub expect: Offset,
    /// Messages added, over all segments of the lane; 0 only confirms that the row is as expected.
    pub count: u32,
}

/// One row of `segments`, `rel` offsets after the lane's `expect + 1`.
#[derive(Clone, Debug)]
pub struct AppendSegment {
    /// Index into `Append::lanes`.
    pub lane: u32,
    pub rel: u32,
    pub count: u32,
    pub flags: u8,
    /// Of what waited in a spool: when it was accepted; see [`crate::limits::ACCEPTED_JOIN_US`].
    pub accepted_at: Option<Stamp>,
    /// 16 bytes a message.
    pub keys: Bytes,
    /// Raw frames; empty where they are held packed only.
    pub frames: Bytes,
    /// The stored form when it exists already; otherwise the edge packs `frames` (raw when small).
    pub packed: Option<Bytes>,
}

impl AppendSegment {
    /// Bytes of the frames, at hand or not. Constant time.
    pub fn raw_len(&self) -> usize {
        inflated::raw_len(&self.frames, self.packed.as_ref())
    }

    /// The frames, inflated where they are not at hand.
    pub fn raw(&self) -> Bytes {
        inflated::raw(&self.frames, self.packed.as_ref())
    }
}

#[derive(Debug)]
pub struct AppendOutcome {
    /// PostgreSQL's clock, read by the statement.
    pub now: Stamp,
    /// One per lane, in order.
    pub lanes: Vec<LaneOutcome>,
    /// One per segment, in order: how it was stored (empty when the lane was not written).
    pub stored: Vec<(Codec, Bytes)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOutcome {
    /// Written whole, with this stamp on every segment.
    Appended { created_at: Stamp },
    /// Written whole from `base` on, behind what another writer stored. Only when it waited.
    Behind { base: Offset, created_at: Stamp },
    /// Another writer moved the lane: `last` is what the row says. Nothing written.
    Moved { last: Offset },
    /// The row was locked by somebody. Nothing written.
    Busy,
    /// No such partition any more.
    Gone,
}

/// Compare-and-set of one cursor row.
#[derive(Clone, Debug)]
pub struct CursorMove {
    pub partition: PartitionId,
    pub group: GroupId,
    /// The version the decision was made on.
    pub version: i64,
    /// What the row's lease must be on PostgreSQL's clock, else the outcome is `Stale`.
    pub lease: LeaseMust,
    /// The new state; `None` only confirms that the row is as remembered.
    pub to: Option<CursorTo>,
    pub dead_letter: Option<DeadLetter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMust {
    /// Anything.
    Any,
    /// Held and not over.
    Live,
    /// None, or over.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorTo {
    pub committed: Offset,
    pub lease: LeaseTo,
    pub batch_end: Option<Offset>,
    pub retry_count: u32,
    pub attempt_start: Option<Offset>,
    pub attempt_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTo {
    Keep,
    Clear,
    /// Expires `secs` after PostgreSQL's clock.
    Set {
        id: LeaseId,
        secs: u32,
        /// Only the message at `batch_end` was delivered; see [`CursorRow::conflating`].
        conflating: bool,
    },
}

/// A copy of a message that is given up, filed with the move that gives it up.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub offset: Offset,
    pub id: MessageId,
    pub transaction_id: Bytes,
    pub payload: Bytes,
    /// The payload is an encryption envelope.
    pub encrypted: bool,
    pub error: Box<str>,
    /// Failures charged before.
    pub retry_count: u32,
}

#[derive(Debug)]
pub struct MoveOutcome {
    pub now: Stamp,
    /// One per move, in order.
    pub moves: Vec<CursorOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorOutcome {
    /// Applied (or confirmed).
    Moved { version: i64, lease_left_us: i64, last_offset: Offset, log_start: Offset },
    /// The row is not as remembered, or its lease is not what it must be. Nothing written.
    Stale { row: CursorRow, last_offset: Offset, log_start: Offset },
    /// The row was locked by somebody.
    Busy,
    /// No such cursor or partition any more.
    Gone,
    /// The commit had no answer, and another one has changed the row since: whether it was moved, nobody knows.
    Unknown,
}

/// A cursor as stored. Times are relative to PostgreSQL's clock at the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorRow {
    pub version: i64,
    pub committed: Offset,
    pub lease: LeaseId,
    /// Microseconds the lease has left; 0 or less: over (or none).
    pub lease_left_us: i64,
    pub batch_end: Option<Offset>,
    /// Of the span up to `batch_end` only the message there was delivered: its key means all of it, on any broker.
    /// Source: rule 21.
    pub conflating: bool,
    pub retry_count: u32,
    pub attempt_start: Option<Offset>,
    pub attempt_count: u32,
}

/// A cold call. Each may be repeated without harm.
#[derive(Debug)]
pub enum Call {
    /// Create what is missing of queues and partitions, and read them. `Reply::Lanes`, in order.
    Provision { lanes: Vec<LaneKey> },
    /// Read a partition by its names. `Reply::Lanes` with one entry.
    FindLane { lane: LaneKey },
    /// Read partitions by number. `Reply::Found`, in order.
    FindPartitions { tenant: TenantId, ids: Vec<PartitionId> },
    /// Read a queue by name; makes nothing. `Reply::Queue`.
    FindQueue { tenant: TenantId, queue: Arc<str> },
    /// Read a queue (creating it where the contact says so), contact or register the group; a registration fixes where its
    /// cursors begin in the partitions that are there. `Reply::Group`.
    OpenGroup { tenant: TenantId, queue: Arc<str>, group: Arc<str>, contact: Contact },
    /// Partitions of the queue that belong to shard `shard` of `shards` and hold something the group has not
    /// completed, ascending ids after `after`, at most `limit`, of at most `look` partitions that are looked at.
    /// `Reply::Scanned`.
    Scan { queue: QueueId, group: GroupId, shard: u32, shards: u32, after: PartitionId, limit: u32, look: u32 },
    /// Make missing cursors of one group (start from its record; without one, from `start`) and read them all.
    /// `Reply::Cursors`, in order.
    SeedCursors { group: GroupId, start: Start, partitions: Vec<PartitionId> },
    /// Cursors of named groups on partitions, for acks; made only where a registration left them to be made.
    /// `Reply::FoundCursors`, in order.
    FindCursors { cursors: Vec<(PartitionId, Arc<str>)> },
    /// Keys stored at offsets in `from..=to` (segments and the evidence that outlives them), at most about `limit`
    /// keys of whole rows, ascending; `newest_first`: the highest rows that fit, still in ascending order.
    /// With `since`, only rows at or after that stamp. `Reply::Keys`.
    ReadKeys { partition: PartitionId, from: Offset, to: Offset, since: Option<Stamp>, limit: u32, newest_first: bool },
    /// Records that hold offsets in `from..=to`, ascending, whole rows until `bytes` (inflated) or `messages` are
    /// reached; at least one row when there is one. `Reply::Records`.
    ReadRecords { partition: PartitionId, from: Offset, to: Offset, bytes: u64, messages: u32 },
    /// The newest record that begins at or below `to` and is not younger than `not_after`. `Reply::Records`, at most one.
    ReadNewest { partition: PartitionId, to: Offset, not_after: Stamp },
    /// Seal a slice, off the shard's thread, and store its run, whole or not at all. One that is there already is as
    /// good: runs of equal ends are equal. `Reply::Sealed`.
    SealRun { partition: PartitionId, slice: Slice },
    /// Sealed runs of a partition after `after`, ascending, until `bytes` are reached; at least one when there is one.
    /// `Reply::Runs`.
    ReadRuns { partition: PartitionId, after: Option<RunId>, bytes: u64 },
    /// Rows of sealed runs. `Reply::RunRows`, in order.
    ReadRunRows { partition: PartitionId, rows: Vec<RowId> },
    /// Remove sealed runs. `Reply::Done`.
    DropRuns { partition: PartitionId, runs: Vec<RunId> },
}

/// How a pop meets a group. Source: data plane 4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// `__QUEUE_MODE__` on a queue: create the queue, no record.
    QueueMode,
    /// A named group on a queue: create the queue, register once, seed every partition.
    Register(Start),
    /// The same for a pop that asks for conflation, which the record then says.
    RegisterConflating(Start),
    /// A named group on a queue that was found by namespace or task: create no queue, but register.
    Found(Start),
    /// Pinned, or of queue mode on a queue that was found: create no queue, write no record.
    Pinned,
    /// Pinned or found, and asks for conflation: create no queue, but register.
    PinnedConflating(Start),
}

impl Contact {
    /// Whether a queue that is not there is made.
    pub fn makes_queue(self) -> bool {
        matches!(self, Contact::QueueMode | Contact::Register(_) | Contact::RegisterConflating(_))
    }
}

#[derive(Debug)]
pub enum Reply {
    Lanes(Vec<Option<LaneRow>>),
    Found(Vec<Option<FoundLane>>),
    Queue(Option<QueueRow>),
    /// `None`: no such queue (where the contact makes none, or it was deleted at once).
    Group(Option<GroupRow>),
    /// `next`: where to go on; `None`: there are no partitions left.
    Scanned {
        rows: Vec<ScanRow>,
        next: Option<PartitionId>,
        now: Stamp,
    },
    Cursors {
        rows: Vec<Option<SeededCursor>>,
        now: Stamp,
    },
    FoundCursors(Vec<Option<(GroupId, CursorRow)>>),
    /// `complete`: nothing of the asked range is left out; otherwise go on after the last row (or before the first).
    Keys {
        rows: Vec<KeysRow>,
        complete: bool,
        now: Stamp,
    },
    /// `log_start` is read with the records.
    Records {
        records: Vec<Record>,
        log_start: Offset,
    },
    Sealed(Run),
    /// `complete`: there are none after these.
    Runs {
        runs: Vec<RunRow>,
        complete: bool,
    },
    /// `None`: no such row any more.
    RunRows(Vec<Option<Bytes>>),
    Done,
}

/// Queue options that the engine acts on. Source: data plane 8.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub lease_secs: u32,
    pub retry_limit: u32,
    /// `deadLetterQueue` OR `dlqAfterMaxRetries`.
    pub dead_letter: bool,
    pub delay_secs: u32,
    pub window_secs: u32,
    pub dedup_secs: u32,
    pub fill_wait_ms: u32,
    pub encrypted: bool,
    /// `completedRetentionSeconds`: so long acks of completed messages resolve, if that is longer than the dedup window.
    pub completed_secs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRow {
    pub id: QueueId,
    pub options: Options,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRow {
    pub queue: QueueRow,
    pub partition: PartitionId,
    pub last_offset: Offset,
    pub log_start: Offset,
    /// Stamp of the newest message, 0 when there never was one.
    pub last_created_at: Stamp,
}

#[derive(Clone, Debug)]
pub struct FoundLane {
    pub queue: Arc<str>,
    pub partition: Arc<str>,
    pub row: LaneRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRow {
    pub queue: QueueRow,
    pub group: GroupId,
    pub registered: bool,
    /// The record says so; it never changes. Source: data plane 4.10.
    pub conflation: bool,
    /// The record was made by this call. Where it says conflation, those who met the group before must look again, and hear so
    /// ([`crate::command::Command::GroupChanged`]) before `Event::Returned` answers.
    pub made: bool,
}

#[derive(Clone, Debug)]
pub struct ScanRow {
    pub partition: PartitionId,
    pub name: Arc<str>,
    pub last_offset: Offset,
    pub log_start: Offset,
    pub last_created_at: Stamp,
    pub cursor: Option<CursorRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeededCursor {
    pub row: CursorRow,
    pub last_offset: Offset,
    pub log_start: Offset,
}

#[derive(Clone, Debug)]
pub struct KeysRow {
    pub base: Offset,
    pub created_at: Stamp,
    /// When it was accepted, of what waited in a spool.
    pub accepted_at: Option<Stamp>,
    /// 16 bytes a message.
    pub keys: Bytes,
}

/// A sealed run as stored, without its rows.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub id: RunId,
    /// See [`Run::encode`].
    pub run: Bytes,
    /// Stamp of the newest message below the run; `None` when no key is stored there.
    pub before: Option<Stamp>,
}

/// Reads key `i` of a `keys` column.
pub fn key_at(keys: &[u8], i: usize) -> Key {
    Key(u128::from_le_bytes(keys[16 * i..16 * i + 16].try_into().expect("16 bytes")))
}

/// Why a store call has no answer. Each variant says what is known about the rows.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was sent, or it was rolled back for a reason that passes. Retry, or spool the pushes.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// PostgreSQL answered and rolled back. The same call would be refused again.
    #[error("store refused: {0}")]
    Refused(String),
    /// Sent, no answer: the rows may be there. Only a retry under the same keys is safe.
    #[error("outcome is unknown: {0}")]
    Unknown(String),
}
