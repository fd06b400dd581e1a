//! A TCP proxy that misbehaves on request. One thread per link, sockets that never block.
//!
//!     client > listener > Pipe { front, back } > target          faults: what the link does with bytes, from now on
//!
//! Holds: without a fault bytes pass unchanged, ends included. A black hole keeps bytes and delivers them when it is
//! healed, as a network that lost packets does; a reset is an RST to both sides. Used between clients and broker, and
//! between broker and database.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a link does with bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Pass,
    /// Nothing comes through, and nobody is told.
    Hole,
    /// About 10 KB/s each way and connection.
    Slow,
    /// One byte per segment.
    OneByte,
    /// New connections are reset, and so are those there are.
    Down,
    /// As [`Mode::Down`], but who connects is told this SQLSTATE, as a PostgreSQL that starts or is full does.
    Refuse(&'static str),
}

/// What happens to the next writing commit of the database link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// `kill -9` of this process once the request is with the database.
    KillAtSend(u32),
    /// `kill -9` once the answer is with the broker.
    KillAtAnswer(u32),
    /// The answer is thrown away and both sides are reset.
    CutAnswer,
}

/// Bytes per connection and [`TICK`] of a slow link.
const SLOW_BYTES: usize = 50;
const TICK: Duration = Duration::from_millis(5);
/// Single bytes written per turn and connection.
const BYTES_PER_TURN: usize = 64;
const BUFFER: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Statements that write messages or cursors, as they appear in a Parse message.
const WRITING: [&[u8]; 4] = [b"queen.append(", b"queen.append_waiting(", b"queen.move_cursors(", b"queen.bundle("];

#[derive(Default)]
struct Orders {
    mode: Mode,
    trap: Option<Trap>,
    /// Resets so many connections, the busiest first; then is 0 again.
    resets: usize,
    /// Leaves so many half open.
    halves: usize,
    /// Those that are half open are reset: the late end.
    close_halves: bool,
    stop: bool,
}

/// A listening port before a target port.
pub struct Link {
    pub port: u16,
    orders: Arc<Mutex<Orders>>,
    /// Whoever changes the mode holds it until the mode is back; so with a trap.
    mode: Mutex<()>,
    trap: Mutex<()>,
    bell: UnixStream,
    counts: Arc<Counts>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    /// Traps that closed.
    trapped: AtomicU64,
    resets: AtomicU64,
    halves: AtomicU64,
    /// Orders to reset or to half-open that were carried out.
    strikes: AtomicU64,
    open: AtomicUsize,
}

impl Link {
    pub fn start(port: u16, target: u16) -> io::Result<Link> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        let (bell, ears) = UnixStream::pair()?;
        ears.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let orders = Arc::new(Mutex::new(Orders::default()));
        let counts = Arc::new(Counts::default());
        let proxy = Proxy { listener, ears, target, orders: orders.clone(), counts: counts.clone(), pipes: Vec::new() };
        let thread = std::thread::Builder::new().name(format!("proxy-{port}")).spawn(move || proxy.run())?;
        Ok(Link { port, orders, mode: Mutex::default(), trap: Mutex::default(), bell, counts, thread: Some(thread) })
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        // A full bell rings already.
        let _ = (&self.bell).write(&[1]);
    }

    pub fn set(&self, mode: Mode) {
        self.order(|orders| orders.mode = mode);
    }

    /// Keeps others that want it as well from changing the mode.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.mode.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Resets up to `n` connections, the busiest first; returns how many of them had carried an answer.
    pub fn reset(&self, n: usize) -> u64 {
        self.counted(&self.counts.resets, n, |orders| orders.resets = n)
    }

    /// Closes the far side of up to `n` connections and tells the near side nothing; returns how many.
    pub fn half_open(&self, n: usize) -> u64 {
        self.counted(&self.counts.halves, n, |orders| orders.halves = n)
    }

    /// Ends what is half open with a reset.
    pub fn close_halves(&self) {
        self.order(|orders| orders.close_halves = true);
    }

    fn counted(&self, count: &AtomicU64, n: usize, order: impl FnOnce(&mut Orders)) -> u64 {
        let before = count.load(Ordering::Acquire);
        if n == 0 || self.counts.open.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let strikes = self.counts.strikes.load(Ordering::Acquire);
        self.order(order);
        let began = Instant::now();
        while self.counts.strikes.load(Ordering::Acquire) == strikes && began.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        count.load(Ordering::Acquire) - before
    }

    /// Sets a trap and waits until it closes; false when no commit came in time, or another trap is set.
    pub fn trap(&self, trap: Trap, limit: Duration) -> bool {
        let Ok(_held) = self.trap.try_lock() else { return false };
        let before = self.counts.trapped.load(Ordering::Acquire);
        self.order(|orders| orders.trap = Some(trap));
        let began = Instant::now();
        while self.counts.trapped.load(Ordering::Acquire) == before {
            if limit < began.elapsed() {
                self.order(|orders| orders.trap = None);
                return before < self.counts.trapped.load(Ordering::Acquire);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.order(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Proxy {
    listener: TcpListener,
    ears: UnixStream,
    target: u16,
    orders: Arc<Mutex<Orders>>,
    counts: Arc<Counts>,
    pipes: Vec<Pipe>,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    buffer: Vec<u8>,
    sent: usize,
    /// The reader saw the end; it was passed on.
    ended: bool,
    closed: bool,
}

impl Way {
    fn is_empty(&self) -> bool {
        self.sent == self.buffer.len()
    }
}

struct Pipe {
    front: TcpStream,
    /// `None`: half open, or to be refused.
    back: Option<TcpStream>,
    /// The SQLSTATE to say to the first bytes.
    refusal: Option<&'static str>,
    up: Way,
    down: Way,
    /// The last request up was a writing statement.
    writes: bool,
    /// An answer came down.
    served: bool,
    moved: u64,
}

enum Fate {
    Lives,
    Over,
    Reset,
}

impl Proxy {
    fn run(mut self) {
        loop {
            let (mode, trap, resets, halves) = {
                let mut orders = self.orders.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if orders.stop {
                    return;
                }
                if std::mem::take(&mut orders.close_halves) {
                    self.pipes.iter().filter(|pipe| pipe.back.is_none()).for_each(Pipe::reset);
                    self.pipes.retain(|pipe| pipe.back.is_some());
                }
                let taken = (std::mem::take(&mut orders.resets), std::mem::take(&mut orders.halves));
                (orders.mode, orders.trap, taken.0, taken.1)
            };
            match mode {
                Mode::Down => self.strike(usize::MAX, halves),
                Mode::Refuse(_) => self.drop_served(),
                _ => self.strike(resets, halves),
            }
            self.wait(mode);
            self.accept(mode);
            if mode == Mode::Hole {
                continue;
            }
            let mut closed = None;
            self.pipes.retain_mut(|pipe| {
                let armed = trap.filter(|_| closed.is_none());
                match pipe.turn(mode, armed, &mut closed) {
                    Fate::Lives => true,
                    Fate::Over => false,
                    Fate::Reset => {
                        pipe.reset();
                        false
                    }
                }
            });
            if closed.is_some() {
                self.orders.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).trap = None;
                self.counts.trapped.fetch_add(1, Ordering::Release);
            }
            self.counts.open.store(self.pipes.len(), Ordering::Release);
        }
    }

    /// Resets every connection that has reached the target.
    fn drop_served(&mut self) {
        self.pipes.iter().filter(|pipe| pipe.back.is_some()).for_each(Pipe::reset);
        self.pipes.retain(|pipe| pipe.back.is_none());
    }

    /// Resets and half-opens the busiest connections.
    fn strike(&mut self, resets: usize, halves: usize) {
        if resets == 0 && halves == 0 {
            return;
        }
        self.pipes.sort_by_key(|pipe| pipe.moved);
        let kept = self.pipes.len().saturating_sub(resets);
        let struck = self.pipes.split_off(kept);
        struck.iter().for_each(Pipe::reset);
        self.counts.resets.fetch_add(struck.iter().filter(|pipe| pipe.served).count() as u64, Ordering::Release);
        drop(struck);
        for pipe in self.pipes.iter_mut().rev().filter(|pipe| pipe.back.is_some()).take(halves) {
            pipe.back = None;
            (pipe.up, pipe.down) = (Way::default(), Way::default());
            self.counts.halves.fetch_add(1, Ordering::Release);
        }
        self.pipes.iter_mut().for_each(|pipe| pipe.moved = 0);
        self.counts.strikes.fetch_add(1, Ordering::Release);
    }

    /// Sleeps until something can be done.
    fn wait(&mut self, mode: Mode) {
        let mut fds = vec![poll_fd(&self.ears, libc::POLLIN), poll_fd(&self.listener, libc::POLLIN)];
        if !matches!(mode, Mode::Hole) {
            for pipe in &self.pipes {
                fds.push(poll_fd(&pipe.front, interest(!pipe.up.ended && pipe.up.is_empty(), !pipe.down.is_empty())));
                if let Some(back) = &pipe.back {
                    fds.push(poll_fd(back, interest(!pipe.down.ended && pipe.down.is_empty(), !pipe.up.is_empty())));
                }
            }
        }
        let pending = self.pipes.iter().any(|pipe| !pipe.up.is_empty() || !pipe.down.is_empty());
        let paced = matches!(mode, Mode::Slow) && pending;
        if paced {
            std::thread::sleep(TICK);
        }
        // SAFETY: the array lives across the call, and its length is passed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, if paced { 0 } else { 1000 }) };
        let mut drain = [0; 64];
        while self.ears.read(&mut drain).is_ok_and(|n| n > 0) {}
    }

    fn accept(&mut self, mode: Mode) {
        while let Ok((front, _)) = self.listener.accept() {
            let address = SocketAddr::from(([127, 0, 0, 1], self.target));
            let back = match mode {
                Mode::Down | Mode::Refuse(_) => None,
                _ => TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).ok(),
            };
            let ready = |stream: &TcpStream| stream.set_nonblocking(true).and(stream.set_nodelay(true)).is_ok();
            let refusal = match mode {
                Mode::Refuse(state) => Some(state),
                _ => None,
            };
            match back {
                Some(back) if ready(&front) && ready(&back) => self.pipes.push(Pipe {
                    front,
                    back: Some(back),
                    refusal: None,
                    up: Way::default(),
                    down: Way::default(),
                    writes: false,
                    served: false,
                    moved: 0,
                }),
                None if refusal.is_some() && front.set_nonblocking(true).is_ok() => self.pipes.push(Pipe {
                    front,
                    back: None,
                    refusal,
                    up: Way::default(),
                    down: Way::default(),
                    writes: false,
                    served: false,
                    moved: 0,
                }),
                _ => rst(&front),
            }
        }
    }
}

impl Pipe {
    /// Moves what can be moved. `closed` is set when the trap closed here.
    fn turn(&mut self, mode: Mode, trap: Option<Trap>, closed: &mut Option<Trap>) -> Fate {
        let Some(back) = &self.back else {
            // Half open: what comes is swallowed, the end ends it.
            let mut sink = [0; 4096];
            return match (&self.front).read(&mut sink) {
                Ok(1..) if let Some(state) = self.refusal => {
                    let _ = (&self.front).write(&refusal(state));
                    Fate::Over
                }
                Ok(0) => Fate::Over,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => Fate::Over,
                _ => Fate::Lives,
            };
        };
        let came_up = match take(&self.front, &mut self.up) {
            Ok(n) => n,
            Err(_) => return Fate::Reset,
        };
        if came_up > 0 {
            self.writes = WRITING.iter().any(|mark| contains(&self.up.buffer, mark));
        }
        let went_up = give(back, &mut self.up, mode);
        if went_up.is_err() {
            return Fate::Reset;
        }
        if let Some(Trap::KillAtSend(pid)) = trap
            && self.writes
            && came_up > 0
            && self.up.is_empty()
        {
            super::process::signal(pid, libc::SIGKILL);
            *closed = trap;
            return Fate::Lives;
        }
        let came_down = match take(back, &mut self.down) {
            Ok(n) => n,
            Err(_) => return Fate::Reset,
        };
        if came_down > 0 && self.writes && trap == Some(Trap::CutAnswer) {
            *closed = trap;
            return Fate::Reset;
        }
        if give(&self.front, &mut self.down, mode).is_err() {
            return Fate::Reset;
        }
        if let Some(Trap::KillAtAnswer(pid)) = trap
            && self.writes
            && came_down > 0
            && self.down.is_empty()
        {
            super::process::signal(pid, libc::SIGKILL);
            *closed = trap;
            return Fate::Lives;
        }
        self.served |= came_down > 0;
        self.moved += (came_up + came_down) as u64;
        pass_end(&mut self.up, back);
        pass_end(&mut self.down, &self.front);
        if self.up.closed && self.down.closed { Fate::Over } else { Fate::Lives }
    }

    fn reset(&self) {
        rst(&self.front);
        if let Some(back) = &self.back {
            rst(back);
        }
    }
}

/// Reads when nothing waits; how many bytes came.
fn take(mut from: &TcpStream, way: &mut Way) -> io::Result<usize> {
    if way.ended || !way.is_empty() {
        return Ok(0);
    }
    way.sent = 0;
    way.buffer.resize(BUFFER, 0);
    let read = from.read(&mut way.buffer);
    way.buffer.truncate(*read.as_ref().unwrap_or(&0));
    match read {
        Ok(0) => {
            way.ended = true;
            Ok(0)
        }
        Ok(n) => Ok(n),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

fn give(mut to: &TcpStream, way: &mut Way, mode: Mode) -> io::Result<()> {
    let (piece, mut pieces) = match mode {
        Mode::Slow => (SLOW_BYTES, 1),
        Mode::OneByte => (1, BYTES_PER_TURN),
        _ => (usize::MAX, usize::MAX),
    };
    while !way.is_empty() && pieces > 0 {
        let end = way.sent.saturating_add(piece).min(way.buffer.len());
        match to.write(&way.buffer[way.sent..end]) {
            Ok(n) => way.sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
        pieces -= 1;
    }
    Ok(())
}

fn pass_end(way: &mut Way, to: &TcpStream) {
    if way.ended && way.is_empty() && !way.closed {
        let _ = to.shutdown(Shutdown::Write);
        way.closed = true;
    }
}

/// PostgreSQL's `ErrorResponse` with this SQLSTATE.
fn refusal(state: &str) -> Vec<u8> {
    let fields = format!("SFATAL\0VFATAL\0C{state}\0Mrefused by the rig\0\0");
    let len = (fields.len() + size_of::<u32>()) as u32;
    [b"E", &len.to_be_bytes()[..], fields.as_bytes()].concat()
}

/// Makes the close that follows an RST.
fn rst(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's value is a local of the size that is passed.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        );
    }
}

fn poll_fd(of: &impl AsRawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd: of.as_raw_fd(), events, revents: 0 }
}

fn interest(read: bool, write: bool) -> i16 {
    (if read { libc::POLLIN } else { 0 }) | (if write { libc::POLLOUT } else { 0 })
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}
