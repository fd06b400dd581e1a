//! The only room that knows SQL.
//!
//!     core_thread --Append, moves, Call, StateCall--> append, moves, cold --one statement--> PostgreSQL
//!                 <--outcomes, replies, StoreError--
//!
//! Holds: every call is one round trip of one statement, unnamed but on the broker's own server (see `client`), and what may
//! be known about the rows after a failure is told by the variant of `StoreError`. Does not time out: deadlines are
//! the caller's, who then gives the connection up ([`connect::Conn::discard`]).

pub mod append;
pub mod bundle;
mod client;
pub mod cold;
pub mod connect;
pub mod failure;
pub mod log;
pub mod migrate;
pub mod moves;
pub mod pack;
mod params;
mod places;
mod rows;
mod runs;
pub mod sql_files;
mod tls;

pub use append::{append, settle_append};
pub use bundle::{bundle, settle_bundle};
pub use client::{Client, On};
pub use cold::{call, changing_state, purge_dead, state};
pub use connect::{Conn, Target};
pub use log::{Incarnation, Line};
pub use migrate::{BootError, StoreFacts, boot};
pub use moves::{move_cursors, settle_moves};
pub use runs::{purge_runs, store_run};

use queen_shards::effect::StoreError;
use std::pin::pin;
use std::time::Duration;

/// Runs `work` on a live client of `conn`, connecting included, within `limit`. Past it the connection is given up, the
/// server is asked to stop, and the outcome is unknown.
pub async fn within<T>(
    conn: &Conn,
    limit: Duration,
    work: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let client = match conn.live() {
        Some(client) => client,
        None => match Box::pin(crate::rt::timeout(limit, conn.get())).await {
            Some(client) => client?,
            None => return Err(StoreError::Unavailable(format!("no connection within {limit:?}"))),
        },
    };
    let answered = {
        // Some kilobytes, made where it stays.
        let work = pin!(work(&client));
        crate::rt::timeout(limit, work).await
    };
    match answered {
        Some(result) => result,
        None => {
            conn.discard(&client);
            Err(StoreError::Unknown(format!("no answer within {limit:?}")))
        }
    }
}

/// Says that a call failed, at most every ten seconds.
pub fn log_error(error: &StoreError) {
    static GATE: crate::telemetry::log::Gate = crate::telemetry::log::Gate::new(10_000);
    if let Some(suppressed) = GATE.pass() {
        crate::warning!("db", "a store call failed", error = error, suppressed = suppressed);
    }
}
