//! `/api/v1/status/...`, `/status`, `/metrics` and the Prometheus page.
//!
//! Source: operations 5.2 to 5.4, 5.6.

use super::refusals::Refusal;
use super::resources::{PARTITIONS_LISTED_MAX, page};
use super::routes::Params;
use super::scrape::{Look, Scraped};
use super::{Request, Response, reply};
use crate::bell::Bell;
use crate::core_thread::Core;
use crate::rt;
use crate::state::{StateCall, StateFn};
use crate::telemetry::metrics::{Metrics, resident_bytes};
use crate::telemetry::prometheus;
use queen_shards::ids::TenantId;
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Default and cap of `limit` on the page of queues.
const QUEUES_LISTED: i64 = 100;
const QUEUES_LISTED_MAX: i64 = 1000;
/// Queues named on the page of the whole database, and among the dead letters of a scrape.
const QUEUES_NAMED_MAX: u32 = 1000;
/// How long a scrape waits for the database: scrapers give up after 10 s, and what memory knows must not be lost.
const SCRAPE_WAIT: Duration = Duration::from_secs(2);

/// `GET /api/v1/status`
pub async fn status(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let args = json!({
        "from": query.filter("from"), "to": query.filter("to"), "queue": query.filter("queue"),
        "namespace": query.filter("namespace"), "task": query.filter("task"), "limit": QUEUES_NAMED_MAX,
    });
    let result = core.state(StateCall { function: StateFn::Status, tenant: request.tenant, args }).await;
    if let Some(what) = result.as_ref().ok().and_then(|text| bad_time(text.as_deref()?)) {
        return Refusal::Invalid(format!("status failed: {what} is not a time")).response();
    }
    reply::answer("status", result)
}

/// The parameter that the function could not read. Source: operations 5.0 (400, not 500).
fn bad_time(text: &str) -> Option<String> {
    // A page has many keys and is not parsed for this.
    if !text.starts_with("{\"invalid\"") {
        return None;
    }
    let body: Value = serde_json::from_str(text).ok()?;
    Some(body["invalid"].as_str()?.to_owned())
}

/// `GET /api/v1/status/queues`
pub async fn queues(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let args = json!({
        "queue": query.filter("queue"), "namespace": query.filter("namespace"), "task": query.filter("task"),
        "limit": query.number_or("limit", QUEUES_LISTED).clamp(0, QUEUES_LISTED_MAX),
        "offset": query.number_or("offset", 0i64).clamp(0, i32::MAX as i64),
    });
    page(core, request, StateFn::StatusQueues, "status", args).await
}

/// `GET /api/v1/status/queues/:queue`
pub async fn queue(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let args = json!({"queue": params.get("queue"), "limit": PARTITIONS_LISTED_MAX});
    page(core, request, StateFn::StatusQueue, "status", args).await
}

/// `GET /api/v1/status/buffers`: the spool of this broker. Source: operations 5.6.5.
pub async fn buffers(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let spool = core.spool();
    let healthy = spool.db_healthy && core.store_is_up();
    let (pending, failed) = (spool.pending, spool.failed);
    Response::json(200, format!(r#"{{"pending":{pending},"failed":{failed},"dbHealthy":{healthy},"worker":0}}"#))
}

/// `GET /status`: asks nothing.
pub async fn alive(_: &Rc<Core>, _: &Request, _: &Params) -> Response {
    Response::json(200, r#"{"status":"ok","engine":"segments-rust"}"#)
}

/// `GET /metrics`: JSON.
pub async fn metrics(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    Response::json(200, metrics_json(&core.metrics))
}

fn metrics_json(metrics: &Metrics) -> String {
    let sums = metrics.sums();
    let (open, busy) = metrics.connections();
    let requests = sums.push_requests + sums.pop_requests + sums.ack_requests;
    let messages = sums.push_messages + sums.pop_messages + sums.ack_messages;
    format!(
        concat!(
            r#"{{"uptime":{},"requests":{{"total":{},"rate":0}},"messages":{{"total":{},"rate":0}},"#,
            r#""database":{{"poolSize":{},"idleConnections":{},"waitingRequests":0}},"#,
            r#""memory":{{"rss":{},"heapTotal":0,"heapUsed":0,"external":0,"arrayBuffers":0}},"#,
            r#""cpu":{{"user":0,"system":0}}}}"#
        ),
        metrics.uptime_secs(),
        requests,
        messages,
        metrics.pool_size,
        open.saturating_sub(busy),
        resident_bytes(),
    )
}

/// `GET /metrics/prometheus`: what memory knows always, what the database knows when it answers in time.
pub async fn prometheus(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let cluster = match core.store_is_up() {
        true => of_the_database(core).await,
        false => None,
    };
    Response {
        status: 200,
        content_type: Some("text/plain; version=0.0.4; charset=utf-8"),
        body: prometheus::text(&core.metrics, &core.spool(), core.push_maintenance(), cluster.as_deref()).into_bytes(),
        headers: vec![("cache-control", "no-cache".to_owned())],
        ..Response::default()
    }
}

static SCRAPED: Scraped<Value> = Scraped::new();

/// What the database knows for a scrape.
async fn of_the_database(core: &Rc<Core>) -> Option<Arc<Value>> {
    let reading = match SCRAPED.look(core.now()) {
        Look::Say(said) => return said,
        Look::Read(reading) => reading,
    };
    // It goes on without who began it: the next scrape is told what it brings.
    let answered = Rc::new(Bell::default());
    let (answer, reader) = (answered.clone(), core.clone());
    rt::spawn(async move {
        let args = json!({"limit": QUEUES_NAMED_MAX});
        let call = StateCall { function: StateFn::ClusterMetrics, tenant: TenantId::DEFAULT, args };
        let text = reader.state(call).await.ok().flatten().unwrap_or_default();
        if let Ok(read) = serde_json::from_str(&text) {
            reading.read(read);
        }
        answered.ring();
    });
    rt::timeout(SCRAPE_WAIT, answer.wait()).await;
    SCRAPED.older(core.now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_json_with_every_key() {
        let metrics = Metrics::new(1, 160);
        metrics.shard(0).push(2, 10);
        metrics.shard(0).pop(5);
        let got: Value = serde_json::from_str(&metrics_json(&metrics)).unwrap();
        assert_eq!(
            (&got["requests"], &got["messages"]),
            (&json!({"total": 3, "rate": 0}), &json!({"total": 15, "rate": 0}))
        );
        assert_eq!(got["database"], json!({"poolSize": 160, "idleConnections": 0, "waitingRequests": 0}));
        assert!(got["memory"]["rss"].as_u64().unwrap() > 0);
        assert_eq!(got["cpu"], json!({"user": 0, "system": 0}));
    }

    #[test]
    fn a_bad_time_is_told_from_a_page() {
        assert_eq!(bad_time(r#"{"invalid" : "from"}"#).as_deref(), Some("from"));
        assert_eq!(bad_time(r#"{"timeRange" : {}}"#), None);
    }
}
