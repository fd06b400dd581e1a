//! One process per directory. Source: operations 4.2.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

const NAME: &str = "lock";
/// The descriptors of a broker that was just killed go with its ring, and the kernel takes its time with that.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Held until the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Fatal: two brokers would take each other's records for their own.
    #[error("another broker uses this spool directory")]
    Held,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Lock {
    /// Locks a directory that is there, and waits a little for one that is held.
    pub fn take(dir: &Path) -> Result<Lock, LockError> {
        let began = Instant::now();
        loop {
            match Lock::try_take(dir) {
                Err(LockError::Held) if began.elapsed() < WAIT => std::thread::sleep(PAUSE),
                tried => return tried,
            }
        }
    }

    /// Locks a directory that is there, or says at once that it is held.
    pub fn try_take(dir: &Path) -> Result<Lock, LockError> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(NAME))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}
