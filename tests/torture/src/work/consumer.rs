//! Consumers: claim, then do with the lease whatever a consumer can do, the wrong things included.

use super::wire::{ack_body, encode, read_ack, read_extend, read_pop};
use super::{Actor, LEASE_SECS, LEFT, Part, Stage, WAIT_MS, is_poison};
use crate::history::{AckItem, Answer, Call, Delivered, End, Word};
use std::time::Duration;

/// What is claimed and how.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub part: Part,
    pub group: &'static str,
    pub auto_ack: bool,
    pub batch_max: u64,
    /// Between two pops while the load lasts.
    pub pause: Duration,
}

impl Job {
    pub const fn new(part: Part, group: &'static str) -> Job {
        Job { part, group, auto_ack: false, batch_max: 40, pause: Duration::from_millis(5) }
    }
}

/// Longer than the lease, by little: the ack that follows comes too late for certain.
const OVERSLEEP: Duration = Duration::from_millis(LEASE_SECS * 1000 + 300);

/// Consumes until everything is over.
pub fn run(mut actor: Actor, job: Job) {
    while actor.shared.stage() != Stage::Over {
        let (lease, messages) = pop(&mut actor, job);
        if job.auto_ack {
            continue;
        }
        for lane in messages.chunk_by(|a, b| a.partition == b.partition) {
            settle(&mut actor, job, &lease, lane);
        }
        actor.shared.rest(job.pause, Stage::Load);
    }
}

fn call(actor: &Actor, job: Job) -> Call {
    Call::Pop {
        queue: job.part.queue(actor.shared.plan).into(),
        group: job.group.into(),
        auto_ack: job.auto_ack,
        lease_secs: LEASE_SECS,
    }
}

fn path(actor: &mut Actor, job: Job) -> String {
    let queue = encode(job.part.queue(actor.shared.plan));
    let batch = actor.rng.range(1, job.batch_max + 1);
    let partitions = if actor.rng.percent(30) { actor.rng.range(2, 4) } else { 1 };
    format!(
        "/api/v1/pop/queue/{queue}?consumerGroup={}&subscriptionMode=all&batch={batch}&partitions={partitions}\
         &leaseSeconds={LEASE_SECS}&autoAck={}&wait=true&timeout={WAIT_MS}",
        encode(job.group),
        job.auto_ack
    )
}

/// Claims; the lease and the messages, none when nothing came.
pub fn pop(actor: &mut Actor, job: Job) -> (String, Vec<Delivered>) {
    let (call, path) = (call(actor, job), path(actor, job));
    match actor.ask(call, "GET", &path, b"", read_pop) {
        End::Ok(Answer::Pop { lease, messages }) => (lease, messages),
        _ => (String::new(), Vec::new()),
    }
}

fn settle(actor: &mut Actor, job: Job, lease: &str, lane: &[Delivered]) {
    if let Some(at) = lane.iter().position(|message| is_poison(&message.key)) {
        let mut items: Vec<AckItem> = lane[..at].iter().map(|message| item(message, Word::Completed)).collect();
        items.push(item(&lane[at], Word::Failed));
        ack(actor, job, lease, items);
        return;
    }
    let draw = if actor.shared.stage() == Stage::Load { actor.rng.range(0, 100) } else { 0 };
    let at = actor.rng.range(0, lane.len() as u64) as usize;
    let up_to = |n: usize| lane[..n].iter().map(|message| item(message, Word::Completed)).collect::<Vec<_>>();
    match draw {
        // The whole batch, by all its messages or by its last one.
        0..=49 => drop(ack(actor, job, lease, up_to(lane.len()))),
        50..=69 => drop(ack(actor, job, lease, vec![item(&lane[lane.len() - 1], Word::Completed)])),
        // In two steps, the first one repeated.
        70..=77 => {
            ack(actor, job, lease, up_to(at));
            ack(actor, job, lease, up_to(at));
            ack(actor, job, lease, up_to(lane.len()));
        }
        78..=87 => {
            let word = *actor.rng.pick(&[Word::Failed, Word::Failed, Word::Retry, Word::Dlq]);
            let mut items = up_to(at);
            items.push(item(&lane[at], word));
            ack(actor, job, lease, items);
        }
        // Too late, with every word there is.
        88..=91 => {
            actor.shared.rest(OVERSLEEP, Stage::Load);
            let word = *actor.rng.pick(&[Word::Completed, Word::Completed, Word::Failed, Word::Dlq]);
            ack(actor, job, lease, vec![item(&lane[lane.len() - 1], word)]);
        }
        // About at the end of the lease: either is right, both is not.
        92..=93 => {
            let early = Duration::from_millis(actor.rng.range(0, 40));
            actor.shared.rest(Duration::from_millis(LEASE_SECS * 1000 - 20) + early, Stage::Load);
            ack(actor, job, lease, up_to(lane.len()));
        }
        94..=96 => {
            extend(actor, lease);
            ack(actor, job, lease, up_to(lane.len()));
        }
        // Forgotten: the lease expires.
        _ => {}
    }
}

fn item(message: &Delivered, word: Word) -> AckItem {
    AckItem {
        partition: message.partition.clone(),
        partition_id: message.partition_id.clone(),
        offset: message.offset,
        key: message.key.clone(),
        word,
    }
}

/// All of these completed, as inputs of a transaction.
pub fn completed(messages: &[Delivered]) -> Vec<AckItem> {
    messages.iter().map(|message| item(message, Word::Completed)).collect()
}

fn ack(actor: &mut Actor, job: Job, lease: &str, items: Vec<AckItem>) -> Option<End> {
    if items.is_empty() {
        return None;
    }
    let body = ack_body(job.group, lease, &items);
    let (queue, group) = (job.part.queue(actor.shared.plan).into(), job.group.into());
    let call = Call::Ack { queue, group, lease: lease.into(), items };
    Some(actor.ask(call, "POST", "/api/v1/ack/batch", &body, read_ack))
}

fn extend(actor: &mut Actor, lease: &str) {
    let secs = LEASE_SECS + 1;
    let body = format!("{{\"seconds\":{secs}}}");
    let path = format!("/api/v1/lease/{lease}/extend");
    actor.ask(Call::Extend { lease: lease.into(), secs }, "POST", &path, body.as_bytes(), read_extend);
}

/// A client that polls and leaves before the answer, over and over.
pub fn leave(mut actor: Actor, job: Job) {
    while actor.shared.stage() == Stage::Load {
        let (call, path) = (call(&actor, job), path(&mut actor, job));
        let op = actor.shared.recorder.invoke(actor.id, actor.broker, call);
        let sent = actor.http.write("GET", &path, b"");
        std::thread::sleep(Duration::from_millis(actor.rng.range(1, 60)));
        actor.http.hang_up();
        let end = match sent {
            Ok(()) => End::Info(LEFT.into()),
            Err(e) => End::Info(e.to_string()),
        };
        actor.shared.recorder.end(op, end);
        actor.shared.rest(Duration::from_millis(actor.rng.range(300, 900)), Stage::Load);
    }
}
