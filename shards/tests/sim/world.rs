//! The world: clocks, brokers, the way to the store and back, clients, and what goes wrong. One PRNG drives it.
//!
//!     clients ─commands─► shards ─effects─► tickets ─executed at the store─► answers ─► shards ─verdicts─► clients
//!
//! Holds: things happen one at a time in the order of the world's clock, ties in the order of their making. No
//! wall clock, no thread, no order of a hash table: one seed is one history.

mod tickets;
mod trace;

use crate::client::{Action, Ctx, Home, Input, Shared};
use crate::consumer::{Consumer, Role};
use crate::coverage::{Coverage, Thing};
use crate::ledger::Moment;
use crate::oracle::{At, Oracle};
use crate::plan::{EPOCH, Plan};
use crate::producer::Producer;
use crate::rng::Rng;
use crate::store::{Planted, Store};
use crate::transactor::Transactor;
use queen_shards::activity::BusyQueue;
use queen_shards::bundle::{Bundle, news};
use queen_shards::command::{Command, Event};
use queen_shards::effect::{CursorOutcome, Effect, MoveOutcome, Reply};
use queen_shards::ids::{CommitId, Micros, Slot, Stamp};
use queen_shards::limits::{BUSY_CLAIMS_MAX, BUSY_WAIT_US, GROUP_IDLE_US, LANE_IDLE_US, LANES_KEPT, ShardConfig};
use queen_shards::shard::Shard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tickets::{Asking, Telling, Ticketed};

/// Something that will happen.
pub enum Due {
    Deliver {
        at: At,
        epoch: u64,
        event: Event,
    },
    Turn {
        at: At,
        epoch: u64,
    },
    Execute {
        ticket: u64,
    },
    Client {
        client: usize,
        input: Input,
    },
    Disk(crate::disk::Step),
    /// A shard hears that the store is another one.
    MeetStore {
        at: At,
        epoch: u64,
    },
    ReadLog {
        broker: usize,
        epoch: u64,
    },
    LogAtStore {
        broker: usize,
        epoch: u64,
        began: u64,
    },
    HearLog {
        broker: usize,
        epoch: u64,
        began: u64,
        news: crate::log::News,
    },
    Admin,
    Lock,
    LockGroup,
    DeleteGroup,
}

enum Client {
    Producer(Producer),
    Consumer(Consumer),
    Transactor(Transactor),
}

struct Broker {
    shards: Vec<Shard>,
    /// How often it was started.
    epoch: u64,
    /// Its monotonic clock at the world's zero, and its drift in parts per million.
    offset: u64,
    drift: i64,
    armed: Vec<Option<Micros>>,
}

pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub oracle: Oracle,
    pub store: Store,
    pub t: u64,
    pub trace: u64,
    pub healed: bool,
    jumped: i64,
    brokers: Vec<Broker>,
    clients: Vec<(Client, Home)>,
    shared: Shared,
    /// Boxed: a tree moves its entries about, and events are large.
    due: BTreeMap<(u64, u64), Box<Due>>,
    made: u64,
    tickets: BTreeMap<u64, Ticketed>,
    owner: BTreeMap<Slot, usize>,
    /// When the last command of a client to a shard arrives: the next one does not overtake it.
    sent: BTreeMap<(usize, usize), u64>,
    outage_until: u64,
    /// Which store there is, and which one each shard believes in.
    pub(crate) store_number: u64,
    believed: BTreeMap<At, u64>,
    pub(crate) disks: Vec<crate::disk::Disk>,
    pub(crate) disk_rng: Rng,
    /// How far each broker has read the commit log.
    pub(crate) log_at: Vec<usize>,
    pub(crate) log_rng: Rng,
    pub(crate) lock_rng: Rng,
    pub(crate) group_rng: Rng,
    window_bytes: BTreeMap<At, usize>,
    inbox: Vec<Event>,
    effects: Vec<Effect>,
    /// Changes of options that not all shards have heard of: slots that are open, queue, version.
    pub(crate) pending_changes: Vec<crate::nemesis::Change>,
    verbose: bool,
    /// Bundle commits without an answer, and answers that wait until the owners have heard.
    bundles: BTreeMap<(At, CommitId), Vec<Arc<Bundle>>>,
    telling: Vec<Telling>,
}

/// A shard's inbox is taken in one turn when its events are so close together.
const TOGETHER_US: u64 = 60;

impl World {
    pub fn new(seed: u64, planted: Planted, verbose: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng);
        plan.seal(&mut Rng::new(seed ^ 0x5ea1));
        plan.break_disks(&mut Rng::new(seed ^ 0xb4d));
        plan.fail_over(&mut Rng::new(seed ^ 0xfa11));
        plan.crowd(&mut Rng::new(seed ^ 0xc0de));
        plan.regroup(&mut Rng::new(seed ^ 0x9709));
        let mut oracle = Oracle::new(seed, planted, Coverage::default());
        oracle.solo = plan.solo();
        oracle.disk_fails = plan.faults.disk > 0;
        oracle.calm = plan.calm();
        oracle.shards_of = plan.brokers.clone();
        oracle.window_batch = plan.window_batch;
        oracle.verbose = verbose;
        oracle.slack_us =
            2_000 + if plan.faults.jumps { 300_000 } else { 0 } + if plan.drift != 0 { 60_000 } else { 0 };
        oracle.stale_us = 3 * plan.latency.1 as i64 + if plan.faults.late > 0 { plan.late_us as i64 * 2 } else { 0 };
        let keys_page = if rng.chance(250) { 12 } else { u64::MAX };
        let (sparse, look, cured) = (plan.sparse, plan.look, plan.cured);
        let busy = plan.faults.busy;
        let store = Store { planted: Some(planted), busy, keys_page, sparse, look, cured, ..Store::default() };
        let shared = Shared::new(plan.queues.len());
        let mut world = World {
            rng,
            oracle,
            store,
            t: 0,
            trace: seed,
            healed: false,
            jumped: 0,
            brokers: Vec::new(),
            clients: Vec::new(),
            shared,
            due: BTreeMap::new(),
            made: 0,
            tickets: BTreeMap::new(),
            owner: BTreeMap::new(),
            sent: BTreeMap::new(),
            outage_until: 0,
            store_number: 0,
            believed: BTreeMap::new(),
            disks: Vec::new(),
            disk_rng: crate::disk::rng(seed),
            log_at: vec![0; plan.brokers.len()],
            log_rng: Rng::new(seed ^ 0x109),
            lock_rng: Rng::new(seed ^ 0x10c4),
            group_rng: Rng::new(seed ^ 0x9704),
            window_bytes: BTreeMap::new(),
            inbox: Vec::new(),
            effects: Vec::new(),
            pending_changes: Vec::new(),
            verbose,
            bundles: BTreeMap::new(),
            telling: Vec::new(),
            plan,
        };
        world.furnish();
        world
    }

    fn furnish(&mut self) {
        for broker in 0..self.plan.brokers.len() {
            let (offset, drift) = (self.rng.range(1, 10_000_000), self.plan.drift);
            self.disks.push(crate::disk::Disk::default());
            self.brokers.push(Broker { shards: Vec::new(), epoch: 0, offset, drift, armed: Vec::new() });
            self.start(broker);
        }
        for i in 0..self.plan.queues.len() {
            if let Some(options) = self.plan.queues[i].options {
                let id = self.store.make_queue(&self.plan.queues[i].name.clone());
                self.store.queues.get_mut(&id).expect("made").options = options;
            }
        }
        self.oracle.ledger.learn(0, &mut self.store);
        for _ in 0..self.plan.producers {
            let home = self.home();
            self.join(Client::Producer(Producer::new(home)), home);
        }
        for _ in 0..self.plan.consumers {
            let home = self.home();
            let role = self.role();
            self.join(Client::Consumer(Consumer::new(home, role)), home);
        }
        // Of every third seed; the others keep their histories.
        if self.oracle.seed % 3 == 2 {
            for _ in 0..self.rng.range(1, 3) {
                let home = self.home();
                let group = self.rng.pick(&self.plan.groups).clone();
                self.join(Client::Transactor(Transactor::new(home, group)), home);
            }
        }
        self.later(10_000, Due::Admin);
        let locks = self.lock_rows();
        if locks || self.plan.regroups || self.plan.faults.busy > 0 {
            // Each try waits for its time, for the commit in flight, and for its own.
            let each = BUSY_WAIT_US + 2 * self.plan.latency.1;
            self.oracle.locked_us = BUSY_CLAIMS_MAX as i64 * each as i64;
        }
        if self.plan.regroups {
            self.later(100_000, Due::LockGroup);
        }
    }

    fn home(&mut self) -> Home {
        let broker = self.rng.index(self.plan.brokers.len());
        let shards = self.plan.brokers[broker];
        Home { broker, shards, conn: self.rng.index(shards) }
    }

    fn role(&mut self) -> Role {
        let queue = self.rng.index(self.plan.queues.len());
        let (group, start) = self.rng.pick(&self.plan.groups).clone();
        let queue = &self.plan.queues[queue];
        let pinned = self.rng.chance(200);
        let partition = pinned.then(|| self.rng.pick(&queue.partitions).clone());
        // Of every fourth seed, and not in every group.
        let conflates = self.oracle.seed % 4 == 1 && matches!(&*group, "all" | "new");
        Role { queue: queue.name.clone(), partition, group, start, conflates, drains: false, recheck_us: 700_000 }
    }

    fn join(&mut self, client: Client, home: Home) {
        self.clients.push((client, home));
        let (client, after) = (self.clients.len() - 1, self.rng.below(50_000));
        let input = Input::Timer(0);
        self.later(after, Due::Client { client, input });
    }

    /// A broker's shards, new.
    pub(crate) fn start(&mut self, broker: usize) {
        let count = self.plan.brokers[broker];
        let (window, tail, lane_tail) = self.plan.memory;
        let small = window < 1 << 20;
        let shards = (0..count).map(|index| {
            Shard::new(ShardConfig {
                index,
                shards: count,
                window_bytes_max: window,
                tail_bytes_max: tail,
                lane_tail_bytes_max: lane_tail,
                lanes_kept: if small { 0 } else { LANES_KEPT },
                memo_bytes_max: self.plan.memo_bytes(),
                lane_idle_us: if small { 300_000 } else { LANE_IDLE_US },
                group_idle_us: if small { 400_000 } else { GROUP_IDLE_US },
                ready_low: self.plan.ring.0,
                ready_max: self.plan.ring.1,
                window_batch: self.plan.window_batch,
                seal_keys_min: self.plan.sealing.0,
                keys_page: self.plan.sealing.1,
                spool_found: false,
            })
        });
        self.brokers[broker].shards = shards.collect();
        self.brokers[broker].armed = vec![None; count];
        self.brokers[broker].epoch += 1;
        let (epoch, stamp) = (self.brokers[broker].epoch, self.moment().stamp);
        for shard in 0..count {
            self.believed.insert((broker, shard), self.store_number);
            // Nothing is asked of a shard before it has read the clock.
            let event = Event::Clock { now: stamp, at: self.clock(broker, self.t) };
            self.due.insert((self.t, self.made), Box::new(Due::Deliver { at: (broker, shard), epoch, event }));
            self.made += 1;
        }
        self.start_disk(broker);
        self.follow_log(broker);
    }

    /// How often a broker was started.
    pub(crate) fn epoch(&self, broker: usize) -> u64 {
        self.brokers[broker].epoch
    }

    /// The store does not answer.
    pub(crate) fn is_out(&self) -> bool {
        self.t < self.outage_until
    }

    /// The broker dies and comes back, knowing nothing.
    pub(crate) fn restart(&mut self, broker: usize) {
        self.oracle.restarted(broker);
        self.bundles.retain(|(at, _), _| at.0 != broker);
        self.telling.retain(|telling| telling.at.0 != broker);
        self.start(broker);
        for client in 0..self.clients.len() {
            if self.clients[client].1.broker == broker {
                // Answers that were under way to it are lost as well.
                self.due.retain(|_, due| !is_answer(due, client));
                self.act(client, Input::Reset);
            }
        }
    }

    pub fn moment(&self) -> Moment {
        let t = self.t as i64;
        Moment { t: self.t, stamp: Stamp(EPOCH.0 + t - t * self.plan.drift / 2_000_000 + self.jumped) }
    }

    pub(crate) fn jump(&mut self, by: i64) {
        self.jumped += by;
    }

    pub(crate) fn outage(&mut self, lasts: u64) {
        self.outage_until = self.t + lasts;
    }

    /// A broker's own clock.
    fn clock(&self, broker: usize, t: u64) -> Micros {
        let broker = &self.brokers[broker];
        Micros(broker.offset + (t as i64 + t as i64 * broker.drift / 1_000_000) as u64)
    }

    /// When a broker's clock shows a time.
    fn when(&self, broker: usize, at: Micros) -> u64 {
        let broker = &self.brokers[broker];
        let local = at.0.saturating_sub(broker.offset) as i64;
        (local - local * broker.drift / 1_000_000 + 2).max(0) as u64
    }

    pub(crate) fn later(&mut self, after: u64, due: Due) {
        self.due.insert((self.t + after, self.made), Box::new(due));
        self.made += 1;
    }

    /// One thing happens. False when nothing is left to happen before `end`.
    pub fn step(&mut self, end: u64) -> bool {
        let Some(entry) = self.due.first_entry() else { return false };
        if entry.key().0 > end {
            return false;
        }
        let ((t, _), due) = entry.remove_entry();
        self.t = self.t.max(t);
        self.mix(t);
        match *due {
            Due::Deliver { at, epoch, event } => {
                if self.brokers[at.0].epoch == epoch {
                    self.take(at, event);
                    self.take_more(at, epoch);
                    self.turn(at);
                }
            }
            Due::Turn { at, epoch } => {
                if self.brokers[at.0].epoch == epoch {
                    self.brokers[at.0].armed[at.1] = None;
                    self.turn(at);
                }
            }
            Due::Execute { ticket } => self.execute(ticket),
            Due::Disk(step) => self.disk_turns(step),
            Due::MeetStore { at, epoch } => {
                if self.brokers[at.0].epoch == epoch && self.believed[&at] != self.store_number {
                    let (now, at_moment) = (self.moment().stamp, self.clock(at.0, self.t));
                    self.believed.insert(at, self.store_number);
                    self.fault(at, true);
                    self.hears(at, Event::OtherStore { now, at: at_moment });
                }
            }
            step @ (Due::ReadLog { .. } | Due::LogAtStore { .. } | Due::HearLog { .. }) => self.log_steps(step),
            Due::Client { client, input } => self.act(client, input),
            Due::Lock => self.lock_row(),
            Due::LockGroup => self.lock_group(),
            Due::DeleteGroup => self.delete_group(),
            Due::Admin => {
                if !self.healed {
                    self.meddle();
                    let after = self.rng.range(5_000, 400_000);
                    self.later(after, Due::Admin);
                }
            }
        }
        true
    }

    /// Events of the same shard that are close enough to be in the same inbox.
    fn take_more(&mut self, at: At, epoch: u64) {
        while let Some(entry) = self.due.first_entry() {
            let same = matches!(&**entry.get(), Due::Deliver { at: to, epoch: of, .. } if *to == at && *of == epoch);
            if !same || entry.key().0 > self.t + TOGETHER_US {
                break;
            }
            let ((t, _), due) = entry.remove_entry();
            self.t = self.t.max(t);
            if let Due::Deliver { event, .. } = *due {
                self.take(at, event);
            }
        }
    }

    fn take(&mut self, at: At, event: Event) {
        let now = self.moment();
        if self.verbose {
            println!("{:>10} {at:?} < {event:?}", self.t);
        }
        match &event {
            Event::Clock { .. }
            | Event::OtherStore { .. }
            | Event::Store { .. }
            | Event::Spooled { .. }
            | Event::Drain { .. }
            | Event::RefusedAgain { .. }
            | Event::RefusedGone { .. }
            | Event::SpoolFound { .. }
            | Event::SpoolRead { .. }
            | Event::Log { .. } => {}
            Event::Command { slot, command } => self.oracle.delivered(now, at, *slot, command),
            Event::Appended { result, .. } => {
                self.oracle.append_answered(at);
                self.fault(at, result.is_err());
            }
            Event::Moved { result, .. } => {
                self.oracle.move_answered(at);
                let locked = |outcome: &MoveOutcome| outcome.moves.contains(&CursorOutcome::Busy);
                self.fault(at, result.as_ref().map_or(true, locked));
            }
            Event::Bundled { commit, result } => {
                if let Some(bundles) = self.bundles.remove(&(at, *commit)) {
                    self.fault(at, result.is_err());
                    let told = news(&bundles, result, self.brokers[at.0].shards.len());
                    if !told.is_empty() {
                        let store = bundles.first().map_or(0, |bundle| bundle.store);
                        let heard = |(shard, news)| (shard, Command::Heard { store, news });
                        return self.tell_shards_of(at, told.into_iter().map(heard).collect(), event);
                    }
                }
                self.oracle.bundle_answered(at);
            }
            Event::Returned { call, result: Ok(Reply::Group(Some(row))) } if row.made && row.conflation => {
                return self.tell_of_record(at, *call, *row);
            }
            Event::Returned { result, .. } => {
                self.oracle.call_answered(at);
                self.fault(at, result.is_err());
            }
        }
        self.inbox.push(event);
    }

    fn fault(&mut self, at: At, failed: bool) {
        if failed {
            self.oracle.faults.insert(at, self.t);
        }
    }

    /// An event from nobody the oracle knows.
    pub(crate) fn hears(&mut self, at: At, event: Event) {
        self.take(at, event);
        self.turn(at);
    }

    fn turn(&mut self, at: At) {
        let (broker, shard) = at;
        let now = self.clock(broker, self.t);
        let (mut inbox, mut effects) = (std::mem::take(&mut self.inbox), std::mem::take(&mut self.effects));
        let engine = &mut self.brokers[broker].shards[shard];
        engine.turn(now, &mut inbox, &mut effects);
        let deadline = engine.deadline();
        self.watch_bounds(at);
        for effect in effects.drain(..) {
            self.perform(at, effect);
        }
        self.oracle.leaving.clear();
        (self.inbox, self.effects) = (inbox, effects);
        if let Some(wanted) = deadline
            && self.brokers[broker].armed[shard].is_none_or(|armed| wanted < armed)
        {
            self.brokers[broker].armed[shard] = Some(wanted);
            let when = self.when(broker, wanted).max(self.t + 1);
            let epoch = self.brokers[broker].epoch;
            self.later(when - self.t, Due::Turn { at, epoch });
        }
    }

    /// Memory keeps its bounds after every turn.
    fn watch_bounds(&mut self, at: At) {
        let sizes = self.brokers[at.0].shards[at.1].sizes();
        let (window, tail, _) = self.plan.memory;
        let engine = &self.brokers[at.0].shards[at.1];
        if engine.recounted() != sizes {
            self.oracle.fail(None, &format!("{at:?} holds {:?}, and counts {sizes:?}", engine.recounted()));
        }
        if sizes.memo_bytes > 2 * self.plan.memo_bytes() {
            self.oracle.fail(None, &format!("memos of {at:?} are over their bound: {sizes:?}"));
        }
        if sizes.tail_bytes > tail {
            self.oracle.fail(None, &format!("tails of {at:?} are over their bound: {sizes:?}"));
        }
        let before = self.window_bytes.insert(at, sizes.window_bytes).unwrap_or(0);
        if before > window && sizes.window_bytes < before {
            self.oracle.hit(Thing::WindowEvicted);
        }
        if 0 < sizes.lanes_evicted {
            self.oracle.hit(Thing::LaneEvicted);
        }
        if 0 < sizes.groups_left {
            self.oracle.hit(Thing::GroupLeft);
        }
    }

    /// What the shards of a broker have counted for the lists of busiest queues is theirs, and sorted.
    fn watch_activity(&mut self) {
        for broker in &mut self.brokers {
            let mut all: Vec<BusyQueue> = Vec::new();
            for shard in &mut broker.shards {
                let busy = shard.take_busy(usize::MAX);
                assert!(busy.is_sorted_by(|a, b| BusyQueue::busiest_first(a, b).is_lt()), "{busy:?}");
                for one in busy {
                    assert!(one.activity.lag_max_us <= one.activity.lag_us, "{one:?}");
                    match all.iter_mut().find(|queue| queue.queue == one.queue) {
                        Some(queue) => queue.add(&one),
                        None => all.push(one),
                    }
                }
                assert!(shard.take_busy(usize::MAX).is_empty(), "counted twice");
            }
            for one in all {
                let parts = self.oracle.ledger.parts.values().filter(|part| part.queue_name == one.queue);
                let written: u64 = parts.flat_map(|part| &part.segments).map(|segment| segment.count as u64).sum();
                assert!(one.activity.pushed <= written, "{one:?}, of {written} that were stored");
            }
        }
    }

    /// When all is done, no engine holds anything for anybody.
    pub fn finish(&mut self) {
        for (b, broker) in self.brokers.iter().enumerate() {
            for (s, shard) in broker.shards.iter().enumerate() {
                let sizes = shard.sizes();
                let waiting = [
                    sizes.waiting_drafts,
                    sizes.waiting_pops,
                    sizes.waiting_acks,
                    sizes.waiting_bundles,
                    sizes.watches,
                    sizes.calls,
                    sizes.spool_writes,
                ];
                if waiting != [0; 7] {
                    self.oracle.fail(None, &format!("shard {:?} still holds something: {sizes:?}", (b, s)));
                }
            }
        }
        if !self.disks_empty() {
            self.oracle.fail(None, "records are left on disk");
        }
        self.watch_activity();
        self.oracle.finish(&self.store);
    }

    fn perform(&mut self, at: At, effect: Effect) {
        if self.verbose {
            println!("{:>10} {at:?} > {effect:?}", self.t);
        }
        self.mix_effect(at, &effect);
        let now = self.moment();
        match effect {
            Effect::Reply { slot, verdict } => {
                let planted = self.store.planted;
                if planted == Some(Planted::LoseVerdict) && self.rng.chance(20) {
                    return;
                }
                self.oracle.replied(now, at, slot, &verdict, &self.store);
                if planted == Some(Planted::TwoVerdicts) && self.rng.chance(20) {
                    self.oracle.replied(now, at, slot, &verdict, &self.store);
                }
                if self.heard(slot) || self.settle_change(slot) {
                    return;
                }
                let client = self.owner.remove(&slot).expect("somebody asked");
                let after = self.rng.range(5, 300);
                self.later(after, Due::Client { client, input: Input::Verdict(slot, verdict) });
            }
            Effect::Wake { slot } => {
                self.oracle.woke(at, slot);
                if self.store.planted == Some(Planted::LoseWake) && self.rng.chance(500) {
                    return;
                }
                let client = self.owner[&slot];
                let after = self.rng.range(5, 300);
                self.later(after, Due::Client { client, input: Input::Wake(slot) });
            }
            Effect::Spool { token, record } => self.spool(at, token, record),
            Effect::Drained { id, verdict } => self.drained(at, id, verdict),
            Effect::Append { commit, append } => {
                self.oracle.emits_append(at, commit, &append);
                self.dispatch(at, Asking::Append { commit, append });
            }
            Effect::Move { commit, moves } => {
                let candidates = self.oracle.emits_move(at, commit, &moves);
                self.dispatch(at, Asking::Move { commit, moves, candidates });
            }
            Effect::Bundle { commit, bundles } => {
                let candidates = self.oracle.emits_bundle(at, &bundles);
                self.bundles.insert((at, commit), bundles.clone());
                self.dispatch(at, Asking::Bundle { commit, bundles, candidates });
            }
            Effect::Call { call, ask } => {
                self.oracle.emits_call(at);
                self.dispatch(at, Asking::Call { call, ask });
            }
        }
    }

    /// A client meets something and acts.
    fn act(&mut self, client: usize, input: Input) {
        let mut ctx = Ctx {
            t: self.t,
            maintenance: self.disks[self.clients[client].1.broker].maintenance,
            rng: &mut self.rng,
            plan: &self.plan,
            shared: &mut self.shared,
            cover: &mut self.oracle.cover,
            actions: Vec::new(),
        };
        match &mut self.clients[client].0 {
            Client::Producer(producer) => producer.step(&mut ctx, input),
            Client::Consumer(consumer) => consumer.step(&mut ctx, input),
            Client::Transactor(transactor) => transactor.step(&mut ctx, input),
        }
        let actions = VecDeque::from(ctx.actions);
        let broker = self.clients[client].1.broker;
        for action in actions {
            match action {
                Action::Send { shard, slot, command } => self.send(client, (broker, shard), slot, command),
                Action::Timer { after, tag } => {
                    self.later(after, Due::Client { client, input: Input::Timer(tag) });
                }
            }
        }
    }

    fn send(&mut self, client: usize, at: At, slot: Slot, command: Command) {
        let now = self.moment();
        self.oracle.sent(now, at, slot, &command);
        self.owner.insert(slot, client);
        let last = self.sent.get(&(client, at.1)).copied().unwrap_or(0);
        let when = (self.t + self.rng.range(5, 400)).max(last);
        self.sent.insert((client, at.1), when);
        let epoch = self.brokers[at.0].epoch;
        let event = Event::Command { slot, command };
        self.due.insert((when, self.made), Box::new(Due::Deliver { at, epoch, event }));
        self.made += 1;
    }

    /// Tells every shard of every broker something, from nowhere in particular.
    pub(crate) fn tell_all(&mut self, told: impl Fn() -> Command) -> Vec<Slot> {
        let mut slots = Vec::new();
        for broker in 0..self.brokers.len() {
            for shard in 0..self.brokers[broker].shards.len() {
                self.shared.slots += 1;
                let slot = Slot::new(0, self.shared.slots);
                let command = told();
                let now = self.moment();
                self.oracle.sent(now, (broker, shard), slot, &command);
                let epoch = self.brokers[broker].epoch;
                let event = Event::Command { slot, command };
                let after = self.rng.range(5, 5_000);
                self.later(after, Due::Deliver { at: (broker, shard), epoch, event });
                slots.push(slot);
            }
        }
        slots
    }

    /// Whether a client waits for this slot.
    pub(crate) fn owned(&self, slot: Slot) -> bool {
        self.owner.contains_key(&slot)
    }

    /// A message of a producer at a broker that is not simulated: its key is new.
    pub(crate) fn foreign_message(&mut self, queue: usize) -> crate::frame::Message {
        self.shared.message(&mut self.rng, &self.plan, queue, true)
    }

    // ---- the end

    /// Faults are over: from here on everything must come out.
    pub fn heal(&mut self) {
        self.healed = true;
        self.store.busy = 0;
        (self.store.locked, self.store.dying) = (None, None);
        self.store.lost = (0, None);
        self.outage_until = 0;
        (0..self.disks.len()).for_each(|broker| self.switch_maintenance(broker, false));
        self.oracle.healed = Some(self.t);
        for client in 0..self.clients.len() {
            self.later(1, Due::Client { client, input: Input::Heal });
        }
    }

    /// Whether some store call is still on its way, though its answer may have been given up.
    pub fn store_busy(&self) -> bool {
        !self.tickets.is_empty()
    }

    pub fn clients_idle(&self) -> bool {
        self.clients.iter().all(|(client, _)| match client {
            Client::Producer(producer) => producer.idle(),
            Client::Consumer(consumer) => consumer.idle(),
            Client::Transactor(transactor) => transactor.idle(),
        })
    }

    /// Consumers that take everything there is, in every group the store knows.
    pub fn send_drainers(&mut self) {
        // One broker hears of nothing that others wrote before it looks: a new one looks first.
        if !self.oracle.solo {
            (0..self.brokers.len()).for_each(|broker| self.restart(broker));
        }
        let drained_by = self.home();
        let mut roles = Vec::new();
        for (id, group) in &self.store.groups {
            let queue = self.store.queues[&group.queue].name.clone();
            let role = |partition| Role {
                queue: queue.clone(),
                partition,
                group: group.name.clone(),
                start: queen_shards::command::Start::All,
                conflates: false,
                drains: true,
                recheck_us: u64::MAX / 4,
            };
            if group.mode.is_some() || &*group.name == queen_shards::command::QUEUE_MODE {
                roles.push(role(None));
            } else {
                let mine = self.store.cursors.keys().filter(|(_, of)| of == id);
                roles.extend(mine.map(|(partition, _)| role(Some(self.store.partitions[partition].name.clone()))));
            }
        }
        for role in roles {
            self.join(Client::Consumer(Consumer::new(drained_by, role)), drained_by);
        }
    }
}

fn is_answer(due: &Due, of: usize) -> bool {
    matches!(due, Due::Client { client, input: Input::Verdict(..) | Input::Wake(_) } if *client == of)
}
