//! Query strings: `a=b&c=d`, percent-decoded, `+` as space.
//!
//! Two ways to read a value. Strict, for the typed parameters of a pop: what does not parse is a 400 before any work.
//! Lenient, for management: what does not parse is the default, an empty text is "filter absent".
//! Of a repeated parameter the first counts. Source: data plane 1.1, 1.6 and 4.1.

use super::Request;
use super::refusals::Refusal;
use std::str::FromStr;

/// A query string taken apart.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    /// Some name or value was not UTF-8 after decoding.
    malformed: bool,
}

impl Request {
    /// The query string taken apart. Not kept: call it once.
    pub fn query(&self) -> Query {
        Query::parse(&self.query)
    }
}

impl Query {
    /// Never fails: an escape that is none stays as it is, bytes that are no UTF-8 become U+FFFD and are remembered
    /// for the strict getters.
    pub fn parse(raw: &str) -> Query {
        let mut query = Query::default();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let pair = (query.decoded(name), query.decoded(value));
            query.pairs.push(pair);
        }
        query
    }

    fn decoded(&mut self, raw: &str) -> String {
        String::from_utf8(percent_decode(raw.as_bytes(), true)).unwrap_or_else(|e| {
            self.malformed = true;
            String::from_utf8_lossy(e.as_bytes()).into_owned()
        })
    }

    /// The value as it is; `Some("")` when it is present and empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    // ---- strict

    /// A text; refused when the query was not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        if self.malformed {
            return Err(Refusal::BadQuery("not UTF-8".into()));
        }
        Ok(self.get(name))
    }

    /// A number of type `T`: i32, i64, u32, u64.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let refusal = |value: &str| Refusal::BadQuery(format!("{name} is not a number: {value}"));
        self.text(name)?.map(|value| value.parse().map_err(|_| refusal(value))).transpose()
    }

    /// `true` or `false`, nothing else.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.text(name)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Refusal::BadQuery(format!("{name} is neither true nor false: {other}"))),
        }
    }

    // ---- lenient

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
        assert_eq!(all, [Some("c d+e"), Some(""), Some(""), Some("1"), Some("%4"), Some("🐝"), None]);
    }

    #[test]
    fn strict_values_are_refused_lenient_ones_fall_back() {
        let query = Query::parse("batch=abc&wait=yes&timeout=-1&n=5&on=true&f=");
        assert!(query.number::<i64>("batch").is_err() && query.number::<u64>("timeout").is_err());
        assert!(query.flag("wait").is_err() && query.flag("f").is_err() && query.number::<i64>("f").is_err());
        assert_eq!(query.number::<i64>("n"), Ok(Some(5)));
        assert_eq!((query.flag("on"), query.flag("off")), (Ok(Some(true)), Ok(None)));
        assert_eq!(query.text("f"), Ok(Some("")));
        assert_eq!((query.number_or("batch", 7), query.number_or("n", 7), query.number_or("no", 7)), (7, 5, 7));
        assert_eq!((query.flag_or("wait", false), query.flag_or("n", true), query.filter("f")), (true, true, None));
    }

    #[test]
    fn what_is_not_utf8_is_refused_where_it_is_strict() {
        let query = Query::parse("q=%FF&batch=1");
        assert_eq!(query.get("q"), Some("\u{fffd}"));
        assert!(query.text("q").is_err() && query.number::<i64>("batch").is_err());
        assert_eq!(query.number_or("batch", 0), 1);
    }
}
