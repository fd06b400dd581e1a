//! The rig itself, small: one episode with one of each fault that is over soon. Every bound in it is generous, so that
//! its verdict is the broker's and not the machine's; longer runs are `queen-torture`'s.

use queen_torture::episode::Script;
use queen_torture::faults::{Fault, Refusal};
use queen_torture::report::{Report, Verdict};
use queen_torture::world::{Setup, World};
use queen_torture::{campaign, coverage, episode};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest anything may take; a quiet machine needs about a minute for the whole test.
const PATIENCE: Duration = Duration::from_secs(120);

/// The broker beside this test's directory: built by the workspace's own tests.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let path = test.parent().and_then(Path::parent).expect("target/<profile>/deps").join("queen");
    assert!(path.exists(), "{} is missing: build the workspace first", path.display());
    path
}

/// Runs one episode; panics with its report when it is not green.
fn judged(name: &str, brokers: u8, script: Script) {
    let dir = std::env::temp_dir().join(format!("queen-torture-{name}-{}", std::process::id()));
    let world = World::start(&dir, &Setup::plain(&binary(), brokers)).expect("a database and brokers");
    let history = world.dir().join("history.jsonl");
    let outcome = episode::run(&world, &script, name, Some(&history));
    let (missing, counts) = (outcome.missing.clone(), outcome.counts.clone());
    let command = format!("the lane {name}");
    let mut report = Report { command, seed: script.seed, brokers: vec![brokers], ..Report::default() };
    report.take(name, outcome);
    report.missing = missing;
    if report.verdict() != Verdict::Green {
        let kept = std::env::temp_dir().join(format!("queen-torture-red-{name}-{}.jsonl", std::process::id()));
        let _ = std::fs::copy(&history, &kept);
        panic!("{}\nits history: {}", report.text(), kept.display());
    }
    assert!(counts.get("fault:kill-broker").is_some_and(|n| *n == 1), "{counts:?}");
    assert!(coverage::ALWAYS.iter().all(|name| counts.contains_key(*name)), "{counts:?}");
}

#[test]
fn one_of_each_fault_leaves_no_rule_broken() {
    judged("one", 1, campaign::lane(20_261_129, PATIENCE));
}

/// Two brokers on one database, with what is peculiar to them: one goes, stands still or restarts while the other works.
#[test]
fn two_brokers_on_one_database_leave_no_rule_broken() {
    const FAULTS: [Fault; 5] = [
        Fault::KillBroker,
        Fault::PauseBroker,
        Fault::ResetDatabase,
        Fault::Refuse(Refusal::Serialization),
        Fault::RollingRestart,
    ];
    judged("two", 2, Script { faults: FAULTS.to_vec(), ..campaign::lane(20_261_130, PATIENCE) });
}
