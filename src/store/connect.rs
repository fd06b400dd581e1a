//! Connections to PostgreSQL on a shard's own reactor: made, watched, given up, made again.
//!
//!     Conn::get -> live Client | Unavailable, at once while the store is known to be away
//!     a deadline passed -> Conn::discard -> cancel sent, socket closed, next get connects
//!
//! Holds: no tokio reactor, no session state (a transaction-mode pooler may stand between). The names monoio and
//! tokio-postgres meet here and nowhere else.

use crate::store::failure::wording;
use futures_util::future::poll_fn;
use monoio::net::{TcpStream, UnixStream};
use monoio_compat::StreamWrapper;
use queen_shards::effect::StoreError;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls};

/// Of a connection's read and write buffer. 8 KiB, the default, costs five times the CPU (architecture 12).
const BUFFER_BYTES: usize = 256 * 1024;
/// Longest a connection attempt, name resolution and log-in included, may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest a cancel request may take; it is a courtesy to the server.
const CANCEL_MAX: Duration = Duration::from_secs(2);
/// First and longest pause between attempts; it doubles, less up to half at random.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for so long is gone. Source: architecture 8 (noticed within 10 s).
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Where PostgreSQL is, and as whom.
#[derive(Clone, PartialEq, Eq)]
pub enum Target {
    /// A directory with the socket of a server: the embedded one, or a host that begins with `/`.
    Unix { dir: PathBuf, port: u16, user: String, password: Option<String>, database: String },
    Tcp { host: String, port: u16, user: String, password: Option<String>, database: String },
}

impl Target {
    /// The server that settings name; a host that begins with `/` is a socket directory.
    pub fn external(host: &str, port: u16, user: &str, password: Option<&str>, database: &str) -> Target {
        let (user, database, password) = (user.to_owned(), database.to_owned(), password.map(str::to_owned));
        match host.starts_with('/') {
            true => Target::Unix { dir: host.into(), port, user, password, database },
            false => Target::Tcp { host: host.to_owned(), port, user, password, database },
        }
    }

    fn config(&self, name: &str) -> Config {
        let (Target::Unix { user, password, database, .. } | Target::Tcp { user, password, database, .. }) = self;
        let mut config = Config::new();
        config.user(user).dbname(database).application_name(name);
        if let Some(password) = password {
            config.password(password);
        }
        config
    }
}

/// Without the password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix { dir, user, database, .. } => write!(f, "{user}@{}/{database}", dir.display()),
            Target::Tcp { host, port, user, database, .. } => write!(f, "{user}@{host}:{port}/{database}"),
        }
    }
}
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One connection that is made again when it breaks. Lives on one thread; share it with `Rc`.
pub struct Conn {
    target: Target,
    name: String,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    connecting: bool,
    waiting: Vec<Waker>,
    failures: u32,
    /// Not tried again before this.
    pause_until: Option<Instant>,
    last_error: String,
}

struct Live {
    client: Rc<Client>,
    stop: Rc<Stop>,
}

impl Conn {
    /// `name` shows in `pg_stat_activity`. Connects at the first `get`.
    pub fn new(target: Target, name: impl Into<String>) -> Conn {
        Conn { target, name: name.into(), state: RefCell::default() }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// A live client. Connects when there is none; refuses at once while the pause after a failed attempt lasts, so
    /// that pushes are spooled instead of waiting (see [`Conn::retry_in`]).
    pub async fn get(&self) -> Result<Rc<Client>, StoreError> {
        loop {
            if let Some(live) = self.live() {
                return Ok(live);
            }
            if !self.state.borrow().connecting {
                break;
            }
            let mut waited = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                self.state.borrow_mut().waiting.push(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        if !self.retry_in().is_zero() {
            return Err(StoreError::Unavailable(self.state.borrow().last_error.clone()));
        }
        let _attempt = Attempt::begin(&self.state);
        match monoio::time::timeout(CONNECT_MAX, connect(&self.target, &self.name)).await {
            Ok(Ok(live)) => {
                let client = live.client.clone();
                let mut state = self.state.borrow_mut();
                (state.failures, state.pause_until, state.live) = (0, None, Some(live));
                Ok(client)
            }
            Ok(Err(why)) => Err(self.failed(why)),
            Err(_) => Err(self.failed(format!("no connection to {} within {CONNECT_MAX:?}", self.target))),
        }
    }

    /// The live client, if there is one.
    pub fn live(&self) -> Option<Rc<Client>> {
        let state = self.state.borrow();
        state.live.as_ref().filter(|live| !live.client.is_closed()).map(|live| live.client.clone())
    }

    /// How long `get` will refuse without trying.
    pub fn retry_in(&self) -> Duration {
        let until = self.state.borrow().pause_until;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Gives the connection up, if it is still the one of `client`: asks the server to stop what runs there, and closes
    /// the socket. For statements whose deadline passed. Source: operations 1.3, QUEEN_STMT_TIMEOUT_MS.
    pub fn discard(&self, client: &Rc<Client>) {
        let mut state = self.state.borrow_mut();
        let Some(live) = state.live.take_if(|live| Rc::ptr_eq(&live.client, client)) else { return };
        live.stop.now();
        if !client.is_closed() {
            let (token, target) = (client.cancel_token(), self.target.clone());
            monoio::spawn(async move {
                let cancel = async {
                    match open(&target).await? {
                        Stream::Tcp(stream) => token.cancel_query_raw(stream, NoTls).await.map_err(io::Error::other),
                        Stream::Unix(stream) => token.cancel_query_raw(stream, NoTls).await.map_err(io::Error::other),
                    }
                };
                let _ = monoio::time::timeout(CANCEL_MAX, cancel).await;
            });
        }
    }

    fn failed(&self, why: String) -> StoreError {
        let mut state = self.state.borrow_mut();
        let whole = BACKOFF_FIRST.saturating_mul(1 << state.failures.min(10)).min(BACKOFF_MAX);
        state.failures += 1;
        state.pause_until = Some(Instant::now() + whole - whole.mul_f64(random_half()));
        state.last_error.clone_from(&why);
        StoreError::Unavailable(why)
    }
}

/// Marks that one task connects; when it ends, also by being dropped, those who waited look again.
struct Attempt<'a>(&'a RefCell<State>);

impl<'a> Attempt<'a> {
    fn begin(state: &'a RefCell<State>) -> Attempt<'a> {
        state.borrow_mut().connecting = true;
        Attempt(state)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.borrow_mut();
            state.connecting = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Ends the task that drives a connection.
#[derive(Default)]
struct Stop {
    asked: std::cell::Cell<bool>,
    driver: RefCell<Option<Waker>>,
}

impl Stop {
    fn now(&self) {
        self.asked.set(true);
        if let Some(driver) = self.driver.borrow_mut().take() {
            driver.wake();
        }
    }
}

/// When the client is dropped the connection says good-bye and ends by itself; `Stop` is for one that hangs.
async fn drive<S>(mut connection: Connection<S, NoTlsStream>, stop: Rc<Stop>)
where
    Connection<S, NoTlsStream>: Future<Output = Result<(), tokio_postgres::Error>> + Unpin,
{
    poll_fn(|cx: &mut Context<'_>| {
        if stop.asked.get() {
            return Poll::Ready(());
        }
        *stop.driver.borrow_mut() = Some(cx.waker().clone());
        // Why it broke is told to each call that waits.
        Pin::new(&mut connection).poll(cx).map(|_| ())
    })
    .await
}

enum Stream {
    Tcp(StreamWrapper<TcpStream>),
    Unix(StreamWrapper<UnixStream>),
}

async fn connect(target: &Target, name: &str) -> Result<Live, String> {
    let stream = open(target).await.map_err(|e| format!("cannot reach {target}: {e}"))?;
    let config = target.config(name);
    let refused = |e: tokio_postgres::Error| format!("cannot connect to {target}: {}", wording(&e));
    let stop = Rc::new(Stop::default());
    let client = match stream {
        Stream::Tcp(stream) => {
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            monoio::spawn(drive(connection, stop.clone()));
            client
        }
        Stream::Unix(stream) => {
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            monoio::spawn(drive(connection, stop.clone()));
            client
        }
    };
    Ok(Live { client: Rc::new(client), stop })
}

async fn open(target: &Target) -> io::Result<Stream> {
    match target {
        Target::Unix { dir, port, .. } => {
            let stream = UnixStream::connect(dir.join(format!(".s.PGSQL.{port}"))).await?;
            Ok(Stream::Unix(StreamWrapper::new_with_buffer_size(stream, BUFFER_BYTES, BUFFER_BYTES)))
        }
        Target::Tcp { host, port, .. } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in resolve(host, *port).await? {
                match TcpStream::connect_addr(address).await {
                    Ok(stream) => {
                        tune(&stream)?;
                        let stream = StreamWrapper::new_with_buffer_size(stream, BUFFER_BYTES, BUFFER_BYTES);
                        return Ok(Stream::Tcp(stream));
                    }
                    Err(e) => last = e,
                }
            }
            Err(last)
        }
    }
}

/// Addresses of a host. The system's resolver blocks, so it runs on a thread of its own and is looked at now and then.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    const LOOK_EVERY: Duration = Duration::from_millis(2);
    if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let host = host.to_owned();
    let resolver = std::thread::Builder::new()
        .name("resolver".into())
        .spawn(move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect))?;
    while !resolver.is_finished() {
        monoio::time::sleep(LOOK_EVERY).await;
    }
    resolver.join().unwrap_or_else(|_| Err(io::Error::other("the resolver failed")))
}

/// No delay, keepalive after 60 s, every 10 s, 3 times; and unacknowledged bytes end the connection.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let fd = stream.as_raw_fd();
    let set = |level: i32, name: i32, value: i32| {
        let size = size_of::<i32>() as libc::socklen_t;
        // SAFETY: fd is open for the life of `stream`; the value is an i32 of the size told.
        match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE_MAX.as_millis() as i32)
}

/// In 0..0.5, different between processes and moments: brokers of one outage do not come back in step.
fn random_half() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let drawn = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (drawn >> 11) as f64 / (1u64 << 53) as f64 / 2.0
}

/// Waits on this thread's reactor.
pub(super) async fn pause(time: Duration) {
    monoio::time::sleep(time).await;
}
