//! What is with the shards at once, and what stays on disk behind a record that is refused. The rule itself is the engine's
//! (`queen_shards::handed`). Source: operations 4.5.

use super::sim::SimDisk;
use super::*;
use queen_shards::command::SpoolId;

pub fn files(disk: &SimDisk, records: &[SpoolRecord]) -> (Files<SimDisk, Still>, Arc<Status>) {
    let (mut files, status) = open(disk.clone(), MS, limits()).expect("opens");
    assert!(block_on(files.append(records)).into_iter().all(|written| written));
    (files, status)
}

/// One refusal. True: the record is set aside.
pub fn refuse(files: &mut Files<SimDisk, Still>, id: SpoolId) -> bool {
    block_on(files.decide(id, DrainVerdict::Refused { written: 0 }))
}

/// Numbers of records that are handed over.
pub fn numbers(drained: &[Drained], records: &[SpoolRecord]) -> Vec<u64> {
    drained.iter().map(|one| number(&one.record, |n| records[n as usize].clone())).collect()
}

#[test]
fn large_records_are_handed_over_in_bounded_memory() {
    let records: Vec<SpoolRecord> = (0..50).map(|n| record(n, 1 << 20, false)).collect();
    let most = records.iter().map(|record| record.draft.frames.len()).max().expect("some");
    let disk = SimDisk::default();
    let (mut files, _) = files(&disk, &records);
    let all = files.room();
    let mut came = Vec::new();
    while came.len() < records.len() {
        let mut out = Vec::new();
        while let Some(some) = block_on(files.read(files.room())) {
            out.extend(some);
        }
        assert!(!out.is_empty(), "one is handed over however large it is");
        let bytes: usize = out.iter().map(|one| one.record.draft.frames.len()).sum();
        assert!(bytes <= (64 << 20) + most, "{bytes} bytes are with the shards");
        came.extend(numbers(&out, &records));
        decide_all(&mut files, out);
        assert_eq!((files.room().records, files.room().bytes), (all.records, all.bytes));
    }
    assert_eq!(came, (0..50).collect::<Vec<_>>());
}

/// A partition whose first record is refused has more on disk than is handed over at once: that stays there, and other
/// partitions go on. Afterwards it comes in order, from whatever file it is in.
#[test]
fn what_waits_behind_a_refused_record_stays_on_disk_and_comes_in_order() {
    let disk = SimDisk::default();
    let limits = Limits { events_per_file: 1000, ..limits() };
    let (mut files, status) = open(disk.clone(), MS, limits).expect("opens");
    // Every fifth is of the partition that is refused; some are larger than what is read at once.
    let records: Vec<SpoolRecord> =
        (0..3000).map(|n| record(n, if n == 1500 { 3 << 20 } else { 40 }, n % 2 == 1)).collect();
    assert!(block_on(files.append(&records[..1])).into_iter().all(|written| written));
    let first = read_all(&mut files).remove(0).id;
    assert!(!refuse(&mut files, first));
    for some in records[1..].chunks(100) {
        assert!(block_on(files.append(some)).into_iter().all(|written| written));
    }
    let mut others = Vec::new();
    while let Some(some) = block_on(files.read(files.room())) {
        others.extend(numbers(&some, &records));
        decide_all(&mut files, some);
    }
    assert_eq!(others, (0..3000).filter(|n| n % 5 != 0).collect::<Vec<_>>());
    assert!(files.all_read());
    assert_eq!(files.lanes_put_off(), [records[0].draft.lane.hash()]);
    files.next_round();
    assert_eq!(files.try_again(), [first]);
    assert!(!block_on(files.decide(first, DrainVerdict::Stored { duplicates: 0 })));
    let mut own = Vec::new();
    while let Some(some) = block_on(files.read(files.room())) {
        assert!(some.len() <= 64, "{} at once", some.len());
        own.extend(numbers(&some, &records));
        decide_all(&mut files, some);
    }
    assert_eq!(own, (1..600).map(|n| 5 * n).collect::<Vec<_>>());
    assert_eq!(files.lanes_put_off(), [0; 0]);
    assert_eq!((status.numbers().pending, status.numbers().damages, status.numbers().quarantined), (0, 0, 0));
}

/// What was put off and cannot be read when it is its turn is told, and its file is kept.
#[test]
fn what_was_put_off_and_is_damaged_since_is_told_and_holds_nothing_up() {
    let disk = SimDisk::default();
    let records: Vec<SpoolRecord> = (0..20).map(|n| record(n, 40, false)).collect();
    let (mut files, status) = files(&disk, &records[..1]);
    let first = read_all(&mut files).remove(0).id;
    assert!(!refuse(&mut files, first));
    assert!(block_on(files.append(&records[1..])).into_iter().all(|written| written));
    let others = read_all(&mut files);
    block_on(files.close_active());
    let name = disk.names().remove(0);
    let mut bytes = disk.bytes(&name).expect("there");
    let place = bytes.windows(4).rposition(|four| four == b"15.1").expect("in a payload");
    bytes[place] ^= 1;
    disk.put(&name, bytes);
    block_on(files.decide(first, DrainVerdict::Stored { duplicates: 0 }));
    let own = read_all(&mut files);
    assert_eq!(numbers(&own, &records), [5, 10]);
    decide_all(&mut files, others);
    decide_all(&mut files, own);
    assert_eq!((status.numbers().pending, status.numbers().damages), (0, 1));
    assert!(disk.names().iter().all(|name| name.starts_with("failed/")), "{:?}", disk.names());
}

/// A drain that the store leaves alone is told of, and nothing else is.
#[test]
fn a_store_that_is_lost_in_a_drain_is_told_of() {
    let disk = SimDisk::default();
    let records: Vec<SpoolRecord> = (0..3).map(|n| record(n, 40, false)).collect();
    let (mut files, _) = files(&disk, &records);
    assert!(!files.store_lost(), "nothing was handed over");
    let all = read_all(&mut files);
    assert!(files.store_lost());
    assert!(files.store_lost(), "until they are decided");
    decide_all(&mut files, all);
    assert!(!files.store_lost());
}
