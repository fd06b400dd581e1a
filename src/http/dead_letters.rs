//! `/api/v1/dlq...` and the dead letters of one message: list, purge, replay.
//!
//!     replay: the row's names -> owner slot, dedup key, new id -> queen.replay_dead_letter (push and delete, one
//!     transaction) -> shards are told -> body
//!
//! Source: data plane 9.3, 9.4, 10.

use super::groups::{call, ok, value};
use super::json::{check_name, push_int, push_quoted};
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::cipher::{self, Cipher};
use crate::core_thread::Core;
use crate::state::StateFn;
use queen_shards::effect::StoreError;
use queen_shards::place::LaneKey;
use serde_json::{Map, Value, json};
use std::rc::Rc;
use uuid::Uuid;

/// Default and cap of `limit`.
const LISTED: i64 = 100;
const LISTED_MAX: i64 = 1000;
/// Rows skipped at most: each is an index entry read again on every page.
const SKIPPED_MAX: i64 = 100_000;
/// Payload bytes on one page. What does not fit is listed with `data` null and `payloadAvailable` false.
const PAGE_BYTES_MAX: u32 = 16 << 20;
/// Dead letters that one step of a purge deletes: some ten milliseconds, and far from QUEEN_STMT_TIMEOUT_MS however large they are.
const PURGED_AT_ONCE: u32 = 1000;

const GONE: &str = "It does not exist, was replayed or deleted, or belongs to somebody else";

/// `GET /api/v1/dlq`
pub async fn list(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let limit = query.number_or("limit", LISTED).clamp(0, LISTED_MAX);
    let offset = query.number_or("offset", 0).clamp(0, SKIPPED_MAX);
    let args = json!({"queue": query.filter("queue"), "group": query.filter("consumerGroup"),
                      "limit": limit, "offset": offset, "bytes": PAGE_BYTES_MAX});
    let page = match value(call(core, request, StateFn::ListDeadLetters, args).await, "dlq") {
        Ok(page) => page,
        Err(refused) => return refused,
    };
    let mut out = b"{\"messages\":[".to_vec();
    for (i, row) in page["rows"].as_array().into_iter().flatten().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_row(&mut out, row, core.cipher.as_ref());
    }
    out.extend_from_slice(b"],\"pagination\":{\"limit\":");
    push_int(&mut out, limit);
    out.extend_from_slice(b",\"offset\":");
    push_int(&mut out, offset);
    out.extend_from_slice(b"},\"total\":");
    push_int(&mut out, page["total"].as_i64().unwrap_or(0));
    out.push(b'}');
    Response::json(200, out)
}

fn push_row(out: &mut Vec<u8>, row: &Value, cipher: Option<&Cipher>) {
    let mut key = b'{';
    let mut text = |out: &mut Vec<u8>, name: &str, value: &Value| {
        out.push(std::mem::replace(&mut key, b','));
        push_quoted(out, name);
        out.push(b':');
        match value.as_str() {
            Some(text) => push_quoted(out, text),
            None => out.extend_from_slice(value.to_string().as_bytes()),
        }
    };
    for (name, column) in [
        ("id", "id"),
        ("transactionId", "transactionId"),
        ("partitionId", "partitionId"),
        ("queue", "queue"),
        ("partition", "partition"),
        ("consumerGroup", "group"),
        ("errorMessage", "error"),
        ("retryCount", "retryCount"),
        ("producerSub", "none"),
        ("createdAt", "failedAt"),
        ("failedAt", "failedAt"),
    ] {
        text(out, name, &row[column]);
    }
    let payload = row["payload"].as_str().and_then(unhex);
    if payload.is_none() {
        out.extend_from_slice(b",\"payloadAvailable\":false");
    }
    let payload = payload.unwrap_or_default();
    let delivered = cipher::delivered(cipher, &payload, row["encrypted"] == true);
    // Marked where it was opened. Source: operations 3.4.
    if cipher.is_some_and(|cipher| cipher.open(&payload).is_some()) {
        out.extend_from_slice(b",\"isEncrypted\":true");
    }
    out.extend_from_slice(b",\"data\":");
    push_payload(out, &delivered);
    out.push(b'}');
}

/// Splices a stored payload in; an empty one (old data, or none to be had) reads as null.
pub(super) fn push_payload(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(if payload.is_empty() { b"null" } else { payload });
}

/// Bytes out of their hex digits.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `DELETE /api/v1/dlq`: step by step. What was deleted before a step that failed stays so.
pub async fn purge(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let Some(queue) = query.filter("queue") else {
        let body = json!({"success": false, "error": "queue is required",
                          "message": "Name the queue whose dead letters are to be deleted, as ?queue="});
        return Response::json(400, body.to_string());
    };
    let group = query.filter("consumerGroup");
    let (mut deleted, mut after) = (0, Value::Null);
    loop {
        let args = json!({"queue": queue, "group": group, "limit": PURGED_AT_ONCE, "after": after});
        let mut step = match value(call(core, request, StateFn::PurgeDeadLetters, args).await, "dlq") {
            Err(refused) => return refused,
            Ok(step) => step,
        };
        deleted += step["deleted"].as_i64().unwrap_or(0);
        if step["left"] != true {
            return ok(json!({"success": true, "deleted": deleted, "queue": queue, "consumerGroup": group}));
        }
        after = step["after"].take();
    }
}

/// `DELETE /api/v1/messages/:partitionId/:transactionId`: its dead letters of all groups.
pub async fn delete(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let address = Address::of(params);
    let Some(args) = address.args() else { return address.gone() };
    match value(call(core, request, StateFn::PurgeDeadLetters, args).await, "delete") {
        Err(refused) => refused,
        Ok(done) if done["deleted"].as_i64().unwrap_or(0) > 0 => ok(json!({
            "success": true, "partitionId": address.partition, "transactionId": address.transaction,
            "message": "Message deleted successfully",
        })),
        Ok(_) => address.gone(),
    }
}

/// A message as a path names it.
pub(super) struct Address<'a> {
    partition: &'a str,
    transaction: &'a str,
}

impl<'a> Address<'a> {
    pub(super) fn of(params: &'a Params) -> Address<'a> {
        Address { partition: params.get("partitionId"), transaction: params.get("transactionId") }
    }

    /// `None`: no partition has such an id.
    fn args(&self) -> Option<Value> {
        let partition: i64 = self.partition.parse().ok().filter(|n| *n > 0)?;
        Some(json!({"partition": partition, "transaction": self.transaction}))
    }

    fn gone(&self) -> Response {
        let body = json!({"success": false, "partitionId": self.partition, "transactionId": self.transaction,
                          "error": "Message not found",
                          "message": "No dead letter has this address; live messages cannot be deleted or retried"});
        Response::json(404, body.to_string())
    }
}

/// `POST /api/v1/messages/:partitionId/:transactionId/retry`: its newest dead letter, in place.
pub async fn retry(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let address = Address::of(params);
    if core.push_maintenance() {
        return in_maintenance();
    }
    let Some(mut args) = address.args() else { return address.gone() };
    args["payload"] = core.cipher.is_some().into();
    let found = match core
        .state(crate::state::StateCall { function: StateFn::FindDeadLetter, tenant: request.tenant, args })
        .await
    {
        Ok(found) => found.and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or_default(),
        Err(error) => return super::refusals::error(500, &format!("dlq lookup failed: {error}")),
    };
    match found["id"].as_str() {
        Some(id) => {
            replay_found(core, request, id, &found, Destination::default()).await.unwrap_or_else(|| address.gone())
        }
        None => address.gone(),
    }
}

/// Where a replay goes; an absent half is the row's own.
#[derive(Debug, Default, PartialEq)]
struct Destination {
    queue: Option<String>,
    partition: Option<String>,
}

/// `POST /api/v1/dlq/:id/replay`
pub async fn replay(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let sent = params.get("id");
    let destination = match destination(&request.body) {
        Ok(destination) => destination,
        Err(what) => {
            let message = "Send nothing, or {\"queue\":\"...\",\"partition\":\"...\"} with either half";
            return Response::json(400, json!({"success": false, "error": what, "message": message}).to_string());
        }
    };
    if core.push_maintenance() {
        return in_maintenance();
    }
    let gone = || {
        let body =
            json!({"success": false, "result": "gone", "dlqId": sent, "error": "Message not found", "message": GONE});
        Response::json(404, body.to_string())
    };
    let Ok(id) = Uuid::parse_str(sent) else { return gone() };
    let args = json!({"id": id.hyphenated().to_string(), "payload": core.cipher.is_some()});
    let found = match core
        .state(crate::state::StateCall { function: StateFn::FindDeadLetter, tenant: request.tenant, args })
        .await
    {
        Ok(found) => found.and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or_default(),
        Err(error) => return failed(&error),
    };
    match found["id"].as_str() {
        Some(id) => replay_found(core, request, id, &found, destination).await.unwrap_or_else(gone),
        None => gone(),
    }
}

fn destination(body: &[u8]) -> Result<Destination, String> {
    if body.trim_ascii().is_empty() {
        return Ok(Destination::default());
    }
    let body: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| "the body must be a JSON object".to_owned())?;
    let half = |name: &str| match body.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => {
            let text = text.trim();
            match text {
                "" => Err(format!("{name} must not be blank")),
                _ => check_name(name, text).map(|()| Some(text.to_owned())),
            }
        }
        Some(_) => Err(format!("{name} must be a string")),
    };
    Ok(Destination { queue: half("queue")?, partition: half("partition")? })
}

/// Moves a row that was there a moment ago; `None` when it is gone.
async fn replay_found(core: &Rc<Core>, request: &Request, id: &str, row: &Value, to: Destination) -> Option<Response> {
    let own = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let (queue, partition) =
        (to.queue.unwrap_or_else(|| own("queue")), to.partition.unwrap_or_else(|| own("partition")));
    let Some(keys) = core.keys() else { return Some(Refusal::Pool.response()) };
    let transaction = format!("dlq:{id}");
    let message = Uuid::from_u128(core.mint_ids(1)[0].0).hyphenated().to_string();
    let lane = LaneKey::new(request.tenant, queue.as_str().into(), partition.as_str().into());
    let mut args = json!({"id": id, "queue": queue, "partition": partition, "slot": lane.slot(), "message": message,
                          "key": hex(&keys.key(transaction.as_bytes()).0.to_le_bytes())});
    if let Some(cipher) = &core.cipher {
        replay_as(cipher, row, core.encrypts(request.tenant, &queue).await, &mut args);
    }
    let result = call(core, request, StateFn::ReplayDeadLetter, args).await;
    if matches!(result, Ok(_) | Err(StoreError::Unknown(_))) {
        // The log grew behind the back of its shard: parked pops must look.
        core.lane_grew(lane).await;
    }
    let done: Value = match result {
        Ok(text) => text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        Err(error) => return Some(failed(&error)),
    };
    let moved = match done["result"].as_str() {
        Some("moved") => true,
        Some("duplicate") => false,
        _ => return None,
    };
    Some(ok(json!({
        "success": true, "result": done["result"], "queue": queue, "partition": partition, "consumerGroup": done["group"],
        "dlqId": id, "originalTransactionId": done["transactionId"],
        "replayedAs": {
            "index": 0, "message_id": if moved { message } else { Uuid::nil().to_string() }, "transaction_id": transaction,
            "queueName": queue, "status": if moved { "queued" } else { "duplicate" }, "offset": done["offset"],
        },
        "dlqRowRemoved": moved,
    })))
}

/// Source: data plane 10.3.
fn in_maintenance() -> Response {
    let body = json!({
        "success": false, "result": "maintenance", "error": "push maintenance is on", "dlqRowRemoved": false,
        "message": "Nothing was moved; replay it when push maintenance is off",
    });
    Response::json(503, body.to_string())
}

/// Adds the payload as the destination wants it. `row`: what `find_dead_letter` told, its payload included.
pub(crate) fn replay_as(cipher: &Cipher, row: &Value, encrypts: bool, args: &mut Value) {
    let Some(stored) = row["payload"].as_str().and_then(unhex) else { return };
    let (payload, encrypted) = cipher.replayed(&stored, row["encrypted"] == true, encrypts);
    args["payload"] = hex(&payload).into();
    args["encrypted"] = encrypted.into();
}

fn failed(error: &StoreError) -> Response {
    let (removed, message) = match error {
        StoreError::Unknown(_) => (Value::Null, "It may have been moved: replay it again, which moves it at most once"),
        _ => (Value::Bool(false), "Nothing was moved; try again"),
    };
    let body = json!({"success": false, "error": error.to_string(), "dlqRowRemoved": removed, "message": message});
    Response::json(500, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_of_a_replay() {
        let to = |q: Option<&str>, p: Option<&str>| {
            Ok(Destination { queue: q.map(Into::into), partition: p.map(Into::into) })
        };
        for body in ["", " \n", "{}", r#"{"other":1}"#] {
            assert_eq!(destination(body.as_bytes()), to(None, None), "{body}");
        }
        assert_eq!(destination(br#"{"queue":" a ","partition":"p"}"#), to(Some("a"), Some("p")));
        assert_eq!(destination(br#"{"partition":"p"}"#), to(None, Some("p")));
        for body in
            ["null", "[]", "x", r#"{"queue":" "}"#, r#"{"queue":5}"#, r#"{"partition":null}"#, r#"{"queue":"a\u0000"}"#]
        {
            assert!(destination(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn hex_is_read_back() {
        assert_eq!(unhex(&hex(&[0, 1, 0xfe, 0xff])), Some(vec![0, 1, 0xfe, 0xff]));
        assert_eq!((unhex("0"), unhex("0g"), unhex("")), (None, None, Some(vec![])));
    }
}
