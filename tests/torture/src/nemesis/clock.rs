//! What clocks suffer. A jump counts only if the process showed it.

use super::Nemesis;
use crate::client::Client;
use crate::world::clocks::{Clocks, Whose};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const JUMP_SECS: i64 = 300;
const STROBE_SECS: i64 = 5;
/// A lease does not end while PostgreSQL's clock stands: longer than one, with what it takes to be seen.
const STOPPED_MAX: Duration = Duration::from_secs(4);
/// A process looks at its difference so often.
const SEEN: Duration = Duration::from_millis(1100);
/// Between asking and being told, and by rounding.
const TOLERANCE_SECS: i64 = 2;
const DAY_SECS: i64 = 86_400;

impl Nemesis<'_> {
    fn clocks(&self) -> Result<&Clocks, String> {
        self.world.clocks.as_ref().ok_or_else(|| "F12 needs a world with clocks".into())
    }

    fn difference(&self, whose: Whose) -> Result<i64, String> {
        self.clocks()?.difference(whose).map_err(|e| e.to_string())
    }

    /// How many of this one change were seen: one, or none.
    fn set(&self, whose: Whose, secs: i64) -> Result<u64, String> {
        self.clocks()?.set(whose, secs).map_err(|e| e.to_string())?;
        self.wait(SEEN);
        Ok(u64::from(self.shows(whose, secs)))
    }

    /// Whether these clocks are so many seconds from this process's.
    fn shows(&self, whose: Whose, secs: i64) -> bool {
        let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let is_close = |there: &i64| (there - here - secs + TOLERANCE_SECS).rem_euclid(DAY_SECS) <= 2 * TOLERANCE_SECS;
        self.seconds(whose).is_some_and(|all| all.iter().all(is_close))
    }

    /// What these clocks show, in seconds; of a broker those of the day.
    fn seconds(&self, whose: Whose) -> Option<Vec<i64>> {
        let second = |port: u16| Client::new(port, Duration::from_secs(2)).get("/health/live").ok()?.second;
        match whose {
            Whose::Brokers => self.world.sides.iter().map(|side| second(side.broker.port)).collect(),
            Whose::Database => {
                let said = self.world.postgres.query("select floor(extract(epoch from clock_timestamp()))");
                said.ok().and_then(|text| text.trim().parse().ok()).map(|secs| vec![secs])
            }
        }
    }

    /// Five minutes either way, and back.
    pub(super) fn jump_brokers(&mut self) -> Result<u64, String> {
        let secs = if self.rng.percent(50) { JUMP_SECS } else { -JUMP_SECS };
        let there = self.set(Whose::Brokers, secs)?;
        let pause = self.between(200, 2500);
        self.wait(pause);
        Ok(there + self.set(Whose::Brokers, 0)?)
    }

    /// Five minutes forward for good, or back for a moment. Back for good would be five minutes in which no lease that was
    /// taken before ends.
    pub(super) fn jump_database(&mut self) -> Result<u64, String> {
        let secs = self.difference(Whose::Database)?;
        if self.rng.percent(50) {
            return self.set(Whose::Database, secs + JUMP_SECS);
        }
        let there = self.set(Whose::Database, secs - JUMP_SECS)?;
        let pause = self.between(200, 2500);
        self.wait(pause);
        Ok(there + self.set(Whose::Database, secs)?)
    }

    /// They stand, and go on where they would be. Counts if they showed the same a second apart.
    pub(super) fn stop(&mut self, whose: Whose) -> Result<u64, String> {
        let secs = self.difference(whose)?;
        self.clocks()?.stop(whose, secs).map_err(|e| e.to_string())?;
        // Whole seconds are compared by who looks: it may take twice as long.
        self.wait(SEEN * 2);
        let before = self.seconds(whose);
        let pause = self.between(SEEN.as_millis() as u64, STOPPED_MAX.as_millis() as u64);
        self.wait(pause);
        let stands = before.is_some() && before == self.seconds(whose);
        self.set(whose, secs)?;
        Ok(u64::from(stands))
    }

    /// To and fro, a turn a second.
    pub(super) fn strobe(&mut self, whose: Whose) -> Result<u64, String> {
        let secs = self.difference(whose)?;
        let mut hits = 0;
        for _ in 0..self.rng.range(2, 6) {
            hits += self.set(whose, secs + STROBE_SECS)? + self.set(whose, secs - STROBE_SECS)?;
        }
        self.set(whose, secs)?;
        Ok(hits)
    }
}
