//! What the database last said to a scrape: one memory for the process, because the page needs no token and the read counts all
//! dead letters.
//!
//!     fresh > said;  none reads > reads, and waits for it;  one is on its way > what was said before, if it is not too old
//!
//! Holds: one read is on its way at most, whichever shards are scraped.

use queen_shards::ids::Micros;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the database said is said to others for so long.
const AGE_MAX: Duration = Duration::from_secs(5);
/// While a read is on its way, or where it fails, so long: two scrapes, which usually are a minute apart at most, and what a
/// read may take, 30 s. A read that takes longer than its scrape waits is told by the next one.
const AGE_READING_MAX: Duration = Duration::from_secs(150);

/// See the module. `A`: what is said.
#[derive(Debug)]
pub struct Scraped<A>(Mutex<Memory<A>>);

#[derive(Debug)]
struct Memory<A> {
    /// With the moment its read began.
    known: Option<(Arc<A>, Micros)>,
    reading: bool,
}

/// What to do for a scrape.
#[derive(Debug)]
pub enum Look<'a, A> {
    Say(Option<Arc<A>>),
    Read(Reading<'a, A>),
}

/// The one that reads. Dropped without an answer, it lets the next one read.
#[derive(Debug)]
pub struct Reading<'a, A> {
    of: &'a Scraped<A>,
    began: Micros,
}

impl<A> Scraped<A> {
    pub const fn new() -> Scraped<A> {
        Scraped(Mutex::new(Memory { known: None, reading: false }))
    }

    fn memory(&self) -> MutexGuard<'_, Memory<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn look(&self, now: Micros) -> Look<'_, A> {
        let mut memory = self.memory();
        if let Some(fresh) = memory.younger(now, AGE_MAX) {
            return Look::Say(Some(fresh));
        }
        if memory.reading {
            return Look::Say(memory.younger(now, AGE_READING_MAX));
        }
        memory.reading = true;
        Look::Read(Reading { of: self, began: now })
    }

    /// What is said when a read did not end in time.
    pub fn older(&self, now: Micros) -> Option<Arc<A>> {
        self.memory().younger(now, AGE_READING_MAX)
    }
}

impl<A> Memory<A> {
    fn younger(&self, now: Micros, age_max: Duration) -> Option<Arc<A>> {
        let (known, began) = self.known.as_ref()?;
        (now.since(*began) < age_max.as_micros() as u64).then(|| known.clone())
    }
}

impl<A> Reading<'_, A> {
    pub fn read(self, answer: A) -> Arc<A> {
        let answer = Arc::new(answer);
        self.of.memory().known = Some((answer.clone(), self.began));
        answer
    }
}

impl<A> Drop for Reading<'_, A> {
    fn drop(&mut self) {
        self.of.memory().reading = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn said(look: Look<'_, u32>) -> Option<u32> {
        let Look::Say(said) = look else { panic!("a second read") };
        said.map(|said| *said)
    }

    fn reading(look: Look<'_, u32>) -> Reading<'_, u32> {
        let Look::Read(reading) = look else { panic!("{look:?}") };
        reading
    }

    #[test]
    fn one_reads_and_the_others_are_told_what_was_read_before() {
        let scraped = Scraped::new();
        let first = reading(scraped.look(Micros(SECOND)));
        assert_eq!(said(scraped.look(Micros(SECOND))), None, "nothing is known yet");
        assert_eq!(*first.read(1), 1);
        assert_eq!(said(scraped.look(Micros(6 * SECOND - 1))), Some(1), "fresh");
        let second = reading(scraped.look(Micros(6 * SECOND)));
        assert_eq!(said(scraped.look(Micros(150 * SECOND))), Some(1), "on its way");
        assert_eq!(said(scraped.look(Micros(151 * SECOND))), None, "too old");
        second.read(2);
        assert_eq!(said(scraped.look(Micros(7 * SECOND))), Some(2));
    }

    /// A scrape a minute, each of which gives up before its read has an answer.
    #[test]
    fn reads_slower_than_scrapes_wait_are_told_by_the_next_scrape() {
        let scraped = Scraped::new();
        for minute in 1..5 {
            let began = minute * 60 * SECOND;
            let read = reading(scraped.look(Micros(began)));
            let told = scraped.older(Micros(began + 2 * SECOND));
            assert_eq!(told.as_deref().copied(), (minute > 1).then(|| minute as u32 - 1));
            read.read(minute as u32);
        }
    }

    #[test]
    fn a_read_without_an_answer_lets_the_next_one_read() {
        let scraped = Scraped::new();
        drop(reading(scraped.look(Micros(SECOND))));
        reading(scraped.look(Micros(SECOND))).read(1);
        drop(reading(scraped.look(Micros(10 * SECOND))));
        assert_eq!(scraped.older(Micros(10 * SECOND)).as_deref(), Some(&1), "what was known stays");
        assert_eq!(scraped.older(Micros(151 * SECOND)), None);
        reading(scraped.look(Micros(10 * SECOND))).read(2);
        assert_eq!(said(scraped.look(Micros(11 * SECOND))), Some(2));
    }
}
