//! Newtypes of everything that is counted, named or timed, so that an offset is never taken for a slot.
//!
//! Holds: conversions are explicit; `Display` of ids is the spelling of the wire.

use std::fmt;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

newtype! {
    /// A message's position in its partition, from 0. `-1` is "before the first".
    Offset(i64)
}
newtype! {
    /// Number of a partition: positive, never reused, decimal text on the wire. The low 12 bits are its placement
    /// slot (see [`crate::place`]), so any shard knows the owner from the number alone.
    PartitionId(i64)
}
newtype! {
    /// Number of a consumer group of one queue. A group deleted with its metadata and made again has another one.
    GroupId(i64)
}
newtype! {
    /// UUID of a queue row. A queue deleted and made again has another one.
    QueueId(u128)
}
newtype! {
    /// UUID of a tenant.
    TenantId(u128)
}
newtype! {
    /// UUIDv7 of a message.
    MessageId(u128)
}
newtype! {
    /// UUID of a lease; 0 is "no lease". See [`crate::lease_id`] for what its bits carry.
    LeaseId(u128)
}
newtype! {
    /// Keyed 128-bit hash of a transactionId: the dedup key as stored. See [`crate::key`].
    Key(u128)
}
newtype! {
    /// Where an answer goes: the asking shard in the top 16 bits, its own number below.
    Slot(u64)
}
newtype! {
    /// One fused commit of one shard.
    CommitId(u64)
}
newtype! {
    /// One cold store call of one shard.
    CallId(u64)
}
newtype! {
    /// Monotonic microseconds since the process started. Durations and schedules only; never stored.
    Micros(u64)
}
newtype! {
    /// PostgreSQL's clock: microseconds since 1970-01-01 UTC. The only time that is stored or compared across brokers.
    Stamp(i64)
}

impl Offset {
    /// Before the first message.
    pub const NONE: Offset = Offset(-1);
    /// The offset `n` places further.
    pub fn plus(self, n: i64) -> Offset {
        Offset(self.0 + n)
    }
}

impl LeaseId {
    /// "No lease".
    pub const NONE: LeaseId = LeaseId(0);
    /// Whether this names a lease at all.
    pub fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl Micros {
    /// This moment and `micros` more, saturating.
    pub fn plus(self, micros: u64) -> Micros {
        Micros(self.0.saturating_add(micros))
    }
    /// Microseconds from `earlier` to this, 0 if it lies ahead.
    pub fn since(self, earlier: Micros) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl TenantId {
    /// The tenant of every request while tenancy is off. Source: data plane 1.5.
    pub const DEFAULT: TenantId = TenantId(1);
}

impl Slot {
    /// The slot number `n` of shard `shard`.
    pub fn new(shard: usize, n: u64) -> Slot {
        debug_assert!(n < 1 << 48);
        Slot((shard as u64) << 48 | n)
    }
    /// The shard (or the control thread) that asked.
    pub fn shard(self) -> usize {
        (self.0 >> 48) as usize
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
