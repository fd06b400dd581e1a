//! C5, C6, C7, C12: in which order, how completely, how exclusively and how early messages come.

use super::Found;
use super::view::{Attempt, Delivery, Fate, GroupView, LaneView, View};
use crate::history::Micros;
use std::collections::HashMap;

/// C5: an offset is one message for everybody, answers go up in offset order, and a push that was answered before
/// another was asked for comes first, across `queued` and `buffered`. A producer that changes brokers while one of them
/// has undrained records of the partition is not promised the last part.
pub fn order(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let mut keys: HashMap<i64, &str> = HashMap::new();
        let stored = lane.last.iter().flat_map(|last| last.stored.iter().map(|s| (s.offset, &*s.key)));
        let all = lane.groups.values().flat_map(|g| &g.deliveries);
        let delivered = all.clone().flat_map(|d| d.messages.iter().map(|m| (m.offset, &*m.key)));
        for (offset, key) in stored.chain(delivered) {
            let known = *keys.entry(offset).or_insert(key);
            if known != key {
                found.add(None, format!("{queue}/{partition}: offset {offset} is {known} and {key}"));
            }
        }
        for delivery in all {
            let rises = delivery.messages.windows(2).all(|pair| pair[1].offset == pair[0].offset + 1);
            if !rises {
                let offsets: Vec<i64> = delivery.messages.iter().map(|m| m.offset).collect();
                found.add(delivery.op.done(), format!("{queue}/{partition}: one answer has offsets {offsets:?}"));
            }
        }
        sent_order(view, (queue, partition), lane, found);
    }
}

/// A stored message with what bounds the moment it was accepted.
struct Sent<'a> {
    offset: i64,
    key: &'a str,
    /// Not before this.
    from: Micros,
    /// Not after this; `None` when nobody was told.
    to: Option<Micros>,
    /// (client, broker) that must be the same for order to be promised; `None`: any two.
    bound: Option<(u16, u8)>,
}

fn sent_order(view: &View, (queue, partition): (&str, &str), lane: &LaneView, found: &mut Found) {
    let Some(last) = lane.last else { return };
    let keys = lane.by_key();
    let one_broker = view.history.plan.brokers <= 1;
    let mut seen: HashMap<&str, i64> = HashMap::new();
    let mut sent: Vec<Sent> = Vec::new();
    for message in &last.stored {
        // Beyond the window a key may be stored again: which attempt made which message is known for the first only.
        if seen.insert(&message.key, message.offset).is_some() {
            continue;
        }
        let Some(tries) = keys.get(&*message.key) else { continue };
        let first: &Attempt = tries[0];
        let told = tries.iter().find(|attempt| match attempt.fate {
            Fate::Told(result) => result.offset == Some(message.offset) || result.status == "buffered",
            Fate::Committed => true,
            Fate::Refused | Fate::Unknown => false,
        });
        let spooled = tries.iter().any(|attempt| attempt.status() == Some("buffered"));
        // A record in a spool is ordered on its broker; against another broker it is only ordered by its commit.
        let bound = (spooled && !one_broker).then_some((first.op.client, first.op.broker));
        let (from, to) = (first.op.invoked.at, told.map(|attempt| attempt.op.done()));
        sent.push(Sent { offset: message.offset, key: &message.key, from, to, bound });
    }
    // From the highest offset down: nothing above may have been answered before this one was asked for.
    let mut earliest: HashMap<Option<(u16, u8)>, (Micros, &str)> = HashMap::new();
    for one in sent.iter().rev() {
        let above = earliest.iter().filter(|(bound, _)| bound.is_none_or(|bound| one.bound == Some(bound)));
        for (_, (to, key)) in above {
            if *to < one.from {
                let text = format!(
                    "{queue}/{partition}: {key} was answered before {} at {} was sent, and comes after it",
                    one.key, one.offset
                );
                found.add(*to, text);
            }
        }
        if let Some(to) = one.to {
            let slot = earliest.entry(one.bound).or_insert((to, one.key));
            if to < slot.0 {
                *slot = (to, one.key);
            }
        }
    }
}

/// C6: a claim starts where the cursor is: right after what the group's acks completed, never above it. So the first
/// deliveries of a partition are contiguous.
pub fn no_gap(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(plan) = view.queue(queue) else { continue };
        for (&name, group) in &lane.groups {
            let Some(group_plan) = view.group(queue, name) else { continue };
            if group_plan.auto_ack {
                auto_ack_gaps(plan.retention_secs, (queue, partition, name), lane, group, found);
                continue;
            }
            let mut reached: Vec<(Micros, i64)> = group
                .settles
                .iter()
                .filter_map(|settle| Some((settle.op.invoked.at, settle.moves_to(false)?)))
                .collect();
            reached.sort_unstable();
            let mut highest = -1;
            let mut settles = reached.into_iter().peekable();
            for delivery in &group.deliveries {
                while let Some((_, to)) = settles.next_if(|(at, _)| *at < delivery.op.done()) {
                    highest = highest.max(to);
                }
                let next = if plan.retention_secs > 0 { i64::MAX } else { highest + 1 };
                if next < delivery.first() {
                    let text = format!(
                        "{queue}/{partition}: group {name} got {} next, although no ack completed {next}",
                        delivery.first()
                    );
                    found.add(delivery.op.done(), text);
                }
            }
            // The end: the cursor may be no further than what acks can have moved it to.
            let committed = lane.last.iter().flat_map(|l| &l.cursors).find(|(g, _)| g == name).map(|(_, c)| *c);
            let most = group.settles.iter().filter_map(|settle| settle.moves_to(false)).max().unwrap_or(-1);
            if let Some(committed) = committed.filter(|c| most < *c)
                && plan.retention_secs == 0
            {
                let text = format!("{queue}/{partition}: the cursor of {name} is at {committed}, acks reach {most}");
                found.add(None, text);
            }
        }
    }
}

fn auto_ack_gaps(
    retention: u64,
    (queue, partition, name): (&str, &str, &str),
    lane: &LaneView,
    group: &GroupView,
    found: &mut Found,
) {
    let mut seen: HashMap<i64, ()> = HashMap::new();
    for delivery in &group.deliveries {
        for message in &delivery.messages {
            if seen.insert(message.offset, ()).is_some() {
                let text = format!("{queue}/{partition}: group {name} got {} twice, acked at delivery", message.offset);
                found.add(delivery.op.done(), text);
            }
        }
    }
    let highest = seen.keys().copied().max().unwrap_or(-1);
    let gap = (lane.log_start()..=highest).find(|offset| !seen.contains_key(offset));
    if let Some(gap) = gap.filter(|_| group.lost_pops.is_empty() && retention == 0) {
        found.add(None, format!("{queue}/{partition}: group {name} never got {gap}, and no answer was lost"));
    }
}

/// C7: two leases of one (partition, group) never overlap in the driver's clock, with no allowance. A lease is held for
/// certain from its answer until its request plus its length (PostgreSQL's clock grants and judges it, later), or until
/// the first request that may have ended it.
pub fn leases_exclude_each_other(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        for (&name, group) in &lane.groups {
            if view.group(queue, name).is_none_or(|plan| plan.auto_ack) {
                continue;
            }
            let mut held: Vec<(Micros, Micros, &Delivery)> =
                group.deliveries.iter().map(|d| (d.op.done(), held_until(view, group, d), d)).collect();
            held.retain(|(from, to, _)| from < to);
            held.sort_by_key(|(from, ..)| *from);
            let mut last: Option<(Micros, &Delivery)> = None;
            for (from, to, delivery) in held {
                if let Some((until, other)) = last.filter(|(until, _)| from < *until)
                    && other.lease != delivery.lease
                {
                    let text = format!(
                        "{queue}/{partition}: group {name} holds {} and {} at once, for {} us",
                        other.lease,
                        delivery.lease,
                        until.min(to) - from
                    );
                    found.add(from, text);
                }
                if last.is_none_or(|(until, _)| until < to) {
                    last = Some((to, delivery));
                }
            }
        }
    }
}

fn held_until(view: &View, group: &GroupView, delivery: &Delivery) -> Micros {
    let granted = delivery.op.invoked.at + delivery.lease_secs * 1_000_000;
    let extended =
        view.extends.get(delivery.lease).into_iter().flatten().filter_map(|op| match (&op.call, op.answer()) {
            (crate::history::Call::Extend { secs, .. }, Some(crate::history::Answer::Extend { success: true })) => {
                Some(op.invoked.at + secs * 1_000_000)
            }
            _ => None,
        });
    let expires = extended.max().map_or(granted, |extended| granted.max(extended));
    let own = group.settles.iter().filter(|settle| settle.lease == delivery.lease);
    let ends = own.filter(|s| s.signal().is_some() || s.completed().is_some_and(|c| delivery.last() <= c));
    ends.map(|settle| settle.op.invoked.at).min().map_or(expires, |end| expires.min(end))
}

/// C12: nothing is delivered before `createdAt` plus the delay, on the database's clock.
pub fn nothing_comes_early(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(delay) = view.queue(queue).map(|plan| plan.delay_secs as i64 * 1_000_000).filter(|d| *d > 0) else {
            continue;
        };
        for delivery in lane.groups.values().flat_map(|g| &g.deliveries) {
            let Some((moment, _)) = &delivery.op.ended else { continue };
            for message in delivery.messages.iter().filter(|m| moment.wall < m.created + delay) {
                let early = (message.created + delay - moment.wall) / 1000;
                let text = format!("{queue}/{partition}: {} came {early} ms early", message.offset);
                found.add(moment.at, text);
            }
        }
    }
}
