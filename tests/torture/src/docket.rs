//! Which fault is next: the one furthest behind its goal. Shared by the hands of a nemesis.

use crate::coverage::Counts;
use crate::faults::Fault;
use crate::rng::Rng;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// How far a fault that struck nothing goes back, in thousandths of its goal: the others are not kept waiting for it.
const MISS: u64 = 50;

#[derive(Debug, Default)]
pub struct Docket {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the run, by fault.
    hits: HashMap<Fault, u64>,
    /// Of this episode.
    misses: HashMap<Fault, u64>,
    /// Faults that strike now.
    open: u64,
    /// Faults that have begun.
    begun: u64,
}

/// A moment at which one fault alone was striking; see [`Docket::alone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alone(u64);

impl Docket {
    /// `so_far`: what the run has counted before.
    pub fn new(faults: &[Fault], so_far: &Counts) -> Docket {
        let hits = |fault: Fault| so_far.get(&format!("fault:{}", fault.name())).copied().unwrap_or(0);
        let hits = faults.iter().map(|fault| (*fault, hits(*fault))).collect();
        Docket { state: Mutex::new(State { hits, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Of some faults the one that is furthest behind; among equals one is drawn. `None`: there are none.
    pub fn next(&self, faults: &[Fault], rng: &mut Rng) -> Option<Fault> {
        let state = self.state();
        let behind = |fault: &Fault| {
            let of = |counts: &HashMap<Fault, u64>| counts.get(fault).copied().unwrap_or(0);
            of(&state.hits) * 1000 / fault.goal() + of(&state.misses) * MISS
        };
        let least = faults.iter().map(behind).min()?;
        let last: Vec<&Fault> = faults.iter().filter(|fault| behind(fault) == least).collect();
        Some(**rng.pick(&last))
    }

    pub fn begin(&self) {
        let mut state = self.state();
        state.open += 1;
        state.begun += 1;
    }

    pub fn end(&self, fault: Fault, hits: u64) {
        let mut state = self.state();
        state.open -= 1;
        *state.hits.entry(fault).or_default() += hits;
        *state.misses.entry(fault).or_default() += u64::from(hits == 0);
    }

    /// A witness that no fault but the caller's own strikes; it is the same later if none began meanwhile.
    pub fn alone(&self) -> Option<Alone> {
        let state = self.state();
        (state.open == 1).then_some(Alone(state.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_furthest_behind_its_goal_strikes_next() {
        let faults = [Fault::KillBroker, Fault::KillPostmaster];
        let so_far = Counts::from([("fault:kill-broker".to_owned(), 500), ("fault:kill-postmaster".to_owned(), 99)]);
        let docket = Docket::new(&faults, &so_far);
        let mut rng = Rng::new(1, 0);
        assert_eq!(docket.next(&faults, &mut rng), Some(Fault::KillPostmaster));
        docket.begin();
        docket.end(Fault::KillPostmaster, 2);
        assert_eq!(docket.next(&faults, &mut rng), Some(Fault::KillBroker));
        // What finds nothing to strike does not keep the other waiting for ever.
        docket.begin();
        docket.end(Fault::KillBroker, 0);
        assert_eq!(docket.next(&faults, &mut rng), Some(Fault::KillPostmaster));
        assert_eq!(docket.next(&[], &mut rng), None);
    }

    #[test]
    fn a_fault_is_alone_until_another_begins() {
        let docket = Docket::default();
        docket.begin();
        let alone = docket.alone();
        assert!(alone.is_some());
        assert_eq!(docket.alone(), alone);
        docket.begin();
        assert_eq!(docket.alone(), None);
        docket.end(Fault::KillBroker, 1);
        assert!(docket.alone().is_some() && docket.alone() != alone);
    }
}
