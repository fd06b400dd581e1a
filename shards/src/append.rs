//! Pushes: drafts wait in lanes, lanes close into the fused append commit, outcomes become verdicts.
//!
//!     push > lane.drafts > prepare: provision, load the window > close_lanes: judge, build segments
//!          > Effect::Append > settle_append > DraftVerdict > reply
//!
//! Holds: drafts of a lane are judged when it closes, in arrival order, against the window and each other; a lane is
//! written whole or judged again whole; later drafts never overtake. Lanes go in ascending id order (lock order). A
//! packed draft of which nothing is left out is stored as it came.

use crate::calls::Pending;
use crate::command::{Codec, Draft, DraftVerdict, DrainVerdict, Duplicate, Record, Verdict};
use crate::drain::Fresh;
use crate::effect::{
    Append, AppendLane, AppendOutcome, AppendSegment, Call, Effect, LaneOutcome, LaneRow, StoreError, key_at,
};
use crate::ids::{CommitId, Key, Micros, Offset, Slot, Stamp};
use crate::inflated;
use crate::lane::{DraftFrom, Lane, LaneState, SINCE_NEVER, WaitingDraft};
use crate::limits::{
    ACCEPTED_JOIN_US, BUSY_TRIES, BUSY_WAIT_US, COMMIT_BYTES_MAX, COMMIT_SEGMENTS_MAX, DRAFT_WAIT_US, MERGE_BYTES_MAX,
    MERGE_DRAFT_BYTES, MERGE_PACKED_MESSAGES,
};
use crate::recall::kept_from;
use crate::repack::{self, Part};
use crate::seal::Hit;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::timers::Timer;
use bytes::Bytes;
use hashbrown::HashMap;

/// One push command: its verdicts as they come.
#[derive(Debug)]
pub(crate) struct PushJob {
    slot: Slot,
    verdicts: Vec<Option<DraftVerdict>>,
    left: usize,
}

/// How large a commit is that is being put together.
#[derive(Default)]
struct CommitSize {
    segments: usize,
    bytes: usize,
}

impl CommitSize {
    fn is_full(&self) -> bool {
        self.segments >= COMMIT_SEGMENTS_MAX || self.bytes >= COMMIT_BYTES_MAX
    }
}

/// The append commit in flight.
#[derive(Debug)]
pub(crate) struct AppendFlight {
    commit: CommitId,
    sent: Micros,
    lanes: Vec<FlyingLane>,
    segments: Vec<AppendSegment>,
}

#[derive(Debug)]
struct FlyingLane {
    lane: Ref,
    /// Where the log ended when it was judged.
    expect: Offset,
    drafts: Vec<JudgedDraft>,
    count: u32,
    /// Of drafts out of the spool: what they add to the lane's lookup.
    fresh: Fresh,
}

impl FlyingLane {
    /// It was written, but from `base` on, further up than it was judged.
    fn shift_to(&mut self, base: Offset) {
        let expect = self.expect;
        let shift = base.0 - expect.0 - 1;
        for draft in &mut self.drafts {
            draft.base = draft.base.plus(shift);
            for duplicate in draft.duplicates.iter_mut().filter(|duplicate| expect < duplicate.offset) {
                duplicate.offset = duplicate.offset.plus(shift);
            }
        }
    }
}

/// A draft with the offsets it gets if the commit succeeds.
#[derive(Debug)]
pub(crate) struct JudgedDraft {
    pub waiting: WaitingDraft,
    pub base: Offset,
    pub duplicates: Vec<Duplicate>,
}

impl Shard {
    pub(crate) fn push(&mut self, slot: Slot, drafts: Vec<Draft>) {
        self.take_push(slot, drafts, false);
    }

    /// Queues drafts in their lanes; `to_spool`: for the disk.
    pub(crate) fn take_push(&mut self, slot: Slot, drafts: Vec<Draft>, to_spool: bool) {
        if drafts.is_empty() {
            return self.reply(slot, Verdict::Push(Vec::new()));
        }
        let count = drafts.len();
        let job = self.pushes.insert(PushJob { slot, verdicts: vec![None; count], left: count });
        for (index, draft) in drafts.into_iter().enumerate() {
            let at = self.lane_entry(&draft.lane);
            let lane = &mut self.lanes[at];
            lane.touched = self.now;
            lane.to_spool |= to_spool;
            let from = DraftFrom::Push { job, index };
            lane.drafts.push_back(WaitingDraft { from, draft, since: self.now, probe: None });
            self.advance(at);
        }
    }

    /// Brings a lane with drafts a step nearer to closing.
    pub(crate) fn advance(&mut self, at: Ref) {
        let floor = self.dedup_floor(at);
        let Some(lane) = self.lanes.slab.get(at) else { return };
        if lane.drafts.is_empty() && lane.preparing.is_empty() {
            return;
        }
        if lane.state != LaneState::Flying && self.spools(at) {
            self.spool_lane(at);
        }
        let down = self.spool.is_down();
        let lane = &mut self.lanes[at];
        if lane.preparing.is_empty() && (lane.drafts.is_empty() || lane.waits_for_word() || down) {
            // What came out of the spool goes on when the store is seen again, or when the spool says so.
            if lane.drafts.is_empty() {
                self.rest_lane(at);
            }
            return;
        }
        match lane.state {
            LaneState::Unknown => {
                lane.state = LaneState::Asked;
                self.provision.push(at);
            }
            LaneState::Ready => self.prepare_known(at, floor),
            // The window of a lane in flight may fall short only while dedup was off; it is loaded after.
            LaneState::Flying if floor.is_none_or(|floor| lane.window_since <= floor) => self.answer_preparing(at),
            LaneState::Asked | LaneState::Loading | LaneState::Flying => {}
        }
    }

    /// The same of a lane that may close once what its first draft is judged by is here.
    fn prepare_known(&mut self, at: Ref, floor: Option<Stamp>) {
        let lane = &self.lanes[at];
        let drained = lane.drafts.front().is_some_and(WaitingDraft::is_drained);
        let windowed = !drained || !lane.preparing.is_empty();
        if let Some(floor) = floor.filter(|&floor| windowed && floor < lane.window_since) {
            if lane.last_created_at >= kept_from(floor) {
                self.load_window(at);
                return;
            }
            // Nothing was stored inside the window: holding nothing, it holds all there is.
            self.drop_window(at);
            self.lanes[at].window_since = kept_from(floor);
        }
        self.answer_preparing(at);
        let lane = &self.lanes[at];
        if lane.drafts.is_empty() || lane.waits_for_word() {
            return;
        }
        let is_here = match (drained, floor) {
            (true, _) => self.looked_up(at),
            (false, _) if self.waits_for_disk(at) => false,
            (false, Some(floor)) if self.lanes[at].runs().is_some() => self.probe_waiting(at, floor),
            (false, _) => true,
        };
        let lane = &mut self.lanes[at];
        if is_here && !lane.closing {
            lane.closing = true;
            self.closing.push_back(at);
        }
    }

    /// Stamp at or after which a stored key makes a duplicate; `None` with dedup off.
    pub(crate) fn dedup_floor(&self, at: Ref) -> Option<Stamp> {
        let lane = self.lanes.slab.get(at)?;
        let secs = self.queues.options(lane.queue).dedup_secs;
        (secs > 0).then(|| Stamp(self.stamp().0 - secs as i64 * 1_000_000))
    }

    // ---- closing

    /// Closes waiting lanes into one commit, unless one is in flight.
    pub(crate) fn close_lanes(&mut self) {
        if self.append_flight.is_some() || self.closing.is_empty() || self.spool.is_down() {
            return;
        }
        let mut chosen = self.choose_lanes();
        if chosen.is_empty() {
            return;
        }
        chosen.sort_by_key(|(at, _)| self.lanes[*at].id);
        let wait = chosen.iter().any(|(at, _)| self.lanes[*at].busy_count > BUSY_TRIES);
        let mut append = Append { wait, ..Append::default() };
        let mut lanes = Vec::with_capacity(chosen.len());
        for (at, take) in chosen {
            lanes.push(self.judge(at, take, &mut append));
        }
        self.commits += 1;
        let commit = CommitId(self.commits);
        self.append_flight = Some(AppendFlight { commit, sent: self.now, lanes, segments: append.segments.clone() });
        self.effects.push(Effect::Append { commit, append });
    }

    /// Lanes that close now, with how many drafts of each. After one that went alone come those that do not, however many wait
    /// to go alone: each costs a round trip.
    fn choose_lanes(&mut self) -> Vec<(Ref, usize)> {
        let (mut chosen, mut passed) = (Vec::new(), Vec::new());
        let mut size = CommitSize::default();
        let after_alone = std::mem::take(&mut self.went_alone);
        while !size.is_full()
            && let Some(at) = self.closing.pop_front()
        {
            let Some(lane) = self.lanes.slab.get(at) else { continue };
            if lane.goes_alone() && (after_alone || !chosen.is_empty()) {
                passed.push(at);
                continue;
            }
            if self.choose_lane(at, &mut chosen, &mut size) && !chosen.is_empty() {
                break;
            }
        }
        if chosen.is_empty() {
            let mut others = std::mem::take(&mut passed).into_iter();
            others.find(|at| self.choose_lane(*at, &mut chosen, &mut size) && !chosen.is_empty());
            passed = others.collect();
        }
        passed.into_iter().rev().for_each(|at| self.closing.push_front(at));
        chosen
    }

    /// Adds a lane out of the closing order to a commit. True: it goes alone, and the commit is whole.
    fn choose_lane(&mut self, at: Ref, chosen: &mut Vec<(Ref, usize)>, size: &mut CommitSize) -> bool {
        let alone = self.lanes[at].goes_alone();
        let take = self.takes(at, size);
        let lane = &mut self.lanes[at];
        lane.closing = false;
        if take > 0 && lane.state == LaneState::Ready {
            chosen.push((at, take));
            self.went_alone = alone;
        } else if lane.runs().is_some() || lane.drafts.front().is_some_and(WaitingDraft::is_drained) {
            self.advance(at);
        }
        alone
    }

    /// How many drafts of a lane go into a commit that is so large.
    fn takes(&self, at: Ref, size: &mut CommitSize) -> usize {
        let lane = &self.lanes[at];
        // Drafts out of the spool close alone, each kind being judged in its own way.
        let drained = lane.drafts.front().is_some_and(WaitingDraft::is_drained);
        let waits = match drained {
            true => lane.lookup.as_ref().is_none_or(|l| !l.is_whole(lane.verified, self.window_us(at))),
            false => self.waits_for_disk(at),
        };
        let probed = lane.runs().filter(|_| !drained);
        let probed = probed.and_then(|runs| Some((self.dedup_floor(at)?, runs.pushed())));
        let (mut take, mut span) = (0, None);
        for waiting in &lane.drafts {
            if waits || waiting.is_drained() != drained || waiting.is_unlooked() || waiting.is_refused() {
                break;
            }
            if probed.is_some_and(|(floor, pushed)| !waiting.is_probed(floor, pushed)) {
                break;
            }
            let draft = &waiting.draft;
            let bytes = draft.packed.as_ref().map_or(draft.frames.len(), Bytes::len);
            let doubted = lane.doubt.is_any() && lane.doubt.next() <= take;
            if take > 0 && (doubted || size.bytes + bytes > COMMIT_BYTES_MAX || size.is_full()) {
                break;
            }
            take += 1;
            size.bytes += bytes;
            let own = stands_alone(draft.raw_len(), draft.count, draft.packed.is_some());
            let accepted = waiting.accepted_at().map(accepted_span);
            let apart = accepted != std::mem::replace(&mut span, accepted);
            size.segments += (own || (drained && apart)) as usize;
        }
        // What none of them begins by itself.
        size.segments += (take > 0) as usize;
        take
    }

    /// Lets keys go that cannot make a duplicate any more.
    pub(crate) fn expire_window(&mut self, at: Ref, floor: Stamp) {
        self.expire_runs(at, kept_from(floor));
        let lane = &mut self.lanes[at];
        let before = lane.window.bytes();
        lane.window.expire(kept_from(floor));
        // What is forgotten here must be read again when the queue's window is raised.
        lane.window_since = lane.window_since.max(kept_from(floor));
        self.window_bytes = (self.window_bytes + lane.window.bytes()).saturating_sub(before);
    }

    /// Judges the first `take` drafts of a lane and adds what is to be written to the commit.
    fn judge(&mut self, at: Ref, take: usize, append: &mut Append) -> FlyingLane {
        let floor = self.dedup_floor(at);
        if let Some(floor) = floor {
            self.expire_window(at, floor);
        }
        let index = append.lanes.len() as u32;
        let lane = &mut self.lanes[at];
        lane.state = LaneState::Flying;
        let taken: Vec<WaitingDraft> = lane.drafts.drain(..take).collect();
        let lane = &self.lanes[at];
        let mut run = Run::new(index);
        let mut close_keys: HashMap<Key, Offset> = HashMap::new();
        let drained = taken.first().is_some_and(WaitingDraft::is_drained);
        let several = take > 1 && floor.is_some() && !drained;
        let mut fresh = Fresh::default();
        let mut next = lane.verified.plus(1);
        let first = next;
        let mut drafts = Vec::with_capacity(take);
        for waiting in taken {
            let duplicates = match floor {
                _ if drained => self.judge_drained(at, &waiting, next, &mut fresh),
                Some(floor) if !waiting.draft.all_minted => judge_live(lane, &waiting, floor, &close_keys),
                _ => Vec::new(),
            };
            let base = next;
            let (part, packed) = left_of(&waiting.draft, &duplicates);
            if several {
                for i in 0..part.count {
                    close_keys.insert(key_at(&part.keys, i as usize), base.plus(i as i64));
                }
            }
            next = next.plus(part.count as i64);
            if part.count > 0 {
                run.add(&mut append.segments, (base.0 - first.0) as u32, waiting.accepted_at(), part, packed);
            }
            drafts.push(JudgedDraft { waiting, base, duplicates });
        }
        run.flush(&mut append.segments);
        let count = (next.0 - first.0) as u32;
        let expect = lane.verified;
        append.lanes.push(AppendLane { partition: lane.id, expect, count });
        FlyingLane { lane: at, expect, drafts, count, fresh }
    }

    // ---- settling

    pub(crate) fn settle_append(&mut self, commit: CommitId, result: Result<AppendOutcome, StoreError>) {
        let Some(flight) = self.append_flight.take_if(|flight| flight.commit == commit) else { return };
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => return self.append_failed(flight, error),
        };
        self.read_clock(outcome.now, flight.sent);
        self.spool.store_answered(self.now);
        let mut stored = outcome.stored.into_iter();
        let mut segments = flight.segments.into_iter().peekable();
        for (index, (mut flying, lane_outcome)) in flight.lanes.into_iter().zip(outcome.lanes).enumerate() {
            let mut own = Vec::new();
            while let Some(segment) = segments.next_if(|s| s.lane == index as u32) {
                own.push((segment, stored.next().unwrap_or((Codec::Raw, Bytes::new()))));
            }
            let at = flying.lane;
            if let LaneOutcome::Behind { base, .. } = lane_outcome {
                flying.shift_to(base);
            }
            if self.lanes.slab.get(at).is_none() {
                // The queue was deleted meanwhile; what was written went with it or is beyond reach.
                let written = matches!(lane_outcome, LaneOutcome::Appended { .. } | LaneOutcome::Behind { .. });
                for draft in flying.drafts {
                    match written {
                        true => self.answer_draft(None, draft),
                        false => self.push_again(draft.waiting),
                    }
                }
                continue;
            }
            match lane_outcome {
                LaneOutcome::Appended { created_at } => self.appended(flying, own, created_at),
                LaneOutcome::Behind { base, .. } => self.appended_behind(flying, base),
                LaneOutcome::Moved { last } => {
                    self.unjudge(at, flying.drafts);
                    self.lanes[at].busy_count = self.lanes[at].busy_count.saturating_add(1);
                    self.catch_up(at, last);
                }
                LaneOutcome::Busy => {
                    self.unjudge(at, flying.drafts);
                    let lane = &mut self.lanes[at];
                    lane.state = LaneState::Ready;
                    lane.busy_count = lane.busy_count.saturating_add(1);
                    if lane.busy_count <= BUSY_TRIES + 1 {
                        self.advance(at);
                    } else {
                        self.expire_drafts(at);
                        self.arm(self.now.plus(BUSY_WAIT_US), Timer::Close { lane: at });
                    }
                }
                LaneOutcome::Gone => {
                    self.unjudge(at, flying.drafts);
                    self.forget_lane(at);
                }
            }
        }
    }

    fn appended(&mut self, flying: FlyingLane, segments: Vec<(AppendSegment, (Codec, Bytes))>, created_at: Stamp) {
        let at = flying.lane;
        let keep = self.dedup_floor(at).is_some();
        let lane = &mut self.lanes[at];
        let (before, first) = (lane.verified, lane.verified.plus(1));
        let window_before = lane.window.bytes();
        let mut records = Vec::with_capacity(segments.len());
        for (segment, (codec, body)) in segments {
            let base = first.plus(segment.rel as i64);
            if keep && lane.window_since != SINCE_NEVER {
                lane.window.insert(base, created_at, &segment.keys);
            }
            let raw_len = segment.raw_len() as u32;
            let at_hand = codec != Codec::Raw && !segment.frames.is_empty();
            records.push(Record {
                base,
                created_at,
                count: segment.count,
                codec,
                flags: segment.flags,
                raw_len,
                frames: at_hand.then(|| segment.frames.clone()),
                body: if codec == Codec::Raw { segment.raw() } else { body },
                keys: segment.keys,
            });
        }
        self.window_bytes = (self.window_bytes + lane.window.bytes()).saturating_sub(window_before);
        if flying.count > 0 {
            lane.verified = lane.verified.plus(flying.count as i64);
            lane.last_created_at = created_at;
            if !keep && lane.window_since != SINCE_NEVER {
                self.drop_window(at);
            }
        }
        let lane = &mut self.lanes[at];
        let end = lane.verified;
        lane.saw_end(end, self.now);
        lane.state = LaneState::Ready;
        lane.doubt.passed(flying.drafts.len());
        lane.busy_count = 0;
        self.feed_tail(at, records);
        if self.lanes[at].lookup.is_some() {
            self.lookup_follows(at, before, flying.fresh);
        }
        self.count_pushed(at, flying.count as u64);
        self.lanes_written += (flying.count > 0) as u64;
        for draft in flying.drafts {
            self.answer_draft(Some(at), draft);
        }
        self.advance(at);
        self.offer_all(at);
    }

    /// The lane was written, but further up than it was judged: what lies between is read.
    fn appended_behind(&mut self, flying: FlyingLane, base: Offset) {
        let at = flying.lane;
        let lane = &mut self.lanes[at];
        lane.doubt.passed(flying.drafts.len());
        lane.busy_count = 0;
        for draft in flying.drafts {
            self.answer_draft(Some(at), draft);
        }
        self.count_pushed(at, flying.count as u64);
        self.lanes_written += (flying.count > 0) as u64;
        self.catch_up(at, base.plus(flying.count as i64 - 1));
    }

    /// Adds records to a lane's tail, within what one lane may hold.
    pub(crate) fn feed_tail(&mut self, at: Ref, records: impl IntoIterator<Item = Record>) {
        let lane = &mut self.lanes[at];
        let before = lane.tail.bytes();
        records.into_iter().for_each(|record| lane.tail.push(record));
        while lane.tail.bytes() > self.config.lane_tail_bytes_max {
            if lane.tail.drop_front() == 0 {
                break;
            }
        }
        self.tail_bytes = (self.tail_bytes + lane.tail.bytes()).saturating_sub(before);
        if !std::mem::replace(&mut lane.in_tail_order, true) {
            self.tail_order.push_back(at);
        }
    }

    /// The whole commit has no outcomes.
    fn append_failed(&mut self, flight: AppendFlight, error: StoreError) {
        let lost = match &error {
            StoreError::Refused(_) => false,
            // Rolled back, perhaps for a moment's reason: once more before the spool.
            StoreError::Unavailable(_) => !self.tries_again(),
            StoreError::Unknown(_) => true,
        };
        let alone = flight.lanes.len() == 1;
        let mut lanes = Vec::with_capacity(flight.lanes.len());
        for flying in flight.lanes {
            let at = flying.lane;
            if self.lanes.slab.get(at).is_none() {
                // Its queue was deleted meanwhile: again from the names.
                flying.drafts.into_iter().for_each(|draft| self.push_again(draft.waiting));
                continue;
            }
            let mut drafts = flying.drafts;
            if matches!(error, StoreError::Refused(_)) && self.lanes[at].doubt.refused(drafts.len(), alone) {
                // Tried alone and refused again: this draft is the poison.
                match drafts[0].waiting.is_drained() {
                    true => self.refuse_drained(&mut drafts[0].waiting),
                    false => {
                        let poison = drafts.remove(0).waiting;
                        self.lanes[at].doubt.passed(1);
                        self.finish_draft(poison.from, DraftVerdict::Refused("the store refuses this item"));
                    }
                }
            }
            self.unjudge(at, drafts);
            let lane = &mut self.lanes[at];
            lane.state = LaneState::Ready;
            if let StoreError::Unknown(_) = error {
                // The rows may be there: the partition is read again before anything else is judged.
                (lane.state, lane.window_since, lane.lookup) = (LaneState::Unknown, SINCE_NEVER, None);
            }
            lanes.push(at);
        }
        if lost {
            self.store_lost();
        }
        for at in lanes {
            if let (StoreError::Unknown(_), true) = (&error, self.lanes.slab.get(at).is_some()) {
                self.verify_later(at);
            }
            self.advance(at);
        }
    }

    /// Asks again for a lane of which nothing is known since a commit without an answer.
    pub(crate) fn reread(&mut self, at: Ref) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        if lane.state == LaneState::Unknown && lane.id.0 != 0 {
            lane.state = LaneState::Asked;
            let key = lane.key.clone();
            self.ask(Call::FindLane { lane: key }, Pending::Reverify { lane: at });
        }
    }

    /// What the store says of a lane whose last commit has an unknown outcome.
    pub(crate) fn reverified(&mut self, at: Ref, row: Result<Option<LaneRow>, StoreError>) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        match row {
            Ok(Some(row)) if row.partition == lane.id => {
                lane.log_start = lane.log_start.max(row.log_start);
                let queue = lane.queue;
                // Its number may have been heard and its queue never read.
                self.learn_queue(queue, row.queue);
                let lane = &mut self.lanes[at];
                if row.last_offset > lane.verified {
                    self.catch_up(at, row.last_offset);
                } else {
                    lane.state = LaneState::Ready;
                    self.advance(at);
                }
            }
            Ok(_) => self.forget_lane(at),
            Err(error) => self.lane_failed(at, &error),
        }
    }

    /// Puts judged drafts back in front of their lane, in order. What came out of the spool meanwhile is older than pushes.
    fn unjudge(&mut self, at: Ref, drafts: Vec<JudgedDraft>) {
        for JudgedDraft { waiting, .. } in drafts.into_iter().rev() {
            match waiting.is_drained() {
                true => self.put_in_order(at, waiting),
                false => {
                    let drafts = &mut self.lanes[at].drafts;
                    drafts.insert(drafts.partition_point(WaitingDraft::is_drained), waiting);
                }
            }
        }
    }

    fn push_again(&mut self, waiting: WaitingDraft) {
        let at = self.lane_entry(&waiting.draft.lane);
        self.put_in_order(at, waiting.anew());
        self.advance(at);
    }

    /// Spools a lane whose drafts waited too long for a locked row.
    pub(crate) fn expire_drafts(&mut self, at: Ref) {
        let now = self.now;
        let live = self.lanes[at].drafts.iter().find(|w| !w.is_drained());
        if live.is_some_and(|w| now.since(w.since) > DRAFT_WAIT_US) {
            self.spool_lane(at);
        }
    }

    /// A committed draft: its verdict, once the ids of the originals of its duplicates are known.
    fn answer_draft(&mut self, lane: Option<Ref>, mut draft: JudgedDraft) {
        if draft.waiting.is_drained() {
            return self.finish_judged(draft);
        }
        let mut missing = false;
        if let Some(lane) = lane.and_then(|at| self.lanes.slab.get(at)) {
            lane.tail.originals(&mut draft.duplicates);
            missing = draft.duplicates.iter().any(|d| d.id.is_none() && d.offset >= lane.log_start);
        }
        match lane {
            Some(at) if missing => self.find_originals(self.lanes[at].id, self.lanes[at].log_start, draft),
            _ => self.finish_judged(draft),
        }
    }

    pub(crate) fn finish_judged(&mut self, draft: JudgedDraft) {
        let verdict = DraftVerdict::Stored { base: draft.base, duplicates: draft.duplicates };
        self.finish_draft(draft.waiting.from, verdict);
    }

    /// A draft is decided.
    pub(crate) fn finish_draft(&mut self, from: DraftFrom, verdict: DraftVerdict) {
        match (from, verdict) {
            (DraftFrom::Push { job, index }, verdict) => self.finish_push(job, index, verdict),
            (DraftFrom::Spool { id, .. }, DraftVerdict::Stored { duplicates, .. }) => {
                let verdict = DrainVerdict::Stored { duplicates: duplicates.len() as u32 };
                self.effects.push(Effect::Drained { id, verdict });
            }
            (DraftFrom::Spool { .. }, _) => debug_assert!(false, "a record is stored, or refused and kept"),
        }
    }

    pub(crate) fn finish_push(&mut self, job: Ref, index: usize, verdict: DraftVerdict) {
        let Some(push) = self.pushes.get_mut(job) else { return };
        debug_assert!(push.verdicts[index].is_none(), "one verdict per draft");
        push.verdicts[index] = Some(verdict);
        push.left -= 1;
        if push.left == 0 {
            let push = self.pushes.remove(job).expect("just seen");
            let verdicts = push.verdicts.into_iter().map(|v| v.expect("all are in")).collect();
            self.reply(push.slot, Verdict::Push(verdicts));
        }
    }
}

/// Duplicates of a live draft, against the lane's window and its sealed runs, and the drafts before it in this close.
fn judge_live(lane: &Lane, waiting: &WaitingDraft, floor: Stamp, close_keys: &HashMap<Key, Offset>) -> Vec<Duplicate> {
    let draft = &waiting.draft;
    lane.window.touch(&draft.keys);
    let probe = waiting.probe.as_ref().filter(|_| lane.runs().is_some());
    let mut sealed: &[Hit] = probe.map_or(&[], |probe| &probe.hits);
    let mut duplicates = Vec::new();
    for index in 0..draft.count {
        let key = key_at(&draft.keys, index as usize);
        // What is sealed is lower than what the window holds.
        let hit = match sealed.split_first() {
            Some((hit, further)) if hit.index == index => {
                sealed = further;
                Some(hit.offset)
            }
            _ => lane.window.probe(key, floor).or_else(|| close_keys.get(&key).copied()),
        };
        duplicates.extend(hit.map(|offset| Duplicate { index, offset, id: None }));
    }
    duplicates
}

/// What is to be written of a draft, and the packed form of all of it where nothing is left out.
fn left_of(draft: &Draft, duplicates: &[Duplicate]) -> (Part, Option<Bytes>) {
    if duplicates.is_empty() {
        // What is a segment of its own is stored packed, so nobody looks into it.
        let alone = stands_alone(draft.raw_len(), draft.count, draft.packed.is_some());
        let frames = if alone { draft.frames.clone() } else { draft.raw() };
        let keys = draft.keys.clone();
        return (Part { frames, keys, count: draft.count, flags: draft.flags }, draft.packed.clone());
    }
    let dropped: Vec<u32> = duplicates.iter().map(|d| d.index).collect();
    let left = repack::without(&draft.raw(), &draft.keys, &dropped);
    (left.expect("the edge frames what it counts"), None)
}

/// Records of one span may share a segment.
fn accepted_span(accepted_at: Stamp) -> i64 {
    accepted_at.0.div_euclid(ACCEPTED_JOIN_US)
}

/// Whether a draft is a segment of its own beside others.
fn stands_alone(frames: usize, count: u32, packed: bool) -> bool {
    frames >= MERGE_DRAFT_BYTES || (packed && count >= MERGE_PACKED_MESSAGES)
}

/// Small drafts in a row become one segment, a large one its own. One that is alone keeps its packed form.
struct Run {
    lane: u32,
    rel: u32,
    accepted_at: Option<Stamp>,
    parts: Vec<Part>,
    /// Of the first part.
    packed: Option<Bytes>,
    bytes: usize,
}

impl Run {
    fn new(lane: u32) -> Run {
        Run { lane, rel: 0, accepted_at: None, parts: Vec::new(), packed: None, bytes: 0 }
    }

    fn add(
        &mut self,
        segments: &mut Vec<AppendSegment>,
        rel: u32,
        accepted_at: Option<Stamp>,
        part: Part,
        packed: Option<Bytes>,
    ) {
        if self.accepted_at.map(accepted_span) != accepted_at.map(accepted_span) {
            self.flush(segments);
            self.accepted_at = accepted_at;
        }
        if stands_alone(inflated::raw_len(&part.frames, packed.as_ref()), part.count, packed.is_some()) {
            self.flush(segments);
            segments.push(self.segment(rel, part, packed));
            return;
        }
        if self.bytes + part.frames.len() > MERGE_BYTES_MAX {
            self.flush(segments);
        }
        if self.parts.is_empty() {
            (self.rel, self.packed) = (rel, packed);
        }
        self.bytes += part.frames.len();
        self.parts.push(part);
    }

    fn flush(&mut self, segments: &mut Vec<AppendSegment>) {
        let parts = std::mem::take(&mut self.parts);
        self.bytes = 0;
        let packed = self.packed.take().filter(|_| parts.len() == 1);
        if !parts.is_empty() {
            segments.push(self.segment(self.rel, repack::merge(&parts), packed));
        }
    }

    fn segment(&self, rel: u32, part: Part, packed: Option<Bytes>) -> AppendSegment {
        let Part { frames, keys, count, flags } = part;
        AppendSegment { lane: self.lane, rel, count, flags, accepted_at: self.accepted_at, keys, frames, packed }
    }
}

#[cfg(test)]
mod tests;
