//! Invariants 37 and 38: delay, window, and how options change.

use crate::harness::{rules, unique};
use serde_json::json;
use std::time::{Duration, Instant};

rules! {
    fn i37_a_delay_is_never_early_on_any_route(b) {
        let ns = unique("i37ns");
        let q = unique("i37");
        b.configure(&q, json!({"delayedProcessing": 2, "namespace": ns}));
        let start = Instant::now();
        b.push_n(&q, "p", "m", 3);
        assert!(b.pop(&q, "").is_empty());
        assert!(b.pop_pinned(&q, "p", "").is_empty());
        assert!(b.pop(&q, "consumerGroup=a&subscriptionMode=all&autoAck=true").is_empty());
        assert!(b.pop_path(&format!("/api/v1/pop?namespace={ns}&consumerGroup=d&subscriptionMode=all")).is_empty());
        let wait = "wait=true&timeout=10000";
        let paths = [
            format!("/api/v1/pop/queue/{q}?{wait}"),
            format!("/api/v1/pop/queue/{q}/partition/p?{wait}&consumerGroup=pinned&subscriptionMode=all"),
            format!("/api/v1/pop/queue/{q}?{wait}&consumerGroup=a&autoAck=true"),
            format!("/api/v1/pop?namespace={ns}&{wait}&consumerGroup=d"),
        ];
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || {
                    let pop = b.pop_path(path);
                    let after = start.elapsed();
                    assert!(after >= Duration::from_secs(2), "{path}: early, after {after:?}");
                    assert!(after < Duration::from_secs(6), "{path}: a delay's end wakes a poll, after {after:?}");
                    assert_eq!(pop.offsets(), [0, 1, 2], "{path}");
                });
            }
        });
    }

    fn i37_of_delay_and_window_the_longer_decides(b) {
        for (delay, window) in [(1, 2), (2, 1)] {
            let q = unique("i37w");
            b.configure(&q, json!({"delayedProcessing": delay, "windowBuffer": window}));
            let start = Instant::now();
            b.push_n(&q, "p", "m", 2);
            let pop = b.pop(&q, "wait=true&timeout=10000");
            let after = start.elapsed();
            assert!(after >= Duration::from_millis(1990) && after < Duration::from_secs(6), "after {after:?}");
            assert_eq!(pop.offsets(), [0, 1]);
        }
    }

    fn i37_a_changed_delay_applies_to_what_is_stored(b) {
        let q = unique("i37c");
        b.configure(&q, json!({"delayedProcessing": 3600}));
        b.push_n(&q, "p", "m", 2);
        assert!(b.pop(&q, "").is_empty());
        b.configure(&q, json!({"delayedProcessing": 0}));
        assert_eq!(b.pop(&q, "").messages.len(), 2);
    }

    fn i38_merge_keeps_null_resets_replace_resets_the_rest_and_a_refusal_changes_nothing(b) {
        let q = unique("i38");
        b.configure(&q, json!({"leaseTime": 45, "retryLimit": 7, "priority": 3}));
        let merged = b.configure(&q, json!({"retryLimit": 8}));
        assert_eq!((&merged["leaseTime"], &merged["retryLimit"], &merged["priority"]), (&json!(45), &json!(8), &json!(3)));
        let reset = b.configure(&q, json!({"priority": null}));
        assert_eq!((&reset["leaseTime"], &reset["retryLimit"], &reset["priority"]), (&json!(45), &json!(8), &json!(0)));
        let refused = b.post("/api/v1/configure", &json!({"queue": q, "options": {"retryLimit": 9, "retentionSinkHoldMaxSeconds": 5}}));
        assert_eq!(refused.status, 400);
        let refused = b.post("/api/v1/configure", &json!({"queue": q, "options": {"retryLimit": 9, "leaseTime": "soon"}}));
        assert_eq!(refused.status, 400);
        assert_eq!(b.configure(&q, json!({})), reset, "a rejected call changes nothing");
        assert_eq!(b.configure(&q, json!({"priority": 4}))["priority"], 4);
        let replaced = b.post("/api/v1/configure", &json!({"queue": q, "mode": "replace", "options": {"retryLimit": 5}})).json();
        let options = &replaced["options"];
        let of = (&options["leaseTime"], &options["retryLimit"], &options["priority"]);
        assert_eq!(of, (&json!(300), &json!(5), &json!(0)), "{options}");
    }
}
