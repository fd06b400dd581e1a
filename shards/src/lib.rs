//! The engine of one shard: pure, synchronous state machines. No I/O, no clock, no async, no SQL, no HTTP.
//!
//! Commands of requests come in as events, verdicts and store calls go out as effects.

pub mod ack;
pub mod attempt;
pub mod command;
pub mod effect;
pub mod ids;
pub mod key;
pub mod lease_id;
pub mod place;
pub mod repack;
pub mod sealed;
pub mod tail;
pub mod visible;
pub mod window;
