//! Where the facts come from: the files of this machine, or a recording of them.
//!
//! A recording is text: a line `== PATH`, then what is in that file. Directories are what paths imply.

use std::collections::BTreeMap;
use std::fs;

pub enum Source {
    Live,
    Recorded(BTreeMap<String, String>),
}

/// What a recording has: files, `*` for any name. Whatever of it is not there is left out.
const FILES: &[&str] = &[
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/sys/fs/nr_open",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_max_syn_backlog",
    "/proc/sys/vm/swappiness",
    "/sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/node*/meminfo",
    "/sys/class/net/*/device/msi_irqs/*",
    "/sys/class/net/*/device/../msi_irqs/*",
    "/sys/class/net/*/device/numa_node",
    "/sys/class/net/*/device/uevent",
    "/sys/class/net/*/operstate",
    "/sys/class/net/*/queues/*/rps_cpus",
    "/sys/class/net/*/speed",
    "/sys/fs/cgroup/cpu.max",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

impl Source {
    pub fn recorded(text: &str) -> Result<Source, String> {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        let mut current = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(path) = line.strip_prefix("== ") {
                current = Some(files.entry(path.to_owned()).or_default());
            } else if let Some(content) = &mut current {
                content.push_str(line);
                content.push('\n');
            } else if !line.is_empty() {
                return Err(format!("not a recording: `{line}` belongs to no file"));
            }
        }
        Ok(Source::Recorded(files))
    }

    /// The text of a file without the white space around it; None when there is none, or none that may be read.
    pub fn text(&self, path: &str) -> Option<String> {
        match self {
            Source::Live => fs::read_to_string(path).ok().map(|text| text.trim().to_owned()),
            Source::Recorded(files) => files.get(path).map(|text| text.trim().to_owned()),
        }
    }

    /// Names in a directory, sorted; numbers in names by their size.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let mut names: Vec<String> = match self {
            Source::Live => fs::read_dir(directory)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect(),
            Source::Recorded(files) => files
                .keys()
                .filter_map(|path| path.strip_prefix(directory)?.strip_prefix('/')?.split('/').next())
                .map(str::to_owned)
                .collect(),
        };
        names.sort_by_key(|name| (name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), number(name)));
        names.dedup();
        names
    }

    /// Everything of [`FILES`], and the CPU limits of the control groups on the way up.
    pub fn record(&self) -> String {
        let mut out = String::new();
        let groups = crate::machine::groups(&self.text("/proc/self/cgroup").unwrap_or_default());
        let limits =
            groups.iter().filter(|group| !group.is_empty()).map(|group| format!("/sys/fs/cgroup/{group}/cpu.max"));
        let files = FILES.iter().flat_map(|pattern| self.matches(pattern));
        for path in files.chain(limits) {
            if let Some(text) = self.text(&path) {
                out += &format!("== {path}\n{text}\n");
            }
        }
        out
    }

    fn matches(&self, pattern: &str) -> Vec<String> {
        let Some((before, after)) = pattern.split_once('*') else { return vec![pattern.to_owned()] };
        let Some((directory, prefix)) = before.rsplit_once('/') else { return vec![] };
        let names = self.names(directory).into_iter().filter(|name| name.starts_with(prefix));
        names.flat_map(|name| self.matches(&format!("{directory}/{name}{after}"))).collect()
    }
}

/// The number a name ends in: 12 of `cpu12`.
pub fn number(name: &str) -> Option<usize> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse().ok()
}
