//! What happens to a deployment while it works: options change, queues go, cursors are moved, the log is trimmed,
//! clocks jump, brokers restart, others write.

use crate::coverage::Thing;
use crate::ledger::{Note, WrittenSegment};
use crate::plan;
use crate::rng::Rng;
use crate::world::{Due, World};
use queen_shards::command::{Codec, Command};
use queen_shards::ids::{GroupId, PartitionId, QueueId, Slot, Stamp, TenantId};
use std::sync::Arc;

/// A change that was stored and is being announced.
pub struct Change {
    pub queue: QueueId,
    pub slots: Vec<Slot>,
    /// Which entries of the queue's versions end when all have heard.
    pub ends: std::ops::RangeInclusive<usize>,
}

impl World {
    /// One act of an operator or of fate.
    pub fn meddle(&mut self) {
        let plan = &self.plan;
        let may = [
            (plan.retention, 0),
            (plan.retention, 0),
            (plan.deletes, 1),
            (plan.configures, 2),
            (plan.seeks, 3),
            (plan.faults.jumps, 4),
            (plan.restarts, 5),
            (plan.foreign, 6),
            (plan.foreign, 6),
            (plan.faults.outage, 7),
            (plan.retention, 8),
            (plan.maintenance, 9),
            (plan.failovers, 10),
        ];
        let acts: Vec<u32> = may.into_iter().filter(|(may, _)| *may).map(|(_, act)| act).collect();
        if acts.is_empty() {
            return;
        }
        match *self.rng.pick(&acts) {
            0 => self.trim(),
            1 if self.rng.chance(120) => self.delete(),
            2 if self.rng.chance(300) => self.configure(),
            3 if self.rng.chance(300) => self.seek(),
            4 => self.jump_clock(),
            5 if self.rng.chance(150) => {
                let broker = self.rng.index(self.plan.brokers.len());
                self.oracle.hit(Thing::Restart);
                self.restart(broker);
            }
            6 => self.write_abroad(),
            7 if self.rng.chance(80) => {
                let lasts = self.rng.range(50_000, 3_000_000);
                self.outage(lasts);
            }
            8 => self.purge(),
            10 if self.rng.chance(150) => self.fail_over(),
            9 if self.rng.chance(200) => {
                let broker = self.rng.index(self.plan.brokers.len());
                let on = !self.disks[broker].maintenance;
                self.switch_maintenance(broker, on);
            }
            _ => {}
        }
    }

    /// Rows are locked for long in some seeds, which it says, and partitions lost; decided by a generator of its own.
    pub fn lock_rows(&mut self) -> bool {
        if self.plan.calm() || !self.lock_rng.chance(120) {
            return false;
        }
        self.later(20_000, Due::Lock);
        if self.plan.deletes {
            let rng = Rng::new(self.lock_rng.below(u64::MAX));
            self.store.lost = (200, Some(rng));
        }
        true
    }

    /// Somebody holds the rows of a partition: of its log and of its cursors. Source: reliability 6, F14.
    pub fn lock_row(&mut self) {
        if self.healed {
            return;
        }
        let ids: Vec<PartitionId> = self.store.partitions.keys().copied().collect();
        if !ids.is_empty() {
            self.oracle.hit(Thing::RowLocked);
            let (held, lasts) = (*self.lock_rng.pick(&ids), self.lock_rng.range(10_000, 6_000_000));
            self.store.locked = Some((held, Stamp(self.moment().stamp.0 + lasts as i64)));
        }
        let again = self.lock_rng.range(50_000, 4_000_000);
        self.later(again, Due::Lock);
    }

    fn any_partition(&mut self) -> Option<PartitionId> {
        let ids: Vec<PartitionId> = self.store.partitions.keys().copied().collect();
        (!ids.is_empty()).then(|| *self.rng.pick(&ids))
    }

    /// Retention: `log_start` now, the segments below it now or later.
    fn trim(&mut self) {
        let Some(id) = self.any_partition() else { return };
        if self.rng.chance(500)
            && let Some(to) = self.store.move_log_start(&mut self.rng, id)
        {
            let part = self.oracle.ledger.parts.get_mut(&id).expect("known");
            part.log_start = to;
            self.oracle.ledger.note(self.t, id, Note::LogStart(to));
        }
        if self.rng.chance(700) {
            self.store.sweep(&mut self.rng, id);
        }
    }

    /// Evidence older than any window, and than the floor of ack memory, goes. The floor is 900 s; the simulation
    /// lives seconds, so here it is three.
    fn purge(&mut self) {
        let Some(id) = self.any_partition() else { return };
        let queue = &self.oracle.ledger.queues[&self.oracle.ledger.parts[&id].queue];
        let window = queue.versions.iter().map(|(_, _, options)| options.dedup_secs).max().unwrap_or(0).max(3);
        // Nor what an undrained record of any broker may need. Source: rule 14.
        let floor = self.disks.iter().filter_map(|disk| disk.floor()).min().unwrap_or(Stamp(i64::MAX));
        let newest = self.moment().stamp.min(floor);
        let newest = self.oracle.oldest_push().map_or(newest, |oldest| newest.min(oldest));
        let before = Stamp(newest.0 - window as i64 * 1_000_000 - 1_000_000);
        if let Some(to) = self.store.purge_evidence(id, before) {
            self.oracle.hit(Thing::EvidencePurged);
            self.oracle.ledger.parts.get_mut(&id).expect("known").forgotten = to;
            self.oracle.ledger.note(self.t, id, Note::Purged(to));
        }
    }

    fn delete(&mut self) {
        let name = self.rng.pick(&self.plan.queues).name.clone();
        let Some(queue) = self.store.delete_queue(&mut self.rng, &name) else { return };
        self.oracle.hit(Thing::QueueDeleted);
        let t = self.t;
        let ledger = &mut self.oracle.ledger;
        ledger.queues.get_mut(&queue).expect("known").gone = Some(t);
        let mut gone = Vec::new();
        for (id, part) in ledger.parts.iter_mut().filter(|(_, part)| part.queue == queue) {
            part.alive = false;
            part.notes.push((t, Note::Deleted));
            gone.push(*id);
        }
        for (_, track) in ledger.tracks.iter_mut().filter(|((id, _), _)| gone.contains(id)) {
            track.gone.get_or_insert(t);
        }
        self.tell_all(|| changed(&name));
    }

    fn configure(&mut self) {
        let name = self.rng.pick(&self.plan.queues).name.clone();
        let Some(id) = self.store.queue_names.get(&name).copied() else { return };
        let options = plan::options(&mut self.rng);
        self.store.queues.get_mut(&id).expect("named").options = options;
        self.oracle.hit(Thing::Configured);
        let log = self.oracle.ledger.queues.get_mut(&id).expect("known");
        log.versions.push((self.t, u64::MAX, options));
        log.changed = u64::MAX;
        let version = log.versions.len() - 2;
        let slots = self.tell_all(|| changed(&name));
        self.pending_changes.push(Change { queue: id, slots, ends: 0..=version });
    }

    /// A shard has heard of a change. True when the slot was the nemesis's.
    pub fn settle_change(&mut self, slot: Slot) -> bool {
        let t = self.t;
        for change in &mut self.pending_changes {
            if let Some(at) = change.slots.iter().position(|open| *open == slot) {
                change.slots.remove(at);
                let log = self.oracle.ledger.queues.get_mut(&change.queue).expect("known");
                if change.slots.is_empty() {
                    log.versions[change.ends.clone()].iter_mut().for_each(|v| v.1 = v.1.min(t));
                    log.changed = t;
                }
                return true;
            }
        }
        !self.owned(slot)
    }

    /// Moves a cursor of a group, or all of a queue. Announced like every change.
    fn seek(&mut self) {
        let keys: Vec<_> = self.store.cursors.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let (id, group) = *self.rng.pick(&keys);
        let row = &self.store.partitions[&id];
        let (last, log_start) = (row.last_offset, row.log_start);
        let name = self.store.queues[&row.queue].name.clone();
        let queue = row.queue;
        let committed = match self.rng.below(3) {
            0 => last,
            1 => log_start.plus(-1),
            _ => {
                let back = self.rng.below(2_000_000) as i64;
                self.store.before(id, Stamp(self.moment().stamp.0 - back))
            }
        };
        if self.store.seek(id, group, committed) {
            self.oracle.hit(Thing::Seek);
            let row = self.store.cursors[&(id, group)];
            let t = self.t;
            self.oracle.ledger.tracks.get_mut(&(id, group)).expect("known").set(t, row);
            self.oracle.ledger.note(t, id, Note::Seek { group, committed });
            self.announce(queue, true, || changed(&name));
        }
    }

    /// Tells every shard that cursors of a queue are not what they were. `whole`: it reads the queue for that, and its options.
    fn announce(&mut self, queue: QueueId, whole: bool, told: impl Fn() -> Command) {
        let log = self.oracle.ledger.queues.get_mut(&queue).expect("known");
        let options = log.versions.last().expect("never empty").2;
        log.versions.push((self.t, u64::MAX, options));
        log.changed = u64::MAX;
        let version = log.versions.len() - 2;
        let slots = self.tell_all(told);
        self.pending_changes.push(Change { queue, slots, ends: if whole { 0 } else { version }..=version });
    }

    /// A group of a queue will be deleted under whoever uses it: its cursors are locked until then.
    pub fn lock_group(&mut self) {
        if self.healed {
            return;
        }
        let ids: Vec<GroupId> = self.store.groups.keys().copied().collect();
        if !ids.is_empty() {
            self.store.dying = Some(*self.group_rng.pick(&ids));
        }
        let lasts = *self.group_rng.pick(&[100, 5_000, 50_000, 400_000]);
        self.later(lasts, Due::DeleteGroup);
    }

    pub fn delete_group(&mut self) {
        if self.healed {
            return;
        }
        let again = self.group_rng.range(20_000, 1_500_000);
        self.later(again, Due::LockGroup);
        let Some(group) = self.store.dying.take().filter(|group| self.store.groups.contains_key(group)) else { return };
        let (queue, of) = (self.store.groups[&group].queue, self.store.groups[&group].name.clone());
        let name = self.store.queues[&queue].name.clone();
        self.store.delete_group(group, self.group_rng.chance(700));
        self.oracle.hit(Thing::GroupDeleted);
        let t = self.t;
        let ledger = &mut self.oracle.ledger;
        let mut gone = Vec::new();
        for ((id, _), track) in ledger.tracks.iter_mut().filter(|((_, of), _)| *of == group) {
            track.gone.get_or_insert(t);
            gone.push(*id);
        }
        gone.into_iter().for_each(|id| ledger.note(t, id, Note::GroupDeleted(group)));
        // A deletion whose outcome is unknown is told of the group.
        match self.group_rng.chance(700) {
            true => self.announce(queue, true, || changed(&name)),
            false => {
                let (tenant, queue_name) = (TenantId::DEFAULT, self.group_rng.chance(500).then(|| name.clone()));
                let told = || Command::GroupChanged { tenant, queue: queue_name.clone(), group: of.clone() };
                self.announce(queue, false, told)
            }
        }
    }

    /// The store is another one, which has all that was committed; brokers find out one after another. Until a shard has,
    /// what it asks is refused.
    fn fail_over(&mut self) {
        self.oracle.hit(Thing::OtherStore);
        self.store_number += 1;
        for broker in 0..self.plan.brokers.len() {
            let epoch = self.epoch(broker);
            let met = self.rng.range(1_000, 700_000);
            for shard in 0..self.plan.brokers[broker] {
                let after = met + self.rng.range(0, 3_000);
                self.later(after, Due::MeetStore { at: (broker, shard), epoch });
            }
        }
    }

    fn jump_clock(&mut self) {
        if self.rng.chance(60) {
            self.oracle.hit(Thing::ClockJump);
            let by = self.rng.range(0, 60_000) as i64 - 30_000;
            self.jump(by);
        }
    }

    /// Another broker's commit.
    fn write_abroad(&mut self) {
        let Some(id) = self.any_partition() else { return };
        let queue = self.oracle.ledger.parts[&id].queue_name.clone();
        let Some(index) = self.plan.queues.iter().position(|plan| plan.name == queue) else { return };
        let now = self.moment();
        let messages: Vec<_> = (0..self.rng.range(1, 3)).map(|_| self.foreign_message(index)).collect();
        let Some((base, row)) = self.store.foreign_append(now.stamp, id, &messages) else { return };
        self.store.log(crate::log::ABROAD, vec![id], Vec::new());
        let written = WrittenSegment {
            base,
            count: row.count,
            flags: row.flags,
            created_at: row.created_at,
            accepted_at: None,
            frames: row.body.clone(),
            codec: Codec::Raw,
            body: row.body,
            broker: None,
        };
        self.oracle.write(now, self.t, id, written, &row.keys);
    }
}

fn changed(queue: &Arc<str>) -> Command {
    Command::QueueChanged { tenant: TenantId::DEFAULT, queue: queue.clone() }
}
