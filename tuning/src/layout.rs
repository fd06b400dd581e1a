//! Which core does what. The rules, in order:
//!
//! * A shard has a physical core: one thread of it, because two shards on one core slow each other down.
//! * Beside PostgreSQL, shards get two thirds of the cores, rounded up; it gets the rest. Up to three cores they share
//!   all: fences cost more there than they keep apart. With PostgreSQL elsewhere, shards get all.
//! * On several nodes shards and PostgreSQL get whole nodes, so that the memory of each is its own node's; the shards
//!   those of the network cards first.
//! * A CPU quota counts before cores do: there are never more shards than it pays for.
//! * Interrupts of a card go to its node: to the second threads of the shards' cores where there are any, else to the
//!   shards' cores themselves.

use crate::machine::{Cpu, Machine};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Postgres {
    Here,
    Elsewhere,
}

#[derive(Debug)]
pub struct Layout {
    pub postgres: Postgres,
    /// One thread for each shard, ascending.
    pub shards: Vec<usize>,
    /// Threads of PostgreSQL; empty: it shares the shards', or is elsewhere.
    pub database: Vec<usize>,
    /// Interrupt and the threads it may go to.
    pub interrupts: Vec<(usize, Vec<usize>)>,
    pub warnings: Vec<String>,
}

/// Up to so many cores nothing is fenced.
const SHARED_CORES_MAX: usize = 3;

pub fn propose(machine: &Machine, postgres: Postgres) -> Layout {
    let mut warnings = Vec::new();
    let cores = ordered_cores(machine);
    let quota = machine.quota.map(|quota| (quota as usize).max(1)).filter(|quota| *quota < cores.len());
    if let Some(quota) = quota {
        warnings.push(format!(
            "a control group allows {:.1} of {} cores: the layout uses {quota}; a quota also stops threads in the \
             middle of a period, so whole cores (cpuset) are better",
            machine.quota.unwrap_or(0.0),
            cores.len()
        ));
    }
    let usable = quota.unwrap_or(cores.len());
    let split = |count: usize| (2 * count).div_ceil(3);
    let nodes = machine.nodes().len();
    let (for_shards, for_database) = match postgres {
        Postgres::Elsewhere => (&cores[..usable], &[][..]),
        Postgres::Here if usable <= SHARED_CORES_MAX || quota.is_some() => (&cores[..split(usable).max(1)], &[][..]),
        Postgres::Here if nodes == 1 => cores.split_at(split(usable)),
        Postgres::Here => {
            let whole = node_order(machine).into_iter().take(split(nodes).min(nodes - 1)).collect::<Vec<_>>();
            let count = cores.iter().filter(|core| whole.contains(&core[0].node)).count();
            cores.split_at(count)
        }
    };
    let mut shards: Vec<usize> = for_shards.iter().map(|core| core[0].id).collect();
    shards.sort_unstable();
    let mut database: Vec<usize> = for_database.iter().flatten().map(|cpu| cpu.id).collect();
    database.sort_unstable();
    Layout { postgres, interrupts: interrupts(machine, for_shards), shards, database, warnings }
}

/// Nodes, those of network cards first.
fn node_order(machine: &Machine) -> Vec<usize> {
    let mut nodes: Vec<usize> = machine.nodes().into_iter().collect();
    let card = |node: usize| machine.nics.iter().any(|nic| nic.node == Some(node));
    nodes.sort_by_key(|node| (!card(*node), *node));
    nodes
}

/// Physical cores by node in that order, those of one cache together.
fn ordered_cores(machine: &Machine) -> Vec<Vec<&Cpu>> {
    let order = node_order(machine);
    let mut cores = machine.cores();
    let place = |cpu: &Cpu| order.iter().position(|node| *node == cpu.node);
    cores.sort_by_key(|core| (place(core[0]), core[0].cache, core[0].id));
    cores
}

fn interrupts(machine: &Machine, shard_cores: &[Vec<&Cpu>]) -> Vec<(usize, Vec<usize>)> {
    let mut all = Vec::new();
    for nic in &machine.nics {
        let near = |core: &&Vec<&Cpu>| nic.node.is_none_or(|node| core[0].node == node);
        let near: Vec<&Vec<&Cpu>> = shard_cores.iter().filter(near).collect();
        let seconds: Vec<usize> = near.iter().flat_map(|core| core.iter().skip(1)).map(|cpu| cpu.id).collect();
        let firsts: Vec<usize> = near.iter().map(|core| core[0].id).collect();
        let targets = if seconds.is_empty() { firsts } else { seconds };
        if machine.cpus.len() <= SHARED_CORES_MAX || targets.is_empty() {
            continue;
        }
        let target = |n: usize| vec![targets[n % targets.len()]];
        all.extend(nic.irqs.iter().enumerate().map(|(n, irq)| (*irq, target(n))));
    }
    all
}
