//! The fused commit of pushes. One statement, one transaction, one round trip.

use crate::store::client::{Client, run};
use crate::store::failure::Nature;
use crate::store::log::Line;
use crate::store::pack::stored_form;
use crate::store::params::{One, blob, column, nullable, param};
use crate::store::places;
use crate::store::rows::{Columns, Outcomes, Tid};
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::effect::{Append, AppendOutcome, LaneOutcome, StoreError};
use queen_shards::ids::Stamp;

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
    let mut outcomes = Outcomes::new(l);
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
    append.segments.iter().map(|it| stored_form(it.packed.as_ref(), &it.frames, level)).collect()
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
    let mut outcomes = Outcomes::new(l);
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
