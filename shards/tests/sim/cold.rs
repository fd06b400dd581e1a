//! The cold calls of the store, as effect.rs describes them. Where the text leaves room, chance decides, so that the
//! engine can rely on nothing that is not written.

use crate::rng::Rng;
use crate::store::{Cursor, Group, Partition, Planted, Queue, Segment, Store};
use bytes::Bytes;
use queen_shards::command::{QUEUE_MODE, Record, Start};
use queen_shards::effect::{
    Call, Contact, CursorRow, FoundLane, GroupRow, KeysRow, Options, Reply, RunRow, ScanRow, SeededCursor,
};
use queen_shards::ids::{GroupId, LeaseId, Offset, PartitionId, QueueId, Stamp, TenantId};
use queen_shards::place::{LaneKey, owner_of_partition};
use queen_shards::sealed::{RowId, RunId};
use std::sync::Arc;

/// Options of a queue made by a push or pop. Source: data plane 2 and 8.2.
pub const IMPLICIT: Options = Options {
    lease_secs: 60,
    retry_limit: 3,
    dead_letter: true,
    delay_secs: 0,
    window_secs: 0,
    dedup_secs: 3600,
    fill_wait_ms: 0,
    encrypted: false,
    completed_secs: 0,
};

impl Store {
    pub fn call(&mut self, now: Stamp, rng: &mut Rng, call: &Call) -> Reply {
        match call {
            Call::Provision { lanes } => {
                let ids: Vec<PartitionId> = lanes.iter().map(|lane| self.provision(lane)).collect();
                Reply::Lanes(ids.into_iter().map(|id| self.lane_row(id, rng).filter(|_| !self.loses())).collect())
            }
            Call::FindLane { lane } => {
                let id = self.find(lane);
                Reply::Lanes(vec![id.and_then(|id| self.lane_row(id, rng))])
            }
            Call::FindPartitions { tenant, ids } => {
                Reply::Found(ids.iter().map(|id| self.found(*tenant, *id, rng)).collect())
            }
            Call::FindQueue { tenant: _, queue } => {
                Reply::Queue(self.queue_names.get(queue).map(|id| self.queue_row(*id)))
            }
            Call::OpenGroup { tenant: _, queue, group, contact } => {
                Reply::Group(self.open_group(now, rng, queue, group, *contact))
            }
            Call::Scan { queue, group, shard, shards, after, limit, look } => {
                let look = self.look.min(*look as usize);
                let (rows, next) = self.scan(now, *queue, *group, (*shard, *shards), *after, *limit as usize, look);
                Reply::Scanned { rows, next, now }
            }
            Call::SeedCursors { group, start, partitions } => {
                let rows = partitions.iter().map(|id| self.seeded(now, *id, *group, *start)).collect();
                Reply::Cursors { rows, now }
            }
            Call::FindCursors { cursors } => {
                let found = cursors.iter().map(|(partition, group)| self.find_cursor(now, *partition, group));
                Reply::FoundCursors(found.collect())
            }
            Call::ReadKeys { partition, from, to, since, limit, newest_first } => {
                let range = (*from, *to, *since);
                let (rows, complete) = self.read_keys(rng, *partition, range, *limit as u64, *newest_first);
                Reply::Keys { rows, complete, now }
            }
            Call::ReadRecords { partition, from, to, bytes, messages } => {
                let records = self.read_records(*partition, (*from, *to), *bytes, *messages);
                let log_start = self.partitions.get(partition).map_or(Offset(0), |row| row.log_start);
                Reply::Records { records, log_start }
            }
            Call::ReadNewest { partition, to, not_after } => {
                let old = self.strikes(rng, Planted::OldNewest, 500);
                let records = self.read_newest(*partition, *to, *not_after, old);
                let log_start = self.partitions.get(partition).map_or(Offset(0), |row| row.log_start);
                Reply::Records { records, log_start }
            }
            Call::SealRun { partition, slice } => {
                let sealed = slice.clone().seal();
                let row = (sealed.run.encode(), sealed.rows);
                self.runs.entry((*partition, sealed.run.id())).or_insert(row);
                Reply::Sealed(sealed.run)
            }
            Call::ReadRuns { partition, after, bytes: _ } => {
                let later = |id: &RunId| after.is_none_or(|after| after < *id);
                let some = 1 + rng.index(3);
                let mine = self.runs.iter().filter(|((of, id), _)| of == partition && later(id));
                let mut runs: Vec<RunRow> = mine
                    .take(some + 1)
                    .map(|((_, id), (run, _))| {
                        let below = (*partition, Offset(0))..(*partition, id.base);
                        let live = self.segments.range(below.clone()).next_back().map(|(_, row)| row.created_at);
                        let past = self.evidence.range(below).next_back().map(|(_, row)| row.created_at);
                        RunRow { id: *id, run: run.clone(), before: live.max(past) }
                    })
                    .collect();
                let complete = runs.len() <= some;
                runs.truncate(some);
                Reply::Runs { runs, complete }
            }
            Call::ReadRunRows { partition, rows } => {
                let empty = self.strikes(rng, Planted::EmptyRunRow, 500);
                if rng.chance(20) {
                    // Another broker's expiry, or a clean-up, was here.
                    self.runs.remove(&(*partition, rows[0].run));
                }
                let row = |id: &RowId| self.runs.get(&(*partition, id.run))?.1.get(id.row as usize).cloned();
                Reply::RunRows(
                    rows.iter().map(|id| row(id).map(|row| if empty { Bytes::new() } else { row })).collect(),
                )
            }
            Call::DropRuns { partition, runs } => {
                runs.iter().for_each(|id| drop(self.runs.remove(&(*partition, *id))));
                Reply::Done
            }
        }
    }

    pub fn make_queue(&mut self, name: &Arc<str>) -> QueueId {
        if let Some(id) = self.queue_names.get(name) {
            return *id;
        }
        let id = self.numbers.queue();
        self.queues.insert(id, Queue { name: name.clone(), options: IMPLICIT });
        self.queue_names.insert(name.clone(), id);
        id
    }

    pub fn find(&self, lane: &LaneKey) -> Option<PartitionId> {
        let queue = self.queue_names.get(&lane.queue)?;
        self.partition_names.get(&(*queue, lane.partition.clone())).copied()
    }

    /// Whether a partition that was made just now is gone again before it is read.
    fn loses(&mut self) -> bool {
        let (rate, rng) = &mut self.lost;
        rng.as_mut().is_some_and(|rng| rng.chance(*rate))
    }

    pub fn provision(&mut self, lane: &LaneKey) -> PartitionId {
        let queue = self.make_queue(&lane.queue);
        if let Some(id) = self.find(lane) {
            return id;
        }
        let id = self.numbers.partition(lane.slot());
        let row = Partition {
            queue,
            name: lane.partition.clone(),
            last_offset: Offset::NONE,
            log_start: Offset(0),
            last_created_at: Stamp(0),
        };
        self.partitions.insert(id, row);
        self.partition_names.insert((queue, lane.partition.clone()), id);
        id
    }

    fn found(&self, tenant: TenantId, id: PartitionId, rng: &mut Rng) -> Option<FoundLane> {
        if tenant != TenantId::DEFAULT {
            return None;
        }
        let partition = self.partitions.get(&id)?;
        let queue = self.queues[&partition.queue].name.clone();
        Some(FoundLane { queue, partition: partition.name.clone(), row: self.lane_row(id, rng)? })
    }

    fn open_group(
        &mut self,
        now: Stamp,
        rng: &mut Rng,
        queue: &Arc<str>,
        name: &Arc<str>,
        contact: Contact,
    ) -> Option<GroupRow> {
        let queue = match contact.makes_queue() {
            true => self.make_queue(queue),
            false => *self.queue_names.get(queue)?,
        };
        let id = match self.group_names.get(&(queue, name.clone())) {
            Some(id) => *id,
            None => {
                let id = self.numbers.group();
                self.groups.insert(
                    id,
                    Group { queue, name: name.clone(), mode: None, high_water: 0, seed_at: None, conflation: false },
                );
                self.group_names.insert((queue, name.clone()), id);
                id
            }
        };
        let mut made = false;
        if let Contact::Register(start)
        | Contact::RegisterConflating(start)
        | Contact::PinnedConflating(start)
        | Contact::Found(start) = contact
        {
            let high_water = self.numbers.high_water();
            let group = self.groups.get_mut(&id).expect("just made");
            let first = group.mode.is_none();
            if first {
                (group.mode, group.high_water) = (Some((start, now)), high_water);
                group.conflation = !matches!(contact, Contact::Register(_) | Contact::Found(_));
                group.seed_at = self.sparse.then_some(match start {
                    Start::At(at) => at.min(now),
                    _ => now,
                });
                made = true;
            }
            // The first registration seeds every partition; a later contact may or may not see to the newer ones.
            if (first && !self.sparse) || rng.chance(500) {
                self.seed_all(now, queue, id, start);
            }
        } else if contact == Contact::QueueMode && rng.chance(500) {
            self.seed_all(now, queue, id, Start::All);
        }
        let (registered, conflation) = (self.groups[&id].mode.is_some(), self.groups[&id].conflation);
        Some(GroupRow { queue: self.queue_row(queue), group: id, registered, conflation, made })
    }

    fn seed_all(&mut self, now: Stamp, queue: QueueId, group: GroupId, start: Start) {
        let of_queue: Vec<PartitionId> =
            self.partitions.iter().filter(|(_, row)| row.queue == queue).map(|(id, _)| *id).collect();
        for id in of_queue {
            self.seeded(now, id, group, start);
        }
    }

    /// The cursor of a group on a partition, made when missing. Source: data plane 4.4; rule 24.
    fn seeded(&mut self, now: Stamp, id: PartitionId, group: GroupId, start: Start) -> Option<SeededCursor> {
        let partition = self.partitions.get(&id)?;
        self.groups.get(&group)?;
        let (last_offset, log_start) = (partition.last_offset, partition.log_start);
        if !self.cursors.contains_key(&(id, group)) {
            let committed = self.seed_of(id, group).unwrap_or_else(|| match start {
                Start::All => log_start.plus(-1),
                Start::New => last_offset,
                Start::At(at) => self.before(id, at),
            });
            let cursor = Cursor {
                version: self.numbers.version(),
                committed,
                lease: LeaseId::NONE,
                expires: Stamp(0),
                batch_end: None,
                conflating: false,
                retry_count: 0,
                attempt_start: None,
                attempt_count: 0,
            };
            self.cursors.insert((id, group), cursor);
            self.seeded.push((id, group, cursor));
        }
        Some(SeededCursor { row: self.cursors[&(id, group)].row(now), last_offset, log_start })
    }

    /// Where the cursor of a group begins in a partition; `None`: that is for the pop to say. Source: queen.seed_of.
    pub fn seed_of(&self, id: PartitionId, group: GroupId) -> Option<Offset> {
        let record = self.groups.get(&group)?;
        let beginning = self.partitions[&id].log_start.plus(-1);
        let younger = id.0 >> 12 > record.high_water;
        let since = |start| if younger { start } else { record.seed_at.unwrap_or(start) };
        match record.mode {
            _ if &*record.name == QUEUE_MODE => Some(beginning),
            Some((Start::All, _)) => Some(beginning),
            Some((Start::New, _)) if younger => Some(beginning),
            Some((Start::New, at) | (Start::At(at), _)) => Some(self.before(id, since(at))),
            None => None,
        }
    }

    /// The offset before the first stored group at or after an instant; the last offset when there is none.
    pub fn before(&self, id: PartitionId, at: Stamp) -> Offset {
        let partition = &self.partitions[&id];
        let mut rows = self.segments.range((id, partition.log_start)..=(id, Offset(i64::MAX)));
        rows.find(|(_, row)| row.created_at >= at).map_or(partition.last_offset, |((_, base), _)| base.plus(-1))
    }

    #[allow(clippy::too_many_arguments)]
    fn scan(
        &self,
        now: Stamp,
        queue: QueueId,
        group: GroupId,
        (shard, shards): (u32, u32),
        after: PartitionId,
        limit: usize,
        look: usize,
    ) -> (Vec<ScanRow>, Option<PartitionId>) {
        let rows = self.partitions.range(PartitionId(after.0 + 1)..).filter(|(_, row)| row.queue == queue);
        let mut found = Vec::new();
        for (i, (id, row)) in rows.enumerate() {
            let cursor = self.cursors.get(&(*id, group));
            let committed = match cursor {
                Some(cursor) => cursor.committed,
                None => self.seed_of(*id, group).unwrap_or(Offset::NONE),
            };
            let next = committed.plus(1).max(row.log_start);
            if owner_of_partition(*id, shards as usize) == shard as usize && next <= row.last_offset {
                found.push(ScanRow {
                    partition: *id,
                    name: row.name.clone(),
                    last_offset: row.last_offset,
                    log_start: row.log_start,
                    last_created_at: row.last_created_at,
                    cursor: cursor.map(|cursor| cursor.row(now)),
                });
            }
            if found.len() == limit || i + 1 == look {
                return (found, Some(*id));
            }
        }
        (found, None)
    }

    fn find_cursor(&mut self, now: Stamp, partition: PartitionId, group: &Arc<str>) -> Option<(GroupId, CursorRow)> {
        let row = self.partitions.get(&partition)?;
        let id = self.group_names.get(&(row.queue, group.clone())).copied()?;
        let record = &self.groups[&id];
        if record.seed_at.is_some() && partition.0 >> 12 <= record.high_water {
            self.seeded(now, partition, id, Start::All);
        }
        self.cursors.get(&(partition, id)).map(|cursor| (id, cursor.row(now)))
    }

    fn read_keys(
        &self,
        rng: &mut Rng,
        id: PartitionId,
        (from, to, since): (Offset, Offset, Option<Stamp>),
        limit: u64,
        newest_first: bool,
    ) -> (Vec<KeysRow>, bool) {
        let live = self.segments.range((id, Offset(i64::MIN))..=(id, to)).map(|((_, base), row)| KeysRow {
            base: *base,
            created_at: row.created_at,
            accepted_at: row.accepted_at,
            keys: row.keys.clone(),
        });
        let past = self.evidence.range((id, Offset(i64::MIN))..=(id, to)).map(|((_, base), row)| KeysRow {
            base: *base,
            created_at: row.created_at,
            accepted_at: row.accepted_at,
            keys: row.keys.clone(),
        });
        let mut rows: Vec<KeysRow> = past.chain(live).collect();
        rows.retain(|row| {
            let last = row.base.plus(row.keys.len() as i64 / 16 - 1);
            last >= from && since.is_none_or(|since| row.created_at >= since)
        });
        rows.sort_by_key(|row| row.base);
        if self.strikes(rng, Planted::ForgetKeys, 500) {
            rows.clear();
        }
        if self.planted == Some(Planted::ForgetAcceptance) {
            rows.iter_mut().for_each(|row| row.accepted_at = None);
        }
        if newest_first {
            rows.reverse();
        }
        let mut keys = 0;
        let all = rows.len();
        let mut taken = 0;
        for row in &rows {
            let more = row.keys.len() as u64 / 16;
            if taken > 0 && keys + more > limit.min(self.keys_page) {
                break;
            }
            (keys, taken) = (keys + more, taken + 1);
        }
        rows.truncate(taken);
        if newest_first {
            rows.reverse();
        }
        (rows, taken == all)
    }

    fn read_records(&self, id: PartitionId, (from, to): (Offset, Offset), bytes: u64, messages: u32) -> Vec<Record> {
        let first = self.segments.range((id, Offset(i64::MIN))..=(id, from)).next_back();
        let first = first.filter(|((_, base), row)| base.plus(row.count as i64 - 1) >= from);
        let begin = first.map_or(from, |((_, base), _)| *base);
        let mut records: Vec<Record> = Vec::new();
        let (mut size, mut count) = (0, 0);
        for ((_, base), row) in self.segments.range((id, begin)..=(id, to)) {
            if !records.is_empty() && (size >= bytes || count >= messages) {
                break;
            }
            size += row.raw_len as u64;
            count += row.count;
            records.push(record(*base, row));
        }
        records
    }

    fn read_newest(&self, id: PartitionId, to: Offset, not_after: Stamp, old: bool) -> Vec<Record> {
        let rows = self.segments.range((id, Offset(i64::MIN))..=(id, to)).rev();
        let mut rows = rows.filter(|(_, row)| row.created_at <= not_after);
        let found = if old { rows.nth(1) } else { rows.next() };
        found.map(|((_, base), row)| record(*base, row)).into_iter().collect()
    }
}

fn record(base: Offset, row: &Segment) -> Record {
    Record {
        base,
        created_at: row.created_at,
        count: row.count,
        codec: row.codec,
        flags: row.flags,
        raw_len: row.raw_len,
        body: row.body.clone(),
        frames: None,
        keys: row.keys.clone(),
    }
}
