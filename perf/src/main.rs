//! Load client for a queen broker: one thread, plain HTTP, every answer checked.
//!
//!     args > scenario > runner > load: payload, request > broker > answer > tally > result > report, compare, plots
//!                       paired > side: starts two brokers in turns
//!
//! An HTTP client like any other: it knows the wire contract and nothing of the broker's code. It shares the
//! machine with what it measures, so a message costs it little: requests are patched templates, answers are
//! scanned. It measures a broker as it is and configures none; only a pairing starts brokers.

mod answer;
mod args;
mod bundle;
mod calibration;
mod compare;
mod framed;
mod load;
mod machine;
mod made;
mod packed;
mod paired;
mod payload;
mod plots;
mod poller;
mod postgres;
mod process;
mod ratio;
mod report;
mod request;
mod result;
mod runner;
mod scenario;
#[cfg(test)]
mod self_test;
mod series;
mod side;
mod tally;
mod target;
mod teller;

use args::{Action, Options};
use paired::{Pairing, Sides};
use result::{Recording, ScenarioResult};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a call of this program ended in; the exit status says it.
enum Ended {
    Well,
    RunFailed,
    OverBudget,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args::parse(&arguments) {
        Ok(Action::Help) => {
            print!("{}", args::HELP);
            Ok(Ended::Well)
        }
        Ok(Action::List) => list(),
        Ok(Action::Compare(a, b)) => compare_files(&a, &b),
        Ok(Action::Plot(result, page)) => plot(&result, &page),
        Ok(Action::Run(options)) => run(&options, &arguments),
        Ok(Action::Paired(sides, options)) => run_paired(&sides, &options, &arguments),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::RunFailed) => ExitCode::from(1),
        Ok(Ended::OverBudget) => ExitCode::from(3),
        Err(error) => {
            eprintln!("queen-perf: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<Ended, String> {
    for scenario in scenario::canonical()?.into_iter().chain(scenario::scale()?) {
        println!("{:<30}{}", scenario.name, scenario.about);
    }
    Ok(Ended::Well)
}

fn compare_files(a: &str, b: &str) -> Result<Ended, String> {
    print!("{}", compare::compare(&compare::load(a)?, &compare::load(b)?));
    Ok(Ended::Well)
}

fn plot(result: &str, page: &Path) -> Result<Ended, String> {
    let html = match compare::load(result) {
        Ok(recording) => plots::page(&[(&recording, "")]),
        Err(first) => {
            let Pairing { a, b } = compare::load_pairing(result).map_err(|_| first)?;
            plots::page(&[(&a, "A"), (&b, "B")])
        }
    };
    std::fs::write(page, html).map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(Ended::Well)
}

fn run(options: &Options, arguments: &[String]) -> Result<Ended, String> {
    let recording = runner::run(options, args::measured_command(arguments))?;
    tell(options, &recording, || report::tables(&recording))?;
    keep(options, |root| report::record(&recording, root))?;
    Ok(judge(options, &[&recording]))
}

fn run_paired(sides: &Sides, options: &Options, arguments: &[String]) -> Result<Ended, String> {
    let pairing = paired::run(sides, options, args::measured_command(arguments))?;
    tell(options, &pairing, || paired::ratios(&pairing))?;
    keep(options, |root| report::record_pairing(&pairing, root))?;
    Ok(judge(options, &[&pairing.a, &pairing.b]))
}

fn tell(options: &Options, result: &impl serde::Serialize, tables: impl Fn() -> String) -> Result<(), String> {
    if options.json {
        println!("{}", serde_json::to_string_pretty(result).map_err(|error| error.to_string())?);
    } else {
        print!("{}", tables());
    }
    Ok(())
}

fn keep(options: &Options, record: impl Fn(&Path) -> std::io::Result<PathBuf>) -> Result<(), String> {
    if let Some(root) = &options.record {
        let directory = record(root).map_err(|error| format!("{}: {error}", root.display()))?;
        eprintln!("recorded in {}", directory.display());
    }
    Ok(())
}

/// A run that failed outweighs one that was too dear.
fn judge(options: &Options, recordings: &[&Recording]) -> Ended {
    let scenarios = || recordings.iter().flat_map(|recording| &recording.scenarios);
    let over: Vec<String> = scenarios().filter(|_| options.gate).flat_map(ScenarioResult::over_budget).collect();
    over.iter().for_each(|text| eprintln!("over budget: {text}"));
    if scenarios().any(ScenarioResult::failed) {
        Ended::RunFailed
    } else if !over.is_empty() {
        Ended::OverBudget
    } else {
        Ended::Well
    }
}
