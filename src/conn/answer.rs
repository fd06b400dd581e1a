//! Answers as bytes.

use crate::http::Response;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the request and the connection say about an answer's head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// The request was HEAD: the head of the answer, without its body.
    pub head_only: bool,
    /// The connection closes after this answer.
    pub close: bool,
    /// An HTTP/1.0 client expects to be told when it does not.
    pub http_1_0: bool,
}

/// Interim answer to `Expect: 100-continue`.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Whether answers of this status never have a body, and so no length and no type (RFC 9110 8.6).
pub(super) fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..200 | 204 | 304)
}

/// Appends the head of `response`, empty line included. `date`: see [`http_date`].
pub(super) fn write_head(out: &mut Vec<u8>, response: &Response, style: Style, date: &str) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(response.status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(response.status).as_bytes());
    if !is_bodiless(response.status) {
        if let Some(content_type) = response.content_type {
            line(out, "content-type", content_type);
        }
        line(out, "content-length", itoa::Buffer::new().format(response.body.len()));
    }
    line(out, "date", date);
    for (name, value) in &response.headers {
        line(out, name, value);
    }
    if style.close {
        line(out, "connection", "close");
    } else if style.http_1_0 {
        line(out, "connection", "keep-alive");
    }
    out.extend_from_slice(b"\r\n\r\n");
}

/// Starts with the line break, so that the status line needs no case of its own. A value can hold no line break:
/// what came from a client could otherwise begin a line of its own.
fn line(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend(value.bytes().map(|byte| if byte < 0x20 || byte == 0x7f { b' ' } else { byte }));
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        303 => "See Other",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "",
    }
}

/// The wall clock as HTTP wants it: `Sun, 29 Nov 2026 08:00:00 GMT`. Decides nothing.
pub(super) fn http_date(now: SystemTime) -> String {
    let secs = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (secs / 86_400, secs % 86_400);
    // Days to civil date, counted from 0000-03-01 in eras of 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let month = months[month as usize];
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[track_caller]
    fn check(response: Response, style: Style, want: &str) {
        let mut out = Vec::new();
        write_head(&mut out, &response, style, "D");
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    const PLAIN: Style = Style { head_only: false, close: false, http_1_0: false };

    #[test]
    fn a_204_has_neither_length_nor_type() {
        check(Response::empty(204), PLAIN, "HTTP/1.1 204 No Content\r\ndate: D\r\n\r\n");
        let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ndate: D\r\n\r\n";
        check(Response::json(200, "[]"), PLAIN, json);
        let empty = "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\ndate: D\r\nconnection: close\r\n\r\n";
        check(Response::empty(405), Style { close: true, ..PLAIN }, empty);
    }

    #[test]
    fn a_header_value_cannot_begin_a_line() {
        let mut response = Response::empty(204);
        response.headers.push(("x", "a\r\nb: c".into()));
        let style = Style { http_1_0: true, ..PLAIN };
        let want = "HTTP/1.1 204 No Content\r\ndate: D\r\nx: a  b: c\r\nconnection: keep-alive\r\n\r\n";
        check(response, style, want);
    }

    #[test]
    fn dates_are_imf_fixdates() {
        let at = |secs| http_date(UNIX_EPOCH + Duration::from_secs(secs));
        assert_eq!(at(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(at(1_798_761_599), "Thu, 31 Dec 2026 23:59:59 GMT");
    }
}
