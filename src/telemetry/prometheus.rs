//! `GET /metrics/prometheus`: every family of operations 5.4.1, in text form 0.0.4, then what the database knows.
//!
//! Families of mechanisms that do not exist here (admission) are printed with 0 or the nearest honest value,
//! so that alert rules do not lose a series.

use super::metrics::{Metrics, Op, resident_bytes};
use crate::spool::Numbers;
use serde_json::Value;
use std::fmt::{Display, Write};

/// Text of one scrape. `cluster`: reply of `queen.cluster_metrics`; absent when the database could not be asked.
pub fn text(metrics: &Metrics, spool: &Numbers, maintenance: bool, cluster: Option<&Value>) -> String {
    let mut page = Page(String::with_capacity(16 * 1024));
    process(&mut page, metrics);
    engine(&mut page, metrics);
    buffer(&mut page, spool, maintenance);
    if let Some(cluster) = cluster {
        lifetime(&mut page, cluster);
        queues(&mut page, cluster);
    }
    page.0
}

fn process(page: &mut Page, metrics: &Metrics) {
    let sums = metrics.sums();
    page.gauge("queen_uptime_seconds", "Age of the process.", metrics.uptime_secs());
    page.gauge("queen_process_resident_memory_bytes", "Resident set.", resident_bytes());
    page.gauge(
        "queen_encryption_key_malformed",
        "1: QUEEN_ENCRYPTION_KEY is set and of no use.",
        u8::from(metrics.key_malformed),
    );
    page.counter("queen_process_push_requests_total", "Push calls.", sums.push_requests);
    page.counter("queen_process_pop_requests_total", "Pop calls.", sums.pop_requests);
    page.counter("queen_process_ack_requests_total", "Ack calls.", sums.ack_requests);
    page.counter("queen_process_push_messages_total", "Messages pushed.", sums.push_messages);
    page.counter("queen_process_pop_messages_total", "Messages delivered.", sums.pop_messages);
    page.counter("queen_process_ack_messages_total", "Messages acked, auto-acked ones included.", sums.ack_messages);
    let conflated = "Messages that conflating groups retired undelivered.";
    page.counter("queen_process_conflated_messages_total", conflated, sums.conflated);
    page.counter("queen_pop_targeted_total", "Pops aimed at one hinted partition.", sums.pop_targeted);
    page.counter("queen_pop_wildcard_total", "Pops that searched candidates.", sums.pop_wildcard);
    page.counter("queen_pop_fill_wait_total", "Pops held back to fill a batch.", sums.fill_waits);
    page.counter("queen_pop_fill_wait_microseconds_total", "Time pops were held back.", sums.fill_wait_micros);
    page.family("queen_parked_long_polls", "gauge", "Parked pops right now.");
    for (queue, n) in metrics.parked() {
        page.sample("queen_parked_long_polls", &[("queue", &queue)], n);
    }
    let lag = sums.loop_lag_micros as f64 / 1000.0 / sums.loop_lag_samples.max(1) as f64;
    page.gauge("queen_event_loop_lag_avg_milliseconds", "Mean lateness of a 100 ms timer.", Ms(lag));
}

fn engine(page: &mut Page, metrics: &Metrics) {
    page.family("queen_batches_fired_total", "counter", "Fused database commits.");
    for op in Op::ALL {
        page.sample("queen_batches_fired_total", &[("op", op.name())], metrics.batches(op).0);
    }
    page.family("queen_batch_items_fired_total", "counter", "Items in them.");
    for op in Op::ALL {
        page.sample("queen_batch_items_fired_total", &[("op", op.name())], metrics.batches(op).1);
    }
    page.family("queen_fusion_items_per_batch", "gauge", "Items per fused commit.");
    for op in Op::ALL {
        let (fired, items) = metrics.batches(op);
        page.sample("queen_fusion_items_per_batch", &[("op", op.name())], Ms(items as f64 / fired.max(1) as f64));
    }
    page.family("queen_batch_rtt_milliseconds", "gauge", "Round trip of recent fused commits.");
    for op in Op::ALL {
        let [p50, p99] = metrics.round_trip_ms(op, [0.5, 0.99]);
        page.sample("queen_batch_rtt_milliseconds", &[("op", op.name()), ("quantile", "0.5")], Ms(p50));
        page.sample("queen_batch_rtt_milliseconds", &[("op", op.name()), ("quantile", "0.99")], Ms(p99));
    }

    let (open, busy) = metrics.connections();
    const LANES: [&str; 4] = ["push", "pop", "ack", "maint"];
    page.gauge("queen_admission_budget", "Concurrent write transactions allowed: the connections open.", open);
    page.family("queen_admission_inflight", "gauge", "Admitted; not told apart by lane here.");
    for lane in LANES {
        page.sample("queen_admission_inflight", &[("lane", lane)], if lane == "push" { busy } else { 0 });
    }
    page.family("queen_admission_waiting", "gauge", "Waiting for admission; nothing does here.");
    for lane in LANES {
        page.sample("queen_admission_waiting", &[("lane", lane)], 0);
    }
    page.gauge("queen_admission_trains_per_s", "Commit flushes per second; not measured here.", 0);
    page.gauge("queen_admission_txn_per_train", "Transactions per flush; not measured here.", 0);
    page.gauge("queen_admission_cycle_ms", "Median flush interval; not measured here.", 0);

    page.gauge("queen_db_pool_size", "Most database connections.", metrics.pool_size);
    page.gauge("queen_db_pool_idle", "Open and without a call in flight.", open.saturating_sub(busy));
    page.gauge("queen_db_pool_active", "With a call in flight.", busy);
}

/// The spool, with some families of our own behind those of operations 5.4.1.
fn buffer(page: &mut Page, spool: &Numbers, maintenance: bool) {
    page.gauge("queen_maintenance_mode_enabled", "Push maintenance.", maintenance as u8);
    page.gauge("queen_file_buffer_pending", "Spooled messages that are not drained.", spool.pending);
    page.gauge("queen_file_buffer_failed", "Messages that could not be spooled.", spool.failed);
    page.gauge("queen_file_buffer_db_healthy", "The spool believes the database works.", spool.db_healthy as u8);
    page.gauge("queen_file_buffer_quarantined_files", "Spool files set aside.", spool.quarantined);
    page.gauge("queen_file_buffer_files", "Spool files that wait or are being written.", spool.files);
    page.gauge("queen_file_buffer_bytes", "Their size.", spool.bytes);
    page.gauge(
        "queen_file_buffer_recovering",
        "What an earlier process left is being counted.",
        spool.recovering as u8,
    );
    page.counter("queen_file_buffer_written_total", "Messages spooled.", spool.written);
    page.counter("queen_file_buffer_drained_total", "Spooled messages decided, duplicates included.", spool.drained);
    page.counter("queen_file_buffer_duplicates_total", "Of these, found stored already.", spool.duplicates);
    page.counter("queen_file_buffer_refused_total", "Spooled messages the database refuses, set aside.", spool.refused);
    page.counter("queen_file_buffer_damages_total", "Damaged places met in spool files.", spool.damages);
    page.counter("queen_file_buffer_damaged_bytes_total", "Bytes of them.", spool.damaged_bytes);
    page.counter("queen_file_buffer_wall_clock_total", "Starts on the machine's clock.", spool.wall_clock);
}

/// Source: operations 5.4.2 and the dead letters of 5.4.3. Keys the reply lacks leave their family out.
fn lifetime(page: &mut Page, cluster: &Value) {
    const SCOPE: (&str, &str) = ("scope", "cluster");
    const FAMILIES: [(&str, &str, &str); 9] = [
        ("pushRequests", "queen_cluster_push_requests_total", "Push calls ever."),
        ("popRequests", "queen_cluster_pop_requests_total", "Pop calls ever."),
        ("ackRequests", "queen_cluster_ack_requests_total", "Ack calls ever."),
        ("transactions", "queen_cluster_transactions_total", "Transactions ever."),
        ("pushMessages", "queen_cluster_push_messages_total", "Messages pushed ever."),
        ("popMessages", "queen_cluster_pop_messages_total", "Messages delivered ever."),
        ("ackMessages", "queen_cluster_ack_messages_total", "Messages acked ever."),
        ("dbErrors", "queen_cluster_db_errors_total", "Failed store calls ever."),
        ("deadLettered", "queen_cluster_dlq_total", "Dead-letterings ever."),
    ];
    for (key, family, help) in FAMILIES {
        if let Some(n) = cluster.get(key).and_then(Value::as_i64) {
            page.family(family, "counter", help);
            page.sample(family, &[SCOPE], n);
        }
    }
    if let (Some(ok), Some(failed)) = (int(cluster, "ackMessages"), int(cluster, "ackFailed")) {
        page.family("queen_cluster_ack_total", "counter", "Acks ever, by result.");
        page.sample("queen_cluster_ack_total", &[SCOPE, ("result", "success")], ok);
        page.sample("queen_cluster_ack_total", &[SCOPE, ("result", "failed")], failed);
    }
    if let Some(n) = int(cluster, "deadLetters") {
        page.family("queen_dlq_depth", "gauge", "Dead letters stored now.");
        page.sample("queen_dlq_depth", &[SCOPE], n);
    }
    if let Some(queues) = cluster.get("deadLettersByQueue").and_then(Value::as_array) {
        page.family("queen_dlq_depth_by_queue", "gauge", "Dead letters stored now, by queue name.");
        for queue in queues {
            let name = queue.get("queue").and_then(Value::as_str).unwrap_or_default();
            page.sample("queen_dlq_depth_by_queue", &[("queue", name)], int(queue, "count").unwrap_or(0));
        }
    }
}

/// What queues did in their newest minute of the last five. Source: operations 5.4.3.
fn queues(page: &mut Page, cluster: &Value) {
    let Some(queues) = cluster.get("queueMinutes").and_then(Value::as_array) else { return };
    type Of = (&'static str, Option<(&'static str, &'static str)>);
    const FAMILIES: [(&str, &str, &[Of]); 10] = [
        ("queen_queue_push_requests_per_minute", "Push calls with messages for it.", &[("pushRequests", None)]),
        ("queen_queue_push_messages_per_minute", "Messages pushed.", &[("pushed", None)]),
        ("queen_queue_pop_messages_per_minute", "Messages delivered.", &[("popped", None)]),
        ("queen_queue_pop_empty_per_minute", "Pops of it that found nothing.", &[("popEmpty", None)]),
        (
            "queen_queue_transactions_per_minute",
            "Transactions with pushes to it or acks in it.",
            &[("transactions", None)],
        ),
        (
            "queen_queue_conflated_per_minute",
            "Messages that conflating groups retired undelivered.",
            &[("conflated", None)],
        ),
        (
            "queen_queue_ack_per_minute",
            "Acks by result.",
            &[("acked", Some(("result", "success"))), ("ackFailed", Some(("result", "failed")))],
        ),
        (
            "queen_queue_pop_lag_milliseconds",
            "Age of messages at delivery.",
            &[("lagMs", Some(("stat", "avg"))), ("lagMaxMs", Some(("stat", "max")))],
        ),
        ("queen_queue_parked_consumers", "Parked pops, on average over the minute.", &[("parked", None)]),
        ("queen_queue_metrics_age_seconds", "Age of the minute shown.", &[("age", None)]),
    ];
    for (family, help, samples) in FAMILIES.iter().filter(|_| !queues.is_empty()) {
        page.family(family, "gauge", help);
        for queue in queues {
            let name = queue.get("queue").and_then(Value::as_str).unwrap_or_default();
            for (key, label) in *samples {
                let labels: Vec<_> = [("queue", name)].into_iter().chain(*label).collect();
                match queue.get(key) {
                    Some(Value::Number(n)) if n.is_f64() => page.sample(family, &labels, Ms(n.as_f64().unwrap_or(0.0))),
                    value => page.sample(family, &labels, value.and_then(Value::as_i64).unwrap_or(0)),
                }
            }
        }
    }
}

fn int(value: &Value, key: &str) -> Option<i64> {
    value.get(key).and_then(Value::as_i64)
}

struct Page(String);

/// A float with three digits.
struct Ms(f64);
impl Display for Ms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }
    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn every_sample_has_a_family_and_every_family_comes_once() {
        let metrics = Arc::new(Metrics::new(1, 160));
        let _parked = metrics.park(0, "a\"b\\c\nd".into());
        let cluster = serde_json::json!({"pushMessages": 5, "ackMessages": 3, "ackFailed": 1, "deadLetters": 2,
        "deadLettersByQueue": [{"queue": "q", "count": 2}],
        "queueMinutes": [
            {"queue": "q", "pushRequests": 8, "pushed": 7, "popped": 6, "popEmpty": 10, "transactions": 11, "acked": 5,
             "ackFailed": 12, "conflated": 13, "lagMs": 1.5, "lagMaxMs": 9, "parked": 2.25, "age": 30},
            {"queue": "r", "pushed": 1, "popped": 0, "acked": 0, "lagMs": 0, "lagMaxMs": 0, "parked": 0, "age": 90},
        ]});
        let text = text(&metrics, &Numbers::default(), false, Some(&cluster));
        let mut families = HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(families.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {line}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(families.contains(name), "no family before: {line}");
            }
        }
        assert!(text.contains("queen_parked_long_polls{queue=\"a\\\"b\\\\c\\nd\"} 1\n"));
        assert!(text.contains("queen_cluster_ack_total{scope=\"cluster\",result=\"failed\"} 1\n"));
        assert!(text.contains("queen_batch_rtt_milliseconds{op=\"ack\",quantile=\"0.99\"} 0.000\n"));
        assert!(text.contains("queen_db_pool_size 160\n"));
        assert!(text.contains("queen_queue_push_messages_per_minute{queue=\"r\"} 1\n"));
        for (sample, value) in [
            ("push_requests_per_minute{queue=\"q\"}", "8"),
            ("push_messages_per_minute{queue=\"q\"}", "7"),
            ("pop_messages_per_minute{queue=\"q\"}", "6"),
            ("pop_empty_per_minute{queue=\"q\"}", "10"),
            ("transactions_per_minute{queue=\"q\"}", "11"),
            ("conflated_per_minute{queue=\"q\"}", "13"),
            ("ack_per_minute{queue=\"q\",result=\"success\"}", "5"),
            ("ack_per_minute{queue=\"q\",result=\"failed\"}", "12"),
            ("parked_consumers{queue=\"q\"}", "2.250"),
            ("parked_consumers{queue=\"r\"}", "0"),
        ] {
            assert!(text.contains(&format!("queen_queue_{sample} {value}\n")), "{sample} {value}");
        }
        assert!(text.contains("queen_queue_pop_lag_milliseconds{queue=\"q\",stat=\"avg\"} 1.500\n"));
        assert!(text.contains("queen_queue_metrics_age_seconds{queue=\"q\"} 30\n"));
    }

    #[test]
    fn without_the_database_its_families_are_absent() {
        let text = text(&Metrics::new(1, 1), &Numbers::default(), false, None);
        assert!(!text.contains("queen_cluster_") && !text.contains("queen_dlq_") && !text.contains("queen_queue_"));
    }
}
