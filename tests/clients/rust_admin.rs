//! What an operator's tool built on the Rust client does: transactions, dead letters, consumer groups, listings, and the
//! last-value consumers.

use crate::harness::unique;
use queen_mq::{AckStatus, DlqParams, Error, Message, Queen, QueueOptions, SeekRequest, SubscriptionMode};
use serde_json::{Value, json};

pub async fn flows(queen: &Queen) {
    a_transaction_hands_on_or_does_nothing(queen).await;
    dead_letters_are_read_retried_and_deleted(queen).await;
    groups_are_listed_moved_and_deleted(queen).await;
    listings_tell_what_is_there(queen).await;
    a_conflating_consumer_gets_the_last_value(queen).await;
}

async fn push_n(queen: &Queen, queue: &str, partition: &str, n: i64) {
    queen.queue(queue).partition(partition).push_many((0..n).map(|i| json!({"n": i}))).await.expect("push");
}

async fn pop(queen: &Queen, queue: &str, group: &str) -> Vec<Message> {
    let builder = queen.queue(queue).group(group).subscription_mode(SubscriptionMode::All).wait(false).batch(20);
    builder.pop().await.expect("pop")
}

async fn a_transaction_hands_on_or_does_nothing(queen: &Queen) {
    let (from, to) = (unique("rs-from"), unique("rs-to"));
    push_n(queen, &from, "p", 3).await;
    let held = pop(queen, &from, "g").await;
    let bundle = queen.transaction().ack(&held[0]).push_to(&to, "p", json!({"stage": 2})).expect("a payload");
    let done = bundle.commit().await.expect("committed");
    assert!(done.success && done.results.len() == 2 && done.results.iter().all(|r| r.success), "{done:?}");
    let handed = queen.queue(&to).wait(false).pop().await.expect("pop");
    assert_eq!((handed.len(), &handed[0].data), (1, &json!({"stage": 2})));
    // A nack inside ends the lease; after that the bundle of a stale holder leaves no trace.
    let nacked = queen.transaction().nack(&held[1], "not yet").push(&to, 3).expect("a payload");
    assert!(nacked.commit().await.expect("committed").success);
    let stale = queen.transaction().ack(&held[2]).push(&to, 4).expect("a payload").commit().await;
    let error: Error = stale.expect_err("refused");
    assert!(error.to_string().contains("rolled back"), "{error}");
    let rest = queen.queue(&to).wait(false).batch(10).pop().await.expect("pop");
    assert_eq!(rest.iter().map(|m| &m.data).collect::<Vec<_>>(), [&json!(3)]);
    assert_eq!(pop(queen, &from, "g").await.len(), 2, "from the nacked one on");
}

async fn dead_letters_are_read_retried_and_deleted(queen: &Queen) {
    let queue = unique("rs-dlq");
    queen
        .queue(&queue)
        .configure(QueueOptions { retry_limit: Some(0), ..Default::default() })
        .await
        .expect("configure");
    push_n(queen, &queue, "p", 2).await;
    for _ in 0..2 {
        let held = pop(queen, &queue, "g").await;
        assert!(queen.nack(&held[0], "broken").await.expect("nack").success);
    }
    let params = DlqParams { queue: Some(queue.clone()), consumer_group: Some("g".into()), ..Default::default() };
    let letters = queen.admin().dlq(params.clone()).await.expect("dlq");
    assert_eq!((letters.total, letters.messages.len()), (2, 2));
    let at = |n: i64| letters.messages.iter().find(|m| m.data == json!({"n": n})).expect("a letter");
    let address = |n: i64| (at(n).partition_id.clone().expect("an id"), at(n).transaction_id.clone().expect("a key"));
    assert_eq!(at(0).error.as_deref(), Some("broken"));
    let ((partition, first), (_, second)) = (address(0), address(1));
    let message = queen.admin().message(&partition, &first).await.expect("still readable");
    assert_eq!(message["status"], "dead_letter");
    let moved = queen.admin().retry_message(&partition, &first).await.expect("retried");
    assert_eq!(moved["result"], "moved", "{moved}");
    assert!(queen.admin().delete_message(&partition, &second).await.expect("deleted")["success"] == true);
    assert!(queen.admin().retry_message(&partition, &first).await.is_err(), "it is gone");
    assert_eq!(queen.admin().dlq(params).await.expect("dlq").total, 0);
    let again = pop(queen, &queue, "g").await;
    assert_eq!(again.iter().map(|m| &m.data).collect::<Vec<_>>(), [&json!({"n": 0})]);
    assert!(queen.ack_with(&again[0], AckStatus::Completed, None).await.expect("ack").success);
}

async fn groups_are_listed_moved_and_deleted(queen: &Queen) {
    let (queue, group) = (unique("rs-groups"), unique("rs-g"));
    push_n(queen, &queue, "p", 3).await;
    let held = pop(queen, &queue, &group).await;
    assert!(queen.ack_all(&held).await.expect("ack").iter().all(|r| r.success));
    let admin = queen.admin();
    let all = admin.list_consumer_groups().await.expect("listed");
    let mine = all.as_array().expect("an array").iter().find(|g| g["name"] == json!(group)).expect("listed").clone();
    assert_eq!(
        (&mine["queueName"], &mine["totalLag"], &mine["subscriptionMode"]),
        (&json!(queue), &json!(0), &json!("all"))
    );
    let detail = admin.consumer_group(&group).await.expect("detail");
    assert_eq!(detail[&queue]["partitions"][0]["totalConsumed"], 3, "{detail}");
    assert!(admin.lagging_consumers(3600).await.expect("lagging").is_array());
    let seek = SeekRequest { timestamp: Some("2001-01-01T00:00:00Z".into()), position: None };
    assert_eq!(admin.seek_consumer_group(&group, &queue, &seek).await.expect("seek")["partitionsUpdated"], 1);
    assert_eq!(pop(queen, &queue, &group).await.len(), 3);
    let moved = admin.set_subscription_timestamp(&group, "2026-01-01T00:00:00Z").await.expect("subscription");
    assert_eq!(moved["rowsUpdated"], 1);
    let deleted = admin.delete_consumer_group_for_queue(&group, &queue, true).await.expect("deleted");
    assert_eq!((&deleted["deletedPartitions"], &deleted["metadataDeleted"]), (&json!(1), &json!(true)));
    assert_eq!(pop(queen, &queue, &group).await.len(), 3, "it registers afresh");
    assert_eq!(admin.delete_consumer_group(&group, true).await.expect("deleted")["deletedPartitions"], 1);
    assert_eq!(admin.consumer_group(&group).await.expect("detail"), json!({}));
}

async fn listings_tell_what_is_there(queen: &Queen) {
    let name = unique("rsns");
    let queue = format!("{name}.mail.eu");
    push_n(queen, &queue, "p", 4).await;
    let admin = queen.admin();
    let named = |all: &Value, list: &str, key: &str, want: &str| -> Value {
        let rows = all[list].as_array().unwrap_or_else(|| panic!("{all}"));
        rows.iter().find(|row| row[key] == json!(want)).unwrap_or_else(|| panic!("no {want} in {all}")).clone()
    };
    let spaces = admin.namespaces().await.expect("namespaces");
    assert_eq!(named(&spaces, "namespaces", "namespace", &name)["messages"], json!({"total": 4, "pending": 4}));
    assert_eq!(named(&admin.tasks().await.expect("tasks"), "tasks", "task", "mail")["task"], "mail");
    let listed = admin.list_queues(&[]).await.expect("queues");
    assert_eq!(named(&listed, "queues", "name", &queue)["segments"]["messages"], 4);
    assert_eq!(admin.queue(&queue).await.expect("queue")["totals"]["pending"], 4);
    let depth = admin.queue_depth(&queue, Some("nobody")).await.expect("depth");
    assert_eq!((&depth["pending"], &depth["partitionsReady"]), (&json!(4), &json!(1)));
    let partitions = admin.partitions(&[("queue", queue.clone())]).await.expect("partitions");
    assert_eq!(partitions["partitions"][0]["pending"], 4, "{partitions}");
    let messages = admin.list_messages(&[("queue", queue.clone()), ("limit", "3".into())]).await.expect("messages");
    assert_eq!((messages["messages"].as_array().map(Vec::len), &messages["total"]), (Some(3), &json!(3)));
    assert!(admin.overview().await.expect("overview")["queues"].as_i64() > Some(0));
    assert!(admin.status(&[]).await.expect("status")["messages"].is_object());
    assert!(admin.queue_stats(&[("queue", queue.clone())]).await.expect("stats")["queues"].is_array());
    assert_eq!(admin.queue_detail(&queue, &[]).await.expect("detail")["queue"]["name"], json!(queue));
    assert!(admin.health().await.expect("health").is_object());
}

async fn a_conflating_consumer_gets_the_last_value(queen: &Queen) {
    let queue = unique("rs-last");
    for partition in ["a", "b"] {
        push_n(queen, &queue, partition, 10).await;
    }
    let last = || queen.queue(&queue).group("ui").subscription_mode(SubscriptionMode::All).conflation(true).wait(false);
    let mut got = last().pop().await.expect("the broker says it conflates");
    got.sort_by(|a, b| a.partition.cmp(&b.partition));
    let values: Vec<_> = got.iter().map(|m| (&*m.partition, m.data["n"].as_i64().expect("n"))).collect();
    assert_eq!(values, [("a", 9), ("b", 9)]);
    assert!(queen.ack_all(&got).await.expect("ack").iter().all(|r| r.success));
    assert!(last().pop().await.expect("an empty answer says it too").is_empty());
    let depth = queen.admin().queue_depth(&queue, Some("ui")).await.expect("depth");
    assert_eq!((&depth["conflation"], &depth["pending"]), (&json!(true), &json!(0)));
}
