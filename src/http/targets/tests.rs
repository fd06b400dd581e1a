//! The targets without a fuzzer: their corpus, cut and with each bit flipped, and a seeded one that knows the words.
//!
//! `FUZZ_SECONDS=1800 cargo test --release --lib http::targets -- --nocapture` runs longer and says how much it did;
//! `FUZZ_SEED` repeats one input: a failure names its seed.

use std::path::Path;
use std::time::{Duration, Instant};

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 4] = [
    ("http_head", super::http_head),
    ("http_chunks", super::http_chunks),
    ("json_bodies", super::json_bodies),
    ("token", super::token),
];

/// What makes a difference to the readers.
const WORDS: [&[u8]; 40] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b": ",
    b" ",
    b"\t",
    b"\0",
    b"\x7f",
    b"%2F",
    b"%",
    b"?",
    b"#",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"Host: a",
    b"Content-Length: 5",
    b"Content-Length: 18446744073709551616",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"0\r\n\r\n",
    b"ffffffffffffffff",
    b";",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"1e400",
    b"-0",
    b"null",
    b"\"items\":",
    b"\"queue\":",
    b"\"payload\":",
    b".",
    b"eyJhbGciOiJub25lIn0",
    b"\xff",
];

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

#[test]
fn the_corpus_is_replayed() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 3, "{name}: {} files", files.len());
        for bytes in files {
            (0..=bytes.len()).for_each(|end| target(&bytes[..end]));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                target(&damaged);
            }
        }
    }
}

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

fn mutate(rng: &mut Rng, data: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(data.len() + 1);
        match rng.below(8) {
            0 if at < data.len() => data[at] ^= 1 << rng.below(8),
            1 if at < data.len() => data[at] = rng.next() as u8,
            2 => data.insert(at, rng.next() as u8),
            3 if at < data.len() => drop(data.remove(at)),
            4 if rng.below(4) == 0 => data.truncate(at),
            5 => drop(data.splice(at..at, WORDS[rng.below(WORDS.len())].iter().copied())),
            6 => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                let part = &other[from..(from + rng.below(64)).min(other.len())];
                drop(data.splice(at..at, part.iter().copied()));
            }
            7 if at < data.len() => {
                let part = data[at..(at + rng.below(32)).min(data.len())].to_vec();
                drop(data.splice(at..at, part));
            }
            _ => {}
        }
    }
}

#[test]
fn soak() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let limit =
        Duration::from_millis(number("FUZZ_SECONDS").map_or(1000, |seconds| seconds * 1000)) / TARGETS.len() as u32;
    for (name, target) in TARGETS {
        let seeds = corpus(name);
        let (begun, mut done, mut longest) = (Instant::now(), 0u64, Duration::ZERO);
        while begun.elapsed() < limit {
            for _ in 0..100 {
                let seed = number("FUZZ_SEED").unwrap_or(0x5eed + done);
                let mut rng = Rng(seed);
                let mut data = seeds[rng.below(seeds.len())].clone();
                mutate(&mut rng, &mut data, &seeds);
                let one = Instant::now();
                if std::panic::catch_unwind(|| target(&data)).is_err() {
                    panic!("{name}, FUZZ_SEED={seed}: {:?}", String::from_utf8_lossy(&data));
                }
                longest = longest.max(one.elapsed());
                done += 1;
            }
        }
        println!("{name}: {done} inputs in {:?}, the longest {longest:?}", begun.elapsed());
    }
}
