//! Hostile input, as raw bytes: reliability 8, H1 to H12. Every attack runs against a broker without and one with
//! authentication; afterwards the process is alive and a canary queue holds what it held before. `QUEEN_FULL=1` runs the
//! counts of the table, without it the same cases in smaller numbers.

mod framing;
mod leaving;
mod sizes;
mod slow;
mod text;

use crate::harness::{Answer, Broker, Pop, Setup, encode, two_shards, unique};
use crate::tokens::{SECRET, token_of};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

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
                let pop: Pop = serde_json::from_slice(&answer.body).expect("a pop answer");
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

fn resident(b: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", b.pid())).expect("its status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn descriptors(b: &Broker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", b.pid())).expect("its descriptors").count()
}
