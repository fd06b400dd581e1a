//! Sealed runs of dedup keys: stored whole, read by row. Source: rule 13.

use crate::store::client::{Client, On, run};
use crate::store::failure::Nature;
use crate::store::params::{One, column, param};
use crate::store::rows::Columns;
use queen_shards::effect::{Reply, RunRow, StoreError};
use queen_shards::ids::PartitionId;
use queen_shards::sealed::{RowId, RunId, SealedRun};

const STORE_RUN: &str = "select queen.store_run($1, $2, $3, $4, $5, $6)";

/// Stores what sealing made of a slice: 24 bytes a key in one statement, so give it a connection of its own.
pub async fn store_run(on: &On<'_>, partition: PartitionId, sealed: &SealedRun) -> Result<(), StoreError> {
    let (id, rows) = (sealed.run.id(), &sealed.rows);
    let encoded = sealed.run.encode();
    on.run(
        STORE_RUN,
        &[
            param(&One::of(partition.0)),
            param(&One::of(id.base.0)),
            param(&One::of(id.last.0)),
            param(&One::of(sealed.run.newest)),
            param(&One::of(&encoded[..])),
            param(&column(rows.len(), |i| &rows[i][..])),
        ],
    )
    .await
    .map(drop)
}

const READ_RUNS: &str = "select * from queen.read_runs($1, $2, $3, $4)";

pub(super) async fn read_runs(
    on: &On<'_>,
    partition: PartitionId,
    after: Option<RunId>,
    bytes: u64,
) -> Result<Reply, StoreError> {
    let mut runs = Vec::new();
    let rows = on
        .run(
            READ_RUNS,
            &[
                param(&One::of(partition.0)),
                param(&One(after.map(|id| id.base.0))),
                param(&One(after.map(|id| id.last.0))),
                param(&One::of(bytes.min(i64::MAX as u64) as i64)),
            ],
        )
        .await?;
    for row in &rows {
        let mut columns = Columns::of(row);
        let Some(base) = columns.offset_opt()? else {
            columns.skip(3);
            return Ok(Reply::Runs { runs, complete: columns.get()? });
        };
        let id = RunId { base, last: columns.offset()? };
        runs.push(RunRow { id, run: columns.bytes()?, before: columns.stamp_opt()? });
    }
    Err(StoreError::Refused("read_runs has no last row".into()))
}

const READ_RUN_ROWS: &str = "select * from queen.read_run_rows($1, $2, $3, $4)";

pub(super) async fn read_run_rows(on: &On<'_>, partition: PartitionId, rows: &[RowId]) -> Result<Reply, StoreError> {
    let n = rows.len();
    let found = on
        .run(
            READ_RUN_ROWS,
            &[
                param(&One::of(partition.0)),
                param(&column(n, |i| rows[i].run.base.0)),
                param(&column(n, |i| rows[i].run.last.0)),
                param(&column(n, |i| rows[i].row as i32)),
            ],
        )
        .await?;
    super::cold::in_order(n, &found, |columns| columns.bytes()).map(Reply::RunRows)
}

const DROP_RUNS: &str = "select queen.drop_runs($1, $2, $3)";

pub(super) async fn drop_runs(on: &On<'_>, partition: PartitionId, runs: &[RunId]) -> Result<Reply, StoreError> {
    on.run(
        DROP_RUNS,
        &[
            param(&One::of(partition.0)),
            param(&column(runs.len(), |i| runs[i].base.0)),
            param(&column(runs.len(), |i| runs[i].last.0)),
        ],
    )
    .await?;
    Ok(Reply::Done)
}

/// One bounded step of removing runs that nobody needs; rows removed.
pub async fn purge_runs(client: &Client, limit: i32) -> Result<i32, StoreError> {
    let rows = run(client, Nature::Repeatable, "select queen.purge_runs($1)", &[param(&One::of(limit))]).await?;
    rows.first().map_or(Ok(0), |row| Columns::of(row).get())
}
