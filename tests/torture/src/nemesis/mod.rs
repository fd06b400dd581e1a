//! The nemesis: faults, each undone before the same hand strikes again, each in the history from its first to its last
//! moment.
//!
//!     docket (which is furthest behind) > hand > strike > processes, PostgreSQL, links
//!
//! It has up to three hands: one for everything that processes and the database suffer, one for connections and clients,
//! and with two brokers one that hurts single brokers only. Holds: who hurts a broker's process holds that broker's
//! lock, who changes what a link does holds the link's. A fault counts only if it met traffic: its broker has accepted a
//! push since the hand struck last.

mod broker;
mod clock;
mod database;
mod wire;

use crate::docket::Docket;
use crate::faults::Fault;
use crate::history::{Answer, Call, End, Recorder};
use crate::rng::Rng;
use crate::work::{Shared, Stage};
use crate::world::clocks::Whose;
use crate::world::proxy::{Mode, Trap};
use crate::world::{Side, World};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Client number of the faults in the history.
pub const NEMESIS: u16 = u16::MAX;
/// How long a trap waits for a writing commit.
const TRAP_LIMIT: Duration = Duration::from_secs(10);
/// SIGTERM alone must end a broker; the goal is 5 s on a quiet machine.
const TERM_LIMIT: Duration = Duration::from_secs(20);
/// Longer than the window of the short queue, which is two seconds.
const OUTAGE: Duration = Duration::from_millis(2500);
/// How long a fault waits for traffic to strike. A client waits so long for an answer after a black hole.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(5);
/// How long it waits for a broker to have drained.
const CALM_LIMIT: Duration = Duration::from_secs(2);
/// ... where that has to join another one first.
const JOINED_LIMIT: Duration = Duration::from_secs(4);
const TRAFFIC_PAUSE: Duration = Duration::from_millis(2);

/// What went wrong outside the history.
#[derive(Debug, Default)]
pub struct Findings {
    pub crashes: Vec<String>,
    /// From the start of a broker to its first 200, while nothing else was wrong.
    pub restarts: Vec<Duration>,
    /// The same to its first answer, with other faults meanwhile.
    pub restarts_beside: Vec<Duration>,
    /// From SIGTERM to the end of the process, where nothing else was done to it.
    pub terms: Vec<Duration>,
    /// The rig itself could not go on.
    pub broken: Option<String>,
}

impl Findings {
    /// Of several hands the first one says why.
    fn breaks(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }
}

/// How hard a nemesis strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Nothing lasts longer than about a lease.
    Mild,
    /// With pauses: the broker comes to rest between two faults.
    Plain,
    /// One after another, short ones mostly.
    Storm,
}

/// One hand of the nemesis.
pub struct Nemesis<'a> {
    pub world: &'a World,
    pub shared: &'a Shared<'a>,
    pub docket: &'a Docket,
    pub rng: Rng,
    pub pace: Pace,
    pub findings: &'a Mutex<Findings>,
    /// Pushes of each broker, accepted and `queued`, when this hand struck last.
    pub seen: Vec<(u64, u64)>,
}

impl<'a> Nemesis<'a> {
    /// Strikes with each of these until it has struck, in their order; those that found nothing are tried again.
    pub fn run_once(mut self, faults: &[Fault]) {
        let mut order = faults.to_vec();
        while !order.is_empty() {
            let mut missed = Vec::new();
            for fault in &order {
                match self.turn(*fault) {
                    Some(0) => missed.push(*fault),
                    Some(_) => {}
                    None => return,
                }
            }
            order = missed;
            self.rng.shuffle(&mut order);
        }
    }

    /// Strikes as long as the load lasts, always with what is furthest behind.
    pub fn run(mut self, faults: &[Fault]) {
        while let Some(fault) = self.docket.next(faults, &mut self.rng) {
            if self.turn(fault).is_none() {
                return;
            }
        }
    }

    /// Pauses and strikes; how often it did. `None`: the load is over, or the rig cannot go on.
    fn turn(&mut self, fault: Fault) -> Option<u64> {
        let pause = match self.pace {
            // So that now and then nothing but the other hands' faults strikes.
            Pace::Storm if fault.is_of_the_wire() => self.between(200, 1200),
            // So that a hand that waits for the same broker gets it.
            Pace::Storm => self.between(5, 40),
            _ => self.between(200, 1500),
        };
        self.wait(pause);
        if self.shared.stage() != Stage::Load {
            return None;
        }
        match self.strike(fault) {
            Ok(hits) => Some(hits),
            Err(why) => {
                self.found(|findings| findings.breaks(why));
                self.shared.enter(Stage::Drain);
                None
            }
        }
    }

    fn found(&self, change: impl FnOnce(&mut Findings)) {
        change(&mut self.findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.rng.range(low, high))
    }

    /// A broker to strike at, rather one that no other hand hurts, and that has stored something since this hand struck it
    /// last; and the lock of its process, where that is hurt.
    fn side(&mut self, fault: Fault) -> (usize, Option<MutexGuard<'a, ()>>) {
        let sides = &self.world.sides;
        let first = self.rng.range(0, sides.len() as u64) as usize;
        // A rolling restart takes one lock after the other.
        if fault.is_of_the_wire() || fault == Fault::RollingRestart {
            return (first, None);
        }
        let mut all: Vec<usize> = (0..sides.len()).map(|n| (first + n) % sides.len()).collect();
        all.sort_by_key(|at| self.shared.queued(*at) <= self.seen[*at].1);
        let free = all.into_iter().find_map(|at| Some((at, sides[at].hand.try_lock().ok()?)));
        let (at, held) = free.unwrap_or_else(|| (first, hold(&sides[first])));
        (at, Some(held))
    }

    /// How often it struck.
    fn strike(&mut self, fault: Fault) -> Result<u64, String> {
        let (at, held) = self.side(fault);
        let side = &self.world.sides[at];
        let met = self.meets_traffic(fault, at);
        let recorder: &Recorder = self.shared.recorder;
        let op = recorder.invoke(NEMESIS, at as u8, Call::Fault { kind: fault.name().into() });
        self.docket.begin();
        let hits = if met { self.do_it(fault, at, side) } else { Ok(0) };
        self.docket.end(fault, *hits.as_ref().unwrap_or(&0));
        let hits = hits?;
        let end = match hits {
            0 => End::Fail("nothing to strike".into()),
            hits => End::Ok(Answer::Fault { hits }),
        };
        recorder.end(op, end);
        self.seen[at] = (self.shared.accepted(at), self.shared.queued(at));
        self.watch(at, held.is_some());
        Ok(hits)
    }

    /// Whether a push was accepted since this hand struck this broker last; waits for one. Every second time it waits for
    /// one that was `queued`, if that does not take long: a spool is drained first, and kills that meet nothing but spooling
    /// brokers would prove little. The hand that hurts single brokers mostly does: beside another one a broker needs about a
    /// second to join it, and would otherwise be dead before it has a database, again and again.
    fn meets_traffic(&mut self, fault: Fault, at: usize) -> bool {
        let (accepted, queued) = self.seen[at];
        let shared = self.shared;
        let joins = 1 < self.world.sides.len() && fault.is_of_one_process();
        let (share, limit) = if joins { (80, JOINED_LIMIT) } else { (50, CALM_LIMIT) };
        if self.rng.percent(share) {
            self.comes(limit, || queued < shared.queued(at));
        }
        self.comes(TRAFFIC_LIMIT, || accepted < shared.accepted(at))
    }

    /// Whether something came to be so while the load lasts.
    fn comes(&self, limit: Duration, is_so: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !is_so() {
            if limit < began.elapsed() || self.shared.stage() != Stage::Load {
                return false;
            }
            std::thread::sleep(TRAFFIC_PAUSE);
        }
        true
    }

    /// Does it and undoes it; how often it struck.
    fn do_it(&mut self, fault: Fault, at: usize, side: &Side) -> Result<u64, String> {
        match fault {
            Fault::KillBroker => self.kill(side),
            Fault::KillBrokerAtCommit => self.kill_in_trap(side, Trap::KillAtSend),
            Fault::KillBrokerAtAnswer => self.kill_in_trap(side, Trap::KillAtAnswer),
            Fault::KillBufferingBroker => self.kill_buffering(side),
            Fault::KillDrainingBroker => self.kill_draining(side),
            Fault::CrashAt(window) => self.crash_at(side, window),
            Fault::TermThenKillBroker => self.term_then_kill(side),
            Fault::RollingRestart => self.roll(),
            Fault::PauseBroker => Ok(self.pause_broker(side)),
            Fault::SpoolAtCap => self.fill_spool(side),
            Fault::PausePostgres => Ok(self.pause_postgres()),
            Fault::KillPostmaster => self.stop_postgres(at, side, libc::SIGKILL),
            Fault::ImmediateStop => self.stop_postgres(at, side, libc::SIGQUIT),
            Fault::TerminateBackend => Ok(self.terminate_backends()),
            Fault::CrashBackend => self.crash_backend(),
            Fault::LongOutage => self.long_outage(at),
            Fault::Refuse(refusal) => self.refuse(side, refusal),
            Fault::HoldSnapshot => self.hold_snapshot(),
            Fault::LockTable => self.lock_table(),
            Fault::LockRow => self.lock_row(),
            Fault::PauseClients => Ok(self.pause_clients(at)),
            Fault::ResetClients => Ok(self.resets(&side.clients)),
            Fault::ResetDatabase => Ok(self.resets(&side.database)),
            Fault::BlackHoleClients => Ok(self.mode(&side.clients, Mode::Hole)),
            Fault::BlackHoleDatabase => Ok(self.mode(&side.database, Mode::Hole)),
            Fault::SlowClients => Ok(self.mode(&side.clients, Mode::Slow)),
            Fault::SlowDatabase => Ok(self.mode(&side.database, Mode::Slow)),
            Fault::OneByteClients => Ok(self.mode(&side.clients, Mode::OneByte)),
            Fault::OneByteDatabase => Ok(self.mode(&side.database, Mode::OneByte)),
            Fault::HalfOpenClients => Ok(self.half_open(&side.clients)),
            Fault::HalfOpenDatabase => Ok(self.half_open(&side.database)),
            Fault::CutCommit => Ok(self.cut_commits(side)),
            Fault::CutCommitAndOutage => Ok(self.cut_commits_and_outage(side)),
            Fault::CutOffBroker => Ok(self.cut_off(&[&side.clients, &side.database])),
            Fault::CutOffOneOfTwo => self.cut_off_one(at, side),
            Fault::JumpBrokerClocks => self.jump_brokers(),
            Fault::StrobeBrokerClocks => self.strobe(Whose::Brokers),
            Fault::JumpDatabaseClock => self.jump_database(),
            Fault::StrobeDatabaseClock => self.strobe(Whose::Database),
            Fault::StopBrokerClocks => self.stop(Whose::Brokers),
            Fault::StopDatabaseClock => self.stop(Whose::Database),
            Fault::CutOffDatabase => {
                let links: Vec<_> = self.world.sides.iter().map(|side| &side.database).collect();
                Ok(self.cut_off(&links))
            }
        }
    }

    /// Sleeps, a little less when the load ends meanwhile.
    fn wait(&self, time: Duration) {
        self.shared.rest(time, Stage::Load);
    }

    /// How long something stands still: mostly short, now and then about a lease and more, seldom much longer.
    fn freeze(&mut self) -> Duration {
        let draw = self.rng.range(0, 100);
        match (self.pace, draw) {
            (Pace::Mild, _) => self.between(200, 2500),
            (Pace::Plain, 0..=59) => self.between(200, 2500),
            (Pace::Plain, 60..=94) => self.between(2500, 6000),
            (Pace::Storm, 0..=81) => self.between(150, 900),
            (Pace::Storm, 82..=97) => self.between(2100, 3500),
            _ => self.between(6000, 15_000),
        }
    }

    /// A broker that ended although nobody killed it. `held`: this hand has its lock.
    fn watch(&mut self, at: usize, held: bool) {
        let side = &self.world.sides[at];
        let lock = if held { None } else { side.hand.try_lock().ok() };
        // Another hand may have killed it, and will start it.
        if !held && lock.is_none() {
            return;
        }
        if let Some(status) = side.broker.ended() {
            let log = side.broker.log_tail();
            self.found(|findings| findings.crashes.push(format!("{status}\n{log}")));
            if let Err(why) = self.start(side) {
                self.found(|findings| findings.breaks(why));
            }
        }
    }
}

fn hold(side: &Side) -> MutexGuard<'_, ()> {
    side.hand.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
