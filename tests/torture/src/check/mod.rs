//! The rules C1 to C14, each a pure function over the history and the final drain.
//!
//! A rule says only what must hold whatever the network did: an unknown outcome may be either. Source: the reliability
//! goals, section 2; docs/torture.md has the table.

mod acks;
mod delivery;
mod ends;
mod pushes;
#[cfg(test)]
mod tests;
pub mod view;

use crate::history::{History, Micros};
use std::fmt;
use view::View;

/// One broken promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub rule: &'static str,
    pub text: String,
    /// When it showed.
    pub at: Option<Micros>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)?;
        self.at.map_or(Ok(()), |at| write!(f, " (at {:.3} s)", at as f64 / 1e6))
    }
}

pub(crate) struct Found {
    rule: &'static str,
    all: Vec<Violation>,
}

impl Found {
    fn add(&mut self, at: impl Into<Option<Micros>>, text: String) {
        self.all.push(Violation { rule: self.rule, text, at: at.into() });
    }
}

type Rule = fn(&View, &mut Found);

/// Every rule by its name.
pub(crate) const RULES: [(&str, Rule); 14] = [
    ("C1", pushes::nothing_acknowledged_is_lost),
    ("C2", pushes::nothing_is_invented),
    ("C3", pushes::no_duplicate_inside_the_window),
    ("C4", pushes::no_false_duplicate),
    ("C5", delivery::order),
    ("C6", delivery::no_gap),
    ("C7", delivery::leases_exclude_each_other),
    ("C8", acks::acks_are_true),
    ("C9", acks::nacks_are_true),
    ("C10", acks::transactions_are_whole),
    ("C11", ends::spool_adds_up),
    ("C12", delivery::nothing_comes_early),
    ("C13", ends::it_recovers),
    ("C14", ends::nothing_leaks),
];

/// Judges a history by every rule.
pub fn check(history: &History) -> Vec<Violation> {
    let view = View::of(history);
    RULES.iter().flat_map(|&(rule, judge)| run(rule, judge, &view)).collect()
}

fn run(rule: &'static str, judge: Rule, view: &View) -> Vec<Violation> {
    let mut found = Found { rule, all: Vec::new() };
    judge(view, &mut found);
    found.all
}
