//! `/api/v1/resources/...`: queues, their depth, namespaces, tasks, partitions, the overview; deleting a queue.
//!
//! Each page is one SQL function, which writes the body. Source: data plane 8.4 to 8.8, 16.1; operations 5.8.

use super::json::push_quoted;
use super::routes::Params;
use super::{Request, Response, reply};
use crate::core_thread::Core;
use crate::state::{StateCall, StateFn};
use queen_shards::effect::StoreError;
use serde_json::{Value, json};
use std::rc::Rc;

/// Queues, namespaces or tasks on one page: the API has no paging here. About 300 bytes each: 3 MB.
const LISTED_MAX: u32 = 10_000;
/// Partitions on one queue's or one group's page; the sums cover all of them. Some index probes each: about 20 ms in all.
pub(super) const PARTITIONS_LISTED_MAX: u32 = 500;
/// Default and cap of `limit` in the ranking of partitions. Source: data plane 16.1.
const RANKED: i64 = 100;
const RANKED_MAX: i64 = 1000;
/// Partitions whose oldest message a page looks up, most pending first: an index probe each, about 10 ms in all.
pub(super) const LAG_PROBES_MAX: u32 = 1_000;

/// Partitions removed by one step of a queue's deletion: some ten milliseconds, for which pushes to them would wait.
const DROPPED_AT_ONCE: u32 = 500;

/// `GET /api/v1/resources/queues`
pub async fn queues(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let live = request.query().filter("stats") != Some("cached");
    page(core, request, StateFn::ListQueues, "queues", json!({"limit": LISTED_MAX, "live": live})).await
}

/// `GET /api/v1/resources/queues/:queue`
pub async fn queue(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let args = json!({"queue": params.get("queue"), "limit": PARTITIONS_LISTED_MAX});
    page(core, request, StateFn::GetQueue, "queue", args).await
}

/// `GET /api/v1/resources/queues/:queue/depth`
pub async fn depth(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let group = request.query().filter("group").map(str::to_owned);
    let args = json!({"queue": params.get("queue"), "group": group, "limit": PARTITIONS_LISTED_MAX});
    page(core, request, StateFn::QueueDepth, "depth", args).await
}

/// `DELETE /api/v1/resources/queues/:queue`
pub async fn delete(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let queue = params.get("queue");
    let call = async |function, args| core.state(StateCall { function, tenant: request.tenant, args }).await;
    let result = call(StateFn::DeleteQueue, json!({ "queue": queue })).await;
    // Before the answer: a push after it must make the queue anew, under new ids.
    if matches!(result, Ok(_) | Err(StoreError::Unknown(_))) {
        core.queue_changed(request.tenant, queue).await;
    }
    let id = match &result {
        Ok(Some(text)) => {
            serde_json::from_str::<Value>(text).ok().and_then(|mut said| Some(said.get_mut("id")?.take()))
        }
        _ => None,
    };
    let Some(id) = id else { return reply::answer("delete", result) };
    // And no broker may find anything of the old one after it.
    let mut after = Value::Null;
    loop {
        let step = call(StateFn::DropQueue, json!({"queue": id, "limit": DROPPED_AT_ONCE, "after": after})).await;
        let Ok(Some(text)) = &step else { return reply::answer("delete", step) }; // The clean-up goes on with it.
        let mut said: Value = serde_json::from_str(text).unwrap_or_default();
        if said["left"] == false {
            break;
        }
        after = said["after"].take();
    }
    let mut body = b"{\"deleted\":true,\"queue\":".to_vec();
    push_quoted(&mut body, queue);
    body.extend_from_slice(b",\"existed\":true}");
    Response::json(200, body)
}

/// `GET /api/v1/resources/namespaces`
pub async fn namespaces(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    page(core, request, StateFn::ListNamespaces, "namespaces", json!({"limit": LISTED_MAX})).await
}

/// `GET /api/v1/resources/tasks`
pub async fn tasks(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    page(core, request, StateFn::ListTasks, "tasks", json!({"limit": LISTED_MAX})).await
}

/// `GET /api/v1/resources/partitions?queue=&limit=`
pub async fn partitions(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let query = request.query();
    let limit = query.number_or("limit", RANKED).clamp(0, RANKED_MAX);
    let args = json!({"queue": query.filter("queue"), "limit": limit});
    page(core, request, StateFn::ListPartitions, "partitions", args).await
}

/// `GET /api/v1/resources/overview`
pub async fn overview(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    page(core, request, StateFn::Overview, "overview", json!({"limit": LAG_PROBES_MAX})).await
}

/// One state call whose reply is the body.
pub(super) async fn page(
    core: &Rc<Core>,
    request: &Request,
    function: StateFn,
    route: &'static str,
    args: Value,
) -> Response {
    reply::answer(route, core.state(StateCall { function, tenant: request.tenant, args }).await)
}
