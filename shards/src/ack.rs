//! What an ack set does to a cursor: completed prefix, signal, budget, dead letter. Source: data plane 5.4 to 5.6.
//!
//! ```text
//! keys --span, resolve--> places --rule--> CursorTo, outcomes, dead letter
//! ```
//!
//! Pure: address, lease check and resolving happened before; whether the row still is as read is the store's to say.

use crate::command::{AckItem, AckOutcome, Conflated, Disposition};
use crate::effect::{CursorTo, LeaseTo};
use crate::ids::Offset;
use crate::planted::{Bug, is};

/// What the rules read of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorView {
    pub committed: Offset,
    pub batch_end: Option<Offset>,
    /// Only the message at `batch_end` was delivered.
    pub conflating: bool,
    pub retry_count: u32,
    pub attempt_start: Option<Offset>,
    pub attempt_count: u32,
    /// A lease is held and not over.
    pub has_lease: bool,
}

/// Where the key of an item was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the ackable span; the lowest such offset.
    Span(Offset),
    /// Not in the span, but at or below the cursor.
    Below,
    /// Neither.
    Unknown,
}

/// The message that is given up with this move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterAt {
    pub offset: Offset,
    /// The item whose error text is filed; `None`: [`RETRIES_EXHAUSTED`].
    pub error: Option<usize>,
    /// Failures charged before.
    pub retry_count: u32,
}

/// Error text of a dead letter when no item brought one.
pub const RETRIES_EXHAUSTED: &str = "Retries exhausted";

/// What one set comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruled {
    /// The cursor's new state; `None`: nothing changes.
    pub to: Option<CursorTo>,
    /// One per item, in order.
    pub outcomes: Vec<AckOutcome>,
    pub dead_letter: Option<DeadLetterAt>,
    /// A live lease ends here.
    pub released: bool,
    /// A conflating lease is closed here, and its span is complete.
    pub conflated: Option<Conflated>,
}

/// First and last offset, inclusive, that keys of a set resolve in; empty when the first is above the last.
///
/// A recorded `batch_end` bounds it with and without a lease, expired or not. Source: data plane 5.4, step 3.
pub fn span(cursor: &CursorView, last_offset: Offset) -> (Offset, Offset) {
    (cursor.committed.plus(1), cursor.batch_end.unwrap_or(last_offset))
}

/// The message that a conflating lease delivered. Its key is looked for there before anywhere else in the span, and
/// means all of the span, also when the same key occurs further down. Source: data plane 4.10; rule 21.
pub fn delivered(cursor: &CursorView) -> Option<Offset> {
    cursor.batch_end.filter(|_| cursor.conflating)
}

/// Decides one set. `places`: where each item's key was found, within [`span`].
///
/// Source: data plane 5.4, steps 4 to 6.
pub fn rule(cursor: &CursorView, places: &[Place], items: &[AckItem], retry_limit: u32, dead_letter_on: bool) -> Ruled {
    assert_eq!(places.len(), items.len());
    let mut ruled = Ruled {
        to: None,
        outcomes: places.iter().zip(items).map(|(&place, item)| outcome(place, item.word)).collect(),
        dead_letter: None,
        released: false,
        conflated: None,
    };
    let signal = signal(places, items);
    let completed = resolved(places, items)
        .filter(|&(_, offset, word)| word == Disposition::Completed && signal.is_none_or(|s| offset < s.offset))
        .map(|(_, offset, _)| offset)
        .max();
    let kept = CursorTo {
        committed: completed.unwrap_or(cursor.committed),
        lease: LeaseTo::Keep,
        batch_end: cursor.batch_end,
        retry_count: cursor.retry_count,
        attempt_start: cursor.attempt_start,
        attempt_count: cursor.attempt_count,
    };
    let released = CursorTo { lease: LeaseTo::Clear, batch_end: None, ..kept };
    let settled = |committed| CursorTo { committed, retry_count: 0, attempt_start: None, attempt_count: 0, ..released };

    ruled.to = match (signal, cursor.batch_end) {
        (None, Some(end)) if completed.is_some_and(|c| end <= c) => Some(settled(kept.committed)),
        (None, _) | (Some(_), None) => completed.map(|_| kept),
        (Some(s), Some(_)) => Some(match s.word {
            Disposition::Completed => unreachable!("not a signal"),
            Disposition::Retry => released,
            Disposition::Failed if cursor.retry_count < retry_limit => {
                let committed = if is(Bug::CursorPastNack) { s.offset } else { released.committed };
                CursorTo { committed, retry_count: cursor.retry_count + 1, ..released }
            }
            Disposition::Failed if !dead_letter_on => settled(s.offset),
            Disposition::Failed | Disposition::Dlq => {
                ruled.outcomes[s.item] = AckOutcome::DeadLettered;
                let error = error_item(s.offset, places, items);
                ruled.dead_letter = Some(DeadLetterAt { offset: s.offset, error, retry_count: cursor.retry_count });
                settled(s.offset)
            }
        }),
    };
    ruled.released = cursor.has_lease && ruled.to.is_some_and(|to| to.lease == LeaseTo::Clear);
    ruled.conflated = delivered(cursor).zip(ruled.to).and_then(|(end, to)| conflated(cursor, end, &to, places));
    ruled
}

/// What a move retires without a handler run, if it closes a conflating lease by completing it.
fn conflated(cursor: &CursorView, end: Offset, to: &CursorTo, places: &[Place]) -> Option<Conflated> {
    if to.batch_end.is_some() || to.committed != end {
        return None;
    }
    let item = places.iter().position(|place| *place == Place::Span(end))? as u32;
    Some(Conflated { item, messages: (end.0 - cursor.committed.0 - 1).max(0) as u64 })
}

/// The lowest item that is not completed; of several at its offset the gravest, of equals the first.
#[derive(Clone, Copy)]
struct Signal {
    offset: Offset,
    word: Disposition,
    item: usize,
}

fn signal(places: &[Place], items: &[AckItem]) -> Option<Signal> {
    resolved(places, items)
        .filter(|&(_, _, word)| word != Disposition::Completed)
        .min_by_key(|&(item, offset, word)| (offset, mildness(word), item))
        .map(|(item, offset, word)| Signal { offset, word, item })
}

fn mildness(word: Disposition) -> u8 {
    match word {
        Disposition::Dlq => 0,
        Disposition::Failed => 1,
        Disposition::Retry => 2,
        Disposition::Completed => 3,
    }
}

/// The item whose text is filed: of the poison itself, else the first signalled one that has any.
///
/// Source: data plane 5.6.
fn error_item(poison: Offset, places: &[Place], items: &[AckItem]) -> Option<usize> {
    let with_text =
        || resolved(places, items).filter(|&(i, _, word)| word != Disposition::Completed && items[i].error.is_some());
    let own = with_text().find(|&(_, offset, _)| offset == poison);
    own.or_else(|| with_text().next()).map(|(i, _, _)| i)
}

fn resolved(places: &[Place], items: &[AckItem]) -> impl Iterator<Item = (usize, Offset, Disposition)> {
    places.iter().zip(items).enumerate().filter_map(|(i, (place, item))| match place {
        Place::Span(offset) => Some((i, *offset, item.word)),
        Place::Below | Place::Unknown => None,
    })
}

/// Source: data plane 5.5.
fn outcome(place: Place, word: Disposition) -> AckOutcome {
    match (place, word) {
        (Place::Span(_), _) => AckOutcome::Accepted,
        (Place::Below, Disposition::Completed) => AckOutcome::Noop,
        (Place::Below, _) => AckOutcome::AlreadyCommitted,
        (Place::Unknown, _) => AckOutcome::Unresolvable,
    }
}

#[cfg(test)]
mod tests;
