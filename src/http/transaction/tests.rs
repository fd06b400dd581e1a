use super::answer::No;
use super::parse::{Operation, Packed, Parsed, Refused, parse, parse_packed};
use crate::limits::{ITEMS_MAX, TOO_MANY};
use crate::wire::packed::Group;
use queen_shards::command::Disposition;
use queen_shards::ids::LeaseId;

fn good(body: &str) -> Parsed<'_> {
    parse(body.as_bytes()).unwrap_or_else(|refused| panic!("{body}: {refused:?}"))
}

#[track_caller]
fn refused(body: &str, status: u16, reason: &str, part: &str) {
    match parse(body.as_bytes()) {
        Err(Refused::Request(No { status: was, reason: because, error })) => {
            assert_eq!((was, because), (status, reason), "{body}: {error}");
            assert!(error.contains(part), "{body}: {error}");
        }
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn operations_are_flattened_in_order() {
    let parsed = good(
        r#"{"operations":[{"items":[{"queue":"q","payload":{"a": 1}},{"queue":"q","partition":"p","data":2,"transactionId":""}],
        "type":"push"},{"type":"ack","transactionId":"t\u0031","partitionId":"57607","status":"dlq","error":"x"},
        {"type":"push","queue":"q","payload":null,"traceId":"0190A12e-4410-7bbb-9bbb-0000000000f1"},
        {"queue":"r","type":"push","traceId":"no","data":1}]}"#,
    );
    use Operation::{Ack, Push};
    assert_eq!(parsed.order, [Push { item: 0 }, Push { item: 1 }, Ack { ack: 0 }, Push { item: 2 }, Push { item: 3 }]);
    let items = &parsed.pushes.items;
    assert_eq!(items.iter().map(|i| i.payload).collect::<Vec<_>>(), [r#"{"a": 1}"#, "2", "null", "1"]);
    assert_eq!(items.iter().map(|i| i.lane).collect::<Vec<_>>(), [0, 1, 0, 2]);
    assert_eq!(items[2].trace, Some(0x0190_a12e_4410_7bbb_9bbb_0000_0000_00f1));
    assert_eq!((items[3].trace, items[1].transaction_id.as_deref()), (None, None));
    let ack = &parsed.acks[0];
    assert_eq!((&*ack.transaction_id, &*ack.group, ack.lease), ("t1", "__QUEUE_MODE__", None));
    assert_eq!((ack.word, ack.error.as_deref()), (Disposition::Dlq, Some("x")));
}

#[test]
fn an_absent_payload_is_an_empty_object() {
    assert_eq!(good(r#"{"operations":[{"type":"push","queue":"q"}]}"#).pushes.items[0].payload, "{}");
}

#[test]
fn required_leases_ignore_what_is_no_text() {
    let lease = "01990a12-4410-7bbb-9bbb-0000000000f1";
    let body =
        format!(r#"{{"operations":[],"requiredLeases":["{lease}",5,null,"","{lease}","x"],"kv":[],"timers":null}}"#);
    let id = LeaseId(0x0199_0a12_4410_7bbb_9bbb_0000_0000_00f1);
    assert_eq!(good(&body).required_leases, [id, LeaseId::NONE]);
}

#[test]
fn very_many_required_leases_are_read_in_one_pass() {
    let named = |n: u128| format!(r#""00000000-0000-7000-8000-{n:012x}""#);
    let leases: Vec<String> = (0..250_000).chain([7, 0, 249_999]).map(named).collect();
    let body = format!(r#"{{"operations":[],"requiredLeases":[{}]}}"#, leases.join(","));
    let began = std::time::Instant::now();
    assert_eq!(good(&body).required_leases.len(), 250_000);
    // Comparing each with all takes minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn malformed_bundles_are_refused_before_anything_is_asked() {
    let check = |body: &str, part: &str| refused(body, 400, "bad_request", part);
    check("{}", "operations is required");
    check(r#"{"operations":null}"#, "operations is required");
    check(r#"{"operations":{}}"#, "operations must be an array");
    check(r#"{"operations":[],"kv":{}}"#, "kv must be an array");
    check(r#"{"operations":[],"timers":"x"}"#, "timers must be an array");
    check(r#"{"operations":[5]}"#, "operation 0 must be an object");
    check(r#"{"operations":[{"queue":"q"}]}"#, "operation 0: type is required");
    check(r#"{"operations":[{"type":"pop"}]}"#, "unknown type `pop`");
    check(r#"{"operations":[{"type":"kv"}]}"#, "top-level array `kv`");
    check(r#"{"operations":[{"type":"timer"}]}"#, "top-level array `timers`");
    check(r#"{"operations":[{"type":"push","queue":5}]}"#, "queue must be a string");
    check(r#"{"operations":[{"type":"push","items":{}}]}"#, "items must be an array");
    check(r#"{"operations":[{"type":"push","queue":"a\u0001"}]}"#, "control characters");
    check(&format!(r#"{{"operations":[{{"type":"push","queue":"{}"}}]}}"#, "n".repeat(1025)), "1024-byte limit");
}

#[test]
fn riders_are_refused_until_there_is_a_state_plane() {
    refused(r#"{"operations":[],"kv":[{}]}"#, 403, "kv_disabled", "disabled");
    refused(r#"{"timers":[ 1 ]}"#, 403, "timers_disabled", "disabled");
    good(r#"{"operations":[],"kv":[ ],"timers":[]}"#);
}

#[test]
fn what_is_no_json_is_a_bad_body() {
    for body in ["", "[]", "5", "{\"operations\":[}", "{\"operations\":[]} x"] {
        assert!(matches!(parse(body.as_bytes()), Err(Refused::Body(_))), "{body}");
    }
}

/// The operations of the head and the messages behind it count together, before any of the messages is read.
#[test]
fn a_packed_transaction_has_no_more_items_than_another_one() {
    let body = bytes::Bytes::new();
    let frames = [body.clone(), body.clone()];
    let parsed = |n: [u32; 2], head: &[u8]| {
        let group = |n| Group { queue: "q", partition: "p", n, z: b"", raw_len: 0 };
        parse_packed(head, Packed { body: &body, groups: &n.map(group), frames: &frames }).map(drop)
    };
    let head = br#"{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}]}"#;
    let most = ITEMS_MAX as u32;
    for (n, head) in [([most - 1, 1], &head[..]), ([most, 1], b"{}"), ([u32::MAX, u32::MAX], b"{}")] {
        let Err(Refused::Request(no)) = parsed(n, head) else { panic!("{n:?}") };
        assert_eq!((no.status, &*no.error), (400, TOO_MANY), "{n:?}");
    }
    // As many as there may be: refused for what is missing only.
    assert!(matches!(parsed([most - 2, 1], head), Err(Refused::Wire(_))));
}
