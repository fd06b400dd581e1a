//! The bytes of answers that a shard holds: clients that take theirs slowly get less, not the broker's memory.
//!
//!     ask > `most` > the answer > `keep` > written, or its client gone > given back
//!
//! Holds: what is kept, and what everybody who asks now may still get, is at most [`ANSWERS_BYTES`] and
//! [`ANSWER_BYTES_MIN`] for each of them. Does not wait: an answer with fewer messages is an answer.

use crate::limits::{ANSWER_BYTES_MIN, ANSWERS_BYTES};
use std::cell::Cell;
use std::rc::Rc;

/// Of one shard.
#[derive(Debug, Default)]
pub struct Answers {
    kept: Cell<u64>,
    asking: Cell<u64>,
}

/// One that asks, then the answer it got.
#[derive(Debug)]
pub struct Hold {
    answers: Rc<Answers>,
    /// `None`: still asking.
    kept: Option<u64>,
}

impl Answers {
    pub fn ask(self: &Rc<Self>) -> Hold {
        self.asking.set(self.asking.get() + 1);
        Hold { answers: self.clone(), kept: None }
    }
}

impl Hold {
    /// Bytes that the answer may have, of the `most` that it wants.
    pub fn most(&self, most: u64) -> u64 {
        let free = ANSWERS_BYTES.saturating_sub(self.answers.kept.get());
        (free / self.answers.asking.get().max(1)).clamp(ANSWER_BYTES_MIN, ANSWERS_BYTES).min(most)
    }

    /// The answer is there, and has so many bytes.
    pub fn keep(mut self, bytes: usize) -> Hold {
        self.release();
        self.kept = Some(bytes as u64);
        self.answers.kept.set(self.answers.kept.get() + bytes as u64);
        self
    }

    fn release(&mut self) {
        match self.kept.take() {
            Some(bytes) => self.answers.kept.set(self.answers.kept.get() - bytes),
            None => self.answers.asking.set(self.answers.asking.get() - 1),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 16 << 20;

    #[test]
    fn few_get_all_they_want() {
        let answers = Rc::new(Answers::default());
        let asks: Vec<Hold> = (0..16).map(|_| answers.ask()).collect();
        assert!(asks.iter().all(|ask| ask.most(MOST) == MOST));
        assert_eq!(asks[0].most(1), 1);
    }

    /// Consumers that come back all at once, and take nothing of what they asked for.
    #[test]
    fn any_number_of_answers_that_nobody_takes_stays_within_the_bound() {
        let answers = Rc::new(Answers::default());
        let mut kept = Vec::new();
        for _ in 0..20 {
            let asks: Vec<Hold> = (0..500).map(|_| answers.ask()).collect();
            let most: Vec<u64> = asks.iter().map(|ask| ask.most(MOST)).collect();
            kept.extend(asks.into_iter().zip(most).map(|(ask, most)| ask.keep(most as usize)));
            let bound = ANSWERS_BYTES + kept.len() as u64 * ANSWER_BYTES_MIN;
            assert!(answers.kept.get() <= bound, "{} of {bound}", answers.kept.get());
        }
        drop(kept);
        assert_eq!((answers.kept.get(), answers.asking.get()), (0, 0), "all is given back");
        assert_eq!(answers.ask().most(MOST), MOST);
    }
}
