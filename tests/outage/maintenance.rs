//! The operator's switches. Source: operations 4.8; data plane 3.7, 10.3; invariant 39.

use super::*;

const PUSH: &str = "/api/v1/system/maintenance";
const POP: &str = "/api/v1/system/maintenance/pop";

#[test]
fn push_maintenance_spools_everything_and_drains_in_order() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..10).for_each(|_| assert_eq!(producer.push(), "queued"));
    let on = broker.post(PUSH, &json!({"enabled": true}));
    assert_eq!(on.status, 200);
    let body = on.json();
    assert_eq!(body["message"], "Maintenance mode ENABLED. All PUSHes routing to file buffer.");
    assert_eq!((&body["maintenanceMode"], &body["bufferHealthy"]), (&json!(true), &json!(true)));
    assert!(body["bufferedMessages"].is_number() && body.get("popMaintenanceMode").is_none(), "{body}");
    (0..30).for_each(|_| assert_eq!(producer.push(), "buffered"));
    // No dedup of either layer: each item on its own.
    let item = json!({"queue": "orders", "partition": "twice", "transactionId": "same", "payload": 1});
    let twice = broker.push(json!([item, item]));
    assert!(twice.iter().all(|v| v["status"] == "buffered"), "{twice:?}");
    assert_ne!(twice[0]["message_id"], twice[1]["message_id"]);
    // Refusals of the body and of single items stay; nothing is nothing.
    assert_eq!(broker.send("POST", "/api/v1/push", Some(b"{")).status, 400);
    assert_eq!(broker.push(json!([])).len(), 0);
    assert_eq!(broker.push(json!([{"queue": "", "payload": 1}]))[0]["status"], "error");
    // Pops, acks and transactions go on.
    assert_eq!(broker.drain("orders", "batch=100", "").len(), 10);
    let bundle = json!({"operations": [{"type": "push", "items": [{"queue": "direct", "payload": 1}]}]});
    assert_eq!(broker.post("/api/v1/transaction", &bundle).status, 200);
    assert_eq!(broker.drain("direct", "batch=10", "").len(), 1);
    let replay = broker.post("/api/v1/dlq/0190f5c0-0000-7000-8000-000000000000/replay", &json!({}));
    assert_eq!((replay.status, &replay.json()["result"]), (503, &json!("maintenance")));
    assert_eq!(broker.metric("queen_maintenance_mode_enabled"), Some(1.0));
    let state = broker.get(PUSH).json();
    assert_eq!((&state["maintenanceMode"], &state["popMaintenanceMode"]), (&json!(true), &json!(false)));
    assert_eq!((&state["bufferedMessages"], &state["bufferStats"]["pendingCount"]), (&json!(32), &json!(32)));
    assert_eq!(state["bufferStats"]["failedFiles"]["qos0Count"], 0);
    // It outlives the broker, whose spool is not drained meanwhile.
    broker.restart();
    assert_eq!(broker.get(PUSH).json()["maintenanceMode"], true);
    producer.push_until("buffered");
    eventually("the backlog is told", || (buffers(&broker)["pending"] == 33).then_some(()));
    let off = broker.post(PUSH, &json!({"enabled": false})).json();
    assert_eq!(off["message"], "Maintenance mode DISABLED. Background processor will drain buffer to DB.");
    assert_eq!(off["maintenanceMode"], false);
    producer.push_until("queued");
    drained(&broker);
    let mut rest = Producer::new(&broker, "orders", "p");
    rest.accepted = producer.accepted.split_off(10);
    let mut got = stored_after(&broker, "orders", 10);
    assert_eq!(got.remove("twice").map(|stored| stored.len()), Some(1));
    check_order(&rest, &got);
}

/// As [`stored`], where so many messages of `p` are gone.
fn stored_after(broker: &Broker, queue: &str, gone: i64) -> BTreeMap<String, Vec<(String, String)>> {
    let mut all: BTreeMap<String, Vec<(i64, String, String)>> = BTreeMap::new();
    for message in broker.drain(queue, "batch=1000&partitions=64&wait=true&timeout=500", "") {
        all.entry(message.partition).or_default().push((message.offset, message.transaction_id, message.id));
    }
    assert_eq!(all["p"][0].0, gone);
    let parts = all.into_iter().map(|(partition, mut messages)| {
        messages.sort();
        (partition, messages.into_iter().map(|(_, key, id)| (key, id)).collect())
    });
    parts.collect()
}

/// Switched under a live producer, again and again.
#[test]
fn switching_under_load_loses_nothing_and_keeps_the_order() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = |partition: &'static str| {
            let mut producer = Producer::new(&broker, "orders", partition);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                producer.push();
            }
            producer
        };
        let producers: Vec<_> =
            ["a", "b", "c"].into_iter().map(|partition| scope.spawn(move || run(partition))).collect();
        for _ in 0..6 {
            for enabled in [true, false] {
                broker.post(PUSH, &json!({"enabled": enabled}));
                std::thread::sleep(Duration::from_millis(150));
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let producers: Vec<Producer> = producers.into_iter().map(|thread| thread.join().expect("runs")).collect();
        drained(&broker);
        let stored = stored(&broker, "orders");
        for producer in &producers {
            assert!(producer.count("queued") > 0 && producer.count("buffered") > 0);
            check_order(producer, &stored);
        }
    });
    assert_eq!(transitions(&broker), (0, 0), "the store was never away\n{}", broker.log());
}

#[test]
fn a_spool_that_fails_in_maintenance_is_a_500_with_the_array() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("FILE_BUFFER_MAX_BYTES", "1").start();
    broker.post(PUSH, &json!({"enabled": true}));
    let body = json!({"items": [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2}]}).to_string();
    let answer = broker.send("POST", "/api/v1/push", Some(body.as_bytes()));
    assert_eq!(answer.status, 500);
    assert!(answer.json().as_array().is_some_and(|a| a.len() == 2 && a.iter().all(|v| v["status"] == "failed")));
}

#[test]
fn pop_maintenance_answers_204_and_lets_pushes_and_acks_through() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.push_n("orders", "p", "k", 4);
    let held = broker.pop("orders", "batch=2");
    let off = broker.get(POP).json();
    assert_eq!(off, json!({"popMaintenanceMode": false, "message": "Pop maintenance mode is OFF. Normal operation."}));
    let on = broker.post(POP, &json!({"enabled": true})).json();
    let text = "Pop maintenance mode ENABLED. All POP operations will return empty arrays.";
    assert_eq!(on, json!({"popMaintenanceMode": true, "message": text}));
    let now = broker.get(POP).json();
    assert_eq!(now["message"], "Pop maintenance mode is ON. All POP operations return empty arrays.");
    for path in ["/api/v1/pop/queue/orders", "/api/v1/pop/queue/orders/partition/p", "/api/v1/pop?namespace=x"] {
        let answer =
            broker.get(&format!("{path}{}wait=true&timeout=20000", if path.contains('?') { '&' } else { '?' }));
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}");
    }
    let conflating = broker.get("/api/v1/pop/queue/orders?consumerGroup=g&conflation=true&subscriptionMode=all");
    assert_eq!(conflating.json(), json!({"messages": [], "paused": true, "conflation": true}));
    assert_eq!(broker.get("/api/v1/pop/queue/orders?batch=x").status, 400, "refusals come first");
    broker.complete("", &held);
    broker.push_n("orders", "p", "more", 1);
    let body = broker.post(POP, &json!({"enabled": false})).json();
    assert_eq!(body["message"], "Pop maintenance mode DISABLED. Normal operation resumed.");
    assert_eq!(broker.drain("orders", "batch=10", "").len(), 3);
    for (path, body, error) in
        [(PUSH, "{}", "enabled (boolean) is required"), (POP, r#"{"enabled":1}"#, "enabled (boolean) is required")]
    {
        let answer = broker.send("POST", path, Some(body.as_bytes()));
        assert_eq!((answer.status, answer.error().as_str()), (400, error));
    }
    assert!(broker.send("POST", PUSH, Some(b"{")).error().starts_with("bad body: "));
}

/// A second broker of the same database hears of it.
#[test]
fn the_switch_reaches_another_broker() {
    let postgres = Postgres::start(&[]);
    let setup = || Setup::on(&postgres, "postgres").env("QUEEN_CACHE_REFRESH_INTERVAL_MS", "500");
    let (one, two) = (setup().start(), setup().start());
    one.post(PUSH, &json!({"enabled": true}));
    let mut producer = Producer::new(&two, "orders", "p");
    producer.push_until("buffered");
    one.post(PUSH, &json!({"enabled": false}));
    producer.push_until("queued");
    drained(&two);
    check_order(&producer, &stored(&two, "orders"));
}

/// An operator switches because the store is away: that holds when it is back, and is stored then.
#[test]
fn a_switch_that_is_turned_while_the_store_is_away_holds_and_is_stored() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("QUEEN_CACHE_REFRESH_INTERVAL_MS", "500").start();
    let mut producer = Producer::new(&broker, "orders", "p");
    producer.push_until("queued");
    postgres.kill();
    producer.push_until("buffered");
    broker.post(PUSH, &json!({"enabled": true}));
    broker.post(POP, &json!({"enabled": true}));
    assert!(broker.log().contains("the switch holds on this broker"), "{}", broker.log());
    postgres.resume();
    let stored = "select string_agg(key, ' ' order by key) from queen.system_state \
                  where key like '%maintenance_mode' and (value ->> 'enabled')::boolean";
    eventually("both are stored", || {
        (postgres.query("postgres", stored) == "maintenance_mode pop_maintenance_mode").then_some(())
    });
    let state = broker.get(PUSH).json();
    assert_eq!((&state["maintenanceMode"], &state["popMaintenanceMode"]), (&json!(true), &json!(true)));
    assert_eq!(producer.push(), "buffered");
    broker.post(PUSH, &json!({"enabled": false}));
    broker.post(POP, &json!({"enabled": false}));
    producer.push_until("queued");
    drained(&broker);
    check_order(&producer, &self::stored(&broker, "orders"));
}
