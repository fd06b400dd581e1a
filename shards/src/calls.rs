//! Cold calls: what each one in flight is for, and how its answer goes on. Past a bound they wait in order.

use crate::ack::Ruled;
use crate::append::JudgedDraft;
use crate::command::Verdict;
use crate::effect::{Call, Effect, Reply, StoreError};
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
use crate::slab::Ref;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

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
    OpenGroup { group: Ref, epoch: u32, contact: crate::effect::Contact },
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
    Nobody,
}

impl Pending {
    /// Whether it reads cursors or records for a pop, which are busy until it is answered.
    fn reads_for(&self, pop: Ref) -> bool {
        match self {
            Pending::ReadClaim { job, .. } | Pending::ReadNewest { job, .. } | Pending::Seed { job, .. } => *job == pop,
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    last: u64,
    /// With the moment it was sent.
    in_flight: HashMap<CallId, (Micros, Pending)>,
    waiting: VecDeque<(Call, Pending)>,
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
        self.waiting.drain(..).map(|(_, pending)| pending).collect()
    }

    /// What is read for a pop that is gone: what was sent is answered to nobody, what was not is not asked. A step for each call
    /// that there is.
    pub(crate) fn take_reads(&mut self, pop: Ref) -> Vec<Pending> {
        let of_pop = |(call, (_, pending)): (&CallId, &(Micros, Pending))| pending.reads_for(pop).then_some(*call);
        let mut sent: Vec<CallId> = self.in_flight.iter().filter_map(of_pop).collect();
        sent.sort_unstable();
        let nobody = |call| std::mem::replace(&mut self.in_flight.get_mut(&call).expect("found").1, Pending::Nobody);
        let mut reads: Vec<Pending> = sent.into_iter().map(nobody).collect();
        let (unsent, others) = self.waiting.drain(..).partition(|(_, pending)| pending.reads_for(pop));
        self.waiting = others;
        let unsent: VecDeque<(Call, Pending)> = unsent;
        reads.extend(unsent.into_iter().map(|(_, pending)| pending));
        reads
    }

    /// Counts a call as sent.
    pub(crate) fn put_in_flight(&mut self, now: Micros, pending: Pending) -> CallId {
        self.last += 1;
        let call = CallId(self.last);
        self.in_flight.insert(call, (now, pending));
        call
    }

    pub(crate) fn len(&self) -> usize {
        self.in_flight.len() + self.waiting.len()
    }
}

impl Shard {
    pub(crate) fn ask(&mut self, call: Call, pending: Pending) {
        self.calls.provisions += matches!(pending, Pending::Provision { .. }) as usize;
        self.calls.waiting.push_back((call, pending));
    }

    pub(crate) fn send_calls(&mut self) {
        while self.calls.in_flight.len() < CALLS_MAX {
            let Some((ask, pending)) = self.calls.waiting.pop_front() else { break };
            let call = self.calls.put_in_flight(self.now, pending);
            self.effects.push(Effect::Call { call, ask });
        }
    }

    pub(crate) fn resume(&mut self, call: CallId, result: Result<Reply, StoreError>) {
        let Some((sent, pending)) = self.calls.in_flight.remove(&call) else { return };
        (self.answering, self.asked) = (call, sent);
        let result = if self.is_severed(call) { Err(other_store()) } else { result };
        match pending {
            Pending::Provision { lanes } => {
                self.calls.provisions -= 1;
                let rows = result.and_then(lanes_of);
                self.provisioned(lanes, rows);
            }
            Pending::Reverify { lane } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.reverified(lane, row);
            }
            Pending::MeetLane { lane } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.lane_found(&lane, row);
            }
            Pending::ReadGrown { slot, lane } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.grown_read(slot, lane, row);
            }
            Pending::LearnLane { job, lane, ours, told } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.lane_learnt(job, lane, ours, told, row);
            }
            Pending::PrepareRows { lane, ticket, rows } => {
                let read = result.and_then(|reply| match reply {
                    Reply::RunRows(read) => Ok(read),
                    other => Err(unexpected(&other)),
                });
                self.prepare_rows_read(lane, ticket, rows, read);
            }
            Pending::PrepareLane { ticket } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.prepare_found(ticket, row);
            }
            Pending::LoadKeys { lane, to, since } => {
                let page = result.and_then(|reply| self.keys_of(reply));
                self.keys_loaded(lane, to, since, page);
            }
            Pending::LookUp { lane, to, since } => {
                let page = result.and_then(|reply| self.keys_of(reply));
                self.keys_looked_up(lane, to, since, page);
            }
            Pending::LookUpId { lane, offset } => self.record_looked_up(lane, offset, result.and_then(records_of)),
            Pending::LoadRuns(loading) => {
                let page = result.and_then(|reply| match reply {
                    Reply::Runs { runs, complete } => Ok((runs, complete)),
                    other => Err(unexpected(&other)),
                });
                self.runs_loaded(loading, page);
            }
            Pending::SealRun { number } => {
                let run = result.and_then(|reply| match reply {
                    Reply::Sealed(run) => Ok(run),
                    other => Err(unexpected(&other)),
                });
                self.run_sealed(number, run);
            }
            Pending::Probe(probing) => {
                let rows = result.and_then(|reply| match reply {
                    Reply::RunRows(rows) => Ok(rows),
                    other => Err(unexpected(&other)),
                });
                self.rows_probed(probing, rows);
            }
            // What could not be removed goes with the clean-up.
            Pending::DropRuns => {}
            // The pop was withdrawn.
            Pending::Nobody => {}
            Pending::Originals { partition, from, draft } => {
                self.originals_read(partition, from, draft, result.and_then(records_of));
            }
            Pending::FindQueue { slot, tenant, queue } if self.is_stale() && result.is_ok() => {
                // The queue changed again meanwhile, and that answer may be in already.
                self.ask(Call::FindQueue { tenant, queue: queue.clone() }, Pending::FindQueue { slot, tenant, queue });
            }
            Pending::FindQueue { slot, tenant, queue } => {
                // Without an answer nothing of the queue can be trusted: an empty row forgets it all.
                let row = match result {
                    Ok(Reply::Queue(row)) => row,
                    _ => None,
                };
                match slot {
                    Some(slot) => {
                        self.queue_found(tenant, &queue, row);
                        self.reply(slot, Verdict::Done);
                    }
                    None => self.queue_read_anew(tenant, &queue, row),
                }
            }
            Pending::OpenGroup { group, epoch, .. } | Pending::Scan { group, epoch } if self.is_past(group, epoch) => {}
            Pending::OpenGroup { group, contact, .. } => {
                let row = result.and_then(|reply| match reply {
                    Reply::Group(row) => Ok(row),
                    other => Err(unexpected(&other)),
                });
                self.group_opened(group, contact, row);
            }
            Pending::Scan { group, .. } => {
                let page = result.and_then(|reply| match reply {
                    Reply::Scanned { rows, next, now } => {
                        self.read_clock(now, self.asked);
                        Ok((rows, next))
                    }
                    other => Err(unexpected(&other)),
                });
                self.scanned(group, page);
            }
            Pending::FindLane { job, key } => {
                let row = result.and_then(lanes_of).map(|rows| rows.into_iter().next().flatten());
                self.pinned_found(job, &key, row);
            }
            Pending::Seed { job, group, epoch, lanes } => {
                let rows = result.and_then(|reply| match reply {
                    Reply::Cursors { rows, now } => {
                        self.read_clock(now, self.asked);
                        Ok(rows)
                    }
                    other => Err(unexpected(&other)),
                });
                self.seeded(job, group, epoch, lanes, rows);
            }
            Pending::ReadClaim { job, group, lane, start, wanted } => {
                self.claim_read(job, group, lane, start, wanted, result.and_then(records_of));
            }
            Pending::ReadNewest { job, group, lane, start } => {
                self.newest_read(job, group, lane, start, result.and_then(records_of));
            }
            Pending::FindPartitions { tickets } => {
                self.finds.one_answered();
                self.partitions_found(tickets, result.and_then(found_of));
            }
            Pending::FindGone { lanes } => self.gone_found(lanes, result.and_then(found_of)),
            Pending::FindCursors { waiting } => {
                self.finds.one_answered();
                let found = result.and_then(|reply| match reply {
                    Reply::FoundCursors(found) => Ok(found),
                    other => Err(unexpected(&other)),
                });
                self.cursors_found(waiting, found);
            }
            Pending::Resolve(resolving) => {
                let page = result.and_then(|reply| self.keys_of(reply));
                self.keys_read(resolving, page);
            }
            Pending::ReadPoison { ticket, lane, group, tries, ruled } => {
                let read = result.and_then(records_of).map(|(records, _)| records);
                self.poison_read((ticket, lane, group, tries, ruled), read);
            }
        }
    }

    /// Whether a group was forgotten since something was asked for it.
    pub(crate) fn is_past(&self, group: Ref, epoch: u32) -> bool {
        self.queues.groups.get(group).is_none_or(|g| g.epoch != epoch)
    }

    fn keys_of(&mut self, reply: Reply) -> Result<(Vec<crate::effect::KeysRow>, bool), StoreError> {
        match reply {
            Reply::Keys { rows, complete, now } => {
                self.read_clock(now, self.asked);
                Ok((rows, complete))
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn lanes_of(reply: Reply) -> Result<Vec<Option<crate::effect::LaneRow>>, StoreError> {
    match reply {
        Reply::Lanes(rows) => Ok(rows),
        other => Err(unexpected(&other)),
    }
}

fn found_of(reply: Reply) -> Result<Vec<Option<crate::effect::FoundLane>>, StoreError> {
    match reply {
        Reply::Found(found) => Ok(found),
        other => Err(unexpected(&other)),
    }
}

fn records_of(reply: Reply) -> Result<(Vec<crate::command::Record>, Offset), StoreError> {
    match reply {
        Reply::Records { records, log_start } => Ok((records, log_start)),
        other => Err(unexpected(&other)),
    }
}

/// The edge answers each call with its own kind of reply; anything else is a bug there.
fn unexpected(reply: &Reply) -> StoreError {
    debug_assert!(false, "an answer of another kind: {reply:?}");
    StoreError::Refused("an answer of another kind".into())
}
