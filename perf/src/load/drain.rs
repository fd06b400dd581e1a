//! What the queue owes the consumers, and whether a drained one has given it.

use super::{Connection, Load, Waiting};
use crate::scenario::{GroupsFrom, Kind};

impl Load<'_> {
    /// Deliveries that a queue drained to the end has made.
    pub(super) fn owed(&self) -> u64 {
        (self.pushed + self.waiting().0) * self.plan.scenario.deliveries().max(1)
    }

    /// What of the fill the consumers are to get, and the sum of its ids.
    pub(super) fn waiting(&self) -> (u64, u64) {
        match self.plan.scenario.groups_from {
            GroupsFrom::All => self.filled,
            GroupsFrom::New => (0, 0),
        }
    }

    /// Messages pushed by the clients and not yet popped by a group, on average.
    pub(super) fn backlog(&self) -> u64 {
        self.pushed.saturating_sub(self.popped / self.plan.scenario.deliveries().max(1))
    }

    /// Nothing is due or in flight except waiting pops, and consumers have it all.
    pub(super) fn drained(&self) -> bool {
        let quiet = |c: &Connection| matches!(c.waiting, Waiting::Nothing | Waiting::Pop);
        (self.period == 0 || self.due >= self.window.1)
            && self.connections.iter().all(quiet)
            && (self.plan.scenario.consumers == 0 || !self.plan.scenario.drain || self.popped >= self.owed())
    }

    /// What the drain must have brought: every answer, every due push, each message exactly once.
    pub(super) fn judge_drain(&mut self) {
        if self.tally.failures > 0 {
            return; // Already failed; what follows from it says nothing new.
        }
        let seconds = self.plan.drain.as_secs();
        let open = self.connections.iter().filter(|c| !matches!(c.waiting, Waiting::Nothing | Waiting::Pop)).count();
        if open > 0 {
            self.tally.fail(format!("{open} requests had no answer {seconds} s after the window"));
        }
        if self.period > 0 && self.due < self.window.1 {
            let unsent = (self.window.1 - self.due).div_ceil(self.period);
            self.tally.fail(format!("the rate was not kept: {unsent} pushes never went out"));
        }
        let s = self.plan.scenario;
        if s.kind == Kind::Parked || s.consumers == 0 || !s.drain {
            return;
        }
        let (owed, popped) = (self.owed(), self.popped);
        let sum = self.sent_sum.wrapping_add(self.waiting().1).wrapping_mul(s.deliveries());
        if popped < owed {
            self.tally
                .fail(format!("{} of {owed} messages were not delivered {seconds} s after the window", owed - popped));
        } else if popped > owed {
            self.tally.fail(format!("{owed} messages to deliver, {popped} delivered: some more than once"));
        } else if self.popped_sum != sum {
            self.tally.fail("as many messages delivered as pushed, but not the same ones".into());
        }
    }
}
