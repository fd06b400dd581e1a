//! Counting rules of operations 5.7, and the lifetime totals.

use crate::cluster::Db;
use crate::{cursor, queue};
use serde_json::{Value, json};

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

/// A page sees no partition, and then looks for the first one of the next page: whatever comes and goes between, it says something.
#[test]
fn partitions_that_come_and_go_while_their_queue_is_measured_fail_no_page() {
    let db = Db::new();
    queue(&db, "q", 0, 0);
    let comes_and_goes = "do $$ begin
        for i in 1 .. 5000 loop
            insert into queen.partitions (id, queue_id, name) select 4096, id, 'p' from queen.queues;
            commit;
            delete from queen.partitions;
            commit;
        end loop;
    end $$";
    let mut other = db.start(comes_and_goes);
    db.sql(
        "do $$ begin
        for i in 1 .. 5000 loop
            perform queen.measure_retained(null, '{\"page\": 10, \"messages\": 10}');
            commit;
        end loop;
    end $$",
    );
    assert!(other.wait().expect("psql").success());
    assert_eq!(db.sql("select segments || ' ' || bytes from queen.queue_sizes"), "0 0");
}

/// Pages end at partitions, and within one at messages; nothing is measured twice, and what is shown changes at the end.
#[test]
fn a_large_queue_is_measured_in_pages() {
    let db = Db::new();
    for (name, partitions, messages) in [("a", 40, 3), ("b", 1, 100), ("c", 1, 1)] {
        queue(&db, name, partitions, messages);
    }
    // Segments of two messages, of which one lies below the log's start, in one of them; nothing in others.
    db.sql(
        "update queen.partitions set log_start = 2 where name = 'p3';
         delete from queen.segments as s using queen.partitions as p where p.id = s.partition_id and p.name in ('p5', 'p6');
         update queen.partitions set log_start = 3 where name in ('p5', 'p6');
         delete from queen.segments as s using queen.partitions as p where p.id = s.partition_id and p.name = 'p0' and s.base_offset % 2 = 1;
         update queen.segments as s set count = 2, body = '\\x0000' from queen.partitions as p
         where p.id = s.partition_id and p.name = 'p0'",
    );
    let sizes = |db: &Db| {
        db.sql("select string_agg(q.name || ' ' || z.segments || ' ' || z.bytes, ', ' order by q.name) from queen.queue_sizes as z join queen.queues as q on q.id = z.queue_id")
    };
    let pass = |db: &Db, mut args: Value| {
        args["after"] = Value::Null;
        for steps in 0.. {
            let mut reply = db.call("measure_retained", args.clone());
            let queue = reply["queue"].take();
            if queue.is_null() {
                return steps;
            }
            (args["after"], args["walk"]) =
                if reply["left"] == true { (args["after"].take(), queue) } else { (queue, Value::Null) };
        }
        unreachable!()
    };
    assert_eq!(pass(&db, json!({})), 3);
    let whole = sizes(&db);
    assert_eq!(whole, "a 113 1923, b 50 900, c 1 18");
    for (page, messages, steps) in
        [(1000, 1000, 3), (40, 1000, 3), (39, 1000, 4), (7, 1000, 8), (40, 30, 4 + 4 + 1), (40, 1, 112 + 100 + 1)]
    {
        db.sql("truncate queen.queue_sizes");
        assert_eq!(pass(&db, json!({"page": page, "messages": messages})), steps, "{page} {messages}");
        assert_eq!(sizes(&db), whole, "{page} {messages}");
        assert_eq!(db.sql("select count(*) from queen.measure_walks"), "0");
    }

    // What a page shows is of the last walk that came to its end; another broker goes on with it.
    db.sql("update queen.segments set body = body || '\\x00'");
    let args = json!({"page": 7, "messages": 1000});
    db.sql("delete from queen.queues where name <> 'a'; delete from queen.queue_sizes as z where not exists (select from queen.queues as q where q.id = z.queue_id)");
    let walk = db.call("measure_retained", args.clone())["queue"].take();
    for _ in 0..4 {
        assert_eq!(db.call("measure_retained", args.clone())["left"], true);
        assert_eq!(sizes(&db), "a 113 1923");
    }
    assert_eq!(db.call("measure_retained", args.clone())["left"], false);
    assert_eq!(sizes(&db), "a 113 2036");
    // Ended by another broker; abandoned; failed; deleted.
    let at = |walk: &Value, skip: bool| json!({"page": 7, "messages": 1000, "walk": walk, "skip": skip});
    let kept = |db: &Db| db.sql("select coalesce(sum(partition_id >> 12), 0) from queen.measure_walks");
    assert_eq!((db.call("measure_retained", at(&walk, false))["left"].clone(), kept(&db)), (Value::Null, "0".into()));
    db.call("measure_retained", args.clone());
    assert_eq!(kept(&db), "8");
    db.call("measure_retained", at(&walk, false));
    assert_eq!(kept(&db), "15");
    let age = "update queen.measure_walks set walked_at = now() - interval '11 minutes'";
    db.sql(age);
    db.call("measure_retained", args.clone());
    assert_eq!(kept(&db), "8", "begun anew");
    db.sql(age);
    assert_eq!((db.call("measure_retained", at(&walk, false))["left"].clone(), kept(&db)), (Value::Null, "0".into()));
    db.call("measure_retained", args.clone());
    assert_eq!((db.call("measure_retained", at(&walk, true))["queue"].clone(), kept(&db)), (walk.clone(), "0".into()));
    db.call("measure_retained", args.clone());
    db.sql("delete from queen.queues");
    assert_eq!((db.call("measure_retained", at(&walk, false))["left"].clone(), kept(&db)), (Value::Null, "0".into()));
}
