//! `queen-tune`: reads the machine and prints a proposed layout, with settings to paste.
//!
//!     source (/sys, /proc, or a recording of them) > machine > layout > page
//!
//! Reads only: nothing is changed, nothing is started. A machine's record can be sent to somebody else, who gets the
//! same layout from it.

mod disk;
mod layout;
mod list;
mod machine;
mod page;
mod source;
#[cfg(test)]
mod tests;

use layout::Postgres;
use machine::Machine;
use source::Source;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
queen-tune: how to lay a queen broker over this machine

  queen-tune [--postgres here|elsewhere] [--disk DIR]
  queen-tune --record > FILE      what was read of this machine, as text
  queen-tune --from FILE          the layout of a recorded machine

  --postgres here       PostgreSQL on this machine (the default), or elsewhere
  --disk DIR            also time 200 fdatasync calls in DIR, on a file that is removed again
";

struct Options {
    postgres: Postgres,
    record: bool,
    from: Option<PathBuf>,
    disk: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match parse(&arguments).and_then(|options| run(&options)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("queen-tune: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { postgres: Postgres::Here, record: false, from: None, disk: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--record" => options.record = true,
            "--from" => options.from = Some(value()?.into()),
            "--disk" => options.disk = Some(value()?.into()),
            "--postgres" => {
                options.postgres = match value()?.as_str() {
                    "here" => Postgres::Here,
                    "elsewhere" => Postgres::Elsewhere,
                    other => return Err(format!("--postgres: here or elsewhere, not `{other}`")),
                }
            }
            _ => return Err(format!("unknown argument {argument}; see --help")),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<String, String> {
    let source = match &options.from {
        Some(path) => {
            Source::recorded(&std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)?
        }
        None => Source::Live,
    };
    if options.record {
        return Ok(source.record());
    }
    let machine = Machine::read(&source)?;
    let disk = options.disk.as_deref().map(disk::sync_times).transpose()?;
    Ok(page::render(&machine, &layout::propose(&machine, options.postgres), disk.as_ref()))
}
