//! The database goes back to a backup under live brokers: from then on everything follows what the restored one holds.
//! Once through recovery onto another timeline, once as an older copy that nothing about the cluster tells. Source: rule 12; operations 8.4 (restoring rolls consumption back).

use super::*;

const GROUP: &str = "consumerGroup=g&subscriptionMode=all&batch=100";

fn keys(names: &[String]) -> Vec<&str> {
    names.iter().map(|name| &**name).collect()
}

fn named(prefix: &str, n: std::ops::Range<usize>) -> Vec<String> {
    n.map(|i| format!("{prefix}{i}")).collect()
}

/// Pushes keys, whatever becomes of them.
fn push(broker: &Broker, queue: &str, partition: &str, keys: &[&str]) -> Vec<Value> {
    let item = |key: &&str| json!({"queue": queue, "partition": partition, "transactionId": key, "payload": key});
    broker.push(keys.iter().map(item).collect())
}

/// Pushes one key until it is stored, perhaps out of the spool.
fn push_until_stored(broker: &Broker, key: &str) {
    eventually("pushes are stored again", || (push(broker, "q", "p", &[key])[0]["status"] != "buffered").then_some(()));
    drained(broker);
}

/// How often a broker has said that it dropped what it remembered.
fn changes_told(broker: &Broker) -> usize {
    broker.log().matches("what this broker remembered of it is dropped").count()
}

/// Waits until a broker has dropped what it remembered for the `n`th time.
fn until_told(broker: &Broker, n: usize) {
    eventually("the broker meets the store", || (changes_told(broker) == n).then_some(()));
    eventually("it serves again", || (broker.get("/health").status == 200).then_some(()));
}

#[test]
fn a_restored_backup_is_followed_and_nothing_else() {
    what_is_there_is_followed(Postgres::restore);
}

#[test]
fn an_older_copy_is_followed_and_nothing_else() {
    what_is_there_is_followed(Postgres::put_back);
}

#[test]
fn an_equal_offset_of_another_history_is_not_taken_for_its_own() {
    equal_offsets_are_told_apart(Postgres::restore);
}

#[test]
fn an_equal_offset_of_an_older_copy_is_not_taken_for_its_own() {
    equal_offsets_are_told_apart(Postgres::put_back);
}

/// What is not in the backup never was: its keys are free, its offsets are given again, its messages are gone, its leases
/// are void. What is in it is as it was.
fn what_is_there_is_followed(go_back: fn(&Postgres)) {
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    broker.push_n("q", "p", "m", 5);
    let first = broker.pop("q", "consumerGroup=g&subscriptionMode=all&batch=2");
    broker.complete("g", &first);
    postgres.back_up();
    until_told(&broker, 1);
    eventually("pushes are stored again", || {
        (broker.push_keys("q", "p", &["m5"])[0]["status"] != "buffered").then_some(())
    });
    drained(&broker);
    broker.push_keys("q", "p", &keys(&named("m", 6..10)));
    broker.push_n("q", "later", "l", 3);
    broker.push_n("r", "p", "r", 3);
    let acked = broker.pop_pinned("q", "p", "consumerGroup=g&batch=5");
    assert_eq!(acked.keys(), ["m2", "m3", "m4", "m5", "m6"]);
    broker.complete("g", &acked);
    let held = broker.pop_pinned("q", "p", "consumerGroup=g&batch=2");
    assert_eq!(held.keys(), ["m7", "m8"]);
    assert_eq!(broker.pop("r", GROUP).keys(), ["r0", "r1", "r2"]);

    go_back(&postgres);
    until_told(&broker, 2);
    // Keys that only the lost history had are free, and what they get begins where the backup ends.
    let verdicts = push(&broker, "q", "p", &["m7", "m4", "new"]);
    let told: Vec<(&str, i64)> =
        verdicts.iter().map(|v| (v["status"].as_str().unwrap(), v["offset"].as_i64().unwrap_or(-1))).collect();
    assert_eq!(told, [("queued", 5), ("duplicate", 4), ("queued", 6)], "{verdicts:?}");
    assert_eq!(broker.push_n("q", "later", "l", 1)[0]["offset"], 0, "a partition that never was");
    let late = broker.ack("g", &[held.messages[0].ack("completed")]);
    assert_eq!(late[0]["success"], false, "a lease that never was: {late:?}");
    let got = broker.pop_pinned("q", "p", "consumerGroup=g&batch=100");
    assert_eq!(got.keys(), ["m2", "m3", "m4", "m7", "new"], "from where the backup's cursor stands");
    assert_eq!(got.offsets(), [2, 3, 4, 5, 6]);
    broker.complete("g", &got);
    assert_eq!(broker.pop("q", GROUP).keys(), ["l0"]);
    assert!(broker.pop("r", GROUP).is_empty(), "a queue that never was");
    assert_eq!(broker.push_keys("r", "p", &["r1"])[0]["offset"], 0);
    assert_eq!(broker.pop("r", GROUP).keys(), ["r1"]);
    assert_eq!(changes_told(&broker), 2, "it is said once");
}

/// The worst case: a broker sleeps while the store goes back, and wakes when another broker has filled the partition to
/// the very offset that it remembers, with other messages.
fn equal_offsets_are_told_apart(go_back: fn(&Postgres)) {
    let postgres = Postgres::start(&[]);
    let start = || Setup::on(&postgres, "postgres").start();
    let (a, b) = (start(), start());
    a.push_n("q", "p", "m", 3);
    assert_eq!(a.pop("q", GROUP).keys().len(), 3);
    postgres.back_up();
    for broker in [&a, &b] {
        until_told(broker, 1);
    }
    push_until_stored(&a, "m3");
    let last = a.push_keys("q", "p", &keys(&named("m", 4..8))).pop().expect("a verdict")["offset"].clone();
    assert_eq!(last, 7);

    a.signal(libc::SIGSTOP);
    go_back(&postgres);
    until_told(&b, 2);
    assert_eq!(b.push_keys("q", "p", &keys(&named("x", 3..8))).pop().expect("a verdict")["offset"], 7);
    a.signal(libc::SIGCONT);
    let verdict = push(&a, "q", "p", &["m5"]).remove(0);
    assert!(["queued", "buffered"].contains(&verdict["status"].as_str().unwrap()), "no false duplicate: {verdict}");
    until_told(&a, 2);
    drained(&a);
    for (broker, key) in [(&a, "x4"), (&b, "m5")] {
        assert_eq!(push(broker, "q", "p", &[key])[0]["status"], "duplicate", "{key} is stored");
    }
    let want = ["m0", "m1", "m2", "x3", "x4", "x5", "x6", "x7", "m5"];
    for broker in [&a, &b] {
        let all =
            broker.pop_pinned("q", "p", &format!("consumerGroup={}&subscriptionMode=all&batch=100", broker.pid()));
        assert_eq!(all.keys(), want);
        assert_eq!(all.offsets(), (0..9).collect::<Vec<i64>>());
    }
    // And they see each other again.
    a.push_keys("q", "s", &["s0"]);
    assert_eq!(b.pop_pinned("q", "s", "consumerGroup=g&subscriptionMode=all").keys(), ["s0"]);
    assert_eq!((changes_told(&a), changes_told(&b)), (2, 2));
}
