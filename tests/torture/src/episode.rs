//! One episode: fresh queues, load under faults, heal, drain, read everything back, judge.

use crate::check::view::View;
use crate::check::{Violation, check};
use crate::client::Client;
use crate::coverage::{self, Counts};
use crate::docket::Docket;
use crate::faults::Fault;
use crate::finals;
use crate::history::{Finals, History, Plan, Recorder};
use crate::nemesis::{Findings, Nemesis, Pace};
use crate::outages::Outages;
use crate::report::{Strike, strikes};
use crate::rng::Rng;
use crate::waits::Waits;
use crate::work::consumer::{self, Job};
use crate::work::{Actor, Part, Shared, Stage, plan, producer, transactor, wire};
use crate::world::World;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

/// How an episode goes.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    /// The load lasts so long, and then until everything that must be met was met.
    pub load: Duration,
    /// ... but never longer than this.
    pub load_max: Duration,
    /// In the order in which they strike first.
    pub faults: Vec<Fault>,
    /// Each fault a single time; otherwise again and again.
    pub once: bool,
    pub pace: Pace,
    /// What the run has counted before: the faults that are furthest behind strike first.
    pub so_far: Counts,
    pub producers: u16,
    pub pause: Duration,
    pub recovery: Duration,
    pub drain: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub violations: Vec<Violation>,
    pub counts: Counts,
    pub missing: Vec<String>,
    pub restarts: Vec<Duration>,
    /// The same, with other faults meanwhile.
    pub restarts_beside: Vec<Duration>,
    pub terms: Vec<Duration>,
    pub waits: Waits,
    pub strikes: Vec<Strike>,
    pub outages: Outages,
    pub probes: Vec<Duration>,
    pub spent: Spent,
    /// The rig could not finish: not a verdict about the broker.
    pub broken: Option<String>,
}

/// Where the time of an episode went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub load: Duration,
    /// From the end of the load until every group had everything.
    pub drain: Duration,
    /// Reading back what is stored.
    pub read: Duration,
    /// The verdict, and removing the queues.
    pub verdict: Duration,
}

impl Spent {
    pub fn add(&mut self, more: Spent) {
        self.load += more.load;
        self.drain += more.drain;
        self.read += more.read;
        self.verdict += more.verdict;
    }

    pub fn text(&self) -> String {
        let [load, drain, read, verdict] = [self.load, self.drain, self.read, self.verdict].map(|time| time.as_secs());
        format!("{load} s of load, {drain} s of drain, {read} s of reading back, {verdict} s of judging")
    }
}

/// Rules that go by PostgreSQL's clock: where it jumps, leases, windows and delays are wrong by as much as it does.
pub const CLOCKED: [&str; 5] = ["C3", "C4", "C7", "C8", "C12"];

/// Who consumes, by number of client.
const CONSUMERS: [Job; 12] = [
    Job::new(Part::Main, "a"),
    Job::new(Part::Main, "a"),
    Job::new(Part::Main, "a"),
    Job::new(Part::Main, "b"),
    Job::new(Part::Main, "b"),
    Job::new(Part::Main, "b"),
    Job { batch_max: 1, ..Job::new(Part::Short, "a") },
    Job { batch_max: 1, ..Job::new(Part::Short, "a") },
    Job::new(Part::Delayed, "a"),
    Job::new(Part::Sealed, "a"),
    Job { auto_ack: true, batch_max: 200, ..Job::new(Part::Auto, "auto") },
    Job { batch_max: 5, pause: Duration::from_millis(3500), ..Job::new(Part::Old, "lag") },
];
const MOVERS: u16 = 2;
const LEAVERS: u16 = 1;
/// Numbers of the streams that the nemesis draws from: no client's.
const HANDS: u64 = 1 << 33;
const POLL: Duration = Duration::from_millis(100);
/// A drain that gets on is waited for so long: how fast it is says more about the machine than about the broker.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// Between two looks at what was met: a look copies the history.
const LOOK_PAUSE: Duration = Duration::from_millis(900);

/// Runs one. `history`: where its lines go.
pub fn run(world: &World, script: &Script, prefix: &str, history: Option<&Path>) -> Outcome {
    match attempt(world, script, prefix, history) {
        Ok(outcome) => outcome,
        Err(why) => Outcome { broken: Some(why), ..Outcome::default() },
    }
}

fn attempt(world: &World, script: &Script, prefix: &str, path: Option<&Path>) -> Result<Outcome, String> {
    let recovery_ms = script.recovery.as_millis() as u64;
    let plan = plan(script.seed, world.sides.len() as u8, prefix, recovery_ms);
    configure(world, &plan)?;
    let recorder = Recorder::new(Instant::now(), path, &plan).map_err(|e| e.to_string())?;
    let findings = Mutex::new(Findings::default());
    let mut finals = Finals::default();
    let mut spent = load(world, script, &plan, prefix, &recorder, &findings, &mut finals);
    let began = Instant::now();
    let findings = findings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(why) = findings.broken {
        return Err(why);
    }
    finals.probes.extend(finals::descriptors(world, script.recovery));
    finals.probes.extend(finals::dead_polls(world, prefix));
    finals.crashes = findings.crashes;
    finals.spool = finals::spool(world);
    // Read by a broker that remembers nothing: what counts is what the database has.
    for side in &world.sides {
        side.broker.kill();
        side.broker.start().map_err(|e| e.to_string())?;
    }
    finals.lanes = finals::lanes(world, &plan)?;
    finals.dead_letters = finals::dead_letters(world, &plan)?;
    finals.canaries = Some(finals::canaries(world, script.seed)?);
    let history = recorder.close(plan, finals);
    spent.read = began.elapsed();
    let began = Instant::now();
    let mut outcome = judge(&history, script);
    (outcome.restarts, outcome.terms) = (findings.restarts, findings.terms);
    outcome.restarts_beside = findings.restarts_beside;
    finals::remove(world, &history.plan, prefix);
    spent.verdict = began.elapsed();
    outcome.spent = spent;
    Ok(outcome)
}

/// Judges a finished history.
fn judge(history: &History, script: &Script) -> Outcome {
    let counts = coverage::count(history);
    let mut violations = check(history);
    if script.faults.iter().any(|fault| fault.moves_the_database_clock()) {
        violations.retain(|violation| !CLOCKED.contains(&violation.rule));
    }
    Outcome {
        violations,
        missing: coverage::missing(&counts, &history.plan, &script.faults),
        counts,
        waits: Waits::of(history, &View::of(history)),
        strikes: strikes(history),
        outages: Outages::of(history),
        probes: history.finals.probes.iter().filter_map(|p| Some(Duration::from_millis(p.took_ms?))).collect(),
        ..Outcome::default()
    }
}

fn configure(world: &World, plan: &Plan) -> Result<(), String> {
    let mut client = Client::new(world.sides[0].broker.port, Duration::from_secs(10));
    for queue in &plan.queues {
        let body = wire::configure(queue).to_string();
        let answer = client.post("/api/v1/configure", body.as_bytes()).map_err(|e| format!("configure: {e:?}"))?;
        if answer.status != 200 {
            return Err(format!("configure: {} {}", answer.status, answer.text()));
        }
    }
    Ok(())
}

/// Load, heal, drain. Clients and nemesis live as long as this call.
fn load(
    world: &World,
    script: &Script,
    plan: &Plan,
    prefix: &str,
    recorder: &Recorder,
    findings: &Mutex<Findings>,
    finals: &mut Finals,
) -> Spent {
    let ports = world.ports();
    let mut spent = Spent::default();
    let stage = AtomicU8::new(Stage::Load as u8);
    let shared = Shared::new(recorder, plan, &ports, script.pause, &stage);
    let shared = &shared;
    let docket = &Docket::new(&script.faults, &script.so_far);
    std::thread::scope(|scope| {
        for id in 0..script.producers {
            scope.spawn(move || producer::run(Actor::new(shared, id)));
        }
        let mut id = script.producers;
        let mut next = || {
            id += 1;
            id - 1
        };
        for job in CONSUMERS {
            let id = next();
            scope.spawn(move || consumer::run(Actor::new(shared, id), job));
        }
        for _ in 0..MOVERS {
            let id = next();
            scope.spawn(move || transactor::run(Actor::new(shared, id), Job::new(Part::Input, "mover")));
        }
        for _ in 0..LEAVERS {
            let id = next();
            scope.spawn(move || consumer::leave(Actor::new(shared, id), Job::new(Part::Main, "a")));
        }
        let nemesis = |n: u64| Nemesis {
            world,
            shared,
            docket,
            rng: Rng::new(script.seed, HANDS + n),
            pace: script.pace,
            findings,
            seen: vec![(0, 0); world.sides.len()],
        };
        let hands: Vec<_> = match script.once {
            true => {
                let hand = nemesis(0);
                vec![scope.spawn(move || hand.run_once(&script.faults))]
            }
            false => {
                let hands = (0..).map(nemesis).zip(hands(script, world.sides.len()));
                hands.map(|(hand, faults)| scope.spawn(move || hand.run(&faults))).collect()
            }
        };
        let began = Instant::now();
        while began.elapsed() < script.load_max && shared.stage() == Stage::Load {
            std::thread::sleep(POLL);
            let struck = !script.once || hands.iter().all(|hand| hand.is_finished());
            if script.load <= began.elapsed() && struck && is_covered(recorder, plan, &script.faults) {
                break;
            }
        }
        // Faults end with the load; the one in progress is undone by the nemesis itself.
        shared.enter(Stage::Drain);
        spent.load = began.elapsed();
        hands.into_iter().for_each(|hand| drop(hand.join()));
        finals.probes = finals::recovery(world, prefix, script.recovery.saturating_mul(2));
        let drained = drain(world, plan, script.drain);
        finals.probes.extend(drained);
        shared.enter(Stage::Over);
        spent.drain = began.elapsed() - spent.load;
    });
    spent
}

/// What each hand of the nemesis strikes with.
fn hands(script: &Script, brokers: usize) -> Vec<Vec<Fault>> {
    if script.pace != Pace::Storm {
        return vec![script.faults.clone()];
    }
    let (wire, rest): (Vec<Fault>, Vec<Fault>) = script.faults.iter().partition(|fault| fault.is_of_the_wire());
    let (single, rest): (Vec<Fault>, Vec<Fault>) =
        rest.into_iter().partition(|fault| 1 < brokers && fault.is_of_one_process());
    vec![rest, wire, single]
}

/// Whether everything a run must meet was met by now.
fn is_covered(recorder: &Recorder, plan: &Plan, faults: &[Fault]) -> bool {
    std::thread::sleep(LOOK_PAUSE);
    let so_far = recorder.so_far(plan);
    coverage::missing(&coverage::count(&so_far), plan, faults).is_empty()
}

/// Waits until every group has everything; `limit`: as long as nothing gets less.
fn drain(world: &World, plan: &Plan, limit: Duration) -> Vec<crate::history::Probe> {
    let began = Instant::now();
    let (mut least, mut since) = (None, Instant::now());
    while since.elapsed() < limit && began.elapsed() < DRAIN_MAX {
        let left = finals::backlog(world, plan);
        if left == Some(0) {
            return Vec::new();
        }
        if left.is_some_and(|left| least.is_none_or(|least| left < least)) {
            (least, since) = (left, Instant::now());
        }
        std::thread::sleep(POLL);
    }
    let what = format!("an empty backlog, {least:?} left, and no fewer for {:?}", since.elapsed());
    vec![crate::history::Probe { what, took_ms: None }]
}
