//! What one group may do with one lane at this moment. Pure.

use crate::effect::Options;
use crate::ids::{Micros, Offset, Stamp};
use crate::lane::{Cursor, Lane};
use crate::planted::{Bug, CLOCK_AHEAD_US, is};
use crate::visible::held_until;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The cursor must be read (or made) first.
    Unread,
    /// Everything stored is completed.
    Nothing,
    /// An operation on the cursor is under way; its end will ask again.
    Busy,
    /// Leased or held back until then.
    Until(Micros),
    /// Messages from `start` may be claimed, as far as memory can tell.
    Ready { start: Offset },
}

/// The first offset a claim would start at. Source: data plane 4.3 step 4.
pub fn next_start(committed: Offset, log_start: Offset) -> Offset {
    committed.plus(1).max(log_start)
}

/// See [`Standing`]. `now` and `stamp` are one moment on both clocks. When the stamp of the first waiting message is
/// not known, the lane counts as ready: the cold read that follows will tell.
pub fn standing(
    lane: &Lane,
    cursor: Option<&Cursor>,
    options: &Options,
    now: Micros,
    stamp: Stamp,
    window_batch: u32,
) -> Standing {
    let Some(cursor) = cursor else {
        return if lane.end < lane.log_start { Standing::Nothing } else { Standing::Unread };
    };
    if cursor.busy {
        return Standing::Busy;
    }
    let Some(row) = cursor.row else {
        return if lane.end < lane.log_start { Standing::Nothing } else { Standing::Unread };
    };
    let start = next_start(row.committed, lane.log_start);
    if start > lane.end {
        return Standing::Nothing;
    }
    let judged = if is(Bug::LeaseOnWallClock) { now.plus(CLOCK_AHEAD_US) } else { now };
    if cursor.leased(judged) {
        return Standing::Until(cursor.lease_until);
    }
    if options.delay_secs > 0 || options.window_secs > 0 {
        let remembered = cursor.stamp_at.filter(|(at, _)| *at == start).map(|(_, stamp)| stamp);
        if let Some(first) = lane.tail.created_at(start).or(remembered) {
            let waiting = (lane.end.0 - start.0 + 1) as u64;
            if let Some(at) = held_until(stamp, options.delay_secs, options.window_secs, first, waiting, window_batch) {
                return Standing::Until(crate::command::until(at, stamp, now));
            }
        }
    }
    Standing::Ready { start }
}
