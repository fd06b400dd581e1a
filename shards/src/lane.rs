//! What a shard remembers of one partition: where its log ends, the waiting drafts, the window, the tail, the cursors.

use crate::command::{Draft, SpoolId};
use crate::doubt::Doubt;
use crate::drain::Lookup;
use crate::effect::CursorRow;
use crate::ids::{Micros, Offset, PartitionId, Stamp};
use crate::limits::BUSY_TRIES;
use crate::memo::Memo;
use crate::place::LaneKey;
use crate::prepare::PrepareTicket;
use crate::seal::Probe;
use crate::sealed::Sealed;
use crate::slab::{Ref, Slab};
use crate::tail::Tail;
use crate::window::Window;
use hashbrown::{HashMap, HashTable};
use std::collections::VecDeque;

/// What stands between a lane's drafts and the next fused commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Number and offsets are not known.
    Unknown,
    /// A call that reads (or makes) the partition is on its way.
    Asked,
    /// Keys are being read into the window.
    Loading,
    /// May close.
    Ready,
    /// In the fused commit that is in flight.
    Flying,
}

#[derive(Debug)]
pub struct Lane {
    pub key: LaneKey,
    pub queue: Ref,
    /// Its place among the lanes of its queue: see [`Lanes::of_queue`].
    place: usize,
    /// 0 while unknown.
    pub id: PartitionId,
    pub state: LaneState,
    /// In the closing order.
    pub closing: bool,
    /// The store refused a commit this lane was in.
    pub doubt: Doubt,
    /// Commits in a row that found the row locked or moved.
    pub busy_count: u8,
    /// Through this offset the window has seen every key: what the compare-and-set expects.
    pub verified: Offset,
    /// Highest offset known to be stored, by whomever.
    pub end: Offset,
    /// When that was learnt; 0 from the log, whose reader has seen it.
    pub grown: Micros,
    pub log_start: Offset,
    /// Stamp of the newest segment, or later.
    pub last_created_at: Stamp,
    /// The window and the sealed runs together hold every key whose stamp is at or after this.
    pub window_since: Stamp,
    pub window: Window,
    /// What was sealed of a window over the budget; mostly never.
    pub sealed: Option<Box<Sealed>>,
    pub tail: Tail,
    /// In the order in which tails lose records when the budget is exceeded.
    pub in_tail_order: bool,
    /// Those out of the spool first: they are older.
    pub drafts: VecDeque<WaitingDraft>,
    /// One of them must go to the spool.
    pub to_spool: bool,
    /// What is stored of the keys of drafts out of the spool.
    pub lookup: Option<Box<Lookup>>,
    /// Bundles that want to know where the lane ends and which keys it holds.
    pub preparing: Vec<PrepareTicket>,
    pub cursors: Vec<Cursor>,
    /// When a draft last arrived, for eviction.
    pub touched: Micros,
}

/// Nothing loaded: the window reaches back to no stamp at all.
pub const SINCE_NEVER: Stamp = Stamp(i64::MAX);
/// The newest segment may be as new as any.
pub const CREATED_SOMEWHEN: Stamp = Stamp(i64::MAX);
/// The window has every key the partition ever had.
pub const SINCE_EVER: Stamp = Stamp(i64::MIN);

/// Whose draft it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftFrom {
    /// Of a push that waits for its verdict.
    Push { job: Ref, index: usize },
    /// Out of the spool, accepted then. `found`: perhaps written by an earlier process, whose clock may have been astray.
    /// `looked`: what the lane's lookup holds of its keys is all there is. `refused`: the store refused it, and the spool's
    /// word is awaited; nothing of the lane overtakes it.
    Spool { id: SpoolId, accepted_at: Stamp, found: bool, looked: bool, refused: bool },
}

#[derive(Debug)]
pub struct WaitingDraft {
    pub from: DraftFrom,
    pub draft: Draft,
    pub since: Micros,
    /// What sealed runs hold of it; only on lanes that have some.
    pub probe: Option<Box<Probe>>,
}

impl WaitingDraft {
    /// The same draft, for a lane that may be another partition by now: what was asked for it says nothing of that.
    pub fn anew(mut self) -> WaitingDraft {
        if let DraftFrom::Spool { looked, .. } = &mut self.from {
            *looked = false;
        }
        WaitingDraft { probe: None, ..self }
    }

    /// Whether it is out of the spool and not looked up yet.
    pub fn is_unlooked(&self) -> bool {
        matches!(self.from, DraftFrom::Spool { looked: false, .. })
    }

    /// Whether it waits for the spool's word, after a refusal.
    pub fn is_refused(&self) -> bool {
        matches!(self.from, DraftFrom::Spool { refused: true, .. })
    }

    /// Whether it came out of the spool.
    pub fn is_drained(&self) -> bool {
        matches!(self.from, DraftFrom::Spool { .. })
    }

    /// When it was accepted, if it waited in the spool.
    pub fn accepted_at(&self) -> Option<Stamp> {
        match self.from {
            DraftFrom::Spool { accepted_at, .. } => Some(accepted_at),
            DraftFrom::Push { .. } => None,
        }
    }
}

/// Memory of one cursor row, and what is going on with it.
#[derive(Debug)]
pub struct Cursor {
    pub group: Ref,
    /// The row as last read or written; `None`: not read yet.
    pub row: Option<CursorRow>,
    /// When the row's lease is over, by our reckoning; 0 without one.
    pub lease_until: Micros,
    /// A claim, ack or read that will end in a move is under way: everything else waits.
    pub busy: bool,
    /// The row may have been changed by others while this was busy: forget it when that ends.
    pub forget: bool,
    /// When the row was forgotten last: what was asked for before may be what it was.
    pub forgotten: Micros,
    /// Ready: counted in its group's ring, and found there.
    pub in_ready: bool,
    /// The ring has an entry for it, which counts for nothing when the lane was served otherwise.
    pub in_ring: bool,
    /// A timer that will look at this cursor again is armed for this moment.
    pub timer: Option<Micros>,
    /// Stamp of the message at an offset, learnt by a cold read: (offset, stamp).
    pub stamp_at: Option<(Offset, Stamp)>,
    /// Ack sets that wait for `busy` to end.
    pub waiting: VecDeque<Ticket>,
    pub memo: Option<Box<Memo>>,
}

/// One set of one ack job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub job: Ref,
    pub set: usize,
}

impl Cursor {
    pub fn new(group: Ref) -> Cursor {
        Cursor {
            group,
            row: None,
            lease_until: Micros(0),
            busy: false,
            forget: false,
            forgotten: Micros(0),
            in_ready: false,
            in_ring: false,
            timer: None,
            stamp_at: None,
            waiting: VecDeque::new(),
            memo: None,
        }
    }

    /// Takes over a row that was just read, `now` being the receipt.
    pub fn learn(&mut self, row: CursorRow, now: Micros) {
        self.lease_until =
            if row.lease.is_some() && row.lease_left_us > 0 { now.plus(row.lease_left_us as u64) } else { Micros(0) };
        self.row = Some(row);
    }

    /// Whether a row that comes along with an answer is to be taken over: nothing better is known, nothing is under way that
    /// will tell, and it was asked for when it could not be old.
    pub fn lacks_row(&self, asked: Micros) -> bool {
        self.row.is_none() && !self.busy && self.forgotten <= asked
    }

    /// Whether its row is known, or was and is forgotten: what was asked for before may tell what it is not any more.
    pub fn was_known(&self) -> bool {
        self.row.is_some() || Micros(0) < self.forgotten
    }

    /// The row must be read again before anything is decided on it: whoever reads it learns of a lease or a hold as well. True:
    /// a timer was armed, whose entry does not count any more.
    #[must_use]
    pub fn forget_row(&mut self, now: Micros) -> bool {
        self.forgotten = now;
        self.row = None;
        self.lease_until = Micros(0);
        self.forget = false;
        self.timer.take().is_some()
    }

    /// The same, once what is under way has ended with what it knows: its move is refused if that is old.
    #[must_use]
    pub fn forget_soon(&mut self, now: Micros) -> bool {
        self.forget = self.busy;
        !self.busy && self.forget_row(now)
    }

    /// Whether a lease holds the partition, by our reckoning.
    pub fn leased(&self, now: Micros) -> bool {
        now < self.lease_until
    }
}

impl Lane {
    pub fn new(key: LaneKey, queue: Ref, now: Micros) -> Lane {
        Lane {
            key,
            queue,
            place: 0,
            id: PartitionId(0),
            state: LaneState::Unknown,
            closing: false,
            doubt: Doubt::default(),
            busy_count: 0,
            verified: Offset::NONE,
            end: Offset::NONE,
            grown: Micros(0),
            log_start: Offset(0),
            last_created_at: Stamp(0),
            window_since: SINCE_NEVER,
            window: Window::new(),
            sealed: None,
            tail: Tail::default(),
            in_tail_order: false,
            drafts: VecDeque::new(),
            to_spool: false,
            lookup: None,
            preparing: Vec::new(),
            cursors: Vec::new(),
            touched: now,
        }
    }

    /// Whether it closes by itself: its commit may be refused, or waits for a row.
    pub fn goes_alone(&self) -> bool {
        self.doubt.is_any() || self.busy_count > BUSY_TRIES
    }

    /// Whether nothing of it may be stored before the spool says what becomes of its first draft.
    pub fn waits_for_word(&self) -> bool {
        self.drafts.front().is_some_and(WaitingDraft::is_refused)
    }

    pub fn cursor(&self, group: Ref) -> Option<&Cursor> {
        self.cursors.iter().find(|c| c.group == group)
    }

    pub fn cursor_mut(&mut self, group: Ref) -> Option<&mut Cursor> {
        self.cursors.iter_mut().find(|c| c.group == group)
    }

    /// The cursor memory of a group, made when there is none.
    pub fn cursor_entry(&mut self, group: Ref) -> &mut Cursor {
        if let Some(i) = self.cursors.iter().position(|c| c.group == group) {
            return &mut self.cursors[i];
        }
        self.cursors.push(Cursor::new(group));
        self.cursors.last_mut().expect("just pushed")
    }

    /// The sealed runs, when there are any.
    pub fn runs(&self) -> Option<&Sealed> {
        self.sealed.as_deref().filter(|sealed| !sealed.is_empty())
    }

    /// Heap bytes of window and sealed runs.
    pub fn window_bytes(&self) -> usize {
        self.window.bytes() + self.sealed.as_ref().map_or(0, |sealed| sealed.bytes())
    }

    /// The stored end moved, by our commit or somebody's.
    pub fn saw_end(&mut self, end: Offset, now: Micros) {
        if self.end < end {
            (self.end, self.grown) = (end, now);
        }
    }
}

/// All lanes of a shard, by names and by number.
#[derive(Debug, Default)]
pub struct Lanes {
    /// Boxed, so that the memory of lanes that went goes back.
    pub slab: Slab<Box<Lane>>,
    by_name: HashTable<(u64, Ref)>,
    by_id: HashMap<PartitionId, Ref>,
    of_queue: HashMap<Ref, Vec<Ref>>,
}

impl Lanes {
    pub fn find(&self, key: &LaneKey) -> Option<Ref> {
        self.by_name.find(key.hash(), |(hash, at)| *hash == key.hash() && self.slab[*at].key == *key).map(|(_, at)| *at)
    }

    /// A lane by its names' hash alone: a hint, another lane's at worst.
    pub fn find_hash(&self, hash: u64) -> Option<Ref> {
        self.by_name.find(hash, |(known, _)| *known == hash).map(|(_, at)| *at)
    }

    pub fn by_number(&self, id: PartitionId) -> Option<Ref> {
        self.by_id.get(&id).copied()
    }

    /// The lanes of a queue, in no order that means anything.
    pub fn of_queue(&self, queue: Ref) -> &[Ref] {
        self.of_queue.get(&queue).map_or(&[], |lanes| lanes)
    }

    pub fn insert(&mut self, mut lane: Lane) -> Ref {
        let hash = lane.key.hash();
        let queue = lane.queue;
        lane.place = self.of_queue(queue).len();
        let at = self.slab.insert(Box::new(lane));
        self.of_queue.entry(queue).or_default().push(at);
        self.by_name.insert_unique(hash, (hash, at), |(hash, _)| *hash);
        at
    }

    /// Gives a lane its number.
    pub fn identify(&mut self, at: Ref, id: PartitionId) {
        let lane = &mut self.slab[at];
        if lane.id != id {
            self.by_id.remove(&lane.id);
            lane.id = id;
            self.by_id.insert(id, at);
        }
    }

    pub fn remove(&mut self, at: Ref) -> Option<Box<Lane>> {
        let lane = self.slab.remove(at)?;
        self.by_id.remove(&lane.id);
        let of_queue = self.of_queue.get_mut(&lane.queue).expect("it has this one");
        of_queue.swap_remove(lane.place);
        if let Some(&moved) = of_queue.get(lane.place) {
            self.slab[moved].place = lane.place;
        } else if of_queue.is_empty() {
            self.of_queue.remove(&lane.queue);
        }
        if let Ok(entry) = self.by_name.find_entry(lane.key.hash(), |(_, r)| *r == at) {
            entry.remove();
        }
        Some(lane)
    }
}

impl std::ops::Index<Ref> for Lanes {
    type Output = Lane;
    fn index(&self, at: Ref) -> &Lane {
        &self.slab[at]
    }
}
impl std::ops::IndexMut<Ref> for Lanes {
    fn index_mut(&mut self, at: Ref) -> &mut Lane {
        &mut self.slab[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use proptest::prelude::*;

    /// A page of a scan, or an ack's look at a cursor, may be on its way while the cursor moves and its row is forgotten: then it
    /// tells of a lease that has ended.
    #[test]
    fn what_was_asked_for_before_a_row_was_forgotten_is_not_taken_over() {
        let mut groups = Slab::default();
        let mut cursor = Cursor::new(groups.insert(()));
        assert!(cursor.lacks_row(Micros(0)), "never read");
        cursor.learn(crate::fake::row(1), Micros(5));
        assert!(!cursor.lacks_row(Micros(9)), "it is known");
        assert!(!cursor.forget_row(Micros(10)));
        assert!(!cursor.lacks_row(Micros(9)) && cursor.lacks_row(Micros(10)));
        cursor.busy = true;
        assert!(!cursor.lacks_row(Micros(11)), "what is under way will tell");
        assert!(!cursor.forget_soon(Micros(12)) && cursor.forget, "when that has ended");
    }

    proptest! {
        #[test]
        fn the_lanes_of_a_queue_are_those_that_say_so(steps in proptest::collection::vec((0usize..3, 0usize..20), 0..60)) {
            let mut lanes = Lanes::default();
            let mut names = Slab::default();
            let queues: Vec<Ref> = (0..3).map(|_| names.insert(())).collect();
            let mut there: Vec<Ref> = Vec::new();
            for (n, (queue, remove)) in steps.into_iter().enumerate() {
                if remove < there.len() {
                    lanes.remove(there.swap_remove(remove));
                } else {
                    let key = LaneKey::new(TenantId::DEFAULT, queue.to_string().into(), n.to_string().into());
                    there.push(lanes.insert(Lane::new(key, queues[queue], Micros(0))));
                }
                for &queue in &queues {
                    let mut listed = lanes.of_queue(queue).to_vec();
                    let mut want: Vec<Ref> = there.iter().copied().filter(|&at| lanes[at].queue == queue).collect();
                    listed.sort_unstable();
                    want.sort_unstable();
                    prop_assert_eq!(listed, want);
                }
            }
        }
    }
}
