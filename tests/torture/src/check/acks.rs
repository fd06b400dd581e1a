//! C8, C9, C10: what an ack, a nack and a transaction that were answered true have done.

use super::Found;
use super::view::{Delivery, GroupView, LaneView, Said, View};
use crate::history::{Call, Micros, Word};
use std::collections::{HashMap, HashSet};

/// C8: what was completed under a live lease does not come again; an ack with a lease that was over is refused; an ack
/// repeated under its own lease is `noop`.
pub fn acks_are_true(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        for (&name, group) in &lane.groups {
            let at = Place { queue, partition, name };
            redelivered(&at, group, found);
            dead_leases(view, &at, group, found);
            repeated(&at, group, found);
        }
    }
}

struct Place<'a> {
    queue: &'a str,
    partition: &'a str,
    name: &'a str,
}

impl Place<'_> {
    fn say(&self, text: String) -> String {
        format!("{}/{}: group {} {text}", self.queue, self.partition, self.name)
    }
}

fn redelivered(at: &Place, group: &GroupView, found: &mut Found) {
    let by_lease = deliveries_by_lease(group);
    // When an offset, and with it all below, was certainly complete; by the lease under which it was.
    let mut done: Vec<(Micros, i64, &str)> = Vec::new();
    for settle in group.settles.iter() {
        let Some(to) = settle.moves_to(true) else { continue };
        done.push((settle.op.done(), to, settle.lease));
        // Whatever was granted after this lease came after its ack, since the lease was live then.
        if let Some(own) = by_lease.get(settle.lease) {
            let later = group.deliveries.iter().filter(|d| d.lease != settle.lease && own.op.done() <= d.op.invoked.at);
            let mut again = later.filter(|d| d.first() <= to && d.op.invoked.at < settle.op.done());
            if own.first() <= to
                && let Some(again) = again.next()
            {
                let (first, lease) = (again.first(), again.lease);
                let text = format!("got {first} under {lease} although an ack up to {to} of an older lease was true");
                found.add(again.op.done(), at.say(text));
            }
        }
    }
    done.sort_unstable_by_key(|(moment, ..)| *moment);
    let mut pops: Vec<&Delivery> = group.deliveries.iter().collect();
    pops.sort_by_key(|delivery| delivery.op.invoked.at);
    let mut settled = done.into_iter().peekable();
    let mut highest = -1;
    for delivery in pops {
        while let Some((_, to, _)) = settled.next_if(|(moment, ..)| *moment < delivery.op.invoked.at) {
            highest = highest.max(to);
        }
        if delivery.first() <= highest {
            let text = format!("got {} again, {highest} was completed before it asked", delivery.first());
            found.add(delivery.op.done(), at.say(text));
        }
    }
}

/// Refused without exception: an ack that was asked for when its lease had ended for certain.
fn dead_leases(view: &View, at: &Place, group: &GroupView, found: &mut Found) {
    let by_lease = deliveries_by_lease(group);
    for settle in group.settles.iter().filter(|settle| settle.is_true()) {
        let Some(delivery) = by_lease.get(settle.lease) else { continue };
        let granted = delivery.op.done().saturating_add(delivery.lease_secs * 1_000_000);
        let extended = view.extends.get(settle.lease).into_iter().flatten().map(|op| {
            let Call::Extend { secs, .. } = op.call else { return 0 };
            op.ended.as_ref().map_or(Micros::MAX, |(end, _)| end.at).saturating_add(secs * 1_000_000)
        });
        let over = extended.max().map_or(granted, |extended| granted.max(extended));
        if over < settle.op.invoked.at {
            let late = (settle.op.invoked.at - over) / 1000;
            let text = format!("had an ack accepted {late} ms after the end of {}", settle.lease);
            found.add(settle.op.done(), at.say(text));
        }
    }
}

fn repeated(at: &Place, group: &GroupView, found: &mut Found) {
    let mut completed: HashMap<&str, (Micros, i64)> = HashMap::new();
    for settle in &group.settles {
        if let Some((done, to)) = completed.get(settle.lease)
            && let Said::Results(results) = &settle.said
            && *done < settle.op.invoked.at
        {
            for (item, result) in settle.items.iter().zip(results) {
                if item.offset <= *to && result.success && !result.noop {
                    let text = format!("had {} acked a second time, not as `noop`", item.offset);
                    found.add(settle.op.done(), at.say(text));
                }
            }
        }
        if let Some(to) = settle.moves_to(true) {
            let slot = completed.entry(settle.lease).or_insert((settle.op.done(), to));
            if slot.1 < to {
                *slot = (settle.op.done(), to);
            }
        }
    }
}

fn deliveries_by_lease<'a, 'b>(group: &'b GroupView<'a>) -> HashMap<&'a str, &'b Delivery<'a>> {
    group.deliveries.iter().map(|delivery| (delivery.lease, delivery)).collect()
}

/// C9: a `failed` that was answered true comes again or, after exactly the budget, is one dead letter with payload and
/// reason; only charges count towards it; no dead letter without a nack.
pub fn nacks_are_true(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        let Some(plan) = view.queue(queue) else { continue };
        for (&name, group) in &lane.groups {
            let at = Place { queue, partition, name };
            come_again(&at, lane, group, found);
            budget(&at, plan.retry_limit, group, found);
        }
        dead_letters(view, (queue, partition), lane, found);
    }
}

fn come_again(at: &Place, lane: &LaneView, group: &GroupView, found: &mut Found) {
    for settle in group.settles.iter().filter(|settle| settle.is_true()) {
        let Some(signal) = settle.signal().filter(|_| !settle.is_dead_lettered()) else { continue };
        let later = |d: &&Delivery| d.lease != settle.lease && settle.op.invoked.at < d.op.done();
        let again = group.deliveries.iter().filter(later).any(|d| (d.first()..=d.last()).contains(&signal.offset));
        let dead = lane.dead_letters.iter().any(|d| d.group == at.name && d.offset == signal.offset);
        if !again && !dead && lane.log_start() <= signal.offset {
            let text = format!("nacked {} ({}) and it never came again", signal.offset, signal.word.text());
            found.add(settle.op.done(), at.say(text));
        }
    }
}

/// The retry counter as far as it is known: at least, at most.
fn budget(at: &Place, limit: u32, group: &GroupView, found: &mut Found) {
    let ends: HashMap<&str, i64> = group.deliveries.iter().map(|d| (d.lease, d.last())).collect();
    let (mut least, mut most) = (0u32, 0u32);
    for settle in &group.settles {
        let signal = settle.signal();
        let whole = settle.completed().is_some_and(|c| ends.get(settle.lease).is_some_and(|end| *end <= c));
        if settle.is_unknown() {
            match signal.map(|item| item.word) {
                Some(Word::Failed | Word::Dlq) => (least, most) = (0, most + 1),
                None if whole => least = 0,
                _ => {}
            }
            continue;
        }
        if !settle.is_true() {
            continue;
        }
        match signal {
            Some(item) if settle.is_dead_lettered() => {
                if item.word == Word::Failed && most < limit {
                    let text = format!("lost {} to the dead letters after {most} of {limit} failures", item.offset);
                    found.add(settle.op.done(), at.say(text));
                }
                (least, most) = (0, 0);
            }
            Some(item) if item.word == Word::Failed => {
                if limit <= least {
                    let text = format!("failed {} for the {}th time and kept it", item.offset, least + 1);
                    found.add(settle.op.done(), at.say(text));
                }
                (least, most) = (least + 1, most + 1);
            }
            None if whole => (least, most) = (0, 0),
            _ => {}
        }
    }
}

fn dead_letters(view: &View, (queue, partition): (&str, &str), lane: &LaneView, found: &mut Found) {
    let stored: HashMap<i64, &str> =
        lane.last.iter().flat_map(|last| last.stored.iter().map(|s| (s.offset, &*s.payload))).collect();
    let mut rows: HashSet<(&str, i64)> = HashSet::new();
    for letter in &lane.dead_letters {
        let text = |what: String| format!("{queue}/{partition}: the dead letter of {} {what}", letter.offset);
        if !rows.insert((&letter.group, letter.offset)) {
            found.add(None, text(format!("of group {} is there twice", letter.group)));
        }
        if let Some(payload) = stored.get(&letter.offset).filter(|payload| **payload != letter.payload) {
            found.add(None, text(format!("has {:?} for {payload}", letter.payload)));
        }
        let Some(group) = lane.groups.get(&*letter.group) else {
            found.add(None, text("has a group that never popped".into()));
            continue;
        };
        let mut causes = group.settles.iter().filter(|settle| {
            let signal = settle.signal().filter(|item| matches!(item.word, Word::Failed | Word::Dlq));
            signal.is_some_and(|item| item.offset == letter.offset) && (settle.is_unknown() || settle.is_true())
        });
        let reason = format!("nacked {}", letter.offset);
        if causes.clone().next().is_none() {
            found.add(None, text("has no nack".into()));
        } else if letter.error != reason {
            found.add(None, text(format!("says {:?}, the nack said {reason:?}", letter.error)));
        }
        let limit = view.queue(queue).map_or(0, |plan| plan.retry_limit);
        let failed_only = causes.all(|settle| settle.signal().is_some_and(|item| item.word == Word::Failed));
        if failed_only && letter.retry_count != limit {
            found.add(None, text(format!("counts {} failures, the limit is {limit}", letter.retry_count)));
        }
    }
    for (&name, group) in &lane.groups {
        for settle in group.settles.iter().filter(|settle| settle.is_true() && settle.is_dead_lettered()) {
            let Some(signal) = settle.signal() else { continue };
            if !rows.contains(&(name, signal.offset)) {
                let text =
                    format!("{queue}/{partition}: {} was answered dead-lettered and is not there", signal.offset);
                found.add(settle.op.done(), text);
            }
        }
    }
}

/// C10: pop, ack and push in one call: no output without its input's ack, no ack without its output, one output per
/// input after any crash and retry.
pub fn transactions_are_whole(view: &View, found: &mut Found) {
    for (&(queue, partition), lane) in &view.lanes {
        for (&name, group) in &lane.groups {
            let Some(outputs) = view.group(queue, name).and_then(|group| group.outputs.as_deref()) else { continue };
            let made = outputs_of(view, outputs, group);
            let Some(last) = lane.last else { continue };
            let committed = last.cursors.iter().find(|(g, _)| g == name).map_or(-1, |(_, committed)| *committed);
            for message in &last.stored {
                let count = made.get(&message.offset).copied().unwrap_or(0);
                let dead = lane.dead_letters.iter().any(|d| d.group == name && d.offset == message.offset);
                let right = usize::from(message.offset <= committed && !dead);
                if count != right {
                    let acked = if right == 1 { "acked" } else { "not acked" };
                    let text =
                        format!("{queue}/{partition}: input {} is {acked}, with {count} outputs", message.offset);
                    found.add(None, text);
                }
            }
        }
        for attempt in lane.attempts.iter().filter(|attempt| matches!(attempt.op.call, Call::Transaction { .. })) {
            let key = &attempt.item.key;
            let times = lane.last.iter().flat_map(|l| &l.stored).filter(|s| s.key == *key).count();
            if times > 1 {
                found.add(None, format!("{queue}/{partition}: output {key} is stored {times} times"));
            }
        }
    }
}

/// Stored outputs per offset of the inputs of this lane.
fn outputs_of(view: &View, outputs: &str, group: &GroupView) -> HashMap<i64, usize> {
    let mut of: HashMap<(&str, &str), i64> = HashMap::new();
    for settle in group.settles.iter().filter(|settle| settle.in_transaction) {
        let Call::Transaction { outputs, inputs, .. } = &settle.op.call else { continue };
        for (input, output) in inputs.iter().zip(outputs) {
            if settle.items.iter().any(|item| std::ptr::eq(*item, input)) {
                of.insert((&output.partition, &output.key), input.offset);
            }
        }
    }
    let mut made: HashMap<i64, usize> = HashMap::new();
    for (_, lane) in view.lanes.iter().filter(|((queue, _), _)| *queue == outputs) {
        for message in lane.last.iter().flat_map(|l| l.stored.iter().map(move |s| (&*l.partition, &*s.key))) {
            if let Some(input) = of.get(&message) {
                *made.entry(*input).or_default() += 1;
            }
        }
    }
    made
}
