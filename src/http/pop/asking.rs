//! What a pop asks for: its query, the configuration's defaults and the bounds of an answer.

use super::query::{self, Query};
use super::render;
use super::taken::ANSWER_BYTES_MAX;
use crate::config::Config;
use crate::http::Response;
use crate::http::json::{check_name, parse_stamp, push_quoted};
use crate::http::refusals::Refusal;
use queen_shards::command::{PopFrom, QUEUE_MODE, Start};
use queen_shards::ids::TenantId;
use queen_shards::place::LaneKey;
use std::sync::Arc;

/// `batch` of a pop that names none. Source: data plane 4.1.
const BATCH_DEFAULT: u32 = 200;
/// `partitions` that autopilot chooses: all ready ones, up to this. Source: data plane 4.11.
const AUTOPILOT_PARTITIONS: u32 = 64;
/// Partitions, and so messages, that one pop of a conflating group gets at most. Source: data plane 4.10.
const CONFLATING_PARTITIONS_MAX: u32 = 64;

/// Which of the three routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    Queue { queue: &'a str },
    Partition { queue: &'a str, partition: &'a str },
    Discovery,
}

/// A pop whose parameters are good.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) tenant: TenantId,
    pub(super) from: Source,
    pub(super) group: Arc<str>,
    pub(super) start: Start,
    pub(super) batch: u32,
    pub(super) partitions: u32,
    /// The same if the group is conflating.
    pub(super) conflating_partitions: u32,
    /// What the request says of conflation.
    pub(super) conflation: Option<bool>,
    pub(super) lease_secs: Option<u32>,
    pub(super) auto_ack: bool,
    pub(super) wait_ms: Option<u64>,
    /// The batch may be held to fill. Source: data plane 4.5, minPopWaitTime.
    pub(super) fills: bool,
    /// Width and batch to echo.
    pub(super) autopilot: Option<(u32, u32)>,
    /// Answer in frames where that is allowed.
    pub(super) frames: bool,
}

#[derive(Debug)]
pub(super) enum Source {
    One(PopFrom),
    Matching { namespace: Option<String>, task: Option<String> },
}

impl Asking {
    pub(super) fn of(tenant: TenantId, query: &str, route: Route<'_>, config: &Config) -> Result<Asking, Response> {
        let query = query::parse(query).map_err(|refusal| Response::text(400, refusal))?;
        let filter = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (namespace, task) = (filter(&query.namespace), filter(&query.task));
        if route == Route::Discovery && namespace.is_none() && task.is_none() {
            return Err(empty_refusal(400, "namespace or task is required"));
        }
        if query.conflation == Some(true) && query.group.is_none() {
            return Err(empty_refusal(400, "conflation requires a consumerGroup"));
        }
        if query.conflation == Some(true) && query.auto_ack {
            return Err(empty_refusal(400, "conflation cannot be combined with autoAck"));
        }
        let group = query.group.as_deref().unwrap_or(QUEUE_MODE);
        name("consumerGroup", group)?;
        for (what, text) in [("namespace", &namespace), ("task", &task)] {
            name(what, text.as_deref().unwrap_or(""))?;
        }
        let from = match route {
            Route::Discovery => Source::Matching { namespace, task },
            Route::Queue { queue } => {
                name("queue", queue)?;
                Source::One(PopFrom::Queue { tenant, queue: queue.into() })
            }
            Route::Partition { queue, partition } => {
                name("queue", queue)?;
                name("partition", partition)?;
                Source::One(PopFrom::Partition(LaneKey::new(tenant, queue.into(), partition.into())))
            }
        };
        let messages_max = (ANSWER_BYTES_MAX / render::said(group).of_each("")) as u32;
        let wildcard = matches!(route, Route::Queue { .. });
        let pinned = matches!(route, Route::Partition { .. });
        let engaged = query.autopilot && config.autopilot && wildcard && query.group.is_some();
        let batch = query.batch.unwrap_or(if engaged { config.autopilot_batch } else { BATCH_DEFAULT });
        let batch = batch.min(messages_max);
        let partitions = match query.partitions {
            _ if pinned => 1,
            Some(partitions) => partitions,
            None if engaged => AUTOPILOT_PARTITIONS,
            None => 1,
        };
        let width = query.partitions.or(query.batch).unwrap_or(BATCH_DEFAULT).min(CONFLATING_PARTITIONS_MAX);
        let chosen = engaged && (query.batch.is_none() || query.partitions.is_none());
        let wait_ms =
            query.wait.then(|| query.timeout_ms.unwrap_or(config.pop_timeout.as_millis() as u64)).filter(|ms| *ms > 0);
        Ok(Asking {
            tenant,
            from,
            start: start(&query, pinned, config.default_start),
            group: group.into(),
            batch,
            partitions,
            conflating_partitions: if pinned { 1 } else { width },
            conflation: query.conflation.filter(|_| query.group.is_some()),
            lease_secs: query.lease_secs,
            auto_ack: query.auto_ack,
            wait_ms,
            fills: wildcard && wait_ms.is_some() && batch > 1,
            autopilot: chosen.then_some((partitions, batch)),
            frames: query.frames,
        })
    }

    /// Messages of a full answer.
    pub(super) fn full(&self, conflating: bool) -> u32 {
        if conflating { self.batch.min(self.conflating_partitions) } else { self.batch }
    }

    /// Name under which the pop counts as parked; empty for discovery.
    pub(super) fn queue_name(&self) -> Arc<str> {
        match &self.from {
            Source::One(from) => from.queue().clone(),
            Source::Matching { .. } => "".into(),
        }
    }

    /// The queue of the answer's top level. Source: data plane 4.6.
    pub(super) fn queue(&self) -> &str {
        match &self.from {
            Source::One(from) => from.queue(),
            Source::Matching { .. } => "",
        }
    }
}

/// Where a group starts that this pop may be the first to name. Source: data plane 4.4.
fn start(query: &Query, pinned: bool, default: Start) -> Start {
    if query.group.is_none() {
        return Start::All;
    }
    let mode = match query.mode.as_deref().map(|mode| mode.trim().to_lowercase()) {
        None => default,
        Some(mode) if matches!(&*mode, "new" | "new-only" | "new_only" | "newonly") => Start::New,
        Some(_) => Start::All,
    };
    match query.from.as_deref() {
        None | Some("") => mode,
        Some("now") => Start::New,
        Some(instant) => match parse_stamp(instant) {
            Some(stamp) => Start::At(stamp),
            // A conflating pinned pop registers as a wildcard pop does.
            None if pinned && query.conflation != Some(true) => Start::All,
            None => Start::New,
        },
    }
}

/// Refuses a name that cannot be stored.
fn name(what: &str, text: &str) -> Result<(), Response> {
    check_name(what, text).map_err(|why| Refusal::Invalid(why).response())
}

/// A refusal in the shape of an empty answer. Source: data plane 4.1, 4.10.
fn empty_refusal(status: u16, text: &str) -> Response {
    let mut body = b"{\"success\":false,\"error\":".to_vec();
    push_quoted(&mut body, text);
    body.extend_from_slice(b",\"messages\":[]}");
    Response::json(status, body)
}
