//! The two fused commits: pushes, and moves of cursors. One statement, one transaction, one round trip each.

use crate::store::client::{Client, run};
use crate::store::failure::Nature;
use crate::store::log::Line;
use crate::store::moves;
use crate::store::pack::pack;
use crate::store::params::{One, Utf8, blob, column, nullable, param};
use crate::store::places;
use crate::store::rows::{Columns, Tid};
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::effect::{
    Append, AppendOutcome, AppendSegment, CursorMove, CursorOutcome, DeadLetter, LaneOutcome, LeaseTo, MoveOutcome,
    StoreError,
};
use queen_shards::ids::Stamp;
use tokio_postgres::Row;

/// Longest a commit that waits for a row holds its connection up.
const WAIT_MS: i32 = 50;

const APPEND: &str = "select * from queen.append(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

/// Writes a fused push commit: every lane that still ends where the engine saw it end.
///
/// Packs the segments that are not packed yet, with zstd at `level`. The bytes are copied once, into the wire buffer.
/// `line`: where the commit log says so.
///
/// Source: data plane 3.4; architecture (The life of a push).
pub async fn append(client: &Client, append: &Append, level: i32, line: Line) -> Result<AppendOutcome, StoreError> {
    let (lanes, segments) = (&append.lanes, &append.segments);
    let mut stored = stored_forms(append, level);
    let (l, s) = (lanes.len(), segments.len());
    let spans = Spans::of(append, &stored)?;
    if append.wait && l == 1 {
        return append_waiting(client, append, stored, line).await;
    }
    let rows = sent(run(
        client,
        Nature::Writes,
        APPEND,
        &[
            param(&column(l, |i| lanes[i].partition.0)),
            param(&column(l, |i| lanes[i].expect.0)),
            param(&column(l, |i| lanes[i].count as i32)),
            param(&column(l, |i| spans.segments[i].0)),
            param(&column(l, |i| spans.segments[i].1)),
            param(&column(s, |i| lanes[segments[i].lane as usize].expect.0 + 1 + segments[i].rel as i64)),
            param(&column(s, |i| segments[i].count as i32)),
            param(&column(s, |i| stored[i].0 as i16)),
            param(&column(s, |i| segments[i].flags as i16)),
            param(&column(s, |i| segments[i].raw_len() as i32)),
            param(&column(s, |i| spans.keys_at[i])),
            param(&column(s, |i| spans.body_at[i])),
            param(&column(s, |i| stored[i].1.len() as i32)),
            param(&blob(s, |i| &segments[i].keys[..])),
            param(&blob(s, |i| &stored[i].1[..])),
            param(&nullable(s, |i| segments[i].accepted_at)),
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
            param(&nullable(l, |i| places::of_partition(lanes[i].partition.0))),
        ],
    ))
    .await?;
    let mut now = Stamp(0);
    let mut outcomes = Places::new(l);
    for row in &rows {
        let mut columns = Columns::of(row);
        let (ord, state): (i64, i32) = (columns.get()?, columns.get()?);
        let last = columns.offset()?;
        let created_at = columns.stamp_opt()?;
        now = columns.stamp()?;
        let place: Option<Tid> = columns.get()?;
        outcomes.put(ord, || {
            if let Some(place) = place {
                places::learn_partition(lanes[ord as usize - 1].partition.0, place);
            }
            Ok(match (state, created_at) {
                (0, Some(created_at)) => LaneOutcome::Appended { created_at },
                (1, _) => LaneOutcome::Moved { last },
                (2, _) => LaneOutcome::Busy,
                _ => LaneOutcome::Gone,
            })
        })?;
    }
    let outcomes = outcomes.all()?;
    for (segment, stored) in segments.iter().zip(&mut stored) {
        if !matches!(outcomes[segment.lane as usize], LaneOutcome::Appended { .. }) {
            stored.1 = Bytes::new();
        }
    }
    Ok(AppendOutcome { now, lanes: outcomes, stored })
}

/// How each segment is stored.
fn stored_forms(append: &Append, level: i32) -> Vec<(Codec, Bytes)> {
    let stored = |segment: &AppendSegment| match &segment.packed {
        Some(packed) => (Codec::Zstd, packed.clone()),
        None => pack(&segment.frames, level),
    };
    append.segments.iter().map(stored).collect()
}

const SETTLE_APPEND: &str = "select * from queen.settle_append($1, $2, $3, $4)";

/// What became of a push commit that was sent with `line` and not answered. `None`: it was not written, and will not be
/// if it is still on its way. An error says nothing about it.
///
/// Source: rule 9.
pub async fn settle_append(
    client: &Client,
    append: &Append,
    level: i32,
    line: Line,
) -> Result<Option<AppendOutcome>, StoreError> {
    let lanes = &append.lanes;
    let l = lanes.len();
    let rows = run(
        client,
        Nature::Repeatable,
        SETTLE_APPEND,
        &[
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
            param(&column(l, |i| lanes[i].partition.0)),
            param(&column(l, |i| lanes[i].expect.0)),
        ],
    )
    .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut now = Stamp(0);
    let mut outcomes = Places::new(l);
    for row in &rows {
        let mut columns = Columns::of(row);
        let (ord, state): (i64, i32) = (columns.get()?, columns.get()?);
        let (base, last) = (columns.offset()?, columns.offset()?);
        let created_at = columns.stamp_opt()?;
        now = columns.stamp()?;
        let expect = usize::try_from(ord - 1).ok().and_then(|at| lanes.get(at)).map(|lane| lane.expect);
        outcomes.put(ord, || {
            Ok(match (state, created_at) {
                (0, Some(created_at)) if expect == Some(base.plus(-1)) => LaneOutcome::Appended { created_at },
                (0, Some(created_at)) => LaneOutcome::Behind { base, created_at },
                (1, _) => LaneOutcome::Moved { last },
                _ => LaneOutcome::Gone,
            })
        })?;
    }
    let outcomes = outcomes.all()?;
    let mut stored = stored_forms(append, level);
    for (segment, stored) in append.segments.iter().zip(&mut stored) {
        if !is_written(&outcomes[segment.lane as usize]) {
            stored.1 = Bytes::new();
        }
    }
    Ok(Some(AppendOutcome { now, lanes: outcomes, stored }))
}

fn is_written(outcome: &LaneOutcome) -> bool {
    matches!(outcome, LaneOutcome::Appended { .. } | LaneOutcome::Behind { .. })
}

/// Awaits a commit; a torture build stops for a moment once it is on its way.
async fn sent<T>(commit: impl Future<Output = T>) -> T {
    let mut commit = std::pin::pin!(commit);
    #[cfg(feature = "torture")]
    {
        let asked = std::future::poll_fn(|cx| std::task::Poll::Ready(commit.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(done) = asked {
            return done;
        }
        crate::rt::yield_now().await;
        crate::rt::yield_now().await;
        crate::torture::point("commit-sent");
    }
    let answer = commit.as_mut().await;
    crate::torture::point("commit-answered");
    answer
}

const APPEND_WAITING: &str =
    "select * from queen.append_waiting($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// Writes the one lane of a commit that others write all the time: waits for its row, and is judged there against what
/// they stored.
async fn append_waiting(
    client: &Client,
    append: &Append,
    mut stored: Vec<(Codec, Bytes)>,
    line: Line,
) -> Result<AppendOutcome, StoreError> {
    let (lane, segments) = (&append.lanes[0], &append.segments);
    let s = segments.len();
    let answer = run(
        client,
        Nature::Writes,
        APPEND_WAITING,
        &[
            param(&One::of(lane.partition.0)),
            param(&One::of(lane.expect.0)),
            param(&One::of(lane.count as i32)),
            param(&column(s, |i| segments[i].rel as i32)),
            param(&column(s, |i| segments[i].count as i32)),
            param(&column(s, |i| stored[i].0 as i16)),
            param(&column(s, |i| segments[i].flags as i16)),
            param(&column(s, |i| segments[i].raw_len() as i32)),
            param(&column(s, |i| stored[i].1.len() as i32)),
            param(&blob(s, |i| &segments[i].keys[..])),
            param(&blob(s, |i| &stored[i].1[..])),
            param(&One::of(WAIT_MS)),
            param(&nullable(s, |i| segments[i].accepted_at)),
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
        ],
    )
    .await?;
    let [row] = &answer[..] else {
        return Err(StoreError::Unknown(format!("{} outcomes for 1 question", answer.len())));
    };
    let mut columns = Columns::of(row);
    let state: i16 = columns.get()?;
    let last = columns.offset()?;
    let created_at = columns.stamp_opt()?;
    let now = columns.stamp()?;
    let outcome = match (state, created_at) {
        (0, Some(created_at)) if last == lane.expect => LaneOutcome::Appended { created_at },
        (0, Some(created_at)) => LaneOutcome::Behind { base: last.plus(1), created_at },
        (1, _) => LaneOutcome::Moved { last },
        (2, _) => LaneOutcome::Busy,
        _ => LaneOutcome::Gone,
    };
    if !is_written(&outcome) {
        stored.iter_mut().for_each(|(_, body)| body.clear());
    }
    Ok(AppendOutcome { now, lanes: vec![outcome], stored })
}

const MOVE: &str = "select * from queen.move_cursors(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
    $22, $23, $24, $25, $26)";

/// Applies the moves whose rows are still as remembered; each cursor may appear once.
///
/// Source: data plane 4.3, 5.4; rules 19 and 20.
pub async fn move_cursors(client: &Client, moves: &[CursorMove], line: Line) -> Result<MoveOutcome, StoreError> {
    let n = moves.len();
    let to = |i: usize| moves::to(&moves[i]);
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
            param(&column(n, |i| moves::must(&moves[i]))),
            param(&column(n, |i| moves[i].to.is_some())),
            param(&column(n, |i| to(i).committed.0)),
            param(&column(n, |i| moves::lease_to(to(i)))),
            param(&nullable(n, |i| moves::lease_id(to(i)))),
            param(&column(n, |i| moves::lease_secs(to(i)))),
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
    let mut outcomes = Places::new(n);
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

/// Where the parts of a commit are: of each lane its segments, first and last, of each segment its keys and its body
/// in the blobs. All are 1-based.
struct Spans {
    segments: Vec<(i32, i32)>,
    keys_at: Vec<i32>,
    body_at: Vec<i32>,
}

impl Spans {
    /// Refused when segments are not in lane order, or a blob is larger than PostgreSQL counts.
    fn of(append: &Append, stored: &[(Codec, Bytes)]) -> Result<Spans, StoreError> {
        let too_large = |_| StoreError::Refused("a commit of more than 2 GiB".into());
        let mut spans = Spans { segments: Vec::new(), keys_at: Vec::new(), body_at: Vec::new() };
        let (mut keys_at, mut body_at, mut next) = (1usize, 1usize, 0);
        for lane in 0..append.lanes.len() {
            let first = next;
            while append.segments.get(next).is_some_and(|s| s.lane as usize == lane) {
                spans.keys_at.push(i32::try_from(keys_at).map_err(too_large)?);
                spans.body_at.push(i32::try_from(body_at).map_err(too_large)?);
                keys_at += append.segments[next].keys.len();
                body_at += stored[next].1.len();
                next += 1;
            }
            spans.segments.push((first as i32 + 1, next as i32));
        }
        match next == append.segments.len() {
            true => Ok(spans),
            false => Err(StoreError::Refused("segments are not in lane order".into())),
        }
    }
}

/// One outcome per question, put where it belongs; the first one of a place counts.
struct Places<T>(Vec<Option<T>>);

impl<T> Places<T> {
    fn new(n: usize) -> Places<T> {
        Places(std::iter::repeat_with(|| None).take(n).collect())
    }

    fn put(&mut self, ord: i64, outcome: impl FnOnce() -> Result<T, StoreError>) -> Result<(), StoreError> {
        let place = usize::try_from(ord - 1).ok().and_then(|at| self.0.get_mut(at));
        let place = place.ok_or_else(|| StoreError::Unknown(format!("an outcome for place {ord}")))?;
        if place.is_none() {
            *place = Some(outcome()?);
        }
        Ok(())
    }

    fn all(self) -> Result<Vec<T>, StoreError> {
        let n = self.0.len();
        let all: Vec<T> = self.0.into_iter().flatten().collect();
        match all.len() == n {
            true => Ok(all),
            false => Err(StoreError::Unknown(format!("{} outcomes for {n} questions", all.len()))),
        }
    }
}
