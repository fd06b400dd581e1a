//! One broker process behind its proxies, and the ways to hurt it.

use super::postgres::DATABASE;
use super::process::{free_port, signal, spawn};
use crate::client::Client;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Boot waits for the database and, after a kill, for the old ring's sockets.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const LOG_TAIL_LINES: usize = 40;
/// A second or two of an outage: files rotate, and several wait for their drain.
const EVENTS_PER_FILE: u32 = 200;

pub struct Broker {
    binary: PathBuf,
    env: Vec<(String, String)>,
    dir: PathBuf,
    /// Its own port; clients go through a proxy.
    pub port: u16,
    child: Mutex<Option<Child>>,
}

impl Broker {
    /// `database_port`: of the proxy before PostgreSQL. `env`: on top of what the rig needs.
    pub fn new(binary: &Path, dir: &Path, database_port: u16, env: &[(String, String)]) -> io::Result<Broker> {
        std::fs::create_dir_all(dir.join("spool"))?;
        let mut all: Vec<(String, String)> = [
            ("PG_HOST", "127.0.0.1".to_owned()),
            ("PG_PORT", database_port.to_string()),
            ("PG_DATABASE", DATABASE.to_owned()),
            ("QUEEN_DATA_DIR", dir.join("data").display().to_string()),
            ("FILE_BUFFER_DIR", dir.join("spool").display().to_string()),
            ("FILE_BUFFER_EVENTS_PER_FILE", EVENTS_PER_FILE.to_string()),
            ("RETENTION_INTERVAL", "500".to_owned()),
            ("QUEEN_ENCRYPTION_KEY", "5eed".repeat(16)),
            ("QUEEN_SHARDS", "2".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        all.extend_from_slice(env);
        let port = free_port()?;
        Ok(Broker { binary: binary.to_owned(), env: all, dir: dir.to_owned(), port, child: Mutex::new(None) })
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn launch(&self) -> io::Result<()> {
        self.launch_with(&[])
    }

    /// Starts it with settings of this one life on top.
    pub fn launch_with(&self, env: &[(&str, &str)]) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(&self.binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PORT", self.port.to_string()).envs(self.env.iter().cloned());
        command.envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        *self.child() = Some(spawn(command, libc::SIGKILL)?);
        Ok(())
    }

    /// Starts it if it does not run, and waits until it serves; how long that took from the start.
    pub fn start(&self) -> io::Result<Duration> {
        self.start_until(Broker::is_ready)
    }

    /// The same until something else is so. A port that the kernel has not freed yet ends a start: then it is started
    /// again.
    pub fn start_until(&self, is_up: impl Fn(&Broker) -> bool) -> io::Result<Duration> {
        let began = Instant::now();
        loop {
            if self.ended().is_some() {
                *self.child() = None;
            }
            if self.pid().is_none() {
                self.launch()?;
            }
            if is_up(self) {
                return Ok(began.elapsed());
            }
            if began.elapsed() > READY_TIMEOUT {
                return Err(io::Error::other(format!("the broker does not come up\n{}", self.log_tail())));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// `/health` is 200, asked for directly: it has its database.
    pub fn is_ready(&self) -> bool {
        self.says_yes("/health")
    }

    /// It answers at all, whether it has a database or not.
    pub fn is_live(&self) -> bool {
        self.says_yes("/health/live")
    }

    fn says_yes(&self, path: &str) -> bool {
        let mut client = Client::new(self.port, Duration::from_secs(2));
        client.get(path).is_ok_and(|answer| answer.status == 200)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    pub fn signal(&self, number: i32) {
        if let Some(pid) = self.pid() {
            signal(pid, number);
        }
    }

    /// `kill -9`, and the end of the process.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            signal(child.id(), libc::SIGKILL);
            let _ = child.wait();
        }
    }

    /// Waits for the end of the process; false when the time is over first.
    pub fn wait_end(&self, limit: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit {
            if self.ended().is_some() {
                *self.child() = None;
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// How it ended, when it has.
    pub fn ended(&self) -> Option<String> {
        let status = self.child().as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Where it keeps its files and its log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn spool_dir(&self) -> PathBuf {
        self.dir.join("spool")
    }

    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.dir.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        self.kill();
    }
}
