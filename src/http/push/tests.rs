use super::answer::answer;
use super::parse::{Parsed, parse};
use super::plan::{Fate, PACK_MIN, Plan, Sender, plan, plan_each};
use super::told::Told;
use queen_shards::command::{DraftVerdict, Duplicate};
use queen_shards::frames::Frames;
use queen_shards::ids::{MessageId, Offset, TenantId};
use queen_shards::key::KeyHasher;

mod differential;
mod packed;

fn ids(n: usize) -> Vec<MessageId> {
    (0..n).map(|i| MessageId(0x01990a11_7c20_7d3e_8a41_5f0e6a7b1c00 + i as u128)).collect()
}

fn keys() -> KeyHasher {
    KeyHasher::new(b"0123456789abcdef")
}

fn planned<'a>(parsed: &Parsed<'a>) -> Plan {
    plan(
        Sender { tenant: TenantId::DEFAULT, producer: None, cipher: None },
        parsed,
        &ids(parsed.items.len()),
        &keys(),
        1,
    )
}

fn stored(base: i64) -> DraftVerdict {
    DraftVerdict::Stored { base: Offset(base), duplicates: vec![] }
}

/// The answer to `body` when the drafts get these verdicts in order.
#[track_caller]
fn answered(body: &str, verdicts: &[DraftVerdict]) -> String {
    let parsed = parse(body.as_bytes()).expect("a good body");
    let plan = planned(&parsed);
    assert_eq!(plan.drafts.len(), verdicts.len(), "drafts");
    let of_lane: Vec<DraftVerdict> =
        plan.draft_of_lane.iter().map(|d| d.map_or(DraftVerdict::Failed, |d| verdicts[d as usize].clone())).collect();
    let ids = ids(parsed.items.len());
    String::from_utf8(answer(&Told::of(&parsed, &ids), &ids, &plan.fates, &of_lane)).unwrap()
}

#[track_caller]
fn refused(body: impl AsRef<[u8]>, want: &str) {
    let body = body.as_ref();
    let text = parse(body).map(drop).expect_err(&String::from_utf8_lossy(body));
    assert_eq!(text, want, "{}", String::from_utf8_lossy(body));
    let json = crate::http::json::error_body(&text);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).unwrap()["error"], text);
}

#[test]
fn the_answer_of_the_contract() {
    let body = r#"{"items":[
      {"queue":"billing.refund","partition":"acct-7","transactionId":"rf-2201","payload":{"cents":1250}},
      {"queue":"audit","payload":"refund requested"}]}"#;
    let want = concat!(
        r#"[{"index":0,"message_id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c00","transaction_id":"rf-2201","queueName":"billing.refund","#,
        r#""status":"queued","offset":18},"#,
        r#"{"index":1,"message_id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c01","transaction_id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c01","#,
        r#""queueName":"audit","status":"queued","offset":0}]"#
    );
    assert_eq!(answered(body, &[stored(18), stored(0)]), want);
    assert_eq!(answered(r#"{"items":[]}"#, &[]), "[]");
}

#[test]
fn a_draft_holds_what_was_sent() {
    let body = r#"{"items":[{"queue":"q","transactionId":"a","payload": {"n" : 1.0} },{"queue":"r","payload":null},{"queue":"q","payload":[]}]}"#;
    let parsed = parse(body.as_bytes()).unwrap();
    let plan = planned(&parsed);
    let [q, r] = &plan.drafts[..] else { panic!("two drafts") };
    assert_eq!((&*q.lane.queue, &*q.lane.partition, q.count, q.all_minted, q.flags), ("q", "Default", 2, false, 0));
    assert_eq!((&*r.lane.queue, &*r.lane.partition, r.count, r.all_minted, r.flags), ("r", "Default", 1, true, 0));
    let frames: Vec<_> = Frames::new(&q.frames).map(Result::unwrap).collect();
    let minted = "01990a11-7c20-7d3e-8a41-5f0e6a7b1c02";
    assert_eq!((frames[0].id, frames[0].transaction_id, frames[0].payload), (ids(3)[0], "a", &br#"{"n" : 1.0}"#[..]));
    assert_eq!((frames[1].id, frames[1].transaction_id, frames[1].payload), (ids(3)[2], minted, &b"[]"[..]));
    let want: Vec<u8> = ["a", minted].iter().flat_map(|id| keys().key(id.as_bytes()).0.to_le_bytes()).collect();
    assert_eq!(q.keys, want);
}

/// Reliability H9, H8; probe R10.
#[test]
fn payloads_stay_byte_for_byte() {
    let deep = "[".repeat(900) + &"]".repeat(900);
    let digits = "9".repeat(400);
    let mut payloads = vec![
        r#"{"a":9007199254740993,"b":123456789012345678901234567890,"c":1e400,"d":-0,"e":1.0,"f":0.1000000000000000055511151231257827,"g":1E+2}"#,
        "null",
        "{}",
        "[]",
        "\"\"",
        "0",
        "false",
        "true",
        "-0",
        "-0.0",
        "1.0",
        "1.50",
        "1e400",
        "1E+2",
        "1e-400",
        "9007199254740993",
        "18446744073709551616",
        "-9223372036854775809",
        r#""\u0000""#,
        r#""\ud800""#,
        r#""\udc00 \ud83d\ude00""#,
        "\"\u{fffe}\u{ffff}\"",
        r#""caf\u00e9\/""#,
        "\"café 😀\"",
        r#"{"payload":{"payload":1},"queue":"x"}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"__proto__":null,"":""}"#,
        "{ \"a\" :\t[ 1 ,\n2 ] }",
        r#"{"x":"}]\"\\"}"#,
    ];
    payloads.extend([&*deep, &*digits]);
    for payload in payloads {
        for body in [
            format!(r#"{{"items":[{{"queue":"q","payload":{payload}}}]}}"#),
            format!("{{\"items\" : [ {{ \"payl\\u006fad\" : \n {payload} \t, \"queue\" : \"q\" }} ] , \"z\":0}}\n"),
            format!(r#"{{"items":[{{"queue":"q","payload":1,"payload":{payload}}}],"payload":2}}"#),
        ] {
            let parsed = parse(body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"));
            let frames = planned(&parsed).drafts[0].frames.clone();
            let frame = Frames::new(&frames).next().unwrap().unwrap();
            assert_eq!(std::str::from_utf8(frame.payload), Ok(payload));
        }
    }
}

/// Data plane 3.1; reliability H4, H8, H10.
#[test]
fn bad_bodies_are_refused_as_a_whole() {
    let bad = |body: &str, want: &str| refused(body, &format!("bad body: {want}"));
    bad("", "unexpected end of JSON at line 1 column 1");
    bad("[]", "expected an object with `items` at line 1 column 1");
    bad("{}", "items is required at line 1 column 3");
    bad(r#"{"Items":[]}"#, "items is required at line 1 column 13");
    bad(r#"{"items":null}"#, "items must be an array at line 1 column 10");
    bad(r#"{"items":{}}"#, "items must be an array at line 1 column 10");
    bad(r#"{"items":[1]}"#, "an item must be an object at line 1 column 11");
    bad(r#"{"items":[[]]}"#, "an item must be an object at line 1 column 11");
    bad(r#"{"items":[{"queue":"q"}]}"#, "payload is required at line 1 column 24");
    bad(r#"{"items":[{"queue":"q","data":1}]}"#, "payload is required at line 1 column 33");
    bad(r#"{"items":[{"queue":"q","Payload":1}]}"#, "payload is required at line 1 column 36");
    bad(r#"{"items":[{"payload":1}]}"#, "queue is required at line 1 column 24");
    bad(r#"{"items":[{"payload":1,"queue":null}]}"#, "queue must be a string at line 1 column 32");
    bad(r#"{"items":[{"payload":1,"queue":7}]}"#, "queue must be a string at line 1 column 32");
    bad(
        r#"{"items":[{"payload":1,"queue":"q","partition":7}]}"#,
        "partition must be a string or null at line 1 column 48",
    );
    bad(
        r#"{"items":[{"payload":1,"queue":"q","transactionId":7}]}"#,
        "transactionId must be a string or null at line 1 column 52",
    );
    bad(r#"{"items":[{"payload":01,"queue":"q"}]}"#, "invalid number at line 1 column 24");
    bad(r#"{"items":[{"payload":NaN,"queue":"q"}]}"#, "expected value at line 1 column 22");
    bad(r#"{"items":[{"queue":"q","payload":1}],}"#, "trailing comma at line 1 column 38");
    bad(r#"{"items":[{"queue":"q","payload":1}]}x"#, "trailing characters at line 1 column 38");
    bad(r#"{"items":[{"queue":"q","payload":1}"#, "unexpected end of JSON at line 1 column 36");
    bad(r#"{"items":[{"queue":"a\ud800","payload":1}]}"#, "lone surrogate in a text at line 1 column 20");
    bad(
        r#"{"items":[{"queue":"q","payload":1,"transactionId":"\udc00"}]}"#,
        "lone surrogate in a text at line 1 column 52",
    );
    bad("{\"items\":[{\"queue\":\"a\tb\",\"payload\":1}]}", "control character in a string at line 1 column 22");
    bad(
        "\u{feff}{\"items\":[]}",
        "expected an object with `items` at line 1 column 1"
            .replace("expected an object with `items`", "expected value")
            .as_str(),
    );
    refused(
        b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xff\"}]}",
        "bad body: invalid unicode code point at line 1 column 35",
    );
    refused(
        b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xc0\xaf\"}]}",
        "bad body: invalid unicode code point at line 1 column 35",
    );
    refused(b"{\"items\":[],\"x\":\"\xed\xa0\x80\"}", "bad body: invalid unicode code point at line 1 column 18");
    let deep = format!(r#"{{"items":[{{"queue":"q","payload":{}"#, "[".repeat(1_000_000));
    bad(&deep, "nested too deep (1024 levels at most) at line 1 column 1055");
    let deep_envelope = format!(r#"{{"x":{}"#, r#"{"a":["#.repeat(500_000));
    assert!(parse(deep_envelope.as_bytes()).unwrap_err().starts_with("bad body: nested too deep"));
}

#[test]
fn control_characters_are_refused_with_their_own_text() {
    let want = "control characters are not allowed in queue, partition or transactionId";
    for field in ["queue", "partition", "transactionId"] {
        for escape in ["\\u0000", "\\n", "\\u001f", "\\b"] {
            let item = format!(r#"{{"queue":"q","{field}":"a{escape}","payload":1}}"#);
            refused(format!(r#"{{"items":[{item}]}}"#), want);
            refused(format!(r#"{{"items":[{{"queue":"ok","payload":1}},{item}]}}"#), want);
        }
    }
    // What is no JSON at all is that first.
    refused(r#"{"items":[{"queue":"\u0000","payload":1},]}"#, "bad body: trailing comma at line 1 column 42");
    assert!(parse(r#"{"items":[{"queue":"q\u007f\u0080","payload":"\u0000"}]}"#.as_bytes()).is_ok());
}

#[test]
fn a_transaction_id_that_no_frame_can_hold_is_refused_with_its_index() {
    let body = |n: usize| {
        let id = "x".repeat(n);
        format!(r#"{{"items":[{{"queue":"q","payload":1}},{{"queue":"q","payload":1,"transactionId":"{id}"}}]}}"#)
    };
    assert!(parse(body(65_535).as_bytes()).is_ok());
    refused(body(65_536), "transactionId of item 1 exceeds the 65535-byte limit");
}

#[test]
fn the_last_of_duplicate_keys_wins() {
    let body = r#"{"items":[{"queue":"no","payload":1}],"items":[
        {"queue":"a","queue":"b","partition":"p","partition":null,"transactionId":null,"transactionId":"t","payload":1,"payload":2}]}"#;
    let parsed = parse(body.as_bytes()).unwrap();
    assert_eq!((parsed.items.len(), parsed.lanes.len()), (1, 1));
    assert_eq!((&*parsed.lanes[0].queue, &*parsed.lanes[0].partition), ("b", "Default"));
    assert_eq!((parsed.items[0].transaction_id.as_deref(), parsed.items[0].payload), (Some("t"), "2"));
    refused(
        r#"{"items":[{"queue":1,"queue":"b","payload":1}]}"#,
        "bad body: queue must be a string at line 1 column 20",
    );
}

#[test]
fn names_that_cannot_be_provisioned_refuse_their_items_alone() {
    let (long, fits) = ("n".repeat(1025), "n".repeat(1024));
    let body = format!(
        r#"{{"items":[{{"queue":"","payload":1}},{{"queue":"q","partition":"","payload":1,"transactionId":"t"}},
        {{"queue":"{long}","payload":1}},{{"queue":"q","partition":"{long}","payload":1}},
        {{"queue":"{fits}","partition":"{fits}","payload":1}},{{"queue":"q","partition":"","payload":1,"transactionId":"t"}}]}}"#
    );
    let answer = answered(&body, &[stored(4)]);
    let entries: Vec<serde_json::Value> = serde_json::from_str(&answer).unwrap();
    let errors: Vec<_> = entries.iter().map(|e| (e["status"].as_str().unwrap(), e["error"].as_str())).collect();
    assert_eq!(
        errors,
        [
            ("error", Some("queue name is empty")),
            ("error", Some("partition name is empty")),
            ("error", Some("queue name exceeds the 1024-byte limit")),
            ("error", Some("partition name exceeds the 1024-byte limit")),
            ("queued", None),
            ("error", Some("partition name is empty")),
        ]
    );
    assert_eq!(entries[5]["message_id"], "01990a11-7c20-7d3e-8a41-5f0e6a7b1c05", "refused items take part in no dedup");
    assert!(entries[5].get("offset").is_none());
}

fn item(partition: &str, id: &str) -> String {
    format!(r#"{{"queue":"q","partition":"{partition}","transactionId":"{id}","payload":0}}"#)
}

fn body(items: &[(&str, &str)]) -> String {
    let items: Vec<String> = items.iter().map(|(partition, id)| item(partition, id)).collect();
    format!(r#"{{"items":[{}]}}"#, items.join(","))
}

/// (status, id's last byte, offset) of each entry.
#[track_caller]
fn statuses(body: &str, verdicts: &[DraftVerdict]) -> Vec<(String, String, Option<i64>)> {
    let entries: Vec<serde_json::Value> = serde_json::from_str(&answered(body, verdicts)).unwrap();
    let id = |entry: &serde_json::Value| entry["message_id"].as_str().unwrap()[34..].to_string();
    entries.iter().map(|e| (e["status"].as_str().unwrap().into(), id(e), e["offset"].as_i64())).collect()
}

fn expect(rows: &[(&str, &str, Option<i64>)]) -> Vec<(String, String, Option<i64>)> {
    rows.iter().map(|(status, id, offset)| (status.to_string(), id.to_string(), *offset)).collect()
}

/// Data plane 3.5, layer 1.
#[test]
fn followers_report_what_their_leader_came_to() {
    let body = body(&[("p", "a"), ("p", "b"), ("p", "a"), ("o", "a"), ("p", "a"), ("p", "b")]);
    assert_eq!(
        statuses(&body, &[stored(7), stored(0)]),
        expect(&[
            ("queued", "00", Some(7)),
            ("queued", "01", Some(8)),
            ("duplicate", "00", Some(7)),
            ("queued", "03", Some(0)),
            ("duplicate", "00", Some(7)),
            ("duplicate", "01", Some(8)),
        ])
    );
    // The leader is a duplicate of a stored message: so are its followers. The other one's offset has no gap.
    let original = Duplicate { index: 0, offset: Offset(3), id: Some(MessageId(0xee)) };
    let judged = DraftVerdict::Stored { base: Offset(7), duplicates: vec![original] };
    let gone = Duplicate { index: 0, offset: Offset(1), id: None };
    assert_eq!(
        statuses(&body, &[judged, DraftVerdict::Stored { base: Offset(9), duplicates: vec![gone] }]),
        expect(&[
            ("duplicate", "ee", Some(3)),
            ("queued", "01", Some(7)),
            ("duplicate", "ee", Some(3)),
            ("duplicate", "00", Some(1)),
            ("duplicate", "ee", Some(3)),
            ("duplicate", "01", Some(7)),
        ])
    );
    assert_eq!(
        statuses(&body, &[DraftVerdict::Failed, stored(0)]),
        expect(&[
            ("failed", "00", None),
            ("failed", "01", None),
            ("failed", "02", None),
            ("queued", "03", Some(0)),
            ("failed", "04", None),
            ("failed", "05", None),
        ])
    );
    assert_eq!(
        statuses(&body, &[DraftVerdict::Refused("too large"), stored(0)])[4],
        ("error".into(), "04".into(), None)
    );
}

/// Probe R05: nothing is joined into one string, nothing is matched by a suffix.
#[test]
fn different_keys_are_never_taken_for_one() {
    let body = r#"{"items":[{"queue":"r","partition":"a","transactionId":"b:c","payload":1},
        {"queue":"r","partition":"a:b","transactionId":"c","payload":1},{"queue":"r","partition":"ab","transactionId":"c","payload":1},
        {"queue":"r","partition":"a","transactionId":"bc","payload":1},{"queue":"r","partition":"a","transactionId":"é","payload":1},
        {"queue":"r","partition":"a","transactionId":"e\u0301","payload":1},{"queue":"r","partition":"a","xtransactionId":"bc","payload":1}]}"#;
    let parsed = parse(body.as_bytes()).unwrap();
    let plan = planned(&parsed);
    assert!(plan.fates.iter().all(|fate| matches!(fate, Fate::Leads { .. })));
    assert_eq!(plan.drafts.iter().map(|draft| draft.count).collect::<Vec<_>>(), [5, 1, 1]);
}

/// Probe R03.
#[test]
fn two_spellings_of_one_text_are_one() {
    let body = r#"{"items":[{"queue":"r03\u002dx","partition":"R\u0026D \"north\" \\ 1","transactionId":"caf\u00e9\u002fA","payload":1},
        {"queue":"r03-x","partition":"R&D \"north\" \u005c 1","transactionId":"café/A","payload":2}]}"#;
    let answer = answered(body, &[stored(0)]);
    let want = concat!(
        r#"[{"index":0,"message_id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c00","transaction_id":"café/A","queueName":"r03-x","status":"queued","offset":0},"#,
        r#"{"index":1,"message_id":"01990a11-7c20-7d3e-8a41-5f0e6a7b1c00","transaction_id":"café/A","queueName":"r03-x","status":"duplicate","offset":0}]"#
    );
    assert_eq!(answer, want);
    let parsed = parse(body.as_bytes()).unwrap();
    assert_eq!(&*planned(&parsed).drafts[0].lane.partition, "R&D \"north\" \\ 1");
}

#[test]
fn an_empty_transaction_id_is_a_key_like_any_other() {
    assert_eq!(
        statuses(&body(&[("p", ""), ("p", "")]), &[stored(0)]),
        expect(&[("queued", "00", Some(0)), ("duplicate", "00", Some(0))])
    );
}

#[test]
fn lanes_keep_the_order_of_first_appearance_however_many() {
    let names: Vec<String> = (0..5000).map(|i| format!("p{}", i * 7919 % 1000)).collect();
    let items: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "t")).collect();
    let body = body(&items);
    let parsed = parse(body.as_bytes()).unwrap();
    let plan = planned(&parsed);
    let lanes: Vec<&str> = plan.drafts.iter().map(|draft| &*draft.lane.partition).collect();
    assert_eq!(lanes, names[..1000]);
    assert!(plan.drafts.iter().all(|draft| draft.count == 1));
    assert_eq!(plan.fates[4999], Fate::Follows { leader: 999 });
}

/// Data plane 3.7, and 3.5 for what follows an item that is buffered.
#[test]
fn in_maintenance_every_item_is_on_its_own() {
    let item = |queue: &str| format!(r#"{{"queue":"{queue}","transactionId":"t","payload":1}}"#);
    let body = format!(r#"{{"items":[{},{},{}]}}"#, item("q"), item("q"), item(""));
    let parsed = parse(body.as_bytes()).unwrap();
    let keys = KeyHasher::new(&[7; 16]);
    let sender = || Sender { tenant: TenantId::DEFAULT, producer: None, cipher: None };
    let each = plan_each(sender(), &parsed, &ids(3), &keys, 1);
    assert_eq!(each.fates, [Fate::Leads { index: 0 }, Fate::Leads { index: 1 }, Fate::Refused]);
    assert_eq!(each.drafts[0].count, 2);
    for (plan, counts) in [(each, 2), (plan(sender(), &parsed, &ids(3), &keys, 1), 1)] {
        assert_eq!(plan.drafts[0].count, counts);
        let body = answer(
            &Told::of(&parsed, &ids(3)),
            &ids(3),
            &plan.fates,
            &[DraftVerdict::Buffered, DraftVerdict::Refused("no")],
        );
        let entries: Vec<serde_json::Value> = serde_json::from_slice(&body).unwrap();
        let statuses: Vec<&str> = entries.iter().map(|entry| entry["status"].as_str().unwrap()).collect();
        assert_eq!(statuses, ["buffered", "buffered", "error"]);
        assert!(entries[0].get("offset").is_none());
    }
}

/// Binary forms 15.3.
#[test]
fn frames_are_packed_where_that_saves_a_tenth() {
    let draft = |payload: &str| {
        let body = format!(r#"{{"items":[{{"queue":"q","payload":"{payload}"}}]}}"#);
        let parsed = parse(body.as_bytes()).unwrap();
        planned(&parsed).drafts.remove(0)
    };
    let packed = draft(&"ab".repeat(4000));
    let z = packed.packed.expect("repetition packs");
    assert_eq!(zstd::zstd_safe::get_frame_content_size(&z).unwrap(), Some(packed.frames.len() as u64));
    assert_eq!(zstd::bulk::decompress(&z, packed.frames.len()).unwrap(), packed.frames);
    assert!(draft(&"ab".repeat(1000)).packed.is_none(), "below {PACK_MIN} bytes the owner packs");
    // Random letters of a 91-character alphabet carry 6.5 bits a byte: an eighth is saved by coding alone, not more.
    let mut nasty = crate::http::json::nasty::Nasty::new(9);
    let bytes = |n: usize, nasty: &mut crate::http::json::nasty::Nasty| -> String {
        (0..n).map(|_| char::from_u32(0x100 + nasty.below(0x500) as u32).unwrap()).collect()
    };
    let noise = draft(&bytes(4000, &mut nasty));
    if let Some(z) = noise.packed {
        assert!(z.len() <= noise.frames.len() - noise.frames.len() / 10);
    }
}
