//! `/api/v1/consumer-groups/...`: listings, subscription, seek, delete.
//!
//! What moved or removed cursors is told to every shard before the answer, so that the next pop of this broker sees it
//! and parked pops ask again. Source: data plane 11.

use super::json::{parse_stamp, push_stamp};
use super::refusals::Refusal;
use super::resources::{LAG_PROBES_MAX, PARTITIONS_LISTED_MAX, page};
use super::routes::Params;
use super::{Request, Response, reply};
use crate::core_thread::Core;
use crate::state::{StateCall, StateFn, StateReply};
use queen_shards::effect::StoreError;
use queen_shards::ids::Stamp;
use serde_json::{Value, json};
use std::rc::Rc;

/// (group, queue) pairs on one page: the API has no paging here. About 400 bytes each: 4 MB.
const LISTED_MAX: u32 = 10_000;
/// Default of `minLagSeconds`.
const LAG_SECONDS: i64 = 3600;
/// 0001-01-01: what lies before has no spelling in the store and is earlier than everything.
const YEAR_ONE: i64 = -62_135_596_800_000_000;

/// `GET /api/v1/consumer-groups`
pub async fn list(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let args = json!({"limit": LISTED_MAX, "probes": LAG_PROBES_MAX});
    page(core, request, StateFn::ListGroups, "consumer groups", args).await
}

/// `GET /api/v1/consumer-groups/lagging`
pub async fn lagging(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let seconds = request.query().number_or("minLagSeconds", LAG_SECONDS);
    let args = json!({"seconds": seconds, "limit": LAG_PROBES_MAX, "probes": LAG_PROBES_MAX});
    page(core, request, StateFn::LaggingGroups, "lagging", args).await
}

/// `GET /api/v1/consumer-groups/:group`
pub async fn detail(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let args = json!({"group": params.get("group"), "limit": PARTITIONS_LISTED_MAX});
    page(core, request, StateFn::GetGroup, "consumer group", args).await
}

/// `POST /api/v1/consumer-groups/:group/subscription`
pub async fn subscription(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let group = params.get("group");
    let body: Option<Value> = serde_json::from_slice(&request.body).ok();
    let sent =
        body.as_ref().and_then(|body| body.get("subscriptionTimestamp")?.as_str()).filter(|text| !text.is_empty());
    let Some(sent) = sent else {
        return Refusal::Invalid("subscriptionTimestamp is required".into()).response();
    };
    let Some(at) = parse_stamp(sent) else {
        return Refusal::Invalid("subscriptionTimestamp is not a time".into()).response();
    };
    let args = json!({"group": group, "timestamp": time_arg(at)});
    match value(call(core, request, StateFn::UpdateSubscription, args).await, "subscription") {
        Err(refused) => refused,
        Ok(done) => {
            let rows = &done["rowsUpdated"];
            ok(json!({"success": true, "consumerGroup": group, "newTimestamp": sent, "rowsUpdated": rows}))
        }
    }
}

/// Where a seek goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    End,
    Time(Stamp),
    /// The next message to be delivered. Partition route only; beyond the contract.
    Offset(i64),
}

/// `POST /api/v1/consumer-groups/:group/queues/:queue/seek`
pub async fn seek_queue(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    seek(core, request, params, None).await
}

/// `POST /api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek`
pub async fn seek_partition(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    seek(core, request, params, Some(params.get("partition"))).await
}

async fn seek(core: &Rc<Core>, request: &Request, params: &Params, partition: Option<&str>) -> Response {
    let (group, queue) = (params.get("group"), params.get("queue"));
    let target = match target(&request.body, partition.is_some()) {
        Ok(target) => target,
        Err(refused) => return refused,
    };
    let mut args = json!({"group": group, "queue": queue, "partition": partition});
    match target {
        Target::End => args["toEnd"] = true.into(),
        Target::Time(at) => args["timestamp"] = time_arg(at).into(),
        Target::Offset(offset) => args["offset"] = offset.into(),
    }
    let result = call(core, request, StateFn::SeekGroup, args).await;
    if matches!(result, Ok(_) | Err(StoreError::Unknown(_))) {
        core.queue_changed(request.tenant, queue).await;
    }
    let done = match value(result, "seek") {
        Ok(done) => done,
        Err(refused) => return refused,
    };
    if done["found"] != true {
        let body = match partition {
            Some(_) => json!({"success": false, "error": "Partition not found"}),
            None => json!({"success": false, "error": "Queue not found or has no partitions", "consumerGroup": group,
                           "queueName": queue, "partitionsUpdated": 0}),
        };
        return Response::json(404, body.to_string());
    }
    let mut body = json!({"success": true, "consumerGroup": group, "queueName": queue,
                          "seekToEnd": target == Target::End, "targetTimestamp": null});
    match target {
        Target::Time(at) => body["targetTimestamp"] = millis(at).into(),
        Target::Offset(offset) => body["targetOffset"] = offset.into(),
        Target::End => {}
    }
    match partition {
        Some(partition) => (body["partitionName"], body["updated"]) = (partition.into(), true.into()),
        None => body["partitionsUpdated"] = done["moved"].clone(),
    }
    ok(body)
}

/// Reads the body of a seek. `one`: of the partition route.
fn target(body: &[u8], one: bool) -> Result<Target, Response> {
    let bad = || Refusal::Invalid("bad body".into()).response();
    if body.trim_ascii().is_empty() {
        return if one { Ok(Target::End) } else { Err(bad()) };
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| bad())?;
    let body = body.as_object().ok_or_else(bad)?;
    let key = |name: &str| body.get(name).filter(|value| !value.is_null());
    let to_end = key("toEnd").map(|value| value.as_bool().ok_or_else(bad)).transpose()?;
    let time = key("timestamp").map(|value| value.as_str().ok_or_else(bad)).transpose()?;
    let offset = match one {
        true => key("offset").map(|value| value.as_i64().filter(|n| *n >= 0).ok_or_else(bad)).transpose()?,
        false => None,
    };
    if to_end == Some(true) {
        return Ok(Target::End);
    }
    match (time.filter(|text| !text.is_empty()), offset) {
        (Some(text), _) => match parse_stamp(text) {
            Some(at) => Ok(Target::Time(at)),
            None => Err(Refusal::Invalid("seek failed: timestamp is not a time".into()).response()),
        },
        (None, Some(offset)) => Ok(Target::Offset(offset)),
        (None, None) => Err(Refusal::Invalid("Must specify toEnd=true or a timestamp".into()).response()),
    }
}

/// `DELETE /api/v1/consumer-groups/:group`
pub async fn delete(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    delete_of(core, request, params.get("group"), None).await
}

/// `DELETE /api/v1/consumer-groups/:group/queues/:queue`
pub async fn delete_in_queue(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    delete_of(core, request, params.get("group"), Some(params.get("queue"))).await
}

async fn delete_of(core: &Rc<Core>, request: &Request, group: &str, queue: Option<&str>) -> Response {
    let metadata = request.query().flag_or("deleteMetadata", true);
    let args = json!({"group": group, "queue": queue, "metadata": metadata});
    let result = call(core, request, StateFn::DeleteGroup, args).await;
    if matches!(result, Err(StoreError::Unknown(_))) {
        // It may be gone. Which queues it was in, the answer would have said.
        match queue {
            Some(queue) => core.queue_changed(request.tenant, queue).await,
            None => core.group_changed(request.tenant, group).await,
        }
    }
    let done = match value(result, "delete") {
        Ok(done) => done,
        Err(refused) => return refused,
    };
    for queue in done["queues"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        core.queue_changed(request.tenant, queue).await;
    }
    let mut body = json!({"success": true, "consumerGroup": group, "deletedPartitions": done["deleted"],
                          "metadataDeleted": metadata});
    if let Some(queue) = queue {
        body["queueName"] = queue.into();
    }
    ok(body)
}

// ---- shared with other families

/// One state call of a request.
pub(super) async fn call(core: &Rc<Core>, request: &Request, function: StateFn, args: Value) -> StateReply {
    core.state(StateCall { function, tenant: request.tenant, args }).await
}

/// The JSON of a reply, or the answer to a call that failed.
pub(super) fn value(result: StateReply, route: &'static str) -> Result<Value, Response> {
    let reply = result.map_err(|error| Refusal::store(route, &error).response())?;
    let value = reply.and_then(|text| serde_json::from_str(&text).ok());
    value.ok_or_else(|| reply::answer(route, Ok(None)))
}

pub(super) fn ok(body: Value) -> Response {
    Response::json(200, body.to_string())
}

/// A time as a state call takes it.
pub(super) fn time_arg(at: Stamp) -> String {
    if at.0 < YEAR_ONE {
        return "-infinity".into();
    }
    let mut text = Vec::with_capacity(28);
    push_stamp(&mut text, at);
    String::from_utf8(text).expect("digits and marks")
}

/// A time as listings print it: milliseconds.
pub(super) fn millis(at: Stamp) -> String {
    let mut text = Vec::with_capacity(28);
    push_stamp(&mut text, at);
    text.truncate(text.len() - 4);
    text.push(b'Z');
    String::from_utf8(text).expect("digits and marks")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, one: bool) -> Result<Target, String> {
        target(body.as_bytes(), one).map_err(|r| format!("{} {}", r.status, String::from_utf8(r.body).unwrap()))
    }

    #[test]
    fn the_body_of_a_seek() {
        let time = Target::Time(Stamp(1_789_200_930_000_000));
        assert_eq!(read(r#"{"timestamp":"2026-09-12T08:15:30Z"}"#, false), Ok(time));
        assert_eq!(read(r#"{"toEnd":false,"timestamp":"2026-09-12T10:15:30+02:00"}"#, true), Ok(time));
        assert_eq!(read(r#"{"toEnd":true,"timestamp":"nonsense"}"#, true), Ok(Target::End));
        assert_eq!((read("", true), read(" \n", true)), (Ok(Target::End), Ok(Target::End)));
        assert_eq!(read(r#"{"offset":7}"#, true), Ok(Target::Offset(7)));
        let bad = Err(r#"400 {"error":"bad body"}"#.to_owned());
        for body in ["", "x", "[]", "null", r#"{"toEnd":1}"#, r#"{"timestamp":5}"#] {
            assert_eq!(read(body, false), bad, "{body}");
        }
        for body in ["x", "[]", r#"{"offset":-1}"#, r#"{"offset":"3"}"#, r#"{"offset":1.5}"#] {
            assert_eq!(read(body, true), bad, "{body}");
        }
        let none = Err(r#"400 {"error":"Must specify toEnd=true or a timestamp"}"#.to_owned());
        for body in ["{}", r#"{"position":3}"#, r#"{"timestamp":""}"#, r#"{"toEnd":false,"timestamp":null}"#] {
            assert_eq!((read(body, false), read(body, true)), (none.clone(), none.clone()), "{body}");
        }
        assert_eq!(read(r#"{"offset":7}"#, false), none);
        assert!(read(r#"{"timestamp":"yesterday"}"#, false).unwrap_err().contains("seek failed: "));
    }

    #[test]
    fn times_as_calls_and_listings_spell_them() {
        assert_eq!(time_arg(Stamp(1_789_200_930_123_456)), "2026-09-12T08:15:30.123456Z");
        assert_eq!(millis(Stamp(1_789_200_930_123_456)), "2026-09-12T08:15:30.123Z");
        assert_eq!(time_arg(parse_stamp("0000-06-01").unwrap()), "-infinity");
    }
}
