//! The real disk, both ways of writing to it, and what other people put there.

use super::*;
use crate::mail::{Hub, Mail};
use crate::spool::direct::Direct;
use crate::spool::disk::{Disk, Plain, make_dir};
use crate::spool::thread::{Early, open_dir_again, refuse};
use crate::spool::{Lock, LockError, Setup, Spool, ToSpool};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn written(n: u64) -> SpoolRecord {
    record(n, (n % 50) as usize * 100, n.is_multiple_of(3))
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("queen-spool-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        make_dir(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes with one disk; closes half-way, so that there is a closed file and an open one.
async fn fill<D: Disk>(disk: D) {
    let (mut files, _) = open_async(disk).await;
    for batch in 0..30 {
        let records: Vec<SpoolRecord> = (batch * 10..batch * 10 + 10).map(written).collect();
        assert!(files.append(&records).await.into_iter().all(|ok| ok));
        if batch == 15 {
            files.close_active().await;
        }
    }
}

async fn read_to_end<D: Disk>(files: &mut Files<D, Still>) -> Vec<Drained> {
    let mut came = Vec::new();
    loop {
        let some = files.read(Room { records: 64, bytes: 1 << 20 }).await.unwrap_or_default();
        if some.is_empty() {
            return came;
        }
        came.extend(some);
    }
}

async fn empty<D: Disk>(disk: D) {
    let (mut files, status) = open_async(disk).await;
    let came = read_to_end(&mut files).await;
    let numbers: Vec<u64> = came.iter().map(|one| number(&one.record, written)).collect();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    for one in came {
        files.decide(one.id, DrainVerdict::Stored { duplicates: 0 }).await;
    }
    assert_eq!((status.numbers().damages, status.numbers().pending), (0, 0));
}

async fn open_async<D: Disk>(disk: D) -> (Files<D, Still>, Arc<Status>) {
    let status = Arc::new(Status::default());
    let files = Files::open(disk, Still::at(MS), limits(), status.clone()).await.expect("opens");
    (files, status)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("lists")
        .map(|e| e.expect("entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[test]
fn plain_files_hold_what_was_written() {
    let dir = Scratch::new("plain");
    block_on(fill(Plain::new(&dir.0)));
    assert_eq!(names(&dir.0).len(), 3, "two files and failed/: {:?}", names(&dir.0));
    block_on(empty(Plain::new(&dir.0)));
    assert_eq!(names(&dir.0), ["failed"]);
}

/// Direct I/O and plain files write one format: each reads what the other wrote.
#[test]
fn direct_and_plain_files_are_the_same() {
    let on_ring = |dir: &Path, fills: bool| {
        let dir = dir.to_path_buf();
        let executor = match super::super::thread::executor() {
            Ok(executor) => executor,
            Err(why) => return Err(why),
        };
        executor.run(async move {
            match (Direct::new(&dir).await, fills) {
                (Ok(disk), true) => fill(disk).await,
                (Ok(disk), false) => empty(disk).await,
                (Err(error), _) => return Err(error.to_string()),
            }
            Ok(())
        })
    };
    let dir = Scratch::new("direct");
    if let Err(why) = on_ring(&dir.0, true) {
        assert!(std::env::var_os("CI").is_none(), "direct I/O must work where tests must run: {why}");
        eprintln!("NOT RUN: no direct I/O here: {why}");
        return;
    }
    block_on(empty(Plain::new(&dir.0)));
    block_on(fill(Plain::new(&dir.0)));
    on_ring(&dir.0, false).expect("as before");
    assert_eq!(names(&dir.0), ["failed"]);
}

#[test]
fn links_and_files_that_cannot_be_read_are_set_aside() {
    let dir = Scratch::new("odd");
    block_on(fill(Plain::new(&dir.0)));
    let secret = dir.0.join("secret");
    fs::write(&secret, b"of somebody else").expect("writes");
    symlink(&secret, dir.0.join("queen-1000000000000-00000000.buf")).expect("links");
    fs::create_dir(dir.0.join("queen-1000000000000-00000001.buf")).expect("a directory");
    let closed = dir.0.join("queen-1000000000000-00000002.buf");
    fs::write(&closed, b"shut").expect("writes");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o0)).expect("chmod");
    block_on(empty_but(Plain::new(&dir.0)));
    assert_eq!(names(&dir.0), ["failed", "secret"]);
    assert_eq!(names(&dir.0.join("failed")).len(), 3);
    assert_eq!(fs::read(&secret).expect("reads"), b"of somebody else");
}

async fn empty_but<D: Disk>(disk: D) {
    let (mut files, status) = open_async(disk).await;
    let mut came = Vec::new();
    // What may not be read is given up at last (root may read it, and finds that it is none of ours).
    for _ in 0..5 {
        came.extend(read_to_end(&mut files).await);
        files.next_round();
    }
    assert_eq!(came.len(), 300);
    for one in came {
        files.decide(one.id, DrainVerdict::Stored { duplicates: 0 }).await;
    }
    assert_eq!(status.numbers().quarantined, 3);
}

#[test]
fn one_process_per_directory() {
    let dir = Scratch::new("lock");
    let lock = Lock::take(&dir.0).expect("free");
    assert!(matches!(Lock::take(&dir.0), Err(LockError::Held)));
    drop(lock);
    Lock::take(&dir.0).expect("free again");
}

/// Two brokers waited for one directory, and the other one has it: that is told, and holds up no mail.
#[test]
fn a_directory_of_another_broker_is_told_and_not_waited_for() {
    let dir = Scratch::new("held");
    let status = Status::default();
    let lock = Lock::take(&dir.0).expect("free");
    let began = std::time::Instant::now();
    for tries in 1..=5 {
        assert!(open_dir_again(&dir.0, &status).is_none());
        assert_eq!(status.numbers().held, tries);
    }
    assert!(began.elapsed().as_millis() < 1500, "{:?} for five tries", began.elapsed());
    drop(lock);
    assert!(open_dir_again(&dir.0, &status).is_some());
    assert_eq!(status.numbers().held, 5);
}

/// What is short is told from what is bad by the number of the system.
#[test]
fn an_error_of_either_disk_has_the_number_of_the_system() {
    let dir = Scratch::new("number");
    let number = |opened: std::io::Result<()>| opened.expect_err("not there").raw_os_error();
    let plain = Plain::new(&dir.0);
    assert_eq!(number(block_on(async { plain.open("queen").await.map(drop) })), Some(libc::ENOENT));
    let executor = match super::super::thread::executor() {
        Ok(executor) => executor,
        Err(why) => return eprintln!("NOT RUN with direct I/O: {why}"),
    };
    executor.run(async {
        match Direct::new(&dir.0).await {
            Ok(direct) => {
                let opened = direct.open("queen").await;
                assert_eq!(number(opened.map(drop)), Some(libc::ENOENT));
            }
            Err(error) => eprintln!("NOT RUN with direct I/O: {error}"),
        }
    });
}

/// Shards that hear of nothing go on without what is there, which would then come too late.
#[test]
fn a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let dir = Scratch::new("untold");
    let told = |dir: PathBuf| {
        let (spool, hub) = (Spool::new(), Hub::new(1, 1).expect("a hub"));
        let (done, _ended) = std::sync::mpsc::channel();
        spool.send(ToSpool::Stop { done });
        let setup = Setup { dir, limits: limits(), lock: None, shards: 1, plain: true, hub: hub.clone() };
        assert!(refuse(&spool, &setup, &mut Early::default()), "the broker ends");
        // The mailbox has room for one.
        hub.send(0, Mail::Signal).is_err()
    };
    assert!(told(dir.0.join("none")), "there is none");
    assert!(told(dir.0.clone()), "nothing is in it");
    fs::write(dir.0.join("file"), "").expect("writes");
    assert!(told(dir.0.join("file/none")), "there cannot be any");
    symlink(dir.0.join("loop"), dir.0.join("loop")).expect("links");
    assert!(!told(dir.0.join("loop")), "nobody can look into it");
    fs::write(dir.0.join("queen-1790000000000-00000001.buf"), "").expect("writes");
    assert!(!told(dir.0.clone()), "it has records");
}
