//! Processes and files that an earlier run left in our directories, judged while we hold the directory's lock.
//!
//! Every process of a PostgreSQL server works in its data directory, so /proc/<pid>/cwd tells them from a stranger
//! who was given an old number: a pid file alone cannot.

use std::fs;
use std::path::Path;

/// Processes that work in the data directory; the postmaster among them may be gone already.
pub fn processes_in(data: &Path) -> Vec<i32> {
    let Ok(data) = data.canonicalize() else { return Vec::new() };
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data))
        .filter(|pid| !is_zombie(*pid))
        .collect()
}

/// What the children of a server call themselves: `postgres: queen: checkpointer performing shutdown checkpoint`.
pub fn titles_in(data: &Path) -> String {
    let title = |pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok();
    let titles = processes_in(data).into_iter().filter_map(title).filter(|title| title.starts_with("postgres: "));
    titles.map(|title| title.trim_end_matches(['\0', ' ']).to_owned()).collect::<Vec<_>>().join(", ")
}

/// A dead child that nobody has waited for yet holds nothing.
fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

/// The number in a pid or lock file of PostgreSQL: its first line.
pub fn pid_in(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
}

/// Removes what would keep a server from starting: PostgreSQL takes any live process with the old number for the old
/// server. Only call this when nobody works in the data directory.
pub fn clear_stale(data: &Path, socket_dir: &Path, port: u16) {
    let socket = socket_dir.join(format!(".s.PGSQL.{port}"));
    let lock = socket_dir.join(format!(".s.PGSQL.{port}.lock"));
    for file in [data.join("postmaster.pid"), lock, socket] {
        let _ = fs::remove_file(file);
    }
}

/// Whether the server of this pid file takes connections: the eighth line of the file says so.
pub fn is_ready(data: &Path, pid: i32) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = text.lines();
    lines.next().and_then(|l| l.trim().parse().ok()) == Some(pid) && lines.nth(6).is_some_and(|l| l.trim() == "ready")
}
