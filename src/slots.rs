//! Questions of one thread that wait for an answer: an asker holds a [`Waiting`], the answer finds it by its slot.
//!
//! Holds: no answer is dropped unseen: one that comes too late goes back to who brought it, one that was there when its
//! question was dropped goes to `lost`, because it may hold claims. Does not leave its thread.

use queen_shards::ids::Slot;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Places a thread's table may grow to: one question per connection, with room for pops of several shards.
const PLACES_BITS: u32 = 24;

struct Place<T> {
    generation: u32,
    open: bool,
    answer: Option<T>,
    waker: Option<Waker>,
}

struct Table<T> {
    shard: usize,
    lost: Rc<dyn Fn(T)>,
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

/// See the module. Cheap to clone.
pub struct Slots<T>(Rc<RefCell<Table<T>>>);

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        Slots(self.0.clone())
    }
}

impl<T> Slots<T> {
    /// Slots that say they belong to `shard`; `lost` takes answers whose question was dropped.
    pub fn new(shard: usize, lost: impl Fn(T) + 'static) -> Slots<T> {
        let lost = Rc::new(lost);
        Slots(Rc::new(RefCell::new(Table { shard, lost, places: Vec::new(), free: Vec::new() })))
    }

    /// Opens a question.
    pub fn open(&self) -> Waiting<T> {
        let mut table = self.0.borrow_mut();
        let index = table.free.pop().unwrap_or_else(|| {
            assert!(table.places.len() < 1 << PLACES_BITS, "more questions than connections can ask");
            table.places.push(Place { generation: 0, open: false, answer: None, waker: None });
            (table.places.len() - 1) as u32
        });
        let shard = table.shard;
        let place = &mut table.places[index as usize];
        place.open = true;
        // Generations wrap at 24 bits; a question does not outlive 16 million others in its place.
        let number = ((place.generation & 0xff_ffff) as u64) << PLACES_BITS | index as u64;
        Waiting { slots: self.clone(), slot: Slot::new(shard, number), index }
    }

    /// Answers a slot. `Err`: nobody waits any more (or it was answered already); the answer comes back.
    pub fn answer(&self, slot: Slot, answer: T) -> Result<(), T> {
        let number = slot.0 & ((1 << 48) - 1);
        let (generation, index) = ((number >> PLACES_BITS) as u32, number & ((1 << PLACES_BITS) - 1));
        let mut table = self.0.borrow_mut();
        match table.places.get_mut(index as usize) {
            Some(place) if place.open && place.generation & 0xff_ffff == generation && place.answer.is_none() => {
                place.answer = Some(answer);
                if let Some(waker) = place.waker.take() {
                    drop(table);
                    waker.wake();
                }
                Ok(())
            }
            _ => Err(answer),
        }
    }
}

/// A question; resolves to its answer. Dropping it closes the question. It may be awaited again for a further answer.
pub struct Waiting<T> {
    slots: Slots<T>,
    slot: Slot,
    index: u32,
}

impl<T> Waiting<T> {
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The next answer.
    pub async fn next(&mut self) -> T {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut table = self.slots.0.borrow_mut();
        let place = &mut table.places[self.index as usize];
        match place.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                place.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Closes the question; an answer that is there already comes back.
    fn close(&self) -> Option<T> {
        let mut table = self.slots.0.borrow_mut();
        let place = &mut table.places[self.index as usize];
        place.open = false;
        place.generation = place.generation.wrapping_add(1);
        place.waker = None;
        let answer = place.answer.take();
        table.free.push(self.index);
        answer
    }
}

impl<T> Future for Waiting<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.poll_next(cx)
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.close() {
            let lost = self.slots.0.borrow().lost.clone();
            lost(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_question_and_no_other() {
        let lost = Rc::new(RefCell::new(Vec::new()));
        let seen = lost.clone();
        let slots: Slots<u32> = Slots::new(3, move |answer| seen.borrow_mut().push(answer));
        let first = slots.open();
        let slot = first.slot();
        assert_eq!(slot.shard(), 3);
        drop(first);
        let second = slots.open();
        assert_ne!(slot, second.slot(), "the place is used again under another number");
        assert_eq!(slots.answer(slot, 1), Err(1), "too late");
        assert_eq!(slots.answer(second.slot(), 2), Ok(()));
        assert_eq!(slots.answer(second.slot(), 3), Err(3), "answered already");
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(second.poll_next(&mut cx), Poll::Ready(2));
        assert_eq!(slots.answer(second.slot(), 4), Ok(()), "a question may have further answers");
        drop(second);
        assert_eq!(*lost.borrow(), [4], "an answer nobody read is not dropped");
    }
}
