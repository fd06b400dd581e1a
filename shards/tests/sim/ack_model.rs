//! The rules of acknowledging, written a second time and as plainly as possible. Source: data plane 5.4 to 5.6.

use crate::ledger::Part;
use crate::store::Cursor;
use queen_shards::command::{AckItem, AckOutcome, AckSet, Disposition};
use queen_shards::effect::Options;
use queen_shards::ids::{Key, LeaseId, Offset, Stamp};

/// Outcomes an item may have, one bit each.
pub type Allowed = u16;

pub fn bit(outcome: AckOutcome) -> Allowed {
    1 << outcome as u16
}

/// What a dead letter must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub offset: Offset,
    pub error: Box<str>,
    pub retry_count: u32,
}

/// What one set does to a cursor in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    pub items: Vec<Allowed>,
    /// `None`: either answer is fair.
    pub released: Option<bool>,
    /// Messages retired unseen, when a conflating lease is completed.
    pub conflated: Option<u64>,
    /// The state after; `None` when nothing changes.
    pub next: Option<Cursor>,
    pub letter: Option<Letter>,
}

/// What is assumed where the rules depend on more than the row.
#[derive(Clone, Copy, Debug)]
pub struct Assume {
    pub live: bool,
    /// The lease is so near its end that a broker may reckon otherwise.
    pub unsure: bool,
    pub last_offset: Offset,
    /// Keys below are not found.
    pub forgotten: Offset,
    /// Records below are not found.
    pub unreadable: Offset,
}

enum Found {
    At(Offset),
    Below,
    Nowhere,
}

pub fn judge(row: &Cursor, part: &Part, set: &AckSet, options: &Options, assume: Assume) -> Judged {
    let refuse = |outcome| Judged {
        items: vec![bit(outcome); set.items.len()],
        released: Some(false),
        conflated: None,
        next: None,
        letter: None,
    };
    if let Some(lease) = set.lease
        && (lease != row.lease || !assume.live || lease == LeaseId::NONE)
    {
        return refuse(AckOutcome::InvalidLease);
    }
    let end = row.batch_end.unwrap_or(assume.last_offset);
    let found: Vec<Found> = set.items.iter().map(|item| resolve(row, part, item.key, end, assume.forgotten)).collect();
    let rank = |word: Disposition| match word {
        Disposition::Completed => 0,
        Disposition::Retry => 1,
        Disposition::Failed => 2,
        Disposition::Dlq => 3,
    };
    let resolved = || {
        set.items.iter().zip(&found).filter_map(|(item, found)| match found {
            Found::At(offset) => Some((*offset, item)),
            _ => None,
        })
    };
    let signals = resolved().filter(|(_, item)| item.word != Disposition::Completed);
    let signal = signals.map(|(offset, item)| (offset, rank(item.word))).min_by_key(|(o, rank)| (*o, -rank));
    let below_signal = |offset: Offset| signal.is_none_or(|(s, _)| offset < s);
    let completed = resolved().filter(|(o, item)| item.word == Disposition::Completed && below_signal(*o));
    let prefix = completed.map(|(offset, _)| offset).max();

    let mut next = Cursor { committed: prefix.unwrap_or(row.committed), ..*row };
    let mut letter = None;
    let mut rejected = false;
    match (signal, row.batch_end) {
        (None, Some(end)) if prefix.is_some_and(|c| c >= end) => {
            release(&mut next);
            reset(&mut next);
        }
        (Some((at, rank)), Some(_)) => {
            let over = rank == 2 && row.retry_count >= options.retry_limit;
            if rank == 3 || (over && options.dead_letter) {
                if at < assume.unreadable {
                    rejected = true;
                } else {
                    letter = Some(Letter { offset: at, error: reason(resolved(), at), retry_count: row.retry_count });
                    next.committed = at;
                    reset(&mut next);
                }
            } else if over {
                next.committed = at;
                reset(&mut next);
            } else if rank == 2 {
                next.retry_count += 1;
            }
            release(&mut next);
        }
        _ => {}
    }
    if rejected {
        next = *row;
    }
    let items = set.items.iter().zip(&found).map(|(item, found)| match found {
        Found::Below if item.word == Disposition::Completed => bit(AckOutcome::Noop),
        Found::Below => bit(AckOutcome::AlreadyCommitted),
        Found::Nowhere => bit(AckOutcome::Unresolvable),
        Found::At(_) if rejected => bit(AckOutcome::DlqRejected),
        Found::At(at) if letter.as_ref().is_some_and(|letter| letter.offset == *at) => {
            // The first item with the word that decides; of others for the same message either may be said.
            let mut same = resolved().filter(|(offset, _)| offset == at);
            let decides = same.find(|(_, item)| Some((*at, rank(item.word))) == signal).map(|(_, item)| item);
            match decides.is_some_and(|decides| std::ptr::eq(decides, item)) {
                true => bit(AckOutcome::DeadLettered),
                false => bit(AckOutcome::DeadLettered) | bit(AckOutcome::Accepted),
            }
        }
        Found::At(_) => bit(AckOutcome::Accepted),
    });
    let changed = next != *row;
    let released = match (row.lease.is_some() && !next.lease.is_some(), assume.live && !assume.unsure) {
        (true, false) => None,
        (released, _) => Some(released),
    };
    let closed = row.conflating && next.batch_end.is_none() && Some(next.committed) == row.batch_end;
    let conflated = closed.then(|| (next.committed.0 - row.committed.0 - 1).max(0) as u64);
    Judged { items: items.collect(), released, conflated, next: changed.then_some(next), letter }
}

fn release(row: &mut Cursor) {
    (row.lease, row.expires, row.batch_end, row.conflating) = (LeaseId::NONE, Stamp(0), None, false);
}

fn reset(row: &mut Cursor) {
    (row.retry_count, row.attempt_start, row.attempt_count) = (0, None, 0);
}

fn resolve(row: &Cursor, part: &Part, key: Key, end: Offset, forgotten: Offset) -> Found {
    let none = Vec::new();
    let offsets = part.offsets.get(&key).unwrap_or(&none).iter().filter(|offset| **offset >= forgotten);
    // What a conflating lease delivered is meant, wherever else the key is.
    if row.conflating && row.batch_end.is_some_and(|end| offsets.clone().any(|offset| *offset == end)) {
        return Found::At(end);
    }
    let in_span = offsets.clone().find(|offset| **offset > row.committed && **offset <= end);
    match in_span {
        Some(offset) => Found::At(*offset),
        None if offsets.clone().any(|offset| *offset <= row.committed) => Found::Below,
        None => Found::Nowhere,
    }
}

/// Text of the dead letter: the poison's own, else the first among the signalled, else a fixed one.
fn reason<'a>(resolved: impl Iterator<Item = (Offset, &'a AckItem)> + Clone, at: Offset) -> Box<str> {
    let signalled = resolved.filter(|(_, item)| item.word != Disposition::Completed);
    let own = signalled.clone().filter(|(offset, _)| *offset == at).find_map(|(_, item)| item.error.clone());
    let any = || signalled.clone().find_map(|(_, item)| item.error.clone());
    own.or_else(any).unwrap_or_else(|| "Retries exhausted".into())
}
