//! Records that were put off, because an older one of their lane was refused: they are read again when it is their turn.
//!
//! Those of a lane mostly lie close to each other, so what was read for one is kept for the next, as long as there are any.
//!
//! Holds: a record is lost only when its bytes were read and it is not in them, or when they could not be read too often.

use super::failures::READ_FAILURES_MAX;
use super::read::READ_BYTES;
use super::{Files, Outside, weight};
use crate::spool::disk::Disk;
use crate::spool::format::{BLOCK, DATA_START, Found, Header, record_of};
use queen_shards::command::{Drained, SpoolId, SpoolRecord};
use queen_shards::handed::Room;
use std::collections::HashMap;
use std::io;

/// Records in one go that are not in what was read last: each costs a read of a MiB or a whole file, and may be lost. The
/// thread looks at its mail in between.
const READS_MAX: usize = 16;

/// What was read last of a file.
pub(super) struct Piece {
    file: u64,
    part: Part,
}

enum Part {
    /// Of a file of ours, from a block on.
    Ours { header: Header, from: u64, bytes: Vec<u8> },
    /// All of a file of the original, which is read as a whole anyway, by their places.
    Legacy(HashMap<u64, SpoolRecord>),
}

impl Piece {
    /// The record at a place, if all of it is here. Comes once.
    fn take(&mut self, id: SpoolId) -> Option<SpoolRecord> {
        if self.file != id.file {
            return None;
        }
        match &mut self.part {
            Part::Legacy(records) => records.remove(&id.at),
            Part::Ours { header, from, bytes } => {
                let skip = id.at.checked_sub(*from)? as usize;
                match record_of(header, bytes.get(skip..)?) {
                    Found::Record(record) => Some(*record),
                    _ => None,
                }
            }
        }
    }
}

impl<D: Disk, O: Outside> Files<D, O> {
    /// Reads records that were put off and whose turn it is, and hands them over. How many reads that took.
    pub(super) async fn read_later(&mut self, room: Room, drained: &mut Vec<Drained>, size: &mut usize) -> usize {
        let mut reads = 0;
        while drained.len() < room.records
            && *size < room.bytes
            && reads < READS_MAX
            && !self.failures_later.waits()
            && let Some((id, lane)) = self.handed.next_later()
        {
            let mut found = self.piece.as_mut().and_then(|piece| piece.take(id));
            if found.is_none() {
                reads += 1;
                match self.read_put_off(id).await {
                    Ok(record) => found = record,
                    Err(()) => {
                        self.handed.put_back(id, lane);
                        break;
                    }
                }
            }
            let Some(record) = found else {
                self.handed.lose(lane);
                continue;
            };
            *size += weight(&record);
            self.handed.hand_over(id, lane, weight(&record));
            drained.push(Drained { id, record });
        }
        if !self.handed.has_later() {
            self.piece = None;
        }
        reads
    }

    /// A record that is not in what was read last; `None`: it is lost, and its file is kept. Fails when it cannot be read now.
    async fn read_put_off(&mut self, id: SpoolId) -> Result<Option<SpoolRecord>, ()> {
        let Some(at) = self.files.iter().position(|stored| stored.number == id.file) else { return Ok(None) };
        let read = self.read_piece(at, id).await;
        let name = &self.files[at].name;
        match read {
            Ok((piece, record)) => {
                self.failures_later.end();
                self.piece = piece;
                if record.is_some() {
                    return Ok(record);
                }
                self.status.damaged(false, name, id.at, 0);
            }
            Err(error) if !self.failures_later.count(id.file, &error) => {
                self.status.read_failed(name, &error, self.failures_later.in_a_row(), READ_FAILURES_MAX);
                return Err(());
            }
            Err(error) => self.status.unreadable(name, &error),
        }
        self.files[at].keep = true;
        self.settle(at, id.at);
        Ok(None)
    }

    /// Reads the piece that a record begins, and the record in it.
    async fn read_piece(&self, at: usize, id: SpoolId) -> io::Result<(Option<Piece>, Option<SpoolRecord>)> {
        let name = &self.files[at].name;
        let file = self.disk.open(name).await?;
        let read = async {
            let head = self.disk.read(&file, 0, DATA_START as usize).await?;
            let Some(header) = Header::decode(&head) else {
                let Some((records, _)) = self.read_legacy(&file, name).await? else { return Ok((None, None)) };
                let mut piece = Piece { file: id.file, part: Part::Legacy(records.into_iter().collect()) };
                let record = piece.take(id);
                return Ok((Some(piece), record));
            };
            let (bytes, record) = self.read_place(&file, &header, id.at).await?;
            let from = id.at - id.at % BLOCK as u64;
            // What is longer was read for one large record, and holds little beside it.
            let piece = (bytes.len() <= READ_BYTES)
                .then_some(Piece { file: id.file, part: Part::Ours { header, from, bytes } });
            Ok((piece, record))
        };
        let read = read.await;
        self.disk.close(file).await;
        read
    }
}
