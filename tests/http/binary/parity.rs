//! One set of behaviour tests, run in all forms of a push and read in both forms of a pop. Binary forms 2, 8, 18.

use crate::harness::{Broker, Setup, at_once, two_shards, unique};
use crate::wire::{self, FORMS, Form, Item, push, send_push};
use serde_json::{Value, json};

/// A rule that every form of a push must keep, proved once for each.
macro_rules! forms {
    ($($(#[$doc:meta])* fn $name:ident($broker:ident, $form:ident) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;
            fn rule($broker: &'static Broker, $form: Form) $body
            #[test]
            fn json() {
                rule(two_shards(), Form::Json);
            }
            #[test]
            fn plain() {
                rule(two_shards(), Form::Plain);
            }
            #[test]
            fn plain_zstd() {
                rule(two_shards(), Form::PlainZstd);
            }
            #[test]
            fn packed() {
                rule(two_shards(), Form::Packed);
            }
            #[test]
            fn packed_zstd() {
                rule(two_shards(), Form::PackedZstd);
            }
        }
    )*};
}

fn items(queue: &str, partition: &str, keys: &[&str]) -> Vec<Item> {
    keys.iter().map(|key| Item::new(queue, partition, key, &format!("{{\"k\":\"{key}\"}}"))).collect()
}

fn statuses(verdicts: &[Value]) -> Vec<&str> {
    verdicts.iter().map(|verdict| verdict["status"].as_str().unwrap()).collect()
}

fn offsets(verdicts: &[Value]) -> Vec<i64> {
    verdicts.iter().map(|verdict| verdict["offset"].as_i64().unwrap_or(-1)).collect()
}

/// Keys and payloads of a partition in order, by both forms of a pop, which must agree.
#[track_caller]
fn stored(b: &Broker, queue: &str, partition: &str) -> Vec<(i64, String, String)> {
    let query = |group: &str| format!("batch=10000&consumerGroup={group}&subscriptionMode=all");
    let json = b.pop_pinned(queue, partition, &query("as-json"));
    let framed = wire::pop_pinned(b, queue, partition, &query("as-frames")).pop;
    let list = |pop: &crate::harness::Pop| -> Vec<_> {
        pop.messages
            .iter()
            .map(|m| (m.id.clone(), m.offset, m.transaction_id.clone(), m.data.get().to_owned()))
            .collect()
    };
    let (json, framed) = (list(&json), list(&framed));
    assert_eq!(json, framed, "the same claim, rendered in two forms");
    json.into_iter().map(|(_, offset, key, data)| (offset, key, data)).collect()
}

fn keys_of(stored: &[(i64, String, String)]) -> Vec<&str> {
    stored.iter().map(|(_, key, _)| &**key).collect()
}

forms! {
    fn verdicts_offsets_and_ids(b, form) {
        let q = unique("bin");
        let verdicts = push(b, form, &items(&q, "p", &["a", "b", "c"]));
        assert_eq!(statuses(&verdicts), ["queued"; 3]);
        assert_eq!(offsets(&verdicts), [0, 1, 2]);
        for (i, verdict) in verdicts.iter().enumerate() {
            assert_eq!((&verdict["index"], &verdict["queueName"]), (&json!(i), &json!(q)));
        }
        assert_eq!(verdicts[1]["transaction_id"], "b");
        let pop = b.pop_pinned(&q, "p", "batch=10");
        let ids: Vec<&str> = verdicts.iter().map(|verdict| verdict["message_id"].as_str().unwrap()).collect();
        assert_eq!(pop.messages.iter().map(|m| &*m.id).collect::<Vec<_>>(), ids, "the answer's ids are the stored ones");
    }

    /// Layer 1: the first one of the request wins, across wire groups too.
    fn a_repeat_in_the_request_shares_the_first_ones_outcome(b, form) {
        let (q, other) = (unique("bin"), unique("bin-o"));
        let mut all = items(&q, "p", &["a", "b"]);
        all.extend(items(&other, "p", &["a"]));
        all.extend(items(&q, "p", &["c", "a", "d"]));
        let verdicts = push(b, form, &all);
        assert_eq!(statuses(&verdicts), ["queued", "queued", "queued", "queued", "duplicate", "queued"]);
        assert_eq!(offsets(&verdicts), [0, 1, 0, 2, 0, 3]);
        assert_eq!(verdicts[4]["message_id"], verdicts[0]["message_id"]);
        assert_eq!(keys_of(&stored(b, &q, "p")), ["a", "b", "c", "d"]);
    }

    /// Layer 2: what is stored inside the window, with the original's id and offset; the survivors keep their order.
    fn stored_duplicates_are_left_out(b, form) {
        for before in FORMS {
            let q = unique("bin");
            let first = push(b, before, &items(&q, "p", &["a", "b", "c"]));
            let second = push(b, form, &items(&q, "p", &["d", "b", "e", "a", "f"]));
            assert_eq!(statuses(&second), ["queued", "duplicate", "queued", "duplicate", "queued"], "{before:?}");
            assert_eq!(offsets(&second), [3, 1, 4, 0, 5]);
            assert_eq!(second[1]["message_id"], first[1]["message_id"]);
            assert_eq!(second[3]["message_id"], first[0]["message_id"]);
            let again = push(b, form, &items(&q, "p", &["d", "f"]));
            assert_eq!((statuses(&again), offsets(&again)), (vec!["duplicate"; 2], vec![3, 5]));
            assert_eq!(keys_of(&stored(b, &q, "p")), ["a", "b", "c", "d", "e", "f"]);
        }
    }

    fn the_same_bytes_again_are_all_duplicates(b, form) {
        let q = unique("bin");
        let keys: Vec<String> = (0..300).map(|i| format!("k{i}")).collect();
        let all = items(&q, "p", &keys.iter().map(String::as_str).collect::<Vec<_>>());
        let body = wire::body(form, &all, 0);
        let content_type = if form == Form::Json { "application/json" } else { wire::PUSH_TYPE };
        let send = || wire::send(b, "POST", "/api/v1/push", content_type, Some(&body)).json();
        let (first, again) = (send(), send());
        for (i, (first, again)) in first.as_array().unwrap().iter().zip(again.as_array().unwrap()).enumerate() {
            assert_eq!((&first["status"], &again["status"]), (&json!("queued"), &json!("duplicate")));
            assert_eq!((&first["message_id"], &first["offset"]), (&again["message_id"], &again["offset"]), "{i}");
        }
        assert_eq!(stored(b, &q, "p").len(), 300);
    }

    fn without_a_key_every_push_is_new(b, form) {
        let q = unique("bin");
        let item = Item { key: None, ..Item::new(&q, "p", "", "1") };
        let verdicts = push(b, form, &[item.clone(), item.clone(), item]);
        assert_eq!(statuses(&verdicts), ["queued"; 3]);
        assert!(verdicts.iter().all(|verdict| verdict["transaction_id"] == verdict["message_id"]));
    }

    fn with_dedup_off_only_the_request_is_looked_at(b, form) {
        let q = unique("bin");
        b.configure(&q, json!({"dedupWindowSeconds": 0}));
        push(b, form, &items(&q, "p", &["a", "b"]));
        let verdicts = push(b, form, &items(&q, "p", &["a", "c", "a"]));
        assert_eq!(statuses(&verdicts), ["queued", "queued", "duplicate"]);
        assert_eq!(offsets(&verdicts), [2, 3, 2]);
        assert_eq!(keys_of(&stored(b, &q, "p")), ["a", "b", "a", "c"]);
    }

    /// Wire order is item order, however many wire groups a partition comes in; one createdAt for all of them.
    fn a_partition_that_comes_back_keeps_its_order(b, form) {
        let q = unique("bin");
        let of = |n: usize| Item::new(&q, ["left", "right"][n % 2], &format!("k{n}"), &format!("{n}"));
        let verdicts = push(b, form, &(0..60).map(of).collect::<Vec<_>>());
        assert_eq!(offsets(&verdicts), (0..60).map(|n| n / 2).collect::<Vec<i64>>());
        for (side, first) in [("left", 0), ("right", 1)] {
            let want: Vec<String> = (0..30).map(|n| (2 * n + first).to_string()).collect();
            assert_eq!(stored(b, &q, side).into_iter().map(|(_, _, data)| data).collect::<Vec<_>>(), want);
            let pop = b.pop_pinned(&q, side, "batch=100&consumerGroup=at&subscriptionMode=all");
            assert!(pop.messages.iter().all(|m| m.created_at == pop.messages[0].created_at), "one commit");
        }
    }

    /// Large wire groups of one partition in one body, which merging would not help.
    fn large_groups_of_one_partition_commit_together(b, form) {
        let q = unique("bin");
        let text = "lorem ipsum ".repeat(20);
        let of = |n: usize| {
            let partition = if (n / 100).is_multiple_of(2) { "a" } else { "b" };
            Item::new(&q, partition, &format!("k{n}"), &format!("{{\"n\":{n},\"text\":\"{text}{n}\"}}"))
        };
        let verdicts = push(b, form, &(0..400).map(of).collect::<Vec<_>>());
        assert_eq!(statuses(&verdicts), vec!["queued"; 400]);
        for (partition, first) in [("a", 0), ("b", 100)] {
            let want: Vec<String> = (first..first + 100).chain(first + 200..first + 300).map(|n| format!("k{n}")).collect();
            assert_eq!(keys_of(&stored(b, &q, partition)), want);
        }
    }

    fn names_that_are_refused_alone(b, form) {
        let q = unique("bin");
        let long = "x".repeat(1025);
        let all = [
            Item::new(&q, "", "a", "1"),
            Item::new(&q, "p", "b", "2"),
            Item::new("", "p", "c", "3"),
            Item::new(&long, "p", "d", "4"),
            Item::new(&q, &long, "e", "5"),
            Item::new(&q, "p", "f", "6"),
        ];
        let verdicts = push(b, form, &all);
        assert_eq!(statuses(&verdicts), ["error", "queued", "error", "error", "error", "queued"]);
        assert!(verdicts[0]["error"].as_str().is_some_and(|text| text.contains("partition")), "{}", verdicts[0]);
        assert_eq!(keys_of(&stored(b, &q, "p")), ["b", "f"]);
    }

    fn payloads_come_back_byte_for_byte(b, form) {
        let q = unique("bin");
        let long = format!("\"{}\"", "é🐝\\\"".repeat(5000));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let payloads = [
            "null", "0", "-12.75e-3", "90071992547409931234", "1E400", "\"\"", "[]", "{}", "{\"a\":1,\"a\":2}", "true",
            "{ \"space\" : [ 1 , 2 ] }", "\"\\ud800 \\u00e8\\/\"", &long, &deep,
        ];
        let of = |(n, payload): (usize, &&str)| Item::new(&q, "p", &format!("k{n}"), payload);
        push(b, form, &payloads.iter().enumerate().map(of).collect::<Vec<_>>());
        assert_eq!(stored(b, &q, "p").iter().map(|(_, _, data)| &**data).collect::<Vec<_>>(), payloads);
    }

    fn keys_of_any_text_and_of_the_longest(b, form) {
        let q = unique("bin");
        let longest = "é".repeat(32767) + "x";
        assert_eq!(longest.len(), 65535);
        let keys = ["quote \" and \\ backslash", "é🐝\u{7f}\u{2028}", &longest, " "];
        let verdicts = push(b, form, &items_raw(&q, &keys));
        assert_eq!(verdicts.iter().map(|v| v["transaction_id"].as_str().unwrap()).collect::<Vec<_>>(), keys);
        assert_eq!(keys_of(&stored(b, &q, "p")), keys);
        assert_eq!(statuses(&push(b, form, &items_raw(&q, &keys))), ["duplicate"; 4]);
    }

    /// Of concurrent pushes of one key one is stored, whatever form each has.
    fn of_concurrent_pushes_one_is_stored(b, form) {
        let q = unique("bin");
        let all = at_once(10, |n| {
            let form = if n % 2 == 0 { form } else { FORMS[n / 2] };
            let own = format!("own-{n}");
            let keys = ["once", &own, "twice"];
            let keys: Vec<&str> = if n % 3 == 0 { keys.into_iter().rev().collect() } else { keys.to_vec() };
            push(b, form, &items(&q, "p", &keys))
        });
        for key in ["once", "twice"] {
            let of_key: Vec<&Value> = all.iter().flatten().filter(|v| v["transaction_id"] == key).collect();
            let queued: Vec<_> = of_key.iter().filter(|v| v["status"] == "queued").collect();
            assert_eq!((of_key.len(), queued.len()), (10, 1), "{key}: {of_key:?}");
            for verdict in &of_key {
                assert_eq!((&verdict["message_id"], &verdict["offset"]), (&queued[0]["message_id"], &queued[0]["offset"]));
            }
        }
        assert_eq!(stored(b, &q, "p").len(), 12);
    }

    /// Pushes of one partition that meet in one commit, small and large, packed and not.
    fn pushes_that_meet_in_a_commit_lose_nothing(b, form) {
        let q = unique("bin");
        let text = "0123456789".repeat(80);
        at_once(12, |n| {
            let form = if n % 2 == 0 { form } else { FORMS[n % 5] };
            for round in 0..5 {
                let count = [1, 3, 20, 100][(n + round) % 4];
                let of = |i: usize| Item::new(&q, "p", &format!("{n}-{round}-{i}"), &format!("\"{text}{i}\""));
                let verdicts = push(b, form, &(0..count).map(of).collect::<Vec<_>>());
                let got = offsets(&verdicts);
                assert!(got.windows(2).all(|pair| pair[0] + 1 == pair[1]), "in a row: {got:?}");
            }
        });
        let stored = stored(b, &q, "p");
        assert_eq!(stored.len(), total());
        assert!(stored.iter().enumerate().all(|(i, (offset, ..))| *offset == i as i64));
        let mut keys = keys_of(&stored);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), total(), "each once");
    }

    fn counts_only(b, form) {
        if form == Form::Json {
            return; // JSON has no such answer.
        }
        let q = unique("bin");
        push(b, form, &items(&q, "p", &["a"]));
        let mut all = items(&q, "p", &["a", "b", "c", "b"]);
        all.extend(items(&q, "", &["x", "y"]));
        let answer = send_push(b, form, &all, 2);
        assert_eq!((answer.status, answer.json()), (201, json!({"count": 6, "queued": 2, "duplicate": 2, "error": 2})));
        assert_eq!(keys_of(&stored(b, &q, "p")), ["a", "b", "c"]);
        let none = send_push(b, form, &[], 2);
        assert_eq!((none.status, none.json()), (201, json!({"count": 0, "queued": 0, "duplicate": 0, "error": 0})));
    }

    fn a_dead_letter_keeps_key_and_payload(b, form) {
        let q = unique("bin");
        push(b, form, &items(&q, "p", &["a", "b"]));
        let pop = b.pop_pinned(&q, "p", "batch=10&consumerGroup=g&subscriptionMode=all");
        b.ack_ok("g", &[pop.messages[0].ack("dlq"), pop.messages[1].ack("completed")]);
        let letters = b.dead_letters(&q);
        assert_eq!(letters.len(), 1, "{letters:?}");
        assert!(letters[0].starts_with("g|a|"), "{letters:?}");
    }

    fn a_parked_pop_of_either_form_is_woken(b, form) {
        let q = unique("bin");
        let all = at_once(3, |n| {
            if n == 2 {
                crate::harness::eventually("both are parked", || (b.parked(&q) == 2).then_some(()));
                push(b, form, &items(&q, "p", &["a"]));
                return Vec::new();
            }
            let path = format!("/api/v1/pop/queue/{q}?wait=true&timeout=20000&consumerGroup=g{n}&subscriptionMode=all");
            let pop = if n == 0 { b.pop_path(&path) } else { wire::pop(b, &format!("{path}&frames=true")).pop };
            pop.messages.into_iter().map(|m| m.transaction_id).collect()
        });
        assert_eq!((&all[0], &all[1]), (&vec!["a".to_owned()], &vec!["a".to_owned()]));
    }
}

/// Messages of `pushes_that_meet_in_a_commit_lose_nothing`.
fn total() -> usize {
    (0..12).flat_map(|n| (0..5).map(move |round| [1, 3, 20, 100][(n + round) % 4])).sum()
}

fn items_raw(queue: &str, keys: &[&str]) -> Vec<Item> {
    keys.iter().map(|key| Item::new(queue, "p", key, "1")).collect()
}

/// What was pushed in any form is there after a `kill -9`, in both forms of a pop.
#[test]
fn what_was_answered_survives_a_kill() {
    let b = Setup::clean().start();
    let mut want = Vec::new();
    for form in FORMS {
        let keys: Vec<String> = (0..50).map(|i| format!("{form:?}-{i}")).collect();
        push(&b, form, &items("survive", "p", &keys.iter().map(String::as_str).collect::<Vec<_>>()));
        want.extend(keys);
    }
    b.restart();
    assert_eq!(keys_of(&stored(&b, "survive", "p")), want);
    let again = push(&b, Form::Packed, &items("survive", "p", &["Json-3", "Packed-7", "new"]));
    assert_eq!(statuses(&again), ["duplicate", "duplicate", "queued"]);
}
