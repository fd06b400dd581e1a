//! PostgreSQL as seen from beside the broker: its counters, its settings, and a snapshot that stays open.
//!
//! Through one `psql` that stays connected, so that a reading costs a millisecond and this client needs no driver.
//! Counters are of the whole server: commits and fsyncs of others count too. PostgreSQL publishes a backend's counts
//! up to a second late; over windows of seconds that is the same at both ends.

use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Ends the answer to one statement; no answer contains it.
const END: &str = "--end of answer--";

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreCounts {
    pub commits: u64,
    pub wal_bytes: u64,
    /// Of the write-ahead log.
    pub fsyncs: u64,
    pub checkpoints: u64,
    pub autovacuums: u64,
}

impl StoreCounts {
    /// What happened from `before` to here.
    pub fn since(self, before: StoreCounts) -> StoreCounts {
        StoreCounts {
            commits: self.commits.saturating_sub(before.commits),
            wal_bytes: self.wal_bytes.saturating_sub(before.wal_bytes),
            fsyncs: self.fsyncs.saturating_sub(before.fsyncs),
            checkpoints: self.checkpoints.saturating_sub(before.checkpoints),
            autovacuums: self.autovacuums.saturating_sub(before.autovacuums),
        }
    }

    /// Reads `a|b|c|d|e`, as psql prints the row of `counts_sql`.
    fn parse(row: &str) -> Option<StoreCounts> {
        let mut numbers = row.split('|').map(|text| text.trim().parse().ok());
        let mut next = || numbers.next()?;
        Some(StoreCounts {
            commits: next()?,
            wal_bytes: next()?,
            fsyncs: next()?,
            checkpoints: next()?,
            autovacuums: next()?,
        })
    }
}

/// `version`: `server_version_num`. The counters moved in 17 and 18.
fn counts_sql(version: u32) -> String {
    let fsyncs = match version {
        180_000.. => "(select coalesce(sum(fsyncs), 0) from pg_stat_io where object = 'wal')",
        _ => "(select wal_sync from pg_stat_wal)",
    };
    let checkpoints = match version {
        170_000.. => "(select num_timed + num_requested from pg_stat_checkpointer)",
        _ => "(select checkpoints_timed + checkpoints_req from pg_stat_bgwriter)",
    };
    format!(
        "select (select sum(xact_commit)::bigint from pg_stat_database),
            (pg_current_wal_insert_lsn() - '0/0')::bigint, {fsyncs}, {checkpoints},
            (select coalesce(sum(autovacuum_count), 0)::bigint from pg_stat_all_tables);"
    )
}

/// Settings that change what a result means.
const SETTINGS_SQL: &str = "select name || '=' || current_setting(name) from pg_settings where name in
    ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_sync_method', 'wal_compression',
     'wal_level', 'wal_buffers', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'commit_delay', 'jit',
     'huge_pages', 'autovacuum', 'autovacuum_naptime', 'synchronous_standby_names', 'data_checksums') order by name;";

/// One connected `psql`.
pub struct Session {
    conninfo: String,
    pipes: RefCell<(Child, ChildStdin, BufReader<ChildStdout>)>,
    version: u32,
}

impl Session {
    /// `conninfo`: as libpq reads it, `host=... user=...` or a URL. Err: no psql here, or no server there.
    pub fn open(conninfo: &str) -> Result<Session, String> {
        let program = psql();
        let mut child = Command::new(&program)
            .args(["--no-psqlrc", "--tuples-only", "--no-align", "--quiet", "--dbname"])
            // Says nothing of a database: the one that every server has.
            .arg(if conninfo.contains("dbname=") || conninfo.contains("://") {
                conninfo.to_owned()
            } else {
                format!("{conninfo} dbname=postgres")
            })
            .env("PGCONNECT_TIMEOUT", "5")
            .env("PGAPPNAME", "queen-perf")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { unreachable!("piped") };
        let mut session = Session {
            conninfo: conninfo.to_owned(),
            pipes: RefCell::new((child, stdin, BufReader::new(stdout))),
            version: 0,
        };
        let version = session.ask("select current_setting('server_version_num');")?.join("");
        session.version = version.parse().map_err(|_| format!("psql: no version but `{version}`"))?;
        Ok(session)
    }

    /// Another session with the same server.
    pub fn again(&self) -> Result<Session, String> {
        Session::open(&self.conninfo)
    }

    /// Runs statements; the rows they print. Err: psql has ended, with what it said.
    pub fn ask(&self, sql: &str) -> Result<Vec<String>, String> {
        let mut pipes = self.pipes.borrow_mut();
        let (child, stdin, stdout) = &mut *pipes;
        let asked = writeln!(stdin, "{sql}\n\\echo {END}").and_then(|()| stdin.flush());
        let mut rows = Vec::new();
        while asked.is_ok() {
            let mut line = String::new();
            match stdout.read_line(&mut line) {
                Ok(1..) if line.trim_end() == END => return Ok(rows),
                Ok(1..) => rows.push(line.trim_end().to_owned()),
                _ => break,
            }
        }
        let said = child.stderr.take().map(BufReader::new).and_then(|stderr| stderr.lines().next()?.ok());
        Err(format!("psql: {}", said.unwrap_or_else(|| "it has ended".into())))
    }

    /// None: the server does not say (it went away, or the role may not read it).
    pub fn counts(&self) -> Option<StoreCounts> {
        StoreCounts::parse(self.ask(&counts_sql(self.version)).ok()?.first()?)
    }

    pub fn settings(&self) -> Option<BTreeMap<String, String>> {
        let rows = self.ask(SETTINGS_SQL).ok()?;
        Some(rows.iter().filter_map(|row| row.split_once('=')).map(|(n, v)| (n.into(), v.into())).collect())
    }

    /// Takes a snapshot and keeps it until this session is dropped: nothing that dies from here on is cleaned away.
    pub fn hold_snapshot(&self) -> Result<(), String> {
        let rows = self.ask("begin isolation level repeatable read; select 'held' from pg_class limit 1;")?;
        if rows == ["held"] { Ok(()) } else { Err(format!("psql: no snapshot but {rows:?}")) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (child, ..) = self.pipes.get_mut();
        let _ = child.kill(); // Ended already if that fails.
        let _ = child.wait();
    }
}

/// The newest psql of this machine; the plain name when none is found, for the error to say.
fn psql() -> PathBuf {
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        folders.into_iter().map(|folder| folder.join("psql"))
    });
    let mut of_debian: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin/psql"))
        .collect();
    of_debian.sort();
    on_path.chain(of_debian.into_iter().rev()).find(|path| path.is_file()).unwrap_or_else(|| "psql".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_subtracted() {
        let before = StoreCounts::parse("10|2000|7|1|0").unwrap();
        let after = StoreCounts::parse("15|9000|9|1|3").unwrap();
        let want = StoreCounts { commits: 5, wal_bytes: 7000, fsyncs: 2, checkpoints: 0, autovacuums: 3 };
        assert_eq!(after.since(before), want);
        assert_eq!(StoreCounts::parse("10|2000||1|0"), None);
    }

    #[test]
    fn each_major_is_asked_where_it_keeps_its_counters() {
        assert!(counts_sql(150_018).contains("wal_sync from pg_stat_wal") && counts_sql(150_018).contains("bgwriter"));
        assert!(counts_sql(170_002).contains("wal_sync from pg_stat_wal"));
        assert!(counts_sql(170_002).contains("pg_stat_checkpointer") && counts_sql(180_000).contains("pg_stat_io"));
    }

    #[test]
    fn a_server_that_is_not_there_is_said() {
        let Err(error) = Session::open("host=/nowhere/at/all user=nobody") else { panic!("it opened") };
        assert!(error.starts_with("psql: "), "{error}");
    }
}
