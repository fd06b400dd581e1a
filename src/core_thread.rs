//! One core: owns a shard of the engine, its store connections and its client connections; performs effects.
//!
//!     handler > ask > inbox > turn > effects: commits and calls to the store, replies to slots (here or by mail)
//!     mail from other threads > inbox, slots
//!
//! Holds: the engine is entered by one task only; no borrow lives across an await; what must cross a core goes by mail.

mod effects;
mod life;
mod pop;

use self::life::Life;
use crate::asked::Asked;
use crate::auth::Guard;
use crate::bell::Bell;
use crate::cipher::Cipher;
use crate::config::Config;
use crate::conn::Answers;
use crate::flags::{Flags, Memory};
use crate::gate::Gate;
use crate::limits::ALONE_MAX;
use crate::mail::{Mail, Maintenance, SafeTime, Shared, Switch, ToShard, now};
use crate::mint::{random_bits, unix_millis, uuid_v7};
use crate::rt;
use crate::slots::{Slots, Waiting};
use crate::spool::ToSpool;
use crate::state::{StateCall, StateFn, StateReply};
use crate::store::{Conn, Incarnation};
use crate::telemetry::Metrics;
use crate::writer::Writer;
use queen_shards::command::{Command, DrainVerdict, Event, SpoolId, SpoolRecord, Verdict, Watch};
use queen_shards::ids::{GroupId, LeaseId, MessageId, Micros, PartitionId, Stamp, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::lease_id::LeaseSeed;
use queen_shards::limits::ShardConfig;
use queen_shards::place::LaneKey;
use queen_shards::shard::Shard;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Bodies parsed between two turns: some milliseconds of work, about what the store needs for its commit.
const TURN_BYTES: usize = 512 << 10;
/// Mail taken from the mailbox before other tasks run.
const MAIL_BATCH: usize = 256;
/// Period of the timer whose lateness is measured.
const LAG_PERIOD: Duration = Duration::from_millis(100);
/// Freed memory goes back so many of those periods apart: each second.
const GIVE_BACK_TICKS: u32 = 10;
/// Between two questions for a queue's flag while the store does not answer.
const FLAG_RETRY: Duration = Duration::from_secs(1);
/// Queues asked for in one call: a megabyte of the longest names.
const FLAGS_ASKED_MAX: usize = 1000;
/// What happened to queues is reported so often, the busiest ones where there are more than so many.
const REPORT_PERIOD: Duration = Duration::from_secs(1);
const REPORT_QUEUES_MAX: usize = 1000;
/// Pause before a full mailbox is tried again.
const LATE_PAUSE: Duration = Duration::from_millis(1);

/// An answer to a question of this thread.
#[derive(Debug)]
pub enum Answer {
    Verdict(Verdict),
    State(StateReply),
    /// By this shard.
    Woken(usize),
    /// Whether the log of other brokers was read.
    LogRead(bool),
}

/// The connections of a shard: pushes, claims and acks, bundles (not made before the first one), everything else. The
/// last three are one where connections are scarce.
struct Connections {
    append: Rc<Conn>,
    moves: Rc<Conn>,
    bundle: Rc<Conn>,
    cold: Rc<Conn>,
}

/// Who writes the commit log for this shard: each has one commit in flight.
struct Writers {
    append: Writer,
    moves: Writer,
    bundle: Writer,
}

impl Writers {
    fn new(broker: u128) -> Writers {
        Writers { append: Writer::new(broker), moves: Writer::new(broker), bundle: Writer::new(broker) }
    }
}

/// What a connection of this core can reach. Lives on its thread.
pub struct Core {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    /// `None`: authentication is off.
    pub guard: Option<Guard>,
    /// `None`: no usable key.
    pub cipher: Option<Cipher>,
    /// What requests did to queues since the last report.
    pub asked: Rc<Asked>,
    flags: Flags,
    shared: Shared,
    index: usize,
    slots: Slots<Answer>,
    inbox: RefCell<Vec<Event>>,
    turn: Bell,
    gate: Gate,
    pub(crate) answers: Rc<Answers>,
    alarm: Bell,
    deadline: Cell<Option<Micros>>,
    store: OnceCell<Rc<Connections>>,
    writers: Writers,
    /// Which store the engine's memory is of; empty before the first one. What is asked of any other one is refused there.
    incarnation: RefCell<Incarnation>,
    /// The one whose event waits in the inbox.
    next_incarnation: RefCell<Option<Incarnation>>,
    /// When the last read of the log of other brokers began whose news have reached the shards.
    log_began: Cell<Micros>,
    /// No other broker has answered a push before this.
    alone_until: Cell<Micros>,
    keys: OnceCell<KeyHasher>,
    /// Tells keys apart within one body while those of the store are not known.
    own_keys: KeyHasher,
    store_up: Cell<bool>,
    /// What was told of this shard to whoever asks whether all of them can store a push.
    ready: Cell<bool>,
    spool_found: Cell<bool>,
    ids: Cell<(u64, u32)>,
    leases: Cell<u16>,
    /// Store connections open at the last count.
    connections: Cell<i64>,
    life: Cell<Life>,
    closed: RefCell<Vec<Waker>>,
    /// For the spool, gathered in a turn.
    to_spool: RefCell<(Vec<(u64, SpoolRecord)>, Vec<(SpoolId, DrainVerdict)>)>,
    /// Mail that waits for room, by target.
    late: RefCell<Vec<VecDeque<Mail>>>,
}

impl Core {
    /// A core of its thread; [`Core::run`] makes it live.
    pub fn new(shared: Shared, index: usize) -> Rc<Core> {
        Rc::new_cyclic(|this: &Weak<Core>| {
            let lost = this.clone();
            Core {
                config: shared.config.clone(),
                metrics: shared.metrics.clone(),
                cipher: Cipher::of(shared.config.encryption),
                asked: Rc::default(),
                flags: Flags::default(),
                guard: shared.config.jwt.clone().map(|rules| Guard::new(rules, shared.published.clone())),
                index,
                slots: Slots::new(index, move |answer| {
                    if let Some(core) = lost.upgrade() {
                        core.take_back(answer);
                    }
                }),
                inbox: RefCell::default(),
                turn: Bell::default(),
                gate: Gate::new(TURN_BYTES),
                answers: Rc::default(),
                alarm: Bell::default(),
                deadline: Cell::new(None),
                store: OnceCell::new(),
                writers: Writers::new(shared.config.broker()),
                incarnation: RefCell::new("".into()),
                next_incarnation: RefCell::default(),
                log_began: Cell::new(Micros(0)),
                alone_until: Cell::new(Micros(0)),
                keys: OnceCell::new(),
                store_up: Cell::new(false),
                ready: Cell::new(false),
                spool_found: Cell::new(false),
                ids: Cell::new((0, random_bits() as u32)),
                leases: Cell::new(random_bits() as u16),
                connections: Cell::new(0),
                life: Cell::new(Life::Serving),
                closed: RefCell::default(),
                to_spool: RefCell::default(),
                own_keys: KeyHasher::new(
                    &[random_bits().to_le_bytes(), random_bits().to_le_bytes()].concat().try_into().expect("16 bytes"),
                ),
                late: RefCell::new((0..shared.hub.targets()).map(|_| VecDeque::new()).collect()),
                shared,
            }
        })
    }

    /// Starts the tasks of the engine and of the mailbox.
    pub fn run(self: &Rc<Self>) -> std::io::Result<()> {
        let mut mailbox = self.shared.hub.inbox(self.index)?;
        let core = self.clone();
        rt::spawn(async move {
            let mut mail = Vec::with_capacity(MAIL_BATCH);
            loop {
                let more = mailbox.drain(&mut mail, MAIL_BATCH);
                for mail in mail.drain(..) {
                    core.receive(mail);
                }
                if more { rt::yield_now().await } else { mailbox.wait().await }
            }
        });
        rt::spawn(self.clone().turns());
        rt::spawn(self.clone().alarms());
        rt::spawn(self.clone().measure_lag());
        Ok(())
    }

    pub fn shard(&self) -> usize {
        self.index
    }

    pub fn shards(&self) -> usize {
        self.shared.shards
    }

    pub fn now(&self) -> Micros {
        now()
    }

    /// Hashes transactionIds; `None` until the store has been reached once since boot.
    pub fn keys(&self) -> Option<&KeyHasher> {
        self.keys.get()
    }

    /// Hashes transactionIds for comparisons within one body only.
    pub fn own_keys(&self) -> &KeyHasher {
        &self.own_keys
    }

    /// What the spool says of itself.
    pub fn spool(&self) -> crate::spool::Numbers {
        self.shared.spool.status().numbers()
    }

    /// Push maintenance is on.
    pub fn push_maintenance(&self) -> bool {
        self.shared.maintenance.push.load(Ordering::Relaxed)
    }

    /// Pop maintenance is on.
    pub fn pop_maintenance(&self) -> bool {
        self.shared.maintenance.pop.load(Ordering::Relaxed)
    }

    /// An operator turns a switch of this broker; the row that tells the others is the caller's. The turn that it is.
    pub fn turn_maintenance(&self, switch: Switch, on: bool) -> u64 {
        self.shared.turn(switch, on)
    }

    /// The operator's switches.
    pub fn maintenance(&self) -> &Maintenance {
        &self.shared.maintenance
    }

    /// The rows of the switches say so; they were asked for after so many turns.
    pub fn follow_maintenance(&self, stored: (bool, bool), turns: u64) {
        self.shared.follow_maintenance(stored, turns);
    }

    /// Whether every shard can store a push. Source: operations 5.1.
    pub fn is_ready(&self, recovering: bool) -> bool {
        self.store_is_up() && self.shared.readiness.is_ready(self.shards(), recovering)
    }

    /// Whether the store answered lately, as this shard knows.
    pub fn store_is_up(&self) -> bool {
        self.store_up.get()
    }

    /// The latest `safeTime` that was answered.
    pub fn safe_time(&self) -> SafeTime {
        self.shared.safe_time.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What to answer where the store says `now` to a request that was asked of it when `before` had been answered, which is
    /// remembered for those that come.
    pub fn next_safe_time(&self, before: &SafeTime, now: SafeTime) -> Stamp {
        let next = now.after(before);
        let at = next.at;
        self.shared.safe_time.lock().unwrap_or_else(PoisonError::into_inner).raise(next, before);
        at
    }

    /// What messages of a request carry of it.
    pub fn sender<'a>(&'a self, request: &'a crate::http::Request) -> crate::http::push::plan::Sender<'a> {
        crate::http::push::plan::Sender {
            tenant: request.tenant,
            producer: request.producer.as_deref(),
            cipher: self.cipher.as_ref(),
        }
    }

    /// Whether payloads of a queue are encrypted; see [`Core::encrypt`].
    pub async fn encrypts(self: &Rc<Self>, tenant: TenantId, queue: &str) -> bool {
        self.encrypt(tenant, &[queue]).await.pop().unwrap_or(true)
    }

    /// Which of some queues have encrypted payloads, in their order. Asks the store at most once per queue and refresh
    /// interval, for all that it does not know together, and waits for it only the first time. A question without an answer
    /// counts as yes. Only for a core that has a cipher.
    pub async fn encrypt(self: &Rc<Self>, tenant: TenantId, queues: &[&str]) -> Vec<bool> {
        // Also where the store was lost a moment ago: rather an envelope too many than one too few.
        let mut encrypted = vec![true; queues.len()];
        let (mut old, mut unknown) = (Vec::new(), Vec::new());
        for (at, queue) in queues.iter().enumerate() {
            match self.flags.find(tenant, queue, now(), FLAG_RETRY.as_micros() as u64) {
                Memory::Known(known) => encrypted[at] = known,
                Memory::Old(known) => {
                    encrypted[at] = known;
                    old.push((*queue).to_owned());
                }
                Memory::Unknown => unknown.push(at),
            }
        }
        if !old.is_empty() {
            let core = self.clone();
            rt::spawn(async move {
                let old: Vec<&str> = old.iter().map(String::as_str).collect();
                for some in old.chunks(FLAGS_ASKED_MAX) {
                    core.ask_flags(tenant, some).await;
                }
            });
        }
        if !unknown.is_empty() && self.store_is_up() {
            let ask = async {
                for some in unknown.chunks(FLAGS_ASKED_MAX) {
                    let names: Vec<&str> = some.iter().map(|at| queues[*at]).collect();
                    let Some(found) = self.ask_flags(tenant, &names).await else { return };
                    some.iter().for_each(|at| encrypted[*at] = found.contains(queues[*at]));
                }
            };
            rt::timeout(self.config.push_commit_timeout, ask).await;
        }
        encrypted
    }

    /// Those of the queues that are encrypted; `None`: the store did not say.
    async fn ask_flags(&self, tenant: TenantId, queues: &[&str]) -> Option<HashSet<String>> {
        let asked = self.flags.ask();
        let args = serde_json::json!({ "queues": queues });
        let reply = self.state(StateCall { function: StateFn::QueueFlags, tenant, args }).await.ok()??;
        let found: HashSet<String> = serde_json::from_str(&reply).ok()?;
        let due = now().plus(self.config.cache_refresh.as_micros() as u64);
        for queue in queues {
            self.flags.remember(asked, tenant, queue, found.contains(*queue), due);
        }
        Some(found)
    }

    /// Mints `n` consecutive UUIDv7s: one clock read, then a counter over the random bits.
    pub fn mint_ids(&self, n: usize) -> Vec<MessageId> {
        let millis = unix_millis();
        let (last, counter) = self.ids.get();
        // Within a millisecond the counter goes on; in a new one it starts somewhere new, below half of its range.
        let (millis, mut counter) =
            if millis <= last { (last, counter) } else { (millis, random_bits() as u32 & 0x3fff_ffff) };
        let tail = random_bits() & ((1 << 42) - 1);
        let ids = (0..n).map(|_| {
            counter = counter.wrapping_add(1);
            uuid_v7(millis, counter, tail)
        });
        let ids = ids.collect();
        self.ids.set((millis, counter));
        ids
    }

    pub fn lease_seed(&self) -> LeaseSeed {
        // Shards and brokers start their counters apart; see `lease_id` for what keeps ids of one partition apart.
        let counter = self.leases.get().wrapping_add(1);
        self.leases.set(counter);
        LeaseSeed { millis: unix_millis(), counter, wide: false }
    }

    /// Waits until a body of `bytes` may be parsed: at most so much between two turns of the engine.
    pub async fn pass(&self, bytes: usize) {
        if self.gate.is_shut() {
            self.turn.ring();
        }
        self.gate.pass(bytes).await
    }

    /// Sends a command to a shard (this one or another), at once if there is room; the future waits for its verdict.
    pub fn ask(&self, shard: usize, command: Command) -> impl Future<Output = Verdict> {
        let mut waiting = self.slots.open();
        let full = self.send(shard, waiting.slot(), command);
        async move {
            if let Some(sent) = full {
                sent.await;
            }
            loop {
                if let Answer::Verdict(verdict) = waiting.next().await {
                    return verdict;
                }
            }
        }
    }

    /// Sends a command to a shard. `Some` where its mailbox is full: the command is sent by awaiting that. On the heap, because
    /// every request that asks would be as large otherwise.
    fn send(
        &self,
        shard: usize,
        slot: queen_shards::ids::Slot,
        command: Command,
    ) -> Option<Pin<Box<impl Future<Output = ()>>>> {
        if shard == self.index {
            self.enter(Event::Command { slot, command });
            return None;
        }
        let mail = self.shared.hub.send(shard, Mail::Command { slot, command }).err()?;
        Some(Box::pin(self.shared.hub.send_wait(shard, mail)))
    }

    /// Sends without waiting for room. What a full mailbox does not take goes to it later, in order. Bounded by what is
    /// asked: a reply per command, a watch and an unwatch per parked pop, a withdrawal per pop.
    fn post(self: &Rc<Self>, target: usize, mail: Mail) {
        let mut late = self.late.borrow_mut();
        if !late[target].is_empty() {
            return late[target].push_back(mail);
        }
        let Err(mail) = self.shared.hub.send(target, mail) else { return };
        late[target].push_back(mail);
        let core = self.clone();
        rt::spawn(async move {
            loop {
                let Some(mail) = core.late.borrow_mut()[target].pop_front() else { return };
                match core.shared.hub.send(target, mail) {
                    Ok(()) => {}
                    Err(mail) => {
                        core.late.borrow_mut()[target].push_front(mail);
                        rt::sleep(LATE_PAUSE).await;
                    }
                }
            }
        });
    }

    fn tell(self: &Rc<Self>, shard: usize, slot: queen_shards::ids::Slot, command: Command) {
        if shard == self.index {
            self.enter(Event::Command { slot, command });
        } else {
            self.post(shard, Mail::Command { slot, command });
        }
    }

    /// Registers a watch on each of `shards`; the guard resolves at a wake and unwatches when dropped.
    pub fn watch(self: &Rc<Self>, shards: &[usize], watch: Watch) -> WatchGuard {
        let waiting = self.slots.open();
        for &shard in shards {
            self.tell(shard, waiting.slot(), Command::Watch(watch.clone()));
        }
        WatchGuard { core: self.clone(), waiting, shards: shards.to_vec() }
    }

    /// Gives claims back whose answer could not be written.
    pub fn give_back(self: &Rc<Self>, lease: LeaseId, claims: Vec<(PartitionId, GroupId)>) {
        let shards = self.shards();
        let mut by_owner: Vec<Vec<(PartitionId, GroupId)>> = vec![Vec::new(); shards];
        for claim in claims {
            by_owner[queen_shards::place::owner_of_partition(claim.0, shards)].push(claim);
        }
        for (shard, claims) in by_owner.into_iter().enumerate().filter(|(_, claims)| !claims.is_empty()) {
            self.tell(shard, queen_shards::ids::Slot::new(self.index, 0), Command::GiveBack { lease, claims });
        }
    }

    /// Runs a state call on the control thread's connection.
    pub async fn state(&self, call: StateCall) -> StateReply {
        call.check()?;
        let mut waiting = self.slots.open();
        let slot = waiting.slot();
        self.shared.hub.send_wait(self.shared.control(), Mail::State { slot, call }).await;
        loop {
            if let Answer::State(reply) = waiting.next().await {
                return reply;
            }
        }
    }

    /// Whether what other brokers had answered by `since` is known here. Constant time.
    pub fn has_heard(&self, since: Micros) -> bool {
        since < self.log_began.get() || now() < self.alone_until.get()
    }

    /// Waits for a read of the log of other brokers that begins after the call; false when the store does not answer.
    /// Shared by all who wait meanwhile. Source: rule 10.
    pub async fn hear(&self) -> bool {
        let mut waiting = self.slots.open();
        let slot = waiting.slot();
        self.shared.hub.send_wait(self.shared.control(), Mail::ReadLog { slot }).await;
        loop {
            if let Answer::LogRead(read) = waiting.next().await {
                return read;
            }
        }
    }

    /// Tells every shard that a queue changed and waits until all have heard it.
    pub async fn queue_changed(&self, tenant: TenantId, queue: &str) {
        let queue: Arc<str> = queue.into();
        let told =
            (0..self.shards()).map(|shard| self.ask(shard, Command::QueueChanged { tenant, queue: queue.clone() }));
        futures_util::future::join_all(told).await;
    }

    /// Tells its shard that a partition grew by a call of the edge and waits until it has read it.
    pub async fn lane_grew(&self, lane: LaneKey) {
        self.ask(lane.owner(self.shards()), Command::LaneGrew { lane }).await;
    }

    /// Tells every shard that a group may be gone from any queue and waits until all have heard it.
    pub async fn group_changed(&self, tenant: TenantId, group: &str) {
        let group: Arc<str> = group.into();
        let told = (0..self.shards())
            .map(|shard| self.ask(shard, Command::GroupChanged { tenant, queue: None, group: group.clone() }));
        futures_util::future::join_all(told).await;
    }

    /// Something was committed that other brokers may wait for: they are told soon. Nothing to do while there are none.
    fn committed(&self) {
        if self.alone_until.get() <= now()
            && self.shared.untold.note()
            && self.shared.hub.send(self.shared.control(), Mail::Committed).is_err()
        {
            // The next one tells.
            self.shared.untold.take();
        }
    }

    // ---- mail

    fn receive(self: &Rc<Self>, mail: Mail) {
        match mail {
            Mail::Command { slot, command } => self.enter(Event::Command { slot, command }),
            Mail::Verdict { slot, verdict } => self.answer(slot, Answer::Verdict(verdict)),
            Mail::Wake { slot, from } => self.answer(slot, Answer::Woken(from)),
            Mail::StateReply { slot, reply } => self.answer(slot, Answer::State(reply)),
            Mail::StoreReady { shared, target, hash_secret, incarnation } => {
                *self.incarnation.borrow_mut() = incarnation;
                let conn = |role: &str| {
                    let name = format!("queen {} shard {} {role}", self.config.server_id, self.index);
                    Rc::new(Conn::new(target.clone(), name))
                };
                let (append, moves) = (conn("push"), conn("pop"));
                let (bundle, cold) =
                    if shared { (moves.clone(), moves.clone()) } else { (conn("transaction"), conn("cold")) };
                let _ = self.store.set(Rc::new(Connections { append, moves, bundle, cold }));
                let _ = self.keys.set(KeyHasher::new(&hash_secret));
            }
            Mail::OtherStore { incarnation, clock: (now, at) } => {
                self.flags.forget_all();
                *self.next_incarnation.borrow_mut() = Some(incarnation);
                self.enter(Event::OtherStore { now, at });
            }
            Mail::Spool(said) => self.hear_spool(said),
            Mail::LogRead { slot, read } => self.answer(slot, Answer::LogRead(read)),
            Mail::Log { began, lanes, freed, changed, lost } => {
                changed.iter().for_each(|(tenant, queue)| self.flags.forget(*tenant, queue));
                self.enter(Event::Log { began, lanes, freed, changed, lost });
            }
            Mail::Pulse { clock, lost, log } => {
                if let Some((began, alone)) = log {
                    self.log_began.set(began);
                    self.alone_until.set(if alone { began.plus(ALONE_MAX.as_micros() as u64) } else { Micros(0) });
                }
                if clock.is_some() && !self.store_up.get() {
                    self.retry_connections();
                }
                self.store_up.set(clock.is_some());
                self.tell_ready(clock.is_some() && self.can_append());
                if clock.is_some() || lost {
                    self.enter(Event::Store { up: clock.is_some() });
                }
                self.count_connections();
                if let Some((now, at)) = clock {
                    self.enter(Event::Clock { now, at });
                }
            }
            Mail::KeysFetched => self.guard.iter().for_each(Guard::keys_changed),
            Mail::Shutdown => self.live(Life::Closing),
            Mail::Over => self.live(Life::Over),
            Mail::State { .. } | Mail::ReadLog { .. } | Mail::Committed | Mail::Finished | Mail::Signal => {}
        }
    }

    fn hear_spool(&self, said: ToShard) {
        match said {
            ToShard::Spooled(answers) => {
                answers.into_iter().for_each(|(token, written)| self.enter(Event::Spooled { token, written }));
            }
            ToShard::Drain(records) => self.enter(Event::Drain { records }),
            ToShard::RefusedAgain(records) => self.enter(Event::RefusedAgain { records }),
            ToShard::RefusedGone(records) => self.enter(Event::RefusedGone { records }),
            ToShard::SpoolFound { lanes, counted } => {
                self.enter(Event::SpoolFound { lanes });
                if !self.spool_found.replace(true) {
                    self.shared.readiness.spool_found();
                }
                if counted && self.shared.readiness.spool_counted(self.shards()) {
                    self.shared.spool.status().recovering(false);
                }
            }
            ToShard::SpoolRead { all, but } => self.enter(Event::SpoolRead { all, but }),
        }
    }

    /// The store is back: connections that wait before another try do not.
    fn retry_connections(&self) {
        if let Some(store) = self.store.get() {
            [&store.append, &store.moves, &store.bundle, &store.cold].into_iter().for_each(|conn| conn.retry_now());
        }
    }

    fn tell_ready(&self, ready: bool) {
        if self.ready.replace(ready) != ready {
            self.shared.readiness.store(ready);
        }
    }

    /// Whether pushes of this shard reach the store, which answers the control thread: a server that has no connection left
    /// for them makes this shard spool. Then one is tried for, because nobody else may do it: where `/health` is not 200 no
    /// push comes. Source: operations 5.1.
    fn can_append(self: &Rc<Self>) -> bool {
        let Some(store) = self.store.get().filter(|store| !store.append.is_sound()) else { return true };
        if store.append.is_due() {
            let (core, append) = (self.clone(), store.append.clone());
            rt::spawn(async move {
                if append.get().await.is_ok() && core.store_is_up() {
                    core.tell_ready(true);
                }
            });
        }
        false
    }

    /// What the turn had for the spool, in one piece: it shares one sync.
    fn send_to_spool(&self) {
        let (records, verdicts) = self.to_spool.take();
        if !records.is_empty() {
            self.shared.spool.send(ToSpool::Write { shard: self.index, records });
        }
        if !verdicts.is_empty() {
            self.shared.spool.send(ToSpool::Decided { verdicts });
        }
    }

    fn count_connections(&self) {
        let Some(store) = self.store.get() else { return };
        let mut own = vec![&store.append, &store.moves, &store.bundle, &store.cold];
        own.dedup_by(|a, b| Rc::ptr_eq(a, b));
        let open = own.iter().filter(|conn| conn.live().is_some()).count() as i64;
        self.metrics.shard(self.index).connections(open - self.connections.replace(open));
    }

    fn answer(self: &Rc<Self>, slot: queen_shards::ids::Slot, answer: Answer) {
        if let Err(answer) = self.slots.answer(slot, answer) {
            self.take_back(answer);
        }
    }

    /// An answer nobody waits for any more: what it claimed is free again.
    fn take_back(self: &Rc<Self>, answer: Answer) {
        if let Answer::Verdict(Verdict::Pop(verdict)) = answer
            && let Some(lease) = verdict.lease
        {
            self.give_back(lease, verdict.claims.iter().map(|c| (c.partition, c.group)).collect());
        }
    }

    // ---- turns

    fn enter(&self, event: Event) {
        if let Event::Command { command: Command::QueueChanged { tenant, queue }, .. } = &event {
            self.flags.forget(*tenant, queue);
        }
        self.inbox.borrow_mut().push(event);
        self.turn.ring();
    }

    async fn turns(self: Rc<Self>) {
        let mut shard = Shard::new(ShardConfig {
            index: self.index,
            shards: self.shards(),
            window_bytes_max: (self.config.dedup_cache_bytes as usize / self.shards()).max(1 << 20),
            window_batch: self.config.window_batch,
            spool_found: false,
            ..ShardConfig::default()
        });
        let (stamp, at) = self.shared.clock;
        let (mut events, mut effects) = (vec![Event::Clock { now: stamp, at }], Vec::new());
        let mut reported = now();
        loop {
            self.turn.wait().await;
            // Whoever is ready now adds to this turn: that is what fuses commits.
            rt::yield_now().await;
            events.append(&mut self.inbox.borrow_mut());
            // What a turn asks of the store it asks at its end, when all of its events are taken.
            if let Some(incarnation) = self.next_incarnation.take() {
                *self.incarnation.borrow_mut() = incarnation;
            }
            shard.turn(now(), &mut events, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
            self.send_to_spool();
            let deadline = shard.deadline();
            if self.deadline.replace(deadline) != deadline {
                self.alarm.ring();
            }
            if self.gate.is_waited_for() {
                // The commit goes to the store before more is parsed: its task, then its connection's.
                rt::yield_now().await;
                rt::yield_now().await;
                self.turn.ring();
            }
            self.gate.open();
            if reported.plus(REPORT_PERIOD.as_micros() as u64) <= now() {
                reported = now();
                let mut busy = shard.take_busy(REPORT_QUEUES_MAX);
                busy.append(&mut self.asked.take(reported));
                self.metrics.shard(self.index).busy_queues(busy);
            }
            let sizes = shard.sizes();
            let [tails, windows, memos] = [sizes.tail_bytes, sizes.window_bytes, sizes.memo_bytes].map(|n| n as u64);
            self.metrics.shard(self.index).memory(tails, windows, memos);
        }
    }

    /// How late a timer of this thread fires: what every other task waits as well. Source: operations 5.4.1.
    async fn measure_lag(self: Rc<Self>) {
        for tick in (0..GIVE_BACK_TICKS).cycle() {
            if tick == 0 {
                crate::heap::give_back();
            }
            let due = now().plus(LAG_PERIOD.as_micros() as u64);
            rt::sleep(LAG_PERIOD).await;
            self.metrics.shard(self.index).loop_lag(now().since(due));
        }
    }

    /// Rings for a turn when the engine wants one though nothing happens.
    async fn alarms(self: Rc<Self>) {
        loop {
            let Some(deadline) = self.deadline.get() else {
                self.alarm.wait().await;
                continue;
            };
            let left = deadline.since(now());
            if left > 0 {
                rt::race(self.alarm.wait(), rt::sleep(Duration::from_micros(left))).await;
                continue;
            }
            self.deadline.set(None);
            self.turn.ring();
        }
    }
}

/// See [`Core::watch`].
pub struct WatchGuard {
    core: Rc<Core>,
    waiting: Waiting<Answer>,
    shards: Vec<usize>,
}

impl WatchGuard {
    /// Waits for a wake; says which shard has something.
    pub async fn wake(&mut self) -> usize {
        loop {
            if let Answer::Woken(shard) = self.waiting.next().await {
                return shard;
            }
        }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        for &shard in &self.shards {
            self.core.tell(shard, self.waiting.slot(), Command::Unwatch);
        }
    }
}
