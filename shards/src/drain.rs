//! Drafts out of the spool: what is stored of their keys, and how they are judged.
//!
//!     front of the lane > Call::ReadKeys from window before acceptance on > Seen by key
//!                       > (Call::ReadRecords: ids, where only the id can tell) > looked > judge
//!
//! A record was accepted long ago, perhaps sent before with an unknown outcome, so the window of live pushes, which
//! ends now, does not help. A message is a duplicate of a stored one with its key that was accepted within the window
//! around its own acceptance, or that has its very id: an earlier attempt.
//!
//! Holds: what is known of a key reaches through `through`, which is `verified` when the lane closes; the
//! compare-and-set proves that nothing came after. Does not write. Source: rule 15.

use crate::calls::Pending;
use crate::command::{Duplicate, Record};
use crate::effect::{Call, KeysRow, StoreError, key_at};
use crate::frames::Frames;
use crate::ids::{Key, MessageId, Offset, Stamp};
use crate::lane::{DraftFrom, LaneState, WaitingDraft};
use crate::limits::{CLOCK_ASTRAY_US, WINDOW_MARGIN_US};
use crate::planted::{Bug, is};
use crate::shard::Shard;
use crate::slab::Ref;
use crate::tail;
use hashbrown::HashMap;

/// What is stored of the keys of a lane's drafts out of the spool.
#[derive(Debug)]
pub struct Lookup {
    through: Offset,
    /// The queue's window when it was made: under another one, other keys would have been read and other ids asked for.
    window_us: i64,
    seen: HashMap<Key, Vec<Seen>>,
}

/// A stored message.
#[derive(Clone, Copy, Debug)]
struct Seen {
    offset: Offset,
    /// When it was accepted, else when it was stored.
    accepted: Stamp,
    /// `None`: not read yet. Zero: its text is gone.
    id: Option<MessageId>,
}

/// What the judge has found of drafts in the close under way, ahead of the store's word.
#[derive(Debug, Default)]
pub(crate) struct Fresh(HashMap<Key, Vec<Seen>>);

impl Lookup {
    /// The stored message that makes this one a duplicate, the lowest.
    fn original(&self, key: Key, id: MessageId, accepted: Stamp, window_us: i64) -> Option<Offset> {
        let seen = self.seen.get(&key)?;
        seen.iter().find(|seen| seen.is_same(id, accepted, window_us)).map(|seen| seen.offset)
    }

    /// A stored message with this key of which only the id can tell whether it is the same, and which is not read yet.
    fn undecided(&self, key: Key, id: MessageId, accepted: Stamp, window_us: i64) -> Option<Offset> {
        let seen = self.seen.get(&key)?;
        if seen.iter().any(|seen| seen.is_same(id, accepted, window_us)) {
            return None;
        }
        seen.iter().find(|seen| seen.id.is_none()).map(|seen| seen.offset)
    }

    /// Whether it is all that has to be known of a lane stored through `end`, under a window.
    pub(crate) fn is_whole(&self, end: Offset, window_us: i64) -> bool {
        self.through == end && self.window_us == window_us
    }

    fn add(&mut self, key: Key, seen: Seen) {
        if let Some(known) = self.seen.get_mut(&key) {
            known.push(seen);
        }
    }
}

impl Seen {
    fn is_same(&self, id: MessageId, accepted: Stamp, window_us: i64) -> bool {
        let near = 0 < window_us && self.accepted.0.abs_diff(accepted.0) <= window_us as u64;
        near || self.id == Some(id)
    }
}

impl Shard {
    pub(crate) fn window_us(&self, at: Ref) -> i64 {
        self.queues.options(self.lanes[at].queue).dedup_secs as i64 * 1_000_000
    }

    /// Whether the first draft of a lane, one out of the spool, may be judged; else what it lacks is on its way.
    pub(crate) fn looked_up(&mut self, at: Ref) -> bool {
        let window_us = self.window_us(at);
        let lane = &mut self.lanes[at];
        let to = lane.verified;
        let first_looked = matches!(lane.drafts.front().map(|w| w.from), Some(DraftFrom::Spool { looked: true, .. }));
        if let Some(lookup) = lane.lookup.as_mut().filter(|lookup| first_looked && lookup.window_us == window_us) {
            if lookup.through < to {
                let from = lookup.through.plus(1);
                return self.look_further(at, from, to, None);
            }
            return self.decided(at);
        }
        let (mut seen, mut since, set_back_us) = (HashMap::new(), i64::MAX, self.set_back_us);
        for waiting in lane.drafts.iter_mut() {
            let DraftFrom::Spool { accepted_at, found, looked, .. } = &mut waiting.from else { break };
            *looked = true;
            // A minted key can only be stored by an earlier attempt, which came after the acceptance.
            let back = if waiting.draft.all_minted { 0 } else { window_us };
            // Unless PostgreSQL's clock was set back meanwhile, or an earlier process took the acceptance from another clock.
            let astray = if *found { CLOCK_ASTRAY_US.max(set_back_us) } else { set_back_us };
            since = since.min(accepted_at.0.saturating_sub(back + WINDOW_MARGIN_US).saturating_sub(astray));
            for i in 0..waiting.draft.count {
                seen.entry(key_at(&waiting.draft.keys, i as usize)).or_insert_with(Vec::new);
            }
        }
        let nothing = to == Offset::NONE || lane.last_created_at.0 < since;
        let through = if nothing { to } else { Offset::NONE };
        lane.lookup = Some(Box::new(Lookup { through, window_us, seen }));
        nothing || self.look_further(at, Offset(0), to, Some(Stamp(since)))
    }

    fn look_further(&mut self, at: Ref, from: Offset, to: Offset, since: Option<Stamp>) -> bool {
        let (partition, limit) = (self.lanes[at].id, self.config.keys_page);
        self.lanes[at].state = LaneState::Loading;
        let call = Call::ReadKeys { partition, from, to, since, limit, newest_first: false };
        self.ask(call, Pending::LookUp { lane: at, to, since });
        false
    }

    /// A page of keys for the lookup of a lane.
    pub(crate) fn keys_looked_up(
        &mut self,
        at: Ref,
        to: Offset,
        since: Option<Stamp>,
        page: Result<(Vec<KeysRow>, bool), StoreError>,
    ) {
        let Some(lane) = self.lanes.slab.get_mut(at) else { return };
        let (rows, complete) = match page {
            Ok(page) => page,
            Err(error) => return self.lane_failed(at, &error),
        };
        let Some(lookup) = &mut lane.lookup else { return };
        for row in &rows {
            let accepted = row.accepted_at.unwrap_or(row.created_at);
            for i in 0..row.keys.len() / 16 {
                let offset = row.base.plus(i as i64);
                if lookup.through < offset {
                    lookup.add(key_at(&row.keys, i), Seen { offset, accepted, id: None });
                }
            }
        }
        if let (false, Some(last)) = (complete, rows.last()) {
            let from = last.base.plus(last.keys.len() as i64 / 16);
            lookup.through = lookup.through.max(from.plus(-1));
            self.look_further(at, from, to, since);
            return;
        }
        lookup.through = lookup.through.max(to);
        lane.state = LaneState::Ready;
        self.advance(at);
    }

    /// Whether every message can be judged that was looked up; else an id is on its way.
    fn decided(&mut self, at: Ref) -> bool {
        let window_us = self.window_us(at);
        let lane = &self.lanes[at];
        let Some(lookup) = &lane.lookup else { return false };
        let looked = |w: &&WaitingDraft| matches!(w.from, DraftFrom::Spool { looked: true, .. });
        let open = lane.drafts.iter().take_while(looked).find_map(|waiting| {
            let accepted = waiting.accepted_at()?;
            let mut keys = (0..).map(|i| key_at(&waiting.draft.keys, i));
            let frames = waiting.draft.raw();
            let mut messages = Frames::new(&frames).filter_map(Result::ok).zip(&mut keys);
            messages.find_map(|(frame, key)| lookup.undecided(key, frame.id, accepted, window_us))
        });
        let Some(offset) = open else { return true };
        if let Some(message) = lane.tail.message(offset) {
            self.ids_looked_up(at, offset, &[(offset, message.id)]);
            return self.decided(at);
        }
        let partition = lane.id;
        self.lanes[at].state = LaneState::Loading;
        let call = Call::ReadRecords { partition, from: offset, to: offset, bytes: 0, messages: 1 };
        self.ask(call, Pending::LookUpId { lane: at, offset });
        false
    }

    /// The record that holds an offset, or nothing when it is gone.
    pub(crate) fn record_looked_up(
        &mut self,
        at: Ref,
        offset: Offset,
        result: Result<(Vec<Record>, Offset), StoreError>,
    ) {
        if self.lanes.slab.get(at).is_none() {
            return;
        }
        let records = match result {
            Ok((records, _)) => records,
            Err(error) => return self.lane_failed(at, &error),
        };
        let ids: Vec<(Offset, MessageId)> = records
            .iter()
            .flat_map(|record| (0..).zip(tail::ids_of(record)).map(|(i, id)| (record.base.plus(i), id)))
            .collect();
        self.ids_looked_up(at, offset, &ids);
        self.lanes[at].state = LaneState::Ready;
        self.advance(at);
    }

    fn ids_looked_up(&mut self, at: Ref, asked: Offset, ids: &[(Offset, MessageId)]) {
        let Some(lookup) = &mut self.lanes[at].lookup else { return };
        for seen in lookup.seen.values_mut().flatten().filter(|seen| seen.id.is_none()) {
            let found = ids.binary_search_by_key(&seen.offset, |(offset, _)| *offset).ok().map(|place| ids[place].1);
            if found.is_some() || seen.offset == asked {
                seen.id = Some(found.unwrap_or_default());
            }
        }
    }

    /// Duplicates of a draft out of the spool, against what is stored and what is `fresh` in this close; what is new is
    /// added there, from offset `next` on.
    pub(crate) fn judge_drained(
        &self,
        at: Ref,
        waiting: &WaitingDraft,
        mut next: Offset,
        fresh: &mut Fresh,
    ) -> Vec<Duplicate> {
        let window_us = self.window_us(at);
        let (Some(lookup), Some(accepted)) = (&self.lanes[at].lookup, waiting.accepted_at()) else { return Vec::new() };
        if is(Bug::DrainWithoutDedup) {
            return Vec::new();
        }
        let mut duplicates = Vec::new();
        let frames = waiting.draft.raw();
        for (index, frame) in (0..).zip(Frames::new(&frames).filter_map(Result::ok)) {
            let key = key_at(&waiting.draft.keys, index as usize);
            let of_close = || {
                let same = fresh.0.get(&key)?.iter().find(|seen| seen.is_same(frame.id, accepted, window_us));
                same.map(|seen| seen.offset)
            };
            match lookup.original(key, frame.id, accepted, window_us).or_else(of_close) {
                Some(offset) => duplicates.push(Duplicate { index, offset, id: None }),
                None => {
                    let seen = Seen { offset: next, accepted, id: Some(frame.id) };
                    fresh.0.entry(key).or_default().push(seen);
                    next = next.plus(1);
                }
            }
        }
        duplicates
    }

    /// A commit of ours was written through `verified`, which was judged against all before it.
    pub(crate) fn lookup_follows(&mut self, at: Ref, before: Offset, fresh: Fresh) {
        let lane = &mut self.lanes[at];
        let more = lane.drafts.front().is_some_and(WaitingDraft::is_drained);
        if !more {
            lane.lookup = None;
        }
        let Some(lookup) = lane.lookup.as_mut().filter(|lookup| lookup.through == before) else { return };
        for (key, seen) in fresh.0 {
            seen.into_iter().for_each(|seen| lookup.add(key, seen));
        }
        lookup.through = lane.verified;
    }
}
