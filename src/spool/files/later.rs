//! Records that were put off, because an older one of their lane was refused: they are read again when it is their turn.
//!
//! Those of a lane mostly lie close to each other, so the piece of a file that was read for one is kept for the next.

use super::read::READ_BYTES;
use super::{Files, Outside, weight};
use crate::spool::disk::Disk;
use crate::spool::format::{BLOCK, DATA_START, Found, Header, Scanner};
use queen_shards::command::{Drained, SpoolId, SpoolRecord};
use queen_shards::handed::Room;

/// Part of a file of ours, from a block on.
pub(super) struct Piece {
    file: u64,
    header: Header,
    from: u64,
    bytes: Vec<u8>,
}

impl Piece {
    /// The record at a place, if all of it is here.
    fn record(&self, id: SpoolId) -> Option<SpoolRecord> {
        let skip = id.at.checked_sub(self.from).filter(|_| self.file == id.file)?;
        let mut scanner = Scanner::at(&self.header, id.at);
        scanner.feed(self.bytes.get(skip as usize..).filter(|bytes| !bytes.is_empty())?);
        loop {
            match scanner.find() {
                Found::Record(record) => return Some(*record),
                // Records before it are not read here.
                Found::Damage { bytes: 0 } => {}
                _ => return None,
            }
        }
    }
}

impl<D: Disk, O: Outside> Files<D, O> {
    /// Reads records that were put off and whose turn it is, and hands them over. How many are lost.
    pub(super) async fn read_later(&mut self, room: Room, drained: &mut Vec<Drained>, size: &mut usize) -> usize {
        let mut lost = 0;
        while drained.len() < room.records
            && *size < room.bytes
            && let Some((id, lane)) = self.handed.next_later()
        {
            let at = self.files.iter().position(|stored| stored.number == id.file);
            let record = match at {
                Some(at) => self.read_put_off(at, id).await,
                None => None,
            };
            if let Some(record) = record {
                *size += weight(&record);
                self.handed.hand_over(id, lane, weight(&record));
                drained.push(Drained { id, record });
                continue;
            }
            lost += 1;
            self.handed.lose(lane);
            if let Some(at) = at {
                self.files[at].keep = true;
                self.status.damaged(false, &self.files[at].name, id.at, 0);
                self.settle(at, id.at);
            }
        }
        if drained.is_empty() {
            self.piece = None;
        }
        lost
    }

    async fn read_put_off(&mut self, at: usize, id: SpoolId) -> Option<SpoolRecord> {
        if let Some(record) = self.piece.as_ref().and_then(|piece| piece.record(id)) {
            return Some(record);
        }
        self.piece = self.read_piece(at, id).await;
        let here = self.piece.as_ref().and_then(|piece| piece.record(id));
        match here {
            Some(record) => Some(record),
            // Longer than a piece, or of another format.
            None => self.read_again(at, id.at).await,
        }
    }

    async fn read_piece(&self, at: usize, id: SpoolId) -> Option<Piece> {
        let file = self.disk.open(&self.files[at].name).await.ok()?;
        let read = async {
            let header = Header::decode(&self.disk.read(&file, 0, DATA_START as usize).await.ok()?)?;
            let from = id.at - id.at % BLOCK as u64;
            let bytes = self.disk.read(&file, from, READ_BYTES).await.ok()?;
            Some(Piece { file: id.file, header, from, bytes: bytes.to_vec() })
        };
        let piece = read.await;
        self.disk.close(file).await;
        piece
    }
}
