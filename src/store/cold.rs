//! Calls off the hot path: provisioning, groups, scans, reloads. Each may be repeated without harm.

use crate::state::{StateCall, StateReply, Tells};
use crate::store::client::{Client, On, run};
use crate::store::failure::Nature;
use crate::store::params::{One, column, param};
use crate::store::rows::Columns;
use crate::store::runs;
use queen_shards::command::{Codec, Record, Start};
use queen_shards::effect::{
    Call, Contact, CursorRow, FoundLane, GroupRow, KeysRow, LaneRow, Reply, ScanRow, SeededCursor, StoreError,
};
use queen_shards::ids::{GroupId, Offset, PartitionId, Stamp, TenantId};
use queen_shards::place::LaneKey;
use std::sync::Arc;
use tokio_postgres::Row;

/// Runs a cold call. Source: `queen_shards::effect::Call`, which says what each of them does.
pub async fn call(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    match ask {
        Call::Provision { lanes } => provision(on, lanes).await.map(Reply::Lanes),
        Call::FindLane { lane } => find_lanes(on, std::slice::from_ref(lane)).await.map(Reply::Lanes),
        Call::FindPartitions { .. } => find_partitions(on, ask).await,
        Call::FindQueue { tenant, queue } => find_queue(on, *tenant, queue).await,
        Call::OpenGroup { .. } => open_group(on, ask).await,
        Call::Scan { .. } => scan(on, ask).await,
        Call::SeedCursors { group, start, partitions } => seed_cursors(on, *group, *start, partitions).await,
        Call::FindCursors { cursors } => find_cursors(on, cursors).await,
        Call::ReadKeys { .. } => read_keys(on, ask).await,
        Call::ReadRecords { .. } => read_records(on, ask).await,
        Call::ReadNewest { partition, to, not_after } => read_newest(on, *partition, *to, *not_after).await,
        Call::ReadRuns { partition, after, bytes } => runs::read_runs(on, *partition, *after, *bytes).await,
        Call::ReadRunRows { partition, rows } => runs::read_run_rows(on, *partition, rows).await,
        Call::DropRuns { partition, runs } => runs::drop_runs(on, *partition, runs).await,
        // Its work is not for this thread, and takes the slice.
        Call::SealRun { .. } => Err(StoreError::Refused("a slice is sealed before it is stored".into())),
    }
}

/// Runs a function of the state plane; the reply is its JSON text.
///
/// A lost answer is `Unknown`: some of them write. Source: `crate::state`.
pub async fn state(client: &Client, call: &StateCall) -> StateReply {
    let sql = format!("select queen.{}($1, $2::jsonb)::text", call.function.name());
    let args = call.args.to_string();
    let rows =
        run(client, Nature::Writes, &sql, &[param(&One::of(call.tenant.0)), param(&One::of(args.as_str()))]).await?;
    match rows.first() {
        Some(row) => Columns::of(row).get(),
        None => Ok(None),
    }
}

/// The same for a function of which other brokers must hear: the transaction says so in the commit log, under `writer`.
///
/// The change comes first: whoever waits for the writer's row waits for the end of a commit, and not for the change.
pub async fn changing_state(client: &Client, call: &StateCall, tells: Tells, writer: i64) -> StateReply {
    let name = call.function.name();
    let note = match tells {
        Tells::Queue => "queen.note_change($3, $1, $2::jsonb ->> 'queue')",
        Tells::Growth => "queen.note_growth($3, (c.said ->> 'grown')::bigint)",
    };
    let sql = format!("select c.said::text, {note} from queen.{name}($1, $2::jsonb) as c (said)");
    let args = call.args.to_string();
    let (tenant, args, writer) = (One::of(call.tenant.0), One::of(args.as_str()), One::of(writer));
    let rows = run(client, Nature::Writes, &sql, &[param(&tenant), param(&args), param(&writer)]).await?;
    match rows.first() {
        Some(row) => Columns::of(row).get(),
        None => Ok(None),
    }
}

/// One bounded step of removing what deleted queues left; rows removed.
pub async fn purge_dead(client: &Client, limit: i32) -> Result<i32, StoreError> {
    let rows = run(client, Nature::Repeatable, "select queen.purge_dead($1)", &[param(&One::of(limit))]).await?;
    rows.first().map_or(Ok(0), |row| Columns::of(row).get())
}

const PROVISION: &str = "select * from queen.provision($1, $2, $3, $4)";

async fn provision(on: &On<'_>, lanes: &[LaneKey]) -> Result<Vec<Option<LaneRow>>, StoreError> {
    let n = lanes.len();
    let rows = on
        .run(
            PROVISION,
            &[
                param(&column(n, |i| lanes[i].tenant.0)),
                param(&column(n, |i| &*lanes[i].queue)),
                param(&column(n, |i| &*lanes[i].partition)),
                param(&column(n, |i| lanes[i].slot() as i32)),
            ],
        )
        .await?;
    in_order(n, &rows, whole_lane)
}

const FIND_LANES: &str = "select * from queen.find_lanes($1, $2, $3)";

async fn find_lanes(on: &On<'_>, lanes: &[LaneKey]) -> Result<Vec<Option<LaneRow>>, StoreError> {
    let n = lanes.len();
    let rows = on
        .run(
            FIND_LANES,
            &[
                param(&column(n, |i| lanes[i].tenant.0)),
                param(&column(n, |i| &*lanes[i].queue)),
                param(&column(n, |i| &*lanes[i].partition)),
            ],
        )
        .await?;
    in_order(n, &rows, whole_lane)
}

fn whole_lane(columns: &mut Columns<'_>) -> Result<LaneRow, StoreError> {
    let row = columns.lane()?;
    Ok(LaneRow { queue: columns.completed(row.queue)?, ..row })
}

const FIND_PARTITIONS: &str = "select * from queen.find_partitions($1, $2)";

async fn find_partitions(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    let Call::FindPartitions { tenant, ids } = ask else { unreachable!("dispatched by variant") };
    let rows = on.run(FIND_PARTITIONS, &[param(&One::of(tenant.0)), param(&column(ids.len(), |i| ids[i].0))]).await?;
    in_order(ids.len(), &rows, |columns| {
        let row = columns.lane()?;
        let queue = columns.get::<&str>()?.into();
        let partition = columns.get::<&str>()?.into();
        Ok(FoundLane { queue, partition, row: LaneRow { queue: columns.completed(row.queue)?, ..row } })
    })
    .map(Reply::Found)
}

const OPEN_GROUP: &str = "select * from queen.open_group($1, $2, $3, $4, $5, $6)";

async fn open_group(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    let Call::OpenGroup { tenant, queue, group, contact } = ask else { unreachable!("dispatched by variant") };
    let (contact, start) = match contact {
        Contact::QueueMode => (0i16, Start::All),
        Contact::Register(start) => (1, *start),
        Contact::Pinned => (2, Start::All),
        Contact::RegisterConflating(start) => (3, *start),
        Contact::PinnedConflating(start) => (4, *start),
        Contact::Found(start) => (5, *start),
    };
    let (mode, start_at) = mode_of(start);
    let rows = on
        .run(
            OPEN_GROUP,
            &[
                param(&One::of(tenant.0)),
                param(&One::of(&**queue)),
                param(&One::of(&**group)),
                param(&One::of(contact)),
                param(&One::of(mode)),
                param(&One(start_at)),
            ],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(Reply::Group(None)) };
    let mut columns = Columns::of(row);
    let queue = columns.queue()?;
    let (group, registered) = (GroupId(columns.get()?), columns.get()?);
    let (conflation, made) = (columns.get()?, columns.get()?);
    let queue = columns.completed(queue)?;
    Ok(Reply::Group(Some(GroupRow { queue, group, registered, conflation, made })))
}

const SCAN: &str = "select *, clock_timestamp() from queen.scan($1, $2, $3, $4, $5, $6, $7)";

async fn scan(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    let Call::Scan { queue, group, shard, shards, after, limit, look } = ask else {
        unreachable!("dispatched by variant")
    };
    let rows = on
        .run(
            SCAN,
            &[
                param(&One::of(queue.0)),
                param(&One::of(group.0)),
                param(&One::of(*shard as i32)),
                param(&One::of(*shards as i32)),
                param(&One::of(after.0)),
                param(&One::of((*limit).min(i32::MAX as u32) as i32)),
                param(&One::of((*look).min(i32::MAX as u32) as i32)),
            ],
        )
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    let now = rows.first().map_or(Err(no_rows()), last_stamp)?;
    let mut next = None;
    for row in &rows {
        let read_at = last_stamp(row)?;
        let mut columns = Columns::of(row);
        let Some(partition) = columns.get::<Option<i64>>()? else {
            columns.skip(13);
            next = columns.get::<Option<i64>>()?.map(PartitionId);
            break;
        };
        found.push(ScanRow {
            partition: PartitionId(partition),
            name: columns.get::<&str>()?.into(),
            last_offset: columns.offset()?,
            log_start: columns.offset()?,
            last_created_at: columns.stamp()?,
            cursor: marked(columns.cursor(read_at)?, columns.get()?),
        });
    }
    if found.len() >= *limit as usize {
        next = found.last().map(|row: &ScanRow| row.partition);
    }
    Ok(Reply::Scanned { rows: found, next, now })
}

/// The left join brings the clock along when nothing was found.
const SEED_CURSORS: &str = "select r.*, clock_timestamp() from (select) as one \
    left join queen.seed_cursors($1, $2, $3, $4) as r on true";

async fn seed_cursors(
    on: &On<'_>,
    group: GroupId,
    start: Start,
    partitions: &[PartitionId],
) -> Result<Reply, StoreError> {
    let (mode, start_at) = mode_of(start);
    let n = partitions.len();
    let rows = on
        .run(
            SEED_CURSORS,
            &[
                param(&One::of(group.0)),
                param(&One::of(mode)),
                param(&One(start_at)),
                param(&column(n, |i| partitions[i].0)),
            ],
        )
        .await?;
    let mut seeded = vec![None; n];
    let now = rows.first().map_or(Err(no_rows()), last_stamp)?;
    for row in &rows {
        let read_at = last_stamp(row)?;
        let mut columns = Columns::of(row);
        let Some(ord) = columns.get::<Option<i64>>()? else { break };
        let at = place(ord, n)?;
        let (last_offset, log_start) = (columns.offset()?, columns.offset()?);
        let cursor = marked(columns.cursor(read_at)?, columns.get()?);
        seeded[at] = cursor.map(|row| SeededCursor { row, last_offset, log_start });
    }
    Ok(Reply::Cursors { rows: seeded, now })
}

const FIND_QUEUE: &str = "select * from queen.find_queue($1, $2)";

async fn find_queue(on: &On<'_>, tenant: TenantId, queue: &str) -> Result<Reply, StoreError> {
    let rows = on.run(FIND_QUEUE, &[param(&One::of(tenant.0)), param(&One::of(queue))]).await?;
    let read = |row| {
        let mut columns = Columns::of(row);
        let queue = columns.queue()?;
        columns.completed(queue)
    };
    Ok(Reply::Queue(rows.first().map(read).transpose()?))
}

const FIND_CURSORS: &str = "select *, clock_timestamp() from queen.find_cursors($1, $2)";

async fn find_cursors(on: &On<'_>, cursors: &[(PartitionId, Arc<str>)]) -> Result<Reply, StoreError> {
    let n = cursors.len();
    let (partitions, groups) = (column(n, |i| cursors[i].0.0), column(n, |i| &*cursors[i].1));
    let rows = on.run(FIND_CURSORS, &[param(&partitions), param(&groups)]).await?;
    let mut found = vec![None; n];
    for row in &rows {
        let read_at = last_stamp(row)?;
        let mut columns = Columns::of(row);
        let at = place(columns.get()?, n)?;
        let group = GroupId(columns.get()?);
        let cursor = marked(columns.cursor(read_at)?, columns.get()?);
        found[at] = cursor.map(|cursor| (group, cursor));
    }
    Ok(Reply::FoundCursors(found))
}

const READ_KEYS: &str = "select * from queen.read_keys($1, $2, $3, $4, $5, $6)";

async fn read_keys(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    let Call::ReadKeys { partition, from, to, since, limit, newest_first } = ask else {
        unreachable!("dispatched by variant")
    };
    let rows = on
        .run(
            READ_KEYS,
            &[
                param(&One::of(partition.0)),
                param(&One::of(from.0)),
                param(&One::of(to.0)),
                param(&One(*since)),
                param(&One::of((*limit).min(i32::MAX as u32) as i32)),
                param(&One::of(*newest_first)),
            ],
        )
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut columns = Columns::of(row);
        match columns.offset_opt()? {
            Some(base) => {
                let (created_at, keys) = (columns.stamp()?, columns.bytes()?);
                columns.skip(2);
                found.push(KeysRow { base, created_at, accepted_at: columns.stamp_opt()?, keys });
            }
            None => {
                columns.skip(2);
                let (complete, now) = (columns.get()?, columns.stamp()?);
                if *newest_first {
                    found.reverse();
                }
                return Ok(Reply::Keys { rows: found, complete, now });
            }
        }
    }
    Err(StoreError::Refused("read_keys has no last row".into()))
}

const READ_RECORDS: &str = "select * from queen.read_records($1, $2, $3, $4, $5)";

async fn read_records(on: &On<'_>, ask: &Call) -> Result<Reply, StoreError> {
    let Call::ReadRecords { partition, from, to, bytes, messages } = ask else { unreachable!("dispatched by variant") };
    let rows = on
        .run(
            READ_RECORDS,
            &[
                param(&One::of(partition.0)),
                param(&One::of(from.0)),
                param(&One::of(to.0)),
                param(&One::of((*bytes).min(i64::MAX as u64) as i64)),
                param(&One::of((*messages).min(i32::MAX as u32) as i32)),
            ],
        )
        .await?;
    records(&rows, "read_records")
}

/// Records, and a last row without one, which says where the log begins.
fn records(rows: &[Row], function: &str) -> Result<Reply, StoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let mut columns = Columns::of(row);
        let Some(base) = columns.offset_opt()? else {
            columns.skip(7);
            return Ok(Reply::Records { records, log_start: columns.offset()? });
        };
        records.push(Record {
            base,
            created_at: columns.stamp()?,
            count: columns.count()?,
            codec: codec_of(columns.get()?)?,
            flags: columns.get::<i16>()? as u8,
            raw_len: columns.count()?,
            body: columns.bytes()?,
            frames: None,
            keys: columns.bytes()?,
        });
    }
    Err(StoreError::Refused(format!("{function} has no last row")))
}

const READ_NEWEST: &str = "select * from queen.read_newest($1, $2, $3)";

async fn read_newest(on: &On<'_>, partition: PartitionId, to: Offset, not_after: Stamp) -> Result<Reply, StoreError> {
    // PostgreSQL has no stamp so late; the function takes null for it.
    let not_after = (not_after < Stamp(i64::MAX)).then_some(not_after);
    let rows =
        on.run(READ_NEWEST, &[param(&One::of(partition.0)), param(&One::of(to.0)), param(&One(not_after))]).await?;
    records(&rows, "read_newest")
}

fn codec_of(number: i16) -> Result<Codec, StoreError> {
    match number {
        0 => Ok(Codec::Raw),
        1 => Ok(Codec::Zstd),
        _ => Err(StoreError::Refused(format!("unknown codec {number} in a stored record"))),
    }
}

/// A cursor with its mark, which is null where there is no cursor.
fn marked(cursor: Option<CursorRow>, conflating: Option<bool>) -> Option<CursorRow> {
    cursor.map(|row| CursorRow { conflating: conflating == Some(true), ..row })
}

/// A start as the functions take it.
fn mode_of(start: Start) -> (&'static str, Option<Stamp>) {
    match start {
        Start::All => ("all", None),
        Start::New => ("new", None),
        Start::At(at) => ("timestamp", Some(at)),
    }
}

/// The stamp in the last column.
fn last_stamp(row: &Row) -> Result<Stamp, StoreError> {
    let mut columns = Columns::of(row);
    columns.skip(row.len() - 1);
    columns.stamp()
}

fn no_rows() -> StoreError {
    StoreError::Refused("no rows where there is always one".into())
}

/// The 1-based `ord` of a row as an index below `n`.
fn place(ord: i64, n: usize) -> Result<usize, StoreError> {
    usize::try_from(ord - 1)
        .ok()
        .filter(|at| *at < n)
        .ok_or_else(|| StoreError::Refused(format!("place {ord} of {n} in an answer")))
}

/// Rows that begin with `ord`, put where they belong; `None` where no row came.
pub(super) fn in_order<'a, T>(
    n: usize,
    rows: &'a [Row],
    read: impl Fn(&mut Columns<'a>) -> Result<T, StoreError>,
) -> Result<Vec<Option<T>>, StoreError> {
    let mut found: Vec<Option<T>> = std::iter::repeat_with(|| None).take(n).collect();
    for row in rows {
        let mut columns = Columns::of(row);
        let at = place(columns.get()?, n)?;
        found[at] = Some(read(&mut columns)?);
    }
    Ok(found)
}
