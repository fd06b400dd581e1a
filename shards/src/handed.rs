//! What a spool has handed over and has not heard of yet, and what becomes of records that the store refuses. Pure.
//!
//!     read > (its lane is held: its place is remembered, `later`) > with its shard > stored
//!                                                               > refused > waits > tried again > refused too often: set aside
//!
//! A lane is *held* from its first refusal until nothing of it is with its shard or to be read again. Its records wait for each
//! other, so they take no room from other lanes, and what comes behind them stays on disk.
//!
//! Holds: a lane's records go to its shard in order; of all lanes that are held the shards have no more than of all others, and
//! of what refuses everything one record at a time is set aside. Reads nothing, knows no clock: who owns it
//! says when a round begins. Source: operations 4.3, 4.5.

use crate::command::SpoolId;
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, VecDeque};

/// A record whose refusal counted so often is set aside. Source: operations 4.5.
pub const REFUSALS_MAX: u32 = 5;
/// The same of the next ones of a lane of which one was set aside, as long as others are stored between two refusals: it is
/// not the store that refuses. With five of them a partition with a bad record each four seconds would never be done.
pub const REFUSALS_AGAIN_MAX: u32 = 2;
/// Refused records that are tried again in one round: each is a commit by itself, some milliseconds before live pushes. One
/// that is stored makes room for another, so what is mended comes back as fast as it is stored.
pub const TRIES_PER_ROUND: usize = 32;
/// Records of a held lane that its shard is given at once: the next one may be refused as well, and they all wait for that.
pub const HELD_RECORDS_MAX: usize = 64;
pub const HELD_BYTES_MAX: usize = 1 << 20;
/// Places that are remembered of records of held lanes, some 24 bytes each; reading stops at more.
pub const LATER_MAX: usize = 1 << 18;

/// So many records and bytes; one record more, however large it is.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub records: usize,
    pub bytes: usize,
}

/// See the header.
#[derive(Debug)]
pub struct Handed {
    /// What may be with the shards at once, of lanes that are not held.
    most: Room,
    with_shards: HashMap<SpoolId, Out>,
    /// All that is with the shards, and what of it is of held lanes.
    all: Sum,
    of_held: Sum,
    /// By hash of their lane's names: two lanes of one hash only wait for each other.
    held: BTreeMap<u64, Held>,
    later: usize,
    refused: BTreeMap<SpoolId, Refusals>,
    /// Records that were stored so far, or something of them.
    stored: u64,
    round: u64,
    tries_left: usize,
}

#[derive(Clone, Copy, Debug)]
struct Out {
    lane: u64,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    records: usize,
    bytes: usize,
}

impl Sum {
    fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn take(&mut self, bytes: usize) {
        self.records -= 1;
        self.bytes -= bytes;
    }
}

/// A lane with a record that was refused.
#[derive(Debug)]
struct Held {
    with_shard: Sum,
    /// Read, and to be read again when it is their turn.
    later: VecDeque<SpoolId>,
    /// Records that wait for another try or are being tried.
    refused: usize,
    /// One of it was set aside.
    guilty: bool,
    /// What had been stored when one of it was refused last.
    seen: Progress,
}

/// That the store takes something: records of the spool that were stored, and what the lane's shard wrote, live pushes among it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    drained: u64,
    written: u64,
}

/// What a record of which the store says that it cannot be stored has met.
#[derive(Debug)]
struct Refusals {
    lane: u64,
    /// Those that count.
    count: u32,
    /// A shard keeps it for another try.
    waits: bool,
    /// When it was refused last.
    round: u64,
}

/// What becomes of a record that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its refusals, if this one counted.
    pub counted: Option<u32>,
    /// It is to be set aside; else its shard keeps it for another try.
    pub aside: bool,
}

impl Handed {
    /// `most`: may be with the shards at once.
    pub fn new(most: Room) -> Handed {
        Handed {
            most,
            with_shards: HashMap::new(),
            all: Sum::default(),
            of_held: Sum::default(),
            held: BTreeMap::new(),
            later: 0,
            refused: BTreeMap::new(),
            stored: 0,
            round: 0,
            tries_left: TRIES_PER_ROUND,
        }
    }

    /// The room that is left. What is of held lanes takes none, as far as it fits into as much again.
    pub fn room(&self) -> Room {
        let of_others = |all: usize, held: usize, most: usize| all - held + held.saturating_sub(most);
        let records = of_others(self.all.records, self.of_held.records, self.most.records);
        let bytes = of_others(self.all.bytes, self.of_held.bytes, self.most.bytes);
        Room { records: self.most.records.saturating_sub(records), bytes: self.most.bytes.saturating_sub(bytes) }
    }

    /// Records that are with the shards.
    pub fn len(&self) -> usize {
        self.all.records
    }

    pub fn is_empty(&self) -> bool {
        self.all.records == 0
    }

    /// No more places can be remembered: nothing is to be read before some are decided.
    pub fn is_full(&self) -> bool {
        LATER_MAX <= self.later
    }

    /// Whether a record of a lane that was just read is to wait for older ones of it; see [`Handed::put_off`].
    pub fn waits(&self, lane: u64) -> bool {
        self.held.get(&lane).is_some_and(|held| !held.later.is_empty() || !held.takes_more())
    }

    /// A record that was read, and is to be read again when [`Handed::next_later`] names it.
    pub fn put_off(&mut self, id: SpoolId, lane: u64) {
        let Some(held) = self.held.get_mut(&lane) else { return };
        held.later.push_back(id);
        self.later += 1;
    }

    /// Whether records are put off.
    pub fn has_later(&self) -> bool {
        0 < self.later
    }

    /// A record that was put off and whose turn it is, with its lane. It is handed over next, put back, or lost.
    pub fn next_later(&mut self) -> Option<(SpoolId, u64)> {
        if self.later == 0 {
            return None;
        }
        let next = self.held.iter_mut().filter(|(_, held)| held.takes_more());
        let (id, lane) = next.into_iter().find_map(|(lane, held)| Some((held.later.pop_front()?, *lane)))?;
        self.later -= 1;
        Some((id, lane))
    }

    /// One that [`Handed::next_later`] named cannot be read now: it is the next one of its lane still.
    pub fn put_back(&mut self, id: SpoolId, lane: u64) {
        let Some(held) = self.held.get_mut(&lane) else { return };
        held.later.push_front(id);
        self.later += 1;
    }

    /// One that [`Handed::next_later`] named cannot be read any more.
    pub fn lose(&mut self, lane: u64) {
        self.release(lane);
    }

    /// A record goes to its shard.
    pub fn hand_over(&mut self, id: SpoolId, lane: u64, bytes: usize) {
        self.with_shards.insert(id, Out { lane, bytes });
        self.all.add(bytes);
        if let Some(held) = self.held.get_mut(&lane) {
            held.with_shard.add(bytes);
            self.of_held.add(bytes);
        }
    }

    /// A record is in the store. `new`: something of it was written for that; what was there before says nothing of what the
    /// store takes. False: it was not handed over.
    pub fn store(&mut self, id: SpoolId, new: bool) -> bool {
        let known = self.settle(id);
        self.stored += (known && new) as u64;
        known
    }

    /// A record was refused, when its shard had written so many lanes; `None`: it was not handed over. One that is to be set
    /// aside waits for another try until [`Handed::set_aside`].
    ///
    /// A refusal counts if something else was stored since the last one of its lane, so that it is the record's own, or if no
    /// older record is refused: what refuses all of them, a right that is missing perhaps, says nothing of one.
    pub fn refuse(&mut self, id: SpoolId, written: u64) -> Option<Refused> {
        let lane = self.with_shards.get(&id)?.lane;
        let now = Progress { drained: self.stored, written };
        self.hold(lane, now);
        let held = self.held.get_mut(&lane)?;
        let is_oldest = self.refused.keys().next().is_none_or(|first| id <= *first);
        let known = self.refused.entry(id).or_insert_with(|| {
            held.refused += 1;
            Refusals { lane, count: 0, waits: true, round: self.round }
        });
        let others_are_stored = held.seen != now;
        let counts = is_oldest || others_are_stored;
        let enough = if held.guilty && others_are_stored { REFUSALS_AGAIN_MAX } else { REFUSALS_MAX };
        known.count += counts as u32;
        (known.waits, known.round, held.seen) = (true, self.round, now);
        Some(Refused { counted: counts.then_some(known.count), aside: enough <= known.count })
    }

    /// A refused record is set aside.
    pub fn set_aside(&mut self, id: SpoolId) {
        let lane = self.refused.get(&id).map(|known| known.lane);
        if let Some(held) = lane.and_then(|lane| self.held.get_mut(&lane)) {
            held.guilty = true;
        }
        self.settle(id);
    }

    /// A new round of tries begins: not before a second has passed.
    pub fn next_round(&mut self) {
        self.round += 1;
        self.tries_left = TRIES_PER_ROUND;
    }

    /// Refused records that are to be tried again now, oldest first and one of each lane. Their shards have them.
    pub fn try_again(&mut self) -> Vec<SpoolId> {
        let (mut again, mut lanes) = (Vec::new(), HashSet::new());
        for (id, refusals) in &mut self.refused {
            if self.tries_left == 0 {
                break;
            }
            // Of a lane the oldest one goes first; while it is being tried the others wait.
            if lanes.insert(refusals.lane) && refusals.waits && refusals.round < self.round {
                refusals.waits = false;
                self.tries_left -= 1;
                again.push(*id);
            }
        }
        again
    }

    /// Lanes with records that were read and put off, by hash of their names.
    pub fn lanes_put_off(&self) -> Vec<u64> {
        self.held.iter().filter(|(_, held)| !held.later.is_empty()).map(|(lane, _)| *lane).collect()
    }

    fn hold(&mut self, lane: u64, seen: Progress) {
        if self.held.contains_key(&lane) {
            return;
        }
        let mut with_shard = Sum::default();
        self.with_shards.values().filter(|out| out.lane == lane).for_each(|out| with_shard.add(out.bytes));
        self.of_held.records += with_shard.records;
        self.of_held.bytes += with_shard.bytes;
        self.held.insert(lane, Held { with_shard, later: VecDeque::new(), refused: 0, guilty: false, seen });
    }

    fn settle(&mut self, id: SpoolId) -> bool {
        let Some(out) = self.with_shards.remove(&id) else { return false };
        self.all.take(out.bytes);
        let was_refused = self.refused.remove(&id).is_some();
        if let Some(held) = self.held.get_mut(&out.lane) {
            held.with_shard.take(out.bytes);
            self.of_held.take(out.bytes);
            held.refused -= was_refused as usize;
        }
        // What refused it is over, perhaps for the others as well.
        self.tries_left += was_refused as usize;
        self.release(out.lane);
        true
    }

    /// Ends the hold of a lane of which nothing is left.
    fn release(&mut self, lane: u64) {
        if self.held.get(&lane).is_some_and(|held| held.with_shard.records == 0 && held.later.is_empty()) {
            self.held.remove(&lane);
        }
    }
}

impl Held {
    fn takes_more(&self) -> bool {
        self.refused == 0 && self.with_shard.records < HELD_RECORDS_MAX && self.with_shard.bytes < HELD_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
