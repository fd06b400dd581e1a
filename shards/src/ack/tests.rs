use super::*;
use crate::attempt::next_attempt;
use crate::command::AckOutcome::*;
use crate::command::Disposition::*;
use crate::ids::Key;
use proptest::prelude::*;

/// One lane and one group's cursor; the message at offset `o` has key `o`.
#[derive(Clone)]
struct Lane {
    cursor: CursorView,
    last: Offset,
    retry_limit: u32,
    dead_letter_on: bool,
    filed: Vec<(i64, u32, String)>,
}

impl Lane {
    /// Offsets 10 to 14, all leased, committed 9, retryLimit 3: the lane of data plane 5.7.
    fn leased() -> Lane {
        let mut lane = Lane {
            cursor: CursorView {
                committed: Offset(9),
                batch_end: None,
                conflating: false,
                retry_count: 0,
                attempt_start: None,
                attempt_count: 0,
                has_lease: false,
            },
            last: Offset(14),
            retry_limit: 3,
            dead_letter_on: true,
            filed: Vec::new(),
        };
        lane.claim(5);
        lane
    }

    /// Takes up to `batch` messages; first offset and `deliveryAttempt`.
    #[track_caller]
    fn claim(&mut self, batch: i64) -> (i64, u32) {
        assert!(!self.cursor.has_lease, "leased lanes are skipped");
        let start = self.cursor.committed.plus(1);
        assert!(start <= self.last, "nothing to claim");
        let (at, count) = next_attempt(self.cursor.attempt_start, self.cursor.attempt_count, start);
        self.cursor.attempt_start = Some(at);
        self.cursor.attempt_count = count;
        self.cursor.batch_end = Some(start.plus(batch - 1).min(self.last));
        self.cursor.has_lease = true;
        (start.0, count)
    }

    fn expire(&mut self) {
        self.cursor.has_lease = false;
    }

    fn rule(&mut self, items: &[(i64, Disposition, &str)]) -> Ruled {
        let (from, to) = span(&self.cursor, self.last);
        let place = |offset: i64| match Offset(offset) {
            o if from <= o && o <= to => Place::Span(o),
            o if Offset(0) <= o && o < from => Place::Below,
            _ => Place::Unknown,
        };
        let places: Vec<_> = items.iter().map(|item| place(item.0)).collect();
        let items: Vec<_> = items.iter().map(|&(offset, word, error)| item(offset, word, error)).collect();
        let ruled = rule(&self.cursor, &places, &items, self.retry_limit, self.dead_letter_on);
        if let Some(to) = ruled.to {
            self.cursor = CursorView {
                committed: to.committed,
                batch_end: to.batch_end,
                conflating: self.cursor.conflating && to.lease == LeaseTo::Keep,
                retry_count: to.retry_count,
                attempt_start: to.attempt_start,
                attempt_count: to.attempt_count,
                has_lease: self.cursor.has_lease && to.lease == LeaseTo::Keep,
            };
        }
        if let Some(dead) = ruled.dead_letter {
            let text = dead.error.map_or(RETRIES_EXHAUSTED, |i| items[i].error.as_deref().unwrap());
            self.filed.push((dead.offset.0, dead.retry_count, text.to_owned()));
        }
        ruled
    }

    fn ack(&mut self, items: &[(i64, Disposition)]) -> Vec<AckOutcome> {
        let items: Vec<_> = items.iter().map(|&(offset, word)| (offset, word, "")).collect();
        self.rule(&items).outcomes
    }

    /// Asserts the row of 5.7: committed, whether the lease is kept, the counter.
    #[track_caller]
    fn is(&self, committed: i64, lease_kept: bool, retry_count: u32) {
        assert_eq!(self.cursor.committed, Offset(committed), "committed");
        assert_eq!(self.cursor.has_lease, lease_kept, "lease kept");
        assert_eq!(self.cursor.batch_end.is_some(), lease_kept, "batch_end");
        assert_eq!(self.cursor.retry_count, retry_count, "counter");
    }
}

fn item(key: i64, word: Disposition, error: &str) -> AckItem {
    AckItem { key: Key(key as u128), word, error: (!error.is_empty()).then(|| error.into()) }
}

// Data plane 5.7, one by one.

#[test]
fn worked_case_completed_14() {
    let mut lane = Lane::leased();
    let ruled = lane.rule(&[(14, Completed, "")]);
    assert!(ruled.released);
    lane.is(14, false, 0);
    assert_eq!((lane.cursor.attempt_start, lane.cursor.attempt_count), (None, 0));
}

#[test]
fn worked_case_completed_12() {
    let mut lane = Lane::leased();
    let ruled = lane.rule(&[(12, Completed, "")]);
    assert!(!ruled.released);
    lane.is(12, true, 0);
    assert_eq!(lane.cursor.batch_end, Some(Offset(14)));
    lane.expire();
    assert_eq!(lane.claim(5), (13, 1), "13 and 14 come again on expiry");
}

#[test]
fn worked_case_completed_around_a_failed_12() {
    let mut lane = Lane::leased();
    let outcomes = lane.ack(&[(10, Completed), (11, Completed), (13, Completed), (14, Completed), (12, Failed)]);
    assert_eq!(outcomes, [Accepted; 5]);
    lane.is(11, false, 1);
    assert_eq!(lane.claim(5), (12, 1));
}

#[test]
fn worked_case_failed_12_only() {
    let mut lane = Lane::leased();
    assert!(lane.rule(&[(12, Failed, "")]).released);
    lane.is(9, false, 1);
    assert_eq!(lane.claim(5), (10, 2));
}

#[test]
fn worked_case_completed_10_and_retry_11() {
    let mut lane = Lane::leased();
    lane.ack(&[(10, Completed), (11, Retry)]);
    lane.is(10, false, 0);
    assert_eq!(lane.claim(5), (11, 1));
}

#[test]
fn worked_case_dlq_12_only() {
    let mut lane = Lane::leased();
    assert_eq!(lane.ack(&[(12, Dlq)]), [DeadLettered]);
    lane.is(12, false, 0);
    assert_eq!(lane.filed, [(12, 0, RETRIES_EXHAUSTED.to_owned())]);
    assert_eq!(lane.claim(5), (13, 1));
}

#[test]
fn worked_case_completed_12_then_completed_10() {
    let mut lane = Lane::leased();
    lane.ack(&[(12, Completed)]);
    assert_eq!(lane.ack(&[(10, Completed)]), [Noop]);
    lane.is(12, true, 0);
}

#[test]
fn worked_case_completed_12_then_failed_10() {
    let mut lane = Lane::leased();
    lane.ack(&[(12, Completed)]);
    assert_eq!(lane.ack(&[(10, Failed)]), [AlreadyCommitted]);
    lane.is(12, true, 0);
}

#[test]
fn worked_case_failed_10_and_dlq_12() {
    let mut lane = Lane::leased();
    assert_eq!(lane.ack(&[(10, Failed), (12, Dlq)]), [Accepted; 2]);
    lane.is(9, false, 1);
    assert!(lane.filed.is_empty());
    assert_eq!(lane.claim(5), (10, 2));
}

// Invariants 21 to 29 of data plane 14, as far as they are pure.

#[test]
fn completing_the_last_of_a_batch_completes_it() {
    let mut lane = Lane::leased();
    lane.ack(&[(10, Failed)]);
    lane.claim(3);
    lane.ack(&[(12, Completed)]);
    lane.is(12, false, 0);
}

#[test]
fn a_nack_is_not_lost_by_completed_acks_after_it() {
    for word in [Failed, Retry] {
        let mut lane = Lane::leased();
        lane.ack(&[(14, Completed), (11, word), (10, Completed), (13, Completed)]);
        assert_eq!(lane.claim(5), (11, 1));
    }
}

#[test]
fn a_budget_is_spent_then_the_message_is_dead_lettered_and_the_next_starts_fresh() {
    for retry_limit in [0, 1, 3] {
        let mut lane = Lane { retry_limit, ..Lane::leased() };
        lane.expire();
        for delivery in 0..=retry_limit {
            assert_eq!(lane.claim(1).0, 10);
            assert!(lane.filed.is_empty());
            lane.rule(&[(10, Failed, &format!("error {delivery}"))]);
        }
        assert_eq!(lane.filed, [(10, retry_limit, format!("error {retry_limit}"))]);
        lane.is(10, false, 0);
        assert_eq!(lane.claim(1), (11, 1));
    }
}

#[test]
fn retries_and_expiries_leave_the_budget_whole() {
    let mut lane = Lane::leased();
    for round in 2..20 {
        if round % 2 == 0 {
            lane.ack(&[(10, Retry)]);
        } else {
            lane.expire();
        }
        assert_eq!(lane.claim(5), (10, round));
        assert_eq!(lane.cursor.retry_count, 0);
    }
}

#[test]
fn dlq_dead_letters_at_once_even_with_the_flag_off() {
    let mut lane = Lane { dead_letter_on: false, ..Lane::leased() };
    lane.ack(&[(10, Failed)]);
    lane.claim(5);
    assert_eq!(lane.rule(&[(10, Dlq, "broken")]).outcomes, [DeadLettered]);
    assert_eq!(lane.filed, [(10, 1, "broken".to_owned())]);
    lane.is(10, false, 0);
}

#[test]
fn a_late_ack_without_lease_moves_the_cursor_within_the_old_batch() {
    let mut lane = Lane { last: Offset(20), ..Lane::leased() };
    lane.expire();
    assert_eq!(lane.ack(&[(15, Completed)]), [Unresolvable], "batch_end bounds it although the lease is over");
    let ruled = lane.rule(&[(12, Completed, "")]);
    assert!(!ruled.released, "no live lease ended");
    assert_eq!(lane.cursor.committed, Offset(12));
    let ruled = lane.rule(&[(14, Completed, "")]);
    assert!(!ruled.released);
    lane.is(14, false, 0);
}

#[test]
fn without_a_batch_an_ack_reaches_the_end_of_the_log_and_a_nack_does_nothing() {
    let mut lane = Lane::leased();
    lane.ack(&[(10, Retry)]);
    lane.cursor.retry_count = 2;
    for word in [Failed, Retry, Dlq] {
        let before = lane.cursor;
        let ruled = lane.rule(&[(12, word, "")]);
        assert_eq!((ruled.to, ruled.outcomes, ruled.released), (None, vec![Accepted], false));
        assert_eq!(lane.cursor, before);
    }
    assert_eq!(lane.ack(&[(11, Completed), (12, Failed), (13, Completed)]), [Accepted; 3]);
    lane.is(11, false, 2);
    lane.ack(&[(14, Completed)]);
    lane.is(14, false, 2);
    assert!(lane.filed.is_empty());
}

#[test]
fn unknown_keys_fail_and_leave_the_batch_ackable() {
    let mut lane = Lane::leased();
    let before = lane.cursor;
    for word in [Completed, Failed, Retry, Dlq] {
        let ruled = lane.rule(&[(99, word, ""), (3, word, "")]);
        let below = if word == Completed { Noop } else { AlreadyCommitted };
        assert_eq!((ruled.to, ruled.outcomes), (None, vec![Unresolvable, below]));
    }
    assert_eq!(lane.cursor, before, "the lease is not burnt");
    assert_eq!(lane.ack(&[(99, Failed), (14, Completed)]), [Unresolvable, Accepted]);
    lane.is(14, false, 0);
    assert_eq!(lane.ack(&[(14, Completed)]), [Noop]);
}

#[test]
fn with_both_flags_off_a_spent_message_is_dropped_without_a_row() {
    let mut lane = Lane { dead_letter_on: false, retry_limit: 1, ..Lane::leased() };
    lane.ack(&[(11, Failed)]);
    lane.claim(5);
    assert_eq!(lane.ack(&[(11, Failed)]), [Accepted]);
    lane.is(11, false, 0);
    assert!(lane.filed.is_empty());
    assert_eq!(lane.claim(5), (12, 1));
}

// Notes of 5.4 and 5.6.

#[test]
fn a_partial_completion_keeps_what_the_lane_has_spent() {
    let mut lane = Lane { retry_limit: 1, ..Lane::leased() };
    lane.ack(&[(10, Failed)]);
    lane.claim(5);
    lane.ack(&[(11, Completed)]);
    lane.is(11, true, 1);
    assert_eq!(lane.ack(&[(12, Failed)]), [DeadLettered], "charged on top");
}

#[test]
fn at_one_offset_dlq_beats_failed_beats_retry_and_completed_loses() {
    let mut lane = Lane::leased();
    assert_eq!(lane.ack(&[(10, Completed), (10, Retry), (10, Failed), (10, Dlq)])[..3], [Accepted; 3]);
    assert_eq!(lane.filed.len(), 1);
    let mut lane = Lane::leased();
    lane.ack(&[(10, Retry), (10, Failed), (10, Completed)]);
    lane.is(9, false, 1);
}

#[test]
fn only_the_lowest_signal_is_charged_or_dead_lettered() {
    let mut lane = Lane { retry_limit: 0, ..Lane::leased() };
    assert_eq!(lane.ack(&[(12, Failed), (11, Failed), (13, Dlq)]), [Accepted, DeadLettered, Accepted]);
    lane.is(11, false, 0);
    assert_eq!(lane.filed.len(), 1);
    assert_eq!(lane.claim(5), (12, 1));
}

#[test]
fn a_dead_letter_takes_its_own_text_then_the_first_signalled_one_then_the_stock_one() {
    let text = |items: &[(i64, Disposition, &str)]| {
        let mut lane = Lane::leased();
        lane.rule(items);
        lane.filed[0].2.clone()
    };
    assert_eq!(text(&[(13, Failed, "later"), (12, Dlq, "own")]), "own");
    assert_eq!(text(&[(11, Completed, "fine"), (14, Retry, "first"), (13, Failed, "second"), (12, Dlq, "")]), "first");
    assert_eq!(
        text(&[(11, Completed, "fine"), (99, Dlq, "unknown"), (3, Failed, "below"), (12, Dlq, "")]),
        RETRIES_EXHAUSTED
    );
    assert_eq!(text(&[(12, Failed, "other word"), (12, Dlq, "")]), "other word");
}

#[test]
fn the_last_message_dead_lettered_ends_the_batch() {
    let mut lane = Lane::leased();
    assert!(lane.rule(&[(13, Completed, ""), (14, Dlq, "")]).released);
    lane.is(14, false, 0);
}

/// Data plane 4.10 and 5.3: only the end of the span was delivered; its ack retires the rest, a nack retires nothing.
#[test]
fn a_conflating_lease_is_completed_by_the_message_it_delivered() {
    let conflating = || {
        let mut lane = Lane::leased();
        lane.cursor.conflating = true;
        assert_eq!(delivered(&lane.cursor), Some(Offset(14)));
        lane
    };
    let mut lane = conflating();
    let ruled = lane.rule(&[(14, Completed, "")]);
    assert_eq!(ruled.conflated, Some(Conflated { item: 0, messages: 4 }));
    lane.is(14, false, 0);
    assert_eq!(delivered(&lane.cursor), None);
    for (word, counter) in [(Failed, 1), (Retry, 0)] {
        let mut lane = conflating();
        let ruled = lane.rule(&[(14, word, "")]);
        assert_eq!((ruled.conflated, ruled.released), (None, true));
        lane.is(9, false, counter);
    }
    let mut lane = conflating();
    lane.cursor.retry_count = 3;
    let ruled = lane.rule(&[(14, Failed, "over")]);
    assert_eq!((ruled.conflated.map(|c| c.messages), ruled.dead_letter.map(|d| d.offset)), (Some(4), Some(Offset(14))));
    lane.is(14, false, 0);
    // A key of the span that was not delivered completes as far as it is, and the rest stays leased.
    let mut lane = conflating();
    assert_eq!(lane.rule(&[(11, Completed, "")]).conflated, None);
    lane.is(11, true, 0);
    assert_eq!(lane.rule(&[(14, Completed, "")]).conflated, Some(Conflated { item: 0, messages: 2 }));
    assert_eq!(Lane::leased().rule(&[(14, Completed, "")]).conflated, None, "a plain lease retires nothing unseen");
}

/// The rules read along the log, message by message, the way the prose of 5.4 tells them.
fn twin(cursor: &CursorView, places: &[Place], items: &[AckItem], retry_limit: u32, dead_letter_on: bool) -> Ruled {
    let mut outcomes = Vec::new();
    for (place, item) in places.iter().zip(items) {
        outcomes.push(match place {
            Place::Unknown => Unresolvable,
            Place::Below if item.word == Completed => Noop,
            Place::Below => AlreadyCommitted,
            Place::Span(_) => Accepted,
        });
    }
    let at = |offset: i64, word: Disposition| {
        (0..items.len()).find(|&i| places[i] == Place::Span(Offset(offset)) && items[i].word == word)
    };
    let mut next = cursor.committed.0;
    let mut prefix = None;
    let mut stop = None;
    while next < 40 && stop.is_none() {
        next += 1;
        stop = [Dlq, Failed, Retry].into_iter().find_map(|word| at(next, word)).map(|i| (next, i));
        if stop.is_none() && at(next, Completed).is_some() {
            prefix = Some(next);
        }
    }
    let mut new = *cursor;
    if let Some(c) = prefix {
        new.committed = Offset(c);
    }
    let (mut ends, mut resets, mut dead_letter) = (false, false, None);
    if cursor.batch_end.is_some() {
        match stop {
            None if prefix.map(Offset) >= cursor.batch_end => (ends, resets) = (true, true),
            None => {}
            Some((offset, i)) => {
                ends = true;
                let spent = cursor.retry_count >= retry_limit;
                let gives_up = items[i].word == Dlq || items[i].word == Failed && spent;
                if items[i].word == Failed && !spent {
                    new.retry_count += 1;
                }
                if gives_up {
                    new.committed = Offset(offset);
                    resets = true;
                }
                if gives_up && (items[i].word == Dlq || dead_letter_on) {
                    outcomes[i] = DeadLettered;
                    let mut texts: Vec<(bool, usize)> = (0..items.len())
                        .filter(|&j| matches!(places[j], Place::Span(_)) && items[j].word != Completed)
                        .filter(|&j| items[j].error.is_some())
                        .map(|j| (places[j] != places[i], j))
                        .collect();
                    texts.sort();
                    let error = texts.first().map(|t| t.1);
                    dead_letter = Some(DeadLetterAt { offset: Offset(offset), error, retry_count: cursor.retry_count });
                }
            }
        }
    }
    if ends {
        new.batch_end = None;
    }
    if resets {
        (new.retry_count, new.attempt_start, new.attempt_count) = (0, None, 0);
    }
    let to = CursorTo {
        committed: new.committed,
        lease: if ends { LeaseTo::Clear } else { LeaseTo::Keep },
        batch_end: new.batch_end,
        retry_count: new.retry_count,
        attempt_start: new.attempt_start,
        attempt_count: new.attempt_count,
    };
    let changes = ends || new != *cursor;
    let last = Offset(new.committed.0);
    let conflated = (cursor.conflating && ends && cursor.batch_end == Some(last)).then(|| Conflated {
        item: places.iter().position(|place| *place == Place::Span(last)).unwrap() as u32,
        messages: (cursor.committed.0 + 1..last.0).count() as u64,
    });
    Ruled { to: changes.then_some(to), outcomes, dead_letter, released: ends && cursor.has_lease, conflated }
}

prop_compose! {
    fn a_cursor()(
        committed in -1i64..12,
        batch in prop::option::of(0i64..12),
        retry_count in 0u32..4,
        attempt in prop::option::of(1u32..4),
        has_lease in any::<bool>(),
        conflating in any::<bool>(),
    ) -> CursorView {
        CursorView {
            committed: Offset(committed),
            batch_end: batch.map(|n| Offset(committed + 1 + n)),
            conflating: conflating && batch.is_some(),
            retry_count,
            attempt_start: attempt.map(|_| Offset(committed + 1)),
            attempt_count: attempt.unwrap_or(0),
            has_lease: has_lease && batch.is_some(),
        }
    }
}

fn an_item() -> impl Strategy<Value = (i64, Disposition, &'static str)> {
    let word = prop::sample::select(vec![Completed, Completed, Completed, Failed, Retry, Dlq]);
    (0i64..30, word, prop::sample::select(vec!["", "", "a", "b"]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The rules are what the prose says, told in another way.
    #[test]
    fn the_rules_are_their_twin(
        cursor in a_cursor(),
        items in prop::collection::vec(an_item(), 0..8),
        retry_limit in 0u32..4,
        dead_letter_on in any::<bool>(),
    ) {
        let (from, to) = span(&cursor, Offset(25));
        let places: Vec<_> = items.iter().map(|item| match Offset(item.0) {
            o if from <= o && o <= to => Place::Span(o),
            o if o < from => Place::Below,
            _ => Place::Unknown,
        }).collect();
        let items: Vec<_> = items.iter().map(|&(o, word, error)| item(o, word, error)).collect();
        let ruled = rule(&cursor, &places, &items, retry_limit, dead_letter_on);
        prop_assert_eq!(&ruled, &twin(&cursor, &places, &items, retry_limit, dead_letter_on));
        if let Some(moved) = ruled.to {
            prop_assert!(cursor.committed <= moved.committed && moved.committed <= to, "never back, never past the span");
            prop_assert!(moved.retry_count <= cursor.retry_count + 1);
        }
        prop_assert!(!ruled.released || cursor.has_lease);
    }
}
