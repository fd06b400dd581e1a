//! Tells a handler that its client has gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Whether the client of a request has closed its connection, or its sending half of it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Gone(Rc<State>);

#[derive(Default)]
struct State {
    gone: Cell<bool>,
    /// Tasks that wait; mostly the one that polls the handler.
    waiting: RefCell<Vec<Waker>>,
}

impl Gone {
    /// Resolves when the client has closed the connection. Costs nothing while it waits.
    pub async fn wait(&self) {
        std::future::poll_fn(|cx| {
            if self.0.gone.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.0.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Whether it has happened already.
    pub fn is_gone(&self) -> bool {
        self.0.gone.get()
    }

    /// Says so to all that wait.
    pub(super) fn set(&self) {
        self.0.gone.set(true);
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }

    /// Forgets who waited: the request is over.
    pub(super) fn request_over(&self) {
        self.0.waiting.borrow_mut().clear();
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gone({})", self.is_gone())
    }
}
