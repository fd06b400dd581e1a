//! Each rule passes a clean history and catches what is planted in it.

use super::*;
use crate::history::{
    AckItem, AckResult, Answer, Call, DeadLetter, Delivered, End, FinalLane, FinalSpool, Finals, GroupPlan, Moment, Op,
    Plan, Probe, PushItem, PushResult, QueuePlan, Stored, Word,
};

const SECOND: u64 = 1_000_000;
/// Where the database's clock starts.
const WALL: i64 = 1_700_000_000_000_000;

/// A history under construction: each call takes a millisecond and starts a millisecond after the last one.
struct Story {
    history: History,
    now: Micros,
    lane: FinalLane,
    committed: i64,
}

impl Story {
    fn new() -> Story {
        let group = GroupPlan { name: "g".into(), auto_ack: false, outputs: None };
        let queue = QueuePlan {
            name: "q".into(),
            retry_limit: 1,
            dedup_secs: 60,
            delay_secs: 0,
            retention_secs: 0,
            encrypted: false,
            groups: vec![group],
        };
        let plan = Plan { seed: 1, brokers: 1, queues: vec![queue], recovery_ms: 5000 };
        let lane = FinalLane { queue: "q".into(), partition: "p".into(), last_offset: -1, ..FinalLane::default() };
        Story { history: History { plan, ..History::default() }, now: 0, lane, committed: -1 }
    }

    fn queue(&mut self) -> &mut QueuePlan {
        &mut self.history.plan.queues[0]
    }

    fn op(&mut self, client: u16, call: Call, end: End) -> &mut Op {
        let moment = |at: Micros| Moment { at, wall: WALL + at as i64 };
        let invoked = moment(self.now + 1000);
        self.now += 2000;
        let ended = Some((moment(self.now), end));
        self.history.ops.push(Op { client, broker: 0, call, invoked, ended });
        self.history.ops.last_mut().expect("just pushed")
    }

    fn rest(&mut self, micros: Micros) -> &mut Story {
        self.now += micros;
        self
    }

    /// Puts a message into the log, stamped now.
    fn store(&mut self, key: &str) -> i64 {
        let offset = self.lane.last_offset + 1;
        let created = WALL + self.now as i64 + 1500;
        self.lane.stored.push(Stored { offset, key: key.into(), payload: payload(key), created, accepted: None });
        self.lane.last_offset = offset;
        offset
    }

    /// The same, out of a spool that accepted it so long ago.
    fn drain(&mut self, key: &str, ago: Micros) {
        self.store(key);
        let stored = self.lane.stored.last_mut().expect("just stored");
        stored.accepted = Some(stored.created - ago as i64);
    }

    fn push_ends(&mut self, key: &str, end: End) {
        self.op(1, Call::Push { items: vec![item("q", "p", key)] }, end);
    }

    fn told(&mut self, key: &str, status: &str, id: i64, offset: Option<i64>) {
        let result = PushResult { status: status.into(), id: format!("m{id}"), offset };
        self.push_ends(key, End::Ok(Answer::Push(vec![result])));
    }

    /// A push that is stored and answered `queued`.
    fn push(&mut self, key: &str) -> i64 {
        let offset = self.store(key);
        self.told(key, "queued", offset, Some(offset));
        offset
    }

    /// Delivers from..=to under a lease of two seconds.
    fn pop(&mut self, lease: &str, from: i64, to: i64) {
        self.pop_by("g", lease, from, to);
    }

    fn pop_by(&mut self, group: &str, lease: &str, from: i64, to: i64) {
        let one = |s: &Stored| Delivered {
            partition: "p".into(),
            partition_id: "7".into(),
            offset: s.offset,
            key: s.key.clone(),
            id: format!("m{}", s.offset),
            payload: s.payload.clone(),
            created: s.created,
            attempt: 1,
        };
        let messages = self.lane.stored.iter().filter(|s| (from..=to).contains(&s.offset)).map(one).collect();
        let call = Call::Pop { queue: "q".into(), group: group.into(), auto_ack: lease.is_empty(), lease_secs: 2 };
        self.op(2, call, End::Ok(Answer::Pop { lease: lease.into(), messages }));
    }

    fn ack_ends(&mut self, lease: &str, words: &[(i64, Word)], end: End) {
        let items = words.iter().map(|(offset, word)| ack(*offset, *word)).collect();
        self.op(2, Call::Ack { queue: "q".into(), group: "g".into(), lease: lease.into(), items }, end);
    }

    /// An ack that is answered true.
    fn ack(&mut self, lease: &str, words: &[(i64, Word)]) {
        self.ack_ends(lease, words, End::Ok(Answer::Ack(vec![yes(); words.len()])));
        let signal = words.iter().filter(|(_, word)| *word != Word::Completed).map(|(o, _)| *o).min();
        let below = signal.unwrap_or(i64::MAX);
        let done = words.iter().filter(|(o, word)| *word == Word::Completed && *o < below).map(|(o, _)| *o).max();
        self.committed = self.committed.max(done.unwrap_or(-1));
    }

    fn complete(&mut self, lease: &str, offset: i64) {
        self.ack(lease, &[(offset, Word::Completed)]);
    }

    /// A nack that dead-letters.
    fn bury(&mut self, lease: &str, offset: i64) {
        let result = AckResult { dlq: true, ..yes() };
        self.ack_ends(lease, &[(offset, Word::Failed)], End::Ok(Answer::Ack(vec![result])));
        self.committed = self.committed.max(offset);
        self.history.finals.dead_letters.push(DeadLetter {
            queue: "q".into(),
            partition: "p".into(),
            group: "g".into(),
            offset,
            key: format!("k{offset}"),
            payload: payload(&self.lane.stored[offset as usize].key),
            error: format!("nacked {offset}"),
            retry_count: 1,
        });
    }

    fn fault(&mut self) {
        self.op(9, Call::Fault { kind: "kill-broker".into() }, End::Ok(Answer::Fault { hits: 1 }));
    }

    fn finals(&mut self) -> &mut Finals {
        &mut self.history.finals
    }

    fn verdict(&self) -> Vec<Violation> {
        let mut history = self.history.clone();
        let mut lane = self.lane.clone();
        lane.cursors = history.plan.queues[0].groups.iter().map(|g| (g.name.clone(), self.committed)).collect();
        history.finals.lanes.push(lane);
        check(&history)
    }

    #[track_caller]
    fn clean(&self) {
        let violations = self.verdict();
        assert!(violations.is_empty(), "{}", violations.iter().map(|v| format!("{v}\n")).collect::<String>());
    }

    /// The rule finds something.
    #[track_caller]
    fn breaks(&self, rule: &str) {
        let violations = self.verdict();
        assert!(violations.iter().any(|v| v.rule == rule), "{rule} finds nothing, all of it: {violations:?}");
    }
}

fn payload(key: &str) -> String {
    format!("{{\"k\":\"{key}\",\"n\":9007199254740993}}")
}

fn item(queue: &str, partition: &str, key: &str) -> PushItem {
    PushItem { queue: queue.into(), partition: partition.into(), key: key.into(), payload: payload(key) }
}

fn ack(offset: i64, word: Word) -> AckItem {
    AckItem { partition: "p".into(), partition_id: "7".into(), offset, key: format!("k{offset}"), word }
}

fn yes() -> AckResult {
    AckResult { success: true, noop: false, dlq: false, released: false, error: None }
}

/// Three messages, delivered and completed.
fn plain() -> Story {
    let mut story = Story::new();
    for key in ["k0", "k1", "k2"] {
        story.push(key);
    }
    story.pop("l1", 0, 2);
    story.complete("l1", 2);
    story
}

#[test]
fn a_plain_history_is_clean() {
    plain().clean();
}

#[test]
fn c1_finds_a_lost_message() {
    let mut story = plain();
    story.told("k3", "queued", 3, Some(3));
    story.breaks("C1");
}

#[test]
fn c1_finds_a_lost_buffered_message() {
    let mut story = plain();
    story.finals().spool = Some(FinalSpool::default());
    story.told("k3", "buffered", 3, None);
    story.breaks("C1");
}

#[test]
fn c1_finds_a_message_that_never_came() {
    let mut story = plain();
    story.push("k3");
    story.committed = 3;
    story.breaks("C1");
}

#[test]
fn c1_passes_what_nobody_was_promised() {
    let mut story = plain();
    story.push_ends("k3", End::Info("reset".into()));
    story.push_ends("k4", End::Fail("not sent".into()));
    story.fault();
    story.told("k5", "failed", 5, None);
    story.clean();
}

#[test]
fn c1_excuses_a_group_that_acks_at_delivery_for_lost_answers_only() {
    let mut story = Story::new();
    story.queue().groups[0].auto_ack = true;
    story.push("k0");
    story.committed = 0;
    story.breaks("C1");
    let call = Call::Pop { queue: "q".into(), group: "g".into(), auto_ack: true, lease_secs: 2 };
    story.op(2, call, End::Info("reset".into()));
    story.clean();
}

#[test]
fn c2_finds_changed_payloads_and_strangers() {
    let mut story = plain();
    story.lane.stored[1].payload = "{\"k\":\"k1\",\"n\":9007199254740992}".into();
    story.breaks("C2");
    let mut story = plain();
    story.store("stranger");
    story.breaks("C2");
}

#[test]
fn c2_finds_what_was_refused() {
    let mut story = plain();
    story.store("k3");
    story.push_ends("k3", End::Fail("400".into()));
    story.breaks("C2");
    let mut story = plain();
    story.store("k3");
    story.told("k3", "error", 3, None);
    story.breaks("C2");
}

#[test]
fn c2_allows_failed_with_an_unknown_outcome_at_most_once() {
    let stored = |faults: bool, times: usize| {
        let mut story = plain();
        if faults {
            story.fault();
        }
        for _ in 0..times {
            story.store("k3");
        }
        story.told("k3", "failed", 3, None);
        story.pop("l2", 3, 2 + times as i64);
        story.complete("l2", 2 + times as i64);
        story
    };
    stored(true, 1).clean();
    stored(false, 1).breaks("C2");
    stored(true, 2).breaks("C2");
}

#[test]
fn c3_finds_a_key_twice_inside_its_window_only() {
    let twice = |apart: Micros| {
        let mut story = plain();
        story.rest(apart);
        story.push("k0");
        story.pop("l2", 3, 3);
        story.complete("l2", 3);
        story
    };
    twice(SECOND).breaks("C3");
    twice(61 * SECOND).clean();
}

#[test]
fn c3_counts_from_acceptance_through_the_spool() {
    let mut story = Story::new();
    story.finals().spool = Some(FinalSpool::default());
    story.told("k0", "buffered", 0, None);
    story.push_ends("k0", End::Info("reset".into()));
    // Drained twice, long after both were accepted within milliseconds, and both say so.
    story.rest(61 * SECOND);
    story.drain("k0", 61 * SECOND);
    story.rest(61 * SECOND);
    story.drain("k0", 122 * SECOND);
    story.pop("l1", 0, 1);
    story.complete("l1", 1);
    story.breaks("C3");
}

/// Its answer was lost: a broker that stood still may have read it from its socket later, and spooled it. When that was, the
/// broker says; what it says does not excuse what was asked for within the window.
#[test]
fn c3_does_not_judge_by_when_a_client_left() {
    let twice = |apart: Micros, end: End, accepted_apart: Micros| {
        let mut story = Story::new();
        story.finals().spool = Some(FinalSpool::default());
        story.told("k0", "buffered", 0, None);
        story.rest(apart);
        story.push_ends("k0", end);
        story.rest(SECOND);
        story.drain("k0", accepted_apart);
        story.drain("k0", 0);
        story.pop("l1", 0, 1);
        story.complete("l1", 1);
        story
    };
    let lost = || End::Info("reset".into());
    let told = || End::Ok(Answer::Push(vec![PushResult { status: "buffered".into(), id: "m0".into(), offset: None }]));
    twice(58 * SECOND, lost(), 61 * SECOND).clean();
    twice(58 * SECOND, lost(), 59 * SECOND).breaks("C3");
    twice(58 * SECOND, told(), 61 * SECOND).breaks("C3");
    twice(61 * SECOND, told(), 61 * SECOND).clean();
    // A push that came later and was none of them excuses nothing.
    let mut later = twice(58 * SECOND, told(), 61 * SECOND);
    later.rest(62 * SECOND);
    later.told("k0", "duplicate", 0, Some(0));
    later.breaks("C3");
}

#[test]
fn c3_finds_one_push_stored_twice_beyond_its_window() {
    let stored = |pushes: usize| {
        let mut story = Story::new();
        story.finals().spool = Some(FinalSpool::default());
        for _ in 0..pushes {
            story.told("k0", "buffered", 0, None);
            story.rest(61 * SECOND);
        }
        story.store("k0");
        story.rest(61 * SECOND);
        story.store("k0");
        story.pop("l1", 0, 1);
        story.complete("l1", 1);
        story
    };
    stored(1).breaks("C3");
    stored(2).clean();
}

#[test]
fn c4_finds_a_duplicate_of_nothing() {
    let mut story = plain();
    story.told("k9", "duplicate", 1, Some(1));
    story.breaks("C4");
}

#[test]
fn c4_finds_a_duplicate_beyond_the_window() {
    let mut story = plain();
    story.told("k0", "duplicate", 0, Some(0));
    story.clean();
    story.rest(70 * SECOND).told("k0", "duplicate", 0, Some(0));
    story.breaks("C4");
}

#[test]
fn c4_finds_the_id_of_another_message() {
    let mut story = plain();
    story.told("k0", "duplicate", 1, Some(0));
    story.breaks("C4");
}

#[test]
fn c5_finds_messages_out_of_the_order_they_were_sent_in() {
    let mut story = plain();
    story.lane.stored.swap(0, 1);
    (story.lane.stored[0].offset, story.lane.stored[1].offset) = (0, 1);
    story.breaks("C5");
}

#[test]
fn c5_holds_across_queued_and_buffered() {
    let boundary = |swap: bool| {
        let mut story = Story::new();
        story.finals().spool = Some(FinalSpool::default());
        story.push("k0");
        story.told("k1", "buffered", 1, None);
        story.told("k2", "buffered", 2, None);
        if swap {
            story.store("k2");
            story.store("k1");
        } else {
            story.store("k1");
            story.store("k2");
        }
        story.push("k3");
        story.pop("l1", 0, 3);
        story.complete("l1", 3);
        story
    };
    boundary(false).clean();
    boundary(true).breaks("C5");
}

#[test]
fn c5_promises_nothing_to_a_producer_that_changes_brokers_with_undrained_records() {
    let mut story = Story::new();
    story.history.plan.brokers = 2;
    story.finals().spool = Some(FinalSpool::default());
    story.told("k0", "buffered", 1, None);
    let offset = story.push("k1");
    story.history.ops.last_mut().expect("a push").broker = 1;
    assert_eq!(offset, 0);
    story.store("k0");
    story.pop("l1", 0, 1);
    story.complete("l1", 1);
    story.clean();
    story.history.plan.brokers = 1;
    story.breaks("C5");
}

#[test]
fn c5_promises_nothing_between_pushes_that_overlap() {
    let mut story = Story::new();
    story.store("k1");
    story.store("k0");
    story.told("k0", "queued", 1, Some(1));
    story.told("k1", "queued", 0, Some(0));
    story.breaks("C5");
    // The same, with k1 asked for before k0 was answered.
    story.history.ops[1].invoked = story.history.ops[0].invoked;
    story.pop("l1", 0, 1);
    story.complete("l1", 1);
    story.clean();
}

#[test]
fn c6_finds_a_hole_in_what_a_group_got() {
    let mut story = plain();
    story.push("k3");
    story.push("k4");
    story.pop("l2", 4, 4);
    story.complete("l2", 4);
    story.breaks("C6");
    story.breaks("C1");
}

#[test]
fn c6_finds_a_cursor_that_a_refused_ack_has_moved() {
    let mut story = plain();
    story.push("k3");
    story.push("k4");
    story.pop("l2", 3, 3);
    story.rest(3 * SECOND);
    let refused = AckResult { success: false, error: Some("invalid or expired lease".into()), ..yes() };
    story.ack_ends("l2", &[(3, Word::Completed)], End::Ok(Answer::Ack(vec![refused])));
    story.pop("l3", 4, 4);
    story.complete("l3", 4);
    story.breaks("C6");
}

#[test]
fn c6_follows_an_ack_nobody_saw_the_end_of() {
    let mut story = plain();
    story.push("k3");
    story.push("k4");
    story.pop("l2", 3, 3);
    story.ack_ends("l2", &[(3, Word::Completed)], End::Info("reset".into()));
    story.pop("l3", 4, 4);
    story.complete("l3", 4);
    story.clean();
}

#[test]
fn c7_finds_two_leases_at_once() {
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.rest(SECOND).pop("l3", 3, 3);
    story.complete("l3", 3);
    story.breaks("C7");
}

#[test]
fn c7_passes_a_lease_after_the_end_of_the_last_one() {
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.rest(2 * SECOND).pop("l3", 3, 3);
    story.complete("l3", 3);
    story.clean();
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.ack("l2", &[(3, Word::Retry)]);
    story.pop("l3", 3, 3);
    story.complete("l3", 3);
    story.clean();
}

#[test]
fn c7_counts_an_extension() {
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.rest(SECOND);
    story.op(2, Call::Extend { lease: "l2".into(), secs: 3 }, End::Ok(Answer::Extend { success: true }));
    story.rest(2 * SECOND).pop("l3", 3, 3);
    story.complete("l3", 3);
    story.breaks("C7");
}

#[test]
fn c8_finds_a_completed_message_again() {
    let mut story = plain();
    story.pop("l2", 2, 2);
    story.breaks("C8");
}

#[test]
fn c8_finds_an_ack_of_an_older_lease_that_was_true_after_all() {
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.rest(2 * SECOND - 2000);
    // Granted as soon as the lease was over; the late ack of the old one must be refused then.
    story.pop("l3", 3, 3);
    story.complete("l2", 3);
    story.history.ops.last_mut().expect("an ack").invoked.at = story.now - 5000;
    story.breaks("C8");
}

#[test]
fn c8_finds_an_accepted_ack_of_an_ended_lease() {
    let mut story = plain();
    story.push("k3");
    story.pop("l2", 3, 3);
    story.rest(3 * SECOND).complete("l2", 3);
    story.breaks("C8");
}

#[test]
fn c8_wants_noop_for_a_repeated_ack() {
    let repeated = |noop: bool| {
        let mut story = Story::new();
        for n in 0..3 {
            story.push(&format!("k{n}"));
        }
        story.pop("l1", 0, 2);
        story.complete("l1", 1);
        let result = AckResult { noop, ..yes() };
        story.ack_ends("l1", &[(0, Word::Completed)], End::Ok(Answer::Ack(vec![result])));
        story.complete("l1", 2);
        story
    };
    repeated(true).clean();
    repeated(false).breaks("C8");
}

/// One message that fails `times` times before it is buried.
fn failing(times: usize) -> Story {
    let mut story = Story::new();
    story.push("k0");
    for n in 0..times {
        story.pop(&format!("l{n}"), 0, 0);
        story.ack(&format!("l{n}"), &[(0, Word::Failed)]);
    }
    story.pop("last", 0, 0);
    story.bury("last", 0);
    story
}

#[test]
fn c9_buries_after_exactly_the_budget() {
    failing(1).clean();
    failing(0).breaks("C9");
    failing(2).breaks("C9");
}

#[test]
fn c9_charges_nothing_for_a_lease_that_only_ends() {
    let mut story = Story::new();
    story.push("k0");
    story.pop("l0", 0, 0);
    story.rest(3 * SECOND).pop("l1", 0, 0);
    story.bury("l1", 0);
    story.breaks("C9");
}

#[test]
fn c9_finds_a_nacked_message_that_never_came_again() {
    let mut story = plain();
    story.push("k3");
    story.push("k4");
    story.pop("l2", 3, 4);
    story.ack("l2", &[(3, Word::Failed)]);
    story.pop("l3", 4, 4);
    story.complete("l3", 4);
    story.breaks("C9");
}

#[test]
fn c9_finds_a_damaged_or_missing_or_doubled_or_causeless_dead_letter() {
    let mut story = failing(1);
    story.finals().dead_letters[0].payload = String::new();
    story.breaks("C9");
    let mut story = failing(1);
    story.finals().dead_letters.clear();
    story.breaks("C9");
    let mut story = failing(1);
    let again = story.finals().dead_letters[0].clone();
    story.finals().dead_letters.push(again);
    story.breaks("C9");
    let mut story = plain();
    let mut letter = failing(1).finals().dead_letters[0].clone();
    letter.offset = 1;
    letter.payload = payload("k1");
    story.finals().dead_letters.push(letter);
    story.breaks("C9");
}

#[test]
fn c9_wants_the_reason_of_the_nack() {
    let mut story = failing(1);
    story.finals().dead_letters[0].error = "Retries exhausted".into();
    story.breaks("C9");
}

/// Three inputs, each moved by a transaction with one output.
fn moving(end: End, stored: usize, committed: i64) -> Story {
    let mut story = Story::new();
    story.queue().groups[0].outputs = Some("out".into());
    story.history.plan.queues.push(QueuePlan { name: "out".into(), dedup_secs: 60, ..QueuePlan::default() });
    for n in 0..3 {
        story.push(&format!("k{n}"));
    }
    story.pop("l1", 0, 2);
    let inputs: Vec<AckItem> = (0..3).map(|n| ack(n, Word::Completed)).collect();
    let outputs: Vec<PushItem> = (0..3).map(|n| item("out", "o", &format!("out{n}"))).collect();
    let kept = outputs.iter().cycle().take(stored).zip(0..);
    let kept = kept.map(|(item, offset)| Stored {
        offset,
        key: item.key.clone(),
        payload: item.payload.clone(),
        created: WALL + story.now as i64,
        accepted: None,
    });
    let lane = FinalLane {
        queue: "out".into(),
        partition: "o".into(),
        last_offset: stored as i64 - 1,
        stored: kept.collect(),
        ..FinalLane::default()
    };
    story.finals().lanes.push(lane);
    let call = Call::Transaction { queue: "q".into(), group: "g".into(), lease: "l1".into(), inputs, outputs };
    story.op(3, call, end);
    story.committed = committed;
    story
}

fn tx(success: bool) -> End {
    End::Ok(Answer::Transaction { success, reason: String::new() })
}

#[test]
fn c10_passes_whole_transactions_and_unknown_ones_either_way() {
    moving(tx(true), 3, 2).clean();
    moving(End::Info("reset".into()), 3, 2).clean();
}

#[test]
fn c10_finds_an_output_without_its_ack_and_an_ack_without_its_output() {
    moving(End::Info("reset".into()), 3, -1).breaks("C10");
    moving(End::Info("reset".into()), 0, 2).breaks("C10");
    moving(End::Info("reset".into()), 2, 2).breaks("C10");
}

#[test]
fn c10_finds_an_output_twice_and_the_output_of_a_refused_transaction() {
    moving(tx(true), 6, 2).breaks("C10");
    moving(tx(false), 3, -1).breaks("C10");
    moving(tx(false), 3, -1).breaks("C2");
}

#[test]
fn c11_adds_up_the_spool() {
    let spooled = |pending: u64, quarantined: u64, damaged: u64| {
        let mut story = plain();
        story.finals().spool = Some(FinalSpool { pending, quarantined, damaged });
        story.told("k3", "buffered", 3, None);
        story.store("k3");
        story.told("k4", "buffered", 4, None);
        story.pop("l2", 3, 3);
        story.complete("l2", 3);
        story.verdict().into_iter().filter(|violation| violation.rule == "C11").count()
    };
    assert_eq!(spooled(0, 0, 0), 1, "one of two is nowhere");
    assert_eq!(spooled(1, 0, 0), 0);
    assert_eq!(spooled(0, 0, 1), 0);
    assert_eq!(spooled(1, 2, 1), 1, "more was set aside than was damaged");
}

#[test]
fn c11_knows_that_a_broker_without_a_spool_buffers_nothing() {
    let mut story = plain();
    story.told("k0", "buffered", 0, None);
    story.breaks("C11");
}

#[test]
fn c12_finds_a_message_that_came_early() {
    let delayed = |rest: Micros| {
        let mut story = Story::new();
        story.queue().delay_secs = 1;
        story.push("k0");
        story.rest(rest).pop("l1", 0, 0);
        story.complete("l1", 0);
        story
    };
    delayed(SECOND).clean();
    delayed(SECOND - 10_000).breaks("C12");
}

#[test]
fn c13_wants_recovery_in_time_and_empty_groups() {
    let probed = |took_ms: Option<u64>| {
        let mut story = plain();
        story.finals().probes.push(Probe { what: "a push".into(), took_ms });
        story
    };
    probed(Some(5000)).clean();
    probed(Some(5001)).breaks("C13");
    probed(None).breaks("C13");
    let mut story = plain();
    story.committed = 1;
    story.breaks("C13");
    let mut story = plain();
    story.finals().crashes.push("exit status: 101".into());
    story.breaks("C13");
}

#[test]
fn c13_finds_a_hole_in_the_log() {
    let mut story = plain();
    story.lane.stored.remove(1);
    story.breaks("C13");
}

#[test]
fn c14_finds_a_canary() {
    let mut story = plain();
    story.finals().canaries = Some(Vec::new());
    story.clean();
    story.finals().canaries = Some(vec!["pg_wal/000000010000000000000001".into()]);
    story.breaks("C14");
}

#[test]
fn a_history_comes_back_from_its_file() {
    let path = std::env::temp_dir().join(format!("queen-torture-history-{}", std::process::id()));
    let plan = Plan { seed: 3, ..Plan::default() };
    let recorder = crate::history::Recorder::new(std::time::Instant::now(), Some(&path), &plan).expect("a file");
    let op = recorder.invoke(1, 0, Call::Push { items: vec![item("q", "p", "k0")] });
    recorder.end(op, End::Info("reset".into()));
    recorder.invoke(2, 0, Call::Extend { lease: "l".into(), secs: 1 });
    let history = recorder.close(plan, plain().history.finals.clone());
    let read = crate::history::read(&path).expect("it reads");
    let _ = std::fs::remove_file(&path);
    assert_eq!(read, history);
    assert!(read.ops[1].is_unknown(), "an operation without an end is unknown");
}
