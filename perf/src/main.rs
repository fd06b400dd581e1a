//! Load client for a queen broker: one thread, plain HTTP, every answer checked.
//!
//!     args > scenario > runner > load: payload, request > broker > answer > tally > result > report, compare
//!
//! An HTTP client like any other: it knows the wire contract and nothing of the broker's code. It shares the
//! machine with what it measures, so a message costs it little: requests are patched templates, answers are
//! scanned. It measures one broker as it is; it starts none and configures none.

mod answer;
mod args;
mod bundle;
mod compare;
mod framed;
mod load;
mod machine;
mod packed;
mod payload;
mod poller;
mod process;
mod report;
mod request;
mod result;
mod runner;
mod scenario;
#[cfg(test)]
mod self_test;
mod tally;

use args::{Action, Options};
use result::ScenarioResult;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args::parse(&arguments) {
        Ok(Action::Help) => {
            print!("{}", args::HELP);
            Ok(true)
        }
        Ok(Action::List) => list(),
        Ok(Action::Compare(a, b)) => compare_files(&a, &b),
        Ok(Action::Run(options)) => run(&options, &arguments),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("queen-perf: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<bool, String> {
    for scenario in scenario::canonical()? {
        println!("{:<24}{}", scenario.name, scenario.about);
    }
    Ok(true)
}

fn compare_files(a: &str, b: &str) -> Result<bool, String> {
    print!("{}", compare::compare(&compare::load(a)?, &compare::load(b)?));
    Ok(true)
}

/// False: a run failed.
fn run(options: &Options, arguments: &[String]) -> Result<bool, String> {
    let recording = runner::run(options, args::measured_command(arguments))?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&recording).map_err(|error| error.to_string())?);
    } else {
        print!("{}", report::tables(&recording));
    }
    if let Some(root) = &options.record {
        let directory = report::record(&recording, root).map_err(|error| format!("{}: {error}", root.display()))?;
        eprintln!("recorded in {}", directory.display());
    }
    Ok(!recording.scenarios.iter().any(ScenarioResult::failed))
}
