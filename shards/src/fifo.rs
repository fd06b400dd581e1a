//! Entries of a slab that wait for their turn: pop jobs in a group, cold calls for room.

use crate::slab::{Ref, Slab};
use std::collections::VecDeque;

/// First come first served. An entry that left the slab is not searched for: its reference counts for nothing, and no more such
/// references stay than others. So leaving takes two steps on average, however many wait.
#[derive(Debug, Default)]
pub struct Fifo {
    refs: VecDeque<Ref>,
    /// References whose entries are gone.
    gone: usize,
}

impl Fifo {
    pub(crate) fn len(&self) -> usize {
        self.refs.len() - self.gone
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, at: Ref) {
        self.refs.push_back(at);
    }

    pub(crate) fn take_first<T>(&mut self, slab: &Slab<T>) -> Option<Ref> {
        while let Some(at) = self.refs.pop_front() {
            if slab.get(at).is_some() {
                self.tidy(slab);
                return Some(at);
            }
            self.gone -= 1;
        }
        None
    }

    /// All of them, in order.
    pub(crate) fn take<T>(&mut self, slab: &Slab<T>) -> Vec<Ref> {
        self.gone = 0;
        std::mem::take(&mut self.refs).into_iter().filter(|at| slab.get(*at).is_some()).collect()
    }

    /// An entry that waited here left the slab.
    pub(crate) fn one_is_gone<T>(&mut self, slab: &Slab<T>) {
        self.gone += 1;
        self.tidy(slab);
    }

    fn tidy<T>(&mut self, slab: &Slab<T>) {
        if self.refs.len() < 2 * self.gone {
            self.refs.retain(|at| slab.get(*at).is_some());
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::looks;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push,
        /// The n-th of those that wait leaves.
        Leave(usize),
        TakeFirst,
        TakeAll,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Push),
            5 => any::<usize>().prop_map(Step::Leave),
            2 => Just(Step::TakeFirst),
            1 => Just(Step::TakeAll),
        ]
    }

    proptest! {
        /// Its twin searches for what leaves.
        #[test]
        fn those_that_are_left_come_in_their_order(steps in proptest::collection::vec(step(), 0..300)) {
            let (mut slab, mut fifo) = (Slab::default(), Fifo::default());
            let mut twin: Vec<Ref> = Vec::new();
            for step in steps {
                match step {
                    Step::Push => {
                        let at = slab.insert(());
                        fifo.push(at);
                        twin.push(at);
                    }
                    Step::Leave(n) if !twin.is_empty() => {
                        slab.remove(twin.remove(n % twin.len()));
                        fifo.one_is_gone(&slab);
                    }
                    Step::Leave(_) => {}
                    Step::TakeFirst => {
                        let first = (!twin.is_empty()).then(|| twin.remove(0));
                        prop_assert_eq!(fifo.take_first(&slab), first);
                        first.map(|at| slab.remove(at));
                    }
                    Step::TakeAll => {
                        prop_assert_eq!(&fifo.take(&slab), &twin);
                        twin.drain(..).for_each(|at| assert!(slab.remove(at).is_some()));
                    }
                }
                prop_assert_eq!((fifo.len(), fifo.is_empty()), (twin.len(), twin.is_empty()));
                prop_assert!(fifo.refs.len() <= 2 * twin.len(), "{} references for {}", fifo.refs.len(), twin.len());
            }
        }
    }

    #[test]
    fn leaving_takes_two_steps_however_many_wait() {
        const N: usize = 10_000;
        let (mut slab, mut fifo) = (Slab::default(), Fifo::default());
        let refs: Vec<Ref> = (0..N).map(|_| slab.insert(())).collect();
        refs.iter().for_each(|at| fifo.push(*at));
        let before = looks();
        for at in refs.into_iter().rev() {
            slab.remove(at);
            fifo.one_is_gone(&slab);
        }
        assert!(fifo.refs.is_empty());
        assert!(looks() - before <= 2 * N, "{}", looks() - before);
    }
}
