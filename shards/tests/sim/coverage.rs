//! Which faults and turns of fate a run has met. A run of many seeds in which one never happened proves nothing.

macro_rules! things {
    ($($name:ident),* $(,)?) => {
        /// Something worth having happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Thing { $($name),* }
        /// All of them, with their names.
        pub const THINGS: &[(Thing, &str)] = &[$((Thing::$name, stringify!($name))),*];
    };
}

things! {
    Stored, Duplicates, DuplicateWithoutText, EqualKeysAtOnce, KeyFreeAgain, PushFailed, PushRetried,
    Popped, AutoAcked, PoppedFromSeveralShards, Pinned, Ready, EmptyPop, PopFailed,
    Parked, Woken, ParkedTooLong, LeftWhileParked, GaveBack, Withdrew,
    Completed, CompletedInPart, Nacked, Retried, DeadLettered, Dropped, StaleLease, LeaseLess, Noop, AlreadyCommitted,
    Unresolvable, ConsumerNotFound, AckFailed,
    LeaseExpired, Redelivered, SecondAttempt,
    LaneMoved, LaneBusy, LaneGone, LaneBehind, RowLocked, PartitionLost, CursorStale, CursorBusy, CursorGone,
    Unavailable, UnknownApplied, UnknownNotApplied, UnknownAppliedLate, Settled, OtherStore, RefusedByOther, LateAnswer,
    Outage, Poison,
    RetentionUnderLag, EvidenceRead, EvidencePurged, QueueDeleted, GroupDeleted, Configured, Seek, ClockJump, Restart,
    ForeignWrite, TwoBrokersOneLane, WindowReload, WindowEvicted, LaneEvicted, GroupLeft, KeysPaged, RecordsRead, PackedStored,
    HeldByDelay, HeldByWindow,
    Conflated, ConflatedSeveral, ConflationConflict, ConflationTold, NewestRead,
    BundleCommitted, BundleDuplicate, BundleStale, BundleRefused,
    Buffered, SpoolFailed, SpoolDamaged, FoundAtStart, MaintenancePush,
    Drained, DrainedDuplicate, DrainedAgain, DrainRefused, DrainCured, PutOff, BufferedThenQueued,
    LogNews, LogFreed, LogLost,
    Sealed, RunRowsRead, RunsLoaded, RunsDropped, RunGone,
}

/// Counts per thing.
#[derive(Clone)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage(vec![0; THINGS.len()])
    }
}

impl Coverage {
    pub fn hit(&mut self, thing: Thing) {
        self.0[thing as usize] += 1;
    }
    pub fn count(&self, thing: Thing) -> u64 {
        self.0[thing as usize]
    }
    pub fn add(&mut self, other: &Coverage) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }
    /// Things that did not happen.
    pub fn missing(&self) -> Vec<&'static str> {
        THINGS.iter().filter(|(thing, _)| self.count(*thing) == 0).map(|(_, name)| *name).collect()
    }
    /// One line per thing.
    pub fn table(&self) -> String {
        THINGS.iter().map(|(thing, name)| format!("{:>10} {name}\n", self.count(*thing))).collect()
    }
}
