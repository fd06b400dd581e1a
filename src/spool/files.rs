//! All files of the spool, oldest first: the last one is being written, the first ones are being drained.
//!
//!     append -> the active file -> (full) closed, renamed -> read oldest first -> handed over -> done -> removed
//!
//! Holds: a file goes when its last record is decided, and what could not be read of it is kept under `failed/`, never
//! deleted. Does not know shards. Source: operations 4.2 to 4.6; reliability 6, F5 to F8.

mod decide;
mod failures;
mod later;
mod read;
mod write;

use super::active::Active;
use super::disk::{Disk, FAILED_DIR};
use super::format::{DATA_START, Header, Scanner};
use super::status::Status;
use failures::Failures;
use queen_shards::command::SpoolRecord;
use queen_shards::handed::{Handed, Room};
use queen_shards::ids::{MessageId, Stamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Records and bytes that are with the shards at once: what a drain holds in memory, and what it does not take away
/// from live pushes, which share the commits.
const HANDED_MAX: Room = Room { records: 8192, bytes: 64 << 20 };

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
    /// What is with the shards, and what PostgreSQL refused of it.
    handed: Handed,
    /// What was read last of a file for records that were put off.
    piece: Option<later::Piece>,
    /// Of reading on, and of reading what was put off: two, as one may go on where the other one cannot.
    failures: Failures,
    failures_later: Failures,
    /// Rounds so far.
    rounds: u64,
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
    /// Messages of records that were read and are not decided, by their place.
    out: HashMap<u64, u64>,
    /// Some of it is not readable, or was refused and could not be set aside by itself: it is kept.
    keep: bool,
    /// It could not be read to its end.
    given_up: bool,
    /// Closed: it has all the records it will have.
    closed: bool,
    /// Written by this process, or readable, to here; nothing behind counts.
    written: Option<u64>,
    /// Was closed by its writer, so its footer must be there.
    footer_due: bool,
    /// It is to go and could not, last in this round.
    stays: Option<u64>,
}

enum Reader<F> {
    New,
    Ours { file: F, scanner: Scanner, footer: bool },
    Legacy { records: VecDeque<(u64, SpoolRecord)> },
    Done,
}

/// What came of counting one more file of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surveyed {
    One,
    /// It cannot be read now: the next round tries again.
    NotNow,
    /// All files had been counted.
    All,
}

/// What was on disk at the start: records by hash of their lane's names. The names stay there: there may be millions.
pub type FoundLanes = BTreeMap<u64, u32>;

impl<D: Disk, O: Outside> Files<D, O> {
    /// Whether there are files, of an earlier process or of this one.
    pub fn has_any(&self) -> bool {
        !self.files.is_empty()
    }

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
            handed: Handed::new(HANDED_MAX),
            piece: None,
            failures: Failures::default(),
            failures_later: Failures::default(),
            rounds: 0,
        };
        let mut found: Vec<((u64, u64), Stored<D::File>)> = Vec::new();
        let mut entries = files.disk.list(false).await?;
        entries.sort();
        for entry in entries {
            let Some((ms, sequence, active)) = parse_name(&entry.name) else { continue };
            files.last_named = files.last_named.max((ms, sequence));
            if !entry.regular {
                if let Err(error) = files.take_away(&entry.name, true).await {
                    files.status.unreadable(&entry.name, &error);
                }
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
                given_up: false,
                closed: true,
                written: None,
                footer_due: !active,
                stays: None,
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

    /// Reads one more file of an earlier process and counts its records. The files are read again to be drained.
    pub async fn survey(&mut self, lanes: &mut FoundLanes) -> Surveyed {
        let Some(at) = self.files.iter().position(|stored| stored.number > self.surveyed && stored.written.is_none())
        else {
            self.status.surveyed();
            return Surveyed::All;
        };
        if self.failures.waits() {
            return Surveyed::NotNow;
        }
        self.surveying = true;
        while let Some((_, record)) = self.next_record(at).await {
            let stored = &mut self.files[at];
            stored.messages += record.draft.count as u64;
            stored.oldest = stored.oldest.into_iter().chain([record.accepted_at]).min();
            *lanes.entry(record.draft.lane.hash()).or_default() += 1;
        }
        self.surveying = false;
        if self.failures.waits() {
            // It goes on where it stands.
            return Surveyed::NotNow;
        }
        self.finish_reading(at).await;
        let stored = &mut self.files[at];
        self.surveyed = stored.number;
        // Damage is told by the reading that drains.
        stored.keep = stored.given_up;
        if !stored.given_up || stored.written.is_some() {
            stored.reader = Reader::New;
        }
        self.publish();
        Surveyed::One
    }

    /// Files whose records are all decided go. One that cannot is tried again each round: a later process would find it, and
    /// what says that its records are stored must not go before it.
    async fn tidy(&mut self) {
        let mut at = 0;
        while at < self.files.len() {
            let stored = &self.files[at];
            let idle = !stored.closed
                && matches!(&stored.reader, Reader::Ours { scanner, .. } if Some(scanner.position()) == stored.written);
            let read = matches!(stored.reader, Reader::Done)
                || (idle && stored.messages == 0 && stored.written != Some(DATA_START));
            if !read || !stored.out.is_empty() || stored.stays == Some(self.rounds) {
                at += 1;
                continue;
            }
            if stored.stays.is_none() {
                crate::torture::point("drain-committed");
            }
            self.finish_reading(at).await;
            if !self.files[at].closed
                && let Some(active) = self.active.take()
            {
                self.disk.close(active.file).await;
            }
            let stored = &self.files[at];
            match self.take_away(&stored.name, stored.keep).await {
                Ok(()) => drop(self.files.remove(at)),
                Err(error) => {
                    self.status.stays(&stored.name, &error);
                    let stored = &mut self.files[at];
                    (stored.closed, stored.messages, stored.stays) = (true, 0, Some(self.rounds));
                    at += 1;
                }
            }
        }
        self.publish();
    }

    /// Removes a file, or moves it to `failed/`, for good: after a power cut it is not back.
    async fn take_away(&self, name: &str, keep: bool) -> io::Result<()> {
        let to = format!("{FAILED_DIR}/{name}");
        let taken = match keep {
            true => self.disk.rename(name, &to).await,
            false => self.disk.remove(name).await,
        };
        match taken {
            Ok(()) if keep => self.status.quarantined(&to),
            Ok(()) => {}
            // By an earlier try, or by somebody else.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_gone(name).await => {}
            Err(error) => return Err(error),
        }
        self.disk.sync_names().await
    }

    async fn is_gone(&self, name: &str) -> bool {
        match self.disk.open(name).await {
            Ok(file) => {
                self.disk.close(file).await;
                false
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
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
        let waiting = self.files.iter().filter(|stored| stored.messages > 0 || stored.stays.is_some());
        self.status.set_floor(waiting.filter_map(|stored| stored.oldest).min().map(|stamp| stamp.0));
    }
}

/// Bytes of memory that a record takes.
fn weight(record: &SpoolRecord) -> usize {
    record.draft.frames.len() + record.draft.packed.as_ref().map_or(0, |packed| packed.len())
}

/// Whether a directory that cannot be used now may hold records: some are seen there, or it cannot be looked into.
pub fn may_hold_records(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.any(|entry| {
            entry.map_or(true, |entry| entry.file_name().to_str().is_some_and(|name| parse_name(name).is_some()))
        }),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Milliseconds, sequence, and whether it is being written, of a name of ours.
fn parse_name(name: &str) -> Option<(u64, u64, bool)> {
    let (stem, end) = name.strip_prefix("queen-")?.rsplit_once('.')?;
    let (ms, sequence) = stem.split_once('-')?;
    let digits = |text: &str, n: usize| text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit());
    let fits = digits(ms, 13) && digits(sequence, 8) && matches!(end, "tmp" | "buf");
    fits.then(|| Some((ms.parse().ok()?, sequence.parse().ok()?, end == "tmp")))?
}
