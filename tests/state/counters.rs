//! Counting rules of operations 5.7, and the lifetime totals.

use crate::cluster::Db;
use crate::{cursor, queue};
use serde_json::json;

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";

/// total, pending, processing, completed of partition `p0`.
#[track_caller]
fn stats(db: &Db) -> (i64, i64, i64, i64) {
    let page = db.call("get_queue", json!({"queue": "q", "limit": 100}));
    let stats = &page["partitions"][0]["stats"];
    let n = |key: &str| stats[key].as_i64().unwrap();
    (n("total"), n("pending"), n("processing"), n("completed"))
}

#[test]
fn without_a_cursor_everything_is_pending() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    assert_eq!(stats(&db), (10, 10, 0, 0));
}

#[test]
fn the_slowest_named_group_counts() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "fast", 9, None);
    cursor(&db, "q", "p0", "slow", 3, None);
    assert_eq!(stats(&db), (10, 6, 0, 4));
}

#[test]
fn a_stray_pop_without_a_group_pins_nothing() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "__QUEUE_MODE__", -1, None);
    assert_eq!(stats(&db), (10, 10, 0, 0));
    cursor(&db, "q", "p0", "named", 7, None);
    assert_eq!(stats(&db), (10, 2, 0, 8));
}

#[test]
fn live_leases_are_processing_and_capped_at_pending() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "a", 4, Some((LEASE, 7, 60.0)));
    assert_eq!(stats(&db), (10, 5, 3, 5));
    cursor(&db, "q", "p0", "b", 4, Some((LEASE, 9, 60.0)));
    assert_eq!(stats(&db), (10, 5, 5, 5));
    db.sql("update queen.cursors set lease_expires_at = now() - interval '1 second'");
    assert_eq!(stats(&db), (10, 5, 0, 5));
}

#[test]
fn what_retention_took_is_neither_stored_nor_pending() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "a", 1, None);
    db.sql("update queen.partitions set log_start = 6; delete from queen.segments where base_offset < 6");
    assert_eq!(stats(&db), (4, 4, 0, 0));
    let depth = db.call("queue_depth", json!({"queue": "q", "group": "a", "limit": 10}));
    assert_eq!(depth["pending"], 4);
}

#[test]
fn dead_letters_are_not_completed() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "a", 9, None);
    dead_letter(&db, "smtp 550");
    dead_letter(&db, "");
    dead_letter(&db, "smtp 550");
    assert_eq!(stats(&db), (10, 0, 0, 7));
    let page = db.call("status_queues", json!({"limit": 10, "offset": 0}));
    assert_eq!(
        page["queues"][0]["messages"],
        json!({"total": 10, "pending": 0, "processing": 0, "completed": 7, "deadLetter": 3})
    );
    let status = db.call("status", json!({"limit": 10}));
    assert_eq!(
        status["deadLetterQueue"],
        json!({"totalMessages": 0, "currentMessages": 3, "affectedPartitions": 1,
        "topErrors": [{"error": "smtp 550", "count": 2}, {"error": "unknown", "count": 1}]})
    );
    let metrics = db.call("cluster_metrics", json!({"limit": 10}));
    assert_eq!(
        (&metrics["deadLetters"], &metrics["deadLettersByQueue"]),
        (&json!(3), &json!([{"queue": "q", "count": 3}]))
    );
}

fn dead_letter(db: &Db, error: &str) {
    db.sql(&format!(
        "insert into queen.dead_letters
             (queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
         select queue_id, id, 'a', 0, gen_random_uuid(), 't', '{{}}', false, '{error}', 3 from queen.partitions"
    ));
}

#[test]
fn totals_add_up_and_show_everywhere() {
    let db = Db::new();
    let before = db.call("status", json!({"limit": 10}));
    assert_eq!((&before["statsAge"], &before["messages"]["total"]), (&json!(-1), &json!(0)));
    db.call("add_totals", json!({"pushRequests": 2, "pushMessages": 100, "ackMessages": 60}));
    db.call(
        "add_totals",
        json!({"pushRequests": 1, "pushMessages": 50, "ackFailed": 4, "deadLettered": 1, "dbErrors": 3}),
    );
    let status = db.call("status", json!({"limit": 10}));
    assert_eq!(status["messages"]["total"], 150);
    assert_eq!(status["messages"]["batchEfficiency"]["push"], 50.0);
    assert_eq!(status["errors"], json!({"dbErrors": 3, "ackFailed": 4, "dlqMessages": 1}));
    assert!(status["statsAge"].as_i64().unwrap() >= 0);
    let overview = db.call("overview", json!({"limit": 10}));
    assert_eq!(
        overview["messages"],
        json!({"total": 150, "pending": 0, "processing": 0, "completed": 60, "failed": 4, "deadLetter": 1})
    );
    assert_eq!(db.call("cluster_metrics", json!({"limit": 10}))["pushMessages"], 150);
}

#[test]
fn sizes_are_measured_queue_by_queue() {
    let db = Db::new();
    queue(&db, "a", 1, 3);
    queue(&db, "b", 2, 2);
    let first = db.call("measure_retained", json!({}));
    let second = db.call("measure_retained", json!({"after": first["queue"]}));
    let end = db.call("measure_retained", json!({"after": second["queue"]}));
    assert!(first["queue"].is_string() && second["queue"].is_string() && end["queue"].is_null());
    let page = db.call("get_queue", json!({"queue": "b", "limit": 10}));
    assert_eq!((&page["retainedBytes"], &page["segments"]), (&json!(4 * 17), &json!({"segments": 4, "messages": 4})));
}
