//! The way to the store and back: what a shard asks sets out as a ticket, is executed or lost, and its answer is told.
//!
//!     effect > dispatch (its fate is drawn) > execute at the store > the event that answers it, or none, or a late one
//!
//! Holds: a ticket is executed once at most. The owners of a bundle hear of it before its shard does, and the other shards of
//! a broker of a record that says conflation.

use super::{Due, World};
use crate::coverage::Thing;
use crate::explain::Candidate;
use crate::log;
use crate::oracle::At;
use queen_shards::bundle::{Bundle, LaneDecision};
use queen_shards::command::{Command, Event};
use queen_shards::effect::{Append, Call, CursorMove, CursorOutcome, GroupRow, Reply, StoreError};
use queen_shards::ids::{CallId, CommitId, Slot, TenantId};
use std::sync::Arc;

/// A store call on its way.
pub(super) struct Ticket {
    at: At,
    /// The store that it is meant for.
    on: u64,
    emitted: u64,
    ask: Asking,
}

pub(super) enum Asking {
    Append { commit: CommitId, append: Append },
    Move { commit: CommitId, moves: Vec<CursorMove>, candidates: Vec<Vec<Candidate>> },
    Call { call: CallId, ask: Call },
    Bundle { commit: CommitId, bundles: Vec<Arc<Bundle>>, candidates: Vec<Vec<Vec<Candidate>>> },
}

/// What becomes of the answer of a call.
pub(super) struct Ticketed {
    epoch: u64,
    ticket: Ticket,
    /// The answer, unless it was given (or lost) before.
    answers_in: Option<u64>,
    /// The answer is what the log says, which is not always all.
    settled: bool,
}

/// An answer of which other shards are being told first.
pub(super) struct Telling {
    pub(super) at: At,
    slots: Vec<Slot>,
    event: Event,
}

impl World {
    /// A store call sets out; its fate is drawn now.
    pub(super) fn dispatch(&mut self, at: At, ask: Asking) {
        let (low, high) = self.plan.latency;
        let epoch = self.brokers[at.0].epoch;
        let faults = if self.healed { Default::default() } else { self.plan.faults };
        let there = self.rng.range(low, high) / 2;
        let mut back = self.rng.range(low, high) / 2;
        let ticket = Ticket { at, on: self.believed[&at], emitted: self.t, ask };
        if self.t < self.outage_until || self.rng.chance(faults.unavailable) {
            self.oracle.hit(if self.t < self.outage_until { Thing::Outage } else { Thing::Unavailable });
            let event = answer(&ticket.ask, StoreError::Unavailable("simulated".into()));
            return self.later(there + back, Due::Deliver { at, epoch, event });
        }
        if self.rng.chance(faults.late) {
            self.oracle.hit(Thing::LateAnswer);
            back += self.rng.range(1_000, self.plan.late_us);
        }
        if !self.rng.chance(faults.unknown) {
            let number = self.made;
            self.tickets.insert(number, Ticketed { epoch, ticket, answers_in: Some(back), settled: false });
            return self.later(there, Due::Execute { ticket: number });
        }
        if matches!(ticket.ask, Asking::Move { .. } | Asking::Bundle { .. }) && self.rng.chance(300) {
            // No answer, but the log tells what became of most of it.
            self.oracle.hit(Thing::Settled);
            let number = self.made;
            back += self.rng.range(low, high);
            self.tickets.insert(number, Ticketed { epoch, ticket, answers_in: Some(back), settled: true });
            return self.later(there, Due::Execute { ticket: number });
        }
        // No answer: the store may have done it, may do it yet, or never heard of it.
        let event = answer(&ticket.ask, StoreError::Unknown("simulated".into()));
        let given_up = there + back + self.rng.range(0, 20_000);
        let executes = match self.rng.below(4) {
            0 => None,
            // What is done after it was given up, nobody is told: as if another broker had done it.
            1 if !self.oracle.solo => Some(given_up + self.rng.range(1, 1_500_000)),
            _ => Some(there),
        };
        self.oracle.hit(match executes {
            None => Thing::UnknownNotApplied,
            Some(when) if when > given_up => Thing::UnknownAppliedLate,
            Some(_) => Thing::UnknownApplied,
        });
        if let Some(when) = executes {
            let number = self.made;
            self.tickets.insert(number, Ticketed { epoch, ticket, answers_in: None, settled: false });
            self.later(when, Due::Execute { ticket: number });
        }
        self.later(given_up, Due::Deliver { at, epoch, event });
    }

    /// The store does what a ticket asks.
    pub(super) fn execute(&mut self, number: u64) {
        let Ticketed { epoch, ticket, answers_in, settled } = self.tickets.remove(&number).expect("executed once");
        let Ticket { at, on, emitted, ask } = ticket;
        let now = self.moment();
        if on != self.store_number {
            self.oracle.hit(Thing::RefusedByOther);
            let event = answer(&ask, StoreError::Unavailable("simulated: another store".into()));
            if let Some(after) = answers_in {
                self.later(after, Due::Deliver { at, epoch, event });
            }
            return;
        }
        let event = match ask {
            Asking::Append { commit, append } => {
                let result = self.store.append(now.stamp, &mut self.rng, &append);
                if result.is_ok() {
                    self.store.log((at.0, epoch), append.lanes.iter().map(|lane| lane.partition).collect(), Vec::new());
                }
                match &result {
                    Ok(outcome) => self.oracle.appended(now, at, emitted, &append, outcome),
                    Err(_) => self.oracle.hit(Thing::Poison),
                }
                Event::Appended { commit, result }
            }
            Asking::Move { commit, moves, candidates } => {
                let mut outcome = self.store.moves(now.stamp, &mut self.rng, &moves);
                self.store.log((at.0, epoch), Vec::new(), log::freed(&moves));
                if answers_in.is_none() {
                    // Its own broker does not hear what became of it.
                    self.oracle.untold.extend(moves.iter().map(|one| (one.partition, one.group)));
                }
                self.oracle.moved(now, at, candidates, &moves, &outcome.moves);
                for (one, told) in moves.iter().zip(&mut outcome.moves).filter(|_| settled) {
                    if self.rng.chance(300) {
                        self.oracle.untold.insert((one.partition, one.group));
                        self.oracle.faults.insert(at, now.t + answers_in.unwrap_or(0));
                        *told = CursorOutcome::Unknown;
                    }
                }
                Event::Moved { commit, result: Ok(outcome) }
            }
            Asking::Bundle { commit, bundles, candidates } => {
                let mut result = self.store.bundle(now.stamp, &mut self.rng, &bundles);
                if let Ok(outcome) = &result {
                    let lanes = outcome.bundles.iter().flat_map(|one| &one.lanes).filter_map(|lane| match lane {
                        LaneDecision::Holds { partition, .. } => Some(*partition),
                        _ => None,
                    });
                    let moves = bundles.iter().flat_map(|bundle| &bundle.moves);
                    self.store.log((at.0, epoch), lanes.collect(), log::freed(moves));
                }
                if answers_in.is_none() {
                    let moves = bundles.iter().flat_map(|bundle| &bundle.moves);
                    self.oracle.untold.extend(moves.map(|one| (one.partition, one.group)));
                }
                self.oracle.ledger.learn(now.t, &mut self.store);
                match &result {
                    Ok(outcome) => self.oracle.bundled(now, at, emitted, &bundles, candidates, outcome),
                    Err(_) => self.oracle.hit(Thing::Poison),
                }
                if let (true, Ok(outcome)) = (settled, &mut result) {
                    for (bundle, decision) in bundles.iter().zip(&mut outcome.bundles) {
                        if self.rng.chance(300) {
                            let touched = bundle.moves.iter().map(|one| (one.partition, one.group));
                            self.oracle.untold.extend(touched);
                            decision.unknown = true;
                        }
                    }
                }
                Event::Bundled { commit, result }
            }
            Asking::Call { call, ask } => {
                let reply = self.store.call(now.stamp, &mut self.rng, &ask);
                self.oracle.ledger.learn(now.t, &mut self.store);
                self.count_call(&ask, &reply);
                Event::Returned { call, result: Ok(reply) }
            }
        };
        if let Some(after) = answers_in {
            self.later(after, Due::Deliver { at, epoch, event });
        }
    }

    fn count_call(&mut self, ask: &Call, reply: &Reply) {
        match (ask, reply) {
            (Call::ReadKeys { partition, .. }, Reply::Keys { rows, complete, .. }) => {
                self.oracle.hit(Thing::WindowReload);
                if !complete {
                    self.oracle.hit(Thing::KeysPaged);
                }
                if rows.iter().any(|row| self.store.evidence.contains_key(&(*partition, row.base))) {
                    self.oracle.hit(Thing::EvidenceRead);
                }
            }
            (Call::Provision { .. }, Reply::Lanes(rows)) if rows.contains(&None) => {
                self.oracle.hit(Thing::PartitionLost);
            }
            (Call::ReadRecords { .. }, _) => self.oracle.hit(Thing::RecordsRead),
            (Call::ReadNewest { .. }, _) => self.oracle.hit(Thing::NewestRead),
            (Call::SealRun { .. }, _) => self.oracle.hit(Thing::Sealed),
            (Call::DropRuns { .. }, _) => self.oracle.hit(Thing::RunsDropped),
            (_, Reply::Runs { runs, .. }) if !runs.is_empty() => self.oracle.hit(Thing::RunsLoaded),
            (_, Reply::RunRows(rows)) if rows.iter().any(Option::is_none) => self.oracle.hit(Thing::RunGone),
            (_, Reply::RunRows(_)) => self.oracle.hit(Thing::RunRowsRead),
            _ => {}
        }
    }

    /// The other shards of a broker hear of a record that says conflation before the one that registered the group.
    pub(super) fn tell_of_record(&mut self, at: At, call: CallId, row: GroupRow) {
        let mut told = Vec::new();
        if let Some(group) = self.store.groups.get(&row.group) {
            let queue = &self.store.queues[&group.queue].name;
            for shard in (0..self.plan.brokers[at.0]).filter(|shard| *shard != at.1) {
                let (tenant, queue, group) = (TenantId::DEFAULT, Some(queue.clone()), group.name.clone());
                told.push((shard, Command::GroupChanged { tenant, queue, group }));
            }
        }
        let event = Event::Returned { call, result: Ok(Reply::Group(Some(GroupRow { made: false, ..row }))) };
        if told.is_empty() {
            return self.take(at, event);
        }
        self.oracle.hit(Thing::ConflationTold);
        self.tell_shards_of(at, told, event);
    }

    /// Shards of a broker hear of something before the one that is to take `event`: of a bundle commit its owners.
    pub(super) fn tell_shards_of(&mut self, at: At, told: Vec<(usize, Command)>, event: Event) {
        let mut slots = Vec::new();
        for (shard, command) in told {
            self.shared.slots += 1;
            let slot = Slot::new(at.1, self.shared.slots);
            let (to, now, epoch) = ((at.0, shard), self.moment(), self.brokers[at.0].epoch);
            self.oracle.sent(now, to, slot, &command);
            let after = self.rng.range(5, 400);
            self.later(after, Due::Deliver { at: to, epoch, event: Event::Command { slot, command } });
            slots.push(slot);
        }
        self.telling.push(Telling { at, slots, event });
    }

    /// An owner has heard. Whether the slot was one of ours.
    pub(super) fn heard(&mut self, slot: Slot) -> bool {
        let Some(i) = self.telling.iter().position(|telling| telling.slots.contains(&slot)) else { return false };
        self.telling[i].slots.retain(|open| *open != slot);
        if self.telling[i].slots.is_empty() {
            let Telling { at, event, .. } = self.telling.remove(i);
            let (epoch, after) = (self.brokers[at.0].epoch, self.rng.range(5, 200));
            self.later(after, Due::Deliver { at, epoch, event });
        }
        true
    }
}

fn answer(ask: &Asking, error: StoreError) -> Event {
    match ask {
        Asking::Append { commit, .. } => Event::Appended { commit: *commit, result: Err(error) },
        Asking::Move { commit, .. } => Event::Moved { commit: *commit, result: Err(error) },
        Asking::Bundle { commit, .. } => Event::Bundled { commit: *commit, result: Err(error) },
        Asking::Call { call, .. } => Event::Returned { call: *call, result: Err(error) },
    }
}
