//! Busy lanes beyond the windows' budget: old keys go into sorted runs in the store, and drafts are probed there.
//!
//!     seal:  over the budget > largest window > copy (a step a turn) > Call::SealRun > the run > drop (a step a turn)
//!     probe: draft > filters of the runs > (Call::ReadRunRows) > may close > judge
//!     load:  a page of keys is not all > Call::ReadRuns > keys above the runs
//!
//! Holds: one sealing per shard; a key is in the window or in a run at any time; a draft closes only when every run the
//! lane has by then was probed for it, so dedup is as exact as with the window alone. Whatever is amiss with a run ends
//! in a load from the segments. Below the budget nothing here runs.
//! Source: rule 13.

use crate::calls::Pending;
use crate::effect::{Call, RunRow, StoreError, key_at};
use crate::ids::{Key, Micros, Offset, Stamp};
use crate::lane::{DraftFrom, Lane, LaneState, SINCE_NEVER, WaitingDraft};
use crate::limits::{DROP_RUNS_MAX, RUN_ROWS_MAX, RUNS_PAGE_BYTES, SEAL_RETRY_US, SEAL_SHARE};
use crate::sealed::{self, RUN_KEYS, RowId, Run, RunId, Slice};
use crate::shard::Shard;
use crate::slab::Ref;
use bytes::Bytes;
use std::collections::VecDeque;

/// The sealing of a shard, and what it looks for.
#[derive(Debug, Default)]
pub(crate) struct Seals {
    running: Option<Sealing>,
    /// Number of the last sealing: an answer to an earlier one is of no use.
    number: u64,
    /// After a failure.
    not_before: Micros,
    /// The lane with the most keys among those looked at since the last choice.
    largest: Option<(usize, Ref)>,
    looked: usize,
}

#[derive(Debug)]
struct Sealing {
    lane: Ref,
    /// Of the slice; they count as the window's until its run is stored.
    bytes: usize,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Copy(Slice),
    Store(RunId),
    /// Through this offset.
    Drop(Offset),
}

impl Seals {
    /// Whether there is something to do at once.
    pub(crate) fn steps(&self) -> bool {
        self.running.as_ref().is_some_and(|sealing| !matches!(sealing.step, Step::Store(_)))
    }

    /// Bytes of the slice that is being sealed.
    pub(crate) fn bytes(&self) -> usize {
        self.running.as_ref().map_or(0, |sealing| sealing.bytes)
    }

    /// A busy lane over the budget.
    pub(crate) fn consider(&mut self, lane: Ref, keys: usize) {
        if self.largest.is_none_or(|(most, _)| most < keys) {
            self.largest = Some((keys, lane));
        }
    }
}

/// What the sealed runs of its lane hold of a draft.
#[derive(Debug)]
pub struct Probe {
    /// Runs pushed by then: later ones were not probed.
    seen: u64,
    floor: Stamp,
    /// At most one per message, in draft order.
    pub hits: Vec<Hit>,
    /// Rows are being read.
    reading: bool,
}

/// A message of a draft that a run holds: its lowest offset since the probe's floor.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    pub index: u32,
    pub offset: Offset,
    created_at: Stamp,
}

/// Rows on their way for a draft.
#[derive(Debug)]
pub(crate) struct Probing {
    lane: Ref,
    /// Names the draft.
    from: DraftFrom,
    seen: u64,
    floor: Stamp,
    hits: Vec<Hit>,
    /// (message, key, row it may be in); of one message the lower rows first.
    wanted: VecDeque<(u32, Key, RowId)>,
    /// Sorted.
    asked: Vec<RowId>,
}

/// Sealed runs on their way for a window.
#[derive(Debug)]
pub(crate) struct LoadingRuns {
    lane: Ref,
    /// Where the keys go on if there is no run to begin with.
    from: Offset,
    to: Offset,
    since: Stamp,
    /// Adjacent or overlapping runs, the first one reaching back to `since`.
    chain: Vec<Run>,
    useless: Vec<RunId>,
}

impl WaitingDraft {
    /// Whether all that is in the runs of its lane is known of this draft.
    pub(crate) fn is_probed(&self, floor: Stamp, pushed: u64) -> bool {
        let whole = |p: &Probe| {
            // A hit that expired meanwhile may have a younger one behind it.
            !p.reading && p.seen == pushed && p.floor <= floor && p.hits.iter().all(|hit| floor <= hit.created_at)
        };
        self.draft.all_minted || self.probe.as_deref().is_some_and(whole)
    }
}

impl Shard {
    // ---- sealing

    /// Begins to seal the largest window, once about every lane was looked at.
    pub(crate) fn seal_largest(&mut self) {
        self.seals.looked += self.lanes.slab.len().min(crate::limits::SWEEP_STEP);
        if self.seals.looked < self.lanes.slab.len() || self.seals.running.is_some() || self.now < self.seals.not_before
        {
            return;
        }
        self.seals.looked = 0;
        let Some((_, at)) = self.seals.largest.take() else { return };
        if !self.lanes.slab.get(at).is_some_and(|lane| self.may_seal(lane)) {
            return;
        }
        let lane = &mut self.lanes[at];
        lane.window.close();
        // The newer half stays: what is pushed again is mostly young.
        let keys_max = (lane.window.len() / 2).clamp(1, RUN_KEYS);
        let after = lane.runs().and_then(|runs| runs.last()).unwrap_or(Offset::NONE);
        let slice = Slice::new(keys_max, after);
        self.window_bytes += slice.bytes();
        self.seals.number += 1;
        self.seals.running = Some(Sealing { lane: at, bytes: slice.bytes(), step: Step::Copy(slice) });
    }

    /// Whether a window is worth a run: for a lane that has runs, one that is not small beside them. Each probe asks
    /// every run, so few of them are worth some memory: with this the window takes about as much as the filters do.
    pub(crate) fn may_seal(&self, lane: &Lane) -> bool {
        let beside = lane.runs().map_or(0, |runs| (runs.keys() / SEAL_SHARE).min(2 * RUN_KEYS));
        lane.window_since != SINCE_NEVER && self.config.seal_keys_min.max(beside) <= lane.window.len()
    }

    /// A bounded step of copying or dropping.
    pub(crate) fn step_sealing(&mut self) {
        let Some(sealing) = &mut self.seals.running else { return };
        let at = sealing.lane;
        let Some(lane) = self.lanes.slab.get_mut(at) else { return self.end_sealing() };
        match &mut sealing.step {
            Step::Copy(slice) => {
                let before = slice.len();
                let full = lane.window.copy_oldest(slice);
                if !full && slice.len() > before {
                    return;
                }
                if slice.is_empty() {
                    return self.end_sealing();
                }
                let id = slice.id();
                let Step::Copy(slice) = std::mem::replace(&mut sealing.step, Step::Store(id)) else { return };
                let (partition, number) = (lane.id, self.seals.number);
                self.ask(Call::SealRun { partition, slice }, Pending::SealRun { number });
            }
            Step::Store(_) => {}
            Step::Drop(last) => {
                let before = lane.window.bytes();
                let done = lane.window.drop_through(*last);
                self.window_bytes = (self.window_bytes + lane.window.bytes()).saturating_sub(before);
                if done {
                    self.end_sealing();
                }
            }
        }
    }

    /// A run is stored: drafts are probed in it before its keys leave the window.
    pub(crate) fn run_sealed(&mut self, number: u64, run: Result<Run, StoreError>) {
        let Some(sealing) = self.seals.running.as_mut().filter(|_| self.seals.number == number) else { return };
        let (Step::Store(id), Some(lane)) = (&sealing.step, self.lanes.slab.get_mut(sealing.lane)) else { return };
        match run {
            Ok(run) if run.id() == *id => {
                self.window_bytes = (self.window_bytes + run.bytes()).saturating_sub(sealing.bytes);
                sealing.bytes = 0;
                sealing.step = Step::Drop(run.last);
                lane.sealed.get_or_insert_default().push(run);
            }
            _ => {
                self.seals.not_before = self.now.plus(SEAL_RETRY_US);
                self.end_sealing();
            }
        }
    }

    fn end_sealing(&mut self) {
        if let Some(sealing) = self.seals.running.take() {
            self.window_bytes = self.window_bytes.saturating_sub(sealing.bytes);
        }
    }

    /// Ends the sealing of this lane, if it is this lane's.
    pub(crate) fn stop_sealing(&mut self, at: Ref) {
        if self.seals.running.as_ref().is_some_and(|sealing| sealing.lane == at) {
            self.end_sealing();
        }
    }

    /// Forgets the window of a lane and its runs; what is stored stays stored.
    pub(crate) fn drop_window(&mut self, at: Ref) {
        self.stop_sealing(at);
        let lane = &mut self.lanes[at];
        self.window_bytes = self.window_bytes.saturating_sub(lane.window_bytes());
        lane.window.clear();
        if let Some(sealed) = &mut lane.sealed {
            sealed.clear();
        }
        lane.window_since = SINCE_NEVER;
    }

    /// Lets runs go that end before `floor`, here and in the store.
    pub(crate) fn expire_runs(&mut self, at: Ref, floor: Stamp) {
        let Some(sealed) = self.lanes[at].sealed.as_deref_mut() else { return };
        let before = sealed.bytes();
        let gone = sealed.expire(floor);
        self.window_bytes = (self.window_bytes + sealed.bytes()).saturating_sub(before);
        self.remove_runs(at, &gone);
    }

    pub(crate) fn remove_runs(&mut self, at: Ref, runs: &[RunId]) {
        let partition = self.lanes[at].id;
        for runs in runs.chunks(DROP_RUNS_MAX) {
            self.ask(Call::DropRuns { partition, runs: runs.to_vec() }, Pending::DropRuns);
        }
    }

    // ---- probing

    /// Has the waiting drafts of a lane with runs probed; whether the first one is, so that the lane may close.
    pub(crate) fn probe_waiting(&mut self, at: Ref, floor: Stamp) -> bool {
        let pushed = self.lanes[at].sealed.as_ref().map_or(0, |sealed| sealed.pushed());
        let probed = |shard: &Shard, place: usize| shard.lanes[at].drafts[place].is_probed(floor, pushed);
        let first_waits = self.lanes[at].drafts[0].probe.as_ref().is_some_and(|probe| probe.reading);
        let all = !first_waits && !probed(self, 0);
        // New ones are at the back.
        for place in (0..self.lanes[at].drafts.len()).rev() {
            if !probed(self, place) {
                self.probe_draft(at, place, floor);
            } else if !all {
                break;
            }
        }
        probed(self, 0)
    }

    /// Asks the filters; where they say that a run might hold a key, its row is read.
    fn probe_draft(&mut self, at: Ref, place: usize, floor: Stamp) {
        let lane = &mut self.lanes[at];
        let Some(runs) = lane.sealed.as_deref() else { return };
        let waiting = &mut lane.drafts[place];
        if waiting.probe.as_ref().is_some_and(|probe| probe.reading) {
            return;
        }
        // What was found holds on unless the floor moved past it; then only newer runs are asked.
        let known = waiting.probe.take();
        let known = known.filter(|p| p.floor <= floor && p.hits.iter().all(|hit| floor <= hit.created_at));
        let (seen, hits) = known.map_or((0, Vec::new()), |probe| (probe.seen, probe.hits));
        let mut wanted = VecDeque::new();
        let mut found = hits.iter().peekable();
        for index in 0..waiting.draft.count {
            if found.next_if(|hit| hit.index == index).is_some() {
                continue;
            }
            let key = key_at(&waiting.draft.keys, index as usize);
            wanted.extend(runs.might_hold_newer(key, floor, seen).map(|row| (index, key, row)));
        }
        let seen = runs.pushed();
        if wanted.is_empty() {
            waiting.probe = Some(Box::new(Probe { seen, floor, hits, reading: false }));
            return;
        }
        let from = waiting.from;
        waiting.probe = Some(Box::new(Probe { seen, floor, hits: Vec::new(), reading: true }));
        self.read_rows(Probing { lane: at, from, seen, floor, hits, wanted, asked: Vec::new() });
    }

    /// Asks for the rows that come first, so many as one answer may have.
    fn read_rows(&mut self, mut probing: Probing) {
        probing.asked.clear();
        for (_, _, row) in &probing.wanted {
            if let Err(place) = probing.asked.binary_search(row) {
                if probing.asked.len() == RUN_ROWS_MAX {
                    break;
                }
                probing.asked.insert(place, *row);
            }
        }
        let (partition, rows) = (self.lanes[probing.lane].id, probing.asked.clone());
        self.ask(Call::ReadRunRows { partition, rows }, Pending::Probe(probing));
    }

    pub(crate) fn rows_probed(&mut self, mut probing: Probing, rows: Result<Vec<Option<Bytes>>, StoreError>) {
        let at = probing.lane;
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        let named = |w: &WaitingDraft| w.from == probing.from;
        let Some(place) = lane.drafts.iter().position(named) else { return };
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                lane.drafts[place].probe = None;
                return self.lane_failed(at, &error);
            }
        };
        let row_of = |id: &RowId| rows.get(probing.asked.binary_search(id).ok()?)?.as_ref();
        if let Some(gone) = probing.asked.iter().find(|id| row_of(id).is_none()) {
            // Removed by a broker or a clean-up that saw it expire. What is stored is read again.
            let gone = gone.run;
            lane.drafts[place].probe = None;
            if lane.state != LaneState::Loading {
                self.drop_window(at);
            }
            self.remove_runs(at, &[gone]);
            return self.advance(at);
        }
        let (mut hits, floor) = (std::mem::take(&mut probing.hits), probing.floor);
        let mut left = VecDeque::new();
        let mut answered = true;
        for (index, key, id) in std::mem::take(&mut probing.wanted) {
            answered &= probing.asked.binary_search(&id).is_ok();
            // Hits come in draft order, and those known before are of other messages.
            if hits.last().is_some_and(|hit| hit.index == index) {
                continue;
            }
            if !answered {
                left.push_back((index, key, id));
            } else if let Some((offset, created_at)) = row_of(&id).and_then(|row| sealed::find_in_row(row, key, floor))
            {
                hits.push(Hit { index, offset, created_at });
            }
        }
        if !left.is_empty() {
            return self.read_rows(Probing { hits, wanted: left, ..probing });
        }
        hits.sort_unstable_by_key(|hit| hit.index);
        lane.drafts[place].probe = Some(Box::new(Probe { seen: probing.seen, floor, hits, reading: false }));
        self.advance(at);
    }

    // ---- loading

    /// Looks for sealed runs of a window that has more keys than one page, from `from` on.
    pub(crate) fn load_runs(&mut self, at: Ref, from: Offset, to: Offset, since: Stamp) {
        let loading = LoadingRuns { lane: at, from, to, since, chain: Vec::new(), useless: Vec::new() };
        self.read_runs(loading, None);
    }

    fn read_runs(&mut self, loading: LoadingRuns, after: Option<RunId>) {
        let partition = self.lanes[loading.lane].id;
        self.ask(Call::ReadRuns { partition, after, bytes: RUNS_PAGE_BYTES }, Pending::LoadRuns(loading));
    }

    pub(crate) fn runs_loaded(&mut self, mut loading: LoadingRuns, page: Result<(Vec<RunRow>, bool), StoreError>) {
        let at = loading.lane;
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        let (rows, complete) = match page {
            Ok(page) => page,
            Err(error) => return self.lane_failed(at, &error),
        };
        let follows = rows.iter().all(|row| loading.take(row));
        if let (true, false, Some(last)) = (follows, complete, rows.last()) {
            return self.read_runs(loading, Some(last.id));
        }
        let mut from = loading.from;
        if let Some(last) = loading.chain.last() {
            from = last.last.plus(1);
            self.window_bytes = self.window_bytes.saturating_sub(lane.window_bytes());
            lane.window.clear();
            let sealed = lane.sealed.get_or_insert_default();
            loading.chain.into_iter().for_each(|run| sealed.push(run));
            self.window_bytes += lane.window_bytes();
        }
        self.remove_runs(at, &loading.useless);
        self.read_keys(at, from, loading.to, Some(loading.since));
    }
}

impl LoadingRuns {
    /// Adds a run to the chain if it goes on there; `false` when no later one can.
    fn take(&mut self, row: &RunRow) -> bool {
        let Some(run) = Run::decode(&row.run).filter(|run| run.id() == row.id && self.since <= run.newest) else {
            self.useless.push(row.id);
            return true;
        };
        if self.to < run.last {
            return true;
        }
        match self.chain.last() {
            // Keys below it may be inside the window: another broker sealed it, or the window was smaller then.
            None if row.before.is_some_and(|before| self.since <= before) => return false,
            Some(last) if last.last.plus(1) < run.base => return false,
            Some(last) if run.last <= last.last => return true,
            _ => {}
        }
        if self.chain.last().is_some_and(|last| run.base <= last.base) {
            self.chain.pop();
        }
        self.chain.push(run);
        true
    }
}

#[cfg(test)]
mod tests;
