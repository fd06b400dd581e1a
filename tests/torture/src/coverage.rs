//! What a run really met. A run in which something asked for never happened is not valid, whatever the checker says.

use crate::check::view::{Said, View};
use crate::faults::Fault;
use crate::history::{Answer, Call, End, History, Plan, Word};
use crate::nemesis::Pace;
use crate::schedule::Turn;
use crate::waits::wake_ups;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Counts by name. Names of faults start with `fault:`.
pub type Counts = BTreeMap<String, u64>;

/// Situations every run must meet, with what they are.
pub const ALWAYS: [&str; 15] = [
    "pushes queued",
    "duplicates answered",
    "duplicates at one offset after a repeat",
    "items refused alone",
    "requests refused whole",
    "deliveries",
    "redeliveries",
    "acks accepted",
    "acks refused on an ended lease",
    "acks repeated",
    "nacks charged",
    "moves to the dead letters",
    "transactions committed",
    "transactions rolled back",
    "leases extended",
];

/// Only where faults can make an outcome unknown.
pub const FAULTED: [&str; 2] = ["outcomes unknown", "clients that left a poll"];

/// Only where the spool is met: the database is away for a while.
pub const SPOOLED: [&str; 2] = ["items buffered", "buffered-to-queued changes in a partition"];

/// Only with two brokers.
pub const TWO_BROKERS: [&str; 2] = ["deliveries through the other broker", WAKE_UPS];

/// Pops that had waited on one broker since before the push, on the other, that they were answered with. In a storm all
/// polls find a backlog: this needs brokers that come to rest.
const WAKE_UPS: &str = "wake-ups across brokers";

/// Only where retention is part of the run.
pub const RETAINED: [&str; 1] = ["retention passing a lagging cursor"];

/// Only where a queue is encrypted.
pub const ENCRYPTED: [&str; 1] = ["deliveries of encrypted queues"];

/// Counts everything in a history.
pub fn count(history: &History) -> Counts {
    let view = View::of(history);
    let mut counts = Counts::new();
    let mut add = |name: &str, n: u64| *counts.entry(name.to_owned()).or_default() += n;
    for op in &history.ops {
        if op.is_unknown() && !matches!(op.call, Call::Fault { .. } | Call::Away) {
            add("outcomes unknown", 1);
        }
        match (&op.call, &op.ended) {
            (Call::Fault { kind }, Some((_, End::Ok(Answer::Fault { hits })))) => add(&format!("fault:{kind}"), *hits),
            (Call::Push { .. }, Some((_, End::Fail(_)))) => add("requests refused whole", 1),
            (Call::Pop { .. }, Some((_, End::Info(why)))) if why == crate::work::LEFT => {
                add("clients that left a poll", 1)
            }
            (Call::Extend { .. }, Some((_, End::Ok(Answer::Extend { success: true })))) => add("leases extended", 1),
            (Call::Transaction { .. }, Some((_, End::Ok(Answer::Transaction { success, .. })))) => {
                add(if *success { "transactions committed" } else { "transactions rolled back" }, 1);
            }
            _ => {}
        }
    }
    add(WAKE_UPS, wake_ups(&view).len() as u64);
    let mut pushed_by: BTreeMap<(&str, &str, &str), u8> = BTreeMap::new();
    for (&(queue, partition), lane) in &view.lanes {
        let retained = view.queue(queue).is_some_and(|plan| plan.retention_secs > 0);
        if let Some(last) = lane.last.filter(|_| !retained) {
            let mut times: HashMap<&str, u64> = HashMap::new();
            last.stored.iter().for_each(|stored| *times.entry(&stored.key).or_default() += 1);
            let buffered = lane.attempts.iter().filter(|attempt| attempt.status() == Some("buffered"));
            let buffered: HashSet<&str> = buffered.map(|attempt| &*attempt.item.key).collect();
            let once = buffered.iter().filter(|key| times.get(**key) == Some(&1)).count();
            add("buffered messages", buffered.len() as u64);
            add("buffered messages stored once", once as u64);
        }
        let mut buffering = false;
        for attempt in &lane.attempts {
            pushed_by.insert((queue, partition, &attempt.item.key), attempt.op.broker);
            match attempt.status() {
                Some("queued") => {
                    add("pushes queued", 1);
                    add("buffered-to-queued changes in a partition", u64::from(std::mem::take(&mut buffering)));
                }
                Some("buffered") => {
                    add("items buffered", 1);
                    buffering = true;
                }
                Some("failed") => add("items failed", 1),
                Some("duplicate") => add("duplicates answered", 1),
                Some("error") => add("items refused alone", 1),
                _ => {}
            }
        }
        let repeats = lane
            .by_key()
            .into_values()
            .filter(|tries| tries.len() > 1 && tries[1..].iter().any(|attempt| attempt.status() == Some("duplicate")));
        add("duplicates at one offset after a repeat", repeats.count() as u64);
        for group in lane.groups.values() {
            let mut highest = -1;
            for delivery in &group.deliveries {
                add("deliveries", delivery.messages.len() as u64);
                if view.queue(queue).is_some_and(|plan| plan.encrypted) {
                    add("deliveries of encrypted queues", delivery.messages.len() as u64);
                }
                let again = delivery.messages.iter().filter(|m| m.attempt > 1 || m.offset <= highest).count();
                add("redeliveries", again as u64);
                add("retention passing a lagging cursor", u64::from(highest + 1 < delivery.first()));
                highest = highest.max(delivery.last());
                let broker = delivery.op.broker;
                let other = delivery
                    .messages
                    .iter()
                    .filter(|m| pushed_by.get(&(queue, partition, &*m.key)).is_some_and(|by| *by != broker));
                add("deliveries through the other broker", other.count() as u64);
            }
            for settle in &group.settles {
                if let Said::Results(results) = &settle.said {
                    let expired = results.iter().filter(|r| r.error.as_deref() == Some("invalid or expired lease"));
                    add("acks refused on an ended lease", expired.count() as u64);
                    add("acks accepted", results.iter().filter(|r| r.success && !r.noop).count() as u64);
                    add("acks repeated", results.iter().filter(|r| r.noop).count() as u64);
                }
                add("moves to the dead letters", u64::from(settle.is_true() && settle.is_dead_lettered()));
                let charged = settle.is_true() && settle.signal().is_some_and(|item| item.word == Word::Failed);
                add("nacks charged", u64::from(charged));
            }
        }
    }
    counts
}

/// Counters that must be above 0 after a run with so many brokers, these faults, and queues of these kinds.
pub fn required(brokers: u8, faults: &[Fault], encrypted: bool, retained: bool) -> Vec<String> {
    let kinds: [(bool, &[&str]); 6] = [
        (true, &ALWAYS),
        (!faults.is_empty(), &FAULTED),
        (faults.contains(&Fault::LongOutage), &SPOOLED),
        (1 < brokers, &TWO_BROKERS),
        (encrypted, &ENCRYPTED),
        (retained, &RETAINED),
    ];
    let met = kinds.into_iter().filter(|(is_met, _)| *is_met).flat_map(|(_, names)| names);
    let met = met.map(|name| (*name).to_owned());
    met.chain(faults.iter().map(|fault| format!("fault:{}", fault.name()))).collect()
}

/// Whether a required counter can rise in an episode with these faults.
pub fn can_rise(name: &str, turn: &Turn, faults: &[Fault]) -> bool {
    match name.strip_prefix("fault:") {
        Some(name) => faults.iter().any(|fault| fault.name() == name && (1 < turn.brokers || !fault.needs_two())),
        None if name == WAKE_UPS => 1 < turn.brokers && turn.pace != Pace::Storm,
        None if TWO_BROKERS.contains(&name) => 1 < turn.brokers,
        None if FAULTED.contains(&name) => !faults.is_empty(),
        None if SPOOLED.contains(&name) => faults.contains(&Fault::LongOutage),
        None => true,
    }
}

/// Counters that had to be above 0 and are not.
pub fn missing(counts: &Counts, plan: &Plan, faults: &[Fault]) -> Vec<String> {
    let encrypted = plan.queues.iter().any(|queue| queue.encrypted);
    let retained = plan.queues.iter().any(|queue| queue.retention_secs > 0);
    let mut names = required(plan.brokers, faults, encrypted, retained);
    names.retain(|name| counts.get(name).copied().unwrap_or(0) == 0);
    names
}

/// Crash windows among these faults that were hit less often than `goal`.
pub fn windows_below(goal: u64, counts: &Counts, faults: &[Fault]) -> Vec<String> {
    let windows = faults.iter().filter(|fault| matches!(fault, Fault::CrashAt(_)));
    let hits = windows.map(|fault| format!("fault:{}", fault.name())).map(|name| {
        let n = counts.get(&name).copied().unwrap_or(0);
        (name, n)
    });
    // At 0 it is missing anyway.
    hits.filter(|(_, n)| (1..goal).contains(n)).map(|(name, n)| format!("{name}: {n} of {goal}")).collect()
}

/// Adds the counts of one episode to those of the run.
pub fn add(all: &mut Counts, one: Counts) {
    for (name, n) in one {
        *all.entry(name).or_default() += n;
    }
}
