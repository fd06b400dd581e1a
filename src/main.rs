//! The boot order, as a list. Exit code 1 with one `FATAL:` line when the broker cannot serve.

use queen::auth::Jwks;
use queen::cipher::Key;
use queen::config::{Config, Driver, Postgres};
use queen::core_thread::Core;
use queen::embedded::Embedded;
use queen::http::routes::Api;
use queen::mail::{Hub, MAILBOX_MAX, Mail, Shared, now};
use queen::spool::{self, Spool};
use queen::telemetry::{Metrics, log};
use queen::tls::Tls;
use queen::{conn, control, rt};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A port that is in use for longer is in use.
const PORT_WAIT: Duration = Duration::from_secs(2);
const PORT_PAUSE: Duration = Duration::from_millis(50);
/// Before a full mailbox is tried again.
const MAIL_PAUSE: Duration = Duration::from_millis(1);

const HELP: &str = "\
queen: a message broker with the Queen MQ HTTP API, on PostgreSQL

It takes no arguments: settings are environment variables, and none is needed.
    PORT, QUEEN_BIND_ADDR    where it listens (6632, loopback while authentication is off)
    DATABASE_URL, PG_*       the PostgreSQL to use; a private one is started without them
    QUEEN_DATA_DIR           where the private one and the spool live
All of them: docs/settings.md.";

fn main() -> ExitCode {
    let started = Instant::now();
    match argument().as_deref() {
        Some("--help" | "-h") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some("--version" | "-V") => {
            println!("queen {}", queen::http::health::VERSION);
            return ExitCode::SUCCESS;
        }
        _ => queen::mail::now(),
    };
    match boot(started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reasons) => {
            for reason in reasons {
                queen::error!("boot", format!("FATAL: {reason}"));
            }
            ExitCode::FAILURE
        }
    }
}

/// The first argument, whatever its bytes.
fn argument() -> Option<String> {
    std::env::args_os().nth(1).map(|argument| argument.to_string_lossy().into_owned())
}

fn boot(started: Instant) -> Result<(), Vec<String>> {
    let one = |why: String| vec![why];
    if argument().as_deref() == Some("migrate") {
        log::init("info", false);
        return Err(one("migration is not supported on the log engine".into()));
    }
    let mut config = Config::from_env().inspect_err(|_| log::init("info", false))?;
    log::init(&config.log_filter, config.log_json);
    panic_hook();
    rt::raise_file_limit();
    config.boot_lines.iter().for_each(|line| line.log());
    if let Some(argument) = argument() {
        queen::warning!("boot", "arguments are ignored: settings are environment variables", argument = argument);
    }
    #[cfg(feature = "planted")]
    queen::planted::choose().map_err(one)?;
    let tls = config.tls.as_ref().map(|(cert, key)| Tls::load(cert, key)).transpose().map_err(one)?.map(Arc::new);
    let address = address(&config).map_err(one)?;
    wait_for_port(address).map_err(|error| one(busy(address, &error)))?;
    let embedded = match config.postgres {
        Postgres::Embedded => Some(Embedded::prepare(&config.data_dir).map_err(|error| one(error.to_string()))?),
        Postgres::Server(..) => None,
    };
    let awaited = block_signals(tls.is_some());
    let lock = spool_lock(&config.spool_dir).map_err(one)?;
    if let Some(id) = spool::clock::broker_id(&config.spool_dir) {
        config.broker_id = id;
    }
    let config = Arc::new(config);
    let cores = rt::cores();
    let shards = shards(&config, cores.len());
    let hub = Hub::new(shards + 1, MAILBOX_MAX).map_err(|error| one(format!("no descriptors left: {error}")))?;
    let mut metrics = Metrics::new(shards, config.db_pool_size);
    metrics.key_malformed = matches!(config.encryption, Key::Malformed(_));
    let metrics = Arc::new(metrics);
    let published = config.jwt.as_deref().and_then(Jwks::of).map(Arc::new);
    let reckoned = spool::clock::reckon(&config.spool_dir);
    let spool = start_spool(&config, reckoned, lock, shards, &hub).map_err(one)?;
    let clock = (reckoned.now, now());
    let (maintenance, untold, readiness) = Default::default();
    let shared = Shared {
        config,
        metrics,
        hub,
        published,
        shards,
        spool,
        maintenance,
        untold,
        readiness,
        clock,
        safe_time: Arc::default(),
    };
    signals(awaited, shared.hub.clone(), shared.control(), tls.clone());
    fetch_keys(&shared);
    let drivers = start_shards(&shared, address, &cores, tls);
    let driver = wait_for_shards(&drivers, shards).map_err(one)?;
    let ended = rt::run(rt::Choice::Epoll, control::run(shared, embedded, started, driver));
    ended.map_err(|error| one(format!("the control thread has no reactor: {error}")))?.map_err(one)
}

/// The spool directory, locked; `None` when it cannot be made now, which is tried again while the broker runs.
/// Source: operations 1.2, 4.2.
fn spool_lock(dir: &std::path::Path) -> Result<Option<spool::Lock>, String> {
    queen::torture::watch(dir);
    match spool::open_dir(dir) {
        Ok(lock) => Ok(Some(lock)),
        Err(error @ spool::LockError::Held) => {
            Err(format!("{}: {error}; give this one its own with FILE_BUFFER_DIR", dir.display()))
        }
        Err(error) => {
            let dir = dir.display();
            queen::warning!(
                "spool",
                "no spool directory: pushes fail while PostgreSQL is away (FILE_BUFFER_DIR names another)",
                directory = dir,
                error = error
            );
            Ok(None)
        }
    }
}

/// The spool's thread.
fn start_spool(
    config: &Config,
    reckoned: spool::clock::Reckoned,
    lock: Option<spool::Lock>,
    shards: usize,
    hub: &Hub,
) -> Result<Spool, String> {
    let spool = Spool::new();
    if reckoned.filled {
        spool.status().wall_clock_filled();
    }
    let setup = spool::Setup {
        dir: config.spool_dir.clone(),
        limits: spool::Limits { bytes_max: config.spool_bytes_max, events_per_file: config.spool_events_per_file },
        lock,
        shards,
        plain: config.driver == Driver::Epoll,
        hub: hub.clone(),
    };
    spool::start(spool.clone(), setup).map_err(|error| format!("no thread for the spool: {error}"))?;
    Ok(spool)
}

/// The address to listen on: the first one the name has.
fn address(config: &Config) -> Result<SocketAddr, String> {
    let listen = config.listen();
    let found = listen.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| format!("QUEEN_BIND_ADDR: no address for {listen}; use an IP of this machine, or 0.0.0.0"))
}

/// The listener of a broker that was just killed goes with its ring, and the kernel takes its time with that.
fn wait_for_port(address: SocketAddr) -> std::io::Result<()> {
    let began = Instant::now();
    loop {
        match rt::port_is_free(address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < PORT_WAIT => {
                std::thread::sleep(PORT_PAUSE);
            }
            other => return other.map(|_| ()),
        }
    }
}

fn busy(address: SocketAddr, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("port {} is in use; stop what listens there, or set PORT to another one", address.port())
        }
        _ => format!("cannot listen on {address}: {error}; set QUEEN_BIND_ADDR and PORT to what this machine has"),
    }
}

/// Cores for shards: all of them next to a PostgreSQL elsewhere, two thirds, rounded up, next to one on this machine: the
/// broker costs about twice what PostgreSQL does per message, and on two cores two shards beat one.
fn shards(config: &Config, cores: usize) -> usize {
    let wanted = match (config.shards, &config.postgres) {
        (0, Postgres::Embedded) => (cores * 2).div_ceil(3).max(1),
        (0, Postgres::Server(..)) => cores.max(1),
        (n, _) => n,
    };
    let most = shards_of(config.db_pool_size);
    if most < wanted {
        queen::warning!(
            "boot",
            "fewer shards than wanted: DB_POOL_SIZE has no more connections",
            shards = most,
            wanted = wanted,
            pool = config.db_pool_size
        );
    }
    wanted.min(most)
}

/// The most shards that so many connections do for: a shard makes do with two of them. Source: operations 1.3.
fn shards_of(pool: usize) -> usize {
    (pool.saturating_sub(control::CONTROL_CONNECTIONS) / 2).max(1)
}

/// The thread that fetches published keys of tokens; shards never wait for the network.
fn fetch_keys(shared: &Shared) {
    let Some(published) = shared.published.clone() else { return };
    let (hub, shards) = (shared.hub.clone(), shared.shards);
    let tell = move || {
        for shard in 0..shards {
            while hub.send(shard, Mail::KeysFetched).is_err() {
                std::thread::sleep(MAIL_PAUSE);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("jwks".into()).spawn(move || published.serve(tell)) {
        queen::error!("auth", "no thread to fetch published keys", error = error);
    }
}

type Started = Result<String, String>;

/// One pinned thread per shard.
fn start_shards(shared: &Shared, address: SocketAddr, cores: &[usize], tls: Option<Arc<Tls>>) -> Receiver<Started> {
    let (tell, told) = channel();
    for index in 0..shared.shards {
        let (shared, tell, tls) = (shared.clone(), tell.clone(), tls.clone());
        let core = cores.get(index % cores.len().max(1)).copied();
        let run = move || shard(shared, index, core, address, tls, tell);
        if let Err(error) = std::thread::Builder::new().name(format!("shard-{index}")).spawn(run) {
            queen::error!("boot", "no thread for a shard", error = error);
        }
    }
    told
}

fn wait_for_shards(told: &Receiver<Started>, shards: usize) -> Result<String, String> {
    let mut driver = String::new();
    for _ in 0..shards {
        driver = told.recv().map_err(|_| "a shard ended before it began".to_string())??;
    }
    Ok(driver)
}

/// The life of a shard's thread.
fn shard(
    shared: Shared,
    index: usize,
    core: Option<usize>,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    tell: Sender<Started>,
) {
    if let Some(core) = core
        && let Err(error) = rt::pin(core)
    {
        queen::warning!("boot", "a shard is not pinned", shard = index, error = error);
    }
    let choice = match shared.config.driver {
        Driver::Auto => rt::Choice::Auto,
        Driver::IoUring => rt::Choice::Uring,
        Driver::Epoll => rt::Choice::Epoll,
    };
    let failed = tell.clone();
    let ended = rt::run(choice, async move {
        let core = Core::new(shared.clone(), index);
        let listener = match core.run().and_then(|()| rt::Listener::bind(address)) {
            Ok(listener) => listener,
            Err(error) => {
                let _ = tell.send(Err(busy(address, &error)));
                return;
            }
        };
        let _ = tell.send(Ok(rt::current().to_string()));
        let limits = conn::Limits { body_bytes: shared.config.max_body_bytes, ..conn::Limits::default() };
        let api = std::rc::Rc::new(Api { core: core.clone(), tenancy: shared.config.tenancy });
        let cut = conn::serve(api, listener, limits, tls).await;
        if cut > 0 {
            queen::warning!(
                "shutdown",
                "connections are cut: their requests took too long",
                shard = index,
                connections = cut
            );
        }
        shared.hub.send_wait(shared.control(), Mail::Finished).await;
        // Requests of other shards may still want this one's partitions.
        core.over().await;
    });
    if let Err(error) = ended {
        let _ = failed.send(Err(format!("shard {index} has no reactor: {error}")));
    }
}

/// A panic anywhere is a bug, and a shard's partitions have no other owner: the process ends.
fn panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current().name().unwrap_or("?").to_owned();
        queen::error!("panic", info, thread = thread);
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }));
}

/// Blocks the signals that the broker waits for. Called before there is another thread: all of them inherit the mask, so
/// that the waiting one alone takes them. A thread without it would end the process.
fn block_signals(hangup: bool) -> libc::sigset_t {
    // SAFETY: the set is ours and filled here.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        if hangup {
            libc::sigaddset(&mut set, libc::SIGHUP);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

/// SIGTERM and SIGINT become mail of the control thread; SIGHUP reads the certificate again, where there is one.
fn signals(set: libc::sigset_t, hub: Hub, control: usize, tls: Option<Arc<Tls>>) {
    let wait = move || {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are to locals.
            if unsafe { libc::sigwait(&set, &mut signal) } != 0 {
                continue;
            }
            match &tls {
                Some(tls) if signal == libc::SIGHUP => match tls.reload() {
                    Ok(()) => queen::info!("boot", "certificate read again"),
                    Err(why) => queen::error!("boot", "the certificate stays the old one", error = why),
                },
                _ => drop(hub.send(control, Mail::Signal)),
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(wait) {
        queen::warning!("boot", "no thread for signals; SIGTERM will not be noticed", error = error);
    }
}
