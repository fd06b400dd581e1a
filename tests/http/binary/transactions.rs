//! `QTB1`: one bundle of a JSON head and packed pushes. Binary forms 10.

use crate::harness::{Broker, Pop, at_once, rules, shared_postgres, unique};
use crate::wire::{self, Form, Item, PUSH_TYPE, pop_pinned, push, transaction};
use serde_json::{Value, json};

fn send(b: &Broker, head: &Value, items: &[Item], flags: u8) -> (u16, Value) {
    let head = if head.is_null() { String::new() } else { head.to_string() };
    let body = transaction(&head, items, flags);
    let answer = wire::send(b, "POST", "/api/v1/transaction", PUSH_TYPE, Some(&body));
    (answer.status, answer.json())
}

/// Sends a bundle, which must commit; its results.
#[track_caller]
fn commit(b: &Broker, head: &Value, items: &[Item]) -> Vec<Value> {
    let (status, body) = send(b, head, items, 0);
    assert_eq!((status, &body["success"]), (200, &json!(true)), "{body}");
    body["results"].as_array().unwrap().clone()
}

fn ack(pop: &Pop, at: usize) -> Value {
    let mut ack = pop.messages[at].ack("completed");
    ack["type"] = "ack".into();
    ack["consumerGroup"] = pop.consumer_group.clone().into();
    ack
}

fn items(queue: &str, keys: &[&str]) -> Vec<Item> {
    keys.iter().map(|key| Item::new(queue, "p", key, &format!("\"{key}\""))).collect()
}

fn count(b: &Broker, queue: &str) -> String {
    let sql = format!(
        "select coalesce(sum(s.count), 0) from queen.segments as s join queen.partitions as p on p.id = s.partition_id \
         join queen.queues as q on q.id = p.queue_id where q.name = '{queue}'"
    );
    shared_postgres().query(b.database.as_ref().unwrap(), &sql)
}

const ALL: &str = "consumerGroup=g&subscriptionMode=all";

rules! {
    fn head_and_wire_groups_commit_together(b) {
        let (from, to) = (unique("from"), unique("to"));
        push(b, Form::Packed, &items(&from, &["a", "b"]));
        let pop = b.pop(&from, ALL);
        let head = json!({"operations": [ack(&pop, 0), {"type": "push", "queue": to, "partition": "p", "payload": 0, "transactionId": "head"}, ack(&pop, 1)],
                          "requiredLeases": [pop.lease_id]});
        let results = commit(b, &head, &items(&to, &["x", "y"]));
        let kinds: Vec<_> = results.iter().map(|r| (r["index"].as_i64().unwrap(), r["type"].as_str().unwrap())).collect();
        assert_eq!(kinds, [(0, "ack"), (1, "push"), (2, "ack"), (3, "push"), (4, "push")], "the head first, then wire order");
        let stored = pop_pinned(b, &to, "p", "batch=10").pop;
        assert_eq!(stored.keys(), ["head", "x", "y"], "in its place");
        assert_eq!(stored.messages[1].id, results[3]["messageId"].as_str().unwrap());
        assert!(b.pop(&from, ALL).is_empty(), "acked");
    }

    /// The only bytes of its partition: stored as they came.
    fn a_clean_wire_group_is_stored_as_it_came(b) {
        let q = unique("txn");
        let all: Vec<Item> = (0..200).map(|i| Item::new(&q, "p", &format!("k{i}"), &format!("{{\"n\":{i}}}"))).collect();
        let body = transaction("", &all, 0);
        let answer = wire::send(b, "POST", "/api/v1/transaction", PUSH_TYPE, Some(&body));
        assert_eq!(answer.json()["success"], true, "{}", answer.text());
        let framed = pop_pinned(b, &q, "p", "batch=1000");
        assert_eq!((framed.records.len(), framed.records[0].codec), (1, 1));
        assert!(body.ends_with(&framed.records[0].bytes), "verbatim");
    }

    fn a_repeat_inside_is_stored_once_and_a_stored_key_rolls_back(b) {
        let q = unique("txn");
        let results = commit(b, &Value::Null, &items(&q, &["a", "b", "a"]));
        assert_eq!((&results[2]["duplicate"], &results[2]["messageId"]), (&json!(true), &results[0]["messageId"]));
        assert_eq!(pop_pinned(b, &q, "p", "").pop.keys(), ["a", "b"]);
        let other = unique("other");
        let mut all = items(&other, &["x"]);
        all.extend(items(&q, &["c", "b"]));
        let (status, body) = send(b, &Value::Null, &all, 0);
        assert_eq!((status, &body["success"], &body["reason"], &body["results"]), (200, &json!(false), &json!("duplicate"), &json!([])), "{body}");
        assert!(body["error"].as_str().unwrap().contains("transactionId b "), "{body}");
        assert_eq!((count(b, &q), count(b, &other)), ("2".into(), "0".into()), "nothing of it is stored");
    }

    fn groups_of_one_partition_keep_their_order(b) {
        let q = unique("txn");
        let of = |n: usize| Item::new(&q, ["p", "r"][n % 2], &format!("k{n}"), &n.to_string());
        let results = commit(b, &json!({"operations": []}), &(0..10).map(of).collect::<Vec<_>>());
        assert_eq!(results.len(), 10);
        assert_eq!(pop_pinned(b, &q, "p", "").pop.keys(), ["k0", "k2", "k4", "k6", "k8"]);
        assert_eq!(pop_pinned(b, &q, "r", "").pop.keys(), ["k1", "k3", "k5", "k7", "k9"]);
    }

    fn counts_instead_of_results(b) {
        let (from, to) = (unique("from"), unique("to"));
        push(b, Form::Json, &items(&from, &["a"]));
        let pop = b.pop(&from, ALL);
        let (status, body) = send(b, &json!({"operations": [ack(&pop, 0)]}), &items(&to, &["x", "y", "x"]), 2);
        assert_eq!(status, 200);
        assert!(body["transactionId"].is_string(), "{body}");
        let want = json!({"transactionId": body["transactionId"], "success": true, "pushed": 2, "duplicate": 1, "acked": 1, "results": []});
        assert_eq!(body, want);
        let (_, refused) = send(b, &Value::Null, &items(&to, &["x"]), 2);
        assert_eq!((&refused["success"], refused.get("pushed")), (&json!(false), None), "a refusal has its usual body: {refused}");
    }

    fn heads_that_are_refused(b) {
        let q = unique("txn");
        let one = items(&q, &["a"]);
        let raw = |head: &str, items: &[Item]| {
            let answer = wire::send(b, "POST", "/api/v1/transaction", PUSH_TYPE, Some(&transaction(head, items, 0)));
            (answer.status, answer.json())
        };
        for head in ["[]", "1", "{", "{} x", "nul"] {
            let (status, body) = raw(head, &one);
            assert!(status == 400 && body["error"].as_str().unwrap().starts_with("bad body: "), "{head}: {status} {body}");
        }
        let (status, body) = raw(r#"{"operations":[{"type":"what"}]}"#, &one);
        assert_eq!((status, &body["reason"]), (400, &json!("bad_request")), "as on the JSON route: {body}");
        let (status, body) = raw("", &[]);
        assert_eq!((status, &body["reason"]), (400, &json!("bad_request")), "nothing at all: {body}");
        let (status, body) = raw(r#"{"operations":[{"type":"ack","transactionId":"x","partitionId":"999999999","status":"completed"}]}"#, &one);
        assert_eq!((status, &body["reason"]), (200, &json!("ack_rejected")), "{body}");
        let (status, body) = send(b, &Value::Null, &[Item::new(&"x".repeat(1025), "p", "k", "1")], 0);
        assert_eq!((status, &body["reason"]), (400, &json!("bad_request")), "{body}");
        let (status, body) = send(b, &Value::Null, &[Item::new(&q, "p", "k", "nope")], 0);
        assert_eq!(status, 400, "{body}");
        assert_eq!(count(b, &q), "0");
    }

    fn bundles_and_pushes_of_one_partition_store_each_key_once(b) {
        let q = unique("txn");
        at_once(8, |n| {
            for round in 0..5 {
                let own = format!("{n}-{round}");
                if n % 2 == 0 {
                    push(b, Form::Packed, &items(&q, &["shared", &own]));
                } else {
                    commit(b, &Value::Null, &items(&q, &[&own]));
                }
            }
        });
        let mut keys: Vec<String> = pop_pinned(b, &q, "p", "batch=1000").pop.messages.into_iter().map(|m| m.transaction_id).collect();
        assert_eq!(keys.len(), 41);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 41, "each once");
    }
}
