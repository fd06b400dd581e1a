//! One clock per shard for all timeouts of its connections.
//!
//! A timer per read and write would cost more than the read; here a connection only stores the tick at which it has
//! waited too long, and once per tick all are looked at (20,000 of them in about 0.1 ms). Time is counted in ticks
//! of the monotonic clock: a timeout strikes up to two ticks late, never early.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// What a connection waits for; decides what shutdown and want of room do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between requests, nothing of the next one has come: may be closed at any time.
    Idle,
    /// Within a request or an answer.
    Busy,
}

/// One connection's record.
pub(super) struct Watch {
    deadline: Cell<u64>,
    phase: Cell<Phase>,
    /// Time is up, or an idle connection is asked to close.
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

const NEVER: u64 = u64::MAX;

impl Watch {
    /// Whether the wait should end. Otherwise the caller's task is woken when it should.
    pub(super) fn fired(&self, cx: &Context<'_>) -> bool {
        if !self.fired.get() {
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        self.fired.get()
    }

    fn fire(&self) {
        self.fired.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The clock of one shard's connections.
pub(super) struct Clock {
    period: Duration,
    started: Instant,
    now: Cell<u64>,
    watches: RefCell<Vec<Weak<Watch>>>,
    /// Answers say that the connection closes.
    closing: Cell<bool>,
    /// Whoever is or becomes idle closes: the broker shuts down, or newcomers have no room.
    unwelcome: Cell<bool>,
}

impl Clock {
    pub(super) fn new(period: Duration) -> Clock {
        Clock {
            period,
            started: Instant::now(),
            now: Cell::new(0),
            watches: RefCell::new(Vec::new()),
            closing: Cell::new(false),
            unwelcome: Cell::new(false),
        }
    }

    /// A record for a new connection.
    pub(super) fn watch(&self) -> Rc<Watch> {
        let watch = Rc::new(Watch {
            deadline: Cell::new(NEVER),
            phase: Cell::new(Phase::Busy),
            fired: Cell::new(false),
            waker: RefCell::new(None),
        });
        self.watches.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Starts a wait of at most `limit`.
    pub(super) fn begin(&self, watch: &Watch, phase: Phase, limit: Duration) {
        let ticks = limit.as_micros().div_ceil(self.period.as_micros().max(1)) as u64;
        watch.deadline.set(self.now.get() + ticks + 1);
        watch.phase.set(phase);
        watch.fired.set(phase == Phase::Idle && self.unwelcome.get());
    }

    /// A wait without limit: the handler has the word.
    pub(super) fn suspend(&self, watch: &Watch) {
        watch.deadline.set(NEVER);
        watch.phase.set(Phase::Busy);
        watch.fired.set(false);
    }

    /// Whether the broker shuts down: answers then say that the connection closes.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// From now on each answer is its connection's last.
    pub(super) fn close_after_answers(&self) {
        self.closing.set(true);
    }

    /// Closes the connections that are idle now, and each other one when it becomes idle.
    pub(super) fn close_idle(&self) {
        self.unwelcome.set(true);
        self.each(|watch| {
            if watch.phase.get() == Phase::Idle {
                watch.fire();
            }
        });
    }

    /// Makes room for one connection: asks the one that is idle for longest to close, else the next to become idle.
    pub(super) fn make_room(&self) {
        let mut idlest: Option<Rc<Watch>> = None;
        self.each(|watch| {
            if watch.phase.get() == Phase::Idle
                && !watch.fired.get()
                && idlest.as_ref().is_none_or(|idlest| watch.deadline.get() < idlest.deadline.get())
            {
                idlest = Some(watch.clone());
            }
        });
        match idlest {
            Some(watch) => watch.fire(),
            None => self.unwelcome.set(true),
        }
    }

    /// There is room again.
    pub(super) fn has_room(&self) {
        self.unwelcome.set(self.closing.get());
    }

    /// Moves time on and ends the waits that are over.
    pub(super) fn tick(&self) {
        let now = (self.started.elapsed().as_micros() / self.period.as_micros().max(1)) as u64;
        self.now.set(now);
        self.each(|watch| {
            if watch.deadline.get() <= now && !watch.fired.get() {
                watch.fire();
            }
        });
    }

    /// Visits all records and forgets those of closed connections.
    fn each(&self, mut visit: impl FnMut(&Rc<Watch>)) {
        self.watches.borrow_mut().retain(|watch| match watch.upgrade() {
            Some(watch) => {
                visit(&watch);
                true
            }
            None => false,
        });
    }
}
