//! The newest records of one lane: what pops are served from without asking the store.
//!
//! Holds: records are adjacent in offsets, without holes; bytes are as stored. Fed only after a commit is known, cut
//! when the lane moved otherwise. Does not know `log_start`: who reads must not ask below it. Source: rule 26.

use crate::command::{Codec, Duplicate, Record};
use crate::ids::{MessageId, Offset, Stamp};
use crate::inflated::inflate;
use bytes::Bytes;
use std::collections::VecDeque;

/// Memory of one lane's end. No heap while empty.
#[derive(Debug, Default)]
pub struct Tail {
    records: VecDeque<Record>,
    bytes: usize,
}

/// One stored message, taken out of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub transaction_id: Bytes,
    pub payload: Bytes,
    /// The payload is an encryption envelope.
    pub encrypted: bool,
}

impl Tail {
    /// Adds a record; one that does not follow on the last drops all older ones first.
    pub fn push(&mut self, record: Record) {
        if self.end().is_some_and(|end| end.plus(1) != record.base) {
            self.cut();
        }
        self.bytes += held(&record);
        if self.records.len() == self.records.capacity() {
            self.records.reserve_exact(1 + self.records.len() / 2); // Most lanes hold one; the usual step is four.
        }
        self.records.push_back(record);
    }

    /// Forgets everything: the lane moved.
    pub fn cut(&mut self) {
        *self = Tail::default();
    }

    /// Forgets the oldest record; bytes freed, 0 when there is none.
    pub fn drop_front(&mut self) -> usize {
        let Some(record) = self.records.pop_front() else {
            return 0;
        };
        let freed = held(&record);
        self.bytes -= freed;
        if self.records.is_empty() {
            self.cut();
        }
        freed
    }

    /// Bytes of bodies and inflated frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First offset held.
    pub fn first(&self) -> Option<Offset> {
        self.records.front().map(|record| record.base)
    }

    /// Last offset held.
    pub fn end(&self) -> Option<Offset> {
        self.records.back().map(Record::last)
    }

    /// Appends the records that hold `from..=to` to `out` when all of the span is here; else nothing, and `false`.
    pub fn read(&self, from: Offset, to: Offset, out: &mut Vec<Record>) -> bool {
        let (Some(first), Some(last)) = (self.position(from), self.position(to)) else {
            return false;
        };
        if last < first {
            return false;
        }
        out.extend(self.records.range(first..=last).cloned());
        true
    }

    /// The last offset so that `from` to it are at most `messages` messages and about `bytes` bytes, as [`fitting`] counts
    /// them; `None` when `from` is not here.
    pub fn span(&self, from: Offset, messages: u32, bytes: u64, said: u64) -> Option<Offset> {
        let first = self.position(from)?;
        Some(fitting(self.records.range(first..), from, messages, bytes, said))
    }

    /// The newest record of a log that ends at `end` which is not younger than `not_after`; `None` when it is not here.
    pub fn newest(&self, not_after: Stamp, end: Offset) -> Option<&Record> {
        let at = self.records.partition_point(|record| record.created_at <= not_after).checked_sub(1)?;
        // Beyond the last record here there may be more of the same age.
        let whole = at + 1 < self.records.len() || self.end() == Some(end);
        whole.then(|| &self.records[at])
    }

    /// `createdAt` of one message.
    pub fn created_at(&self, offset: Offset) -> Option<Stamp> {
        Some(self.records[self.position(offset)?].created_at)
    }

    /// One message; inflates its record when the frames are not at hand.
    pub fn message(&self, offset: Offset) -> Option<Message> {
        message_of(&self.records[self.position(offset)?], offset)
    }

    /// Tells duplicates the ids of their originals that are here. A record whose frames are not at hand is inflated once
    /// for all that follow each other in it, as those of a body that is sent again do.
    pub fn originals(&self, duplicates: &mut [Duplicate]) {
        let mut open: Option<(usize, Vec<MessageId>)> = None;
        for duplicate in duplicates {
            let Some(at) = self.position(duplicate.offset) else { continue };
            let (_, ids) = match open.take().filter(|(record, _)| *record == at) {
                Some(same) => open.insert(same),
                None => open.insert((at, ids_of(&self.records[at]))),
            };
            let place = (duplicate.offset.0 - self.records[at].base.0) as usize;
            duplicate.id = ids.get(place).copied();
        }
    }

    /// Last offset and stamp of each record from the one that holds `from`, ascending.
    pub fn runs(&self, from: Offset) -> impl Iterator<Item = (Offset, Stamp)> {
        let first = self.position(from).unwrap_or(self.records.len());
        self.records.range(first..).map(|record| (record.last(), record.created_at))
    }

    fn position(&self, offset: Offset) -> Option<usize> {
        let after = self.records.partition_point(|record| record.base <= offset);
        let at = after.checked_sub(1)?;
        (offset <= self.records[at].last()).then_some(at)
    }
}

/// The last offset so that `from` to it are at most `messages` messages and about `bytes` bytes; one message however large.
///
/// `records`: adjacent, the first one holds `from`. A record's inflated bytes count evenly over its messages, and with each
/// of them what is `said` of it beside its frame.
pub fn fitting<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    from: Offset,
    messages: u32,
    bytes: u64,
    said: u64,
) -> Offset {
    let (mut to, mut messages, mut bytes) = (from, i64::from(messages.max(1)), bytes);
    for record in records {
        let start = from.max(record.base);
        let each = (u64::from(record.raw_len) / u64::from(record.count.max(1)) + said).max(1);
        let here = record.last().0 - start.0 + 1;
        let taken = here.min(messages).min((bytes / each).min(i64::MAX as u64) as i64);
        if 0 < taken {
            to = start.plus(taken - 1);
        }
        if taken < here {
            break;
        }
        messages -= taken;
        bytes -= taken as u64 * each;
    }
    to
}

/// One message of a record, from the tail or just read; `None` when the record does not hold it or does not decode.
pub fn message_of(record: &Record, offset: Offset) -> Option<Message> {
    if offset < record.base || record.last() < offset {
        return None;
    }
    let mut rest = frames_of(record)?;
    for _ in record.base.0..offset.0 {
        take_frame(&mut rest)?;
    }
    parse(take_frame(&mut rest)?)
}

/// Ids of all messages of a record, in order; short when it does not decode.
pub fn ids_of(record: &Record) -> Vec<MessageId> {
    let mut ids = Vec::with_capacity(record.count as usize);
    if let Some(mut rest) = frames_of(record) {
        while let Some(message) = take_frame(&mut rest).and_then(parse) {
            ids.push(message.id);
        }
    }
    ids
}

fn frames_of(record: &Record) -> Option<Bytes> {
    Some(match (&record.frames, record.codec) {
        (Some(frames), _) => frames.clone(),
        (None, Codec::Raw) => record.body.clone(),
        (None, Codec::Zstd) => inflate(&record.body, record.raw_len as usize)?,
    })
}

fn held(record: &Record) -> usize {
    let frames = record.frames.as_ref().filter(|frames| frames.as_ptr() != record.body.as_ptr());
    record.body.len() + frames.map_or(0, Bytes::len) + record.keys.len()
}

/// Cuts the first frame off, without its length.
fn take_frame(frames: &mut Bytes) -> Option<Bytes> {
    let len = u32::from_le_bytes(*frames.first_chunk::<4>()?) as usize;
    let end = len.checked_add(4).filter(|&end| end <= frames.len())?;
    Some(frames.split_to(end).slice(4..))
}

/// Source: binary forms 11.
fn parse(mut body: Bytes) -> Option<Message> {
    let flags = take(&mut body, 1)?[0];
    let id = u128::from_be_bytes(take(&mut body, 16)?[..].try_into().ok()?);
    if flags & 1 != 0 {
        take(&mut body, 16)?;
    }
    let transaction_id = take_text(&mut body)?;
    if flags & 2 != 0 {
        take_text(&mut body)?;
    }
    Some(Message { id: MessageId(id), transaction_id, payload: body, encrypted: flags & 4 != 0 })
}

fn take_text(bytes: &mut Bytes) -> Option<Bytes> {
    let len = u16::from_le_bytes(take(bytes, 2)?[..].try_into().ok()?);
    take(bytes, usize::from(len))
}

fn take(bytes: &mut Bytes, n: usize) -> Option<Bytes> {
    (n <= bytes.len()).then(|| bytes.split_to(n))
}

#[cfg(test)]
mod tests;
