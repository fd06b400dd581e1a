//! The SQL functions of the management calls, against a real PostgreSQL and without the broker.

mod changed;
mod cluster;

mod configure;
mod counters;
mod delete;
mod groups;
mod history;
mod lease;
mod listings;
mod messages;
mod redrive;
mod retention;
mod scale;

use cluster::Db;

/// A queue with partitions `p0`, `p1`, ..., each with `messages` stored ten seconds apart, ending now. Partition
/// numbers are 1, 2, ... shifted as in production.
fn queue(db: &Db, name: &str, partitions: u32, messages: u32) {
    spaced_queue(db, name, partitions, messages, 10);
}

/// The same, with so many seconds between messages.
fn spaced_queue(db: &Db, name: &str, partitions: u32, messages: u32, seconds: u32) {
    db.call("configure", serde_json::json!({"queue": name, "options": {"namespace": "shop", "task": "mail"}}));
    db.sql(&format!(
        "insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
         select nextval('queen.partition_numbers') << 12, q.id, 'p' || n, {messages} - 1, now()
         from queen.queues q, generate_series(0, {partitions} - 1) n where q.name = '{name}' order by n;
         insert into queen.segments
         select p.id, m, 1, now() - make_interval(secs => ({messages} - 1 - m) * {seconds}), null, 0, 0, 4, '\\x{:032}', '\\x00'
         from queen.partitions p join queen.queues q on q.id = p.queue_id, generate_series(0, {messages} - 1) m
         where q.name = '{name}'",
        0
    ));
}

/// A cursor of `group` on one partition; with a lease of `lease_secs` seconds up to `batch_end`, when given.
fn cursor(db: &Db, queue: &str, partition: &str, group: &str, committed: i64, lease: Option<(&str, i64, f64)>) {
    let (id, end, secs) = match lease {
        Some((id, end, secs)) => (format!("'{id}'"), end.to_string(), format!("now() + make_interval(secs => {secs})")),
        None => ("null".into(), "null".into(), "null".into()),
    };
    db.sql(&format!(
        "insert into queen.groups (queue_id, name)
         select id, '{group}' from queen.queues where name = '{queue}' on conflict do nothing;
         insert into queen.cursors (partition_id, group_id, committed, lease_id, batch_end, lease_expires_at, leased_at)
         select p.id, g.id, {committed}, {id}, {end}, {secs}, case when {end}::bigint is null then null else now() end
         from queen.queues q
         join queen.partitions p on p.queue_id = q.id and p.name = '{partition}'
         join queen.groups g on g.queue_id = q.id and g.name = '{group}'
         where q.name = '{queue}'"
    ));
}

/// The number of a partition.
fn number(db: &Db, queue: &str, partition: &str) -> i64 {
    let text = db.sql(&format!(
        "select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id
         where q.name = '{queue}' and p.name = '{partition}'"
    ));
    text.parse().expect("a partition")
}

#[test]
fn the_schema_may_be_applied_twice() {
    let db = Db::new();
    queue(&db, "q", 1, 3);
    db.apply();
    assert_eq!(db.sql("select count(*) from queen.segments"), "3");
}
