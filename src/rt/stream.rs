//! TCP streams: a reader whose read can stay in flight while other things happen, and a writer.
//!
//! Buffers are owned by an operation until it is done (io_uring fills them on its own time), so a read hands its
//! buffer in and gets it back. Dropping a read in flight may lose what it read: drop it only with its connection.

use super::operation::Operation;
use super::tls;
use monoio::buf::{IoBuf, IoBufMut, IoVecBuf};
use monoio::io::{AsyncReadRent, AsyncWriteRent, OwnedReadHalf, OwnedWriteHalf};
use monoio::net::{TcpStream, UnixStream};
use std::cell::UnsafeCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A stream as tokio-postgres wants it.
pub type TcpCompat = monoio_compat::StreamWrapper<TcpStream>;
/// The same over a unix socket.
pub type UnixCompat = monoio_compat::StreamWrapper<UnixStream>;

/// Connects, without Nagle's delay. The address is resolved already: resolving blocks.
pub async fn connect(address: SocketAddr) -> io::Result<Stream> {
    let stream = TcpStream::connect_addr(address).await?;
    stream.set_nodelay(true)?;
    Ok(Stream::new(stream))
}

/// Connects for a library that reads and writes the tokio way. `buffer`: bytes per direction; small ones cost dearly
/// (8 KiB: five times the CPU of 256 KiB under load). `tune`: sets options of the connected socket.
pub async fn connect_compat(
    address: SocketAddr,
    buffer: usize,
    tune: impl FnOnce(RawFd) -> io::Result<()>,
) -> io::Result<TcpCompat> {
    let stream = TcpStream::connect_addr(address).await?;
    stream.set_nodelay(true)?;
    tune(stream.as_raw_fd())?;
    Ok(TcpCompat::new_with_buffer_size(stream, buffer, buffer))
}

/// [`connect_compat`] for a unix socket.
pub async fn connect_unix_compat(path: impl AsRef<Path>, buffer: usize) -> io::Result<UnixCompat> {
    let stream = UnixStream::connect(path).await?;
    Ok(UnixCompat::new_with_buffer_size(stream, buffer, buffer))
}

/// A TCP connection, secured or not.
pub struct Stream {
    socket: Rc<UnsafeCell<TcpStream>>,
    session: Option<tls::Shared>,
}

impl Stream {
    pub(super) fn new(stream: TcpStream) -> Stream {
        Stream { socket: Rc::new(UnsafeCell::new(stream)), session: None }
    }

    /// The server's part of a TLS handshake. The caller bounds its time.
    pub async fn secure(self, config: Arc<rustls::ServerConfig>) -> io::Result<Stream> {
        // SAFETY: nothing else uses the cell before the stream is split.
        let session = tls::accept(config, unsafe { &mut *self.socket.get() }).await?;
        Ok(Stream { session: Some(session), ..self })
    }

    /// The two directions; each may have one operation in flight at a time.
    pub fn split(self) -> (Reader, Writer) {
        // SAFETY: nothing else uses the cell yet.
        let fd = unsafe { (*self.socket.get()).as_raw_fd() };
        let reader = Reader::new(self.socket.clone(), self.session.clone());
        (reader, Writer { half: OwnedWriteHalf(self.socket), fd, session: self.session })
    }
}

/// What came of a read, and its buffer with what was read behind what it held.
pub type ReadDone = (io::Result<usize>, Vec<u8>);

/// The reading direction. One allocation for its whole life: each read reuses the place of the last one.
pub struct Reader {
    operation: Operation<Vec<u8>, ReadDone>,
}

impl Reader {
    fn new(stream: Rc<UnsafeCell<TcpStream>>, session: Option<tls::Shared>) -> Reader {
        let start = move |buffer: Vec<u8>| {
            let (mut half, session) = (OwnedReadHalf(stream.clone()), session.clone());
            async move {
                if let Some(session) = session {
                    // Boxed, so that connections in the clear stay small.
                    return Box::pin(tls::read(&session, &mut half, buffer)).await;
                }
                let held = buffer.len();
                let (read, buffer) = half.read(buffer.slice_mut(held..)).await;
                (read, buffer.into_inner())
            }
        };
        Reader { operation: Operation::new(start) }
    }

    /// Whether a read is in flight.
    pub fn is_reading(&self) -> bool {
        self.operation.is_running()
    }

    /// Starts a read into the spare capacity of `buffer`, which must have some. No read may be in flight.
    pub fn start(&mut self, buffer: Vec<u8>) {
        assert!(buffer.capacity() > buffer.len());
        self.operation.start(buffer);
    }

    /// The read in flight: its result when it is done. 0 is the end of the stream. Panics when none is in flight.
    pub fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<ReadDone> {
        self.operation.poll(cx)
    }

    /// Starts a read and waits for it.
    pub async fn read(&mut self, buffer: Vec<u8>) -> ReadDone {
        self.start(buffer);
        std::future::poll_fn(|cx| self.poll_done(cx)).await
    }
}

/// What the peer's kernel says about everything written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Acknowledged,
    Waiting,
    /// The connection was reset; some of it may not have arrived.
    Lost,
}

/// The writing direction.
pub struct Writer {
    half: OwnedWriteHalf<TcpStream>,
    fd: RawFd,
    session: Option<tls::Shared>,
}

impl Writer {
    /// Writes some of `buffer` from `at` on; says how much.
    pub async fn write(&mut self, buffer: Vec<u8>, at: usize) -> (io::Result<usize>, Vec<u8>) {
        if let Some(session) = &self.session {
            let written = Box::pin(tls::write(session, &mut self.half, &buffer[at..])).await;
            return (written, buffer);
        }
        let (written, slice) = self.half.write(buffer.slice(at..)).await;
        (written, slice.into_inner())
    }

    /// Writes some of two buffers, one behind the other, without copying them together.
    pub async fn write_both(&mut self, first: Vec<u8>, second: Vec<u8>) -> (io::Result<usize>, Vec<u8>, Vec<u8>) {
        if self.session.is_some() {
            return Box::pin(self.write_one_by_one(first, second)).await;
        }
        let (written, both) = self.half.writev(Both::new(first, second)).await;
        (written, both.first, both.second)
    }

    async fn write_one_by_one(&mut self, first: Vec<u8>, second: Vec<u8>) -> (io::Result<usize>, Vec<u8>, Vec<u8>) {
        let (written, first) = self.write(first, 0).await;
        match written {
            Ok(all) if all == first.len() => {
                let (written, second) = self.write(second, 0).await;
                (written.map(|more| all + more), first, second)
            }
            some => (some, first, second),
        }
    }

    /// Ends this direction: the peer reads to the end of what was written.
    pub async fn finish(&mut self) {
        if let Some(session) = &self.session {
            // A peer that is gone needs no good-bye.
            let _ = Box::pin(tls::finish(session, &mut self.half)).await;
        }
        // SAFETY: the descriptor is open as long as this half.
        unsafe { libc::shutdown(self.fd, libc::SHUT_WR) };
    }

    /// Whether what was written has arrived.
    pub fn delivery(&self) -> Delivery {
        const TCP_CLOSE: u8 = 7;
        let mut unsent: libc::c_int = 0;
        // SAFETY: zeroed is a valid tcp_info; the kernel writes no more than the size given.
        let (info, known) = unsafe {
            let mut info: libc::tcp_info = std::mem::zeroed();
            let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
            let info_ptr = (&raw mut info).cast();
            let got = libc::getsockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_INFO, info_ptr, &mut size);
            (info, got == 0 && libc::ioctl(self.fd, libc::TIOCOUTQ, &mut unsent) == 0)
        };
        match (known, info.tcpi_state, unsent) {
            (false, ..) | (true, TCP_CLOSE, _) => Delivery::Lost,
            (true, _, 0) => Delivery::Acknowledged,
            (true, ..) => Delivery::Waiting,
        }
    }
}

/// Two buffers as one write. The vector lives on the heap: the kernel reads it after this struct has moved.
struct Both {
    first: Vec<u8>,
    second: Vec<u8>,
    vector: Box<[libc::iovec; 2]>,
}

impl Both {
    fn new(first: Vec<u8>, second: Vec<u8>) -> Both {
        let of = |bytes: &Vec<u8>| libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        Both { vector: Box::new([of(&first), of(&second)]), first, second }
    }
}

// SAFETY: the vector and the bytes it points to are on the heap and are not touched until the write gives them back.
unsafe impl IoVecBuf for Both {
    fn read_iovec_ptr(&self) -> *const libc::iovec {
        self.vector.as_ptr()
    }
    fn read_iovec_len(&self) -> usize {
        self.vector.len()
    }
}
