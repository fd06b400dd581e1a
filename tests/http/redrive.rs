//! Bulk redrive of dead letters: beyond the contract. At most one message per row, whatever crashes.

use crate::harness::{Broker, Setup, eventually, two_shards, unique};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ALL: &str = "subscriptionMode=all&batch=100&partitions=20";

/// Dead-letters `n` messages for group `g`, with errors `even` and `odd` in turn.
fn bury(b: &Broker, queue: &str, n: usize) {
    b.push_n(queue, "p", "m", n);
    for i in 0..n {
        let pop = b.pop(queue, "consumerGroup=g&subscriptionMode=all&batch=1");
        let mut item = pop.messages[0].ack("dlq");
        item["error"] = (if i % 2 == 0 { "it is even" } else { "it is odd" }).into();
        b.ack_ok("g", &[item]);
    }
}

fn start(b: &Broker, body: Value) -> Value {
    let answer = b.post("/api/v1/dlq/redrive", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn report(b: &Broker, redrive: &Value) -> Value {
    let answer = b.get(&format!("/api/v1/dlq/redrive/{}", redrive["id"].as_str().expect("an id")));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn ended(b: &Broker, redrive: &Value) -> Value {
    eventually("the redrive ends", || Some(report(b, redrive)).filter(|r| r["state"] != "running"))
}

#[test]
fn a_filter_is_counted_dry_and_then_moved() {
    let b = two_shards();
    let q = unique("redrive");
    bury(b, &q, 6);
    let dry = start(b, json!({"queue": q, "error": "odd", "dryRun": true}));
    assert_eq!((&dry["state"], &dry["matched"], &dry["moved"]), (&json!("done"), &json!(3), &json!(0)));
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| b.pop(&q, &format!("consumerGroup=g&{ALL}&wait=true&timeout=20000")));
        let done = ended(b, &start(b, json!({"queue": q, "error": "odd"})));
        assert_eq!((&done["matched"], &done["moved"], &done["failed"]), (&json!(3), &json!(3), &json!(0)), "{done}");
        assert!(!parked.join().expect("the pop").is_empty(), "parked pops wake");
    });
    assert_eq!(b.get(&format!("/api/v1/dlq?queue={q}")).json()["total"], 3, "the others stay");
    assert_eq!(start(b, json!({"queue": unique("none")}))["matched"], 0);
}

#[test]
fn a_cancelled_redrive_stops_and_a_slow_one_keeps_its_rate() {
    let b = two_shards();
    let q = unique("redrive");
    bury(b, &q, 12);
    let slow = start(b, json!({"queue": q, "rate": 1, "toQueue": unique("other"), "toPartition": "x"}));
    eventually("it moves", || (report(b, &slow)["moved"].as_i64() >= Some(1)).then_some(()));
    let path = format!("/api/v1/dlq/redrive/{}", slow["id"].as_str().expect("an id"));
    let cancelled = b.send("DELETE", &path, None).json();
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["moved"].as_i64() < Some(12), "{cancelled}");
    let left = 12 - report(b, &slow)["moved"].as_i64().expect("a number");
    assert_eq!(b.get(&format!("/api/v1/dlq?queue={q}")).json()["total"].as_i64(), Some(left));
}

#[test]
fn a_killed_broker_goes_on_and_moves_no_row_twice() {
    let b = Setup::clean().start();
    let (q, to) = (unique("redrive"), unique("to"));
    bury(&b, &q, 30);
    let redrive = start(&b, json!({"queue": q, "rate": 10, "toQueue": to, "toPartition": "x"}));
    eventually("it moves", || (report(&b, &redrive)["moved"].as_i64() >= Some(1)).then_some(()));
    b.restart();
    // The dead broker's lease of the task stalls it for a minute at most: the operator need not wait so long.
    let free = "update queen.maintenance_leases set expires_at = null where task = 'redrive'";
    crate::harness::shared_postgres().query(b.database.as_ref().expect("a database"), free);
    let done = ended(&b, &redrive);
    assert_eq!(done["state"], "done");
    let got = b.drain(&to, ALL, "");
    let keys: BTreeSet<&str> = got.iter().map(|m| m.transaction_id.as_str()).collect();
    assert_eq!((got.len(), keys.len()), (30, 30));
}

/// What is moved would come before pushes that are held on disk. Source: data plane 10.3.
#[test]
fn a_redrive_rests_while_push_maintenance_is_on() {
    let b = Setup::clean().start();
    let (q, to) = (unique("redrive"), unique("to"));
    bury(&b, &q, 20);
    let redrive = start(&b, json!({"queue": q, "rate": 5, "toQueue": to, "toPartition": "x"}));
    eventually("it moves", || (report(&b, &redrive)["moved"].as_i64() >= Some(1)).then_some(()));
    b.post("/api/v1/system/maintenance", &json!({"enabled": true}));
    // A run that had begun ends with the row it is at.
    let rests = || {
        let before = report(&b, &redrive)["moved"].as_i64();
        std::thread::sleep(std::time::Duration::from_millis(2500));
        (report(&b, &redrive)["moved"].as_i64() == before).then_some(before)
    };
    let moved = eventually("it rests", rests);
    assert!(moved < Some(20), "{moved:?}");
    b.post("/api/v1/system/maintenance", &json!({"enabled": false}));
    assert_eq!(ended(&b, &redrive)["moved"], 20);
}

#[test]
fn refusals() {
    let b = two_shards();
    for body in ["", "[]", "{}", r#"{"queue":"q","rate":-1}"#, r#"{"queue":"q","from":"soon"}"#] {
        assert_eq!(b.send("POST", "/api/v1/dlq/redrive", Some(body.as_bytes())).status, 400, "{body}");
    }
    for id in ["nonsense", "01990a20-0000-7eee-8eee-000000000001"] {
        let path = format!("/api/v1/dlq/redrive/{id}");
        assert_eq!((b.get(&path).status, b.send("DELETE", &path, None).status), (404, 404));
    }
}
