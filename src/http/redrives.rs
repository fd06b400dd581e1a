//! `/api/v1/dlq/redrive`: starts, shows and cancels bulk replays of dead letters. Beyond the contract.
//!
//! A job moves the rows (`jobs/redrive.rs`), so a redrive outlives the broker that took it.

use super::groups::{call, ok, time_arg, value};
use super::json::{check_name, parse_stamp};
use super::refusals::{Refusal, error};
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use crate::state::StateFn;
use serde_json::{Map, Value, json};
use std::rc::Rc;
use uuid::Uuid;

/// Rows per second: by default, and at most. A row is a transaction of about a millisecond.
const RATE: i64 = 100;
const RATE_MAX: i64 = 500;
/// Redrives that run at a time, per tenant.
const RUNNING_MAX: u32 = 16;

/// `POST /api/v1/dlq/redrive`
pub async fn start(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let args = match asked(&request.body) {
        Ok(args) => args,
        Err(what) => return Refusal::Invalid(what).response(),
    };
    match value(call(core, request, StateFn::StartRedrive, args).await, "redrive") {
        Err(refused) => refused,
        Ok(report) if report.get("busy").is_some() => {
            error(409, &format!("{RUNNING_MAX} redrives are running; wait for one of them, or cancel one"))
        }
        Ok(report) => ok(report),
    }
}

fn asked(body: &[u8]) -> Result<Value, String> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|e| format!("bad body: {e}"))?;
    let text = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => check_name(name, text).map(|()| Some(text.clone())),
        Some(_) => Err(format!("{name} must be a string")),
    };
    let time = |name: &str| match text(name)? {
        None => Ok(None),
        Some(text) => parse_stamp(&text).map(|at| Some(time_arg(at))).ok_or(format!("{name} is not a time")),
    };
    let queue = text("queue")?.ok_or("queue is required")?;
    let rate = match body.get("rate") {
        None | Some(Value::Null) => RATE,
        Some(rate) => rate.as_i64().filter(|n| *n > 0).ok_or("rate must be a positive integer")?.min(RATE_MAX),
    };
    let dry_run = match body.get("dryRun") {
        None | Some(Value::Null) => false,
        Some(dry_run) => dry_run.as_bool().ok_or("dryRun must be true or false")?,
    };
    Ok(json!({
        "queue": queue, "group": text("consumerGroup")?, "error": text("error")?, "from": time("from")?, "to": time("to")?,
        "toQueue": text("toQueue")?, "toPartition": text("toPartition")?, "rate": rate, "dryRun": dry_run,
        "running": RUNNING_MAX,
    }))
}

/// `GET /api/v1/dlq/redrive/:id`
pub async fn progress(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    report(core, request, params, StateFn::GetRedrive).await
}

/// `DELETE /api/v1/dlq/redrive/:id`
pub async fn cancel(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    report(core, request, params, StateFn::CancelRedrive).await
}

async fn report(core: &Rc<Core>, request: &Request, params: &Params, function: StateFn) -> Response {
    let missing = || Refusal::NotFound("Redrive not found".into()).response();
    let Ok(id) = Uuid::parse_str(params.get("id")) else { return missing() };
    match call(core, request, function, json!({"id": id.hyphenated().to_string()})).await {
        Ok(None) => missing(),
        result => value(result, "redrive").map_or_else(|refused| refused, ok),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_of_a_redrive() {
        let got = asked(br#"{"queue":"q","error":"boom","from":"2026-09-12","rate":100000,"dryRun":true}"#).unwrap();
        assert_eq!(
            (&got["rate"], &got["dryRun"], &got["error"], &got["group"]),
            (&json!(500), &json!(true), &json!("boom"), &Value::Null)
        );
        assert_eq!(got["from"], "2026-09-12T00:00:00.000000Z");
        for body in [
            "",
            "[]",
            "{}",
            r#"{"queue":""}"#,
            r#"{"queue":5}"#,
            r#"{"queue":"q","rate":0}"#,
            r#"{"queue":"q","to":"soon"}"#,
            r#"{"queue":"q","dryRun":1}"#,
        ] {
            assert!(asked(body.as_bytes()).is_err(), "{body}");
        }
    }
}
