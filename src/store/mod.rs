//! The only room that knows SQL.
//!
//!     core_thread --Append, moves, Call, StateCall--> hot, cold --one statement--> PostgreSQL
//!                 <--outcomes, replies, StoreError--
//!
//! Holds: every call is one round trip of one unnamed statement (it survives a transaction-mode pooler), and what may
//! be known about the rows after a failure is told by the variant of `StoreError`. Does not time out: deadlines are
//! the caller's, who then gives the connection up ([`connect::Conn::discard`]).

pub mod cold;
pub mod connect;
pub mod failure;
pub mod hot;
pub mod migrate;
pub mod pack;
mod params;
mod rows;
pub mod sql_files;

pub use cold::{call, state};
pub use connect::{Conn, Target};
pub use hot::{append, move_cursors, ping};
pub use migrate::{BootError, StoreFacts, boot};
pub use tokio_postgres::Client;
