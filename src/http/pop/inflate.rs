//! A record's frames, inflated into a buffer that the thread keeps; or found there.
//!
//! Pops with small batches want one part after the other of the same stored record, and each would inflate all of it. So
//! the last few records of which a part was wanted stay inflated.
//!
//! Holds: what is kept is known by the stored bytes themselves, so there is nothing to be dropped when a log changes; a
//! thread keeps at most [`PARTS_KEPT`] records and [`PARTS_BYTES_MAX`] bytes. Source: binary forms 15.5.

use super::render::{Fault, RAW_LEN_MAX};
use bytes::Bytes;
use queen_shards::command::{Codec, Record};
use std::cell::RefCell;
use std::collections::VecDeque;
use zstd::bulk::Decompressor;

/// Inflated bytes that a thread keeps room for between answers.
const SCRATCH_KEPT: usize = 4 << 20;
/// Records kept inflated: their consumers come in turns, so one would not do. Each is compared with by its length first.
const PARTS_KEPT: usize = 8;
/// Bytes of them, stored and inflated: two records of 10,000 messages of 256 bytes, or eight of 3,000.
const PARTS_BYTES_MAX: usize = 8 << 20;

#[derive(Default)]
struct Inflater {
    decompressor: Option<Decompressor<'static>>,
    scratch: Vec<u8>,
    /// Last used first.
    parts: VecDeque<Kept>,
}

struct Kept {
    /// As stored.
    body: Bytes,
    frames: Vec<u8>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.body.len() + self.frames.len()
    }
}

thread_local! {
    static INFLATER: RefCell<Inflater> = RefCell::default();
}

/// Runs `use_frames` on the record's inflated frames; they are of the stored size. `part`: not all of it is wanted, so it
/// is likely to be asked for again.
pub(super) fn with_frames<T>(
    record: &Record,
    part: bool,
    use_frames: impl FnOnce(&[u8]) -> Result<T, Fault>,
) -> Result<T, Fault> {
    match (&record.frames, record.codec) {
        (Some(frames), _) => use_frames(frames),
        (None, Codec::Raw) if record.body.len() == record.raw_len as usize => use_frames(&record.body),
        (None, Codec::Raw) => Err(Fault::Size),
        (None, Codec::Zstd) => INFLATER.with_borrow_mut(|inflater| {
            let keep = part && record.body.len() + record.raw_len as usize <= PARTS_BYTES_MAX;
            let used = use_frames(if keep { inflater.part(record)? } else { inflater.whole(record)? });
            if inflater.scratch.capacity() > SCRATCH_KEPT {
                inflater.scratch = Vec::new();
            }
            used
        }),
    }
}

impl Inflater {
    fn whole(&mut self, record: &Record) -> Result<&[u8], Fault> {
        self.scratch.clear();
        inflate(&mut self.decompressor, record, &mut self.scratch)?;
        Ok(&self.scratch)
    }

    fn part(&mut self, record: &Record) -> Result<&[u8], Fault> {
        let same = |kept: &Kept| kept.frames.len() == record.raw_len as usize && kept.body == record.body;
        let kept = match self.parts.iter().position(same).and_then(|at| self.parts.remove(at)) {
            Some(kept) => kept,
            None => {
                let mut frames = Vec::new();
                inflate(&mut self.decompressor, record, &mut frames)?;
                // A copy: what came from the store may be a piece of something larger.
                Kept { body: Bytes::copy_from_slice(&record.body), frames }
            }
        };
        self.parts.push_front(kept);
        while PARTS_KEPT < self.parts.len() || PARTS_BYTES_MAX < self.parts.iter().map(Kept::bytes).sum() {
            self.parts.pop_back();
        }
        Ok(&self.parts[0].frames)
    }
}

/// Inflates a record into an empty buffer.
fn inflate(
    decompressor: &mut Option<Decompressor<'static>>,
    record: &Record,
    frames: &mut Vec<u8>,
) -> Result<(), Fault> {
    // Nothing is allocated for a size that the two places where it is written do not agree on.
    let says = zstd::zstd_safe::get_frame_content_size(&record.body).map_err(|_| Fault::Packed)?;
    if says != Some(u64::from(record.raw_len)) || record.raw_len > RAW_LEN_MAX {
        return Err(Fault::Size);
    }
    let raw_len = record.raw_len as usize;
    frames.reserve_exact(raw_len);
    let decompressor = match decompressor {
        Some(decompressor) => decompressor,
        None => decompressor.insert(Decompressor::new().map_err(|_| Fault::Packed)?),
    };
    match decompressor.decompress_to_buffer(&record.body, frames) {
        Ok(len) if len == raw_len => Ok(()),
        _ => Err(Fault::Packed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queen_shards::ids::{Offset, Stamp};

    fn record(fill: u8, raw_len: usize) -> Record {
        let body: Bytes = zstd::bulk::compress(&vec![fill; raw_len], 1).expect("room").into();
        Record {
            base: Offset(0),
            created_at: Stamp(0),
            count: 1,
            codec: Codec::Zstd,
            flags: 0,
            raw_len: raw_len as u32,
            body,
            frames: None,
            keys: Bytes::new(),
        }
    }

    /// Where the frames lay; they are checked.
    fn look(fill: u8, raw_len: usize, part: bool) -> *const u8 {
        let seen = |frames: &[u8]| {
            assert!(frames.len() == raw_len && frames.iter().all(|byte| *byte == fill));
            Ok(frames.as_ptr())
        };
        with_frames(&record(fill, raw_len), part, seen).map_err(|_| "a good record").unwrap()
    }

    #[test]
    fn parts_of_records_in_turns_inflate_each_once() {
        let first = [1, 2, 3].map(|fill| look(fill, 100_000, true));
        assert!(first[0] != first[1] && first[1] != first[2]);
        // Of one size, known by their bytes; a record that is wanted whole leaves them alone.
        look(9, 100_000, false);
        assert_eq!([1, 2, 3].map(|fill| look(fill, 100_000, true)), first);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let kept =
            || INFLATER.with_borrow(|inflater| (inflater.parts.len(), inflater.parts.iter().map(Kept::bytes).sum()));
        for n in 0..3 * PARTS_KEPT {
            look(n as u8, 1000, true);
        }
        assert_eq!(kept().0, PARTS_KEPT);
        for n in 0..5 {
            look(n, 3 << 20, true);
        }
        let (records, bytes): (usize, usize) = kept();
        assert!(records == 2 && bytes <= PARTS_BYTES_MAX, "{records} records, {bytes} bytes");
        look(1, PARTS_BYTES_MAX, true);
        assert_eq!(kept(), (records, bytes), "one that is too large is not kept");
    }

    #[test]
    fn a_damaged_record_is_refused_each_time_and_not_kept() {
        let damaged = Record { raw_len: 999, ..record(1, 1000) };
        for _ in 0..2 {
            assert!(with_frames(&damaged, true, |_| Ok(())).is_err());
        }
        INFLATER.with_borrow(|inflater| assert!(inflater.parts.is_empty()));
    }
}
