//! A ratio with its uncertainty, from pairs of values measured next to each other.
//!
//! The logarithms of the pairs' ratios are taken as a sample of a normal distribution: the ratio is the exponential of
//! their mean, and its 95 % interval is Student's. What both of a pair share (a slow hour of the machine, a neighbour)
//! falls out; what they do not share widens the interval. Few pairs make it wide: two say next to nothing.

/// Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond the last the normal one, near enough.
const T95: &[f64] = &[
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    /// Both ends of the interval; None of a single pair.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// B / A of pairs (A, B). None: no pair, or a value that is not above zero.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        if pairs.is_empty() || pairs.iter().any(|&(a, b)| a <= 0.0 || b <= 0.0) {
            return None;
        }
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let interval = (logs.len() > 1).then(|| {
            let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let half = T95.get(logs.len() - 2).unwrap_or(&1.96) * (variance / n).sqrt();
            ((mean - half).exp(), (mean + half).exp())
        });
        Some(Ratio { ratio: mean.exp(), interval })
    }

    /// Whether the difference is more than noise, and which way.
    pub fn verdict(&self, more_is_better: bool) -> &'static str {
        match self.interval {
            None => "one pair: noise unknown",
            Some((low, high)) if low <= 1.0 && 1.0 <= high => "within noise",
            Some((low, _)) if (low > 1.0) == more_is_better => "better",
            Some(_) => "worse",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pair_shares_falls_out() {
        // The machine halves its speed between the pairs; B is twice A in each.
        let ratio = Ratio::of(&[(100.0, 200.0), (50.0, 100.0), (10.0, 20.0)]).unwrap();
        assert!((ratio.ratio - 2.0).abs() < 1e-9, "{ratio:?}");
        assert_eq!((ratio.verdict(true), ratio.verdict(false)), ("better", "worse"));
    }

    #[test]
    fn the_interval_is_students() {
        // Logarithms 0.1 and 0.3: mean 0.2, deviation 0.1414, half width 12.706 * 0.1.
        let ratio = Ratio::of(&[(1.0, 0.1f64.exp()), (1.0, 0.3f64.exp())]).unwrap();
        let (low, high) = ratio.interval.unwrap();
        assert!((low.ln() - (0.2 - 1.2706)).abs() < 1e-9 && (high.ln() - (0.2 + 1.2706)).abs() < 1e-9);
        assert_eq!(ratio.verdict(true), "within noise");
    }

    #[test]
    fn a_difference_that_one_pair_contradicts_is_noise() {
        let ratio = Ratio::of(&[(100.0, 110.0), (100.0, 95.0), (100.0, 108.0), (100.0, 101.0)]).unwrap();
        assert_eq!(ratio.verdict(true), "within noise");
    }

    #[test]
    fn without_pairs_or_with_zeros_there_is_no_ratio() {
        assert_eq!(Ratio::of(&[]), None);
        assert_eq!(Ratio::of(&[(0.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(2.0, 1.0)]).unwrap().verdict(true), "one pair: noise unknown");
    }
}
