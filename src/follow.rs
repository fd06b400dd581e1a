//! Reads the log of other brokers for all shards, one read at a time, and tells them: on the control thread.
//!
//!     a shard: ReadLog > the next read > news to the shards they concern > LogRead
//!     nobody asks: twice a second, and more often while polls are parked; a read is also the pulse of the store
//!
//! Holds: a read that answers a question began after it; its news are sent before its answer; positions are of one store,
//! and nothing is read with them from another one. Source: rules 10 to 12.

use crate::bell::Bell;
use crate::limits::{ALONE_MAX, HINT_PERIOD_MIN, LOG_SILENCE_MAX};
use crate::mail::{Mail, Shared, now};
use crate::rt;
use crate::store::log::{self, News, Positions};
use crate::store::{self, Conn, Incarnation};
use queen_shards::effect::StoreError;
use queen_shards::ids::{Micros, Slot};
use queen_shards::place::owner_of_partition;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Beyond [`ALONE_MAX`]: clocks of two machines run at slightly different rates.
const JOIN_MARGIN: Duration = Duration::from_millis(50);

/// A ring holds four times as many commits: a writer may become so much faster before some are missed.
const LINES_PER_READ: u64 = 64;

/// See the module.
pub struct Follower {
    broker: u128,
    /// Which store was read, and how far. `None`: nothing was read yet.
    at: RefCell<Option<(Incarnation, Positions)>>,
    read_at: Cell<Micros>,
    /// How soon the next read must follow.
    pace: Cell<Duration>,
    /// Who waits for the next read.
    asked: RefCell<Vec<Slot>>,
    bell: Bell,
    hinted: Bell,
}

impl Follower {
    pub fn new(broker: u128) -> Follower {
        Follower {
            broker,
            at: RefCell::default(),
            read_at: Cell::new(Micros(0)),
            pace: Cell::new(Duration::MAX),
            asked: RefCell::default(),
            bell: Bell::default(),
            hinted: Bell::default(),
        }
    }

    /// A shard asks for a read that begins from now on.
    pub fn ask(&self, slot: Slot) {
        self.asked.borrow_mut().push(slot);
        self.bell.ring();
    }

    /// Another broker says that there is something to read: nobody waits for the usual moment.
    pub fn hint(&self) {
        self.hinted.ring();
    }

    /// Waits until somebody asks, or `longest`; after a hint until [`HINT_PERIOD_MIN`] after the last read, however many
    /// brokers send hints.
    pub async fn wait(&self, longest: Duration) {
        let hinted = async {
            self.hinted.wait().await;
            let since = Duration::from_micros(now().since(self.read_at.get()));
            rt::sleep(HINT_PERIOD_MIN.saturating_sub(since)).await;
        };
        rt::race(self.bell.wait(), rt::race(hinted, rt::sleep(longest))).await;
    }

    /// Who has asked by now: a read that begins after this is for them.
    pub fn take_asked(&self) -> Vec<Slot> {
        self.asked.take()
    }

    /// Becomes one of the brokers that commit: returns when none of the others believes any more to be alone.
    pub async fn join(&self, conn: &Conn, limit: Duration) -> Result<(), StoreError> {
        let others = store::within(conn, limit, async |client| log::join(client, self.broker).await).await?;
        if 0 < others {
            rt::sleep(ALONE_MAX + JOIN_MARGIN).await;
        }
        Ok(())
    }

    /// The store that is read; `None` before the first read.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.at.borrow().as_ref().map(|(incarnation, _)| incarnation.clone())
    }

    /// The next read is the first one of whichever store is there.
    pub fn begin_anew(&self) {
        self.at.take();
    }

    /// Reads what came since the last read; the first one only notes where the log stands. `None`: this is another store.
    pub async fn read(&self, conn: &Conn, limit: Duration) -> Result<Option<News>, StoreError> {
        let at = self.at.borrow().clone();
        let from = at.as_ref().map(|(incarnation, positions)| (incarnation, positions));
        let began = now();
        let read = store::within(conn, limit, async |client| log::read(client, self.broker, from).await);
        let mut news = read.await?;
        if from.is_some_and(|(incarnation, _)| *incarnation != news.incarnation) {
            return Ok(None);
        }
        let advance =
            |writer: &i64, seq: i64| from.map_or(0, |(_, known)| seq - known.get(writer).copied().unwrap_or(0));
        let moved = news.positions.iter().map(|(writer, seq)| advance(writer, *seq)).max();
        self.pace.set(pace(began.since(self.read_at.get()), moved.unwrap_or(0)));
        let slept = LOG_SILENCE_MAX.as_micros() as u64 <= began.since(self.read_at.get());
        let mut known = from.iter().flat_map(|(_, positions)| positions.keys());
        let missed = slept && known.any(|writer| !news.positions.contains_key(writer));
        news.lost |= missed;
        *self.at.borrow_mut() = Some((news.incarnation.clone(), std::mem::take(&mut news.positions)));
        self.read_at.set(began);
        Ok(Some(news))
    }

    /// How soon the next read must follow, for the ring of the busiest writer not to be overwritten before it.
    pub fn pace(&self) -> Duration {
        self.pace.get()
    }

    /// Tells each shard what concerns it.
    pub async fn spread(&self, shared: &Shared, news: News) {
        if news.is_empty() {
            return;
        }
        let (shards, began) = (shared.shards, self.read_at.get());
        let mut lanes: Vec<Vec<_>> = vec![Vec::new(); shards];
        let mut freed: Vec<Vec<_>> = vec![Vec::new(); shards];
        for lane in news.lanes {
            lanes[lane.key.owner(shards)].push(lane);
        }
        for cursor in news.freed {
            freed[owner_of_partition(cursor.0, shards)].push(cursor);
        }
        let (changed, lost) = (news.changed, news.lost);
        for (shard, (lanes, freed)) in lanes.into_iter().zip(freed).enumerate() {
            if lost || !lanes.is_empty() || !freed.is_empty() || !changed.is_empty() {
                shared.hub.send_wait(shard, Mail::Log { began, lanes, freed, changed: changed.clone(), lost }).await;
            }
        }
    }
}

/// How soon the next read must follow one that found so many commits of the busiest writer, `elapsed_us` after the read
/// before.
fn pace(elapsed_us: u64, lines: i64) -> Duration {
    match lines {
        1.. => Duration::from_micros(elapsed_us.saturating_mul(LINES_PER_READ) / lines as u64),
        _ => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_the_busiest_writer_the_sooner_the_next_read() {
        assert_eq!(pace(500_000, 0), Duration::MAX);
        assert_eq!(pace(500_000, 1), Duration::from_secs(32));
        // 600 commits a second: a pulse of half a second would miss some of them, however often it was read before.
        assert_eq!(pace(500_000, 300), Duration::from_micros(106_666));
        assert_eq!(pace(106_666, 64), Duration::from_micros(106_666));
    }
}
