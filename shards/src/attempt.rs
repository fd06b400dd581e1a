//! The delivery count of a claim. Source: data plane 4.8.

use crate::ids::Offset;

/// `(attempt_start, attempt_count)` of the next leased claim, which starts at `start`: one more than the last leased
/// claim when that started at the same offset, else 1.
///
/// The count is per claim, not per message; it counts expiries and nacks alike and charges nothing. Completion of a
/// batch, a dead letter and a seek clear what is remembered; an auto-ack claim carries 1 and remembers nothing.
pub fn next_attempt(attempt_start: Option<Offset>, attempt_count: u32, start: Offset) -> (Offset, u32) {
    let again = attempt_start == Some(start);
    (start, if again { attempt_count.saturating_add(1) } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_from_the_same_offset_counts_up_and_any_other_starts_at_one() {
        let mut state = (None, 0);
        for (start, want) in [(10, 1), (10, 2), (10, 3), (12, 1), (12, 2), (10, 1)] {
            let (at, count) = next_attempt(state.0, state.1, Offset(start));
            assert_eq!((at, count), (Offset(start), want));
            state = (Some(at), count);
        }
        assert_eq!(next_attempt(None, 7, Offset(10)), (Offset(10), 1), "a cleared memory starts over");
        assert_eq!(next_attempt(Some(Offset(0)), u32::MAX, Offset(0)).1, u32::MAX);
    }
}
