//! Framed pop: records as they came, whole or sliced; leases, budgets and acks are those of the JSON pop. Binary forms 12, 15.

use crate::harness::{Setup, rules, shared_postgres, unique};
use crate::wire::{self, Form, Item, body, first_z, pop_pinned, push};
use serde_json::json;

const ALL: &str = "consumerGroup=g&subscriptionMode=all";

fn many(queue: &str, partition: &str, n: usize, payload: usize) -> Vec<Item> {
    let of = |i: usize| {
        // Text that compresses, and differs.
        let text: String = (0..payload / 16).map(|k| format!("{:016x}", (i * 7919 + k * 31) as u64)).collect();
        Item::new(queue, partition, &format!("k{i}"), &format!("{{\"n\":{i},\"text\":\"{text}\"}}"))
    };
    (0..n).map(of).collect()
}

rules! {
    /// What a client packed is in PostgreSQL and in the answer, byte for byte.
    fn packed_records_are_stored_and_sent_as_they_came(b) {
        for n in [1, 2, 100, 1500] {
            let q = unique("verbatim");
            let bytes = body(Form::Packed, &many(&q, "p", n, 100), 0);
            let answer = wire::send(b, "POST", "/api/v1/push", wire::PUSH_TYPE, Some(&bytes));
            assert_eq!(answer.status, 201, "{}", answer.text());
            let framed = pop_pinned(b, &q, "p", "batch=10000");
            assert_eq!(framed.records.len(), 1);
            let record = &framed.records[0];
            assert_eq!((record.base, record.count, record.codec), (0, n as u32, 1));
            assert_eq!(record.bytes, first_z(&bytes), "verbatim");
            let hex: String = first_z(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let sql = format!(
                "select encode(s.body, 'hex') from queen.segments as s join queen.partitions as p on p.id = s.partition_id \
                 join queen.queues as q on q.id = p.queue_id where q.name = '{q}'"
            );
            assert_eq!(shared_postgres().query(b.database.as_ref().unwrap(), &sql), hex, "stored so");
        }
    }

    /// Only the wire group with a duplicate is packed again.
    fn survivors_are_packed_again_byte_for_byte(b) {
        let q = unique("survive");
        push(b, Form::Packed, &many(&q, "p", 1, 100));
        let bytes = body(Form::Packed, &many(&q, "p", 400, 100), 0);
        let answer = wire::send(b, "POST", "/api/v1/push", wire::PUSH_TYPE, Some(&bytes)).json();
        let of = |status: &str| answer.as_array().unwrap().iter().filter(|v| v["status"] == status).count();
        assert_eq!((of("duplicate"), of("queued")), (1, 399));
        let framed = pop_pinned(b, &q, "p", "batch=10000");
        assert_eq!(framed.records.iter().map(|r| r.count).collect::<Vec<_>>(), [1, 399]);
        let sent = zstd::bulk::decompress(first_z(&bytes), 1 << 20).unwrap();
        let first = 4 + u32::from_le_bytes(sent[..4].try_into().unwrap()) as usize;
        assert_eq!(framed.records[1].inflated(), sent[first..], "the same frames without the first");
        assert_eq!(framed.records[1].codec, 1, "packed again");
    }

    fn a_claim_may_begin_and_end_inside_a_record(b) {
        let q = unique("inside");
        push(b, Form::Packed, &many(&q, "p", 10, 50));
        let mut seen = Vec::new();
        for n in 0..4 {
            let framed = pop_pinned(b, &q, "p", &format!("batch=3&{ALL}"));
            assert_eq!((framed.records.len(), framed.records[0].count), (1, 10), "a small record is sent whole");
            assert_eq!(framed.pop.offsets(), (3 * n..(3 * n + 3).min(10)).collect::<Vec<i64>>());
            b.complete("g", &framed.pop);
            seen.extend(framed.pop.messages.into_iter().map(|m| m.transaction_id));
        }
        assert_eq!(seen, (0..10).map(|i| format!("k{i}")).collect::<Vec<_>>());
        assert_eq!(pop_pinned(b, &q, "p", ALL).pop.messages.len(), 0);
    }

    /// A large record is cut to what a small claim wants.
    fn a_small_claim_of_a_large_record_gets_a_slice(b) {
        let q = unique("slice");
        push(b, Form::Packed, &many(&q, "p", 2000, 100));
        let first = pop_pinned(b, &q, "p", &format!("batch=10&{ALL}"));
        assert_eq!((first.records[0].base, first.records[0].count), (0, 10));
        b.complete("g", &first.pop);
        let second = pop_pinned(b, &q, "p", &format!("batch=7&{ALL}"));
        assert_eq!((second.records[0].base, second.records[0].count), (10, 7));
        assert_eq!(second.pop.offsets(), (10..17).collect::<Vec<_>>());
        b.complete("g", &second.pop);
        let rest = pop_pinned(b, &q, "p", &format!("batch=10000&{ALL}"));
        assert_eq!((rest.records[0].base, rest.records[0].count), (0, 2000), "most of it: sent whole");
        assert_eq!(rest.pop.offsets(), (17..2000).collect::<Vec<_>>());
    }

    fn json_pushes_are_framed_too_and_agree_with_the_json_pop(b) {
        let q = unique("agree");
        push(b, Form::Json, &many(&q, "p", 3, 20));
        push(b, Form::Packed, &many(&q, "p", 200, 100));
        push(b, Form::Plain, &many(&q, "p", 300, 100));
        let json = b.pop_pinned(&q, "p", "batch=1000&consumerGroup=a&subscriptionMode=all");
        let framed = pop_pinned(b, &q, "p", "batch=1000&consumerGroup=b&subscriptionMode=all");
        assert_eq!(json.messages.len(), 300);
        for (json, framed) in json.messages.iter().zip(&framed.pop.messages) {
            let fields = |m: &crate::harness::Message| {
                (m.id.clone(), m.transaction_id.clone(), m.data.get().to_owned(), m.offset, m.partition_id.clone(), m.trace_id.clone(), m.delivery_attempt)
            };
            assert_eq!(fields(json), fields(framed));
            assert!(json.created_at.ends_with(&format!("{:06}Z", framed.created_at.parse::<i64>().unwrap() % 1_000_000)), "{}", json.created_at);
        }
        assert_eq!((framed.pop.queue.as_str(), framed.pop.partition_id == json.partition_id), (q.as_str(), true));
    }

    fn leases_auto_ack_and_attempts(b) {
        let q = unique("lease");
        push(b, Form::Packed, &many(&q, "p", 5, 20));
        let first = pop_pinned(b, &q, "p", &format!("batch=5&{ALL}"));
        assert_eq!((first.pop.lease_id.len(), &*first.pop.consumer_group), (36, "g"));
        assert_eq!(pop_pinned(b, &q, "p", ALL).pop.messages.len(), 0, "leased");
        assert_eq!(b.pop_pinned(&q, "p", ALL).messages.len(), 0, "to a JSON consumer too");
        b.ack_ok("g", &[first.pop.messages[1].ack("completed"), first.pop.messages[2].ack("retry")]);
        let second = b.pop_pinned(&q, "p", ALL);
        assert_eq!((second.offsets(), second.messages[0].delivery_attempt), (vec![2, 3, 4], 1));
        b.complete("g", &second);
        let auto = pop_pinned(b, &q, "p", "batch=2&autoAck=true");
        assert_eq!((&*auto.pop.lease_id, &*auto.pop.consumer_group), ("", "__QUEUE_MODE__"));
        assert_eq!(auto.pop.offsets(), [0, 1]);
        assert_eq!(pop_pinned(b, &q, "p", "batch=9&autoAck=true").pop.offsets(), [2, 3, 4]);
    }

    fn several_partitions_under_one_lease(b) {
        let q = unique("parts");
        for p in 0..6 {
            push(b, Form::Packed, &many(&q, &format!("p{p}"), 4, 20));
        }
        let path = format!("/api/v1/pop/queue/{q}?frames=true&batch=14&partitions=4&{ALL}");
        let framed = wire::pop(b, &path);
        assert_eq!((framed.pop.partitions_claimed, framed.pop.messages.len()), (4, 14), "the budgets are messages");
        let results = b.complete("g", &framed.pop);
        assert!(results.iter().all(|r| r["success"] == true));
        let rest = wire::pop(b, &path);
        assert_eq!((framed.pop.messages.len() + rest.pop.messages.len()), 24, "{:?}", rest.pop.offsets());
    }

    fn autopilot_is_told_in_the_own_keys(b) {
        let q = unique("auto");
        push(b, Form::Packed, &many(&q, "p", 2, 20));
        let query = "autopilot=true&consumerGroup=a&subscriptionMode=all";
        let json = b.get(&format!("/api/v1/pop/queue/{q}?{query}")).json();
        let query = query.replace("Group=a", "Group=b");
        let framed = wire::pop(b, &format!("/api/v1/pop/queue/{q}?frames=true&{query}"));
        assert_eq!(framed.own, json!({"frames": true, "autopilot": json["autopilot"]}));
        assert!(json["autopilot"].is_object());
    }

    fn discovery_has_no_queue_name(b) {
        let (q, task) = (unique("found"), unique("task"));
        let configured = b.post("/api/v1/configure", &json!({"queue": q, "task": task}));
        assert_eq!(configured.status, 200, "{}", configured.text());
        push(b, Form::Packed, &many(&q, "p", 2, 20));
        let framed = wire::pop(b, &format!("/api/v1/pop?frames=true&task={task}&wait=true&timeout=10000"));
        assert_eq!((&*framed.pop.queue, framed.pop.messages.len()), ("", 2));
    }
}

/// From PostgreSQL the same bytes come as from memory, whole and sliced.
#[test]
fn after_a_restart_the_same_bytes_come() {
    let b = Setup::clean().start();
    let large = body(Form::Packed, &many("cold", "large", 2000, 100), 0);
    let small = body(Form::Packed, &many("cold", "small", 3, 20), 0);
    for bytes in [&large, &small] {
        assert_eq!(wire::send(&b, "POST", "/api/v1/push", wire::PUSH_TYPE, Some(bytes)).status, 201);
    }
    push(&b, Form::Json, &many("cold", "json", 500, 100));
    let read = |group: &str| {
        let query = |batch: u32| format!("batch={batch}&consumerGroup={group}&subscriptionMode=all");
        let slice = pop_pinned(&b, "cold", "large", &query(10));
        b.complete(group, &slice.pop);
        let whole = pop_pinned(&b, "cold", "large", &query(10_000));
        let others = ["small", "json"].map(|partition| pop_pinned(&b, "cold", partition, &query(10_000)).records);
        (slice.records, whole.records, others)
    };
    let warm = read("warm");
    assert_eq!(warm.1[0].bytes, first_z(&large));
    assert_eq!(warm.2[0][0].bytes, first_z(&small));
    b.restart();
    assert_eq!(read("cold"), warm);
}

/// A record that is damaged in the store: neither form answers with a part of it.
#[test]
fn a_damaged_record_is_a_fault_of_the_broker() {
    let b = Setup::clean().start();
    push(&b, Form::Packed, &many("broken", "p", 50, 50));
    let database = b.database.clone().unwrap();
    shared_postgres().query(&database, "update queen.segments set raw_len = raw_len + 1");
    b.restart();
    for frames in ["true", "false"] {
        let answer =
            b.get(&format!("/api/v1/pop/queue/broken?frames={frames}&consumerGroup={frames}&subscriptionMode=all"));
        assert_eq!((answer.status, answer.error().as_str()), (500, "pop failed"), "frames={frames}");
    }
    assert!(b.log().contains("does not decode"), "{}", b.log());
}

/// A record with an encrypted frame is never framed, whatever the claim wants of it.
#[test]
fn an_encrypted_frame_makes_the_answer_json() {
    let b = Setup::clean().start();
    push(&b, Form::Packed, &many("secret", "p", 4, 20));
    let database = b.database.clone().unwrap();
    shared_postgres().query(&database, "update queen.segments set frame_flags = frame_flags | 4");
    b.restart();
    let answer = b.get("/api/v1/pop/queue/secret?frames=true");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{}", answer.text());
}
