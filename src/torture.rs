//! Named points at which a test build kills itself, so that every window between two durable steps is met.
//!
//! Only with the cargo feature `torture`; without it a point is nothing. A file `torture` in the spool directory holds
//! `<point> <n>`: the process ends, as by `kill -9`, when the point is passed for the n-th time, and leaves
//! `torture-<point>` behind. Source: reliability 3.

/// The windows, as reliability 3 lists them.
pub const POINTS: [&str; 8] = [
    "before-spool-write",
    "spool-written",
    "spool-synced",
    "commit-sent",
    "commit-answered",
    "drain-committed",
    "spool-rotation",
    "boot-drain",
];

#[cfg(feature = "torture")]
mod armed {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static DIR: OnceLock<PathBuf> = OnceLock::new();
    static PASSED: [AtomicU64; super::POINTS.len()] = [const { AtomicU64::new(0) }; super::POINTS.len()];

    pub fn watch(dir: &std::path::Path) {
        let _ = DIR.set(dir.into());
    }

    pub fn point(name: &str) {
        let at = super::POINTS.iter().position(|point| *point == name).expect("a point that is listed");
        let passed = PASSED[at].fetch_add(1, Ordering::Relaxed) + 1;
        let Some(dir) = DIR.get() else { return };
        let Ok(order) = std::fs::read_to_string(dir.join("torture")) else { return };
        let mut words = order.split_whitespace();
        let fits =
            words.next() == Some(name) && words.next().and_then(|n| n.parse().ok()).is_some_and(|n: u64| n <= passed);
        if fits {
            let _ = std::fs::write(dir.join(format!("torture-{name}")), b"");
            // SAFETY: no preconditions; the process is to end here, without any clean-up.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        }
    }
}

/// The process has come to a point.
#[inline]
pub fn point(name: &'static str) {
    #[cfg(feature = "torture")]
    armed::point(name);
    let _ = name;
}

/// Orders are read from this directory from now on.
pub fn watch(dir: &std::path::Path) {
    #[cfg(feature = "torture")]
    armed::watch(dir);
    let _ = dir;
}
