//! The dedup window: entering the keys of a segment, and judging keys that are new or known.

use criterion::{BatchSize, Criterion, Throughput};
use queen_shards::ids::{Key, Offset, Stamp};
use queen_shards::key::KeyHasher;
use queen_shards::window::Window;

const MESSAGES: usize = 100;

fn keys(hasher: &KeyHasher, from: usize, count: usize) -> Vec<Key> {
    (from..from + count).map(|n| hasher.key(format!("0199-0000-{n:08}").as_bytes())).collect()
}

fn bytes(keys: &[Key]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0.to_le_bytes()).collect()
}

/// A window that holds so many keys.
fn filled(hasher: &KeyHasher, held: usize) -> Window {
    let mut window = Window::new();
    for base in (0..held).step_by(MESSAGES) {
        window.insert(Offset(base as i64), Stamp(base as i64), &bytes(&keys(hasher, base, MESSAGES.min(held - base))));
    }
    window
}

pub fn all(criterion: &mut Criterion) {
    let hasher = KeyHasher::new(&[7; 16]);
    let mut group = criterion.benchmark_group("window");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    let ids: Vec<String> = (0..MESSAGES).map(|n| format!("0199a000-7000-4000-8000-{n:012x}")).collect();
    group.bench_function("hash 100 transaction ids", |b| {
        b.iter(|| ids.iter().fold(0, |sum, id| sum ^ hasher.key(id.as_bytes()).0));
    });
    for held in [10, 10_000, 300_000] {
        let window = filled(&hasher, held);
        let probe = |keys: &[Key]| keys.iter().filter(|key| window.probe(**key, Stamp(0)).is_some()).count();
        let fresh = keys(&hasher, 10_000_000, MESSAGES);
        group.bench_function(format!("{held} held, judge 100 new keys"), |b| b.iter(|| probe(&fresh)));
        let step = (held / MESSAGES).max(1);
        let known: Vec<Key> = (0..MESSAGES).flat_map(|n| keys(&hasher, n * step % held, 1)).collect();
        group.bench_function(format!("{held} held, judge 100 known keys"), |b| b.iter(|| probe(&known)));
    }
    let segment = bytes(&keys(&hasher, 10_000_000, MESSAGES));
    group.bench_function("10000 held, enter 100 keys", |b| {
        b.iter_batched_ref(
            || filled(&hasher, 10_000),
            |window| window.insert(Offset(10_000), Stamp(10_000), &segment),
            BatchSize::LargeInput,
        );
    });
}
