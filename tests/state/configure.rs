//! `queen.configure`: data plane 8.1 to 8.3.

use crate::cluster::Db;
use serde_json::{Value, json};

#[track_caller]
fn configure(db: &Db, options: Value) -> Value {
    let answer = db.call("configure", json!({"queue": "q", "options": options}));
    answer["options"].clone()
}

#[test]
fn the_answer_has_19_options_in_wire_order() {
    let db = Db::new();
    let text = db.sql(&format!(
        "select queen.configure('{}', '{{\"queue\":\"a.b\",\"options\":{{\"namespace\":\"n\",\"leaseTime\":45}}}}')",
        crate::cluster::DEFAULT_TENANT
    ));
    let compact = serde_json::from_str::<Value>(&text).unwrap();
    assert_eq!(compact["options"].as_object().unwrap().len(), 19);
    let id = compact["queueId"].as_str().unwrap();
    let want = format!(
        "{{\"configured\":true,\"queueId\":\"{id}\",\"partitionId\":null,\"queue\":\"a.b\",\"namespace\":\"n\",\"task\":\"\",\
         \"storage\":\"segments\",\"options\":{{\"priority\":0,\"leaseTime\":45,\"retryLimit\":3,\"retryDelay\":1000,\
         \"maxSize\":0,\"ttl\":3600,\"deadLetterQueue\":true,\"dlqAfterMaxRetries\":true,\"delayedProcessing\":0,\
         \"windowBuffer\":0,\"retentionSeconds\":0,\"completedRetentionSeconds\":0,\"retentionEnabled\":false,\
         \"encryptionEnabled\":false,\"maxWaitTimeSeconds\":0,\"minPopWaitTime\":0,\"dedupWindowSeconds\":3600,\
         \"retentionSinkHold\":\"\",\"retentionSinkHoldMaxSeconds\":604800}}}}"
    );
    assert_eq!(text.replace(" : ", ":").replace(", ", ","), want);
}

#[test]
fn merge_keeps_null_resets_and_replace_resets_all() {
    let db = Db::new();
    configure(
        &db,
        json!({"leaseTime": 45, "retryLimit": 9, "dedupWindowSeconds": 0, "namespace": "n", "deadLetterQueue": false}),
    );
    let merged = configure(&db, json!({"retryLimit": null, "priority": 2}));
    assert_eq!((&merged["leaseTime"], &merged["retryLimit"], &merged["priority"]), (&json!(45), &json!(3), &json!(2)));
    assert_eq!((&merged["dedupWindowSeconds"], &merged["deadLetterQueue"]), (&json!(0), &json!(false)));

    let replaced = db.call("configure", json!({"queue": "q", "replace": true, "options": {"retryLimit": 4}}));
    assert_eq!(replaced["namespace"], "");
    let options = &replaced["options"];
    assert_eq!(
        (&options["leaseTime"], &options["retryLimit"], &options["priority"]),
        (&json!(300), &json!(4), &json!(0))
    );
    assert_eq!((&options["dedupWindowSeconds"], &options["deadLetterQueue"]), (&json!(3600), &json!(true)));
}

#[test]
fn a_lease_time_never_stored_becomes_300_and_a_stored_one_stays() {
    let db = Db::new();
    db.sql("insert into queen.queues (tenant_id, name) values ('00000000-0000-0000-0000-000000000001', 'q')");
    assert_eq!(db.call("get_queue", json!({"queue": "q", "limit": 1}))["options"]["leaseTime"], 60);
    assert_eq!(configure(&db, json!({"retryLimit": 4}))["leaseTime"], 300);
    assert_eq!(configure(&db, json!({"leaseTime": 7}))["leaseTime"], 7);
    assert_eq!(configure(&db, json!({}))["leaseTime"], 7);
    assert_eq!(configure(&db, json!({"leaseTime": null}))["leaseTime"], 300);
}

#[test]
fn an_implicit_namespace_survives_a_merge() {
    let db = Db::new();
    db.sql(
        "insert into queen.queues (tenant_id, name, namespace, task)
            values ('00000000-0000-0000-0000-000000000001', 'q', 'billing', 'refund')",
    );
    let answer = db.call("configure", json!({"queue": "q", "options": {"task": "x"}}));
    assert_eq!((&answer["namespace"], &answer["task"]), (&json!("billing"), &json!("x")));
}

#[test]
fn concurrent_calls_lose_no_option() {
    let db = Db::new();
    let call = |option: &str, value: u32| {
        format!(
            "select queen.configure('00000000-0000-0000-0000-000000000001', '{{\"queue\":\"q\",\"options\":{{\"{option}\":{value}}}}}')"
        )
    };
    let options =
        ["priority", "retryLimit", "ttl", "maxSize", "windowBuffer", "delayedProcessing", "leaseTime", "retryDelay"];
    let running: Vec<_> = options.iter().map(|option| db.start(&call(option, 77))).collect();
    for mut child in running {
        assert!(child.wait().unwrap().success());
    }
    let got = configure(&db, json!({}));
    for option in options {
        assert_eq!(got[option], 77, "{option}");
    }
}

#[test]
fn tenants_have_queues_of_their_own() {
    let db = Db::new();
    let other = "00000000-0000-0000-0000-000000000002";
    let mine = configure(&db, json!({"priority": 1}));
    let theirs = db.call_as(other, "configure", json!({"queue": "q", "options": {}}));
    assert_eq!((&mine["priority"], &theirs["options"]["priority"]), (&json!(1), &json!(0)));
    assert_eq!(db.call_as(other, "delete_queue", json!({"queue": "q"}))["existed"], true);
    assert_eq!(db.call("get_queue", json!({"queue": "q", "limit": 1}))["name"], "q");
}

#[test]
fn flags_name_the_queues_that_are_encrypted() {
    let db = Db::new();
    for (queue, encrypted) in [("plain", false), ("secret", true)] {
        db.call("configure", json!({"queue": queue, "options": {"encryptionEnabled": encrypted}}));
    }
    assert_eq!(db.call("queue_flags", json!({"queues": ["plain", "secret", "new"]})), json!(["secret"]));
    assert_eq!(db.call("queue_flags", json!({"queues": []})), json!([]));
}

/// A broker of a release ago reads of an answer without its queue that the queue is not encrypted.
#[test]
fn flags_are_not_answered_to_who_asks_in_another_way() {
    let db = Db::new();
    db.call("configure", json!({"queue": "secret", "options": {"encryptionEnabled": true}}));
    db.sql(&format!(
        "do $$ begin
            perform queen.queue_flags('{}', '{{\"queue\": \"secret\"}}');
            raise 'it was answered';
        exception when invalid_parameter_value then null;
        end $$",
        crate::cluster::DEFAULT_TENANT
    ));
}
