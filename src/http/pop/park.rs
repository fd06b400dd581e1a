//! How a pop that found nothing waits: for a wake of the shards it watches, for a moment, or for an end.

use super::asking::Asking;
use crate::core_thread::{Core, WatchGuard};
use crate::http::Request;
use futures_util::future::{Either, pending, select, select_all};
use queen_shards::command::{PopFrom, Watch};
use queen_shards::ids::Micros;
use queen_shards::planted::{Bug, is};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// By this shard.
    Woken(usize),
    Timer,
    /// The client has gone or the broker shuts down: nothing is to be claimed any more.
    Ended,
}

pub(super) fn watches(core: &Rc<Core>, asking: &Asking, sources: Vec<PopFrom>) -> Vec<WatchGuard> {
    let watch = |from: PopFrom| {
        let shards: Vec<usize> = match &from {
            PopFrom::Partition(lane) => vec![lane.owner(core.shards())],
            PopFrom::Queue { .. } => (0..core.shards()).collect(),
        };
        core.watch(&shards, Watch { from, group: asking.group.clone(), start: asking.start })
    };
    sources.into_iter().map(watch).collect()
}

/// Waits for a wake of any guard, the moment `until`, or an end.
pub(super) async fn park(core: &Rc<Core>, request: &Request, guards: &mut [WatchGuard], until: Micros) -> Parked {
    let ended = pin!(async {
        if is(Bug::AnswerDeadPoll) {
            return core.shutdown().await;
        }
        select(pin!(request.gone.wait()), pin!(core.shutdown())).await;
    });
    let woken = pin!(async {
        if guards.is_empty() {
            return pending().await;
        }
        select_all(guards.iter_mut().map(|guard| Box::pin(guard.wake()))).await.0
    });
    let timer = pin!(sleep(until.since(core.now())));
    match select(ended, select(woken, timer)).await {
        Either::Left(_) => Parked::Ended,
        Either::Right((Either::Left((shard, _)), _)) => Parked::Woken(shard),
        Either::Right((Either::Right(_), _)) => Parked::Timer,
    }
}

async fn sleep(micros: u64) {
    crate::rt::sleep(Duration::from_micros(micros)).await
}
