//! A recording as text: the tables a person reads, `run.json` and `summary.md`.

use crate::paired::{self, Pairing};
use crate::plots;
use crate::result::{Recording, RunResult, ScenarioResult};
use crate::scenario::Kind;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The tables of a recording: figures, cost, latencies; then what failed.
pub fn tables(recording: &Recording) -> String {
    let mut figures = Table::new(&["scenario", "figure", "median", "lowest", "highest"]);
    let mut cost = Table::new(&[
        "CPU",
        "process",
        "us/msg",
        "x calibration",
        "budget",
        "% of a core",
        "RSS MB",
        "RSS MB deleted",
        "steal %",
    ]);
    let mut store = Table::new(&[
        "PostgreSQL",
        "per",
        "commits",
        "WAL bytes",
        "fsyncs",
        "msg/commit",
        "checkpoints",
        "autovacuums",
    ]);
    let mut latency =
        Table::new(&["latency", "operation", "count", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"]);
    let mut failed = String::new();
    for scenario in recording.scenarios.iter().filter(|scenario| !scenario.runs.is_empty()) {
        let name = scenario.settings.name.as_str();
        figures.row(figure_row(scenario));
        cost_rows(scenario).into_iter().for_each(|row| cost.row(row));
        store_row(scenario).into_iter().for_each(|row| store.row(row));
        for (operation, l) in scenario.median_run().latencies() {
            let ms = |us: u64| format!("{:.3}", us as f64 / 1000.0);
            let count = thousands(l.count as f64);
            let times = [l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.max_us].map(ms);
            latency.row([name.to_owned(), operation.to_owned(), count].into_iter().chain(times).collect());
        }
        for (n, run) in scenario.runs.iter().enumerate().filter(|(_, run)| run.failures > 0) {
            failed += &format!("FAILED {name} run {}: {} failures\n", n + 1, run.failures);
            for text in &run.failure_texts {
                failed += &format!("    {text}\n");
            }
        }
    }
    let parts = [figures.render(), cost.render(), store.render(), latency.render(), failed];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn figure_row(scenario: &ScenarioResult) -> Vec<String> {
    let figure = scenario.median_run().main_figure(&scenario.settings);
    let (low, high) = scenario.range();
    let name = scenario.settings.name.clone() + if scenario.failed() { " FAILED" } else { "" };
    vec![name, figure.name.to_owned(), show(figure.value), show(low), show(high)]
}

/// One row for each process that was seen, and their sum when all were.
fn cost_rows(scenario: &ScenarioResult) -> Vec<Vec<String>> {
    let (settings, run) = (&scenario.settings, scenario.median_run());
    let processes = [
        ("broker", run.broker_cpu_us),
        ("PostgreSQL", run.postgres_cpu_us),
        ("client", Some(run.client_cpu_us)),
        ("sum", run.cpu_us()),
    ];
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let percent = |cpu: Option<u64>| run.core_percent(cpu).map_or(String::new(), |percent| format!("{percent:.1}"));
    let row = |(process, cpu): (&str, Option<u64>)| {
        let broker = process == "broker";
        let mb =
            |kb: Option<u64>| kb.filter(|_| broker).map_or(String::new(), |kb| format!("{:.1}", kb as f64 / 1024.0));
        let budget = settings.budget.and_then(|budget| match process {
            "broker" => Some(budget.broker),
            "PostgreSQL" => Some(budget.postgres),
            _ => None,
        });
        vec![
            settings.name.clone(),
            process.to_owned(),
            cell(run.per_message(settings, cpu)),
            cell(run.calibrated(settings, cpu)),
            cell(budget),
            percent(cpu),
            mb(run.broker_rss_kb),
            mb(run.deleted_rss_kb),
            if process == "sum" { percent(run.steal_us) } else { String::new() },
        ]
    };
    processes.into_iter().filter(|(_, cpu)| cpu.is_some()).map(row).collect()
}

/// What PostgreSQL did per message, where it was asked and there were messages.
fn store_row(scenario: &ScenarioResult) -> Option<Vec<String>> {
    let (settings, run) = (&scenario.settings, scenario.median_run());
    let store = run.store.filter(|_| run.pushed + run.popped > 0)?;
    let each = |amount: u64| format!("{:.4}", run.each(settings, amount));
    Some(vec![
        settings.name.clone(),
        if settings.consumers > 0 { "message popped" } else { "message pushed" }.to_owned(),
        each(store.commits),
        format!("{:.0}", run.each(settings, store.wal_bytes)),
        each(store.fsyncs),
        if store.commits > 0 { show(1.0 / run.each(settings, store.commits)) } else { String::new() },
        store.checkpoints.to_string(),
        store.autovacuums.to_string(),
    ])
}

/// A figure for people: more digits behind the point the smaller it is.
pub fn show(value: f64) -> String {
    match value {
        _ if value >= 100.0 => thousands(value),
        _ if value >= 0.1 || value == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.5}"),
    }
}

/// 1234567.8 as `1,234,568`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A Markdown table that also reads well as plain text.
pub struct Table(Vec<Vec<String>>);

impl Table {
    pub fn new(head: &[&str]) -> Table {
        Table(vec![head.iter().map(|&cell| cell.to_owned()).collect()])
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }

    /// Empty when there are no rows.
    pub fn render(&self) -> String {
        if self.0.len() < 2 {
            return String::new();
        }
        let columns = self.0[0].len();
        let width = |column: usize| self.0.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for (n, row) in self.0.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Words to the left, numbers to the right.
                out += &if column < 2 { format!("| {cell:<width$} ") } else { format!("| {cell:>width$} ") };
            }
            out += "|\n";
            if n == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let line = "-".repeat(width + 1);
                    out += &if column < 2 { format!("|{line}-") } else { format!("|{line}:") };
                }
                out += "|\n";
            }
        }
        out
    }
}

/// Writes `<date>-<machine>-<commit>/` under `root`: `run.json`, `summary.md`, `plots.html`; a second result of one day
/// and commit gets `-2`, and so on. Returns the directory.
pub fn record(recording: &Recording, root: &Path) -> io::Result<PathBuf> {
    let json = serde_json::to_string_pretty(recording)?;
    let plots = plots::page(&[(recording, "")]);
    write(root, recording, "", [("run.json", json + "\n"), ("summary.md", summary(recording)), ("plots.html", plots)])
}

/// The same of a pairing, in `<date>-<machine>-<commit>-paired/`.
pub fn record_pairing(pairing: &Pairing, root: &Path) -> io::Result<PathBuf> {
    let json = serde_json::to_string_pretty(pairing)?;
    let plots = plots::page(&[(&pairing.a, "A"), (&pairing.b, "B")]);
    let files = [("run.json", json + "\n"), ("summary.md", paired::summary(pairing)), ("plots.html", plots)];
    write(root, &pairing.a, "-paired", files)
}

fn write(root: &Path, of: &Recording, kind: &str, files: [(&str, String); 3]) -> io::Result<PathBuf> {
    let day = of.date.split('T').next().unwrap_or_default();
    let name = format!("{day}-{}-{}{kind}", of.machine.name, of.commit);
    let suffixes = std::iter::once(String::new()).chain((2..).map(|n| format!("-{n}")));
    fs::create_dir_all(root)?;
    for suffix in suffixes {
        let directory = root.join(format!("{name}{suffix}"));
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        for (file, text) in &files {
            fs::write(directory.join(file), text)?;
        }
        return Ok(directory);
    }
    unreachable!("the suffixes do not end")
}

/// `summary.md`: what the result shows and what it does not.
pub fn summary(recording: &Recording) -> String {
    let machine = &recording.machine;
    let mut out = format!(
        "# {}, {} cores, commit {}\n\n\
         `{}`, {}. {} ({} cores, {} MB), Linux {}. Broker at {}: `{}`, {}.\n\n",
        recording.date.split('T').next().unwrap_or_default(),
        machine.cores,
        recording.commit,
        recording.command,
        recording.date,
        machine.cpu,
        machine.cores,
        machine.memory_mb,
        machine.kernel,
        recording.url,
        recording.broker.replace('`', "'"),
        recording.driver.as_deref().unwrap_or("driver unknown"),
    );
    for (what, settings) in [("Broker", &recording.settings), ("PostgreSQL", &recording.postgres)] {
        let Some(settings) = settings.as_ref().filter(|settings| !settings.is_empty()) else { continue };
        let pairs: Vec<String> = settings.iter().map(|(name, value)| format!("`{name}={value}`")).collect();
        out += &format!("{what} settings: {}.\n\n", pairs.join(", "));
    }
    if recording.scenarios.iter().any(ScenarioResult::failed) {
        out += "**Not valid: a run failed, see the end of the tables.**\n\n";
    }
    out += "## What it shows\n\n";
    out += &tables(recording);
    out += "\nEach line is the run in the middle by its figure; lowest and highest are of all runs. \
            CPU is of the whole processes in the window, divided by messages pushed, or by messages popped where there \
            are consumers; with groups, by deliveries. x calibration is that in messages of the calibration loop, which \
            ran beside each run. Open-loop latencies start when a message was due.\n\n";
    for scenario in &recording.scenarios {
        out += &format!("* **{}**: {} {}\n", scenario.settings.name, scenario.settings.about, settings_line(scenario));
    }
    out += "\n## What it does not show\n\n";
    for line in blind_spots(recording) {
        out += &format!("* {line}\n");
    }
    out
}

fn settings_line(scenario: &ScenarioResult) -> String {
    let s = &scenario.settings;
    let time = format!("{} x {} s after {} s", scenario.runs.len(), s.seconds, s.warmup);
    match s.kind {
        Kind::Idle => format!("({time})"),
        Kind::Parked => format!("({time}; {} consumers)", s.consumers),
        _ => format!(
            "({time}; batch {}, {} connections, {} consumers in {} groups, pop {} of {} partitions, {} partitions, {} filled in, {} B, rate {}, backlog at most {})",
            s.batch,
            s.connections,
            s.consumers,
            s.groups,
            s.pop_batch,
            s.pop_partitions,
            s.partitions,
            s.fill,
            s.payload,
            s.rate,
            s.backlog_max
        ),
    }
}

fn blind_spots(recording: &Recording) -> Vec<String> {
    let runs = || recording.scenarios.iter().flat_map(|scenario| &scenario.runs);
    let mut lines = vec![
        "A network: client and broker as far apart as the URL says, and no further.".to_owned(),
        "Other data: payloads are made up (distinct, 3.4 to 1 at zstd level 1 in batches of 100), ids are random UUIDs.".to_owned(),
        "Cost of others: CPU of PostgreSQL is of every process named `postgres` on the machine, its counters of the whole server.".to_owned(),
    ];
    if recording.scenarios.iter().any(|scenario| scenario.settings.seconds < 600.0) {
        lines.push(
            "Long runs, where windows are below ten minutes: checkpoints, autovacuum and retention hardly take part."
                .to_owned(),
        );
    }
    if recording.postgres.is_none() {
        lines.push(
            "PostgreSQL's settings, commits, WAL and fsyncs: it was not asked (`--postgres` says where it is)."
                .to_owned(),
        );
    }
    if runs().any(|run| run.broker_cpu_us.is_none()) {
        lines.push("CPU and memory of the broker: its process was not seen from here.".to_owned());
    }
    let busy = |run: &RunResult| run.core_percent(Some(run.client_cpu_us)).unwrap_or(0.0) > 90.0;
    if runs().any(busy) {
        lines.push("The broker's limit, where the client used over 90 % of a core: it is one thread.".to_owned());
    }
    lines
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::postgres::StoreCounts;
    use crate::result::{FORM, Machine};
    use crate::scenario::Scenario;
    use crate::tally::{Latencies, LatencyResult};

    pub fn recording(rates: &[u64]) -> Recording {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.record_ns(us * 1000));
        let run = |pushed: u64| RunResult {
            window_seconds: 10.0,
            pushed,
            broker_cpu_us: Some(8_000_000),
            postgres_cpu_us: Some(6_000_000),
            client_cpu_us: 4_000_000,
            calibration_ns: Some(500.0),
            store: Some(StoreCounts {
                commits: pushed / 1000,
                wal_bytes: pushed * 200,
                fsyncs: pushed / 2000,
                ..StoreCounts::default()
            }),
            push: LatencyResult::of(&latencies),
            ..RunResult::default()
        };
        Recording {
            form: FORM,
            date: "2026-11-29T12:00:00Z".into(),
            command: "queen-perf push-b100".into(),
            commit: "1a2b3c4".into(),
            machine: Machine { name: "m2".into(), cpu: "c".into(), cores: 2, memory_mb: 8000, kernel: "6".into() },
            url: "http://127.0.0.1:6632".into(),
            broker: "{}".into(),
            driver: Some("io_uring (5 rings, 1 epoll)".into()),
            settings: Some([("QUEEN_SHARDS".to_owned(), "2".to_owned())].into()),
            postgres: None,
            scenarios: vec![ScenarioResult {
                settings: Scenario { name: "push-b100".into(), ..Scenario::default() },
                runs: rates.iter().map(|&rate| run(rate * 10)).collect(),
            }],
        }
    }

    #[test]
    fn the_table_shows_the_run_in_the_middle() {
        let text = tables(&recording(&[500_000, 300_000, 400_000]));
        let row = text.lines().find(|line| line.contains("msg/s")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[3..6], ["400,000", "300,000", "500,000"]);
        let costs = ["broker", "PostgreSQL", "client", "sum"].map(|process| {
            let row = text.lines().find(|line| line.starts_with(&format!("| push-b100 | {process} "))).unwrap();
            row.split('|').nth(3).unwrap().trim()
        });
        assert_eq!(costs, ["2.00", "1.50", "1.00", "4.50"]);
        let broker = text.lines().find(|line| line.starts_with("| push-b100 | broker ")).unwrap();
        assert_eq!(broker.split('|').nth(4).unwrap().trim(), "4.00");
        let store = text.lines().find(|line| line.contains("message pushed")).unwrap();
        let cells: Vec<&str> = store.split('|').map(str::trim).collect();
        assert_eq!(cells[3..7], ["0.0010", "200", "0.0005", "1,000"]);
        assert!(!text.contains("FAILED"));
    }

    #[test]
    fn a_failed_run_marks_the_whole_result() {
        let mut recording = recording(&[1, 2]);
        recording.scenarios[0].runs[1].failures = 3;
        recording.scenarios[0].runs[1].failure_texts = vec!["push: 500".into()];
        assert!(tables(&recording).contains("FAILED push-b100 run 2: 3 failures\n    push: 500"));
        assert!(summary(&recording).contains("Not valid"));
    }

    #[test]
    fn a_record_reads_back_and_never_overwrites() {
        let root = std::env::temp_dir().join(format!("queen-perf-record-{}", std::process::id()));
        let first = record(&recording(&[7]), &root).unwrap();
        let second = record(&recording(&[8]), &root).unwrap();
        assert!(first.ends_with("2026-11-29-m2-1a2b3c4") && second.ends_with("2026-11-29-m2-1a2b3c4-2"));
        let text = fs::read_to_string(first.join("run.json")).unwrap();
        let again: Recording = serde_json::from_str(&text).unwrap();
        assert_eq!(again.scenarios[0].runs, recording(&[7]).scenarios[0].runs);
        let summary = fs::read_to_string(first.join("summary.md")).unwrap();
        assert!(summary.contains("## What it does not show") && summary.contains("`QUEEN_SHARDS=2`"));
        assert!(fs::read_to_string(first.join("plots.html")).unwrap().contains("<svg"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,568"],
            [0.0, 999.0, 1000.0, 1_234_567.8].map(thousands).each_ref().map(|s| s.as_str())
        );
    }
}
