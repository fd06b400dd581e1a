//! Claims as a framed pop answer: the stored records as they are, without inflating them.
//!
//!     claims > is_allowed (else JSON) > whole records, or slices of large ones > wire::pop::Writer > bytes
//!
//! Holds: a record is sent only if its readers can read it, as far as that shows without inflating; no answer has a
//! frame that is encrypted; a claim without a message is left out. Source: binary forms 9.3, 12, 13.2, 15.5.

use super::inflate::with_frames;
use super::render::{Answer, Damaged, Fault, RAW_LEN_MAX, wanted};
use crate::http::json::push_int;
use crate::wire::pop::{CLAIM_ROOM, ClaimHead, Head, RECORD_ROOM, Writer, fits};
use queen_shards::command::{Claim, Codec, Record};
use queen_shards::frames::{FLAG_ENCRYPTED, count, slice};
use std::ops::Range;

/// Records above this many inflated bytes are sent in part when a claim wants less than half of their messages: a
/// consumer with small batches would receive a large record again and again. Source: binary forms 15.5.
const SLICE_MIN: u32 = 64 << 10;

/// Whether these claims may be answered in frames: not while there is an encryption key, not under conflation. Readers
/// give up on the whole answer at one encrypted frame, inside the claim or not. Source: binary forms 9.3, 13.2.
pub fn is_allowed(answer: &Answer<'_>) -> bool {
    if answer.cipher.is_some() || answer.policy.speaks() {
        return false;
    }
    let plain = |claim: &Claim| claim.records.iter().all(|record| record.flags & FLAG_ENCRYPTED == 0);
    let named = |claim: &Claim| fits(&claim.name);
    fits(answer.queue) && fits(answer.group) && answer.claims.iter().all(|claim| plain(claim) && named(claim))
}

/// The body of a 200.
pub fn render(answer: &Answer<'_>) -> Result<Vec<u8>, Damaged> {
    let mut own = b"{\"frames\":true".to_vec();
    if let Some((partitions, batch)) = answer.autopilot {
        own.extend_from_slice(b",\"autopilot\":{\"partitions\":");
        push_int(&mut own, partitions);
        own.extend_from_slice(b",\"batch\":");
        push_int(&mut own, batch);
        own.push(b'}');
    }
    own.push(b'}');
    let mut lease = [0; 36];
    let lease = answer.lease.map_or("", |id| crate::http::json::text::uuid_text(id.0, &mut lease));
    let delivering = |claim: &&Claim| claim.records.iter().any(|record| !wanted(claim, record).is_empty());
    let claims = || answer.claims.iter().filter(delivering);
    let head = Head { own: &own, queue: answer.queue, lease, group: answer.group, claims: claims().count() as u32 };
    let mut writer = Writer::new(&head, claims().map(room).sum());
    for claim in claims() {
        let records =
            || claim.records.iter().map(|record| (record, wanted(claim, record))).filter(|(_, w)| !w.is_empty());
        writer.claim(&ClaimHead {
            partition: claim.partition,
            name: &claim.name,
            start: claim.start,
            end: claim.end,
            attempt: claim.attempt,
            records: records().count() as u32,
        });
        for (record, wanted) in records() {
            let written = match is_cut(record, &wanted) {
                true => push_part(&mut writer, record, wanted),
                false => push_whole(&mut writer, record),
            };
            written.map_err(|why| Damaged { partition: claim.partition, base: record.base, why })?;
        }
    }
    Ok(writer.finish())
}

/// Whether only the wanted frames of a record are sent.
fn is_cut(record: &Record, wanted: &Range<u32>) -> bool {
    SLICE_MIN < record.raw_len && 2 * (wanted.len() as u64) < record.count as u64
}

fn room(claim: &Claim) -> usize {
    let of_record = |record: &Record| {
        let wanted = wanted(claim, record);
        match (wanted.len(), is_cut(record, &wanted)) {
            (0, _) => 0,
            // Messages of one size would take this much.
            (n, true) => RECORD_ROOM + record.raw_len as usize / record.count.max(1) as usize * n,
            (_, false) => RECORD_ROOM + record.body.len(),
        }
    };
    CLAIM_ROOM + claim.name.len() + claim.records.iter().map(of_record).sum::<usize>()
}

/// The record as it is stored.
fn push_whole(writer: &mut Writer, record: &Record) -> Result<(), Fault> {
    match record.codec {
        Codec::Raw => {
            if record.body.len() != record.raw_len as usize {
                return Err(Fault::Size);
            }
            if count(&record.body).map_err(Fault::Frames)? != record.count {
                return Err(Fault::Count);
            }
        }
        Codec::Zstd => {
            let says = zstd::zstd_safe::get_frame_content_size(&record.body).map_err(|_| Fault::Packed)?;
            if says != Some(record.raw_len as u64) || RAW_LEN_MAX < record.raw_len {
                return Err(Fault::Size);
            }
        }
    }
    writer.record(record.base, record.created_at, record.count, record.codec, &record.body);
    Ok(())
}

/// The wanted frames of a record, raw: a reader cannot tell them from a record.
fn push_part(writer: &mut Writer, record: &Record, wanted: Range<u32>) -> Result<(), Fault> {
    with_frames(record, true, |frames| {
        let at = slice(frames, wanted.start, wanted.len() as u32).map_err(Fault::Frames)?;
        let base = record.base.plus(wanted.start as i64);
        writer.record(base, record.created_at, wanted.len() as u32, Codec::Raw, &frames[at]);
        Ok(())
    })
}
