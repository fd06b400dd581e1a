//! The stored form of a segment: 100 messages of 256 B framed, and packed with zstd.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use queen::store::pack::pack;
use queen_shards::frames::{FrameHead, FrameWriter};
use queen_shards::ids::MessageId;

const MESSAGES: usize = 100;

/// A document of about 256 bytes of which a third differs from message to message.
fn payload(n: usize) -> String {
    let noise = |k: u32| format!("{:016x}", (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(k * 7));
    let lines: Vec<String> = (0..3).map(|k| format!(r#"{{"sku":"{}","cents":{}}}"#, noise(k), 1000 + n)).collect();
    format!(
        r#"{{"order":"{}","lines":[{}],"note":"leave at the door, ring twice; leave at the door"}}"#,
        noise(9),
        lines.join(",")
    )
}

fn frames(messages: &[(String, String)]) -> Bytes {
    let mut frames = FrameWriter::with_capacity(40_000);
    for (n, (key, payload)) in messages.iter().enumerate() {
        let head = FrameHead { id: MessageId(n as u128), transaction_id: key, ..FrameHead::default() };
        frames.push(&head, payload.as_bytes());
    }
    frames.into_bytes()
}

pub fn all(criterion: &mut Criterion) {
    let key = |n: usize| format!("0199a000-7000-4{:03x}-8000-{n:012x}", n * 37 % 4096);
    let messages: Vec<(String, String)> = (0..MESSAGES).map(|n| (key(n), payload(n))).collect();
    let raw = frames(&messages);
    let mut group = criterion.benchmark_group("segment");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    group.bench_function("frame", |b| b.iter(|| frames(&messages)));
    for level in [1, 3] {
        group.bench_function(format!("zstd level {level}"), |b| b.iter(|| pack(&raw, level)));
    }
    let (_, packed) = pack(&raw, 1);
    group.bench_function("inflate", |b| b.iter(|| zstd::bulk::decompress(&packed, raw.len()).expect("just packed")));
}
