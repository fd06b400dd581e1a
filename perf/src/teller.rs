//! Says on standard error how a run goes: each second on a terminal, else every half minute and at its end.

use crate::load::Progress;
use crate::report::{show, thousands};
use crate::result::RunResult;
use crate::scenario::Scenario;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a log hears of a run.
const LOG_EVERY: Duration = Duration::from_secs(30);

pub struct Teller {
    name: String,
    terminal: bool,
    scenario: Scenario,
    told: Instant,
}

impl Teller {
    /// `run`: words like `run 2 of 3`.
    pub fn new(scenario: &Scenario, run: &str) -> Teller {
        Teller {
            name: format!("{} {run}", scenario.name),
            terminal: std::io::stderr().is_terminal(),
            scenario: scenario.clone(),
            told: Instant::now(),
        }
    }

    pub fn tell(&mut self, progress: &Progress) {
        if !self.terminal && self.told.elapsed() < LOG_EVERY {
            return;
        }
        self.told = Instant::now();
        let line = line(&self.name, progress);
        if self.terminal { eprint!("\r\x1b[K{line}") } else { eprintln!("{line}") }
    }

    pub fn done(&mut self, run: &RunResult) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let figure = run.main_figure(&self.scenario);
        let failed = if run.failures > 0 { format!(", FAILED ({})", run.failures) } else { String::new() };
        eprintln!("{clear}{}: {} {}{failed}", self.name, show(figure.value), figure.name);
    }
}

fn line(name: &str, progress: &Progress) -> String {
    let Progress { filling, elapsed, total, pushed_rate, popped_rate } = progress;
    let pushed = thousands(*pushed_rate);
    if *filling {
        let left =
            if *pushed_rate > 0.0 { format!(", {:.0} s left", (total - elapsed) / pushed_rate) } else { String::new() };
        return format!("{name}: filling, {} of {} messages, {pushed}/s{left}", thousands(*elapsed), thousands(*total));
    }
    if elapsed > total {
        return format!("{name}: draining, {} popped/s", thousands(*popped_rate));
    }
    format!("{name}: {elapsed:.0} of {total:.0} s, {pushed} pushed/s, {} popped/s", thousands(*popped_rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let mut progress = Progress { filling: true, elapsed: 2e6, total: 5e6, pushed_rate: 1e5, popped_rate: 0.0 };
        assert_eq!(
            line("s run 1 of 1", &progress),
            "s run 1 of 1: filling, 2,000,000 of 5,000,000 messages, 100,000/s, 30 s left"
        );
        progress = Progress { filling: false, elapsed: 12.0, total: 13.0, pushed_rate: 1e5, popped_rate: 9e4 };
        assert_eq!(line("s", &progress), "s: 12 of 13 s, 100,000 pushed/s, 90,000 popped/s");
        progress.elapsed = 14.0;
        assert_eq!(line("s", &progress), "s: draining, 90,000 popped/s");
    }
}
