//! When a push is accepted while PostgreSQL's clock cannot be read: its last reading and the time since, sleep included.
//!
//! The reading and the boot it belongs to are kept in the spool directory. After a reboot without PostgreSQL the clock of
//! the machine fills the gap, which is counted. Source: rule 16.

use queen_shards::ids::{Micros, Stamp};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NAME: &str = "clock";
/// How often a reading is kept: how much of it a crash can cost is nothing, since the time since is known.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// One that says so much else than what was kept is kept at once: that came late from a server that stood still, or the clock
/// was set. Two clocks that run apart as they may, 500 us a second, take ten seconds for it.
const KEEP_BEYOND_US: u64 = 5_000;

/// PostgreSQL's clock as well as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reckoned {
    pub now: Stamp,
    /// By the clock of the machine, since the machine was started again after the last reading.
    pub filled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    stamp: Stamp,
    since_boot_us: i64,
    boot: String,
}

/// What the directory and the machine say now.
pub fn reckon(dir: &Path) -> Reckoned {
    let kept = fs::read_to_string(dir.join(NAME)).ok().and_then(|text| parse(&text));
    reckon_from(kept, since_boot_us(), &boot_id(), wall())
}

fn reckon_from(kept: Option<Kept>, since_boot_us: i64, boot: &str, wall: Stamp) -> Reckoned {
    match kept {
        Some(kept) if kept.boot == boot && !boot.is_empty() => {
            let since = since_boot_us.saturating_sub(kept.since_boot_us).max(0);
            Reckoned { now: Stamp(kept.stamp.0.saturating_add(since)), filled: false }
        }
        Some(kept) => Reckoned { now: wall.max(kept.stamp), filled: true },
        // A spool that was never used.
        None => Reckoned { now: wall, filled: false },
    }
}

/// The id of the broker this directory belongs to: kept there, or made now. `None`: it cannot be kept.
pub fn broker_id(dir: &Path) -> Option<String> {
    let path = dir.join("broker");
    let kept = fs::read_to_string(&path).ok().and_then(|text| uuid::Uuid::parse_str(text.trim()).ok());
    let id = kept.unwrap_or_else(uuid::Uuid::new_v4).hyphenated().to_string();
    if kept.is_none() {
        fs::write(&path, &id).ok()?;
    }
    Some(id)
}

/// Keeps readings.
pub struct Keeper {
    path: PathBuf,
    kept: Option<(Stamp, Instant)>,
}

impl Keeper {
    pub fn new(dir: &Path) -> Keeper {
        Keeper { path: dir.join(NAME), kept: None }
    }

    /// PostgreSQL's clock said `stamp` at `at`, which may be a while ago: this thread writes and reads files meanwhile.
    /// Losing it costs a wall clock, so a failure is no more than that.
    pub fn read(&mut self, (stamp, at): (Stamp, Micros), now: Micros) {
        let by_now = Stamp(stamp.0.saturating_add(now.since(at) as i64));
        let is_due = self.kept.is_none_or(|(kept, at)| {
            let since = at.elapsed();
            let says = kept.0.saturating_add(since.as_micros() as i64);
            KEEP_EVERY <= since || KEEP_BEYOND_US < says.abs_diff(by_now.0)
        });
        if is_due && self.keep(by_now).is_ok() {
            self.kept = Some((by_now, Instant::now()));
        }
    }

    /// The clock says `stamp` now.
    fn keep(&self, stamp: Stamp) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(format!("{} {} {}\n", stamp.0, since_boot_us(), boot_id()).as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, &self.path)
    }
}

fn parse(text: &str) -> Option<Kept> {
    let mut words = text.split_whitespace();
    let kept = Kept {
        stamp: Stamp(words.next()?.parse().ok()?),
        since_boot_us: words.next()?.parse().ok()?,
        boot: words.next()?.into(),
    };
    // A stamp from before 2020 is no reading.
    (words.next().is_none() && 1_577_836_800_000_000 < kept.stamp.0).then_some(kept)
}

fn since_boot_us() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local.
    match unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) } {
        0 => time.tv_sec * 1_000_000 + time.tv_nsec / 1000,
        _ => 0,
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_string()).unwrap_or_default()
}

fn wall() -> Stamp {
    Stamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: i64 = 1_790_000_000_000_000;

    fn kept(boot: &str) -> Option<Kept> {
        Some(Kept { stamp: Stamp(READ), since_boot_us: 5_000_000, boot: boot.into() })
    }

    #[test]
    fn within_one_boot_the_last_reading_goes_on_whatever_the_wall_says() {
        for wall in [0, READ - 3_600_000_000, READ + 3_600_000_000] {
            let got = reckon_from(kept("a"), 7_500_000, "a", Stamp(wall));
            assert_eq!(got, Reckoned { now: Stamp(READ + 2_500_000), filled: false });
        }
    }

    #[test]
    fn after_a_reboot_the_wall_fills_and_never_goes_back() {
        let ahead = Stamp(READ + 60_000_000);
        assert_eq!(reckon_from(kept("a"), 1, "b", ahead), Reckoned { now: ahead, filled: true });
        assert_eq!(reckon_from(kept("a"), 1, "b", Stamp(7)), Reckoned { now: Stamp(READ), filled: true });
        assert_eq!(reckon_from(None, 1, "b", ahead), Reckoned { now: ahead, filled: false });
        assert!(reckon_from(kept(""), 1, "", ahead).filled, "a machine that does not tell its boot");
    }

    /// The spool's thread was busy for 400 ms after the reading: what is accepted after the next start is not dated back by
    /// them, or two of one key would seem further apart than they are.
    #[test]
    fn a_reading_that_is_kept_late_is_kept_for_its_moment() {
        let dir = std::env::temp_dir().join(format!("queen-clock-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&dir).unwrap();
        let before = since_boot_us();
        Keeper::new(&dir).read((Stamp(READ), Micros(1_000_000)), Micros(1_400_000));
        let reckoned = reckon(&dir).now.0 - READ;
        let took = since_boot_us() - before;
        fs::remove_dir_all(&dir).unwrap();
        assert!((400_000..=400_000 + took).contains(&reckoned), "{reckoned} after {took}");
    }

    /// The first answer came late: what is read a moment later is nearer, and a process that ends in between must not leave
    /// the worse one to the next.
    #[test]
    fn a_reading_that_says_more_is_kept_at_once() {
        let dir = std::env::temp_dir().join(format!("queen-clock-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&dir).unwrap();
        let kept = || fs::read_to_string(dir.join(NAME)).unwrap();
        let mut keeper = Keeper::new(&dir);
        let began = Instant::now();
        let mut read = |late: i64| {
            let shown = READ + began.elapsed().as_micros() as i64 - late;
            keeper.read((Stamp(shown), Micros(7)), Micros(7));
            kept()
        };
        let (late, better) = (read(432_000), read(0));
        assert_ne!(late, better);
        let same = read(0);
        // It says nothing else, so nothing is written; a machine that stood still here for milliseconds writes it again.
        assert!(same == better || KEEP_BEYOND_US < began.elapsed().as_micros() as u64);
        let reckoned = reckon(&dir).now.0 - READ;
        fs::remove_dir_all(&dir).unwrap();
        assert!((0..=began.elapsed().as_micros() as i64 + 1000).contains(&reckoned), "{reckoned}");
    }

    #[test]
    fn what_is_no_reading_is_none() {
        for text in ["", "x", "1790000000000000 5", "12 5 a", "1790000000000000 5 a b", "1790000000000000 x a"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("1790000000000000 5000000 a\n"), kept("a"));
    }
}
