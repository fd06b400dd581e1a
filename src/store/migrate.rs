//! The database at boot: checked, brought to this binary's schema, and the facts that the broker needs of it.
//!
//!     boot: server fit? -> schema ours, and not newer? -> nothing to do
//!                                                      -> lock -> migrations -> functions -> secret -> facts
//!
//! Holds: one broker applies at a time; every statement of a migration is a transaction of its own, all functions are one;
//! live traffic of other brokers queues behind a statement that waits for a lock a quarter of a second at first, two at most,
//! and no more than a quarter of the time; an index that is built beside the traffic waits without limit, which hinders
//! nobody, and says for whom; running it again does nothing; what is not ours is never altered. Never kills a session.

use crate::rt::{self, Either};
use crate::store::client::{Client, run};
use crate::store::connect::{Conn, Target, pause};
use crate::store::failure::{Nature, judge};
use crate::store::sql_files::{FUNCTIONS, MIGRATIONS, SqlFile, newest};
use crate::telemetry::log::Gate;
use queen_shards::effect::StoreError;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

/// The advisory lock of an apply; every broker that ever applied this schema uses it. Source: operations 8.4.
const LOCK_KEY: i64 = 778_120_010;
/// Between two tries for it.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Longest wait for another broker's apply; longer than an apply retries (RETRY_MAX) for one stuck statement.
const APPLY_WAIT_MAX: Duration = Duration::from_secs(600);
/// How long a statement waits for a lock at first: everybody who comes later queues behind it. Twice as long each time.
const LOCK_WAIT_FIRST: Duration = Duration::from_millis(250);
/// And at last, or where nobody queues: longer than PostgreSQL takes to send a vacuum away (deadlock_timeout, 1 s). Source:
/// operations 8.4.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a statement that finds no lock is tried again. Source: operations 8.4.
const RETRY_MAX: Duration = Duration::from_secs(180);
/// The pause between tries is so many waits, and up to one more at random: whoever queued is served meanwhile.
const RETRY_PAUSE_WAITS: f64 = 3.0;
/// A statement that takes longer says so, and what it waits for; how often it does.
const LONG: Duration = Duration::from_secs(10);
static LONG_TOLD: Gate = Gate::new(60_000);
/// Oldest PostgreSQL. Source: operations 8.1.
const OLDEST_SERVER: i32 = 150_000;

/// What the broker needs to know of its database.
#[derive(Clone, Debug)]
pub struct StoreFacts {
    /// Key of the dedup hash; drawn once for the life of the database.
    pub hash_secret: [u8; 16],
    /// As `server_version` says it.
    pub server_version: String,
    /// Connections an ordinary role can have, of all clients together.
    pub connections_max: u32,
    /// What an operator should look at; one line each.
    pub warnings: Vec<String>,
}

/// Why the broker cannot use this database.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BootError {
    /// It is away, or busy with something that passes: wait and try again.
    #[error(transparent)]
    Wait(#[from] StoreError),
    /// It answered, and it will not do. One line that names the remedy.
    #[error("{0}")]
    Unfit(String),
}

/// Checks the server, applies the schema unless told not to, and reads the facts.
///
/// Up to four connections to `target` while it applies: one holds the lock in an open transaction, so that it works through a
/// transaction-mode pooler and ends with the connection, whatever happens to the broker; one has no time-outs, and applies,
/// where it can be had; and one looks for what holds up a statement that takes long.
///
/// Source: operations 1.2 row 4, 7.6, 8.1, 8.4.
pub async fn boot(target: &Target, apply: bool) -> Result<StoreFacts, BootError> {
    let conn = Conn::new(target.clone(), "queen boot");
    let client = conn.get().await?;
    check_server(&client).await?;
    match (standing(&client).await?, apply) {
        (Standing::Foreign, _) => {
            return Err(unfit(
                "the database has a schema \"queen\" that this product did not make; \
                name another database (PG_DATABASE), or rename that schema",
            ));
        }
        (Standing::Absent, false) => {
            return Err(unfit("the schema is not there and QUEEN_APPLY_SCHEMA is off; apply it once with it on"));
        }
        (Standing::Ours { version }, _) if newest() < version => {
            return Err(unfit(&format!(
                "the database has schema version {version}, this binary knows {}; run the newer binary",
                newest()
            )));
        }
        (Standing::Ours { .. }, false) => {
            crate::info!("boot", "the schema is not looked at: QUEEN_APPLY_SCHEMA is off");
        }
        (standing, true) => {
            if !is_current(&client, standing).await? {
                apply_all(target, &client).await?;
            }
        }
    }
    facts(&client).await
}

/// What stands in schema `queen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing, or a schema without anything in it.
    Absent,
    Ours {
        version: i32,
    },
    Foreign,
}

/// Whether this server can hold the store at all. Source: operations 8.1.
pub async fn check_server(client: &Client) -> Result<(), BootError> {
    let rows = ask(
        client,
        "select current_setting('server_version_num')::integer, current_setting('server_version'),
            current_setting('server_encoding'), current_setting('default_transaction_isolation'),
            pg_is_in_recovery() or current_setting('transaction_read_only')::boolean, current_database()::text",
    )
    .await?;
    let row = first(&rows)?;
    let (number, name): (i32, &str) = (row.get(0), row.get(1));
    let (encoding, isolation, read_only, database): (&str, &str, bool, &str) =
        (row.get(2), row.get(3), row.get(4), row.get(5));
    if number < OLDEST_SERVER {
        return Err(unfit(&format!("PostgreSQL {name} is too old; 15 or newer is needed")));
    }
    if encoding != "UTF8" {
        return Err(unfit(&format!(
            "database \"{database}\" has encoding {encoding}; one with UTF8 is needed: \
            create database {database}_utf8 encoding 'UTF8' template template0"
        )));
    }
    if isolation != "read committed" {
        return Err(unfit(&format!(
            "default_transaction_isolation is \"{isolation}\"; the broker needs read committed: \
            alter database \"{database}\" set default_transaction_isolation to 'read committed'"
        )));
    }
    if read_only {
        return Err(StoreError::Unavailable("the server is read-only".into()).into());
    }
    Ok(())
}

async fn standing(client: &Client) -> Result<Standing, BootError> {
    let rows = ask(
        client,
        "select to_regclass('queen.migrations') is not null,
            exists (select from pg_class as c where c.relnamespace = n.oid)
                or exists (select from pg_proc as p where p.pronamespace = n.oid)
        from pg_namespace as n where n.nspname = 'queen'",
    )
    .await?;
    Ok(match rows.first().map(|row| (row.get(0), row.get(1))) {
        None | Some((false, false)) => Standing::Absent,
        Some((false, true)) => Standing::Foreign,
        Some((true, _)) => {
            let rows = ask(client, "select coalesce(max(version), 0) from queen.migrations").await?;
            Standing::Ours { version: first(&rows)?.get(0) }
        }
    })
}

/// Whether schema, functions and secret are as this binary brings them: then no lock is taken.
async fn is_current(client: &Client, standing: Standing) -> Result<bool, BootError> {
    if standing != (Standing::Ours { version: newest() }) {
        return Ok(false);
    }
    let installed = installed(client).await?;
    let secret = ask(client, "select from queen.system_state where key = 'hash_secret'").await?;
    Ok(!secret.is_empty() && FUNCTIONS.iter().all(|f| installed.get(f.name) == Some(&f.checksum())))
}

/// Checksums of the functions in the database.
async fn installed(client: &Client) -> Result<HashMap<String, String>, BootError> {
    let rows = ask(client, "select name, checksum from queen.functions").await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn apply_all(target: &Target, client: &Client) -> Result<(), BootError> {
    let lock = Conn::new(target.clone(), "queen schema lock");
    let holder = lock.get().await?;
    take_lock(&holder).await?;
    // A pooler takes no such options: there the role's time-outs hold, and a statement that meets one is refused.
    let patient = Conn::new(target.clone().without_timeouts(), "queen schema").get().await;
    let client = patient.as_deref().unwrap_or(client);
    let done = match Apply::new(target, client).await {
        Ok(apply) => apply_locked(&apply).await,
        Err(error) => Err(error),
    };
    // Closing the connection would do; this frees the lock before the answer.
    let _ = holder.batch_execute("rollback").await;
    done
}

async fn take_lock(holder: &Rc<Client>) -> Result<(), BootError> {
    let begun = Instant::now();
    loop {
        send(holder, "begin; set local idle_in_transaction_session_timeout = 0").await?;
        let rows = ask(holder, &format!("select pg_try_advisory_xact_lock({LOCK_KEY})")).await?;
        if first(&rows)?.get(0) {
            // Closes that question, whose snapshot would stay as long as the lock: an index that is built concurrently waits
            // for all older snapshots, and so would wait for us.
            return send(holder, "select").await;
        }
        send(holder, "rollback").await?;
        if APPLY_WAIT_MAX < begun.elapsed() {
            let text = "another broker has been applying the schema for ten minutes";
            return Err(StoreError::Unavailable(text.into()).into());
        }
        pause(LOCK_POLL).await;
    }
}

/// What an apply runs on.
struct Apply<'a> {
    client: &'a Client,
    /// Its session. Behind a pooler perhaps another one by now, which is told of then.
    pid: i32,
    /// Looks at the sessions while `client` waits. Not the lock's: a transaction that has looked would be waited for itself.
    watch: Conn,
}

impl<'a> Apply<'a> {
    async fn new(target: &Target, client: &'a Client) -> Result<Apply<'a>, BootError> {
        let pid = first(&ask(client, "select pg_backend_pid()").await?)?.get(0);
        Ok(Apply { client, pid, watch: Conn::new(target.clone(), "queen schema watch") })
    }

    /// Waits for a statement, and tells now and then whom it waits for.
    async fn watched<T>(&self, file: &SqlFile, sql: &str, done: impl Future<Output = T>) -> T {
        match rt::race(done, self.tell(file, sql)).await {
            Either::Left(done) => done,
            Either::Right(never) => match never {},
        }
    }

    async fn tell(&self, file: &SqlFile, sql: &str) -> Infallible {
        let begun = Instant::now();
        loop {
            pause(LONG).await;
            let sessions = match self.watch.get().await {
                Ok(client) => self.in_the_way(&client, sql).await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            tell_long(file, sql, begun, &sessions);
        }
    }

    /// Sessions that `sql`, which runs, waits for: with locks now, or with snapshots that are older than a build of an index.
    async fn in_the_way(&self, client: &Client, sql: &str) -> Result<String, BootError> {
        let (pid, snapshots) = (self.pid, is_beside(sql));
        let sql = format!(
            "select format('pid %s (%s)', a.pid, concat_ws(', ', coalesce(nullif(a.application_name, ''), a.backend_type),
                extract(epoch from now() - coalesce(a.xact_start, a.backend_start))::bigint || ' s'))
            from pg_stat_activity as a
            join pg_stat_activity as s on s.pid = {pid}
            where a.pid not in ({pid}, pg_backend_pid())
                and (a.pid = any (pg_blocking_pids({pid}))
                    or {snapshots} and a.datname = s.datname and a.backend_xmin is not null and a.xact_start < s.query_start)
            order by a.xact_start limit 10"
        );
        let rows = ask(client, &sql).await?;
        Ok(rows.iter().map(|row| row.get::<_, &str>(0)).collect::<Vec<_>>().join(", "))
    }
}

/// `sessions`: whom it waits for; empty: nobody, it works.
fn tell_long(file: &SqlFile, sql: &str, begun: Instant, sessions: &str) {
    let Some(suppressed) = LONG_TOLD.pass() else { return };
    let (file, statement, seconds) = (format!("{}.sql", file.name), headline(sql), begun.elapsed().as_secs());
    match sessions.is_empty() {
        true => crate::info!(
            "boot",
            "the schema apply takes long",
            file = file,
            statement = statement,
            seconds = seconds,
            suppressed = suppressed
        ),
        false => crate::warning!(
            "boot",
            "the schema apply waits for other sessions",
            file = file,
            statement = statement,
            seconds = seconds,
            sessions = sessions,
            suppressed = suppressed
        ),
    }
}

async fn apply_locked(apply: &Apply<'_>) -> Result<(), BootError> {
    let client = apply.client;
    // Made in one transaction: a schema without these two tables is not ours.
    const OWN: SqlFile = SqlFile {
        name: "0000_own",
        text: "create schema if not exists queen;
            create table if not exists queen.migrations (
                version integer not null,
                name text not null,
                applied_at timestamptz not null default clock_timestamp(),
                constraint migrations_pk primary key (version)
            );
            create table if not exists queen.functions (
                name text not null,
                checksum text not null,
                applied_at timestamptz not null default clock_timestamp(),
                constraint functions_pk primary key (name)
            )",
    };
    let version = match standing(client).await? {
        Standing::Absent => 0,
        Standing::Ours { version } => version,
        Standing::Foreign => return Err(unfit("schema \"queen\" has appeared meanwhile, and is not ours")),
    };
    if version < newest() {
        crate::info!("boot", "applying the schema", from = version, to = newest());
    }
    if version == 0 {
        execute(apply, &[(&OWN, OWN.text.to_owned())]).await?;
    }
    for file in MIGRATIONS.iter().filter(|file| version < file.version()) {
        for statement in file.statements() {
            execute(apply, &[(file, statement.to_owned())]).await?;
        }
        let record = format!(
            "insert into queen.migrations (version, name) values ({}, '{}') on conflict do nothing",
            file.version(),
            file.name
        );
        execute(apply, &[(file, record)]).await?;
    }
    let installed = installed(client).await?;
    // All in one transaction: they call each other, so a broker that runs meanwhile meets the old ones or the new ones, never
    // some of each; a drop and its create leave no gap, and a crash leaves no wrong checksum.
    let changed = FUNCTIONS.iter().filter(|file| installed.get(file.name) != Some(&file.checksum()));
    let changed: Vec<(&SqlFile, String)> = changed
        .map(|file| {
            let record = format!(
                "{}\n;insert into queen.functions as f (name, checksum) values ('{}', '{}')
                on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
                file.text,
                file.name,
                file.checksum()
            );
            (file, record)
        })
        .collect();
    execute(apply, &changed).await?;
    let secret = format!(
        "insert into queen.system_state (key, value) values ('hash_secret', '\"{:032x}\"') on conflict do nothing",
        draw_secret().map_err(|e| unfit(&format!("no randomness for the hash secret: {e}")))?
    );
    execute(apply, &[(&OWN, secret)]).await
}

/// Runs parts of files as one transaction; again and again while one of them finds no lock.
async fn execute(apply: &Apply<'_>, parts: &[(&SqlFile, String)]) -> Result<(), BootError> {
    let (client, begun) = (apply.client, Instant::now());
    let mut wait = if parts.iter().all(|(_, sql)| is_of_rows(sql)) { LOCK_WAIT_MAX } else { LOCK_WAIT_FIRST };
    loop {
        let Err((n, error)) = execute_once(apply, parts, wait).await else { return Ok(()) };
        let code = error.as_db_error().map(|e| e.code().code().to_owned());
        if !client.is_closed() {
            let _ = client.batch_execute("rollback").await;
        }
        let (file, sql) = &parts[n];
        let passes = matches!(code.as_deref(), Some("55P03" | "40P01"));
        if passes && begun.elapsed() < RETRY_MAX {
            if LONG < begun.elapsed() {
                tell_long(file, sql, begun, &blockers(client).await.unwrap_or_default());
            }
            pause(wait.mul_f64(RETRY_PAUSE_WAITS + f64::from(begun.elapsed().subsec_nanos() % 1000) / 1000.0)).await;
            wait = LOCK_WAIT_MAX.min(wait * 2);
            continue;
        }
        // Cut off by a time-out, or by somebody: it would be again.
        let is_cut_off = code.as_deref() == Some("57014");
        let why = judge(&error, Nature::Repeatable);
        let what = headline(sql);
        return Err(match why {
            StoreError::Unavailable(_) if !passes && !is_cut_off => why.into(),
            _ if passes => {
                let blockers = blockers(client).await.unwrap_or_default();
                unfit(&format!(
                    "schema apply is blocked: {}.sql at \"{what}\"; sessions in the way: {blockers}",
                    file.name
                ))
            }
            _ => unfit(&format!("schema apply failed: {}.sql at \"{what}\": {why}", file.name)),
        });
    }
}

/// `wait`: for each lock. The error is that of this part.
async fn execute_once(
    apply: &Apply<'_>,
    parts: &[(&SqlFile, String)],
    wait: Duration,
) -> Result<(), (usize, tokio_postgres::Error)> {
    let begin = format!(
        "begin; set local lock_timeout = {}; set local statement_timeout = 0; set local client_min_messages = warning;
        set local check_function_bodies = off;",
        wait.as_millis()
    );
    for (n, (file, sql)) in parts.iter().enumerate() {
        let send = async |whole: &str| {
            let done = apply.watched(file, sql, apply.client.batch_execute(whole)).await;
            done.map_err(|error| (n, error))
        };
        if is_beside(sql) {
            if let Some(index) = built_beside(sql) {
                send(&format!("{begin}\n{}\n;commit", drop_cut_off(index))).await?;
            }
            send(sql).await?;
            continue;
        }
        let begin = if n == 0 { begin.as_str() } else { "" };
        let commit = if n + 1 == parts.len() { "commit" } else { "" };
        send(&format!("{begin}\n{sql}\n;{commit}")).await?;
    }
    Ok(())
}

/// Whether a statement builds an index beside the traffic, or drops one: it refuses to be part of a transaction, and is a part
/// of its own.
fn is_beside(sql: &str) -> bool {
    sql.to_ascii_lowercase().contains("index concurrently")
}

/// The name, without the schema, of the index that such a statement builds.
fn built_beside(sql: &str) -> Option<&str> {
    sql.split_once("create index concurrently if not exists ")?.1.split_whitespace().next()
}

/// What a build that failed leaves has the name, and `if not exists` would take it for the index.
fn drop_cut_off(index: &str) -> String {
    format!(
        "do $$ begin
            if exists (select from pg_index as i where i.indexrelid = to_regclass('queen.{index}') and not i.indisvalid) then
                drop index queen.{index};
            end if;
        end $$"
    )
}

/// Whether a statement locks rows only: nobody queues behind it who would not wait for those rows anyway.
fn is_of_rows(sql: &str) -> bool {
    let headline = headline(sql).to_ascii_lowercase();
    ["insert ", "update ", "delete "].iter().any(|word| headline.starts_with(word))
}

/// The first line of a statement that is no comment.
fn headline(sql: &str) -> &str {
    sql.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("--")).unwrap_or("")
}

/// Sessions that hold locks on our tables, on one line.
async fn blockers(client: &Client) -> Result<String, BootError> {
    let rows = ask(
        client,
        "select distinct format('pid %s (%s, %s)', a.pid, a.application_name, a.state)
        from pg_locks as l
        join pg_class as c on c.oid = l.relation
        join pg_namespace as n on n.oid = c.relnamespace
        join pg_stat_activity as a on a.pid = l.pid
        where n.nspname = 'queen' and a.pid <> pg_backend_pid() and a.state <> 'idle'
        order by 1 limit 10",
    )
    .await?;
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    Ok(if lines.is_empty() { "none now".into() } else { lines.join(", ") })
}

async fn facts(client: &Client) -> Result<StoreFacts, BootError> {
    let rows = ask(client, "select value #>> '{}' from queen.system_state where key = 'hash_secret'").await?;
    let hash_secret = rows
        .first()
        .and_then(|row| row.get::<_, Option<&str>>(0))
        .filter(|text| text.len() == 32)
        .and_then(|text| u128::from_str_radix(text, 16).ok())
        .ok_or_else(|| unfit("queen.system_state has no hash_secret of 32 hex digits"))?
        .to_be_bytes();
    let rows = ask(
        client,
        "select current_setting('server_version'),
            greatest(current_setting('max_connections')::integer
                - current_setting('superuser_reserved_connections')::integer, 0),
            array_to_string(array(
                select c.relname from pg_index as i
                join pg_class as c on c.oid = i.indexrelid
                join pg_namespace as n on n.oid = c.relnamespace
                where n.nspname = 'queen' and not i.indisvalid
                order by 1
            ), ', ')",
    )
    .await?;
    let row = first(&rows)?;
    let invalid: &str = row.get(2);
    let mut warnings = Vec::new();
    if !invalid.is_empty() {
        warnings.push(format!("invalid indexes are left over in schema queen: {invalid}; drop them"));
    }
    Ok(StoreFacts { hash_secret, server_version: row.get(0), connections_max: row.get::<_, i32>(1) as u32, warnings })
}

async fn ask(client: &Client, sql: &str) -> Result<Vec<Row>, BootError> {
    run(client, Nature::Repeatable, sql, &[]).await.map_err(|error| match error {
        StoreError::Unavailable(_) => BootError::Wait(error),
        refused => unfit(&refused.to_string()),
    })
}

async fn send(client: &Client, sql: &str) -> Result<(), BootError> {
    client.batch_execute(sql).await.map_err(|error| judge(&error, Nature::Repeatable).into())
}

fn first(rows: &[Row]) -> Result<&Row, BootError> {
    rows.first().ok_or_else(|| unfit("the server answered without a row"))
}

fn unfit(text: &str) -> BootError {
    BootError::Unfit(text.into())
}

/// 128 bits from the kernel.
fn draw_secret() -> std::io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: writes at most 16 bytes into 16.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        16 => Ok(u128::from_be_bytes(bytes)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_built_beside_the_traffic_is_known_by_its_name() {
        let statements = MIGRATIONS.iter().flat_map(SqlFile::statements).filter(|sql| is_beside(sql));
        let names: Vec<Option<&str>> = statements.map(built_beside).collect();
        assert!(names.contains(&Some("cursors_by_key")) && !names.contains(&None), "{names:?}");
    }

    #[test]
    fn statements_of_rows_are_told_from_those_that_others_queue_behind() {
        assert_eq!(headline("-- Why: keys.\n\n  insert into queen.a\nselect 1"), "insert into queen.a");
        assert!(is_of_rows("-- Keys.\ndelete from queen.a"));
        assert!(!is_of_rows("do $$ begin lock table queen.a; insert into queen.a default values; end $$"));
        assert!(!is_of_rows("alter table queen.a drop column b"));
    }
}
