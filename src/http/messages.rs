//! `/api/v1/messages`: stored messages, one page or one of them. No lease, no cursor.
//!
//!     SQL picks the messages and brings the segments they lie in -> frames -> JSON, payloads spliced in unchanged
//!
//! Source: data plane 9.1, 9.2.

use super::dead_letters::{hex, push_payload, unhex};
use super::groups::{call, time_arg, value};
use super::json::{parse_stamp, push_quoted, push_uuid};
use super::pop::render::each_frame;
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::cipher::{self, Cipher};
use crate::core_thread::Core;
use crate::state::StateFn;
use queen_shards::command::{Codec, Record};
use queen_shards::frames::Frame;
use queen_shards::ids::{Offset, PartitionId, Stamp};
use queen_shards::key::KeyHasher;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::rc::Rc;

/// Default and cap of `limit`.
const LISTED: i64 = 200;
const LISTED_MAX: i64 = 1000;
/// Messages skipped at most: they are found again for every page, without their bodies.
const SKIPPED_MAX: i64 = 10_000;
/// Messages judged for a page that asks for a status, newest first: about 20 ms.
const JUDGED_MAX: u32 = 1000;
/// Partitions looked into for a page, those written last: an index descent each, about 20 ms together.
const PARTITIONS_MAX: u32 = 1000;
/// Stored bytes of a page's segments. The page ends where they are reached.
const PAGE_BYTES_MAX: u32 = 16 << 20;

/// One message out of its frame.
struct Message {
    id: u128,
    transaction_id: String,
    trace: Option<u128>,
    producer: Option<String>,
    encrypted: bool,
    payload: Vec<u8>,
}

impl Message {
    fn of(frame: &Frame<'_>, cipher: Option<&Cipher>) -> Message {
        Message {
            id: frame.id.0,
            transaction_id: frame.transaction_id.to_owned(),
            trace: frame.trace,
            producer: frame.producer.map(str::to_owned),
            encrypted: frame.encrypted(),
            payload: cipher::delivered(cipher, frame.payload, frame.encrypted()).into_owned(),
        }
    }
}

/// `GET /api/v1/messages`
pub async fn list(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let time = |name: &str| match query.filter(name) {
        None => Ok(None),
        Some(text) => match parse_stamp(text) {
            Some(at) => Ok(Some(time_arg(at))),
            None => Err(Refusal::Invalid(format!("messages failed: {name} is not a time")).response()),
        },
    };
    let (from, to) = match (time("from"), time("to")) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(refused), _) | (_, Err(refused)) => return refused,
    };
    let limit = query.number_or("limit", LISTED).clamp(0, LISTED_MAX);
    let args = json!({
        "queue": query.filter("queue"), "partition": query.filter("partition"), "task": query.filter("task"),
        "namespace": query.filter("namespace").or_else(|| query.filter("ns")), "status": query.filter("status"),
        "from": from, "to": to, "limit": limit, "offset": query.number_or("offset", 0).clamp(0, SKIPPED_MAX),
        "scan": JUDGED_MAX, "partitions": PARTITIONS_MAX, "bytes": PAGE_BYTES_MAX,
    });
    let page = match value(call(core, request, StateFn::ListMessages, args).await, "messages") {
        Ok(page) => page,
        Err(refused) => return refused,
    };
    let Some(keys) = core.keys() else { return Refusal::Pool.response() };
    Response::json(200, page_json(&page, keys, core.cipher.as_ref()))
}

fn page_json(page: &Value, keys: &KeyHasher, cipher: Option<&Cipher>) -> Vec<u8> {
    let rows = page["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let place = |row: &Value| (row["partitionId"].as_str().unwrap_or_default().to_owned(), row["base"].as_i64());
    let mut wanted: HashMap<(String, Option<i64>), Vec<(u32, usize)>> = HashMap::new();
    for (n, row) in rows.iter().enumerate() {
        wanted.entry(place(row)).or_default().push((row["index"].as_u64().unwrap_or(0) as u32, n));
    }
    let mut messages: Vec<Option<Message>> = rows.iter().map(|_| None).collect();
    for segment in page["segments"].as_array().into_iter().flatten() {
        let Some((record, of_segment)) = record(segment).zip(wanted.get(&place(segment))) else { continue };
        // A damaged record leaves its rows without a payload.
        let _ = each_frame(PartitionId(0), &record, |i, frame| {
            for (_, n) in of_segment.iter().filter(|(index, _)| *index == i) {
                messages[*n] = Some(Message::of(frame, cipher));
            }
        });
    }
    let mut out = b"{\"messages\":[".to_vec();
    for (n, (row, message)) in rows.iter().zip(&messages).enumerate() {
        if n > 0 {
            out.push(b',');
        }
        push_row(&mut out, row, message.as_ref(), keys);
    }
    let (queue_mode, groups) = (page["queueMode"] == true, page["groups"].as_i64().unwrap_or(0));
    let kind = match (queue_mode, groups > 0) {
        (true, true) => "hybrid",
        (true, false) => "queue",
        (false, true) => "bus",
        (false, false) => "none",
    };
    let mode = json!({"hasQueueMode": queue_mode, "busGroupsCount": groups, "type": kind});
    out.extend_from_slice(format!("],\"mode\":{mode},\"total\":{}}}", rows.len()).as_bytes());
    out
}

fn push_row(out: &mut Vec<u8>, row: &Value, message: Option<&Message>, keys: &KeyHasher) {
    out.push(b'{');
    push_message(out, message);
    out.extend_from_slice(b",\"txnHash\":\"");
    let hash = message.map_or(0, |m| keys.key(m.transaction_id.as_bytes()).0);
    out.extend_from_slice(format!("{hash:032x}").as_bytes());
    out.push(b'"');
    push_place(out, row);
    push_keys(out, row, &[("status", "status"), ("queueStatus", "status"), ("queuePriority", "priority")]);
    let (base, index) = (row["base"].as_i64().unwrap_or(0), row["index"].as_i64().unwrap_or(0));
    let rest = format!(
        ",\"busStatus\":{},\"payloadAvailable\":{},\"segment\":{{\"seq\":{base},\"frameIdx\":{index}}}",
        json!({"consumedBy": row["consumedBy"], "totalGroups": row["totalGroups"]}),
        message.is_some(),
    );
    out.extend_from_slice(rest.as_bytes());
    push_keys(out, row, &[("createdAt", "createdAt"), ("leaseExpiresAt", "lease")]);
    out.push(b'}');
}

/// What the frame says; without a leading comma.
fn push_message(out: &mut Vec<u8>, message: Option<&Message>) {
    out.extend_from_slice(b"\"id\":\"");
    push_uuid(out, message.map_or(0, |m| m.id));
    out.extend_from_slice(b"\",\"transactionId\":");
    push_quoted(out, message.map_or("", |m| &m.transaction_id));
    out.extend_from_slice(b",\"traceId\":");
    match message.and_then(|m| m.trace) {
        Some(trace) => {
            out.push(b'"');
            push_uuid(out, trace);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"producerSub\":");
    match message.and_then(|m| m.producer.as_deref()) {
        Some(producer) => push_quoted(out, producer),
        None => out.extend_from_slice(b"null"),
    }
    let payload = message.map_or(&[][..], |m| &m.payload);
    out.extend_from_slice(b",\"data\":");
    push_payload(out, payload);
    out.extend_from_slice(b",\"payload\":");
    push_payload(out, payload);
    out.extend_from_slice(b",\"isEncrypted\":");
    out.extend_from_slice(if message.is_some_and(|m| m.encrypted) { b"true" } else { b"false" });
}

/// Where the message lies; with a leading comma.
fn push_place(out: &mut Vec<u8>, row: &Value) {
    let text = |name: &str| row[name].as_str().unwrap_or_default();
    out.extend_from_slice(b",\"queuePath\":");
    push_quoted(out, &format!("{}/{}", text("queue"), text("partition")));
    let same = ["partitionId", "partition", "queue", "namespace", "task"].map(|name| (name, name));
    push_keys(out, row, &same);
}

/// `,"name":value` of columns that are texts, numbers, null or small JSON.
fn push_keys(out: &mut Vec<u8>, row: &Value, keys: &[(&str, &str)]) {
    for (name, column) in keys {
        out.extend_from_slice(format!(",\"{name}\":").as_bytes());
        out.extend_from_slice(row[*column].to_string().as_bytes());
    }
}

/// A stored segment as a state call brings it.
pub(super) fn record(segment: &Value) -> Option<Record> {
    let number = |name: &str| segment[name].as_i64();
    Some(Record {
        base: Offset(number("base")?),
        created_at: Stamp(0),
        count: u32::try_from(number("count")?).ok()?,
        codec: if number("codec")? == 0 { Codec::Raw } else { Codec::Zstd },
        flags: number("flags")? as u8,
        raw_len: u32::try_from(number("rawLen")?).ok()?,
        body: unhex(segment["body"].as_str()?)?.into(),
        frames: None,
        keys: Default::default(),
    })
}

/// `GET /api/v1/messages/:partitionId/:transactionId`
pub async fn detail(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let missing = || Refusal::NotFound("Message not found".into()).response();
    let transaction = params.get("transactionId");
    let Some(partition) = params.get("partitionId").parse::<i64>().ok().filter(|n| *n > 0) else { return missing() };
    let Some(keys) = core.keys() else { return Refusal::Pool.response() };
    let args = json!({"partition": partition, "key": hex(&keys.key(transaction.as_bytes()).0.to_le_bytes())});
    let row = match call(core, request, StateFn::GetMessage, args).await {
        Ok(None) => return missing(),
        result => match value(result, "message") {
            Ok(row) => row,
            Err(refused) => return refused,
        },
    };
    let index = row["index"].as_u64().unwrap_or(0) as u32;
    let mut message = None;
    if let Some(record) = record(&row["segment"]) {
        let read = each_frame(PartitionId(partition), &record, |i, frame| {
            if i == index {
                message = Some(Message::of(frame, core.cipher.as_ref()));
            }
        });
        if let Err(damaged) = read {
            return Refusal::StoreFailed { route: "message", detail: damaged.to_string() }.response();
        }
    }
    let Some(message) = message else { return missing() };
    let mut out = b"{".to_vec();
    push_message(&mut out, Some(&message));
    push_place(&mut out, &row);
    push_keys(
        &mut out,
        &row,
        &[
            ("createdAt", "createdAt"),
            ("status", "status"),
            ("errorMessage", "error"),
            ("retryCount", "retryCount"),
            ("leaseExpiresAt", "lease"),
            ("queueConfig", "queueConfig"),
            ("consumerGroups", "groups"),
        ],
    );
    let groups = row["groupsCount"].as_i64().unwrap_or(0);
    let kind = if groups > 0 { "bus" } else { "queue" };
    let mode = json!({"hasQueueMode": row["queueMode"], "busGroupsCount": groups, "type": kind});
    out.extend_from_slice(format!(",\"mode\":{mode}}}").as_bytes());
    Response::json(200, out)
}
