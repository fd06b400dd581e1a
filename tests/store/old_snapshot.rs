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

/// Source: architecture 11 (nothing grows with what is idle).
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

/// What somebody else wrote meanwhile, wherever that lies, and rows that moved to where another one lay.
#[test]
fn a_row_that_lies_elsewhere_is_found_by_its_key() {
    on_store(async |db| {
        // Nobody else moves what lies there.
        for table in ["partitions", "cursors"] {
            db.sql(&format!("alter table queen.{table} set (autovacuum_enabled = off)")).await;
        }
        let rows = db.provision("q", &["a", "b"]).await;
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let ids = [rows[0].partition, rows[1].partition];
        let mut versions: Vec<i64> =
            db.seed(group, Start::All, &ids).await.into_iter().map(|row| row.unwrap().row.version).collect();
        for n in 0..3i64 {
            for (p, id) in ids.into_iter().enumerate() {
                let done = append(&db.client, &one_segment(id, n - 1, 1)).await.unwrap();
                assert!(matches!(done.lanes[0], LaneOutcome::Appended { .. }), "{:?}", done.lanes);
                let to = lease_to(n - 1, 1, 60, n);
                let one = [cursor_move(id, group, versions[p], LeaseMust::Any, to)];
                let moved = store::move_cursors(&db.client, &one, Line::NONE).await.unwrap().moves.remove(0);
                let CursorOutcome::Moved { version, .. } = moved else { panic!("{moved:?}") };
                versions[p] = version;
            }
            if n == 0 {
                db.sql("update queen.partitions set log_start = log_start; update queen.cursors set retired = retired")
                    .await;
            } else if n == 1 {
                for (table, key) in [("partitions", "id"), ("cursors", "partition_id")] {
                    take_the_place(&db, table, key, [ids[0].0, ids[1].0]).await;
                }
            }
        }
    });
}

/// The first one's row comes to lie where the second one's was written last.
async fn take_the_place(db: &Db, table: &str, key: &str, [first, second]: [i64; 2]) {
    let place = async |id: i64| -> String {
        let sql = format!("select ctid::text from queen.{table} where {key} = {id}");
        db.client.query_typed(&sql, &[]).await.unwrap()[0].get(0)
    };
    let wanted = place(second).await;
    db.sql(&format!("vacuum full queen.{table}")).await;
    let moves = format!(
        "do $$ begin
            while (select ctid from queen.{table} where {key} = {first}) <> '{wanted}' loop
                update queen.{table} set {key} = {key} where {key} = {first};
            end loop;
        end $$"
    );
    db.client.batch_execute("set statement_timeout = '10s'").await.unwrap();
    db.sql(&moves).await;
    assert_eq!(place(first).await, wanted);
}
