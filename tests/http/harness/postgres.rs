//! A private PostgreSQL cluster on a loopback port, trust authentication, one database per broker that needs its own.

use super::process::{as_postgres, free_port, give_to_postgres, scratch_dir, signal, spawn};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};

pub struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
    pub port: u16,
    server: Mutex<Option<Child>>,
}

static SHARED: OnceLock<Postgres> = OnceLock::new();

/// The cluster of this test binary. Tests that stop PostgreSQL start their own with [`Postgres::start`].
pub fn shared_postgres() -> &'static Postgres {
    SHARED.get_or_init(|| Postgres::start(&[]))
}

pub fn stop_shared() {
    if let Some(postgres) = SHARED.get() {
        postgres.kill();
    }
}

impl Postgres {
    /// Makes a cluster and serves it. `settings` are `name=value` lines on top of the stock ones.
    pub fn start(settings: &[&str]) -> Postgres {
        let bin = server_binaries();
        let dir = scratch_dir("pg");
        give_to_postgres(&dir);
        let data = dir.join("data");
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"]);
        as_postgres(&mut initdb);
        run(initdb.current_dir(&dir));
        let port = free_port();
        let mut conf = std::fs::read_to_string(data.join("postgresql.conf")).expect("postgresql.conf");
        conf += &format!(
            "\nport = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 200\n\
             shared_buffers = '64MB'\n{}\n",
            dir.display(),
            settings.join("\n")
        );
        std::fs::write(data.join("postgresql.conf"), conf).expect("postgresql.conf");
        let postgres = Postgres { bin, dir, port, server: Mutex::new(None) };
        postgres.resume();
        postgres
    }

    /// Starts the server again after [`Postgres::stop`] or [`Postgres::kill`]; returns once it answers.
    pub fn resume(&self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).expect("log");
        let mut server = Command::new(self.bin.join("postgres"));
        server.arg("-D").arg(self.dir.join("data")).current_dir(&self.dir).stdin(Stdio::null());
        server.stdout(log.try_clone().expect("dup")).stderr(log);
        as_postgres(&mut server);
        *self.server.lock().unwrap() = Some(spawn(server, libc::SIGINT).expect("postgres starts"));
        super::eventually("PostgreSQL answers", || self.try_query("postgres", "select 1").ok());
    }

    /// Stops it cleanly, breaking connections (a "fast" shutdown).
    pub fn stop(&self) {
        self.end(libc::SIGINT);
    }

    /// Stops it as a crash would: no checkpoint, recovery at the next start.
    pub fn kill(&self) {
        self.end(libc::SIGQUIT);
    }

    fn end(&self, with: i32) {
        if let Some(mut server) = self.server.lock().unwrap().take() {
            signal(server.id(), with);
            let _ = server.wait();
        }
    }

    /// Copies the data directory of the stopped server, and serves it again.
    pub fn back_up(&self) {
        self.stop();
        let (data, copy) = (self.dir.join("data"), self.dir.join("copy"));
        run(Command::new("cp").arg("-a").arg(data).arg(copy));
        self.resume();
    }

    /// Brings back what [`Postgres::back_up`] copied, as an operator does: through archive recovery, whose end begins
    /// another timeline.
    pub fn restore(&self) {
        self.kill();
        let (data, copy) = (self.dir.join("data"), self.dir.join("copy"));
        std::fs::remove_dir_all(&data).expect("the data directory");
        run(Command::new("cp").arg("-a").arg(copy).arg(&data));
        std::fs::write(data.join("recovery.signal"), "").expect("a signal file");
        std::fs::write(data.join("postgresql.auto.conf"), "restore_command = 'false'\n").expect("settings");
        give_to_postgres(&data);
        for file in ["recovery.signal", "postgresql.auto.conf"] {
            give_to_postgres(&data.join(file));
        }
        self.resume();
        let writable = || (self.try_query("postgres", "select pg_is_in_recovery()").ok()? == "f").then_some(());
        super::eventually("recovery is over", writable);
    }

    /// Brings the copy back as it is, without recovery: cluster and timeline stay what they were, and what was written since
    /// never was.
    pub fn put_back(&self) {
        self.kill();
        let (data, copy) = (self.dir.join("data"), self.dir.join("copy"));
        std::fs::remove_dir_all(&data).expect("the data directory");
        run(Command::new("cp").arg("-a").arg(copy).arg(&data));
        self.resume();
    }

    /// A streaming standby of this server. Returns once every commit here waits for it.
    pub fn standby(&self) -> Postgres {
        let dir = scratch_dir("standby");
        give_to_postgres(&dir);
        let data = dir.join("data");
        let mut backup = Command::new(self.bin.join("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-D"]).arg(&data);
        backup.args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
        as_postgres(&mut backup);
        run(backup.current_dir(&dir));
        let port = free_port();
        let mut conf = std::fs::read_to_string(data.join("postgresql.conf")).expect("postgresql.conf");
        conf += &format!("\nport = {port}\nunix_socket_directories = '{}'\n", dir.display());
        std::fs::write(data.join("postgresql.conf"), conf).expect("postgresql.conf");
        let standby = Postgres { bin: self.bin.clone(), dir, port, server: Mutex::new(None) };
        standby.resume();
        self.query("postgres", "alter system set synchronous_standby_names = '*'");
        self.query("postgres", "select pg_reload_conf()");
        super::eventually("the standby is synchronous", || {
            (self.query("postgres", "select sync_state from pg_stat_replication") == "sync").then_some(())
        });
        standby
    }

    /// Ends all its processes at once, as when the machine is lost.
    pub fn kill_9(&self) {
        self.signal_all(libc::SIGKILL);
        if let Some(mut server) = self.server.lock().unwrap().take() {
            let _ = server.wait();
        }
    }

    /// Stops all its processes where they are, without ending them.
    pub fn freeze(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.signal_all(libc::SIGCONT);
    }

    fn signal_all(&self, number: i32) {
        let postmaster = self.server.lock().unwrap().as_ref().expect("a running server").id();
        // The postmaster first: it makes no more backends then.
        signal(postmaster, number);
        let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        for pid in children.expect("procfs").split_whitespace().filter_map(|pid| pid.parse().ok()) {
            signal(pid, number);
        }
    }

    /// Runs SQL with psql and does not wait.
    pub fn hold(&self, sql: &str) -> Child {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XAtq", "-h", "127.0.0.1", "-U", "postgres", "-d", "postgres"]);
        psql.args(["-p", &self.port.to_string(), "-c", sql]).stdout(Stdio::null()).stderr(Stdio::null());
        spawn(psql, libc::SIGKILL).expect("psql starts")
    }

    /// Everything of the cluster: data, WAL, log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes an empty database and returns its name.
    pub fn create_database(&self) -> String {
        let name = super::unique("db").replace('-', "_");
        self.query("postgres", &format!("create database {name}"));
        name
    }

    /// Runs SQL with psql; rows as lines, columns parted by `|`.
    #[track_caller]
    pub fn query(&self, database: &str, sql: &str) -> String {
        self.try_query(database, sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Starts SQL in psql and does not wait for it.
    pub fn spawn(&self, database: &str, sql: &str) -> std::process::Child {
        Command::new(self.bin.join("psql"))
            .args(["-XAtq", "-h", "127.0.0.1", "-U", "postgres"])
            .args(["-p", &self.port.to_string(), "-d", database, "-c", sql])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("psql")
    }

    pub fn try_query(&self, database: &str, sql: &str) -> Result<String, String> {
        let out = Command::new(self.bin.join("psql"))
            .args(["-XAtq", "-h", "127.0.0.1", "-U", "postgres", "-v", "ON_ERROR_STOP=1"])
            .args(["-p", &self.port.to_string(), "-d", database, "-c", sql])
            .output()
            .map_err(|e| e.to_string())?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }

    /// Runs a file of SQL.
    #[track_caller]
    pub fn load(&self, database: &str, file: &Path) {
        run(Command::new(self.bin.join("psql"))
            .args(["-Xq", "-h", "127.0.0.1", "-U", "postgres", "-v", "ON_ERROR_STOP=1"])
            .args(["-p", &self.port.to_string(), "-d", database, "-f"])
            .arg(file));
    }

    /// Copies the content of tables and sequences of schema `queen` into another database that has them.
    #[track_caller]
    pub fn copy(&self, from: &str, to: &str, tables: &[&str]) {
        let file = scratch_dir("copy").join("data.sql");
        let mut dump = Command::new(self.bin.join("pg_dump"));
        dump.args(["--data-only", "-h", "127.0.0.1", "-U", "postgres", "-p", &self.port.to_string(), "-d", from, "-f"]);
        dump.arg(&file).args(tables.iter().flat_map(|table| ["-t".to_owned(), format!("queen.{table}")]));
        run(&mut dump);
        self.load(to, &file);
    }

    /// The environment that points a broker here.
    pub fn env(&self, database: &str) -> Vec<(String, String)> {
        [("PG_HOST", "127.0.0.1"), ("PG_PORT", &self.port.to_string()), ("PG_DATABASE", database)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where the newest server of at least version 15 lives, looked for as the broker does.
fn server_binaries() -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        if let Some(major) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
            found.push((major, entry.path().join("bin")));
        }
    }
    let newest = found.into_iter().filter(|(major, bin)| *major >= 15 && bin.join("postgres").exists()).max();
    if let Some((_, bin)) = newest {
        return bin;
    }
    let out = Command::new("pg_config").arg("--bindir").output().expect("PostgreSQL's server, 15 or newer: .ci/setup");
    Path::new(String::from_utf8_lossy(&out.stdout).trim()).to_owned()
}

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}
