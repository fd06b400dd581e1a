//! What the asks of one round brought, until it is answered: dropped with claims in it, it gives them back.

use super::asking::{Asking, Source};
use super::framed;
use super::matched::owners;
use super::render::{self, Policy};
use crate::conn::Hold;
use crate::core_thread::Core;
use crate::http::Response;
use crate::http::refusals::Refusal;
use crate::wire::POP_TYPE;
use queen_shards::command::{Claim, Pop, PopFrom, Verdict};
use queen_shards::ids::{GroupId, LeaseId, Micros, PartitionId};
use queen_shards::lease_id::LeaseSeed;
use std::rc::Rc;

/// Bytes of one answer, of inflated frames and of what is said about each message: many times a full batch of usual
/// messages, and small beside what a broker has. One message is delivered however large it is.
pub(super) const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// See the module.
pub(super) struct Taken<'a> {
    core: &'a Rc<Core>,
    /// The shard whose wake led to this round is asked first.
    woken_by: Option<usize>,
    pub(super) claims: Vec<Claim>,
    lease: Option<LeaseId>,
    batch: u32,
    partitions: u32,
    conflating_partitions: u32,
    bytes: u64,
    hold: Option<Hold>,
    /// What the groups of the queues asked say of conflation: of those that gave something, and of all.
    gave: Said,
    asked: Said,
    pub(super) ready: u32,
    pub(super) fill_wait_ms: u32,
    pub(super) failed: bool,
    /// What failed passes, all of it.
    pub(super) passes: bool,
    /// When the pop is answered whatever a shard still does for it; it came to that.
    until: Option<Micros>,
    pub(super) late: bool,
}

/// Which answers to "does it conflate" were met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub(super) yes: bool,
    pub(super) no: bool,
}

impl Said {
    pub(super) fn hear(&mut self, conflation: Option<bool>) {
        self.yes |= conflation == Some(true);
        self.no |= conflation == Some(false);
    }

    pub(super) fn met(self) -> bool {
        self.yes || self.no
    }

    /// A request that says nothing agrees with everything.
    pub(super) fn policy(self, asked: Option<bool>) -> Policy {
        let conflict = asked.is_some_and(|asked| if asked { self.no } else { self.yes });
        Policy { conflation: self.yes, conflict }
    }
}

impl<'a> Taken<'a> {
    pub(super) fn nothing(
        core: &'a Rc<Core>,
        asking: &Asking,
        woken_by: Option<usize>,
        until: Option<Micros>,
    ) -> Taken<'a> {
        let hold = core.answers.ask(ANSWER_BYTES_MAX);
        Taken {
            core,
            woken_by,
            claims: Vec::new(),
            lease: None,
            batch: asking.batch,
            partitions: asking.partitions,
            conflating_partitions: asking.conflating_partitions,
            bytes: hold.granted(),
            hold: Some(hold),
            gave: Said::default(),
            asked: Said::default(),
            ready: 0,
            fill_wait_ms: 0,
            failed: false,
            passes: true,
            until,
            late: false,
        }
    }

    fn is_full(&self) -> bool {
        let width = if self.gave.yes { self.conflating_partitions } else { self.partitions };
        self.batch == 0 || width == 0 || self.bytes == 0
    }

    /// What the answer says of conflation; `None`: no group was met. Source: data plane 4.10.
    pub(super) fn policy(&self, asking: &Asking) -> Option<Policy> {
        let said = if self.gave.met() { self.gave } else { self.asked };
        said.met().then(|| said.policy(asking.conflation))
    }

    /// Asks the owners of each source, one after another, for what is left.
    pub(super) async fn ask_all(&mut self, asking: &Asking, sources: &[PopFrom], seed: LeaseSeed, at_least: u32) {
        for (s, from) in sources.iter().enumerate() {
            let mut owners = owners(from, &asking.group, self.core.shards());
            if let Some(at) = owners.iter().position(|&shard| Some(shard) == self.woken_by) {
                owners.rotate_left(at);
            }
            for (o, shard) in owners.iter().enumerate() {
                if self.is_full() {
                    return;
                }
                let last = s + 1 == sources.len() && o + 1 == owners.len();
                let pop = Pop {
                    from: from.clone(),
                    makes_queue: matches!(asking.from, Source::One(PopFrom::Queue { .. })),
                    group: asking.group.clone(),
                    start: asking.start,
                    batch: self.batch,
                    partitions: self.partitions,
                    conflating_partitions: self.conflating_partitions,
                    conflation: asking.conflation,
                    bytes: self.bytes,
                    said: render::said(&asking.group),
                    lease_secs: asking.lease_secs,
                    auto_ack: asking.auto_ack,
                    lease: self.lease,
                    seed,
                    more: self.partitions.max(self.conflating_partitions) > 1 && !last,
                    at_least: if self.claims.is_empty() { at_least } else { 0 },
                };
                let Some(verdict) = self.core.pop(*shard, pop, self.until).await else {
                    self.late = true;
                    return;
                };
                self.late = self.until.is_some_and(|until| until <= self.core.now());
                match verdict {
                    Verdict::Pop(verdict) => self.take(verdict, &asking.group),
                    _ => (self.failed, self.passes) = (true, false),
                }
                if self.late {
                    return;
                }
            }
        }
    }

    fn take(&mut self, verdict: queen_shards::command::PopVerdict, group: &str) {
        self.failed |= verdict.failed;
        self.passes &= verdict.passes || !verdict.failed;
        self.ready = self.ready.saturating_add(verdict.ready);
        self.fill_wait_ms = self.fill_wait_ms.max(verdict.fill_wait_ms);
        self.lease = self.lease.or(verdict.lease);
        self.asked.hear(verdict.conflation);
        if !verdict.claims.is_empty() {
            self.gave.hear(verdict.conflation);
        }
        for claim in verdict.claims {
            let messages = u32::try_from(claim.end.0 - claim.start.0 + 1).unwrap_or(u32::MAX);
            self.batch = self.batch.saturating_sub(messages);
            self.bytes = self.bytes.saturating_sub(render::claim_bytes(&claim, group) as u64);
            self.partitions = self.partitions.saturating_sub(1);
            self.conflating_partitions = self.conflating_partitions.saturating_sub(1);
            self.claims.push(claim);
        }
    }

    pub(super) fn answer(mut self, asking: &Asking, policy: Policy) -> Response {
        let answer = render::Answer {
            queue: asking.queue(),
            group: &asking.group,
            lease: self.lease,
            claims: &self.claims,
            policy,
            cipher: self.core.cipher.as_ref(),
            autopilot: asking.autopilot.filter(|_| !policy.conflation),
        };
        let framed = asking.frames && framed::is_allowed(&answer);
        let rendered = if framed { framed::render(&answer) } else { render::render(&answer) };
        match rendered {
            Ok(body) => {
                let claims = self.give_backs();
                self.claims.clear();
                let content_type = if framed { POP_TYPE } else { "application/json" };
                let claims = self.lease.map(|lease| (lease, claims));
                let hold = self.hold.take().map(|hold| hold.keep(body.len()));
                Response { status: 200, content_type: Some(content_type), body, claims, hold, ..Response::default() }
            }
            Err(damaged) => {
                crate::warning_gated!("pop", "a stored record does not decode", record = damaged);
                Refusal::PopFailed.response()
            }
        }
    }

    fn give_backs(&self) -> Vec<(PartitionId, GroupId)> {
        self.claims.iter().map(|claim| (claim.partition, claim.group)).collect()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease
            && !self.claims.is_empty()
        {
            self.core.give_back(lease, self.give_backs());
        }
    }
}
