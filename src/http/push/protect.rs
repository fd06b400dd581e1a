//! Before a push is planned: which of its lanes are encrypted. Free while no key is loaded. Source: operations 3.2.

use super::parse::Lane;
use crate::core_thread::Core;
use queen_shards::ids::TenantId;
use std::rc::Rc;

/// Notes on each lane whether its payloads are encrypted. One look per run of lanes of one queue.
pub async fn mark(core: &Rc<Core>, tenant: TenantId, lanes: &mut [Lane<'_>]) {
    if core.cipher.is_none() {
        return;
    }
    let mut last: Option<(usize, bool)> = None;
    for at in 0..lanes.len() {
        if lanes[at].refused.is_some() {
            continue;
        }
        let encrypted = match last {
            Some((same, encrypted)) if lanes[same].queue == lanes[at].queue => encrypted,
            _ => core.encrypts(tenant, &lanes[at].queue).await,
        };
        lanes[at].encrypted = encrypted;
        last = Some((at, encrypted));
    }
}
