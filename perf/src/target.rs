//! Where a broker is, and single requests to it beside the load.

use crate::answer::{self, Framed};
use crate::request;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Target {
    pub address: SocketAddr,
    /// `host:port`, for the Host header and for people.
    pub host: String,
}

impl Target {
    /// Reads `http://host[:port]`.
    pub fn of(url: &str) -> Result<Target, String> {
        let host = url.strip_prefix("http://").ok_or(format!("{url}: http:// only"))?.trim_end_matches('/');
        if host.contains('/') {
            return Err(format!("{url}: no path"));
        }
        let with_port = if host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let mut addresses = with_port.to_socket_addrs().map_err(|error| format!("{url}: {error}"))?;
        let address = addresses.next().ok_or(format!("{url}: no address"))?;
        Ok(Target { address, host: with_port })
    }

    /// A request without a body, on a connection of its own; status and body of its answer. Err: none within 30 s.
    pub fn call(&self, method: &str, path: &str) -> Result<(u16, String), String> {
        self.send(&request::plain(method, path, &self.host))
    }

    /// The same of one whose answer may take longer.
    pub fn call_within(&self, method: &str, path: &str, limit: Duration) -> Result<(u16, String), String> {
        self.send_within(&request::plain(method, path, &self.host), limit)
    }

    /// The same of a request that is rendered already.
    pub fn send(&self, request: &[u8]) -> Result<(u16, String), String> {
        self.send_within(request, TIMEOUT)
    }

    /// The same within a limit of its own.
    pub fn send_within(&self, request: &[u8], limit: Duration) -> Result<(u16, String), String> {
        const BODY_SHOWN: usize = 2000;
        let exchange = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(request)?;
            let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
            while let Framed::Need(_) = answer::frame(&bytes) {
                match stream.read(&mut part)? {
                    0 => break,
                    count => bytes.extend_from_slice(&part[..count]),
                }
            }
            Ok(bytes)
        };
        let bytes = exchange().map_err(|error| error.to_string())?;
        match answer::frame(&bytes) {
            Framed::Whole { status, body_at, end } => {
                let body = String::from_utf8_lossy(&bytes[body_at..end.min(body_at + BODY_SHOWN)]).into_owned();
                Ok((status, body))
            }
            Framed::Need(_) => Err("the answer ends early".into()),
            Framed::Unreadable(why) => Err(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_host_and_port() {
        assert_eq!(Target::of("http://127.0.0.1:6632/").unwrap().host, "127.0.0.1:6632");
        assert_eq!(Target::of("http://127.0.0.1").unwrap().host, "127.0.0.1:80");
        assert!(Target::of("https://127.0.0.1:1").is_err());
        assert!(Target::of("http://127.0.0.1:1/api").is_err());
    }
}
