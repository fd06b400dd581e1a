//! Builds a thread's runtime: io_uring with the flags that pay, else epoll, and says which and why.
//!
//! monoio's own fallback looks only whether a two-entry ring can be made; a real ring can still fail (locked memory,
//! seccomp, an old kernel), so the choice is made here on the real one.

use crate::limits::{RING_ENTRIES, RING_PAUSE, RING_TRIES};
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};
use std::cell::Cell;
use std::future::Future;
use std::io;

/// What to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring where it works, else epoll.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    Epoll,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Uring,
    Epoll,
}

impl std::fmt::Display for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Driver::Uring => "io_uring",
            Driver::Epoll => "epoll",
        })
    }
}

/// A runtime of one thread. Not `Send`: build it on the thread that runs it.
pub struct Runtime {
    inner: Inner,
    /// Which driver runs.
    pub driver: Driver,
    /// Why, as words for a log line.
    pub why: String,
}

enum Inner {
    Uring(monoio::Runtime<TimeDriver<IoUringDriver>>),
    Epoll(monoio::Runtime<TimeDriver<LegacyDriver>>),
}

impl Runtime {
    /// Runs a future, and the tasks it spawns, until it is done; tasks left over are dropped with the runtime.
    /// The future is a task like the others: monoio's main future is polled again and again while it wakes itself,
    /// so it could never yield.
    pub fn block_on<F: Future + 'static>(&mut self, future: F) -> F::Output {
        CURRENT.set(Some(self.driver));
        let task = async { monoio::spawn(future).await };
        match &mut self.inner {
            Inner::Uring(runtime) => runtime.block_on(task),
            Inner::Epoll(runtime) => runtime.block_on(task),
        }
    }
}

thread_local! {
    static CURRENT: Cell<Option<Driver>> = const { Cell::new(None) };
}

/// The driver of this thread's runtime. Panics outside of one.
pub fn current() -> Driver {
    CURRENT.get().expect("no runtime on this thread")
}

/// Builds this thread's runtime. Blocks while a ring that lacks memory is tried again (3 s at most).
pub fn build(choice: Choice) -> io::Result<Runtime> {
    if choice == Choice::Epoll {
        return epoll("asked for".into());
    }
    match uring() {
        Ok(runtime) => Ok(runtime),
        Err(e) if choice == Choice::Uring => Err(e),
        Err(e) => epoll(format!("io_uring is not usable here: {}", reason(&e))),
    }
}

/// Builds a runtime and runs `future` on it.
pub fn run<F: Future + 'static>(choice: Choice, future: F) -> io::Result<F::Output> {
    Ok(build(choice)?.block_on(future))
}

fn epoll(why: String) -> io::Result<Runtime> {
    let runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
    Ok(Runtime { inner: Inner::Epoll(runtime), driver: Driver::Epoll, why })
}

/// Without cooperative task running the kernel interrupts the thread for every completion, which costs more than
/// epoll does: an older kernel (before 6.0) therefore gets epoll. DEFER_TASKRUN is left out on purpose: monoio's
/// submission between tasks does not ask for events, so under it completions would wait until no task is left.
fn uring() -> io::Result<Runtime> {
    let mut ring = io_uring::IoUring::builder();
    ring.setup_coop_taskrun().setup_single_issuer();
    let mut pause = RING_PAUSE;
    for tries_left in (0..RING_TRIES).rev() {
        let built = RuntimeBuilder::<IoUringDriver>::new()
            .with_entries(RING_ENTRIES)
            .uring_builder(ring.clone())
            .enable_timer()
            .build();
        match built {
            Ok(runtime) => {
                let why = "cooperative task running, single issuer".into();
                return Ok(Runtime { inner: Inner::Uring(runtime), driver: Driver::Uring, why });
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && tries_left > 0 => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            Err(e) => return Err(e),
        }
    }
    unreachable!("the last try returns")
}

fn reason(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOMEM) => "no memory for a ring (raise the memlock limit)".into(),
        Some(libc::EPERM) => "not permitted (kernel.io_uring_disabled, or a container's seccomp profile)".into(),
        Some(libc::ENOSYS) => "the kernel has none, or a seccomp profile hides it".into(),
        Some(libc::EINVAL) => "the kernel is older than 6.0".into(),
        _ => e.to_string(),
    }
}
