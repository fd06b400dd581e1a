//! What the broker says about itself: counters, Prometheus text, log lines, the first screen. Read by all of the edge.
//!
//!     shards count -> Metrics -> prometheus (a scrape), rates (a line every few seconds), totals (the database)
//!
//! Holds: counting never locks and never shares a cache line between shards; logging never panics and never waits for
//! a reader that has stopped reading.

pub mod log;
pub mod metrics;
pub mod prometheus;
pub mod rates;
pub mod screen;

pub use metrics::{Metrics, Op, ParkGuard, ShardMetrics};
