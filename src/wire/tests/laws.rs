//! What holds for any bytes: nothing panics, what is read is what was written, what is refused is refused for a reason.

use crate::http::json::has_control;
use crate::wire::{Refused, packed, plain, push, targets, transaction, zstd_frame};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use queen_shards::frames::{FLAG_PRODUCER, FrameHead, FrameWriter};
use queen_shards::ids::MessageId;

const LIMIT: u64 = 1 << 20;

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn document() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "null",
        "1e999",
        " {\"a\":[1,2,{}]} ",
        "\"\\ud800\"",
        "[]",
        "90071992547409931234",
        "\"é\"",
    ])
    .prop_map(String::from)
}

fn messages() -> impl Strategy<Value = Vec<(u128, String, String)>> {
    vec((1u128.., "[ -~é]{1,40}", document()), 1..20)
}

fn frames(messages: &[(u128, String, String)]) -> Vec<u8> {
    let mut writer = FrameWriter::default();
    for (id, transaction_id, payload) in messages {
        writer.push(&FrameHead { id: MessageId(*id), transaction_id, ..FrameHead::default() }, payload.as_bytes());
    }
    writer.as_slice().to_vec()
}

/// The wire groups of a packed body.
fn packed_groups(groups: &[(String, u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = (groups.len() as u32).to_le_bytes().to_vec();
    for (name, n, z) in groups {
        text(&mut out, name);
        text(&mut out, "p");
        out.extend_from_slice(&n.to_le_bytes());
        out.extend_from_slice(&(z.len() as u32).to_le_bytes());
        out.extend_from_slice(z);
    }
    out
}

fn squeeze(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

/// One packed wire group with these frames, read: its transaction ids.
fn read_one(n: u32, z: Vec<u8>) -> Result<Vec<String>, Refused> {
    let body = packed_groups(&[("q".into(), n, z)]);
    let groups = packed::walk(&body, 0, LIMIT)?;
    let frames = groups[0].inflate(0)?;
    let mut read = Vec::new();
    packed::messages(&frames, n, 0, |message| read.push(message.transaction_id.to_owned()))?;
    Ok(read)
}

#[track_caller]
fn refused(result: Result<Vec<String>, Refused>, part: &str) {
    match result {
        Err(Refused::Malformed(what)) => assert!(what.contains(part), "{what}"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(data in vec(any::<u8>(), 0..300)) {
        targets::push_body(&data);
        targets::transaction_body(&data);
        targets::frames(&data);
        targets::zstd(&data);
    }

    /// Behind a good beginning, where random bytes would hardly come.
    #[test]
    fn any_bytes_behind_a_magic_are_read_or_refused(flags in 0u8..32, data in vec(any::<u8>(), 0..300)) {
        targets::push_body(&[b"QPB1", &[flags][..], &data].concat());
        targets::transaction_body(&[b"QTB1", &[flags & 2][..], &data].concat());
        targets::zstd(&[&[0x28, 0xb5, 0x2f, 0xfd][..], &data].concat());
    }

    /// One byte of a good body changed: never a panic.
    #[test]
    fn a_damaged_body_is_read_or_refused(
        messages in messages(), flags in prop::sample::select(vec![8u8, 9, 10, 12]), at in any::<prop::sample::Index>(), byte: u8,
    ) {
        let raw = frames(&messages);
        let groups = packed_groups(&[("q".into(), messages.len() as u32, squeeze(&raw))]);
        let mut body = [b"QPB1", &[flags][..]].concat();
        if flags & 1 == 1 {
            body.extend_from_slice(&(groups.len() as u32).to_le_bytes());
            body.extend_from_slice(&squeeze(&groups));
        } else {
            body.extend_from_slice(&groups);
        }
        targets::push_body(&body);
        let at = at.index(body.len());
        body[at] = byte;
        targets::push_body(&body);
    }

    #[test]
    fn what_was_packed_is_read(all in vec(messages(), 0..4), outer: bool, counts: bool) {
        let raws: Vec<Vec<u8>> = all.iter().map(|messages| frames(messages)).collect();
        let groups: Vec<_> =
            all.iter().zip(&raws).map(|(m, raw)| ("q".to_owned(), m.len() as u32, squeeze(raw))).collect();
        let inner = packed_groups(&groups);
        let flags = 8 | (outer as u8) | (counts as u8) << 1;
        let mut body = [b"QPB1", &[flags][..]].concat();
        if outer {
            body.extend_from_slice(&(inner.len() as u32).to_le_bytes());
            body.extend_from_slice(&squeeze(&inner));
        } else {
            body.extend_from_slice(&inner);
        }
        let open = push::open(&body.into(), LIMIT).unwrap();
        prop_assert_eq!((open.counts, open.packed), (counts, true));
        let rest = open.rest().unwrap();
        prop_assert_eq!(&rest[..], &inner[..]);
        let read = packed::walk(&rest, open.raw_len, LIMIT).unwrap();
        prop_assert_eq!(read.len(), all.len());
        for ((group, messages), raw) in read.iter().zip(&all).zip(&raws) {
            let inflated = group.inflate(0).unwrap();
            prop_assert_eq!(&inflated[..], &raw[..]);
            let mut got = Vec::new();
            packed::messages(&inflated, group.n, 0, |m| got.push((m.id.0, m.transaction_id.to_owned(), m.payload.to_owned()))).unwrap();
            prop_assert_eq!(&got, messages);
        }
    }

    #[test]
    fn control_characters_are_found_wherever_they_are(text in "[ -~\"\\\\é]{0,50}", at in any::<prop::sample::Index>(), control in 0u8..0x20) {
        prop_assert!(!has_control(&text));
        let mut chars: Vec<char> = text.chars().collect();
        chars.insert(at.index(chars.len() + 1), control as char);
        prop_assert!(has_control(&chars.into_iter().collect::<String>()));
    }
}

fn one(head: FrameHead<'_>, payload: &[u8]) -> Vec<u8> {
    let mut writer = FrameWriter::default();
    writer.push(&head, payload);
    writer.as_slice().to_vec()
}

const GOOD: FrameHead<'static> =
    FrameHead { id: MessageId(7), trace: None, transaction_id: "t", producer: None, encrypted: false };

#[test]
fn what_a_reader_could_not_read_is_refused() {
    let good = one(GOOD, b"{\"n\":1}");
    let z = squeeze(&good);
    assert_eq!(read_one(1, z.clone()).unwrap(), ["t"]);
    refused(read_one(1, [&z[..], b"x"].concat()), "bytes after the zstd frame");
    refused(read_one(1, [&z[..], &z[..]].concat()), "bytes after the zstd frame");
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9][..]].concat();
    refused(read_one(1, [&skippable[..], &z[..]].concat()), "no zstd frame");
    refused(read_one(1, [&z[..], &skippable[..]].concat()), "bytes after the zstd frame");
    refused(read_one(2, squeeze(&good)), "do not fit");
    let two = [&good[..], &good[..]].concat();
    refused(read_one(1, squeeze(&two)), "bytes after message 0");
    refused(read_one(3, squeeze(&[&two[..], &[0; 30][..]].concat())), "too short");
    for payload in [&b""[..], b"NaN", b"{}x", b"\xff", b"\xef\xbb\xbf1", b"\"\x01\"", b"1 2", b"-"] {
        let head = FrameHead { transaction_id: "longer", ..GOOD };
        refused(read_one(1, squeeze(&one(head, payload))), "the payload is not JSON");
    }
    refused(read_one(1, squeeze(&one(FrameHead { id: MessageId(0), ..GOOD }, b"123"))), "all zeros");
    refused(read_one(1, squeeze(&one(FrameHead { transaction_id: "", ..GOOD }, b"1234567"))), "empty");
    refused(read_one(1, squeeze(&one(FrameHead { producer: Some("p"), ..GOOD }, b"123"))), "flags 0x02");
    refused(read_one(1, squeeze(&one(FrameHead { encrypted: true, ..GOOD }, b"123"))), "flags 0x04");
    let control = read_one(1, squeeze(&one(FrameHead { transaction_id: "a\nb", ..GOOD }, b"123")));
    assert_eq!(control, Err(Refused::Control));
    let mut forged = good.clone();
    forged[4] = FLAG_PRODUCER;
    refused(read_one(1, squeeze(&forged)), "");
    forged[4] = 0x80;
    refused(read_one(1, squeeze(&forged)), "flags 0x80");
}

#[test]
fn deep_json_is_refused_as_the_json_push_refuses_it() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert!(read_one(1, squeeze(&one(GOOD, &nested(1024)))).is_ok());
    refused(read_one(1, squeeze(&one(GOOD, &nested(1025)))), "nested too deep");
}

/// A zstd frame by hand: descriptor, what follows it, one raw block.
fn frame(descriptor: u8, fields: &[u8], content: &[u8]) -> Vec<u8> {
    let block = (content.len() as u32) << 3 | 1;
    [&[0x28, 0xb5, 0x2f, 0xfd, descriptor], fields, &block.to_le_bytes()[..3], content].concat()
}

#[test]
fn zstd_headers_of_all_widths_are_read_and_bounded() {
    let content = one(GOOD, b"1");
    let n = content.len() as u64;
    let ok = |z: &[u8]| zstd_frame::header(z).unwrap().content;
    assert_eq!(ok(&frame(0x20, &[n as u8], &content)), Some(n), "one byte, single segment");
    assert_eq!(ok(&frame(0x40, &[0x60, 44, 1], &content)), Some(300 + 256), "two bytes have 256 added");
    assert_eq!(ok(&frame(0xa0, &(n as u32).to_le_bytes(), &content)), Some(n));
    assert_eq!(ok(&frame(0xe0, &n.to_le_bytes(), &content)), Some(n));
    assert_eq!(ok(&frame(0x00, &[0x60], &content)), None);
    assert_eq!(ok(&frame(0x10, &[0x60], &content)), None, "the unused bit means nothing");
    let refused = |z: &[u8], want: &str| assert_eq!(zstd_frame::header(z), Err(want));
    refused(&frame(0x28, &[n as u8], &content), "a reserved bit of the zstd frame is set");
    refused(&frame(0x21, &[0, n as u8], &content), "the zstd frame names a dictionary");
    refused(&frame(0x00, &[13 << 3 | 1], &content), "the zstd window is larger than 8 MiB");
    assert_eq!(ok(&frame(0x00, &[13 << 3], &content)), None, "8 MiB");
    refused(&frame(0x00, &[0xff], &content), "the zstd window is larger than 8 MiB");
    let mut reserved = frame(0x20, &[n as u8], &content);
    reserved[6] |= 6;
    refused(&reserved, "a reserved zstd block type");
    for cut in 0..reserved.len() - content.len() {
        assert!(zstd_frame::header(&reserved[..cut]).is_err());
    }
}

#[test]
fn claims_over_the_limit_are_told_from_damage_and_cost_nothing() {
    let claim = |n: u64| packed_groups(&[("q".into(), 1, frame(0xe0, &n.to_le_bytes(), &[0; 30]))]);
    let walk = |body: &[u8], spent| packed::walk(body, spent, LIMIT).map(drop);
    let too_large = Err(Refused::TooLarge { limit: LIMIT });
    assert_eq!(walk(&claim(u64::MAX), 0), too_large);
    assert_eq!(walk(&claim(LIMIT + 1), 0), too_large);
    assert_eq!(walk(&claim(30), LIMIT - 29), too_large, "with what the request has inflated before");
    assert_eq!(walk(&claim(30), LIMIT - 30), Ok(()));
    let sum = packed_groups(&vec![("q".into(), 1, frame(0xe0, &(LIMIT / 2).to_le_bytes(), &[0; 30])); 3]);
    assert!(
        matches!(walk(&sum, 0), Err(Refused::Malformed(what)) if what.contains("claims more")),
        "30 bytes cannot be 512 KiB"
    );
    let open = |raw_len: u32, z: &[u8]| {
        let body = [b"QPB1", &[1][..], &raw_len.to_le_bytes(), z].concat();
        push::open(&body.into(), LIMIT).map(drop)
    };
    assert_eq!(open(LIMIT as u32 + 1, b""), too_large);
    assert!(matches!(open(100, &squeeze(&[0; 99])), Err(Refused::Malformed(_))));
    assert!(
        matches!(open(1000, &frame(0, &[0x60], &[0; 30])), Err(Refused::Malformed(_))),
        "30 raw bytes are not 1000"
    );
    for count in [u32::MAX, 1] {
        assert!(matches!(walk(&count.to_le_bytes(), 0), Err(Refused::Malformed(_))));
        assert!(matches!(plain::items(&count.to_le_bytes(), true), Err(Refused::Malformed(_))));
    }
    assert_eq!(plain::items(&[0; 4], true).unwrap().0, []);
}

#[test]
fn a_transaction_has_a_head_and_packed_groups() {
    let body = [b"QTB1", &[2][..], &3u32.to_le_bytes(), b"{ }", &0u32.to_le_bytes()].concat();
    let open = transaction::open(&body).unwrap();
    assert_eq!((open.counts, open.head, open.groups), (true, &b"{ }"[..], &[0; 4][..]));
    let empty = [b"QTB1", &[0][..], &[0; 8]].concat();
    assert_eq!(transaction::open(&empty).unwrap().head, b"{}");
    for flags in [1u8, 4, 8, 16, 3, 0x80] {
        let body = [b"QTB1", &[flags][..], &[0; 8]].concat();
        assert!(matches!(transaction::open(&body), Err(Refused::Malformed(what)) if what.contains("flags")));
    }
    assert!(transaction::open(b"QPB1\0\0\0\0\0").is_err());
    assert!(push::open(&Bytes::from_static(b"QTB1\0\0\0\0\0"), LIMIT).is_err());
}

/// What fuzzing found worth keeping, and all vectors.
#[test]
fn the_corpus_is_replayed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |dir: &str| -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(root.join(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
        entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
    };
    let vectors = files("tests/vectors");
    for (target, run) in [
        ("push_body", targets::push_body as fn(&[u8])),
        ("transaction_body", targets::transaction_body),
        ("frames", targets::frames),
        ("zstd", targets::zstd),
    ] {
        let corpus = files(&format!("fuzz/corpus/{target}"));
        assert!(!corpus.is_empty(), "{target}");
        vectors.iter().chain(&corpus).for_each(|data| run(data));
    }
}
