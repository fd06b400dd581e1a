//! What a set of acks does to a cursor: one key at the end of a batch, or every key of it.

use criterion::{Criterion, Throughput};
use queen_shards::ack::{CursorView, Place, rule};
use queen_shards::command::{AckItem, Disposition};
use queen_shards::ids::{Key, Offset};

const MESSAGES: u32 = 100;

pub fn all(criterion: &mut Criterion) {
    let cursor = CursorView {
        committed: Offset(999),
        batch_end: Some(Offset(999 + i64::from(MESSAGES))),
        conflating: false,
        retry_count: 0,
        attempt_start: Some(Offset(1000)),
        attempt_count: 1,
        has_lease: true,
    };
    let mut group = criterion.benchmark_group("ack_rule");
    for (what, first, word) in [
        ("the last of 100", MESSAGES - 1, Disposition::Completed),
        ("all of 100", 0, Disposition::Completed),
        ("all of 100 failed", 0, Disposition::Failed),
    ] {
        let places: Vec<Place> = (first..MESSAGES).map(|n| Place::Span(Offset(1000 + i64::from(n)))).collect();
        let items: Vec<AckItem> =
            (first..MESSAGES).map(|n| AckItem { key: Key(u128::from(n)), word, error: None }).collect();
        group.throughput(Throughput::Elements(items.len() as u64));
        group.bench_function(what, |b| b.iter(|| rule(&cursor, &places, &items, 3, true)));
    }
}
