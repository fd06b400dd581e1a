//! What the bits of a lease id carry: a UUIDv7 whose last 62 bits are the first claimed partition and whose lowest
//! `rand_a` bit says that more partitions may share it, the one above that they may lie in several queues.
//!
//! An extend finds its cursor rows through the partition, so no hot row needs an index on the lease. 48 bits of
//! milliseconds and 10 bits of counter keep ids of one partition apart. Source: rule 22.

use crate::ids::{LeaseId, PartitionId};

/// Time and counter of a lease, minted by the edge: it reads the clock, the engine does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseSeed {
    /// Milliseconds since 1970, 48 bits.
    pub millis: u64,
    /// Distinguishes leases of one millisecond; 10 bits are used.
    pub counter: u16,
    /// Its claims may lie in several queues.
    pub wide: bool,
}

/// The lease id of `seed` whose first claim is `first`.
pub fn mint(seed: LeaseSeed, first: PartitionId, more: bool) -> LeaseId {
    let bits = (seed.counter as u64 & 0x3ff) << 2 | (seed.wide as u64) << 1 | more as u64;
    let high = (seed.millis & 0xffff_ffff_ffff) << 16 | 0x7000 | bits;
    let low = 1u64 << 63 | (first.0 as u64 & (u64::MAX >> 2));
    LeaseId((high as u128) << 64 | low as u128)
}

/// What a lease id says of its claims. Of a foreign id: anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    pub first: PartitionId,
    /// Other partitions may share the lease,
    pub more: bool,
    /// also of other queues.
    pub wide: bool,
}

/// Reads what [`mint`] wrote.
pub fn read(lease: LeaseId) -> Claims {
    let bit = |n: u32| (lease.0 >> (64 + n)) & 1 == 1;
    Claims { first: PartitionId((lease.0 as u64 & (u64::MAX >> 2)) as i64), more: bit(0), wide: bit(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_is_a_uuid_v7_that_names_its_first_partition() {
        let seed = LeaseSeed { millis: 1_800_000_000_123, counter: 77, wide: false };
        let id = mint(seed, PartitionId(57607), true);
        assert_eq!(read(id), Claims { first: PartitionId(57607), more: true, wide: false });
        let wide = mint(LeaseSeed { wide: true, ..seed }, PartitionId(57607), false);
        assert_eq!(read(wide), Claims { first: PartitionId(57607), more: false, wide: true });
        assert_eq!((id.0 >> 76) & 0xf, 7, "version");
        assert_eq!((id.0 >> 62) & 3, 2, "variant");
        let other = mint(LeaseSeed { counter: 78, ..seed }, PartitionId(57607), true);
        assert_ne!(id, other);
    }
}
