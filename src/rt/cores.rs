//! The cores this process may use: its affinity mask, capped by the CPU quota of its control groups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The cores this thread may run on, in order, no more than the CPU quota pays for (rounded down, at least one).
/// Call it before any [`pin`] of the same thread.
pub fn cores() -> Vec<usize> {
    let mut cores = affinity();
    if let Some(quota) = quota_cores(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup")) {
        cores.truncate((quota as usize).max(1));
    }
    cores
}

/// Lets this process have as many descriptors open as its hard limit allows: the usual soft one of 1,024 is for programs
/// that select. A refusal leaves it as it is, and whoever wants one too many says so.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes `limit`, which is ours.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Binds the calling thread to one core.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a zeroed cpu_set_t is an empty set; `core` is inside it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Cores of the affinity mask. A machine larger than the kernel interface's set falls back to the standard count.
fn affinity() -> Vec<usize> {
    // SAFETY: the kernel fills the set; its size is given.
    let cores: Vec<usize> = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 {
            (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
        } else {
            Vec::new()
        }
    };
    if cores.is_empty() {
        return (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect();
    }
    cores
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The smallest quota on the way from this process's group to the root, in cores. Version 2: `cpu.max`;
/// version 1: `cpu.cfs_quota_us` over `cpu.cfs_period_us` below the `cpu` controller.
fn quota_cores(root: &Path, membership: &str) -> Option<f64> {
    let mut least: Option<f64> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let v2 = controllers.is_empty();
        let base = match v2 {
            true => root.to_path_buf(),
            false if controllers.split(',').any(|c| c == "cpu") => root.join(controllers),
            false => continue,
        };
        let mut group = PathBuf::from(group.trim_start_matches('/'));
        loop {
            let dir = base.join(&group);
            let quota = if v2 { quota_v2(&read(dir.join("cpu.max"))) } else { quota_v1(&dir) };
            if let Some(quota) = quota {
                least = Some(least.map_or(quota, |least| least.min(quota)));
            }
            if !group.pop() {
                break;
            }
        }
    }
    least
}

fn quota_v2(cpu_max: &str) -> Option<f64> {
    let mut words = cpu_max.split_ascii_whitespace();
    ratio(words.next()?, words.next()?)
}

fn quota_v1(dir: &Path) -> Option<f64> {
    ratio(read(dir.join("cpu.cfs_quota_us")).trim(), read(dir.join("cpu.cfs_period_us")).trim())
}

/// `None` for "max", -1 and nonsense.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_quota_of_the_groups_counts() {
        let root = std::env::temp_dir().join(format!("queen-cores-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("pod/cpu.max", "350000 100000\n");
        put("pod/queen/cpu.max", "max 100000\n");
        put("cpu,cpuacct/docker/cpu.cfs_quota_us", "150000\n");
        put("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
        put("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        put("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota_cores(&root, "0::/pod/queen\n"), Some(3.5));
        assert_eq!(quota_cores(&root, "4:cpu,cpuacct:/docker\n3:memory:/docker\n"), Some(1.5));
        assert_eq!(quota_cores(&root, "0::/elsewhere\n"), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_soft_limit_of_descriptors_becomes_the_hard_one() {
        let limits = || {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: writes `limit`, which is ours.
            assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
            limit
        };
        let lower = libc::rlimit { rlim_cur: limits().rlim_max - 1, ..limits() };
        // SAFETY: reads `lower`, which is ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &lower) }, 0);
        assert!(limits().rlim_cur < limits().rlim_max);
        raise_file_limit();
        assert_eq!(limits().rlim_cur, limits().rlim_max);
    }

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        let all = cores();
        assert!(!all.is_empty());
        let last = *all.last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(affinity(), [last]);
        })
        .join()
        .unwrap();
    }
}
