//! What the edge asks of a shard, and what a shard answers: commands in, verdicts out.
//!
//! A verdict is data, expected and per item; see [`crate::effect`] for calls that failed.

use crate::bundle::{Bundle, BundleVerdict, News, PrepareLane, Prepared};
use crate::ids::{GroupId, Key, LeaseId, MessageId, Micros, Offset, PartitionId, Slot, Stamp, TenantId};
use crate::inflated;
use crate::lease_id::LeaseSeed;
use crate::place::LaneKey;
use bytes::Bytes;
use std::sync::Arc;

/// The group of pops and acks that name none. Source: data plane 1.6.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// One request, or the part of it that one shard owns.
#[derive(Debug)]
pub enum Command {
    /// Answered by [`Verdict::Push`], one [`DraftVerdict`] per draft, in order.
    Push { drafts: Vec<Draft> },
    /// As a push, but into the spool whatever the store says: push maintenance is on, or no key can be hashed yet
    /// (`keys` may be empty then). Keys may repeat within a draft: the drain judges. Answered by [`Verdict::Push`].
    Spool { drafts: Vec<Draft> },
    /// One ask of one shard for what can be delivered now; never waits. Answered by [`Verdict::Pop`].
    Pop(Pop),
    /// The pop of this slot is not waited for any longer: unless a claim for it is on its way, it is answered at once, with
    /// what it has. Not answered itself; nothing when the pop has been answered.
    Withdraw,
    /// Wake the slot once there may be something for this pop; see [`Effect::Wake`](crate::effect::Effect::Wake).
    /// Not answered. At once, when there is something already.
    Watch(Watch),
    /// Forget the watch of the slot. Not answered.
    Unwatch,
    /// Answered by [`Verdict::Ack`], one [`SetVerdict`] per set, in order.
    Ack { sets: Vec<AckSet> },
    /// What this shard knows of its part of a bundle; reserves and writes nothing. A set without a lease of its own may be
    /// under one of `leases`: the sole one, or the one that holds its cursor. Answered by [`Verdict::Prepared`].
    Prepare { lanes: Vec<PrepareLane>, sets: Vec<AckSet>, leases: Vec<LeaseId> },
    /// Commit a prepared bundle. Answered by [`Verdict::Bundle`].
    Bundle(Bundle),
    /// What bundle commits did to what this shard owns, on the store of that number. Answered by [`Verdict::Done`].
    Heard { store: u32, news: Vec<News> },
    /// The answer that held these claims could not be written: free them as if they had not been made. Not answered.
    GiveBack { lease: LeaseId, claims: Vec<(PartitionId, GroupId)> },
    /// Options of the queue changed, it was deleted, or its cursors were moved: forget what is remembered of it, so
    /// that the next command reads the store. Answered by [`Verdict::Done`].
    QueueChanged { tenant: TenantId, queue: Arc<str> },
    /// A partition of this shard grew behind its back: read it, and offer it to its groups. Answered by [`Verdict::Done`].
    LaneGrew { lane: LaneKey },
    /// A group of that name may have been deleted, in that queue or in any of the tenant, or has a record that it had not: the
    /// same for its cursors. Answered by [`Verdict::Done`], without asking the store.
    GroupChanged { tenant: TenantId, queue: Option<Arc<str>>, group: Arc<str> },
}

/// Messages of one request for one partition, first occurrences of a key only (layer 1 ran at the edge).
#[derive(Clone, Debug)]
pub struct Draft {
    pub lane: LaneKey,
    /// Number of messages; at least 1.
    pub count: u32,
    /// 16 bytes a message, little-endian [`Key`]s, in order.
    pub keys: Bytes,
    /// Every key is a minted message id, so none can be in the window.
    pub all_minted: bool,
    /// The frames, raw, back to back: see [`crate::frames`]. Empty where they are held packed only: see [`Draft::raw`].
    pub frames: Bytes,
    /// The frames as one zstd frame: as a client packed them, or when the edge found it worth it. Stored as it is unless
    /// messages are left out or the draft is merged with others. The edge has checked that it inflates to `count` frames.
    pub packed: Option<Bytes>,
    /// OR of the frames' flags.
    pub flags: u8,
}

impl Draft {
    /// Bytes of the frames, at hand or not. Constant time.
    pub fn raw_len(&self) -> usize {
        inflated::raw_len(&self.frames, self.packed.as_ref())
    }

    /// The frames, inflated where they are not at hand.
    pub fn raw(&self) -> Bytes {
        inflated::raw(&self.frames, self.packed.as_ref())
    }
}

/// Where a pop claims from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopFrom {
    /// Any partitions of one queue; registers a named group.
    Queue { tenant: TenantId, queue: Arc<str> },
    /// One named partition; creates nothing.
    Partition(LaneKey),
}

impl PopFrom {
    /// The name of the queue.
    pub fn queue(&self) -> &Arc<str> {
        match self {
            PopFrom::Queue { queue, .. } => queue,
            PopFrom::Partition(lane) => &lane.queue,
        }
    }
}

/// Where a cursor of a group starts that is not registered yet. Source: data plane 4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The oldest retained message. Queue mode is always this.
    All,
    /// Only what is stored after the registration.
    New,
    /// The first stored group at or after an instant.
    At(Stamp),
}

#[derive(Clone, Debug)]
pub struct Pop {
    pub from: PopFrom,
    /// A queue that is not there is made: by a pop that names it, and no partition of it. Source: data plane 4.3.
    pub makes_queue: bool,
    /// [`QUEUE_MODE`] when the request names none.
    pub group: Arc<str>,
    pub start: Start,
    /// Messages wanted at most; at least 1.
    pub batch: u32,
    /// Partitions to claim at most.
    pub partitions: u32,
    /// The same where the group turns out to be conflating. Source: data plane 4.10.
    pub conflating_partitions: u32,
    /// What the request says of conflation. The group's record decides; this counts where the pop makes the record.
    pub conflation: Option<bool>,
    /// Bytes wanted at most, of inflated records and of what is said of each message; one message is given however large.
    pub bytes: u64,
    pub said: Said,
    /// Lease length the request names; the queue's otherwise.
    pub lease_secs: Option<u32>,
    pub auto_ack: bool,
    /// The lease that earlier asks of this call already hold claims under.
    pub lease: Option<LeaseId>,
    pub seed: LeaseSeed,
    /// Later asks or further queues may add claims to this lease.
    pub more: bool,
    /// On a queue with a `minPopWaitTime`: claim nothing, only count, unless at least so many messages are ready.
    /// Source: data plane 4.5.
    pub at_least: u32,
}

/// What an answer says of each message beside its frame. It counts with the frame: the names of a tiny message may be many
/// times its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Bytes, without the name of the partition.
    pub bytes: u32,
    /// How often the name of the partition is said.
    pub names: u32,
}

impl Said {
    /// Bytes said of each message of this partition.
    pub fn of_each(self, partition: &str) -> u64 {
        self.bytes as u64 + self.names as u64 * partition.len() as u64
    }
}

#[derive(Clone, Debug)]
pub struct Watch {
    pub from: PopFrom,
    pub group: Arc<str>,
    pub start: Start,
}

/// The consumer's word in an ack. Source: data plane 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    Completed,
    Failed,
    Retry,
    Dlq,
}

/// Acks of one call with one partition and one lease id. Source: data plane 5.4.
#[derive(Clone, Debug)]
pub struct AckSet {
    pub tenant: TenantId,
    pub partition: PartitionId,
    pub group: Arc<str>,
    /// `None`: lease-less. A malformed id is `Some(LeaseId::NONE)`, which nobody holds.
    pub lease: Option<LeaseId>,
    pub items: Vec<AckItem>,
}

#[derive(Clone, Debug)]
pub struct AckItem {
    pub key: Key,
    pub word: Disposition,
    /// Reason sent along, cleaned so that the store takes it; `None` when absent or empty.
    pub error: Option<Box<str>>,
}

/// The answer to one command.
#[derive(Debug)]
pub enum Verdict {
    Push(Vec<DraftVerdict>),
    Pop(PopVerdict),
    Ack(Vec<SetVerdict>),
    Prepared(Prepared),
    Bundle(BundleVerdict),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftVerdict {
    /// The items that are not duplicates have consecutive offsets from `base`, in draft order.
    Stored { base: Offset, duplicates: Vec<Duplicate> },
    /// In the spool: durable on this broker's disk, stored later, exactly once.
    Buffered,
    /// Neither stored nor spooled.
    Failed,
    /// Refused alone, nothing written; the text names the cause. Wire word `error`.
    Refused(&'static str),
}

/// One item of a draft whose key is stored inside the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Position in the draft.
    pub index: u32,
    /// Offset of the original.
    pub offset: Offset,
    /// Id of the original; `None` when its text is gone (zero id on the wire).
    pub id: Option<MessageId>,
}

#[derive(Debug, Default)]
pub struct PopVerdict {
    pub claims: Vec<Claim>,
    /// The lease the claims are under; `None` with auto-ack or without claims.
    pub lease: Option<LeaseId>,
    /// Messages that are ready, counted up to `at_least`, when nothing was claimed because of it.
    pub ready: u32,
    /// The queue's `minPopWaitTime` in milliseconds.
    pub fill_wait_ms: u32,
    /// The store could not be asked; the wire answers 500.
    pub failed: bool,
    /// The same, and it passes: a group could not be met now, for a lock perhaps that a seek holds.
    pub passes: bool,
    /// Whether the group is conflating; `None`: there is no such queue or partition, so nobody says.
    pub conflation: Option<bool>,
}

/// What one pop got of one partition.
#[derive(Clone, Debug)]
pub struct Claim {
    pub partition: PartitionId,
    pub group: GroupId,
    pub name: Arc<str>,
    /// First and last offset delivered, inclusive. Of a conflating group one message, at the end of what is leased.
    pub start: Offset,
    pub end: Offset,
    /// `deliveryAttempt`. Source: data plane 4.8.
    pub attempt: u32,
    /// Stored records that hold the span, each beginning where the one before ends; they may begin before `start` and end
    /// after `end`.
    pub records: Vec<Record>,
}

/// How the bytes of a record are stored. The number is the one on the wire and in the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Raw = 0,
    Zstd = 1,
}

/// One segment as stored: the unit a framed pop sends.
#[derive(Clone, Debug)]
pub struct Record {
    pub base: Offset,
    pub created_at: Stamp,
    pub count: u32,
    pub codec: Codec,
    /// OR of the frames' flags.
    pub flags: u8,
    /// Inflated size.
    pub raw_len: u32,
    pub body: Bytes,
    /// The inflated frames, when they happen to be at hand.
    pub frames: Option<Bytes>,
    /// 16 bytes a message: the keys of the record, so that an ack of it resolves from memory.
    pub keys: Bytes,
}

impl Record {
    /// Last offset, inclusive.
    pub fn last(&self) -> Offset {
        self.base.plus(self.count as i64 - 1)
    }
}

/// Verdicts of one ack set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetVerdict {
    /// One per item, in order.
    pub items: Vec<AckOutcome>,
    /// This call ended the lease of the set.
    pub released: bool,
    /// This call closed a conflating lease.
    pub conflated: Option<Conflated>,
}

impl SetVerdict {
    /// `n` items with one outcome, nothing released.
    pub(crate) fn all(outcome: AckOutcome, n: usize) -> SetVerdict {
        SetVerdict { items: vec![outcome; n], released: false, conflated: None }
    }
}

/// Messages of a conflating lease that were completed without being delivered. Source: data plane 5.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflated {
    /// The item of the set that closed the lease.
    pub item: u32,
    pub messages: u64,
}

/// What became of one ack item. Source: data plane 5.3 and 5.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    Accepted,
    /// Accepted, and it is the message that was dead-lettered.
    DeadLettered,
    /// Completed, below the cursor.
    Noop,
    /// Failed, retry or dlq, below the cursor.
    AlreadyCommitted,
    Unresolvable,
    InvalidLease,
    ConsumerNotFound,
    NotOwned,
    DlqRejected,
    /// The store failed; the lease will expire and the message redeliver.
    StoreFailed,
}

impl AckOutcome {
    /// Whether the wire says `success`. Source: data plane 5.5.
    pub fn is_success(self) -> bool {
        matches!(self, AckOutcome::Accepted | AckOutcome::DeadLettered | AckOutcome::Noop)
    }
}

/// An event of the outer world for a shard.
#[derive(Debug)]
pub enum Event {
    /// PostgreSQL's clock said `now` before `at` on the monotonic clock. The first reading comes before any command.
    Clock {
        now: Stamp,
        at: Micros,
    },
    Command {
        slot: Slot,
        command: Command,
    },
    Appended {
        commit: crate::ids::CommitId,
        result: Result<crate::effect::AppendOutcome, crate::effect::StoreError>,
    },
    Moved {
        commit: crate::ids::CommitId,
        result: Result<crate::effect::MoveOutcome, crate::effect::StoreError>,
    },
    Bundled {
        commit: crate::ids::CommitId,
        result: Result<crate::bundle::BundleOutcome, crate::effect::StoreError>,
    },
    Returned {
        call: crate::ids::CallId,
        result: Result<crate::effect::Reply, crate::effect::StoreError>,
    },
    /// Whether the store answered a moment ago. Comes every second or so.
    Store {
        up: bool,
    },
    /// A record is on disk, or could not be written. In the order of their effects, and before the record is drained.
    Spooled {
        token: u64,
        written: bool,
    },
    /// The oldest records of lanes of this shard, in order, to be stored now.
    Drain {
        records: Vec<Drained>,
    },
    /// Refused records of which some may be of this shard: they are tried again now.
    RefusedAgain {
        records: Vec<SpoolId>,
    },
    /// The same: they are set aside, and their lanes go on.
    RefusedGone {
        records: Vec<SpoolId>,
    },
    /// What the disk held when the broker started: records by hash of their lane's names. Comes once; until then every
    /// lane may have some.
    SpoolFound {
        lanes: Vec<(u64, u32)>,
    },
    /// Whether every record on disk was handed over, and further ones are at once, `but` for lanes of this shard, by hash of
    /// their names, of which some wait on disk for a refused one. What a shard still misses of others then is lost: it could
    /// not be read.
    SpoolRead {
        all: bool,
        but: Vec<u64>,
    },
    /// The store is another one than before, after a failover or a restore: what is remembered of it is void. Its clock said
    /// `now` before `at`. What is asked of the store from this turn on is asked of the other one.
    OtherStore {
        now: Stamp,
        at: Micros,
    },
    /// What other brokers committed, as their log says: lanes of this shard that may have grown, as they are now; cursors
    /// whose lease ended, and what they have left; queues that changed. `began`: when that was asked for. `lost`: and further
    /// things that nobody knows.
    Log {
        began: Micros,
        lanes: Vec<LogLane>,
        freed: Vec<(PartitionId, GroupId, Left)>,
        changed: Vec<(TenantId, Arc<str>)>,
        lost: bool,
    },
}

/// What a cursor has left whose lease another broker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Nothing,
    Something,
    /// Something, but another lease holds it until then, unless it is ended sooner.
    Leased(Stamp),
}

/// A partition that another broker wrote.
#[derive(Clone, Debug)]
pub struct LogLane {
    pub key: LaneKey,
    pub partition: PartitionId,
    pub last_offset: Offset,
    pub log_start: Offset,
    pub last_created_at: Stamp,
}

/// A draft on its way to the spool.
#[derive(Clone, Debug)]
pub struct SpoolRecord {
    /// PostgreSQL's clock when the broker took the draft, as well as it knew: what dedup is judged by.
    pub accepted_at: Stamp,
    pub draft: Draft,
}

/// Where a record lies in the spool: a file's number and a position in it. Says nothing to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpoolId {
    pub file: u64,
    pub at: u64,
}

/// A record that comes back. Its keys are hashed by now.
#[derive(Clone, Debug)]
pub struct Drained {
    pub id: SpoolId,
    pub record: SpoolRecord,
}

/// What became of a drained record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainVerdict {
    /// Stored, but for so many that were stored before; it may be removed.
    Stored { duplicates: u32 },
    /// The store refuses it alone, for good. Its lane waits for [`Event::RefusedAgain`] or [`Event::RefusedGone`]. `written`:
    /// lanes that the shard's append commits have written so far, which says that the store takes something.
    Refused { written: u64 },
}

/// What is known of PostgreSQL's clock after it said `stamp` in an answer that was asked for at `asked` and came at `at`:
/// a reading, and the moment of ours at which it showed that much at least.
///
/// It said so at some moment between the two, so at `at` it shows at most what the answer took more. What was `known` stays
/// if it agrees with that: an answer that came late, from a server that stood still, says less than what is known. It goes if
/// it does not: the clock ran ahead of it, or was set back.
pub fn reading(known: Option<(Stamp, Micros)>, stamp: Stamp, asked: Micros, at: Micros) -> (Stamp, Micros) {
    let latest = Stamp(stamp.0.saturating_add(at.since(asked) as i64));
    match known {
        Some((read, read_at)) if (stamp..=latest).contains(&Stamp(read.0 + at.since(read_at) as i64)) => {
            (read, read_at)
        }
        _ => (stamp, at),
    }
}

/// The moment at which PostgreSQL's clock shows `at`, given a reading of both; that of the reading where it had passed.
pub fn until(at: Stamp, read: Stamp, read_at: Micros) -> Micros {
    read_at.plus(at.0.saturating_sub(read.0).max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the clock shows at `at` according to a reading.
    fn shown((stamp, read_at): (Stamp, Micros), at: u64) -> i64 {
        stamp.0 + Micros(at).since(read_at) as i64
    }

    const AHEAD: i64 = 1_000_000_000;

    /// Said at `said`, asked for at `asked`, here at `at`; PostgreSQL's clock is ours and [`AHEAD`].
    fn read(known: Option<(Stamp, Micros)>, asked: u64, said: u64, at: u64) -> Option<(Stamp, Micros)> {
        Some(reading(known, Stamp(said as i64 + AHEAD), Micros(asked), Micros(at)))
    }

    #[test]
    fn an_answer_that_comes_late_does_not_put_the_clock_back() {
        let known = read(None, 100, 150, 200);
        assert_eq!(known.map(|known| shown(known, 200)), Some(150 + AHEAD), "a lower bound");
        // A server that stood still for three seconds after it had read its clock.
        let late = read(known, 1000, 1100, 3_001_000);
        assert_eq!(late, known);
        // One that stood still before it read it says more than was known.
        let better = read(known, 1000, 3_000_990, 3_001_000);
        assert_eq!(better.map(|known| shown(known, 3_001_000)), Some(3_000_990 + AHEAD));
    }

    #[test]
    fn a_clock_that_was_set_is_followed_either_way() {
        let known = read(None, 100, 150, 200);
        for set in [-300_000_000, 300_000_000] {
            let stamp = Stamp(5150 + AHEAD + set);
            assert_eq!(reading(known, stamp, Micros(5100), Micros(5200)), (stamp, Micros(5200)), "{set}");
        }
    }

    /// Our clock runs a ten-thousandth faster for an hour: what is known is never ahead by more than an answer takes.
    #[test]
    fn clocks_that_run_apart_are_brought_together() {
        let mut known = None;
        for second in 1..3600u64 {
            let at = second * 1_000_000;
            let theirs = at as i64 - at as i64 / 10_000 + AHEAD;
            known = Some(reading(known, Stamp(theirs - 500), Micros(at - 1000), Micros(at)));
            let error = known.map(|known| shown(known, at) - theirs).unwrap_or_default();
            assert!((-500..=1000).contains(&error), "{error} at {second}");
        }
    }
}
