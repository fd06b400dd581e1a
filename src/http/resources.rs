//! `/api/v1/resources/...`: queues, their depth, namespaces, tasks, partitions, the overview; deleting a queue.
//!
//! Each page is one SQL function, which writes the body. Source: data plane 8.4 to 8.8, 16.1; operations 5.8.

use super::routes::Params;
use super::{Request, Response, reply};
use crate::core_thread::Core;
use crate::state::{StateCall, StateFn};
use queen_shards::effect::StoreError;
use serde_json::{Value, json};
use std::rc::Rc;

/// Queues, namespaces or tasks on one page: the API has no paging here. About 300 bytes each: 3 MB.
const LISTED_MAX: u32 = 10_000;
/// Partitions on one queue's page; the sums cover all of them. About 250 bytes each: 2.5 MB.
pub(super) const PARTITIONS_LISTED_MAX: u32 = 10_000;
/// Default and cap of `limit` in the ranking of partitions. Source: data plane 16.1.
const RANKED: i64 = 100;
const RANKED_MAX: i64 = 1000;
/// Partitions whose oldest message the overview looks up, most pending first: an index probe each, about 50 ms in all.
const LAG_PROBES_MAX: u32 = 10_000;

/// `GET /api/v1/resources/queues`
pub async fn queues(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    page(core, request, StateFn::ListQueues, "queues", json!({"limit": LISTED_MAX})).await
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
    let args = json!({ "queue": queue });
    let result = core.state(StateCall { function: StateFn::DeleteQueue, tenant: request.tenant, args }).await;
    // Before the answer: a push after it must make the queue anew, under new ids.
    if matches!(result, Ok(_) | Err(StoreError::Unknown(_))) {
        core.queue_changed(request.tenant, queue).await;
    }
    reply::answer("delete", result)
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
