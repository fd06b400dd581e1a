//! Connections: bytes in, answers out in request order, within limits.
//!
//!     Listener -> serve: one task per connection
//!     connection: head -> Service::admit -> body -> Service::handle -> answer, then the next request
//!     watch: one clock per shard for every timeout; gone: tells a handler that its client left
//!
//! Holds: one request of a connection is handled at a time, the next ones wait in a bounded buffer or in the socket;
//! a refused request's bytes are never taken for another request; an answer with claims that did not arrive gives
//! them back. Knows HTTP/1.1 framing; knows no route, no engine and no store: those are behind [`Service`].

mod answer;
mod answers;
mod budget;
mod connection;
mod gone;
mod serve;
#[cfg(test)]
mod tests;
mod watch;

pub use answers::{Answers, Hold};
pub(crate) use budget::Share;
pub use gone::Gone;
pub use serve::serve;

use crate::http::head::Head;
use crate::http::{Request, Response};
use crate::limits;
use queen_shards::ids::{GroupId, LeaseId, PartitionId};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// What connections serve. Everything runs on the shard's thread.
pub trait Service: 'static {
    /// What [`Service::admit`] found out and [`Service::handle`] needs: the route, its parameters, who asks.
    type Ticket: 'static;

    /// Judges a head before any of its body is read or asked for: authentication, tenant, route. A refusal is
    /// the request's answer. Waits only where keys must be fetched to judge a token.
    fn admit(&self, head: &Head) -> impl Future<Output = Result<Self::Ticket, Response>>;

    /// Handles a whole request. Runs to its end even when the client leaves; `request.gone` tells.
    fn handle(&self, ticket: Self::Ticket, request: Request) -> Pin<Box<dyn Future<Output = Response>>>;

    /// Takes back claims whose answer could not be written or did not arrive.
    fn give_back(&self, lease: LeaseId, claims: Vec<(PartitionId, GroupId)>);

    /// Resolves when the broker shuts down.
    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// Limits that are settings or that tests shorten; the rest are constants in [`crate::limits`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// QUEEN_MAX_BODY_BYTES.
    pub body_bytes: usize,
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    pub write_timeout: Duration,
    pub idle_timeout: Duration,
    pub linger_timeout: Duration,
    /// For requests in flight at a shutdown.
    pub shutdown_timeout: Duration,
    pub connections: usize,
    pub body_budget_bytes: usize,
    /// Granularity of the timeouts above.
    pub tick: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: limits::BODY_BYTES_MAX,
            head_timeout: limits::HEAD_TIMEOUT,
            body_timeout: limits::BODY_TIMEOUT,
            write_timeout: limits::WRITE_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            linger_timeout: limits::LINGER_TIMEOUT,
            shutdown_timeout: limits::SHUTDOWN_TIMEOUT,
            connections: limits::CONNECTIONS_MAX,
            body_budget_bytes: limits::BODY_BUDGET_BYTES,
            tick: limits::TICK,
        }
    }
}
