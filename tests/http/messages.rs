//! Stored messages and reads by offset over HTTP: data plane 9.1, 9.2, 13.

use crate::harness::{Broker, Setup, at_once, eventually, rules, shared_postgres, two_shards, unique};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};

fn page(b: &Broker, query: &str) -> Value {
    let answer = b.get(&format!("/api/v1/messages?{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn keys(page: &Value) -> Vec<&str> {
    page["messages"].as_array().expect("rows").iter().map(|m| m["transactionId"].as_str().expect("a key")).collect()
}

#[test]
fn a_page_is_newest_first_with_payloads_as_they_came() {
    let b = two_shards();
    let q = unique("msg");
    b.push_n(&q, "a", "a", 3);
    b.push_n(&q, "b", "b", 2);
    b.push_raw(
        format!(r#"{{"items":[{{"queue":"{q}","partition":"a","transactionId":"last","payload":{{"n": 1.0}}}}]}}"#)
            .as_bytes(),
    );
    let all = page(b, &format!("queue={q}"));
    assert_eq!((keys(&all), &all["total"]), (vec!["last", "b1", "b0", "a2", "a1", "a0"], &json!(6)));
    assert_eq!(keys(&page(b, &format!("queue={q}&limit=2&offset=1"))), ["b1", "b0"]);
    assert_eq!(keys(&page(b, &format!("queue={q}&partition=b&status=pending"))), ["b1", "b0"]);
    assert_eq!(keys(&page(b, &format!("queue={q}&status=completed"))), Vec::<&str>::new());
    assert_eq!(keys(&page(b, &format!("queue={q}&to=2001-01-01"))), Vec::<&str>::new());
    let text = b.get(&format!("/api/v1/messages?queue={q}&limit=1")).text();
    assert!(text.contains(r#""data":{"n": 1.0},"payload":{"n": 1.0}"#), "{text}");
    let first = &all["messages"][0];
    assert_eq!((&first["segment"], &first["queuePath"]), (&json!({"seq": 3, "frameIdx": 0}), &json!(format!("{q}/a"))));
    assert_eq!((&first["traceId"], &first["payloadAvailable"]), (&Value::Null, &json!(true)));
    assert_eq!(first["txnHash"].as_str().map(str::len), Some(32));
    assert_eq!(all["mode"], json!({"hasQueueMode": false, "busGroupsCount": 0, "type": "none"}));
    assert_eq!(b.get("/api/v1/messages?from=nonsense").status, 400);
}

#[test]
fn statuses_follow_cursors_leases_and_dead_letters() {
    let b = two_shards();
    let q = unique("msgstatus");
    b.push_n(&q, "p", "m", 3);
    let pop = b.pop(&q, "consumerGroup=g&subscriptionMode=all&batch=1");
    let status = || {
        page(b, &format!("queue={q}"))["messages"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|m| m["status"].as_str().expect("a status").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(status(), ["processing"; 3], "a live lease covers the partition");
    b.complete("g", &pop);
    assert_eq!(status(), ["pending", "pending", "completed"]);
    let pop = b.pop(&q, "consumerGroup=g&batch=1");
    b.ack_ok("g", &[pop.messages[0].ack("dlq")]);
    assert_eq!(status(), ["pending", "dead_letter", "completed"]);
    assert_eq!(page(b, &format!("queue={q}"))["mode"]["type"], "bus");

    let path = |t: &str| format!("/api/v1/messages/{}/{t}", pop.partition_id);
    let dead = b.get(&path("m1")).json();
    assert_eq!(
        (&dead["status"], &dead["data"], &dead["retryCount"]),
        (&json!("dead_letter"), &json!({"k": "m1"}), &json!(0))
    );
    assert_eq!(dead["consumerGroups"], json!([{"name": "g", "group": "g", "consumed": true, "leaseExpiresAt": null}]));
    assert_eq!(dead["queueConfig"]["retryLimit"], 3);
    assert_eq!(dead["mode"], json!({"hasQueueMode": false, "busGroupsCount": 1, "type": "bus"}));
    for path in [path("never"), "/api/v1/messages/nonsense/m0".into(), "/api/v1/messages/99999999/m0".into()] {
        let answer = b.get(&path);
        assert_eq!((answer.status, answer.text().as_str()), (404, r#"{"error":"Message not found"}"#), "{path}");
    }
}

fn fetch(b: &Broker, body: &Value) -> Value {
    let answer = b.post("/api/v1/fetch", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["entries"].clone()
}

/// While nothing new is there a fetch that waits looks at watermarks only: what it has seen is read at its beginning and its end.
#[test]
fn a_fetch_that_waits_does_not_read_messages_again_and_again() {
    let database = shared_postgres().create_database();
    shared_postgres().query(&database, &format!("alter database {database} set track_functions = 'all'"));
    let b = Setup::on(shared_postgres(), &database).start();
    let q = unique("fetchlook");
    b.push_n(&q, "p", "m", 1);
    let of = |wait: u32| {
        let start = Instant::now();
        let got = fetch(
            &b,
            &json!({"entries": [{"queue": q, "partition": "p", "offset": 0}], "minBytes": 1000, "maxWaitMs": wait}),
        );
        assert_eq!(got[0]["records"].as_array().map(Vec::len), Some(1));
        start.elapsed()
    };
    assert!(Duration::from_secs(3) <= of(3000), "it waits");
    // A session tells what it counted once a second, at the end of a call.
    std::thread::sleep(Duration::from_millis(1200));
    of(0);
    let calls = |name: &str| -> u64 {
        let sql = format!("select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = '{name}'");
        shared_postgres().query(&database, &sql).trim().parse().expect("a number")
    };
    let (looks, reads) = (calls("fetch"), calls("read_records"));
    eprintln!("a fetch of 3 s: {looks} looks, {reads} reads of messages");
    assert!(10 <= looks && reads <= 4, "{looks} looks, {reads} reads");
}

rules! {
    fn i3_fetch_reports_the_offsets_that_push_and_pop_report(b) {
        let q = unique("fetch");
        for round in 0..3 {
            b.push_n(&q, "p", &format!("r{round}-"), 4);
        }
        let got = fetch(b, &json!({"entries": [
            {"queue": q, "partition": "p", "offset": 5}, {"queue": q, "partition": "p", "offset": 12},
            {"queue": q, "partition": "p", "offset": 13}, {"queue": q, "partition": "none", "offset": 0},
            {"queue": q, "partition": "p", "offset": 0, "maxBytes": 1}]}));
        let of = |n: usize| got[n]["records"].as_array().expect("records").iter().map(|r| (r["offset"].as_i64().expect("an offset"), r["transactionId"].as_str().expect("a key").to_owned())).collect::<Vec<_>>();
        let popped: Vec<_> = b.drain(&q, "subscriptionMode=all&batch=100", "").into_iter().map(|m| (m.offset, m.transaction_id)).collect();
        assert_eq!(of(0), popped[5..]);
        assert_eq!((&got[0]["highWatermark"], &got[0]["logStartOffset"], got[0].get("error")), (&json!(12), &json!(0), None));
        assert_eq!((of(1).len(), got[1].get("error")), (0, None), "caught up");
        assert_eq!((&got[2]["error"], &got[2]["highWatermark"]), (&json!("OFFSET_OUT_OF_RANGE"), &json!(12)));
        assert_eq!((got[3].get("error"), &got[3]["highWatermark"], &got[3]["records"]), (None, &json!(0), &json!([])), "never written");
        assert_eq!(of(4), popped[..4], "one stored group at least");
    }

    fn a_fetch_waits_for_what_it_asked_for_and_errors_end_the_wait(b) {
        let q = unique("fetchwait");
        b.push_n(&q, "p", "m", 1);
        let body = json!({"entries": [{"queue": q, "partition": "p", "offset": 1}], "maxWaitMs": 15000});
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (fetch(b, &body), Instant::now()));
            std::thread::sleep(Duration::from_millis(150));
            b.push_keys(&q, "p", &["late"]);
            let pushed = Instant::now();
            let (got, at) = waiting.join().expect("the fetch");
            assert_eq!(got[0]["records"][0]["transactionId"], "late");
            assert!(at.saturating_duration_since(pushed) < Duration::from_secs(5));
        });
        // A partition that nobody has written can be waited for.
        let body = json!({"entries": [{"queue": q, "partition": "new", "offset": 0}], "maxWaitMs": 15000});
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| fetch(b, &body));
            b.push_keys(&q, "new", &["first"]);
            assert_eq!(waiting.join().expect("the fetch")[0]["records"][0]["transactionId"], "first");
        });
        let start = Instant::now();
        let failed = json!({"entries": [{"queue": unique("none"), "partition": "p", "offset": 0}], "maxWaitMs": 15000});
        assert_eq!(fetch(b, &failed)[0]["error"], "UNKNOWN_TOPIC_OR_PARTITION");
        let short = json!({"entries": [{"queue": q, "partition": "p", "offset": 2}], "maxWaitMs": 200});
        assert_eq!(fetch(b, &short)[0]["records"], json!([]));
        assert!(start.elapsed() < Duration::from_secs(8));
    }

    fn passes_armed_with_safe_time_miss_no_record_under_concurrent_pushes(b) {
        let q = unique("changed");
        b.push_n(&q, "p0", "first", 1);
        let rounds = 30;
        let counted = at_once(5, |worker| {
            if worker > 0 {
                for i in 0..rounds {
                    b.push_n(&q, &format!("p{}", (worker * 7 + i) % 12), &format!("w{worker}-{i}-"), 2);
                }
                return HashMap::new();
            }
            // Follows the queue by passes alone: every partition's end as the last pass that named it says.
            let (mut ends, mut since) = (HashMap::new(), Value::Null);
            let mut idle = 0;
            while idle < 3 {
                let mut after = Value::Null;
                let mut safe: Option<Value> = None;
                let mut named = 0;
                loop {
                    let body = json!({"entries": [{"queue": q, "since": since, "after": after, "limit": 5}]});
                    let got = b.post("/api/v1/partitions/changed", &body).json();
                    safe.get_or_insert_with(|| got["safeTime"].clone());
                    for p in got["entries"][0]["partitions"].as_array().expect("partitions") {
                        let (name, end) = (p["name"].as_str().expect("a name").to_owned(), p["lastOffset"].as_i64().expect("an end"));
                        named += (ends.insert(name, end) != Some(end)) as usize;
                    }
                    after = got["entries"][0]["next"].clone();
                    if after.is_null() {
                        break;
                    }
                }
                since = safe.expect("a time");
                idle = if named == 0 { idle + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(30 + 200 * idle));
            }
            ends
        });
        let total: i64 = counted[0].values().map(|end: &i64| end + 1).sum();
        assert_eq!(total, 1 + 4 * rounds as i64 * 2);
    }
}

/// Also not when a transaction writes at last that was open long before. Source: state plane 9, CHG-4.
#[test]
fn safe_time_never_decreases() {
    let b = Setup::clean().start();
    let postgres = shared_postgres();
    let database = b.database.as_deref().expect("a database");
    let safe = || b.post("/api/v1/partitions/changed", &json!({"entries": []})).json()["safeTime"].clone();
    let safe = || safe().as_str().expect("a time").to_owned();
    let lock = "select pg_advisory_lock(4711)";
    let mut gate = postgres.spawn(database, &format!("{lock}; select pg_sleep(600)"));
    let reads = |sql: &str| {
        postgres.query(
            database,
            &format!("select count(*) from pg_stat_activity where datname = current_database() and {sql}"),
        )
    };
    eventually("the gate is closed", || (reads("wait_event = 'PgSleep'") == "1").then_some(()));
    let mut late = postgres.spawn(database, &format!("begin; {lock}; create table late (); select pg_sleep(600)"));
    eventually("it waits", || (reads("wait_event_type = 'Lock'") == "1").then_some(()));
    let began = safe();
    eventually("a moment passes", || (began < safe()).then_some(()));
    let before = safe();
    postgres.query(database, "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted");
    eventually("it has written", || (reads("backend_xid is not null and wait_event = 'PgSleep'") == "1").then_some(()));
    let after = safe();
    assert!(before <= after, "{before} {after}");
    postgres.query(
        database,
        "select pg_terminate_backend(pid) from pg_stat_activity where query like '%late%' and pid <> pg_backend_pid()",
    );
    gate.wait().and_then(|_| late.wait()).expect("psql ends");
    eventually("it goes on", || (after < safe()).then_some(()));
}

#[test]
fn changed_refuses_and_reports() {
    let b = two_shards();
    let q = unique("changed");
    b.push_n(&q, "p", "m", 2);
    let post = |body: Value| b.post("/api/v1/partitions/changed", &body);
    assert_eq!(post(json!({"entries": []})).json()["entries"], json!([]));
    assert_eq!(post(json!({})).json()["entries"], json!([]));
    let first = post(json!({"entries": [{"queue": q, "after": ""}]})).json();
    assert_eq!(first["entries"][0]["partitions"][0]["name"], "p", "from the start");
    assert_eq!(post(json!({"entries": [{"queue": q, "since": "soon"}]})).status, 400);
    assert_eq!(post(json!({"entries": vec![json!({"queue": q}); 1025]})).status, 400);
    let got = post(json!({"entries": [{"queue": q}, {"queue": unique("none")}, {"queue": q, "after": "x"}]})).json();
    let p = &got["entries"][0]["partitions"][0];
    assert_eq!((&p["name"], &p["lastOffset"], &p["logStart"]), (&json!("p"), &json!(1), &json!(0)));
    assert_eq!(
        (&got["entries"][1]["error"], &got["entries"][2]["error"]),
        (&json!("UNKNOWN_TOPIC_OR_PARTITION"), &json!("BAD_CURSOR"))
    );
    assert_eq!(got["safeTimeDegraded"], false);
    let later = post(json!({"entries": [{"queue": q, "since": "2101-01-01"}]})).json();
    assert_eq!(later["entries"][0], json!({"queue": q, "partitions": [], "next": null}));
}
