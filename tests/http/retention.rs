//! Retention over HTTP: data plane 12; probe R08.

use crate::harness::{Setup, eventually, two_shards, unique, within};
use serde_json::json;
use std::time::Duration;

/// A broker killed in a run of the task leaves a lease of a minute behind. Operations 6.4.
const TASK_TAKEN_OVER: Duration = Duration::from_secs(90);

/// R08: a reader whose position retention removed goes on, lag never negative, offsets never start again.
#[test]
fn r08_readers_go_on_behind_what_retention_removed() {
    let b = Setup::clean().env("RETENTION_INTERVAL", "200").start();
    let q = unique("r08");
    b.configure(&q, json!({"retentionEnabled": true, "retentionSeconds": 1, "completedRetentionSeconds": 1}));
    for round in 0..2 {
        let all = |group: &str| format!("consumerGroup={group}{round}&subscriptionMode=all&batch=10");
        b.push_n(&q, "p0", &format!("t{round}-"), 50);
        let pop = b.pop(&q, &all("a"));
        b.ack_ok(&format!("a{round}"), &[pop.messages[9].ack("completed")]);
        let end = 51 * round + 49;
        let detail = within(TASK_TAKEN_OVER, "everything is removed", || {
            let detail = b.queue_detail(&q);
            (detail["totals"]["total"] == 0).then_some(detail)
        });
        assert_eq!(
            (&detail["totals"]["pending"], &detail["partitions"].as_array().map(Vec::len)),
            (&json!(0), &Some(1)),
            "{detail}"
        );
        assert!(b.pop(&q, &all("a")).is_empty());
        let fresh = b.push_keys(&q, "p0", &[&format!("fresh{round}")]);
        assert_eq!(fresh[0]["offset"], end + 1, "offsets go on");
        let a = b.pop(&q, &all("a"));
        assert_eq!((a.keys(), a.offsets()), (vec![format!("fresh{round}").as_str()], vec![end + 1]));
        assert_eq!(b.pop(&q, &all("b")).keys(), [format!("fresh{round}")]);
        b.complete(&format!("a{round}"), &a);
        let groups = b.get("/api/v1/consumer-groups").json();
        assert!(
            groups.as_array().expect("an array").iter().all(|g| g["totalLag"].as_i64().expect("a lag") >= 0),
            "{groups}"
        );
        b.restart();
        assert!(b.pop(&q, &format!("consumerGroup=never{round}&subscriptionMode=all")).messages.len() <= 1);
    }
    let log = b.log();
    assert!(log.contains("swept") && !log.contains(" ERROR "), "{log}");
}

#[test]
fn a_duplicate_of_a_removed_message_is_still_a_duplicate_without_an_id() {
    let b = Setup::clean().env("RETENTION_INTERVAL", "200").start();
    let q = unique("evidence");
    b.configure(&q, json!({"retentionEnabled": true, "retentionSeconds": 1}));
    b.push_keys(&q, "p", &["once"]);
    eventually("it is removed", || (b.queue_detail(&q)["totals"]["total"] == 0).then_some(()));
    b.restart();
    let again = b.push(vec![json!({"queue": q, "partition": "p", "transactionId": "once", "payload": 1})].into());
    assert_eq!(again[0]["status"], "duplicate", "{again:?}");
    assert_eq!(again[0]["message_id"], "00000000-0000-0000-0000-000000000000");
}

#[test]
fn nothing_is_removed_without_a_rule() {
    let b = two_shards();
    let q = unique("kept");
    b.configure(&q, json!({"retentionSeconds": 1, "completedRetentionSeconds": 1}));
    b.push_n(&q, "p", "m", 3);
    let marks = crate::harness::shared_postgres().query(
        b.database.as_ref().expect("a database"),
        &format!("select count(*) from queen.retention_queues r join queen.queues q on q.id = r.queue_id where q.name = '{q}'"),
    );
    assert_eq!(marks.trim(), "0");
    assert_eq!(b.pop(&q, "subscriptionMode=all&batch=10").messages.len(), 3);
}
