//! A broker dies, sleeps, comes and goes: the other one carries on with what it left.

use super::{ALL, parked, two};
use crate::harness::{Broker, eventually, unique};
use serde_json::json;

#[test]
fn leases_of_a_killed_broker_end_and_the_other_one_carries_on() {
    let (a, b) = two();
    let q = unique("killed");
    a.configure(&q, json!({"leaseTime": 2}));
    a.push_n(&q, "p", "m", 4);
    assert_eq!(a.pop(&q, ALL).keys().len(), 4);
    assert!(b.pop(&q, ALL).is_empty(), "leased");
    a.kill();
    let rest = b.pop(&q, &parked(20_000));
    assert_eq!(rest.keys(), ["m0", "m1", "m2", "m3"]);
    b.complete("g", &rest);
    assert_eq!(b.push_keys(&q, "p", &["later"])[0]["status"], "queued");
    assert_eq!(b.pop(&q, ALL).keys(), ["later"]);
}

#[test]
fn a_broker_that_slept_learns_what_it_missed() {
    let (a, b) = two();
    let q = unique("slept");
    a.push_keys(&q, "p", &["m"]);
    assert_eq!(b.drain(&q, ALL, "g").len(), 1);
    b.signal(libc::SIGSTOP);
    // More commits than a ring has slots.
    for n in 0..300 {
        a.push_keys(&q, &format!("p{}", n % 5), &[&format!("n{n}")]);
    }
    b.signal(libc::SIGCONT);
    assert_eq!(b.drain(&q, ALL, "g").len(), 300);
}

/// Rolling restarts: whoever comes back sees everything, and is seen.
#[test]
fn brokers_come_and_go_and_nothing_is_missed() {
    let (a, b) = two();
    let q = unique("rolling");
    let check = |from: &Broker, to: &Broker, key: &str| {
        from.push_keys(&q, "p", &[key]);
        let pop = to.pop(&q, &format!("{ALL}&autoAck=true"));
        assert_eq!(pop.keys(), [key]);
    };
    for round in 0..3 {
        check(&a, &b, &format!("a{round}"));
        check(&b, &a, &format!("b{round}"));
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        one.terminate();
        check(other, other, &format!("alone{round}"));
        one.start_again();
        one.wait_ready();
        check(one, other, &format!("new{round}"));
        check(other, one, &format!("old{round}"));
        one.restart();
        check(other, one, &format!("killed{round}"));
    }
}

/// The store's connections of both brokers are cut again and again: writers are made anew, positions hold.
#[test]
fn cut_connections_lose_no_news() {
    let (a, b) = two();
    let q = unique("cut");
    assert!(b.pop(&q, ALL).is_empty());
    for round in 0..10 {
        let database = a.database.as_ref().expect("a database");
        let sql = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '{database}' and pid <> pg_backend_pid()"
        );
        crate::harness::shared_postgres().query("postgres", &sql);
        let key = format!("m{round}");
        let item = json!([{"queue": q, "partition": "p", "transactionId": key, "payload": 1}]);
        eventually("it is stored", || {
            let verdict = a.push(item.clone()).remove(0);
            matches!(verdict["status"].as_str(), Some("queued" | "duplicate")).then_some(())
        });
        let got = eventually("it is delivered", || {
            let answer = b.get(&format!("/api/v1/pop/queue/{q}?{ALL}&autoAck=true&wait=true&timeout=3000"));
            (answer.status == 200).then(|| answer.json())
        });
        assert_eq!(got["messages"][0]["transactionId"], key, "{got}");
    }
}

/// Operations 6.4: with two brokers a task runs as often as with one, and each of its runs is one broker's.
#[test]
fn jobs_run_once_per_period_however_many_brokers_there_are() {
    const PERIOD_MS: i64 = 1000;
    let (a, _b) = crate::two_with(|setup| setup.env("RETENTION_INTERVAL", &PERIOD_MS.to_string()));
    let database = a.database.clone().expect("a database");
    let query = |sql: &str| crate::harness::shared_postgres().query(&database, sql);
    query(
        "create table starts (task text, fence bigint, at timestamptz default clock_timestamp());
        create function noted() returns trigger language plpgsql as $$ begin
            insert into starts (task, fence) values (new.task, new.fence); return new; end $$;
        create trigger noted after update on queen.maintenance_leases
            for each row when (old.fence <> new.fence) execute function noted()",
    );
    eventually("it ran six times", || {
        (query("select 6 <= count(*) from starts where task = 'retention'") == "t").then_some(())
    });
    let apart = query(
        "select coalesce(min(ms), 0)::bigint from (
            select extract(epoch from at - lag(at) over (partition by task order by at)) * 1000 as ms from starts where task = 'retention'
        ) as s",
    );
    let apart: i64 = apart.parse().expect("a number");
    assert!(PERIOD_MS * 8 / 10 <= apart, "two runs within one period: {apart} ms apart");
    assert_eq!(
        query("select count(*) from (select from starts group by task, fence having 1 < count(*)) as twice"),
        "0"
    );
}
