//! What the broker says about itself: counters, Prometheus text, log lines, the first screen. Read by all of the edge.
//!
//!     shards count -> Metrics -> prometheus (a scrape), rates (a line every few seconds), totals (the database)
//!
//! Holds: counting never locks and never shares a cache line between shards; logging never panics and never waits for
//! a reader that has stopped reading.

pub mod busy;
pub mod history;
pub mod log;
pub mod metrics;
pub mod prometheus;
pub mod rates;
pub mod screen;

use std::sync::{Mutex, PoisonError};

pub use metrics::{Metrics, Op, ParkGuard, ShardMetrics};

/// A warning about a periodic job, at most one with that text in 30 s. Source: operations 5.5.
pub fn warning_every_30_s(target: &'static str, what: &'static str, error: &dyn std::fmt::Display) {
    /// By what they say: a job that fails does not silence another one.
    static GATES: Mutex<Vec<(&str, log::Gate)>> = Mutex::new(Vec::new());
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = gates.iter().position(|(text, _)| *text == what).unwrap_or_else(|| {
        gates.push((what, log::Gate::new(30_000)));
        gates.len() - 1
    });
    if let Some(suppressed) = gates[at].1.pass() {
        crate::warning!(target, what, error = error, suppressed = suppressed);
    }
}

/// The same for metrics that cannot be stored, at most one in 60 s.
pub fn warning_every_60_s(target: &'static str, what: &str, error: &dyn std::fmt::Display) {
    static GATE: log::Gate = log::Gate::new(60_000);
    if let Some(suppressed) = GATE.pass() {
        crate::warning!(target, what, error = error, suppressed = suppressed);
    }
}
