//! The invariants of data plane 14, one test each, named after its number and rule.

mod acks;
mod dedup;
mod delivery;
mod options;
mod ordering;
mod subscriptions;
