//! A consumer, with what the edge does for it: asks the shards one after another under one lease, parks on watches,
//! gives back what it cannot take, and acknowledges in every way there is. Source: data plane 4.3, 4.5, 5.

use crate::ack_plan;
use crate::client::{Ctx, Home, Input};
use crate::coverage::Thing;
use queen_shards::command::{AckSet, Claim, Command, Pop, PopFrom, PopVerdict, Said, Start, Verdict, Watch};
use queen_shards::ids::{LeaseId, Slot, TenantId};
use queen_shards::place::{LaneKey, owner_of_partition};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Whom a consumer reads for, and how patient it is.
#[derive(Clone)]
pub struct Role {
    pub queue: Arc<str>,
    /// A pinned consumer.
    pub partition: Option<Arc<str>>,
    pub group: Arc<str>,
    pub start: Start,
    /// Says something of conflation.
    pub conflates: bool,
    /// Completes everything, leaves never: empties the queues at the end.
    pub drains: bool,
    /// A parked one asks again after so long, whatever it was told.
    pub recheck_us: u64,
}

/// One call of a client on its way over the shards.
struct Call {
    slot: Slot,
    pop: Pop,
    order: Vec<usize>,
    next: usize,
    claims: Vec<Claim>,
    deadline: u64,
    /// It will be gone when the next answer comes, or before it is woken.
    leaves: bool,
    leaves_parked: bool,
    held_back: bool,
}

enum State {
    Idle,
    Asking(Call),
    Parked { slot: Slot, call: Call },
    Holding { claims: Vec<Claim>, lease: Option<LeaseId> },
    Acking { open: BTreeSet<Slot>, again: Vec<AckSet> },
}

pub struct Consumer {
    home: Home,
    role: Role,
    state: State,
    tag: u64,
    rotate: usize,
    healed: bool,
}

impl Consumer {
    pub fn new(home: Home, role: Role) -> Consumer {
        Consumer { home, role, state: State::Idle, tag: 0, rotate: 0, healed: false }
    }

    pub fn idle(&self) -> bool {
        self.healed && matches!(self.state, State::Idle)
    }

    pub fn step(&mut self, ctx: &mut Ctx, input: Input) {
        match input {
            Input::Timer(tag) if tag == self.tag => self.time(ctx),
            Input::Timer(_) => {}
            Input::Verdict(_, Verdict::Pop(verdict)) => self.answered(ctx, verdict),
            Input::Verdict(slot, Verdict::Ack(_)) => self.acked(ctx, slot),
            Input::Verdict(_, Verdict::Done) => {}
            Input::Verdict(_, verdict) => unreachable!("{verdict:?} for a consumer"),
            Input::Wake(slot) => self.woken(ctx, slot),
            Input::Reset => {
                if !matches!(self.state, State::Holding { .. }) {
                    self.rest(ctx);
                }
            }
            Input::Heal => {
                self.healed = true;
                if matches!(self.state, State::Parked { .. }) {
                    self.unpark(ctx);
                    self.rest(ctx);
                }
            }
        }
    }

    fn rest(&mut self, ctx: &mut Ctx) {
        self.state = State::Idle;
        self.tag += 1;
        let wait = match self.role.drains {
            true => 1_000,
            false if ctx.rng.chance(400) => ctx.rng.range(0, 2_000),
            false => ctx.rng.range(1_000, 300_000),
        };
        ctx.timer(wait, self.tag);
    }

    fn time(&mut self, ctx: &mut Ctx) {
        match &self.state {
            State::Idle if !self.healed => self.call(ctx),
            State::Parked { call, .. } => {
                let (leaves, over) = (call.leaves_parked, ctx.t >= call.deadline);
                let call = self.unpark(ctx);
                if leaves {
                    ctx.cover.hit(Thing::LeftWhileParked);
                    self.rest(ctx);
                } else if over {
                    ctx.cover.hit(Thing::ParkedTooLong);
                    self.rest(ctx);
                } else {
                    self.ask(ctx, call);
                }
            }
            State::Holding { .. } => self.acknowledge(ctx),
            State::Asking(call) if !call.held_back => {
                ctx.cover.hit(Thing::Withdrew);
                ctx.send(call.order[call.next], call.slot, Command::Withdraw);
            }
            State::Asking(_) => {
                let State::Asking(mut call) = std::mem::replace(&mut self.state, State::Idle) else { unreachable!() };
                call.pop.at_least = 1;
                self.ask(ctx, call);
            }
            _ => {}
        }
    }

    // ---- asking

    fn call(&mut self, ctx: &mut Ctx) {
        let (rng, drains) = (&mut *ctx.rng, self.role.drains);
        let from = match &self.role.partition {
            None => PopFrom::Queue { tenant: TenantId::DEFAULT, queue: self.role.queue.clone() },
            Some(partition) => {
                PopFrom::Partition(LaneKey::new(TenantId::DEFAULT, self.role.queue.clone(), partition.clone()))
            }
        };
        let order = match &from {
            PopFrom::Partition(lane) => vec![lane.owner(self.home.shards)],
            PopFrom::Queue { .. } => {
                self.rotate += 1;
                (0..self.home.shards).map(|i| (i + self.rotate) % self.home.shards).collect()
            }
        };
        let partitions = if self.role.partition.is_some() || rng.chance(400) { 1 } else { rng.range(2, 64) as u32 };
        let bytes = if !drains && rng.chance(50) { rng.range(1, 600) } else { 8 << 20 };
        let said = Said { bytes: rng.range(0, 60) as u32, names: rng.range(0, 3) as u32 };
        let pop = Pop {
            // Some find their queue by its namespace. Without the generator of the world, as in `declares`.
            makes_queue: self.role.partition.is_none() && (drains || !(ctx.t / 11).is_multiple_of(4)),
            from,
            group: self.role.group.clone(),
            start: self.role.start,
            batch: if drains { 200 } else { *rng.pick(&[1, 2, 5, 10, 50, 200]) },
            partitions: if drains { 64 } else { partitions },
            conflating_partitions: if drains { 64 } else { partitions },
            conflation: None,
            bytes,
            said,
            lease_secs: if drains { Some(5) } else { rng.chance(600).then(|| rng.range(1, 3) as u32) },
            auto_ack: !drains && rng.chance(100),
            lease: None,
            seed: ctx.shared.seed(ctx.t),
            more: order.len() > 1,
            at_least: if !drains && rng.chance(60) { rng.range(2, 20) as u32 } else { 1 },
        };
        let wait = if drains {
            u64::MAX / 2
        } else if rng.chance(500) {
            rng.range(50_000, 3_000_000)
        } else {
            0
        };
        let (leaves, leaves_parked) = (!drains && rng.chance(40), !drains && rng.chance(100));
        let conflation = self.role.conflates.then(|| self.declares(ctx.t)).flatten();
        let auto_ack = pop.auto_ack && conflation != Some(true);
        let pop = Pop { conflation, auto_ack, ..pop };
        let slot = Slot(0);
        let deadline = ctx.t + wait;
        let call =
            Call { slot, pop, order, next: 0, claims: Vec::new(), deadline, leaves, leaves_parked, held_back: false };
        self.ask(ctx, call);
    }

    /// Mostly that it conflates, sometimes nothing, sometimes the contrary. Without the generator of the world: seeds
    /// without such consumers keep their histories.
    fn declares(&self, t: u64) -> Option<bool> {
        if self.role.drains {
            return None;
        }
        match (t / 7) % 10 {
            0 => Some(false),
            1..3 => None,
            _ => Some(true),
        }
    }

    /// Asks the next shard with what is left of the budget.
    fn ask(&mut self, ctx: &mut Ctx, mut call: Call) {
        let shard = call.order[call.next];
        call.held_back = false;
        call.slot = ctx.shared.slot(self.home);
        call.pop.more = call.next + 1 < call.order.len();
        ctx.send(shard, call.slot, Command::Pop(call.pop.clone()));
        self.tag += 1;
        if let Some(after) = self.patience(ctx.t) {
            ctx.timer(after, self.tag);
        }
        self.state = State::Asking(call);
    }

    /// How long it waits for an answer before it withdraws its pop; then it takes what it is given. Without the generator of
    /// the world, as in `declares`.
    fn patience(&self, t: u64) -> Option<u64> {
        let withdraws = !self.role.drains && (t / 13).is_multiple_of(5);
        withdraws.then_some([10, 200, 3_000, 40_000][(t / 17) as usize % 4])
    }

    fn answered(&mut self, ctx: &mut Ctx, verdict: PopVerdict) {
        let State::Asking(mut call) = std::mem::replace(&mut self.state, State::Idle) else { unreachable!() };
        for claim in &verdict.claims {
            call.pop.batch -= (claim.end.0 - claim.start.0 + 1) as u32;
            call.pop.partitions = call.pop.partitions.saturating_sub(1);
            call.pop.conflating_partitions = call.pop.conflating_partitions.saturating_sub(1);
        }
        let conflating = verdict.conflation == Some(true);
        if !verdict.claims.is_empty() && !call.claims.is_empty() {
            ctx.cover.hit(Thing::PoppedFromSeveralShards);
        }
        call.pop.lease = verdict.lease.or(call.pop.lease);
        call.claims.extend(verdict.claims);
        call.next += 1;
        if call.leaves {
            return self.leave(ctx, call);
        }
        let width = if conflating { call.pop.conflating_partitions } else { call.pop.partitions };
        let spent = call.pop.batch == 0 || width == 0;
        if !spent && call.next < call.order.len() {
            return self.ask(ctx, call);
        }
        if !call.claims.is_empty() {
            return self.hold(ctx, call);
        }
        call.next = 0;
        call.pop.lease = None;
        call.pop.seed = ctx.shared.seed(ctx.t);
        if verdict.ready > 0 {
            call.held_back = true;
            self.tag += 1;
            self.state = State::Asking(call);
            ctx.timer(verdict.fill_wait_ms as u64 * 1000 + 1, self.tag);
        } else if ctx.t < call.deadline && !self.healed {
            self.park(ctx, call);
        } else {
            self.rest(ctx);
        }
    }

    /// The client is gone: what it got goes back.
    fn leave(&mut self, ctx: &mut Ctx, call: Call) {
        if let (Some(lease), false) = (call.pop.lease, call.claims.is_empty()) {
            let mut by_shard: BTreeMap<usize, Vec<_>> = BTreeMap::new();
            for claim in &call.claims {
                let owner = owner_of_partition(claim.partition, self.home.shards);
                by_shard.entry(owner).or_default().push((claim.partition, claim.group));
            }
            for (shard, claims) in by_shard {
                let slot = ctx.shared.slot(self.home);
                ctx.send(shard, slot, Command::GiveBack { lease, claims });
            }
        }
        self.rest(ctx);
    }

    // ---- waiting

    fn park(&mut self, ctx: &mut Ctx, call: Call) {
        let slot = ctx.shared.slot(self.home);
        ctx.cover.hit(Thing::Parked);
        for shard in &call.order {
            let watch = Watch { from: call.pop.from.clone(), group: call.pop.group.clone(), start: call.pop.start };
            ctx.send(*shard, slot, Command::Watch(watch));
        }
        self.tag += 1;
        let left = call.deadline - ctx.t;
        let wait = if call.leaves_parked { ctx.rng.below(left) } else { left.min(self.role.recheck_us) };
        ctx.timer(wait, self.tag);
        self.state = State::Parked { slot, call };
    }

    fn unpark(&mut self, ctx: &mut Ctx) -> Call {
        let State::Parked { slot, call } = std::mem::replace(&mut self.state, State::Idle) else { unreachable!() };
        for shard in &call.order {
            ctx.send(*shard, slot, Command::Unwatch);
        }
        call
    }

    fn woken(&mut self, ctx: &mut Ctx, by: Slot) {
        match &self.state {
            State::Parked { slot, .. } if *slot == by => {}
            _ => return, // It has gone on already.
        }
        ctx.cover.hit(Thing::Woken);
        let call = self.unpark(ctx);
        self.ask(ctx, call);
    }

    // ---- acknowledging

    fn hold(&mut self, ctx: &mut Ctx, call: Call) {
        self.tag += 1;
        let wait = match ctx.rng.below(100) {
            _ if self.role.drains => 500,
            0..70 => ctx.rng.range(0, 20_000),
            70..90 => ctx.rng.range(0, 900_000),
            _ => ctx.rng.range(900_000, 4_000_000),
        };
        ctx.timer(wait, self.tag);
        self.state = State::Holding { claims: call.claims, lease: call.pop.lease };
    }

    fn acknowledge(&mut self, ctx: &mut Ctx) {
        let State::Holding { claims, lease } = std::mem::replace(&mut self.state, State::Idle) else { unreachable!() };
        let sets = if self.role.drains {
            claims.iter().map(|claim| ack_plan::complete(claim, &self.role.group, lease)).collect()
        } else {
            ack_plan::sets(ctx, &claims, &self.role.group, lease)
        };
        if sets.is_empty() {
            return self.rest(ctx);
        }
        let again = if !self.role.drains && ctx.rng.chance(120) { sets.clone() } else { Vec::new() };
        self.send_acks(ctx, sets, again);
    }

    fn send_acks(&mut self, ctx: &mut Ctx, sets: Vec<AckSet>, again: Vec<AckSet>) {
        let mut by_shard: BTreeMap<usize, Vec<AckSet>> = BTreeMap::new();
        for set in sets {
            by_shard.entry(owner_of_partition(set.partition, self.home.shards)).or_default().push(set);
        }
        let mut open = BTreeSet::new();
        for (shard, sets) in by_shard {
            let slot = ctx.shared.slot(self.home);
            open.insert(slot);
            ctx.send(shard, slot, Command::Ack { sets });
        }
        self.state = State::Acking { open, again };
    }

    fn acked(&mut self, ctx: &mut Ctx, slot: Slot) {
        let State::Acking { open, again } = &mut self.state else { unreachable!() };
        open.remove(&slot);
        if !open.is_empty() {
            return;
        }
        let again = std::mem::take(again);
        if again.is_empty() {
            self.rest(ctx);
        } else {
            self.send_acks(ctx, again, Vec::new());
        }
    }
}
