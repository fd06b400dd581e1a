//! Lists the SQL files for the binary, so that adding one needs no second place.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=migrations");
    // Cargo runs this in the package's directory; the list names no absolute path, so that a build directory may move.
    let root = Path::new("migrations");
    let mut list = String::from("pub const MIGRATIONS: &[SqlFile] = &[\n");
    for path in sql_files(root).iter().filter(|p| stem(p).as_bytes()[0].is_ascii_digit()) {
        push(&mut list, path);
    }
    list.push_str("];\npub const FUNCTIONS: &[SqlFile] = &[\n");
    for path in &function_files(&root.join("functions")) {
        push(&mut list, path);
    }
    list.push_str("];\n");
    let out = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("sql_files.rs");
    fs::write(out, list).expect("write the list of SQL files");
}

fn push(list: &mut String, path: &Path) {
    let text = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{}\")", path.display());
    writeln!(list, "    SqlFile {{ name: {:?}, text: include_str!({text}) }},", stem(path)).expect("write to a string");
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).expect("an SQL file's name is UTF-8")
}

/// `*.sql` in the directories in `dir`, which holds nothing else, by name whatever directory they are in.
fn function_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = entries(dir).flat_map(|dir| sql_files(&dir)).collect();
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    files
}

/// `*.sql` directly in `dir`, by name.
fn sql_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        entries(dir).filter(|path| path.extension().is_some_and(|ext| ext == "sql")).collect();
    files.sort();
    files
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries.map(|entry| entry.expect("read a directory entry").path())
}
