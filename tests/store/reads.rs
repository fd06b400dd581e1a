//! Scans of a queue, and reads of keys and records.

use crate::support::*;
use queen_shards::command::{Record, Start};
use queen_shards::effect::{Call, Contact, KeysRow, LeaseMust, Reply, ScanRow};
use queen_shards::ids::{GroupId, Offset, PartitionId, QueueId, Stamp};
use std::sync::Arc;

async fn keys(
    db: &Db,
    p: PartitionId,
    span: (i64, i64),
    since: Option<Stamp>,
    limit: u32,
    newest: bool,
) -> (Vec<(i64, usize)>, bool) {
    let ask =
        Call::ReadKeys { partition: p, from: Offset(span.0), to: Offset(span.1), since, limit, newest_first: newest };
    let Reply::Keys { rows, complete, .. } = db.call(ask).await else { panic!() };
    (rows.iter().map(|KeysRow { base, keys, .. }| (base.0, keys.len() / 16)).collect(), complete)
}

/// Rows of 5 at 0, 5, ..., 45; the first four are evidence only.
async fn ten_rows(db: &Db) -> (PartitionId, Vec<Stamp>) {
    let p = db.provision("q", &["a"]).await[0].partition;
    let mut stamps = Vec::new();
    for i in 0..10 {
        stamps.push(db.push(p, 5 * i - 1, 5).await);
    }
    db.sql(
        "with gone as (delete from queen.segments where base_offset < 20
            returning partition_id, base_offset, count, created_at, keys)
        insert into queen.evidence (partition_id, base_offset, count, created_at, keys) select * from gone;
        update queen.partitions set log_start = 20",
    )
    .await;
    (p, stamps)
}

#[test]
fn keys_are_read_in_whole_rows_across_segments_and_evidence() {
    on_store(async |db| {
        let (p, stamps) = ten_rows(&db).await;
        let all: Vec<(i64, usize)> = (0..10).map(|i| (5 * i, 5)).collect();
        assert_eq!(keys(&db, p, (0, 49), None, 1000, false).await, (all.clone(), true));
        assert_eq!(keys(&db, p, (0, 49), None, 1000, true).await, (all.clone(), true));
        assert_eq!(keys(&db, p, (7, 22), None, 1000, false).await, (all[1..5].to_vec(), true));
        assert_eq!(keys(&db, p, (7, 22), None, 1000, true).await, (all[1..5].to_vec(), true));
        assert_eq!(keys(&db, p, (0, 49), None, 11, false).await, (all[..3].to_vec(), false));
        assert_eq!(keys(&db, p, (0, 49), None, 11, true).await, (all[7..].to_vec(), false));
        assert_eq!(keys(&db, p, (0, 49), None, 50, true).await, (all.clone(), true));
        assert_eq!(keys(&db, p, (0, 49), Some(stamps[6]), 1000, true).await, (all[6..].to_vec(), true));
        assert_eq!(keys(&db, p, (0, 49), Some(stamps[2]), 1000, false).await, (all[2..].to_vec(), true));
        assert_eq!(keys(&db, p, (50, 60), None, 1000, false).await, (vec![], true));
        assert_eq!(keys(&db, PartitionId(1), (0, 49), None, 1000, true).await, (vec![], true));
    });
}

#[test]
fn records_are_read_until_enough_and_at_least_one() {
    on_store(async |db| {
        let (p, _) = ten_rows(&db).await;
        let read = async |from: i64, to: i64, bytes: u64, messages: u32| {
            let ask = Call::ReadRecords { partition: p, from: Offset(from), to: Offset(to), bytes, messages };
            let Reply::Records { records, log_start } = db.call(ask).await else { panic!() };
            assert_eq!(log_start, Offset(20));
            records.iter().map(|Record { base, .. }| base.0).collect::<Vec<_>>()
        };
        assert_eq!(read(20, 49, 1 << 20, 1000).await, [20, 25, 30, 35, 40, 45]);
        assert_eq!(read(22, 31, 1 << 20, 1000).await, [20, 25, 30]);
        assert_eq!(read(22, 49, 1 << 20, 3).await, [20]);
        assert_eq!(read(22, 49, 1 << 20, 4).await, [20, 25]);
        assert_eq!(read(22, 49, 1, 1000).await, [20]);
        assert_eq!(read(3, 49, 201, 1000).await, [20, 25]);
        assert_eq!(read(3, 4, 1 << 20, 1000).await, [0i64; 0]);
        let gone =
            Call::ReadRecords { partition: PartitionId(1), from: Offset(0), to: Offset(9), bytes: 1, messages: 1 };
        assert!(
            matches!(db.call(gone).await, Reply::Records { records, log_start: Offset::NONE } if records.is_empty())
        );
    });
}

#[test]
fn the_newest_record_of_an_age_is_found() {
    on_store(async |db| {
        let (p, stamps) = ten_rows(&db).await;
        let newest = async |to: i64, not_after: Stamp| {
            let Reply::Records { records, log_start } =
                db.call(Call::ReadNewest { partition: p, to: Offset(to), not_after }).await
            else {
                panic!()
            };
            assert_eq!(log_start, Offset(20));
            records.iter().map(|record| record.base.0).collect::<Vec<_>>()
        };
        let any = Stamp(i64::MAX);
        assert_eq!(newest(49, any).await, [45]);
        assert_eq!(newest(33, any).await, [30], "the record that holds it");
        assert_eq!(newest(49, stamps[7]).await, [35]);
        assert_eq!(newest(49, Stamp(stamps[7].0 - 1)).await, [30]);
        assert_eq!(newest(49, stamps[9]).await, [45]);
        let gone = Call::ReadNewest { partition: PartitionId(1), to: Offset(9), not_after: any };
        assert!(
            matches!(db.call(gone).await, Reply::Records { records, log_start: Offset::NONE } if records.is_empty())
        );
    });
}

#[test]
fn a_scan_pages_over_what_a_group_has_left_of_one_shard() {
    on_store(async |db| {
        let names: Vec<String> = (0..60).map(|i| format!("p{i}")).collect();
        let rows = db.provision("q", &names.iter().map(|n| &**n).collect::<Vec<_>>()).await;
        let queue = rows[0].queue.id;
        for row in &rows[..50] {
            db.push(row.partition, -1, 4).await;
        }
        let g = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let seen: Vec<PartitionId> = rows[..40].iter().map(|row| row.partition).collect();
        let cursors = db.seed(g, Start::All, &seen).await;
        for (p, cursor) in seen.iter().zip(&cursors).take(15) {
            db.move_one(cursor_move(*p, g, cursor.unwrap().row.version, LeaseMust::Any, to(3))).await;
        }
        // Retention took all of this one.
        db.sql(&format!("update queen.partitions set log_start = 4 where id = {}", rows[20].partition.0)).await;
        let mut want: Vec<PartitionId> = rows[15..50].iter().map(|row| row.partition).collect();
        want.retain(|p| *p != rows[20].partition);
        want.sort();

        // Pages end after so many rows, after so many partitions looked at, or with the queue.
        for (limit, look) in [(5, 1000), (1000, 4), (3, 7), (1000, 60), (1000, 1000)] {
            let found = scan_all(&db, queue, g, limit, look).await;
            assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), want, "{limit} {look}");
            for (partition, has_cursor, name) in found {
                let i = rows.iter().position(|row| row.partition == partition).unwrap();
                assert_eq!((has_cursor, &*name), (i < 40, &*names[i]));
            }
        }
    });
}

/// Reads and seedings of pushes and pops wait behind a page, so it ends in time whatever it was allowed to look at.
#[test]
fn a_page_of_a_scan_ends_after_some_milliseconds() {
    // 60 ms of a fast core: several times what a page may take.
    const PARTITIONS: i64 = 200_000;
    on_store(async |db| {
        let rows = db.provision("q", &["p"]).await;
        let (queue, first) = (rows[0].queue.id, rows[0].partition.0);
        db.sql(&format!(
            "insert into queen.partitions (id, queue_id, name) select {first} + n * 4096, queue_id, 'p' || n \
             from queen.partitions, generate_series(1, {PARTITIONS}) as n"
        ))
        .await;
        let last = PartitionId(first + PARTITIONS * 4096);
        db.push(last, -1, 4).await;
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let (mut after, mut pages, mut found) = (PartitionId(0), 0, Vec::new());
        loop {
            let ask = Call::Scan { queue, group, shard: 0, shards: 1, after, limit: 1000, look: i32::MAX as u32 };
            let Reply::Scanned { rows: page, next, .. } = db.call(ask).await else { panic!() };
            found.extend(page.iter().map(|row| row.partition));
            pages += 1;
            let Some(next) = next else { break };
            assert!(after < next);
            after = next;
        }
        assert_eq!(found, [last]);
        assert!(3 <= pages, "{pages} pages");
        assert!(pages <= 1 + PARTITIONS / 1000, "{pages} pages: each looks at a thousand at least");
    });
}

/// What a scan by pages finds of all shards: partition, whether it has a cursor, its name.
async fn scan_all(
    db: &Db,
    queue: QueueId,
    group: GroupId,
    limit: u32,
    look: u32,
) -> Vec<(PartitionId, bool, Arc<str>)> {
    let mut found = Vec::new();
    for shard in 0..3u32 {
        let mut after = PartitionId(0);
        loop {
            let ask = Call::Scan { queue, group, shard, shards: 3, after, limit, look };
            let Reply::Scanned { rows: page, next, now } = db.call(ask).await else { panic!() };
            assert!(page.len() <= limit as usize);
            assert!(now <= ping(&db.client).await.unwrap());
            assert!(page.is_sorted_by_key(|row: &ScanRow| row.partition));
            assert!(page.iter().all(|row| queen_shards::place::owner_of_partition(row.partition, 3) == shard as usize));
            found.extend(page.iter().map(|row| (row.partition, row.cursor.is_some(), row.name.clone())));
            let Some(next) = next else { break };
            assert!(after < next && page.last().is_none_or(|row| row.partition <= next));
            after = next;
        }
    }
    found.sort();
    found
}
