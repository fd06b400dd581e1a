//! Consumer groups over HTTP, data plane 11; the second half of invariant 35, and 41.

use crate::harness::{Broker, Setup, encode, eventually, rules, shared_postgres, two_shards, unique};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ALL: &str = "consumerGroup=g&subscriptionMode=all&batch=100&partitions=20";

fn seek(b: &Broker, queue: &str, partition: Option<&str>, body: Value) -> Value {
    let partition = partition.map_or(String::new(), |p| format!("/partitions/{}", encode(p)));
    let answer = b.post(&format!("/api/v1/consumer-groups/g/queues/{}{partition}/seek", encode(queue)), &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

rules! {
    fn i41_a_seek_redelivers_from_its_target_and_voids_leases(b) {
        let q = unique("i41");
        for p in 0..4 {
            b.push_n(&q, &format!("p{p}"), "m", 5);
        }
        assert_eq!(b.drain(&q, ALL, "g").len(), 20);
        b.push_n(&q, "p0", "late", 2);
        let held = b.pop(&q, ALL);
        assert_eq!(held.keys(), ["late0", "late1"]);

        let done = seek(b, &q, None, json!({"timestamp": "2001-01-01T00:00:00Z"}));
        assert_eq!((&done["partitionsUpdated"], &done["seekToEnd"]), (&json!(4), &json!(false)), "{done}");
        assert_eq!(done["targetTimestamp"], "2001-01-01T00:00:00.000Z");
        let late = b.ack("g", &[held.messages[1].ack("completed")]);
        assert_eq!((&late[0]["success"], &late[0]["error"]), (&json!(false), &json!("invalid or expired lease")), "{late:?}");
        let again = b.drain(&q, ALL, "g");
        assert_eq!(again.len(), 22, "everything retained");
        let p0: Vec<i64> = again.iter().filter(|m| m.partition == "p0").map(|m| m.offset).collect();
        assert_eq!(p0, [0, 1, 2, 3, 4, 5, 6]);

        seek(b, &q, Some("p1"), json!({"offset": 3}));
        let got: Vec<i64> = b.drain(&q, ALL, "g").iter().map(|m| m.offset).collect();
        assert_eq!(got, [3, 4], "exactly from the target");

        seek(b, &q, None, json!({"timestamp": "2001-01-01T00:00:00Z"}));
        let done = seek(b, &q, Some("p2"), json!({"toEnd": true}));
        assert_eq!((&done["partitionName"], &done["updated"], &done["targetTimestamp"]), (&json!("p2"), &json!(true), &Value::Null));
        assert!(b.drain(&q, ALL, "g").iter().all(|m| m.partition != "p2"), "nothing old after a seek to the end");
    }

    fn i35_a_deleted_group_registers_afresh(b) {
        let q = unique("i35");
        b.push_n(&q, "p", "m", 3);
        b.push_n(&q, "r", "m", 2);
        assert_eq!(b.drain(&q, ALL, "g").len(), 5);
        let answer = b.send("DELETE", &format!("/api/v1/consumer-groups/g/queues/{q}?deleteMetadata=false"), None).json();
        assert_eq!(answer, json!({"success": true, "consumerGroup": "g", "queueName": q, "deletedPartitions": 2, "metadataDeleted": false}));
        assert_eq!(b.drain(&q, "consumerGroup=g&subscriptionMode=new&batch=100&partitions=20", "g").len(), 5, "the record seeds again");
        let answer = b.send("DELETE", &format!("/api/v1/consumer-groups/g/queues/{q}"), None).json();
        assert_eq!((&answer["deletedPartitions"], &answer["metadataDeleted"]), (&json!(2), &json!(true)));
        assert!(b.drain(&q, "consumerGroup=g&subscriptionMode=new&batch=100", "g").is_empty(), "a new registration decides");
    }

    fn total_consumed_counts_what_was_retired(b) {
        let q = unique("retired");
        b.configure(&q, json!({"retryLimit": 0, "deadLetterQueue": true}));
        let consumed = |group: &str| {
            let page = b.get(&format!("/api/v1/consumer-groups/{group}")).json();
            page[&q]["partitions"][0]["totalConsumed"].as_i64()
        };
        let (late, newest, own) = (unique("late"), unique("newest"), unique("own"));
        b.push_n(&q, "p", "old", 5);
        assert!(b.pop(&q, &format!("consumerGroup={late}&subscriptionMode=new")).is_empty());
        b.push_n(&q, "p", "m", 6);
        let pop = b.pop(&q, &format!("consumerGroup={late}&batch=4"));
        assert_eq!((pop.offsets(), consumed(&late)), (vec![5, 6, 7, 8], Some(0)), "neither skipped nor leased ones count");
        b.ack_ok(&late, &[pop.messages[1].ack("completed")]);
        assert_eq!(consumed(&late), Some(2));
        b.ack_ok(&late, &[pop.messages[2].ack("dlq")]);
        assert_eq!(consumed(&late), Some(3), "dead-lettered");
        b.configure(&q, json!({"deadLetterQueue": false, "dlqAfterMaxRetries": false}));
        let pop = b.pop(&q, &format!("consumerGroup={late}&batch=1"));
        b.ack_ok(&late, &[pop.messages[0].ack("failed")]);
        assert_eq!((pop.offsets(), consumed(&late)), (vec![8], Some(4)), "dropped");
        let pop = b.pop(&q, &format!("consumerGroup={late}&batch=1"));
        let mut ack = pop.messages[0].ack("completed");
        (ack["type"], ack["consumerGroup"]) = ("ack".into(), late.as_str().into());
        assert_eq!(b.post("/api/v1/transaction", &json!({"operations": [ack]})).json()["success"], true);
        assert_eq!(consumed(&late), Some(5), "in a transaction");
        assert_eq!(b.pop(&q, &format!("consumerGroup={late}&autoAck=true")).offsets(), [10]);
        assert_eq!(consumed(&late), Some(6), "handed out for good");
        for body in [json!({"timestamp": "2001-01-01T00:00:00Z"}), json!({"toEnd": true})] {
            b.post(&format!("/api/v1/consumer-groups/{late}/queues/{q}/seek"), &body);
            assert_eq!(consumed(&late), Some(6), "a seek retires nothing");
        }
        let pop = b.pop(&q, &format!("consumerGroup={newest}&subscriptionMode=all&conflation=true"));
        b.complete(&newest, &pop);
        assert_eq!((pop.offsets(), consumed(&newest)), (vec![10], Some(11)), "skipped by conflation");
        b.drain(&q, &format!("consumerGroup={own}&subscriptionMode=all&batch=3"), &own);
        assert_eq!(consumed(&own), Some(11));
    }

    fn a_seek_back_wakes_a_parked_pop(b) {
        let q = unique("seekwake");
        b.push_n(&q, "p", "m", 2);
        assert_eq!(b.drain(&q, ALL, "g").len(), 2);
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| {
                let start = Instant::now();
                (b.pop(&q, &format!("{ALL}&wait=true&timeout=15000")), start.elapsed())
            });
            crate::harness::eventually("the poll parks", || (b.parked(&q) > 0).then_some(()));
            seek(b, &q, None, json!({"timestamp": "2001-01-01T00:00:00Z"}));
            let (pop, took) = parked.join().expect("the pop");
            assert_eq!(pop.keys(), ["m0", "m1"]);
            assert!(took < Duration::from_secs(10), "{took:?}");
        });
    }
}

#[test]
fn listings_and_refusals() {
    let b = two_shards();
    let (q, g) = (unique("grp"), unique("named group/%"));
    b.push_n(&q, "p", "m", 4);
    let path = format!("/api/v1/consumer-groups/{}", encode(&g));
    assert_eq!(b.get(&path).text(), "{}");
    let pop = b.pop(&q, &format!("consumerGroup={}&subscriptionMode=all&batch=2", encode(&g)));
    assert_eq!(pop.messages.len(), 2);
    let all = b.get("/api/v1/consumer-groups").json();
    let mine = all.as_array().expect("an array").iter().find(|e| e["name"] == g.as_str()).expect("listed").clone();
    assert_eq!((&mine["queueName"], &mine["members"], &mine["totalLag"]), (&json!(q), &json!(1), &json!(4)));
    assert_eq!((&mine["subscriptionMode"], &mine["storage"]), (&json!("all"), &json!("segments")));
    let part = b.get(&path).json()[&q]["partitions"][0].clone();
    assert_eq!(
        (&part["partition"], &part["leaseActive"], &part["workerId"]),
        (&json!("p"), &json!(true), &json!(pop.lease_id))
    );
    let late = b.get("/api/v1/consumer-groups/lagging?minLagSeconds=x").json();
    assert!(late.as_array().expect("an array").iter().all(|l| l["consumer_group"] != g.as_str()), "an hour by default");

    let subscription = |body: &str| b.send("POST", &format!("{path}/subscription"), Some(body.as_bytes()));
    for body in ["", "{}", r#"{"subscriptionTimestamp":""}"#, r#"{"subscriptionTimestamp":5}"#] {
        let answer = subscription(body);
        assert_eq!((answer.status, answer.error().as_str()), (400, "subscriptionTimestamp is required"), "{body}");
    }
    let done = subscription(r#"{"subscriptionTimestamp":"2026-09-01T00:00:00Z"}"#).json();
    assert_eq!(
        done,
        json!({"success": true, "consumerGroup": g, "newTimestamp": "2026-09-01T00:00:00Z", "rowsUpdated": 1})
    );

    let post = |path: String, body: &str| {
        let answer = b.send("POST", &path, Some(body.as_bytes()));
        (answer.status, answer.json())
    };
    let missing = json!({"success": false, "error": "Queue not found or has no partitions", "consumerGroup": g,
                         "queueName": "nope", "partitionsUpdated": 0});
    assert_eq!(post(format!("{path}/queues/nope/seek"), r#"{"toEnd":true}"#), (404, missing));
    let missing = json!({"success": false, "error": "Partition not found"});
    assert_eq!(post(format!("{path}/queues/{q}/partitions/none/seek"), ""), (404, missing));
    assert_eq!(post(format!("{path}/queues/{q}/seek"), "nonsense"), (400, json!({"error": "bad body"})));

    let gone = b.send("DELETE", &path, None).json();
    assert_eq!(gone, json!({"success": true, "consumerGroup": g, "deletedPartitions": 1, "metadataDeleted": true}));
    assert_eq!(
        (b.get(&path).text().as_str(), b.send("DELETE", &path, None).json()["deletedPartitions"].as_i64()),
        ("{}", Some(0))
    );
}

/// A seek may take half a minute; who configures a queue, and a redrive, do not wait for it.
#[test]
fn beside_a_seek_that_waits_queues_are_configured_and_dead_letters_move() {
    let b = Setup::clean().start();
    let database = b.database.clone().expect("a database");
    let (sought, q) = (unique("sought"), unique("beside"));
    b.push_n(&sought, "p", "m", 1);
    b.push_n(&q, "p", "m", 4);
    let letters: Vec<Value> = b.pop(&q, ALL).messages.iter().map(|message| message.ack("dlq")).collect();
    b.ack_ok("g", &letters);
    let postgres = shared_postgres();
    let sessions = |what: &str, which: &str| {
        let sql = format!("select {what} from pg_stat_activity where datname = '{database}' and {which}");
        postgres.query("postgres", &sql)
    };
    let mut holder = postgres.spawn(
        &database,
        "begin; select from queen.partitions p join queen.queues q on q.id = p.queue_id
         where q.name like 'sought%' for update of p; select pg_sleep(600)",
    );
    let redrive = b.post("/api/v1/dlq/redrive", &json!({"queue": q, "rate": 1})).json();
    let path = format!("/api/v1/dlq/redrive/{}", redrive["id"].as_str().expect("an id"));
    eventually("the row is held", || (sessions("count(*)", "wait_event = 'PgSleep'") == "1").then_some(()));
    std::thread::scope(|scope| {
        let seek = scope.spawn(|| seek(&b, &sought, None, json!({"toEnd": true})));
        let waits = "wait_event_type = 'Lock' and query like '%seek_group%'";
        eventually("the seek waits", || (sessions("count(*)", waits) == "1").then_some(()));
        b.configure(&unique("new"), json!({"leaseTime": 5}));
        eventually("the redrive ends", || (b.get(&path).json()["state"] == "done").then_some(()));
        assert_eq!(sessions("count(*)", waits), "1", "it waits still");
        sessions("pg_terminate_backend(pid)", "wait_event = 'PgSleep'");
        assert_eq!(seek.join().expect("the seek")["success"], true);
    });
    holder.wait().expect("psql ends");
}

/// A seek or a deletion of a group may hold a queue's row, or the group's, for long. What must wait for it gives up soon, and pushes
/// to other queues, whose new partitions are made on the same connection, are stored all the same.
#[test]
fn while_a_queue_or_group_is_held_the_others_are_pushed_to() {
    let b = Setup::clean().start();
    let database = b.database.clone().expect("a database");
    let held = unique("held");
    b.push_n(&held, "p", "m", 1);
    assert_eq!(b.drain(&held, ALL, "g").len(), 1);
    // The group has no cursor there yet.
    b.push_n(&held, "later", "m", 1);
    let postgres = shared_postgres();
    let sessions = |what: &str, which: &str| {
        let sql = format!("select {what} from pg_stat_activity where datname = '{database}' and {which}");
        postgres.query("postgres", &sql)
    };
    for (holds, function, group) in [
        ("select from queen.queues where name like 'held%' for key share", "open_group", "new"),
        ("select from queen.groups where name = 'g' for update", "seed_cursors", "g"),
    ] {
        let mut holder = postgres.spawn(&database, &format!("begin; {holds}; select pg_sleep(600)"));
        eventually("the row is held", || (sessions("count(*)", "wait_event = 'PgSleep'") == "1").then_some(()));
        let path =
            format!("/api/v1/pop/queue/{held}?consumerGroup={group}&subscriptionMode=all&batch=10&partitions=20");
        std::thread::scope(|scope| {
            let pop = scope.spawn(|| b.get(&path));
            let waiting = scope.spawn(|| b.get(&format!("{path}&wait=true&timeout=30000")));
            let waits = format!("wait_event_type = 'Lock' and query like '%{function}%'");
            eventually("the pops wait", || (sessions("count(*)", &waits) != "0").then_some(()));
            let began = Instant::now();
            // New partitions of every shard.
            let (other, n) = (unique("beside"), 16);
            let items: Vec<Value> =
                (0..n).map(|p| json!({"queue": other, "partition": format!("p{p}"), "payload": p})).collect();
            let pushed = b.push(json!(items));
            assert!(pushed.iter().all(|item| item["status"] == "queued"), "{function}: {pushed:?}");
            assert!(began.elapsed() < Duration::from_secs(3), "{function}: after {:?}", began.elapsed());
            let answer = pop.join().expect("the pop");
            assert_eq!((answer.status, answer.error().as_str()), (500, "pop failed"), "{function}");
            sessions("pg_terminate_backend(pid)", "wait_event = 'PgSleep'");
            let answer = waiting.join().expect("the pop that waits");
            assert_eq!(answer.status, 200, "{function}: it tried again: {}", answer.text());
        });
        holder.wait().expect("psql ends");
    }
}
