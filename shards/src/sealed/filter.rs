//! A set of keys that cannot be changed, in 18 bits a key: a binary fuse filter (Graf and Lemire, 2022) of 3 parts.
//!
//! Every key names three places and a print; the prints at its places XOR to its own. Says yes to all of its keys and
//! to one in 65,536 others. Wider than one lookup would ask for, because a lane asks every run it has: of 100 keys
//! pushed at once into a lane with 100 runs, prints of 8 bits would send 39 to the store, these send one in seven times.

use crate::ids::Key;
use bytes::{Buf, BufMut, BytesMut};

type Print = u16;

/// Ways to place the keys that are tried. Each fails about once in a hundred times for uniform keys.
const SEEDS: u64 = 64;

#[derive(Debug, PartialEq)]
pub struct Filter {
    places: Places,
    /// Empty: no placement was found, and every key may be here.
    prints: Box<[Print]>,
}

/// Where a key's prints are: in three neighbouring parts of `part` places each.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Places {
    seed: u64,
    /// A power of two.
    part: u32,
    /// Places where the first of the three may be: a multiple of `part`.
    starts: u32,
}

impl Filter {
    /// Of keys that are all different. Sorted keys are faster to place.
    pub fn build(keys: &[Key]) -> Filter {
        (0..SEEDS)
            .find_map(|seed| Filter::try_build(keys, Places::new(keys.len(), seed)))
            .unwrap_or(Filter { places: Places::new(0, 0), prints: Box::default() })
    }

    pub fn might_hold(&self, key: Key) -> bool {
        if self.prints.is_empty() {
            return true;
        }
        let [a, b, c] = self.places.of(self.places.hash(key)).map(|place| self.prints[place]);
        a ^ b ^ c == print(key)
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.prints)
    }

    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.places.seed);
        out.put_u32_le(self.places.part);
        out.put_u32_le(self.places.starts);
        self.prints.iter().for_each(|&print| out.put_u16_le(print));
    }

    /// Undoes [`encode`](Filter::encode) of these bytes and no others.
    pub fn decode(mut bytes: &[u8]) -> Option<Filter> {
        let seed = bytes.try_get_u64_le().ok()?;
        let (part, starts) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
        let places = Places { seed, part, starts };
        let shaped = part.is_power_of_two() && starts.is_multiple_of(part);
        let count = bytes.len() / size_of::<Print>();
        let whole = bytes.len().is_multiple_of(size_of::<Print>()) && (count == 0 || count == places.count());
        if !shaped || !whole {
            return None;
        }
        Some(Filter { places, prints: (0..count).map(|_| bytes.get_u16_le()).collect() })
    }

    /// Finds an order in which each key has a place that no later one needs, then sets those places backwards.
    fn try_build(keys: &[Key], places: Places) -> Option<Filter> {
        #[derive(Clone, Copy, Default)]
        struct Place {
            hash: u64,
            print: Print,
            keys: u32,
        }
        let mut table = vec![Place::default(); places.count()];
        for &key in keys {
            let hash = places.hash(key);
            for at in places.of(hash) {
                let place = &mut table[at];
                place.hash ^= hash;
                place.print ^= print(key);
                place.keys += 1;
            }
        }
        let mut alone: Vec<u32> = (0..table.len() as u32).filter(|&at| table[at as usize].keys == 1).collect();
        let mut order = Vec::with_capacity(keys.len());
        while let Some(at) = alone.pop() {
            let Place { hash, print, keys } = table[at as usize];
            if keys != 1 {
                continue;
            }
            order.push((at, hash, print));
            for other in places.of(hash) {
                let place = &mut table[other];
                place.hash ^= hash;
                place.print ^= print;
                place.keys -= 1;
                if place.keys == 1 {
                    alone.push(other as u32);
                }
            }
        }
        if order.len() != keys.len() {
            return None;
        }
        let mut prints = vec![0; table.len()].into_boxed_slice();
        for &(at, hash, print) in order.iter().rev() {
            let [a, b, c] = places.of(hash).map(|place| prints[place]);
            prints[at as usize] = print ^ a ^ b ^ c; // The place itself is still 0.
        }
        Some(Filter { places, prints })
    }
}

impl Places {
    /// Sizes as the authors found them by experiment.
    fn new(keys: usize, seed: u64) -> Places {
        let n = keys.max(2) as f64;
        let part = 1u32 << ((n.ln() / 3.33f64.ln() + 2.25) as u32).min(18);
        let spread = (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
        let parts = ((n * spread) as u32).div_ceil(part).saturating_sub(2).max(1);
        Places { seed, part, starts: parts * part }
    }

    fn count(&self) -> usize {
        self.starts as usize + 2 * self.part as usize
    }

    /// The high half as it is: keyed hashes are uniform, and sorted keys then walk the table from end to end. Mixed with
    /// the low half when that did not work out.
    fn hash(&self, key: Key) -> u64 {
        let high = (key.0 >> 64) as u64;
        if self.seed == 0 {
            return high;
        }
        let mut z = high ^ (key.0 as u64).rotate_left(32) ^ self.seed.wrapping_mul(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 33)).wrapping_mul(0xff51afd7ed558ccd);
        z = (z ^ (z >> 33)).wrapping_mul(0xc4ceb9fe1a85ec53);
        z ^ (z >> 33)
    }

    fn of(&self, hash: u64) -> [usize; 3] {
        let first = ((u128::from(hash) * u128::from(self.starts)) >> 64) as u32;
        let inside = self.part - 1;
        let second = (first + self.part) ^ ((hash >> 18) as u32 & inside);
        let third = (first + 2 * self.part) ^ (hash as u32 & inside);
        [first, second, third].map(|place| place as usize)
    }
}

fn print(key: Key) -> Print {
    key.0 as Print
}
