//! What leases handed out, remembered for their acks: an ack resolves its keys here first.
//!
//! Holds: offsets never change their keys, so a memo cannot be wrong, and any of them may be dropped: acks read keys then.
//! Together they keep a bound.

use crate::command::Claim;
use crate::ids::Offset;
use crate::limits::SWEEP_STEP;
use crate::shard::Shard;
use crate::slab::Ref;

/// What the last lease granted on a cursor handed out, kept after it is settled.
#[derive(Debug)]
pub struct Memo {
    pub start: Offset,
    pub end: Offset,
    /// Keys of the span: (base, 16 bytes a message). A copy: those of the records around it would stay as well.
    pub keys: Vec<(Offset, Box<[u8]>)>,
}

impl Memo {
    fn of(claim: &Claim) -> Memo {
        let mut spans = Vec::with_capacity(claim.records.len());
        for record in &claim.records {
            let (from, to) = (claim.start.max(record.base), claim.end.min(record.last()));
            let place = |offset: Offset| 16 * (offset.0 - record.base.0) as usize;
            if from <= to
                && let Some(keys) = record.keys.get(place(from)..place(to.plus(1)))
            {
                spans.push((from, keys.into()));
            }
        }
        Memo { start: claim.start, end: claim.end, keys: spans }
    }

    pub fn bytes(&self) -> usize {
        let spans = self.keys.iter().map(|(_, keys)| size_of::<(Offset, Box<[u8]>)>() + keys.len());
        size_of::<Memo>() + spans.sum::<usize>()
    }
}

impl Shard {
    pub(crate) fn remember(&mut self, lane: Ref, group: Ref, claim: &Claim) {
        let memo = Memo::of(claim);
        self.memo_bytes += memo.bytes();
        let before = self.lanes[lane].cursor_entry(group).memo.replace(Box::new(memo));
        self.memo_left(before);
    }

    /// One is not remembered any more.
    pub(crate) fn memo_left(&mut self, memo: Option<Box<Memo>>) {
        self.memo_bytes = self.memo_bytes.saturating_sub(memo.map_or(0, |memo| memo.bytes()));
    }

    /// Over the budget: those of leases that are over go, some in each turn. Over twice the budget any goes, at once.
    pub(crate) fn keep_memos(&mut self) {
        let any = self.memo_bytes > 2 * self.config.memo_bytes_max;
        let places = self.lanes.slab.places();
        for _ in 0..if any { places } else { places.min(SWEEP_STEP) } {
            if self.memo_bytes <= self.config.memo_bytes_max {
                return;
            }
            self.memo_hand = self.memo_hand.wrapping_add(1);
            let Some(at) = self.lanes.slab.at_hand(self.memo_hand) else { continue };
            for i in 0..self.lanes[at].cursors.len() {
                let cursor = &mut self.lanes[at].cursors[i];
                if any || !cursor.leased(self.now) {
                    let memo = cursor.memo.take();
                    self.memo_left(memo);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
