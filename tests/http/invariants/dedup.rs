//! Invariants 7 to 11: deduplication.

use crate::harness::{at_once, eventually, rules, unique};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn push_key(b: &crate::harness::Broker, queue: &str, partition: &str, key: &str) -> Value {
    b.push(json!([{"queue": queue, "partition": partition, "transactionId": key, "payload": key}])).remove(0)
}

rules! {
    fn i07_concurrent_pushes_of_one_key_store_one(b) {
        let q = unique("i07");
        for round in 0..5 {
            let key = format!("key{round}");
            let verdicts = at_once(12, |_| push_key(b, &q, "p", &key));
            let queued = verdicts.iter().filter(|v| v["status"] == "queued").count();
            let duplicate = verdicts.iter().filter(|v| v["status"] == "duplicate").count();
            assert_eq!((queued, duplicate), (1, 11), "{verdicts:?}");
            for verdict in &verdicts {
                assert_eq!(verdict["message_id"], verdicts[0]["message_id"]);
                assert_eq!(verdict["offset"], round, "{verdict}");
            }
        }
        assert_eq!(b.drain(&q, "batch=100", "").len(), 5);
    }

    fn i08_one_key_in_two_partitions_is_two_messages(b) {
        let q = unique("i08");
        let (a, z) = (push_key(b, &q, "a", "k"), push_key(b, &q, "z", "k"));
        assert_eq!((&a["status"], &z["status"]), (&json!("queued"), &json!("queued")));
        assert_ne!(a["message_id"], z["message_id"]);
        assert_eq!(b.drain(&q, "batch=10&partitions=2", "").len(), 2);
    }

    fn i09_a_key_repeated_in_one_body_stores_one(b) {
        for window in [3600, 0] {
            let q = unique("i09");
            b.configure(&q, json!({"dedupWindowSeconds": window}));
            let item = |key| json!({"queue": q, "partition": "p", "transactionId": key, "payload": key});
            let verdicts = b.push(json!([item("k"), item("other"), item("k"), item("k")]));
            let statuses: Vec<_> = verdicts.iter().map(|v| v["status"].as_str().expect("a word")).collect();
            assert_eq!(statuses, ["queued", "queued", "duplicate", "duplicate"], "window {window}");
            for follower in [2, 3] {
                assert_eq!(verdicts[follower]["message_id"], verdicts[0]["message_id"]);
                assert_eq!(verdicts[follower]["offset"], verdicts[0]["offset"]);
            }
            assert_eq!(b.drain(&q, "batch=10", "").len(), 2);
        }
    }

    fn i09_followers_of_a_stored_duplicate_report_the_stored_message(b) {
        let q = unique("i09s");
        let stored = push_key(b, &q, "p", "k");
        let item = json!({"queue": q, "partition": "p", "transactionId": "k", "payload": 2});
        for verdict in b.push(json!([item, item])) {
            assert_eq!(verdict["status"], "duplicate");
            assert_eq!(verdict["message_id"], stored["message_id"]);
            assert_eq!(verdict["offset"], stored["offset"]);
        }
    }

    fn i10_window_zero_deduplicates_no_second_request(b) {
        let q = unique("i10z");
        b.configure(&q, json!({"dedupWindowSeconds": 0}));
        for offset in 0..3 {
            let verdict = push_key(b, &q, "p", "k");
            assert_eq!((&verdict["status"], &verdict["offset"]), (&json!("queued"), &json!(offset)));
        }
    }

    fn i10_a_short_window_frees_the_key_after_it_and_not_before(b) {
        let q = unique("i10s");
        b.configure(&q, json!({"dedupWindowSeconds": 2}));
        let start = Instant::now();
        let first = push_key(b, &q, "p", "k");
        let second = eventually("the window passes", || {
            let verdict = push_key(b, &q, "p", "k");
            if verdict["status"] == "duplicate" {
                assert_eq!(verdict["message_id"], first["message_id"]);
                std::thread::sleep(Duration::from_millis(40));
                return None;
            }
            assert_eq!(verdict["status"], "queued");
            Some(verdict)
        });
        assert!(start.elapsed() >= Duration::from_secs(2), "free after {:?}", start.elapsed());
        assert_ne!(second["message_id"], first["message_id"]);
        assert_eq!(second["offset"], 1);
    }

    fn i11_a_consumed_key_is_still_a_duplicate(b) {
        let q = unique("i11");
        let first = push_key(b, &q, "p", "k");
        assert_eq!(b.drain(&q, "", "").len(), 1);
        let again = push_key(b, &q, "p", "k");
        assert_eq!(again["status"], "duplicate");
        assert_eq!(again["message_id"], first["message_id"]);
        assert_eq!(again["offset"], first["offset"]);
        assert!(b.pop(&q, "").is_empty());
    }
}
