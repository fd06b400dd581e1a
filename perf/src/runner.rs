//! Runs the chosen scenarios one after another against one broker, and says how far it is.

use crate::answer::{self, Framed};
use crate::args::Options;
use crate::bundle::BundleWriter;
use crate::load::{self, Plan, Progress, fresh_seed};
use crate::machine;
use crate::poller::raise_file_limit;
use crate::process::find_broker;
use crate::report::thousands;
use crate::request;
use crate::result::{FORM, Recording, RunResult, ScenarioResult};
use crate::scenario::{Kind, Scenario};
use std::io::{IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where the broker is.
struct Target {
    address: SocketAddr,
    /// `host:port`, for the Host header and for people.
    host: String,
}

fn target(url: &str) -> Result<Target, String> {
    let host = url.strip_prefix("http://").ok_or(format!("{url}: http:// only"))?.trim_end_matches('/');
    if host.contains('/') {
        return Err(format!("{url}: no path"));
    }
    let with_port = if host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let mut addresses = with_port.to_socket_addrs().map_err(|error| format!("{url}: {error}"))?;
    let address = addresses.next().ok_or(format!("{url}: no address"))?;
    Ok(Target { address, host: with_port })
}

/// Runs everything. `command`: the command line, for the record. Err: it could not start.
pub fn run(options: &Options, command: String) -> Result<Recording, String> {
    raise_file_limit();
    let target = target(&options.url)?;
    let remedy = "is it running? `cargo run --release` starts one, --url names another";
    let (status, mut health) =
        call(&target, "GET", "/health").map_err(|error| format!("no broker at {}: {error}; {remedy}", options.url))?;
    if status != 200 {
        health = format!("{status} {health}");
        eprintln!("the broker does not call itself healthy: {health}"); // The runs will show what it can do.
    }
    let local = target.address.ip().is_loopback();
    let broker = local.then(|| find_broker(target.address.port())).flatten();
    let mut recording = Recording {
        form: FORM,
        date: machine::now(),
        command,
        commit: machine::commit(),
        machine: machine::describe(options.machine.as_deref()),
        url: options.url.clone(),
        broker: health,
        scenarios: Vec::new(),
    };
    let stamp = format!("{:x}", fresh_seed() >> 32);
    let mut queues = Vec::new();
    for scenario in &options.scenarios {
        let mut result = ScenarioResult { settings: scenario.clone(), runs: Vec::new() };
        for run in 1..=scenario.runs {
            let queue = options.queue.clone().unwrap_or_else(|| format!("perf-{stamp}-{}-{run}", scenario.name));
            let plan = Plan {
                address: target.address,
                host: &target.host,
                queue: &queue,
                scenario,
                broker,
                seed: fresh_seed(),
                drain: Plan::DRAIN,
            };
            let mut teller = Teller::new(scenario, run);
            let measured = load::run(&plan, &mut |progress| teller.tell(&progress))?;
            let outcome = RunResult::of(&measured);
            teller.done(&outcome);
            result.runs.push(outcome);
            if options.queue.is_none() && scenario.kind != Kind::Idle {
                if scenario.kind == Kind::Transaction {
                    queues.push(BundleWriter::next_queue(&queue));
                }
                queues.push(queue);
            }
        }
        recording.scenarios.push(result);
    }
    if !options.keep {
        // At the end, so that their removal does not run beside a measurement.
        for (n, queue) in queues.iter().enumerate() {
            let why = match call(&target, "DELETE", &format!("/api/v1/resources/queues/{queue}")) {
                Ok((200..300, _)) => continue,
                Ok((status, body)) => format!("their DELETE answers {status} {body}"),
                Err(error) => error,
            };
            eprintln!("{} queues named perf-{stamp}-* are still there: {why}", queues.len() - n);
            break;
        }
    }
    Ok(recording)
}

/// One request on a connection of its own; status and body of its answer. Err: none within 30 s.
fn call(target: &Target, method: &str, path: &str) -> Result<(u16, String), String> {
    const TIMEOUT: Duration = Duration::from_secs(30);
    const BODY_SHOWN: usize = 2000;
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&target.address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(&request::plain(method, path, &target.host))?;
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        while let Framed::Need(_) = answer::frame(&bytes) {
            match stream.read(&mut part)? {
                0 => break,
                count => bytes.extend_from_slice(&part[..count]),
            }
        }
        Ok(bytes)
    };
    let bytes = exchange().map_err(|error| error.to_string())?;
    match answer::frame(&bytes) {
        Framed::Whole { status, body_at, end } => {
            let body = String::from_utf8_lossy(&bytes[body_at..end.min(body_at + BODY_SHOWN)]).into_owned();
            Ok((status, body))
        }
        Framed::Need(_) => Err("the answer ends early".into()),
        Framed::Unreadable(why) => Err(why.into()),
    }
}

/// Says on standard error how a run goes: each second on a terminal, else one line when it is over.
struct Teller {
    name: String,
    terminal: bool,
    scenario: Scenario,
}

impl Teller {
    fn new(scenario: &Scenario, run: u32) -> Teller {
        Teller {
            name: format!("{} run {run} of {}", scenario.name, scenario.runs),
            terminal: std::io::stderr().is_terminal(),
            scenario: scenario.clone(),
        }
    }

    fn tell(&mut self, progress: &Progress) {
        if self.terminal {
            let Progress { elapsed, total, pushed_rate, popped_rate } = progress;
            eprint!(
                "\r\x1b[K{}: {elapsed:.0} of {total:.0} s, {} pushed/s, {} popped/s",
                self.name,
                thousands(*pushed_rate),
                thousands(*popped_rate)
            );
        }
    }

    fn done(&mut self, run: &RunResult) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let figure = run.main_figure(&self.scenario);
        let value = if figure.value < 100.0 { format!("{:.2}", figure.value) } else { thousands(figure.value) };
        let failed = if run.failures > 0 { format!(", FAILED ({})", run.failures) } else { String::new() };
        eprintln!("{clear}{}: {value} {}{failed}", self.name, figure.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_host_and_port() {
        assert_eq!(target("http://127.0.0.1:6632/").unwrap().host, "127.0.0.1:6632");
        assert_eq!(target("http://127.0.0.1").unwrap().host, "127.0.0.1:80");
        assert!(target("https://127.0.0.1:1").is_err());
        assert!(target("http://127.0.0.1:1/api").is_err());
    }
}
