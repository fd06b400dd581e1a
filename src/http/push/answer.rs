//! The 201 array of a push, written by hand. Source: data plane 3.2, 3.3.

use super::parse::{Item, Parsed};
use super::plan::Fate;
use super::told::Told;
use crate::http::json::text::{push_int, push_quoted, push_uuid};
use queen_shards::command::DraftVerdict;
use queen_shards::ids::{MessageId, Offset};

/// Bytes of an entry beside what was told of its item: keys, an id, status, offset.
const ENTRY_ROOM: usize = 128;
const UUID_LEN: usize = 36;

/// What an entry says.
enum Outcome {
    Queued { offset: Offset },
    Duplicate { id: MessageId, offset: Offset },
    Buffered,
    Failed,
    Refused(&'static str),
}

/// About how many bytes [`answer`] will make of these items.
pub fn room(parsed: &Parsed<'_>) -> usize {
    let id = |item: &Item<'_>| item.transaction_id.as_ref().map_or(UUID_LEN, |id| id.len());
    let names: usize = parsed.lanes.iter().map(|lane| lane.items as usize * lane.queue.len()).sum();
    parsed.items.len() * ENTRY_ROOM + names + parsed.items.iter().map(id).sum::<usize>()
}

/// The body: one entry per item in request order. `ids`: one per item; `verdicts`: one per lane.
pub fn answer(told: &Told, ids: &[MessageId], fates: &[Fate], verdicts: &[DraftVerdict]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + told.items.len() * ENTRY_ROOM + told.bytes());
    out.push(b'[');
    for (i, (item, text)) in told.each().enumerate() {
        let outcome = outcome(told, ids, fates, verdicts, i);
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_int(&mut out, i);
        out.extend_from_slice(b",\"message_id\":\"");
        let id = if let Outcome::Duplicate { id, .. } = outcome { id } else { ids[i] };
        push_uuid(&mut out, id.0);
        out.extend_from_slice(b"\",\"transaction_id\":\"");
        out.extend_from_slice(text);
        out.extend_from_slice(&told.lanes[item.lane as usize].named);
        match outcome {
            Outcome::Queued { offset } => {
                out.extend_from_slice(b"\"queued\",\"offset\":");
                push_int(&mut out, offset.0);
            }
            Outcome::Duplicate { offset, .. } => {
                out.extend_from_slice(b"\"duplicate\",\"offset\":");
                push_int(&mut out, offset.0);
            }
            Outcome::Buffered => out.extend_from_slice(b"\"buffered\""),
            Outcome::Failed => out.extend_from_slice(b"\"failed\""),
            Outcome::Refused(why) => {
                out.extend_from_slice(b"\"error\",\"error\":");
                push_quoted(&mut out, why);
            }
        }
        out.push(b'}');
    }
    out.push(b']');
    out
}

/// The body of an answer with counts only: those that are always there, then those that are not 0. They add up to
/// `count`. Source: binary forms 7.2.
pub fn counts(told: &Told, ids: &[MessageId], fates: &[Fate], verdicts: &[DraftVerdict]) -> Vec<u8> {
    let (mut queued, mut duplicate, mut error) = (0u64, 0u64, 0u64);
    let (mut buffered, mut failed) = (0u64, 0u64);
    for i in 0..told.items.len() {
        match outcome(told, ids, fates, verdicts, i) {
            Outcome::Queued { .. } => queued += 1,
            Outcome::Duplicate { .. } => duplicate += 1,
            Outcome::Buffered => buffered += 1,
            Outcome::Failed => failed += 1,
            Outcome::Refused(_) => error += 1,
        }
    }
    let mut out = Vec::with_capacity(128);
    out.push(b'{');
    let always = [("count", told.items.len() as u64), ("queued", queued), ("duplicate", duplicate), ("error", error)];
    for (name, n) in
        always.into_iter().chain([("buffered", buffered), ("failed", failed)].into_iter().filter(|(_, n)| *n > 0))
    {
        if out.len() > 1 {
            out.push(b',');
        }
        push_quoted(&mut out, name);
        out.push(b':');
        push_int(&mut out, n);
    }
    out.push(b'}');
    out
}

/// How many of the items this push stored or buffered: duplicates, refused and failed ones are none of its messages.
/// Source: operations 5.4.1, 5.6.1.
pub fn taken(told: &Told, ids: &[MessageId], fates: &[Fate], verdicts: &[DraftVerdict]) -> u64 {
    let taken =
        |i: &usize| matches!(outcome(told, ids, fates, verdicts, *i), Outcome::Queued { .. } | Outcome::Buffered);
    (0..told.items.len()).filter(taken).count() as u64
}

/// What becomes of the item at `i`.
fn outcome(told: &Told, ids: &[MessageId], fates: &[Fate], verdicts: &[DraftVerdict], i: usize) -> Outcome {
    let lane = told.items[i].lane as usize;
    match fates[i] {
        Fate::Refused => Outcome::Refused(told.lanes[lane].refused.unwrap_or("refused")),
        Fate::Leads { index } => lead(&verdicts[lane], index),
        Fate::Follows { leader } => follow(&verdicts[lane], fates[leader as usize], ids[leader as usize]),
    }
}

/// Outcome of the item at `index` of its draft. Its owner lists duplicates in draft order.
fn lead(verdict: &DraftVerdict, index: u32) -> Outcome {
    match verdict {
        DraftVerdict::Stored { base, duplicates } => {
            let before = duplicates.partition_point(|duplicate| duplicate.index < index);
            match duplicates.get(before).filter(|duplicate| duplicate.index == index) {
                Some(original) => Outcome::Duplicate { id: original.id.unwrap_or_default(), offset: original.offset },
                None => Outcome::Queued { offset: base.plus(index as i64 - before as i64) },
            }
        }
        DraftVerdict::Buffered => Outcome::Buffered,
        DraftVerdict::Failed => Outcome::Failed,
        DraftVerdict::Refused(why) => Outcome::Refused(why),
    }
}

/// A follower reports what its leader came to: the leader's own id and offset once that is stored.
fn follow(verdict: &DraftVerdict, leader: Fate, minted: MessageId) -> Outcome {
    let Fate::Leads { index } = leader else { return Outcome::Failed };
    match lead(verdict, index) {
        Outcome::Queued { offset } => Outcome::Duplicate { id: minted, offset },
        other => other,
    }
}
