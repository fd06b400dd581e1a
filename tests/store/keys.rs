//! The keys of partitions and cursors are unique, and each has its row: the indexes of those tables do not see to it.

use crate::support::*;
use queen::store::{self, Client};
use queen_shards::command::Start;
use queen_shards::effect::{Call, Contact, CursorOutcome, LaneRow, LeaseMust, Reply, StoreError};
use queen_shards::ids::{GroupId, PartitionId};
use queen_shards::place::LaneKey;
use std::cell::Cell;
use tokio_postgres::error::SqlState;

/// Keys that are there twice, rows whose key is not there, and keys without a row: such a key could never be made again.
const WRONG: &str = "
    with partition_rows as (select p.queue_id, p.name from queen.partitions as p),
        partition_keys as (select n.queue_id, n.name from queen.partition_names as n),
        cursor_rows as (select c.partition_id, c.group_id from queen.cursors as c),
        cursor_keys as (select k.partition_id, k.group_id from queen.cursor_keys as k)
    select (select count(*) from (table partition_rows except all table partition_keys) as w)
        + (select count(*) from (table partition_keys except all table partition_rows) as w)
        + (select count(*) from (table cursor_rows except all table cursor_keys) as w)
        + (select count(*) from (table cursor_keys except all table cursor_rows) as w)
        + (select count(*) - count(distinct p.id) from queen.partitions as p)";

/// Takes the schema back to where unique constraints held the keys.
const BEFORE: &str = "
    drop trigger name_partition on queen.partitions;
    drop trigger forget_partition_names on queen.partitions;
    drop trigger key_cursor on queen.cursors;
    drop trigger forget_cursor_keys on queen.cursors;
    drop table queen.partition_names, queen.cursor_keys;
    drop index queen.partitions_by_id, queen.partitions_by_name, queen.cursors_by_key;
    alter table queen.partitions replica identity default,
        add constraint partitions_pk primary key (id), add constraint partitions_name unique (queue_id, name);
    alter table queen.cursors replica identity default, add constraint cursors_pk primary key (partition_id, group_id);
    delete from queen.migrations where version >= 19";

/// Partitions that several sessions make and remove at once.
const NAMES: u64 = 12;

/// One step of a session: makes some of the names and their cursors, or removes some; and may change its mind.
async fn step(client: &Client, group: GroupId, random: &mut Random) {
    let names: Vec<String> = (0..4).map(|_| format!("p{}", random.below(NAMES))).collect();
    client.batch_execute("begin").await.unwrap();
    if random.below(3) == 0 {
        // In the order of all who lock partitions.
        let ids =
            format!("select id from queen.partitions where name in ('{}') order by id for update", names.join("', '"));
        let gone = format!(
            "with gone as ({ids}),
                cursors as (delete from queen.cursors where partition_id in (select id from gone))
            delete from queen.partitions where id in (select id from gone)"
        );
        client.batch_execute(&gone).await.unwrap();
    } else {
        let lanes = names.iter().map(|name| lane("q", name)).collect();
        let rows = lanes_of(store::call(&any(client), &Call::Provision { lanes }).await.unwrap());
        let partitions = rows.iter().flatten().map(|row| row.partition).collect();
        // Where the migration has the table the caller asks again.
        match store::call(&any(client), &Call::SeedCursors { group, start: Start::All, partitions }).await {
            Err(StoreError::Unavailable(_)) => return client.batch_execute("rollback").await.unwrap(),
            seeded => drop(seeded.unwrap()),
        }
    }
    client.batch_execute(if random.below(4) == 0 { "rollback" } else { "commit" }).await.unwrap();
}

fn lanes_of(reply: Reply) -> Vec<Option<LaneRow>> {
    match reply {
        Reply::Lanes(rows) => rows,
        other => panic!("{other:?}"),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn keys_stay_unique_while_sessions_make_and_remove_them_at_once() {
    on_store(async |db| {
        let group = db.group().await;
        let session = async |seed: u64| {
            let (client, mut random) = (db.other().await, Random(seed));
            for _ in 0..150 {
                step(&client, group, &mut random).await;
            }
        };
        futures_util::future::join_all((0..6).map(session)).await;
        assert_eq!(db.number(WRONG).await, 0);
        db.all_can_be_made(group).await;
    });
}

/// Whoever makes a key that another session made, and did not commit yet, waits for it.
#[test]
fn a_key_that_two_sessions_make_is_there_once() {
    on_store(async |db| {
        for (n, end) in ["commit", "rollback"].into_iter().enumerate() {
            let name = format!("p{n}");
            let first = db.other().await;
            first.batch_execute("begin").await.unwrap();
            let lanes = vec![lane("q", &name)];
            store::call(&any(&first), &Call::Provision { lanes }).await.unwrap();
            let watch = db.other().await;
            let waits = "select count(*) from pg_locks where not granted and database =
                (select oid from pg_database where datname = current_database()) or not granted and locktype = 'transactionid'";
            let ends = async {
                until("the second waits", async || {
                    0 < watch.query_typed(waits, &[]).await.unwrap()[0].get::<_, i64>(0)
                })
                .await;
                first.batch_execute(end).await.unwrap();
            };
            let (rows, ()) = futures_util::future::join(db.provision("q", &[&name]), ends).await;
            assert_eq!(rows.len(), 1);
            assert_eq!(db.number(WRONG).await, 0, "{end}");
        }
        assert_eq!(db.number("select count(*) from queen.partitions").await, 2);
    });
}

/// Brokers of before go on while keys get tables of their own.
#[test]
fn keys_of_before_are_taken_over_while_others_make_and_remove_them() {
    on_store(async |db| {
        let group = db.group().await;
        db.provision("q", &["second"]).await;
        db.sql(BEFORE).await;
        // Enough rows that the migration takes a while.
        db.sql(
            "insert into queen.partitions (id, queue_id, name) select n << 12, q.id, 'old' || n
                from queen.queues as q, generate_series(1000000::bigint, 1060000) as n;
            insert into queen.cursors (partition_id, group_id, committed)
                select p.id, g.id, -1 from queen.partitions as p join queen.groups as g on g.queue_id = p.queue_id
                where p.name like 'old%'",
        )
        .await;
        let done = Cell::new(false);
        let session = async |seed: u64| {
            let (client, mut random) = (db.other().await, Random(seed));
            while !done.get() {
                step(&client, group, &mut random).await;
            }
        };
        // Removals that began while a key was copied, and end after that.
        let removal = async |n: u64| {
            let client = db.other().await;
            for id in (n..).step_by(4).take_while(|_| !done.get()) {
                let gone = format!(
                    "begin; delete from queen.cursors where partition_id = {id}::bigint << 12;
                    delete from queen.partitions where id = {id}::bigint << 12; select pg_sleep(0.4); commit"
                );
                client.batch_execute(&gone).await.unwrap();
            }
        };
        // As a broker of before seeks: for as long as the constraint is there it decides.
        let seeks = async {
            let client = db.other().await;
            let seek = "insert into queen.cursors as c (partition_id, group_id, committed)
                select p.id, g.id, -1 from queen.partitions as p join queen.groups as g on g.queue_id = p.queue_id
                where p.name in ('first', 'second')
                on conflict on constraint cursors_pk do update set committed = excluded.committed";
            let mut moved = 0;
            loop {
                match client.execute_typed(seek, &[]).await {
                    Ok(rows) => assert_eq!(rows, 2),
                    Err(error) => break assert_eq!(error.code(), Some(&SqlState::UNDEFINED_OBJECT), "{error:?}"),
                }
                moved += 1;
            }
            assert!(1 < moved, "{moved}");
        };
        let boot = async {
            let facts = store::boot(&db.target, true).await.unwrap();
            done.set(true);
            facts
        };
        let sessions = futures_util::future::join_all((0..2).map(session));
        let removals = futures_util::future::join_all((1_000_000..1_000_004).map(removal));
        let (facts, ..) = futures_util::future::join4(boot, sessions, removals, seeks).await;
        assert!(facts.warnings.is_empty(), "{:?}", facts.warnings);
        assert_eq!(db.number(WRONG).await, 0);
        db.all_can_be_made(group).await;
    });
}

/// Truncated by hand, or restored after their keys, as `pg_dump --data-only` orders the tables: no key stays without its row.
#[test]
fn a_key_without_a_row_is_taken_over_by_one_session() {
    on_store(async |db| {
        let group = db.group().await;
        let made = db.provision("q", &["a", "b"]).await;
        db.seed(group, Start::All, &[made[0].partition]).await;
        db.sql("create table kept as select * from queen.partitions; truncate queen.partitions, queen.cursors").await;
        assert_ne!(db.number(WRONG).await, 0);
        db.sql("insert into queen.partitions select * from kept where name <> 'a'").await;
        let session = async |_| {
            let client = db.other().await;
            let lanes = vec![lane("q", "a")];
            let rows = lanes_of(store::call(&any(&client), &Call::Provision { lanes }).await.unwrap());
            let partition = rows[0].expect("made").partition;
            store::call(&any(&client), &Call::SeedCursors { group, start: Start::All, partitions: vec![partition] })
                .await
                .unwrap();
            partition
        };
        let ids = futures_util::future::join_all((0..6).map(session)).await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(db.number("select count(*) from queen.partitions").await, 3);
        assert_eq!(db.number("select count(*) from queen.cursors").await, 1);
        db.sql("insert into queen.cursors (partition_id, group_id, committed) select partition_id, group_id, -1 from queen.cursor_keys")
            .await;
        assert_eq!(db.number(WRONG).await, 0);
    });
}

/// Numbers come from a sequence, which a restore or a replica may have left behind: no two partitions share one.
#[test]
fn a_number_that_is_there_is_left_out() {
    on_store(async |db| {
        let first = db.provision("q", &["a"]).await[0].partition;
        db.sql("insert into queen.partitions (id, queue_id, name) select id, queue_id, 'b' from queen.partitions")
            .await;
        assert_eq!(db.number("select count(*) from queen.partitions").await, 1);
        assert_eq!(db.number(WRONG).await, 0);
        db.sql("select setval('queen.partition_numbers', 1, false)").await;
        let ask = || Call::Provision { lanes: vec![same_slot("q", "a")] };
        assert_eq!(lanes_of(db.call(ask()).await), [None], "its number is taken");
        let second = lanes_of(db.call(ask()).await)[0].expect("the next number is free").partition;
        assert_ne!(first, second);
        assert_eq!(db.number(WRONG).await, 0);
    });
}

/// A partition whose number differs from that one's by the sequence only.
fn same_slot(queue: &str, partition: &str) -> LaneKey {
    let slot = lane(queue, partition).slot();
    let names = (0..).map(|n| lane(queue, &format!("other{n}")));
    names.into_iter().find(|lane| lane.slot() == slot).expect("one of some 4096")
}

/// Tables without a primary key take no update once a publication names them, unless they say what identifies a row.
#[test]
fn a_publication_of_all_tables_hinders_nothing() {
    on_store(async |db| {
        db.sql("create publication everything for all tables").await;
        let group = db.group().await;
        let id = db.provision("q", &["p"]).await[0].partition;
        db.push(id, -1, 1).await;
        let version = db.seed(group, Start::All, &[id]).await[0].unwrap().row.version;
        let moved = db.move_one(cursor_move(id, group, version, LeaseMust::Any, to(0))).await;
        assert!(matches!(moved, CursorOutcome::Moved { .. }), "{moved:?}");
        db.sql("delete from queen.cursors; delete from queen.partitions").await;
        assert_eq!(db.number(WRONG).await, 0);
    });
}

impl Db {
    async fn group(&self) -> GroupId {
        self.provision("q", &["first"]).await;
        self.open("q", "g", Contact::Pinned).await.expect("a group").group
    }

    /// Whatever was there, and whatever was removed: each of the names can be made, with a cursor.
    async fn all_can_be_made(&self, group: GroupId) {
        let names: Vec<String> = (0..NAMES).map(|n| format!("p{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ids: Vec<PartitionId> = self.provision("q", &names).await.iter().map(|row| row.partition).collect();
        assert!(self.seed(group, Start::All, &ids).await.iter().all(Option::is_some));
        assert_eq!(self.number(WRONG).await, 0);
    }
}
