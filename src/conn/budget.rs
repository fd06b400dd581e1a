//! The bytes that the requests of a shard may hold at once: their bodies, what these inflate to, their answers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A shard's budget. Whoever may not take more waits, and with it the socket: back-pressure is TCP's. One request at a
/// time may go beyond the budget, until its answer is written or there is room for it: requests that all hold a part would
/// otherwise block each other for ever.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    used: Cell<usize>,
    /// The share that is beyond the budget.
    beyond: Cell<Option<u64>>,
    /// Shares made so far.
    shares: Cell<u64>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// What one request has taken, for its body and its answer; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Rc<Budget>,
    number: u64,
    taken: Cell<usize>,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Rc<Budget> {
        let (used, beyond, shares) = (Cell::new(0), Cell::new(None), Cell::new(0));
        Rc::new(Budget { total, used, beyond, shares, waiting: RefCell::default() })
    }

    pub(crate) fn share(self: &Rc<Self>) -> Share {
        self.shares.set(self.shares.get() + 1);
        Share { budget: self.clone(), number: self.shares.get(), taken: Cell::new(0) }
    }
}

impl Share {
    /// Raises this share to `bytes`; waits while the shard has no room.
    pub(crate) async fn raise(&self, bytes: usize) {
        std::future::poll_fn(|cx| {
            let more = bytes.saturating_sub(self.taken.get());
            let budget = &*self.budget;
            if budget.used.get() + more > budget.total && !self.is_beyond() {
                if budget.beyond.get().is_some() {
                    budget.waiting.borrow_mut().push_back(cx.waker().clone());
                    return Poll::Pending;
                }
                budget.beyond.set(Some(self.number));
            }
            budget.used.set(budget.used.get() + more);
            self.taken.set(self.taken.get() + more);
            Poll::Ready(())
        })
        .await
    }

    /// Raises this share by `bytes`; waits while the shard has no room.
    pub(crate) async fn raise_by(&self, bytes: usize) {
        self.raise(self.taken.get() + bytes).await
    }

    /// It is the one that is beyond the budget.
    pub(crate) fn is_beyond(&self) -> bool {
        self.budget.beyond.get() == Some(self.number)
    }

    /// It holds so many bytes now, whatever it had taken. What is there waits for nothing; the others wait for it.
    pub(crate) fn settle(&self, bytes: usize) {
        let budget = &*self.budget;
        let had = self.taken.replace(bytes);
        budget.used.set(budget.used.get() - had + bytes);
        let over = budget.used.get() <= budget.total || bytes == 0 && self.is_beyond();
        let ended = over && budget.beyond.take().is_some();
        if bytes < had || ended {
            // Each looks for itself whether there is room now.
            for waker in budget.waiting.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{Choice, run, spawn, yield_now};

    #[test]
    fn one_body_may_go_beyond_and_the_others_wait_for_room() {
        run(Choice::Epoll, async {
            let budget = Budget::new(100);
            let (first, second) = (budget.share(), budget.share());
            first.raise(60).await;
            second.raise(40).await;
            second.raise(90).await; // The one that overdraws.
            let order = Rc::new(RefCell::new(Vec::new()));
            let log = order.clone();
            spawn(async move {
                first.raise(61).await;
                log.borrow_mut().push("first");
                drop(first);
            });
            yield_now().await;
            assert!(order.borrow().is_empty());
            order.borrow_mut().push("second");
            drop(second);
            yield_now().await;
            assert_eq!(*order.borrow(), ["second", "first"]);
            assert_eq!((budget.used.get(), budget.beyond.get()), (0, None));
        })
        .unwrap();
    }

    #[test]
    fn bodies_wait_for_answers_that_nobody_takes_and_one_goes_beyond() {
        run(Choice::Epoll, async {
            let budget = Budget::new(100);
            let answer = budget.share();
            answer.settle(150);
            let (first, second) = (budget.share(), budget.share());
            first.raise(10).await;
            let read = Rc::new(Cell::new(false));
            let log = read.clone();
            spawn(async move {
                second.raise(10).await;
                log.set(true);
            });
            yield_now().await;
            assert!(!read.get());
            drop(answer);
            yield_now().await;
            assert!(read.get(), "there is room, whoever is beyond");
            drop(first);
            assert_eq!((budget.used.get(), budget.beyond.get()), (0, None));
        })
        .unwrap();
    }

    #[test]
    fn who_is_beyond_stays_so_until_its_answer_is_written() {
        run(Choice::Epoll, async {
            let budget = Budget::new(100);
            let (first, second) = (budget.share(), Rc::new(budget.share()));
            first.raise(10).await;
            first.raise_by(200).await;
            let begun = Rc::new(Cell::new(false));
            let (log, share) = (begun.clone(), second.clone());
            spawn(async move {
                share.raise(10).await;
                log.set(true);
            });
            for written in [150, 120] {
                first.settle(written);
                yield_now().await;
                assert!(!begun.get(), "{written} bytes are still there");
            }
            first.settle(0);
            yield_now().await;
            assert!(begun.get());
            second.settle(0);
            assert_eq!((budget.used.get(), budget.beyond.get()), (0, None));
        })
        .unwrap();
    }

    /// Whoever made it so: the one that was beyond, or others that are done.
    #[test]
    fn within_the_budget_nobody_is_beyond_it() {
        run(Choice::Epoll, async {
            let budget = Budget::new(100);
            let (large, small, next) = (budget.share(), budget.share(), Rc::new(budget.share()));
            small.raise(90).await;
            large.raise(20).await;
            assert!(large.is_beyond());
            let begun = Rc::new(Cell::new(false));
            let (log, share) = (begun.clone(), next.clone());
            spawn(async move {
                share.raise(90).await;
                log.set(true);
            });
            yield_now().await;
            assert!(!begun.get());
            small.settle(0);
            assert!(!large.is_beyond());
            yield_now().await;
            assert!(begun.get() && next.is_beyond(), "it is its turn");
            next.settle(0);
            // An answer that is larger than what was taken for it.
            small.settle(70);
            large.raise(40).await;
            next.settle(10);
            small.settle(0);
            large.settle(95);
            assert_eq!(budget.beyond.get(), None);
            for share in [&large, &small, &*next] {
                share.settle(0);
            }
            assert_eq!((budget.used.get(), budget.beyond.get()), (0, None));
        })
        .unwrap();
    }
}
