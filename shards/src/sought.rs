//! The keys of an ack set, each once, and where they were found: one pass over stored keys resolves all of them.

use crate::ack::Place;
use crate::command::AckItem;
use crate::effect::key_at;
use crate::ids::{Key, Offset};
use hashbrown::HashMap;

#[derive(Debug)]
pub(crate) struct Sought {
    places: HashMap<Key, Option<Place>>,
    left: usize,
}

impl Sought {
    pub fn of(items: &[AckItem]) -> Sought {
        let places: HashMap<Key, Option<Place>> = items.iter().map(|item| (item.key, None)).collect();
        let left = places.len();
        Sought { places, left }
    }

    pub fn all_found(&self) -> bool {
        self.left == 0
    }

    /// Looks through the keys of a row, at offsets in `from..=to`: of equal keys the first one met counts. A step a key.
    pub fn look(&mut self, base: Offset, keys: &[u8], (from, to): (Offset, Offset), place: impl Fn(Offset) -> Place) {
        let n = keys.len() as i64 / 16;
        let (first, last) = ((from.0 - base.0).max(0), (to.0 - base.0).min(n - 1));
        for i in first..=last {
            if self.left == 0 {
                return;
            }
            if let Some(found @ None) = self.places.get_mut(&key_at(keys, i as usize)) {
                *found = Some(place(base.plus(i)));
                self.left -= 1;
            }
        }
    }

    /// Keys that something else knows to be below the cursor.
    pub fn find_below(&mut self, is_below: impl Fn(Key) -> bool) {
        for (key, place) in self.places.iter_mut().filter(|(_, place)| place.is_none()) {
            if is_below(*key) {
                *place = Some(Place::Below);
                self.left -= 1;
            }
        }
    }

    /// One place per item, in order.
    pub fn places(&self, items: &[AckItem]) -> Vec<Place> {
        let place = |item: &AckItem| self.places.get(&item.key).copied().flatten();
        items.iter().map(|item| place(item).unwrap_or(Place::Unknown)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Disposition;
    use proptest::prelude::*;

    fn items(keys: &[u128]) -> Vec<AckItem> {
        keys.iter().map(|key| AckItem { key: Key(*key), word: Disposition::Completed, error: None }).collect()
    }

    fn row(keys: &[u128]) -> Vec<u8> {
        keys.iter().flat_map(|key| key.to_le_bytes()).collect()
    }

    /// Every item searched by itself.
    fn naive(rows: &[(Offset, Vec<u128>)], key: u128, (from, to): (Offset, Offset)) -> Place {
        let all = rows.iter().flat_map(|(base, keys)| keys.iter().enumerate().map(|(i, k)| (base.plus(i as i64), *k)));
        let mut found = all.filter(|(at, k)| *k == key && from <= *at && *at <= to);
        found.next().map_or(Place::Unknown, |(at, _)| Place::Span(at))
    }

    proptest! {
        #[test]
        fn what_is_sought_is_found_as_if_each_item_were_searched_alone(
            asked in proptest::collection::vec(0u128..12, 0..8),
            stored in proptest::collection::vec(proptest::collection::vec(0u128..12, 0..5), 0..5),
            from in -2i64..12,
            len in 0i64..14,
        ) {
            let range = (Offset(from), Offset(from + len));
            let mut rows = Vec::new();
            let mut next = Offset(0);
            for keys in stored {
                rows.push((next, keys.clone()));
                next = next.plus(keys.len() as i64);
            }
            let items = items(&asked);
            let mut sought = Sought::of(&items);
            rows.iter().for_each(|(base, keys)| sought.look(*base, &row(keys), range, Place::Span));
            let want: Vec<Place> = asked.iter().map(|key| naive(&rows, *key, range)).collect();
            prop_assert_eq!(sought.all_found(), !want.contains(&Place::Unknown));
            prop_assert_eq!(sought.places(&items), want);
        }
    }

    /// In less than seconds, because each stored key is looked at once: twice 2^17 keys are 10^10 comparisons otherwise.
    #[test]
    fn a_large_set_is_found_in_one_pass() {
        let keys: Vec<u128> = (0..1 << 17).map(|key| key * 7).collect();
        let backwards: Vec<u128> = keys.iter().rev().copied().collect();
        let items = items(&backwards);
        let mut sought = Sought::of(&items);
        sought.look(Offset(5), &row(&keys), (Offset(5), Offset(i64::MAX)), Place::Span);
        let last = 4 + keys.len() as i64;
        let want: Vec<Place> = (0..keys.len() as i64).map(|i| Place::Span(Offset(last - i))).collect();
        assert!(sought.places(&items) == want);
    }

    #[test]
    fn what_is_found_stays_where_it_is() {
        let items = items(&[1, 2, 1]);
        let mut sought = Sought::of(&items);
        sought.look(Offset(0), &row(&[1]), (Offset(0), Offset(9)), Place::Span);
        sought.look(Offset(7), &row(&[1]), (Offset(0), Offset(9)), |_| Place::Below);
        sought.find_below(|key| key.0 == 2);
        assert_eq!(sought.places(&items), [Place::Span(Offset(0)), Place::Below, Place::Span(Offset(0))]);
    }
}
