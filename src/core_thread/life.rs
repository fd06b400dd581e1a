//! The end of a shard: it takes no new requests, then waits until no other shard has one left. Source: operations 1.6.

use super::Core;
use std::task::{Poll, Waker};

/// How far a shard is with its end.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Life {
    Serving,
    /// It takes no new requests.
    Closing,
    /// Nor has any other shard one left.
    Over,
}

impl Core {
    /// Whether the broker shuts down.
    pub fn is_closing(&self) -> bool {
        Life::Closing <= self.life.get()
    }

    /// Resolves when the broker shuts down; parked pops then answer 204.
    pub async fn shutdown(&self) {
        self.comes_to(Life::Closing).await;
    }

    /// Resolves when no shard has a request left that this one may be asked for.
    pub async fn over(&self) {
        self.comes_to(Life::Over).await;
    }

    async fn comes_to(&self, life: Life) {
        std::future::poll_fn(|cx| {
            if life <= self.life.get() {
                return Poll::Ready(());
            }
            let mut wakers = self.closed.borrow_mut();
            if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn live(&self, life: Life) {
        self.life.set(life);
        self.closed.take().into_iter().for_each(Waker::wake);
    }
}
