//! Retention, evidence, clean-up of partitions, the scheduler: data plane 12; operations 6.

use crate::cluster::Db;
use crate::{cursor, number, spaced_queue};
use serde_json::{Value, json};

/// Messages five minutes apart: however slow the machine, ages stay between the limits of these tests.
fn queue(db: &Db, name: &str, partitions: u32, messages: u32) {
    spaced_queue(db, name, partitions, messages, 300);
}

/// Steps until nothing is due; messages taken out of the log and segments deleted.
fn sweep(db: &Db) -> (i64, i64) {
    db.call("mark_partitions", json!({"limit": 1000, "periodMs": 5000}));
    let (mut messages, mut segments) = (0, 0);
    for _ in 0..1000 {
        let done = db.call("retain_step", json!({"limit": 4, "periodMs": 5000}));
        if done["due"] == false {
            return (messages, segments);
        }
        messages += done["messages"].as_i64().unwrap();
        segments += done["segments"].as_i64().unwrap();
        assert!(done["segments"].as_i64().unwrap() <= 4, "steps are bounded");
    }
    panic!("always something due");
}

fn rules(db: &Db, name: &str, options: Value) {
    db.call("configure", json!({"queue": name, "options": options}));
    // The next cycle looks at every partition again.
    db.sql("update queen.retention_queues set rules = ''");
}

fn starts(db: &Db, name: &str) -> String {
    db.sql(&format!(
        "select string_agg(p.log_start::text, ' ' order by p.name) from queen.partitions p
         join queen.queues q on q.id = p.queue_id where q.name = '{name}'"
    ))
}

/// `queue` stores ten messages at 90, 80, ... 0 seconds ago in every partition.
#[test]
fn age_takes_whole_segments_from_the_front_read_or_not() {
    let db = Db::new();
    queue(&db, "q", 2, 10);
    queue(&db, "kept", 1, 10);
    cursor(&db, "q", "p0", "g", 1, Some(("01990a12-4410-7bbb-9bbb-0000000000f1", 5, 60.0)));
    rules(&db, "q", json!({"retentionSeconds": 1350}));
    assert_eq!(sweep(&db), (0, 0), "retentionEnabled is off");
    rules(&db, "q", json!({"retentionEnabled": true}));
    assert_eq!(sweep(&db), (10, 10));
    assert_eq!((starts(&db, "q"), starts(&db, "kept")), ("5 5".into(), "0".into()));
    assert_eq!(db.sql("select min(base_offset) || ' ' || count(*) from queen.segments s join queen.partitions p on p.id = s.partition_id where p.log_start > 0"), "5 10");
    assert_eq!(db.sql("select sum(messages) || min(rule) from queen.retention_audit"), "10retention");
    assert_eq!(sweep(&db), (0, 0));
}

#[test]
fn consumed_messages_wait_for_the_slowest_group() {
    let db = Db::new();
    queue(&db, "q", 3, 10);
    cursor(&db, "q", "p0", "fast", 9, None);
    cursor(&db, "q", "p0", "slow", 2, None);
    cursor(&db, "q", "p1", "fast", 9, None);
    rules(&db, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 1350}));
    sweep(&db);
    assert_eq!(starts(&db, "q"), "3 5 0", "p2 has no cursor: nothing is consumed there");
    queue(&db, "r", 1, 10);
    cursor(&db, "r", "p0", "fast", 9, None);
    db.sql(
        "insert into queen.groups (queue_id, name, mode) select id, 'later', 'all' from queen.queues where name = 'r'",
    );
    rules(&db, "r", json!({"retentionEnabled": true, "completedRetentionSeconds": 1350}));
    sweep(&db);
    assert_eq!(starts(&db, "r"), "0", "a registered group that has not met a partition has consumed nothing of it");
}

#[test]
fn consumed_messages_that_a_seek_asks_for_stay() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "g", 9, None);
    rules(&db, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 1350}));
    let gate = db.start("select pg_advisory_lock(3), pg_sleep(600)");
    let gates = "from pg_locks where locktype = 'advisory' and objid = 3
        and database = (select oid from pg_database where datname = current_database())";
    db.until("the gate", &format!("select exists (select {gates} and granted)"));
    // Under way, not committed: the cursor still says that everything is consumed.
    let seek = db.start(
        "begin;
         select queen.seek_group('00000000-0000-0000-0000-000000000001',
            '{\"queue\":\"q\",\"group\":\"g\",\"offset\":1}');
         select pg_advisory_xact_lock(3);
         commit",
    );
    db.until("the seek", &format!("select exists (select {gates} and not granted)"));
    db.call("mark_partitions", json!({"limit": 10, "periodMs": 5000}));
    let step = db.call("retain_step", json!({"limit": 100, "periodMs": 5000}));
    assert_eq!(step, json!({"due": true, "messages": 0, "segments": 0}), "skipped, not waited for");
    db.sql(&format!("select pg_terminate_backend(pid) {gates} and granted"));
    let _ = gate.wait_with_output();
    assert!(seek.wait_with_output().unwrap().status.success());
    db.sql("update queen.retention_marks set look_at = now()");
    sweep(&db);
    assert_eq!(starts(&db, "q"), "1", "the cursor is read anew, behind the seek");
}

#[test]
fn eviction_needs_no_switch_and_the_furthest_boundary_wins() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    rules(&db, "q", json!({"maxWaitTimeSeconds": 2250}));
    assert_eq!(sweep(&db), (2, 2));
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 750}));
    assert_eq!(sweep(&db), (5, 5));
    assert_eq!(
        db.sql("select string_agg(distinct rule, ' ' order by rule) from queen.retention_audit"),
        "max_wait_time_eviction retention"
    );
    rules(&db, "q", json!({"retentionSeconds": 1, "retentionSinkHold": "s", "retentionSinkHoldMaxSeconds": 3600}));
    assert_eq!(sweep(&db), (0, 0), "held for a sink");
}

#[test]
fn log_start_moves_first_and_what_lies_below_is_deleted_without_the_partition() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    let id = number(&db, "q", "p0");
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 1350}));
    db.call("mark_partitions", json!({"limit": 10, "periodMs": 5000}));
    let step = || db.call("retain_step", json!({"limit": 100, "periodMs": 5000}));
    assert_eq!(step(), json!({"due": true, "messages": 5, "segments": 0}));
    assert_eq!((starts(&db, "q"), db.sql("select count(*) from queen.segments")), ("5".into(), "10".into()));
    // Somebody holds the partition, as a push does.
    let held = db.start(&format!(
        "begin; select 1 from queen.partitions where id = {id} for no key update; select pg_sleep(600)"
    ));
    db.until("the lock", "select exists (select 1 from pg_stat_activity where datname = current_database() and query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid())");
    assert_eq!(step()["segments"], 5);
    db.sql("update queen.retention_marks set look_at = now()");
    assert_eq!(step(), json!({"due": true, "messages": 0, "segments": 0}), "skipped, not waited for");
    db.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like '%pg_sleep%' and pid <> pg_backend_pid()");
    let _ = held.wait_with_output();
}

#[test]
fn keys_outlive_their_segments_until_their_clock_has_passed() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 1350, "dedupWindowSeconds": 3600}));
    sweep(&db);
    assert_eq!(db.sql("select count(*) || ' ' || min(base_offset) from queen.evidence"), "5 0");
    let forget = || db.call("forget_evidence", json!({"limit": 3}));
    assert_eq!(forget(), json!({"due": false, "rows": 0}));
    db.sql("update queen.evidence set created_at = created_at - interval '1 hour'; update queen.evidence_marks set look_at = now()");
    assert_eq!(
        (forget(), forget(), forget()),
        (json!({"due": true, "rows": 3}), json!({"due": true, "rows": 2}), json!({"due": false, "rows": 0}))
    );
    assert_eq!(db.sql("select count(*) from queen.evidence_marks"), "0");
}

/// Rule 14.
#[test]
fn evidence_stays_while_a_spool_may_need_it() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 1350, "dedupWindowSeconds": 3600}));
    sweep(&db);
    let broker = "0190f5c0-0000-7000-8000-000000000001";
    let floor = |args: Value| db.call("set_spool_floor", args);
    let two_hours_ago = db.sql("select (extract(epoch from now() - interval '2 hours') * 1000)::bigint");
    let oldest: i64 = two_hours_ago.parse().unwrap();
    assert_eq!(floor(json!({"broker": broker, "oldestMs": oldest})), json!({"floors": 1}));
    db.sql("update queen.evidence set created_at = created_at - interval '1 hour'");
    let forget = || {
        db.sql("update queen.evidence_marks set look_at = now()");
        db.call("forget_evidence", json!({"limit": 100}))
    };
    assert_eq!(forget(), json!({"due": true, "rows": 0}), "an undrained record of two hours ago has an hour behind it");
    // A broker that is there and has nothing to drain holds up nothing that is older than its last word.
    assert_eq!(floor(json!({"broker": broker})), json!({"floors": 1}));
    assert_eq!(forget(), json!({"due": true, "rows": 5}));
    // One that vanished counts for a day.
    floor(json!({"broker": broker, "oldestMs": oldest}));
    db.sql("update queen.spool_floors set seen_at = seen_at - interval '23 hours'");
    assert_eq!(db.sql("select queen.spool_floor() < now() - interval '1 hour'"), "t");
    db.sql("update queen.spool_floors set seen_at = seen_at - interval '2 hours'");
    assert_eq!(db.sql("select queen.spool_floor() < now() - interval '1 hour'"), "f");
    assert_eq!(floor(json!({"broker": broker, "gone": true})), json!({"floors": 0}));
}

/// A sweep with nothing due reads no partition, however many there are. Source: operations 6.3; issue 3, item 5.
#[test]
fn a_sweep_costs_what_is_due_not_what_exists() {
    let db = Db::new();
    queue(&db, "q", 20_000, 1);
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 3600}));
    let walk = || db.call("mark_partitions", json!({"limit": 30_000, "periodMs": 5000}));
    assert_eq!(walk(), json!({"looked": 20_000, "marked": 20_000}));
    assert_eq!(db.sql("select count(*) from queen.retention_marks"), "20000");
    db.sql("update queen.retention_marks set look_at = now() + interval '1 hour'; analyze queen.retention_marks");
    let reads = |call: &str| -> i64 {
        let text = db.sql(&format!("explain (analyze, buffers, format json) select queen.{call}"));
        let plan: Value = serde_json::from_str(&text).unwrap();
        plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap() + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap()
    };
    let tenant = "00000000-0000-0000-0000-000000000001";
    reads(&format!("retain_step('{tenant}', '{{\"limit\":1000,\"periodMs\":5000}}')"));
    let blocks = reads(&format!("retain_step('{tenant}', '{{\"limit\":1000,\"periodMs\":5000}}')"));
    assert!(blocks < 600, "{blocks} blocks read by a step with nothing due, planning included");
    // A walk is not due for as long as the rule lasts, and one that finds nothing written reads partition rows only.
    assert_eq!(walk()["looked"], 0);
    db.sql("update queen.retention_queues set next_at = now()");
    let segments =
        "select seq_scan + idx_scan from pg_stat_user_tables where schemaname = 'queen' and relname = 'segments'";
    let probes = || db.sql(&format!("select pg_stat_force_next_flush(); {segments}"));
    let before = probes();
    assert_eq!(walk(), json!({"looked": 20_000, "marked": 0}));
    assert_eq!(probes(), before, "no message is looked at");
}

/// A partition that was found empty has no marker; what is pushed there is marked by the next walk, for when its rule takes
/// it, and walks come as often as the rule is long. Issue: such a message outlived its rule by 256 periods.
#[test]
fn a_message_in_a_partition_that_was_empty_goes_on_time() {
    let db = Db::new();
    queue(&db, "q", 3, 10);
    rules(&db, "q", json!({"maxWaitTimeSeconds": 20}));
    db.sql("update queen.segments set created_at = created_at - interval '1 minute'");
    assert_eq!(sweep(&db), (30, 30));
    assert_eq!(db.sql("select count(*) from queen.retention_marks"), "0", "nothing to look at");
    let next = "select extract(epoch from next_at - since) between 19 and 25 from queen.retention_queues";
    assert_eq!(db.sql(next), "t", "the next walk comes when the rule may take what is pushed after this one");

    let id = number(&db, "q", "p1");
    db.sql(&format!(
        "update queen.partitions set last_offset = 10, last_created_at = clock_timestamp() where id = {id};
         insert into queen.segments select id, 10, 1, last_created_at, null, 0, 0, 4, '\\x00', '\\x00' from queen.partitions where id = {id};
         update queen.retention_queues set next_at = now()"
    ));
    assert_eq!(sweep(&db), (0, 0), "too young");
    let due = "select m.partition_id = p.id and m.look_at = p.last_created_at + interval '20 seconds'
        from queen.retention_marks as m join queen.partitions as p on p.id = m.partition_id";
    assert_eq!(db.sql(due), "t", "the one that was written, for when it is due");
    db.sql(
        "update queen.segments set created_at = created_at - interval '21 seconds';
         update queen.retention_marks set look_at = look_at - interval '21 seconds'",
    );
    assert_eq!(sweep(&db), (1, 1));
}

/// A push that is not committed yet when a walk reads its partition is for the next walk, however long it takes.
#[test]
fn a_walk_misses_no_push_that_commits_behind_it() {
    let db = Db::new();
    queue(&db, "q", 1, 0);
    rules(&db, "q", json!({"maxWaitTimeSeconds": 3600}));
    let walk = || {
        db.sql("update queen.retention_queues set next_at = now()");
        db.call("mark_partitions", json!({"limit": 10, "periodMs": 5000}))["marked"].clone()
    };
    assert_eq!(walk(), 0);
    let gate = db.start("select pg_advisory_lock(4), pg_sleep(600)");
    let gates = "from pg_locks where locktype = 'advisory' and objid = 4
        and database = (select oid from pg_database where datname = current_database())";
    db.until("the gate", &format!("select exists (select {gates} and granted)"));
    let push = db.start(
        "begin;
         update queen.partitions set last_offset = 0, last_created_at = clock_timestamp();
         insert into queen.segments select id, 0, 1, last_created_at, null, 0, 0, 4, '\\x00', '\\x00' from queen.partitions;
         select pg_advisory_xact_lock(4);
         commit",
    );
    db.until("the push", &format!("select exists (select {gates} and not granted)"));
    assert_eq!(walk(), 0, "it sees nothing yet");
    db.sql(&format!("select pg_terminate_backend(pid) {gates} and granted"));
    let _ = gate.wait_with_output();
    assert!(push.wait_with_output().unwrap().status.success());
    assert_eq!(walk(), 1);
}

/// A group that never reads holds up the rule of consumed messages, not the others.
#[test]
fn a_rule_that_is_held_back_delays_no_other() {
    let db = Db::new();
    queue(&db, "q", 1, 10);
    cursor(&db, "q", "p0", "g", -1, None);
    rules(&db, "q", json!({"retentionEnabled": true, "retentionSeconds": 2710, "completedRetentionSeconds": 60}));
    // As if it had been looked at many times: the next look would come in 21 minutes.
    db.call("mark_partitions", json!({"limit": 10, "periodMs": 5000}));
    db.sql("update queen.retention_marks set misses = 8, look_at = now()");
    assert_eq!(sweep(&db), (0, 0));
    let due = "select m.look_at = min(s.created_at) + interval '2710 seconds' from queen.segments as s
        cross join queen.retention_marks as m group by m.look_at";
    assert_eq!(db.sql(due), "t", "when its age takes it");
}

#[test]
fn clean_up_spares_what_may_still_be_wanted() {
    let db = Db::new();
    queue(&db, "q", 6, 1);
    cursor(&db, "q", "p2", "g", 0, Some(("01990a12-4410-7bbb-9bbb-0000000000f1", 0, 60.0)));
    cursor(&db, "q", "p3", "g", 0, None);
    db.sql("update queen.partitions set created_at = 'epoch', last_created_at = 'epoch', log_start = 1 where name <> 'p0';
        delete from queen.segments where base_offset < (select log_start from queen.partitions where id = partition_id);
        update queen.partitions set last_created_at = now() where name = 'p4';
        insert into queen.dead_letters (queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
        select queue_id, id, 'g', 0, gen_random_uuid(), 'k', '1', false, 'e', 0 from queen.partitions where name = 'p1'");
    let args = json!({"days": 30, "slice": 4, "limit": 10});
    let mut removed = 0;
    for _ in 0..3 {
        removed += db.call("cleanup_partitions", args.clone())["removed"].as_i64().unwrap();
    }
    assert_eq!(removed, 2);
    assert_eq!(
        db.sql("select string_agg(name, ' ' order by name) from queen.partitions"),
        "p0 p1 p2 p4",
        "stored, dead letter, lease, written lately"
    );
    assert_eq!(
        db.sql("select count(*) || ' ' || min(rule) || ' ' || sum(messages) from queen.retention_audit"),
        "2 __partition_deleted__ 0"
    );
    assert_eq!(db.sql("select count(*) from queen.dead_partitions"), "2");
}

#[test]
fn a_burst_of_dead_partitions_goes_in_one_walk() {
    let db = Db::new();
    queue(&db, "q", 10, 0);
    db.sql("update queen.partitions set created_at = 'epoch', last_created_at = 'epoch'");
    let step = || db.call("cleanup_partitions", json!({"days": 30, "slice": 100, "limit": 4}))["removed"].clone();
    assert_eq!([step(), step(), step()], [json!(4), json!(4), json!(2)]);
}

#[test]
fn a_task_runs_once_per_period_and_the_operator_may_pause_it() {
    let db = Db::new();
    let claim = |holder: &str| {
        db.call("claim_task", json!({"task": "retention", "holder": holder, "periodMs": 60000}))["fence"].as_i64()
    };
    assert_eq!((claim("a"), claim("b")), (Some(1), None));
    db.call("release_task", json!({"task": "retention", "fence": 9}));
    assert_eq!(claim("b"), None, "not its lease");
    db.call("release_task", json!({"task": "retention", "fence": 1}));
    db.sql("update queen.maintenance_leases set next_due_at = now() - interval '10 minutes'");
    assert_eq!(claim("b"), Some(2));
    db.call("release_task", json!({"task": "retention", "fence": 2}));
    assert_eq!(db.sql("select next_due_at <= now() from queen.maintenance_leases"), "t");
    assert_eq!(claim("a"), Some(3), "an overrun is one run, not ten");
    db.call("release_task", json!({"task": "retention", "fence": 3}));
    assert_eq!(claim("a"), None, "not due for a minute");
    let look = db.call("claim_task", json!({"task": "retention", "holder": "b", "periodMs": 60000}));
    assert!((1..=60_000).contains(&look["dueInMs"].as_i64().unwrap()), "and for how long: {look}");
    let sooner = json!({"task": "retention", "holder": "a", "periodMs": 1});
    db.call("claim_task", sooner.clone());
    assert_eq!(db.sql("select next_due_at < now() + interval '1 second' from queen.maintenance_leases"), "t");
    db.sql("update queen.maintenance_leases set enabled = false, next_due_at = 'epoch', expires_at = null");
    assert_eq!(db.call("claim_task", sooner)["fence"], Value::Null);
    db.sql(
        "update queen.maintenance_leases set enabled = true, expires_at = now() - interval '1 second', holder = 'dead'",
    );
    assert!(claim("c").is_some(), "a dead holder stalls it for its lease only");
}
