//! How a pop meets a group: registration, and where cursors start. Source: data plane 4.4.

use crate::support::*;
use queen::store;
use queen_shards::command::{QUEUE_MODE, Start};
use queen_shards::effect::{Call, Contact, Reply};
use queen_shards::ids::{GroupId, Offset, PartitionId, Stamp, TenantId};

/// Partitions with 10 messages each, in two segments, and the stamp of the second segment of the first.
async fn backlog(db: &Db, names: &[&str]) -> (Vec<PartitionId>, Stamp) {
    let ids: Vec<PartitionId> = db.provision("q", names).await.iter().map(|row| row.partition).collect();
    let mut second = Stamp(0);
    for (i, id) in ids.iter().enumerate() {
        db.push(*id, -1, 5).await;
        let stamp = db.push(*id, 4, 5).await;
        if i == 0 {
            second = stamp;
        }
    }
    (ids, second)
}

#[test]
fn a_registration_seeds_every_partition_by_its_mode() {
    on_store(async |db| {
        let (ids, second) = backlog(&db, &["a", "b"]).await;
        // What retention took is not where a group starts.
        db.sql(&format!("update queen.partitions set log_start = 5 where id = {}", ids[1].0)).await;
        for (name, start, first, other) in [
            ("all", Start::All, -1, 4),
            ("new", Start::New, 9, 9),
            ("at", Start::At(second), 4, 4),
            ("just-after", Start::At(Stamp(second.0 + 1)), 9, 4),
            ("ever", Start::At(Stamp(0)), -1, 4),
            ("future", Start::At(Stamp(second.0 + 3_600_000_000)), 9, 9),
        ] {
            let group = db.open("q", name, Contact::Register(start)).await.unwrap();
            assert!(group.registered);
            assert_eq!(db.committed(group.group, ids[0]).await, Some(first), "{name}");
            assert_eq!(db.committed(group.group, ids[1]).await, Some(other), "{name}");
        }
    });
}

#[test]
fn the_record_is_fixed_by_the_first_contact() {
    on_store(async |db| {
        let (ids, _) = backlog(&db, &["a"]).await;
        let first = db.open("q", "g", Contact::Register(Start::New)).await.unwrap();
        let again = db.open("q", "g", Contact::Register(Start::All)).await.unwrap();
        assert!(first.made && !again.made);
        assert_eq!(first, queen_shards::effect::GroupRow { made: true, ..again });
        assert_eq!(db.committed(first.group, ids[0]).await, Some(9));
        assert_eq!(db.number("select count(*) from queen.groups where mode = 'new'").await, 1);
    });
}

/// Data plane 4.10: stored at the first registration, for ever; a pinned pop registers, but makes no queue.
#[test]
fn conflation_is_fixed_by_the_registration() {
    on_store(async |db| {
        let conflating = Contact::PinnedConflating(Start::All);
        assert_eq!(db.open("q", "g", conflating).await, None);
        let (ids, _) = backlog(&db, &["a"]).await;
        let met = db.open("q", "g", Contact::Pinned).await.unwrap();
        assert!(!met.registered && !met.conflation && !met.made);
        let made = db.open("q", "g", conflating).await.unwrap();
        assert!(made.registered && made.conflation && made.made);
        assert_eq!((made.group, db.committed(made.group, ids[0]).await), (met.group, Some(-1)), "seeded everywhere");
        for contact in [conflating, Contact::Register(Start::New), Contact::Pinned] {
            let again = db.open("q", "g", contact).await.unwrap();
            assert!(again.registered && again.conflation && !again.made, "{contact:?}");
        }
        let plain = db.open("q", "plain", Contact::Register(Start::All)).await.unwrap();
        assert!(plain.made && !plain.conflation);
        assert!(!db.open("q", "plain", Contact::RegisterConflating(Start::All)).await.unwrap().conflation);
        assert!(db.open("new", "g", Contact::RegisterConflating(Start::New)).await.unwrap().conflation);
    });
}

#[test]
fn a_wildcard_contact_makes_the_queue_and_a_pinned_one_makes_no_queue_and_no_record() {
    on_store(async |db| {
        assert_eq!(db.open("none", "g", Contact::Pinned).await, None);
        assert_eq!(db.number("select count(*) from queen.queues").await, 0);
        let made = db.open("q", "g", Contact::Register(Start::New)).await.unwrap();
        let mode = db.open("q2", QUEUE_MODE, Contact::QueueMode).await.unwrap();
        assert!(made.registered && !mode.registered);
        let pinned = db.open("q", "h", Contact::Pinned).await.unwrap();
        assert!(!pinned.registered);
        assert_eq!(db.number("select count(*) from queen.groups where mode is not null").await, 1);
        // A later wildcard pop registers what pinned pops met.
        let later = db.open("q", "h", Contact::Register(Start::All)).await.unwrap();
        assert_eq!((later.group, later.registered), (pinned.group, true));
    });
}

#[test]
fn a_contact_of_a_queue_that_was_found_makes_no_queue_and_registers() {
    on_store(async |db| {
        assert_eq!(db.open("none", "g", Contact::Found(Start::All)).await, None);
        assert_eq!(db.number("select count(*) from queen.queues").await, 0);
        let (ids, _) = backlog(&db, &["a", "b"]).await;
        let found = db.open("q", "g", Contact::Found(Start::New)).await.unwrap();
        assert!(found.registered && found.made && !found.conflation);
        assert_eq!(db.committed(found.group, ids[1]).await, Some(9));
        let again = db.open("q", "g", Contact::Register(Start::All)).await.unwrap();
        assert_eq!(found, queen_shards::effect::GroupRow { made: true, ..again });
    });
}

#[test]
fn a_new_group_gets_all_of_a_partition_born_after_its_registration() {
    on_store(async |db| {
        let (old, _) = backlog(&db, &["a"]).await;
        let group = db.open("q", "g", Contact::Register(Start::New)).await.unwrap().group;
        let young = db.provision("q", &["young"]).await[0].partition;
        db.push(young, -1, 3).await;
        // Whatever the clocks say: the message is stamped before the registration.
        db.sql("update queen.segments set created_at = created_at - interval '1 day'").await;
        let rows = db.seed(group, Start::All, &[young, old[0], PartitionId(1)]).await;
        assert_eq!(rows[0].unwrap().row.committed, Offset(-1));
        assert_eq!(rows[0].unwrap().last_offset, Offset(2));
        assert_eq!(rows[1].unwrap().row.committed, Offset(9), "an existing cursor is never seeded again");
        assert!(rows[2].is_none());
    });
}

#[test]
fn a_partition_met_later_starts_by_the_record() {
    on_store(async |db| {
        db.provision("q", &["a"]).await;
        let all = db.open("q", "all", Contact::Register(Start::All)).await.unwrap().group;
        let ahead = Stamp(ping(&db.client).await.unwrap().0 + 3_600_000_000);
        let at = db.open("q", "at", Contact::Register(Start::At(ahead))).await.unwrap().group;
        let young = db.provision("q", &["young"]).await[0].partition;
        db.push(young, -1, 3).await;
        let seeded = |rows: Vec<Option<queen_shards::effect::SeededCursor>>| rows[0].unwrap().row.committed;
        assert_eq!(seeded(db.seed(all, Start::New, &[young]).await), Offset(-1));
        assert_eq!(seeded(db.seed(at, Start::All, &[young]).await), Offset(2), "nothing is stored at the instant yet");
    });
}

#[test]
fn without_a_record_the_pop_says_where_to_start_and_queue_mode_is_always_from_the_oldest() {
    on_store(async |db| {
        let (ids, second) = backlog(&db, &["a"]).await;
        for (name, start, at) in
            [("p1", Start::All, -1), ("p2", Start::New, 9), ("p3", Start::At(second), 4), (QUEUE_MODE, Start::New, -1)]
        {
            let group = db.open("q", name, Contact::Pinned).await.unwrap().group;
            let row = db.seed(group, start, &ids).await[0].unwrap();
            assert_eq!(row.row.committed, Offset(at), "{name}");
            assert_eq!((row.row.retry_count, row.row.lease_left_us, row.row.batch_end), (0, 0, None));
        }
    });
}

/// Provisioning waits for a registration under way and comes after it: the partition is above its high water.
#[test]
fn no_partition_is_born_during_a_registration() {
    on_store(async |db| {
        db.provision("q", &["a"]).await;
        let registrar = db.other().await;
        registrar.batch_execute("begin").await.unwrap();
        let ask = Call::OpenGroup {
            tenant: TenantId::DEFAULT,
            queue: "q".into(),
            group: "g".into(),
            contact: Contact::Register(Start::New),
        };
        let Reply::Group(Some(group)) = store::call(&any(&registrar), &ask).await.unwrap() else { panic!() };
        let other = db.other().await;
        let provision = Call::Provision { lanes: vec![lane("q", "young")] };
        let finish = async {
            let waits =
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
            until("provisioning waits", async || db.number(waits).await == 1).await;
            registrar.batch_execute("commit").await.unwrap();
        };
        let (made, ()) = futures_util::future::join(store::call(&any(&other), &provision), finish).await;
        let Ok(Reply::Lanes(rows)) = made else { panic!("{made:?}") };
        let young = rows[0].unwrap().partition;
        db.push(young, -1, 1).await;
        assert_eq!(db.committed(group.group, young).await, None);
        assert_eq!(db.seed(group.group, Start::New, &[young]).await[0].unwrap().row.committed, Offset(-1));
    });
}

#[test]
fn registrations_and_seeds_that_race_agree() {
    on_store(async |db| {
        let names: Vec<String> = (0..40).map(|i| format!("p{i}")).collect();
        let rows = db.provision("q", &names.iter().map(|n| &**n).collect::<Vec<_>>()).await;
        let ids: Vec<PartitionId> = rows.iter().map(|row| row.partition).collect();
        let work = |reverse: bool| {
            let (target, mut ids) = (db.target.clone(), ids.clone());
            async move {
                let client = connect(&target).await;
                if reverse {
                    ids.reverse();
                }
                for round in 0..20 {
                    let name = format!("g{round}");
                    let contact = if reverse { Contact::Pinned } else { Contact::Register(Start::All) };
                    let ask = Call::OpenGroup {
                        tenant: TenantId::DEFAULT,
                        queue: "q".into(),
                        group: name.as_str().into(),
                        contact,
                    };
                    let Reply::Group(Some(row)) = store::call(&any(&client), &ask).await.unwrap() else { panic!() };
                    let seed = Call::SeedCursors { group: row.group, start: Start::All, partitions: ids.clone() };
                    let Reply::Cursors { rows, .. } = store::call(&any(&client), &seed).await.unwrap() else {
                        panic!()
                    };
                    assert!(rows.iter().all(|row| row.is_some()));
                }
            }
        };
        futures_util::future::join3(work(false), work(true), work(false)).await;
        assert_eq!(db.number("select count(*) from queen.cursors").await, 20 * 40);
        assert_eq!(db.number("select count(*) from queen.groups where mode = 'all'").await, 20);
    });
}

#[test]
fn a_group_that_is_gone_gets_no_cursor() {
    on_store(async |db| {
        let (ids, _) = backlog(&db, &["a"]).await;
        let group = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        db.sql("delete from queen.groups").await;
        assert!(db.seed(group, Start::All, &ids).await[0].is_none());
        assert_eq!(db.number("select count(*) from queen.cursors").await, 0);
    });
}

/// Partitions past which a registration makes no cursors. Source: migrations/functions/commit/open_group.sql.
const SEEDS_MAX: usize = 10_000;

/// A large queue: `old` with ten messages, `idle` with five, and too many empty ones; the stamp of the second five of `old`.
async fn large(db: &Db) -> (PartitionId, PartitionId, Stamp) {
    let (ids, second) = backlog(db, &["old"]).await;
    let idle = db.provision("q", &["idle"]).await[0].partition;
    db.push(idle, -1, 5).await;
    db.sql(&format!(
        "insert into queen.partitions (id, queue_id, name)
        select nextval('queen.partition_numbers') << 12 | i % 4096, q.id, 'e' || i
        from queen.queues as q cross join generate_series(1, {SEEDS_MAX}) as i where q.name = 'q'"
    ))
    .await;
    (ids[0], idle, second)
}

/// All pages: one ends after some time.
async fn scanned(db: &Db, group: GroupId) -> Vec<PartitionId> {
    let queue = db.provision("q", &["old"]).await[0].queue.id;
    let (mut found, mut next) = (Vec::new(), Some(PartitionId(0)));
    while let Some(after) = next {
        let ask = Call::Scan { queue, group, shard: 0, shards: 1, after, limit: 100, look: 2 * SEEDS_MAX as u32 };
        let Reply::Scanned { rows, next: then, .. } = db.call(ask).await else { panic!() };
        found.extend(rows.iter().map(|row| row.partition));
        next = then;
    }
    found
}

/// What the eager registration of a small queue promises holds of a large one, whose cursors are made when they are needed.
#[test]
fn a_registration_on_a_large_queue_makes_no_cursors_and_starts_where_it_would() {
    on_store(async |db| {
        let (old, idle, second) = large(&db).await;
        let ahead = Stamp(ping(&db.client).await.unwrap().0 + 3_600_000_000);
        let starts = [
            ("all", Start::All, -1, -1),
            ("new", Start::New, 9, 4),
            ("at", Start::At(second), 4, -1),
            ("ahead", Start::At(ahead), 9, 4),
        ];
        let mut groups = Vec::new();
        for (name, start, ..) in starts {
            groups.push(db.open("q", name, Contact::Register(start)).await.unwrap().group);
        }
        assert_eq!(db.number("select count(*) from queen.cursors").await, 0);
        assert_eq!(scanned(&db, groups[0]).await, [old, idle]);
        assert!(scanned(&db, groups[1]).await.is_empty());
        assert!(scanned(&db, groups[3]).await.is_empty());

        // A timestamp that is rewritten is for partitions met afterwards, not for those that are there.
        db.sql(
            "select queen.update_subscription('00000000-0000-0000-0000-000000000001',
            '{\"group\":\"new\",\"timestamp\":\"2000-01-01T00:00:00Z\"}')",
        )
        .await;
        db.push(old, 9, 3).await;
        let young = db.provision("q", &["young"]).await[0].partition;
        db.push(young, -1, 2).await;
        assert_eq!(scanned(&db, groups[1]).await, [old, young]);
        assert_eq!(scanned(&db, groups[3]).await, [old]);
        for (i, (name, _, first, other)) in starts.into_iter().enumerate() {
            let rows = db.seed(groups[i], Start::All, &[old, idle]).await;
            assert_eq!(rows[0].unwrap().row.committed, Offset(first), "{name}");
            assert_eq!(rows[1].unwrap().row.committed, Offset(other), "{name}");
        }
    });
}

/// An ack without a lease finds the cursor that a registration would have made, and only that one.
#[test]
fn an_ack_finds_the_cursor_that_a_large_registration_left_to_be_made() {
    on_store(async |db| {
        let (old, idle, _) = large(&db).await;
        let group = db.open("q", "new", Contact::Register(Start::New)).await.unwrap().group;
        let late = db.open("q", "late", Contact::Register(Start::All)).await.unwrap().group;
        let young = db.provision("q", &["young"]).await[0].partition;
        let find = async |cursors: &[(PartitionId, &str)]| {
            let cursors = cursors.iter().map(|(partition, group)| (*partition, (*group).into())).collect();
            let Reply::FoundCursors(found) = db.call(Call::FindCursors { cursors }).await else { panic!() };
            found.into_iter().map(|found| found.map(|(group, row)| (group, row.committed))).collect::<Vec<_>>()
        };
        let several =
            [(young, "new"), (old, "late"), (idle, "new"), (PartitionId(1), "new"), (old, "none"), (old, "new")];
        let want = [None, Some((late, Offset(-1))), Some((group, Offset(4))), None, None, Some((group, Offset(9)))];
        assert_eq!(find(&several).await, want);
        assert_eq!(db.number("select count(*) from queen.cursors").await, 3);

        // What is there is read without a lock, whoever holds the group.
        let holder = db.other().await;
        holder.batch_execute("begin; select from queen.groups for update").await.unwrap();
        db.sql("set lock_timeout = '1s'").await;
        assert_eq!(find(&several).await, want);
        holder.batch_execute("rollback").await.unwrap();
    });
}

/// A partition where a group has no cursor yet is spared for that group as one where it has.
#[test]
fn a_registration_on_a_large_queue_spares_its_partitions() {
    on_store(async |db| {
        large(&db).await;
        db.sql("update queen.partitions set created_at = 'epoch', last_created_at = 'epoch' where name like 'e%'")
            .await;
        let step = "select (queen.cleanup_partitions('00000000-0000-0000-0000-000000000001',
            '{\"days\":30,\"slice\":20000,\"limit\":100}')->>'removed')";
        db.open("q", "new", Contact::Register(Start::New)).await.unwrap();
        assert_eq!(db.number(&format!("({step})::bigint")).await, 0);
        // One that was born after the registration is none of its partitions.
        let mark = db.number("select high_water from queen.groups").await;
        db.sql("update queen.groups set high_water = (select max(id >> 12) - 1 from queen.partitions where name like 'e%')").await;
        db.sql("delete from queen.system_state where key = 'cleanup_after'").await;
        let whole = step.replace("100", "20000");
        assert_eq!(db.number(&format!("({whole})::bigint")).await, 1);
        db.sql(&format!("update queen.groups set high_water = {mark}")).await;
        db.sql("delete from queen.system_state where key = 'cleanup_after'").await;
        db.sql("update queen.groups set registered_at = clock_timestamp() - interval '31 days'").await;
        assert_eq!(db.number(&format!("({step})::bigint")).await, 100);
    });
}

/// Counts, retention and a deletion see cursors that are still to be made as if they were there.
#[test]
fn what_counts_and_what_removes_sees_the_cursors_of_a_large_registration() {
    on_store(async |db| {
        let (old, idle, _) = large(&db).await;
        let tenant = "00000000-0000-0000-0000-000000000001";
        db.open("q", "new", Contact::Register(Start::New)).await.unwrap();
        let groups = format!("select queen.list_groups('{tenant}', '{{\"limit\":10,\"probes\":10}}')->0->>");
        let partitions = SEEDS_MAX as i64 + 2;
        assert_eq!(db.number(&format!("select ({groups}'partitionCursors')::bigint")).await, partitions);
        assert_eq!(db.number(&format!("select ({groups}'totalLag')::bigint")).await, 0);
        let pending = "select sum(pending)::bigint from queen.partition_counts(array(select id from queen.queues))";
        assert_eq!(db.number(pending).await, 0);
        let pending_old = format!("select pending from queen.counts_of(array[{}])", old.0);
        assert_eq!(db.number(&pending_old).await, 0);
        let completed = format!("select count(*) from queen.message_standing({}, 9) where status = 'completed'", old.0);
        assert_eq!(db.number(&completed).await, 1);
        db.push(old, 9, 3).await;
        assert_eq!(db.number(&format!("select ({groups}'totalLag')::bigint")).await, 3);
        assert_eq!((db.number(pending).await, db.number(&pending_old).await), (3, 3));
        let depth = "select sum(pending)::bigint from queen.group_depth(
            (select id from queen.queues), (select id from queen.groups), null)";
        db.sql("begin; set local track_functions = 'all'").await;
        assert_eq!(db.number(depth).await, 3);
        // Of ten thousand partitions one was written to since.
        let searched = "select sum(calls) from pg_stat_xact_user_functions where funcname = 'offset_before'";
        assert_eq!(db.number(searched).await, 1);
        db.sql("rollback").await;

        // A message lists the groups that it counts.
        for (offset, consumed) in [(9, 1), (10, 0)] {
            let message = format!(
                "select queen.get_message('{tenant}', json_build_object('partition', s.partition_id, 'key',
                encode(substr(s.keys, 1 + 16 * ({offset} - s.base_offset)::integer, 16), 'hex'))::jsonb)
                from queen.segments as s where s.partition_id = {} and {offset} between s.base_offset and s.base_offset + s.count - 1",
                old.0
            );
            assert_eq!(db.number(&format!("({message})->>'groupsCount'")).await, 1);
            assert_eq!(db.number(&format!("json_array_length(({message})->'groups')")).await, 1);
            let said = format!("(({message})->'groups'->0->>'consumed')::boolean::integer");
            assert_eq!(db.number(&said).await, consumed, "{offset}");
        }

        // Retention of completed messages takes what the group passes by, and leaves what it wants.
        db.sql(
            "update queen.queues set retention_enabled = true, completed_retention_seconds = 1;
            update queen.segments set created_at = created_at - interval '10 minutes' where base_offset < 10",
        )
        .await;
        db.sql(&format!(
            "insert into queen.retention_marks (partition_id, look_at)
            select i, clock_timestamp() from unnest(array[{}, {}]::bigint[]) as i",
            old.0, idle.0
        ))
        .await;
        let step = format!("select queen.retain_step('{tenant}', '{{\"limit\":100,\"periodMs\":1000}}')");
        for _ in 0..12 {
            db.sql(&step).await;
        }
        let starts =
            |partition: PartitionId| format!("select log_start from queen.partitions where id = {}", partition.0);
        assert_eq!(db.number(&starts(old)).await, 10);
        assert_eq!(db.number(&starts(idle)).await, 5);

        let deleted = format!(
            "select (queen.delete_group('{tenant}', '{{\"group\":\"new\",\"metadata\":false}}')->>'deleted')::bigint"
        );
        assert_eq!(db.number(&deleted).await, partitions);
        assert_eq!(db.number("select count(*) from queen.groups where seed_at is null and mode = 'new'").await, 1);
    });
}
