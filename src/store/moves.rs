//! The fused commit of moves of cursors: one statement, one transaction, one round trip. And how SQL spells a move: the codes
//! of `queen.move_cursors` and `queen.bundle`.

use crate::store::client::{Client, run};
use crate::store::failure::Nature;
use crate::store::log::Line;
use crate::store::params::{One, Utf8, column, nullable, param};
use crate::store::places;
use crate::store::rows::{Columns, Outcomes};
use queen_shards::effect::{
    CursorMove, CursorOutcome, CursorTo, DeadLetter, LeaseMust, LeaseTo, MoveOutcome, StoreError,
};
use queen_shards::ids::{Offset, Stamp};
use tokio_postgres::Row;

const MOVE: &str = "select * from queen.move_cursors(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
    $22, $23, $24, $25, $26)";

/// Applies the moves whose rows are still as remembered; each cursor may appear once.
///
/// Source: data plane 4.3, 5.4; rules 19 and 20.
pub async fn move_cursors(client: &Client, moves: &[CursorMove], line: Line) -> Result<MoveOutcome, StoreError> {
    let n = moves.len();
    let to = |i: usize| self::to(&moves[i]);
    let letters: Vec<(usize, &DeadLetter)> =
        moves.iter().enumerate().filter_map(|(i, m)| Some((i, m.dead_letter.as_ref()?))).collect();
    let d = letters.len();
    let freed = freed(moves);
    let rows = run(
        client,
        Nature::Writes,
        MOVE,
        &[
            param(&column(n, |i| moves[i].partition.0)),
            param(&column(n, |i| moves[i].group.0)),
            param(&column(n, |i| moves[i].version)),
            param(&column(n, |i| must(&moves[i]))),
            param(&column(n, |i| moves[i].to.is_some())),
            param(&column(n, |i| to(i).committed.0)),
            param(&column(n, |i| lease_to(to(i)))),
            param(&nullable(n, |i| lease_id(to(i)))),
            param(&column(n, |i| lease_secs(to(i)))),
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
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
            param(&column(freed.len(), |i| freed[i])),
            param(&nullable(n, |i| places::of_cursor(cursor_of(&moves[i])))),
            param(&nullable(n, |i| places::of_partition(moves[i].partition.0))),
        ],
    )
    .await?;
    let outcome = move_outcome(n, &rows)?;
    for row in &rows {
        let mut columns = Columns::of(row);
        let ord: i64 = columns.get()?;
        columns.skip(row.len() - 3);
        if let Some(place) = columns.get()? {
            places::learn_cursor(cursor_of(&moves[ord as usize - 1]), place);
        }
    }
    Ok(outcome)
}

fn cursor_of(one: &CursorMove) -> (i64, i64) {
    (one.partition.0, one.group.0)
}

/// Rows of `queen.move_cursors`, and of `queen.settle_moves`.
fn move_outcome(n: usize, rows: &[Row]) -> Result<MoveOutcome, StoreError> {
    let mut now = Stamp(0);
    let mut outcomes = Outcomes::new(n);
    for row in rows {
        let mut last = Columns::of(row);
        last.skip(row.len() - 1);
        now = last.stamp()?;
        let mut columns = Columns::of(row);
        let (ord, state): (i64, i32) = (columns.get()?, columns.get()?);
        outcomes.put(ord, || cursor_outcome(state, &mut columns, now))?;
    }
    Ok(MoveOutcome { now, moves: outcomes.all()? })
}

const SETTLE_MOVES: &str = "select * from queen.settle_moves($1, $2, $3, $4, $5, $6)";

/// What became of a commit of moves that was sent with `line` and not answered: `Busy` for all where it was not written,
/// and will not be if it is still on its way. An error says nothing about it.
///
/// Source: rule 9.
pub async fn settle_moves(client: &Client, moves: &[CursorMove], line: Line) -> Result<MoveOutcome, StoreError> {
    let n = moves.len();
    let rows = run(
        client,
        Nature::Repeatable,
        SETTLE_MOVES,
        &[
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
            param(&column(n, |i| moves[i].partition.0)),
            param(&column(n, |i| moves[i].group.0)),
            param(&column(n, |i| moves[i].version)),
            param(&column(n, |i| moves[i].to.is_some())),
        ],
    )
    .await?;
    move_outcome(n, &rows)
}

/// Cursors that moves may free, as the log names them: partition, group, partition, group, ...
pub(super) fn freed<'a>(moves: impl IntoIterator<Item = &'a CursorMove>) -> Vec<i64> {
    let clears = |one: &&CursorMove| one.to.is_some_and(|to| to.lease == LeaseTo::Clear);
    moves.into_iter().filter(clears).flat_map(|one| [one.partition.0, one.group.0]).collect()
}

fn cursor_outcome(state: i32, columns: &mut Columns<'_>, now: Stamp) -> Result<CursorOutcome, StoreError> {
    match state {
        0 | 1 => {
            let Some(mut row) = columns.cursor(now)? else { return Ok(CursorOutcome::Gone) };
            let (last_offset, log_start) = (columns.offset()?, columns.offset()?);
            row.conflating = columns.get()?;
            Ok(match state {
                0 => CursorOutcome::Moved {
                    version: row.version,
                    lease_left_us: row.lease_left_us,
                    last_offset,
                    log_start,
                },
                _ => CursorOutcome::Stale { row, last_offset, log_start },
            })
        }
        2 => Ok(CursorOutcome::Busy),
        4 => Ok(CursorOutcome::Unknown),
        _ => Ok(CursorOutcome::Gone),
    }
}

/// What the row becomes. A move that only confirms writes nothing: what stands there then is not looked at.
pub(super) fn to(one: &CursorMove) -> &CursorTo {
    const NOTHING: CursorTo = CursorTo {
        committed: Offset::NONE,
        lease: LeaseTo::Keep,
        batch_end: None,
        retry_count: 0,
        attempt_start: None,
        attempt_count: 0,
    };
    one.to.as_ref().unwrap_or(&NOTHING)
}

/// What the lease must be: `p_must`.
pub(super) fn must(one: &CursorMove) -> i16 {
    match one.lease {
        LeaseMust::Any => 0,
        LeaseMust::Live => 1,
        LeaseMust::Over => 2,
    }
}

/// What becomes of it: `p_lease_to`.
pub(super) fn lease_to(to: &CursorTo) -> i16 {
    match to.lease {
        LeaseTo::Keep => 0,
        LeaseTo::Clear => 1,
        LeaseTo::Set { conflating: false, .. } => 2,
        LeaseTo::Set { conflating: true, .. } => 3,
    }
}

/// Its id, where it is set.
pub(super) fn lease_id(to: &CursorTo) -> Option<u128> {
    match to.lease {
        LeaseTo::Set { id, .. } => Some(id.0),
        LeaseTo::Keep | LeaseTo::Clear => None,
    }
}

/// How long it is, where it is set.
pub(super) fn lease_secs(to: &CursorTo) -> i32 {
    match to.lease {
        LeaseTo::Set { secs, .. } => secs.min(i32::MAX as u32) as i32,
        LeaseTo::Keep | LeaseTo::Clear => 0,
    }
}
