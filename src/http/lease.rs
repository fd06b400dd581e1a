//! `POST /api/v1/lease/:leaseId/extend`: lengthens every live claim of a lease.
//!
//! Source: data plane 6; rule 22 (the lease id says where its claims are).

use super::json::push_quoted;
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use crate::state::{StateCall, StateFn};
use queen_shards::ids::LeaseId;
use queen_shards::lease_id;
use serde_json::{Value, json};
use std::rc::Rc;
use uuid::Uuid;

/// Without a readable `seconds`.
const SECONDS: i64 = 60;
/// Largest extension: an interval that any date of this century can take, 68 years.
const SECONDS_MAX: i64 = i32::MAX as i64;

/// Handler of `POST /api/v1/lease/:leaseId/extend`.
pub async fn extend(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let text = params.get("leaseId");
    let Ok(lease) = Uuid::parse_str(text) else {
        return answer(text, 0, None);
    };
    let claims = lease_id::read(LeaseId(lease.as_u128()));
    let args = json!({
        "lease": lease.hyphenated().to_string(), "partition": claims.first.0, "more": claims.more, "wide": claims.wide,
        "seconds": seconds(&request.body),
    });
    let result = core.state(StateCall { function: StateFn::ExtendLease, tenant: request.tenant, args }).await;
    let reply = match result {
        Ok(reply) => reply.and_then(|text| serde_json::from_str::<Value>(&text).ok()),
        Err(error) => return Refusal::store("renew", &error).response(),
    };
    match reply {
        Some(reply) => answer(text, reply["renewed"].as_i64().unwrap_or(0), reply["expiresAt"].as_str()),
        None => Refusal::StoreFailed { route: "renew", detail: "no answer".into() }.response(),
    }
}

/// Anything but an integer in `seconds` is 60; below 1 is 1.
fn seconds(body: &[u8]) -> i64 {
    let body: Option<Value> = serde_json::from_slice(body).ok();
    let seconds = body.and_then(|body| body.get("seconds")?.as_i64());
    seconds.unwrap_or(SECONDS).clamp(1, SECONDS_MAX)
}

/// The three expiry keys always carry one value.
fn answer(lease: &str, renewed: i64, expires: Option<&str>) -> Response {
    let mut body = b"{\"leaseId\":".to_vec();
    push_quoted(&mut body, lease);
    let expires = expires.filter(|_| renewed > 0).map_or("null".to_owned(), |at| format!("\"{at}\""));
    let success = renewed > 0;
    let rest = format!(
        r#","success":{success},"renewed":{renewed},"newExpiresAt":{expires},"expiresAt":{expires},"lease_expires_at":{expires}}}"#
    );
    body.extend_from_slice(rest.as_bytes());
    Response::json(200, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_read_leniently() {
        for (body, want) in [
            (&b""[..], 60),
            (b"nonsense", 60),
            (b"[1]", 60),
            (b"{}", 60),
            (br#"{"seconds":"45"}"#, 60),
            (br#"{"seconds":4.5}"#, 60),
            (br#"{"seconds":45}"#, 45),
            (br#"{"seconds":-3}"#, 1),
            (br#"{"seconds":0}"#, 1),
            (br#"{"seconds":9000000000000}"#, i32::MAX as i64),
        ] {
            assert_eq!(seconds(body), want, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn three_keys_carry_one_expiry() {
        let text = |r: Response| String::from_utf8(r.body).unwrap();
        assert_eq!(
            text(answer("L\"1", 2, Some("2026-09-12T08:17:15.000000Z"))),
            r#"{"leaseId":"L\"1","success":true,"renewed":2,"newExpiresAt":"2026-09-12T08:17:15.000000Z","expiresAt":"2026-09-12T08:17:15.000000Z","lease_expires_at":"2026-09-12T08:17:15.000000Z"}"#
        );
        assert_eq!(
            text(answer("x", 0, None)),
            r#"{"leaseId":"x","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}"#
        );
    }
}
