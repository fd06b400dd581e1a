//! How often each fault is to strike in a campaign, beside how often it did. Source: reliability 6.

use crate::coverage::Counts;
use crate::faults::Family;
use std::fmt::Write;

/// A row: what is counted, by names of counters that add up, and the goal.
struct Goal {
    family: Family,
    what: &'static str,
    counters: &'static [&'static str],
    n: u64,
    /// What the table wants each of them to be and what they are not here: reaching `n` does not meet it.
    short_of: Option<&'static str>,
}

const fn goal(family: Family, what: &'static str, counters: &'static [&'static str], n: u64) -> Goal {
    Goal { family, what, counters, n, short_of: None }
}

const fn short(goal: Goal, of: &'static str) -> Goal {
    Goal { short_of: Some(of), ..goal }
}

const GOALS: [Goal; 40] = [
    goal(Family::F1, "random kills of a broker", &["fault:kill-broker"], 1000),
    goal(Family::F1, "crashes before a spool write", &["fault:crash-at-before-spool-write"], 20),
    goal(Family::F1, "crashes after a write, before its sync", &["fault:crash-at-spool-written"], 20),
    goal(Family::F1, "crashes after a sync, before its answer", &["fault:crash-at-spool-synced"], 20),
    goal(Family::F1, "crashes after a COMMIT was sent", &["fault:crash-at-commit-sent"], 20),
    goal(Family::F1, "crashes after its answer, before the client's", &["fault:crash-at-commit-answered"], 20),
    goal(Family::F1, "crashes between a drain's commit and its unlink", &["fault:crash-at-drain-committed"], 20),
    goal(Family::F1, "crashes in a rotation", &["fault:crash-at-spool-rotation"], 20),
    goal(Family::F1, "crashes while an earlier life's records drain", &["fault:crash-at-boot-drain"], 20),
    goal(Family::F1, "messages acknowledged", &["pushes queued", "items buffered"], 1_000_000),
    goal(Family::F2, "kills of the postmaster", &["fault:kill-postmaster"], 200),
    goal(Family::F2, "immediate stops", &["fault:immediate-stop"], 50),
    goal(Family::F2, "kills of one backend", &["fault:terminate-backend", "fault:crash-backend"], 2000),
    goal(Family::F3, "refusals by 25006", &["fault:refuse-25006"], 50),
    goal(Family::F3, "refusals by 57P03", &["fault:refuse-57P03"], 50),
    goal(Family::F3, "refusals by 53300", &["fault:refuse-53300"], 50),
    goal(Family::F3, "refusals by 53100", &["fault:refuse-53100"], 50),
    goal(Family::F3, "refusals by 40001", &["fault:refuse-40001"], 50),
    goal(Family::F3, "refusals by 40P01", &["fault:refuse-40P01"], 50),
    goal(Family::F3, "refusals by 57014", &["fault:refuse-57014"], 50),
    goal(Family::F4, "pauses of a broker", &["fault:pause-broker"], 150),
    goal(Family::F4, "pauses of PostgreSQL", &["fault:pause-postgres"], 100),
    goal(Family::F4, "pauses of clients", &["fault:pause-clients"], 150),
    goal(Family::F5, "spools filled and freed", &["fault:spool-at-cap"], 60),
    goal(Family::F9, "connections reset", &["fault:reset-clients", "fault:reset-database"], 20_000),
    goal(Family::F9, "black holes", &["fault:black-hole-clients", "fault:black-hole-database"], 200),
    goal(Family::F10, "answers of a COMMIT lost", &["fault:cut-commit", "fault:cut-commit-and-outage"], 2000),
    goal(Family::F10, "... of them with an outage beyond the window", &["fault:cut-commit-and-outage"], 500),
    goal(
        Family::F11,
        "parties cut off, 1 to 60 s",
        &["fault:cut-off-broker", "fault:cut-off-database", "fault:cut-off-one-of-two"],
        120,
    ),
    goal(Family::F12, "jumps of the brokers' clocks by 300 s", &["fault:jump-broker-clocks"], 100),
    goal(Family::F12, "turns of them by 5 s", &["fault:strobe-broker-clocks"], 100),
    goal(Family::F12, "jumps of the database's clock by 300 s", &["fault:jump-database-clock"], 100),
    goal(Family::F12, "turns of it by 5 s", &["fault:strobe-database-clock"], 100),
    goal(Family::F12, "stops of the brokers' clocks", &["fault:stop-broker-clocks"], 100),
    goal(Family::F12, "stops of the database's clock", &["fault:stop-database-clock"], 100),
    short(goal(Family::F14, "old snapshots held, 8 to 20 s", &["fault:hold-snapshot"], 3), "30 minutes each"),
    short(goal(Family::F14, "tables locked, 1 to 15 s", &["fault:lock-table"], 10), "60 s each"),
    short(goal(Family::F14, "rows locked, 1 to 15 s", &["fault:lock-row"], 10), "60 s each"),
    goal(Family::F16, "SIGTERM, then SIGKILL", &["fault:term-then-kill-broker"], 200),
    goal(Family::F17, "rolling restarts", &["fault:rolling-restart"], 50),
];

/// As Markdown, the rows of these families. `clean`: nothing was violated, so that n bounds a rate.
pub fn text(counts: &Counts, families: &[Family], clean: bool) -> String {
    let mut out = String::new();
    let rows: Vec<&Goal> = GOALS.iter().filter(|goal| families.contains(&goal.family)).collect();
    if rows.is_empty() {
        return out;
    }
    out += "## Goals\n\nHow often each fault struck, beside what reliability 6 wants of a full campaign.\n\n\
            | | | n | goal | | bound 3/n |\n|---|---|--:|--:|---|--:|\n";
    for row in rows {
        let n: u64 = row.counters.iter().filter_map(|name| counts.get(*name)).sum();
        let word = match row.short_of {
            _ if n < row.n => "BELOW".to_owned(),
            Some(of) => format!("SHORT of {of}"),
            None => "met".to_owned(),
        };
        let bound = if clean && 0 < n { format!("{:.1e}", 3.0 / n as f64) } else { "-".into() };
        let _ = writeln!(out, "| {} | {} | {n} | {} | {word} | {bound} |", row.family.name(), row.what, row.n);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<(String, u64)> {
        let all = Family::ALL.iter().chain(&[Family::F12]).flat_map(|family| family.faults());
        all.map(|fault| (format!("fault:{}", fault.name()), fault.goal())).collect()
    }

    /// A nemesis that reaches the goal of each fault reaches those of the table.
    #[test]
    fn the_goals_of_the_faults_add_up_to_the_table() {
        for row in GOALS.iter().filter(|row| row.counters[0].starts_with("fault:")) {
            let of = |name: &&str| faults().iter().find(|(fault, _)| fault == name).map(|(_, goal)| *goal);
            let sum: Option<u64> = row.counters.iter().map(of).sum();
            assert!(sum.is_some_and(|sum| row.n <= sum), "{}: {sum:?}", row.what);
        }
    }

    #[test]
    fn what_is_below_its_goal_says_so() {
        let counts = Counts::from([("fault:cut-commit".into(), 1700), ("fault:cut-commit-and-outage".into(), 400)]);
        let text = text(&counts, &[Family::F10], true);
        assert!(text.contains("| F10 | answers of a COMMIT lost | 2100 | 2000 | met | 1.4e-3 |"), "{text}");
        assert!(text.contains("| 400 | 500 | BELOW | 7.5e-3 |"), "{text}");
        assert_eq!(super::text(&counts, &[], true), "");
        // Often enough, and each too short.
        let text = super::text(&Counts::from([("fault:lock-row".into(), 11)]), &[Family::F14], true);
        assert!(text.contains("| F14 | rows locked, 1 to 15 s | 11 | 10 | SHORT of 60 s each | 2.7e-1 |"), "{text}");
    }
}
