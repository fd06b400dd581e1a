//! What a fused push commit does to its lanes.

use crate::support::*;
use queen_shards::command::Codec;
use queen_shards::effect::{Append, AppendLane, Call, LaneOutcome, Reply, StoreError};
use queen_shards::ids::{Offset, PartitionId, Stamp};

#[test]
fn every_lane_has_its_own_outcome() {
    on_store(async |db| {
        let mut rows = db.provision("q", &["a", "b", "c"]).await;
        rows.sort_by_key(|row| row.partition);
        let [fits, moved, busy] = [rows[0].partition, rows[1].partition, rows[2].partition];
        db.push(moved, -1, 5).await;
        let gone = PartitionId(busy.0 + 4096 * 1000);
        let holder = db.other().await;
        let lock = format!("begin; select from queen.partitions where id = {} for update", busy.0);
        holder.batch_execute(&lock).await.unwrap();

        let ask = one_each(&[(fits, -1), (moved, -1), (busy, -1), (gone, -1)], 3);
        let outcome = append(&db.client, &ask).await.unwrap();
        assert!(matches!(outcome.lanes[0], LaneOutcome::Appended { .. }), "{outcome:?}");
        assert_eq!(outcome.lanes[1..], [LaneOutcome::Moved { last: Offset(4) }, LaneOutcome::Busy, LaneOutcome::Gone]);
        assert_eq!(outcome.stored.iter().map(|(_, b)| b.is_empty()).collect::<Vec<_>>(), [false, true, true, true]);
        assert_eq!(db.number("select count(*) from queen.segments").await, 2);

        holder.batch_execute("rollback").await.unwrap();
        let again = append(&db.client, &one_each(&[(busy, -1)], 3)).await.unwrap();
        assert!(matches!(again.lanes[0], LaneOutcome::Appended { .. }));
    });
}

#[test]
fn a_lane_of_no_messages_is_confirmed_and_not_written() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        let stamp = db.push(p, -1, 2).await;
        let version = "select xmin::text::bigint from queen.partitions";
        let before = db.number(version).await;
        let confirm = |expect| Append {
            lanes: vec![AppendLane { partition: p, expect: Offset(expect), count: 0 }],
            segments: vec![],
            ..Append::default()
        };
        let outcome = append(&db.client, &confirm(1)).await.unwrap();
        assert_eq!(outcome.lanes, [LaneOutcome::Appended { created_at: stamp }]);
        let outcome = append(&db.client, &confirm(0)).await.unwrap();
        assert_eq!(outcome.lanes, [LaneOutcome::Moved { last: Offset(1) }]);
        assert_eq!(db.number(version).await, before);
    });
}

#[test]
fn what_is_stored_is_read_back_byte_for_byte() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        let mut ask = Append {
            lanes: vec![AppendLane { partition: p, expect: Offset::NONE, count: 103 }],
            segments: vec![segment(0, 0, 2, 7), segment(0, 2, 100, 8), segment(0, 102, 1, 9)],
            ..Append::default()
        };
        ask.segments[2].packed = Some(b"as the client packed it"[..].into());
        ask.segments[2].flags = 3;
        let outcome = append(&db.client, &ask).await.unwrap();
        let codecs: Vec<Codec> = outcome.stored.iter().map(|s| s.0).collect();
        assert_eq!(codecs, [Codec::Raw, Codec::Zstd, Codec::Zstd]);
        let read = Call::ReadRecords { partition: p, from: Offset(0), to: Offset(102), bytes: 1 << 30, messages: 1000 };
        let Reply::Records { records, log_start } = db.call(read).await else { panic!() };
        assert_eq!(log_start, Offset(0));
        assert_eq!(records.len(), 3);
        for ((record, stored), asked) in records.iter().zip(&outcome.stored).zip(&ask.segments) {
            assert_eq!((record.codec, &record.body), (stored.0, &stored.1));
            assert_eq!((&record.keys, record.count, record.flags), (&asked.keys, asked.count, asked.flags));
            assert_eq!(record.raw_len as usize, asked.raw_len());
            assert_eq!(record.base, Offset(asked.rel as i64));
        }
        assert_eq!(records[2].body, &b"as the client packed it"[..]);
    });
}

#[test]
fn stamps_of_a_partition_never_decrease() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        db.push(p, -1, 1).await;
        // As a clock that went back an hour would leave it.
        db.sql("update queen.partitions set last_created_at = clock_timestamp() + interval '1 hour'").await;
        let ahead =
            Stamp(db.number("select extract(epoch from last_created_at) * 1000000 from queen.partitions").await);
        assert_eq!(db.push(p, 0, 1).await, ahead);
        let read = Call::FindLane { lane: lane("q", "a") };
        let Reply::Lanes(rows) = db.call(read).await else { panic!() };
        assert_eq!(rows[0].unwrap().last_created_at, ahead);
        assert_eq!(rows[0].unwrap().last_offset, Offset(1));
    });
}

#[test]
fn a_stamp_is_not_older_than_the_lock_it_was_taken_under() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        let before = ping(&db.client).await.unwrap();
        let stamp = db.push(p, -1, 1).await;
        assert!(before < stamp && stamp < ping(&db.client).await.unwrap());
    });
}

/// Two writers push to the same lanes in opposite orders of arrival, hundreds of times; each goes by what it was told.
#[test]
fn two_writers_on_the_same_lanes_leave_no_gap_and_no_deadlock() {
    on_store(async |db| {
        const LANES: usize = 16;
        const EACH: usize = 150;
        let names: Vec<String> = (0..LANES).map(|i| format!("p{i}")).collect();
        let rows = db.provision("q", &names.iter().map(|n| &**n).collect::<Vec<_>>()).await;
        let mut ids: Vec<PartitionId> = rows.iter().map(|row| row.partition).collect();
        ids.sort();
        let writer = |reverse: bool, count: u32| {
            let (ids, target) = (ids.clone(), db.target.clone());
            async move {
                let client = connect(&target).await;
                let mut last = [-1i64; LANES];
                let mut written = [0usize; LANES];
                while written.iter().any(|n| *n < EACH) {
                    let mut lanes: Vec<usize> = (0..LANES).filter(|i| written[*i] < EACH).collect();
                    if reverse {
                        lanes.reverse(); // The engine sorts; the statement must not rely on it.
                    }
                    let asked: Vec<_> = lanes.iter().map(|i| (ids[*i], last[*i])).collect();
                    let outcome = append(&client, &one_each(&asked, count)).await.unwrap();
                    for (i, outcome) in lanes.iter().zip(outcome.lanes) {
                        match outcome {
                            LaneOutcome::Appended { .. } => {
                                last[*i] += count as i64;
                                written[*i] += 1;
                            }
                            LaneOutcome::Moved { last: now } => last[*i] = now.0,
                            LaneOutcome::Busy => {}
                            LaneOutcome::Behind { .. } | LaneOutcome::Gone => panic!("{outcome:?}"),
                        }
                    }
                    queen::rt::yield_now().await;
                }
            }
        };
        let both = futures_util::future::join(writer(false, 3), writer(true, 2));
        queen::rt::timeout(PATIENCE, both).await.expect("both end");
        assert_eq!(db.number("select count(*) from queen.segments").await, (2 * LANES * EACH) as i64);
        let gaps = "select count(*) from (
            select base_offset, lag(base_offset + count, 1, 0::bigint) over w as next, created_at,
                lag(created_at, 1, '-infinity') over w as before
            from queen.segments window w as (partition_id order by base_offset)
        ) as s where base_offset <> next or created_at < before";
        assert_eq!(db.number(&gaps.replace("(partition_id", "(partition by partition_id")).await, 0);
        let ends = "select count(*) from queen.partitions where last_offset <> 5 * 150 - 1";
        assert_eq!(db.number(ends).await, 0);
        assert_eq!(db.number("select deadlocks from pg_stat_database where datname = current_database()").await, 0);
    });
}

#[test]
fn a_poisoned_commit_is_refused_and_one_that_was_cut_off_is_unavailable() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        let mut bad = one_segment(p, -1, 1);
        bad.segments[0].rel = 0;
        bad.segments.push(bad.segments[0].clone()); // The same offset twice.
        assert!(matches!(append(&db.client, &bad).await, Err(StoreError::Refused(_))));

        // Holds the commit up after it was sent, then ends its session.
        db.sql(
            "create function wait() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
            create trigger wait before insert on queen.segments for each row execute function wait();
            select pg_advisory_lock(1)",
        )
        .await;
        let client = db.other().await;
        let victim = client.query_typed("select pg_backend_pid()", &[]).await.unwrap()[0].get::<_, i32>(0);
        let lost = one_segment(p, -1, 1);
        let stuck = async {
            let waits =
                format!("select count(*) from pg_stat_activity where pid = {victim} and wait_event_type = 'Lock'");
            until("the commit is stuck", async || db.number(&waits).await == 1).await;
            // SAFETY: a process of our own cluster.
            unsafe { libc::kill(victim, libc::SIGTERM) };
        };
        let (outcome, ()) = futures_util::future::join(append(&client, &lost), stuck).await;
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "57P01 tells that it rolled back: {outcome:?}");
        until("the connection is known to be closed", async || client.is_closed()).await;
        assert!(matches!(append(&client, &lost).await, Err(StoreError::Unavailable(_))), "nothing is sent any more");
    });
}
