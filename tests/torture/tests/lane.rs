//! The rig itself, small: one episode with one of each fault that is over soon. Every bound in it is generous, so that
//! its verdict is the broker's and not the machine's; longer runs are `queen-torture`'s.

use queen_torture::report::{Report, Verdict};
use queen_torture::world::World;
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

#[test]
fn one_of_each_fault_leaves_no_rule_broken() {
    let dir = std::env::temp_dir().join(format!("queen-torture-lane-{}", std::process::id()));
    let world = World::start(&dir, &binary(), 1, &[], false).expect("a database and a broker");
    let script = campaign::lane(20_261_129, PATIENCE);
    let history = world.dir().join("history.jsonl");
    let outcome = episode::run(&world, &script, "lane", Some(&history));
    let (missing, counts) = (outcome.missing.clone(), outcome.counts.clone());
    let mut report = Report { command: "the lane".into(), seed: script.seed, brokers: vec![1], ..Report::default() };
    report.take("the lane", outcome);
    report.missing = missing;
    if report.verdict() != Verdict::Green {
        let kept = std::env::temp_dir().join(format!("queen-torture-red-{}.jsonl", std::process::id()));
        let _ = std::fs::copy(&history, &kept);
        panic!("{}\nits history: {}", report.text(), kept.display());
    }
    assert!(counts.get("fault:kill-broker").is_some_and(|n| *n == 1), "{counts:?}");
    assert!(coverage::ALWAYS.iter().all(|name| counts.contains_key(*name)), "{counts:?}");
}
