//! Where rows lay when this thread last wrote them: the next statement looks there first, and walks the index only where the
//! row is not there any more.
//!
//! A hot row leaves a version behind at each commit. While a session elsewhere holds an old snapshot none of them can be
//! removed, and the index leads to every one of them: after ten minutes to some ten thousand per partition. Who wrote the
//! newest one knows where it lies.
//!
//! Holds: a place is a hint. Whether the row lies there, in the version that counts, is looked at by the statement that uses
//! it, so another writer, a vacuum or another store cost a walk of the index and nothing else. Bounded.

use super::rows::Tid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

/// Places that a thread remembers of each kind, at about 40 bytes: of the rows written last, which are those written next.
const KEPT_MAX: usize = 1 << 16;

thread_local! {
    static PARTITIONS: RefCell<Places<i64>> = RefCell::default();
    static CURSORS: RefCell<Places<(i64, i64)>> = RefCell::default();
}

/// Of a partition's row.
pub(super) fn of_partition(partition: i64) -> Option<Tid> {
    PARTITIONS.with_borrow(|places| places.find(&partition))
}

pub(super) fn learn_partition(partition: i64, place: Tid) {
    PARTITIONS.with_borrow_mut(|places| places.learn(partition, place));
}

/// Of a cursor's row, by partition and group.
pub(super) fn of_cursor(cursor: (i64, i64)) -> Option<Tid> {
    CURSORS.with_borrow(|places| places.find(&cursor))
}

pub(super) fn learn_cursor(cursor: (i64, i64), place: Tid) {
    CURSORS.with_borrow_mut(|places| places.learn(cursor, place));
}

/// In two halves: when the younger one is full, the older one is forgotten.
#[derive(Debug)]
struct Places<K> {
    young: HashMap<K, Tid>,
    old: HashMap<K, Tid>,
}

impl<K> Default for Places<K> {
    fn default() -> Places<K> {
        Places { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Eq + Hash> Places<K> {
    fn find(&self, key: &K) -> Option<Tid> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    fn learn(&mut self, key: K, place: Tid) {
        self.young.insert(key, place);
        if KEPT_MAX / 2 <= self.young.len() {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_learnt_last_are_known_and_no_more_than_the_bound() {
        let mut places = Places::default();
        for key in 0..3 * KEPT_MAX as i64 {
            places.learn(7, Tid { block: key as u32, item: 1 });
            places.learn(key + 100, Tid { block: 0, item: 2 });
            assert!(places.young.len() + places.old.len() <= KEPT_MAX);
            assert_eq!(places.find(&7), Some(Tid { block: key as u32, item: 1 }), "written all the time");
            assert_eq!(places.find(&(key + 100)), Some(Tid { block: 0, item: 2 }));
        }
        assert_eq!(places.find(&100), None, "not written for long");
    }
}
