//! Acks: the set finds its lane and cursor, its keys resolve to offsets, the rules decide, the move makes it true.
//!
//!     ack > start_set: lane, cursor > decide: lease, memo > (read keys of the span, then below the cursor)
//!         > ack::rule > (read the message to dead-letter) > queue_move > verdict
//!
//! Holds: no verdict from memory alone, refusals included: each is confirmed by a move that the row still is as it was
//! when it was decided. Source: data plane 5.4 to 5.6; architecture 13, rules 20 and 21.

use crate::ack::{self, CursorView, Place, RETRIES_EXHAUSTED, Ruled};
use crate::bundle::PreparedSet;
use crate::calls::Pending;
use crate::command::{AckOutcome, AckSet, Record, SetVerdict, Verdict};
use crate::effect::{Call, CursorMove, CursorRow, DeadLetter, FoundLane, KeysRow, LeaseMust, StoreError, key_at};
use crate::ids::{GroupId, Key, LeaseId, Offset, Slot};
use crate::lane::{LaneState, Memo, Ticket};
use crate::limits::KEYS_PAGE;
use crate::moves::{Op, QueuedMove};
use crate::place::LaneKey;
use crate::planted::{Bug, is};
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::tail::{Message, message_of};
use bytes::Bytes;

/// One ack command.
#[derive(Debug)]
pub(crate) struct AckJob {
    slot: Slot,
    sets: Vec<AckSet>,
    verdicts: Vec<Option<SetVerdict>>,
    left: usize,
    /// Of a bundle: nothing is moved here, the moves go back with the verdicts.
    prepares: Option<Box<PreparesSets>>,
}

/// Where the sets of a bundle go.
#[derive(Debug)]
struct PreparesSets {
    job: Ref,
    /// Leases that sets without one of their own may be under.
    leases: Vec<LeaseId>,
    moves: Vec<Option<CursorMove>>,
}

impl AckJob {
    /// The lease that fences a set, given the one its cursor says. Source: data plane 7.2.
    fn lease_of(&self, set: usize, held: LeaseId) -> Option<LeaseId> {
        let named = self.prepares.as_ref().map_or(&[][..], |prepares| &prepares.leases);
        let holder = || named.iter().copied().find(|lease| *lease == held).or(named.first().copied());
        self.sets[set].lease.or_else(holder)
    }
}

/// A set whose keys are being looked for in the store.
#[derive(Debug)]
pub(crate) struct Resolving {
    pub ticket: Ticket,
    pub lane: Ref,
    pub group: Ref,
    places: Vec<Option<Place>>,
    /// The range still to be read, inclusive.
    from: Offset,
    to: Offset,
    stage: Stage,
    tries: u8,
}

/// Where keys are looked for, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The message that a conflating lease delivered.
    Delivered,
    /// The ackable span, upwards.
    Span,
    /// At and below the cursor, newest first.
    Below,
}

impl Shard {
    pub(crate) fn ack(&mut self, slot: Slot, sets: Vec<AckSet>) {
        if sets.is_empty() {
            return self.reply(slot, Verdict::Ack(Vec::new()));
        }
        let n = sets.len();
        let job = self.acks.insert(AckJob { slot, sets, verdicts: vec![None; n], left: n, prepares: None });
        for set in 0..n {
            self.start_set(Ticket { job, set });
        }
    }

    /// Decides the sets of a bundle as acks are decided, and moves nothing.
    pub(crate) fn prepare_sets(&mut self, prepare: Ref, sets: Vec<AckSet>, leases: Vec<LeaseId>) {
        let n = sets.len();
        if n == 0 {
            return self.sets_prepared(prepare, Vec::new());
        }
        let prepares = Some(Box::new(PreparesSets { job: prepare, leases, moves: vec![None; n] }));
        let job = self.acks.insert(AckJob { slot: Slot(0), sets, verdicts: vec![None; n], left: n, prepares });
        for set in 0..n {
            self.start_set(Ticket { job, set });
        }
    }

    /// Finds lane and cursor of a set, then decides it; or waits for either.
    pub(crate) fn start_set(&mut self, ticket: Ticket) {
        let set = &self.acks[ticket.job].sets[ticket.set];
        let (tenant, partition) = (set.tenant, set.partition);
        let Some(lane_ref) = self.lanes.by_number(partition) else {
            let call = Call::FindPartitions { tenant, ids: vec![partition] };
            return self.ask(call, Pending::FindPartition { ticket });
        };
        if self.lanes[lane_ref].key.tenant != tenant {
            return self.refuse_set(ticket, AckOutcome::NotOwned);
        }
        let name = set.group.clone();
        let group = self.queues.group(self.lanes[lane_ref].queue, &name);
        let lane = &mut self.lanes[lane_ref];
        let read = group.and_then(|g| lane.cursor_mut(g)).filter(|c| c.busy || c.row.is_some());
        match (group, read) {
            (Some(_), Some(cursor)) if cursor.busy => cursor.waiting.push_back(ticket),
            (Some(group), Some(cursor)) => {
                cursor.busy = true;
                self.decide(ticket, lane_ref, group, 0);
            }
            _ => {
                let call = Call::FindCursor { partition, group: name };
                self.ask(call, Pending::FindCursor { ticket, lane: lane_ref });
            }
        }
    }

    pub(crate) fn partition_found(&mut self, ticket: Ticket, found: Result<Option<FoundLane>, StoreError>) {
        if self.is_stale() && found.is_ok() {
            return self.start_set(ticket);
        }
        let set = &self.acks[ticket.job].sets[ticket.set];
        match found {
            Ok(Some(found)) => {
                let key = LaneKey::new(set.tenant, found.queue, found.partition);
                let partition = set.partition;
                let at = self.lane_entry(&key);
                if self.lanes[at].id.0 != 0 && self.lanes[at].id != partition {
                    // Remembered under another number: the partition was removed and made again.
                    self.forget_lane(at);
                }
                let at = self.lane_entry(&key);
                if self.lanes[at].state == LaneState::Unknown {
                    self.know_lane(at, found.row);
                } else if self.lanes[at].id.0 == 0 {
                    // A provisioning is under way; what it will say is known already.
                    self.lanes.identify(at, partition);
                }
                self.start_set(ticket);
            }
            Ok(None) => self.refuse_set(ticket, AckOutcome::NotOwned),
            Err(_) => self.refuse_set(ticket, AckOutcome::StoreFailed),
        }
    }

    pub(crate) fn cursor_found(
        &mut self,
        ticket: Ticket,
        lane_ref: Ref,
        found: Result<Option<(GroupId, CursorRow)>, StoreError>,
    ) {
        let Some(lane) = self.lanes.slab.get(lane_ref) else { return self.start_set(ticket) };
        if self.is_stale() && found.is_ok() {
            return self.start_set(ticket);
        }
        match found {
            Ok(Some((id, row))) => {
                let name = self.acks[ticket.job].sets[ticket.set].group.clone();
                let queue = lane.queue;
                let group = self.queues.group_entry(queue, &name);
                let state = &mut self.queues.groups[group];
                let opening = state.state == GroupState::Opening;
                if state.id != id && !opening {
                    // Never met, or made again under its name.
                    state.state = GroupState::Unknown;
                    state.registered = false;
                    state.conflation = None;
                }
                state.id = id;
                if state.state == GroupState::Unknown {
                    state.state = GroupState::Met;
                }
                let now = self.now;
                let cursor = self.lanes[lane_ref].cursor_entry(group);
                if cursor.row.is_none() && !cursor.busy {
                    cursor.learn(row, now);
                }
                self.start_set(ticket);
            }
            Ok(None) => self.refuse_set(ticket, AckOutcome::ConsumerNotFound),
            Err(_) => self.refuse_set(ticket, AckOutcome::StoreFailed),
        }
    }

    /// Decides a set on the row as remembered. The cursor is busy and stays so until the move is settled.
    pub(crate) fn decide(&mut self, ticket: Ticket, lane_ref: Ref, group: Ref, tries: u8) {
        let now = self.now;
        let set = &self.acks[ticket.job].sets[ticket.set];
        let lane = &self.lanes[lane_ref];
        let cursor = lane.cursor(group).expect("a busy cursor");
        let Some(row) = cursor.row else {
            // Forgotten while it waited: read it again.
            self.free_cursor(lane_ref, group);
            return self.start_set(ticket);
        };
        if let Some(lease) = self.acks[ticket.job].lease_of(ticket.set, row.lease) {
            let must = match (lease == row.lease && lease.is_some(), cursor.leased(now)) {
                (true, true) => None,
                (true, false) => Some(LeaseMust::Over),
                (false, _) => Some(LeaseMust::Any),
            };
            if let Some(must) = must.filter(|_| !is(Bug::AckWithoutLease)) {
                let refused = SetVerdict::all(AckOutcome::InvalidLease, set.items.len());
                return self.move_set(ticket, lane_ref, group, tries, must, refused, None, None);
            }
        }
        let view = view(&row, cursor.leased(now));
        let (from, to) = ack::span(&view, lane.end);
        let memo = cursor.memo.as_deref();
        let covering = memo.filter(|memo| memo.start <= from && to <= memo.end);
        let delivered = ack::delivered(&view);
        let known = delivered.is_none_or(|at| memo.is_some_and(|memo| memo.start <= at && at <= memo.end));
        let place = |key: Key| {
            // The message that was delivered comes before an equal key further down.
            let delivered = delivered.and_then(|at| place_in(memo, key, at, at));
            delivered.filter(|place| matches!(place, Place::Span(_))).or_else(|| place_in(covering, key, from, to))
        };
        let places: Vec<Option<Place>> = match known {
            true => set.items.iter().map(|item| place(item.key)).collect(),
            false => vec![None; set.items.len()],
        };
        if places.iter().all(Option::is_some) {
            return self.rule_set(ticket, lane_ref, group, tries, places);
        }
        let mut resolving = Resolving { ticket, lane: lane_ref, group, places, from, to, stage: Stage::Span, tries };
        match delivered.filter(|_| !known) {
            Some(at) => {
                (resolving.stage, resolving.from, resolving.to) = (Stage::Delivered, at, at);
                self.read_span(resolving);
            }
            None if covering.is_some() || from > to => self.resolve_below(resolving),
            None => self.read_span(resolving),
        }
    }

    fn read_span(&mut self, resolving: Resolving) {
        let Resolving { from, to, stage, .. } = resolving;
        let partition = self.lanes[resolving.lane].id;
        let newest_first = stage == Stage::Below;
        let call = Call::ReadKeys { partition, from, to, since: None, limit: KEYS_PAGE, newest_first };
        self.ask(call, Pending::Resolve(resolving));
    }

    /// What the delivered message is not is looked for in the rest of its span.
    fn resolve_span(&mut self, mut resolving: Resolving) {
        let Some(lane) = self.lanes.slab.get(resolving.lane) else { return self.start_set(resolving.ticket) };
        let Some(row) = lane.cursor(resolving.group).and_then(|cursor| cursor.row) else {
            self.free_cursor(resolving.lane, resolving.group);
            return self.start_set(resolving.ticket);
        };
        resolving.stage = Stage::Span;
        (resolving.from, resolving.to) = ack::span(&view(&row, false), lane.end);
        self.read_span(resolving);
    }

    /// What is not in the span is looked for at and below the cursor, newest first, as far as there is evidence.
    fn resolve_below(&mut self, mut resolving: Resolving) {
        let Some(lane) = self.lanes.slab.get(resolving.lane) else { return self.start_set(resolving.ticket) };
        let committed = lane.cursor(resolving.group).and_then(|c| c.row).map_or(Offset::NONE, |row| row.committed);
        let set = &self.acks[resolving.ticket.job].sets[resolving.ticket.set];
        for (place, item) in resolving.places.iter_mut().zip(&set.items) {
            if place.is_none() && lane.window.find(item.key, Offset(0), committed).is_some() {
                *place = Some(Place::Below);
            }
        }
        if committed == Offset::NONE || resolving.places.iter().all(Option::is_some) {
            return self.resolved(resolving);
        }
        resolving.stage = Stage::Below;
        (resolving.from, resolving.to) = (Offset(0), committed);
        self.read_span(resolving);
    }

    pub(crate) fn keys_read(&mut self, mut resolving: Resolving, page: Result<(Vec<KeysRow>, bool), StoreError>) {
        let Some(lane) = self.lanes.slab.get(resolving.lane) else { return self.start_set(resolving.ticket) };
        if lane.cursor(resolving.group).is_none() {
            return self.start_set(resolving.ticket);
        }
        let Ok((rows, complete)) = page else {
            let n = resolving.places.len();
            self.free_cursor(resolving.lane, resolving.group);
            return self.finish_set(resolving.ticket, SetVerdict::all(AckOutcome::StoreFailed, n));
        };
        let set = &self.acks[resolving.ticket.job].sets[resolving.ticket.set];
        let (from, to) = (resolving.from, resolving.to);
        for (place, item) in resolving.places.iter_mut().zip(&set.items).filter(|(place, _)| place.is_none()) {
            let found = rows.iter().find_map(|row| find_key(row.base, &row.keys, item.key, from, to));
            *place = found.map(|offset| match resolving.stage {
                Stage::Below => Place::Below,
                Stage::Delivered | Stage::Span => Place::Span(offset),
            });
        }
        let done = resolving.places.iter().all(Option::is_some);
        match (rows.first(), rows.last()) {
            _ if done => self.resolved(resolving),
            _ if resolving.stage == Stage::Delivered => self.resolve_span(resolving),
            (Some(first), Some(last)) if !complete => {
                if resolving.stage == Stage::Below {
                    resolving.to = first.base.plus(-1);
                } else {
                    resolving.from = last.base.plus(last.keys.len() as i64 / 16);
                }
                self.read_span(resolving);
            }
            _ if resolving.stage == Stage::Below => self.resolved(resolving),
            _ => self.resolve_below(resolving),
        }
    }

    fn resolved(&mut self, resolving: Resolving) {
        let Resolving { ticket, lane, group, places, tries, .. } = resolving;
        self.rule_set(ticket, lane, group, tries, places);
    }

    fn rule_set(&mut self, ticket: Ticket, lane_ref: Ref, group: Ref, tries: u8, places: Vec<Option<Place>>) {
        let now = self.now;
        let places: Vec<Place> = places.into_iter().map(|place| place.unwrap_or(Place::Unknown)).collect();
        let set = &self.acks[ticket.job].sets[ticket.set];
        let lane = &self.lanes[lane_ref];
        let cursor = lane.cursor(group).expect("a busy cursor");
        let row = cursor.row.expect("a decided row");
        let options = self.queues.slab[lane.queue].options();
        let view = view(&row, cursor.leased(now));
        let ruled = ack::rule(&view, &places, &set.items, options.retry_limit, options.dead_letter);
        let fenced = self.acks[ticket.job].lease_of(ticket.set, row.lease).is_some();
        let must = if fenced && !is(Bug::AckWithoutLease) { LeaseMust::Live } else { LeaseMust::Any };
        let Some(at) = ruled.dead_letter else {
            let to = ruled.to;
            return self.move_set(ticket, lane_ref, group, tries, must, verdict(ruled), to, None);
        };
        if let Some(message) = lane.tail.message(at.offset) {
            return self.dead_letter(ticket, lane_ref, group, tries, ruled, message);
        }
        let call = Call::ReadRecords { partition: lane.id, from: at.offset, to: at.offset, bytes: 1, messages: 1 };
        self.ask(call, Pending::ReadPoison { ticket, lane: lane_ref, group, tries, ruled });
    }

    pub(crate) fn poison_read(
        &mut self,
        (ticket, lane, group, tries, ruled): (Ticket, Ref, Ref, u8, Ruled),
        read: Result<Vec<Record>, StoreError>,
    ) {
        if self.lanes.slab.get(lane).is_none_or(|l| l.cursor(group).is_none()) {
            return self.start_set(ticket);
        }
        let at = ruled.dead_letter.expect("read for it").offset;
        let Ok(records) = read else {
            self.free_cursor(lane, group);
            return self.finish_set(ticket, SetVerdict::all(AckOutcome::StoreFailed, ruled.outcomes.len()));
        };
        if let Some(message) = records.iter().find_map(|record| message_of(record, at)) {
            return self.dead_letter(ticket, lane, group, tries, ruled, message);
        }
        // Without the record nothing of the set is done; items that take no part in it keep their own outcome.
        let rejected = |outcome: AckOutcome| match outcome {
            AckOutcome::Accepted | AckOutcome::DeadLettered => AckOutcome::DlqRejected,
            other => other,
        };
        let items = ruled.outcomes.into_iter().map(rejected).collect();
        let leased = self.acks[ticket.job].sets[ticket.set].lease.is_some();
        let must = if leased { LeaseMust::Live } else { LeaseMust::Any };
        let rejected = SetVerdict { items, released: false, conflated: None };
        self.move_set(ticket, lane, group, tries, must, rejected, None, None);
    }

    fn dead_letter(&mut self, ticket: Ticket, lane: Ref, group: Ref, tries: u8, ruled: Ruled, message: Message) {
        let at = ruled.dead_letter.expect("ruled so");
        let set = &self.acks[ticket.job].sets[ticket.set];
        let error = at.error.and_then(|i| set.items[i].error.clone()).unwrap_or_else(|| RETRIES_EXHAUSTED.into());
        let letter = DeadLetter {
            offset: at.offset,
            id: message.id,
            transaction_id: message.transaction_id,
            payload: if is(Bug::DeadLetterWithoutPayload) { Bytes::new() } else { message.payload },
            encrypted: message.encrypted,
            error,
            retry_count: at.retry_count,
        };
        let fenced = self.acks[ticket.job].lease_of(ticket.set, LeaseId::NONE).is_some();
        let must = if fenced { LeaseMust::Live } else { LeaseMust::Any };
        let to = ruled.to;
        self.move_set(ticket, lane, group, tries, must, verdict(ruled), to, Some(letter));
    }

    #[allow(clippy::too_many_arguments)]
    fn move_set(
        &mut self,
        ticket: Ticket,
        lane: Ref,
        group: Ref,
        tries: u8,
        lease: LeaseMust,
        verdict: SetVerdict,
        to: Option<crate::effect::CursorTo>,
        dead_letter: Option<DeadLetter>,
    ) {
        let version = self.lanes[lane].cursor(group).and_then(|c| c.row).expect("a decided row").version;
        let partition = self.lanes[lane].id;
        let group_id = self.queues.groups[group].id;
        let cursor_move = CursorMove { partition, group: group_id, version, lease, to, dead_letter };
        if let Some(prepares) = &mut self.acks[ticket.job].prepares {
            prepares.moves[ticket.set] = Some(cursor_move);
            self.free_cursor(lane, group);
            return self.finish_set(ticket, verdict);
        }
        let op = Op::Ack { ticket, verdict };
        self.queue_move(QueuedMove { lane, group, tries, busy: 0, cursor_move, op });
    }

    fn refuse_set(&mut self, ticket: Ticket, outcome: AckOutcome) {
        let n = self.acks[ticket.job].sets[ticket.set].items.len();
        self.finish_set(ticket, SetVerdict::all(outcome, n));
    }

    pub(crate) fn finish_set(&mut self, ticket: Ticket, verdict: SetVerdict) {
        let job = &mut self.acks[ticket.job];
        debug_assert!(job.verdicts[ticket.set].is_none(), "one verdict per set");
        job.verdicts[ticket.set] = Some(verdict);
        job.left -= 1;
        if job.left == 0 {
            let job = self.acks.remove(ticket.job).expect("a live job");
            let verdicts = job.verdicts.into_iter().map(|v| v.expect("all are in"));
            let Some(prepares) = job.prepares else { return self.reply(job.slot, Verdict::Ack(verdicts.collect())) };
            let sets = verdicts.zip(prepares.moves);
            let sets = sets.map(|(verdict, cursor_move)| PreparedSet { items: verdict.items, cursor_move }).collect();
            self.sets_prepared(prepares.job, sets);
        }
    }
}

fn verdict(ruled: Ruled) -> SetVerdict {
    SetVerdict { items: ruled.outcomes, released: ruled.released, conflated: ruled.conflated }
}

fn view(row: &CursorRow, has_lease: bool) -> CursorView {
    CursorView {
        committed: row.committed,
        batch_end: row.batch_end,
        conflating: row.conflating,
        retry_count: row.retry_count,
        attempt_start: row.attempt_start,
        attempt_count: row.attempt_count,
        has_lease,
    }
}

/// Where the memory of a lease places a key, when it covers the span: in it, below it, or it does not say.
fn place_in(memo: Option<&Memo>, key: Key, from: Offset, to: Offset) -> Option<Place> {
    let memo = memo?;
    let within = memo.keys.iter().find_map(|(base, keys)| find_key(*base, keys, key, from, to));
    if let Some(offset) = within {
        return Some(Place::Span(offset));
    }
    let below = from.plus(-1);
    let settled = memo.keys.iter().find_map(|(base, keys)| find_key(*base, keys, key, Offset(0), below));
    settled.map(|_| Place::Below)
}

/// Lowest offset in `from..=to` of a row that has the key.
fn find_key(base: Offset, keys: &[u8], key: Key, from: Offset, to: Offset) -> Option<Offset> {
    let n = keys.len() as i64 / 16;
    let first = (from.0 - base.0).max(0);
    let last = (to.0 - base.0).min(n - 1);
    (first..=last).find(|&i| key_at(keys, i as usize) == key).map(|i| base.plus(i))
}
