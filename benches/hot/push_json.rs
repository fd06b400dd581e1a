//! A JSON push of 100 messages: reading the body (beside serde_json's raw values), planning the drafts, the answer.

use criterion::{Criterion, Throughput};
use queen::http::push::{
    answer::answer,
    parse::parse,
    plan::{Sender, plan},
    told::Told,
};
use queen_shards::command::DraftVerdict;
use queen_shards::ids::{MessageId, Offset, TenantId};
use queen_shards::key::KeyHasher;
use serde::Deserialize;
use serde_json::value::RawValue;

const MESSAGES: usize = 100;
const ZSTD_LEVEL: i32 = 1;

#[derive(Deserialize)]
struct RawBody<'a> {
    #[serde(borrow)]
    items: Vec<RawItem<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "filled to be compared with")]
struct RawItem<'a> {
    queue: &'a str,
    partition: Option<&'a str>,
    transaction_id: Option<&'a str>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// A payload of about `size` bytes: many small members, or one long text.
fn payload(size: usize, nested: bool, n: usize) -> String {
    if !nested {
        return format!(r#"{{"n":{n},"text":"{}"}}"#, "lorem ipsum dolor ".repeat(size / 18));
    }
    let members: Vec<String> = (0..size / 32).map(|i| format!(r#""k{i}":[{n},"v{i}",true,{{"x":1.5}}]"#)).collect();
    format!("{{{}}}", members.join(","))
}

fn body(lanes: usize, size: usize, nested: bool) -> Vec<u8> {
    let item = |n: usize| {
        let (lane, payload) = (n % lanes, payload(size, nested, n));
        format!(r#"{{"queue":"orders","partition":"p-{lane}","transactionId":"0199-0000-{n:08}","payload":{payload}}}"#)
    };
    let items: Vec<String> = (0..MESSAGES).map(item).collect();
    format!(r#"{{"items":[{}]}}"#, items.join(",")).into()
}

pub fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("push_json");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    let keys = KeyHasher::new(&[7; 16]);
    let sender = Sender { tenant: TenantId::DEFAULT, producer: None, cipher: None };
    let ids: Vec<MessageId> = (0..MESSAGES as u128).map(|n| MessageId(0x0199 << 112 | n)).collect();
    for (what, lanes, size, nested) in [
        ("256 B text", 1, 256, false),
        ("256 B members", 1, 256, true),
        ("256 B text, 20 partitions", 20, 256, false),
        ("16 KiB text", 1, 16 << 10, false),
    ] {
        let body = body(lanes, size, nested);
        let name = |step: &str| format!("{what}: {step}");
        group.bench_function(name("read"), |b| b.iter(|| parse(&body).expect("a good body").items.len()));
        group.bench_function(name("read by serde_json"), |b| {
            b.iter(|| serde_json::from_slice::<RawBody>(&body).expect("a good body").items.len());
        });
        let parsed = parse(&body).expect("a good body");
        group.bench_function(name("plan and pack"), |b| {
            b.iter(|| plan(sender, &parsed, &ids, &keys, ZSTD_LEVEL).drafts.len());
        });
        let plan = plan(sender, &parsed, &ids, &keys, ZSTD_LEVEL);
        let stored = DraftVerdict::Stored { base: Offset(1_000_000), duplicates: vec![] };
        let verdicts = vec![stored; parsed.lanes.len()];
        group.bench_function(name("answer"), |b| {
            b.iter(|| answer(&Told::of(&parsed, &ids), &ids, &plan.fates, &verdicts).len())
        });
    }
}
