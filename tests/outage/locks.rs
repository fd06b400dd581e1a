//! Somebody else's session holds what the broker wants to write: one row, a whole table. Source: reliability 6, F14.

use super::*;
use std::process::Child;
use std::time::Instant;

/// A session that has done this and keeps it.
struct Holder<'a> {
    postgres: &'a Postgres,
    psql: Child,
}

impl<'a> Holder<'a> {
    fn new(postgres: &'a Postgres, sql: &str) -> Holder<'a> {
        let psql = postgres.hold(&format!("begin; {sql}; select pg_sleep(600)"));
        let holder = Holder { postgres, psql };
        eventually("the lock is held", || (holder.sessions("count(*)") == "1").then_some(()));
        holder
    }

    fn sessions(&self, what: &str) -> String {
        let sql = format!("select {what} from pg_stat_activity where wait_event = 'PgSleep'");
        self.postgres.query("postgres", &sql).trim().to_owned()
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        self.sessions("pg_terminate_backend(pid)");
        let _ = self.psql.wait();
    }
}

const ROUNDS: usize = 100;

/// How long each of some rounds took: a push that is `queued`, a pop that has it, its ack.
#[track_caller]
fn rounds(broker: &Broker, partition: &str, name: &str) -> Vec<Duration> {
    let round = |n: usize| {
        let began = Instant::now();
        let verdicts = broker.push_n("orders", partition, &format!("{name}-{n}-"), 1);
        assert_eq!(verdicts[0]["status"], "queued", "{verdicts:?}");
        let pop = broker.pop_pinned("orders", partition, "batch=10");
        assert_eq!(pop.keys(), [format!("{name}-{n}-0")]);
        broker.complete("__QUEUE_MODE__", &pop);
        began.elapsed()
    };
    let mut all: Vec<Duration> = (0..ROUNDS).map(round).collect();
    all.sort_unstable();
    all
}

/// One row is locked, and a push waits for it: pushes, pops and acks of another partition take no longer than before.
#[test]
fn beside_a_locked_row_pushes_and_pops_are_as_fast_as_before() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", COMMIT_MS).start();
    let mut producer = Producer::new(&broker, "orders", "locked");
    (0..5).for_each(|_| drop(producer.push()));
    let calm = rounds(&broker, "free", "calm");
    let holder = Holder::new(&postgres, "select 1 from queen.partitions where name = 'locked' for update");
    let (held, said) = std::thread::scope(|scope| {
        let behind = scope.spawn(|| producer.push());
        let held = rounds(&broker, "free", "held");
        (held, behind.join().expect("a push"))
    });
    let p99 = |all: &[Duration]| all[all.len() * 99 / 100];
    println!("calm p99 {:?}, beside a locked row {:?}; the push behind it was {said}", p99(&calm), p99(&held));
    // Three times the calm value is the goal; a machine that is busy meanwhile gets more.
    assert!(p99(&held) <= 3 * p99(&calm) + Duration::from_millis(250), "{:?} {:?}", p99(&calm), p99(&held));
    assert_eq!(said, "buffered");
    drop(holder);
    producer.push_until("queued");
    drained(&broker);
    assert_eq!(stored(&broker, "orders")["locked"].len(), producer.accepted.len());
}

/// The tables themselves are locked: pushes are `buffered` when their deadline is over, and stored once, in order, when
/// the lock is gone; the broker needs no restart.
#[test]
fn behind_a_locked_table_pushes_are_spooled() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", COMMIT_MS).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..5).for_each(|_| drop(producer.push()));
    for _ in 0..2 {
        let holder = Holder::new(&postgres, "lock table queen.segments, queen.cursors in access exclusive mode");
        let began = Instant::now();
        assert_eq!(producer.push(), "buffered");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        (0..50).for_each(|_| assert_eq!(producer.push(), "buffered"));
        drop(holder);
        producer.push_until("queued");
        drained(&broker);
    }
    assert_eq!(producer.count("failed"), 0);
    check_order(&producer, &stored(&broker, "orders"));
}
