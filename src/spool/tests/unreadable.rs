//! Reads that fail for a while, and reads that fail for good: what was accepted is lost only to the latter, and kept even then.
//! Source: operations 4.5.

use super::handed::{files, numbers, refuse};
use super::sim::SimDisk;
use super::*;
use queen_shards::command::SpoolId;

/// A disk with record 0 refused, the others of its lane put off, and those of other lanes handed over.
fn put_off(records: &[SpoolRecord]) -> (SimDisk, Files<SimDisk, Still>, Arc<Status>, SpoolId) {
    let disk = SimDisk::default();
    let (mut files, status) = files(&disk, &records[..1]);
    let first = read_all(&mut files).remove(0).id;
    assert!(!refuse(&mut files, first));
    assert!(block_on(files.append(&records[1..])).into_iter().all(|written| written));
    let others = read_all(&mut files);
    assert!(others.iter().all(|one| one.record.draft.lane != records[0].draft.lane));
    decide_all(&mut files, others);
    (disk, files, status, first)
}

fn store(files: &mut Files<SimDisk, Still>, id: SpoolId) {
    block_on(files.decide(id, DrainVerdict::Stored { duplicates: 0 }));
}

/// Reads until there is nothing more, a round after the other.
fn read_rounds(files: &mut Files<SimDisk, Still>, rounds: usize) -> Vec<Drained> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        while let Some(some) = block_on(files.read(Room { records: 64, bytes: 1 << 20 })) {
            all.extend(some);
        }
        files.next_round();
    }
    all
}

#[test]
fn what_was_put_off_and_cannot_be_read_for_a_while_comes_in_order() {
    let records: Vec<SpoolRecord> = (0..20).map(|n| record(n, 40, false)).collect();
    // The open, the read of the head and that of the record; descriptors may be short for longer.
    let failing = |after| [(after, 1, libc::EIO), (after, 4, libc::EIO), (after, 20, libc::EMFILE)];
    for (after, times, number) in (0..3).flat_map(failing) {
        let what = format!("after {after}, {times} times error {number}");
        let (disk, mut files, status, first) = put_off(&records);
        store(&mut files, first);
        disk.fail_reads(after, times, number);
        for round in 0..times {
            assert!(read_all(&mut files).is_empty(), "{what}: round {round}");
            assert!(read_all(&mut files).is_empty(), "{what}: round {round}: once in each");
            assert_eq!(files.lanes_put_off(), [records[0].draft.lane.hash()], "{what}");
            files.next_round();
        }
        let own = read_all(&mut files);
        assert_eq!(numbers(&own, &records), [5, 10, 15], "{what}");
        decide_all(&mut files, own);
        let now = status.numbers();
        assert_eq!((now.pending, now.damages, now.quarantined), (0, 0, 0), "{what}");
        assert_eq!(disk.names(), [""; 0], "{what}");
    }
}

/// What comes behind it in its lane waits, and other lanes go on.
#[test]
fn what_was_put_off_and_cannot_be_read_for_a_while_holds_up_its_own_lane_only() {
    let records: Vec<SpoolRecord> = (0..26).map(|n| record(n, 40, false)).collect();
    let (disk, mut files, status, first) = put_off(&records[..20]);
    store(&mut files, first);
    disk.fail_opens(4, libc::EIO);
    for (round, n) in [21, 22, 20, 23].into_iter().enumerate() {
        assert!(block_on(files.append(&records[n..n + 1]))[0]);
        let came = read_all(&mut files);
        let want: Vec<u64> = Some(n as u64).into_iter().filter(|n| *n != 20).collect();
        assert_eq!(numbers(&came, &records), want, "round {round}");
        decide_all(&mut files, came);
        files.next_round();
    }
    assert!(block_on(files.append(&records[25..]))[0]);
    let own = read_all(&mut files);
    assert_eq!(numbers(&own, &records), [5, 10, 15, 20, 25]);
    decide_all(&mut files, own);
    let now = status.numbers();
    assert_eq!((now.pending, now.damages, now.quarantined, disk.names()), (0, 0, 0, vec![]));
}

#[test]
fn what_was_put_off_and_stays_unreadable_is_lost_after_five_rounds_and_its_file_is_kept() {
    let records: Vec<SpoolRecord> = (0..20).map(|n| record(n, 40, false)).collect();
    let (disk, mut files, status, first) = put_off(&records);
    block_on(files.close_active());
    assert!(read_all(&mut files).is_empty(), "the footer is read");
    store(&mut files, first);
    disk.fail_reads(0, u64::MAX, libc::EIO);
    assert!(read_rounds(&mut files, 4).is_empty());
    assert_eq!((files.lanes_put_off().len(), status.numbers().damages), (1, 0), "not yet");
    assert!(read_rounds(&mut files, 1).is_empty());
    assert_eq!((files.lanes_put_off().len(), status.numbers().damages), (0, 3), "5, 10 and 15 at once");
    let now = status.numbers();
    assert_eq!((now.pending, now.quarantined), (0, 1));
    let kept = disk.names();
    assert!(kept.len() == 1 && kept[0].starts_with("failed/queen-"), "{kept:?}");
}

/// One that cannot be read is lost alone: the next ones of its lane come.
#[test]
fn what_was_put_off_behind_an_unreadable_place_comes() {
    let records: Vec<SpoolRecord> = (0..20).map(|n| record(n, 40, false)).collect();
    let (disk, mut files, status, first) = put_off(&records);
    store(&mut files, first);
    disk.fail_reads(0, 5, libc::EIO);
    let own = read_rounds(&mut files, 5);
    assert_eq!(numbers(&own, &records), [10, 15]);
    decide_all(&mut files, own);
    assert_eq!((status.numbers().pending, status.numbers().damages, status.numbers().quarantined), (0, 1, 1));
}

/// The files of a process with so many events in each, as another one finds them.
fn left(records: &[SpoolRecord], events_per_file: u64) -> SimDisk {
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS, Limits { events_per_file, ..limits() }).expect("opens");
    for record in records {
        assert!(block_on(files.append(std::slice::from_ref(record)))[0]);
    }
    disk
}

fn copy(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::default();
    disk.names().iter().for_each(|name| copy.put(name, disk.bytes(name).expect("there")));
    copy
}

/// Counts what there is, and how many rounds were waited for.
fn survey_rounds(files: &mut Files<SimDisk, Still>, found: &mut FoundLanes) -> usize {
    let mut rounds = 0;
    loop {
        match block_on(files.survey(found)) {
            Surveyed::One => {}
            Surveyed::NotNow => {
                assert_eq!(block_on(files.survey(found)), Surveyed::NotNow, "not before the next round");
                rounds += 1;
                assert!(rounds < 50);
                files.next_round();
            }
            Surveyed::All => return rounds,
        }
    }
}

fn records_of(found: &FoundLanes) -> usize {
    found.values().map(|records| *records as usize).sum()
}

#[test]
fn files_that_cannot_be_read_for_a_while_are_counted_and_drained_in_order() {
    let records: Vec<SpoolRecord> = (0..30).map(|n| record(n, 40, n % 4 == 3)).collect();
    let messages: u64 = records.iter().map(|record| record.draft.count as u64).sum();
    let image = left(&records, 20);
    assert_eq!(image.names().len(), 3);
    for (after, times, number) in
        (0..9).flat_map(|after| [(after, 1, libc::EIO), (after, 4, libc::EIO), (after, 20, libc::EMFILE)])
    {
        let what = format!("after {after}, {times} times error {number}");
        let disk = copy(&image);
        let (mut files, status) = open(disk.clone(), MS + 5, limits()).expect("opens");
        let mut found = FoundLanes::new();
        disk.fail_reads(after, times, number);
        assert_eq!(survey_rounds(&mut files, &mut found) as u64, times, "{what}");
        assert_eq!((records_of(&found), status.numbers().pending), (records.len(), messages), "{what}");
        disk.fail_reads(after, times, number);
        let came = read_rounds(&mut files, 1 + times as usize);
        assert_eq!(numbers(&came, &records), (0..30).collect::<Vec<_>>(), "{what}");
        decide_all(&mut files, came);
        let now = status.numbers();
        assert_eq!((now.pending, now.damages, now.quarantined), (0, 0, 0), "{what}");
        assert_eq!(disk.names(), [""; 0], "{what}");
    }
}

/// Shards wait for what was counted, and for nothing else: so no more comes than that, even if the disk is well again.
#[test]
fn a_file_that_is_given_up_gives_what_was_counted_of_it_and_is_kept() {
    // Some 50 to 225 KB each: the first file, with 20 of them, is read in three pieces.
    let records: Vec<SpoolRecord> = (0..30).map(|n| record(n, 100_000, false)).collect();
    let image = left(&records, 39);
    assert_eq!(image.names().len(), 2);
    for (after, counted) in [(0, 0..=0), (1, 0..=0), (2, 0..=0), (3, 7..=12), (4, 14..=18)] {
        let disk = copy(&image);
        let (mut files, status) = open(disk.clone(), MS + 5, limits()).expect("opens");
        let mut found = FoundLanes::new();
        disk.fail_reads(after, 5, libc::EIO);
        assert_eq!(survey_rounds(&mut files, &mut found), 4, "the fifth gives it up");
        let drained = read_rounds(&mut files, 1);
        let came = numbers(&drained, &records);
        assert_eq!(came.len(), records_of(&found), "after {after}");
        let first = came.len() - 10;
        assert!(counted.contains(&first), "after {after}: {first} of the first file");
        assert!(came.iter().copied().eq((0..first as u64).chain(20..30)), "after {after}: {came:?}");
        decide_all(&mut files, drained);
        let now = status.numbers();
        assert_eq!((now.pending, now.damages, now.quarantined), (0, 1, 1), "after {after}");
        assert_eq!(disk.bytes(&format!("failed/{}", image.names()[0])), image.bytes(&image.names()[0]), "all of it");
    }
}

#[test]
fn a_file_that_cannot_be_read_while_it_is_written_takes_nothing_more() {
    let records: Vec<SpoolRecord> = (0..5).map(|n| record(n, 40, false)).collect();
    let disk = SimDisk::default();
    let (mut files, status) = files(&disk, &records[..3]);
    let mut came = read_all(&mut files);
    assert!(block_on(files.append(&records[3..4]))[0]);
    disk.fail_reads(0, 5, libc::EIO);
    assert!(read_rounds(&mut files, 5).is_empty());
    assert!(block_on(files.append(&records[4..]))[0]);
    came.extend(read_all(&mut files));
    assert_eq!(numbers(&came, &records), [0, 1, 2, 4]);
    decide_all(&mut files, came);
    let now = status.numbers();
    assert_eq!((now.pending, now.damages, now.quarantined), (0, 1, 1), "record 3 is kept");
}

#[test]
fn what_was_put_off_is_read_a_piece_at_a_time() {
    let records: Vec<SpoolRecord> = (0..3000).map(|n| record(n, 40, false)).collect();
    let (disk, mut files, _, first) = put_off(&records);
    let bytes = disk.bytes(&disk.names()[0]).expect("there").len();
    let before = disk.reads.get();
    store(&mut files, first);
    let mut own = Vec::new();
    loop {
        let some = read_all(&mut files);
        if some.is_empty() {
            break;
        }
        own.extend(numbers(&some, &records));
        decide_all(&mut files, some);
    }
    assert!(own.iter().copied().eq((1..600).map(|n| 5 * n)));
    let reads = disk.reads.get() - before;
    eprintln!("{} records that were put off, of a file of {bytes} bytes: {reads} reads", own.len());
    assert!(reads <= 2 * (bytes as u64).div_ceil(1 << 20), "{reads} reads, the head's and a piece's for each MiB");
}

#[test]
fn what_was_put_off_of_a_file_of_the_original_is_read_once() {
    let event = |n: u64| format!(r#"{{"queue":"q","transactionId":"t{n}","payload":{n}}}"#);
    let bytes = (0..300).map(event).flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
    let disk = SimDisk::default();
    disk.put("queen-1790000000000-00000000.buf", bytes.collect());
    let (mut files, status) = open(disk.clone(), MS + 1, limits()).expect("opens");
    let mut came = read_some(&mut files, 1, 1 << 20);
    assert!(!refuse(&mut files, came[0].id));
    came.extend(read_all(&mut files));
    assert_eq!((came.len(), files.lanes_put_off().len()), (1, 1), "the others are put off");
    let before = disk.reads.get();
    let mut ids = Vec::new();
    while !came.is_empty() {
        ids.extend(came.iter().map(|one| {
            Frames::new(&one.record.draft.frames).next().expect("a message").expect("whole").transaction_id.to_string()
        }));
        decide_all(&mut files, came);
        came = read_all(&mut files);
    }
    assert!(ids.iter().map(String::as_str).eq((0..300).map(|n| format!("t{n}")).collect::<Vec<_>>()));
    assert_eq!(disk.reads.get() - before, 2, "the head and the file");
    assert_eq!((status.numbers().pending, status.numbers().damages, disk.names()), (0, 0, vec![]));
}

#[test]
fn what_is_lost_is_lost_a_few_at_a_time() {
    let records: Vec<SpoolRecord> = (0..1000).map(|n| record(n, 40, false)).collect();
    let (disk, mut files, status, first) = put_off(&records);
    block_on(files.close_active());
    assert!(read_all(&mut files).is_empty(), "the footer is read");
    let name = disk.names().remove(0);
    let mut bytes = disk.bytes(&name).expect("there");
    bytes[8192..].fill(0xff);
    disk.put(&name, bytes);
    store(&mut files, first);
    let (mut lost, mut reads) = (0, disk.reads.get());
    while let Some(some) = block_on(files.read(files.room())) {
        assert!(some.is_empty());
        let (now, then) = (status.numbers().damages, std::mem::replace(&mut reads, disk.reads.get()));
        assert!(now - lost <= 16 && reads - then <= 32, "{} lost with {} reads at once", now - lost, reads - then);
        lost = now;
    }
    assert_eq!((lost, status.numbers().pending, status.numbers().quarantined), (199, 0, 1));
}

/// Refused for the fifth time while the machine is short of something: it is set aside at the next try, alone.
#[test]
fn a_record_that_cannot_be_set_aside_for_a_while_is_set_aside_later() {
    let records: Vec<SpoolRecord> = (0..20).map(|n| record(n, 4000, false)).collect();
    // The open, the read of the head and that of the record; and a disk without room, for the header or for the record.
    let readings = (0..3).map(|after| (Some(after), None));
    for (reading, room) in readings.chain([(None, Some(0)), (None, Some(8192))]) {
        let what = format!("reading {reading:?}, room {room:?}");
        let disk = SimDisk::default();
        let (mut files, status) = files(&disk, &records);
        let all = read_all(&mut files);
        let first = all[0].id;
        for _ in 0..4 {
            assert!(!refuse(&mut files, first), "{what}");
        }
        if let Some(after) = reading {
            disk.fail_reads(after, 1, libc::EMFILE);
        }
        let used: usize = disk.names().iter().map(|name| disk.bytes(name).expect("there").len()).sum();
        disk.room(room.map(|room| used + room));
        assert!(!refuse(&mut files, first), "{what}");
        assert!(disk.names().iter().all(|name| !name.starts_with("failed/")), "{what}: {:?}", disk.names());
        assert_eq!((status.numbers().refused, status.numbers().quarantined), (0, 0), "{what}");
        disk.room(None);
        files.next_round();
        assert_eq!(files.try_again(), [first], "{what}");
        assert!(refuse(&mut files, first), "{what}");
        decide_all(&mut files, all);
        let now = status.numbers();
        assert_eq!((now.pending, now.damages, now.refused, now.quarantined), (0, 0, 1, 1), "{what}");
        assert!(
            matches!(&disk.names()[..], [one] if one.starts_with("failed/") && one.ends_with(&format!("-{}.buf", first.at))),
            "{what}: {:?}",
            disk.names()
        );
    }
}
