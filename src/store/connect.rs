//! Connections to PostgreSQL on a shard's own reactor: made, watched, given up, made again.
//!
//!     Conn::get -> live Client | Unavailable, at once while the store is known to be away
//!     a deadline passed -> Conn::discard -> cancel sent, socket closed, next get connects
//!
//! Holds: no tokio reactor, no session state (a transaction-mode pooler may stand between); with TLS asked for, no TCP
//! connection without it.

use super::client::Client;
use super::tls;
use crate::config::postgres::Trust;
use crate::rt::{self, TcpCompat, UnixCompat};
use crate::store::failure::wording;
use futures_util::future::poll_fn;
use queen_shards::effect::StoreError;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::RawFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls};

/// Of a connection's read and write buffer. 8 KiB, the default, costs five times the CPU.
const BUFFER_BYTES: usize = 256 * 1024;
/// Longest an attempt at one place, name resolution and log-in included, may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest a cancel request may take; it is a courtesy to the server.
const CANCEL_MAX: Duration = Duration::from_secs(2);
/// First and longest pause between attempts; it doubles, less up to half at random.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for so long is gone. Source: architecture, When PostgreSQL is away (noticed within 10 s).
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Where the configuration says nothing. Source: operations 1.3.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Where PostgreSQL is, and as whom: one server, or several of which the first that suits is taken.
#[derive(Clone)]
pub struct Target {
    config: Box<Config>,
    tls: Option<Arc<ClientConfig>>,
    /// No pooler can stand between.
    own: bool,
}

impl Target {
    /// What the settings say. Of the configuration hosts, ports, log-in, database, options, keepalives, the user
    /// time-out and `target_session_attrs` are heeded.
    /// `trust`: which certificates are good; `None`: no TLS. `Err`: the CA's text is none.
    pub fn server(config: Config, trust: Option<&Trust>) -> Result<Target, String> {
        let tls = trust.map(tls::config).transpose()?;
        Ok(Target { config: Box::new(config), tls, own: false })
    }

    /// The broker's own server, behind a socket in `dir`.
    pub fn socket(dir: &Path, port: u16, user: &str, database: &str) -> Target {
        let mut config = Config::new();
        config.host_path(dir).port(port).user(user).dbname(database);
        Target { config: Box::new(config), tls: None, own: true }
    }

    /// The same server, another database.
    pub fn database(mut self, name: &str) -> Target {
        self.config.dbname(name);
        self
    }

    /// The same, with sessions whose statements wait as long as they must, whatever the role's time-outs. A pooler may refuse
    /// to connect so.
    pub fn without_timeouts(mut self) -> Target {
        let options = self.config.get_options().unwrap_or_default();
        let options = format!("{options} -c statement_timeout=0 -c lock_timeout=0");
        self.config.options(options.trim_start());
        self
    }

    /// Every place to try, in order: a host with its port.
    fn places(&self) -> Vec<Place> {
        const PORT: u16 = 5432;
        let (hosts, addresses, ports) = (self.config.get_hosts(), self.config.get_hostaddrs(), self.config.get_ports());
        let n = hosts.len().max(addresses.len());
        let mut places: Vec<Place> = (0..n)
            .map(|i| {
                let port = ports.get(i).or(ports.first()).copied().unwrap_or(PORT);
                match (addresses.get(i), hosts.get(i)) {
                    (Some(ip), Some(Host::Tcp(name))) => Place::Address(SocketAddr::new(*ip, port), Some(name.clone())),
                    (Some(ip), _) => Place::Address(SocketAddr::new(*ip, port), None),
                    (None, Some(Host::Unix(dir))) => Place::Socket(dir.join(format!(".s.PGSQL.{port}"))),
                    (None, Some(Host::Tcp(name))) => match name.strip_prefix('/') {
                        Some(_) => Place::Socket(Path::new(name).join(format!(".s.PGSQL.{port}"))),
                        None => Place::Name(name.clone(), port),
                    },
                    (None, None) => Place::Name("localhost".into(), port),
                }
            })
            .collect();
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random && !places.is_empty() {
            let by = (random() * places.len() as f64) as usize;
            places.rotate_left(by);
        }
        places
    }
}

/// Without the password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.config.get_user().unwrap_or("?"))?;
        for (i, place) in self.places().iter().enumerate() {
            write!(f, "{}{place}", if i == 0 { "" } else { "," })?;
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or(""))
    }
}
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Socket(std::path::PathBuf),
    /// With the name that a certificate must have, if it is not the address.
    Address(SocketAddr, Option<String>),
    Name(String, u16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => write!(f, "{}", path.display()),
            Place::Address(address, _) => write!(f, "{address}"),
            Place::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// One connection that is made again when it breaks. Lives on one thread; share it with `Rc`.
pub struct Conn {
    target: Target,
    name: String,
    /// Takes the payloads of notifications.
    heard: Option<Heard>,
    state: RefCell<State>,
}

type Heard = Rc<dyn Fn(&str)>;

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
    place: Place,
    stop: Rc<Stop>,
}

impl Conn {
    /// `name` shows in `pg_stat_activity`. Connects at the first `get`.
    pub fn new(target: Target, name: impl Into<String>) -> Conn {
        Conn { target, name: name.into(), heard: None, state: RefCell::default() }
    }

    /// The same; `heard` takes the payload of each notification that comes.
    pub fn listening(target: Target, name: impl Into<String>, heard: impl Fn(&str) + 'static) -> Conn {
        Conn { heard: Some(Rc::new(heard)), ..Conn::new(target, name) }
    }

    /// Waits until the live connection is closed; at once when there is none.
    pub async fn closed(&self) {
        let ended = self.state.borrow().live.as_ref().map(|live| live.stop.clone());
        let Some(stop) = ended else { return };
        poll_fn(|cx| {
            if stop.ended.get() {
                return Poll::Ready(());
            }
            *stop.watcher.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
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
        match connect(&self.target, &self.name, self.heard.as_ref()).await {
            Ok(live) => {
                let client = live.client.clone();
                let mut state = self.state.borrow_mut();
                (state.failures, state.pause_until, state.live) = (0, None, Some(live));
                Ok(client)
            }
            Err(why) => Err(self.failed(why)),
        }
    }

    /// The live client, if there is one.
    pub fn live(&self) -> Option<Rc<Client>> {
        let state = self.state.borrow();
        state.live.as_ref().filter(|live| !live.client.is_closed()).map(|live| live.client.clone())
    }

    /// No attempt has failed since it was last live.
    pub fn is_sound(&self) -> bool {
        self.live().is_some() || self.state.borrow().failures == 0
    }

    /// Nobody connects, and the pause after a failed attempt is over.
    pub fn is_due(&self) -> bool {
        !self.state.borrow().connecting && self.retry_in().is_zero()
    }

    /// The next `get` tries, whatever failed before.
    pub fn retry_now(&self) {
        self.state.borrow_mut().pause_until = None;
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
            let place = live.place.clone();
            rt::spawn(async move {
                let cancel = async {
                    let stream = open(&place, &target.config).await?;
                    let ended = match (stream, secure(&place, &target)?) {
                        (Stream::Tcp(stream), Some(tls)) => token.cancel_query_raw(stream, tls).await,
                        (Stream::Tcp(stream), None) => token.cancel_query_raw(stream, NoTls).await,
                        (Stream::Unix(stream), _) => token.cancel_query_raw(stream, NoTls).await,
                    };
                    ended.map_err(io::Error::other)
                };
                let _ = rt::timeout(CANCEL_MAX, cancel).await;
            });
        }
    }

    fn failed(&self, why: String) -> StoreError {
        let mut state = self.state.borrow_mut();
        let whole = BACKOFF_FIRST.saturating_mul(1 << state.failures.min(10)).min(BACKOFF_MAX);
        state.failures += 1;
        state.pause_until = Some(Instant::now() + whole - whole.mul_f64(random() / 2.0));
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
    /// It ended, by whatever; who waits for that.
    ended: std::cell::Cell<bool>,
    watcher: RefCell<Option<Waker>>,
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
async fn drive<S, T>(mut connection: Connection<S, T>, stop: Rc<Stop>, heard: Option<Heard>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|cx: &mut Context<'_>| {
        if stop.asked.get() {
            return Poll::Ready(());
        }
        *stop.driver.borrow_mut() = Some(cx.waker().clone());
        loop {
            match connection.poll_message(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(AsyncMessage::Notification(told)))) => {
                    if let Some(heard) = &heard {
                        heard(told.payload());
                    }
                }
                Poll::Ready(Some(Ok(_))) => {}
                // Why it broke is told to each call that waits.
                Poll::Ready(None | Some(Err(_))) => return Poll::Ready(()),
            }
        }
    })
    .await;
    drop(connection);
    stop.ended.set(true);
    if let Some(watcher) = stop.watcher.borrow_mut().take() {
        watcher.wake();
    }
}

enum Stream {
    Tcp(TcpCompat),
    Unix(UnixCompat),
}

/// Connects to the first place that suits; the text names every place and why it did not.
async fn connect(target: &Target, name: &str, heard: Option<&Heard>) -> Result<Live, String> {
    let mut config = (*target.config).clone();
    config.application_name(name);
    let longest = config.get_connect_timeout().copied().unwrap_or(CONNECT_MAX).min(CONNECT_MAX);
    let mut reasons = Vec::new();
    for place in target.places() {
        match rt::timeout(longest, connect_to(&place, &config, target, heard.cloned())).await {
            Some(Ok(live)) => return Ok(live),
            Some(Err(why)) => reasons.push(format!("{place}: {why}")),
            None => reasons.push(format!("{place}: no answer within {longest:?}")),
        }
    }
    Err(format!("cannot connect to PostgreSQL: {}", reasons.join("; ")))
}

async fn connect_to(place: &Place, config: &Config, target: &Target, heard: Option<Heard>) -> Result<Live, String> {
    let stream = open(place, config).await.map_err(|e| e.to_string())?;
    let tls = secure(place, target).map_err(|e| e.to_string())?;
    let refused = |e: tokio_postgres::Error| wording(&e);
    let stop = Rc::new(Stop::default());
    let client = match (stream, tls) {
        (Stream::Tcp(stream), Some(tls)) => {
            let mut config = config.clone();
            config.ssl_mode(SslMode::Require);
            let (client, connection) = config.connect_raw(stream, tls).await.map_err(refused)?;
            rt::spawn(drive(connection, stop.clone(), heard));
            client
        }
        (Stream::Tcp(stream), None) => {
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            rt::spawn(drive(connection, stop.clone(), heard));
            client
        }
        (Stream::Unix(stream), _) => {
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            rt::spawn(drive(connection, stop.clone(), heard));
            client
        }
    };
    let wanted = match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => "off",
        TargetSessionAttrs::ReadOnly => "on",
        _ => "",
    };
    if !wanted.is_empty() {
        let rows = client.query_typed("select current_setting('transaction_read_only')", &[]).await.map_err(refused)?;
        if rows.first().is_none_or(|row| row.get::<_, &str>(0) != wanted) {
            return Err("not the server that target_session_attrs asks for".into());
        }
    }
    Ok(Live { client: Rc::new(Client::new(client, target.own)), place: place.clone(), stop })
}

/// How a connection to a place is secured; `None`: it is not, or it does not leave this machine.
fn secure(place: &Place, target: &Target) -> io::Result<Option<tls::Secure>> {
    let Some(config) = target.tls.clone() else { return Ok(None) };
    let name = match place {
        Place::Socket(_) => return Ok(None),
        Place::Address(address, None) => ServerName::from(address.ip()),
        Place::Address(_, Some(name)) | Place::Name(name, _) => {
            let name = name.trim_matches(['[', ']']).to_owned();
            ServerName::try_from(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?
        }
    };
    Ok(Some(tls::Secure { config, name }))
}

async fn open(place: &Place, config: &Config) -> io::Result<Stream> {
    match place {
        Place::Socket(path) => rt::connect_unix_compat(path, BUFFER_BYTES).await.map(Stream::Unix),
        Place::Address(address, _) => open_tcp(*address, config).await,
        Place::Name(name, port) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in resolve(name, *port).await? {
                match open_tcp(address, config).await {
                    Ok(stream) => return Ok(stream),
                    Err(e) => last = e,
                }
            }
            Err(last)
        }
    }
}

async fn open_tcp(address: SocketAddr, config: &Config) -> io::Result<Stream> {
    rt::connect_compat(address, BUFFER_BYTES, |fd| tune(fd, config)).await.map(Stream::Tcp)
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
        rt::sleep(LOOK_EVERY).await;
    }
    resolver.join().unwrap_or_else(|_| Err(io::Error::other("the resolver failed")))
}

/// Keepalive as configured (60 s, then 3 times every 10 s), and a peer that acknowledges nothing ends the connection.
fn tune(fd: RawFd, config: &Config) -> io::Result<()> {
    let set = |level: i32, name: i32, value: i32| {
        let size = size_of::<i32>() as libc::socklen_t;
        // SAFETY: fd is open during the call; the value is an i32 of the size told.
        match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if config.get_keepalives() {
        let interval = config.get_keepalives_interval().unwrap_or(KEEPALIVE_INTERVAL);
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, config.get_keepalives_idle().min(KEEPALIVE_IDLE).as_secs() as i32)?;
        set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval.as_secs().clamp(1, 3600) as i32)?;
        set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, config.get_keepalives_retries().unwrap_or(3).clamp(1, 100) as i32)?;
    }
    let silence = config.get_tcp_user_timeout().copied().unwrap_or(SILENCE_MAX);
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence.as_millis().min(i32::MAX as u128) as i32)
}

/// In 0..1, different between processes and moments: brokers of one outage do not come back in step.
fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let drawn = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (drawn >> 11) as f64 / (1u64 << 53) as f64
}

/// Waits on this thread's reactor.
pub(super) async fn pause(time: Duration) {
    rt::sleep(time).await;
}
