//! What is refused, with which status and text, and that a refusal wrote nothing. Data plane 1.3, 1.6, 3.1, 5.1.

use crate::harness::{Answer, Broker, encode, two_shards, unique};
use serde_json::{Value, json};

fn push_body(b: &Broker, body: impl AsRef<[u8]>) -> Answer {
    b.send("POST", "/api/v1/push", Some(body.as_ref()))
}

#[track_caller]
fn expect_400(answer: &Answer, part: &str) {
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    assert_eq!(body.as_object().map(|o| o.len()), Some(1), "the envelope is flat, without `code`: {body}");
    assert!(answer.error().contains(part), "{body} should contain {part:?}");
}

fn expect_no_queue(b: &Broker, queue: &str) {
    assert_eq!(b.get(&format!("/api/v1/resources/queues/{}", encode(queue))).status, 404);
    assert!(b.pop(queue, "").is_empty());
}

#[test]
fn bodies_that_are_no_push() {
    let b = two_shards();
    for body in [
        "",
        " ",
        "nonsense",
        "{",
        "[]",
        "null",
        "7",
        "{}",
        r#"{"items":null}"#,
        r#"{"items":{}}"#,
        r#"{"items":"x"}"#,
        r#"{"items":[1]}"#,
        r#"{"items":[null]}"#,
        r#"{"items":[]} x"#,
    ] {
        expect_400(&push_body(b, body), "bad body: ");
    }
}

#[test]
fn a_missing_field_is_named() {
    let b = two_shards();
    let q = unique("bad");
    expect_400(&push_body(b, format!(r#"{{"items":[{{"queue":"{q}"}}]}}"#)), "payload is required");
    expect_400(&push_body(b, format!(r#"{{"items":[{{"queue":"{q}","data":1}}]}}"#)), "payload is required");
    expect_400(&push_body(b, r#"{"items":[{"payload":1}]}"#), "queue is required");
    expect_no_queue(b, &q);
}

#[test]
fn wrong_types_refuse_the_whole_request() {
    let b = two_shards();
    let q = unique("bad");
    for field in [r#""queue":null"#, r#""queue":1"#, r#""queue":["x"]"#] {
        let body = format!(r#"{{"items":[{{"queue":"{q}","payload":1}},{{{field},"payload":1}}]}}"#);
        expect_400(&push_body(b, body), "bad body: ");
    }
    for field in [
        r#""partition":1"#,
        r#""partition":{}"#,
        r#""partition":true"#,
        r#""transactionId":1"#,
        r#""transactionId":[]"#,
    ] {
        let body = format!(r#"{{"items":[{{"queue":"{q}","payload":1,{field}}}]}}"#);
        expect_400(&push_body(b, body), "bad body: ");
    }
    expect_no_queue(b, &q);
}

#[test]
fn invalid_utf8_and_broken_escapes_are_no_json() {
    let b = two_shards();
    let q = unique("bad");
    for text in [&b"\xff"[..], b"\xc3\x28", b"\xed\xa0\x80", br"\ud800", br"\x41", br"\u12", b"raw\ttab"] {
        for field in ["queue", "partition", "transactionId"] {
            let mut body =
                format!(r#"{{"items":[{{"queue":"{q}","payload":1}},{{"queue":"{q}","payload":1,"{field}":""#)
                    .into_bytes();
            body.extend_from_slice(text);
            body.extend_from_slice(br#""}]}"#);
            assert_eq!(push_body(b, &body).status, 400, "{field}: {text:?}");
        }
    }
    let mut body = format!(r#"{{"items":[{{"queue":"{q}","payload":"#).into_bytes();
    body.extend_from_slice(b"\"\xff\"}]}");
    assert_eq!(push_body(b, &body).status, 400, "a payload is UTF-8, too");
    expect_no_queue(b, &q);
}

#[test]
fn control_characters_are_refused_with_the_text_of_the_contract() {
    let b = two_shards();
    let q = unique("bad");
    for control in ['\0', '\u{1}', '\t', '\n', '\r', '\u{1f}'] {
        for field in ["queue", "partition", "transactionId"] {
            let mut item = json!({"queue": q, "payload": 1});
            item[field] = format!("a{control}b").into();
            let answer = b.post("/api/v1/push", &json!({"items": [{"queue": q, "payload": 1}, item]}));
            assert_eq!(answer.status, 400);
            assert_eq!(answer.error(), "control characters are not allowed in queue, partition or transactionId");
        }
    }
    expect_no_queue(b, &q);
}

/// U+007F and U+0080 to U+009F are in no text of the contract that refuses: what can be pushed can be named everywhere.
#[test]
fn names_that_can_be_pushed_can_be_popped_configured_and_deleted() {
    let b = two_shards();
    for odd in ['\u{7f}', '\u{85}', '\u{9f}'] {
        let q = unique(&format!("odd{odd}"));
        let key = format!("k{odd}");
        b.push_keys(&q, &format!("p{odd}"), &[&key]);
        b.configure(&q, json!({"leaseTime": 30}));
        let encoded = encode(&q);
        let pop = b.pop_path(&format!("/api/v1/pop/queue/{encoded}?autoAck=true"));
        assert_eq!(pop.keys(), [key.as_str()], "{odd:?}");
        let path = format!("/api/v1/messages/{}/{}", pop.messages[0].partition_id, encode(&key));
        assert_eq!(b.get(&path).status, 200, "{odd:?}");
        let path = format!("/api/v1/resources/queues/{encoded}");
        assert_eq!((b.get(&path).status, b.send("DELETE", &path, None).status), (200, 200), "{odd:?}");
    }
}

#[test]
fn a_transaction_id_has_65535_bytes_at_most() {
    let b = two_shards();
    let q = unique("bad");
    let (fits, long) = ("é".repeat(32767) + "x", "é".repeat(32768));
    assert_eq!((fits.len(), long.len()), (65535, 65536));
    let item = |key: &str| json!({"queue": q, "payload": 1, "transactionId": key});
    let answer = b.post("/api/v1/push", &json!({"items": [item("a"), item(&fits), item(&long)]}));
    assert_eq!((answer.status, answer.error().as_str()), (400, "transactionId of item 2 exceeds the 65535-byte limit"));
    expect_no_queue(b, &q);
    b.push(json!([item(&fits)]));
    let pop = b.pop(&q, "");
    assert_eq!(pop.messages[0].transaction_id, fits);
    b.complete("", &pop);
}

#[test]
fn names_over_1024_bytes_and_with_controls_are_400_outside_push() {
    let b = two_shards();
    let long = "é".repeat(512) + "x";
    let q = unique("bad");
    for path in [
        format!("/api/v1/pop/queue/{}", encode(&long)),
        format!("/api/v1/pop/queue/{q}/partition/{}", encode(&long)),
        format!("/api/v1/pop/queue/{q}?consumerGroup={}", encode(&long)),
    ] {
        expect_400(&b.get(&path), "1024");
    }
    expect_400(&b.post("/api/v1/configure", &json!({"queue": long})), "1024");
    let group = b.post("/api/v1/ack", &json!({"transactionId": "x", "partitionId": "1", "consumerGroup": long}));
    expect_400(&group, "1024");
    for control in ["%00", "%01", "%0A", "%1F"] {
        for path in [
            format!("/api/v1/pop/queue/{q}{control}"),
            format!("/api/v1/pop/queue/{q}/partition/a{control}"),
            format!("/api/v1/pop/queue/{q}?consumerGroup=a{control}"),
        ] {
            assert_eq!(b.get(&path).status, 400, "{path}");
        }
    }
    assert_eq!(b.post("/api/v1/configure", &json!({"queue": "a\u{0}b"})).status, 400);
    for path in
        ["/api/v1/pop/queue/%FF", "/api/v1/pop/queue/a/partition/%C3%28", "/api/v1/pop/queue/a?consumerGroup=%FF"]
    {
        assert_eq!(b.get(path).status, 400, "{path}: not UTF-8");
    }
    let fits = "é".repeat(512);
    assert!(b.pop(&fits, "").is_empty());
    assert_eq!(b.queue_detail(&fits)["name"], fits);
}

#[test]
fn ack_bodies_of_a_wrong_shape() {
    let b = two_shards();
    for body in [
        "",
        "x",
        "[]",
        "null",
        r#"{"transactionId":1}"#,
        r#"{"partitionId":57607}"#,
        r#"{"status":true}"#,
        r#"{"leaseId":{}}"#,
        r#"{"consumerGroup":1}"#,
        r#"{"error":["x"]}"#,
    ] {
        expect_400(&b.send("POST", "/api/v1/ack", Some(body.as_bytes())), "bad body: ");
    }
    for body in [
        "",
        "x",
        "[]",
        r#"{"acknowledgments":{}}"#,
        r#"{"acknowledgments":[1]}"#,
        r#"{"acknowledgments":[{"status":1}]}"#,
        r#"{"consumerGroup":7,"acknowledgments":[]}"#,
    ] {
        expect_400(&b.send("POST", "/api/v1/ack/batch", Some(body.as_bytes())), "bad body: ");
    }
    for body in ["{}", r#"{"acknowledgments":[]}"#] {
        let answer = b.send("POST", "/api/v1/ack/batch", Some(body.as_bytes()));
        assert_eq!((answer.status, answer.text().as_str()), (200, "[]"), "{body}");
    }
}

#[test]
fn acks_that_name_nothing_are_answered_per_item() {
    let b = two_shards();
    let q = unique("bad");
    b.push_n(&q, "p", "m", 1);
    let pop = b.pop(&q, "");
    let cases: [(Value, Option<&str>); 4] = [
        (json!({"transactionId": "m0", "partitionId": "9223372036854775807"}), Some("consumer not found")),
        (
            json!({"transactionId": "m0", "partitionId": pop.partition_id, "leaseId": "nonsense"}),
            Some("invalid or expired lease"),
        ),
        (json!({"transactionId": "m0", "partitionId": "not a number"}), None),
        (json!({}), None),
    ];
    for (item, error) in cases {
        let result = b.ack("", std::slice::from_ref(&item)).remove(0);
        assert_eq!((&result["index"], &result["success"]), (&json!(0), &json!(false)), "{item}: {result}");
        assert_eq!(result["transactionId"], item.get("transactionId").cloned().unwrap_or_else(|| "".into()));
        match error {
            Some(error) => assert_eq!(result["error"], error, "{item}"),
            None => assert!(result["error"].is_string(), "{item}: {result}"),
        }
    }
    let stranger = b.ack("never seen", &[pop.messages[0].ack("completed")]).remove(0);
    assert_eq!(stranger["error"], "consumer not found");
    b.complete("", &pop);
}

#[test]
fn an_answer_to_an_ack_has_exactly_the_keys_of_the_contract_in_order() {
    let b = two_shards();
    let q = unique("ack");
    b.push_n(&q, "p", "m", 1);
    let pop = b.pop(&q, "");
    let answer = b.post("/api/v1/ack", &pop.messages[0].ack("completed"));
    let want = r#"[{"index":0,"transactionId":"m0","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false}]"#;
    assert_eq!((answer.status, answer.text().as_str()), (200, want));
}

#[test]
fn status_words_are_case_sensitive_and_unknown_ones_never_complete() {
    let b = two_shards();
    for (word, completes) in [
        (json!(null), true),
        (json!("completed"), true),
        (json!("success"), true),
        (json!("acked"), true),
        (json!("ok"), true),
        (json!("Completed"), false),
        (json!("COMPLETED"), false),
        (json!(""), false),
        (json!("nack"), false),
        (json!("done"), false),
    ] {
        let q = unique("word");
        b.push_n(&q, "p", "m", 1);
        let pop = b.pop(&q, "");
        let mut item = pop.messages[0].ack("");
        item["status"] = word.clone();
        b.ack_ok("", &[item]);
        assert_eq!(b.pop(&q, "").is_empty(), completes, "{word}");
    }
}

/// PostgreSQL holds no NUL in a text: it is not asked, and nothing of it is an error of the database.
#[test]
fn a_nul_in_a_query_or_a_fetch_is_refused_here() {
    let b = two_shards();
    for (method, path) in [
        ("GET", "/api/v1/dlq?queue=%00"),
        ("GET", "/api/v1/dlq?consumerGroup=a%00b"),
        ("DELETE", "/api/v1/dlq?queue=%00"),
        ("DELETE", "/api/v1/dlq?queue=a&consumerGroup=%00"),
        ("GET", "/api/v1/messages?queue=%00"),
        ("GET", "/api/v1/messages?queue=a&partition=%00"),
    ] {
        let answer = b.send(method, path, None);
        assert_eq!(answer.status, 400, "{method} {path}: {}", answer.text());
        expect_400(&answer, "control characters are not allowed in ");
    }
    for entry in [json!({"queue": "a\0", "offset": 0}), json!({"queue": "a", "partition": "\0", "offset": 0})] {
        let body = json!({"entries": [entry]}).to_string();
        expect_400(&b.send("POST", "/api/v1/fetch", Some(body.as_bytes())), "control characters are not allowed in ");
    }
}
