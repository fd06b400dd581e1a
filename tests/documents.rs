//! What the documents say of the tests is true.

use std::path::Path;

/// Tests named in a document as `path/of/file.rs::name`.
fn named_tests(text: &str) -> Vec<(String, String)> {
    text.split('`')
        .filter_map(|word| word.split_once(".rs::"))
        .map(|(path, name)| (format!("{path}.rs"), name.to_owned()))
        .collect()
}

#[test]
fn every_test_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    let mut missing = Vec::new();
    for document in std::fs::read_dir(root.join("docs")).expect("docs") {
        let document = document.expect("an entry").path();
        if document.extension().is_none_or(|e| e != "md") {
            continue;
        }
        for (path, name) in named_tests(&std::fs::read_to_string(&document).expect("text")) {
            named += 1;
            let source = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                missing.push(format!("{}: {path}::{name}", document.display()));
            }
        }
    }
    assert!(20 < named, "only {named} tests are named: is the form still `path.rs::name`?");
    assert!(missing.is_empty(), "{missing:#?}");
}
