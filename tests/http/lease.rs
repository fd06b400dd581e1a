//! `POST /api/v1/lease/:leaseId/extend`, data plane 6.

use crate::harness::{Broker, two_shards, unique};
use serde_json::{Value, json};
use std::time::Duration;

fn extend(b: &Broker, lease: &str, body: Option<&[u8]>) -> Value {
    let answer = b.send("POST", &format!("/api/v1/lease/{lease}/extend"), body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["leaseId"], lease);
    assert_eq!((&answer["newExpiresAt"], &answer["newExpiresAt"]), (&answer["expiresAt"], &answer["lease_expires_at"]));
    answer
}

fn expect_nothing_extended(answer: &Value) {
    assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)), "{answer}");
    assert_eq!(answer["newExpiresAt"], json!(null));
}

#[test]
fn extends_every_claim_of_a_multi_partition_pop() {
    let b = two_shards();
    let q = unique("lease");
    for p in 0..4 {
        b.push_n(&q, &format!("p{p}"), "m", 1);
    }
    let pop = b.pop(&q, "batch=4&partitions=4&leaseSeconds=2");
    assert_eq!(pop.partitions_claimed, 4);
    let answer = extend(b, &pop.lease_id, Some(br#"{"seconds":30}"#));
    assert_eq!((&answer["success"], &answer["renewed"]), (&json!(true), &json!(4)), "{answer}");
    let expiry = answer["newExpiresAt"].as_str().expect("a stamp");
    assert!(expiry.len() == 27 && expiry.ends_with('Z'), "{expiry}: microseconds, UTC");
    // A settled partition is not extended any more.
    b.ack_ok("", &[pop.messages[0].ack("completed")]);
    assert_eq!(extend(b, &pop.lease_id, None)["renewed"], 3);
    std::thread::sleep(Duration::from_millis(2200));
    assert!(b.pop(&q, "batch=4&partitions=4").is_empty(), "the renewed claims hold");
}

#[test]
fn any_body_that_names_no_seconds_is_sixty() {
    let b = two_shards();
    let q = unique("lease");
    b.push_n(&q, "p", "m", 1);
    let pop = b.pop(&q, "leaseSeconds=1");
    let bodies: [Option<&[u8]>; 7] = [
        None,
        Some(b""),
        Some(b"{}"),
        Some(b"nonsense"),
        Some(br#"{"seconds":"9"}"#),
        Some(br#"{"seconds":1.5}"#),
        Some(b"[]"),
    ];
    for body in bodies {
        assert_eq!(extend(b, &pop.lease_id, body)["renewed"], 1);
    }
    // Below 1 acts as 1 and shortens nothing: the sixty of above stay.
    let before = extend(b, &pop.lease_id, Some(br#"{"seconds":1}"#))["expiresAt"].clone();
    assert_eq!(extend(b, &pop.lease_id, Some(br#"{"seconds":-5}"#))["expiresAt"], before);
}

#[test]
fn unknown_malformed_released_and_expired_leases_are_not_revived() {
    let b = two_shards();
    let q = unique("lease");
    b.push_n(&q, "p", "m", 1);
    b.push_n(&q, "r", "m", 1);
    for lease in ["01990a12-4410-7bbb-9bbb-0000000000f1", "nonsense", "00000000-0000-0000-0000-000000000000", "%20"] {
        let answer = b.send("POST", &format!("/api/v1/lease/{lease}/extend"), None);
        assert_eq!(answer.status, 200);
        expect_nothing_extended(&answer.json());
    }
    let released = b.pop_pinned(&q, "r", "");
    b.complete("", &released);
    expect_nothing_extended(&extend(b, &released.lease_id, None));
    let expired = b.pop_pinned(&q, "p", "leaseSeconds=1");
    std::thread::sleep(Duration::from_millis(1100));
    expect_nothing_extended(&extend(b, &expired.lease_id, Some(br#"{"seconds":60}"#)));
    assert_eq!(b.pop_pinned(&q, "p", "").messages.len(), 1, "free as ever");
}
