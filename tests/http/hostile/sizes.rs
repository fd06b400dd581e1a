//! Sizes, depth, packed bodies and segments. H3 to H5.

use super::{exchange, full, resident, targets};
use crate::harness::{Broker, Setup, shared_postgres, unique};
use serde_json::json;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[test]
fn h03_sizes_have_their_statuses_and_no_memory() {
    let limit = 1 << 20;
    static SMALL: OnceLock<Broker> = OnceLock::new();
    let b = SMALL.get_or_init(|| Setup::clean().env("QUEEN_MAX_BODY_BYTES", &limit.to_string()).start());
    let status = |bytes: Vec<u8>| {
        let (text, closed) = exchange(b.port, &bytes);
        assert!(closed);
        text.get(9..12).unwrap_or("").to_owned()
    };
    let mut asked = 0;
    let mut check = |want: &[&str], text: String| {
        let got = status(text.into_bytes());
        assert!(want.contains(&got.as_str()), "{got}, not {want:?}");
        asked += 1;
    };
    let end = "Connection: close\r\n\r\n";
    for size in [60, 63, 64, 65, 66, 80, 128, 1024] {
        let want = if size < 63 {
            &["200"][..]
        } else if size < 66 {
            &["200", "431"][..]
        } else {
            &["431"][..]
        };
        check(want, format!("GET /health HTTP/1.1\r\nHost: x\r\nX: {}\r\n{end}", "y".repeat(size << 10)));
        check(want, format!("GET /health HTTP/1.1\r\nHost: x\r\n{}: y\r\n{end}", "X".repeat(size << 10)));
    }
    for lines in [90, 97, 99, 101, 200, 1000, 5000] {
        let want = if lines < 98 { &["200"][..] } else { &["431"][..] };
        check(want, format!("GET /health HTTP/1.1\r\nHost: x\r\n{}{end}", "A: b\r\n".repeat(lines)));
    }
    for size in [8, 15, 17, 32, 64, 1024] {
        let want = if size < 16 { &["404"][..] } else { &["414"][..] };
        check(want, format!("GET /{} HTTP/1.1\r\nHost: x\r\n{end}", "a".repeat(size << 10)));
        check(want, format!("GET /x?{} HTTP/1.1\r\nHost: x\r\n{end}", "a".repeat(size << 10)));
    }
    let body = |size: usize| format!("{{\"items\":[]}}{}", " ".repeat(size - 12));
    for (size, want) in [(limit, "201"), (limit + 1, "413"), (2 * limit, "413"), (8 * limit, "413")] {
        check(
            &[want],
            format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{end}{}", body(size)),
        );
        let text = body(size);
        check(
            &[want],
            format!(
                "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{end}{:x}\r\n{text}\r\n0\r\n\r\n",
                text.len()
            ),
        );
    }
    for size in ["1048577", "4294967296", "9223372036854775807"] {
        check(&["413"], format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{end}"));
    }
    assert!(asked >= 40, "{asked}");
    let before = resident(b);
    let parallel = full(40, 100);
    crate::harness::at_once(parallel, |_| {
        let text = body(limit);
        let head =
            format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {limit}\r\nConnection: close\r\n\r\n");
        let (answer, _) = exchange(b.port, format!("{head}{text}").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    });
    let grown = resident(b).saturating_sub(before);
    println!("{parallel} bodies of {limit} bytes at once: {grown} bytes more resident");
    assert!(grown as f64 <= 1.25 * (parallel * limit) as f64, "{grown}");
}

#[test]
fn h03_a_body_of_tiny_items_takes_no_memory_to_speak_of() {
    let b = Setup::clean().start();
    let q = unique("tiny");
    let item = format!(r#"{{"queue":"{q}","payload":1}}"#);
    let items = |n: usize| format!(r#"{{"items":[{}]}}"#, vec![item.as_str(); n].join(","));
    b.push_raw(items(1).as_bytes());
    let before = resident(&b);
    let answer = b.send("POST", "/api/v1/push", Some(items(1_500_000).as_bytes()));
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("more than 250000 items in one request"), "{}", answer.text());
    let acks = vec![r#"{"transactionId":"a","partitionId":"1"}"#; 250_001].join(",");
    let answer = b.send("POST", "/api/v1/ack/batch", Some(format!(r#"{{"acknowledgments":[{acks}]}}"#).as_bytes()));
    assert!(answer.error().contains("more than 250000 items"), "{}", answer.text());
    let operations = vec![r#"{"type":"ack","transactionId":"a","partitionId":"1"}"#; 250_001].join(",");
    let answer = b.send("POST", "/api/v1/transaction", Some(format!(r#"{{"operations":[{operations}]}}"#).as_bytes()));
    assert!(answer.text().contains("more than 250000 items"), "{} {}", answer.status, answer.text());
    assert_eq!(b.drain(&q, "batch=10", "").len(), 1, "nothing of it was stored");
    let grown = resident(&b).saturating_sub(before);
    println!("refused bodies of 1,500,000 items: {grown} bytes more resident");
    assert!(grown < 256 << 20, "{grown}");
}

#[test]
fn h04_depth_neither_crashes_nor_takes_long() {
    let depths: &[usize] = if std::env::var_os("QUEEN_FULL").is_some() {
        &[1, 100, 127, 128, 129, 1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_000_000]
    } else {
        &[1, 127, 128, 129, 1000, 100_000, 1_000_000]
    };
    let shapes: [fn(usize) -> String; 4] = [
        |n| format!("{}1{}", "[".repeat(n), "]".repeat(n)),
        |n| format!("{}1{}", r#"{"a":"#.repeat(n), "}".repeat(n)),
        |n| format!("{}1{}", r#"[{"a":"#.repeat(n / 2), "}]".repeat(n / 2)),
        |n| "[".repeat(n),
    ];
    for target in targets() {
        let q = unique("deep");
        let mut asked = 0;
        for depth in depths {
            for shape in shapes {
                let deep = shape(*depth);
                for (path, body) in [
                    ("/api/v1/push", format!(r#"{{"items":[{{"queue":"{q}","payload":{deep}}}]}}"#)),
                    ("/api/v1/push", format!(r#"{{"x":{deep},"items":[{{"queue":"{q}","payload":1}}]}}"#)),
                    ("/api/v1/push", deep.clone()),
                    ("/api/v1/ack", format!(r#"{{"transactionId":"a","partitionId":"1","x":{deep}}}"#)),
                    ("/api/v1/ack/batch", format!(r#"{{"acknowledgments":{deep}}}"#)),
                    ("/api/v1/transaction", format!(r#"{{"operations":{deep}}}"#)),
                    ("/api/v1/configure", format!(r#"{{"queue":"{q}","options":{deep}}}"#)),
                    ("/api/v1/fetch", format!(r#"{{"entries":{deep}}}"#)),
                ] {
                    let began = Instant::now();
                    let answer = target.send("POST", path, Some(body.as_bytes()));
                    assert!(answer.status < 500, "{path} {depth}: {} {}", answer.status, answer.text());
                    assert!(began.elapsed() < Duration::from_secs(10), "{path} {depth}: {:?}", began.elapsed());
                    asked += 1;
                }
            }
        }
        for depth in [1, 100, 128] {
            let q = unique("deep");
            let deep = shapes[0](depth);
            let body = format!(r#"{{"items":[{{"queue":"{q}","payload":{deep}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201, "{depth}");
            assert_eq!(target.payloads(&q), [deep]);
        }
        assert!(asked >= 200, "{asked}");
        target.serves();
    }
}

#[test]
fn h05_packed_bodies_are_refused_unread() {
    for target in targets() {
        let canary = unique("packed");
        let body = format!(r#"{{"items":[{{"queue":"{canary}","payload":1}}]}}"#);
        let mut asked = 0;
        for coding in [
            "gzip",
            "GZIP",
            "x-gzip",
            "deflate",
            "br",
            "zstd",
            "compress",
            "gzip, identity",
            "identity, gzip",
            "gzip,gzip",
            "",
            "identity;q=1",
            "cow",
        ] {
            for text in [body.as_bytes().to_vec(), vec![0x1f, 0x8b, 8, 0], vec![0x28, 0xb5, 0x2f, 0xfd, 0xff]] {
                let mut bytes = format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{}Content-Encoding: {coding}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", target.line, text.len()).into_bytes();
                bytes.extend_from_slice(&text);
                let (answer, _) = exchange(target.broker.port, &bytes);
                assert!(answer.starts_with("HTTP/1.1 415 "), "{coding:?}: {answer}");
                asked += 1;
            }
        }
        // A bomb that claims to be small, and one that is announced as what it is.
        for size in ["10", "10240", "10737418240"] {
            let head = format!(
                "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{}Content-Encoding: gzip\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{}",
                target.line,
                "x".repeat(10)
            );
            let mut client = target.broker.client();
            client.write(head.as_bytes()).expect("sent");
            if size != "10240" {
                assert_eq!(client.read("POST").expect("an answer").status, 415);
            }
            asked += 1;
        }
        assert!(asked >= 40);
        assert!(!target.exists(&canary));
        target.serves();
    }
}

#[test]
fn h05_a_damaged_segment_fails_its_batch_only() {
    let b = Setup::clean().start();
    let q = unique("damaged");
    let n = full(40, 500);
    for i in 0..n {
        b.push((0..20).map(|k| json!({"queue": q, "partition": format!("p{i}"), "transactionId": format!("{i}-{k}"), "payload": "ab ".repeat(100)})).collect());
    }
    let sql = format!(
        "update queen.segments as s set body = set_bit(s.body, (s.partition_id * 31 % (octet_length(s.body) * 8))::bigint, \
           1 - get_bit(s.body, (s.partition_id * 31 % (octet_length(s.body) * 8))::bigint)) \
         from queen.partitions as p, queen.queues as q where p.id = s.partition_id and q.id = p.queue_id and q.name = '{q}' \
           and s.codec = 1 and substring(p.name from 2)::integer % 2 = 0"
    );
    shared_postgres().query(b.database.as_ref().expect("a database"), &sql);
    b.restart();
    let before = resident(&b);
    let (mut whole, mut failed, mut other) = (0, 0, 0);
    for i in 0..n {
        let path = format!("/api/v1/pop/queue/{q}/partition/p{i}?autoAck=true&batch=100");
        let answer = b.get(&path);
        match answer.status {
            200 if i % 2 == 1 => whole += 1,
            200 => other += 1,
            500 if i % 2 == 0 => failed += 1,
            status => panic!("{path}: {status} {}", answer.text()),
        }
    }
    println!("{n} segments, {failed} damaged ones refused, {other} whose damage was in a text");
    assert_eq!(whole, n / 2);
    // Where a bit falls depends on the number of the partition; in a stored text it makes another text.
    assert!(failed >= n / 10, "{failed}");
    assert!(resident(&b).saturating_sub(before) < 64 << 20);
    assert_eq!(b.get("/health").status, 200);
}
