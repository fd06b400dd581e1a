//! Child processes that never outlive the rig, free ports, signals.

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};

/// Starts a child that gets `signal` when this process ends, however it ends.
///
/// The kernel sends that signal when the *thread* that forked ends, so one thread that lives as long as the process
/// does all the forking.
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
    spawner.lock().expect("the spawner does not panic").send((command, reply)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

/// Lets a frozen PostgreSQL go on when this process ends, however it ends: what is stopped does not act on the signal
/// that [`spawn`] promises it, and its backends are no children of ours.
///
/// A shell waits for the end of its input, which is this process's, and continues the postmaster named in the file.
pub fn thaw_at_end(postmaster_pid: &Path) -> io::Result<Child> {
    const SCRIPT: &str = r#"read -r _
        pid=$(head -n 1 "$0" 2>/dev/null) && [ -n "$pid" ] || exit 0
        kill -CONT "$pid" $(grep -l "^PPid:[[:space:]]*$pid$" /proc/[0-9]*/status 2>/dev/null | cut -d / -f 3) 2>/dev/null"#;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(SCRIPT).arg(postmaster_pid).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn()
}

/// Sends a signal to one process; one that is gone does not mind.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill takes two integers.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Whether there is such a process.
pub fn is_running(pid: u32) -> bool {
    // SAFETY: kill takes two integers; signal 0 only asks.
    unsafe { libc::kill(pid as i32, 0) == 0 }
}

/// Processes whose parent is `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let parent = |candidate: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{candidate}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|candidate| parent(*candidate) == Some(pid)).collect()
}

/// Lets a command run as user `postgres` when this process is root: PostgreSQL refuses to run as root.
pub fn as_postgres(command: &mut Command) {
    if let Some((uid, gid)) = postgres_user() {
        command.uid(uid).gid(gid);
    }
}

/// Gives a path to the user PostgreSQL runs as.
pub fn give_to_postgres(path: &Path) -> io::Result<()> {
    match postgres_user() {
        Some((uid, gid)) => std::os::unix::fs::chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// `None` when this process is not root.
fn postgres_user() -> Option<(u32, u32)> {
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map_while(|field| field.parse().ok());
    Some((fields.next()?, fields.next()?))
}

/// A loopback port nobody listens on, below the ephemeral range, so that no outgoing connection takes it meanwhile.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 8_000;
    let start = (std::process::id() as u16).wrapping_mul(97);
    let ports = (0..COUNT).map(|_| FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(free).ok_or_else(|| io::Error::other("no free port"))
}
