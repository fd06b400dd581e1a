//! POST /api/v1/ack and /api/v1/ack/batch: items -> sets by (partition, lease) -> verdicts -> one array.
//!
//!     body --parse--> Acks --split--> AckSet per (partition, lease) --Command::Ack--> SetVerdict --answer--> array
//!
//! Holds: items keep their order within a set and in the answer; a bad item fails alone and never fails the request;
//! an unknown status word never completes a message; what the store could not write (NUL, lone surrogates in `error`)
//! is replaced before it is sent, so that a nack always counts. Decides nothing else: the rules are the engine's.

pub mod parse;

use super::json::text::{push_int, push_quoted};
use super::refusals::Refusal;
use super::routes::Params;
use super::{Request, Response};
use crate::core_thread::Core;
use futures_util::future::{OptionFuture, join_all};
use parse::{Ack, Acks};
use queen_shards::command::{AckItem, AckOutcome, AckSet, Command, QUEUE_MODE, SetVerdict, Verdict};
use queen_shards::ids::{LeaseId, PartitionId, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::place::owner_of_partition;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Which of the two bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Single,
    Batch,
}

/// `POST /api/v1/ack`
pub async fn single(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    ack(core, request, Form::Single).await
}

/// `POST /api/v1/ack/batch`
pub async fn batch(core: &Rc<Core>, request: &Request, _: &Params) -> Response {
    ack(core, request, Form::Batch).await
}

/// Answers an ack. QUEEN_TENANCY_HEADER words one refusal. Source: data plane 5.
async fn ack(core: &Rc<Core>, request: &Request, form: Form) -> Response {
    let tenancy = core.config.tenancy;
    let acks = match parse::parse(&request.body, form) {
        Ok(acks) => acks,
        Err(why) => return Refusal::Invalid(why).response(),
    };
    if let Err(refusal) = request.room(room(&acks.items)).await {
        return refusal.response();
    }
    let Some(keys) = core.keys() else {
        // No transactionId can be keyed before the store has been reached once.
        let away = vec![Fate::Fails("pool".into()); acks.items.len()];
        return Response::json(200, answer(&acks.items, &away, &[], tenancy));
    };
    let split = split(request.tenant, &acks, keys);
    let verdicts = ask_owners(core, split.sets).await;
    count(core, acks.items.len(), &verdicts);
    Response::json(200, answer(&acks.items, &split.fates, &verdicts, tenancy))
}

/// Accepted, refused and dead-lettered acks of one call, into the counters.
fn count(core: &Core, items: usize, verdicts: &[Option<SetVerdict>]) {
    let outcomes = || verdicts.iter().flatten().flat_map(|verdict| &verdict.items);
    let accepted = outcomes().filter(|outcome| outcome.is_success()).count();
    let metrics = core.metrics.shard(core.shard());
    metrics.ack(1, accepted as u64);
    metrics.ack_failed((items - accepted) as u64);
    metrics.conflated(verdicts.iter().flatten().filter_map(|verdict| verdict.conflated).map(|c| c.messages).sum());
    metrics.dead_lettered(outcomes().filter(|o| **o == AckOutcome::DeadLettered).count() as u64);
}

/// What becomes of one item, as far as its body tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// Place in a set.
    Asks { set: u32, item: u32 },
    /// Fails alone, with this text.
    Fails(Box<str>),
}

struct Split {
    sets: Vec<AckSet>,
    fates: Vec<Fate>,
}

/// Sets in order of first appearance; items in request order. Source: data plane 5.4.
fn split(tenant: TenantId, acks: &Acks<'_>, keys: &KeyHasher) -> Split {
    let group: Arc<str> = Arc::from(acks.group.as_deref().unwrap_or(QUEUE_MODE));
    let mut split = Split { sets: Vec::new(), fates: Vec::with_capacity(acks.items.len()) };
    let mut set_of: HashMap<(PartitionId, Option<LeaseId>), u32> = HashMap::new();
    let mut last = None;
    for ack in &acks.items {
        let partition = match partition_id(&ack.partition_id) {
            Ok(partition) => partition,
            Err(why) => {
                split.fates.push(Fate::Fails(why));
                continue;
            }
        };
        let address = (partition, lease_id(&ack.lease_id));
        let set = match last {
            Some((same, set)) if same == address => set,
            _ => *set_of.entry(address).or_insert_with(|| {
                let (partition, lease) = address;
                split.sets.push(AckSet { tenant, partition, group: group.clone(), lease, items: Vec::new() });
                split.sets.len() as u32 - 1
            }),
        };
        last = Some((address, set));
        let items = &mut split.sets[set as usize].items;
        split.fates.push(Fate::Asks { set, item: items.len() as u32 });
        let error = ack.error.as_deref().filter(|error| !error.is_empty()).map(Into::into);
        items.push(AckItem { key: keys.key(ack.transaction_id.as_bytes()), word: ack.word, error });
    }
    split
}

/// A positive decimal number; the error is what the item answers.
pub(crate) fn partition_id(text: &str) -> Result<PartitionId, Box<str>> {
    let refused = |why: &dyn std::fmt::Display| Err(format!("invalid partitionId: {why}").into());
    if let Some(odd) = text.chars().find(|c| !c.is_ascii_digit()) {
        return refused(&format_args!("unexpected character {odd:?}"));
    }
    match text.parse::<i64>() {
        Ok(0) => refused(&"it must be positive"),
        Ok(number) => Ok(PartitionId(number)),
        Err(why) => refused(&why),
    }
}

/// `None` when empty. A text that is no UUID is a lease that nobody holds.
pub(crate) fn lease_id(text: &str) -> Option<LeaseId> {
    if text.is_empty() {
        return None;
    }
    Some(uuid::Uuid::try_parse(text).map_or(LeaseId::NONE, |id| LeaseId(id.as_u128())))
}

/// Sends every set to its partition's owner, all shards at once; verdicts in the order of the sets.
async fn ask_owners(core: &Rc<Core>, sets: Vec<AckSet>) -> Vec<Option<SetVerdict>> {
    let shards = core.shards();
    let mut places = Vec::with_capacity(sets.len());
    let mut parts: Vec<Vec<AckSet>> = (0..shards).map(|_| Vec::new()).collect();
    for set in sets {
        let owner = owner_of_partition(set.partition, shards);
        places.push((owner, parts[owner].len()));
        parts[owner].push(set);
    }
    let asks = parts
        .into_iter()
        .enumerate()
        .map(|(shard, sets)| OptionFuture::from((!sets.is_empty()).then(|| core.ask(shard, Command::Ack { sets }))));
    let of_owner = |verdict| match verdict {
        Some(Verdict::Ack(verdicts)) => verdicts.into_iter().map(Some).collect(),
        _ => Vec::new(),
    };
    let mut answered: Vec<Vec<Option<SetVerdict>>> = join_all(asks).await.into_iter().map(of_owner).collect();
    places.into_iter().map(|(owner, at)| answered[owner].get_mut(at).and_then(Option::take)).collect()
}

/// About how many bytes [`answer`] will make of these items.
fn room(items: &[Ack<'_>]) -> usize {
    const ENTRY_ROOM: usize = 130;
    items.len() * ENTRY_ROOM + items.iter().map(|item| item.transaction_id.len()).sum::<usize>()
}

/// The body, one entry per item in request order. A set without a verdict has met a store failure.
/// Source: data plane 5.3, 5.5.
fn answer(items: &[Ack<'_>], fates: &[Fate], verdicts: &[Option<SetVerdict>], tenancy: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + room(items));
    out.push(b'[');
    for (i, (item, fate)) in items.iter().zip(fates).enumerate() {
        let (outcome, released) = match fate {
            Fate::Fails(_) => (None, false),
            Fate::Asks { set, item } => {
                let verdict = verdicts.get(*set as usize).and_then(Option::as_ref);
                let outcome = verdict.and_then(|verdict| verdict.items.get(*item as usize).copied());
                (Some(outcome.unwrap_or(AckOutcome::StoreFailed)), verdict.is_some_and(|verdict| verdict.released))
            }
        };
        let error = match (fate, outcome) {
            (Fate::Fails(why), _) => Some(&**why),
            (_, Some(outcome)) => error_of(outcome, tenancy),
            (_, None) => None,
        };
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_int(&mut out, i);
        out.extend_from_slice(b",\"transactionId\":");
        push_quoted(&mut out, &item.transaction_id);
        out.extend_from_slice(b",\"success\":");
        push_bool(&mut out, error.is_none());
        out.extend_from_slice(b",\"error\":");
        match error {
            None => out.extend_from_slice(b"null"),
            Some(error) => push_quoted(&mut out, error),
        }
        out.extend_from_slice(b",\"leaseReleased\":");
        push_bool(&mut out, released && error.is_none());
        out.extend_from_slice(b",\"dlq\":");
        push_bool(&mut out, outcome == Some(AckOutcome::DeadLettered));
        out.extend_from_slice(b",\"noop\":");
        push_bool(&mut out, outcome == Some(AckOutcome::Noop));
        if let Some(conflated) = conflated(fate, verdicts) {
            out.extend_from_slice(b",\"conflated\":");
            push_int(&mut out, conflated);
        }
        out.push(b'}');
    }
    out.push(b']');
    out
}

/// Messages that an item retired unseen, when it is the one that closed a conflating lease.
fn conflated(fate: &Fate, verdicts: &[Option<SetVerdict>]) -> Option<u64> {
    let Fate::Asks { set, item } = fate else { return None };
    let closed = verdicts.get(*set as usize)?.as_ref()?.conflated?;
    (closed.item == *item).then_some(closed.messages)
}

fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// The text of an outcome that is no success. Clients match on words of these: they are the contract.
fn error_of(outcome: AckOutcome, tenancy: bool) -> Option<&'static str> {
    match outcome {
        AckOutcome::Accepted | AckOutcome::DeadLettered | AckOutcome::Noop => None,
        AckOutcome::AlreadyCommitted => Some("already committed: the cursor moved past this message before this ack"),
        AckOutcome::Unresolvable => Some(
            "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers",
        ),
        AckOutcome::InvalidLease => Some("invalid or expired lease"),
        AckOutcome::NotOwned if tenancy => Some("partition not owned by tenant"),
        AckOutcome::ConsumerNotFound | AckOutcome::NotOwned => Some("consumer not found"),
        AckOutcome::DlqRejected => Some("dlq rejected"),
        AckOutcome::StoreFailed => Some("ack flush failed; lease will expire and redeliver"),
    }
}

#[cfg(test)]
mod tests;
