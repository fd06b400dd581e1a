//! Faults met in the field, under outages. Source: the probes R02, R07, R09.

use super::*;

/// R02: the server has no connection left for some of what the broker wants.
#[test]
fn r02_too_many_connections() {
    let postgres = Postgres::start(&["max_connections = 20", "superuser_reserved_connections = 3"]);
    let mut held: Vec<_> = (0..12).map(|_| postgres.hold("select pg_sleep(600)")).collect();
    eventually("they are held", || {
        let n = postgres.query("postgres", "select count(*) from pg_stat_activity where query like 'select pg_sleep%'");
        (n == "12").then_some(())
    });
    let brokers: Vec<Broker> =
        (0..2).map(|_| Setup::on(&postgres, "postgres").env("QUEEN_SHARDS", "1").launch()).collect();
    for broker in &brokers {
        eventually("the port is open", || Client::new(broker.port).get("/health/live").ok());
    }
    let verdicts = harness::at_once(20, |thread| {
        let broker = &brokers[thread % 2];
        let push = |n: usize| {
            let k = thread * 20 + n;
            broker.push(json!([{"queue": "r02", "partition": format!("p{k}"), "payload": {"k": k}}])).remove(0)
        };
        (0..20).map(push).collect::<Vec<_>>()
    });
    for verdict in verdicts.iter().flatten() {
        assert!(matches!(verdict["status"].as_str(), Some("queued" | "buffered")), "{verdict}");
    }
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity where query like 'select pg_sleep%'";
    postgres.query("postgres", sql);
    held.iter_mut().for_each(|child| drop(child.wait()));
    for broker in &brokers {
        broker.wait_ready();
        drained(broker);
    }
    let mut keys: Vec<u64> = Vec::new();
    eventually("400 messages come out", || {
        for message in brokers[0].drain("r02", "batch=1000&partitions=64&wait=true&timeout=1000", "") {
            keys.push(serde_json::from_str::<Value>(message.data.get()).expect("JSON")["k"].as_u64().expect("k"));
        }
        (keys.len() >= 400).then_some(())
    });
    keys.sort_unstable();
    assert!(keys.iter().copied().eq(0..400), "{} messages", keys.len());
}

/// R07: polls whose clients left during an outage eat nothing that comes after.
#[test]
fn r07_a_parked_poll_whose_client_left() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let poll = "/api/v1/pop/queue/r07?consumerGroup=g&subscriptionMode=all&wait=true";
    broker.push_n("r07", "p", "warm", 1);
    broker.drain("r07", "consumerGroup=g&subscriptionMode=all&batch=10", "g");
    let mut clients: Vec<Client> = (0..10).map(|_| broker.client()).collect();
    for client in &mut clients {
        client.write(format!("GET {poll}&timeout=60000 HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sends");
    }
    eventually("they are parked", || (broker.parked("r07") == 10).then_some(()));
    postgres.kill();
    let mut producer = Producer::new(&broker, "r07", "p");
    assert_eq!(producer.push(), "buffered");
    clients.iter_mut().for_each(Client::hang_up);
    eventually("nobody is parked", || (broker.parked("r07") == 0).then_some(()));
    postgres.resume();
    broker.wait_ready();
    let got = eventually("the live poll is served", || {
        let answer = broker.get(&format!("{poll}&timeout=5000"));
        (answer.status == 200).then(|| answer.json())
    });
    let message = &got["messages"][0];
    assert_eq!((&message["transactionId"], &message["deliveryAttempt"]), (&json!("p-0"), &json!(1)));
}

/// R09: the late ack of the first worker, with a store and a broker that went away meanwhile.
#[test]
fn r09_the_late_ack_of_the_first_worker() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.configure("r09", json!({"leaseTime": 2}));
    broker.push_n("r09", "p", "k", 5);
    let first = broker.pop("r09", "batch=5");
    assert_eq!(first.messages.len(), 5);
    postgres.kill();
    let refused = broker.post("/api/v1/ack/batch", &json!({"acknowledgments": [first.messages[4].ack("completed")]}));
    let accepted = refused.status == 200 && refused.json()[0]["success"] == true;
    assert!(!accepted, "an ack while the store is away: {}", refused.text());
    postgres.resume();
    broker.restart();
    let second = eventually("the lease is over", || {
        Some(broker.pop("r09", "batch=5&wait=true&timeout=1000")).filter(|pop| !pop.is_empty())
    });
    assert_eq!(second.keys(), first.keys());
    assert!(second.messages.iter().all(|m| m.delivery_attempt == 2));
    for word in ["completed", "failed"] {
        let late = broker.ack("", &[first.messages[4].ack(word)]);
        assert_eq!(late[0]["success"], false, "{late:?}");
    }
    let done = broker.ack_ok("", &[second.messages[4].ack("completed")]);
    assert_eq!(done[0]["leaseReleased"], true, "{done:?}");
    assert!(broker.pop("r09", "batch=5").is_empty());
    assert_eq!(broker.dead_letters_on(&postgres, "r09"), Vec::<String>::new());
    let extend = broker.post(&format!("/api/v1/lease/{}/extend", first.lease_id), &json!({"seconds": 10}));
    assert_eq!(extend.json()["renewed"], 0, "{}", extend.text());
}
