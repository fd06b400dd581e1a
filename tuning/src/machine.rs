//! What a machine is, as far as a layout asks: cores, nodes, caches, network queues, limits.

use crate::list;
use crate::source::{Source, number};
use std::collections::BTreeSet;

/// One hardware thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    pub id: usize,
    pub node: usize,
    /// The lowest thread of its core.
    pub core: usize,
    /// The lowest thread that shares its last cache; None: not told.
    pub cache: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    pub name: String,
    /// None: nowhere in particular.
    pub node: Option<usize>,
    pub receive_queues: usize,
    pub irqs: Vec<usize>,
    /// Megabits a second; None: not told, as of virtual cards.
    pub speed: Option<u64>,
}

#[derive(Debug)]
pub struct Machine {
    /// Threads this process may use, by number; all of them, whatever the quota is.
    pub cpus: Vec<Cpu>,
    /// Cores' worth of time that the control groups allow; None: no limit.
    pub quota: Option<f64>,
    pub memory_mb: u64,
    pub nics: Vec<Nic>,
    pub kernel: String,
    /// Of a process started here; None: unlimited.
    pub memlock_bytes: Option<u64>,
    pub open_files: Option<u64>,
    pub somaxconn: Option<u64>,
    pub syn_backlog: Option<u64>,
    /// 0: for all, 1: for root and one group, 2: for nobody. None: the kernel has no such switch.
    pub io_uring_disabled: Option<u64>,
    pub numa_balancing: Option<u64>,
    pub governor: Option<String>,
    pub huge_pages: Option<String>,
}

impl Machine {
    /// Err: the source does not say which CPUs there are.
    pub fn read(source: &Source) -> Result<Machine, String> {
        let cpu = |file: &str| format!("/sys/devices/system/cpu/{file}");
        let online = source.text(&cpu("online")).and_then(|text| list::parse(&text));
        let online = online.filter(|cpus| !cpus.is_empty()).ok_or("/sys/devices/system/cpu/online: no CPUs")?;
        let status = source.text("/proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| list::parse(line.strip_prefix("Cpus_allowed_list:")?));
        let allowed: BTreeSet<usize> = allowed.unwrap_or_else(|| online.clone()).into_iter().collect();
        let lowest = |file: String| source.text(&file).and_then(|text| list::parse(&text)?.into_iter().min());
        let nodes = nodes(source);
        let read = |id: usize| Cpu {
            id,
            node: nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |(node, _)| *node),
            core: lowest(cpu(&format!("cpu{id}/topology/thread_siblings_list"))).unwrap_or(id),
            cache: lowest(cpu(&format!("cpu{id}/cache/index3/shared_cpu_list"))),
        };
        let known = |path: &str| source.text(path).and_then(|text| text.parse().ok());
        let limits = source.text("/proc/self/limits").unwrap_or_default();
        let huge = source.text("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = |text: String| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
        Ok(Machine {
            cpus: online.iter().filter(|id| allowed.contains(id)).map(|id| read(*id)).collect(),
            quota: quota(source),
            memory_mb: kilobytes(&source.text("/proc/meminfo").unwrap_or_default(), "MemTotal:").unwrap_or(0) / 1024,
            nics: nics(source),
            kernel: source.text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            memlock_bytes: soft_limit(&limits, "Max locked memory"),
            open_files: soft_limit(&limits, "Max open files"),
            somaxconn: known("/proc/sys/net/core/somaxconn"),
            syn_backlog: known("/proc/sys/net/ipv4/tcp_max_syn_backlog"),
            io_uring_disabled: known("/proc/sys/kernel/io_uring_disabled"),
            numa_balancing: known("/proc/sys/kernel/numa_balancing"),
            governor: source.text(&cpu("cpu0/cpufreq/scaling_governor")),
            huge_pages: huge.and_then(chosen),
        })
    }

    /// Nodes with threads that may be used, by number.
    pub fn nodes(&self) -> BTreeSet<usize> {
        self.cpus.iter().map(|cpu| cpu.node).collect()
    }

    /// Physical cores: the threads of each that may be used, the lowest first.
    pub fn cores(&self) -> Vec<Vec<&Cpu>> {
        let firsts: BTreeSet<usize> = self.cpus.iter().map(|cpu| cpu.core).collect();
        firsts.into_iter().map(|core| self.cpus.iter().filter(|cpu| cpu.core == core).collect()).collect()
    }
}

fn nodes(source: &Source) -> Vec<(usize, Vec<usize>)> {
    let root = "/sys/devices/system/node";
    let names = source.names(root).into_iter().filter(|name| name.starts_with("node"));
    let read = |name: String| {
        let cpus = list::parse(&source.text(&format!("{root}/{name}/cpulist"))?)?;
        Some((number(&name)?, cpus))
    };
    names.filter_map(read).collect()
}

/// Cards of hardware, also virtual hardware; not bridges, tunnels and the loopback.
fn nics(source: &Source) -> Vec<Nic> {
    let root = "/sys/class/net";
    let read = |name: String| {
        let text = |file: &str| source.text(&format!("{root}/{name}/{file}"));
        text("device/uevent")?;
        if text("operstate").is_some_and(|state| state == "down") {
            return None;
        }
        let queues = source.names(&format!("{root}/{name}/queues"));
        // A virtio card's interrupts are those of the PCI device above it.
        let interrupts =
            ["device/msi_irqs", "device/../msi_irqs"].map(|at| source.names(&format!("{root}/{name}/{at}")));
        let interrupts = interrupts.into_iter().find(|names| !names.is_empty()).unwrap_or_default();
        let node: Option<i64> = text("device/numa_node").and_then(|node| node.parse().ok());
        let speed: Option<i64> = text("speed").and_then(|speed| speed.parse().ok());
        Some(Nic {
            node: node.and_then(|node| usize::try_from(node).ok()),
            receive_queues: queues.iter().filter(|queue| queue.starts_with("rx-")).count(),
            irqs: interrupts.iter().filter_map(|irq| irq.parse().ok()).collect(),
            speed: speed.and_then(|speed| u64::try_from(speed).ok()),
            name: name.clone(),
        })
    };
    source.names(root).into_iter().filter_map(read).collect()
}

/// The process's own control group and those above it, as paths below the root, the root last as empty text.
pub fn groups(membership: &str) -> Vec<String> {
    let own = membership.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let mut groups = vec![];
    let mut path = own.trim_matches('/');
    while !path.is_empty() {
        groups.push(path.to_owned());
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    groups.push(String::new());
    groups
}

/// The smallest CPU limit on the way up, in cores.
fn quota(source: &Source) -> Option<f64> {
    let limit = |group: &String| {
        let slash = if group.is_empty() { "" } else { "/" };
        let text = source.text(&format!("/sys/fs/cgroup{slash}{group}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    groups(&source.text("/proc/self/cgroup")?).iter().filter_map(limit).reduce(f64::min)
}

fn kilobytes(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok())
}

/// None: unlimited, or not told.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
