//! Invariants 1 to 6: ordering and storage.

use crate::harness::{Setup, at_once, encode, rules, shared_postgres, unique};
use serde_json::{Value, json};

rules! {
    fn i01_offsets_have_no_gap_and_follow_commit_order(b) {
        const PRODUCERS: usize = 6;
        const ROUNDS: usize = 15;
        const PER_BODY: usize = 4;
        let q = unique("i01");
        let pushed = at_once(PRODUCERS, |p| {
            let mut offsets = Vec::new();
            for round in 0..ROUNDS {
                let item = |i| json!({"queue": q, "partition": "one", "payload": [p, round * PER_BODY + i]});
                let verdicts = b.push((0..PER_BODY).map(item).collect());
                offsets.extend(verdicts.iter().map(|v| v["offset"].as_i64().expect("an offset")));
            }
            offsets
        });
        let got = b.drain(&q, "batch=37", "");
        let total = PRODUCERS * ROUNDS * PER_BODY;
        assert_eq!(got.iter().map(|m| m.offset).collect::<Vec<_>>(), (0..total as i64).collect::<Vec<_>>());
        assert!(got.is_sorted_by_key(|m| m.created_at.clone()), "createdAt decreases");
        // Commit order: what one producer saw answered first comes first, at the offset it was told.
        for (p, offsets) in pushed.iter().enumerate() {
            assert!(offsets.is_sorted(), "producer {p}: {offsets:?}");
            for (n, offset) in offsets.iter().enumerate() {
                assert_eq!(got[*offset as usize].data.get(), format!("[{p},{n}]"));
            }
        }
    }

    fn i02_items_of_one_body_are_adjacent_and_in_body_order(b) {
        let q = unique("i02");
        at_once(4, |p| {
            for round in 0..10 {
                let item = |i: usize| json!({"queue": q, "partition": format!("p{}", i % 2), "payload": [p, round, i]});
                let verdicts = b.push((0..10).map(item).collect());
                for lane in 0..2 {
                    let of_lane = verdicts.iter().skip(lane).step_by(2);
                    let offsets: Vec<i64> = of_lane.map(|v| v["offset"].as_i64().expect("an offset")).collect();
                    let first = offsets[0];
                    assert_eq!(offsets, (first..first + 5).collect::<Vec<_>>());
                }
            }
        });
        // And so they are delivered: a body's five of a partition, one after another.
        let got = b.drain(&q, "batch=100", "");
        for lane in 0..2 {
            let got: Vec<_> = got.iter().filter(|m| m.partition == format!("p{lane}")).collect();
            assert_eq!(got.len(), 4 * 10 * 5);
            for body in got.chunks(5) {
                let of: Vec<Vec<usize>> = body.iter().map(|m| serde_json::from_str(m.data.get()).expect("numbers")).collect();
                let want: Vec<Vec<usize>> = (0..5).map(|i| vec![of[0][0], of[0][1], lane + 2 * i]).collect();
                assert_eq!(of, want);
            }
        }
    }

    fn i03_push_and_pop_report_the_same_offset_and_id(b) {
        let q = unique("i03");
        let mut told = Vec::new();
        for n in 0..5 {
            told.extend(b.push(json!([{"queue": q, "payload": n}, {"queue": q, "payload": n}])));
        }
        let got = b.drain(&q, "batch=3", "");
        assert_eq!(got.len(), told.len());
        for (message, verdict) in got.iter().zip(&told) {
            assert_eq!(verdict["offset"], message.offset);
            assert_eq!(verdict["message_id"], message.id.as_str());
            assert_eq!(verdict["transaction_id"], message.transaction_id.as_str());
        }
    }

    fn i04_payloads_come_back_byte_equal(b) {
        let q = unique("i04");
        let long = format!("\"{}\"", "snow \u{2744} and \\u2744 ".repeat(120_000));
        let payloads = [
            "null", "{}", "[]", "\"\"", "0", "false", "true", "-0", "1.0", "1e400", "-1E+2", "0.10",
            "9007199254740991", "9007199254740992", "9007199254740993", "123456789012345678901234567890",
            r#"{"b":1,"a":2,"a":3}"#, r#"{ "spaced" : [ 1 ,2,	3 ] }"#, r#""\u0041\u00e9\/\"\\\b\f\n\r\t""#,
            r#""\ud83d\ude00 and 😀""#, r#""\u0000""#, r#""half \ud800 pair""#, r#"{"payload":{"items":[{"payload":1}]}}"#,
            r#"{"":{"":[[[[{}]]]]}}"#, r#"{"data":null,"queue":"x","transactionId":"y"}"#, &long,
        ];
        let items: Vec<String> = payloads.iter().map(|p| format!(r#"{{"queue":"{q}","payload":{p}}}"#)).collect();
        let verdicts = b.push_raw(format!(r#"{{"items":[{}]}}"#, items.join(",")).as_bytes());
        assert!(verdicts.iter().all(|v| v["status"] == "queued"), "{verdicts:?}");
        let got = b.drain(&q, "batch=10", "");
        assert_eq!(got.len(), payloads.len());
        for (message, payload) in got.iter().zip(payloads) {
            assert!(message.data.get() == payload, "{:.80} came back as {:.80}", payload, message.data.get());
        }
    }

    fn i06_a_400_wrote_nothing_at_all(b) {
        let good = unique("i06");
        let bad_items = [
            r#"{"queue":"x"}"#,
            r#"{"payload":1}"#,
            r#"{"queue":"x","data":1}"#,
            r#"{"queue":7,"payload":1}"#,
            r#"{"queue":"x","partition":7,"payload":1}"#,
            r#"{"queue":"x","transactionId":7,"payload":1}"#,
            r#"{"queue":"x\u0001","payload":1}"#,
            r#"{"queue":"x","partition":"a\u0000b","payload":1}"#,
            r#"{"queue":"x","transactionId":"a\nb","payload":1}"#,
            r#"7"#,
            r#"{"queue":"x","payload":1,}"#,
            r#"{"queue":"x","payload":01}"#,
        ];
        for bad in bad_items {
            let body = format!(r#"{{"items":[{{"queue":"{good}","payload":1}},{bad}]}}"#);
            let answer = b.send("POST", "/api/v1/push", Some(body.as_bytes()));
            assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
            answer.error();
        }
        let cut = format!(r#"{{"items":[{{"queue":"{good}","payload":1}}]"#);
        assert_eq!(b.send("POST", "/api/v1/push", Some(cut.as_bytes())).status, 400);
        assert_eq!(b.get(&format!("/api/v1/resources/queues/{}", encode(&good))).status, 404);
        assert!(b.pop(&good, "").is_empty());
    }
}

#[test]
fn i05_what_was_queued_is_deliverable_at_once_and_survives_kill_9() {
    let b = Setup::on(shared_postgres(), &shared_postgres().create_database()).start();
    let q = unique("i05");
    let mut ids: Vec<Value> = Vec::new();
    for round in 0..20 {
        let item = |p| json!({"queue": q, "partition": format!("p{p}"), "payload": round});
        ids.extend(b.push((0..5).map(item).collect()).into_iter().map(|v| v["message_id"].clone()));
    }
    let first = b.pop(&q, "consumerGroup=g&subscriptionMode=all&batch=3");
    assert_eq!(first.messages.len(), 3, "the next pop sees what was answered `queued`");
    b.restart();
    let got = b.drain(&q, "batch=100&partitions=10", "");
    let mut got: Vec<String> = got.into_iter().map(|m| m.id).collect();
    let mut want: Vec<String> = ids.iter().map(|id| id.as_str().expect("an id").to_owned()).collect();
    got.sort();
    want.sort();
    assert_eq!(got, want);
    // The lease of before the kill still holds: it is a row, not a memory.
    let rest = b.drain(&q, "consumerGroup=g&subscriptionMode=all&batch=100", "g");
    assert!(rest.iter().all(|m| m.partition != first.partition), "a leased partition was handed out again");
    b.complete("g", &first);
}
