//! A pop of 100 messages rendered as JSON and as frames, from a raw and from a packed record.

use criterion::{Criterion, Throughput};
use queen::http::pop::framed;
use queen::http::pop::render::{Answer, render};
use queen_shards::command::{Claim, Codec, Record};
use queen_shards::frames::{FrameHead, FrameWriter};
use queen_shards::ids::{GroupId, LeaseId, MessageId, Offset, PartitionId, Stamp};

const MESSAGES: u32 = 100;

fn claim(size: usize, codec: Codec) -> Claim {
    let mut frames = FrameWriter::default();
    for n in 0..MESSAGES {
        let transaction_id = format!("0199-0000-{n:08}");
        let payload = format!(r#"{{"n":{n},"text":"{}"}}"#, "lorem ipsum dolor ".repeat(size / 18));
        let head = FrameHead { id: MessageId(n as u128), transaction_id: &transaction_id, ..FrameHead::default() };
        frames.push(&head, payload.as_bytes());
    }
    let raw = frames.into_bytes();
    let body = match codec {
        Codec::Raw => raw.clone(),
        Codec::Zstd => zstd::bulk::compress(&raw, 1).expect("compresses").into(),
    };
    let record = Record {
        base: Offset(1_000_000),
        created_at: Stamp(1_789_200_930_123_456),
        count: MESSAGES,
        codec,
        flags: 0,
        raw_len: raw.len() as u32,
        body,
        frames: None,
        keys: Default::default(),
    };
    Claim {
        partition: PartitionId(57607),
        group: GroupId(1),
        name: "p-0".into(),
        start: record.base,
        end: record.last(),
        attempt: 1,
        records: vec![record],
    }
}

pub fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pop_render");
    group.throughput(Throughput::Elements(u64::from(MESSAGES)));
    for (what, size, codec) in
        [("256 B raw", 256, Codec::Raw), ("256 B packed", 256, Codec::Zstd), ("16 KiB packed", 16 << 10, Codec::Zstd)]
    {
        let claims = [claim(size, codec)];
        let answer = Answer {
            queue: "orders",
            group: "ledger",
            lease: Some(LeaseId(1 << 100)),
            claims: &claims,
            policy: Default::default(),
            cipher: None,
            autopilot: None,
        };
        group.bench_function(format!("{what}, JSON"), |b| b.iter(|| render(&answer).expect("a good record").len()));
        group.bench_function(format!("{what}, framed"), |b| {
            b.iter(|| framed::render(&answer).expect("a good record").len());
        });
    }
}
