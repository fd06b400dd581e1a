//! The commit log: who writes it, and what others wrote.
//!
//!     add_writer > a ring > every commit of the writer updates a slot of it, in its own transaction
//!     read: positions > what came after them, once each > new positions
//!
//! Holds: a writer has one commit in flight and numbers those that were committed without a gap, so a reader with a
//! position per writer misses nothing, or learns that it did. Source: rules 8 to 12.

use crate::store::client::{Client, run};
use crate::store::failure::Nature;
use crate::store::params::{One, column, param};
use crate::store::rows::Columns;
use queen_shards::command::{Left, LogLane};
use queen_shards::effect::StoreError;
use queen_shards::ids::{GroupId, Offset, PartitionId, Stamp, TenantId};
use queen_shards::place::LaneKey;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::Row;

/// Where a commit is written in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// 0: nowhere.
    pub writer: i64,
    /// One more than the writer's last commit that was committed.
    pub seq: i64,
}

impl Line {
    /// Of commits that nobody else needs to hear of.
    pub const NONE: Line = Line { writer: 0, seq: 0 };
}

/// Which store it is, in PostgreSQL's own words: cluster, timeline, database, and since when the server runs. Another one
/// after a failover, a restore and a restart: numbers, offsets and rows may have gone back, so nothing that is remembered of
/// one may meet the other. Source: rule 12.
pub type Incarnation = Arc<str>;

/// Whether `is` may be what `was` has been, with a server that was started again. Its data may still be older.
pub fn started_again(was: &Incarnation, is: &Incarnation) -> bool {
    let store = |incarnation: &str| incarnation.rsplit_once('/').map(|(store, _)| store.to_owned());
    store(was) == store(is)
}

/// How far each writer was read.
pub type Positions = HashMap<i64, i64>;

/// What a read brought.
#[derive(Debug)]
pub struct News {
    pub now: Stamp,
    /// Where it was read. When that is not where the reader believed to be, there is nothing else here.
    pub incarnation: Incarnation,
    /// Brokers that may commit, beside the reader.
    pub others: u64,
    /// The operator's switches as they are stored, for pushes and for pops.
    pub maintenance: (bool, bool),
    pub positions: Positions,
    /// Commits were overwritten before they were read: what they said must be found by looking everywhere.
    pub lost: bool,
    /// Partitions that may have grown, or that have a cursor of `freed` with something left, as they are now.
    pub lanes: Vec<LogLane>,
    /// Cursors whose lease ended, and what they have left.
    pub freed: Vec<(PartitionId, GroupId, Left)>,
    /// Queues to read anew.
    pub changed: Vec<(TenantId, Arc<str>)>,
}

impl News {
    fn none() -> News {
        News {
            now: Stamp(0),
            incarnation: "".into(),
            others: 0,
            maintenance: (false, false),
            positions: Positions::new(),
            lost: false,
            lanes: Vec::new(),
            freed: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Whether anything was committed.
    pub fn is_empty(&self) -> bool {
        !self.lost && self.lanes.is_empty() && self.freed.is_empty() && self.changed.is_empty()
    }
}

/// Says that a broker will commit. How many others there are.
pub async fn join(client: &Client, broker: u128) -> Result<u64, StoreError> {
    let rows = run(client, Nature::Repeatable, "select queen.join_broker($1)", &[param(&One::of(broker))]).await?;
    Ok(Columns::of(one(&rows)?).get::<i64>()? as u64)
}

/// Says that a broker is still there, or (`gone`) that it commits no more.
pub async fn keep(client: &Client, broker: u128, gone: bool) -> Result<(), StoreError> {
    let sql = "select queen.keep_broker($1, $2)";
    run(client, Nature::Repeatable, sql, &[param(&One::of(broker)), param(&One::of(gone))]).await.map(drop)
}

/// Hints travel under this name.
const LISTEN: &str = "listen queen_log";

/// Hears hints from now on, on this session.
pub async fn listen(client: &Client) -> Result<(), StoreError> {
    run(client, Nature::Repeatable, LISTEN, &[]).await.map(drop)
}

/// Tells all who listen that `broker` committed something. Waits for no disk: a hint may be lost.
pub async fn hint(client: &Client, broker: &str) -> Result<(), StoreError> {
    let sql = "select set_config('synchronous_commit', 'off', true), pg_notify('queen_log', $1)";
    run(client, Nature::Repeatable, sql, &[param(&One::of(broker))]).await.map(drop)
}

/// A new writer on the store of this incarnation; `replaces`: one that commits no more, 0 for none. Another store refuses,
/// and refuses what the writer commits.
pub async fn add_writer(
    client: &Client,
    broker: u128,
    replaces: i64,
    incarnation: &Incarnation,
) -> Result<i64, StoreError> {
    let sql = "select queen.add_writer($1, $2, $3)";
    let (broker, replaces, incarnation) = (One::of(broker), One::of(replaces), One::of(&**incarnation));
    let params = [param(&broker), param(&replaces), param(&incarnation)];
    let rows = run(client, Nature::Repeatable, sql, &params).await?;
    Columns::of(one(&rows)?).get()
}

const READ: &str = "select * from queen.read_log($1, $2, $3, $4)";
const READ_FIRST: &str = "select * from queen.read_log($1, null, null, null)";

/// How far a reader is, and where.
pub type At<'a> = (&'a Incarnation, &'a Positions);

/// What others than `broker` committed after `from`; `None`: nothing, it begins here.
pub async fn read(client: &Client, broker: u128, from: Option<At<'_>>) -> Result<News, StoreError> {
    let broker = One::of(broker);
    let rows = match from {
        Some((incarnation, positions)) => {
            let known: Vec<(i64, i64)> = positions.iter().map(|(writer, seq)| (*writer, *seq)).collect();
            let n = known.len();
            let (writers, seqs) = (column(n, |i| known[i].0), column(n, |i| known[i].1));
            let means = One::of(&**incarnation);
            let params = [param(&broker), param(&writers), param(&seqs), param(&means)];
            run(client, Nature::Repeatable, READ, &params).await
        }
        None => run(client, Nature::Repeatable, READ_FIRST, &[param(&broker)]).await,
    }?;
    let mut news = News::none();
    for row in &rows {
        let mut columns = Columns::of(row);
        let kind: i16 = columns.get()?;
        let n: [Option<i64>; 3] = [columns.get()?, columns.get()?, columns.get()?];
        let tenant = columns.tenant_opt()?;
        let (queue, name): (Option<&str>, Option<&str>) = (columns.get()?, columns.get()?);
        let at = columns.stamp_opt()?;
        news.now = columns.stamp()?;
        match (kind, n, tenant, queue, name) {
            (0, [Some(others), Some(switches), _], _, _, Some(incarnation)) => {
                (news.others, news.incarnation) = (others.max(0) as u64, incarnation.into());
                news.maintenance = (switches & 1 != 0, switches & 2 != 0);
            }
            (1, [Some(writer), Some(seq), lost], ..) => {
                news.positions.insert(writer, seq);
                news.lost |= lost == Some(1);
            }
            (2, [Some(id), Some(last), Some(start)], Some(tenant), Some(queue), Some(name)) => {
                news.lanes.push(LogLane {
                    key: LaneKey::new(tenant, queue.into(), name.into()),
                    partition: PartitionId(id),
                    last_offset: Offset(last),
                    log_start: Offset(start),
                    last_created_at: at.unwrap_or_default(),
                })
            }
            (3, [Some(partition), Some(group), left], ..) => {
                let left = match (left, at) {
                    (Some(1), None) => Left::Something,
                    (Some(1), Some(end)) => Left::Leased(end),
                    _ => Left::Nothing,
                };
                news.freed.push((PartitionId(partition), GroupId(group), left));
            }
            (4, _, Some(tenant), Some(queue), _) => news.changed.push((tenant, queue.into())),
            (4, ..) => news.lost = true,
            _ => return Err(StoreError::Refused(format!("a line of the log of kind {kind}"))),
        }
    }
    Ok(news)
}

fn one(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| StoreError::Refused("no row where there is always one".into()))
}
