//! Dead letters over HTTP: data plane 9.3, 9.4, 10; invariant 40.

use crate::harness::{Broker, Setup, at_once, rules, shared_postgres, two_shards, unique};
use serde_json::{Value, json};

const ALL: &str = "subscriptionMode=all&batch=100&partitions=20";

/// Pushes `n` messages with keys `prefix0`.. and dead-letters them all for the groups.
fn bury(b: &Broker, queue: &str, prefix: &str, n: usize, groups: &[&str]) {
    b.push_n(queue, "p", prefix, n);
    for group in groups {
        give_up(b, queue, group, n);
    }
}

/// Dead-letters the next `n` messages of a group, one by one: an ack that gives a message up ends its batch.
fn give_up(b: &Broker, queue: &str, group: &str, n: usize) {
    for _ in 0..n {
        let pop = b.pop(queue, &format!("consumerGroup={group}&subscriptionMode=all&batch=1"));
        let mut item = pop.messages[0].ack("dlq");
        item["error"] = "boom".into();
        b.ack_ok(group, &[item]);
    }
}

fn letters(b: &Broker, query: &str) -> Value {
    let answer = b.get(&format!("/api/v1/dlq?{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

rules! {
    fn i40_replaying_twice_yields_one_message_and_leaves_other_groups_rows(b) {
        let q = unique("i40");
        bury(b, &q, "m", 2, &["g", "h"]);
        let row = letters(b, &format!("queue={q}&consumerGroup=g&limit=1"))["messages"][0].clone();
        let id = row["id"].as_str().expect("an id");
        let answers = at_once(4, |_| b.send("POST", &format!("/api/v1/dlq/{id}/replay"), None));
        let (moved, gone): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.status == 200);
        assert_eq!((moved.len(), gone.len()), (1, 3));
        assert!(gone.iter().all(|a| a.status == 404 && a.json()["result"] == "gone"));
        let body = moved[0].json();
        assert_eq!((&body["result"], &body["dlqRowRemoved"], &body["originalTransactionId"]), (&json!("moved"), &json!(true), &row["transactionId"]));
        let replayed = &body["replayedAs"];
        assert_eq!((&replayed["transaction_id"], &replayed["status"], &replayed["offset"]), (&json!(format!("dlq:{id}")), &json!("queued"), &json!(2)));
        let got = b.drain(&q, &format!("consumerGroup=g&{ALL}"), "g");
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].transaction_id.as_str(), got[0].offset), (format!("dlq:{id}").as_str(), 2));
        assert_eq!((json!(got[0].id), got[0].data.get()), (replayed["message_id"].clone(), row["data"].to_string().as_str()));
        assert_eq!((letters(b, &format!("queue={q}&consumerGroup=h"))["total"].as_i64(), letters(b, &format!("queue={q}"))["total"].as_i64()), (Some(2), Some(3)));
        let again = b.push_keys(&q, "p", &["after"]);
        assert_eq!(again[0]["offset"], 3, "the owner shard goes on behind the replayed message");
    }

    fn a_replay_to_another_destination_wakes_it_and_obeys_its_window(b) {
        let (q, to) = (unique("dlqfrom"), unique("dlqto"));
        bury(b, &q, "m", 1, &["g"]);
        let id = letters(b, &format!("queue={q}"))["messages"][0]["id"].as_str().expect("an id").to_owned();
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| b.pop(&to, &format!("consumerGroup=g&{ALL}&wait=true&timeout=15000")));
            crate::harness::eventually("the poll parks", || (b.parked(&to) > 0).then_some(()));
            let body = b.post(&format!("/api/v1/dlq/{id}/replay"), &json!({"queue": format!(" {to} "), "partition": "x"})).json();
            assert_eq!((&body["result"], &body["queue"], &body["partition"], &body["replayedAs"]["offset"]), (&json!("moved"), &json!(to), &json!("x"), &json!(0)));
            assert_eq!(parked.join().expect("the pop").keys(), [format!("dlq:{id}")]);
        });

        bury(b, &q, "n", 2, &["h"]);
        let id = letters(b, &format!("queue={q}"))["messages"][0]["id"].as_str().expect("an id").to_owned();
        b.push_keys(&to, "x", &[&format!("dlq:{id}")]);
        let body = b.post(&format!("/api/v1/dlq/{id}/replay"), &json!({"queue": to, "partition": "x"})).json();
        assert_eq!((&body["result"], &body["dlqRowRemoved"], &body["replayedAs"]["message_id"]), (&json!("duplicate"), &json!(false), &json!("00000000-0000-0000-0000-000000000000")));
        assert_eq!(body["replayedAs"]["offset"], 1);
    }
}

#[test]
fn pages_keep_payloads_as_they_came_and_count_all() {
    let b = two_shards();
    let q = unique("dlqlist");
    b.push_raw(format!(r#"{{"items":[{{"queue":"{q}","partition":"p","transactionId":"k","payload":{{"b": 1.0, "a":"\u0041"}}}}]}}"#).as_bytes());
    b.push_n(&q, "p", "m", 3);
    give_up(b, &q, "g", 4);
    let page = letters(b, &format!("queue={q}&limit=3&offset=1"));
    assert_eq!((page["messages"].as_array().expect("rows").len(), &page["total"]), (3, &json!(4)));
    assert_eq!(page["pagination"], json!({"limit": 3, "offset": 1}));
    let all = b.get(&format!("/api/v1/dlq?queue={q}")).text();
    assert!(all.contains(r#""data":{"b": 1.0, "a":"\u0041"}"#), "{all}");
    assert_eq!(letters(b, &format!("queue={}", unique("none")))["total"], 0);
    let row = &page["messages"][0];
    assert_eq!(
        (&row["producerSub"], &row["createdAt"], &row["consumerGroup"]),
        (&Value::Null, &row["failedAt"], &json!("g"))
    );

    let purge = |query: &str| b.send("DELETE", &format!("/api/v1/dlq{query}"), None);
    assert_eq!(
        (purge("").status, purge("?queue=").json()["error"].as_str().map(str::to_owned)),
        (400, Some("queue is required".into()))
    );
    assert_eq!(purge(&format!("?queue={q}&consumerGroup=other")).json()["deleted"], 0);
    assert_eq!(
        purge(&format!("?queue={q}")).json(),
        json!({"success": true, "deleted": 4, "queue": q, "consumerGroup": null})
    );
}

/// A purge of any size is steps of a bounded number, each a statement of its own, so none runs into the time limit.
#[test]
fn a_purge_goes_step_by_step() {
    let b = Setup::clean().start();
    let database = b.database.clone().expect("a database");
    let q = unique("dlqmany");
    bury(&b, &q, "m", 1, &["g", "h"]);
    // Of each group 2,500 more, several of one moment; and more than 1,000 in one statement are refused.
    shared_postgres().query(
        &database,
        "insert into queen.dead_letters (queue_id, partition_id, group_name, message_offset, message_id, transaction_id,
             payload, encrypted, error, retry_count, failed_at)
         select d.queue_id, d.partition_id, d.group_name, 1 + n, gen_random_uuid(), 't' || n, d.payload, false, 'boom', 0,
             d.failed_at - (n / 7) * interval '1 s'
         from queen.dead_letters d, generate_series(1, 2500) n;
         create function few() returns trigger language plpgsql as $$ begin
             if (select count(*) from gone) > 1000 then raise 'too many at once'; end if; return null; end $$;
         create trigger few after delete on queen.dead_letters referencing old table as gone for each statement
             execute function few()",
    );
    let purge = |query: &str| b.send("DELETE", &format!("/api/v1/dlq?queue={q}{query}"), None).json();
    let done = purge("&consumerGroup=g");
    assert_eq!(done, json!({"success": true, "deleted": 2501, "queue": q, "consumerGroup": "g"}));
    assert_eq!(letters(&b, &format!("queue={q}&limit=1"))["total"], 2501, "those of the other group are there");
    assert_eq!(purge("")["deleted"], 2501);
    assert_eq!(purge("")["deleted"], 0);
}

#[test]
fn dead_letters_of_one_message() {
    let b = two_shards();
    let q = unique("dlqone");
    bury(b, &q, "m", 2, &["g", "h"]);
    let row = letters(b, &format!("queue={q}&consumerGroup=g"))["messages"][0].clone();
    let partition = row["partitionId"].as_str().expect("an id").to_owned();
    let path = |p: &str, t: &str| format!("/api/v1/messages/{p}/{t}");
    let retried = b.send("POST", &format!("{}/retry", path(&partition, "m0")), None).json();
    assert_eq!(
        (&retried["result"], &retried["consumerGroup"]),
        (&json!("moved"), &json!("h")),
        "the newest row: {retried}"
    );
    let deleted = b.send("DELETE", &path(&partition, "m0"), None);
    assert_eq!(
        deleted.json(),
        json!({"success": true, "partitionId": partition, "transactionId": "m0", "message": "Message deleted successfully"})
    );
    for (p, t) in [(partition.as_str(), "m0"), (&partition, "never"), ("nonsense", "m1"), ("-5", "m1")] {
        for answer in [b.send("DELETE", &path(p, t), None), b.send("POST", &format!("{}/retry", path(p, t)), None)] {
            assert_eq!((answer.status, answer.error().as_str()), (404, "Message not found"), "{p}/{t}");
            assert_eq!(answer.json()["partitionId"], p);
        }
    }
    assert_eq!(letters(b, &format!("queue={q}"))["total"], 2, "m1 of both groups");
    let bad = b.send("POST", "/api/v1/dlq/nonsense/replay", Some(b"null"));
    assert_eq!((bad.status, bad.json()["success"].as_bool()), (400, Some(false)), "the body comes first");
    assert_eq!(b.send("POST", "/api/v1/dlq/nonsense/replay", None).json()["dlqId"], "nonsense");
}

/// R06: a failure whose text PostgreSQL cannot store is counted and filed all the same, with a cleaned text.
#[test]
fn r06_a_failure_that_cannot_be_written_down_is_counted() {
    let b = two_shards();
    for (path, single) in [("/api/v1/ack", true), ("/api/v1/ack/batch", false)] {
        let q = unique("r06");
        b.configure(&q, json!({"retryLimit": 2}));
        b.push_n(&q, "p", "m", 3);
        let errors = [r"boom\u0000tail", r"half \ud800 pair", r"boom\u0000tail"];
        let mut last = Value::Null;
        for error in errors {
            let pop = b.pop(&q, "subscriptionMode=all&batch=1");
            let m = &pop.messages[0];
            assert_eq!(m.transaction_id, "m0");
            let item = format!(
                r#"{{"transactionId":"m0","partitionId":"{}","leaseId":"{}","status":"failed","error":"{error}"}}"#,
                m.partition_id, m.lease_id
            );
            let body = if single { item } else { format!(r#"{{"acknowledgments":[{item}]}}"#) };
            let answer = b.send("POST", path, Some(body.as_bytes()));
            assert_eq!(answer.status, 200, "{}", answer.text());
            last = answer.json()[0].clone();
            assert_eq!(last["success"], true, "{last}");
        }
        assert_eq!(last["dlq"], true, "{last}");
        let page = letters(b, &format!("queue={q}"));
        let row = &page["messages"][0];
        assert_eq!(
            (&page["total"], &row["data"], &row["transactionId"]),
            (&json!(1), &json!({"k": "m0"}), &json!("m0"))
        );
        let reason = row["errorMessage"].as_str().expect("a text");
        assert!(reason.starts_with("boom") && reason.ends_with("tail") && !reason.contains('\0'), "{reason:?}");
        assert_eq!(b.drain(&q, "subscriptionMode=all&batch=1", "").len(), 2, "the others are delivered");
    }
}
