//! Pages of a database with many partitions: what the reconciler counted is what the pages would count, and a page's cost
//! is bounded, at 100,000 partitions and a million messages. Operations 5.7; issue 3, speed.

use crate::cluster::{DEFAULT_TENANT, Db};
use crate::{cursor, queue};
use serde_json::{Value, json};

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";

/// One pass of the reconciler; queues it counted.
fn count(db: &Db, exact: u32, ranks: u32) -> u32 {
    let mut after = Value::Null;
    for counted in 0.. {
        after = db.call("count_queue", json!({"after": after, "exact": exact, "ranks": ranks}))["queue"].take();
        if after.is_null() {
            return counted;
        }
    }
    unreachable!()
}

/// Every page that counts, with the arguments of its route.
fn pages() -> Vec<(&'static str, Value)> {
    vec![
        ("list_queues", json!({"limit": 10_000})),
        ("get_queue", json!({"queue": "q1", "limit": 1000})),
        ("queue_depth", json!({"queue": "q1", "limit": 1000})),
        ("queue_depth", json!({"queue": "q1", "group": "g", "limit": 1000})),
        ("queue_depth", json!({"queue": "q1", "group": "nobody", "limit": 1000})),
        ("list_namespaces", json!({"limit": 10_000})),
        ("list_tasks", json!({"limit": 10_000})),
        ("list_partitions", json!({"limit": 100})),
        ("list_partitions", json!({"limit": 100, "queue": "q1"})),
        ("overview", json!({"limit": 1000})),
        ("status", json!({"limit": 1000})),
        ("status_queues", json!({"limit": 100, "offset": 0})),
        ("status_queue", json!({"queue": "q1", "limit": 1000})),
        ("list_groups", json!({"limit": 10_000, "probes": 1000})),
        ("get_group", json!({"group": "g", "limit": 1000})),
        ("lagging_groups", json!({"seconds": 5, "limit": 1000, "probes": 1000})),
    ]
}

/// Without what is of the moment.
fn steady(mut page: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                let of_the_moment =
                    ["timestamp", "statsAge", "timeRange", "time", "lagSeconds", "maxTimeLag", "timeLagSeconds"];
                map.retain(|key, _| {
                    !of_the_moment.contains(&key.as_str()) && !key.starts_with("time_lag") && key != "lag_hours"
                });
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut page);
    page
}

fn small(db: &Db) {
    for name in ["q0", "q1", "q2"] {
        queue(db, name, 6, 10);
    }
    queue(db, "empty", 0, 0);
    for p in 0..6 {
        cursor(db, "q1", &format!("p{p}"), "g", p - 1, (p == 2).then_some((LEASE, 5, 600.0)));
        cursor(db, "q2", &format!("p{p}"), "g", 9, None);
    }
    cursor(db, "q1", "p0", "h", 3, Some((LEASE, 8, 600.0)));
    cursor(db, "q0", "p0", "__QUEUE_MODE__", 4, None);
}

#[test]
fn what_was_counted_is_what_the_pages_count() {
    let db = Db::new();
    small(&db);
    let exact: Vec<Value> = pages().into_iter().map(|(page, args)| steady(db.call(page, args))).collect();
    assert_eq!(count(&db, 5, 1000), 4);
    for ((page, args), want) in pages().into_iter().zip(exact) {
        assert_eq!(steady(db.call(page, args.clone())), want, "{page} {args}");
    }
}

/// The stamps that the reconciler keeps only spare the page the rows that cannot be on it.
#[test]
fn messages_are_found_in_the_partitions_written_last_counted_or_not() {
    let db = Db::new();
    for name in ["q0", "q1", "q2"] {
        queue(&db, name, 40, 1);
    }
    // No two partitions were written at the same time.
    db.sql(
        "update queen.partitions set last_created_at = now() - (id * 7919 / 4096 % 127) * interval '1 second';
         update queen.segments set created_at = (select p.last_created_at from queen.partitions as p where p.id = partition_id)",
    );
    let asks: Vec<Value> = [
        json!({}),
        json!({"queue": "q1"}),
        json!({"partition": "p7"}),
        json!({"status": "pending"}),
        json!({"offset": 2}),
        json!({"to": "2001-01-01"}),
        json!({"task": "none"}),
    ]
    .into_iter()
    .flat_map(|more| [1, 3, 10, 11, 25, 1000].map(|n| (n, more.clone())))
    .map(|(partitions, more)| {
        let mut ask = json!({"limit": 5, "offset": 0, "scan": 20, "partitions": partitions, "bytes": 100_000});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    })
    .collect();
    let pages = || -> Vec<Value> { asks.iter().map(|ask| db.call("list_messages", ask.clone())).collect() };
    let exact = pages();
    assert_eq!(exact[0]["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(count(&db, 5, 1000), 3);
    assert_eq!(db.sql("select min(cardinality(recent_at)) from queen.queue_counts"), "2", "of the 1st and the 10th");
    for (ask, (page, want)) in asks.iter().zip(pages().into_iter().zip(exact)) {
        assert_eq!(page, want, "{ask}");
    }
    // Most of them are emptied and one is deleted behind the reconciler's back.
    db.sql(
        "update queen.partitions set log_start = 1 where last_created_at > now() - interval '100 seconds';
         delete from queen.partitions where last_created_at = (select max(last_created_at) from queen.partitions where log_start = 0)",
    );
    let stale = pages();
    assert_eq!(count(&db, 1000, 1000), 0, "forgotten: the pages find them by themselves");
    for (ask, (page, want)) in asks.iter().zip(stale.into_iter().zip(pages())) {
        assert_eq!(page, want, "{ask}");
    }
}

#[test]
fn totals_are_of_now_and_the_rest_of_the_last_pass() {
    let db = Db::new();
    small(&db);
    count(&db, 5, 1000);
    db.sql("update queen.partitions set last_offset = 19");
    queue(&db, "young", 2, 3);
    let listed = db.call("list_queues", json!({"limit": 9}));
    let of = |name: &str| {
        listed["queues"].as_array().unwrap().iter().find(|q| q["name"] == name).unwrap()["messages"].clone()
    };
    assert_eq!(of("q2"), json!({"total": 120, "pending": 0, "processing": 0}));
    let cached = db.call("list_queues", json!({"limit": 9, "live": false}));
    let totals = |page: &Value| {
        page["queues"].as_array().unwrap().iter().map(|q| q["messages"]["total"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (totals(&listed), totals(&cached)),
        (
            vec![json!(6), json!(0), json!(120), json!(120), json!(120)],
            vec![json!(6), json!(0), json!(60), json!(60), json!(60)]
        )
    );
    assert_eq!(of("young"), json!({"total": 6, "pending": 6, "processing": 0}), "not counted yet: the page counts it");
    count(&db, 5, 1000);
    assert_eq!(db.call("list_queues", json!({"limit": 9}))["queues"][0]["messages"]["pending"], 6);
    // Few partitions again: every page counts by itself.
    assert_eq!(count(&db, 100, 1000), 0);
    db.sql("update queen.partitions set last_offset = 29");
    let pending = db.call("queue_depth", json!({"queue": "q2", "limit": 9}))["pending"].clone();
    assert_eq!(pending, 120);
    assert_eq!(db.sql("select count(*) from queen.lag_ranks"), "0");
}

#[test]
fn a_deleted_queue_is_forgotten_by_the_next_pass() {
    let db = Db::new();
    small(&db);
    count(&db, 5, 2);
    assert_eq!(
        db.sql("select (select count(*) from queen.pending_ranks) || ' ' || (select count(*) from queen.lag_ranks)"),
        "6 6"
    );
    let id = db.call("delete_queue", json!({"queue": "q1"}))["id"].clone();
    while db.call("drop_queue", json!({"queue": id, "limit": 100}))["left"] == true {}
    count(&db, 5, 2);
    let left =
        "select (select count(*) from queen.queue_counts) || ' ' || (select count(*) from queen.group_counts) || ' ' ||
        (select count(*) from queen.pending_ranks) || ' ' || (select count(*) from queen.lag_ranks)";
    assert_eq!(db.sql(left), "3 2 4 3");
}

/// Blocks that a call reads or finds.
fn blocks(db: &Db, function: &str, args: &Value) -> i64 {
    let text = db.sql(&format!(
        "explain (analyze, buffers, format json, timing off) select queen.{function}('{DEFAULT_TENANT}', '{args}')"
    ));
    let plan: Value = serde_json::from_str(&text).unwrap();
    let of = |key: &str| plan[0]["Plan"][key].as_i64().unwrap();
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}

/// Rows that sequential scans of a table have read.
fn scanned(db: &Db, table: &str) -> i64 {
    let sql = format!(
        "select pg_stat_force_next_flush(); select seq_tup_read from pg_stat_user_tables where schemaname = 'queen' and relname = '{table}'"
    );
    db.sql(&sql).trim().lines().last().unwrap().parse().unwrap()
}

/// A page reads the partition rows once at most (2,300 blocks), and some index probes per line it shows; never the
/// cursors or the messages of all.
#[test]
fn pages_of_100_000_partitions_cost_what_they_show() {
    let db = Db::new();
    for n in 0..10 {
        let options = json!({"namespace": format!("ns{}", n % 3), "task": format!("t{}", n % 4)});
        db.call("configure", json!({"queue": format!("q{n}"), "options": options}));
    }
    // A million messages in segments of ten; a group in every queue, with something left in most partitions.
    db.sql(
        "insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
         select nextval('queen.partition_numbers') << 12, q.id, 'p' || n, 9, now() - n * interval '1 second'
         from queen.queues q, generate_series(1, 10000) n;
         insert into queen.segments
         select p.id, 0, 10, p.last_created_at, null, 0, 0, 4, '\\x00', '\\x00' from queen.partitions p;
         insert into queen.groups (queue_id, name, mode, start_at, registered_at) select id, 'g', 'all', 'epoch', now() from queen.queues;
         insert into queen.cursors (partition_id, group_id, committed)
         select p.id, g.id, p.id / 4096 % 10 from queen.partitions p join queen.groups g on g.queue_id = p.queue_id;
         analyze",
    );
    assert_eq!(count(&db, 5000, 1000), 10);
    db.sql("analyze");
    let before: Vec<i64> = ["cursors", "segments"].iter().map(|table| scanned(&db, table)).collect();
    let messages = json!({"limit": 200, "offset": 0, "scan": 2000, "partitions": 1000, "bytes": 1_000_000});
    let letters = json!({"limit": 100, "offset": 0, "bytes": 1_000_000});
    let more = [("list_messages", messages), ("list_dead_letters", letters)];
    for (page, args) in pages().into_iter().chain(more).filter(|(_, args)| args["group"] != "nobody") {
        let (most, why) = match page {
            // Each with about a thousand for the catalog, because the connection is new.
            "list_queues" | "list_namespaces" | "list_tasks" => (4_500, "the partitions once"),
            "overview" | "status" | "status_queues" | "list_groups" | "list_dead_letters" => {
                (2_000, "what was counted")
            }
            "list_partitions" => (4_000, "a hundred lines"),
            "list_messages" => (12_000, "the partitions once, and those that were written last"),
            _ => (23_000, "a thousand lines"),
        };
        let blocks = blocks(&db, page, &args);
        assert!(blocks < most, "{page} {args}: {blocks} blocks for {why}");
    }
    let after: Vec<i64> = ["cursors", "segments"].iter().map(|table| scanned(&db, table)).collect();
    assert_eq!(after, before, "no page scans cursors or messages");
}
