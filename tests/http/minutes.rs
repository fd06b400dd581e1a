//! What each queue did in its newest minute, on the page that is scraped. Operations 5.4.3.

use crate::harness::{Broker, PATIENCE, Setup, shared_postgres, unique, within};
use serde_json::{Value, json};

/// Longer than the second in which a shard reports, so that some of it is told while the poll is still parked.
const PARKED_MS: u64 = 2000;

/// The samples of one queue, by the rest of the family's name and further labels.
type Samples = Vec<(&'static str, f64)>;

/// A sample of a page.
fn sample(page: &str, queue: &str, name: &str) -> Option<f64> {
    let (family, label) = name.split_once(' ').unwrap_or((name, ""));
    let comma = if label.is_empty() { "" } else { "," };
    let sample = format!("queen_queue_{family}{{queue=\"{queue}\"{comma}{label}}} ");
    page.lines().find_map(|line| line.strip_prefix(&sample))?.parse().ok()
}

/// Sends a transaction; whether it was committed.
fn transaction(b: &Broker, operations: Value) -> bool {
    b.post("/api/v1/transaction", &json!({ "operations": operations })).json()["success"] == true
}

fn push(queue: &str, partition: &str, key: &str) -> Value {
    json!({"type": "push", "items": [{"queue": queue, "partition": partition, "transactionId": key, "payload": 1}]})
}

/// Two queues in one request, one ack of both kinds, empty pops, and transactions.
fn plain(b: &Broker) -> [(String, Samples); 2] {
    let (q, r) = (unique("minute"), unique("minute-other"));
    // Partitions of both shards, and another queue between them.
    let mut items: Vec<Value> = (0..8).map(|n| json!({"queue": q, "partition": n.to_string(), "payload": n})).collect();
    items.insert(3, json!({"queue": r, "partition": "p", "payload": 1}));
    b.push(items.into());
    b.push_n(&q, "0", "m", 3);
    let pop = b.pop_pinned(&q, "0", "batch=10");
    assert_eq!(pop.messages.len(), 4);
    let (mut unknown, mut stale) = (pop.messages[0].ack("completed"), pop.messages[0].ack("completed"));
    unknown["transactionId"] = "never pushed".into();
    stale["leaseId"] = "00000000-0000-7000-8000-000000000001".into();
    for refused in [unknown, stale] {
        assert_eq!(b.ack("", &[refused])[0]["success"], false);
    }
    b.complete("", &pop);
    assert!(b.pop_pinned(&q, "0", "").is_empty());
    assert!(b.pop_pinned(&q, "0", "wait=true&timeout=100").is_empty());
    let mut ack = b.pop_pinned(&q, "1", "").messages[0].ack("completed");
    ack["type"] = "ack".into();
    assert!(transaction(b, json!([ack, push(&r, "a", "1"), push(&r, "b", "1")])));
    // Stored already: nothing happened, and nothing is counted.
    assert!(!transaction(b, json!([push(&r, "a", "1"), push(&q, "2", "2")])));
    [
        (
            q,
            vec![
                ("push_requests_per_minute", 2.0),
                ("push_messages_per_minute", 11.0),
                ("pop_messages_per_minute", 5.0),
                ("pop_empty_per_minute", 2.0),
                ("transactions_per_minute", 1.0),
                ("conflated_per_minute", 0.0),
                ("ack_per_minute result=\"success\"", 5.0),
                ("ack_per_minute result=\"failed\"", 2.0),
            ],
        ),
        (
            r,
            vec![
                ("push_requests_per_minute", 1.0),
                ("push_messages_per_minute", 3.0),
                ("pop_messages_per_minute", 0.0),
                ("pop_empty_per_minute", 0.0),
                ("transactions_per_minute", 1.0),
                ("ack_per_minute result=\"success\"", 0.0),
                ("parked_consumers", 0.0),
            ],
        ),
    ]
}

/// A conflating group that acks once alone and once in a transaction.
fn conflating(b: &Broker) -> (String, Samples) {
    const TICKER: &str = "consumerGroup=ticker&subscriptionMode=all&conflation=true";
    let c = unique("minute-conflated");
    b.push_n(&c, "p", "a", 10);
    b.ack_ok("ticker", &[b.pop(&c, TICKER).messages[0].ack("completed")]);
    b.push_n(&c, "p", "b", 4);
    let mut ack = b.pop(&c, TICKER).messages[0].ack("completed");
    (ack["type"], ack["consumerGroup"]) = ("ack".into(), "ticker".into());
    assert!(transaction(b, json!([ack])));
    (
        c,
        vec![
            ("push_requests_per_minute", 2.0),
            ("push_messages_per_minute", 14.0),
            ("pop_messages_per_minute", 2.0),
            ("transactions_per_minute", 1.0),
            ("conflated_per_minute", 12.0),
            ("ack_per_minute result=\"success\"", 2.0),
            ("ack_per_minute result=\"failed\"", 0.0),
        ],
    )
}

/// Polls of queues in which nothing else happens: two on one queue, and one that finds two queues by their namespace.
fn parked(b: &Broker) -> [(String, Samples); 3] {
    let (idle, ns) = (unique("minute-idle"), unique("minutes"));
    let found = [unique("minute-found"), unique("minute-found")];
    found.iter().for_each(|queue| drop(b.configure(queue, json!({ "namespace": ns }))));
    let waits = format!("wait=true&timeout={PARKED_MS}");
    std::thread::scope(|scope| {
        let polls = [
            format!("/api/v1/pop/queue/{idle}?{waits}"),
            format!("/api/v1/pop/queue/{idle}/partition/p?{waits}"),
            format!("/api/v1/pop?namespace={ns}&{waits}"),
        ];
        for poll in polls {
            scope.spawn(move || assert!(b.pop_path(&poll).is_empty()));
        }
    });
    let of = |pop_empty| vec![("push_messages_per_minute", 0.0), ("pop_empty_per_minute", pop_empty)];
    // What a discovery pop did not find, it found in no queue in particular.
    let [one, two] = found;
    [(idle, of(2.0)), (one, of(0.0)), (two, of(0.0))]
}

#[test]
fn a_scrape_says_what_each_queue_did_in_its_newest_minute() {
    let b = Setup::clean().env("METRICS_FLUSH_MS", "1000").start();
    let ask = |sql: &str| shared_postgres().query(b.database.as_ref().expect("a database"), sql);
    let minute = || ask("select date_trunc('minute', clock_timestamp())");
    // Again, where the clock went over a minute meanwhile.
    for _ in 0..3 {
        let began = minute();
        let parked = parked(&b);
        let waited: Vec<String> = parked.iter().map(|(queue, _)| queue.clone()).collect();
        let want: Vec<(String, Samples)> = plain(&b).into_iter().chain([conflating(&b)]).chain(parked).collect();
        let wrong = |page: &str| {
            let all = want.iter().flat_map(|(queue, samples)| samples.iter().map(move |sample| (queue, sample)));
            let got = all.map(|(queue, (name, value))| (queue, name, sample(page, queue, name), *value));
            got.filter(|(.., got, value)| *got != Some(*value)).map(|wrong| format!("{wrong:?}")).next()
        };
        let mut last = String::new();
        let whole = within(2 * PATIENCE, "the numbers of all queues", || {
            let page = b.get("/metrics/prometheus").text();
            if minute() != began {
                return Some(None);
            }
            let Some(wrong) = wrong(&page) else { return Some(Some(page)) };
            if last != wrong {
                println!("queue, sample, got, want: {wrong}");
            }
            last = wrong;
            None
        });
        let Some(page) = whole else { continue };
        for (queue, polls) in waited.iter().zip([2, 1, 1]) {
            let shown = sample(&page, queue, "parked_consumers").expect("parked");
            let sql = format!(
                "select m.parked_us from queen.queue_minutes as m join queen.queues as q on q.id = m.queue_id where q.name = '{queue}'"
            );
            let micros: u64 = ask(&sql).parse().expect("one minute");
            let most = polls * 1000 * PARKED_MS;
            assert!((most / 2..2 * most).contains(&micros), "{queue}: {micros} of {most}");
            // Of a minute that is not over, the part that has been.
            let covered = micros as f64 / 1e6 / shown;
            assert!((1.0..61.0).contains(&covered), "{queue}: {shown} on average of {covered} s");
        }
        let q = &want[0].0;
        let (avg, max) = (
            sample(&page, q, "pop_lag_milliseconds stat=\"avg\""),
            sample(&page, q, "pop_lag_milliseconds stat=\"max\""),
        );
        assert!(avg.zip(max).is_some_and(|(avg, max)| 0.0 < avg && avg <= max && max < 60_000.0), "{avg:?} {max:?}");
        assert!(sample(&page, q, "metrics_age_seconds").is_some_and(|age| (0.0..60.0).contains(&age)));
        return;
    }
    panic!("three times over a minute");
}
