//! Damaged files: what is whole comes out, nothing comes out altered, and the file is kept.

use super::sim::SimDisk;
use super::*;
use crate::spool::disk::Disk;

const NAME: &str = "queen-1790000000000-00000000.buf";
/// Bit flips of `a_flipped_bit_costs_no_more_than_its_record`.
const FLIPS: u64 = 20_000;

fn written(n: u64) -> SpoolRecord {
    record(n, 100 + (n % 11) as usize * 30, n % 5 == 4)
}

/// A closed file of about 64 KiB: its bytes, its records and where each ends.
fn sample() -> (Vec<u8>, u64, Vec<u64>) {
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS, limits()).expect("opens");
    let mut n = 0;
    while disk.bytes("queen-1790000000000-00000000.tmp").is_none_or(|bytes| bytes.len() < 60_000) {
        assert!(block_on(files.append(&[written(n)]))[0]);
        n += 1;
    }
    block_on(files.close_active());
    let places = read_all(&mut files).iter().map(|one| one.id.at).collect();
    let bytes = disk.bytes(NAME).expect("closed");
    assert!((60_000..=72 * 1024).contains(&bytes.len()), "{}", bytes.len());
    (bytes, n, places)
}

/// What comes out of a directory with these files, whether all is decided, and how it looks then.
fn drained(disk: &SimDisk) -> (Vec<u64>, crate::spool::Numbers) {
    let (mut files, status) = open(disk.clone(), MS + 5, limits()).expect("opens");
    survey(&mut files);
    let came = read_all(&mut files);
    let numbers = came.iter().map(|one| number(&one.record, written)).collect();
    decide_all(&mut files, came);
    (numbers, status.numbers())
}

fn check_kept(disk: &SimDisk, after: &crate::spool::Numbers, what: &str) {
    assert!(after.damages > 0, "{what}: damage is counted");
    assert_eq!(after.quarantined, 1, "{what}: {:?}", disk.names());
    assert!(disk.names().iter().all(|name| name.starts_with("failed/")), "{what}: {:?}", disk.names());
}

#[test]
fn a_whole_file_is_drained_and_goes() {
    let (bytes, n, _) = sample();
    let disk = SimDisk::default();
    disk.put(NAME, bytes);
    let (came, after) = drained(&disk);
    assert_eq!(came, (0..n).collect::<Vec<_>>());
    assert_eq!((after.damages, after.quarantined, disk.names()), (0, 0, vec![]));
}

#[test]
fn cut_at_every_byte_every_record_before_comes_out() {
    let (bytes, _, places) = sample();
    let ends: Vec<u64> = places.iter().skip(1).copied().collect();
    let cuts: Vec<usize> = (0..bytes.len()).collect();
    let check = |cut: usize| {
        let disk = SimDisk::default();
        disk.put(NAME, bytes[..cut].to_vec());
        let (came, after) = drained(&disk);
        let whole = ends.iter().filter(|end| **end <= cut as u64).count() as u64;
        assert!(came.iter().copied().eq(0..came.len() as u64), "cut at {cut}: {came:?}");
        // The last record ends somewhere before the footer.
        assert!(
            whole <= came.len() as u64 && came.len() as u64 <= whole + 1,
            "cut at {cut}: {} of {whole}",
            came.len()
        );
        // Behind the footer are zeros that say nothing.
        let footer = bytes.iter().rposition(|byte| *byte != 0).expect("a footer") + 1;
        if cut < footer {
            check_kept(&disk, &after, &format!("cut at {cut}"));
        }
    };
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (cuts, check) = (&cuts, &check);
            scope.spawn(move || cuts.iter().skip(half).step_by(2).for_each(|cut| check(*cut)));
        }
    });
    eprintln!("cut at each of {} bytes", cuts.len());
}

#[test]
fn a_flipped_bit_costs_no_more_than_its_record() {
    let (bytes, n, places) = sample();
    let check = |seed: u64| {
        let mut rng = Rng::new(seed);
        let mut damaged = bytes.clone();
        let (at, bit) = (rng.below(bytes.len() as u64) as usize, rng.below(8));
        damaged[at] ^= 1 << bit;
        let disk = SimDisk::default();
        disk.put(NAME, damaged);
        let (came, after) = drained(&disk);
        let hit = places.partition_point(|place| *place <= at as u64).checked_sub(1);
        let footer = bytes.iter().rposition(|byte| *byte != 0).expect("a footer");
        let hit = hit.filter(|_| at < places[n as usize - 1] as usize || at <= footer).map(|index| index as u64);
        let want: Vec<u64> = (0..n).filter(|n| !came.contains(n)).collect();
        // Only the record that was hit is missing, and not even that when the bit says nothing.
        assert!(
            want.is_empty() || want == hit.into_iter().collect::<Vec<_>>(),
            "seed {seed}: byte {at}: {want:?} missing"
        );
        assert!(came.is_sorted());
        check_kept(&disk, &after, &format!("byte {at} bit {bit}"));
    };
    std::thread::scope(|scope| {
        for half in 0..2 {
            let check = &check;
            scope.spawn(move || (half..FLIPS).step_by(2).for_each(check));
        }
    });
    eprintln!("{FLIPS} flipped bits");
}

#[test]
fn a_zeroed_block_costs_no_more_than_what_lies_in_it() {
    let (bytes, n, places) = sample();
    for block in (0..bytes.len()).step_by(4096) {
        let mut damaged = bytes.clone();
        if damaged[block..block + 4096].iter().all(|byte| *byte == 0) {
            continue;
        }
        damaged[block..block + 4096].fill(0);
        let disk = SimDisk::default();
        disk.put(NAME, damaged);
        let (came, after) = drained(&disk);
        let end = |index: usize| places.get(index + 1).copied().unwrap_or(bytes.len() as u64);
        let touched = |index: &u64| {
            let index = *index as usize;
            places[index] < (block + 4096) as u64 && (block as u64) < end(index)
        };
        let want: Vec<u64> = (0..n).filter(|index| !touched(index)).collect();
        let missing: Vec<&u64> = want.iter().filter(|index| !came.contains(index)).collect();
        assert!(missing.is_empty(), "block at {block}: {missing:?} missing");
        check_kept(&disk, &after, &format!("block at {block}"));
    }
}

/// Bytes in a payload that look like a record are no record, wherever a reading goes on.
#[test]
fn a_payload_cannot_pretend_to_be_a_record() {
    let (bytes, ..) = sample();
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS + 1, limits()).expect("opens");
    let mut tricked = written(0);
    // A file of ours as a message of another, as a binary body might bring it.
    let mut frames = FrameWriter::default();
    let head = FrameHead { id: MessageId(7777), transaction_id: "trick", ..FrameHead::default() };
    frames.push(&head, &bytes);
    tricked.draft.flags = frames.flags();
    (tricked.draft.count, tricked.draft.packed) = (1, None);
    tricked.draft.frames = frames.into_bytes();
    assert!(block_on(files.append(&[tricked, written(1)])).iter().all(|ok| *ok));
    block_on(files.close_active());
    let name = disk.names().remove(0);
    let mut outer = disk.bytes(&name).expect("there");
    // Its head is damaged, so that reading goes on inside the payload.
    outer[8192] ^= 1;
    let again = SimDisk::default();
    again.put(NAME, outer);
    let (came, after) = drained(&again);
    assert_eq!(came, [1]);
    check_kept(&again, &after, "a payload full of records");
}

#[test]
fn swapped_doubled_empty_and_foreign_files() {
    let disk = SimDisk::default();
    let (mut files, _) = open(disk.clone(), MS, Limits { events_per_file: 6, ..limits() }).expect("opens");
    for n in 0..12 {
        block_on(files.append(&[written(n)]));
    }
    block_on(files.close_active());
    let names = disk.names();
    let again = SimDisk::default();
    // Names in the reverse order of what they hold.
    for (name, from) in names.iter().zip(names.iter().rev()) {
        again.put(name, disk.bytes(from).expect("there"));
    }
    let (came, after) = drained(&again);
    assert_eq!(came, (0..12).collect::<Vec<_>>(), "the header says the order, not the name");
    assert_eq!((after.damages, again.names()), (0, vec![]));

    let again = SimDisk::default();
    again.put(NAME, disk.bytes(&names[0]).expect("there"));
    again.put("queen-1790000000000-00000001.buf", disk.bytes(&names[0]).expect("there"));
    again.put("queen-1790000000000-00000002.buf", Vec::new());
    again.put("queen-1790000000000-00000003.buf", b"a foreign file, whoever put it here".repeat(300));
    again.put("queen-1790000000000-00000004.tmp", Vec::new());
    again.put("notes.txt", b"not ours".to_vec());
    again.put("queen-1.buf", b"not a name of ours".to_vec());
    let (came, after) = drained(&again);
    let once: Vec<u64> = came[..came.len() / 2].to_vec();
    assert_eq!(came[came.len() / 2..], once, "a doubled file comes twice; the store knows the ids");
    assert_eq!(after.quarantined, 2, "{:?}", again.names());
    let left = again.names();
    assert_eq!(left.iter().filter(|name| name.starts_with("failed/")).count(), 2, "{left:?}");
    assert!(left.contains(&"notes.txt".into()) && left.contains(&"queen-1.buf".into()), "{left:?}");
}

/// The layout of the original, with the record of operations 4.2.
#[test]
fn files_of_the_original_are_drained() {
    let event = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let first =
        r#"{"queue":"invoices","partition":"acct-9","transactionId":"inv-77","encrypted":false,"payload":{"sum":12}}"#;
    assert_eq!(event(first)[..4], [0x69, 0, 0, 0]);
    let second = r#"{"queue":"a","payload": 1.0,"producerSub":"me","encrypted":true,"tenant":"0a0b0c0d-0000-4000-8000-000000000007"}"#;
    let bytes = [event(first), event("{broken"), event(second), event(first)[..20].to_vec()].concat();
    let disk = SimDisk::default();
    disk.put(NAME, bytes);
    let (mut files, status) = open(disk.clone(), MS + 1, limits()).expect("opens");
    assert_eq!(survey(&mut files).len(), 2);
    let came = read_all(&mut files);
    let draft = |i: usize| &came[i].record.draft;
    let frames: Vec<_> =
        came.iter().map(|one| Frames::new(&one.record.draft.frames).next().unwrap().unwrap()).collect();
    assert_eq!((&*draft(0).lane.queue, &*draft(0).lane.partition), ("invoices", "acct-9"));
    assert_eq!((frames[0].transaction_id, frames[0].payload), ("inv-77", &br#"{"sum":12}"#[..]));
    assert_eq!(came[0].record.accepted_at, Stamp(1_790_000_000_000_000), "by the file's name");
    assert_eq!((&*draft(1).lane.queue, &*draft(1).lane.partition), ("a", "Default"));
    assert_eq!(draft(1).lane.tenant, TenantId(0x0a0b0c0d_0000_4000_8000_000000000007));
    assert_eq!((frames[1].producer, frames[1].encrypted(), frames[1].payload), (Some("me"), true, &b"1.0"[..]));
    assert_eq!((draft(0).all_minted, draft(1).all_minted), (false, true));
    decide_all(&mut files, came);
    assert_eq!((status.numbers().damages, status.numbers().quarantined), (1, 1), "what is broken is kept");
}

/// Every kind of damage at once, and no panic.
#[test]
fn whatever_the_bytes_are_nothing_panics() {
    let (bytes, ..) = sample();
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let mut damaged = bytes.clone();
        for _ in 0..1 + rng.below(6) {
            let (from, to) = (rng.below(bytes.len() as u64) as usize, rng.below(bytes.len() as u64) as usize);
            let len = (1 + rng.below(5_000) as usize).min(bytes.len() - from.max(to));
            match rng.below(4) {
                0 => damaged.copy_within(from..from + len, to),
                1 => damaged[from..from + len].fill(rng.next() as u8),
                2 => drop(damaged.drain(from.min(damaged.len())..(from + len).min(damaged.len()))),
                _ => damaged.truncate(from.max(1)),
            }
            damaged.resize(bytes.len(), 0);
        }
        let disk = SimDisk::default();
        disk.put(NAME, damaged);
        let (came, _) = drained(&disk);
        let mut seen = came.clone();
        seen.dedup();
        assert_eq!(seen, came, "seed {seed}");
        assert!(came.is_sorted(), "seed {seed}: {came:?}");
        assert!(block_on(disk.list(false)).expect("lists").is_empty(), "seed {seed}");
    }
}
