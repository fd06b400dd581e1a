//! `POST /api/v1/transaction`: invariants 30 to 32, every reason, locks, cost. Data plane 7.

use crate::harness::{Answer, Broker, Pop, Setup, at_once, rules, shared_postgres, two_shards, unique};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ALL: &str = "consumerGroup=g&subscriptionMode=all";

fn send(b: &Broker, body: &Value) -> Answer {
    b.post("/api/v1/transaction", body)
}

/// Sends operations, which must commit; their results.
#[track_caller]
fn commit(b: &Broker, operations: Value) -> Vec<Value> {
    let answer = send(b, &json!({ "operations": operations }));
    let body = answer.json();
    assert_eq!((answer.status, &body["success"]), (200, &json!(true)), "{body}");
    body["results"].as_array().expect("results").clone()
}

/// Sends a bundle, which must be refused so; the text.
#[track_caller]
fn refused(b: &Broker, body: &Value, status: u16, reason: &str) -> String {
    let answer = send(b, body);
    let said = answer.json();
    assert_eq!((answer.status, &said["success"], &said["reason"]), (status, &json!(false), &json!(reason)), "{said}");
    assert_eq!(said["results"], json!([]));
    assert!(said["transactionId"].is_string(), "{said}");
    said["error"].as_str().expect("a text").to_owned()
}

fn push(queue: &str, partition: &str, key: &str) -> Value {
    json!({"type": "push", "items": [{"queue": queue, "partition": partition, "transactionId": key, "payload": {"k": key}}]})
}

fn ack(pop: &Pop, at: usize, status: &str) -> Value {
    let mut ack = pop.messages[at].ack(status);
    ack["type"] = "ack".into();
    ack["consumerGroup"] = pop.consumer_group.clone().into();
    ack
}

/// All of these queues that a bundle could leave a trace in.
fn dump(b: &Broker, queues: &[&String]) -> String {
    let names: Vec<String> = queues.iter().map(|name| format!("'{name}'")).collect();
    let sql = format!(
        "with q as (select * from queen.queues where name in ({})), p as (select p.* from queen.partitions as p join q on q.id = p.queue_id)
        select 'q', q::text from q union all select 'p', p::text from p
        union all select 's', s.partition_id || ' ' || s.base_offset || ' ' || s.count from queen.segments as s join p on p.id = s.partition_id
        union all select 'c', c::text from queen.cursors as c join p on p.id = c.partition_id
        union all select 'd', d::text from queen.dead_letters as d join q on q.id = d.queue_id order by 1, 2",
        names.join(", ")
    );
    shared_postgres().query(b.database.as_ref().expect("a database"), &sql)
}

fn number(b: &Broker, sql: &str) -> i64 {
    shared_postgres().query(b.database.as_ref().expect("a database"), sql).parse().expect("a number")
}

rules! {
    fn i31_ack_and_push_commit_together(b) {
        let (from, to) = (unique("from"), unique("to"));
        b.push_keys(&from, "p", &["a", "b"]);
        let pop = b.pop(&from, ALL);
        let results = commit(b, json!([
            {"type": "push", "queue": to, "payload": 1},
            ack(&pop, 0, "completed"),
            {"type": "push", "items": [{"queue": to, "partition": "x", "payload": [1, 2.50], "transactionId": "k"},
                                       {"queue": to, "partition": "x", "data": "é", "transactionId": "k2"}]},
            ack(&pop, 1, "success"),
        ]));
        assert_eq!(results.iter().map(|r| r["index"].as_i64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let kinds: Vec<_> = results.iter().map(|r| r["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["push", "ack", "push", "push", "ack"]);
        assert!(results.iter().all(|r| r["success"] == true));
        assert_eq!(results[1], json!({"index": 1, "type": "ack", "success": true, "transactionId": "a", "error": null, "dlq": false}));
        assert_eq!(results[0]["transactionId"], results[0]["messageId"], "a minted key is the id");
        let stored = b.pop_pinned(&to, "x", "");
        assert_eq!(stored.keys(), ["k", "k2"], "operation order, seen by a pop after the answer");
        assert_eq!(stored.offsets(), [0, 1]);
        assert_eq!(stored.messages[0].data.get(), "[1,2.5]", "serde_json spells it so when it sends");
        assert_eq!(stored.messages[1].id, results[3]["messageId"].as_str().unwrap());
        assert!(b.pop(&from, ALL).is_empty(), "acked");
        assert_eq!(b.pop_pinned(&to, "Default", "").messages.len(), 1);
    }

    fn a_trace_id_is_stored_when_it_is_a_uuid(b) {
        let q = unique("trace");
        let trace = "01990A12-4410-7bbb-9bbb-0000000000f1";
        commit(b, json!([{"type": "push", "queue": q, "payload": 1, "traceId": trace},
                         {"type": "push", "queue": q, "payload": 2, "traceId": "nonsense"},
                         {"type": "push", "queue": q, "traceId": null}]));
        let pop = b.pop(&q, "batch=10");
        let traces: Vec<_> = pop.messages.iter().map(|m| m.trace_id.as_deref()).collect();
        assert_eq!(traces, [Some(&*trace.to_lowercase()), None, None]);
        assert_eq!(pop.messages[2].data.get(), "{}");
    }

    fn a_key_twice_in_a_bundle_is_stored_once(b) {
        let q = unique("twice");
        let results = commit(b, json!([push(&q, "p", "k"), push(&q, "p", "k"), push(&q, "other", "k")]));
        assert_eq!(results[1]["messageId"], results[0]["messageId"]);
        assert_eq!((&results[1]["success"], &results[1]["duplicate"]), (&json!(true), &json!(true)));
        assert!(results[0].get("duplicate").is_none() && results[2].get("duplicate").is_none());
        assert_eq!(b.drain(&q, "batch=10", "").len(), 2);
    }

    fn i30_i32_a_stored_duplicate_refuses_the_bundle(b) {
        let (from, to, new) = (unique("from"), unique("to"), unique("new"));
        b.push_keys(&from, "p", &["a"]);
        b.push_keys(&to, "p", &["k"]);
        let pop = b.pop(&from, ALL);
        let before = dump(b, &[&from, &to, &new]);
        let body = json!({"operations": [push(&to, "p", "fresh"), ack(&pop, 0, "completed"), push(&new, "p", "n"), push(&to, "p", "k")]});
        let text = refused(b, &body, 200, "duplicate");
        assert!(text.starts_with("QDUP") && text.contains(&to) && text.contains(" p") && text.ends_with("transaction rolled back"), "{text}");
        assert_eq!(dump(b, &[&from, &to, &new]), before);
        commit(b, json!([ack(&pop, 0, "completed"), push(&to, "p", "fresh")]));
    }

    fn i30_i32_a_stale_lease_refuses_the_bundle(b) {
        let (from, to) = (unique("from"), unique("to"));
        b.push_keys(&from, "p1", &["a"]);
        b.push_keys(&from, "p2", &["b"]);
        let first = b.pop_pinned(&from, "p1", "consumerGroup=g&subscriptionMode=all&leaseSeconds=1");
        let second = b.pop_pinned(&from, "p2", ALL);
        let taken = b.pop_pinned(&from, "p1", &format!("{ALL}&wait=true&timeout=10000"));
        assert_eq!(taken.keys(), ["a"]);
        let before = dump(b, &[&from, &to]);
        let body = json!({"operations": [ack(&second, 0, "completed"), ack(&first, 0, "completed"), push(&to, "p", "x")]});
        let text = refused(b, &body, 200, "ack_rejected");
        let id = &first.partition_id;
        assert_eq!(text, format!("QTXN ack failed for partition {id} group g: invalid or expired lease; transaction rolled back"));
        assert_eq!(dump(b, &[&from, &to]), before);
        commit(b, json!([ack(&second, 0, "completed"), ack(&taken, 0, "completed"), push(&to, "p", "x")]));
    }

    fn i30_i32_an_unknown_key_refuses_the_bundle(b) {
        let (from, to) = (unique("from"), unique("to"));
        b.push_keys(&from, "p", &["a", "b"]);
        let pop = b.pop(&from, ALL);
        let mut bad = ack(&pop, 1, "completed");
        bad["transactionId"] = "never".into();
        let before = dump(b, &[&from, &to]);
        let body = json!({"operations": [push(&to, "p", "x"), ack(&pop, 0, "completed"), bad]});
        let text = refused(b, &body, 200, "ack_rejected");
        assert!(text.starts_with("QTXN ack references unknown transactionId never") && text.ends_with("transaction rolled back"), "{text}");
        for partition in ["99999999999", "x", ""] {
            let mut foreign = ack(&pop, 0, "completed");
            foreign["partitionId"] = partition.into();
            let text = refused(b, &json!({"operations": [push(&to, "p", "x"), foreign]}), 200, "ack_rejected");
            assert!(text.starts_with("QTXN ack references partition") && text.contains("not owned by this tenant"), "{text}");
        }
        assert_eq!(dump(b, &[&from, &to]), before);
    }

    fn names_the_store_cannot_take_refuse_the_bundle(b) {
        let q = unique("names");
        let before = dump(b, &[&q]);
        refused(b, &json!({"operations": [push(&q, "p", "x"), {"type": "push", "payload": 1}]}), 200, "db_error");
        refused(b, &json!({"operations": [push(&q, "p", "x"), {"type": "push", "queue": q, "partition": ""}]}), 200, "db_error");
        for (body, status, reason) in [
            (json!({"operations": [push(&q, "p", "x")], "kv": [{"op": "set"}]}), 403, "kv_disabled"),
            (json!({"operations": [push(&q, "p", "x")], "timers": [{}]}), 403, "timers_disabled"),
            (json!({"operations": [push(&q, "p", "x")], "kv": {}}), 400, "bad_request"),
            (json!({"operations": [push(&q, "p", "x"), {"type": "kv"}]}), 400, "bad_request"),
            (json!({}), 400, "bad_request"),
        ] {
            refused(b, &body, status, reason);
        }
        let answer = b.send("POST", "/api/v1/transaction", Some(b"{\"operations\":"));
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"].as_str().unwrap().starts_with("bad body: "));
        assert_eq!(dump(b, &[&q]), before);
        assert_eq!(commit(b, json!([])), Vec::<Value>::new());
    }

    fn below_the_cursor_is_tolerated_and_nacks_have_their_effect(b) {
        let (from, to) = (unique("from"), unique("to"));
        b.push_keys(&from, "p", &["a", "b", "c"]);
        let pop = b.pop(&from, ALL);
        b.ack_ok("g", &[pop.messages[0].ack("completed")]);
        let results = commit(b, json!([ack(&pop, 0, "failed"), ack(&pop, 1, "completed"), push(&to, "p", "x")]));
        assert_eq!((&results[0]["success"], &results[0]["error"]), (&json!(true), &json!(null)));
        let mut dead = ack(&pop, 2, "dlq");
        dead["error"] = "cannot".into();
        let results = commit(b, json!([dead, push(&to, "p", "y")]));
        assert_eq!(results[0]["dlq"], true);
        assert_eq!(b.dead_letters(&from), ["g|c|cannot|0"]);
        assert!(b.pop(&from, ALL).is_empty());

        b.push_keys(&from, "p", &["d"]);
        let pop = b.pop(&from, ALL);
        commit(b, json!([ack(&pop, 0, "retry")]));
        let again = b.pop(&from, ALL);
        assert_eq!((again.keys(), again.messages[0].delivery_attempt), (vec!["d"], 2), "released at once");
        commit(b, json!([ack(&again, 0, "completed")]));
    }

    fn required_leases_fence_acks_without_one(b) {
        let (from, to) = (unique("from"), unique("to"));
        for p in ["p1", "p2"] {
            b.push_keys(&from, p, &["a", "b"]);
        }
        let pops: Vec<Pop> = ["p1", "p2"].iter().map(|p| b.pop_pinned(&from, p, ALL)).collect();
        let bare = |pop: &Pop, at: usize| {
            let mut ack = ack(pop, at, "completed");
            ack.as_object_mut().unwrap().remove("leaseId");
            ack
        };
        let dead = "01990a12-4410-7bbb-9bbb-0000000000f1";
        let ops = json!([bare(&pops[0], 0), push(&to, "p", "x")]);
        refused(b, &json!({"operations": ops, "requiredLeases": [dead]}), 200, "ack_rejected");
        refused(b, &json!({"operations": ops, "requiredLeases": [dead, pops[1].lease_id]}), 200, "ack_rejected");
        let both = json!([bare(&pops[0], 0), bare(&pops[1], 0), push(&to, "p", "x")]);
        let body = json!({"operations": both, "requiredLeases": [dead, pops[0].lease_id, pops[1].lease_id, 5, null, ""]});
        assert_eq!(send(b, &body).json()["success"], true);
        commit(b, json!([bare(&pops[0], 1)]));
        assert_eq!(send(b, &json!({"operations": [push(&to, "p", "y")], "requiredLeases": [dead]})).json()["success"], true);
    }

    fn a_parked_pop_is_woken_by_a_bundle(b) {
        let (known, new) = (unique("known"), unique("new"));
        b.push_keys(&known, "p", &["a"]);
        b.complete("g", &b.pop(&known, ALL));
        for q in [&known, &new] {
            let begun = std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    let pop = b.pop(q, &format!("{ALL}&wait=true&timeout=10000"));
                    (Instant::now(), pop.keys().join(","))
                });
                crate::harness::eventually("the pop is parked", || (b.parked(q) > 0).then_some(()));
                let begun = Instant::now();
                commit(b, json!([push(q, "p", "woken")]));
                let (woken, keys) = waits.join().unwrap();
                assert_eq!(keys, "woken");
                woken.saturating_duration_since(begun)
            });
            assert!(begun < Duration::from_secs(2), "{begun:?}");
        }
    }

    fn of_bundles_with_one_key_exactly_one_is_committed(b) {
        let q = unique("race");
        let won = at_once(16, |i| {
            let body = json!({"operations": [push(&q, "p", &format!("own{i}")), push(&q, "p", "same")]});
            let said = send(b, &body).json();
            assert!(said["success"] == true || said["reason"] == "duplicate", "{said}");
            said["success"] == true
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        assert_eq!(b.drain(&q, "batch=100", "").len(), 2);
    }

    fn of_bundles_that_ack_one_message_exactly_one_nacks(b) {
        let (from, to) = (unique("from"), unique("to"));
        b.push_keys(&from, "p", &["a"]);
        let pop = b.pop(&from, ALL);
        let won = at_once(8, |i| {
            let said = send(b, &json!({"operations": [push(&to, "p", &format!("m{i}")), ack(&pop, 0, "retry")]})).json();
            assert!(said["success"] == true || said["reason"] == "ack_rejected", "{said}");
            said["success"] == true
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        assert_eq!(b.drain(&to, "batch=100", "").len(), 1);
    }
}

/// Rule 7 of the architecture: retried from outside, it would lose against a lane that always moves.
#[test]
fn a_bundle_does_not_starve_on_a_hot_lane() {
    let b = two_shards();
    let q = unique("hot");
    b.push_keys(&q, "p", &["first"]);
    let stop = AtomicBool::new(false);
    let pushed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (stop, pushed, q) = (&stop, &pushed, &q);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    b.push_n(q, "p", &format!("w{t}-{n}-"), 5);
                    pushed.fetch_add(5, Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        for n in 0..100 {
            commit(b, json!([push(&q, "p", &format!("bundle{n}"))]));
        }
        let took = begun.elapsed();
        assert_eq!(send(b, &json!({"operations": [push(&q, "p", "bundle7")]})).json()["reason"], "duplicate");
        stop.store(true, Ordering::Relaxed);
        println!("100 bundles on a lane with {} other messages took {took:?}", pushed.load(Ordering::Relaxed));
        assert!(took < Duration::from_secs(20), "{took:?}");
    });
    let all = b.drain(&q, "batch=10000", "");
    assert_eq!(all.len() as u64, 101 + pushed.load(Ordering::Relaxed));
    let offsets: Vec<i64> = all.iter().map(|m| m.offset).collect();
    assert_eq!(offsets, (0..all.len() as i64).collect::<Vec<_>>(), "no gap");
}

/// Issue 3: at most 0.2 PostgreSQL commits a transaction at 64 concurrent ones on different partitions.
#[test]
fn concurrent_transactions_share_commits() {
    const CONCURRENT: usize = 64;
    const EACH: usize = 20;
    let b = &Setup::clean().start();
    let (from, to) = (unique("from"), unique("to"));
    let name = |t: usize| format!("p{t}");
    let pops: Vec<Pop> = at_once(CONCURRENT, |t| {
        b.push_n(&from, &name(t), "m", EACH);
        b.push_keys(&to, &name(t), &["first"]);
        b.pop_pinned(&from, &name(t), &format!("{ALL}&batch={EACH}"))
    });
    let commits = "select xact_commit from pg_stat_database where datname = current_database()";
    // An idle session reports what it counted within ten seconds. What happens in an idle broker is not counted.
    let report = || {
        std::thread::sleep(Duration::from_secs(11));
        number(b, commits)
    };
    let idle = -(report() - report());
    let before = report();
    let begun = Instant::now();
    at_once(CONCURRENT, |t| {
        for n in 0..EACH {
            commit(b, json!([ack(&pops[t], n, "completed"), push(&to, &name(t), &format!("out{n}"))]));
        }
    });
    let took = begun.elapsed();
    let used = report() - before - idle;
    let each = used as f64 / (CONCURRENT * EACH) as f64;
    println!(
        "{} transactions in {took:?}: {used} commits, {each:.3} each ({idle} in an idle broker)",
        CONCURRENT * EACH
    );
    assert!(each <= 0.2, "{each:.3} commits a transaction");
    assert_eq!(b.drain(&to, "batch=10000", "").len(), CONCURRENT * (EACH + 1));
}

/// One lock order for all: transactions, pushes, pops, acks, seeks, retention and queue deletes at full speed, without
/// one deadlock. QUEEN_TEST_LONG makes it a minute.
#[test]
fn a_mixed_run_has_no_deadlock() {
    let seconds = std::env::var("QUEEN_TEST_LONG").map_or(10, |_| 60);
    let b = &Setup::clean().env("RETENTION_INTERVAL", "300").start();
    let queues: Vec<String> = (0..4).map(|_| unique("mix")).collect();
    for queue in &queues[..2] {
        b.configure(queue, json!({"retentionEnabled": true, "retentionSeconds": 2, "completedRetentionSeconds": 1}));
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let (committed, refusals) = (AtomicU64::new(0), AtomicU64::new(0));
    at_once(14, |t| {
        let mut n = 0u64;
        let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(t as u64 + 1);
        while Instant::now() < until {
            n += 1;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = |k: u32| (random >> (20 + k)) as usize;
            let (queue, other) = (&queues[pick(0) % 3], &queues[pick(5) % 4]);
            let partition = |k: u32| format!("p{}", pick(k) % 12);
            let key = format!("{t}-{n}");
            match t {
                0..8 => {
                    let pop = b.pop(queue, "consumerGroup=g&subscriptionMode=all&batch=3&partitions=3&leaseSeconds=2");
                    let mut operations: Vec<Value> = (0..pop.messages.len())
                        .map(|i| ack(&pop, i, if n.is_multiple_of(7) { "retry" } else { "completed" }))
                        .collect();
                    operations.push(push(other, &partition(9), &key));
                    operations.push(push(&queues[pick(13) % 4], &partition(17), &key));
                    let said = send(b, &json!({ "operations": operations })).json();
                    let counter = if said["success"] == true { &committed } else { &refusals };
                    assert!(said["success"].is_boolean(), "{said}");
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                8..11 => {
                    let item = |k| json!({"queue": queues[pick(k) % 4], "partition": partition(k + 3), "payload": n});
                    b.push(json!([item(1), item(6), item(11)]));
                }
                11..13 => {
                    let pop = b.pop(queue, "consumerGroup=g&subscriptionMode=all&batch=5&partitions=4&leaseSeconds=2");
                    let acks: Vec<Value> = pop.messages.iter().map(|m| m.ack("completed")).collect();
                    b.ack("g", &acks);
                }
                _ => {
                    b.send("DELETE", &format!("/api/v1/resources/queues/{}", queues[3]), None);
                    let seek = format!("/api/v1/consumer-groups/g/queues/{queue}/seek");
                    let answer =
                        b.post(&seek, &json!({"toEnd": n.is_multiple_of(2), "timestamp": "2020-01-01T00:00:00Z"}));
                    assert!(answer.status < 500, "{}", answer.text());
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    let deadlocks = number(b, "select deadlocks from pg_stat_database where datname = current_database()");
    println!("{} committed, {} refused, {deadlocks} deadlocks", committed.into_inner(), refusals.into_inner());
    assert_eq!(deadlocks, 0);
    let holes = "select count(*) from (
        select base_offset, lag(base_offset + count, 1, base_offset) over w as next, created_at,
            lag(created_at, 1, '-infinity') over w as before
        from queen.segments window w as (partition by partition_id order by base_offset)
    ) as s where base_offset <> next or created_at < before";
    assert_eq!(number(b, holes), 0, "offsets without gaps, stamps that never fall");
}

/// Invariant 31: killed at any moment, the output is there exactly if its input is acked.
#[test]
fn i31_a_crash_leaves_both_or_none() {
    let b = &Setup::clean().start();
    let (from, to) = (unique("from"), unique("to"));
    const N: usize = 400;
    b.push_n(&from, "p", "m", N);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // A client that never panics: the broker goes away under it.
            let mut client = b.client();
            let path = format!("/api/v1/pop/queue/{from}?{ALL}&batch={N}");
            let pop: Pop = serde_json::from_slice(&client.get(&path).unwrap().body).unwrap();
            for at in 0..pop.messages.len() {
                let key = &pop.messages[at].transaction_id;
                let body = json!({"operations": [ack(&pop, at, "completed"), push(&to, "p", key)]}).to_string();
                if client.send("POST", "/api/v1/transaction", &[], Some(body.as_bytes())).is_err() {
                    return;
                }
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        crate::harness::eventually("some are done", || (answered.load(Ordering::Relaxed) > 40).then_some(()));
        b.kill();
        worker.join().unwrap();
    });
    let both = || {
        let ends = format!(
            "select coalesce(max(c.committed), -1) || ' ' || (
                select coalesce(max(p.last_offset), -1) from queen.partitions as p
                join queen.queues as q on q.id = p.queue_id where q.name = '{to}')
             from queen.cursors as c join queen.partitions as p on p.id = c.partition_id
             join queen.queues as q on q.id = p.queue_id where q.name = '{from}'"
        );
        let ends = shared_postgres().query(b.database.as_ref().expect("a database"), &ends);
        let (acked, stored) = ends.split_once(' ').expect("two numbers");
        assert_eq!(acked, stored, "in one snapshot, at any moment");
        stored.parse::<i64>().unwrap()
    };
    let stored = both();
    println!("killed after {} of {N}", stored + 1);
    assert!(stored + 1 >= answered.load(Ordering::Relaxed) as i64);
    b.restart();
    let stored = both();
    assert_eq!(b.drain(&to, "batch=1000", "").len() as i64, stored + 1);
}
