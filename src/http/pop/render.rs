//! Claims as the JSON of a pop answer, written by hand into one buffer. Source: data plane 4.6, 4.7.
//!
//! A payload is copied once, from the record's frames into the body; a packed record is inflated into a buffer that
//! the thread keeps. A record that does not parse fails the whole answer: no consumer gets a part of a broken one.

use super::inflate::with_frames;
use crate::cipher::{self, Cipher};
use crate::http::json::text::{push_int, push_quoted, push_uuid};
use crate::http::json::time::push_stamp;
use queen_shards::command::{Claim, Record, Said};
use queen_shards::frames::{Frame, FrameError, Frames, read};
use queen_shards::ids::{LeaseId, Offset, PartitionId};
use std::fmt;

/// Largest inflated record: official readers refuse more. Source: binary forms 16.
pub(super) const RAW_LEN_MAX: u32 = 1 << 30;
/// Bytes of a message beside names, payload and transaction id.
const MESSAGE_ROOM: usize = 330;

/// What one answer says.
pub struct Answer<'a> {
    /// `""` on discovery.
    pub queue: &'a str,
    pub group: &'a str,
    /// `None` with autoAck.
    pub lease: Option<LeaseId>,
    pub claims: &'a [Claim],
    pub policy: Policy,
    /// Opens what is encrypted; `None` without a key.
    pub cipher: Option<&'a Cipher>,
    /// Width and batch that autopilot chose, to be echoed.
    pub autopilot: Option<(u32, u32)>,
}

/// What an answer says of conflation; a key is there only when it is true. Source: data plane 4.10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What was delivered, or would have been, was the newest of each partition.
    pub conflation: bool,
    /// The request says otherwise than the group's record.
    pub conflict: bool,
}

impl Policy {
    /// Whether an empty answer needs a body to say it.
    pub fn speaks(self) -> bool {
        self.conflation || self.conflict
    }
}

/// A stored record that cannot be delivered.
#[derive(Debug)]
pub struct Damaged {
    pub partition: PartitionId,
    pub base: Offset,
    pub(super) why: Fault,
}

#[derive(Debug)]
pub(super) enum Fault {
    /// The stored size is not that of the bytes, or over every bound.
    Size,
    /// Not one zstd frame of the stored size.
    Packed,
    Frames(FrameError),
    /// More or fewer frames than the record says.
    Count,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record of partition {} at offset {} is damaged: ", self.partition, self.base)?;
        match &self.why {
            Fault::Size => f.write_str("its size is not the stored one"),
            Fault::Packed => f.write_str("it does not inflate"),
            Fault::Frames(error) => error.fmt(f),
            Fault::Count => f.write_str("its number of frames is not the stored one"),
        }
    }
}

/// The body of a 200.
pub fn render(answer: &Answer<'_>) -> Result<Vec<u8>, Damaged> {
    let mut out = Vec::with_capacity(estimate(answer));
    let mut lease = Vec::with_capacity(36);
    if let Some(id) = answer.lease {
        push_uuid(&mut lease, id.0);
    }
    let first = answer.claims.first();
    out.extend_from_slice(b"{\"success\":true,\"queue\":");
    push_quoted(&mut out, answer.queue);
    out.extend_from_slice(b",\"partition\":");
    push_quoted(&mut out, first.map_or("", |claim| &claim.name));
    out.extend_from_slice(b",\"partitionId\":\"");
    if let Some(claim) = first {
        push_int(&mut out, claim.partition.0);
    }
    out.extend_from_slice(b"\",\"leaseId\":\"");
    out.extend_from_slice(&lease);
    out.extend_from_slice(b"\",\"consumerGroup\":");
    push_quoted(&mut out, answer.group);
    out.extend_from_slice(b",\"messages\":[");
    let mut delivering = 0;
    for claim in answer.claims {
        let before = out.len();
        push_claim(&mut out, claim, answer, &lease)?;
        delivering += (before < out.len()) as u32;
    }
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.extend_from_slice(b"],\"partitionsClaimed\":");
    push_int(&mut out, delivering);
    if answer.policy.conflation {
        out.extend_from_slice(b",\"conflation\":true");
    }
    if answer.policy.conflict {
        out.extend_from_slice(b",\"conflationConflict\":true");
    }
    if let Some((partitions, batch)) = answer.autopilot {
        out.extend_from_slice(b",\"autopilot\":{\"partitions\":");
        push_int(&mut out, partitions);
        out.extend_from_slice(b",\"batch\":");
        push_int(&mut out, batch);
        out.push(b'}');
    }
    out.push(b'}');
    Ok(out)
}

/// Bytes that an answer says of each message beside its frame: what surrounds it, and the names of its partition and group.
fn said_of_each(partition: &str, group: &str) -> usize {
    said(group).of_each(partition) as usize
}

/// The same for partitions of any name.
pub(super) fn said(group: &str) -> Said {
    Said { bytes: (MESSAGE_ROOM + group.len()) as u32, names: 2 }
}

fn estimate(answer: &Answer<'_>) -> usize {
    512 + answer.claims.iter().map(|claim| claim_bytes(claim, answer.group)).sum::<usize>()
}

/// Bytes that an answer says of a claim. A record's bytes count evenly over its messages.
pub(super) fn claim_bytes(claim: &Claim, group: &str) -> usize {
    let message = said_of_each(&claim.name, group);
    let of_record = |record: &Record| {
        let wanted = wanted(claim, record).count();
        let bytes = record.raw_len as u64 * wanted as u64 / (record.count as u64).max(1);
        bytes as usize + wanted * message
    };
    claim.records.iter().map(of_record).sum()
}

/// Which frames of the record lie in the claim, from 0.
pub(super) fn wanted(claim: &Claim, record: &Record) -> std::ops::Range<u32> {
    let at = |offset: i64| offset.saturating_sub(record.base.0).clamp(0, record.count as i64) as u32;
    let (start, end) = (at(claim.start.0), at(claim.end.0.saturating_add(1)));
    start..end.max(start)
}

/// Appends the claim's messages, each followed by a comma.
fn push_claim(out: &mut Vec<u8>, claim: &Claim, answer: &Answer<'_>, lease: &[u8]) -> Result<(), Damaged> {
    let group = answer.group;
    // What all messages of the claim say between their stamp and their offset.
    let mut common = Vec::with_capacity(160 + claim.name.len() + group.len());
    common.extend_from_slice(b"\",\"partitionId\":\"");
    push_int(&mut common, claim.partition.0);
    common.extend_from_slice(b"\",\"partition\":");
    push_quoted(&mut common, &claim.name);
    common.extend_from_slice(b",\"leaseId\":\"");
    common.extend_from_slice(lease);
    common.extend_from_slice(b"\",\"consumerGroup\":");
    push_quoted(&mut common, group);
    common.extend_from_slice(b",\"deliveryAttempt\":");
    push_int(&mut common, claim.attempt);
    common.extend_from_slice(b",\"offset\":");
    let mut tail = Vec::new();
    for record in &claim.records {
        let wanted = wanted(claim, record);
        if wanted.is_empty() {
            continue;
        }
        tail.clear();
        tail.extend_from_slice(b",\"createdAt\":\"");
        push_stamp(&mut tail, record.created_at);
        tail.extend_from_slice(&common);
        let rest = Rest { tail: &tail, cipher: answer.cipher };
        let part = wanted.len() < record.count as usize;
        with_frames(record, part, |frames| push_record(out, record, frames, wanted, rest)).map_err(|why| Damaged {
            partition: claim.partition,
            base: record.base,
            why,
        })?;
    }
    Ok(())
}

/// Runs `each` on every frame of a record, with its place from 0. For answers that are no pop.
pub(in crate::http) fn each_frame(
    partition: PartitionId,
    record: &Record,
    mut each: impl FnMut(u32, &Frame<'_>),
) -> Result<(), Damaged> {
    let walk = |raw: &[u8]| {
        let mut n = 0;
        for frame in Frames::new(raw) {
            each(n, &frame.map_err(Fault::Frames)?);
            n += 1;
        }
        if n == record.count { Ok(()) } else { Err(Fault::Count) }
    };
    with_frames(record, false, walk).map_err(|why| Damaged { partition, base: record.base, why })
}

fn push_record(
    out: &mut Vec<u8>,
    record: &Record,
    raw: &[u8],
    wanted: std::ops::Range<u32>,
    rest: Rest<'_>,
) -> Result<(), Fault> {
    let mut frames = Frames::new(raw);
    let mut n = 0;
    // All frames are stepped over, so that a record of another length is found whatever part of it is wanted.
    while let Some(range) = frames.hop() {
        let range = range.map_err(Fault::Frames)?;
        if wanted.contains(&n) {
            push_message(out, &read(raw, range).map_err(Fault::Frames)?, rest);
            push_int(out, record.base.0 + n as i64);
            out.extend_from_slice(b"},");
        }
        n += 1;
    }
    if n == record.count { Ok(()) } else { Err(Fault::Count) }
}

/// What the messages of one record have in common.
#[derive(Clone, Copy)]
struct Rest<'a> {
    /// Between a message's producer and its offset.
    tail: &'a [u8],
    cipher: Option<&'a Cipher>,
}

/// Appends a message up to its offset.
fn push_message(out: &mut Vec<u8>, frame: &Frame<'_>, rest: Rest<'_>) {
    out.extend_from_slice(b"{\"id\":\"");
    push_uuid(out, frame.id.0);
    out.extend_from_slice(b"\",\"transactionId\":");
    push_quoted(out, frame.transaction_id);
    match frame.trace {
        None => out.extend_from_slice(b",\"traceId\":null,\"data\":"),
        Some(trace) => {
            out.extend_from_slice(b",\"traceId\":\"");
            push_uuid(out, trace);
            out.extend_from_slice(b"\",\"data\":");
        }
    }
    match frame.payload {
        [] => out.extend_from_slice(b"null"),
        payload if rest.cipher.is_none() && !frame.encrypted() => out.extend_from_slice(payload),
        payload => out.extend_from_slice(&cipher::delivered(rest.cipher, payload, frame.encrypted())),
    }
    match frame.producer {
        None => out.extend_from_slice(b",\"producerSub\":null"),
        Some(producer) => {
            out.extend_from_slice(b",\"producerSub\":");
            push_quoted(out, producer);
        }
    }
    out.extend_from_slice(rest.tail);
}

#[cfg(test)]
mod tests;
