//! Bulk replays of dead letters: every second the next rows of each running redrive, at its rate.
//!
//!     claim the task > rows of this second > each: key, slot, new id > queen.redrive_row > its shard is told
//!
//! Holds: a row and its count are one transaction, so a redrive goes on after any crash and moves no row twice.

use super::run_if_due;
use crate::bell::Bell;
use crate::cipher::Cipher;
use crate::config::Config;
use crate::http::dead_letters::replay_as;
use crate::mint::new_message_id;
use crate::rt;
use crate::state::{StateCall, StateFn, StateReply};
use crate::telemetry::warning_every_30_s;
use queen_shards::ids::TenantId;
use queen_shards::key::KeyHasher;
use queen_shards::place::LaneKey;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A redrive's rate counts per run.
const PERIOD: Duration = Duration::from_secs(1);
/// Between two looks for a redrive that another broker was asked for, while none runs.
const LOOK: Duration = Duration::from_secs(5);
/// Redrives served in one run, those that waited longest.
const SERVED_MAX: u32 = 16;
/// A run gives up after so long: its lease lasts a minute.
const RUN_MAX: Duration = Duration::from_secs(20);

/// Moves what running redrives ask for. `asked`: one was asked for here. `held`: push maintenance is on, so that nothing is
/// moved: what is moved would come before pushes that wait on disk, as a single replay would (data plane 10.3). `call`: runs
/// a state call; `grew`: tells the owner shard that a partition grew.
pub(crate) async fn redrive(
    config: Arc<Config>,
    keys: KeyHasher,
    asked: Rc<Bell>,
    held: impl Fn() -> bool,
    call: impl AsyncFn(StateCall) -> StateReply,
    grew: impl AsyncFn(LaneKey),
) {
    let cipher = Cipher::of(config.encryption);
    let mut work = async || {
        let mut grown = BTreeMap::new();
        let started = Instant::now();
        let ask = async |tenant, function, args| -> Option<Value> {
            let reply = call(StateCall { function, tenant, args }).await;
            let text = reply.inspect_err(|error| warning_every_30_s("dlq", "a redrive step failed", error)).ok()?;
            serde_json::from_str(&text?).ok()
        };
        let next = ask(TenantId::DEFAULT, StateFn::NextRedrives, json!({ "limit": SERVED_MAX })).await;
        let due = next.unwrap_or_default();
        for redrive in due.as_array().into_iter().flatten() {
            let tenant = redrive["tenant"].as_str().and_then(|text| Uuid::parse_str(text).ok());
            let tenant = TenantId(tenant.unwrap_or_default().as_u128());
            for row in redrive["rows"].as_array().into_iter().flatten() {
                if started.elapsed() > RUN_MAX || held() {
                    break;
                }
                let text = |name: &str| row[name].as_str().unwrap_or_default();
                let lane = LaneKey::new(tenant, text("queue").into(), text("partition").into());
                let key = keys.key(format!("dlq:{}", text("id")).as_bytes()).0.to_le_bytes();
                let mut args = json!({
                    "redrive": redrive["redrive"], "failedAt": row["failedAt"], "id": row["id"], "queue": row["queue"],
                    "partition": row["partition"], "slot": lane.slot(), "message": new_message_id(),
                    "key": key.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
                });
                if let Some(cipher) = &cipher {
                    let find = json!({"id": row["id"], "payload": true});
                    let Some(found) = ask(tenant, StateFn::FindDeadLetter, find).await else { break };
                    let queues = json!({"queues": [row["queue"]]});
                    let Some(encrypted) = ask(tenant, StateFn::QueueFlags, queues).await else { break };
                    replay_as(cipher, &found, encrypted == json!([row["queue"]]), &mut args);
                }
                let done = ask(tenant, StateFn::RedriveRow, args).await;
                if done.as_ref().is_none_or(|done| !done["grown"].is_null()) {
                    // Without an answer it may have moved.
                    grown.insert((tenant.0, lane.queue.clone(), lane.partition.clone()), lane);
                }
                match done {
                    Some(done) if done["result"] == "stopped" => break,
                    Some(_) => {}
                    // Not counted: it comes again.
                    None => break,
                }
            }
        }
        for lane in grown.into_values() {
            grew(lane).await;
        }
    };
    // One may have been running before this broker was.
    let mut running = true;
    loop {
        rt::race(asked.wait(), rt::sleep(if running { PERIOD / 2 } else { LOOK })).await;
        if held() {
            continue;
        }
        // Without one, nothing is claimed and nothing written.
        let any = StateCall { function: StateFn::AnyRedrive, tenant: TenantId::DEFAULT, args: json!({}) };
        running = matches!(call(any).await, Ok(Some(text)) if text == "true");
        if running {
            run_if_due("redrive", &config.server_id, PERIOD, &call, &mut work).await;
        }
    }
}
