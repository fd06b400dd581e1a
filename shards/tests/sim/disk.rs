//! The spool of each broker: records that survive it, written in order, handed back oldest first while the store
//! answers. What breaks: writes that fail, answers that a restart swallows, maintenance.
//!
//! Holds: a record is durable before its answer sets out; answers and records of a shard arrive in the order in which
//! they set out. Source: architecture 8, 13.17.

use crate::coverage::Thing;
use crate::oracle::At;
use crate::rng::Rng;
use crate::store::Planted;
use crate::world::{Due, World};
use queen_shards::command::{DrainVerdict, Drained, Event, SpoolId, SpoolRecord};
use queen_shards::ids::Stamp;
use std::collections::{BTreeMap, VecDeque};

/// Records that may be with the shards of a broker at once.
const HANDED_MAX: usize = 40;
/// Refusals after which a record is set aside.
const REFUSALS_MAX: u32 = 5;

/// What happens to a spool.
pub enum Step {
    Write {
        at: At,
        epoch: u64,
        token: u64,
        record: SpoolRecord,
    },
    /// The broker looks at the store, and hands records over.
    Pulse {
        broker: usize,
        epoch: u64,
    },
    Drain {
        broker: usize,
        epoch: u64,
    },
    Found {
        broker: usize,
        epoch: u64,
    },
    /// What becomes of a refused record.
    Word {
        at: At,
        epoch: u64,
        id: SpoolId,
    },
}

struct Kept {
    id: SpoolId,
    record: SpoolRecord,
    handed: bool,
    refusals: u32,
    /// Its answer set out: what a planted bug may lose.
    answered: bool,
    /// Written before the broker started: its shards do not know of it.
    found: bool,
}

#[derive(Default)]
pub struct Disk {
    records: VecDeque<Kept>,
    made: u64,
    found: bool,
    up: bool,
    told_all: bool,
    /// Something was written or read since the shards were told.
    touched: bool,
    pub maintenance: bool,
    /// When the last message to a shard arrives, and the last write of it lands.
    arrives: BTreeMap<usize, u64>,
    lands: BTreeMap<usize, u64>,
    /// Writes under way.
    writing: usize,
}

impl Disk {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.writing == 0
    }

    /// Oldest acceptance of what is not stored yet.
    pub fn floor(&self) -> Option<Stamp> {
        self.records.iter().map(|kept| kept.record.accepted_at).min()
    }
}

impl World {
    fn disk_step(&mut self, after: u64, step: Step) {
        self.later(after, Due::Disk(step));
    }

    /// A broker starts: nothing was handed to these shards, and what was being written is lost.
    pub fn start_disk(&mut self, broker: usize) {
        let early = self.store.planted == Some(Planted::SpooledEarly);
        let disk = &mut self.disks[broker];
        if early {
            let kept = disk.records.iter().rposition(|kept| kept.answered).map_or(0, |last| last / 2 + 1);
            disk.records.truncate(kept.min(disk.records.len()));
        }
        disk.records.iter_mut().for_each(|kept| (kept.handed, kept.found, kept.refusals) = (false, true, 0));
        (disk.found, disk.up, disk.told_all, disk.writing) = (false, false, false, 0);
        (disk.arrives, disk.lands) = Default::default();
        let epoch = self.epoch(broker);
        if self.disks[broker].records.is_empty() {
            self.find(broker);
        } else {
            let found = self.disk_rng.range(100, 200_000);
            self.disk_step(found, Step::Found { broker, epoch });
        }
        self.disk_step(1, Step::Pulse { broker, epoch });
        self.disk_step(2_000, Step::Drain { broker, epoch });
    }

    pub fn spool(&mut self, at: At, token: u64, record: SpoolRecord) {
        let wait = self.disk_rng.range(50, 5_000);
        let disk = &mut self.disks[at.0];
        disk.writing += 1;
        let when = (self.t + wait).max(disk.lands.get(&at.1).copied().unwrap_or(0));
        disk.lands.insert(at.1, when);
        let epoch = self.epoch(at.0);
        self.disk_step(when - self.t, Step::Write { at, epoch, token, record });
    }

    pub fn disk_turns(&mut self, step: Step) {
        match step {
            Step::Write { at, epoch, token, record } if epoch == self.epoch(at.0) => self.write(at, token, record),
            Step::Found { broker, epoch } if epoch == self.epoch(broker) => self.find(broker),
            Step::Pulse { broker, epoch } if epoch == self.epoch(broker) => {
                let up = self.healed || !self.is_out();
                self.disks[broker].up = up;
                for shard in 0..self.plan.brokers[broker] {
                    self.tell_shard((broker, shard), Event::Store { up });
                }
                self.told_read(broker);
                let again = self.disk_rng.range(100_000, 500_000);
                self.disk_step(again, Step::Pulse { broker, epoch });
            }
            Step::Drain { broker, epoch } if epoch == self.epoch(broker) => {
                self.hand_over(broker);
                let again = self.disk_rng.range(500, 60_000);
                self.disk_step(again, Step::Drain { broker, epoch });
            }
            Step::Word { at, epoch, id } if epoch == self.epoch(at.0) => self.say_of_refused(at, id),
            _ => {}
        }
    }

    fn write(&mut self, at: At, token: u64, record: SpoolRecord) {
        let fails = !self.healed && self.disk_rng.chance(self.plan.faults.disk);
        let lost = self.store.strikes(&mut self.disk_rng, Planted::LoseSpooled, 100);
        let disk = &mut self.disks[at.0];
        disk.writing -= 1;
        disk.touched = true;
        if fails {
            self.oracle.hit(Thing::SpoolFailed);
        } else {
            disk.made += 1;
            let id = SpoolId { file: disk.made / 16, at: disk.made };
            if !lost {
                let kept = Kept { id, record, handed: false, refusals: 0, answered: true, found: false };
                disk.records.push_back(kept);
            }
        }
        self.tell_shard(at, Event::Spooled { token, written: !fails });
    }

    fn find(&mut self, broker: usize) {
        let shards = self.plan.brokers[broker];
        let mut lanes: Vec<BTreeMap<u64, u32>> = vec![BTreeMap::new(); shards];
        let disk = &mut self.disks[broker];
        for kept in disk.records.iter().filter(|kept| kept.found) {
            let lane = &kept.record.draft.lane;
            *lanes[lane.owner(shards)].entry(lane.hash()).or_default() += 1;
        }
        disk.found = true;
        if !disk.records.is_empty() {
            self.oracle.hit(Thing::FoundAtStart);
        }
        for (shard, lanes) in lanes.into_iter().enumerate() {
            if lanes.is_empty() {
                // Known before anything is asked.
                let (at, epoch) = ((broker, shard), self.epoch(broker));
                let event = Event::SpoolFound { lanes: Vec::new() };
                self.later(0, Due::Deliver { at, epoch, event });
                continue;
            }
            self.tell_shard((broker, shard), Event::SpoolFound { lanes: lanes.into_iter().collect() });
        }
    }

    fn hand_over(&mut self, broker: usize) {
        let newest_first = self.store.planted == Some(Planted::DrainNewestFirst);
        let shards = self.plan.brokers[broker];
        self.lose_some(broker);
        let disk = &mut self.disks[broker];
        if disk.found && disk.up && !disk.maintenance {
            disk.touched |= disk.records.iter().any(|kept| !kept.handed);
            let with_shards = disk.records.iter().filter(|kept| kept.handed).count();
            let mut parts: Vec<Vec<Drained>> = vec![Vec::new(); shards];
            let mut open: Vec<&mut Kept> = disk.records.iter_mut().filter(|kept| !kept.handed).collect();
            if newest_first {
                open.reverse();
            }
            let most = self.disk_rng.range(1, 12) as usize;
            for kept in open.into_iter().take(HANDED_MAX.saturating_sub(with_shards).min(most)) {
                kept.handed = true;
                let owner = kept.record.draft.lane.owner(shards);
                parts[owner].push(Drained { id: kept.id, record: kept.record.clone() });
            }
            for (shard, records) in parts.into_iter().enumerate().filter(|(_, records)| !records.is_empty()) {
                self.tell_shard((broker, shard), Event::Drain { records });
            }
        }
        self.told_read(broker);
    }

    /// A record that is damaged, and so never comes.
    fn lose_some(&mut self, broker: usize) {
        if self.healed || !self.disk_rng.chance(self.plan.faults.disk / 10) {
            return;
        }
        let disk = &mut self.disks[broker];
        let Some(place) = disk.records.iter().position(|kept| !kept.handed) else { return };
        let kept = disk.records.remove(place).expect("just seen");
        disk.touched = true;
        self.oracle.hit(Thing::SpoolDamaged);
        self.oracle.lost(broker, &kept.record);
    }

    /// Tells the shards when it changes whether all is handed over.
    fn told_read(&mut self, broker: usize) {
        let disk = &mut self.disks[broker];
        let all = disk.found && disk.up && !disk.maintenance && disk.records.iter().all(|kept| kept.handed);
        let touched = std::mem::take(&mut disk.touched);
        if std::mem::replace(&mut disk.told_all, all) != all || (all && touched) {
            for shard in 0..self.plan.brokers[broker] {
                self.tell_shard((broker, shard), Event::SpoolRead { all });
            }
        }
    }

    pub fn drained(&mut self, at: At, id: SpoolId, verdict: DrainVerdict) {
        let records = &mut self.disks[at.0].records;
        let Some(place) = records.iter().position(|kept| kept.id == id && kept.handed) else {
            self.oracle.fail(None, &format!("{id:?} is drained, and was not handed over"));
        };
        if verdict == DrainVerdict::Refused {
            records[place].refusals += 1;
            self.oracle.drain_refused(&records[place].record);
            let (wait, epoch) = (self.disk_rng.range(500, 400_000), self.epoch(at.0));
            return self.disk_step(wait, Step::Word { at, epoch, id });
        }
        let kept = records.remove(place).expect("just seen");
        if kept.refusals > 0 {
            self.oracle.hit(Thing::DrainCured);
        }
        let now = self.moment();
        self.oracle.drained(now, at, &kept.record, verdict);
    }

    /// A refused record is tried again, or set aside.
    fn say_of_refused(&mut self, at: At, id: SpoolId) {
        let records = &mut self.disks[at.0].records;
        let place = records.iter().position(|kept| kept.id == id).expect("nothing else removes it");
        if records[place].refusals < REFUSALS_MAX {
            return self.tell_shard(at, Event::RefusedAgain { records: vec![id] });
        }
        let kept = records.remove(place).expect("just seen");
        self.oracle.lost(at.0, &kept.record);
        self.tell_shard(at, Event::RefusedGone { records: vec![id] });
    }

    /// In the order in which they set out.
    fn tell_shard(&mut self, at: At, event: Event) {
        let wait = self.disk_rng.range(5, 500);
        let disk = &mut self.disks[at.0];
        let when = (self.t + wait).max(disk.arrives.get(&at.1).copied().unwrap_or(0));
        disk.arrives.insert(at.1, when);
        let epoch = self.epoch(at.0);
        self.later(when - self.t, Due::Deliver { at, epoch, event });
    }

    /// Push maintenance of a broker goes on or off.
    pub fn switch_maintenance(&mut self, broker: usize, on: bool) {
        self.disks[broker].maintenance = on;
        self.told_read(broker);
    }

    pub fn disks_empty(&self) -> bool {
        self.disks.iter().all(Disk::is_empty)
    }
}

/// The generator of all disks of a seed.
pub fn rng(seed: u64) -> Rng {
    Rng::new(seed ^ 0xd15c)
}
