//! The embedded PostgreSQL: no configuration, second boot, a dead postmaster, a directory in use.

use crate::harness::{Broker, Setup, eventually, scratch_dir, unique, within};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes named `postgres` whose command line names this directory and whose parent is the broker.
fn postmaster(broker: &Broker, dir: &Path) -> Option<u32> {
    let dir = dir.to_str().expect("UTF-8");
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        if command.contains(dir)
            && command.contains("postgres")
            && status.contains(&format!("PPid:\t{}\n", broker.pid()))
        {
            return Some(pid);
        }
    }
    None
}

/// Whether any process still works in this directory.
fn in_use(dir: &Path) -> bool {
    let dir = dir.to_str().expect("UTF-8");
    std::fs::read_dir("/proc").expect("/proc").flatten().any(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(dir)
    })
}

#[test]
fn it_boots_without_configuration_serves_and_keeps_its_data() {
    let dir = scratch_dir("data");
    let start = Instant::now();
    let b = Setup::embedded(&dir).start();
    println!("first boot {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let q = unique("embedded");
    b.push_n(&q, "p", "m", 3);
    let pop = b.pop(&q, "batch=1");
    b.complete("", &pop);
    let pid = postmaster(&b, &dir).expect("PostgreSQL is a child of the broker");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let uid =
        status.lines().find_map(|l| l.strip_prefix("Uid:")).and_then(|l| l.split_whitespace().next()).expect("a uid");
    assert_ne!(uid, "0", "never as root");
    assert!(b.terminate().success(), "{}", b.log());
    eventually("PostgreSQL has stopped", || (!in_use(&dir)).then_some(()));
    let start = Instant::now();
    b.restart();
    println!("second boot {:?}", start.elapsed());
    assert_eq!(b.pop(&q, "batch=9").keys(), ["m1", "m2"]);
    b.kill();
    eventually("kill -9 of the broker ends PostgreSQL, too", || (!in_use(&dir)).then_some(()));
    b.restart();
    b.push_n(&q, "p", "after", 1);
}

#[test]
fn a_killed_postmaster_is_started_again_and_serves() {
    let dir = scratch_dir("data");
    let b = Setup::embedded(&dir).start();
    let q = unique("embedded");
    b.push_n(&q, "p", "before", 2);
    let old = postmaster(&b, &dir).expect("a postmaster");
    // SAFETY: a signal to the process found above.
    unsafe { libc::kill(old as i32, libc::SIGKILL) };
    let new = eventually("another postmaster", || postmaster(&b, &dir).filter(|pid| *pid != old));
    assert_ne!(new, old);
    within(Duration::from_secs(30), "it serves again", || (b.get("/health").status == 200).then_some(()));
    let verdict = eventually("a push is stored", || {
        let verdict = b.push(json!([{"queue": q, "partition": "p", "transactionId": "after", "payload": 1}])).remove(0);
        matches!(verdict["status"].as_str(), Some("queued" | "duplicate")).then_some(verdict)
    });
    assert_eq!(verdict["offset"], 2);
    assert_eq!(b.pop(&q, "batch=9").keys(), ["before0", "before1", "after"]);
    assert!(b.terminate().success());
}

#[test]
fn a_directory_in_use_is_one_line() {
    let dir = scratch_dir("data");
    let first = Setup::embedded(&dir).start();
    let second = Setup::embedded(&dir).launch();
    let status = second.wait_end();
    assert_eq!(status.code(), Some(1), "{}", second.log());
    let log = second.log();
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("FATAL")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains(dir.to_str().expect("UTF-8")) && lines[0].contains("QUEEN_DATA_DIR"), "{}", lines[0]);
    assert_eq!(first.get("/health").status, 200, "the first is not disturbed");
    first.push_n(&unique("embedded"), "p", "m", 1);
}

#[test]
fn a_directory_it_may_not_write_is_one_line() {
    let dir = scratch_dir("data").join("file");
    std::fs::write(&dir, "not a directory").expect("written");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let b = Setup::embedded(&dir).launch();
    assert_eq!(b.wait_end().code(), Some(1), "{}", b.log());
    assert_eq!(b.log().lines().filter(|l| l.contains("FATAL")).count(), 1, "{}", b.log());
    assert_eq!(std::fs::read_to_string(&dir).expect("still there"), "not a directory");
}

#[test]
fn database_url_and_pg_settings_choose_an_external_server() {
    let postgres = crate::harness::shared_postgres();
    let database = postgres.create_database();
    let url = format!("postgres://postgres:x@127.0.0.1:{}/{database}", postgres.port);
    let b = Setup::default().env("DATABASE_URL", &url).env("QUEEN_SHARDS", "1").start();
    b.push_n(&unique("url"), "p", "m", 1);
    assert_eq!(postgres.query(&database, "select count(*) from queen.segments"), "1");
    let other = postgres.create_database();
    let b = Setup::default().env("DATABASE_URL", &url).env("PG_DATABASE", &other).env("QUEEN_SHARDS", "1").start();
    b.push_n(&unique("url"), "p", "m", 1);
    assert_eq!(
        postgres.query(&other, "select count(*) from queen.segments"),
        "1",
        "an explicit PG_* wins over its part"
    );
}
