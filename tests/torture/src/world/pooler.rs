//! A pgbouncer in transaction mode between the brokers and PostgreSQL: each transaction may run in another session.

use super::process::{as_postgres, free_port, give_to_postgres, spawn};
use std::fs::OpenOptions;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where Debian's package puts it; no path of a user's shell.
const BINARY: &str = "/usr/sbin/pgbouncer";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Fewer than the connections of a broker with two shards: sessions are really shared.
const SESSIONS: u32 = 4;

pub struct Pooler {
    pub port: u16,
    child: Child,
}

impl Pooler {
    /// Whether this machine has one.
    pub fn is_there() -> bool {
        Path::new(BINARY).exists()
    }

    /// Starts one before PostgreSQL on `target`; waits until it listens.
    pub fn start(dir: &Path, target: u16) -> io::Result<Pooler> {
        std::fs::create_dir_all(dir)?;
        give_to_postgres(dir)?;
        let port = free_port()?;
        let conf: PathBuf = dir.join("pgbouncer.ini");
        // Whoever comes is let in as this user, unasked.
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={target} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {SESSIONS}\nmax_client_conn = 200\n"
        );
        std::fs::write(&conf, text)?;
        let log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
        let mut command = Command::new(BINARY);
        command.arg(&conf).current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        as_postgres(&mut command);
        let mut pooler = Pooler { port, child: spawn(command, libc::SIGKILL)? };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if pooler.child.try_wait()?.is_some() || START_TIMEOUT < began.elapsed() {
                let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
                return Err(io::Error::other(format!("pgbouncer does not come up\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
