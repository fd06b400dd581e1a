//! Claims, acks and give-backs: compare-and-set moves of cursors, fused over many consumers.
//!
//!     queue_move > close_moves > Effect::Move > settle_moves > the operation goes on, or looks again
//!
//! Holds: a cursor that is `busy` has at most one move waiting or in flight; no verdict without its move.

use crate::command::{AckOutcome, Claim, SetVerdict};
use crate::effect::{CursorMove, CursorOutcome, CursorTo, Effect, LeaseMust, LeaseTo, MoveOutcome, StoreError};
use crate::ids::{CommitId, GroupId, LeaseId, Micros, Offset, PartitionId};
use crate::lane::Ticket;
use crate::limits::{BUSY_CLAIMS_MAX, BUSY_MOVES_MAX, BUSY_TRIES, BUSY_WAIT_US, COMMIT_MOVES_MAX, STALE_TRIES};
use crate::shard::Shard;
use crate::slab::Ref;
use crate::timers::Timer;
use std::collections::VecDeque;

/// What a move is for.
#[derive(Debug)]
pub(crate) enum Op {
    Claim {
        job: Ref,
        claim: Claim,
        lease: Option<LeaseId>,
    },
    /// `with`: sets that waited when the move was sent and are refused by the same word of the store.
    Ack {
        ticket: Ticket,
        verdict: SetVerdict,
        with: Vec<Ticket>,
    },
    /// `job`: a pop whose claim came to nothing, which goes on afterwards.
    GiveBack {
        job: Option<Ref>,
    },
}

#[derive(Debug)]
pub(crate) struct QueuedMove {
    pub lane: Ref,
    pub group: Ref,
    /// Times it met a changed row.
    pub tries: u8,
    /// Times it met a locked row.
    pub busy: u16,
    pub cursor_move: CursorMove,
    pub op: Op,
}

#[derive(Debug, Default)]
pub(crate) struct Moves {
    waiting: VecDeque<QueuedMove>,
    /// Moves whose row was locked again and again: they wait for [`Timer::Moves`].
    resting: Vec<QueuedMove>,
    in_flight: Option<(CommitId, Micros, Vec<QueuedMove>)>,
}

impl Shard {
    pub(crate) fn queue_move(&mut self, queued: QueuedMove) {
        self.moves.waiting.push_back(queued);
    }

    /// What was decided and not sent.
    pub(crate) fn take_waiting_moves(&mut self) -> Vec<QueuedMove> {
        self.moves.waiting.drain(..).chain(self.moves.resting.drain(..)).collect()
    }

    /// Sends the waiting moves as one commit, unless one is in flight.
    pub(crate) fn close_moves(&mut self) {
        if self.moves.in_flight.is_some() || self.moves.waiting.is_empty() {
            return;
        }
        let n = self.moves.waiting.len().min(COMMIT_MOVES_MAX);
        let mut batch: Vec<QueuedMove> = self.moves.waiting.drain(..n).collect();
        batch.iter_mut().for_each(|queued| self.refuse_together(queued));
        self.commits += 1;
        let commit = CommitId(self.commits);
        let moves = batch.iter().map(|queued| queued.cursor_move.clone()).collect();
        self.moves.in_flight = Some((commit, self.now, batch));
        self.effects.push(Effect::Move { commit, moves });
    }

    pub(crate) fn settle_moves(&mut self, commit: CommitId, result: Result<MoveOutcome, StoreError>) {
        let Some((_, sent, batch)) = self.moves.in_flight.take_if(|(id, ..)| *id == commit) else { return };
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(_) => {
                return batch.into_iter().for_each(|mut queued| {
                    self.part(&mut queued);
                    self.move_failed(queued);
                });
            }
        };
        self.read_clock(outcome.now, sent);
        for (queued, outcome) in batch.into_iter().zip(outcome.moves) {
            self.settle_move(queued, outcome);
        }
    }

    /// A confirmation that a set's lease is not the one of the row refuses every set that waits with a third one.
    fn refuse_together(&mut self, queued: &mut QueuedMove) {
        let Op::Ack { verdict, with, .. } = &mut queued.op else { return };
        let any_lease = queued.cursor_move.to.is_none() && queued.cursor_move.lease == LeaseMust::Any;
        if !any_lease || verdict.items.first() != Some(&AckOutcome::InvalidLease) {
            return;
        }
        let Some(cursor) = self.lanes.slab.get_mut(queued.lane).and_then(|l| l.cursor_mut(queued.group)) else {
            return;
        };
        let Some(row) = cursor.row else { return };
        let acks = &self.acks;
        cursor.waiting.retain(|ticket| {
            let job = &acks[ticket.job];
            let refused = job.is_refused(ticket.set, row.lease);
            if refused {
                with.push(*ticket);
            }
            !refused
        });
    }

    /// Nothing was confirmed: what would have been refused with it waits on.
    fn part(&mut self, queued: &mut QueuedMove) {
        let Op::Ack { with, .. } = &mut queued.op else { return };
        let with = std::mem::take(with);
        match self.lanes.slab.get_mut(queued.lane).and_then(|l| l.cursor_mut(queued.group)) {
            Some(cursor) => with.into_iter().rev().for_each(|ticket| cursor.waiting.push_front(ticket)),
            None => with.into_iter().for_each(|ticket| self.start_set(ticket)),
        }
    }

    fn settle_move(&mut self, mut queued: QueuedMove, outcome: CursorOutcome) {
        let now = self.now;
        if !matches!(outcome, CursorOutcome::Moved { .. }) {
            self.part(&mut queued);
        }
        let Some(lane) = self.lanes.slab.get_mut(queued.lane) else {
            // The queue was deleted meanwhile, or the store is another one; the claim, if it was made, is void. An ack that was
            // made is answered so: again, it would be charged twice.
            return match (outcome, queued) {
                (CursorOutcome::Moved { .. }, QueuedMove { op: Op::Ack { ticket, verdict, with }, .. }) => {
                    self.finish_sets(ticket, verdict, with)
                }
                (_, queued) => self.abandon(queued),
            };
        };
        match outcome {
            CursorOutcome::Moved { version, lease_left_us, last_offset, log_start } => {
                lane.saw_end(last_offset, self.now);
                lane.log_start = lane.log_start.max(log_start);
                let cursor = lane.cursor_entry(queued.group);
                if let (Some(mut row), Some(to)) = (cursor.row, queued.cursor_move.to) {
                    apply(&mut row, &to, version);
                    row.lease_left_us = lease_left_us;
                    cursor.learn(row, now);
                }
                self.moved(queued);
            }
            CursorOutcome::Stale { row, last_offset, log_start } => {
                lane.saw_end(last_offset, self.now);
                lane.log_start = lane.log_start.max(log_start);
                lane.cursor_entry(queued.group).learn(row, now);
                self.look_again(queued);
            }
            CursorOutcome::Busy => {
                queued.busy += 1;
                let claims = matches!(queued.op, Op::Claim { .. });
                let most = if claims { BUSY_CLAIMS_MAX } else { BUSY_MOVES_MAX };
                if queued.busy <= BUSY_TRIES as u16 {
                    self.queue_move(queued);
                } else if queued.busy <= most {
                    self.rest(queued);
                } else if claims {
                    self.leave_locked(queued);
                } else {
                    self.move_failed(queued);
                }
            }
            CursorOutcome::Unknown => self.move_failed(queued),
            CursorOutcome::Gone => {
                self.cursors_gone(queued.group, queued.cursor_move.group, vec![queued.lane]);
                self.abandon(queued);
            }
        }
    }

    /// A claim whose row stays locked: the pop answers with what else it has.
    fn leave_locked(&mut self, queued: QueuedMove) {
        let QueuedMove { lane, group, op, .. } = queued;
        self.free_cursor(lane, group);
        if let Op::Claim { job, claim, .. } = op {
            self.stop_pop(job);
            self.unclaimed(job, &claim);
        }
    }

    fn rest(&mut self, queued: QueuedMove) {
        if self.moves.resting.is_empty() {
            self.arm(self.now.plus(BUSY_WAIT_US), Timer::Moves);
        }
        self.moves.resting.push(queued);
    }

    pub(crate) fn rested(&mut self) {
        self.moves.waiting.extend(self.moves.resting.drain(..));
    }

    /// The move was written.
    fn moved(&mut self, queued: QueuedMove) {
        let QueuedMove { lane, group, op, .. } = queued;
        match op {
            Op::Claim { job, claim, lease } => self.claimed(job, lane, group, claim, lease),
            Op::Ack { ticket, verdict, with } => {
                self.free_cursor(lane, group);
                let accepted =
                    |outcome: &&AckOutcome| matches!(outcome, AckOutcome::Accepted | AckOutcome::DeadLettered);
                let conflated = verdict.conflated.map_or(0, |conflated| conflated.messages);
                self.count_acked(lane, verdict.items.iter().filter(accepted).count() as u64, conflated);
                self.finish_sets(ticket, verdict, with);
            }
            Op::GiveBack { job } => self.gave_back(lane, group, job),
        }
    }

    fn finish_sets(&mut self, ticket: Ticket, verdict: SetVerdict, with: Vec<Ticket>) {
        with.into_iter().for_each(|ticket| self.refuse_set(ticket, AckOutcome::InvalidLease));
        self.finish_set(ticket, verdict);
    }

    fn gave_back(&mut self, lane: Ref, group: Ref, job: Option<Ref>) {
        self.free_cursor(lane, group);
        if let Some(job) = job {
            self.pop_goes_on(job);
        }
    }

    /// The row was not as remembered: decide again on what it is.
    fn look_again(&mut self, queued: QueuedMove) {
        let QueuedMove { lane, group, tries, op, cursor_move, .. } = queued;
        match op {
            Op::Claim { job, claim, .. } => {
                self.free_cursor(lane, group);
                self.unclaimed(job, &claim);
            }
            Op::Ack { ticket, .. } if tries < STALE_TRIES => self.decide(ticket, lane, group, tries + 1),
            Op::Ack { .. } => self.move_failed(QueuedMove { lane, group, tries, busy: 0, op, cursor_move }),
            Op::GiveBack { job } => self.gave_back(lane, group, job),
        }
    }

    /// The store failed; what the row is now is not known: the move may have been made, or a bundle changed the row while
    /// the cursor was busy.
    fn move_failed(&mut self, queued: QueuedMove) {
        let QueuedMove { lane, group, op, .. } = queued;
        // Nor is it known by answers that were asked for before: they may tell of a lease that this move ended.
        self.followed = self.calls.last_sent();
        let now = self.now;
        if let Some(lane) = self.lanes.slab.get_mut(lane) {
            let cursor = lane.cursor_entry(group);
            let past = usize::from(cursor.forget_row(now));
            let memo = cursor.memo.take();
            self.memo_left(memo);
            self.timers.are_past(past, &self.lanes);
        }
        match op {
            Op::Claim { job, claim, .. } => {
                self.free_cursor(lane, group);
                self.pop_failed(job, &claim);
            }
            Op::Ack { ticket, verdict, .. } => {
                self.free_cursor(lane, group);
                self.finish_set(ticket, SetVerdict::all(AckOutcome::StoreFailed, verdict.items.len()));
            }
            Op::GiveBack { job } => self.gave_back(lane, group, job),
        }
    }

    /// The lane (or its cursor) is gone from memory or from the store.
    pub(crate) fn abandon(&mut self, queued: QueuedMove) {
        match queued.op {
            Op::Claim { job, claim, .. } => self.unclaimed(job, &claim),
            Op::Ack { ticket, .. } => self.start_set(ticket),
            Op::GiveBack { job } => job.into_iter().for_each(|job| self.pop_goes_on(job)),
        }
    }

    /// The row of a cursor must be read again, and what was asked for before is not taken for it.
    pub(crate) fn forget_cursor(&mut self, lane: Ref, group: Ref) {
        let now = self.now;
        if let Some(cursor) = self.lanes.slab.get_mut(lane).and_then(|lane| lane.cursor_mut(group)) {
            let past = usize::from(cursor.forget_row(now));
            self.timers.are_past(past, &self.lanes);
        }
    }

    /// Ends an operation on a cursor: the next one goes on, or the lane is offered.
    pub(crate) fn free_cursor(&mut self, lane: Ref, group: Ref) {
        let Some(cursor) = self.lanes.slab.get_mut(lane).and_then(|l| l.cursor_mut(group)) else { return };
        cursor.busy = false;
        if cursor.forget {
            self.forget_cursor(lane, group);
        }
        if self.freeing == Some((lane, group)) {
            // A set that was started from the loop below has ended: it goes on there, however many there are.
            return;
        }
        let outer = self.freeing.replace((lane, group));
        while let Some(cursor) = self.lanes.slab.get_mut(lane).and_then(|l| l.cursor_mut(group)).filter(|c| !c.busy) {
            let Some(ticket) = cursor.waiting.pop_front() else {
                self.offer(lane, group);
                break;
            };
            self.start_set(ticket);
        }
        self.freeing = outer;
    }

    /// Frees claims whose answer could not be written, as if they had not been made.
    pub(crate) fn give_back(&mut self, lease: LeaseId, claims: Vec<(PartitionId, GroupId)>) {
        for (partition, group_id) in claims {
            let Some(lane_ref) = self.lanes.by_number(partition) else { continue };
            let groups = &self.queues.groups;
            let lane = &self.lanes[lane_ref];
            let Some(cursor) = lane.cursors.iter().find(|c| groups[c.group].id == group_id) else { continue };
            let group = cursor.group;
            self.undo_claim(lane_ref, group, lease, None);
        }
    }

    /// Undoes a claim that was not delivered; false when it is over, or in use after all.
    pub(crate) fn undo_claim(&mut self, lane_ref: Ref, group: Ref, lease: LeaseId, job: Option<Ref>) -> bool {
        let lane = &mut self.lanes[lane_ref];
        let partition = lane.id;
        let Some(cursor) = lane.cursor_mut(group) else { return false };
        let Some(row) = cursor.row.filter(|row| row.lease == lease && !cursor.busy) else { return false };
        cursor.busy = true;
        let attempts = row.attempt_count.saturating_sub(1);
        let to = CursorTo {
            committed: row.committed,
            lease: LeaseTo::Clear,
            batch_end: None,
            retry_count: row.retry_count,
            attempt_start: row.attempt_start.filter(|_| attempts > 0),
            attempt_count: attempts,
        };
        let cursor_move = CursorMove {
            partition,
            group: self.queues.groups[group].id,
            version: row.version,
            lease: LeaseMust::Live,
            to: Some(to),
            dead_letter: None,
        };
        self.queue_move(QueuedMove { lane: lane_ref, group, tries: 0, busy: 0, cursor_move, op: Op::GiveBack { job } });
        true
    }
}

/// The row after a move.
pub(crate) fn apply(row: &mut crate::effect::CursorRow, to: &CursorTo, version: i64) {
    row.version = version;
    row.committed = to.committed;
    row.batch_end = to.batch_end;
    row.retry_count = to.retry_count;
    row.attempt_start = to.attempt_start;
    row.attempt_count = to.attempt_count;
    match to.lease {
        LeaseTo::Keep => {}
        LeaseTo::Clear => (row.lease, row.conflating) = (LeaseId::NONE, false),
        LeaseTo::Set { id, conflating, .. } => (row.lease, row.conflating) = (id, conflating),
    }
}

/// Offsets of a claim, as a count.
pub(crate) fn count(start: Offset, end: Offset) -> u32 {
    (end.0 - start.0 + 1) as u32
}
