//! Which shard owns a partition: a hash of its names, folded to one of 4096 fixed slots.
//!
//! Holds: tenant, queue and partition name alone decide (ids are unknown while the store is away), and the slot is
//! the low 12 bits of the partition's number, so an ack that names only the number finds the owner as well.
//! The slots are also the unit in which partitions could later be spread over several servers.

use crate::ids::{PartitionId, TenantId};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// Number of placement slots; fixed for ever, because partition numbers carry their slot.
pub const PLACEMENT_SLOTS: u64 = 4096;

/// The names of one partition, with their hash.
#[derive(Clone, Debug)]
pub struct LaneKey {
    pub tenant: TenantId,
    pub queue: Arc<str>,
    pub partition: Arc<str>,
    hash: u64,
}

impl LaneKey {
    pub fn new(tenant: TenantId, queue: Arc<str>, partition: Arc<str>) -> LaneKey {
        let hash = hash_names(tenant, &queue, &partition);
        LaneKey { tenant, queue, partition, hash }
    }
    /// Hash of the names, for tables; well mixed.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// Placement slot, 0 to 4095.
    pub fn slot(&self) -> u16 {
        slot_of_names(self.hash)
    }
    /// Owner among `shards` shards.
    pub fn owner(&self, shards: usize) -> usize {
        owner_of_names(self.hash, shards)
    }
}

impl PartialEq for LaneKey {
    fn eq(&self, other: &LaneKey) -> bool {
        self.hash == other.hash
            && self.tenant == other.tenant
            && self.queue == other.queue
            && self.partition == other.partition
    }
}
impl Eq for LaneKey {}

/// Hash of a partition's names; the parts are kept apart by their lengths, so ("a:b", "c") and ("a", "b:c") differ.
pub fn hash_names(tenant: TenantId, queue: &str, partition: &str) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(&tenant.0.to_le_bytes());
    hasher.update(&(queue.len() as u64).to_le_bytes());
    hasher.update(queue.as_bytes());
    hasher.update(partition.as_bytes());
    hasher.digest()
}

fn slot_of_names(hash: u64) -> u16 {
    (hash % PLACEMENT_SLOTS) as u16
}

/// Owner shard of a partition, by the hash of its names.
pub fn owner_of_names(hash: u64, shards: usize) -> usize {
    owner_of_slot(slot_of_names(hash), shards)
}

/// Owner shard of a placement slot.
pub fn owner_of_slot(slot: u16, shards: usize) -> usize {
    slot as usize % shards
}

/// Owner shard of a partition number.
pub fn owner_of_partition(id: PartitionId, shards: usize) -> usize {
    owner_of_slot((id.0 as u64 % PLACEMENT_SLOTS) as u16, shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_join_alike_are_different_lanes() {
        let hash = |q: &str, p: &str| hash_names(TenantId::DEFAULT, q, p);
        assert_ne!(hash("a", "b:c"), hash("a:b", "c"));
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
    }

    #[test]
    fn names_and_number_of_a_partition_have_one_owner() {
        for n in 0..1000 {
            let key = LaneKey::new(TenantId::DEFAULT, "q".into(), format!("p{n}").into());
            let id = PartitionId((n as i64 + 1) << 12 | key.slot() as i64);
            for shards in [1, 2, 3, 7, 64] {
                assert_eq!(key.owner(shards), owner_of_partition(id, shards));
            }
        }
    }
}
