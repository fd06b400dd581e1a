//! A seeded fuzzer over the same targets as `fuzz/`, which knows the layers: it also mutates what lies inside zstd.
//!
//! Runs a moment with every test run; `FUZZ_SECONDS=1800 cargo test --release --lib soak -- --nocapture` runs longer and
//! says how much it did. `FUZZ_SEED` repeats a run: a failure names the seed of its input.

use crate::wire::{push, targets};
use std::path::Path;
use std::time::{Duration, Instant};

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Lengths and counts that are on an edge somewhere.
const NUMBERS: [u32; 12] = [0, 1, 2, 18, 19, 20, 25, 255, 65_535, 1 << 20, i32::MAX as u32, u32::MAX];

fn mutate(rng: &mut Rng, data: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(data.len() + 1);
        match rng.below(9) {
            0 if at < data.len() => data[at] ^= 1 << rng.below(8),
            1 if at < data.len() => data[at] = rng.next() as u8,
            2 => data.insert(at, rng.next() as u8),
            3 if at < data.len() => drop(data.remove(at)),
            4 => data.truncate(at),
            5 if at + 4 <= data.len() => {
                data[at..at + 4].copy_from_slice(&NUMBERS[rng.below(NUMBERS.len())].to_le_bytes());
            }
            6 if at + 2 <= data.len() => {
                data[at..at + 2].copy_from_slice(&(NUMBERS[rng.below(NUMBERS.len())] as u16).to_le_bytes());
            }
            7 => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                let part = &other[from..(from + rng.below(64)).min(other.len())];
                data.splice(at..at, part.iter().copied());
            }
            8 if at < data.len() => {
                let to = (at + rng.below(32)).min(data.len());
                let part = data[at..to].to_vec();
                data.splice(at..at, part);
            }
            _ => {}
        }
    }
}

/// A body around mutated frames, with sizes that are right, so that what is inside is reached.
fn around(rng: &mut Rng, frames: &[u8], n: u32) -> Vec<u8> {
    let z = zstd::bulk::compress(frames, 1).unwrap();
    let group = [&b"\x01\0q\x01\0p"[..], &n.to_le_bytes(), &(z.len() as u32).to_le_bytes(), &z].concat();
    let groups = [&1u32.to_le_bytes()[..], &group].concat();
    match rng.below(3) {
        0 => {
            let z = zstd::bulk::compress(&groups, 1).unwrap();
            [b"QPB1\x09", &(groups.len() as u32).to_le_bytes()[..], &z].concat()
        }
        1 => [b"QTB1\0\0\0\0\0", &groups[..]].concat(),
        _ => [b"QPB1\x08", &groups[..]].concat(),
    }
}

fn run(data: &[u8]) {
    targets::push_body(data);
    targets::transaction_body(data);
    targets::frames(data);
    targets::zstd(data);
}

#[test]
fn soak() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let limit = Duration::from_millis(number("FUZZ_SECONDS").map_or(300, |seconds| seconds * 1000));
    let first = number("FUZZ_SEED");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for dir in ["tests/vectors", "fuzz/corpus/push_body", "fuzz/corpus/transaction_body", "fuzz/corpus/frames"] {
        let mut paths: Vec<_> = std::fs::read_dir(root.join(dir)).unwrap().map(|e| e.unwrap().path()).collect();
        paths.retain(|path| path.metadata().unwrap().len() < 4096 && path.extension().is_none_or(|e| e == "bin"));
        paths.sort();
        seeds.extend(paths.iter().map(|path| std::fs::read(path).unwrap()));
    }
    let inner: Vec<(Vec<u8>, u32)> = seeds.iter().filter_map(|seed| frames_of(seed)).collect();
    assert!(seeds.len() > 60 && inner.len() > 5, "{} seeds, {} with frames", seeds.len(), inner.len());
    let (begun, mut done) = (Instant::now(), 0u64);
    while begun.elapsed() < limit {
        for _ in 0..200 {
            let seed = first.unwrap_or(0x5eed).wrapping_add(done);
            let mut rng = Rng(seed);
            let data = if rng.below(3) == 0 {
                let (frames, n) = &inner[rng.below(inner.len())];
                let mut frames = frames.clone();
                mutate(&mut rng, &mut frames, &seeds);
                let n = if rng.below(4) == 0 { rng.below(8) as u32 } else { *n };
                around(&mut rng, &frames, n)
            } else {
                let mut data = seeds[rng.below(seeds.len())].clone();
                mutate(&mut rng, &mut data, &seeds);
                data
            };
            if std::panic::catch_unwind(|| run(&data)).is_err() {
                panic!("FUZZ_SEED={seed}: {data:02x?}");
            }
            done += 1;
        }
    }
    println!("{done} inputs, four targets each, in {:?}", begun.elapsed());
}

/// The frames of the first wire group of a good packed push.
fn frames_of(seed: &[u8]) -> Option<(Vec<u8>, u32)> {
    let open = push::open(&seed.to_vec().into(), targets::LIMIT).ok().filter(|open| open.packed)?;
    let rest = open.rest().ok()?;
    let groups = crate::wire::packed::walk(&rest, 0, targets::LIMIT).ok()?;
    let group = groups.first()?;
    Some((group.inflate(0).ok()?.to_vec(), group.n))
}
