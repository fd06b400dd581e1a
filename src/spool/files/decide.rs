//! Deciding: what becomes of a record that was handed over. A refused one is tried again, and at last set aside alone.
//! Source: operations 4.5.

use super::failures::{READ_FAILURES_MAX, is_short};
use super::{Files, Outside};
use crate::spool::active::{Active, Batch};
use crate::spool::disk::{Disk, FAILED_DIR};
use crate::spool::format::Header;
use queen_shards::command::{DrainVerdict, SpoolId};
use queen_shards::handed::REFUSALS_MAX;

/// What came of setting a record aside.
enum Aside {
    Done,
    /// The machine is short of something: the record is to be tried again.
    NotNow,
    /// It cannot be read, or written elsewhere: its whole file is kept.
    Never,
}

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
                    self.status.drain_refused(count.min(REFUSALS_MAX), REFUSALS_MAX);
                }
                if !refused.aside {
                    return false;
                }
                match self.set_record_aside(at, id.at).await {
                    Aside::Done => {}
                    Aside::NotNow => return false,
                    Aside::Never => self.files[at].keep = true,
                }
                self.handed.set_aside(id);
                self.status.poison(messages);
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

    /// The store is gone. True: what was handed over waits for it with the shards, which is told.
    pub fn store_lost(&self) -> bool {
        let waits = !self.handed.is_empty();
        if waits {
            self.status.drain_waits(self.handed.len());
        }
        waits
    }

    /// A new round of tries begins, of records that were refused, of reads that failed and of files that stayed; see
    /// [`Handed::next_round`](queen_shards::handed::Handed::next_round).
    pub fn next_round(&mut self) {
        self.rounds += 1;
        self.handed.next_round();
        self.failures.next_round();
        self.failures_later.next_round();
    }

    /// Refused records that are to be tried again now; a shard has each of them, at its place in its partition.
    pub fn try_again(&mut self) -> Vec<SpoolId> {
        self.handed.try_again()
    }

    /// Lanes with records that were put off, by hash of their names.
    pub fn lanes_put_off(&self) -> Vec<u64> {
        self.handed.lanes_put_off()
    }

    /// Writes a refused record to a file of its own under `failed/`.
    async fn set_record_aside(&mut self, at: usize, place: u64) -> Aside {
        let record = match self.read_again(at, place).await {
            Ok(Some(record)) => record,
            Err(error) if is_short(&error) => {
                self.status.read_failed(&self.files[at].name, &error, 0, READ_FAILURES_MAX);
                return Aside::NotNow;
            }
            _ => return Aside::Never,
        };
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
            let whole = match active.append(&self.disk, batch).await {
                Ok(()) => active.close(&self.disk).await,
                failed => failed,
            };
            self.disk.close(active.file).await;
            if whole.is_err() {
                // Half a record helps nobody, and its name is wanted for the next try.
                let _ = self.disk.remove(&name).await;
            }
            whole
        };
        match write.await {
            Ok(()) => {
                self.status.quarantined(&name);
                Aside::Done
            }
            Err(error) if is_short(&error) => {
                self.status.write_failed(&error);
                Aside::NotNow
            }
            Err(_) => Aside::Never,
        }
    }
}
