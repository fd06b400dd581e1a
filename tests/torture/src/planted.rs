//! Does the checker wake? One build of the broker with a bug for each name; each must be found, without any fault and
//! with the few it needs.

use crate::args::Options;
use crate::campaign;
use crate::faults::Family;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The bugs a broker built with the feature `planted` knows, with the rules that may find them and the faults they need.
pub const BUGS: [(&str, &[&str], &[Family]); 11] = [
    ("answer-before-commit", &["C1"], &[Family::F2]),
    ("ack-without-lease", &["C8"], &[]),
    ("cursor-past-nack", &["C6", "C9"], &[]),
    ("lease-on-wall-clock", &["C7", "C8"], &[]),
    ("answer-dead-poll", &["C13"], &[]),
    ("transaction-without-ack", &["C10"], &[]),
    ("dead-letter-without-payload", &["C9"], &[]),
    ("numbers-as-doubles", &["C2"], &[]),
    ("drain-without-dedup", &["C3"], &[Family::F10]),
    ("drain-newest-first", &["C5"], &[Family::F2]),
    ("forget-last-record", &["C1", "C11"], &[Family::F2]),
];

/// Two more are syncs left out. The death of a process loses nothing that was written: they are found by the power cuts
/// that the tests of the spool simulate.
const BY_IMAGES: [&str; 2] = ["answer-before-fsync", "skip-directory-fsync"];
const IMAGES: &str = "spool::tests::crash::the_images_find_syncs_left_out";

/// A bug must be found within this much load.
const LIMIT: Duration = Duration::from_secs(60);
const EPISODE: Duration = Duration::from_secs(12);
/// A bug that keeps backlogs from draining has shown itself by then.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs each bug (or the one that is asked for); true when all were found.
pub fn run(options: &Options, binary: &Path, mut say: impl FnMut(&str)) -> io::Result<bool> {
    let mut all = true;
    let named = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    // Red histories are what is wanted here, and nobody keeps them.
    let scratch = std::env::temp_dir().join(format!("queen-planted-{}", std::process::id()));
    for (bug, rules, families) in BUGS.iter().filter(|(bug, ..)| named(bug)) {
        let mut options = options.clone();
        options.env.push(("QUEEN_PLANTED".into(), (*bug).into()));
        options.families = families.to_vec();
        (options.load, options.episodes, options.dir) = (EPISODE, Some(1), None);
        options.record = Some(scratch.clone());
        options.drain = DRAIN;
        let began = Instant::now();
        let mut found: Option<String> = None;
        let mut others: Vec<String> = Vec::new();
        for n in 0u64.. {
            if LIMIT <= began.elapsed() || found.is_some() {
                break;
            }
            options.seed = Some(options.seed.unwrap_or(1).wrapping_add(n));
            let report = campaign::run(&options, binary, String::new(), |_| {})?;
            let hit = report.violations.iter().find(|(_, violation)| rules.contains(&violation.rule));
            found = hit.map(|(_, violation)| violation.to_string());
            others.extend(report.violations.iter().map(|(_, violation)| violation.rule.to_owned()));
            others.extend(report.broken.iter().map(|(_, why)| format!("broken: {why}")));
        }
        others.sort();
        others.dedup();
        match found {
            Some(text) => say(&format!("{bug}: found after {:.0} s by {text}", began.elapsed().as_secs_f64())),
            None => {
                all = false;
                say(&format!("{bug}: NOT FOUND; what showed: {others:?}"));
            }
        }
    }
    let _ = std::fs::remove_dir_all(&scratch);
    if options.only.as_deref().is_none_or(|only| BY_IMAGES.contains(&only)) {
        all &= images(say)?;
    }
    Ok(all)
}

/// Runs the simulated power cuts with each of the bugs they are for.
fn images(mut say: impl FnMut(&str)) -> io::Result<bool> {
    let mut test = campaign::cargo("test", &["planted"]);
    let out = test.args(["--lib", "--", "--ignored", "--exact", "--nocapture", IMAGES]).output()?;
    let told = String::from_utf8_lossy(&out.stderr);
    let mut found = 0;
    for line in told.lines().filter(|line| BY_IMAGES.iter().any(|bug| line.starts_with(&format!("{bug}: found")))) {
        found += 1;
        say(line);
    }
    if found < BY_IMAGES.len() {
        say(&format!("{BY_IMAGES:?}: NOT ALL FOUND\n{told}"));
    }
    Ok(out.status.success() && found == BY_IMAGES.len())
}
