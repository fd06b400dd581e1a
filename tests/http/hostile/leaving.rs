//! Clients that leave. H12.

use super::{descriptors, full, targets};
use crate::harness::{eventually, shared_postgres, unique};
use serde_json::json;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

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
