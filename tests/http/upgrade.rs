//! An older database: its schema, filled, is migrated at boot and used by everything that came since.

use crate::harness::{PATIENCE, Setup, eventually, shared_postgres, within};
use serde_json::{Value, json};
use std::path::Path;

/// Tables of the first schema that hold what brokers stored; they have the same columns today, but for those in [`LATER`].
const TABLES: &[&str] = &[
    "queues",
    "partitions",
    "segments",
    "evidence",
    "groups",
    "cursors",
    "dead_letters",
    "system_state",
    "totals",
    "dead_partitions",
    "partition_numbers",
    "versions",
    "groups_id_seq",
];

/// Takes the columns away that came after the first schema.
const LATER: &str = "alter table queen.cursors drop column retired; alter table queen.groups drop column seed_at";

fn in_package(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn a_filled_database_of_the_first_schema_is_migrated_and_used() {
    let postgres = shared_postgres();
    let filler = Setup::clean().start();
    filler.configure("orders", json!({"leaseTime": 300, "retryLimit": 1}));
    let mut stored = Vec::new();
    for p in 0..4 {
        stored.extend(filler.push_n("orders", &format!("p{p}"), &format!("k{p}-"), 10));
    }
    for _ in 0..4 {
        let pop = filler.pop("orders", "consumerGroup=g&subscriptionMode=all&batch=3");
        filler.complete("g", &pop);
    }
    let buried = filler.pop_pinned("orders", "p1", "consumerGroup=g&batch=1");
    let mut word = buried.messages[0].ack("dlq");
    word["error"] = "no such account".into();
    filler.ack_ok("g", &[word]);
    let held = filler.pop_pinned("orders", "p2", "consumerGroup=g&batch=2");
    assert_eq!(held.messages.len(), 2);
    assert!(filler.terminate().success());

    let old = postgres.create_database();
    postgres.load(&old, &in_package("tests/http/fixtures/schema-0002.sql"));
    postgres.query(filler.database.as_ref().expect("a database"), LATER);
    postgres.copy(filler.database.as_ref().expect("a database"), &old, TABLES);
    assert_eq!(postgres.query(&old, "select max(version) from queen.migrations"), "2");
    assert_eq!(postgres.query(&old, "select sum(count) from queen.segments"), "40");

    let b = Setup::on(postgres, &old).start();
    let known = std::fs::read_dir(in_package("migrations")).expect("migrations").flatten();
    let newest = known.filter_map(|file| file.file_name().to_str()?.split('_').next()?.parse::<u32>().ok()).max();
    assert_eq!(postgres.query(&old, "select max(version) from queen.migrations"), newest.unwrap().to_string());
    // How far the groups were is what they retired, and it is counted on from there.
    let retired = |p: usize| {
        let page = b.get("/api/v1/consumer-groups/g").json();
        let of = page["orders"]["partitions"].as_array().expect("partitions").clone();
        of.iter().find(|of| of["partition"] == format!("p{p}")).and_then(|of| of["totalConsumed"].as_i64())
    };
    assert_eq!([0, 1, 2, 3].map(retired), [3, 4, 3, 3].map(Some));
    // What was stored is what is there: keys, offsets, payloads, cursors, the lease, the dead letter.
    let again = b.push(json!([{"queue": "orders", "partition": "p3", "transactionId": "k3-7", "payload": 0}]));
    assert_eq!((&again[0]["status"], &again[0]["message_id"]), (&json!("duplicate"), &stored[37]["message_id"]));
    let acks: Vec<Value> = held.messages.iter().map(|m| m.ack("completed")).collect();
    b.ack_ok("g", &acks);
    assert_eq!(retired(2), Some(5));
    let rest = b.drain("orders", "consumerGroup=g&batch=50", "g");
    assert_eq!(rest.len(), 40 - 4 * 3 - 1 - 2);
    assert_eq!([0, 1, 2, 3].map(retired), [Some(10); 4]);
    assert!(rest.iter().all(|m| m.data.get() == format!("{{\"k\":\"{}\"}}", m.transaction_id)));
    let letters = b.get("/api/v1/dlq?queue=orders").json();
    assert_eq!((&letters["total"], &letters["messages"][0]["errorMessage"]), (&json!(1), &json!("no such account")));
    // And what came since works on it.
    let id = letters["messages"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(b.post(&format!("/api/v1/dlq/{id}/replay"), &json!({})).json()["result"], "moved");
    let moved = b.pop("orders", "consumerGroup=g");
    let mut ack = moved.messages[0].ack("completed");
    (ack["type"], ack["consumerGroup"]) = ("ack".into(), "g".into());
    let bundle = json!({"operations": [ack, {"type": "push", "queue": "done", "payload": 1}]});
    assert_eq!(b.post("/api/v1/transaction", &bundle).json()["success"], true);
    let last = b.pop("orders", "consumerGroup=last&subscriptionMode=all&conflation=true&batch=9");
    let newest = |m: &crate::harness::Message| if m.partition == "p1" { 10 } else { 9 };
    assert_eq!((last.messages.len(), last.offsets()), (4, last.messages.iter().map(newest).collect()));
    let seek = b.post("/api/v1/consumer-groups/g/queues/orders/seek", &json!({"timestamp": "2001-01-01T00:00:00Z"}));
    assert_eq!(seek.json()["partitionsUpdated"], 4);
    assert_eq!(b.drain("orders", "consumerGroup=g&batch=50", "g").len(), 41);
    let fetched =
        b.post("/api/v1/fetch", &json!({"entries": [{"queue": "orders", "partition": "p0", "offset": 0}]})).json();
    assert_eq!(fetched["entries"][0]["records"].as_array().map(Vec::len), Some(10));
    assert_eq!(
        b.get("/api/v1/messages?queue=orders&from=2001-01-01").json()["messages"].as_array().map(Vec::len),
        Some(41)
    );
    let groups = b.get("/api/v1/consumer-groups").json();
    assert_eq!(groups.as_array().expect("groups").iter().filter(|g| g["queueName"] == "orders").count(), 2);
    assert_eq!(b.queue_detail("orders")["totals"]["total"], 41);
    let gone = b.send("DELETE", "/api/v1/resources/queues/orders", None);
    assert_eq!(gone.json(), json!({"deleted": true, "queue": "orders", "existed": true}));
    // A second boot changes nothing.
    let state = "select string_agg(version::text, ',' order by version) || (select count(*) from queen.functions) from queen.migrations";
    let before = postgres.query(&old, state);
    b.restart();
    assert_eq!(postgres.query(&old, state), before);
}

/// Source: operations 8.4 (who is in the way), architecture.
#[test]
fn an_upgrade_says_from_where_to_where_and_whom_it_waits_for() {
    let postgres = shared_postgres();
    let old = postgres.create_database();
    postgres.load(&old, &in_package("tests/http/fixtures/schema-0002.sql"));
    let mut holder =
        postgres.spawn(&old, "begin isolation level repeatable read; select 1; select pg_sleep(600) as held");
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and query like '%as held%'
        and backend_xmin is not null and pid <> pg_backend_pid()";
    eventually("a snapshot is held", || (postgres.query(&old, sessions) == "1").then_some(()));
    let b = Setup::on(postgres, &old).launch();
    let line = |text: &str| b.log().lines().find(|line| line.contains(text)).map(str::to_owned);
    let waits =
        within(2 * PATIENCE, "the apply says whom it waits for", || line("the schema apply waits for other sessions"));
    for told in ["WARN  boot", "0014_partitions_of_queue.sql", "create index concurrently", "(psql, ", "seconds=1"] {
        assert!(waits.contains(told), "{told}: {waits}");
    }
    let begins = line("applying the schema").expect("it says so");
    assert!(begins.contains("INFO  boot") && begins.contains("from=2  to="), "{begins}");
    let end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like '%as held%'
        and pid <> pg_backend_pid()";
    postgres.query(&old, end);
    b.wait_ready();
    let _ = holder.wait();
    assert!(line("takes long").is_none(), "what waits does not work");
}
