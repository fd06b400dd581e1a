//! `queen.extend_lease`: data plane 6; rule 22.

use crate::cluster::Db;
use crate::{cursor, number, queue};
use serde_json::{Value, json};

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";
const OTHER: &str = "01990a12-4410-7bbb-9bbb-0000000000f2";

#[track_caller]
fn extend(db: &Db, partition: i64, more: bool, seconds: i64) -> Value {
    db.call(
        "extend_lease",
        json!({"lease": LEASE, "partition": partition, "more": more, "wide": more, "seconds": seconds}),
    )
}

#[track_caller]
fn left(db: &Db, partition: &str) -> f64 {
    let text = db.sql(&format!(
        "select extract(epoch from c.lease_expires_at - now()) from queen.cursors c
         join queen.partitions p on p.id = c.partition_id where p.name = '{partition}'"
    ));
    text.parse().unwrap()
}

#[test]
fn an_extended_lease_ends_later_and_never_sooner() {
    let db = Db::new();
    queue(&db, "q", 2, 5);
    cursor(&db, "q", "p0", "g", -1, Some((LEASE, 3, 20.0)));
    cursor(&db, "q", "p1", "g", -1, Some((OTHER, 3, 20.0)));
    let id = number(&db, "q", "p0");
    let answer = extend(&db, id, false, 100);
    assert_eq!(answer["renewed"], 1);
    assert!(answer["expiresAt"].as_str().unwrap().ends_with('Z') && answer["expiresAt"].as_str().unwrap().len() == 27);
    assert!((95.0..=100.0).contains(&left(&db, "p0")));
    assert_eq!(extend(&db, id, false, 1)["renewed"], 1);
    assert!(left(&db, "p0") > 90.0);
    assert!(left(&db, "p1") <= 20.0);
}

#[test]
fn an_expired_or_unknown_lease_is_never_revived() {
    let db = Db::new();
    queue(&db, "q", 1, 5);
    cursor(&db, "q", "p0", "g", -1, Some((LEASE, 3, -1.0)));
    let id = number(&db, "q", "p0");
    assert_eq!(extend(&db, id, true, 60), json!({"renewed": 0, "expiresAt": null}));
    assert!(left(&db, "p0") < 0.0);
    assert_eq!(extend(&db, 4711, false, 60)["renewed"], 0);
}

#[test]
fn more_finds_the_other_partitions_in_all_queues_of_the_tenant() {
    let db = Db::new();
    queue(&db, "q", 2, 5);
    queue(&db, "r", 1, 5);
    db.sql("update queen.partitions set name = 'r0' where queue_id = (select id from queen.queues where name = 'r')");
    cursor(&db, "q", "p0", "g", -1, Some((LEASE, 3, 20.0)));
    cursor(&db, "q", "p1", "h", -1, Some((LEASE, 3, 200.0)));
    cursor(&db, "r", "r0", "g", -1, Some((LEASE, 3, 20.0)));
    let id = number(&db, "q", "p0");
    assert_eq!(extend(&db, id, false, 50)["renewed"], 1);
    let narrow = json!({"lease": LEASE, "partition": id, "more": true, "wide": false, "seconds": 60});
    assert_eq!(db.call("extend_lease", narrow)["renewed"], 2, "without wide: in that queue only");
    let answer = extend(&db, id, true, 100);
    assert_eq!(answer["renewed"], 3);
    assert!(left(&db, "r0") > 95.0 && left(&db, "p1") > 190.0);
    let earliest = db.sql("select queen.utc_us(min(lease_expires_at)) from queen.cursors");
    assert_eq!(answer["expiresAt"], Value::from(earliest));
    let other = "00000000-0000-0000-0000-000000000002";
    let theirs = db.call_as(
        other,
        "extend_lease",
        json!({"lease": LEASE, "partition": id, "more": true, "wide": true, "seconds": 9}),
    );
    assert_eq!(theirs["renewed"], 0);
}

#[test]
fn extending_leaves_the_version_alone() {
    let db = Db::new();
    queue(&db, "q", 1, 5);
    cursor(&db, "q", "p0", "g", -1, Some((LEASE, 3, 20.0)));
    let before = db.sql("select version from queen.cursors");
    extend(&db, number(&db, "q", "p0"), false, 60);
    assert_eq!(db.sql("select version from queen.cursors"), before);
}
