//! Clients that send slowly or nothing. H2.

use super::{full, resident};
use crate::harness::{Client, Setup, eventually, unique};
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

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
