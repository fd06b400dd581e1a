//! A run: episodes one after another in one world, until the time or the count is over.

use crate::args::Options;
use crate::coverage;
use crate::episode::{self, Script};
use crate::faults::{Fault, of_families};
use crate::history::{Finals, History, Plan};
use crate::report::Report;
use crate::world::World;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs of this process so far: each has a directory of its own.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// Histories of red episodes that are kept.
const KEPT_MAX: usize = 20;

/// Runs all of it. `say`: gets a line per episode.
pub fn run(options: &Options, binary: &Path, command: String, mut say: impl FnMut(&str)) -> io::Result<Report> {
    let seed = options.seed.unwrap_or_else(from_the_clock);
    let own = std::env::temp_dir().join(format!("queen-torture-{}-{}", std::process::id(), RUNS.fetch_add(1, Relaxed)));
    let dir = options.dir.clone().unwrap_or(own);
    let mut world = World::start(&dir, binary, options.brokers.max(1), &options.env, options.keep)?;
    say(&format!("seed {seed}, everything lives under {}", dir.display()));
    let mut report = Report {
        command,
        commit: commit(),
        seed,
        brokers: options.brokers.max(1),
        families: options.families.clone(),
        not_judged: not_judged(),
        ..Report::default()
    };
    let began = Instant::now();
    let mut kept = 0;
    for n in 0u64.. {
        let over = options.episodes.map_or(options.time <= began.elapsed(), |most| most <= n);
        if over {
            break;
        }
        let name = format!("episode {n}");
        let script = script(options, seed.wrapping_add(n));
        let history = world.dir().join(format!("history-{n}.jsonl"));
        let outcome = episode::run(&world, &script, &format!("t{seed:x}e{n}"), Some(&history));
        say(&line(&name, &outcome));
        let red = !outcome.violations.is_empty() || outcome.broken.is_some();
        let broken = outcome.broken.is_some();
        if red && kept < KEPT_MAX {
            kept += 1;
            keep(&history, options.record.as_deref(), &mut world, n)?;
        } else if !options.keep {
            let _ = std::fs::remove_file(&history);
        }
        report.take(&name, outcome);
        if broken {
            world.keep();
            break;
        }
    }
    report.elapsed = began.elapsed();
    let empty = History {
        plan: Plan { brokers: report.brokers, ..plan_of(options) },
        ops: Vec::new(),
        finals: finals(&report),
    };
    report.missing = coverage::missing(&report.counts, &empty, &of_families(&options.families));
    Ok(report)
}

fn plan_of(options: &Options) -> Plan {
    crate::work::plan(0, options.brokers, "t", 0)
}

/// Enough of the end for the question whether the broker has a spool.
fn finals(report: &Report) -> Finals {
    let spools = report.counts.contains_key("items buffered");
    Finals { spool: spools.then(Default::default), ..Finals::default() }
}

fn script(options: &Options, seed: u64) -> Script {
    Script {
        seed,
        load: options.load,
        load_max: options.load,
        faults: of_families(&options.families),
        once: false,
        mild: false,
        producers: options.producers,
        pause: options.pause,
        recovery: options.recovery,
        drain: options.drain,
    }
}

fn line(name: &str, outcome: &episode::Outcome) -> String {
    let count = |name: &str| outcome.counts.get(name).copied().unwrap_or(0);
    let faults: u64 = outcome.counts.iter().filter(|(name, _)| name.starts_with("fault:")).map(|(_, n)| n).sum();
    let mut text = format!(
        "{name}: {} queued, {} delivered, {} unknown, {faults} faults, {} violations",
        count("pushes queued"),
        count("deliveries"),
        count("outcomes unknown"),
        outcome.violations.len()
    );
    for violation in outcome.violations.iter().take(5) {
        text += &format!("\n    {violation}");
    }
    if let Some(why) = &outcome.broken {
        text += &format!("\n    the rig could not finish: {why}");
    }
    text
}

/// Puts a red history where it stays.
fn keep(history: &Path, record: Option<&Path>, world: &mut World, n: u64) -> io::Result<()> {
    match record {
        Some(dir) => {
            std::fs::create_dir_all(dir)?;
            std::fs::copy(history, dir.join(format!("red-{n}.jsonl")))?;
        }
        None => world.keep(),
    }
    Ok(())
}

fn not_judged() -> Vec<String> {
    [
        "C14: only plaintext on disk; no role and no token is tried.",
        "C12: only that nothing comes early; lateness needs an idle broker.",
        "Crash windows inside the spool: they need fail points in it.",
        "Clocks and disks (F5 to F8, F12), tables locked by others (F14), a pooler (F15), a rolling restart (F17).",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The broker to run: as given, or this workspace's, built now. `features`: of the build.
pub fn binary(options: &Options, features: &[&str], target: Option<&str>) -> io::Result<PathBuf> {
    if let Some(path) = &options.broker {
        return Ok(path.clone());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let target = match (target, std::env::current_exe()?.parent().and_then(Path::parent)) {
        (Some(name), _) => root.join("target").join(name),
        (None, Some(own)) => own.to_owned(),
        (None, None) => root.join("target"),
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&root).args(["build", "--quiet", "-p", "queen", "--bin", "queen", "--target-dir"]).arg(&target);
    if profile == "release" {
        cargo.arg("--release");
    }
    if !features.is_empty() {
        cargo.arg("--features").arg(features.join(","));
    }
    if !cargo.status()?.success() {
        return Err(io::Error::other("the broker does not build"));
    }
    Ok(target.join(profile).join("queen"))
}

fn from_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.subsec_nanos() as u64)
}

fn commit() -> String {
    let out =
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let text =
        out.ok().filter(|out| out.status.success()).map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    text.unwrap_or_else(|| "unknown".into())
}

/// Faults of a small lane: of each kind the ones that are over soon.
pub const LANE: [Fault; 11] = [
    Fault::KillBroker,
    Fault::KillBrokerAtCommit,
    Fault::KillBrokerAtAnswer,
    Fault::TermThenKillBroker,
    Fault::PauseBroker,
    Fault::KillPostmaster,
    Fault::TerminateBackend,
    Fault::ResetClients,
    Fault::ResetDatabase,
    Fault::BlackHoleDatabase,
    Fault::CutCommit,
];

/// A script for a small lane: each of its faults once, and everything that must be met. `patience` bounds whatever is
/// waited for: its verdict does not depend on how fast the machine is.
pub fn lane(seed: u64, patience: Duration) -> Script {
    Script {
        seed,
        load: Duration::from_secs(5),
        load_max: patience,
        faults: LANE.to_vec(),
        once: true,
        mild: true,
        producers: 3,
        pause: Duration::from_millis(25),
        recovery: patience,
        drain: patience,
    }
}
