//! POST /api/v1/transaction: pushes and acks that happen together or not at all.
//!
//!     body (JSON, or a JSON head and packed wire groups) --parse--> operations --plan--> drafts, ack sets
//!          --Command::Prepare at every owner--> where lanes end, how cursors move, or why not
//!          --Command::Bundle at this shard--> committed | duplicate | stale: prepare again --answer--> 200
//!
//! Holds: nothing is written before the one commit, and nothing by a refusal; a refusal that comes from an owner's
//! memory is confirmed by the store before it is answered; a commit with an unknown outcome is a 5xx, because
//! `success:false` promises that nothing happened. Decides nothing: the rules are the engine's. Source: data plane 7.

pub mod answer;
pub mod parse;

use super::ack::partition_id;
use super::push::binary;
use super::push::plan::{self, Fate, Plan};
use super::push::protect;
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use crate::wire;
use answer::{No, db_error};
use futures_util::future::join_all;
use parse::Parsed;
use queen_shards::bundle::{Bundle, BundleLane, BundleVerdict, PrepareLane, Prepared, PreparedLane, PreparedSet};
use queen_shards::command::{AckItem, AckOutcome, AckSet, Command, Draft, Verdict};
use queen_shards::effect::StoreError;
use queen_shards::ids::{LeaseId, MessageId, Offset, PartitionId, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::limits::STALE_TRIES;
use queen_shards::place::owner_of_partition;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// `POST /api/v1/transaction`
pub async fn transaction(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    let id = core.mint_ids(1)[0];
    if binary::is_binary(request) {
        return packed(core, request, id).await.unwrap_or_else(|refusal| refusal.response());
    }
    execute(core, request, id, parse::parse(&request.body), false).await
}

/// A transaction in binary form. Source: binary forms 10.
async fn packed(core: &Rc<Core>, request: &Request, id: MessageId) -> Result<Response, Refusal> {
    let open = wire::transaction::open(&request.body)?;
    let groups = wire::packed::walk(open.groups, 0, core.config.max_inflated_bytes as u64)?;
    let frames = binary::inflate(core, request, &groups).await?;
    let packed = parse::Packed { body: &request.body, groups: &groups, frames: &frames };
    Ok(execute(core, request, id, parse::parse_packed(open.head, packed), open.counts).await)
}

/// The same from here on, whatever the form of the body was. `counts`: count pushes and acks instead of listing them.
async fn execute(
    core: &Rc<Core>,
    request: &Request,
    id: MessageId,
    parsed: Result<Parsed<'_>, parse::Refused>,
    counts: bool,
) -> Response {
    let mut parsed = match parsed {
        Ok(parsed) => parsed,
        Err(parse::Refused::Body(why)) => return Refusal::BadBody(why).response(),
        Err(parse::Refused::Wire(refused)) => return Refusal::from(refused).response(),
        Err(parse::Refused::Request(no)) => return no.response(id),
    };
    if !counts && let Err(refusal) = request.room(answer::room(&parsed)).await {
        return refusal.response();
    }
    protect::mark(core, request.tenant, &mut parsed.pushes.lanes).await;
    let Some(keys) = core.keys() else { return Refusal::Pool.response() };
    let mut ids = core.mint_ids(parsed.pushes.items.len() - parsed.ids.len());
    ids.extend_from_slice(&parsed.ids);
    let work = match Work::of(core, request, &parsed, &ids, keys) {
        Ok(work) => work,
        Err(no) => return no.response(id),
    };
    for _ in 0..STALE_TRIES {
        match work.attempt(core, &parsed).await {
            Attempt::Done(done) => {
                count(core, request.tenant, &work, &done);
                let body = match counts {
                    true => answer::counted(id, &parsed, &work),
                    false => answer::committed(id, &parsed, &ids, &work, &done),
                };
                return Response::json(200, body);
            }
            Attempt::Refused(no) => return no.response(id),
            Attempt::Failed(refusal) => return refusal.response(),
            Attempt::Stale => {}
        }
    }
    db_error("what the transaction builds on is never at rest").response(id)
}

/// What of a request does not change between tries.
pub struct Work {
    pub plan: Plan,
    sets: Vec<AckSet>,
    /// By ack: its set, and its place in it.
    pub place_of_ack: Vec<(u32, u32)>,
    /// Leases that may fence sets without one of their own.
    leases: Vec<LeaseId>,
}

/// A committed bundle: the first offset of each draft, and what became of each set. The moves have gone with the commit.
#[derive(Debug, Default)]
pub struct Done {
    pub bases: Vec<Offset>,
    pub sets: Vec<PreparedSet>,
}

enum Attempt {
    Done(Done),
    Refused(No),
    Failed(Refusal),
    /// What was prepared is no longer so.
    Stale,
}

impl Work {
    fn of(
        core: &Core,
        request: &Request,
        parsed: &Parsed<'_>,
        ids: &[MessageId],
        keys: &KeyHasher,
    ) -> Result<Work, No> {
        if let Some(why) = parsed.pushes.lanes.iter().find_map(|lane| lane.refused) {
            return Err(db_error(why));
        }
        let plan = plan::plan(core.sender(request), &parsed.pushes, ids, keys, core.config.zstd_level);
        let mut sets: Vec<AckSet> = Vec::new();
        let mut set_of: HashMap<(PartitionId, &str), u32> = HashMap::new();
        let mut place_of_ack = Vec::with_capacity(parsed.acks.len());
        for ack in &parsed.acks {
            let partition = partition_id(&ack.partition_id).map_err(|_| No::foreign(&ack.partition_id))?;
            let set = *set_of.entry((partition, &*ack.group)).or_insert_with(|| {
                let group: Arc<str> = Arc::from(&*ack.group);
                sets.push(AckSet { tenant: request.tenant, partition, group, lease: None, items: Vec::new() });
                sets.len() as u32 - 1
            });
            let of = &mut sets[set as usize];
            of.lease = of.lease.or(ack.lease);
            place_of_ack.push((set, of.items.len() as u32));
            let error = ack.error.as_deref().filter(|error| !error.is_empty()).map(Into::into);
            of.items.push(AckItem { key: keys.key(ack.transaction_id.as_bytes()), word: ack.word, error });
        }
        Ok(Work { plan, sets, place_of_ack, leases: parsed.required_leases.clone() })
    }

    /// Prepares and commits once.
    async fn attempt(&self, core: &Rc<Core>, parsed: &Parsed<'_>) -> Attempt {
        let prepared = match self.prepare(core).await {
            Ok(prepared) => prepared,
            Err(attempt) => return attempt,
        };
        let objection = match self.objection(parsed, &prepared) {
            Ok(objection) => objection,
            Err(refusal) => return Attempt::Failed(refusal),
        };
        match objection {
            Some((no, None)) => Attempt::Refused(no),
            Some((no, Some(confirm))) => match commit(core, confirm).await {
                BundleVerdict::Committed { .. } => Attempt::Refused(no),
                BundleVerdict::Refused(why) => Attempt::Refused(db_error(&why)),
                BundleVerdict::Stale | BundleVerdict::Duplicate { .. } => Attempt::Stale,
                BundleVerdict::Unavailable | BundleVerdict::Unknown => Attempt::Failed(Refusal::Pool),
            },
            None => self.commit(core, parsed, prepared).await,
        }
    }

    async fn commit(&self, core: &Rc<Core>, parsed: &Parsed<'_>, prepared: Prepared) -> Attempt {
        let lanes = self.plan.drafts.iter().zip(&prepared.lanes).map(|(draft, lane)| lane_of(draft, *lane, false));
        let mut sets = prepared.sets;
        let moves = sets.iter_mut().filter_map(|set| set.cursor_move.take());
        let bundle = Bundle { store: prepared.store, lanes: lanes.collect(), moves: moves.collect() };
        if bundle.lanes.is_empty() && bundle.moves.is_empty() {
            return Attempt::Done(Done { bases: Vec::new(), sets });
        }
        match commit(core, bundle).await {
            BundleVerdict::Committed { bases } => Attempt::Done(Done { bases, sets }),
            BundleVerdict::Duplicate { lane, index } => Attempt::Refused(self.duplicate(parsed, lane, index)),
            BundleVerdict::Stale => Attempt::Stale,
            BundleVerdict::Refused(why) => Attempt::Refused(db_error(&why)),
            BundleVerdict::Unavailable => Attempt::Failed(Refusal::Pool),
            BundleVerdict::Unknown => {
                let error = StoreError::Unknown("the outcome of the transaction is unknown".into());
                Attempt::Failed(Refusal::store("transaction", &error))
            }
        }
    }

    /// Asks every owner about its part, all shards at once. `Err`: an owner did not answer, or they speak of two stores.
    async fn prepare(&self, core: &Rc<Core>) -> Result<Prepared, Attempt> {
        let shards = core.shards();
        let mut parts: Vec<(Vec<PrepareLane>, Vec<AckSet>)> = (0..shards).map(|_| Default::default()).collect();
        let (mut lane_places, mut set_places) = (Vec::new(), Vec::new());
        for draft in &self.plan.drafts {
            let owner = draft.lane.owner(shards);
            lane_places.push((owner, parts[owner].0.len()));
            let (lane, keys, all_minted) = (draft.lane.clone(), draft.keys.clone(), draft.all_minted);
            parts[owner].0.push(PrepareLane { lane, keys, all_minted });
        }
        for set in &self.sets {
            let owner = owner_of_partition(set.partition, shards);
            set_places.push((owner, parts[owner].1.len()));
            parts[owner].1.push(set.clone());
        }
        let asks = parts.into_iter().enumerate().map(|(shard, (lanes, sets))| async move {
            if lanes.is_empty() && sets.is_empty() {
                return Ok(None);
            }
            let leases = self.leases.clone();
            match core.ask(shard, Command::Prepare { lanes, sets, leases }).await {
                Verdict::Prepared(prepared) => Ok(Some(prepared)),
                _ => Err(Attempt::Failed(Refusal::Pool)),
            }
        });
        let answered: Result<Vec<Option<Prepared>>, Attempt> = join_all(asks).await.into_iter().collect();
        let mut answered = answered?;
        let mut stores = answered.iter().flatten().map(|prepared| prepared.store);
        let store = stores.next().unwrap_or(0);
        if stores.any(|other| other != store) {
            return Err(Attempt::Stale);
        }
        let lanes = lane_places.into_iter().map(|(owner, at)| answered[owner].as_ref()?.lanes.get(at).copied());
        let lanes = lanes.collect::<Option<Vec<PreparedLane>>>();
        let taken = |(owner, at): (usize, usize)| answered[owner].as_mut()?.sets.get_mut(at).map(std::mem::take);
        let sets = set_places.into_iter().map(taken).collect::<Option<Vec<PreparedSet>>>();
        match (lanes, sets) {
            (Some(lanes), Some(sets)) => Ok(Prepared { store, lanes, sets }),
            _ => Err(Attempt::Failed(Refusal::Pool)),
        }
    }

    /// Why the bundle cannot be, and what must still be so for that to be true. Pushes come before acks.
    fn objection(&self, parsed: &Parsed<'_>, prepared: &Prepared) -> Result<Option<(No, Option<Bundle>)>, Refusal> {
        let confirm = |lanes, moves| Bundle { store: prepared.store, lanes, moves };
        if prepared.lanes.contains(&PreparedLane::Failed) {
            return Err(Refusal::Pool);
        }
        for (n, (draft, lane)) in self.plan.drafts.iter().zip(&prepared.lanes).enumerate() {
            if let PreparedLane::Known { duplicate: Some(index), .. } = lane {
                let no = self.duplicate(parsed, n as u32, *index);
                return Ok(Some((no, Some(confirm(vec![lane_of(draft, *lane, true)], Vec::new())))));
            }
        }
        for (n, (set, ruled)) in self.sets.iter().zip(&prepared.sets).enumerate() {
            let bad = |outcome: &AckOutcome| {
                !matches!(
                    outcome,
                    AckOutcome::Accepted | AckOutcome::DeadLettered | AckOutcome::Noop | AckOutcome::AlreadyCommitted
                )
            };
            let Some(item) = ruled.items.iter().position(bad) else { continue };
            let fenced = set.lease.is_some() || !self.leases.is_empty();
            let no = match ruled.items[item] {
                AckOutcome::StoreFailed => return Err(Refusal::Pool),
                AckOutcome::NotOwned => No::foreign(&set.partition.to_string()),
                AckOutcome::ConsumerNotFound if !fenced => No::ack_failed(set, "consumer not found"),
                AckOutcome::InvalidLease | AckOutcome::ConsumerNotFound => {
                    No::ack_failed(set, "invalid or expired lease")
                }
                AckOutcome::DlqRejected => No::ack_failed(set, "dlq rejected"),
                _ => {
                    let place = (n as u32, item as u32);
                    let ack = self.place_of_ack.iter().position(|at| *at == place).unwrap_or(0);
                    No::unknown_key(set, &parsed.acks[ack].transaction_id)
                }
            };
            let confirm = ruled.cursor_move.clone().map(|mut one| {
                (one.to, one.dead_letter) = (None, None);
                confirm(Vec::new(), vec![one])
            });
            return Ok(Some((no, confirm)));
        }
        Ok(None)
    }

    fn duplicate(&self, parsed: &Parsed<'_>, draft: u32, index: u32) -> No {
        let lane = &self.plan.drafts[draft as usize].lane;
        let of_lane = |item: &super::push::parse::Item<'_>| self.plan.draft_of_lane[item.lane as usize] == Some(draft);
        let mut items = parsed.pushes.items.iter().zip(&self.plan.fates);
        let named = items.find(|(item, fate)| of_lane(item) && **fate == Fate::Leads { index });
        No::duplicate(lane, named.and_then(|(item, _)| item.transaction_id.as_deref()).unwrap_or(""))
    }
}

fn lane_of(draft: &Draft, lane: PreparedLane, confirm: bool) -> BundleLane {
    let (partition, verified) = match lane {
        PreparedLane::Known { partition, verified, .. } => (Some(partition), verified),
        PreparedLane::Missing | PreparedLane::Failed => (None, Offset::NONE),
    };
    BundleLane { draft: draft.clone(), partition, verified, confirm }
}

async fn commit(core: &Rc<Core>, bundle: Bundle) -> BundleVerdict {
    match core.ask(core.shard(), Command::Bundle(bundle)).await {
        Verdict::Bundle(verdict) => verdict,
        _ => BundleVerdict::Unknown,
    }
}

/// What was committed, into the counters of the process and of the queues. What was pushed the owners count by queue.
fn count(core: &Core, tenant: TenantId, work: &Work, done: &Done) {
    let metrics = core.metrics.shard(core.shard());
    metrics.transaction();
    metrics.push(0, work.plan.drafts.iter().map(|draft| draft.count as u64).sum());
    let outcomes = || done.sets.iter().flat_map(|set| &set.items);
    metrics.ack(0, outcomes().count() as u64);
    let dead = outcomes().filter(|outcome| **outcome == AckOutcome::DeadLettered).count();
    metrics.dead_lettered(dead as u64);
    metrics.conflated(done.sets.iter().map(|set| set.conflated).sum());
    let pushed_to = work.plan.drafts.iter().map(|draft| &draft.lane.queue);
    let acked_in = done.sets.iter().filter_map(|set| set.queue.as_ref());
    core.asked.count_each(tenant, pushed_to.chain(acked_in), |activity| activity.transactions += 1);
    for set in &done.sets {
        let Some(queue) = &set.queue else { continue };
        let accepted = |outcome: &&AckOutcome| matches!(outcome, AckOutcome::Accepted | AckOutcome::DeadLettered);
        let acked = set.items.iter().filter(accepted).count() as u64;
        core.asked.count(tenant, queue, |activity| {
            activity.acked += acked;
            activity.conflated += set.conflated;
        });
    }
}

#[cfg(test)]
mod tests;
