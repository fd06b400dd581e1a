//! How fast a backlog drains, and what producers feel of it meanwhile. Goals (reliability 7): 5,000 messages a second on
//! two quiet cores, live p99 at most twice its calm value. The bounds here are generous, for machines that do other
//! things as well; the figures are printed.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// `DRAIN_MESSAGES` sets another number.
const BACKLOG: usize = 60_000;
const PARTITIONS: usize = 40;
const BODY: usize = 100;
const LIVE_PAUSE: Duration = Duration::from_millis(4);
const CALM: Duration = Duration::from_secs(2);
const RATE_MIN: f64 = 500.0;
/// Beside it, whatever the calm value is: a pause of the machine's own.
const LIVE_P99_MAX: Duration = Duration::from_millis(500);

/// Pushes to partitions of its own until it is told to stop; when each push was asked for, and what it took.
fn live(broker: &Broker, partition: &str, stop: &AtomicBool) -> Vec<(Instant, Duration)> {
    let mut took = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let began = Instant::now();
        let verdict = broker.push(json!([{"queue": "live", "partition": partition, "payload": 1}])).remove(0);
        // A shard may hear a moment later than the others that the store is back.
        assert!(verdict["status"] == "queued" || verdict["status"] == "buffered", "{verdict}");
        took.push((began, began.elapsed()));
        std::thread::sleep(LIVE_PAUSE);
    }
    took
}

fn p99(mut times: Vec<Duration>) -> Duration {
    // A drain may be over in a fifth of a second; of so few pushes it is the slowest one.
    assert!(times.len() >= 20, "not valid: only {} live pushes", times.len());
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn fill(broker: &Broker, from: usize, messages: usize) {
    for body in (from..messages).step_by(2 * BODY) {
        let partition = format!("p{}", body / BODY % PARTITIONS);
        let items: Vec<Value> = (body..body + BODY)
            .map(|n| json!({"queue": "backlog", "partition": partition, "transactionId": n.to_string(), "payload": {"number": n, "text": "x".repeat(100)}}))
            .collect();
        let verdicts = broker.push(items.into());
        assert!(verdicts.iter().all(|verdict| verdict["status"] == "buffered"), "{verdicts:?}");
    }
}

#[test]
fn a_backlog_drains_fast_and_live_pushes_hardly_feel_it() {
    let messages = std::env::var("DRAIN_MESSAGES").map_or(BACKLOG, |text| text.parse().expect("a number"));
    let messages = messages.next_multiple_of(2 * BODY);
    let postgres = Postgres::start(&[]);
    let broker = Setup::on(&postgres, "postgres").start();
    for partition in ["a", "b"] {
        broker.push(json!([{"queue": "live", "partition": partition, "payload": 1}]));
    }
    let measured = |wait: &dyn Fn()| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let producers = ["a", "b"].map(|partition| {
                let (broker, stop) = (&broker, &stop);
                scope.spawn(move || live(broker, partition, stop))
            });
            wait();
            stop.store(true, Ordering::Release);
            producers.map(|producer| producer.join().expect("a live producer")).concat()
        })
    };
    let calm = p99(measured(&|| std::thread::sleep(CALM)).into_iter().map(|(_, took)| took).collect());

    postgres.kill();
    assert_eq!(broker.push(json!([{"queue": "first", "payload": 1}])).remove(0)["status"], "buffered");
    harness::at_once(2, |half| fill(&broker, half * BODY, messages));
    assert_eq!(buffers(&broker)["pending"], messages + 1);
    postgres.resume();
    let (began, before) = (Instant::now(), buffers(&broker)["pending"].as_f64().expect("a number"));
    let took = std::cell::Cell::new(Duration::ZERO);
    let during = measured(&|| {
        harness::within(6 * harness::PATIENCE, "the backlog drains", || {
            (buffers(&broker)["pending"] == 0).then(|| took.set(began.elapsed()))
        });
    });
    let took = took.get();
    let rate = before / took.as_secs_f64();
    let until = began + took;
    let live: Vec<Duration> = during.into_iter().filter(|(at, _)| *at < until).map(|(_, took)| took).collect();
    let (n, draining) = (live.len(), p99(live));
    println!(
        "drain: {before:.0} of {messages} messages in {:.2} s, {rate:.0} msg/s; live p99 calm {:.1} ms, draining {:.1} ms (n = {n})",
        took.as_secs_f64(),
        calm.as_secs_f64() * 1e3,
        draining.as_secs_f64() * 1e3,
    );
    assert!(before > messages as f64 / 4.0, "not valid: {before} were left when the measuring began");
    assert!(rate >= RATE_MIN, "{rate:.0} msg/s");
    assert!(draining <= LIVE_P99_MAX.max(10 * calm), "calm {calm:?}, draining {draining:?}");
    let all = stored(&broker, "backlog");
    assert_eq!(all.values().map(Vec::len).sum::<usize>(), messages);
}
