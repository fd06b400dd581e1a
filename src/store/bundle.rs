//! The commit of bundles. One statement, one transaction, one round trip.

use crate::store::Client;
use crate::store::client::run;
use crate::store::failure::{Nature, judge};
use crate::store::log::Line;
use crate::store::moves::{self, freed};
use crate::store::pack::stored_form;
use crate::store::params::{One, Utf8, blob, column, nullable, param};
use crate::store::rows::{Columns, lease_left};
use bytes::Bytes;
use queen_shards::bundle::{Bundle, BundleDecision, BundleLane, BundleOutcome, LaneDecision, MoveDecision};
use queen_shards::command::Codec;
use queen_shards::effect::{CursorMove, DeadLetter, StoreError};
use queen_shards::ids::{Offset, PartitionId, Stamp};
use queen_shards::planted::{Bug, is};
use std::sync::Arc;
use tokio_postgres::Row;

const BUNDLE: &str = "select * from queen.bundle(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, \
    $39, $40, $41)";

/// Waiting for a lock took too long, or ended in a deadlock: the whole commit was rolled back, by a rule of ours and not
/// because the store is away. Smaller commits may pass.
const LOCKED_OUT: [&str; 3] = ["55P03", "40P01", "40001"];

/// Commits bundles, each of them whole or not at all. Across all of them each lane and each cursor may appear once.
/// `line`: where the commit log says so.
///
/// Source: data plane 7.
pub async fn bundle(
    client: &Client,
    bundles: &[Arc<Bundle>],
    level: i32,
    line: Line,
) -> Result<BundleOutcome, StoreError> {
    let parts = Parts::of(bundles);
    let Parts { lanes, moves, made } = &parts;
    let letters: Vec<(i32, &DeadLetter)> =
        (1..).zip(moves).filter_map(|(n, (_, one))| Some((n, one.dead_letter.as_ref()?))).collect();
    let stored = parts.stored(level);

    let (l, m, n, d) = (lanes.len(), moves.len(), made.len(), letters.len());
    let freed = freed(moves.iter().map(|(_, one)| *one));
    let to = |i: usize| moves::to(moves[i].1);
    let written = |i: usize| 0 < lanes[i].1.count();
    let answer = client
        .ask(
            BUNDLE,
            &[
                param(&column(l, |i| lanes[i].0)),
                param(&column(l, |i| lanes[i].1.partition.map_or(0, |id| id.0))),
                param(&column(l, |i| lanes[i].1.verified.0)),
                param(&column(l, |i| lanes[i].1.count() as i32)),
                param(&column(l, |i| written(i) && !lanes[i].1.draft.all_minted)),
                param(&column(l, |i| stored[i].0 as i16)),
                param(&column(l, |i| lanes[i].1.draft.flags as i16)),
                param(&column(l, |i| lanes[i].1.draft.raw_len() as i32)),
                param(&column(l, |i| stored[i].1.len() as i32)),
                param(&blob(l, |i| if written(i) { &lanes[i].1.draft.keys[..] } else { &[] })),
                param(&blob(l, |i| &stored[i].1[..])),
                param(&column(n, |i| made[i].0)),
                param(&column(n, |i| made[i].1.draft.lane.tenant.0)),
                param(&column(n, |i| &*made[i].1.draft.lane.queue)),
                param(&column(n, |i| &*made[i].1.draft.lane.partition)),
                param(&column(n, |i| made[i].1.draft.lane.slot() as i32)),
                param(&column(m, |i| moves[i].0)),
                param(&column(m, |i| moves[i].1.partition.0)),
                param(&column(m, |i| moves[i].1.group.0)),
                param(&column(m, |i| moves[i].1.version)),
                param(&column(m, |i| moves::must(moves[i].1))),
                param(&column(m, |i| moves[i].1.to.is_some() && !is(Bug::TransactionWithoutAck))),
                param(&column(m, |i| to(i).committed.0)),
                param(&column(m, |i| moves::lease_to(to(i)))),
                param(&nullable(m, |i| moves::lease_id(to(i)))),
                param(&column(m, |i| moves::lease_secs(to(i)))),
                param(&nullable(m, |i| to(i).batch_end.map(|o| o.0))),
                param(&column(m, |i| to(i).retry_count as i32)),
                param(&nullable(m, |i| to(i).attempt_start.map(|o| o.0))),
                param(&column(m, |i| to(i).attempt_count as i32)),
                param(&column(d, |i| letters[i].0)),
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
            ],
        )
        .await?;
    let rows = answer.map_err(|error| {
        let code = error.as_db_error().map(|e| e.code().code().to_owned());
        match judge(&error, Nature::Writes) {
            StoreError::Unavailable(text) if code.is_some_and(|code| LOCKED_OUT.contains(&&*code)) => {
                StoreError::Refused(text)
            }
            error => error,
        }
    })?;
    let mut now = Stamp(0);
    let mut decided = vec![BundleDecision::default(); bundles.len()];
    for said in parts.read(&rows)? {
        let said = said?;
        now = said.now;
        let decision = &mut decided[said.bundle];
        match said.of_lane {
            true => decision.lanes.push(match (said.lane_holds(), said.state, said.n) {
                (Some(holds), ..) => holds,
                (None, 1, [Some(place), ..]) => LaneDecision::Duplicate { index: place as u32 },
                _ => LaneDecision::Gone,
            }),
            false => decision.moves.push(match (said.move_holds(), said.state) {
                (Some(holds), _) => holds,
                (None, 1) => MoveDecision::Stale,
                _ => MoveDecision::Gone,
            }),
        }
    }
    Ok(BundleOutcome { now, bundles: decided, stored })
}

const SETTLE_BUNDLE: &str = "select * from queen.settle_bundle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// What became of a commit of bundles that was sent with `line` and not answered: each bundle was written whole, or not at
/// all, or nothing tells. What was not written will not be if it is still on its way. An error says nothing about any of them.
///
/// Source: rule 9.
pub async fn settle_bundle(
    client: &Client,
    bundles: &[Arc<Bundle>],
    level: i32,
    line: Line,
) -> Result<BundleOutcome, StoreError> {
    let parts = Parts::of(bundles);
    let Parts { lanes, moves, made } = &parts;
    let (l, m, n) = (lanes.len(), moves.len(), made.len());
    let rows = run(
        client,
        Nature::Repeatable,
        SETTLE_BUNDLE,
        &[
            param(&One::of(line.writer)),
            param(&One::of(line.seq)),
            param(&column(l, |i| lanes[i].1.partition.map_or(0, |id| id.0))),
            param(&column(l, |i| lanes[i].1.verified.0)),
            param(&column(l, |i| lanes[i].1.count() as i32)),
            param(&column(n, |i| made[i].0)),
            param(&column(n, |i| made[i].1.draft.lane.tenant.0)),
            param(&column(n, |i| &*made[i].1.draft.lane.queue)),
            param(&column(n, |i| &*made[i].1.draft.lane.partition)),
            param(&column(m, |i| moves[i].1.partition.0)),
            param(&column(m, |i| moves[i].1.group.0)),
            param(&column(m, |i| moves[i].1.version)),
            param(&column(m, |i| moves[i].1.to.is_some())),
        ],
    )
    .await?;
    let mut now = Stamp(0);
    // Of each bundle: a row of it that was written, one that was not.
    let mut known = vec![(false, false); bundles.len()];
    let mut decided = vec![BundleDecision::default(); bundles.len()];
    for said in parts.read(&rows)? {
        let said = said?;
        now = said.now;
        known[said.bundle].0 |= said.state == 0;
        known[said.bundle].1 |= said.state == 1;
        let decision = &mut decided[said.bundle];
        match said.of_lane {
            true => decision.lanes.push(match (said.lane_holds(), said.state, said.n) {
                (Some(holds), ..) => holds,
                // One that only confirms held if the others were written.
                (None, 4, [id, ..]) => LaneDecision::Holds {
                    partition: PartitionId(id.unwrap_or(0)),
                    base: Offset::NONE,
                    created_at: Stamp(0),
                },
                _ => LaneDecision::Unwritten,
            }),
            false => decision.moves.push(match (said.move_holds(), said.state) {
                (Some(holds), _) => holds,
                (None, 4) => MoveDecision::Overtaken,
                _ => MoveDecision::Stale,
            }),
        }
    }
    for (decision, (written, unwritten)) in decided.iter_mut().zip(known) {
        decision.unknown = written == unwritten;
    }
    Ok(BundleOutcome { now, bundles: decided, stored: parts.stored(level) })
}

/// What bundles consist of, each part with the number of its bundle, from 1.
struct Parts<'a> {
    lanes: Vec<(i32, &'a BundleLane)>,
    moves: Vec<(i32, &'a CursorMove)>,
    /// Lanes whose partition was not there, with their places among the lanes, from 1.
    made: Vec<(i32, &'a BundleLane)>,
}

impl<'a> Parts<'a> {
    fn of(bundles: &'a [Arc<Bundle>]) -> Parts<'a> {
        let lanes = numbered(bundles, |bundle| &bundle.lanes);
        let made = (1..).zip(&lanes).filter(|(_, (_, lane))| lane.partition.is_none());
        let made = made.map(|(n, (_, lane))| (n, *lane)).collect();
        Parts { made, moves: numbered(bundles, |bundle| &bundle.moves), lanes }
    }

    /// How each lane is stored; as nothing where it only confirms.
    fn stored(&self, level: i32) -> Vec<(Codec, Bytes)> {
        let stored = |lane: &BundleLane| match lane.confirm {
            true => (Codec::Raw, Bytes::new()),
            false => stored_form(lane.draft.packed.as_ref(), &lane.draft.frames, level),
        };
        self.lanes.iter().map(|(_, lane)| stored(lane)).collect()
    }

    /// Rows of `queen.bundle` or `queen.settle_bundle`: one per lane, then one per move.
    fn read(&self, rows: &[Row]) -> Result<impl Iterator<Item = Result<Said, StoreError>>, StoreError> {
        let of_lanes = self.lanes.iter().map(|(bundle, _)| (*bundle, true));
        let of_moves = self.moves.iter().map(|(bundle, _)| (*bundle, false));
        let questions = self.lanes.len() + self.moves.len();
        if rows.len() != questions {
            return Err(StoreError::Unknown(format!("{} outcomes for {questions} questions", rows.len())));
        }
        Ok(rows.iter().zip(of_lanes.chain(of_moves)).map(|(row, (bundle, of_lane))| {
            let mut columns = Columns::of(row);
            columns.skip(1);
            Ok(Said {
                bundle: bundle as usize - 1,
                of_lane,
                state: columns.get()?,
                n: [columns.get()?, columns.get()?, columns.get()?],
                at: columns.stamp_opt()?,
                now: columns.stamp()?,
            })
        }))
    }
}

/// What a row says of one part, as the functions' headers tell.
struct Said {
    /// By its index.
    bundle: usize,
    /// Else of a move.
    of_lane: bool,
    state: i16,
    n: [Option<i64>; 3],
    at: Option<Stamp>,
    now: Stamp,
}

impl Said {
    fn lane_holds(&self) -> Option<LaneDecision> {
        let (0, [Some(id), Some(base), _]) = (self.state, self.n) else { return None };
        let created_at = self.at.unwrap_or_default();
        Some(LaneDecision::Holds { partition: PartitionId(id), base: Offset(base), created_at })
    }

    fn move_holds(&self) -> Option<MoveDecision> {
        let (0, [Some(version), Some(last), Some(start)]) = (self.state, self.n) else { return None };
        Some(MoveDecision::Holds {
            version,
            lease_left_us: lease_left(self.at, self.now),
            last_offset: Offset(last),
            log_start: Offset(start),
        })
    }
}

/// Parts of all bundles in order, each with the number of its bundle, from 1.
fn numbered<'a, T>(bundles: &'a [Arc<Bundle>], parts: impl Fn(&'a Bundle) -> &'a [T]) -> Vec<(i32, &'a T)> {
    (1..).zip(bundles).flat_map(|(n, bundle)| parts(bundle).iter().map(move |part| (n, part))).collect()
}
