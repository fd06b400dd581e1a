//! What stands around the broker: a pooler in transaction mode before PostgreSQL (F15), clocks that jump (F12). Each needs
//! a package (`.ci/setup --tests` installs both); without it a test says `NOT RUN` and why, and fails where `CI=true`.

use queen_torture::episode::{Outcome, Script};
use queen_torture::faults::Fault;
use queen_torture::report::{Report, Verdict};
use queen_torture::world::clocks::Clocks;
use queen_torture::world::pooler::Pooler;
use queen_torture::world::{Setup, World};
use queen_torture::{campaign, episode};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest anything may take; a quiet machine needs about half a minute for each test.
const PATIENCE: Duration = Duration::from_secs(120);
/// The goal of F13 for a pop that waits for what the other broker stores; behind a pooler too.
const WAKE_MAX: Duration = Duration::from_secs(1);

/// The broker beside this test's directory: built by the workspace's own tests.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let path = test.parent().and_then(Path::parent).expect("target/<profile>/deps").join("queen");
    assert!(path.exists(), "{} is missing: build the workspace first", path.display());
    path
}

fn dir(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("queen-torture-{name}-{}", std::process::id()))
}

fn not_run(why: &str) {
    eprintln!("NOT RUN: {why}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI needs it: {why}");
}

/// Runs one episode that must be green; what came of it, and the log of each broker.
fn green(name: &str, setup: &Setup, script: &Script) -> (Outcome, Vec<String>) {
    let world = World::start(&dir(name), setup).expect("a world");
    let outcome = episode::run(&world, script, name, None);
    let mut report =
        Report { command: name.into(), seed: script.seed, missing: outcome.missing.clone(), ..Report::default() };
    report.brokers = vec![setup.brokers];
    let judged =
        Outcome { violations: outcome.violations.clone(), broken: outcome.broken.clone(), ..Outcome::default() };
    report.take(name, judged);
    assert_eq!(report.verdict(), Verdict::Green, "{}\n{:?}", report.text(), outcome.counts);
    let log =
        |side: &queen_torture::world::Side| std::fs::read_to_string(side.broker.dir().join("log")).expect("a log");
    (outcome, world.sides.iter().map(log).collect())
}

/// Two brokers, four sessions of PostgreSQL for all their connections, and nothing goes wrong: no request fails, nothing
/// is spooled, no log line says ERROR. LISTEN hears nothing there; a poll wakes at what the other broker stored all the
/// same, because its broker reads every 250 ms while polls are parked.
#[test]
fn behind_a_pooler_in_transaction_mode_nothing_fails() {
    if !Pooler::is_there() {
        return not_run("there is no /usr/sbin/pgbouncer");
    }
    let calm = Script { faults: Vec::new(), ..campaign::lane(20_261_131, PATIENCE) };
    let setup = Setup { pooler: true, ..Setup::plain(&binary(), 2) };
    let (outcome, logs) = green("pooled", &setup, &calm);
    let count = |name: &str| outcome.counts.get(name).copied().unwrap_or(0);
    assert_eq!(count("items failed") + count("items buffered"), 0, "{:?}", outcome.counts);
    assert_eq!(count("outcomes unknown"), count("clients that left a poll"), "{:?}", outcome.counts);
    for log in &logs {
        assert!(log.contains("LISTEN hears nothing here"), "{log}");
        assert!(!log.contains(" ERROR "), "{log}");
    }
    let mut wakes = outcome.waits.across.clone();
    wakes.sort_unstable();
    let median = wakes.get(wakes.len() / 2).expect("polls were woken from the other broker");
    assert!(*median <= WAKE_MAX, "{wakes:?}");
}

/// The time of day of a broker jumps by five minutes either way and back, to and fro, and stands: no rule notices.
#[test]
fn a_brokers_clock_decides_nothing() {
    let here = dir("clocks-asked");
    std::fs::create_dir_all(&here).expect("a directory");
    let is_there = Clocks::under(&here).expect("files").is_some();
    let _ = std::fs::remove_dir_all(&here);
    if !is_there {
        return not_run("there is no libfaketimeMT.so.1 under /usr/lib/*/faketime");
    }
    let faults = vec![Fault::JumpBrokerClocks, Fault::StrobeBrokerClocks, Fault::StopBrokerClocks];
    let script = Script { faults, ..campaign::lane(20_261_132, PATIENCE) };
    let (outcome, _) = green("clocks", &Setup { clocks: true, ..Setup::plain(&binary(), 1) }, &script);
    for fault in ["fault:jump-broker-clocks", "fault:stop-broker-clocks"] {
        assert!(outcome.counts.get(fault).is_some_and(|n| 0 < *n), "{fault}: {:?}", outcome.counts);
    }
}
