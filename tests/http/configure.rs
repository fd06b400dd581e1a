//! `POST /api/v1/configure`, data plane 8.1 to 8.3.

use crate::harness::{at_once, two_shards, unique};
use serde_json::{Value, json};

fn defaults() -> Value {
    json!({"priority":0,"leaseTime":300,"retryLimit":3,"retryDelay":1000,"maxSize":0,"ttl":3600,"deadLetterQueue":true,
        "dlqAfterMaxRetries":true,"delayedProcessing":0,"windowBuffer":0,"retentionSeconds":0,"completedRetentionSeconds":0,
        "retentionEnabled":false,"encryptionEnabled":false,"maxWaitTimeSeconds":0,"minPopWaitTime":0,
        "dedupWindowSeconds":3600,"retentionSinkHold":"","retentionSinkHoldMaxSeconds":604800})
}

fn others() -> Value {
    json!({"priority":-5,"leaseTime":45,"retryLimit":0,"retryDelay":7,"maxSize":9,"ttl":10,"deadLetterQueue":false,
        "dlqAfterMaxRetries":false,"delayedProcessing":1,"windowBuffer":2,"retentionSeconds":30,"completedRetentionSeconds":40,
        "retentionEnabled":true,"encryptionEnabled":true,"maxWaitTimeSeconds":50,"minPopWaitTime":60,
        "dedupWindowSeconds":70,"retentionSinkHold":"s3-main_1.a","retentionSinkHoldMaxSeconds":80})
}

#[test]
fn an_answer_has_the_effective_options_in_the_shape_of_the_contract() {
    let b = two_shards();
    let q = unique("cfg");
    let answer =
        b.post("/api/v1/configure", &json!({"queue": q, "namespace": "billing", "task": "refund", "options": {}}));
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert!(body["queueId"].as_str().is_some_and(|id| id.len() == 36), "{body}");
    let want = json!({"configured": true, "queueId": body["queueId"], "partitionId": null, "queue": q, "namespace": "billing",
        "task": "refund", "storage": "segments", "options": defaults()});
    assert_eq!(body, want);
}

#[test]
fn all_options_are_stored_reset_by_null_and_replaced() {
    let b = two_shards();
    let q = unique("cfg");
    assert_eq!(b.configure(&q, others()), others());
    assert_eq!(b.configure(&q, json!({})), others(), "merge keeps what is not named");
    let names: Vec<String> = others().as_object().expect("an object").keys().cloned().collect();
    for name in &names {
        let got = b.configure(&q, json!({ name: null }));
        let mut want = others();
        want[name] = defaults()[name].clone();
        assert_eq!(got, want, "null resets {name} alone");
        b.configure(&q, others());
    }
    let replaced = b
        .post("/api/v1/configure", &json!({"queue": q, "mode": "replace", "options": {"ttl": 99, "priority": null}}))
        .json();
    let mut want = defaults();
    want["ttl"] = 99.into();
    assert_eq!(replaced["options"], want);
}

#[test]
fn namespace_and_task_come_from_the_bag_else_the_top() {
    let b = two_shards();
    let q = unique("cfg");
    let set = |body: Value| {
        let answer = b.post("/api/v1/configure", &body).json();
        (
            answer["namespace"].as_str().unwrap_or_default().to_owned(),
            answer["task"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let pair = |n: &str, t: &str| (n.to_owned(), t.to_owned());
    assert_eq!(
        set(json!({"queue": q, "namespace": "top", "task": "", "options": {"namespace": "bag"}})),
        pair("bag", "")
    );
    assert_eq!(set(json!({"queue": q, "task": "top", "options": {}})), pair("bag", "top"));
    assert_eq!(set(json!({"queue": q, "namespace": 7, "options": {"task": null}})), pair("bag", ""));
    assert_eq!(
        set(json!({"queue": q, "options": {"namespace": null}})),
        pair("", ""),
        "configure derives nothing from the name"
    );
    let bare = b.post("/api/v1/configure", &json!({"queue": q, "ttl": 5, "namespace": "flat"})).json();
    assert_eq!(
        (&bare["options"]["ttl"], &bare["namespace"]),
        (&json!(5), &json!("flat")),
        "without `options` the top level is the bag"
    );
}

#[test]
fn refusals_and_their_texts() {
    let b = two_shards();
    let q = unique("cfg");
    for body in [json!({}), json!({"queue": null}), json!({"queue": 7}), json!({"options": {"queue": "x"}})] {
        let answer = b.post("/api/v1/configure", &body);
        assert_eq!((answer.status, answer.text().as_str()), (400, r#"{"error":"queue is required"}"#), "{body}");
    }
    for (mode, shown) in
        [(json!("Merge"), r#""Merge""#), (json!(""), r#""""#), (json!(7), "7"), (json!({"a": 1}), r#"{"a":1}"#)]
    {
        let answer = b.post("/api/v1/configure", &json!({"queue": q, "mode": mode, "options": {}}));
        assert_eq!(
            (answer.status, answer.error()),
            (400, format!(r#"mode must be "merge" or "replace", got {shown}"#))
        );
    }
    for mode in [json!(null), json!("merge")] {
        assert_eq!(
            b.post("/api/v1/configure", &json!({"queue": unique("cfg"), "mode": mode, "options": {"mode": "x"}}))
                .status,
            200
        );
    }
    for body in ["", "x", "[]", "null"] {
        assert_eq!(b.send("POST", "/api/v1/configure", Some(body.as_bytes())).status, 400, "{body:?}");
    }
    for options in [
        json!({"leaseTime": "soon"}),
        json!({"leaseTime": true}),
        json!({"leaseTime": [1]}),
        json!({"leaseTime": 3_000_000_000u64}),
        json!({"retryLimit": 1.5}),
        json!({"deadLetterQueue": 2}),
        json!({"deadLetterQueue": "maybe"}),
        json!({"namespace": 4}),
        json!({"retentionSinkHold": 4}),
        json!({"ttl": 1e300}),
    ] {
        let answer = b.post("/api/v1/configure", &json!({"queue": q, "options": options}));
        assert_eq!(answer.status, 400, "{options}: {}", answer.text());
        assert!(answer.error().starts_with("configure failed: "), "{options}: {}", answer.text());
    }
    let answer = b.post("/api/v1/configure", &json!({"queue": q, "options": {"retentionSinkHoldMaxSeconds": 5}}));
    let text = "retentionSinkHoldMaxSeconds must be between 60 and 31536000, got 5";
    assert_eq!((answer.status, answer.json()), (400, json!({"error": text, "invalid": "retentionSinkHoldMaxSeconds"})));
    for hold in ["has space", "ü", &"x".repeat(65)] {
        let answer = b.post("/api/v1/configure", &json!({"queue": q, "options": {"retentionSinkHold": hold}}));
        assert_eq!((answer.status, &answer.json()["invalid"]), (400, &json!("retentionSinkHold")), "{hold}");
        assert!(answer.error().starts_with("retentionSinkHold must match "), "{}", answer.text());
    }
    assert_eq!(b.get(&format!("/api/v1/resources/queues/{q}")).status, 404, "a refused call creates nothing");
}

#[test]
fn numeric_and_boolean_text_is_accepted_and_two_options_are_clamped() {
    let b = two_shards();
    let q = unique("cfg");
    let got = b.configure(
        &q,
        json!({"leaseTime": "45", "retryLimit": "0", "deadLetterQueue": "false", "retentionEnabled": "true"}),
    );
    assert_eq!((&got["leaseTime"], &got["retryLimit"]), (&json!(45), &json!(0)));
    assert_eq!((&got["deadLetterQueue"], &got["retentionEnabled"]), (&json!(false), &json!(true)));
    let got = b.configure(&q, json!({"minPopWaitTime": 90_000, "dedupWindowSeconds": -4}));
    assert_eq!((&got["minPopWaitTime"], &got["dedupWindowSeconds"]), (&json!(60_000), &json!(0)));
    assert_eq!(b.configure(&q, json!({"minPopWaitTime": -1}))["minPopWaitTime"], 0);
    assert_eq!(
        b.post("/api/v1/configure", &json!({"queue": "", "options": {}})).status,
        200,
        "an empty name is allowed"
    );
}

#[test]
fn an_implicit_queue_has_a_lease_of_60_until_its_first_configure() {
    let b = two_shards();
    for mode in ["merge", "replace"] {
        let q = unique("cfg.x");
        b.push_n(&q, "p", "m", 1);
        assert_eq!(b.queue_detail(&q)["options"]["leaseTime"], 60);
        let body = json!({"queue": q, "mode": mode, "options": {"retryLimit": 1}});
        assert_eq!(b.post("/api/v1/configure", &body).json()["options"]["leaseTime"], 300);
    }
    let q = unique("cfg");
    b.push_n(&q, "p", "m", 1);
    assert_eq!(b.configure(&q, json!({"leaseTime": 20}))["leaseTime"], 20);
    assert_eq!(b.configure(&q, json!({"retryLimit": 1}))["leaseTime"], 20, "once stored it is kept");
}

#[test]
fn concurrent_calls_lose_no_option() {
    let b = two_shards();
    let q = unique("cfg");
    let names = [
        "priority",
        "leaseTime",
        "retryLimit",
        "retryDelay",
        "maxSize",
        "ttl",
        "retentionSeconds",
        "maxWaitTimeSeconds",
    ];
    at_once(names.len(), |i| b.configure(&q, json!({ names[i]: 17 + i })));
    let got = b.configure(&q, json!({}));
    for (i, name) in names.iter().enumerate() {
        assert_eq!(got[name], 17 + i, "{name}");
    }
}

#[test]
fn a_change_takes_effect_on_the_next_request() {
    let b = two_shards();
    let q = unique("cfg");
    let push = || b.push(json!([{"queue": q, "transactionId": "k", "payload": 1}]))[0]["status"].clone();
    assert_eq!(push(), "queued");
    assert_eq!(push(), "duplicate");
    b.configure(&q, json!({"dedupWindowSeconds": 0}));
    assert_eq!(push(), "queued");
    b.configure(&q, json!({"retryLimit": 0}));
    let pop = b.pop(&q, "");
    assert_eq!(b.ack_ok("", &[pop.messages[0].ack("failed")])[0]["dlq"], true);
    b.configure(&q, json!({"dedupWindowSeconds": 3600}));
    assert_eq!(push(), "duplicate", "a raised window sees what was stored while it was off");
}
