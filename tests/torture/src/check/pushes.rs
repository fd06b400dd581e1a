//! C1 to C4: what was pushed against what is stored and delivered.

use super::Found;
use super::view::{Attempt, Fate, LaneView, View};
use crate::history::{Stored, Wall};
use std::collections::{HashMap, HashSet};

/// C1: a message that was accepted is stored, and every acking group has seen it or has its dead letter; only retention
/// may have taken it. A group that acks at delivery may have lost what came with an answer nobody read.
pub fn nothing_acknowledged_is_lost(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(plan) = view.queue(queue) else { continue };
        let stored = by_key(lane);
        let retained = plan.retention_secs > 0;
        for attempt in lane.attempts.iter().filter(|attempt| attempt.is_accepted()) {
            let Some(status) = attempt.status().or(Some("committed")) else { continue };
            let there = stored.get(&*attempt.item.key).is_some_and(|all| match attempt.fate {
                Fate::Told(result) if status == "queued" => all.iter().any(|s| Some(s.offset) == result.offset),
                _ => true,
            });
            if !there && !retained {
                let key = &attempt.item.key;
                found.add(
                    attempt.op.done(),
                    format!("{queue}/{partition}: {key} was answered `{status}` and is not stored"),
                );
            }
        }
        let Some(last) = lane.last else { continue };
        for group in &plan.groups {
            let seen = lane.groups.get(&*group.name);
            let delivered: HashSet<i64> = seen
                .iter()
                .flat_map(|g| g.deliveries.iter().flat_map(|d| d.messages.iter().map(|m| m.offset)))
                .collect();
            let excused = group.auto_ack && view.history.ops.iter().any(|op| lost_pop_of(op, queue, &group.name));
            for message in last.stored.iter().filter(|m| !delivered.contains(&m.offset)) {
                let dead = lane.dead_letters.iter().any(|d| d.group == group.name && d.offset == message.offset);
                if !dead && !excused && !retained {
                    let (key, offset, group) = (&message.key, message.offset, &group.name);
                    found.add(None, format!("{queue}/{partition}: {key} at {offset} never came to group {group}"));
                }
            }
        }
    }
}

fn lost_pop_of(op: &crate::history::Op, queue: &str, group: &str) -> bool {
    matches!(&op.call, crate::history::Call::Pop { queue: q, group: g, .. } if q == queue && g == group)
        && op.is_unknown()
}

/// C2: what is stored or delivered was pushed, byte for byte; what was refused is nowhere, and what `failed` is at most
/// once, where a fault may have swallowed the outcome of its commit.
pub fn nothing_is_invented(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let keys = lane.by_key();
        let check = |key: &str, payload: &str| match keys.get(key) {
            None => Some(format!("{queue}/{partition}: {key} was never pushed there")),
            Some(tries) if !tries.iter().any(|attempt| attempt.item.payload == payload) => {
                Some(format!("{queue}/{partition}: {key} came as {payload}, was pushed as {}", tries[0].item.payload))
            }
            _ => None,
        };
        for group in lane.groups.values() {
            for delivery in &group.deliveries {
                for message in &delivery.messages {
                    if let Some(text) = check(&message.key, &message.payload) {
                        found.add(delivery.op.done(), text);
                    }
                }
            }
        }
        for message in lane.last.iter().flat_map(|last| &last.stored) {
            if let Some(text) = check(&message.key, &message.payload) {
                found.add(None, text);
            }
        }
        let stored = by_key(lane);
        for (key, tries) in &keys {
            let times = stored.get(key).map_or(0, Vec::len);
            if times == 0 || tries.iter().any(|attempt| attempt.is_accepted()) {
                continue;
            }
            let possible = tries.iter().filter(|attempt| attempt.may_be_stored()).count();
            if possible == 0 {
                found.add(tries[0].op.done(), format!("{queue}/{partition}: {key} was refused and is stored"));
            } else if possible < times {
                found.add(None, format!("{queue}/{partition}: {key} was never accepted and is stored {times} times"));
            } else if tries.iter().all(|attempt| attempt.status() == Some("failed") && !view.is_disturbed(attempt.op)) {
                let text = format!("{queue}/{partition}: {key} was answered `failed` without any fault and is stored");
                found.add(tries[0].op.done(), text);
            }
        }
    }
}

/// C3: two stored messages of one key are never closer than the window, counted from acceptance, and no push is stored
/// twice, whatever the window.
pub fn no_duplicate_inside_the_window(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(window) = view.queue(queue).map(|plan| plan.dedup_secs as Wall * 1_000_000).filter(|w| *w > 0) else {
            continue;
        };
        let keys = lane.by_key();
        for (key, all) in by_key(lane).into_iter().filter(|(_, all)| all.len() > 1) {
            let tries = keys.get(key).map_or(&[][..], Vec::as_slice);
            let offsets: Vec<i64> = all.iter().map(|s| s.offset).collect();
            let possible = tries.iter().filter(|attempt| attempt.may_be_stored()).count();
            if closer_than(window, &all) || all_asked_within(window, tries) {
                found.add(None, format!("{queue}/{partition}: {key} is stored at {offsets:?} inside its window"));
            } else if possible < all.len() {
                // One push is one message, however long its outage outlasted the window.
                let text =
                    format!("{queue}/{partition}: {key} was pushed {possible} times, and is stored at {offsets:?}");
                found.add(None, text);
            }
        }
    }
}

/// By what the brokers say of each.
fn closer_than(window: Wall, all: &[&Stored]) -> bool {
    let mut since: Vec<Wall> = all.iter().map(|stored| stored.since()).collect();
    since.sort_unstable();
    since.windows(2).any(|pair| pair[1] - pair[0] < window)
}

/// Whatever the brokers say of what waited in a spool: all pushes that can have made it were asked for, and over, within the
/// window. One whose answer was lost may have been read from its socket after its client left.
fn all_asked_within(window: Wall, tries: &[&Attempt]) -> bool {
    let made = |attempt: &&&Attempt| attempt.may_be_stored() && attempt.status() != Some("duplicate");
    let tries = || tries.iter().filter(made);
    let over = |attempt: &&Attempt| {
        let late = if matches!(attempt.fate, Fate::Unknown) { UNREAD_MAX } else { 0 };
        attempt.op.ended.as_ref().map_or(Wall::MAX, |ended| ended.0.wall.saturating_add(late))
    };
    let from = tries().map(|attempt| attempt.op.invoked.wall).min();
    from.zip(tries().map(over).max()).is_some_and(|(from, to)| to.saturating_sub(from) < window)
}

/// How long a request may lie in the socket of a broker that is frozen or starved, after its client has left.
const UNREAD_MAX: Wall = 5_000_000;
/// How far the broker's lower bound of PostgreSQL's clock may lag: one commit deadline and a second. A key may count as
/// stored for so much longer than its window, never shorter.
const WINDOW_LAG: Wall = 6_000_000;

/// C4: `duplicate` is answered only where a message with that key is stored, inside the window; its id and offset are
/// that message's.
pub fn no_false_duplicate(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(plan) = view.queue(queue) else { continue };
        let window = plan.dedup_secs as Wall * 1_000_000;
        let stored = by_key(lane);
        let mut ids: HashMap<i64, &str> = HashMap::new();
        for message in lane.groups.values().flat_map(|g| g.deliveries.iter().flat_map(|d| &d.messages)) {
            let known = ids.entry(message.offset).or_insert(&message.id);
            if *known != message.id {
                found.add(None, format!("{queue}/{partition}: offset {} has two message ids", message.offset));
            }
        }
        let mut in_body: HashSet<(usize, &str)> = HashSet::new();
        for attempt in &lane.attempts {
            let repeated = !in_body.insert((std::ptr::from_ref(attempt.op) as usize, &attempt.item.key));
            let Fate::Told(result) = attempt.fate else { continue };
            if let (Some(offset), Some(id)) = (result.offset, result.offset.and_then(|offset| ids.get(&offset)))
                && *id != result.id
                && !is_zero(&result.id)
            {
                let text =
                    format!("{queue}/{partition}: the answer says {} at {offset}, delivered was {id}", result.id);
                found.add(attempt.op.done(), text);
            }
            if result.status != "duplicate" || repeated {
                continue;
            }
            let done = attempt.op.ended.as_ref().map_or(Wall::MAX, |e| e.0.wall);
            let since = attempt.op.invoked.wall - window - WINDOW_LAG;
            let of =
                stored.get(&*attempt.item.key).into_iter().flatten().find(|s| {
                    result.offset.is_none_or(|offset| offset == s.offset) && (since..=done).contains(&s.created)
                });
            if of.is_none() && plan.retention_secs == 0 {
                let (key, offset) = (&attempt.item.key, result.offset);
                let text =
                    format!("{queue}/{partition}: {key} was answered `duplicate` of {offset:?}, which it is not");
                found.add(attempt.op.done(), text);
            }
        }
    }
}

fn is_zero(id: &str) -> bool {
    id == "00000000-0000-0000-0000-000000000000"
}

fn by_key<'a>(lane: &LaneView<'a>) -> HashMap<&'a str, Vec<&'a Stored>> {
    let mut keys: HashMap<&str, Vec<&Stored>> = HashMap::new();
    for message in lane.last.iter().flat_map(|last| &last.stored) {
        keys.entry(&message.key).or_default().push(message);
    }
    keys
}
