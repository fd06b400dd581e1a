//! `QPF1`, the framed pop answer: claims and the stored records that hold them, as they are stored.
//!
//! Layout only: which records a claim has, and whether it may be framed at all, is the caller's. Source: binary forms 12.

use queen_shards::command::Codec;
use queen_shards::frames::TEXT_MAX;
use queen_shards::ids::{Offset, PartitionId, Stamp};

const MAGIC: [u8; 4] = *b"QPF1";
const VERSION: u8 = 1;
/// Bytes of a claim beside its partition's name.
pub const CLAIM_ROOM: usize = 8 + 2 + 8 + 8 + 4 + 4;
/// Bytes of a record beside its body.
pub const RECORD_ROOM: usize = 8 + 8 + 4 + 1 + 4;

/// What an answer says before its claims.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// A JSON object with at least `"frames":true`, the answer's further keys beside it.
    pub own: &'a [u8],
    /// Empty on discovery.
    pub queue: &'a str,
    /// Empty with auto-ack.
    pub lease: &'a str,
    pub group: &'a str,
    pub claims: u32,
}

/// One claimed partition.
#[derive(Clone, Copy, Debug)]
pub struct ClaimHead<'a> {
    pub partition: PartitionId,
    pub name: &'a str,
    /// First and last offset delivered, inclusive.
    pub start: Offset,
    pub end: Offset,
    pub attempt: u32,
    pub records: u32,
}

/// Writes one answer. Texts are at most [`TEXT_MAX`] bytes: see [`fits`].
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
}

/// Whether a text can be written at all.
pub fn fits(text: &str) -> bool {
    text.len() <= TEXT_MAX
}

impl Writer {
    /// `room`: bytes of all that will follow, so that nothing moves.
    pub fn new(head: &Head<'_>, room: usize) -> Writer {
        let texts = head.own.len() + head.queue.len() + head.lease.len() + head.group.len();
        let mut writer = Writer { out: Vec::with_capacity(32 + texts + room) };
        writer.out.extend_from_slice(&MAGIC);
        writer.out.push(VERSION);
        writer.u32(head.own.len() as u32);
        writer.out.extend_from_slice(head.own);
        writer.text(head.queue);
        writer.text(head.lease);
        writer.text(head.group);
        writer.u32(head.claims);
        writer
    }

    pub fn claim(&mut self, claim: &ClaimHead<'_>) {
        self.u64(claim.partition.0 as u64);
        self.text(claim.name);
        self.u64(claim.start.0 as u64);
        self.u64(claim.end.0 as u64);
        self.u32(claim.attempt);
        self.u32(claim.records);
    }

    /// One record of the claim written last; ascending.
    pub fn record(&mut self, base: Offset, created_at: Stamp, count: u32, codec: Codec, body: &[u8]) {
        self.u64(base.0 as u64);
        self.u64(created_at.0 as u64);
        self.u32(count);
        self.out.push(codec as u8);
        self.u32(u32::try_from(body.len()).expect("a stored record is below 1 GiB"));
        self.out.extend_from_slice(body);
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn text(&mut self, text: &str) {
        let len = u16::try_from(text.len()).expect("names were checked");
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.out.extend_from_slice(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.out.extend_from_slice(&n.to_le_bytes());
    }
}
