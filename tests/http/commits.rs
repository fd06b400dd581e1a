//! What shares a commit, and who does not suffer for whom. Rules 1, 5, 7, 20, 26, 27.

use crate::harness::{Setup, at_once, eventually, shared_postgres, unique};
use serde_json::json;

#[test]
fn a_broker_that_dies_in_a_commit_holds_no_lock() {
    let b = Setup::clean().start();
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("dies");
    b.push_keys(&q, "p", &["a"]);
    // Every store of a segment waits here: the commit is under way, its partition row is locked.
    pg.query(
        &database,
        "create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
         create trigger hold before insert on queen.segments for each row execute function hold()",
    );
    let gate = pg.spawn(&database, "select pg_advisory_lock(1), pg_sleep(600)");
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'";
    let sleeps = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    eventually("the gate is shut", || (pg.query(&database, sleeps) == "1").then_some(()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body =
                json!({"items": [{"queue": q, "partition": "p", "transactionId": "b", "payload": 1}]}).to_string();
            b.client().post("/api/v1/push", body.as_bytes()).expect_err("killed")
        });
        eventually("the commit is under way", || (pg.query(&database, waits) == "1").then_some(()));
        b.kill();
    });
    pg.query(&database, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'");
    let _ = gate.wait_with_output();
    // Whatever the server made of the statement, nothing stays open behind a broker that is gone.
    let left = "select count(*) from pg_locks as l join pg_stat_activity as a using (pid)
        where a.datname = current_database() and a.application_name like 'queen %' and l.granted and l.mode like 'Row%'";
    eventually("no lock is left", || (pg.query(&database, left) == "0").then_some(()));
    pg.query(&database, "drop trigger hold on queen.segments");
    b.restart();
    let verdict = b.push(json!([{"queue": q, "partition": "p", "transactionId": "b", "payload": 1}]));
    assert!(["queued", "duplicate"].contains(&verdict[0]["status"].as_str().unwrap()), "{verdict:?}");
    assert_eq!(b.drain(&q, "batch=10", "").len(), 2, "stored once, whoever stored it");
}

#[test]
fn a_lane_that_is_refused_for_good_fails_alone_and_keeps_its_order() {
    let b = Setup::clean().start();
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("poison");
    b.push_keys(&q, "sick", &["first"]);
    pg.query(
        &database,
        "create function refuse() returns trigger language plpgsql as $$ begin
             if position('poison'::bytea in new.body) > 0 then raise exception using errcode = '22000'; end if;
             return new;
         end $$;
         create trigger refuse before insert on queen.segments for each row execute function refuse()",
    );
    // Sixteen producers share commits; each pushes its own partition, one item of the sick one is refused by the store.
    let verdicts = at_once(16, |n| {
        let partition = if n < 4 { "sick".to_owned() } else { format!("well{n}") };
        let mut client = b.client();
        let mut own = Vec::new();
        for i in 0..20 {
            let payload = if n == 0 && i == 10 { "poison" } else { "food" };
            let body = json!({"items": [{"queue": q, "partition": partition, "transactionId": format!("{n}-{i}"), "payload": payload}]});
            let answer = client.post("/api/v1/push", body.to_string().as_bytes()).expect("an answer");
            own.push((answer.status, answer.json()[0]["status"].as_str().unwrap_or("").to_owned()));
        }
        own
    });
    for (n, own) in verdicts.iter().enumerate() {
        for (i, (status, word)) in own.iter().enumerate() {
            let want = if n == 0 && i == 10 { "error" } else { "queued" };
            assert_eq!((*status, word.as_str()), (201, want), "producer {n}, push {i}");
        }
    }
    let sick = b.pop_pinned(&q, "sick", "batch=1000");
    assert_eq!(sick.keys().len(), 1 + 4 * 20 - 1);
    assert!(sick.offsets().windows(2).all(|pair| pair[0] + 1 == pair[1]), "no gap: {:?}", sick.offsets());
    for n in 0..4 {
        let own: Vec<&str> = sick.keys().into_iter().filter(|key| key.starts_with(&format!("{n}-"))).collect();
        let sent: Vec<String> = (0..20).filter(|i| (n, *i) != (0, 10)).map(|i| format!("{n}-{i}")).collect();
        assert_eq!(own, sent, "in the order they were sent");
    }
}

#[test]
fn requests_that_share_a_lane_are_judged_in_the_order_they_came_and_stay_whole() {
    let b = Setup::clean().start();
    let q = unique("whole");
    b.configure(&q, json!({"dedupWindowSeconds": 0}));
    let kept = unique("kept");
    at_once(16, |n| {
        let mut client = b.client();
        for i in 0..10 {
            let items: Vec<_> = (0..3)
                .map(|k| json!({"queue": q, "partition": "p", "transactionId": format!("{n}-{i}-{k}"), "payload": k}))
                .collect();
            let shared: Vec<_> = (0..3)
                .map(|k| json!({"queue": kept, "partition": "p", "transactionId": format!("{i}-{k}"), "payload": n}))
                .collect();
            for items in [items, shared] {
                let answer =
                    client.post("/api/v1/push", json!({"items": items}).to_string().as_bytes()).expect("an answer");
                assert_eq!(answer.status, 201, "{}", answer.text());
            }
        }
    });
    let all = b.pop_pinned(&q, "p", "batch=1000");
    assert_eq!(all.keys().len(), 480);
    for group in all.keys().chunks(3) {
        let body = group[0].rsplit_once('-').unwrap().0;
        assert_eq!(group, [format!("{body}-0"), format!("{body}-1"), format!("{body}-2")], "a body is never split");
    }
    // Sixteen producers sent the same thirty keys: the first of each is stored, its body stays together.
    let kept = b.pop_pinned(&kept, "p", "batch=1000");
    let mut keys = kept.keys();
    for group in keys.chunks(3) {
        let body = group[0].rsplit_once('-').unwrap().0;
        assert_eq!(group, [format!("{body}-0"), format!("{body}-1"), format!("{body}-2")]);
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), kept.keys().len()), (30, 30));
}

#[test]
fn no_verdict_comes_from_memory_alone() {
    let b = Setup::clean().start();
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("memory");
    b.push_n(&q, "p", "m", 3);
    let pop = b.pop(&q, "batch=3&consumerGroup=g&subscriptionMode=all");
    assert_eq!(pop.keys().len(), 3);
    // As another broker would: the lease ends, the cursor goes back, and nobody tells this one.
    pg.query(
        &database,
        "update queen.cursors set lease_id = null, lease_expires_at = null, version = nextval('queen.versions')",
    );
    for verdict in b.ack("g", &pop.messages.iter().map(|m| m.ack("completed")).collect::<Vec<_>>()) {
        assert_eq!(verdict["success"], false, "the row says that the lease is over: {verdict}");
    }
    assert_eq!(b.pop(&q, "batch=3&consumerGroup=g").keys(), pop.keys(), "nothing was completed");
    // A delivery needs its row as well: the tail of partitions that are gone serves nobody.
    let gone = unique("gone");
    b.push_n(&gone, "p", "m", 3);
    assert_eq!(b.pop(&gone, "batch=1&autoAck=true").keys().len(), 1);
    let tenant = "00000000-0000-0000-0000-000000000001";
    let deleted = pg.query(&database, &format!("select queen.delete_queue('{tenant}', '{{\"queue\":\"{gone}\"}}')"));
    let id = serde_json::from_str::<serde_json::Value>(&deleted).expect("JSON")["id"].clone();
    pg.query(&database, &format!("select queen.drop_queue('{tenant}', '{}')", json!({"queue": id, "limit": 100})));
    assert_eq!(b.pop(&gone, "batch=3").keys(), [""; 0]);
}

#[test]
fn boot_says_what_it_takes_of_the_connections_and_makes_do_with_two_per_shard() {
    let b = Setup::clean().start();
    assert!(b.log().contains("takes 18 connections of "), "{}", b.log());
    let (pg, b) = (shared_postgres(), Setup::clean().env("DB_POOL_SIZE", "14").start());
    assert!(b.log().contains("takes 14 connections of "), "{}", b.log());
    let q = unique("scarce");
    b.push_n(&q, "p", "m", 3);
    let pop = b.pop(&q, "batch=3");
    b.complete("", &pop);
    let bundle = json!({"operations": [{"type": "push", "items": [{"queue": q, "payload": 1}, {"queue": q, "partition": "r", "payload": 1}]}]});
    assert_eq!(b.post("/api/v1/transaction", &bundle).json()["success"], true);
    let own = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'queen % shard %'";
    let open: u32 = pg.query(b.database.as_deref().expect("its own"), own).parse().expect("a number");
    assert!(open <= 4, "{open}");
    let b = Setup::clean().env("DB_POOL_SIZE", "5").start();
    assert!(b.log().contains("takes 12 connections of "), "one shard is the least: {}", b.log());
    let told = b.log().lines().any(|line| line.contains("WARN") && line.contains("lower QUEEN_SHARDS"));
    assert!(told, "{}", b.log());
}

/// Operations 1.3: a hard ceiling of connections of this broker, whatever its shards would like.
#[test]
fn a_broker_opens_no_more_connections_than_its_pool_has() {
    const POOL: usize = 16;
    let b = Setup::clean().env("DB_POOL_SIZE", &POOL.to_string()).env("QUEEN_SHARDS", "8").start();
    let told = b.log().lines().any(|line| line.contains("WARN") && line.contains("fewer shards than wanted"));
    assert!(told && b.log().contains("shards=3"), "{}", b.log());
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("ceiling");
    let own =
        "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'queen %'";
    let most = at_once(9, |n| {
        let mut most = 0;
        for i in 0..10 {
            if n == 8 {
                most = most.max(pg.query(&database, own).parse::<usize>().expect("a number"));
                continue;
            }
            b.push(json!([{"queue": q, "partition": format!("{n}-{i}"), "payload": 1}]));
            let pop = b.pop(&q, "batch=1&partitions=4");
            if !pop.is_empty() {
                b.complete("", &pop);
            }
            let push = |p: &str| json!({"queue": q, "partition": format!("{p}{n}-{i}"), "payload": 1});
            let bundle = json!({"operations": [{"type": "push", "items": [push("a"), push("b")]}]});
            assert_eq!(b.post("/api/v1/transaction", &bundle).json()["success"], true);
            for path in ["/api/v1/resources/queues", "/api/v1/status", "/api/v1/consumer-groups"] {
                assert_eq!(b.get(path).status, 200, "{path}");
            }
        }
        most.max(pg.query(&database, own).parse::<usize>().expect("a number"))
    });
    let most = most.into_iter().max().expect("some");
    assert!((8..=POOL).contains(&most), "{most} connections at once");
}
