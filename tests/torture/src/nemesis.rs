//! The nemesis: one fault after another, each healed before the next, each in the history from its first to its last
//! moment.

use crate::faults::{Fault, Refusal, Window};
use crate::finals::spool_of;
use crate::history::{Answer, Call, End, Recorder};
use crate::rng::Rng;
use crate::work::{Shared, Stage};
use crate::world::proxy::{Link, Mode, Trap};
use crate::world::{Side, World};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Client number of the faults in the history.
pub const NEMESIS: u16 = u16::MAX;
/// How long a trap waits for a writing commit.
const TRAP_LIMIT: Duration = Duration::from_secs(10);
/// SIGTERM alone must end a broker; the goal is 5 s on a quiet machine.
const TERM_LIMIT: Duration = Duration::from_secs(20);
/// Longer than the window of the short queue.
const OUTAGE: Duration = Duration::from_millis(3200);
/// How long a broker may take to buffer, to drain, or to come to a window, before nothing was struck.
const SPOOL_LIMIT: Duration = Duration::from_secs(15);
const SPOOL_PAUSE: Duration = Duration::from_millis(3);
/// By then a push that was asked for while the database was away is answered: the figures of outages are not about kills.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// A spool cap that a second of load fills.
const CAP_BYTES: &str = "65536";

/// What went wrong outside the history.
#[derive(Debug, Default)]
pub struct Findings {
    pub crashes: Vec<String>,
    /// From the start of a broker to its first 200.
    pub restarts: Vec<Duration>,
    /// From SIGTERM to the end of the process, where nothing else was done to it.
    pub terms: Vec<Duration>,
    /// The rig itself could not go on.
    pub broken: Option<String>,
}

pub struct Nemesis<'a> {
    pub world: &'a World,
    pub shared: &'a Shared<'a>,
    pub rng: Rng,
    /// Nothing lasts longer than about a lease.
    pub mild: bool,
    pub findings: &'a Mutex<Findings>,
}

impl Nemesis<'_> {
    /// Strikes with each of these, first in their order and then in a drawn one, again and again while the load lasts;
    /// `once`: each until it has struck.
    pub fn run(mut self, faults: &[Fault], once: bool) {
        let mut order = faults.to_vec();
        loop {
            let mut missed = Vec::new();
            for fault in &order {
                let pause = self.between(200, 1500);
                self.shared.rest(pause, Stage::Load);
                if self.shared.stage() != Stage::Load {
                    return;
                }
                match self.strike(*fault) {
                    Ok(0) => missed.push(*fault),
                    Ok(_) => {}
                    Err(why) => return self.found(|findings| findings.broken = Some(why)),
                }
                self.watch();
            }
            if once {
                order = missed;
            }
            self.rng.shuffle(&mut order);
            if order.is_empty() {
                return;
            }
        }
    }

    fn found(&self, change: impl FnOnce(&mut Findings)) {
        change(&mut self.findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.rng.range(low, high))
    }

    fn side(&mut self) -> usize {
        self.rng.range(0, self.world.sides.len() as u64) as usize
    }

    /// How often it struck.
    fn strike(&mut self, fault: Fault) -> Result<u64, String> {
        let at = self.side();
        let side = &self.world.sides[at];
        let recorder: &Recorder = self.shared.recorder;
        let op = recorder.invoke(NEMESIS, at as u8, Call::Fault { kind: fault.name().into() });
        let hits = self.do_it(fault, side)?;
        let end = match hits {
            0 => End::Fail("nothing to strike".into()),
            hits => End::Ok(Answer::Fault { hits }),
        };
        recorder.end(op, end);
        Ok(hits)
    }

    /// Does it and undoes it; how often it struck.
    fn do_it(&mut self, fault: Fault, side: &Side) -> Result<u64, String> {
        let postgres = &self.world.postgres;
        match fault {
            Fault::KillBroker => {
                side.broker.kill();
                let pause = self.between(0, 400);
                self.wait(pause);
                self.start(side)?;
                Ok(1)
            }
            Fault::KillBrokerAtCommit => self.kill_in_trap(side, Trap::KillAtSend),
            Fault::KillBrokerAtAnswer => self.kill_in_trap(side, Trap::KillAtAnswer),
            Fault::TermThenKillBroker => {
                side.broker.signal(libc::SIGTERM);
                if self.rng.percent(30) {
                    self.term(side);
                } else {
                    let pause = self.between(0, 2000);
                    side.broker.wait_end(pause);
                }
                side.broker.kill();
                self.start(side)?;
                Ok(1)
            }
            Fault::PauseBroker => {
                side.broker.signal(libc::SIGSTOP);
                let pause = self.freeze();
                self.wait(pause);
                side.broker.signal(libc::SIGCONT);
                Ok(1)
            }
            Fault::PausePostgres => {
                postgres.signal_all(libc::SIGSTOP);
                let pause = self.freeze();
                self.wait(pause);
                postgres.signal_all(libc::SIGCONT);
                Ok(1)
            }
            Fault::KillPostmaster => self.stop_postgres(side, libc::SIGKILL),
            Fault::ImmediateStop => self.stop_postgres(side, libc::SIGQUIT),
            Fault::TerminateBackend => Ok(self.backend(libc::SIGTERM)),
            Fault::CrashBackend => {
                let hits = self.backend(libc::SIGKILL);
                postgres.resume().map_err(|e| e.to_string())?;
                Ok(hits)
            }
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
            Fault::CutCommitAndOutage => {
                let cut = side.database.trap(Trap::CutAnswer, TRAP_LIMIT);
                side.database.set(Mode::Down);
                self.wait(OUTAGE);
                side.database.set(Mode::Pass);
                Ok(u64::from(cut))
            }
            Fault::LongOutage => {
                postgres.end(libc::SIGKILL);
                let longest = if self.mild { OUTAGE.as_millis() as u64 + 1 } else { 6000 };
                let pause = self.between(OUTAGE.as_millis() as u64, longest);
                self.away(side, pause);
                postgres.resume().map_err(|e| e.to_string())?;
                Ok(1)
            }
            Fault::KillBufferingBroker => self.kill_buffering(side),
            Fault::KillDrainingBroker => self.kill_draining(side),
            Fault::SpoolAtCap => self.fill_spool(side),
            Fault::Refuse(refusal) => self.refuse(side, refusal),
            Fault::RollingRestart => self.roll(),
            Fault::CrashAt(window) => self.crash_at(side, window),
        }
    }

    /// Waits for the end that SIGTERM, sent just now, brings.
    fn term(&mut self, side: &Side) {
        let began = Instant::now();
        match side.broker.wait_end(TERM_LIMIT) {
            true => self.found(|f| f.terms.push(began.elapsed())),
            false => self.found(|f| f.crashes.push(format!("SIGTERM did not end it within {TERM_LIMIT:?}"))),
        }
    }

    /// Ends each broker as an update does, and starts it again before the next.
    fn roll(&mut self) -> Result<u64, String> {
        for side in &self.world.sides {
            side.broker.signal(libc::SIGTERM);
            self.term(side);
            side.broker.kill();
            self.start(side)?;
        }
        Ok(1)
    }

    fn cut_commits(&mut self, side: &Side) -> u64 {
        let mut hits = 0;
        for _ in 0..if self.mild { 1 } else { self.rng.range(4, 12) } {
            if !side.database.trap(Trap::CutAnswer, TRAP_LIMIT) {
                break;
            }
            hits += 1;
            let pause = self.between(5, 150);
            self.wait(pause);
        }
        hits
    }

    /// The database says no for a while, each time with this SQLSTATE.
    fn refuse(&mut self, side: &Side, refusal: Refusal) -> Result<u64, String> {
        let postgres = &self.world.postgres;
        let state = refusal.state();
        match refusal {
            Refusal::Starting | Refusal::TooManyConnections => side.database.set(Mode::Refuse(state)),
            Refusal::ReadOnly => postgres.set("default_transaction_read_only", Some("on"))?,
            _ => postgres.refuse_writes(state)?,
        }
        let pause = self.between(300, if self.mild { 1000 } else { 3500 });
        self.wait(pause);
        match refusal {
            Refusal::Starting | Refusal::TooManyConnections => side.database.set(Mode::Pass),
            Refusal::ReadOnly => postgres.set("default_transaction_read_only", None)?,
            _ => postgres.accept_writes()?,
        }
        Ok(1)
    }

    /// Waits while the database is away and nothing else is wrong; written down for the figures of outages.
    fn away(&self, side: &Side, time: Duration) {
        let at = self.world.sides.iter().position(|one| one.broker.port == side.broker.port).unwrap_or(0);
        let op = self.shared.recorder.invoke(NEMESIS, at as u8, Call::Away);
        self.wait(time);
        self.shared.recorder.end(op, End::Ok(Answer::Fault { hits: 1 }));
    }

    /// Whether the numbers of a broker's spool, (pending, failed), came to fit in time.
    fn spool_comes_to(&self, side: &Side, fits: impl Fn(u64, u64) -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < SPOOL_LIMIT && self.shared.stage() == Stage::Load {
            if spool_of(side.broker.port).is_some_and(|(pending, failed)| fits(pending, failed)) {
                return true;
            }
            std::thread::sleep(SPOOL_PAUSE);
        }
        false
    }

    fn kill_buffering(&mut self, side: &Side) -> Result<u64, String> {
        let mut hits = 0;
        self.world.postgres.end(libc::SIGKILL);
        let lives = self.rng.range(1, 3);
        for life in 1..=lives {
            let buffers = self.spool_comes_to(side, |pending, _| 20 * life <= pending);
            side.broker.kill();
            hits += u64::from(buffers);
            side.broker.launch().map_err(|e| e.to_string())?;
            let pause = self.between(100, 1200);
            self.wait(pause);
        }
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        self.start(side)?;
        Ok(hits)
    }

    fn kill_draining(&mut self, side: &Side) -> Result<u64, String> {
        self.world.postgres.end(libc::SIGKILL);
        let most = self.rng.range(100, 400);
        self.spool_comes_to(side, |pending, _| most <= pending);
        let before = spool_of(side.broker.port).map_or(0, |(pending, _)| pending);
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        let drains = self.spool_comes_to(side, |pending, _| pending < before);
        side.broker.kill();
        self.start(side)?;
        Ok(u64::from(drains))
    }

    /// A life of the broker with a small cap, without a database until pushes fail.
    fn fill_spool(&mut self, side: &Side) -> Result<u64, String> {
        side.broker.kill();
        self.world.postgres.end(libc::SIGKILL);
        side.broker.launch_with(&[("FILE_BUFFER_MAX_BYTES", CAP_BYTES)]).map_err(|e| e.to_string())?;
        let full = self.spool_comes_to(side, |_, failed| 0 < failed);
        let pause = self.between(100, 1000);
        self.wait(pause);
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        // There is room again without a restart, and what was pending is stored.
        self.start(side)?;
        self.spool_comes_to(side, |pending, _| pending == 0);
        side.broker.kill();
        self.start(side)?;
        Ok(u64::from(full))
    }

    /// Orders the broker to kill itself inside a window, brings it there and starts it again.
    fn crash_at(&mut self, side: &Side, window: Window) -> Result<u64, String> {
        let dir = side.broker.spool_dir();
        let (order, done) = (dir.join("torture"), dir.join(format!("torture-{}", window.point())));
        let arm = || {
            let draft = dir.join("torture.new");
            std::fs::write(&draft, format!("{} 1", window.point()))
                .and_then(|()| std::fs::rename(&draft, &order))
                .map_err(|e| e.to_string())
        };
        match window {
            Window::CommitSent | Window::CommitAnswered => arm()?,
            Window::BeforeSpoolWrite | Window::SpoolWritten | Window::SpoolSynced | Window::SpoolRotation => {
                arm()?;
                side.database.set(Mode::Down);
            }
            Window::DrainCommitted => {
                side.database.set(Mode::Down);
                self.spool_comes_to(side, |pending, _| 10 <= pending);
                arm()?;
                side.database.set(Mode::Pass);
            }
            Window::BootDrain => {
                side.database.set(Mode::Down);
                self.spool_comes_to(side, |pending, _| 10 <= pending);
                side.broker.kill();
                arm()?;
                side.database.set(Mode::Pass);
                side.broker.launch().map_err(|e| e.to_string())?;
            }
        }
        side.broker.wait_end(SPOOL_LIMIT);
        let _ = std::fs::remove_file(&order);
        let hit = std::fs::remove_file(&done).is_ok();
        if side.broker.pid().is_none() && self.rng.percent(50) {
            // A life without the database, if it is away.
            side.broker.launch().map_err(|e| e.to_string())?;
            let pause = self.between(100, 1000);
            self.wait(pause);
        }
        side.database.set(Mode::Pass);
        self.start(side)?;
        Ok(u64::from(hit))
    }

    /// Sleeps, a little less when the load ends meanwhile.
    fn wait(&self, time: Duration) {
        self.shared.rest(time, Stage::Load);
    }

    /// Mostly about a lease, now and then much longer.
    fn freeze(&mut self) -> Duration {
        match self.rng.range(0, 100) {
            _ if self.mild => self.between(200, 2500),
            0..=59 => self.between(200, 2500),
            60..=94 => self.between(2500, 6000),
            _ => self.between(6000, 15_000),
        }
    }

    fn start(&mut self, side: &Side) -> Result<(), String> {
        let took = side.broker.start().map_err(|e| e.to_string())?;
        self.found(|findings| findings.restarts.push(took));
        Ok(())
    }

    fn kill_in_trap(&mut self, side: &Side, trap: fn(u32) -> Trap) -> Result<u64, String> {
        let Some(pid) = side.broker.pid() else { return Ok(0) };
        let closed = side.database.trap(trap(pid), TRAP_LIMIT);
        if closed {
            side.broker.kill();
            self.start(side)?;
        }
        Ok(u64::from(closed))
    }

    fn stop_postgres(&mut self, side: &Side, with: i32) -> Result<u64, String> {
        self.world.postgres.end(with);
        let pause = self.between(50, if self.mild { 1000 } else { 4000 });
        self.away(side, pause);
        let broker_too = self.rng.percent(20);
        if broker_too {
            self.wait(ANSWER_LIMIT);
            side.broker.kill();
            side.broker.launch().map_err(|e| e.to_string())?;
            let pause = self.between(200, 1500);
            self.wait(pause);
        }
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        if broker_too {
            self.start(side)?;
        }
        Ok(1)
    }

    fn backend(&mut self, with: i32) -> u64 {
        let backends = self.world.postgres.backends();
        if backends.is_empty() {
            return 0;
        }
        crate::world::process::signal(*self.rng.pick(&backends), with);
        1
    }

    fn resets(&mut self, link: &Link) -> u64 {
        let mut hits = 0;
        for _ in 0..self.rng.range(1, 12) {
            hits += link.reset(self.rng.range(1, 6) as usize);
            let pause = self.between(5, 150);
            self.wait(pause);
        }
        hits
    }

    /// The far side goes without a word, and its end comes late.
    fn half_open(&mut self, link: &Link) -> u64 {
        let hits = link.half_open(self.rng.range(1, 4) as usize);
        let pause = match self.rng.range(0, 100) {
            0..=79 => self.between(300, 3500),
            _ => self.between(3500, 14_000),
        };
        self.wait(pause);
        link.close_halves();
        hits
    }

    fn mode(&mut self, link: &Link, mode: Mode) -> u64 {
        link.set(mode);
        let pause = match self.rng.range(0, 100) {
            _ if self.mild => self.between(300, 2500),
            0..=79 => self.between(300, 3500),
            _ if mode == Mode::Hole => self.between(3500, 14_000),
            _ => self.between(1000, 4000),
        };
        self.wait(pause);
        link.set(Mode::Pass);
        1
    }

    /// A broker that ended although nobody killed it.
    fn watch(&mut self) {
        for side in &self.world.sides {
            if let Some(status) = side.broker.ended() {
                let log = side.broker.log_tail();
                self.found(|findings| findings.crashes.push(format!("{status}\n{log}")));
                if let Err(why) = self.start(side) {
                    self.found(|findings| findings.broken = Some(why));
                }
            }
        }
    }
}
