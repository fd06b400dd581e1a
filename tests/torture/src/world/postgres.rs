//! A private PostgreSQL with everything on that makes an answer durable, and the ways to hurt it.

use super::process::{as_postgres, children, free_port, give_to_postgres, signal, spawn, thaw_at_end};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Recovery after a kill takes as long as the WAL is large; the rig's is small.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Tables whose writes can be refused.
const REFUSING: [&str; 2] = ["segments", "cursors"];
pub const DATABASE: &str = "torture";
/// What a session says when it has what it asked for.
const SESSION_READY: &str = "ready";

pub struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
    pub port: u16,
    /// Of the server.
    env: Vec<(String, String)>,
    server: Mutex<Option<Child>>,
    /// Ends with its input, which ends with this.
    guard: Child,
}

impl Postgres {
    /// Makes a cluster under `dir` and serves it. `env`: of the server, on top of this process's.
    pub fn start(dir: &Path, env: Vec<(String, String)>) -> io::Result<Postgres> {
        let bin = server_binaries()?;
        std::fs::create_dir_all(dir)?;
        give_to_postgres(dir)?;
        let data = dir.join("data");
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"]);
        as_postgres(&mut initdb);
        let made = initdb.current_dir(dir).output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let port = free_port()?;
        let conf = data.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&conf)?;
        text += &format!(
            "\nport = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 100\n\
             shared_buffers = '64MB'\nfsync = on\nsynchronous_commit = on\nfull_page_writes = on\n\
             max_wal_size = '256MB'\nrestart_after_crash = on\n\
             recovery_init_sync_method = syncfs\n",
            dir.display()
        );
        std::fs::write(&conf, text)?;
        let guard = thaw_at_end(&data.join("postmaster.pid"))?;
        let postgres = Postgres { bin, dir: dir.to_owned(), port, env, server: Mutex::new(None), guard };
        postgres.resume()?;
        postgres.query_in("postgres", &format!("create database {DATABASE}")).map_err(io::Error::other)?;
        Ok(postgres)
    }

    /// Data, WAL and log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts the server and returns once it answers. After a kill the old backends may hold the cluster for a moment:
    /// then it is started again.
    pub fn resume(&self) -> io::Result<()> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            let mut server = self.server();
            let ended = match server.as_mut() {
                Some(child) => child.try_wait()?.is_some(),
                None => true,
            };
            if ended {
                *server = Some(self.launch()?);
            }
            drop(server);
            std::thread::sleep(PAUSE);
            if self.query_in("postgres", "select 1").is_ok() {
                return Ok(());
            }
        }
        Err(io::Error::other("PostgreSQL does not come up"))
    }

    fn launch(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut server = Command::new(self.bin.join("postgres"));
        server.arg("-D").arg(self.dir.join("data")).current_dir(&self.dir).stdin(Stdio::null());
        server.stdout(log.try_clone()?).stderr(log).envs(self.env.iter().cloned());
        as_postgres(&mut server);
        spawn(server, libc::SIGQUIT)
    }

    /// Ends the postmaster by a signal and waits for its end: SIGKILL leaves its backends to find out, SIGQUIT is the
    /// immediate stop.
    pub fn end(&self, with: i32) {
        if let Some(mut server) = self.server().take() {
            signal(server.id(), with);
            let _ = server.wait();
        }
    }

    /// Sends a signal to the postmaster and all its processes.
    pub fn signal_all(&self, with: i32) {
        let pid = self.server().as_ref().map(Child::id);
        if let Some(pid) = pid {
            signal(pid, with);
            for child in children(pid) {
                signal(child, with);
            }
        }
    }

    /// Backends that served a broker within the last seconds, by number.
    pub fn backends(&self) -> Vec<u32> {
        let sql = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
                   and backend_type = 'client backend' and now() - interval '5 s' < state_change order by pid";
        self.query(sql).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub fn query(&self, sql: &str) -> Result<String, String> {
        self.query_in(DATABASE, sql)
    }

    /// Sets a parameter of the server for all sessions, or takes it back.
    pub fn set(&self, name: &str, value: Option<&str>) -> Result<(), String> {
        let sql = match value {
            Some(value) => format!("alter system set {name} = {value}"),
            None => format!("alter system reset {name}"),
        };
        self.query(&sql)?;
        self.query("select pg_reload_conf()").map(drop)
    }

    /// From now on whoever stores messages or moves a cursor is told this SQLSTATE.
    pub fn refuse_writes(&self, state: &str) -> Result<(), String> {
        self.query(&format!(
            "create or replace function public.refuse() returns trigger language plpgsql as $$ begin \
             raise exception using errcode = '{state}', message = 'refused by the rig'; end $$"
        ))?;
        // Each table alone: who holds the lock on one waits for no other.
        for table in REFUSING {
            self.query(&format!(
                "create trigger refuse before insert or update on queen.{table} for each row \
                 execute function public.refuse()"
            ))?;
        }
        Ok(())
    }

    pub fn accept_writes(&self) -> Result<(), String> {
        for table in REFUSING {
            self.query(&format!("drop trigger if exists refuse on queen.{table}"))?;
        }
        Ok(())
    }

    /// A session of somebody else that has run this SQL and waits; `None` when it could not.
    pub fn session(&self, sql: &str) -> Option<Session> {
        let mut psql =
            self.psql(DATABASE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (input, output) = (psql.stdin.take()?, psql.stdout.take()?);
        let mut session = Session { psql, input: Some(input) };
        session.say(&format!("set lock_timeout = '10s';\n{sql};\nselect '{SESSION_READY}';\n"))?;
        BufReader::new(output).lines().map_while(Result::ok).any(|line| line == SESSION_READY).then_some(session)
    }

    fn psql(&self, database: &str) -> Command {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XAtq", "-F", "\t", "-h", "127.0.0.1", "-U", "postgres", "-v", "ON_ERROR_STOP=1"])
            .env("PGCONNECT_TIMEOUT", "5")
            .args(["-p", &self.port.to_string(), "-d", database]);
        psql
    }

    /// Runs SQL with psql; rows as lines, columns parted by tabs.
    fn query_in(&self, database: &str, sql: &str) -> Result<String, String> {
        let out = self.psql(database).args(["-c", sql]).output().map_err(|e| e.to_string())?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim_end_matches('\n').to_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }
}

/// A session with an open transaction; dropped, it ends and its transaction with it.
pub struct Session {
    psql: Child,
    input: Option<ChildStdin>,
}

impl Session {
    fn say(&mut self, sql: &str) -> Option<()> {
        self.input.as_mut()?.write_all(sql.as_bytes()).ok()
    }

    /// Commits; false when the session was gone by then.
    pub fn end(mut self) -> bool {
        self.say("commit;\n");
        self.input = None;
        self.psql.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal_all(libc::SIGCONT);
        self.end(libc::SIGQUIT);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Where the newest server of at least version 15 lives.
fn server_binaries() -> io::Result<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let major: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((major, entry.path().join("bin")))
    });
    if let Some((_, bin)) = found.filter(|(major, bin)| *major >= 15 && bin.join("postgres").exists()).max() {
        return Ok(bin);
    }
    let out = Command::new("pg_config").arg("--bindir").output();
    let out = out.map_err(|_| io::Error::other("PostgreSQL's server, 15 or newer, is missing: .ci/setup"))?;
    Ok(Path::new(String::from_utf8_lossy(&out.stdout).trim()).to_owned())
}
