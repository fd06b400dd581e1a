//! The bytes of a spool file: a header, records back to back, a footer; nothing but zeros behind.
//!
//!     header 8 KiB: eight equal copies, so that no damage of one block takes the file
//!     record: magic u32 | body length u32 | number u64 | checksum u64 | body
//!     body:   kind u8 = 1 | frame flags u8 | codec u8 | all minted u8 | messages u32 | inflated bytes u32
//!             | accepted at i64 | tenant 16 | queue length u16 | partition length u16 | queue | partition | frames
//!     footer: a record of kind 2: records u64 | messages u64
//!
//! Integers are little-endian. The checksum is keyed with 16 random bytes of the header: what somebody pushes cannot
//! look like a record. The magic cannot occur in UTF-8, so a damaged stretch is left at the next record.
//!
//! Holds: what a [`Scanner`] yields was written whole, once, in this file; every other byte is reported. Never panics,
//! whatever the bytes are. Source: operations 4.2; reliability 6, F7 and F8.

use crate::wire::zstd_frame;
use bytes::Bytes;
use queen_shards::command::{Draft, SpoolRecord};
use queen_shards::ids::{Stamp, TenantId};
use queen_shards::place::LaneKey;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Files are written in whole blocks of this size: what direct I/O asks for everywhere.
pub const BLOCK: usize = 4096;
/// Where records begin.
pub const DATA_START: u64 = 8192;

const COPY_BYTES: usize = 1024;
const MAGIC: [u8; 8] = *b"QUEENSPL";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 4 + 16 + 8 + 8;
const RECORD_MAGIC: [u8; 4] = [0xf9, b'Q', 0xfb, b'R'];
const HEAD: usize = 24;
const BODY_FIXED: usize = 1 + 1 + 1 + 1 + 4 + 4 + 8 + 16 + 2 + 2;
const KIND_DRAFT: u8 = 1;
const KIND_FOOTER: u8 = 2;
/// Bytes of a footer.
pub const FOOTER: u64 = HEAD as u64 + 17;

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the checksums.
    pub key: [u8; 16],
    /// Milliseconds since 1970, by the clock of the machine; with `number` the order of files, whatever their names.
    pub created_ms: u64,
    pub number: u64,
}

impl Header {
    /// The first [`DATA_START`] bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(HEADER_BYTES + 8);
        copy.extend_from_slice(&MAGIC);
        copy.extend_from_slice(&VERSION.to_le_bytes());
        copy.extend_from_slice(&0u32.to_le_bytes());
        copy.extend_from_slice(&self.key);
        copy.extend_from_slice(&self.created_ms.to_le_bytes());
        copy.extend_from_slice(&self.number.to_le_bytes());
        let sum = plain_sum(&copy);
        copy.extend_from_slice(&sum.to_le_bytes());
        copy.resize(COPY_BYTES, 0);
        copy.repeat(DATA_START as usize / COPY_BYTES)
    }

    /// The header of a file by its first bytes, from whichever copy is whole; `None`: not a file of ours.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        bytes.chunks(COPY_BYTES).take(DATA_START as usize / COPY_BYTES).find_map(|copy| {
            let (fields, sum) = (copy.get(..HEADER_BYTES)?, copy.get(HEADER_BYTES..HEADER_BYTES + 8)?);
            let whole = u64::from_le_bytes(sum.try_into().ok()?) == plain_sum(fields);
            let ours = fields[..8] == MAGIC && fields[8..12] == VERSION.to_le_bytes();
            (whole && ours).then(|| Header {
                key: fields[16..32].try_into().expect("16 bytes"),
                created_ms: u64_at(fields, 32),
                number: u64_at(fields, 40),
            })
        })
    }
}

fn plain_sum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn sum(key: &[u8; 16], number: u64, body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write_u64(body.len() as u64);
    hasher.write_u64(number);
    hasher.write(body);
    hasher.finish()
}

/// Appends a record to `out`. `number`: its place in the file, from 0.
///
/// Fails when a name does not fit its length field, which the edge has refused before.
pub fn put_record(out: &mut Vec<u8>, key: &[u8; 16], number: u64, record: &SpoolRecord) -> Result<(), TooLong> {
    let SpoolRecord { accepted_at, draft } = record;
    let (queue, partition) = (draft.lane.queue.as_bytes(), draft.lane.partition.as_bytes());
    let frames = draft.packed.as_ref().unwrap_or(&draft.frames);
    let raw_len = u32::try_from(draft.raw_len()).map_err(|_| TooLong)?;
    let (q, p) =
        (u16::try_from(queue.len()).map_err(|_| TooLong)?, u16::try_from(partition.len()).map_err(|_| TooLong)?);
    let at = begin(out, BODY_FIXED + queue.len() + partition.len() + frames.len())?;
    out.extend_from_slice(&[KIND_DRAFT, draft.flags, draft.packed.is_some() as u8, draft.all_minted as u8]);
    out.extend_from_slice(&draft.count.to_le_bytes());
    out.extend_from_slice(&raw_len.to_le_bytes());
    out.extend_from_slice(&accepted_at.0.to_le_bytes());
    out.extend_from_slice(&draft.lane.tenant.0.to_le_bytes());
    out.extend_from_slice(&q.to_le_bytes());
    out.extend_from_slice(&p.to_le_bytes());
    out.extend_from_slice(queue);
    out.extend_from_slice(partition);
    out.extend_from_slice(frames);
    seal(out, at, key, number);
    Ok(())
}

/// Appends the footer of a file that is closed with so many records and messages.
pub fn put_footer(out: &mut Vec<u8>, key: &[u8; 16], records: u64, messages: u64) {
    let at = begin(out, 1 + 16).expect("17 bytes");
    out.push(KIND_FOOTER);
    out.extend_from_slice(&records.to_le_bytes());
    out.extend_from_slice(&messages.to_le_bytes());
    seal(out, at, key, records);
}

/// A record that does not fit its length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

fn begin(out: &mut Vec<u8>, body: usize) -> Result<usize, TooLong> {
    let at = out.len();
    let len = u32::try_from(body).map_err(|_| TooLong)?;
    out.reserve(HEAD + body);
    out.extend_from_slice(&RECORD_MAGIC);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 16]);
    Ok(at)
}

fn seal(out: &mut [u8], at: usize, key: &[u8; 16], number: u64) {
    let sum = sum(key, number, &out[at + HEAD..]);
    out[at + 8..at + 16].copy_from_slice(&number.to_le_bytes());
    out[at + 16..at + 24].copy_from_slice(&sum.to_le_bytes());
}

/// What the scanner found next.
#[derive(Debug)]
pub enum Found {
    Record(Box<SpoolRecord>),
    /// The file was closed here.
    Footer {
        records: u64,
        messages: u64,
    },
    /// So many bytes belong to no record.
    Damage {
        bytes: u64,
    },
    /// More of the file is needed.
    More,
    /// Nothing but zeros is left.
    End,
}

/// Walks the records of a file, fed piece by piece.
#[derive(Debug)]
pub struct Scanner {
    key: [u8; 16],
    buffer: Vec<u8>,
    /// Position in the buffer, and of the buffer in the file.
    at: usize,
    base: u64,
    /// Number the next record must have, or more after damage.
    next: u64,
    /// No more will be fed.
    whole: bool,
}

impl Scanner {
    /// Begins at [`DATA_START`].
    pub fn new(header: &Header) -> Scanner {
        Scanner { key: header.key, buffer: Vec::new(), at: 0, base: DATA_START, next: 0, whole: false }
    }

    /// Where the next record begins.
    pub fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// What is to be fed next begins here.
    pub fn wants(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The file has no more.
    pub fn end(&mut self) {
        self.whole = true;
    }

    /// What comes next, or what is wanted first.
    pub fn find(&mut self) -> Found {
        match self.record_at(self.at) {
            Tried::Whole { number, body, end } if number == self.next => self.take(number, body, end),
            // Whole, but some are missing before it.
            Tried::Whole { number, .. } if self.next < number => {
                self.next = number;
                Found::Damage { bytes: 0 }
            }
            Tried::More => Found::More,
            _ => self.skip(),
        }
    }

    fn take(&mut self, number: u64, body: std::ops::Range<usize>, end: usize) -> Found {
        let found = decode(&self.buffer[body]);
        match found {
            Some(found) => {
                (self.at, self.next) = (end, number + 1);
                found
            }
            // Whole, but of a version that is not ours.
            None => {
                let bytes = (end - self.at) as u64;
                (self.at, self.next) = (end, number + 1);
                Found::Damage { bytes }
            }
        }
    }

    /// Zeros to the end are the end; else everything up to the next whole record is damage.
    fn skip(&mut self) -> Found {
        let rest = &self.buffer[self.at..];
        if rest.iter().all(|byte| *byte == 0) {
            return if self.whole { Found::End } else { Found::More };
        }
        let mut from = self.at + 1;
        while let Some(place) = memchr::memmem::find(&self.buffer[from.min(self.buffer.len())..], &RECORD_MAGIC) {
            let at = from + place;
            match self.record_at(at) {
                Tried::Whole { number, .. } if self.next <= number => {
                    let bytes = (at - self.at) as u64;
                    (self.at, self.next) = (at, number);
                    return Found::Damage { bytes };
                }
                Tried::More => return Found::More,
                _ => from = at + 1,
            }
        }
        if !self.whole {
            return Found::More;
        }
        let bytes = (self.buffer.len() - self.at) as u64;
        self.at = self.buffer.len();
        Found::Damage { bytes }
    }

    fn record_at(&self, at: usize) -> Tried {
        let at = at.min(self.buffer.len());
        match tried(&self.key, &self.buffer[at..], self.whole) {
            Tried::Whole { number, body, end } => {
                Tried::Whole { number, body: at + body.start..at + body.end, end: at + end }
            }
            tried => tried,
        }
    }
}

/// What begins where a record is known to begin: it, its damage, or [`Found::More`] when it is longer than these bytes of its
/// file.
pub fn record_of(header: &Header, bytes: &[u8]) -> Found {
    match tried(&header.key, bytes, false) {
        Tried::Whole { body, end, .. } => decode(&bytes[body]).unwrap_or(Found::Damage { bytes: end as u64 }),
        Tried::More => Found::More,
        Tried::No => Found::Damage { bytes: 0 },
    }
}

/// A record that begins with these bytes. `whole`: there are no more.
fn tried(key: &[u8; 16], bytes: &[u8], whole: bool) -> Tried {
    let more = if whole { Tried::No } else { Tried::More };
    let Some(head) = bytes.get(..HEAD) else {
        // An empty rest at the end of the file is the end, not a record.
        return if bytes.is_empty() || RECORD_MAGIC.starts_with(&bytes[..bytes.len().min(4)]) {
            more
        } else {
            Tried::No
        };
    };
    if head[..4] != RECORD_MAGIC {
        return Tried::No;
    }
    let len = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize;
    let Some(body) = bytes.get(HEAD..HEAD + len) else { return more };
    let number = u64_at(head, 8);
    if u64_at(head, 16) != sum(key, number, body) {
        return Tried::No;
    }
    Tried::Whole { number, body: HEAD..HEAD + len, end: HEAD + len }
}

enum Tried {
    Whole { number: u64, body: std::ops::Range<usize>, end: usize },
    More,
    No,
}

fn decode(body: &[u8]) -> Option<Found> {
    match *body.first()? {
        KIND_FOOTER if body.len() == 17 => Some(Found::Footer { records: u64_at(body, 1), messages: u64_at(body, 9) }),
        KIND_DRAFT if BODY_FIXED <= body.len() => {
            let u32_at = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
            let u16_at = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]) as usize;
            let (flags, packed, all_minted) = (body[1], body[2] != 0, body[3] != 0);
            let (count, raw_len) = (u32_at(4), u32_at(8) as usize);
            let accepted_at = Stamp(u64_at(body, 12) as i64);
            let tenant = TenantId(u128::from_le_bytes(body[20..36].try_into().expect("16 bytes")));
            let (queue, rest) = body[BODY_FIXED..].split_at_checked(u16_at(36))?;
            let (partition, frames) = rest.split_at_checked(u16_at(38))?;
            let (queue, partition) = (std::str::from_utf8(queue).ok()?, std::str::from_utf8(partition).ok()?);
            let lane = LaneKey::new(tenant, queue.into(), partition.into());
            let (frames, packed) = match packed {
                false => (Bytes::copy_from_slice(frames), None),
                true => {
                    // A frame that cannot hold so much is not made room for.
                    zstd_frame::header(frames).ok().filter(|frame| raw_len as u64 <= frame.most)?;
                    let inflated = zstd_frame::inflate(frames, raw_len)?;
                    (Bytes::from(inflated), Some(Bytes::copy_from_slice(frames)))
                }
            };
            let whole = frames.len() == raw_len && queen_shards::frames::count(&frames).ok()? == count && count > 0;
            let draft = Draft { lane, count, keys: Bytes::new(), all_minted, frames, packed, flags };
            whole.then(|| Found::Record(Box::new(SpoolRecord { accepted_at, draft })))
        }
        _ => None,
    }
}
