//! `POST /api/v1/configure`: creates a queue or changes its options.
//!
//!     body -> Asked (every value judged here) -> queen.configure merges under the row lock -> shards are told -> body
//!
//! Source: data plane 8.1 to 8.3.

use super::json::{check_name, push_quoted};
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response, reply};
use crate::core_thread::Core;
use crate::state::{StateCall, StateFn};
use queen_shards::effect::StoreError;
use serde_json::{Map, Value};
use std::rc::Rc;

/// What an option takes. Numbers are columns of 32 bits.
#[derive(Clone, Copy)]
enum Kind {
    Name,
    Bool,
    /// Refused outside.
    Int(i64, i64),
    /// Moved to the nearer end.
    Clamped(i64, i64),
    SinkName,
    SinkSeconds,
}

const INT_MAX: i64 = i32::MAX as i64;
const COUNT: Kind = Kind::Int(0, INT_MAX);

/// The 21 options. Source: data plane 8.2.
const OPTIONS: [(&str, Kind); 21] = [
    ("namespace", Kind::Name),
    ("task", Kind::Name),
    ("priority", Kind::Int(i32::MIN as i64, INT_MAX)),
    // A lease of no time would hand every message to everybody at once.
    ("leaseTime", Kind::Int(1, INT_MAX)),
    ("retryLimit", COUNT),
    ("retryDelay", COUNT),
    ("maxSize", COUNT),
    ("ttl", COUNT),
    ("deadLetterQueue", Kind::Bool),
    ("dlqAfterMaxRetries", Kind::Bool),
    ("delayedProcessing", COUNT),
    ("windowBuffer", COUNT),
    ("retentionSeconds", COUNT),
    ("completedRetentionSeconds", COUNT),
    ("retentionEnabled", Kind::Bool),
    ("encryptionEnabled", Kind::Bool),
    ("maxWaitTimeSeconds", COUNT),
    ("minPopWaitTime", Kind::Clamped(0, 60_000)),
    ("dedupWindowSeconds", Kind::Clamped(0, INT_MAX)),
    ("retentionSinkHold", Kind::SinkName),
    ("retentionSinkHoldMaxSeconds", Kind::SinkSeconds),
];

const SINK_NAME_MAX: usize = 64;
const SINK_SECONDS: std::ops::RangeInclusive<i64> = 60..=31_536_000;

/// A request that passed: what `queen.configure` gets.
#[derive(Debug, PartialEq)]
struct Asked {
    queue: String,
    replace: bool,
    options: Map<String, Value>,
}

/// Handler of `POST /api/v1/configure`.
pub async fn configure(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let asked = match parse(&request.body) {
        Ok(asked) => asked,
        Err(refused) => return refused,
    };
    let args = serde_json::json!({"queue": asked.queue, "replace": asked.replace, "options": asked.options});
    let result = core.state(StateCall { function: StateFn::Configure, tenant: request.tenant, args }).await;
    // Before the answer: the next pop, push and ack of this broker see it.
    if matches!(result, Ok(_) | Err(StoreError::Unknown(_))) {
        core.queue_changed(request.tenant, &asked.queue).await;
    }
    reply::answer("configure", result)
}

fn parse(body: &[u8]) -> Result<Asked, Response> {
    let body: Value = serde_json::from_slice(body).map_err(|e| Refusal::BadBody(e.to_string()).response())?;
    let top = body.as_object();
    let Some(queue) = top.and_then(|top| top.get("queue")).and_then(Value::as_str) else {
        return Err(Refusal::Invalid("queue is required".into()).response());
    };
    let top = top.expect("it has a queue");
    check_name("queue", queue).map_err(|why| Refusal::Invalid(why).response())?;
    let replace = match top.get("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(other) => {
            let text = format!("mode must be \"merge\" or \"replace\", got {other}");
            return Err(Refusal::Invalid(text).response());
        }
    };
    let bag = match top.get("options") {
        None | Some(Value::Null) => top,
        Some(Value::Object(bag)) => bag,
        Some(_) => return Err(failed("options must be an object")),
    };
    let mut options = Map::new();
    for (name, kind) in OPTIONS {
        let outer = || match kind {
            Kind::Name => top.get(name).filter(|v| v.as_str().is_some_and(|text| !text.is_empty())),
            _ => None,
        };
        if let Some(sent) = bag.get(name).or_else(outer) {
            options.insert(name.to_owned(), judge(name, kind, sent)?);
        }
    }
    Ok(Asked { queue: queue.to_owned(), replace, options })
}

/// The value as the store gets it; null stays null, which means the default.
fn judge(name: &str, kind: Kind, sent: &Value) -> Result<Value, Response> {
    let wrong = |what: &str| failed(&format!("{name} must be {what}, got {}", shown(sent)));
    let int = || whole(sent).ok_or_else(|| wrong("an integer"));
    if sent.is_null() {
        return Ok(Value::Null);
    }
    match kind {
        Kind::Bool => match sent {
            Value::Bool(_) => Ok(sent.clone()),
            Value::String(text) if text == "true" || text == "false" => Ok(Value::Bool(text == "true")),
            _ => Err(wrong("true or false")),
        },
        Kind::Int(min, max) => {
            let n = int()?;
            if !(min..=max).contains(&n) {
                return Err(wrong(&format!("between {min} and {max}")));
            }
            Ok(n.into())
        }
        Kind::Clamped(min, max) => Ok(int()?.clamp(min, max).into()),
        Kind::Name => {
            let text = sent.as_str().ok_or_else(|| wrong("a string"))?;
            check_name(name, text).map_err(|why| failed(&why))?;
            Ok(text.into())
        }
        Kind::SinkName => {
            let text = sent.as_str().ok_or_else(|| wrong("a string"))?;
            let fits =
                text.len() <= SINK_NAME_MAX && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            if !fits {
                let why = format!("{name} must match [A-Za-z0-9._-]{{0,{SINK_NAME_MAX}}}, got {}", shown(sent));
                return Err(invalid(name, &why));
            }
            Ok(text.into())
        }
        Kind::SinkSeconds => {
            let n = int()?;
            if !SINK_SECONDS.contains(&n) {
                let (min, max) = (SINK_SECONDS.start(), SINK_SECONDS.end());
                return Err(invalid(name, &format!("{name} must be between {min} and {max}, got {n}")));
            }
            Ok(n.into())
        }
    }
}

/// A JSON integer, or one in a string. Beyond 64 bits it is the nearer end, which every range refuses or clamps.
fn whole(sent: &Value) -> Option<i64> {
    match sent {
        Value::Number(n) => {
            let real = n.as_f64().filter(|f| f.fract() == 0.0);
            n.as_i64().or(real.map(|f| f as i64))
        }
        Value::String(text) => {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let numeric = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let end = if text.starts_with('-') { i64::MIN } else { i64::MAX };
            numeric.then(|| text.parse().unwrap_or(end))
        }
        _ => None,
    }
}

/// The value in an error text, not longer than a line.
fn shown(sent: &Value) -> String {
    const SHOWN_MAX: usize = 100;
    let text = sent.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// A wrong type or range: 400, because a 5xx makes clients repeat it elsewhere.
fn failed(why: &str) -> Response {
    Refusal::Invalid(format!("configure failed: {why}")).response()
}

fn invalid(option: &str, why: &str) -> Response {
    let mut body = b"{\"error\":".to_vec();
    push_quoted(&mut body, why);
    body.extend_from_slice(b",\"invalid\":");
    push_quoted(&mut body, option);
    body.push(b'}');
    Response::json(400, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn asked(body: Value) -> Asked {
        parse(body.to_string().as_bytes()).unwrap_or_else(|r| panic!("{}", String::from_utf8_lossy(&r.body)))
    }
    #[track_caller]
    fn refused(body: &str, want: &str) {
        let response = parse(body.as_bytes()).expect_err("must be refused");
        assert_eq!((response.status, String::from_utf8(response.body).unwrap().as_str()), (400, want));
    }
    #[track_caller]
    fn options(body: Value) -> Value {
        Value::Object(asked(body).options)
    }

    #[test]
    fn the_queue_is_a_required_text_and_may_be_empty() {
        for body in ["{}", "[]", "7", r#"{"queue":5}"#, r#"{"queue":null}"#] {
            refused(body, r#"{"error":"queue is required"}"#);
        }
        assert_eq!(asked(json!({"queue": ""})).queue, "");
        refused(r#"{"queue":"a\nb"}"#, r#"{"error":"control characters are not allowed in queue"}"#);
        refused(&json!({"queue": "x".repeat(1025)}).to_string(), r#"{"error":"queue exceeds the 1024-byte limit"}"#);
        assert!(parse(b"{").expect_err("no JSON").body.starts_with(br#"{"error":"bad body: "#));
    }

    #[test]
    fn without_options_the_top_level_is_the_bag() {
        let got = options(json!({"queue": "q", "leaseTime": 5, "namespace": "n", "unknown": 1}));
        assert_eq!(got, json!({"leaseTime": 5, "namespace": "n"}));
        assert_eq!(options(json!({"queue": "q", "options": {}, "leaseTime": 5})), json!({}));
    }

    #[test]
    fn top_level_names_fill_in_only_where_the_bag_has_none() {
        let got = options(json!({"queue": "q", "namespace": "n", "task": "t", "options": {"task": null}}));
        assert_eq!(got, json!({"namespace": "n", "task": null}));
        let got = options(json!({"queue": "q", "namespace": "", "task": 7, "options": {}}));
        assert_eq!(got, json!({}));
    }

    #[test]
    fn only_the_top_level_mode_counts() {
        assert!(!asked(json!({"queue": "q", "mode": null})).replace);
        assert!(!asked(json!({"queue": "q", "mode": "merge", "options": {"mode": "replace"}})).replace);
        assert!(asked(json!({"queue": "q", "mode": "replace"})).replace);
        refused(r#"{"queue":"q","mode":"both"}"#, r#"{"error":"mode must be \"merge\" or \"replace\", got \"both\""}"#);
        refused(
            r#"{"queue":"q","mode":{"a":1}}"#,
            r#"{"error":"mode must be \"merge\" or \"replace\", got {\"a\":1}"}"#,
        );
    }

    #[test]
    fn numbers_and_booleans_may_be_texts() {
        let got = options(
            json!({"queue": "q", "options": {"leaseTime": "45", "retryLimit": 5.0, "deadLetterQueue": "false"}}),
        );
        assert_eq!(got, json!({"leaseTime": 45, "retryLimit": 5, "deadLetterQueue": false}));
    }

    #[test]
    fn some_values_are_clamped_others_refused() {
        let got =
            options(json!({"queue": "q", "options": {"minPopWaitTime": 99_999_999_999u64, "dedupWindowSeconds": -5}}));
        assert_eq!(got, json!({"minPopWaitTime": 60000, "dedupWindowSeconds": 0}));
        for (option, value, want) in [
            ("leaseTime", json!(0), "leaseTime must be between 1 and 2147483647, got 0"),
            ("retryLimit", json!(-1), "retryLimit must be between 0 and 2147483647, got -1"),
            ("ttl", json!(4_294_967_296i64), "ttl must be between 0 and 2147483647, got 4294967296"),
            ("ttl", json!(1.5), "ttl must be an integer, got 1.5"),
            ("ttl", json!("1e3"), "ttl must be an integer, got \\\"1e3\\\""),
            ("retentionEnabled", json!(1), "retentionEnabled must be true or false, got 1"),
            ("namespace", json!(["a"]), "namespace must be a string, got [\\\"a\\\"]"),
        ] {
            let body = json!({"queue": "q", "options": {option: value}}).to_string();
            refused(&body, &format!(r#"{{"error":"configure failed: {want}"}}"#));
        }
        refused(r#"{"queue":"q","options":[]}"#, r#"{"error":"configure failed: options must be an object"}"#);
    }

    #[test]
    fn sink_options_name_themselves_when_refused() {
        refused(
            r#"{"queue":"q","options":{"retentionSinkHoldMaxSeconds":5}}"#,
            r#"{"error":"retentionSinkHoldMaxSeconds must be between 60 and 31536000, got 5","invalid":"retentionSinkHoldMaxSeconds"}"#,
        );
        refused(
            r#"{"queue":"q","options":{"retentionSinkHold":"a b"}}"#,
            r#"{"error":"retentionSinkHold must match [A-Za-z0-9._-]{0,64}, got \"a b\"","invalid":"retentionSinkHold"}"#,
        );
        let got = options(
            json!({"queue": "q", "options": {"retentionSinkHold": "s3.x_-1", "retentionSinkHoldMaxSeconds": 60}}),
        );
        assert_eq!(got, json!({"retentionSinkHold": "s3.x_-1", "retentionSinkHoldMaxSeconds": 60}));
    }
}
