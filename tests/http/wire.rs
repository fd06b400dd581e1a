//! The binary forms as a client writes and reads them, from the specification, with none of the broker's code.

use crate::harness::{Answer, Broker, Client, Message, Pop};
use serde_json::Value;
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

pub const PUSH_TYPE: &str = "application/x-queen-push";
pub const POP_TYPE: &str = "application/x-queen-pop";

/// How a push travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Plain,
    PlainZstd,
    Packed,
    PackedZstd,
}

pub const FORMS: [Form; 5] = [Form::Json, Form::Plain, Form::PlainZstd, Form::Packed, Form::PackedZstd];

#[derive(Clone, Debug)]
pub struct Item {
    pub queue: String,
    pub partition: String,
    /// `None`: whoever mints the id mints this too.
    pub key: Option<String>,
    /// JSON as it is to be stored.
    pub payload: String,
}

impl Item {
    pub fn new(queue: &str, partition: &str, key: &str, payload: &str) -> Item {
        let (queue, partition, payload) = (queue.to_owned(), partition.to_owned(), payload.to_owned());
        Item { queue, partition, key: Some(key.to_owned()), payload }
    }
}

/// One request on this thread's kept connection.
#[track_caller]
pub fn send(b: &Broker, method: &str, path: &str, content_type: &str, body: Option<&[u8]>) -> Answer {
    thread_local!(static CLIENTS: RefCell<HashMap<u16, Client>> = RefCell::default());
    let answer = CLIENTS.with_borrow_mut(|clients| {
        let client = clients.entry(b.port).or_insert_with(|| b.client());
        client.send(method, path, &[("Content-Type", content_type)], body)
    });
    answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

/// Pushes in a form; the verdicts.
#[track_caller]
pub fn push(b: &Broker, form: Form, items: &[Item]) -> Vec<Value> {
    let answer = send_push(b, form, items, 0);
    assert_eq!(answer.status, 201, "{form:?}: {}", answer.text());
    answer.json().as_array().expect("an array of verdicts").clone()
}

/// `further`: flags beside those of the form. JSON has none.
#[track_caller]
pub fn send_push(b: &Broker, form: Form, items: &[Item], further: u8) -> Answer {
    let content_type = if form == Form::Json { "application/json" } else { PUSH_TYPE };
    send(b, "POST", "/api/v1/push", content_type, Some(&body(form, items, further)))
}

/// A push body.
pub fn body(form: Form, items: &[Item], further: u8) -> Vec<u8> {
    let behind = |flags: u8, groups: Vec<u8>| [b"QPB1", &[flags | further][..], &groups].concat();
    let zstd = |flags: u8, groups: Vec<u8>| {
        let z = zstd::bulk::compress(&groups, 1).unwrap();
        [b"QPB1", &[flags | further][..], &(groups.len() as u32).to_le_bytes(), &z].concat()
    };
    match form {
        Form::Json => {
            let quoted = |text: &str| serde_json::to_string(text).unwrap();
            let item = |item: &Item| {
                let key = item.key.as_deref().map(|key| format!(r#""transactionId":{},"#, quoted(key)));
                let (queue, partition, key) = (quoted(&item.queue), quoted(&item.partition), key.unwrap_or_default());
                format!(r#"{{"queue":{queue},"partition":{partition},{key}"payload":{}}}"#, item.payload)
            };
            format!(r#"{{"items":[{}]}}"#, items.iter().map(item).collect::<Vec<_>>().join(",")).into_bytes()
        }
        Form::Plain => behind(4, plain_groups(items)),
        Form::PlainZstd => zstd(5, plain_groups(items)),
        Form::Packed => behind(8, packed_groups(items)),
        Form::PackedZstd => zstd(9, packed_groups(items)),
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Items that stand together, as clients group them.
fn grouped(items: &[Item]) -> Vec<&[Item]> {
    items.chunk_by(|a, b| a.queue == b.queue && a.partition == b.partition).collect()
}

fn plain_groups(items: &[Item]) -> Vec<u8> {
    let groups = grouped(items);
    let mut out = (groups.len() as u32).to_le_bytes().to_vec();
    for group in groups {
        text(&mut out, &group[0].queue);
        text(&mut out, &group[0].partition);
        out.extend_from_slice(&(group.len() as u32).to_le_bytes());
        for item in group {
            text(&mut out, item.key.as_deref().unwrap_or(""));
            out.extend_from_slice(&(item.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(item.payload.as_bytes());
        }
    }
    out
}

/// The wire groups of a packed push or of a transaction.
pub fn packed_groups(items: &[Item]) -> Vec<u8> {
    let groups = grouped(items);
    let mut out = (groups.len() as u32).to_le_bytes().to_vec();
    for group in groups {
        text(&mut out, &group[0].queue);
        text(&mut out, &group[0].partition);
        out.extend_from_slice(&(group.len() as u32).to_le_bytes());
        let z = zstd::bulk::compress(&frames(group), 1).unwrap();
        out.extend_from_slice(&(z.len() as u32).to_le_bytes());
        out.extend_from_slice(&z);
    }
    out
}

fn frames(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        let id = mint();
        let minted = uuid_text(id);
        let key = item.key.as_deref().unwrap_or(&minted);
        out.extend_from_slice(&((19 + key.len() + item.payload.len()) as u32).to_le_bytes());
        out.push(0);
        out.extend_from_slice(&id.to_be_bytes());
        text(&mut out, key);
        out.extend_from_slice(item.payload.as_bytes());
    }
    out
}

/// A UUID of version 7 that no other message of this process has.
fn mint() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    0x019b76da_a877_7000_8000_000000000000 | NEXT.fetch_add(1, Ordering::Relaxed) as u128
}

pub fn uuid_text(id: u128) -> String {
    let hex = format!("{id:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The packed record of the first wire group of a packed push body.
pub fn first_z(body: &[u8]) -> &[u8] {
    let mut read = Reader(body);
    assert_eq!(read.take(4), b"QPB1");
    read.take(5);
    read.text();
    read.text();
    read.u32();
    let len = read.u32();
    read.take(len as usize)
}

/// A transaction body.
pub fn transaction(head: &str, items: &[Item], flags: u8) -> Vec<u8> {
    [b"QTB1", &[flags][..], &(head.len() as u32).to_le_bytes(), head.as_bytes(), &packed_groups(items)].concat()
}

/// A record of a framed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub base: i64,
    pub created_at_us: i64,
    pub count: u32,
    pub codec: u8,
    pub bytes: Vec<u8>,
}

impl Record {
    pub fn inflated(&self) -> Vec<u8> {
        match self.codec {
            0 => self.bytes.clone(),
            1 => {
                let len = zstd::zstd_safe::get_frame_content_size(&self.bytes).unwrap().expect("a content size");
                assert_eq!(zstd::zstd_safe::find_frame_compressed_size(&self.bytes), Ok(self.bytes.len()), "one frame");
                zstd::bulk::decompress(&self.bytes, len as usize).unwrap()
            }
            codec => panic!("codec {codec}"),
        }
    }
}

/// A framed answer: read as an official client reads it, and its records as they came.
#[derive(Debug, Default)]
pub struct Framed {
    pub own: Value,
    pub pop: Pop,
    pub records: Vec<Record>,
}

/// A pop with `frames=true` that must answer framed, or 204 (the default value).
#[track_caller]
pub fn pop(b: &Broker, path: &str) -> Framed {
    let answer = b.get(path);
    if answer.status == 204 {
        return Framed::default();
    }
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(POP_TYPE)), "{path}: {}", answer.text());
    read(&answer.body)
}

#[track_caller]
pub fn pop_pinned(b: &Broker, queue: &str, partition: &str, query: &str) -> Framed {
    pop(b, &format!("/api/v1/pop/queue/{queue}/partition/{partition}?frames=true&{query}"))
}

/// Reads a framed answer and checks what readers rely on.
#[track_caller]
pub fn read(answer: &[u8]) -> Framed {
    let mut read = Reader(answer);
    assert_eq!((read.take(4), read.u8()), (&b"QPF1"[..], 1));
    let len = read.u32() as usize;
    let own: Value = serde_json::from_slice(read.take(len)).unwrap();
    assert_eq!(own["frames"], true);
    let (queue, lease_id, consumer_group) = (read.text(), read.text(), read.text());
    let claims = read.u32();
    let mut framed = Framed { own, ..Framed::default() };
    for _ in 0..claims {
        let (partition_id, partition) = (read.u64().to_string(), read.text());
        let (start, end, attempt, records) = (read.u64() as i64, read.u64() as i64, read.u32(), read.u32());
        assert!(0 < records && start <= end, "a claim has a message");
        if framed.pop.partition_id.is_empty() {
            (framed.pop.partition_id, framed.pop.partition) = (partition_id.clone(), partition.clone());
        }
        let mut next = 0;
        for _ in 0..records {
            let (base, created_at_us, count, codec) = (read.u64() as i64, read.u64() as i64, read.u32(), read.u8());
            let len = read.u32() as usize;
            let record = Record { base, created_at_us, count, codec, bytes: read.take(len).to_vec() };
            assert!(next <= base, "ascending");
            next = base + count as i64;
            let inflated = record.inflated();
            let mut frames = Reader(&inflated);
            for i in 0..count as i64 {
                let message = frames.frame();
                if (start..=end).contains(&(base + i)) {
                    framed.pop.messages.push(Message {
                        partition_id: partition_id.clone(),
                        partition: partition.clone(),
                        lease_id: lease_id.clone(),
                        consumer_group: consumer_group.clone(),
                        delivery_attempt: attempt as i64,
                        offset: base + i,
                        created_at: created_at_us.to_string(),
                        ..message
                    });
                }
            }
            assert!(frames.0.is_empty(), "the count is right");
            framed.records.push(record);
        }
    }
    assert!(read.0.is_empty(), "bytes after the last claim");
    let pop = &mut framed.pop;
    (pop.success, pop.queue, pop.lease_id, pop.consumer_group) = (true, queue, lease_id, consumer_group);
    pop.partitions_claimed = claims as i64;
    framed
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[track_caller]
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at_checked(n).expect("an answer that is not cut");
        self.0 = rest;
        bytes
    }
    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }
    fn uuid(&mut self) -> String {
        uuid_text(u128::from_be_bytes(self.take(16).try_into().unwrap()))
    }
    fn text(&mut self) -> String {
        let len = u16::from_le_bytes(self.take(2).try_into().unwrap());
        String::from_utf8(self.take(len as usize).to_vec()).unwrap()
    }
    fn frame(&mut self) -> Message {
        let len = self.u32() as usize;
        let mut body = Reader(self.take(len));
        let flags = body.u8();
        assert_eq!(flags & !3, 0, "no encrypted frame, no unknown flag");
        let id = body.uuid();
        let trace_id = (flags & 1 == 1).then(|| body.uuid());
        let transaction_id = body.text();
        let producer_sub = (flags & 2 == 2).then(|| body.text());
        let payload = if body.0.is_empty() { "null" } else { std::str::from_utf8(body.0).unwrap() };
        Message {
            id,
            transaction_id,
            trace_id,
            data: RawValue::from_string(payload.trim().to_owned()).unwrap(),
            producer_sub,
            created_at: String::new(),
            partition_id: String::new(),
            partition: String::new(),
            lease_id: String::new(),
            consumer_group: String::new(),
            delivery_attempt: 0,
            offset: 0,
        }
    }
}
