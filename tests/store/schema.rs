//! The schema apply. Source: operations 7.6, 8.1, 8.4.

use crate::support::*;
use queen::store::sql_files::MIGRATIONS;
use queen::store::{self, BootError, Target};
use std::process::Command;
use std::time::{Duration, Instant};

fn refusal(result: Result<store::StoreFacts, BootError>) -> String {
    match result {
        Err(BootError::Unfit(text)) if !text.contains('\n') => text,
        other => panic!("{other:?}"),
    }
}

/// What `pg_dump` says about the schema, functions (their files are the truth) and comments left out.
fn dump(database: &str) -> String {
    let cluster = cluster();
    let out = Command::new(cluster.bin_dir.join("pg_dump"))
        .args(["--schema-only", "--no-owner", "--no-privileges", "-U", "queen", "-n", "queen", "-h"])
        .arg(&cluster.socket_dir)
        .arg(database)
        .output()
        .expect("run pg_dump");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let blocks = text.split("\n--\n-- Name: ").skip(1).filter(|block| !block.contains("; Type: FUNCTION;"));
    let mut kept = String::new();
    for block in blocks {
        let body = block.split_once("\n--\n").map_or("", |(_, body)| body);
        let body = body.split("\n--\n-- PostgreSQL database dump complete").next().unwrap_or("");
        let lines = body.lines().filter(|line| !line.starts_with("SET ") && !line.starts_with('\\'));
        kept.push_str(lines.collect::<Vec<_>>().join("\n").trim());
        kept.push_str("\n\n");
    }
    kept
}

fn name_of(target: &Target) -> String {
    target.to_string().rsplit('/').next().unwrap().to_owned()
}

/// Compares with `migrations/schema.golden.sql`; run with QUEEN_WRITE_GOLDEN=1 to write it anew.
#[test]
fn applying_twice_gives_the_golden_schema_and_the_same_secret() {
    on_store(async |db| {
        let first = dump(&name_of(&db.target));
        let again = store::boot(&db.target, true).await.unwrap();
        assert_eq!(again.hash_secret, db.facts.hash_secret);
        assert_ne!(again.hash_secret, [0; 16]);
        assert!(again.warnings.is_empty());
        // As if nothing were recorded: everything runs again on what is there.
        db.sql("delete from queen.migrations; delete from queen.functions").await;
        assert_eq!(store::boot(&db.target, true).await.unwrap().hash_secret, db.facts.hash_secret);
        assert_eq!(dump(&name_of(&db.target)), first);
        let path = in_repository("migrations/schema.golden.sql");
        if std::env::var_os("QUEEN_WRITE_GOLDEN").is_some() {
            // At once: other tests read it meanwhile.
            let whole = path.with_extension("new");
            std::fs::write(&whole, &first).unwrap();
            std::fs::rename(&whole, &path).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        assert!(golden == first, "the schema is not {}; QUEEN_WRITE_GOLDEN=1 writes it", path.display());
    });
}

/// A broker that is killed between two statements of a migration, wherever it was, hinders nobody: the next one begins the
/// file again.
#[test]
fn a_migration_that_was_cut_off_anywhere_is_applied_again() {
    let target = empty_database("");
    run(async move {
        let client = connect(&target).await;
        let own = "create schema queen;
            create table queen.migrations (version integer not null, name text not null,
                applied_at timestamptz not null default clock_timestamp(), constraint migrations_pk primary key (version));
            create table queen.functions (name text not null, checksum text not null,
                applied_at timestamptz not null default clock_timestamp(), constraint functions_pk primary key (name))";
        client.batch_execute(own).await.unwrap();
        for file in MIGRATIONS {
            let statements = file.statements();
            for cut in 1..=statements.len() {
                for statement in &statements[..cut] {
                    let done = client.batch_execute(statement).await;
                    done.unwrap_or_else(|e| panic!("{} after a cut: {e:?}\n{statement}", file.name));
                }
            }
            let record =
                format!("insert into queen.migrations (version, name) values ({}, '{}')", file.version(), file.name);
            client.batch_execute(&record).await.unwrap();
        }
        store::boot(&target, true).await.unwrap();
        let golden = std::fs::read_to_string(in_repository("migrations/schema.golden.sql")).unwrap();
        assert_eq!(dump(&name_of(&target)), golden);
    });
}

/// An index whose build was cut off is there and of no use: it is built anew.
#[test]
fn an_index_that_was_cut_off_while_it_was_built_is_built_again() {
    on_store(async |db| {
        let before = dump(&name_of(&db.target));
        for (version, index, meanwhile) in [
            (14, "partitions_of_queue", "partitions_of_queue_new"),
            (19, "partitions_by_name", "partitions_by_name"),
            (20, "partitions_of_queue", "partitions_of_queue_new"),
        ] {
            if index != meanwhile {
                db.sql(&format!("alter index queen.{index} rename to {meanwhile}")).await;
            }
            db.sql(&format!(
                "delete from queen.migrations where version >= {version};
                update pg_index set indisvalid = false where indexrelid = 'queen.{meanwhile}'::regclass"
            ))
            .await;
            let facts = store::boot(&db.target, true).await.unwrap();
            assert!(facts.warnings.is_empty(), "{:?}", facts.warnings);
            assert_eq!(dump(&name_of(&db.target)), before, "{version}");
        }
    });
}

#[test]
fn several_brokers_boot_at_once_on_an_empty_database() {
    let target = empty_database("");
    let boots: Vec<_> = (0..4)
        .map(|_| {
            let target = target.clone();
            std::thread::spawn(move || run(async move { store::boot(&target, true).await.unwrap().hash_secret }))
        })
        .collect();
    let secrets: Vec<[u8; 16]> = boots.into_iter().map(|boot| boot.join().unwrap()).collect();
    assert!(secrets.iter().all(|secret| *secret == secrets[0]));
}

#[test]
fn a_schema_that_is_up_to_date_takes_no_lock() {
    on_store(async |db| {
        let holder = db.other().await;
        holder.batch_execute("select pg_advisory_lock(778120010)").await.unwrap();
        queen::rt::timeout(PATIENCE, store::boot(&db.target, true)).await.expect("no wait").unwrap();
        queen::rt::timeout(PATIENCE, store::boot(&db.target, false)).await.expect("no wait").unwrap();
    });
}

#[test]
fn an_apply_waits_for_the_session_lock_of_another_broker() {
    let target = empty_database("");
    run(async move {
        let holder = connect(&target).await;
        holder.batch_execute("select pg_advisory_lock(778120010)").await.unwrap();
        let free = async {
            queen::rt::sleep(Duration::from_millis(300)).await;
            let made = holder.query_typed("select to_regnamespace('queen') is null", &[]).await.unwrap();
            assert!(made[0].get::<_, bool>(0), "nothing is made without the lock");
            holder.batch_execute("select pg_advisory_unlock(778120010)").await.unwrap();
        };
        let (done, ()) = futures_util::future::join(store::boot(&target, true), free).await;
        done.unwrap();
    });
}

#[test]
fn a_statement_that_finds_no_lock_is_tried_again() {
    on_store(async |db| {
        db.sql("delete from queen.migrations").await;
        let holder = db.other().await;
        holder.batch_execute("begin; select from queen.segments").await.unwrap();
        let free = async {
            let waits = "select count(*) from pg_locks where not granted and database =
                (select oid from pg_database where datname = current_database())";
            // The first try waits, gives up, and the next one waits again.
            for _ in 0..2 {
                until("the apply waits", async || db.number(waits).await == 1).await;
                until("the apply gives up", async || db.number(waits).await == 0).await;
            }
            holder.batch_execute("commit").await.unwrap();
        };
        let (done, ()) = futures_util::future::join(store::boot(&db.target, true), free).await;
        done.unwrap();
    });
}

/// A database whose owner is a role with these settings, a target for that role, and the schema in it but for the last files.
async fn of_a_role(name: &str, settings: &[&str]) -> Target {
    let admin = connect(&cluster().target).await;
    for sql in [format!("create role {name} login"), format!("create database {name} owner {name}")] {
        admin.batch_execute(&sql).await.unwrap();
    }
    let target = Target::socket(&cluster().socket_dir, 5432, name, name);
    store::boot(&target, true).await.unwrap();
    connect(&target).await.batch_execute("delete from queen.migrations where version >= 20").await.unwrap();
    for setting in settings {
        admin.batch_execute(&format!("alter role {name} {setting}")).await.unwrap();
    }
    alone(name).await;
    target
}

/// Waits until a role has no sessions.
async fn alone(role: &str) {
    let admin = connect(&cluster().target).await;
    let sql = format!("select from pg_stat_activity where usename = '{role}'");
    until("its sessions end", async || admin.query_typed(&sql, &[]).await.unwrap().is_empty()).await;
}

/// Boots while a snapshot is held for two seconds, which an index that is built beside the traffic waits for.
async fn boot_beside_a_snapshot(target: &Target) -> Result<store::StoreFacts, BootError> {
    let holder = connect(&cluster().target.clone().database(&name_of(target))).await;
    holder.batch_execute("begin isolation level repeatable read; select from queen.partitions").await.unwrap();
    let free = async {
        queen::rt::sleep(Duration::from_secs(2)).await;
        holder.batch_execute("commit").await.unwrap();
    };
    futures_util::future::join(store::boot(target, true), free).await.0
}

#[test]
fn an_index_is_built_however_long_it_takes_whatever_time_outs_the_role_has() {
    run(async {
        let settings = ["set statement_timeout = '500ms'", "set lock_timeout = '400ms'"];
        let target = of_a_role("hurried", &settings).await;
        assert_eq!(boot_beside_a_snapshot(&target).await.unwrap().warnings, Vec::<String>::new());
    });
}

/// Where no connection can be had that is without them, as behind a pooler.
#[test]
fn a_build_that_meets_a_statement_timeout_is_refused_with_file_and_statement() {
    run(async {
        let settings = ["connection limit 2", "set statement_timeout = '500ms'"];
        let target = of_a_role("cut_off", &settings).await;
        let text = refusal(boot_beside_a_snapshot(&target).await);
        let begins = "schema apply failed: 0020_index_per_question.sql at \"create index concurrently";
        assert!(text.starts_with(begins) && text.contains("statement timeout"), "{text}");
        // The next start begins the file again.
        alone("cut_off").await;
        assert_eq!(store::boot(&target, true).await.unwrap().warnings, Vec::<String>::new());
    });
}

#[test]
fn a_build_that_meets_a_lock_timeout_is_begun_anew() {
    run(async {
        let target = of_a_role("locked_out", &["connection limit 2", "set lock_timeout = '200ms'"]).await;
        assert_eq!(boot_beside_a_snapshot(&target).await.unwrap().warnings, Vec::<String>::new());
    });
}

/// Pushes of other brokers queue behind a statement that waits for a strong lock.
#[test]
fn traffic_passes_most_of_the_time_while_the_apply_waits_for_a_lock() {
    on_store(async |db| {
        db.sql("delete from queen.migrations").await;
        let (holder, other) = (db.other().await, db.other().await);
        holder.batch_execute("begin; select from queen.segments").await.unwrap();
        let traffic = async {
            let waits = "select count(*) from pg_locks where not granted and database =
                (select oid from pg_database where datname = current_database())";
            until("the apply waits", async || db.number(waits).await == 1).await;
            let (begun, mut waited, mut longest) = (Instant::now(), Duration::ZERO, Duration::ZERO);
            while begun.elapsed() < Duration::from_secs(8) {
                let asked = Instant::now();
                let push = "begin; lock table queen.segments in row exclusive mode; commit";
                other.batch_execute(push).await.unwrap();
                waited += asked.elapsed();
                longest = longest.max(asked.elapsed());
                queen::rt::sleep(Duration::from_millis(10)).await;
            }
            holder.batch_execute("commit").await.unwrap();
            (waited.as_secs_f64() / begun.elapsed().as_secs_f64(), longest)
        };
        let (done, (share, longest)) = futures_util::future::join(store::boot(&db.target, true), traffic).await;
        done.unwrap();
        println!("waited {:.0} % of the time, at most {longest:?}", share * 100.0);
        assert!(share < 0.6, "traffic waited {share:.2} of the time");
    });
}

#[test]
fn changed_functions_are_applied_and_unchanged_ones_are_left_alone() {
    on_store(async |db| {
        let old = "update queen.functions set checksum = 'old' where name = 'scan'";
        db.sql("drop function queen.scan").await;
        db.sql(old).await;
        let stamps = "select count(distinct applied_at) from queen.functions";
        let before = db.number("select xmin::text::bigint from queen.functions where name = 'append'").await;
        store::boot(&db.target, true).await.unwrap();
        assert!(1 < db.number(stamps).await);
        assert_eq!(db.number("select count(*) from pg_proc where proname = 'scan'").await, 1);
        assert_eq!(db.number("select xmin::text::bigint from queen.functions where name = 'append'").await, before);
    });
}

#[test]
fn what_will_not_do_is_refused_in_one_line_and_left_as_it_is() {
    let foreign = empty_database("");
    run(async move {
        connect(&foreign).await.batch_execute("create schema queen; create table queen.jobs (id int)").await.unwrap();
        assert!(refusal(store::boot(&foreign, true).await).contains("did not make"));
        let tables = connect(&foreign)
            .await
            .query_typed(
                "select count(*) from pg_class
            where relnamespace = 'queen'::regnamespace",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(tables[0].get::<_, i64>(0), 1);
    });
    on_store(async |db| {
        db.sql("insert into queen.migrations (version, name) values (9999, 'from the future')").await;
        let text = refusal(store::boot(&db.target, true).await);
        assert!(text.contains("version 9999"), "{text}");
    });
    let latin = empty_database("encoding 'LATIN1' locale 'C' template template0");
    run(async move {
        let text = refusal(store::boot(&latin, true).await);
        assert!(text.contains("LATIN1") && text.contains("encoding 'UTF8'"), "{text}");
    });
    let strict = empty_database("");
    run(async move {
        let sql = format!("alter database {} set default_transaction_isolation to 'serializable'", name_of(&strict));
        connect(&strict).await.batch_execute(&sql).await.unwrap();
        assert!(refusal(store::boot(&strict, true).await).contains("read committed"));
    });
    let bare = empty_database("");
    run(async move {
        assert!(refusal(store::boot(&bare, false).await).contains("QUEEN_APPLY_SCHEMA"));
        // An empty schema that an operator made in advance is fine.
        connect(&bare).await.batch_execute("create schema queen").await.unwrap();
        store::boot(&bare, true).await.unwrap();
    });
}

#[test]
fn a_server_that_is_away_or_read_only_is_waited_for() {
    run(async {
        let nowhere = Target::socket("/nonexistent".as_ref(), 5432, "queen", "postgres");
        assert!(matches!(store::boot(&nowhere, true).await, Err(BootError::Wait(_))));
    });
    let standby = empty_database("");
    run(async move {
        let sql = format!("alter database {} set default_transaction_read_only to on", name_of(&standby));
        connect(&standby).await.batch_execute(&sql).await.unwrap();
        assert!(matches!(store::boot(&standby, true).await, Err(BootError::Wait(_))));
    });
}

#[test]
fn commits_are_synchronous_whatever_the_default() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        db.push(p, -1, 1).await;
        for (default, inside) in
            [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
        {
            let last = db.number("select max(last_offset) from queen.partitions").await;
            db.sql(&format!("set synchronous_commit = {default}; begin")).await;
            db.push(p, last, 1).await;
            let shown = db.client.query_typed("select current_setting('synchronous_commit')", &[]).await.unwrap();
            assert_eq!(shown[0].get::<_, &str>(0), inside, "{default}");
            db.sql("commit").await;
        }
    });
}

/// A broker that runs meanwhile calls functions that call each other: it must not meet a new one beside an old one.
#[test]
fn functions_change_all_at_once() {
    on_store(async |db| {
        db.sql("update queen.functions set checksum = 'of an older binary' where name in ('find_lanes', 'provision', 'append')")
            .await;
        store::boot(&db.target, true).await.unwrap();
        // That statement was one transaction as well.
        let old = "select count(*) from queen.functions where checksum = 'of an older binary'";
        assert_eq!(db.number(old).await, 0, "all of them are new");
        let changed = "from queen.functions where xmin = (select xmin from queen.functions where name = 'provision')";
        assert_eq!(db.number(&format!("select count(*) {changed}")).await, 3, "three functions, one transaction");
    });
}
