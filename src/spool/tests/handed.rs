//! What is with the shards at once, and what comes back refused. Source: operations 4.5.

use super::sim::SimDisk;
use super::*;
use crate::spool::thread::room;

fn files(disk: &SimDisk, records: &[SpoolRecord]) -> (Files<SimDisk, Still>, Arc<Status>) {
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(records)).into_iter().all(|written| written));
    (files, status)
}

fn refuse(files: &mut Files<SimDisk, Still>, drained: Vec<Drained>) {
    drained.into_iter().for_each(|one| block_on(files.decide(one.id, DrainVerdict::Refused)));
}

/// Numbers of records that are handed over for another try.
fn numbers(drained: &[Drained], records: &[SpoolRecord]) -> Vec<u64> {
    drained.iter().map(|one| number(&one.record, |n| records[n as usize].clone())).collect()
}

fn small(n: u64) -> Vec<SpoolRecord> {
    (0..n).map(|n| record(n, 40, n % 2 == 1)).collect()
}

#[test]
fn large_records_are_handed_over_in_bounded_memory() {
    let records: Vec<SpoolRecord> = (0..50).map(|n| record(n, 1 << 20, false)).collect();
    let most = records.iter().map(|record| record.draft.frames.len()).max().expect("some");
    let disk = SimDisk::default();
    let (mut files, _) = files(&disk, &records);
    let mut came = Vec::new();
    while came.len() < records.len() {
        let mut out = Vec::new();
        loop {
            let (n, bytes) = room(files.handed_over());
            let some = if n > 0 && bytes > 0 { block_on(files.read(n, bytes)) } else { Vec::new() };
            if some.is_empty() {
                break;
            }
            out.extend(some);
        }
        assert!(!out.is_empty(), "one is handed over however large it is");
        let bytes: usize = out.iter().map(|one| one.record.draft.frames.len()).sum();
        assert!(bytes <= (64 << 20) + most, "{bytes} bytes are with the shards");
        came.extend(numbers(&out, &records));
        decide_all(&mut files, out);
        assert_eq!(files.handed_over(), (0, 0));
    }
    assert_eq!(came, (0..50).collect::<Vec<_>>());
}

#[test]
fn what_refuses_all_records_costs_one_at_a_time_and_what_is_mended_nothing() {
    let records = small(10);
    let disk = SimDisk::default();
    let (mut files, status) = files(&disk, &records);
    let mut out = read_all(&mut files);
    for _ in 0..5 {
        assert_eq!(status.numbers().quarantined, 0);
        assert_eq!(numbers(&out, &records), (0..10).collect::<Vec<_>>());
        refuse(&mut files, out);
        assert_eq!(files.handed_over().1, 0, "they wait on disk");
        out = block_on(files.try_again(1 << 20));
        assert!(block_on(files.try_again(1 << 20)).is_empty(), "a shard has them");
    }
    assert_eq!(status.numbers().quarantined, 1);
    assert_eq!(numbers(&out, &records), (1..10).collect::<Vec<_>>());
    decide_all(&mut files, out);
    assert!(!files.has_refused());
    assert_eq!((status.numbers().quarantined, status.numbers().pending), (1, 0));
}

#[test]
fn records_that_are_refused_while_others_are_stored_are_set_aside_together() {
    let records = small(20);
    let disk = SimDisk::default();
    let (mut files, status) = files(&disk, &records);
    let mut good: Vec<Drained> = read_all(&mut files);
    let mut bad = good.split_off(10);
    for _ in 0..6 {
        decide_all(&mut files, good.pop().into_iter().collect());
        refuse(&mut files, bad);
        bad = block_on(files.try_again(1 << 20));
    }
    assert!(bad.is_empty() && !files.has_refused());
    decide_all(&mut files, good);
    assert_eq!((status.numbers().quarantined, status.numbers().pending), (10, 0));
}

#[test]
fn another_try_is_bounded_in_bytes() {
    let records = small(9);
    let disk = SimDisk::default();
    let (mut files, _) = files(&disk, &records);
    let out = read_all(&mut files);
    refuse(&mut files, out);
    let one = block_on(files.try_again(1));
    assert_eq!(numbers(&one, &records), [0]);
    assert_eq!(numbers(&block_on(files.try_again(1 << 20)), &records), (1..9).collect::<Vec<_>>());
}
