//! The engine of one shard: pure, synchronous state machines. No I/O, no clock, no async, no SQL, no HTTP.
//!
//! The flow: [`command`]s of requests come in as events, [`place`]d on their owner shard. [`shard`] turns them:
//! pushes wait in [`lane`]s and close into the fused append commit ([`append`]); pops claim from ready rings
//! ([`claim`]) and acks are ruled ([`settle`], [`ack`]), both as fused cursor moves ([`moves`]). What needs the store
//! leaves as an [`effect`] and comes back as an event; verdicts leave as replies. What other brokers committed comes
//! as the news of their log ([`command::Event::Log`]).

pub mod ack;
pub mod activity;
pub mod bundle;
pub mod command;
pub mod effect;
pub mod frames;
pub mod handed;
pub mod ids;
pub mod inflated;
pub mod key;
pub mod lease_id;
pub mod limits;
pub mod place;
pub mod planted;
mod seal;
pub mod sealed;
pub mod shard;
pub mod tail;
pub mod window;

mod append;
mod attempt;
mod calls;
mod claim;
mod conflate;
mod doubt;
mod drain;
mod evict;
#[cfg(test)]
mod fake;
mod fifo;
mod finds;
mod follow;
mod gone;
mod idle;
mod lane;
mod leap;
mod memo;
mod moves;
mod opening;
mod other_store;
mod prepare;
mod queue;
mod recall;
mod repack;
mod ring;
mod settle;
mod slab;
mod sought;
mod spool;
mod standing;
mod timers;
mod visible;
mod watch;
