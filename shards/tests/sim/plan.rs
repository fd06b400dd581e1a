//! What a seed decides before the first turn: how many brokers, which queues, how much goes wrong.

use crate::cold::IMPLICIT;
use crate::rng::Rng;
use queen_shards::command::{QUEUE_MODE, Start};
use queen_shards::effect::Options;
use queen_shards::ids::Stamp;
use queen_shards::limits::{KEYS_PAGE, MEMO_BYTES_MAX, READY_LOW, READY_MAX, SEAL_KEYS_MIN};
use std::sync::Arc;

/// PostgreSQL's clock when the world begins.
pub const EPOCH: Stamp = Stamp(1_790_000_000_000_000);

pub struct QueuePlan {
    pub name: Arc<str>,
    pub partitions: Vec<Arc<str>>,
    /// Configured before anything happens; `None`: made by the first push or pop.
    pub options: Option<Options>,
}

/// How often things go wrong, per mille of store calls.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub busy: u32,
    pub unavailable: u32,
    pub unknown: u32,
    pub late: u32,
    pub outage: bool,
    pub poison: bool,
    pub jumps: bool,
    /// Writes of the spool, per mille.
    pub disk: u32,
}

pub struct Plan {
    /// Shards of each broker.
    pub brokers: Vec<usize>,
    pub queues: Vec<QueuePlan>,
    pub groups: Vec<(Arc<str>, Start)>,
    pub faults: Faults,
    /// A broker that is not simulated writes too.
    pub foreign: bool,
    pub restarts: bool,
    /// The store becomes another one: a standby is promoted, with all that was committed.
    pub failovers: bool,
    pub retention: bool,
    pub deletes: bool,
    pub configures: bool,
    pub seeks: bool,
    /// Groups are deleted under traffic.
    pub regroups: bool,
    /// Push maintenance comes and goes.
    pub maintenance: bool,
    /// From when on the store takes what it refused: a right that was missing.
    pub cured: Option<Stamp>,
    /// How long a store call takes each way, in microseconds, and how long a late one.
    pub latency: (u64, u64),
    pub late_us: u64,
    pub producers: usize,
    pub consumers: usize,
    /// Pushed keys that were pushed before, per mille.
    pub repeats: u32,
    /// Bytes of windows and tails.
    pub memory: (usize, usize, usize),
    pub window_batch: u32,
    /// Keys of a window that may be sealed, and of a page of a load.
    pub sealing: (usize, u32),
    /// Parts per million that the clocks run wrong.
    pub drift: i64,
    /// A registration makes no cursors, as on a queue of millions of partitions; and partitions one page of a scan looks at.
    pub sparse: bool,
    pub look: usize,
    /// Lanes in a ready ring: the scan goes on below, and lanes find no room above.
    pub ring: (usize, usize),
}

impl Plan {
    pub fn new(rng: &mut Rng) -> Plan {
        let calm = rng.chance(250);
        let solo = rng.chance(500);
        let brokers = match solo {
            true => vec![rng.range(1, 4) as usize],
            false if rng.chance(600) => vec![rng.range(1, 3) as usize, rng.range(1, 3) as usize],
            false => vec![rng.range(1, 4) as usize],
        };
        let some = |rng: &mut Rng, most: u64| if calm || rng.chance(500) { 0 } else { rng.range(1, most) as u32 };
        let faults = Faults {
            busy: some(rng, 200),
            unavailable: some(rng, 40),
            unknown: some(rng, 40),
            late: some(rng, 30),
            outage: !calm && rng.chance(200),
            poison: !calm && rng.chance(100),
            jumps: !calm && rng.chance(150),
            disk: 0,
        };
        let foreign = !solo && (brokers.len() == 1 || rng.chance(200));
        let queues = (0..rng.range(1, 3)).map(|n| queue(rng, n)).collect();
        let groups = [(QUEUE_MODE, Start::All), ("all", Start::All), ("new", Start::New), ("at", Start::At(EPOCH))];
        let most = rng.range(1, 4) as usize;
        let mut groups: Vec<(Arc<str>, Start)> = groups.into_iter().map(|(name, start)| (name.into(), start)).collect();
        rng.shuffle(&mut groups);
        groups.truncate(most);
        if let Some((_, start @ Start::At(_))) = groups.iter_mut().find(|(name, _)| &**name == "at") {
            *start = Start::At(Stamp(EPOCH.0 + rng.below(3_000_000) as i64));
        }
        let small = rng.chance(300);
        Plan {
            brokers,
            queues,
            groups,
            faults,
            foreign,
            restarts: !calm && rng.chance(150),
            failovers: false,
            retention: rng.chance(300),
            deletes: rng.chance(120),
            configures: rng.chance(250),
            seeks: rng.chance(150),
            regroups: false,
            maintenance: false,
            cured: None,
            latency: *rng.pick(&[(50, 400), (200, 2_000), (500, 8_000)]),
            late_us: *rng.pick(&[50_000, 300_000, 2_500_000]),
            producers: rng.range(1, 4) as usize,
            consumers: rng.range(1, 6) as usize,
            repeats: *rng.pick(&[0, 100, 300, 600]),
            memory: if small { (2_000, 4_000, 1_500) } else { (8 << 20, 4 << 20, 1 << 20) },
            window_batch: 20,
            sealing: (SEAL_KEYS_MIN, KEYS_PAGE),
            drift: if calm { 0 } else { rng.range(0, 200) as i64 - 100 },
            sparse: false,
            look: usize::MAX,
            ring: (READY_LOW, READY_MAX),
        }
    }

    /// Some queues are large beside the memory for them. Decided by a generator of its own.
    pub fn crowd(&mut self, rng: &mut Rng) {
        self.sparse = rng.chance(300);
        if rng.chance(400) {
            self.look = rng.range(1, 4) as usize;
        }
        if rng.chance(400) {
            let low = rng.range(1, 3) as usize;
            self.ring = (low, low + rng.below(3) as usize);
        }
    }

    /// Whether groups are deleted. Decided by a generator of its own.
    pub fn regroup(&mut self, rng: &mut Rng) {
        self.regroups = rng.chance(200);
    }

    /// Half of the brokers with little memory seal what busy partitions have. Decided by a generator of its own.
    pub fn seal(&mut self, rng: &mut Rng) {
        if self.memory.0 < 1 << 20 && rng.chance(500) {
            self.memory.0 = 500;
            self.sealing = (rng.range(17, 60) as usize, *rng.pick(&[8, 30, 100]));
        }
    }

    /// What goes wrong with disks. Decided by a generator of its own.
    pub fn break_disks(&mut self, rng: &mut Rng) {
        if rng.chance(200) {
            self.faults.disk = rng.range(5, 300) as u32;
        }
        self.maintenance = rng.chance(150);
        if self.faults.poison && rng.chance(750) {
            // While pushes still come, and what was refused once is still tried again.
            self.cured = Some(Stamp(EPOCH.0 + rng.range(200_000, 3_000_000) as i64));
        }
    }

    /// Whether the store becomes another one. Decided by a generator of its own.
    pub fn fail_over(&mut self, rng: &mut Rng) {
        self.failovers = !self.calm() && rng.chance(300);
    }

    /// Bytes of what leases handed out.
    pub fn memo_bytes(&self) -> usize {
        if self.memory.0 < 1 << 20 { 400 } else { MEMO_BYTES_MAX }
    }

    /// Nothing goes wrong that sends a push to the spool.
    pub fn calm(&self) -> bool {
        let faults = &self.faults;
        let store = faults.busy + faults.unavailable + faults.unknown + faults.late;
        store == 0 && !faults.outage && !faults.poison && !self.restarts && !self.maintenance && !self.failovers
    }

    /// Nobody else writes, so whatever happens to the log is known to the one engine.
    pub fn solo(&self) -> bool {
        self.brokers.len() == 1 && !self.foreign && !self.restarts
    }
}

fn queue(rng: &mut Rng, n: u64) -> QueuePlan {
    let partitions = (0..rng.range(1, 6)).map(|p| Arc::from(format!("p{p}"))).collect();
    let options = rng.chance(750).then(|| options(rng));
    QueuePlan { name: format!("q{n}").into(), partitions, options }
}

/// Options worth testing: everything is over within seconds.
pub fn options(rng: &mut Rng) -> Options {
    Options {
        lease_secs: rng.range(1, 4) as u32,
        retry_limit: rng.range(0, 3) as u32,
        dead_letter: rng.chance(750),
        delay_secs: *rng.pick(&[0, 0, 0, 1, 2]),
        window_secs: *rng.pick(&[0, 0, 0, 0, 1, 2]),
        dedup_secs: *rng.pick(&[0, 1, 2, 5, 3600, 3600]),
        fill_wait_ms: *rng.pick(&[0, 0, 50]),
        ..IMPLICIT
    }
}
