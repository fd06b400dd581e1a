use super::*;
use proptest::prelude::*;

/// A record whose message at offset `o` has id `o`, transactionId `t{o}` and payload `{o}`.
fn record(base: i64, count: u32, codec: Codec, with_frames: bool) -> Record {
    let mut frames = Vec::new();
    for o in base..base + i64::from(count) {
        let (transaction_id, payload) = (format!("t{o}"), format!("{{{o}}}"));
        let flags = (o % 8) as u8;
        let mut body = vec![flags];
        body.extend_from_slice(&(o as u128).to_be_bytes());
        if flags & 1 != 0 {
            body.extend_from_slice(&[9; 16]);
        }
        for text in [Some(transaction_id), (flags & 2 != 0).then(|| "me".to_owned())].into_iter().flatten() {
            body.extend_from_slice(&(text.len() as u16).to_le_bytes());
            body.extend_from_slice(text.as_bytes());
        }
        body.extend_from_slice(payload.as_bytes());
        frames.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frames.extend_from_slice(&body);
    }
    let frames = Bytes::from(frames);
    let body = match codec {
        Codec::Raw => frames.clone(),
        Codec::Zstd => zstd::bulk::compress(&frames, 1).unwrap().into(),
    };
    Record {
        base: Offset(base),
        created_at: Stamp(base * 10),
        count,
        codec,
        flags: 7,
        raw_len: frames.len() as u32,
        body,
        frames: with_frames.then_some(frames),
        keys: Bytes::new(),
    }
}

fn tail(counts: &[u32]) -> Tail {
    let mut tail = Tail::default();
    let mut base = 100;
    for &count in counts {
        tail.push(record(base, count, Codec::Raw, false));
        base += i64::from(count);
    }
    tail
}

#[test]
fn a_record_that_does_not_follow_drops_the_old_content() {
    let mut tail = tail(&[3, 2]);
    assert_eq!((tail.first(), tail.end()), (Some(Offset(100)), Some(Offset(104))));
    tail.push(record(110, 2, Codec::Raw, false));
    assert_eq!((tail.first(), tail.end()), (Some(Offset(110)), Some(Offset(111))));
    assert_eq!(tail.bytes(), record(110, 2, Codec::Raw, false).body.len());
    tail.cut();
    assert_eq!((tail.first(), tail.bytes()), (None, 0));
}

#[test]
fn duplicates_are_told_their_originals() {
    let mut tail = Tail::default();
    tail.push(record(100, 3, Codec::Zstd, false));
    tail.push(record(103, 2, Codec::Zstd, true));
    tail.push(record(105, 4, Codec::Raw, false));
    let mut damaged = record(109, 2, Codec::Zstd, false);
    damaged.body = damaged.body.slice(..damaged.body.len() - 1);
    tail.push(damaged);
    let asked = [99, 100, 102, 101, 104, 108, 103, 109, 111, 105];
    let mut duplicates: Vec<Duplicate> =
        (0..).zip(asked).map(|(index, offset)| Duplicate { index, offset: Offset(offset), id: None }).collect();
    tail.originals(&mut duplicates);
    let told: Vec<Option<u128>> = duplicates.iter().map(|d| d.id.map(|id| id.0)).collect();
    let here = |offset: i64| (100..109).contains(&offset).then_some(offset as u128);
    assert_eq!(told, asked.map(here));
    for duplicate in &duplicates {
        assert_eq!(duplicate.id, tail.message(duplicate.offset).map(|message| message.id), "as one by one");
    }
}

#[test]
fn a_span_is_read_whole_or_not_at_all() {
    let tail = tail(&[3, 2, 4]);
    let read = |from, to| {
        let mut out = Vec::new();
        tail.read(Offset(from), Offset(to), &mut out).then(|| out.iter().map(|r| r.base.0).collect::<Vec<_>>())
    };
    assert_eq!(read(100, 108), Some(vec![100, 103, 105]));
    assert_eq!(read(102, 103), Some(vec![100, 103]));
    assert_eq!(read(104, 104), Some(vec![103]));
    assert_eq!(read(99, 104), None);
    assert_eq!(read(104, 109), None);
    assert_eq!(read(105, 101), None);
}

#[test]
fn eviction_goes_from_the_front_and_counts_what_it_frees() {
    let mut tail = tail(&[3, 2, 4]);
    let all = tail.bytes();
    let freed = tail.drop_front();
    assert_eq!((tail.first(), tail.bytes()), (Some(Offset(103)), all - freed));
    assert!(0 < tail.drop_front() && 0 < tail.drop_front());
    assert_eq!((tail.first(), tail.bytes(), tail.drop_front()), (None, 0, 0));
}

#[test]
fn a_span_keeps_to_its_messages_and_bytes_but_has_at_least_one() {
    let tail = tail(&[3, 2, 4]);
    let each = |base, count| record(base, count, Codec::Raw, false).raw_len as u64 / count as u64;
    let span = |from, messages, bytes| tail.span(Offset(from), messages, bytes, 0).map(|o| o.0);
    assert_eq!(span(100, 1, 0), Some(100));
    assert_eq!(span(101, 3, u64::MAX), Some(103));
    assert_eq!(span(101, 100, u64::MAX), Some(108));
    assert_eq!(span(101, 100, 2 * each(100, 3) + each(103, 2)), Some(103));
    assert_eq!(span(108, u32::MAX, u64::MAX), Some(108));
    assert_eq!(span(109, 1, 1), None);
    assert_eq!(span(99, 1, 1), None);
}

/// The names of a tiny message may be many times its size: from memory no more is handed out than from the store.
#[test]
fn what_is_said_of_each_message_counts_in_a_span() {
    let tail = tail(&[3, 2, 4]);
    let each = |base, count| record(base, count, Codec::Raw, false).raw_len as u64 / count as u64;
    let span = |bytes, said| tail.span(Offset(100), u32::MAX, bytes, said).map(|o| o.0);
    let (five, nine) = (3 * each(100, 3) + 2 * each(103, 2), 3 * each(100, 3) + 2 * each(103, 2) + 4 * each(105, 4));
    assert_eq!(span(nine, 0), Some(108), "all of it");
    assert_eq!(span(nine, nine), Some(100));
    assert_eq!(span(five + 5 * 2000 - 1, 2000), Some(103));
    assert_eq!(span(five + 5 * 2000, 2000), Some(104));
    assert_eq!(span(1, u64::MAX / 2), Some(100), "one message however much is said of it");
}

#[test]
fn a_message_is_found_in_every_form_of_its_record() {
    for (codec, with_frames) in [(Codec::Raw, false), (Codec::Raw, true), (Codec::Zstd, false), (Codec::Zstd, true)] {
        let mut tail = Tail::default();
        tail.push(record(0, 20, codec, with_frames));
        for o in 0..20 {
            let message = tail.message(Offset(o)).unwrap();
            assert_eq!(message.id, MessageId(o as u128));
            assert_eq!(message.transaction_id, format!("t{o}"));
            assert_eq!(message.payload, format!("{{{o}}}"));
            assert_eq!(message.encrypted, o & 4 != 0);
            assert_eq!(tail.created_at(Offset(o)), Some(Stamp(0)));
        }
        assert_eq!(tail.message(Offset(20)), None);
        assert_eq!(tail.created_at(Offset(20)), None);
    }
}

#[test]
fn shared_bytes_are_counted_once() {
    let mut tail = Tail::default();
    let record = record(0, 5, Codec::Raw, true);
    let len = record.body.len();
    tail.push(record);
    assert_eq!(tail.bytes(), len);
}

#[test]
fn runs_start_at_the_record_that_holds_the_offset() {
    let tail = tail(&[3, 2, 4]);
    let runs: Vec<_> = tail.runs(Offset(104)).map(|(last, at)| (last.0, at.0)).collect();
    assert_eq!(runs, [(104, 1030), (108, 1050)]);
    assert_eq!(tail.runs(Offset(109)).count(), 0);
}

proptest! {
    /// Damaged bytes give no message and no panic.
    #[test]
    fn damaged_records_hold_no_message(body in prop::collection::vec(any::<u8>(), 0..80), zstd in any::<bool>()) {
        let mut record = record(0, 3, if zstd { Codec::Zstd } else { Codec::Raw }, false);
        record.body = body.into();
        for o in 0..3 {
            let _ = message_of(&record, Offset(o));
        }
    }
}

#[test]
fn the_newest_record_of_an_age_is_named_only_when_nothing_newer_can_be_missing() {
    let tail = tail(&[3, 2, 4]); // Stamps 1000, 1030, 1050; ends at 108.
    let newest = |not_after: i64, end: i64| tail.newest(Stamp(not_after), Offset(end)).map(|record| record.base.0);
    assert_eq!(newest(999, 108), None, "what is older lies below");
    assert_eq!(newest(1000, 108), Some(100));
    assert_eq!(newest(1049, 108), Some(103));
    assert_eq!(newest(1050, 108), Some(105));
    assert_eq!(newest(i64::MAX, 108), Some(105));
    assert_eq!(newest(i64::MAX, 109), None, "somebody wrote more");
    assert_eq!(newest(1049, 109), Some(103), "and that is younger");
    assert!(Tail::default().newest(Stamp(i64::MAX), Offset(-1)).is_none());
}
