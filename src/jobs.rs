//! Periodic work of the control thread: one timer and one store call each.
//!
//! Holds: nothing waits for these, and an error of one round is the next round's work.

mod redrive;
mod retention;

pub(crate) use redrive::redrive;
pub use retention::retention;

use crate::config::Config;
use crate::rt;
use crate::state::{StateCall, StateFn, StateReply};
use crate::telemetry::history::History;
use crate::telemetry::rates::Totals;
use crate::telemetry::{Metrics, warning_every_30_s, warning_every_60_s};
use queen_shards::effect::StoreError;
use queen_shards::ids::TenantId;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest pause between two looks for a due task.
const POLL_MIN: Duration = Duration::from_millis(100);
/// Between two steps of a measuring pass, or as long as a step took: it reads every segment row and must leave the store to others.
const MEASURE_PAUSE: Duration = Duration::from_millis(50);
/// Partitions and cursors of a step of counting: about a second, of which a third is CPU where memory holds the rows.
pub const COUNTED_AT_ONCE: u32 = 50_000;
/// Partitions of a step of measuring: an index probe each.
pub const MEASURED_AT_ONCE: u32 = 50_000;
/// Messages of a step of measuring. A segment has one at least, and its row takes a microsecond: half a second of single ones.
pub const MEASURED_MESSAGES: u32 = 500_000;
/// After a page that failed, the next ones of its queue are so many times smaller: what was cut off at the 30 s of a statement would be
/// two seconds of them.
const SMALLER: u32 = 16;
/// A large queue whose last page was counted or measured longer ago is begun anew: what nobody went on with is not mixed with what
/// is there now. Three periods where that is longer, so that a task that runs seldom comes to its end.
const WALK_KEPT: Duration = Duration::from_secs(600);
/// In a database with at most so many partitions every page counts by itself: about 10 ms.
pub const COUNTED_BY_PAGES: u32 = 5_000;
/// Partitions kept per queue and group, most pending first: what pages list at most.
pub const RANKED_PARTITIONS: u32 = 1_000;
/// Counting rests so many times as long as it works: at most a fifth of one PostgreSQL process.
const COUNT_REST: u32 = 4;
/// Longest run of counting or measuring, its rests included: the lease of a task lasts a minute, and a last step may take the 30 s of
/// a statement. The next run goes on where this one ended. One of measuring may last a period, where that is longer: its lease lasts
/// three.
const WALK_RUN_MAX: Duration = Duration::from_secs(25);

/// Runs `work` once per `period` in the whole cluster: whoever finds the task due takes it. Never ends.
///
/// Looks every tenth of the period, and when the task is due where that was told: an idle broker asks little. An error of the
/// claim is the next look's work; an error of the release stalls the task until its lease is over.
/// Source: operations 6.4; reliability 9 (at most 5 queries a second).
async fn scheduled(
    task: &'static str,
    holder: &str,
    period: Duration,
    call: &impl AsyncFn(StateCall) -> StateReply,
    mut work: impl AsyncFnMut(),
) {
    let look = (period / 10).max(POLL_MIN);
    let mut pause = look;
    loop {
        rt::sleep(pause).await;
        let due_in = run_if_due(task, holder, period, call, &mut work).await;
        // Never longer than a period: somebody may make it due sooner.
        pause = due_in.map_or(look, |due_in| due_in.clamp(POLL_MIN, period.max(POLL_MIN)));
    }
}

/// One look of [`scheduled`]. When to look again, where the store said so.
async fn run_if_due(
    task: &'static str,
    holder: &str,
    period: Duration,
    call: &impl AsyncFn(StateCall) -> StateReply,
    work: &mut impl AsyncFnMut(),
) -> Option<Duration> {
    let ask = async |function, args| {
        let reply = call(StateCall { function, tenant: TenantId::DEFAULT, args }).await;
        let text = reply.inspect_err(|error| warning_every_30_s("jobs", "a task was not scheduled", error)).ok()?;
        serde_json::from_str::<Value>(&text?).ok()
    };
    let args = json!({"task": task, "holder": holder, "periodMs": period.as_millis() as u64});
    let claim = ask(StateFn::ClaimTask, args).await?;
    if let Some(fence) = claim["fence"].as_i64() {
        work().await;
        ask(StateFn::ReleaseTask, json!({"task": task, "fence": fence})).await;
    }
    claim["dueInMs"].as_u64().map(Duration::from_millis)
}

/// Adds this broker's counters to the lifetime totals every `STATS_INTERVAL_MS`. `call`: runs a state call.
///
/// Source: operations 5.4.2, 5.6.1.
pub async fn add_totals(config: Arc<Config>, metrics: Arc<Metrics>, call: impl AsyncFn(StateCall) -> StateReply) {
    let mut totals = Totals::new(metrics);
    loop {
        rt::sleep(config.stats_interval).await;
        add_totals_once(&mut totals, &call).await;
    }
}

/// One round of [`add_totals`]; also for the last moment before an end.
pub async fn add_totals_once(totals: &mut Totals, call: &impl AsyncFn(StateCall) -> StateReply) {
    let Some(args) = totals.take() else { return };
    let reply = call(StateCall { function: StateFn::AddTotals, tenant: TenantId::DEFAULT, args }).await;
    match reply {
        // Unknown: counted once at best, which is better than perhaps twice.
        Ok(_) | Err(StoreError::Unknown(_)) => {}
        Err(error) => {
            totals.failed();
            warning_every_30_s("stats", "totals were not stored", &error);
        }
    }
}

/// Adds what this broker and its queues did to the minutes of the database, every `METRICS_FLUSH_MS`. What cannot be
/// stored is dropped. Source: operations 5.11.
pub async fn keep_history(
    config: Arc<Config>,
    history: Rc<RefCell<History>>,
    call: impl AsyncFn(StateCall) -> StateReply,
) {
    loop {
        rt::sleep(config.metrics_flush).await;
        let args = history.borrow_mut().take_minute();
        let reply = call(StateCall { function: StateFn::AddHistory, tenant: TenantId::DEFAULT, args }).await;
        if let Err(error) = reply {
            warning_every_60_s("metrics", "a minute was not stored", &error);
        }
    }
}

/// Measures the stored bytes of all queues, a step per queue or page of a large one, every `RETAINED_BYTES_INTERVAL_MS`, one broker
/// at a time. Source: operations 5.8.1, 6.4.
pub async fn measure_retained(config: Arc<Config>, call: impl AsyncFn(StateCall) -> StateReply) {
    let (mut walk, mut owed) = (Walk::default(), Owed::default());
    let period = config.retained_interval;
    scheduled("retained_bytes", &config.server_id, period, &call, async || {
        let rest = |worked: Duration| worked.max(MEASURE_PAUSE);
        run_steps(WALK_RUN_MAX.max(period), &mut owed, rest, async || {
            let (page, messages) = (walk.at_once(MEASURED_AT_ONCE), walk.at_once(MEASURED_MESSAGES));
            let args = json!({"page": page, "messages": messages, "keepMs": kept_ms(period)});
            walk.step(StateFn::MeasureRetained, args, "stored bytes were not measured", &call).await
        })
        .await
    })
    .await
}

/// Counts queues and groups for the pages of a database with many partitions, a step per queue or page of a large one, every
/// `STATS_INTERVAL_MS`, one broker at a time. Source: operations 5.7, 6.4.
pub async fn count_queues(config: Arc<Config>, call: impl AsyncFn(StateCall) -> StateReply) {
    let (mut walk, mut owed) = (Walk::default(), Owed::default());
    let period = config.stats_interval;
    scheduled("stats_refresh", &config.server_id, period, &call, async || {
        run_steps(WALK_RUN_MAX, &mut owed, |worked| worked * COUNT_REST, async || {
            let args = json!({"exact": COUNTED_BY_PAGES, "ranks": RANKED_PARTITIONS, "page": walk.at_once(COUNTED_AT_ONCE),
                "keepMs": kept_ms(period)});
            walk.step(StateFn::CountQueue, args, "queues were not counted", &call).await
        })
        .await
    })
    .await
}

/// One run of a walk: steps, and after each the rest that it owes, until one says that the walk is over or `most` has passed.
async fn run_steps(
    most: Duration,
    owed: &mut Owed,
    rest: impl Fn(Duration) -> Duration,
    mut step: impl AsyncFnMut() -> bool,
) {
    let begun = Instant::now();
    let left = || most.saturating_sub(begun.elapsed());
    rt::sleep(owed.pay(left())).await;
    while !left().is_zero() {
        let step_begun = Instant::now();
        if !step().await {
            break;
        }
        owed.add(rest(step_begun.elapsed()));
        rt::sleep(owed.pay(left())).await;
    }
}

/// Rest that is owed for work: what does not fit into a run is taken in the next ones.
#[derive(Debug, Default)]
struct Owed(Duration);

impl Owed {
    fn add(&mut self, rest: Duration) {
        self.0 += rest;
    }

    /// What to rest now, of at most `left`.
    fn pay(&mut self, left: Duration) -> Duration {
        let now = self.0.min(left);
        self.0 -= now;
        now
    }
}

/// How long the pages of a queue are kept without another one, for a task of this period.
fn kept_ms(period: Duration) -> u64 {
    WALK_KEPT.max(period * 3).as_millis() as u64
}

/// A walk over all queues by id: a call per queue, or per page of a large one. What was found of a large queue is in the database,
/// so that any broker goes on with it.
#[derive(Debug, Default)]
struct Walk {
    /// The last queue it was done with; null: it begins.
    after: Value,
    /// The queue of which another page is due; null: the next queue is.
    within: Value,
    /// A page of this queue has failed.
    small: bool,
}

impl Walk {
    /// How much of a queue to do at once, of `most`.
    fn at_once(&self, most: u32) -> u32 {
        if self.small { most / SMALLER } else { most }
    }

    /// Does one queue, or a page of it; `failed`: what to say where that fails. False: the walk is over, or the store is away.
    ///
    /// A queue of which a page failed, because it took longer than a statement may, goes on with smaller ones. One that cannot be
    /// done even so is passed over: the others are done.
    async fn step(
        &mut self,
        function: StateFn,
        mut args: Value,
        failed: &'static str,
        call: &impl AsyncFn(StateCall) -> StateReply,
    ) -> bool {
        args["after"] = self.after.clone();
        args["walk"] = self.within.clone();
        let run = async |args| call(StateCall { function, tenant: TenantId::DEFAULT, args }).await;
        let mut reply = run(args.clone()).await;
        if let Err(error) = &reply {
            warning_every_30_s("stats", failed, error);
            if !std::mem::replace(&mut self.small, true) {
                return true;
            }
            args["skip"] = true.into();
            reply = run(args).await;
        }
        // Without an answer the walk goes on from here another time.
        let Ok(reply) = reply else { return false };
        let mut reply: Value = serde_json::from_str(reply.as_deref().unwrap_or_default()).unwrap_or_default();
        let left = reply["left"] == true;
        let queue = reply.get_mut("queue").map(Value::take).unwrap_or_default();
        let goes_on = !queue.is_null();
        self.small &= left;
        (self.after, self.within) = if left { (self.after.take(), queue) } else { (queue, Value::Null) };
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_queue_that_takes_too_long_is_passed_over_and_the_others_are_done() {
        let done = RefCell::new(Vec::new());
        let call = async |call: StateCall| {
            let queue = call.args["after"].as_i64().unwrap_or(0) + 1;
            if queue == 2 && call.args["skip"] != true {
                return Err(StoreError::Unavailable("canceling statement due to user request".into()));
            }
            done.borrow_mut().push((queue, call.args["skip"] == true));
            Ok(Some(json!({ "queue": (queue <= 3).then_some(queue) }).to_string()))
        };
        let walked = async {
            let mut walk = Walk::default();
            let mut steps = 0;
            while walk.step(StateFn::CountQueue, json!({}), "not counted", &call).await {
                steps += 1;
            }
            assert_eq!(steps, 4, "the second queue is tried twice");
            assert!(walk.after.is_null(), "the next walk begins anew");
        };
        walked.now_or_never().expect("nothing waits");
        assert_eq!(done.take(), [(1, false), (2, true), (3, false), (4, false)]);
    }

    #[test]
    fn a_queue_whose_pages_take_too_long_is_done_in_smaller_ones() {
        // Of the queues 1 to 3, 2 cannot be done in full pages and has two small ones.
        let asked = RefCell::new(Vec::new());
        let call = async |call: StateCall| {
            let (after, within) = (call.args["after"].as_i64().unwrap_or(0), call.args["walk"].as_i64());
            let (queue, page) = (within.unwrap_or(after + 1), call.args["page"].as_u64().expect("a page"));
            assert_ne!(call.args["skip"], true);
            asked.borrow_mut().push((queue, page));
            match (queue, page) {
                (2, 160) => Err(StoreError::Unavailable("canceling statement due to user request".into())),
                (2, _) => Ok(Some(json!({"queue": 2, "left": within.is_none()}).to_string())),
                (4, _) => Ok(Some(json!({"queue": null}).to_string())),
                _ => Ok(Some(json!({"queue": queue, "left": false}).to_string())),
            }
        };
        let walked = async {
            let mut walk = Walk::default();
            let mut goes_on = true;
            while goes_on {
                let args = json!({"page": walk.at_once(160)});
                goes_on = walk.step(StateFn::CountQueue, args, "not counted", &call).await;
            }
        };
        walked.now_or_never().expect("nothing waits");
        assert_eq!(asked.take(), [(1, 160), (2, 160), (2, 10), (2, 10), (3, 160), (4, 160)]);
    }

    /// A run that outlived its lease would let another broker count beside it.
    #[test]
    fn rests_fit_into_their_run_and_none_is_forgiven() {
        let mut owed = Owed::default();
        let secs = Duration::from_secs;
        // A queue that took 20 s, in a run of 25.
        owed.add(secs(20) * COUNT_REST);
        let runs: Vec<Duration> = [5, 25, 25, 25, 25].map(|left| owed.pay(secs(left))).into();
        assert_eq!(runs, [5, 25, 25, 25, 0].map(secs));
        owed.add(secs(1));
        assert_eq!((owed.pay(Duration::ZERO), owed.pay(secs(25))), (Duration::ZERO, secs(1)));
    }

    #[test]
    fn a_large_queue_is_done_page_by_page_and_passed_over_at_a_page_that_fails() {
        // Of the queues 1 to 4, 2 has three pages and 3 fails at its second one.
        let (asked, pages) = (RefCell::new(Vec::new()), RefCell::new(0));
        let call = async |call: StateCall| {
            let (after, within) = (call.args["after"].as_i64().unwrap_or(0), call.args["walk"].as_i64());
            let skip = call.args["skip"] == true;
            asked.borrow_mut().push((after, within, skip));
            let queue = within.unwrap_or(after + 1);
            *pages.borrow_mut() = if within.is_some() { *pages.borrow() + 1 } else { 1 };
            match (queue, *pages.borrow(), skip) {
                (2, 1..=2, _) | (3, 1, _) => Ok(Some(json!({"queue": queue, "left": true}).to_string())),
                (3, _, false) => Err(StoreError::Unavailable("canceling statement due to user request".into())),
                (5, ..) => Ok(Some(json!({"queue": null}).to_string())),
                _ => Ok(Some(json!({"queue": queue, "left": false}).to_string())),
            }
        };
        let walked = async {
            let mut walk = Walk::default();
            while walk.step(StateFn::CountQueue, json!({}), "not counted", &call).await {}
            assert!(walk.after.is_null() && walk.within.is_null(), "the next walk begins anew");
        };
        walked.now_or_never().expect("nothing waits");
        let steps = [
            (0, None, false),
            (1, None, false),
            (1, Some(2), false),
            (1, Some(2), false),
            (2, None, false),
            (2, Some(3), false),
            (2, Some(3), false),
            (2, Some(3), true),
            (3, None, false),
            (4, None, false),
        ];
        assert_eq!(asked.take(), steps);
    }

    #[test]
    fn a_walk_that_met_an_outage_goes_on_where_it_was() {
        let away = async |_: StateCall| Err(StoreError::Unavailable("nobody is there".into()));
        let walked = async {
            let mut walk = Walk { after: 7.into(), within: 8.into(), small: false };
            assert!(walk.step(StateFn::CountQueue, json!({}), "not counted", &away).await);
            assert!(!walk.step(StateFn::CountQueue, json!({}), "not counted", &away).await);
            assert_eq!((walk.after, walk.within), (7.into(), 8.into()));
        };
        walked.now_or_never().expect("nothing waits");
    }
}
