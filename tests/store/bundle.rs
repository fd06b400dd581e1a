//! What a commit of bundles does: each is decided by itself, and is written whole or not at all.

use crate::support::*;
use bytes::Bytes;
use queen::store;
use queen_shards::bundle::{Bundle, BundleDecision, BundleLane, BundleOutcome, LaneDecision, MoveDecision};
use queen_shards::command::{Draft, Start};
use queen_shards::effect::{Contact, CursorMove, DeadLetter, LaneOutcome, LeaseMust, StoreError};
use queen_shards::ids::{MessageId, Offset, PartitionId};
use std::sync::Arc;

fn keys(keys: &[u128]) -> Bytes {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// A push of these keys; `partition` with the offset it was verified to.
fn pushes(queue: &str, name: &str, partition: Option<(PartitionId, i64)>, of: &[u128]) -> BundleLane {
    let draft = Draft {
        lane: lane(queue, name),
        count: of.len() as u32,
        keys: keys(of),
        all_minted: false,
        frames: vec![b'f'; 40 * of.len()].into(),
        packed: None,
        flags: 0,
    };
    let verified = partition.map_or(Offset::NONE, |(_, offset)| Offset(offset));
    BundleLane { draft, partition: partition.map(|(id, _)| id), verified, confirm: false }
}

fn bundle(lanes: Vec<BundleLane>, moves: Vec<CursorMove>) -> Arc<Bundle> {
    Arc::new(Bundle { store: 0, lanes, moves })
}

async fn commit(db: &Db, bundles: &[Arc<Bundle>]) -> BundleOutcome {
    store::bundle(&db.client, bundles, 1, Line::NONE).await.expect("the commit is decided")
}

#[track_caller]
fn base(decision: &BundleDecision, at: usize) -> i64 {
    match decision.lanes[at] {
        LaneDecision::Holds { base, .. } => base.0,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_missing_is_made_only_for_bundles_that_are_written() {
    on_store(async |db| {
        let old = db.provision("old", &["a"]).await[0].partition;
        db.push(old, -1, 3).await; // Keys 0, 1, 2.
        let refused = bundle(vec![pushes("born", "x", None, &[7]), pushes("old", "a", Some((old, -1)), &[1])], vec![]);
        let passes = bundle(vec![pushes("other", "x", None, &[7, 8]), pushes("other", "y", None, &[7])], vec![]);
        let outcome = commit(&db, &[refused, passes]).await;
        assert_eq!(outcome.bundles[0].lanes[1], LaneDecision::Duplicate { index: 0 });
        assert!(!outcome.bundles[0].committed() && outcome.bundles[1].committed());
        assert_eq!((base(&outcome.bundles[1], 0), base(&outcome.bundles[1], 1)), (0, 0));
        assert_eq!(db.number("select count(*) from queen.queues where name = 'born'").await, 0);
        assert_eq!(db.number("select count(*) from queen.queues where name = 'other'").await, 1);
        assert_eq!(db.number("select count(*) from queen.partitions").await, 3);
        assert_eq!(db.number("select count(*) from queen.segments").await, 3);
        assert_eq!(db.number("select last_offset from queen.partitions where name = 'x'").await, 1);
        let low_bits = "select count(*) from queen.partitions where id & 4095 <> ".to_owned();
        let slot = lane("other", "y").slot();
        assert_eq!(db.number(&format!("{low_bits}{slot} and name = 'y'")).await, 0, "the number carries the slot");
    });
}

#[test]
fn a_queue_that_a_written_and_a_refused_bundle_share_stays() {
    on_store(async |db| {
        let old = db.provision("old", &["a"]).await[0].partition;
        db.push(old, -1, 1).await;
        let refused = bundle(vec![pushes("born", "x", None, &[7]), pushes("old", "a", Some((old, -1)), &[0])], vec![]);
        let passes = bundle(vec![pushes("born", "y", None, &[7])], vec![]);
        let outcome = commit(&db, &[refused, passes]).await;
        assert!(outcome.bundles[1].committed());
        assert_eq!(db.number("select count(*) from queen.queues where name = 'born'").await, 1);
        assert_eq!(db.number("select count(*) from queen.partitions where name in ('x', 'y')").await, 1);
    });
}

#[test]
fn a_moved_lane_is_judged_against_what_came_after() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        db.push(p, -1, 3).await; // Keys 0, 1, 2.
        db.push(p, 2, 2).await; // Keys 3 << 32 and the next.
        let after = 3u128 << 32;
        // What the engine has judged already is not looked at again; what came after is.
        let outcome = commit(&db, &[bundle(vec![pushes("q", "a", Some((p, 2)), &[0, 1])], vec![])]).await;
        assert_eq!(base(&outcome.bundles[0], 0), 5);
        let outcome = commit(&db, &[bundle(vec![pushes("q", "a", Some((p, 2)), &[50, after + 1])], vec![])]).await;
        assert_eq!(outcome.bundles[0].lanes, [LaneDecision::Duplicate { index: 1 }]);
        let outcome = commit(&db, &[bundle(vec![pushes("q", "a", Some((p, 99)), &[60])], vec![])]).await;
        assert_eq!(outcome.bundles[0].lanes, [LaneDecision::Gone], "it ends before what was verified: another history");
        let gone = PartitionId(p.0 + 4096 * 1000);
        let outcome = commit(&db, &[bundle(vec![pushes("q", "a", Some((gone, -1)), &[60])], vec![])]).await;
        assert_eq!(outcome.bundles[0].lanes, [LaneDecision::Gone]);
        db.sql("update queen.queues set dedup_window_seconds = 0").await;
        let outcome = commit(&db, &[bundle(vec![pushes("q", "a", Some((p, 2)), &[after])], vec![])]).await;
        assert_eq!(base(&outcome.bundles[0], 0), 7, "dedup is off");
        let confirm = BundleLane { confirm: true, ..pushes("q", "a", Some((p, 4)), &[0]) };
        let outcome = commit(&db, &[bundle(vec![confirm], vec![])]).await;
        assert!(outcome.bundles[0].committed());
        assert_eq!(db.number("select last_offset from queen.partitions").await, 7, "nothing is written");
    });
}

#[test]
fn a_cursor_that_moved_fails_its_bundle_alone() {
    on_store(async |db| {
        let rows = db.provision("q", &["a", "b"]).await;
        let (a, b) = (rows[0].partition, rows[1].partition);
        for p in [a, b] {
            db.push(p, -1, 3).await;
        }
        let group = db.open("q", "g", Contact::Register(Start::All)).await.unwrap().group;
        let seeded = db.seed(group, Start::All, &[a, b]).await;
        let version = |i: usize| seeded[i].unwrap().row.version;
        let lease = lease_to(-1, 77, 60, 2);
        let held = db.move_one(cursor_move(a, group, version(0), LeaseMust::Over, lease)).await;
        let queen_shards::effect::CursorOutcome::Moved { version: leased, .. } = held else { panic!("{held:?}") };

        let dead = DeadLetter {
            offset: Offset(1),
            id: MessageId(5),
            transaction_id: Bytes::from_static(b"t"),
            payload: Bytes::from_static(b"{}"),
            encrypted: false,
            error: "no".into(),
            retry_count: 3,
        };
        let good = CursorMove { dead_letter: Some(dead), ..cursor_move(a, group, leased, LeaseMust::Live, to(1)) };
        let stale = cursor_move(b, group, version(1) + 1, LeaseMust::Any, to(1));
        let over = CursorMove { to: None, ..cursor_move(b, group, version(1), LeaseMust::Live, to(1)) };
        let bundles = [
            bundle(vec![pushes("q", "a", Some((a, 2)), &[90])], vec![good]),
            bundle(vec![pushes("q", "b", Some((b, 2)), &[90])], vec![stale]),
        ];
        let outcome = commit(&db, &bundles).await;
        assert!(matches!(outcome.bundles[0].moves[0], MoveDecision::Holds { version, .. } if version != leased));
        assert_eq!(outcome.bundles[1].moves, [MoveDecision::Stale]);
        assert_eq!((db.committed(group, a).await, db.committed(group, b).await), (Some(1), Some(-1)));
        assert_eq!(db.number("select count(*) from queen.dead_letters where retry_count = 3").await, 1);
        assert_eq!(db.number(&format!("select last_offset from queen.partitions where id = {}", a.0)).await, 3);
        assert_eq!(db.number(&format!("select last_offset from queen.partitions where id = {}", b.0)).await, 2);
        let outcome = commit(&db, &[bundle(vec![], vec![over])]).await;
        assert_eq!(outcome.bundles[0].moves, [MoveDecision::Stale], "no live lease");
    });
}

#[test]
fn a_lock_that_is_held_too_long_refuses_and_writes_nothing() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        let holder = db.other().await;
        let lock = format!("begin; select from queen.partitions where id = {} for update", p.0);
        holder.batch_execute(&lock).await.unwrap();
        let outcome =
            store::bundle(&db.client, &[bundle(vec![pushes("q", "a", Some((p, -1)), &[1])], vec![])], 1, Line::NONE)
                .await;
        assert!(matches!(outcome, Err(StoreError::Refused(_))), "{outcome:?}");
        assert_eq!(db.number("select last_offset from queen.partitions").await, -1);
    });
}

#[test]
fn a_push_that_waits_is_written_behind_what_came_meanwhile() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        db.push(p, -1, 3).await; // Keys 0, 1, 2.
        let mut ask = one_segment(p, 5, 2);
        ask.lanes[0].expect = Offset(0); // Keys 6 << 32 and the next, judged up to the first message.
        ask.wait = true;
        let outcome = append(&db.client, &ask).await.unwrap();
        assert!(matches!(outcome.lanes[..], [LaneOutcome::Behind { base: Offset(3), .. }]), "{outcome:?}");
        let outcome = append(&db.client, &ask).await.unwrap();
        assert_eq!(outcome.lanes, [LaneOutcome::Moved { last: Offset(4) }], "its keys are there");
        // Without a window it is the same push again: it was sent twice because nobody knew what became of it.
        db.client.batch_execute("update queen.queues set dedup_window_seconds = 0").await.unwrap();
        let outcome = append(&db.client, &ask).await.unwrap();
        assert_eq!(outcome.lanes, [LaneOutcome::Moved { last: Offset(4) }], "its keys are there");
        let mut exact = one_segment(p, 4, 1);
        exact.wait = true;
        let outcome = append(&db.client, &exact).await.unwrap();
        assert!(matches!(outcome.lanes[..], [LaneOutcome::Appended { .. }]));
        let holder = db.other().await;
        holder.batch_execute("begin; select from queen.partitions for update").await.unwrap();
        let mut held = one_segment(p, 5, 1);
        held.wait = true;
        assert_eq!(append(&db.client, &held).await.unwrap().lanes, [LaneOutcome::Busy]);
        holder.batch_execute("rollback").await.unwrap();
        held.lanes[0].partition = PartitionId(p.0 + 4096 * 1000);
        assert_eq!(append(&db.client, &held).await.unwrap().lanes, [LaneOutcome::Gone]);
    });
}
