//! What was answered by one broker is seen by a pop at the other one that was issued after the answer.

use super::{ALL, parked, two, two_with};
use crate::harness::{Broker, encode, eventually, unique};
use serde_json::json;
use std::time::{Duration, Instant};

/// Parks a poll at `b`, does something at the other broker, and gives the poll's keys and how long it took from there.
fn woken_by(b: &Broker, queue: &str, act: impl FnOnce()) -> (Vec<String>, Duration) {
    poll_woken_by(b, queue, &parked(20_000), act)
}

/// The same for any poll.
fn poll_woken_by(b: &Broker, queue: &str, query: &str, act: impl FnOnce()) -> (Vec<String>, Duration) {
    std::thread::scope(|scope| {
        let poll = scope.spawn(|| {
            let pop = b.pop(queue, query);
            (pop.keys().into_iter().map(str::to_owned).collect::<Vec<_>>(), Instant::now())
        });
        eventually("the poll is parked", || (b.parked(queue) == 1).then_some(()));
        let began = Instant::now();
        act();
        let (keys, ended) = poll.join().expect("a poll");
        (keys, ended - began)
    })
}

#[test]
fn a_pop_after_the_answer_sees_what_the_other_broker_stored() {
    let (a, b) = two();
    let q = unique("sees");
    // First contact, with and without a backlog; then what comes later, in old and in new partitions.
    a.push_keys(&q, "p", &["first"]);
    assert_eq!(b.pop(&q, ALL).keys(), ["first"]);
    for round in 0..100 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (key, partition) = (format!("m{round}"), format!("p{}", round % 7));
        from.push_keys(&q, &partition, &[&key]);
        let pop = to.pop(&q, &format!("{ALL}&autoAck=true"));
        assert_eq!(pop.keys(), [key.as_str()], "round {round}");
    }
    for round in 0..50 {
        let (key, partition) = (format!("n{round}"), format!("r{round}"));
        assert!(b.pop_pinned(&q, &partition, "autoAck=true").is_empty(), "not there yet");
        a.push_keys(&q, &partition, &[&key]);
        assert_eq!(b.pop_pinned(&q, &partition, "autoAck=true").keys(), [key.as_str()], "pinned, round {round}");
    }
}

#[test]
fn a_push_wakes_a_poll_that_is_parked_at_the_other_broker() {
    let (a, b) = two();
    let q = unique("wakes");
    let mut took = Vec::new();
    for round in 0..30 {
        let key = format!("m{round}");
        let (keys, after) = woken_by(&b, &q, || drop(a.push_keys(&q, &format!("p{}", round % 5), &[&key])));
        assert_eq!(keys, [key]);
        let lease = b.pop(&q, ALL);
        assert!(lease.is_empty(), "delivered once: {:?}", lease.keys());
        b.post(&format!("/api/v1/consumer-groups/g/queues/{}/seek", encode(&q)), &json!({"toEnd": true}));
        took.push(after);
    }
    took.sort();
    println!("woken after {:?}, median {:?}", took.last(), took[took.len() / 2]);
    assert!(took[took.len() - 1] < Duration::from_secs(1), "{took:?}");
}

/// Times from a push at one broker to the delivery to a poll that is parked at the other one, in order. `rest`: how long
/// nothing happens before each push, while the poll is parked.
pub fn wakes_across(a: &Broker, b: &Broker, pushes: usize, rest: Duration) -> Vec<Duration> {
    let q = unique("across");
    a.push_keys(&q, "first", &["first"]);
    assert_eq!(b.pop(&q, &format!("{ALL}&autoAck=true")).keys(), ["first"]);
    let mut took = Vec::new();
    for round in 0..pushes {
        let key = format!("m{round}");
        let query = format!("{}&autoAck=true", parked(20_000));
        let mut rested = Duration::ZERO;
        let (keys, after) = poll_woken_by(b, &q, &query, || {
            let began = Instant::now();
            std::thread::sleep(rest);
            rested = began.elapsed();
            a.push_keys(&q, "p", &[&key]);
        });
        assert_eq!(keys, [key]);
        took.push(after - rested);
    }
    took.sort();
    took
}

/// The time that so many per mille of sorted ones do not exceed.
pub fn p(took: &[Duration], per_mille: usize) -> Duration {
    took[(took.len() * per_mille / 1000).min(took.len() - 1)]
}

/// Reliability F13. A broker at rest reads the log four times a second where it hears no hints, and less where it does: by
/// reading alone, half of the wakes take 125 ms and more. Pushes with and without hints take turns, so that what else the
/// machine does slows both down; without a hint both are alike.
#[test]
fn a_push_wakes_a_poll_at_the_other_broker_by_hint_sooner_than_by_reading() {
    const ROUNDS: usize = 12;
    const REST: Duration = Duration::from_millis(600);
    let pair = |sync: &str| two_with(|setup| setup.env("QUEEN_SYNC_ENABLED", sync));
    let (hinting, reading) = (pair("true"), pair("false"));
    // Until they have heard themselves: the first hints find nobody.
    let soon = Duration::from_millis(60);
    eventually("a hint wakes", || (wakes_across(&hinting.0, &hinting.1, 1, REST)[0] < soon).then_some(()));
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((a, b), took) in [&hinting, &reading].into_iter().zip(&mut took) {
            took.extend(wakes_across(a, b, 2, REST));
        }
    }
    took.iter_mut().for_each(|took| took.sort());
    println!("by hint {:?}, by reading {:?}", took[0], took[1]);
    let half = took.each_ref().map(|took| p(took, 500));
    assert!(2 * half[0] < half[1], "{half:?}");
    assert!(p(&took[1], 900) < Duration::from_secs(1), "reading finds it all the same: {:?}", took[1]);
}

/// Reliability 9: idle with parked polls, at most 5 queries a second of each broker, hints included. One more is allowed here:
/// the brokers have just started, and what autovacuum does counts as well.
#[test]
fn idle_brokers_with_parked_polls_ask_little() {
    const POLLS: usize = 8;
    const QUERIES_PER_SECOND_MAX: f64 = 6.0;
    const SPAN: Duration = Duration::from_secs(12);
    let (a, b) = two();
    let q = unique("idle");
    a.push_keys(&q, "first", &["first"]);
    assert_eq!(b.pop(&q, &format!("{ALL}&autoAck=true")).keys(), ["first"]);
    let database = a.database.clone().expect("a database");
    let commits = || -> f64 {
        let sql = format!("select xact_commit from pg_stat_database where datname = '{database}'");
        crate::harness::shared_postgres().query("postgres", &sql).parse().expect("a count")
    };
    std::thread::scope(|scope| {
        for n in 0..POLLS {
            let (broker, q) = (if n % 2 == 0 { &a } else { &b }, &q);
            scope.spawn(move || broker.pop(q, &parked(60_000)));
        }
        eventually("polls are parked", || (a.parked(&q) + b.parked(&q) == POLLS as u64).then_some(()));
        // A session reports what it did once a second, or when it has been idle for ten: what boot did comes into the first
        // span, or the second. The others count.
        let spans: Vec<f64> = (0..4)
            .map(|_| {
                let (before, began) = (commits(), Instant::now());
                std::thread::sleep(SPAN);
                (commits() - before) / began.elapsed().as_secs_f64() / 2.0
            })
            .collect();
        println!("{spans:.2?} queries a second of each broker");
        assert!(spans[2..].iter().all(|n| 0.0 < *n && *n <= QUERIES_PER_SECOND_MAX), "{spans:.2?}");
        // Ends the polls.
        for n in 0..POLLS {
            a.push_keys(&q, &format!("p{n}"), &[&format!("m{n}")]);
        }
        eventually("polls end", || {
            a.push_keys(&q, &unique("p"), &[&unique("m")]);
            (a.parked(&q) + b.parked(&q) == 0).then_some(())
        });
    });
}

#[test]
fn a_nack_at_one_broker_is_redelivered_by_the_other_one() {
    let (a, b) = two();
    let q = unique("nack");
    a.push_keys(&q, "p", &["m"]);
    let held = a.pop(&q, ALL);
    assert!(b.pop(&q, ALL).is_empty(), "leased");
    let (keys, after) = woken_by(&b, &q, || drop(a.ack_ok("g", &[held.messages[0].ack("failed")])));
    assert_eq!(keys, ["m"]);
    assert!(after < Duration::from_secs(5), "by the log, not by the end of the lease: {after:?}");

    // Without a poll: a pop that is issued after the nack's answer.
    let q = unique("nack");
    a.push_keys(&q, "p", &["m"]);
    for round in 0..2 {
        let held = a.pop(&q, ALL);
        assert_eq!(held.keys(), ["m"], "round {round}");
        assert!(b.pop(&q, ALL).is_empty(), "leased");
        a.ack_ok("g", &[held.messages[0].ack("retry")]);
        let again = b.pop(&q, ALL);
        assert_eq!(again.keys(), ["m"], "round {round}");
        assert!(a.pop(&q, ALL).is_empty(), "leased by the other one");
        b.ack_ok("g", &[again.messages[0].ack("retry")]);
    }
}

/// Who registers a group says whether it conflates; the other broker may have met the group before, by a pinned pop.
#[test]
fn a_conflating_group_of_one_broker_is_known_to_pinned_pops_of_the_other_one() {
    let (a, b) = two();
    let q = unique("conflates");
    a.push_n(&q, "p", "m", 3);
    a.push_n(&q, "r", "n", 1);
    assert_eq!(b.pop_pinned(&q, "r", "consumerGroup=g&subscriptionMode=all&batch=10&autoAck=true").keys(), ["n0"]);
    let made = a.pop(&q, "consumerGroup=g&subscriptionMode=all&conflation=true&batch=10&partitions=8");
    assert_eq!(made.keys(), ["m2"], "the newest of each");
    a.complete("g", &made);
    // It hears of the record with the log, which it reads twice a second; then it says so, where nothing is left, too.
    let pinned = |partition: &str| format!("/api/v1/pop/queue/{q}/partition/{partition}?consumerGroup=g&batch=10");
    eventually("the other broker has heard of the record", || {
        b.send("GET", &pinned("r"), None).text().contains("\"conflation\":true").then_some(())
    });
    b.push_n(&q, "p", "o", 3);
    assert_eq!(b.pop_pinned(&q, "p", "consumerGroup=g&batch=10").keys(), ["o2"], "the policy is the group's");
}

#[test]
fn what_one_broker_popped_can_be_acked_at_the_other_one() {
    let (a, b) = two();
    let q = unique("ack");
    a.push_n(&q, "p", "m", 10);
    let half = a.pop(&q, "consumerGroup=g&subscriptionMode=all&batch=5");
    assert_eq!(half.keys().len(), 5);
    assert!(b.pop(&q, ALL).is_empty(), "leased");
    b.complete("g", &half);
    assert_eq!(a.pop(&q, ALL).keys(), ["m5", "m6", "m7", "m8", "m9"], "the rest, at the broker that had granted it");
}

#[test]
fn seeks_and_deletes_are_seen_at_the_other_broker() {
    let (a, b) = two();
    let q = unique("seek");
    a.push_n(&q, "p", "m", 3);
    assert_eq!(b.drain(&q, ALL, "g").len(), 3);
    assert!(b.pop(&q, ALL).is_empty());
    let path = format!("/api/v1/consumer-groups/g/queues/{q}");
    let answer = a.post(&format!("{path}/seek"), &json!({"timestamp": "2001-01-01T00:00:00Z"}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(b.drain(&q, ALL, "g").len(), 3, "after a seek");
    let (keys, _) =
        woken_by(&b, &q, || drop(a.post(&format!("{path}/seek"), &json!({"timestamp": "2001-01-01T00:00:00Z"}))));
    assert_eq!(keys.len(), 3, "a seek wakes");
    assert_eq!(a.send("DELETE", &path, None).status, 200);
    assert_eq!(b.drain(&q, ALL, "g").len(), 3, "a deleted group registers afresh");
    assert_eq!(a.send("DELETE", &format!("/api/v1/resources/queues/{q}"), None).status, 200);
    assert!(b.pop(&q, ALL).is_empty(), "a deleted queue has nothing");
    assert_eq!(b.push_keys(&q, "p", &["m0"])[0]["status"], "queued", "and remembers no key");
    assert_eq!(a.pop(&q, ALL).keys(), ["m0"]);
}

#[test]
fn options_are_seen_at_the_other_broker() {
    let (a, b) = two();
    let q = unique("options");
    a.configure(&q, json!({"dedupWindowSeconds": 0}));
    b.push_keys(&q, "p", &["m"]);
    b.push_keys(&q, "p", &["m"]);
    a.configure(&q, json!({"dedupWindowSeconds": 3600}));
    eventually("the window is on", || {
        let item = json!([{"queue": q, "partition": "p", "transactionId": "m", "payload": 1}]);
        (b.push(item)[0]["status"] == "duplicate").then_some(())
    });
}

#[test]
fn a_transaction_at_one_broker_is_seen_at_the_other_one() {
    let (a, b) = two();
    let (input, output) = (unique("in"), unique("out"));
    a.push_keys(&input, "p", &["m"]);
    assert!(b.pop(&output, ALL).is_empty());
    let held = a.pop(&input, ALL);
    let ack = held.messages[0].ack("completed");
    let push =
        json!({"type": "push", "items": [{"queue": output, "partition": "p", "payload": 1, "transactionId": "t"}]});
    let mut operation = ack.clone();
    operation["type"] = "ack".into();
    operation["consumerGroup"] = "g".into();
    let body = json!({"operations": [operation, push]});
    let answer = a.post("/api/v1/transaction", &body);
    assert_eq!(answer.json()["success"], true, "{}", answer.text());
    assert_eq!(b.pop(&output, ALL).keys(), ["t"]);
    assert!(b.pop(&input, ALL).is_empty(), "acked");
}

/// Each of the two, on and off, whatever the refresh interval is.
#[test]
fn a_switch_is_seen_at_the_other_broker_with_its_next_read_of_the_log() {
    let (a, b) = two_with(|setup| setup.env("QUEEN_CACHE_REFRESH_INTERVAL_MS", "600000"));
    let q = unique("switch");
    let pushed = || {
        let item = json!({"queue": q, "partition": "p", "transactionId": unique("m"), "payload": 1});
        b.post("/api/v1/push", &json!({ "items": [item] })).json()[0]["status"].clone()
    };
    let popped = || {
        a.push_keys(&q, "p", &[&unique("m")]);
        !b.pop(&q, &format!("{ALL}&autoAck=true")).is_empty()
    };
    let switch = |route, on| assert_eq!(a.post(route, &json!({ "enabled": on })).status, 200);
    let (push, pop) = ("/api/v1/system/maintenance", "/api/v1/system/maintenance/pop");
    for _ in 0..2 {
        switch(pop, true);
        eventually("the other broker pauses pops", || (!popped()).then_some(()));
        switch(pop, false);
        eventually("the other broker resumes", || popped().then_some(()));
        switch(push, true);
        eventually("the other broker spools", || (pushed() == "buffered").then_some(()));
        switch(push, false);
        eventually("the other broker stores", || (pushed() == "queued").then_some(()));
    }
}
