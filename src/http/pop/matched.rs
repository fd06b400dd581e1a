//! The queues that a discovery pop asks: those of its tenant that match a namespace and a task, as this thread knows them.
//!
//! Holds: of one filter one read is on its way; whoever comes meanwhile and needs a later one shares the next.

use crate::core_thread::Core;
use crate::limits::FILTERS_MAX;
use crate::reads::Reads;
use crate::state::{StateCall, StateFn};
use queen_shards::effect::StoreError;
use queen_shards::ids::{Micros, TenantId};
use std::rc::Rc;
use std::sync::Arc;

/// Names are read again after this. Source: data plane 4.5, one re-check a second.
const AGE_MAX: u64 = 1_000_000;
/// The same after a wake: many polls woken by one event share a read.
const AGE_WOKEN: u64 = 50_000;

/// Names of the queues that match, in name order.
pub type Matched = Arc<[Arc<str>]>;

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

/// The names, and a moment at which there were no others.
pub async fn matched_queues(
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
