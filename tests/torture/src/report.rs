//! What a run says at its end: what was done, how often, what it proves, what it does not.

use crate::check::Violation;
use crate::coverage::{self, Counts};
use crate::episode::Spent;
use crate::faults::Family;
use crate::goals;
use crate::history::{Answer, Call, End, History, Micros};
use crate::outages::Outages;
use crate::waits::Waits;
use std::fmt::Write;
use std::time::Duration;

/// All episodes of a run together.
#[derive(Debug, Default)]
pub struct Report {
    pub command: String,
    pub commit: String,
    pub seed: u64,
    /// Of its phases, one after another.
    pub brokers: Vec<u8>,
    pub families: Vec<Family>,
    pub elapsed: Duration,
    pub episodes: u64,
    pub violations: Vec<(String, Violation)>,
    pub counts: Counts,
    pub missing: Vec<String>,
    pub restarts: Vec<Duration>,
    pub restarts_beside: Vec<Duration>,
    pub terms: Vec<Duration>,
    pub waits: Waits,
    pub strikes: Vec<Strike>,
    pub outages: Outages,
    pub probes: Vec<Duration>,
    pub spent: Spent,
    pub broken: Vec<(String, String)>,
    /// Histories of red episodes that were kept.
    pub kept: usize,
    /// What this run cannot say, in words.
    pub not_judged: Vec<String>,
}

/// The answer in one word, and the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Green,
    Red,
    /// Something that was asked for never happened.
    NotValid,
    /// The rig failed.
    Broken,
}

impl Verdict {
    pub fn exit_status(self) -> u8 {
        match self {
            Verdict::Green => 0,
            Verdict::Red => 1,
            Verdict::NotValid => 3,
            Verdict::Broken => 2,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Verdict::Green => "green",
            Verdict::Red => "RED",
            Verdict::NotValid => "NOT VALID",
            Verdict::Broken => "BROKEN",
        }
    }
}

impl Report {
    pub fn verdict(&self) -> Verdict {
        match () {
            () if !self.violations.is_empty() => Verdict::Red,
            () if !self.broken.is_empty() || self.episodes == 0 => Verdict::Broken,
            () if !self.missing.is_empty() => Verdict::NotValid,
            () => Verdict::Green,
        }
    }

    /// As Markdown.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let families: Vec<&str> = self.families.iter().map(|family| family.name()).collect();
        let brokers: Vec<String> = self.brokers.iter().map(u8::to_string).collect();
        let _ = writeln!(out, "# Torture run: {}\n", self.verdict().word());
        let _ = writeln!(
            out,
            "`{}`, commit {}, seed {}, {} broker(s).",
            self.command,
            self.commit,
            self.seed,
            brokers.join(" and then ")
        );
        let _ = writeln!(
            out,
            "{} episodes in {:.1} minutes ({}), faults {}. {} violations.\n",
            self.episodes,
            self.elapsed.as_secs_f64() / 60.0,
            self.spent.text(),
            if families.is_empty() { "none".into() } else { families.join(" ") },
            self.violations.len()
        );
        if !self.violations.is_empty() {
            let _ = writeln!(out, "## Violations\n");
            for (episode, violation) in &self.violations {
                let _ = writeln!(out, "* {episode}: {violation}");
            }
            out.push('\n');
        }
        for (episode, why) in &self.broken {
            let _ = writeln!(out, "The rig could not finish {episode}: {why}\n");
        }
        if !self.missing.is_empty() {
            let _ = writeln!(out, "## Never happened, or too rarely: this run is not valid\n");
            let _ = writeln!(out, "{}\n", bullets(&self.missing));
        }
        out += &goals::text(&self.counts, &self.families, self.violations.is_empty());
        self.faults(&mut out);
        let _ = write!(out, "\n{}", self.outages.text());
        let _ = writeln!(out, "\n## What was met\n\n| | n |\n|---|--:|");
        for (name, n) in self.counts.iter().filter(|(name, _)| !name.starts_with("fault:")) {
            let _ = writeln!(out, "| {name} | {n} |");
        }
        self.times(&mut out);
        if !self.not_judged.is_empty() {
            let _ = writeln!(out, "\n## Not judged\n\n{}", bullets(&self.not_judged));
        }
        out
    }

    fn faults(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "## Faults\n\nWith no failure in n trials, the rate of failures is at most 3/n (95 %).\n\n\
             | fault | n | bound 3/n | strikes amid `queued` pushes | lasted, median ms | longest | median without an accepted \
             push, ms | longest |\n|---|--:|--:|--:|--:|--:|--:|--:|"
        );
        let ms = |mut times: Vec<Duration>| {
            times.sort_unstable();
            let ms = |time: Option<&Duration>| time.map_or("".into(), |time| time.as_millis().to_string());
            format!("{} | {}", ms(times.get(times.len() / 2)), ms(times.last()))
        };
        for (name, n) in self.counts.iter().filter_map(|(name, n)| Some((name.strip_prefix("fault:")?, *n))) {
            let strikes = || self.strikes.iter().filter(|strike| strike.fault == name);
            let amid = strikes().filter(|strike| strike.amid_queued).count();
            let all = strikes().count();
            let lasted = ms(strikes().map(|strike| strike.lasted).collect());
            let silent = ms(strikes().filter_map(|strike| strike.silence).collect());
            let bound = if self.violations.is_empty() { format!("{:.2e}", 3.0 / n as f64) } else { "-".into() };
            let _ = writeln!(out, "| {name} | {n} | {bound} | {amid} of {all} | {lasted} | {silent} |");
        }
    }

    fn times(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n## Times\n\nGoals are those of reliability 6; faults of other kinds that struck meanwhile are in the figures, unless said.\n\n\
             | | n | p50 ms | p99 ms | longest ms | goal |\n|---|--:|--:|--:|--:|---|"
        );
        for (name, times, goal) in [
            ("F1: start of a broker to its first 200, nothing else wrong", &self.restarts, Some((0.99, 1500))),
            ("F1: the same to its first answer, other faults meanwhile", &self.restarts_beside, None),
            ("F1: kill of a broker to a push it accepts, nothing else wrong", &self.waits.killed, Some((1.0, 3000))),
            (
                "F13: a push on one broker to the answer of a pop that waits on the other, nothing else wrong",
                &self.waits.across,
                Some((0.99, 1000)),
            ),
            ("F13: the same, other faults meanwhile", &self.waits.across_beside, None),
            ("F16: SIGTERM to the end of the process", &self.terms, Some((1.0, 5000))),
            (
                "F17: a request during a rolling restart, nothing else wrong with its broker",
                &self.waits.rolling,
                Some((1.0, 3000)),
            ),
            ("F17: the same, other faults meanwhile", &self.waits.rolling_beside, None),
            ("probes after the heal", &self.probes, None),
        ] {
            let mut times = times.clone();
            times.sort_unstable();
            let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().max(1) - 1));
            let ms = |time: Option<&Duration>| time.map_or("-".into(), |time| time.as_millis().to_string());
            let (n, half, high, last) = (times.len(), ms(at(0.5)), ms(at(0.99)), ms(times.last()));
            let goal = match goal {
                Some((share, limit)) => {
                    let what = if share < 1.0 { "p99" } else { "longest" };
                    let word = match at(share) {
                        None => "not measured",
                        Some(time) if time.as_millis() <= limit => "met",
                        Some(_) => "MISSED",
                    };
                    format!("{what} {limit}: {word}")
                }
                None => String::new(),
            };
            let _ = writeln!(out, "| {name} | {n} | {half} | {high} | {last} | {goal} |");
        }
    }

    /// Takes in the outcome of an episode.
    pub fn take(&mut self, episode: &str, outcome: crate::episode::Outcome) {
        self.episodes += 1;
        self.violations.extend(outcome.violations.into_iter().map(|violation| (episode.to_owned(), violation)));
        coverage::add(&mut self.counts, outcome.counts);
        self.restarts.extend(outcome.restarts);
        self.restarts_beside.extend(outcome.restarts_beside);
        self.terms.extend(outcome.terms);
        self.waits.add(outcome.waits);
        self.strikes.extend(outcome.strikes);
        self.outages.add(outcome.outages);
        self.probes.extend(outcome.probes);
        self.spent.add(outcome.spent);
        self.broken.extend(outcome.broken.map(|why| (episode.to_owned(), why)));
    }
}

fn bullets(lines: &[String]) -> String {
    lines.iter().map(|line| format!("* {line}")).collect::<Vec<_>>().join("\n")
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Strike {
    pub fault: String,
    /// From its first moment until it was undone.
    pub lasted: Duration,
    /// From its first moment until a push that was asked for afterwards was accepted.
    pub silence: Option<Duration>,
    /// A push was answered `queued` shortly before: the broker was not spooling only.
    pub amid_queued: bool,
}

/// How shortly.
const SHORTLY: Micros = 500_000;

pub fn strikes(history: &History) -> Vec<Strike> {
    let accepted = history.ops.iter().filter_map(|op| match op.answer() {
        Some(Answer::Push(results)) if results.iter().any(|r| r.status == "queued" || r.status == "buffered") => {
            Some((op.invoked.at, op.done()))
        }
        _ => None,
    });
    // By the time of asking, each with the first answer to it or to a later one.
    let mut firsts: Vec<(Micros, Micros)> = accepted.collect();
    firsts.sort_unstable();
    for n in (1..firsts.len()).rev() {
        firsts[n - 1].1 = firsts[n - 1].1.min(firsts[n].1);
    }
    let queued = history.ops.iter().filter_map(|op| match op.answer() {
        Some(Answer::Push(results)) if results.iter().any(|r| r.status == "queued") => Some(op.done()),
        _ => None,
    });
    let mut queued: Vec<Micros> = queued.collect();
    queued.sort_unstable();
    let last = |before: Micros| queued[..queued.partition_point(|at| *at <= before)].last();
    let strike = |op: &crate::history::Op| match (&op.call, &op.ended) {
        (Call::Fault { kind }, Some((end, End::Ok(_)))) => {
            let from = op.invoked.at;
            let next = firsts.get(firsts.partition_point(|(asked, _)| *asked <= from));
            Some(Strike {
                fault: kind.clone(),
                lasted: Duration::from_micros(end.at - from),
                silence: next.map(|(_, done)| Duration::from_micros(done - from)),
                amid_queued: last(from).is_some_and(|at| from - at <= SHORTLY),
            })
        }
        _ => None,
    };
    history.ops.iter().filter_map(strike).collect()
}
