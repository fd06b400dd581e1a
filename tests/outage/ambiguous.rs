//! Commits that were sent and not answered: 0 duplicates, 0 losses. Source: reliability 6, F9 and F10.

use super::proxy::{Mode, Proxy};
use super::*;
use std::time::Instant;

/// Through a wire that can be cut.
fn setup(postgres: &Postgres, proxy: &Proxy) -> Setup {
    Setup::on(postgres, "postgres")
        .env("PG_PORT", &proxy.port.to_string())
        .env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", COMMIT_MS)
}

/// The answer of COMMIT is lost, with any window, also when the outage outlasts it.
#[test]
fn lost_answers_store_once() {
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).start();
    for (queue, window, outage_ms) in [("hour", 3600, 0), ("second", 1, 2_500), ("none", 0, 300)] {
        broker.configure(queue, json!({"dedupWindowSeconds": window}));
        let mut producer = Producer::new(&broker, queue, "p");
        let mut ambiguous = 0;
        for round in 0..8 {
            producer.push_until("queued");
            let before = proxy.cut.load(std::sync::atomic::Ordering::Relaxed);
            proxy.set(Mode::CutAnswers);
            assert_eq!(producer.push(), "buffered");
            ambiguous += proxy.cut.load(std::sync::atomic::Ordering::Relaxed).min(before + 1) - before;
            proxy.set(Mode::Refuse);
            assert_eq!(producer.push(), "buffered");
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(outage_ms));
            }
            proxy.set(Mode::Pass);
        }
        producer.push_until("queued");
        drained(&broker);
        assert!(ambiguous > 0, "not valid: no answer was lost");
        check_order(&producer, &stored(&broker, queue));
    }
    let again = broker.metric("queen_file_buffer_duplicates_total");
    assert!(again > Some(0.0), "not valid: no commit had been applied before its answer was lost");
}

/// One answer is lost and the store is there: the commit log says what became of the commit, and the push is answered as
/// it would have been.
#[test]
fn an_answer_that_was_lost_is_asked_for_and_the_push_is_queued() {
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    producer.push_until("queued");
    for _ in 0..40 {
        proxy.set(Mode::CutOnce);
        assert_eq!(producer.push(), "queued");
    }
    assert!(proxy.cut.load(std::sync::atomic::Ordering::Relaxed) >= 20, "not valid: too few answers were lost");
    check_order(&producer, &stored(&broker, "orders"));
}

fn cuts(proxy: &Proxy) -> u64 {
    proxy.cut.load(std::sync::atomic::Ordering::Relaxed)
}

/// A group that was deleted without an answer is forgotten as after one: it begins anew, in all queues and in one.
#[test]
fn a_group_delete_without_an_answer_is_heard_all_the_same() {
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).env("QUEEN_SHARDS", "1").start();
    broker.push_n("orders", "p", "m", 4);
    let query = "consumerGroup=g&subscriptionMode=all&batch=10";
    for path in ["/api/v1/consumer-groups/g", "/api/v1/consumer-groups/g/queues/orders"] {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut lost = 0;
        while lost < 3 {
            let pop = broker.pop("orders", query);
            assert_eq!(pop.keys(), ["m0", "m1", "m2", "m3"], "{path}: {lost} answers were lost");
            broker.ack_ok("g", &[pop.messages[3].ack("completed")]);
            // The next answer of PostgreSQL is its own or a pulse's.
            proxy.set(Mode::CutOnce);
            lost += u32::from(broker.send("DELETE", path, None).status != 200);
            while broker.send("DELETE", path, None).status != 200 {
                assert!(Instant::now() < deadline, "{path}: the store did not come back");
            }
            assert!(Instant::now() < deadline, "{path}: not valid: too few answers were lost");
        }
    }
}

/// The same for moves of cursors: a claim hands its messages out, an ack is accepted, a nack is charged once and answered as
/// it was decided.
#[test]
fn moves_whose_answers_were_lost_are_answered_as_they_were_decided() {
    const ROUNDS: usize = 12;
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).env("QUEEN_SHARDS", "1").start();
    broker.configure("orders", json!({"retryLimit": 0, "deadLetterQueue": true}));
    broker.push_n("orders", "p", "m", 2 * ROUNDS);
    let query = "consumerGroup=g&subscriptionMode=all&batch=1";
    // The group is open, the moves' writer is made.
    let first = broker.pop("orders", query);
    broker.ack_ok("g", &[first.messages[0].ack("completed")]);
    let (mut lost, mut dead) = (0, Vec::new());
    for n in 1..2 * ROUNDS {
        let word = if n % 2 == 0 { "completed" } else { "failed" };
        let before = cuts(&proxy);
        // The claim: from the tail, so the next answer of PostgreSQL is its own or a pulse's.
        proxy.set(Mode::CutOnce);
        let pop = broker.pop("orders", query);
        assert_eq!(pop.keys(), [format!("m{n}")], "round {n}");
        proxy.set(Mode::CutOnce);
        let verdict = broker.ack("g", &[pop.messages[0].ack(word)]).remove(0);
        assert_eq!((&verdict["success"], &verdict["dlq"]), (&json!(true), &json!(word == "failed")), "{n}: {verdict}");
        assert_ne!(verdict["noop"], true, "{verdict}");
        lost += cuts(&proxy) - before;
        if word == "failed" {
            dead.push(format!("m{n}"));
        }
    }
    assert!(lost >= ROUNDS as u64, "not valid: {lost} answers were lost");
    let mut filed = broker.dead_letters_on(&postgres, "orders");
    filed.sort();
    dead.sort();
    assert_eq!(filed, dead, "each once");
}

/// The same for transactions: committed once and answered so. Where nobody can tell, it is a 5xx, never `success: false`.
#[test]
fn transactions_whose_answers_were_lost_are_committed_once_and_answered_so() {
    const ROUNDS: usize = 25;
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).env("QUEEN_SHARDS", "1").start();
    broker.push_n("inputs", "p", "i", ROUNDS);
    let query = "consumerGroup=g&subscriptionMode=all&batch=1";
    // Nothing but the bundle has to be asked of the store: lanes are known, the connection and its writer are made.
    for lane in ["o0", "o1", "o2"] {
        broker.push_keys("outputs", lane, &["warm"]);
    }
    let item = json!({"queue": "other", "payload": 1});
    let first = json!({"operations": [{"type": "push", "items": [item]}]});
    assert_eq!(broker.post("/api/v1/transaction", &first).status, 200);
    let mut told = Vec::new();
    for n in 0..ROUNDS {
        let pop = broker.pop("inputs", query);
        let message = &pop.messages[0];
        let ack = json!({"type": "ack", "transactionId": message.transaction_id, "partitionId": message.ack("completed")["partitionId"],
            "leaseId": message.ack("completed")["leaseId"], "status": "completed", "consumerGroup": "g"});
        let item = json!({"queue": "outputs", "partition": format!("o{}", n % 3), "transactionId": format!("o{n}"), "payload": n});
        let body = json!({"operations": [ack, {"type": "push", "items": [item]}]});
        proxy.set(Mode::CutOnce);
        let answer = broker.post("/api/v1/transaction", &body);
        assert!(answer.status >= 500 || answer.json()["success"] == true, "{}", answer.text());
        told.push(answer.status);
        proxy.set(Mode::Pass);
        eventually("the store is seen again", || (broker.get("/health").status == 200).then_some(()));
        if answer.status >= 500 {
            // Nobody said: the input's lease has to end, or was ended by the transaction.
            break;
        }
    }
    assert!(cuts(&proxy) >= 10, "not valid: {} answers were lost", cuts(&proxy));
    assert_eq!(told, [200; ROUNDS], "the log tells");
    let outputs = broker.drain("outputs", "consumerGroup=out&subscriptionMode=all&batch=100&partitions=8", "out");
    let mut keys: Vec<String> = outputs.into_iter().map(|message| message.transaction_id).collect();
    keys.retain(|key| key != "warm");
    keys.sort();
    let mut want: Vec<String> = (0..ROUNDS).map(|n| format!("o{n}")).collect();
    want.sort();
    assert_eq!(keys, want, "each output once");
    assert!(broker.pop("inputs", query).is_empty(), "each input is acked");
}

/// The wire goes black: noticed within 10 s, no push waits longer than for its commit.
#[test]
fn a_black_hole_is_noticed() {
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = setup(&postgres, &proxy).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..3).for_each(|_| drop(producer.push()));
    for _ in 0..2 {
        proxy.set(Mode::Black);
        let began = Instant::now();
        assert_eq!(producer.push(), "buffered");
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        eventually("/health says 503", || (broker.get("/health").status == 503).then_some(()));
        assert!(began.elapsed() < Duration::from_secs(10), "noticed after {:?}", began.elapsed());
        assert_eq!(broker.get("/health/live").status, 200);
        (0..10).for_each(|_| assert_eq!(producer.push(), "buffered"));
        proxy.set(Mode::Pass);
        producer.push_until("queued");
        drained(&broker);
    }
    check_order(&producer, &stored(&broker, "orders"));
}
