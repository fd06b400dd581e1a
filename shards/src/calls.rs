//! Cold calls: what each one in flight is for, and how its answer goes on. Past a bound they wait in order.

use crate::ack::Ruled;
use crate::append::JudgedDraft;
use crate::command::{Record, Verdict};
use crate::effect::{Call, Contact, Effect, KeysRow, LaneRow, Reply, StoreError};
use crate::fifo::Fifo;
use crate::ids::{CallId, Micros, Offset, PartitionId, Slot, Stamp, TenantId};
use crate::lane::Ticket;
use crate::limits::CALLS_MAX;
use crate::other_store::other_store;
use crate::place::LaneKey;
use crate::prepare::PrepareTicket;
use crate::seal::{LoadingRuns, Probing};
use crate::sealed::RowId;
use crate::settle::Resolving;
use crate::shard::Shard;
use crate::slab::{Ref, Slab};
use hashbrown::HashMap;
use std::sync::Arc;

/// What an answer of the one kind that a call has says.
macro_rules! only {
    ($result:expr, $kind:pat => $says:expr) => {
        $result.and_then(|reply| match reply {
            $kind => Ok($says),
            other => Err(unexpected(&other)),
        })
    };
}

/// What waits for the answer.
#[derive(Debug)]
pub(crate) enum Pending {
    Provision { lanes: Vec<Ref> },
    Reverify { lane: Ref },
    MeetLane { lane: LaneKey },
    ReadGrown { slot: Slot, lane: LaneKey },
    LearnLane { job: Ref, lane: Ref, ours: bool, told: (PartitionId, Offset) },
    PrepareLane { ticket: PrepareTicket },
    PrepareRows { lane: Ref, ticket: PrepareTicket, rows: Vec<RowId> },
    LoadKeys { lane: Ref, to: Offset, since: Option<Stamp> },
    LookUp { lane: Ref, to: Offset, since: Option<Stamp> },
    LookUpId { lane: Ref, offset: Offset },
    LoadRuns(LoadingRuns),
    SealRun { number: u64 },
    Probe(Probing),
    DropRuns,
    Originals { partition: PartitionId, from: Offset, draft: JudgedDraft },
    FindQueue { slot: Option<Slot>, tenant: TenantId, queue: Arc<str> },
    OpenGroup { group: Ref, epoch: u32, contact: Contact },
    Scan { group: Ref, epoch: u32 },
    FindLane { job: Ref, key: LaneKey },
    Seed { job: Ref, group: Ref, epoch: u32, lanes: Vec<Ref> },
    ReadClaim { job: Ref, group: Ref, lane: Ref, start: Offset, wanted: u32 },
    ReadNewest { job: Ref, group: Ref, lane: Ref, start: Offset },
    FindPartitions { tickets: Vec<Vec<Ticket>> },
    FindGone { lanes: Vec<(Ref, PartitionId)> },
    FindCursors { waiting: Vec<(Ref, Vec<Ticket>)> },
    Resolve(Resolving),
    ReadPoison { ticket: Ticket, lane: Ref, group: Ref, tries: u8, ruled: Ruled },
}

/// A call that is not answered.
#[derive(Debug)]
struct OpenCall {
    /// Until it is sent.
    call: Option<Call>,
    pending: Pending,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    last: u64,
    open: Slab<OpenCall>,
    /// With the moment it was sent. What nobody waits for any more has left `open`.
    in_flight: HashMap<CallId, (Micros, Ref)>,
    /// For room.
    waiting: Fifo,
    provisions: usize,
}

impl Calls {
    /// Whether a provisioning is on its way: the next one waits, and is larger.
    pub(crate) fn provisioning(&self) -> bool {
        self.provisions > 0
    }

    /// Calls after this one see everything that was stored before now.
    pub(crate) fn last_sent(&self) -> CallId {
        CallId(self.last)
    }

    /// What waits for room, in order.
    pub(crate) fn take_waiting(&mut self) -> Vec<Pending> {
        let waiting = self.waiting.take(&self.open);
        waiting.into_iter().filter_map(|at| Some(self.open.remove(at)?.pending)).collect()
    }

    /// Nobody waits for an answer any more: what was sent is answered to nobody, what was not is not asked. What it was for,
    /// unless it was answered.
    pub(crate) fn withdraw(&mut self, at: Ref) -> Option<Pending> {
        let OpenCall { call, pending } = self.open.remove(at)?;
        if call.is_some() {
            self.waiting.one_is_gone(&self.open);
        }
        Some(pending)
    }

    /// Counts a call as sent.
    pub(crate) fn put_in_flight(&mut self, now: Micros, pending: Pending) -> CallId {
        let at = self.open.insert(OpenCall { call: None, pending });
        self.sent(now, at)
    }

    fn sent(&mut self, now: Micros, at: Ref) -> CallId {
        self.last += 1;
        let call = CallId(self.last);
        self.in_flight.insert(call, (now, at));
        call
    }

    pub(crate) fn len(&self) -> usize {
        self.in_flight.len() + self.waiting.len()
    }
}

impl Shard {
    pub(crate) fn ask(&mut self, call: Call, pending: Pending) {
        self.calls.provisions += matches!(pending, Pending::Provision { .. }) as usize;
        let at = self.calls.open.insert(OpenCall { call: Some(call), pending });
        self.calls.waiting.push(at);
    }

    /// Asks for what a pop wants to claim from: a pop that is gone does not wait for it.
    pub(crate) fn ask_for(&mut self, job: Ref, call: Call, pending: Pending) {
        let at = self.calls.open.insert(OpenCall { call: Some(call), pending });
        self.calls.waiting.push(at);
        self.pops[job].reads.push(at);
    }

    pub(crate) fn send_calls(&mut self) {
        while self.calls.in_flight.len() < CALLS_MAX {
            let Some(at) = self.calls.waiting.take_first(&self.calls.open) else { break };
            let Some(ask) = self.calls.open[at].call.take() else { continue };
            let call = self.calls.sent(self.now, at);
            self.effects.push(Effect::Call { call, ask });
        }
    }

    pub(crate) fn resume(&mut self, call: CallId, result: Result<Reply, StoreError>) {
        let Some((sent, at)) = self.calls.in_flight.remove(&call) else { return };
        // Else its pop was withdrawn.
        let Some(OpenCall { pending, .. }) = self.calls.open.remove(at) else { return };
        (self.answering, self.asked) = (call, sent);
        let result = if self.is_severed(call) { Err(other_store()) } else { result };
        match pending {
            Pending::Provision { lanes } => {
                self.calls.provisions -= 1;
                self.provisioned(lanes, only!(result, Reply::Lanes(rows) => rows));
            }
            Pending::Reverify { lane } => self.reverified(lane, lane_of(result)),
            Pending::MeetLane { lane } => self.lane_found(&lane, lane_of(result)),
            Pending::ReadGrown { slot, lane } => self.grown_read(slot, lane, lane_of(result)),
            Pending::LearnLane { job, lane, ours, told } => self.lane_learnt(job, lane, ours, told, lane_of(result)),
            Pending::PrepareLane { ticket } => self.prepare_found(ticket, lane_of(result)),
            Pending::FindLane { job, key } => self.pinned_found(job, &key, lane_of(result)),
            Pending::PrepareRows { lane, ticket, rows } => {
                self.prepare_rows_read(lane, ticket, rows, only!(result, Reply::RunRows(read) => read));
            }
            Pending::LoadKeys { lane, to, since } => {
                let page = self.keys_of(result);
                self.keys_loaded(lane, to, since, page);
            }
            Pending::LookUp { lane, to, since } => {
                let page = self.keys_of(result);
                self.keys_looked_up(lane, to, since, page);
            }
            Pending::Resolve(resolving) => {
                let page = self.keys_of(result);
                self.keys_read(resolving, page);
            }
            Pending::LookUpId { lane, offset } => self.record_looked_up(lane, offset, records_of(result)),
            Pending::Originals { partition, from, draft } => {
                self.originals_read(partition, from, draft, records_of(result));
            }
            Pending::LoadRuns(loading) => {
                self.runs_loaded(loading, only!(result, Reply::Runs { runs, complete } => (runs, complete)));
            }
            Pending::SealRun { number } => self.run_sealed(number, only!(result, Reply::Sealed(run) => run)),
            Pending::Probe(probing) => self.rows_probed(probing, only!(result, Reply::RunRows(rows) => rows)),
            // What could not be removed goes with the clean-up.
            Pending::DropRuns => {}
            Pending::FindQueue { slot, tenant, queue } => self.queue_answered(slot, tenant, queue, result),
            Pending::OpenGroup { group, epoch, .. } | Pending::Scan { group, epoch } if self.is_past(group, epoch) => {}
            Pending::OpenGroup { group, contact, .. } => {
                self.group_opened(group, contact, only!(result, Reply::Group(row) => row));
            }
            Pending::Scan { group, .. } => {
                let page = only!(result, Reply::Scanned { rows, next, now } => {
                    self.read_clock(now, self.asked);
                    (rows, next)
                });
                self.scanned(group, page);
            }
            Pending::Seed { job, group, epoch, lanes } => {
                let rows = only!(result, Reply::Cursors { rows, now } => {
                    self.read_clock(now, self.asked);
                    rows
                });
                self.seeded(job, group, epoch, lanes, rows);
            }
            Pending::ReadClaim { job, group, lane, start, wanted } => {
                self.claim_read(job, group, lane, start, wanted, records_of(result));
            }
            Pending::ReadNewest { job, group, lane, start } => {
                self.newest_read(job, group, lane, start, records_of(result));
            }
            Pending::FindPartitions { tickets } => {
                self.finds.one_answered();
                self.partitions_found(tickets, only!(result, Reply::Found(found) => found));
            }
            Pending::FindGone { lanes } => self.gone_found(lanes, only!(result, Reply::Found(found) => found)),
            Pending::FindCursors { waiting } => {
                self.finds.one_answered();
                self.cursors_found(waiting, only!(result, Reply::FoundCursors(found) => found));
            }
            Pending::ReadPoison { ticket, lane, group, tries, ruled } => {
                let read = records_of(result).map(|(records, _)| records);
                self.poison_read((ticket, lane, group, tries, ruled), read);
            }
        }
    }

    fn queue_answered(
        &mut self,
        slot: Option<Slot>,
        tenant: TenantId,
        queue: Arc<str>,
        result: Result<Reply, StoreError>,
    ) {
        if self.is_stale() && result.is_ok() {
            // The queue changed again meanwhile, and that answer may be in already.
            let call = Call::FindQueue { tenant, queue: queue.clone() };
            return self.ask(call, Pending::FindQueue { slot, tenant, queue });
        }
        // Without an answer nothing of the queue can be trusted: an empty row forgets it all.
        let row = match result {
            Ok(Reply::Queue(row)) => row,
            _ => None,
        };
        let Some(slot) = slot else { return self.queue_read_anew(tenant, &queue, row) };
        self.queue_found(tenant, &queue, row);
        self.reply(slot, Verdict::Done);
    }

    /// Whether a group was forgotten since something was asked for it.
    pub(crate) fn is_past(&self, group: Ref, epoch: u32) -> bool {
        self.queues.groups.get(group).is_none_or(|g| g.epoch != epoch)
    }

    fn keys_of(&mut self, result: Result<Reply, StoreError>) -> Result<(Vec<KeysRow>, bool), StoreError> {
        only!(result, Reply::Keys { rows, complete, now } => {
            self.read_clock(now, self.asked);
            (rows, complete)
        })
    }
}

/// The one lane that was asked for.
fn lane_of(result: Result<Reply, StoreError>) -> Result<Option<LaneRow>, StoreError> {
    only!(result, Reply::Lanes(rows) => rows.into_iter().next().flatten())
}

fn records_of(result: Result<Reply, StoreError>) -> Result<(Vec<Record>, Offset), StoreError> {
    only!(result, Reply::Records { records, log_start } => (records, log_start))
}

/// The edge answers each call with its own kind of reply; anything else is a bug there.
fn unexpected(reply: &Reply) -> StoreError {
    debug_assert!(false, "an answer of another kind: {reply:?}");
    StoreError::Refused("an answer of another kind".into())
}
