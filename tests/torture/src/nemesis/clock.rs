//! What clocks suffer.

use super::Nemesis;
use crate::world::clocks::{Clocks, Whose};
use std::time::Duration;

const JUMP_SECS: i64 = 300;
const STROBE_SECS: i64 = 5;
/// A process looks at its difference so often.
const SEEN: Duration = Duration::from_millis(1100);

impl Nemesis<'_> {
    fn clocks(&self) -> Result<&Clocks, String> {
        self.world.clocks.as_ref().ok_or_else(|| "F12 needs a world with clocks".into())
    }

    fn set(&self, whose: Whose, secs: i64) -> Result<(), String> {
        self.clocks()?.set(whose, secs).map_err(|e| e.to_string())?;
        self.wait(SEEN);
        Ok(())
    }

    /// Five minutes either way, and back.
    pub(super) fn jump_brokers(&mut self) -> Result<u64, String> {
        let secs = if self.rng.percent(50) { JUMP_SECS } else { -JUMP_SECS };
        self.set(Whose::Brokers, secs)?;
        let pause = self.between(200, 2500);
        self.wait(pause);
        self.set(Whose::Brokers, 0)?;
        Ok(2)
    }

    /// Five minutes forward, and never back: leases taken before the way back would last five minutes longer.
    pub(super) fn jump_database(&mut self) -> Result<u64, String> {
        let secs = self.clocks()?.difference(Whose::Database).map_err(|e| e.to_string())?;
        self.set(Whose::Database, secs + JUMP_SECS)?;
        Ok(1)
    }

    /// To and fro, a turn a second.
    pub(super) fn strobe(&mut self, whose: Whose) -> Result<u64, String> {
        let secs = self.clocks()?.difference(whose).map_err(|e| e.to_string())?;
        let turns = self.rng.range(2, 6);
        for _ in 0..turns {
            self.set(whose, secs + STROBE_SECS)?;
            self.set(whose, secs - STROBE_SECS)?;
        }
        self.set(whose, secs)?;
        Ok(2 * turns)
    }
}
