//! Hostile input, as raw bytes: reliability 8, H1 to H12. Every attack runs against a broker without and one with
//! authentication; afterwards the process is alive and a canary queue holds what it held before. `QUEEN_FULL=1` runs the
//! counts of the table, without it the same cases in smaller numbers.

use crate::harness::{Answer, Broker, Client, Setup, encode, eventually, shared_postgres, two_shards, unique};
use crate::tokens::{SECRET, token_of};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn full(ci: usize, full: usize) -> usize {
    if std::env::var_os("QUEEN_FULL").is_some() { full } else { ci }
}

/// A broker, and the header line that lets a request in there.
struct Target {
    broker: &'static Broker,
    line: String,
}

fn targets() -> [Target; 2] {
    static GUARDED: OnceLock<Broker> = OnceLock::new();
    let guarded = GUARDED.get_or_init(|| Setup::clean().env("JWT_ENABLED", "on").env("JWT_SECRET", SECRET).start());
    let line = format!("Authorization: Bearer {}\r\n", token_of("admin", "attacker"));
    [Target { broker: two_shards(), line: String::new() }, Target { broker: guarded, line }]
}

impl Target {
    fn headers(&self) -> Vec<(&str, &str)> {
        self.line.trim_end().split_once(": ").into_iter().collect()
    }

    fn send(&self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        self.broker
            .client()
            .send(method, path, &self.headers(), body)
            .unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    fn push(&self, items: Value) -> Answer {
        self.send("POST", "/api/v1/push", Some(json!({ "items": items }).to_string().as_bytes()))
    }

    fn payloads(&self, queue: &str) -> Vec<String> {
        let answer = self.send(
            "GET",
            &format!("/api/v1/pop/queue/{}?autoAck=true&batch=1000&partitions=1000", encode(queue)),
            None,
        );
        match answer.status {
            204 => Vec::new(),
            _ => {
                let pop: crate::harness::Pop = serde_json::from_slice(&answer.body).expect("a pop answer");
                pop.messages.iter().map(|m| m.data.get().to_owned()).collect()
            }
        }
    }

    fn exists(&self, queue: &str) -> bool {
        self.send("GET", &format!("/api/v1/resources/queues/{}", encode(queue)), None).status == 200
    }

    /// Alive, and serving.
    fn serves(&self) {
        let q = unique("alive");
        assert_eq!(self.push(json!([{"queue": q, "payload": 1}])).status, 201);
        assert_eq!(self.payloads(&q), ["1"]);
        assert!(self.broker.try_wait().is_none());
    }
}

/// Sends bytes on a connection of their own and reads until the broker closes it or goes quiet.
fn exchange(port: u16, bytes: &[u8]) -> (String, bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // The broker may close while this is still being sent.
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return (String::from_utf8_lossy(&text).into_owned(), true),
            Ok(n) => text.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                return (String::from_utf8_lossy(&text).into_owned(), true);
            }
            Err(_) => return (String::from_utf8_lossy(&text).into_owned(), false),
        }
    }
}

#[test]
fn h01_no_smuggled_request_is_executed() {
    let spellings = [
        "chunked",
        "Chunked",
        "xchunked",
        "chunkedx",
        "chunked, identity",
        "identity, chunked",
        "chunked,",
        ",chunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked chunked",
        "chun ked",
        "chunked\u{b}",
        "\u{b}chunked",
        "chunked\u{0}",
        "cow",
        "identity",
        "gzip, chunked",
        "",
    ];
    let lengths = [
        "5",
        "+5",
        "-5",
        " 5x",
        "0x5",
        "5, 5",
        "5,6",
        "5.0",
        "",
        "99999999999999999999",
        "5\r\nContent-Length: 6",
        "5\r\nContent-Length: 5",
        "5\u{b}",
    ];
    for target in targets() {
        let canary = unique("canary");
        let smuggled = format!(r#"{{"items":[{{"queue":"{canary}","payload":1}}]}}"#);
        let smuggled = format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{smuggled}",
            target.line,
            smuggled.len()
        );
        let mut heads = Vec::new();
        for (n, te) in spellings.iter().enumerate() {
            let te = format!("Transfer-Encoding: {te}");
            heads.push(format!("HTTP/1.1\r\nContent-Length: 5\r\n{te}"));
            heads.push(format!("HTTP/1.1\r\n{te}\r\nContent-Length: 5"));
            heads.push(format!("HTTP/1.1\r\n{te}\r\nTransfer-Encoding: chunked"));
            heads.push(format!("HTTP/1.0\r\n{te}"));
            heads.push(format!("HTTP/1.1\r\n{}", te.replacen(':', " :", 1)));
            heads.push(format!("HTTP/1.1\r\n {te}"));
            if n > 1 {
                heads.push(format!("HTTP/1.1\r\n{te}"));
            }
        }
        heads.extend(lengths.iter().skip(1).map(|cl| format!("HTTP/1.1\r\nContent-Length: {cl}")));
        heads.extend(
            [
                "X: a\r\n Content-Length: 5",
                "X: a\nContent-Length: 5",
                "X: a\rContent-Length: 5",
                "X\u{0}: a",
                "Content-Length\u{0}: 5",
                "Host: y",
            ]
            .map(|l| format!("HTTP/1.1\r\n{l}")),
        );
        let cases: Vec<String> = heads
            .iter()
            .map(|head| {
                format!(
                    "POST /api/v1/configure {head}\r\nHost: x\r\n{}\r\n5\r\nhello\r\n0\r\n\r\n{smuggled}",
                    target.line
                )
            })
            .collect();
        let chunks = [
            "0x5\r\nhello\r\n0\r\n\r\n",
            "5\nhello\n0\n\n",
            "ffffffffffffffff5\r\nhello",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "-5\r\n",
            "5;a\nhello\r\n0\r\n\r\n",
            "\r\n0\r\n\r\n",
            "8000000000000000\r\n",
            "5;x=\u{0}\r\nhello\r\n0\r\n\r\n",
        ];
        let chunked = chunks.iter().map(|body| {
            format!(
                "POST /api/v1/configure HTTP/1.1\r\nHost: x\r\n{}Transfer-Encoding: chunked\r\n\r\n{body}{smuggled}",
                target.line
            )
        });
        let cases: Vec<String> = cases.into_iter().chain(chunked).collect();
        assert!(cases.len() >= 150, "{}", cases.len());
        for case in &cases {
            let (text, closed) = exchange(target.broker.port, case.as_bytes());
            assert!(closed, "{case:?}: still open");
            assert!(text.starts_with("HTTP/1.1 400 ") || text.starts_with("HTTP/1.1 413 "), "{case:?}: {text}");
            assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{case:?}: {text}");
        }
        assert!(!target.exists(&canary));
        target.serves();
    }
}

#[test]
fn h02_slow_clients_cost_only_themselves() {
    let (connections, healthy) = (full(200, 2000), full(100, 2000));
    let b = Setup::clean().start();
    let q = unique("healthy");
    let push = |n: usize| {
        let mut times: Vec<Duration> = (0..n)
            .map(|i| {
                let began = Instant::now();
                b.push(json!([{"queue": q, "payload": i}]));
                began.elapsed()
            })
            .collect();
        times.sort();
        times[n * 99 / 100]
    };
    push(healthy);
    let calm = push(healthy);
    let mut slow = Vec::new();
    for i in 0..connections {
        let mut stream = TcpStream::connect(("127.0.0.1", b.port)).expect("connected");
        let text: &[u8] = match i % 4 {
            0 => b"GET /hea",
            1 => b"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            2 => b"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{",
            _ => b"",
        };
        stream.write_all(text).expect("sent");
        slow.push(stream);
    }
    b.push(json!([{"queue": q, "payload": 0}]));
    let until = Instant::now() + Duration::from_secs(full(2, 120) as u64);
    let mut worst = Duration::ZERO;
    while Instant::now() < until {
        worst = worst.max(push(healthy));
        // One byte more from each that is still there: none of them makes progress that counts.
        slow.iter_mut().for_each(|stream| drop(stream.write(b" ")));
    }
    println!("{connections} slow connections: p99 of a healthy push {calm:?} calm, {worst:?} at worst");
    assert_eq!(b.push(json!([{"queue": q, "payload": 0}]))[0]["status"], "queued");
    if connections == 2000 {
        eventually("the limits have closed some of those that never finish", || {
            let open = slow.iter().filter(|stream| (&mut &**stream).write_all(b"Y").is_ok()).count();
            (open < connections).then_some(())
        });
    }
}

fn resident(b: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", b.pid())).expect("its status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn descriptors(b: &Broker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", b.pid())).expect("its descriptors").count()
}

#[test]
fn h02_an_idle_connection_costs_16_kib_at_most() {
    let b = Setup::clean().start();
    let n = full(500, 2000);
    let mut clients: Vec<Client> = (0..n).map(|_| b.client()).collect();
    b.push(json!([{"queue": unique("warm"), "payload": 1}]));
    let before = resident(&b);
    for client in &mut clients {
        assert_eq!(client.get("/health/live").expect("an answer").status, 200);
    }
    let each = resident(&b).saturating_sub(before) / n as u64;
    println!("{n} idle connections: {each} bytes each");
    assert!(each <= 16 << 10, "{each}");
}

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
    assert!(failed >= n / 4, "{failed}");
    assert!(resident(&b).saturating_sub(before) < 64 << 20);
    assert_eq!(b.get("/health").status, 200);
}

/// Names that must stay apart and be reachable.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "../",
        "..",
        ".",
        "../../etc/passwd",
        "%2e%2e%2f",
        "%00",
        "%2f",
        "%252f",
        "%",
        "%zz",
        "a/b",
        "a%2Fb",
        "a+b",
        "a b",
        " a",
        "a ",
        "  ",
        "a?b",
        "a#b",
        "a&b=c",
        "\u{202e}rtl",
        "\u{200b}",
        "\u{feff}bom",
        "😀",
        "👨‍👩‍👧",
        "é",
        "e\u{301}",
        "\u{212b}",
        "Å",
        "ﬁ",
        "fi",
        "ß",
        "SS",
        "I",
        "ı",
        "İ",
        "i",
        "null",
        "true",
        "0",
        "-1",
        "'",
        "\"",
        "\\",
        "''; drop table queen.queues; --",
        "{}",
        "[]",
        "$1",
        "%s",
        "\u{7f}",
        "\u{80}",
        "\u{85}",
        "\u{2028}",
        "\u{fffd}",
        "\u{fffe}",
        "\u{10ffff}",
        "con",
        "nul",
        "COM1",
        "a.",
        ".a",
        "a\\b",
        "~",
        "`id`",
        "$(id)",
        "|",
        ";",
        "<script>",
        "a,b",
        "a=b",
        "@",
        ":",
        "*",
        "__QUEUE_MODE__x",
        "Default",
        "default",
    ]
    .iter()
    .map(|name| name.to_string())
    .collect();
    let stem = "n".repeat(63);
    names.extend(["a", "b", "ab"].map(|end| format!("{stem}{end}")));
    names.extend([1, 2, 100, 255, 256, 1000, 1023, 1024].map(|n| "x".repeat(n)));
    names.extend((0..20u32).filter_map(|n| char::from_u32(0x4e00 + n * 37)).map(|c| c.to_string().repeat(3)));
    names.dedup();
    names
}

#[test]
fn h07_names_stay_distinct_and_reachable_or_are_400() {
    let names = odd_names();
    for target in targets() {
        let run = unique("odd");
        let files = || std::fs::read_dir(target.broker.dir()).expect("a directory").count();
        let before = files();
        let is_control = |name: &str| name.chars().any(char::is_control);
        for (n, name) in names.iter().enumerate() {
            // As a queue of its own, as a partition, as a transactionId, as a group.
            let push = target.push(
                json!([{"queue": name, "partition": run, "payload": n}, {"queue": run, "partition": name, "payload": n},
                {"queue": format!("{run}-t"), "transactionId": name, "payload": n}]),
            );
            assert!(matches!(push.status, 201 | 400), "{name:?}: {}", push.text());
            if push.status == 400 {
                assert!(name.bytes().any(|b| b < 0x20), "{name:?}");
                continue;
            }
            if is_control(name) {
                continue;
            }
            let query = format!("consumerGroup={}&subscriptionMode=all&autoAck=true&batch=9", encode(name));
            let pop = |path: String| {
                let answer = target.send("GET", &path, None);
                assert_eq!(answer.status, 200, "{name:?} {path}: {}", answer.text());
                answer.json()
            };
            for path in [
                format!("/api/v1/pop/queue/{}/partition/{run}?{query}", encode(name)),
                format!("/api/v1/pop/queue/{run}/partition/{}?{query}", encode(name)),
            ] {
                let messages = pop(path)["messages"].clone();
                assert_eq!(messages.as_array().map(Vec::len), Some(1), "{name:?}: {messages}");
                assert_eq!(messages[0]["data"], n, "{name:?}");
            }
            let detail = target.send("GET", &format!("/api/v1/resources/queues/{}", encode(name)), None);
            assert_eq!(detail.json()["name"], **name);
        }
        let verdicts = target.payloads(&format!("{run}-t"));
        let distinct: std::collections::HashSet<_> = verdicts.iter().collect();
        assert_eq!(distinct.len(), verdicts.len());
        assert!(verdicts.len() >= names.len() - 2, "{} of {}", verdicts.len(), names.len());
        for byte in 1..0x20u8 {
            let name = format!("a{}b", byte as char);
            for field in ["queue", "partition", "transactionId"] {
                let mut item = json!({"queue": run, "payload": 1});
                item[field] = name.clone().into();
                assert_eq!(target.push(json!([item])).status, 400, "{byte:#x} in {field}");
            }
        }
        for size in [1025, 4096, 65_536] {
            let name = "y".repeat(size);
            assert_eq!(target.push(json!([{"queue": name, "payload": 1}])).json()[0]["status"], "error");
            assert_eq!(
                target.push(json!([{"queue": run, "partition": name, "payload": 1}])).json()[0]["status"],
                "error"
            );
        }
        assert_eq!(files(), before, "a name makes no file");
        target.serves();
    }
}

#[test]
fn h08_text_that_is_none_is_400_and_never_500() {
    let texts: &[&[u8]] = &[
        b"\\u0000",
        b"\x00",
        b"\\ud800",
        b"\\udc00",
        b"\\ud800\\u0041",
        b"\\udc00\\ud800",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\xaf",
        b"\xf0\x80\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\xfe",
        b"\x80",
        b"\xc3",
        b"\xe2\x82",
        b"\xef\xbb\xbf",
        b"\xef\xbf\xbe",
        b"\xef\xbf\xbf",
        b"\\ufffe",
        b"\\uFFFF",
        b"\\u12",
        b"\\x41",
        b"\x1f",
        b"\x7f",
    ];
    for target in targets() {
        let q = unique("text");
        let mut asked = 0;
        for text in texts {
            let with = |before: &str, after: &str| [before.as_bytes(), text, after.as_bytes()].concat();
            for (path, body) in [
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}-p","payload":""#), r#""}]}"#)),
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}"#), r#"","payload":1}]}"#)),
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}","partition":""#), r#"","payload":1}]}"#)),
                (
                    "/api/v1/push",
                    with(&format!(r#"{{"items":[{{"queue":"{q}","transactionId":""#), r#"","payload":1}]}"#),
                ),
                ("/api/v1/push", with("", r#"{"items":[]}"#)),
                ("/api/v1/ack", with(r#"{"transactionId":"x","partitionId":"1","error":""#, r#""}"#)),
                ("/api/v1/ack", with(r#"{"transactionId":"x","partitionId":"1","consumerGroup":""#, r#""}"#)),
                ("/api/v1/configure", with(&format!(r#"{{"queue":"{q}-c","namespace":""#), r#""}"#)),
                (
                    "/api/v1/transaction",
                    with(
                        &format!(r#"{{"operations":[{{"type":"push","items":[{{"queue":"{q}-t","payload":""#),
                        r#""}]}]}"#,
                    ),
                ),
            ] {
                let answer = target.send("POST", path, Some(&body));
                assert!(answer.status < 500, "{path} {text:?}: {} {}", answer.status, answer.text());
                asked += 1;
            }
        }
        assert!(asked >= 120, "{asked}");
        // What was taken comes back as it was sent.
        for stored in target.payloads(&format!("{q}-p")) {
            let inner = stored.trim_matches('"').as_bytes();
            assert!(texts.contains(&inner), "{stored:?}");
        }
        // A nack whose reason holds such text counts.
        let dead = unique("reason");
        target.push(json!([{"queue": dead, "transactionId": "k", "payload": 1}]));
        let pop = target.send("GET", &format!("/api/v1/pop/queue/{dead}"), None).json();
        let message = &pop["messages"][0];
        let ack = json!({"transactionId": "k", "partitionId": message["partitionId"], "leaseId": message["leaseId"], "status": "dlq", "error": "a\u{0}b\u{fffe}"});
        let acked = target.send("POST", "/api/v1/ack", Some(ack.to_string().as_bytes()));
        assert_eq!(acked.json()[0]["success"], true, "{}", acked.text());
        target.serves();
    }
}

#[test]
fn h09_numbers_come_back_as_they_were_written() {
    let mut numbers: Vec<String> = [
        "9007199254740993",
        "18446744073709551616",
        "1e400",
        "-1e400",
        "-0",
        "-0.0",
        "1.0",
        "1.00",
        "1e5",
        "1E5",
        "1e+5",
        "1e-5",
        "0e0",
        "0.1",
        "1e308",
        "5e-324",
        "123456789012345678901234567890",
    ]
    .map(String::from)
    .to_vec();
    numbers.push("7".repeat(400));
    numbers.push(format!("0.{}", "3".repeat(400)));
    numbers.extend((0..45).map(|n| format!("{}.{}e{}", 2u64.pow(n), n * 7919, n as i64 - 20)));
    for target in targets() {
        let q = unique("numbers");
        for number in &numbers {
            let body = format!(r#"{{"items":[{{"queue":"{q}","payload":{number}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201, "{number}");
        }
        assert_eq!(target.payloads(&q), numbers);
        assert!(numbers.len() >= 60);
        for bad in ["01", "+1", "1.", ".1", "1e", "0x1", "NaN", "Infinity", "1_0", "--1", "1e1.5"] {
            let body = format!(r#"{{"items":[{{"queue":"{q}","payload":{bad}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 400, "{bad}");
        }
        for (name, value) in [
            ("batch", "99999999999999999999"),
            ("batch", "-1"),
            ("partitions", "1e9"),
            ("timeout", "-5"),
            ("leaseSeconds", "1e400"),
            ("batch", "0x10"),
        ] {
            let answer = target.send("GET", &format!("/api/v1/pop/queue/{q}?{name}={value}"), None);
            assert!(matches!(answer.status, 204 | 400), "{name}={value}: {}", answer.status);
        }
        target.serves();
    }
}

#[test]
fn h10_repeated_keys_have_one_winner() {
    for target in targets() {
        let (first, last) = (unique("first"), unique("last"));
        let body =
            format!(r#"{{"items":[{{"queue":"{first}","queue":"{last}","payload":1,"payload":2,"\u0070ayload":3}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert!(!target.exists(&first), "the last one wins, escaped or not");
        assert_eq!(target.payloads(&last), ["3"]);
        let body =
            format!(r#"{{"items":[{{"queue":"{first}","payload":1}}],"items":[{{"queue":"{last}","payload":4}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert!(!target.exists(&first));
        assert_eq!(target.payloads(&last), ["4"]);
        for key in ["Queue", "QUEUE", "queue ", "__proto__", "constructor", ""] {
            let body =
                format!(r#"{{"items":[{{"{key}":"{first}","queue":"{last}","payload":{{"{key}":1,"{key}":2}}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201, "{key}");
            assert_eq!(target.payloads(&last), [format!(r#"{{"{key}":1,"{key}":2}}"#)], "a payload stays as it is");
        }
        let many: String = (0..100_000).map(|n| format!("\"k{n}\":{n},")).collect();
        let body = format!(r#"{{{many}"items":[{{{many}"queue":"{last}","payload":{{{many}"x":1}}}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert_eq!(target.payloads(&last), [format!(r#"{{{many}"x":1}}"#)]);
        target.serves();
    }
}

#[test]
fn h11_early_refusals_come_without_100_and_pipelines_in_order() {
    for target in targets() {
        let b = target.broker;
        for n in 0..full(30, 100) {
            let (line, length, want) = match n % 3 {
                0 if !target.line.is_empty() => ("", 10, "401"),
                1 => (&*target.line, 1usize << 40, "413"),
                _ => (&*target.line, 10, "404"),
            };
            let path = if want == "404" { "/api/v1/nope" } else { "/api/v1/push" };
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: x\r\n{line}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
            );
            let (text, closed) = exchange(b.port, head.as_bytes());
            assert!(closed && text.starts_with(&format!("HTTP/1.1 {want} ")), "{text}");
        }
        let n = full(300, 1000);
        let q = unique("pipeline");
        let mut text = String::new();
        for i in 0..n {
            let body = format!(r#"{{"items":[{{"queue":"{q}","transactionId":"{i}","payload":{i}}}]}}"#);
            text += &format!(
                "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{body}",
                target.line,
                body.len()
            );
        }
        let mut client = b.client();
        client.write(b"").expect("connected");
        let stream = TcpStream::connect(("127.0.0.1", b.port)).expect("connected");
        let mut sender = stream.try_clone().expect("dup");
        let sending = std::thread::spawn(move || sender.write_all(text.as_bytes()));
        let mut reader = std::io::BufReader::new(stream);
        for i in 0..n {
            let mut length = 0;
            loop {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut reader, &mut line).expect("a line");
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.trim().parse().expect("a length");
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let verdict: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!((&verdict[0]["transaction_id"], &verdict[0]["offset"]), (&json!(i.to_string()), &json!(i)));
        }
        sending.join().expect("sent").expect("all of it");
    }
}

#[test]
fn h12_clients_that_leave_take_nothing_with_them() {
    for target in targets() {
        let b = target.broker;
        let q = unique("leaving");
        target.push(json!([{"queue": q, "payload": 0}]));
        target.payloads(&q);
        let before = descriptors(b);
        let rounds = full(40, 2500);
        let mut late = 0;
        for round in 0..rounds {
            // A parked poll whose client is gone gets nothing; the message goes to the next one at once.
            let mut leaver = TcpStream::connect(("127.0.0.1", b.port)).expect("connected");
            let poll =
                format!("GET /api/v1/pop/queue/{q}?wait=true&timeout=20000 HTTP/1.1\r\nHost: x\r\n{}\r\n", target.line);
            match round % 4 {
                0 => leaver.write_all(poll.as_bytes()).expect("sent"),
                1 => leaver.write_all(&poll.as_bytes()[..poll.len() / 2]).expect("sent"),
                2 => {
                    let push = format!(
                        "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{}Content-Length: 500\r\n\r\n{{\"items\":[",
                        target.line
                    );
                    leaver.write_all(push.as_bytes()).expect("sent");
                }
                _ => {
                    let body = json!({"operations": [{"type": "push", "items": [{"queue": format!("{q}-tx"), "payload": 1}]}]}).to_string();
                    let text = format!(
                        "POST /api/v1/transaction HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{body}",
                        target.line,
                        body.len()
                    );
                    leaver.write_all(text.as_bytes()).expect("sent");
                }
            }
            if round % 2 == 0 {
                let _ = leaver.shutdown(Shutdown::Both);
            }
            drop(leaver);
            target.push(json!([{"queue": q, "payload": round}]));
            let began = Instant::now();
            eventually("the message is there for who stays", || (!target.payloads(&q).is_empty()).then_some(()));
            late += usize::from(began.elapsed() > Duration::from_secs(1));
        }
        println!("{rounds} clients left, {late} messages came back after more than 1 s");
        assert!(late * 100 <= rounds, "{late} of {rounds}");
        eventually("no descriptor is left behind", || (descriptors(b) <= before + 4).then_some(()));
        let idle = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
        eventually("no session is left in a transaction", || {
            (shared_postgres().query(b.database.as_ref().expect("a database"), idle) == "0").then_some(())
        });
        target.serves();
    }
}
