use super::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

type Message = (u128, Option<u128>, String, Option<String>, bool, Vec<u8>);

fn message() -> impl Strategy<Value = Message> {
    let text = || vec(any::<char>(), 0..12).prop_map(|text| text.into_iter().collect::<String>());
    (any::<u128>(), option::of(any::<u128>()), text(), option::of(text()), any::<bool>(), vec(any::<u8>(), 0..40))
}

fn write(messages: &[Message]) -> FrameWriter {
    let mut writer = FrameWriter::default();
    for (id, trace, transaction_id, producer, encrypted, payload) in messages {
        let head = FrameHead {
            id: MessageId(*id),
            trace: *trace,
            transaction_id,
            producer: producer.as_deref(),
            encrypted: *encrypted,
        };
        let before = writer.len();
        writer.push(&head, payload);
        assert_eq!(writer.len() - before, head.frame_len(payload.len()));
    }
    writer
}

proptest! {
    /// Reading undoes writing.
    #[test]
    fn frames_yield_what_was_written(messages in vec(message(), 0..20)) {
        let writer = write(&messages);
        let read: Vec<Message> = Frames::new(writer.as_slice())
            .map(|frame| {
                let f = frame.expect("written frames are whole");
                (f.id.0, f.trace, f.transaction_id.into(), f.producer.map(Into::into), f.encrypted(), f.payload.into())
            })
            .collect();
        prop_assert_eq!(&read, &messages);
        prop_assert_eq!(writer.count() as usize, messages.len());
        prop_assert_eq!(count(writer.as_slice()), Ok(writer.count()));
        let flags = Frames::new(writer.as_slice()).fold(0, |flags, frame| flags | frame.unwrap().flags);
        prop_assert_eq!(writer.flags(), flags);
    }

    /// A slice holds exactly the frames asked for, as bytes that stand alone.
    #[test]
    fn a_slice_is_those_frames(messages in vec(message(), 1..12), first in 0u32..12, n in 0u32..12) {
        let writer = write(&messages);
        let sliced = slice(writer.as_slice(), first, n);
        if (first + n) as usize <= messages.len() {
            let part = &messages[first as usize..(first + n) as usize];
            let alone = write(part);
            prop_assert_eq!(&writer.as_slice()[sliced.unwrap()], alone.as_slice());
        } else {
            prop_assert_eq!(sliced, Err(FrameError::TooFew { wanted: first + n }));
        }
    }

    /// Any bytes are walked to an end: every frame lies inside, and a fault is the last thing said.
    #[test]
    fn no_bytes_make_the_walk_panic(raw in vec(any::<u8>(), 0..200)) {
        let mut faults = 0;
        for frame in Frames::new(&raw) {
            prop_assert_eq!(faults, 0);
            match frame {
                Ok(frame) => prop_assert!(frame.range.end <= raw.len()),
                Err(_) => faults += 1,
            }
        }
    }

    /// Damaged frames are refused or read as other frames, never more than there are bytes.
    #[test]
    fn damage_is_found_or_harmless(messages in vec(message(), 1..6), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut raw = write(&messages).as_slice().to_vec();
        let at = at.index(raw.len());
        raw[at] ^= 1 << bit;
        let total: usize = Frames::new(&raw).filter_map(Result::ok).map(|frame| frame.range.len()).sum();
        prop_assert!(total <= raw.len());
        raw.truncate(at);
        let _ = Frames::new(&raw).count();
    }
}

#[test]
fn a_cut_is_named_where_it_is() {
    let writer =
        write(&[(1, None, "a".into(), None, false, b"1".to_vec()), (2, None, "b".into(), None, false, vec![])]);
    let raw = writer.as_slice();
    let second = Frames::new(raw).next().unwrap().unwrap().range.end;
    let last = |raw| Frames::new(raw).last().unwrap();
    assert_eq!(last(&raw[..second + 3]), Err(FrameError::CutLength { at: second }));
    assert_eq!(last(&raw[..raw.len() - 1]), Err(FrameError::CutBody { at: second }));
    let mut short = raw.to_vec();
    short[second] = 18;
    assert_eq!(last(&short), Err(FrameError::TooShort { at: second }));
    let mut not_utf8 = raw.to_vec();
    *not_utf8.last_mut().unwrap() = 0xff;
    assert_eq!(last(&not_utf8), Err(FrameError::NotUtf8 { at: second }));
}

/// The golden frames, made by hand from the specification and read by both official clients.
mod golden {
    use super::*;

    const FLAGS: &[u8] = include_bytes!("../../tests/golden/stored-flags.bin");
    const ENCRYPTED: &[u8] = include_bytes!("../../tests/golden/stored-encrypted.bin");
    const TRACE: Option<u128> = Some(0x0190a0a0_1111_4222_8333_444455556666);

    #[track_caller]
    fn check(raw: &[u8], want: &[(usize, u8, u128, Option<u128>, &str, Option<&str>, &str)]) {
        let mut written = FrameWriter::default();
        let read: Vec<_> = Frames::new(raw)
            .map(|frame| {
                let f = frame.unwrap();
                let head = FrameHead {
                    id: f.id,
                    trace: f.trace,
                    transaction_id: f.transaction_id,
                    producer: f.producer,
                    encrypted: f.encrypted(),
                };
                written.push(&head, f.payload);
                let payload = std::str::from_utf8(f.payload).unwrap();
                (f.range.start, f.flags, f.id.0, f.trace, f.transaction_id, f.producer, payload)
            })
            .collect();
        assert_eq!(read, want);
        assert_eq!(written.as_slice(), raw, "written again they are the same bytes");
    }

    #[test]
    fn stored_flags() {
        check(
            FLAGS,
            &[
                (0, 0, 0x019b76df_3be0_736f_a8ba_dac7c94e1e77, None, "f-a", None, "{\"n\":1}"),
                (33, 1, 0x019b76df_3be1_70e2_ac75_c51be8cd9764, TRACE, "f-b", None, "{\"n\":2}"),
                (82, 2, 0x019b76df_3be2_76e7_bd26_23bd9cbff0e7, None, "f-c", Some("svc-billing"), "[3]"),
                (124, 3, 0x019b76df_3be3_74a8_ac4b_7b34a2bfef43, TRACE, "f-d", Some("svc-é"), "\"four\""),
                (180, 0, 0x019b76df_3be4_7c16_87ac_1c69c3447b59, None, "f-e", None, ""),
            ],
        );
    }

    #[test]
    fn stored_encrypted() {
        let envelope =
            r#"{"encrypted":"q83vEjRWeJA=","iv":"AAECAwQFBgcICQoLDA0ODw==","authTag":"EBESExQVFhcYGRobHB0eHw=="}"#;
        let id = 0x019b76df_3c44_7fb2_ab76_ed9bda034b19;
        check(ENCRYPTED, &[(0, 6, id, None, "f-enc", Some("svc-billing"), envelope)]);
    }
}
