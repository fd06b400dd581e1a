//! `POST /api/v1/fetch` and `POST /api/v1/partitions/changed`: reads by offset. No lease, no cursor, no side effect.
//!
//! A fetch that waits asks for the watermarks again, at growing intervals, and reads messages when one of them moved: what is
//! written through another broker is seen as well.
//! Source: state plane 8, 9.

use super::dead_letters::push_payload;
use super::groups::{call, time_arg, value};
use super::json::{parse_stamp, push_quoted, push_stamp};
use super::messages::record;
use super::pop::render::{Damaged, each_frame};
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::cipher::{self, Cipher};
use crate::core_thread::Core;
use crate::mail::SafeTime;
use crate::rt;
use crate::state::StateFn;
use queen_shards::ids::{PartitionId, Stamp};
use serde_json::{Map, Value, json};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Source: state plane 8.1, 9.1.
const ENTRIES_MAX: usize = 1024;
const BYTES: i64 = 1 << 20;
/// Of one entry: a stored group comes whole, so an answer is a little more.
const BYTES_MAX: i64 = 8 << 20;
/// Of all entries of an answer, if the call does not ask for less; the rest come without records and are asked for again.
const ANSWER_BYTES_MAX: i64 = 32 << 20;
const WAIT_MAX_MS: i64 = 30_000;
/// First and longest pause between two looks of a fetch that waits.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Partitions per entry, and in one answer: about 150 bytes each, 15 MB.
const CHANGED_MAX: i64 = 1000;
const CHANGED_ANSWER_MAX: i64 = 100_000;

/// `POST /api/v1/fetch`
pub async fn fetch(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let asked = match asked(&request.body) {
        Ok(asked) => asked,
        Err(refused) => return refused.response(),
    };
    let start = Instant::now();
    let mut pause = LOOK_PAUSE;
    loop {
        let hold = core.answers.ask(asked.bytes as u64);
        let bytes = hold.granted() as i64;
        let args = json!({"entries": asked.entries, "bytes": bytes});
        let reply = match value(call(core, request, StateFn::Fetch, args).await, "fetch") {
            Ok(reply) => reply,
            Err(refused) => return refused,
        };
        let fetched = match render(&asked.entries, &reply, core.cipher.as_ref()) {
            Ok(fetched) => fetched,
            Err(damaged) => {
                return Refusal::StoreFailed { route: "fetch", detail: damaged.to_string() }.response();
            }
        };
        let left = asked.wait.saturating_sub(start.elapsed());
        if fetched.failed || fetched.bytes >= asked.min_bytes.min(bytes) || left.is_zero() || core.is_closing() {
            let hold = Some(hold.keep(fetched.body.len()));
            return Response { hold, ..Response::json(200, fetched.body) };
        }
        // Nothing of what was looked at is held while it waits.
        let seen = marks(&reply);
        drop((hold, reply, fetched));
        loop {
            let left = asked.wait.saturating_sub(start.elapsed());
            let ended = rt::race(request.gone.wait(), core.shutdown());
            rt::race(ended, rt::sleep(pause.min(left))).await;
            if request.gone.is_gone() {
                return Response::empty(204);
            }
            pause = (pause * 2).min(LOOK_PAUSE_MAX);
            if asked.wait <= start.elapsed() || core.is_closing() {
                break;
            }
            let args = json!({"entries": asked.entries, "bytes": 0});
            match value(call(core, request, StateFn::Fetch, args).await, "fetch") {
                Ok(reply) if marks(&reply) == seen => {}
                Ok(_) => break,
                Err(refused) => return refused,
            }
        }
    }
}

/// What a look without messages tells of each entry: its watermarks, and what ends the wait.
fn marks(reply: &Value) -> Vec<(Option<i64>, Option<i64>, bool)> {
    let of = |entry: &Value| (entry["high"].as_i64(), entry["start"].as_i64(), !entry["error"].is_null());
    reply.as_array().into_iter().flatten().map(of).collect()
}

#[derive(Debug, PartialEq)]
struct Asked {
    entries: Vec<Value>,
    wait: Duration,
    min_bytes: i64,
    /// Of all entries.
    bytes: i64,
}

/// The entries of a body; `None`: it names none.
fn entries(body: &Map<String, Value>) -> Result<Option<&Vec<Value>>, Refusal> {
    let entries = match body.get("entries") {
        None => return Ok(None),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(wrong("entries must be an array")),
    };
    match entries.len() {
        0..=ENTRIES_MAX => Ok(Some(entries)),
        n => Err(wrong(format!("{n} entries exceeds the {ENTRIES_MAX}-entry limit"))),
    }
}

fn wrong(why: impl Into<String>) -> Refusal {
    Refusal::BadBody(why.into())
}

/// An integer of a body: absent or null is the default.
fn integer(of: &Value, name: &str, default: i64) -> Result<i64, Refusal> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value.as_i64().ok_or_else(|| wrong(format!("{name} must be an integer"))),
    }
}

fn queue_of(entry: &Value) -> Result<&str, Refusal> {
    let queue = entry.get("queue").and_then(Value::as_str).ok_or_else(|| wrong("queue must be a string"))?;
    if queue.is_empty() { Err(wrong("queue must not be empty")) } else { Ok(queue) }
}

fn asked(body: &[u8]) -> Result<Asked, Refusal> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|e| Refusal::BadBody(e.to_string()))?;
    let mut all = Vec::new();
    for entry in entries(&body)?.ok_or_else(|| wrong("entries is required"))? {
        let partition = match entry.get("partition") {
            None | Some(Value::Null) => "Default".to_owned(),
            Some(Value::String(name)) => name.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(_) => return Err(wrong("partition must be a string or a number")),
        };
        let offset = integer(entry, "offset", -1)?;
        if offset < 0 {
            return Err(wrong("offset is required and must not be negative"));
        }
        let bytes = integer(entry, "maxBytes", BYTES)?.clamp(1, BYTES_MAX);
        all.push(json!({"queue": queue_of(entry)?, "partition": partition, "offset": offset, "maxBytes": bytes}));
    }
    let body = Value::Object(body);
    let wait = integer(&body, "maxWaitMs", 0)?.clamp(0, WAIT_MAX_MS);
    let min_bytes = integer(&body, "minBytes", 1)?;
    let bytes = integer(&body, "maxBytes", ANSWER_BYTES_MAX)?.clamp(1, ANSWER_BYTES_MAX);
    Ok(Asked { entries: all, wait: Duration::from_millis(wait as u64), min_bytes, bytes })
}

struct Fetched {
    body: Vec<u8>,
    /// Of payloads; an empty one counts 1.
    bytes: i64,
    failed: bool,
}

fn render(asked: &[Value], reply: &Value, cipher: Option<&Cipher>) -> Result<Fetched, Damaged> {
    let mut fetched = Fetched { body: b"{\"entries\":[".to_vec(), bytes: 0, failed: false };
    for (n, entry) in asked.iter().enumerate() {
        let (got, offset) = (&reply[n], entry["offset"].as_i64().unwrap_or(0));
        let out = &mut fetched.body;
        out.extend_from_slice(if n > 0 { b",{\"queue\":" } else { b"{\"queue\":" });
        push_quoted(out, entry["queue"].as_str().unwrap_or_default());
        out.extend_from_slice(b",\"partition\":");
        push_quoted(out, entry["partition"].as_str().unwrap_or_default());
        out.extend_from_slice(b",\"records\":[");
        let segments = got["segments"].as_array().map_or(&[][..], Vec::as_slice);
        // Retention took the first ones between the two reads: that is below the log, not a hole in it.
        let hole = segments.first().is_some_and(|s| s["base"].as_i64().unwrap_or(0) > offset);
        let mut first = true;
        for segment in segments.iter().filter(|_| !hole) {
            let Some(record) = record(segment) else { continue };
            let bytes = &mut fetched.bytes;
            each_frame(PartitionId(0), &record, |i, frame| {
                let at = record.base.0 + i as i64;
                if at < offset {
                    return;
                }
                let payload = cipher::delivered(cipher, frame.payload, frame.encrypted());
                *bytes += payload.len().max(1) as i64;
                out.extend_from_slice(if first { b"{\"offset\":" } else { b",{\"offset\":" });
                first = false;
                out.extend_from_slice(at.to_string().as_bytes());
                out.extend_from_slice(b",\"transactionId\":");
                push_quoted(out, frame.transaction_id);
                out.extend_from_slice(b",\"payload\":");
                push_payload(out, &payload);
                out.extend_from_slice(b",\"ts\":");
                push_quoted(out, segment["createdAt"].as_str().unwrap_or_default());
                out.push(b'}');
            })?;
        }
        let number = |name: &str| got[name].as_i64().unwrap_or(0);
        let marks = format!("],\"highWatermark\":{},\"logStartOffset\":{}", number("high"), number("start"));
        out.extend_from_slice(marks.as_bytes());
        if let Some(error) = got["error"].as_str().or(hole.then_some("OFFSET_OUT_OF_RANGE")) {
            fetched.failed = true;
            out.extend_from_slice(b",\"error\":");
            push_quoted(out, error);
        }
        out.push(b'}');
    }
    fetched.body.extend_from_slice(b"]}");
    Ok(fetched)
}

/// `POST /api/v1/partitions/changed`
pub async fn changed(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let entries = match changed_entries(&request.body) {
        Ok(entries) => entries,
        Err(refused) => return refused.response(),
    };
    let args = json!({ "entries": entries });
    let before = core.safe_time();
    match value(call(core, request, StateFn::ChangedPartitions, args).await, "partitions changed") {
        Err(refused) => refused,
        Ok(reply) => {
            let now = reply["safeTime"].as_str().and_then(parse_stamp).unwrap_or(Stamp(0));
            let now = SafeTime { store: reply["store"].as_str().unwrap_or_default().into(), at: now };
            let mut safe = Vec::new();
            push_stamp(&mut safe, core.next_safe_time(&before, now));
            let body = json!({"safeTime": String::from_utf8_lossy(&safe), "safeTimeDegraded": reply["degraded"], "entries": reply["entries"]});
            Response::json(200, body.to_string())
        }
    }
}

fn changed_entries(body: &[u8]) -> Result<Vec<Value>, Refusal> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|e| Refusal::BadBody(e.to_string()))?;
    let none = Vec::new();
    let entries = entries(&body)?.unwrap_or(&none);
    // A shorter page says where the next one begins.
    let most = (CHANGED_ANSWER_MAX / entries.len().max(1) as i64).clamp(1, CHANGED_MAX);
    let read = |entry: &Value| {
        let since = match entry.get("since") {
            None | Some(Value::Null) => None,
            Some(since) => {
                let at = since.as_str().and_then(parse_stamp);
                Some(time_arg(at.ok_or_else(|| wrong(format!("since is not a timestamp: {since}")))?))
            }
        };
        let after = match entry.get("after") {
            None | Some(Value::Null) => Some(0),
            Some(Value::String(start)) if start.is_empty() => Some(0),
            Some(after) => after.as_str().and_then(|text| text.parse::<i64>().ok()).filter(|n| *n > 0),
        };
        let limit = integer(entry, "limit", CHANGED_MAX)?.clamp(1, most);
        Ok(json!({"queue": queue_of(entry)?, "since": since, "after": after, "limit": limit}))
    };
    entries.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(refusal: Refusal) -> (u16, String) {
        let response = refusal.response();
        (response.status, String::from_utf8(response.body).unwrap())
    }

    #[test]
    fn the_body_of_a_fetch() {
        let got = asked(br#"{"entries":[{"queue":"q","offset":3},{"queue":"q","partition":7,"offset":0,"maxBytes":99999999999}],"maxWaitMs":99999,"maxBytes":8388608}"#);
        let entries = vec![
            json!({"queue": "q", "partition": "Default", "offset": 3, "maxBytes": BYTES}),
            json!({"queue": "q", "partition": "7", "offset": 0, "maxBytes": BYTES_MAX}),
        ];
        assert_eq!(got.unwrap(), Asked { entries, wait: Duration::from_secs(30), min_bytes: 1, bytes: 8 << 20 });
        let bytes = |body: &str| asked(body.as_bytes()).unwrap().bytes;
        assert_eq!(bytes(r#"{"entries":[]}"#), ANSWER_BYTES_MAX);
        assert_eq!(bytes(r#"{"entries":[],"maxBytes":99999999999}"#), ANSWER_BYTES_MAX);
        assert_eq!(bytes(r#"{"entries":[],"maxBytes":0}"#), 1);
        for body in [
            &b"x"[..],
            b"[]",
            b"{}",
            br#"{"entries":[{"offset":1}]}"#,
            br#"{"entries":[{"queue":"q"}]}"#,
            br#"{"entries":[{"queue":"","offset":0}]}"#,
            br#"{"entries":[{"queue":"q","offset":-1}]}"#,
            br#"{"entries":[{"queue":"q","offset":"1"}]}"#,
            br#"{"entries":[{"queue":"q","partition":true}]}"#,
        ] {
            let (status, why) = text(asked(body).unwrap_err());
            assert!(status == 400 && why.starts_with(r#"{"error":"bad body: "#), "{}", String::from_utf8_lossy(body));
        }
        let many = json!({"entries": vec![json!({"queue": "q"}); 1025]}).to_string();
        assert_eq!(
            text(asked(many.as_bytes()).unwrap_err()),
            (400, r#"{"error":"bad body: 1025 entries exceeds the 1024-entry limit"}"#.into())
        );
    }

    #[test]
    fn every_entry_has_its_watermarks() {
        let asked = [json!({"queue": "q", "partition": "p", "offset": 5})];
        let body = |reply: Value| String::from_utf8(render(&asked, &reply, None).unwrap().body).unwrap();
        assert_eq!(
            body(json!([{"high": 0, "start": 0, "error": "UNKNOWN_TOPIC_OR_PARTITION", "segments": []}])),
            r#"{"entries":[{"queue":"q","partition":"p","records":[],"highWatermark":0,"logStartOffset":0,"error":"UNKNOWN_TOPIC_OR_PARTITION"}]}"#
        );
        let hole = json!([{"high": 9, "start": 5, "segments": [{"base": 7}]}]);
        assert!(body(hole).contains("OFFSET_OUT_OF_RANGE"));
    }

    #[test]
    fn a_cursor_that_is_none_is_told_per_entry() {
        let entries =
            changed_entries(br#"{"entries":[{"queue":"q","after":"x","limit":0},{"queue":"q","since":"2026-09-12"}]}"#)
                .unwrap();
        assert_eq!(entries[0], json!({"queue": "q", "since": null, "after": null, "limit": 1}));
        assert_eq!(
            entries[1],
            json!({"queue": "q", "since": "2026-09-12T00:00:00.000000Z", "after": 0, "limit": 1000})
        );
        let soon = changed_entries(br#"{"entries":[{"queue":"q","since":"soon"}]}"#).unwrap_err();
        assert!(text(soon).1.starts_with(r#"{"error":"bad body: since is not a timestamp: "#));
        assert_eq!(changed_entries(br#"{"entries":[{"queue":"q","after":""}]}"#).unwrap()[0]["after"], 0);
        assert_eq!(changed_entries(b"{}").unwrap(), Vec::<Value>::new());
        assert_eq!(changed_entries(br#"{"entries":[]}"#).unwrap(), Vec::<Value>::new());
    }
}
