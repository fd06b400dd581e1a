//! The pop routes beyond the invariants: shapes, statuses, discovery, long poll, window, minPopWaitTime. Data plane 4.

use crate::harness::{Setup, at_once, encode, eventually, two_shards, unique};
use crate::push::is_v7;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn an_answer_has_exactly_the_keys_of_the_contract_in_order() {
    let b = two_shards();
    let q = unique("pop");
    b.push(json!([{"queue": q, "partition": "acct-7", "transactionId": "k", "payload": {"cents": 1250}}]));
    let answer = b.get(&format!("/api/v1/pop/queue/{q}?consumerGroup=ledger&subscriptionMode=all"));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let pop = answer.json();
    let m = &pop["messages"][0];
    let text = |v: &Value| v.as_str().expect("a text").to_owned();
    let (lease, part) = (text(&pop["leaseId"]), text(&pop["partitionId"]));
    let want = format!(
        r#"{{"success":true,"queue":"{q}","partition":"acct-7","partitionId":"{part}","leaseId":"{lease}","consumerGroup":"ledger","messages":[{{"id":"{}","transactionId":"k","traceId":null,"data":{{"cents":1250}},"producerSub":null,"createdAt":"{}","partitionId":"{part}","partition":"acct-7","leaseId":"{lease}","consumerGroup":"ledger","deliveryAttempt":1,"offset":0}}],"partitionsClaimed":1}}"#,
        text(&m["id"]),
        text(&m["createdAt"])
    );
    assert_eq!(answer.text(), want);
    assert!(is_v7(&m["id"]) && is_v7(&pop["leaseId"]));
    assert!(part.parse::<i64>().is_ok_and(|n| n > 0 && n.to_string() == part), "decimal text: {part}");
    let stamp = text(&m["createdAt"]);
    assert!(stamp.len() == 27 && stamp.ends_with('Z') && &stamp[10..11] == "T" && &stamp[19..20] == ".", "{stamp}");
}

#[test]
fn nothing_is_204_without_body_or_type() {
    let b = two_shards();
    for path in [
        format!("/api/v1/pop/queue/{}", unique("none")),
        format!("/api/v1/pop/queue/{}/partition/p", unique("none")),
        format!("/api/v1/pop?namespace={}", unique("none")),
        format!("/api/v1/pop/queue/{}?wait=true&timeout=0", unique("none")),
    ] {
        let answer = b.get(&path);
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}");
        assert_eq!((answer.header("content-length"), answer.header("content-type")), (None, None), "{path}");
    }
}

#[test]
fn a_wildcard_pop_creates_its_queue_and_the_others_do_not() {
    let b = two_shards();
    let (wild, pinned) = (unique("made.by.pop"), unique("pop"));
    b.pop(&wild, "");
    b.pop_pinned(&pinned, "p", "");
    let made = b.queue_detail(&wild);
    assert_eq!((&made["namespace"], &made["task"]), (&json!("made"), &json!("by")));
    assert_eq!(made["options"]["leaseTime"], 60, "the lease of an implicit create");
    assert_eq!(b.get(&format!("/api/v1/resources/queues/{pinned}")).status, 404);
}

#[test]
fn bad_parameters_are_refused_in_plain_text_before_any_work() {
    let b = two_shards();
    let q = unique("pop");
    for query in [
        "batch=abc",
        "batch=",
        "batch=1.5",
        "partitions=x",
        "wait=yes",
        "wait=1",
        "wait=True",
        "timeout=-1",
        "timeout=soon",
        "autoAck=on",
        "leaseSeconds=x",
        "autopilot=2",
        "frames=maybe",
        "conflation=no",
    ] {
        for path in
            [format!("/api/v1/pop/queue/{q}"), format!("/api/v1/pop/queue/{q}/partition/p"), "/api/v1/pop".to_owned()]
        {
            let answer = b.get(&format!("{path}?namespace=n&{query}"));
            assert_eq!(answer.status, 400, "{path} {query}");
            assert!(!answer.header("content-type").is_some_and(|t| t.contains("json")), "{path} {query}: {answer:?}");
        }
    }
    assert_eq!(b.get(&format!("/api/v1/resources/queues/{q}")).status, 404, "a refused pop creates nothing");
    assert_eq!(
        b.get(&format!("/api/v1/pop/queue/{q}?batch=-3&partitions=-1&leaseSeconds=-9&unknown=%20x&timeout=5")).status,
        204
    );
}

#[test]
fn discovery_needs_a_filter_and_honours_both() {
    let b = two_shards();
    let want = r#"{"success":false,"error":"namespace or task is required","messages":[]}"#;
    for path in ["/api/v1/pop", "/api/v1/pop?namespace=&task=", "/api/v1/pop?batch=3"] {
        let answer = b.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (400, want), "{path}");
    }
    let (ns, other) = (unique("ns"), unique("ns"));
    b.push_keys(&format!("{ns}.refund.eu"), "p", &["refund"]);
    b.push_keys(&format!("{ns}.payout"), "p", &["payout"]);
    b.push_keys(&format!("{other}.refund"), "p", &["other"]);
    let both = b.pop_path(&format!("/api/v1/pop?namespace={ns}&task=refund&autoAck=true&batch=10&partitions=10"));
    assert_eq!((both.keys(), both.queue.as_str()), (vec!["refund"], ""));
    assert_eq!(
        b.pop_path(&format!("/api/v1/pop?namespace={ns}&autoAck=true&batch=10&partitions=10")).keys(),
        ["payout"]
    );
    assert!(b.pop_path(&format!("/api/v1/pop?namespace={ns}&autoAck=true")).is_empty());
    assert_eq!(b.pop_path(&format!("/api/v1/pop?namespace={other}")).keys(), ["other"]);
}

/// Parked ones that are woken by the deletion, and one that comes at once behind it, when names that are a moment old still
/// list the queue. Source: data plane 4.3.
#[test]
fn discovery_pops_make_no_deleted_queue_again() {
    let b = Setup::clean().env("QUEEN_SHARDS", "2").start();
    let ns = unique("ns");
    let q = format!("{ns}.gone");
    for group in ["", "&consumerGroup=g", "&consumerGroup=c&conflation=true"] {
        b.push_keys(&q, "p", &["k"]);
        let ask = format!("/api/v1/pop?namespace={ns}{group}");
        b.pop_path(&format!("{ask}&subscriptionMode=all"));
        let polls = at_once(3, |i| {
            if i < 2 {
                return b.get(&format!("{ask}&wait=true&timeout=4000")).status;
            }
            eventually("two parked polls", || (b.parked("") == 2).then_some(()));
            let deleted = b.send("DELETE", &format!("/api/v1/resources/queues/{q}"), None);
            assert_eq!(deleted.json()["deleted"], true, "{}", deleted.text());
            b.get(&ask).status
        });
        assert!(polls.iter().all(|status| [200, 204].contains(status)), "{polls:?}");
        assert_eq!(b.get(&ask).status, if group.contains("conflation") { 200 } else { 204 });
        let listed = b.get("/api/v1/resources/queues").text();
        assert!(!listed.contains(&q), "{group}: {listed}");
    }
}

/// The first pop of a group that finds the queue by its namespace registers it, in all partitions that there are. Source: data
/// plane 4.4.
#[test]
fn a_discovery_pop_registers_its_group() {
    let b = two_shards();
    let ns = unique("ns");
    let q = format!("{ns}.there");
    for partition in ["a", "b", "c", "d"] {
        b.push_keys(&q, partition, &["old"]);
    }
    let ask = format!("/api/v1/pop?namespace={ns}&consumerGroup=g&subscriptionMode=new&batch=10&partitions=10");
    assert_eq!(b.pop_path(&ask).keys(), [""; 0]);
    b.push_keys(&q, "a", &["new"]);
    // The record says where it begins, whatever a later pop says.
    assert_eq!(b.pop(&q, "consumerGroup=g&subscriptionMode=all&batch=10&partitions=10").keys(), ["new"]);
}

/// Names that other pops have read a moment ago are not the last word. Source: data plane 3.4.5.
#[test]
fn a_discovery_pop_after_the_answer_sees_a_queue_that_is_new() {
    let b = two_shards();
    let ns = unique("new");
    let pop = format!("/api/v1/pop?namespace={ns}&autoAck=true");
    for n in 0..4 {
        assert_eq!(b.get(&pop).status, 204, "queue {n} is not there yet");
        b.push_keys(&format!("{ns}.q{n}"), "p", &["k"]);
        assert_eq!(b.pop_path(&pop).keys(), ["k"], "queue {n}");
    }
}

/// Polls that are parked hold nothing: who asks beside them gets its full batch.
#[test]
fn parked_polls_shrink_nobodys_answer() {
    const POLLS: usize = 300;
    let b = Setup::clean().env("QUEEN_SHARDS", "1").start();
    let (idle, q) = (unique("idle"), unique("full"));
    let park = format!("GET /api/v1/pop/queue/{idle}?wait=true&timeout=120000 HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut polls: Vec<_> = (0..POLLS).map(|_| b.client()).collect();
    polls.iter_mut().for_each(|poll| poll.write(park.as_bytes()).expect("written"));
    eventually("all are parked", || (b.parked(&idle) == POLLS as u64).then_some(()));
    let payload = "x".repeat(1 << 20);
    for n in 0..12 {
        b.push(json!([{"queue": q, "partition": "p", "transactionId": n.to_string(), "payload": payload}]));
    }
    assert_eq!(b.pop(&q, "batch=10000&autoAck=true").messages.len(), 12, "12 of 16 MiB");
    polls.iter_mut().for_each(|poll| poll.hang_up());
}

/// One pop of very many tiny messages is an answer of bounded size, and the rest comes with the next ones: from the store,
/// where one large record is too much for the memory of a partition, and from that memory, where there are many small ones.
#[test]
fn an_answer_counts_what_it_says_of_each_message() {
    const PUSHED: usize = 60_000;
    let b = two_shards();
    for pushes in [1, 30] {
        let (q, partition) = (unique("tiny"), "p".repeat(1000));
        let item = json!({"queue": q, "partition": partition, "payload": 1}).to_string();
        let body = format!(r#"{{"items":[{}]}}"#, vec![item; PUSHED / pushes].join(","));
        for _ in 0..pushes {
            assert_eq!(b.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        }
        let mut got = 0;
        while got < PUSHED {
            let answer = b.get(&format!("/api/v1/pop/queue/{q}?batch=1000000&autoAck=true"));
            assert_eq!(answer.status, 200);
            // 16 MiB, and what the answer says once.
            assert!(answer.body.len() < 17 << 20, "{pushes} pushes: {} bytes", answer.body.len());
            let messages = answer.json()["messages"].as_array().expect("messages").len();
            assert!((1..PUSHED).contains(&messages), "{pushes} pushes: {messages}");
            got += messages;
        }
        assert_eq!(got, PUSHED);
    }
}

#[test]
fn a_parked_poll_is_woken_by_a_push_a_nack_and_a_release_on_all_routes() {
    let b = two_shards();
    let ns = unique("wake");
    let q = format!("{ns}.t");
    b.pop(&q, "consumerGroup=g&subscriptionMode=all");
    let wait = "consumerGroup=g&subscriptionMode=all&wait=true&timeout=20000&leaseSeconds=60";
    let paths = [
        format!("/api/v1/pop/queue/{q}?{wait}"),
        format!("/api/v1/pop/queue/{q}/partition/p?{wait}"),
        format!("/api/v1/pop?namespace={ns}&{wait}"),
    ];
    for (round, path) in paths.iter().enumerate() {
        let woken = |what: &str, wake: &dyn Fn()| {
            let start = Instant::now();
            let pop = std::thread::scope(|scope| {
                let poll = scope.spawn(|| b.pop_path(path));
                std::thread::sleep(Duration::from_millis(150));
                wake();
                poll.join().expect("an answer")
            });
            assert!(start.elapsed() < Duration::from_secs(5), "{path}: {what} woke it after {:?}", start.elapsed());
            pop
        };
        let first = woken("a push", &|| drop(b.push_n(&q, "p", &format!("{round}-"), 2)));
        assert_eq!(first.messages.len(), 2, "{path}");
        let again = woken("a nack", &|| drop(b.ack_ok("g", &[first.messages[0].ack("failed")])));
        assert_eq!(again.messages[0].delivery_attempt, 2, "{path}");
        let third = woken("a retry", &|| drop(b.ack_ok("g", &[again.messages[0].ack("retry")])));
        b.complete("g", &third);
    }
}

#[test]
fn a_pinned_poll_parks_until_its_partition_appears() {
    let b = two_shards();
    let q = unique("pop");
    let pop = std::thread::scope(|scope| {
        let poll = scope.spawn(|| b.pop_pinned(&q, "late", "wait=true&timeout=20000"));
        crate::harness::eventually("the poll parks", || (b.parked(&q) > 0).then_some(()));
        b.push_keys(&q, "early", &["no"]);
        assert_eq!(b.parked(&q), 1, "another partition is no answer");
        b.push_keys(&q, "late", &["yes"]);
        poll.join().expect("an answer")
    });
    assert_eq!(pop.keys(), ["yes"]);
}

#[test]
fn lease_length_comes_from_the_pop_else_the_queue() {
    let b = two_shards();
    let q = unique("pop");
    b.configure(&q, json!({"leaseTime": 1}));
    b.push_n(&q, "p", "m", 1);
    let start = Instant::now();
    assert_eq!(b.pop(&q, "").messages.len(), 1);
    assert_eq!(b.pop(&q, "leaseSeconds=3&wait=true&timeout=9000").messages.len(), 1);
    assert!(start.elapsed() < Duration::from_millis(2900), "the queue's lease: {:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(b.pop(&q, "wait=true&timeout=9000").messages.len(), 1);
    assert!(start.elapsed() > Duration::from_millis(2500), "the pop's lease: {:?}", start.elapsed());
}

#[test]
fn min_pop_wait_time_fills_a_batch_and_never_delays_a_full_or_empty_one() {
    let b = two_shards();
    let q = unique("pop");
    b.configure(&q, json!({"minPopWaitTime": 600}));
    b.push_n(&q, "p", "a", 1);
    let start = Instant::now();
    let pop = std::thread::scope(|scope| {
        let poll = scope.spawn(|| b.pop(&q, "wait=true&timeout=20000&batch=5&autoAck=true"));
        std::thread::sleep(Duration::from_millis(150));
        b.push_n(&q, "p", "b", 2);
        poll.join().expect("an answer")
    });
    assert!(start.elapsed() >= Duration::from_millis(590), "held {:?}", start.elapsed());
    assert_eq!(pop.keys(), ["a0", "b0", "b1"], "the batch filled meanwhile");
    b.push_n(&q, "p", "c", 5);
    let start = Instant::now();
    assert_eq!(b.pop(&q, "wait=true&timeout=20000&batch=5&autoAck=true").messages.len(), 5);
    assert!(start.elapsed() < Duration::from_millis(550), "a full answer was held {:?}", start.elapsed());
    b.push_n(&q, "p", "d", 1);
    let start = Instant::now();
    assert_eq!(b.pop(&q, "batch=5&autoAck=true").messages.len(), 1);
    assert!(start.elapsed() < Duration::from_millis(550), "without wait nothing is held: {:?}", start.elapsed());
}

#[test]
fn a_window_holds_from_the_first_waiting_message_or_until_a_hundred_wait() {
    let b = two_shards();
    let q = unique("pop");
    b.configure(&q, json!({"windowBuffer": 2}));
    let start = Instant::now();
    b.push_n(&q, "p", "m", 1);
    // Steady traffic does not postpone it.
    let first = eventually("the window ends", || {
        b.push(json!([{"queue": q, "partition": "p", "payload": 0}]));
        std::thread::sleep(Duration::from_millis(100));
        let pop = b.pop(&q, "autoAck=true&batch=1000");
        (!pop.is_empty()).then_some(pop)
    });
    assert!(
        start.elapsed() >= Duration::from_secs(2) && start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    assert!(first.messages.len() > 5, "everything visible comes: {}", first.messages.len());
    b.configure(&q, json!({"windowBuffer": 3600}));
    b.push_n(&q, "full", "m", 99);
    assert!(b.pop_pinned(&q, "full", "").is_empty());
    b.push_n(&q, "full", "n", 1);
    assert_eq!(b.pop_pinned(&q, "full", "batch=1000&wait=true&timeout=5000").messages.len(), 100);
}

#[test]
fn a_client_that_hangs_up_while_parked_takes_no_lease() {
    let b = two_shards();
    let q = unique("pop");
    let path = format!("/api/v1/pop/queue/{}?wait=true&timeout=30000", encode(&q));
    let mut gone = b.client();
    gone.write(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
    eventually("it parks", || (b.parked(&q) == 1).then_some(()));
    gone.hang_up();
    eventually("it is forgotten", || (b.parked(&q) == 0).then_some(()));
    b.push_n(&q, "p", "m", 1);
    assert_eq!(b.pop(&q, "").messages[0].delivery_attempt, 1);
}
