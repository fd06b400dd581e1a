//! Pops: the group is opened, its ready ring served, claims become cursor moves, moved claims become the answer.
//!
//!     pop > open group (register, scan) > select: ready ring > tail, or a cold read > queue_move > claimed > reply
//!
//! Holds: a claim is durable before it is answered; a lane is claimed by one pop at a time; budgets are never
//! exceeded; a pop that found nothing answers only after the opening, the scan and seedings are over.

use crate::attempt::next_attempt;
use crate::calls::Pending;
use crate::command::{Claim, Pop, PopFrom, PopVerdict, QUEUE_MODE, Record, Start, Verdict};
use crate::effect::{Call, Contact, CursorMove, CursorTo, LaneRow, LeaseMust, LeaseTo, SeededCursor, StoreError};
use crate::ids::{LeaseId, Offset, PartitionId, Slot};
use crate::lane::LaneState;
use crate::lease_id;
use crate::limits::{COUNT_LANES_MAX, SEED_MAX};
use crate::moves::{Op, QueuedMove, count};
use crate::place::LaneKey;
use crate::planted::{Bug, is};
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::standing::{Standing, next_start, standing};
use crate::tail::fitting;
use crate::visible::visible_end;

/// One pop command.
#[derive(Debug)]
pub(crate) struct PopJob {
    slot: Slot,
    pub pop: Pop,
    claims: Vec<Claim>,
    batch_left: u32,
    partitions_left: u32,
    /// Bytes of what is claimed, as [`Pop::bytes`] counts them; one message may go past the budget.
    bytes_taken: u64,
    /// Reads, seedings and moves under way.
    pending: u32,
    lease: Option<LeaseId>,
    /// The moves among them.
    moves: u32,
    pub(crate) failed: bool,
    /// What failed passes: see [`PopVerdict::passes`](crate::command::PopVerdict::passes).
    pub(crate) passes: bool,
    /// Nothing more is to be claimed for it.
    stopped: bool,
    /// See [`Command::Withdraw`](crate::command::Command::Withdraw).
    withdrawn: bool,
    /// The group in which it waits.
    waits_in: Option<Ref>,
    /// Calls that read for it, answered ones among them: those of one round, see [`Shard::run_pop`].
    pub(crate) reads: Vec<Ref>,
    fill_wait_ms: u32,
    /// What the group's record says of conflation, once it was met.
    conflation: Option<bool>,
}

impl PopJob {
    pub(crate) fn bytes_left(&self) -> u64 {
        self.pop.bytes.max(1).saturating_sub(self.bytes_taken)
    }

    /// Whether it may claim another message.
    pub(crate) fn wants(&self) -> bool {
        !self.stopped && !self.withdrawn && self.batch_left > 0 && self.partitions_left > 0 && self.bytes_left() > 0
    }

    /// Budget of one partition and `messages`, for something under way.
    pub(crate) fn reserve(&mut self, messages: u32) {
        self.batch_left -= messages;
        self.partitions_left -= 1;
        self.pending += 1;
    }

    /// Undoes [`PopJob::reserve`].
    pub(crate) fn release(&mut self, messages: u32) {
        self.batch_left += messages;
        self.partitions_left += 1;
        self.pending -= 1;
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Its group could not be met.
    pub(crate) fn fail_for(&mut self, why: &StoreError) {
        self.passes = matches!(why, StoreError::Unavailable(_)) && (self.passes || !self.failed);
        self.failed = true;
    }

    /// Takes the width that goes with the group's record. What was claimed under another record is answered as it is: one
    /// answer has one kind.
    fn adopt(&mut self, conflating: bool) {
        if self.conflation == Some(conflating) {
            return;
        }
        if !self.claims.is_empty() {
            self.stopped = true;
            return;
        }
        self.conflation = Some(conflating);
        self.partitions_left = if conflating { self.pop.conflating_partitions } else { self.pop.partitions };
    }

    /// Whether it is given the newest message of each partition.
    fn conflates(&self) -> bool {
        self.conflation == Some(true)
    }
}

impl Shard {
    pub(crate) fn pop(&mut self, slot: Slot, pop: Pop) {
        let job = PopJob {
            slot,
            batch_left: pop.batch.max(1),
            partitions_left: pop.partitions,
            bytes_taken: 0,
            lease: pop.lease,
            pop,
            claims: Vec::new(),
            pending: 0,
            moves: 0,
            failed: false,
            passes: false,
            stopped: false,
            withdrawn: false,
            waits_in: None,
            reads: Vec::new(),
            fill_wait_ms: 0,
            conflation: None,
        };
        let job = self.pops.insert(job);
        self.pop_slots.insert(slot, job);
        self.run_pop(job);
    }

    /// Nobody waits for the pop of that slot: with no claim on its way it ends now, whatever is read for it.
    pub(crate) fn withdraw(&mut self, slot: Slot) {
        let Some(at) = self.pop_slots.get(&slot).copied() else { return };
        let job = &mut self.pops[at];
        job.withdrawn = true;
        let waited_in = job.waits_in;
        self.run_pop(at);
        if let Some(group) = waited_in.and_then(|group| self.queues.groups.get_mut(group)) {
            group.pops.one_is_gone(&self.pops);
        }
    }

    /// What is read for a job that is gone is not waited for: its cursors are free.
    fn drop_reads(&mut self, reads: Vec<Ref>) {
        for read in reads {
            match self.calls.withdraw(read) {
                Some(Pending::ReadClaim { group, lane, .. } | Pending::ReadNewest { group, lane, .. }) => {
                    self.free_cursor(lane, group);
                }
                Some(Pending::Seed { group, epoch, lanes, .. }) => {
                    lanes.into_iter().for_each(|lane| self.free_cursor(lane, group));
                    self.end_seeding(group, epoch);
                }
                _ => {}
            }
        }
    }

    /// A job waits in a group until it is run again.
    pub(crate) fn wait_in(&mut self, group: Ref, at: Ref) {
        self.pops[at].waits_in = Some(group);
        self.queues.groups[group].pops.push(at);
    }

    /// Takes a job as far as it goes: it waits for a call, waits in its group, or is answered.
    pub(crate) fn run_pop(&mut self, at: Ref) {
        let Some(job) = self.pops.get_mut(at) else { return };
        job.waits_in = None;
        if job.withdrawn && job.moves == 0 {
            let reads = std::mem::take(&mut job.reads);
            self.finish_pop(at);
            return self.drop_reads(reads);
        }
        if job.pending > 0 {
            return;
        }
        job.reads.clear();
        if job.failed {
            return self.finish_pop(at);
        }
        match job.pop.from.clone() {
            PopFrom::Queue { tenant, queue } => {
                let name = job.pop.group.clone();
                let queue = self.queues.entry(tenant, &queue);
                let group = self.queues.group_entry(queue, &name, self.now);
                self.run_wildcard(at, queue, group);
            }
            PopFrom::Partition(key) => self.run_pinned(at, &key),
        }
    }

    fn run_wildcard(&mut self, at: Ref, queue: Ref, group: Ref) {
        let state = &self.queues.groups[group];
        match state.state {
            GroupState::Opening => return self.wait_in(group, at),
            GroupState::Unknown | GroupState::Met if !(state.registered && state.state == GroupState::Met) => {
                let pop = &self.pops[at].pop;
                let queue_mode = *state.name == *QUEUE_MODE;
                let contact = match (pop.makes_queue, pop.conflation) {
                    (true, _) if queue_mode => Contact::QueueMode,
                    (true, Some(true)) => Contact::RegisterConflating(pop.start),
                    (true, _) => Contact::Register(pop.start),
                    (false, _) if queue_mode => Contact::Pinned,
                    (false, Some(true)) => Contact::PinnedConflating(pop.start),
                    (false, _) => Contact::Found(pop.start),
                };
                return self.open_group(at, group, contact);
            }
            GroupState::Unknown | GroupState::Met => {
                // Registered, or needs no registration: only the scan is missing.
                self.wait_in(group, at);
                return self.scan(group, PartitionId(0));
            }
            GroupState::Scanning(_) | GroupState::Resting(_) | GroupState::Open => {}
        }
        self.adopt_conflation(at, group);
        self.pops[at].fill_wait_ms = self.queues.options(queue).fill_wait_ms;
        // A queue that does not wait for batches to fill is served at the first ask.
        let wanted = match &self.pops[at] {
            job if job.fill_wait_ms == 0 => 0,
            // Of a conflating group a full answer has a message of each partition.
            job if job.conflation == Some(true) => job.pop.at_least.min(job.pop.conflating_partitions),
            job => job.pop.at_least,
        };
        if wanted > 0 && self.pops[at].claims.is_empty() {
            let ready = self.count_ready(group, wanted);
            if ready < wanted && self.queues.groups[group].state == GroupState::Open {
                let job = self.remove_pop(at);
                let PopJob { slot, fill_wait_ms, conflation, .. } = job;
                let verdict = PopVerdict { ready, fill_wait_ms, conflation, ..PopVerdict::default() };
                return self.reply(slot, Verdict::Pop(verdict));
            }
        }
        self.select(at, group);
        self.scan_on(group);
        let (job, state) = (&self.pops[at], &self.queues.groups[group]);
        if job.pending > 0 {
            return;
        }
        // A scan that rests left something in the ring: this pop wants nothing more.
        let unsure = matches!(state.state, GroupState::Scanning(_)) || state.seeding > 0;
        if unsure && job.claims.is_empty() {
            self.wait_in(group, at);
        } else {
            self.finish_pop(at);
        }
    }

    fn run_pinned(&mut self, at: Ref, key: &LaneKey) {
        if self.pops[at].pop.conflation == Some(true) && !self.registers_pinned(at, key) {
            return;
        }
        // While a push is provisioning it, the partition may be an old one all the same.
        let Some(lane_ref) = self.lanes.find(key).filter(|&lane| self.lanes[lane].id.0 != 0) else {
            if self.is_absent(key) {
                return self.finish_pop(at);
            }
            self.pops[at].pending += 1;
            return self.ask(Call::FindLane { lane: key.clone() }, Pending::FindLane { job: at, key: key.clone() });
        };
        let queue = self.lanes[lane_ref].queue;
        let name = self.pops[at].pop.group.clone();
        let group = self.queues.group_entry(queue, &name, self.now);
        match &self.queues.groups[group] {
            state if state.state == GroupState::Opening => return self.wait_in(group, at),
            state if state.state == GroupState::Unknown || state.conflation.is_none() => {
                return self.open_group(at, group, Contact::Pinned);
            }
            _ => {}
        }
        self.adopt_conflation(at, group);
        self.pops[at].partitions_left = self.pops[at].partitions_left.min(1);
        if self.pops[at].claims.is_empty() && !self.pops[at].stopped {
            let cursor = self.lanes[lane_ref].cursor_entry(group);
            self.queues.groups[group].ring.take_out(cursor);
            self.serve(at, group, lane_ref, &mut Vec::new());
            if self.stands_unread(lane_ref, group) {
                self.seed(at, group, vec![lane_ref]);
            }
        }
        if self.pops.get(at).is_some_and(|job| job.pending == 0) {
            self.finish_pop(at);
        }
    }

    fn stands_unread(&self, lane: Ref, group: Ref) -> bool {
        let lane = &self.lanes[lane];
        lane.end >= lane.log_start && lane.cursor(group).is_none_or(|c| c.row.is_none() && !c.busy)
    }

    fn remove_pop(&mut self, at: Ref) -> PopJob {
        let job = self.pops.remove(at).expect("a live job");
        self.pop_slots.remove(&job.slot);
        job
    }

    pub(crate) fn finish_pop(&mut self, at: Ref) {
        let job = self.remove_pop(at);
        let lease = job.lease.filter(|_| !job.pop.auto_ack && !job.claims.is_empty());
        let failed = job.failed && job.claims.is_empty();
        let PopJob { claims, fill_wait_ms, conflation, .. } = job;
        let verdict =
            PopVerdict { claims, lease, ready: 0, fill_wait_ms, failed, passes: failed && job.passes, conflation };
        self.reply(job.slot, Verdict::Pop(verdict));
    }

    pub(crate) fn adopt_conflation(&mut self, at: Ref, group: Ref) {
        let conflating = self.is_conflating(group);
        self.pops[at].adopt(conflating);
    }

    pub(crate) fn is_conflating(&self, group: Ref) -> bool {
        self.queues.groups.get(group).is_some_and(|group| group.conflation == Some(true))
    }

    // ---- those that wait

    pub(crate) fn run_pops(&mut self, group: Ref) {
        for pop in self.queues.groups[group].pops.take(&self.pops) {
            self.run_pop(pop);
        }
    }

    /// There is something for those that wait in a group, or nothing that they wait for.
    pub(crate) fn feed(&mut self, group: Ref) {
        if !self.queues.groups[group].pops.is_empty() && !self.fed.contains(&group) {
            self.fed.push(group);
        }
    }

    /// Serves pops that wait for the end of a scan or a seeding as soon as there is something for them: a scan of millions of
    /// partitions is long. First come first served; who gets nothing waits on, as long as something is under way.
    pub(crate) fn serve_fed(&mut self) {
        for group in std::mem::take(&mut self.fed) {
            let waiting = self.queues.groups.get(group).map_or(0, |state| state.pops.len());
            for _ in 0..waiting {
                let Some(state) = self.queues.groups.get_mut(group) else { break };
                if state.ring.is_empty() {
                    break;
                }
                let Some(pop) = state.pops.take_first(&self.pops) else { break };
                self.run_pop(pop);
            }
            let state = self.queues.groups.get(group);
            if state.is_some_and(|state| {
                state.seeding == 0 && matches!(state.state, GroupState::Resting(_) | GroupState::Open)
            }) {
                self.run_pops(group);
            }
        }
    }

    // ---- a pinned pop's partition

    pub(crate) fn pinned_found(&mut self, at: Ref, key: &LaneKey, row: Result<Option<LaneRow>, StoreError>) {
        let Some(job) = self.pops.get_mut(at) else { return };
        job.pending -= 1;
        if self.is_stale() && row.is_ok() {
            return self.run_pop(at);
        }
        match row {
            Ok(Some(row)) => {
                let lane = self.lane_entry(key);
                if self.lanes[lane].id.0 == 0 {
                    if self.lanes[lane].state == LaneState::Unknown {
                        self.know_lane(lane, row);
                    } else {
                        self.lanes.identify(lane, row.partition);
                        self.lanes[lane].saw_end(row.last_offset, self.now);
                        self.lanes[lane].log_start = row.log_start;
                    }
                }
                self.run_pop(at);
            }
            // Others may have made it since.
            Ok(None) if self.is_overtaken() => self.run_pop(at),
            Ok(None) => {
                self.note_absent(key);
                self.finish_pop(at);
            }
            Err(_) => {
                self.pops[at].failed = true;
                self.finish_pop(at);
            }
        }
    }

    // ---- selecting

    /// Messages that are ready, counted up to `wanted`. Source: data plane 4.5, minPopWaitTime.
    fn count_ready(&mut self, group: Ref, wanted: u32) -> u32 {
        let mut ready: u64 = 0;
        self.queues.groups[group].ring.tidy(group, &mut self.lanes);
        let conflating = self.is_conflating(group);
        for lane in self.queues.groups[group].ring.iter(group, &self.lanes).take(COUNT_LANES_MAX) {
            let Some(lane) = self.lanes.slab.get(lane) else { continue };
            let committed = lane.cursor(group).and_then(|c| c.row).map_or(Offset::NONE, |row| row.committed);
            let waiting = (lane.end.0 - next_start(committed, lane.log_start).0 + 1).max(0) as u64;
            ready += if conflating { waiting.min(1) } else { waiting };
            if ready >= wanted as u64 {
                return wanted;
            }
        }
        ready as u32
    }

    /// Serves the ring until the budget is spent, the ring is empty, or cursors have to be read first.
    fn select(&mut self, at: Ref, group: Ref) {
        let mut unread = Vec::new();
        let mut theirs = Vec::new();
        loop {
            let job = &self.pops[at];
            if !job.wants() {
                break;
            }
            let Some(lane_ref) = self.queues.groups[group].ring.take_first(group, &mut self.lanes) else { break };
            let partition = self.lanes[lane_ref].id;
            if job.claims.iter().any(|claim| claim.partition == partition) {
                // Its claim of this answer is over already: for somebody else.
                theirs.push(lane_ref);
                continue;
            }
            self.serve(at, group, lane_ref, &mut unread);
            if unread.len() >= SEED_MAX {
                break;
            }
        }
        for lane in theirs {
            if let Some(cursor) = self.lanes.slab.get_mut(lane).and_then(|lane| lane.cursor_mut(group)) {
                self.queues.groups[group].ring.put(lane, cursor);
            }
        }
        if !unread.is_empty() {
            self.seed(at, group, unread);
        }
    }

    /// One lane of the ring: claims from it, or says why not.
    fn serve(&mut self, at: Ref, group: Ref, lane_ref: Ref, unread: &mut Vec<Ref>) {
        let stamp = self.stamp();
        let lane = &self.lanes[lane_ref];
        let options = self.queues.slab[lane.queue].options();
        let standing = standing(lane, lane.cursor(group), &options, self.now, stamp, self.config.window_batch);
        match standing {
            Standing::Nothing | Standing::Busy => {}
            Standing::Until(_) => self.offer(lane_ref, group),
            Standing::Unread => unread.push(lane_ref),
            Standing::Ready { start } if self.pops[at].conflates() => self.serve_newest(at, group, lane_ref, start),
            Standing::Ready { start } => {
                let job = &self.pops[at];
                let said = job.pop.said.of_each(&lane.key.partition);
                let Some(mut end) = lane.tail.span(start, job.batch_left, job.bytes_left(), said) else {
                    return self.read_claim(at, group, lane_ref, start);
                };
                if options.delay_secs > 0 {
                    match visible_end(stamp, options.delay_secs, lane.tail.runs(start), start) {
                        Some(visible) => end = end.min(visible),
                        None => return,
                    }
                }
                let mut records = Vec::new();
                if lane.tail.read(start, end, &mut records) {
                    self.claim(at, group, lane_ref, start, end, records);
                } else {
                    self.read_claim(at, group, lane_ref, start);
                }
            }
        }
    }

    /// Reads what is to be claimed before it is claimed, so that the claim is never larger than what can be given.
    pub(crate) fn read_claim(&mut self, at: Ref, group: Ref, lane_ref: Ref, start: Offset) {
        let conflating = self.pops[at].conflates();
        let lane = &mut self.lanes[lane_ref];
        let to = lane.end;
        let cursor = lane.cursor_entry(group);
        cursor.busy = true;
        let job = &mut self.pops[at];
        let wanted = if conflating { 1 } else { job.batch_left.min(count(start, to)) };
        job.reserve(wanted);
        let bytes = job.bytes_left();
        let call = Call::ReadRecords { partition: self.lanes[lane_ref].id, from: start, to, bytes, messages: wanted };
        self.ask_for(at, call, Pending::ReadClaim { job: at, group, lane: lane_ref, start, wanted });
    }

    pub(crate) fn claim_read(
        &mut self,
        at: Ref,
        group: Ref,
        lane_ref: Ref,
        start: Offset,
        wanted: u32,
        read: Result<(Vec<Record>, Offset), StoreError>,
    ) {
        self.pops[at].release(wanted);
        if let (Some(lane), Some(_)) = (self.lanes.slab.get_mut(lane_ref), self.queues.groups.get(group)) {
            match read {
                Ok((records, log_start)) => {
                    lane.log_start = lane.log_start.max(log_start);
                    self.claim_from(at, group, lane_ref, start, records);
                }
                Err(_) => {
                    self.pops[at].failed = true;
                    self.free_cursor(lane_ref, group);
                }
            }
        }
        self.run_pop(at);
    }

    /// Claims from records that were just read, as far as budget and delay allow.
    fn claim_from(&mut self, at: Ref, group: Ref, lane_ref: Ref, start: Offset, records: Vec<Record>) {
        let stamp = self.stamp();
        let lane = &mut self.lanes[lane_ref];
        let options = self.queues.slab[lane.queue].options();
        let asked = start;
        let start = start.max(lane.log_start);
        let mut records: Vec<Record> = records.into_iter().filter(|r| r.last() >= start).collect();
        // What lies beyond a row that is missing is claimed by itself.
        let follows = |two: &[Record]| two[0].last().plus(1) == two[1].base;
        let adjacent = 1 + records.windows(2).take_while(|two| follows(two)).count();
        records.truncate(adjacent);
        let Some(first) = records.first() else {
            // Retention took them meanwhile, and what is left starts further up; or the rows are missing, and asking
            // for them again would never end.
            if lane.log_start <= asked {
                lane.log_start = lane.end.plus(1);
            }
            return self.free_cursor(lane_ref, group);
        };
        let start = start.max(first.base);
        let created_at = first.created_at;
        let cursor = lane.cursor_entry(group);
        cursor.stamp_at = Some((start, created_at));
        cursor.busy = false;
        let standing = standing(lane, lane.cursor(group), &options, self.now, stamp, self.config.window_batch);
        let job = &self.pops[at];
        if self.pops[at].conflates() {
            // It was read for its stamp.
            return match standing {
                Standing::Ready { .. } if job.wants() => self.serve_newest(at, group, lane_ref, start),
                _ => self.free_cursor(lane_ref, group),
            };
        }
        let visible = match standing {
            Standing::Ready { .. } => {
                let runs = records.iter().map(|r| (r.last(), r.created_at));
                visible_end(stamp, options.delay_secs, runs, start)
            }
            _ => None,
        };
        match visible {
            Some(visible) if job.wants() => {
                let said = job.pop.said.of_each(&lane.key.partition);
                let end = fitting(&records, start, job.batch_left, job.bytes_left(), said).min(visible);
                let records = records.into_iter().filter(|r| r.base <= end).collect();
                self.claim(at, group, lane_ref, start, end, records);
            }
            _ => self.free_cursor(lane_ref, group),
        }
    }

    /// Queues the move that makes a claim.
    ///
    /// `start`, `end`: what is leased; a conflating group is given the last of it only.
    pub(crate) fn claim(
        &mut self,
        at: Ref,
        group: Ref,
        lane_ref: Ref,
        start: Offset,
        end: Offset,
        records: Vec<Record>,
    ) {
        let conflating = self.pops[at].conflates();
        let given = if conflating { end } else { start };
        let group_id = self.queues.groups[group].id;
        let lane = &mut self.lanes[lane_ref];
        let options = self.queues.slab[lane.queue].options();
        let (partition, name) = (lane.id, lane.key.partition.clone());
        let cursor = lane.cursor_entry(group);
        cursor.busy = true;
        let row = cursor.row.expect("a ready cursor is read");
        let job = &mut self.pops[at];
        let pop = &job.pop;
        let (to, attempt, lease) = if pop.auto_ack {
            let to = CursorTo {
                committed: end,
                lease: LeaseTo::Clear,
                batch_end: None,
                retry_count: 0,
                attempt_start: None,
                attempt_count: 0,
            };
            (to, 1, None)
        } else {
            let more = pop.more || (if conflating { pop.conflating_partitions } else { pop.partitions }) > 1;
            let id = *job.lease.get_or_insert_with(|| lease_id::mint(pop.seed, partition, more));
            let (attempt_start, attempt) = next_attempt(row.attempt_start, row.attempt_count, start);
            let secs = pop.lease_secs.unwrap_or(options.lease_secs);
            let to = CursorTo {
                committed: row.committed,
                lease: LeaseTo::Set { id, secs, conflating },
                batch_end: Some(end),
                retry_count: row.retry_count,
                attempt_start: Some(attempt_start),
                attempt_count: attempt,
            };
            (to, attempt, Some(id))
        };
        job.reserve(count(given, end));
        job.moves += 1;
        job.bytes_taken += bytes_of(&records, given, end, job.pop.said.of_each(&name));
        let cursor_move = CursorMove {
            partition,
            group: group_id,
            version: row.version,
            lease: if is(Bug::LeaseOnWallClock) { LeaseMust::Any } else { LeaseMust::Over },
            to: Some(to),
            dead_letter: None,
        };
        let claim = Claim { partition, group: group_id, name, start: given, end, attempt, records };
        let op = Op::Claim { job: at, claim, lease };
        self.queue_move(QueuedMove { lane: lane_ref, group, tries: 0, busy: 0, cursor_move, op });
    }

    // ---- seeding

    /// Reads (or makes) the cursors of lanes taken from the ring.
    fn seed(&mut self, at: Ref, group: Ref, lanes: Vec<Ref>) {
        for &lane in &lanes {
            self.lanes[lane].cursor_entry(group).busy = true;
        }
        self.pops[at].pending += 1;
        let start = if *self.queues.groups[group].name == *QUEUE_MODE { Start::All } else { self.pops[at].pop.start };
        let state = &mut self.queues.groups[group];
        state.seeding += 1;
        let epoch = state.epoch;
        let partitions = lanes.iter().map(|&l| self.lanes[l].id).collect();
        let call = Call::SeedCursors { group: state.id, start, partitions };
        self.ask_for(at, call, Pending::Seed { job: at, group, epoch, lanes });
    }

    /// A call that read cursors of a group is over: [`Shard::serve_fed`] looks after those that wait for it.
    fn end_seeding(&mut self, group: Ref, epoch: u32) {
        if self.is_past(group, epoch) {
            return;
        }
        let state = &mut self.queues.groups[group];
        state.seeding = state.seeding.saturating_sub(1);
        self.feed(group);
    }

    pub(crate) fn seeded(
        &mut self,
        at: Ref,
        group: Ref,
        epoch: u32,
        lanes: Vec<Ref>,
        rows: Result<Vec<Option<SeededCursor>>, StoreError>,
    ) {
        let now = self.now;
        self.pops[at].pending -= 1;
        if self.is_past(group, epoch) {
            lanes.into_iter().for_each(|lane| self.free_cursor(lane, group));
            return self.run_pop(at);
        }
        let id = self.queues.groups[group].id;
        match rows {
            Ok(rows) => {
                let mut gone = Vec::new();
                for (lane_ref, row) in lanes.into_iter().zip(rows) {
                    let Some(lane) = self.lanes.slab.get_mut(lane_ref) else { continue };
                    let Some(seeded) = row else {
                        gone.push(lane_ref);
                        continue;
                    };
                    lane.saw_end(seeded.last_offset, self.now);
                    lane.log_start = lane.log_start.max(seeded.log_start);
                    lane.cursor_entry(group).learn(seeded.row, now);
                    self.free_cursor(lane_ref, group);
                }
                if !gone.is_empty() {
                    self.cursors_gone(group, id, gone);
                }
            }
            Err(why) => {
                self.pops[at].fail_for(&why);
                for lane in lanes {
                    self.free_cursor(lane, group);
                }
            }
        }
        self.end_seeding(group, epoch);
        self.run_pop(at);
    }

    // ---- outcomes

    pub(crate) fn claimed(&mut self, at: Ref, lane: Ref, group: Ref, mut claim: Claim, lease: Option<LeaseId>) {
        let log_start = self.lanes[lane].log_start;
        if lease.is_some() {
            self.remember(lane, group, &claim);
        }
        self.free_cursor(lane, group);
        // Retention was quicker: what it took is not delivered, and is not counted.
        let granted = claim.start;
        claim.start = claim.start.max(log_start);
        let gone = claim.start.min(claim.end.plus(1));
        let gone_bytes = |said| bytes_of(&claim.records, granted, gone.plus(-1), said);
        let gone_bytes = self.pops.get(at).map_or(0, |job| gone_bytes(job.pop.said.of_each(&claim.name)));
        claim.records.retain(|record| record.last() >= claim.start);
        if let (Some(oldest), Some(job)) = (claim.records.first(), self.pops.get(at)) {
            let (oldest, auto_ack) = (oldest.created_at, job.pop.auto_ack);
            self.count_popped(lane, count(claim.start, claim.end) as u64, oldest, auto_ack);
        }
        let Some(job) = self.pops.get_mut(at) else { return };
        job.batch_left += (gone.0 - granted.0) as u32;
        job.bytes_taken = job.bytes_taken.saturating_sub(gone_bytes);
        if claim.start <= claim.end {
            job.claims.push(claim);
        } else {
            job.partitions_left += 1;
            if let Some(lease) = lease
                && self.undo_claim(lane, group, lease, Some(at))
            {
                return;
            }
        }
        self.pop_goes_on(at);
    }

    /// A move for a pop is over.
    pub(crate) fn pop_goes_on(&mut self, at: Ref) {
        if let Some(job) = self.pops.get_mut(at) {
            job.pending -= 1;
            job.moves -= 1;
            self.run_pop(at);
        }
    }

    /// A claim that was not made: its budget is free again.
    pub(crate) fn unclaimed(&mut self, at: Ref, claim: &Claim) {
        let Some(job) = self.pops.get_mut(at) else { return };
        job.release(count(claim.start, claim.end));
        job.moves -= 1;
        let said = job.pop.said.of_each(&claim.name);
        job.bytes_taken = job.bytes_taken.saturating_sub(bytes_of(&claim.records, claim.start, claim.end, said));
        if job.claims.is_empty() && job.pending == 0 {
            job.lease = job.pop.lease;
        }
        self.run_pop(at);
    }

    pub(crate) fn stop_pop(&mut self, at: Ref) {
        if let Some(job) = self.pops.get_mut(at) {
            job.stopped = true;
        }
    }

    pub(crate) fn pop_failed(&mut self, at: Ref, claim: &Claim) {
        if let Some(job) = self.pops.get_mut(at) {
            job.failed = true;
        }
        self.unclaimed(at, claim);
    }
}

/// Bytes of a span, counted as by [`fitting`].
fn bytes_of(records: &[Record], start: Offset, end: Offset, said: u64) -> u64 {
    let of = |record: &Record| {
        let n = (record.last().min(end).0 - record.base.max(start).0 + 1).max(0) as u64;
        record.raw_len as u64 * n / record.count.max(1) as u64 + n * said
    };
    records.iter().map(of).sum()
}

#[cfg(test)]
mod tests;
