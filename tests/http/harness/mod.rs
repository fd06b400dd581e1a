//! What the black-box tests stand on: a private PostgreSQL per test binary, brokers against it, a small HTTP client.
//!
//!     test -> Broker (helpers: push, pop, ack, configure) -> Client -> the binary -> Postgres
//!
//! Holds: every process started here ends with the test binary, also when that is killed; everything lives under one
//! temporary directory; a test that fails shows the end of its broker's log. Nothing here knows the code of the broker.

#![allow(dead_code, unused_imports, unused_macros)] // Several test binaries share this room and use different parts of it.

mod broker;
mod client;
mod postgres;
mod process;

pub use broker::{Broker, Message, Pop, Setup, one_shard, two_shards};
pub use client::{Answer, Client, encode};
pub use postgres::{Postgres, shared_postgres};
pub use process::{as_postgres, free_port, give_to_postgres, scratch_dir, spawn};

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest a test waits for something that must happen: generous, because two cores run many tests at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A queue (or group) name no other test uses. Without a dot: no namespace and task are derived.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Asks every 10 ms until there is an answer; fails with `what` after [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, ask)
}

/// Asks every 10 ms until there is an answer; fails with `what` after `limit`.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs the closure on `n` threads at once and returns what they returned, in thread order.
pub fn at_once<T: Send>(n: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let gate = std::sync::Barrier::new(n);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|i| {
                let (gate, run) = (&gate, &run);
                scope.spawn(move || {
                    gate.wait();
                    run(i)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// One rule, proved twice: cross-shard on two shards with the runtime the broker chooses, and on one shard with epoll.
macro_rules! rules {
    ($($(#[$doc:meta])* fn $name:ident($broker:ident) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            fn rule($broker: &'static crate::harness::Broker) $body
            #[test]
            fn two_shards() {
                rule(crate::harness::two_shards());
            }
            #[test]
            fn one_shard_epoll() {
                rule(crate::harness::one_shard());
            }
        }
    )*};
}
pub(crate) use rules;
