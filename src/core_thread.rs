//! One core: owns a shard of the engine, its store connections and its connections; performs effects.
//! (Skeleton: signatures other rooms build against.)

use crate::config::Config;
use crate::state::{StateCall, StateReply};
use queen_shards::command::{Command, Verdict, Watch};
use queen_shards::effect::StoreError;
use queen_shards::ids::{GroupId, LeaseId, MessageId, Micros, PartitionId};
use queen_shards::key::KeyHasher;
use queen_shards::lease_id::LeaseSeed;
use std::rc::Rc;
use std::sync::Arc;

/// What a connection of this core can reach. Cheap to clone (`Rc<Core>`); lives on its thread.
pub struct Core {
    pub config: Arc<Config>,
    pub metrics: Arc<crate::telemetry::Metrics>,
}

impl Core {
    /// This shard's number and how many there are.
    pub fn shard(&self) -> usize {
        todo!()
    }
    pub fn shards(&self) -> usize {
        todo!()
    }
    pub fn now(&self) -> Micros {
        todo!()
    }
    /// Hashes transactionIds; `None` until the store has been reached once since boot (then answer as "store away").
    pub fn keys(&self) -> Option<&KeyHasher> {
        todo!()
    }
    /// Mints `n` consecutive UUIDv7s: one clock read, then a counter.
    pub fn mint_ids(&self, n: usize) -> Vec<MessageId> {
        let _ = n;
        todo!()
    }
    pub fn lease_seed(&self) -> LeaseSeed {
        todo!()
    }
    /// Sends a command to a shard (this one or another) and waits for its verdict.
    pub async fn ask(&self, shard: usize, command: Command) -> Verdict {
        let _ = (shard, command);
        todo!()
    }
    /// Registers a watch on each of `shards`; the guard resolves at the first wake and unwatches when dropped.
    pub fn watch(self: &Rc<Self>, shards: &[usize], watch: Watch) -> WatchGuard {
        let _ = (shards, watch);
        todo!()
    }
    /// Gives claims back whose answer could not be written.
    pub fn give_back(&self, lease: LeaseId, claims: Vec<(PartitionId, GroupId)>) {
        let _ = (lease, claims);
        todo!()
    }
    /// Runs a state call (on the control thread's connection).
    pub async fn state(&self, call: StateCall) -> StateReply {
        let _ = call;
        Err(StoreError::Unavailable("".into()))
    }
    /// Tells every shard that a queue changed and waits until all have heard it.
    pub async fn queue_changed(&self, tenant: queen_shards::ids::TenantId, queue: &str) {
        let _ = (tenant, queue);
        todo!()
    }
    /// Resolves when the broker shuts down (parked pops then answer 204 at once).
    pub async fn shutdown(&self) {
        std::future::pending().await
    }
    /// Whether the store answered its last probe; `/health`.
    pub fn store_is_up(&self) -> bool {
        todo!()
    }
}

/// See [`Core::watch`].
pub struct WatchGuard {}

impl WatchGuard {
    /// Waits for a wake; may be called again after re-registering.
    pub async fn wake(&mut self) {
        todo!()
    }
}
