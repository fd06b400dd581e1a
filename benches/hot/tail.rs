//! The newest records of a lane: what a pop of it is served from.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use queen_shards::command::{Codec, Record};
use queen_shards::ids::{Offset, Stamp};
use queen_shards::tail::Tail;

const MESSAGES: u32 = 100;
const RECORDS: i64 = 200;

fn record(n: i64) -> Record {
    Record {
        base: Offset(n * i64::from(MESSAGES)),
        created_at: Stamp(1_789_200_930_123_456 + n),
        count: MESSAGES,
        codec: Codec::Zstd,
        flags: 0,
        raw_len: 32_000,
        body: Bytes::from_static(&[7; 9_000]),
        frames: None,
        keys: Bytes::from_static(&[7; 1_600]),
    }
}

pub fn all(criterion: &mut Criterion) {
    let mut tail = Tail::default();
    (0..RECORDS).for_each(|n| tail.push(record(n)));
    let mut group = criterion.benchmark_group("tail");
    for (what, messages) in [("100 messages", 100), ("1000 messages", 1000)] {
        let from = Offset(100 * i64::from(MESSAGES) + 30);
        group.throughput(Throughput::Elements(u64::from(messages)));
        group.bench_function(format!("span and read, {what}"), |b| {
            let mut records = Vec::new();
            b.iter(|| {
                records.clear();
                let to = tail.span(from, messages, u64::MAX, 0).expect("held");
                tail.read(from, to, &mut records)
            });
        });
    }
    group.throughput(Throughput::Elements(u64::from(MESSAGES)));
    group.bench_function("push a record, drop the oldest", |b| {
        let mut n = RECORDS;
        b.iter(|| {
            tail.push(record(n));
            n += 1;
            tail.drop_front()
        });
    });
}
