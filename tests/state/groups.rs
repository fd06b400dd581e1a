//! Consumer groups: data plane 11; rules 3, 19, 25.

use crate::cluster::Db;
use crate::{cursor, queue};
use serde_json::{Value, json};

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";
const TENANT: &str = "00000000-0000-0000-0000-000000000001";

/// `committed|lease|batch_end|retries|attempts` of every cursor of a group, by partition name.
fn cursors(db: &Db, group: &str) -> String {
    db.sql(&format!(
        "select p.name, c.committed, c.lease_id, c.batch_end, c.retry_count, c.attempt_count
         from queen.cursors c join queen.partitions p on p.id = c.partition_id
         join queen.groups g on g.id = c.group_id where g.name = '{group}' order by p.name"
    ))
}

#[test]
fn a_listing_counts_lag_leases_and_what_a_registered_group_has_not_met() {
    let db = Db::new();
    queue(&db, "q", 3, 10);
    cursor(&db, "q", "p0", "g", 3, Some((LEASE, 5, 60.0)));
    cursor(&db, "q", "p1", "g", 9, None);
    let args = json!({"limit": 10, "probes": 10});
    let listed = db.call("list_groups", args.clone());
    let got = &listed[0];
    assert_eq!(
        (&got["name"], &got["topics"], &got["members"], &got["partitionCursors"]),
        (&json!("g"), &json!(["q"]), &json!(1), &json!(2))
    );
    assert_eq!((&got["totalLag"], &got["partitionsWithLag"], &got["state"]), (&json!(6), &json!(1), &json!("Stable")));
    assert_eq!((&got["subscriptionMode"], &got["conflation"]), (&Value::Null, &json!(false)));
    // The oldest waiting one is number 4 of 0..9, ten seconds apart.
    assert!((50..300).contains(&got["maxTimeLag"].as_i64().unwrap()), "{got}");

    db.sql("update queen.groups set mode = 'all', start_at = 'epoch', registered_at = now()");
    let got = &db.call("list_groups", args.clone())[0];
    assert_eq!((&got["partitionCursors"], &got["totalLag"]), (&json!(2), &json!(16)), "p2 is still to come");
    assert_eq!(got["subscriptionTimestamp"], "1970-01-01T00:00:00.000Z");

    db.sql("update queen.cursors set retired = 7");
    let detail = db.call("get_group", json!({"group": "g", "limit": 10}));
    let p0 = &detail["q"]["partitions"][0];
    assert_eq!(
        (&p0["partition"], &p0["workerId"], &p0["totalConsumed"], &p0["offsetLag"]),
        (&json!("p0"), &json!(LEASE), &json!(7), &json!(6))
    );
    assert_eq!(db.call("get_group", json!({"group": "nobody", "limit": 10})), json!({}));
    let all = detail["q"]["partitions"].as_array().unwrap().len();
    for (limit, truncated) in [(all - 1, json!(true)), (all, Value::Null)] {
        let page = db.call("get_group", json!({"group": "g", "limit": limit}));
        assert_eq!(page["q"]["partitions"].as_array().unwrap().len(), limit);
        assert_eq!(page["q"]["partitionsTruncated"], truncated, "{limit} of {all}");
    }

    let late = db.call("lagging_groups", json!({"seconds": 55, "limit": 10, "probes": 10}));
    let names: Vec<&str> = late.as_array().unwrap().iter().map(|l| l["partition_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["p2"], "longest first, strictly above the threshold");
    assert_eq!(
        db.call("lagging_groups", json!({"seconds": 40, "limit": 10, "probes": 10})).as_array().unwrap().len(),
        2
    );
    let other = "00000000-0000-0000-0000-000000000002";
    assert_eq!(db.call_as(other, "list_groups", args), json!([]), "another tenant's");
}

#[test]
fn a_seek_ends_leases_resets_counters_and_makes_missing_cursors() {
    let db = Db::new();
    queue(&db, "q", 3, 10);
    cursor(&db, "q", "p0", "g", 3, Some((LEASE, 5, 60.0)));
    cursor(&db, "q", "p0", "other", 3, Some((LEASE, 5, 60.0)));
    db.sql("update queen.cursors set retry_count = 2, attempt_start = 4, attempt_count = 1");
    let before = db.sql("select max(version) from queen.cursors");
    let done = db.call("seek_group", json!({"queue": "q", "group": "g", "partition": null, "toEnd": true}));
    assert_eq!(done, json!({"found": true, "moved": 3}));
    assert_eq!(cursors(&db, "g"), "p0|9|||0|0\np1|9|||0|0\np2|9|||0|0");
    assert_eq!(cursors(&db, "other"), format!("p0|3|{LEASE}|5|2|1"), "other groups keep theirs");
    let newer = format!(
        "select bool_and(c.version > {before}) from queen.cursors c join queen.groups g on g.id = c.group_id where g.name = 'g'"
    );
    assert_eq!(db.sql(&newer), "t", "no memory of the old row matches");
}

#[test]
fn a_seek_stops_where_it_is_told() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    let id = "(select id from queen.partitions)";
    db.sql(&format!(
        "delete from queen.segments where base_offset < 3; update queen.partitions set log_start = 3 where id = {id}"
    ));
    let to = |args: Value| {
        let mut all = json!({"queue": "q", "group": "__QUEUE_MODE__", "partition": "p0"});
        all.as_object_mut().unwrap().extend(args.as_object().unwrap().clone());
        assert_eq!(db.call("seek_group", all)["moved"], 1);
        db.sql("select committed from queen.cursors")
    };
    let at = db.sql("select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') from queen.segments where base_offset = 5");
    assert_eq!(to(json!({"timestamp": at})), "4");
    assert_eq!(to(json!({"timestamp": "-infinity"})), "2", "older than all: logStart - 1");
    assert_eq!(to(json!({"timestamp": "9999-01-01T00:00:00.000000Z"})), "9", "newer than all: lastOffset");
    assert_eq!(to(json!({"offset": 7})), "6");
    assert_eq!(
        (to(json!({"offset": 0})), to(json!({"offset": 99}))),
        ("2".into(), "9".into()),
        "brought into what is stored"
    );
    let none = json!({"found": false, "moved": 0});
    assert_eq!(db.call("seek_group", json!({"queue": "q", "group": "g", "partition": "no", "toEnd": true})), none);
    assert_eq!(db.call("seek_group", json!({"queue": "no", "group": "g", "toEnd": true})), none);
    assert_eq!(db.sql("select count(*) from queen.groups where name = 'g'"), "0", "nothing is written");
}

#[test]
fn a_delete_takes_cursors_and_if_asked_the_registration() {
    let db = Db::new();
    queue(&db, "q", 2, 5);
    queue(&db, "r", 1, 5);
    for (name, partition) in [("q", "p0"), ("q", "p1"), ("r", "p0")] {
        cursor(&db, name, partition, "g", 1, Some((LEASE, 3, 60.0)));
        cursor(&db, name, partition, "other", 1, None);
    }
    let kept = db.call("delete_group", json!({"group": "g", "queue": "q", "metadata": false}));
    assert_eq!(kept, json!({"deleted": 2, "queues": ["q"]}));
    assert_eq!(db.sql("select count(*) from queen.groups where name = 'g'"), "2");
    let all = db.call("delete_group", json!({"group": "g", "queue": null, "metadata": true}));
    assert_eq!(all, json!({"deleted": 1, "queues": ["q", "r"]}));
    assert_eq!(db.sql("select count(*) from queen.groups where name = 'g'"), "0");
    assert_eq!(db.sql("select count(*) from queen.cursors"), "3", "those of the other group");
    assert_eq!(
        db.call("delete_group", json!({"group": "g", "queue": null, "metadata": true})),
        json!({"deleted": 0, "queues": []})
    );
}

#[test]
fn a_subscription_is_rewritten_on_every_queue() {
    let db = Db::new();
    queue(&db, "q", 1, 5);
    queue(&db, "r", 1, 5);
    cursor(&db, "q", "p0", "g", 1, None);
    cursor(&db, "r", "p0", "g", 1, None);
    let args = json!({"group": "g", "timestamp": "2026-09-01T00:00:00.000000Z"});
    assert_eq!(db.call("update_subscription", args.clone()), json!({"rowsUpdated": 0}), "not registered");
    db.sql("update queen.groups set mode = 'new', registered_at = now()");
    assert_eq!(db.call("update_subscription", args), json!({"rowsUpdated": 2}));
    assert_eq!(db.sql("select distinct start_at at time zone 'UTC' from queen.groups"), "2026-09-01 00:00:00");
    assert_eq!(db.sql("select distinct committed from queen.cursors"), "1");
}

/// Seeks, deletes and what waits in the same order do not deadlock. Source: rule 3.
#[test]
fn seeks_and_deletes_do_not_deadlock() {
    let db = Db::new();
    queue(&db, "q", 30, 3);
    (0..30).for_each(|i| cursor(&db, "q", &format!("p{i}"), "g", -1, None));
    let times = |call: &str| format!("do $$ begin for i in 1..25 loop {call} commit; end loop; end $$");
    let seek =
        times(&format!("perform queen.seek_group('{TENANT}', '{{\"queue\":\"q\",\"group\":\"g\",\"toEnd\":true}}');"));
    let delete = times(&format!("perform queen.delete_group('{TENANT}', '{{\"group\":\"g\",\"metadata\":true}}');"));
    let open = times(&format!("perform queen.open_group('{TENANT}', 'q', 'g', 1::smallint, 'all', null);"));
    let seed = times(
        "perform queen.seed_cursors((select id from queen.groups where name = 'g'), 'all', null,
        array(select id from queen.partitions));",
    );
    let drop = times(&format!("perform queen.delete_queue('{TENANT}', '{{\"queue\":\"none\"}}');"));
    let running: Vec<_> = [&seek, &seek, &delete, &open, &seed, &drop].map(|text| db.start(text)).into_iter().collect();
    for child in running {
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!said.contains("deadlock"), "{said}");
        assert!(out.status.success() || said.contains("the group was deleted meanwhile"), "{said}");
    }
}
