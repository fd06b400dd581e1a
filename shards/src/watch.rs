//! Parked pops: watches, and the hints that wake them.
//!
//!     Command::Watch > watch ... a lane is ready > wake_* > Effect::Wake > (the slot asks, or leaves) > Command::Unwatch
//!
//! Holds: a watch fires once; of those on one thing the first that came is woken first. A hint may go to a client that left: it
//! is passed on when its watch goes, within its group and while there is something, and each second whoever waits beside
//! something that is ready is woken anyway. Source: data plane 4.5.

use crate::command::{PopFrom, Watch};
use crate::effect::Effect;
use crate::ids::Slot;
use crate::limits::RECHECK_US;
use crate::queue::GroupState;
use crate::shard::Shard;
use crate::slab::Ref;
use crate::standing::{Standing, standing};
use crate::timers::Timer;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
struct Watched {
    /// Which of all watches: a slot may watch again.
    number: u64,
    on: WatchOn,
    fired: bool,
}

#[derive(Debug)]
enum WatchOn {
    Group(Ref),
    /// Hash of the lane's names, and the group's.
    Lane(u64, Arc<str>),
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_slot: BySlot,
    made: u64,
    /// Of pinned pops: by the hash of their lane's names, then by group.
    pinned: HashMap<u64, Vec<(Arc<str>, Waiters)>>,
    /// A [`Timer::Recheck`] is armed: one, for all watches.
    rechecks: bool,
}

type BySlot = HashMap<Slot, Watched>;

/// Watches on one thing, first come first woken. One that leaves is not searched for: its entry counts for nothing, and no
/// more such entries stay than others.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    entries: VecDeque<(Slot, u64)>,
    /// Entries whose watches have left.
    left: usize,
}

impl Waiters {
    pub fn len(&self) -> usize {
        self.entries.len() - self.left
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next to wake; its watch has fired then.
    fn next(&mut self, watches: &mut BySlot) -> Option<Slot> {
        while let Some((slot, number)) = self.entries.pop_front() {
            if let Some(watched) = watches.get_mut(&slot).filter(|watched| watched.number == number) {
                watched.fired = true;
                return Some(slot);
            }
            self.left -= 1;
        }
        None
    }

    /// A watch that had not fired is gone.
    fn one_left(&mut self, watches: &BySlot) {
        self.left += 1;
        if self.entries.len() < 2 * self.left {
            self.entries.retain(|(slot, number)| watches.get(slot).is_some_and(|watched| watched.number == *number));
            self.left = 0;
        }
    }
}

impl Watches {
    pub fn len(&self) -> usize {
        self.by_slot.len()
    }

    pub fn any_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Notes a watch; its entry among the waiters.
    fn insert(&mut self, slot: Slot, on: WatchOn) -> (Slot, u64) {
        self.made += 1;
        self.by_slot.insert(slot, Watched { number: self.made, on, fired: false });
        (slot, self.made)
    }
}

impl Shard {
    pub(crate) fn wake_group(&mut self, group: Ref) {
        let Some(group) = self.queues.groups.get_mut(group) else { return };
        if let Some(slot) = group.waiters.next(&mut self.watches.by_slot) {
            self.effects.push(Effect::Wake { slot });
        }
    }

    /// Wakes a watch of a group on a lane.
    pub(crate) fn wake_pinned(&mut self, lane: Ref, group: Ref) {
        if self.watches.any_pinned() {
            let hash = self.lanes[lane].key.hash();
            let name = self.queues.groups[group].name.clone();
            self.wake_hash(hash, Some(&name));
        }
    }

    /// Wakes one watch of each group on a lane that its queue does not list: of the others, [`Shard::offer`] judges.
    pub(crate) fn wake_strangers(&mut self, lane: Ref) {
        let (hash, queue) = (self.lanes[lane].key.hash(), self.lanes[lane].queue);
        for name in self.groups_watching(hash) {
            if self.queues.group(queue, &name).is_none() {
                self.wake_hash(hash, Some(&name));
            }
        }
    }

    fn groups_watching(&self, hash: u64) -> Vec<Arc<str>> {
        self.watches.pinned.get(&hash).into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    /// Whether a pop of a group on the lane of that hash is worth its while: it finds something, or the group is not known.
    /// `None`: the lane is not known.
    fn is_worth_asking(&self, hash: u64, name: &str) -> Option<bool> {
        let lane = &self.lanes[self.lanes.find_hash(hash)?];
        let Some(at) = self.queues.group(lane.queue, name) else { return Some(true) };
        let group = &self.queues.groups[at];
        if matches!(group.state, GroupState::Unknown | GroupState::Opening) {
            return Some(true);
        }
        let (cursor, options) = (lane.cursor(at), self.queues.slab[lane.queue].options());
        let stands = standing(lane, cursor, &options, self.now, self.stamp(), self.config.window_batch);
        Some(matches!(stands, Standing::Ready { .. } | Standing::Unread))
    }

    /// Wakes one watch of each group on a lane whatever the engine knows of the groups: they will ask.
    pub(crate) fn wake_lane_watches(&mut self, lane: Ref) {
        let hash = self.lanes[lane].key.hash();
        self.wake_hash(hash, None);
    }

    /// Names' hashes of the lanes that pinned pops wait for, in order.
    pub(crate) fn watched_lanes(&self) -> Vec<u64> {
        let mut hashes: Vec<u64> = self.watches.pinned.keys().copied().collect();
        hashes.sort_unstable();
        hashes
    }

    /// Wakes one watch of each group on the lane of that hash, or of one group.
    pub(crate) fn wake_hash(&mut self, hash: u64, group: Option<&str>) {
        let Some(of_lane) = self.watches.pinned.get_mut(&hash) else { return };
        of_lane.retain_mut(|(name, waiters)| {
            if group.is_none_or(|group| group == &**name)
                && let Some(slot) = waiters.next(&mut self.watches.by_slot)
            {
                self.effects.push(Effect::Wake { slot });
            }
            !waiters.is_empty()
        });
        if of_lane.is_empty() {
            self.watches.pinned.remove(&hash);
        }
    }

    /// Wakes who waits beside something that is ready: one of each group. In memory, one pass for all watches. Source: data
    /// plane 4.5, the periodic re-check.
    pub(crate) fn recheck(&mut self) {
        self.watches.rechecks = false;
        let of_group = |watched: &Watched| match watched.on {
            WatchOn::Group(group) if !watched.fired => Some(group),
            _ => None,
        };
        let mut groups: Vec<Ref> = self.watches.by_slot.values().filter_map(of_group).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            if self.queues.groups.get(group).is_some_and(|group| !group.ring.is_empty()) {
                self.wake_group(group);
            }
        }
        for hash in self.watched_lanes() {
            self.wake_ready_pinned(hash);
        }
        self.keep_rechecking();
    }

    /// Wakes a watch of each group for which a watched lane is ready.
    fn wake_ready_pinned(&mut self, hash: u64) {
        for name in self.groups_watching(hash) {
            if self.is_worth_asking(hash, &name) == Some(true) {
                self.wake_hash(hash, Some(&name));
            }
        }
    }

    fn keep_rechecking(&mut self) {
        if !self.watches.rechecks && self.watches.len() > 0 {
            self.watches.rechecks = true;
            self.arm(self.now.plus(RECHECK_US), Timer::Recheck);
        }
    }

    pub(crate) fn watch(&mut self, slot: Slot, watch: Watch) {
        // A slot has one watch.
        self.unwatch(slot);
        match &watch.from {
            PopFrom::Queue { tenant, queue } => {
                let queue = self.queues.entry(*tenant, queue);
                let group = self.queues.group_entry(queue, &watch.group, self.now);
                let entry = self.watches.insert(slot, WatchOn::Group(group));
                let state = &mut self.queues.groups[group];
                state.waiters.entries.push_back(entry);
                if state.state != GroupState::Open || !state.ring.is_empty() {
                    self.wake_group(group);
                }
            }
            PopFrom::Partition(key) => {
                let (hash, name) = (key.hash(), watch.group.clone());
                let entry = self.watches.insert(slot, WatchOn::Lane(hash, name.clone()));
                let of_lane = self.watches.pinned.entry(hash).or_default();
                match of_lane.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, waiters)) => waiters.entries.push_back(entry),
                    None => of_lane.push((name, Waiters { entries: [entry].into(), left: 0 })),
                }
                if self.is_worth_asking(hash, &watch.group) == Some(true) {
                    self.wake_hash(hash, Some(&watch.group));
                }
            }
        }
        self.keep_rechecking();
    }

    /// Forgets a watch. One that had fired passes its hint on: its owner may have left without asking.
    pub(crate) fn unwatch(&mut self, slot: Slot) {
        let Some(watched) = self.watches.by_slot.remove(&slot) else { return };
        match watched.on {
            WatchOn::Group(group) => {
                let Some(state) = self.queues.groups.get_mut(group) else { return };
                if watched.fired {
                    if !state.ring.is_empty() {
                        self.wake_group(group);
                    }
                } else {
                    state.waiters.one_left(&self.watches.by_slot);
                    let queue = state.queue;
                    self.forget_empty_queue(queue);
                }
            }
            WatchOn::Lane(hash, name) if watched.fired => {
                // Of a lane that is not known only that it is there: what was looked for in vain is not looked for again.
                if self.is_worth_asking(hash, &name).unwrap_or_else(|| !self.is_hash_absent(hash)) {
                    self.wake_hash(hash, Some(&name));
                }
            }
            WatchOn::Lane(hash, name) => {
                let Some(of_lane) = self.watches.pinned.get_mut(&hash) else { return };
                let Some(at) = of_lane.iter().position(|(known, _)| *known == name) else { return };
                of_lane[at].1.one_left(&self.watches.by_slot);
                if of_lane[at].1.is_empty() {
                    of_lane.remove(at);
                }
                if of_lane.is_empty() {
                    self.watches.pinned.remove(&hash);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::fake::{Fake, pop};
    use crate::ids::TenantId;
    use crate::place::LaneKey;

    const POLLS: u64 = 20_000;

    fn from(pinned: bool) -> PopFrom {
        let (tenant, queue) = (TenantId::DEFAULT, std::sync::Arc::<str>::from("q"));
        match pinned {
            true => PopFrom::Partition(LaneKey::new(tenant, queue, "p".into())),
            false => PopFrom::Queue { tenant, queue },
        }
    }

    fn watch(fake: &mut Fake, slot: u64, pinned: bool) {
        let watch = Watch { from: from(pinned), group: "1".into(), start: crate::command::Start::All };
        fake.ask(slot, Command::Watch(watch));
    }

    /// A group that is open and has nothing; nobody is woken.
    fn open() -> Fake {
        let mut fake = Fake::new();
        fake.ask(1, pop("1"));
        fake.settle();
        fake.moved(vec![crate::fake::moved(2)]);
        fake.woken.clear();
        fake
    }

    #[test]
    fn polls_that_leave_leave_nothing_behind() {
        for pinned in [false, true] {
            let mut fake = open();
            watch(&mut fake, 2, pinned);
            for slot in 3..POLLS {
                watch(&mut fake, slot, pinned);
                fake.ask(slot, Command::Unwatch);
            }
            let groups = &fake.shard.queues.groups;
            let of_groups = groups.refs().map(|group| groups[group].waiters.entries.len()).sum::<usize>();
            let of_lanes = fake.shard.watches.pinned.values().flatten().map(|(_, w)| w.entries.len()).sum::<usize>();
            assert!((1..4).contains(&(of_groups + of_lanes)), "pinned {pinned}: {of_groups} {of_lanes}");
            fake.ask(2, Command::Unwatch);
            assert_eq!((fake.shard.watches.len(), fake.shard.watches.pinned.len()), (0, 0));
        }
    }

    #[test]
    fn polls_that_leave_together_are_not_searched_for() {
        for pinned in [false, true] {
            let mut fake = open();
            for slot in 2..POLLS {
                watch(&mut fake, slot, pinned);
            }
            for slot in (2..POLLS).rev() {
                fake.ask(slot, Command::Unwatch);
            }
            assert_eq!((fake.woken.len(), fake.shard.watches.len()), (0, 0), "pinned {pinned}");
        }
    }

    fn watch_as(fake: &mut Fake, slot: u64, group: &str) {
        let watch = Watch { from: from(true), group: group.into(), start: crate::command::Start::All };
        fake.ask(slot, Command::Watch(watch));
    }

    /// As the edge does for polls that were woken: each asks, watches again and lets go of the watch that fired, until nobody is
    /// woken any more. How many asked.
    fn polls_ask(fake: &mut Fake, pinned_pop: impl Fn(&str) -> Command) -> usize {
        let mut asked = 0;
        while let Some(slot) = fake.woken.pop() {
            asked += 1;
            assert!(asked < 1000, "polls wake each other");
            let (Slot(old), new) = (slot, 1_000_000 + slot.0 + 1000 * asked as u64);
            let group = if old % 2 == 0 { "1" } else { "2" };
            fake.ask(old + 500_000_000, pinned_pop(group));
            fake.settle();
            while !fake.moves.is_empty() {
                let moves = fake.moves[0].1.len();
                fake.moved(vec![crate::fake::moved(3); moves]);
            }
            watch_as(fake, new - new % 2 + old % 2, group);
            fake.ask(old, Command::Unwatch);
        }
        asked
    }

    fn pinned_pop(group: &str) -> Command {
        let Command::Pop(pop) = crate::fake::pop(group) else { panic!("a pop") };
        Command::Pop(crate::command::Pop { from: from(true), ..pop })
    }

    /// Between two looks at who waits.
    fn leases_end(fake: &mut Fake) {
        fake.now += 59_500_000;
        fake.turn(Vec::new());
        assert_eq!(fake.woken, []);
        fake.now += 600_000;
        fake.turn(Vec::new());
    }

    /// Fifty polls of each of two groups on one partition, which is leased in both; the leases end.
    #[test]
    fn one_message_asks_for_one_poll_of_each_group() {
        let mut fake = Fake::new();
        for group in ["1", "2"] {
            fake.ask(1, pinned_pop(group));
            fake.settle();
            fake.moved(vec![crate::fake::moved(2)]);
        }
        fake.woken.clear();
        (100..200).for_each(|slot| watch_as(&mut fake, slot, if slot % 2 == 0 { "1" } else { "2" }));
        assert_eq!(fake.woken, []);
        leases_end(&mut fake);
        assert_eq!(fake.woken.len(), 2, "{:?}", fake.woken);
        assert_eq!(polls_ask(&mut fake, pinned_pop), 2);
    }

    #[test]
    fn a_hint_that_is_not_used_is_passed_on_within_its_group() {
        let mut fake = Fake::new();
        for group in ["1", "2"] {
            fake.ask(1, pinned_pop(group));
            fake.settle();
            fake.moved(vec![crate::fake::moved(2)]);
        }
        (100..110).for_each(|slot| watch_as(&mut fake, slot, if slot % 2 == 0 { "1" } else { "2" }));
        leases_end(&mut fake);
        for _ in 0..4 {
            let (mut woken, mut of) = (std::mem::take(&mut fake.woken), Vec::new());
            woken.sort_unstable();
            woken.iter().for_each(|slot| of.push(slot.0 % 2));
            of.sort_unstable();
            assert_eq!(of, [0, 1]);
            // It leaves without asking.
            woken.into_iter().for_each(|slot| fake.ask(slot.0, Command::Unwatch));
        }
    }

    #[test]
    fn a_partition_that_is_not_there_is_looked_for_once_by_all_who_wait() {
        let mut fake = Fake::new();
        (100..200).for_each(|slot| watch_as(&mut fake, slot, "1"));
        let hash = LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()).hash();
        fake.shard.wake_hash(hash, None);
        fake.turn(Vec::new());
        let mut finds = 0;
        while let Some(slot) = fake.woken.pop() {
            fake.ask(slot.0 + 1000, pinned_pop("1"));
            finds += fake.calls.len();
            fake.answer(|_| Ok(crate::effect::Reply::Lanes(vec![None])));
            watch_as(&mut fake, slot.0 + 2000, "1");
            fake.ask(slot.0, Command::Unwatch);
        }
        assert_eq!(finds, 1);
    }

    #[test]
    fn a_recheck_wakes_one_of_the_polls_of_a_group() {
        let mut fake = open();
        for slot in 2..10 {
            watch(&mut fake, slot, true);
        }
        assert_eq!(fake.woken, []);
        // The lease is over: one hint, and who gets it never asks.
        fake.now += 61_000_000;
        fake.turn(Vec::new());
        fake.woken.clear();
        fake.now += RECHECK_US + 1;
        fake.turn(Vec::new());
        assert_eq!(fake.woken.len(), 1, "{:?}", fake.woken);
    }
}
