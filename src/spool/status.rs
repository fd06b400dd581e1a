//! What the spool tells everybody: counters and gauges, and its log lines. Source: operations 4.4, 4.5, 4.7, 5.4.

use crate::telemetry::log::Gate;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Shared by all threads; every number by itself.
#[derive(Debug, Default)]
pub struct Status {
    pending: AtomicU64,
    failed: AtomicU64,
    unhealthy: AtomicBool,
    files: AtomicU64,
    bytes: AtomicU64,
    quarantined: AtomicU64,
    drained: AtomicU64,
    duplicates: AtomicU64,
    written: AtomicU64,
    damaged_bytes: AtomicU64,
    damages: AtomicU64,
    refused: AtomicU64,
    wall_clock: AtomicU64,
    held: AtomicU64,
    recovering: AtomicBool,
    surveyed: AtomicBool,
    /// Acceptance of the oldest message that is not decided, or 0.
    floor: AtomicI64,
    buffering: AtomicBool,
}

/// The numbers at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Messages written and not decided.
    pub pending: u64,
    /// Messages that could not be written since the start.
    pub failed: u64,
    /// False after something had to be buffered for want of the store, until nothing is left or draining goes on.
    pub db_healthy: bool,
    pub files: u64,
    pub bytes: u64,
    pub quarantined: u64,
    pub drained: u64,
    pub duplicates: u64,
    pub written: u64,
    pub damaged_bytes: u64,
    pub damages: u64,
    pub refused: u64,
    pub wall_clock: u64,
    /// Tries for a directory that is another broker's.
    pub held: u64,
    /// What an earlier process left is being counted, or not all shards have heard of it.
    pub recovering: bool,
}

impl Status {
    pub fn numbers(&self) -> Numbers {
        Numbers {
            pending: self.pending.load(Relaxed),
            failed: self.failed.load(Relaxed),
            db_healthy: !self.unhealthy.load(Relaxed),
            files: self.files.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            quarantined: self.quarantined.load(Relaxed),
            drained: self.drained.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            written: self.written.load(Relaxed),
            damaged_bytes: self.damaged_bytes.load(Relaxed),
            damages: self.damages.load(Relaxed),
            refused: self.refused.load(Relaxed),
            wall_clock: self.wall_clock.load(Relaxed),
            held: self.held.load(Relaxed),
            recovering: self.recovering.load(Acquire),
        }
    }

    pub fn sizes(&self, pending: u64, files: u64, bytes: u64) {
        self.pending.store(pending, Relaxed);
        self.files.store(files, Relaxed);
        self.bytes.store(bytes, Relaxed);
        if pending == 0 {
            self.recovered();
        }
    }

    /// Ends with the last shard that heard what was found: who sees the end sees that all have. Source: operations 4.6.
    pub fn recovering(&self, on: bool) {
        self.recovering.store(on, Release);
    }

    pub fn failed(&self, messages: u64) {
        self.failed.fetch_add(messages, Relaxed);
    }

    /// Messages are on disk.
    pub fn written(&self, messages: u64) {
        self.written.fetch_add(messages, Relaxed);
    }

    /// Pushes are buffered, or stay so, because the store does not take them; told once until the end of that. Source: operations 4.7.
    pub fn outage(&self, pending: u64) {
        self.unhealthy.store(true, Relaxed);
        if !self.buffering.swap(true, Relaxed) {
            crate::warning!("spool", "entering buffered mode (degraded durability)", pending = pending);
        }
    }

    /// Something was drained.
    pub fn drained(&self, messages: u64, duplicates: u64) {
        self.drained.fetch_add(messages, Relaxed);
        self.duplicates.fetch_add(duplicates, Relaxed);
    }

    /// The store takes what waited.
    pub fn recovered(&self) {
        self.unhealthy.store(false, Relaxed);
        if self.buffering.swap(false, Relaxed) {
            crate::info!("spool", "DB recovered");
        }
    }

    /// So many records were handed over, and the store is gone: they are tried again when it is back. Source: operations 4.5.
    pub fn drain_waits(&self, records: usize) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::warning!("spool", "drain failed (transient)", records = records, suppressed = suppressed);
        }
    }

    /// A record was refused, for the `attempt`th time of those that are allowed. Source: operations 4.5.
    pub fn drain_refused(&self, attempt: u32, max_attempts: u32) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::warning!(
                "spool",
                "drain failed (permanent)",
                attempt = attempt,
                max_attempts = max_attempts,
                suppressed = suppressed
            );
        }
    }

    pub fn poison(&self, messages: u64) {
        self.refused.fetch_add(messages, Relaxed);
    }

    pub fn wall_clock_filled(&self) {
        self.wall_clock.fetch_add(1, Relaxed);
        crate::warning!("spool", "acceptance times are by the machine's clock until PostgreSQL is reached");
    }

    pub fn set_quarantined(&self, files: u64) {
        self.quarantined.store(files, Relaxed);
    }

    pub fn quarantined(&self, name: &str) {
        self.quarantined.fetch_add(1, Relaxed);
        crate::error!("spool", "quarantined poison spool file", file = name);
    }

    /// `again`: the file is read once more, and then it is told.
    pub fn damaged(&self, again: bool, name: &str, at: u64, bytes: u64) {
        if again {
            return;
        }
        self.damages.fetch_add(1, Relaxed);
        self.damaged_bytes.fetch_add(bytes, Relaxed);
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::error!(
                "spool",
                "a spool file is damaged",
                file = name,
                at = at,
                bytes = bytes,
                suppressed = suppressed
            );
        }
    }

    /// A read of a file failed, for the `attempt`th time of those that are allowed. Source: operations 4.5.
    pub fn read_failed(&self, name: &str, error: &io::Error, attempt: u32, max_attempts: u32) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::warning!(
                "spool",
                "drain failed (permanent)",
                file = name,
                error = error,
                attempt = attempt,
                max_attempts = max_attempts,
                suppressed = suppressed
            );
        }
    }

    pub fn unreadable(&self, name: &str, error: &io::Error) {
        self.damages.fetch_add(1, Relaxed);
        tell(&"a spool file cannot be read or moved", name, error);
    }

    /// A file that is to go cannot be removed, or moved to `failed/`.
    pub fn stays(&self, name: &str, error: &io::Error) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::error!(
                "spool",
                "a spool file cannot be removed: it is tried again each second",
                file = name,
                error = error,
                suppressed = suppressed
            );
        }
    }

    /// The directory could not be made at the start, and is another broker's now.
    pub fn held(&self, dir: &Path) {
        self.held.fetch_add(1, Relaxed);
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::error!(
                "spool",
                "another broker uses this spool directory: pushes fail while PostgreSQL is away (FILE_BUFFER_DIR names another)",
                directory = dir.display(),
                suppressed = suppressed
            );
        }
    }

    pub fn write_failed(&self, error: &io::Error) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::error!("spool", "the spool cannot be written: pushes fail", error = error, suppressed = suppressed);
        }
    }

    pub fn at_cap(&self) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::error!("spool", "the spool is at FILE_BUFFER_MAX_BYTES: pushes fail", suppressed = suppressed);
        }
    }

    /// No more places of records can be remembered that wait behind refused ones.
    pub fn too_many_put_off(&self) {
        static GATE: Gate = Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            crate::warning!(
                "spool",
                "so many spooled records wait behind refused ones that reading stands still",
                suppressed = suppressed
            );
        }
    }

    /// All that an earlier process left is counted.
    pub fn surveyed(&self) {
        self.surveyed.store(true, Release);
    }

    /// Whether [`Status::floor`] and [`Status::is_drained`] know of all there is; until then what this broker said last stands.
    pub fn is_surveyed(&self) -> bool {
        self.surveyed.load(Acquire)
    }

    /// Acceptance of the oldest message that is not decided; `None`: there is none.
    pub fn floor(&self) -> Option<i64> {
        Some(self.floor.load(Relaxed)).filter(|floor| *floor != 0)
    }

    /// No message waits, and no file is left that a later process would drain again.
    pub fn is_drained(&self) -> bool {
        self.is_surveyed() && self.pending.load(Relaxed) == 0 && self.floor().is_none()
    }

    pub fn set_floor(&self, floor: Option<i64>) {
        self.floor.store(floor.unwrap_or(0), Relaxed);
    }
}

fn tell(what: &dyn Display, name: &str, error: &io::Error) {
    static GATE: Gate = Gate::new(10_000);
    if let Some(suppressed) = GATE.pass() {
        crate::error!("spool", what, file = name, error = error, suppressed = suppressed);
    }
}
