//! An operation that is started again and again, and stays in flight when nobody waits for it.
//!
//! An async function's future would be dropped with the wait, and an operation of io_uring that is dropped may still
//! take what it read with it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Takes `I` when it starts and gives `O` when it is done. One allocation for its whole life.
pub(super) struct Operation<I, O>(Pin<Box<dyn Slot<I, O>>>);

impl<I: 'static, O: 'static> Operation<I, O> {
    pub(super) fn new<F: Future<Output = O> + 'static>(make: impl Fn(I) -> F + 'static) -> Operation<I, O> {
        Operation(Box::pin(OneSlot { make, running: None }))
    }

    pub(super) fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// Starts it; it must not be running.
    pub(super) fn start(&mut self, input: I) {
        assert!(!self.is_running());
        self.0.as_mut().start(input);
    }

    /// Asks for the result. Panics when it is not running.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<O> {
        self.0.as_mut().poll(cx)
    }
}

/// Hides the unnameable future.
trait Slot<I, O> {
    fn start(self: Pin<&mut Self>, input: I);
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O>;
    fn is_running(&self) -> bool;
}

struct OneSlot<M, F> {
    make: M,
    /// Pinned with the slot.
    running: Option<F>,
}

impl<I, M: Fn(I) -> F, F: Future> Slot<I, F::Output> for OneSlot<M, F> {
    fn start(self: Pin<&mut Self>, input: I) {
        // SAFETY: `running` is never moved out, only replaced in place.
        let slot = unsafe { self.get_unchecked_mut() };
        let future = (slot.make)(input);
        unsafe { Pin::new_unchecked(&mut slot.running) }.set(Some(future));
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: as above.
        let mut running = unsafe { self.map_unchecked_mut(|slot| &mut slot.running) };
        let done = running.as_mut().as_pin_mut().expect("nothing is running").poll(cx);
        if done.is_ready() {
            running.set(None);
        }
        done
    }

    fn is_running(&self) -> bool {
        self.running.is_some()
    }
}
