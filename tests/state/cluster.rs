//! A private PostgreSQL for this test binary, and a fresh database with the schema per test.
//!
//! The server is a child of a thread that never ends and dies with the process (PDEATHSIG), so that no run leaves one
//! behind. It needs the server's binaries: `PG_BIN`, or the newest of `/usr/lib/postgresql/*/bin`.

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the server may take to come up on a machine that is busy with other things.
const START_MAX: Duration = Duration::from_secs(60);

struct Cluster {
    bin: PathBuf,
    dir: PathBuf,
}

static CLUSTER: OnceLock<Cluster> = OnceLock::new();

/// One database of the cluster, with the schema applied.
pub struct Db {
    name: String,
}

impl Db {
    /// A fresh database.
    pub fn new() -> Db {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let db = Db { name: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) };
        let admin = Db { name: "postgres".into() };
        admin.sql(&format!("create database {}", db.name));
        db.apply();
        db
    }

    /// Applies the migrations and the functions, as boot does.
    pub fn apply(&self) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let entries =
            |dir: PathBuf| std::fs::read_dir(dir).expect("migrations").map(|entry| entry.expect("entry").path());
        let sorted = |paths: &mut dyn Iterator<Item = PathBuf>| {
            let sql = paths.filter(|path| path.extension().is_some_and(|e| e == "sql"));
            let mut sql: Vec<_> = sql.filter(|path| !path.ends_with("schema.golden.sql")).collect();
            sql.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
            sql
        };
        let mut files = sorted(&mut entries(root.clone()));
        files.extend(sorted(&mut entries(root.join("functions")).flat_map(entries)));
        let mut psql = self.psql();
        // As the broker does: functions come in the order of their names.
        psql.arg("-q").arg("-c").arg("set client_min_messages = warning; set check_function_bodies = off");
        for file in &files {
            psql.arg("-f").arg(file);
        }
        run(&mut psql);
    }

    /// Runs SQL text; the rows as unaligned text.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        run(self.psql().arg("-c").arg(text))
    }

    /// Like [`Db::sql`], going on beside the caller.
    pub fn start(&self, text: &str) -> Child {
        self.psql().arg("-c").arg(text).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("psql")
    }

    /// Calls `queen.<function>` for a tenant; its JSON.
    #[track_caller]
    pub fn call_as(&self, tenant: &str, function: &str, args: Value) -> Value {
        let args = args.to_string().replace('\'', "''");
        let text = self.sql(&format!("select queen.{function}('{tenant}'::uuid, '{args}'::jsonb)"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{function}: {e}: {text}"))
    }

    /// Calls `queen.<function>` for the default tenant.
    #[track_caller]
    pub fn call(&self, function: &str, args: Value) -> Value {
        self.call_as(DEFAULT_TENANT, function, args)
    }

    /// Waits until the statement answers `t`.
    #[track_caller]
    pub fn until(&self, what: &str, text: &str) {
        let start = Instant::now();
        while self.sql(text) != "t" {
            assert!(start.elapsed() < START_MAX, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn psql(&self) -> Command {
        let cluster = CLUSTER.get_or_init(Cluster::start);
        let mut psql = Command::new(cluster.bin.join("psql"));
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", &self.name])
            .arg("-h")
            .arg(&cluster.dir)
            .env("PGOPTIONS", "-c timezone=America/Caracas") // No answer may depend on it.
            .stdin(Stdio::null());
        psql
    }
}

pub const DEFAULT_TENANT: &str = "00000000-0000-0000-0000-000000000001";

#[track_caller]
fn run(command: &mut Command) -> String {
    let out = command.output().expect("command starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8").trim_end().to_owned()
}

impl Cluster {
    fn start() -> Cluster {
        let dir = std::env::temp_dir().join(format!("queen-state-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary directory");
        let cluster = Cluster { bin: bin(), dir };
        // SAFETY: the handler only uses std and what it opens itself; it runs once, at a normal exit.
        unsafe { libc::atexit(remove) };
        let data = cluster.dir.join("data");
        if let Some((uid, gid)) = unprivileged() {
            std::os::unix::fs::chown(&cluster.dir, Some(uid), Some(gid)).expect("chown");
        }
        let mut initdb = as_postgres(&cluster.bin.join("initdb"));
        run(initdb.args(["-E", "UTF8", "--locale=C.UTF-8", "-A", "trust", "-N", "-U", "postgres", "-D"]).arg(&data));
        let mut server = as_postgres(&cluster.bin.join("postgres"));
        server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"]);
        server.arg("-c").arg(format!("unix_socket_directories={}", cluster.dir.display()));
        server.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe. After the change of user, which would clear it.
        unsafe {
            server.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT);
                Ok(())
            });
        }
        // The server ends with the thread that started it.
        std::thread::spawn(move || server.spawn().expect("postgres starts").wait());
        let start = Instant::now();
        while !ready(&cluster) {
            assert!(start.elapsed() < START_MAX, "PostgreSQL does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }
}

fn ready(cluster: &Cluster) -> bool {
    let mut probe = Command::new(cluster.bin.join("pg_isready"));
    probe.arg("-q").arg("-h").arg(&cluster.dir).status().is_ok_and(|s| s.success())
}

/// Removes the directory at exit; the server, killed by then or about to be, has nothing to keep.
extern "C" fn remove() {
    if let Some(cluster) = CLUSTER.get() {
        let pid = std::fs::read_to_string(cluster.dir.join("data/postmaster.pid")).unwrap_or_default();
        if let Some(pid) = pid.lines().next().and_then(|line| line.parse::<i32>().ok()) {
            // SAFETY: the pid is that of the server this process started.
            unsafe { libc::kill(pid, libc::SIGQUIT) };
        }
        let _ = std::fs::remove_dir_all(&cluster.dir);
    }
}

fn bin() -> PathBuf {
    if let Some(dir) = std::env::var_os("PG_BIN") {
        return dir.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .max();
    newest.expect("PostgreSQL's server binaries: install postgresql, or set PG_BIN to their directory").1
}

/// PostgreSQL refuses to run as root: then it runs as `postgres`.
fn unprivileged() -> Option<(u32, u32)> {
    // SAFETY: both calls read the user database; the result is used before any other call.
    unsafe {
        if libc::geteuid() != 0 {
            return None;
        }
        let user = libc::getpwnam(c"postgres".as_ptr());
        assert!(!user.is_null(), "root needs a user `postgres` to run the server");
        Some(((*user).pw_uid, (*user).pw_gid))
    }
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/");
    if let Some((uid, gid)) = unprivileged() {
        command.uid(uid).gid(gid);
    }
    command
}
