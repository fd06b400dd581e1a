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

/// Queues that a walk does in pages: every kind of group and of partition, and of each too many for a page. No two partitions were
/// written at one time, and numbers of the queues lie between each other's.
fn large(db: &Db) {
    for name in ["q0", "q1", "empty"] {
        queue(db, name, 0, 0);
    }
    db.sql(&format!(
        "insert into queen.partitions (id, queue_id, name, last_offset, log_start, last_created_at)
         select n << 12 | n, q.id, 'p' || n, n * 7919 % 31 - 1, case when n % 11 = 0 then n * 7919 % 31 else n % 3 end,
             now() - n * 7919 % 1009 * interval '1 second'
         from generate_series(1, 900) as n
         join queen.queues as q on q.name = case when n % 3 = 0 then 'q0' else 'q1' end;
         update queen.partitions set log_start = least(log_start, last_offset + 1);
         insert into queen.segments
         select p.id, m, 1, p.last_created_at - (p.last_offset - m) * interval '400 seconds', null, 0, 0, 4, '\\x00', '\\x00'
         from queen.partitions as p, generate_series(p.log_start, p.last_offset) as m;
         insert into queen.groups (queue_id, name, mode, start_at, registered_at, high_water, seed_at)
         select q.id, g.name, g.mode, now() - interval '1 hour', now(), 600, g.seed_at
         from queen.queues as q
         cross join (values
             ('__QUEUE_MODE__', null, null), ('all', 'all', null), ('new', 'new', now() - interval '500 seconds'),
             ('at', 'timestamp', now() - interval '700 seconds'), ('pinned', null, null), ('without', 'all', now())
         ) as g (name, mode, seed_at);
         insert into queen.cursors (partition_id, group_id, committed, lease_id, batch_end, lease_expires_at, leased_at)
         select p.id, g.id, least(p.last_offset, n - 1), l.id, case when l.id is not null then p.last_offset end, l.expires, l.expires
         from queen.partitions as p
         join queen.groups as g on g.queue_id = p.queue_id
         cross join lateral (select (p.id >> 12) * 31 % 29 as n) as n
         left join lateral (
             select '{LEASE}'::uuid as id, now() + (p.id >> 12) % 2 * interval '1 hour' as expires
             where (p.id >> 12) % 7 = 0 and n - 1 < p.last_offset
         ) as l on true
         where g.name <> 'without' and (p.id >> 12) % (array[2, 4, 5, 7])[1 + g.id % 4] = 0"
    ));
}

/// What pages read of the counting, and whether anything else was kept.
fn counted(db: &Db) -> (Value, String) {
    let text = db.sql(
        "select json_build_object(
            'queues', (select json_agg(to_jsonb(k) - 'counted_at' order by k.queue_id) from queen.queue_counts as k),
            'groups', (select json_agg(to_jsonb(k) - 'counted_at' order by k.group_id) from queen.group_counts as k),
            'pending', (select json_agg(n order by n.queue_id, n.partition_id) from queen.pending_ranks as n),
            'lag', (select json_agg(n order by n.group_id, n.partition_id) from queen.lag_ranks as n))",
    );
    (serde_json::from_str(&text).unwrap(), kept(db))
}

/// Rows of walks that are under way.
fn kept(db: &Db) -> String {
    db.sql(
        "select (select count(*) from queen.count_walks) || ' ' || (select count(*) from queen.count_walk_groups) || ' ' ||
            (select count(*) from queen.count_walk_ranks)",
    )
}

/// One step of a pass in pages; the queue it was at, where it is left.
fn step(db: &Db, walk: &Value, page: u32, ranks: u32) -> Value {
    let mut reply = db.call("count_queue", json!({"exact": 5, "ranks": ranks, "page": page, "walk": walk}));
    if reply["left"] == true { reply["queue"].take() } else { Value::Null }
}

/// One pass in pages; its steps.
fn count_by_pages(db: &Db, page: u32, ranks: u32) -> u32 {
    let (mut after, mut walk) = (Value::Null, Value::Null);
    for steps in 0.. {
        let args = json!({"after": after, "walk": walk, "exact": 5, "ranks": ranks, "page": page});
        let mut reply = db.call("count_queue", args);
        let queue = reply["queue"].take();
        if queue.is_null() {
            return steps;
        }
        (after, walk) = if reply["left"] == true { (after, queue) } else { (queue, Value::Null) };
    }
    unreachable!()
}

#[test]
fn counts_by_pages_are_those_of_one_call() {
    let db = Db::new();
    large(&db);
    let (by_partition, by_group) = (
        "select q.id, sum(c.total), sum(c.pending), sum(c.processing), sum(c.leases), sum(c.leased)
         from queen.queues as q, queen.partition_counts(array[q.id]) as c group by q.id
         except select k.queue_id, k.total, k.pending, k.processing, k.leases, k.leased from queen.queue_counts as k",
        "select c.group_id, count(*) filter (where c.met), sum(c.lag), sum(c.processing), count(c.lease_id)
         from queen.group_cursors(array(select g.id from queen.groups as g)) as c group by c.group_id
         except select k.group_id, k.cursors, k.lag, k.processing, k.members from queen.group_counts as k",
    );
    for ranks in [1, 20, 1000] {
        assert_eq!(count(&db, 5, ranks), 3);
        let whole = counted(&db);
        assert_eq!(whole.0["groups"].as_array().map(Vec::len), Some(18));
        let queues = whole.0["queues"].as_array().unwrap();
        // The functions that count all at once for the pages of small databases say the same.
        assert_eq!(db.sql(by_partition), "");
        assert_eq!(db.sql(by_group), "");
        assert!(queues.iter().any(|q| q["leased"] != 0 && q["recent_at"].as_array().unwrap().len() == 3), "{queues:?}");
        // By one and six groups.
        for (page, steps) in [(7 * 100, 3 + 6 + 1), (7 * 299, 2 + 3 + 1), (7 * 600, 3), (50_000, 3)] {
            db.sql("truncate queen.queue_counts, queen.group_counts, queen.pending_ranks, queen.lag_ranks");
            assert_eq!(count_by_pages(&db, page, ranks), steps, "pages of {page}");
            assert_eq!(counted(&db), whole, "pages of {page}, {ranks} ranks");
        }
    }
    assert_eq!(kept(&db), "0 0 0");
}

/// A page is bounded by cursors as well: those of all groups.
#[test]
fn pages_of_many_groups_have_fewer_partitions() {
    let db = Db::new();
    large(&db);
    let q1 = db.sql("select id from queen.queues where name = 'q1'");
    let reply = db.call("count_queue", json!({"exact": 5, "ranks": 1, "page": 5000, "after": null}));
    assert_ne!(reply["left"], true);
    db.sql(&format!(
        "insert into queen.partitions (id, queue_id, name) select n << 12, '{q1}', 'r' || n from generate_series(1000, 5000) as n"
    ));
    let partitions = |page| {
        db.sql("truncate queen.count_walks, queen.count_walk_groups, queen.count_walk_ranks");
        db.sql("delete from queen.queues where name <> 'q1'");
        step(&db, &Value::Null, page, 10);
        db.sql("select partitions from queen.count_walks")
    };
    // By one and six groups.
    assert_eq!(partitions(7_000), "1000");
    db.sql(&format!(
        "insert into queen.groups (queue_id, name) select '{q1}', 'g' || n from generate_series(1, 2000) as n"
    ));
    assert_eq!((partitions(5_000), partitions(100)), ("5".into(), "1".into()), "and never none");
}

/// Its partitions are gone, and so is what it had to do.
#[test]
fn a_group_of_which_nothing_is_left_has_nothing_left() {
    let db = Db::new();
    small(&db);
    count(&db, 5, 1000);
    let of = |queue: &str| {
        let groups = db.call("list_groups", json!({"limit": 100, "probes": 100}));
        let group = groups.as_array().unwrap().iter().find(|group| group["name"] == "g" && group["queueName"] == queue);
        group.map(|group| (group["partitionCursors"].clone(), group["totalLag"].clone(), group["members"].clone()))
    };
    let depth = || db.call("queue_depth", json!({"queue": "q1", "group": "g", "limit": 9}))["pending"].clone();
    assert_eq!(of("q1").map(|(cursors, _, members)| (cursors, members)), Some((json!(6), json!(1))));
    assert_ne!(depth(), 0);
    db.sql(
        "update queen.groups set mode = 'all', registered_at = now() where name = 'g';
         delete from queen.cursors as c using queen.partitions as p, queen.queues as q
             where p.id = c.partition_id and q.id = p.queue_id and q.name = 'q1';
         delete from queen.segments as s using queen.partitions as p, queen.queues as q
             where p.id = s.partition_id and q.id = p.queue_id and q.name = 'q1';
         delete from queen.partitions as p using queen.queues as q where q.id = p.queue_id and q.name = 'q1'",
    );
    for by_pages in [false, true] {
        match by_pages {
            false => count(&db, 5, 1000),
            true => count_by_pages(&db, 700, 1000),
        };
        assert_eq!((of("q1"), depth()), (Some((json!(0), json!(0), json!(0))), json!(0)));
        db.sql("update queen.group_counts set cursors = 3, lag = 5, members = 1");
    }
}

#[test]
fn what_pages_show_changes_with_the_last_page_of_a_queue() {
    let db = Db::new();
    large(&db);
    db.sql("delete from queen.queues where name <> 'q1'");
    count_by_pages(&db, 700, 20);
    let before = counted(&db);
    db.sql("update queen.partitions set last_offset = last_offset + 5");
    let mut walk = step(&db, &Value::Null, 700, 20);
    while !walk.is_null() {
        assert_eq!(counted(&db).0, before.0);
        assert_eq!(db.sql("select count(*) from queen.count_walk_ranks as r where group_id = 0"), "20");
        // Another broker, or this one after a restart, knows of no walk and goes on with it.
        walk = step(&db, &Value::Null, 700, 20);
    }
    let after = counted(&db);
    count(&db, 5, 20);
    assert_ne!(after.0, before.0);
    assert_eq!(after, counted(&db));
}

#[test]
fn a_queue_or_a_group_may_go_while_it_is_counted_and_one_may_come() {
    let db = Db::new();
    large(&db);
    db.sql("delete from queen.queues where name <> 'q1'");
    let walk = step(&db, &Value::Null, 700, 20);
    // A group goes, one comes, and so do partitions before and behind the page.
    db.sql(
        "delete from queen.cursors where group_id = (select min(group_id) from queen.count_walk_groups);
         delete from queen.groups where id = (select min(group_id) from queen.count_walk_groups);
         insert into queen.groups (queue_id, name, mode, registered_at) select id, 'late', 'all', now() from queen.queues;
         delete from queen.partitions where (id >> 12) % 10 = 1;
         insert into queen.partitions (id, queue_id, name) select 9999 << 12, id, 'late' from queen.queues",
    );
    let mut left = walk.clone();
    while !left.is_null() {
        left = step(&db, &left, 700, 20);
    }
    assert_eq!(kept(&db), "0 0 0");
    let groups = "select string_agg(g.name, ' ' order by g.id) from queen.group_counts as k join queen.groups as g on g.id = k.group_id";
    assert_eq!(db.sql(groups), "all new at pinned without", "the late one has not been met on all pages");
    assert_eq!(db.sql("select count(*) from queen.group_counts"), "5");
    count_by_pages(&db, 700, 20);
    assert_eq!(db.sql(groups), "all new at pinned without late");

    // The queue goes between two pages.
    let walk = step(&db, &Value::Null, 700, 20);
    db.sql("update queen.queues set tenant_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff'");
    while db.call("drop_queue", json!({"limit": 100}))["left"] == true {}
    assert_ne!(kept(&db), "0 0 0");
    let reply = db.call("count_queue", json!({"exact": 5, "ranks": 20, "page": 700, "walk": walk}));
    assert_eq!((&reply["queue"], &reply["left"]), (&walk, &Value::Null));
    assert_eq!(kept(&db), "0 0 0");
}

#[test]
fn an_abandoned_walk_is_forgotten() {
    let db = Db::new();
    large(&db);
    db.sql("delete from queen.queues where name <> 'q1'");
    let age = "update queen.count_walks set walked_at = now() - interval '11 minutes'";
    // By the next pass, which begins it anew.
    step(&db, &Value::Null, 700, 20);
    db.sql(age);
    let walk = step(&db, &Value::Null, 700, 20);
    assert_eq!(db.sql("select partitions from queen.count_walks"), "100");
    // One that is not so old goes on, also where the task runs seldom.
    db.sql(age);
    db.call("count_queue", json!({"exact": 5, "ranks": 20, "page": 700, "walk": walk, "keepMs": 900_000}));
    assert_eq!(db.sql("select partitions from queen.count_walks"), "200");
    // By the broker that meets it with its next page, and the next pass has the queue.
    db.sql(age);
    assert_eq!(step(&db, &walk, 700, 20), Value::Null);
    assert_eq!(kept(&db), "0 0 0");
    // By one whose page failed.
    step(&db, &Value::Null, 700, 20);
    let reply = db.call("count_queue", json!({"exact": 5, "ranks": 20, "page": 700, "walk": walk, "skip": true}));
    assert_eq!((&reply["queue"], kept(&db).as_str()), (&walk, "0 0 0"));
    // By a pass that finds few partitions.
    step(&db, &Value::Null, 700, 20);
    assert_eq!(count(&db, 5000, 20), 0);
    assert_eq!(kept(&db), "0 0 0");
    // Another broker ended it: it is not begun once more.
    assert_eq!(step(&db, &walk, 700, 20), Value::Null);
    assert_eq!(counted(&db), (json!({"queues": null, "groups": null, "pending": null, "lag": null}), "0 0 0".into()));
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
