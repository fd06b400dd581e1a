//! What this broker did, on its way into log lines and into the minutes of the database. Lives on the control thread.
//!
//!     shards report > absorb > take_busiest (rates lines)
//!                            > take_minute (`queen.add_history`)
//!
//! Holds: each report is told once by each of the two. Source: operations 5.5, 5.11.

use super::busy::BusyQueues;
use super::metrics::{Metrics, Sums, resident_bytes};
use queen_shards::activity::{Activity, BusyQueue};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

pub struct History {
    metrics: Arc<Metrics>,
    hostname: String,
    since_lines: BusyQueues,
    since_minute: BusyQueues,
    sums: Sums,
    cpu: Cpu,
    at: Instant,
}

impl History {
    /// `hostname`: this broker's name, as operators gave it.
    pub fn new(metrics: Arc<Metrics>, hostname: String) -> History {
        History {
            sums: metrics.sums(),
            metrics,
            hostname,
            since_lines: BusyQueues::default(),
            since_minute: BusyQueues::default(),
            cpu: Cpu::now(),
            at: Instant::now(),
        }
    }

    /// Takes in what the shards reported since the last call.
    fn absorb(&mut self) {
        for busy in self.metrics.take_busy() {
            // A line is about messages.
            if busy.activity.messages() > 0 {
                self.since_lines.add(busy.clone());
            }
            self.since_minute.add(busy);
        }
    }

    /// The busiest queues since the last call, busiest first.
    pub fn take_busiest(&mut self, most: usize) -> Vec<BusyQueue> {
        self.absorb();
        let mut all = self.since_lines.take();
        all.sort_by(BusyQueue::busiest_first);
        all.truncate(most);
        all
    }

    /// Arguments of `queen.add_history` for the time since the last call. Not taken back when the store cannot have it:
    /// a gap in a curve, and no growth.
    pub fn take_minute(&mut self) -> Value {
        self.absorb();
        let (sums, cpu) = (self.metrics.sums(), Cpu::now());
        let (delta, secs) = (sums.since(&self.sums), self.at.elapsed().as_secs_f64().max(0.001));
        let percent = |now: u64, before: u64| now.saturating_sub(before) as f64 * 100.0 / Cpu::TICKS / secs;
        let (open, busy) = self.metrics.connections();
        let broker = json!({
            "pushRequests": delta.push_requests, "pushMessages": delta.push_messages,
            "popRequests": delta.pop_requests, "popMessages": delta.pop_messages,
            "ackRequests": delta.ack_requests, "ackMessages": delta.ack_messages,
            "ackFailed": delta.ack_failed, "deadLettered": delta.dead_lettered, "dbErrors": delta.db_errors,
            "loopLagUs": delta.loop_lag_micros, "loopLagSamples": delta.loop_lag_samples,
            "loopLagMaxUs": self.metrics.take_loop_lag_max(),
            "cpuUserPct": percent(cpu.user, self.cpu.user), "cpuSysPct": percent(cpu.system, self.cpu.system),
            "rssMb": resident_bytes() as f64 / 1048576.0,
            "poolActive": busy, "poolIdle": open.saturating_sub(busy), "poolSize": self.metrics.pool_size,
            "coveredUs": (secs * 1e6) as u64,
        });
        (self.sums, self.cpu, self.at) = (sums, cpu, Instant::now());
        let queues: Vec<Value> = self.since_minute.take().iter().map(of_queue).collect();
        json!({"hostname": self.hostname, "pid": std::process::id(), "broker": broker, "queues": queues})
    }
}

fn of_queue(busy: &BusyQueue) -> Value {
    let Activity { push_requests, pushed, popped, pop_empty, transactions, acked, ack_failed, .. } = busy.activity;
    let Activity { conflated, lag_us, claims, lag_max_us, parked_us, .. } = busy.activity;
    json!({
        "tenant": uuid::Uuid::from_u128(busy.tenant.0).hyphenated().to_string(), "queue": &*busy.queue,
        "pushRequests": push_requests, "pushed": pushed, "popped": popped, "popEmpty": pop_empty,
        "transactions": transactions, "acked": acked, "ackFailed": ack_failed, "conflated": conflated,
        "lagUs": lag_us, "claims": claims, "lagMaxUs": lag_max_us, "parkedUs": parked_us,
    })
}

/// CPU time of this process, in ticks.
struct Cpu {
    user: u64,
    system: u64,
}

impl Cpu {
    /// Ticks per second; fixed in the kernel's interface on every architecture of today.
    const TICKS: f64 = 100.0;

    /// Zeros where procfs is missing.
    fn now() -> Cpu {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name in parentheses may hold anything; the fields count from behind it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let field = |n: usize| fields.get(n).and_then(|text| text.parse().ok()).unwrap_or(0);
        Cpu { user: field(11), system: field(12) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queen_shards::ids::TenantId;

    fn busy(queue: &str, pushed: u64) -> BusyQueue {
        let activity = Activity { pushed, lag_us: 10, lag_max_us: pushed, claims: 1, ..Activity::default() };
        BusyQueue { tenant: TenantId::DEFAULT, queue: queue.into(), activity, hot: 1 }
    }

    #[test]
    fn lines_and_minutes_are_each_told_once_of_everything() {
        let metrics = Arc::new(Metrics::new(2, 10));
        let mut history = History::new(metrics.clone(), "broker-7".into());
        metrics.shard(0).busy_queues(vec![busy("a", 5), busy("b", 7)]);
        metrics.shard(1).busy_queues(vec![busy("a", 3)]);
        let lines = history.take_busiest(1);
        assert_eq!((&*lines[0].queue, lines[0].activity.pushed, lines[0].hot), ("a", 8, 2));
        metrics.shard(0).busy_queues(vec![busy("b", 1)]);
        metrics.shard(0).busy_queues(vec![busy("b", 1)]);
        metrics.shard(0).push(1, 17);
        let minute = history.take_minute();
        let mut queues = minute["queues"].as_array().unwrap().clone();
        queues.sort_by_key(|queue| queue["queue"].as_str().unwrap().to_owned());
        assert_eq!((&queues[0]["pushed"], &queues[0]["lagMaxUs"]), (&json!(8), &json!(5)));
        assert_eq!((&queues[1]["pushed"], &queues[1]["claims"]), (&json!(9), &json!(3)));
        assert_eq!((&minute["broker"]["pushMessages"], &minute["hostname"]), (&json!(17), &json!("broker-7")));
        assert_eq!(history.take_busiest(5).iter().map(|b| b.activity.pushed).collect::<Vec<_>>(), [2]);
        assert!(minute["broker"]["coveredUs"].is_u64());
        let next = history.take_minute();
        assert_eq!((&next["queues"], &next["broker"]["pushMessages"]), (&json!([]), &json!(0)));
    }

    #[test]
    fn a_queue_without_messages_has_a_minute_and_no_line() {
        let metrics = Arc::new(Metrics::new(1, 10));
        let mut history = History::new(metrics.clone(), "broker-7".into());
        let parked = Activity { parked_us: 900_000, ..Activity::default() };
        for activity in [parked, Activity { pop_empty: 1, ..parked }] {
            metrics.shard(0).busy_queues(vec![BusyQueue { activity, hot: 0, ..busy("q", 0) }]);
        }
        assert_eq!(history.take_busiest(5), []);
        let queue = &history.take_minute()["queues"][0];
        assert_eq!((&queue["parkedUs"], &queue["popEmpty"]), (&json!(1_800_000), &json!(1)));
    }

    #[test]
    fn everything_that_is_counted_of_a_queue_is_told() {
        let activity = Activity {
            push_requests: 1,
            pushed: 2,
            popped: 3,
            pop_empty: 4,
            transactions: 5,
            acked: 6,
            ack_failed: 7,
            conflated: 8,
            lag_us: 9,
            claims: 10,
            lag_max_us: 11,
            parked_us: 12,
        };
        let told = of_queue(&BusyQueue { activity, ..busy("q", 0) });
        let keys =
            "pushRequests pushed popped popEmpty transactions acked ackFailed conflated lagUs claims lagMaxUs parkedUs";
        let numbers: Vec<u64> = keys.split(' ').map(|key| told[key].as_u64().expect(key)).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
    }
}
