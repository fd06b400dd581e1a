//! What has to be there before the first client: messages, groups that know of none of them, a session with an old snapshot.

use super::{Load, NS, PROGRESS_NS, Plan, Progress, Stage};
use crate::poller::Ready;
use crate::postgres::Session;
use crate::request::{self, Pushes};
use crate::scenario::{Form, Kind, Scenario};
use crate::target::Target;
use std::time::{Duration, Instant};

/// A registration gives every partition a cursor: of millions that takes its time.
const REGISTER_MAX: Duration = Duration::from_secs(600);

/// Stores what has to be there before the first client; how many messages, and the sum of their ids.
pub(super) fn fill(plan: &Plan, observe: &mut dyn FnMut(Progress)) -> Result<(u64, u64), String> {
    const BATCH: u32 = 100;
    const CONNECTIONS: u32 = 32;
    let s = plan.scenario;
    // A message to each of so many partitions, and no more in all than is wanted.
    let most = BATCH.min(s.partitions).min(s.fill.min(u64::from(BATCH)) as u32);
    let batch = (1..=most).rev().find(|n| s.fill.is_multiple_of(u64::from(*n))).unwrap_or(1);
    // What is popped alone is to lie there as pushes of the scenario leave it.
    let as_pushed = s.kind == Kind::Pop;
    let scenario = Scenario {
        kind: Kind::Push,
        form: if as_pushed { s.form } else { Form::Json },
        batch: if as_pushed { s.batch } else { batch },
        connections: CONNECTIONS,
        consumers: 0,
        rate: 0,
        ..s.clone()
    };
    let plan = Plan { scenario: &scenario, seed: !plan.seed, ..*plan };
    let mut load = Load::new(&plan)?;
    if !as_pushed {
        load.template = Pushes::in_order(plan.host, plan.queue, &scenario, plan.seed);
    }
    load.stage = Stage::Fill(s.fill);
    load.fill(observe).map_err(|error| format!("epoll: {error}"))?;
    match load.tally.failure_texts.first() {
        None => Ok((load.pushed, load.sent_sum)),
        Some(text) => Err(format!("filling the queue: {text}")),
    }
}

/// Makes the groups known before the first message that they are to get.
pub(super) fn register_groups(plan: &Plan) -> Result<(), String> {
    let target = Target { address: plan.address, host: plan.host.to_owned() };
    for n in 0..plan.scenario.groups {
        let request = request::register(plan.host, plan.queue, &group_name(n));
        match target.send_within(&request, REGISTER_MAX)? {
            (204, _) => {}
            (status, body) => return Err(format!("registering a group: {status} {body}")),
        }
    }
    Ok(())
}

pub(super) fn group_name(n: u32) -> String {
    format!("g{n}")
}

/// A session that keeps what dies from now on from being cleaned away.
pub(super) fn hold_snapshot(plan: &Plan) -> Result<Session, String> {
    let postgres = plan.postgres.ok_or("an old snapshot needs the broker's PostgreSQL: --postgres says where")?;
    let session = postgres.again()?;
    session.hold_snapshot()?;
    Ok(session)
}

impl Load<'_> {
    /// Pushes in order until everything is there.
    fn fill(&mut self, observe: &mut dyn FnMut(Progress)) -> std::io::Result<()> {
        let Stage::Fill(total) = self.stage else { return Ok(()) };
        self.started = Instant::now();
        self.idle.extend(0..self.connections.len());
        let mut ready: Vec<Ready> = Vec::new();
        let (mut told, mut silent) = ((0, 0), 0);
        while self.pushed < total && self.tally.failures == 0 {
            self.push_idle();
            self.poller.wait(Duration::from_millis(100), &mut ready)?;
            for event in &ready {
                self.attend(event);
            }
            let now = self.now();
            if now - told.0 >= PROGRESS_NS {
                let pushed_rate = (self.pushed - told.1) as f64 * NS / (now - told.0) as f64;
                silent = if self.pushed == told.1 { silent + 1 } else { 0 };
                if silent * PROGRESS_NS > self.plan.drain.as_nanos() as u64 {
                    self.tally.fail(format!("no answer for {silent} s"));
                }
                let (elapsed, total) = (self.pushed as f64, total as f64);
                observe(Progress { filling: true, elapsed, total, pushed_rate, popped_rate: 0.0 });
                told = (now, self.pushed);
            }
        }
        Ok(())
    }
}
