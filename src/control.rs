//! The control thread, which is the main thread: brings the store up, watches it, answers state calls, ends the broker.
//!
//!     embedded PostgreSQL -> boot (schema, facts) -> join -> StoreReady to every shard -> pulses, which read the log
//!     State -> admin connection -> StateReply;  Signal -> Shutdown to every shard -> Finished -> Over to every shard -> stop PostgreSQL
//!
//! Holds: the port is open before the store is there; the embedded server is started from this thread and no other,
//! because the kernel ends it with the thread that started it.

mod ways;

use crate::bell::Bell;
use crate::config::Postgres;
use crate::embedded::{Embedded, Status};
use crate::follow::Follower;
use crate::hints::Hints;
use crate::http::maintenance;
use crate::jobs;
use crate::limits::{LOG_BUSY, LOG_PARKED};
use crate::mail::{Mail, Shared, Switch, now};
use crate::rt;
use crate::spool::ToSpool;
use crate::state::{StateCall, StateFn, StateReply};
use crate::store::migrate::{BootError, StoreFacts, boot};
use crate::store::{self, Conn, Incarnation, Target};
use crate::telemetry::history::History;
use crate::telemetry::rates::Rates;
use crate::telemetry::screen;
use queen_shards::command::{Command, reading};
use queen_shards::effect::StoreError;
use queen_shards::ids::{Micros, Slot, Stamp, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::place::LaneKey;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use ways::{Caller, Ways};

/// Between pulses while nobody waits for news of other brokers: a lost store shows in `/health` within one of them and
/// [`PROBE_MAX`]. Source: operations 5.1.
const PULSE: Duration = Duration::from_millis(500);
/// Probes in a row without an answer in time after which pushes are spooled untried. One alone may be a slow moment;
/// a refused connection counts at once.
const PROBES_LOST: u32 = 2;
/// Between words on what the spool may need of the dedup evidence.
const FLOOR_PERIOD: Duration = Duration::from_secs(10);
/// How long the last of them may take.
const FLOOR_GONE_MAX: Duration = Duration::from_millis(300);
/// How long the spool may take to close its file at the end.
const SPOOL_STOP_MAX: Duration = Duration::from_secs(2);
/// A probe that takes longer counts as lost.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// Connections of the control thread: short calls, changes, long ones, reads, pages; pulse, jobs, counting; hints, sent and
/// heard, once another broker is there.
pub const CONTROL_CONNECTIONS: usize = 10;
/// Between tries to bring the schema up while the store is away.
const BOOT_PAUSE: Duration = Duration::from_millis(250);
/// Between two steps of the clean-up after deleted queues, while it finds something.
const PURGE_STEP_PAUSE: Duration = Duration::from_millis(50);

/// How the broker ended.
pub type Ended = Result<(), String>;

/// A read of the log of other brokers, and with it of the store's clock.
struct Read {
    /// With a moment on ours that is not before it.
    clock: (Stamp, Micros),
    began: Micros,
    /// No other broker was there.
    alone: bool,
    /// It brought something.
    news: bool,
}

struct Control {
    shared: Shared,
    started: Instant,
    driver: String,
    history: Rc<RefCell<History>>,
    /// For state calls; `None` before the store was reached.
    ways: RefCell<Option<Rc<Ways>>>,
    /// PostgreSQL's clock as far as it is known: at the start as it was reckoned, which a first answer that came late does not
    /// put back.
    clock: Cell<(Stamp, Micros)>,
    follower: Rc<Follower>,
    hints: Hints,
    /// A redrive was asked for here.
    redrives: Rc<Bell>,
    finished: Cell<usize>,
    stopping: Cell<bool>,
    fatal: RefCell<Option<String>>,
}

/// Runs until the broker is told to end. `embedded`: prepared, not started; on this thread.
pub async fn run(shared: Shared, mut embedded: Option<Embedded>, started: Instant, driver: String) -> Ended {
    let history = Rc::new(RefCell::new(History::new(shared.metrics.clone(), shared.config.server_id.clone())));
    let broker = shared.config.broker();
    let control = Rc::new(Control {
        history,
        clock: Cell::new(shared.clock),
        follower: Rc::new(Follower::new(broker)),
        hints: Hints::new(broker),
        redrives: Rc::default(),
        shared,
        started,
        driver,
        ways: RefCell::default(),
        finished: Cell::new(0),
        stopping: Cell::new(false),
        fatal: RefCell::default(),
    });
    let target = match (&embedded, &control.shared.config.postgres) {
        (Some(embedded), _) => embedded.target(),
        (None, Postgres::Server(config, trust)) => Target::server((**config).clone(), trust.as_ref())?,
        (None, Postgres::Embedded) => return Err("no embedded PostgreSQL was prepared".into()),
    };
    let about = match &embedded {
        Some(embedded) => format!("embedded PostgreSQL {} in {}", embedded.major(), embedded.data().display()),
        None => format!("PostgreSQL at {target}"),
    };
    if let Some(embedded) = &mut embedded {
        embedded.start();
    }
    rt::spawn(control.clone().bring_up(target, about));
    rt::spawn(control.clone().rates());
    rt::race(control.clone().mail(), control.watch(&mut embedded)).await;
    control.end(embedded).await
}

impl Control {
    // ---- the store

    /// Waits for the store, applies the schema, tells the shards, then keeps watching.
    async fn bring_up(self: Rc<Self>, target: Target, about: String) {
        let Some(facts) = self.wait_for_store(&target).await else { return };
        for warning in &facts.warnings {
            crate::warning!("boot", warning);
        }
        let shared = self.budget(&facts);
        let connect = |role: &str| Conn::new(target.clone(), self.name(role));
        *self.ways.borrow_mut() = Some(Rc::new(Ways::new(self.shared.config.broker(), connect)));
        let pulse = Conn::new(target.clone(), self.name("pulse"));
        // Where the log stands is noted before anything is scanned, and what the operator's switches say before anything is
        // drained: it may be that nothing is to be. Source: rule 11; operations 4.8.
        let mut first = self.begin(&pulse).await;
        while first.is_none() && !self.stopping.get() {
            rt::sleep(BOOT_PAUSE).await;
            first = self.begin(&pulse).await;
        }
        let (Some(first), Some(incarnation)) = (first, self.follower.incarnation()) else { return };
        self.shared.spool.send(ToSpool::Ready { hash_secret: facts.hash_secret });
        for shard in 0..self.shared.shards {
            let (target, incarnation) = (target.clone(), incarnation.clone());
            let ready = Mail::StoreReady { shared, target, hash_secret: facts.hash_secret, incarnation };
            self.shared.hub.send_wait(shard, ready).await;
        }
        self.tell_pulse(Some(first), false).await;
        self.announce(&about);
        self.start_jobs(target.clone(), KeyHasher::new(&facts.hash_secret));
        let (mut missed, mut pause) = (0, PULSE);
        // Which store the shards were told of.
        let incarnation = RefCell::new(incarnation);
        let mut other_store = false;
        loop {
            self.follower.wait(pause).await;
            let mut asked = self.follower.take_asked();
            let mut read = if other_store { None } else { self.read_log(&pulse).await.transpose() };
            if read.is_none() {
                // It may be gone again before it can be begun there.
                self.tell_asked(asked.drain(..), false).await;
                // Until the shards know it they are refused: nothing is tried.
                self.tell_pulse(None, true).await;
                read = self.change_store(&pulse, &target, &facts, &incarnation).await.map(Ok);
            }
            other_store = read.is_none();
            let read = read.unwrap_or_else(|| Err(StoreError::Unavailable("the store is another one".into())));
            missed = match read {
                Ok(_) => 0,
                // The server says so, or nobody is there.
                Err(StoreError::Unavailable(_)) => PROBES_LOST,
                Err(_) => missed + 1,
            };
            pause = match &read {
                Err(_) if other_store => BOOT_PAUSE,
                Err(_) => PULSE,
                Ok(_) if self.shared.metrics.parked().is_empty() => PULSE,
                // Nobody else commits; one that joins is met before it does.
                Ok(read) if read.alone => PULSE,
                Ok(read) if read.news => LOG_BUSY,
                // A hint comes first, and one that is lost costs half a second.
                Ok(_) if self.hints.hears() => PULSE,
                Ok(_) => LOG_PARKED,
            }
            .min(self.follower.pace().max(LOG_BUSY));
            let heard = read.is_ok();
            self.tell_pulse(read.ok(), missed >= PROBES_LOST).await;
            self.tell_asked(asked, heard).await;
        }
    }

    /// Tells who asked for a read of the log what became of it.
    async fn tell_asked(&self, asked: impl IntoIterator<Item = Slot>, read: bool) {
        for slot in asked {
            self.shared.hub.send_wait(slot.shard(), Mail::LogRead { slot, read }).await;
        }
    }

    /// Joins the brokers of the database and notes where their log stands.
    async fn begin(&self, conn: &Conn) -> Option<Read> {
        self.follower.join(conn, PROBE_MAX).await.ok()?;
        self.read_log(conn).await.ok()?
    }

    /// Reads the log of other brokers and tells the shards. `None`: the store is another one.
    async fn read_log(&self, conn: &Conn) -> Result<Option<Read>, StoreError> {
        let (began, turns) = (now(), self.shared.maintenance.turns());
        let Some(news) = self.follower.read(conn, PROBE_MAX).await? else { return Ok(None) };
        self.shared.follow_maintenance(news.maintenance, turns);
        self.hints.met(0 < news.others);
        let clock = reading(Some(self.clock.get()), news.now, began, now());
        self.clock.set(clock);
        let read = Read { clock, began, alone: news.others == 0, news: !news.is_empty() };
        self.follower.spread(&self.shared, news).await;
        Ok(Some(read))
    }

    /// Another store answers, after a failover, a restore or a restart: begins there as a broker that has just been started.
    /// Until the shards hear of it they are refused there. `None`: it could not be begun yet, or the broker ends.
    ///
    /// Source: rule 12.
    async fn change_store(
        &self,
        pulse: &Conn,
        target: &Target,
        facts: &StoreFacts,
        was: &RefCell<Incarnation>,
    ) -> Option<Read> {
        let found = self.wait_for_store(target).await?;
        if found.hash_secret != facts.hash_secret {
            self.fail("PostgreSQL holds another queen database than before: start the broker again to serve it".into());
            return None;
        }
        self.follower.begin_anew();
        let read = self.begin(pulse).await?;
        let incarnation = self.follower.incarnation()?;
        let before = was.replace(incarnation.clone());
        if before == incarnation {
            // It was another one for a moment only.
        } else if store::log::started_again(&before, &incarnation) {
            crate::info!(
                "db",
                "PostgreSQL was started again, perhaps on an older copy: what this broker remembered of it is dropped",
                was = before,
                is = incarnation,
            );
        } else {
            crate::warning!(
                "db",
                "PostgreSQL is not the one it was, after a failover or a restore: what this broker remembered of it is dropped",
                was = before,
                is = incarnation,
            );
        }
        for shard in 0..self.shared.shards {
            let other = Mail::OtherStore { incarnation: incarnation.clone(), clock: read.clock };
            self.shared.hub.send_wait(shard, other).await;
        }
        Some(read)
    }

    async fn tell_pulse(&self, read: Option<Read>, lost: bool) {
        let clock = read.as_ref().map(|read| read.clock);
        let log = read.as_ref().map(|read| (read.began, read.alone));
        for shard in 0..self.shared.shards {
            self.shared.hub.send_wait(shard, Mail::Pulse { clock, lost, log }).await;
        }
        self.shared.spool.send(ToSpool::Store { clock });
    }

    /// Stores what an operator switched while the store was away, as soon as it is back.
    async fn store_switches(self: Rc<Self>) {
        let switches = &self.shared.maintenance;
        loop {
            for switch in [Switch::Push, Switch::Pop] {
                let Some((enabled, turn)) = switches.unstored(switch) else { continue };
                let Some(ways) = self.ways.borrow().clone() else { continue };
                match self.call(&ways.short, &maintenance::store(switch, enabled)).await {
                    Ok(_) => switches.stored(switch, turn),
                    Err(error) => store::log_error(&error),
                }
            }
            rt::sleep(PULSE).await;
        }
    }

    /// Keeps the dedup evidence that undrained records may need. Before what an earlier process left is counted its last word
    /// stands. Source: rule 14.
    async fn tell_floor(&self, on: &Caller, gone: bool) {
        let status = self.shared.spool.status();
        if !status.is_surveyed() {
            return;
        }
        let mut args = serde_json::json!({ "broker": self.shared.config.broker_id, "gone": gone });
        if let Some(floor) = status.floor() {
            args["oldestMs"] = (floor / 1000).into();
        }
        let call = StateCall { function: StateFn::SetSpoolFloor, tenant: TenantId::DEFAULT, args };
        // Without an answer the last word stands, or the next one comes soon.
        let _ = self.call(on, &call).await;
    }

    async fn tell_floors(self: Rc<Self>, on: Rc<Caller>) {
        loop {
            self.tell_floor(&on, false).await;
            self.keep_broker(false).await;
            rt::sleep(FLOOR_PERIOD).await;
        }
    }

    /// Sends hints to other brokers, and hears theirs.
    async fn tell_others(self: Rc<Self>, target: Target) {
        let notify = Conn::new(target.clone(), self.name("hints"));
        let (follower, metrics) = (self.follower.clone(), self.shared.metrics.clone());
        // A pop that comes reads the log itself.
        let heard = Rc::new(move || {
            if !metrics.parked().is_empty() {
                follower.hint();
            }
        });
        let listen = self.hints.listen(target, self.name("listener"), &notify, heard);
        futures_util::future::join(self.hints.tell(&self.shared.untold, &notify), listen).await;
    }

    /// Says that this broker is still one of those that commit, or that it ends.
    async fn keep_broker(&self, gone: bool) {
        let Some(ways) = self.ways.borrow().clone() else { return };
        let (broker, limit) = (self.shared.config.broker(), self.shared.config.stmt_timeout);
        // Without an answer it counts for a day, from its last word.
        let said = store::within(&ways.short.conn, limit, async |client| store::log::keep(client, broker, gone).await);
        let _ = said.await;
    }

    async fn wait_for_store(&self, target: &Target) -> Option<StoreFacts> {
        let mut said = false;
        while !self.stopping.get() {
            match boot(target, self.shared.config.apply_schema).await {
                Ok(facts) => return Some(facts),
                Err(BootError::Wait(error)) => {
                    if !std::mem::replace(&mut said, true) && !matches!(self.shared.config.postgres, Postgres::Embedded)
                    {
                        crate::warning!("boot", "waiting for PostgreSQL", target = target, error = error);
                    }
                }
                Err(BootError::Unfit(why)) => {
                    self.fail(why);
                    return None;
                }
            }
            // Pops that ask meanwhile do not wait for it.
            self.tell_asked(self.follower.take_asked(), false).await;
            rt::sleep(BOOT_PAUSE).await;
        }
        None
    }

    /// Says what the broker takes of the connections there are; whether a shard's pops, bundles and cold calls share one,
    /// because four per shard do not fit. Source: rule 27.
    fn budget(&self, facts: &StoreFacts) -> bool {
        let shards = self.shared.shards;
        let pool = self.shared.config.db_pool_size;
        let most = pool.min(facts.connections_max as usize);
        let takes = |per_shard: usize| per_shard * shards + CONTROL_CONNECTIONS;
        let shared = most < takes(4);
        let takes = if shared { takes(2) } else { takes(4) };
        let line = format!("takes {takes} connections of {} (DB_POOL_SIZE {pool})", facts.connections_max);
        let remedy = "lower QUEEN_SHARDS, or raise DB_POOL_SIZE and max_connections";
        match shared {
            false => crate::info!("boot", line, server = facts.server_version),
            true if takes <= most => crate::info!("boot", format!("{line}, two per shard instead of four: {remedy}")),
            true => crate::warning!("boot", format!("{line}: {remedy}")),
        }
        shared
    }

    fn announce(&self, about: &str) {
        let config = &self.shared.config;
        let address = config.listen();
        crate::info!(
            "boot",
            "listening",
            version = env!("CARGO_PKG_VERSION"),
            address = address,
            shards = self.shared.shards,
            driver = self.driver,
            store = about,
            pool = config.db_pool_size,
        );
        if screen::wanted() {
            let boot = screen::Boot {
                version: env!("CARGO_PKG_VERSION"),
                address: &address,
                driver: &self.driver,
                shards: self.shared.shards,
                postgres: about,
                ready: self.started.elapsed(),
                open: config.jwt.is_none(),
            };
            crate::telemetry::log::print(&screen::text(&boot));
        }
    }

    /// Periodic work, on a connection of its own: requests never wait behind it.
    fn start_jobs(self: &Rc<Self>, target: Target, keys: KeyHasher) {
        let caller =
            |role: &str| Rc::new(Caller::new(Conn::new(target.clone(), self.name(role)), self.shared.config.broker()));
        let jobs = caller("jobs");
        let (config, metrics) = (self.shared.config.clone(), self.shared.metrics.clone());
        rt::spawn(self.clone().purge(jobs.clone()));
        rt::spawn(self.clone().tell_floors(jobs.clone()));
        if self.shared.config.sync {
            rt::spawn(self.clone().tell_others(target.clone()));
        }
        let (control, on) = (self.clone(), jobs.clone());
        let call = async move |call: StateCall| control.call(&on, &call).await;
        rt::spawn(jobs::add_totals(config.clone(), metrics, call));
        let (control, on) = (self.clone(), jobs.clone());
        let call = async move |call: StateCall| control.call(&on, &call).await;
        rt::spawn(jobs::keep_history(config.clone(), self.history.clone(), call));
        let (control, on) = (self.clone(), jobs.clone());
        let call = async move |call: StateCall| {
            if call.function == StateFn::MarkPartitions {
                // A sweep begins: what this broker's spool may need is known before anything is forgotten.
                control.tell_floor(&on, false).await;
            }
            control.call(&on, &call).await
        };
        rt::spawn(jobs::retention(config.clone(), call));
        rt::spawn(self.clone().store_switches());
        let (control, on) = (self.clone(), jobs);
        let call = async move |call: StateCall| control.call(&on, &call).await;
        let control = self.clone();
        let grew = async move |lane: LaneKey| control.lane_grew(lane).await;
        let shared = self.shared.clone();
        let held = move || shared.maintenance.push.load(Ordering::Relaxed);
        rt::spawn(jobs::redrive(config.clone(), keys, self.redrives.clone(), held, call, grew));
        // One queue may take as long as a statement may: nothing else waits for that.
        let counting = caller("counting");
        let (control, on) = (self.clone(), counting.clone());
        let call = async move |call: StateCall| control.call(&on, &call).await;
        rt::spawn(jobs::count_queues(config.clone(), call));
        let control = self.clone();
        rt::spawn(jobs::measure_retained(config, async move |call: StateCall| control.call(&counting, &call).await));
    }

    /// Removes what deleted queues left behind, and sealed runs that are over, in steps nothing waits for.
    async fn purge(self: Rc<Self>, on: Rc<Caller>) {
        let config = self.shared.config.clone();
        let (rows, limit) = (config.retention_batch_size as i32, config.stmt_timeout);
        loop {
            let dead = store::within(&on.conn, limit, async |client| store::purge_dead(client, rows).await).await;
            let runs = store::within(&on.conn, limit, async |client| store::purge_runs(client, rows).await).await;
            let more = [dead, runs].iter().any(|done| matches!(done, Ok(1..)));
            let pause = if more { PURGE_STEP_PAUSE } else { config.retention_interval };
            rt::sleep(pause).await;
        }
    }

    // ---- mail

    async fn mail(self: Rc<Self>) {
        let Ok(mut mailbox) = self.shared.hub.inbox(self.shared.control()) else {
            return self.fail("no descriptor is left for the control thread's mailbox".into());
        };
        let mut mail = Vec::new();
        loop {
            mailbox.drain(&mut mail, 64);
            for mail in mail.drain(..) {
                match mail {
                    Mail::State { slot, call } => rt::spawn(self.clone().state(slot, call)),
                    Mail::Signal if self.stopping.replace(true) => {
                        crate::warning!("shutdown", "second signal: ending at once");
                        return;
                    }
                    Mail::Signal => {
                        crate::info!("shutdown", "signal received");
                        let control = self.clone();
                        rt::spawn(async move { control.tell_shards(|| Mail::Shutdown).await });
                    }
                    Mail::ReadLog { slot } => self.follower.ask(slot),
                    Mail::Committed => self.hints.committed(),
                    Mail::Finished => {
                        self.finished.set(self.finished.get() + 1);
                        if self.finished.get() == self.shared.shards {
                            return self.tell_shards(|| Mail::Over).await;
                        }
                    }
                    _ => {}
                }
            }
            mailbox.wait().await;
        }
    }

    async fn call(&self, on: &Caller, call: &StateCall) -> StateReply {
        let reply = on.call(call, self.shared.config.stmt_timeout, self.follower.incarnation()).await;
        if reply.is_ok() && call.function.tells().is_some() && self.shared.untold.note() {
            self.hints.committed();
        }
        reply
    }

    async fn state(self: Rc<Self>, slot: queen_shards::ids::Slot, call: StateCall) {
        let function = call.function;
        let ways = self.ways.borrow().clone();
        let reply = match ways {
            Some(ways) => self.call(ways.of(call.function.way()), &call).await,
            None => Err(StoreError::Unavailable("the store has not been reached yet".into())),
        };
        match &reply {
            Err(error) => store::log_error(error),
            Ok(_) if function == StateFn::StartRedrive => self.redrives.ring(),
            Ok(_) => {}
        }
        self.shared.hub.send_wait(slot.shard(), Mail::StateReply { slot, reply }).await;
    }

    /// Tells its shard that a partition grew by a call of this thread; nobody waits for the verdict.
    async fn lane_grew(&self, lane: LaneKey) {
        let slot = Slot::new(self.shared.control(), 0);
        let shard = lane.owner(self.shared.shards);
        self.shared.hub.send_wait(shard, Mail::Command { slot, command: Command::LaneGrew { lane } }).await;
    }

    async fn tell_shards(&self, mail: impl Fn() -> Mail) {
        for shard in 0..self.shared.shards {
            self.shared.hub.send_wait(shard, mail()).await;
        }
    }

    async fn rates(self: Rc<Self>) {
        let mut rates = Rates::new(self.shared.metrics.clone(), self.shared.spool.status().clone());
        loop {
            rt::sleep(self.shared.config.log_rates).await;
            let busiest = self.history.borrow_mut().take_busiest(self.shared.config.log_queues);
            rates.log(busiest);
        }
    }

    // ---- the embedded server

    /// Keeps the embedded server running. Ends when it cannot be, or when a fatal error was met.
    async fn watch(&self, embedded: &mut Option<Embedded>) {
        let mut told = "";
        loop {
            if self.fatal.borrow().is_some() {
                return;
            }
            let mut pause = Duration::from_millis(100);
            if let Some(embedded) = embedded {
                let (status, next) = embedded.poll();
                pause = next;
                match status {
                    Status::Starting(what) if what != told => {
                        told = what;
                        crate::info!("boot", "embedded PostgreSQL", status = what);
                    }
                    Status::Died(how) => {
                        told = "";
                        crate::error!("db", "embedded PostgreSQL died and is started again", how = how);
                    }
                    Status::Failed(error) => return self.fail(error.to_string()),
                    _ => {}
                }
            }
            rt::sleep(pause).await;
        }
    }

    fn fail(&self, why: String) {
        *self.fatal.borrow_mut() = Some(why);
    }

    fn name(&self, role: &str) -> String {
        format!("queen {} {role}", self.shared.config.server_id)
    }

    /// The last steps: shards have answered, or had their time.
    async fn end(&self, embedded: Option<Embedded>) -> Ended {
        let (done, stopped) = std::sync::mpsc::channel();
        self.shared.spool.send(ToSpool::Stop { done });
        let _ = stopped.recv_timeout(SPOOL_STOP_MAX);
        let pending = self.shared.spool.status().numbers().pending;
        let ways = self.ways.borrow().clone();
        if let Some(ways) = ways {
            let leave = async {
                self.keep_broker(true).await;
                if self.shared.spool.status().is_drained() {
                    self.tell_floor(&ways.short, true).await;
                }
            };
            let _ = rt::timeout(FLOOR_GONE_MAX, leave).await;
        }
        if pending > 0 {
            crate::warning!("shutdown", "spool has undrained events at shutdown", pending = pending);
        }
        if let Some(mut embedded) = embedded {
            crate::info!("shutdown", "stopping embedded PostgreSQL");
            let stopped = embedded.stop();
            crate::info!(
                "shutdown",
                "embedded PostgreSQL stopped",
                took_ms = stopped.took.as_millis(),
                clean = stopped.clean
            );
        }
        match self.fatal.borrow_mut().take() {
            Some(why) => Err(why),
            None => {
                crate::info!("shutdown", "shutdown complete");
                Ok(())
            }
        }
    }
}
