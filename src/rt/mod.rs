//! The runtime: the only room that names monoio, so that it can be replaced in one place.
//!
//!     main -> cores, port_is_free -> one thread per shard: pin -> build -> block_on
//!     shard -> spawn, sleep, timeout, race, aside; Listener -> Stream -> (Reader, Writer); Doorbell
//!
//! Holds: everything here lives on the thread that made it, except [`Ringer`]. Does not know HTTP, the hub or limits
//! of requests.

mod cores;
mod doorbell;
mod driver;
mod helper;
mod listener;
mod operation;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

pub use cores::{cores, pin, raise_file_limit};
pub use doorbell::{Doorbell, Ringer};
pub use driver::{Choice, Driver, Runtime, build, current, run};
pub use helper::aside;
pub use listener::{Listener, port_is_free};
pub use stream::{
    Delivery, Reader, Stream, TcpCompat, UnixCompat, Writer, connect, connect_compat, connect_unix_compat,
};

use futures_util::FutureExt;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Starts a task on this thread; it runs until it is done or the runtime ends.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    drop(monoio::spawn(future));
}

/// Waits. Granularity is a millisecond.
pub async fn sleep(duration: Duration) {
    monoio::time::sleep(duration).await
}

/// The output of `future`, or `None` when `duration` is over first; then `future` is dropped.
pub fn timeout<F: Future>(duration: Duration, future: F) -> impl Future<Output = Option<F::Output>> {
    monoio::time::timeout(duration, future).map(Result::ok)
}

/// Which of two futures was first.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    Left(A),
    Right(B),
}

/// Waits for the first of two futures and drops the other. `a` is asked first, so it wins a tie.
pub async fn race<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(done));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

/// Lets the other tasks of this thread run once. A task that wakes itself goes to the front of monoio's queue, so an
/// empty task at its back is awaited instead.
pub async fn yield_now() {
    monoio::spawn(async {}).await
}
