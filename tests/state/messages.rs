//! Pages of messages at a million: no table is scanned. Data plane 9.1; issue 3, item 3.

use crate::cluster::Db;
use crate::queue;
use serde_json::{Value, json};

const TENANT: &str = "00000000-0000-0000-0000-000000000001";

/// Sequential scans of the table so far, and rows they read.
fn scanned(db: &Db, table: &str) -> i64 {
    let sql = format!(
        "select pg_stat_force_next_flush(); select seq_tup_read from pg_stat_user_tables where schemaname = 'queen' and relname = '{table}'"
    );
    db.sql(&sql).trim().lines().last().unwrap().parse().unwrap()
}

#[test]
fn a_page_of_a_million_messages_reads_what_it_shows() {
    let db = Db::new();
    queue(&db, "q", 1000, 0);
    // A thousand partitions with ten segments of a hundred messages each, a second apart.
    db.sql(
        "insert into queen.segments
         select p.id, 100 * m, 100, now() - make_interval(secs => 9 - m), null, 0, 0, 4, '\\x00', '\\x00'
         from queen.partitions p, generate_series(0, 9) m;
         update queen.partitions set last_offset = 999, last_created_at = now(); analyze",
    );
    let before = scanned(&db, "segments");
    let args = |more: Value| {
        let mut all = json!({"limit": 200, "offset": 0, "scan": 5000, "partitions": 1000, "bytes": 1_000_000});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    for more in [
        json!({}),
        json!({"offset": 5000}),
        json!({"status": "pending"}),
        json!({"queue": "q", "partition": "p5"}),
        json!({"from": "2001-01-01"}),
    ] {
        let page = db.call("list_messages", args(more.clone()));
        assert_eq!(page["rows"].as_array().unwrap().len(), 200, "{more}");
        let rows = page["rows"].as_array().unwrap();
        assert!(rows.windows(2).all(|w| w[0]["createdAt"].as_str() >= w[1]["createdAt"].as_str()), "{more}");
    }
    assert_eq!(scanned(&db, "segments"), before, "segments are read by their key only");
    let first = args(json!({}));
    let text =
        db.sql(&format!("explain (analyze, buffers, format json) select queen.list_messages('{TENANT}', '{first}')"));
    let plan: Value = serde_json::from_str(&text).unwrap();
    let blocks = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
        + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
    // All thousand partitions are equally new, so each is entered twice, about 12 blocks a time.
    assert!(blocks < 40_000, "{blocks} blocks for the first page");
}
