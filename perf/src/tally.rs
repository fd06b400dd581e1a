//! What one run counted: answers inside the window, latencies, and everything that went wrong.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// Failures kept as text; the rest only counts.
const FAILURE_TEXTS_MAX: usize = 8;
/// A run with so many failures is over: more of them would not say more.
pub const FAILURES_MAX: u64 = 1000;

/// Latencies in microseconds, three significant digits, kept whole.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        let longest_us = 3_600_000_000; // An hour: no answer is waited for longer.
        Latencies(Histogram::new_with_bounds(1, longest_us, 3).expect("constant bounds are sound"))
    }
}

impl Latencies {
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record((ns / 1000).max(1));
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Microseconds at a quantile of 0 to 1; 0 when nothing was recorded.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The whole histogram in HdrHistogram's own form (V2, deflated, base64), which other tools read.
    pub fn to_text(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.0, &mut bytes).expect("a histogram fits memory");
        STANDARD.encode(bytes)
    }

    /// Reads what `to_text` wrote, and the `us:count` pairs of results of form 1.
    pub fn from_text(text: &str) -> Option<Latencies> {
        if !text.contains(':') {
            let bytes = STANDARD.decode(text).ok()?;
            return Some(Latencies(Deserializer::new().deserialize(&mut &bytes[..]).ok()?));
        }
        let mut all = Latencies::default();
        for part in text.split_ascii_whitespace() {
            let (us, count) = part.split_once(':')?;
            all.0.record_n(us.parse().ok()?, count.parse().ok()?).ok()?;
        }
        Some(all)
    }
}

/// A latency line of a result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    pub count: u64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// See `Latencies::to_text`.
    pub histogram: String,
}

impl LatencyResult {
    /// None when nothing was recorded.
    pub fn of(latencies: &Latencies) -> Option<LatencyResult> {
        (latencies.count() > 0).then(|| LatencyResult {
            count: latencies.count(),
            p50_us: latencies.at(0.5),
            p90_us: latencies.at(0.9),
            p99_us: latencies.at(0.99),
            p999_us: latencies.at(0.999),
            max_us: latencies.max(),
            histogram: latencies.to_text(),
        })
    }
}

/// Counts of one run. `*_requests` and messages count in the window only.
#[derive(Default)]
pub struct Tally {
    pub push_requests: u64,
    pub pushed: u64,
    pub pop_requests: u64,
    pub empty_pops: u64,
    pub popped: u64,
    pub ack_requests: u64,
    pub push: Latencies,
    pub pop: Latencies,
    pub ack: Latencies,
    pub end_to_end: Latencies,
    pub failures: u64,
    pub failure_texts: Vec<String>,
}

impl Tally {
    /// Counts a failure; one text of each kind is kept.
    pub fn fail(&mut self, text: String) {
        self.failures += 1;
        if self.failure_texts.len() < FAILURE_TEXTS_MAX && !self.failure_texts.contains(&text) {
            self.failure_texts.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_its_text() {
        let mut all = Latencies::default();
        for n in 1..5000u64 {
            all.record_ns(n * n * 1000);
        }
        let again = Latencies::from_text(&all.to_text()).unwrap();
        assert_eq!(again.count(), all.count());
        for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(again.at(quantile), all.at(quantile));
        }
        assert_eq!(Latencies::from_text("10:2 30:1").map(|old| (old.count(), old.at(1.0))), Some((3, 30)));
        for bad in ["1:x", "HISTF", "%"] {
            assert!(Latencies::from_text(bad).is_none(), "{bad}");
        }
        assert_eq!(LatencyResult::of(&Latencies::default()), None);
    }

    #[test]
    fn failures_count_but_their_texts_are_bounded() {
        let mut tally = Tally::default();
        for n in 0..100 {
            tally.fail(format!("failure {}", n % 50));
        }
        assert_eq!((tally.failures, tally.failure_texts.len()), (100, FAILURE_TEXTS_MAX));
    }
}
