//! Writing: records go to the active file, the last one, until it is full.
//!
//! Holds: a record is durable, and so is its file's name, before `append` says so; the cap is never passed, headers and the
//! footer of the file that is being written included. Source: operations 4.2, 4.3.

use super::{DATA_START, Files, Outside, Reader, Stored};
use crate::spool::active::{Active, Batch};
use crate::spool::disk::Disk;
use crate::spool::format::{BLOCK, FOOTER, Header, Scanner};
use queen_shards::command::SpoolRecord;
use queen_shards::planted::{Bug, is};
use std::collections::HashMap;
use std::io;

/// A file is closed at this size, whatever its number of events: what is drained at once is bounded by it.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl<D: Disk, O: Outside> Files<D, O> {
    /// Appends records, all under one sync; one answer each, in order.
    pub async fn append(&mut self, records: &[SpoolRecord]) -> Vec<bool> {
        let mut answers = Vec::with_capacity(records.len());
        while answers.len() < records.len() {
            let rest = &records[answers.len()..];
            match self.append_some(rest).await {
                Ok(taken) => answers.extend(taken),
                Err(error) => {
                    self.status.write_failed(&error);
                    answers.resize(records.len(), false);
                }
            }
        }
        let failed = answers.iter().zip(records).filter(|(written, _)| !**written);
        self.status.failed(failed.map(|(_, record)| record.draft.count as u64).sum());
        self.publish();
        answers
    }

    /// As many records as the active file takes.
    async fn append_some(&mut self, records: &[SpoolRecord]) -> io::Result<Vec<bool>> {
        if self.active.is_some() && self.files.back().is_some_and(|stored| stored.given_up) {
            // What went in would not come out again.
            self.close_active().await;
        }
        if self.active.is_none() {
            self.begin_file().await?;
        }
        let room = self.room_on_disk();
        let Some(active) = &mut self.active else { return Err(io::ErrorKind::NotFound.into()) };
        let mut batch = Batch::default();
        let mut taken = Vec::new();
        for record in records {
            let events = active.messages + batch.messages;
            let full =
                events >= self.limits.events_per_file || active.bytes() + batch.bytes.len() as u64 > FILE_BYTES_MAX;
            if full && !taken.is_empty() {
                break;
            }
            let mark = (batch.bytes.len(), batch.records, batch.messages);
            let fits = batch.add(&active.header, active.records, record);
            let closed = (active.end + batch.bytes.len() as u64 + FOOTER).next_multiple_of(BLOCK as u64);
            if fits && active.bytes() + room < closed {
                // The cap is met: this one fails, smaller ones may still fit.
                batch.bytes.truncate(mark.0);
                (batch.records, batch.messages) = (mark.1, mark.2);
                taken.push(false);
                self.status.at_cap();
                continue;
            }
            taken.push(fits);
        }
        if batch.records > 0 {
            let messages = batch.messages;
            let appended = active.append(&self.disk, batch).await;
            let (end, bytes) = (active.end, active.bytes());
            let stored = self.files.back_mut().expect("the active file is the last");
            (stored.written, stored.bytes) = (Some(end), bytes);
            if let Err(error) = appended {
                self.abandon().await;
                return Err(error);
            }
            stored.messages += messages;
            let oldest = records[..taken.len()].iter().map(|record| record.accepted_at).min();
            stored.oldest = stored.oldest.into_iter().chain(oldest).min();
            self.status.written(messages);
        }
        let active = self.active.as_ref().expect("not abandoned");
        if active.messages >= self.limits.events_per_file || active.bytes() >= FILE_BYTES_MAX {
            self.close_active().await;
        }
        Ok(taken)
    }

    /// Bytes below the cap.
    fn room_on_disk(&self) -> u64 {
        let used: u64 = self.files.iter().map(|stored| stored.bytes).sum();
        self.limits.bytes_max.saturating_sub(used)
    }

    async fn begin_file(&mut self) -> io::Result<()> {
        if self.room_on_disk() < 2 * DATA_START {
            self.status.at_cap();
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the spool is at FILE_BUFFER_MAX_BYTES"));
        }
        let (ms, sequence) = self.last_named;
        let now = self.outside.unix_ms().max(ms);
        self.last_named = (now, if now == ms { sequence + 1 } else { 0 });
        let name = format!("queen-{:013}-{:08}.tmp", self.last_named.0, self.last_named.1);
        let header = Header {
            key: self.outside.random().to_le_bytes(),
            created_ms: self.last_named.0,
            number: self.last_named.1,
        };
        let active = Active::create(&self.disk, &name, header).await?;
        self.last_file += 1;
        let scanner = Scanner::new(&header);
        let file = match self.disk.open(&name).await {
            Ok(file) => file,
            Err(error) => {
                self.disk.close(active.file).await;
                let _ = self.disk.remove(&name).await;
                return Err(error);
            }
        };
        // Shards put records in the order of these numbers.
        let number = if is(Bug::DrainNewestFirst) { u64::MAX - self.last_file } else { self.last_file };
        self.files.push_back(Stored {
            number,
            name,
            bytes: active.bytes(),
            messages: 0,
            oldest: None,
            reader: Reader::Ours { file, scanner, footer: false },
            out: HashMap::new(),
            keep: false,
            given_up: false,
            closed: false,
            written: Some(DATA_START),
            footer_due: false,
            stays: None,
        });
        self.active = Some(active);
        Ok(())
    }

    /// Closes the file that is being written. Source: operations 4.2, rotation; 1.6.
    pub async fn close_active(&mut self) {
        let Some(mut active) = self.active.take() else { return };
        // Nobody was told anything of it: it goes.
        let empty = active.end == DATA_START;
        let whole = !empty && !active.is_broken() && active.close(&self.disk).await.is_ok();
        crate::torture::point("spool-rotation");
        let (end, bytes) = (active.end, active.bytes());
        self.disk.close(active.file).await;
        let stored = self.files.back_mut().expect("the active file is the last");
        stored.closed = true;
        (stored.written, stored.bytes) = (Some(end), bytes);
        stored.footer_due = whole;
        let closed = stored.name.replace(".tmp", ".buf");
        let name = stored.name.clone();
        if whole && self.disk.rename(&name, &closed).await.is_ok() {
            let _ = self.disk.sync_names().await;
            self.files.back_mut().expect("still there").name = closed;
        }
        match empty {
            true => self.finish_reading(self.files.len() - 1).await,
            false => self.put_away().await,
        }
        self.tidy().await;
    }

    /// A closed file of which nothing was read holds no descriptor until it is its turn: there may be thousands of them.
    async fn put_away(&mut self) {
        let stored = self.files.back_mut().expect("just closed");
        if matches!(&stored.reader, Reader::Ours { scanner, .. } if scanner.position() == DATA_START)
            && let Reader::Ours { file, .. } = std::mem::replace(&mut stored.reader, Reader::New)
        {
            self.disk.close(file).await;
        }
    }

    /// A write failed: the file gets nothing more, and is read as far as it is known to be durable, if anything is.
    async fn abandon(&mut self) {
        self.close_active().await;
    }
}
