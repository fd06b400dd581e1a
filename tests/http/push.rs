//! `POST /api/v1/push` beyond the invariants: answer shape, minted ids, items refused alone. Data plane 3.

use crate::harness::{two_shards, unique};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Whether a text is a lower-case hyphenated UUIDv7.
pub fn is_v7(id: &Value) -> bool {
    let id = id.as_str().unwrap_or_default();
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let groups: Vec<&str> = id.split('-').collect();
    groups.iter().map(|g| g.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|g| g.chars().all(hex))
        && groups[2].starts_with('7')
        && groups[3].starts_with(['8', '9', 'a', 'b'])
}

#[test]
fn an_answer_has_exactly_the_keys_of_the_contract_in_order() {
    let b = two_shards();
    let q = unique("push");
    let body = json!({"items": [{"queue": q, "partition": null, "transactionId": "k", "payload": 1, "traceId": "x",
        "producerSub": "me", "extra": {}}, {"queue": q, "payload": 2, "transactionId": null}], "more": 1});
    let answer = b.post("/api/v1/push", &body);
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let verdicts = answer.json();
    let id = |i: usize| verdicts[i]["message_id"].as_str().expect("an id").to_owned();
    let want = format!(
        r#"[{{"index":0,"message_id":"{}","transaction_id":"k","queueName":"{q}","status":"queued","offset":0}},{{"index":1,"message_id":"{}","transaction_id":"{}","queueName":"{q}","status":"queued","offset":1}}]"#,
        id(0),
        id(1),
        id(1)
    );
    assert_eq!(answer.text(), want);
    assert!(is_v7(&verdicts[0]["message_id"]) && is_v7(&verdicts[1]["message_id"]));
    assert_eq!(b.pop_pinned(&q, "Default", "").keys(), ["k", &id(1)], "absent and null mean `Default`");
}

#[test]
fn no_items_is_201_and_an_empty_array() {
    let answer = two_shards().post("/api/v1/push", &json!({"items": []}));
    assert_eq!((answer.status, answer.text().as_str()), (201, "[]"));
}

#[test]
fn the_content_type_is_not_looked_at() {
    let b = two_shards();
    let q = unique("push");
    let body = json!({"items": [{"queue": q, "payload": 1}]}).to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8", ""] {
        let answer = b.client().send("POST", "/api/v1/push", &[("Content-Type", kind)], Some(body.as_bytes()));
        assert_eq!(answer.expect("an answer").status, 201, "{kind}");
    }
    assert_eq!(b.drain(&q, "batch=10", "").len(), 4);
}

#[test]
fn an_item_is_refused_alone_with_a_text() {
    let b = two_shards();
    let q = unique("push");
    let long = "n".repeat(1025);
    let fits = "n".repeat(1024);
    let verdicts = b.push(json!([
        {"queue": q, "partition": "p", "transactionId": "a", "payload": 1},
        {"queue": "", "payload": 1},
        {"queue": q, "partition": "", "payload": 1},
        {"queue": long, "payload": 1},
        {"queue": q, "partition": long, "payload": 1},
        {"queue": q, "partition": fits, "payload": 1},
        {"queue": q, "partition": "p", "transactionId": "a", "payload": 2},
        {"queue": q, "partition": "p", "transactionId": "", "payload": 3},
    ]));
    let statuses: Vec<_> = verdicts.iter().map(|v| v["status"].as_str().expect("a word")).collect();
    assert_eq!(statuses, ["queued", "error", "error", "error", "error", "queued", "duplicate", "queued"]);
    for verdict in verdicts.iter().filter(|v| v["status"] == "error") {
        assert!(verdict.get("offset").is_none(), "{verdict}");
        assert!(is_v7(&verdict["message_id"]), "{verdict}");
        assert!(!verdict["error"].as_str().expect("a text").is_empty());
    }
    for i in [3, 4] {
        assert!(verdicts[i]["error"].as_str().is_some_and(|t| t.contains("1024")), "states the limit: {}", verdicts[i]);
    }
    for verdict in verdicts.iter().filter(|v| v["status"] != "error") {
        assert!(verdict.get("error").is_none(), "{verdict}");
    }
    // An empty key is a key like any other.
    let again = b.push(json!([{"queue": q, "partition": "p", "transactionId": "", "payload": 3}]));
    assert_eq!((&again[0]["status"], &again[0]["message_id"]), (&json!("duplicate"), &verdicts[7]["message_id"]));
}

#[test]
fn two_spellings_of_one_string_are_one_key() {
    let b = two_shards();
    let q = unique("push");
    let verdicts = b.push_raw(
        format!(
            r#"{{"items":[{{"queue":"{q}","partition":"a\/b","transactionId":"k\u00e9y","payload":1}},
                {{"\u0071ueue":"{q}","partit\u0069on":"a/b","transactionId":"kéy","payload":2}}]}}"#
        )
        .as_bytes(),
    );
    assert_eq!(verdicts[1]["status"], "duplicate", "{verdicts:?}");
    assert_eq!(verdicts[1]["message_id"], verdicts[0]["message_id"]);
}

#[test]
fn a_body_of_many_partitions_and_queues_ends_whole() {
    let b = two_shards();
    let (q, r) = (unique("push"), unique("push"));
    let queue = |i: usize| if i.is_multiple_of(3) { &r } else { &q };
    let item = |i: usize| json!({"queue": queue(i), "partition": format!("p{}", i % 50), "payload": i});
    let verdicts = b.push((0..1000).map(item).collect());
    assert_eq!(verdicts.len(), 1000);
    for (i, verdict) in verdicts.iter().enumerate() {
        assert_eq!((&verdict["index"], &verdict["queueName"]), (&json!(i), &json!(queue(i))));
        assert_eq!(verdict["status"], "queued");
    }
    let ids: HashSet<_> = verdicts.iter().map(|v| v["message_id"].as_str()).collect();
    assert_eq!(ids.len(), 1000);
    let got = b.drain(&q, "batch=100&partitions=20", "").len() + b.drain(&r, "batch=100&partitions=20", "").len();
    assert_eq!(got, 1000);
}

#[test]
fn names_with_any_character_work_on_every_route() {
    let b = two_shards();
    let names =
        ["with space", "sl/ash", "col:on", "per%cent", "que?ry", "ha#sh", "emoji-🐝", "a&b=c+d", &"x".repeat(200)];
    for name in names {
        let q = unique(name);
        b.push_keys(&q, name, &["k"]);
        let group = crate::harness::encode(name);
        let pop = b.pop(&q, &format!("consumerGroup={group}&subscriptionMode=all&leaseSeconds=60"));
        assert_eq!((pop.queue.as_str(), pop.partition.as_str(), pop.consumer_group.as_str()), (q.as_str(), name, name));
        b.complete(name, &pop);
        assert_eq!(b.pop_pinned(&q, name, "").keys(), ["k"]);
        assert_eq!(b.configure(&q, json!({"priority": 2}))["priority"], 2);
        assert_eq!(b.queue_detail(&q)["partitions"][0]["name"], name);
    }
}
