//! POST /api/v1/push: bytes -> parsed items -> drafts -> verdicts -> bytes.
//!
//!     JSON body --parse--> Parsed --plan--> Draft per partition --Command::Push--> DraftVerdict --answer--> 201
//!     binary body --binary--> Parsed, and on as above      Parsed --told--> what the answer says whatever the verdict is
//!
//! Holds: a payload is copied once, from the body into its frame, and never re-spelled; nothing is sent to a shard
//! before the whole body is known to be good; drafts keep body order; a key is in a draft once (layer 1).
//! Among duplicate keys of one object the last wins, and each of them must be of the right type.
//! Does not look at what is stored (layer 2 is the owner's). In push maintenance everything goes to the spool.

pub mod answer;
pub mod binary;
pub mod parse;
pub mod plan;
pub mod protect;
pub mod told;

use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use futures_util::future::{OptionFuture, join_all};
use queen_shards::command::{Command, Draft, DraftVerdict, Verdict};
use queen_shards::ids::MessageId;
use std::rc::Rc;

/// Answers `POST /api/v1/push`. Source: data plane 3.
pub async fn push(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    if binary::is_binary(request) {
        // On the heap, as everything that is not always awaited: the future of a push is made for each, and moved.
        return Box::pin(binary::push(core, request)).await;
    }
    core.pass(request.body.len()).await;
    let mut parsed = match parse::parse(&request.body) {
        Ok(parsed) => parsed,
        Err(why) => return Refusal::Invalid(why).response(),
    };
    if let Err(refusal) = request.room(answer::room(&parsed)).await {
        return refusal.response();
    }
    protect::mark(core, request.tenant, &mut parsed.lanes).await;
    let ids = core.mint_ids(parsed.items.len());
    let planned = planned(core, request, parsed, &ids);
    finish(core, planned, &ids, false).await
}

/// A push that needs nothing of its body any more.
struct Planned {
    plan: plan::Plan,
    told: told::Told,
    maintenance: bool,
    spool: bool,
}

/// The same from here on, whatever the form of the body was. `ids`: one per item.
fn planned(core: &Core, request: &Request, parsed: parse::Parsed<'_>, ids: &[MessageId]) -> Planned {
    let maintenance = core.push_maintenance();
    let level = core.config.zstd_level;
    let plan = match core.keys() {
        _ if maintenance => plan::plan_each(core.sender(request), &parsed, ids, core.own_keys(), level),
        Some(keys) => plan::plan(core.sender(request), &parsed, ids, keys, level),
        // No message can be keyed for the store before that was reached once: what follows what is told all the same.
        None => plan::plan(core.sender(request), &parsed, ids, core.own_keys(), level),
    };
    let told = told::Told::of(&parsed, ids);
    Planned { plan, told, maintenance, spool: maintenance || core.keys().is_none() }
}

/// Asks the owners and answers. `counts`: with counts only.
async fn finish(core: &Rc<Core>, planned: Planned, ids: &[MessageId], counts: bool) -> Response {
    let Planned { plan, told, maintenance, spool } = planned;
    if let Some(first) = plan.drafts.first() {
        let queues = plan.drafts.iter().map(|draft| &draft.lane.queue);
        core.asked.count_each(first.lane.tenant, queues, |activity| activity.push_requests += 1);
    }
    let verdicts = ask_owners(core, plan.drafts, &plan.draft_of_lane, spool).await;
    // Source: data plane 3.7.
    let status = if maintenance && verdicts.contains(&DraftVerdict::Failed) { 500 } else { 201 };
    // What is spooled untried failed as well. One that was tried is counted there. Source: operations 4.1, 5.11.
    if !maintenance
        && !core.store_is_up()
        && verdicts.iter().any(|verdict| matches!(verdict, DraftVerdict::Buffered | DraftVerdict::Failed))
    {
        core.metrics.shard(core.shard()).db_error();
    }
    let fates = plan.fates;
    core.metrics.shard(core.shard()).push(1, answer::taken(&told, ids, &fates, &verdicts));
    let body = if counts { answer::counts } else { answer::answer };
    Response::json(status, body(&told, ids, &fates, &verdicts))
}

/// Sends every draft to its owner, all shards at once; the verdicts by lane. A lane without a draft is refused as a
/// whole, so its entry is never read.
async fn ask_owners(
    core: &Rc<Core>,
    drafts: Vec<Draft>,
    draft_of_lane: &[Option<u32>],
    spool: bool,
) -> Vec<DraftVerdict> {
    let shards = core.shards();
    let mut owners = Vec::with_capacity(drafts.len());
    let mut parts: Vec<Vec<Draft>> = (0..shards).map(|_| Vec::new()).collect();
    for draft in drafts {
        let owner = draft.lane.owner(shards);
        owners.push((owner, parts[owner].len()));
        parts[owner].push(draft);
    }
    let asks = parts.into_iter().enumerate().map(|(shard, drafts)| {
        let command = |drafts| if spool { Command::Spool { drafts } } else { Command::Push { drafts } };
        OptionFuture::from((!drafts.is_empty()).then(|| core.ask(shard, command(drafts))))
    });
    let mut answered = join_all(asks).await;
    let mut take = |draft: u32| {
        let (owner, at) = owners[draft as usize];
        // An owner that went away without a verdict has stored nothing that anybody was told of.
        let Some(Verdict::Push(verdicts)) = &mut answered[owner] else { return DraftVerdict::Failed };
        verdicts.get_mut(at).map_or(DraftVerdict::Failed, |v| std::mem::replace(v, DraftVerdict::Failed))
    };
    // A lane that is refused whole has no draft; what stands for it is not read.
    let none = DraftVerdict::Refused("refused");
    draft_of_lane.iter().map(|draft| draft.map_or(none.clone(), &mut take)).collect()
}

#[cfg(test)]
mod tests;
