//! The plans of the statements inside the functions, on tables of a realistic size: nothing is scanned whole, and
//! nothing is joined row by row with rows that have no index. Source: architecture 4.

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

/// A queue of 20,000 partitions with 3 segments of 10 messages each, and a cursor each of one group; and one of a single partition with
/// many segments.
const FILL: &str = "
    insert into queen.queues (tenant_id, name) values ('00000000-0000-0000-0000-000000000001', 'q');
    insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
        select i << 12 | (i * 7919 % 4096), q.id, 'p' || i, 29, clock_timestamp()
        from generate_series(1, 20000) as i, queen.queues as q;
    insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
        select p.id, 10 * i, 10, clock_timestamp(), 0, 1, 400, '\\x00', '\\x00'
        from queen.partitions as p, generate_series(0, 2) as i;
    insert into queen.groups (queue_id, name) select id, '__QUEUE_MODE__' from queen.queues;
    insert into queen.cursors (partition_id, group_id, committed)
        select p.id, g.id, 19 from queen.partitions as p, queen.groups as g;
    insert into queen.queues (tenant_id, name) values ('00000000-0000-0000-0000-000000000001', 'long');
    insert into queen.partitions (id, queue_id, name, last_offset, last_created_at)
        select 30000 << 12, q.id, 'p', 4999, clock_timestamp() from queen.queues as q where q.name = 'long';
    insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
        select 30000 << 12, i, 1, clock_timestamp(), 0, 1, 400, '\\x00', '\\x00' from generate_series(0, 4999) as i";

struct Plans {
    client: std::rc::Rc<Client>,
    pid: i32,
    log: File,
    wrong: Vec<String>,
}

impl Plans {
    async fn new(db: &Db) -> Plans {
        let client = db.other().await;
        client.batch_execute(EXPLAIN).await.unwrap();
        let pid = client.query_typed("select pg_backend_pid()", &[]).await.unwrap()[0].get(0);
        Plans { client, pid, log: File::open(&cluster().log).unwrap(), wrong: Vec::new() }
    }

    /// Runs something and judges every plan that this session logged meanwhile.
    async fn of<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        self.judged(what, fault, work).await
    }

    /// The same of what does a part of a long list, and must not read the rest of it.
    async fn of_page<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        self.judged(what, |plan| fault(plan).or_else(|| waste(plan)), work).await
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
        let mut plans = 0;
        for entry in entries(&text, self.pid).filter(|entry| entry.contains("  plan:")) {
            plans += 1;
            if let Some(why) = judge(&entry) {
                self.wrong.push(format!("{what}: {why}\n{entry}"));
            }
        }
        assert!(1 < plans, "{what}: {plans} plans were logged");
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
        let rows = line.trim().strip_prefix("Rows Removed by Filter: ").and_then(|rows| rows.parse::<u64>().ok());
        rows.is_some_and(|rows| 1000 < rows)
    };
    plan.lines().find(removed).map(str::to_owned)
}

async fn judge_all(db: &Db, round: u8) {
    let mut plans = Plans::new(db).await;
    let client = plans.client.clone();
    let lanes: Vec<(PartitionId, i64)> = {
        let sql = "select id, last_offset from queen.partitions where id >> 12 between 100 and 19000 order by id";
        let rows = client.query_typed(sql, &[]).await.unwrap();
        rows.iter().step_by(rows.len() / WIDTH).take(WIDTH).map(|row| (PartitionId(row.get(0)), row.get(1))).collect()
    };
    let spread: Vec<PartitionId> = lanes.iter().map(|(id, _)| *id).collect();
    let group = GroupId(db.number("select id from queen.groups where name = '__QUEUE_MODE__'").await);
    let queue = client.query_typed("select id from queen.queues where name = 'q'", &[]).await.unwrap();
    let queue = QueueId(queue[0].get::<_, uuid::Uuid>(0).as_u128());

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
    let keys: Vec<_> = (0..WIDTH).map(|i| lane("q", &format!("p{}", 150 * i + 1))).collect();
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
        ("find_lanes", Call::FindLane { lane: lane("q", "p77") }),
        ("find_queue", Call::FindQueue { tenant, queue: "q".into() }),
        ("find_partitions", Call::FindPartitions { tenant, ids: spread.clone() }),
        ("open_group queue mode", open("q", QUEUE_MODE, Contact::QueueMode)),
        ("open_group pinned", open("q", "h", Contact::Pinned)),
        ("open_group new queue", open(&format!("other{round}"), "g", Contact::Register(at))),
        (
            "scan",
            Call::Scan { queue, group, shard: 1, shards: 3, after: PartitionId(5_000 << 12), limit: 100, look: 500 },
        ),
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
    let parts = lanes.iter().map(|(id, last)| BundleLane {
        draft: Draft {
            lane: lane("q", "p"),
            count: 1,
            keys: (id.0 as u128).to_le_bytes().to_vec().into(),
            all_minted: false,
            frames: vec![b'f'; 40].into(),
            packed: None,
            flags: 0,
        },
        partition: Some(*id),
        verified: Offset(if id.0 % 2 == 0 { *last } else { last + 10 }),
        confirm: false,
    });
    let bundles: Vec<_> = parts
        .zip(&moves)
        .map(|(lane, it)| Arc::new(Bundle { store: 0, lanes: vec![lane], moves: vec![it.clone()] }))
        .collect();
    plans.of("bundle", store::bundle(&client, &bundles, 1, Line::NONE)).await.unwrap();

    // A page of a large queue, which the job counts: the last one of a walk.
    let page = format!(
        "select queen.count_page(jsonb_populate_record(null::queen.count_walks, '{}'), '{{{}}}', null, 10)",
        format_args!(r#"{{"queue_id": "{}", "next": 1, "groups": [{}]}}"#, uuid::Uuid::from_u128(queue.0), group.0),
        spread.iter().map(|p| p.0.to_string()).collect::<Vec<_>>().join(",")
    );
    plans.of_page("count_page", client.query_typed(&page, &[])).await.unwrap();
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
    plans.of_page("measure_retained", client.query_typed(&slice, &[])).await.unwrap();
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
    assert!(plans.wrong.is_empty(), "{} plans: {}", plans.wrong.len(), plans.wrong.join("\n\n"));
}

/// What a vacuum leaves behind that finds the tables empty, and what they are until the next one: statistics of nothing.
const EMPTY_STATISTICS: &str = "
    update pg_class set reltuples = 0, relpages = greatest(relpages, 1)
        where relnamespace = 'queen'::regnamespace and relkind in ('r', 'i');
    delete from pg_statistic using pg_class as c
        where c.oid = starelid and c.relnamespace = 'queen'::regnamespace";

#[test]
fn no_call_scans_a_table_or_joins_row_by_row() {
    on_store(async |db| {
        db.sql(FILL).await;
        judge_all(&db, 0).await; // As a young database without statistics.
        db.sql("analyze").await;
        judge_all(&db, 1).await;
        // Plans outlive the moment that they were made for: a queue fills up behind them.
        db.sql(EMPTY_STATISTICS).await;
        judge_all(&db, 2).await;
    });
}

/// All hot updates stay on their page: no index is touched. Source: architecture 7.
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
