//! What PostgreSQL suffers, and what others do to it.

use super::{Nemesis, OUTAGE, Pace};
use crate::faults::Refusal;
use crate::history::{Answer, Call, End};
use crate::world::Side;
use crate::world::process::{is_running, signal};
use crate::world::proxy::Mode;
use std::time::Duration;

/// By then a push that was asked for while the database was away is answered: the figures of outages are not about kills.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

impl Nemesis<'_> {
    pub(super) fn pause_postgres(&mut self) -> u64 {
        self.world.postgres.signal_all(libc::SIGSTOP);
        let pause = self.freeze();
        self.wait(pause);
        self.world.postgres.signal_all(libc::SIGCONT);
        1
    }

    pub(super) fn stop_postgres(&mut self, at: usize, side: &Side, with: i32) -> Result<u64, String> {
        self.world.postgres.end(with);
        let longest = match self.pace {
            Pace::Mild => 1000,
            Pace::Plain => 4000,
            Pace::Storm => 500,
        };
        let pause = self.between(50, longest);
        self.away(at, pause);
        let broker_too = self.rng.percent(if self.pace == Pace::Storm { 5 } else { 20 });
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

    pub(super) fn long_outage(&mut self, at: usize) -> Result<u64, String> {
        self.world.postgres.end(libc::SIGKILL);
        let least = OUTAGE.as_millis() as u64;
        let pause = self.between(least, if self.pace == Pace::Plain { 6000 } else { least + 500 });
        self.away(at, pause);
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        Ok(1)
    }

    /// Waits while the database is away and nothing else is wrong; written down for the figures of outages.
    fn away(&self, at: usize, time: Duration) {
        let op = self.shared.recorder.invoke(super::NEMESIS, at as u8, Call::Away);
        self.wait(time);
        self.shared.recorder.end(op, End::Ok(Answer::Fault { hits: 1 }));
    }

    /// Ends one backend that served a broker just now; in a storm one after the other, all of them.
    pub(super) fn terminate_backends(&mut self) -> u64 {
        let mut backends = self.world.postgres.backends();
        self.rng.shuffle(&mut backends);
        if self.pace != Pace::Storm {
            backends.truncate(1);
        }
        let mut hits = 0;
        for backend in backends {
            if is_running(backend) {
                signal(backend, libc::SIGTERM);
                hits += 1;
                let pause = self.between(0, 20);
                self.wait(pause);
            }
        }
        hits
    }

    pub(super) fn crash_backend(&mut self) -> Result<u64, String> {
        let backends = self.world.postgres.backends();
        if backends.is_empty() {
            return Ok(0);
        }
        signal(*self.rng.pick(&backends), libc::SIGKILL);
        self.world.postgres.resume().map_err(|e| e.to_string())?;
        Ok(1)
    }

    /// The database says no for a while, each time with this SQLSTATE.
    pub(super) fn refuse(&mut self, side: &Side, refusal: Refusal) -> Result<u64, String> {
        let postgres = &self.world.postgres;
        let state = refusal.state();
        match refusal {
            Refusal::Starting | Refusal::TooManyConnections => side.database.set(Mode::Refuse(state)),
            Refusal::ReadOnly => postgres.set("default_transaction_read_only", Some("on"))?,
            _ => postgres.refuse_writes(state)?,
        }
        let longest = match self.pace {
            Pace::Mild => 1000,
            Pace::Plain => 3500,
            Pace::Storm => 700,
        };
        let pause = self.between(300, longest);
        self.wait(pause);
        match refusal {
            Refusal::Starting | Refusal::TooManyConnections => side.database.set(Mode::Pass),
            Refusal::ReadOnly => postgres.set("default_transaction_read_only", None)?,
            _ => postgres.accept_writes()?,
        }
        Ok(1)
    }

    /// A transaction that began before everything that happens meanwhile, and still reads as of then.
    pub(super) fn hold_snapshot(&mut self) -> Result<u64, String> {
        let pause = if self.pace == Pace::Mild { self.between(1000, 2000) } else { self.between(8000, 20_000) };
        self.held("begin isolation level repeatable read; select count(*) from queen.partitions", pause)
    }

    /// Pushes and pops wait for somebody's lock, and go to the spool when their deadline is over.
    pub(super) fn lock_table(&mut self) -> Result<u64, String> {
        let pause = self.lock_time();
        self.held("begin; lock table queen.segments, queen.cursors in access exclusive mode", pause)
    }

    /// The row of the partition that was written last.
    pub(super) fn lock_row(&mut self) -> Result<u64, String> {
        let pause = self.lock_time();
        let queue = &self.shared.plan.queues[0].name;
        let sql = format!(
            "begin; select p.id from queen.partitions as p join queen.queues as q on q.id = p.queue_id \
             where q.name = '{queue}' order by p.last_offset desc limit 1 for update of p"
        );
        self.held(&sql, pause)
    }

    /// Below and above the deadline of a commit.
    fn lock_time(&mut self) -> Duration {
        match self.rng.range(0, 100) {
            _ if self.pace == Pace::Mild => self.between(300, 1500),
            0..=69 => self.between(1000, 4000),
            _ => self.between(6000, 15_000),
        }
    }

    /// What a session of somebody else does and keeps for a time; how often it had it.
    fn held(&self, sql: &str, time: Duration) -> Result<u64, String> {
        let Some(session) = self.world.postgres.session(sql) else { return Ok(0) };
        self.wait(time);
        Ok(u64::from(session.end()))
    }
}
