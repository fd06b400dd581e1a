//! How much a shard parses before its engine has a turn: commit and parsing overlap instead of taking turns.
//!
//! Without it a hundred requests that arrive together are all parsed before the first commit is sent, then the core
//! waits for the store, then the store waits for the core. The engine's turn opens the gate again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// See the module. Lives on its thread.
pub struct Gate {
    turn_bytes: usize,
    left: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    waker: RefCell<Option<Waker>>,
    open: Cell<bool>,
}

impl Gate {
    /// A gate that lets about `turn_bytes` of bodies through between two turns.
    pub fn new(turn_bytes: usize) -> Gate {
        Gate { turn_bytes, left: Cell::new(turn_bytes), waiting: RefCell::default() }
    }

    /// Whether somebody waits, so that a turn is wanted.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Whether the next one has to wait for a turn.
    pub fn is_shut(&self) -> bool {
        self.left.get() == 0 || self.is_waited_for()
    }

    /// Goes through with a body of `bytes`, or waits for [`Gate::open`]; first come, first through.
    pub async fn pass(&self, bytes: usize) {
        if self.is_shut() {
            let entry = Rc::new(Entry::default());
            self.waiting.borrow_mut().push_back(entry.clone());
            let mut place = Place { gate: self, entry: &entry };
            poll_fn(|cx| place.poll(cx)).await;
        }
        self.left.set(self.left.get().saturating_sub(bytes.max(1)));
    }

    /// A turn was taken: lets in whoever waits, one at a time as long as there is room.
    pub fn open(&self) {
        self.left.set(self.turn_bytes);
        self.admit();
    }

    fn admit(&self) {
        let Some(entry) = self.waiting.borrow().front().cloned() else { return };
        entry.open.set(true);
        if let Some(waker) = entry.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn leave(&self, entry: &Rc<Entry>) {
        self.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, entry));
    }
}

/// A place in the queue; leaving it, however, lets the next one in.
struct Place<'a> {
    gate: &'a Gate,
    entry: &'a Rc<Entry>,
}

impl Place<'_> {
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if self.entry.open.get() && self.gate.left.get() > 0 {
            return Poll::Ready(());
        }
        *self.entry.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.entry);
        if self.entry.open.get() && self.gate.left.get() > 0 {
            self.gate.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn what_a_turn_lets_through_is_bounded_and_first_come_is_first_through() {
        let gate = Gate::new(10);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(gate.pass(10)).poll(&mut cx).is_ready());
        let mut first = Box::pin(gate.pass(6));
        let mut second = Box::pin(gate.pass(6));
        let mut third = Box::pin(gate.pass(1));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        gate.open();
        assert!(second.as_mut().poll(&mut cx).is_pending(), "it is not its turn");
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert!(second.as_mut().poll(&mut cx).is_ready());
        assert!(third.as_mut().poll(&mut cx).is_pending(), "the turn is used up");
        drop(third);
        assert!(!gate.is_waited_for(), "whoever leaves is not waited for");
        gate.open();
        assert!(pin!(gate.pass(100)).poll(&mut cx).is_ready(), "one larger than a turn goes through alone");
    }
}
