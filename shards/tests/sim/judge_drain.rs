//! What becomes of `buffered`: stored once, in order, or rightly found stored before. Source: reliability C1, C3, C5,
//! C11; rules 15 and 17.

use crate::coverage::Thing;
use crate::frame;
use crate::ledger::{Moment, Note};
use crate::oracle::{Ask, At, Oracle, SentDraft};
use queen_shards::command::{DrainVerdict, SpoolRecord};
use queen_shards::effect::key_at;
use queen_shards::ids::{Key, MessageId, Offset, PartitionId, Stamp};
use std::sync::Arc;

/// A message that was answered `buffered`.
pub struct Awaited {
    pub id: MessageId,
    pub key: Key,
    /// When the client was told.
    pub told: u64,
}

/// Names of a partition at a broker.
pub type Lane = (usize, Arc<str>, Arc<str>);

impl Oracle {
    /// A draft is answered `buffered`.
    pub fn buffered(&mut self, now: Moment, index: usize, draft: &SentDraft) {
        self.hit(Thing::Buffered);
        if self.calm {
            self.fail(None, "a push is buffered though nothing is wrong");
        }
        let broker = self.asks[index].at.0;
        let lane = (broker, draft.queue.clone(), draft.partition.clone());
        for (id, key) in draft.ids.iter().zip(&draft.keys) {
            // It may be drained by the time the client hears.
            if !self.decided.contains(id) {
                let awaited = Awaited { id: *id, key: *key, told: now.t };
                self.awaited.entry(lane.clone()).or_default().push(awaited);
            }
        }
        if let Some(part) = self.ledger.named.get(&(draft.queue.clone(), draft.partition.clone())) {
            let note = Note::Answered { slot: self.asks[index].slot, broker, what: "buffered".into() };
            self.ledger.note(now.t, *part.last().expect("never empty"), note);
        }
    }

    /// A message is being written: what its producer may rely on having come before has.
    pub fn check_order(&mut self, id: PartitionId, message: MessageId, offset: Offset) {
        let Some(pushed) = self.pushed.get(&message) else { return };
        let asked = &self.asks[pushed.ask];
        let (sent, broker) = (asked.sent, asked.at.0);
        let floor = self.ledger.parts[&id].answered_before(sent);
        if offset <= floor {
            self.fail(Some(id), &format!("offset {offset} for a message sent after {floor} was answered"));
        }
        if matches!(asked.ask, Ask::Bundle(_)) {
            // Order between a transaction and the spool is not promised. Source: rule 18.
            return;
        }
        let lane = (broker, pushed.queue.clone(), pushed.partition.clone());
        let part = &self.ledger.parts[&id];
        let overtaken = self.awaited.get(&lane).into_iter().flatten().find(|awaited| {
            let stored = self.pushed[&awaited.id].written.is_some() || part.offsets.contains_key(&awaited.key);
            awaited.told < sent && !stored
        });
        if let Some(awaited) = overtaken {
            self.fail(Some(id), &format!("C5: {message:?} at {offset} overtakes {:?}, buffered before", awaited.id));
        }
    }

    /// The store refuses a record of the spool; it keeps its place.
    pub fn drain_refused(&mut self, record: &SpoolRecord) {
        let raw = record.draft.raw();
        let frames = frame::read(&raw).expect("the simulation writes frames");
        if !frames.iter().any(|one| one.payload.windows(6).any(|w| w == crate::store::POISON)) {
            self.fail(None, "a good record is refused");
        }
        self.hit(Thing::DrainRefused);
    }

    /// A record of the spool is decided.
    pub fn drained(&mut self, now: Moment, at: At, record: &SpoolRecord, verdict: DrainVerdict) {
        let draft = &record.draft;
        let names = (draft.lane.queue.clone(), draft.lane.partition.clone());
        let raw = draft.raw();
        let frames = frame::read(&raw).expect("the simulation writes frames");
        let lane = (at.0, names.0.clone(), names.1.clone());
        let mut missing = 0;
        for (i, one) in frames.iter().enumerate() {
            self.decided.insert(one.id);
            if let Some(awaited) = self.awaited.get_mut(&lane) {
                awaited.retain(|awaited| awaited.id != one.id);
            }
            let key = key_at(&draft.keys, i);
            if self.pushed[&one.id].written.is_none() {
                missing += 1;
                if !self.has_original(&names, key, record.accepted_at, now) {
                    let part = self.ledger.named.get(&names).and_then(|ids| ids.last().copied());
                    self.fail(part, &format!("C1: {:?} is drained, and neither stored nor a duplicate", one.id));
                }
            }
        }
        match verdict {
            DrainVerdict::Refused { .. } => unreachable!("it is not decided by that"),
            DrainVerdict::Stored { duplicates } => {
                if duplicates < missing {
                    self.fail(None, "C11: a drained record counts fewer duplicates than messages it did not store");
                }
                self.hit(Thing::Drained);
                if missing > 0 {
                    self.hit(Thing::DrainedDuplicate);
                }
                if duplicates > missing {
                    self.hit(Thing::DrainedAgain);
                }
            }
        }
    }

    /// A record was damaged on disk, or set aside: nothing is promised of it any more.
    pub fn lost(&mut self, broker: usize, record: &SpoolRecord) {
        let draft = &record.draft;
        let lane = (broker, draft.lane.queue.clone(), draft.lane.partition.clone());
        for one in frame::read(&draft.raw()).expect("the simulation writes frames") {
            self.decided.insert(one.id);
            if let Some(awaited) = self.awaited.get_mut(&lane) {
                awaited.retain(|awaited| awaited.id != one.id);
            }
        }
    }

    /// Whether a message of these names with this key was accepted within the window around an acceptance.
    fn has_original(&self, names: &(Arc<str>, Arc<str>), key: Key, accepted: Stamp, now: Moment) -> bool {
        self.ledger.named.get(names).into_iter().flatten().any(|id| {
            let part = &self.ledger.parts[id];
            let windows = self.ledger.queues[&part.queue].possible(0, now.t);
            let window = windows.map(|options| options.dedup_secs as u64 * 1_000_000).max().unwrap_or(0);
            let near =
                |offset: &Offset| part.at(*offset).is_some_and(|row| row.accepted_at.0.abs_diff(accepted.0) <= window);
            part.offsets.get(&key).is_some_and(|offsets| offsets.iter().any(near))
        })
    }

    /// When the oldest push without an answer came: it may be on its way to disk.
    pub fn oldest_push(&self) -> Option<Stamp> {
        let open = self.by_slot.values().map(|index| &self.asks[*index]);
        let pushes = open.filter(|asked| matches!(asked.ask, Ask::Push(_)));
        pushes.filter_map(|asked| Some(asked.delivered?.stamp)).min()
    }

    /// Every `buffered` message was decided.
    pub fn check_awaited(&self) {
        if let Some((lane, awaited)) = self.awaited.iter().find(|(_, awaited)| !awaited.is_empty()) {
            let part = self.ledger.named.get(&(lane.1.clone(), lane.2.clone()));
            let what = format!("C1: {:?} was buffered and never came out", awaited[0].id);
            self.fail(part.and_then(|ids| ids.last().copied()), &what);
        }
    }
}
