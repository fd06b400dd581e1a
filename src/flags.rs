//! Which queues are encrypted, as one shard remembers it: asked of the store once, then known.
//!
//! Holds: what is remembered is dropped when the queue's options change through this broker, and asked again every
//! QUEEN_CACHE_REFRESH_INTERVAL_MS for changes through another one; an old answer counts until there is a new one, so
//! that an outage of the store stores nothing in plain form that was encrypted before. Source: operations 3.2, 7.4.

use queen_shards::ids::{Micros, TenantId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// Queues a shard remembers: about 15 MB. Beyond it all are forgotten, and asked for again one by one.
const QUEUES_MAX: usize = 100_000;

/// See the module.
#[derive(Default)]
pub struct Flags {
    known: RefCell<HashMap<TenantId, HashMap<Arc<str>, Known>>>,
    count: Cell<usize>,
    /// Counts what was forgotten: an answer to a question from before is not remembered.
    forgotten: Cell<u64>,
}

struct Known {
    encrypted: bool,
    /// When to ask again.
    due: Micros,
}

/// What is known of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Unknown,
    Known(bool),
    /// Counts, and is to be asked for again.
    Old(bool),
}

/// What an answer needs to be remembered. See [`Flags::remember`].
#[derive(Clone, Copy)]
pub struct Asked(u64);

impl Flags {
    /// What is remembered at `now`. An old answer is told as such to one caller per `pause`.
    pub fn find(&self, tenant: TenantId, queue: &str, now: Micros, pause: u64) -> Memory {
        let mut all = self.known.borrow_mut();
        match all.get_mut(&tenant).and_then(|queues| queues.get_mut(queue)) {
            None => Memory::Unknown,
            Some(known) if now < known.due => Memory::Known(known.encrypted),
            Some(known) => {
                known.due = now.plus(pause);
                Memory::Old(known.encrypted)
            }
        }
    }

    /// Before the store is asked.
    pub fn ask(&self) -> Asked {
        Asked(self.forgotten.get())
    }

    /// Remembers an answer, unless something was forgotten since the question.
    pub fn remember(&self, asked: Asked, tenant: TenantId, queue: &str, encrypted: bool, due: Micros) {
        if asked.0 != self.forgotten.get() {
            return;
        }
        let mut all = self.known.borrow_mut();
        if self.count.get() >= QUEUES_MAX {
            all.clear();
            self.count.set(0);
        }
        let before = all.entry(tenant).or_default().insert(queue.into(), Known { encrypted, due });
        self.count.set(self.count.get() + usize::from(before.is_none()));
    }

    /// The store is another one: every queue's next push asks.
    pub fn forget_all(&self) {
        self.forgotten.set(self.forgotten.get() + 1);
        self.known.borrow_mut().clear();
        self.count.set(0);
    }

    /// The queue's options changed, or it was deleted: the next push asks.
    pub fn forget(&self, tenant: TenantId, queue: &str) {
        self.forgotten.set(self.forgotten.get() + 1);
        if self.known.borrow_mut().get_mut(&tenant).and_then(|queues| queues.remove(queue)).is_some() {
            self.count.set(self.count.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(7);
    const B: TenantId = TenantId(8);

    #[test]
    fn answers_are_of_one_tenant_and_age() {
        let flags = Flags::default();
        let at = Micros;
        assert_eq!(flags.find(A, "q", at(0), 10), Memory::Unknown);
        flags.remember(flags.ask(), A, "q", true, at(100));
        assert_eq!(flags.find(A, "q", at(99), 10), Memory::Known(true));
        assert_eq!(flags.find(B, "q", at(99), 10), Memory::Unknown);
        assert_eq!(flags.find(A, "q", at(100), 10), Memory::Old(true), "one caller asks again");
        assert_eq!(flags.find(A, "q", at(105), 10), Memory::Known(true), "the others go on");
        assert_eq!(flags.find(A, "q", at(110), 10), Memory::Old(true));
        flags.forget(B, "q");
        assert_eq!(flags.find(A, "q", at(110), 10), Memory::Known(true));
        flags.forget(A, "q");
        assert_eq!(flags.find(A, "q", at(110), 10), Memory::Unknown);
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_remembered() {
        let flags = Flags::default();
        let asked = flags.ask();
        flags.forget(A, "q");
        flags.remember(asked, A, "q", false, Micros(100));
        assert_eq!(flags.find(A, "q", Micros(0), 10), Memory::Unknown);
    }

    #[test]
    fn the_memory_is_bounded() {
        let flags = Flags::default();
        for n in 0..QUEUES_MAX + 2 {
            flags.remember(flags.ask(), A, &n.to_string(), true, Micros(100));
            assert!(flags.count.get() <= QUEUES_MAX);
        }
        assert_eq!(flags.count.get(), 2);
        assert_eq!(flags.find(A, "0", Micros(0), 10), Memory::Unknown);
    }
}
