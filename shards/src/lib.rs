//! The engine of one shard: pure, synchronous state machines. No I/O, no clock, no async, no SQL, no HTTP.
//!
//! Commands of requests come in as events, verdicts and store calls go out as effects.

pub mod command;
pub mod effect;
pub mod frames;
pub mod ids;
pub mod key;
pub mod lease_id;
pub mod place;
