//! Reading rules: one place turns the text of a variable into a value, and remembers what holds and what was wrong.
//!
//! Source: operations 1.1.

use super::settings::{Kind, Setting, rows};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

/// The variables of one boot, and what became of them.
pub struct Reader<'a> {
    vars: &'a BTreeMap<String, String>,
    /// Value in force of each setting that was read, as printed at boot.
    pub in_force: HashMap<&'static str, String>,
    /// Everything that forbids a start, in the order it was met.
    pub fatal: Vec<String>,
    /// Numbers that did not parse.
    pub unread: Vec<String>,
    /// Target and text of what is said at every boot.
    pub warnings: Vec<(&'static str, String)>,
}

impl<'a> Reader<'a> {
    pub fn new(vars: &'a BTreeMap<String, String>) -> Reader<'a> {
        Reader { vars, in_force: HashMap::new(), fatal: Vec::new(), unread: Vec::new(), warnings: Vec::new() }
    }

    /// The text of a variable, present or not; no row needed.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.vars.get(name).map(String::as_str)
    }

    /// The text of a variable unless it is unset or empty.
    pub fn filled(&self, name: &str) -> Option<&'a str> {
        self.raw(name).filter(|text| !text.is_empty())
    }

    /// Says so at every boot, as a warning.
    pub fn warn(&mut self, target: &'static str, text: impl Into<String>) {
        self.warnings.push((target, text.into()));
    }

    /// Notes what is in force where that is not simply the text that was read.
    pub fn holds(&mut self, name: &'static str, value: impl Display) {
        self.in_force.insert(name, value.to_string());
    }

    pub fn bool(&mut self, name: &'static str) -> bool {
        let Kind::Bool(default) = row(name).kind else { panic!("{name} is not a boolean setting") };
        let value = match self.raw(name).map(str::trim) {
            None | Some("") => default,
            Some(text) => parse_bool(text).unwrap_or_else(|| {
                let text = self.raw(name).unwrap_or_default();
                self.fatal
                    .push(format!("{name}=\"{text}\" is not a boolean (expected true/false, 1/0, yes/no, on/off)"));
                default
            }),
        };
        self.holds(name, value);
        value
    }

    pub fn int(&mut self, name: &'static str) -> i64 {
        let (default, min, max, strict) = match row(name).kind {
            Kind::Int { default, min, max } => (default, min, max, false),
            Kind::StrictInt { default, min, max } => (default, min, max, true),
            _ => panic!("{name} is not a number setting"),
        };
        let value = match self.raw(name).map(str::trim) {
            None | Some("") => default,
            Some(text) => match parse_int(text, min) {
                Some(n) if strict && !(min..=max).contains(&n) => {
                    self.fatal.push(format!("{name}={n} is out of range (expected {min}..{max})"));
                    default
                }
                Some(n) => n.clamp(min, max),
                None if strict => {
                    self.fatal.push(format!("{name}=\"{text}\" is not a number (expected {min}..{max})"));
                    default
                }
                None => {
                    self.unread.push(format!("{name} ({default} is used)"));
                    default
                }
            },
        };
        self.holds(name, value);
        value
    }

    pub fn float(&mut self, name: &'static str) -> f64 {
        let Kind::Float { default, min, max } = row(name).kind else { panic!("{name} is not a float setting") };
        let value = match self.raw(name).map(str::trim) {
            None | Some("") => default,
            Some(text) => match text.parse::<f64>() {
                Ok(n) if n.is_finite() => n.clamp(min, max),
                _ => {
                    self.unread.push(format!("{name} ({default} is used)"));
                    default
                }
            },
        };
        self.holds(name, value);
        value
    }

    /// Text; present but empty stays empty.
    pub fn text(&mut self, name: &'static str) -> String {
        let (default, secret) = match row(name).kind {
            Kind::Text(default) => (default, false),
            Kind::Secret(default) => (default, true),
            _ => panic!("{name} is not a text setting"),
        };
        let value = self.raw(name).unwrap_or(default).to_owned();
        let shown = if secret { masked(&value) } else { value.clone() };
        self.holds(name, shown);
        value
    }

    /// Reads a setting whose value nothing uses (yet) unless that was done, for its fatal rules and the boot print.
    pub fn check(&mut self, setting: &'static Setting) {
        if self.in_force.contains_key(setting.name) {
            return;
        }
        match setting.kind {
            Kind::Bool(_) => drop(self.bool(setting.name)),
            Kind::Int { .. } | Kind::StrictInt { .. } => drop(self.int(setting.name)),
            Kind::Float { .. } => drop(self.float(setting.name)),
            Kind::Text(_) | Kind::Secret(_) => drop(self.text(setting.name)),
        }
    }
}

/// How a secret is printed. Source: operations 1.1.8.
pub fn masked(secret: &str) -> String {
    match secret.chars().count() {
        0 => "<unset>".to_owned(),
        n => format!("<set:{n} chars>"),
    }
}

/// `None`: not a boolean. Blank text is the caller's default.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A negative number where none can be is text that does not parse, as in the original.
fn parse_int(text: &str, min: i64) -> Option<i64> {
    text.parse::<i64>().ok().filter(|n| *n >= 0 || min < 0)
}

fn row(name: &str) -> &'static Setting {
    rows().find(|s| s.name == name).unwrap_or_else(|| panic!("{name} has no row in the settings"))
}
