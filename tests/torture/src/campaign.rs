//! A run: the episodes of its schedule one after another, each half in a world of its own, and some more while a counter
//! that must rise has not.

use crate::args::Options;
use crate::coverage::{self, Counts};
use crate::episode::{self, Script};
use crate::faults::{Family, Fault, of_families};
use crate::nemesis::Pace;
use crate::report::Report;
use crate::schedule::{self, Turn};
use crate::world::{Setup, World};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs of this process so far: each has a directory of its own.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// Episodes beyond its schedule that a half of a run gets for what it has not met.
const MORE_MAX: usize = 2;
/// Histories of red episodes that are kept.
const KEPT_MAX: usize = 20;

/// Runs all of it. `say`: gets a line per episode.
pub fn run(options: &Options, binary: &Path, command: String, mut say: impl FnMut(&str)) -> io::Result<Report> {
    let seed = options.seed.unwrap_or_else(from_the_clock);
    let own = std::env::temp_dir().join(format!("queen-torture-{}-{}", std::process::id(), RUNS.fetch_add(1, Relaxed)));
    let dir = options.dir.clone().unwrap_or(own);
    let phases = options.phases();
    let mut report = Report {
        command,
        commit: format!("{} ({PROFILE} build)", commit()),
        seed,
        brokers: phases.iter().map(|(brokers, _)| *brokers).collect(),
        families: options.families.clone(),
        not_judged: not_judged(&options.families),
        ..Report::default()
    };
    let began = Instant::now();
    for (n, (brokers, time)) in phases.iter().copied().enumerate() {
        let dir = dir.join(format!("with-{brokers}"));
        let mut world = World::start(&dir, &setup(options, binary, brokers))?;
        say(&format!("seed {seed}, {brokers} broker(s), everything lives under {}", dir.display()));
        let is_last = n + 1 == phases.len();
        if phase(options, &mut world, time, is_last, &mut report, &mut say)? {
            break;
        }
    }
    let _ = std::fs::remove_dir(&dir);
    report.elapsed = began.elapsed();
    let brokers = phases.iter().map(|(brokers, _)| *brokers).max().unwrap_or(1);
    report.missing = missing(options, brokers, true, &report.counts);
    Ok(report)
}

/// What was to be met by now and was not. `is_last`: no other half comes after this one.
fn missing(options: &Options, brokers: u8, is_last: bool, counts: &Counts) -> Vec<String> {
    let faults = of_families(&options.families, brokers);
    let mut missing = coverage::missing(counts, &crate::work::plan(0, brokers, "t", 0), &faults);
    if is_last {
        missing.extend(coverage::windows_below(options.window_goal, counts, &faults));
    }
    missing
}

fn setup(options: &Options, binary: &Path, brokers: u8) -> Setup {
    Setup {
        env: options.env.clone(),
        pooler: options.pooler,
        clocks: options.families.contains(&Family::F12),
        keep: options.keep,
        ..Setup::plain(binary, brokers)
    }
}

/// The scheduled episodes of one world, and a few more if something is missing. True: the rig could not go on.
fn phase(
    options: &Options,
    world: &mut World,
    time: Duration,
    is_last: bool,
    report: &mut Report,
    say: &mut impl FnMut(&str),
) -> io::Result<bool> {
    let brokers = world.sides.len() as u8;
    let scheduled = schedule::turns(brokers, options.pace, options.load, time, options.episodes);
    for turn in &scheduled {
        if episode(options, world, turn, report, say)? {
            return Ok(true);
        }
    }
    // A number of episodes is what runs, whatever they meet.
    let more = if options.episodes.is_none() { MORE_MAX } else { 0 };
    let faults = of_families(&options.families, brokers);
    for _ in 0..more {
        let missing = missing(options, brokers, is_last, &report.counts);
        if missing.is_empty() {
            break;
        }
        say(&format!("one more episode for {}", missing.join(", ")));
        let turn = schedule::more(brokers, options.pace, options.load, &missing, &faults);
        if episode(options, world, &turn, report, say)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One episode, told and kept. True: the rig could not go on.
fn episode(
    options: &Options,
    world: &mut World,
    turn: &Turn,
    report: &mut Report,
    say: &mut impl FnMut(&str),
) -> io::Result<bool> {
    let n = report.episodes;
    let name = format!("episode {n}");
    let script = script(options, turn, report.seed.wrapping_add(n), &report.counts);
    let history = world.dir().join(format!("history-{n}.jsonl"));
    let outcome = episode::run(world, &script, &format!("t{:x}e{n}", report.seed), Some(&history));
    say(&line(&name, turn, &outcome));
    let broken = outcome.broken.is_some();
    if (broken || !outcome.violations.is_empty()) && report.kept < KEPT_MAX {
        report.kept += 1;
        keep(&history, options.record.as_deref(), world, n)?;
    } else if !options.keep {
        let _ = std::fs::remove_file(&history);
    }
    report.take(&name, outcome);
    if broken {
        world.keep();
    }
    Ok(broken)
}

/// Where a campaign is recorded: `<date>-<machine>-<commit>` beside the others.
pub fn place(options: &Options) -> io::Result<PathBuf> {
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = options.machine.clone().unwrap_or_else(|| format!("{cores}-core"));
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(format!("{date}-{machine}-{}", commit())))
}

fn script(options: &Options, turn: &Turn, seed: u64, so_far: &Counts) -> Script {
    Script {
        seed,
        load: turn.load,
        load_max: turn.load,
        faults: of_families(&options.families, turn.brokers),
        once: false,
        pace: turn.pace,
        so_far: so_far.clone(),
        producers: options.producers,
        pause: options.pause,
        recovery: options.recovery,
        drain: options.drain,
    }
}

fn line(name: &str, turn: &Turn, outcome: &episode::Outcome) -> String {
    let count = |name: &str| outcome.counts.get(name).copied().unwrap_or(0);
    let faults: u64 = outcome.counts.iter().filter(|(name, _)| name.starts_with("fault:")).map(|(_, n)| n).sum();
    let pace = match turn.pace {
        Pace::Mild => "mild",
        Pace::Plain => "plain",
        Pace::Storm => "storm",
    };
    let mut text = format!(
        "{name}, {pace}, {}: {} queued, {} delivered, {} unknown, {faults} faults, {} violations",
        outcome.spent.text(),
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
            for (broker, side) in world.sides.iter().enumerate() {
                std::fs::copy(side.broker.dir().join("log"), dir.join(format!("red-{n}-broker{broker}.log")))?;
            }
        }
        None => world.keep(),
    }
    Ok(())
}

fn not_judged(families: &[Family]) -> Vec<String> {
    let mut all: Vec<String> = [
        "C14: only plaintext on disk; no role and no token is tried.",
        "C12: only that nothing comes early; lateness needs an idle broker.",
        "Disks: only the spool's cap (F5). Power cuts, failing syncs and damage (F6 to F8) are tests of `src/spool`.",
        "F11: the proxies cut, not the kernel: who connects meanwhile is accepted and hears nothing.",
        "Clocks (F12), a pooler (F15): runs of their own.",
    ]
    .map(str::to_owned)
    .to_vec();
    if families.contains(&Family::F12) {
        all.push(format!("{}: they go by PostgreSQL's clock, which jumped.", episode::CLOCKED.join(" ")));
    }
    let left: Vec<&str> = Family::ALL.iter().filter(|f| !families.contains(f)).map(|f| f.name()).collect();
    if !left.is_empty() {
        all.push(format!("{}: left out of this run.", left.join(" ")));
    }
    all
}

/// Directory of the rig's own builds of the broker: never where builds that serve lie.
pub const TARGET: &str = "rig";

/// The broker to run: as given, or this workspace's, built now. `features`: of the build.
pub fn binary(options: &Options, features: &[&str]) -> io::Result<PathBuf> {
    if let Some(path) = &options.broker {
        return Ok(path.clone());
    }
    let mut build = cargo("build", features);
    if !build.args(["--bin", "queen"]).status()?.success() {
        return Err(io::Error::other("the broker does not build"));
    }
    Ok(root().join("target").join(TARGET).join(PROFILE).join("queen"))
}

const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Cargo on the broker's package, in this program's own profile.
pub fn cargo(what: &str, features: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args([what, "--quiet", "-p", "queen", "--target-dir"]);
    cargo.arg(Path::new("target").join(TARGET));
    cargo.args((PROFILE == "release").then_some("--release"));
    cargo.arg("--features").arg(features.join(","));
    cargo
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
pub const LANE: [Fault; 13] = [
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
    Fault::LongOutage,
    Fault::KillBufferingBroker,
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
        pace: Pace::Mild,
        so_far: Counts::new(),
        producers: 3,
        pause: Duration::from_millis(25),
        recovery: patience,
        drain: patience,
    }
}
