//! Where one request ends and the next begins: smuggling, early refusals, pipelines. H1, H11.

use super::{exchange, full, targets};
use crate::harness::unique;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

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
