//! `tests/README.md` says which test holds which invariant and which route: it may not name what is not there, nor leave
//! anything out.

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every `fn` name in the Rust files below a directory.
fn functions(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("UTF-8");
            let after = text.split("fn ").skip(1);
            names.extend(after.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()));
        }
    }
}

/// Cells of the rows of a section.
fn rows(text: &str, section: &str) -> Vec<Vec<String>> {
    let body = text.split_once(&format!("\n## {section}\n")).expect("the section").1;
    let body = body.split("\n## ").next().expect("its end");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    body.lines().filter(|line| line.starts_with('|')).skip(2).map(cells).collect()
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_names_tests_that_exist_and_leaves_nothing_out() {
    let mut known = BTreeSet::new();
    for dir in ["tests", "shards"] {
        functions(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut known);
    }
    let table = read("tests/README.md");
    let (invariants, routes) = (rows(&table, "Invariants"), rows(&table, "Routes"));
    for row in invariants.iter().chain(&routes) {
        let tests: Vec<&str> = quoted(row.last().expect("cells")).collect();
        assert!(!tests.is_empty() || row.last().unwrap().starts_with("not built"), "no test for {row:?}");
        for test in tests {
            assert!(known.contains(test), "there is no test {test}");
        }
    }
    let numbers: Vec<String> = invariants.iter().map(|row| row[0].clone()).collect();
    assert_eq!(numbers, (1..=44).map(|n| n.to_string()).collect::<Vec<_>>());
    // The contract's own table of routes, and the broker's.
    let named: BTreeSet<String> = routes.iter().flat_map(|row| quoted(&row[0]).map(str::to_owned)).collect();
    let spec = read("docs/spec/http-data-plane.md");
    let spec = spec.split_once("\n## 15. Route table").expect("the section").1;
    let spec = spec.split("\n## 16").next().expect("its end");
    for line in spec.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let route = format!("{} {}", cells[0], quoted(cells[1]).next().expect("a path"));
        assert!(named.contains(&route), "{route} is not in the table");
    }
}
