//! Request heads: bytes -> [`Head`], strict about everything two readers could understand differently.
//!
//!     socket bytes -> HeadScan: where the head ends -> parse: Head or a Refusal
//!
//! Holds: a head that leaves [`parse`] has one body length that every other reader agrees on (RFC 9112 6.3): no
//! Content-Length next to Transfer-Encoding, no repeated one, no line folding, no bare LF or CR, no control bytes.
//! Does not read sockets, does not route.

use super::Method;
use super::json::has_control;
use super::query::percent_decode;
use super::refusals::Refusal;
use crate::limits::{BLANK_LINES_MAX, HEAD_BYTES_MAX, HEADERS_MAX, REQUEST_LINE_EXTRA, TARGET_BYTES_MAX};
use memchr::memchr;
use std::mem::MaybeUninit;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// After so many bytes; 0 when the head names none.
    Fixed(u64),
    Chunked,
}

/// One request head.
#[derive(Debug)]
pub struct Head {
    pub method: Method,
    /// The path as it came: what routes and access rules of other brokers in front have seen.
    pub path: String,
    /// Decoded segments after the leading slash. Each was split off before decoding, so `%2F` stays inside its own.
    pub segments: Vec<String>,
    /// The raw query string, without `?`.
    pub query: String,
    pub length: BodyLength,
    /// Whether the client lets the connection go on after this request.
    pub keep_alive: bool,
    /// HTTP/1.0 clients must be told that it does.
    pub http_1_0: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// `Content-Type`, lower-cased, without parameters.
    pub content_type: Option<String>,
    pub authorization: Option<String>,
    /// `Authorization` came more than once: ambiguous, to be refused by whoever looks at it.
    pub authorization_repeated: bool,
    /// `x-queen-tenant`.
    pub tenant: Option<String>,
    /// A `Content-Encoding` other than identity.
    pub encoded: bool,
}

/// Finds the end of a head in a growing buffer; looks at each byte once however small the pieces are.
#[derive(Debug, Default)]
pub struct HeadScan {
    /// Everything before was looked at.
    at: usize,
    /// Where the current line began.
    line: usize,
    /// Non-empty lines so far.
    lines: usize,
    blank: usize,
}

impl HeadScan {
    /// Where the head ends in `bytes` (its first byte after the empty line), or `None` while it has not arrived.
    /// `bytes` starts where the request starts and only ever grows between calls.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        loop {
            if self.lines == 0 && self.line < bytes.len() && !may_begin(bytes[self.line]) {
                return Err(Refusal::BadRequest("not a request line"));
            }
            let Some(found) = memchr(b'\n', &bytes[self.at..]) else {
                self.at = bytes.len();
                break;
            };
            let line = &bytes[self.line..self.at + found];
            let next = self.at + found + 1;
            let Some((b'\r', line)) = line.split_last() else {
                return Err(Refusal::BadRequest("line without CR"));
            };
            if memchr(b'\r', line).is_some() {
                return Err(Refusal::BadRequest("CR inside a line"));
            }
            (self.at, self.line) = (next, next);
            if line.is_empty() && self.lines > 0 {
                return if next > HEAD_BYTES_MAX { Err(Refusal::HeadTooLarge) } else { Ok(Some(next)) };
            }
            if line.is_empty() {
                self.blank += 1;
                if self.blank > BLANK_LINES_MAX {
                    return Err(Refusal::BadRequest("not a request line"));
                }
                continue;
            }
            self.lines += 1;
            if self.lines == 1 && line.len() > TARGET_BYTES_MAX + REQUEST_LINE_EXTRA {
                return Err(Refusal::TargetTooLong);
            }
            if self.lines > 1 + HEADERS_MAX {
                return Err(Refusal::HeadTooLarge);
            }
        }
        if self.lines == 0 && bytes.len() - self.line > TARGET_BYTES_MAX + REQUEST_LINE_EXTRA {
            return Err(Refusal::TargetTooLong);
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(Refusal::HeadTooLarge);
        }
        Ok(None)
    }

    /// Whether anything of a request has arrived.
    pub fn has_begun(&self, bytes: &[u8]) -> bool {
        self.lines > 0 || self.line < bytes.len()
    }
}

/// What a request can begin with: a method, or the line break that some clients send after a body. Anything else
/// (a TLS handshake, say) is refused at its first byte instead of after the time limit.
fn may_begin(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'\r' || byte == b'\n'
}

/// Reads a whole head, as found by [`HeadScan`].
pub fn parse(bytes: &[u8]) -> Result<Head, Refusal> {
    let mut headers = [const { MaybeUninit::<httparse::Header>::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(end)) if end == bytes.len() => {}
        Ok(_) => return Err(Refusal::BadRequest("head ends early")),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::HeadTooLarge),
        Err(httparse::Error::HeaderName) => return Err(Refusal::BadRequest("header name")),
        Err(httparse::Error::HeaderValue) => return Err(Refusal::BadRequest("header value")),
        Err(httparse::Error::Version) => return Err(Refusal::BadRequest("HTTP version")),
        Err(_) => return Err(Refusal::BadRequest("request line")),
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(Refusal::BadRequest("request line"));
    };
    if target.len() > TARGET_BYTES_MAX {
        return Err(Refusal::TargetTooLong);
    }
    let fields = Fields::read(request.headers)?;
    let http_1_0 = version == 0;
    let length = fields.body_length(http_1_0)?;
    if !http_1_0 && fields.host.is_none() {
        return Err(Refusal::BadRequest("Host is missing"));
    }
    let expects_continue = match fields.expect {
        Some(word) if !http_1_0 && !word.eq_ignore_ascii_case(b"100-continue") => return Err(Refusal::Expectation),
        Some(_) => !http_1_0,
        None => false,
    };
    let (path, query) = target_parts(method, target)?;
    Ok(Head {
        method: Method::of(method),
        segments: segments(path)?,
        path: path.to_string(),
        query: query.to_string(),
        length,
        keep_alive: if http_1_0 { fields.keep_alive && !fields.close } else { !fields.close },
        http_1_0,
        expects_continue,
        content_type: fields.content_type.map(media_type),
        authorization: fields.authorization.map(header_text),
        authorization_repeated: fields.authorization_repeated,
        tenant: fields.tenant.map(header_text),
        encoded: fields.encoded,
    })
}

impl Method {
    /// The method of a request line; methods are case-sensitive.
    pub fn of(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        }
    }
}

/// The header lines that mean something here.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
    expect: Option<&'a [u8]>,
    close: bool,
    keep_alive: bool,
    content_type: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    authorization_repeated: bool,
    tenant: Option<&'a [u8]>,
    encoded: bool,
}

impl<'a> Fields<'a> {
    fn read(headers: &[httparse::Header<'a>]) -> Result<Fields<'a>, Refusal> {
        let mut fields = Fields::default();
        for header in headers {
            let value = header.value.trim_ascii();
            // `trim_ascii` would also take a form feed or a line break; the parser lets none through.
            if value.iter().any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f) {
                return Err(Refusal::BadRequest("control byte in a header value"));
            }
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            match header.name.len() {
                4 if is("host") => once(&mut fields.host, value, "Host repeated")?,
                6 if is("expect") => once(&mut fields.expect, value, "Expect repeated")?,
                10 if is("connection") => {
                    for word in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                        fields.close |= word.eq_ignore_ascii_case(b"close");
                        fields.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                12 if is("content-type") => fields.content_type = Some(value),
                13 if is("authorization") => {
                    fields.authorization_repeated |= fields.authorization.is_some();
                    fields.authorization = Some(value);
                }
                14 if is("content-length") => once(&mut fields.content_length, value, "Content-Length repeated")?,
                // Two tenants are no tenant: a text that no rule accepts, should the header be looked at.
                14 if is("x-queen-tenant") => fields.tenant = Some(fields.tenant.map_or(value, |_| b"repeated")),
                16 if is("content-encoding") => fields.encoded |= !value.eq_ignore_ascii_case(b"identity"),
                17 if is("transfer-encoding") => {
                    once(&mut fields.transfer_encoding, value, "Transfer-Encoding repeated")?
                }
                _ => {}
            }
        }
        if let Some(host) = fields.host
            && !host.iter().all(|&byte| is_host_byte(byte))
        {
            return Err(Refusal::BadRequest("Host"));
        }
        Ok(fields)
    }

    fn body_length(&self, http_1_0: bool) -> Result<BodyLength, Refusal> {
        match (self.transfer_encoding, self.content_length) {
            (None, None) => Ok(BodyLength::Fixed(0)),
            (None, Some(digits)) => content_length(digits).map(BodyLength::Fixed),
            (Some(_), Some(_)) => Err(Refusal::BadRequest("Content-Length beside Transfer-Encoding")),
            (Some(_), None) if http_1_0 => Err(Refusal::BadRequest("Transfer-Encoding in HTTP/1.0")),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(BodyLength::Chunked),
            (Some(_), None) => Err(Refusal::BadRequest("Transfer-Encoding other than chunked")),
        }
    }
}

fn once<'a>(place: &mut Option<&'a [u8]>, value: &'a [u8], why: &'static str) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::BadRequest(why)),
    }
}

/// Digits only, and no more than a 63-bit number: no sign, no list, no hex, no blank.
fn content_length(digits: &[u8]) -> Result<u64, Refusal> {
    let plain = !digits.is_empty() && digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit);
    let number = plain.then(|| digits.iter().try_fold(0u64, |n, d| n.checked_mul(10)?.checked_add((d - b'0') as u64)));
    number.flatten().filter(|&n| n <= i64::MAX as u64).ok_or(Refusal::BadRequest("Content-Length"))
}

/// Letters, digits and what names, IPv6 literals and ports need. Empty is allowed (RFC 9112 3.2).
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=:[]%".contains(&byte)
}

/// Path and query of a request target, in the forms RFC 9112 3.2 has for a server.
fn target_parts<'a>(method: &str, target: &'a str) -> Result<(&'a str, &'a str), Refusal> {
    let origin = if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        target
    } else {
        let rest = ["http://", "https://"].iter().find_map(|scheme| {
            let (start, rest) = target.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        });
        let rest = rest.ok_or(Refusal::BadRequest("request target"))?;
        let authority = rest.find(['/', '?']).unwrap_or(rest.len());
        if authority == 0 || !rest[..authority].bytes().all(is_host_byte) {
            return Err(Refusal::BadRequest("request target"));
        }
        &rest[authority..]
    };
    if origin.contains('#') {
        return Err(Refusal::BadRequest("fragment in the request target"));
    }
    let (path, query) = origin.split_once('?').unwrap_or((origin, ""));
    Ok((if path.is_empty() { "/" } else { path }, query))
}

/// Splits, then decodes each segment. Source: data plane 1.6.
fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let raw = path.strip_prefix('/').unwrap_or(path);
    let mut segments = Vec::with_capacity(8);
    for segment in raw.split('/') {
        let segment = match memchr(b'%', segment.as_bytes()) {
            None => segment.to_string(),
            Some(_) => String::from_utf8(percent_decode(segment.as_bytes(), false)).map_err(|_| Refusal::BadPath)?,
        };
        if has_control(&segment) {
            return Err(Refusal::BadPath);
        }
        segments.push(segment);
    }
    Ok(segments)
}

fn media_type(value: &[u8]) -> String {
    let end = memchr(b';', value).unwrap_or(value.len());
    let mut name = header_text(value[..end].trim_ascii());
    name.make_ascii_lowercase();
    name
}

/// Header text; bytes above ASCII become U+FFFD, which no rule accepts.
fn header_text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

#[cfg(test)]
#[path = "head_tests.rs"]
pub(crate) mod tests;
