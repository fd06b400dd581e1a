//! A group's ready ring: lanes that may have something and are not leased, in the order they are served.
//!
//! Holds: a cursor has one entry at most. One whose cursor is not ready any more (a pinned pop was served) stays until it is
//! met, or until the lane is ready again: taking a lane out does not search. Of lanes that left memory no more entries stay than
//! of those that are there, and whoever walks the ring passes no more entries that are not ready than ones that are.

use crate::lane::{Cursor, Lanes};
use crate::slab::Ref;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub struct Ring {
    entries: VecDeque<Ref>,
    /// Entries whose cursors are ready.
    ready: usize,
    /// Entries whose lanes have left memory.
    left: usize,
}

impl Ring {
    /// Lanes that are ready.
    pub fn len(&self) -> usize {
        self.ready
    }

    pub fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Puts a lane last. One that was taken out and has its entry still is where it was.
    pub fn put(&mut self, lane: Ref, cursor: &mut Cursor) {
        if !cursor.in_ready {
            cursor.in_ready = true;
            self.ready += 1;
        }
        if !cursor.in_ring {
            cursor.in_ring = true;
            self.entries.push_back(lane);
        }
    }

    /// Takes a lane out, if it is there.
    pub fn take_out(&mut self, cursor: &mut Cursor) {
        if cursor.in_ready {
            cursor.in_ready = false;
            self.ready -= 1;
        }
    }

    /// The lane of a cursor has left memory.
    pub fn lane_left(&mut self, cursor: &mut Cursor, lanes: &Lanes) {
        self.take_out(cursor);
        self.left += usize::from(cursor.in_ring);
        if self.entries.len() < 2 * self.left {
            self.entries.retain(|at| lanes.slab.get(*at).is_some());
            self.left = 0;
        }
    }

    /// Takes the first lane that is ready.
    pub fn take_first(&mut self, group: Ref, lanes: &mut Lanes) -> Option<Ref> {
        while let Some(at) = self.entries.pop_front() {
            let Some(lane) = lanes.slab.get_mut(at) else {
                self.left = self.left.saturating_sub(1);
                continue;
            };
            let Some(cursor) = lane.cursor_mut(group) else { continue };
            cursor.in_ring = false;
            if cursor.in_ready {
                self.take_out(cursor);
                return Some(at);
            }
        }
        None
    }

    /// Lets entries go that are not ready, when they are the most. Before a walk.
    pub fn tidy(&mut self, group: Ref, lanes: &mut Lanes) {
        if self.entries.len() <= 2 * self.ready + 1 {
            return;
        }
        self.entries.retain(|at| {
            let Some(cursor) = lanes.slab.get_mut(*at).and_then(|lane| lane.cursor_mut(group)) else { return false };
            cursor.in_ring = cursor.in_ready;
            cursor.in_ready
        });
        self.left = 0;
    }

    /// The lanes that are ready, in order.
    pub fn iter<'a>(&'a self, group: Ref, lanes: &'a Lanes) -> impl Iterator<Item = Ref> + 'a {
        let is_ready = move |at: &Ref| lanes.slab.get(*at).and_then(|l| l.cursor(group)).is_some_and(|c| c.in_ready);
        self.entries.iter().copied().filter(is_ready)
    }

    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Micros, TenantId};
    use crate::lane::Lane;
    use crate::place::LaneKey;
    use crate::slab::Slab;

    /// `n` lanes of one queue, and a group of it.
    fn lanes(n: usize) -> (Lanes, Vec<Ref>, Ref) {
        let mut lanes = Lanes::default();
        let some = Slab::default().insert(());
        let lane =
            |i: usize| Lane::new(LaneKey::new(TenantId::DEFAULT, "q".into(), i.to_string().into()), some, Micros(0));
        let refs = (0..n).map(|i| lanes.insert(lane(i))).collect();
        (lanes, refs, some)
    }

    #[test]
    fn a_lane_that_is_served_past_the_ring_has_one_entry_and_keeps_its_place() {
        let (mut lanes, refs, group) = lanes(3);
        let mut ring = Ring::default();
        refs.iter().for_each(|&at| ring.put(at, lanes[at].cursor_entry(group)));
        for _ in 0..1000 {
            ring.take_out(lanes[refs[1]].cursor_entry(group));
            ring.put(refs[1], lanes[refs[1]].cursor_entry(group));
        }
        ring.take_out(lanes[refs[0]].cursor_entry(group));
        assert_eq!((ring.len(), ring.entries()), (2, 3));
        assert_eq!(ring.iter(group, &lanes).collect::<Vec<_>>(), refs[1..]);
        let taken: Vec<Ref> = std::iter::from_fn(|| ring.take_first(group, &mut lanes)).collect();
        assert_eq!((taken, ring.len(), ring.entries()), (refs[1..].to_vec(), 0, 0));
    }

    #[test]
    fn a_walk_passes_few_entries_that_are_not_ready() {
        let (mut lanes, refs, group) = lanes(1000);
        let mut ring = Ring::default();
        refs.iter().for_each(|&at| ring.put(at, lanes[at].cursor_entry(group)));
        refs[..999].iter().for_each(|&at| ring.take_out(lanes[at].cursor_entry(group)));
        ring.tidy(group, &mut lanes);
        assert_eq!((ring.len(), ring.entries()), (1, 1));
        // One that went comes back, last.
        ring.put(refs[0], lanes[refs[0]].cursor_entry(group));
        let taken: Vec<Ref> = std::iter::from_fn(|| ring.take_first(group, &mut lanes)).collect();
        assert_eq!(taken, [refs[999], refs[0]]);
    }

    #[test]
    fn lanes_that_left_memory_leave_the_ring() {
        let (mut lanes, _, group) = lanes(0);
        let mut ring = Ring::default();
        let kept =
            lanes.insert(Lane::new(LaneKey::new(TenantId::DEFAULT, "q".into(), "kept".into()), group, Micros(0)));
        ring.put(kept, lanes[kept].cursor_entry(group));
        for i in 0..1000 {
            let key = LaneKey::new(TenantId::DEFAULT, "q".into(), i.to_string().into());
            let at = lanes.insert(Lane::new(key, group, Micros(0)));
            ring.put(at, lanes[at].cursor_entry(group));
            let mut gone = lanes.remove(at).expect("there");
            ring.lane_left(&mut gone.cursors[0], &lanes);
            assert!(ring.len() == 1 && ring.entries() <= 3, "{ring:?}");
        }
        assert_eq!(ring.take_first(group, &mut lanes), Some(kept));
    }
}
