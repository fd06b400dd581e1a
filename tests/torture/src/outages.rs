//! What producers were told while the database was away: how many pushes were `buffered`, how soon, how fast.

use crate::faults::Fault;
use crate::history::{Answer, Call, End, History, Micros, Op};
use std::time::Duration;

/// The goals of reliability 6, F2.
const SHARE_GOAL: f64 = 0.999;
const FIRST_GOAL: Duration = Duration::from_secs(2);

/// Outages of some episodes together. Items are those of pushes asked for while the database was away, the broker was
/// there and nothing else was wrong until their answer; what was refused for what it is counts nowhere.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    pub n: u64,
    pub buffered: u64,
    /// Answered `queued` or `duplicate`: the database came back first.
    pub stored: u64,
    pub failed: u64,
    pub unknown: u64,
    /// From the loss of the database until somebody was told `buffered`.
    pub first: Vec<Duration>,
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
        let others: Vec<(Micros, Micros)> = history.ops.iter().filter(|op| is_another_fault(op)).map(span).collect();
        let mut first: Option<Micros> = None;
        for push in history.ops.iter().filter(|op| op.broker == outage.broker) {
            let Call::Push { items } = &push.call else { continue };
            let buffered = |op: &Op| match op.answer() {
                Some(Answer::Push(results)) => results.iter().any(|result| result.status == "buffered"),
                _ => false,
            };
            if from < push.done() && push.done() != Micros::MAX && buffered(push) {
                first = Some(first.map_or(push.done(), |first| first.min(push.done())));
            }
            let (asked, told) = span(push);
            let is_disturbed = others.iter().any(|(began, undone)| *began <= told && asked <= *undone);
            if !(from..end).contains(&asked) || is_disturbed {
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
        self.first.extend(first.map(|first| Duration::from_micros(first - from)));
    }

    pub fn add(&mut self, more: Outages) {
        self.n += more.n;
        self.buffered += more.buffered;
        self.stored += more.stored;
        self.failed += more.failed;
        self.unknown += more.unknown;
        self.first.extend(more.first);
        self.took.extend(more.took);
    }

    /// As Markdown; nothing when the database was never away.
    pub fn text(&self) -> String {
        if self.n == 0 {
            return String::new();
        }
        let (mut first, mut took) = (self.first.clone(), self.took.clone());
        first.sort_unstable();
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
             because the database came back first.\n\n| | p50 ms | p99 ms | longest ms | goal |\n|---|--:|--:|--:|---|\n\
             | loss to the first `buffered` | {} | {} | {} | 2000: {} |\n\
             | a push that is `buffered` | {} | {} | {} | p99 50 after the first |\n",
            self.n,
            self.buffered,
            self.failed,
            self.unknown,
            share * 100.0,
            is(SHARE_GOAL <= share),
            self.stored,
            at(&first, 0.5).as_millis(),
            at(&first, 0.99).as_millis(),
            at(&first, 1.0).as_millis(),
            is(at(&first, 1.0) <= FIRST_GOAL),
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
    let outages = [Fault::KillPostmaster, Fault::ImmediateStop, Fault::LongOutage];
    matches!(&op.call, Call::Fault { kind } if outages.iter().all(|fault| fault.name() != kind))
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
}
