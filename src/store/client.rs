//! A connection's client: one statement, one round trip, and whether PostgreSQL keeps what it parsed.
//!
//! Holds: statements have names only on the broker's own server. Elsewhere a pooler may stand between, which hands the
//! next call to a session that does not know them, or knows another one by that name.

use super::failure::{Nature, judge};
use super::params::{One, Param, param};
use queen_shards::effect::StoreError;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

/// Statements kept per connection: more than the store has texts of.
const KEPT_MAX: usize = 512;

/// See the module. Lives on its thread.
pub struct Client {
    session: tokio_postgres::Client,
    /// By their text; `None`: statements have no names.
    kept: Option<RefCell<HashMap<String, Statement>>>,
}

impl Client {
    /// `keeps`: the session is this client's alone, and functions are not made anew while it lives.
    pub fn new(session: tokio_postgres::Client, keeps: bool) -> Client {
        Client { session, kept: keeps.then(RefCell::default) }
    }

    /// Runs one statement. The outer error came before it was handed over.
    ///
    /// Between the look at the connection and the hand-over nothing else runs on this thread, so a failure after a live
    /// look is a failure after sending. A statement that is kept costs a round trip more the first time, and a fifth of
    /// PostgreSQL's time less from then on.
    pub(super) async fn ask(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Result<Vec<Row>, tokio_postgres::Error>, StoreError> {
        let kept = match &self.kept {
            Some(kept) => Some(self.keep(kept, sql, params).await?),
            None => None,
        };
        if self.session.is_closed() {
            return Err(StoreError::Unavailable("the connection is closed".into()));
        }
        Ok(match kept {
            Some(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
                self.session.query(&statement, &values).await
            }
            None => self.session.query_typed(sql, params).await,
        })
    }

    async fn keep(
        &self,
        kept: &RefCell<HashMap<String, Statement>>,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Statement, StoreError> {
        if let Some(statement) = kept.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = self.session.prepare_typed(sql, &types).await;
        let statement = prepared.map_err(|error| judge(&error, Nature::Repeatable))?;
        let mut kept = kept.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        &self.session
    }
}

/// Runs one statement whose lost answer means what `nature` says.
pub(super) async fn run(
    client: &Client,
    nature: Nature,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, StoreError> {
    client.ask(sql, params).await?.map_err(|error| judge(&error, nature))
}

/// A connection, and the store that the caller takes it to lead to.
pub struct On<'a> {
    pub client: &'a Client,
    /// See [`super::log::Incarnation`]. `None`: whichever is there.
    pub means: Option<&'a str>,
}

impl On<'_> {
    /// Runs one call that may be repeated, unless this is another store: then it fails, and nothing was done. `sql` has no
    /// condition of its own.
    ///
    /// Source: rule 12.
    pub(super) async fn run(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let Some(means) = self.means else { return run(self.client, Nature::Repeatable, sql, params).await };
        let sql = format!("{sql} where queen.is_incarnation(${})", params.len() + 1);
        let means = One::of(means);
        let mut all = params.to_vec();
        all.push(param(&means));
        run(self.client, Nature::Repeatable, &sql, &all).await
    }
}
