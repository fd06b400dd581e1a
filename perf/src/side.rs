//! One side of a pairing: a broker that this client starts, on a database of its own, and stops.
//!
//! Each start is from nothing: a fresh data directory, or a fresh database on a shared server. What one leg leaves
//! behind is gone before the next begins. The broker sees the environment below and nothing of this process's, so
//! that both sides get the same whoever runs this.

use crate::poller::end_with_us;
use crate::postgres::Session;
use crate::process::embedded_postgres;
use crate::runner::Subject;
use crate::target::Target;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a broker may take to answer its `/health` with 200, and to end when it is asked to.
const START_MAX: Duration = Duration::from_secs(90);
const STOP_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// Variables that any program may need.
const INHERITED: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"];

/// How a broker is started: `[NAME=VALUE ...] PROGRAM [ARGUMENT ...]`, separated by spaces.
///
/// `{port}`, `{data}` (an empty directory) and, on a shared server, `{pg_host}`, `{pg_port}`, `{pg_user}`,
/// `{pg_password}` and `{pg_database}` are filled in at each start.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub environment: Vec<(String, String)>,
    pub program: String,
    pub arguments: Vec<String>,
}

impl Recipe {
    pub fn parse(text: &str) -> Result<Recipe, String> {
        let assignment = |word: &str| {
            let (name, value) = word.split_once('=')?;
            let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            plain.then(|| (name.to_owned(), value.to_owned()))
        };
        let mut words = text.split_whitespace().peekable();
        let mut environment = Vec::new();
        while let Some(pair) = words.peek().and_then(|word| assignment(word)) {
            environment.push(pair);
            words.next();
        }
        let program = words.next().ok_or(format!("`{text}` names no program"))?.to_owned();
        Ok(Recipe { environment, program, arguments: words.map(str::to_owned).collect() })
    }
}

/// A PostgreSQL server that both sides use, each a database of its own.
pub struct SharedServer {
    admin: Session,
    places: BTreeMap<String, String>,
}

impl SharedServer {
    /// `conninfo`: `key=value` words of a role that may create databases.
    pub fn open(conninfo: &str) -> Result<SharedServer, String> {
        let words: BTreeMap<&str, &str> = conninfo.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        if !words.contains_key("host") {
            return Err("--postgres for a pairing: host=... port=... user=... password=..., and host is needed".into());
        }
        let place = |key: &str, default: &str| words.get(key).map_or(default, |value| *value).to_owned();
        let places = [
            ("{pg_host}", place("host", "")),
            ("{pg_port}", place("port", "5432")),
            ("{pg_user}", place("user", "postgres")),
            ("{pg_password}", place("password", "postgres")),
        ];
        let admin = Session::open(conninfo)?;
        Ok(SharedServer { admin, places: places.map(|(name, value)| (name.to_owned(), value)).into() })
    }

    /// A database without anything in it.
    fn fresh(&self, name: &str) -> Result<(), String> {
        self.drop_database(name)?;
        self.admin.ask(&format!("create database {name};"))?;
        // What the other side left to be written is written before this side is measured.
        self.admin.ask("checkpoint;").map(|_| ())
    }

    fn drop_database(&self, name: &str) -> Result<(), String> {
        self.admin.ask(&format!("drop database if exists {name} with (force);")).map(|_| ())
    }
}

/// A broker that runs. Dropped: it is stopped and what it stored is gone.
pub struct Running<'a> {
    pub subject: Subject,
    child: Child,
    data: PathBuf,
    database: Option<(&'a SharedServer, String)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.subject.postgres = None;
        stop(&mut self.child);
        if let Some((server, name)) = &self.database
            && let Err(error) = server.drop_database(name)
        {
            eprintln!("database {name} is still there: {error}");
        }
        if let Err(error) = fs::remove_dir_all(&self.data) {
            eprintln!("{} is still there: {error}", self.data.display());
        }
    }
}

/// Starts a side and waits until it is healthy. `name`: of the side, for files and databases.
pub fn start<'a>(recipe: &Recipe, name: &str, shared: Option<&'a SharedServer>) -> Result<Running<'a>, String> {
    let data = std::env::temp_dir().join(format!("queen-perf-{}-{name}", std::process::id()));
    let database = shared.map(|server| (server, format!("queen_perf_{name}")));
    if let Some((server, database)) = &database {
        server.fresh(database)?;
    }
    let _ = fs::remove_dir_all(&data); // Of a run that was killed.
    fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
    let log = data.join("broker.log");
    let port = free_port()?;
    let mut places = shared.map_or_else(BTreeMap::new, |server| server.places.clone());
    places.insert("{port}".into(), port.to_string());
    places.insert("{data}".into(), data.display().to_string());
    if let Some((_, database)) = &database {
        places.insert("{pg_database}".into(), database.clone());
    }
    let mut child = spawn(recipe, &places, shared.is_some(), &log).inspect_err(|_| drop(fs::remove_dir_all(&data)))?;
    let url = format!("http://127.0.0.1:{port}");
    let subject = match wait(&mut child, &url, &log) {
        Ok(()) => subject(&url, child.id(), shared),
        Err(error) => Err(error),
    };
    match subject {
        Ok(subject) => Ok(Running { subject, child, data, database }),
        Err(error) => {
            stop(&mut child);
            let _ = fs::remove_dir_all(&data);
            Err(format!("side {name}: {error}"))
        }
    }
}

fn subject(url: &str, pid: u32, shared: Option<&SharedServer>) -> Result<Subject, String> {
    let mut subject = Subject::of(url, None)?;
    subject.broker = Some(pid); // Also when a process below it listens.
    subject.postgres = match shared {
        Some(server) => Some(server.admin.again()?),
        None => embedded_postgres(pid).map(|conninfo| Session::open(&conninfo)).transpose()?,
    };
    Ok(subject)
}

/// A port that is free now.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}

/// Source of the names: operations 1 (settings).
fn environment(recipe: &Recipe, places: &BTreeMap<String, String>, shared: bool) -> Vec<(String, String)> {
    let own: &[(&str, &str)] = &[
        ("PORT", "{port}"),
        ("QUEEN_BIND_ADDR", "127.0.0.1"),
        ("QUEEN_DATA_DIR", "{data}"),
        ("FILE_BUFFER_DIR", "{data}/buffers"),
    ];
    let database: &[(&str, &str)] = &[
        ("PG_HOST", "{pg_host}"),
        ("PG_PORT", "{pg_port}"),
        ("PG_USER", "{pg_user}"),
        ("PG_PASSWORD", "{pg_password}"),
        ("PG_DATABASE", "{pg_database}"),
        ("PG_DB", "{pg_database}"),
    ];
    let common = own.iter().chain(if shared { database } else { &[] });
    let all =
        common.map(|&(name, value)| (name.to_owned(), value.to_owned())).chain(recipe.environment.iter().cloned());
    all.map(|(name, value)| (name, filled(&value, places))).collect()
}

fn filled(text: &str, places: &BTreeMap<String, String>) -> String {
    places.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

fn spawn(recipe: &Recipe, places: &BTreeMap<String, String>, shared: bool, log: &Path) -> Result<Child, String> {
    let trouble = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    let output = File::create(log).map_err(|error| trouble(log, error))?;
    let errors = output.try_clone().map_err(|error| trouble(log, error))?;
    let mut command = Command::new(&recipe.program);
    command.args(recipe.arguments.iter().map(|argument| filled(argument, places)));
    command.env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(environment(recipe, places, shared));
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    end_with_us(&mut command);
    command.spawn().map_err(|error| trouble(Path::new(&recipe.program), error))
}

/// Until `/health` answers 200. Err: with the end of what the broker said.
fn wait(child: &mut Child, url: &str, log: &Path) -> Result<(), String> {
    let target = Target::of(url)?;
    let begun = Instant::now();
    let last_words = || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    };
    loop {
        if let Ok((200, _)) = target.call("GET", "/health") {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("the broker ended ({status}):\n{}", last_words()));
        }
        if begun.elapsed() > START_MAX {
            return Err(format!("not healthy after {} s:\n{}", START_MAX.as_secs(), last_words()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Asks it to end; ends it if it does not.
fn stop(child: &mut Child) {
    let begun = Instant::now();
    crate::poller::terminate(child.id());
    while begun.elapsed() < STOP_MAX {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(LOOK),
            _ => return,
        }
    }
    eprintln!("a broker did not end within {} s and is killed", STOP_MAX.as_secs());
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_an_environment_a_program_and_arguments() {
        let recipe = Recipe::parse("DB_POOL_SIZE=40 X= /opt/other/bin/queen --port {port} a=b").unwrap();
        let pairs = [("DB_POOL_SIZE", "40"), ("X", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(recipe.environment, pairs);
        assert_eq!(
            (recipe.program.as_str(), &recipe.arguments[..]),
            ("/opt/other/bin/queen", &["--port", "{port}", "a=b"].map(str::to_owned)[..])
        );
        assert_eq!(Recipe::parse("./a=b/queen").unwrap().program, "./a=b/queen");
        assert!(Recipe::parse("A=1 ").is_err());
    }

    #[test]
    fn places_are_filled_and_the_recipe_has_the_last_word() {
        let recipe = Recipe::parse("PORT=x{port} DB={pg_host}:{pg_database} queen").unwrap();
        let places = [("{port}", "7001"), ("{data}", "/d"), ("{pg_host}", "h"), ("{pg_database}", "queen_perf_a")];
        let places = places.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let environment: BTreeMap<String, String> = environment(&recipe, &places, true).into_iter().collect();
        let get = |name: &str| environment[name].as_str();
        assert_eq!((get("PORT"), get("DB"), get("PG_DB")), ("x7001", "h:queen_perf_a", "queen_perf_a"));
        assert_eq!(get("FILE_BUFFER_DIR"), "/d/buffers");
    }

    #[test]
    fn a_broker_that_ends_at_once_says_its_last_words() {
        let recipe = Recipe {
            environment: vec![],
            program: "sh".into(),
            arguments: vec!["-c".into(), "echo no licence; exit 3".into()],
        };
        let Err(error) = start(&recipe, "ended", None) else { panic!("it runs") };
        assert!(
            error.contains("side ended: the broker ended (exit status: 3)") && error.contains("no licence"),
            "{error}"
        );
    }
}
