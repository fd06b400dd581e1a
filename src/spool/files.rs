//! All files of the spool, oldest first: the last one is being written, the first ones are being drained.
//!
//!     append -> the active file -> (full) closed, renamed -> read oldest first -> handed over -> done -> removed
//!
//! Holds: a record is durable, and so is its file's name, before `append` says so; records come out in the order in
//! which they went in; a file goes when its last record is decided, and what could not be read of it is kept under
//! `failed/`, never deleted. Does not know shards. Source: operations 4.2 to 4.6; reliability 6, F5 to F8.

use super::active::{Active, Batch};
use super::disk::{Disk, FAILED_DIR};
use super::format::{DATA_START, FOOTER, Found, Header, Scanner};
use super::legacy;
use super::status::Status;
use queen_shards::command::{DrainVerdict, Drained, SpoolId, SpoolRecord};
use queen_shards::ids::{MessageId, Stamp};
use queen_shards::planted::{Bug, is};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// A file is closed at this size, whatever its number of events: what is drained at once is bounded by it.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// A record whose refusal counted so often is set aside. Source: operations 4.5.
const REFUSALS_MAX: u32 = 5;
/// Bytes of memory of a record that waits on disk for another try.
const WAITS: usize = 0;
/// Read at a time.
const READ_BYTES: usize = 1 << 20;

/// Bounds of the spool. Source: operations 1.3.
#[derive(Clone, Debug)]
pub struct Limits {
    /// FILE_BUFFER_MAX_BYTES.
    pub bytes_max: u64,
    /// FILE_BUFFER_EVENTS_PER_FILE.
    pub events_per_file: u64,
}

/// What the world outside gives: nothing here reads a clock or draws.
pub trait Outside {
    fn unix_ms(&self) -> u64;
    fn random(&self) -> u128;
    fn message_id(&self) -> MessageId;
}

pub struct Files<D: Disk, O: Outside> {
    disk: D,
    outside: O,
    limits: Limits,
    status: Arc<Status>,
    files: VecDeque<Stored<D::File>>,
    active: Option<Active<D::File>>,
    /// Numbers of files: in `SpoolId`s, and in names.
    last_file: u64,
    last_named: (u64, u64),
    /// Number of the last file of an earlier process that was counted, and whether one is being counted.
    surveyed: u64,
    surveying: bool,
    /// Records that PostgreSQL refused and that are to be tried again; at most as many as are handed over.
    refused: BTreeMap<SpoolId, Refusals>,
    /// Records that were stored so far.
    stored: u64,
}

struct Stored<F> {
    number: u64,
    name: String,
    bytes: u64,
    /// Messages that are not decided.
    messages: u64,
    /// When the oldest of its messages was accepted.
    oldest: Option<Stamp>,
    reader: Reader<F>,
    /// Records that were handed over, by their place.
    out: HashMap<u64, Out>,
    /// Some of it is not readable, or was refused and could not be set aside by itself: it is kept.
    keep: bool,
    /// Closed: it has all the records it will have.
    closed: bool,
    /// Written by this process to here; nothing behind counts.
    written: Option<u64>,
    /// Was closed by its writer, so its footer must be there.
    footer_due: bool,
}

/// A record that was handed over.
#[derive(Clone, Copy)]
struct Out {
    messages: u64,
    /// Of memory, while a shard has it.
    bytes: usize,
}

/// What a record of which PostgreSQL says that it cannot be stored has met.
#[derive(Clone, Copy)]
struct Refusals {
    /// Those that count.
    count: u32,
    /// Records that had been stored when it was refused last.
    stored: u64,
}

enum Reader<F> {
    New,
    Ours { file: F, scanner: Scanner, footer: bool },
    Legacy { records: VecDeque<(u64, SpoolRecord)> },
    Done,
}

/// What was on disk at the start: records by hash of their lane's names.
pub type FoundLanes = BTreeMap<u64, (queen_shards::place::LaneKey, u32)>;

impl<D: Disk, O: Outside> Files<D, O> {
    /// Takes stock of the directory: what earlier processes left is put in order.
    pub async fn open(disk: D, outside: O, limits: Limits, status: Arc<Status>) -> io::Result<Files<D, O>> {
        let mut files = Files {
            disk,
            outside,
            limits,
            status,
            files: VecDeque::new(),
            active: None,
            last_file: 0,
            last_named: (0, 0),
            surveyed: 0,
            surveying: false,
            refused: BTreeMap::new(),
            stored: 0,
        };
        let mut found: Vec<((u64, u64), Stored<D::File>)> = Vec::new();
        let mut entries = files.disk.list(false).await?;
        entries.sort();
        for entry in entries {
            let Some((ms, sequence, active)) = parse_name(&entry.name) else { continue };
            files.last_named = files.last_named.max((ms, sequence));
            if !entry.regular {
                files.set_aside(&entry.name).await;
                continue;
            }
            if active && entry.bytes == 0 {
                // Made and never written: nobody was told anything of it.
                let _ = files.disk.remove(&entry.name).await;
                continue;
            }
            // A writer that ended without closing its file leaves the name as it is: it says that no footer is due.
            let name = entry.name;
            let order = files.order_of(&name).await.unwrap_or((ms, sequence));
            let stored = Stored {
                number: 0,
                name,
                bytes: entry.bytes,
                messages: 0,
                oldest: None,
                reader: Reader::New,
                out: HashMap::new(),
                keep: false,
                closed: true,
                written: None,
                footer_due: !active,
            };
            found.push((order, stored));
        }
        found.sort_by(|(a, x), (b, y)| (a, &x.name).cmp(&(b, &y.name)));
        for (_, mut stored) in found {
            files.last_file += 1;
            stored.number = files.last_file;
            files.files.push_back(stored);
        }
        files.count_failed().await;
        files.publish();
        Ok(files)
    }

    /// Where the header says a file belongs: names may have been changed.
    async fn order_of(&self, name: &str) -> Option<(u64, u64)> {
        let file = self.disk.open(name).await.ok()?;
        let head = self.disk.read(&file, 0, DATA_START as usize).await;
        self.disk.close(file).await;
        Header::decode(&head.ok()?).map(|header| (header.created_ms, header.number))
    }

    /// Reads one more file of an earlier process and counts its records; false when there is none. The files are read
    /// again to be drained.
    pub async fn survey(&mut self, lanes: &mut FoundLanes) -> bool {
        let Some(at) = self.files.iter().position(|stored| stored.number > self.surveyed && stored.written.is_none())
        else {
            return false;
        };
        self.surveyed = self.files[at].number;
        self.surveying = true;
        let (mut messages, mut oldest) = (0, None);
        while let Some((_, record)) = self.next_record(at).await {
            messages += record.draft.count as u64;
            oldest = oldest.into_iter().chain([record.accepted_at]).min();
            let lane = &record.draft.lane;
            lanes.entry(lane.hash()).or_insert_with(|| (lane.clone(), 0)).1 += 1;
        }
        self.surveying = false;
        let stored = &mut self.files[at];
        (stored.messages, stored.oldest) = (messages, oldest);
        // Damage is told by the reading that drains.
        stored.keep = false;
        if let Reader::Ours { file, .. } = std::mem::replace(&mut stored.reader, Reader::New) {
            self.disk.close(file).await;
        }
        self.publish();
        true
    }

    // ---- writing

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
        let used: u64 = self.files.iter().map(|stored| stored.bytes).sum();
        let room = self.limits.bytes_max.saturating_sub(used);
        if self.active.is_none() {
            self.begin_file(room).await?;
        }
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
            if fits && (batch.bytes.len() as u64).next_multiple_of(4096) > room {
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

    async fn begin_file(&mut self, room: u64) -> io::Result<()> {
        if room < 2 * DATA_START {
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
            closed: false,
            written: Some(DATA_START),
            footer_due: false,
        });
        self.active = Some(active);
        Ok(())
    }

    /// Closes the file that is being written. Source: operations 4.2, rotation; 1.6.
    pub async fn close_active(&mut self) {
        let Some(mut active) = self.active.take() else { return };
        let whole = !active.is_broken() && active.close(&self.disk).await.is_ok();
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
        self.tidy().await;
    }

    /// A write failed: the file gets nothing more, and is read as far as it is known to be durable.
    async fn abandon(&mut self) {
        self.close_active().await;
    }

    // ---- reading

    /// Whether every durable record was handed over.
    pub fn all_read(&self) -> bool {
        self.files.iter().all(|stored| match &stored.reader {
            Reader::Done => true,
            Reader::Ours { scanner, .. } => !stored.closed && Some(scanner.position()) == stored.written,
            Reader::New | Reader::Legacy { .. } => false,
        })
    }

    /// Records that are with the shards or wait for another try, and bytes of memory they take.
    pub fn handed_over(&self) -> (usize, usize) {
        let out = self.files.iter().flat_map(|stored| stored.out.values());
        out.fold((0, 0), |(records, bytes), out| (records + 1, bytes + out.bytes))
    }

    /// The next records, oldest first, until `bytes` are reached.
    pub async fn read(&mut self, records: usize, bytes: usize) -> Vec<Drained> {
        let (mut drained, mut size) = (Vec::new(), 0);
        let mut next = 0;
        while next < self.files.len() && drained.len() < records && size < bytes {
            let at = if is(Bug::DrainNewestFirst) { self.files.len() - 1 - next } else { next };
            if matches!(self.files[at].reader, Reader::Done) {
                next += 1;
                continue;
            }
            match self.next_record(at).await {
                Some((place, record)) => {
                    let stored = &mut self.files[at];
                    let out = Out { messages: record.draft.count as u64, bytes: weight(&record) };
                    size += out.bytes;
                    stored.out.insert(place, out);
                    drained.push(Drained { id: SpoolId { file: stored.number, at: place }, record });
                }
                None => next += 1,
            }
        }
        self.tidy().await;
        drained
    }

    /// The next record of a file and its place; `None`: no more for now, or ever.
    async fn next_record(&mut self, at: usize) -> Option<(u64, SpoolRecord)> {
        loop {
            if matches!(self.files[at].reader, Reader::New) && !self.begin_reading(at).await {
                return None;
            }
            let stored = &mut self.files[at];
            let (file, scanner, footer) = match &mut stored.reader {
                Reader::Done | Reader::New => return None,
                Reader::Legacy { records } => {
                    let next = records.pop_front();
                    if next.is_none() {
                        stored.reader = Reader::Done;
                    }
                    return next;
                }
                Reader::Ours { file, scanner, footer } => (file, scanner, footer),
            };
            let place = scanner.position();
            match scanner.next() {
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
                    let wants = scanner.wants();
                    let end = stored.written.unwrap_or(stored.bytes);
                    if wants >= end {
                        if !stored.closed {
                            return None;
                        }
                        scanner.end();
                        continue;
                    }
                    let from = wants - wants % super::format::BLOCK as u64;
                    let len = READ_BYTES.min((end - from).next_multiple_of(super::format::BLOCK as u64) as usize);
                    let mut read = self.disk.read(file, from, len).await;
                    if read.is_err() {
                        read = self.disk.read(file, from, len).await;
                    }
                    match read {
                        Ok(bytes) => {
                            let skip = (wants - from) as usize;
                            let until = bytes.len().min((end - from) as usize);
                            match bytes.get(skip..until).filter(|bytes| !bytes.is_empty()) {
                                Some(bytes) => scanner.feed(bytes),
                                // Shorter than it was.
                                None => scanner.end(),
                            }
                        }
                        Err(error) => {
                            stored.keep = true;
                            self.status.unreadable(self.surveying, &stored.name, &error);
                            self.finish_reading(at).await;
                            return None;
                        }
                    }
                }
            }
        }
    }

    /// Opens a file of an earlier process. False: it was set aside.
    async fn begin_reading(&mut self, at: usize) -> bool {
        let name = self.files[at].name.clone();
        let opened = async {
            let file = self.disk.open(&name).await?;
            let head = self.disk.read(&file, 0, DATA_START as usize).await?;
            Ok::<_, io::Error>((file, head))
        };
        let stored_ms = parse_name(&name).map_or(0, |(ms, ..)| ms);
        match opened.await {
            Ok((file, head)) => {
                if let Some(header) = Header::decode(&head) {
                    let stored = &mut self.files[at];
                    if head != header.encode() {
                        stored.keep = true;
                        self.status.damaged(self.surveying, &stored.name, 0, DATA_START);
                    }
                    stored.reader = Reader::Ours { file, scanner: Scanner::new(&header), footer: false };
                    return true;
                }
                let read = self.read_legacy(&file, stored_ms).await;
                self.disk.close(file).await;
                let stored = &mut self.files[at];
                match read {
                    Some((records, damage)) => {
                        if damage > 0 {
                            stored.keep = true;
                            self.status.damaged(self.surveying, &stored.name, 0, damage);
                        }
                        stored.reader = Reader::Legacy { records: records.into() };
                        return true;
                    }
                    None => self.status.damaged(self.surveying, &stored.name, 0, stored.bytes),
                }
            }
            Err(error) => self.status.unreadable(self.surveying, &name, &error),
        }
        let stored = &mut self.files[at];
        (stored.keep, stored.reader) = (true, Reader::Done);
        false
    }

    async fn read_legacy(&self, file: &D::File, ms: u64) -> Option<(Vec<(u64, SpoolRecord)>, u64)> {
        let mut bytes = Vec::new();
        loop {
            let piece = self.disk.read(file, bytes.len() as u64, READ_BYTES).await.ok()?;
            bytes.extend_from_slice(&piece);
            if piece.len() < READ_BYTES {
                break;
            }
        }
        legacy::read(&bytes, Stamp(ms as i64 * 1000), || self.outside.message_id())
    }

    async fn finish_reading(&mut self, at: usize) {
        if let Reader::Ours { file, .. } = std::mem::replace(&mut self.files[at].reader, Reader::Done) {
            self.disk.close(file).await;
        }
    }

    // ---- deciding

    /// A record that was handed over is decided; one that was refused is first tried again.
    pub async fn decide(&mut self, id: SpoolId, verdict: DrainVerdict) {
        let Some(at) = self.files.iter().position(|stored| stored.number == id.file) else { return };
        let Some(out) = self.files[at].out.get_mut(&id.at) else { return };
        let messages = out.messages;
        match verdict {
            DrainVerdict::Stored { duplicates } => {
                self.stored += 1;
                self.status.drained(messages, duplicates as u64);
            }
            DrainVerdict::Refused => {
                out.bytes = WAITS;
                if !self.is_poison(id) {
                    return;
                }
                self.status.poison(messages);
                if !self.set_record_aside(at, id.at).await {
                    self.files[at].keep = true;
                }
            }
        }
        self.settle(at, id);
        self.tidy().await;
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
        let refusals = self.refused.entry(id).or_insert(Refusals { count: 0, stored });
        if oldest || refusals.stored != stored {
            refusals.count += 1;
            self.status.drain_refused(refusals.count, REFUSALS_MAX);
        }
        refusals.stored = stored;
        REFUSALS_MAX <= refusals.count
    }

    fn settle(&mut self, at: usize, id: SpoolId) {
        self.refused.remove(&id);
        let stored = &mut self.files[at];
        if let Some(out) = stored.out.remove(&id.at) {
            stored.messages = stored.messages.saturating_sub(out.messages);
        }
    }

    /// Refused records for another try, oldest first, until `bytes` are reached. Those that a shard has are left out.
    pub async fn try_again(&mut self, bytes: usize) -> Vec<Drained> {
        let (mut again, mut size) = (Vec::new(), 0);
        let refused: Vec<SpoolId> = self.refused.keys().copied().collect();
        for id in refused {
            if bytes <= size {
                break;
            }
            let Some(at) = self.files.iter().position(|stored| stored.number == id.file) else { continue };
            if self.files[at].out.get(&id.at).is_none_or(|out| out.bytes != WAITS) {
                continue;
            }
            match self.read_again(at, id.at).await {
                Some(record) => {
                    let bytes = weight(&record);
                    size += bytes;
                    self.files[at].out.entry(id.at).and_modify(|out| out.bytes = bytes);
                    again.push(Drained { id, record });
                }
                // It was read once, and cannot be any more: its file is kept.
                None => {
                    self.files[at].keep = true;
                    self.settle(at, id);
                }
            }
        }
        self.tidy().await;
        again
    }

    /// Whether records wait for another try.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
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

    async fn read_again(&self, at: usize, place: u64) -> Option<SpoolRecord> {
        let stored = &self.files[at];
        let file = self.disk.open(&stored.name).await.ok()?;
        let head = self.disk.read(&file, 0, DATA_START as usize).await.ok()?;
        let record = match Header::decode(&head) {
            Some(header) => self.read_at(&file, &header, place).await,
            None => {
                let ms = parse_name(&stored.name).map_or(0, |(ms, ..)| ms);
                let (records, _) = self.read_legacy(&file, ms).await?;
                records.into_iter().find(|(at, _)| *at == place).map(|(_, record)| record)
            }
        };
        self.disk.close(file).await;
        record
    }

    async fn read_at(&self, file: &D::File, header: &Header, place: u64) -> Option<SpoolRecord> {
        let mut scanner = Scanner::at(header, place);
        loop {
            match scanner.next() {
                Found::Record(record) => return Some(*record),
                Found::More => {
                    let wants = scanner.wants();
                    let from = wants - wants % super::format::BLOCK as u64;
                    let bytes = self.disk.read(file, from, READ_BYTES).await.ok()?;
                    scanner.feed(bytes.get((wants - from) as usize..).filter(|bytes| !bytes.is_empty())?);
                }
                // Records before it are not read here.
                Found::Damage { bytes: 0 } => {}
                _ => return None,
            }
        }
    }

    /// Files whose records are all decided go.
    async fn tidy(&mut self) {
        let mut at = 0;
        while at < self.files.len() {
            let stored = &self.files[at];
            let idle = !stored.closed
                && matches!(&stored.reader, Reader::Ours { scanner, .. } if Some(scanner.position()) == stored.written);
            let read = matches!(stored.reader, Reader::Done)
                || (idle && stored.messages == 0 && stored.written != Some(DATA_START));
            if !read || !stored.out.is_empty() {
                at += 1;
                continue;
            }
            crate::torture::point("drain-committed");
            self.finish_reading(at).await;
            let stored = self.files.remove(at).expect("just seen");
            if !stored.closed
                && let Some(active) = self.active.take()
            {
                self.disk.close(active.file).await;
            }
            if stored.keep {
                self.set_aside(&stored.name).await;
            } else if let Err(error) = self.disk.remove(&stored.name).await {
                self.status.unreadable(false, &stored.name, &error);
            }
        }
        self.publish();
    }

    /// Moves a file to `failed/`. Where that cannot be it stays where it is, and is not read again.
    async fn set_aside(&self, name: &str) {
        let to = format!("{FAILED_DIR}/{name}");
        match self.disk.rename(name, &to).await {
            Ok(()) => {
                let _ = self.disk.sync_names().await;
                self.status.quarantined(&to);
            }
            Err(error) => self.status.unreadable(false, name, &error),
        }
    }

    async fn count_failed(&self) {
        if let Ok(entries) = self.disk.list(true).await {
            self.status.set_quarantined(entries.len() as u64);
        }
    }

    fn publish(&self) {
        let files = self.files.iter().filter(|stored| stored.messages > 0 || stored.closed);
        let (count, bytes) = files.fold((0, 0), |(n, sum), stored| (n + 1, sum + stored.bytes));
        let pending = self.files.iter().map(|stored| stored.messages).sum();
        self.status.sizes(pending, count, bytes);
        let waiting = self.files.iter().filter(|stored| stored.messages > 0);
        self.status.set_floor(waiting.filter_map(|stored| stored.oldest).min().map(|stamp| stamp.0));
    }
}

/// Bytes of memory that a record takes; more than [`WAITS`].
fn weight(record: &SpoolRecord) -> usize {
    1 + record.draft.frames.len() + record.draft.packed.as_ref().map_or(0, |packed| packed.len())
}

/// Milliseconds, sequence, and whether it is being written, of a name of ours.
fn parse_name(name: &str) -> Option<(u64, u64, bool)> {
    let (stem, end) = name.strip_prefix("queen-")?.rsplit_once('.')?;
    let (ms, sequence) = stem.split_once('-')?;
    let digits = |text: &str, n: usize| text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit());
    let fits = digits(ms, 13) && digits(sequence, 8) && matches!(end, "tmp" | "buf");
    fits.then(|| Some((ms.parse().ok()?, sequence.parse().ok()?, end == "tmp")))?
}
