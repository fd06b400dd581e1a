//! What the oracle knows to be true: every message that was written, every state a cursor was in, every option a queue
//! had, and since when. Kept from the requests and answers at the store's door, never read from the store's tables.

use crate::store::{Cursor, Store};
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::effect::Options;
use queen_shards::ids::{GroupId, Key, LeaseId, MessageId, Offset, PartitionId, QueueId, Slot, Stamp};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;

/// One instant, on the world's clock and on the store's.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub t: u64,
    pub stamp: Stamp,
}

/// A message as it was written.
pub struct Written {
    pub id: MessageId,
    pub key: Key,
    pub created_at: Stamp,
    /// When it was accepted, of what waited in a spool; else when it was stored.
    pub accepted_at: Stamp,
    /// Which of the segments holds it.
    pub segment: u32,
}

pub struct WrittenSegment {
    pub base: Offset,
    pub count: u32,
    pub flags: u8,
    pub created_at: Stamp,
    pub accepted_at: Option<Stamp>,
    pub frames: Bytes,
    pub codec: Codec,
    pub body: Bytes,
    pub broker: Option<usize>,
}

pub struct Part {
    pub queue: QueueId,
    pub queue_name: Arc<str>,
    pub name: Arc<str>,
    pub alive: bool,
    pub messages: Vec<Written>,
    pub segments: Vec<WrittenSegment>,
    /// Looked up only, never walked.
    pub offsets: HashMap<Key, Vec<Offset>>,
    pub log_start: Offset,
    /// Keys below this may be forgotten.
    pub forgotten: Offset,
    /// Highest offset a client was told, and when.
    pub answered: Vec<(u64, Offset)>,
    pub notes: Vec<(u64, Note)>,
}

impl Part {
    pub fn last_offset(&self) -> Offset {
        Offset(self.messages.len() as i64 - 1)
    }
    pub fn at(&self, offset: Offset) -> Option<&Written> {
        self.messages.get(usize::try_from(offset.0).ok()?)
    }
    /// Highest offset that clients had been told before `t`.
    pub fn answered_before(&self, t: u64) -> Offset {
        let before = self.answered.iter().rev().find(|(when, _)| *when < t);
        before.map_or(Offset::NONE, |(_, offset)| *offset)
    }
    pub fn answer(&mut self, t: u64, offset: Offset) {
        let top = self.answered.last().map_or(Offset::NONE, |(_, top)| *top);
        self.answered.push((t, top.max(offset)));
    }
    /// Records a committed segment. The caller has checked that it begins at the end.
    pub fn write(&mut self, segment: WrittenSegment, ids: &[(MessageId, Key)]) {
        for (i, (id, key)) in ids.iter().enumerate() {
            let offset = segment.base.plus(i as i64);
            self.offsets.entry(*key).or_default().push(offset);
            let (created_at, at) = (segment.created_at, self.segments.len() as u32);
            let accepted_at = segment.accepted_at.unwrap_or(created_at);
            self.messages.push(Written { id: *id, key: *key, created_at, accepted_at, segment: at });
        }
        self.segments.push(segment);
    }
}

/// A delivery that was granted by a cursor write.
#[derive(Clone, Debug)]
pub struct Grant {
    pub lease: Option<LeaseId>,
    pub start: Offset,
    pub end: Offset,
    pub attempt: u32,
    pub conflating: bool,
    pub t: u64,
    pub answered: bool,
}

/// All states one cursor was in.
pub struct Track {
    pub row: Cursor,
    /// Former states, each with the time it ended.
    pub past: Vec<(u64, Cursor)>,
    pub grants: Vec<Grant>,
    pub since: u64,
    pub gone: Option<u64>,
}

impl Track {
    pub fn new(t: u64, row: Cursor) -> Track {
        Track { row, past: Vec::new(), grants: Vec::new(), since: t, gone: None }
    }
    /// Of a cursor that is made again: what was granted before may still be answered.
    fn after(before: Option<Track>, t: u64, row: Cursor) -> Track {
        let Some(Track { row: last, mut past, grants, gone, .. }) = before else { return Track::new(t, row) };
        past.push((gone.unwrap_or(t), last));
        Track { past, grants, ..Track::new(t, row) }
    }
    pub fn set(&mut self, t: u64, row: Cursor) {
        self.past.push((t, self.row));
        self.row = row;
    }
    /// States that held at some time from `t` on.
    pub fn states_since(&self, t: u64) -> impl Iterator<Item = &Cursor> {
        let past = self.past.iter().rev().take_while(move |(until, _)| *until >= t).map(|(_, row)| row);
        let last = self.gone.is_none_or(|gone| gone >= t).then_some(&self.row);
        last.into_iter().chain(past)
    }
}

/// Options of a queue over time: each version from when it was stored until every shard had heard of the next.
pub struct QueueLog {
    pub name: Arc<str>,
    pub versions: Vec<(u64, u64, Options)>,
    pub changed: u64,
    pub gone: Option<u64>,
}

impl QueueLog {
    /// Options an engine may have acted on between two times.
    pub fn possible(&self, from: u64, to: u64) -> impl Iterator<Item = &Options> {
        let inside = move |v: &&(u64, u64, Options)| v.0 <= to && v.1 >= from;
        self.versions.iter().filter(inside).map(|(_, _, options)| options)
    }
}

/// One line of a partition's history.
#[derive(Clone, Debug)]
pub enum Note {
    Wrote { broker: Option<usize>, base: Offset, count: u32, created_at: Stamp },
    Cursor { group: GroupId, by: (usize, usize), before: Cursor, after: Cursor, stamp: Stamp },
    Asked { slot: Slot, broker: usize, what: String },
    Answered { slot: Slot, broker: usize, what: String },
    LogStart(Offset),
    Purged(Offset),
    Seek { group: GroupId, committed: Offset },
    Seeded { group: GroupId, committed: Offset },
    Deleted,
    GroupDeleted(GroupId),
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Note::Wrote { broker, base, count, created_at } => {
                let last = base.plus(*count as i64 - 1);
                write!(f, "wrote {base}..={last} stamp {} by {broker:?}", short(*created_at))
            }
            Note::Cursor { group, by, before, after, stamp } => {
                write!(f, "{group:?} by {by:?} at {}: {before} -> {after}", short(*stamp))
            }
            Note::Asked { slot, broker, what } => write!(f, "asked {:#x}@{broker} {what}", slot.0),
            Note::Answered { slot, broker, what } => write!(f, "answered {:#x}@{broker} {what}", slot.0),
            Note::LogStart(to) => write!(f, "log starts at {to}"),
            Note::Purged(to) => write!(f, "keys below {to} are forgotten"),
            Note::Seek { group, committed } => write!(f, "{group:?} seeks to {committed}"),
            Note::Seeded { group, committed } => write!(f, "{group:?} begins at {committed}"),
            Note::Deleted => write!(f, "deleted"),
            Note::GroupDeleted(group) => write!(f, "{group:?} is deleted"),
        }
    }
}

/// A stamp without the years.
pub fn short(stamp: Stamp) -> i64 {
    stamp.0 % 10_000_000_000
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[v{} c{}", self.version, self.committed)?;
        if let Some(end) = self.batch_end {
            write!(f, "..={end}")?;
        }
        if self.lease.is_some() {
            write!(f, " lease {:#x} until {}", self.lease.0 >> 64, short(self.expires))?;
        }
        if self.retry_count > 0 {
            write!(f, " failed {}", self.retry_count)?;
        }
        if let Some(start) = self.attempt_start {
            write!(f, " try {} of {start}", self.attempt_count)?;
        }
        write!(f, "]")
    }
}

#[derive(Default)]
pub struct Ledger {
    pub parts: BTreeMap<PartitionId, Part>,
    pub tracks: BTreeMap<(PartitionId, GroupId), Track>,
    pub queues: BTreeMap<QueueId, QueueLog>,
    pub groups: BTreeMap<GroupId, (QueueId, Arc<str>)>,
    /// Groups that were registered as conflating, and when.
    pub conflated: BTreeMap<GroupId, u64>,
    /// Every partition that ever had these names.
    pub named: BTreeMap<(Arc<str>, Arc<str>), Vec<PartitionId>>,
}

impl Ledger {
    /// Takes in ids that the store has given since the last look.
    pub fn learn(&mut self, t: u64, store: &mut Store) {
        let next = self.queues.keys().next_back().map_or(0, |id| id.0 + 1);
        for (id, queue) in store.queues.range(QueueId(next)..) {
            let versions = vec![(t, u64::MAX, queue.options)];
            self.queues.insert(*id, QueueLog { name: queue.name.clone(), versions, changed: t, gone: None });
        }
        let next = self.parts.keys().next_back().map_or(0, |id| id.0 + 1);
        for (id, row) in store.partitions.range(PartitionId(next)..) {
            let queue_name = self.queues[&row.queue].name.clone();
            self.named.entry((queue_name.clone(), row.name.clone())).or_default().push(*id);
            self.parts.insert(
                *id,
                Part {
                    queue: row.queue,
                    queue_name,
                    name: row.name.clone(),
                    alive: true,
                    messages: Vec::new(),
                    segments: Vec::new(),
                    offsets: HashMap::new(),
                    log_start: Offset(0),
                    forgotten: Offset(0),
                    answered: Vec::new(),
                    notes: Vec::new(),
                },
            );
        }
        let next = self.groups.keys().next_back().map_or(0, |id| id.0 + 1);
        for (id, group) in store.groups.range(GroupId(next)..) {
            self.groups.insert(*id, (group.queue, group.name.clone()));
        }
        for (id, group) in store.groups.iter().filter(|(_, group)| group.conflation) {
            debug_assert!(group.mode.is_some());
            self.conflated.entry(*id).or_insert(t);
        }
        for (partition, group, row) in store.seeded.drain(..) {
            let before = self.tracks.remove(&(partition, group));
            self.tracks.insert((partition, group), Track::after(before, t, row));
            self.note(t, partition, Note::Seeded { group, committed: row.committed });
        }
    }

    pub fn note(&mut self, t: u64, partition: PartitionId, note: Note) {
        if let Some(part) = self.parts.get_mut(&partition) {
            part.notes.push((t, note));
        }
    }

    /// What a shard may believe of a group that it is asked about at `from`. A pinned pop may have met
    /// the group before it was registered; other brokers hear of that when they do.
    pub fn conflating(&self, group: GroupId, from: u64, solo: bool) -> Vec<bool> {
        const TOLD_US: u64 = 3_000_000;
        match self.conflated.get(&group) {
            None => vec![false],
            Some(at) if solo && at + TOLD_US < from => vec![true],
            Some(_) => vec![true, false],
        }
    }

    /// Every group that ever had the name: its cursors on a partition.
    pub fn tracks_of(&self, partition: PartitionId, name: &str) -> Vec<&Track> {
        let Some(queue) = self.parts.get(&partition).map(|part| part.queue) else { return Vec::new() };
        let named = self.groups.iter().rev().filter(|(_, (of, group))| *of == queue && &**group == name);
        named.filter_map(|(id, _)| self.tracks.get(&(partition, *id))).collect()
    }

    /// The story of a partition, for the message of a panic.
    pub fn story(&self, partition: Option<PartitionId>) -> String {
        let mut text = String::new();
        let Some((id, part)) = partition.and_then(|id| self.parts.get_key_value(&id)) else { return text };
        let _ = writeln!(text, "partition {id} = {}/{}, last {}", part.queue_name, part.name, part.last_offset());
        let options = &self.queues[&part.queue].versions;
        let _ = writeln!(text, "options {options:?}");
        const LINES: usize = 120;
        for (t, note) in &part.notes[part.notes.len().saturating_sub(LINES)..] {
            let _ = writeln!(text, "  {t:>10} {note}");
        }
        text
    }
}
