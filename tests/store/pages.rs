//! Versions that nobody needs any more make room where they lie, however many rows a commit writes.

use crate::support::*;
use queen::store::{self, Client, Line};
use queen_shards::command::Start;
use queen_shards::effect::{Contact, CursorOutcome, LaneOutcome, LeaseMust};

/// Rows of each hot table: some fifty pages.
const ROWS: usize = 1_600;
/// Rows that one commit writes, as many segments as a commit of the engine may have.
const WIDE: usize = 256;
/// Commits of each kind in one stretch; each row is written ten times.
const COMMITS: usize = 64;
/// An autoanalyze's snapshot keeps all versions while it lasts: one stretch without is enough.
const STRETCHES: usize = 5;

/// Of all updates of a table so far: how many there were, and how many kept the row on its page.
async fn updates(client: &Client, table: &str) -> (i64, i64) {
    client.batch_execute("select pg_stat_force_next_flush()").await.unwrap();
    let sql = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'queen' and relname = $1";
    let row = &client.query(sql, &[&table]).await.unwrap()[0];
    (row.get(0), row.get(1))
}

/// Source: architecture, Statements (`queen.prune_pages`).
#[test]
fn rows_stay_on_their_pages_under_wide_commits() {
    on_store_alone(async |db| {
        let names: Vec<String> = (0..ROWS).map(|n| format!("p{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut lanes: Vec<_> = db.provision("q", &names).await.iter().map(|row| (row.partition, -1i64)).collect();
        lanes.sort();
        let ids: Vec<_> = lanes.iter().map(|lane| lane.0).collect();
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let seeded = db.seed(group, Start::All, &ids).await;
        let mut versions: Vec<i64> = seeded.into_iter().map(|row| row.unwrap().row.version).collect();
        let mut stayed = [0.0; 2];
        for _ in 0..STRETCHES {
            let before = [updates(&db.client, "partitions").await, updates(&db.client, "cursors").await];
            for commit in 0..COMMITS {
                // A stride that has no divisor in common with the rows: each commit writes others, all are written alike.
                let mut chosen: Vec<usize> = (0..WIDE).map(|n| (commit * WIDE + n) * 7 % ROWS).collect();
                chosen.sort();
                let at: Vec<_> = chosen.iter().map(|&row| lanes[row]).collect();
                let done = append(&db.client, &one_each(&at, 1)).await.unwrap();
                assert!(done.lanes.iter().all(|lane| matches!(lane, LaneOutcome::Appended { .. })), "{:?}", done.lanes);
                let moves: Vec<_> = chosen
                    .iter()
                    .map(|&row| {
                        let next = lanes[row].1 + 1;
                        cursor_move(ids[row], group, versions[row], LeaseMust::Any, lease_to(next - 1, 1, 60, next))
                    })
                    .collect();
                let moved = store::move_cursors(&db.client, &moves, Line::NONE).await.unwrap().moves;
                for (&row, outcome) in chosen.iter().zip(moved) {
                    let CursorOutcome::Moved { version, .. } = outcome else { panic!("{outcome:?}") };
                    versions[row] = version;
                    lanes[row].1 += 1;
                }
            }
            let after = [updates(&db.client, "partitions").await, updates(&db.client, "cursors").await];
            for (most, (after, before)) in stayed.iter_mut().zip(after.into_iter().zip(before)) {
                assert_eq!(after.0 - before.0, (COMMITS * WIDE) as i64);
                *most = f64::max(*most, (after.1 - before.1) as f64 / (after.0 - before.0) as f64);
            }
            if stayed.iter().all(|share| 0.85 <= *share) {
                return;
            }
        }
        panic!("of partitions and cursors {stayed:?} of the updates stayed on their page");
    });
}
