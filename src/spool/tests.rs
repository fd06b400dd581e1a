//! The spool on disks that fail: power cuts, damage, full disks, and on the real one. Source: reliability 6, F5 to F8.

mod crash;
mod damage;
mod handed;
mod kept;
mod real;
mod sim;
mod unreadable;

use super::files::{Files, FoundLanes, Limits, Outside, Surveyed};
use super::status::Status;
use super::thread::{Steady, block_on};
use queen_shards::command::{Draft, DrainVerdict, Drained, SpoolRecord};
use queen_shards::frames::{FrameHead, FrameWriter, Frames};
use queen_shards::handed::Room;
use queen_shards::ids::{MessageId, Stamp, TenantId};
use queen_shards::place::LaneKey;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A generator that needs no crate: splitmix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// A clock that stands unless it is told, ids that count.
pub struct Still {
    pub ms: u64,
    drawn: Cell<u128>,
}

impl Still {
    pub fn at(ms: u64) -> Still {
        Still { ms, drawn: Cell::new(ms as u128) }
    }
}

impl Outside for Still {
    fn unix_ms(&self) -> u64 {
        self.ms
    }
    fn random(&self) -> u128 {
        self.drawn.set(self.drawn.get().wrapping_mul(0x5851_f42d_4c95_7f2d_1405_7b7e_f767_814f).wrapping_add(77));
        self.drawn.get()
    }
    fn message_id(&self) -> MessageId {
        MessageId(self.random())
    }
}

pub const MS: u64 = 1_790_000_000_000;

pub fn limits() -> Limits {
    Limits { bytes_max: 1 << 30, events_per_file: 10_000 }
}

thread_local! {
    /// Records made so far: each is compared with what comes out of thousands of images, and some are packed.
    static RECORDS: RefCell<HashMap<(u64, usize, bool), SpoolRecord>> = RefCell::default();
}

/// Record number `n`: its number is its id, its transaction id and in its payload.
pub fn record(n: u64, payload: usize, packed: bool) -> SpoolRecord {
    let make = || made(n, payload, packed);
    RECORDS.with_borrow_mut(|records| records.entry((n, payload, packed)).or_insert_with(make).clone())
}

fn made(n: u64, payload: usize, packed: bool) -> SpoolRecord {
    let messages = 1 + n % 3;
    let mut frames = FrameWriter::default();
    for i in 0..messages {
        let transaction_id = format!("t{n}-{i}");
        let payload = format!("\"{}\"", format!("{n}.").repeat(1 + payload / 4));
        let head =
            FrameHead { id: MessageId((n * 8 + i) as u128), transaction_id: &transaction_id, ..FrameHead::default() };
        frames.push(&head, payload.as_bytes());
    }
    let (flags, frames) = (frames.flags(), frames.into_bytes());
    let packed = packed.then(|| zstd::bulk::compress(&frames, 1).expect("compresses").into());
    let lane = LaneKey::new(TenantId::DEFAULT, format!("q{}", n % 5).as_str().into(), "p".into());
    let draft = Draft {
        lane,
        count: messages as u32,
        keys: Default::default(),
        all_minted: n.is_multiple_of(2),
        frames,
        packed,
        flags,
    };
    SpoolRecord { accepted_at: Stamp(1_790_000_000_000_000 + n as i64), draft }
}

/// The number of a record that came out, which must be as it went in.
#[track_caller]
pub fn number(got: &SpoolRecord, as_written: impl Fn(u64) -> SpoolRecord) -> u64 {
    let first = Frames::new(&got.draft.frames).next().expect("a message").expect("whole");
    let n = first.id.0 as u64 / 8;
    let want = as_written(n);
    assert_eq!(got.accepted_at, want.accepted_at, "record {n}");
    let fields = |draft: &Draft| (draft.lane.clone(), draft.count, draft.all_minted, draft.flags, draft.packed.clone());
    assert_eq!(fields(&got.draft), fields(&want.draft), "record {n}");
    assert_eq!(got.draft.frames, want.draft.frames, "record {n} is altered");
    n
}

pub fn open<D: super::disk::Disk>(disk: D, ms: u64, limits: Limits) -> std::io::Result<(Files<D, Still>, Arc<Status>)> {
    // A line for each of a hundred thousand damaged files would be most of the work.
    crate::telemetry::log::init("info,spool=off", false);
    let status = Arc::new(Status::default());
    let files = block_on(Files::open(disk, Still::at(ms), limits, status.clone()))?;
    Ok((files, status))
}

/// What there is to read now, until so much is reached.
pub fn read_some<D: super::disk::Disk>(files: &mut Files<D, Still>, records: usize, bytes: usize) -> Vec<Drained> {
    block_on(files.read(Room { records, bytes })).unwrap_or_default()
}

/// Everything there is to read now.
pub fn read_all<D: super::disk::Disk>(files: &mut Files<D, Still>) -> Vec<Drained> {
    let mut all = Vec::new();
    loop {
        let some = read_some(files, 64, 1 << 20);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

pub fn survey<D: super::disk::Disk>(files: &mut Files<D, Still>) -> FoundLanes {
    let mut lanes = FoundLanes::new();
    while block_on(files.survey(&mut lanes)) == Surveyed::One {}
    lanes
}

pub fn decide_all<D: super::disk::Disk>(files: &mut Files<D, Still>, drained: Vec<Drained>) {
    for one in drained {
        block_on(files.decide(one.id, DrainVerdict::Stored { duplicates: 0 }));
    }
}

/// What a client packed has no frames at hand, and its record is the same.
#[test]
fn what_is_held_packed_only_is_written_alike() {
    let whole = record(3, 2000, true);
    let bare = SpoolRecord { draft: Draft { frames: Default::default(), ..whole.draft.clone() }, ..whole.clone() };
    let written = |record: &SpoolRecord| {
        let mut out = Vec::new();
        assert!(super::format::put_record(&mut out, &[7; 16], 0, record).is_ok());
        out
    };
    assert!(!whole.draft.frames.is_empty());
    assert_eq!(written(&whole), written(&bare));
}

/// A store that decides of a record every few seconds ends no outage, so it is told once; one that goes on draining does.
#[test]
fn an_outage_ends_when_the_backlog_is_drained_without_gaps() {
    let (status, mut stores, begun) = (Status::default(), Steady::default(), Instant::now());
    let mut healthy_after = |ms| {
        status.drained(1, 0);
        if stores.goes_on(begun + Duration::from_millis(ms)) {
            status.recovered();
        }
        status.numbers().db_healthy
    };
    status.outage(100);
    assert!((0..10).all(|n| !healthy_after(n * 2500)), "one every 2.5 s");
    assert!((1..4).all(|n| !healthy_after(22_500 + n * 500)), "not long enough");
    assert!(healthy_after(24_500), "two seconds of it");
    assert!(healthy_after(30_000), "a gap alone is no outage");
    status.outage(100);
    stores.stops();
    let after = |ms| begun + Duration::from_millis(ms);
    assert!(!stores.goes_on(after(30_100)) && !stores.goes_on(after(32_000)), "it begins anew after an outage");
    assert!(stores.goes_on(after(32_100)));
    status.sizes(0, 0, 0);
    assert!(status.numbers().db_healthy, "nothing is left");
}
