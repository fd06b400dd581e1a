//! What is refused: status and text, nothing stored, no memory for a claim. Binary forms 3, 6, 7.3.

use crate::harness::{Broker, Setup, rules, shared_postgres, unique};
use crate::wire::{self, Form, Item, PUSH_TYPE, body};

fn send(b: &Broker, path: &str, content_type: &str, body: &[u8]) -> (u16, String) {
    let answer = wire::send(b, "POST", path, content_type, Some(body));
    (answer.status, answer.error())
}

fn push(b: &Broker, body: &[u8]) -> (u16, String) {
    send(b, "/api/v1/push", PUSH_TYPE, body)
}

fn is_there(b: &Broker, queue: &str) -> bool {
    let sql = format!("select count(*) from queen.queues where name = '{queue}'");
    shared_postgres().query(b.database.as_ref().unwrap(), &sql) != "0"
}

fn two(queue: &str, second: &str) -> Vec<Item> {
    vec![Item::new(queue, "p", "key-a", "1"), Item::new(queue, "q", "key-b", second)]
}

rules! {
    fn one_bad_payload_refuses_the_whole_body(b) {
        let q = unique("bad");
        for form in [Form::Plain, Form::PlainZstd, Form::Packed, Form::PackedZstd] {
            for payload in ["", "NaN", "{", "1 2", "\u{feff}1", "\"\u{1}\"", "[1,]"] {
                let (status, text) = push(b, &body(form, &two(&q, payload), 0));
                assert_eq!(status, 400, "{form:?} {payload:?}: {text}");
                assert!(text.starts_with("bad body: wire group 1: "), "{text}");
                assert!(text.contains(" 1: the payload is not JSON"), "says at which index: {text}");
            }
        }
        assert!(!is_there(b, &q), "nothing is stored");
    }

    fn control_characters_get_the_text_of_the_json_push(b) {
        let q = unique("bad");
        let json = b.send("POST", "/api/v1/push", Some(br#"{"items":[{"queue":"a\u0001","payload":1}]}"#)).error();
        for form in [Form::Plain, Form::PlainZstd, Form::Packed, Form::PackedZstd] {
            for item in [
                Item::new("a\u{1}", "p", "k", "1"),
                Item::new(&q, "p\n", "k", "1"),
                Item::new(&q, "p", "k\u{1f}", "1"),
            ] {
                assert_eq!(push(b, &body(form, &[Item::new(&q, "p", "ok", "1"), item], 0)), (400, json.clone()));
            }
        }
        assert!(!is_there(b, &q));
    }

    fn the_media_type_alone_chooses_the_reader(b) {
        let q = unique("type");
        let items = [Item::new(&q, "p", "k", "1")];
        let (json, binary) = (body(Form::Json, &items, 0), body(Form::Plain, &items, 0));
        for content_type in ["application/X-Queen-PUSH", "application/x-queen-push; charset=utf-8"] {
            let answer = wire::send(b, "POST", "/api/v1/push", content_type, Some(&binary));
            assert_eq!(answer.status, 201, "{content_type}: {}", answer.text());
            assert_eq!(send(b, "/api/v1/push", content_type, &json).0, 400);
        }
        for content_type in ["application/json", "text/plain", "application/octet-stream", "application/x-queen-pushy"] {
            assert_eq!(send(b, "/api/v1/push", content_type, &binary).0, 400, "never sniffed");
            assert_eq!(wire::send(b, "POST", "/api/v1/push", content_type, Some(&json)).status, 201, "{content_type}");
        }
        let transaction = wire::transaction("", &items, 0);
        assert_eq!(push(b, &transaction).0, 400, "a transaction on the push route");
        assert_eq!(send(b, "/api/v1/transaction", PUSH_TYPE, &binary).0, 400, "and the other way");
        assert_eq!(send(b, "/api/v1/transaction", "application/json", &transaction).0, 400);
    }

    fn frames_is_a_strict_boolean(b) {
        for value in ["1", "yes", "TRUE", ""] {
            assert_eq!(b.get(&format!("/api/v1/pop/queue/x?frames={value}")).status, 400, "{value}");
        }
        assert_eq!(b.get(&format!("/api/v1/pop/queue/{}?frames=true", unique("none"))).status, 204);
    }

    /// A claim is refused from its header: the broker reserves nothing for it.
    fn claims_over_the_limit_are_413(b) {
        let q = unique("claim");
        let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
        let claim = |size: u64| {
            let z = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0], &size.to_le_bytes()[..], &[1, 0, 0]].concat();
            let head = [b"QPB1\x08\x01\0\0\0", &text(&q)[..], &text("p"), &[1, 0, 0, 0]].concat();
            [&head[..], &(z.len() as u32).to_le_bytes(), &z].concat()
        };
        for size in [u64::MAX, 1 << 63, 1 << 32, (64 << 20) + 1] {
            let (status, text) = push(b, &claim(size));
            assert_eq!((status, text.contains("67108864")), (413, true), "{size}: {text}");
        }
        assert_eq!(push(b, &claim(64 << 20)).0, 400, "within the limit, but it cannot hold so much");
        let raw_len = [b"QPB1\x01", &u32::MAX.to_le_bytes()[..], b"x"].concat();
        assert_eq!(push(b, &raw_len).0, 413);
        let head = [b"QTB1\0\0\0\0\0\x01\0\0\0", &claim(1 << 40)[9..]].concat();
        assert_eq!(send(b, "/api/v1/transaction", PUSH_TYPE, &head).0, 413);
        assert!(!is_there(b, &q));
    }
}

/// Bytes of the broker that are resident.
fn resident(b: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", b.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Bombs: bodies of some kilobytes that claim, or hold, 64 MiB each, many at once.
#[test]
fn bombs_cost_no_more_than_the_limit_allows() {
    let b = Setup::clean().env("QUEEN_SHARDS", "1").env("QUEEN_MAX_INFLATED_BYTES", "1000000").start();
    push(&b, &body(Form::Packed, &[Item::new("bomb", "p", "k", "{")], 0));
    let before = resident(&b);
    let zeros = zstd::bulk::compress(&vec![b' '; 64 << 20], 1).unwrap();
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let group = [&text("bomb")[..], &text("p"), &[1, 0, 0, 0], &(zeros.len() as u32).to_le_bytes(), &zeros].concat();
    let packed = [b"QPB1\x08\x01\0\0\0", &group[..]].concat();
    let outer = [b"QPB1\x01", &(64u32 << 20).to_le_bytes()[..], &zeros].concat();
    // Says that it is short, and is not.
    let short = [b"QPB1\x01", &1000u32.to_le_bytes()[..], &zeros].concat();
    for _ in 0..50 {
        assert_eq!(push(&b, &packed).0, 413);
        assert_eq!(push(&b, &outer).0, 413);
        assert_eq!(push(&b, &short).0, 400);
    }
    let grown = resident(&b).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for bodies of {} bytes", packed.len());
}

/// The limit counts what is inflated, of the whole request, and what fits below it is taken.
#[test]
fn the_limit_is_per_request_and_a_setting() {
    let b = Setup::clean().env("QUEEN_SHARDS", "1").env("QUEEN_MAX_INFLATED_BYTES", "10000").start();
    let item = |partition: &str, n: usize| {
        Item::new("limited", partition, &format!("k{n}"), &format!("\"{}\"", "x".repeat(4000)))
    };
    let one = [item("a", 1), item("b", 2)];
    let three = [item("a", 1), item("b", 2), item("c", 3)];
    for form in [Form::PlainZstd, Form::Packed] {
        assert_eq!(push(&b, &body(form, &three, 0)).0, 413, "{form:?}");
    }
    assert_eq!(push(&b, &body(Form::PackedZstd, &three, 0)).0, 413, "both layers count");
    assert!(!is_there(&b, "limited"));
    assert_eq!(wire::push(&b, Form::Packed, &one).len(), 2);
    assert_eq!(wire::push(&b, Form::Plain, &three).len(), 3, "nothing is inflated");
}
