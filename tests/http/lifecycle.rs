//! Boot, shutdown, crashes, several brokers on one database: what happens between requests. Operations 1.

use crate::harness::{Broker, Setup, at_once, eventually, free_port, scratch_dir, shared_postgres, unique};
use serde_json::json;
use std::time::{Duration, Instant};

/// Who asks what the program is gets an answer, not a broker.
#[test]
fn help_and_version_start_nothing() {
    for (argument, says) in [("--help", "settings are environment variables"), ("--version", env!("CARGO_PKG_VERSION"))]
    {
        let home = scratch_dir(argument.trim_matches('-'));
        let asked = std::process::Command::new(env!("CARGO_BIN_EXE_queen"))
            .arg(argument)
            .env_clear()
            .env("QUEEN_DATA_DIR", &home)
            .output()
            .expect("it runs");
        let said = String::from_utf8(asked.stdout).expect("text");
        assert!(asked.status.success() && said.contains(says), "{said}");
        assert_eq!(std::fs::read_dir(&home).expect("the directory").count(), 0, "nothing was made");
    }
}

#[test]
fn sigterm_answers_a_hundred_parked_polls_with_204_within_2_s() {
    let b = Setup::clean().start();
    let q = unique("stop");
    let mut polls: Vec<_> = (0..100).map(|_| b.client()).collect();
    let path = format!("GET /api/v1/pop/queue/{q}?wait=true&timeout=30000 HTTP/1.1\r\nHost: x\r\n\r\n");
    for poll in &mut polls {
        poll.write(path.as_bytes()).expect("sent");
    }
    eventually("all are parked", || (b.parked(&q) == 100).then_some(()));
    let start = Instant::now();
    b.signal(libc::SIGTERM);
    for poll in &mut polls {
        assert_eq!(poll.read("GET").expect("an answer, not a reset").status, 204);
    }
    let status = b.wait_end();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(status.success(), "{status}");
    let log = b.log();
    assert!(log.contains("signal received") && log.contains("shutdown complete"), "{log}");
}

/// A push whose commit takes a while is answered before the broker ends, also by a shard that has no connection itself: of four,
/// one time in four it is the connection's own. Source: operations 1.6.
#[test]
fn sigterm_waits_for_a_commit_that_takes_two_seconds() {
    (0..3).for_each(|_| answered_though_sigterm_came());
}

fn answered_though_sigterm_came() {
    let b = Setup::clean().env("QUEEN_SHARDS", "4").start();
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("slow");
    b.push_n(&q, "p", "first", 1);
    pg.query(
        &database,
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(2); return new; end $$;
         create trigger slow before insert on queen.segments for each row execute function slow()",
    );
    let sleeps = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    std::thread::scope(|scope| {
        let push = scope.spawn(|| b.push_n(&q, "p", "late", 1));
        eventually("the commit is under way", || (pg.query(&database, sleeps) == "1").then_some(()));
        let signalled = Instant::now();
        b.signal(libc::SIGTERM);
        let verdict = push.join().expect("an answer, not a reset").remove(0);
        assert_eq!(verdict["status"], "queued", "{verdict}");
        assert!(b.wait_end().success());
        assert!(signalled.elapsed() < Duration::from_secs(5), "{:?}", signalled.elapsed());
    });
    assert!(!b.log().contains("connections are cut"), "{}", b.log());
}

/// What takes longer than that is cut, and the log says so.
#[test]
fn sigterm_does_not_wait_for_ever() {
    let b = Setup::clean().start();
    let (pg, database) = (shared_postgres(), b.database.clone().expect("its own"));
    let q = unique("slow");
    b.push_n(&q, "p", "first", 1);
    pg.query(
        &database,
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(8); return new; end $$;
         create trigger slow before insert on queen.segments for each row execute function slow()",
    );
    let sleeps = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    let body = json!({"items": [{"queue": q, "partition": "p", "payload": 1}]}).to_string();
    std::thread::scope(|scope| {
        let push = scope.spawn(|| b.client().post("/api/v1/push", body.as_bytes()));
        eventually("the commit is under way", || (pg.query(&database, sleeps) == "1").then_some(()));
        let signalled = Instant::now();
        b.signal(libc::SIGTERM);
        assert!(b.wait_end().success());
        assert!(signalled.elapsed() < Duration::from_secs(5), "{:?}", signalled.elapsed());
        assert!(push.join().expect("the thread").is_err(), "it was cut");
    });
    let log = b.log();
    assert!(log.contains("connections are cut") && log.contains("connections=1"), "{log}");
}

#[test]
fn the_busiest_queues_have_a_rates_line_each() {
    let b = Setup::clean().env("QUEEN_LOG_RATES_MS", "1000").env("QUEEN_LOG_TOPN_QUEUES", "2").start();
    let (busy, less, least) = (unique("busy"), unique("less"), unique("least"));
    for (queue, n) in [(&busy, 40), (&less, 20), (&least, 1)] {
        b.push_n(queue, "p", "m", n);
    }
    let pop = b.pop(&busy, "batch=100");
    assert_eq!(pop.keys().len(), 40);
    b.complete("", &pop);
    let line_of = |queue: &str, what: &str| {
        let name = format!("queue={queue} ");
        let number =
            |line: &str| line.split(&format!("{what}=")).nth(1)?.split_whitespace().next()?.parse::<f64>().ok();
        let log = b.log();
        let lines = log.lines().filter(|line| line.contains("rates") && line.contains(&name));
        lines.filter_map(number).fold(0.0, f64::max)
    };
    eventually("its pushes, pops and acks are told", || {
        ["push_s", "pop_s", "ack_s"].iter().all(|what| 0.0 < line_of(&busy, what)).then_some(())
    });
    eventually("the second queue is told as well", || (0.0 < line_of(&less, "push_s")).then_some(()));
}

#[test]
fn sigint_finishes_what_is_in_flight() {
    let b = Setup::clean().start();
    let q = unique("stop");
    let results = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..8)
            .map(|p| {
                let (b, q) = (&b, &q);
                scope.spawn(move || {
                    let mut queued = 0;
                    let mut client = b.client();
                    let body = json!({"items": [{"queue": q, "partition": format!("p{p}"), "payload": 1}]}).to_string();
                    while let Ok(answer) = client.post("/api/v1/push", body.as_bytes()) {
                        assert_eq!(answer.status, 201, "{}", answer.text());
                        queued += (answer.json()[0]["status"] == "queued") as usize;
                    }
                    queued
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        b.signal(libc::SIGINT);
        assert!(b.wait_end().success());
        producers.into_iter().map(|p| p.join().expect("no 5xx on the way out")).sum::<usize>()
    });
    b.restart();
    // A producer's last request may have been stored without an answer: at most one each.
    let stored = b.drain(&q, "batch=1000&partitions=10", "").len();
    assert!((results..=results + 8).contains(&stored), "{results} were answered `queued`, {stored} are stored");
}

#[test]
fn kill_9_loses_nothing_that_was_answered() {
    let b = Setup::clean().start();
    let q = unique("kill");
    for round in 0..3 {
        let answered = std::sync::atomic::AtomicUsize::new(0);
        let queued = std::thread::scope(|scope| {
            let answered = &answered;
            let producers: Vec<_> = (0..6)
                .map(|p| {
                    let (b, q) = (&b, &q);
                    scope.spawn(move || {
                        let mut queued = Vec::new();
                        let mut client = b.client();
                        for n in 0.. {
                            let key = format!("{round}-{p}-{n}");
                            let body = json!({"items": [{"queue": q, "partition": format!("p{}", p % 3), "transactionId": key, "payload": 1}]});
                            match client.post("/api/v1/push", body.to_string().as_bytes()) {
                                Ok(answer) => {
                                    queued.extend((answer.json()[0]["status"] == "queued").then_some(key));
                                    answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                }
                                Err(_) => break,
                            }
                        }
                        queued
                    })
                })
                .collect();
            let some = || (answered.load(std::sync::atomic::Ordering::Relaxed) > 50).then_some(());
            crate::harness::eventually("pushes are answered", some);
            b.kill();
            producers.into_iter().flat_map(|p| p.join().expect("a producer")).collect::<Vec<_>>()
        });
        b.restart();
        assert!(!queued.is_empty());
        // Answered keys are there; pushed again they are duplicates of what is stored.
        let item = |k: &String| json!({"queue": q, "partition": format!("p{}", k.split('-').nth(1).and_then(|p| p.parse::<u32>().ok()).unwrap_or(0) % 3), "transactionId": k, "payload": 1});
        for part in queued.chunks(500) {
            let verdicts = b.push(part.iter().map(item).collect());
            assert!(verdicts.iter().all(|v| v["status"] == "duplicate"), "{verdicts:?}");
        }
        let mut got: Vec<String> =
            b.drain(&q, "batch=500&partitions=3", "").into_iter().map(|m| m.transaction_id).collect();
        got.sort();
        let count = got.len();
        got.dedup();
        assert_eq!(got.len(), count, "nothing twice");
        assert!(queued.iter().all(|k| got.binary_search(k).is_ok()));
    }
}

#[test]
fn acks_and_leases_survive_kill_9() {
    let b = Setup::clean().start();
    let q = unique("kill");
    let group = "consumerGroup=g&subscriptionMode=all";
    b.configure(&q, json!({"retryLimit": 1, "leaseTime": 33}));
    b.push_n(&q, "p", "m", 6);
    let pop = b.pop(&q, &format!("{group}&batch=4"));
    b.ack_ok("g", &[pop.messages[0].ack("completed"), pop.messages[1].ack("failed")]);
    let again = b.pop(&q, &format!("{group}&batch=4"));
    assert_eq!(again.keys(), ["m1", "m2", "m3", "m4"]);
    b.restart();
    assert!(b.pop(&q, group).is_empty(), "the lease of before the crash is live");
    assert_eq!(b.queue_detail(&q)["options"]["leaseTime"], 33);
    let failed = b.ack_ok("g", &[again.messages[0].ack("failed")]).remove(0);
    assert_eq!(failed["dlq"], true, "the failure charged before the crash counts");
    assert_eq!(b.pop(&q, group).keys(), ["m2", "m3", "m4", "m5"]);
    assert_eq!(
        b.push(json!([{"queue": q, "partition": "p", "transactionId": "m0", "payload": 1}]))[0]["status"],
        "duplicate"
    );
}

#[test]
fn two_brokers_boot_at_once_on_one_empty_database_and_serve_it() {
    let database = shared_postgres().create_database();
    let brokers: Vec<Broker> = (0..2).map(|_| Setup::on(shared_postgres(), &database).launch()).collect();
    brokers.iter().for_each(Broker::wait_ready);
    let q = unique("two");
    for (n, b) in brokers.iter().cycle().take(10).enumerate() {
        b.push_keys(&q, "p", &[&format!("m{n}")]);
    }
    let again = brokers[1].push(json!([{"queue": q, "partition": "p", "transactionId": "m0", "payload": 1}])).remove(0);
    assert_eq!(again["status"], "duplicate", "stored through the other broker: {again}");
    let pop = brokers[0].pop(&q, "batch=100");
    assert_eq!(pop.offsets(), (0..10).collect::<Vec<_>>());
    brokers[1].complete("", &pop);
    // Both hold one window over one log: concurrent pushes of a key through both store one.
    for round in 0..10 {
        let key = format!("race{round}");
        let verdicts = at_once(2, |i| {
            brokers[i].push(json!([{"queue": q, "partition": "p", "transactionId": key, "payload": 1}])).remove(0)
        });
        let queued = verdicts.iter().filter(|v| v["status"] == "queued").count();
        assert_eq!((queued, &verdicts[0]["message_id"]), (1, &verdicts[1]["message_id"]), "{verdicts:?}");
    }
}

#[test]
fn a_second_boot_on_the_schema_changes_nothing() {
    let b = Setup::clean().start();
    let q = unique("boot");
    b.configure(&q, json!({"priority": 9}));
    b.push_n(&q, "p", "m", 1);
    assert!(b.terminate().success());
    b.restart();
    assert_eq!(b.queue_detail(&q)["options"]["priority"], 9);
    assert_eq!(b.pop(&q, "").keys(), ["m0"]);
}

/// Starts a broker that cannot run; its exit status and what it printed.
fn fails(setup: Setup) -> (Option<i32>, String) {
    let b = setup.launch();
    let status = b.wait_end();
    (status.code(), b.log())
}

/// The line that tells what is wrong: one, with the word FATAL.
#[track_caller]
fn fatal_line(log: &str) -> &str {
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("FATAL")).collect();
    assert_eq!(lines.len(), 1, "one line says it: {log}");
    assert!(!log.contains("panicked") && !log.contains("RUST_BACKTRACE"), "{log}");
    lines[0]
}

#[test]
fn a_busy_port_is_one_line_with_the_remedy() {
    let port = free_port();
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).expect("bound");
    let (code, log) = fails(Setup::clean().port(port));
    assert_eq!(code, Some(1), "{log}");
    let line = fatal_line(&log);
    assert!(line.contains(&port.to_string()) && line.contains("PORT"), "names the port and the setting: {line}");
}

#[test]
fn a_port_another_broker_serves_is_busy_too() {
    let b = crate::harness::two_shards();
    let (code, log) = fails(Setup::clean().port(b.port));
    assert_eq!(code, Some(1), "SO_REUSEPORT must not let two brokers share a port: {log}");
    fatal_line(&log);
}

#[test]
fn settings_that_cannot_be_are_fatal_before_the_port_opens() {
    let (code, log) = fails(Setup::clean().env("QUEEN_APPLY_SCHEMA", "maybe"));
    assert_eq!(code, Some(1), "{log}");
    let want = r#"QUEEN_APPLY_SCHEMA="maybe" is not a boolean (expected true/false, 1/0, yes/no, on/off)"#;
    assert!(fatal_line(&log).contains(want), "{log}");
    for address in ["", "127.0.0.1:80", "no.such.host.invalid"] {
        let (code, log) = fails(Setup::clean().env("QUEEN_BIND_ADDR", address));
        assert_eq!(code, Some(1), "{address:?}: {log}");
        fatal_line(&log);
    }
}

#[test]
fn a_database_that_is_not_there_yet_is_waited_for() {
    let port = free_port();
    let setup = Setup::default().env("PG_HOST", "127.0.0.1").env("PG_PORT", &port.to_string()).env("QUEEN_SHARDS", "2");
    let b = setup.env("FILE_BUFFER_DIR", scratch_dir("spool").to_str().expect("UTF-8")).launch();
    let answer = eventually("the port is open", || b.client().get("/health").ok());
    assert_eq!(answer.status, 503);
    assert_eq!(b.get("/health/live").status, 200);
    std::thread::sleep(Duration::from_millis(300));
    assert!(b.try_wait().is_none(), "{}", b.log());
    assert!(b.terminate().success());
}

#[test]
fn passwords_never_show_in_the_log() {
    let secret = "s3cret-of-the-test";
    let b = Setup::clean().env("PG_PASSWORD", secret).env("QUEEN_ENCRYPTION_KEY", secret).start();
    b.terminate();
    assert!(!b.log().contains(secret), "{}", b.log());
}

#[test]
fn it_binds_loopback_unless_told_and_says_so() {
    let b = crate::harness::two_shards();
    assert!(b.log().contains("QUEEN_BIND_ADDR"), "{}", b.log());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    let listens: Vec<&str> =
        table.lines().filter(|l| l.contains(&format!(":{:04X} 00000000:0000 0A", b.port))).collect();
    assert!(!listens.is_empty());
    assert!(listens.iter().all(|l| l.contains(&format!("0100007F:{:04X}", b.port))), "{listens:?}");
    let all = Setup::clean().env("QUEEN_BIND_ADDR", "0.0.0.0").start();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    assert!(table.contains(&format!("00000000:{:04X} 00000000:0000 0A", all.port)));
}

#[test]
fn log_lines_are_for_machines_when_nobody_watches() {
    let b = Setup::clean().start();
    b.push_n(&unique("log"), "p", "m", 50);
    b.terminate();
    let log = b.log();
    for line in log.lines() {
        let mut words = line.split_whitespace();
        let stamp = words.next().unwrap_or_default();
        assert!(stamp.len() >= 20 && stamp.ends_with('Z') && stamp.as_bytes()[10] == b'T', "RFC 3339 first: {line}");
        let level = words.next().unwrap_or_default();
        assert!(["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level), "then the level: {line}");
    }
    assert!(!log.contains('\u{1b}'), "no ANSI");
    assert!(log.contains("listening"), "{log}");
    assert!(log.lines().count() < 60, "nothing per message: {log}");
    let b = Setup::clean().env("QUEEN_LOG_JSON", "true").start();
    b.terminate();
    for line in b.log().lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(["timestamp", "level", "target"].iter().all(|k| entry[k].is_string()), "{line}");
    }
}
