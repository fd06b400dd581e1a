//! What the standard library lacks: readiness of many sockets, an exact timer, limits and clocks of the process.
//!
//! The only unsafe code of this crate; knows nothing of HTTP or of scenarios.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Events taken per wait; a bound, not a limit of sockets.
const EVENTS_MAX: usize = 256;

/// One ready socket (or the timer), by the token it was added with.
#[derive(Clone, Copy)]
pub struct Ready {
    pub token: usize,
    pub readable: bool,
    pub writable: bool,
}

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; the descriptor is new and owned from here on.
        let epoll = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Poller { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Watches `fd` for input under `token`, level-triggered.
    pub fn add(&self, fd: RawFd, token: usize) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, false)
    }

    /// Watches for output too, or no longer.
    pub fn want_output(&self, fd: RawFd, token: usize, output: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, output)
    }

    pub fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, false); // Fails only for a socket that is gone.
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, token: usize, output: bool) -> io::Result<()> {
        let flags = libc::EPOLLIN | if output { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: flags as u32, u64: token as u64 };
        // SAFETY: `event` lives across the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) }).map(|_| ())
    }

    /// Waits at most `timeout` (rounded up to a millisecond) and fills `ready`.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let ms = timeout.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
        // SAFETY: the buffer holds EVENTS_MAX events; the kernel writes the first `count` of them.
        let count = unsafe {
            let buffer = self.events.as_mut_ptr();
            libc::epoll_wait(self.epoll.as_raw_fd(), buffer, EVENTS_MAX as libc::c_int, ms)
        };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        // SAFETY: see above.
        unsafe { self.events.set_len(count) };
        ready.extend(self.events.iter().map(|event| {
            let flags = event.events as libc::c_int;
            Ready {
                token: event.u64 as usize,
                // An error or hang-up shows at the next read.
                readable: flags & !libc::EPOLLOUT != 0,
                writable: flags & libc::EPOLLOUT != 0,
            }
        }));
        Ok(())
    }
}

/// A periodic timer: epoll's own timeout counts in milliseconds, too coarse for 1,000 sends a second.
pub struct Ticker(OwnedFd);

impl Ticker {
    pub fn every(period: Duration) -> io::Result<Ticker> {
        // SAFETY: no pointers; the descriptor is new and owned from here on.
        let fd = unsafe {
            let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
            OwnedFd::from_raw_fd(check(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?)
        };
        let time = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: i64::from(period.subsec_nanos().max(1)),
        };
        let spec = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: `spec` lives across the call; the old value is not wanted.
        check(unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) })?;
        Ok(Ticker(fd))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes the ticks that passed, so that it is no longer ready.
    pub fn clear(&self) {
        let mut ticks = 0u64;
        // SAFETY: reads 8 bytes into `ticks`; nothing to do when there are none.
        unsafe { libc::read(self.fd(), (&raw mut ticks).cast(), 8) };
    }
}

/// Lets this process open as many sockets as its hard limit allows; a shell's usual 1,024 is below some scenarios.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes `limit`; a refusal leaves the old limit, and connecting says what it was too low for.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// The program ends when this process does, however that happens.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and touches nothing of ours.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM)).map(|_| ()));
    }
}

/// Asks a process that this one started and has not yet waited for to end.
pub fn terminate(pid: u32) {
    // SAFETY: no pointers; the process is ours, so its number is not another's yet.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
}

/// CPU time this process has used.
pub fn own_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes `time`; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Clock ticks per second of the times in /proc.
pub fn ticks_per_second() -> u64 {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

/// Bytes of a memory page.
pub fn page_bytes() -> u64 {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticker_makes_its_token_ready() {
        let mut poller = Poller::new().unwrap();
        let ticker = Ticker::every(Duration::from_micros(200)).unwrap();
        poller.add(ticker.fd(), 9).unwrap();
        let mut ready = Vec::new();
        poller.wait(Duration::from_secs(5), &mut ready).unwrap();
        assert_eq!((ready.len(), ready[0].token, ready[0].readable), (1, 9, true));
        ticker.clear();
    }
}
