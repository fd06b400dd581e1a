//! Pop jobs that wait in a group: for its opening, its scan or a seeding.

use crate::claim::PopJob;
use crate::slab::{Ref, Slab};
use std::collections::VecDeque;

/// First come first served. A job that is gone is not searched for: its entry counts for nothing, and no more such entries stay
/// than others.
#[derive(Debug, Default)]
pub struct Line {
    jobs: VecDeque<Ref>,
    /// Entries whose jobs are gone.
    gone: usize,
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.jobs.len() - self.gone
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, job: Ref) {
        self.jobs.push_back(job);
    }

    pub(crate) fn take_first(&mut self, pops: &Slab<PopJob>) -> Option<Ref> {
        while let Some(job) = self.jobs.pop_front() {
            if pops.get(job).is_some() {
                return Some(job);
            }
            self.gone -= 1;
        }
        None
    }

    /// All of them, in order.
    pub(crate) fn take(&mut self, pops: &Slab<PopJob>) -> Vec<Ref> {
        self.gone = 0;
        std::mem::take(&mut self.jobs).into_iter().filter(|job| pops.get(*job).is_some()).collect()
    }

    /// A job that waited here was removed.
    pub(crate) fn one_is_gone(&mut self, pops: &Slab<PopJob>) {
        self.gone += 1;
        if self.jobs.len() < 2 * self.gone {
            self.jobs.retain(|job| pops.get(*job).is_some());
            self.gone = 0;
        }
    }
}
