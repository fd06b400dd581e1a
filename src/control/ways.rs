//! The control thread's connections for state calls, one per kind of call: what is pipelined on one waits for what came
//! before it there, and for nothing else.
//!
//! Holds: a connection's changes are committed under a writer of its own, so that no row of the log is waited for by a
//! change on another connection. Source: rule 8.

use crate::state::{StateCall, StateReply, Way};
use crate::store::{self, Conn, Incarnation};
use crate::writer::Writer;
use queen_shards::effect::StoreError;
use std::time::Duration;

/// A connection, and the writer of the changes that are made on it.
pub struct Caller {
    pub conn: Conn,
    writer: Writer,
}

impl Caller {
    pub fn new(conn: Conn, broker: u128) -> Caller {
        Caller { conn, writer: Writer::new(broker) }
    }

    /// Runs a call within `limit`. `on`: the store that is read, for a change that other brokers must hear of.
    pub async fn call(&self, call: &StateCall, limit: Duration, on: Option<Incarnation>) -> StateReply {
        let Some(tells) = call.function.tells() else {
            return store::within(&self.conn, limit, async |client| store::state(client, call).await).await;
        };
        let changed = store::within(&self.conn, limit, async |client| {
            let on = on.ok_or_else(|| StoreError::Unavailable("the store is not known".into()))?;
            let line = self.writer.line(client, &on).await?;
            store::changing_state(client, call, tells, line.writer).await
        });
        let changed = changed.await;
        self.writer.settled(&changed);
        changed
    }
}

/// A connection for each kind of state calls.
pub struct Ways {
    pub short: Caller,
    pub change: Caller,
    pub long: Caller,
    pub read: Caller,
    pub page: Caller,
}

impl Ways {
    /// `connect`: a connection for a role of this name.
    pub fn new(broker: u128, connect: impl Fn(&str) -> Conn) -> Ways {
        let way = |name| Caller::new(connect(name), broker);
        Ways { short: way("short"), change: way("control"), long: way("long"), read: way("reads"), page: way("pages") }
    }

    pub fn of(&self, way: Way) -> &Caller {
        match way {
            Way::Short => &self.short,
            Way::Change => &self.change,
            Way::Long => &self.long,
            Way::Read => &self.read,
            Way::Page => &self.page,
        }
    }
}
