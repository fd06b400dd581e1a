//! An owner's part in bundles: what it says of its lanes and cursors before the commit, and what it learns after.
//!
//!     prepare > lanes: find, load the window, probe | sets: as settle rules them, without the move > Verdict::Prepared
//!     heard > window and tail follow when the record comes next, else the next commit finds out > wakes
//!
//! Holds: preparing reserves nothing and writes nothing; what is heard is taken over only where it fits exactly on what
//! is remembered. Source: data plane 7; rules 5, 7 and 26.

use crate::bundle::{News, PrepareLane, Prepared, PreparedLane, PreparedSet, first_stored};
use crate::calls::Pending;
use crate::command::{AckSet, Record, Verdict};
use crate::effect::{Call, CursorTo, LaneRow, StoreError, key_at};
use crate::ids::{GroupId, LeaseId, Offset, PartitionId, Slot, Stamp};
use crate::lane::{LaneState, SINCE_NEVER};
use crate::limits::{REREAD_WAIT_US, RUN_ROWS_MAX, UNMET_MAX};
use crate::moves::apply;
use crate::place::LaneKey;
use crate::sealed::{self, RowId, Sealed};
use crate::shard::Shard;
use crate::slab::Ref;
use crate::timers::Timer;
use bytes::Bytes;
use std::collections::BTreeSet;

/// One prepare command.
#[derive(Debug)]
pub(crate) struct PrepareJob {
    slot: Slot,
    /// The store that it began on.
    store: u32,
    asked: Vec<PrepareLane>,
    lanes: Vec<Option<PreparedLane>>,
    sets: Option<Vec<PreparedSet>>,
    /// Rows of sealed runs that were read and hold none of a lane's keys.
    clean: Vec<BTreeSet<(PartitionId, RowId)>>,
    /// Lanes without an answer.
    left: usize,
}

/// One heard command that has partitions to read before it is answered: a pop after the answer finds them.
#[derive(Debug)]
pub(crate) struct HeardJob {
    slot: Slot,
    left: usize,
}

/// One lane of one prepare job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrepareTicket {
    pub job: Ref,
    pub index: usize,
}

impl Shard {
    pub(crate) fn prepare_bundle(
        &mut self,
        slot: Slot,
        asked: Vec<PrepareLane>,
        sets: Vec<AckSet>,
        leases: Vec<LeaseId>,
    ) {
        let (n, store) = (asked.len(), self.stores);
        let job = PrepareJob {
            slot,
            store,
            asked,
            lanes: vec![None; n],
            sets: None,
            clean: vec![BTreeSet::new(); n],
            left: n,
        };
        let job = self.prepares.insert(job);
        for index in 0..n {
            self.prepare_lane(PrepareTicket { job, index });
        }
        self.prepare_sets(job, sets, leases);
    }

    // ---- lanes

    fn prepare_lane(&mut self, ticket: PrepareTicket) {
        let key = &self.prepares[ticket.job].asked[ticket.index].lane;
        let Some(at) = self.lanes.find(key) else {
            if self.is_absent(key) {
                return self.lane_prepared(ticket, PreparedLane::Missing);
            }
            let lane = key.clone();
            return self.ask(Call::FindLane { lane }, Pending::PrepareLane { ticket });
        };
        let lane = &mut self.lanes[at];
        lane.touched = self.now;
        if lane.state == LaneState::Unknown {
            let lane = lane.key.clone();
            return self.ask(Call::FindLane { lane }, Pending::PrepareLane { ticket });
        }
        lane.preparing.push(ticket);
        self.advance(at);
    }

    pub(crate) fn prepare_found(&mut self, ticket: PrepareTicket, row: Result<Option<LaneRow>, StoreError>) {
        let key = self.prepares[ticket.job].asked[ticket.index].lane.clone();
        match row {
            Ok(Some(row)) => {
                let at = self.lane_entry(&key);
                if self.lanes[at].state == LaneState::Unknown {
                    self.know_lane(at, row);
                }
                self.prepare_lane(ticket);
            }
            // It may have been made since it was looked for: what is known of it by now counts.
            Ok(None) => match self.lanes.find(&key) {
                Some(at) if self.lanes[at].id.0 != 0 => self.prepare_lane(ticket),
                _ => {
                    self.note_absent(&key);
                    self.lane_prepared(ticket, PreparedLane::Missing);
                }
            },
            Err(_) => self.lane_prepared(ticket, PreparedLane::Failed),
        }
    }

    /// Answers what waits for a lane whose window reaches back far enough. A commit of ours in flight does not matter:
    /// what it adds comes after `verified`.
    pub(crate) fn answer_preparing(&mut self, at: Ref) {
        if self.lanes[at].preparing.is_empty() {
            return;
        }
        let floor = self.dedup_floor(at);
        for ticket in std::mem::take(&mut self.lanes[at].preparing) {
            let lane = &self.lanes[at];
            let (partition, verified) = (lane.id, lane.verified);
            let job = &self.prepares[ticket.job];
            let (asked, clean) = (&job.asked[ticket.index], &job.clean[ticket.index]);
            let mut duplicate = None;
            if let Some(floor) = floor.filter(|_| !asked.all_minted) {
                duplicate = first_stored(&asked.keys, |key| lane.window.probe(key, floor).is_some());
                let rows = match lane.runs().filter(|_| duplicate.is_none()) {
                    Some(runs) => rows_to_read(runs, &asked.keys, floor, |row| !clean.contains(&(partition, row))),
                    None => Vec::new(),
                };
                if !rows.is_empty() {
                    let call = Call::ReadRunRows { partition, rows: rows.clone() };
                    self.ask(call, Pending::PrepareRows { lane: at, ticket, rows });
                    continue;
                }
            }
            self.lane_prepared(ticket, PreparedLane::Known { partition, verified, duplicate });
        }
    }

    /// Rows of sealed runs that may hold keys of a bundle. What they do not hold is not asked for again.
    pub(crate) fn prepare_rows_read(
        &mut self,
        at: Ref,
        ticket: PrepareTicket,
        asked: Vec<RowId>,
        rows: Result<Vec<Option<Bytes>>, StoreError>,
    ) {
        let Ok(rows) = rows else { return self.lane_prepared(ticket, PreparedLane::Failed) };
        let floor = self.dedup_floor(at);
        let Some(lane) = self.lanes.slab.get_mut(at) else { return self.prepare_lane(ticket) };
        let (partition, verified) = (lane.id, lane.verified);
        let gone = asked.iter().zip(&rows).find(|(_, row)| row.is_none()).map(|(id, _)| id.run);
        let job = &mut self.prepares[ticket.job];
        if let Some(floor) = floor.filter(|_| gone.is_none()) {
            let held = |key| rows.iter().flatten().any(|row| sealed::find_in_row(row, key, floor).is_some());
            let duplicate = first_stored(&job.asked[ticket.index].keys, held);
            if duplicate.is_some() {
                return self.lane_prepared(ticket, PreparedLane::Known { partition, verified, duplicate });
            }
            job.clean[ticket.index].extend(asked.into_iter().map(|row| (partition, row)));
        }
        lane.preparing.push(ticket);
        if let Some(gone) = gone {
            // Removed by a broker or a clean-up that saw it expire. What is stored is read again.
            if lane.state != LaneState::Loading {
                self.drop_window(at);
            }
            self.remove_runs(at, &[gone]);
        }
        self.advance(at);
    }

    /// Nothing can be said of a lane.
    pub(crate) fn fail_preparing(&mut self, at: Ref) {
        self.say_of_preparing(at, PreparedLane::Failed);
    }

    /// A lane was not made.
    pub(crate) fn miss_preparing(&mut self, at: Ref) {
        self.say_of_preparing(at, PreparedLane::Missing);
    }

    fn say_of_preparing(&mut self, at: Ref, said: PreparedLane) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        for ticket in std::mem::take(&mut lane.preparing) {
            self.lane_prepared(ticket, said);
        }
    }

    /// The lane was forgotten: look again.
    pub(crate) fn prepare_again(&mut self, tickets: Vec<PrepareTicket>) {
        for ticket in tickets {
            self.prepare_lane(ticket);
        }
    }

    fn lane_prepared(&mut self, ticket: PrepareTicket, lane: PreparedLane) {
        let job = &mut self.prepares[ticket.job];
        debug_assert!(job.lanes[ticket.index].is_none(), "one answer per lane");
        job.lanes[ticket.index] = Some(lane);
        job.left -= 1;
        self.finish_prepare(ticket.job);
    }

    // ---- sets

    pub(crate) fn sets_prepared(&mut self, job: Ref, sets: Vec<PreparedSet>) {
        self.prepares[job].sets = Some(sets);
        self.finish_prepare(job);
    }

    fn finish_prepare(&mut self, at: Ref) {
        let job = &self.prepares[at];
        if job.left > 0 || job.sets.is_none() {
            return;
        }
        let job = self.prepares.remove(at).expect("just seen");
        let lanes = job.lanes.into_iter().map(|lane| lane.expect("all are in")).collect();
        let sets = job.sets.expect("just seen");
        self.reply(job.slot, Verdict::Prepared(Prepared { store: job.store, lanes, sets }));
    }

    // ---- after the commit

    pub(crate) fn heard(&mut self, slot: Slot, store: u32, news: Vec<News>) {
        if store != self.stores {
            // What is not known of the store that there is now, is read.
            return self.reply(slot, Verdict::Done);
        }
        let job = self.heards.insert(HeardJob { slot, left: 1 });
        for one in news {
            match one {
                News::Stored { lane, partition, record } => self.heard_stored(job, &lane, partition, record),
                News::Moved { partition, group, from, to, version, lease_left_us } => {
                    self.heard_moved((partition, group), from, &to, version, lease_left_us)
                }
                News::CursorChanged { partition, group, from } => self.heard_cursor_changed((partition, group), from),
                News::LaneChanged { lane } => self.heard_lane_changed(&lane),
            }
        }
        self.finish_heard(job);
    }

    fn finish_heard(&mut self, at: Ref) {
        let job = &mut self.heards[at];
        job.left -= 1;
        if job.left == 0 {
            let slot = job.slot;
            self.heards.remove(at);
            self.reply(slot, Verdict::Done);
        }
    }

    fn heard_stored(&mut self, job: Ref, key: &LaneKey, partition: PartitionId, record: Record) {
        let at = self.lane_entry(key);
        self.count_pushed(at, record.count as u64);
        let lane = &mut self.lanes[at];
        lane.touched = self.now;
        if lane.id != partition {
            return self.learn_lane(job, at, partition, record.last());
        }
        if lane.state == LaneState::Ready && lane.verified.plus(1) == record.base {
            return self.follow(at, record);
        }
        // Something else is under way, or there is a gap: the compare-and-set will tell. Pops may have it now.
        lane.saw_end(record.last(), self.now);
        self.offer_all(at);
    }

    /// Takes over a record that comes right after what is verified.
    fn follow(&mut self, at: Ref, record: Record) {
        let floor = self.dedup_floor(at).filter(|_| self.lanes[at].window_since != SINCE_NEVER);
        if let Some(floor) = floor {
            self.expire_window(at, floor);
            let lane = &mut self.lanes[at];
            let before = lane.window.bytes();
            lane.window.insert(record.base, record.created_at, &record.keys);
            self.window_bytes = (self.window_bytes + lane.window.bytes()).saturating_sub(before);
        } else if self.lanes[at].window_since != SINCE_NEVER {
            self.drop_window(at);
        }
        let lane = &mut self.lanes[at];
        lane.verified = record.last();
        lane.last_created_at = record.created_at;
        lane.saw_end(record.last(), self.now);
        self.feed_tail(at, [record]);
        self.advance(at);
        self.offer_all(at);
    }

    /// Reads a partition that somebody made or changed.
    fn learn_lane(&mut self, job: Ref, at: Ref, partition: PartitionId, end: Offset) {
        let key = self.lanes[at].key.clone();
        let at = if self.lanes[at].id.0 != 0 {
            // Remembered under another number: the partition was removed and made again.
            self.forget_lane(at);
            self.lane_entry(&key)
        } else {
            at
        };
        // A provisioning may be under way: then what it says counts.
        let ours = self.lanes[at].state == LaneState::Unknown;
        if ours {
            self.lanes[at].state = LaneState::Asked;
        }
        self.heards[job].left += 1;
        self.ask(Call::FindLane { lane: key }, Pending::LearnLane { job, lane: at, ours, told: (partition, end) });
    }

    pub(crate) fn lane_learnt(
        &mut self,
        job: Ref,
        at: Ref,
        ours: bool,
        told: (PartitionId, Offset),
        row: Result<Option<LaneRow>, StoreError>,
    ) {
        if let Some(lane) = self.lanes.slab.get_mut(at) {
            let unknown = lane.state == LaneState::Unknown || (ours && lane.state == LaneState::Asked);
            match row {
                Ok(Some(row)) if unknown => self.know_lane(at, row),
                Ok(Some(row)) if lane.id.0 == 0 || lane.id == row.partition => {
                    lane.saw_end(row.last_offset, self.now);
                    lane.log_start = lane.log_start.max(row.log_start);
                    self.lanes.identify(at, row.partition);
                    self.offer_all(at);
                }
                Ok(_) => self.forget_lane(at),
                Err(error) if unknown => self.believe_lane(at, told, &error),
                Err(_) => {}
            }
        }
        self.finish_heard(job);
    }

    /// The lane cannot be read now, but what was told of it is true: pops are served from that, and it is read again.
    fn believe_lane(&mut self, at: Ref, (partition, end): (PartitionId, Offset), error: &StoreError) {
        let key = self.lanes[at].key.clone();
        self.lane_failed(at, error);
        let at = self.lane_entry(&key);
        self.lanes.identify(at, partition);
        let lane = &mut self.lanes[at];
        lane.state = LaneState::Unknown;
        lane.saw_end(end, self.now);
        self.verify_later(at);
        self.offer_all(at);
    }

    fn heard_lane_changed(&mut self, key: &LaneKey) {
        let Some(at) = self.lanes.find(key) else {
            // Perhaps made by a commit without an answer: groups that have scanned their queue would not find it.
            self.absent.remove(&key.hash());
            return self.ask(Call::FindLane { lane: key.clone() }, Pending::MeetLane { lane: key.clone() });
        };
        let lane = &mut self.lanes[at];
        if lane.state == LaneState::Ready {
            lane.state = LaneState::Asked;
            self.ask(Call::FindLane { lane: key.clone() }, Pending::Reverify { lane: at });
        }
    }

    /// What the store says of a partition that nothing is known of.
    pub(crate) fn lane_found(&mut self, key: &LaneKey, row: Result<Option<LaneRow>, StoreError>) {
        let row = match row {
            Ok(Some(row)) => row,
            Ok(None) => return,
            Err(_) => return self.meet_later(key.clone()),
        };
        if let Some(at) = self.lanes.find(key).filter(|&at| self.lanes[at].id.0 != 0) {
            // A group that scanned meanwhile has met it, for itself alone.
            return self.offer_all(at);
        }
        let queue = self.queues.entry(key.tenant, &key.queue);
        self.learn_queue(queue, row.queue);
        let at = self.meet_lane(key, row.partition, row.last_offset, row.log_start, row.last_created_at);
        self.offer_all(at);
    }

    /// The store is away: unless it is asked again, nobody would find what a commit without an answer may have made.
    fn meet_later(&mut self, key: LaneKey) {
        if self.unmet.is_empty() {
            self.arm(self.now.plus(REREAD_WAIT_US), Timer::Meet);
        }
        if self.unmet.len() <= UNMET_MAX && !self.unmet.contains(&key) {
            self.unmet.push(key);
        }
    }

    /// Asks again for partitions that could not be looked for.
    pub(crate) fn meet_again(&mut self) {
        let unmet = std::mem::take(&mut self.unmet);
        if UNMET_MAX < unmet.len() {
            return self.look_everywhere();
        }
        for lane in unmet {
            self.ask(Call::FindLane { lane: lane.clone() }, Pending::MeetLane { lane });
        }
    }

    fn heard_moved(
        &mut self,
        (partition, group): (PartitionId, GroupId),
        from: i64,
        to: &CursorTo,
        version: i64,
        lease_left_us: i64,
    ) {
        let now = self.now;
        let Some((lane, group)) = self.idle_cursor(partition, group, from) else {
            return self.forget_when_free(partition, group);
        };
        let cursor = self.lanes[lane].cursor_entry(group);
        let mut row = cursor.row.expect("of this version");
        apply(&mut row, to, version);
        row.lease_left_us = lease_left_us;
        cursor.learn(row, now);
        self.offer(lane, group);
    }

    fn heard_cursor_changed(&mut self, (partition, group): (PartitionId, GroupId), from: i64) {
        let Some((lane, group)) = self.idle_cursor(partition, group, from) else {
            return self.forget_when_free(partition, group);
        };
        self.forget_cursor(lane, group);
        self.offer(lane, group);
    }

    /// What is going on with the cursor may end without having seen its row as it is now: what is remembered goes then.
    fn forget_when_free(&mut self, partition: PartitionId, group: GroupId) {
        let Some(lane) = self.lanes.by_number(partition) else { return };
        let groups = &self.queues.groups;
        if let Some(cursor) = self.lanes[lane].cursors.iter_mut().find(|c| groups[c.group].id == group)
            && cursor.busy
        {
            cursor.forget = true;
        }
    }

    /// The cursor, if it is remembered at this version and nothing is going on with it. What is going on will find out, or forgets.
    fn idle_cursor(&self, partition: PartitionId, group: GroupId, version: i64) -> Option<(Ref, Ref)> {
        let lane = self.lanes.by_number(partition)?;
        let groups = &self.queues.groups;
        let cursor = self.lanes[lane].cursors.iter().find(|c| groups[c.group].id == group)?;
        let remembered = !cursor.busy && cursor.row.is_some_and(|row| row.version == version);
        remembered.then_some((lane, cursor.group))
    }
}

/// Rows that may hold one of the keys and are not known to hold none, so many as one answer may have; sorted.
fn rows_to_read(runs: &Sealed, keys: &[u8], floor: Stamp, wanted: impl Fn(RowId) -> bool) -> Vec<RowId> {
    let mut rows = BTreeSet::new();
    for i in 0..keys.len() / 16 {
        rows.extend(runs.might_hold(key_at(keys, i), floor).filter(|row| wanted(*row)));
        if rows.len() >= RUN_ROWS_MAX {
            break;
        }
    }
    rows.into_iter().take(RUN_ROWS_MAX).collect()
}

#[cfg(test)]
mod tests;
