//! Time per item of a function: the fastest of several rounds, which noise can only make slower.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long one function is measured.
const SPAN: Duration = Duration::from_millis(600);

/// Prints the nanoseconds that `run` takes per item; under `cargo test` runs it once and prints nothing.
pub fn per_item<T>(name: &str, items: usize, mut run: impl FnMut() -> T) {
    black_box(run());
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let mut best = Duration::MAX;
    let begun = Instant::now();
    while begun.elapsed() < SPAN {
        let round = Instant::now();
        black_box(run());
        best = best.min(round.elapsed());
    }
    println!("{name:<44} {:>9.1} ns/message", best.as_nanos() as f64 / items as f64);
}
