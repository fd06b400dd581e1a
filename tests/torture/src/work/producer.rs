//! Producers: fresh keys, repeats of what was not answered, deliberate duplicates, bad requests.

use super::wire::{payload, push_body, read_push, sealed_payload};
use super::{Actor, Part, Stage};
use crate::history::{Answer, Call, End, PushItem};
use std::collections::VecDeque;
use std::time::Duration;

/// Keys a producer may repeat on purpose in the queue with the short window.
const REMEMBERED: usize = 30;
/// Repeats of one body before a producer gives it up.
const REPEATS_MAX: u32 = 40;

/// Where producers write, the busiest first; a draw of 100 decides.
const SHARES: [(u64, Part); 7] = [
    (40, Part::Main),
    (46, Part::Sealed),
    (60, Part::Input),
    (72, Part::Auto),
    (82, Part::Delayed),
    (92, Part::Short),
    (100, Part::Old),
];

/// Produces until the load is over.
pub fn run(mut actor: Actor) {
    let mut next = 0u64;
    let mut recent: VecDeque<PushItem> = VecDeque::new();
    while actor.shared.stage() == Stage::Load {
        if actor.rng.percent(1) {
            refused(&mut actor, &mut next);
        }
        let items = body(&mut actor, &mut next, &mut recent);
        push(&mut actor, items);
        let pause = actor.shared.pause.mul_f64(actor.rng.range(0, 200) as f64 / 100.0);
        actor.shared.rest(pause, Stage::Load);
    }
}

fn body(actor: &mut Actor, next: &mut u64, recent: &mut VecDeque<PushItem>) -> Vec<PushItem> {
    let mut items = Vec::new();
    let lanes = if actor.rng.percent(20) { 2 } else { 1 };
    for _ in 0..lanes {
        let draw = actor.rng.range(0, 100);
        let part = SHARES.iter().find(|(below, _)| draw < *below).map_or(Part::Main, |(_, part)| *part);
        if part == Part::Short && actor.rng.percent(40) && !recent.is_empty() {
            let again = recent[actor.rng.range(0, recent.len() as u64) as usize].clone();
            if !items.contains(&again) {
                items.push(again);
            }
            continue;
        }
        let partition = format!("p{}", actor.rng.range(0, part.partitions()));
        // One message per claim where keys may come twice: an ack names a key.
        let n = match part {
            Part::Short => 1,
            // Acked at delivery, many at a time: large bodies cost its consumer nothing.
            Part::Auto => actor.rng.range(1, 16),
            _ => actor.rng.range(1, 6),
        };
        for _ in 0..n {
            let item = fresh(actor, next, part, &partition);
            if part == Part::Short {
                recent.push_back(item.clone());
                if recent.len() > REMEMBERED {
                    recent.pop_front();
                }
            }
            items.push(item);
        }
    }
    items
}

fn fresh(actor: &mut Actor, next: &mut u64, part: Part, partition: &str) -> PushItem {
    *next += 1;
    let poison = part == Part::Main && next.is_multiple_of(67);
    let key = format!("{}-{next}{}", actor.id, if poison { "!" } else { "" });
    let salt = actor.rng.range(0, 1 << 40);
    let payload = match part {
        Part::Sealed => sealed_payload(&key, salt, actor.shared.plan.seed),
        _ => payload(&key, salt),
    };
    PushItem { queue: part.queue(actor.shared.plan).into(), partition: partition.into(), key, payload }
}

/// Sends a body until everything in it is accepted; now and then it gives up instead.
fn push(actor: &mut Actor, mut items: Vec<PushItem>) {
    let whole = items.clone();
    for _ in 0..REPEATS_MAX {
        let end = send(actor, &items);
        let gives_up = actor.rng.percent(8);
        match end {
            End::Ok(Answer::Push(results)) => {
                let failed = results.iter().map(|result| result.status == "failed");
                items = items.into_iter().zip(failed).filter_map(|(item, failed)| failed.then_some(item)).collect();
                if items.is_empty() && actor.rng.percent(4) {
                    // A client that does not trust its answer.
                    send(actor, &whole);
                }
            }
            End::Ok(_) => return,
            End::Fail(_) | End::Info(_) => {}
        }
        if items.is_empty() || gives_up || actor.shared.stage() != Stage::Load {
            return;
        }
        actor.shared.rest(Duration::from_millis(actor.rng.range(20, 120)), Stage::Load);
    }
}

fn send(actor: &mut Actor, items: &[PushItem]) -> End {
    let body = push_body(items);
    actor.ask(Call::Push { items: items.to_vec() }, "POST", "/api/v1/push", &body, read_push)
}

/// What must be refused: one item alone, or the whole request.
fn refused(actor: &mut Actor, next: &mut u64) {
    let good = fresh(actor, next, Part::Main, "p0");
    if actor.rng.percent(50) {
        let empty = PushItem { partition: String::new(), ..fresh(actor, next, Part::Main, "p0") };
        send(actor, &[empty, good]);
    } else {
        let control = PushItem { partition: "p\u{1}".into(), ..good };
        let bystander = fresh(actor, next, Part::Main, "p1");
        send(actor, &[bystander, control]);
    }
}
