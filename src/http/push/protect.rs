//! Before a push is planned: which of its lanes are encrypted. Free while no key is loaded. Source: operations 3.2.

use super::parse::Lane;
use crate::core_thread::Core;
use queen_shards::ids::TenantId;
use std::collections::HashMap;
use std::rc::Rc;

/// Notes on each lane whether its payloads are encrypted. One look for all of its queues.
pub async fn mark(core: &Rc<Core>, tenant: TenantId, lanes: &mut [Lane<'_>]) {
    if core.cipher.is_none() {
        return;
    }
    let (of, queues) = queues(lanes);
    let encrypted = Box::pin(core.encrypt(tenant, &queues)).await;
    for (lane, at) in lanes.iter_mut().zip(of) {
        lane.encrypted = at.is_some_and(|at| encrypted[at]);
    }
}

/// The distinct queues of the lanes that are not refused, and the place of each lane's queue among them.
fn queues<'a>(lanes: &'a [Lane<'_>]) -> (Vec<Option<usize>>, Vec<&'a str>) {
    let (mut places, mut queues) = (HashMap::new(), Vec::new());
    let mut of = Vec::with_capacity(lanes.len());
    for lane in lanes {
        if lane.refused.is_some() {
            of.push(None);
            continue;
        }
        let at = *places.entry(&*lane.queue).or_insert(queues.len());
        if at == queues.len() {
            queues.push(&*lane.queue);
        }
        of.push(Some(at));
    }
    (of, queues)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::push::parse::parse;

    #[test]
    fn each_queue_is_asked_for_once_and_none_for_what_is_refused() {
        let item =
            |queue: &str, partition: &str| format!(r#"{{"queue":"{queue}","partition":"{partition}","payload":1}}"#);
        let long = "x".repeat(2000);
        let items = [item("a", "1"), item("b", "1"), item("a", "2"), item("c", &long), item("b", "2")].join(",");
        let body = format!(r#"{{"items":[{items}]}}"#);
        let parsed = parse(body.as_bytes()).expect("a body");
        let (of, queues) = queues(&parsed.lanes);
        assert_eq!(queues, ["a", "b"]);
        assert_eq!(of, [Some(0), Some(1), Some(0), None, Some(1)]);
    }
}
