//! Child processes that never outlive the test binary, free ports, the directory everything lives in.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};

/// Starts a child that gets `signal` when this process ends, however it ends.
///
/// The kernel sends that signal when the *thread* that forked ends, and every test has a thread of its own; so one
/// thread that lives as long as the process does all the forking.
pub fn spawn(mut command: Command, signal: i32) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (send, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(send)
    });
    // SAFETY: prctl is async-signal-safe. It runs after the change of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, signal) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let (reply, child) = mpsc::channel();
    spawner.lock().unwrap().send((command, reply)).expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers")
}

/// Sends a signal to one process.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill takes two integers; a pid that is gone answers ESRCH.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Whether tests run as root (PostgreSQL's server then needs another user).
pub fn is_root() -> bool {
    // SAFETY: geteuid cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Lets a command run as user `postgres` when this process is root.
pub fn as_postgres(command: &mut Command) {
    if is_root() {
        let (uid, gid) = postgres_user();
        command.uid(uid).gid(gid);
    }
}

/// Gives a path to the user PostgreSQL runs as.
pub fn give_to_postgres(path: &Path) {
    if is_root() {
        let (uid, gid) = postgres_user();
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown to postgres");
    }
}

fn postgres_user() -> (u32, u32) {
    let passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let line = passwd.lines().find(|l| l.starts_with("postgres:")).expect("user postgres (PostgreSQL's package)");
    let mut fields = line.split(':').skip(2).map(|f| f.parse().expect("a number"));
    (fields.next().expect("uid"), fields.next().expect("gid"))
}

/// A loopback port nobody listens on. Below the ephemeral range, so that no outgoing connection takes it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    let start = (std::process::id() as u16).wrapping_mul(97);
    for _ in 0..COUNT {
        let port = FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}

/// A new directory, readable by all (PostgreSQL runs as another user), removed when the test binary ends.
/// `QUEEN_TESTS_KEEP=1` keeps it.
pub fn scratch_dir(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir = base().join(format!("{name}{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    make_dir(&dir);
    dir
}

fn make_dir(dir: &Path) {
    std::fs::create_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("chmod 755");
}

fn base() -> &'static Path {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| {
        let nanos = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").subsec_nanos();
        let dir = std::env::temp_dir().join(format!("queen-tests-{}-{nanos}", std::process::id()));
        make_dir(&dir);
        // SAFETY: registers a handler that takes nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
        dir
    })
}

/// Ends the shared processes in order and removes what they left.
extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| {
        super::broker::stop_shared();
        super::postgres::stop_shared();
        if std::env::var_os("QUEEN_TESTS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(base());
        }
    });
}
