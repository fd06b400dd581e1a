//! The load against a small broker of its own: one thread per connection, strict about what it reads.

use crate::load::{self, Measured, Plan};
use crate::scenario::{AckMode, Kind, Scenario};
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
}

#[derive(Default)]
struct Partition {
    messages: Vec<Value>,
    committed: usize,
    leased: bool,
}

#[derive(Default)]
struct State {
    partitions: HashMap<String, Partition>,
    ids: HashSet<String>,
    pushes: u64,
    pops: u64,
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
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let broker = serving.clone();
            std::thread::spawn(move || broker.serve(stream));
        }
    });
    (address, broker)
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
                ("POST", "/api/v1/ack") => self.ack(vec![serde_json::from_slice(&body).unwrap()]),
                ("POST", "/api/v1/ack/batch") => {
                    let value: Value = serde_json::from_slice(&body).unwrap();
                    self.ack(value["acknowledgments"].as_array().unwrap().clone())
                }
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
            if item["payload"].to_string().len() != 256 || item["partition"] != items[0]["partition"] {
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
        let parameter = |name: &str| {
            let query = path.split_once('?').unwrap().1;
            let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("{name} in {path}")).parse::<usize>().unwrap()
        };
        assert!(path.contains("wait=true"));
        let (batch, partitions) = (parameter("batch"), parameter("partitions"));
        let until = Instant::now() + Duration::from_millis(parameter("timeout") as u64);
        let mut state = self.state.lock().unwrap();
        loop {
            let answer = state.claim(batch, partitions, self.fault);
            let now = Instant::now();
            if let Some(body) = answer {
                return (200, body);
            } else if now >= until || self.fault == Fault::Impatient {
                return (204, String::new());
            }
            state = self.changed.wait_timeout(state, until - now).unwrap().0;
        }
    }

    fn ack(&self, items: Vec<Value>) -> (u16, String) {
        let mut state = self.state.lock().unwrap();
        let mut answers = Vec::new();
        for (index, item) in items.iter().enumerate() {
            assert_eq!((item["status"].as_str(), item["leaseId"].as_str()), (Some("completed"), Some("lease")));
            let id = item["transactionId"].as_str().unwrap();
            let partition = state.partitions.get_mut(item["partitionId"].as_str().unwrap()).unwrap();
            let at = partition.messages.iter().position(|message| message["transactionId"] == id).unwrap();
            partition.committed = partition.committed.max(at + 1);
            partition.leased = false;
            answers.push(json!({"index": index, "success": self.fault != Fault::AckRefused}).to_string());
        }
        self.changed.notify_all();
        (200, format!("[{}]", answers.join(",")))
    }
}

impl State {
    fn claim(&mut self, mut batch: usize, partitions: usize, fault: Fault) -> Option<String> {
        let mut messages = Vec::new();
        let (mut claimed, mut first) = (0, String::new());
        for (name, partition) in &mut self.partitions {
            let ready = partition.messages.len() - partition.committed;
            if partition.leased || ready == 0 || claimed == partitions || batch == 0 {
                continue;
            }
            partition.leased = true;
            claimed += 1;
            first = if claimed == 1 { name.clone() } else { first };
            let take = ready.min(batch);
            batch -= take;
            for message in &partition.messages[partition.committed..partition.committed + take] {
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
        assert!(state.partitions.values().all(|p| p.committed == p.messages.len() && !p.leased));
    }
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
    let plan =
        Plan { address, host: "h", queue: "q", scenario: &scenario, broker: None, seed: 1, drain: Duration::ZERO };
    let Err(error) = load::run(&plan, &mut |_| ()) else { panic!("it ran") };
    assert!(error.contains("no broker at h"), "{error}");
}
