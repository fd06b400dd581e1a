//! The load against a small broker of its own: one thread per connection, strict about what it reads.

use crate::args::{self, Action};
use crate::load::{self, Measured, Plan};
use crate::paired::{self, Sides};
use crate::runner::Subject;
use crate::scenario::{AckMode, GroupsFrom, Kind, Scenario};
use crate::side::Recipe;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How the broker misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Every 5th push answers 500.
    PushFails,
    /// Every 5th push calls its last item a duplicate.
    Duplicate,
    /// One pop leaves out a message, for ever.
    LosesOne,
    /// One message is delivered a second time in another's place.
    DeliversTwice,
    /// Acks answer that the lease is gone.
    AckRefused,
    /// One connection is closed instead of answered.
    Closes,
    /// Pops that wait answer 204 at once.
    Impatient,
    /// The 40th push takes 300 ms.
    Stalls,
}

#[derive(Default)]
struct Partition {
    messages: Vec<Value>,
    /// By group; of no name in queue mode.
    cursors: HashMap<String, Cursor>,
}

#[derive(Default)]
struct Cursor {
    committed: usize,
    leased: bool,
}

#[derive(Default)]
struct State {
    partitions: HashMap<String, Partition>,
    ids: HashSet<String>,
    pushes: u64,
    pops: u64,
    configured: Vec<Value>,
    wrong: Vec<String>,
}

struct Broker {
    state: Mutex<State>,
    changed: Condvar,
    fault: Fault,
}

fn start(fault: Fault) -> (SocketAddr, Arc<Broker>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let broker = Arc::new(Broker { state: Mutex::default(), changed: Condvar::new(), fault });
    let serving = broker.clone();
    std::thread::spawn(move || serve(listener, serving));
    (address, broker)
}

fn serve(listener: TcpListener, broker: Arc<Broker>) {
    for stream in listener.incoming().flatten() {
        let broker = broker.clone();
        std::thread::spawn(move || broker.serve(stream));
    }
}

impl Broker {
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            let (mut line, mut length) = (String::new(), 0);
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).ok()?;
                if header == "\r\n" {
                    break;
                }
                if let Some(value) = header.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let [method, path, version] = &words[..] else { panic!("request line {line:?}") };
            assert_eq!(version, "HTTP/1.1");
            let (status, body) = match (method.as_str(), path.split('?').next().unwrap()) {
                ("POST", "/api/v1/push") => self.push(&body),
                ("POST", "/api/v1/ack") => {
                    let value: Value = serde_json::from_slice(&body).unwrap();
                    self.ack(&value, std::slice::from_ref(&value))
                }
                ("POST", "/api/v1/ack/batch") => {
                    let value: Value = serde_json::from_slice(&body).unwrap();
                    self.ack(&value, value["acknowledgments"].as_array().unwrap())
                }
                ("GET", "/health") => (200, "{\"status\":\"healthy\"}".into()),
                ("POST", "/api/v1/configure") => {
                    self.state.lock().unwrap().configured.push(serde_json::from_slice(&body).unwrap());
                    (200, "{}".into())
                }
                ("DELETE", path) if path.starts_with("/api/v1/resources/queues/") => (200, "{}".into()),
                ("GET", path_only) if path_only.starts_with("/api/v1/pop/queue/") => self.pop(path),
                other => panic!("{other:?}"),
            };
            if status == 0 {
                return None;
            }
            let mut answer = format!("HTTP/1.1 {status} X\r\n");
            if status != 204 {
                answer += &format!("Content-Type: application/json\r\ncontent-length: {}\r\n", body.len());
            }
            answer += "\r\n";
            answer += &body;
            // In two pieces, so that the client sees answers in parts.
            let (first, second) = answer.as_bytes().split_at(answer.len() / 2);
            stream.write_all(first).ok()?;
            stream.flush().ok()?;
            stream.write_all(second).ok()?;
        }
    }

    fn push(&self, body: &[u8]) -> (u16, String) {
        let value: Value = serde_json::from_slice(body).expect("JSON");
        let mut state = self.state.lock().unwrap();
        state.pushes += 1;
        if state.pushes == 40 && self.fault == Fault::Stalls {
            std::thread::sleep(Duration::from_millis(300));
        }
        let bad = state.pushes.is_multiple_of(5);
        if bad && self.fault == Fault::PushFails {
            return (500, "{\"error\":\"pool\"}".into());
        }
        if bad && self.fault == Fault::Closes {
            return (0, String::new());
        }
        let items = value["items"].as_array().expect("items");
        let mut answers = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let id = item["transactionId"].as_str().unwrap();
            if id.len() != 36 || !state.ids.insert(id.to_owned()) {
                state.wrong.push(format!("id {id}"));
            }
            if item["payload"].to_string().len() != 256 {
                state.wrong.push(format!("item {item}"));
            }
            let partition = state.partitions.entry(item["partition"].as_str().unwrap().to_owned()).or_default();
            partition.messages.push(item.clone());
            let last = index + 1 == items.len();
            let word = if bad && last && self.fault == Fault::Duplicate { "duplicate" } else { "queued" };
            answers.push(format!(
                "{{\"index\":{index},\"message_id\":\"m\",\"transaction_id\":\"{id}\",\"queueName\":\"q\",\"status\":\"{word}\",\"offset\":0}}"
            ));
        }
        self.changed.notify_all();
        (201, format!("[{}]", answers.join(",")))
    }

    fn pop(&self, path: &str) -> (u16, String) {
        let text = |name: &str| {
            let query = path.split_once('?').unwrap().1;
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        let parameter = |name: &str| text(name).parse::<usize>().unwrap_or_else(|_| panic!("{name} in {path}"));
        let group = text("consumerGroup");
        let mode = text("subscriptionMode");
        if mode == "new" {
            for partition in self.state.lock().unwrap().partitions.values_mut() {
                let committed = partition.messages.len();
                partition.cursors.entry(group.to_owned()).or_insert(Cursor { committed, leased: false });
            }
            return (204, String::new());
        }
        assert!(group.is_empty() || mode == "all");
        assert!(path.contains("wait=true") || path.contains("subscriptionMode=new"));
        let (batch, partitions) = (parameter("batch"), parameter("partitions"));
        let until = Instant::now() + Duration::from_millis(parameter("timeout") as u64);
        let mut state = self.state.lock().unwrap();
        loop {
            let answer = state.claim(group, batch, partitions, self.fault);
            let now = Instant::now();
            if let Some(body) = answer {
                return (200, body);
            } else if now >= until || self.fault == Fault::Impatient {
                return (204, String::new());
            }
            state = self.changed.wait_timeout(state, until - now).unwrap().0;
        }
    }

    fn ack(&self, request: &Value, items: &[Value]) -> (u16, String) {
        let group = request["consumerGroup"].as_str().unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        let mut answers = Vec::new();
        for (index, item) in items.iter().enumerate() {
            assert_eq!((item["status"].as_str(), item["leaseId"].as_str()), (Some("completed"), Some("lease")));
            let id = item["transactionId"].as_str().unwrap();
            let partition = state.partitions.get_mut(item["partitionId"].as_str().unwrap()).unwrap();
            let at = partition.messages.iter().position(|message| message["transactionId"] == id).unwrap();
            let cursor = partition.cursors.get_mut(group).unwrap();
            *cursor = Cursor { committed: cursor.committed.max(at + 1), leased: false };
            answers.push(json!({"index": index, "success": self.fault != Fault::AckRefused}).to_string());
        }
        self.changed.notify_all();
        (200, format!("[{}]", answers.join(",")))
    }
}

impl State {
    fn claim(&mut self, group: &str, mut batch: usize, partitions: usize, fault: Fault) -> Option<String> {
        let mut messages = Vec::new();
        let (mut claimed, mut first) = (0, String::new());
        for (name, partition) in &mut self.partitions {
            let cursor = partition.cursors.entry(group.to_owned()).or_default();
            let ready = partition.messages.len() - cursor.committed;
            if cursor.leased || ready == 0 || claimed == partitions || batch == 0 {
                continue;
            }
            cursor.leased = true;
            claimed += 1;
            first = if claimed == 1 { name.clone() } else { first };
            let take = ready.min(batch);
            batch -= take;
            for message in &partition.messages[cursor.committed..cursor.committed + take] {
                messages.push(format!(
                    "{{\"id\":\"m\",\"transactionId\":{},\"traceId\":null,\"data\":{},\"partitionId\":\"{name}\",\"leaseId\":\"lease\",\"deliveryAttempt\":1}}",
                    message["transactionId"], raw_payload(message)
                ));
            }
        }
        if messages.is_empty() {
            return None;
        }
        self.pops += 1;
        if self.pops >= 3 && messages.len() > 1 && fault == Fault::LosesOne {
            messages.remove(0);
        }
        if self.pops >= 3 && messages.len() > 1 && fault == Fault::DeliversTwice {
            messages[0] = messages[1].clone();
        }
        Some(format!(
            "{{\"success\":true,\"partitionId\":\"{first}\",\"leaseId\":\"lease\",\"messages\":[{}],\"partitionsClaimed\":{claimed}}}",
            messages.join(",")
        ))
    }
}

/// The payload with its stamp first, as it was sent (a `Value` may sort its keys).
fn raw_payload(message: &Value) -> String {
    let mut fields = message["payload"].as_object().unwrap().clone();
    let at = fields.remove("at").unwrap();
    let rest = Value::Object(fields).to_string();
    format!("{{\"at\":{at},{}", &rest[1..])
}

fn scenario(kind: Kind) -> Scenario {
    let base = Scenario {
        name: "t".into(),
        kind,
        batch: 10,
        connections: 4,
        warmup: 0.1,
        seconds: 0.4,
        ..Scenario::default()
    };
    match kind {
        Kind::PushPop => Scenario { consumers: 3, partitions: 7, backlog_max: 500, ..base },
        Kind::Pop => Scenario { connections: 0, consumers: 3, partitions: 7, fill: 700, pop_batch: 25, ..base },
        Kind::Latency => Scenario { consumers: 3, batch: 1, rate: 200, ..base },
        Kind::Parked => Scenario { connections: 0, consumers: 20, pop_wait_ms: 300, ..base },
        Kind::Idle => Scenario { connections: 0, ..base },
        Kind::Push => base,
        Kind::Transaction => Scenario { batch: 1, ..base },
    }
}

fn play(scenario: &Scenario, fault: Fault) -> (Measured, Arc<Broker>) {
    scenario.check().unwrap();
    let (address, broker) = start(fault);
    let host = address.to_string();
    let plan = Plan {
        address,
        host: &host,
        queue: "perf-t",
        scenario,
        broker: Some(std::process::id()),
        postgres: None,
        seed: 5,
        drain: Duration::from_secs(if fault == Fault::LosesOne { 1 } else { 30 }),
    };
    (load::run(&plan, &mut |_| ()).unwrap(), broker)
}

#[track_caller]
fn check_valid(measured: &Measured, broker: &Broker) {
    assert_eq!((measured.tally.failures, &measured.tally.failure_texts), (0, &vec![]));
    assert_eq!(broker.state.lock().unwrap().wrong, Vec::<String>::new());
}

#[test]
fn pushes_have_the_contracts_shape_and_are_counted() {
    let (measured, broker) = play(&scenario(Kind::Push), Fault::None);
    check_valid(&measured, &broker);
    let tally = &measured.tally;
    assert!(tally.pushed > 0 && tally.pushed == tally.push_requests * 10);
    assert_eq!(tally.push.count(), tally.push_requests);
    assert!(broker.state.lock().unwrap().ids.len() as u64 >= tally.pushed);
}

#[test]
fn every_message_is_popped_once_and_acked() {
    for (pop_partitions, ack) in [(1, AckMode::Last), (3, AckMode::Last), (3, AckMode::All)] {
        let scenario = Scenario { pop_partitions, ack, pop_batch: 25, ..scenario(Kind::PushPop) };
        let (measured, broker) = play(&scenario, Fault::None);
        check_valid(&measured, &broker);
        let tally = &measured.tally;
        assert!(tally.popped > 0 && tally.ack_requests > 0 && tally.end_to_end.count() == tally.popped);
        assert_eq!(measured.left, 0);
        let state = broker.state.lock().unwrap();
        assert!(state.partitions.values().all(Partition::is_done));
    }
}

#[test]
fn pops_alone_end_when_nothing_is_left() {
    let scenario = Scenario { warmup: 0.0, seconds: 60.0, pop_partitions: 3, ..scenario(Kind::Pop) };
    let (measured, broker) = play(&scenario, Fault::None);
    check_valid(&measured, &broker);
    assert_eq!((measured.tally.popped, measured.tally.pushed, measured.left), (700, 0, 0));
    assert!(measured.tally.ack_requests > 0 && measured.window_seconds < 30.0, "{} s", measured.window_seconds);
    let state = broker.state.lock().unwrap();
    // 10 a push, each to one partition: as the scenario pushes, not as a fill spreads.
    assert_eq!(state.pushes, 70);
    assert!(state.partitions.values().all(Partition::is_done));
}

impl Partition {
    fn is_done(&self) -> bool {
        self.cursors.values().all(|cursor| cursor.committed == self.messages.len() && !cursor.leased)
    }
}

#[test]
fn every_group_gets_every_message_also_of_the_fill() {
    let scenario = Scenario { groups: 3, consumers: 6, fill: 210, pop_batch: 25, ..scenario(Kind::PushPop) };
    let (measured, broker) = play(&scenario, Fault::None);
    check_valid(&measured, &broker);
    assert_eq!(measured.left, 0);
    let state = broker.state.lock().unwrap();
    let stored: usize = state.partitions.values().map(|partition| partition.messages.len()).sum();
    assert!(stored as u64 > 210 + measured.tally.pushed / 2 && state.partitions.len() == 7);
    assert!(state.partitions.values().all(|partition| partition.cursors.len() == 3 && partition.is_done()));
}

#[test]
fn groups_of_what_is_new_do_not_get_the_fill() {
    let scenario =
        Scenario { groups: 2, groups_from: GroupsFrom::New, fill: 700, pop_batch: 25, ..scenario(Kind::PushPop) };
    let (measured, broker) = play(&scenario, Fault::None);
    check_valid(&measured, &broker);
    assert_eq!(measured.left, 0);
    let state = broker.state.lock().unwrap();
    let stored: u64 = state.partitions.values().map(|partition| partition.messages.len() as u64).sum();
    assert!(stored > 700 && measured.tally.popped <= 2 * (stored - 700));
}

#[test]
fn a_fill_is_even_and_need_not_be_drained() {
    let scenario = Scenario {
        partitions: 40,
        fill: 40 * 50,
        backlog_max: 50,
        drain: false,
        pop_wait_ms: 1000,
        seconds: 0.2,
        ..scenario(Kind::PushPop)
    };
    let (measured, broker) = play(&scenario, Fault::None);
    check_valid(&measured, &broker);
    assert!(measured.tally.pushed > 0 && measured.tally.popped > 0);
    assert!(measured.tally.end_to_end.count() <= measured.tally.pushed, "what was filled in has no latency");
    let state = broker.state.lock().unwrap();
    assert!(state.partitions.len() == 40 && state.partitions.values().all(|partition| partition.messages.len() >= 50));
}

#[test]
fn a_push_can_be_spread_over_partitions() {
    let (measured, broker) = play(&Scenario { push_partitions: 5, ..scenario(Kind::Push) }, Fault::None);
    check_valid(&measured, &broker);
    let state = broker.state.lock().unwrap();
    assert!(state.partitions.values().all(|partition| partition.messages.len().is_multiple_of(2)));
}

#[test]
fn a_subject_is_configured_measured_and_cleaned() {
    let (address, broker) = start(Fault::None);
    let subject = Subject::of(&format!("http://{address}"), None).unwrap();
    let options = serde_json::from_value(json!({"retentionSeconds": 60})).unwrap();
    let scenario = Scenario { options, ..scenario(Kind::Push) };
    let run = subject.run(&scenario, "perf-t", "run 1 of 1").unwrap();
    assert!(run.failures == 0 && run.pushed > 0 && run.calibration_ns.unwrap() > 0.0);
    let configured = broker.state.lock().unwrap().configured.clone();
    assert_eq!(configured, [json!({"queue": "perf-t", "options": {"retentionSeconds": 60}})]);
    subject.delete("perf-t").unwrap();
    let old_snapshot = Scenario { old_snapshot: true, ..scenario };
    let error = subject.run(&old_snapshot, "perf-t", "run 1 of 1").unwrap_err();
    assert!(error.contains("--postgres"), "{error}");
}

/// Not a test of its own: the broker that a pairing starts.
#[test]
fn broker_of_a_pairing() {
    let Ok(port) = std::env::var("SELF_TEST_PORT") else { return };
    let broker = Arc::new(Broker { state: Mutex::default(), changed: Condvar::new(), fault: Fault::None });
    serve(TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap(), broker);
}

#[test]
fn a_pairing_alternates_two_brokers_and_tells_their_ratio() {
    let me = std::env::current_exe().unwrap();
    let recipe = |name: &str| {
        let text = format!("SELF_TEST_PORT={{port}} WHO={name} {} broker_of_a_pairing --nocapture", me.display());
        Recipe::parse(&text).unwrap()
    };
    let scenario = Scenario { runs: 2, warmup: 0.05, seconds: 0.2, ..scenario(Kind::Push) };
    let line = ["--paired", "a", "b", "push-b1"].map(str::to_owned);
    let Ok(Action::Paired(_, mut options)) = args::parse(&line) else { panic!("not a pairing") };
    options.scenarios = vec![scenario];
    let sides = Sides { a: recipe("first"), b: recipe("second") };
    let pairing = paired::run(&sides, &options, "queen-perf".into()).unwrap();
    assert!(!pairing.failed());
    assert_eq!((pairing.a.scenarios[0].runs.len(), pairing.b.scenarios[0].runs.len()), (2, 2));
    assert!(pairing.a.scenarios[0].runs.iter().all(|run| run.broker_rss_kb.unwrap() > 0));
    let table = paired::ratios(&pairing);
    assert!(table.contains("| t ") && table.contains("msg/s") && table.contains("CPU us/msg"), "{table}");
}

#[test]
fn an_open_loop_sends_what_was_due_and_no_more() {
    let (measured, broker) = play(&scenario(Kind::Latency), Fault::None);
    check_valid(&measured, &broker);
    let sent = measured.tally.push_requests;
    let want = (measured.window_seconds * 200.0).round() as u64;
    assert!(sent.abs_diff(want) <= 1, "{sent} sent, {want} due");
    assert_eq!(measured.tally.end_to_end.count(), measured.tally.popped);
    assert_eq!(measured.tally.popped, sent);
}

/// One answer is late; 60 pushes were due meanwhile, and each waited for its share of it.
#[test]
fn a_stall_is_charged_to_every_push_that_was_due_in_it() {
    let stalled = Scenario { connections: 1, consumers: 0, seconds: 0.6, ..scenario(Kind::Latency) };
    let (measured, broker) = play(&stalled, Fault::Stalls);
    check_valid(&measured, &broker);
    let push = &measured.tally.push;
    assert!(push.at(1.0) > 280_000, "the slowest took {} us", push.at(1.0));
    assert!(push.at(0.7) > 50_000, "half of the pushes were due in the stall; p70 is {} us", push.at(0.7));
}

/// Pops of many consumers go out between the timer's start and the first push: it must not tick before pushes are due.
#[test]
fn an_open_loop_sends_when_it_is_due_not_a_period_later() {
    let scenario = Scenario { consumers: 200, rate: 20, seconds: 1.0, pop_wait_ms: 30_000, ..scenario(Kind::Latency) };
    let (measured, broker) = play(&scenario, Fault::None);
    check_valid(&measured, &broker);
    let (period_us, median) = (50_000, measured.tally.push.at(0.5));
    assert!(median < period_us / 2, "answered {median} us after they were due");
}

#[test]
fn parked_pops_are_asked_again_and_idle_does_nothing() {
    let (measured, broker) = play(&scenario(Kind::Parked), Fault::None);
    check_valid(&measured, &broker);
    assert!(measured.tally.empty_pops > 0 && measured.after.broker_rss_kb.unwrap() > 0);
    let (measured, broker) = play(&scenario(Kind::Idle), Fault::None);
    check_valid(&measured, &broker);
    assert_eq!(measured.tally.push_requests + measured.tally.pop_requests, 0);
}

#[test]
fn a_wrong_answer_fails_the_run() {
    for (kind, fault, text) in [
        (Kind::Push, Fault::PushFails, "push: 500, 0 of 10 queued: {\"error\":\"pool\"}"),
        (Kind::Push, Fault::Duplicate, "push: 201, 9 of 10 queued"),
        (Kind::Push, Fault::Closes, "the broker closed a connection"),
        (Kind::PushPop, Fault::AckRefused, "ack: 200, 0 of 1 accepted"),
        (Kind::PushPop, Fault::LosesOne, "were not delivered"),
        (Kind::PushPop, Fault::DeliversTwice, "but not the same ones"),
        (Kind::Parked, Fault::Impatient, "pop: 204 before its time-out"),
    ] {
        let (measured, _) = play(&scenario(kind), fault);
        let texts = &measured.tally.failure_texts;
        assert!(measured.tally.failures > 0 && texts.iter().any(|t| t.contains(text)), "{text}: {texts:?}");
    }
}

#[test]
fn a_broker_that_is_not_there_is_said() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(); // Closed again at once.
    let scenario = scenario(Kind::Push);
    let plan = Plan {
        address,
        host: "h",
        queue: "q",
        scenario: &scenario,
        broker: None,
        postgres: None,
        seed: 1,
        drain: Duration::ZERO,
    };
    let Err(error) = load::run(&plan, &mut |_| ()) else { panic!("it ran") };
    assert!(error.contains("no broker at h"), "{error}");
}
