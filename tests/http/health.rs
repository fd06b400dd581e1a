//! `/health`, `/health/live`, `/metrics`, `/metrics/prometheus`, `/api/v1/status`. Operations 5.

use crate::harness::{Postgres, Setup, eventually, two_shards, unique, within};
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, Instant};

#[test]
fn health_and_liveness_have_the_words_of_the_contract() {
    let b = two_shards();
    let answer = b.get("/health");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let body = answer.json();
    assert_eq!((&body["status"], &body["database"]), (&json!("healthy"), &json!("connected")));
    assert_eq!((&body["engine"], &body["version"]), (&json!("segments-rust"), &json!(env!("CARGO_PKG_VERSION"))));
    let live = b.get("/health/live");
    assert_eq!((live.status, live.text().as_str()), (200, r#"{"status":"alive"}"#));
    let status = b.get("/status");
    assert_eq!((status.status, status.text().as_str()), (200, r#"{"status":"ok","engine":"segments-rust"}"#));
}

/// Whichever shard answers `/health`, and whichever owns the partitions: nothing is spooled once it says 200.
#[test]
fn a_push_after_a_healthy_answer_is_queued() {
    let b = Setup::clean().env("QUEEN_SHARDS", "4").start();
    let q = unique("ready");
    for _ in 0..10 {
        b.restart();
        let items: Vec<_> = (0..8).map(|n| json!({"queue": q, "partition": n.to_string(), "payload": n})).collect();
        let verdicts = b.push(items.into());
        assert!(verdicts.iter().all(|verdict| verdict["status"] == "queued"), "{verdicts:?}");
    }
}

#[test]
fn a_lost_database_is_503_within_2_s_and_comes_back_without_a_restart() {
    let postgres = Postgres::start(&[]);
    let b = Setup::on(&postgres, "postgres").start();
    let q = unique("health");
    b.push_n(&q, "p", "before", 3);
    postgres.kill();
    within(Duration::from_secs(3), "/health says 503", || (b.get("/health").status == 503).then_some(()));
    let body = b.get("/health").json();
    assert_eq!((&body["status"], &body["database"]), (&json!("unhealthy"), &json!("disconnected")));
    assert_eq!(b.get("/health/live").status, 200);
    assert_eq!(b.get("/metrics/prometheus").status, 200);
    let start = Instant::now();
    let verdict = b.push(json!([{"queue": q, "partition": "p", "payload": 1}])).remove(0);
    assert_eq!(verdict["status"], "buffered", "{verdict}");
    assert!(start.elapsed() < Duration::from_secs(10), "answered after {:?}", start.elapsed());
    postgres.resume();
    within(Duration::from_secs(15), "/health says 200", || (b.get("/health").status == 200).then_some(()));
    within(Duration::from_secs(15), "the spool is empty", || {
        (b.get("/api/v1/status/buffers").json()["pending"] == 0).then_some(())
    });
    b.push_n(&q, "p", "after", 2);
    let keys: Vec<String> =
        b.drain(&q, "batch=100&wait=true&timeout=300", "").into_iter().map(|m| m.transaction_id).collect();
    for key in ["before0", "before1", "before2", "after0", "after1"] {
        assert!(keys.iter().any(|k| k == key), "{key} is missing: {keys:?}");
    }
}

#[test]
fn metrics_in_json_have_the_shape_of_the_contract() {
    let b = two_shards();
    b.push(json!([{"queue": unique("metrics"), "payload": 1}]));
    let body = b.get("/metrics").json();
    for (group, keys) in [
        ("requests", &["total", "rate"][..]),
        ("messages", &["total", "rate"]),
        ("database", &["poolSize", "idleConnections", "waitingRequests"]),
        ("memory", &["rss", "heapTotal", "heapUsed", "external", "arrayBuffers"]),
        ("cpu", &["user", "system"]),
    ] {
        for key in keys {
            assert!(body[group][key].is_number(), "{group}.{key}: {body}");
        }
    }
    assert!(body["uptime"].is_number());
    assert!(body["memory"]["rss"].as_u64().is_some_and(|rss| rss > 1_000_000), "{body}");
    assert!(body["requests"]["total"].as_u64().is_some_and(|n| n > 0), "{body}");
}

/// The families of operations 5.4.1: alert rules must not lose a series.
const FAMILIES: &[(&str, &str)] = &[
    ("queen_uptime_seconds", "gauge"),
    ("queen_process_resident_memory_bytes", "gauge"),
    ("queen_process_push_requests_total", "counter"),
    ("queen_process_pop_requests_total", "counter"),
    ("queen_process_ack_requests_total", "counter"),
    ("queen_process_push_messages_total", "counter"),
    ("queen_process_pop_messages_total", "counter"),
    ("queen_process_ack_messages_total", "counter"),
    ("queen_pop_targeted_total", "counter"),
    ("queen_pop_wildcard_total", "counter"),
    ("queen_pop_fill_wait_total", "counter"),
    ("queen_pop_fill_wait_microseconds_total", "counter"),
    ("queen_parked_long_polls", "gauge"),
    ("queen_event_loop_lag_avg_milliseconds", "gauge"),
    ("queen_batches_fired_total", "counter"),
    ("queen_batch_items_fired_total", "counter"),
    ("queen_fusion_items_per_batch", "gauge"),
    ("queen_batch_rtt_milliseconds", "gauge"),
    ("queen_admission_budget", "gauge"),
    ("queen_admission_inflight", "gauge"),
    ("queen_admission_waiting", "gauge"),
    ("queen_admission_trains_per_s", "gauge"),
    ("queen_admission_txn_per_train", "gauge"),
    ("queen_admission_cycle_ms", "gauge"),
    ("queen_db_pool_size", "gauge"),
    ("queen_db_pool_idle", "gauge"),
    ("queen_db_pool_active", "gauge"),
    ("queen_maintenance_mode_enabled", "gauge"),
    ("queen_file_buffer_pending", "gauge"),
    ("queen_file_buffer_failed", "gauge"),
    ("queen_file_buffer_db_healthy", "gauge"),
];

#[test]
fn prometheus_text_has_every_family_of_this_process() {
    let b = two_shards();
    let q = unique("prom");
    b.push_n(&q, "p", "m", 3);
    let pop = b.pop(&q, "");
    b.complete("", &pop);
    std::thread::scope(|scope| {
        scope.spawn(|| b.pop(&q, "wait=true&timeout=1500"));
        within(Duration::from_secs(5), "a parked poll shows under its queue", || (b.parked(&q) == 1).then_some(()));
    });
    let answer = b.get("/metrics/prometheus");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let text = answer.text();
    let mut types = HashMap::new();
    let mut helps = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(types.insert(name, kind).is_none(), "{name} is declared twice");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            helps.push(rest.split(' ').next().expect("a name"));
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line:?}"));
            let family = sample.split('{').next().expect("a name");
            assert!(types.contains_key(family), "{line}: no # TYPE before it");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    for (family, kind) in FAMILIES {
        assert_eq!(types.get(family), Some(kind), "{family}");
        assert!(helps.contains(family), "{family} has no # HELP");
    }
    assert!(b.metric("queen_process_push_messages_total").is_some_and(|n| n >= 3.0));
    assert!(b.metric("queen_process_pop_messages_total").is_some_and(|n| n >= 3.0));
    assert!(b.metric("queen_process_ack_messages_total").is_some_and(|n| n >= 3.0));
    assert!(b.metric("queen_process_resident_memory_bytes").is_some_and(|n| n > 1e6));
    for op in ["push", "pop", "ack"] {
        assert!(b.metric(&format!("queen_batches_fired_total{{op=\"{op}\"}}")).is_some(), "{op}");
    }
    for never in ["queen_queue_depth_total", "queen_queue_depth_pending"] {
        assert!(!text.contains(never), "{never}");
    }
}

/// A duplicate is no message that was pushed, nor is one that follows another of its body.
#[test]
fn pushed_messages_are_those_that_were_stored() {
    let b = Setup::clean().start();
    let q = unique("counted");
    let item = json!({"queue": q, "partition": "p", "transactionId": "k", "payload": 1});
    let counted = || {
        let of = |name: &str| b.metric(&format!("queen_process_push_{name}_total"));
        (of("requests"), of("messages"))
    };
    b.push(json!([item, item]));
    assert_eq!(counted(), (Some(1.0), Some(1.0)), "two of one key are one");
    assert_eq!(b.push(json!([item]))[0]["status"], "duplicate");
    assert_eq!(counted(), (Some(2.0), Some(1.0)));
}

#[test]
fn status_has_the_shape_of_the_contract() {
    let b = two_shards();
    b.push_n(&unique("status"), "p", "m", 2);
    let answer = b.get("/api/v1/status");
    assert_eq!(answer.status, 200);
    let body = answer.json();
    for (group, keys) in [
        ("timeRange", &["from", "to"][..]),
        (
            "messages",
            &["total", "pending", "processing", "completed", "failed", "deadLetter", "requests", "batchEfficiency"],
        ),
        ("leases", &["active", "partitionsWithLeases", "totalBatchSize", "totalAcked"]),
        ("deadLetterQueue", &["totalMessages", "currentMessages", "affectedPartitions", "topErrors"]),
        ("errors", &["dbErrors", "ackFailed", "dlqMessages"]),
    ] {
        for key in keys {
            assert!(!body[group][key].is_null(), "{group}.{key}: {body}");
        }
    }
    for list in ["throughput", "queues", "workers"] {
        assert!(body[list].is_array(), "{list}: {body}");
    }
    for number in ["bucketMinutes", "pointCount", "statsAge"] {
        assert!(body[number].is_number(), "{number}: {body}");
    }
}

#[test]
fn status_draws_what_was_done() {
    let b = Setup::clean().env("METRICS_FLUSH_MS", "1000").start();
    let (q, idle) = (unique("drawn"), unique("idle"));
    b.push_n(&q, "p", "m", 40);
    b.push_n(&idle, "p", "m", 1);
    b.complete("", &b.pop(&q, "batch=40"));
    let sums = |filter: &str| {
        let body = b.get(&format!("/api/v1/status{filter}")).json();
        let points = body["throughput"].as_array().expect("a series").clone();
        let sum = |key: &str| points.iter().map(|point| point[key].as_u64().expect("a number")).sum::<u64>();
        (sum("ingested"), sum("popMessages"), sum("processed"), body["workers"].as_array().expect("a list").len())
    };
    eventually("all of it is drawn", || (sums("") == (41, 40, 40, 1)).then_some(()));
    eventually("a queue is drawn", || (sums(&format!("?queue={q}")) == (40, 40, 40, 1)).then_some(()));
}
