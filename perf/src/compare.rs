//! `queen-perf compare A B`: ratios of two results, and whether they are more than noise.
//!
//! A difference counts when every run of one side is beyond every run of the other. Three runs on each side
//! that do not differ come out that way one time in ten: a hint for a person, not a proof.

use crate::paired::Pairing;
use crate::report::Table;
use crate::result::{FORM, Recording, ScenarioResult};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Reads a `run.json`, or the one in a result's directory.
pub fn load(path: &str) -> Result<Recording, String> {
    let (file, recording): (PathBuf, Recording) = read(path)?;
    if !(1..=FORM).contains(&recording.form) {
        return Err(format!("{}: form {}, this queen-perf reads up to {FORM}", file.display(), recording.form));
    }
    Ok(recording)
}

/// The same of a pairing's.
pub fn load_pairing(path: &str) -> Result<Pairing, String> {
    Ok(read(path)?.1)
}

fn read<T: DeserializeOwned>(path: &str) -> Result<(PathBuf, T), String> {
    let path = Path::new(path);
    let file = if path.is_dir() { path.join("run.json") } else { path.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let result = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((file, result))
}

/// Ratios B / A of every figure of every scenario both have.
pub fn compare(a: &Recording, b: &Recording) -> String {
    let mut out = String::new();
    if a.machine != b.machine {
        out += &format!("Different machines: {} and {}. Ratios say little.\n\n", a.machine.name, b.machine.name);
    }
    let mut table = Table::new(&["scenario", "figure", "A", "B", "B / A", "verdict"]);
    for before in &a.scenarios {
        let name = &before.settings.name;
        let Some(after) = b.scenarios.iter().find(|scenario| scenario.settings.name == *name) else {
            out += &format!("{name}: only in A.\n");
            continue;
        };
        if !before.settings.same_work(&after.settings) {
            out += &format!("{name}: settings differ.\n");
        }
        if before.failed() || after.failed() {
            out += &format!("{name}: a run failed; its figures are not valid.\n");
        }
        rows(&mut table, before, after);
    }
    for after in &b.scenarios {
        if !a.scenarios.iter().any(|scenario| scenario.settings.name == after.settings.name) {
            out += &format!("{}: only in B.\n", after.settings.name);
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out + &table.render()
}

fn rows(table: &mut Table, before: &ScenarioResult, after: &ScenarioResult) {
    let Some(first) = before.runs.first() else { return };
    for figure in first.figures(&before.settings) {
        let values = |scenario: &ScenarioResult| {
            let mut values: Vec<f64> = scenario
                .runs
                .iter()
                .flat_map(|run| run.figures(&scenario.settings))
                .filter(|other| other.name == figure.name)
                .map(|other| other.value)
                .collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (a, b) = (values(before), values(after));
        if a.is_empty() || b.is_empty() {
            continue;
        }
        let (middle_a, middle_b) = (a[(a.len() - 1) / 2], b[(b.len() - 1) / 2]);
        table.row(vec![
            before.settings.name.clone(),
            figure.name.to_owned(),
            format!("{middle_a:.2}"),
            format!("{middle_b:.2}"),
            if middle_a > 0.0 { format!("{:.3}", middle_b / middle_a) } else { "-".to_owned() },
            verdict(&a, &b, figure.more_is_better).to_owned(),
        ]);
    }
}

/// `a`, `b`: sorted, not empty.
fn verdict(a: &[f64], b: &[f64], more_is_better: bool) -> &'static str {
    if a.len() < 2 || b.len() < 2 {
        return "one run: noise unknown";
    }
    let (a_low, a_high, b_low, b_high) = (a[0], a[a.len() - 1], b[0], b[b.len() - 1]);
    if b_low <= a_high && a_low <= b_high {
        "within noise"
    } else if (b_low > a_high) == more_is_better {
        "better"
    } else {
        "worse"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_noise() {
        assert_eq!(verdict(&[1.0, 2.0, 3.0], &[2.5, 4.0, 5.0], true), "within noise");
        assert_eq!(verdict(&[1.0, 2.0, 3.0], &[3.5, 4.0, 5.0], true), "better");
        assert_eq!(verdict(&[1.0, 2.0, 3.0], &[3.5, 4.0, 5.0], false), "worse");
        assert_eq!(verdict(&[3.5, 4.0], &[1.0, 2.0], false), "better");
        assert_eq!(verdict(&[1.0], &[9.0, 9.0], true), "one run: noise unknown");
    }
}
