//! The clients of a run: what they do is drawn from the seed, what they see goes into the history.

pub mod consumer;
pub mod producer;
pub mod transactor;
pub mod wire;

use crate::client::{Answer as HttpAnswer, Client, Lost};
use crate::history::{Answer, Call, End, GroupPlan, Plan, QueuePlan, Recorder};
use crate::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Why a poll has no answer: its client hung up on purpose.
pub const LEFT: &str = "left";

/// Longest a client waits for a byte. Longer than any statement deadline that is set for the rig's broker.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(12);
/// Lease of every claim; short, so that expiry is part of each run.
pub const LEASE_SECS: u64 = 2;
/// How long a pop parks.
const WAIT_MS: u64 = 1000;

/// What the clients do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Load,
    /// Nobody produces, consumers finish what there is.
    Drain,
    Over,
}

/// What the clients of an episode share.
pub struct Shared<'a> {
    pub recorder: &'a Recorder,
    pub plan: &'a Plan,
    /// Ports of the client proxies, one per broker.
    pub ports: &'a [u16],
    /// Pause between the requests of one producer, on average.
    pub pause: Duration,
    stage: &'a AtomicU8,
    seats: Vec<Seat>,
}

/// What the clients of one broker share.
#[derive(Default)]
struct Seat {
    /// They stand still, as stopped processes do: what they sent goes on, what comes waits.
    frozen: AtomicBool,
    /// How often one of them stood still.
    stood: AtomicU64,
    /// Pushes that were accepted.
    accepted: AtomicU64,
    /// Those of them that were answered `queued`.
    queued: AtomicU64,
}

impl<'a> Shared<'a> {
    pub fn new(
        recorder: &'a Recorder,
        plan: &'a Plan,
        ports: &'a [u16],
        pause: Duration,
        stage: &'a AtomicU8,
    ) -> Shared<'a> {
        let seats = ports.iter().map(|_| Seat::default()).collect();
        Shared { recorder, plan, ports, pause, stage, seats }
    }

    /// Pushes that a broker has accepted by now.
    pub fn accepted(&self, broker: usize) -> u64 {
        self.seats[broker].accepted.load(Ordering::Acquire)
    }

    /// Pushes that a broker has answered `queued` by now.
    pub fn queued(&self, broker: usize) -> u64 {
        self.seats[broker].queued.load(Ordering::Acquire)
    }

    /// Freezes the clients of a broker; with false they go on.
    pub fn freeze(&self, broker: usize, frozen: bool) {
        self.seats[broker].frozen.store(frozen, Ordering::Release);
    }

    /// How often a client of this broker stood still.
    pub fn stood(&self, broker: usize) -> u64 {
        self.seats[broker].stood.load(Ordering::Acquire)
    }

    /// Stands still as long as the clients of this broker do.
    fn stand(&self, broker: u8) {
        let seat = &self.seats[broker as usize];
        if seat.frozen.load(Ordering::Acquire) {
            seat.stood.fetch_add(1, Ordering::Release);
            while seat.frozen.load(Ordering::Acquire) && self.stage() == Stage::Load {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Load,
            1 => Stage::Drain,
            _ => Stage::Over,
        }
    }

    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// Sleeps unless the stage changes first.
    pub fn rest(&self, time: Duration, while_in: Stage) {
        let until = std::time::Instant::now() + time;
        while self.stage() == while_in {
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// One client: its number, its broker, its choices.
pub struct Actor<'a> {
    pub shared: &'a Shared<'a>,
    pub id: u16,
    pub broker: u8,
    pub rng: Rng,
    pub http: Client,
}

impl<'a> Actor<'a> {
    pub fn new(shared: &'a Shared<'a>, id: u16) -> Actor<'a> {
        let broker = (id as usize % shared.ports.len()) as u8;
        let http = Client::new(shared.ports[broker as usize], CLIENT_TIMEOUT);
        Actor { shared, id, broker, rng: Rng::new(shared.plan.seed, id as u64 + 1), http }
    }

    /// One request of the history: sent once, its end judged by status.
    pub fn ask(
        &mut self,
        call: Call,
        method: &str,
        path: &str,
        body: &[u8],
        read: impl FnOnce(&HttpAnswer) -> Result<Answer, String>,
    ) -> End {
        let (shared, broker) = (self.shared, self.broker);
        shared.stand(broker);
        let op = shared.recorder.invoke(self.id, broker, call);
        let end = match self.http.send_and(method, path, body, || shared.stand(broker)) {
            Err(Lost::Unsent(e)) => End::Fail(format!("not sent: {e}")),
            Err(Lost::Unknown(e)) => End::Info(e.to_string()),
            Ok(answer) if (400..500).contains(&answer.status) => {
                End::Fail(format!("{} {}", answer.status, answer.text()))
            }
            Ok(answer) if (200..300).contains(&answer.status) => match read(&answer) {
                Ok(answer) => End::Ok(answer),
                Err(why) => End::Info(format!("unreadable answer: {why}")),
            },
            Ok(answer) => End::Info(format!("{} {}", answer.status, answer.text())),
        };
        shared.recorder.end(op, end.clone());
        if let End::Ok(Answer::Push(results)) = &end {
            let seat = &shared.seats[broker as usize];
            let any = |status: &str| u64::from(results.iter().any(|result| result.status == status));
            seat.queued.fetch_add(any("queued"), Ordering::Release);
            seat.accepted.fetch_add(any("queued") | any("buffered"), Ordering::Release);
        }
        if matches!(end, End::Fail(_) | End::Info(_)) {
            // A broker that is away answers at once.
            self.shared.rest(Duration::from_millis(20), self.shared.stage());
        }
        end
    }
}

/// Key of a message that every consumer fails until it is dead-lettered.
pub fn is_poison(key: &str) -> bool {
    key.ends_with('!')
}

/// A queue by its part in the episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Two groups, every kind of ack.
    Main,
    /// A dedup window of two seconds.
    Short,
    Delayed,
    /// Acked at delivery.
    Auto,
    /// Retention of two seconds, and a group that lags.
    Old,
    /// Consumed by transactions.
    Input,
    /// Written by them.
    Output,
    /// Encrypted, with a canary in each payload.
    Sealed,
}

impl Part {
    pub const ALL: [Part; 8] =
        [Part::Main, Part::Short, Part::Delayed, Part::Auto, Part::Old, Part::Input, Part::Output, Part::Sealed];

    fn name(self) -> &'static str {
        match self {
            Part::Main => "main",
            Part::Short => "short",
            Part::Delayed => "delayed",
            Part::Auto => "auto",
            Part::Old => "old",
            Part::Input => "input",
            Part::Output => "output",
            Part::Sealed => "sealed",
        }
    }

    pub fn queue(self, plan: &Plan) -> &str {
        &plan.queues[self as usize].name
    }

    pub fn partitions(self) -> u64 {
        match self {
            Part::Main => 4,
            Part::Input => 3,
            Part::Short | Part::Delayed | Part::Auto | Part::Sealed => 2,
            Part::Old | Part::Output => 1,
        }
    }
}

/// Queues and groups of an episode.
pub fn plan(seed: u64, brokers: u8, prefix: &str, recovery_ms: u64) -> Plan {
    let name = |part: Part| format!("{prefix}-{}", part.name());
    let group = |name: &str| GroupPlan { name: name.into(), auto_ack: false, outputs: None };
    let queue = |part: Part| {
        let plain = QueuePlan {
            name: name(part),
            retry_limit: 2,
            dedup_secs: 3600,
            delay_secs: 0,
            retention_secs: 0,
            encrypted: part == Part::Sealed,
            groups: vec![group("a")],
        };
        match part {
            Part::Main => QueuePlan { groups: vec![group("a"), group("b")], ..plain },
            Part::Short => QueuePlan { dedup_secs: 2, ..plain },
            Part::Delayed => QueuePlan { delay_secs: 1, ..plain },
            Part::Auto => QueuePlan { groups: vec![GroupPlan { auto_ack: true, ..group("auto") }], ..plain },
            Part::Old => QueuePlan { retention_secs: 2, groups: vec![group("lag")], ..plain },
            Part::Input => {
                let mover = GroupPlan { outputs: Some(name(Part::Output)), ..group("mover") };
                QueuePlan { groups: vec![mover], ..plain }
            }
            Part::Output => QueuePlan { groups: Vec::new(), ..plain },
            Part::Sealed => plain,
        }
    };
    Plan { seed, brokers, queues: Part::ALL.map(queue).to_vec(), recovery_ms }
}
