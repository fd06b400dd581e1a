//! The command line.

use crate::paired::Sides;
use crate::scenario::{self, AckMode, Form, Scenario};
use crate::side::Recipe;
use std::path::PathBuf;

pub const HELP: &str = "\
queen-perf: load for a running queen broker, every answer checked

  queen-perf [SCENARIO ...] [OPTIONS]   without a scenario: the canonical set
  queen-perf --paired A B [SCENARIO ...] [OPTIONS]   two brokers in turns, started by this client
  queen-perf list                       the scenarios
  queen-perf compare A B                ratios of two results (directories or run.json)
  queen-perf plot RESULT OUT.html       the plots of a result as a page

SCENARIO: a name, the beginning of names, a kind (push, push-pop, transaction, latency, parked,
idle), or a .json file

  --url URL           broker, default http://127.0.0.1:6632
  --batch N           messages per push             --connections N     connections that push
  --partitions N      partitions to draw from       --payload BYTES     of a message
  --push-partitions N partitions of one push        --fill N            messages stored beforehand
  --made N            pushes made before the run
  --groups N          consumer groups, 0: none
  --consumers N       connections that pop and ack  --pop-batch N       messages per pop
  --pop-partitions N  partitions per pop            --pop-wait-ms N     how long a pop waits
  --form FORM         how messages are pushed: json, packed, or packed-counts (answers count)
  --framed true       pops ask for framed answers
  --ack last|all|auto what a consumer acks          --rate N            pushes per second, 0: closed loop
  --backlog-max N     pushing stops there, 0: never
  --seconds S         measured window               --warmup S          before it
  --runs N            the middle one counts
  --queue NAME        instead of a fresh queue for each run
  --keep              do not delete the fresh queues at the end
  --record DIR        write DIR/<date>-<machine>-<commit>/run.json and summary.md
  --machine NAME      how the result calls this machine
  --json              run.json to standard output instead of tables
  --postgres CONNINFO the broker's PostgreSQL, for libpq (psql must be installed); default: its child
  --gate              hold the runs to the scenarios' budgets of CPU per message

A and B of a pairing: a program, or one text `[NAME=VALUE ...] PROGRAM [ARGUMENT ...]`. Each leg starts it afresh with
PORT, QUEEN_DATA_DIR and, with --postgres `host=... user=...`, PG_HOST, PG_PORT, PG_USER, PG_PASSWORD and PG_DATABASE of
a fresh database there; {port} {data} {pg_host} {pg_port} {pg_user} {pg_password} {pg_database} in its text are filled
in. --runs is the number of pairs.

QUEEN_PERF_TOKEN in the environment: a bearer token that every request carries.

Exit status: 0 all runs valid, 1 a run failed, 2 it could not start, 3 over budget (--gate).
";

#[derive(Debug, PartialEq)]
pub enum Action {
    Help,
    List,
    Compare(String, String),
    Plot(String, PathBuf),
    Run(Box<Options>),
    Paired(Box<Sides>, Box<Options>),
}

#[derive(Debug, PartialEq)]
pub struct Options {
    pub url: String,
    pub scenarios: Vec<Scenario>,
    pub queue: Option<String>,
    pub keep: bool,
    pub record: Option<PathBuf>,
    pub machine: Option<String>,
    pub postgres: Option<String>,
    pub json: bool,
    pub gate: bool,
}

/// Reads the arguments after the program's name. Err: one line that says what is wrong.
pub fn parse(arguments: &[String]) -> Result<Action, String> {
    match arguments.first().map(String::as_str) {
        Some("help" | "--help" | "-h") => return Ok(Action::Help),
        Some("list") => return Ok(Action::List),
        Some("compare") => {
            let [_, a, b] = arguments else { return Err("compare needs two results".into()) };
            return Ok(Action::Compare(a.clone(), b.clone()));
        }
        Some("plot") => {
            let [_, result, page] = arguments else { return Err("plot needs a result and a file to write".into()) };
            return Ok(Action::Plot(result.clone(), page.into()));
        }
        _ => {}
    }
    let mut options = Options {
        url: "http://127.0.0.1:6632".into(),
        scenarios: Vec::new(),
        queue: None,
        keep: false,
        record: None,
        machine: None,
        postgres: None,
        json: false,
        gate: false,
    };
    let mut sides = None;
    let mut changes: Vec<(String, String)> = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(option) = argument.strip_prefix("--") else {
            options.scenarios.extend(scenario::find(argument)?);
            continue;
        };
        let (option, inline) = match option.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (option, None),
        };
        let mut inline = inline;
        let mut value = || inline.take().or_else(|| rest.next().cloned()).ok_or(format!("--{option} needs a value"));
        match option {
            "help" => return Ok(Action::Help),
            "json" => options.json = true,
            "gate" => options.gate = true,
            "keep" => options.keep = true,
            "paired" => sides = Some(Sides { a: Recipe::parse(&value()?)?, b: Recipe::parse(&value()?)? }),
            "postgres" => options.postgres = Some(value()?),
            "url" => options.url = value()?,
            "queue" => options.queue = Some(queue_name(value()?)?),
            "record" => options.record = Some(value()?.into()),
            "machine" => options.machine = Some(value()?),
            _ => changes.push((option.to_owned(), value()?)),
        }
    }
    if options.scenarios.is_empty() {
        options.scenarios = scenario::canonical()?;
    }
    for scenario in &mut options.scenarios {
        for (option, value) in &changes {
            change(scenario, option, value)?;
        }
        scenario.delete &= options.queue.is_none() && !options.keep;
        scenario.check()?;
    }
    match sides {
        Some(sides) if options.queue.is_none() => Ok(Action::Paired(Box::new(sides), Box::new(options))),
        Some(_) => Err("--queue: each leg of a pairing has a queue of its own".into()),
        None => Ok(Action::Run(Box::new(options))),
    }
}

/// The command line without `--record` (where a result is kept is no part of it) and without the password in
/// `--postgres`.
pub fn measured_command(arguments: &[String]) -> String {
    let mut command = String::from("queen-perf");
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--record" {
            rest.next();
        } else if argument == "--postgres" || argument.starts_with("--postgres=") {
            command.push_str(" --postgres ...");
            if argument == "--postgres" {
                rest.next();
            }
        } else if !argument.starts_with("--record=") {
            let quote = if argument.contains(' ') { "'" } else { "" };
            command.push_str(&format!(" {quote}{argument}{quote}"));
        }
    }
    command
}

fn change(scenario: &mut Scenario, option: &str, value: &str) -> Result<(), String> {
    fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
        value.parse().map_err(|_| format!("--{option}: `{value}` is not a number it takes"))
    }
    match option {
        "batch" => scenario.batch = number(option, value)?,
        "connections" => scenario.connections = number(option, value)?,
        "consumers" => scenario.consumers = number(option, value)?,
        "partitions" => scenario.partitions = number(option, value)?,
        "made" => scenario.made = number(option, value)?,
        "push-partitions" => scenario.push_partitions = number(option, value)?,
        "fill" => scenario.fill = number(option, value)?,
        "groups" => scenario.groups = number(option, value)?,
        "payload" => scenario.payload = number(option, value)?,
        "pop-batch" => scenario.pop_batch = number(option, value)?,
        "pop-partitions" => scenario.pop_partitions = number(option, value)?,
        "pop-wait-ms" => scenario.pop_wait_ms = number(option, value)?,
        "rate" => scenario.rate = number(option, value)?,
        "backlog-max" => scenario.backlog_max = number(option, value)?,
        "seconds" => scenario.seconds = number(option, value)?,
        "warmup" => scenario.warmup = number(option, value)?,
        "runs" => scenario.runs = number(option, value)?,
        "form" => {
            scenario.form = match value {
                "json" => Form::Json,
                "packed" => Form::Packed,
                "packed-counts" => Form::PackedCounts,
                _ => return Err(format!("--form: json, packed or packed-counts, not `{value}`")),
            }
        }
        "framed" => scenario.framed = value.parse().map_err(|_| format!("--framed: true or false, not `{value}`"))?,
        "ack" => {
            scenario.ack = match value {
                "last" => AckMode::Last,
                "all" => AckMode::All,
                "auto" => AckMode::Auto,
                _ => return Err(format!("--ack: last, all or auto, not `{value}`")),
            }
        }
        _ => return Err(format!("unknown option --{option}; see --help")),
    }
    Ok(())
}

/// A name that needs no escaping in a path or in JSON.
fn queue_name(name: String) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err("--queue: letters, digits, `.`, `_` and `-` only".into());
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Options, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match parse(&arguments)? {
            Action::Run(options) => Ok(*options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn without_arguments_the_canonical_set_runs() {
        assert_eq!(run("").unwrap().scenarios, scenario::canonical().unwrap());
    }

    #[test]
    fn options_change_the_chosen_scenarios() {
        let options = run("push-b100 --batch 7 --seconds=1.5 --ack all --queue a.b").unwrap();
        let [scenario] = &options.scenarios[..] else { panic!("one scenario") };
        assert_eq!((scenario.batch, scenario.seconds, scenario.ack), (7, 1.5, AckMode::All));
        assert_eq!(options.queue.as_deref(), Some("a.b"));
    }

    #[test]
    fn a_result_does_not_say_where_it_is_kept() {
        let arguments = ["push-b1", "--record", "/x", "--runs", "1", "--record=/y"].map(str::to_owned);
        assert_eq!(measured_command(&arguments), "queen-perf push-b1 --runs 1");
        let arguments = ["--postgres", "host=h password=p", "--paired", "a", "X=1 b"].map(str::to_owned);
        assert_eq!(measured_command(&arguments), "queen-perf --postgres ... --paired a 'X=1 b'");
    }

    #[test]
    fn a_pairing_has_two_sides() {
        let line = ["--paired", "target/release/queen", "DB_POOL_SIZE=40 /opt/other", "push-b1", "--runs", "6"];
        let Ok(Action::Paired(sides, options)) = parse(&line.map(str::to_owned)) else { panic!("not a pairing") };
        assert_eq!((sides.a.program.as_str(), sides.b.program.as_str()), ("target/release/queen", "/opt/other"));
        assert_eq!((options.scenarios[0].name.as_str(), options.scenarios[0].runs), ("push-b1", 6));
    }

    #[test]
    fn a_queue_that_was_named_or_is_kept_is_not_deleted() {
        assert!(run("scale-partitions-10").unwrap().scenarios[0].delete);
        assert!(!run("scale-partitions-10 --keep").unwrap().scenarios[0].delete);
        assert!(!run("scale-partitions-10 --queue mine").unwrap().scenarios[0].delete);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, text) in [
            ("push-b100 --batch", "needs a value"),
            ("push-b100 --batch x", "not a number"),
            ("push-b100 --batch 0", "batch must be 1 to"),
            ("push-b100 --colour red", "unknown option --colour"),
            ("push-b100 --queue a/b", "letters, digits"),
            ("nothing", "no scenario `nothing`"),
            ("compare a", "two results"),
            ("plot a", "a file to write"),
            ("--paired a", "needs a value"),
            ("--paired a b push-b1 --queue q", "a queue of its own"),
            ("push-pop-b1 --groups 1000", "groups must be"),
        ] {
            let error = run(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
