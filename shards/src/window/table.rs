//! A hash table of positions in which a look, found or not, costs one cache line, and which can be looked at ahead.
//!
//! Twelve entries share a line with a byte of each one's hash; what finds its line full spills into the next ones. It
//! holds no keys: whoever asks says which position is meant.

/// Entries of a line.
const ENTRIES: usize = 12;
/// Of so many places that many are filled at most, so that hardly a line spills.
const FILLED: (usize, usize) = (4, 5);

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    positions: [u32; ENTRIES],
    /// A byte of each entry's hash; behind them nothing.
    tags: [u8; 12],
    used: u8,
    /// An entry of this line may lie in the next one.
    spilled: bool,
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    fn positions(&self) -> &[u32] {
        &self.positions[..usize::from(self.used)]
    }

    /// Bit `8 i + 7` is set where entry `i` may be one of this hash: always where it is.
    fn candidates(&self, hash: u64) -> u128 {
        const ONES: u128 = u128::MAX / 255;
        let mut tags = [0; 16];
        tags[..ENTRIES].copy_from_slice(&self.tags);
        let differ = u128::from_le_bytes(tags) ^ (ONES * u128::from(hash as u8));
        // A borrow can only set a bit too many, and above one that is right.
        differ.wrapping_sub(ONES) & !differ & (ONES << 7) & !(u128::MAX << (8 * u32::from(self.used)))
    }

    /// The place of the entry of this hash that `is` the one.
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<usize> {
        let mut left = self.candidates(hash);
        while left != 0 {
            let place = left.trailing_zeros() as usize / 8;
            if is(self.positions[place]) {
                return Some(place);
            }
            left &= left - 1;
        }
        None
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
    len: usize,
}

impl Table {
    /// With room for so many entries.
    pub fn with_capacity(entries: usize) -> Table {
        let lines = (entries * FILLED.1).div_ceil(ENTRIES * FILLED.0);
        Table { lines: vec![Line::default(); lines], len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Entries there is room for, those included that are here.
    pub fn capacity(&self) -> usize {
        self.lines.len() * ENTRIES * FILLED.0 / FILLED.1
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().flat_map(|line| line.positions().iter().copied())
    }

    /// Reads what a look for this hash will read first, so that looks for several wait for memory together; nothing
    /// that means anything.
    pub fn touch(&self, hash: u64) -> u8 {
        self.lines.get(self.line_of(hash)).map_or(0, |line| line.used)
    }

    /// The entry of this hash that `is` the one.
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (line, place) = self.place(hash, is)?;
        Some(self.lines[line].positions[place])
    }

    /// The same, to be changed. The hash stays the entry's.
    pub fn find_mut(&mut self, hash: u64, is: impl Fn(u32) -> bool) -> Option<&mut u32> {
        let (line, place) = self.place(hash, is)?;
        Some(&mut self.lines[line].positions[place])
    }

    /// Adds an entry, for which there must be [room](Table::capacity).
    pub fn insert(&mut self, hash: u64, position: u32) {
        assert!(self.len < self.capacity(), "whoever inserts makes room before");
        let mut at = self.line_of(hash);
        while usize::from(self.lines[at].used) == ENTRIES {
            self.lines[at].spilled = true;
            at = self.after(at);
        }
        let line = &mut self.lines[at];
        let place = usize::from(line.used);
        (line.positions[place], line.tags[place]) = (position, hash as u8);
        line.used += 1;
        self.len += 1;
    }

    /// Keeps what `keep` says. A line that spilled counts as one that did until the table is made anew.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for line in &mut self.lines {
            let mut kept = 0;
            for place in 0..usize::from(line.used) {
                if keep(line.positions[place]) {
                    (line.positions[kept], line.tags[kept]) = (line.positions[place], line.tags[place]);
                    kept += 1;
                }
            }
            self.len -= usize::from(line.used) - kept;
            line.used = kept as u8;
        }
    }

    fn place(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = self.line_of(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            if let Some(place) = line.find(hash, &is) {
                return Some((at, place));
            }
            if !line.spilled {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// The high half of the hash chooses the line, its lowest byte is the tag.
    fn line_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 < self.lines.len() { line + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Few hashes, so that lines spill and tags collide.
    fn hash(position: u32) -> u64 {
        let mixed = u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 61) << 61) | ((mixed >> 58) & 1)
    }

    proptest! {
        /// What was inserted and kept is found, and nothing else, however crowded its line is.
        #[test]
        fn a_table_is_a_set(steps in prop::collection::vec((0u32..400, 0u32..12), 1..400)) {
            let (mut table, mut twin) = (Table::with_capacity(400), BTreeSet::new());
            for (position, step) in steps {
                if step == 0 {
                    table.retain(|p| p % 3 != position % 3);
                    twin.retain(|p| p % 3 != position % 3);
                } else if twin.insert(position) {
                    table.insert(hash(position), position);
                }
                prop_assert_eq!(table.len(), twin.len());
                for asked in [position, position / 2, 399 - position] {
                    let found = table.find(hash(asked), |p| p == asked);
                    prop_assert_eq!(found, twin.get(&asked).copied());
                }
            }
            prop_assert_eq!(table.iter().collect::<BTreeSet<_>>(), twin);
        }
    }

    #[test]
    fn an_empty_table_has_no_room_and_finds_nothing() {
        let table = Table::default();
        assert_eq!((table.capacity(), table.bytes(), table.touch(7)), (0, 0, 0));
        assert_eq!(table.find(7, |_| true), None);
        for entries in [1, 3, 12, 100, 3456] {
            assert!(entries <= Table::with_capacity(entries).capacity());
        }
    }
}
