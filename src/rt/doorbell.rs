//! A doorbell: any thread rings, one task waits. An eventfd under it.
//!
//! On io_uring the wait is one read operation on the eventfd. Epoll has no such thing for files, so there the same
//! descriptor is registered as if it were a socket, only for its readiness, and read when it is ready.

use super::driver::{Driver, current};
use super::operation::Operation;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

/// Rings; cheap to clone, any thread.
#[derive(Clone, Debug)]
pub struct Ringer(Arc<OwnedFd>);

impl Ringer {
    /// A bell nobody waits at yet.
    pub fn new() -> io::Result<Ringer> {
        // SAFETY: eventfd has no preconditions; the descriptor is ours. Blocking on purpose: io_uring answers EAGAIN
        // at once for a non-blocking one.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Ringer(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Wakes the waiter, now or when it next waits. About 1 us.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. It could block only after 2^64 - 2 unread rings.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// The waiting end, on the calling thread's runtime. One per bell.
    pub fn doorbell(&self) -> io::Result<Doorbell> {
        let fd = self.0.try_clone()?;
        let wait = match current() {
            Driver::Uring => {
                let file = Rc::new(monoio::fs::File::from_std(File::from(fd))?);
                Operation::new(move |()| {
                    let file = file.clone();
                    async move { drop(file.read_at(Box::new([0u8; 8]), 0).await) }
                })
            }
            Driver::Epoll => {
                // SAFETY: the descriptor is ours; the type is only a way to register it, no socket call is made.
                let socket = unsafe { std::os::unix::net::UnixStream::from_raw_fd(fd.into_raw_fd()) };
                let socket = Rc::new(monoio::net::UnixStream::from_std(socket)?);
                Operation::new(move |()| {
                    let socket = socket.clone();
                    async move {
                        if socket.readable(false).await.is_ok() {
                            let mut count = 0u64;
                            // SAFETY: eight writable bytes; the descriptor is ready and this is its only reader.
                            unsafe { libc::read(socket.as_raw_fd(), (&raw mut count).cast(), 8) };
                        }
                    }
                })
            }
        };
        Ok(Doorbell { wait })
    }
}

/// Waits for rings; stays on its thread. Rings between two waits count as one.
pub struct Doorbell {
    wait: Operation<(), ()>,
}

impl Doorbell {
    /// Returns after a ring. A dropped wait goes on in the next one, so no ring is lost.
    pub async fn wait(&mut self) {
        if !self.wait.is_running() {
            self.wait.start(());
        }
        poll_fn(|cx| self.wait.poll(cx)).await
    }
}
