//! The faults by name, and the families of the reliability goals (section 6) they belong to.

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    KillBroker,
    /// `kill -9` when the request of a writing commit has just gone to the database.
    KillBrokerAtCommit,
    /// `kill -9` when the database has just answered one, before the broker can have answered its clients.
    KillBrokerAtAnswer,
    TermThenKillBroker,
    PauseBroker,
    KillPostmaster,
    ImmediateStop,
    TerminateBackend,
    /// `kill -9` of one backend: PostgreSQL restarts all of them.
    CrashBackend,
    PausePostgres,
    /// All clients of one broker stand still, with requests and leases of theirs open.
    PauseClients,
    ResetClients,
    ResetDatabase,
    BlackHoleClients,
    BlackHoleDatabase,
    HalfOpenClients,
    HalfOpenDatabase,
    SlowClients,
    SlowDatabase,
    OneByteClients,
    OneByteDatabase,
    /// The connection to the database is reset between a COMMIT and its answer.
    CutCommit,
    /// The same, and then the database stays away for longer than the short dedup window.
    CutCommitAndOutage,
    /// PostgreSQL is killed and stays away for longer than the short dedup window.
    LongOutage,
    /// `kill -9` of a broker that buffers, and its start without a database.
    KillBufferingBroker,
    /// `kill -9` of a broker that drains.
    KillDrainingBroker,
    /// The spool is at its size cap while the database is away.
    SpoolAtCap,
    /// The database answers, and refuses.
    Refuse(Refusal),
    /// A broker reaches neither its clients nor its database, and they not it; the other one, if there is one, works.
    CutOffBroker,
    /// No broker reaches the database.
    CutOffDatabase,
    /// As [`Fault::CutOffBroker`], of one of two brokers: the other one takes over what its groups left. Needs two.
    CutOffOneOfTwo,
    /// Somebody's transaction keeps an old snapshot: nothing that dies meanwhile can be vacuumed.
    HoldSnapshot,
    /// Somebody locks the tables that pushes and pops write.
    LockTable,
    /// Somebody locks the row of one partition.
    LockRow,
    /// The time of day of all brokers jumps by five minutes, and back after a while.
    JumpBrokerClocks,
    /// It goes to and fro by five seconds, once a second.
    StrobeBrokerClocks,
    /// It stands for some seconds.
    StopBrokerClocks,
    /// That of PostgreSQL jumps forward, and stays there; or back, for a moment.
    JumpDatabaseClock,
    StrobeDatabaseClock,
    StopDatabaseClock,
    /// One broker after the other is ended by SIGTERM and started again. Needs two.
    RollingRestart,
    /// The broker kills itself inside a window between two durable steps; needs a build with the feature `torture`.
    CrashAt(Window),
}

/// What a database that is there says instead of doing it, by its SQLSTATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// 25006, by `default_transaction_read_only`.
    ReadOnly,
    /// 57P03, to whoever connects.
    Starting,
    /// 53300, to whoever connects.
    TooManyConnections,
    /// 53100, to whoever writes; so are the next three.
    DiskFull,
    /// 40001.
    Serialization,
    /// 40P01.
    Deadlock,
    /// 57014.
    Canceled,
}

impl Refusal {
    /// Name of the fault; behind `refuse-` it is the SQLSTATE.
    fn fault(self) -> &'static str {
        match self {
            Refusal::ReadOnly => "refuse-25006",
            Refusal::Starting => "refuse-57P03",
            Refusal::TooManyConnections => "refuse-53300",
            Refusal::DiskFull => "refuse-53100",
            Refusal::Serialization => "refuse-40001",
            Refusal::Deadlock => "refuse-40P01",
            Refusal::Canceled => "refuse-57014",
        }
    }

    pub fn state(self) -> &'static str {
        &self.fault()["refuse-".len()..]
    }
}

/// The windows of the reliability goals, section 3, as the broker's `src/torture.rs` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Window {
    BeforeSpoolWrite,
    /// Written, not synced.
    SpoolWritten,
    /// Synced, not answered.
    SpoolSynced,
    CommitSent,
    /// Answered by the database, not to the client.
    CommitAnswered,
    /// The last record of a file is stored, the file is still there.
    DrainCommitted,
    /// The footer is written, the file not renamed.
    SpoolRotation,
    /// Records of an earlier process are with the shards.
    BootDrain,
}

impl Window {
    pub const ALL: [Window; 8] = [
        Window::BeforeSpoolWrite,
        Window::SpoolWritten,
        Window::SpoolSynced,
        Window::CommitSent,
        Window::CommitAnswered,
        Window::DrainCommitted,
        Window::SpoolRotation,
        Window::BootDrain,
    ];

    /// Name of the fault; behind `crash-at-` it is the broker's name of the point.
    fn fault(self) -> &'static str {
        match self {
            Window::BeforeSpoolWrite => "crash-at-before-spool-write",
            Window::SpoolWritten => "crash-at-spool-written",
            Window::SpoolSynced => "crash-at-spool-synced",
            Window::CommitSent => "crash-at-commit-sent",
            Window::CommitAnswered => "crash-at-commit-answered",
            Window::DrainCommitted => "crash-at-drain-committed",
            Window::SpoolRotation => "crash-at-spool-rotation",
            Window::BootDrain => "crash-at-boot-drain",
        }
    }

    pub fn point(self) -> &'static str {
        &self.fault()["crash-at-".len()..]
    }
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::KillBroker => "kill-broker",
            Fault::KillBrokerAtCommit => "kill-broker-after-commit-sent",
            Fault::KillBrokerAtAnswer => "kill-broker-after-database-answer",
            Fault::TermThenKillBroker => "term-then-kill-broker",
            Fault::PauseBroker => "pause-broker",
            Fault::KillPostmaster => "kill-postmaster",
            Fault::ImmediateStop => "immediate-stop",
            Fault::TerminateBackend => "terminate-backend",
            Fault::CrashBackend => "crash-backend",
            Fault::PausePostgres => "pause-postgres",
            Fault::PauseClients => "pause-clients",
            Fault::ResetClients => "reset-clients",
            Fault::ResetDatabase => "reset-database",
            Fault::BlackHoleClients => "black-hole-clients",
            Fault::BlackHoleDatabase => "black-hole-database",
            Fault::HalfOpenClients => "half-open-clients",
            Fault::HalfOpenDatabase => "half-open-database",
            Fault::SlowClients => "slow-clients",
            Fault::SlowDatabase => "slow-database",
            Fault::OneByteClients => "one-byte-clients",
            Fault::OneByteDatabase => "one-byte-database",
            Fault::CutCommit => "cut-commit",
            Fault::CutCommitAndOutage => "cut-commit-and-outage",
            Fault::LongOutage => "long-outage",
            Fault::KillBufferingBroker => "kill-buffering-broker",
            Fault::KillDrainingBroker => "kill-draining-broker",
            Fault::SpoolAtCap => "spool-at-cap",
            Fault::Refuse(refusal) => refusal.fault(),
            Fault::CutOffBroker => "cut-off-broker",
            Fault::CutOffDatabase => "cut-off-database",
            Fault::CutOffOneOfTwo => "cut-off-one-of-two",
            Fault::HoldSnapshot => "hold-snapshot",
            Fault::LockTable => "lock-table",
            Fault::LockRow => "lock-row",
            Fault::JumpBrokerClocks => "jump-broker-clocks",
            Fault::StrobeBrokerClocks => "strobe-broker-clocks",
            Fault::JumpDatabaseClock => "jump-database-clock",
            Fault::StrobeDatabaseClock => "strobe-database-clock",
            Fault::StopBrokerClocks => "stop-broker-clocks",
            Fault::StopDatabaseClock => "stop-database-clock",
            Fault::RollingRestart => "rolling-restart",
            Fault::CrashAt(window) => window.fault(),
        }
    }

    /// How often it strikes in a full campaign. The nemesis strikes with what is furthest behind this, so that a shorter
    /// one has its share of everything. Source: reliability 6; where that names a sum, `goals::GOALS` has it.
    pub fn goal(self) -> u64 {
        match self {
            Fault::KillBroker => 1000,
            // A quarter above the table's 20: a campaign with fewer is not valid, and it ends when its time is over.
            Fault::CrashAt(_) => 25,
            Fault::TerminateBackend => 1950,
            Fault::KillPostmaster | Fault::TermThenKillBroker => 200,
            Fault::PauseBroker | Fault::PauseClients => 150,
            Fault::PausePostgres | Fault::BlackHoleClients | Fault::BlackHoleDatabase => 100,
            Fault::SpoolAtCap => 60,
            Fault::ImmediateStop | Fault::CrashBackend | Fault::Refuse(_) | Fault::RollingRestart => 50,
            Fault::CutOffBroker | Fault::CutOffDatabase | Fault::CutOffOneOfTwo => 40,
            Fault::ResetClients => 15_000,
            Fault::ResetDatabase => 5000,
            Fault::CutCommit => 1500,
            Fault::CutCommitAndOutage => 500,
            Fault::HoldSnapshot => 3,
            Fault::LockTable | Fault::LockRow => 10,
            Fault::JumpBrokerClocks | Fault::StrobeBrokerClocks => 100,
            Fault::JumpDatabaseClock | Fault::StrobeDatabaseClock => 100,
            Fault::StopBrokerClocks | Fault::StopDatabaseClock => 100,
            // Named by no figure of the table.
            _ => 20,
        }
    }

    /// Whether it is done to connections or clients alone: then it may strike while a process is hurt as well.
    pub fn is_of_the_wire(self) -> bool {
        matches!(
            self,
            Fault::ResetClients
                | Fault::ResetDatabase
                | Fault::HalfOpenClients
                | Fault::HalfOpenDatabase
                | Fault::BlackHoleClients
                | Fault::SlowClients
                | Fault::OneByteClients
                | Fault::PauseClients
                | Fault::CutCommit
        )
    }

    /// Whether it is done to one broker's process alone, and needs nothing else: with two brokers a hand of its own does it.
    pub fn is_of_one_process(self) -> bool {
        matches!(self, Fault::KillBroker | Fault::TermThenKillBroker | Fault::PauseBroker)
    }

    /// Rules that go by PostgreSQL's clock cannot be judged where it jumps: a lease or a window is then wrong by as much.
    pub fn moves_the_database_clock(self) -> bool {
        matches!(self, Fault::JumpDatabaseClock | Fault::StrobeDatabaseClock | Fault::StopDatabaseClock)
    }

    /// Whether it strikes only where there are two brokers.
    pub fn needs_two(self) -> bool {
        matches!(self, Fault::RollingRestart | Fault::CutOffOneOfTwo)
    }
}

/// A row of the table of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The broker dies.
    F1,
    /// PostgreSQL dies.
    F2,
    /// PostgreSQL answers, and refuses.
    F3,
    /// A process stands still.
    F4,
    /// The spool is full.
    F5,
    /// The network misbehaves.
    F9,
    /// The answer of a commit is lost.
    F10,
    /// Parties that do not reach each other.
    F11,
    /// Two brokers on one database: no fault of its own, the others strike either.
    F13,
    /// Clocks jump: a run of its own, every process behind a library.
    F12,
    /// Other users of the database stand in the way.
    F14,
    /// SIGTERM, then SIGKILL.
    F16,
    /// Two brokers restart one after the other.
    F17,
}

impl Family {
    /// Those that one world can have: F12 needs one of its own.
    pub const ALL: [Family; 12] = [
        Family::F1,
        Family::F2,
        Family::F3,
        Family::F4,
        Family::F5,
        Family::F9,
        Family::F10,
        Family::F11,
        Family::F13,
        Family::F14,
        Family::F16,
        Family::F17,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::F1 => "F1",
            Family::F2 => "F2",
            Family::F3 => "F3",
            Family::F4 => "F4",
            Family::F5 => "F5",
            Family::F9 => "F9",
            Family::F10 => "F10",
            Family::F11 => "F11",
            Family::F12 => "F12",
            Family::F13 => "F13",
            Family::F14 => "F14",
            Family::F16 => "F16",
            Family::F17 => "F17",
        }
    }

    pub fn of(name: &str) -> Option<Family> {
        Family::ALL.into_iter().chain([Family::F12]).find(|family| family.name().eq_ignore_ascii_case(name))
    }

    pub fn faults(self) -> &'static [Fault] {
        match self {
            Family::F1 => &[
                Fault::KillBroker,
                Fault::KillBrokerAtCommit,
                Fault::KillBrokerAtAnswer,
                Fault::KillBufferingBroker,
                Fault::KillDrainingBroker,
                Fault::CrashAt(Window::BeforeSpoolWrite),
                Fault::CrashAt(Window::SpoolWritten),
                Fault::CrashAt(Window::SpoolSynced),
                Fault::CrashAt(Window::CommitSent),
                Fault::CrashAt(Window::CommitAnswered),
                Fault::CrashAt(Window::DrainCommitted),
                Fault::CrashAt(Window::SpoolRotation),
                Fault::CrashAt(Window::BootDrain),
            ],
            Family::F2 => &[
                Fault::KillPostmaster,
                Fault::ImmediateStop,
                Fault::TerminateBackend,
                Fault::CrashBackend,
                Fault::LongOutage,
            ],
            Family::F3 => &[
                Fault::Refuse(Refusal::ReadOnly),
                Fault::Refuse(Refusal::Starting),
                Fault::Refuse(Refusal::TooManyConnections),
                Fault::Refuse(Refusal::DiskFull),
                Fault::Refuse(Refusal::Serialization),
                Fault::Refuse(Refusal::Deadlock),
                Fault::Refuse(Refusal::Canceled),
            ],
            Family::F4 => &[Fault::PauseBroker, Fault::PausePostgres, Fault::PauseClients],
            Family::F5 => &[Fault::SpoolAtCap],
            Family::F9 => &[
                Fault::ResetClients,
                Fault::ResetDatabase,
                Fault::BlackHoleClients,
                Fault::BlackHoleDatabase,
                Fault::HalfOpenClients,
                Fault::HalfOpenDatabase,
                Fault::SlowClients,
                Fault::SlowDatabase,
                Fault::OneByteClients,
                Fault::OneByteDatabase,
            ],
            Family::F10 => &[Fault::CutCommit, Fault::CutCommitAndOutage],
            Family::F11 => &[Fault::CutOffBroker, Fault::CutOffDatabase, Fault::CutOffOneOfTwo],
            Family::F12 => &[
                Fault::JumpBrokerClocks,
                Fault::StrobeBrokerClocks,
                Fault::StopBrokerClocks,
                Fault::JumpDatabaseClock,
                Fault::StrobeDatabaseClock,
                Fault::StopDatabaseClock,
            ],
            Family::F13 => &[],
            Family::F14 => &[Fault::HoldSnapshot, Fault::LockTable, Fault::LockRow],
            Family::F16 => &[Fault::TermThenKillBroker],
            Family::F17 => &[Fault::RollingRestart],
        }
    }
}

/// All faults of some families that this many brokers can meet.
pub fn of_families(families: &[Family], brokers: u8) -> Vec<Fault> {
    let all = families.iter().flat_map(|family| family.faults()).copied();
    all.filter(|fault| !fault.needs_two() || 1 < brokers).collect()
}
