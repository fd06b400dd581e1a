//! Listening: one socket per shard on one port, the kernel spreads connections over them (SO_REUSEPORT).

use super::stream::Stream;
use crate::limits::BACKLOG;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

/// Whether nobody listens on this address. Ask once before the shards bind: with SO_REUSEPORT a second broker of the
/// same user would silently share the port and take half of the connections. Returns the address with its port, for
/// port 0 one that was free.
pub fn port_is_free(address: SocketAddr) -> io::Result<SocketAddr> {
    TcpListener::bind(address)?.local_addr()
}

/// One shard's listening socket.
pub struct Listener(monoio::net::TcpListener);

impl Listener {
    /// Binds and listens; inside a runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let options = monoio::net::ListenerOpts::new().reuse_port(true).reuse_addr(true).backlog(BACKLOG);
        Ok(Listener(monoio::net::TcpListener::bind_with_config(address, &options)?))
    }

    /// The address with its real port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next connection, without Nagle's delay and not inherited by child processes. After an
    /// error accepting goes on: a peer that left, or want of descriptors or memory (pause then).
    pub async fn accept(&self) -> io::Result<Stream> {
        let (stream, _) = self.0.accept().await?;
        // SAFETY: the descriptor is open; io_uring's accept leaves it inheritable.
        unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        // A peer that has gone already makes this fail; its first read says so.
        let _ = stream.set_nodelay(true);
        Ok(Stream::new(stream))
    }

    /// A connection that waits in the kernel's queue already. For the moment before closing: those still queued
    /// would be reset.
    pub async fn accept_waiting(&self) -> Option<Stream> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, no wait.
        if unsafe { libc::poll(&mut poll, 1, 0) } != 1 {
            return None;
        }
        self.accept().await.ok()
    }
}
