//! The file that is being written: records appended in whole blocks, durable before anybody is told.
//!
//! Holds: after a write or a sync that failed nothing more is written to the file, and nothing of that batch counts;
//! a sync is never tried again as if it could succeed. Source: reliability 6, F6.

use super::disk::Disk;
use super::format::{self, BLOCK, DATA_START, Header};
use queen_shards::command::SpoolRecord;
use queen_shards::planted::{Bug, is};
use std::io;

pub struct Active<F> {
    pub file: F,
    pub header: Header,
    /// Durable records end here.
    pub end: u64,
    pub records: u64,
    pub messages: u64,
    /// The last block, as far as it is full.
    tail: Vec<u8>,
    broken: bool,
}

impl<F> Active<F> {
    /// A new file, its header and its name durable.
    pub async fn create<D: Disk<File = F>>(disk: &D, name: &str, header: Header) -> io::Result<Active<F>> {
        let file = disk.create(name).await?;
        let begun = async {
            disk.write(&file, 0, header.encode()).await?;
            disk.sync(&file).await?;
            if is(Bug::SkipDirectoryFsync) {
                return Ok(());
            }
            disk.sync_names().await
        };
        match begun.await {
            Ok(()) => {
                let tail = Vec::new();
                Ok(Active { file, header, end: DATA_START, records: 0, messages: 0, tail, broken: false })
            }
            Err(error) => {
                disk.close(file).await;
                let _ = disk.remove(name).await;
                Err(error)
            }
        }
    }

    /// Bytes the file has.
    pub fn bytes(&self) -> u64 {
        self.end.next_multiple_of(BLOCK as u64)
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Appends records that lie ready in `bytes`, and syncs them.
    pub async fn append<D: Disk<File = F>>(&mut self, disk: &D, batch: Batch) -> io::Result<()> {
        debug_assert!(!self.broken, "nothing is written after a failure");
        crate::torture::point("before-spool-write");
        let at = self.end - self.tail.len() as u64;
        let mut blocks = std::mem::take(&mut self.tail);
        blocks.extend_from_slice(&batch.bytes);
        let used = blocks.len();
        let tail = blocks[used - used % BLOCK..].to_vec();
        blocks.resize(used.next_multiple_of(BLOCK), 0);
        let written = disk.write(&self.file, at, blocks).await;
        crate::torture::point("spool-written");
        let synced = match written {
            Ok(()) if is(Bug::AnswerBeforeFsync) => Ok(()),
            Ok(()) => disk.sync(&self.file).await,
            failed => failed,
        };
        if let Err(error) = synced {
            self.broken = true;
            // What is left of the batch must not be read as if it counted.
            let _ = disk.truncate(&self.file, self.end).await;
            return Err(error);
        }
        self.end += batch.bytes.len() as u64;
        self.records += batch.records;
        self.messages += batch.messages;
        self.tail = tail;
        crate::torture::point("spool-synced");
        Ok(())
    }

    /// The footer that says that the file is whole.
    pub async fn close<D: Disk<File = F>>(&mut self, disk: &D) -> io::Result<()> {
        let mut batch = Batch::default();
        format::put_footer(&mut batch.bytes, &self.header.key, self.records, self.messages);
        self.append(disk, batch).await
    }
}

/// Records made ready for one write.
#[derive(Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    pub records: u64,
    pub messages: u64,
}

impl Batch {
    /// Adds a record; false when it does not fit the format.
    pub fn add(&mut self, header: &Header, before: u64, record: &SpoolRecord) -> bool {
        let mark = self.bytes.len();
        let put = format::put_record(&mut self.bytes, &header.key, before + self.records, record);
        if put.is_err() {
            self.bytes.truncate(mark);
            return false;
        }
        self.records += 1;
        self.messages += record.draft.count as u64;
        true
    }
}
