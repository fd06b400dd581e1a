//! Query strings: `a=b&c=d`, percent-decoded, `+` as space.
//!
//! For management: what does not parse is the default, an empty text is "filter absent". A pop reads its own, strictly.
//! Of a repeated parameter the last counts, as there. Source: data plane 1.1, 1.6.

use super::Request;
use std::str::FromStr;

/// A query string taken apart.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Request {
    /// The query string taken apart. Not kept: call it once.
    pub fn query(&self) -> Query {
        Query::parse(&self.query)
    }
}

impl Query {
    /// Never fails: an escape that is none stays as it is, bytes that are no UTF-8 become U+FFFD.
    pub fn parse(raw: &str) -> Query {
        let decoded = |raw: &str| match String::from_utf8(percent_decode(raw.as_bytes(), true)) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Query { pairs: raw.split('&').filter(|pair| !pair.is_empty()).map(pair).collect() }
    }

    /// The value as it is; `Some("")` when it is present and empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A filter: `None` when absent or empty.
    pub fn filter(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// A number, or the default.
    pub fn number_or<T: FromStr>(&self, name: &str, default: T) -> T {
        self.get(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default)
    }

    /// `true`, `1`, `yes` or `false`, `0`, `no`, else the default.
    pub fn flag_or(&self, name: &str, default: bool) -> bool {
        match self.get(name) {
            Some("true" | "1" | "yes") => true,
            Some("false" | "0" | "no") => false,
            _ => default,
        }
    }
}

/// Undoes percent-encoding; an escape that is none stays. `plus`: whether `+` is a space (queries only).
pub fn percent_decode(raw: &[u8], plus: bool) -> Vec<u8> {
    let hex = |byte: u8| (byte as char).to_digit(16);
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let byte = match raw[at] {
            b'+' if plus => b' ',
            b'%' if at + 2 < raw.len() => match (hex(raw[at + 1]), hex(raw[at + 2])) {
                (Some(high), Some(low)) => {
                    at += 2;
                    (high * 16 + low) as u8
                }
                _ => b'%',
            },
            byte => byte,
        };
        out.push(byte);
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded() {
        let query = Query::parse("a+b=c%20d%2Be&empty=&bare&&x=1&x=2&%zz=%4&uni=%F0%9F%90%9D");
        let all = ["a b", "empty", "bare", "x", "%zz", "uni", "none"].map(|name| query.get(name));
        assert_eq!(all, [Some("c d+e"), Some(""), Some(""), Some("2"), Some("%4"), Some("🐝"), None]);
    }

    #[test]
    fn values_that_do_not_parse_fall_back() {
        let query = Query::parse("batch=abc&wait=yes&n=5&f=&q=%FF");
        assert_eq!((query.number_or("batch", 7), query.number_or("n", 7), query.number_or("no", 7)), (7, 5, 7));
        assert_eq!((query.flag_or("wait", false), query.flag_or("n", true), query.filter("f")), (true, true, None));
        assert_eq!(query.get("q"), Some("\u{fffd}"));
    }
}
