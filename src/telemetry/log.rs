//! Log lines on stdout, as text or as JSON, one `write` per line.
//!
//!     queen::info!("boot", "listening", address = addr, shards = 4);
//!     2026-11-29T10:15:00.123Z  INFO  boot  listening  address=127.0.0.1:6632  shards=4
//!
//! Holds: a line is at most `LINE_MAX` bytes, so that a pipe takes it whole or not at all; a pipe that is full loses
//! the line instead of stopping a shard, and the next line says how many were lost (`dropped`). Nothing is logged per
//! message or per request. Source: operations 5.5.

use std::cell::RefCell;
use std::fmt::{self, Display, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// PIPE_BUF of Linux: up to here a write to a pipe is atomic, and a pipe that polls writable takes it without waiting.
const LINE_MAX: usize = 4096;
/// One value; a database's error text may be longer than a line.
const VALUE_MAX: usize = 1024;
/// How long an ERROR line waits for a slow reader. It may be the last thing a broker says.
const ERROR_WAIT_MS: i32 = 200;

struct Logger {
    filter: Filter,
    json: bool,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Before [`init`], and where the filter cannot be read.
const DEFAULT_LEVEL: Level = Level::Info;

/// Sets filter and form, once; later calls do nothing.
pub fn init(filter: &str, json: bool) {
    let _ = LOGGER.set(Logger { filter: Filter::parse(filter), json });
}

/// Whether a line of `target` at `level` would be written.
pub fn enabled(level: Level, target: &str) -> bool {
    match LOGGER.get() {
        Some(logger) => level <= logger.filter.level(target),
        None => level <= DEFAULT_LEVEL,
    }
}

/// Writes one line unless the filter hides it. The macros below read better.
pub fn write(level: Level, target: &str, message: &dyn Display, fields: &[(&str, &dyn Display)]) {
    if !enabled(level, target) {
        return;
    }
    thread_local!(static LINE: RefCell<String> = const { RefCell::new(String::new()) });
    // A Display that logs while it is printed would meet its own buffer: give it another.
    LINE.with(|line| match line.try_borrow_mut() {
        Ok(mut line) => emit(&mut line, level, target, message, fields),
        Err(_) => emit(&mut String::new(), level, target, message, fields),
    });
}

/// Writes text as it is, for a person at a terminal.
pub fn print(text: &str) {
    put(text.as_bytes(), ERROR_WAIT_MS);
}

fn emit(line: &mut String, level: Level, target: &str, message: &dyn Display, fields: &[(&str, &dyn Display)]) {
    let json = LOGGER.get().is_some_and(|l| l.json);
    let dropped = DROPPED.swap(0, Relaxed);
    line.clear();
    format_line(line, json, now_micros(), level, target, message, fields, dropped);
    let wait = if level == Level::Error { ERROR_WAIT_MS } else { 0 };
    if !put(line.as_bytes(), wait) {
        DROPPED.fetch_add(dropped + 1, Relaxed);
    }
}

/// One write to stdout. False: nobody took it.
fn put(line: &[u8], wait_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: 1, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `poll` is one valid entry; `line` outlives the call. Both calls only report errors (EPIPE included:
    // Rust programs ignore SIGPIPE).
    unsafe {
        if libc::poll(&mut poll, 1, wait_ms) < 1 || poll.revents & libc::POLLOUT == 0 {
            return false;
        }
        libc::write(1, line.as_ptr().cast(), line.len()) == line.len() as isize
    }
}

#[allow(clippy::too_many_arguments)] // The parts of a line, all of them.
fn format_line(
    line: &mut String,
    json: bool,
    micros: i64,
    level: Level,
    target: &str,
    message: &dyn Display,
    fields: &[(&str, &dyn Display)],
    dropped: u64,
) {
    let name = level.name();
    if json {
        let _ = write!(
            line,
            "{{\"timestamp\":\"{}\",\"level\":\"{name}\",\"target\":\"{target}\",\"message\":",
            Utc(micros)
        );
        quoted(line, &clipped(message));
    } else {
        let _ = write!(line, "{}  {name}  {target}  ", Utc(micros));
        one_line(line, &clipped(message));
    }
    let last: (&str, &dyn Display) = ("dropped", &dropped);
    for (key, value) in fields.iter().chain((dropped > 0).then_some(&last)) {
        let before = line.len();
        let value = clipped(value);
        if json {
            let _ = write!(line, ",\"{key}\":");
            match is_json_scalar(&value) {
                true => line.push_str(&value),
                false => quoted(line, &value),
            }
        } else {
            let _ = write!(line, "  {key}=");
            let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
            if plain { line.push_str(&value) } else { quoted(line, &value) }
        }
        // Room for the closing brace and the newline.
        if line.len() > LINE_MAX - 2 {
            line.truncate(before);
            break;
        }
    }
    line.push_str(if json { "}\n" } else { "\n" });
}

/// The text of a value, cut at `VALUE_MAX` bytes.
fn clipped(value: &dyn Display) -> String {
    struct Clip(String);
    impl Write for Clip {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            let room = VALUE_MAX.saturating_sub(self.0.len());
            if s.len() <= room {
                self.0.push_str(s);
                return Ok(());
            }
            self.0.push_str(&s[..s.floor_char_boundary_at(room)]);
            self.0.push('…');
            Err(fmt::Error) // Enough: stop formatting.
        }
    }
    let mut clip = Clip(String::new());
    let _ = write!(clip, "{value}");
    clip.0
}

trait CharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}
impl CharBoundary for str {
    /// The last place at or before `at` where the text may be cut.
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|i| self.is_char_boundary(*i)).unwrap_or(0)
    }
}

/// Numbers and booleans go unquoted into JSON.
fn is_json_scalar(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let whole = digits.split_once('.').map_or(digits, |(whole, _)| whole);
    let number = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && digits.bytes().filter(|b| *b == b'.').count() <= 1
        && !digits.ends_with('.')
        && !whole.is_empty()
        && (whole == "0" || !whole.starts_with('0'))
        && digits.len() <= 15; // Exact in every reader.
    number || text == "true" || text == "false"
}

fn quoted(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            c if c.is_control() => drop(write!(line, "\\u{:04x}", c as u32)),
            c => line.push(c),
        }
    }
    line.push('"');
}

fn one_line(line: &mut String, text: &str) {
    line.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
}

fn now_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
}

/// A moment, microseconds since 1970, as RFC 3339 in UTC with milliseconds. For people; nothing decides on it.
pub struct Utc(pub i64);

impl Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, micros) = (self.0.div_euclid(86_400_000_000), self.0.rem_euclid(86_400_000_000));
        // Days to a civil date: eras of 400 years that begin on 1 March (Howard Hinnant's algorithm).
        let z = days + 719_468;
        let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
        let year = yoe + era * 400 + i64::from(month <= 2);
        let secs = micros / 1_000_000;
        let (h, m, s, ms) = (secs / 3600, secs / 60 % 60, secs % 60, micros / 1000 % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Off => "OFF",
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
            Level::Trace => "TRACE",
        }
    }
    fn parse(text: &str) -> Option<Level> {
        let all = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
        all.into_iter().find(|level| level.name().eq_ignore_ascii_case(text))
    }
}

/// `info,queen::pop=debug`: a default and levels of targets; `queen` means every target, bad syntax `info`.
#[derive(Debug, PartialEq)]
struct Filter {
    rest: Level,
    targets: Vec<(String, Level)>,
}

impl Filter {
    fn parse(text: &str) -> Filter {
        let plain = Filter { rest: DEFAULT_LEVEL, targets: Vec::new() };
        let mut filter = Filter { rest: DEFAULT_LEVEL, targets: Vec::new() };
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (target, level) = match part.split_once('=') {
                Some((target, level)) => (target.trim(), level.trim()),
                None if Level::parse(part).is_some() => ("queen", part),
                None => (part, "trace"), // A bare target means all of it, as in the original's filters.
            };
            let Some(level) = Level::parse(level) else { return plain };
            let name = target.strip_prefix("queen::").unwrap_or(target);
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:-".contains(&b)) {
                return plain;
            }
            match name {
                "queen" => filter.rest = level,
                name => filter.targets.push((name.to_owned(), level)),
            }
        }
        filter
    }
    fn level(&self, target: &str) -> Level {
        self.targets.iter().rev().find(|(name, _)| name == target).map_or(self.rest, |(_, level)| *level)
    }
}

/// Lets one line pass per period and counts the ones it held back. One gate per place that warns; shared by shards.
///
/// Source: operations 5.5 (10 s on hot paths, 30 s for cycle errors).
pub struct Gate {
    period_ms: u64,
    /// Milliseconds since the process's first gate, plus one; 0: never passed.
    last: AtomicU64,
    held: AtomicU64,
}

impl Gate {
    pub const fn new(period_ms: u64) -> Gate {
        Gate { period_ms, last: AtomicU64::new(0), held: AtomicU64::new(0) }
    }
    /// `Some(suppressed)`: log now, with that many held back since the last time.
    pub fn pass(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
        let last = self.last.load(Relaxed);
        let due = last == 0 || now >= last + self.period_ms;
        if due && self.last.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            return Some(self.held.swap(0, Relaxed));
        }
        self.held.fetch_add(1, Relaxed);
        None
    }
}

/// `log!(level, target, message, key = value, ...)`; values are anything with `Display`.
#[macro_export]
macro_rules! log {
    ($level:expr, $target:expr, $message:expr $(, $key:ident = $value:expr)* $(,)?) => {
        if $crate::telemetry::log::enabled($level, $target) {
            $crate::telemetry::log::write($level, $target, &$message, &[$((stringify!($key), &$value)),*])
        }
    };
}
#[macro_export]
macro_rules! error { ($($rest:tt)*) => { $crate::log!($crate::telemetry::log::Level::Error, $($rest)*) } }
#[macro_export]
macro_rules! warning { ($($rest:tt)*) => { $crate::log!($crate::telemetry::log::Level::Warn, $($rest)*) } }
#[macro_export]
macro_rules! info { ($($rest:tt)*) => { $crate::log!($crate::telemetry::log::Level::Info, $($rest)*) } }
#[macro_export]
macro_rules! debug { ($($rest:tt)*) => { $crate::log!($crate::telemetry::log::Level::Debug, $($rest)*) } }

/// A warning of one place at most every 10 s, with `suppressed=<n>`.
#[macro_export]
macro_rules! warning_gated {
    ($target:expr, $message:expr $(, $key:ident = $value:expr)* $(,)?) => {{
        static GATE: $crate::telemetry::log::Gate = $crate::telemetry::log::Gate::new(10_000);
        if let Some(suppressed) = GATE.pass() {
            $crate::warning!($target, $message $(, $key = $value)*, suppressed = suppressed)
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(json: bool, fields: &[(&str, &dyn Display)]) -> String {
        let mut line = String::new();
        format_line(&mut line, json, 1_700_000_000_123_456, Level::Info, "boot", &"it is\nup", fields, 0);
        line
    }

    #[test]
    fn a_text_line_has_time_level_target_message_and_fields() {
        let got = line(false, &[("port", &6632), ("why", &"two words"), ("none", &"")]);
        assert_eq!(got, "2023-11-14T22:13:20.123Z  INFO  boot  it is up  port=6632  why=\"two words\"  none=\"\"\n");
    }

    #[test]
    fn a_json_line_is_one_flat_object() {
        let got = line(true, &[("n", &-1.5), ("b", &true), ("id", &"007"), ("q", &"a\"b\u{1}")]);
        let json: serde_json::Value = serde_json::from_str(&got).unwrap();
        assert_eq!(json["timestamp"], "2023-11-14T22:13:20.123Z");
        assert_eq!(
            (&json["level"], &json["target"], &json["message"]),
            (&"INFO".into(), &"boot".into(), &"it is\nup".into())
        );
        assert_eq!((&json["n"], &json["b"], &json["id"]), (&(-1.5).into(), &true.into(), &"007".into()));
        assert_eq!(json["q"], "a\"b\u{1}");
        assert!(got.ends_with("}\n"));
    }

    #[test]
    fn a_line_never_exceeds_what_a_pipe_takes_whole() {
        let long = "ü\"".repeat(4000);
        for json in [false, true] {
            let got = line(json, &[("a", &long), ("b", &long), ("c", &long), ("d", &long), ("e", &long)]);
            assert!(got.len() <= LINE_MAX, "{}", got.len());
            if json {
                serde_json::from_str::<serde_json::Value>(&got).unwrap();
            }
        }
    }

    #[test]
    fn a_filter_names_targets_and_bad_syntax_means_info() {
        let filter = Filter::parse("warn,queen::pop=debug,push=off");
        assert_eq!(filter.level("pop"), Level::Debug);
        assert_eq!(filter.level("push"), Level::Off);
        assert_eq!(filter.level("boot"), Level::Warn);
        for bad in ["", "loud=very", "a b=info", "=debug"] {
            assert_eq!(Filter::parse(bad), Filter { rest: Level::Info, targets: vec![] }, "{bad}");
        }
        assert_eq!(Filter::parse("DEBUG").level("x"), Level::Debug);
    }

    #[test]
    fn a_gate_passes_once_and_counts_the_rest() {
        let gate = Gate::new(1_000_000);
        assert_eq!(gate.pass(), Some(0));
        assert_eq!((gate.pass(), gate.pass()), (None, None));
        let open = Gate::new(0);
        assert!(open.pass().is_some() && open.pass().is_some());
    }

    #[test]
    fn utc_knows_leap_days_and_times_before_1970() {
        assert_eq!(Utc(951_782_400_000_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Utc(-1).to_string(), "1969-12-31T23:59:59.999Z");
        assert_eq!(Utc(4_107_542_400_000_000).to_string(), "2100-03-01T00:00:00.000Z");
    }
}
