//! A session elsewhere holds an old snapshot: no version of a row is removed, and commits do not walk through all of them.

use crate::support::*;
use queen::store::{self, Client, Line};
use queen_shards::command::Start;
use queen_shards::effect::{Contact, CursorOutcome, LaneOutcome, LeaseMust};
use queen_shards::ids::Offset;

/// Commits that each leave a version of their row behind.
const COMMITS: i64 = 400;

/// Walks of the indexes of hot rows so far.
async fn walks(client: &Client) -> i64 {
    client.batch_execute("select pg_stat_force_next_flush()").await.unwrap();
    let sql = "select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes
        where schemaname = 'queen' and relname in ('partitions', 'cursors')";
    client.query_typed(sql, &[]).await.unwrap()[0].get(0)
}

/// Source: architecture, Statements (nothing grows with what is idle).
#[test]
fn commits_find_their_rows_where_they_lie() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let mut version = db.seed(group, Start::All, &[id]).await[0].unwrap().row.version;
        let old = db.other().await;
        old.batch_execute("begin isolation level repeatable read; select 1 from queen.partitions").await.unwrap();
        let before = walks(&db.client).await;
        for n in 0..COMMITS {
            let done = append(&db.client, &one_segment(id, n - 1, 1)).await.unwrap();
            assert!(matches!(done.lanes[0], LaneOutcome::Appended { .. }), "{:?}", done.lanes);
            let to = lease_to(n - 1, 1, 60, n);
            let one = [cursor_move(id, group, version, LeaseMust::Any, to)];
            let moved = store::move_cursors(&db.client, &one, Line::NONE).await.unwrap().moves.remove(0);
            let CursorOutcome::Moved { version: now, last_offset, .. } = moved else { panic!("{moved:?}") };
            assert_eq!(last_offset, Offset(n), "the partition's row is the newest one");
            version = now;
        }
        let walked = walks(&db.client).await - before;
        assert!(walked <= 5, "{COMMITS} commits of each kind walked an index {walked} times");
        old.batch_execute("commit").await.unwrap();
    });
}

/// What somebody else wrote meanwhile, wherever that lies, and rows that lie where another one lay: after `vacuum full` the
/// first one written takes the next place, which was the other one's the last time.
#[test]
fn a_row_that_lies_elsewhere_is_found_by_its_key() {
    on_store(async |db| {
        let rows = db.provision("q", &["a", "b"]).await;
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let ids = [rows[0].partition, rows[1].partition];
        let mut versions: Vec<i64> =
            db.seed(group, Start::All, &ids).await.into_iter().map(|row| row.unwrap().row.version).collect();
        for n in 0..6i64 {
            let order = if n % 2 == 0 { [0, 1] } else { [1, 0] };
            for p in order {
                let done = append(&db.client, &one_segment(ids[p], n - 1, 1)).await.unwrap();
                assert!(matches!(done.lanes[0], LaneOutcome::Appended { .. }), "{:?}", done.lanes);
                let one = [cursor_move(ids[p], group, versions[p], LeaseMust::Any, lease_to(n - 1, 1, 60, n))];
                let moved = store::move_cursors(&db.client, &one, Line::NONE).await.unwrap().moves.remove(0);
                let CursorOutcome::Moved { version, .. } = moved else { panic!("{moved:?}") };
                versions[p] = version;
            }
            if n == 0 {
                db.sql("update queen.partitions set log_start = log_start; update queen.cursors set retired = retired")
                    .await;
            } else {
                db.sql("vacuum full queen.partitions").await;
                db.sql("vacuum full queen.cursors").await;
            }
        }
    });
}
