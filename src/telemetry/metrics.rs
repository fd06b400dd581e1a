//! Counters of this process. Each shard writes its own block; readers add the blocks up.
//!
//! Holds: a block has one writing thread, so counting is a relaxed load and store without a locked instruction, and
//! blocks do not share cache lines. The map of parked pops has a mutex of its own block: it is touched only when a pop
//! parks, and contended only by a scrape. Source: operations 5.3, 5.4.1.

use super::busy::BusyQueues;
use queen_shards::activity::BusyQueue;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Kinds of fused commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Push = 0,
    Pop = 1,
    Ack = 2,
}

impl Op {
    pub const ALL: [Op; 3] = [Op::Push, Op::Pop, Op::Ack];
    pub fn name(self) -> &'static str {
        ["push", "pop", "ack"][self as usize]
    }
}

/// Round trips remembered per op, over all shards together at least this many. Source: operations 5.4.1.
const RING: usize = 1024;
/// Queues named among the parked pops of one shard; parked pops of further ones are counted under `""`.
const PARKED_QUEUES_MAX: usize = 10_000;

/// All counters of the process.
pub struct Metrics {
    started: Instant,
    /// One block per shard, then one for the control thread.
    shards: Box<[ShardMetrics]>,
    /// Most connections this broker may open.
    pub pool_size: u64,
    /// QUEEN_ENCRYPTION_KEY is set and of no use.
    pub key_malformed: bool,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One sum over all shards.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Sums { $($(#[$doc])* pub $name: u64),* }

        #[derive(Default)]
        struct Cells { $($name: AtomicU64),* }

        impl Cells {
            fn add_to(&self, sums: &mut Sums) {
                $(sums.$name += self.$name.load(Relaxed);)*
            }
        }

        impl Sums {
            /// What came on top of `earlier`.
            pub fn since(&self, earlier: &Sums) -> Sums {
                Sums { $($name: self.$name.wrapping_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    push_requests,
    push_messages,
    pop_requests,
    pop_messages,
    /// Pops answered without a message.
    pop_empty,
    ack_requests,
    /// Accepted acks, auto-acked deliveries included.
    ack_messages,
    /// Acks that were not accepted.
    ack_failed,
    /// Messages moved to the dead letters.
    dead_lettered,
    /// Messages that conflating groups completed without seeing them.
    conflated,
    transactions,
    db_errors,
    pop_targeted,
    pop_wildcard,
    fill_waits,
    fill_wait_micros,
    loop_lag_samples,
    loop_lag_micros,
    commits,
}

/// The block of one thread. Only that thread counts in it.
#[repr(align(128))] // Two lines: the prefetcher of x86 fetches lines in pairs.
#[derive(Default)]
pub struct ShardMetrics {
    cells: Cells,
    batches: [Batches; 3],
    connections_open: AtomicI64,
    connections_busy: AtomicI64,
    /// The greatest lag since it was last taken.
    loop_lag_recent: AtomicU64,
    tail_bytes: AtomicU64,
    window_bytes: AtomicU64,
    memo_bytes: AtomicU64,
    parked: Mutex<HashMap<Arc<str>, u32>>,
    busy: Mutex<BusyQueues>,
}

struct Batches {
    fired: AtomicU64,
    items: AtomicU64,
    ring: Box<[AtomicU32]>,
}

impl Default for Batches {
    fn default() -> Batches {
        let ring = (0..RING).map(|_| AtomicU32::new(0)).collect();
        Batches { fired: AtomicU64::new(0), items: AtomicU64::new(0), ring }
    }
}

/// Adds without a locked instruction: the block has one writer.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

impl ShardMetrics {
    /// Push calls answered, with the messages they stored or buffered.
    pub fn push(&self, requests: u64, messages: u64) {
        add(&self.cells.push_requests, requests);
        add(&self.cells.push_messages, messages);
    }
    /// One pop call answered; 0 messages is an empty one.
    pub fn pop(&self, messages: u64) {
        add(&self.cells.pop_requests, 1);
        add(&self.cells.pop_messages, messages);
        add(&self.cells.pop_empty, u64::from(messages == 0));
    }
    /// Ack calls answered, with the acks they accepted.
    pub fn ack(&self, requests: u64, messages: u64) {
        add(&self.cells.ack_requests, requests);
        add(&self.cells.ack_messages, messages);
    }
    /// Messages that an `autoAck` pop completed.
    pub fn auto_acked(&self, messages: u64) {
        add(&self.cells.ack_messages, messages);
    }
    /// Acks that were refused.
    pub fn ack_failed(&self, messages: u64) {
        add(&self.cells.ack_failed, messages);
    }
    pub fn dead_lettered(&self, messages: u64) {
        add(&self.cells.dead_lettered, messages);
    }
    /// Messages that acks of conflating leases retired undelivered.
    pub fn conflated(&self, messages: u64) {
        add(&self.cells.conflated, messages);
    }
    pub fn transaction(&self) {
        add(&self.cells.transactions, 1);
    }
    /// A store call that failed.
    pub fn db_error(&self) {
        add(&self.cells.db_errors, 1);
    }
    /// A pop of one partition.
    pub fn pop_targeted(&self) {
        add(&self.cells.pop_targeted, 1);
    }
    /// A pop that searched its candidates.
    pub fn pop_wildcard(&self) {
        add(&self.cells.pop_wildcard, 1);
    }
    /// A pop was held back so long to fill its batch.
    pub fn fill_wait(&self, micros: u64) {
        add(&self.cells.fill_waits, 1);
        add(&self.cells.fill_wait_micros, micros);
    }
    /// How late a 100 ms timer of this thread fired.
    pub fn loop_lag(&self, micros: u64) {
        add(&self.cells.loop_lag_samples, 1);
        add(&self.cells.loop_lag_micros, micros);
        self.loop_lag_recent.fetch_max(micros, Relaxed);
    }
    /// A fused commit came back after `micros` with `items` messages, claims or acks in it.
    pub fn batch(&self, op: Op, items: u64, micros: u64) {
        let batches = &self.batches[op as usize];
        let n = batches.fired.load(Relaxed);
        batches.ring[n as usize % RING].store(micros.min(u32::MAX as u64) as u32, Relaxed);
        batches.fired.store(n + 1, Relaxed);
        add(&batches.items, items);
        add(&self.cells.commits, 1);
    }
    /// Database connections of this thread, opened (+1) or closed (-1).
    pub fn connections(&self, change: i64) {
        self.connections_open.fetch_add(change, Relaxed);
    }
    /// Connections with a call in flight, one more (+1) or fewer (-1).
    pub fn busy(&self, change: i64) {
        self.connections_busy.fetch_add(change, Relaxed);
    }
    /// Memory of this shard's tails, its dedup windows, and what its leases handed out, in bytes.
    pub fn memory(&self, tails: u64, windows: u64, memos: u64) {
        self.tail_bytes.store(tails, Relaxed);
        self.window_bytes.store(windows, Relaxed);
        self.memo_bytes.store(memos, Relaxed);
    }
    /// What happened to queues of this shard since its last report; kept until it is taken.
    pub fn busy_queues(&self, queues: Vec<BusyQueue>) {
        let mut untold = self.busy.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        queues.into_iter().for_each(|busy| untold.add(busy));
    }
    fn park(&self, queue: &Arc<str>, parked: bool) {
        let mut map = self.parked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if parked {
            let known = map.len() < PARKED_QUEUES_MAX || map.contains_key(queue);
            *map.entry(if known { queue.clone() } else { "".into() }).or_insert(0) += 1;
            return;
        }
        let key: Arc<str> = if map.contains_key(queue) { queue.clone() } else { "".into() };
        if let Some(n) = map.get_mut(&key) {
            *n -= 1;
            if *n == 0 {
                map.remove(&key);
            }
        }
    }
}

/// A pop is parked while this lives.
pub struct ParkGuard {
    metrics: Arc<Metrics>,
    shard: usize,
    queue: Arc<str>,
}

impl Drop for ParkGuard {
    fn drop(&mut self) {
        self.metrics.shards[self.shard].park(&self.queue, false);
    }
}

impl Metrics {
    /// `pool_size`: most connections this broker may open (`DB_POOL_SIZE`).
    pub fn new(shards: usize, pool_size: usize) -> Metrics {
        let shards = (0..=shards).map(|_| ShardMetrics::default()).collect();
        Metrics { started: Instant::now(), shards, pool_size: pool_size as u64, key_malformed: false }
    }
    /// The block of shard `i`; only its thread may count there.
    pub fn shard(&self, i: usize) -> &ShardMetrics {
        &self.shards[i]
    }
    /// The block of the control thread.
    pub fn control(&self) -> &ShardMetrics {
        &self.shards[self.shards.len() - 1]
    }
    /// Counts a pop of `queue` as parked until the guard drops. `queue`: `""` for a discovery pop.
    pub fn park(self: &Arc<Self>, shard: usize, queue: Arc<str>) -> ParkGuard {
        self.shards[shard].park(&queue, true);
        ParkGuard { metrics: self.clone(), shard, queue }
    }

    // Reading: for scrapes and log lines, not for hot paths.

    pub fn uptime_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.shards.iter().for_each(|s| s.cells.add_to(&mut sums));
        sums
    }
    /// Fused commits of one kind, and the items in them.
    pub fn batches(&self, op: Op) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(fired, items), s| {
            let b = &s.batches[op as usize];
            (fired + b.fired.load(Relaxed), items + b.items.load(Relaxed))
        })
    }
    /// Quantiles of recent round trips of one kind, in milliseconds; 0 before the first.
    pub fn round_trip_ms<const N: usize>(&self, op: Op, quantiles: [f64; N]) -> [f64; N] {
        let mut all = Vec::new();
        for shard in &self.shards {
            let b = &shard.batches[op as usize];
            let filled = (b.fired.load(Relaxed) as usize).min(RING);
            all.extend(b.ring[..filled].iter().map(|cell| cell.load(Relaxed)));
        }
        all.sort_unstable();
        quantiles.map(|q| match all.len() {
            0 => 0.0,
            n => all[((n as f64 * q).ceil() as usize).clamp(1, n) - 1] as f64 / 1000.0,
        })
    }
    /// Database connections open, and those with a call in flight.
    pub fn connections(&self) -> (u64, u64) {
        let sum = |cell: fn(&ShardMetrics) -> &AtomicI64| {
            self.shards.iter().map(|s| cell(s).load(Relaxed)).sum::<i64>().max(0) as u64
        };
        (sum(|s| &s.connections_open), sum(|s| &s.connections_busy))
    }
    /// Bytes of all tails, of all dedup windows, and of what leases handed out.
    pub fn memory(&self) -> (u64, u64, u64) {
        let sum = |cell: fn(&ShardMetrics) -> &AtomicU64| self.shards.iter().map(|s| cell(s).load(Relaxed)).sum();
        (sum(|s| &s.tail_bytes), sum(|s| &s.window_bytes), sum(|s| &s.memo_bytes))
    }
    /// What the shards reported of their queues since the last call, each queue once.
    pub fn take_busy(&self) -> Vec<BusyQueue> {
        // Nothing else is done under a shard's lock.
        let take = |shard: &ShardMetrics| {
            std::mem::take(&mut *shard.busy.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
        };
        let mut all: Vec<BusyQueue> = self.shards.iter().flat_map(|shard| take(shard).take()).collect();
        all.sort_unstable_by(|a, b| (a.tenant, &a.queue).cmp(&(b.tenant, &b.queue)));
        all.dedup_by(|next, first| {
            let same = (next.tenant, &next.queue) == (first.tenant, &first.queue);
            if same {
                first.add(next);
            }
            same
        });
        all
    }
    /// How late a timer was at most since the last call.
    pub fn take_loop_lag_max(&self) -> u64 {
        self.shards.iter().map(|s| s.loop_lag_recent.swap(0, Relaxed)).max().unwrap_or(0)
    }
    /// Parked pops by queue name, sorted.
    pub fn parked(&self) -> Vec<(Arc<str>, u64)> {
        let mut all: HashMap<Arc<str>, u64> = HashMap::new();
        for shard in &self.shards {
            let map = shard.parked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for (queue, n) in map.iter() {
                *all.entry(queue.clone()).or_insert(0) += u64::from(*n);
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort();
        all
    }
}

/// Resident memory of this process in bytes; 0 where procfs is missing.
pub fn resident_bytes() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(0) as u64;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_add_the_blocks_of_all_shards() {
        let metrics = Metrics::new(2, 10);
        metrics.shard(0).push(1, 100);
        metrics.shard(1).push(2, 5);
        metrics.control().db_error();
        metrics.shard(1).pop(0);
        metrics.shard(1).pop(7);
        let sums = metrics.sums();
        assert_eq!((sums.push_requests, sums.push_messages), (3, 105));
        assert_eq!((sums.pop_requests, sums.pop_messages, sums.pop_empty, sums.db_errors), (2, 7, 1, 1));
        assert_eq!(metrics.sums().since(&sums), Sums::default());
    }

    #[test]
    fn quantiles_see_only_recent_round_trips() {
        let metrics = Metrics::new(1, 10);
        assert_eq!(metrics.round_trip_ms(Op::Push, [0.5, 0.99]), [0.0, 0.0]);
        (0..5).for_each(|_| metrics.shard(0).batch(Op::Push, 1, 1_000_000));
        (0..RING).for_each(|i| metrics.shard(0).batch(Op::Push, 1, i as u64 * 1000));
        assert_eq!(metrics.round_trip_ms(Op::Push, [0.5, 1.0]), [511.0, 1023.0]);
        assert_eq!(metrics.batches(Op::Push), (RING as u64 + 5, RING as u64 + 5));
        assert_eq!(metrics.batches(Op::Ack), (0, 0));
    }

    #[test]
    fn a_pop_counts_as_parked_until_its_guard_drops() {
        let metrics = Arc::new(Metrics::new(2, 10));
        let a = metrics.park(0, "q".into());
        let b = metrics.park(1, "q".into());
        assert_eq!(metrics.parked(), vec![("q".into(), 2)]);
        drop(a);
        drop(b);
        assert!(metrics.parked().is_empty());
    }

    #[test]
    fn reports_of_queues_wait_however_long_nobody_asks() {
        let metrics = Metrics::new(2, 10);
        let report = |queue: &str, pushed, hot| {
            let activity = queen_shards::activity::Activity { pushed, ..Default::default() };
            BusyQueue { tenant: queen_shards::ids::TenantId::DEFAULT, queue: queue.into(), activity, hot }
        };
        // An hour of seconds in which each shard reports two queues.
        for _ in 0..3600 {
            for shard in 0..2 {
                metrics.shard(shard).busy_queues(vec![report("a", 1, 5), report("b", 2, 0)]);
            }
        }
        assert_eq!(metrics.take_busy(), [report("a", 7200, 10), report("b", 14_400, 0)]);
        assert_eq!(metrics.take_busy(), []);
    }

    #[test]
    fn names_of_parked_queues_are_bounded() {
        let metrics = Arc::new(Metrics::new(1, 10));
        let mut guards: Vec<_> = (0..PARKED_QUEUES_MAX + 5).map(|i| metrics.park(0, i.to_string().into())).collect();
        assert_eq!(metrics.parked().len(), PARKED_QUEUES_MAX + 1);
        guards.drain(..).for_each(drop);
        assert!(metrics.parked().is_empty());
    }
}
