//! Runs the chosen scenarios one after another against one broker that is there.

use crate::args::Options;
use crate::bundle::BundleWriter;
use crate::calibration;
use crate::load::{self, Plan, fresh_seed};
use crate::machine;
use crate::poller::raise_file_limit;
use crate::postgres::Session;
use crate::process::{broker_settings, driver, embedded_postgres, find_broker, snapshot};
use crate::request;
use crate::result::{FORM, Recording, RunResult, ScenarioResult};
use crate::scenario::{Kind, Scenario};
use crate::target::Target;
use crate::teller::Teller;
use std::time::{Duration, Instant};

/// A queue of ten million partitions is deleted in 20,000 steps.
const DELETED_WITHIN: Duration = Duration::from_secs(1800);
/// After a queue was deleted: how long the broker's memory is watched, and how long it must not fall to count.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(5);
const SETTLE_LOOK: Duration = Duration::from_millis(500);

/// A broker that answers, and what of it can be seen from here.
pub struct Subject {
    pub target: Target,
    /// Its process, if it is on this machine.
    pub broker: Option<u32>,
    pub postgres: Option<Session>,
    /// What its `/health` answered.
    pub health: String,
}

impl Subject {
    /// `postgres`: where its PostgreSQL is, for libpq; None: its child's, if it has one.
    pub fn of(url: &str, postgres: Option<&str>) -> Result<Subject, String> {
        let target = Target::of(url)?;
        let remedy = "is it running? `cargo run --release` starts one, --url names another";
        let (status, mut health) =
            target.call("GET", "/health").map_err(|error| format!("no broker at {url}: {error}; {remedy}"))?;
        if status != 200 {
            health = format!("{status} {health}");
            eprintln!("the broker does not call itself healthy: {health}"); // The runs will show what it can do.
        }
        let local = target.address.ip().is_loopback();
        let broker = local.then(|| find_broker(target.address.port())).flatten();
        let postgres = match postgres {
            Some(conninfo) => Some(Session::open(conninfo)?),
            None => broker.and_then(embedded_postgres).and_then(|conninfo| {
                Session::open(&conninfo).inspect_err(|error| eprintln!("PostgreSQL is not asked: {error}")).ok()
            }),
        };
        Ok(Subject { target, broker, postgres, health })
    }

    /// A recording of it without scenarios.
    pub fn recording(&self, command: String, machine: Option<&str>) -> Recording {
        Recording {
            form: FORM,
            date: machine::now(),
            command,
            commit: machine::commit(),
            machine: machine::describe(machine),
            url: format!("http://{}", self.target.host),
            broker: self.health.clone(),
            driver: self.broker.and_then(driver),
            settings: self.broker.and_then(broker_settings),
            postgres: self.postgres.as_ref().and_then(Session::settings),
            scenarios: Vec::new(),
        }
    }

    /// One run of a scenario on a queue. `words`: which run it is, for people.
    pub fn run(&self, scenario: &Scenario, queue: &str, words: &str) -> Result<RunResult, String> {
        if !scenario.options.is_empty() {
            let (status, body) = self.target.send(&request::configure(&self.target.host, queue, &scenario.options))?;
            if !(200..300).contains(&status) {
                return Err(format!("{}: its options: {status} {body}", scenario.name));
            }
        }
        let plan = Plan {
            address: self.target.address,
            host: &self.target.host,
            queue,
            scenario,
            broker: self.broker,
            postgres: self.postgres.as_ref(),
            seed: fresh_seed(),
            drain: Plan::DRAIN,
        };
        let calibrate = || calibration::message_ns().map_err(|error| format!("calibration: {error}"));
        let mut teller = Teller::new(scenario, words);
        let before = calibrate()?;
        let measured = load::run(&plan, &mut |progress| teller.tell(&progress))?;
        let after = calibrate()?;
        let mut outcome = RunResult::of(&measured);
        outcome.calibration_ns = Some(before.min(after)); // What the machine can do: the other was disturbed.
        teller.done(&outcome);
        if scenario.delete {
            self.delete(queue)?;
            outcome.deleted_rss_kb = self.settled_rss_kb();
        }
        Ok(outcome)
    }

    /// Deletes the queue of a run. Err: with what the broker answers.
    pub fn delete(&self, queue: &str) -> Result<(), String> {
        match self.target.call_within("DELETE", &format!("/api/v1/resources/queues/{queue}"), DELETED_WITHIN) {
            Ok((200..300 | 404, _)) => Ok(()),
            Ok((status, body)) => Err(format!("the DELETE of {queue} answers {status} {body}")),
            Err(error) => Err(format!("the DELETE of {queue}: {error}")),
        }
    }

    /// The broker's memory once it falls no more.
    fn settled_rss_kb(&self) -> Option<u64> {
        let begun = Instant::now();
        let mut lowest = snapshot(self.broker).broker_rss_kb?;
        let mut since = Instant::now();
        while since.elapsed() < SETTLED && begun.elapsed() < SETTLE_MAX {
            std::thread::sleep(SETTLE_LOOK);
            let now = snapshot(self.broker).broker_rss_kb?;
            if now < lowest {
                (lowest, since) = (now, Instant::now());
            }
        }
        Some(lowest)
    }
}

/// The queues that a run of a scenario on `queue` leaves.
pub fn queues_of(scenario: &Scenario, queue: &str) -> Vec<String> {
    match scenario.kind {
        Kind::Idle => vec![],
        _ if scenario.delete => vec![],
        Kind::Transaction => vec![BundleWriter::next_queue(queue), queue.to_owned()],
        _ => vec![queue.to_owned()],
    }
}

/// Runs everything. `command`: the command line, for the record. Err: it could not start.
pub fn run(options: &Options, command: String) -> Result<Recording, String> {
    raise_file_limit();
    let subject = Subject::of(&options.url, options.postgres.as_deref())?;
    let mut recording = subject.recording(command, options.machine.as_deref());
    let stamp = format!("{:x}", fresh_seed() >> 32);
    let mut queues = Vec::new();
    for scenario in &options.scenarios {
        let mut result = ScenarioResult { settings: scenario.clone(), runs: Vec::new() };
        for run in 1..=scenario.runs {
            let queue = options.queue.clone().unwrap_or_else(|| format!("perf-{stamp}-{}-{run}", scenario.name));
            result.runs.push(subject.run(scenario, &queue, &format!("run {run} of {}", scenario.runs))?);
            if options.queue.is_none() {
                queues.extend(queues_of(scenario, &queue));
            }
        }
        recording.scenarios.push(result);
    }
    if !options.keep {
        // At the end, so that their removal does not run beside a measurement.
        for (n, queue) in queues.iter().enumerate() {
            if let Err(why) = subject.delete(queue) {
                eprintln!("{} queues named perf-{stamp}-* are still there: {why}", queues.len() - n);
                break;
            }
        }
    }
    Ok(recording)
}
