//! What one lane remembers of the keys stored in it.

use crate::effect::key_at;
use crate::ids::{Key, Offset, Stamp};

/// The keys of one lane's newest messages.
#[derive(Debug, Default)]
pub struct Window {
    entries: Vec<(Key, Offset, Stamp)>,
}

impl Window {
    /// Holds nothing.
    pub fn new() -> Window {
        Window::default()
    }
    /// Enters the keys of one stored segment; segments come in ascending offsets.
    pub fn insert(&mut self, base: Offset, created_at: Stamp, keys: &[u8]) {
        self.entries.extend((0..keys.len() / 16).map(|i| (key_at(keys, i), base.plus(i as i64), created_at)));
    }
    /// Forgets what was stored before `floor`.
    pub fn expire(&mut self, floor: Stamp) {
        self.entries.retain(|entry| floor <= entry.2);
    }
    /// The lowest offset with this key that was stored at or after `floor`.
    pub fn probe(&self, key: Key, floor: Stamp) -> Option<Offset> {
        self.entries.iter().find(|entry| entry.0 == key && floor <= entry.2).map(|entry| entry.1)
    }
    /// The lowest offset in `from..=to` with this key.
    pub fn find(&self, key: Key, from: Offset, to: Offset) -> Option<Offset> {
        self.entries.iter().find(|entry| entry.0 == key && from <= entry.1 && entry.1 <= to).map(|entry| entry.1)
    }
    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * 48
    }
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub fn clear(&mut self) {
        *self = Window::default();
    }
}
