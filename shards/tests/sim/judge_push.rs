//! Commits and the verdicts of pushes: offsets, order, exact dedup, nothing invented. Source: data plane 3.4, 3.5;
//! reliability C2 to C5.

use crate::coverage::Thing;
use crate::frame;
use crate::ledger::{Moment, Note, WrittenSegment};
use crate::oracle::{Ask, At, Oracle, SentDraft};
use bytes::Bytes;
use queen_shards::command::DraftVerdict;
use queen_shards::effect::{Append, AppendOutcome, LaneOutcome, key_at};
use queen_shards::ids::{Offset, PartitionId};
use queen_shards::limits::{ACCEPTED_JOIN_US, COMMIT_BYTES_MAX, COMMIT_SEGMENTS_MAX};

/// Longest a transaction takes from its preparation to its bundle.
const PREPARING_US: u64 = 500_000;

impl Oracle {
    /// The form of a fused commit: lanes in ascending order and once each, segments in lane and offset order.
    pub fn check_shape(&self, append: &Append) {
        let whine = |what: &str| self.fail(append.lanes.first().map(|lane| lane.partition), what);
        if append.lanes.is_empty() {
            whine("an empty push commit");
        }
        if append.lanes.windows(2).any(|pair| pair[0].partition >= pair[1].partition) {
            whine("lanes of a commit are not in ascending order");
        }
        let mut next = vec![0; append.lanes.len()];
        let mut last_lane = 0;
        for segment in &append.segments {
            let lane = segment.lane as usize;
            if lane < last_lane || segment.rel != next[lane] || segment.count == 0 {
                whine("segments of a commit are not contiguous");
            }
            if segment.keys.len() != 16 * segment.count as usize {
                whine("a segment has not one key per message");
            }
            (last_lane, next[lane]) = (lane, next[lane] + segment.count);
        }
        if append.lanes.iter().zip(&next).any(|(lane, next)| lane.count != *next) {
            whine("a lane of a commit has another count than its segments");
        }
        let bytes: usize = append.segments.iter().map(|segment| segment.raw_len()).sum();
        if append.segments.len() > COMMIT_SEGMENTS_MAX && append.lanes.len() > 1 {
            whine("a commit over its bound of segments");
        }
        if bytes > COMMIT_BYTES_MAX && append.lanes.len() > 1 && append.segments.len() > 1 {
            let largest = append.segments.iter().map(|segment| segment.raw_len()).max().unwrap_or(0);
            if bytes > COMMIT_BYTES_MAX + largest {
                whine("a commit over its bound of bytes");
            }
        }
    }

    /// The store has executed a fused push commit.
    pub fn appended(&mut self, now: Moment, at: At, emitted: u64, append: &Append, outcome: &AppendOutcome) {
        for (index, (lane, result)) in append.lanes.iter().zip(&outcome.lanes).enumerate() {
            match result {
                LaneOutcome::Appended { .. } => {}
                LaneOutcome::Behind { .. } => self.hit(Thing::LaneBehind),
                LaneOutcome::Moved { .. } => {
                    self.hit(Thing::LaneMoved);
                    continue;
                }
                LaneOutcome::Busy => {
                    self.hit(Thing::LaneBusy);
                    self.faults.insert(at, now.t);
                    continue;
                }
                LaneOutcome::Gone => {
                    self.hit(Thing::LaneGone);
                    continue;
                }
            }
            let expect = match result {
                LaneOutcome::Behind { base, .. } => base.plus(-1),
                _ => lane.expect,
            };
            let part = &self.ledger.parts[&lane.partition];
            self.must(part.last_offset() == expect, lane.partition, "a commit was written over another's offsets");
            let created_at = now.stamp.max(part.messages.last().map_or(now.stamp, |last| last.created_at));
            let of_lane = append.segments.iter().zip(&outcome.stored).filter(|(s, _)| s.lane as usize == index);
            for (segment, (codec, body)) in of_lane {
                let base = expect.plus(1 + segment.rel as i64);
                let written = WrittenSegment {
                    base,
                    count: segment.count,
                    flags: segment.flags,
                    created_at,
                    accepted_at: segment.accepted_at,
                    frames: segment.raw(),
                    codec: *codec,
                    body: body.clone(),
                    broker: Some(at.0),
                };
                self.write(now, emitted, lane.partition, written, &segment.keys);
            }
        }
    }

    /// A segment is in the store: by an engine, or by a broker that is not simulated.
    pub fn write(&mut self, now: Moment, emitted: u64, id: PartitionId, segment: WrittenSegment, keys: &Bytes) {
        let Some(frames) = frame::read(&segment.frames) else {
            self.fail(Some(id), "a segment whose frames do not parse");
        };
        self.must(frames.len() == segment.count as usize, id, "a segment has another number of frames than it says");
        let mut at = 0;
        let mut rows = Vec::with_capacity(frames.len());
        let mut flags = 0;
        for (i, one) in frames.iter().enumerate() {
            let len = u32::from_le_bytes(segment.frames[at..at + 4].try_into().expect("4 bytes")) as usize + 4;
            let bytes = &segment.frames[at..at + len];
            flags |= bytes[4];
            let (key, offset) = (key_at(keys, i), segment.base.plus(i as i64));
            if segment.broker.is_some() {
                self.check_origin(id, one.id, offset, bytes, key);
            }
            // The options in force when it came, or any later ones; a transaction came when it was prepared.
            let ask = self.pushed.get(&one.id).map(|pushed| &self.asks[pushed.ask]);
            let since = ask.and_then(|ask| ask.delivered).map_or(emitted, |delivered| delivered.t);
            let bundled = ask.is_some_and(|ask| matches!(ask.ask, Ask::Bundle(_)));
            let since = if bundled { since.saturating_sub(PREPARING_US) } else { since };
            self.check_window(now, since, id, key, (segment.created_at, segment.accepted_at), offset);
            rows.push((one.id, key));
            at += len;
        }
        self.must(flags == segment.flags, id, "a segment's flags are not those of its frames");
        let note = Note::Wrote {
            broker: segment.broker,
            base: segment.base,
            count: segment.count,
            created_at: segment.created_at,
        };
        let part = self.ledger.parts.get_mut(&id).expect("known");
        if part.segments.last().is_some_and(|last| last.broker != segment.broker) {
            self.cover.hit(if segment.broker.is_some() { Thing::TwoBrokersOneLane } else { Thing::ForeignWrite });
        }
        if segment.codec == queen_shards::command::Codec::Zstd {
            self.cover.hit(Thing::PackedStored);
        }
        part.notes.push((now.t, note));
        let (base, ours) = (segment.base, segment.broker.is_some());
        part.write(segment, &rows);
        for (i, (message, _)) in rows.iter().enumerate().filter(|_| ours) {
            self.check_order(id, *message, base.plus(i as i64));
        }
    }

    /// What is written was pushed, to these names, with this key and these bytes, and is written once.
    fn check_origin(
        &mut self,
        id: PartitionId,
        message: queen_shards::ids::MessageId,
        offset: Offset,
        bytes: &[u8],
        key: queen_shards::ids::Key,
    ) {
        let part = &self.ledger.parts[&id];
        let Some(pushed) = self.pushed.get_mut(&message) else {
            self.fail(Some(id), "a message is stored that nobody pushed");
        };
        let names = pushed.queue == part.queue_name && pushed.partition == part.name;
        let same = pushed.key == key && &pushed.frames[pushed.from..pushed.to] == bytes;
        let twice = pushed.written.replace((id, offset));
        self.must(names, id, "a message is stored in another partition than it was pushed to");
        self.must(same, id, "a message is stored altered");
        // Of a deleted queue nothing is left: a record whose outcome was unknown begins anew with the names. Without a
        // window only the message's id tells that it is stored, and retention may have taken that.
        let queue = &self.ledger.queues[&self.ledger.parts[&id].queue];
        let windowless = queue.possible(0, u64::MAX).any(|options| options.dedup_secs == 0);
        let again = twice.is_some_and(|(before, at)| match before == id {
            true => !(windowless && at < self.ledger.parts[&id].log_start),
            false => self.ledger.parts[&before].alive,
        });
        self.must(!again, id, "one pushed message is stored twice");
    }

    /// C3: two stored messages of one key are never closer than the window.
    fn check_window(
        &mut self,
        now: Moment,
        since: u64,
        id: PartitionId,
        key: queen_shards::ids::Key,
        (created_at, accepted_at): (queen_shards::ids::Stamp, Option<queen_shards::ids::Stamp>),
        offset: Offset,
    ) {
        let part = &self.ledger.parts[&id];
        let Some(before) = part.offsets.get(&key).and_then(|offsets| offsets.last()) else { return };
        let earlier = &part.messages[before.0 as usize];
        let age = match accepted_at {
            Some(accepted_at) => accepted_at.0.abs_diff(earlier.accepted_at.0) as i64,
            None => created_at.0 - earlier.created_at.0,
        };
        let options = self.ledger.queues[&part.queue].possible(since, now.t);
        let window = options.map(|options| options.dedup_secs as i64 * 1_000_000).min().unwrap_or(0);
        // What retention's evidence clock has let go is free, whatever the window says now.
        let known = *before >= part.forgotten;
        let joined = if accepted_at.is_some() { ACCEPTED_JOIN_US } else { 0 };
        if known && window > 0 && age < window - self.slack_us - joined {
            self.fail(Some(id), &format!("one key is stored twice, at {before} and {offset}, {age} us apart"));
        }
        self.hit(Thing::KeyFreeAgain);
    }

    /// The verdicts of a push.
    pub fn judge_push(&mut self, now: Moment, index: usize, verdicts: &[DraftVerdict]) {
        let Ask::Push(drafts) = &mut self.asks[index].ask else { unreachable!() };
        let drafts = std::mem::take(drafts);
        if drafts.len() != verdicts.len() {
            self.fail(None, "a push has another number of verdicts than drafts");
        }
        for (draft, verdict) in drafts.iter().zip(verdicts) {
            match verdict {
                DraftVerdict::Stored { base, duplicates } => {
                    let judged = self.judge_stored(now, index, draft, *base, duplicates);
                    if let Err((partition, what)) = judged {
                        self.fail(partition, &format!("{what}; verdict {verdict:?} of keys {:?}", draft.keys));
                    }
                }
                DraftVerdict::Buffered => self.buffered(now, index, draft),
                DraftVerdict::Failed => {
                    self.hit(Thing::PushFailed);
                    if !self.disk_fails {
                        let id = self.ledger.named.get(&(draft.queue.clone(), draft.partition.clone()));
                        self.fail(id.and_then(|ids| ids.last().copied()), "a push failed, and disks never do");
                    }
                }
                DraftVerdict::Refused(why) if draft.poison => {
                    self.must(!why.is_empty(), PartitionId(0), "a refusal without a cause");
                }
                DraftVerdict::Refused(why) => self.fail(None, &format!("a good draft is refused: {why}")),
            }
        }
        self.asks[index].ask = Ask::Push(drafts);
    }

    fn judge_stored(
        &mut self,
        now: Moment,
        index: usize,
        draft: &SentDraft,
        base: Offset,
        duplicates: &[queen_shards::command::Duplicate],
    ) -> Result<(), (Option<PartitionId>, String)> {
        if duplicates.windows(2).any(|pair| pair[0].index >= pair[1].index) {
            return Err((None, "duplicates are not in order".into()));
        }
        let is_duplicate = |i: usize| duplicates.iter().any(|d| d.index as usize == i);
        let fresh: Vec<usize> = (0..draft.ids.len()).filter(|i| !is_duplicate(*i)).collect();
        let names = (draft.queue.clone(), draft.partition.clone());
        let ids = self.ledger.named.get(&names).cloned().unwrap_or_default();
        let at_base = |id: &&PartitionId| {
            let part = &self.ledger.parts[id];
            let mut rows = fresh.iter().enumerate().map(|(n, i)| (part.at(base.plus(n as i64)), draft.ids[*i]));
            let original = |d: &queen_shards::command::Duplicate| {
                part.at(d.offset).is_some_and(|row| row.key == draft.keys[d.index as usize])
            };
            rows.all(|(row, id)| row.is_some_and(|row| row.id == id)) && duplicates.iter().all(original)
        };
        let Some(id) = ids.iter().rev().find(at_base).copied() else {
            let what = "a push is answered stored, and the log has not its messages at these offsets";
            return Err((ids.last().copied(), what.into()));
        };
        let part = &self.ledger.parts[&id];
        if !fresh.is_empty() {
            let stamps = (part.at(base).expect("found"), part.at(base.plus(fresh.len() as i64 - 1)).expect("found"));
            if stamps.0.created_at != stamps.1.created_at {
                return Err((Some(id), "one draft has two stamps".into()));
            }
            let floor = draft.floor.iter().find(|(of, _)| *of == id).map_or(Offset::NONE, |(_, floor)| *floor);
            if base <= floor {
                return Err((Some(id), format!("offset {base} for a push sent after {floor} was answered")));
            }
        }
        for duplicate in duplicates {
            self.judge_duplicate(now, index, id, draft, duplicate).map_err(|what| (Some(id), what))?;
        }
        if self.awaited.contains_key(&(self.asks[index].at.0, draft.queue.clone(), draft.partition.clone())) {
            self.cover.hit(Thing::BufferedThenQueued);
        }
        self.cover.hit(if fresh.is_empty() { Thing::Duplicates } else { Thing::Stored });
        if !fresh.is_empty() {
            let last = base.plus(fresh.len() as i64 - 1);
            self.ledger.parts.get_mut(&id).expect("known").answer(now.t, last);
        }
        let note = Note::Answered {
            slot: self.asks[index].slot,
            broker: self.asks[index].at.0,
            what: format!("stored {} at {base}, {} duplicates", fresh.len(), duplicates.len()),
        };
        self.ledger.note(now.t, id, note);
        Ok(())
    }

    /// C4: a duplicate has an original inside the window, the lowest one.
    fn judge_duplicate(
        &mut self,
        now: Moment,
        index: usize,
        id: PartitionId,
        draft: &SentDraft,
        duplicate: &queen_shards::command::Duplicate,
    ) -> Result<(), String> {
        let began = self.asks[index].delivered.expect("delivered");
        let disturbed = self.disturbed(self.asks[index].at, began.t);
        let part = &self.ledger.parts[&id];
        let queue = &self.ledger.queues[&part.queue];
        let windows = || queue.possible(began.t, now.t).map(|options| options.dedup_secs as i64 * 1_000_000);
        let (shortest, longest) = (windows().min().unwrap_or(0), windows().max().unwrap_or(0));
        let original = part.at(duplicate.offset).expect("checked");
        let age = began.stamp.0 - original.created_at.0;
        if age > longest + self.stale_us + self.slack_us {
            return Err(format!("duplicate of {}, which is {age} us old: the key is free", duplicate.offset));
        }
        match duplicate.id.filter(|id| id.0 != 0) {
            Some(id) if id != original.id => return Err("a duplicate names another message".into()),
            Some(_) => {}
            None if duplicate.offset >= part.log_start && part.alive && !disturbed => {
                return Err(format!("the text of {} is there, and its duplicate has no id", duplicate.offset));
            }
            None => self.cover.hit(Thing::DuplicateWithoutText),
        }
        let earlier = part.offsets[&draft.keys[duplicate.index as usize]].iter();
        for offset in earlier.filter(|offset| **offset < duplicate.offset && **offset >= part.forgotten) {
            let age = now.stamp.0 - part.messages[offset.0 as usize].created_at.0;
            if age + self.slack_us < shortest {
                return Err(format!("{offset} is the original, not {}", duplicate.offset));
            }
        }
        if original.created_at >= began.stamp {
            self.cover.hit(Thing::EqualKeysAtOnce);
        }
        self.cover.hit(Thing::Duplicates);
        Ok(())
    }
}
