//! A ring within one thread.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

/// One task waits, anybody rings; a ring before the wait is not lost.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if !self.rung.replace(true)
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    pub(crate) async fn wait(&self) {
        std::future::poll_fn(|cx| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
