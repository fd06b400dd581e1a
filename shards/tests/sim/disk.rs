//! The spool of each broker: records that survive it, written in order, handed back oldest first while the store
//! answers. What breaks: writes that fail, answers that a restart swallows, maintenance.
//!
//! Holds: a record is durable before its answer sets out; answers and records of a shard arrive in the order in which
//! they set out. Source: architecture (When PostgreSQL is away), rule 17.

use crate::coverage::Thing;
use crate::oracle::At;
use crate::rng::Rng;
use crate::store::Planted;
use crate::world::{Due, World};
use queen_shards::command::{DrainVerdict, Drained, Event, SpoolId, SpoolRecord};
use queen_shards::handed::{Handed, Room};
use queen_shards::ids::Stamp;
use std::collections::{BTreeMap, VecDeque};

/// Records that may be with the shards of a broker at once.
const HANDED_MAX: Room = Room { records: 40, bytes: 1 << 20 };
/// Between two rounds of tries of refused records.
const ROUND_US: u64 = 400_000;

/// What happens to a spool.
pub enum Step {
    Write {
        at: At,
        epoch: u64,
        token: u64,
        record: Box<SpoolRecord>,
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
    /// Refused records are tried again.
    Round {
        broker: usize,
        epoch: u64,
    },
}

struct Kept {
    id: SpoolId,
    record: SpoolRecord,
    /// Handed over, or put off.
    read: bool,
    refused: bool,
    /// Its answer set out: what a planted bug may lose.
    answered: bool,
    /// Written before the broker started: its shards do not know of it.
    found: bool,
}

pub struct Disk {
    records: VecDeque<Kept>,
    handed: Handed,
    made: u64,
    found: bool,
    up: bool,
    told_read: (bool, Vec<u64>),
    /// Something was written or read since the shards were told.
    touched: bool,
    pub maintenance: bool,
    /// When the last message to a shard arrives, and the last write of it lands.
    arrives: BTreeMap<usize, u64>,
    lands: BTreeMap<usize, u64>,
    /// Writes under way.
    writing: usize,
}

impl Default for Disk {
    fn default() -> Disk {
        let (records, told_read, arrives, lands) = Default::default();
        let (made, found, up, touched, maintenance, writing) = Default::default();
        let handed = Handed::new(HANDED_MAX);
        Disk { records, handed, made, found, up, told_read, touched, maintenance, arrives, lands, writing }
    }
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
        disk.records.iter_mut().for_each(|kept| (kept.read, kept.found, kept.refused) = (false, true, false));
        (disk.found, disk.up, disk.told_read, disk.writing) = (false, false, (false, Vec::new()), 0);
        disk.handed = Handed::new(HANDED_MAX);
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
        self.disk_step(ROUND_US, Step::Round { broker, epoch });
    }

    pub fn spool(&mut self, at: At, token: u64, record: SpoolRecord) {
        let wait = self.disk_rng.range(50, 5_000);
        let disk = &mut self.disks[at.0];
        disk.writing += 1;
        let when = (self.t + wait).max(disk.lands.get(&at.1).copied().unwrap_or(0));
        disk.lands.insert(at.1, when);
        let epoch = self.epoch(at.0);
        self.disk_step(when - self.t, Step::Write { at, epoch, token, record: Box::new(record) });
    }

    pub fn disk_turns(&mut self, step: Step) {
        match step {
            Step::Write { at, epoch, token, record } if epoch == self.epoch(at.0) => self.write(at, token, *record),
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
            Step::Round { broker, epoch } if epoch == self.epoch(broker) => {
                self.disks[broker].handed.next_round();
                self.try_again(broker);
                self.disk_step(ROUND_US, Step::Round { broker, epoch });
            }
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
                let kept = Kept { id, record, read: false, refused: false, answered: true, found: false };
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
        let disk = &self.disks[broker];
        if disk.found && disk.up && !disk.maintenance {
            self.try_again(broker);
            let room = self.disks[broker].handed.room().records.min(self.disk_rng.range(1, 12) as usize);
            let mut drained = self.read_later(broker, room);
            let Disk { records, handed, touched, .. } = &mut self.disks[broker];
            let mut unread: Vec<&mut Kept> = records.iter_mut().filter(|kept| !kept.read).collect();
            *touched |= !unread.is_empty() || !drained.is_empty();
            if newest_first {
                unread.reverse();
            }
            for kept in unread {
                if room <= drained.len() {
                    break;
                }
                kept.read = true;
                let lane = kept.record.draft.lane.hash();
                if handed.waits(lane) {
                    handed.put_off(kept.id, lane);
                    self.oracle.hit(Thing::PutOff);
                    continue;
                }
                handed.hand_over(kept.id, lane, 1);
                drained.push(Drained { id: kept.id, record: kept.record.clone() });
            }
            let mut parts: Vec<Vec<Drained>> = vec![Vec::new(); shards];
            drained.into_iter().for_each(|one| parts[one.record.draft.lane.owner(shards)].push(one));
            for (shard, records) in parts.into_iter().enumerate().filter(|(_, records)| !records.is_empty()) {
                self.tell_shard((broker, shard), Event::Drain { records });
            }
        }
        self.told_read(broker);
    }

    /// Records that were put off and whose turn it is. Some cannot be read any more.
    fn read_later(&mut self, broker: usize, room: usize) -> Vec<Drained> {
        let mut drained = Vec::new();
        while drained.len() < room
            && let Some((id, lane)) = self.disks[broker].handed.next_later()
        {
            let lost = !self.healed && self.disk_rng.chance(self.plan.faults.disk / 10);
            let disk = &mut self.disks[broker];
            let place = disk.records.iter().position(|kept| kept.id == id).expect("nobody decided it");
            if lost {
                disk.handed.lose(lane);
                let kept = disk.records.remove(place).expect("just seen");
                disk.touched = true;
                self.oracle.hit(Thing::SpoolDamaged);
                self.oracle.lost(broker, &kept.record);
                continue;
            }
            disk.handed.hand_over(id, lane, 1);
            drained.push(Drained { id, record: disk.records[place].record.clone() });
        }
        drained
    }

    /// A record that is damaged, and so never comes.
    fn lose_some(&mut self, broker: usize) {
        if self.healed || !self.disk_rng.chance(self.plan.faults.disk / 10) {
            return;
        }
        let disk = &mut self.disks[broker];
        let Some(place) = disk.records.iter().position(|kept| !kept.read) else { return };
        let kept = disk.records.remove(place).expect("just seen");
        disk.touched = true;
        self.oracle.hit(Thing::SpoolDamaged);
        self.oracle.lost(broker, &kept.record);
    }

    /// Tells the shards when it changes whether all is handed over, and which lanes but for.
    fn told_read(&mut self, broker: usize) {
        let disk = &mut self.disks[broker];
        let all = disk.found && disk.up && !disk.maintenance && disk.records.iter().all(|kept| kept.read);
        let but = if all { disk.handed.lanes_put_off() } else { Vec::new() };
        let touched = std::mem::take(&mut disk.touched);
        if disk.told_read != (all, but.clone()) || (all && touched) {
            disk.told_read = (all, but.clone());
            for shard in 0..self.plan.brokers[broker] {
                self.tell_shard((broker, shard), Event::SpoolRead { all, but: but.clone() });
            }
        }
    }

    pub fn drained(&mut self, at: At, id: SpoolId, verdict: DrainVerdict) {
        let disk = &mut self.disks[at.0];
        let Some(place) = disk.records.iter().position(|kept| kept.id == id && kept.read) else {
            self.oracle.fail(None, &format!("{id:?} is drained, and was not handed over"));
        };
        if let DrainVerdict::Refused { written } = verdict {
            let Some(refused) = disk.handed.refuse(id, written) else {
                self.oracle.fail(None, &format!("{id:?} is refused, and is not with a shard"));
            };
            disk.records[place].refused = true;
            self.oracle.drain_refused(&disk.records[place].record);
            if refused.aside {
                disk.handed.set_aside(id);
                let kept = disk.records.remove(place).expect("just seen");
                disk.touched = true;
                self.oracle.lost(at.0, &kept.record);
                self.tell_shards(at.0, || Event::RefusedGone { records: vec![id] });
            }
            return;
        }
        let new = matches!(verdict, DrainVerdict::Stored { duplicates } if duplicates < disk.records[place].record.draft.count);
        if !disk.handed.store(id, new) {
            self.oracle.fail(None, &format!("{id:?} is stored, and is not with a shard"));
        }
        let kept = disk.records.remove(place).expect("just seen");
        if kept.refused {
            self.oracle.hit(Thing::DrainCured);
        }
        let now = self.moment();
        self.oracle.drained(now, at, &kept.record, verdict);
    }

    /// One round of tries for all.
    fn try_again(&mut self, broker: usize) {
        let records = self.disks[broker].handed.try_again();
        if !records.is_empty() {
            self.tell_shards(broker, || Event::RefusedAgain { records: records.clone() });
        }
    }

    fn tell_shards(&mut self, broker: usize, event: impl Fn() -> Event) {
        (0..self.plan.brokers[broker]).for_each(|shard| self.tell_shard((broker, shard), event()));
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
