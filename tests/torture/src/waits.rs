//! How long somebody waited for something that a goal bounds: wake-ups from one broker to the other, pushes after the
//! death of a broker, requests while brokers restart one after the other.

use crate::check::view::View;
use crate::faults::Fault;
use crate::history::{Answer, Call, End, History, Micros, Op};
use std::collections::HashMap;
use std::time::Duration;

/// Waits by what they were for, with the longest or the 99th percentile that the goals of reliability 6 allow.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// From the answer of a push on one broker to that of a pop that had waited on the other since before it; no fault
    /// meanwhile, of whatever kind.
    pub across: Vec<Duration>,
    /// The same, with one: one of the two may have stood still, or its database.
    pub across_beside: Vec<Duration>,
    /// From the death of a broker, its pause and its start included, to a push that it accepted; no other fault meanwhile.
    pub killed: Vec<Duration>,
    /// Requests but pops that were asked for while two brokers restarted one after the other, and were answered, with no
    /// other fault at their own broker meanwhile.
    pub rolling: Vec<Duration>,
    /// The same, with one: their broker may have stood still, or their client.
    pub rolling_beside: Vec<Duration>,
}

impl Waits {
    pub fn of(history: &History, view: &View) -> Waits {
        let (rolling, rolling_beside) = rolling(history);
        let (beside, across): (Vec<WakeUp>, Vec<WakeUp>) =
            wake_ups(view).into_iter().partition(|w| w.is_disturbed(history));
        let waits = |all: Vec<WakeUp>| all.iter().map(WakeUp::wait).collect();
        Waits { across: waits(across), across_beside: waits(beside), killed: killed(history), rolling, rolling_beside }
    }

    pub fn add(&mut self, more: Waits) {
        self.across.extend(more.across);
        self.across_beside.extend(more.across_beside);
        self.killed.extend(more.killed);
        self.rolling.extend(more.rolling);
        self.rolling_beside.extend(more.rolling_beside);
    }
}

/// A pop on one broker that was answered with a push on the other, for which it had waited.
#[derive(Clone, Copy, Debug)]
pub struct WakeUp {
    /// When the push was asked for, and when it was answered.
    push: (Micros, Micros),
    popped: Micros,
}

impl WakeUp {
    fn wait(&self) -> Duration {
        Duration::from_micros(self.popped.saturating_sub(self.push.1))
    }

    fn is_disturbed(&self, history: &History) -> bool {
        let faults = history.ops.iter().filter(|op| is_fault_but(op, &[]));
        faults.map(lasted).any(|(from, to)| from <= self.popped && self.push.0 <= to)
    }
}

/// One per pop, of the first push it can have been woken by.
pub fn wake_ups(view: &View) -> Vec<WakeUp> {
    let mut pops: HashMap<*const Op, WakeUp> = HashMap::new();
    for (&(queue, _), lane) in &view.lanes {
        if view.queue(queue).is_none_or(|plan| 0 < plan.delay_secs) {
            continue;
        }
        let queued = lane.attempts.iter().filter(|attempt| attempt.status() == Some("queued"));
        let pushed: HashMap<&str, &Op> = queued.map(|attempt| (&*attempt.item.key, attempt.op)).collect();
        for delivery in lane.groups.values().flat_map(|group| &group.deliveries) {
            let pop = delivery.op;
            let pushes = delivery.messages.iter().filter(|m| m.attempt <= 1).filter_map(|m| pushed.get(&*m.key));
            let woke = pushes.filter(|push| push.broker != pop.broker && pop.invoked.at < push.invoked.at);
            if let Some(first) = woke.min_by_key(|push| push.done()) {
                let one = WakeUp { push: (first.invoked.at, first.done()), popped: pop.done() };
                let earliest = pops.entry(std::ptr::from_ref(pop)).or_insert(one);
                if one.push.1 < earliest.push.1 {
                    *earliest = one;
                }
            }
        }
    }
    pops.into_values().collect()
}

/// Faults of this name that struck.
fn struck(history: &History, fault: Fault) -> impl Iterator<Item = (&Op, Micros)> {
    history.ops.iter().filter_map(move |op| match (&op.call, &op.ended) {
        (Call::Fault { kind }, Some((end, End::Ok(_)))) if kind == fault.name() => Some((op, end.at)),
        _ => None,
    })
}

fn killed(history: &History) -> Vec<Duration> {
    let faults: Vec<(Micros, Micros)> = history.ops.iter().filter(|op| is_fault_but(op, &[])).map(lasted).collect();
    let alone = |from: Micros, to: Micros| faults.iter().filter(|fault| fault.0 <= to && from <= fault.1).count() == 1;
    let next = |kill: &Op| {
        let pushes = history.ops.iter().filter(|op| op.broker == kill.broker && kill.invoked.at < op.invoked.at);
        let accepted = pushes.filter(|op| match op.answer() {
            Some(Answer::Push(results)) => results.iter().any(|r| r.status == "queued" || r.status == "buffered"),
            _ => false,
        });
        accepted.map(Op::done).min()
    };
    let kills = struck(history, Fault::KillBroker).filter_map(|(kill, _)| Some((kill.invoked.at, next(kill)?)));
    kills.filter(|(from, to)| alone(*from, *to)).map(|(from, to)| Duration::from_micros(to - from)).collect()
}

/// Alone, and beside another fault.
fn rolling(history: &History) -> (Vec<Duration>, Vec<Duration>) {
    let others: Vec<&Op> = history.ops.iter().filter(|op| is_fault_but(op, &[Fault::RollingRestart])).collect();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for (fault, end) in struck(history, Fault::RollingRestart) {
        let meanwhile = history.ops.iter().filter(|op| (fault.invoked.at..end).contains(&op.invoked.at));
        let judged = meanwhile.filter(|op| {
            matches!(op.call, Call::Push { .. } | Call::Ack { .. } | Call::Transaction { .. }) && op.answer().is_some()
        });
        for op in judged {
            // What strikes beside a rolling restart is done to one broker, its clients or its links.
            let is_disturbed = others.iter().any(|other| other.broker == op.broker && overlap(other, op));
            let times = if is_disturbed { &mut beside } else { &mut alone };
            times.push(Duration::from_micros(op.done() - op.invoked.at));
        }
    }
    (alone, beside)
}

/// Whether this is a fault, and none of these.
pub fn is_fault_but(op: &Op, these: &[Fault]) -> bool {
    matches!(&op.call, Call::Fault { kind } if these.iter().all(|fault| fault.name() != kind))
}

/// Whether there is a moment at which both were in progress.
fn overlap(one: &Op, other: &Op) -> bool {
    let (one, other) = (lasted(one), lasted(other));
    one.0 <= other.1 && other.0 <= one.1
}

/// From its beginning to its end, which may not have come.
fn lasted(op: &Op) -> (Micros, Micros) {
    (op.invoked.at, op.ended.as_ref().map_or(Micros::MAX, |end| end.0.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Moment, PushItem, PushResult};

    fn op(broker: u8, call: Call, from: Micros, to: Micros, end: End) -> Op {
        let moment = |at| Moment { at, wall: 0 };
        Op { client: 0, broker, call, invoked: moment(from), ended: Some((moment(to), end)) }
    }

    fn push(broker: u8, from: Micros, to: Micros) -> Op {
        let item = PushItem { queue: "q".into(), partition: "p".into(), key: "k".into(), payload: "1".into() };
        let result = PushResult { status: "queued".into(), id: String::new(), offset: Some(0) };
        op(broker, Call::Push { items: vec![item] }, from, to, End::Ok(Answer::Push(vec![result])))
    }

    fn fault(fault: Fault, broker: u8, from: Micros, to: Micros) -> Op {
        op(broker, Call::Fault { kind: fault.name().into() }, from, to, End::Ok(Answer::Fault { hits: 1 }))
    }

    #[test]
    fn a_kill_lasts_until_its_own_broker_takes_a_push_again() {
        let ops = vec![
            push(0, 50, 400),
            fault(Fault::KillBroker, 0, 100, 300),
            push(1, 150, 160),
            push(0, 310, 500),
            push(0, 510, 520),
            // This one was not alone.
            fault(Fault::KillBroker, 0, 600, 700),
            fault(Fault::ResetClients, 0, 650, 660),
            push(0, 710, 720),
        ];
        let waits = killed(&History { ops, ..History::default() });
        assert_eq!(waits, [Duration::from_micros(400)]);
    }

    #[test]
    fn a_wake_up_counts_beside_others_when_a_fault_was_about() {
        let wake_up = WakeUp { push: (100, 110), popped: 150 };
        let disturbed = |from, to| {
            let ops = vec![push(0, 100, 110), fault(Fault::PauseBroker, 1, from, to)];
            wake_up.is_disturbed(&History { ops, ..History::default() })
        };
        assert_eq!(wake_up.wait(), Duration::from_micros(40));
        assert!(disturbed(90, 100) && disturbed(150, 160) && disturbed(120, 130));
        assert!(!disturbed(10, 99) && !disturbed(151, 900), "over before, or after");
    }

    #[test]
    fn only_what_is_asked_during_a_rolling_restart_counts() {
        let ops = vec![
            push(0, 50, 900),
            fault(Fault::RollingRestart, 0, 100, 300),
            push(1, 150, 190),
            // Its broker stood still meanwhile; the other one's clients did not feel it.
            fault(Fault::PauseBroker, 0, 200, 280),
            push(0, 199, 290),
            push(1, 210, 230),
            push(0, 301, 500),
        ];
        let us = |all: &[u64]| all.iter().map(|us| Duration::from_micros(*us)).collect::<Vec<_>>();
        assert_eq!(rolling(&History { ops, ..History::default() }), (us(&[40, 20]), us(&[91])));
    }
}
