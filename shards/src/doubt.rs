//! Which of a lane's drafts the store refuses: what was in a refused commit goes by itself, in halves, until one is refused alone.
//! Pure.

/// The drafts in front of a lane of which one may be refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    drafts: usize,
    next: usize,
}

impl Doubt {
    pub fn is_any(self) -> bool {
        0 < self.drafts
    }

    /// How many of them go next, by themselves.
    pub fn next(self) -> usize {
        self.next
    }

    /// A commit with so many drafts of the lane was refused; `alone`: there was nothing else in it. True: the one draft in it is
    /// what is refused, for the second time.
    pub fn refused(&mut self, drafts: usize, alone: bool) -> bool {
        let found = self.is_any() && alone && drafts == 1;
        let next = if alone { drafts.div_ceil(2) } else { drafts };
        *self = Doubt { drafts, next };
        found
    }

    /// Only so many are left in front: those behind them went elsewhere.
    pub fn cut(&mut self, drafts: usize) {
        *self = Doubt { drafts: self.drafts.min(drafts), next: self.next.min(drafts) };
    }

    /// So many were stored, or taken out.
    pub fn passed(&mut self, drafts: usize) {
        self.drafts = self.drafts.saturating_sub(drafts);
        self.next = self.drafts.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bad drafts anywhere among good ones: all of them are found and nothing else, in order, with few commits.
        #[test]
        fn each_bad_draft_is_found_in_few_commits(bad in proptest::collection::vec(proptest::bool::weighted(0.05), 1..300)) {
            let (mut doubt, mut at, mut commits, mut found) = (Doubt::default(), 0, 0, Vec::new());
            while at < bad.len() {
                let take = if doubt.is_any() { doubt.next() } else { bad.len() };
                let some = &bad[at..bad.len().min(at + take)];
                prop_assert!(!some.is_empty());
                commits += 1;
                if !some.contains(&true) {
                    doubt.passed(some.len());
                    at += some.len();
                } else if doubt.refused(some.len(), true) {
                    found.push(at);
                    doubt.passed(1);
                    at += 1;
                }
            }
            let want: Vec<usize> = (0..bad.len()).filter(|&n| bad[n]).collect();
            // Halving takes two commits a step at most: one that is refused and one that is not.
            let most = 1 + want.len() * 2 * (2 + bad.len().ilog2() as usize);
            prop_assert!(commits <= most, "{commits} commits for {} of {}", want.len(), bad.len());
            prop_assert_eq!(found, want);
        }
    }

    #[test]
    fn a_lane_that_was_beside_the_bad_one_goes_once() {
        let mut doubt = Doubt::default();
        assert!(!doubt.refused(7, false));
        assert_eq!(doubt.next(), 7);
        doubt.passed(7);
        assert!(!doubt.is_any());
    }
}
