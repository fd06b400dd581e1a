//! A layout as text: what was found, what is proposed, what to paste, each line with its reason.
//!
//! Reasons that no measurement of this project stands behind yet say so: `[reasoned]`.

use crate::disk::SyncTimes;
use crate::layout::{Layout, Postgres};
use crate::list;
use crate::machine::{Machine, Nic};

/// Locked memory of one ring with its queues, rounded up, and of the spool's thread (it wants 512 KiB).
const RING_BYTES: u64 = 256 << 10;
const SPOOL_BYTES: u64 = 512 << 10;
/// What the broker passes to listen(2).
const BACKLOG: u64 = 4096;
/// Connections to PostgreSQL: of a shard, and of everything else.
const CONNECTIONS_PER_SHARD: usize = 4;
const CONNECTIONS_BESIDE: usize = 16;
const DB_POOL_SIZE_DEFAULT: usize = 160;
const OPEN_FILES_WANTED: u64 = 65_536;

pub fn render(machine: &Machine, layout: &Layout, disk: Option<&SyncTimes>) -> String {
    let mut out = found(machine, disk);
    out += &proposed(machine, layout);
    let warnings: Vec<String> = layout.warnings.iter().cloned().chain(warnings(machine, layout, disk)).collect();
    if !warnings.is_empty() {
        out += "\nTo look at first\n";
        warnings.iter().for_each(|warning| out += &format!("  - {warning}\n"));
    }
    out + &paste(machine, layout)
}

fn found(machine: &Machine, disk: Option<&SyncTimes>) -> String {
    let (nodes, cores, threads) = (machine.nodes().len(), machine.cores().len(), machine.cpus.len());
    let mut out = String::from("Machine\n");
    out += &format!(
        "  {nodes} node{}, {cores} cores, {threads} threads, {} GB, Linux {}\n",
        plural(nodes),
        machine.memory_mb.div_ceil(1024),
        machine.kernel
    );
    for node in machine.nodes() {
        let cpus: Vec<usize> = machine.cpus.iter().filter(|cpu| cpu.node == node).map(|cpu| cpu.id).collect();
        let caches: std::collections::BTreeSet<_> =
            machine.cpus.iter().filter(|cpu| cpu.node == node).filter_map(|cpu| cpu.cache).collect();
        out += &format!("  node {node}: cpus {}, {} last caches\n", list::render(&cpus), caches.len());
    }
    for nic in &machine.nics {
        let Nic { name, node, receive_queues, irqs, speed } = nic;
        let node = node.map_or("no node".to_owned(), |node| format!("node {node}"));
        let speed = speed.map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
        out += &format!(
            "  {name}: {node}, {receive_queues} receive queue{}, {} interrupts{speed}\n",
            plural(*receive_queues),
            irqs.len()
        );
    }
    if let Some(SyncTimes { p50, p99 }) = disk {
        out += &format!("  disk: fdatasync p50 {p50} us, p99 {p99} us\n");
    }
    out
}

fn proposed(machine: &Machine, layout: &Layout) -> String {
    let nodes = |cpus: &[usize]| {
        let of = |id: &usize| machine.cpus.iter().find(|cpu| cpu.id == *id).map(|cpu| cpu.node);
        let nodes: std::collections::BTreeSet<usize> = cpus.iter().filter_map(of).collect();
        list::render(&nodes.into_iter().collect::<Vec<_>>())
    };
    let mut out = String::from("\nLayout\n");
    let shards = &layout.shards;
    out += &format!("  shards      {}, cpus {} (node {})\n", shards.len(), list::render(shards), nodes(shards));
    out += &match (layout.postgres, &layout.database[..]) {
        (Postgres::Elsewhere, _) => "  PostgreSQL  elsewhere\n".to_owned(),
        (Postgres::Here, []) => "  PostgreSQL  shares them: the defaults of the broker are this layout\n".to_owned(),
        (Postgres::Here, cpus) => format!("  PostgreSQL  cpus {} (node {})\n", list::render(cpus), nodes(cpus)),
    };
    if !layout.interrupts.is_empty() {
        let mut cpus: Vec<usize> = layout.interrupts.iter().flat_map(|(_, cpus)| cpus.clone()).collect();
        cpus.sort_unstable();
        out += &format!("  interrupts  {} of the cards, over cpus {}\n", layout.interrupts.len(), list::render(&cpus));
    }
    out
}

fn warnings(machine: &Machine, layout: &Layout, disk: Option<&SyncTimes>) -> Vec<String> {
    let mut out = Vec::new();
    match machine.io_uring_disabled {
        Some(2) => out.push(
            "io_uring is off (kernel.io_uring_disabled=2): shards run on epoll and the spool on plain files".into(),
        ),
        Some(1) => {
            out.push("io_uring is for root and one group only (kernel.io_uring_disabled=1): others run on epoll".into())
        }
        _ => {}
    }
    let locked = memlock_wanted(layout.shards.len());
    if machine.memlock_bytes.is_some_and(|bytes| bytes < locked) {
        out.push(format!("memlock is below {} KiB: rings fail, and the broker falls back to epoll", locked >> 10));
    }
    if machine.open_files.is_some_and(|files| files < OPEN_FILES_WANTED) {
        out.push(format!(
            "open files are limited to {}: one per connection is needed",
            machine.open_files.unwrap_or(0)
        ));
    }
    if machine.governor.as_deref().is_some_and(|governor| governor != "performance") {
        out.push(
            "the frequency governor is not `performance`: latencies of a quiet broker are those of slow cores".into(),
        );
    }
    if machine.nodes().len() > 1 && machine.numa_balancing == Some(1) {
        out.push("kernel.numa_balancing=1 unmaps pages of pinned threads to see who touches them".into());
    }
    if machine.huge_pages.as_deref() == Some("always") {
        out.push("transparent huge pages are `always`: the memory of many small lanes grows".into());
    }
    for nic in machine.nics.iter().filter(|nic| nic.receive_queues == 1 && machine.cpus.len() > 3) {
        out.push(format!("{} has one receive queue: one core takes all packets (RPS spreads them)", nic.name));
    }
    if disk.is_some_and(|disk| disk.p50 > 2000) {
        out.push("a sync takes over 2 ms: it is the floor of every push's latency; a disk with power-loss protection has 0.05 ms".into());
    }
    out
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn memlock_wanted(shards: usize) -> u64 {
    shards as u64 * RING_BYTES + SPOOL_BYTES
}

fn paste(machine: &Machine, layout: &Layout) -> String {
    let shards = layout.shards.len();
    let connections = shards * CONNECTIONS_PER_SHARD + CONNECTIONS_BESIDE;
    let fenced = !layout.database.is_empty();
    let pinned = fenced || layout.postgres == Postgres::Elsewhere;
    let mut out = String::from("\nThe broker: /etc/systemd/system/queen.service.d/layout.conf\n  [Service]\n");
    if pinned {
        out += &format!("  CPUAffinity={}\n", list::render(&layout.shards));
        out += "    # shards are pinned, one to each in order; the broker's other threads float over them\n";
        out += &format!("  Environment=QUEEN_SHARDS={shards}\n");
    }
    if connections > DB_POOL_SIZE_DEFAULT {
        out += &format!(
            "  Environment=DB_POOL_SIZE={connections}\n    # up to {CONNECTIONS_PER_SHARD} a shard, and a few\n"
        );
    }
    out += &format!(
        "  LimitNOFILE=1048576\n    # a descriptor for each client\n  LimitMEMLOCK={}\n",
        memlock_wanted(shards).next_power_of_two().max(64 << 20)
    );
    out += "    # rings before Linux 5.12 and the spool's buffers count as locked memory\n";
    if fenced {
        out += &format!(
            "\nPostgreSQL: /etc/systemd/system/postgresql@.service.d/layout.conf   [reasoned]\n  [Service]\n  CPUAffinity={}\n    # its backends leave the shards' cores alone\n",
            list::render(&layout.database)
        );
        if machine.nodes().len() > 1 {
            out += "  NUMAPolicy=local\n    # buffers are touched first, and so placed, by these cores\n";
        }
        out += &embedded(layout);
    }
    if layout.postgres == Postgres::Here {
        out += &database_settings(machine, connections);
    }
    out += &kernel(machine);
    out += &interrupts(layout);
    out
}

/// The embedded PostgreSQL inherits the broker's cores, so both need one mask whose lowest threads are the shards'.
fn embedded(layout: &Layout) -> String {
    let all: Vec<usize> = layout.shards.iter().chain(&layout.database).copied().collect();
    let lowest = layout.shards.iter().max() < layout.database.iter().min();
    if lowest {
        format!(
            "  With the embedded PostgreSQL instead, which runs on the broker's cores:\n    taskset -c {} env QUEEN_SHARDS={} queen\n",
            list::render(&all),
            layout.shards.len()
        )
    } else {
        "  Not with the embedded PostgreSQL: it runs on the broker's cores, and shards take the lowest of them.\n"
            .to_owned()
    }
}

fn database_settings(machine: &Machine, connections: usize) -> String {
    let buffers = (machine.memory_mb / 8).clamp(64, 8192);
    format!(
        "\npostgresql.conf, for a server of your own (the embedded one has its settings)\n  \
         shared_buffers = {buffers}MB\n    # an eighth: segments are written once and read from the broker's memory [reasoned]\n  \
         max_connections = {}\n    # this broker's, and some for people [reasoned]\n  \
         max_wal_size = 16GB\n    # a checkpoint every five minutes, not every gigabyte: after each, pages are logged whole [reasoned]\n  \
         checkpoint_timeout = 5min\n  jit = off\n    # statements are short: compiling one costs more than it [reasoned]\n  \
         max_parallel_workers_per_gather = 0\n    # nothing here is worth a worker [reasoned]\n  \
         autovacuum_naptime = 15s\n    # hot rows are updated in place as long as dead ones are cleared [reasoned]\n  \
         fsync, full_page_writes, synchronous_commit: on\n    # what `queued` promises rests on them\n",
        connections + 20
    )
}

fn kernel(machine: &Machine) -> String {
    let mut out = String::new();
    let below = |value: Option<u64>, wanted: u64| value.is_some_and(|value| value < wanted);
    if below(machine.somaxconn, BACKLOG) {
        out += &format!(
            "  net.core.somaxconn = {BACKLOG}\n    # else connections that come at once are cut off at {} [reasoned]\n",
            machine.somaxconn.unwrap_or(0)
        );
    }
    if below(machine.syn_backlog, BACKLOG) {
        out += &format!(
            "  net.ipv4.tcp_max_syn_backlog = {BACKLOG}\n    # the same for those that are being opened [reasoned]\n"
        );
    }
    if machine.nodes().len() > 1 && machine.numa_balancing == Some(1) {
        out += "  kernel.numa_balancing = 0\n    # threads are pinned and memory is placed: there is nothing to balance [reasoned]\n";
    }
    if out.is_empty() { out } else { format!("\n/etc/sysctl.d/90-queen.conf\n{out}") }
}

fn interrupts(layout: &Layout) -> String {
    if layout.interrupts.is_empty() {
        return String::new();
    }
    let mut out = String::from("\nInterrupts, as root, with irqbalance stopped   [reasoned]\n");
    for (irq, cpus) in &layout.interrupts {
        out += &format!("  echo {} > /proc/irq/{irq}/smp_affinity_list\n", list::render(cpus));
    }
    out
}
