//! The published clients, unmodified, against the broker: Python 1.3.0 and 2.6.0, Rust 2.7.0. The newer ones run their
//! flows in JSON, then with binary push, push compression and framed pop on, beside JSON clients on the same queues.
//!
//! Python's come from the package index into virtual environments under `target/clients`, once. A lane that cannot run
//! says `NOT RUN` and why, and fails where `CI=true`.

#[path = "../http/harness/mod.rs"]
mod harness;
mod rust_admin;
mod rust_client;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn python_1_3_0() {
    python("1.3.0", "json");
}

#[test]
fn python_2_6_0() {
    python("2.6.0", "json");
}

#[test]
fn python_2_6_0_binary() {
    python("2.6.0", "binary");
}

#[test]
fn rust_2_7_0() {
    let broker = harness::two_shards();
    tokio::runtime::Runtime::new().expect("a runtime").block_on(rust_client::flows(broker, false));
}

#[test]
fn rust_2_7_0_binary() {
    let broker = harness::two_shards();
    tokio::runtime::Runtime::new().expect("a runtime").block_on(rust_client::flows(broker, true));
}

/// Runs the flows of `python/flows.py` with one version of the client; `forms`: `json` or `binary`.
fn python(version: &str, forms: &str) {
    let python = match environment(version) {
        Ok(python) => python,
        Err(why) => return not_run(&format!("Python client {version}"), &why),
    };
    let broker = harness::two_shards();
    let out = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/flows.py"))
        .arg(format!("http://127.0.0.1:{}", broker.port))
        .args([version, forms])
        .output()
        .expect("python runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("{stdout}");
    assert!(out.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("all flows passed"), "{stdout}\n{stderr}");
}

/// The interpreter of a virtual environment that has this version of `queen-mq`; makes it when it is missing.
fn environment(version: &str) -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let target = test.ancestors().nth(3).ok_or("no target directory")?;
    let home = target.join("clients").join(format!("queen-mq-{version}-zstd"));
    let (python, ready) = (home.join("bin/python"), home.join("ready"));
    if ready.exists() {
        return Ok(python);
    }
    // Two tests use one environment: the one that comes second finds it made.
    static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if ready.exists() {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(target.join("clients")).map_err(|e| e.to_string())?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    // Its packed and framed forms need zstd, which comes as an extra of its package.
    let package =
        if version == "1.3.0" { format!("queen-mq=={version}") } else { format!("queen-mq[zstd]=={version}") };
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package]))?;
    std::fs::write(&ready, "").map_err(|e| e.to_string())?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = || String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", text().trim())) }
}

/// Says so where it is seen (the test runner captures `print!` of passing tests), and fails in CI.
fn not_run(lane: &str, why: &str) {
    let text = format!("NOT RUN: {lane}: {why}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
}
