//! Bugs on purpose, for the one question the torture rig cannot answer otherwise: does its checker wake?
//!
//! Compiled in with the feature `planted` and nowhere else: without it [`is`] is a constant `false` and what hangs on it
//! is not in the binary. One bug at a time, chosen once at boot.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// `queued` is answered when the commit is sent.
    AnswerBeforeCommit = 1,
    /// An ack is accepted whatever became of its lease.
    AckWithoutLease,
    /// A nack moves the cursor past the message.
    CursorPastNack,
    /// Leases end by a broker clock, one that runs [`CLOCK_AHEAD_US`] ahead.
    LeaseOnWallClock,
    /// A poll whose client has left is answered, and its claims stay.
    AnswerDeadPoll,
    /// A transaction commits its pushes and leaves its acks out.
    TransactionWithoutAck,
    /// A dead letter is filed with an empty payload.
    DeadLetterWithoutPayload,
    /// Numbers of payloads pass through a double.
    NumbersAsDoubles,
    /// `buffered` is answered when the record is written, not synced.
    AnswerBeforeFsync,
    /// A spool file's name is not made durable.
    SkipDirectoryFsync,
    /// What comes out of the spool is stored whatever is stored already.
    DrainWithoutDedup,
    /// The newest spool file is drained first.
    DrainNewestFirst,
    /// The last record of a spool file is not read.
    ForgetLastRecord,
}

/// How far the clock of [`Bug::LeaseOnWallClock`] is ahead.
pub const CLOCK_AHEAD_US: u64 = 1_500_000;

/// Every bug by the name it is chosen by.
pub const NAMES: [(&str, Bug); 13] = [
    ("answer-before-commit", Bug::AnswerBeforeCommit),
    ("ack-without-lease", Bug::AckWithoutLease),
    ("cursor-past-nack", Bug::CursorPastNack),
    ("lease-on-wall-clock", Bug::LeaseOnWallClock),
    ("answer-dead-poll", Bug::AnswerDeadPoll),
    ("transaction-without-ack", Bug::TransactionWithoutAck),
    ("dead-letter-without-payload", Bug::DeadLetterWithoutPayload),
    ("numbers-as-doubles", Bug::NumbersAsDoubles),
    ("answer-before-fsync", Bug::AnswerBeforeFsync),
    ("skip-directory-fsync", Bug::SkipDirectoryFsync),
    ("drain-without-dedup", Bug::DrainWithoutDedup),
    ("drain-newest-first", Bug::DrainNewestFirst),
    ("forget-last-record", Bug::ForgetLastRecord),
];

#[cfg(feature = "planted")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Chooses a bug by its name; false when there is none of that name.
#[cfg(feature = "planted")]
pub fn choose(name: &str) -> bool {
    let bug = NAMES.iter().find(|(known, _)| *known == name).map(|(_, bug)| *bug as u8);
    CHOSEN.store(bug.unwrap_or(0), std::sync::atomic::Ordering::Relaxed);
    bug.is_some()
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether this bug is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
