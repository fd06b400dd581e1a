//! Reading: records come out in the order in which they went in; damage is passed over, told, and its file kept.
//! Source: operations 4.4, 4.6; reliability 6, F7 and F8.

use super::failures::READ_FAILURES_MAX;
use super::{DATA_START, Files, Outside, Reader, parse_name, weight};
use crate::spool::disk::Disk;
use crate::spool::format::{BLOCK, FOOTER, Found, Header, Scanner, record_of};
use crate::spool::legacy;
use queen_shards::command::{Drained, SpoolId, SpoolRecord};
use queen_shards::handed::Room;
use queen_shards::ids::Stamp;
use queen_shards::planted::{Bug, is};
use std::io;

/// Records that are put off in one go: the thread looks at its mail in between.
const PASSED_MAX: usize = 1024;
/// Read at a time.
pub(super) const READ_BYTES: usize = 1 << 20;

impl<D: Disk, O: Outside> Files<D, O> {
    /// Whether every durable record was handed over, but for those that were put off.
    pub fn all_read(&self) -> bool {
        self.files.iter().all(|stored| match &stored.reader {
            Reader::Done => true,
            Reader::Ours { scanner, .. } => !stored.closed && Some(scanner.position()) == stored.written,
            Reader::New | Reader::Legacy { .. } => false,
        })
    }

    /// Records and bytes to read next.
    pub fn room(&self) -> Room {
        self.handed.room()
    }

    /// The next records, oldest first, until `room` is used up; `None`: there is nothing to read now. What waits for an older
    /// record of its lane is put off, and comes before anything else when it does not wait any more.
    pub async fn read(&mut self, room: Room) -> Option<Vec<Drained>> {
        let (mut drained, mut size) = (Vec::new(), 0);
        let mut passed = self.read_later(room, &mut drained, &mut size).await;
        let mut next = 0;
        while next < self.files.len()
            && drained.len() < room.records
            && size < room.bytes
            && passed < PASSED_MAX
            && !self.handed.is_full()
            && !self.failures.waits()
        {
            let at = if is(Bug::DrainNewestFirst) { self.files.len() - 1 - next } else { next };
            if matches!(self.files[at].reader, Reader::Done) {
                next += 1;
                continue;
            }
            let Some((place, record)) = self.next_record(at).await else {
                next += 1;
                continue;
            };
            let stored = &mut self.files[at];
            stored.out.insert(place, record.draft.count as u64);
            let (id, lane) = (SpoolId { file: stored.number, at: place }, record.draft.lane.hash());
            if self.handed.waits(lane) {
                self.handed.put_off(id, lane);
                passed += 1;
                continue;
            }
            size += weight(&record);
            self.handed.hand_over(id, lane, weight(&record));
            drained.push(Drained { id, record });
        }
        if self.handed.is_full() {
            self.status.too_many_put_off();
        }
        self.tidy().await;
        (0 < passed || !drained.is_empty()).then_some(drained)
    }

    /// The next record of a file and its place; `None`: no more for now, or ever.
    pub(super) async fn next_record(&mut self, at: usize) -> Option<(u64, SpoolRecord)> {
        loop {
            if matches!(self.files[at].reader, Reader::New) && !self.begin_reading(at).await {
                return None;
            }
            let stored = &mut self.files[at];
            let (scanner, footer) = match &mut stored.reader {
                Reader::Done | Reader::New => return None,
                Reader::Legacy { records } => {
                    let next = records.pop_front();
                    if next.is_none() {
                        stored.reader = Reader::Done;
                    }
                    return next;
                }
                Reader::Ours { scanner, footer, .. } => (scanner, footer),
            };
            let place = scanner.position();
            match scanner.find() {
                Found::Record(_)
                    if is(Bug::ForgetLastRecord) && stored.written == Some(scanner.position() + FOOTER) => {}
                Found::Record(record) => return Some((place, *record)),
                Found::Footer { .. } => *footer = true,
                Found::Damage { bytes } => {
                    stored.keep = true;
                    self.status.damaged(self.surveying, &stored.name, place, bytes);
                }
                Found::End => {
                    if stored.footer_due && !*footer {
                        // Cut where a record ended.
                        stored.keep = true;
                        self.status.damaged(self.surveying, &stored.name, place, 0);
                    }
                    self.finish_reading(at).await;
                    return None;
                }
                Found::More => {
                    if !self.read_more(at).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Reads the next piece of a file, or finds its end. False: there is no more for now, or it cannot be read.
    async fn read_more(&mut self, at: usize) -> bool {
        let stored = &mut self.files[at];
        let Reader::Ours { file, scanner, .. } = &mut stored.reader else { return false };
        let wants = scanner.wants();
        let end = stored.written.unwrap_or(stored.bytes);
        if wants >= end {
            if stored.closed {
                scanner.end();
            }
            return stored.closed;
        }
        let from = wants - wants % BLOCK as u64;
        let len = READ_BYTES.min((end - from).next_multiple_of(BLOCK as u64) as usize);
        match self.disk.read(file, from, len).await {
            Ok(bytes) => {
                self.failures.end();
                let skip = (wants - from) as usize;
                let until = bytes.len().min((end - from) as usize);
                match bytes.get(skip..until).filter(|bytes| !bytes.is_empty()) {
                    Some(bytes) => scanner.feed(bytes),
                    // Shorter than it was.
                    None => scanner.end(),
                }
                true
            }
            Err(error) => {
                self.read_failed(at, &error).await;
                false
            }
        }
    }

    /// Opens a file of an earlier process. False: it cannot be read now, or is none of ours.
    async fn begin_reading(&mut self, at: usize) -> bool {
        match self.open_reader(&self.files[at].name).await {
            Ok(Some((reader, damage))) => {
                self.failures.end();
                let stored = &mut self.files[at];
                if damage > 0 {
                    stored.keep = true;
                    self.status.damaged(self.surveying, &stored.name, 0, damage);
                }
                stored.reader = reader;
                return true;
            }
            Ok(None) => {
                self.failures.end();
                let stored = &mut self.files[at];
                self.status.damaged(self.surveying, &stored.name, 0, stored.bytes);
                (stored.keep, stored.reader) = (true, Reader::Done);
            }
            Err(error) => self.read_failed(at, &error).await,
        }
        false
    }

    /// What reads a file, and the bytes that are damaged at its beginning; `None`: not a file of ours.
    async fn open_reader(&self, name: &str) -> io::Result<Option<(Reader<D::File>, u64)>> {
        let file = self.disk.open(name).await?;
        let head = self.disk.read(&file, 0, DATA_START as usize).await;
        if let Some(header) = head.as_ref().ok().and_then(|head| Header::decode(head)) {
            let damage = if head.is_ok_and(|head| head == header.encode()) { 0 } else { DATA_START };
            return Ok(Some((Reader::Ours { file, scanner: Scanner::new(&header), footer: false }, damage)));
        }
        let read = match head {
            Ok(_) => self.read_legacy(&file, name).await,
            Err(error) => Err(error),
        };
        self.disk.close(file).await;
        Ok(read?.map(|(records, damage)| (Reader::Legacy { records: records.into() }, damage)))
    }

    /// A read of a file failed: the next round tries again, until the file is given up. Then what was read of it counts, and it
    /// is kept.
    async fn read_failed(&mut self, at: usize, error: &io::Error) {
        let stored = &mut self.files[at];
        if !self.failures.count(stored.number, error) {
            self.status.read_failed(&stored.name, error, self.failures.in_a_row(), READ_FAILURES_MAX);
            return;
        }
        self.failures.end();
        self.status.unreadable(&stored.name, error);
        (stored.keep, stored.given_up) = (true, true);
        if self.surveying
            && let Reader::Ours { scanner, .. } = &stored.reader
        {
            // It is read once more, to be drained: what was not counted is nobody's to wait for, so it must not come.
            (stored.written, stored.footer_due) = (Some(scanner.position()), false);
        }
        self.finish_reading(at).await;
    }

    /// Records of a file of the original and the bytes that are none; `None`: not such a file.
    pub(super) async fn read_legacy(
        &self,
        file: &D::File,
        name: &str,
    ) -> io::Result<Option<(Vec<(u64, SpoolRecord)>, u64)>> {
        let mut bytes = Vec::new();
        loop {
            let piece = self.disk.read(file, bytes.len() as u64, READ_BYTES).await?;
            bytes.extend_from_slice(&piece);
            if piece.len() < READ_BYTES {
                break;
            }
        }
        let ms = parse_name(name).map_or(0, |(ms, ..)| ms);
        Ok(legacy::read(&bytes, Stamp(ms as i64 * 1000), || self.outside.message_id()))
    }

    pub(super) async fn finish_reading(&mut self, at: usize) {
        if let Reader::Ours { file, .. } = std::mem::replace(&mut self.files[at].reader, Reader::Done) {
            self.disk.close(file).await;
        }
    }

    /// A record that was handed over, read once more; `None`: it is not there any more.
    pub(super) async fn read_again(&self, at: usize, place: u64) -> io::Result<Option<SpoolRecord>> {
        let name = &self.files[at].name;
        let file = self.disk.open(name).await?;
        let read = async {
            let head = self.disk.read(&file, 0, DATA_START as usize).await?;
            if let Some(header) = Header::decode(&head) {
                return Ok(self.read_place(&file, &header, place).await?.1);
            }
            let records = self.read_legacy(&file, name).await?.map(|(records, _)| records);
            Ok(records.into_iter().flatten().find(|(at, _)| *at == place).map(|(_, record)| record))
        };
        let record = read.await;
        self.disk.close(file).await;
        record
    }

    /// Reads from the block in which a record begins until all of it is there, and the record; `None`: there is none.
    pub(super) async fn read_place(
        &self,
        file: &D::File,
        header: &Header,
        place: u64,
    ) -> io::Result<(Vec<u8>, Option<SpoolRecord>)> {
        let skip = (place % BLOCK as u64) as usize;
        let mut bytes = Vec::new();
        loop {
            let more = self.disk.read(file, place - skip as u64 + bytes.len() as u64, READ_BYTES).await?;
            bytes.extend_from_slice(&more);
            match record_of(header, bytes.get(skip..).unwrap_or_default()) {
                Found::Record(record) => return Ok((bytes, Some(*record))),
                Found::More if more.len() == READ_BYTES => {}
                _ => return Ok((bytes, None)),
            }
        }
    }
}
