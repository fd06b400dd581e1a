//! What a shard remembers of a queue and of its consumer groups: options, ready rings, who waits.

use crate::activity::Activity;
use crate::effect::{Options, QueueRow};
use crate::fifo::Fifo;
use crate::ids::{GroupId, Micros, PartitionId, TenantId};
use crate::ring::Ring;
use crate::slab::{Ref, Slab};
use crate::watch::Waiters;
use hashbrown::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub struct Queue {
    pub tenant: TenantId,
    pub name: Arc<str>,
    /// `None` until the store was asked.
    pub row: Option<QueueRow>,
    pub groups: Vec<Ref>,
    /// Since the last report.
    pub activity: Activity,
}

impl Queue {
    /// Options in force; those of an implicitly created queue until the row is known.
    pub fn options(&self) -> Options {
        self.row.map_or(IMPLICIT_OPTIONS, |row| row.options)
    }
}

/// Source: data plane 2, implicit creation, and 8.2.
pub const IMPLICIT_OPTIONS: Options = Options {
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

/// How far a shard has come with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    Unknown,
    /// The call that contacts or registers it is on its way.
    Opening,
    /// Its number is known; pinned pops work, the queue's partitions are not scanned.
    Met,
    /// A page of partitions after this number is being read; pops that found nothing wait for the end of the scan.
    Scanning(PartitionId),
    /// The ring holds enough; the scan goes on after this number when it holds less.
    Resting(PartitionId),
    /// Every partition with something for the group is in the ring, or will be at a moment that is known.
    Open,
}

#[derive(Debug)]
pub struct Group {
    pub queue: Ref,
    pub name: Arc<str>,
    pub id: GroupId,
    pub state: GroupState,
    /// Registered, or needs no registration: what a wildcard pop requires before a scan.
    pub registered: bool,
    /// What its record says of conflation; `None`: it was met by acks only, and pops must ask.
    pub conflation: Option<bool>,
    /// Lanes that may have something and are not leased, in the order they are served.
    pub ring: Ring,
    /// The scan begins anew after this number when it is through: lanes above it found no room in the ring, or left memory.
    pub again: Option<PartitionId>,
    /// Watches of wildcard pops, first come first woken.
    pub waiters: Waiters,
    /// Pop jobs that wait for the opening, the scan or a seeding.
    pub pops: Fifo,
    /// Calls that read cursors of lanes taken from the ready ring.
    pub seeding: u32,
    /// Counts how often it was forgotten: answers to what was asked before are not taken for answers to what was asked
    /// since.
    pub epoch: u32,
    /// When somebody last asked for it.
    pub touched: Micros,
}

#[derive(Debug, Default)]
pub struct Queues {
    pub slab: Slab<Queue>,
    by_name: HashMap<(TenantId, Arc<str>), Ref>,
    pub groups: Slab<Group>,
}

impl Group {
    /// Leaves a partition that has something, and no room in the ring, to the scan.
    pub fn look_again(&mut self, partition: PartitionId) {
        let after = PartitionId(partition.0 - 1);
        match self.state {
            // Its scan, still to come, will find it.
            GroupState::Unknown | GroupState::Opening | GroupState::Met => {}
            GroupState::Resting(at) if at <= after => {}
            GroupState::Open => self.state = GroupState::Resting(after),
            // A page that is being read may be of the time before.
            GroupState::Scanning(_) | GroupState::Resting(_) => {
                self.again = Some(self.again.map_or(after, |again| again.min(after)));
            }
        }
    }

    /// Whether a scan still to be asked for will look at a partition.
    pub fn finds_again(&self, partition: PartitionId) -> bool {
        let resting = matches!(self.state, GroupState::Resting(after) if after < partition);
        resting || self.again.is_some_and(|after| after < partition)
    }
}

impl Queues {
    pub fn find(&self, tenant: TenantId, name: &Arc<str>) -> Option<Ref> {
        self.by_name.get(&(tenant, name.clone())).copied()
    }

    pub fn entry(&mut self, tenant: TenantId, name: &Arc<str>) -> Ref {
        if let Some(at) = self.find(tenant, name) {
            return at;
        }
        let at = self.slab.insert(Queue {
            tenant,
            name: name.clone(),
            row: None,
            groups: Vec::new(),
            activity: Activity::default(),
        });
        self.by_name.insert((tenant, name.clone()), at);
        at
    }

    pub fn group(&self, queue: Ref, name: &str) -> Option<Ref> {
        self.slab[queue].groups.iter().copied().find(|&g| *self.groups[g].name == *name)
    }

    pub fn group_entry(&mut self, queue: Ref, name: &Arc<str>, now: Micros) -> Ref {
        if let Some(at) = self.group(queue, name) {
            self.groups[at].touched = now;
            return at;
        }
        let at = self.groups.insert(Group {
            queue,
            name: name.clone(),
            id: GroupId(0),
            state: GroupState::Unknown,
            registered: false,
            conflation: None,
            ring: Ring::default(),
            again: None,
            waiters: Waiters::default(),
            pops: Fifo::default(),
            seeding: 0,
            epoch: 0,
            touched: now,
        });
        self.slab[queue].groups.push(at);
        at
    }

    pub fn options(&self, queue: Ref) -> Options {
        self.slab[queue].options()
    }

    pub fn remove_group(&mut self, queue: Ref, group: Ref) {
        self.slab[queue].groups.retain(|known| *known != group);
        self.groups.remove(group);
    }

    /// Forgets a queue without groups.
    pub fn remove(&mut self, at: Ref) {
        if let Some(queue) = self.slab.remove(at) {
            self.by_name.remove(&(queue.tenant, queue.name));
            for group in queue.groups {
                self.groups.remove(group);
            }
        }
    }
}
