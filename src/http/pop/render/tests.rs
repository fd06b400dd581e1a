use super::*;
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::frames::{FrameHead, FrameWriter};
use queen_shards::ids::{GroupId, MessageId, Stamp};

const LEASE: LeaseId = LeaseId(0x01990a12_4410_7bbb_9bbb_0000000000f1);
const ID: u128 = 0x01990a11_7c20_7d3e_8a41_5f0e6a7b1c01;

fn frames(messages: &[(&str, &str)]) -> Bytes {
    let mut writer = FrameWriter::default();
    for (i, (transaction_id, payload)) in messages.iter().enumerate() {
        let head = FrameHead { id: MessageId(ID + i as u128), transaction_id, ..FrameHead::default() };
        writer.push(&head, payload.as_bytes());
    }
    writer.into_bytes()
}

fn raw(base: i64, count: u32, frames: Bytes) -> Record {
    Record {
        base: Offset(base),
        created_at: Stamp(1_789_200_930_123_456),
        count,
        codec: Codec::Raw,
        flags: 0,
        raw_len: frames.len() as u32,
        body: frames,
        frames: None,
        keys: Bytes::new(),
    }
}

fn packed(record: &Record) -> Record {
    let body = zstd::bulk::compress(&record.body, 1).unwrap().into();
    Record { codec: Codec::Zstd, body, ..record.clone() }
}

fn claim(start: i64, end: i64, records: Vec<Record>) -> Claim {
    Claim {
        partition: PartitionId(57607),
        group: GroupId(1),
        name: "acct-7".into(),
        start: Offset(start),
        end: Offset(end),
        attempt: 1,
        records,
    }
}

fn answer(claims: &[Claim]) -> Answer<'_> {
    Answer {
        queue: "billing.refund",
        group: "ledger",
        lease: Some(LEASE),
        claims,
        policy: Policy::default(),
        cipher: None,
        autopilot: None,
    }
}

#[track_caller]
fn rendered(answer: &Answer<'_>) -> String {
    String::from_utf8(render(answer).unwrap()).unwrap()
}

/// (offset, data) of every message.
#[track_caller]
fn delivered(claims: &[Claim]) -> Vec<(i64, String)> {
    let answer: serde_json::Value = serde_json::from_str(&rendered(&answer(claims))).unwrap();
    let message = |m: &serde_json::Value| (m["offset"].as_i64().unwrap(), m["data"].to_string());
    answer["messages"].as_array().unwrap().iter().map(message).collect()
}

#[test]
fn the_answer_of_the_contract() {
    let record = raw(18, 1, frames(&[("rf-2201", r#"{"cents":1250}"#)]));
    let want = concat!(
        r#"{"success":true,"queue":"billing.refund","partition":"acct-7","partitionId":"57607","#,
        r#""leaseId":"01990a12-4410-7bbb-9bbb-0000000000f1","consumerGroup":"ledger","messages":["#,
        r#"{"id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c01","transactionId":"rf-2201","traceId":null,"#,
        r#""data":{"cents":1250},"producerSub":null,"createdAt":"2026-09-12T08:15:30.123456Z","#,
        r#""partitionId":"57607","partition":"acct-7","leaseId":"01990a12-4410-7bbb-9bbb-0000000000f1","#,
        r#""consumerGroup":"ledger","deliveryAttempt":1,"offset":18}],"partitionsClaimed":1}"#
    );
    assert_eq!(rendered(&answer(&[claim(18, 18, vec![record.clone()])])), want);
    assert_eq!(rendered(&answer(&[claim(18, 18, vec![packed(&record)])])), want);
    let at_hand = Record { frames: Some(record.body.clone()), body: Bytes::new(), ..packed(&record) };
    assert_eq!(rendered(&answer(&[claim(18, 18, vec![at_hand])])), want);
}

#[test]
fn without_a_lease_the_lease_id_is_empty() {
    let claims = [claim(0, 0, vec![raw(0, 1, frames(&[("t", "1")]))])];
    let text = rendered(&Answer { lease: None, autopilot: Some((64, 100)), ..answer(&claims) });
    assert_eq!(text.matches(r#""leaseId":"""#).count(), 2);
    assert!(text.ends_with(r#"],"partitionsClaimed":1,"autopilot":{"partitions":64,"batch":100}}"#), "{text}");
    let none = rendered(&Answer { lease: None, ..answer(&[]) });
    let want = concat!(
        r#"{"success":true,"queue":"billing.refund","partition":"","partitionId":"","leaseId":"","#,
        r#""consumerGroup":"ledger","messages":[],"partitionsClaimed":0}"#
    );
    assert_eq!(none, want);
}

#[test]
fn only_the_claimed_offsets_are_delivered() {
    let first = raw(10, 3, frames(&[("a", "10"), ("b", "11"), ("c", "12")]));
    // Retention took 13 to 15.
    let second = packed(&raw(16, 2, frames(&[("d", "16"), ("e", "17")])));
    let span = |start, end| delivered(&[claim(start, end, vec![first.clone(), second.clone()])]);
    let rows = |offsets: &[i64]| offsets.iter().map(|n| (*n, n.to_string())).collect::<Vec<_>>();
    assert_eq!(span(10, 17), rows(&[10, 11, 12, 16, 17]));
    assert_eq!(span(11, 16), rows(&[11, 12, 16]));
    assert_eq!(span(12, 12), rows(&[12]));
    assert_eq!(span(13, 15), rows(&[]));
    assert_eq!(span(0, 99), rows(&[10, 11, 12, 16, 17]));
}

#[test]
fn messages_of_several_claims_follow_each_other() {
    let one = claim(0, 0, vec![raw(0, 1, frames(&[("a", "1")]))]);
    let empty = claim(5, 6, vec![raw(0, 1, frames(&[("a", "1")]))]);
    let two =
        Claim { partition: PartitionId(9), name: "p \"9\"".into(), attempt: 4, ..claim(0, 0, one.records.clone()) };
    let text = rendered(&answer(&[empty, one, two]));
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["partitionsClaimed"], 2);
    assert_eq!(answer["messages"][1]["partition"], "p \"9\"");
    assert_eq!(answer["messages"][1]["partitionId"], "9");
    assert_eq!(answer["messages"][1]["deliveryAttempt"], 4);
}

#[test]
fn golden_frames_are_rendered() {
    let stored: &[u8] = include_bytes!("../../../../shards/tests/golden/stored-flags.bin");
    let text = rendered(&answer(&[claim(0, 4, vec![raw(0, 5, stored.into())])]));
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let trace = "0190a0a0-1111-4222-8333-444455556666";
    let rows: Vec<_> =
        answer["messages"].as_array().unwrap().iter().map(|m| (&m["traceId"], &m["producerSub"])).collect();
    let null = serde_json::Value::Null;
    let (trace, billing, four) = (trace.into(), "svc-billing".into(), "svc-é".into());
    assert_eq!(rows, [(&null, &null), (&trace, &null), (&null, &billing), (&trace, &four), (&null, &null)]);
    assert_eq!(answer["messages"][4]["data"], null, "an empty payload reads as null");
    assert_eq!(answer["messages"][3]["data"], "four");
}

/// Binary forms 15.5: neither form is answered with a part of a damaged record. Reliability H5.
#[test]
fn a_damaged_record_fails_the_whole_answer() {
    let good = raw(0, 3, frames(&[("a", "1"), ("b", "2"), ("c", "3")]));
    let damaged = |record: Record| {
        let claims = [claim(0, 0, vec![good.clone()]), claim(0, 0, vec![record])];
        render(&answer(&claims)).expect_err("damaged").to_string()
    };
    let z = packed(&good);
    let with = |record: &Record, change: &dyn Fn(&mut Vec<u8>)| {
        let mut body = record.body.to_vec();
        change(&mut body);
        Record {
            raw_len: if record.codec == Codec::Raw { body.len() as u32 } else { record.raw_len },
            body: body.into(),
            ..record.clone()
        }
    };
    let size = "record of partition 57607 at offset 0 is damaged: its size is not the stored one";
    assert_eq!(damaged(Record { raw_len: 1, ..good.clone() }), size);
    assert_eq!(damaged(Record { raw_len: 1, ..z.clone() }), size);
    assert_eq!(damaged(Record { raw_len: u32::MAX, ..z.clone() }), size);
    assert!(damaged(with(&z, &|body| body.truncate(body.len() - 1))).ends_with("it does not inflate"));
    assert!(damaged(with(&z, &|body| body.push(0))).ends_with("it does not inflate"));
    assert!(damaged(with(&z, &|body| body[0] ^= 1)).ends_with("it does not inflate"));
    assert!(damaged(Record { body: Bytes::new(), ..z.clone() }).contains("damaged"));
    assert!(damaged(Record { count: 2, ..good.clone() }).ends_with("its number of frames is not the stored one"));
    assert!(damaged(Record { count: 4, ..good.clone() }).ends_with("its number of frames is not the stored one"));
    assert!(damaged(with(&good, &|body| body.truncate(body.len() - 1))).ends_with("is longer than what is left"));
    let cut = with(&good, &|body| body.extend([1, 0]));
    assert!(damaged(cut).ends_with("frames end within the length of the frame at 75"));
    for bit in 0..z.body.len() * 8 {
        // Any one flipped bit is refused or inflates to frames that parse; nothing panics.
        let _ = render(&answer(&[claim(0, 2, vec![with(&z, &|body| body[bit / 8] ^= 1 << (bit % 8))])]));
    }
}

#[test]
fn the_room_reserved_is_about_what_is_needed() {
    let payload = format!("\"{}\"", "x".repeat(256));
    let messages: Vec<(&str, &str)> = (0..100).map(|_| ("01990a11-7c20-7d3e-8a41-5f0e6a7b1c01", &*payload)).collect();
    let claims = [claim(20, 79, vec![raw(0, 100, frames(&messages))])];
    let room = estimate(&answer(&claims));
    let used = render(&answer(&claims)).unwrap().len();
    assert!(used <= room && room < used * 3 / 2, "{used} of {room}");
}
