//! Lanes that spool: what the store cannot take now goes to disk, and what comes back from there goes first.
//!
//!     push, failed commit > spool_lane > Effect::Spool > Event::Spooled > `buffered`
//!     Event::Drain > the front of its lane > `drain`: looked up, judged > append > Effect::Drained
//!
//! Holds: a lane with records on disk sends later drafts there too, or, once all its records were handed over, keeps them
//! waiting behind those in memory, so order crosses the boundary. A record that the store refuses keeps its place until
//! the spool says whether it is tried again or set aside; its lane spools meanwhile. A lane in a commit is not touched: its later drafts
//! wait for the outcome. Does not know files, nor whether there is a spool: then writes fail.
//! Source: architecture (When PostgreSQL is away), rule 17; operations 4.1.

use crate::command::{Draft, DraftVerdict, DrainVerdict, Drained, SpoolId, SpoolRecord};
use crate::effect::{Effect, StoreError};
use crate::ids::{Micros, Slot, Stamp};
use crate::lane::{DraftFrom, LaneState, SINCE_NEVER, WaitingDraft};
use crate::limits::{ANSWERED_US, REREAD_WAIT_US};
use crate::place::LaneKey;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::timers::Timer;
use hashbrown::{HashMap, HashSet};

/// What a shard knows of the spool.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// The store was lost and not seen since: drafts are not tried.
    down: bool,
    /// It is known which lanes had records on disk at the start.
    found: bool,
    /// Every record on disk was handed over, but for those of lanes of which some wait there for a refused one.
    all_read: bool,
    put_off: HashSet<u64>,
    /// Lanes with records that are not here, by hash of their names; two lanes of one hash only wait for each other.
    behind: HashMap<u64, Behind>,
    /// On their way to disk, by token.
    writing: HashMap<u64, Writing>,
    tokens: u64,
    /// Commits in a row that the store could not take, and when it last took one.
    failures: u32,
    answered: Option<Micros>,
    /// Lanes whose last commit has an unknown outcome, to be read again when the store is back.
    unverified: Vec<Ref>,
    /// Lanes of the records that were refused and wait for the spool's word.
    refused: HashMap<SpoolId, LaneKey>,
}

/// Records of a lane that are not in its memory.
#[derive(Debug, Default)]
struct Behind {
    writing: u32,
    unread: u32,
    /// Some were there at the start.
    found: bool,
}

#[derive(Debug)]
struct Writing {
    lane: LaneKey,
    job: Ref,
    index: usize,
}

impl Spool {
    /// `found`: see [`crate::limits::ShardConfig::spool_found`].
    pub(crate) fn new(found: bool) -> Spool {
        Spool { found, ..Spool::default() }
    }

    /// Records on their way to disk.
    pub(crate) fn writes(&self) -> usize {
        self.writing.len()
    }

    /// Whether records of a lane may be on disk of which its shard will hear only later.
    fn is_behind(&self, lane: u64) -> bool {
        !self.behind.is_empty() && self.behind.contains_key(&lane) && (!self.all_read || self.put_off.contains(&lane))
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down
    }

    /// A commit was answered.
    pub(crate) fn store_answered(&mut self, now: Micros) {
        (self.failures, self.answered) = (0, Some(now));
    }
}

impl Shard {
    /// [`crate::command::Command::Spool`].
    pub(crate) fn push_to_spool(&mut self, slot: Slot, drafts: Vec<Draft>) {
        self.take_push(slot, drafts, true);
    }

    /// Whether live drafts of a lane go to disk now.
    pub(crate) fn spools(&self, at: Ref) -> bool {
        let (lane, spool) = (&self.lanes[at], &self.spool);
        lane.to_spool || lane.waits_for_word() || spool.down || !spool.found || spool.is_behind(lane.key.hash())
    }

    /// Whether live drafts of a lane wait for older ones that are on disk.
    pub(crate) fn waits_for_disk(&self, at: Ref) -> bool {
        !self.spool.behind.is_empty() && self.spool.behind.contains_key(&self.lanes[at].key.hash())
    }

    /// Sends the live drafts of a lane to disk, in order. Not while it is in a commit.
    pub(crate) fn spool_lane(&mut self, at: Ref) {
        debug_assert!(self.lanes[at].state != LaneState::Flying, "a draft of a commit in flight may be stored");
        let (stamp, now) = (self.stamp(), self.now);
        let lane = &mut self.lanes[at];
        lane.to_spool = false;
        let first = lane.drafts.iter().position(|w| !w.is_drained()).unwrap_or(lane.drafts.len());
        lane.doubt.cut(first);
        if first == lane.drafts.len() {
            return;
        }
        let key = lane.key.clone();
        let live = lane.drafts.split_off(first);
        let behind = self.spool.behind.entry(key.hash()).or_default();
        behind.writing += live.len() as u32;
        for waiting in live {
            let DraftFrom::Push { job, index } = waiting.from else { unreachable!("drained drafts are in front") };
            let accepted_at = Stamp(stamp.0 - now.since(waiting.since) as i64);
            self.spool.tokens += 1;
            let token = self.spool.tokens;
            self.spool.writing.insert(token, Writing { lane: key.clone(), job, index });
            self.effects.push(Effect::Spool { token, record: SpoolRecord { accepted_at, draft: waiting.draft } });
        }
    }

    /// [`crate::command::Event::Spooled`].
    pub(crate) fn spooled(&mut self, token: u64, written: bool) {
        let Some(Writing { lane, job, index }) = self.spool.writing.remove(&token) else { return };
        if let Some(behind) = self.spool.behind.get_mut(&lane.hash()) {
            behind.writing -= 1;
            behind.unread += written as u32;
        }
        let verdict = if written { DraftVerdict::Buffered } else { DraftVerdict::Failed };
        self.finish_push(job, index, verdict);
        self.catch_up_with_disk(&lane);
    }

    /// Lets the drafts of a lane go on that waited for records on disk, when none is left there.
    fn catch_up_with_disk(&mut self, lane: &LaneKey) {
        let hash = lane.hash();
        let Some(behind) = self.spool.behind.get(&hash) else { return };
        if behind.writing > 0 || behind.unread > 0 {
            return;
        }
        self.spool.behind.remove(&hash);
        if let Some(at) = self.lanes.find(lane) {
            self.advance(at);
        }
    }

    /// [`crate::command::Event::Drain`].
    pub(crate) fn drain(&mut self, records: Vec<Drained>) {
        for Drained { id, record: SpoolRecord { accepted_at, draft } } in records {
            let key = draft.lane.clone();
            let mut found = false;
            if let Some(behind) = self.spool.behind.get_mut(&key.hash()) {
                behind.unread = behind.unread.saturating_sub(1);
                found = behind.found;
            }
            let from = DraftFrom::Spool { id, accepted_at, found, looked: false, refused: false };
            let at = self.lane_entry(&key);
            self.lanes[at].touched = self.now;
            self.put_in_order(at, WaitingDraft { from, draft, since: self.now, probe: None });
            self.advance(at);
            self.catch_up_with_disk(&key);
        }
    }

    /// Adds a draft to a lane: one out of the spool before those that lie behind it there, any other at the end.
    pub(crate) fn put_in_order(&mut self, at: Ref, waiting: WaitingDraft) {
        let drafts = &mut self.lanes[at].drafts;
        let place = match waiting.from {
            DraftFrom::Spool { id, .. } => {
                drafts.partition_point(|w| matches!(w.from, DraftFrom::Spool { id: other, .. } if other < id))
            }
            DraftFrom::Push { .. } => drafts.len(),
        };
        drafts.insert(place, waiting);
    }

    /// [`crate::command::Event::SpoolFound`].
    pub(crate) fn spool_found(&mut self, lanes: Vec<(u64, u32)>) {
        self.spool.found = true;
        for (hash, records) in lanes {
            let behind = self.spool.behind.entry(hash).or_default();
            behind.unread += records;
            behind.found = true;
        }
        self.prepare_all();
    }

    /// [`crate::command::Event::SpoolRead`].
    pub(crate) fn spool_read(&mut self, all: bool, but: Vec<u64>) {
        let changed = std::mem::replace(&mut self.spool.all_read, all) != all;
        let before = self.spool.behind.len();
        self.spool.put_off = but.into_iter().collect();
        if all {
            // Whatever was on disk is here, is decided, or could not be read: nobody waits for that.
            let Spool { behind, put_off, .. } = &mut self.spool;
            behind.retain(|lane, behind| {
                if !put_off.contains(lane) {
                    behind.unread = 0;
                }
                0 < behind.writing + behind.unread
            });
        }
        // Who waits for records on disk would wait long, or waits in vain.
        if (changed && !all) || self.spool.behind.len() < before {
            self.prepare_all();
        }
    }

    /// [`crate::command::Event::Store`].
    pub(crate) fn store_seen(&mut self, up: bool) {
        match up {
            // Who asks for the store now and then may be the one that is refused.
            false if self.spool.answered.is_some_and(|at| self.now.since(at) < ANSWERED_US) => {}
            false => self.store_lost(),
            true if self.spool.down => {
                (self.spool.down, self.spool.failures) = (false, 0);
                for at in std::mem::take(&mut self.spool.unverified) {
                    self.reread(at);
                }
                self.prepare_all();
            }
            true => {}
        }
    }

    /// The store cannot be reached: what waits is spooled, and so is what comes, until it is seen again.
    pub(crate) fn store_lost(&mut self) {
        if !std::mem::replace(&mut self.spool.down, true) {
            self.prepare_all();
        }
    }

    /// Whether a commit that was rolled back for a passing reason is tried again at once: only the first one in a row.
    pub(crate) fn tries_again(&mut self) -> bool {
        self.spool.failures += 1;
        self.spool.failures == 1 && !self.spool.down
    }

    /// The lane is to be read again once the store is back.
    pub(crate) fn verify_later(&mut self, at: Ref) {
        match self.spool.down {
            true => self.spool.unverified.push(at),
            false => self.arm(self.now.plus(REREAD_WAIT_US), Timer::Reread { lane: at }),
        }
    }

    /// Looks at every lane that has drafts.
    fn prepare_all(&mut self) {
        let waiting = |at: &Ref| !self.lanes[*at].drafts.is_empty();
        let lanes: Vec<Ref> = self.lanes.slab.refs().filter(waiting).collect();
        lanes.into_iter().for_each(|at| self.advance(at));
    }

    /// What a lane must know cannot be read: its live drafts are spooled, those out of the spool wait.
    pub(crate) fn lane_failed(&mut self, at: Ref, error: &StoreError) {
        self.fail_preparing(at);
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        let flying = lane.state == LaneState::Flying;
        // A known one was asked for because its last commit has no outcome: that is still so.
        let doubted = lane.state == LaneState::Asked && lane.id.0 != 0;
        if !flying {
            lane.state = if lane.id.0 == 0 { LaneState::Unknown } else { LaneState::Ready };
            lane.lookup = None;
        }
        if !matches!(error, StoreError::Refused(_)) {
            self.store_lost();
        }
        if doubted && let Some(lane) = self.lanes.slab.get_mut(at) {
            (lane.state, lane.window_since) = (LaneState::Unknown, SINCE_NEVER);
            self.verify_later(at);
        }
        // The outcome of a commit in flight says how its lane goes on.
        if !flying && self.lanes.slab.get(at).is_some() {
            self.spool_lane(at);
            self.rest_lane(at);
        }
    }

    /// Of a lane that cannot go on now: drafts out of the spool are tried again later; without any it takes no memory
    /// while it is unknown.
    pub(crate) fn rest_lane(&mut self, at: Ref) {
        let Some(lane) = self.lanes.slab.get(at) else { return };
        if !lane.drafts.is_empty() {
            self.arm(self.now.plus(REREAD_WAIT_US), Timer::Close { lane: at });
        } else if lane.state == LaneState::Unknown
            && lane.id.0 == 0
            && lane.cursors.is_empty()
            && lane.preparing.is_empty()
        {
            self.remove_lane(at);
        }
    }

    /// The store refuses a record, tried alone: it waits for the spool's word.
    pub(crate) fn refuse_drained(&mut self, waiting: &mut WaitingDraft) {
        let DraftFrom::Spool { id, refused, .. } = &mut waiting.from else { return };
        if !std::mem::replace(refused, true) {
            self.spool.refused.insert(*id, waiting.draft.lane.clone());
            let verdict = DrainVerdict::Refused { written: self.lanes_written };
            self.effects.push(Effect::Drained { id: *id, verdict });
        }
    }

    /// The store refuses all records of a lane, whose names it does not take.
    pub(crate) fn refuse_lane_drained(&mut self, at: Ref) {
        let mut drafts = std::mem::take(&mut self.lanes[at].drafts);
        drafts.iter_mut().for_each(|waiting| self.refuse_drained(waiting));
        self.lanes[at].drafts = drafts;
    }

    /// [`crate::command::Event::RefusedAgain`].
    pub(crate) fn try_refused(&mut self, records: &[SpoolId]) {
        for id in records {
            let Some((at, place)) = self.find_refused(*id) else { continue };
            if let DraftFrom::Spool { refused, .. } = &mut self.lanes[at].drafts[place].from {
                *refused = false;
            }
            self.advance(at);
        }
    }

    /// [`crate::command::Event::RefusedGone`].
    pub(crate) fn drop_refused(&mut self, records: &[SpoolId]) {
        for id in records {
            let Some((at, place)) = self.find_refused(*id) else { continue };
            let lane = &mut self.lanes[at];
            lane.drafts.remove(place);
            if place == 0 {
                lane.doubt.passed(1);
            }
            match lane.drafts.is_empty() {
                true => self.rest_lane(at),
                false => self.advance(at),
            }
        }
    }

    /// Where a refused record waits. Its lane may have been forgotten and begun anew since.
    fn find_refused(&mut self, id: SpoolId) -> Option<(Ref, usize)> {
        let lane = self.spool.refused.remove(&id)?;
        let at = self.lanes.find(&lane)?;
        let is_it = |w: &WaitingDraft| matches!(w.from, DraftFrom::Spool { id: other, .. } if other == id);
        Some((at, self.lanes[at].drafts.iter().position(is_it)?))
    }
}
