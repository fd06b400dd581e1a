//! What others do to the tables: retention, configure, delete, seek, a broker that is not simulated.

use crate::frame::{self, Message};
use crate::rng::Rng;
use crate::store::{Evidence, Planted, Segment, Store};
use queen_shards::command::Codec;
use queen_shards::ids::{GroupId, LeaseId, Offset, PartitionId, QueueId, Stamp};
use std::sync::Arc;

impl Store {
    /// First step of retention: `log_start` moves up to a segment's edge. Source: rule 14.
    pub fn move_log_start(&mut self, rng: &mut Rng, id: PartitionId) -> Option<Offset> {
        let log_start = self.partitions[&id].log_start;
        let rows = self.segments.range((id, log_start)..=(id, Offset(i64::MAX)));
        let ends: Vec<Offset> = rows.map(|((_, base), row)| base.plus(row.count as i64)).collect();
        if ends.is_empty() {
            return None;
        }
        let to = *rng.pick(&ends[..ends.len().div_ceil(2)]);
        self.partitions.get_mut(&id).expect("exists").log_start = to;
        Some(to)
    }

    /// Second step: segments below `log_start` go, their keys stay as evidence.
    pub fn sweep(&mut self, rng: &mut Rng, id: PartitionId) {
        let Some(row) = self.partitions.get(&id) else { return };
        let below: Vec<Offset> =
            self.segments.range((id, Offset(0))..(id, row.log_start)).map(|((_, base), _)| *base).collect();
        for base in below {
            let row = self.segments.remove(&(id, base)).expect("listed");
            if self.strikes(rng, Planted::LoseEvidence, 1000) {
                continue;
            }
            let evidence =
                Evidence { count: row.count, created_at: row.created_at, accepted_at: row.accepted_at, keys: row.keys };
            self.evidence.insert((id, base), evidence);
        }
    }

    /// Evidence older than `before` goes. Returns the offset it now begins at, when something went.
    pub fn purge_evidence(&mut self, id: PartitionId, before: Stamp) -> Option<Offset> {
        let old: Vec<(Offset, Offset)> = self
            .evidence
            .range((id, Offset(0))..=(id, Offset(i64::MAX)))
            .take_while(|(_, row)| row.created_at < before)
            .map(|((_, base), row)| (*base, base.plus(row.count as i64)))
            .collect();
        for (base, _) in &old {
            self.evidence.remove(&(id, *base));
        }
        old.last().map(|(_, end)| *end)
    }

    /// Deletes a queue with all it has. Segments that nothing can reach may stay a while.
    pub fn delete_queue(&mut self, rng: &mut Rng, name: &Arc<str>) -> Option<QueueId> {
        let queue = self.queue_names.remove(name)?;
        self.queues.remove(&queue);
        let gone: Vec<PartitionId> =
            self.partitions.iter().filter(|(_, row)| row.queue == queue).map(|(id, _)| *id).collect();
        let linger = rng.chance(500);
        for id in gone {
            self.partitions.remove(&id);
            self.cursors.retain(|(partition, _), _| *partition != id);
            self.dead.retain(|row| row.partition != id);
            if !linger {
                self.segments.retain(|(partition, _), _| *partition != id);
                self.evidence.retain(|(partition, _), _| *partition != id);
            }
        }
        self.partition_names.retain(|(of, _), _| *of != queue);
        self.groups.retain(|_, group| group.queue != queue);
        self.group_names.retain(|(of, _), _| *of != queue);
        Some(queue)
    }

    /// Deletes the cursors of a group with their leases, and its record unless that is to stay. Source: data plane 11.6.
    pub fn delete_group(&mut self, group: GroupId, record_too: bool) {
        self.cursors.retain(|(_, of), _| *of != group);
        if record_too {
            self.groups.remove(&group);
            self.group_names.retain(|_, id| *id != group);
        } else if let Some(record) = self.groups.get_mut(&group) {
            record.seed_at = None;
        }
    }

    /// Puts a cursor elsewhere: the lease ends, the counters start anew. Source: data plane 11.5.
    pub fn seek(&mut self, id: PartitionId, group: GroupId, committed: Offset) -> bool {
        let version = self.numbers.version();
        let Some(cursor) = self.cursors.get_mut(&(id, group)) else { return false };
        cursor.version = version;
        cursor.committed = committed;
        (cursor.lease, cursor.expires, cursor.batch_end) = (LeaseId::NONE, Stamp(0), None);
        cursor.conflating = false;
        (cursor.retry_count, cursor.attempt_start, cursor.attempt_count) = (0, None, 0);
        true
    }

    /// A commit of another broker, which did its own judging: keys must be new to the partition.
    pub fn foreign_append(&mut self, now: Stamp, id: PartitionId, messages: &[Message]) -> Option<(Offset, Segment)> {
        let row = self.partitions.get_mut(&id)?;
        let (keys, frames, flags) = frame::pack_by_hand(messages);
        let base = row.last_offset.plus(1);
        let created_at = now.max(row.last_created_at);
        row.last_offset = row.last_offset.plus(messages.len() as i64);
        row.last_created_at = created_at;
        let segment = Segment {
            count: messages.len() as u32,
            created_at,
            accepted_at: None,
            codec: Codec::Raw,
            flags,
            raw_len: frames.len() as u32,
            keys,
            body: frames,
        };
        self.segments.insert((id, base), segment.clone());
        Some((base, segment))
    }
}
