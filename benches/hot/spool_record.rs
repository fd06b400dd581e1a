//! The spool's file format: a draft of 100 messages written as a record, and found again.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use queen::spool::format::{Found, Header, Scanner, put_record};
use queen_shards::command::{Draft, SpoolRecord};
use queen_shards::frames::{FrameHead, FrameWriter};
use queen_shards::ids::{MessageId, Stamp, TenantId};
use queen_shards::place::LaneKey;

const MESSAGES: u32 = 100;

fn record(packed: bool) -> SpoolRecord {
    let mut writer = FrameWriter::default();
    for n in 0..MESSAGES {
        let (key, payload) =
            (format!("0199-0000-{n:08}"), format!(r#"{{"n":{n},"text":"{}"}}"#, "lorem ipsum ".repeat(20)));
        let head = FrameHead { id: MessageId(u128::from(n)), transaction_id: &key, ..FrameHead::default() };
        writer.push(&head, payload.as_bytes());
    }
    let frames = writer.into_bytes();
    let draft = Draft {
        lane: LaneKey::new(TenantId::DEFAULT, "orders".into(), "p-7".into()),
        count: MESSAGES,
        keys: Bytes::from_static(&[7; 16 * MESSAGES as usize]),
        all_minted: false,
        packed: packed.then(|| zstd::bulk::compress(&frames, 1).expect("compresses").into()),
        frames,
        flags: 0,
    };
    SpoolRecord { accepted_at: Stamp(1_789_200_930_123_456), draft }
}

pub fn all(criterion: &mut Criterion) {
    let header = Header { key: [3; 16], created_ms: 1, number: 1 };
    let mut group = criterion.benchmark_group("spool_record");
    group.throughput(Throughput::Elements(u64::from(MESSAGES)));
    for (what, packed) in [("raw", false), ("packed", true)] {
        let record = record(packed);
        let mut bytes = Vec::with_capacity(64 << 10);
        group.bench_function(format!("write, {what}"), |b| {
            b.iter(|| {
                bytes.clear();
                put_record(&mut bytes, &header.key, 0, &record).expect("names fit");
                bytes.len()
            });
        });
        group.bench_function(format!("find, {what}"), |b| {
            b.iter(|| {
                let mut scanner = Scanner::new(&header);
                scanner.feed(&bytes);
                assert!(matches!(scanner.find(), Found::Record(_)));
            });
        });
    }
}
