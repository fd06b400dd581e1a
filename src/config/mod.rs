//! The settings of one broker: the only reader of the environment.
//!
//!     environment -> Reader (rules of operations 1.1) -> Config, or every reason not to start at once
//!
//! Read once, before anything listens; a change needs a restart. The rows are in [`settings`], the text about them
//! (boot lines, `docs/settings.md`) in [`report`].

pub mod auth;
pub mod postgres;
pub mod read;
pub mod report;
pub mod settings;
#[cfg(test)]
mod tests;

pub use postgres::Postgres;

use crate::cipher::Key;
use crate::telemetry::log::Level;
use queen_shards::command::Start;
use read::Reader;
use settings::{Force, Kind};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A person at a terminal gets the first screen, trouble, and a word at the end, unless they ask for more.
const ON_A_TERMINAL: &str = "warn,shutdown=info";

/// What drives the sockets of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring where the host allows it, else epoll.
    Auto,
    IoUring,
    Epoll,
}

/// Every value in force that some part of the broker reads.
#[derive(Clone)]
pub struct Config {
    // Server.
    /// Host or IP without brackets; [`Config::listen`] joins it with the port.
    pub bind_addr: String,
    pub port: u16,
    pub max_body_bytes: usize,
    /// PEM files of certificate and key; `None`: connections are not secured.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub max_inflated_bytes: usize,
    pub apply_schema: bool,
    /// 0: the broker chooses.
    pub shards: usize,
    pub driver: Driver,
    /// Absolute.
    pub data_dir: PathBuf,
    pub server_id: String,
    // PostgreSQL.
    pub postgres: Postgres,
    pub db_pool_size: usize,
    pub push_commit_timeout: Duration,
    pub stmt_timeout: Duration,
    // Authentication.
    /// `None`: everybody may do everything.
    pub jwt: Option<Arc<auth::Jwt>>,
    /// Requests name their tenant.
    pub tenancy: bool,
    pub encryption: Key,
    /// How often what another broker may have changed is read again.
    pub cache_refresh: Duration,
    // Engine.
    pub zstd_level: i32,
    /// All shards together.
    pub dedup_cache_bytes: u64,
    pub window_batch: u32,
    // Consume and long poll.
    /// Park time of a waiting pop that names none.
    pub pop_timeout: Duration,
    /// Start of a group whose pop names no mode. Never [`Start::At`].
    pub default_start: Start,
    // Spool.
    /// Absolute.
    pub spool_dir: PathBuf,
    pub spool_bytes_max: u64,
    pub spool_events_per_file: u64,
    /// This broker, among those of its database: a UUID that its spool directory keeps.
    pub broker_id: String,
    /// Pops that ask for it get chosen what they leave open.
    pub autopilot: bool,
    /// Messages that it chooses.
    pub autopilot_batch: u32,
    // Jobs.
    pub stats_interval: Duration,
    pub retention_interval: Duration,
    pub retention_batch_size: u32,
    /// Partitions of one sweep; 0 derives it.
    pub retention_due_cap: u64,
    /// Hints between brokers. Source: operations 1.3.
    pub sync: bool,
    pub partition_cleanup: bool,
    pub partition_cleanup_days: u32,
    pub metrics_retention_days: u32,
    pub retained_interval: Duration,
    // Logging.
    pub log_filter: String,
    pub log_json: bool,
    pub log_rates: Duration,
    pub log_queues: usize,
    pub metrics_flush: Duration,
    /// What to say about the configuration at boot, in order.
    pub boot_lines: Vec<BootLine>,
}

/// One log line about the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootLine {
    pub level: Level,
    pub target: &'static str,
    pub message: String,
    pub fields: Vec<(String, String)>,
}

impl BootLine {
    /// Writes the line to the log.
    pub fn log(&self) {
        let fields: Vec<_> = self.fields.iter().map(|(k, v)| (k.as_str(), v as &dyn std::fmt::Display)).collect();
        crate::telemetry::log::write(self.level, self.target, &self.message, &fields);
    }
}

impl Config {
    /// [`Config::broker_id`] as a number.
    pub fn broker(&self) -> u128 {
        uuid::Uuid::parse_str(&self.broker_id).unwrap_or_default().as_u128()
    }

    /// The environment of this process, judged. `Err`: every reason not to start, one line each, to be logged as
    /// `FATAL: <line>` before exit code 1.
    pub fn from_env() -> Result<Config, Vec<String>> {
        // SAFETY: geteuid cannot fail and touches no memory.
        let root = unsafe { libc::geteuid() } == 0;
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        let vars: BTreeMap<_, _> = std::env::vars_os().map(|(k, v)| (text(k), text(v))).collect();
        let mut config = Config::from_vars(&vars, root)?;
        let asked = ["LOG_LEVEL", "RUST_LOG"].iter().any(|name| vars.get(*name).is_some_and(|v| !v.is_empty()));
        if crate::telemetry::screen::wanted() && !asked {
            config.log_filter = ON_A_TERMINAL.to_owned();
        }
        Ok(config)
    }

    /// The same for given variables; `root`: whether the process runs as root.
    pub fn from_vars(vars: &BTreeMap<String, String>, root: bool) -> Result<Config, Vec<String>> {
        let mut reader = Reader::new(vars);
        let r = &mut reader;
        let ms = |n: i64| Duration::from_millis(n as u64);

        let jwt = auth::read(r).map(Arc::new);
        let auth = r.bool("JWT_ENABLED");
        let bind_addr = bind_addr(r, auth);
        let port = port(r);
        let encryption = encryption(r);
        let max_body_bytes = r.int("QUEEN_MAX_BODY_BYTES") as usize;
        let max_inflated_bytes = match r.int("QUEEN_MAX_INFLATED_BYTES") as usize {
            0 => max_body_bytes.min(crate::wire::INFLATED_MAX as usize),
            n => n,
        };
        r.holds("QUEEN_MAX_INFLATED_BYTES", max_inflated_bytes);
        let postgres = postgres::read(r);
        let embedded = matches!(postgres, Postgres::Embedded);
        let first_timeout = r.int("POP_DEFAULT_TIMEOUT_MS");
        let config = Config {
            bind_addr,
            port,
            max_body_bytes,
            tls: tls(r),
            max_inflated_bytes,
            apply_schema: r.bool("QUEEN_APPLY_SCHEMA"),
            shards: r.int("QUEEN_SHARDS") as usize,
            driver: driver(r),
            data_dir: data_dir(r, root, embedded),
            server_id: server_id(r),
            postgres,
            db_pool_size: r.int("DB_POOL_SIZE") as usize,
            push_commit_timeout: ms(r.int("QUEEN_PUSH_COMMIT_TIMEOUT_MS")),
            stmt_timeout: ms(r.int("QUEEN_STMT_TIMEOUT_MS")),
            jwt,
            tenancy: tenancy(r),
            encryption,
            cache_refresh: ms(r.int("QUEEN_CACHE_REFRESH_INTERVAL_MS")),
            zstd_level: r.int("QUEEN_V2_ZSTD_LEVEL") as i32,
            dedup_cache_bytes: (r.int("QUEEN_DEDUP_CACHE_MB") as u64) << 20,
            window_batch: r.int("QUEEN_HOTLIST_WINDOW_BATCH") as u32,
            pop_timeout: ms(match r.raw("DEFAULT_TIMEOUT").and_then(|t| t.trim().parse::<u64>().ok()) {
                Some(_) => r.int("DEFAULT_TIMEOUT"),
                None => first_timeout,
            }),
            default_start: default_start(r),
            spool_dir: PathBuf::new(),
            spool_bytes_max: r.int("FILE_BUFFER_MAX_BYTES") as u64,
            spool_events_per_file: r.int("FILE_BUFFER_EVENTS_PER_FILE") as u64,
            broker_id: uuid::Uuid::new_v4().hyphenated().to_string(),
            autopilot: autopilot(r),
            autopilot_batch: r.int("QUEEN_POP_AUTOPILOT_BATCH") as u32,
            stats_interval: ms(r.int("STATS_INTERVAL_MS")),
            retention_interval: ms(r.int("RETENTION_INTERVAL")),
            retention_batch_size: r.int("RETENTION_BATCH_SIZE") as u32,
            retention_due_cap: r.int("QUEEN_RETENTION_DUE_CAP") as u64,
            sync: r.bool("QUEEN_SYNC_ENABLED"),
            partition_cleanup: r.bool("QUEEN_PARTITION_CLEANUP_ENABLED"),
            partition_cleanup_days: r.int("PARTITION_CLEANUP_DAYS") as u32,
            metrics_retention_days: r.int("METRICS_RETENTION_DAYS") as u32,
            retained_interval: ms(r.int("RETAINED_BYTES_INTERVAL_MS")),
            log_filter: log_filter(r),
            log_json: r.bool("QUEEN_LOG_JSON"),
            log_rates: ms(r.int("QUEEN_LOG_RATES_MS")),
            metrics_flush: ms(r.int("METRICS_FLUSH_MS")),
            log_queues: r.int("QUEEN_LOG_TOPN_QUEUES") as usize,
            boot_lines: Vec::new(),
        };
        let config = Config { spool_dir: spool_dir(r, &config.data_dir, embedded), ..config };
        r.holds("DEFAULT_TIMEOUT", config.pop_timeout.as_millis());
        for setting in settings::rows().filter(|s| s.force != Force::Live) {
            r.check(setting);
        }
        reader.fatal.dedup();
        if !reader.fatal.is_empty() {
            return Err(reader.fatal);
        }
        Ok(Config { boot_lines: report::boot_lines(&reader, vars, embedded, auth, encryption), ..config })
    }

    /// The listener's address, IPv6 in brackets.
    pub fn listen(&self) -> String {
        match self.bind_addr.contains(':') {
            true => format!("[{}]:{}", self.bind_addr, self.port),
            false => format!("{}:{}", self.bind_addr, self.port),
        }
    }

    /// All defaults, embedded PostgreSQL. For tests.
    pub fn for_tests() -> Config {
        Config::from_vars(&BTreeMap::from([("HOSTNAME".into(), "test".into())]), true).expect("defaults are valid")
    }
}

/// Source: operations 1.2, row 5.
fn bind_addr(r: &mut Reader, auth: bool) -> String {
    let default = if auth { "0.0.0.0" } else { "127.0.0.1" };
    let text = r.raw("QUEEN_BIND_ADDR").unwrap_or(default).trim();
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if bare.is_empty() {
        r.fatal.push("QUEEN_BIND_ADDR is empty (expected a host or an IP address, such as 0.0.0.0)".into());
    } else if bare.contains(':') && bare.parse::<std::net::Ipv6Addr>().is_err() {
        r.fatal.push(format!("QUEEN_BIND_ADDR=\"{text}\" carries a port (set PORT for that)"));
    }
    if !auth && !is_loopback(bare) {
        r.warn(
            "boot",
            format!("authentication is off and {bare} is not loopback: whoever reaches the port may do everything"),
        );
    }
    r.holds("QUEEN_BIND_ADDR", bare);
    bare.to_owned()
}

/// Whether only this machine can reach an address. A name other than `localhost` may be anything.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Source: operations 3.1; reliability 0, decision 1.
fn encryption(r: &mut Reader) -> Key {
    let key = Key::of(&r.text("QUEEN_ENCRYPTION_KEY"));
    let required = r.bool("QUEEN_ENCRYPTION_REQUIRED");
    let why = match key {
        Key::Usable(_) => None,
        Key::Unset => Some("QUEEN_ENCRYPTION_KEY is not set"),
        Key::Malformed(why) => Some(why),
    };
    match (required, why) {
        (true, Some(why)) => {
            r.fatal.push(format!("QUEEN_ENCRYPTION_REQUIRED is on, but there is no usable key: {why}"))
        }
        (false, Some(why)) if key != Key::Unset => r.warn("encryption", format!("{why}; encryption DISABLED")),
        _ => {}
    }
    key
}

/// Source: operations 1.2, row 3.
fn tenancy(r: &mut Reader) -> bool {
    let (on, trusted) = (r.bool("QUEEN_TENANCY_HEADER"), r.bool("QUEEN_KV_TRUSTED_PROXY"));
    if on && !trusted {
        let text = "QUEEN_TENANCY_HEADER is on without QUEEN_KV_TRUSTED_PROXY: any client could name any tenant";
        r.fatal.push(text.into());
    }
    on
}

fn port(r: &mut Reader) -> u16 {
    let text = r.text("PORT");
    text.trim().parse().unwrap_or_else(|_| {
        r.fatal.push(format!("PORT=\"{text}\" is not a port (expected 0 to 65535)"));
        0
    })
}

/// Source: operations 2.7.
fn tls(r: &mut Reader) -> Option<(PathBuf, PathBuf)> {
    let (cert, key) = (r.text("QUEEN_TLS_CERT"), r.text("QUEEN_TLS_KEY"));
    if cert.is_empty() != key.is_empty() {
        r.fatal.push("QUEEN_TLS_CERT and QUEEN_TLS_KEY belong together: one of them is not set".into());
    }
    (!cert.is_empty() && !key.is_empty()).then(|| (cert.into(), key.into()))
}

fn driver(r: &mut Reader) -> Driver {
    let text = r.text("QUEEN_RUNTIME");
    match text.trim() {
        "" | "auto" => Driver::Auto,
        "io_uring" => Driver::IoUring,
        "epoll" => Driver::Epoll,
        _ => {
            r.fatal.push(format!("QUEEN_RUNTIME=\"{text}\" is not a driver (expected auto, io_uring or epoll)"));
            Driver::Auto
        }
    }
}

/// `QUEEN_DATA_DIR`, else `/var/lib/queen` as root, else `queen` in the XDG data directory.
fn data_dir(r: &mut Reader, root: bool, needed: bool) -> PathBuf {
    let xdg = r.filled("XDG_DATA_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let home = r.filled("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let dir = match (r.filled("QUEEN_DATA_DIR"), root, xdg.or(home)) {
        (Some(named), _, _) => PathBuf::from(named),
        (None, false, Some(base)) => base.join("queen"),
        (None, false, None) if needed => {
            r.fatal.push("QUEEN_DATA_DIR is unset, and neither XDG_DATA_HOME nor HOME says where data may go".into());
            PathBuf::new()
        }
        (None, _, _) => PathBuf::from("/var/lib/queen"),
    };
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    r.holds("QUEEN_DATA_DIR", dir.display());
    dir
}

/// `FILE_BUFFER_DIR`, else `buffers` beside the embedded PostgreSQL, else `/var/lib/queen/buffers`.
fn spool_dir(r: &mut Reader, data_dir: &std::path::Path, embedded: bool) -> PathBuf {
    let dir = match r.filled("FILE_BUFFER_DIR") {
        Some(named) => PathBuf::from(named),
        None if embedded => data_dir.join("buffers"),
        None => PathBuf::from("/var/lib/queen/buffers"),
    };
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    r.holds("FILE_BUFFER_DIR", dir.display());
    dir
}

fn server_id(r: &mut Reader) -> String {
    let named = r.filled("QUEEN_SERVER_ID").or(r.filled("HOSTNAME")).map(str::to_owned);
    let id = named.unwrap_or_else(|| {
        let random = uuid::Uuid::now_v7().as_u128() as u32; // The low bits of a v7 are random.
        format!("queen-{random:08x}")
    });
    r.holds("QUEEN_SERVER_ID", &id);
    id
}

fn default_start(r: &mut Reader) -> Start {
    let text = r.text("DEFAULT_SUBSCRIPTION_MODE");
    match text.trim().to_lowercase().as_str() {
        "new" | "new-only" | "new_only" | "newonly" => Start::New,
        _ => Start::All,
    }
}

fn log_filter(r: &mut Reader) -> String {
    let level = r.text("LOG_LEVEL");
    let filter = r.text("RUST_LOG");
    if filter.is_empty() { level } else { filter }
}

/// The mode of the autopilot is strict text; `shadow` computes, applies nothing and says nothing, so nothing is computed.
/// Source: operations 1.1.4; state plane 6.2.
fn autopilot(r: &mut Reader) -> bool {
    let text = r.text("QUEEN_POP_AUTOPILOT");
    match text.trim() {
        "" => true,
        "shadow" => false,
        mode => read::parse_bool(mode).unwrap_or_else(|| {
            let why = "is not a mode (expected on, shadow, off or a boolean)";
            r.fatal.push(format!("QUEEN_POP_AUTOPILOT=\"{text}\" {why}"));
            false
        }),
    }
}

/// Whether a setting's text could hold a secret.
pub(crate) fn is_secret(kind: Kind) -> bool {
    matches!(kind, Kind::Secret(_))
}
