//! Every change of a cursor must be explained: by acks, give-backs and at most one delivery that were open when the
//! move was sent, each doing exactly what the rules say, in some order. A move nobody asked for is caught, as is a
//! lease that overlaps another (C7), a message delivered early (C12) or past a budget, a charge too many (C9).

use crate::ack_model::{Allowed, Assume, Judged, judge};
use crate::coverage::Thing;
use crate::ledger::{Grant, Moment, Note};
use crate::oracle::{Ask, At, Oracle};
use crate::store::Cursor;
use queen_shards::command::{AckSet, Pop, PopFrom};
use queen_shards::effect::{CursorMove, CursorOutcome, CursorTo, DeadLetter, LeaseTo, Options};
use queen_shards::ids::{GroupId, LeaseId, Offset, PartitionId, Stamp};

/// Something open that may move a cursor: an index of `asks`, and for acks which set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    Ack(usize, usize),
    GiveBack(usize),
    Pop(usize),
}

/// What a cursor move said of an ack set.
#[derive(Clone, Debug)]
pub struct Fate {
    pub items: Vec<Allowed>,
    pub released: Option<bool>,
    pub conflated: Option<u64>,
    /// No other explanation of the move does without this set.
    pub sure: bool,
}

/// Operations of one move at most. An engine that fuses several of one cursor into a move is understood as well.
const DEPTH_MAX: usize = 4;

/// A way to get from one state to another.
type Path = Vec<(Candidate, Option<Judged>)>;

/// The move being explained.
struct Case<'a> {
    now: Moment,
    id: PartitionId,
    group: GroupId,
    before: Cursor,
    after: Cursor,
    letter: Option<&'a DeadLetter>,
    candidates: &'a [Candidate],
}

impl Oracle {
    /// Who may be behind a move that is sent now.
    pub fn candidates(&self, at: At, partition: PartitionId, group: GroupId) -> Vec<Candidate> {
        let Some((queue, name)) = self.ledger.groups.get(&group) else {
            self.fail(Some(partition), &format!("a move for {group:?}, which was never made"));
        };
        let Some(part) = self.ledger.parts.get(&partition) else {
            self.fail(None, &format!("a move for {partition:?}, which was never made"));
        };
        let mut found = Vec::new();
        for &index in self.movers.iter().filter(|index| self.asks[**index].at == at && !self.asks[**index].prepares) {
            match &self.asks[index].ask {
                Ask::Ack(sets) => {
                    let mine = sets.iter().enumerate().filter(|(_, s)| s.partition == partition && s.group == *name);
                    found.extend(mine.map(|(i, _)| Candidate::Ack(index, i)));
                }
                Ask::GiveBack { claims, .. } if claims.contains(&(partition, group)) => {
                    found.push(Candidate::GiveBack(index));
                }
                Ask::Pop(pop) if pop.group == *name && part.queue == *queue => {
                    let wanted = match &pop.from {
                        PopFrom::Queue { queue, .. } => *queue == part.queue_name,
                        PopFrom::Partition(lane) => lane.queue == part.queue_name && lane.partition == part.name,
                    };
                    if wanted {
                        found.push(Candidate::Pop(index));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The store has executed a fused cursor commit.
    pub fn moved(
        &mut self,
        now: Moment,
        at: At,
        candidates: Vec<Vec<Candidate>>,
        moves: &[CursorMove],
        outcomes: &[CursorOutcome],
    ) {
        for ((step, outcome), candidates) in moves.iter().zip(outcomes).zip(candidates) {
            let key = (step.partition, step.group);
            match outcome {
                CursorOutcome::Moved { version, .. } => {
                    let Some(track) = self.ledger.tracks.get(&key).filter(|track| track.gone.is_none()) else {
                        self.fail(Some(step.partition), "a cursor that is gone was moved");
                    };
                    let before = track.row;
                    if before.version != step.version {
                        self.fail(Some(step.partition), "a cursor was moved on an old version");
                    }
                    let Some(to) = step.to else { continue };
                    let after = applied(&before, &to, *version, now.stamp);
                    let letter = step.dead_letter.as_ref();
                    let (id, group) = (step.partition, step.group);
                    let case = Case { now, id, group, before, after, letter, candidates: &candidates };
                    let note = Note::Cursor { group: step.group, by: at, before, after, stamp: now.stamp };
                    self.ledger.note(now.t, step.partition, note);
                    self.explain(&case, step.group);
                    self.ledger.tracks.get_mut(&key).expect("found").set(now.t, after);
                }
                CursorOutcome::Stale { row, .. } => {
                    self.hit(Thing::CursorStale);
                    let Some(track) = self.ledger.tracks.get(&key) else { continue };
                    if *row != track.row.row(now.stamp) {
                        self.fail(Some(step.partition), "a cursor row is not what its moves made it");
                    }
                }
                CursorOutcome::Busy => {
                    self.hit(Thing::CursorBusy);
                    self.faults.insert(at, now.t);
                }
                CursorOutcome::Gone => self.hit(Thing::CursorGone),
                CursorOutcome::Unknown => self.fail(Some(step.partition), "the store itself does not know"),
            }
        }
    }

    fn explain(&mut self, case: &Case, group: GroupId) {
        let mut found: Vec<Path> = Vec::new();
        for depth in 0..=DEPTH_MAX {
            self.search(case, depth, case.before, None, &mut Vec::new(), &mut found);
            if !found.is_empty() {
                break;
            }
        }
        if found.is_empty() {
            let overlaps =
                case.before.live(case.now.stamp) && case.after.lease.is_some() && case.after.lease != case.before.lease;
            let what = if overlaps { "C7: two leases overlap" } else { "a cursor move that nothing explains" };
            let asks: Vec<String> = case.candidates.iter().map(|candidate| self.describe(candidate)).collect();
            let text = format!(
                "{what}: {group:?} at {:?}\n before {}\n after  {}\n letter {:?}\n open {asks:#?}",
                case.now, case.before, case.after, case.letter
            );
            self.fail(Some(case.id), &text);
        }
        self.tell_fates(&found);
        self.count_moves(case, group, &found[0]);
        if let Some((Candidate::Pop(index), _)) = found[0].last() {
            self.grant(case, group, *index);
        }
        if let Some(letter) = case.letter {
            self.letters.push((case.id, group, letter.offset));
        }
    }

    fn describe(&self, candidate: &Candidate) -> String {
        match candidate {
            Candidate::Ack(index, set) => match &self.asks[*index].ask {
                Ask::Ack(sets) => format!("slot {:#x} {}", self.asks[*index].slot.0, self.tell(&sets[*set])),
                _ => unreachable!(),
            },
            Candidate::GiveBack(index) => match &self.asks[*index].ask {
                Ask::GiveBack { lease, .. } => format!("give back {lease:?}"),
                _ => unreachable!(),
            },
            Candidate::Pop(index) => match &self.asks[*index].ask {
                Ask::Pop(pop) => format!("slot {:?} {pop:?}", self.asks[*index].slot),
                _ => unreachable!(),
            },
        }
    }

    /// Orders of up to `depth` candidates that lead from `state` to the state after the move; the shortest tell the
    /// story. An ack set moves a cursor once.
    fn search(
        &self,
        case: &Case,
        depth: usize,
        state: Cursor,
        letter: Option<&crate::ack_model::Letter>,
        path: &mut Path,
        found: &mut Vec<Path>,
    ) {
        const PATHS_MAX: usize = 24;
        if found.len() >= PATHS_MAX {
            return;
        }
        if same(&state, &case.after) && self.letter_fits(case, letter) {
            found.push(path.clone());
            return;
        }
        let part = &self.ledger.parts[&case.id];
        if depth > 0 && path.is_empty() && state.batch_end.is_some_and(|end| end < part.log_start) {
            // Retention took all that was granted before it was delivered: the broker gives it back itself.
            found.extend(given_back(&state, &case.after).filter(|next| same(next, &case.after)).map(|_| Vec::new()));
        }
        for candidate in case.candidates {
            if path.iter().any(|(used, _)| used == candidate) || path.len() >= depth {
                continue;
            }
            match *candidate {
                // What is still on its way to the shard explains nothing.
                Candidate::Ack(index, _) if self.asks[index].delivered.is_none() => {}
                Candidate::Ack(index, set) if self.asks[index].fates[set].iter().any(|fate| fate.sure) => {}
                Candidate::Ack(index, set) => {
                    for judged in self.judgements(index, set, case, &state) {
                        let Some(next) = judged.next else { continue };
                        let letter = judged.letter.clone().or(letter.cloned());
                        path.push((*candidate, Some(judged)));
                        self.search(case, depth, next, letter.as_ref(), path, found);
                        path.pop();
                    }
                }
                Candidate::GiveBack(index) => {
                    let Ask::GiveBack { lease, .. } = &self.asks[index].ask else { unreachable!() };
                    if *lease == state.lease
                        && let Some(next) = given_back(&state, &case.after)
                    {
                        path.push((*candidate, None));
                        self.search(case, depth, next, letter, path, found);
                        path.pop();
                    }
                }
                Candidate::Pop(index) => {
                    let Ask::Pop(pop) = &self.asks[index].ask else { unreachable!() };
                    if self.letter_fits(case, letter) && self.delivers(case, index, pop, &state) {
                        path.push((*candidate, None));
                        found.push(path.clone());
                        path.pop();
                    }
                }
            }
        }
    }

    /// All fair judgements of a set on a state at the moment of a move.
    fn judgements(&self, index: usize, set: usize, case: &Case, state: &Cursor) -> Vec<Judged> {
        let Ask::Ack(sets) = &self.asks[index].ask else { unreachable!() };
        let part = &self.ledger.parts[&case.id];
        let since = self.asks[index].delivered.expect("delivered").t;
        let mut all = Vec::new();
        for options in self.options(case.id, since, case.now.t) {
            for forgotten in either(Offset(0), part.forgotten) {
                for unreadable in either(Offset(0), part.log_start) {
                    let live = state.live(case.now.stamp);
                    for last_offset in self.log_ends(case.id, &sets[set], since) {
                        let unsure = self.nearly_over(state, case.now.stamp);
                        let assume = Assume { live, unsure, last_offset, forgotten, unreadable };
                        let judged = judge(state, part, &sets[set], &options, assume);
                        if !all.contains(&judged) {
                            all.push(judged);
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether the lease of a state ends about now.
    pub fn nearly_over(&self, state: &Cursor, now: Stamp) -> bool {
        state.lease.is_some() && (state.expires.0 - now.0).abs() <= self.slack_us + self.stale_us
    }

    /// Where the log may have ended, as far as a broker can know that judges a set since `since`. It only matters to
    /// acks without a lease. Commits that nobody was told of yet may be seen or not; of others' writes a broker hears
    /// when it does.
    pub fn log_ends(&self, id: PartitionId, set: &AckSet, since: u64) -> Vec<Offset> {
        let part = &self.ledger.parts[&id];
        let mut ends = vec![part.last_offset()];
        if set.lease.is_none() {
            const ENDS_MAX: usize = 40;
            let least = if self.solo { part.answered_before(since) } else { Offset::NONE };
            let segments = part.segments.iter().rev().map(|segment| segment.base.plus(segment.count as i64 - 1));
            ends.extend(segments.skip(1).take_while(|end| *end >= least).take(ENDS_MAX));
        }
        ends
    }

    pub fn options(&self, id: PartitionId, from: u64, to: u64) -> Vec<Options> {
        self.ledger.queues[&self.ledger.parts[&id].queue].possible(from, to).copied().collect()
    }

    fn letter_fits(&self, case: &Case, want: Option<&crate::ack_model::Letter>) -> bool {
        let (Some(letter), Some(want)) = (case.letter, want) else { return case.letter.is_none() && want.is_none() };
        let part = &self.ledger.parts[&case.id];
        let Some(message) = part.at(letter.offset) else { return false };
        let segment = &part.segments[message.segment as usize];
        let frames = crate::frame::read(&segment.raw()).expect("parsed before");
        let frame = &frames[(letter.offset.0 - segment.base.0) as usize];
        letter.offset == want.offset
            && letter.error == want.error
            && letter.retry_count == want.retry_count
            && letter.id == frame.id
            && &letter.transaction_id[..] == frame.transaction_id
            && &letter.payload[..] == frame.payload
    }

    /// Whether a pop may take this cursor from `state` to the move's state. Source: data plane 4.3, 4.8, 4.9.
    ///
    /// Where retention is quicker than the broker, a claim starts below `log_start`; its delivery does not.
    fn delivers(&self, case: &Case, index: usize, pop: &Pop, state: &Cursor) -> bool {
        let (now, after) = (case.now, &case.after);
        let part = &self.ledger.parts[&case.id];
        let lowest = state.committed.plus(1);
        let start = if pop.auto_ack { lowest } else { after.attempt_start.unwrap_or(lowest) };
        if start < lowest || start > lowest.max(part.log_start) {
            return false;
        }
        let since = self.asks[index].delivered.expect("delivered").t;
        let options = self.options(case.id, since, now.t);
        if state.live(now.stamp) {
            return false;
        }
        let end = if pop.auto_ack {
            let plain = after.batch_end.is_none() && !after.lease.is_some();
            if !plain {
                return false;
            }
            after.committed
        } else {
            let lengths = options.iter().map(|o| pop.lease_secs.unwrap_or(o.lease_secs) as i64);
            let lasts = lengths.into_iter().any(|secs| after.expires == Stamp(now.stamp.0 + secs * 1_000_000));
            let again = state.attempt_start == Some(start);
            let attempt = if again { state.attempt_count + 1 } else { 1 };
            let kept = after.committed == state.committed || after.committed == part.log_start.plus(-1);
            let known = self.ledger.tracks.values().any(|t| t.grants.iter().any(|g| g.lease == Some(after.lease)));
            let fits = lasts
                && kept
                && after.lease.is_some()
                && (!known || pop.lease == Some(after.lease) || self.same_call(index, after.lease))
                && after.retry_count == state.retry_count
                && (after.attempt_start, after.attempt_count) == (Some(start), attempt);
            match after.batch_end {
                Some(end) if fits => end,
                _ => return false,
            }
        };
        let count = end.0 - start.0 + 1;
        let shown = end.0 - start.max(part.log_start).0 + 1;
        let conflating = self.ledger.conflating(case.group, since, self.solo);
        // Of a conflating group one message counts, and it is the newest.
        let within = match conflating {
            _ if !pop.auto_ack && !conflating.contains(&after.conflating) => return false,
            _ if pop.auto_ack => {
                conflating.contains(&true) && self.is_newest(case, end, since, &options)
                    || conflating.contains(&false) && shown <= pop.batch as i64
            }
            _ if after.conflating => self.is_newest(case, end, since, &options),
            _ => count <= pop.batch as i64,
        };
        count >= 1
            && within
            && end <= part.last_offset()
            // The window began with the first message that waited, though retention may have taken that since.
            && options.iter().any(|options| self.visible(case, lowest, end, options))
    }

    /// Whether nothing beyond `end` was surely visible when the pop came. Source: data plane 4.10, invariant 43.
    fn is_newest(&self, case: &Case, end: Offset, since: u64, options: &[Options]) -> bool {
        if !self.solo {
            return true; // What others wrote it may not have heard of.
        }
        let part = &self.ledger.parts[&case.id];
        let beyond = end.plus(1);
        if beyond > part.answered_before(since) {
            return true;
        }
        let stamp = part.messages[beyond.0 as usize].created_at;
        let now = case.now.stamp.0 - self.slack_us - self.stale_us - self.locked_us;
        options.iter().any(|options| options.delay_secs > 0 && stamp.0 + options.delay_secs as i64 * 1_000_000 > now)
    }

    /// A lease that this very pop has put on another partition already.
    fn same_call(&self, index: usize, lease: LeaseId) -> bool {
        let since = self.asks[index].delivered.expect("delivered").t;
        let grants = self.ledger.tracks.values().flat_map(|track| &track.grants);
        let mut of_lease = grants.filter(|grant| grant.lease == Some(lease));
        of_lease.all(|grant| grant.t >= since)
    }

    fn visible(&self, case: &Case, start: Offset, end: Offset, options: &Options) -> bool {
        let part = &self.ledger.parts[&case.id];
        let (first, last) = (part.messages[start.0 as usize].created_at, part.messages[end.0 as usize].created_at);
        let now = case.now.stamp.0 + self.slack_us;
        let waiting = part.last_offset().0 - start.0 + 1;
        let delayed = last.0 + options.delay_secs as i64 * 1_000_000 > now;
        let held = first.0 + options.window_secs as i64 * 1_000_000 > now;
        !delayed && (!held || waiting >= self.window_batch as i64)
    }

    /// Tells the ack sets of a move what it says of them.
    fn tell_fates(&mut self, found: &[Path]) {
        let mut fates: Vec<(usize, usize, Fate)> = Vec::new();
        for path in found {
            for (candidate, judged) in path {
                let (Candidate::Ack(index, set), Some(judged)) = (*candidate, judged) else { continue };
                let sure = found.iter().all(|path| path.iter().any(|(other, _)| other == candidate));
                fates.push((
                    index,
                    set,
                    Fate { items: judged.items.clone(), released: judged.released, conflated: judged.conflated, sure },
                ));
            }
        }
        for (index, set, fate) in fates {
            self.asks[index].fates[set].push(fate);
        }
    }

    fn grant(&mut self, case: &Case, group: GroupId, index: usize) {
        let Ask::Pop(pop) = &self.asks[index].ask else { unreachable!() };
        let auto = pop.auto_ack;
        let part = &self.ledger.parts[&case.id];
        let start = match case.after.attempt_start {
            Some(start) if !auto => start,
            _ => case.before.committed.plus(1),
        };
        let end = if auto { case.after.committed } else { case.after.batch_end.expect("checked") };
        let lease = (!auto).then_some(case.after.lease);
        let attempt = if auto { 1 } else { case.after.attempt_count };
        let lagging = case.before.committed.plus(1) < part.log_start;
        let again = case.before.lease.is_some();
        let conflating = case.after.conflating;
        let grant = Grant { lease, start, end, attempt, conflating, t: case.now.t, answered: false };
        let track = self.ledger.tracks.get_mut(&(case.id, group)).expect("known");
        let redelivered = track.grants.iter().any(|before| before.end >= start);
        track.grants.push(grant);
        for (happened, thing) in [
            (conflating, Thing::Conflated),
            (conflating && start < end, Thing::ConflatedSeveral),
            (lagging, Thing::RetentionUnderLag),
            (again, Thing::LeaseExpired),
            (redelivered, Thing::Redelivered),
            (attempt > 1, Thing::SecondAttempt),
        ] {
            if happened {
                self.hit(thing);
            }
        }
    }

    fn count_moves(&mut self, case: &Case, group: GroupId, path: &Path) {
        for (candidate, judged) in path {
            match (candidate, judged) {
                (Candidate::GiveBack(_), _) => self.hit(Thing::GaveBack),
                (Candidate::Ack(index, set), Some(judged)) => {
                    let Ask::Ack(sets) = &self.asks[*index].ask else { unreachable!() };
                    let lease_less = sets[*set].lease.is_none();
                    let next = judged.next.expect("a step changes something");
                    let thing = if judged.letter.is_some() {
                        Thing::DeadLettered
                    } else if next.retry_count > case.before.retry_count {
                        Thing::Nacked
                    } else if next.lease.is_some() {
                        Thing::CompletedInPart
                    } else if next.attempt_start.is_none() && case.before.batch_end > Some(next.committed) {
                        Thing::Dropped
                    } else if next.attempt_start.is_none() {
                        Thing::Completed
                    } else {
                        Thing::Retried
                    };
                    self.hit(thing);
                    if lease_less {
                        self.hit(Thing::LeaseLess);
                    }
                }
                _ => {}
            }
        }
        let _ = group;
    }
}

/// Two options, or one when they are equal.
pub fn either<T: PartialEq + Copy>(a: T, b: T) -> impl Iterator<Item = T> {
    [Some(a), (a != b).then_some(b)].into_iter().flatten()
}

/// A state after a move.
fn applied(before: &Cursor, to: &CursorTo, version: i64, now: Stamp) -> Cursor {
    let (lease, expires) = match to.lease {
        LeaseTo::Keep => (before.lease, before.expires),
        LeaseTo::Clear => (LeaseId::NONE, Stamp(0)),
        LeaseTo::Set { id, secs, .. } => (id, Stamp(now.0 + secs as i64 * 1_000_000)),
    };
    let conflating = match to.lease {
        LeaseTo::Keep => before.conflating,
        LeaseTo::Clear => false,
        LeaseTo::Set { conflating, .. } => conflating,
    };
    Cursor {
        version,
        committed: to.committed,
        lease,
        expires,
        batch_end: to.batch_end,
        conflating,
        retry_count: to.retry_count,
        attempt_start: to.attempt_start,
        attempt_count: to.attempt_count,
    }
}

/// Equal but for the version.
fn same(a: &Cursor, b: &Cursor) -> bool {
    Cursor { version: 0, ..*a } == Cursor { version: 0, ..*b }
}

/// States a give-back may leave: the claim undone. How far the attempts are undone is left open.
fn given_back(state: &Cursor, after: &Cursor) -> Option<Cursor> {
    let undone = state.attempt_count.saturating_sub(1);
    let fair = after.attempt_count == undone || after.attempt_count == state.attempt_count;
    let next = Cursor {
        lease: LeaseId::NONE,
        expires: Stamp(0),
        batch_end: None,
        conflating: false,
        attempt_start: after.attempt_start,
        attempt_count: after.attempt_count,
        ..*state
    };
    fair.then_some(next)
}
