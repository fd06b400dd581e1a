//! Deciding: what becomes of a record that was handed over. A refused one is tried again, and at last set aside alone.
//! Source: operations 4.5.

use super::{Files, Outside};
use crate::spool::active::{Active, Batch};
use crate::spool::disk::{Disk, FAILED_DIR};
use crate::spool::format::Header;
use queen_shards::command::{DrainVerdict, SpoolId};
use queen_shards::handed::REFUSALS_MAX;

impl<D: Disk, O: Outside> Files<D, O> {
    /// A record that was handed over is decided; one that was refused stays with its shard for another try. True: it was
    /// refused too often, and is set aside.
    pub async fn decide(&mut self, id: SpoolId, verdict: DrainVerdict) -> bool {
        let Some(at) = self.files.iter().position(|stored| stored.number == id.file) else { return false };
        let Some(&messages) = self.files[at].out.get(&id.at) else { return false };
        match verdict {
            DrainVerdict::Stored { duplicates } => {
                self.handed.store(id, u64::from(duplicates) < messages);
                self.status.drained(messages, duplicates as u64);
            }
            DrainVerdict::Refused { written } => {
                let Some(refused) = self.handed.refuse(id, written) else { return false };
                if let Some(count) = refused.counted {
                    self.status.drain_refused(count, REFUSALS_MAX);
                }
                if !refused.aside {
                    return false;
                }
                self.status.poison(messages);
                if !self.set_record_aside(at, id.at).await {
                    self.files[at].keep = true;
                }
            }
        }
        self.settle(at, id.at);
        self.tidy().await;
        matches!(verdict, DrainVerdict::Refused { .. })
    }

    /// A record is decided, or lost.
    pub(super) fn settle(&mut self, at: usize, place: u64) {
        let stored = &mut self.files[at];
        if let Some(messages) = stored.out.remove(&place) {
            stored.messages = stored.messages.saturating_sub(messages);
        }
    }

    /// A new round of tries begins, of records that were refused and of reads that failed; see
    /// [`Handed::next_round`](queen_shards::handed::Handed::next_round).
    pub fn next_round(&mut self) {
        self.handed.next_round();
        self.failures.next_round();
        self.failures_later.next_round();
    }

    /// Refused records that are to be tried again now; a shard has each of them, at its place in its partition.
    pub fn try_again(&mut self) -> Vec<SpoolId> {
        self.handed.try_again()
    }

    /// The store is gone. True: what was handed over waits for it with the shards, which is told.
    pub fn store_lost(&self) -> bool {
        let waits = !self.handed.is_empty();
        if waits {
            self.status.drain_waits(self.handed.len());
        }
        waits
    }

    /// Lanes with records that were put off, by hash of their names.
    pub fn lanes_put_off(&self) -> Vec<u64> {
        self.handed.lanes_put_off()
    }

    /// Writes a refused record to a file of its own under `failed/`.
    async fn set_record_aside(&mut self, at: usize, place: u64) -> bool {
        let Ok(Some(record)) = self.read_again(at, place).await else { return false };
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
