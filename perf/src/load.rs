//! One run: sockets, their requests, the window in which answers count.
//!
//!     producer   push > answer all queued > push (closed loop) or wait until the next one is due (open loop)
//!     consumer   pop > messages > ack > pop; an empty pop is asked again
//!     transactor bundle > committed > bundle (see `bundle`)
//!
//! One thread, nonblocking sockets, one request in flight per connection. Holds: every answer is checked;
//! anything that is not what the contract promises is a failure of the run. Open loop: a latency starts when the
//! push was *due*, so a stalled broker is charged for the pushes it kept waiting (coordinated omission).
//! After the window producers stop, what is in flight is awaited, and with consumers the queue is drained: what
//! was popped must be what was pushed, each message once.

mod before;
mod consume;
mod drain;
mod produce;
mod sockets;

use crate::bundle::{BundleWriter, Held};
use crate::payload::{Payload, Rng};
use crate::poller::{Poller, Ready, Ticker};
use crate::postgres::{Session, StoreCounts};
use crate::process::{Snapshot, glance, snapshot};
use crate::request::{self, AckWriter, Pushes};
use crate::scenario::{GroupsFrom, Kind, Scenario};
use crate::series::{Sample, Series};
use crate::tally::{FAILURES_MAX, Tally};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes one read takes at most: a few answers of 100 items.
const READ_BYTES: usize = 256 << 10;
/// After the window: how long answers in flight and the rest of the queue are awaited.
const DRAIN: Duration = Duration::from_secs(30);
/// How often the observer hears of a run.
const PROGRESS_NS: u64 = 1_000_000_000;
const NS: f64 = 1e9;

/// Where and what to run.
pub struct Plan<'a> {
    pub address: SocketAddr,
    pub host: &'a str,
    pub queue: &'a str,
    pub scenario: &'a Scenario,
    /// The broker's process, if it is on this machine.
    pub broker: Option<u32>,
    /// Its PostgreSQL, if that can be asked.
    pub postgres: Option<&'a Session>,
    pub seed: u64,
    pub drain: Duration,
}

impl Plan<'_> {
    pub const DRAIN: Duration = DRAIN;
}

/// What an observer hears each second.
pub struct Progress {
    /// What is going on, when it is not the run itself.
    pub filling: bool,
    /// Seconds of the run, or messages that are filled in.
    pub elapsed: f64,
    pub total: f64,
    /// Messages pushed and popped since the last time, per second.
    pub pushed_rate: f64,
    pub popped_rate: f64,
}

/// What a run measured.
pub struct Measured {
    pub tally: Tally,
    pub window_seconds: f64,
    pub before: Snapshot,
    pub after: Snapshot,
    /// What PostgreSQL did in the window.
    pub store: Option<StoreCounts>,
    /// How the window went.
    pub series: Vec<Sample>,
    /// Messages left in the queue when the drain ended.
    pub left: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    /// For nothing: an idle producer.
    Nothing,
    Push,
    Pop,
    /// For so many accepted items.
    Ack(u32),
    /// For a committed bundle.
    Bundle,
    /// For so many messages to be stored, then to be held.
    Fill(usize),
    Hold(usize),
}

struct Connection {
    stream: TcpStream,
    waiting: Waiting,
    /// When the request in flight was sent, or was due.
    since: u64,
    /// How long the pop in flight asked to wait.
    patience: u64,
    /// What the socket did not take yet.
    unsent: Vec<u8>,
    /// The beginning of an answer that is not whole yet, and how many bytes say more.
    held: Vec<u8>,
    need: usize,
    open: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Pushes go out until so many messages are sent.
    Fill(u64),
    Warmup,
    Window,
    Drain,
}

struct Load<'a> {
    plan: &'a Plan<'a>,
    started: Instant,
    poller: Poller,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    template: Pushes,
    /// Names of the groups, and the pop of each; one of no name in queue mode.
    groups: Vec<Option<String>>,
    pop_requests: Vec<Vec<u8>>,
    ack: AckWriter,
    bundle: BundleWriter,
    /// Of the connections that send bundles, by token.
    held: Vec<Held>,
    scratch: Vec<u8>,
    tally: Tally,
    stage: Stage,
    /// The window; its end is 'never' until it has begun.
    window: (u64, u64),
    /// Open loop: when the next push is due, and the period.
    due: u64,
    period: u64,
    /// What was there before the first client, and the sum of its ids.
    filled: (u64, u64),
    /// From the first message on, whatever the stage.
    sent: u64,
    pushed: u64,
    popped: u64,
    sent_sum: u64,
    popped_sum: u64,
}

/// Runs the scenario once. Err: it could not start, or the client's own system calls fail.
pub fn run(plan: &Plan, observe: &mut dyn FnMut(Progress)) -> Result<Measured, String> {
    let filled = if plan.scenario.fill > 0 { before::fill(plan, observe)? } else { (0, 0) };
    if plan.scenario.groups_from == GroupsFrom::New {
        before::register_groups(plan)?;
    }
    let snapshot = plan.scenario.old_snapshot.then(|| before::hold_snapshot(plan)).transpose()?;
    let mut load = Load::new(plan)?;
    load.filled = filled;
    let measured = load.run(observe).map_err(|error| format!("epoll: {error}"));
    drop(snapshot);
    measured
}

impl<'a> Load<'a> {
    fn new(plan: &'a Plan<'a>) -> Result<Load<'a>, String> {
        let s = plan.scenario;
        let template = Pushes::new(plan.host, plan.queue, s, plan.seed);
        let payload = Payload::new(s.payload as usize);
        let groups: Vec<Option<String>> = match s.groups {
            0 => vec![None],
            groups => (0..groups).map(|n| Some(before::group_name(n))).collect(),
        };
        let mut load = Load {
            plan,
            started: Instant::now(),
            poller: Poller::new().map_err(|error| format!("epoll: {error}"))?,
            connections: Vec::new(),
            idle: VecDeque::new(),
            template,
            pop_requests: groups
                .iter()
                .map(|group| request::pop(plan.host, plan.queue, s, group.as_deref(), s.pop_wait_ms))
                .collect(),
            groups,
            ack: AckWriter::new(plan.host),
            bundle: BundleWriter::new(plan.host, plan.queue, payload, plan.seed),
            held: vec![Held::default(); s.connections as usize],
            scratch: vec![0; READ_BYTES],
            tally: Tally::default(),
            stage: Stage::Warmup,
            window: (u64::MAX, u64::MAX),
            due: 0,
            period: if s.rate > 0 { 1_000_000_000 / u64::from(s.rate) } else { 0 },
            filled: (0, 0),
            sent: 0,
            pushed: 0,
            popped: 0,
            sent_sum: 0,
            popped_sum: 0,
        };
        for token in 0..(s.consumers + s.connections) as usize {
            load.connect(token).map_err(|error| format!("no broker at {}: {error}", plan.host))?;
        }
        Ok(load)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn run(&mut self, observe: &mut dyn FnMut(Progress)) -> std::io::Result<Measured> {
        let s = self.plan.scenario;
        let ns = |seconds: f64| (seconds * NS) as u64;
        self.started = Instant::now();
        self.start_clients();
        // Made after the first push was due: a tick just before a push is due would send it a whole period late.
        let ticker = match self.period {
            0 => None,
            period => Some(Ticker::every(Duration::from_nanos(period))?),
        };
        let tick_token = self.connections.len();
        if let Some(ticker) = &ticker {
            self.poller.add(ticker.fd(), tick_token)?;
        }

        let mut ready: Vec<Ready> = Vec::new();
        let mut stage_end = ns(s.warmup);
        let mut told = (0, 0, 0); // When the observer last heard, and the counts it heard.
        let (mut before, mut after) = (Snapshot::default(), Snapshot::default());
        let (mut store_before, mut store_after) = (None, None);
        let mut series = Series::new(s.seconds);
        loop {
            let now = self.now();
            // Pops alone are over when nothing is left to pop.
            if s.kind == Kind::Pop && self.stage == Stage::Window && self.drained() {
                stage_end = now;
            }
            if now >= stage_end || self.tally.failures >= FAILURES_MAX {
                match self.stage {
                    Stage::Fill(_) | Stage::Warmup => {
                        store_before = self.plan.postgres.and_then(Session::counts);
                        before = snapshot(self.plan.broker);
                        let start = self.now();
                        self.stage = Stage::Window;
                        self.window = (start, start + ns(s.seconds));
                        stage_end = self.window.1;
                    }
                    Stage::Window => {
                        after = snapshot(self.plan.broker);
                        store_after = self.plan.postgres.and_then(Session::counts);
                        self.window.1 = self.window.1.min(now);
                        self.stage = Stage::Drain;
                        stage_end = now + self.plan.drain.as_nanos() as u64;
                    }
                    Stage::Drain => break,
                }
                continue;
            }
            if self.stage == Stage::Drain && self.drained() {
                break;
            }
            self.push_idle();
            self.poller.wait(Duration::from_nanos((stage_end - now).min(100_000_000)), &mut ready)?;
            for event in &ready {
                if event.token == tick_token {
                    ticker.iter().for_each(Ticker::clear);
                    self.push_idle();
                    continue;
                }
                self.attend(event);
            }
            let now = self.now();
            if now - told.0 >= PROGRESS_NS {
                let seconds = (now - told.0) as f64 / NS;
                if self.stage == Stage::Window {
                    let glanced = self.plan.broker.and_then(glance);
                    series.add((now - self.window.0) as f64 / NS, self.pushed, self.popped, glanced);
                }
                observe(Progress {
                    filling: false,
                    elapsed: now as f64 / NS,
                    total: s.warmup + s.seconds,
                    pushed_rate: (self.pushed - told.1) as f64 / seconds,
                    popped_rate: (self.popped - told.2) as f64 / seconds,
                });
                told = (now, self.pushed, self.popped);
            }
        }
        self.judge_drain();
        Ok(Measured {
            tally: std::mem::take(&mut self.tally),
            window_seconds: (self.window.1 - self.window.0) as f64 / NS,
            before,
            after,
            store: store_before.zip(store_after).map(|(before, after)| StoreCounts::since(after, before)),
            series: series.take(),
            left: self.owed().saturating_sub(self.popped),
        })
    }

    /// A socket can be written or read again.
    fn attend(&mut self, event: &Ready) {
        if event.writable {
            self.flush(event.token);
        }
        if event.readable {
            self.read(event.token);
        }
    }

    /// The group of a consumer.
    fn group(&self, token: usize) -> usize {
        token % self.groups.len()
    }

    /// Consumers pop first, so that they are parked when the first message comes. The first wait of each is
    /// shorter, so that their time-outs do not all fall into one moment.
    fn start_clients(&mut self) {
        let s = self.plan.scenario;
        let consumers = s.consumers as usize;
        for n in 0..consumers {
            let wait_ms = s.pop_wait_ms * (n as u64 + 1) / consumers as u64;
            let group = self.groups[self.group(n)].as_deref();
            let first = request::pop(self.plan.host, self.plan.queue, s, group, wait_ms.max(1));
            let now = self.now();
            self.connections[n].patience = wait_ms.max(1) * 1_000_000;
            self.send(n, Waiting::Pop, now, &first);
        }
        if s.kind == Kind::Transaction {
            (0..self.connections.len()).for_each(|token| self.send_bundle(token));
        } else {
            self.idle.extend(consumers..self.connections.len());
        }
        self.due = self.now();
    }

    fn answered(&mut self, token: usize, status: u16, body: &[u8]) {
        let now = self.now();
        let connection = &mut self.connections[token];
        let (waiting, since) = (connection.waiting, connection.since);
        connection.waiting = Waiting::Nothing;
        match waiting {
            Waiting::Push => {
                self.push_answered(now, since, status, body);
                self.idle.push_back(token);
                self.push_idle();
            }
            Waiting::Pop => self.pop_answered(token, now, since, status, body),
            Waiting::Ack(items) => {
                self.ack_answered(now, since, items, status, body);
                self.pop_again(token, now);
            }
            Waiting::Bundle => self.bundle_answered(token, now, since, status, body),
            Waiting::Fill(messages) => self.filled(token, now, messages, status, body),
            Waiting::Hold(messages) => self.holds(token, messages, status, body),
            Waiting::Nothing => self.lose(token, format!("an answer {status} that nothing asked for")),
        }
    }

    /// Whether what began at `since` (open loop) or ends `now` (closed loop) counts.
    fn counts(&self, now: u64, since: u64) -> bool {
        let at = if self.period > 0 { since } else { now };
        (self.window.0..self.window.1).contains(&at)
    }
}

/// The beginning of a body, for a failure's text.
fn sample(body: &[u8]) -> String {
    const SAMPLE_BYTES: usize = 240;
    String::from_utf8_lossy(&body[..body.len().min(SAMPLE_BYTES)]).into_owned()
}

/// A seed that differs from run to run.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    Rng::new(hasher.finish()).next()
}
