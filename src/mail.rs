//! What crosses from one thread to another, once: commands and their verdicts, state calls, the store's coming and going.

use crate::hints::Untold;
use crate::readiness::Readiness;
use crate::spool::{Spool, ToSpool};
use crate::state::{StateCall, StateReply};
use crate::store::{Incarnation, Target};
use queen_shards::command::{Command, Drained, Left, LogLane, SpoolId, Verdict};
use queen_shards::ids::{GroupId, Micros, PartitionId, Slot, Stamp, TenantId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

#[derive(Debug)]
pub enum Mail {
    // ---- to a shard
    /// From another shard: a command whose verdict goes to `slot`.
    Command {
        slot: Slot,
        command: Command,
    },
    Verdict {
        slot: Slot,
        verdict: Verdict,
    },
    /// From the shard that has something for a parked pop.
    Wake {
        slot: Slot,
        from: usize,
    },
    StateReply {
        slot: Slot,
        reply: StateReply,
    },
    /// From the control thread: the store can be used from now on.
    StoreReady {
        /// Four connections per shard do not fit: two must do. Source: rule 27.
        shared: bool,
        target: Target,
        hash_secret: [u8; 16],
        incarnation: Incarnation,
    },
    /// From the control thread: the store is another one. What is remembered of the one before is dropped.
    OtherStore {
        incarnation: Incarnation,
        /// Its clock, and a moment on ours that is not before it.
        clock: (Stamp, Micros),
    },
    /// From the control thread, twice a second, and as often as the log is read while polls are parked: the store answered with this clock at that moment, or it did not.
    /// `lost`: it is believed to be away, not just slow.
    /// `log`: the log of other brokers was read, from that moment on, and its news were sent before; whether there are
    /// no others.
    Pulse {
        clock: Option<(Stamp, Micros)>,
        lost: bool,
        log: Option<(Micros, bool)>,
    },
    /// From the control thread: what other brokers committed; see the engine's event.
    Log {
        began: Micros,
        lanes: Vec<LogLane>,
        freed: Vec<(PartitionId, GroupId, Left)>,
        changed: Vec<(TenantId, Arc<str>)>,
        lost: bool,
    },
    /// A read of the log that was asked for is over.
    LogRead {
        slot: Slot,
        read: bool,
    },
    /// From the spool's thread.
    Spool(ToShard),
    /// From the thread that fetches published keys: it has tried.
    KeysFetched,
    Shutdown,
    /// From the control thread: every shard has answered its last request.
    Over,
    // ---- to the control thread
    State {
        slot: Slot,
        call: StateCall,
    },
    /// Read the log of other brokers, from now on.
    ReadLog {
        slot: Slot,
    },
    /// A shard committed something that other brokers may wait for.
    Committed,
    /// A shard has answered its last request.
    Finished,
    /// SIGTERM or SIGINT arrived.
    Signal,
}

/// What the spool says to a shard; see the engine's events of the same names.
#[derive(Debug)]
pub enum ToShard {
    Spooled(Vec<(u64, bool)>),
    Drain(Vec<Drained>),
    RefusedAgain(Vec<SpoolId>),
    RefusedGone(Vec<SpoolId>),
    /// `counted`: by files that were read; else there is no directory yet, and nothing is known to be in it.
    SpoolFound {
        lanes: Vec<(u64, u32)>,
        counted: bool,
    },
    SpoolRead {
        all: bool,
        but: Vec<u64>,
    },
}

/// Messages in one mailbox: as many as a shard can be asked by all connections of another shard at once, twice.
pub const MAILBOX_MAX: usize = 1 << 14;

/// Microseconds since the process started: one monotonic clock for all threads.
pub fn now() -> Micros {
    static START: OnceLock<Instant> = OnceLock::new();
    Micros(START.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1)
}

/// The mailboxes of all shards and, last, of the control thread.
pub type Hub = crate::hub::Hub<Mail>;

/// What is the same for all threads.
#[derive(Clone)]
pub struct Shared {
    pub config: Arc<crate::config::Config>,
    pub metrics: Arc<crate::telemetry::Metrics>,
    pub hub: Hub,
    /// Published keys of tokens, when the settings use any.
    pub published: Option<Arc<crate::auth::Jwks>>,
    /// Number of shards.
    pub shards: usize,
    pub spool: Spool,
    pub maintenance: Arc<Maintenance>,
    pub untold: Arc<Untold>,
    pub readiness: Arc<Readiness>,
    /// PostgreSQL's clock as it was reckoned at the start, for what is accepted before it is read.
    pub clock: (Stamp, Micros),
    /// The latest `safeTime` that this broker answered, and of which store.
    pub safe_time: Arc<Mutex<SafeTime>>,
}

/// A time below which every stamp of a store is committed and visible. Source: state plane 9.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafeTime {
    /// As `queen.incarnation` says it.
    pub store: Arc<str>,
    pub at: Stamp,
}

impl SafeTime {
    /// What to answer of a request that was asked of the store when `before` had been answered, and brought this: not less than
    /// that, for a transaction that had not written by then may have begun earlier, but stamps what it writes afterwards. What was
    /// answered meanwhile does not count: it says nothing of what this request has read. Nor does another store: its clock may
    /// have been ahead. Source: state plane 9, CHG-3, CHG-4.
    pub fn after(self, before: &SafeTime) -> SafeTime {
        match self.store == before.store {
            true => SafeTime { at: self.at.max(before.at), ..self },
            false => self,
        }
    }

    /// This is the latest answer, and now another one was given, to a request that was asked of the store when `before` was the
    /// latest. One of another store counts only where no store has taken over since: it may be of the one before, and late.
    pub fn raise(&mut self, answered: SafeTime, before: &SafeTime) {
        let counts = match self.store == answered.store {
            true => self.at < answered.at,
            false => self.store == before.store,
        };
        if counts {
            *self = answered;
        }
    }
}

/// One of the operator's switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    Push,
    Pop,
}

/// The operator's switches, as this broker knows them, and which of them could not be stored yet: those hold against the
/// rows, until they are. Source: operations 4.8.
#[derive(Debug, Default)]
pub struct Maintenance {
    pub push: AtomicBool,
    pub pop: AtomicBool,
    /// Of each: the turn of the operator that is to be stored, 0 for none.
    unstored: [AtomicU64; 2],
    /// How often an operator has turned one of them here, or a turn was stored.
    turns: AtomicU64,
    /// Held while a switch goes over, or may: the spool hears of turns in their order.
    turning: Mutex<()>,
}

impl Maintenance {
    fn flag(&self, switch: Switch) -> &AtomicBool {
        match switch {
            Switch::Push => &self.push,
            Switch::Pop => &self.pop,
        }
    }

    /// To be asked for before the rows are: see [`Shared::follow_maintenance`].
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    fn turning(&self) -> MutexGuard<'_, ()> {
        self.turning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator turns it: rows that were asked for before are old. The turn that it is.
    fn note_turn(&self, switch: Switch) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::AcqRel) + 1;
        self.unstored[switch as usize].store(turn, Ordering::Release);
        turn
    }

    /// Whether rows say what holds that were asked for after so many turns.
    fn may_follow(&self, switch: Switch, turns: u64) -> bool {
        self.turns() == turns && self.to_store(switch).is_none()
    }

    /// What is to be stored of a switch, and the turn that it is.
    pub fn unstored(&self, switch: Switch) -> Option<(bool, u64)> {
        let _turning = self.turning();
        self.to_store(switch)
    }

    fn to_store(&self, switch: Switch) -> Option<(bool, u64)> {
        let turn = Some(self.unstored[switch as usize].load(Ordering::Acquire)).filter(|turn| *turn > 0)?;
        Some((self.flag(switch).load(Ordering::Acquire), turn))
    }

    /// A turn was stored, and holds unless there was another one meanwhile. Rows that were asked for before may still say
    /// the opposite.
    pub fn stored(&self, switch: Switch, turn: u64) {
        let _turning = self.turning();
        let stored = self.unstored[switch as usize].compare_exchange(turn, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.turns.fetch_add(u64::from(stored.is_ok()), Ordering::AcqRel);
    }
}

impl Shared {
    /// An operator turns a switch here: what holds from now on, and what is to be stored. The turn that it is.
    pub fn turn(&self, switch: Switch, on: bool) -> u64 {
        let turning = self.maintenance.turning();
        let turn = self.maintenance.note_turn(switch);
        self.set(switch, on, turning);
        turn
    }

    /// The rows say so of pushes and of pops; they were asked for after so many turns here. What an operator turned since,
    /// or what is not stored, stays.
    pub fn follow_maintenance(&self, (push, pop): (bool, bool), turns: u64) {
        for (switch, on) in [(Switch::Push, push), (Switch::Pop, pop)] {
            let turning = self.maintenance.turning();
            if self.maintenance.may_follow(switch, turns) {
                self.set(switch, on, turning);
            }
        }
    }

    /// Push maintenance: what is spooled waits, or is drained.
    fn set(&self, switch: Switch, on: bool, _turning: MutexGuard<'_, ()>) {
        if self.maintenance.flag(switch).swap(on, Ordering::AcqRel) != on && switch == Switch::Push {
            self.spool.send(ToSpool::Maintenance { on });
        }
    }

    /// Mailbox of the control thread.
    pub fn control(&self) -> usize {
        self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of the rows and an operator's turn cross: nobody sees the old switch again.
    #[test]
    fn rows_that_were_asked_for_before_a_turn_was_stored_are_not_followed() {
        let switches = Maintenance::default();
        let before = switches.turns();
        let turn = switches.note_turn(Switch::Push);
        let meanwhile = switches.turns();
        assert!(!switches.may_follow(Switch::Push, meanwhile), "it is not stored");
        switches.stored(Switch::Push, turn);
        assert!([before, meanwhile].iter().all(|turns| !switches.may_follow(Switch::Push, *turns)));
        let after = switches.turns();
        assert!(switches.may_follow(Switch::Push, after) && switches.may_follow(Switch::Pop, after));
        let newer = switches.note_turn(Switch::Pop);
        switches.stored(Switch::Pop, newer - 1);
        assert_eq!(switches.unstored(Switch::Pop), Some((false, newer)), "the turn before it was stored");
    }

    #[test]
    fn a_safe_time_never_decreases_and_is_of_one_store() {
        let of = |store: &str, at| SafeTime { store: store.into(), at: Stamp(at) };
        let mut latest = SafeTime::default();
        let mut answer = |before: &SafeTime, now: SafeTime| {
            let next = now.after(before);
            latest.raise(next.clone(), before);
            (next.at.0, latest.clone())
        };
        let (first, after_first) = answer(&SafeTime::default(), of("a", 70));
        let (second, after_second) = answer(&after_first, of("a", 60));
        assert_eq!((first, second), (70, 70), "a transaction that began at 60 has written since");
        let (slow, after_slow) = answer(&SafeTime::default(), of("a", 50));
        assert_eq!((slow, &after_slow), (50, &after_second), "what it read is older than what was answered meanwhile");
        let (other, after_other) = answer(&after_slow, of("b", 30));
        assert_eq!((other, &after_other), (30, &of("b", 30)), "the clock of another store");
        let (late, after_late) = answer(&after_slow, of("a", 90));
        assert_eq!((late, &after_late), (90, &after_other), "an answer of the store of before changes nothing");
        let (still, _) = answer(&after_late, of("b", 20));
        assert_eq!(still, 30, "that of the new one never decreases");
        let (beside, after_beside) = answer(&after_slow, of("b", 40));
        assert_eq!(
            (beside, after_beside),
            (40, of("b", 40)),
            "asked of the one, answered by the other as the latest was"
        );
    }
}
