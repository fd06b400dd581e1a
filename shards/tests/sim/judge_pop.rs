//! What is delivered: what was granted, of what was written, within the budgets; and nothing ready is passed over.
//! Source: data plane 3.4.5, 4.3, 4.8; reliability C1, C2, C6.

use crate::coverage::Thing;
use crate::ledger::{Moment, Note};
use crate::oracle::{Ask, Oracle, queue_of};
use crate::store::Store;
use queen_shards::command::{Claim, Pop, PopFrom, PopVerdict};
use queen_shards::ids::{Offset, PartitionId};
use queen_shards::place::owner_of_partition;

impl Oracle {
    pub fn judge_pop(&mut self, now: Moment, index: usize, verdict: &PopVerdict, store: &Store) {
        let Ask::Pop(pop) = &self.asks[index].ask else { unreachable!() };
        let pop = pop.clone();
        let (at, began) = (self.asks[index].at, self.asks[index].delivered.expect("delivered"));
        if verdict.failed && !self.disturbed(at, began.t) {
            self.fail(None, &format!("a pop failed without a fault: {pop:?}"));
        }
        let count: i64 = verdict.claims.iter().map(|claim| claim.end.0 - claim.start.0 + 1).sum();
        let conflating = verdict.conflation == Some(true);
        let width = if conflating { pop.conflating_partitions } else { pop.partitions };
        let whole = verdict.claims.len() <= width as usize && count <= pop.batch as i64;
        if conflating && count != verdict.claims.len() as i64 {
            self.fail(None, &format!("a conflating pop got {count} messages of {} partitions", verdict.claims.len()));
        }
        if pop.conflation.is_some_and(|asked| verdict.conflation.is_some_and(|stored| asked != stored)) {
            self.hit(Thing::ConflationConflict);
        }
        if !whole {
            self.fail(None, &format!("over the budget: {count} of {pop:?}"));
        }
        let leased = !pop.auto_ack && !verdict.claims.is_empty();
        if verdict.lease.is_some() != leased || (leased && pop.lease.is_some() && pop.lease != verdict.lease) {
            self.fail(None, &format!("the lease of a pop is {:?}: {pop:?}", verdict.lease));
        }
        if pop.at_least > 1 && !verdict.claims.is_empty() {
            self.hit(Thing::Ready);
        }
        let mut bytes = 0;
        for claim in &verdict.claims {
            let left = self.judge_claim(now, index, &pop, claim, verdict, store);
            bytes += left;
            self.hit(if pop.auto_ack { Thing::AutoAcked } else { Thing::Popped });
        }
        if bytes > pop.bytes {
            self.fail(None, &format!("{bytes} bytes and more delivered: {pop:?}"));
        }
        if matches!(pop.from, PopFrom::Partition(_)) && !verdict.claims.is_empty() {
            self.hit(Thing::Pinned);
        }
        if verdict.failed {
            self.hit(Thing::PopFailed);
        } else if verdict.claims.is_empty() {
            self.hit(Thing::EmptyPop);
            if verdict.ready == 0 && pop.at_least <= 1 {
                self.passed_over(now, index, &pop, store);
            }
        }
    }

    /// One delivery. Returns about how many bytes it has before its last message, with what is said of each.
    fn judge_claim(
        &mut self,
        now: Moment,
        index: usize,
        pop: &Pop,
        claim: &Claim,
        verdict: &PopVerdict,
        store: &Store,
    ) -> u64 {
        let (id, lease) = (claim.partition, verdict.lease);
        let began = self.asks[index].delivered.expect("delivered").t;
        let Some(part) = self.ledger.parts.get(&id) else {
            self.fail(None, &format!("a delivery of {id:?}, which was never made"));
        };
        self.must(part.name == claim.name && part.queue_name == *queue_of(&pop.from), id, "a delivery misnamed");
        if let PopFrom::Partition(lane) = &pop.from {
            self.must(lane.partition == part.name, id, "a pinned pop got another partition");
        }
        let granted = self.ledger.tracks.get(&(id, claim.group)).and_then(|track| {
            track.grants.iter().rposition(|grant| {
                grant.lease == lease && grant.end == claim.end && !grant.answered && grant.t >= began
            })
        });
        let Some(granted) = granted else {
            self.fail(Some(id), &format!("delivered without a grant: {:?}..={:?} {lease:?}", claim.start, claim.end));
        };
        let track = self.ledger.tracks.get_mut(&(id, claim.group)).expect("found");
        let grant = &mut track.grants[granted];
        grant.answered = true;
        // Without a lease nothing is marked: there the answer itself says so.
        let newest_only = grant.conflating || pop.auto_ack && verdict.conflation == Some(true);
        let start = if newest_only { grant.end } else { grant.start };
        let attempt = grant.attempt;
        let part = &self.ledger.parts[&id];
        let stepped = claim.start >= start && (claim.start == start || claim.start <= part.log_start);
        self.must(stepped, id, "a delivery does not begin where it was granted");
        self.must(claim.attempt == attempt, id, "a delivery has another attempt than granted");
        self.check_records(id, claim, store);
        let note = Note::Answered {
            slot: self.asks[index].slot,
            broker: self.asks[index].at.0,
            what: format!("{:?} got {}..={} try {}", claim.group, claim.start, claim.end, claim.attempt),
        };
        let sizes = &part.messages[claim.start.0 as usize..claim.end.0 as usize];
        let said = pop.said.of_each(&claim.name);
        let bytes: u64 = sizes.iter().map(|row| part.segments[row.segment as usize].mean_size() + said).sum();
        self.ledger.note(now.t, id, note);
        bytes
    }

    /// The records of a delivery are what was written, and hold all of the span that retention has left.
    fn check_records(&self, id: PartitionId, claim: &Claim, store: &Store) {
        let part = &self.ledger.parts[&id];
        let log_start = store.partitions.get(&id).map_or(Offset(i64::MAX), |row| row.log_start);
        let mut next = claim.start;
        for record in &claim.records {
            let Some(row) = part.at(record.base) else { self.fail(Some(id), "a record of offsets never written") };
            let written = &part.segments[row.segment as usize];
            self.must(record.last() >= next && record.base <= claim.end, id, "a record outside of its delivery");
            self.must(record.base <= next.max(log_start), id, "a hole in a delivery");
            let head = record.base == written.base
                && record.count == written.count
                && record.created_at == written.created_at
                && record.flags == written.flags
                && record.raw_len as usize == written.frames.len();
            self.must(head, id, "a record's head is not as written");
            self.must(record.codec == written.codec && record.body == written.body, id, "a body is not as written");
            let inflated = record.frames.as_ref().is_none_or(|frames| *frames == written.frames);
            self.must(inflated, id, "inflated frames are not as written");
            next = record.last().plus(1);
        }
        self.must(next > claim.end || next < log_start, id, "a delivery whose end is missing");
    }

    /// A pop that came alone, undisturbed, to a shard that has something for it, may not answer empty. Where others write
    /// too, the shard has it once it heard of it: from a read of the log that began after the answer.
    fn passed_over(&mut self, now: Moment, index: usize, pop: &Pop, store: &Store) {
        let asked = &self.asks[index];
        let (at, began, sent) = (asked.at, asked.delivered.expect("delivered"), asked.sent);
        if !asked.alone || self.disturbed(at, began.t) {
            return;
        }
        let heard = if self.solo { u64::MAX } else { asked.heard };
        let shards = self.shards_of[at.0];
        for ((id, group), track) in &self.ledger.tracks {
            let part = &self.ledger.parts[id];
            let queue = &self.ledger.queues[&part.queue];
            let wanted = self.ledger.groups[group].1 == pop.group
                && part.alive
                && track.gone.is_none()
                && track.since < began.t.min(heard)
                && queue.changed < began.t.min(heard)
                && (self.solo || !self.untold.contains(&(*id, *group)))
                && part.queue_name == *queue_of(&pop.from)
                && owner_of_partition(*id, shards) == at.1
                && match &pop.from {
                    PopFrom::Queue { .. } => true,
                    PopFrom::Partition(lane) => lane.partition == part.name,
                };
            let start = track.row.committed.plus(1).max(part.log_start);
            if !wanted || start > part.answered_before(sent.min(heard)) || start > store.partitions[id].last_offset {
                continue;
            }
            if !self.settled(*id, *group, began.t) {
                continue;
            }
            let still = track.past.last().is_none_or(|(until, _)| *until < began.t.min(heard));
            // A broker reckons the end of a lease it has read of from the receipt.
            let over = queen_shards::ids::Stamp(track.row.expires.0 + self.stale_us);
            let free = !track.row.lease.is_some() || self.surely_after(over, began.stamp);
            let first = part.messages[start.0 as usize].created_at;
            let shown = queue.possible(began.t, now.t).all(|options| {
                let wait = options.delay_secs.max(options.window_secs) as i64 * 1_000_000;
                self.surely_after(queen_shards::ids::Stamp(first.0 + wait + self.stale_us), began.stamp)
                    || (wait == 0 && first < began.stamp)
            });
            if free && !shown {
                let delayed = queue.possible(began.t, now.t).any(|options| options.delay_secs > 0);
                self.cover.hit(if delayed { Thing::HeldByDelay } else { Thing::HeldByWindow });
            }
            if still && free && shown {
                let what = format!("{start} is there for {group:?} since before it was asked for: {pop:?}");
                self.fail(Some(*id), &what);
            }
        }
    }
}

impl crate::ledger::WrittenSegment {
    /// Bytes of a message, on average: how a budget counts them.
    fn mean_size(&self) -> u64 {
        self.frames.len() as u64 / self.count as u64
    }
}
