//! The verdicts of acks: each says what a cursor move did, or what a state that changed nothing allows. Source: data
//! plane 5.3 to 5.5; reliability C8, C9.

use crate::ack_model::{Assume, bit, judge};
use crate::coverage::Thing;
use crate::explain::either;
use crate::ledger::{Moment, Note};
use crate::oracle::{Ask, Oracle};
use queen_shards::command::{AckOutcome, AckSet, SetVerdict};
use queen_shards::ids::Offset;

impl Oracle {
    pub fn judge_ack(&mut self, now: Moment, index: usize, verdicts: &[SetVerdict]) {
        let Ask::Ack(sets) = &mut self.asks[index].ask else { unreachable!() };
        let sets = std::mem::take(sets);
        if sets.len() != verdicts.len() {
            self.fail(None, "an ack has another number of verdicts than sets");
        }
        for (i, (set, verdict)) in sets.iter().zip(verdicts).enumerate() {
            let what = format!("{verdict:?}");
            let note = Note::Answered { slot: self.asks[index].slot, broker: self.asks[index].at.0, what };
            self.ledger.note(now.t, set.partition, note);
            if verdict.items.len() != set.items.len() {
                self.fail(Some(set.partition), "an ack set has another number of outcomes than items");
            }
            if let Err(what) = self.judge_set(now, index, i, set, verdict) {
                self.fail(Some(set.partition), &format!("{what}: {} answered {verdict:?}", self.tell(set)));
            }
            self.count_outcomes(verdict);
        }
        self.asks[index].ask = Ask::Ack(sets);
    }

    fn judge_set(&self, now: Moment, index: usize, i: usize, set: &AckSet, verdict: &SetVerdict) -> Result<(), String> {
        let asked = &self.asks[index];
        let began = asked.delivered.expect("delivered");
        let disturbed = self.disturbed(asked.at, began.t);
        let all = |outcome| verdict.items.iter().all(|item| *item == outcome);
        if all(AckOutcome::StoreFailed) {
            return if disturbed { Ok(()) } else { Err("an ack failed without a fault".into()) };
        }
        let fits = |items: &[u16], released: Option<bool>, conflated: Option<u64>| {
            let closes = verdict.conflated.map(|conflated| conflated.messages);
            let names_one = verdict.conflated.is_none_or(|c| (c.item as usize) < verdict.items.len());
            let items = items.iter().zip(&verdict.items).all(|(allowed, item)| allowed & bit(*item) != 0);
            items && names_one && closes == conflated && released.is_none_or(|released| released == verdict.released)
        };
        let fates = &asked.fates[i];
        if fates.iter().any(|fate| fits(&fate.items, fate.released, fate.conflated)) {
            return Ok(());
        }
        let deleted = self.ledger.parts.get(&set.partition).is_some_and(|part| !part.alive);
        if deleted && (all(AckOutcome::ConsumerNotFound) || all(AckOutcome::NotOwned)) {
            return Ok(());
        }
        if !disturbed && let Some(fate) = fates.iter().find(|fate| fate.sure) {
            return Err(format!("the cursor was moved by it ({fate:?})"));
        }
        let tracks = self.ledger.tracks_of(set.partition, &set.group);
        let missing = tracks.iter().all(|track| track.since >= began.t || track.gone.is_some());
        if missing && (all(AckOutcome::ConsumerNotFound) || all(AckOutcome::NotOwned)) && !verdict.released {
            return Ok(());
        }
        if set.tenant != queen_shards::ids::TenantId::DEFAULT {
            let refused = all(AckOutcome::ConsumerNotFound) || all(AckOutcome::NotOwned);
            return if refused { Ok(()) } else { Err("an ack of another tenant is not refused".into()) };
        }
        let Some(part) = self.ledger.parts.get(&set.partition).filter(|_| !tracks.is_empty()) else {
            return Err("there is no such cursor".into());
        };
        let options = self.options(set.partition, began.t, now.t);
        for state in tracks.iter().flat_map(|track| track.states_since(began.t)) {
            for live in either(state.live(began.stamp), state.live(now.stamp)) {
                for forgotten in either(Offset(0), part.forgotten) {
                    for unreadable in either(Offset(0), part.log_start) {
                        for last_offset in self.log_ends(set.partition, set, began.t) {
                            let unsure = self.nearly_over(state, now.stamp);
                            let assume = Assume { live, unsure, last_offset, forgotten, unreadable };
                            for options in &options {
                                let judged = judge(state, part, set, options, assume);
                                if judged.next.is_none() && fits(&judged.items, judged.released, None) {
                                    return Ok(());
                                }
                            }
                        }
                    }
                }
            }
        }
        Err("neither a move of the cursor nor a state of it says so".into())
    }

    fn count_outcomes(&mut self, verdict: &SetVerdict) {
        for item in &verdict.items {
            let thing = match item {
                AckOutcome::Accepted | AckOutcome::DeadLettered => continue,
                AckOutcome::Noop => Thing::Noop,
                AckOutcome::AlreadyCommitted => Thing::AlreadyCommitted,
                AckOutcome::Unresolvable => Thing::Unresolvable,
                AckOutcome::InvalidLease => Thing::StaleLease,
                AckOutcome::ConsumerNotFound | AckOutcome::NotOwned => Thing::ConsumerNotFound,
                AckOutcome::DlqRejected | AckOutcome::StoreFailed => Thing::AckFailed,
            };
            self.hit(thing);
        }
    }
}
