//! Acks: the set finds its lane and cursor, its keys resolve to offsets, the rules decide, the move makes it true.
//!
//!     ack > start_set: lane, cursor > decide: lease, memo > (read keys of the span, then below the cursor)
//!         > ack::rule > (read the message to dead-letter) > queue_move > verdict
//!
//! Holds: no verdict from memory alone, refusals included: each is confirmed by a move that the row still is as it was
//! when it was decided. Source: data plane 5.4 to 5.6; rules 20 and 21.

use crate::ack::{self, CursorView, Place, RETRIES_EXHAUSTED, Ruled};
use crate::bundle::PreparedSet;
use crate::calls::Pending;
use crate::command::{AckOutcome, AckSet, Record, SetVerdict, Verdict};
use crate::effect::{Call, CursorMove, CursorRow, DeadLetter, FoundLane, KeysRow, LeaseMust, StoreError};
use crate::ids::{GroupId, LeaseId, Offset, Slot, Stamp};
use crate::lane::{LaneState, Ticket};
use crate::limits::{ACK_MEMORY_SECS, BELOW_PAGES_MAX, KEYS_PAGE};
use crate::memo::Memo;
use crate::moves::{Op, QueuedMove};
use crate::place::LaneKey;
use crate::planted::{Bug, is};
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::sought::Sought;
use crate::tail::{Message, message_of};
use bytes::Bytes;
use std::sync::Arc;

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
    /// Leases that sets without one of their own may be under, sorted; and which of them was named first.
    leases: Vec<LeaseId>,
    first: Option<LeaseId>,
    /// With the queue of each.
    moves: Vec<Option<(CursorMove, Arc<str>)>>,
}

impl AckJob {
    /// The lease that fences a set, given the one its cursor says. Source: data plane 7.2.
    fn lease_of(&self, set: usize, held: LeaseId) -> Option<LeaseId> {
        let holder = || {
            let PreparesSets { leases, first, .. } = self.prepares.as_deref()?;
            if leases.binary_search(&held).is_ok() { Some(held) } else { *first }
        };
        self.sets[set].lease.or_else(holder)
    }

    /// Whether a set names another lease than the one its cursor has.
    pub(crate) fn is_refused(&self, set: usize, held: LeaseId) -> bool {
        self.prepares.is_none() && self.sets[set].lease.is_some_and(|lease| lease != held)
    }
}

/// A set whose keys are being looked for in the store.
#[derive(Debug)]
pub(crate) struct Resolving {
    pub ticket: Ticket,
    pub lane: Ref,
    pub group: Ref,
    sought: Sought,
    /// The range still to be read, inclusive.
    from: Offset,
    to: Offset,
    stage: Stage,
    /// Pages read below the cursor.
    pages: u32,
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
    pub(crate) fn prepare_sets(&mut self, prepare: Ref, sets: Vec<AckSet>, mut leases: Vec<LeaseId>) {
        let n = sets.len();
        if n == 0 {
            return self.sets_prepared(prepare, Vec::new());
        }
        let first = leases.first().copied();
        leases.sort_unstable();
        let prepares = Some(Box::new(PreparesSets { job: prepare, leases, first, moves: vec![None; n] }));
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
            return self.finds.find_partition(tenant, partition, ticket);
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
            _ => self.finds.find_cursor(lane_ref, name, ticket),
        }
    }

    /// `tickets`: the sets that wait for each of the partitions, in order.
    pub(crate) fn partitions_found(
        &mut self,
        tickets: Vec<Vec<Ticket>>,
        found: Result<Vec<Option<FoundLane>>, StoreError>,
    ) {
        let found = match found {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); tickets.len()],
        };
        for (tickets, found) in tickets.into_iter().zip(found) {
            for ticket in tickets {
                self.partition_found(ticket, found.clone());
            }
        }
    }

    fn partition_found(&mut self, ticket: Ticket, found: Result<Option<FoundLane>, StoreError>) {
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

    /// `waiting`: the lane of each of the cursors, and the sets that wait for it, in order.
    pub(crate) fn cursors_found(
        &mut self,
        waiting: Vec<(Ref, Vec<Ticket>)>,
        found: Result<Vec<Option<(GroupId, CursorRow)>>, StoreError>,
    ) {
        let found = match found {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); waiting.len()],
        };
        for ((lane, tickets), found) in waiting.into_iter().zip(found) {
            for ticket in tickets {
                self.cursor_found(ticket, lane, found.clone());
            }
        }
    }

    fn cursor_found(&mut self, ticket: Ticket, lane_ref: Ref, found: Result<Option<(GroupId, CursorRow)>, StoreError>) {
        let Some(lane) = self.lanes.slab.get(lane_ref) else { return self.start_set(ticket) };
        if self.is_stale() && found.is_ok() {
            return self.start_set(ticket);
        }
        match found {
            Ok(Some((id, row))) => {
                let name = self.acks[ticket.job].sets[ticket.set].group.clone();
                let queue = lane.queue;
                let group = self.queues.group_entry(queue, &name, self.now);
                let known = self.queues.groups[group].id;
                if known != id && known.0 != 0 {
                    // Made again under its name.
                    self.forget_group(group);
                }
                let state = &mut self.queues.groups[group];
                state.id = id;
                if state.state == GroupState::Unknown {
                    state.state = GroupState::Met;
                }
                let (now, asked) = (self.now, self.asked);
                let cursor = self.lanes[lane_ref].cursor_entry(group);
                if cursor.lacks_row(asked) {
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
        let mut sought = Sought::of(&set.items);
        if known {
            // The message that was delivered comes before an equal key further down.
            delivered.into_iter().for_each(|at| look_in(memo, &mut sought, (at, at), Place::Span));
            look_in(covering, &mut sought, (from, to), Place::Span);
            look_in(covering, &mut sought, (Offset(0), from.plus(-1)), |_| Place::Below);
        }
        if sought.all_found() {
            return self.rule_set(ticket, lane_ref, group, tries, &sought);
        }
        let (lane, stage) = (lane_ref, Stage::Span);
        let mut resolving = Resolving { ticket, lane, group, sought, from, to, stage, pages: 0, tries };
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
        resolving.sought.find_below(|key| lane.window.find(key, Offset(0), committed).is_some());
        if committed == Offset::NONE || resolving.sought.all_found() {
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
            self.free_cursor(resolving.lane, resolving.group);
            return self.refuse_set(resolving.ticket, AckOutcome::StoreFailed);
        };
        let (range, stage) = ((resolving.from, resolving.to), resolving.stage);
        for row in &rows {
            resolving.sought.look(row.base, &row.keys, range, |offset| match stage {
                Stage::Below => Place::Below,
                Stage::Delivered | Stage::Span => Place::Span(offset),
            });
        }
        let done = resolving.sought.all_found();
        match (rows.first(), rows.last()) {
            _ if done => self.resolved(resolving),
            _ if resolving.stage == Stage::Delivered => self.resolve_span(resolving),
            (Some(first), Some(last)) if !complete => {
                if resolving.stage == Stage::Below {
                    resolving.pages += 1;
                    if BELOW_PAGES_MAX <= resolving.pages && first.created_at < self.remembered_since(resolving.lane) {
                        return self.resolved(resolving);
                    }
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

    /// Keys stored before this need not be known to acks. Source: data plane 5.5, resolution window.
    fn remembered_since(&self, lane: Ref) -> Stamp {
        let options = self.queues.slab[self.lanes[lane].queue].options();
        let secs = options.dedup_secs.max(options.completed_secs).max(ACK_MEMORY_SECS);
        Stamp(self.stamp().0 - secs as i64 * 1_000_000)
    }

    fn resolved(&mut self, resolving: Resolving) {
        let Resolving { ticket, lane, group, sought, tries, .. } = resolving;
        self.rule_set(ticket, lane, group, tries, &sought);
    }

    fn rule_set(&mut self, ticket: Ticket, lane_ref: Ref, group: Ref, tries: u8, sought: &Sought) {
        let now = self.now;
        let set = &self.acks[ticket.job].sets[ticket.set];
        let places = sought.places(&set.items);
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
            prepares.moves[ticket.set] = Some((cursor_move, self.lanes[lane].key.queue.clone()));
            self.free_cursor(lane, group);
            return self.finish_set(ticket, verdict);
        }
        let op = Op::Ack { ticket, verdict, with: Vec::new() };
        self.queue_move(QueuedMove { lane, group, tries, busy: 0, cursor_move, op });
    }

    pub(crate) fn refuse_set(&mut self, ticket: Ticket, outcome: AckOutcome) {
        let n = self.acks[ticket.job].sets[ticket.set].items.len();
        self.finish_set(ticket, SetVerdict::all(outcome, n));
    }

    pub(crate) fn finish_set(&mut self, ticket: Ticket, verdict: SetVerdict) {
        let job = &self.acks[ticket.job];
        debug_assert!(job.verdicts[ticket.set].is_none(), "one verdict per set");
        let failed = verdict.items.iter().filter(|outcome| !outcome.is_success()).count();
        // Of a bundle that is refused nothing happened.
        if failed > 0 && job.prepares.is_none() {
            let AckSet { tenant, partition, .. } = job.sets[ticket.set];
            self.count_ack_failed(tenant, partition, failed as u64);
        }
        let job = &mut self.acks[ticket.job];
        job.verdicts[ticket.set] = Some(verdict);
        job.left -= 1;
        if job.left == 0 {
            let job = self.acks.remove(ticket.job).expect("a live job");
            let verdicts = job.verdicts.into_iter().map(|v| v.expect("all are in"));
            let Some(prepares) = job.prepares else { return self.reply(job.slot, Verdict::Ack(verdicts.collect())) };
            let sets = verdicts.zip(prepares.moves).map(|(verdict, moved)| {
                let (cursor_move, queue) = moved.unzip();
                let conflated = verdict.conflated.map_or(0, |conflated| conflated.messages);
                PreparedSet { items: verdict.items, cursor_move, queue, conflated }
            });
            self.sets_prepared(prepares.job, sets.collect());
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

/// Looks through what a lease handed out.
fn look_in(memo: Option<&Memo>, sought: &mut Sought, range: (Offset, Offset), place: impl Fn(Offset) -> Place) {
    for (base, keys) in memo.into_iter().flat_map(|memo| &memo.keys) {
        sought.look(*base, keys, range, &place);
    }
}

#[cfg(test)]
mod tests;
