//! Keys of a lane in offset order, in chunks that are filled at the new end and freed whole at the old one.

use crate::ids::{Key, Offset, Stamp};
use std::collections::VecDeque;

const CHUNK_BITS: u32 = 10;
/// Keys of a full chunk: 16 KiB, so that no single growth or free is felt.
pub const CHUNK_KEYS: usize = 1 << CHUNK_BITS;
/// Chunks that positions can name; a byte budget ends a window long before (at 60 GB).
const CHUNKS_MAX: u32 = 1 << (32 - CHUNK_BITS);

/// Names a key in the slab: number of the chunk (wrapping), then place in it. Of a freed chunk it names nothing, until
/// the numbers come round after four thousand million keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(pub u32);

#[derive(Debug, Default)]
pub struct Slab {
    chunks: VecDeque<Chunk>,
    /// The last chunk takes no more.
    closed: bool,
    /// Number of the front chunk.
    front_no: u32,
    len: usize,
    /// Heap bytes of the chunks.
    bytes: usize,
}

/// Adjacent offsets from `base` on.
#[derive(Debug)]
struct Chunk {
    base: Offset,
    created_at: Stamp,
    keys: Vec<Key>,
    runs: Vec<Run>,
}

/// From place `at` on, keys are `after_us` younger than the chunk.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: u32,
    after_us: u32,
}

impl Slab {
    /// Adds a key at the new end; `None` when its offset is already here. Stamps do not fall along offsets: one that
    /// does counts as the last.
    pub fn push(&mut self, key: Key, offset: Offset, created_at: Stamp) -> Option<Position> {
        let created_at = created_at.max(self.last_stamp());
        let fits = match self.chunks.back() {
            Some(chunk) if offset < chunk.end() => return None,
            Some(chunk) => !self.closed && chunk.fits(offset, created_at),
            None => false,
        };
        if !fits {
            assert!(self.chunks.len() < CHUNKS_MAX as usize, "positions are exhausted");
            let grown = self.chunks.back().is_some_and(|last| last.keys.len() == CHUNK_KEYS);
            let chunk = Chunk::new(offset, created_at, if grown { CHUNK_KEYS } else { 0 });
            self.bytes += chunk.bytes();
            self.chunks.push_back(chunk);
            self.closed = false;
        }
        let no = self.front_no.wrapping_add(self.chunks.len() as u32 - 1) % CHUNKS_MAX;
        let chunk = self.chunks.back_mut().expect("pushed above");
        let before = chunk.bytes();
        let at = chunk.push(key, created_at);
        self.bytes += chunk.bytes() - before;
        self.len += 1;
        Some(Position(no << CHUNK_BITS | at))
    }

    /// The key at a position, `None` when its chunk is gone.
    pub fn key(&self, position: Position) -> Option<Key> {
        let (chunk, at) = self.place(position)?;
        chunk.keys.get(at).copied()
    }

    /// Whether a position names a key that is here.
    pub fn holds(&self, position: Position) -> bool {
        // Only the last chunk may be short, and positions beyond its end were never given out.
        self.chunk_index(position) < self.chunks.len()
    }

    /// Offset of a key that is here.
    pub fn offset(&self, position: Position) -> Offset {
        let (chunk, at) = self.place(position).expect("position of a key that is here");
        chunk.base.plus(at as i64)
    }

    /// Stamp of a key that is here.
    pub fn created_at(&self, position: Position) -> Stamp {
        let (chunk, at) = self.place(position).expect("position of a key that is here");
        chunk.stamp(chunk.runs.partition_point(|run| run.at as usize <= at) - 1)
    }

    /// Position of an offset that is here.
    pub fn position(&self, offset: Offset) -> Option<Position> {
        let index = self.chunks.partition_point(|chunk| chunk.base <= offset).checked_sub(1)?;
        let at = offset.0 - self.chunks[index].base.0;
        let no = self.front_no.wrapping_add(index as u32) % CHUNKS_MAX;
        (offset < self.chunks[index].end()).then_some(Position(no << CHUNK_BITS | at as u32))
    }

    /// The lowest offset stored at or after `floor`.
    pub fn first_since(&self, floor: Stamp) -> Option<Offset> {
        let chunk = self.chunks.get(self.chunks.partition_point(|chunk| chunk.last_stamp() < floor))?;
        let run = chunk.runs.partition_point(|run| chunk.created_at.0 + i64::from(run.after_us) < floor.0);
        Some(chunk.base.plus(i64::from(chunk.runs[run].at)))
    }

    /// Whether the oldest chunk is older than `floor` as a whole.
    pub fn front_ends_before(&self, floor: Stamp) -> bool {
        self.chunks.front().is_some_and(|chunk| chunk.last_stamp() < floor)
    }

    /// Keys of the oldest chunk, ascending.
    pub fn front(&self) -> Vec<(Key, Offset, Position)> {
        let Some(chunk) = self.chunks.front() else { return Vec::new() };
        let first = self.front_no << CHUNK_BITS;
        let keys = (0..).zip(&chunk.keys);
        keys.map(|(at, &key)| (key, chunk.base.plus(i64::from(at)), Position(first | at))).collect()
    }

    /// The next key begins a chunk.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the oldest chunk ends at or below `last`. Never an open chunk.
    pub fn front_ends_through(&self, last: Offset) -> bool {
        self.ended() && self.chunks[0].end() <= last.plus(1)
    }

    /// The oldest chunk that begins above `after`, an open one excepted: its keys with offsets and stamps.
    pub fn full_after(&self, after: Offset) -> Option<impl Iterator<Item = (Key, Offset, Stamp)>> {
        let index = self.chunks.partition_point(|chunk| chunk.base <= after);
        let chunk = self.chunks.get(index).filter(|_| index + 1 < self.chunks.len() || self.closed)?;
        let mut run = 0;
        Some(chunk.keys.iter().enumerate().map(move |(at, &key)| {
            run += usize::from(chunk.runs.get(run + 1).is_some_and(|next| next.at as usize <= at));
            (key, chunk.base.plus(at as i64), chunk.stamp(run))
        }))
    }

    pub fn pop_front(&mut self) {
        let Some(chunk) = self.chunks.pop_front() else { return };
        self.front_no = self.front_no.wrapping_add(1) % CHUNKS_MAX;
        self.len -= chunk.keys.len();
        self.bytes -= chunk.bytes();
    }

    pub fn first(&self) -> Option<Offset> {
        self.chunks.front().map(|chunk| chunk.base)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Whether there is a chunk that takes no more.
    fn ended(&self) -> bool {
        1 < self.chunks.len() || self.closed && !self.chunks.is_empty()
    }

    fn last_stamp(&self) -> Stamp {
        self.chunks.back().map_or(Stamp(i64::MIN), Chunk::last_stamp)
    }

    fn place(&self, position: Position) -> Option<(&Chunk, usize)> {
        Some((self.chunks.get(self.chunk_index(position))?, position.0 as usize % CHUNK_KEYS))
    }

    fn chunk_index(&self, position: Position) -> usize {
        ((position.0 >> CHUNK_BITS).wrapping_sub(self.front_no) % CHUNKS_MAX) as usize
    }
}

impl Chunk {
    fn new(base: Offset, created_at: Stamp, capacity: usize) -> Chunk {
        Chunk { base, created_at, keys: Vec::with_capacity(capacity), runs: Vec::new() }
    }

    /// Whether the next key may be this one.
    fn fits(&self, offset: Offset, created_at: Stamp) -> bool {
        offset == self.end() && self.keys.len() < CHUNK_KEYS && created_at.0 - self.created_at.0 <= i64::from(u32::MAX)
    }

    fn push(&mut self, key: Key, created_at: Stamp) -> u32 {
        let at = self.keys.len() as u32;
        let after_us = (created_at.0 - self.created_at.0) as u32;
        if self.runs.last().is_none_or(|run| run.after_us != after_us) {
            self.runs.push(Run { at, after_us });
        }
        self.keys.push(key);
        at
    }

    /// One past the last offset.
    fn end(&self) -> Offset {
        self.base.plus(self.keys.len() as i64)
    }

    fn stamp(&self, run: usize) -> Stamp {
        Stamp(self.created_at.0 + i64::from(self.runs[run].after_us))
    }

    fn last_stamp(&self) -> Stamp {
        self.stamp(self.runs.len() - 1)
    }

    fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>() + self.runs.capacity() * size_of::<Run>()
    }
}
