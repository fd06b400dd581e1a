//! The listing pages: shapes, filters and order.

use crate::cluster::Db;
use crate::{cursor, number, queue};
use serde_json::{Value, json};

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";

#[test]
fn pending_includes_leased_messages_on_some_pages_only() {
    let db = Db::new();
    queue(&db, "q", 2, 10);
    cursor(&db, "q", "p0", "g", 3, Some((LEASE, 5, 60.0)));
    let listed = db.call("list_queues", json!({"limit": 10}));
    assert_eq!(listed["queues"][0]["messages"], json!({"total": 20, "pending": 14, "processing": 2}));
    assert_eq!(listed["queues"][0]["segments"], json!({"segments": 0, "messages": 20}));
    assert_eq!((&listed["kvRows"], &listed["timerBytes"]), (&json!(0), &json!(0)));
    let status = db.call("status_queues", json!({"limit": 10, "offset": 0}));
    assert_eq!(status["queues"][0]["messages"]["pending"], 16);
    assert_eq!(db.call("overview", json!({"limit": 10}))["messages"]["pending"], 14);
    let cell = db.call("status", json!({"limit": 10}));
    assert_eq!(cell["messages"]["pending"], 14);
    assert_eq!(cell["leases"], json!({"active": 1, "partitionsWithLeases": 1, "totalBatchSize": 2, "totalAcked": 0}));
    assert_eq!(cell["queues"][0]["totalConsumed"], 4);
    let spaces = db.call("list_namespaces", json!({"limit": 10}));
    assert_eq!(
        spaces,
        json!({"namespaces": [{"namespace": "shop", "queues": 1, "partitions": 2, "messages": {"total": 20, "pending": 14}}]})
    );
    let tasks = db.call("list_tasks", json!({"limit": 10}));
    assert_eq!(tasks["tasks"][0]["task"], "mail");
}

#[test]
fn the_oldest_pending_message_dates_a_partition() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "g", 3, Some((LEASE, 5, 60.0)));
    let page = db.call("status_queue", json!({"queue": "q", "limit": 10}));
    let partition = &page["partitions"][0];
    assert_eq!(partition["id"], Value::from(number(&db, "q", "p0").to_string()));
    assert_eq!(partition["messages"], partition["stats"]);
    assert_eq!(partition["cursor"], json!({"totalConsumed": 4, "batchesConsumed": 0}));
    let at = |offset: u32| {
        Value::from(
            db.sql(&format!("select queen.utc_ms(created_at) from queen.segments where base_offset = {offset}")),
        )
    };
    assert_eq!((&partition["oldestMessage"], &partition["newestMessage"]), (&at(4), &at(9)));
    assert!(partition["lastActivity"].as_str().unwrap().ends_with('Z'));
    let config = json!({"leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "maxQueueSize": 0, "deadLetterQueue": true});
    assert_eq!(page["queue"]["config"], config);

    db.sql("update queen.cursors set committed = 9, lease_id = null, lease_expires_at = null, batch_end = null");
    let page = db.call("get_queue", json!({"queue": "q", "limit": 10}));
    assert_eq!(page["partitions"][0]["oldestMessage"], Value::Null);
    assert_eq!(page["partitions"][0]["newestMessage"], at(9));
    assert_eq!(page["options"].as_object().unwrap().len(), 21);
}

#[test]
fn an_empty_queue_has_zeros_and_no_partition() {
    let db = Db::new();
    queue(&db, "q", 0, 0);
    let page = db.call("get_queue", json!({"queue": "q", "limit": 10}));
    assert_eq!(page["partitions"], json!([]));
    let zeros = json!({"total": 0, "pending": 0, "processing": 0, "completed": 0, "failed": null, "deadLetter": 0});
    assert_eq!((&page["totals"], &page["segments"]), (&zeros, &json!({"segments": 0, "messages": 0})));
    let depth = db.call("queue_depth", json!({"queue": "q", "limit": 10}));
    assert_eq!((&depth["pending"], &depth["partitions"], &depth["group"]), (&json!(0), &json!([]), &Value::Null));
    assert_eq!(db.call("status_queue", json!({"queue": "none", "limit": 1})), json!({"error": "Queue not found"}));
}

#[test]
fn totals_cover_partitions_that_are_not_listed() {
    let db = Db::new();
    queue(&db, "q", 5, 2);
    for function in ["get_queue", "status_queue", "queue_depth"] {
        let page = db.call(function, json!({"queue": "q", "limit": 2}));
        assert_eq!(page["partitions"].as_array().unwrap().len(), 2, "{function}");
        assert_eq!(page["partitionsTruncated"], true, "{function}: the list says that it is none of all");
        let keys: Vec<String> = page.as_object().unwrap().keys().cloned().collect();
        let all = db.call(function, json!({"queue": "q", "limit": 5}));
        assert_eq!(all["partitions"].as_array().unwrap().len(), 5, "{function}");
        let whole: Vec<String> = all.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            keys.iter().filter(|key| *key != "partitionsTruncated").collect::<Vec<_>>(),
            whole.iter().collect::<Vec<_>>()
        );
    }
    assert_eq!(db.call("get_queue", json!({"queue": "q", "limit": 2}))["totals"]["total"], 10);
}

#[test]
fn depth_of_a_group_is_its_own_backlog() {
    let db = Db::new();
    queue(&db, "q", 2, 10);
    cursor(&db, "q", "p0", "slow", 1, None);
    cursor(&db, "q", "p0", "g", 3, Some((LEASE, 9, 60.0)));
    let depth = db.call("queue_depth", json!({"queue": "q", "group": "g", "limit": 10}));
    let want = json!({"queue": "q", "group": "g", "pending": 16, "processing": 6, "ready": 10, "partitionsPending": 2,
        "partitionsReady": 1, "conflation": false, "effectivePending": 16, "effectiveReady": 10,
        "partitions": [{"partition": "p0", "pending": 6, "processing": 6, "ready": 0},
            {"partition": "p1", "pending": 10, "processing": 0, "ready": 10}]});
    assert_eq!(depth, want);
    assert_eq!(db.call("queue_depth", json!({"queue": "q", "group": "unknown", "limit": 10}))["pending"], 20);
    assert_eq!(db.call("queue_depth", json!({"queue": "q", "limit": 10}))["pending"], 18);
    db.sql("update queen.groups set conflation = true where name = 'g'");
    let depth = db.call("queue_depth", json!({"queue": "q", "group": "g", "limit": 10}));
    assert_eq!((&depth["effectivePending"], &depth["effectiveReady"]), (&json!(2), &json!(1)));
}

#[test]
fn partitions_are_ranked_by_what_waits() {
    let db = Db::new();
    queue(&db, "a", 2, 4);
    queue(&db, "b", 1, 5);
    cursor(&db, "a", "p1", "g", 3, None);
    let all = db.call("list_partitions", json!({"limit": 2}));
    let names: Vec<_> = all["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["queue"].as_str().unwrap(), p["pending"].as_i64().unwrap()))
        .collect();
    assert_eq!(names, [("b", 5), ("a", 4)]);
    let lag = all["partitions"][0]["lagSeconds"].as_i64().unwrap();
    assert!((40..60).contains(&lag), "{lag}");
    let one = db.call("list_partitions", json!({"queue": "a", "limit": 10}));
    assert_eq!(
        one["partitions"][1],
        json!({"queue": "a", "partition": "p1", "id": number(&db, "a", "p1").to_string(), "pending": 0, "processing": 0, "lagSeconds": 0})
    );
    assert_eq!(db.call("list_partitions", json!({"queue": "none", "limit": 10})), json!({"partitions": []}));
}

#[test]
fn lists_are_newest_first_and_paged() {
    let db = Db::new();
    for name in ["a", "b", "c"] {
        queue(&db, name, 1, 1);
    }
    let names = |page: Value| -> Vec<String> {
        page["queues"].as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(db.call("list_queues", json!({"limit": 10}))), ["c", "b", "a"]);
    assert_eq!(names(db.call("status_queues", json!({"limit": 1, "offset": 1}))), ["b"]);
    assert_eq!(
        names(db.call("status_queues", json!({"queue": "a", "namespace": "shop", "limit": 9, "offset": 0}))),
        ["a"]
    );
    assert_eq!(names(db.call("status_queues", json!({"task": "none", "limit": 9, "offset": 0}))), [""; 0]);
}

#[test]
fn the_window_of_a_status_page_is_utc_and_bad_times_are_named() {
    let db = Db::new();
    let page = db.call("status", json!({"from": "2030-02-01T09:00:00Z", "to": "2030-02-01 12:30", "limit": 10}));
    assert_eq!(page["timeRange"], json!({"from": "2030-02-01T09:00:00.000Z", "to": "2030-02-01T12:30:00.000Z"}));
    assert_eq!((&page["bucketMinutes"], &page["throughput"], &page["pointCount"]), (&json!(5), &json!([]), &json!(0)));
    assert_eq!(db.call("status", json!({"from": "yesterday", "limit": 1})), json!({"invalid": "from"}));
    assert_eq!(db.call("status", json!({"to": "2030-02-31", "limit": 1})), json!({"invalid": "from or to"}));
    assert_eq!(db.call("status", json!({"limit": 1}))["bucketMinutes"], 1);
}

#[test]
fn another_tenant_sees_only_its_own() {
    let db = Db::new();
    queue(&db, "q", 2, 3);
    let other = "00000000-0000-0000-0000-000000000002";
    for (function, args, want) in [
        ("list_queues", json!({"limit": 9}), json!([])),
        ("status_queues", json!({"limit": 9, "offset": 0}), json!([])),
    ] {
        assert_eq!(db.call_as(other, function, args)["queues"], want);
    }
    assert_eq!(db.call_as(other, "list_namespaces", json!({"limit": 9})), json!({"namespaces": []}));
    assert_eq!(db.call_as(other, "list_partitions", json!({"limit": 9})), json!({"partitions": []}));
    assert_eq!(
        db.call_as(other, "queue_depth", json!({"queue": "q", "limit": 9})),
        json!({"error": "Queue not found"})
    );
    let overview = db.call_as(other, "overview", json!({"limit": 9}));
    assert_eq!(
        (&overview["queues"], &overview["messages"]["total"], &overview["statsAge"]),
        (&json!(0), &json!(0), &json!(0))
    );
    let mine = db.call("overview", json!({"limit": 9}));
    assert_eq!(
        (&mine["queues"], &mine["partitions"], &mine["namespaces"], &mine["tasks"]),
        (&json!(1), &json!(2), &json!(1), &json!(1))
    );
    assert_eq!(mine["lag"]["offset"]["max"], 6);
}
