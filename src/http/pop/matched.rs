//! Whom a pop asks: the queues of a discovery pop, those of its tenant that match a namespace and a task as this thread
//! knows them; the shards that own them; and which of both first.
//!
//! Holds: of one filter one read is on its way; whoever comes meanwhile and needs a later one shares the next.

use super::asking::Asking;
use crate::core_thread::Core;
use crate::limits::FILTERS_MAX;
use crate::reads::Reads;
use crate::state::{StateCall, StateFn};
use queen_shards::command::PopFrom;
use queen_shards::effect::StoreError;
use queen_shards::ids::{Micros, TenantId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Names are read again after this. Source: data plane 4.5, one re-check a second.
const AGE_MAX: u64 = 1_000_000;
/// The same after a wake: many polls woken by one event share a read.
const AGE_WOKEN: u64 = 50_000;
/// Entries of the per-thread table below; beyond it it starts anew.
const TABLE_MAX: usize = 4096;

/// Names of the queues that match, in name order.
type Matched = Arc<[Arc<str>]>;

/// Which names of queues will do, for a pop that finds its queues by namespace or task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of a moment ago, which other pops have read.
    Usual,
    /// Something happened: it may have been that a queue went, and every ask for it would be in vain.
    Woken,
    /// Read from this moment on: before a pop is answered empty, it has asked all queues that were there when it came.
    /// Source: data plane 3.4.5.
    Since(Micros),
}

type Filter = (TenantId, Option<String>, Option<String>);

thread_local! {
    static READS: Reads<Filter, Matched> = Reads::new(FILTERS_MAX);
}

/// The queues of a discovery pop to ask now, and a moment at which there were no others.
pub(super) async fn matching(
    core: &Rc<Core>,
    asking: &Asking,
    namespace: &Option<String>,
    task: &Option<String>,
    names: Names,
) -> Result<(Vec<PopFrom>, Micros), StoreError> {
    let (matched, named_at) = matched_queues(core, asking.tenant, namespace, task, names).await?;
    let queue = |name: &Arc<str>| PopFrom::Queue { tenant: asking.tenant, queue: name.clone() };
    let mut queues: Vec<PopFrom> = matched.iter().map(queue).collect();
    let turn = next_turn(hash_source(asking.tenant, "", &asking.group));
    if !queues.is_empty() {
        let first = turn as usize % queues.len();
        queues.rotate_left(first);
    }
    Ok((queues, named_at))
}

/// The names, and a moment at which there were no others.
async fn matched_queues(
    core: &Rc<Core>,
    tenant: TenantId,
    namespace: &Option<String>,
    task: &Option<String>,
    names: Names,
) -> Result<(Matched, Micros), StoreError> {
    let (since, or_known) = match names {
        Names::Usual => (Micros(core.now().0.saturating_sub(AGE_MAX)), true),
        Names::Woken => (Micros(core.now().0.saturating_sub(AGE_WOKEN)), true),
        Names::Since(moment) => (moment, false),
    };
    let read = || {
        let (core, args) = (core.clone(), serde_json::json!({ "namespace": namespace, "task": task }));
        async move {
            let reply = core.state(StateCall { function: StateFn::MatchQueues, tenant, args }).await?;
            let names: Vec<String> = match reply {
                Some(text) => serde_json::from_str(&text).map_err(|e| StoreError::Refused(e.to_string()))?,
                None => Vec::new(),
            };
            Ok(names.into_iter().map(Arc::from).collect())
        }
    };
    let reads = READS.with(Reads::clone);
    reads.get((tenant, namespace.clone(), task.clone()), since, or_known, || core.now(), read).await
}

/// Shards that own something of `from`, the one to ask first in front: it rotates per (queue, group), so that the
/// backlog of one shard cannot hide another's. Source: rule 23.
pub(super) fn owners(from: &PopFrom, group: &str, shards: usize) -> Vec<usize> {
    match from {
        PopFrom::Partition(lane) => vec![lane.owner(shards)],
        PopFrom::Queue { tenant, queue } => {
            let first = if shards > 1 { next_turn(hash_source(*tenant, queue, group)) as usize } else { 0 };
            (0..shards).map(|i| (first + i) % shards).collect()
        }
    }
}

thread_local! {
    /// How often each (tenant, queue, group) was asked.
    static TURNS: RefCell<HashMap<u64, u32>> = RefCell::default();
}

fn hash_source(tenant: TenantId, queue: &str, group: &str) -> u64 {
    queen_shards::place::hash_names(tenant, queue, group)
}

/// Counts the asks of one source; the first is 0.
fn next_turn(source: u64) -> u32 {
    TURNS.with_borrow_mut(|turns| {
        if turns.len() >= TABLE_MAX && !turns.contains_key(&source) {
            turns.clear();
        }
        let turn = turns.entry(source).or_default();
        *turn = turn.wrapping_add(1);
        turn.wrapping_sub(1)
    })
}
