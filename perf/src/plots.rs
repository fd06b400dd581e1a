//! A result as a page to look at: one HTML file, drawings inline, nothing loaded from anywhere.
//!
//!     throughput of all scenarios · CPU per message of each process · of each scenario: latencies, and how it went
//!
//! Two recordings (a pairing) share every drawing: B is dashed, or hollow.

mod svg;

use crate::report::show;
use crate::result::{Recording, RunResult, ScenarioResult};
use crate::tally::Latencies;
use svg::{Scale, Svg, escape, short};

/// A recording and what it is called where there are two.
pub type Side<'a> = (&'a Recording, &'a str);

const WIDTH: f64 = 1080.0;
const CARD: (f64, f64) = (530.0, 270.0);
/// Room for the names in front of bars.
const NAMES: f64 = 250.0;
const ROW: f64 = 22.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #646c76; --grid: #e3e6ea; --paper: #fff; --c0: #2a6fdb; --c1: #d9730d; --c2: #7a828c; --c3: #1a9a6c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #9aa3ad; --grid: #30363d; --paper: #15181c; --c0: #6ea8fe; --c1: #ffab5c; --c2: #a5adb7; --c3: #4fd1a1; } }
body { margin: 2rem auto; padding: 0 1rem; max-width: 1100px; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; } h3 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
p { color: var(--soft); margin: .2rem 0 .8rem; max-width: 75ch; } code { overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--ink); } svg text.soft { fill: var(--soft); }
svg .t0 { fill: var(--c0); } svg .t1 { fill: var(--c1); } svg .t2 { fill: var(--c2); } svg .t3 { fill: var(--c3); }
.grid { stroke: var(--grid); } .range { stroke: var(--ink); stroke-width: 1.5; }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.h0, .h1, .h2, .h3 { fill: var(--paper); stroke-width: 2; } .h0 { stroke: var(--c0); } .h1 { stroke: var(--c1); } .h2 { stroke: var(--c2); } .h3 { stroke: var(--c3); }
.l0, .l1, .l2, .l3 { fill: none; stroke-width: 2; stroke-linejoin: round; } .l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); } .l3 { stroke: var(--c3); }
.second { stroke-dasharray: 5 4; } .bad { color: #c62828; font-weight: 600; }
";

/// The whole page. `sides`: one or two, of the same scenarios.
pub fn page(sides: &[Side]) -> String {
    let Some((first, _)) = sides.first() else { return String::new() };
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>queen-perf, {0}, commit {1}</title><style>{STYLE}</style>\n<h1>{0}, {2} cores, commit {1}</h1>\n\
         <p><code>{3}</code><br>{4}, {5} MB, Linux {6}</p>\n",
        escape(first.date.split('T').next().unwrap_or_default()),
        escape(&first.commit),
        first.machine.cores,
        escape(&first.command),
        escape(&first.machine.cpu),
        first.machine.memory_mb,
        escape(&first.machine.kernel),
    );
    for (recording, name) in sides {
        let driver = recording.driver.as_deref().unwrap_or("driver unknown");
        let name = if name.is_empty() { String::new() } else { format!("<b>{}</b>: ", escape(name)) };
        out += &format!("<p>{name}<code>{}</code>, {}</p>\n", escape(&recording.broker), escape(driver));
    }
    out += &throughput(sides);
    out += &cost(sides);
    for (n, scenario) in first.scenarios.iter().enumerate() {
        let of: Vec<(&ScenarioResult, &str)> =
            sides.iter().filter_map(|(recording, name)| Some((recording.scenarios.get(n)?, *name))).collect();
        out += &card(scenario, &of);
    }
    out + "</html>\n"
}

/// `push p99` of side B is `push p99 B`.
fn named(what: &str, side: &str) -> String {
    if side.is_empty() { what.to_owned() } else { format!("{what} {side}") }
}

/// Scenarios of all sides that have runs, next to their equals.
fn rows<'a>(sides: &[Side<'a>]) -> Vec<(&'a ScenarioResult, usize, &'a str)> {
    let count = sides.iter().map(|(recording, _)| recording.scenarios.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    for n in 0..count {
        for (side, (recording, name)) in sides.iter().enumerate() {
            rows.extend(recording.scenarios.get(n).filter(|s| !s.runs.is_empty()).map(|s| (s, side, *name)));
        }
    }
    rows
}

fn throughput(sides: &[Side]) -> String {
    let value = |scenario: &ScenarioResult| scenario.median_run().main_figure(&scenario.settings);
    let rows: Vec<_> = rows(sides).into_iter().filter(|(scenario, ..)| value(scenario).more_is_better).collect();
    let most = rows.iter().map(|(scenario, ..)| scenario.range().1).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let height = rows.len() as f64 * ROW + 30.0;
    let (mut svg, scale) = (Svg::new(WIDTH, height), Scale::linear(most, NAMES, WIDTH - 90.0));
    grid(&mut svg, scale, height);
    for (n, (scenario, side, name)) in rows.iter().enumerate() {
        let (y, figure) = (n as f64 * ROW + 4.0, value(scenario));
        let (low, high) = scenario.range();
        let tip = format!("{} {}, lowest {}, highest {}", show(figure.value), figure.name, show(low), show(high));
        svg.text("", (NAMES - 8.0, y + 12.0), "end", &named(&scenario.settings.name, name));
        svg.bar(if *side == 0 { "f0" } else { "h0" }, (NAMES, y), (scale.at(figure.value) - NAMES, 15.0), &tip);
        svg.line("range", (scale.at(low), y + 7.5), (scale.at(high), y + 7.5));
        svg.text("soft", (scale.at(high) + 6.0, y + 12.0), "start", &show(figure.value));
    }
    format!(
        "<h2>Throughput</h2><p>Messages (or bundles) per second, each way where there are consumers: the run in the middle; \
         the line goes from the lowest to the highest run.</p>{}\n",
        svg.render("throughput of each scenario")
    )
}

fn cost(sides: &[Side]) -> String {
    type Process = (&'static str, fn(&RunResult) -> Option<u64>);
    const PROCESSES: [Process; 3] = [
        ("broker", |run| run.broker_cpu_us),
        ("PostgreSQL", |run| run.postgres_cpu_us),
        ("client", |run| Some(run.client_cpu_us)),
    ];
    let costs = |scenario: &ScenarioResult| {
        let run = scenario.median_run();
        PROCESSES.map(|(_, cpu)| run.per_message(&scenario.settings, cpu(run)).filter(|us| *us > 0.0))
    };
    let rows: Vec<_> = rows(sides).into_iter().filter(|(scenario, ..)| costs(scenario)[0].is_some()).collect();
    let all: Vec<f64> = rows.iter().flat_map(|(scenario, ..)| costs(scenario)).flatten().collect();
    if all.is_empty() {
        return String::new();
    }
    let (low, high) = all.iter().fold((f64::INFINITY, 0f64), |(low, high), us| (low.min(*us), high.max(*us)));
    let height = rows.len() as f64 * ROW + 30.0;
    let (mut svg, scale) = (Svg::new(WIDTH, height), Scale::log(low, high, NAMES, WIDTH - 90.0));
    grid(&mut svg, scale, height);
    for (n, (scenario, side, name)) in rows.iter().enumerate() {
        let y = n as f64 * ROW + 11.0;
        svg.text("", (NAMES - 8.0, y + 4.0), "end", &named(&scenario.settings.name, name));
        for (p, us) in costs(scenario).into_iter().enumerate() {
            let Some(us) = us else { continue };
            let class = format!("{}{p}", if *side == 0 { 'f' } else { 'h' });
            svg.dot(&class, (scale.at(us), y), &format!("{} {} us per message", PROCESSES[p].0, show(us)));
        }
    }
    format!(
        "<h2>CPU per message</h2><p>Microseconds of each process per message, on a scale of powers of ten.</p>{}{}\n",
        legend(&PROCESSES.map(|(name, _)| name)),
        svg.render("CPU per message of each scenario")
    )
}

/// Vertical lines at the ticks, with their values below.
fn grid(svg: &mut Svg, scale: Scale, height: f64) {
    for tick in scale.ticks() {
        let x = scale.at(tick);
        svg.line("grid", (x, 0.0), (x, height - 22.0));
        svg.text("soft", (x, height - 6.0), "middle", &short(tick));
    }
}

fn legend(names: &[&str]) -> String {
    let mut svg = Svg::new(WIDTH, 22.0);
    for (n, name) in names.iter().enumerate() {
        let x = NAMES + n as f64 * 130.0;
        svg.dot(&format!("f{n}"), (x, 11.0), name);
        svg.text("", (x + 10.0, 15.0), "start", name);
    }
    svg.render("legend")
}

/// What one scenario shows beyond its bar.
fn card(scenario: &ScenarioResult, sides: &[(&ScenarioResult, &str)]) -> String {
    let drawings = [latencies(sides), course(sides)].concat();
    let failed = sides.iter().any(|(scenario, _)| scenario.failed());
    if drawings.is_empty() && !failed {
        return String::new();
    }
    let failed = if failed { "<p class=\"bad\">A run failed: not valid.</p>" } else { "" };
    let (name, about) = (escape(&scenario.settings.name), escape(&scenario.settings.about));
    format!("<h3>{name}</h3><p>{about}</p>{failed}<div class=\"pair\">{}</div>\n", drawings.join(""))
}

/// A drawing with both axes: the place of its title, its left, right, top and bottom.
struct Frame {
    svg: Svg,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn new(title: &str) -> Frame {
        let mut svg = Svg::new(CARD.0, CARD.1);
        svg.text("soft", (4.0, 14.0), "start", title);
        Frame { svg, left: 58.0, right: CARD.0 - 110.0, top: 26.0, bottom: CARD.1 - 24.0 }
    }

    fn horizontal_lines(&mut self, scale: Scale) {
        for tick in scale.ticks() {
            let y = scale.at(tick);
            self.svg.line("grid", (self.left, y), (self.right, y));
            self.svg.text("soft", (self.left - 6.0, y + 4.0), "end", &short(tick));
        }
    }

    /// Names at the right ends of curves, moved apart where they would cover each other.
    ///
    /// `ends`: height, number of the color, name.
    fn names(&mut self, mut ends: Vec<(f64, usize, String)>) {
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free = self.top;
        for (y, color, name) in ends {
            let y = y.max(free);
            self.svg.text(&format!("t{color}"), (self.right + 6.0, y + 4.0), "start", &name);
            free = y + 14.0;
        }
    }
}

/// Latency against how rare it is: each tick to the right is one more nine.
fn latencies(sides: &[(&ScenarioResult, &str)]) -> Vec<String> {
    const STEPS: u32 = 120;
    let mut curves = Vec::new();
    for (side, (scenario, name)) in sides.iter().enumerate().filter(|(_, (scenario, _))| !scenario.runs.is_empty()) {
        for (operation, latency) in scenario.median_run().latencies() {
            let color = ["push", "pop", "ack"].iter().position(|known| *known == operation).unwrap_or(3);
            let known = Latencies::from_text(&latency.histogram).filter(|all| all.count() > 1);
            curves.extend(known.map(|all| (color, second(side), named(operation, name), all)));
        }
    }
    let ms = |us: u64| us.max(1) as f64 / 1000.0;
    let nines = |all: &Latencies| (all.count() as f64).log10().min(5.0);
    let Some(most_nines) = curves.iter().map(|(.., all)| nines(all)).max_by(f64::total_cmp) else { return Vec::new() };
    let low = curves.iter().map(|(.., all)| ms(all.at(0.0))).fold(f64::INFINITY, f64::min);
    let high = curves.iter().map(|(.., all)| ms(all.max())).fold(0.0, f64::max);
    let mut frame = Frame::new("latency in ms, powers of ten; percentiles, one nine more each");
    let y = Scale::log(low, high, frame.bottom, frame.top);
    let at = |nine: f64, frame: &Frame| frame.left + nine / most_nines.max(1.0) * (frame.right - frame.left);
    frame.horizontal_lines(y);
    for (nine, label) in [(0.301, "p50"), (1.0, "p90"), (2.0, "p99"), (3.0, "p99.9"), (4.0, "p99.99"), (5.0, "p99.999")]
    {
        if nine <= most_nines {
            let x = at(nine, &frame);
            frame.svg.line("grid", (x, frame.top), (x, frame.bottom));
            frame.svg.text("soft", (x, frame.bottom + 16.0), "middle", label);
        }
    }
    let mut ends = Vec::new();
    for (color, second, name, all) in &curves {
        let points: Vec<(f64, f64)> = (0..=STEPS)
            .map(|step| nines(all) * f64::from(step) / f64::from(STEPS))
            .map(|nine| (at(nine, &frame), y.at(ms(all.at(1.0 - 10f64.powf(-nine))))))
            .collect();
        let tip = format!("{name}: p50 {} ms, p99 {} ms", show(ms(all.at(0.5))), show(ms(all.at(0.99))));
        ends.extend(points.last().map(|(_, y)| (*y, *color, name.clone())));
        frame.svg.curve(&format!("l{color}{second}"), &points, &tip);
    }
    frame.names(ends);
    vec![frame.svg.render("latency percentiles")]
}

/// How the window went: rates, and memory. Nothing for a run too short to have a course.
fn course(sides: &[(&ScenarioResult, &str)]) -> Vec<String> {
    const SAMPLES_MIN: usize = 5;
    type Line = (&'static str, usize, fn(&crate::series::Sample) -> Option<f64>);
    const RATES: [Line; 2] =
        [("pushed", 0, |sample| Some(sample.pushed_rate)), ("popped", 1, |sample| Some(sample.popped_rate))];
    const MEMORY: [Line; 1] = [("RSS", 3, |sample| Some(sample.broker_rss_kb? as f64 / 1024.0))];
    let drawing = |title: &str, lines: &[Line]| {
        let mut curves = Vec::new();
        for (side, (scenario, name)) in sides.iter().enumerate().filter(|(_, (s, _))| !s.runs.is_empty()) {
            let series = &scenario.median_run().series;
            for (line, color, value) in lines {
                let points: Vec<(f64, f64)> = series.iter().filter_map(|s| Some((s.at, value(s)?))).collect();
                if points.len() >= SAMPLES_MIN && points.iter().any(|(_, value)| *value > 0.0) {
                    curves.push((*color, second(side), named(line, name), points));
                }
            }
        }
        let points = || curves.iter().flat_map(|(.., points)| points);
        let seconds = points().map(|(at, _)| *at).fold(0.0, f64::max);
        let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
        if curves.is_empty() {
            return None;
        }
        let mut frame = Frame::new(title);
        let (x, y) = (Scale::linear(seconds, frame.left, frame.right), Scale::linear(most, frame.bottom, frame.top));
        frame.horizontal_lines(y);
        for tick in x.ticks() {
            frame.svg.text("soft", (x.at(tick), frame.bottom + 16.0), "middle", &format!("{} s", short(tick)));
        }
        let mut ends = Vec::new();
        for (color, second, name, points) in &curves {
            let points: Vec<(f64, f64)> = points.iter().map(|(at, value)| (x.at(*at), y.at(*value))).collect();
            ends.extend(points.last().map(|(_, y)| (*y, *color, name.clone())));
            frame.svg.curve(&format!("l{color}{second}"), &points, name);
        }
        frame.names(ends);
        Some(frame.svg.render(title))
    };
    let memory = drawing("broker's resident memory in MB over the window", &MEMORY);
    drawing("messages per second over the window", &RATES).into_iter().chain(memory).collect()
}

fn second(side: usize) -> &'static str {
    if side == 0 { "" } else { " second" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recording;
    use crate::series::Sample;

    /// Every element that is opened is closed, and nothing is loaded from anywhere.
    #[track_caller]
    fn check(page: &str) {
        for element in ["svg", "text", "title", "rect", "div", "h2", "h3", "p", "style"] {
            let opened = page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
            assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        assert!(!page.contains("http://") || !page.contains("src="), "nothing is loaded");
        assert!(!page.contains("NaN") && !page.contains("inf"), "every number is one");
    }

    #[test]
    fn a_recording_is_drawn() {
        let mut recording = recording(&[500_000, 300_000]);
        recording.broker = "<script>alert(1)</script>".into();
        for run in &mut recording.scenarios[0].runs {
            run.series = (1..10)
                .map(|n| Sample { at: f64::from(n), pushed_rate: 1e5, broker_rss_kb: Some(9000), ..Sample::default() })
                .collect();
        }
        let page = page(&[(&recording, "")]);
        check(&page);
        assert!(!page.contains("<script"));
        assert_eq!(page.matches("<svg").count(), 6, "throughput, legend, cost, latencies, rates, memory");
    }

    #[test]
    fn a_pairing_is_drawn_side_by_side() {
        let page = page(&[(&recording(&[100, 200, 300]), "A"), (&recording(&[200, 300, 400]), "B")]);
        check(&page);
        assert!(page.contains("push-b100 B") && page.contains("push B") && page.contains("l0 second"));
    }

    #[test]
    fn a_result_without_messages_is_a_page_too() {
        let mut empty = recording(&[]);
        check(&page(&[(&empty, "")]));
        empty.scenarios.clear();
        check(&page(&[(&empty, "")]));
    }
}
