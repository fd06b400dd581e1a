//! HTTP requests and responses as the handlers see them. The only room that knows HTTP and JSON.
//!
//!     conn: bytes -> head, body -> Request -> routes -> handler (push, pop, ack, ...) -> Response -> bytes

pub mod ack;
pub mod body;
pub mod configure;
pub mod dead_letters;
pub mod fetch;
pub mod groups;
pub mod head;
pub mod health;
pub mod json;
pub mod lease;
pub mod maintenance;
pub mod messages;
pub mod pop;
pub mod push;
pub mod query;
pub mod redrives;
pub mod refusals;
pub mod reply;
pub mod resources;
pub mod routes;
mod scrape;
pub mod status;
#[doc(hidden)]
pub mod targets;
pub mod transaction;

use crate::limits::ROOM_FREE_BYTES;
use crate::rt;
use bytes::Bytes;
use queen_shards::ids::{GroupId, LeaseId, PartitionId, TenantId};
use refusals::Refusal;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Other,
}

/// One request, whole: head and body have arrived and passed the limits.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    /// Percent-decoded path segments after the leading slash: `/api/v1/pop` is `["api", "v1", "pop"]`.
    pub segments: Vec<String>,
    /// The raw query string, without `?`; empty when absent. [`Request::query`] reads it.
    pub query: String,
    pub tenant: TenantId,
    /// Subject of the proved token: the `producerSub` of what this request pushes.
    pub producer: Option<Arc<str>>,
    /// `Content-Type`, lower-cased, without parameters.
    pub content_type: Option<String>,
    pub body: Bytes,
    /// Resolves when the client closes the connection while the request is being handled.
    pub gone: crate::conn::Gone,
    /// What the shard holds for it, its body included.
    pub(crate) share: std::rc::Rc<crate::conn::Share>,
}

impl Request {
    /// Waits until the shard has room for so many bytes more, of what this inflates or of its answer: before anything is
    /// done for it, because then it must be answered. A few wait for nothing, so never for a large request. Refused where the
    /// client left meanwhile: it may come again, and is not to be served twice.
    pub async fn room(&self, bytes: usize) -> Result<(), Refusal> {
        if bytes <= ROOM_FREE_BYTES {
            return Ok(());
        }
        match Box::pin(rt::race(self.share.raise_by(bytes - ROOM_FREE_BYTES), self.gone.wait())).await {
            rt::Either::Left(()) => Ok(()),
            rt::Either::Right(()) => Err(Refusal::Left),
        }
    }
}

/// One answer. `Content-Length` and connection headers are the connection's.
#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    /// `None` for bodiless answers.
    pub content_type: Option<&'static str>,
    pub body: Vec<u8>,
    /// Further header lines, name and value.
    pub headers: Vec<(&'static str, String)>,
    /// Claims to give back when this answer cannot be written.
    pub claims: Option<(LeaseId, Vec<(PartitionId, GroupId)>)>,
    /// The place of a large answer among those that the shard holds, until it is written.
    pub hold: Option<crate::conn::Hold>,
}

impl Response {
    /// A JSON answer.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Response {
        Response { status, content_type: Some("application/json"), body: body.into(), ..Response::default() }
    }
    /// A plain-text answer.
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> Response {
        Response { status, content_type: Some("text/plain; charset=utf-8"), body: body.into(), ..Response::default() }
    }
    /// A bodiless answer.
    pub fn empty(status: u16) -> Response {
        Response { status, ..Response::default() }
    }
}
