//! A consumer that acks its inputs and pushes one output for each in one transaction.

use super::consumer::{Job, completed, pop};
use super::wire::{payload, read_transaction, transaction_body};
use super::{Actor, LEASE_SECS, Part, Stage};
use crate::history::{Call, PushItem};
use std::time::Duration;

/// Moves messages until everything is over. An output's key is new at each attempt: deduplication cannot hide an output
/// that came twice.
pub fn run(mut actor: Actor, mut job: Job) {
    let mut tries = 0u64;
    while actor.shared.stage() != Stage::Over {
        // Small while faults strike, so that many transactions meet them; the drain has an end to come to.
        job.batch_max = if actor.shared.stage() == Stage::Load { 5 } else { 40 };
        let (lease, messages) = pop(&mut actor, job);
        if messages.is_empty() {
            continue;
        }
        let loads = actor.shared.stage() == Stage::Load;
        if loads && actor.rng.percent(3) {
            continue;
        }
        if loads && actor.rng.percent(6) {
            actor.shared.rest(Duration::from_millis(LEASE_SECS * 1000 + 300), Stage::Load);
        }
        tries += 1;
        let output = |message: &crate::history::Delivered| {
            let key = format!("{}-{tries}:{}:{}", actor.id, message.partition, message.offset);
            let payload = payload(&key, message.offset as u64);
            PushItem { queue: Part::Output.queue(actor.shared.plan).into(), partition: "p0".into(), key, payload }
        };
        let outputs: Vec<PushItem> = messages.iter().map(output).collect();
        let inputs = completed(&messages);
        let body = transaction_body(job.group, &lease, &inputs, &outputs);
        let (queue, group) = (job.part.queue(actor.shared.plan).into(), job.group.into());
        let call = Call::Transaction { queue, group, lease, inputs, outputs };
        actor.ask(call, "POST", "/api/v1/transaction", &body, read_transaction);
        actor.shared.rest(job.pause, Stage::Load);
    }
}
