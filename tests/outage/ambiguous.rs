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
