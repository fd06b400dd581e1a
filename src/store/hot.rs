//! The two fused commits: pushes, and moves of cursors. One statement, one transaction, one round trip each.

use crate::store::failure::{Nature, judge};
use crate::store::pack::pack;
use crate::store::params::{Param, Utf8, blob, column, nullable, param};
use crate::store::rows::{Columns, lease_left};
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::effect::{
    Append, AppendOutcome, CursorMove, CursorOutcome, CursorTo, DeadLetter, LaneOutcome, LeaseMust, LeaseTo,
    MoveOutcome, StoreError,
};
use queen_shards::ids::Stamp;
use tokio_postgres::{Client, Row};

/// Runs one statement whose lost answer means what `nature` says.
///
/// Between the look at the connection and the hand-over nothing else runs on this thread, so a failure after a live
/// look is a failure after sending.
pub(super) async fn run(
    client: &Client,
    nature: Nature,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, StoreError> {
    if client.is_closed() {
        return Err(StoreError::Unavailable("the connection is closed".into()));
    }
    client.query_typed(sql, params).await.map_err(|error| judge(&error, nature))
}

const APPEND: &str = "select * from queen.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// Writes a fused push commit: every lane that still ends where the engine saw it end.
///
/// Packs the segments that are not packed yet, with zstd at `level`. The bytes are copied once, into the wire buffer.
///
/// Source: data plane 3.4; architecture 4.
pub async fn append(client: &Client, append: &Append, level: i32) -> Result<AppendOutcome, StoreError> {
    let (lanes, segments) = (&append.lanes, &append.segments);
    let mut stored: Vec<(Codec, Bytes)> = segments
        .iter()
        .map(|s| match &s.packed {
            Some(packed) => (Codec::Zstd, packed.clone()),
            None => pack(&s.frames, level),
        })
        .collect();
    let (l, s) = (lanes.len(), segments.len());
    let rows = run(
        client,
        Nature::Writes,
        APPEND,
        &[
            param(&column(l, |i| lanes[i].partition.0)),
            param(&column(l, |i| lanes[i].expect.0)),
            param(&column(l, |i| lanes[i].count as i32)),
            param(&column(s, |i| segments[i].lane as i32 + 1)),
            param(&column(s, |i| lanes[segments[i].lane as usize].expect.0 + 1 + segments[i].rel as i64)),
            param(&column(s, |i| segments[i].count as i32)),
            param(&column(s, |i| stored[i].0 as i16)),
            param(&column(s, |i| segments[i].flags as i16)),
            param(&column(s, |i| segments[i].frames.len() as i32)),
            param(&column(s, |i| stored[i].1.len() as i32)),
            param(&blob(s, |i| &segments[i].keys[..])),
            param(&blob(s, |i| &stored[i].1[..])),
        ],
    )
    .await?;
    let mut now = Stamp(0);
    let mut outcomes = Vec::with_capacity(l);
    for row in &rows {
        let mut columns = Columns::of(row);
        let state: i16 = columns.get()?;
        let last = columns.offset()?;
        let created_at = columns.stamp_opt()?;
        now = columns.stamp()?;
        outcomes.push(match (state, created_at) {
            (0, Some(created_at)) => LaneOutcome::Appended { created_at },
            (1, _) => LaneOutcome::Moved { last },
            (2, _) => LaneOutcome::Busy,
            _ => LaneOutcome::Gone,
        });
    }
    all_answered(outcomes.len(), l)?;
    for (segment, stored) in segments.iter().zip(&mut stored) {
        if !matches!(outcomes[segment.lane as usize], LaneOutcome::Appended { .. }) {
            stored.1 = Bytes::new();
        }
    }
    Ok(AppendOutcome { now, lanes: outcomes, stored })
}

const MOVE: &str = "select * from queen.move_cursors(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)";

/// Applies the moves whose rows are still as remembered; each cursor may appear once.
///
/// Source: data plane 4.3, 5.4; architecture 13, rules 19 and 20.
pub async fn move_cursors(client: &Client, moves: &[CursorMove]) -> Result<MoveOutcome, StoreError> {
    const NOTHING: CursorTo = CursorTo {
        committed: queen_shards::ids::Offset::NONE,
        lease: LeaseTo::Keep,
        batch_end: None,
        retry_count: 0,
        attempt_start: None,
        attempt_count: 0,
    };
    let n = moves.len();
    let to = |i: usize| moves[i].to.as_ref().unwrap_or(&NOTHING);
    let letters: Vec<(usize, &DeadLetter)> =
        moves.iter().enumerate().filter_map(|(i, m)| Some((i, m.dead_letter.as_ref()?))).collect();
    let d = letters.len();
    let rows = run(
        client,
        Nature::Writes,
        MOVE,
        &[
            param(&column(n, |i| moves[i].partition.0)),
            param(&column(n, |i| moves[i].group.0)),
            param(&column(n, |i| moves[i].version)),
            param(&column(n, |i| match moves[i].lease {
                LeaseMust::Any => 0i16,
                LeaseMust::Live => 1,
                LeaseMust::Over => 2,
            })),
            param(&column(n, |i| moves[i].to.is_some())),
            param(&column(n, |i| to(i).committed.0)),
            param(&column(n, |i| match to(i).lease {
                LeaseTo::Keep => 0i16,
                LeaseTo::Clear => 1,
                LeaseTo::Set { .. } => 2,
            })),
            param(&nullable(n, |i| match to(i).lease {
                LeaseTo::Set { id, .. } => Some(id.0),
                _ => None,
            })),
            param(&column(n, |i| match to(i).lease {
                LeaseTo::Set { secs, .. } => secs.min(i32::MAX as u32) as i32,
                _ => 0,
            })),
            param(&nullable(n, |i| to(i).batch_end.map(|o| o.0))),
            param(&column(n, |i| to(i).retry_count as i32)),
            param(&nullable(n, |i| to(i).attempt_start.map(|o| o.0))),
            param(&column(n, |i| to(i).attempt_count as i32)),
            param(&column(d, |i| letters[i].0 as i32 + 1)),
            param(&column(d, |i| letters[i].1.offset.0)),
            param(&column(d, |i| letters[i].1.id.0)),
            param(&column(d, |i| Utf8(&letters[i].1.transaction_id))),
            param(&column(d, |i| &letters[i].1.payload[..])),
            param(&column(d, |i| letters[i].1.encrypted)),
            param(&column(d, |i| &*letters[i].1.error)),
            param(&column(d, |i| letters[i].1.retry_count as i32)),
        ],
    )
    .await?;
    let mut now = Stamp(0);
    let mut outcomes = Vec::with_capacity(n);
    for row in &rows {
        let asked_at = {
            let mut last = Columns::of(row);
            last.skip(11);
            last.stamp()?
        };
        now = asked_at;
        let mut columns = Columns::of(row);
        let state: i16 = columns.get()?;
        outcomes.push(match state {
            0 => {
                let version = columns.get()?;
                columns.skip(2);
                let lease_left_us = lease_left(columns.stamp_opt()?, asked_at);
                columns.skip(4);
                let (last_offset, log_start) = (columns.offset()?, columns.offset()?);
                CursorOutcome::Moved { version, lease_left_us, last_offset, log_start }
            }
            1 => match columns.cursor(asked_at)? {
                Some(row) => {
                    let (last_offset, log_start) = (columns.offset()?, columns.offset()?);
                    CursorOutcome::Stale { row, last_offset, log_start }
                }
                None => CursorOutcome::Gone,
            },
            2 => CursorOutcome::Busy,
            _ => CursorOutcome::Gone,
        });
    }
    all_answered(outcomes.len(), n)?;
    Ok(MoveOutcome { now, moves: outcomes })
}

/// Asks whether the store answers, and for its clock.
pub async fn ping(client: &Client) -> Result<Stamp, StoreError> {
    let rows = run(client, Nature::Repeatable, "select clock_timestamp()", &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::Refused("no answer to a ping".into()))?;
    Columns::of(row).stamp()
}

/// One outcome per question; anything else would hand answers to the wrong slots.
fn all_answered(outcomes: usize, asked: usize) -> Result<(), StoreError> {
    match outcomes == asked {
        true => Ok(()),
        false => Err(StoreError::Unknown(format!("{outcomes} outcomes for {asked} questions"))),
    }
}
