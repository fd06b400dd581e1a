//! The rig dies by `kill -9`: nothing it started outlives it, not even what stands still at that moment.

use queen_torture::world::process::{children, signal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(got) = ask() {
            return got;
        }
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Running, or stopped; not a zombie that nobody has waited for.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn broker() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().and_then(Path::parent).expect("target/<profile>/deps").join("queen")
}

#[test]
fn nothing_outlives_a_rig_that_is_killed() {
    let dir = std::env::temp_dir().join(format!("queen-torture-orphans-{}", std::process::id()));
    let mut rig = Command::new(env!("CARGO_BIN_EXE_queen-torture"));
    rig.args(["--faults", "none", "--episodes", "1", "--dir"]).arg(&dir).arg("--broker").arg(broker());
    let mut rig = rig.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the rig starts");
    let history = dir.join("with-1/history-0.jsonl");
    wait_for("an episode begins", || history.exists().then_some(()));
    let pid_file = std::fs::read_to_string(dir.join("with-1/pg/data/postmaster.pid")).expect("a postmaster");
    let postmaster: u32 = pid_file.lines().next().and_then(|line| line.parse().ok()).expect("its number");
    let frozen: Vec<u32> = children(postmaster).into_iter().chain([postmaster]).collect();
    let all: Vec<u32> = children(rig.id()).into_iter().chain(frozen.iter().copied()).collect();
    assert!(frozen.len() > 5 && children(rig.id()).len() >= 3, "not valid: {frozen:?} of {all:?}");
    frozen.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
    rig.kill().expect("killed");
    rig.wait().expect("waited for");
    wait_for("the end of all it started", || all.iter().all(|pid| !lives(*pid)).then_some(()));
    let _ = std::fs::remove_dir_all(&dir);
}
