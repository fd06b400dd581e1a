//! What requests did to each queue: counted by the thread that answers them, where a request is whole.
//!
//!     push, pop, transaction > count;  a pop parks > park .. the guard drops   > take, each second
//!
//! The engine sees of a request only what each shard owns of it, and would count it once for every shard. Holds: a poll
//! that is parked counts in every second that it is parked in, not when it ends; a queue of which there is nothing to tell
//! takes no memory. Source: operations 5.4.3.

use crate::mail::now;
use crate::telemetry::busy::{BusyQueues, QUEUES_MAX};
use queen_shards::activity::{Activity, BusyQueue};
use queen_shards::command::PopFrom;
use queen_shards::ids::{Micros, TenantId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Default)]
pub struct Asked {
    untold: RefCell<BusyQueues>,
    /// Queues on which polls are parked now, of which there are no more than there are told of.
    parked: RefCell<HashMap<(TenantId, Arc<str>), Parked>>,
}

struct Parked {
    polls: u32,
    /// Until then their time is counted.
    since: Micros,
}

impl Parked {
    /// The time that was not counted yet.
    fn take_us(&mut self, now: Micros) -> u64 {
        u64::from(self.polls) * now.since(std::mem::replace(&mut self.since, now))
    }
}

impl Asked {
    /// Counts one thing of a queue. One look-up by name.
    pub fn count(&self, tenant: TenantId, queue: &Arc<str>, add: impl Fn(&mut Activity)) {
        self.untold.borrow_mut().count(tenant, queue, add);
    }

    /// Counts one thing of each of some queues, once however often one is named.
    pub fn count_each<'a>(
        &self,
        tenant: TenantId,
        mut queues: impl Iterator<Item = &'a Arc<str>> + Clone,
        add: impl Fn(&mut Activity),
    ) {
        let all = queues.clone();
        let Some(first) = queues.next() else { return };
        // Most requests are for one queue, and its partitions share its name.
        if queues.all(|queue| queue == first) {
            return self.count(tenant, first, add);
        }
        let mut each: Vec<&Arc<str>> = all.collect();
        each.sort_unstable();
        each.dedup();
        each.into_iter().for_each(|queue| self.count(tenant, queue, &add));
    }

    /// Counts a poll as parked on each of some queues of a tenant until the guard drops.
    pub fn park(self: &Rc<Self>, tenant: TenantId, on: &[PopFrom], now: Micros) -> ParkedOn {
        let mut all = self.parked.borrow_mut();
        let mut enter = |queue: &Arc<str>| {
            let name = (tenant, queue.clone());
            if QUEUES_MAX <= all.len() && !all.contains_key(&name) {
                return None;
            }
            let parked = all.entry(name).or_insert(Parked { polls: 0, since: now });
            self.count_parked(tenant, queue, parked.take_us(now));
            parked.polls += 1;
            Some(queue.clone())
        };
        let queues = on.iter().filter_map(|from| enter(from.queue())).collect();
        ParkedOn { asked: self.clone(), tenant, queues }
    }

    /// What was counted since the last call.
    pub fn take(&self, now: Micros) -> Vec<BusyQueue> {
        for ((tenant, queue), parked) in self.parked.borrow_mut().iter_mut() {
            self.count_parked(*tenant, queue, parked.take_us(now));
        }
        self.untold.borrow_mut().take()
    }

    fn count_parked(&self, tenant: TenantId, queue: &Arc<str>, micros: u64) {
        if 0 < micros {
            self.count(tenant, queue, |activity| activity.parked_us += micros);
        }
    }

    fn leave(&self, tenant: TenantId, queue: &Arc<str>, now: Micros) {
        let (mut all, name) = (self.parked.borrow_mut(), (tenant, queue.clone()));
        let Some(parked) = all.get_mut(&name) else { return };
        self.count_parked(tenant, queue, parked.take_us(now));
        parked.polls -= 1;
        if parked.polls == 0 {
            all.remove(&name);
        }
    }
}

/// See [`Asked::park`].
pub struct ParkedOn {
    asked: Rc<Asked>,
    tenant: TenantId,
    queues: Vec<Arc<str>>,
}

impl Drop for ParkedOn {
    fn drop(&mut self) {
        let now = now();
        self.queues.iter().for_each(|queue| self.asked.leave(self.tenant, queue, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TenantId = TenantId::DEFAULT;

    fn on(queue: &str) -> PopFrom {
        PopFrom::Queue { tenant: T, queue: queue.into() }
    }

    /// Queues and one number of theirs, by name.
    fn told(asked: &Asked, now: Micros, number: impl Fn(&Activity) -> u64) -> Vec<(String, u64)> {
        let mut told: Vec<_> = asked.take(now).iter().map(|b| (b.queue.to_string(), number(&b.activity))).collect();
        told.sort();
        told
    }

    #[test]
    fn a_request_counts_once_for_each_queue_it_names() {
        let asked = Asked::default();
        for request in ["", "a", "a a a", "b a b c a"] {
            let queues: Vec<Arc<str>> = request.split_whitespace().map(Arc::from).collect();
            asked.count_each(T, queues.iter(), |activity| activity.push_requests += 1);
        }
        let want = [("a".to_owned(), 3), ("b".to_owned(), 1), ("c".to_owned(), 1)];
        assert_eq!(told(&asked, now(), |a| a.push_requests), want);
        assert_eq!(asked.take(now()), [], "told once");
    }

    #[test]
    fn queues_of_one_name_are_told_apart_by_tenant() {
        let asked = Asked::default();
        for tenant in [1, 2] {
            asked.count(TenantId(tenant), &"q".into(), |activity| activity.pop_empty += 1);
        }
        assert_eq!(asked.take(now()).len(), 2);
    }

    #[test]
    fn a_parked_poll_counts_while_it_is_parked_on_every_queue_it_waits_for() {
        let (asked, start) = (Rc::new(Asked::default()), now());
        let parked_us = |a: &Activity| a.parked_us;
        let (of_a, of_all) = (asked.park(T, &[on("a")], start), asked.park(T, &[on("a"), on("b")], start));
        let want = |a, b| [("a".to_owned(), a), ("b".to_owned(), b)];
        assert_eq!(told(&asked, start.plus(1_000_000), parked_us), want(2_000_000, 1_000_000));
        let later = start.plus(3_600_000_000);
        assert_eq!(told(&asked, later, parked_us), want(2 * 3_599_000_000, 3_599_000_000));
        // In truth no time has passed.
        drop(of_a);
        asked.parked.borrow_mut().values_mut().for_each(|parked| parked.since = later);
        assert_eq!(told(&asked, later.plus(5), parked_us), want(5, 5));
        drop(of_all);
        assert!(asked.parked.borrow().is_empty(), "who is gone takes no memory");
    }

    #[test]
    fn a_poll_that_parks_for_a_moment_counts_for_that_moment() {
        let (asked, came) = (Rc::new(Asked::default()), now());
        let parked = asked.park(T, &[on("q")], came);
        while now().since(came) < 2000 {}
        drop(parked);
        let gone = now();
        let [(_, micros)] = &told(&asked, gone.plus(60_000_000), |a| a.parked_us)[..] else { panic!("one queue") };
        assert!((2000..=gone.since(came)).contains(micros), "{micros}");
        assert_eq!(asked.take(now()), []);
    }

    #[test]
    fn queues_are_bounded_and_polls_that_found_no_room_leave_none() {
        let (asked, start) = (Rc::new(Asked::default()), now());
        let fill = || (0..QUEUES_MAX).map(|n| on(&n.to_string())).collect::<Vec<_>>();
        let (all, more) = (asked.park(T, &fill(), start), asked.park(T, &[on("0"), on("one more")], start));
        assert_eq!((all.queues.len(), more.queues.len()), (QUEUES_MAX, 1));
        assert_eq!(asked.take(start.plus(1)).len(), QUEUES_MAX);
        drop(all);
        assert_eq!(asked.parked.borrow().len(), 1, "of the other poll");
        drop(more);
        assert!(asked.parked.borrow().is_empty());
    }

    /// A push was not counted where as many other queues had polls parked on them.
    #[test]
    fn polls_that_waited_take_no_room_from_requests_with_messages() {
        let (asked, start) = (Rc::new(Asked::default()), now());
        let idle: Vec<PopFrom> = (0..QUEUES_MAX).map(|n| on(&format!("idle {n}"))).collect();
        let parked = asked.park(T, &idle, start);
        while now() == start {}
        drop(parked);
        asked.count(T, &"empty".into(), |activity| activity.pop_empty += 1);
        asked.count(T, &"busy".into(), |activity| activity.push_requests += 1);
        let told = asked.take(now());
        assert!(told.iter().any(|told| &*told.queue == "busy" && told.activity.push_requests == 1), "{}", told.len());
    }
}
