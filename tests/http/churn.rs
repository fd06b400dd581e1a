//! Everything that takes locks, at once: no deadlock, no 5xx. Rules 2, 3 and 25.

use crate::harness::{Setup, encode, shared_postgres, unique};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the storm lasts; QUEEN_CHURN_SECS for longer ones.
const SECS: u64 = 6;
/// Bundles between two deletions of a queue.
const BUNDLES_PER_DELETE: u64 = 20;

#[test]
fn bundles_seeks_deletes_retention_and_traffic_do_not_deadlock() {
    let b = &Setup::clean().env("RETENTION_INTERVAL", "100").start();
    let queues: Vec<String> = (0..3).map(|_| unique("churn")).collect();
    for queue in &queues {
        b.configure(
            queue,
            json!({"retentionEnabled": true, "retentionSeconds": 2, "completedRetentionSeconds": 1, "leaseTime": 2}),
        );
    }
    let secs = std::env::var("QUEEN_CHURN_SECS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECS);
    let until = Instant::now() + Duration::from_secs(secs);
    let (committed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    crate::harness::at_once(15, |worker| {
        let mut n = worker as u64;
        let mut failed: Vec<String> = Vec::new();
        while Instant::now() < until {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (n >> 33) as usize;
            let queue = &queues[pick % 3];
            let group = ["g", "h"][pick / 3 % 2];
            let partition = format!("p{}", pick / 6 % 6);
            let send = |method: &str, path: String, body: Option<Value>| {
                let body = body.map(|body| body.to_string());
                b.send(method, &path, body.as_deref().map(str::as_bytes))
            };
            let answer = match worker {
                0..5 => {
                    let item = |k: usize| json!({"queue": queues[(pick + k) % 3], "partition": format!("p{}", (pick / 6 + k) % 6), "payload": n});
                    send("POST", "/api/v1/push".into(), Some(json!({"items": [item(0), item(1), item(2), item(5)]})))
                }
                5..9 => {
                    let path = format!(
                        "/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch=20&partitions=4"
                    );
                    let answer = send("GET", path, None);
                    if answer.status == 200 {
                        let pop = answer.json();
                        let messages = pop["messages"].as_array().expect("messages");
                        let acks: Vec<Value> = messages.iter().enumerate().map(|(i, m)| json!({
                            "transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"],
                            "status": if i % 7 == 3 { "dlq" } else { "completed" }})).collect();
                        send(
                            "POST",
                            "/api/v1/ack/batch".into(),
                            Some(json!({"consumerGroup": group, "acknowledgments": acks})),
                        );
                    }
                    answer
                }
                9 => {
                    let path = format!("/api/v1/consumer-groups/{group}/queues/{queue}");
                    let seek = match pick % 4 {
                        0 => Value::Null,
                        1 => json!({"toEnd": true}),
                        _ => json!({"timestamp": "2001-01-01T00:00:00Z"}),
                    };
                    if seek.is_null() {
                        send("DELETE", path.clone(), None);
                        continue;
                    }
                    let path = if pick % 8 > 4 { format!("{path}/partitions/{}", encode(&partition)) } else { path };
                    send("POST", format!("{path}/seek"), Some(seek))
                }
                10 => {
                    let list = send("GET", format!("/api/v1/dlq?queue={queue}&limit=3"), None);
                    for row in list.json()["messages"].as_array().into_iter().flatten() {
                        let path = format!("/api/v1/dlq/{}/replay", row["id"].as_str().expect("an id"));
                        send("POST", path, Some(json!({"queue": queues[(pick + 1) % 3], "partition": partition})));
                    }
                    list
                }
                12.. => {
                    // What a handler does: acks of all it holds and pushes to the other queues, in one bundle; the order in
                    // which it names them is not the order of the locks.
                    let path = format!(
                        "/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch=8&partitions=3"
                    );
                    let pop = send("GET", path, None);
                    let mut operations: Vec<Value> = (0..3)
                        .map(|k| {
                            json!({"type": "push", "queue": queues[(pick + 2 - k) % 3],
                                        "partition": format!("p{}", (pick / 6 + k) % 6), "payload": n})
                        })
                        .collect();
                    if pop.status == 200 {
                        let messages = pop.json()["messages"].as_array().expect("messages").clone();
                        operations.extend(messages.iter().rev().map(|m| {
                            json!({"type": "ack",
                            "transactionId": m["transactionId"], "partitionId": m["partitionId"],
                            "leaseId": m["leaseId"], "consumerGroup": group, "status": "completed"})
                        }));
                    }
                    let answer = send("POST", "/api/v1/transaction".into(), Some(json!({"operations": operations})));
                    let done = answer.status == 200 && answer.json()["success"] == true;
                    if done { &committed } else { &refused }.fetch_add(1, Ordering::Relaxed);
                    if answer.text().contains("deadlock") {
                        failed.push(answer.text());
                    }
                    answer
                }
                _ => {
                    // A queue lives for some bundles, so that its deletion meets work.
                    let decided = || committed.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed);
                    let from = decided();
                    while decided() < from + BUNDLES_PER_DELETE && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let answer = send("DELETE", format!("/api/v1/resources/queues/{}", queues[2]), None);
                    b.configure(&queues[2], json!({"retentionEnabled": true, "retentionSeconds": 2}));
                    answer
                }
            };
            if answer.status >= 500 {
                failed.push(format!("worker {worker}: {} {}", answer.status, answer.text()));
            }
        }
        assert!(failed.is_empty(), "{failed:?}");
    });
    println!("{committed:?} bundles committed, {refused:?} refused");
    assert!(committed.into_inner() > 0, "no bundle was committed");
    let database = b.database.as_ref().expect("a database");
    let deadlocks =
        shared_postgres().query(database, "select deadlocks from pg_stat_database where datname = current_database()");
    assert_eq!(deadlocks.trim(), "0");
    assert!(!b.log().contains("40P01") && !b.log().contains("deadlock"), "{}", b.log());
}
