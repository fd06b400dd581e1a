//! A client that consumes and produces by transactions, with what the edge does for it: prepares at every owner, has a
//! refusal confirmed, commits at its connection's shard, and prepares again what went stale. Source: data plane 7.

use crate::ack_plan;
use crate::client::{Ctx, Home, Input};
use crate::coverage::Thing;
use crate::frame;
use queen_shards::bundle::{Bundle, BundleLane, BundleVerdict, PrepareLane, Prepared, PreparedLane, PreparedSet};
use queen_shards::command::{AckOutcome, AckSet, Claim, Command, Draft, Pop, PopFrom, Said, Start, Verdict};
use queen_shards::ids::{LeaseId, Offset, Slot, TenantId};
use queen_shards::place::{LaneKey, owner_of_partition};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Times a bundle is prepared before its client lets it be.
const TRIES: u8 = 4;

/// A bundle under way.
struct Work {
    /// Queue, partition and number of messages of each push: a new attempt carries new messages.
    pushes: Vec<Draft>,
    sets: Vec<AckSet>,
    tries: u8,
    /// The store of the answers so far; two of them make them worthless.
    store: Option<u32>,
    mixed: bool,
}

enum State {
    Idle,
    Popping,
    Holding(Vec<Claim>, Option<LeaseId>),
    /// Open slots with the places of the lanes and sets they were asked about; what has been answered.
    Preparing(Work, BTreeMap<Slot, (Vec<usize>, Vec<usize>)>, Vec<Option<PreparedLane>>, Vec<Option<PreparedSet>>),
    /// `true`: only confirms a refusal.
    Committing(Work, bool),
}

pub struct Transactor {
    home: Home,
    group: Arc<str>,
    start: Start,
    state: State,
    tag: u64,
    healed: bool,
}

impl Transactor {
    pub fn new(home: Home, (group, start): (Arc<str>, Start)) -> Transactor {
        Transactor { home, group, start, state: State::Idle, tag: 0, healed: false }
    }

    pub fn idle(&self) -> bool {
        self.healed && matches!(self.state, State::Idle)
    }

    pub fn step(&mut self, ctx: &mut Ctx, input: Input) {
        match input {
            Input::Timer(tag) if tag == self.tag => self.time(ctx),
            Input::Timer(_) | Input::Wake(_) => {}
            Input::Verdict(_, Verdict::Pop(verdict)) => {
                self.state = State::Holding(verdict.claims, verdict.lease);
                self.tag += 1;
                let wait = if ctx.rng.chance(900) { ctx.rng.range(0, 20_000) } else { ctx.rng.range(0, 3_000_000) };
                ctx.timer(wait, self.tag);
            }
            Input::Verdict(slot, Verdict::Prepared(prepared)) => self.prepared(ctx, slot, prepared),
            Input::Verdict(_, Verdict::Bundle(verdict)) => self.decided(ctx, verdict),
            Input::Verdict(_, Verdict::Ack(_)) => {}
            Input::Verdict(_, verdict) => unreachable!("{verdict:?} for a transaction"),
            Input::Reset => self.rest(ctx),
            Input::Heal => self.healed = true,
        }
    }

    fn rest(&mut self, ctx: &mut Ctx) {
        self.state = State::Idle;
        self.tag += 1;
        let wait = if ctx.rng.chance(500) { ctx.rng.range(0, 2_000) } else { ctx.rng.range(1_000, 200_000) };
        ctx.timer(wait, self.tag);
    }

    fn time(&mut self, ctx: &mut Ctx) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle if !self.healed && ctx.rng.chance(700) => self.pop(ctx),
            State::Idle if !self.healed => self.begin(ctx, Vec::new(), None),
            State::Holding(claims, lease) => self.begin(ctx, claims, lease),
            state => self.state = state,
        }
    }

    fn pop(&mut self, ctx: &mut Ctx) {
        let queue = ctx.rng.pick(&ctx.plan.queues).name.clone();
        let pop = Pop {
            from: PopFrom::Queue { tenant: TenantId::DEFAULT, queue },
            makes_queue: true,
            group: self.group.clone(),
            start: self.start,
            batch: *ctx.rng.pick(&[1, 5, 20]),
            partitions: *ctx.rng.pick(&[1, 3]),
            conflating_partitions: 5,
            conflation: None,
            bytes: 8 << 20,
            said: Said { bytes: 20, names: 2 },
            lease_secs: Some(ctx.rng.range(1, 3) as u32),
            auto_ack: false,
            lease: None,
            seed: ctx.shared.seed(ctx.t),
            more: false,
            at_least: 1,
        };
        let (slot, shard) = (ctx.shared.slot(self.home), ctx.rng.index(self.home.shards));
        ctx.send(shard, slot, Command::Pop(pop));
        self.state = State::Popping;
    }

    fn begin(&mut self, ctx: &mut Ctx, claims: Vec<Claim>, lease: Option<LeaseId>) {
        let mut sets = match ctx.rng.chance(600) {
            true => claims.iter().map(|claim| ack_plan::complete(claim, &self.group, lease)).collect(),
            false => ack_plan::sets(ctx, &claims, &self.group, lease),
        };
        let mut seen = BTreeSet::new();
        sets.retain(|set| !set.items.is_empty() && seen.insert((set.partition, set.group.clone())));
        let mut pushes: Vec<Draft> = Vec::new();
        for _ in 0..ctx.rng.range(0, 3) {
            let queue = ctx.rng.index(ctx.plan.queues.len());
            let names = &ctx.plan.queues[queue];
            let partition = ctx.rng.pick(&names.partitions).clone();
            let lane = LaneKey::new(TenantId::DEFAULT, names.name.clone(), partition);
            if pushes.iter().any(|push| push.lane == lane) {
                continue;
            }
            let minted = ctx.rng.chance(150);
            let mut keys = BTreeSet::new();
            let n = ctx.rng.range(1, 4);
            let mut messages: Vec<_> = (0..n).map(|_| ctx.shared.message(ctx.rng, ctx.plan, queue, minted)).collect();
            messages.retain(|message| keys.insert(message.key));
            let (keys, frames, flags) = frame::pack(&messages);
            let frames = frame::repack(&frames);
            let count = messages.len() as u32;
            pushes.push(Draft { lane, count, keys, all_minted: minted, frames, packed: None, flags });
        }
        if pushes.is_empty() && sets.is_empty() {
            return self.rest(ctx);
        }
        self.prepare(ctx, Work { pushes, sets, tries: 0, store: None, mixed: false });
    }

    fn prepare(&mut self, ctx: &mut Ctx, work: Work) {
        let mut parts: BTreeMap<usize, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (i, push) in work.pushes.iter().enumerate() {
            parts.entry(push.lane.owner(self.home.shards)).or_default().0.push(i);
        }
        for (i, set) in work.sets.iter().enumerate() {
            parts.entry(owner_of_partition(set.partition, self.home.shards)).or_default().1.push(i);
        }
        let mut open = BTreeMap::new();
        for (shard, (lanes, sets)) in parts {
            let slot = ctx.shared.slot(self.home);
            let asked = lanes.iter().map(|&i| PrepareLane {
                lane: work.pushes[i].lane.clone(),
                keys: work.pushes[i].keys.clone(),
                all_minted: work.pushes[i].all_minted,
            });
            let of_sets = sets.iter().map(|&i| work.sets[i].clone()).collect();
            let command = Command::Prepare { lanes: asked.collect(), sets: of_sets, leases: Vec::new() };
            ctx.send(shard, slot, command);
            open.insert(slot, (lanes, sets));
        }
        let (lanes, sets) = (vec![None; work.pushes.len()], vec![None; work.sets.len()]);
        self.state = State::Preparing(work, open, lanes, sets);
    }

    fn prepared(&mut self, ctx: &mut Ctx, slot: Slot, prepared: Prepared) {
        let State::Preparing(work, open, lanes, sets) = &mut self.state else { unreachable!() };
        work.mixed |= *work.store.get_or_insert(prepared.store) != prepared.store;
        let (of_lanes, of_sets) = open.remove(&slot).expect("asked");
        of_lanes.into_iter().zip(prepared.lanes).for_each(|(i, lane)| lanes[i] = Some(lane));
        of_sets.into_iter().zip(prepared.sets).for_each(|(i, set)| sets[i] = Some(set));
        if !open.is_empty() {
            return;
        }
        let State::Preparing(work, _, lanes, sets) = std::mem::replace(&mut self.state, State::Idle) else {
            unreachable!()
        };
        let lanes: Vec<PreparedLane> = lanes.into_iter().map(|lane| lane.expect("answered")).collect();
        let sets: Vec<PreparedSet> = sets.into_iter().map(|set| set.expect("answered")).collect();
        self.go_on(ctx, work, &lanes, sets);
    }

    /// As the edge does it.
    fn go_on(&mut self, ctx: &mut Ctx, work: Work, lanes: &[PreparedLane], sets: Vec<PreparedSet>) {
        let failed = work.mixed
            || lanes.contains(&PreparedLane::Failed)
            || sets.iter().any(|set| set.items.contains(&AckOutcome::StoreFailed));
        if failed {
            return self.rest(ctx);
        }
        let store = work.store.unwrap_or(0);
        for (push, lane) in work.pushes.iter().zip(lanes) {
            if matches!(lane, PreparedLane::Known { duplicate: Some(_), .. }) {
                let confirm = Bundle { store, lanes: vec![lane_of(push, *lane, true)], moves: Vec::new() };
                return self.commit(ctx, work, confirm, true);
            }
        }
        for set in &sets {
            let bad = |outcome: &AckOutcome| {
                use AckOutcome::{Accepted, AlreadyCommitted, DeadLettered, Noop};
                !matches!(outcome, Accepted | DeadLettered | Noop | AlreadyCommitted)
            };
            if set.items.iter().any(bad) {
                let Some(mut confirm) = set.cursor_move.clone() else {
                    ctx.cover.hit(Thing::BundleRefused);
                    return self.rest(ctx);
                };
                (confirm.to, confirm.dead_letter) = (None, None);
                let confirm = Bundle { store, lanes: Vec::new(), moves: vec![confirm] };
                return self.commit(ctx, work, confirm, true);
            }
        }
        let lanes = work.pushes.iter().zip(lanes).map(|(push, lane)| lane_of(push, *lane, false)).collect();
        let moves = sets.into_iter().filter_map(|set| set.cursor_move).collect();
        self.commit(ctx, work, Bundle { store, lanes, moves }, false);
    }

    fn commit(&mut self, ctx: &mut Ctx, work: Work, bundle: Bundle, confirms: bool) {
        // Somebody acknowledges the same messages at the same time.
        for set in work.sets.iter().filter(|_| !confirms) {
            if ctx.rng.chance(60) {
                let slot = ctx.shared.slot(self.home);
                let owner = owner_of_partition(set.partition, self.home.shards);
                ctx.send(owner, slot, Command::Ack { sets: vec![set.clone()] });
            }
        }
        let slot = ctx.shared.slot(self.home);
        ctx.send(self.home.conn, slot, Command::Bundle(bundle));
        self.state = State::Committing(work, confirms);
    }

    fn decided(&mut self, ctx: &mut Ctx, verdict: BundleVerdict) {
        let State::Committing(mut work, confirms) = std::mem::replace(&mut self.state, State::Idle) else {
            unreachable!()
        };
        match verdict {
            BundleVerdict::Committed { .. } if confirms => ctx.cover.hit(Thing::BundleRefused),
            BundleVerdict::Committed { .. } => ctx.cover.hit(Thing::BundleCommitted),
            BundleVerdict::Duplicate { .. } => ctx.cover.hit(Thing::BundleDuplicate),
            BundleVerdict::Stale if work.tries < TRIES => {
                ctx.cover.hit(Thing::BundleStale);
                work.tries += 1;
                (work.store, work.mixed) = (None, false);
                return self.prepare(ctx, work);
            }
            _ => {}
        }
        self.rest(ctx);
    }
}

fn lane_of(push: &Draft, lane: PreparedLane, confirm: bool) -> BundleLane {
    let (partition, verified) = match lane {
        PreparedLane::Known { partition, verified, .. } => (Some(partition), verified),
        PreparedLane::Missing | PreparedLane::Failed => (None, Offset::NONE),
    };
    BundleLane { draft: push.clone(), partition, verified, confirm }
}
