//! What one lane remembers of the keys stored in it: the truth of exact dedup while it is in memory.
//!
//! ```text
//! segment keys --insert--> slab (chunks by offset, with stamps) + index (key -> lowest position) + repeats
//! ```
//!
//! Holds: every entered key not yet expired is found, at its lowest live offset, however often it is in the log (dedup
//! may have been off for a while). One index over all ages, so a probe costs the same at any window length; keys leave
//! a chunk at a time from the old end and their index entries lapse without being looked for. No single step moves
//! more than one chunk or one sub-table of about 6,000 positions.
//!
//! Does not know how far back it reaches, nor what the window length is: both are the caller's.
//! Source: rule 13; data plane 3.5.

mod index;
mod slab;
mod table;

use crate::effect::key_at;
use crate::ids::{Key, Offset, Stamp};
use crate::sealed::Slice;
use index::Index;
use slab::Slab;
use std::collections::BTreeSet;

pub(crate) use slab::CHUNK_KEYS;

/// The keys of one lane's newest messages. One message needs no heap: lanes that never hold more are the many.
#[derive(Debug, Default)]
pub struct Window {
    held: Held,
}

#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    One(Entry),
    /// Up to [`FEW_MAX`], searched one by one.
    Few(Vec<Entry>),
    Many(Box<Many>),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    offset: Offset,
    created_at: Stamp,
}

/// More than two cache lines of keys are slower to read through than one probe.
const FEW_MAX: usize = 16;

impl Window {
    /// Holds nothing.
    pub fn new() -> Window {
        Window::default()
    }

    /// Enters the keys (16 bytes each) of one stored segment.
    ///
    /// Segments come in ascending offsets, as they lie in the log; keys at or below the last offset held are skipped, so
    /// to reach further back it is cleared and loaded again.
    pub fn insert(&mut self, base: Offset, created_at: Stamp, keys: &[u8]) {
        self.touch(keys);
        for i in 0..keys.len() / 16 {
            self.enter(Entry { key: key_at(keys, i), offset: base.plus(i as i64), created_at });
        }
    }

    /// Forgets what was stored before `floor`, which never goes back.
    ///
    /// In bounded steps: call it with every push, and now and then on idle lanes. Probes and finds are exact anyway.
    pub fn expire(&mut self, floor: Stamp) {
        match &mut self.held {
            Held::Nothing => {}
            Held::One(entry) if entry.created_at < floor => self.clear(),
            Held::One(_) => {}
            Held::Few(entries) => {
                entries.retain(|entry| floor <= entry.created_at);
                if entries.is_empty() {
                    self.clear();
                }
            }
            Held::Many(many) => {
                many.expire(floor);
                if many.slab.is_empty() {
                    self.clear();
                }
            }
        }
    }

    /// Reads ahead what probes of these keys (16 bytes each) will read: keys are as good as random, so each is a wait for
    /// memory, and a hundred waits at once take little longer than one.
    pub fn touch(&self, keys: &[u8]) {
        if let Held::Many(many) = &self.held {
            let read = |sum: u8, i| sum ^ many.index.touch(key_at(keys, i));
            std::hint::black_box((0..keys.len() / 16).fold(0, read));
        }
    }

    /// The lowest offset with this key that was stored at or after `floor`. A miss costs one cache miss.
    pub fn probe(&self, key: Key, floor: Stamp) -> Option<Offset> {
        match &self.held {
            Held::Many(many) => many.probe(key, floor),
            _ => self.few().iter().find(|e| e.key == key && floor <= e.created_at).map(|e| e.offset),
        }
    }

    /// The lowest offset in `from..=to` with this key, expired or not as long as it is remembered: for acks.
    pub fn find(&self, key: Key, from: Offset, to: Offset) -> Option<Offset> {
        match &self.held {
            Held::Many(many) => many.find(key, from, to),
            _ => self.few().iter().find(|e| e.key == key && from <= e.offset && e.offset <= to).map(|e| e.offset),
        }
    }

    /// Heap bytes: what [`clear`](Window::clear) gives back. Constant time.
    pub fn bytes(&self) -> usize {
        match &self.held {
            Held::Nothing | Held::One(_) => 0,
            Held::Few(entries) => entries.capacity() * size_of::<Entry>(),
            Held::Many(many) => many.bytes(),
        }
    }

    /// Keys held, those included that a bounded [`expire`](Window::expire) has not reached yet.
    pub fn len(&self) -> usize {
        match &self.held {
            Held::Many(many) => many.slab.len(),
            _ => self.few().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lowest offset held.
    pub fn first(&self) -> Option<Offset> {
        match &self.held {
            Held::Many(many) => many.slab.first(),
            _ => self.few().first().map(|e| e.offset),
        }
    }

    /// Copies keys from the old end into `slice`, after those it has; `true` once it is full.
    ///
    /// In steps of about 0.2 ms. The newest chunk is not copied unless it is [closed](Window::close). Nothing is
    /// forgotten: see [`drop_through`](Window::drop_through).
    pub fn copy_oldest(&self, slice: &mut Slice) -> bool {
        let Held::Many(many) = &self.held else { return false };
        for _ in 0..COPY_MAX {
            let Some(chunk) = many.slab.full_after(slice.last()) else { return false };
            if !slice.add(chunk) {
                return true;
            }
        }
        false
    }

    /// Ends the newest chunk, so that it may be copied and dropped like the others: what comes next begins another.
    pub fn close(&mut self) {
        if let Held::Many(many) = &mut self.held {
            many.slab.close();
        }
    }

    /// Forgets whole chunks up to the offset `last`, whose sealed run is stored now; `true` when none is left.
    ///
    /// In bounded steps, as [`expire`](Window::expire).
    pub fn drop_through(&mut self, last: Offset) -> bool {
        let Held::Many(many) = &mut self.held else { return true };
        many.drop_through(last);
        let done = !many.slab.front_ends_through(last);
        if many.slab.is_empty() {
            self.clear();
        }
        done
    }

    /// Forgets everything, and frees it.
    pub fn clear(&mut self) {
        self.held = Held::Nothing;
    }

    fn enter(&mut self, entry: Entry) {
        if self.few().last().is_some_and(|last| entry.offset <= last.offset) {
            return;
        }
        match &mut self.held {
            Held::Many(many) => many.enter(entry),
            Held::Nothing => self.held = Held::One(entry),
            Held::One(first) => self.held = Held::Few(vec![*first, entry]),
            Held::Few(entries) if entries.len() < FEW_MAX => entries.push(entry),
            Held::Few(entries) => {
                let mut many = Box::new(Many::default());
                entries.drain(..).chain([entry]).for_each(|entry| many.enter(entry));
                self.held = Held::Many(many);
            }
        }
    }

    fn few(&self) -> &[Entry] {
        match &self.held {
            Held::Nothing | Held::Many(_) => &[],
            Held::One(entry) => std::slice::from_ref(entry),
            Held::Few(entries) => entries,
        }
    }
}

#[derive(Debug, Default)]
struct Many {
    slab: Slab,
    /// Of every key in the slab its lowest position.
    index: Index,
    /// Every further occurrence. Empty as long as dedup is on.
    repeats: BTreeSet<(Key, Offset)>,
    /// Keys entered since the last expiry.
    entered: usize,
}

/// Chunks copied per step.
const COPY_MAX: usize = 32;
/// Chunks let go per expiry: about 0.1 ms.
const RETIRE_MAX: usize = 256;
/// The same while there are repeats, each key of a chunk costing a look into them: about 0.3 ms a chunk.
const RETIRE_REPEATS_MAX: usize = 2;
/// An estimate of what the tree needs per repeat.
const REPEAT_BYTES: usize = 48;

impl Many {
    fn enter(&mut self, entry: Entry) {
        let Some(position) = self.slab.push(entry.key, entry.offset, entry.created_at) else { return };
        self.entered += 1;
        if !self.index.enter(&self.slab, entry.key, position) {
            self.repeats.insert((entry.key, entry.offset));
        }
    }

    fn probe(&self, key: Key, floor: Stamp) -> Option<Offset> {
        let position = self.index.find(&self.slab, key)?;
        if floor <= self.slab.created_at(position) {
            return Some(self.slab.offset(position));
        }
        if self.repeats.is_empty() {
            return None;
        }
        self.repeat(key, self.slab.first_since(floor)?)
    }

    fn find(&self, key: Key, from: Offset, to: Offset) -> Option<Offset> {
        let lowest = self.slab.offset(self.index.find(&self.slab, key)?);
        let found = if from <= lowest { Some(lowest) } else { self.repeat(key, from) };
        found.filter(|&offset| offset <= to)
    }

    /// The lowest repeat of a key at or above an offset.
    fn repeat(&self, key: Key, from: Offset) -> Option<Offset> {
        self.repeats.range((key, from)..=(key, Offset(i64::MAX))).next().map(|&(_, offset)| offset)
    }

    fn expire(&mut self, floor: Stamp) {
        self.retire_while(|slab| slab.front_ends_before(floor));
        self.index.tidy(&self.slab);
    }

    fn drop_through(&mut self, last: Offset) {
        self.retire_while(|slab| slab.front_ends_through(last));
        self.index.tidy(&self.slab);
    }

    /// Lets chunks go from the old end, a bounded number of them, but more than have come since the last time.
    fn retire_while(&mut self, goes: impl Fn(&Slab) -> bool) {
        let keep_up = 2 * std::mem::take(&mut self.entered) / slab::CHUNK_KEYS;
        let most = if self.repeats.is_empty() { RETIRE_MAX } else { RETIRE_REPEATS_MAX };
        for _ in 0..most.max(keep_up) {
            if !goes(&self.slab) {
                break;
            }
            self.retire_front();
        }
    }

    /// Lets the oldest chunk go. Where it held a key's lowest occurrence, the next one takes its place in the index.
    fn retire_front(&mut self) {
        if !self.repeats.is_empty() {
            let front = self.slab.front();
            let Some(&(_, end, _)) = front.last() else { return };
            for (key, offset, position) in front {
                if self.repeats.remove(&(key, offset)) {
                    continue;
                }
                let Some(next) = self.repeat(key, end.plus(1)) else { continue };
                if let Some(heir) = self.slab.position(next) {
                    self.repeats.remove(&(key, next));
                    self.index.replace(key, position, heir);
                }
            }
        }
        self.slab.pop_front();
    }

    fn bytes(&self) -> usize {
        size_of::<Many>() + self.slab.bytes() + self.index.bytes() + self.repeats.len() * REPEAT_BYTES
    }
}

#[cfg(test)]
mod tests;
