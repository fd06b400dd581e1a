//! What a result says of where it was measured: hardware, kernel, commit, date.

use crate::result::Machine;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// `name`: how results call this machine; default: made of cores and processor.
pub fn describe(name: Option<&str>) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let memory_kb: u64 = memory.split(' ').next().and_then(|kb| kb.parse().ok()).unwrap_or(0);
    Machine {
        name: name.map_or_else(|| format!("{cores}x-{}", slug(&cpu)), slug),
        cpu,
        cores,
        memory_mb: memory_kb / 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    }
}

/// Letters and digits of a name with single hyphens between, fit for a directory.
fn slug(text: &str) -> String {
    let cut = text.split('@').next().unwrap_or_default().replace("(R)", "").replace("(TM)", "");
    let words: Vec<String> = cut
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty() && !["CPU", "Processor"].contains(word))
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

/// The commit of the checkout the client runs in; `unknown` outside of one.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=7", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if changed { format!("{commit}-dirty") } else { commit }
}

/// Now, UTC, as `2026-11-29T19:17:56Z`.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Seconds since 1970 as a date, by the days-to-civil rule of the proleptic Gregorian calendar.
fn date(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468; // Days since 0000-03-01.
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(date(1_796_083_199), "2026-11-30T23:59:59Z");
    }

    #[test]
    fn a_machine_name_is_fit_for_a_directory() {
        assert_eq!(slug("Intel(R) Xeon(R) Platinum 8488C @ 2.4GHz"), "intel-xeon-platinum-8488c");
        assert_eq!(slug("AMD EPYC 9R14/2"), "amd-epyc-9r14-2");
        assert!(describe(None).cores > 0);
    }
}
