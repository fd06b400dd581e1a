//! What a lane has to know before its drafts may close: the partition's row, the keys of the dedup window, and the ids
//! of originals that duplicates answer.
//!
//!     unknown lane > Call::Provision > row      short window, moved lane > Call::ReadKeys > window
//!     duplicates beyond the tail > Call::ReadRecords > ids
//!
//! Holds: a window is complete from `window_since` on and through `verified`; what cannot be read fails the drafts that
//! wait, never the shard. Does not judge: `append` does.

use crate::append::JudgedDraft;
use crate::calls::Pending;
use crate::command::{DraftVerdict, Duplicate, Record};
use crate::effect::{Call, LaneRow, StoreError};
use crate::ids::{Offset, PartitionId, Stamp};
use crate::lane::{CREATED_SOMEWHEN, LaneState, SINCE_EVER, SINCE_NEVER, WaitingDraft};
use crate::limits::{MERGE_BYTES_MAX, PROVISION_MAX, WINDOW_MARGIN_US};
use crate::sealed::Sealed;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::tail;
use std::collections::VecDeque;

impl Shard {
    // ---- provisioning

    pub(crate) fn send_provision(&mut self) {
        if self.calls.provisioning() {
            return;
        }
        let alone = !self.provision_alone.is_empty();
        let from = if alone { &mut self.provision_alone } else { &mut self.provision };
        let n = from.len().min(if alone { 1 } else { PROVISION_MAX });
        let lanes: Vec<Ref> = from.drain(..n).filter(|&l| self.lanes.slab.get(l).is_some()).collect();
        if lanes.is_empty() {
            return;
        }
        let keys = lanes.iter().map(|&l| self.lanes[l].key.clone()).collect();
        self.ask(Call::Provision { lanes: keys }, Pending::Provision { lanes });
    }

    pub(crate) fn provisioned(&mut self, lanes: Vec<Ref>, rows: Result<Vec<Option<LaneRow>>, StoreError>) {
        match rows {
            Ok(rows) => {
                for (at, row) in lanes.into_iter().zip(rows) {
                    match row {
                        Some(row) => self.know_lane(at, row),
                        None => {
                            // Its queue was deleted meanwhile: a bundle makes both again, so do the drafts.
                            self.miss_preparing(at);
                            self.provision_again(at);
                        }
                    }
                }
            }
            // One of them is refused: each by itself.
            Err(StoreError::Refused(_)) if lanes.len() > 1 => self.provision_alone.extend(lanes),
            Err(StoreError::Refused(_)) => lanes.into_iter().for_each(|at| self.refuse_lane(at)),
            Err(error) => lanes.into_iter().for_each(|at| self.lane_failed(at, &error)),
        }
    }

    /// The store refuses to make a partition of these names.
    fn refuse_lane(&mut self, at: Ref) {
        self.fail_preparing(at);
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        lane.state = LaneState::Unknown;
        let (drained, live): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut lane.drafts).into_iter().partition(WaitingDraft::is_drained);
        lane.drafts = drained;
        for waiting in live {
            self.finish_draft(waiting.from, DraftVerdict::Refused("the store refuses this queue or partition"));
        }
        self.refuse_lane_drained(at);
        if self.lanes.slab.get(at).is_some_and(|lane| lane.drafts.is_empty()) {
            self.rest_lane(at);
        }
    }

    fn provision_again(&mut self, at: Ref) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        lane.state = LaneState::Unknown;
        self.expire_drafts(at);
        let lane = &self.lanes[at];
        if lane.drafts.is_empty() && lane.cursors.is_empty() {
            self.remove_lane(at);
        } else {
            self.advance(at);
        }
    }

    /// Takes over a partition's row.
    pub(crate) fn know_lane(&mut self, at: Ref, row: LaneRow) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        let queue = lane.queue;
        if self.queues.slab[queue].row.is_some_and(|known| known.id != row.queue.id) {
            // The queue was deleted and made again behind our back.
            self.forget_queue(queue);
            let Some(queue) = self.lanes.slab.get(at).map(|l| l.queue) else { return };
            self.learn_queue(queue, row.queue);
            return;
        }
        self.learn_queue(queue, row.queue);
        self.lanes.identify(at, row.partition);
        let lane = &mut self.lanes[at];
        lane.verified = row.last_offset;
        lane.saw_end(row.last_offset, self.now);
        lane.log_start = lane.log_start.max(row.log_start);
        lane.last_created_at = row.last_created_at;
        lane.state = LaneState::Ready;
        if row.last_offset == Offset::NONE {
            lane.window_since = SINCE_EVER;
        }
        self.advance(at);
        self.offer_all(at);
    }

    // ---- the window

    /// Reads the keys the window lacks: all of the dedup window.
    pub(crate) fn load_window(&mut self, at: Ref) {
        let Some(floor) = self.dedup_floor(at) else { return };
        self.drop_window(at);
        let lane = &mut self.lanes[at];
        lane.state = LaneState::Loading;
        let to = lane.verified;
        self.read_keys(at, Offset(0), to, Some(kept_from(floor)));
    }

    /// Reads what another writer stored after `verified`.
    pub(crate) fn catch_up(&mut self, at: Ref, to: Offset) {
        let dedup = self.dedup_floor(at).is_some();
        self.cut_tail(at);
        let lane = &mut self.lanes[at];
        lane.saw_end(to, self.now);
        if !dedup || lane.window_since == SINCE_NEVER {
            lane.verified = to;
            lane.state = LaneState::Ready;
            lane.window_since = SINCE_NEVER;
            // Nobody told when the rest was written, and our reading of the clock is a lower bound.
            lane.last_created_at = CREATED_SOMEWHEN;
            self.advance(at);
            self.offer_all(at);
            return;
        }
        lane.state = LaneState::Loading;
        let from = lane.verified.plus(1);
        self.read_keys(at, from, to, None);
    }

    pub(crate) fn read_keys(&mut self, at: Ref, from: Offset, to: Offset, since: Option<Stamp>) {
        let partition = self.lanes[at].id;
        let limit = self.config.keys_page;
        let call = Call::ReadKeys { partition, from, to, since, limit, newest_first: false };
        self.ask(call, Pending::LoadKeys { lane: at, to, since });
    }

    /// A page of keys for the window.
    pub(crate) fn keys_loaded(
        &mut self,
        at: Ref,
        to: Offset,
        since: Option<Stamp>,
        page: Result<(Vec<crate::effect::KeysRow>, bool), StoreError>,
    ) {
        if self.lanes.slab.get(at).is_none() {
            return;
        }
        let (rows, complete) = match page {
            Ok(page) => page,
            Err(error) => return self.lane_failed(at, &error),
        };
        let lane = &mut self.lanes[at];
        let before = lane.window.bytes();
        let first_page = lane.window.is_empty() && lane.runs().is_none();
        let sealed = lane.runs().and_then(Sealed::last).unwrap_or(Offset::NONE);
        for row in &rows {
            // A row that a run ends in the midst of: the window goes on where the run ends.
            let skip = (sealed.0 + 1 - row.base.0).clamp(0, row.keys.len() as i64 / 16);
            lane.window.insert(row.base.plus(skip), row.created_at, &row.keys[16 * skip as usize..]);
            lane.last_created_at = lane.last_created_at.max(row.created_at);
        }
        self.window_bytes = (self.window_bytes + lane.window.bytes()).saturating_sub(before);
        if let (false, Some(last)) = (complete, rows.last()) {
            let from = last.base.plus(last.keys.len() as i64 / 16);
            return match since.filter(|_| first_page) {
                // A window that takes more than a page may have been sealed.
                Some(since) => self.load_runs(at, from, to, since),
                None => self.read_keys(at, from, to, since),
            };
        }
        if let Some(since) = since {
            lane.window_since = since;
        }
        lane.verified = lane.verified.max(to);
        lane.state = LaneState::Ready;
        self.advance(at);
        self.offer_all(at);
    }

    // ---- originals of duplicates that are not in the tail

    /// The lane itself may be gone from memory before the answer comes.
    pub(crate) fn find_originals(&mut self, partition: PartitionId, log_start: Offset, draft: JudgedDraft) {
        let open = |d: &&Duplicate| d.id.is_none() && d.offset >= log_start;
        let from = draft.duplicates.iter().filter(open).map(|d| d.offset).min();
        let to = draft.duplicates.iter().filter(open).map(|d| d.offset).max();
        let (Some(from), Some(to)) = (from, to) else { return self.finish_judged(draft) };
        let call = Call::ReadRecords { partition, from, to, bytes: MERGE_BYTES_MAX as u64, messages: u32::MAX };
        self.ask(call, Pending::Originals { partition, from, draft });
    }

    /// Records from `from` on; what they do not hold is asked again further up, or is gone.
    pub(crate) fn originals_read(
        &mut self,
        partition: PartitionId,
        from: Offset,
        mut draft: JudgedDraft,
        result: Result<(Vec<Record>, Offset), StoreError>,
    ) {
        let Ok((records, log_start)) = result else { return self.finish_judged(draft) };
        if let Some(at) = self.lanes.by_number(partition) {
            self.lanes[at].log_start = self.lanes[at].log_start.max(log_start);
        }
        let read_to = records.last().map_or(from, Record::last);
        for record in &records {
            let mut messages = None;
            for duplicate in &mut draft.duplicates {
                if duplicate.id.is_none() && (record.base..=record.last()).contains(&duplicate.offset) {
                    let ids = messages.get_or_insert_with(|| tail::ids_of(record));
                    duplicate.id = ids.get((duplicate.offset.0 - record.base.0) as usize).copied();
                }
            }
        }
        // Offsets up to where the answer reached have no text any more.
        let further = draft.duplicates.iter().any(|d| d.id.is_none() && d.offset > read_to && !records.is_empty());
        if further {
            for duplicate in draft.duplicates.iter_mut().filter(|d| d.id.is_none() && d.offset <= read_to) {
                duplicate.id = Some(crate::ids::MessageId(0));
            }
            self.find_originals(partition, log_start, draft);
        } else {
            self.finish_judged(draft);
        }
    }
}

/// How far back a window is kept for a floor.
pub(crate) fn kept_from(floor: Stamp) -> Stamp {
    Stamp(floor.0 - WINDOW_MARGIN_US)
}

#[cfg(test)]
mod tests;
