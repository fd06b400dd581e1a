//! What is with the shards at once, and what comes back refused. Source: operations 4.5.

use super::sim::SimDisk;
use super::*;
use crate::spool::thread::room;
use queen_shards::command::SpoolId;

fn files(disk: &SimDisk, records: &[SpoolRecord]) -> (Files<SimDisk, Still>, Arc<Status>) {
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(records)).into_iter().all(|written| written));
    (files, status)
}

/// Those that are set aside for it.
fn refuse(files: &mut Files<SimDisk, Still>, records: &[SpoolId]) -> usize {
    records.iter().filter(|id| block_on(files.decide(**id, DrainVerdict::Refused))).count()
}

fn ids(drained: &[Drained]) -> Vec<SpoolId> {
    drained.iter().map(|one| one.id).collect()
}

fn store(files: &mut Files<SimDisk, Still>, records: &[SpoolId]) {
    for id in records {
        assert!(!block_on(files.decide(*id, DrainVerdict::Stored { duplicates: 0 })));
    }
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
    let (mut files, status) = files(&SimDisk::default(), &records);
    let all = ids(&read_all(&mut files));
    let mut out = all.clone();
    for time in 1..=5 {
        assert_eq!(out, all);
        assert_eq!(refuse(&mut files, &out), (time == 5) as usize);
        assert_eq!(files.handed_over().0, 10 - (time == 5) as usize, "they stay with their shards");
        out = files.try_again();
        assert!(files.try_again().is_empty(), "they are being tried");
    }
    assert_eq!(status.numbers().quarantined, 1);
    assert_eq!(out, all[1..]);
    store(&mut files, &out);
    assert!(files.try_again().is_empty());
    assert_eq!((status.numbers().quarantined, status.numbers().pending), (1, 0));
}

#[test]
fn records_that_are_refused_while_others_are_stored_are_set_aside_together() {
    let (mut files, status) = files(&SimDisk::default(), &small(20));
    let mut good = ids(&read_all(&mut files));
    let mut bad = good.split_off(10);
    let mut aside = 0;
    for _ in 0..6 {
        store(&mut files, &good.pop().into_iter().collect::<Vec<_>>());
        aside += refuse(&mut files, &bad);
        bad = files.try_again();
    }
    assert!(bad.is_empty() && aside == 10);
    store(&mut files, &good);
    assert_eq!((status.numbers().quarantined, status.numbers().pending), (10, 0));
}
