//! Bytes in and out of the nonblocking sockets, and answers out of the bytes.

use super::{Connection, Load, Waiting};
use crate::answer::{self, Framed};
use crate::poller::Poller;
use crate::tally::FAILURES_MAX;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

impl Load<'_> {
    pub(super) fn connect(&mut self, token: usize) -> std::io::Result<()> {
        let stream = TcpStream::connect_timeout(&self.plan.address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.poller.add(stream.as_raw_fd(), token)?;
        self.connections.push(Connection {
            stream,
            waiting: Waiting::Nothing,
            since: 0,
            patience: 0,
            unsent: Vec::new(),
            held: Vec::new(),
            need: 0,
            open: true,
        });
        Ok(())
    }

    pub(super) fn send(&mut self, token: usize, waiting: Waiting, since: u64, bytes: &[u8]) {
        let connection = &mut self.connections[token];
        match transmit(connection, &self.poller, token, bytes) {
            Ok(()) => (connection.waiting, connection.since) = (waiting, since),
            Err(text) => self.lose(token, text),
        }
    }

    pub(super) fn flush(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let unsent = std::mem::take(&mut connection.unsent);
        let result = transmit(connection, &self.poller, token, &unsent);
        if connection.open && connection.unsent.is_empty() {
            let _ = self.poller.want_output(connection.stream.as_raw_fd(), token, false);
        }
        if let Err(text) = result {
            self.lose(token, text);
        }
    }

    /// A connection is gone: a failure of the run.
    pub(super) fn lose(&mut self, token: usize, text: String) {
        let connection = &mut self.connections[token];
        if connection.open {
            connection.open = false;
            connection.waiting = Waiting::Nothing;
            self.poller.remove(connection.stream.as_raw_fd());
            self.tally.fail(text);
            if self.connections.iter().all(|connection| !connection.open) {
                self.tally.failures = self.tally.failures.max(FAILURES_MAX); // Nothing is left to run.
            }
        }
    }

    pub(super) fn read(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if !connection.open {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        match connection.stream.read(&mut scratch) {
            Ok(0) => self.lose(token, "the broker closed a connection".into()),
            Ok(count) if connection.held.is_empty() => {
                let used = self.take_answers(token, &scratch[..count]);
                self.connections[token].held.extend_from_slice(&scratch[used..count]);
            }
            Ok(count) => {
                connection.held.extend_from_slice(&scratch[..count]);
                if connection.held.len() >= connection.need {
                    let mut held = std::mem::take(&mut connection.held);
                    let used = self.take_answers(token, &held);
                    held.drain(..used);
                    self.connections[token].held = held;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.lose(token, format!("reading: {error}")),
        }
        self.scratch = scratch;
    }

    /// Acts on every whole answer in `bytes`; returns how many bytes they take.
    pub(super) fn take_answers(&mut self, token: usize, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && self.connections[token].open {
            match answer::frame(&bytes[used..]) {
                Framed::Whole { status, body_at, end } => {
                    self.answered(token, status, &bytes[used + body_at..used + end]);
                    used += end;
                }
                Framed::Need(need) => {
                    self.connections[token].need = need;
                    return used;
                }
                Framed::Unreadable(why) => {
                    self.lose(token, format!("unreadable answer: {why}"));
                    return bytes.len();
                }
            }
        }
        used
    }
}

/// Writes what the socket takes now; the rest waits for it to become writable.
pub(super) fn transmit(connection: &mut Connection, poller: &Poller, token: usize, bytes: &[u8]) -> Result<(), String> {
    let mut sent = 0;
    while connection.open && sent < bytes.len() {
        match connection.stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                connection.unsent.extend_from_slice(&bytes[sent..]);
                let fd = connection.stream.as_raw_fd();
                return poller.want_output(fd, token, true).map_err(|error| format!("epoll: {error}"));
            }
            Err(error) => return Err(format!("writing: {error}")),
        }
    }
    Ok(())
}
