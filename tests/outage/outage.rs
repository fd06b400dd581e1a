//! The store goes away and comes back; the broker dies meanwhile.

use super::*;
use std::time::Instant;

/// Queued, outage, buffered, recovery, queued: one producer, one partition, no inversion.
fn order_crosses_the_boundary(runtime: &str) {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("QUEEN_RUNTIME", runtime).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    for round in 0..3 {
        for _ in 0..20 {
            producer.push();
        }
        postgres.kill();
        let gone = Instant::now();
        assert_eq!(producer.push(), "buffered");
        assert!(gone.elapsed() < Duration::from_secs(5), "the first after {:?}", gone.elapsed());
        for _ in 0..60 {
            assert_eq!(producer.push(), "buffered");
        }
        assert!(spool_files(&broker).iter().any(|name| name.ends_with(".tmp")), "{:?}", spool_files(&broker));
        assert_eq!(buffers(&broker)["pending"], 61);
        eventually("/health says 503", || (broker.get("/health").status == 503).then_some(()));
        assert_eq!(broker.get("/health").json()["spoolPending"], 61);
        assert_eq!(broker.get("/health/live").status, 200);
        if round == 1 {
            // Also while nothing is there to be polled for.
            std::thread::sleep(Duration::from_secs(1));
        }
        postgres.resume();
        producer.push_until("queued");
        drained(&broker);
        producer.push_until("queued");
        assert_eq!(spool_files(&broker), Vec::<String>::new());
    }
    assert!(producer.count("queued") >= 60 && producer.count("buffered") >= 183);
    check_order(&producer, &stored(&broker, "orders"));
    assert_eq!(broker.metric("queen_file_buffer_quarantined_files"), Some(0.0));
    assert_eq!(broker.metric("queen_file_buffer_duplicates_total"), Some(0.0), "of what was never stored");
    assert_eq!(transitions(&broker), (3, 3), "{}", broker.log());
}

/// Pushes wait behind what is still to be drained, also when the store has long been back.
#[test]
fn an_outage_is_told_once_however_many_pushes_wait_behind_its_backlog() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let batch = |partition: u32| -> Value {
        let item = json!({"queue": "backlog", "partition": format!("p{partition}"), "payload": "x".repeat(100)});
        vec![item; 200].into()
    };
    broker.push(batch(0));
    postgres.kill();
    (0..100).for_each(|n| assert_eq!(broker.push(batch(n % 20))[0]["status"], "buffered"));
    postgres.resume();
    let mut behind = 0;
    eventually("a push does not wait behind others", || {
        let buffered = (0..20).filter(|n| broker.push(batch(*n))[0]["status"] == "buffered").count();
        behind += buffered;
        (buffered == 0).then_some(())
    });
    drained(&broker);
    assert!(0 < behind);
    assert_eq!(transitions(&broker), (1, 1), "{behind} waited\n{}", broker.log());
    assert_eq!(buffers(&broker)["dbHealthy"], true);
}

/// Also those that nobody tried to store, because the store was known to be away. Source: operations 4.1, 5.11.
#[test]
fn each_push_of_an_outage_counts_as_a_database_error() {
    const PUSHES: usize = 300;
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("STATS_INTERVAL_MS", "1000").start();
    broker.push_n("orders", "p", "first", 1);
    postgres.kill();
    eventually("the loss is seen", || (broker.get("/health").status == 503).then_some(()));
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..PUSHES).for_each(|_| assert_eq!(producer.push(), "buffered"));
    postgres.resume();
    drained(&broker);
    let counted = || broker.metric("queen_cluster_db_errors_total{scope=\"cluster\"}").unwrap_or(0.0);
    eventually("all of them are counted", || (PUSHES as f64 <= counted()).then_some(()));
}

/// What found no room on the disk is no backlog: nothing has to be drained for the outage to be over.
#[test]
fn an_outage_with_a_full_spool_ends_with_the_outage() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("FILE_BUFFER_MAX_BYTES", "1").start();
    broker.push_n("orders", "p", "first", 1);
    postgres.kill();
    let mut producer = Producer::new(&broker, "orders", "p");
    assert_eq!(producer.push(), "failed");
    eventually("the loss is seen", || (buffers(&broker)["dbHealthy"] == false).then_some(()));
    postgres.resume();
    producer.push_until("queued");
    eventually("the broker is healthy", || (buffers(&broker)["dbHealthy"] == true).then_some(()));
    assert_eq!(transitions(&broker), (0, 0), "{}", broker.log());
}

#[test]
fn order_crosses_the_boundary_with_direct_io() {
    order_crosses_the_boundary("auto");
}

#[test]
fn order_crosses_the_boundary_with_plain_files() {
    order_crosses_the_boundary("epoll");
}

/// The drain wakes who waits.
#[test]
fn a_parked_poll_gets_what_is_drained() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.push_n("jobs", "p", "first", 1);
    assert_eq!(broker.drain("jobs", "batch=10", "").len(), 1);
    postgres.kill();
    let mut producer = Producer::new(&broker, "jobs", "p");
    assert_eq!(producer.push(), "buffered");
    postgres.resume();
    let got = eventually("a poll is served", || {
        let answer = broker.get("/api/v1/pop/queue/jobs?wait=true&timeout=10000");
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(got["messages"][0]["transactionId"], "p-0");
    assert_eq!(got["messages"][0]["id"], producer.accepted[0].1.as_str());
}

/// `kill -9` with undrained records, and a boot that cannot reach the database.
#[test]
fn a_killed_broker_boots_without_its_database_and_loses_nothing() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut producers: Vec<Producer> =
        ["a", "b", "c", "d"].into_iter().map(|p| Producer::new(&broker, "orders", p)).collect();
    producers.iter_mut().for_each(|producer| (0..5).for_each(|_| drop(producer.push())));
    postgres.kill();
    for life in 0..3 {
        for producer in &mut producers {
            (0..10).for_each(|_| assert_eq!(producer.push(), "buffered"));
        }
        broker.kill();
        eventually("the port is free", || std::net::TcpListener::bind(("127.0.0.1", broker.port)).ok());
        broker.start_again();
        eventually("the port is open", || Client::new(broker.port).get("/health").ok());
        assert_eq!(broker.get("/health").status, 503);
        assert_eq!(broker.get("/health/live").status, 200);
        eventually("the backlog is told", || (buffers(&broker)["pending"] == 40 * (life + 1)).then_some(()));
    }
    for producer in &mut producers {
        assert_eq!(producer.push(), "buffered", "no key can be hashed yet");
    }
    // Each of the four processes, three of which began beside what was left.
    assert_eq!(transitions(&broker), (4, 0), "{}", broker.log());
    assert_eq!(buffers(&broker)["dbHealthy"], false);
    // Omitted transaction ids: answer and message agree.
    let verdict = broker.push(json!([{"queue": "orders", "partition": "minted", "payload": {}}])).remove(0);
    assert_eq!(verdict["status"], "buffered");
    assert_eq!(verdict["transaction_id"], verdict["message_id"]);
    postgres.resume();
    broker.wait_ready();
    drained(&broker);
    producers.iter_mut().for_each(|producer| producer.push_until("queued"));
    let mut stored = stored(&broker, "orders");
    producers.iter().for_each(|producer| check_order(producer, &stored));
    let minted = stored.remove("minted").expect("stored");
    assert_eq!(
        minted,
        [(verdict["message_id"].as_str().unwrap().into(), verdict["message_id"].as_str().unwrap().into())]
    );
}

/// The broker dies at any moment of a drain; a record that was stored and not removed is stored once.
#[test]
fn kills_during_the_drain_store_everything_once() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("FILE_BUFFER_EVENTS_PER_FILE", "25").start();
    broker.configure("orders", json!({"dedupWindowSeconds": 3600}));
    let mut producer = Producer::new(&broker, "orders", "p");
    for pause in [0, 5, 20, 60, 150] {
        postgres.kill();
        producer.push_until("buffered");
        (0..80).for_each(|_| drop(producer.push()));
        postgres.resume();
        eventually("the drain begins", || (buffers(&broker)["pending"].as_u64() < Some(81)).then_some(()));
        std::thread::sleep(Duration::from_millis(pause));
        broker.restart();
        producer.push();
    }
    drained(&broker);
    producer.push_until("queued");
    check_order(&producer, &stored(&broker, "orders"));
}

/// SIGSTOP: nothing answers, nothing is closed.
#[test]
fn a_frozen_store_freezes_no_push_and_stores_once() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", COMMIT_MS).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..5).for_each(|_| drop(producer.push()));
    for window in [3600, 0] {
        broker.configure("orders", json!({"dedupWindowSeconds": window}));
        for _ in 0..3 {
            postgres.freeze();
            let began = Instant::now();
            // Sent, and stored the moment the server goes on: an earlier attempt of what is buffered.
            assert_eq!(producer.push(), "buffered");
            assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
            for _ in 0..5 {
                assert_eq!(producer.push(), "buffered");
            }
            // A partition nobody has met.
            let other = broker.push(json!([{"queue": "orders", "partition": "new", "payload": 1}])).remove(0);
            assert_eq!(other["status"], "buffered", "{other}");
            eventually("/health says 503", || (broker.get("/health").status == 503).then_some(()));
            postgres.thaw();
            producer.push_until("queued");
            drained(&broker);
        }
    }
    check_order(&producer, &stored(&broker, "orders"));
}

/// A retry of what is buffered is buffered, and stored once; afterwards it is a duplicate.
#[test]
fn a_retry_of_a_buffered_push_is_stored_once() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.push_n("orders", "p", "warm", 1);
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let items = |keys: &[String]| -> Value {
        keys.iter()
            .map(|key| json!({"queue": "orders", "partition": "p", "transactionId": key, "payload": 1}))
            .collect()
    };
    postgres.kill();
    let mut first = Vec::new();
    for _ in 0..3 {
        let verdicts = broker.push(items(&keys));
        assert!(verdicts.iter().all(|v| v["status"] == "buffered"), "{verdicts:?}");
        if first.is_empty() {
            first = verdicts;
        }
    }
    postgres.resume();
    drained(&broker);
    let again = broker.push(items(&keys));
    for (again, first) in again.iter().zip(&first) {
        assert_eq!(again["status"], "duplicate");
        assert_eq!(again["message_id"], first["message_id"], "the first attempt is the original");
    }
    assert_eq!(broker.metric("queen_file_buffer_duplicates_total"), Some(400.0));
    assert_eq!(stored(&broker, "orders")["p"].len(), 201);
}

/// Everything a message has outlives the spool, to the byte.
#[test]
fn payloads_come_out_byte_for_byte() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.push_n("numbers", "p", "warm", 1);
    broker.drain("numbers", "batch=10", "");
    postgres.kill();
    let odd = r#"{"a":9007199254740993,"b":123456789012345678901234567890,"c":1e400,"d":-0,"e":1.0,"f":0.1000000000000000055511151231257827,"g":1E+2}"#;
    let big = format!("\"{}\"", "x".repeat(300_000));
    let body = format!(
        r#"{{"items":[{{"queue":"numbers","partition":"R&D \"north\"","transactionId":"caf\u00e9","payload":{odd}}},{{"queue":"numbers","partition":"R&D \"north\"","payload":{big}}}]}}"#
    );
    let verdicts = broker.push_raw(body.as_bytes());
    assert!(verdicts.iter().all(|v| v["status"] == "buffered"), "{verdicts:?}");
    postgres.resume();
    drained(&broker);
    let all = broker.drain("numbers", "batch=10&wait=true&timeout=500", "");
    assert_eq!((all[0].transaction_id.as_str(), all[0].data.get()), ("café", odd));
    assert_eq!((all[0].partition.as_str(), all[1].data.get()), ("R&D \"north\"", big.as_str()));
}

#[test]
fn a_second_broker_on_the_directory_does_not_start() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let dir = broker.spool_dir();
    let second = Setup::on(&postgres, "postgres").env("FILE_BUFFER_DIR", dir.to_str().expect("UTF-8")).launch();
    assert_eq!(second.wait_end().code(), Some(1));
    // One line says what is wrong and what to do.
    let log = second.log();
    let fatal: Vec<&str> = log.lines().filter(|line| line.contains("FATAL")).collect();
    let [line] = fatal[..] else { panic!("{log}") };
    let text = "another broker uses this spool directory; give this one its own with FILE_BUFFER_DIR";
    assert!(line.contains(&format!("{}: {text}", dir.display())), "{line}");
}
