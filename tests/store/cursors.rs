//! Claims, acks, releases: compare-and-set of cursor rows. Source: data plane 4.3, 5.4; rules 19, 20.

use crate::support::*;
use queen::store;
use queen_shards::command::Start;
use queen_shards::effect::{
    Call, Contact, CursorMove, CursorOutcome, CursorRow, CursorTo, DeadLetter, LeaseMust, LeaseTo, Reply,
};
use queen_shards::ids::{GroupId, LeaseId, MessageId, Offset, PartitionId};

/// A partition with 10 messages, and a group that starts before them.
async fn with_cursor(db: &Db) -> (PartitionId, GroupId, i64) {
    let p = db.provision("q", &["a"]).await[0].partition;
    db.push(p, -1, 10).await;
    let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
    let row = db.seed(group, Start::All, &[p]).await[0].unwrap().row;
    (p, group, row.version)
}

fn moved(outcome: CursorOutcome) -> (i64, i64) {
    match outcome {
        CursorOutcome::Moved { version, lease_left_us, last_offset: Offset(9), log_start: Offset(0) } => {
            (version, lease_left_us)
        }
        other => panic!("{other:?}"),
    }
}

fn stale(outcome: CursorOutcome) -> CursorRow {
    match outcome {
        CursorOutcome::Stale { row, last_offset: Offset(9), log_start: Offset(0) } => row,
        other => panic!("{other:?}"),
    }
}

async fn read(db: &Db, p: PartitionId) -> CursorRow {
    let ask = Call::FindCursors { cursors: vec![(p, "g".into())] };
    let Reply::FoundCursors(found) = db.call(ask).await else { panic!() };
    found[0].expect("a cursor").1
}

/// The mark comes and goes with the lease, and every way to read a cursor tells of it. Rule 21.
#[test]
fn a_conflating_lease_is_marked_in_the_row() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let set = LeaseTo::Set { id: LeaseId(77), secs: 30, conflating: true };
        let claim = CursorTo { lease: set, ..lease_to(-1, 77, 30, 6) };
        let (version, _) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Over, claim)).await);
        assert!(read(&db, p).await.conflating);
        let Reply::Cursors { rows, .. } =
            db.call(Call::SeedCursors { group: g, start: Start::All, partitions: vec![p] }).await
        else {
            panic!()
        };
        assert!(rows[0].unwrap().row.conflating);
        assert!(stale(db.move_one(cursor_move(p, g, 1, LeaseMust::Live, to(6))).await).conflating);
        let keep = CursorTo { lease: LeaseTo::Keep, batch_end: Some(Offset(6)), ..to(3) };
        let (version, _) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Live, keep)).await);
        assert!(read(&db, p).await.conflating, "what is left of the lease keeps it");
        moved(db.move_one(cursor_move(p, g, version, LeaseMust::Live, to(6))).await);
        assert!(!read(&db, p).await.conflating);
    });
}

#[test]
fn a_claim_writes_everything_it_says_and_stamps_the_lease() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let claim = CursorTo { retry_count: 2, attempt_count: 3, ..lease_to(-1, 77, 30, 6) };
        let (version, left) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Over, claim)).await);
        assert_eq!(left, 30_000_000);
        let row = read(&db, p).await;
        assert!(0 < row.lease_left_us && row.lease_left_us <= left);
        let want = CursorRow {
            version,
            committed: Offset(-1),
            lease: LeaseId(77),
            lease_left_us: row.lease_left_us,
            batch_end: Some(Offset(6)),
            conflating: false,
            retry_count: 2,
            attempt_start: Some(Offset(0)),
            attempt_count: 3,
        };
        assert_eq!(row, want);
        assert_eq!(db.number("select count(*) from queen.cursors where leased_at is not null").await, 1);
        // A partial ack keeps the lease and its expiry; a full one clears it.
        let keep = CursorTo { lease: LeaseTo::Keep, batch_end: Some(Offset(6)), ..to(3) };
        let (version, left) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Live, keep)).await);
        assert!(0 < left && left < 30_000_000);
        assert_eq!(read(&db, p).await.lease, LeaseId(77));
        let (version, left) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Live, to(6))).await);
        assert_eq!(left, 0);
        let row = read(&db, p).await;
        assert_eq!((row.version, row.lease, row.lease_left_us, row.batch_end), (version, LeaseId::NONE, 0, None));
        assert_eq!((row.committed, row.attempt_start, row.attempt_count), (Offset(6), None, 0));
    });
}

/// What a move completes counts; what retention took before it was handed out does not, nor does a seek. Data plane 11.3.
#[test]
fn moves_count_the_positions_they_retire() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let retired = async || db.number("select retired from queen.cursors").await;
        let go = async |version, must, to| match db.move_one(cursor_move(p, g, version, must, to)).await {
            CursorOutcome::Moved { version, .. } => version,
            other => panic!("{other:?}"),
        };
        let start = async |at: i64| db.sql(&format!("update queen.partitions set log_start = {at}")).await;
        let leased =
            |committed, end, begun| CursorTo { attempt_start: Some(Offset(begun)), ..lease_to(committed, 5, 60, end) };
        assert_eq!(retired().await, 0);
        let version = go(version, LeaseMust::Over, lease_to(-1, 5, 60, 3)).await;
        assert_eq!(retired().await, 0, "a claim retires nothing");
        let version = go(version, LeaseMust::Live, CursorTo { lease: LeaseTo::Keep, ..leased(1, 3, 0) }).await;
        assert_eq!(retired().await, 2, "a part of a batch");
        start(4).await;
        let version = go(version, LeaseMust::Live, to(3)).await;
        assert_eq!(retired().await, 4, "the rest of it, although retention took it meanwhile");
        start(6).await;
        let version = go(version, LeaseMust::Over, leased(3, 6, 6)).await;
        let version = go(version, LeaseMust::Live, to(6)).await;
        assert_eq!(retired().await, 5, "4 and 5 were gone before they were handed out");
        let version = go(version, LeaseMust::Over, leased(6, 7, 7)).await;
        db.sql("update queen.cursors set lease_expires_at = clock_timestamp()").await;
        start(9).await;
        go(version, LeaseMust::Over, to(9)).await;
        assert_eq!(retired().await, 6, "an auto-ack behind a lease that is over: 7 and 8 are gone");
        let seek = r#"{"queue":"q","group":"g","offset":0}"#;
        db.sql(&format!("select queen.seek_group('00000000-0000-0000-0000-000000000001', '{seek}')")).await;
        assert_eq!(retired().await, 6);
        // A row of before there was a counter goes on from where its cursor stands.
        db.sql("update queen.cursors set retired = null, committed = 8").await;
        let version = db.number("select version from queen.cursors").await;
        go(version, LeaseMust::Over, to(9)).await;
        assert_eq!(retired().await, 10);
    });
}

#[test]
fn a_row_that_moved_is_stale_and_comes_back_as_it_is() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let (newer, _) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Over, lease_to(-1, 5, 60, 9))).await);
        let row = stale(db.move_one(cursor_move(p, g, version, LeaseMust::Any, to(9))).await);
        assert_eq!(
            (row.version, row.committed, row.lease, row.batch_end),
            (newer, Offset(-1), LeaseId(5), Some(Offset(9)))
        );
        assert!(0 < row.lease_left_us);
    });
}

#[test]
fn whether_a_lease_is_live_is_judged_by_the_clock_of_postgresql() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        stale(db.move_one(cursor_move(p, g, version, LeaseMust::Live, to(0))).await);
        let (version, _) =
            moved(db.move_one(cursor_move(p, g, version, LeaseMust::Over, lease_to(-1, 5, 60, 9))).await);
        stale(db.move_one(cursor_move(p, g, version, LeaseMust::Over, lease_to(-1, 6, 60, 9))).await);
        db.sql("update queen.cursors set lease_expires_at = clock_timestamp()").await;
        let row = stale(db.move_one(cursor_move(p, g, version, LeaseMust::Live, to(9))).await);
        assert!(row.lease_left_us <= 0, "{row:?}");
        // Lease-less acks need nothing of the lease, a new claim needs it to be over.
        let (version, _) = moved(db.move_one(cursor_move(p, g, version, LeaseMust::Any, lease_to(-1, 5, 0, 9))).await);
        moved(db.move_one(cursor_move(p, g, version, LeaseMust::Over, lease_to(-1, 6, 60, 9))).await);
        assert_eq!(read(&db, p).await.lease, LeaseId(6));
    });
}

#[test]
fn a_confirmation_writes_nothing() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let before = read(&db, p).await;
        let confirm =
            |version, lease| CursorMove { partition: p, group: g, version, lease, to: None, dead_letter: None };
        assert_eq!(moved(db.move_one(confirm(version, LeaseMust::Any)).await), (version, 0));
        stale(db.move_one(confirm(version - 1, LeaseMust::Any)).await);
        stale(db.move_one(confirm(version, LeaseMust::Live)).await);
        assert_eq!(read(&db, p).await, before);
    });
}

#[test]
fn busy_and_gone_are_told_apart_and_hold_nobody_up() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let b = db.provision("q", &["b"]).await[0].partition;
        let other = db.seed(g, Start::All, &[b]).await[0].unwrap().row.version;
        let holder = db.other().await;
        let lock = format!("begin; select from queen.cursors where partition_id = {} for update", p.0);
        holder.batch_execute(&lock).await.unwrap();
        let moves = [
            cursor_move(p, g, version, LeaseMust::Any, to(3)),
            cursor_move(PartitionId(4096), g, version, LeaseMust::Any, to(3)),
            cursor_move(b, g, other, LeaseMust::Any, to(-1)),
            cursor_move(b, GroupId(g.0 + 1), other, LeaseMust::Any, to(-1)),
        ];
        let outcome = store::move_cursors(&db.client, &moves, Line::NONE).await.unwrap();
        assert_eq!(outcome.moves[0], CursorOutcome::Busy);
        assert_eq!(outcome.moves[1], CursorOutcome::Gone);
        assert!(matches!(outcome.moves[2], CursorOutcome::Moved { last_offset: Offset::NONE, .. }), "{outcome:?}");
        assert_eq!(outcome.moves[3], CursorOutcome::Gone);
        holder.batch_execute("rollback").await.unwrap();
        // A cursor without its partition is gone: the tail of a deleted queue delivers nothing.
        db.sql(&format!("delete from queen.partitions where id = {}", p.0)).await;
        let outcome = db.move_one(cursor_move(p, g, version, LeaseMust::Any, to(3))).await;
        assert_eq!(outcome, CursorOutcome::Gone);
        assert_eq!(db.committed(g, p).await, Some(-1));
    });
}

fn letter(offset: i64) -> DeadLetter {
    DeadLetter {
        offset: Offset(offset),
        id: MessageId(0x0190_0000_0000_7000_8000_0000_0000_0001),
        transaction_id: "invoice-7001 \u{1f980}".into(),
        payload: b"{\"order\":7001}"[..].into(),
        encrypted: false,
        error: "it does not fit".into(),
        retry_count: 3,
    }
}

#[test]
fn a_dead_letter_is_filed_with_its_move_or_not_at_all() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        let with_letter = |version, offset| CursorMove {
            dead_letter: Some(letter(offset)),
            ..cursor_move(p, g, version, LeaseMust::Any, to(offset))
        };
        let (newer, _) = moved(db.move_one(with_letter(version, 4)).await);
        stale(db.move_one(with_letter(version, 5)).await);
        assert_eq!(db.number("select count(*) from queen.dead_letters").await, 1);
        let same = "select count(*) from queen.dead_letters as d
            join queen.partitions as p on p.id = d.partition_id and p.queue_id = d.queue_id
            where d.group_name = 'g' and d.message_offset = 4 and d.error = 'it does not fit' and d.retry_count = 3
                and d.transaction_id = 'invoice-7001 \u{1f980}' and convert_from(d.payload, 'UTF8') = '{\"order\":7001}'
                and not d.encrypted and d.message_id = '01900000-0000-7000-8000-000000000001'";
        assert_eq!(db.number(same).await, 1);
        assert_eq!(read(&db, p).await.version, newer);
    });
}

#[test]
fn a_cursor_made_anew_never_matches_an_old_memory() {
    on_store(async |db| {
        let (p, g, version) = with_cursor(&db).await;
        db.sql("delete from queen.cursors").await;
        let again = db.seed(g, Start::All, &[p]).await[0].unwrap().row.version;
        assert_ne!(again, version);
        stale(db.move_one(cursor_move(p, g, version, LeaseMust::Any, to(9))).await);
    });
}

/// Two brokers claim and complete the same cursors, in opposite orders of arrival, by what they were told.
#[test]
fn two_brokers_never_hold_one_lease_and_never_deadlock() {
    on_store(async |db| {
        const LANES: usize = 12;
        let names: Vec<String> = (0..LANES).map(|i| format!("p{i}")).collect();
        let rows = db.provision("q", &names.iter().map(|n| &**n).collect::<Vec<_>>()).await;
        let ids: Vec<PartitionId> = rows.iter().map(|row| row.partition).collect();
        let g = db.open("q", "g", Contact::Register(Start::All)).await.unwrap().group;
        let broker = |me: u128, reverse: bool| {
            let (target, mut ids) = (db.target.clone(), ids.clone());
            if reverse {
                ids.reverse();
            }
            async move {
                let client = connect(&target).await;
                let mut claims = 0i64;
                for round in 0..120 {
                    let seed = Call::SeedCursors { group: g, start: Start::All, partitions: ids.clone() };
                    let Reply::Cursors { rows, .. } = store::call(&any(&client), &seed).await.unwrap() else {
                        panic!()
                    };
                    let lease = me << 32 | round;
                    let claim: Vec<CursorMove> = ids
                        .iter()
                        .zip(&rows)
                        .map(|(p, row)| {
                            let row = row.unwrap().row;
                            cursor_move(*p, g, row.version, LeaseMust::Over, lease_to(row.committed.0, lease, 60, 0))
                        })
                        .collect();
                    let got = store::move_cursors(&client, &claim, Line::NONE).await.unwrap();
                    let done: Vec<CursorMove> = (0..LANES)
                        .filter_map(|i| match got.moves[i] {
                            CursorOutcome::Moved { version, .. } => {
                                let next = rows[i].unwrap().row.committed.0 + 1;
                                Some(cursor_move(ids[i], g, version, LeaseMust::Live, to(next)))
                            }
                            _ => None,
                        })
                        .collect();
                    queen::rt::yield_now().await;
                    let mut left = done;
                    while !left.is_empty() {
                        let ended = store::move_cursors(&client, &left, Line::NONE).await.unwrap();
                        let mut at = 0;
                        left.retain(|_| {
                            at += 1;
                            match ended.moves[at - 1] {
                                CursorOutcome::Moved { .. } => {
                                    claims += 1;
                                    false
                                }
                                CursorOutcome::Busy => true,
                                other => panic!("a held lease was taken: {other:?}"),
                            }
                        });
                    }
                }
                claims
            }
        };
        let (a, b) = futures_util::future::join(broker(1, false), broker(2, true)).await;
        assert!(0 < a && 0 < b);
        assert_eq!(db.number("select sum(committed + 1) from queen.cursors").await, a + b);
        assert_eq!(db.number("select deadlocks from pg_stat_database where datname = current_database()").await, 0);
    });
}
