//! What a broker's process suffers.

use super::{Nemesis, Pace, TERM_LIMIT, TRAP_LIMIT, hold};
use crate::faults::Window;
use crate::finals::spool_of;
use crate::work::Stage;
use crate::world::Side;
use crate::world::broker::Broker;
use crate::world::proxy::{Mode, Trap};
use std::time::{Duration, Instant};

/// How long a broker may take to buffer, to drain, or to come to a window, before nothing was struck.
const SPOOL_LIMIT: Duration = Duration::from_secs(15);
const SPOOL_PAUSE: Duration = Duration::from_millis(3);
/// A spool cap that a second of load fills.
const CAP_BYTES: &str = "65536";

impl Nemesis<'_> {
    /// Starts it and waits until it has its database. How long that took is a figure only where nothing else was wrong.
    pub(super) fn start(&mut self, side: &Side) -> Result<(), String> {
        let before = self.docket.alone();
        let took = side.broker.start().map_err(|e| e.to_string())?;
        self.started(before.is_some() && before == self.docket.alone(), took);
        Ok(())
    }

    /// Starts it again after its death. In a storm, while other hands strike, it is left alone as soon as it answers: the
    /// next strike waits for traffic, not for the end of what the others do to its database.
    fn restart(&mut self, side: &Side) -> Result<(), String> {
        if self.pace != Pace::Storm {
            return self.start(side);
        }
        let before = self.docket.alone();
        let is_alone = || before.is_some() && before == self.docket.alone();
        let up = |broker: &Broker| broker.is_ready() || !is_alone() && broker.is_live();
        let took = side.broker.start_until(up).map_err(|e| e.to_string())?;
        self.started(is_alone(), took);
        Ok(())
    }

    fn started(&self, alone: bool, took: Duration) {
        self.found(|findings| match alone {
            true => findings.restarts.push(took),
            false => findings.restarts_beside.push(took),
        });
    }

    /// A life that goes on for a while before anything is waited for.
    fn life(&mut self, side: &Side) -> Result<(), String> {
        side.broker.launch().map_err(|e| e.to_string())?;
        let pause = if self.pace == Pace::Storm { self.between(50, 400) } else { self.between(100, 1200) };
        self.wait(pause);
        Ok(())
    }

    pub(super) fn kill(&mut self, side: &Side) -> Result<u64, String> {
        side.broker.kill();
        let pause = if self.pace == Pace::Storm { self.between(0, 40) } else { self.between(0, 400) };
        self.wait(pause);
        self.restart(side)?;
        Ok(1)
    }

    pub(super) fn kill_in_trap(&mut self, side: &Side, trap: fn(u32) -> Trap) -> Result<u64, String> {
        let Some(pid) = side.broker.pid() else { return Ok(0) };
        let closed = side.database.trap(trap(pid), TRAP_LIMIT);
        if closed {
            side.broker.kill();
            self.restart(side)?;
        }
        Ok(u64::from(closed))
    }

    pub(super) fn term_then_kill(&mut self, side: &Side) -> Result<u64, String> {
        side.broker.signal(libc::SIGTERM);
        if self.rng.percent(30) {
            self.term(side);
        } else {
            let pause = self.between(0, 2000);
            side.broker.wait_end(pause);
        }
        side.broker.kill();
        self.restart(side)?;
        Ok(1)
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
    pub(super) fn roll(&mut self) -> Result<u64, String> {
        let world = self.world;
        for side in &world.sides {
            let _held = hold(side);
            side.broker.signal(libc::SIGTERM);
            self.term(side);
            side.broker.kill();
            self.start(side)?;
        }
        Ok(1)
    }

    pub(super) fn pause_broker(&mut self, side: &Side) -> u64 {
        side.broker.signal(libc::SIGSTOP);
        let pause = self.freeze();
        self.wait(pause);
        side.broker.signal(libc::SIGCONT);
        1
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

    pub(super) fn kill_buffering(&mut self, side: &Side) -> Result<u64, String> {
        let mut hits = 0;
        self.world.postgres.end(libc::SIGKILL);
        let lives = self.rng.range(1, 3);
        for life in 1..=lives {
            let buffers = self.spool_comes_to(side, |pending, _| 20 * life <= pending);
            side.broker.kill();
            hits += u64::from(buffers);
            self.life(side)?;
        }
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        self.start(side)?;
        Ok(hits)
    }

    pub(super) fn kill_draining(&mut self, side: &Side) -> Result<u64, String> {
        self.world.postgres.end(libc::SIGKILL);
        let most = self.rng.range(100, 400);
        self.spool_comes_to(side, |pending, _| most <= pending);
        let before = spool_of(side.broker.port).map_or(0, |(pending, _)| pending);
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        let drains = self.spool_comes_to(side, |pending, _| pending < before);
        side.broker.kill();
        self.restart(side)?;
        Ok(u64::from(drains))
    }

    /// A life of the broker with a small cap, without a database until pushes fail.
    pub(super) fn fill_spool(&mut self, side: &Side) -> Result<u64, String> {
        side.broker.kill();
        self.world.postgres.end(libc::SIGKILL);
        side.broker.launch_with(&[("FILE_BUFFER_MAX_BYTES", CAP_BYTES)]).map_err(|e| e.to_string())?;
        let full = self.spool_comes_to(side, |_, failed| 0 < failed);
        let pause = self.between(100, if self.pace == Pace::Storm { 300 } else { 1000 });
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
    pub(super) fn crash_at(&mut self, side: &Side, window: Window) -> Result<u64, String> {
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
            // Without the database, if it is away.
            self.life(side)?;
        }
        side.database.set(Mode::Pass);
        self.restart(side)?;
        Ok(u64::from(hit))
    }
}
