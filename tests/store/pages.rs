//! Versions that nobody needs any more make room where they lie, however many rows a commit writes.

use crate::support::*;
use queen::store::{self, Client, Line};
use queen_shards::command::Start;
use queen_shards::effect::{Contact, CursorOutcome, LaneOutcome, LeaseMust};

/// Rows of each hot table: some fifty pages.
const ROWS: usize = 1_600;
/// Rows that one commit writes, as many segments as a commit of the engine may have.
const WIDE: usize = 256;
/// Commits of each kind; each row is written ten times.
const COMMITS: usize = 64;

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
    on_store(async |db| {
        let names: Vec<String> = (0..ROWS).map(|n| format!("p{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut lanes: Vec<_> = db.provision("q", &names).await.iter().map(|row| (row.partition, -1i64)).collect();
        lanes.sort();
        let ids: Vec<_> = lanes.iter().map(|lane| lane.0).collect();
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let seeded = db.seed(group, Start::All, &ids).await;
        let mut versions: Vec<i64> = seeded.into_iter().map(|row| row.unwrap().row.version).collect();
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
        for table in ["partitions", "cursors"] {
            let (all, stayed) = updates(&db.client, table).await;
            assert!((COMMITS * WIDE) as i64 <= all);
            assert!(all * 85 <= stayed * 100, "{table}: {stayed} of {all} updates stayed on their page");
        }
    });
}
