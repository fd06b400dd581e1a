//! The plans of the statements inside the functions, on tables of a realistic size: nothing is scanned whole, and
//! nothing is joined row by row with rows that have no index. Source: architecture (Statements).

use crate::support::*;
use queen::store::log;
use queen::store::{self, Client};
use queen_shards::bundle::{Bundle, BundleLane};
use queen_shards::command::{Draft, QUEUE_MODE, Start};
use queen_shards::effect::{Append, Call, Contact, LeaseMust};
use queen_shards::ids::{GroupId, Offset, PartitionId, QueueId, Stamp, TenantId};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// Lanes of a commit.
const WIDTH: usize = 64;

/// Logs the plan of every statement in functions, with what each node really did.
const EXPLAIN: &str = "load 'auto_explain';
    set auto_explain.log_min_duration = 0;
    set auto_explain.log_nested_statements = on;
    set auto_explain.log_analyze = on;
    set auto_explain.log_timing = off";

/// A queue of 20,000 partitions with 3 segments of 10 messages each, and a cursor each of one group; one of a single partition, the
/// last one, with many segments; with sealed runs; one with 2,000 groups; and 2,000 queues with nothing. Of all that those whose number `i` is meant.
fn fill(i: &str) -> String {
    format!(
        "insert into queen.queues (tenant_id, name)
            select '00000000-0000-0000-0000-000000000001', name from unnest('{{q, long, crowded}}'::text[]) as name
            on conflict do nothing;
        insert into queen.queues (tenant_id, name)
            select '00000000-0000-0000-0000-000000000001', 'idle' || i from generate_series(1, 2000) as i where {i};
        insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
            select i << 12 | (i * 7919 % 4096), q.id, 'p' || i, 29, clock_timestamp()
            from generate_series(1, 20000) as i, queen.queues as q where q.name = 'q' and {i};
        insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
            select p.id, 10 * n, 10, clock_timestamp(), 0, 1, 400, '\\x00', '\\x00'
            from generate_series(1, 20000) as i, generate_series(0, 2) as n, queen.partitions as p
            where p.name = 'p' || i and {i};
        insert into queen.groups (queue_id, name)
            select id, '__QUEUE_MODE__' from queen.queues where name = 'q' on conflict do nothing;
        insert into queen.groups (queue_id, name)
            select id, 'g' || i from queen.queues, generate_series(1, 2000) as i where name = 'crowded' and {i};
        insert into queen.cursors (partition_id, group_id, committed)
            select p.id, g.id, 19 from generate_series(1, 20000) as i, queen.partitions as p, queen.groups as g
            where p.name = 'p' || i and g.queue_id = p.queue_id and g.name = '__QUEUE_MODE__' and {i};
        insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
            select case q.name when 'long' then 30000 else 30001 end << 12, q.id, 'p', 4999, clock_timestamp()
            from queen.queues as q where q.name in ('long', 'crowded') on conflict do nothing;
        insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
            select 30000 << 12, i, 1, clock_timestamp(), 0, 1, 400, '\\x00', '\\x00' from generate_series(0, 4999) as i
            on conflict do nothing;
        insert into queen.window_runs (partition_id, base_offset, last_offset, row_no, newest, bytes)
            select 30000 << 12, i, i, -1, clock_timestamp(), '\\x00' from generate_series(1, 2000) as i where {i}"
    )
}

struct Plans {
    client: std::rc::Rc<Client>,
    pid: i32,
    log: File,
    plans: Vec<String>,
    wrong: Vec<String>,
}

impl Plans {
    async fn new(db: &Db) -> Plans {
        let client = db.other().await;
        client.batch_execute(EXPLAIN).await.unwrap();
        let pid = client.query_typed("select pg_backend_pid()", &[]).await.unwrap()[0].get(0);
        Plans { client, pid, log: File::open(&cluster().log).unwrap(), plans: Vec::new(), wrong: Vec::new() }
    }

    /// Runs something and judges every plan that this session logged meanwhile.
    async fn of<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        self.judged(what, |plan| fault(plan).or_else(|| waste(plan)), work).await
    }

    /// The same of SQL that means the partitions of one queue among many: it finds them by this index.
    async fn of_pages(&mut self, what: &str, index: &str, sql: &str) {
        let client = self.client.clone();
        let before = self.plans.len();
        self.judged(what, fault_in_partitions, client.query_typed(sql, &[])).await.unwrap();
        if !self.plans[before..].iter().any(|plan| plan.contains(index)) {
            self.wrong.push(format!("{what}: without {index}\n{}", self.plans[before..].join("\n")));
        }
    }

    #[track_caller]
    fn are_right(&self) {
        assert!(self.wrong.is_empty(), "{} plans: {}", self.wrong.len(), self.wrong.join("\n\n"));
    }

    async fn judged<T>(
        &mut self,
        what: &str,
        judge: impl Fn(&str) -> Option<String>,
        work: impl Future<Output = T>,
    ) -> T {
        self.log.seek(SeekFrom::End(0)).unwrap();
        let done = work.await;
        let mut text = String::new();
        self.log.read_to_string(&mut text).unwrap();
        let before = self.plans.len();
        self.plans.extend(entries(&text, self.pid).filter(|entry| entry.contains("  plan:")));
        let plans = &self.plans[before..];
        assert!(1 < plans.len(), "{what}: {} plans were logged", plans.len());
        for plan in plans {
            if let Some(why) = judge(plan) {
                self.wrong.push(format!("{what}: {why}\n{plan}"));
            }
        }
        done
    }
}

/// The log's entries of one process: a line with its number, and the indented ones that follow.
fn entries(text: &str, pid: i32) -> impl Iterator<Item = String> {
    let mut found: Vec<String> = Vec::new();
    let mut ours = false;
    for line in text.lines() {
        match line.starts_with('\t') {
            true if ours => found.last_mut().expect("an entry").push_str(&format!("\n{line}")),
            true => {}
            false => {
                ours = line.contains(&format!("[{pid}]"));
                if ours {
                    found.push(line.to_owned());
                }
            }
        }
    }
    found.into_iter()
}

/// What is wrong with a plan: a scan of a whole table, or rows without an index read once per row of others.
fn fault(plan: &str) -> Option<String> {
    for line in plan.lines() {
        let node = line.trim_start_matches(['\t', ' ', '-', '>']);
        if node.contains("Seq Scan on") || node.starts_with("Merge Join") {
            return Some(node.to_owned());
        }
        let number = |of: &str| {
            node.split(of).nth(1).map_or(0, |rest| rest.split([' ', ')']).next().unwrap().parse().unwrap_or(0u64))
        };
        let (rows, loops) = (number("actual rows="), number("loops="));
        // A series is made for one row of another list: it is no list that is searched again and again.
        let list =
            node.starts_with("CTE Scan") || node.starts_with("Function Scan") && !node.contains("generate_series");
        if list && 1 < loops && 10 * WIDTH as u64 <= rows * loops {
            return Some(node.to_owned());
        }
        // An index scan without a condition on the index reads the whole table as well.
        if 1000 < rows && node.contains("Scan") {
            return Some(node.to_owned());
        }
    }
    None
}

/// What reads more than it needs: rows that an index leads to only for them to be thrown away.
fn waste(plan: &str) -> Option<String> {
    let removed = |line: &&str| {
        let rows = line.trim().strip_prefix("Rows Removed by ").and_then(|rest| rest.split(": ").nth(1));
        rows.and_then(|rows| rows.parse::<u64>().ok()).is_some_and(|rows| 1000 < rows)
    };
    plan.lines().find(removed).map(str::to_owned)
}

/// Both, but only where partitions are read: pages read the whole of small tables.
fn fault_in_partitions(plan: &str) -> Option<String> {
    let mut here = false;
    plan.lines().find_map(|line| {
        if line.contains("(cost=") {
            here = line.contains(" on partitions");
        }
        if here { fault(line).or_else(|| waste(line)) } else { None }
    })
}

/// Runs every call, in the session of `plans`.
async fn judge_all(db: &Db, plans: &mut Plans, round: u8) {
    let client = plans.client.clone();
    let lanes: Vec<(PartitionId, i64)> = {
        let sql = "select id, last_offset from queen.partitions 
            where id >> 12 between 100 and 19000 and name ~ '^p[0-9]' order by id";
        let rows = client.query_typed(sql, &[]).await.unwrap();
        rows.iter().step_by(rows.len() / WIDTH).take(WIDTH).map(|row| (PartitionId(row.get(0)), row.get(1))).collect()
    };
    let spread: Vec<PartitionId> = lanes.iter().map(|(id, _)| *id).collect();
    let group = GroupId(
        db.number(
            "select g.id from queen.groups as g join queen.queues as q
        on q.id = g.queue_id where q.name = 'q' and g.name = '__QUEUE_MODE__'",
        )
        .await,
    );
    let queue = async |name| {
        let sql = format!("select id from queen.queues where name = '{name}'");
        QueueId(client.query_typed(&sql, &[]).await.unwrap()[0].get::<_, uuid::Uuid>(0).as_u128())
    };
    let (queue, long) = (queue("q").await, queue("long").await);

    let ask: Append = one_each(&lanes, 10);
    let outcome = plans.of("append", append(&client, &ask)).await.unwrap();
    assert!(outcome.lanes.iter().all(|l| matches!(l, queen_shards::effect::LaneOutcome::Appended { .. })));
    plans.of("append moved", append(&client, &ask)).await.unwrap();

    let seed = |start| Call::SeedCursors { group, start, partitions: spread.clone() };
    let rows = plans.of("seed_cursors", store::call(&any(&client), &seed(Start::All))).await.unwrap();
    let queen_shards::effect::Reply::Cursors { rows, .. } = rows else { panic!() };
    let moves: Vec<_> = spread
        .iter()
        .zip(rows)
        .map(|(p, row)| cursor_move(*p, group, row.unwrap().row.version, LeaseMust::Any, lease_to(19, 1, 60, 29)))
        .collect();
    plans.of("move_cursors", store::move_cursors(&client, &moves, Line::NONE)).await.unwrap();
    plans.of("move_cursors stale", store::move_cursors(&client, &moves, Line::NONE)).await.unwrap();

    let (tenant, p) = (TenantId::DEFAULT, spread[WIDTH / 2]);
    let keys: Vec<_> = (0..WIDTH).map(|i| lane("q", &format!("p{}", 100 * (i + 1)))).collect();
    let fresh: Vec<_> = (0..WIDTH).map(|i| lane("q", &format!("fresh{round}-{i}"))).collect();
    let at = Start::At(Stamp(1_800_000_000_000_000));
    let read_keys = |newest_first, since| Call::ReadKeys {
        partition: p,
        from: Offset(5),
        to: Offset(25),
        since,
        limit: 10,
        newest_first,
    };
    let open = |queue: &str, group: &str, contact| Call::OpenGroup {
        tenant,
        queue: queue.into(),
        group: group.into(),
        contact,
    };
    for (what, ask) in [
        ("provision", Call::Provision { lanes: fresh }),
        ("provision again", Call::Provision { lanes: keys }),
        ("find_lanes", Call::FindLane { lane: lane("q", "p700") }),
        ("find_queue", Call::FindQueue { tenant, queue: "q".into() }),
        ("find_partitions", Call::FindPartitions { tenant, ids: spread.clone() }),
        ("open_group queue mode", open("q", QUEUE_MODE, Contact::QueueMode)),
        ("open_group pinned", open("q", "h", Contact::Pinned)),
        ("open_group new queue", open(&format!("other{round}"), "g", Contact::Register(at))),
        (
            "scan",
            Call::Scan { queue, group, shard: 1, shards: 3, after: PartitionId(5_000 << 12), limit: 100, look: 500 },
        ),
        (
            "scan of one among many",
            Call::Scan { queue: long, group, shard: 0, shards: 3, after: PartitionId(0), limit: 100, look: 500 },
        ),
        ("open_group among many", open("crowded", "g700", Contact::Pinned)),
        ("open_group new group", open("long", &format!("g{round}"), Contact::Register(at))),
        ("find_cursors among many", Call::FindCursors { cursors: vec![(PartitionId(30001 << 12), "g700".into())] }),
        ("find_cursors", Call::FindCursors { cursors: vec![(p, QUEUE_MODE.into())] }),
        ("read_keys", read_keys(false, None)),
        ("read_keys newest", read_keys(true, Some(Stamp(0)))),
        ("read_newest", Call::ReadNewest { partition: p, to: Offset(25), not_after: Stamp(1 << 50) }),
        ("read_records", Call::ReadRecords { partition: p, from: Offset(5), to: Offset(25), bytes: 9, messages: 9 }),
    ] {
        plans.of(what, store::call(&any(&client), &ask)).await.unwrap();
    }

    let waiting = Append { wait: true, ..one_segment(p, lanes[WIDTH / 2].1, 1) };
    plans.of("append_waiting", append(&client, &waiting)).await.unwrap();
    // Half of the lanes moved since they were verified: those are judged in SQL.
    let part = |lane, partition: Option<PartitionId>, verified| BundleLane {
        draft: Draft {
            lane,
            count: 1,
            keys: partition.map_or(0, |id| id.0 as u128).to_le_bytes().to_vec().into(),
            all_minted: false,
            frames: vec![b'f'; 40].into(),
            packed: None,
            flags: 0,
        },
        partition,
        verified,
        confirm: false,
    };
    let parts = lanes
        .iter()
        .map(|(id, last)| part(lane("q", "p"), Some(*id), Offset(if id.0 % 2 == 0 { *last } else { last + 10 })));
    let bundles: Vec<_> = parts
        .zip(&moves)
        .map(|(lane, it)| Arc::new(Bundle { store: 0, lanes: vec![lane], moves: vec![it.clone()] }))
        .collect();
    plans.of("bundle", store::bundle(&client, &bundles, 1, Line::NONE)).await.unwrap();
    // One makes a partition, one a queue that is gone again because its cursor has moved.
    let made = vec![part(lane("q", &format!("made{round}")), None, Offset::NONE)];
    let unmade = vec![part(lane("never", "p"), None, Offset::NONE)];
    let makes = [(made, vec![]), (unmade, vec![moves[0].clone()])];
    let makes = makes.map(|(lanes, moves)| Arc::new(Bundle { store: 0, lanes, moves }));
    let outcome = plans.of("bundle makes", store::bundle(&client, &makes, 1, Line::NONE)).await.unwrap();
    assert_eq!(outcome.bundles.iter().map(|it| it.committed()).collect::<Vec<_>>(), [true, false]);

    for runs in [
        "read_run_rows(30000 << 12, '{700, 800}', '{700, 800}', '{-1, -1}')",
        "drop_runs(30000 << 12, '{900}', '{900}')",
    ] {
        plans.of(runs, client.query_typed(&format!("select queen.{runs}"), &[])).await.unwrap();
    }

    // A page of a large queue, which the job counts: the last one of a walk.
    let page = format!(
        "select queen.count_page(jsonb_populate_record(null::queen.count_walks, '{}'), '{{{}}}', null, 10)",
        format_args!(r#"{{"queue_id": "{}", "next": 1, "groups": [{}]}}"#, uuid::Uuid::from_u128(queue.0), group.0),
        spread.iter().map(|p| p.0.to_string()).collect::<Vec<_>>().join(",")
    );
    let judge = |plan: &str| fault(plan).or_else(|| fault_in_partitions(plan));
    plans.judged("count_page", judge, client.query_typed(&page, &[])).await.unwrap();
    // A slice of a partition that takes many of them, from its middle.
    db.sql(
        "insert into queen.measure_walks (queue_id, partition_id, next_offset)
            select q.id, 30000 << 12, 1000 from queen.queues as q where q.name = 'long'
            on conflict on constraint measure_walks_pk do update set next_offset = 1000, segments = 0",
    )
    .await;
    let long =
        client.query_typed("select queue_id from queen.measure_walks", &[]).await.unwrap()[0].get::<_, uuid::Uuid>(0);
    let slice =
        format!(r#"select queen.measure_retained(null, '{{"page": 50000, "messages": 100, "walk": "{long}"}}')"#);
    plans.of("measure_retained", client.query_typed(&slice, &[])).await.unwrap();
    let measured = "select segments * 10000 + next_offset from queen.measure_walks";
    assert_eq!(db.number(measured).await, 100 * 10_000 + 1100);

    let here = db.incarnation().await;
    let [a, b] = [1, 2].map(|n| u128::from(round) << 8 | n);
    log::join(&client, a).await.unwrap();
    log::join(&client, b).await.unwrap();
    let writer = log::add_writer(&client, a, 0, &here).await.unwrap();
    let begun = log::read(&client, b, None).await.unwrap().positions;
    for seq in 1..=3 {
        store::append(&client, &ask, 1, Line { writer, seq }).await.unwrap();
    }
    let read = plans.of("read_log", log::read(&client, b, Some((&here, &begun)))).await.unwrap().positions;
    assert!(plans.of("read_log without news", log::read(&client, b, Some((&here, &read)))).await.unwrap().is_empty());
    plans.of("settle_append", store::settle_append(&client, &ask, 1, Line { writer, seq: 3 })).await.unwrap();
    // An outcome that the rows no longer tell is an outcome as well.
    let _ = plans.of("settle_moves", store::settle_moves(&client, &moves, Line { writer, seq: 3 })).await;
    let _ = plans.of("settle_bundle", store::settle_bundle(&client, &bundles, 1, Line { writer, seq: 3 })).await;
    let _ = plans.of("settle_bundle makes", store::settle_bundle(&client, &makes, 1, Line { writer, seq: 3 })).await;
}

/// Jobs, pages and management of one queue with a single partition, where others have many. `known`: statistics tell that.
async fn judge_pages(db: &Db, plans: &mut Plans, round: u8, known: bool) {
    db.sql(&format!(
        "delete from queen.queue_counts; delete from queen.group_counts; delete from queen.retention_queues;
        update queen.queues set retention_enabled = true, retention_seconds = 100000 where name = 'long';
        insert into queen.queues (tenant_id, name) values ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'gone{round}');
        insert into queen.partitions (id, queue_id, name)
            select (31000 + {round}) << 12, id, 'p' from queen.queues where name = 'gone{round}'"
    ))
    .await;
    let before = db
        .client
        .query_typed(
            "select coalesce((select p.id from queen.queues as p where p.id < q.id order by p.id desc limit 1),
                '00000000-0000-0000-0000-000000000000') from queen.queues as q where q.name = 'long'",
            &[],
        )
        .await
        .unwrap()[0]
        .get::<_, uuid::Uuid>(0);
    let (long, listed) = (r#""queue": "long""#, r#""limit": 9, "offset": 0, "scan": 99, "partitions": 9, "bytes": 99"#);
    let one = r#""queue": "q", "partition": "p700""#;
    let group = format!(r#"{long}, "group": "g{round}""#);
    let sought = format!(r#""group": "s{round}", "toEnd": true"#);
    let claimed = format!(r#""lease": "{}", "partition": {}, "more": true"#, uuid::Uuid::nil(), 30000 << 12);
    // Partitions and cursors of whole queues, joined as statistics tell: nothing keeps these plans.
    let joins = [
        ("extend_lease", BY_ID, format!(r#"{claimed}, "seconds": 9"#)), // No index knows a lease: it may begin with cursors.
        ("get_group", OF_QUEUE, format!(r#""group": "g{round}", "limit": 9"#)),
        ("get_queue", BY_NAME, format!(r#"{long}, "limit": 9"#)),
        ("list_partitions", OF_QUEUE, format!(r#"{long}, "limit": 9"#)),
        ("queue_depth", BY_NAME, format!(r#"{long}, "limit": 9"#)),
        ("queue_depth", OF_QUEUE, format!(r#"{group}, "limit": 9"#)),
        ("seek_group", OF_QUEUE, format!("{long}, {sought}")),
        ("delete_group", OF_QUEUE, format!(r#"{long}, "group": "s{round}", "metadata": true"#)),
    ];
    let pages = [
        ("changed_partitions", OF_QUEUE, format!(r#""entries": [{{{long}, "after": 0, "limit": 10}}]"#)),
        ("cleanup_partitions", BY_ID, r#""days": 7, "slice": 100, "limit": 10"#.to_owned()),
        ("fetch", BY_NAME, format!(r#""entries": [{{{one}, "offset": 5, "maxBytes": 9}}], "bytes": 9"#)),
        ("seek_group", BY_NAME, format!("{one}, {sought}")),
        ("list_messages", OF_QUEUE, format!("{long}, {listed}")),
        ("list_messages", BY_NAME, format!("{one}, {listed}")),
        ("mark_partitions", OF_QUEUE, r#""limit": 99, "periodMs": 1"#.to_owned()),
        ("count_queue", OF_QUEUE, format!(r#""after": "{before}", "page": 99, "ranks": 9"#)),
        ("get_queue", OF_QUEUE, format!(r#"{long}, "limit": 9"#)), // It was counted.
        ("drop_queue", OF_QUEUE, r#""limit": 9"#.to_owned()),
        ("drop_queue", OF_QUEUE, r#""limit": 9"#.to_owned()),
    ];
    for (function, index, args) in joins.into_iter().filter(|_| known).chain(pages) {
        let sql = format!("select queen.{function}('00000000-0000-0000-0000-000000000001', '{{{args}}}')");
        plans.of_pages(&format!("{function} {args}"), index, &sql).await;
    }
    assert_eq!(db.number("select count(*) from queen.queues where name like 'gone%'").await, 0);
}

const BY_ID: &str = "partitions_by_id";
const BY_NAME: &str = "partitions_by_name";
const OF_QUEUE: &str = "partitions_of_queue";

/// What a vacuum leaves behind that finds the tables empty, and what they are until the next one: statistics of nothing.
const EMPTY_STATISTICS: &str = "
    update pg_class set reltuples = 0, relpages = greatest(relpages, 1)
        where relnamespace = 'queen'::regnamespace and relkind in ('r', 'i');
    delete from pg_statistic using pg_class as c
        where c.oid = starelid and c.relnamespace = 'queen'::regnamespace";

#[test]
fn no_call_scans_a_table_or_joins_row_by_row() {
    on_store(async |db| {
        db.sql(&fill("true")).await;
        // As a young database without statistics, then with them. Then plans outlive the moment that they were made for: a queue fills
        // up behind them.
        for (round, statistics) in ["", "analyze", EMPTY_STATISTICS].into_iter().enumerate() {
            db.sql(statistics).await;
            let mut plans = Plans::new(&db).await;
            judge_all(&db, &mut plans, round as u8).await;
            judge_pages(&db, &mut plans, round as u8, statistics != EMPTY_STATISTICS).await;
            plans.are_right();
        }
    });
}

/// Functions keep the plans of their first calls, and those may come when next to nothing is there.
#[test]
fn a_plan_made_on_empty_tables_serves_when_they_are_full() {
    for statistics in ["", EMPTY_STATISTICS] {
        on_store(async move |db| {
            db.sql(
                "do $$ declare t text; begin
                    for t in select relname from pg_class where relnamespace = 'queen'::regnamespace and relkind = 'r' loop
                        execute format('alter table queen.%I set (autovacuum_enabled = off)', t);
                    end loop;
                end $$",
            )
            .await;
            db.sql("vacuum analyze").await;
            db.sql(&fill("i % 100 = 0")).await;
            db.sql(statistics).await;
            let mut plans = Plans::new(&db).await;
            judge_all(&db, &mut plans, 0).await;
            plans.wrong.clear(); // Small tables may be read whole.
            db.sql(&fill("i % 100 <> 0")).await;
            judge_all(&db, &mut plans, 1).await;
            judge_pages(&db, &mut plans, 1, false).await;
            plans.are_right();
        });
    }
}

/// All hot updates stay on their page: no index is touched.
#[test]
fn pushes_and_moves_are_hot_updates() {
    on_store(async |db| {
        let (p, mut last) = (db.provision("q", &["a"]).await[0].partition, -1);
        let g = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let mut version = db.seed(g, Start::All, &[p]).await[0].unwrap().row.version;
        for _ in 0..300 {
            db.push(p, last, 1).await;
            last += 1;
            let outcome = db.move_one(cursor_move(p, g, version, LeaseMust::Any, lease_to(last, 9, 60, last))).await;
            let queen_shards::effect::CursorOutcome::Moved { version: next, .. } = outcome else { panic!() };
            version = next;
        }
        let hot = "select sum(100 * n_tup_hot_upd / nullif(n_tup_upd, 0)) from pg_stat_user_tables
            where relname in ('partitions', 'cursors')";
        // Statistics are sent when a session is idle for a moment.
        db.sql("select pg_stat_force_next_flush()").await;
        assert!(195 <= db.number(&hot.replace("sum(", "sum(1.0 * ")).await, "of each table almost all updates are HOT");
    });
}
