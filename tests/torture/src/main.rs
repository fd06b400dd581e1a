//! `queen-torture`: see `--help` and docs/torture.md.

use queen_torture::args::{Action, HELP, Options, parse};
use queen_torture::{campaign, check, history, planted};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match parse(&arguments) {
        Ok(Action::Help) => {
            print!("{HELP}");
            Ok(0)
        }
        Ok(Action::Check(path)) => judge(&path),
        Ok(Action::Run(options)) => run(&options, &arguments),
        Ok(Action::Campaign(mut options)) => place(&mut options).and_then(|()| run(&options, &arguments)),
        Ok(Action::Planted(options)) => wake(&options),
        Err(why) => Err(why),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(why) => {
            eprintln!("queen-torture: {why}");
            ExitCode::from(2)
        }
    }
}

/// A campaign leaves its record where the others are.
fn place(options: &mut Options) -> Result<(), String> {
    if options.record.is_none() {
        options.record = Some(campaign::place(options).map_err(|e| e.to_string())?);
    }
    Ok(())
}

fn run(options: &Options, arguments: &[String]) -> Result<u8, String> {
    let binary = campaign::binary(options, &["torture"]).map_err(|e| e.to_string())?;
    let command = format!("queen-torture {}", arguments.join(" "));
    let report = campaign::run(options, &binary, command, |line| println!("{line}")).map_err(|e| e.to_string())?;
    let text = report.text();
    println!("\n{text}");
    if let Some(dir) = &options.record {
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(dir.join("summary.md"), &text))
            .map_err(|e| e.to_string())?;
    }
    Ok(report.verdict().exit_status())
}

fn judge(path: &Path) -> Result<u8, String> {
    let violations = check::check(&history::read(path)?);
    violations.iter().for_each(|violation| println!("{violation}"));
    println!("{} violations", violations.len());
    Ok(u8::from(!violations.is_empty()))
}

fn wake(options: &Options) -> Result<u8, String> {
    let binary = campaign::binary(options, &["planted"]).map_err(|e| e.to_string())?;
    let all = planted::run(options, &binary, |line| println!("{line}")).map_err(|e| e.to_string())?;
    Ok(u8::from(!all))
}
