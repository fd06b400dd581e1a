//! Clocks that jump, by libfaketime: a library in the process answers whoever asks what time it is, and reads the
//! difference from a file. Only the time of day: what the kernel counts (time-outs, CLOCK_MONOTONIC) goes on.

use super::process::is_running;
use std::io;
use std::path::{Path, PathBuf};

/// Whose clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Brokers,
    Database,
}

pub struct Clocks {
    library: PathBuf,
    dir: PathBuf,
}

impl Clocks {
    /// `None`: this machine has no libfaketime. `dir`: where the differences lie, which all processes can read.
    pub fn under(dir: &Path) -> io::Result<Option<Clocks>> {
        let places = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let libraries = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
        let Some(library) = libraries.into_iter().find(|library| library.exists()) else { return Ok(None) };
        let clocks = Clocks { library, dir: dir.to_owned() };
        clocks.set(Whose::Brokers, 0)?;
        clocks.set(Whose::Database, 0)?;
        Ok(Some(clocks))
    }

    fn file(&self, whose: Whose) -> PathBuf {
        self.dir.join(match whose {
            Whose::Brokers => "clock-brokers",
            Whose::Database => "clock-database",
        })
    }

    /// What a process needs in its environment.
    pub fn env(&self, whose: Whose) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file(whose).display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// By how many seconds they differ.
    pub fn difference(&self, whose: Whose) -> io::Result<i64> {
        std::fs::read_to_string(self.file(whose))?.trim().parse().map_err(io::Error::other)
    }

    /// From now on, a second at most, these clocks are so many seconds from the machine's.
    pub fn set(&self, whose: Whose, secs: i64) -> io::Result<()> {
        let draft = self.dir.join("clock.new");
        std::fs::write(&draft, format!("{secs:+}\n"))?;
        std::fs::rename(&draft, self.file(whose))
    }
}

/// Where the library keeps what the processes of one tree share: a segment and a semaphore per process, by its number.
const SHARED: &str = "/dev/shm";
const SHARED_NAMES: [&str; 2] = ["faketime_shm_", "sem.faketime_sem_"];

impl Drop for Clocks {
    /// Removes what killed processes left.
    fn drop(&mut self) {
        for entry in std::fs::read_dir(SHARED).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = SHARED_NAMES.iter().find_map(|prefix| name.to_str()?.strip_prefix(prefix)?.parse().ok());
            if pid.is_some_and(|pid: u32| !is_running(pid)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
