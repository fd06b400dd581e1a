//! The bytes of answers that a shard holds: clients that take theirs slowly get less, not the broker's memory.
//!
//!     ask > granted > the answer > `keep` > written, or its client gone > given back
//!
//! Holds: what is granted and what is kept is at most [`ANSWERS_BYTES`], and beyond that [`ANSWER_BYTES_MIN`] for each who was
//! granted no more, and what one message is larger than its grant. Does not wait: an answer with fewer messages is an answer.
//!
//! A pop holds its grant while it waits for its claim, perhaps behind a scan. So those that ask first do not get all: half of
//! the bytes is divided as if few asked, the other half as if hundreds did.

use crate::limits::{ANSWER_BYTES_MIN, ANSWER_BYTES_USUAL, ANSWER_SHARE, ANSWERS_BYTES};
use std::cell::Cell;
use std::rc::Rc;

/// Of one shard.
#[derive(Debug, Default)]
pub struct Answers {
    /// Granted to those that ask, and kept by answers.
    held: Cell<u64>,
}

/// One that asks, then the answer it got.
#[derive(Debug)]
pub struct Hold {
    answers: Rc<Answers>,
    bytes: u64,
}

impl Answers {
    /// Bytes for an answer, of the `most` that it wants.
    pub fn ask(self: &Rc<Self>, most: u64) -> Hold {
        let held = self.held.get();
        let part = (ANSWERS_BYTES / 2).saturating_sub(held) / ANSWER_SHARE;
        let least = if held < ANSWERS_BYTES { ANSWER_BYTES_USUAL } else { ANSWER_BYTES_MIN };
        self.hold(part.max(least).min(most))
    }

    fn hold(self: &Rc<Self>, bytes: u64) -> Hold {
        self.held.set(self.held.get() + bytes);
        Hold { answers: self.clone(), bytes }
    }
}

impl Hold {
    /// Bytes that the answer may have.
    pub fn granted(&self) -> u64 {
        self.bytes
    }

    /// The answer is there, and has so many bytes.
    pub fn keep(self, bytes: usize) -> Hold {
        self.answers.hold(bytes as u64)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.answers.held.set(self.answers.held.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = ANSWERS_BYTES / 2 / ANSWER_SHARE;

    #[test]
    fn one_gets_all_it_wants_and_a_few_get_much() {
        let answers = Rc::new(Answers::default());
        assert_eq!(answers.ask(MOST).granted(), MOST);
        assert_eq!(answers.ask(1).granted(), 1);
        let asks: Vec<Hold> = (0..8).map(|_| answers.ask(MOST)).collect();
        assert!(asks.iter().all(|ask| MOST / 3 <= ask.granted()), "{:?}", asks.last());
    }

    /// Consumers that wait for the scan of a large group, and hold nothing but their grants.
    #[test]
    fn hundreds_that_ask_leave_enough_for_a_usual_answer() {
        let answers = Rc::new(Answers::default());
        let asks: Vec<Hold> = (0..500).map(|_| answers.ask(MOST)).collect();
        assert!(asks.iter().all(|ask| ANSWER_BYTES_USUAL <= ask.granted()));
    }

    /// Consumers that come back all at once, each of which asks and takes its answer before the next one asks, or all ask first;
    /// and take nothing of what they asked for.
    #[test]
    fn any_number_of_answers_that_nobody_takes_stays_within_the_bound() {
        for together in [1, 16, 500] {
            let answers = Rc::new(Answers::default());
            let mut kept = Vec::new();
            while kept.len() < 10_000 {
                let asks: Vec<Hold> = (0..together).map(|_| answers.ask(MOST)).collect();
                let bound = ANSWERS_BYTES + ANSWER_BYTES_USUAL + (kept.len() + asks.len()) as u64 * ANSWER_BYTES_MIN;
                assert!(answers.held.get() <= bound, "{} of {bound}", answers.held.get());
                kept.extend(asks.into_iter().map(|ask| {
                    let bytes = ask.granted() as usize;
                    ask.keep(bytes)
                }));
                assert!(answers.held.get() <= bound, "{} of {bound}", answers.held.get());
            }
            drop(kept);
            assert_eq!(answers.held.get(), 0, "all is given back");
        }
    }

    #[test]
    fn what_an_answer_has_is_counted_not_what_it_was_granted() {
        let answers = Rc::new(Answers::default());
        let small: Vec<Hold> = (0..1000).map(|_| answers.ask(MOST).keep(100)).collect();
        assert_eq!(answers.held.get(), 100_000);
        assert!(MOST - 100_000 < answers.ask(MOST).granted());
        let large = answers.ask(MOST).keep(MOST as usize * 2);
        assert_eq!(answers.held.get(), 100_000 + MOST * 2, "one message may be larger");
        drop((small, large));
        assert_eq!(answers.held.get(), 0);
    }
}
