//! HTTP/1.1 itself: routes and methods, sizes, keep-alive, pipelining, chunked bodies, smuggling, slow clients.

use crate::harness::{Broker, Client, Setup, eventually, two_shards, unique};
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn raw(client: &mut Client, method: &str, text: &str) -> std::io::Result<crate::harness::Answer> {
    client.exchange(method, text.as_bytes())
}

#[test]
fn an_unknown_path_is_no_such_route() {
    let b = two_shards();
    let want = r#"{"error":"Not Found","code":"no_such_route"}"#;
    for (method, path) in [
        ("GET", "/api/v1/nope"),
        ("POST", "/api/v1/nope"),
        ("GET", "/api"),
        ("GET", "/api/"),
        ("POST", "/nope"),
        ("DELETE", "/nope"),
        ("POST", "/api/v1/push/"),
        ("POST", "/api/v1/push/x"),
        ("GET", "/api/v1/pop/queue"),
        ("GET", "/api/v2/pop"),
        ("GET", "/api/v1/pop/queue/a/partition"),
        ("DELETE", "/api/v1/queues/a/clear"),
        ("POST", "/api/v1/messages/1/x/dlq"),
        ("GET", "/api/v1/messages/x"),
        ("GET", "/API/v1/resources/queues"),
    ] {
        let answer = b.send(method, path, None);
        assert_eq!((answer.status, answer.text().as_str()), (404, want), "{method} {path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
}

#[test]
fn a_wrong_method_is_405_with_allow() {
    let b = two_shards();
    for (method, path, allow) in [
        ("GET", "/api/v1/push", "POST"),
        ("DELETE", "/api/v1/ack", "POST"),
        ("POST", "/api/v1/pop", "GET"),
        ("POST", "/api/v1/pop/queue/a", "GET"),
        ("PUT", "/api/v1/configure", "POST"),
        ("POST", "/health", "GET"),
        ("PATCH", "/api/v1/resources/queues", "GET"),
        ("GET", "/api/v1/lease/x/extend", "POST"),
    ] {
        let answer = b.send(method, path, None);
        assert_eq!((answer.status, answer.body.len()), (405, 0), "{method} {path}");
        let allowed = answer.header("allow").unwrap_or_default();
        assert!(allowed.split(',').any(|m| m.trim() == allow), "{method} {path}: Allow: {allowed}");
    }
    let answer = b.send("PUT", "/api/v1/resources/queues/a", None);
    let allowed = answer.header("allow").unwrap_or_default().to_owned();
    assert!(allowed.contains("GET") && allowed.contains("DELETE"), "{allowed}");
}

#[test]
fn head_has_no_body_and_no_effect_and_options_names_the_methods() {
    let b = two_shards();
    let mut client = b.client();
    let head = client.send("HEAD", "/health", &[], None).expect("an answer");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(client.get("/health/live").expect("in step").status, 200, "nothing of a body follows a HEAD answer");
    let q = unique("head");
    b.push_n(&q, "p", "m", 1);
    client.send("HEAD", &format!("/api/v1/pop/queue/{q}?autoAck=true"), &[], None).expect("an answer");
    assert_eq!(b.pop(&q, "").messages.len(), 1, "HEAD claims nothing");
    let options = client.send("OPTIONS", "/api/v1/push", &[], None).expect("an answer");
    assert!(matches!(options.status, 200 | 204), "{options:?}");
    assert!(options.header("allow").is_some_and(|a| a.contains("POST")), "{options:?}");
    assert!(options.header("access-control-allow-origin").is_none(), "no CORS");
}

#[test]
fn a_body_of_the_limit_passes_and_one_byte_more_is_413_in_plain_text() {
    static SMALL: OnceLock<Broker> = OnceLock::new();
    let b = SMALL.get_or_init(|| Setup::clean().env("QUEEN_MAX_BODY_BYTES", "10000").start());
    let body = |size: usize| {
        let head = r#"{"items":[{"queue":"sized","payload":""#;
        format!("{head}{}\"}}]}}", "x".repeat(size - head.len() - 4))
    };
    assert_eq!((body(10_000).len(), body(10_001).len()), (10_000, 10_001));
    assert_eq!(b.send("POST", "/api/v1/push", Some(body(10_000).as_bytes())).status, 201);
    for path in ["/api/v1/push", "/api/v1/ack", "/api/v1/configure", "/api/v1/nope"] {
        let answer = b.client().post(path, body(10_001).as_bytes()).expect("an answer");
        if path != "/api/v1/nope" {
            assert_eq!(answer.status, 413, "{path}");
            assert!(!answer.header("content-type").is_some_and(|t| t.contains("json")), "{path}: {answer:?}");
        }
    }
    // Chunked, the size shows only on the way.
    let mut client = b.client();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let text = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(3)
    );
    assert_eq!(raw(&mut client, "POST", &text).expect("an answer").status, 413);
    // A length nobody will send is refused before it is waited for.
    let text = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(raw(&mut b.client(), "POST", text).expect("an answer").status, 413);
    assert_eq!(b.drain("sized", "batch=10", "").len(), 1);
}

#[test]
fn a_long_target_is_414_and_a_long_head_431() {
    let b = two_shards();
    let target = format!("GET /api/v1/pop/queue/{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(200_000));
    assert_eq!(raw(&mut b.client(), "GET", &target).expect("an answer").status, 414);
    let lines =
        format!("GET /health HTTP/1.1\r\nHost: x\r\n{}\r\n", format!("X-Fill: {}\r\n", "y".repeat(1000)).repeat(300));
    assert_eq!(raw(&mut b.client(), "GET", &lines).expect("an answer").status, 431);
    let many = format!("GET /health HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(5000));
    assert_eq!(raw(&mut b.client(), "GET", &many).expect("an answer").status, 431);
    assert_eq!(b.get("/health").status, 200);
}

#[test]
fn the_longest_names_fit_into_a_target() {
    // Three names of 1024 bytes, each byte percent-encoded.
    let b = two_shards();
    let name = |c: char| c.to_string().repeat(512);
    let (q, p, g) = (name('é'), name('ü'), name('ö'));
    b.push_keys(&q, &p, &["k"]);
    let group = crate::harness::encode(&g);
    assert_eq!(b.pop_pinned(&q, &p, &format!("consumerGroup={group}&subscriptionMode=all")).consumer_group, g);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let b = two_shards();
    let q = unique("pipe");
    let body = json!({"items": [{"queue": q, "payload": 1}]}).to_string();
    let push = format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let pop = format!("GET /api/v1/pop/queue/{q}?autoAck=true HTTP/1.1\r\nHost: x\r\n\r\n");
    let wait = format!("GET /api/v1/pop/queue/{q}?wait=true&timeout=300 HTTP/1.1\r\nHost: x\r\n\r\n");
    let live = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut client = b.client();
    client.write(format!("{push}{pop}{wait}{live}{push}").as_bytes()).expect("sent");
    let statuses: Vec<u16> = (0..5).map(|_| client.read("GET").expect("an answer").status).collect();
    assert_eq!(statuses, [201, 200, 204, 200, 201]);
    // Many small ones in one go.
    client.write(live.repeat(200).as_bytes()).expect("sent");
    for _ in 0..200 {
        assert_eq!(client.read("GET").expect("an answer").status, 200);
    }
}

#[test]
fn bodies_may_come_chunked_or_after_100_continue() {
    let b = two_shards();
    let q = unique("chunk");
    let body = json!({"items": [{"queue": q, "payload": "in pieces"}]}).to_string();
    let (one, two) = body.split_at(11);
    let chunked = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\n{:x};ext=1\r\n{one}\r\n{:X}\r\n{two}\r\n0\r\nTrailer: t\r\n\r\n",
        one.len(),
        two.len()
    );
    let mut client = b.client();
    assert_eq!(raw(&mut client, "POST", &chunked).expect("an answer").status, 201);
    let head = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", b.port)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut interim = [0; 25];
    std::io::Read::read_exact(&mut stream, &mut interim).expect("an interim answer before the body");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).expect("sent");
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut answer).expect("the answer");
    assert_eq!(&answer, b"HTTP/1.1 201");
    assert_eq!(b.drain(&q, "batch=10", "").len(), 2);
}

#[test]
fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let b = two_shards();
    let q = unique("smuggle");
    let body = json!({"items": [{"queue": q, "payload": 1}]}).to_string();
    let n = body.len();
    let chunks = format!("{n:x}\r\n{body}\r\n0\r\n\r\n");
    let heads = [
        format!("Content-Length: {n}\r\nTransfer-Encoding: chunked"),
        format!("Content-Length: {n}\r\nContent-Length: {}", n + 1),
        format!("Content-Length: {n}, {n}1"),
        format!("Content-Length: +{n}"),
        format!("Content-Length: {n}x"),
        "Content-Length: -1".to_owned(),
        "Transfer-Encoding: chunked, identity".to_owned(),
        "Transfer-Encoding: xchunked".to_owned(),
        "Transfer-Encoding: identity".to_owned(),
        "Transfer-Encoding : chunked".to_owned(),
        format!("Content-Length : {n}"),
        format!(" Content-Length: {n}"),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".to_owned(),
    ];
    for head in &heads {
        let body = if head.contains("ransfer") { &chunks } else { &body };
        let mut client = b.client();
        client
            .write(format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{body}").as_bytes())
            .expect("sent");
        let answer = client.read("POST").expect("an answer");
        assert!(matches!(answer.status, 400 | 501), "{head}: {}", answer.status);
        assert!(client.is_closed(), "{head}: the connection stays open");
    }
    for line in [
        "GET /health",
        "GET  /health HTTP/1.1",
        "GET /health HTTP/3.0",
        "G\u{1}T /health HTTP/1.1",
        "get /hea lth HTTP/1.1",
    ] {
        let mut client = b.client();
        client.write(format!("{line}\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
        match client.read("GET") {
            Ok(answer) => assert!(matches!(answer.status, 400 | 405 | 501 | 505), "{line}: {}", answer.status),
            Err(_) => assert!(client.is_closed(), "{line}"),
        }
    }
    for chunk in ["zz\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "5\r\nabcdeXX", "\r\n"] {
        let mut client = b.client();
        let head = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write(format!("{head}{chunk}\r\n\r\n").as_bytes()).expect("sent");
        let status = client.read("POST").expect("an answer").status;
        assert!(matches!(status, 400 | 413), "{chunk:?}: {status}");
    }
    assert!(b.pop(&q, "").is_empty(), "none of it was stored");
}

#[test]
fn connections_are_kept_until_someone_says_close() {
    let b = two_shards();
    let mut client = b.client();
    for _ in 0..3 {
        raw(&mut client, "GET", "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").expect("an answer");
    }
    assert!(!client.is_closed());
    client.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    assert_eq!(client.read("GET").expect("an answer").status, 200);
    assert!(client.is_closed());
    let mut old = b.client();
    old.write(b"GET /health/live HTTP/1.0\r\n\r\n").expect("sent");
    assert_eq!(old.read("GET").expect("an answer").status, 200);
    assert!(old.is_closed(), "HTTP/1.0 closes");
}

#[test]
fn a_request_may_come_one_byte_at_a_time() {
    let b = two_shards();
    let q = unique("slow");
    let body = json!({"items": [{"queue": q, "payload": 1}]}).to_string();
    let text = format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut client = b.client();
    for byte in text.as_bytes() {
        client.write(&[*byte]).expect("sent");
    }
    assert_eq!(client.read("POST").expect("an answer").status, 201);
}

#[test]
fn slow_and_hostile_clients_cost_only_themselves() {
    let b = two_shards();
    let q = unique("slow");
    let mut stuck: Vec<Client> = (0..50).map(|_| b.client()).collect();
    for (i, client) in stuck.iter_mut().enumerate() {
        let text = match i % 4 {
            0 => "GET /hea".to_owned(),
            1 => "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"items\":".to_owned(),
            2 => "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{".to_owned(),
            _ => format!("GET /api/v1/pop/queue/{q}x?wait=true&timeout=20000 HTTP/1.1\r\nHost: x\r\n\r\n"),
        };
        client.write(text.as_bytes()).expect("sent");
    }
    let start = Instant::now();
    for i in 0..50 {
        b.push(json!([{"queue": q, "payload": i}]));
    }
    assert_eq!(b.drain(&q, "batch=10", "").len(), 50);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // A client that reads nothing while megabytes wait for it.
    let big = "x".repeat(1_000_000);
    for _ in 0..8 {
        b.push(json!([{"queue": q, "partition": "big", "payload": big}]));
    }
    let mut deaf = b.client();
    let pop = format!("GET /api/v1/pop/queue/{q}?batch=8&leaseSeconds=60 HTTP/1.1\r\nHost: x\r\n\r\n");
    deaf.write(pop.repeat(3).as_bytes()).expect("sent");
    assert_eq!(b.get("/health").status, 200);
    b.push_n(&q, "other", "m", 1);
    assert_eq!(b.pop_pinned(&q, "other", "").messages.len(), 1);
}

#[test]
fn hundreds_of_connections_are_served() {
    let b = two_shards();
    let q = unique("many");
    let mut clients: Vec<Client> = (0..400).map(|_| b.client()).collect();
    let path =
        format!("GET /api/v1/pop/queue/{q}?wait=true&timeout=20000&autoAck=true&batch=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    for client in &mut clients {
        client.write(path.as_bytes()).expect("sent");
    }
    eventually("all are parked", || (b.parked(&q) == 400).then_some(()));
    for _ in 0..4 {
        b.push((0..100).map(|i| json!({"queue": q, "partition": format!("p{}", i % 20), "payload": i})).collect());
    }
    for client in &mut clients {
        assert_eq!(client.read("GET").expect("an answer").status, 200);
    }
    assert!(b.pop(&q, "").is_empty());
}
