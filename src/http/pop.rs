//! The three pop routes: query -> asks of the owner shards -> rendered messages, or a parked wait.
//!
//!     query > asks, shard after shard, sharing one lease > claims > render
//!                nothing there: watch the owners, ask again at a wake, until the deadline
//!
//! Holds: an empty answer never comes before the deadline of a waiting pop, nor before it is known what other brokers
//! had answered when the pop came, or that cannot be known within [`LATE_MAX`] of the deadline; `batch` and `partitions` are never exceeded; claims that do not reach the client are
//! given back (by the connection, or by the drop of what holds them here). A wake is only a hint to ask. Does not decide
//! what is deliverable, nor whether a group conflates: the engine does, by the group's record.

mod asking;
pub mod framed;
mod inflate;
mod matched;
mod park;
pub mod query;
pub mod render;
mod taken;

use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::asked::ParkedOn;
use crate::core_thread::{Core, WatchGuard};
use crate::telemetry::metrics::ParkGuard;
use asking::{Asking, Route, Source};
use matched::{Names, matching};
use park::{Parked, park, watches};
use queen_shards::command::PopFrom;
use queen_shards::effect::StoreError;
use queen_shards::ids::Micros;
use queen_shards::lease_id::LeaseSeed;
use render::Policy;
use std::ops::ControlFlow::{self, Break, Continue};
use std::rc::Rc;
use taken::Taken;

/// After its deadline a pop that waits still takes what a shard is about to claim for it, for so long; clients leave 5 s
/// after it. Then it is withdrawn: what is claimed later is given back, and one with autoAck waits for a claim that is on its
/// way. Source: data plane 4.5.
const LATE_MAX: u64 = 1_000_000;
/// A parked pop asks again after this even without a wake; a discovery pop sooner, because queues come that it does not
/// watch. The periodic re-check of data plane 4.5 is the engine's: each second, in memory, for all watches of a shard.
const RECHECK: u64 = 5_000_000;
const RECHECK_DISCOVERY: u64 = 1_000_000;
/// Between two asks of a pop that waits and finds its group or queue locked in the store.
const HELD_PAUSE: u64 = 500_000;
/// How often a pop that waits for its batch to fill (minPopWaitTime) counts again, in memory.
const FILL_RECOUNT: u64 = 10_000;
/// Wakes in a row that led to nothing before asks are spaced out: others were faster, or the hint was wrong.
const EMPTY_WAKES: u32 = 3;
/// Longest space between asks after empty wakes.
const EMPTY_WAKE_PAUSE_MAX: u64 = 50_000;
/// `GET /api/v1/pop/queue/:queue`
pub async fn queue(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    pop(core, request, Route::Queue { queue: params.get("queue") }).await
}

/// `GET /api/v1/pop/queue/:queue/partition/:partition`
pub async fn partition(core: &Rc<Core>, request: &Request, params: &Params) -> Response {
    let route = Route::Partition { queue: params.get("queue"), partition: params.get("partition") };
    pop(core, request, route).await
}

/// `GET /api/v1/pop`
pub async fn discovery(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    pop(core, request, Route::Discovery).await
}

/// Answers a pop. Source: data plane 4.
async fn pop(core: &Rc<Core>, request: &Request, route: Route<'_>) -> Response {
    match Asking::of(request.tenant, &request.query, route, &core.config) {
        Ok(asking) => serve(core, request, &asking).await,
        Err(refusal) => refusal,
    }
}

/// Asks, waits and asks again until there is something to deliver or nothing more to wait for.
async fn serve(core: &Rc<Core>, request: &Request, asking: &Asking) -> Response {
    let mut call = Call::new(core, request, asking);
    loop {
        if core.pop_maintenance() {
            return paused(asking);
        }
        let found = match call.ask().await {
            Continue(found) => found,
            Break(response) => return response,
        };
        let ended = if found.held {
            Box::pin(call.try_again()).await
        } else if 0 < found.ready && !call.claim_any {
            Box::pin(call.fill(&found)).await
        } else {
            (call.claim_any, call.filling) = (!asking.fills, None);
            // On the heap: a pop that is served at once does not wait, and is smaller for it.
            match call.deadline <= core.now() {
                true => Box::pin(call.conclude(&found)).await,
                false => Box::pin(call.wait(found)).await,
            }
        };
        if let Some(response) = ended {
            return response;
        }
    }
}

/// A pop that is served: what it knows from one round of asks to the next.
struct Call<'a> {
    core: &'a Rc<Core>,
    request: &'a Request,
    asking: &'a Asking,
    arrived: Micros,
    deadline: Micros,
    /// When it is answered whatever is still done for it.
    until: Option<Micros>,
    seed: LeaseSeed,
    filling: Option<Filling>,
    claim_any: bool,
    names: Names,
    /// The shard whose wake led to this round is asked first.
    woken_by: Option<usize>,
    empty_wakes: u32,
    rested: bool,
    /// Dropped after the ask that a wake led to: until then the engine does not pass the hint on to the next waiter.
    guards: Vec<WatchGuard>,
    parked: Option<ParkGuard>,
    parked_on: Option<ParkedOn>,
    /// Until a group was met, what the request says stands.
    policy: Policy,
}

/// What a round of asks found that had nothing to deliver. It holds nothing: a pop may wait with it.
struct Found {
    sources: Vec<PopFrom>,
    /// What other brokers had answered when the pop came was known.
    heard: bool,
    /// And queues that were made before it came were among those that were asked.
    seen: bool,
    /// Messages that are there, fewer than the batch, and how long the batch may be held to fill.
    ready: u32,
    fill_wait_ms: u32,
    /// A shard could not look: something in the store is locked for a while.
    held: bool,
}

impl<'a> Call<'a> {
    fn new(core: &'a Rc<Core>, request: &'a Request, asking: &'a Asking) -> Call<'a> {
        let metrics = core.metrics.shard(core.shard());
        match asking.from {
            Source::One(PopFrom::Partition(_)) => metrics.pop_targeted(),
            _ => metrics.pop_wildcard(),
        }
        let arrived = core.now();
        let deadline = arrived.plus(asking.wait_ms.unwrap_or(0).saturating_mul(1000));
        Call {
            core,
            request,
            asking,
            arrived,
            deadline,
            until: asking.wait_ms.map(|_| deadline.plus(LATE_MAX)),
            seed: core.lease_seed(),
            filling: None,
            claim_any: !asking.fills,
            names: Names::Usual,
            woken_by: None,
            empty_wakes: 0,
            rested: false,
            guards: Vec::new(),
            parked: None,
            parked_on: None,
            policy: Policy { conflation: asking.conflation == Some(true), conflict: false },
        }
    }

    /// The answer that delivers nothing.
    fn nothing(&self) -> Response {
        nothing(self.core, self.asking, self.policy)
    }

    /// One round of asks. `Break`: the answer.
    async fn ask(&mut self) -> ControlFlow<Response, Found> {
        let (core, asking) = (self.core, self.asking);
        // What other brokers answered before this pop came is known to the shards that are asked now.
        let heard = core.has_heard(self.arrived);
        let found = match &asking.from {
            Source::One(from) => Some(Ok((vec![from.clone()], core.now()))),
            Source::Matching { namespace, task } => {
                let matching = matching(core, asking, namespace, task, self.names);
                Box::pin(core.by(self.until, matching)).await
            }
        };
        let (sources, named_at) = match found {
            Some(Ok(sources)) => sources,
            Some(Err(StoreError::Unavailable(_))) => return Break(Refusal::Pool.response()),
            Some(Err(_)) => return Break(Refusal::PopFailed.response()),
            None => return Break(self.nothing()),
        };
        let seen = heard && self.arrived <= named_at;
        let mut taken = Taken::nothing(core, asking, self.woken_by, self.until);
        let seed = LeaseSeed { wide: sources.len() > 1, ..self.seed };
        taken.ask_all(asking, &sources, seed, if self.claim_any { 0 } else { asking.batch }).await;
        self.policy = taken.policy(asking).unwrap_or(self.policy);
        if !taken.claims.is_empty() {
            let metrics = core.metrics.shard(core.shard());
            let messages = taken.claims.iter().map(|c| (c.end.0 - c.start.0 + 1) as u64).sum();
            metrics.pop(messages);
            if asking.auto_ack {
                metrics.auto_acked(messages);
            }
            if let Some(filling) = self.filling {
                metrics.fill_wait(core.now().since(filling.since));
            }
            return Break(taken.answer(asking, self.policy));
        }
        let (passes, over) = (taken.failed && taken.passes && asking.wait_ms.is_some(), self.deadline <= core.now());
        if passes && over {
            return Break(self.nothing());
        }
        let held = passes && core.store_is_up();
        if taken.failed && !held {
            let why = if core.store_is_up() { Refusal::PopFailed } else { Refusal::Pool };
            return Break(why.response());
        }
        if taken.late {
            return Break(self.nothing());
        }
        Continue(Found { sources, heard, seen, ready: taken.ready, fill_wait_ms: taken.fill_wait_ms, held })
    }

    /// A shard could not look now: it is asked again in a moment.
    async fn try_again(&mut self) -> Option<Response> {
        let until = self.deadline.min(self.core.now().plus(HELD_PAUSE));
        (self.guards, self.names, self.woken_by) = (Vec::new(), Names::Usual, None);
        (park(self.core, self.request, &mut [], until).await == Parked::Ended).then(|| self.nothing())
    }

    /// Something is there, less than the batch: holds it until it fills or its time is over.
    async fn fill(&mut self, found: &Found) -> Option<Response> {
        let now = self.core.now();
        let until = now.plus(found.fill_wait_ms as u64 * 1000).min(self.deadline);
        let until = self.filling.get_or_insert(Filling { since: now, until }).until;
        self.claim_any = until <= now || self.asking.full(self.policy.conflation) <= found.ready;
        if self.claim_any {
            return None;
        }
        let pause = until.min(now.plus(FILL_RECOUNT));
        let ended = park(self.core, self.request, &mut [], pause).await == Parked::Ended;
        ended.then(|| self.nothing())
    }

    /// The deadline is there: it is answered empty, once it has asked knowing all that others had answered when it came.
    async fn conclude(&mut self, found: &Found) -> Option<Response> {
        if found.seen {
            return Some(self.nothing());
        }
        if !found.heard {
            match self.core.by(self.until, self.core.hear()).await {
                Some(true) => {}
                Some(false) => return Some(Refusal::Pool.response()),
                None => return Some(self.nothing()),
            }
        }
        (self.names, self.woken_by) = (Names::Since(self.arrived), None);
        None
    }

    /// Parks until there may be something, or it is time to look or to end.
    async fn wait(&mut self, found: Found) -> Option<Response> {
        let (core, asking, now) = (self.core, self.asking, self.core.now());
        let resting = EMPTY_WAKES < self.empty_wakes && !self.rested;
        // A discovery pop may have found other queues since it parked.
        if self.parked_on.is_none() || matches!(asking.from, Source::Matching { .. }) {
            self.parked_on = Some(core.asked.park(asking.tenant, &found.sources, now));
        }
        let (watching, recheck) = if resting {
            let pause = 1000u64 << (self.empty_wakes - EMPTY_WAKES).min(6);
            (Vec::new(), pause.min(EMPTY_WAKE_PAUSE_MAX))
        } else {
            // Watched after an ask that found nothing: a shard that has something by now wakes at once.
            let recheck = if matches!(asking.from, Source::One(_)) { RECHECK } else { RECHECK_DISCOVERY };
            (watches(core, asking, found.sources), recheck)
        };
        self.guards = watching;
        self.parked.get_or_insert_with(|| core.metrics.park(core.shard(), asking.queue_name()));
        let until = self.deadline.min(now.plus(recheck));
        let came = park(core, self.request, &mut self.guards, until).await;
        (self.names, self.woken_by, self.rested) = (Names::Usual, None, resting);
        match came {
            Parked::Ended => return Some(self.nothing()),
            Parked::Woken(shard) => {
                (self.names, self.woken_by) = (Names::Woken, Some(shard));
                self.empty_wakes += 1;
            }
            Parked::Timer if resting => {}
            // A whole period without a wake.
            Parked::Timer => self.empty_wakes = 0,
        }
        (found.seen && self.deadline <= core.now()).then(|| self.nothing())
    }
}

/// A pop that holds back what it found, for its batch to fill.
#[derive(Clone, Copy, Debug)]
struct Filling {
    since: Micros,
    until: Micros,
}

/// The answer in pop maintenance. Source: data plane 4.9.
fn paused(asking: &Asking) -> Response {
    match asking.conflation {
        Some(true) => Response::json(200, r#"{"messages":[],"paused":true,"conflation":true}"#),
        _ => Response::empty(204),
    }
}

/// The answer to a pop that gets nothing. One that must speak about conflation has a body.
fn nothing(core: &Core, asking: &Asking, policy: Policy) -> Response {
    core.metrics.shard(core.shard()).pop(0);
    // What a discovery pop did not find, it found in no queue in particular.
    if let Source::One(from) = &asking.from {
        core.asked.count(asking.tenant, from.queue(), |activity| activity.pop_empty += 1);
    }
    if !policy.speaks() {
        return Response::empty(204);
    }
    let (queue, group) = (asking.queue(), &*asking.group);
    let answer = render::Answer { queue, group, lease: None, claims: &[], policy, cipher: None, autopilot: None };
    render::render(&answer).map_or_else(|_| Response::empty(204), |body| Response::json(200, body))
}

#[cfg(test)]
mod tests;
