//! Reading and writing JSON without building values.
//!
//!     scan: bytes -> keys, texts and verbatim values, in one pass     text: names, ids, numbers -> bytes
//!     check: bytes -> whether they are JSON, sooner                   time: stamps <-> text
//!
//! Bodies of the message plane are read and written by these alone, so there is one parser, one winner among
//! duplicate keys and one bound on depth.

pub mod check;
#[cfg(test)]
pub mod nasty;
pub mod scan;
pub mod text;
pub mod time;

pub use check::Checker;
pub use scan::{JSON_DEPTH_MAX, JsonError, Kind, Scanner, Text, document, next_special};
pub use text::{check_controls, check_name, error_body, has_control, push_int, push_quoted, push_uuid};
pub use time::{parse_stamp, push_stamp};
