//! PostgreSQL's clock is further than what was known of it: it was set, or this machine slept while it went on. Leases and
//! delays that were reckoned by the clock before end sooner by as much.
//!
//!     a reading > LEAP_US or more ahead > leases in memory end sooner > whatever waits for a moment is looked at again
//!
//! Holds: when a lease ends is a guess here, and PostgreSQL's to say: too early costs a claim that is refused, too late a
//! stall as long as the leap. For a clock that was set back claims are refused until it has caught up; how far is kept, for the
//! drain.
//! Source: reliability 6, F12.

use crate::ids::{Micros, Stamp};
use crate::limits::LEAP_US;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::timers::Timer;

impl Shard {
    /// What is known of PostgreSQL's clock was `known`, and is replaced.
    pub(crate) fn clock_moved(&mut self, known: Stamp) {
        let ahead = self.stamp().0.saturating_sub(known.0);
        if LEAP_US <= ahead {
            self.leapt_us = self.leapt_us.saturating_add(ahead as u64);
        }
        if ahead <= -LEAP_US {
            self.set_back_us = self.set_back_us.saturating_sub(ahead);
        }
    }

    /// Costs a look at all that is in memory; clocks leap seldom.
    pub(crate) fn follow_leap(&mut self) {
        let leapt_us = std::mem::take(&mut self.leapt_us);
        if leapt_us == 0 {
            return;
        }
        let lanes: Vec<Ref> = self.lanes.slab.refs().collect();
        for lane in lanes {
            for cursor in &mut self.lanes[lane].cursors {
                cursor.lease_until = Micros(cursor.lease_until.0.saturating_sub(leapt_us));
            }
        }
        for (at, timer) in self.timers.take_all() {
            match timer {
                Timer::Offer { lane, group } => self.offer_due(at, lane, group),
                other => self.arm(at, other),
            }
        }
    }
}
