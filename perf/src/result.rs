//! The form of a result: `run.json`. Figures are per run, so that a reader can judge the spread.

use crate::load::Measured;
use crate::postgres::StoreCounts;
use crate::scenario::{Budget, Kind, Scenario};
use crate::series::Sample;
use crate::tally::LatencyResult;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Grows when a field changes its meaning. 2: histograms in HdrHistogram's own form.
pub const FORM: u32 = 2;

/// Everything one call of `queen-perf` measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    pub form: u32,
    /// UTC, `2026-11-29T19:17:56Z`.
    pub date: String,
    pub command: String,
    /// Of the checkout the client ran in; ends with `-dirty` when it was changed.
    pub commit: String,
    pub machine: Machine,
    pub url: String,
    /// What the broker's `/health` answered.
    pub broker: String,
    /// `io_uring` or `epoll`, by the descriptors the broker held. Absent: it was not seen from here.
    #[serde(default)]
    pub driver: Option<String>,
    /// The broker's settings, as far as its environment says and they are no secrets.
    #[serde(default)]
    pub settings: Option<BTreeMap<String, String>>,
    /// PostgreSQL's. Absent: it was not asked.
    #[serde(default)]
    pub postgres: Option<BTreeMap<String, String>>,
    pub scenarios: Vec<ScenarioResult>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_mb: u64,
    pub kernel: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioResult {
    pub settings: Scenario,
    pub runs: Vec<RunResult>,
}

/// One run. Absent: not seen, or nothing of the kind happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    pub window_seconds: f64,
    pub push_requests: u64,
    pub pushed: u64,
    pub pop_requests: u64,
    pub empty_pops: u64,
    pub popped: u64,
    pub ack_requests: u64,
    /// Messages left in the queue after the drain.
    pub left: u64,
    /// Processor time in the window.
    pub broker_cpu_us: Option<u64>,
    pub postgres_cpu_us: Option<u64>,
    pub client_cpu_us: u64,
    pub machine_cpu_us: Option<u64>,
    pub steal_us: Option<u64>,
    /// At the end of the window.
    pub broker_rss_kb: Option<u64>,
    /// Once the queue was deleted and the broker had settled.
    pub deleted_rss_kb: Option<u64>,
    /// What PostgreSQL did in the window.
    pub store: Option<StoreCounts>,
    /// CPU of a message of the calibration loop, beside this run.
    pub calibration_ns: Option<f64>,
    pub push: Option<LatencyResult>,
    pub pop: Option<LatencyResult>,
    pub ack: Option<LatencyResult>,
    pub end_to_end: Option<LatencyResult>,
    pub failures: u64,
    /// Up to eight different texts.
    pub failure_texts: Vec<String>,
    /// How the window went; empty when it was short.
    pub series: Vec<Sample>,
}

/// One figure of a run, with how to read it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub more_is_better: bool,
}

impl RunResult {
    pub fn of(measured: &Measured) -> RunResult {
        let Measured { tally, before, after, .. } = measured;
        let used = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
        RunResult {
            window_seconds: measured.window_seconds,
            push_requests: tally.push_requests,
            pushed: tally.pushed,
            pop_requests: tally.pop_requests,
            empty_pops: tally.empty_pops,
            popped: tally.popped,
            ack_requests: tally.ack_requests,
            left: measured.left,
            broker_cpu_us: used(before.broker_us, after.broker_us),
            postgres_cpu_us: used(before.postgres_us, after.postgres_us),
            client_cpu_us: after.client_us.saturating_sub(before.client_us),
            machine_cpu_us: used(before.machine_us, after.machine_us),
            steal_us: used(before.steal_us, after.steal_us),
            broker_rss_kb: after.broker_rss_kb,
            deleted_rss_kb: None,
            store: measured.store,
            calibration_ns: None,
            push: LatencyResult::of(&tally.push),
            pop: LatencyResult::of(&tally.pop),
            ack: LatencyResult::of(&tally.ack),
            end_to_end: LatencyResult::of(&tally.end_to_end),
            failures: tally.failures,
            failure_texts: tally.failure_texts.clone(),
            series: measured.series.clone(),
        }
    }

    pub fn pushed_rate(&self) -> f64 {
        per(self.pushed as f64, self.window_seconds)
    }

    pub fn popped_rate(&self) -> f64 {
        per(self.popped as f64, self.window_seconds)
    }

    /// Share of one core, in percent, of processor time in the window.
    pub fn core_percent(&self, cpu_us: Option<u64>) -> Option<f64> {
        cpu_us.map(|us| per(us as f64 / 1e4, self.window_seconds))
    }

    /// Messages that went the whole way the scenario asks for.
    fn messages(&self, settings: &Scenario) -> u64 {
        if settings.consumers > 0 { self.popped } else { self.pushed }
    }

    /// Processor time of broker, PostgreSQL and client, where all were seen.
    pub fn cpu_us(&self) -> Option<u64> {
        Some(self.broker_cpu_us? + self.postgres_cpu_us? + self.client_cpu_us)
    }

    /// Processor time per message, as a multiple of a message of the calibration loop.
    pub fn calibrated(&self, settings: &Scenario, cpu_us: Option<u64>) -> Option<f64> {
        Some(self.per_message(settings, cpu_us)? * 1000.0 / self.calibration_ns?)
    }

    /// So much of something per message.
    pub fn each(&self, settings: &Scenario, amount: u64) -> f64 {
        amount as f64 / self.messages(settings).max(1) as f64
    }

    /// Microseconds of processor time per message.
    pub fn per_message(&self, settings: &Scenario, cpu_us: Option<u64>) -> Option<f64> {
        let messages = self.messages(settings);
        (messages > 0).then_some(cpu_us? as f64 / messages as f64)
    }

    /// The latencies this run has, by name.
    pub fn latencies(&self) -> impl Iterator<Item = (&'static str, &LatencyResult)> {
        [("push", &self.push), ("pop", &self.pop), ("ack", &self.ack), ("end to end", &self.end_to_end)]
            .into_iter()
            .filter_map(|(name, latency)| Some((name, latency.as_ref()?)))
    }

    /// The figure a scenario of this kind is about.
    pub fn main_figure(&self, settings: &Scenario) -> Figure {
        let figure = |name, value, more_is_better| Figure { name, value, more_is_better };
        match settings.kind {
            Kind::Push => figure("msg/s", self.pushed_rate(), true),
            Kind::Pop => figure("msg/s", self.popped_rate(), true),
            Kind::Transaction => figure("bundles/s", self.pushed_rate(), true),
            Kind::PushPop => {
                let popped = self.popped_rate() / settings.deliveries().max(1) as f64;
                figure("msg/s each way", popped.min(self.pushed_rate()), true)
            }
            Kind::Latency if settings.consumers > 0 => {
                figure("p50 us end to end", self.end_to_end.as_ref().map_or(0.0, |l| l.p50_us as f64), false)
            }
            Kind::Latency => figure("p50 us push", self.push.as_ref().map_or(0.0, |l| l.p50_us as f64), false),
            Kind::Parked => figure("broker % of a core", self.core_percent(self.broker_cpu_us).unwrap_or(0.0), false),
            Kind::Idle => figure("broker RSS MB", self.broker_rss_kb.unwrap_or(0) as f64 / 1024.0, false),
        }
    }

    /// Every figure that two results are compared by.
    pub fn figures(&self, settings: &Scenario) -> Vec<Figure> {
        let mut all = vec![self.main_figure(settings)];
        let mut less = |name, value: Option<f64>| {
            all.extend(value.map(|value| Figure { name, value, more_is_better: false }));
        };
        less("CPU us/msg broker", self.per_message(settings, self.broker_cpu_us));
        less("CPU us/msg PostgreSQL", self.per_message(settings, self.postgres_cpu_us));
        less("CPU us/msg client", self.per_message(settings, Some(self.client_cpu_us)));
        less("CPU us/msg sum", self.per_message(settings, self.cpu_us()));
        if let Some(store) = self.store.filter(|_| self.messages(settings) > 0) {
            less("commits/msg", Some(self.each(settings, store.commits)));
            less("WAL B/msg", Some(self.each(settings, store.wal_bytes)));
            less("fsyncs/msg", Some(self.each(settings, store.fsyncs)));
        }
        if settings.kind != Kind::Idle {
            less("broker RSS MB", self.broker_rss_kb.map(|kb| kb as f64 / 1024.0));
        }
        for (name, latency) in self.latencies() {
            let [p50, p90, p99, p999] = match name {
                "push" => ["push p50 us", "push p90 us", "push p99 us", "push p99.9 us"],
                "pop" => ["pop p50 us", "pop p90 us", "pop p99 us", "pop p99.9 us"],
                "ack" => ["ack p50 us", "ack p90 us", "ack p99 us", "ack p99.9 us"],
                _ => ["end to end p50 us", "end to end p90 us", "end to end p99 us", "end to end p99.9 us"],
            };
            less(p50, Some(latency.p50_us as f64));
            less(p90, Some(latency.p90_us as f64));
            less(p99, Some(latency.p99_us as f64));
            less(p999, Some(latency.p999_us as f64));
        }
        all
    }
}

impl ScenarioResult {
    pub fn failed(&self) -> bool {
        self.runs.iter().any(|run| run.failures > 0)
    }

    /// The run in the middle by the main figure; of an even number the lower one.
    pub fn median_run(&self) -> &RunResult {
        let mut order: Vec<&RunResult> = self.runs.iter().collect();
        let value = |run: &RunResult| run.main_figure(&self.settings).value;
        order.sort_by(|a, b| value(a).total_cmp(&value(b)));
        order[(order.len() - 1) / 2]
    }

    /// What broke the budget: a text for each process that needed more than it may in every run.
    ///
    /// The best run counts: noise only makes dearer. Empty without a budget.
    pub fn over_budget(&self) -> Vec<String> {
        let Some(Budget { broker, postgres }) = self.settings.budget else { return Vec::new() };
        let best = |cpu: fn(&RunResult) -> Option<u64>| {
            let values = self.runs.iter().map(|run| run.calibrated(&self.settings, cpu(run)));
            values.collect::<Option<Vec<f64>>>().map(|all| all.into_iter().fold(f64::INFINITY, f64::min))
        };
        let judge = |process: &str, best: Option<f64>, most: f64| {
            let name = &self.settings.name;
            match best {
                None => Some(format!("{name}: CPU per message of {process} was not seen")),
                Some(best) if best > most => Some(format!(
                    "{name}: {process} needs {best:.2} calibration messages of CPU per message, the budget is {most:.2}"
                )),
                Some(_) => None,
            }
        };
        let processes = [
            judge("the broker", best(|run| run.broker_cpu_us), broker),
            judge("PostgreSQL", best(|run| run.postgres_cpu_us), postgres),
        ];
        processes.into_iter().flatten().collect()
    }

    /// Lowest and highest of the main figure.
    pub fn range(&self) -> (f64, f64) {
        let values = self.runs.iter().map(|run| run.main_figure(&self.settings).value);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    }
}

/// Per second; 0 for a window too short to say anything, as of a run that failed at once.
fn per(amount: f64, seconds: f64) -> f64 {
    if seconds >= 0.01 { amount / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(broker_us: &[u64], budget: Option<Budget>) -> ScenarioResult {
        let run = |&us: &u64| RunResult {
            window_seconds: 1.0,
            pushed: 1000,
            broker_cpu_us: Some(us),
            postgres_cpu_us: Some(1000),
            calibration_ns: Some(500.0),
            ..RunResult::default()
        };
        let settings = Scenario { name: "s".into(), budget, ..Scenario::default() };
        ScenarioResult { settings, runs: broker_us.iter().map(run).collect() }
    }

    #[test]
    fn the_best_run_is_held_to_the_budget() {
        let budget = Some(Budget { broker: 6.0, postgres: 2.5 });
        assert_eq!(result(&[4000, 3000], budget).over_budget(), Vec::<String>::new()); // 8 and 6 calibration messages.
        let over = result(&[4000, 3100], budget).over_budget();
        assert_eq!(over, ["s: the broker needs 6.20 calibration messages of CPU per message, the budget is 6.00"]);
        assert_eq!(result(&[9000], None).over_budget(), Vec::<String>::new());
        let mut unseen = result(&[1], budget);
        unseen.runs[0].postgres_cpu_us = None;
        assert_eq!(unseen.over_budget(), ["s: CPU per message of PostgreSQL was not seen"]);
    }

    #[test]
    fn deliveries_to_groups_are_one_rate() {
        let settings = Scenario { kind: Kind::PushPop, consumers: 10, groups: 10, ..Scenario::default() };
        let run = RunResult { window_seconds: 1.0, pushed: 100, popped: 950, ..RunResult::default() };
        assert_eq!(run.main_figure(&settings).value, 95.0);
    }
}
