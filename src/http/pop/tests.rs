use super::matched::owners;
use super::taken::Said;
use super::*;
use crate::config::Config;
use queen_shards::command::Start;
use queen_shards::ids::{Stamp, TenantId};
use queen_shards::place::LaneKey;

const WILD: Route<'static> = Route::Queue { queue: "q" };
const PIN: Route<'static> = Route::Partition { queue: "q", partition: "p" };

fn asking(route: Route<'_>, query: &str) -> Result<Asking, Response> {
    Asking::of(TenantId::DEFAULT, query, route, &Config::for_tests())
}

#[track_caller]
fn good(route: Route<'_>, query: &str) -> Asking {
    asking(route, query).unwrap_or_else(|refusal| panic!("{query}: {}", String::from_utf8_lossy(&refusal.body)))
}

#[track_caller]
fn refused(route: Route<'_>, query: &str, status: u16, body: &str) {
    let refusal = asking(route, query).expect_err(query);
    assert_eq!((refusal.status, &*String::from_utf8_lossy(&refusal.body)), (status, body), "{query}");
}

#[test]
fn a_query_that_does_not_parse_is_a_plain_400() {
    let refusal = asking(WILD, "batch=abc").unwrap_err();
    assert_eq!((refusal.status, refusal.content_type), (400, Some("text/plain; charset=utf-8")));
    refused(WILD, "wait=yes", 400, "invalid wait: `yes` is neither `true` nor `false`");
    refused(PIN, "timeout=-1", 400, "invalid timeout: `-1` is not a number of milliseconds");
    refused(Route::Discovery, "batch=", 400, "invalid batch: `` is not an integer");
}

#[test]
fn discovery_needs_a_filter() {
    let body = r#"{"success":false,"error":"namespace or task is required","messages":[]}"#;
    for query in ["", "namespace=", "task=", "namespace=&task=", "batch=1"] {
        refused(Route::Discovery, query, 400, body);
    }
    let Source::Matching { namespace, task } = good(Route::Discovery, "namespace=a%20b&task=").from else { panic!() };
    assert_eq!((namespace.as_deref(), task), (Some("a b"), None));
    assert_eq!(good(Route::Discovery, "task=t").queue(), "");
}

/// Data plane 4.10.
#[test]
fn conflation_needs_a_group_and_an_ack() {
    let body = |text: &str| format!(r#"{{"success":false,"error":"{text}","messages":[]}}"#);
    refused(WILD, "conflation=true", 400, &body("conflation requires a consumerGroup"));
    refused(
        WILD,
        "conflation=true&consumerGroup=g&autoAck=true",
        400,
        &body("conflation cannot be combined with autoAck"),
    );
    for route in [WILD, PIN] {
        let declared = |query: &str| good(route, query).conflation;
        assert_eq!(declared("conflation=true&consumerGroup=g"), Some(true));
        assert_eq!(declared("conflation=false&consumerGroup=g&autoAck=true"), Some(false));
        assert_eq!(declared("consumerGroup=g"), None);
        assert_eq!(declared("conflation=false"), None, "no effect in queue mode");
    }
}

/// Data plane 4.10: `partitions` = `batch` when absent, clamped to 1..64.
#[test]
fn a_conflating_pop_is_as_wide_as_its_batch() {
    let width = |query: &str| {
        let asking = good(WILD, &format!("conflation=true&consumerGroup=g&{query}"));
        (asking.conflating_partitions, asking.full(true))
    };
    assert_eq!(width(""), (64, 64));
    assert_eq!(width("batch=7"), (7, 7));
    assert_eq!(width("batch=100"), (64, 64));
    assert_eq!(width("partitions=3"), (3, 3));
    assert_eq!(width("partitions=0"), (64, 64));
    assert_eq!(width("partitions=90&batch=5"), (64, 5), "batch bounds it all the same");
    assert_eq!(good(PIN, "conflation=true&consumerGroup=g").conflating_partitions, 1);
    // What holds if the group turns out not to conflate.
    assert_eq!(good(WILD, "conflation=true&consumerGroup=g").partitions, 1);
}

/// State plane 5.1, CNF-4.
#[test]
fn the_record_decides_and_a_request_that_says_otherwise_conflicts() {
    let said = |yes: bool, no: bool, asked: Option<bool>| {
        let policy = Said { yes, no }.policy(asked);
        (policy.conflation, policy.conflict)
    };
    for (asked, stored, want) in [
        (None, false, (false, false)),
        (None, true, (true, false)),
        (Some(true), true, (true, false)),
        (Some(true), false, (false, true)),
        (Some(false), true, (true, true)),
        (Some(false), false, (false, false)),
    ] {
        assert_eq!(said(stored, !stored, asked), want, "{asked:?} {stored}");
    }
    assert_eq!(said(true, true, Some(true)), (true, true), "a discovery pop that got something of both kinds");
    assert!(!Said::default().met());
}

#[test]
fn names_no_store_can_hold_are_refused() {
    let long = "n".repeat(1025);
    let error = |text: &str| format!(r#"{{"error":"{text}"}}"#);
    refused(Route::Queue { queue: &long }, "", 400, &error("queue exceeds the 1024-byte limit"));
    let pin = Route::Partition { queue: "q", partition: &long };
    refused(pin, "", 400, &error("partition exceeds the 1024-byte limit"));
    refused(WILD, &format!("consumerGroup={long}"), 400, &error("consumerGroup exceeds the 1024-byte limit"));
    refused(Route::Queue { queue: "a\0" }, "", 400, &error("control characters are not allowed in queue"));
    refused(WILD, "consumerGroup=a%00", 400, &error("control characters are not allowed in consumerGroup"));
    refused(Route::Discovery, "namespace=%00", 400, &error("control characters are not allowed in namespace"));
    good(Route::Queue { queue: &long[1..] }, "consumerGroup=%F0%9F%98%80%2F%3A");
}

#[test]
fn parameters_have_their_defaults() {
    let plain = good(WILD, "");
    assert_eq!((plain.batch, plain.partitions, plain.wait_ms, plain.lease_secs), (200, 1, None, None));
    assert_eq!(
        (&*plain.group, plain.start, plain.auto_ack, plain.autopilot),
        ("__QUEUE_MODE__", Start::All, false, None)
    );
    assert_eq!(good(WILD, "wait=true").wait_ms, Some(30_000));
    assert_eq!(good(WILD, "wait=true&timeout=5").wait_ms, Some(5));
    assert_eq!(good(WILD, "wait=true&timeout=0").wait_ms, None);
    assert_eq!(good(WILD, "timeout=5").wait_ms, None);
    assert_eq!(good(WILD, "partitions=0").partitions, u32::MAX);
    assert_eq!(good(PIN, "partitions=9").partitions, 1, "ignored on the pinned route");
    assert_eq!(&*good(WILD, "consumerGroup=").group, "", "a present empty value is a group");
    let fills = |route, query| good(route, query).fills;
    assert!(fills(WILD, "wait=true&batch=2"));
    assert!(!fills(WILD, "wait=true&batch=1") && !fills(WILD, "batch=2") && !fills(PIN, "wait=true&batch=2"));
}

/// Data plane 4.4.
#[test]
fn a_group_starts_where_its_first_pop_says() {
    let of = |route, query: &str| good(route, &format!("consumerGroup=g&{query}")).start;
    let at = Start::At(Stamp(1_789_171_200_000_000));
    for route in [WILD, PIN, Route::Queue { queue: "r" }] {
        assert_eq!(of(route, ""), Start::New);
        for new in ["new", "new-only", "new_only", "newonly", "NEW", "%20New-Only%20"] {
            assert_eq!(of(route, &format!("subscriptionMode={new}")), Start::New, "{new}");
        }
        for all in ["all", "earliest", "", "news"] {
            assert_eq!(of(route, &format!("subscriptionMode={all}")), Start::All, "{all}");
        }
        assert_eq!(of(route, "subscriptionFrom=now&subscriptionMode=all"), Start::New);
        assert_eq!(of(route, "subscriptionFrom=&subscriptionMode=all"), Start::All);
        assert_eq!(of(route, "subscriptionFrom=2026-09-12&subscriptionMode=new"), at);
    }
    assert_eq!(of(WILD, "subscriptionFrom=soon&subscriptionMode=all"), Start::New);
    assert_eq!(of(PIN, "subscriptionFrom=soon&subscriptionMode=new"), Start::All);
    assert_eq!(of(PIN, "subscriptionFrom=soon&conflation=true"), Start::New, "it registers like a wildcard pop");
    let all = Config { default_start: Start::All, ..Config::for_tests() };
    let start = |query| Asking::of(TenantId::DEFAULT, query, WILD, &all).unwrap().start;
    assert_eq!((start("consumerGroup=g"), start("consumerGroup=g&subscriptionMode=new")), (Start::All, Start::New));
    assert_eq!(good(WILD, "subscriptionMode=new&subscriptionFrom=now").start, Start::All, "queue mode ignores both");
}

/// Data plane 4.11.
#[test]
fn autopilot_chooses_what_was_not_sent() {
    let of = |route, query: &str| {
        let asking = good(route, &format!("autopilot=true&{query}"));
        (asking.partitions, asking.batch, asking.autopilot)
    };
    assert_eq!(of(WILD, "consumerGroup=g"), (64, 100, Some((64, 100))));
    assert_eq!(of(WILD, "consumerGroup=g&batch=7"), (64, 7, Some((64, 7))));
    assert_eq!(of(WILD, "consumerGroup=g&partitions=3"), (3, 100, Some((3, 100))));
    assert_eq!(of(WILD, "consumerGroup=g&partitions=3&batch=7"), (3, 7, None));
    assert_eq!(of(WILD, ""), (1, 200, None), "a group only");
    assert_eq!(of(PIN, "consumerGroup=g"), (1, 200, None));
    assert_eq!(of(Route::Discovery, "consumerGroup=g&task=t"), (1, 200, None));
}

/// Rule 23.
#[test]
fn the_shard_asked_first_rotates_per_queue_and_group() {
    let queue = |name: &str| PopFrom::Queue { tenant: TenantId::DEFAULT, queue: name.into() };
    let first = |name: &str, group: &str| owners(&queue(name), group, 3)[0];
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        // Two groups that ask in step see every shard first.
        a.push(first("q", "a"));
        b.push(first("q", "b"));
    }
    assert_eq!((a, b), (vec![0, 1, 2, 0, 1, 2], vec![0, 1, 2, 0, 1, 2]));
    assert_eq!(owners(&queue("q2"), "a", 3), [0, 1, 2]);
    assert_eq!(owners(&queue("q2"), "a", 3), [1, 2, 0]);
    let lane = LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into());
    assert_eq!(owners(&PopFrom::Partition(lane.clone()), "a", 3), [lane.owner(3)]);
}
