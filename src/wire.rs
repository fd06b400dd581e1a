//! The binary bodies of the wire: bytes in, borrowed parts or a refusal out; and the framed pop answer, the other way.
//!
//!     push body --push::open--> flags, rest --plain::items | packed::walk--> wire groups --packed::messages--> messages
//!     transaction body --transaction::open--> head, rest --packed::walk--> ...        claims --pop::Writer--> answer
//!
//! Holds: the whole body is judged before anything of it is used; no memory is reserved for a number that was read
//! from the wire before it was compared with the bytes that are there or with the limit; no input panics. Pure: no
//! I/O, no clock, and it knows neither queues nor verdicts. A payload's grammar is `http::json`'s, so that both forms
//! accept the same documents. Source: binary forms 2 to 6, 10 to 12.

pub mod packed;
pub mod plain;
pub mod pop;
pub mod push;
pub mod targets;
pub mod transaction;
pub mod zstd_frame;

mod fields;

use crate::limits::{ITEMS_MAX, TOO_MANY};

/// The media type that says a push or transaction body is binary. Source: binary forms 3.
pub const PUSH_TYPE: &str = "application/x-queen-push";
/// The media type of a framed pop answer.
pub const POP_TYPE: &str = "application/x-queen-pop";

/// Largest number of inflated bytes of one request that can be allowed: above it official readers refuse a record.
/// Source: binary forms 6.3.
pub const INFLATED_MAX: u64 = 1 << 30;

/// Why a body is not taken. Nothing of it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// 400; what was wrong, and where.
    Malformed(String),
    /// A name or a transaction id has a character below U+0020: 400 with the JSON push's own text.
    Control,
    /// 413: the claimed inflated size is over the limit.
    TooLarge { limit: u64 },
}

impl Refused {
    fn malformed(what: impl Into<String>) -> Refused {
        Refused::Malformed(what.into())
    }

    /// The same with the place in front.
    pub fn at(self, place: impl FnOnce() -> String) -> Refused {
        match self {
            Refused::Malformed(what) => Refused::Malformed(format!("{}: {what}", place())),
            other => other,
        }
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// Refuses more messages than a JSON push may have: each costs many times the few bytes it can be sent in. `total`: of
/// the body so far, with those that a number in it announces.
fn within_items(total: usize) -> Result<()> {
    if total <= ITEMS_MAX { Ok(()) } else { Err(Refused::malformed(TOO_MANY)) }
}

#[cfg(test)]
mod tests;
