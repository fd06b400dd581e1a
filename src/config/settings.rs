//! Every setting once, as a row: name, default, range, unit, reason. `docs/settings.md` is printed from these rows.
//!
//! A row says whether this version acts on it. *Later* rows belong to a part that is not built yet: the broker says at
//! boot which of them are set.
//! *Inert* rows are accepted because deployments set them; nothing reads them and nothing needs them.
//!
//! Source: operations 1.3.

use std::ops::RangeInclusive;

/// What kind of text a setting takes, and what holds without it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// true/false, 1/0, yes/no, on/off. Other text is fatal.
    Bool(bool),
    /// Text that is no number means the default; numbers outside the range are moved to its nearer end.
    Int { default: i64, min: i64, max: i64 },
    /// Text that is no number, or out of range, is fatal.
    StrictInt { default: i64, min: i64, max: i64 },
    /// Like `Int`.
    Float { default: f64, min: f64, max: f64 },
    /// Present but empty stays empty.
    Text(&'static str),
    /// Like `Text("")`; only its length is ever printed.
    Secret(&'static str),
}

/// Whether this version acts on a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    Live,
    Later,
    Inert,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub force: Force,
    /// Default as documented, where it is derived from something else.
    pub derived: &'static str,
    pub reason: &'static str,
}

/// Rows of one subsystem; its name is that of the boot line `config: <name>`.
pub struct Group {
    pub name: &'static str,
    pub rows: &'static [Setting],
}

impl Setting {
    const fn new(name: &'static str, kind: Kind, unit: &'static str, reason: &'static str) -> Setting {
        Setting { name, kind, unit, force: Force::Live, derived: "", reason }
    }
    pub const fn bool(name: &'static str, default: bool, reason: &'static str) -> Setting {
        Setting::new(name, Kind::Bool(default), "", reason)
    }
    pub const fn int(
        name: &'static str,
        default: i64,
        range: RangeInclusive<i64>,
        unit: &'static str,
        reason: &'static str,
    ) -> Setting {
        Setting::new(name, Kind::Int { default, min: *range.start(), max: *range.end() }, unit, reason)
    }
    pub const fn strict(name: &'static str, default: i64, range: RangeInclusive<i64>, reason: &'static str) -> Setting {
        Setting::new(name, Kind::StrictInt { default, min: *range.start(), max: *range.end() }, "", reason)
    }
    pub const fn float(name: &'static str, default: f64, range: RangeInclusive<f64>, reason: &'static str) -> Setting {
        Setting::new(name, Kind::Float { default, min: *range.start(), max: *range.end() }, "", reason)
    }
    pub const fn text(name: &'static str, default: &'static str, reason: &'static str) -> Setting {
        Setting::new(name, Kind::Text(default), "", reason)
    }
    pub const fn secret(name: &'static str, default: &'static str, reason: &'static str) -> Setting {
        Setting::new(name, Kind::Secret(default), "", reason)
    }
    const fn later(mut self) -> Setting {
        self.force = Force::Later;
        self
    }
    const fn inert(mut self) -> Setting {
        self.force = Force::Inert;
        self
    }
    const fn derived(mut self, text: &'static str) -> Setting {
        self.derived = text;
        self
    }
}

/// Any number up to what a signed column or a millisecond clock holds.
const ANY: i64 = i64::MAX;
/// Longest interval or deadline: 30 days. Longer ones are typing errors, and sums of them must not overflow.
const MS_MAX: i64 = 30 * 24 * 3600 * 1000;
/// Largest request body: what a 32-bit length of the binary forms can still name.
const BODY_MAX: i64 = 1 << 31;

/// Most bytes one request may inflate to: official readers refuse larger records. Source: binary forms 6.3.
const INFLATED_MAX: i64 = crate::wire::INFLATED_MAX as i64;

pub const GROUPS: &[Group] = &[
    Group {
        name: "server",
        rows: &[
            Setting::text("PORT", "6632", "HTTP port of the API and the metrics; 0 takes a free one. Not a port: fatal."),
            Setting::text("QUEEN_BIND_ADDR", "", "Address to listen on, without a port. Without authentication only this machine may call until you say otherwise; containers must set it (`0.0.0.0`).")
                .derived("`127.0.0.1` while `JWT_ENABLED` is off, else `0.0.0.0`"),
            Setting::int("QUEEN_MAX_BODY_BYTES", 67_108_864, 1..=BODY_MAX, "bytes", "Larger request bodies get 413."),
            Setting::int("QUEEN_MAX_INFLATED_BYTES", 0, 0..=INFLATED_MAX, "bytes", "Binary pushes and transactions that would inflate to more get 413; 0 means `QUEEN_MAX_BODY_BYTES`.")
                .derived("`QUEEN_MAX_BODY_BYTES`, at most 1 GiB"),
            Setting::bool("QUEEN_APPLY_SCHEMA", true, "`false`: touch no catalog at boot, serve against the schema that is there."),
            Setting::int("QUEEN_SHARDS", 0, 0..=256, "threads", "Shard threads; 0 takes 2/3 (rounded up) of the cores it may use beside the embedded PostgreSQL, all of them otherwise."),
            Setting::text("QUEEN_RUNTIME", "auto", "`io_uring`, `epoll`, or `auto`: io_uring where the host allows it. Other text: fatal."),
            Setting::text("QUEEN_DATA_DIR", "", "Directory of the embedded PostgreSQL.")
                .derived("`/var/lib/queen` as root, else `queen` in the XDG data directory"),
            Setting::text("QUEEN_TLS_CERT", "", "PEM file of a certificate and its chain: with it and `QUEEN_TLS_KEY` the port speaks TLS only. SIGHUP reads both again."),
            Setting::text("QUEEN_TLS_KEY", "", "PEM file of its private key."),
            Setting::text("QUEEN_SERVER_ID", "", "Name of this broker in logs and metrics, its own among those of a database. Nothing routes on it.")
                .derived("`HOSTNAME`, else `queen-` and 8 hex digits"),
        ],
    },
    Group {
        name: "postgres",
        rows: &[
            Setting::secret("DATABASE_URL", "", "PostgreSQL to use, as URL or `key=value` text. Without it and without any `PG_*` value below, an embedded one runs.")
                .derived("unset"),
            Setting::text("PG_HOST", "localhost", "Host, or directory of the socket. Each `PG_*` value wins over its part of `DATABASE_URL`."),
            Setting::int("PG_PORT", 5432, 1..=65535, "", "Port."),
            Setting::text("PG_USER", "postgres", "Role."),
            Setting::secret("PG_PASSWORD", "postgres", "Password."),
            Setting::text("PG_DATABASE", "postgres", "Database; an empty value counts as unset.").derived("`PG_DB`, else `postgres`"),
            Setting::text("PG_DB", "", "Older name of `PG_DATABASE`, used when that is empty or unset.").derived("unset"),
            Setting::bool("PG_USE_SSL", false, "TLS on every connection to your PostgreSQL, or none; sockets of this machine need none. `sslmode=require` in `DATABASE_URL` asks for the same."),
            Setting::bool("PG_SSL_REJECT_UNAUTHORIZED", true, "`false`: accept any certificate; boot warns."),
            Setting::text("PG_SSL_ROOT_CERT", "", "The CA to trust, as PEM text, real newlines or `\\n`. It replaces the built-in public roots and is always verified. Text that is no certificate is fatal."),
            Setting::int("DB_POOL_SIZE", 160, 1..=10_000, "connections", "Most connections this broker may open. It opens what its shards use: 4 each, or 2 where that is too many, and 10; there are fewer shards where even that is too many, at least one."),
            Setting::int("QUEEN_PUSH_COMMIT_TIMEOUT_MS", 5000, 1..=MS_MAX, "ms", "Deadline of one fused push commit; past it the outcome is unknown."),
            Setting::int("QUEEN_STMT_TIMEOUT_MS", 30_000, 1..=MS_MAX, "ms", "Deadline of any other statement: cancelled, and its connection dropped."),
        ],
    },
    Group {
        name: "auth",
        rows: &[
            Setting::bool("JWT_ENABLED", false, "Authentication: every route but the public ones wants a token."),
            Setting::text("JWT_ALGORITHM", "HS256", "What a token's `alg` may be: HS256, HS384, HS512, RS256 (RS384 and RS512 as well), RS384, RS512, EdDSA, or `auto` for all of them. Other text: fatal."),
            Setting::secret("JWT_SECRET", "", "Key of the HS family, as raw text."),
            Setting::text("JWT_PUBLIC_KEY", "", "RSA or Ed25519 public key, PEM text, real newlines or `\\n`. Wins over published keys, also when it is broken."),
            Setting::text("JWT_JWKS_URL", "", "Where keys are published. Not https: boot warns."),
            Setting::int("JWT_JWKS_REFRESH_INTERVAL", 3600, 1..=MS_MAX / 1000, "s", "How often they are read. A token with an unknown key id reads them again, every 5 s at most."),
            Setting::int("JWT_JWKS_TIMEOUT_MS", 5000, 1..=MS_MAX, "ms", "Deadline of one read."),
            Setting::text("JWT_ISSUER", "", "Required issuer; empty checks none."),
            Setting::text("JWT_AUDIENCE", "", "Required audience; empty checks none."),
            Setting::int("JWT_CLOCK_SKEW", 30, 0..=MS_MAX / 1000, "s", "Tolerance of token times."),
            Setting::text("JWT_SKIP_PATHS", "/health,/metrics/prometheus,/metrics,/", "Paths without a token, comma separated. An entry that ends in `/` (not `/` alone) is a prefix."),
            Setting::text("JWT_ROLES_CLAIM", "role", "Claim with one role."),
            Setting::text("JWT_ROLES_ARRAY_CLAIM", "roles", "Claim with a list of roles."),
            Setting::text("JWT_ROLE_ADMIN", "admin", "Name of the admin role."),
            Setting::text("JWT_ROLE_READ_WRITE", "read-write", "Name of the read-write role."),
            Setting::text("JWT_ROLE_READ_ONLY", "read-only", "Name of the read-only role."),
            Setting::text("JWT_ROLE_WRITE_ONLY", "write-only", "Name of the write-only role: push, and nothing else."),
            Setting::bool("JWT_REQUIRE_EXP", false, "Refuse tokens without an expiry."),
        ],
    },
    Group {
        name: "sync",
        rows: &[
            Setting::bool("QUEEN_SYNC_ENABLED", true, "Hints between brokers of one database. Without, their reads find out."),
            Setting::text("QUEEN_MESH_PEERS", "", "Other brokers, `host` or `host:port`, comma separated.").later(),
            Setting::text("QUEEN_UDP_PEERS", "", "Older name of `QUEEN_MESH_PEERS`.").later(),
            Setting::int("QUEEN_MESH_PORT", 6633, 1..=65535, "", "TCP port of the hints.").later(),
            Setting::int("QUEEN_UDP_NOTIFY_PORT", 6633, 1..=65535, "", "Older name of `QUEEN_MESH_PORT`.").later(),
            Setting::text("QUEEN_MESH_BIND_ADDR", "", "Address of that port.").derived("`QUEEN_BIND_ADDR`").later(),
            Setting::text("QUEEN_MESH_ADVERTISE_HOST", "", "Host told to peers.").derived("the host name").later(),
            Setting::secret("QUEEN_SYNC_SECRET", "", "Shared secret of the brokers.").later(),
            Setting::int("QUEEN_SYNC_HEARTBEAT_MS", 1000, 1..=MS_MAX, "ms", "Period of the heartbeat.").later(),
            Setting::int("QUEEN_SYNC_DEAD_THRESHOLD_MS", 5000, 1..=MS_MAX, "ms", "A peer that is silent so long counts as dead.").later(),
            Setting::int("QUEEN_CACHE_REFRESH_INTERVAL_MS", 60_000, 1..=MS_MAX, "ms", "How often the flags of queues are read again, should the log of another broker that changed them have been missed."),
        ],
    },
    Group {
        name: "engine",
        rows: &[
            Setting::int("QUEEN_V2_ZSTD_LEVEL", 1, 1..=19, "", "Compression of the segments the broker packs. Level 1 packs at twice the speed of 3 for a few percent of size."),
            Setting::int("QUEEN_DEDUP_CACHE_MB", 512, 1..=1_048_576, "MiB", "Memory for dedup windows, all shards together; what does not fit is read again. Never decides a verdict."),
            Setting::int("QUEEN_HOTLIST_WINDOW_BATCH", 100, 1..=1_000_000, "messages", "So many waiting messages end a `windowBuffer` early."),
            Setting::bool("QUEEN_DEDUP_CACHE", true, "The cache is the mechanism here; it has no off switch.").inert(),
            Setting::int("QUEEN_V2_FUSION_HOLD_MS", 3, 1..=MS_MAX, "ms", "Nothing lingers here: a commit starts as soon as the previous one of its shard ends.").inert(),
            Setting::int("QUEEN_V2_FUSION_SHARDS", 8, 1..=ANY, "", "See `QUEEN_SHARDS`.").inert(),
            Setting::int("QUEEN_V2_FUSION_FRAMES", 500, 1..=ANY, "", "No effect in the original either.").inert(),
            Setting::bool("QUEEN_ACK_FUSION", true, "Acks always share commits.").inert(),
            Setting::int("QUEEN_ACK_FUSION_SHARDS", 8, 1..=ANY, "", "See `QUEEN_SHARDS`.").inert(),
            Setting::int("QUEEN_ACK_FUSION_HOLD_MS", 3, 1..=MS_MAX, "ms", "Nothing lingers here.").inert(),
            Setting::bool("QUEEN_ACK_REGISTRY", true, "Shards always remember the leases they grant.").inert(),
            Setting::int("QUEEN_ACK_REGISTRY_MB", 64, 1..=ANY, "MiB", "Bounded with the cursors of a shard.").inert(),
            Setting::bool("QUEEN_HOTLIST", true, "Shards always know which partitions have work.").inert(),
            Setting::int("QUEEN_HOTLIST_SHARDS", 8, 1..=ANY, "", "See `QUEEN_SHARDS`.").inert(),
            Setting::int("QUEEN_HOTLIST_RESEED_MS", 30_000, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_HOTLIST_RESEED_FULL_MS", 300_000, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_HOTLIST_RESEED_WINDOW_MS", 120_000, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_HOTLIST_IDLE_SWEEP_MS", 300_000, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_HOTLIST_UNSERVED_TRIM_MS", 30_000, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_ADMISSION_INIT", 96, 1..=ANY, "", "Every shard has one commit of each kind in flight; nothing is to be admitted.").inert(),
            Setting::int("QUEEN_ADMISSION_MIN", 96, 1..=ANY, "", "").inert(),
            Setting::int("QUEEN_ADMISSION_MAX", 128, 1..=ANY, "", "").inert(),
            Setting::int("QUEEN_ADMISSION_POOL_RESERVE", 16, 0..=ANY, "", "").inert(),
            Setting::int("QUEEN_ADMISSION_TRAIN_GAP_US", 300, 1..=ANY, "us", "").inert(),
            Setting::int("QUEEN_ADMISSION_TICK_MS", 500, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_ADMISSION_NOSYNC_BUDGET", 64, 1..=ANY, "", "").inert(),
            Setting::bool("QUEEN_ADMISSION_TRACE", false, "").inert(),
            Setting::float("QUEEN_ADMISSION_SHARE_PUSH", 0.25, 0.0..=1.0, "").inert(),
            Setting::float("QUEEN_ADMISSION_SHARE_POP", 0.40, 0.0..=1.0, "").inert(),
            Setting::float("QUEEN_ADMISSION_SHARE_ACK", 0.30, 0.0..=1.0, "").inert(),
            Setting::float("QUEEN_ADMISSION_SHARE_MAINT", 0.05, 0.0..=1.0, "").inert(),
            Setting::int("QUEEN_FETCH_SAFE_FLOOR_MS", 30_000, 1..=MS_MAX, "ms", "Watermark age of `partitions/changed` where open transactions cannot be read.").later(),
        ],
    },
    Group {
        name: "flow",
        rows: &[
            Setting::int("DEFAULT_TIMEOUT", 30_000, 1..=MS_MAX, "ms", "Park time of a `wait=true` pop without `timeout`.")
                .derived("`POP_DEFAULT_TIMEOUT_MS`, else 30000"),
            Setting::int("POP_DEFAULT_TIMEOUT_MS", 30_000, 1..=MS_MAX, "ms", "Second name of `DEFAULT_TIMEOUT`, which wins."),
            Setting::text("DEFAULT_SUBSCRIPTION_MODE", "new", "Start of a group that sends no mode: `new`, `new-only`, `new_only`, `newonly`; any other text is `all`."),
            Setting::int("POP_WAIT_INITIAL_INTERVAL_MS", 100, 1..=MS_MAX, "ms", "Nothing is re-checked here: a parked pop is woken by what it waits for.").inert(),
            Setting::int("POP_WAIT_BACKOFF_THRESHOLD", 3, 1..=1_000_000, "checks", "").inert(),
            Setting::float("POP_WAIT_BACKOFF_MULTIPLIER", 2.0, 1.0..=1000.0, "").inert(),
            Setting::int("POP_WAIT_MAX_INTERVAL_MS", 1000, 1..=MS_MAX, "ms", "").inert(),
            Setting::bool("QUEEN_POP_PENDING_GATE", true, "Re-checks are in memory anyway.").inert(),
            Setting::bool("QUEEN_POP_FUSION", false, "Claims always share commits.").inert(),
            Setting::int("QUEEN_POP_FUSION_SHARDS", 4, 1..=ANY, "", "").inert(),
            Setting::int("QUEEN_POP_FUSION_HOLD_MS", 3, 1..=MS_MAX, "ms", "").inert(),
            Setting::int("QUEEN_POP_FUSION_MAX_JOBS", 16, 1..=ANY, "", "").inert(),
            Setting::int("QUEEN_POP_FUSION_CONCURRENCY", 1, 1..=ANY, "", "").inert(),
            Setting::text("QUEEN_POP_AUTOPILOT", "on", "`on`, `shadow`, `off` or a boolean; other text is fatal. `on`: pops of groups that ask for it get what they leave open chosen, all ready partitions up to 64; `shadow` and `off`: they get the defaults."),
            Setting::strict("QUEEN_POP_AUTOPILOT_BATCH", 100, 1..=10_000, "Messages that the autopilot chooses; a bad value is fatal."),
            Setting::int("QUEEN_POP_AUTOPILOT_TARGET_AGE_MS", 25, 1..=MS_MAX, "ms", "Constant of a controller that adapts the width; here it is fixed.").later(),
            Setting::int("QUEEN_POP_AUTOPILOT_DWELL_MS", 500, 1..=MS_MAX, "ms", "See the target age.").later(),
            Setting::int("QUEEN_POP_AUTOPILOT_DWELL_POPS", 16, 1..=ANY, "", "See the target age.").later(),
            Setting::int("QUEEN_POP_AUTOPILOT_MAX_LANES", 50_000, 1..=ANY, "", "See the target age.").later(),
            Setting::strict("QUEEN_POP_AUTOPILOT_BURST_CAP", 0, 0..=64, "See the target age; a bad value is fatal.").later(),
        ],
    },
    Group {
        name: "jobs",
        rows: &[
            Setting::int("STATS_INTERVAL_MS", 10_000, 1000..=MS_MAX, "ms", "How often this broker's counters are added to the lifetime totals in the database, and how often, cluster-wide, queues are counted for the pages of a database with more than 5,000 partitions."),
            Setting::int("RETENTION_INTERVAL", 5000, 1..=MS_MAX, "ms", "Period of the cleanup, for the whole cluster."),
            Setting::int("RETENTION_BATCH_SIZE", 1000, 1..=1_000_000, "rows", "Rows of one bounded delete step."),
            Setting::int("RETENTION_PARALLELISM", 1, 1..=16, "", "Concurrent cleanup workers.").later(),
            Setting::strict("QUEEN_RETENTION_DUE_CAP", 0, 0..=ANY, "Partitions taken per cycle; 0 is five times the batch size; a bad value is fatal."),
            Setting::strict("QUEEN_RETENTION_SAFETY_WALK_MS", 86_400_000, 0..=ANY, "Period of the full re-derivation of due markers; a bad value is fatal.").later(),
            Setting::int("PARTITION_CLEANUP_DAYS", 30, 1..=36_500, "days", "Empty partitions idle for so long are removed."),
            Setting::bool("QUEEN_PARTITION_CLEANUP_ENABLED", true, "Off: partitions live forever."),
            Setting::int("METRICS_RETENTION_DAYS", 90, 1..=36_500, "days", "Age limit of metrics rows."),
            Setting::int("METRICS_FLUSH_MS", 60_000, 1000..=MS_MAX, "ms", "What this broker did is added to the minutes in the database so often."),
            Setting::int("RETAINED_BYTES_INTERVAL_MS", 600_000, 1000..=MS_MAX, "ms", "Period of the pass that measures stored bytes."),
        ],
    },
    Group {
        name: "file_buffer",
        rows: &[
            Setting::text("FILE_BUFFER_DIR", "/var/lib/queen/buffers", "Directory of the spool: pushes that wait for the store. Of one broker, on a disk that outlives it.").derived("`buffers` under `QUEEN_DATA_DIR` with the embedded PostgreSQL, else `/var/lib/queen/buffers`"),
            Setting::int("FILE_BUFFER_FLUSH_MS", 100, 1..=MS_MAX, "ms", "Nothing is polled here: records are drained as soon as the store answers.").inert(),
            Setting::int("FILE_BUFFER_MAX_BATCH", 100, 1..=ANY, "events", "Drained records share the commits of live pushes.").inert(),
            Setting::int("FILE_BUFFER_EVENTS_PER_FILE", 10_000, 1..=ANY, "events", "A file is closed after so many, or at 64 MiB."),
            Setting::int("FILE_BUFFER_MAX_BYTES", 8_589_934_592, 1..=ANY, "bytes", "Size cap of the directory; at the cap pushes that would be spooled are `failed`."),
        ],
    },
    Group {
        name: "security",
        rows: &[
            Setting::secret("QUEEN_ENCRYPTION_KEY", "", "Key of encryption at rest, 64 hex digits, one for all brokers. Payloads of queues with `encryptionEnabled` are stored encrypted, as are those of a queue that could not be asked for because PostgreSQL is away. Anything else: boot warns, `/health` says so, payloads are stored as they come."),
            Setting::bool("QUEEN_ENCRYPTION_REQUIRED", false, "Refuse to start without a usable key."),
            Setting::bool("QUEEN_TENANCY_HEADER", false, "Read `x-queen-tenant`: each tenant has queues of its own. Fatal without `QUEEN_KV_TRUSTED_PROXY`."),
            Setting::bool("QUEEN_KV_TRUSTED_PROXY", false, "Your word that a proxy sets that header and strips the client's."),
        ],
    },
    Group {
        name: "logging",
        rows: &[
            Setting::text("LOG_LEVEL", "info", "Level, or a filter like `info,queen::pop=debug`. Bad syntax is `info`. On a terminal, where neither this nor `RUST_LOG` is set, it is `warn,shutdown=info`."),
            Setting::text("RUST_LOG", "", "Filter; wins over `LOG_LEVEL`.").derived("unset"),
            Setting::bool("QUEEN_LOG_JSON", false, "One JSON object per line."),
            Setting::int("QUEEN_LOG_RATES_MS", 10_000, 1000..=MS_MAX, "ms", "Period of the `rates` and `sizes` lines."),
            Setting::int("QUEEN_LOG_TOPN_QUEUES", 10, 0..=1000, "queues", "Busiest queues that get a `rates` line of their own."),
        ],
    },
    Group {
        name: "kv_timers",
        rows: &[
            Setting::bool("QUEEN_KV_REQUIRE_GRANT", false, "KV is not part of this version.").later(),
            Setting::bool("QUEEN_EPHEMERAL_REQUIRE_GRANT", false, "Ephemeral queues are not part of this version.").later(),
            Setting::bool("QUEEN_SWEEPER", true, "Timers are not part of this version.").later(),
            Setting::bool("QUEEN_SWEEPER_ISOLATE_ON_PERMANENT", true, "Timers are not part of this version.").later(),
        ],
    },
];

/// Families of names that are accepted and not read: surfaces that are not built, and the original's sidecars.
/// A final `*` stands for any rest.
pub const TOLERATED: &[&str] = &[
    "QUEEN_KV_*",
    "QUEEN_TIMERS_*",
    "QUEEN_SWEEPER_*",
    "QUEEN_EPHEMERAL_*",
    "QUEEN_KAFKA_*",
    "QUEEN_SQS_*",
    "QUEEN_S3_*",
    "QUEEN_V2_BUNDLE_MAX",
    "QUEEN_V2_BUNDLE_LOG",
    "QUEEN_V2_FUSION_MAX_INFLIGHT",
    "QUEEN_V2_FUSION_MIN_FRAMES",
    "QUEEN_V2_FUSION_MIN_WAIT_MS",
];

/// Names of the 0.x generation: ignored, and named at boot when set. A `*` stands for any text.
/// Source: operations 1.4.
pub const OBSOLETE: &[&str] = &[
    "HOST",
    "WORKER_ID",
    "NUM_WORKERS",
    "DB_IDLE_TIMEOUT",
    "DB_CONNECTION_TIMEOUT",
    "DB_STATEMENT_TIMEOUT",
    "DB_LOCK_TIMEOUT",
    "DB_TCP_USER_TIMEOUT_MS",
    "DB_KEEPALIVES_IDLE",
    "DB_KEEPALIVES_INTERVAL",
    "DB_KEEPALIVES_COUNT",
    "DB_THREAD_POOL_SERVICE_THREADS",
    "LIBQUEEN_*",
    "DEFAULT_BATCH_SIZE",
    "QUEUE_BACKOFF_CLEANUP_THRESHOLD",
    "RESPONSE_*",
    "SIDECAR_*",
    "QUEEN_CONCURRENCY_MODE",
    "QUEEN_VEGAS_*",
    "QUEEN_PUSH_SLOTS",
    "QUEEN_POP_SLOTS",
    "QUEEN_REST_SLOTS",
    "QUEEN_*_PREFERRED_BATCH_SIZE",
    "QUEEN_*_MAX_HOLD_MS",
    "QUEEN_*_MAX_BATCH_SIZE",
    "QUEEN_*_MAX_CONCURRENT",
    "METRICS_SAMPLE_INTERVAL_MS",
    "METRICS_AGGREGATE_INTERVAL_S",
    "EVICTION_INTERVAL",
    "EVICTION_BATCH_SIZE",
    "QUEEN_CACHE_PARTITION_MAX",
    "QUEEN_CACHE_PARTITION_TTL_MS",
    "QUEEN_SYNC_RECV_BUFFER_MB",
    "QUEEN_KV_ENABLED",
    "QUEEN_TIMERS_ENABLED",
];

/// Every row, in the order of the table.
pub fn rows() -> impl Iterator<Item = &'static Setting> {
    GROUPS.iter().flat_map(|g| g.rows)
}

/// Whether `name` fits a pattern with at most one `*`.
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail),
    }
}
