//! Minutes and the series made of them. Operations 5.6.1, 5.11, 6.7.

use crate::cluster::Db;
use crate::queue;
use serde_json::{Value, json};

const TENANT: &str = "00000000-0000-0000-0000-000000000001";

fn minute(pid: u32, pushed: u64, queues: Value) -> Value {
    json!({"hostname": "h", "pid": pid, "queues": queues, "broker": {
        "pushRequests": 1, "pushMessages": pushed, "popRequests": 1, "popMessages": 20, "ackRequests": 1,
        "ackMessages": 30, "ackFailed": 2, "deadLettered": 1, "dbErrors": 3, "loopLagUs": 20_000,
        "loopLagSamples": 10, "loopLagMaxUs": 7_000, "cpuUserPct": 12.5, "cpuSysPct": 3.0, "rssMb": 20.5,
        "poolActive": 4, "poolIdle": 6, "poolSize": 160}})
}

fn of(name: &str, pushed: u64, lag_us: u64) -> Value {
    json!({"tenant": TENANT, "queue": name, "pushed": pushed, "popped": 2, "acked": 3, "lagUs": lag_us, "claims": 2,
        "lagMaxUs": lag_us})
}

/// Puts what was added into one minute, so that no test straddles two.
fn at(db: &Db, time: &str) {
    db.sql(&format!(
        "update queen.broker_minutes set minute = '{time}'; update queen.queue_minutes set minute = '{time}'"
    ));
}

#[test]
fn a_minute_adds_up_over_calls_and_brokers() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    queue(&db, "r", 1, 1);
    let page = json!({"limit": 10, "from": "2030-02-01T09:00:00Z", "to": "2030-02-01T10:00:00Z"});
    assert_eq!(db.call("status", page.clone())["throughput"], json!([]));
    assert_eq!(db.call("status", page.clone())["statsAge"], -1, "never");
    db.call("add_history", minute(1, 600, json!([of("q", 600, 8_000), of("gone", 1, 1)])));
    assert_eq!(db.call("status", json!({"limit": 10}))["workers"][0]["messagesProcessed"], 630);
    at(&db, "2030-02-01 09:59:00+00");
    db.sql("insert into queen.broker_minutes select minute, hostname, 2, push_requests, push_messages, pop_requests, pop_messages, ack_requests, ack_messages, ack_failed, dead_lettered, db_errors, loop_lag_us, loop_lag_samples, 9000, cpu_user_pct, cpu_sys_pct, rss_mb, 5, pool_idle, pool_size from queen.broker_minutes");
    let all = db.call("status", page.clone());
    assert_eq!((&all["pointCount"], &all["bucketMinutes"]), (&json!(1), &json!(1)));
    assert!((0..60).contains(&all["statsAge"].as_i64().unwrap()), "{all}");
    let point = json!({"timestamp": "2030-02-01T09:59:00Z", "ingested": 1200, "processed": 60, "popMessages": 40,
        "ingestedPerSecond": 20.0, "processedPerSecond": 1.0, "popPerSecond": 0.67, "avgLagMs": 4, "maxLagMs": 8,
        "avgEventLoopLagMs": 2, "maxEventLoopLagMs": 9, "minFreeSlots": 155, "dbErrors": 6, "ackFailed": 4,
        "dlqCount": 2, "queenCpuUserPct": 12.5, "queenCpuSysPct": 3.0, "queenRssMb": 20.5, "dbPoolActive": 4.5,
        "dbPoolIdle": 6.0, "dbPoolSize": 160.0});
    assert_eq!(all["throughput"], json!([point]));
    let of_r = db.call(
        "status",
        json!({"limit": 10, "queue": "r", "from": "2030-02-01T09:00:00Z", "to": "2030-02-01T10:00:00Z"}),
    );
    let point = &of_r["throughput"][0];
    assert_eq!((&point["ingested"], &point["ackFailed"], &point["dbErrors"]), (&json!(0), &json!(0), &json!(6)));
    let of_q = db.call(
        "status",
        json!({"limit": 10, "task": "mail", "from": "2030-02-01T09:00:00Z", "to": "2030-02-01T10:00:00Z"}),
    );
    assert_eq!((&of_q["throughput"][0]["ingested"], &of_q["throughput"][0]["popMessages"]), (&json!(600), &json!(2)));
}

#[test]
fn the_first_page_shows_the_throughput_of_the_last_five_minutes() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    let page = |tenant: &str| db.call_as(tenant, "overview", json!({"limit": 10}))["throughput"].clone();
    let none = json!({"ingestedPerSecond": 0.0, "processedPerSecond": 0.0});
    assert_eq!(page(TENANT), none);
    db.call("add_history", minute(1, 600, json!([of("q", 600, 1000)])));
    assert_eq!(page(TENANT), json!({"ingestedPerSecond": 2.0, "processedPerSecond": 0.1}));
    let other = "aaaaaaaa-0000-4000-8000-000000000001";
    assert_eq!(page(other), none, "none of its queues");
    db.sql(&format!("update queen.queues set tenant_id = '{other}'"));
    assert_eq!(page(other), json!({"ingestedPerSecond": 2.0, "processedPerSecond": 0.01}));
    at(&db, "2030-02-01 09:59:00+00");
    db.sql(
        "update queen.broker_minutes set minute = now() - interval '6 minutes';
        update queen.queue_minutes set minute = now() - interval '6 minutes'",
    );
    assert_eq!((page(TENANT), page(other)), (none.clone(), none));
}

#[test]
fn a_scrape_has_the_newest_minute_of_each_queue_name() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    queue(&db, "r", 1, 1);
    let scrape = || db.call("cluster_metrics", json!({"limit": 10}))["queueMinutes"].clone();
    assert_eq!(scrape(), json!([]));
    db.call("add_history", minute(1, 7, json!([of("q", 7, 3000), of("r", 1, 0)])));
    db.sql("update queen.queue_minutes set minute = now() - interval '2 minutes'");
    db.call("add_history", minute(1, 9, json!([of("q", 9, 5000)])));
    db.sql("update queen.queue_minutes set minute = now() - interval '30 seconds' where push_messages = 9");
    let (got, of) = (scrape(), |at: usize, key: &str| scrape()[at][key].as_f64().expect("a number"));
    assert_eq!(got.as_array().expect("an array").len(), 2);
    assert_eq!((&got[0]["queue"], &got[1]["queue"]), (&json!("q"), &json!("r")));
    assert_eq!((of(0, "pushed"), of(0, "lagMs"), of(0, "lagMaxMs"), of(1, "pushed")), (9.0, 2.5, 5.0, 1.0));
    assert!((30.0..60.0).contains(&of(0, "age")) && (120.0..150.0).contains(&of(1, "age")), "{got}");
    db.sql("update queen.queue_minutes set minute = minute - interval '6 minutes'");
    assert_eq!(scrape(), json!([]), "a queue without traffic disappears");
}

/// Several calls at one moment, so that they are of one minute.
fn at_once(db: &Db, calls: &[Value]) {
    let calls: Vec<String> =
        calls.iter().map(|args| format!("queen.add_history('{TENANT}', '{args}'::jsonb)")).collect();
    db.sql(&format!("select {}", calls.join(", ")));
}

#[test]
fn a_minute_of_a_queue_has_its_requests_and_polls_parked_on_average() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    queue(&db, "idle", 1, 1);
    let covering = |pid: u32, secs: u64, queues: Value| {
        let mut args = minute(pid, 1, queues);
        args["broker"]["coveredUs"] = (secs * 1_000_000).into();
        args
    };
    let mut told = of("q", 1, 1000);
    for (key, n) in [("pushRequests", 4), ("popEmpty", 5), ("transactions", 6), ("ackFailed", 7), ("conflated", 8)] {
        told[key] = n.into();
    }
    told["parkedUs"] = 45_000_000.into();
    let waits = json!({"tenant": TENANT, "queue": "idle", "pushed": 0, "popped": 0, "acked": 0, "lagUs": 0, "claims": 0,
        "lagMaxUs": 0, "parkedUs": 30_000_000});
    // One broker twice in the minute, another one once, and one that counts nothing of it.
    at_once(
        &db,
        &[
            covering(1, 60, json!([told])),
            covering(1, 60, json!([told])),
            covering(2, 100, json!([told, waits])),
            minute(3, 1, json!([of("q", 1, 1000)])),
        ],
    );
    let scrape = || db.call("cluster_metrics", json!({"limit": 10}))["queueMinutes"].clone();
    let got = scrape();
    let (idle, q) = (&got[0], &got[1]);
    assert_eq!((&idle["queue"], &idle["pushed"], idle["parked"].as_f64()), (&json!("idle"), &json!(0), Some(0.25)));
    let numbers =
        ["pushRequests", "pushed", "popEmpty", "transactions", "acked", "ackFailed", "conflated"].map(|key| &q[key]);
    assert_eq!(json!(numbers), json!([12, 4, 15, 18, 12, 21, 24]));
    assert_eq!(q["parked"].as_f64(), Some(135.0 / 120.0));
    // A minute that nobody says to cover is one.
    db.sql("update queen.broker_minutes set covered_us = 0");
    assert_eq!(scrape()[1]["parked"].as_f64(), Some(135.0 / 60.0));
    db.sql("update queen.queue_minutes set minute = minute - interval '6 minutes'");
    assert_eq!(scrape(), json!([]), "a queue with parked polls only goes as others do");
}

/// Two brokers tell at different seconds: while one of them has told of this minute, half of what is parked is in it.
#[test]
fn parked_polls_are_those_of_a_minute_that_is_over() {
    let db = Db::new();
    ["q", "young"].iter().for_each(|name| queue(&db, name, 1, 1));
    let told = |pid: u32, name: &str, pushed: u64| {
        let mut queue = of(name, pushed, 1000);
        queue["parkedUs"] = 60_000_000.into();
        let mut args = minute(pid, 1, json!([queue]));
        args["broker"]["coveredUs"] = 60_000_000.into();
        args
    };
    at_once(&db, &[told(1, "q", 3), told(2, "q", 4)]);
    db.sql(
        "update queen.broker_minutes set minute = minute - interval '1 minute';
         update queen.queue_minutes set minute = minute - interval '1 minute'",
    );
    // Sent as one, they are of one minute.
    let calls =
        [told(1, "q", 5), told(1, "young", 1)].map(|args| format!("queen.add_history('{TENANT}', '{args}'::jsonb)"));
    let text = db.sql(&format!(
        "select {} is null; select queen.cluster_metrics('{TENANT}', '{{\"limit\": 10}}')",
        calls.join(" is null, ")
    ));
    let got: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let of = |at: usize, key: &str| got["queueMinutes"][at][key].clone();
    assert_eq!((of(0, "queue"), of(0, "pushed"), of(0, "parked").as_f64()), (json!("q"), json!(5), Some(2.0)));
    assert_eq!(of(1, "queue"), "young");
    // Of a queue that was not there before, what there is: of two reports of a minute each, one.
    assert_eq!((of(1, "pushed"), of(1, "parked").as_f64()), (json!(1), Some(0.5)));
}

#[test]
fn a_broker_that_counts_less_is_taken_as_it_is() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    db.call("add_history", minute(1, 7, json!([of("q", 7, 3000)])));
    let got = db.call("cluster_metrics", json!({"limit": 10}))["queueMinutes"][0].clone();
    let numbers = ["pushed", "pushRequests", "popEmpty", "transactions", "ackFailed", "conflated", "parked"];
    assert_eq!(numbers.map(|key| got[key].as_f64().expect(key)), [7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_same_minute_is_one_row_and_buckets_begin_at_midnight() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    for pushed in [1, 2] {
        db.call("add_history", minute(1, pushed, json!([of("q", pushed, 1000)])));
        at(&db, "2030-02-01 01:07:00+00");
        // The second call is of this minute again.
        db.sql("update queen.broker_minutes set minute = date_trunc('minute', now()); update queen.queue_minutes set minute = date_trunc('minute', now())");
    }
    // Two rows where the clock went over a minute between the calls.
    let rows: u32 = db.sql("select count(*) from queen.broker_minutes").parse().unwrap();
    assert!(rows <= 2);
    assert_eq!(db.sql("select sum(push_messages) from queen.broker_minutes"), "3");
    db.sql("delete from queen.broker_minutes where minute < (select max(minute) from queen.broker_minutes)");
    at(&db, "2030-02-01 07:07:00+00");
    let wide = db.call("status", json!({"limit": 10, "from": "2030-01-20T00:00:00Z", "to": "2030-02-03T00:00:00Z"}));
    assert_eq!(
        (&wide["bucketMinutes"], &wide["throughput"][0]["timestamp"]),
        (&json!(360), &json!("2030-02-01T06:00:00Z"))
    );
}

#[test]
fn minutes_are_purged_with_their_age_in_bounded_steps() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    db.sql("insert into queen.queue_minutes (minute, queue_id) select now() - make_interval(days => n), id from queen.queues, generate_series(80, 99) n");
    db.sql("update queen.queue_minutes set pop_messages = 1");
    assert_eq!(purge(&db, 4), [(4, true), (4, true), (2, false)]);
    assert_eq!(db.sql("select count(*) from queen.queue_minutes"), "10");
}

/// Steps until nothing is left: rows that went, and whether there may be more.
fn purge(db: &Db, limit: u32) -> Vec<(i64, bool)> {
    let mut steps: Vec<(i64, bool)> = Vec::new();
    while steps.last().is_none_or(|(_, left)| *left) {
        let step = db.call("purge_metrics", json!({"days": 90, "limit": limit}));
        steps.push((step["rows"].as_i64().unwrap(), step["left"].as_bool().unwrap()));
    }
    steps
}

/// A consumer that waits for a queue in which nothing happens, for years.
#[test]
fn minutes_of_polls_that_found_nothing_are_kept_as_long_as_a_scrape_tells_of_them() {
    let db = Db::new();
    queue(&db, "q", 1, 1);
    // Each of the numbers that say that there was traffic, and both of those that do not.
    let columns = "push_requests push_messages pop_messages ack_messages ack_failed transactions pop_empty parked_us";
    for (n, column) in columns.split(' ').enumerate() {
        db.sql(&format!(
            "insert into queen.queue_minutes (minute, queue_id, {column})
             select now() - {n} * interval '1 second' - make_interval(mins => m), id, 1 from queen.queues, unnest(array[0, 4, 8, 11, 15, 2000]) as m"
        ));
    }
    assert_eq!(purge(&db, 2), [(2, true), (2, true), (2, true), (0, false)]);
    let left = |of: &str| db.sql(&format!("select count(*) from queen.queue_minutes where {of}"));
    assert_eq!(
        (left("pop_empty + parked_us = 0"), left("pop_empty = 1"), left("parked_us = 1")),
        ("36".into(), "3".into(), "3".into())
    );
    // Among all others, they are found without looking at those.
    db.sql("insert into queen.queue_minutes (minute, queue_id, pop_messages) select now() - make_interval(mins => n), gen_random_uuid(), 1 from generate_series(20, 50000) as n");
    db.sql("analyze queen.queue_minutes");
    let read = db.sql(&format!(
        "select queen.purge_metrics('{TENANT}', '{{\"days\": 90, \"limit\": 1000}}');
         select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relname = 'queue_minutes'"
    ));
    let rows = read.lines().last().and_then(|line| line.parse::<u32>().ok()).expect("a number");
    assert!(rows < 100, "{rows} rows");
}
