//! The history sorted by what the rules look at: per partition, what was pushed, stored, delivered and settled.

use crate::history::{
    AckItem, AckResult, Answer, Call, DeadLetter, Delivered, End, FinalLane, GroupPlan, History, Micros, Op, PushItem,
    PushResult, QueuePlan, Word,
};
use std::collections::{BTreeMap, HashMap};

/// (queue, partition).
pub type LaneName<'a> = (&'a str, &'a str);

/// One item of one push or transaction.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub op: &'a Op,
    pub item: &'a PushItem,
    pub fate: Fate<'a>,
}

/// What a producer was told of an item.
#[derive(Clone, Copy, Debug)]
pub enum Fate<'a> {
    /// An answer for this item.
    Told(&'a PushResult),
    /// It committed with a transaction.
    Committed,
    /// The whole request was refused, or nothing was sent.
    Refused,
    Unknown,
}

impl Attempt<'_> {
    /// The word of the answer, if there is one.
    pub fn status(&self) -> Option<&str> {
        match self.fate {
            Fate::Told(result) => Some(&result.status),
            _ => None,
        }
    }

    pub fn is_accepted(&self) -> bool {
        matches!(self.status(), Some("queued" | "duplicate" | "buffered")) || matches!(self.fate, Fate::Committed)
    }

    /// Whether it may have been stored by what the producer knows; `failed` may have been, if its commit was sent.
    pub fn may_be_stored(&self) -> bool {
        !matches!(self.fate, Fate::Refused) && self.status() != Some("error")
    }
}

/// What one pop brought of one partition.
#[derive(Clone, Debug)]
pub struct Delivery<'a> {
    pub op: &'a Op,
    pub lease: &'a str,
    pub lease_secs: u64,
    pub messages: Vec<&'a Delivered>,
}

impl Delivery<'_> {
    pub fn first(&self) -> i64 {
        self.messages[0].offset
    }

    pub fn last(&self) -> i64 {
        self.messages[self.messages.len() - 1].offset
    }
}

/// One ack set of one (partition, group): of an ack call or of a transaction.
#[derive(Clone, Debug)]
pub struct Settle<'a> {
    pub op: &'a Op,
    pub lease: &'a str,
    pub items: Vec<&'a AckItem>,
    pub said: Said<'a>,
    pub in_transaction: bool,
}

#[derive(Clone, Debug)]
pub enum Said<'a> {
    /// One per item.
    Results(Vec<&'a AckResult>),
    /// The transaction committed.
    Committed,
    /// Known to have changed nothing.
    Refused,
    Unknown,
}

impl Settle<'_> {
    /// Lowest item that is not completed; at one offset the gravest word counts.
    pub fn signal(&self) -> Option<&AckItem> {
        let grave = |word| match word {
            Word::Dlq => 0,
            Word::Failed => 1,
            _ => 2,
        };
        let signals = self.items.iter().filter(|item| item.word != Word::Completed);
        signals.min_by_key(|item| (item.offset, grave(item.word))).copied()
    }

    /// Highest completed item below the signal.
    pub fn completed(&self) -> Option<i64> {
        let below = self.signal().map_or(i64::MAX, |item| item.offset);
        let completed = self.items.iter().filter(|item| item.word == Word::Completed && item.offset < below);
        completed.map(|item| item.offset).max()
    }

    /// The set was accepted, as far as its items could be.
    pub fn is_true(&self) -> bool {
        match &self.said {
            Said::Results(results) => results.iter().any(|result| result.success && !result.noop),
            Said::Committed => true,
            Said::Refused | Said::Unknown => false,
        }
    }

    pub fn is_unknown(&self) -> bool {
        match &self.said {
            Said::Unknown => true,
            // "ack flush failed": the store's answer did not come, so the move may have been made.
            Said::Results(results) => results.iter().any(|r| is_store_failure(r)),
            Said::Committed | Said::Refused => false,
        }
    }

    /// Whether the signalled item was answered as dead-lettered.
    pub fn is_dead_lettered(&self) -> bool {
        matches!(&self.said, Said::Results(results) if results.iter().any(|result| result.dlq))
    }

    /// How far the cursor is for certain (`true`) or at most, after this set.
    pub fn moves_to(&self, certain: bool) -> Option<i64> {
        if !(self.is_true() || !certain && self.is_unknown()) {
            return None;
        }
        let signal = self.signal();
        let dead = signal.filter(|item| match certain {
            true => self.is_dead_lettered(),
            false => matches!(item.word, Word::Failed | Word::Dlq) && (self.is_unknown() || self.is_dead_lettered()),
        });
        dead.map(|item| item.offset).or(self.completed())
    }
}

fn is_store_failure(result: &AckResult) -> bool {
    !result.success && result.error.as_deref().is_some_and(|e| e == "pool" || e.starts_with("ack flush failed"))
}

#[derive(Debug, Default)]
pub struct GroupView<'a> {
    /// By the time the answer came.
    pub deliveries: Vec<Delivery<'a>>,
    /// By the time they were asked.
    pub settles: Vec<Settle<'a>>,
    /// Pops of this group on this queue that nobody knows the end of.
    pub lost_pops: Vec<&'a Op>,
}

#[derive(Debug, Default)]
pub struct LaneView<'a> {
    pub attempts: Vec<Attempt<'a>>,
    pub last: Option<&'a FinalLane>,
    pub groups: BTreeMap<&'a str, GroupView<'a>>,
    pub dead_letters: Vec<&'a DeadLetter>,
}

impl<'a> LaneView<'a> {
    /// Attempts by key, each list in order of asking.
    pub fn by_key(&self) -> HashMap<&'a str, Vec<&Attempt<'a>>> {
        let mut keys: HashMap<&str, Vec<&Attempt>> = HashMap::new();
        for attempt in &self.attempts {
            keys.entry(&attempt.item.key).or_default().push(attempt);
        }
        keys
    }

    pub fn log_start(&self) -> i64 {
        self.last.map_or(0, |lane| lane.log_start)
    }
}

pub struct View<'a> {
    pub history: &'a History,
    pub lanes: BTreeMap<LaneName<'a>, LaneView<'a>>,
    /// Extensions asked for, by lease.
    pub extends: HashMap<&'a str, Vec<&'a Op>>,
    /// From-to of each fault, and from the start of each to the end of the next, as one list in order.
    pub faults: Vec<(Micros, Micros)>,
}

impl<'a> View<'a> {
    pub fn of(history: &'a History) -> View<'a> {
        let mut view = View { history, lanes: BTreeMap::new(), extends: HashMap::new(), faults: Vec::new() };
        for lane in &history.finals.lanes {
            view.lane(&lane.queue, &lane.partition).last = Some(lane);
        }
        for letter in &history.finals.dead_letters {
            view.lane(&letter.queue, &letter.partition).dead_letters.push(letter);
        }
        let mut lost: Vec<(&str, &str, &Op)> = Vec::new();
        for op in &history.ops {
            match &op.call {
                Call::Push { items } => view.push(op, items),
                Call::Pop { queue, group, lease_secs, .. } => match op.answer() {
                    Some(Answer::Pop { lease, messages }) => view.pop(op, queue, group, lease, *lease_secs, messages),
                    _ if op.is_unknown() => lost.push((queue, group, op)),
                    _ => {}
                },
                Call::Ack { queue, group, lease, items } => view.ack(op, queue, group, lease, items),
                Call::Transaction { queue, group, lease, inputs, outputs } => {
                    view.transaction(op, queue, group, lease, inputs, outputs);
                }
                Call::Extend { lease, .. } => view.extends.entry(lease).or_default().push(op),
                Call::Away => {}
                Call::Fault { .. } => view.faults.push((op.invoked.at, op.ended.as_ref().map_or(u64::MAX, |e| e.0.at))),
            }
        }
        for ((queue, _), lane) in &mut view.lanes {
            for (name, group) in &mut lane.groups {
                let own = lost.iter().filter(|(q, g, _)| q == queue && g == name).map(|(_, _, op)| *op);
                group.lost_pops.extend(own);
                group.deliveries.sort_by_key(|delivery| delivery.op.done());
            }
        }
        view
    }

    fn lane(&mut self, queue: &'a str, partition: &'a str) -> &mut LaneView<'a> {
        self.lanes.entry((queue, partition)).or_default()
    }

    fn push(&mut self, op: &'a Op, items: &'a [PushItem]) {
        for (i, item) in items.iter().enumerate() {
            let fate = match &op.ended {
                Some((_, End::Ok(Answer::Push(results)))) => results.get(i).map_or(Fate::Unknown, Fate::Told),
                Some((_, End::Fail(_))) => Fate::Refused,
                _ => Fate::Unknown,
            };
            self.lane(&item.queue, &item.partition).attempts.push(Attempt { op, item, fate });
        }
    }

    fn pop(&mut self, op: &'a Op, queue: &'a str, group: &'a str, lease: &'a str, secs: u64, all: &'a [Delivered]) {
        for messages in all.chunk_by(|a, b| a.partition == b.partition) {
            let delivery = Delivery { op, lease, lease_secs: secs, messages: messages.iter().collect() };
            let lane = self.lane(queue, &messages[0].partition);
            lane.groups.entry(group).or_default().deliveries.push(delivery);
        }
    }

    fn settle(&mut self, queue: &'a str, group: &'a str, settle: Settle<'a>) {
        let lane = self.lane(queue, &settle.items[0].partition);
        lane.groups.entry(group).or_default().settles.push(settle);
    }

    fn ack(&mut self, op: &'a Op, queue: &'a str, group: &'a str, lease: &'a str, items: &'a [AckItem]) {
        let mut sets: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, item) in items.iter().enumerate() {
            sets.entry(&item.partition).or_default().push(i);
        }
        for indexes in sets.into_values() {
            let said = match &op.ended {
                Some((_, End::Ok(Answer::Ack(results)))) if results.len() == items.len() => {
                    Said::Results(indexes.iter().map(|&i| &results[i]).collect())
                }
                Some((_, End::Fail(_))) => Said::Refused,
                _ => Said::Unknown,
            };
            let items = indexes.iter().map(|&i| &items[i]).collect();
            self.settle(queue, group, Settle { op, lease, items, said, in_transaction: false });
        }
    }

    fn transaction(
        &mut self,
        op: &'a Op,
        queue: &'a str,
        group: &'a str,
        lease: &'a str,
        inputs: &'a [AckItem],
        outputs: &'a [PushItem],
    ) {
        let (said, fate) = match &op.ended {
            Some((_, End::Ok(Answer::Transaction { success: true, .. }))) => (Said::Committed, Fate::Committed),
            Some((_, End::Ok(_) | End::Fail(_))) => (Said::Refused, Fate::Refused),
            _ => (Said::Unknown, Fate::Unknown),
        };
        for item in outputs {
            self.lane(&item.queue, &item.partition).attempts.push(Attempt { op, item, fate });
        }
        let mut sets: BTreeMap<&str, Vec<&AckItem>> = BTreeMap::new();
        for item in inputs {
            sets.entry(&item.partition).or_default().push(item);
        }
        for items in sets.into_values() {
            self.settle(queue, group, Settle { op, lease, items, said: said.clone(), in_transaction: true });
        }
    }

    pub fn queue(&self, name: &str) -> Option<&'a QueuePlan> {
        self.history.plan.queues.iter().find(|queue| queue.name == name)
    }

    pub fn group(&self, queue: &str, name: &str) -> Option<&'a GroupPlan> {
        self.queue(queue)?.groups.iter().find(|group| group.name == name)
    }

    /// Whether a fault was on, or had been shortly before, while this operation was open.
    pub fn is_disturbed(&self, op: &Op) -> bool {
        let end = op.ended.as_ref().map_or(u64::MAX, |e| e.0.at);
        self.faults.iter().any(|&(from, to)| from <= end && op.invoked.at <= to.saturating_add(AFTERMATH))
    }
}

/// What a fault may still spoil after it ended: the broker notices and reconnects within this.
const AFTERMATH: Micros = 15_000_000;
