//! Reads of the store that many ask for at once: one is on its way, and the next one is shared by all who came meanwhile.
//!
//!     known and recent > taken;  on its way, begun late enough > waited for;  else > after it a read of our own, for all
//!
//! Holds: what is given was read from the moment on that the caller named; of one question one read is on its way, however
//! many ask. A caller that is dropped ends nothing for the others.

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use queen_shards::effect::StoreError;
use queen_shards::ids::Micros;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// Answers of one kind of question. Clones are the same.
pub struct Reads<Q, A>(Rc<Inner<Q, A>>);

struct Inner<Q, A> {
    /// Questions remembered; beyond it all are forgotten.
    most: usize,
    of: RefCell<HashMap<Q, Entry<A>>>,
}

struct Entry<A> {
    /// With the moment the read began.
    known: Option<(A, Micros)>,
    reading: Option<Reading<A>>,
}

#[derive(Clone)]
struct Reading<A> {
    began: Micros,
    answer: Shared<LocalBoxFuture<'static, Result<A, StoreError>>>,
}

impl<Q, A> Clone for Reads<Q, A> {
    fn clone(&self) -> Self {
        Reads(self.0.clone())
    }
}

impl<Q: Eq + Hash + Clone, A: Clone + 'static> Reads<Q, A> {
    pub fn new(most: usize) -> Reads<Q, A> {
        Reads(Rc::new(Inner { most, of: RefCell::default() }))
    }

    /// An answer that was read from `since` on, and the moment its read began. `or_known`: while such a read is on its way, an
    /// older answer will do. `read`: asks the store; it is not polled before it is needed.
    pub async fn get<F>(
        &self,
        question: Q,
        since: Micros,
        or_known: bool,
        clock: impl Fn() -> Micros,
        read: impl Fn() -> F,
    ) -> Result<(A, Micros), StoreError>
    where
        F: Future<Output = Result<A, StoreError>> + 'static,
    {
        loop {
            let reading = {
                let mut of = self.0.of.borrow_mut();
                if self.0.most <= of.len() && !of.contains_key(&question) {
                    of.clear();
                }
                let entry = of.entry(question.clone()).or_insert(Entry { known: None, reading: None });
                let late_enough = entry.reading.as_ref().is_some_and(|reading| since <= reading.began);
                match &entry.known {
                    Some(known) if since <= known.1 || or_known && late_enough => return Ok(known.clone()),
                    _ => {}
                }
                let begin = || Reading { began: clock(), answer: read().boxed_local().shared() };
                entry.reading.get_or_insert_with(begin).clone()
            };
            let answer = reading.answer.await;
            if let Some(entry) = self.0.of.borrow_mut().get_mut(&question) {
                if entry.reading.as_ref().is_some_and(|now| now.began == reading.began) {
                    entry.reading = None;
                }
                // A read that began later may have been answered before.
                if let (Ok(answer), true) = (&answer, entry.known.as_ref().is_none_or(|known| known.1 <= reading.began))
                {
                    entry.known = Some((answer.clone(), reading.began));
                }
            }
            if since <= reading.began {
                return answer.map(|answer| (answer, reading.began));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bell::Bell;
    use futures_util::future::join_all;
    use futures_util::task::noop_waker;
    use std::cell::Cell;
    use std::task::{Context, Poll};

    /// A store that answers when it is told to, with the number of the read.
    #[derive(Default)]
    struct Store {
        reads: Cell<u32>,
        answers: Bell,
        fails: Cell<bool>,
        now: Cell<u64>,
    }

    async fn get(
        reads: Reads<u32, u32>,
        store: Rc<Store>,
        since: u64,
        or_known: bool,
    ) -> Result<(u32, u64), StoreError> {
        let clock = || {
            store.now.set(store.now.get() + 1);
            Micros(store.now.get())
        };
        let read = || {
            let store = store.clone();
            store.reads.set(store.reads.get() + 1);
            let number = store.reads.get();
            async move {
                store.answers.wait().await;
                if store.fails.get() { Err(StoreError::Unavailable("away".into())) } else { Ok(number) }
            }
        };
        let got = reads.get(7, Micros(since), or_known, clock, read).await;
        got.map(|(answer, began)| (answer, began.0))
    }

    #[test]
    fn however_many_ask_one_read_is_on_its_way_and_the_next_one_is_for_all() {
        let (reads, store) = (Reads::new(4), Rc::new(Store::default()));
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        let mut first = Box::pin(get(reads.clone(), store.clone(), 0, false));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        // They came after the first read began, so it does not say what they must know.
        let came = store.now.get() + 1;
        let all = (0..1000).map(|_| get(reads.clone(), store.clone(), came, false));
        let mut all = Box::pin(join_all(all));
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(store.reads.get(), 1);
        store.answers.ring();
        assert!(matches!(first.as_mut().poll(&mut cx), Poll::Ready(Ok((1, 1)))));
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(store.reads.get(), 2);
        store.answers.ring();
        let Poll::Ready(got) = all.as_mut().poll(&mut cx) else { panic!("they wait") };
        assert!(got.iter().all(|got| matches!(got, Ok((2, 2)))), "{:?}", got[0]);
        assert_eq!(store.reads.get(), 2, "a thousand questions");
        // What is recent enough is not asked for.
        assert!(matches!(get(reads, store.clone(), 2, false).now_or_never(), Some(Ok((2, 2)))));
        assert_eq!(store.reads.get(), 2);
    }

    #[test]
    fn an_older_answer_will_do_while_a_read_is_on_its_way_for_who_says_so() {
        let (reads, store) = (Reads::new(4), Rc::new(Store::default()));
        store.answers.ring();
        assert!(matches!(get(reads.clone(), store.clone(), 1, true).now_or_never(), Some(Ok((1, 1)))));
        let mut second = Box::pin(get(reads.clone(), store.clone(), 2, true));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(matches!(get(reads.clone(), store.clone(), 2, true).now_or_never(), Some(Ok((1, 1)))));
        assert!(get(reads.clone(), store.clone(), 2, false).now_or_never().is_none());
        // Who began the read is gone; who comes next carries it on.
        drop(second);
        store.answers.ring();
        assert!(matches!(get(reads, store.clone(), 2, false).now_or_never(), Some(Ok((2, 2)))));
        assert_eq!(store.reads.get(), 2);
    }

    #[test]
    fn a_read_that_failed_is_told_to_all_who_shared_it_and_is_not_remembered() {
        let (reads, store) = (Reads::new(4), Rc::new(Store::default()));
        store.fails.set(true);
        store.answers.ring();
        assert!(matches!(get(reads.clone(), store.clone(), 1, true).now_or_never(), Some(Err(_))));
        store.fails.set(false);
        store.answers.ring();
        assert!(matches!(get(reads, store.clone(), 1, true).now_or_never(), Some(Ok((2, _)))));
    }
}
