use super::*;
use queen_shards::command::Disposition;

const LEASE: &str = "01990a12-4410-7bbb-9bbb-0000000000f1";
const LEASE_ID: LeaseId = LeaseId(0x01990a12_4410_7bbb_9bbb_0000000000f1);

fn keys() -> KeyHasher {
    KeyHasher::new(b"0123456789abcdef")
}

#[track_caller]
fn sets(body: &str, form: Form) -> (Vec<AckSet>, Vec<Fate>) {
    let acks = parse::parse(body.as_bytes(), form).expect(body);
    let split = split(TenantId::DEFAULT, &acks, &keys());
    (split.sets, split.fates)
}

/// The answer to `body` when the sets get these verdicts in order.
#[track_caller]
fn answered(body: &str, form: Form, verdicts: Vec<Option<SetVerdict>>, tenancy: bool) -> String {
    let acks = parse::parse(body.as_bytes(), form).expect(body);
    let split = split(TenantId::DEFAULT, &acks, &keys());
    assert_eq!(split.sets.len(), verdicts.len(), "sets");
    String::from_utf8(answer(&acks.items, &split.fates, &verdicts, tenancy)).unwrap()
}

fn verdict(items: &[AckOutcome], released: bool) -> Option<SetVerdict> {
    Some(SetVerdict { items: items.to_vec(), released, conflated: None })
}

fn batch(items: &[(&str, &str, &str)]) -> String {
    let item = |(id, partition, lease): &(&str, &str, &str)| {
        format!(r#"{{"transactionId":"{id}","partitionId":"{partition}","leaseId":"{lease}","status":"ok"}}"#)
    };
    format!(r#"{{"acknowledgments":[{}]}}"#, items.iter().map(item).collect::<Vec<_>>().join(","))
}

#[test]
fn a_single_ack_is_one_set() {
    let body = format!(
        r#"{{"transactionId":"rf-2201","partitionId":"57607","status":"failed","consumerGroup":"ledger","leaseId":"{LEASE}","error":"ledger closed"}}"#
    );
    let (sets, fates) = sets(&body, Form::Single);
    let [set] = &sets[..] else { panic!("one set") };
    assert_eq!((set.partition, &*set.group, set.lease), (PartitionId(57607), "ledger", Some(LEASE_ID)));
    assert_eq!((set.items[0].word, set.items[0].error.as_deref()), (Disposition::Failed, Some("ledger closed")));
    assert_eq!(set.items[0].key, keys().key(b"rf-2201"));
    assert_eq!(fates, [Fate::Asks { set: 0, item: 0 }]);
}

/// Data plane 5.3: once per closed conflating lease, on the item that closed it.
#[test]
fn what_conflation_retired_is_said_once() {
    let closed = SetVerdict {
        items: vec![AckOutcome::Unresolvable, AckOutcome::Accepted],
        released: true,
        conflated: Some(queen_shards::command::Conflated { item: 1, messages: 41 }),
    };
    let body = batch(&[("a", "1", LEASE), ("b", "1", LEASE), ("c", "2", LEASE)]);
    let text = answered(&body, Form::Batch, vec![Some(closed), verdict(&[AckOutcome::Accepted], true)], false);
    assert_eq!(text.matches("conflated").count(), 1, "{text}");
    let item = r#"{"index":1,"transactionId":"b","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false,"conflated":41}"#;
    assert!(text.contains(item), "{text}");
}

#[test]
fn what_is_absent_or_null_has_its_meaning() {
    for body in [
        r#"{"partitionId":"1"}"#,
        r#"{"partitionId":"1","transactionId":null,"status":null,"leaseId":null,"error":null,"consumerGroup":null}"#,
        r#"{"partitionId":"1","transactionId":"","leaseId":"","error":""}"#,
    ] {
        let (sets, _) = sets(body, Form::Single);
        assert_eq!((&*sets[0].group, sets[0].lease), ("__QUEUE_MODE__", None), "{body}");
        assert_eq!((sets[0].items[0].word, &sets[0].items[0].error), (Disposition::Completed, &None), "{body}");
    }
    for body in [
        "{}",
        r#"{"acknowledgments":null}"#,
        r#"{"acknowledgments":[]}"#,
        r#"{"acknowledgments":[{}],"acknowledgments":[]}"#,
    ] {
        assert_eq!(answered(body, Form::Batch, vec![], false), "[]");
    }
}

#[test]
fn the_group_of_a_batch_is_named_at_its_top() {
    let body = r#"{"acknowledgments":[{"partitionId":"1","consumerGroup":7}],"consumerGroup":"g"}"#;
    let (sets, _) = sets(body, Form::Batch);
    assert_eq!(&*sets[0].group, "g");
}

/// Data plane 5.2.
#[test]
fn an_unknown_word_never_completes() {
    for (status, word) in [
        ("\"completed\"", Disposition::Completed),
        ("\"success\"", Disposition::Completed),
        ("\"acked\"", Disposition::Completed),
        ("\"ok\"", Disposition::Completed),
        ("\"o\\u006b\"", Disposition::Completed),
        ("\"retry\"", Disposition::Retry),
        ("\"dlq\"", Disposition::Dlq),
        ("\"\"", Disposition::Failed),
        ("\"Completed\"", Disposition::Failed),
        ("\"COMPLETED\"", Disposition::Failed),
        ("\"nack\"", Disposition::Failed),
        ("\"\\ud800\"", Disposition::Failed),
    ] {
        let (sets, _) = sets(&format!(r#"{{"partitionId":"1","status":{status}}}"#), Form::Single);
        assert_eq!(sets[0].items[0].word, word, "{status}");
    }
}

/// Probe R06: a reason that the store cannot take is cleaned, so that the nack counts.
#[test]
fn a_reason_is_cleaned_for_the_store() {
    for (error, want) in [
        (r#""boom\u0000tail""#, "boom\u{fffd}tail"),
        (r#""half \ud800 pair""#, "half \u{fffd} pair"),
        (r#""\udc00\u0000\ud83d\ude00""#, "\u{fffd}\u{fffd}😀"),
        (r#""line\nnext\u0001""#, "line\nnext\u{1}"),
    ] {
        let item = format!(r#"{{"partitionId":"1","status":"failed","error":{error}}}"#);
        let (single, _) = sets(&item, Form::Single);
        let (batch, _) = sets(&format!(r#"{{"acknowledgments":[{item}]}}"#), Form::Batch);
        assert_eq!(single[0].items[0].error.as_deref(), Some(want));
        assert_eq!(batch[0].items[0].error.as_deref(), Some(want));
    }
}

#[test]
fn bad_bodies_are_refused() {
    let refused = |body: &[u8], form, want: &str| {
        assert_eq!(parse::parse(body, form).unwrap_err(), want, "{}", String::from_utf8_lossy(body));
    };
    refused(b"", Form::Single, "bad body: unexpected end of JSON at line 1 column 1");
    refused(b"[]", Form::Single, "bad body: an acknowledgment must be an object at line 1 column 1");
    refused(
        b"{\"transactionId\":7}",
        Form::Single,
        "bad body: transactionId must be a string or null at line 1 column 18",
    );
    refused(
        b"{\"partitionId\":57607}",
        Form::Single,
        "bad body: partitionId must be a string or null at line 1 column 16",
    );
    refused(b"{\"status\":true}", Form::Single, "bad body: status must be a string or null at line 1 column 11");
    refused(b"{\"error\":{}}", Form::Single, "bad body: error must be a string or null at line 1 column 10");
    refused(b"{\"leaseId\":[]}", Form::Single, "bad body: leaseId must be a string or null at line 1 column 12");
    refused(
        b"{\"consumerGroup\":0}",
        Form::Single,
        "bad body: consumerGroup must be a string or null at line 1 column 18",
    );
    refused(b"{\"transactionId\":\"\\ud800\"}", Form::Single, "bad body: lone surrogate in a text at line 1 column 18");
    refused(b"{\"transactionId\":\"\xff\"}", Form::Single, "bad body: invalid unicode code point at line 1 column 19");
    refused(b"{} x", Form::Batch, "bad body: trailing characters at line 1 column 4");
    refused(b"{\"acknowledgments\":{}}", Form::Batch, "bad body: acknowledgments must be an array at line 1 column 20");
    refused(
        b"{\"acknowledgments\":[null]}",
        Form::Batch,
        "bad body: an acknowledgment must be an object at line 1 column 21",
    );
    refused(b"{\"consumerGroup\":\"\\u0000\"}", Form::Batch, "control characters are not allowed in consumerGroup");
    let long = format!(r#"{{"consumerGroup":"{}"}}"#, "g".repeat(1025));
    refused(long.as_bytes(), Form::Single, "consumerGroup exceeds the 1024-byte limit");
    let deep = format!(r#"{{"x":{}"#, "[".repeat(1_000_000));
    assert!(parse::parse(deep.as_bytes(), Form::Batch).unwrap_err().contains("nested too deep"));
}

/// Data plane 5.4: sets by (partition, lease), items in request order.
#[test]
fn items_are_split_into_sets_and_joined_again() {
    let other = "01990a12-4410-7bbb-9bbb-0000000000f2";
    let upper = LEASE.to_uppercase();
    let body = batch(&[
        ("a", "1", LEASE),
        ("b", "2", LEASE),
        ("c", "1", LEASE),
        ("d", "1", other),
        ("e", "1", ""),
        ("f", "1", "junk"),
        ("g", "1", &upper),
    ]);
    let (sets, fates) = sets(&body, Form::Batch);
    let seen: Vec<_> = sets.iter().map(|set| (set.partition.0, set.lease, set.items.len())).collect();
    let none = LeaseId::NONE;
    assert_eq!(
        seen,
        [
            (1, Some(LEASE_ID), 3),
            (2, Some(LEASE_ID), 1),
            (1, Some(LeaseId(LEASE_ID.0 + 1)), 1),
            (1, None, 1),
            (1, Some(none), 1)
        ]
    );
    assert_eq!(fates[6], Fate::Asks { set: 0, item: 2 });
    assert_eq!(sets[0].items[1].key, keys().key(b"c"));
    use AckOutcome::*;
    let verdicts = vec![
        verdict(&[Accepted, Noop, Unresolvable], true),
        verdict(&[DeadLettered], true),
        verdict(&[InvalidLease], false),
        None,
        verdict(&[InvalidLease], false),
    ];
    let entries: Vec<serde_json::Value> = serde_json::from_str(&answered(&body, Form::Batch, verdicts, false)).unwrap();
    let flag = |name: &str| entries.iter().map(|e| e[name].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!(flag("success"), [true, true, true, false, false, false, false]);
    assert_eq!(flag("leaseReleased"), [true, true, true, false, false, false, false]);
    assert_eq!(flag("dlq"), [false, true, false, false, false, false, false]);
    assert_eq!(flag("noop"), [false, false, true, false, false, false, false]);
    assert_eq!(entries[4]["error"], "ack flush failed; lease will expire and redeliver");
}

#[test]
fn the_answer_of_the_contract() {
    let body = batch(&[("rf-2201", "57607", LEASE), ("r\\\"f", "57607", LEASE)]);
    let verdicts = vec![verdict(&[AckOutcome::Accepted, AckOutcome::InvalidLease], true)];
    let want = concat!(
        r#"[{"index":0,"transactionId":"rf-2201","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false},"#,
        r#"{"index":1,"transactionId":"r\"f","success":false,"error":"invalid or expired lease","leaseReleased":false,"dlq":false,"noop":false}]"#
    );
    assert_eq!(answered(&body, Form::Batch, verdicts, false), want);
}

/// Data plane 5.5; clients match on words of these.
#[test]
fn every_refusal_has_its_text() {
    use AckOutcome::*;
    for (outcome, tenancy, text) in [
        (AlreadyCommitted, false, "already committed: the cursor moved past this message before this ack"),
        (
            Unresolvable,
            false,
            "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers",
        ),
        (InvalidLease, false, "invalid or expired lease"),
        (ConsumerNotFound, false, "consumer not found"),
        (ConsumerNotFound, true, "consumer not found"),
        (NotOwned, false, "consumer not found"),
        (NotOwned, true, "partition not owned by tenant"),
        (DlqRejected, false, "dlq rejected"),
        (StoreFailed, false, "ack flush failed; lease will expire and redeliver"),
    ] {
        let answer = answered(r#"{"partitionId":"1"}"#, Form::Single, vec![verdict(&[outcome], false)], tenancy);
        let entries: Vec<serde_json::Value> = serde_json::from_str(&answer).unwrap();
        assert_eq!((&entries[0]["success"], &entries[0]["error"]), (&false.into(), &text.into()));
    }
}

#[test]
fn a_malformed_partition_id_fails_its_item_alone() {
    for (id, why) in [
        ("", "cannot parse integer from empty string"),
        ("abc", "unexpected character 'a'"),
        ("-1", "unexpected character '-'"),
        ("+1", "unexpected character '+'"),
        ("1.0", "unexpected character '.'"),
        ("٣", "unexpected character '٣'"),
        ("0", "it must be positive"),
        ("9223372036854775808", "number too large to fit in target type"),
        (LEASE, "unexpected character 'a'"),
    ] {
        let body = batch(&[("a", id, LEASE), ("b", "9223372036854775807", LEASE)]);
        let verdicts = vec![verdict(&[AckOutcome::Accepted], false)];
        let entries: Vec<serde_json::Value> =
            serde_json::from_str(&answered(&body, Form::Batch, verdicts, false)).unwrap();
        assert_eq!((&entries[0]["success"], &entries[1]["success"]), (&false.into(), &true.into()));
        assert_eq!(entries[0]["error"], format!("invalid partitionId: {why}"));
    }
}
