//! The operator's switches for pushes and pops. Two flags for the whole cell: memory of each broker decides, a row of
//! `queen.system_state` makes it last; the others see it with their next read of the log. Source: operations 4.8; data plane 3.7.

use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use crate::mail::Switch;
use crate::state::{StateCall, StateFn};
use queen_shards::effect::StoreError;
use queen_shards::ids::TenantId;
use serde_json::{Value, json};
use std::rc::Rc;

/// `GET /api/v1/system/maintenance`: the rows where the database answers, else memory.
pub async fn get(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    if core.store_is_up() {
        let turns = core.maintenance().turns();
        if let Some(flags) = core.state(read()).await.ok().flatten().and_then(|text| Flags::read(&text)) {
            core.follow_maintenance((flags.push, flags.pop), turns);
        }
    }
    let spool = core.spool();
    let megabytes = spool.bytes as f64 / 1_048_576.0;
    let body = json!({
        "maintenanceMode": core.push_maintenance(), "popMaintenanceMode": core.pop_maintenance(),
        "bufferedMessages": spool.pending, "bufferHealthy": spool.db_healthy,
        "bufferStats": {
            "pendingCount": spool.pending, "failedCount": spool.failed, "dbHealthy": spool.db_healthy,
            "failedFiles": {
                "count": spool.files, "totalBytes": spool.bytes, "totalMB": megabytes,
                "failoverCount": spool.files, "qos0Count": 0,
            },
        },
    });
    Response::json(200, body.to_string())
}

/// `POST /api/v1/system/maintenance`
pub async fn set(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let on = match enabled(&request.body) {
        Ok(on) => on,
        Err(refusal) => return refusal,
    };
    turn(core, Switch::Push, on).await;
    let spool = core.spool();
    let message = match on {
        true => "Maintenance mode ENABLED. All PUSHes routing to file buffer.",
        false => "Maintenance mode DISABLED. Background processor will drain buffer to DB.",
    };
    let body = json!({
        "maintenanceMode": on, "bufferedMessages": spool.pending, "bufferHealthy": spool.db_healthy, "message": message,
    });
    Response::json(200, body.to_string())
}

/// `GET /api/v1/system/maintenance/pop`: memory only.
pub async fn get_pop(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let on = core.pop_maintenance();
    let message = match on {
        true => "Pop maintenance mode is ON. All POP operations return empty arrays.",
        false => "Pop maintenance mode is OFF. Normal operation.",
    };
    Response::json(200, json!({"popMaintenanceMode": on, "message": message}).to_string())
}

/// `POST /api/v1/system/maintenance/pop`
pub async fn set_pop(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let on = match enabled(&request.body) {
        Ok(on) => on,
        Err(refusal) => return refusal,
    };
    turn(core, Switch::Pop, on).await;
    let message = match on {
        true => "Pop maintenance mode ENABLED. All POP operations will return empty arrays.",
        false => "Pop maintenance mode DISABLED. Normal operation resumed.",
    };
    Response::json(200, json!({"popMaintenanceMode": on, "message": message}).to_string())
}

/// `GET /api/v1/system/shared-state`
pub async fn shared_state(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let body = json!({
        "enabled": false, "reason": "single_node_segments_broker",
        "maintenance_mode": core.push_maintenance(), "pop_maintenance_mode": core.pop_maintenance(),
    });
    Response::json(200, body.to_string())
}

/// Turns a switch here, and stores it as well as it can be: an operator switches while the database is away, too. Then the
/// control thread stores it once the database is back. Source: operations 4.8.
async fn turn(core: &Rc<Core>, switch: Switch, on: bool) {
    let turn = core.turn_maintenance(switch, on);
    let stored = match core.store_is_up() {
        true => core.state(store(switch, on)).await,
        false => Err(StoreError::Unavailable("the database is away".into())),
    };
    match stored {
        Ok(_) => core.maintenance().stored(switch, turn),
        Err(error) => crate::warning!(
            "maintenance",
            "the switch holds on this broker, and is stored when the database is back",
            key = key(switch),
            enabled = on,
            error = error
        ),
    }
}

/// The call that reads both rows.
fn read() -> StateCall {
    StateCall { function: StateFn::Maintenance, tenant: TenantId::DEFAULT, args: json!({}) }
}

/// The call that writes the row of a switch.
pub fn store(switch: Switch, on: bool) -> StateCall {
    let args = json!({"key": key(switch), "enabled": on});
    StateCall { function: StateFn::SetMaintenance, tenant: TenantId::DEFAULT, args }
}

fn key(switch: Switch) -> &'static str {
    match switch {
        Switch::Push => "maintenance_mode",
        Switch::Pop => "pop_maintenance_mode",
    }
}

fn enabled(body: &[u8]) -> Result<bool, Response> {
    let body: Value = serde_json::from_slice(body).map_err(|error| Refusal::BadBody(error.to_string()).response())?;
    let enabled = body.get("enabled").and_then(Value::as_bool);
    enabled.ok_or_else(|| Refusal::Invalid("enabled (boolean) is required".into()).response())
}

/// Both flags, as the database has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags {
    push: bool,
    pop: bool,
}

impl Flags {
    /// Reads the reply of `queen.maintenance`.
    fn read(text: &str) -> Option<Flags> {
        let rows: Value = serde_json::from_str(text).ok()?;
        Some(Flags { push: rows["push"].as_bool()?, pop: rows["pop"].as_bool()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_a_boolean_called_enabled() {
        assert_eq!(enabled(br#"{"enabled":true,"more":1}"#).ok(), Some(true));
        assert_eq!(enabled(br#"{"enabled":false}"#).ok(), Some(false));
        for (body, starts) in [
            (&b"{"[..], r#"{"error":"bad body: "#),
            (b"", r#"{"error":"bad body: "#),
            (b"{}", r#"{"error":"enabled (boolean) is required"}"#),
            (br#"{"enabled":"true"}"#, r#"{"error":"enabled (boolean) is required"}"#),
            (b"[]", r#"{"error":"enabled (boolean) is required"}"#),
        ] {
            let refusal = enabled(body).unwrap_err();
            assert_eq!(refusal.status, 400);
            assert!(refusal.body.starts_with(starts.as_bytes()), "{:?}", String::from_utf8_lossy(&refusal.body));
        }
    }
}
