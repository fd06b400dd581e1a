//! Black box: the store is killed, frozen, refuses, or hides behind a broken wire; the broker is killed. Whatever was
//! answered `queued` or `buffered` comes out once, in order. Source: operations 4; reliability 6 and 7; data plane 3.6.
//!
//! Every test has a PostgreSQL and a spool of its own: it breaks them.

#[path = "../http/harness/mod.rs"]
mod harness;

mod ambiguous;
mod drain;
mod locks;
mod maintenance;
mod outage;
mod probes;
mod promoted;
mod proxy;
mod refusals;
mod restored;

use harness::{Broker, Client, Postgres, Setup, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A producer that sends the next push after the answer to the last, and remembers what it was told.
struct Producer<'a> {
    broker: &'a Broker,
    queue: String,
    partition: &'static str,
    next: usize,
    /// (transaction id, message id, status), in order; only what was accepted.
    accepted: Vec<(String, String, String)>,
}

impl<'a> Producer<'a> {
    fn new(broker: &'a Broker, queue: &str, partition: &'static str) -> Producer<'a> {
        Producer { broker, queue: queue.into(), partition, next: 0, accepted: Vec::new() }
    }

    /// Pushes one message; its status.
    #[track_caller]
    fn push(&mut self) -> String {
        let key = format!("{}-{}", self.partition, self.next);
        let payload = json!({"n": self.next});
        self.next += 1;
        let item =
            json!([{"queue": self.queue, "partition": self.partition, "transactionId": key, "payload": payload}]);
        let verdict = self.broker.push(item).remove(0);
        let text = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("transaction_id"), key);
        if text("status") == "buffered" {
            assert!(verdict.get("offset").is_none(), "{verdict}");
        }
        self.accepted.push((key, text("message_id"), text("status")));
        text("status")
    }

    /// Pushes until a push ends in `status`.
    #[track_caller]
    fn push_until(&mut self, status: &str) {
        eventually(&format!("a push is {status}"), || (self.push() == status).then_some(()));
    }

    fn count(&self, status: &str) -> usize {
        self.accepted.iter().filter(|(_, _, s)| s == status).count()
    }
}

/// Waits until the spool of a broker is empty.
#[track_caller]
fn drained(broker: &Broker) {
    let limit = 3 * harness::PATIENCE;
    harness::within(limit, "the spool drains", || {
        let status = buffers(broker);
        (status["pending"] == 0 && status["dbHealthy"] == true).then_some(())
    });
}

fn buffers(broker: &Broker) -> Value {
    broker.get("/api/v1/status/buffers").json()
}

/// All messages of a queue, by partition in offset order: transaction ids and message ids.
fn stored(broker: &Broker, queue: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut all: BTreeMap<String, Vec<(i64, String, String)>> = BTreeMap::new();
    for message in broker.drain(queue, "batch=1000&partitions=64&wait=true&timeout=500", "") {
        let data: Value = serde_json::from_str(message.data.get()).expect("JSON");
        if let Some(n) = data["n"].as_u64() {
            assert!(message.transaction_id.ends_with(&format!("-{n}")), "{} {data}", message.transaction_id);
        }
        all.entry(message.partition).or_default().push((message.offset, message.transaction_id, message.id));
    }
    let sorted = all.into_iter().map(|(partition, mut messages)| {
        messages.sort();
        let offsets: Vec<i64> = messages.iter().map(|(offset, ..)| *offset).collect();
        assert!(offsets.iter().copied().eq(0..offsets.len() as i64), "{partition}: {offsets:?}");
        (partition, messages.into_iter().map(|(_, key, id)| (key, id)).collect())
    });
    sorted.collect()
}

/// What a producer was told is what is stored: each message once, in the order of the answers, under its id.
#[track_caller]
fn check_order(producer: &Producer<'_>, stored: &BTreeMap<String, Vec<(String, String)>>) {
    let got = stored.get(producer.partition).cloned().unwrap_or_default();
    let want: Vec<(String, String)> = producer.accepted.iter().map(|(key, id, _)| (key.clone(), id.clone())).collect();
    assert_eq!(got.len(), want.len(), "{} stored, {} accepted", got.len(), want.len());
    for (n, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got, want, "place {n}: {:?}", producer.accepted[n]);
    }
}

/// How often the log says that buffering began, and that it ended. Source: operations 4.7.
fn transitions(broker: &Broker) -> (usize, usize) {
    let log = broker.log();
    let count = |text: &str| log.matches(text).count();
    (count("entering buffered mode (degraded durability)"), count("DB recovered"))
}

fn spool_files(broker: &Broker) -> Vec<String> {
    let entries = std::fs::read_dir(broker.spool_dir()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with("queen-"));
    names.sort();
    names
}

/// How long a commit may take in tests that freeze the store.
const COMMIT_MS: &str = "1000";
