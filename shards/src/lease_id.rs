//! What the bits of a lease id carry: a UUIDv7 whose last 62 bits are the first claimed partition and whose lowest
//! `rand_a` bit says that more partitions may share it.
//!
//! An extend finds its cursor rows through the partition, so no hot row needs an index on the lease. 48 bits of
//! milliseconds and 11 bits of counter keep ids of one partition apart. Source: architecture 13, rule 22.

use crate::ids::{LeaseId, PartitionId};

/// Time and counter of a lease, minted by the edge: it reads the clock, the engine does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseSeed {
    /// Milliseconds since 1970, 48 bits.
    pub millis: u64,
    /// Distinguishes leases of one millisecond; 11 bits are used.
    pub counter: u16,
}

/// The lease id of `seed` whose first claim is `first`.
pub fn mint(seed: LeaseSeed, first: PartitionId, more: bool) -> LeaseId {
    let high = (seed.millis & 0xffff_ffff_ffff) << 16 | 0x7000 | ((seed.counter as u64 & 0x7ff) << 1) | more as u64;
    let low = 1u64 << 63 | (first.0 as u64 & (u64::MAX >> 2));
    LeaseId((high as u128) << 64 | low as u128)
}

/// The first claimed partition, and whether others may share the lease. Of a foreign id: any number.
pub fn read(lease: LeaseId) -> (PartitionId, bool) {
    let more = (lease.0 >> 64) & 1 == 1;
    (PartitionId((lease.0 as u64 & (u64::MAX >> 2)) as i64), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_is_a_uuid_v7_that_names_its_first_partition() {
        let id = mint(LeaseSeed { millis: 1_800_000_000_123, counter: 77 }, PartitionId(57607), true);
        assert_eq!(read(id), (PartitionId(57607), true));
        assert_eq!((id.0 >> 76) & 0xf, 7, "version");
        assert_eq!((id.0 >> 62) & 3, 2, "variant");
        let other = mint(LeaseSeed { millis: 1_800_000_000_123, counter: 78 }, PartitionId(57607), true);
        assert_ne!(id, other);
    }
}
