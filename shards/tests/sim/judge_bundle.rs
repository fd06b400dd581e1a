//! Bundles: what the store does with them, and C10: a bundle that is answered committed is there whole, one that is
//! answered otherwise is not there at all, unless its outcome is unknown.

use crate::explain::Candidate;
use crate::ledger::{Moment, WrittenSegment};
use crate::oracle::{Ask, At, Oracle};
use crate::rng::Rng;
use crate::store::{POISON, Planted, Segment, Store};
use queen_shards::bundle::{
    Bundle, BundleDecision, BundleLane, BundleOutcome, BundleVerdict, LaneDecision, MoveDecision,
};
use queen_shards::command::Codec;
use queen_shards::effect::{CursorMove, CursorOutcome, LeaseMust, StoreError, key_at};
use queen_shards::ids::{GroupId, Offset, PartitionId, Stamp};
use std::sync::Arc;

/// A bundle as it was sent: messages of its lanes, and the cursor versions it moves from.
pub struct SentBundle {
    pub drafts: Vec<crate::oracle::SentDraft>,
    pub moves: Vec<(PartitionId, GroupId, i64)>,
}

impl Store {
    /// The commit of several bundles, each decided by itself.
    pub fn bundle(&mut self, now: Stamp, rng: &mut Rng, bundles: &[Arc<Bundle>]) -> Result<BundleOutcome, StoreError> {
        let poison =
            |lane: &BundleLane| !lane.confirm && lane.draft.raw().windows(POISON.len()).any(|bytes| bytes == POISON);
        if self.refuses(now) && bundles.iter().any(|bundle| bundle.lanes.iter().any(poison)) {
            return Err(StoreError::Refused("invalid byte sequence (simulated 22021)".into()));
        }
        let held = |bundle: &Arc<Bundle>| {
            let lanes = bundle.lanes.iter().filter_map(|lane| lane.partition.or_else(|| self.find(&lane.draft.lane)));
            let moves = bundle.moves.iter().map(|one| one.partition);
            let dies = bundle.moves.iter().any(|one| self.dying == Some(one.group));
            dies || lanes.chain(moves).any(|id| self.is_locked(id, now))
        };
        if rng.chance(self.busy / 4) || bundles.iter().any(held) {
            return Err(StoreError::Refused("lock timeout (simulated 55P03)".into()));
        }
        let mut outcome = BundleOutcome { now, bundles: Vec::new(), stored: Vec::new() };
        for bundle in bundles {
            let mut decision = BundleDecision::default();
            for lane in &bundle.lanes {
                outcome.stored.push((Codec::Raw, if lane.confirm { Default::default() } else { lane.draft.raw() }));
                decision.lanes.push(self.decide_lane(now, lane));
            }
            decision.moves = bundle.moves.iter().map(|one| self.decide_move(now, one)).collect();
            if decision.committed() {
                self.write_bundle(now, rng, bundle, &mut decision);
            }
            outcome.bundles.push(decision);
        }
        Ok(outcome)
    }

    fn decide_lane(&self, now: Stamp, lane: &BundleLane) -> LaneDecision {
        let id = lane.partition.or_else(|| self.find(&lane.draft.lane));
        let Some(id) = id else {
            return LaneDecision::Holds { partition: PartitionId(0), base: Offset(0), created_at: now };
        };
        let Some(row) = self.partitions.get(&id).filter(|row| row.last_offset >= lane.verified) else {
            return LaneDecision::Gone;
        };
        let window = self.queues[&row.queue].options.dedup_secs as i64 * 1_000_000;
        if window > 0 && !lane.confirm && !lane.draft.all_minted {
            let range = (id, lane.verified.plus(1))..=(id, Offset(i64::MAX));
            let segments = self.segments.range(range.clone()).map(|(_, s)| (s.created_at, s.keys.clone()));
            let evidence = self.evidence.range(range).map(|(_, e)| (e.created_at, e.keys.clone()));
            let stored: Vec<_> = segments.chain(evidence).filter(|(at, _)| now.0 - window <= at.0).collect();
            for index in 0..lane.draft.count {
                let key = key_at(&lane.draft.keys, index as usize);
                if stored.iter().any(|(_, keys)| (0..keys.len() / 16).any(|i| key_at(keys, i) == key)) {
                    return LaneDecision::Duplicate { index };
                }
            }
        }
        let created_at = now.max(row.last_created_at);
        LaneDecision::Holds { partition: id, base: row.last_offset.plus(1), created_at }
    }

    fn decide_move(&self, now: Stamp, one: &CursorMove) -> MoveDecision {
        let Some(partition) = self.partitions.get(&one.partition) else { return MoveDecision::Gone };
        let Some(cursor) = self.cursors.get(&(one.partition, one.group)) else { return MoveDecision::Gone };
        let fits = match one.lease {
            LeaseMust::Any => true,
            LeaseMust::Live => cursor.live(now),
            LeaseMust::Over => !cursor.live(now),
        };
        if cursor.version != one.version || !fits {
            return MoveDecision::Stale;
        }
        MoveDecision::Holds {
            version: cursor.version,
            lease_left_us: cursor.row(now).lease_left_us,
            last_offset: partition.last_offset,
            log_start: partition.log_start,
        }
    }

    fn write_bundle(&mut self, now: Stamp, rng: &mut Rng, bundle: &Bundle, decision: &mut BundleDecision) {
        for (lane, decided) in bundle.lanes.iter().zip(&mut decision.lanes) {
            let LaneDecision::Holds { partition, base, created_at } = decided else { continue };
            if lane.confirm {
                continue;
            }
            if partition.0 == 0 {
                *partition = self.provision(&lane.draft.lane);
            }
            let row = self.partitions.get_mut(partition).expect("there");
            row.last_offset = base.plus(lane.draft.count as i64 - 1);
            row.last_created_at = *created_at;
            let segment = Segment {
                count: lane.draft.count,
                created_at: *created_at,
                accepted_at: None,
                codec: Codec::Raw,
                flags: lane.draft.flags,
                raw_len: lane.draft.raw_len() as u32,
                keys: lane.draft.keys.clone(),
                body: lane.draft.raw(),
            };
            self.segments.insert((*partition, *base), segment);
        }
        if self.strikes(rng, Planted::HalfBundle, 300) {
            return;
        }
        let busy = std::mem::take(&mut self.busy);
        for (one, decided) in bundle.moves.iter().zip(&mut decision.moves) {
            let applied = self.moves(now, rng, std::slice::from_ref(one)).moves.remove(0);
            if let CursorOutcome::Moved { version, lease_left_us, last_offset, log_start } = applied {
                *decided = MoveDecision::Holds { version, lease_left_us, last_offset, log_start };
            }
        }
        self.busy = busy;
    }
}

impl Oracle {
    pub fn sent_bundle(&mut self, now: Moment, bundle: &Bundle) -> SentBundle {
        let drafts: Vec<_> = bundle.lanes.iter().filter(|lane| !lane.confirm).map(|lane| lane.draft.clone()).collect();
        let moves = bundle.moves.iter().filter(|one| one.to.is_some());
        SentBundle {
            drafts: self.sent_drafts(now, &drafts),
            moves: moves.map(|one| (one.partition, one.group, one.version)).collect(),
        }
    }

    /// A shard sends bundles: one commit at a time, nothing named twice in it. Who may be behind each of the moves.
    pub fn emits_bundle(&mut self, at: At, bundles: &[Arc<Bundle>]) -> Vec<Vec<Vec<Candidate>>> {
        if !self.bundling.insert(at) {
            self.fail(None, "two bundle commits of one shard in flight");
        }
        let (mut lanes, mut cursors) = (Vec::new(), Vec::new());
        for bundle in bundles {
            lanes.extend(
                bundle.lanes.iter().map(|lane| (lane.draft.lane.queue.clone(), lane.draft.lane.partition.clone())),
            );
            cursors.extend(bundle.moves.iter().map(|one| (one.partition, one.group)));
        }
        let (n, m) = (lanes.len(), cursors.len());
        lanes.sort_unstable();
        cursors.sort_unstable();
        lanes.dedup();
        cursors.dedup();
        if (n, m) != (lanes.len(), cursors.len()) {
            self.fail(None, "a bundle commit names a row twice");
        }
        let of = |one: &CursorMove| self.prepared_sets(at, one);
        bundles.iter().map(|bundle| bundle.moves.iter().map(of).collect()).collect()
    }

    /// Sets that were prepared at this broker and may be behind a move.
    fn prepared_sets(&self, at: At, one: &CursorMove) -> Vec<Candidate> {
        let Some((_, name)) = self.ledger.groups.get(&one.group) else {
            self.fail(Some(one.partition), "a move for a group that was never made");
        };
        let mut found = Vec::new();
        for &index in self.prepared.iter().filter(|index| self.asks[**index].at.0 == at.0) {
            let Ask::Ack(sets) = &self.asks[index].ask else { continue };
            let mine = sets.iter().enumerate().filter(|(_, set)| set.partition == one.partition && set.group == *name);
            found.extend(mine.map(|(i, _)| Candidate::Ack(index, i)));
        }
        found
    }

    /// The store has executed a commit of bundles.
    pub fn bundled(
        &mut self,
        now: Moment,
        at: At,
        emitted: u64,
        bundles: &[Arc<Bundle>],
        candidates: Vec<Vec<Vec<Candidate>>>,
        outcome: &BundleOutcome,
    ) {
        for ((bundle, decision), candidates) in bundles.iter().zip(&outcome.bundles).zip(candidates) {
            if !decision.committed() {
                continue;
            }
            for (lane, decided) in bundle.lanes.iter().zip(&decision.lanes).filter(|(lane, _)| !lane.confirm) {
                let LaneDecision::Holds { partition, base, created_at } = *decided else { continue };
                let end = self.ledger.parts[&partition].last_offset();
                self.must(end.plus(1) == base, partition, "a bundle was written over another's offsets");
                let written = WrittenSegment {
                    base,
                    count: lane.draft.count,
                    flags: lane.draft.flags,
                    created_at,
                    accepted_at: None,
                    frames: lane.draft.raw(),
                    codec: Codec::Raw,
                    body: lane.draft.raw(),
                    broker: Some(at.0),
                };
                self.write(now, emitted, partition, written, &lane.draft.keys);
            }
            for ((one, decided), candidates) in bundle.moves.iter().zip(&decision.moves).zip(candidates) {
                let MoveDecision::Holds { version, lease_left_us, last_offset, log_start } = *decided else { continue };
                if one.to.is_some() {
                    self.bundle_moves.insert((one.partition, one.group, one.version));
                }
                let moved = CursorOutcome::Moved { version, lease_left_us, last_offset, log_start };
                self.moved(now, at, vec![candidates], std::slice::from_ref(one), &[moved]);
            }
        }
    }

    /// Whether no bundle that moves this cursor was unanswered at or after `t`: until then its owner may not have heard.
    pub fn settled(&self, partition: PartitionId, group: GroupId, t: u64) -> bool {
        let open = self.by_slot.values().any(|index| match &self.asks[*index].ask {
            Ask::Bundle(sent) => sent.moves.iter().any(|one| (one.0, one.1) == (partition, group)),
            _ => false,
        });
        !open && self.bundle_ends.get(&(partition, group)).is_none_or(|end| *end < t)
    }

    /// C10.
    pub fn judge_bundle(&mut self, now: Moment, index: usize, verdict: &BundleVerdict) {
        let Ask::Bundle(sent) = &self.asks[index].ask else { unreachable!() };
        self.bundle_ends.extend(sent.moves.iter().map(|one| ((one.0, one.1), now.t)));
        let ids = || sent.drafts.iter().flat_map(|draft| &draft.ids);
        let there = |id| self.pushed[id].written.is_some();
        let moved = |one| self.bundle_moves.contains(one);
        match verdict {
            BundleVerdict::Committed { bases } => {
                if !ids().all(there) || !sent.moves.iter().all(moved) {
                    self.fail(None, "C10: a part of a committed bundle is missing");
                }
                let mut answers = Vec::new();
                for (draft, base) in sent.drafts.iter().zip(bases) {
                    for (i, id) in draft.ids.iter().enumerate() {
                        let (partition, offset) = self.pushed[id].written.expect("there");
                        self.must(
                            offset == base.plus(i as i64),
                            partition,
                            "a bundle names another offset than it got",
                        );
                        answers.push((partition, offset));
                    }
                }
                for (partition, offset) in answers {
                    self.ledger.parts.get_mut(&partition).expect("known").answer(now.t, offset);
                }
            }
            BundleVerdict::Unknown => {}
            refused => {
                if ids().any(there) || sent.moves.iter().any(moved) {
                    self.fail(None, &format!("C10: a bundle answered {refused:?} left a trace"));
                }
                if let BundleVerdict::Duplicate { lane, index } = refused {
                    let draft = &sent.drafts[*lane as usize];
                    let ids = self.ledger.named.get(&(draft.queue.clone(), draft.partition.clone()));
                    let key = &draft.keys[*index as usize];
                    let stored = ids.into_iter().flatten().any(|id| self.ledger.parts[id].offsets.contains_key(key));
                    if !stored {
                        self.fail(None, "a bundle is refused for a key that was never stored");
                    }
                }
            }
        }
    }
}
