//! C11, C13, C14: what must be so when everything is over.

use super::Found;
use super::view::View;
use std::collections::HashSet;

/// C11: what was answered `buffered` is stored, was a duplicate at the drain, is pending, or was lost on purpose.
pub fn spool_adds_up(view: &View, found: &mut Found) {
    let (mut buffered, mut stored) = (0u64, 0u64);
    for (&(queue, partition), lane) in &view.lanes {
        let keys: HashSet<&str> =
            lane.attempts.iter().filter(|a| a.status() == Some("buffered")).map(|a| &*a.item.key).collect();
        let there: HashSet<&str> = lane.last.iter().flat_map(|l| l.stored.iter().map(|s| &*s.key)).collect();
        let kept = keys.iter().filter(|key| there.contains(**key)).count() as u64;
        // Retention may have removed what was drained: then nobody can tell, and C1 has said what it can.
        let removed = view.queue(queue).is_some_and(|plan| plan.retention_secs > 0);
        buffered += if removed { kept } else { keys.len() as u64 };
        stored += kept;
        if view.history.finals.spool.is_none() && !keys.is_empty() {
            found.add(None, format!("{queue}/{partition}: {} keys `buffered` by a broker without a spool", keys.len()));
        }
    }
    let Some(spool) = view.history.finals.spool else { return };
    if spool.quarantined > spool.damaged {
        found.add(None, format!("{} records set aside, {} were damaged on purpose", spool.quarantined, spool.damaged));
    }
    if buffered > stored + spool.pending + spool.damaged {
        let text = format!("{buffered} keys were answered `buffered`: {stored} stored, {} pending", spool.pending);
        found.add(None, text);
    }
}

/// C13: after the last heal a push is `queued` and a pop delivers in time, every group's backlog drains, and the broker
/// never ended by itself.
pub fn it_recovers(view: &View, found: &mut Found) {
    let limit = view.history.plan.recovery_ms;
    for probe in &view.history.finals.probes {
        match probe.took_ms {
            None => found.add(None, format!("{}: never", probe.what)),
            Some(took) if limit < took => found.add(None, format!("{}: after {took} ms, limit {limit}", probe.what)),
            Some(_) => {}
        }
    }
    for crash in &view.history.finals.crashes {
        found.add(None, format!("the broker ended by itself: {crash}"));
    }
    for (&(queue, partition), lane) in &view.lanes {
        let (Some(last), Some(plan)) = (lane.last, view.queue(queue)) else { continue };
        for group in plan.groups.iter() {
            let committed = last.cursors.iter().find(|(g, _)| *g == group.name).map_or(-1, |(_, committed)| *committed);
            if committed < last.last_offset && plan.retention_secs == 0 {
                let (name, end) = (&group.name, last.last_offset);
                found.add(None, format!("{queue}/{partition}: group {name} ends at {committed} of {end}"));
            }
        }
        if last.stored.is_empty() && last.log_start <= last.last_offset && plan.retention_secs == 0 {
            found.add(None, format!("{queue}/{partition}: nothing can be read of 0..={}", last.last_offset));
        }
        let mut next = last.log_start;
        for message in &last.stored {
            if message.offset != next {
                found.add(None, format!("{queue}/{partition}: the log goes from {} to {}", next - 1, message.offset));
            }
            next = message.offset + 1;
        }
    }
}

/// C14: a plaintext canary of an encrypted queue is nowhere on disk.
pub fn nothing_leaks(view: &View, found: &mut Found) {
    for place in view.history.finals.canaries.iter().flatten() {
        found.add(None, format!("a plaintext canary is in {place}"));
    }
}
