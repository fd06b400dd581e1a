//! How SQL spells a move of a cursor: the codes of `queen.move_cursors` and `queen.bundle`.

use queen_shards::effect::{CursorMove, CursorTo, LeaseMust, LeaseTo};
use queen_shards::ids::Offset;

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
