//! The embedded PostgreSQL: starts, restarts, and what it refuses. Source: rule 28.

use crate::support::*;
use queen::embedded::{Embedded, EmbeddedError, Status};
use queen::store::{Conn, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A directory that is removed in the end, and the server in it.
struct Home {
    dir: PathBuf,
}

impl Home {
    fn new(name: &str) -> Home {
        Home { dir: fresh_dir(name) }
    }
    fn start(&self) -> Embedded {
        let mut embedded = prepare(self).expect("prepare");
        embedded.start();
        embedded.wait_ready(PATIENCE).expect("ready");
        embedded
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn sql(target: Target, text: &'static str) -> Vec<String> {
    run(async move {
        let client = Conn::new(target, "test").get().await.unwrap();
        let rows = client.query_typed(text, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    })
}

fn setting(target: Target, name: &str) -> String {
    let text: &'static str = format!("select current_setting('{name}')").leak();
    sql(target, text).remove(0)
}

#[test]
fn a_cluster_is_made_once_and_keeps_its_data_over_a_stop() {
    let home = Home::new("once");
    let begun = Instant::now();
    let mut embedded = home.start();
    println!("first start: {:?}", begun.elapsed());
    for (name, value) in [
        ("server_encoding", "UTF8"),
        ("lc_collate", "C.UTF-8"),
        ("listen_addresses", ""),
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("timezone", "UTC"),
    ] {
        assert_eq!(setting(embedded.target(), name), value, "{name}");
    }
    sql(embedded.target(), "create table kept (); select 'x'::text".split(';').next().unwrap());
    let stopped = embedded.stop();
    assert!(stopped.clean, "{stopped:?}");
    assert_eq!(embedded.poll().0, Status::Stopped);
    drop(embedded);
    let again = home.start();
    let kept = sql(again.target(), "select relname::text from pg_class where relname = 'kept'");
    assert_eq!(kept, ["kept"]);
}

#[test]
fn a_directory_has_one_broker() {
    let home = Home::new("one");
    let first = Embedded::prepare(&home.dir).unwrap();
    let said = Embedded::prepare(&home.dir).unwrap_err().to_string();
    assert!(said.contains(&format!("(process {})", std::process::id())) && said.contains("QUEEN_DATA_DIR"), "{said}");
    drop(first);
    prepare(&home).unwrap();
}

#[test]
fn a_server_that_dies_is_started_again() {
    let home = Home::new("dies");
    let mut embedded = home.start();
    let first = embedded.pid().unwrap();
    // SAFETY: our own child.
    unsafe { libc::kill(first as i32, libc::SIGKILL) };
    let begun = Instant::now();
    let mut told = 0;
    loop {
        match embedded.poll() {
            (Status::Died(text), _) => {
                assert!(text.contains("signal: 9") && !text.contains('\n'), "{text}");
                told += 1;
            }
            (Status::Ready, _) if embedded.pid() != Some(first) => break,
            (Status::Failed(error), _) => panic!("{error}"),
            (_, again_in) => std::thread::sleep(again_in),
        }
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(told, 1);
    sql(embedded.target(), "select 'up'");
}

/// Not a test: the broker that the next ones kill. Runs until then.
#[test]
#[ignore = "started by other tests"]
fn broker_to_kill() {
    let Some(dir) = std::env::var_os("QUEEN_TEST_DIR") else { return };
    let mut embedded = Embedded::prepare(Path::new(&dir)).unwrap();
    embedded.start();
    embedded.wait_ready(PATIENCE).unwrap();
    fs::write(Path::new(&dir).join("pid"), embedded.pid().unwrap().to_string()).unwrap();
    loop {
        std::thread::park();
    }
}

#[allow(clippy::zombie_processes)] // When it does not start, the test ends.
fn broker(home: &Home) -> (Child, u32) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::broker_to_kill", "--ignored"])
        .env("QUEEN_TEST_DIR", &home.dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(home.dir.join("pid")).unwrap_or_default();
        if let Ok(pid) = text.parse() {
            return (child, pid);
        }
        assert!(begun.elapsed() < PATIENCE, "the broker does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z")
}

fn checkpointer_of(server: u32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
    let is_checkpointer = |pid: &i32| {
        let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.contains("checkpointer")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_checkpointer).expect("a checkpointer")
}

/// Prepares; a child of another test that is about to run its program may hold the lock for a moment.
fn prepare(home: &Home) -> Result<Embedded, EmbeddedError> {
    let begun = Instant::now();
    loop {
        match Embedded::prepare(&home.dir) {
            Err(error) if error.0.contains("in use by another broker") && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

#[test]
fn a_killed_broker_takes_its_server_along_cleanly() {
    let home = Home::new("killed");
    let (mut child, server) = broker(&home);
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while is_alive(server) {
        assert!(begun.elapsed() < PATIENCE, "the server goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = fs::read_to_string(home.dir.join("postgres.log")).unwrap();
    assert!(log.contains("database system is shut down"), "{log}");
    assert!(!home.dir.join("postgres/postmaster.pid").exists());
}

#[test]
fn a_new_broker_waits_for_the_server_of_a_killed_one() {
    let home = Home::new("waits");
    let (mut child, server) = broker(&home);
    // The old server cannot end before this part of it is let go on.
    let part = checkpointer_of(server);
    // SAFETY: processes of this test.
    unsafe { libc::kill(part, libc::SIGSTOP) };
    child.kill().unwrap();
    child.wait().unwrap();
    let mut embedded = prepare(&home).unwrap();
    embedded.start();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        assert_eq!(embedded.poll().0, Status::Starting("the end of an earlier server"));
        assert!(home.dir.join("postgres/postmaster.pid").exists());
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: as above.
    unsafe { libc::kill(part, libc::SIGCONT) };
    embedded.wait_ready(PATIENCE).unwrap();
    assert!(!is_alive(server));
    assert_ne!(embedded.pid(), Some(server));
}

#[test]
fn a_stale_pid_file_that_names_a_stranger_holds_nothing_up() {
    let home = Home::new("stale");
    home.start().stop();
    let mut stranger = Command::new("sleep").arg("3600").spawn().unwrap();
    let text = format!("{}\n{}\n1\n5432\n\n\n\nready\n", stranger.id(), home.dir.join("postgres").display());
    fs::write(home.dir.join("postgres/postmaster.pid"), &text).unwrap();
    fs::write(home.dir.join("run/.s.PGSQL.5432.lock"), &text).unwrap();
    let embedded = home.start();
    assert!(is_alive(stranger.id()), "a stranger is left alone");
    sql(embedded.target(), "select 'up'");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_long_directory_gets_a_short_socket() {
    let home = Home::new("long");
    let long = Home { dir: home.dir.join("d".repeat(120)) };
    let embedded = long.start();
    let shown = embedded.target().to_string();
    let socket = shown.split(['@', ':']).nth(1).unwrap().rsplit_once('/').unwrap().0.to_owned();
    assert!(socket.len() < 100 && !socket.contains("ddd"), "{socket}");
    sql(embedded.target(), "select 'up'");
    drop(embedded);
    fs::remove_dir_all(Path::new(&socket).parent().unwrap()).unwrap();
}

#[test]
fn what_is_not_its_cluster_is_refused_and_left_alone() {
    let home = Home::new("foreign");
    let data = home.dir.join("postgres");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("letter.txt"), "dear diary").unwrap();
    let said = prepare(&home).unwrap_err().to_string();
    assert!(said.contains("is not empty and not a cluster"), "{said}");
    assert!(data.join("letter.txt").exists());
    fs::write(data.join("PG_VERSION"), "97\n").unwrap();
    let said = prepare(&home).unwrap_err().to_string();
    assert!(said.contains("made by PostgreSQL 97") && said.contains("install"), "{said}");
    fs::write(data.join("PG_VERSION"), "13\n").unwrap();
    let said = prepare(&home).unwrap_err().to_string();
    assert!(said.contains("PostgreSQL 13, which is too old"), "{said}");
    assert!(!said.contains('\n'));
}

#[test]
fn an_unfinished_cluster_is_made_anew() {
    let home = Home::new("unfinished");
    for left in ["postgres.unfinished", "postgres.unfinished4711"] {
        fs::create_dir(home.dir.join(left)).unwrap();
        fs::write(home.dir.join(left).join("PG_VERSION"), "15\n").unwrap();
    }
    let embedded = home.start();
    let names = fs::read_dir(&home.dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("unfinished")).collect::<Vec<_>>(), Vec::<String>::new());
    sql(embedded.target(), "select 'up'");
}
