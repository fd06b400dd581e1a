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

/// A file as nobody wrote it, which is to be kept.
fn odd() -> (SimDisk, String) {
    let (disk, name) = (SimDisk::default(), "queen-1790000000000-00000009.buf".to_string());
    disk.put(&name, vec![7; 5000]);
    (disk, name)
}

/// A later process would drain it again, when nothing says any more that its records are stored.
#[test]
fn a_file_that_cannot_be_removed_is_not_forgotten() {
    for (after, failures, active) in [(0, 3, true), (0, 3, false), (1, 3, true), (1, 3, false)] {
        let what = format!("{failures} failures after {after}, active {active}");
        let disk = SimDisk::default();
        let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
        survey(&mut files);
        assert!(block_on(files.append(&[written(0), written(1)])).into_iter().all(|ok| ok));
        if !active {
            block_on(files.close_active());
        }
        let came = read_all(&mut files);
        let (floor, bytes) = (status.floor(), status.numbers().bytes);
        disk.fail_moves(after, failures);
        decide_all(&mut files, came);
        for round in 0..failures {
            // Whether the name is gone or only not for sure.
            assert_eq!((disk.names().len() as u64, status.floor()), (1 - after, floor), "{what}: round {round}");
            let now = status.numbers();
            assert_eq!((now.files, now.bytes, now.pending), (1, bytes, 0), "{what}: round {round}");
            assert!(!status.is_drained(), "{what}: its floor outlives the broker");
            assert!(read_all(&mut files).is_empty(), "{what}: once in a round, and nothing comes twice");
            if after == 1 {
                break;
            }
            files.next_round();
            assert!(read_all(&mut files).is_empty(), "{what}: round {round}");
        }
        for _ in 0..failures {
            files.next_round();
            assert!(read_all(&mut files).is_empty(), "{what}");
        }
        let now = status.numbers();
        assert_eq!((now.files, now.bytes, now.damages, status.floor()), (0, 0, 0, None), "{what}");
        assert_eq!((disk.names(), disk.handles.get()), (vec![], 0), "{what}");
        assert!(status.is_drained(), "{what}");
    }
}

/// "Nothing waits" is not said before all that an earlier process left is counted: its keys would be forgotten.
#[test]
fn nothing_is_said_of_the_floor_before_the_survey() {
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(&[written(0), written(1)])).into_iter().all(|ok| ok));
    block_on(files.close_active());
    drop(files);
    let (mut files, status) = open(disk, MS, limits()).expect("opens");
    assert!(!status.is_surveyed() && !status.is_drained());
    survey(&mut files);
    assert!(status.is_surveyed() && !status.is_drained());
    assert_eq!(status.floor(), Some(written(0).accepted_at.0));
}

/// What is written meanwhile goes its way.
#[test]
fn a_file_that_cannot_be_removed_holds_up_nothing() {
    let disk = SimDisk::default();
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(&[written(0)]))[0]);
    let came = read_all(&mut files);
    disk.fail_moves(0, 1);
    decide_all(&mut files, came);
    assert!(block_on(files.append(&[written(1)]))[0]);
    assert_eq!(disk.names().len(), 2);
    let came = read_all(&mut files);
    assert_eq!(came.iter().map(|one| number(&one.record, written)).collect::<Vec<_>>(), [1]);
    decide_all(&mut files, came);
    assert_eq!(disk.names().len(), 1, "the first one waits for the next round");
    files.next_round();
    assert!(read_all(&mut files).is_empty());
    assert_eq!((disk.names(), status.numbers().damages), (vec![], 0));
}

#[test]
fn a_file_that_cannot_be_set_aside_is_tried_again() {
    let (disk, name) = odd();
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    disk.fail_moves(0, 1);
    assert!(read_all(&mut files).is_empty());
    assert_eq!((disk.names(), status.numbers().quarantined), (vec![name.clone()], 0));
    for _ in 0..2 {
        files.next_round();
        assert!(read_all(&mut files).is_empty());
        assert_eq!((disk.names(), status.numbers().quarantined), (vec![format!("failed/{name}")], 1));
    }
}

/// Somebody who removed a file by hand has removed it.
#[test]
fn a_file_that_somebody_else_removed_is_gone() {
    let disk = SimDisk::default();
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(&[written(0)]))[0]);
    let came = read_all(&mut files);
    let name = disk.names().remove(0);
    block_on(super::super::disk::Disk::remove(&disk, &name)).expect("there");
    decide_all(&mut files, came);
    assert_eq!((status.numbers().files, status.floor()), (0, None));
}

#[test]
fn a_file_that_went_does_not_come_back_with_the_power() {
    for seed in 0..20 {
        let disk = SimDisk::default();
        let (mut files, _) = open(disk.clone(), MS, limits()).expect("opens");
        assert!(block_on(files.append(&[written(0)]))[0]);
        let came = read_all(&mut files);
        decide_all(&mut files, came);
        assert_eq!(disk.after_cut(&mut Rng::new(seed)).names(), [""; 0], "seed {seed}");
    }
}

/// A full spool may name fifty million partitions.
#[test]
fn a_lane_that_is_found_costs_its_hash_and_a_number() {
    type Found = <FoundLanes as IntoIterator>::Item;
    assert!(!std::mem::needs_drop::<Found>() && size_of::<Found>() <= 16, "names and the like are on the heap");
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS, limits()).expect("opens");
    block_on(files.append(&(0..11).map(written).collect::<Vec<_>>()));
    let (mut files, _) = open(disk, MS + 1, limits()).expect("opens");
    let found = survey(&mut files);
    // Every fifth is of one lane.
    for n in 0..5 {
        assert_eq!(found[&written(n).draft.lane.hash()], if n == 0 { 3 } else { 2 });
    }
    assert_eq!(found.len(), 5);
}
