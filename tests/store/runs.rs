//! Sealed runs: stored whole or not at all, read by row, removed when over.

use crate::support::*;
use bytes::Bytes;
use queen::store;
use queen_shards::effect::{Call, Reply};
use queen_shards::ids::{Key, Offset, PartitionId, Stamp};
use queen_shards::sealed::{RowId, Run, RunId, SealedRun, Slice, find_in_row};
use queen_shards::window::Window;

/// A run of `count` messages from `base` on, more than a small window has.
fn sealed(base: i64, count: i64, at: Stamp) -> SealedRun {
    let mut window = Window::new();
    let keys: Vec<u8> = (base..base + count).flat_map(|n| key(n).0.to_le_bytes()).collect();
    window.insert(Offset(base), at, &keys);
    window.close();
    let mut slice = Slice::new(count as usize, Offset(base - 1));
    for _ in 0..=count / 1024 {
        window.copy_oldest(&mut slice);
    }
    assert_eq!(slice.len(), count as usize);
    slice.seal()
}

fn key(n: i64) -> Key {
    Key((n as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

async fn runs(db: &Db, partition: PartitionId, after: Option<RunId>, bytes: u64) -> (Vec<(Run, Option<Stamp>)>, bool) {
    match db.call(Call::ReadRuns { partition, after, bytes }).await {
        Reply::Runs { runs, complete } => {
            let decoded = runs.iter().map(|row| {
                let run = Run::decode(&row.run).expect("what was encoded");
                assert_eq!(run.id(), row.id);
                (run, row.before)
            });
            (decoded.collect(), complete)
        }
        other => panic!("{other:?}"),
    }
}

async fn rows(db: &Db, partition: PartitionId, rows: Vec<RowId>) -> Vec<Option<Bytes>> {
    match db.call(Call::ReadRunRows { partition, rows }).await {
        Reply::RunRows(rows) => rows,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_key_of_a_stored_run_is_in_the_row_it_names() {
    on_store(async |db| {
        let partition = db.provision("q", &["a"]).await[0].partition;
        let at = Stamp(1_790_000_000_000_000);
        let run = sealed(0, 3000, at);
        store::store_run(&any(&db.client), partition, &run).await.unwrap();
        let (found, complete) = runs(&db, partition, None, 1).await;
        assert_eq!((&found, complete), (&vec![(Run::decode(&run.run.encode()).unwrap(), None)], true));
        for n in [0, 1, 1500, 2999] {
            let mut wanted: Vec<RowId> = found[0].0.rows_of(key(n)).collect();
            wanted.push(RowId { row: 1 << 20, ..wanted[0] });
            let read = rows(&db, partition, wanted).await;
            assert_eq!(read.last(), Some(&None));
            let hit = read.iter().flatten().find_map(|row| find_in_row(row, key(n), Stamp(0)));
            assert_eq!(hit, Some((Offset(n), at)));
        }
        // A row is a page read: none of them left its page.
        let pages = db.number("select pg_relation_size('queen.window_runs') / 8192").await;
        assert!(pages <= run.rows.len() as i64 + 1, "{pages} pages");
    });
}

#[test]
fn a_run_is_stored_once_whoever_seals_it() {
    on_store(async |db| {
        let partition = db.provision("q", &["a"]).await[0].partition;
        for count in [1000, 1000, 700] {
            store::store_run(&any(&db.client), partition, &sealed(0, count, Stamp(1))).await.unwrap();
        }
        let ids: Vec<i64> = runs(&db, partition, None, 1 << 20).await.0.iter().map(|(run, _)| run.last.0).collect();
        assert_eq!(ids, [699, 999]);
        assert_eq!(db.number("select count(*) from queen.window_runs").await, 3 + 1 + 4 + 1);
    });
}

#[test]
fn runs_are_read_in_pages_with_the_stamp_before_them() {
    on_store(async |db| {
        let [a, b] = db.provision("q", &["a", "b"]).await[..] else { panic!() };
        let partition = a.partition;
        let first = db.push(partition, -1, 100).await;
        db.push(partition, 99, 100).await;
        for (base, count) in [(0, 100), (100, 100), (200, 50)] {
            store::store_run(&any(&db.client), partition, &sealed(base, count, Stamp(1))).await.unwrap();
        }
        store::store_run(&any(&db.client), b.partition, &sealed(0, 90, Stamp(1))).await.unwrap();
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let (page, complete) = runs(&db, partition, after, 1).await;
            assert_eq!(page.len(), 1);
            after = Some(page[0].0.id());
            seen.extend(page);
            if complete {
                break;
            }
        }
        let bases: Vec<i64> = seen.iter().map(|(run, _)| run.base.0).collect();
        assert_eq!(bases, [0, 100, 200]);
        assert_eq!((seen[0].1, seen[1].1), (None, Some(first)));
        // Evidence counts like segments.
        db.sql(
            "insert into queen.evidence select partition_id, base_offset, count, created_at, null, keys
             from queen.segments where base_offset = 0; delete from queen.segments where base_offset = 0",
        )
        .await;
        assert_eq!(runs(&db, partition, None, 1 << 20).await.0[1].1, Some(first));
    });
}

#[test]
fn dropped_runs_are_gone_with_their_rows() {
    on_store(async |db| {
        let partition = db.provision("q", &["a"]).await[0].partition;
        let [one, two] = [sealed(0, 1000, Stamp(1)), sealed(1000, 1000, Stamp(1))];
        for run in [&one, &two] {
            store::store_run(&any(&db.client), partition, run).await.unwrap();
        }
        for _ in 0..2 {
            db.call(Call::DropRuns { partition, runs: vec![one.run.id()] }).await;
        }
        let row = |run: &SealedRun| RowId { run: run.run.id(), row: 0 };
        let read = rows(&db, partition, vec![row(&one), row(&two)]).await;
        assert_eq!(read, [None, Some(two.rows[0].clone())]);
        assert_eq!(runs(&db, partition, None, 1).await.0.len(), 1);
    });
}

#[test]
fn clean_up_takes_runs_of_deleted_partitions_and_those_that_are_over() {
    on_store(async |db| {
        let [a, b] = db.provision("q", &["a", "b"]).await[..] else { panic!() };
        let now = Stamp(db.number("select (extract(epoch from clock_timestamp()) * 1e6)").await);
        let ago = |secs: i64| Stamp(now.0 - secs * 1_000_000);
        // The window is an hour, and another one is left.
        for (base, at) in [(0, ago(7300)), (1000, ago(7000)), (2000, ago(10))] {
            store::store_run(&any(&db.client), a.partition, &sealed(base, 1000, at)).await.unwrap();
        }
        let gone = PartitionId(b.partition.0 + 4096 * 1000);
        for base in [0, 1000] {
            store::store_run(&any(&db.client), gone, &sealed(base, 1000, ago(1))).await.unwrap();
        }
        let mut steps = Vec::new();
        loop {
            let done = store::purge_runs(&db.client, 5).await.unwrap();
            steps.push(done);
            if done < 5 {
                break;
            }
        }
        assert_eq!(steps, [5, 5, 5, 0]);
        let left: Vec<i64> = runs(&db, a.partition, None, 1 << 20).await.0.iter().map(|(run, _)| run.base.0).collect();
        assert_eq!(left, [1000, 2000]);
        assert_eq!(db.number("select count(distinct partition_id) from queen.window_runs").await, 1);
    });
}

/// Prints figures with `--nocapture`.
#[test]
fn a_full_run_is_stored_in_one_statement() {
    on_store(async |db| {
        let partition = db.provision("q", &["a"]).await[0].partition;
        let run = sealed(0, 1 << 20, Stamp(1));
        let began = std::time::Instant::now();
        store::store_run(&any(&db.client), partition, &run).await.unwrap();
        let stored = began.elapsed();
        let ids: Vec<RowId> = (0..256).map(|n| run.run.rows_of(key(n * 3000)).next().unwrap()).collect();
        let began = std::time::Instant::now();
        let read = rows(&db, partition, ids).await;
        println!("stored in {stored:?}; 256 rows read in {:?}", began.elapsed());
        assert!(read.iter().all(Option::is_some));
    });
}
