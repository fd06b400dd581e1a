//! Clocks that jump, by libfaketime: a library in the process answers whoever asks what time it is, and reads the
//! difference from a file. Only the time of day: what the kernel counts (time-outs, CLOCK_MONOTONIC) goes on.

use super::process::is_running;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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
            // A clock that stands is written as an instant, which the library reads in this zone.
            ("TZ", "UTC".into()),
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
        self.write(whose, &format!("{secs:+}"))
    }

    /// From now on, a second at most, these clocks stand at the instant that they show, or a second before it.
    pub fn stop(&self, whose: Whose, secs: i64) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_secs() as i64 + secs;
        self.write(whose, &instant(now))
    }

    fn write(&self, whose: Whose, line: &str) -> io::Result<()> {
        let draft = self.dir.join("clock.new");
        std::fs::write(&draft, format!("{line}\n"))?;
        std::fs::rename(&draft, self.file(whose))
    }
}

/// Seconds since 1970 as `2026-11-30 12:34:56`.
fn instant(secs: i64) -> String {
    let (days, rest) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    // Days of the calendar, counted in years that begin with March: the leap day is the last one.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day = shifted.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_as_the_library_reads_it() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (1_796_042_096, "2026-11-30 12:34:56"),
        ] {
            assert_eq!(instant(secs), text);
        }
    }
}
