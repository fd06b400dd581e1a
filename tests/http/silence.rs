//! A database that is there and does not answer.

use crate::harness::{Broker, Setup, at_once, eventually, shared_postgres, unique};
use serde_json::json;
use std::time::{Duration, Instant};

/// Does something while the table of partitions is locked by somebody, and sees that it was locked until the end.
fn behind_a_lock(b: &Broker, act: impl FnOnce()) {
    behind_a_lock_of(b, "partitions", act);
}

fn behind_a_lock_of(b: &Broker, table: &str, act: impl FnOnce()) {
    let database = b.database.clone().expect("a database");
    let release = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (database, done) = (&database, release.1);
        let locker = scope.spawn(move || {
            let lock = format!("begin; lock table queen.{table} in access exclusive mode; select pg_sleep(25)");
            let held = shared_postgres().try_query(database, &lock);
            // An answer that came first has let the test go on; then this statement was ended from outside.
            (held.is_ok(), done.try_recv().is_ok())
        });
        let locked = format!(
            "select 1 from pg_locks as l join pg_class as c on c.oid = l.relation \
             where c.relname = '{table}' and l.mode = 'AccessExclusiveLock' and l.granted"
        );
        eventually("the table is locked", || (shared_postgres().query(database, &locked) == "1").then_some(()));
        act();
        release.0.send(()).expect("the locker waits");
        let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where datname = current_database() and query like '%pg_sleep(25)%' and pid <> pg_backend_pid()";
        shared_postgres().query(database, end);
        let (slept_to_its_end, answered) = locker.join().expect("the locker");
        assert!(!slept_to_its_end && answered, "the answer came while the table was locked");
    });
}

/// A first push into a partition waits for the partition's row no longer than for a commit: here the row is behind a lock
/// that is held until the push has been answered.
#[test]
fn a_push_waits_for_a_silent_store_no_longer_than_for_a_commit() {
    let b = Setup::clean().env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", "500").start();
    let q = unique("silent");
    b.push_keys(&q, "known", &["k"]);
    behind_a_lock(&b, || {
        let verdict = b.push(json!([{"queue": q, "partition": "new", "transactionId": "k", "payload": 1}])).remove(0);
        assert_ne!(verdict["status"], "queued", "{verdict}");
    });
    eventually("the partition works again", || {
        let verdict = b.push(json!([{"queue": q, "partition": "new", "transactionId": "k2", "payload": 1}])).remove(0);
        // Buffered while the first one waits in the spool; a duplicate when it was drained meanwhile.
        ["queued", "duplicate"].contains(&verdict["status"].as_str().unwrap_or_default()).then_some(())
    });
}

/// A pop of a group that is opened for the first time, whose partitions cannot be read: it is answered by its deadline, not
/// when the store is done. What is claimed for it later is given back. Source: data plane 4.5.
#[test]
fn a_pop_waits_for_a_silent_store_no_longer_than_it_said() {
    let b = Setup::clean().start();
    let q = unique("silent-pop");
    b.push_keys(&q, "p", &["k"]);
    let ask = "consumerGroup=g&subscriptionMode=all&leaseTime=300";
    behind_a_lock(&b, || {
        let began = Instant::now();
        let answer = b.get(&format!("/api/v1/pop/queue/{q}?{ask}&wait=true&timeout=500"));
        let took = began.elapsed();
        assert_eq!(answer.status, 204, "{}", answer.text());
        assert!(Duration::from_millis(500) <= took && took < Duration::from_secs(4), "{took:?}");
    });
    eventually("the message is there", || (b.pop(&q, ask).keys() == ["k"]).then_some(()));
}

/// The same for pops that are acked by being claimed, and for discovery pops whose queues or partitions cannot be read. What was
/// not delivered is there for the next one.
#[test]
fn no_pop_waits_for_a_silent_store_longer_than_it_said() {
    let b = Setup::clean().start();
    let ns = unique("silent");
    let q = format!("{ns}.pop");
    b.push_keys(&q, "p", &["k"]);
    let cases = [
        ("partitions", format!("/api/v1/pop/queue/{q}?consumerGroup=a&autoAck=true")),
        ("partitions", format!("/api/v1/pop?namespace={ns}&consumerGroup=b")),
        ("partitions", format!("/api/v1/pop?namespace={ns}&consumerGroup=c&autoAck=true")),
        ("queues", format!("/api/v1/pop?namespace={ns}&task=pop&consumerGroup=d")),
        ("queues", "/api/v1/pop?task=pop&consumerGroup=e&autoAck=true".to_owned()),
    ];
    for (table, path) in cases {
        behind_a_lock_of(&b, table, || {
            let began = Instant::now();
            let answer = b.get(&format!("{path}&subscriptionMode=all&leaseTime=300&wait=true&timeout=300"));
            let took = began.elapsed();
            assert_eq!(answer.status, 204, "{path}: {}", answer.text());
            assert!(Duration::from_millis(300) <= took && took < Duration::from_secs(4), "{path}: {took:?}");
        });
        let ask = format!("{path}&subscriptionMode=all");
        eventually("the message is there", || (b.pop_path(&ask).keys() == ["k"]).then_some(()));
    }
}

/// The pop that registers a group as conflating is over when the store answers. Pinned pops have met the group before, in every
/// shard: they hear of the record all the same.
#[test]
fn a_conflating_record_is_told_of_though_its_pop_has_left() {
    let b = Setup::clean().env("QUEEN_SHARDS", "2").start();
    let q = unique("silent-record");
    let partitions: Vec<String> = (0..8).map(|n| format!("p{n}")).collect();
    for partition in &partitions {
        b.push_n(&q, partition, "m", 1);
        let plain = b.pop_pinned(&q, partition, "consumerGroup=g&subscriptionMode=all&autoAck=true");
        assert_eq!(plain.keys(), ["m0"]);
    }
    behind_a_lock(&b, || {
        let ask = "consumerGroup=g&subscriptionMode=all&conflation=true&wait=true&timeout=300";
        let answer = b.get(&format!("/api/v1/pop/queue/{q}?{ask}"));
        assert!([200, 204].contains(&answer.status), "{}: {}", answer.status, answer.text());
    });
    for partition in &partitions {
        let path = format!("/api/v1/pop/queue/{q}/partition/{partition}?consumerGroup=g");
        eventually("its shard has heard of the record", || {
            b.send("GET", &path, None).text().contains("\"conflation\":true").then_some(())
        });
    }
}

/// A read of what other brokers have answered, which an empty answer waits for, and which does not come.
#[test]
fn an_empty_answer_waits_for_the_log_no_longer_than_it_said() {
    let b = Setup::clean().start();
    let q = unique("silent-log");
    b.push_keys(&q, "p", &["k"]);
    assert_eq!(b.pop(&q, "autoAck=true").keys(), ["k"]);
    behind_a_lock_of(&b, "commits", || {
        let began = Instant::now();
        let answer = b.get(&format!("/api/v1/pop/queue/{q}?wait=true&timeout=1500"));
        let took = began.elapsed();
        // By the deadline the store may count as lost.
        assert!([204, 500].contains(&answer.status), "{}: {}", answer.status, answer.text());
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
    eventually("the queue works again", || b.push_keys(&q, "p", &["k2"])[0]["status"].eq("queued").then_some(()));
}

/// A scrape whose read does not come, of a page that needs no token: who reads messages does not wait behind it, and further
/// scrapes are answered.
#[test]
fn a_scrape_of_a_silent_store_holds_up_nobody() {
    let b = Setup::clean().start();
    let q = unique("scraped");
    b.push_keys(&q, "p", &["k"]);
    behind_a_lock_of(&b, "dead_letters", || {
        let scrapes = at_once(4, |i| {
            let began = Instant::now();
            if i < 3 {
                return (b.get("/metrics/prometheus").status, began.elapsed());
            }
            let reading = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                           and datname = current_database() and query like '%cluster_metrics%'";
            let database = b.database.as_deref().expect("a database");
            eventually("one read waits", || (shared_postgres().query(database, reading) == "1").then_some(()));
            let began = Instant::now();
            let entries = json!({"entries": [{"queue": q, "partition": "p", "offset": 0}]});
            let fetched = b.post("/api/v1/fetch", &entries);
            assert_eq!(fetched.json()["entries"][0]["records"][0]["transactionId"], "k", "{}", fetched.text());
            (fetched.status, began.elapsed())
        });
        for (status, took) in scrapes {
            assert!(status == 200 && took < Duration::from_secs(4), "{status} {took:?}");
        }
        // The one read is still on its way.
        let began = Instant::now();
        assert!(b.metric("queen_uptime_seconds").is_some_and(|up| up >= 0.0));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    });
}
