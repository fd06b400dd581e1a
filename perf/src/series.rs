//! How a run went over time: what happened between one reading and the next, at most 600 of them.

use serde::{Deserialize, Serialize};

const SAMPLES_MAX: f64 = 600.0;

/// One stretch of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds of the window at its end.
    pub at: f64,
    pub pushed_rate: f64,
    pub popped_rate: f64,
    /// Share of one core in percent; absent when the broker is not on this machine.
    pub broker_percent: Option<f64>,
    pub broker_rss_kb: Option<u64>,
}

pub struct Series {
    samples: Vec<Sample>,
    every: f64,
    /// Of the last reading: when, messages pushed, popped, CPU microseconds.
    last: Option<(f64, u64, u64, Option<u64>)>,
}

impl Series {
    /// `seconds`: how long the window will be.
    pub fn new(seconds: f64) -> Series {
        Series { samples: Vec::new(), every: (seconds / SAMPLES_MAX).max(0.5), last: None }
    }

    /// Hears the totals at a moment; `glanced`: CPU microseconds and kilobytes of the broker.
    pub fn add(&mut self, at: f64, pushed: u64, popped: u64, glanced: Option<(u64, u64)>) {
        let cpu = glanced.map(|(cpu, _)| cpu);
        let Some((then, pushed_then, popped_then, cpu_then)) = self.last else {
            self.last = Some((at, pushed, popped, cpu));
            return;
        };
        let seconds = at - then;
        if seconds < self.every {
            return;
        }
        let used = cpu.zip(cpu_then).map(|(now, then)| now.saturating_sub(then) as f64);
        self.samples.push(Sample {
            at,
            pushed_rate: (pushed - pushed_then) as f64 / seconds,
            popped_rate: (popped - popped_then) as f64 / seconds,
            broker_percent: used.map(|us| us / 1e4 / seconds),
            broker_rss_kb: glanced.map(|(_, kb)| kb),
        });
        self.last = Some((at, pushed, popped, cpu));
    }

    pub fn take(self) -> Vec<Sample> {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_and_nothing_of_it_is_lost() {
        let mut series = Series::new(6000.0);
        for second in 0..=6000u64 {
            series.add(second as f64, second * 100, second * 50, Some((second * 10_000, 7)));
        }
        let samples = series.take();
        assert_eq!(samples.len(), 600);
        let want = Sample {
            at: 10.0,
            pushed_rate: 100.0,
            popped_rate: 50.0,
            broker_percent: Some(1.0),
            broker_rss_kb: Some(7),
        };
        assert_eq!(samples[0], want);
    }
}
