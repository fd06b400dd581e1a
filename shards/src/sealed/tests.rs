use super::*;
use crate::window::Window;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Instant;

fn key(n: u64) -> Key {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    };
    let high = mix(n.wrapping_add(0x9e3779b97f4a7c15));
    Key((high as u128) << 64 | mix(high) as u128)
}

fn slice(keys: impl Iterator<Item = Key>) -> Slice {
    let mut slice = Slice::new(RUN_KEYS, Offset::NONE);
    slice.add(keys.zip(0..).map(|(key, n)| (key, Offset(n), Stamp(n))));
    slice
}

/// A lane's memory as its owner keeps it: window, sealed runs, and the rows as the store has them.
#[derive(Default)]
struct Lane {
    window: Window,
    sealed: Sealed,
    rows: HashMap<RowId, Bytes>,
}

impl Lane {
    fn seal(&mut self, keys_max: usize, drop: bool) {
        if keys_max.is_multiple_of(2) {
            self.window.close();
        }
        let mut slice = Slice::new(keys_max, self.sealed.last().unwrap_or(Offset::NONE));
        while !self.window.copy_oldest(&mut slice) {
            let before = slice.len();
            if self.window.copy_oldest(&mut slice) || slice.len() == before {
                break;
            }
        }
        if slice.is_empty() {
            return;
        }
        let SealedRun { run, rows } = slice.seal();
        for (row, bytes) in (0..).zip(rows) {
            self.rows.insert(RowId { run: run.id(), row }, bytes);
        }
        let run = Run::decode(&run.encode()).expect("what was encoded");
        let last = run.last;
        self.sealed.push(run);
        while drop && !self.window.drop_through(last) {}
    }

    fn probe(&self, key: Key, floor: Stamp) -> Option<Offset> {
        let row = |id: RowId| find_in_row(&self.rows[&id], key, floor).map(|hit| hit.0);
        self.sealed.might_hold(key, floor).find_map(row).or_else(|| self.window.probe(key, floor))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        count: usize,
        alphabet: u64,
        gap: i64,
        pause: i64,
    },
    /// `drop`: the window lets go of what was sealed before; else both have it for a while.
    Seal {
        keys_max: usize,
        drop: bool,
    },
    Expire {
        age: i64,
    },
}

fn a_step() -> impl Strategy<Value = Step> {
    let alphabet = prop_oneof![Just(1u64), 1u64..40, 1u64..5000, Just(1 << 40)];
    let gap = prop_oneof![4 => Just(0i64), 1 => 1i64..9, 1 => Just(1i64 << 33)];
    let pause = prop_oneof![4 => 0i64..50, 1 => Just(1i64 << 33)];
    let insert = (prop_oneof![1usize..3, 1usize..1500], alphabet, gap, pause);
    prop_oneof![
        8 => insert.prop_map(|(count, alphabet, gap, pause)| Step::Insert { count, alphabet, gap, pause }),
        3 => (1usize..6000, prop::bool::weighted(0.8)).prop_map(|(keys_max, drop)| Step::Seal { keys_max, drop }),
        2 => (0i64..600).prop_map(|age| Step::Expire { age }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Window and sealed runs together find what a list of everything ever stored finds.
    #[test]
    fn window_and_sealed_runs_are_their_naive_twin(steps in prop::collection::vec(a_step(), 1..40)) {
        let mut lane = Lane::default();
        let mut twin: HashMap<Key, Vec<(Offset, Stamp)>> = HashMap::new();
        let (mut next, mut now, mut floor, mut seed) = (0i64, 0i64, i64::MIN, 1u64);
        for step in steps {
            match step {
                Step::Insert { count, alphabet, gap, pause } => {
                    next += gap;
                    now += pause;
                    let mut column = Vec::new();
                    for i in 0..count as i64 {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let key = key((seed >> 24) % alphabet);
                        twin.entry(key).or_default().push((Offset(next + i), Stamp(now)));
                        column.extend_from_slice(&key.0.to_le_bytes());
                    }
                    lane.window.insert(Offset(next), Stamp(now), &column);
                    next += count as i64;
                }
                Step::Seal { keys_max, drop } => lane.seal(keys_max, drop),
                Step::Expire { age } => {
                    floor = floor.max(now - age);
                    lane.window.expire(Stamp(floor));
                    for gone in lane.sealed.expire(Stamp(floor)) {
                        lane.rows.retain(|id, _| id.run != gone);
                    }
                }
            }
            let some = twin.keys().copied().take(40);
            for key in some.chain((0..30).map(key)).chain([key(1 << 60)]) {
                for floor in [floor, floor.max(now - 60), floor.max(now)].map(Stamp) {
                    let want = twin.get(&key).and_then(|all| all.iter().find(|o| floor <= o.1)).map(|o| o.0);
                    prop_assert_eq!(lane.probe(key, floor), want);
                }
            }
        }
    }

    /// Rows and runs that are damaged hold nothing and break nothing.
    #[test]
    fn damaged_bytes_are_no_rows_and_no_runs(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1usize..40) {
        let _ = find_in_row(&bytes, key(1), Stamp(i64::MIN));
        let _ = Run::decode(&bytes);
        let run = slice((0..50).map(key)).seal().run.encode();
        prop_assert_eq!(Run::decode(&run[..cut]), None);
        prop_assert_eq!(Run::decode(&run[..run.len() - cut]), None);
    }
}

#[test]
fn a_filter_says_yes_to_its_keys_whatever_they_are() {
    for count in [0u64, 1, 2, 3, 10, 100, 1000, 30_000] {
        let uniform: Vec<Key> = (0..count).map(key).collect();
        let low: Vec<Key> = (0..count).map(|n| Key(n.into())).collect();
        let high: Vec<Key> = (0..count).map(|n| Key(u128::from(n) << 64)).collect();
        for keys in [uniform, low, high] {
            let filter = Filter::build(&keys);
            assert!(keys.iter().all(|&key| filter.might_hold(key)));
        }
    }
}

#[test]
fn a_run_ends_at_a_gap_and_where_its_32_bits_do() {
    for far in [(Offset(2), Stamp(1)), (Offset(1), Stamp(1 << 32))] {
        let mut slice = Slice::new(100, Offset::NONE);
        assert!(slice.add([(key(0), Offset(0), Stamp(0))].into_iter()));
        assert!(!slice.add([(key(1), far.0, far.1)].into_iter()));
        assert_eq!((slice.len(), slice.last()), (1, Offset(0)));
    }
}

#[test]
fn a_key_repeated_over_many_rows_is_found_in_each() {
    let SealedRun { run, rows } = slice((0..5000).map(|n| key(if n % 2 == 0 { 7 } else { n }))).seal();
    let lowest = |floor| {
        let mut rows = run.rows_of(key(7)).map(|id| &rows[id.row as usize]);
        rows.find_map(|row| find_in_row(row, key(7), Stamp(floor))).map(|hit| hit.0)
    };
    assert!(7 < run.rows_of(key(7)).count());
    for floor in [0, 1, 2, 999, 4998] {
        assert_eq!(lowest(floor), Some(Offset((floor + 1) / 2 * 2)));
    }
    assert_eq!(lowest(4999), None);
}

/// Prints figures with `--nocapture`; asserts only what holds on any machine.
#[test]
fn figures() {
    let (runs, keys) = (8u64, 200_000u64);
    let mut sealed = Sealed::default();
    let (mut row_bytes, mut started) = (0, Instant::now());
    for run in 0..runs {
        let slice = slice((0..keys).map(|n| key(run << 40 | n)));
        started = Instant::now();
        let SealedRun { run, rows } = slice.seal();
        row_bytes += rows.iter().map(Bytes::len).sum::<usize>();
        assert!(rows.iter().all(|row| row.len() <= 7_696));
        sealed.push(run);
    }
    println!(
        "seal: {:?} a run of {keys} keys; {} B a key in the store",
        started.elapsed(),
        row_bytes as u64 / runs / keys
    );
    let asked: Vec<Key> = (0..500_000).map(|n| key(1 << 60 | n)).collect();
    let started = Instant::now();
    let rows: usize = asked.iter().map(|&key| sealed.might_hold(key, Stamp(0)).count()).sum();
    let each = started.elapsed() / asked.len() as u32;
    let bits = 8.0 * sealed.bytes() as f64 / (runs * keys) as f64;
    let false_hits = rows as f64 / asked.len() as f64 / runs as f64;
    println!(
        "filters: {bits:.2} bits a key, false hits {:.4} % a run, a miss over {runs} runs {each:?}",
        100.0 * false_hits
    );
    assert!(bits < 20.0 && false_hits < 0.001, "{bits} bits, {false_hits}");
}
