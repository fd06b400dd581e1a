//! The primary dies for good and a streaming standby is promoted, under traffic: brokers go on there with all that was
//! answered. Source: architecture (Several brokers), rule 12; operations 8.3.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a consumer was told is consumed: keys whose ack succeeded, in order.
fn consume(broker: &Broker, queue: &str, until: &AtomicBool) -> Vec<String> {
    let mut acked = Vec::new();
    while !until.load(Relaxed) {
        let query = "consumerGroup=g&subscriptionMode=all&batch=20&wait=true&timeout=300";
        let Ok(answer) = broker.client().get(&format!("/api/v1/pop/queue/{queue}?{query}")) else { continue };
        if answer.status != 200 {
            continue;
        }
        let pop: harness::Pop = serde_json::from_slice(&answer.body).expect("a pop");
        for message in &pop.messages {
            let body = json!({"consumerGroup": "g", "acknowledgments": [message.ack("completed")]});
            let answer = broker.send("POST", "/api/v1/ack/batch", Some(body.to_string().as_bytes()));
            if answer.status == 200 && answer.json()[0]["success"] == true {
                acked.push(message.transaction_id.clone());
            }
        }
    }
    acked
}

/// With a synchronous standby nothing that was answered is lost. Pushes are buffered meanwhile and stored once, in order;
/// keys of before are duplicates, at their offsets; a lease goes on, and what was acked does not come again.
#[test]
fn a_promoted_standby_has_all_that_was_answered() {
    let primary = Postgres::start(&[]);
    let standby = primary.standby();
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        primary.port, standby.port
    );
    let broker = Setup::default().env("DATABASE_URL", &url).env("QUEEN_SHARDS", "2").start();
    broker.push_n("held", "p", "h", 5);
    let held = broker.pop("held", "consumerGroup=g&subscriptionMode=all&batch=2");
    assert_eq!(held.keys(), ["h0", "h1"]);

    let (died, up, over) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let produce = |partition: &'static str| {
        let mut producer = Producer::new(&broker, "q", partition);
        while !died.load(Relaxed) || producer.count("buffered") == 0 {
            producer.push();
        }
        while !up.load(Relaxed) {
            producer.push();
        }
        producer.push_until("queued");
        producer
    };
    let (producers, consumed) = std::thread::scope(|scope| {
        let producers: Vec<_> = ["a", "b", "c"].into_iter().map(|p| scope.spawn(move || produce(p))).collect();
        let consumer = scope.spawn(|| consume(&broker, "q", &over));
        eventually("messages are consumed", || {
            (100.0 <= broker.metric("queen_process_ack_messages_total")?).then_some(())
        });
        primary.kill_9();
        died.store(true, Relaxed);
        eventually("the broker knows", || (broker.get("/health").status == 503).then_some(()));
        eventually("pushes are buffered", || (buffers(&broker)["pending"].as_u64()? > 0).then_some(()));
        standby.query("postgres", "select pg_promote()");
        eventually("it serves again", || (broker.get("/health").status == 200).then_some(()));
        up.store(true, Relaxed);
        let producers: Vec<Producer<'_>> = producers.into_iter().map(|p| p.join().expect("a producer")).collect();
        over.store(true, Relaxed);
        (producers, consumer.join().expect("a consumer"))
    });
    drained(&broker);
    assert!(broker.log().contains("PostgreSQL is not the one it was"), "another timeline");

    let all = stored(&broker, "q");
    for producer in &producers {
        assert!(0 < producer.count("queued") && 0 < producer.count("buffered"));
        check_order(producer, &all);
    }
    let first = &producers[0];
    let again = broker.push(json!([
        {"queue": "q", "partition": "a", "transactionId": first.accepted[0].0, "payload": 1},
        {"queue": "q", "partition": "a", "transactionId": first.accepted[first.accepted.len() - 1].0, "payload": 1},
    ]));
    let told: Vec<(&Value, &Value)> = again.iter().map(|v| (&v["status"], &v["offset"])).collect();
    assert_eq!(told, [(&json!("duplicate"), &json!(0)), (&json!("duplicate"), &json!(first.accepted.len() - 1))]);

    assert!(broker.pop("held", "consumerGroup=g&batch=5").is_empty(), "the lease goes on");
    broker.complete("g", &held);
    assert_eq!(broker.pop("held", "consumerGroup=g&batch=5").keys(), ["h2", "h3", "h4"]);

    let rest = broker.drain("q", "consumerGroup=g&batch=1000&partitions=64&wait=true&timeout=500", "g");
    let acked: std::collections::BTreeSet<&str> = consumed.iter().map(|key| &**key).collect();
    let came_again: Vec<&str> = rest.iter().map(|m| &*m.transaction_id).filter(|key| acked.contains(key)).collect();
    assert!(came_again.is_empty(), "acked before: {came_again:?}");
    assert_eq!(acked.len(), consumed.len(), "acked twice");
}
