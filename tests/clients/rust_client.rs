//! What a user of the Rust client does: push, consume with handlers, ack, nack, two groups, start at a timestamp.

use crate::harness::{Broker, unique};
use queen_mq::{
    AckStatus, BufferOptions, Config, Message, PushItem, PushStatus, Queen, QueueBuilder, QueueOptions, StopReason,
    SubscriptionMode, TxnPushItem,
};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Seen = Arc<Mutex<Vec<i64>>>;

/// `binary`: with binary push, push compression and framed pop.
pub async fn flows(broker: &Broker, binary: bool) {
    let config = || Config::new(format!("http://127.0.0.1:{}", broker.port));
    let queen = config().binary_push(binary).push_compression(binary).framed_pop(binary);
    let queen = Queen::connect(queen).expect("connected");
    let json = Queen::connect(config()).expect("connected");
    push_and_duplicates(&queen).await;
    consume_with_a_handler(&queen).await;
    consume_batches_over_partitions(&queen).await;
    a_handler_that_fails_ends_in_the_dead_letters(&queen, broker).await;
    pop_ack_nack_and_renew(&queen).await;
    two_groups_and_start_modes(&queen).await;
    start_at_a_timestamp(&queen).await;
    a_parked_consumer_gets_a_late_message(&queen, broker).await;
    buffered_push(&queen).await;
    configure_and_delete(&queen).await;
    crate::rust_admin::flows(&queen).await;
    a_transaction_acks_and_pushes(&queen).await;
    forms_meet_on_one_queue(&queen, &json).await;
    forms_meet_on_one_queue(&json, &queen).await;
    the_form_on_the_wire(&queen, broker, binary).await;
    json.close().await.expect("closed");
    queen.close().await.expect("closed");
}

async fn push_n(queen: &Queen, queue: &str, partition: &str, n: i64) {
    let results =
        queen.queue(queue).partition(partition).push_many((0..n).map(|i| json!({"n": i}))).await.expect("push");
    assert_eq!(results.len(), n as usize);
    assert!(results.iter().all(|r| r.status == PushStatus::Queued), "{results:?}");
}

/// A builder that ends by itself: after `limit` messages, or 10 s without one.
fn consumer(queen: &Queen, queue: &str, group: &str, limit: u64) -> QueueBuilder {
    let builder = queen.queue(queue).group(group).subscription_mode(SubscriptionMode::All);
    builder.limit(limit).poll_timeout(Duration::from_millis(500)).idle(Duration::from_secs(10))
}

fn keeper(seen: &Seen) -> impl Fn(Message) -> std::future::Ready<Result<(), String>> + Send + Sync + 'static {
    let seen = Arc::clone(seen);
    move |message| {
        seen.lock().expect("a lock").push(message.data["n"].as_i64().expect("a number"));
        std::future::ready(Ok(()))
    }
}

async fn push_and_duplicates(queen: &Queen) {
    let queue = unique("rs-push");
    let item = PushItem::new(&queue, json!({"n": 1})).transaction_id("once");
    let first = queen.queue(&queue).push_items(vec![item.clone()]).await.expect("push");
    assert_eq!(first[0].status, PushStatus::Queued);
    let again = queen.queue(&queue).push_items(vec![item]).await.expect("push");
    assert_eq!((again[0].status, &again[0].message_id), (PushStatus::Duplicate, &first[0].message_id));
}

async fn consume_with_a_handler(queen: &Queen) {
    let queue = unique("rs-consume");
    push_n(queen, &queue, "p", 12).await;
    let seen = Seen::default();
    let summary = consumer(queen, &queue, "g", 12).batch(5).consume(keeper(&seen)).await.expect("consume");
    assert_eq!((summary.processed, summary.acked, summary.nacked, summary.stopped_by), (12, 12, 0, StopReason::Limit));
    assert_eq!(*seen.lock().expect("a lock"), (0..12).collect::<Vec<_>>(), "in order");
    let left = queen.queue(&queue).group("g").wait(false).pop().await.expect("pop");
    assert!(left.is_empty(), "all was acked");
}

async fn consume_batches_over_partitions(queen: &Queen) {
    let queue = unique("rs-batch");
    for p in 0..6 {
        push_n(queen, &queue, &format!("p{p}"), 10).await;
    }
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let builder = consumer(queen, &queue, "g", 60).batch(20).partitions(4).concurrency(2);
    let summary = builder
        .consume_batch(move |messages: Vec<Message>| {
            kept.lock().expect("a lock").extend(messages.iter().filter_map(|m| m.data["n"].as_i64()));
            std::future::ready(Ok::<_, String>(()))
        })
        .await
        .expect("consume");
    assert_eq!((summary.processed, seen.lock().expect("a lock").len()), (60, 60), "each once");
}

async fn a_handler_that_fails_ends_in_the_dead_letters(queen: &Queen, broker: &Broker) {
    let queue = unique("rs-fail");
    let options = QueueOptions { retry_limit: Some(1), ..Default::default() };
    queen.queue(&queue).configure(options).await.expect("configure");
    push_n(queen, &queue, "p", 3).await;
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let summary = consumer(queen, &queue, "g", 4)
        .batch(1)
        .consume(move |message| {
            let n = message.data["n"].as_i64().expect("a number");
            kept.lock().expect("a lock").push(n);
            std::future::ready(if n == 1 { Err("no such account") } else { Ok(()) })
        })
        .await
        .expect("consume");
    assert_eq!((summary.acked, summary.nacked), (2, 2));
    assert_eq!(*seen.lock().expect("a lock"), [0, 1, 1, 2]);
    assert_eq!(broker.dead_letters(&queue).len(), 1);
}

async fn pop_ack_nack_and_renew(queen: &Queen) {
    let queue = unique("rs-pop");
    push_n(queen, &queue, "p", 4).await;
    let pop = || async {
        queen.queue(&queue).group("g").subscription_mode(SubscriptionMode::All).batch(10).pop().await.expect("pop")
    };
    let first = pop().await;
    assert_eq!(first.len(), 4);
    assert!(queen.renew(&first[0], Some(30)).await.expect("renew"));
    assert!(queen.ack(&first[0]).await.expect("ack").success);
    assert!(queen.nack(&first[1], "later").await.expect("nack").success);
    assert!(!queen.ack(&first[2]).await.expect("ack").success, "the nack ended the lease");
    let second = pop().await;
    assert_eq!(second.iter().filter_map(|m| m.data["n"].as_i64()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(queen.ack_with(&second[0], AckStatus::Retry, None).await.expect("retry").success);
    let third = pop().await;
    assert!(queen.ack_all(&third).await.expect("ack").iter().all(|r| r.success));
    let auto =
        queen.queue(&queue).group("h").subscription_mode(SubscriptionMode::All).batch(10).commit_on_delivery(true);
    assert_eq!(auto.pop().await.expect("pop").len(), 4);
    assert!(auto.wait(false).pop().await.expect("pop").is_empty());
}

async fn two_groups_and_start_modes(queen: &Queen) {
    let queue = unique("rs-groups");
    let late = || queen.queue(&queue).group("late").subscription_mode(SubscriptionMode::New).wait(false).batch(10);
    push_n(queen, &queue, "p", 5).await;
    assert!(late().pop().await.expect("pop").is_empty());
    for group in ["one", "two"] {
        let seen = Seen::default();
        consumer(queen, &queue, group, 5).batch(2).consume(keeper(&seen)).await.expect("consume");
        assert_eq!(*seen.lock().expect("a lock"), [0, 1, 2, 3, 4], "{group} has its own copy");
    }
    push_n(queen, &queue, "p", 2).await;
    assert_eq!(late().pop().await.expect("pop").len(), 2);
}

async fn start_at_a_timestamp(queen: &Queen) {
    let queue = unique("rs-from");
    for _ in 0..4 {
        push_n(queen, &queue, "p", 1).await;
    }
    let all = queen.queue(&queue).batch(10).pop().await.expect("pop");
    assert_eq!(all.len(), 4);
    let from =
        queen.queue(&queue).group("from").subscription_from(&all[2].created_at).batch(10).pop().await.expect("pop");
    assert_eq!(from.iter().map(|m| &m.id).collect::<Vec<_>>(), [&all[2].id, &all[3].id]);
}

async fn a_parked_consumer_gets_a_late_message(queen: &Queen, broker: &Broker) {
    let queue = unique("rs-late");
    let seen = Seen::default();
    let consuming = consumer(queen, &queue, "g", 1).poll_timeout(Duration::from_secs(10));
    let handler = keeper(&seen);
    let consuming = tokio::spawn(async move { consuming.consume(handler).await.expect("consume") });
    let parked = async {
        while broker.parked(&queue) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), parked).await.expect("it is parked");
    push_n(queen, &queue, "p", 1).await;
    let summary =
        tokio::time::timeout(Duration::from_secs(5), consuming).await.expect("woken in time").expect("joined");
    assert_eq!(summary.acked, 1);
}

async fn buffered_push(queen: &Queen) {
    let queue = unique("rs-buffer");
    let options = BufferOptions { message_count: 100, time: Duration::from_secs(60), ..Default::default() };
    let buffered = queen.queue(&queue).partition("p").buffer(options);
    for n in 0..20 {
        buffered.push(json!({"n": n})).await.expect("push");
    }
    let results = queen.flush_all_buffers().await.expect("flush");
    assert!(results.len() == 20 && results.iter().all(|r| r.status == PushStatus::Queued), "{results:?}");
    assert_eq!(queen.queue(&queue).batch(50).pop().await.expect("pop").len(), 20);
}

async fn configure_and_delete(queen: &Queen) {
    let queue = unique("rs-admin");
    let options = QueueOptions { lease_time: Some(45), retry_limit: Some(5), ..Default::default() };
    let configured = queen.queue(&queue).configure(options).await.expect("configure");
    assert_eq!((&configured["configured"], &configured["options"]["leaseTime"]), (&json!(true), &json!(45)));
    push_n(queen, &queue, "p", 1).await;
    let deleted = queen.queue(&queue).delete().await.expect("delete");
    assert_eq!(deleted["existed"], true);
}

async fn a_transaction_acks_and_pushes(queen: &Queen) {
    let (from, to) = (unique("rs-txn-from"), unique("rs-txn-to"));
    push_n(queen, &from, "p", 2).await;
    let group = || queen.queue(&from).group("g").subscription_mode(SubscriptionMode::All).batch(10);
    let got = group().pop().await.expect("pop");
    let bundle = queen.transaction().push_to(&to, "a", json!({"n": 0})).expect("an item").ack_all(&got);
    let bundle = bundle.push_to(&to, "a", json!({"n": 1})).expect("an item");
    let done = bundle.push_to(&to, "b", json!({"n": 2})).expect("an item").commit().await.expect("committed");
    assert!(done.success, "{done:?}");
    assert_eq!(done.results.len(), 5, "{done:?}");
    assert!(group().wait(false).pop().await.expect("pop").is_empty(), "acked");
    let stored = queen.queue(&to).partition("a").batch(10).pop().await.expect("pop");
    assert_eq!(stored.iter().filter_map(|m| m.data["n"].as_i64()).collect::<Vec<_>>(), [0, 1]);
    let twice = TxnPushItem {
        queue: to.clone(),
        partition: Some("a".into()),
        payload: json!(3),
        transaction_id: Some(stored[0].transaction_id.clone()),
        trace_id: None,
    };
    let refused = queen.transaction().push_to(&to, "b", 4).expect("an item").push_item(twice).expect("an item");
    assert!(refused.commit().await.is_err(), "a stored key rolls all of it back");
    assert_eq!(queen.queue(&to).partition("b").batch(10).pop().await.expect("pop").len(), 1);
}

/// One pushes, the other consumes; keys are the same for both.
async fn forms_meet_on_one_queue(one: &Queen, other: &Queen) {
    let queue = unique("rs-meet");
    let items = |range: std::ops::Range<i64>| -> Vec<PushItem> {
        range
            .map(|n| PushItem::new(&queue, json!({"n": n, "text": "é🐝 \"x\""})).transaction_id(format!("k{n}")))
            .collect()
    };
    one.queue(&queue).push_items(items(0..40)).await.expect("push");
    let again = other.queue(&queue).push_items(items(20..60)).await.expect("push");
    let queued = again.iter().filter(|r| r.status == PushStatus::Queued).count();
    assert_eq!((again.len(), queued), (40, 20), "{again:?}");
    for queen in [one, other] {
        let (group, seen) = (unique("meet"), Seen::default());
        consumer(queen, &queue, &group, 60).batch(7).consume(keeper(&seen)).await.expect("consume");
        assert_eq!(*seen.lock().expect("a lock"), (0..60).collect::<Vec<_>>());
    }
    let shared = |queen: &Queen| queen.queue(&queue).group("shared").subscription_mode(SubscriptionMode::All).batch(30);
    let first = shared(one).pop().await.expect("pop");
    assert!(one.ack_all(&first).await.expect("ack").iter().all(|r| r.success));
    let second = shared(other).pop().await.expect("pop");
    assert_eq!((first.len(), second.len(), &second[0].transaction_id), (30, 30, &"k30".to_owned()));
    assert!(one.ack_all(&second).await.expect("ack").iter().all(|r| r.success), "a lease is a lease");
}

/// The options do what they say: a record that a client packed is stored as zstd even when it is small.
async fn the_form_on_the_wire(queen: &Queen, broker: &Broker, binary: bool) {
    let queue = unique("rs-form");
    push_n(queen, &queue, "p", 2).await;
    let sql = format!(
        "select s.codec from queen.segments as s join queen.partitions as p on p.id = s.partition_id \
         join queen.queues as q on q.id = p.queue_id where q.name = '{queue}'"
    );
    let database = broker.database.as_ref().expect("a database");
    assert_eq!(crate::harness::shared_postgres().query(database, &sql), if binary { "1" } else { "0" });
}
