//! Bundles: the operations of one `/transaction`, all or nothing.
//!
//!     edge > Command::Prepare at each owner (see [`crate::prepare`]): where lanes end, how cursors move
//!          > Command::Bundle at the connection's shard > close_bundles > Effect::Bundle > settle_bundles > verdict
//!     edge, once committed > Command::Heard at each owner > windows, tails, cursors follow
//!
//! Nothing is reserved across shards: what an owner prepared is true only if the rows are still as it saw them, and
//! PostgreSQL says so under its locks. A refusal is confirmed the same way, by a bundle that writes nothing.
//!
//! Holds: at most one bundle commit in flight; within one commit every lane and every cursor is named once, so that
//! each bundle is decided by itself; whoever has to wait for that keeps its turn. Source: data plane 7.

use crate::command::{AckOutcome, Codec, Draft, Record, Verdict};
use crate::effect::{CursorMove, CursorTo, Effect, StoreError};
use crate::ids::{CommitId, GroupId, Key, Micros, Offset, PartitionId, Slot, Stamp};
use crate::limits::{BUNDLE_ROWS_MAX, COMMIT_BYTES_MAX};
use crate::place::{LaneKey, owner_of_partition};
use crate::shard::Shard;
use bytes::Bytes;
use hashbrown::HashSet;
use std::collections::VecDeque;
use std::sync::Arc;

/// A lane that a bundle wants to push to, as its owner is asked about it.
#[derive(Clone, Debug)]
pub struct PrepareLane {
    pub lane: LaneKey,
    /// 16 bytes a message.
    pub keys: Bytes,
    pub all_minted: bool,
}

/// What an owner knows of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparedLane {
    /// Every key stored at or below `verified` inside the window was looked at; `duplicate`: the first key of the bundle
    /// that is among them, by its place.
    Known { partition: PartitionId, verified: Offset, duplicate: Option<u32> },
    /// Not there when it was looked for.
    Missing,
    /// The store could not be asked.
    Failed,
}

/// How the cursor of one ack set would move.
#[derive(Clone, Debug, Default)]
pub struct PreparedSet {
    /// One per item, in order.
    pub items: Vec<AckOutcome>,
    /// `None`: there is no cursor, or the store could not be asked; the outcomes tell.
    pub cursor_move: Option<CursorMove>,
    /// The queue of the partition, where there is a move.
    pub queue: Option<Arc<str>>,
    /// Positions that the move retires undelivered.
    pub conflated: u64,
}

/// The answer to [`Command::Prepare`](crate::command::Command::Prepare): one entry per lane and per set, in order.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// On which store: how often it had become another one.
    pub store: u32,
    pub lanes: Vec<PreparedLane>,
    pub sets: Vec<PreparedSet>,
}

/// What one bundle writes. Each lane and each cursor at most once.
#[derive(Debug, Default)]
pub struct Bundle {
    /// Of what was prepared. On another store nothing of it means anything.
    pub store: u32,
    pub lanes: Vec<BundleLane>,
    /// A move without `to` only confirms the row.
    pub moves: Vec<CursorMove>,
}

#[derive(Debug)]
pub struct BundleLane {
    pub draft: Draft,
    /// `None`: made by the commit, unless it is there by then.
    pub partition: Option<PartitionId>,
    /// The owner judged the draft against everything up to here; the commit judges what came after.
    pub verified: Offset,
    /// Only confirm that the partition is there and ends no earlier.
    pub confirm: bool,
}

impl BundleLane {
    /// Messages to be written.
    pub fn count(&self) -> u32 {
        if self.confirm { 0 } else { self.draft.count }
    }
}

#[derive(Debug)]
pub struct BundleOutcome {
    pub now: Stamp,
    /// One per bundle, in order.
    pub bundles: Vec<BundleDecision>,
    /// One per lane of all bundles, in order: how it was packed.
    pub stored: Vec<(Codec, Bytes)>,
}

/// A bundle is committed when every lane and every cursor of it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleDecision {
    /// The commit had no answer, and nothing tells whether this bundle was written. The rest says nothing then.
    pub unknown: bool,
    pub lanes: Vec<LaneDecision>,
    pub moves: Vec<MoveDecision>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneDecision {
    /// Where the messages begin, if the bundle is committed.
    Holds { partition: PartitionId, base: Offset, created_at: Stamp },
    /// A key was stored after what the owner saw, by its place in the draft.
    Duplicate { index: u32 },
    /// The partition is another one, or none.
    Gone,
    /// The commit had no answer, and did not write this bundle.
    Unwritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveDecision {
    /// The row as it is now, moved if the bundle is committed.
    Holds {
        version: i64,
        lease_left_us: i64,
        last_offset: Offset,
        log_start: Offset,
    },
    /// It was moved by this commit, which had no answer, and changed by another one since.
    Overtaken,
    Stale,
    Gone,
}

impl BundleDecision {
    pub fn committed(&self) -> bool {
        !self.unknown
            && self.lanes.iter().all(|lane| matches!(lane, LaneDecision::Holds { .. }))
            && self.moves.iter().all(|one| matches!(one, MoveDecision::Holds { .. } | MoveDecision::Overtaken))
    }

    fn verdict(&self) -> BundleVerdict {
        if self.unknown {
            return BundleVerdict::Unknown;
        }
        let duplicate = self.lanes.iter().enumerate().find_map(|(lane, decision)| match decision {
            LaneDecision::Duplicate { index } => Some((lane as u32, *index)),
            _ => None,
        });
        match duplicate {
            Some((lane, index)) => BundleVerdict::Duplicate { lane, index },
            None if !self.committed() => BundleVerdict::Stale,
            None => {
                let base = |lane: &LaneDecision| match lane {
                    LaneDecision::Holds { base, .. } => *base,
                    _ => Offset::NONE,
                };
                BundleVerdict::Committed { bases: self.lanes.iter().map(base).collect() }
            }
        }
    }
}

/// What became of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleVerdict {
    /// Everything of it is durable: the first offset of each lane.
    Committed { bases: Vec<Offset> },
    /// Nothing was written: this key of this lane is stored.
    Duplicate { lane: u32, index: u32 },
    /// Nothing was written: what was prepared is no longer so. Prepare it again.
    Stale,
    /// Nothing was written: the store refuses it.
    Refused(String),
    /// Nothing was written: the store is away.
    Unavailable,
    /// It may have been written.
    Unknown,
}

/// What an owner is told of a bundle commit, so that its memory follows.
#[derive(Clone, Debug)]
pub enum News {
    /// A record was stored.
    Stored { lane: LaneKey, partition: PartitionId, record: Record },
    /// A cursor moved from `from` to `to`.
    Moved { partition: PartitionId, group: GroupId, from: i64, to: CursorTo, version: i64, lease_left_us: i64 },
    /// A cursor is not what its owner made it out to be at version `from`.
    CursorChanged { partition: PartitionId, group: GroupId, from: i64 },
    /// The partition may be gone or may have grown: read it again.
    LaneChanged { lane: LaneKey },
}

/// What owners must hear of a commit, by shard. Source: data plane 3.4, step 5 (wakes; a pop after the answer sees it).
pub fn news(
    bundles: &[Arc<Bundle>],
    result: &Result<BundleOutcome, StoreError>,
    shards: usize,
) -> Vec<(usize, Vec<News>)> {
    let mut parts: Vec<Vec<News>> = (0..shards).map(|_| Vec::new()).collect();
    match result {
        Ok(outcome) => {
            let mut stored = outcome.stored.iter();
            for (bundle, decision) in bundles.iter().zip(&outcome.bundles) {
                let committed = decision.committed();
                if decision.unknown {
                    stored.by_ref().take(bundle.lanes.len()).for_each(drop);
                    tell_unknown(bundle, shards, &mut parts);
                    continue;
                }
                for (lane, decided) in bundle.lanes.iter().zip(&decision.lanes) {
                    let stored = stored.next();
                    let owner = lane.draft.lane.owner(shards);
                    let told = match (decided, stored) {
                        (LaneDecision::Holds { partition, base, created_at }, Some(stored))
                            if committed && !lane.confirm =>
                        {
                            let record = record_of(&lane.draft, *base, *created_at, stored);
                            News::Stored { lane: lane.draft.lane.clone(), partition: *partition, record }
                        }
                        (LaneDecision::Gone, _) => News::LaneChanged { lane: lane.draft.lane.clone() },
                        _ => continue,
                    };
                    parts[owner].push(told);
                }
                for (one, decided) in bundle.moves.iter().zip(&decision.moves) {
                    let (partition, group, from) = (one.partition, one.group, one.version);
                    let told = match (decided, one.to) {
                        (MoveDecision::Holds { version, lease_left_us, .. }, Some(to)) if committed => {
                            News::Moved { partition, group, from, to, version: *version, lease_left_us: *lease_left_us }
                        }
                        (MoveDecision::Stale | MoveDecision::Gone | MoveDecision::Overtaken, _) => {
                            News::CursorChanged { partition, group, from }
                        }
                        _ => continue,
                    };
                    parts[owner_of_partition(partition, shards)].push(told);
                }
            }
        }
        Err(StoreError::Unknown(_)) => {
            bundles.iter().for_each(|bundle| tell_unknown(bundle, shards, &mut parts));
        }
        Err(_) => {}
    }
    parts.into_iter().enumerate().filter(|(_, news)| !news.is_empty()).collect()
}

/// Everything of a bundle may have changed.
fn tell_unknown(bundle: &Bundle, shards: usize, parts: &mut [Vec<News>]) {
    for lane in bundle.lanes.iter().filter(|lane| !lane.confirm) {
        parts[lane.draft.lane.owner(shards)].push(News::LaneChanged { lane: lane.draft.lane.clone() });
    }
    for one in bundle.moves.iter().filter(|one| one.to.is_some()) {
        let (partition, group, from) = (one.partition, one.group, one.version);
        parts[owner_of_partition(partition, shards)].push(News::CursorChanged { partition, group, from });
    }
}

fn record_of(draft: &Draft, base: Offset, created_at: Stamp, (codec, body): &(Codec, Bytes)) -> Record {
    Record {
        base,
        created_at,
        count: draft.count,
        codec: *codec,
        flags: draft.flags,
        raw_len: draft.raw_len() as u32,
        body: if *codec == Codec::Raw { draft.raw() } else { body.clone() },
        frames: (*codec != Codec::Raw && !draft.frames.is_empty()).then(|| draft.frames.clone()),
        keys: draft.keys.clone(),
    }
}

#[derive(Debug)]
struct Waiting {
    slot: Slot,
    bundle: Arc<Bundle>,
    /// The store refused a commit it was in: it goes alone.
    suspect: bool,
}

/// The bundle loop of one shard. What waits is bounded by the connections: each has one request under way.
#[derive(Debug, Default)]
pub(crate) struct Bundles {
    waiting: VecDeque<Waiting>,
    in_flight: Option<(CommitId, Micros, Vec<Waiting>)>,
}

impl Bundles {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.in_flight.as_ref().map_or(0, |(.., flying)| flying.len())
    }
}

impl Shard {
    pub(crate) fn bundle(&mut self, slot: Slot, bundle: Bundle) {
        if bundle.store != self.stores {
            return self.reply(slot, Verdict::Bundle(BundleVerdict::Stale));
        }
        self.bundles.waiting.push_back(Waiting { slot, bundle: Arc::new(bundle), suspect: false });
    }

    /// Who asked for bundles that were not sent.
    pub(crate) fn take_waiting_bundles(&mut self) -> Vec<Slot> {
        self.bundles.waiting.drain(..).map(|waiting| waiting.slot).collect()
    }

    /// Sends the waiting bundles that touch nothing twice as one commit, unless one is in flight.
    pub(crate) fn close_bundles(&mut self) {
        if self.bundles.in_flight.is_some() || self.bundles.waiting.is_empty() {
            return;
        }
        let mut touched = Touched::default();
        let (mut chosen, mut left) = (Vec::new(), VecDeque::new());
        let (mut rows, mut bytes) = (0, 0);
        for waiting in std::mem::take(&mut self.bundles.waiting) {
            let full = chosen.first().is_some_and(|first: &Waiting| {
                first.suspect || waiting.suspect || rows >= BUNDLE_ROWS_MAX || bytes >= COMMIT_BYTES_MAX
            });
            // What is left behind keeps its turn: later ones that touch the same must not overtake it.
            if !touched.add(&waiting.bundle) || full {
                left.push_back(waiting);
                continue;
            }
            rows += waiting.bundle.lanes.len() + waiting.bundle.moves.len();
            bytes += waiting.bundle.lanes.iter().map(|lane| lane.draft.raw_len()).sum::<usize>();
            chosen.push(waiting);
        }
        self.bundles.waiting = left;
        self.commits += 1;
        let commit = CommitId(self.commits);
        let bundles = chosen.iter().map(|waiting| waiting.bundle.clone()).collect();
        self.bundles.in_flight = Some((commit, self.now, chosen));
        self.effects.push(Effect::Bundle { commit, bundles });
    }

    pub(crate) fn settle_bundles(&mut self, commit: CommitId, result: Result<BundleOutcome, StoreError>) {
        let Some((_, sent, flight)) = self.bundles.in_flight.take_if(|(id, ..)| *id == commit) else { return };
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(StoreError::Refused(_)) if flight.len() > 1 => {
                // One of them is refused: each is tried alone, in order, before what came later.
                for waiting in flight.into_iter().rev() {
                    self.bundles.waiting.push_front(Waiting { suspect: true, ..waiting });
                }
                return;
            }
            Err(error) => {
                for waiting in flight {
                    let verdict = match &error {
                        StoreError::Refused(why) => BundleVerdict::Refused(why.clone()),
                        StoreError::Unavailable(_) => BundleVerdict::Unavailable,
                        StoreError::Unknown(_) => BundleVerdict::Unknown,
                    };
                    self.reply(waiting.slot, Verdict::Bundle(verdict));
                }
                return;
            }
        };
        self.read_clock(outcome.now, sent);
        for (waiting, decision) in flight.into_iter().zip(&outcome.bundles) {
            self.reply(waiting.slot, Verdict::Bundle(decision.verdict()));
        }
    }
}

/// Rows of the bundles looked at so far.
#[derive(Default)]
struct Touched {
    lanes: HashSet<u64>,
    cursors: HashSet<(PartitionId, GroupId)>,
}

impl Touched {
    /// Enters a bundle's rows; whether none of them was there. (Two lanes of one hash wait for each other for nothing.)
    fn add(&mut self, bundle: &Bundle) -> bool {
        let mut fresh = true;
        for lane in &bundle.lanes {
            fresh &= self.lanes.insert(lane.draft.lane.hash());
        }
        for one in &bundle.moves {
            fresh &= self.cursors.insert((one.partition, one.group));
        }
        fresh
    }
}

/// The place of the first of `keys` that `stored` says is stored.
pub(crate) fn first_stored(keys: &[u8], mut stored: impl FnMut(Key) -> bool) -> Option<u32> {
    let n = keys.len() / 16;
    (0..n).find(|&i| stored(crate::effect::key_at(keys, i))).map(|i| i as u32)
}
