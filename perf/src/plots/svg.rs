//! The little SVG that the plots need: scales, axes, lines. Numbers in, text out.

/// Maps values to pixels.
#[derive(Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// From zero to a round number not below `high`.
    pub fn linear(high: f64, from: f64, to: f64) -> Scale {
        let step = step(high);
        Scale { low: 0.0, high: (high / step).ceil().max(1.0) * step, from, to, log: false }
    }

    /// Whole decades around `low` to `high`, both above zero.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
        Scale { low, high: if high > low { high } else { low * 10.0 }, from, to, log: true }
    }

    pub fn at(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    pub fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades).map(|n| self.low * 10f64.powi(n)).collect();
        }
        let step = step(self.high);
        (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= self.high * 1.001).collect()
    }
}

/// 1, 2 or 5 times a power of ten that divides `high` into about five.
fn step(high: f64) -> f64 {
    if high <= 0.0 {
        return 1.0;
    }
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(power)
}

/// A number short enough for an axis: 250k, 1.5M, 0.02.
pub fn short(value: f64) -> String {
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value {
        _ if value >= 1e6 => trim(format!("{:.2}", value / 1e6)) + "M",
        _ if value >= 1e4 => trim(format!("{:.1}", value / 1e3)) + "k",
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 || value == 0.0 => trim(format!("{value:.2}")),
        _ => trim(format!("{value:.4}")),
    }
}

/// Text with what HTML would take for markup replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.body += &format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
    }

    /// `anchor`: `start`, `middle` or `end`.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = escape(text);
        self.body +=
            &format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    }

    /// `tip`: shown under the pointer.
    pub fn bar(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), tip: &str) {
        let (width, tip) = (width.max(0.5), escape(tip));
        self.body += &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"><title>{tip}</title></rect>"
        );
    }

    pub fn dot(&mut self, class: &str, (x, y): (f64, f64), tip: &str) {
        let tip = escape(tip);
        self.body +=
            &format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{tip}</title></circle>");
    }

    pub fn curve(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let tip = escape(tip);
        self.body +=
            &format!("<polyline class=\"{class}\" points=\"{}\"><title>{tip}</title></polyline>", points.join(" "));
    }

    pub fn render(&self, label: &str) -> String {
        let Svg { width, height, body } = self;
        let label = escape(label);
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">{body}</svg>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let scale = Scale::linear(381_000.0, 0.0, 100.0);
        assert_eq!(scale.ticks(), [0.0, 100_000.0, 200_000.0, 300_000.0, 400_000.0]);
        assert_eq!((scale.at(0.0), scale.at(400_000.0)), (0.0, 100.0));
        let scale = Scale::log(0.3, 47.0, 0.0, 30.0);
        assert_eq!(scale.ticks().iter().map(|tick| short(*tick)).collect::<Vec<_>>(), ["0.1", "1", "10", "100"]);
        assert!((scale.at(1.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 0.025, 1.0, 99.5, 8_000.0, 250_000.0, 1_500_000.0].map(short);
        assert_eq!(all, ["0", "0.025", "1", "99.5", "8000", "250k", "1.5M"]);
    }
}
