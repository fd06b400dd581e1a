use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A key as uniform as the real ones.
fn key(n: u64) -> Key {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    };
    let high = mix(n.wrapping_add(0x9e3779b97f4a7c15));
    Key((high as u128) << 64 | mix(high) as u128)
}

fn column(keys: impl IntoIterator<Item = Key>) -> Vec<u8> {
    keys.into_iter().flat_map(|key| key.0.to_le_bytes()).collect()
}

/// Every occurrence of every key, never forgotten.
#[derive(Default)]
struct Twin {
    seen: HashMap<Key, Vec<(Offset, Stamp)>>,
    last: Option<Offset>,
}

impl Twin {
    fn insert(&mut self, base: Offset, created_at: Stamp, keys: &[Key]) {
        for (i, &key) in keys.iter().enumerate() {
            self.seen.entry(key).or_default().push((base.plus(i as i64), created_at));
            self.last = Some(base.plus(i as i64));
        }
    }
    fn lowest(&self, key: Key, wanted: impl Fn(Offset, Stamp) -> bool) -> Option<Offset> {
        self.seen.get(&key)?.iter().find(|&&(offset, created_at)| wanted(offset, created_at)).map(|o| o.0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Keys are drawn from `0..alphabet`, offset by the step's number when `fresh`.
    Insert {
        count: usize,
        alphabet: u64,
        fresh: bool,
        gap: i64,
        pause: i64,
    },
    Expire {
        age: i64,
    },
    Clear,
}

fn a_step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![Just(0i64), 0i64..50, Just(1i64 << 33)];
    let insert = (
        prop_oneof![1usize..4, 1usize..700],
        prop_oneof![Just(1u64), 1u64..40, 1u64..5000],
        prop::bool::weighted(0.6),
        prop_oneof![4 => Just(0i64), 1 => 1i64..9],
        prop_oneof![4 => 0i64..50, 1 => pause],
    );
    prop_oneof![
        12 => insert.prop_map(|(count, alphabet, fresh, gap, pause)| Step::Insert { count, alphabet, fresh, gap, pause }),
        8 => (0i64..2000).prop_map(|age| Step::Expire { age }),
        1 => Just(Step::Clear),
    ]
}

/// Plays the steps and compares every kind of probe with the twin.
fn play(steps: &[Step]) {
    let mut window = Window::new();
    let mut twin = Twin::default();
    let (mut next, mut now, mut floor, mut seed) = (0i64, 1000i64, i64::MIN, 1u64);
    let mut fresh_keys = 1u64 << 40;
    for step in steps {
        match *step {
            Step::Insert { count, alphabet, fresh, gap, pause } => {
                next += gap;
                now += pause;
                let keys: Vec<Key> = (0..count)
                    .map(|_| {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        fresh_keys += 1;
                        key(if fresh && seed >> 60 != 0 { fresh_keys } else { (seed >> 33) % alphabet })
                    })
                    .collect();
                window.insert(Offset(next), Stamp(now), &column(keys.iter().copied()));
                twin.insert(Offset(next), Stamp(now), &keys);
                next += count as i64;
                for key in keys.into_iter().step_by(7) {
                    compare(&window, &twin, key, floor, now);
                }
            }
            Step::Expire { age } => {
                floor = floor.max(now - age);
                window.expire(Stamp(floor));
            }
            Step::Clear => {
                window.clear();
                twin = Twin::default();
                assert_eq!(window.bytes(), 0);
            }
        }
        for n in (0..40).chain([fresh_keys, fresh_keys - 500, fresh_keys - 3000, 7 << 50]) {
            compare(&window, &twin, key(n), floor, now);
        }
    }
    // From here everything must go, in bounded steps.
    for _ in 0..10_000 {
        window.expire(Stamp(i64::MAX));
    }
    assert_eq!((window.len(), window.bytes()), (0, 0));
}

#[track_caller]
fn compare(window: &Window, twin: &Twin, key: Key, floor: i64, now: i64) {
    for floor in [floor, floor.max(now - 60), floor.max(now)].map(Stamp) {
        assert_eq!(window.probe(key, floor), twin.lowest(key, |_, at| floor <= at), "probe from {floor:?}");
    }
    let Some(first) = window.first() else { return };
    for (from, to) in [(first.0, i64::MAX), (first.0 + 3, first.0 + 300), (first.0 + 1100, i64::MAX)] {
        let want = twin.lowest(key, |offset, _| from <= offset.0 && offset.0 <= to);
        assert_eq!(window.find(key, Offset(from), Offset(to)), want, "find in {from}..={to}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// A window finds what a list of everything ever stored finds, above the floor it was told.
    #[test]
    fn a_window_is_its_naive_twin(steps in prop::collection::vec(a_step(), 1..80)) {
        play(&steps);
    }
}

#[test]
fn a_lane_of_one_message_needs_no_heap() {
    let mut window = Window::new();
    window.insert(Offset(0), Stamp(1), &column([key(1)]));
    assert_eq!(window.bytes(), 0);
    assert!(size_of::<Window>() <= 48);
}

#[test]
fn the_lowest_live_occurrence_wins_and_the_next_takes_over() {
    for others in [0, 3000] {
        let mut window = Window::new();
        for round in 0..3 {
            let base = Offset(round * 10_000);
            let keys = [key(7)].into_iter().chain((0..others).map(|n| key(100 + n)));
            window.insert(base, Stamp(round * 10), &column(keys));
        }
        for (floor, want) in [(0, Some(0)), (1, Some(10_000)), (10, Some(10_000)), (11, Some(20_000)), (21, None)] {
            assert_eq!(window.probe(key(7), Stamp(floor)), want.map(Offset), "without expiry");
        }
        for (floor, want) in [(0, Some(0)), (1, Some(10_000)), (11, Some(20_000)), (21, None)] {
            (0..100).for_each(|_| window.expire(Stamp(floor)));
            assert_eq!(window.probe(key(7), Stamp(floor)), want.map(Offset), "after expiry");
        }
        assert!(window.is_empty());
    }
}

#[test]
fn what_is_already_here_is_skipped() {
    for count in [1, 10, 5000] {
        let mut window = Window::new();
        let keys = column((0..count).map(key));
        window.insert(Offset(0), Stamp(1), &keys);
        window.insert(Offset(0), Stamp(1), &keys);
        assert_eq!(window.len(), count as usize);
    }
}

#[test]
fn one_key_a_hundred_thousand_times_stays_quick() {
    let mut window = Window::new();
    let keys = column([key(1); 1000]);
    let started = Instant::now();
    for i in 0..100 {
        window.insert(Offset(i * 1000), Stamp(i), &keys);
        window.expire(Stamp(i - 20));
        assert_eq!(window.probe(key(1), Stamp(i - 20)), Some(Offset((i - 20).max(0) * 1000)));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "it would be minutes if it were quadratic");
    assert!(window.len() < 50_000);
}

#[test]
fn keys_that_are_not_uniform_are_still_exact() {
    let mut window = Window::new();
    for high in [0u128, 1 << 64] {
        let keys = (0..20_000u128).map(|n| Key(high | n));
        window.insert(Offset(if high == 0 { 0 } else { 20_000 }), Stamp(1), &column(keys));
    }
    for n in (0..20_000u128).step_by(17) {
        assert_eq!(window.probe(Key(n), Stamp(0)), Some(Offset(n as i64)));
        assert_eq!(window.probe(Key(1 << 64 | n), Stamp(0)), Some(Offset(20_000 + n as i64)));
    }
}

/// Prints figures with `--nocapture`; asserts only what holds on any machine.
#[test]
fn figures() {
    let (total, live) = (3_000_000i64, 1_000_000i64);
    let mut window = Window::new();
    let (mut slowest, mut inserting) = (Duration::ZERO, Duration::ZERO);
    let mut next = 0u64;
    let segment = 100;
    while (next as i64) < total {
        let keys = column((0..segment).map(|i| key(next + i)));
        let started = Instant::now();
        window.expire(Stamp(next as i64 - live));
        window.insert(Offset(next as i64), Stamp(next as i64), &keys);
        let took = started.elapsed();
        (slowest, inserting) = (slowest.max(took), inserting + took);
        next += segment;
        if [17, 100, 1000, 10_000, 100_000, 500_000, 1_000_000, 1_400_000, 2_000_000, 3_000_000].contains(&next) {
            println!("{:>8} keys: {:.1} B each", window.len(), window.bytes() as f64 / window.len() as f64);
        }
    }
    let misses: Vec<Key> = (0..500_000).map(|n| key(1 << 50 | n)).collect();
    let started = Instant::now();
    assert!(misses.iter().all(|&key| window.probe(key, Stamp(0)).is_none()));
    let miss = started.elapsed() / misses.len() as u32;
    let hits: Vec<Key> = (0..500_000).map(|n| key((total - live) as u64 + n * 7919 % live as u64)).collect();
    let started = Instant::now();
    assert!(hits.iter().all(|&key| window.probe(key, Stamp(0)).is_some()));
    let hit = started.elapsed() / hits.len() as u32;
    println!(
        "insert+expire {:?} a key, slowest call of {segment} keys {slowest:?}; probe miss {miss:?}, hit {hit:?}",
        inserting / total as u32
    );
    let each = window.bytes() as f64 / window.len() as f64;
    assert!(each < 30.0, "{each} bytes a key");
}
