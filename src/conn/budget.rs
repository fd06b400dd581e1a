//! The bytes of bodies that a shard may hold at once, and of answers on their way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A shard's budget. Whoever may not take more waits, and with it the socket: back-pressure is TCP's. One body at a
/// time may go beyond the budget: bodies that are all half read would otherwise block each other for ever. An answer is there
/// already and waits for nothing: bodies wait for it.
pub(crate) struct Budget {
    total: usize,
    used: Cell<usize>,
    /// Somebody is beyond the budget.
    overdrawn: Cell<bool>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// What one body has taken; given back when it is dropped.
pub(crate) struct Share {
    budget: Rc<Budget>,
    taken: usize,
    overdraws: bool,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Rc<Budget> {
        let (used, overdrawn) = (Cell::new(0), Cell::new(false));
        Rc::new(Budget { total, used, overdrawn, waiting: RefCell::default() })
    }

    pub(crate) fn share(self: &Rc<Self>) -> Share {
        Share { budget: self.clone(), taken: 0, overdraws: false }
    }

    /// Room of what is there, until it is dropped; whether there is room or not.
    pub(crate) fn take(self: &Rc<Self>, bytes: usize) -> Share {
        self.used.set(self.used.get() + bytes);
        Share { budget: self.clone(), taken: bytes, overdraws: false }
    }
}

impl Share {
    /// Raises this share to `bytes`; waits while the shard has no room.
    pub(crate) async fn raise(&mut self, bytes: usize) {
        std::future::poll_fn(|cx| {
            let more = bytes.saturating_sub(self.taken);
            let budget = &*self.budget;
            if budget.used.get() + more > budget.total && !self.overdraws {
                if budget.overdrawn.get() {
                    budget.waiting.borrow_mut().push_back(cx.waker().clone());
                    return Poll::Pending;
                }
                budget.overdrawn.set(true);
                self.overdraws = true;
            }
            budget.used.set(budget.used.get() + more);
            self.taken += more;
            Poll::Ready(())
        })
        .await
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.taken);
        if self.overdraws {
            self.budget.overdrawn.set(false);
        }
        if self.taken > 0 {
            // Each looks for itself whether there is room now.
            for waker in self.budget.waiting.take() {
                waker.wake();
            }
        }
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
            let (mut first, mut second) = (budget.share(), budget.share());
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
            assert_eq!((budget.used.get(), budget.overdrawn.get()), (0, false));
        })
        .unwrap();
    }

    #[test]
    fn bodies_wait_for_answers_that_nobody_takes_and_one_goes_beyond() {
        run(Choice::Epoll, async {
            let budget = Budget::new(100);
            let answer = budget.take(150);
            let (mut first, mut second) = (budget.share(), budget.share());
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
            assert_eq!((budget.used.get(), budget.overdrawn.get()), (0, false));
        })
        .unwrap();
    }
}
