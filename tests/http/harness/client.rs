//! A blocking HTTP/1.1 client: one keep-alive connection, answers with a length, chunked, or none.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than any poll of a test; a broker that never answers fails the test instead of hanging it.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Client {
    port: u16,
    stream: Option<BufReader<TcpStream>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {} {}", self.status, self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// First value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The flat `error` text of an error answer.
    #[track_caller]
    pub fn error(&self) -> String {
        let body = self.json();
        body["error"].as_str().unwrap_or_else(|| panic!("no error text: {} {body}", self.status)).to_owned()
    }
}

/// Percent-encodes one path segment or query value.
pub fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Client {
    pub fn new(port: u16) -> Client {
        Client { port, stream: None }
    }

    pub fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.send("GET", path, &[], None)
    }

    pub fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Answer> {
        self.send("POST", path, &[("Content-Type", "application/json")], Some(body))
    }

    /// One request and its answer. A kept connection that the broker closed meanwhile is opened anew, once.
    pub fn send(&mut self, method: &str, path: &str, head: &[(&str, &str)], body: Option<&[u8]>) -> io::Result<Answer> {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n").into_bytes();
        for (name, value) in head {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if let Some(body) = body {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body.unwrap_or_default());
        let kept = self.stream.is_some();
        match self.exchange(method, &bytes) {
            Err(e) if kept && e.kind() != io::ErrorKind::WouldBlock => self.exchange(method, &bytes),
            answer => answer,
        }
    }

    /// Writes raw bytes, then reads one answer.
    pub fn exchange(&mut self, method: &str, bytes: &[u8]) -> io::Result<Answer> {
        let result = self.write(bytes).and_then(|()| self.read(method));
        let closes = |a: &Answer| a.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        if result.as_ref().map_or(true, closes) {
            self.stream = None;
        }
        result
    }

    /// Writes raw bytes, connecting first if needed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            self.stream = Some(BufReader::with_capacity(64 * 1024, stream));
        }
        self.stream.as_mut().expect("just connected").get_mut().write_all(bytes)
    }

    /// Reads one answer; to `HEAD` it has no body whatever its length says. Skips `100 Continue`.
    pub fn read(&mut self, method: &str) -> io::Result<Answer> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        loop {
            let status_line = line(stream)?;
            let mut words = status_line.splitn(3, ' ');
            let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if !version.starts_with("HTTP/1.") {
                return Err(invalid(format!("not a status line: {status_line:?}")));
            }
            let status: u16 = status.parse().map_err(|_| invalid(format!("not a status: {status_line:?}")))?;
            let mut headers = Vec::new();
            loop {
                let text = line(stream)?;
                match text.split_once(':') {
                    Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                    None => break,
                }
            }
            if status == 100 {
                continue;
            }
            let mut answer = Answer { status, headers, body: Vec::new() };
            if method == "HEAD" || status == 204 {
                return Ok(answer);
            }
            if answer.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
                loop {
                    let size = usize::from_str_radix(&line(stream)?, 16).map_err(|e| invalid(e.to_string()))?;
                    let at = answer.body.len();
                    answer.body.resize(at + size, 0);
                    stream.read_exact(&mut answer.body[at..])?;
                    line(stream)?;
                    if size == 0 {
                        return Ok(answer);
                    }
                }
            }
            let length = answer.header("content-length").map(str::parse::<usize>);
            let length = length.unwrap_or(Ok(0)).map_err(|e| invalid(e.to_string()))?;
            answer.body.resize(length, 0);
            stream.read_exact(&mut answer.body)?;
            return Ok(answer);
        }
    }

    /// Whether the broker has closed this connection (waits up to a second for it).
    pub fn is_closed(&mut self) -> bool {
        let Some(stream) = self.stream.as_mut() else { return true };
        let _ = stream.get_ref().set_read_timeout(Some(Duration::from_secs(1)));
        let closed = match stream.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        };
        let _ = stream.get_ref().set_read_timeout(Some(READ_TIMEOUT));
        closed
    }

    /// Drops the connection, as a client that goes away does.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }
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
