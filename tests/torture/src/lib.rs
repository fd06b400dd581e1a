//! The torture rig.
//!
//!     nemesis > processes, proxies      clients > proxies > broker > proxy > PostgreSQL
//!     all of them > history > (heal, drain, read everything back) > check > report
//!
//! An episode is load under faults on fresh queues, a heal, a drain, and a verdict over its whole history; a run is
//! episodes until the time is over. See docs/torture.md.

pub mod args;
pub mod campaign;
pub mod check;
pub mod client;
pub mod coverage;
pub mod docket;
pub mod episode;
pub mod faults;
pub mod finals;
pub mod goals;
pub mod history;
pub mod nemesis;
pub mod outages;
pub mod planted;
pub mod report;
pub mod rng;
pub mod schedule;
pub mod waits;
pub mod work;
pub mod world;
