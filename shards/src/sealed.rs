//! Old keys of a hot lane outside of its window: sorted runs in the store, a filter of each in memory.
//!
//! ```text
//! Window::copy_oldest --> Slice --seal (any thread)--> Run (memory) + rows (store) --> Window::drop_through
//! probe: Sealed::might_hold --> RowId --(store reads the row)--> find_in_row
//! ```
//!
//! Holds: every key of a run is in one of the rows that [`Sealed::might_hold`] names, so a probe that reads those rows
//! is exact; the filter only spares reads. A run has every key of its offsets, which never change: two runs of one lane
//! with equal ends are equal, whoever sealed them. A slice leaves the window after its run is stored, so a key is always
//! in one of the two, and what a run holds is lower than what the window holds. When any of this happens is
//! [`crate::seal`]'s.
//! Source: rule 13.

mod filter;

use crate::ids::{Key, Offset, Stamp};
use crate::window::CHUNK_KEYS;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use filter::Filter;
use std::collections::VecDeque;
use std::fmt;

/// Keys of a full run. A probe asks the filter of every run, 20 to 60 ns each, so a lane that will have more than about
/// fifty is better sealed in larger ones; sealing needs about 100 bytes a key for its duration.
pub const RUN_KEYS: usize = 1 << 20;
/// Keys of a row: 7,696 bytes, so that a row stays in its table page and costs one page read.
pub const ROW_KEYS: usize = 320;

const ROW_HEAD: usize = 16;
const ENTRY: usize = 24;

/// Keys copied out of a window, to be sealed: adjacent offsets.
#[derive(Clone)]
pub struct Slice {
    entries: Vec<Entry>,
    keys_max: usize,
    base: Offset,
    last: Offset,
    oldest: Stamp,
    newest: Stamp,
}

/// 24 bytes: a key as its halves, and what it lies behind the slice's first offset and stamp.
#[derive(Clone, Copy, Debug)]
struct Entry {
    high: u64,
    low: u64,
    offset: u32,
    after_us: u32,
}

impl Entry {
    fn key(&self) -> Key {
        Key(u128::from(self.high) << 64 | u128::from(self.low))
    }
}

impl Slice {
    /// Will take about `keys_max` keys (see [`RUN_KEYS`]) above the offset `after`.
    pub fn new(keys_max: usize, after: Offset) -> Slice {
        Slice {
            entries: Vec::with_capacity(keys_max + CHUNK_KEYS),
            keys_max,
            base: Offset::NONE,
            last: after,
            oldest: Stamp(0),
            newest: Stamp(0),
        }
    }

    /// Last offset taken.
    pub fn last(&self) -> Offset {
        self.last
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name of the run it will be.
    pub fn id(&self) -> RunId {
        RunId { base: self.base, last: self.last }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Takes keys of adjacent offsets, all or none; `false` when there is no room for more: by number, because offsets
    /// are missing before them, or because 32 bits do not reach from the first offset and stamp (4,000 million
    /// messages, 71 minutes).
    pub(crate) fn add(&mut self, keys: impl Iterator<Item = (Key, Offset, Stamp)>) -> bool {
        let mut keys = keys.peekable();
        let adjacent = keys.peek().is_none_or(|&(_, first, _)| first == self.last.plus(1));
        if self.keys_max <= self.entries.len() || !(adjacent || self.entries.is_empty()) {
            return false;
        }
        let before = self.entries.len();
        let (mut last, mut newest) = (self.last, self.newest);
        for (key, offset, created_at) in keys {
            if self.entries.is_empty() {
                (self.base, self.oldest) = (offset, created_at);
            }
            let behind = (u32::try_from(offset.0 - self.base.0), u32::try_from(created_at.0 - self.oldest.0));
            let (Ok(offset_behind), Ok(after_us)) = behind else {
                self.entries.truncate(before);
                return false;
            };
            let (high, low) = ((key.0 >> 64) as u64, key.0 as u64);
            self.entries.push(Entry { high, low, offset: offset_behind, after_us });
            (last, newest) = (offset, created_at);
        }
        (self.last, self.newest) = (last, newest);
        true
    }

    /// Sorts and packs. Some 0.15 s for a million keys: not for a shard's thread.
    pub fn seal(mut self) -> SealedRun {
        self.entries.sort_unstable_by_key(|e| (e.high, e.low, e.offset));
        let rows = self.entries.chunks(ROW_KEYS).map(|row| self.row(row)).collect();
        let firsts = self.entries.chunks(ROW_KEYS).map(|row| row[0].high).collect();
        let mut keys: Vec<Key> = self.entries.iter().map(Entry::key).collect();
        keys.dedup();
        let filter = Filter::build(&keys);
        let run = Run { base: self.base, last: self.last, oldest: self.oldest, newest: self.newest, firsts, filter };
        SealedRun { run, rows }
    }

    /// First offset and stamp of the slice, then the row's keys, offsets and stamps, each as a column.
    fn row(&self, entries: &[Entry]) -> Bytes {
        let mut row = BytesMut::with_capacity(ROW_HEAD + ENTRY * entries.len());
        row.put_i64_le(self.base.0);
        row.put_i64_le(self.oldest.0);
        entries.iter().for_each(|e| row.put_u128_le(e.key().0));
        entries.iter().for_each(|e| row.put_u32_le(e.offset));
        entries.iter().for_each(|e| row.put_u32_le(e.after_us));
        row.freeze()
    }
}

/// Without its keys.
impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys, {}..={}", self.len(), self.base, self.last)
    }
}

/// What sealing made of a slice.
#[derive(Debug)]
pub struct SealedRun {
    pub run: Run,
    /// To be stored, each under its [`RowId`]: the run's base and its place here.
    pub rows: Vec<Bytes>,
}

/// What stays in memory of a sealed run.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// First and last offset, inclusive.
    pub base: Offset,
    pub last: Offset,
    /// First and last stamp.
    pub oldest: Stamp,
    pub newest: Stamp,
    /// High half of each row's first key.
    firsts: Box<[u64]>,
    filter: Filter,
}

/// Names a run of a lane: its first and last offset, which say all that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub base: Offset,
    pub last: Offset,
}

/// Names a stored row of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    pub run: RunId,
    pub row: u32,
}

impl Run {
    pub fn id(&self) -> RunId {
        RunId { base: self.base, last: self.last }
    }

    /// The rows a key may be in: mostly none or one; several only where a key is repeated across rows.
    pub fn rows_of(&self, key: Key) -> impl Iterator<Item = RowId> {
        let rows = if self.filter.might_hold(key) { self.rows_around((key.0 >> 64) as u64) } else { 0..0 };
        let run = self.id();
        rows.map(move |row| RowId { run, row: row as u32 })
    }

    fn rows_around(&self, high: u64) -> std::ops::Range<usize> {
        let end = self.firsts.partition_point(|&first| first <= high);
        let start = self.firsts[..end].partition_point(|&first| first < high);
        start.saturating_sub(1)..end
    }

    /// For the store, so that a restart reads filters only.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.bytes() + 64);
        for n in [self.base.0, self.last.0, self.oldest.0, self.newest.0, self.firsts.len() as i64] {
            out.put_i64_le(n);
        }
        self.firsts.iter().for_each(|&first| out.put_u64_le(first));
        self.filter.encode(&mut out);
        out.freeze()
    }

    /// Undoes [`encode`](Run::encode); `None` when the bytes are none of ours.
    pub fn decode(mut bytes: &[u8]) -> Option<Run> {
        let mut next = || bytes.try_get_i64_le().ok();
        let (base, last, oldest, newest) = (Offset(next()?), Offset(next()?), Stamp(next()?), Stamp(next()?));
        let rows = usize::try_from(next()?).ok().filter(|&rows| rows <= bytes.len() / 8)?;
        let firsts = (0..rows).map(|_| bytes.get_u64_le()).collect();
        Some(Run { base, last, oldest, newest, firsts, filter: Filter::decode(bytes)? })
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.firsts) + self.filter.bytes()
    }
}

/// The sealed runs of one lane, ascending.
#[derive(Debug, Default)]
pub struct Sealed {
    runs: VecDeque<Run>,
    bytes: usize,
    /// Runs ever pushed: tells who probed before the newest ones came.
    pushed: u64,
}

impl Sealed {
    /// Adds the next run; its rows are stored.
    pub fn push(&mut self, run: Run) {
        self.bytes += run.bytes();
        self.pushed += 1;
        self.runs.push_back(run);
    }

    /// Forgets runs that are older than `floor` as a whole; their names, so that the store lets the rows go.
    pub fn expire(&mut self, floor: Stamp) -> Vec<RunId> {
        let gone = self.runs.partition_point(|run| run.newest < floor);
        let gone: Vec<Run> = self.runs.drain(..gone).collect();
        self.bytes -= gone.iter().map(Run::bytes).sum::<usize>();
        gone.iter().map(Run::id).collect()
    }

    /// Forgets all runs.
    pub fn clear(&mut self) {
        self.runs = VecDeque::new();
        self.bytes = 0;
    }

    /// Runs pushed so far, those included that are gone.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The rows to read for a probe of this key from `floor` on, in the order in which a first hit is the lowest.
    pub fn might_hold(&self, key: Key, floor: Stamp) -> impl Iterator<Item = RowId> {
        self.might_hold_newer(key, floor, 0)
    }

    /// The same, of the runs that were pushed after the first `seen`.
    pub fn might_hold_newer(&self, key: Key, floor: Stamp, seen: u64) -> impl Iterator<Item = RowId> {
        let live = self.runs.partition_point(|run| run.newest < floor);
        let newer = self.runs.len().saturating_sub((self.pushed - seen) as usize);
        self.runs.range(live.max(newer)..).flat_map(move |run| run.rows_of(key))
    }

    /// Last offset in a run.
    pub fn last(&self) -> Option<Offset> {
        self.runs.back().map(|run| run.last)
    }

    /// About how many keys the runs have.
    pub fn keys(&self) -> usize {
        let first = self.runs.front().map_or(0, |run| run.base.0);
        self.last().map_or(0, |last| (last.0 + 1 - first) as usize)
    }

    /// Heap bytes of the runs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// The lowest offset of a key in a row that was stored at or after `floor`, with its stamp.
pub fn find_in_row(row: &[u8], key: Key, floor: Stamp) -> Option<(Offset, Stamp)> {
    hits(row, key).find(|&(_, created_at)| floor <= created_at)
}

/// Occurrences of a key in a row, ascending. A row of another length than ours holds nothing.
fn hits(row: &[u8], key: Key) -> impl Iterator<Item = (Offset, Stamp)> {
    let (head, columns) = row.split_at_checked(ROW_HEAD).unwrap_or((&[0; ROW_HEAD], &[]));
    let count = if columns.len().is_multiple_of(ENTRY) { columns.len() / ENTRY } else { 0 };
    let (keys, rest) = columns.split_at(16 * count);
    let (offsets, stamps) = rest.split_at(4 * count);
    let (base, oldest) = ((&head[..8]).get_i64_le(), (&head[8..]).get_i64_le());
    let key_at = move |i: usize| Key((&keys[16 * i..]).get_u128_le());
    let behind = |column: &[u8], i: usize| i64::from((&column[4 * i..]).get_u32_le());
    (first_at_or_above(count, key, key_at)..count)
        .take_while(move |&i| key_at(i) == key)
        .map(move |i| (Offset(base + behind(offsets, i)), Stamp(oldest + behind(stamps, i))))
}

fn first_at_or_above(count: usize, key: Key, key_at: impl Fn(usize) -> Key) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if key_at(middle) < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests;
