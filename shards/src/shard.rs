//! One shard: commands and answers of the store come in, verdicts and asks of the store go out.
//!
//!     push  append: admit > provision > load window > judge > close > settle
//!     pop   claim:  open group > scan > select > (cold read) > move > verdict
//!     bundle prepare: lanes, cursors > bundle: close > settle > (owners hear)
//!     log   follow: what other brokers stored and freed > offer
//!     other_store: everything is forgotten
//!     ack   settle: find lane > find cursor > resolve keys > rule > move > verdict
//!
//! Holds: at most one append and one move commit in flight; one operation per cursor at a time; every answered
//! command gets exactly one reply. Does not know SQL or HTTP, reads no clock, never waits.

use crate::append::{AppendFlight, PushJob};
use crate::bundle::Bundles;
use crate::calls::{Calls, Pending};
use crate::claim::PopJob;
use crate::command::{Command, Event, Verdict};
use crate::effect::{Call, Effect, QueueRow};
use crate::finds::Finds;
use crate::ids::{CallId, Micros, Slot, Stamp, TenantId};
use crate::lane::{Lane, LaneState, Lanes, WaitingDraft};
use crate::limits::{ABSENT_MAX, ABSENT_US, SWEEP_STEP, ShardConfig, WINDOW_IDLE_US};
use crate::moves::Moves;
use crate::place::LaneKey;
use crate::prepare::{HeardJob, PrepareJob};
use crate::queue::{GroupState, Queues};
use crate::seal::Seals;
use crate::settle::AckJob;
use crate::slab::{Ref, Slab};
use crate::spool::Spool;
use crate::standing::{Standing, standing};
use crate::timers::{Timer, Timers};
use crate::watch::Watches;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub struct Shard {
    pub(crate) config: ShardConfig,
    pub(crate) now: Micros,
    /// PostgreSQL's clock at `.1`.
    clock: Option<(Stamp, Micros)>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) lanes: Lanes,
    pub(crate) queues: Queues,
    pub(crate) calls: Calls,
    /// The cold call whose answer is being taken, and the last one sent before a queue changed: answers up to it may
    /// tell of the time before.
    pub(crate) answering: CallId,
    /// When it was sent.
    pub(crate) asked: Micros,
    pub(crate) fence: CallId,
    /// The last one sent before the log of other brokers was read.
    pub(crate) followed: CallId,
    /// How often the store became another one, and the last call asked for before: answers up to it are of another store.
    pub(crate) stores: u32,
    pub(crate) severed: CallId,
    pub(crate) pushes: Slab<PushJob>,
    pub(crate) pops: Slab<PopJob>,
    /// The same by who waits for it.
    pub(crate) pop_slots: HashMap<Slot, Ref>,
    pub(crate) acks: Slab<AckJob>,
    pub(crate) prepares: Slab<PrepareJob>,
    pub(crate) heards: Slab<HeardJob>,
    /// Lanes with drafts that may close, in order.
    pub(crate) closing: VecDeque<Ref>,
    /// Groups whose ring was given something while pops waited for the end of a scan or a seeding, or that has come; this turn.
    pub(crate) fed: Vec<Ref>,
    /// Lanes to provision with the next call.
    pub(crate) provision: Vec<Ref>,
    /// Lanes to provision one by one: a call they were in was refused.
    pub(crate) provision_alone: Vec<Ref>,
    pub(crate) spool: Spool,
    pub(crate) append_flight: Option<AppendFlight>,
    /// The last append commit was of one lane that goes alone.
    pub(crate) went_alone: bool,
    pub(crate) moves: Moves,
    pub(crate) finds: Finds,
    /// The cursor whose waiting sets are being started.
    pub(crate) freeing: Option<(Ref, Ref)>,
    pub(crate) bundles: Bundles,
    pub(crate) commits: u64,
    /// Lanes to which append commits added something, once for each commit; bundles are not among them.
    pub(crate) lanes_written: u64,
    pub(crate) timers: Timers,
    /// By how much PostgreSQL's clock is further than it was known to be, since the last look.
    pub(crate) leapt_us: u64,
    /// How far PostgreSQL's clock was set back so far, all in all: what was stored may be stamped so much before its acceptance.
    pub(crate) set_back_us: i64,
    pub(crate) watches: Watches,
    pub(crate) absent: HashMap<u64, Micros>,
    /// See [`Timer::Meet`].
    pub(crate) unmet: Vec<LaneKey>,
    pub(crate) window_bytes: usize,
    window_hand: usize,
    pub(crate) lane_hand: usize,
    pub(crate) lanes_evicted: u64,
    pub(crate) group_hand: usize,
    pub(crate) groups_left: u64,
    /// Since the last look at idle ones.
    pub(crate) lanes_made: usize,
    pub(crate) seals: Seals,
    pub(crate) tail_bytes: usize,
    pub(crate) tail_order: VecDeque<Ref>,
    pub(crate) memo_bytes: usize,
    pub(crate) memo_hand: usize,
}

impl Shard {
    pub fn new(config: ShardConfig) -> Shard {
        let spool = Spool::new(config.spool_found);
        Shard { config, spool, ..Shard::default() }
    }

    /// Takes every event, then closes what may close. `now` never goes back.
    pub fn turn(&mut self, now: Micros, events: &mut Vec<Event>, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        for event in events.drain(..) {
            match event {
                Event::Clock { now, at } => self.set_clock(now, at),
                Event::OtherStore { now, at } => self.hear_other_store(now, at),
                Event::Command { slot, command } => self.admit(slot, command),
                Event::Appended { commit, result } => self.settle_append(commit, result),
                Event::Moved { commit, result } => self.settle_moves(commit, result),
                Event::Bundled { commit, result } => self.settle_bundles(commit, result),
                Event::Returned { call, result } => self.resume(call, result),
                Event::Store { up } => self.store_seen(up),
                Event::Spooled { token, written } => self.spooled(token, written),
                Event::Drain { records } => self.drain(records),
                Event::RefusedAgain { records } => self.try_refused(&records),
                Event::RefusedGone { records } => self.drop_refused(&records),
                Event::SpoolFound { lanes } => self.spool_found(lanes),
                Event::SpoolRead { all, but } => self.spool_read(all, but),
                Event::Log { began, lanes, freed, changed, lost } => self.hear_log(began, lanes, freed, changed, lost),
            }
        }
        self.follow_leap();
        self.fire_timers();
        self.serve_fed();
        self.send_provision();
        self.close_lanes();
        self.close_moves();
        self.close_bundles();
        self.keep_budgets();
        self.send_finds();
        self.send_calls();
        effects.append(&mut self.effects);
    }

    /// When a turn is wanted though nothing happens.
    pub fn deadline(&self) -> Option<Micros> {
        let timer = self.timers.next_at();
        // A sealing goes on at once, in short turns.
        if self.seals.steps() { Some(timer.map_or(self.now, |at| at.min(self.now))) } else { timer }
    }

    fn admit(&mut self, slot: Slot, command: Command) {
        match command {
            Command::Push { drafts } => self.push(slot, drafts),
            Command::Spool { drafts } => self.push_to_spool(slot, drafts),
            Command::Pop(pop) => self.pop(slot, pop),
            Command::Withdraw => self.withdraw(slot),
            Command::Watch(watch) => self.watch(slot, watch),
            Command::Unwatch => self.unwatch(slot),
            Command::Ack { sets } => self.ack(slot, sets),
            Command::Prepare { lanes, sets, leases } => self.prepare_bundle(slot, lanes, sets, leases),
            Command::Bundle(bundle) => self.bundle(slot, bundle),
            Command::Heard { store, news } => self.heard(slot, store, news),
            Command::GiveBack { lease, claims } => self.give_back(lease, claims),
            Command::QueueChanged { tenant, queue } => self.queue_changed(slot, tenant, queue),
            Command::LaneGrew { lane } => self.read_grown(slot, lane),
            Command::GroupChanged { tenant, queue, group } => self.group_changed(slot, tenant, queue, &group),
        }
    }

    pub(crate) fn reply(&mut self, slot: Slot, verdict: Verdict) {
        self.effects.push(Effect::Reply { slot, verdict });
    }

    // ---- clock and timers

    pub(crate) fn set_clock(&mut self, now: Stamp, at: Micros) {
        self.know_clock((now, at));
    }

    /// PostgreSQL's clock said `stamp` in an answer to what was asked at `asked`.
    pub(crate) fn read_clock(&mut self, stamp: Stamp, asked: Micros) {
        self.know_clock(crate::command::reading(self.clock, stamp, asked, self.now));
    }

    fn know_clock(&mut self, reading: (Stamp, Micros)) {
        let known = self.clock.map(|_| self.stamp());
        self.clock = Some(reading);
        if let Some(known) = known {
            self.clock_moved(known);
        }
    }

    /// A lower bound of PostgreSQL's clock: its last reading and the time since the receipt.
    pub(crate) fn stamp(&self) -> Stamp {
        match self.clock {
            Some((stamp, at)) => Stamp(stamp.0 + self.now.since(at) as i64),
            None => Stamp(0),
        }
    }

    /// When PostgreSQL's clock shows `stamp`, at the latest; this moment or before it where that has passed.
    pub(crate) fn moment_of(&self, stamp: Stamp) -> Micros {
        self.clock.map_or(self.now, |(read, at)| crate::command::until(stamp, read, at))
    }

    pub(crate) fn arm(&mut self, at: Micros, timer: Timer) {
        self.timers.arm(at, timer);
    }

    fn fire_timers(&mut self) {
        while let Some((at, timer)) = self.timers.take_due(self.now) {
            match timer {
                Timer::Offer { lane, group } => self.offer_due(at, lane, group),
                Timer::Close { lane } => self.advance(lane),
                Timer::Reread { lane } => self.reread(lane),
                Timer::Moves => self.rested(),
                Timer::Meet => self.meet_again(),
                Timer::Recheck => self.recheck(),
            }
        }
    }

    // ---- readiness and waking

    /// Looks at what a group may do with a lane, and acts on it: into the ready ring (and wake a waiter), a timer for
    /// the end of a lease or a hold, or nothing.
    pub(crate) fn offer(&mut self, lane_ref: Ref, group_ref: Ref) {
        let stamp = self.stamp();
        let Some(lane) = self.lanes.slab.get_mut(lane_ref) else { return };
        let Some(group) = self.queues.groups.get_mut(group_ref) else { return };
        if matches!(group.state, GroupState::Unknown | GroupState::Opening) {
            // Its scan, still to come, will find the lane; who waits is told to ask.
            self.wake_group(group_ref);
            self.wake_pinned(lane_ref, group_ref);
            return;
        }
        let options = self.queues.slab[lane.queue].options();
        let cursor = lane.cursor(group_ref);
        match standing(lane, cursor, &options, self.now, stamp, self.config.window_batch) {
            Standing::Nothing | Standing::Busy => {}
            Standing::Until(at) => self.offer_at(lane_ref, group_ref, at),
            Standing::Ready { .. } | Standing::Unread => {
                let partition = lane.id;
                let cursor = lane.cursor_entry(group_ref);
                if cursor.in_ready || group.ring.len() < self.config.ready_max {
                    group.ring.put(lane_ref, cursor);
                    self.feed(group_ref);
                } else {
                    group.look_again(partition);
                }
                self.wake_group(group_ref);
                self.wake_pinned(lane_ref, group_ref);
            }
        }
    }

    /// [`Shard::offer`] at the moment that it was armed for.
    pub(crate) fn offer_due(&mut self, at: Micros, lane: Ref, group: Ref) {
        let cursor = self.lanes.slab.get_mut(lane).and_then(|l| l.cursor_mut(group));
        match cursor.filter(|cursor| cursor.timer == Some(at)) {
            Some(cursor) => cursor.timer = None,
            None => self.timers.was_past(),
        }
        self.offer(lane, group);
    }

    /// [`Shard::offer`] at a moment to come.
    pub(crate) fn offer_at(&mut self, lane: Ref, group: Ref, at: Micros) {
        let cursor = self.lanes[lane].cursor_entry(group);
        if cursor.timer.is_none_or(|armed| at < armed) {
            let past = usize::from(cursor.timer.replace(at).is_some());
            self.arm(at, Timer::Offer { lane, group });
            self.timers.are_past(past, &self.lanes);
        }
    }

    /// Offers a lane to every group of its queue.
    pub(crate) fn offer_all(&mut self, lane: Ref) {
        let Some(queue) = self.lanes.slab.get(lane).map(|l| l.queue) else { return };
        for i in 0..self.queues.slab[queue].groups.len() {
            let group = self.queues.slab[queue].groups[i];
            self.offer(lane, group);
        }
        if self.watches.any_pinned() {
            self.wake_strangers(lane);
        }
    }

    // ---- lanes and queues

    /// The memory of a lane, made when there is none.
    pub(crate) fn lane_entry(&mut self, key: &LaneKey) -> Ref {
        if let Some(at) = self.lanes.find(key) {
            return at;
        }
        let queue = self.queues.entry(key.tenant, &key.queue);
        let name = self.queues.slab[queue].name.clone();
        let key = LaneKey::new(key.tenant, name, key.partition.clone());
        self.absent.remove(&key.hash());
        self.lanes_made += 1;
        self.lanes.insert(Lane::new(key, queue, self.now))
    }

    /// Whether a partition was looked up a moment ago and did not exist.
    pub(crate) fn is_absent(&self, key: &LaneKey) -> bool {
        self.is_hash_absent(key.hash())
    }

    /// The same, by the hash of the names.
    pub(crate) fn is_hash_absent(&self, hash: u64) -> bool {
        self.absent.get(&hash).is_some_and(|at| self.now.since(*at) < ABSENT_US)
    }

    pub(crate) fn note_absent(&mut self, key: &LaneKey) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.insert(key.hash(), self.now);
    }

    /// The queue's row, as some answer told it.
    pub(crate) fn learn_queue(&mut self, queue: Ref, row: QueueRow) {
        let known = self.queues.slab[queue].row;
        if self.is_stale() && known.is_some_and(|known| known.id == row.id) {
            return;
        }
        self.queues.slab[queue].row = Some(row);
    }

    /// Whether the answer being taken was asked for before some queue changed, and so may tell of the time before.
    pub(crate) fn is_stale(&self) -> bool {
        self.answering <= self.fence
    }

    fn queue_changed(&mut self, slot: Slot, tenant: TenantId, queue: Arc<str>) {
        self.fence = self.calls.last_sent();
        if self.queues.find(tenant, &queue).is_none() {
            return self.reply(slot, Verdict::Done);
        }
        self.absent.clear();
        self.ask(
            Call::FindQueue { tenant, queue: queue.clone() },
            Pending::FindQueue { slot: Some(slot), tenant, queue },
        );
    }

    /// The store's word on a queue that changed: other options, or another queue (or none) under the name.
    pub(crate) fn queue_found(&mut self, tenant: TenantId, name: &Arc<str>, row: Option<QueueRow>) {
        let Some(queue) = self.queues.find(tenant, name) else { return };
        let old = self.queues.slab[queue].row;
        match (old, row) {
            (Some(old), Some(new)) if old.id == new.id => {
                self.queues.slab[queue].row = Some(new);
                self.forget_cursors(queue);
            }
            (None, Some(new)) => self.queues.slab[queue].row = Some(new),
            _ => {
                self.forget_queue(queue);
                self.queues.slab[queue].row = row;
                self.forget_empty_queue(queue);
            }
        }
    }

    /// Forgets what is remembered of a queue's cursors and groups, which may have been moved, deleted or made anew;
    /// who waits for messages is woken and asks again.
    pub(crate) fn forget_cursors(&mut self, queue: Ref) {
        let (now, mut past) = (self.now, 0);
        for i in 0..self.lanes.of_queue(queue).len() {
            let lane = self.lanes.of_queue(queue)[i];
            let cursors = self.lanes[lane].cursors.iter_mut();
            past += cursors.filter_map(|cursor| cursor.forget_soon(now).then_some(())).count();
            if self.watches.any_pinned() {
                self.wake_lane_watches(lane);
            }
        }
        self.timers.are_past(past, &self.lanes);
        self.reopen_groups(queue);
    }

    /// Every group of a queue is opened and scanned again before its next delivery.
    fn reopen_groups(&mut self, queue: Ref) {
        for i in 0..self.queues.slab[queue].groups.len() {
            let group = self.queues.slab[queue].groups[i];
            self.reopen_group(group);
        }
    }

    /// A group is opened and scanned again before its next delivery; who waits is woken and asks.
    pub(crate) fn reopen_group(&mut self, group: Ref) {
        let state = &mut self.queues.groups[group];
        state.state = GroupState::Unknown;
        state.again = None;
        state.epoch += 1;
        state.seeding = 0;
        state.registered = false;
        state.conflation = None;
        for pop in state.pops.take(&self.pops) {
            self.run_pop(pop);
        }
        for _ in 0..self.queues.groups[group].waiters.len() {
            self.wake_group(group);
        }
    }

    /// Drops all memory of a queue's partitions and groups. Drafts that wait are judged again from the names; who
    /// waits for messages is woken and asks again.
    pub(crate) fn forget_queue(&mut self, queue: Ref) {
        for lane in self.lanes.of_queue(queue).to_vec() {
            self.forget_lane(lane);
        }
        self.reopen_groups(queue);
        self.queues.slab[queue].row = None;
    }

    /// Drops all memory of a partition; what waits for it starts again.
    pub(crate) fn forget_lane(&mut self, at: Ref) {
        let Some(lane) = self.remove_lane(at) else { return };
        if !lane.drafts.is_empty() {
            let again = self.lane_entry(&lane.key);
            // It may be another partition by now: what was probed says nothing of it.
            self.lanes[again].drafts.extend(lane.drafts.into_iter().map(WaitingDraft::anew));
            self.lanes[again].to_spool |= lane.to_spool;
            self.advance(again);
        }
        self.prepare_again(lane.preparing);
        for ticket in lane.cursors.into_iter().flat_map(|c| c.waiting) {
            self.start_set(ticket);
        }
    }

    /// Takes a lane out of memory, and out of what is counted; what waits for it is the caller's.
    pub(crate) fn remove_lane(&mut self, at: Ref) -> Option<Box<Lane>> {
        self.stop_sealing(at);
        let mut lane = self.lanes.remove(at)?;
        for cursor in &mut lane.cursors {
            if let Some(group) = self.queues.groups.get_mut(cursor.group) {
                group.ring.lane_left(cursor, &self.lanes);
            }
            let memo = cursor.memo.take();
            self.memo_left(memo);
        }
        self.timers.are_past(lane.cursors.iter().filter(|cursor| cursor.timer.is_some()).count(), &self.lanes);
        self.window_bytes = self.window_bytes.saturating_sub(lane.window_bytes());
        self.tail_bytes = self.tail_bytes.saturating_sub(lane.tail.bytes());
        Some(lane)
    }

    /// Forgets a lane's newest records: somebody else wrote behind them.
    pub(crate) fn cut_tail(&mut self, at: Ref) {
        let tail = &mut self.lanes[at].tail;
        self.tail_bytes = self.tail_bytes.saturating_sub(tail.bytes());
        tail.cut();
    }

    /// A queue nobody waits for and of which nothing is known takes no memory.
    pub(crate) fn forget_empty_queue(&mut self, queue: Ref) {
        let Some(state) = self.queues.slab.get(queue) else { return };
        if state.row.is_some() {
            return;
        }
        let used = state.groups.iter().any(|&g| {
            let group = &self.queues.groups[g];
            !group.waiters.is_empty() || !group.pops.is_empty() || group.state != GroupState::Unknown
        });
        if !used && self.lanes.of_queue(queue).is_empty() {
            self.queues.remove(queue);
        }
    }

    // ---- budgets

    fn keep_budgets(&mut self) {
        while self.tail_bytes > self.config.tail_bytes_max {
            let Some(at) = self.tail_order.pop_front() else { break };
            let Some(lane) = self.lanes.slab.get_mut(at) else { continue };
            self.tail_bytes = self.tail_bytes.saturating_sub(lane.tail.drop_front());
            lane.in_tail_order = lane.tail.first().is_some();
            if lane.in_tail_order {
                self.tail_order.push_back(at);
            }
        }
        if self.tail_order.len() > 2 * self.lanes.slab.len() + SWEEP_STEP {
            // Lanes have left memory.
            self.tail_order.retain(|at| self.lanes.slab.get(*at).is_some());
        }
        self.keep_memos();
        if self.seals.steps() {
            self.step_sealing();
        }
        if self.window_bytes > self.config.window_bytes_max {
            self.shrink_windows();
        }
        match self.lanes.slab.len() > self.config.lanes_kept {
            true => self.evict_idle_lanes(),
            false => self.lanes_made = 0,
        }
        self.forget_idle_groups();
    }

    /// Over the budget: windows of idle lanes go whole, those of busy ones are sealed.
    fn shrink_windows(&mut self) {
        for _ in 0..self.lanes.slab.len().min(SWEEP_STEP) {
            if self.window_bytes <= self.config.window_bytes_max {
                return;
            }
            self.window_hand = self.window_hand.wrapping_add(1);
            let looked_at = self.lanes.slab.at_hand(self.window_hand);
            if let Some(at) = looked_at {
                let lane = &self.lanes[at];
                let idle = lane.drafts.is_empty()
                    && lane.preparing.is_empty()
                    && self.now.since(lane.touched) > WINDOW_IDLE_US;
                if !idle && self.may_seal(lane) {
                    self.seals.consider(at, lane.window.len());
                } else if idle && lane.state == LaneState::Ready && lane.window_bytes() > 0 {
                    self.drop_window(at);
                }
            }
        }
        self.seal_largest();
    }

    /// What the shard holds, for gauges.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            lanes: self.lanes.slab.len(),
            lanes_evicted: self.lanes_evicted,
            queues: self.queues.slab.len(),
            groups: self.queues.groups.len(),
            groups_left: self.groups_left,
            window_bytes: self.window_bytes,
            tail_bytes: self.tail_bytes,
            memo_bytes: self.memo_bytes,
            waiting_drafts: self.pushes.len(),
            waiting_pops: self.pops.len(),
            waiting_acks: self.acks.len(),
            waiting_bundles: self.prepares.len() + self.heards.len() + self.bundles.len(),
            watches: self.watches.len(),
            calls: self.calls.len(),
            spool_writes: self.spool.writes(),
        }
    }
}

impl Shard {
    /// The bytes of [`Shard::sizes`] counted anew, lane by lane, for tests: they are equal, always.
    #[doc(hidden)]
    pub fn recounted(&self) -> Sizes {
        let lanes = || self.lanes.slab.refs().map(|at| &self.lanes[at]);
        let memos = lanes().flat_map(|lane| &lane.cursors).filter_map(|cursor| cursor.memo.as_ref());
        Sizes {
            window_bytes: lanes().map(|lane| lane.window_bytes()).sum::<usize>() + self.seals.bytes(),
            tail_bytes: lanes().map(|lane| lane.tail.bytes()).sum(),
            memo_bytes: memos.map(|memo| memo.bytes()).sum(),
            ..self.sizes()
        }
    }
}

/// See [`Shard::sizes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub lanes: usize,
    /// Those that left memory idle, since the start.
    pub lanes_evicted: u64,
    pub queues: usize,
    pub groups: usize,
    /// Those that left memory because nobody asked for them, since the start.
    pub groups_left: u64,
    pub window_bytes: usize,
    pub tail_bytes: usize,
    /// Of what leases handed out, for their acks.
    pub memo_bytes: usize,
    pub waiting_drafts: usize,
    pub waiting_pops: usize,
    pub waiting_acks: usize,
    pub waiting_bundles: usize,
    pub watches: usize,
    pub calls: usize,
    pub spool_writes: usize,
}

#[cfg(test)]
mod tests;
