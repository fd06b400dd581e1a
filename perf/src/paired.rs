//! `queen-perf --paired A B`: two brokers in turns, and the ratios of what they need.
//!
//!     A B B A A B B A ...   each leg: start, warm up, measure, stop
//!
//! Neighbours are a pair: what changes slowly (the machine's clock, its neighbours, its disk) is the same for both of
//! a pair, and the turn of the order cancels a trend. Only one of the brokers runs at any time.

use crate::args::Options;
use crate::load::fresh_seed;
use crate::poller::raise_file_limit;
use crate::ratio::Ratio;
use crate::report::{Table, show, tables};
use crate::result::{Recording, RunResult, ScenarioResult};
use crate::side::{Recipe, SharedServer, start};
use serde::{Deserialize, Serialize};

/// A pairing's `run.json`: two recordings, run for run next to each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pairing {
    pub a: Recording,
    pub b: Recording,
}

/// The recipes of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Sides {
    pub a: Recipe,
    pub b: Recipe,
}

/// The sides of pair `n`, in the order they run.
fn order(n: u32) -> [usize; 2] {
    if n.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Runs everything; `scenario.runs` is the number of pairs. Err: a side could not start.
pub fn run(sides: &Sides, options: &Options, command: String) -> Result<Pairing, String> {
    raise_file_limit();
    let shared = options.postgres.as_deref().map(SharedServer::open).transpose()?;
    let recipes = [&sides.a, &sides.b];
    let mut recordings: [Option<Recording>; 2] = [None, None];
    for scenario in &options.scenarios {
        let mut results: [Vec<RunResult>; 2] = [Vec::new(), Vec::new()];
        for pair in 0..scenario.runs {
            for side in order(pair) {
                let name = ["a", "b"][side];
                let running = start(recipes[side], name, shared.as_ref())?;
                let queue = format!("perf-{:x}-{}", fresh_seed() >> 32, scenario.name);
                let words = format!("pair {} of {}, {}", pair + 1, scenario.runs, ["A", "B"][side]);
                results[side].push(running.subject.run(scenario, &queue, &words)?);
                recordings[side]
                    .get_or_insert_with(|| running.subject.recording(command.clone(), options.machine.as_deref()));
            }
        }
        for (recording, runs) in recordings.iter_mut().zip(results) {
            if let Some(recording) = recording {
                recording.scenarios.push(ScenarioResult { settings: scenario.clone(), runs });
            }
        }
    }
    match recordings {
        [Some(a), Some(b)] => Ok(Pairing { a, b }),
        _ => Err("no scenario was run".into()),
    }
}

impl Pairing {
    pub fn failed(&self) -> bool {
        self.a.scenarios.iter().chain(&self.b.scenarios).any(ScenarioResult::failed)
    }
}

/// The table of ratios B / A.
pub fn ratios(pairing: &Pairing) -> String {
    let mut table = Table::new(&["scenario", "figure", "A", "B", "B / A", "95 % interval", "verdict on B"]);
    for (a, b) in pairing.a.scenarios.iter().zip(&pairing.b.scenarios) {
        let Some(first) = a.runs.first() else { continue };
        for figure in first.figures(&a.settings) {
            let value = |run: &RunResult| {
                let figures = run.figures(&a.settings);
                figures.into_iter().find(|other| other.name == figure.name).map(|other| other.value)
            };
            let pairs: Vec<(f64, f64)> =
                a.runs.iter().zip(&b.runs).filter_map(|(a, b)| value(a).zip(value(b))).collect();
            let Some(ratio) = Ratio::of(&pairs) else { continue };
            let mean = |side: fn(&(f64, f64)) -> f64| {
                (pairs.iter().map(|pair| side(pair).ln()).sum::<f64>() / pairs.len() as f64).exp()
            };
            table.row(vec![
                a.settings.name.clone(),
                figure.name.to_owned(),
                show(mean(|pair| pair.0)),
                show(mean(|pair| pair.1)),
                format!("{:.3}", ratio.ratio),
                ratio.interval.map_or(String::new(), |(low, high)| format!("{low:.3} to {high:.3}")),
                ratio.verdict(figure.more_is_better).to_owned(),
            ]);
        }
    }
    table.render()
}

/// `summary.md` of a pairing.
pub fn summary(pairing: &Pairing) -> String {
    let Pairing { a, b } = pairing;
    let side = |name: &str, of: &Recording| {
        let driver = of.driver.as_deref().unwrap_or("driver unknown");
        format!("* **{name}**: `{}`, {driver}\n", of.broker.replace('`', "'"))
    };
    let machine = &a.machine;
    let mut out = format!(
        "# {}, {} cores, two brokers in turns\n\n`{}`, {}. {}, {} MB, Linux {}.\n\n{}{}\n",
        a.date.split('T').next().unwrap_or_default(),
        machine.cores,
        a.command,
        a.date,
        machine.cpu,
        machine.memory_mb,
        machine.kernel,
        side("A", a),
        side("B", b),
    );
    if pairing.failed() {
        out += "**Not valid: a run failed, see the end of the tables.**\n\n";
    }
    out += "## B against A\n\n";
    out += &ratios(pairing);
    out += "\nA and B are geometric means of their runs, in the order A B B A; B / A is that of the pairs' ratios, with \
            the interval of Student's t over their logarithms. Within noise: the interval contains 1. One line in twenty \
            is beyond it by chance alone.\n\n";
    out += &format!("## A\n\n{}\n## B\n\n{}", tables(a), tables(b));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recording;

    #[test]
    fn the_order_is_a_b_b_a() {
        assert_eq!((0..4).flat_map(order).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 1, 1, 0]);
    }

    #[test]
    fn the_table_has_a_ratio_for_each_figure_and_says_what_is_noise() {
        let pairing = Pairing { a: recording(&[100_000, 50_000, 80_000]), b: recording(&[200_000, 100_000, 160_000]) };
        let text = ratios(&pairing);
        let row = |figure: &str| {
            let line = text
                .lines()
                .find(|line| line.contains(&format!("| {figure} ")))
                .unwrap_or_else(|| panic!("{figure} in {text}"));
            line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(row("msg/s")[5..8], ["2.000", "2.000 to 2.000", "better"]);
        assert_eq!(row("CPU us/msg broker")[5..8], ["0.500", "0.500 to 0.500", "better"]);
        assert_eq!(row("push p99 us")[5..8], ["1.000", "1.000 to 1.000", "within noise"]);
        assert!(summary(&pairing).contains("## B against A"));
    }
}
