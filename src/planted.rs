//! The edge's side of the bugs on purpose, see [`queen_shards::planted`].

use queen_shards::effect::{Append, AppendOutcome, LaneOutcome};
use queen_shards::ids::Stamp;
use queen_shards::planted::{Bug, is};
use serde_json::Value;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// Chooses the bug that `QUEEN_PLANTED` names. Err: one line, when there is none of that name.
#[cfg(feature = "planted")]
pub fn choose() -> Result<(), String> {
    let Ok(name) = std::env::var("QUEEN_PLANTED") else { return Ok(()) };
    crate::warning!("boot", "a bug is planted in this broker", bug = name);
    queen_shards::planted::choose(&name).then_some(()).ok_or(format!("QUEEN_PLANTED: no bug {name}"))
}

/// What a store that does everything at once would answer.
pub fn believed(append: &Append) -> AppendOutcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    let created_at = Stamp(now);
    let lanes = append.lanes.iter().map(|_| LaneOutcome::Appended { created_at }).collect();
    AppendOutcome { now: created_at, lanes, stored: Vec::new() }
}

/// The payload as it came, unless its numbers are to pass through doubles.
pub fn payload(payload: &str) -> Cow<'_, str> {
    if !is(Bug::NumbersAsDoubles) {
        return payload.into();
    }
    match serde_json::from_str::<Value>(&payload.replace("1e400", "1e300")) {
        Ok(value) => as_doubles(value).to_string().into(),
        Err(_) => payload.into(),
    }
}

fn as_doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Object(all) => all.into_iter().map(|(key, value)| (key, as_doubles(value))).collect(),
        other => other,
    }
}
