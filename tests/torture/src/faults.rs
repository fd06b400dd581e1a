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
        }
    }
}

/// A row of the table of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The broker dies.
    F1,
    /// PostgreSQL dies.
    F2,
    /// A process stands still.
    F4,
    /// The network misbehaves.
    F9,
    /// The answer of a commit is lost.
    F10,
    /// Two brokers on one database: no fault of its own, the others strike either.
    F13,
    /// SIGTERM, then SIGKILL.
    F16,
}

impl Family {
    pub const ALL: [Family; 7] =
        [Family::F1, Family::F2, Family::F4, Family::F9, Family::F10, Family::F13, Family::F16];
    /// What runs when nothing is asked for. Two brokers see each other's messages late in this version.
    pub const DEFAULT: [Family; 6] = [Family::F1, Family::F2, Family::F4, Family::F9, Family::F10, Family::F16];

    pub fn name(self) -> &'static str {
        match self {
            Family::F1 => "F1",
            Family::F2 => "F2",
            Family::F4 => "F4",
            Family::F9 => "F9",
            Family::F10 => "F10",
            Family::F13 => "F13",
            Family::F16 => "F16",
        }
    }

    pub fn of(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name().eq_ignore_ascii_case(name))
    }

    pub fn faults(self) -> &'static [Fault] {
        match self {
            Family::F1 => &[Fault::KillBroker, Fault::KillBrokerAtCommit, Fault::KillBrokerAtAnswer],
            Family::F2 => &[Fault::KillPostmaster, Fault::ImmediateStop, Fault::TerminateBackend, Fault::CrashBackend],
            Family::F4 => &[Fault::PauseBroker, Fault::PausePostgres],
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
            Family::F13 => &[],
            Family::F16 => &[Fault::TermThenKillBroker],
        }
    }
}

/// All faults of some families.
pub fn of_families(families: &[Family]) -> Vec<Fault> {
    families.iter().flat_map(|family| family.faults()).copied().collect()
}
