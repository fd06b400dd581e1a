//! Invariants 21 to 29: acks.

use crate::harness::{eventually, rules, unique};
use serde_json::json;

const ALL: &str = "consumerGroup=g&subscriptionMode=all";

rules! {
    fn i21_completing_the_last_message_completes_the_batch(b) {
        let q = unique("i21");
        b.push_n(&q, "p", "m", 5);
        let pop = b.pop(&q, ALL);
        let result = b.ack_ok("g", &[pop.messages[4].ack("completed")]).remove(0);
        assert_eq!((&result["leaseReleased"], &result["noop"]), (&json!(true), &json!(false)));
        assert!(b.pop(&q, ALL).is_empty());
    }

    fn i22_a_nack_is_not_lost_by_later_completed_acks(b) {
        let q = unique("i22");
        b.push_n(&q, "p", "m", 5);
        let pop = b.pop(&q, ALL);
        let acks: Vec<_> = (0..5).map(|i| pop.messages[i].ack(if i == 2 { "failed" } else { "completed" })).collect();
        b.ack_ok("g", &acks);
        assert_eq!(b.pop(&q, ALL).keys(), ["m2", "m3", "m4"]);
    }

    fn i23_failed_beyond_the_budget_dead_letters_once_and_the_next_starts_fresh(b) {
        let q = unique("i23");
        b.configure(&q, json!({"retryLimit": 2}));
        b.push_keys(&q, "p", &["bad", "worse", "good"]);
        for key in ["bad", "worse"] {
            for attempt in 1..=3 {
                let pop = b.pop(&q, &format!("{ALL}&batch=1"));
                assert_eq!(pop.keys(), [key]);
                assert_eq!(pop.messages[0].delivery_attempt, attempt);
                let mut ack = pop.messages[0].ack("failed");
                ack["error"] = format!("{key} {attempt}").into();
                let result = b.ack_ok("g", &[ack]).remove(0);
                assert_eq!((&result["dlq"], &result["leaseReleased"]), (&json!(attempt == 3), &json!(true)), "{result}");
            }
        }
        assert_eq!(b.pop(&q, ALL).keys(), ["good"]);
        assert_eq!(b.dead_letters(&q), ["g|bad|bad 3|2", "g|worse|worse 3|2"]);
    }

    fn i24_retry_and_expiry_never_charge_the_budget(b) {
        let q = unique("i24");
        b.configure(&q, json!({"retryLimit": 1}));
        b.push_keys(&q, "p", &["m"]);
        for _ in 0..4 {
            let pop = b.pop(&q, ALL);
            let result = b.ack_ok("g", &[pop.messages[0].ack("retry")]).remove(0);
            assert_eq!((&result["dlq"], &result["leaseReleased"]), (&json!(false), &json!(true)));
        }
        assert_eq!(b.pop(&q, &format!("{ALL}&leaseSeconds=1")).keys(), ["m"]);
        let pop = b.pop(&q, &format!("{ALL}&leaseSeconds=1&wait=true&timeout=10000"));
        assert_eq!((pop.keys(), pop.messages[0].delivery_attempt), (vec!["m"], 6));
        let pop = b.pop(&q, &format!("{ALL}&wait=true&timeout=10000"));
        assert_eq!(b.ack_ok("g", &[pop.messages[0].ack("failed")])[0]["dlq"], false, "the full budget is left");
        let pop = b.pop(&q, ALL);
        assert_eq!(b.ack_ok("g", &[pop.messages[0].ack("failed")])[0]["dlq"], true);
        assert_eq!(b.dead_letters(&q), ["g|m|Retries exhausted|1"]);
    }

    fn i25_dlq_dead_letters_on_the_spot_for_its_group_only(b) {
        let q = unique("i25");
        b.push_keys(&q, "p", &["a", "b"]);
        let pop = b.pop(&q, ALL);
        let mut ack = pop.messages[0].ack("dlq");
        ack["error"] = "no such account".into();
        let result = b.ack_ok("g", &[ack]).remove(0);
        assert_eq!((&result["dlq"], &result["leaseReleased"]), (&json!(true), &json!(true)));
        assert_eq!(b.pop(&q, ALL).keys(), ["b"]);
        assert_eq!(b.pop(&q, "consumerGroup=other&subscriptionMode=all").keys(), ["a", "b"]);
        assert_eq!(b.dead_letters(&q), ["g|a|no such account|0"]);
        assert_eq!(b.queue_detail(&q)["totals"]["deadLetter"], 1);
    }

    fn i26_a_stale_lease_moves_nothing_and_a_late_ack_without_lease_does(b) {
        let (q, group) = (unique("i26"), unique("g"));
        let all = format!("consumerGroup={group}&subscriptionMode=all");
        b.push_n(&q, "p", "m", 3);
        let pop = b.pop(&q, &format!("{all}&leaseSeconds=1"));
        let standing = || {
            let page = b.get(&format!("/api/v1/consumer-groups/{group}")).json();
            let of = &page[&q]["partitions"][0];
            (of["offsetLag"].as_i64(), of["leaseActive"].as_bool())
        };
        eventually("the lease ends", || (standing() == (Some(3), Some(false))).then_some(()));
        for status in ["completed", "failed", "retry", "dlq"] {
            let result = b.ack(&group, &[pop.messages[1].ack(status)]).remove(0);
            assert_eq!(result["success"], false);
            assert_eq!(result["error"], "invalid or expired lease");
        }
        assert_eq!(standing(), (Some(3), Some(false)), "nothing moved");
        let mut late = pop.messages[1].ack("completed");
        late["leaseId"] = "".into();
        b.ack_ok(&group, &[late]);
        assert_eq!(b.pop(&q, &all).keys(), ["m2"]);
        assert!(b.dead_letters(&q).is_empty());
    }

    fn i27_unknown_keys_fail_and_repeated_acks_are_noop(b) {
        let q = unique("i27");
        b.push_n(&q, "p", "m", 3);
        let pop = b.pop(&q, ALL);
        let mut unknown = pop.messages[0].ack("completed");
        unknown["transactionId"] = "never pushed".into();
        let result = b.ack("g", &[unknown.clone()]).remove(0);
        assert_eq!((&result["success"], &result["noop"]), (&json!(false), &json!(false)));
        let text = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers";
        assert_eq!(result["error"], text);
        let mixed = b.ack("g", &[unknown, pop.messages[0].ack("completed")]);
        assert_eq!((&mixed[0]["success"], &mixed[1]["success"]), (&json!(false), &json!(true)));
        assert_eq!(mixed[1]["leaseReleased"], false);
        let last = b.ack_ok("g", &[pop.messages[2].ack("completed")]).remove(0);
        assert_eq!((&last["leaseReleased"], &last["noop"]), (&json!(true), &json!(false)));
        for message in &pop.messages {
            let mut again = message.ack("completed");
            again["leaseId"] = "".into();
            let result = b.ack_ok("g", &[again.clone()]).remove(0);
            assert_eq!((&result["noop"], &result["error"]), (&json!(true), &json!(null)));
            again["status"] = "failed".into();
            let result = b.ack("g", &[again]).remove(0);
            assert_eq!((&result["success"], &result["noop"]), (&json!(false), &json!(false)));
            assert_eq!(result["error"], "already committed: the cursor moved past this message before this ack");
        }
    }

    fn i28_a_nack_frees_only_its_own_partition(b) {
        let q = unique("i28");
        for p in 0..4 {
            b.push_n(&q, &format!("p{p}"), &format!("{p}-"), 2);
        }
        let pop = b.pop(&q, &format!("{ALL}&batch=8&partitions=4"));
        assert_eq!(pop.partitions_claimed, 4);
        let nacked = &pop.messages[2];
        b.ack_ok("g", &[nacked.ack("failed")]);
        let again = b.pop(&q, &format!("{ALL}&batch=8&partitions=4"));
        assert!(again.messages.iter().all(|m| m.partition == nacked.partition), "{again:?}");
        assert_eq!(again.messages.len(), 2);
        for message in &pop.messages {
            let result = b.ack("g", &[message.ack("completed")]).remove(0);
            assert_eq!(result["success"], message.partition != nacked.partition, "{result}");
        }
    }

    fn i29_without_dead_letters_the_budget_ends_in_a_drop(b) {
        let q = unique("i29");
        b.configure(&q, json!({"retryLimit": 1, "deadLetterQueue": false, "dlqAfterMaxRetries": false}));
        b.push_keys(&q, "p", &["a", "b"]);
        for _ in 0..2 {
            let pop = b.pop(&q, ALL);
            assert_eq!(pop.keys(), ["a", "b"]);
            assert_eq!(b.ack_ok("g", &[pop.messages[0].ack("failed")])[0]["dlq"], false);
        }
        assert_eq!(b.pop(&q, ALL).keys(), ["b"]);
        assert!(b.dead_letters(&q).is_empty());
    }
}
