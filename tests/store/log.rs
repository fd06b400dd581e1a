//! The commit log: what one broker committed, another one reads. Source: rules 8 to 11.

use crate::support::*;
use queen::state::{StateCall, StateFn, Tells};
use queen::store::log::{self, News, Positions};
use queen::store::{self, Client, Incarnation};
use queen_shards::command::{Left, Start};
use queen_shards::effect::{Contact, CursorOutcome, LaneOutcome, LeaseMust, StoreError};
use queen_shards::ids::{GroupId, PartitionId};

const A: u128 = 1;
const B: u128 = 2;
/// Slots of a ring.
const SLOTS: i64 = 256;

/// What broker B reads after a place, which moves along.
async fn news(client: &Client, at: &mut Option<(Incarnation, Positions)>) -> News {
    let from = at.as_ref().map(|(incarnation, positions)| (incarnation, positions));
    let mut news = log::read(client, B, from).await.unwrap();
    *at = Some((news.incarnation.clone(), std::mem::take(&mut news.positions)));
    news
}

/// Pushes a message to one lane and says so in the log.
async fn push(db: &Db, id: PartitionId, expect: i64, line: Line) -> Result<LaneOutcome, StoreError> {
    let outcome = store::append(&db.client, &one_segment(id, expect, 1), 1, line).await?;
    Ok(outcome.lanes[0])
}

fn grown(news: &News) -> Vec<(i64, i64)> {
    let mut grown: Vec<(i64, i64)> = news.lanes.iter().map(|lane| (lane.partition.0, lane.last_offset.0)).collect();
    grown.sort();
    grown
}

#[test]
fn a_reader_with_a_position_per_writer_misses_nothing() {
    on_store(async |db| {
        let ids = [db.provision("q", &["a"]).await[0].partition, db.provision("q", &["b"]).await[0].partition];
        log::join(&db.client, A).await.unwrap();
        assert_eq!(log::join(&db.client, B).await.unwrap(), 1, "one other");
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        push(&db, ids[0], -1, Line { writer, seq: 1 }).await.unwrap();
        let mut at = None;
        let first = news(&db.client, &mut at).await;
        assert!(first.is_empty() && first.others == 1, "it begins here: {first:?}");
        assert!(news(&db.client, &mut at).await.is_empty());

        push(&db, ids[0], 0, Line { writer, seq: 2 }).await.unwrap();
        push(&db, ids[0], 1, Line { writer, seq: 3 }).await.unwrap();
        // A writer that the reader has not met.
        let other = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        push(&db, ids[1], -1, Line { writer: other, seq: 1 }).await.unwrap();
        let read = news(&db.client, &mut at).await;
        let mut want = vec![(ids[0].0, 2), (ids[1].0, 0)];
        want.sort();
        assert_eq!(grown(&read), want, "each once, as it is now");
        let lane = read.lanes.iter().find(|lane| lane.partition == ids[0]).unwrap();
        assert_eq!((&*lane.key.queue, &*lane.key.partition), ("q", "a"));
        assert!(!read.lost);

        // A full ring is read whole, one more commit is one too many.
        for seq in 4..4 + SLOTS {
            push(&db, ids[0], seq - 2, Line { writer, seq }).await.unwrap();
        }
        let read = news(&db.client, &mut at).await;
        assert!(!read.lost && grown(&read) == [(ids[0].0, SLOTS + 2)], "{read:?}");
        for seq in 4 + SLOTS..5 + 2 * SLOTS {
            push(&db, ids[0], seq - 2, Line { writer, seq }).await.unwrap();
        }
        assert!(news(&db.client, &mut at).await.lost);
        assert!(news(&db.client, &mut at).await.is_empty(), "and it goes on from there");
        // Its own commits are no news to a broker.
        assert!(
            log::read(&db.client, A, Some((&db.incarnation().await, &Positions::new())))
                .await
                .unwrap()
                .lanes
                .is_empty()
        );
    });
}

#[test]
fn cursors_that_are_free_again_are_told() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        db.push(id, -1, 4).await;
        let g: GroupId = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let version = db.seed(g, Start::All, &[id]).await[0].unwrap().row.version;
        log::join(&db.client, A).await.unwrap();
        log::join(&db.client, B).await.unwrap();
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        let mut at = None;
        news(&db.client, &mut at).await;
        let step = async |version, lease, to, seq| {
            let moves = [cursor_move(id, g, version, lease, to)];
            match store::move_cursors(&db.client, &moves, Line { writer, seq }).await.unwrap().moves[0] {
                CursorOutcome::Moved { version, .. } => version,
                ref other => panic!("{other:?}"),
            }
        };
        let version = step(version, LeaseMust::Over, lease_to(-1, 7, 60, 1), 1).await;
        assert!(news(&db.client, &mut at).await.is_empty(), "a claim frees nothing");
        let version = step(version, LeaseMust::Live, to(1), 2).await;
        let read = news(&db.client, &mut at).await;
        assert_eq!(read.freed, [(id, g, Left::Something)], "two are left");
        assert_eq!(grown(&read), [(id.0, 3)], "with the partition");
        let version = step(version, LeaseMust::Over, lease_to(1, 8, 60, 3), 3).await;
        step(version, LeaseMust::Live, to(3), 4).await;
        let read = news(&db.client, &mut at).await;
        assert_eq!((&read.freed[..], read.lanes.len()), (&[(id, g, Left::Nothing)][..], 0), "nothing is left");
    });
}

#[test]
fn a_commit_whose_line_is_taken_or_whose_writer_is_gone_is_rolled_back() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        push(&db, id, -1, Line { writer, seq: 1 }).await.unwrap();
        let again = push(&db, id, 0, Line { writer, seq: 1 }).await;
        assert!(matches!(again, Err(StoreError::Unavailable(_))), "{again:?}");
        let nobody = push(&db, id, 0, Line { writer: writer + 1000, seq: 1 }).await;
        assert!(matches!(nobody, Err(StoreError::Unavailable(_))), "{nobody:?}");
        // A line that was rolled back is used again: no gap.
        let mut at = None;
        news(&db.client, &mut at).await;
        push(&db, id, 0, Line { writer, seq: 2 }).await.unwrap();
        assert_eq!(grown(&news(&db.client, &mut at).await), [(id.0, 1)]);
    });
}

#[test]
fn changes_of_queues_are_told_with_the_change() {
    on_store(async |db| {
        let tenant = queen_shards::ids::TenantId::DEFAULT;
        log::join(&db.client, B).await.unwrap();
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        let mut at = None;
        news(&db.client, &mut at).await;
        let call = |args| StateCall { function: StateFn::Configure, tenant, args };
        let good = call(serde_json::json!({"queue": "q", "options": {}}));
        store::changing_state(&db.client, &good, Tells::Queue, writer).await.unwrap();
        assert_eq!(news(&db.client, &mut at).await.changed, [(tenant, "q".into())]);
        let bad = call(serde_json::json!({"queue": "q", "options": {"leaseTime": "no number"}}));
        store::changing_state(&db.client, &bad, Tells::Queue, writer).await.unwrap_err();
        assert!(news(&db.client, &mut at).await.is_empty(), "rolled back with the change");
        store::changing_state(&db.client, &good, Tells::Queue, writer).await.unwrap();
        assert_eq!(news(&db.client, &mut at).await.changed.len(), 1);
        store::changing_state(&db.client, &good, Tells::Queue, writer + 1000).await.unwrap_err();
    });
}

/// A redrive of many rows would have every broker read the queue and all its groups anew, row after row.
#[test]
fn a_dead_letter_that_moves_tells_its_partition_and_not_the_queue() {
    on_store(async |db| {
        let tenant = queen_shards::ids::TenantId::DEFAULT;
        let id = db.provision("q", &["p"]).await[0].partition;
        db.push(id, -1, 1).await;
        log::join(&db.client, B).await.unwrap();
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        let mut at = None;
        news(&db.client, &mut at).await;
        let letters = format!(
            "insert into queen.redrives (tenant_id, queue, failed_from, failed_to, rate, dry_run, state, matched)
             values ('{}', 'q', 'epoch', now(), 1, false, 'running', 2);
             insert into queen.dead_letters (queue_id, partition_id, group_name, message_offset, message_id, transaction_id,
                 payload, encrypted, error, retry_count)
             select q.id, {}, 'g', n, gen_random_uuid(), 't' || n, '1', false, 'it failed', 1
             from queen.queues as q, generate_series(0, 1) as n",
            uuid::Uuid::from_u128(tenant.0),
            id.0
        );
        db.client.batch_execute(&letters).await.unwrap();
        let text = async |sql: &str| db.client.query_typed(sql, &[]).await.unwrap()[0].get::<_, String>(0);
        let redrive = text("select id::text from queen.redrives").await;
        for (n, function) in [(0, StateFn::RedriveRow), (1, StateFn::ReplayDeadLetter)] {
            let letter = text(&format!("select id::text from queen.dead_letters where message_offset = {n}")).await;
            let args = serde_json::json!({
                "redrive": redrive, "failedAt": "2020-01-01T00:00:00Z", "id": letter, "queue": "q", "partition": "p", "slot": 0,
                "message": letter, "key": format!("f{n:031x}"),
            });
            let call = StateCall { function, tenant, args };
            let tells = function.tells().unwrap();
            let done = store::changing_state(&db.client, &call, tells, writer).await.unwrap().unwrap();
            assert!(done.contains("moved"), "{done}");
            let read = news(&db.client, &mut at).await;
            assert_eq!((grown(&read), &read.changed[..]), (vec![(id.0, n + 1)], &[][..]), "{function:?}");
            // It is gone now: nothing grew, nobody hears.
            let done = store::changing_state(&db.client, &call, tells, writer).await.unwrap().unwrap();
            assert!(done.contains("gone"), "{done}");
            assert!(news(&db.client, &mut at).await.is_empty());
        }
    });
}

#[test]
fn a_broker_that_ends_takes_its_writers_with_it() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        log::join(&db.client, A).await.unwrap();
        log::join(&db.client, B).await.unwrap();
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        let mut at = None;
        news(&db.client, &mut at).await;
        push(&db, id, -1, Line { writer, seq: 1 }).await.unwrap();
        log::keep(&db.client, A, true).await.unwrap();
        let read = news(&db.client, &mut at).await;
        assert_eq!((read.others, grown(&read)), (0, vec![(id.0, 0)]), "its last words are read");
        db.client
            .batch_execute("update queen.writers set retired_at = retired_at - interval '2 minutes'")
            .await
            .unwrap();
        log::keep(&db.client, B, false).await.unwrap();
        assert!(!news(&db.client, &mut at).await.positions.contains_key(&writer));
        let late = push(&db, id, 0, Line { writer, seq: 2 }).await;
        assert!(matches!(late, Err(StoreError::Unavailable(_))), "a late commit of it fails: {late:?}");
        let rows = db.client.query_typed("select count(*) from queen.commits", &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), 0);
    });
}

#[test]
fn a_commit_without_an_answer_is_settled_once_and_for_all() {
    on_store(async |db| {
        let rows = db.provision("q", &["a", "b"]).await;
        let mut ids: Vec<PartitionId> = rows.iter().map(|row| row.partition).collect();
        ids.sort();
        let writer = log::add_writer(&db.client, A, 0, &db.incarnation().await).await.unwrap();
        // Another writer moved one of the lanes.
        db.push(ids[1], -1, 3).await;
        let ask = one_each(&[(ids[0], -1), (ids[1], -1)], 2);
        let line = Line { writer, seq: 1 };
        let told = store::append(&db.client, &ask, 1, line).await.unwrap();
        let again = store::settle_append(&db.client, &ask, 1, line).await.unwrap().expect("it was written");
        assert_eq!(again.lanes, told.lanes);
        assert_eq!(again.stored, told.stored);
        // Others go on behind it: it is told as it was.
        db.push(ids[0], 1, 1).await;
        let again = store::settle_append(&db.client, &ask, 1, line).await.unwrap().expect("it was written");
        assert_eq!(again.lanes[0], told.lanes[0]);

        // One that is under way is waited for; one that comes after the question fails.
        let slow = db.other().await;
        slow.batch_execute("begin").await.unwrap();
        let next = Line { writer, seq: 2 };
        let ask = one_each(&[(ids[0], 2)], 1);
        store::append(&slow, &ask, 1, next).await.unwrap();
        let asked = store::settle_append(&db.client, &ask, 1, next).await;
        assert!(asked.is_err(), "nobody knows yet: {asked:?}");
        slow.batch_execute("rollback").await.unwrap();
        assert!(store::settle_append(&db.client, &ask, 1, next).await.unwrap().is_none(), "it was rolled back");
        let late = store::append(&slow, &ask, 1, next).await;
        assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
        let rows = db.client.query_typed("select count(*) from queen.segments", &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), 3);
    });
}

/// Rule 12. Another store refuses what was decided on this one: commits by their writer, calls by their condition, also
/// those that would have found nothing.
#[test]
fn another_store_refuses_what_was_decided_on_this_one() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        let here = db.incarnation().await;
        let words: Vec<&str> = here.split('/').collect();
        let [system, timeline, database, started] = words[..] else { panic!("{here}") };
        assert!(system.parse::<i64>().is_ok() && timeline == "1", "{here}");
        let there: Incarnation = format!("{system}/2/{database}/{started}").into();
        let restarted = format!("{system}/{timeline}/{database}/2001-01-01T00:00:00.000000Z").into();
        assert!(log::started_again(&here, &restarted) && !log::started_again(&here, &there));
        let refused =
            |result: Result<(), StoreError>| assert!(matches!(&result, Err(StoreError::Unavailable(_))), "{result:?}");

        let writer = log::add_writer(&db.client, A, 0, &here).await.unwrap();
        refused(log::add_writer(&db.client, A, 0, &there).await.map(drop));
        push(&db, id, -1, Line { writer, seq: 1 }).await.unwrap();
        // As if the ring had come here with a backup: a session that knows its store, and one that has yet to ask.
        let move_to = async |to: &str| {
            db.client.execute("update queen.commits set incarnation = $1", &[&to]).await.unwrap();
        };
        move_to(&there).await;
        refused(push(&db, id, 0, Line { writer, seq: 2 }).await.map(drop));
        let fresh = db.other().await;
        let ask = one_segment(id, 0, 1);
        refused(store::append(&fresh, &ask, 1, Line { writer, seq: 2 }).await.map(drop));
        move_to(&here).await;
        store::append(&fresh, &ask, 1, Line { writer, seq: 2 }).await.unwrap();

        let empty =
            queen_shards::effect::Call::FindQueue { tenant: queen_shards::ids::TenantId::DEFAULT, queue: "no".into() };
        let on = |means: &'static str| store::On { client: &db.client, means: Some(means) };
        let (here, there): (&'static str, &'static str) = (here.to_string().leak(), there.to_string().leak());
        store::call(&on(here), &empty).await.unwrap();
        refused(store::call(&on(there), &empty).await.map(drop));
        let seen = log::read(&db.client, B, Some((&there.into(), &Positions::new()))).await.unwrap();
        assert_eq!(
            (&*seen.incarnation, seen.is_empty(), seen.positions.len()),
            (here, true, 0),
            "it is told, and no more"
        );
    });
}
