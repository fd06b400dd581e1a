//! `safeTime` of partitions/changed. Data plane 13.2; rule 4.

use crate::cluster::Db;
use crate::{number, queue};
use serde_json::json;

#[test]
fn safe_time_stays_below_a_stamp_that_is_not_committed_yet() {
    let db = Db::new();
    queue(&db, "q", 2, 1);
    let id = number(&db, "q", "p0");
    let ask =
        || db.call("changed_partitions", json!({"entries": [{"queue": "q", "since": null, "after": 0, "limit": 10}]}));
    let open = db.start(&format!(
        "begin; update queen.partitions set last_offset = 1, last_created_at = clock_timestamp() where id = {id};
         select pg_sleep(600)"
    ));
    // Other tests use other databases of this server.
    let writer = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query like '%pg_sleep%' and backend_xid is not null";
    db.until("the write", &format!("select exists (select {writer} and wait_event = 'PgSleep')"));
    let began = db.sql(&format!("select queen.utc_us(xact_start) {writer}"));
    let got = ask();
    assert!(got["safeTime"].as_str().unwrap() < began.as_str(), "{got} {began}");
    assert_eq!(got["entries"][0]["partitions"][0]["lastOffset"], 0, "not committed, so not counted");
    db.sql(&format!("select pg_terminate_backend(pid) {writer}"));
    let _ = open.wait_with_output();
    assert!(ask()["safeTime"].as_str().unwrap() > began.as_str());
}

#[test]
fn a_pass_names_every_partition_once_in_one_order() {
    let db = Db::new();
    queue(&db, "q", 5, 1);
    let (mut after, mut names) = (0i64, Vec::new());
    loop {
        let got = db.call(
            "changed_partitions",
            json!({"entries": [{"queue": "q", "since": null, "after": after, "limit": 2}]}),
        );
        let entry = &got["entries"][0];
        names.extend(entry["partitions"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()));
        match entry["next"].as_str() {
            Some(next) => after = next.parse().unwrap(),
            None => break,
        }
    }
    assert_eq!(names, ["p0", "p1", "p2", "p3", "p4"]);
}
