//! Deciding: what becomes of a record that was handed over. A refused one is tried again, and at last set aside alone.
//! Source: operations 4.5.

use super::{Files, Outside};
use crate::spool::active::{Active, Batch};
use crate::spool::disk::{Disk, FAILED_DIR};
use crate::spool::format::Header;
use queen_shards::command::{DrainVerdict, SpoolId};

/// A record whose refusal counted so often is set aside. Source: operations 4.5.
const REFUSALS_MAX: u32 = 5;

/// What a record of which PostgreSQL says that it cannot be stored has met.
#[derive(Clone, Copy)]
pub(super) struct Refusals {
    /// Those that count.
    count: u32,
    /// Records that had been stored when it was refused last.
    stored: u64,
    /// A shard keeps it for another try.
    waits: bool,
}

impl<D: Disk, O: Outside> Files<D, O> {
    /// A record that was handed over is decided; one that was refused stays with its shard for another try. True: it was
    /// refused too often, and is set aside.
    pub async fn decide(&mut self, id: SpoolId, verdict: DrainVerdict) -> bool {
        let Some(at) = self.files.iter().position(|stored| stored.number == id.file) else { return false };
        let Some(out) = self.files[at].out.get(&id.at) else { return false };
        let messages = out.messages;
        match verdict {
            DrainVerdict::Stored { duplicates } => {
                self.stored += 1;
                self.status.drained(messages, duplicates as u64);
            }
            DrainVerdict::Refused => {
                if !self.is_poison(id) {
                    return false;
                }
                self.status.poison(messages);
                if !self.set_record_aside(at, id.at).await {
                    self.files[at].keep = true;
                }
            }
        }
        self.settle(at, id);
        self.tidy().await;
        verdict == DrainVerdict::Refused
    }

    /// Counts a refusal: whether the record is to be set aside.
    ///
    /// It counts if something else was stored since the one before, so that it is this record's own, or if no older record
    /// is refused: what refuses all of them, a right that is missing perhaps, says nothing of one and costs one at a time.
    ///
    /// Source: operations 4.5, permanent.
    fn is_poison(&mut self, id: SpoolId) -> bool {
        let stored = self.stored;
        let oldest = self.refused.keys().next().is_none_or(|first| id <= *first);
        let refusals = self.refused.entry(id).or_insert(Refusals { count: 0, stored, waits: true });
        if oldest || refusals.stored != stored {
            refusals.count += 1;
            self.status.drain_refused(refusals.count, REFUSALS_MAX);
        }
        (refusals.stored, refusals.waits) = (stored, true);
        REFUSALS_MAX <= refusals.count
    }

    fn settle(&mut self, at: usize, id: SpoolId) {
        self.refused.remove(&id);
        let stored = &mut self.files[at];
        if let Some(out) = stored.out.remove(&id.at) {
            stored.messages = stored.messages.saturating_sub(out.messages);
        }
    }

    /// Refused records that are to be tried again now; a shard has each of them, at its place in its partition.
    pub fn try_again(&mut self) -> Vec<SpoolId> {
        let waiting = self.refused.iter_mut().filter(|(_, refusals)| refusals.waits);
        waiting.map(|(id, refusals)| (*id, refusals.waits = false).0).collect()
    }

    /// Writes a refused record to a file of its own under `failed/`.
    async fn set_record_aside(&mut self, at: usize, place: u64) -> bool {
        let Some(record) = self.read_again(at, place).await else { return false };
        let stored = &self.files[at];
        let stem = stored.name.rsplit_once('.').map_or(&*stored.name, |(stem, _)| stem);
        let name = format!("{FAILED_DIR}/{stem}-{place}.buf");
        let header = Header {
            key: self.outside.random().to_le_bytes(),
            created_ms: self.outside.unix_ms(),
            number: stored.number,
        };
        let write = async {
            let mut active = Active::create(&self.disk, &name, header).await?;
            let mut batch = Batch::default();
            batch.add(&header, 0, &record);
            let written = active.append(&self.disk, batch).await;
            let closed = active.close(&self.disk).await;
            self.disk.close(active.file).await;
            written.and(closed)
        };
        let done = write.await.is_ok();
        if done {
            self.status.quarantined(&name);
        }
        done
    }
}
