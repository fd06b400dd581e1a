//! The commit log: what a broker committed, the others read a while later. Source: rules 8, 10, 11.
//!
//!     a commit > a line at the store ... Due::ReadLog > Due::LogAtStore > Due::HearLog > Event::Log at every shard
//!
//! Holds: one read of a broker on its way; a position that the log has left behind is told as lost.

use crate::coverage::Thing;
use crate::rng::Rng;
use crate::store::{Planted, Store};
use crate::world::{Due, World};
use queen_shards::command::{Event, Left, LogLane};
use queen_shards::effect::{CursorMove, LeaseTo};
use queen_shards::ids::{GroupId, Micros, PartitionId, Stamp};
use queen_shards::place::{LaneKey, owner_of_partition};
use std::collections::BTreeSet;

/// Lines that a reader may be behind.
const RING: usize = 40;
/// Who is not simulated.
pub const ABROAD: (usize, u64) = (usize::MAX, 0);

/// One commit: which broker, how often started; what may have grown and what may be free.
pub struct Line {
    by: (usize, u64),
    lanes: Vec<PartitionId>,
    freed: Vec<(PartitionId, GroupId)>,
}

/// What a read brought.
#[derive(Default)]
pub struct News {
    lanes: Vec<LogLane>,
    freed: Vec<(PartitionId, GroupId, Left)>,
    lost: bool,
}

/// Cursors that moves may free.
pub fn freed<'a>(moves: impl IntoIterator<Item = &'a CursorMove>) -> Vec<(PartitionId, GroupId)> {
    let clears = |one: &&CursorMove| one.to.is_some_and(|to| to.lease == LeaseTo::Clear);
    moves.into_iter().filter(clears).map(|one| (one.partition, one.group)).collect()
}

impl Store {
    pub fn log(&mut self, by: (usize, u64), lanes: Vec<PartitionId>, freed: Vec<(PartitionId, GroupId)>) {
        self.lines.push(Line { by, lanes, freed });
    }

    /// What others committed from line `from` on, as it is now.
    fn news(&self, rng: &mut Rng, now: Stamp, reader: (usize, u64), from: usize) -> News {
        let first = from.max(self.lines.len().saturating_sub(RING));
        let mut news = News { lost: first > from, ..News::default() };
        let (mut lanes, mut freed) = (BTreeSet::new(), BTreeSet::new());
        for line in self.lines[first..].iter().filter(|line| line.by != reader) {
            if self.strikes(rng, Planted::LoseLogLine, 500) {
                continue;
            }
            lanes.extend(line.lanes.iter().copied());
            freed.extend(line.freed.iter().copied());
        }
        for (partition, group) in freed {
            let (Some(cursor), Some(row)) = (self.cursors.get(&(partition, group)), self.partitions.get(&partition))
            else {
                continue;
            };
            let left = match cursor.committed < row.last_offset {
                false => Left::Nothing,
                true if cursor.live(now) => Left::Leased(cursor.expires),
                true => Left::Something,
            };
            news.freed.push((partition, group, left));
            if left != Left::Nothing {
                lanes.insert(partition);
            }
        }
        for id in lanes {
            let Some(row) = self.partitions.get(&id) else { continue };
            let queue = self.queues[&row.queue].name.clone();
            news.lanes.push(LogLane {
                key: LaneKey::new(queen_shards::ids::TenantId::DEFAULT, queue, row.name.clone()),
                partition: id,
                last_offset: row.last_offset,
                log_start: row.log_start,
                last_created_at: row.last_created_at,
            });
        }
        news
    }
}

impl World {
    /// A broker that was just started notes where the log stands, and reads it from there on.
    pub(crate) fn follow_log(&mut self, broker: usize) {
        let shards = self.plan.brokers[broker];
        self.log_at[broker] = self.store.lines.len();
        for shard in 0..shards {
            self.oracle.log_began.insert((broker, shard), self.t);
        }
        if !self.oracle.solo {
            let epoch = self.epoch(broker);
            self.later(1_000, Due::ReadLog { broker, epoch });
        }
    }

    /// One step of a read. A broker that died reads nothing more.
    pub(crate) fn log_steps(&mut self, step: Due) {
        match step {
            Due::ReadLog { broker, epoch } if epoch == self.epoch(broker) => {
                let after = self.log_rng.range(200, 4_000);
                let began = self.t;
                let next = match self.is_out() {
                    true => Due::ReadLog { broker, epoch },
                    false => Due::LogAtStore { broker, epoch, began },
                };
                self.later(after, next);
            }
            Due::LogAtStore { broker, epoch, began } if epoch == self.epoch(broker) => {
                let now = self.moment().stamp;
                let news = self.store.news(&mut self.log_rng, now, (broker, epoch), self.log_at[broker]);
                self.log_at[broker] = self.store.lines.len();
                let after = self.log_rng.range(200, 4_000);
                self.later(after, Due::HearLog { broker, epoch, began, news });
            }
            Due::HearLog { broker, epoch, began, news } if epoch == self.epoch(broker) => {
                if news.lost {
                    self.oracle.hit(Thing::LogLost);
                }
                if !news.lanes.is_empty() {
                    self.oracle.hit(Thing::LogNews);
                }
                if !news.freed.is_empty() {
                    self.oracle.hit(Thing::LogFreed);
                }
                let shards = self.plan.brokers[broker];
                for shard in 0..shards {
                    let mine = |id: &PartitionId| owner_of_partition(*id, shards) == shard;
                    let lanes: Vec<LogLane> = news.lanes.iter().filter(|l| mine(&l.partition)).cloned().collect();
                    let freed = news.freed.iter().filter(|(id, ..)| mine(id)).copied().collect();
                    let event = Event::Log { began: Micros(began), lanes, freed, changed: Vec::new(), lost: news.lost };
                    self.hears((broker, shard), event);
                    self.oracle.log_began.insert((broker, shard), began);
                }
                let pause = *self.log_rng.pick(&[2_000, 20_000, 100_000, 400_000]);
                self.later(pause, Due::ReadLog { broker, epoch });
            }
            _ => {}
        }
    }
}
