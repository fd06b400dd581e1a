//! A writer of the commit log, as its one user has it: made with its first commit, given up when nobody knows what became
//! of one.
//!
//! Holds: one commit in flight; lines that were committed are numbered without a gap; on another store its commits are
//! refused. Source: rules 8, 9 and 12.

use crate::store::{Client, Incarnation, Line, log};
use queen_shards::effect::StoreError;
use std::cell::{Cell, RefCell};

/// See the module.
pub struct Writer {
    broker: u128,
    /// The store that it writes on.
    of: RefCell<Option<Incarnation>>,
    /// 0 before the first commit, and after one without an answer.
    number: Cell<i64>,
    /// Of the last line that was committed.
    seq: Cell<i64>,
    /// The writer that was given up, until another one takes its place.
    before: Cell<i64>,
}

impl Writer {
    pub fn new(broker: u128) -> Writer {
        Writer { broker, of: RefCell::default(), number: Cell::new(0), seq: Cell::new(0), before: Cell::new(0) }
    }

    /// The line of the next commit, which was decided on the store of this incarnation; makes the writer when there is none
    /// there, with a round trip.
    pub async fn line(&self, client: &Client, on: &Incarnation) -> Result<Line, StoreError> {
        if self.of.borrow().as_ref() != Some(on) {
            self.number.set(0);
            self.before.set(0);
            *self.of.borrow_mut() = Some(on.clone());
        }
        if self.number.get() == 0 {
            let number = log::add_writer(client, self.broker, self.before.get(), on).await?;
            self.number.set(number);
            self.seq.set(0);
            self.before.set(0);
        }
        Ok(Line { writer: self.number.get(), seq: self.seq.get() + 1 })
    }

    /// What became of the commit of the last line. A refused one was rolled back: its line is free again.
    pub fn settled<T>(&self, result: &Result<T, StoreError>) {
        match result {
            Ok(_) => self.seq.set(self.seq.get() + 1),
            Err(StoreError::Refused(_)) => {}
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) if self.number.get() != 0 => {
                self.before.set(self.number.replace(0));
            }
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
        }
    }
}
