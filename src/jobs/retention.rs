//! Retention: one broker per period looks at what is due, in small steps that each touch one partition.
//!
//!     claim the task > old metrics > walk for what was written > messages due > evidence due > empty partitions > release
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

/// Between two purges of metrics: minutes of idle queues come and go in tens of minutes, all others in days. Source: operations 6.7.
const PURGE_PAUSE: Duration = Duration::from_secs(60);
/// Of a run, for the purge of metrics, which comes first: a backlog of messages that takes whole runs does not keep metrics for ever,
/// nor the other way round.
const PURGE_MAX: Duration = Duration::from_secs(5);

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
    let (mut cleaned, mut purged): (Option<Instant>, Option<Instant>) = (None, None);
    scheduled("retention", &config.server_id, config.retention_interval, &call, async || {
        let clean = config.partition_cleanup && cleaned.is_none_or(|at| at.elapsed() >= CLEANUP_PAUSE);
        if clean {
            cleaned = Some(Instant::now());
        }
        let started = Instant::now();
        if purged.is_none_or(|at| at.elapsed() >= PURGE_PAUSE) {
            purged = Some(started);
            purge(&config, started, &call).await;
        }
        match sweep(&config, started, clean, &call).await {
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

/// Removes what is too old of metrics. Errors never end the run that it is a part of. Source: operations 6.7.
async fn purge(config: &Config, started: Instant, call: &impl AsyncFn(StateCall) -> StateReply) {
    let args = json!({"days": config.metrics_retention_days, "limit": config.retention_batch_size});
    while started.elapsed() < PURGE_MAX {
        match step(call, StateFn::PurgeMetrics, args.clone()).await {
            Ok(done) if done["left"] == true => {}
            Ok(_) => break,
            Err(error) => return warning_every_30_s("retention", "metrics were not purged", &error),
        }
    }
}

/// Runs one step; what it says.
async fn step(
    call: &impl AsyncFn(StateCall) -> StateReply,
    function: StateFn,
    args: Value,
) -> Result<Value, StoreError> {
    let reply = call(StateCall { function, tenant: TenantId::DEFAULT, args }).await?;
    Ok(reply.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

async fn sweep(
    config: &Config,
    started: Instant,
    clean: bool,
    call: &impl AsyncFn(StateCall) -> StateReply,
) -> Result<Swept, StoreError> {
    let limit = config.retention_batch_size;
    let period = config.retention_interval.as_millis() as u64;
    let due_cap = match config.retention_due_cap {
        0 => limit as u64 * 5,
        cap => cap,
    };
    let step = async |function, args| step(call, function, args).await;
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
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::RefCell;

    /// Whether empty partitions are removed or not: a backlog of metrics goes in one run, and an error of it ends nothing else.
    #[test]
    fn metrics_are_purged_until_none_are_left() {
        let config = Config::for_tests();
        let steps = RefCell::new(0);
        let call = async |call: StateCall| {
            assert_eq!(call.function, StateFn::PurgeMetrics);
            assert_eq!(call.args, json!({"days": 90, "limit": config.retention_batch_size}));
            *steps.borrow_mut() += 1;
            Ok(Some(json!({"rows": 7, "left": *steps.borrow() < 30}).to_string()))
        };
        purge(&config, Instant::now(), &call).now_or_never().expect("nothing waits");
        assert_eq!(steps.take(), 30);
        let away = async |_: StateCall| {
            *steps.borrow_mut() += 1;
            Err(StoreError::Unavailable("nobody is there".into()))
        };
        purge(&config, Instant::now(), &away).now_or_never().expect("nothing waits");
        assert_eq!(steps.take(), 1);
    }
}
