//! What the documents say of the tests is true: a test that one names is there, and `tests/README.md` leaves no invariant and
//! no route out. `docs/architecture.md` names every room.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn in_package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names of the functions that a source defines.
fn functions(source: &str) -> impl Iterator<Item = String> {
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    source.split("fn ").skip(1).map(name)
}

/// Every function name in the Rust files below a directory.
fn functions_below(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions_below(&path, names);
        } else if path.extension().is_some_and(|e| e == "rs") {
            names.extend(functions(&read(&path)));
        }
    }
}

/// Words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Cells of the rows of a section.
fn rows(text: &str, section: &str) -> Vec<Vec<String>> {
    let body = text.split_once(&format!("\n## {section}\n")).expect("the section").1;
    let body = body.split("\n## ").next().expect("its end");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    body.lines().filter(|line| line.starts_with('|')).skip(2).map(cells).collect()
}

#[test]
fn every_test_a_document_names_exists() {
    let mut named = 0;
    let mut missing = Vec::new();
    for document in std::fs::read_dir(in_package("docs")).expect("docs") {
        let document = document.expect("an entry").path();
        if document.extension().is_none_or(|e| e != "md") {
            continue;
        }
        for (path, name) in quoted(&read(&document)).filter_map(|word| word.split_once(".rs::")) {
            named += 1;
            let source = std::fs::read_to_string(in_package(&format!("{path}.rs"))).unwrap_or_default();
            if !functions(&source).any(|it| it == name) {
                missing.push(format!("{}: {path}.rs::{name}", document.display()));
            }
        }
    }
    assert!(20 < named, "only {named} tests are named: is the form still `path.rs::name`?");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_table_of_tests_names_what_exists_and_leaves_nothing_out() {
    let mut known = BTreeSet::new();
    for dir in ["tests", "shards"] {
        functions_below(&in_package(dir), &mut known);
    }
    let table = read(&in_package("tests/README.md"));
    let (invariants, routes) = (rows(&table, "Invariants"), rows(&table, "Routes"));
    for row in invariants.iter().chain(&routes) {
        let tests: Vec<&str> = quoted(row.last().expect("cells")).collect();
        assert!(!tests.is_empty(), "no test for {row:?}");
        for test in tests {
            assert!(known.contains(test), "there is no test {test}");
        }
    }
    let numbers: Vec<String> = invariants.iter().map(|row| row[0].clone()).collect();
    assert_eq!(numbers, (1..=44).map(|n| n.to_string()).collect::<Vec<_>>());
    // The contract's own table of routes.
    let named: BTreeSet<String> = routes.iter().flat_map(|row| quoted(&row[0]).map(str::to_owned)).collect();
    let spec = read(&in_package("docs/spec/http-data-plane.md"));
    let spec = spec.split_once("\n## 15. Route table").expect("the section").1;
    let spec = spec.split("\n## 16").next().expect("its end");
    for line in spec.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let route = format!("{} {}", cells[0], quoted(cells[1]).next().expect("a path"));
        assert!(named.contains(&route), "{route} is not in the table");
    }
}

/// A route of the contract is served, or the changelog says that this version does not have it; and what it says is true.
#[test]
fn the_changelog_names_every_route_of_the_contract_that_is_not_served() {
    let table = read(&in_package("src/http/routes.rs"));
    let served: BTreeSet<(String, &str)> = table
        .lines()
        .filter_map(|line| line.trim().split_once(" \"").or(line.trim().split_once('"')))
        .filter_map(|(method, rest)| Some((method.trim().to_ascii_uppercase(), rest.split_once("\" ")?.0)))
        .collect();
    let log = read(&in_package("CHANGELOG.md"));
    let log = log.split_once("\n### Not in this version\n").expect("the section").1;
    let missing: Vec<&str> =
        quoted(log.split("\n### ").next().expect("its end")).filter(|word| word.starts_with('/')).collect();
    let says =
        |path: &str| missing.iter().any(|it| it.strip_suffix('*').map_or(path == *it, |it| path.starts_with(it)));
    let (mut routes, mut unsaid) = (0, Vec::new());
    for (document, section) in [("http-state-plane", "\n## 14. "), ("operations", "\n### 2.7 ")] {
        let spec = read(&in_package(&format!("docs/spec/{document}.md")));
        let text = spec.split_once(section).expect("the section").1;
        let text = text.split("\n#").next().expect("its end");
        for line in text.lines().filter(|line| line.starts_with('|')).skip(2) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            for path in quoted(cells[1]).filter(|word| word.starts_with('/')) {
                for method in cells[0].split(", ") {
                    routes += 1;
                    let is_served = served.contains(&(method.to_owned(), path));
                    if is_served == says(path) {
                        unsaid.push(format!("{method} {path}: served {is_served}"));
                    }
                }
            }
        }
    }
    assert!(90 < routes, "{routes}: are the tables still read?");
    assert!(unsaid.is_empty(), "{unsaid:#?}");
}

/// Who looks for a rule finds its file from the table of rooms: a file or a directory of the sources that it leaves out was
/// added without a word on what is in it.
#[test]
fn the_architecture_names_every_room() {
    let text = read(&in_package("docs/architecture.md"));
    let named: BTreeSet<&str> = quoted(&text).collect();
    let mut missing = Vec::new();
    for dir in ["src", "shards/src"] {
        for entry in std::fs::read_dir(in_package(dir)).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().expect("a name"));
            // Below `shards/src` a directory holds the tests of the file beside it, and the table names its files alone.
            let is_named = match (dir, path.is_dir()) {
                ("src", true) => named.contains(&*format!("src/{name}/")),
                ("src", false) => named.contains(&*format!("src/{name}")),
                (_, true) => true,
                (_, false) => named.contains(&*name) || named.contains(&*format!("shards/src/{name}")),
            };
            if !is_named && !["lib.rs", "limits.rs", "main.rs"].contains(&&*name) {
                missing.push(format!("{dir}/{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/architecture.md does not say what is in {missing:?}");
}
