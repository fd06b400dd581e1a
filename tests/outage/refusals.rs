//! The store answers, and refuses: for a while, or for good.

use super::proxy::{Mode, Proxy};
use super::*;
use std::time::Instant;

/// Read-only, out of connections: everything is buffered, nothing is set aside, all comes back by itself.
#[test]
fn passing_refusals_are_an_outage() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..5).for_each(|_| drop(producer.push()));
    for _ in 0..2 {
        postgres.query("postgres", "alter system set default_transaction_read_only = on");
        postgres.query("postgres", "select pg_reload_conf()");
        producer.push_until("buffered");
        let other = broker.push(json!([{"queue": "new-one", "partition": "x", "payload": 1}])).remove(0);
        assert_eq!(other["status"], "buffered", "{other}");
        postgres.query("postgres", "alter system reset default_transaction_read_only");
        postgres.query("postgres", "select pg_reload_conf()");
        producer.push_until("queued");
        drained(&broker);
    }
    // Backends are ended under running statements.
    for _ in 0..5 {
        let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                   where datname = current_database() and pid <> pg_backend_pid()";
        postgres.query("postgres", sql);
        (0..10).for_each(|_| drop(producer.push()));
    }
    drained(&broker);
    producer.push_until("queued");
    assert_eq!(producer.count("failed"), 0);
    check_order(&producer, &stored(&broker, "orders"));
    assert_eq!(broker.metric("queen_file_buffer_quarantined_files"), Some(0.0));
}

/// The store answers the control thread and has no connection for pushes: what makes a shard spool is no health.
#[test]
fn a_shard_that_is_refused_its_connection_is_not_healthy() {
    let postgres = Postgres::start(&[]);
    postgres.query("postgres", "create role limited login");
    postgres.query("postgres", "create database of_limited owner limited");
    let broker = Setup::on(&postgres, "of_limited").env("PG_USER", "limited").start();
    let partitions = ["a", "b", "c", "d", "e", "f"];
    partitions.iter().for_each(|partition| drop(broker.push_n("orders", partition, "first", 1)));
    // As many as there are stay; of those that pushes use none is left, nor made.
    postgres.query("postgres", "alter role limited connection limit 1");
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                 where application_name like 'queen % shard % push'";
    assert_ne!(postgres.query("postgres", ended), "0");
    let mut producers: Vec<Producer> = partitions.into_iter().map(|p| Producer::new(&broker, "orders", p)).collect();
    producers.iter_mut().for_each(|producer| assert_eq!(producer.push(), "buffered"));
    eventually("/health says 503", || (broker.get("/health").status == 503).then_some(()));
    for _ in 0..20 {
        // It stays so while nothing changes, whatever the control thread hears.
        assert_eq!(broker.get("/health").status, 503);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(broker.get("/health/live").status, 200);
    postgres.query("postgres", "alter role limited connection limit -1");
    eventually("/health says 200", || (broker.get("/health").status == 200).then_some(()));
    producers.iter_mut().for_each(|producer| producer.push_until("queued"));
    drained(&broker);
}

#[test]
fn an_item_that_is_refused_for_good_is_an_error_and_its_neighbours_are_stored() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    for partition in ["good", "bad", "fine"] {
        broker.push_n("orders", partition, partition, 1);
    }
    refuse_partition(&postgres, "bad");
    let item = |partition: &str, key: &str| json!({"queue": "orders", "partition": partition, "transactionId": key, "payload": 1});
    let verdicts = broker.push(json!([item("good", "g1"), item("bad", "b1"), item("fine", "f1")]));
    let statuses: Vec<&str> = verdicts.iter().map(|v| v["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["queued", "error", "queued"], "{verdicts:?}");
    assert!(verdicts[1]["error"].as_str().is_some_and(|text| !text.is_empty()));

    // The same out of the spool: it is set aside, its neighbours are not held up.
    postgres.kill();
    let verdicts = broker.push(json!([item("good", "g2"), item("bad", "b2"), item("fine", "f2")]));
    assert!(verdicts.iter().all(|v| v["status"] == "buffered"), "{verdicts:?}");
    postgres.resume();
    drained(&broker);
    eventually("the poison is set aside", || {
        (broker.metric("queen_file_buffer_quarantined_files") == Some(1.0)).then_some(())
    });
    assert_eq!(broker.get("/health").json()["spoolQuarantinedFiles"], 1);
    assert_eq!(std::fs::read_dir(broker.spool_dir().join("failed")).expect("lists").count(), 1);
    assert!(broker.log().contains("quarantined poison spool file"));
    let stored = stored(&broker, "orders");
    let keys = |partition: &str| stored[partition].iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(
        (keys("good"), keys("fine")),
        (vec!["good0".into(), "g1".into(), "g2".into()], vec!["fine0".into(), "f1".into(), "f2".into()])
    );
    assert_eq!(keys("bad"), ["bad0"]);
    assert_eq!(broker.push(json!([item("good", "g3")]))[0]["status"], "queued", "the partition is live again");
}

/// A right that is missing when the store comes back, and is given soon after: the records that were refused meanwhile are
/// stored in their order, before whatever came later, and nothing is set aside. Source: operations 4.3, 4.5.
#[test]
fn a_refusal_that_passes_keeps_the_order_of_its_partition() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut refused = Producer::new(&broker, "orders", "refused");
    let mut other = Producer::new(&broker, "orders", "other");
    for _ in 0..3 {
        assert_eq!((refused.push(), other.push()), ("queued".into(), "queued".into()));
    }
    refuse_partition(&postgres, "refused");
    postgres.kill();
    refused.push_until("buffered");
    (0..5).for_each(|_| drop(refused.push()));
    postgres.resume();
    eventually("a record is refused", || broker.log().contains("drain failed (permanent)").then_some(()));
    other.push_until("queued");
    assert_eq!(refused.push(), "buffered", "it is not to overtake those that are refused");
    postgres.query("postgres", "drop trigger refuse on queen.segments");
    refused.push_until("queued");
    drained(&broker);
    assert_eq!(broker.metric("queen_file_buffer_quarantined_files"), Some(0.0));
    let stored = stored(&broker, "orders");
    check_order(&refused, &stored);
    check_order(&other, &stored);
}

/// More records wait behind a refused one than are handed over at once, and more of them are refused: neither the drain of
/// another partition nor its live pushes wait for that, and the partition itself takes five seconds for the first one only.
/// Source: operations 4.5; reliability 7.
#[test]
fn many_refused_records_of_a_partition_hold_up_no_other_one() {
    const THREADS: usize = 4;
    const EACH: usize = 2200;
    const POISON: usize = 1 + THREADS;
    /// Beside it, on a machine that does other things as well.
    const LIVE_MAX: Duration = Duration::from_secs(2);
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut other = Producer::new(&broker, "orders", "other");
    assert_eq!(other.push(), "queued");
    broker.push_n("orders", "bad", "first-", 1);
    refuse_large(&postgres);
    postgres.kill();
    let push = |key: String, payload: Value| {
        let item = json!([{"queue": "orders", "partition": "bad", "transactionId": key, "payload": payload}]);
        assert_eq!(broker.push(item).remove(0)["status"], "buffered");
    };
    let poison = |key: usize| push(format!("poison{key}"), json!("x".repeat(6000)));
    poison(0);
    harness::at_once(THREADS, |thread| {
        for n in 0..EACH {
            if n == EACH / 2 {
                poison(1 + thread);
            }
            push(format!("{thread}-{n}"), json!({"n": n}));
        }
    });
    (0..200).for_each(|_| assert_eq!(other.push(), "buffered"));
    postgres.resume();
    other.push_until("queued");
    let left = buffers(&broker)["pending"].as_u64().expect("a number");
    assert!(left as usize > THREADS * EACH, "not valid: only {left} are left of the others");
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while buffers(&broker)["pending"] != 0 {
        let asked = Instant::now();
        assert_eq!(other.push(), "queued");
        slowest = slowest.max(asked.elapsed());
        assert!(began.elapsed() < 3 * harness::PATIENCE, "{}", buffers(&broker));
    }
    assert_eq!(transitions(&broker), (1, 1), "a refusal is no outage\n{}", broker.log());
    println!("{POISON} refused among {}: {:?}; slowest live push {slowest:?}", THREADS * EACH, began.elapsed());
    assert!(slowest < LIVE_MAX, "{slowest:?}");
    assert_eq!(broker.metric("queen_file_buffer_quarantined_files"), Some(POISON as f64));
    let stored = stored(&broker, "orders");
    check_order(&other, &stored);
    let mut next = [0; THREADS];
    for (key, _) in &stored["bad"][1..] {
        let (thread, n) = key.split_once('-').expect("two numbers");
        let expected = &mut next[thread.parse::<usize>().expect("a number")];
        assert_eq!(n.parse(), Ok(*expected), "{key}");
        *expected += 1;
    }
    assert_eq!(next, [EACH; THREADS]);
    broker.push_n("orders", "bad", "last-", 1).iter().for_each(|verdict| assert_eq!(verdict["status"], "queued"));
}

/// A segment of one large message is refused.
fn refuse_large(postgres: &Postgres) {
    let sql = "create function refuse() returns trigger language plpgsql as $$ begin \
                 if new.count = 1 and new.raw_len > 5000 then raise exception 'not this one'; end if; return new; end $$; \
               create trigger refuse before insert on queen.segments for each row execute function refuse()";
    postgres.query("postgres", sql);
}

fn refuse_partition(postgres: &Postgres, name: &str) {
    let sql = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin \
           if exists (select from queen.partitions p where p.id = new.partition_id and p.name = '{name}') then \
             raise exception 'not this one'; \
           end if; return new; end $$; \
         create trigger refuse before insert on queen.segments for each row execute function refuse()"
    );
    postgres.query("postgres", &sql);
}

/// Nowhere to write: the items are `failed`, the answer is 201, and the broker goes on.
#[test]
fn without_room_items_fail_and_nothing_is_pretended() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").env("FILE_BUFFER_MAX_BYTES", "60000").start();
    let mut producer = Producer::new(&broker, "orders", "p");
    (0..3).for_each(|_| drop(producer.push()));
    postgres.kill();
    producer.push_until("buffered");
    let big = "x".repeat(20_000);
    let push = || broker.push(json!([{"queue": "orders", "partition": "big", "payload": big}])).remove(0);
    let failed = eventually("the cap is met", || Some(push()).filter(|v| v["status"] != "buffered"));
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed.get("offset").is_none() && failed.get("error").is_none(), "{failed}");
    assert_eq!(buffers(&broker)["failed"], 1);
    postgres.resume();
    drained(&broker);
    producer.push_until("queued");
    assert_eq!(push()["status"], "queued");
}

/// A directory that cannot be made is not fatal: it is tried again. Source: operations 1.2, 1.3.
#[test]
fn a_directory_that_comes_late_is_used() {
    let postgres = Postgres::start(&[]);
    let base = harness::scratch_dir("late");
    std::fs::write(base.join("in-the-way"), b"").expect("writes");
    let dir = base.join("in-the-way/buffers");
    let broker = Setup::on(&postgres, "postgres").env("FILE_BUFFER_DIR", dir.to_str().expect("UTF-8")).start();
    let mut producer = Producer::new(&broker, "orders", "p");
    producer.push_until("queued");
    postgres.kill();
    assert_eq!(producer.push(), "failed");
    producer.accepted.pop();
    std::fs::remove_file(base.join("in-the-way")).expect("removes");
    eventually("a push is buffered", || {
        let status = producer.push();
        if status == "failed" {
            producer.accepted.pop();
        }
        (status == "buffered").then_some(())
    });
    postgres.resume();
    drained(&broker);
    check_order(&producer, &stored(&broker, "orders"));
}

/// A row that is locked for long: only its partition waits, and what waits too long is buffered.
#[test]
fn a_locked_row_holds_up_its_partition_only() {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    let mut locked = Producer::new(&broker, "orders", "locked");
    let mut free = Producer::new(&broker, "orders", "free");
    for _ in 0..3 {
        assert_eq!((locked.push(), free.push()), ("queued".into(), "queued".into()));
    }
    let sql = "begin; select from queen.partitions where name = 'locked' for update; select pg_sleep(12)";
    let mut holder = postgres.hold(sql);
    eventually("the row is locked", || {
        let n = postgres.query("postgres", "select count(*) from pg_stat_activity where wait_event = 'PgSleep'");
        (n == "1").then_some(())
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (locked.push(), locked.push()));
        for _ in 0..50 {
            assert_eq!(free.push(), "queued");
        }
        // The second follows the one on disk.
        assert_eq!(waiting.join().expect("runs"), ("buffered".into(), "buffered".into()));
    });
    holder.wait().expect("ends");
    drained(&broker);
    locked.push_until("queued");
    let stored = stored(&broker, "orders");
    check_order(&locked, &stored);
    check_order(&free, &stored);
}

/// A queue is encrypted, the broker does not know it yet, and the store is lost before it says so: what goes to the disk
/// is an envelope, whether the loss was noticed or not.
#[test]
fn a_queue_that_nobody_could_ask_for_is_encrypted() {
    const CANARY: &str = "canary-of-a-sealed-queue";
    let postgres = Postgres::start(&[]);
    let proxy = Proxy::to(postgres.port);
    let broker = Setup::on(&postgres, "postgres")
        .env("PG_PORT", &proxy.port.to_string())
        .env("QUEEN_PUSH_COMMIT_TIMEOUT_MS", COMMIT_MS)
        .env("QUEEN_ENCRYPTION_KEY", &"5a".repeat(32))
        .start();
    broker.configure("sealed", json!({"encryptionEnabled": true}));
    for (n, mode) in [Mode::Black, Mode::Refuse].into_iter().enumerate() {
        broker.restart();
        proxy.set(mode);
        let item = json!([{"queue": "sealed", "transactionId": n.to_string(), "payload": {"text": CANARY}}]);
        assert_eq!(broker.push(item)[0]["status"], "buffered", "{mode:?}");
        let files: Vec<Vec<u8>> = std::fs::read_dir(broker.spool_dir())
            .expect("a spool")
            .filter_map(|entry| std::fs::read(entry.expect("an entry").path()).ok())
            .collect();
        assert!(files.iter().any(|bytes| bytes.len() > CANARY.len()), "not valid: nothing is on the disk");
        let plain = |bytes: &Vec<u8>| bytes.windows(CANARY.len()).any(|at| at == CANARY.as_bytes());
        assert!(!files.iter().any(plain), "{mode:?}: the payload is on the disk as it came");
        proxy.set(Mode::Pass);
        drained(&broker);
    }
    let pop = broker.pop("sealed", "batch=10");
    assert_eq!(pop.keys(), ["0", "1"]);
    assert!(pop.messages.iter().all(|message| message.data.get() == format!("{{\"text\":\"{CANARY}\"}}")), "{pop:?}");
}
