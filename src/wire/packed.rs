//! Packed wire groups: names and one zstd frame of stored frames, which is stored as it came.
//!
//!     bytes --walk--> Group (names, n, z, size), nothing inflated --inflate--> frames --messages--> each message
//!
//! Holds: what passes `messages` is what every official reader can read; one record that it cannot would hold a
//! partition's consumers up for ever. Source: binary forms 5, 6, 16.

use super::fields::Fields;
use super::{Refused, Result, within_items, zstd_frame};
use crate::http::json::{Checker, document, has_control};
use bytes::Bytes;
use queen_shards::frames::{FrameError, Frames, read};
use queen_shards::ids::MessageId;
use std::ops::Range;

/// A packed wire group takes at least so many bytes.
const GROUP_MIN: usize = 12;
/// Inflated bytes a packed message takes at least: a frame with one byte of transaction id and one of payload.
const MESSAGE_MIN: u64 = 25;

/// One packed wire group of which the header of `z` is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub queue: &'a str,
    pub partition: &'a str,
    /// Messages it says it has; at least 1.
    pub n: u32,
    /// One zstd frame.
    pub z: &'a [u8],
    /// Bytes that `z` inflates to.
    pub raw_len: u64,
}

/// One message of a packed wire group, borrowed from its inflated frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub id: MessageId,
    /// Never empty.
    pub transaction_id: &'a str,
    /// Its transaction id needs no escape in JSON.
    pub plain: bool,
    /// One JSON document.
    pub payload: &'a str,
    /// The whole frame, its length field included.
    pub frame: &'a [u8],
}

/// All wire groups. `spent`: inflated bytes of the request so far; with those that are claimed here at most `limit`.
pub fn walk(bytes: &[u8], spent: u64, limit: u64) -> Result<Vec<Group<'_>>> {
    let mut fields = Fields::of(bytes);
    let count = fields.u32("number of wire groups")?;
    if fields.left() / GROUP_MIN < count as usize {
        return Err(Refused::malformed(format!("{count} wire groups do not fit")));
    }
    let (mut groups, mut messages) = (Vec::new(), 0usize);
    for g in 0..count {
        let group = group(&mut fields).map_err(|refused| refused.at(|| format!("wire group {g}")))?;
        messages = messages.saturating_add(group.n as usize);
        within_items(messages).map_err(|refused| refused.at(|| format!("wire group {g}")))?;
        groups.push(group);
    }
    fields.end("the last wire group")?;
    let mut total = spent;
    for (g, group) in groups.iter_mut().enumerate() {
        let refused = |what: &str| Refused::malformed(format!("wire group {g}: {what}"));
        let header = zstd_frame::header(group.z).map_err(refused)?;
        group.raw_len = header.content.ok_or_else(|| refused("the zstd frame has no content size"))?;
        total = total.saturating_add(group.raw_len);
        if limit < total {
            return Err(Refused::TooLarge { limit });
        }
        if header.most < group.raw_len {
            return Err(refused("the zstd frame claims more than it can hold"));
        }
        if group.raw_len / MESSAGE_MIN < group.n as u64 {
            return Err(refused(&format!("{} messages do not fit", group.n)));
        }
    }
    Ok(groups)
}

fn group<'a>(fields: &mut Fields<'a>) -> Result<Group<'a>> {
    let (queue, partition) = (fields.text("queue name")?, fields.text("partition name")?);
    let n = fields.u32("number of messages")?;
    if n == 0 {
        return Err(Refused::malformed("no messages"));
    }
    let len = fields.u32("packed length")?;
    let z = fields.bytes(len as usize, "packed messages")?;
    Ok(Group { queue, partition, n, z, raw_len: 0 })
}

impl Group<'_> {
    /// The frames, to be dropped soon: see [`zstd_frame::inflate_briefly`]. `g`: its place, for the refusal.
    pub fn inflate(&self, g: usize) -> Result<Bytes> {
        let inflated = zstd_frame::inflate_briefly(self.z, self.raw_len as usize);
        let refused = || Refused::malformed(format!("wire group {g}: the zstd frame is damaged"));
        inflated.ok_or_else(refused)
    }
}

/// Checks the `n` messages of an inflated wire group and hands out each. `index`: of the first one in the body.
///
/// One pass over the bytes, no copy, nothing allocated.
pub fn messages<'a>(frames: &'a [u8], n: u32, index: usize, mut each: impl FnMut(Message<'a>)) -> Result<()> {
    let (mut walk, mut checker) = (Frames::new(frames), Checker::new(frames));
    for i in 0..n as usize {
        let range = walk.hop().unwrap_or(Err(FrameError::TooFew { wanted: n }));
        let range = range.map_err(|error| Refused::malformed(error.to_string()));
        let message = range.and_then(|at| message(frames, at, &mut checker));
        each(message.map_err(|refused| refused.at(|| format!("message {}", index + i)))?);
    }
    match walk.hop() {
        None => Ok(()),
        Some(_) => Err(Refused::malformed(format!("bytes after message {}", index + n as usize - 1))),
    }
}

fn message<'a>(frames: &'a [u8], at: Range<usize>, checker: &mut Checker<'_>) -> Result<Message<'a>> {
    let frame = read(frames, at.clone()).map_err(|error| Refused::malformed(error.to_string()))?;
    if frame.flags != 0 {
        return Err(Refused::malformed(format!("frame flags {:#04x} are not a client's to set", frame.flags)));
    }
    if frame.id.0 == 0 {
        return Err(Refused::malformed("the message id is all zeros"));
    }
    if frame.transaction_id.is_empty() {
        return Err(Refused::malformed("the transaction id is empty"));
    }
    let payload_at = at.end - frame.payload.len()..at.end;
    let text_at = payload_at.start - frame.transaction_id.len()..payload_at.start;
    let plain = checker.is_plain(text_at);
    if !plain && has_control(frame.transaction_id) {
        return Err(Refused::Control);
    }
    let payload = match std::str::from_utf8(frame.payload) {
        Ok(payload) if checker.accepts(payload_at) => payload,
        _ => document(frame.payload)
            .map_err(|e| Refused::malformed(format!("the payload is not JSON: {}", e.describe(frame.payload))))?,
    };
    Ok(Message { id: frame.id, transaction_id: frame.transaction_id, plain, payload, frame: &frames[at] })
}
