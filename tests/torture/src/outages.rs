//! What producers were told while the database was away: how many pushes were `buffered`, how soon, how fast.

use crate::faults::Fault;
use crate::history::{Answer, Call, End, History, Micros, Op};
use crate::waits::is_fault_but;
use std::time::Duration;

/// The goals of reliability 6, F2.
const SHARE_GOAL: f64 = 0.999;
const FIRST_GOAL: Duration = Duration::from_secs(2);

/// Outages of some episodes together. Items are those of pushes asked for while the database was away, the broker was
/// there and nothing else was wrong with it until their answer; what was refused for what it is counts nowhere.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    pub n: u64,
    pub buffered: u64,
    /// Answered `queued` or `duplicate`: the database came back first.
    pub stored: u64,
    pub failed: u64,
    pub unknown: u64,
    /// From the loss of the database until somebody was told `buffered`, where nothing else was wrong until then. An outage
    /// that nobody was told of before somebody was told `queued` again has no such time.
    pub first: Vec<Duration>,
    /// The same, where another fault struck that broker, its clients or its links meanwhile.
    pub first_beside: Vec<Duration>,
    /// Of the requests that were answered `buffered`.
    pub took: Vec<Duration>,
}

impl Outages {
    pub fn of(history: &History) -> Outages {
        let mut all = Outages::default();
        let away = history.ops.iter().filter(|op| matches!(op.call, Call::Away));
        for outage in away {
            let Some((end, _)) = &outage.ended else { continue };
            all.n += 1;
            all.take_one(history, outage, end.at);
        }
        all
    }

    fn take_one(&mut self, history: &History, outage: &Op, end: Micros) {
        let from = outage.invoked.at;
        let others = history.ops.iter().filter(|op| op.broker == outage.broker && is_another_fault(op));
        let others: Vec<(Micros, Micros)> = others.map(span).collect();
        let disturbs = |from: Micros, to: Micros| others.iter().any(|(began, undone)| *began <= to && from <= *undone);
        // The first `buffered` answer, and the first sign that the database was back.
        let (mut first, mut back) = (Micros::MAX, Micros::MAX);
        for push in history.ops.iter().filter(|op| op.broker == outage.broker) {
            let Call::Push { items } = &push.call else { continue };
            let is_any = |op: &Op, status: &str| match op.answer() {
                Some(Answer::Push(results)) => results.iter().any(|result| result.status == status),
                _ => false,
            };
            let buffered = |op: &Op| is_any(op, "buffered");
            if from < push.done() && buffered(push) {
                first = first.min(push.done());
            }
            if from < push.invoked.at && is_any(push, "queued") {
                back = back.min(push.done());
            }
            let (asked, told) = span(push);
            if !(from..end).contains(&asked) || disturbs(asked, told) {
                continue;
            }
            match &push.ended {
                Some((_, End::Ok(Answer::Push(results)))) => {
                    for result in results {
                        match &*result.status {
                            "buffered" => self.buffered += 1,
                            "queued" | "duplicate" => self.stored += 1,
                            "failed" => self.failed += 1,
                            _ => {}
                        }
                    }
                    if buffered(push) {
                        self.took.push(Duration::from_micros(push.done() - push.invoked.at));
                    }
                }
                Some((_, End::Fail(_))) => {}
                _ => self.unknown += items.len() as u64,
            }
        }
        if first < back {
            let firsts = if disturbs(from, first) { &mut self.first_beside } else { &mut self.first };
            firsts.push(Duration::from_micros(first - from));
        }
    }

    pub fn add(&mut self, more: Outages) {
        self.n += more.n;
        self.buffered += more.buffered;
        self.stored += more.stored;
        self.failed += more.failed;
        self.unknown += more.unknown;
        self.first.extend(more.first);
        self.first_beside.extend(more.first_beside);
        self.took.extend(more.took);
    }

    /// As Markdown; nothing when the database was never away.
    pub fn text(&self) -> String {
        if self.n == 0 {
            return String::new();
        }
        let (mut first, mut beside, mut took) = (self.first.clone(), self.first_beside.clone(), self.took.clone());
        first.sort_unstable();
        beside.sort_unstable();
        took.sort_unstable();
        let at = |times: &[Duration], share: f64| {
            let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times.get(at).copied().unwrap_or_default()
        };
        let share = self.buffered as f64 / (self.buffered + self.failed + self.unknown).max(1) as f64;
        let is = |met: bool| if met { "met" } else { "MISSED" };
        format!(
            "## Outages\n\n{} times the database was away and the broker was left alone. Of the items pushed meanwhile, with nothing else wrong, \
             {} were `buffered`, {} failed, {} got no answer: {:.3} % `buffered` (goal 99.9: {}); {} more were stored, \
             because the database came back first.\n\n| | n | p50 ms | p99 ms | longest ms | goal |\n|---|--:|--:|--:|--:|---|\n\
             | loss to the first `buffered`, nothing else wrong | {} | {} | {} | {} | 2000: {} |\n\
             | the same, other faults meanwhile | {} | {} | {} | {} | |\n\
             | a push that is `buffered` | {} | {} | {} | {} | p99 50 after the first |\n",
            self.n,
            self.buffered,
            self.failed,
            self.unknown,
            share * 100.0,
            is(SHARE_GOAL <= share),
            self.stored,
            first.len(),
            at(&first, 0.5).as_millis(),
            at(&first, 0.99).as_millis(),
            at(&first, 1.0).as_millis(),
            if first.is_empty() { "not measured" } else { is(at(&first, 1.0) <= FIRST_GOAL) },
            beside.len(),
            at(&beside, 0.5).as_millis(),
            at(&beside, 0.99).as_millis(),
            at(&beside, 1.0).as_millis(),
            took.len(),
            at(&took, 0.5).as_millis(),
            at(&took, 0.99).as_millis(),
            at(&took, 1.0).as_millis(),
        )
    }
}

fn span(op: &Op) -> (Micros, Micros) {
    (op.invoked.at, op.ended.as_ref().map_or(Micros::MAX, |end| end.0.at))
}

/// Anything but the loss of PostgreSQL.
fn is_another_fault(op: &Op) -> bool {
    is_fault_but(op, &[Fault::KillPostmaster, Fault::ImmediateStop, Fault::LongOutage])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Moment, PushItem, PushResult};

    fn op(call: Call, from: Micros, to: Micros, end: End) -> Op {
        let moment = |at| Moment { at, wall: 0 };
        Op { client: 0, broker: 0, call, invoked: moment(from), ended: Some((moment(to), end)) }
    }

    fn push(from: Micros, to: Micros, status: &str) -> Op {
        let item = PushItem { queue: "q".into(), partition: "p".into(), key: "k".into(), payload: "1".into() };
        let result = PushResult { status: status.into(), id: String::new(), offset: None };
        op(Call::Push { items: vec![item] }, from, to, End::Ok(Answer::Push(vec![result])))
    }

    #[test]
    fn pushes_of_an_outage_are_counted_by_their_word() {
        let ops = vec![
            push(0, 90, "queued"),
            op(Call::Away, 100, 1_000_000, End::Ok(Answer::Fault { hits: 1 })),
            // In flight when the database went: the first to be told, not one of those asked for meanwhile.
            push(50, 300_100, "buffered"),
            push(200_000, 500_000, "buffered"),
            push(300_000, 500_000, "failed"),
            push(999_999, 1_200_000, "queued"),
            push(1_000_001, 1_200_000, "queued"),
            push(400_000, 500_000, "error"),
            // Its connection was reset as well.
            op(Call::Fault { kind: "reset-clients".into() }, 700_000, 720_000, End::Ok(Answer::Fault { hits: 1 })),
            push(690_000, 710_000, "failed"),
        ];
        let all = Outages::of(&History { ops, ..History::default() });
        assert_eq!((all.n, all.buffered, all.failed, all.stored, all.unknown), (1, 1, 1, 1, 0));
        assert_eq!(all.first, [Duration::from_millis(300)]);
        assert_eq!(all.took, [Duration::from_millis(300)]);
        assert!(all.text().contains("50.000 % `buffered` (goal 99.9: MISSED)"), "{}", all.text());
    }

    #[test]
    fn the_first_buffered_answer_is_of_its_own_outage_and_nothing_else() {
        let away = |from: Micros| op(Call::Away, from, from + 50_000, End::Ok(Answer::Fault { hits: 1 }));
        let ops = vec![
            // Back before anybody was told: what the next outage says is not of this one.
            away(100_000),
            push(200_000, 210_000, "queued"),
            away(1_000_000),
            push(1_010_000, 1_030_000, "buffered"),
            push(1_900_000, 1_910_000, "queued"),
            // The clients stood still, for longer than the database was away.
            op(Call::Fault { kind: "pause-clients".into() }, 1_950_000, 6_000_000, End::Ok(Answer::Fault { hits: 1 })),
            away(2_000_000),
            push(1_999_000, 6_000_500, "buffered"),
        ];
        let all = Outages::of(&History { ops, ..History::default() });
        assert_eq!(all.n, 3);
        assert_eq!(all.first, [Duration::from_millis(30)]);
        assert_eq!(all.first_beside, [Duration::from_micros(4_000_500)]);
    }
}
