//! Conflating groups: invariant 43 and the rules of data plane 4.10, state plane 5.

use crate::harness::{Broker, Pop, Setup, at_once, encode, eventually, rules, unique};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const TICKER: &str = "consumerGroup=ticker&subscriptionMode=all&conflation=true";

/// The body of a pop that must be a 200, empty or not.
#[track_caller]
fn said(b: &Broker, path: &str) -> Value {
    let answer = b.get(path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// Which of the two keys an answer has; neither may ever be false.
#[track_caller]
fn keys(body: &Value) -> (bool, bool) {
    for key in ["conflation", "conflationConflict"] {
        assert_ne!(body.get(key), Some(&json!(false)), "{body}");
    }
    (body.get("conflation").is_some(), body.get("conflationConflict").is_some())
}

fn committed(b: &Broker, queue: &str) -> i64 {
    let sql = format!(
        "select max(c.committed) from queen.cursors as c join queen.partitions as p on p.id = c.partition_id
         join queen.queues as q on q.id = p.queue_id where q.name = '{queue}'"
    );
    crate::harness::shared_postgres().query(b.database.as_ref().expect("a database"), &sql).parse().expect("a number")
}

rules! {
    fn i43_the_newest_is_delivered_and_its_ack_retires_everything_before(b) {
        let q = unique("i43");
        b.push_n(&q, "p", "m", 100);
        let pop = b.pop(&q, TICKER);
        assert_eq!((pop.offsets(), pop.keys()), (vec![99], vec!["m99"]));
        let acked = b.ack_ok("ticker", &[pop.messages[0].ack("completed")]);
        assert_eq!((&acked[0]["conflated"], &acked[0]["leaseReleased"]), (&json!(99), &json!(true)));
        let empty = b.get(&format!("/api/v1/pop/queue/{q}?{TICKER}"));
        let want = format!(
            r#"{{"success":true,"queue":"{q}","partition":"","partitionId":"","leaseId":"","consumerGroup":"ticker","messages":[],"partitionsClaimed":0,"conflation":true}}"#
        );
        assert_eq!((empty.status, empty.text()), (200, want));
        // What was retired is below the cursor; other groups see all of it.
        let below = b.ack("ticker", &[json!({"transactionId": "m5", "partitionId": pop.partition_id})]);
        assert_eq!((&below[0]["noop"], below[0].get("conflated")), (&json!(true), None));
        assert_eq!(b.pop(&q, "consumerGroup=other&subscriptionMode=all").messages.len(), 100);
        let detail = b.get("/api/v1/consumer-groups/ticker").json();
        let partition = &detail[&q]["partitions"][0];
        assert_eq!((&detail[&q]["conflation"], &partition["offsetLag"]), (&json!(true), &json!(0)), "{detail}");
    }

    fn i43_what_is_pushed_during_a_handler_run_is_delivered_by_the_next_pop(b) {
        let q = unique("i43next");
        b.push_n(&q, "p", "a", 3);
        let first = b.pop(&q, TICKER);
        b.push_n(&q, "p", "b", 2);
        assert!(b.pop(&q, TICKER).is_empty(), "leased");
        b.complete("ticker", &first);
        assert_eq!(committed(b, &q), 2, "never beyond what was there at the pop");
        let second = b.pop(&q, TICKER);
        assert_eq!(second.offsets(), [4]);
        b.complete("ticker", &second);
        assert!(b.pop(&q, TICKER).is_empty());
    }

    fn i43_after_the_last_push_one_handler_run_begins_after_it(b) {
        let q = unique("i43last");
        let done = AtomicBool::new(false);
        let runs: Mutex<Vec<(String, i64)>> = Mutex::new(Vec::new());
        let last = at_once(6, |worker| {
            if worker < 2 {
                let mut top = Vec::new();
                for n in 0..40 {
                    let partition = format!("p{}", n % 4);
                    let verdicts = b.push_keys(&q, &partition, &[&format!("w{worker}-{n}")]);
                    top.push((partition, verdicts[0]["offset"].as_i64().unwrap()));
                }
                if worker == 0 {
                    done.store(true, Ordering::Release);
                }
                return top;
            }
            loop {
                let over = done.load(Ordering::Acquire);
                let pop = b.pop(&q, &format!("{TICKER}&batch=2&wait=true&timeout=300"));
                runs.lock().unwrap().extend(pop.messages.iter().map(|m| (m.partition.clone(), m.offset)));
                if !pop.is_empty() {
                    b.complete("ticker", &pop);
                } else if over {
                    return Vec::new();
                }
            }
        });
        // What the slower producer added meanwhile.
        let rest = b.drain(&q, TICKER, "ticker");
        let mut runs = runs.into_inner().unwrap();
        runs.extend(rest.iter().map(|m| (m.partition.clone(), m.offset)));
        for p in 0..4 {
            let partition = format!("p{p}");
            let of = |all: &[(String, i64)]| all.iter().filter(|run| run.0 == partition).map(|run| run.1).max();
            let pushed = last.iter().filter_map(|top| of(top)).max();
            assert_eq!(of(&runs), pushed, "{partition}");
            let mut offsets: Vec<i64> = runs.iter().filter(|run| run.0 == partition).map(|run| run.1).collect();
            offsets.sort_unstable();
            assert!(offsets.windows(2).all(|two| two[0] < two[1]), "no message twice: {offsets:?}");
        }
    }

    fn the_stored_policy_wins_and_a_request_that_says_otherwise_conflicts(b) {
        for (stored, declared, want) in [
            (false, "", (false, false)),
            (true, "", (true, false)),
            (true, "&conflation=true", (true, false)),
            (false, "&conflation=true", (false, true)),
            (true, "&conflation=false", (true, true)),
            (false, "&conflation=false", (false, false)),
        ] {
            let q = unique("policy");
            b.push_n(&q, "p", "m", 5);
            let first = if stored { "&conflation=true" } else { "" };
            let group = "consumerGroup=g&subscriptionMode=all";
            let before = b.pop(&q, &format!("{group}&{first}"));
            b.ack_ok("g", &[before.messages[0].ack("retry")]);
            let path = format!("/api/v1/pop/queue/{q}?{group}{declared}");
            let full = said(b, &path);
            let messages = full["messages"].as_array().unwrap();
            assert_eq!((messages.len(), keys(&full)), (if stored { 1 } else { 5 }, want), "{stored} {declared}");
            let acks: Vec<Value> = messages.iter().map(|m| json!({"transactionId": m["transactionId"],
                "partitionId": m["partitionId"], "leaseId": m["leaseId"], "status": "completed"})).collect();
            b.ack_ok("g", &acks);
            // Empty, at once and after a long poll, and pinned.
            let pinned = format!("/api/v1/pop/queue/{q}/partition/p?{group}{declared}");
            for path in [path.clone(), format!("{path}&wait=true&timeout=50"), pinned] {
                match want {
                    (false, false) => assert_eq!(b.get(&path).status, 204, "{path}"),
                    _ => {
                        let empty = said(b, &path);
                        assert_eq!((&empty["messages"], keys(&empty)), (&json!([]), want), "{path}");
                    }
                }
            }
            assert_eq!(b.get("/api/v1/consumer-groups").json().as_array().unwrap().iter()
                .find(|g| g["queueName"] == json!(q)).expect("listed")["conflation"], json!(stored));
        }
        // Group deletion makes way for another policy.
        let q = unique("policy-anew");
        b.push_n(&q, "p", "m", 3);
        assert_eq!(b.pop(&q, TICKER).messages.len(), 1);
        b.send("DELETE", &format!("/api/v1/consumer-groups/ticker/queues/{q}"), None);
        assert_eq!(b.pop(&q, "consumerGroup=ticker&subscriptionMode=all").messages.len(), 3);
    }

    fn one_message_per_partition_and_at_most_64(b) {
        let q = unique("wide");
        let item = |p: usize, n: usize| json!({"queue": q, "partition": format!("p{p}"), "payload": n});
        b.push((0..70).flat_map(|p| [item(p, 0), item(p, 1)]).collect());
        let widths = [("", 64), ("&batch=7", 7), ("&partitions=3", 3), ("&partitions=500&batch=9", 9), ("&partitions=0", 64)];
        for (i, (query, want)) in widths.into_iter().enumerate() {
            let pop = b.pop(&q, &format!("consumerGroup=g{i}&subscriptionMode=all&conflation=true{query}"));
            assert_eq!((pop.messages.len(), pop.partitions_claimed), (want, want as i64), "{query}");
            assert!(pop.messages.iter().all(|m| m.offset == 1 && m.lease_id == pop.lease_id), "{query}");
        }
        // A pop that says nothing of it is as wide; the autopilot leaves a conflating group alone.
        let path = format!("/api/v1/pop/queue/{q}?consumerGroup=g1&autopilot=true");
        let body = said(b, &path);
        assert_eq!((body["messages"].as_array().unwrap().len(), body.get("autopilot")), (63, None));
    }

    fn a_nack_gives_what_is_newest_then_and_the_budget_survives(b) {
        let q = unique("nack");
        b.configure(&q, json!({"retryLimit": 2, "leaseTime": 60}));
        for n in 0..3 {
            b.push_n(&q, "p", &format!("m{n}-"), 2);
            let pop = b.pop(&q, TICKER);
            assert_eq!((pop.offsets(), pop.messages[0].delivery_attempt), (vec![2 * n + 1], n + 1));
            let mut nack = pop.messages[0].ack("failed");
            nack["error"] = format!("no {n}").into();
            let acked = b.ack_ok("ticker", &[nack]);
            assert_eq!(acked[0]["dlq"], n == 2, "{acked:?}");
            assert_eq!(acked[0].get("conflated"), (n == 2).then_some(&json!(5)));
        }
        assert_eq!(b.dead_letters(&q), ["ticker|m2-1|no 2|2"]);
        assert!(b.pop(&q, TICKER).is_empty(), "the cursor is past it");
    }

    fn the_delivered_message_is_meant_wherever_else_its_key_is(b) {
        let q = unique("twice");
        b.configure(&q, json!({"dedupWindowSeconds": 0}));
        for key in ["k", "x", "k"] {
            b.push_keys(&q, "p", &[key]);
        }
        let pop = b.pop(&q, TICKER);
        assert_eq!(pop.offsets(), [2]);
        let acked = b.ack_ok("ticker", &[pop.messages[0].ack("completed")]);
        assert_eq!((&acked[0]["conflated"], committed(b, &q)), (&json!(2), 2));
    }

    fn a_pinned_pop_registers_the_group_like_a_wildcard_pop(b) {
        let q = unique("pinned");
        let path = |partition: &str, query: &str| format!("/api/v1/pop/queue/{}/partition/{partition}?{query}", encode(&q));
        let missing = said(b, &path("p0", TICKER));
        assert_eq!((&missing["messages"], keys(&missing)), (&json!([]), (true, false)), "no queue yet, and none is made");
        assert_eq!(b.get(&format!("/api/v1/resources/queues/{q}")).status, 404);
        for p in 0..8 {
            b.push_n(&q, &format!("p{p}"), "m", 3);
            // The group is met everywhere, as a plain one that is not registered.
            let plain = b.pop_pinned(&q, &format!("p{p}"), "consumerGroup=ticker&subscriptionMode=all&batch=1");
            assert_eq!(plain.offsets(), [0]);
            b.complete("ticker", &plain);
        }
        let elsewhere = said(b, &path("nowhere", TICKER));
        assert_eq!(keys(&elsewhere), (true, false), "registered, though there is no such partition");
        for p in 0..8 {
            let body = said(b, &path(&format!("p{p}"), "consumerGroup=ticker"));
            let offsets: Vec<&Value> = body["messages"].as_array().unwrap().iter().map(|m| &m["offset"]).collect();
            assert_eq!((offsets, keys(&body)), (vec![&json!(2)], (true, false)), "p{p}");
        }
        let group = b.get("/api/v1/consumer-groups").json();
        let group = group.as_array().unwrap().iter().find(|g| g["queueName"] == json!(q)).expect("listed").clone();
        assert_eq!((&group["conflation"], &group["subscriptionMode"]), (&json!(true), &json!("all")));
    }

    fn discovery_says_what_applied_to_what_it_delivered(b) {
        let ns = unique("cns");
        let (conflating, plain) = (unique("c1"), unique("c2"));
        for q in [&conflating, &plain] {
            b.configure(q, json!({"namespace": ns}));
        }
        assert!(b.pop(&conflating, TICKER).is_empty());
        assert!(b.pop(&plain, "consumerGroup=ticker&subscriptionMode=all").is_empty());
        let path = format!("/api/v1/pop?namespace={ns}&consumerGroup=ticker&batch=50&conflation=true");
        assert_eq!(keys(&said(b, &path)), (true, true), "empty: both were asked");
        b.push_n(&conflating, "p", "m", 4);
        let body = said(b, &path);
        assert_eq!((body["messages"].as_array().unwrap().len(), keys(&body)), (1, (true, false)));
        b.push_n(&plain, "p", "m", 4);
        let body = said(b, &path);
        assert_eq!((body["messages"].as_array().unwrap().len(), keys(&body)), (4, (false, true)));
        let nobody = said(b, &format!("/api/v1/pop?namespace={}&consumerGroup=ticker&conflation=true", unique("none")));
        assert_eq!(keys(&nobody), (true, false));
    }

    fn a_transaction_acks_a_conflating_delivery(b) {
        let (from, to) = (unique("tfrom"), unique("tto"));
        b.push_n(&from, "p", "m", 6);
        let pop = b.pop(&from, TICKER);
        let mut ack = pop.messages[0].ack("completed");
        ack["type"] = "ack".into();
        ack["consumerGroup"] = "ticker".into();
        let body = json!({"operations": [ack, {"type": "push", "queue": to, "payload": 1}]});
        assert_eq!(b.post("/api/v1/transaction", &body).json()["success"], true);
        assert_eq!(committed(b, &from), 5);
        assert!(b.pop(&from, TICKER).is_empty());
        b.push_n(&from, "p", "n", 2);
        assert_eq!(b.pop(&from, TICKER).offsets(), [7], "and the next lease conflates again");
    }

    fn a_delay_hides_from_a_conflating_group_too(b) {
        let q = unique("delay");
        b.configure(&q, json!({"delayedProcessing": 3}));
        b.push_n(&q, "p", "old", 3);
        assert!(b.pop(&q, TICKER).is_empty(), "nothing is visible yet");
        let old = b.pop(&q, "consumerGroup=plain&subscriptionMode=all&wait=true&timeout=20000");
        assert_eq!(old.offsets(), [0, 1, 2]);
        b.push_n(&q, "p", "new", 2);
        let pop = b.pop(&q, TICKER);
        assert_eq!(pop.offsets(), [2], "the newest visible one");
        b.complete("ticker", &pop);
        assert!(b.pop(&q, TICKER).is_empty());
        assert_eq!(b.pop(&q, &format!("{TICKER}&wait=true&timeout=20000")).offsets(), [4], "a delay's end wakes a poll");
    }
}

/// Rule 21: the mark is in the row, so a broker that never saw the lease knows what its key means.
#[test]
fn the_mark_of_a_conflating_lease_outlives_the_broker() {
    let b = Setup::clean().start();
    let q = unique("mark");
    b.configure(&q, json!({"dedupWindowSeconds": 0, "leaseTime": 300}));
    for key in ["k", "x", "y", "k"] {
        b.push_keys(&q, "p", &[key]);
    }
    let pop: Pop = b.pop(&q, TICKER);
    b.restart();
    let stale = b
        .ack("ticker", &[json!({"transactionId": "nobody", "partitionId": pop.partition_id, "leaseId": pop.lease_id})]);
    assert!(stale[0]["error"].as_str().unwrap().contains("unresolv"), "{stale:?}");
    let acked = b.ack_ok("ticker", &[pop.messages[0].ack("completed")]);
    assert_eq!((&acked[0]["conflated"], &acked[0]["leaseReleased"]), (&json!(3), &json!(true)));
    assert_eq!(committed(&b, &q), 3);
    // And so does the policy; the newest comes out of the store now.
    b.push_n(&q, "p", "m", 3);
    b.restart();
    assert_eq!(b.pop(&q, "consumerGroup=ticker").offsets(), [6]);
    assert_eq!(b.metric("queen_process_conflated_messages_total"), Some(0.0), "a new process counts anew");
    let ended =
        eventually("the end", || b.get(&format!("/api/v1/resources/queues/{q}/depth?group=ticker")).json().into());
    assert_eq!((&ended["conflation"], &ended["effectivePending"]), (&json!(true), &json!(1)), "{ended}");
}
