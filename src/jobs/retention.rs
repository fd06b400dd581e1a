//! Retention: one broker per period looks at what is due, in small steps that each touch one partition.
//!
//!     claim the task > walk for what was written > messages due > evidence due > empty partitions > audit rows > release
//!
//! Holds: every step is a transaction of its own that no push waits for; a run ends early rather than outlive its lease.
//! Source: operations 6.2 to 6.5, 6.7.

use super::scheduled;
use crate::config::Config;
use crate::state::{StateCall, StateFn, StateReply};
use crate::telemetry::warning_every_30_s;
use queen_shards::effect::StoreError;
use queen_shards::ids::TenantId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A run gives up after so long: its lease lasts a minute at least.
const RUN_MAX: Duration = Duration::from_secs(30);
/// Between two looks for empty partitions. Source: operations 6.3.
const CLEANUP_PAUSE: Duration = Duration::from_secs(60);
/// Partitions of one look for empty ones: a read of 10 to 20 ms; a million are walked in under two hours.
const CLEANUP_SLICE: u32 = 10_000;

/// Partition rows of one step of a walk for what was written: about 5 ms, ten times that where all were.
const WALK_SLICE: u32 = 10_000;

/// What a run removed.
#[derive(Debug, Default, PartialEq)]
struct Swept {
    messages: i64,
    segments: i64,
    evidence: i64,
    partitions: i64,
}

/// Sweeps every `RETENTION_INTERVAL`, one broker at a time. `call`: runs a state call.
pub async fn retention(config: Arc<Config>, call: impl AsyncFn(StateCall) -> StateReply) {
    let mut cleaned: Option<Instant> = None;
    scheduled("retention", &config.server_id, config.retention_interval, &call, async || {
        let clean = config.partition_cleanup && cleaned.is_none_or(|at| at.elapsed() >= CLEANUP_PAUSE);
        if clean {
            cleaned = Some(Instant::now());
        }
        match sweep(&config, clean, &call).await {
            Err(error) => warning_every_30_s("retention", "the sweep ended early", &error),
            Ok(swept) if swept == Swept::default() => {}
            Ok(swept) => crate::info!(
                "retention",
                "swept",
                messages = swept.messages,
                segments = swept.segments,
                evidence = swept.evidence,
                partitions = swept.partitions
            ),
        }
    })
    .await
}

async fn sweep(
    config: &Config,
    clean: bool,
    call: &impl AsyncFn(StateCall) -> StateReply,
) -> Result<Swept, StoreError> {
    let started = Instant::now();
    let limit = config.retention_batch_size;
    let period = config.retention_interval.as_millis() as u64;
    let due_cap = match config.retention_due_cap {
        0 => limit as u64 * 5,
        cap => cap,
    };
    let step = async |function: StateFn, args: Value| -> Result<Value, StoreError> {
        let reply = call(StateCall { function, tenant: TenantId::DEFAULT, args }).await?;
        Ok(reply.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    };
    let goes_on = |steps: u64| steps < due_cap && started.elapsed() < RUN_MAX;
    let count = |value: &Value| value.as_i64().unwrap_or(0);
    let mut swept = Swept::default();

    let mut steps = 0;
    while goes_on(steps) {
        let done = step(StateFn::MarkPartitions, json!({"limit": WALK_SLICE, "periodMs": period})).await?;
        steps += 1;
        if count(&done["looked"]) < WALK_SLICE as i64 {
            break;
        }
    }
    // Each partition that is due takes a step to move its start, one or more to delete, one to say when it is due next.
    let mut steps = 0;
    while goes_on(steps / 3) {
        let done = step(StateFn::RetainStep, json!({"limit": limit, "periodMs": period})).await?;
        steps += 1;
        if done["due"] != true {
            break;
        }
        swept.messages += count(&done["messages"]);
        swept.segments += count(&done["segments"]);
    }
    let mut steps = 0;
    while goes_on(steps) {
        let done = step(StateFn::ForgetEvidence, json!({ "limit": limit })).await?;
        steps += 1;
        if done["due"] != true {
            break;
        }
        swept.evidence += count(&done["rows"]);
    }
    if clean {
        let args = json!({"days": config.partition_cleanup_days, "slice": CLEANUP_SLICE, "limit": limit});
        swept.partitions += count(&step(StateFn::CleanupPartitions, args).await?["removed"]);
        step(StateFn::PurgeMetrics, json!({"days": config.metrics_retention_days, "limit": limit})).await?;
    }
    Ok(swept)
}
