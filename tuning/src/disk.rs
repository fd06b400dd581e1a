//! How long the disk takes to make a write durable: what a single commit waits for at least.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const CALLS: usize = 200;
const BLOCK: usize = 8192;

/// Microseconds.
#[derive(Debug, PartialEq)]
pub struct SyncTimes {
    pub p50: u64,
    pub p99: u64,
}

/// Writes a block and syncs it, again and again, as a write-ahead log does: over space that is there already.
pub fn sync_times(directory: &Path) -> Result<SyncTimes, String> {
    let path = directory.join(format!("queen-tune-{}", std::process::id()));
    let measured = measure(&path).map_err(|error| format!("{}: {error}", path.display()));
    let _ = fs::remove_file(&path); // Not there when it could not be made.
    measured
}

fn measure(path: &Path) -> std::io::Result<SyncTimes> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all_at(&vec![1; BLOCK * CALLS], 0)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(CALLS);
    for call in 0..CALLS {
        let begun = Instant::now();
        file.write_all_at(&[2; BLOCK], (call * BLOCK) as u64)?;
        file.sync_data()?;
        times.push(begun.elapsed().as_micros() as u64);
    }
    times.sort_unstable();
    Ok(SyncTimes { p50: times[CALLS / 2], p99: times[CALLS * 99 / 100] })
}
