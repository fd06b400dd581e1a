//! When what waits in a lane may be claimed, and how far: delay and window. Source: data plane 4.9.
//!
//! Every stamp is PostgreSQL's clock and `now` a lower bound of it, so nothing is ever early. `createdAt` never
//! decreases along offsets, so a delay hides a contiguous tail.

use crate::ids::{Offset, Stamp};

/// When the lane may be claimed: now (`None`), or at a stamp.
///
/// `first_waiting`: `createdAt` of the offset the claim would start at; `waiting`: messages from there to the end of
/// the log; `window_batch`: so many end the window at once (`QUEEN_HOTLIST_WINDOW_BATCH`). Counted from the first
/// waiting message, so steady traffic does not postpone it. With both options the longer decides.
pub fn held_until(
    now: Stamp,
    delay_secs: u32,
    window_secs: u32,
    first_waiting: Stamp,
    waiting: u64,
    window_batch: u32,
) -> Option<Stamp> {
    let window_secs = if waiting < u64::from(window_batch) { window_secs } else { 0 };
    let secs = delay_secs.max(window_secs);
    let free_at = after(first_waiting, secs);
    (secs != 0 && now < free_at).then_some(free_at)
}

/// The last offset a claim from `start` may reach under a delay; `None` when not even `start` is visible.
///
/// `runs`: what is stored from `start` on (a run that begins before it will do), ascending, each as its last offset
/// and its stamp. Reads no further than the first run that is hidden.
pub fn visible_end(
    now: Stamp,
    delay_secs: u32,
    runs: impl Iterator<Item = (Offset, Stamp)>,
    start: Offset,
) -> Option<Offset> {
    runs.take_while(|&(_, created_at)| delay_secs == 0 || after(created_at, delay_secs) <= now)
        .map(|(last, _)| last)
        .filter(|&last| start <= last)
        .last()
}

/// The youngest stamp that is visible under a delay. Source: data plane 4.10, the newest visible message.
pub fn newest_visible(now: Stamp, delay_secs: u32) -> Stamp {
    if delay_secs == 0 { Stamp(i64::MAX) } else { Stamp(now.0.saturating_sub(i64::from(delay_secs) * 1_000_000)) }
}

/// `secs` after `at`.
fn after(at: Stamp, secs: u32) -> Stamp {
    Stamp(at.0.saturating_add(i64::from(secs) * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: i64 = 1_000_000;

    #[track_caller]
    fn held(now_us: i64, delay: u32, window: u32, waiting: u64, want_us: Option<i64>) {
        let first = Stamp(1000 * SEC);
        let got = held_until(Stamp(first.0 + now_us), delay, window, first, waiting, 100);
        assert_eq!(got, want_us.map(|us| Stamp(first.0 + us)));
    }

    #[test]
    fn without_options_a_lane_is_free_at_once() {
        held(0, 0, 0, 1, None);
        held(-5, 0, 0, 1, None); // Also when this broker's reading of the clock lags behind the stamp.
    }

    #[test]
    fn a_delay_is_never_early() {
        held(5 * SEC - 1, 5, 0, 1, Some(5 * SEC));
        held(5 * SEC, 5, 0, 1, None);
        held(5 * SEC - 1, 5, 0, 1_000_000, Some(5 * SEC));
    }

    #[test]
    fn a_window_ends_by_time_or_by_a_hundred_messages() {
        held(2 * SEC, 0, 3, 99, Some(3 * SEC));
        held(2 * SEC, 0, 3, 100, None);
        held(3 * SEC, 0, 3, 1, None);
    }

    #[test]
    fn with_delay_and_window_the_longer_decides() {
        held(2 * SEC, 5, 3, 1, Some(5 * SEC));
        held(4 * SEC, 3, 5, 1, Some(5 * SEC));
        held(2 * SEC, 3, 5, 100, Some(3 * SEC)); // The window is over, the delay is not.
        held(5 * SEC, 3, 5, 1, None);
    }

    #[test]
    fn the_newest_visible_stamp_agrees_with_the_end_of_a_claim() {
        let at = |us: i64| Stamp(1000 * SEC + us);
        for delay in [0, 1, 5] {
            for age in [-1, 0, 1, SEC - 1, SEC, SEC + 1, 5 * SEC - 1, 5 * SEC] {
                let created = at(-age);
                let end = visible_end(at(0), delay, [(Offset(7), created)].into_iter(), Offset(7));
                assert_eq!(created <= newest_visible(at(0), delay), end.is_some(), "{delay} {age}");
            }
        }
        assert_eq!(newest_visible(Stamp(i64::MIN), u32::MAX), Stamp(i64::MIN));
    }

    #[test]
    fn stamps_at_the_end_of_time_do_not_overflow() {
        assert_eq!(held_until(Stamp(0), u32::MAX, 0, Stamp(i64::MAX), 1, 100), Some(Stamp(i64::MAX)));
    }

    #[test]
    fn a_delay_hides_a_tail() {
        let runs = [(4, 10), (7, 11), (9, 11), (12, 14)].map(|(last, sec)| (Offset(last), Stamp(sec * SEC)));
        let end = |now: i64, start: i64| {
            let got = visible_end(Stamp(now), 2, runs.into_iter(), Offset(start));
            got.map(|o| o.0)
        };
        assert_eq!(end(12 * SEC - 1, 0), None);
        assert_eq!(end(12 * SEC, 0), Some(4));
        assert_eq!(end(12 * SEC, 5), None);
        assert_eq!(end(13 * SEC, 5), Some(9));
        assert_eq!(end(15 * SEC, 3), Some(9));
        assert_eq!(end(16 * SEC, 3), Some(12));
        assert_eq!(visible_end(Stamp(0), 0, runs.into_iter(), Offset(0)), Some(Offset(12)), "no delay hides nothing");
        assert_eq!(visible_end(Stamp(0), 0, std::iter::empty(), Offset(0)), None);
    }
}
