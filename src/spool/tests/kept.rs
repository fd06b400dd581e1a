//! What files cost while they wait, and that they go: descriptors, bytes, names.

use super::sim::SimDisk;
use super::*;

fn written(n: u64) -> SpoolRecord {
    record(n, (n % 7) as usize * 60, n % 4 == 3)
}

/// An outage of hours leaves thousands of files, and sockets need descriptors, too.
#[test]
fn files_that_wait_hold_no_descriptors() {
    let disk = SimDisk::default();
    let (mut files, status) = open(disk.clone(), MS, Limits { events_per_file: 2, ..limits() }).expect("opens");
    for n in 0..200 {
        assert!(block_on(files.append(&[written(n)]))[0]);
        assert!(disk.handles.get() <= 2, "{} after {n} records in {} files", disk.handles.get(), disk.names().len());
    }
    assert!(disk.names().len() > 100, "not valid: {} files", disk.names().len());
    let mut came = Vec::new();
    while came.len() < 200 {
        let some = read_some(&mut files, 1, 1 << 20);
        came.extend(some.iter().map(|one| number(&one.record, written)));
        decide_all(&mut files, some);
        assert!(disk.handles.get() <= 3, "{} are open: one is read, the last is written", disk.handles.get());
    }
    assert!(came.into_iter().eq(0..200));
    block_on(files.close_active());
    assert!(read_all(&mut files).is_empty(), "the last footer is read");
    assert_eq!((disk.handles.get(), status.numbers().damages, disk.names()), (0, 0, vec![]));
}

/// On a full disk every push is such a write, for as long as the store is away.
#[test]
fn a_write_that_fails_leaves_no_file_behind() {
    let disk = SimDisk::default();
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    disk.room(Some(2 << 20));
    let large = record(1, 4 << 20, false);
    for n in 0..100 {
        assert!(!block_on(files.append(std::slice::from_ref(&large)))[0]);
        assert_eq!((disk.names(), disk.handles.get(), status.numbers().bytes), (vec![], 0, 0), "after {n}");
    }
    assert!(block_on(files.append(&[written(2)]))[0], "there is room for a small one");
    assert!(!block_on(files.append(&[large]))[0]);
    assert_eq!(disk.names().len(), 1, "what was buffered stays");
    let came = read_all(&mut files);
    assert_eq!(came.iter().map(|one| number(&one.record, written)).collect::<Vec<_>>(), [2]);
    decide_all(&mut files, came);
    assert_eq!((disk.names(), disk.handles.get(), status.numbers().damages), (vec![], 0, 0));
}
