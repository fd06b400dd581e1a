//! TLS records on a stream: the handshake, and what reader and writer of a secured stream do.
//!
//! Reader and writer share one session, which no task holds across a wait. What the session wants to send because of
//! what was read (a key update) goes out with the next write. Knows no certificate.

use monoio::io::{AsyncReadRent, AsyncWriteRent, AsyncWriteRentExt, OwnedReadHalf, OwnedWriteHalf};
use monoio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

/// What is read of the socket at a time: about one record, so that no session holds more plain text than that.
const CIPHER_BYTES: usize = 16 * 1024;
/// The same while the caller has little room: an idle connection holds a buffer of this size.
const CIPHER_BYTES_MIN: usize = 4 * 1024;

/// One side of a secured connection.
pub(super) struct Session {
    tls: ServerConnection,
    /// Plain text that nobody has taken yet, from `taken` on.
    plain: Vec<u8>,
    taken: usize,
    /// The peer said that nothing more comes.
    ended: bool,
}

pub(super) type Shared = Rc<RefCell<Session>>;

impl Session {
    /// Takes in what came from the socket.
    fn feed(&mut self, mut cipher: &[u8]) -> io::Result<()> {
        while !cipher.is_empty() && !self.ended {
            self.tls.read_tls(&mut cipher)?;
            let state = self.tls.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            let at = self.plain.len();
            let more = state.plaintext_bytes_to_read();
            self.plain.resize(at + more, 0);
            self.tls.reader().read_exact(&mut self.plain[at..])?;
            self.ended |= state.peer_has_closed();
        }
        Ok(())
    }

    /// Moves plain text into the spare room of `buffer`; `None`: there is none yet.
    fn take(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        let ready = &self.plain[self.taken..];
        if ready.is_empty() {
            return self.ended.then_some(0);
        }
        let piece = ready.len().min(buffer.capacity() - buffer.len());
        buffer.extend_from_slice(&ready[..piece]);
        self.taken += piece;
        if self.taken == self.plain.len() {
            (self.plain, self.taken) = (Vec::new(), 0);
        }
        Some(piece)
    }

    /// What is to be sent now.
    fn outgoing(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out)?;
        }
        Ok(out)
    }
}

/// The handshake, from the first byte to the last. The caller bounds its time.
pub(super) async fn accept(config: Arc<ServerConfig>, stream: &mut TcpStream) -> io::Result<Shared> {
    let tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut session = Session { tls, plain: Vec::new(), taken: 0, ended: false };
    let mut buffer = Vec::with_capacity(CIPHER_BYTES_MIN);
    loop {
        send(stream, session.outgoing()?).await?;
        if !session.tls.is_handshaking() {
            return Ok(Rc::new(RefCell::new(session)));
        }
        let (read, came) = stream.read(buffer).await;
        if read? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let fed = session.feed(&came);
        if fed.is_err() {
            // The alert says why.
            let _ = send(stream, session.outgoing()?).await;
        }
        fed?;
        buffer = came;
        buffer.clear();
        // A signature takes up to a millisecond: the others of the shard go between.
        super::yield_now().await;
    }
}

/// Reads plain text behind what `buffer` holds; 0 is the end.
pub(super) async fn read(
    session: &RefCell<Session>,
    reader: &mut OwnedReadHalf<TcpStream>,
    mut buffer: Vec<u8>,
) -> (io::Result<usize>, Vec<u8>) {
    let room = (buffer.capacity() - buffer.len()).clamp(CIPHER_BYTES_MIN, CIPHER_BYTES);
    let mut cipher = Vec::new();
    loop {
        if let Some(taken) = session.borrow_mut().take(&mut buffer) {
            return (Ok(taken), buffer);
        }
        if cipher.capacity() == 0 {
            cipher = Vec::with_capacity(room);
        }
        let (read, came) = reader.read(cipher).await;
        cipher = came;
        match read {
            Ok(0) => return (Ok(0), buffer),
            Ok(_) => {}
            Err(error) => return (Err(error), buffer),
        }
        if let Err(error) = session.borrow_mut().feed(&cipher) {
            return (Err(error), buffer);
        }
        cipher.clear();
    }
}

/// Writes some of `bytes`; says how much of them.
pub(super) async fn write(
    session: &RefCell<Session>,
    writer: &mut OwnedWriteHalf<TcpStream>,
    bytes: &[u8],
) -> io::Result<usize> {
    let (taken, out) = {
        let mut session = session.borrow_mut();
        (session.tls.writer().write(bytes)?, session.outgoing()?)
    };
    send(writer, out).await?;
    Ok(taken)
}

/// Tells the peer that nothing more comes.
pub(super) async fn finish(session: &RefCell<Session>, writer: &mut OwnedWriteHalf<TcpStream>) -> io::Result<()> {
    let out = {
        let mut session = session.borrow_mut();
        session.tls.send_close_notify();
        session.outgoing()?
    };
    send(writer, out).await
}

async fn send(writer: &mut impl AsyncWriteRent, out: Vec<u8>) -> io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    writer.write_all(out).await.0.map(drop)
}
