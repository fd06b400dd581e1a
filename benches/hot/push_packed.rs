//! A push of 100 messages, packed by the client, beside the same messages as JSON: from the body to the drafts.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use queen::http::push::{
    binary::parse_packed,
    parse::parse,
    plan::{Sender, plan},
};
use queen::wire::{packed, push};
use queen_shards::frames::{FrameHead, FrameWriter};
use queen_shards::ids::{MessageId, TenantId};
use queen_shards::key::KeyHasher;

const MESSAGES: usize = 100;
const ZSTD_LEVEL: i32 = 1;
const SENDER: Sender<'static> = Sender { tenant: TenantId::DEFAULT, producer: None, cipher: None };
const LIMIT: u64 = 64 << 20;

/// A document of about 256 bytes of which a third differs from message to message.
fn payload(n: usize) -> String {
    let noise =
        |k: u64| format!("{:016x}", (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(k as u32 * 7));
    let lines: Vec<String> = (0..3).map(|k| format!(r#"{{"sku":"{}","cents":{}}}"#, noise(k), 1000 + n)).collect();
    format!(
        r#"{{"order":"{}","lines":[{}],"note":"leave at the door, ring twice; leave at the door"}}"#,
        noise(9),
        lines.join(",")
    )
}

fn key(n: usize) -> String {
    format!("0199a000-7000-4{:03x}-8000-{n:012x}", n * 37 % 4096)
}

fn json_body() -> Vec<u8> {
    let item = |n: usize| {
        format!(r#"{{"queue":"orders","partition":"p-7","transactionId":"{}","payload":{}}}"#, key(n), payload(n))
    };
    format!(r#"{{"items":[{}]}}"#, (0..MESSAGES).map(item).collect::<Vec<_>>().join(",")).into()
}

fn packed_body() -> Bytes {
    let mut frames = FrameWriter::default();
    for n in 0..MESSAGES {
        let head =
            FrameHead { id: MessageId(0x0199 << 112 | n as u128), transaction_id: &key(n), ..FrameHead::default() };
        frames.push(&head, payload(n).as_bytes());
    }
    let z = zstd::bulk::compress(frames.as_slice(), ZSTD_LEVEL).expect("room");
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let sizes = [(MESSAGES as u32).to_le_bytes(), (z.len() as u32).to_le_bytes()].concat();
    [b"QPB1\x08\x01\0\0\0", &text("orders")[..], &text("p-7"), &sizes, &z].concat().into()
}

pub fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("push_packed");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    let keys = KeyHasher::new(&[7; 16]);
    let ids: Vec<MessageId> = (0..MESSAGES as u128).map(|n| MessageId(0x0199 << 112 | n)).collect();
    let json = json_body();
    group.bench_function("JSON: read, plan and pack", |b| {
        b.iter(|| {
            let parsed = parse(&json).expect("a good body");
            plan(SENDER, &parsed, &ids, &keys, ZSTD_LEVEL).drafts.len()
        });
    });
    let body = packed_body();
    let groups = || {
        let open = push::open(&body, LIMIT).expect("a good body");
        open.rest().expect("a good body")
    };
    let rest = groups();
    group.bench_function("packed: walk and inflate", |b| {
        b.iter(|| packed::walk(&rest, 0, LIMIT).expect("good groups")[0].inflate(0).expect("a good frame").len());
    });
    group.bench_function("packed: walk, inflate, check", |b| {
        b.iter(|| {
            let groups = packed::walk(&rest, 0, LIMIT).expect("good groups");
            let frames = [groups[0].inflate(0).expect("a good frame")];
            parse_packed(&rest, &groups, &frames).expect("good messages").1.len()
        });
    });
    group.bench_function("packed: all, and plan", |b| {
        b.iter(|| {
            let groups = packed::walk(&rest, 0, LIMIT).expect("good groups");
            let frames = [groups[0].inflate(0).expect("a good frame")];
            let (parsed, ids) = parse_packed(&rest, &groups, &frames).expect("good messages");
            plan(SENDER, &parsed, &ids, &keys, ZSTD_LEVEL).drafts.len()
        });
    });
}
