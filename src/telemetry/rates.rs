//! The periodic `rates` and `sizes` lines. Source: operations 5.5.

use super::metrics::{Metrics, Op, Sums, resident_bytes};
use crate::spool::Status;
use queen_shards::activity::BusyQueue;
use std::sync::Arc;
use std::time::Instant;

/// Remembers the last reading; the control thread calls [`Rates::log`] every `QUEEN_LOG_RATES_MS`.
pub struct Rates {
    metrics: Arc<Metrics>,
    spool: Arc<Status>,
    last: Sums,
    last_buffered: u64,
    at: Instant,
}

impl Rates {
    pub fn new(metrics: Arc<Metrics>, spool: Arc<Status>) -> Rates {
        Rates { last: metrics.sums(), metrics, spool, last_buffered: 0, at: Instant::now() }
    }

    /// Writes one `rates` line, one for each of the busiest queues, and one `sizes` line, about the time since the last
    /// call.
    pub fn log(&mut self, busiest: Vec<BusyQueue>) {
        let sums = self.metrics.sums();
        let now = sums.since(&self.last);
        let secs = self.at.elapsed().as_secs_f64().max(0.001);
        (self.last, self.at) = (sums, Instant::now());
        let spool = self.spool.numbers();
        let buffered = spool.written - std::mem::replace(&mut self.last_buffered, spool.written);
        let per_sec = |n: u64| format!("{:.1}", n as f64 / secs);
        let [p50_push, p99_push] = self.metrics.round_trip_ms(Op::Push, [0.5, 0.99]);
        let [p99_pop] = self.metrics.round_trip_ms(Op::Pop, [0.99]);
        let [p99_ack] = self.metrics.round_trip_ms(Op::Ack, [0.99]);
        let parked: u64 = self.metrics.parked().iter().map(|(_, n)| n).sum();
        let (open, busy) = self.metrics.connections();
        let (tails, windows, memos) = self.metrics.memory();
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1048576.0);
        crate::info!(
            "rates",
            "rates",
            scope = "global",
            push_s = per_sec(now.push_messages),
            pop_s = per_sec(now.pop_messages),
            ack_s = per_sec(now.ack_messages),
            txn_s = per_sec(now.transactions),
            p50_push_ms = format_args!("{p50_push:.2}"),
            p99_push_ms = format_args!("{p99_push:.2}"),
            p99_pop_ms = format_args!("{p99_pop:.2}"),
            p99_ack_ms = format_args!("{p99_ack:.2}"),
            pop_empty_pct = format_args!("{:.1}", 100.0 * now.pop_empty as f64 / now.pop_requests.max(1) as f64),
            parked = parked,
            pool = format_args!("{busy}/{open}/{}", self.metrics.pool_size),
            pool_waiting = 0,
            buffered = buffered,
        );
        for busy in busiest {
            let BusyQueue { tenant, queue, activity, hot } = busy;
            crate::info!(
                "rates",
                "rates",
                tenant = uuid::Uuid::from_u128(tenant.0),
                queue = queue,
                push_s = per_sec(activity.pushed),
                pop_s = per_sec(activity.popped),
                ack_s = per_sec(activity.acked),
                lag_ms = format_args!("{:.1}", activity.lag_us as f64 / 1000.0 / activity.claims.max(1) as f64),
                hot = hot,
            );
        }
        crate::info!(
            "sizes",
            "sizes",
            tail_mb = mb(tails),
            window_mb = mb(windows),
            memo_mb = mb(memos),
            spool_pending = spool.pending,
            spool_healthy = spool.db_healthy,
            rss_gb = format_args!("{:.3}", resident_bytes() as f64 / 1e9),
        );
    }
}

/// What this process counted and the database does not know yet: arguments of `queen.add_totals`.
///
/// The control thread takes a delta, sends it, and keeps it ([`Totals::failed`]) when the store could not take it.
pub struct Totals {
    metrics: Arc<Metrics>,
    sent: Sums,
    sending: Sums,
}

impl Totals {
    pub fn new(metrics: Arc<Metrics>) -> Totals {
        Totals { metrics, sent: Sums::default(), sending: Sums::default() }
    }
    /// The next delta, `None` when there is nothing to add.
    pub fn take(&mut self) -> Option<serde_json::Value> {
        let sums = self.metrics.sums();
        let delta = sums.since(&self.sent);
        let counted = Sums { loop_lag_samples: 0, loop_lag_micros: 0, commits: 0, conflated: 0, ..delta };
        if counted == Sums::default() {
            return None;
        }
        (self.sending, self.sent) = (self.sent, sums);
        Some(serde_json::json!({
            "pushRequests": delta.push_requests, "pushMessages": delta.push_messages,
            "popRequests": delta.pop_requests, "popMessages": delta.pop_messages,
            "ackRequests": delta.ack_requests, "ackMessages": delta.ack_messages,
            "ackFailed": delta.ack_failed, "deadLettered": delta.dead_lettered,
            "transactions": delta.transactions, "dbErrors": delta.db_errors,
        }))
    }
    /// The last delta was not stored: it is part of the next one.
    pub fn failed(&mut self) {
        self.sent = self.sending;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_that_was_not_stored_comes_again() {
        let metrics = Arc::new(Metrics::new(1, 1));
        let mut totals = Totals::new(metrics.clone());
        assert!(totals.take().is_none());
        metrics.shard(0).push(1, 10);
        assert_eq!(totals.take().unwrap()["pushMessages"], 10);
        totals.failed();
        metrics.shard(0).push(1, 5);
        assert_eq!(totals.take().unwrap()["pushMessages"], 15);
        assert!(totals.take().is_none());
    }
}
