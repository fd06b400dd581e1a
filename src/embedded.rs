//! The embedded PostgreSQL: a private cluster, run as a direct child of the broker.
//!
//!     prepare: find programs -> make directories -> lock          (errors here are fatal, one line with the remedy)
//!     start, then poll: wait for an old server -> initdb -> run -> (dies) -> pause -> wait ...
//!     stop: fast shutdown, bounded
//!
//! Holds: one broker per data directory (flock); never two servers in it; never as root; reached through a socket in a
//! directory that only its user may enter; the server ends when the broker does, however that happens (it is asked to
//! by the kernel when the thread that started it ends: so start and poll belong to the main thread). Never wipes a
//! directory that a server ever ran in.

mod binaries;
mod leftovers;

use crate::store::connect::Target;
use binaries::Binaries;
use std::cell::Cell;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Names the socket file only; nothing listens on TCP.
const PORT: u16 = 5432;
/// How the extension of a cluster's directory begins that is being made; the number of its broker's process follows.
const UNFINISHED: &str = "unfinished";
/// Superuser and only role of the cluster.
const ROLE: &str = "queen";
/// Longest path of a socket, with some room: the kernel's limit is 108 bytes.
const SOCKET_PATH_MAX: usize = 100;
/// An old server has so long for its clean end, then it is told to drop everything. Source: rule 28.
const OLD_SERVER_CLEAN: Duration = Duration::from_secs(5);
/// Then it is an operator's case: something works in our directory and does not end.
const OLD_SERVER_MAX: Duration = Duration::from_secs(60);
/// First and longest pause before a server that died is started again.
const RESTART_FIRST: Duration = Duration::from_millis(100);
const RESTART_MAX: Duration = Duration::from_secs(10);
/// A server that ran for so long died anew, not again.
const RAN_WELL: Duration = Duration::from_secs(60);
/// A clean stop writes what is dirty, at most shared_buffers, and syncs every file: a disk that others keep busy needed more
/// than 55 s. Past this, which is within what orchestrators give (30 s), it is cut off; the next start recovers.
const STOP_MAX: Duration = Duration::from_secs(20);
/// A stop that takes longer says what it waits for, so often.
const STOP_TOLD: Duration = Duration::from_secs(5);
/// Between looks at a child that is about to change, and at one that runs.
const LOOK_SOON: Duration = Duration::from_millis(20);
const LOOK_RUNNING: Duration = Duration::from_millis(250);
/// The log is moved aside at a start once it is larger.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Why there is no embedded PostgreSQL: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbeddedError(pub String);

/// The cluster of one data directory, and its server. Lives on the main thread.
#[derive(Debug)]
pub struct Embedded {
    binaries: Binaries,
    /// `postgres` in the data directory: the cluster itself.
    data: PathBuf,
    socket_dir: PathBuf,
    log: PathBuf,
    /// Where the words of the program that was started last begin in it.
    log_from: Cell<u64>,
    /// Whom the server runs as, when not as us.
    user: Option<User>,
    state: State,
    /// Starts in a row that did not last.
    deaths: u32,
    /// Held for our life.
    _lock: File,
}

#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Until nobody works in the data directory.
    Leaving {
        since: Instant,
        signalled: i32,
    },
    Initdb {
        child: Child,
        unfinished: PathBuf,
    },
    Running {
        child: Child,
        since: Instant,
        ready: bool,
    },
    Pausing {
        until: Instant,
    },
}

/// How the server is, at a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not started, or stopped.
    Stopped,
    /// It will be; the text says what is awaited.
    Starting(&'static str),
    Ready,
    /// It died, and will be started again; told once a death.
    Died(String),
    /// It cannot be started without an operator.
    Failed(EmbeddedError),
}

/// What a stop was like.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    pub took: Duration,
    /// It wrote its last checkpoint; the next start needs no recovery.
    pub clean: bool,
}

impl Embedded {
    /// Finds the programs, makes the directories and locks them. Starts nothing; well under a second.
    pub fn prepare(data_dir: &Path) -> Result<Embedded, EmbeddedError> {
        make_dir(data_dir, 0o755, None)?;
        let data_dir = data_dir.canonicalize().map_err(|e| trouble("find", data_dir, &e))?;
        let data = data_dir.join("postgres");
        let lock = lock(&data_dir)?;
        let user = match is_root() {
            true => Some(user_of_server()?),
            false => None,
        };
        let binaries = binaries::find(major_of_cluster(&data)?)?;
        check_owner(&data, user)?;
        let socket_dir = socket_dir(&data_dir);
        make_dir(&socket_dir, 0o700, user)?;
        check_owner(&socket_dir, user)?;
        let log = data_dir.join("postgres.log");
        Ok(Embedded {
            binaries,
            data,
            socket_dir,
            log,
            log_from: Cell::new(0),
            user,
            state: State::Idle,
            deaths: 0,
            _lock: lock,
        })
    }

    /// Where shards connect. Known before the server runs.
    pub fn target(&self) -> Target {
        Target::socket(&self.socket_dir, PORT, ROLE, "postgres")
    }

    /// What runs, for the boot line.
    pub fn major(&self) -> u32 {
        self.binaries.major
    }

    /// The directory of the cluster.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where the programs are.
    pub fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// What the server writes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Process number of the server while it runs.
    pub fn pid(&self) -> Option<u32> {
        match &self.state {
            State::Running { child, .. } => Some(child.id()),
            _ => None,
        }
    }

    /// Begins; `poll` does the rest. Main thread only: the kernel ends the server with the thread that starts it.
    pub fn start(&mut self) {
        if matches!(self.state, State::Idle) {
            self.state = State::Leaving { since: Instant::now(), signalled: 0 };
        }
    }

    /// Takes the next step, without waiting for anything, and says how the server is and when to look again.
    pub fn poll(&mut self) -> (Status, Duration) {
        let now = Instant::now();
        match &mut self.state {
            State::Idle => (Status::Stopped, LOOK_RUNNING),
            State::Leaving { since, signalled } => match leave(&self.data, now - *since, signalled) {
                Ok(true) => {
                    leftovers::clear_stale(&self.data, &self.socket_dir, PORT);
                    self.begin()
                }
                Ok(false) => (Status::Starting("the end of an earlier server"), LOOK_SOON),
                Err(error) => (Status::Failed(error), LOOK_RUNNING),
            },
            State::Initdb { child, unfinished } => match child.try_wait() {
                Ok(None) => (Status::Starting("initdb"), LOOK_SOON),
                Ok(Some(exit)) if exit.success() => match keep(unfinished, &self.data) {
                    Ok(()) => self.begin(),
                    Err(e) => self.fail(trouble("keep", &self.data, &e)),
                },
                Ok(Some(exit)) => {
                    let mut text = format!("initdb failed ({exit}): {}", self.last_words());
                    if self.user.is_some() && text.contains("Permission denied") {
                        text.push_str("; it runs as user \"postgres\", which must be able to enter every directory above that one");
                    }
                    self.fail(EmbeddedError(text))
                }
                Err(e) => self.fail(EmbeddedError(format!("initdb is lost: {e}"))),
            },
            State::Running { child, since, ready } => {
                let ended = match child.try_wait() {
                    Ok(None) => None,
                    Ok(Some(exit)) => Some(exit.to_string()),
                    Err(e) => Some(e.to_string()),
                };
                if let Some(how) = ended {
                    self.deaths = if RAN_WELL < now - *since { 1 } else { self.deaths + 1 };
                    let pause = RESTART_FIRST.saturating_mul(1 << (self.deaths - 1).min(10)).min(RESTART_MAX);
                    self.state = State::Pausing { until: now + pause };
                    return (Status::Died(format!("PostgreSQL ended ({how}): {}", self.last_words())), LOOK_SOON);
                }
                *ready = *ready || leftovers::is_ready(&self.data, child.id() as i32);
                match *ready {
                    true => (Status::Ready, LOOK_RUNNING),
                    false => (Status::Starting("recovery"), LOOK_SOON),
                }
            }
            State::Pausing { until } if now < *until => {
                (Status::Starting("a pause after PostgreSQL ended"), (*until - now).min(LOOK_RUNNING))
            }
            State::Pausing { .. } => {
                self.state = State::Leaving { since: now, signalled: 0 };
                (Status::Starting("the end of an earlier server"), Duration::ZERO)
            }
        }
    }

    /// Polls until the server is ready, or it is known that it will not be. Blocks.
    pub fn wait_ready(&mut self, longest: Duration) -> Result<(), EmbeddedError> {
        let until = Instant::now() + longest;
        loop {
            match self.poll() {
                (Status::Ready, _) => return Ok(()),
                (Status::Failed(error), _) => return Err(error),
                (Status::Died(text), _) => return Err(EmbeddedError(text)),
                (Status::Stopped, _) => return Err(EmbeddedError("PostgreSQL is not started".into())),
                (Status::Starting(what), _) if until < Instant::now() => {
                    return Err(EmbeddedError(format!("PostgreSQL is not ready after {longest:?}: awaiting {what}")));
                }
                (Status::Starting(_), again_in) => std::thread::sleep(again_in),
            }
        }
    }

    /// Stops the server: sessions end at once, what is dirty is written. Blocks, at most a little over STOP_MAX.
    ///
    /// Call it when the shards have ended, so that no commit is cut off.
    pub fn stop(&mut self) -> Stopped {
        let begun = Instant::now();
        let mut clean = true;
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Running { mut child, .. } => {
                signal(child.id() as i32, libc::SIGINT);
                clean = match self.wait_for_stop(&mut child, begun + STOP_MAX) {
                    Some(exit) => exit.success(),
                    None => {
                        signal(child.id() as i32, libc::SIGQUIT);
                        wait_within(&mut child, OLD_SERVER_CLEAN);
                        false
                    }
                };
            }
            State::Initdb { mut child, .. } => {
                let _ = child.kill();
                let _ = child.wait();
            }
            State::Idle | State::Leaving { .. } | State::Pausing { .. } => {}
        }
        Stopped { took: begun.elapsed(), clean }
    }

    /// Waits for a server that was told to stop, and says which of its processes are left when that takes long.
    fn wait_for_stop(&self, child: &mut Child, until: Instant) -> Option<ExitStatus> {
        loop {
            let longest = until.saturating_duration_since(Instant::now());
            let ended = wait_within(child, longest.min(STOP_TOLD));
            if ended.is_some() || longest <= STOP_TOLD {
                return ended;
            }
            crate::warning!(
                "shutdown",
                "embedded PostgreSQL has not stopped yet",
                processes = leftovers::titles_in(&self.data),
                log = self.last_words()
            );
        }
    }

    /// Makes the cluster or runs it.
    fn begin(&mut self) -> (Status, Duration) {
        let made = self.data.join("PG_VERSION").exists();
        let begun = match made {
            true => self.run(),
            false => self.initdb(),
        };
        match begun {
            Ok(state) => {
                self.state = state;
                (Status::Starting(if made { "PostgreSQL" } else { "initdb" }), LOOK_SOON)
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: EmbeddedError) -> (Status, Duration) {
        self.state = State::Idle;
        (Status::Failed(error), LOOK_RUNNING)
    }

    /// Into a directory of its own, which gets its name once it is whole: a cluster is there or it is not.
    fn initdb(&self) -> Result<State, EmbeddedError> {
        // No server ever ran in what was left; and who left it may be clearing it as well, for the kernel has just ended it.
        for left in unfinished_in(&self.data) {
            let _ = fs::remove_dir_all(&left);
        }
        let unfinished = self.data.with_extension(format!("{UNFINISHED}{}", std::process::id()));
        make_dir(&unfinished, 0o700, self.user)?;
        let mut command = self.command("initdb")?;
        command.arg("--pgdata").arg(&unfinished).args([
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--auth-local=trust",
            "--auth-host=reject",
            "--no-instructions",
            // Synced as a whole by `keep`, which is a second faster than file by file.
            "--no-sync",
        ]);
        command.arg(format!("--username={ROLE}"));
        let child = command.spawn().map_err(|e| trouble("run initdb in", &self.binaries.dir, &e))?;
        Ok(State::Initdb { child, unfinished })
    }

    fn run(&self) -> Result<State, EmbeddedError> {
        let mut command = self.command("postgres")?;
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.socket_dir);
        for (name, value) in settings(memory(), self.binaries.has_lz4()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let child = command.spawn().map_err(|e| trouble("run postgres in", &self.binaries.dir, &e))?;
        Ok(State::Running { child, since: Instant::now(), ready: false })
    }

    /// A program of the server: as its user, in a process group of its own (a terminal's Ctrl-C is the broker's to
    /// handle), writing to the log, and ended by the kernel with this thread.
    fn command(&self, program: &str) -> Result<Command, EmbeddedError> {
        let log = open_log(&self.log).map_err(|e| trouble("write", &self.log, &e))?;
        let both = log.try_clone().map_err(|e| trouble("write", &self.log, &e))?;
        self.log_from.set(log.metadata().map_or(0, |meta| meta.len()));
        let mut command = Command::new(self.binaries.dir.join(program));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.stdin(Stdio::null()).stdout(both).stderr(log).process_group(0).current_dir("/");
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let broker = std::process::id() as i32;
        // SAFETY: between fork and exec only calls that are async-signal-safe. It runs after setuid, which would clear
        // the wish; and if the broker died before the wish was made, nobody would fulfil it.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT) != 0 {
                    return Err(io::Error::last_os_error());
                }
                match libc::getppid() == broker {
                    true => Ok(()),
                    false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                }
            });
        }
        Ok(command)
    }

    /// The last line that says something of what the program wrote that was started last, and where to read the rest.
    fn last_words(&self) -> String {
        last_words(&self.log, self.log_from.get())
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Settings of a server that a broker has to itself.
///
/// `memory`: bytes this machine or container has. Source: operations 8.3; rule 28.
fn settings(memory: u64, lz4: bool) -> Vec<(&'static str, String)> {
    const MB: u64 = 1 << 20;
    let buffers = (memory / 8 / MB).clamp(64, 2048);
    let fixed = [
        ("listen_addresses", ""),
        ("unix_socket_permissions", "0700"),
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        // Four a shard for 50 shards, or two a shard for 100, and the control thread's.
        ("max_connections", "220"),
        // Recovery reads at most about this much WAL, a stop writes at most shared_buffers.
        ("max_wal_size", "2GB"),
        ("min_wal_size", "256MB"),
        ("checkpoint_timeout", "5min"),
        ("checkpoint_completion_target", "0.9"),
        // Every statement is short and planned once; compiling one would cost more than it.
        ("jit", "off"),
        // No parallel plans: they need /dev/shm, which containers make tiny.
        ("max_parallel_workers_per_gather", "0"),
        ("random_page_cost", "1.1"),
        ("autovacuum_naptime", "15s"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
        ("log_destination", "stderr"),
        ("logging_collector", "off"),
        ("log_checkpoints", "off"),
        ("log_line_prefix", "%m [%p] "),
        ("cluster_name", "queen"),
    ];
    let mut all: Vec<_> = fixed.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    all.push(("port", PORT.to_string()));
    all.push(("shared_buffers", format!("{buffers}MB")));
    all.push(("effective_cache_size", format!("{}MB", (memory / 2 / MB).max(128))));
    all.push(("wal_compression", if lz4 { "lz4" } else { "on" }.to_owned()));
    all
}

/// Bytes of memory: the machine's, or the container's limit when it has one.
fn memory() -> u64 {
    const UNKNOWN: u64 = 1 << 30;
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let machine = total.map_or(UNKNOWN, |kb: u64| kb << 10);
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    machine.min(limit.unwrap_or(u64::MAX))
}

/// Whether the data directory is free of processes; asks them to end, harder after OLD_SERVER_CLEAN.
///
/// `signalled`: the last signal sent.
fn leave(data: &Path, waited: Duration, signalled: &mut i32) -> Result<bool, EmbeddedError> {
    let left = leftovers::processes_in(data);
    if left.is_empty() {
        return Ok(true);
    }
    if OLD_SERVER_MAX < waited {
        return Err(EmbeddedError(format!(
            "{} is still in use by process {} of an earlier server, which does not end; stop it",
            data.display(),
            left[0]
        )));
    }
    let wish = if waited < OLD_SERVER_CLEAN { libc::SIGINT } else { libc::SIGQUIT };
    // Its children end with it, or by themselves when it is gone.
    let server = leftovers::pid_in(&data.join("postmaster.pid")).filter(|pid| left.contains(pid));
    if let (Some(pid), true) = (server, *signalled != wish) {
        signal(pid, wish);
        *signalled = wish;
    }
    Ok(false)
}

/// Makes a finished cluster durable and gives it its name.
fn keep(unfinished: &Path, data: &Path) -> io::Result<()> {
    let dir = File::open(unfinished)?;
    // SAFETY: an open descriptor; writes out the file system it is on.
    if unsafe { libc::syncfs(dir.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fs::rename(unfinished, data)?;
    File::open(data.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// The lock of a data directory, with the number of its holder inside.
fn lock(data_dir: &Path) -> Result<File, EmbeddedError> {
    let path = data_dir.join("queen.lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(&path)
        .map_err(|e| trouble("write", &path, &e))?;
    // SAFETY: an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let why = io::Error::last_os_error();
        if why.kind() != io::ErrorKind::WouldBlock {
            return Err(trouble("lock", &path, &why));
        }
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        return Err(EmbeddedError(format!(
            "{} is in use by another broker (process {}); stop it, or set QUEEN_DATA_DIR to another directory",
            data_dir.display(),
            holder.trim()
        )));
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| trouble("write", &path, &e))?;
    Ok(file)
}

/// The major that made the cluster in `data`; `None` when there is none yet.
fn major_of_cluster(data: &Path) -> Result<Option<u32>, EmbeddedError> {
    let file = data.join("PG_VERSION");
    match fs::read_to_string(&file) {
        Ok(text) => match text.trim().parse() {
            Ok(major) => Ok(Some(major)),
            Err(_) => Err(EmbeddedError(format!("{} says \"{}\", not a version", file.display(), text.trim()))),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            match fs::read_dir(data).map(|mut entries| entries.next().is_some()) {
                Ok(true) => Err(EmbeddedError(format!(
                    "{} is not empty and not a cluster of PostgreSQL; move it away, or set QUEEN_DATA_DIR",
                    data.display()
                ))),
                _ => Ok(None),
            }
        }
        Err(e) => Err(trouble("read", &file, &e)),
    }
}

/// Where the socket goes: `run` in the data directory, or a short directory of the same name for ever.
fn socket_dir(data_dir: &Path) -> PathBuf {
    let near = data_dir.join("run");
    let fits = |dir: &Path| dir.as_os_str().len() + format!("/.s.PGSQL.{PORT}").len() < SOCKET_PATH_MAX;
    if fits(&near) {
        return near;
    }
    let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        _ if is_root() => PathBuf::from("/run"),
        Some(dir) if dir.is_absolute() && dir.is_dir() && fits(&dir.join("queen-0123456789abcdef")) => dir,
        _ => PathBuf::from("/tmp"),
    };
    // FNV-1a: the same directory gives the same name in every build.
    let hash = data_dir
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    base.join(format!("queen-{hash:016x}"))
}

/// Makes a directory, and the ones above it, unless it is there.
fn make_dir(dir: &Path, mode: u32, owner: Option<User>) -> Result<(), EmbeddedError> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above).map_err(|e| trouble("make", above, &e))?;
    }
    match fs::DirBuilder::new().mode(mode).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(trouble("make", dir, &e)),
        _ => {}
    }
    let settled = fs::set_permissions(dir, fs::Permissions::from_mode(mode)).and_then(|()| match owner {
        Some(user) => chown(dir, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    });
    settled.map_err(|e| trouble("make", dir, &e))
}

/// A directory of the server must be its user's, and a real one: /tmp is everybody's.
fn check_owner(dir: &Path, user: Option<User>) -> Result<(), EmbeddedError> {
    let Ok(meta) = fs::symlink_metadata(dir) else { return Ok(()) };
    // SAFETY: cannot fail.
    let uid = user.map_or_else(|| unsafe { libc::geteuid() }, |user| user.uid);
    match meta.uid() == uid && (meta.is_dir() || meta.is_symlink() && user.is_none()) {
        true => Ok(()),
        false => Err(EmbeddedError(format!(
            "{} belongs to user {}, the server runs as user {uid}; run the broker as that user, or: chown -R {uid} {}",
            dir.display(),
            meta.uid(),
            dir.display()
        ))),
    }
}

fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The user `postgres`: the server refuses to run as root.
fn user_of_server() -> Result<User, EmbeddedError> {
    const NAME: &CStr = c"postgres";
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut strings = [0 as libc::c_char; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: all buffers outlive the call, their lengths are told; `found` is null unless `entry` was filled.
    let user = unsafe {
        libc::getpwnam_r(NAME.as_ptr(), entry.as_mut_ptr(), strings.as_mut_ptr(), strings.len(), &mut found);
        found.as_ref().map(|entry| User { uid: entry.pw_uid, gid: entry.pw_gid })
    };
    user.ok_or_else(|| {
        let text = "PostgreSQL does not run as root and there is no user \"postgres\" to run it as; \
            make one: useradd --system postgres (or run the broker as an ordinary user)";
        EmbeddedError(text.into())
    })
}

/// Clusters beside this one that were not made to their end.
fn unfinished_in(data: &Path) -> Vec<PathBuf> {
    let entries = data.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let prefix = format!("postgres.{UNFINISHED}");
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).map(|entry| entry.path()).collect()
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| LOG_BYTES_MAX < meta.len()) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

/// `from`: where to begin at the earliest.
fn last_words(log: &Path, from: u64) -> String {
    const TAIL: u64 = 4096;
    const TELLING: [&str; 5] = ["FATAL:", "PANIC:", "error:", "ERROR:", "could not"];
    let mut tail = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let end = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(from.max(end.saturating_sub(TAIL))))?;
        file.read_to_end(&mut tail)
    });
    let text = String::from_utf8_lossy(&tail);
    let telling = |line: &&str| TELLING.iter().any(|word| line.contains(word));
    let line = text.lines().rev().find(telling).or_else(|| text.lines().rev().find(|line| !line.trim().is_empty()));
    match (read, line) {
        (Ok(_), Some(line)) => format!("{} (see {})", line.trim(), log.display()),
        _ => format!("see {}", log.display()),
    }
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: any number is fine; a process that is gone is an error that means done.
    unsafe { libc::kill(pid, signal) };
}

fn wait_within(child: &mut Child, longest: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + longest;
    loop {
        match child.try_wait() {
            Ok(Some(exit)) => return Some(exit),
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_SOON),
            Ok(None) => return None,
            Err(_) => return Some(ExitStatus::from_raw(-1)),
        }
    }
}

fn trouble(verb: &str, path: &Path, why: &io::Error) -> EmbeddedError {
    EmbeddedError(format!(
        "cannot {verb} {}: {why}; make it writable, or set QUEEN_DATA_DIR to another directory",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_those_of_the_program_that_ran_last() {
        let log = std::env::temp_dir().join(format!("queen-last-words-{}", std::process::id()));
        let before = "2026-01-01 FATAL:  terminating connection due to unexpected postmaster exit\n";
        for (now, says) in [
            (
                "postgres: could not find the database system\nExpected to find it in the directory\n",
                "postgres: could not find",
            ),
            ("a hint\n", "a hint"),
            ("", "see "),
        ] {
            fs::write(&log, format!("{before}{now}")).unwrap();
            let said = last_words(&log, before.len() as u64);
            assert!(said.starts_with(says), "{said}");
        }
        fs::remove_file(&log).unwrap();
    }
}
