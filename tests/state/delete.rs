//! `queen.delete_queue` and `queen.purge_dead`: data plane 8.7; rule 3.

use crate::cluster::Db;
use crate::{cursor, number, queue};
use serde_json::{Value, json};

/// Deletes a queue as its route does; steps that were needed.
fn delete(db: &Db, queue: &str, limit: u32) -> u32 {
    let mut said = db.call("delete_queue", json!({ "queue": queue }));
    let id = said.as_object_mut().unwrap().remove("id").expect("it existed");
    assert_eq!(said, json!({"deleted": true, "queue": queue, "existed": true}));
    for step in 1.. {
        if db.call("drop_queue", json!({"queue": id, "limit": limit})) == json!({"left": false}) {
            return step;
        }
    }
    unreachable!()
}

#[test]
fn a_deleted_queue_leaves_only_dead_ids() {
    let db = Db::new();
    queue(&db, "q", 3, 5);
    queue(&db, "other", 1, 5);
    cursor(&db, "q", "p0", "g", 1, None);
    delete(&db, "q", 500);
    assert_eq!(
        db.call("delete_queue", json!({"queue": "q"})),
        json!({"deleted": false, "queue": "q", "existed": false, "message": "Queue not found, nothing was deleted"})
    );
    let left = "select (select count(*) from queen.partitions) || ' ' || (select count(*) from queen.cursors) || ' ' ||
        (select count(*) from queen.groups) || ' ' || (select count(*) from queen.dead_partitions)";
    assert_eq!(db.sql(left), "1 0 0 3");
    assert_eq!(db.call("get_queue", json!({"queue": "q", "limit": 1})), json!({"error": "Queue not found"}));
}

#[test]
fn purging_goes_in_bounded_steps_until_nothing_is_left() {
    let db = Db::new();
    queue(&db, "q", 3, 5);
    queue(&db, "other", 1, 5);
    db.sql("insert into queen.evidence select partition_id, base_offset, count, created_at, null, keys from queen.segments");
    delete(&db, "q", 500);
    let mut steps = Vec::new();
    loop {
        let done: u32 = db.sql("select queen.purge_dead(7)").parse().unwrap();
        steps.push(done);
        if done < 7 {
            break;
        }
    }
    // 15 segments, 15 rows of evidence, 3 ids.
    assert_eq!(steps, [7, 7, 7, 7, 5]);
    assert_eq!(db.sql("select count(*) from queen.segments"), "5");
    assert_eq!(db.sql("select count(*) from queen.evidence"), "5");
    assert_eq!(db.sql("select count(*) from queen.dead_partitions"), "0");
}

#[test]
fn a_delete_waits_for_a_push_in_flight_and_its_segment_dies_too() {
    let db = Db::new();
    queue(&db, "q", 2, 5);
    let id = number(&db, "q", "p1");
    // A push that holds its partition row, as an append does, until told to go on by an advisory lock.
    let gate = db.start("select pg_advisory_lock(7), pg_sleep(600)");
    // Advisory locks of other databases have the same number.
    let gates = "from pg_locks where locktype = 'advisory' and objid = 7
        and database = (select oid from pg_database where datname = current_database())";
    db.until("the gate", &format!("select exists (select {gates} and granted)"));
    let push = db.start(&format!(
        "begin; update queen.partitions set last_offset = 5 where id = {id};
         insert into queen.segments select {id}, 5, 1, now(), null, 0, 0, 4, '\\x00', '\\x00';
         select pg_advisory_xact_lock(7); commit"
    ));
    db.until("the push", &format!("select exists (select {gates} and not granted)"));
    let tenant = "00000000-0000-0000-0000-000000000001";
    let dropped = db.call("delete_queue", json!({"queue": "q"}))["id"].clone();
    let delete =
        db.start(&format!("select queen.drop_queue('{tenant}', '{}')", json!({"queue": dropped, "limit": 100})));
    db.until(
        "the wait",
        "select exists (select 1 from pg_stat_activity where datname = current_database() and query like '%drop_queue%'
        and wait_event_type = 'Lock' and pid <> pg_backend_pid())",
    );
    db.sql(&format!("select pg_terminate_backend(pid) {gates} and granted"));
    for (name, child) in [("push", push), ("delete", delete)] {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    gate.wait_with_output().unwrap();
    assert_eq!(db.sql("select queen.purge_dead(100)"), "13");
    assert_eq!(db.sql("select count(*) from queen.segments"), "0");
}

/// What a push waits for is one step: its name is free after the first, and each of the others holds few partitions.
#[test]
fn a_large_queue_is_deleted_in_bounded_steps() {
    let db = Db::new();
    queue(&db, "q", 25, 2);
    (0..25).for_each(|i| cursor(&db, "q", &format!("p{i}"), "g", -1, None));
    db.sql("insert into queen.dead_letters (queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
        select queue_id, id, 'g', 0, gen_random_uuid(), 'k', '', false, '', 0 from queen.partitions");
    let id = db.call("delete_queue", json!({"queue": "q"}))["id"].clone();
    let counts = || {
        db.sql("select (select count(*) from queen.partitions) || ' ' || (select count(*) from queen.cursors) || ' ' || (select count(*) from queen.dead_letters)")
    };
    assert_eq!(counts(), "25 25 25");
    for page in ["list_queues", "status_queues"] {
        assert_eq!(db.call(page, json!({"limit": 9, "offset": 0}))["queues"], json!([]), "it is gone for everybody");
    }
    assert_eq!(db.call("overview", json!({"limit": 9}))["queues"], 0);
    assert_eq!(db.call("status", json!({"limit": 9}))["queues"], json!([]));
    db.sql(&format!(
        "select * from queen.provision(array['{}'::uuid], array['q'], array['p0'], array[1])",
        crate::cluster::DEFAULT_TENANT
    ));
    let mut seen = Vec::new();
    let mut after = Value::Null;
    let mut step = || {
        let mut said = db.call("drop_queue", json!({"queue": id, "limit": 10, "after": after}));
        after = said["after"].take();
        said["left"] == true
    };
    while step() {
        seen.push(counts());
    }
    assert_eq!(seen, ["16 15 25", "6 5 25", "1 0 25", "1 0 15", "1 0 5"], "ten rows a step; the new queue stays");
    assert_eq!(counts(), "1 0 0");
    assert_eq!(db.sql("select count(*) || ' ' || min(name) from queen.queues"), "1 q");
    assert_eq!(db.call("drop_queue", json!({"queue": id, "limit": 10})), json!({"left": false}), "again: harmless");
}

/// Whoever deletes may die: the clean-up finds what is left.
#[test]
fn an_interrupted_deletion_is_finished_by_the_clean_up() {
    let db = Db::new();
    queue(&db, "q", 25, 2);
    assert_ne!(db.call("delete_queue", json!({"queue": "q"}))["id"], Value::Null);
    let mut steps = 0;
    while db.sql("select queen.purge_dead(10)") == "10" {
        steps += 1;
        assert!(steps < 100, "it ends");
    }
    let left = "select (select count(*) from queen.queues) || ' ' || (select count(*) from queen.partitions) || ' ' ||
        (select count(*) from queen.segments) || ' ' || (select count(*) from queen.dead_partitions)";
    assert_eq!(db.sql(left), "0 0 0 0");
}

/// Waiting lockers in one order do not deadlock; appends, which skip, never wait. Source: rule 3.
#[test]
fn deletes_and_ordered_lockers_do_not_deadlock() {
    let db = Db::new();
    queue(&db, "q", 40, 1);
    (0..40).for_each(|i| cursor(&db, "q", &format!("p{i}"), "g", -1, None));
    let locker = "do $$ begin for i in 1..60 loop
        perform 1 from queen.partitions order by id for no key update;
        perform 1 from queen.cursors order by partition_id, group_id for no key update; end loop; end $$";
    let lockers: Vec<_> = (0..3).map(|_| db.start(locker)).collect();
    db.call("delete_queue", json!({"queue": "q"}));
    let steps = "do $$ declare v json; begin loop
        v := queen.drop_queue(null, '{\"limit\":3}'); commit; exit when not (v ->> 'left')::boolean; end loop; end $$";
    let deletes: Vec<_> = (0..3).map(|_| db.start(steps)).collect();
    for child in lockers.into_iter().chain(deletes) {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(db.sql("select count(*) from queen.partitions"), "0");
}
