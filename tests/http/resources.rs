//! Queue resources, data plane 8.4 to 8.8 and 16.1.

use crate::harness::{Broker, Setup, encode, two_shards, unique};
use serde_json::{Value, json};

fn listed(b: &Broker, queue: &str) -> Option<Value> {
    let answer = b.get("/api/v1/resources/queues");
    assert_eq!(answer.status, 200);
    answer.json()["queues"].as_array().expect("an array").iter().find(|q| q["name"] == queue).cloned()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort();
    keys
}

#[test]
fn a_listing_counts_what_was_just_pushed() {
    let b = two_shards();
    let q = unique("res.a");
    b.push_n(&q, "p", "m", 5);
    b.push_n(&q, "r", "m", 2);
    let got = listed(b, &q).expect("listed");
    assert_eq!(
        keys(&got),
        ["createdAt", "id", "messages", "name", "namespace", "partitions", "retainedBytes", "segments", "task"]
    );
    assert_eq!((&got["partitions"], &got["segments"]["messages"]), (&json!(2), &json!(7)));
    assert_eq!((&got["namespace"], &got["messages"]["total"]), (&json!("res"), &json!(7)));
    assert_eq!((&got["messages"]["pending"], &got["messages"]["processing"]), (&json!(7), &json!(0)));
    let cached = b.get("/api/v1/resources/queues?stats=cached").json();
    assert!(cached["queues"].as_array().expect("queues").iter().any(|of| of == &got), "{cached}");
    let stamp = got["createdAt"].as_str().expect("a stamp");
    assert!(stamp.len() == 24 && stamp.ends_with('Z'), "{stamp}: milliseconds");
    let all = b.get("/api/v1/resources/queues?namespace=none&limit=1&stats=cached").json();
    assert!(
        all["queues"].as_array().expect("an array").iter().any(|l| l["name"] == q.as_str()),
        "no filter is honoured"
    );
    for total in ["kvRows", "kvBytes", "timerRows", "timerBytes"] {
        assert!(all[total].is_number(), "{total}");
    }
}

#[test]
fn a_queue_in_detail() {
    let b = two_shards();
    let q = unique("res");
    b.configure(&q, json!({"retryLimit": 0}));
    b.push_n(&q, "p", "m", 6);
    let pop = b.pop(&q, "batch=5");
    b.ack_ok("", &[pop.messages[1].ack("completed")]);
    let got = b.queue_detail(&q);
    assert_eq!(
        keys(&got),
        [
            "createdAt",
            "id",
            "name",
            "namespace",
            "options",
            "partitions",
            "retainedBytes",
            "segments",
            "task",
            "totals"
        ]
    );
    assert_eq!(got["options"].as_object().expect("options").len(), 21);
    let part = &got["partitions"][0];
    assert_eq!((&part["name"], &part["id"]), (&json!("p"), &json!(pop.partition_id)));
    let stats = json!({"total": 6, "pending": 4, "processing": 3, "completed": 2, "failed": null, "deadLetter": 0});
    assert_eq!((&part["stats"], &got["totals"]), (&stats, &stats));
    assert!(part["oldestMessage"].is_string() && part["newestMessage"].is_string());
    b.ack_ok("", &[pop.messages[2].ack("failed")]);
    assert_eq!(b.queue_detail(&q)["totals"]["deadLetter"], 1);
    let missing = b.get(&format!("/api/v1/resources/queues/{}", unique("none")));
    assert_eq!((missing.status, missing.text().as_str()), (404, r#"{"error":"Queue not found"}"#));
}

#[test]
fn depth_of_a_queue_and_of_a_group() {
    let b = two_shards();
    let q = unique("res");
    let depth = |query: &str| b.get(&format!("/api/v1/resources/queues/{q}/depth{query}"));
    assert_eq!((depth("").status, depth("").text().as_str()), (404, r#"{"error":"Queue not found"}"#));
    b.push_n(&q, "a", "m", 4);
    b.push_n(&q, "z", "m", 3);
    let pop = b.pop_pinned(&q, "a", "consumerGroup=g&subscriptionMode=all&batch=2");
    assert_eq!(pop.messages.len(), 2);
    let of_group = depth("?group=g").json();
    assert_eq!(
        (&of_group["queue"], &of_group["group"], &of_group["conflation"]),
        (&json!(q), &json!("g"), &json!(false))
    );
    let part = |name: &str| {
        of_group["partitions"].as_array().expect("an array").iter().find(|p| p["partition"] == name).cloned()
    };
    let a = part("a").expect("partition a");
    assert_eq!((&a["pending"], &a["processing"]), (&json!(4), &json!(2)), "{of_group}");
    assert_eq!(a["ready"], 2, "{of_group}");
    let all = depth("").json();
    assert_eq!(
        (&all["group"], &all["pending"], &all["partitionsPending"]),
        (&json!(null), &json!(7), &json!(2)),
        "{all}"
    );
    b.complete("g", &pop);
    assert_eq!(depth("?group=g").json()["processing"], 0);
}

#[test]
fn namespaces_tasks_partitions_and_overview() {
    let b = two_shards();
    let ns = unique("nsp");
    b.push_n(&format!("{ns}.refund.eu"), "p", "m", 3);
    b.push_n(&format!("{ns}.{ns}task"), "p", "m", 2);
    let find = |path: &str, list: &str, key: &str, value: &str| {
        let body = b.get(path).json();
        body[list].as_array().unwrap_or_else(|| panic!("{path}: {body}")).iter().find(|e| e[key] == value).cloned()
    };
    let got = find("/api/v1/resources/namespaces", "namespaces", "namespace", &ns).expect("the namespace");
    assert_eq!(got, json!({"namespace": ns, "queues": 2, "partitions": 2, "messages": {"total": 5, "pending": 5}}));
    let got = find("/api/v1/resources/tasks", "tasks", "task", &format!("{ns}task")).expect("the task");
    assert_eq!(
        got,
        json!({"task": format!("{ns}task"), "queues": 1, "partitions": 1, "messages": {"total": 2, "pending": 2}})
    );
    let q = format!("{ns}.refund.eu");
    let ranking = b.get(&format!("/api/v1/resources/partitions?queue={}&limit=5", encode(&q))).json();
    let first = &ranking["partitions"][0];
    assert_eq!(keys(first), ["id", "lagSeconds", "partition", "pending", "processing", "queue"]);
    assert_eq!((&first["queue"], &first["partition"], &first["pending"]), (&json!(q), &json!("p"), &json!(3)));
    let overview = b.get("/api/v1/resources/overview");
    assert_eq!(overview.status, 200);
    for key in ["queues", "partitions", "namespaces", "tasks", "messages", "lag", "throughput", "timestamp"] {
        assert!(!overview.json()[key].is_null(), "overview has {key}: {}", overview.text());
    }
}

#[test]
fn i42_a_deleted_queue_starts_from_zero() {
    let b = two_shards();
    let q = unique("res");
    b.configure(&q, json!({"leaseTime": 77, "priority": 5, "retryLimit": 0}));
    b.push_n(&q, "p", "m", 4);
    let dead = b.pop(&q, "batch=1");
    b.ack_ok("", &[dead.messages[0].ack("failed")]);
    let held = b.pop(&q, "batch=1");
    b.pop(&q, "consumerGroup=g&subscriptionMode=new");
    let path = format!("/api/v1/resources/queues/{q}");
    let gone = b.send("DELETE", &path, None);
    assert_eq!((gone.status, gone.json()), (200, json!({"deleted": true, "queue": q, "existed": true})));
    let again = b.send("DELETE", &path, None);
    let text = "Queue not found, nothing was deleted";
    assert_eq!(
        (again.status, again.json()),
        (200, json!({"deleted": false, "queue": q, "existed": false, "message": text}))
    );
    assert_eq!(b.get(&path).status, 404);
    assert!(listed(b, &q).is_none() && b.dead_letters(&q).is_empty());
    let late = b.ack("", &[held.messages[0].ack("completed")]).remove(0);
    assert_eq!(late["success"], false, "an outstanding lease is void: {late}");
    // A new queue of the name: new ids, offsets from 0, dedup memory and registrations gone, default options.
    let verdicts = b.push_n(&q, "p", "m", 2);
    assert_eq!(verdicts[0]["offset"], 0);
    let pop = b.pop(&q, "consumerGroup=g&subscriptionMode=all");
    assert_eq!(pop.offsets(), [0, 1]);
    assert_ne!(pop.partition_id, held.partition_id);
    let detail = b.queue_detail(&q);
    assert_eq!((&detail["options"]["leaseTime"], &detail["options"]["priority"]), (&json!(60), &json!(0)));
}

#[test]
fn deleting_a_queue_under_traffic_leaves_one_that_works() {
    let b = two_shards();
    let q = unique("res");
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            for i in 0..150 {
                let item = json!({"queue": q, "partition": format!("p{}", i % 5), "payload": i});
                let verdict = b.push(json!([item])).remove(0);
                assert_eq!(verdict["status"], "queued", "{verdict}");
                b.pop(&q, "autoAck=true&batch=10");
            }
        });
        while !traffic.is_finished() {
            assert_eq!(b.send("DELETE", &format!("/api/v1/resources/queues/{q}"), None).status, 200);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        traffic.join().expect("the traffic never met an error");
    });
    b.send("DELETE", &format!("/api/v1/resources/queues/{q}"), None);
    b.push_n(&q, "p0", "fresh", 3);
    assert_eq!(b.pop(&q, "").offsets(), [0, 1, 2]);
}

#[test]
fn an_empty_broker_lists_nothing() {
    let b = Setup::clean().start();
    let want = json!({"queues": [], "kvRows": 0, "kvBytes": 0, "timerRows": 0, "timerBytes": 0});
    assert_eq!(b.get("/api/v1/resources/queues").json(), want);
    assert_eq!(b.get("/api/v1/resources/namespaces").json(), json!({"namespaces": []}));
    assert_eq!(b.get("/api/v1/resources/tasks").json(), json!({"tasks": []}));
    assert_eq!(b.get("/api/v1/resources/partitions").json(), json!({"partitions": []}));
    assert_eq!(b.get("/api/v1/resources/overview").status, 200);
}
