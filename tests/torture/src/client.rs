//! A blocking HTTP/1.1 client: one kept connection, never a silent repeat: a request is sent once or not at all.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Client {
    port: u16,
    timeout: Duration,
    stream: Option<BufReader<TcpStream>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// Seconds of the day by the server's clock; its `Date`.
    pub second: Option<i64>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(300).collect()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Lost {
    /// Nothing was sent.
    Unsent(io::Error),
    /// Sent, at least in part.
    Unknown(io::Error),
}

impl Client {
    /// `timeout`: of each read and write.
    pub fn new(port: u16, timeout: Duration) -> Client {
        Client { port, timeout, stream: None }
    }

    pub fn get(&mut self, path: &str) -> Result<Answer, Lost> {
        self.send("GET", path, b"")
    }

    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<Answer, Lost> {
        self.send("POST", path, body)
    }

    pub fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer, Lost> {
        self.send_and(method, path, body, || ())
    }

    /// `meanwhile`: what the client does when its request is sent, before it reads.
    pub fn send_and(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        meanwhile: impl FnOnce(),
    ) -> Result<Answer, Lost> {
        self.connect().map_err(Lost::Unsent)?;
        let sent = self.write(method, path, body);
        meanwhile();
        let result = sent.and_then(|()| self.read());
        if result.is_err() {
            self.stream = None;
        }
        result.map_err(Lost::Unknown)
    }

    fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port));
            let stream = TcpStream::connect_timeout(&address, self.timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.timeout))?;
            stream.set_write_timeout(Some(self.timeout))?;
            self.stream = Some(BufReader::with_capacity(64 * 1024, stream));
        }
        Ok(())
    }

    /// Sends a request and does not wait for its answer.
    pub fn write(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        self.connect()?;
        let mut bytes =
            format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", body.len())
                .into_bytes();
        bytes.extend_from_slice(body);
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.get_mut().write_all(&bytes)
    }

    fn read(&mut self) -> io::Result<Answer> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let status_line = line(stream)?;
        let status = status_line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status: u16 = status.ok_or_else(|| invalid(format!("not a status line: {status_line:?}")))?;
        let (mut length, mut closes, mut second) = (0usize, false, None);
        loop {
            let text = line(stream)?;
            let Some((name, value)) = text.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().map_err(|_| invalid(text.clone()))?,
                "transfer-encoding" => return Err(invalid("a chunked answer".into())),
                "date" => second = second_of_day(value),
                "connection" => closes = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        if closes {
            self.stream = None;
        }
        Ok(Answer { status, body, second })
    }

    /// Closes the connection, as a client that goes away does.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }
}

/// Of `Sun, 06 Nov 1994 08:49:37 GMT`.
fn second_of_day(date: &str) -> Option<i64> {
    let time = date.split_whitespace().find(|word| word.contains(':'))?;
    time.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<i64>().ok()?))
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    if stream.read_line(&mut text)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_to_the_second() {
        assert_eq!(second_of_day(" Sun, 06 Nov 1994 08:49:37 GMT"), Some((8 * 60 + 49) * 60 + 37));
        assert_eq!(second_of_day("yesterday"), None);
    }
}
