//! Faults that users of brokers like this one met in the field, each as a small reproduction with the right result.

use crate::harness::{at_once, eventually, rules, two_shards, unique};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

rules! {
    /// A group with auto-ack stood still, then received the same first batch again and again.
    fn r01_auto_ack_in_a_group_neither_stalls_nor_repeats(b) {
        for (group, wait) in [("consumerGroup=g&subscriptionMode=all", ""), ("", ""), ("consumerGroup=h&subscriptionMode=all", "&wait=true&timeout=2000")] {
            let q = unique("r01");
            b.configure(&q, json!({"leaseTime": 30}));
            b.push_n(&q, "p0", "t", 20);
            let keys = |from: usize| (from..from + 10).map(|i| format!("t{i}")).collect::<Vec<_>>();
            let query = format!("{group}&batch=10&autoAck=true{wait}");
            let start = Instant::now();
            for from in [0, 10] {
                let pop = b.pop(&q, &query);
                assert_eq!((pop.keys(), pop.lease_id.as_str()), (keys(from).iter().map(String::as_str).collect(), ""));
            }
            assert!(b.pop(&q, &query).is_empty());
            let limit = if wait.is_empty() { 1500 } else { 3500 };
            assert!(start.elapsed() < Duration::from_millis(limit), "{:?}", start.elapsed());
            let second = b.drain(&q, "consumerGroup=second&subscriptionMode=all&batch=10&autoAck=true", "second");
            assert_eq!(second.len(), 20, "a parallel group gets its own full copy");
        }
    }

    /// Encoders that escape `&`, `/`, quotes or non-ASCII made every item of the request fail.
    fn r03_an_escape_in_a_name_or_key_is_just_a_spelling(b) {
        let q = unique("r03-x");
        let escaped = q.replace('-', "\\u002d");
        let first = b.push_raw(
            format!(
                r#"{{"items":[{{"queue":"{escaped}","partition":"R\u0026D \"north\" \\ 1","transactionId":"caf\u00e9\u002fA","payload":1}},
                    {{"queue":"{q}","partition":"plain","transactionId":"k2","payload":2}}]}}"#
            )
            .as_bytes(),
        );
        assert!(first.iter().all(|v| v["status"] == "queued" && v["queueName"] == q.as_str()), "{first:?}");
        let name = "R&D \"north\" \\ 1";
        let again = b.push(json!([{"queue": q, "partition": name, "transactionId": "café/A", "payload": 1}]));
        assert_eq!((&again[0]["status"], &again[0]["message_id"]), (&json!("duplicate"), &first[0]["message_id"]));
        let pop = b.pop_pinned(&q, name, "");
        assert_eq!((pop.partition.as_str(), pop.keys()), (name, vec!["café/A"]));
        let bad = b.send("POST", "/api/v1/push", Some(br#"{"items":[{"queue":"a\"b\\c","payload":"#));
        assert_eq!(bad.status, 400);
        bad.error();
    }

    /// A saturated key at the head hid all other keys; parallel readers got nothing.
    fn r04_a_busy_key_does_not_starve_the_others(b) {
        let q = unique("r04");
        for p in 0..30 {
            b.push_n(&q, &format!("p{p}"), "m", 200);
        }
        let query = "consumerGroup=g&subscriptionMode=all&batch=1&partitions=1";
        let got = at_once(8, |_| b.pop(&q, query).partition);
        assert!(got.iter().all(|p| !p.is_empty()), "an empty answer beside a backlog: {got:?}");
        assert_eq!(got.iter().collect::<HashSet<_>>().len(), 8, "all in different partitions: {got:?}");
        let q = unique("r04");
        for _ in 0..5 {
            b.push((0..1000).map(|i| json!({"queue": q, "partition": "hot", "payload": i})).collect());
        }
        assert_eq!(b.pop(&q, &format!("{query}&leaseSeconds=60")).partition, "hot");
        for p in 0..50 {
            b.push_keys(&q, &format!("p{p}"), &["m"]);
        }
        let got: HashSet<String> = (0..50).map(|_| b.pop(&q, query).partition).collect();
        assert_eq!(got.len(), 50, "the leased partition is skipped, not waited for: {got:?}");
        assert!(!got.contains("hot") && !got.contains(""));
    }

    /// Values joined into one string, or a key matched by suffix, made distinct messages "duplicates".
    fn r05_different_keys_are_never_taken_for_one(b) {
        let q = unique("r05");
        let pairs = [("a", "b:c"), ("a:b", "c"), ("ab", "c"), ("a", "bc"), ("a", "\u{e9}"), ("a", "e\u{301}")];
        let item = |(p, k): &(&str, &str)| json!({"queue": q, "partition": p, "transactionId": k, "payload": 1});
        let mut items: Vec<Value> = pairs.iter().map(item).collect();
        items.push(json!({"queue": q, "partition": "a", "xtransactionId": "bc", "payload": 1}));
        let first = b.push(items.clone().into());
        assert!(first.iter().all(|v| v["status"] == "queued"), "{first:?}");
        assert_eq!(first[6]["transaction_id"], first[6]["message_id"], "a minted key");
        let controls = json!({"items": [item(&("a\u{1f}b", "c")), item(&("a", "b\u{1f}c"))]});
        let answer = b.post("/api/v1/push", &controls);
        assert_eq!(answer.status, 400);
        assert_eq!(answer.error(), "control characters are not allowed in queue, partition or transactionId");
        for (verdict, original) in b.push(items[..6].into()).iter().zip(&first) {
            assert_eq!((&verdict["status"], &verdict["message_id"]), (&json!("duplicate"), &original["message_id"]));
        }
    }

    /// Messages were handed to connections nobody reads and came back only after the full lease.
    fn r07_a_parked_poll_whose_client_left_takes_nothing(b) {
        let q = unique("r07");
        let path = format!("/api/v1/pop/queue/{q}?consumerGroup=g&subscriptionMode=all&wait=true&timeout=30000");
        let mut clients: Vec<_> = (0..10).map(|_| b.client()).collect();
        for client in &mut clients {
            client.write(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
        }
        eventually("all are parked", || (b.parked(&q) == 10).then_some(()));
        clients.iter_mut().for_each(|c| c.hang_up());
        // Straight away: some of the ten may not have been noticed yet.
        b.push_n(&q, "p", "m", 1);
        let start = Instant::now();
        let pop = b.pop(&q, "consumerGroup=g&subscriptionMode=all&wait=true&timeout=5000");
        assert_eq!(pop.messages.len(), 1, "lost to a dead connection");
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        eventually("no parked entry is left", || (b.parked(&q) == 0).then_some(()));
    }

    /// The work took longer than the lease; the first worker's finish arrived after the second had the batch.
    fn r09_a_late_ack_of_the_first_worker_moves_nothing(b) {
        let q = unique("r09");
        b.configure(&q, json!({"leaseTime": 1}));
        b.push_n(&q, "p", "m", 5);
        let one = b.pop(&q, "batch=5");
        let two = b.pop(&q, "batch=5&wait=true&timeout=9000&leaseSeconds=60");
        assert_eq!(two.keys(), one.keys());
        assert!(two.messages.iter().all(|m| m.delivery_attempt == 2));
        for status in ["completed", "failed"] {
            let result = b.ack("", &[one.messages[4].ack(status)]).remove(0);
            assert_eq!((&result["success"], &result["error"]), (&json!(false), &json!("invalid or expired lease")));
        }
        let done = b.ack_ok("", &[two.messages[4].ack("completed")]).remove(0);
        assert_eq!(done["leaseReleased"], true);
        assert!(b.pop(&q, "").is_empty());
        let extend = b.post(&format!("/api/v1/lease/{}/extend", one.lease_id), &json!({})).json();
        assert_eq!(extend["renewed"], 0);
        assert!(b.dead_letters(&q).is_empty());
    }

    /// Values with many digits were rounded on the way through the queue. (Push and pop; the other ways come with theirs.)
    fn r10_numbers_come_back_as_they_were_written(b) {
        let q = unique("r10");
        let payload = r#"{"a":9007199254740993,"b":123456789012345678901234567890,"c":1e400,"d":-0,"e":1.0,"f":0.1000000000000000055511151231257827,"g":1E+2}"#;
        b.push_raw(format!(r#"{{"items":[{{"queue":"{q}","payload":{payload}}}]}}"#).as_bytes());
        assert_eq!(b.pop(&q, "").messages[0].data.get(), payload);
    }
}

/// Many random keys in one partition: none is a false duplicate.
#[test]
fn r05_a_hundred_thousand_random_keys_give_no_duplicate() {
    let b = two_shards();
    let q = unique("r05");
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20 {
        let item = |_| json!({"queue": q, "partition": "p", "transactionId": format!("{:016x}{:016x}", random(), random()), "payload": 0});
        let verdicts = b.push((0..5000).map(item).collect());
        assert!(verdicts.iter().all(|v| v["status"] == "queued"));
    }
}

/// The race of R09: an ack at the very end of its lease against the next claim.
#[test]
fn r09_never_both_an_accepted_ack_and_a_redelivery() {
    let b = two_shards();
    let q = unique("r09");
    const LANES: usize = 24;
    const ROUNDS: usize = 6;
    let won = at_once(LANES, |lane| {
        let part = format!("p{lane}");
        let mut won = 0;
        for round in 0..ROUNDS {
            b.push_n(&q, &part, &format!("{round}-"), 1);
            let query = "batch=1&leaseSeconds=1";
            let first = b.pop_pinned(&q, &part, query);
            assert_eq!(first.messages.len(), 1);
            // From 20 ms before the lease's end to 20 ms after it.
            std::thread::sleep(Duration::from_millis(980 + ((lane * ROUNDS + round) * 40 / (LANES * ROUNDS)) as u64));
            let (acked, second) = std::thread::scope(|scope| {
                let claim = scope.spawn(|| b.pop_pinned(&q, &part, "batch=1&leaseSeconds=60"));
                (b.ack("", &[first.messages[0].ack("completed")])[0]["success"] == true, claim.join().expect("a pop"))
            });
            let again = if second.is_empty() {
                b.pop_pinned(&q, &part, "batch=1&wait=true&timeout=500&leaseSeconds=60")
            } else {
                second
            };
            assert!(acked == again.is_empty(), "ack {acked}, then {again:?}");
            won += acked as usize;
            b.complete("", &again);
        }
        won
    });
    println!("{} of {} acks came in time", won.iter().sum::<usize>(), LANES * ROUNDS);
}
