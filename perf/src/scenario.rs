//! Scenarios as data: what a run does, read from `perf/scenarios/*.json` and changed by options.

use crate::payload::PAYLOAD_BYTES_MIN;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a run measures, and so which figure stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Closed loop of pushes: messages per second.
    Push,
    /// Closed loop of pushes beside consumers that pop and ack: messages per second through all three.
    PushPop,
    /// Closed loop of pops of what was filled in; the window ends when nothing is left: messages per second.
    Pop,
    /// Closed loop of bundles, each an ack of a message that is held and a push of one: bundles per second.
    Transaction,
    /// Pushes at a fixed rate: time from when a message was due to its answer, or to its consumer if there are any.
    Latency,
    /// Consumers that wait on an empty queue: CPU of the broker.
    Parked,
    /// Nothing at all: memory of the broker.
    Idle,
}

/// How messages are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    Json,
    /// Framed and compressed by the client.
    Packed,
    /// The same, and the answer counts its messages instead of naming each.
    PackedCounts,
}

/// How a consumer acks what it popped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AckMode {
    /// The last message of each partition: completes all below it.
    Last,
    /// Every message.
    All,
    /// None: the pop acks by itself (autoAck).
    Auto,
}

/// What a consumer group gets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupsFrom {
    /// Everything, what was filled in as well.
    All,
    /// What is pushed once the group is registered, which is after the fill.
    New,
}

/// One scenario. Every field has a default, the canonical workload's; unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    /// One sentence for the reader of a result.
    pub about: String,
    pub kind: Kind,
    pub form: Form,
    /// Pops ask for framed answers.
    pub framed: bool,
    /// Messages per push.
    pub batch: u32,
    /// Connections that push.
    pub connections: u32,
    /// Connections that pop and ack.
    pub consumers: u32,
    /// Each push goes to one of so many partitions, drawn at random.
    pub partitions: u32,
    /// Partitions that the messages of one push are spread over, neighbours of the one that was drawn.
    pub push_partitions: u32,
    /// Pushes that are made before the run, so that making them is no part of it; those beyond them are made as it goes.
    pub made: u32,
    /// Messages stored before the warm-up, evenly over all partitions; before pops alone as pushes of the scenario are.
    pub fill: u64,
    /// Consumer groups, each of which gets every message; consumers are dealt to them in turn. 0: queue mode.
    pub groups: u32,
    pub groups_from: GroupsFrom,
    /// Options of the queue, set before the first message.
    pub options: Map<String, Value>,
    /// A session elsewhere holds a snapshot from before the warm-up to the end of the window.
    pub old_snapshot: bool,
    /// Bytes of a payload.
    pub payload: u32,
    pub pop_batch: u32,
    /// Partitions one pop may claim.
    pub pop_partitions: u32,
    pub pop_wait_ms: u64,
    pub ack: AckMode,
    /// Pushes per second, open loop; 0: closed loop, each connection pushes as soon as it has its answer.
    pub rate: u32,
    /// Messages not yet popped at which a closed loop with consumers stops pushing until they catch up;
    /// 0: never. Keeps "each way" one figure and the drain short.
    pub backlog_max: u64,
    /// False: what consumers did not get by the end of the window stays there; delivery is not checked to the end.
    pub drain: bool,
    /// The queue is deleted after each run, and the broker's memory is read again once it has settled.
    pub delete: bool,
    pub warmup: f64,
    pub seconds: f64,
    pub runs: u32,
    /// What `--gate` holds a run to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// The most processor time a message may take, as multiples of a message of the calibration loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    pub broker: f64,
    pub postgres: f64,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            name: String::new(),
            about: String::new(),
            kind: Kind::Push,
            form: Form::Json,
            framed: false,
            batch: 100,
            connections: 128,
            consumers: 0,
            partitions: 200,
            push_partitions: 1,
            made: 0,
            fill: 0,
            groups: 0,
            groups_from: GroupsFrom::All,
            options: Map::new(),
            old_snapshot: false,
            payload: 256,
            pop_batch: 100,
            pop_partitions: 1,
            pop_wait_ms: 30_000,
            ack: AckMode::Last,
            rate: 0,
            backlog_max: 100_000,
            drain: true,
            delete: false,
            warmup: 3.0,
            seconds: 10.0,
            runs: 3,
            budget: None,
        }
    }
}

/// The canonical set, in the order it runs: idle and parked want a broker that did nothing yet.
const BUILT_IN: &[(&str, &str)] = &[
    ("idle", include_str!("../scenarios/idle.json")),
    ("parked", include_str!("../scenarios/parked.json")),
    ("lone-producer", include_str!("../scenarios/lone-producer.json")),
    ("end-to-end-200", include_str!("../scenarios/end-to-end-200.json")),
    ("end-to-end-1000", include_str!("../scenarios/end-to-end-1000.json")),
    ("push-b100", include_str!("../scenarios/push-b100.json")),
    ("push-packed-b100", include_str!("../scenarios/push-packed-b100.json")),
    ("push-packed-counts-b100", include_str!("../scenarios/push-packed-counts-b100.json")),
    ("push-made-b100", include_str!("../scenarios/push-made-b100.json")),
    ("push-packed-made-b100", include_str!("../scenarios/push-packed-made-b100.json")),
    ("push-b10", include_str!("../scenarios/push-b10.json")),
    ("push-b1", include_str!("../scenarios/push-b1.json")),
    ("push-pop-b100", include_str!("../scenarios/push-pop-b100.json")),
    ("push-pop-b100-pop1000", include_str!("../scenarios/push-pop-b100-pop1000.json")),
    ("push-pop-packed-b100-pop1000", include_str!("../scenarios/push-pop-packed-b100-pop1000.json")),
    ("push-pop-framed-b100-pop1000", include_str!("../scenarios/push-pop-framed-b100-pop1000.json")),
    ("push-pop-b1", include_str!("../scenarios/push-pop-b1.json")),
    ("pop-b1000", include_str!("../scenarios/pop-b1000.json")),
    ("pop-framed-b1000", include_str!("../scenarios/pop-framed-b1000.json")),
    ("push-b1-64", include_str!("../scenarios/push-b1-64.json")),
    ("transaction", include_str!("../scenarios/transaction.json")),
];

macro_rules! scale {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../scenarios/", $name, ".json")))),*] };
}

/// What a message costs as things grow: run by name, never by default.
const SCALE: &[(&str, &str)] = scale! {
    "scale-partitions-10" "scale-partitions-1k" "scale-partitions-10k" "scale-partitions-100k" "scale-partitions-1m"
    "scale-partitions-10m"
    "scale-groups-1" "scale-groups-10" "scale-groups-100"
    "scale-connections-1" "scale-connections-10" "scale-connections-100" "scale-connections-1k" "scale-connections-10k"
    "scale-backlog-0" "scale-backlog-1m" "scale-backlog-50m"
    "scale-long" "scale-snapshot-calm" "scale-snapshot-held"
};

pub fn canonical() -> Result<Vec<Scenario>, String> {
    BUILT_IN.iter().map(|(name, text)| parse(name, text)).collect()
}

pub fn scale() -> Result<Vec<Scenario>, String> {
    SCALE.iter().map(|(name, text)| parse(name, text)).collect()
}

/// The scenarios that `name` stands for: a built-in one, all built-in ones whose names start with it (`push-pop`,
/// `end-to-end`), all of a kind (`latency`), or a file.
pub fn find(name: &str) -> Result<Vec<Scenario>, String> {
    if name.ends_with(".json") {
        let text = std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
        return Ok(vec![parse(name, &text)?]);
    }
    let (all, scale) = (canonical()?, scale()?);
    let kind: Option<Kind> = serde_json::from_value(name.into()).ok();
    let chosen: Vec<Scenario> = if let Some(one) = all.iter().chain(&scale).find(|scenario| scenario.name == name) {
        vec![one.clone()]
    } else if kind.is_some() {
        all.into_iter().filter(|scenario| Some(scenario.kind) == kind).collect()
    } else {
        all.into_iter().chain(scale).filter(|scenario| scenario.name.starts_with(name)).collect()
    };
    if chosen.is_empty() {
        return Err(format!("no scenario `{name}`; `queen-perf list` shows them, or give a .json file"));
    }
    Ok(chosen)
}

fn parse(from: &str, text: &str) -> Result<Scenario, String> {
    serde_json::from_str(text).map_err(|error| format!("{from}: {error}"))
}

impl Scenario {
    /// Whether two scenarios ask a broker for the same work.
    pub fn same_work(&self, other: &Scenario) -> bool {
        let work = |of: &Scenario| Scenario { about: String::new(), budget: None, runs: 1, ..of.clone() };
        work(self) == work(other)
    }

    /// How often a message is delivered.
    pub fn deliveries(&self) -> u64 {
        match self.consumers {
            0 => 0,
            _ => u64::from(self.groups.max(1)),
        }
    }

    /// Refuses what cannot run, and says why.
    pub fn check(&self) -> Result<(), String> {
        let bounds: &[(&str, u64, u64, u64)] = &[
            ("batch", self.batch.into(), 1, 10_000),
            ("connections", self.connections.into(), 0, 20_000),
            ("consumers", self.consumers.into(), 0, 20_000),
            ("partitions", self.partitions.into(), 1, 100_000_000),
            ("push-partitions", self.push_partitions.into(), 1, self.batch.min(self.partitions).into()),
            ("made", self.made.into(), 0, 1_000_000),
            ("fill", self.fill, 0, 1_000_000_000),
            ("groups", self.groups.into(), 0, self.consumers.into()),
            ("payload", self.payload.into(), PAYLOAD_BYTES_MIN as u64, 1 << 20),
            ("pop-batch", self.pop_batch.into(), 1, 10_000),
            ("rate", self.rate.into(), 0, 1_000_000),
            ("runs", self.runs.into(), 1, 100),
            // One push must stay below the broker's body limit.
            ("batch x payload", u64::from(self.batch) * u64::from(self.payload), 1, 48 << 20),
        ];
        for (name, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(format!("{}: {name} must be {min} to {max}, not {value}", self.name));
            }
        }
        if !(0.1..=86_400.0).contains(&self.seconds) || !(0.0..=86_400.0).contains(&self.warmup) {
            return Err(format!("{}: seconds must be 0.1 to 86400, warmup 0 to 86400", self.name));
        }
        let needs = |what: &str| Err(format!("{}: this kind needs {what}", self.name));
        if self.groups_from == GroupsFrom::New && self.groups == 0 {
            return needs("groups, which are to get what is new");
        }
        if self.form != Form::Json && self.push_partitions > 1 {
            return Err(format!("{}: a packed push goes to one partition", self.name));
        }
        match self.kind {
            Kind::Push | Kind::Transaction if self.connections == 0 => needs("connections"),
            Kind::Transaction if self.consumers > 0 || self.batch != 1 || self.rate > 0 => {
                needs("a batch of 1, no consumers and no rate")
            }
            Kind::Pop if self.connections > 0 || self.consumers == 0 || self.fill == 0 || !self.drain => {
                needs("consumers and a fill, no connections, and a drain")
            }
            Kind::PushPop if self.connections == 0 || self.consumers == 0 => needs("connections and consumers"),
            Kind::Latency if self.rate == 0 || self.connections == 0 => needs("a rate and connections"),
            Kind::Parked if self.consumers == 0 || self.connections > 0 => needs("consumers and no connections"),
            Kind::Idle if self.consumers + self.connections > 0 => needs("no connections and no consumers"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_are_sound_and_named_after_their_files() {
        let all = canonical().unwrap().into_iter().chain(scale().unwrap());
        for (scenario, (name, _)) in all.zip(BUILT_IN.iter().chain(SCALE)) {
            assert_eq!(scenario.name, *name);
            assert!(!scenario.about.is_empty());
            scenario.check().unwrap();
        }
    }

    #[test]
    fn names_prefixes_and_kinds_choose() {
        let names = |word: &str| find(word).unwrap().into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names("push-b10"), ["push-b10"]);
        let packed = ["push-packed-b100", "push-packed-counts-b100", "push-packed-made-b100"];
        assert_eq!(names("push-packed"), packed);
        assert_eq!(names("push").len(), names("push-packed").len() + 5);
        assert_eq!(names("transaction"), ["transaction"]);
        assert_eq!(names("latency"), ["lone-producer", "end-to-end-200", "end-to-end-1000"]);
        assert_eq!(names("end-to-end"), ["end-to-end-200", "end-to-end-1000"]);
        assert_eq!(names("scale-groups-1"), ["scale-groups-1"]);
        assert_eq!(names("scale-backlog"), ["scale-backlog-0", "scale-backlog-1m", "scale-backlog-50m"]);
        assert!(find("no-such").is_err());
    }

    #[test]
    fn a_wrong_field_or_value_is_refused() {
        assert!(parse("x", "{\"bacth\":1}").unwrap_err().contains("bacth"));
        let wrong = Scenario { payload: 10, ..Scenario::default() };
        assert!(wrong.check().unwrap_err().contains("payload must be"));
        assert!(Scenario { kind: Kind::Latency, ..Scenario::default() }.check().is_err());
    }
}
