//! Where each key of a slab is: hash tables of positions, divided so that no growth is felt.
//!
//! Linear hashing over sub-tables: one more sub-table whenever the keys need it, made by splitting one other. Entries
//! of freed chunks are not looked for; they lapse when their sub-table is full. The key is a keyed hash already: its
//! high half chooses the sub-table, its low half is the hash there.

use super::slab::{Position, Slab};
use super::table::Table;
use crate::ids::Key;

/// Keys per sub-table on the average. One about to split has twice as many: re-entering them takes about 0.3 ms.
const TABLE_KEYS: usize = 3072;
/// Where an index this much larger than its keys need is made smaller, a sub-table per step.
const TIDY_BYTES_PER_KEY: usize = 24;

#[derive(Debug, Default)]
pub struct Index {
    tables: Vec<Table>,
    /// Heap bytes of the tables.
    bytes: usize,
    /// The sub-table that is tidied next.
    next_tidied: usize,
}

impl Index {
    /// Enters the position of a key unless the key is here already; whether it was entered.
    pub fn enter(&mut self, slab: &Slab, key: Key, position: Position) -> bool {
        if self.tables.is_empty() {
            self.tables.push(Table::default());
        }
        if self.tables.len() * TABLE_KEYS < slab.len() {
            self.split(slab);
        }
        let number = table_of(key, self.tables.len());
        if find(&self.tables[number], slab, key).is_some() {
            return false;
        }
        if self.tables[number].len() == self.tables[number].capacity() {
            self.make_room(number, slab);
        }
        self.tables[number].insert(hash(key), position.0);
        true
    }

    /// Reads ahead what [`find`](Index::find) and [`enter`](Index::enter) will read; nothing that means anything.
    pub fn touch(&self, key: Key) -> u8 {
        self.tables.get(table_of(key, self.tables.len())).map_or(0, |table| table.touch(hash(key)))
    }

    /// The position of a key that is in the slab.
    pub fn find(&self, slab: &Slab, key: Key) -> Option<Position> {
        let table = self.tables.get(table_of(key, self.tables.len()))?;
        find(table, slab, key)
    }

    /// Puts `heir` in the place of `position`, both of one key.
    pub fn replace(&mut self, key: Key, position: Position, heir: Position) {
        let number = table_of(key, self.tables.len());
        if let Some(entry) = self.tables[number].find_mut(hash(key), |p| p == position.0) {
            *entry = heir.0;
        }
    }

    /// Gives memory back after the keys became fewer, one sub-table per call.
    pub fn tidy(&mut self, slab: &Slab) {
        if self.bytes <= TIDY_BYTES_PER_KEY * slab.len() || self.tables.is_empty() {
            return;
        }
        self.next_tidied = (self.next_tidied + 1) % self.tables.len();
        let table = &mut self.tables[self.next_tidied];
        table.retain(|p| slab.holds(Position(p)));
        if 4 * table.len() < table.capacity() {
            self.rebuild(self.next_tidied, slab);
        }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.tables.capacity() * size_of::<Table>()
    }

    /// Lets entries of freed chunks lapse; makes the sub-table larger where that is not enough.
    fn make_room(&mut self, number: usize, slab: &Slab) {
        let table = &mut self.tables[number];
        table.retain(|p| slab.holds(Position(p)));
        if table.capacity() - table.len() <= table.len() / 8 {
            self.rebuild(number, slab);
        }
    }

    fn rebuild(&mut self, number: usize, slab: &Slab) {
        let old = std::mem::take(&mut self.tables[number]);
        let mut new = Table::with_capacity(roomy(old.len()));
        for p in old.iter() {
            new.insert(hash_at(slab, p), p);
        }
        self.bytes += new.bytes();
        self.bytes -= old.bytes();
        self.tables[number] = new;
    }

    /// Divides the next sub-table in turn between itself and a new last one.
    fn split(&mut self, slab: &Slab) {
        let count = self.tables.len();
        let number = count - (1 << count.ilog2());
        let old = std::mem::take(&mut self.tables[number]);
        let live = old.iter().filter_map(|p| Some((slab.key(Position(p))?, p)));
        let (stay, go): (Vec<_>, Vec<_>) = live.partition(|&(key, _)| table_of(key, count + 1) == number);
        self.bytes -= old.bytes();
        let mut table_with = |keys: Vec<(Key, u32)>| {
            let mut table = Table::with_capacity(roomy(keys.len()));
            for (key, p) in keys {
                table.insert(hash(key), p);
            }
            self.bytes += table.bytes();
            table
        };
        let (stay, go) = (table_with(stay), table_with(go));
        self.tables[number] = stay;
        self.tables.push(go);
    }
}

/// Capacity for as many entries again: a sub-table that was split has room until the next split of it.
fn roomy(entries: usize) -> usize {
    2 * entries + 12
}

fn find(table: &Table, slab: &Slab, key: Key) -> Option<Position> {
    table.find(hash(key), |p| slab.key(Position(p)) == Some(key)).map(Position)
}

/// The sub-table of a key among `count`: as many bits as the next power of two takes, one fewer where that is too far.
fn table_of(key: Key, count: usize) -> usize {
    let bits = (key.0 >> 64) as usize;
    let mask = count.next_power_of_two() - 1;
    let number = bits & mask;
    if number < count { number } else { number & (mask >> 1) }
}

fn hash(key: Key) -> u64 {
    key.0 as u64
}

/// Only entries whose chunk is here are ever moved.
fn hash_at(slab: &Slab, p: u32) -> u64 {
    slab.key(Position(p)).map_or(0, hash)
}
