//! The query string of a pop, read strictly: what does not parse refuses the request before any work.

use crate::http::query::percent_decode;
use std::borrow::Cow;

/// Parameters as sent; `None` = absent. Source: data plane 4.1.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// At least 1.
    pub batch: Option<u32>,
    /// At least 1; "no cap" is the largest number.
    pub partitions: Option<u32>,
    pub wait: bool,
    pub timeout_ms: Option<u64>,
    pub auto_ack: bool,
    /// At least 1.
    pub lease_secs: Option<u32>,
    pub group: Option<String>,
    pub mode: Option<String>,
    pub from: Option<String>,
    pub conflation: Option<bool>,
    pub autopilot: bool,
    /// A framed answer is welcome.
    pub frames: bool,
    pub namespace: Option<String>,
    pub task: Option<String>,
}

/// Longest lease in seconds: what PostgreSQL's integer holds.
const LEASE_SECS_MAX: i64 = i32::MAX as i64;

/// Reads a raw query string. The last of duplicate parameters wins; unknown ones are ignored. The error is the text
/// of a plain 400.
pub fn parse(query: &str) -> Result<Query, String> {
    let mut read = Query::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name).ok_or("a parameter name is not UTF-8")?;
        let text = || decode(value).map(Cow::into_owned).ok_or_else(|| format!("{name} is not UTF-8"));
        match &*name {
            "batch" => read.batch = Some(int(&name, &text()?)?.clamp(1, u32::MAX as i64) as u32),
            "partitions" => {
                read.partitions = Some(match int(&name, &text()?)? {
                    ..=0 => u32::MAX,
                    partitions => partitions.min(u32::MAX as i64) as u32,
                })
            }
            "wait" => read.wait = boolean(&name, &text()?)?,
            "timeout" => {
                let text = text()?;
                let wrong = |_| format!("invalid timeout: `{text}` is not a number of milliseconds");
                read.timeout_ms = Some(text.parse().map_err(wrong)?);
            }
            "autoAck" => read.auto_ack = boolean(&name, &text()?)?,
            "leaseSeconds" => {
                let secs = int(&name, &text()?)?;
                read.lease_secs = (secs > 0).then_some(secs.min(LEASE_SECS_MAX) as u32);
            }
            "consumerGroup" => read.group = Some(text()?),
            "subscriptionMode" => read.mode = Some(text()?),
            "subscriptionFrom" => read.from = Some(text()?),
            "conflation" => read.conflation = Some(boolean(&name, &text()?)?),
            "autopilot" => read.autopilot = boolean(&name, &text()?)?,
            "namespace" => read.namespace = Some(text()?),
            "task" => read.task = Some(text()?),
            "frames" => read.frames = boolean(&name, &text()?)?,
            _ => {}
        }
    }
    Ok(read)
}

fn int(name: &str, text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("invalid {name}: `{text}` is not an integer"))
}

fn boolean(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("invalid {name}: `{text}` is neither `true` nor `false`")),
    }
}

/// Percent-decodes a form value. `None` if it is not UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if memchr::memchr2(b'%', b'+', text.as_bytes()).is_none() {
        return Some(Cow::Borrowed(text));
    }
    String::from_utf8(percent_decode(text.as_bytes(), true)).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_by_their_rules() {
        let read = |query: &str| parse(query).unwrap();
        assert_eq!(read(""), Query::default());
        assert_eq!(read("x=1&&unknown"), Query::default());
        assert_eq!(read("batch=0").batch, Some(1));
        assert_eq!(read("batch=-5").batch, Some(1));
        assert_eq!(read("batch=99999999999").batch, Some(u32::MAX));
        assert_eq!(read("partitions=0").partitions, Some(u32::MAX));
        assert_eq!(read("partitions=-1").partitions, Some(u32::MAX));
        assert_eq!(read("partitions=7").partitions, Some(7));
        assert_eq!(read("leaseSeconds=0").lease_secs, None);
        assert_eq!(read("leaseSeconds=-3").lease_secs, None);
        assert_eq!(read("leaseSeconds=45").lease_secs, Some(45));
        assert_eq!(read("wait=true&timeout=0").timeout_ms, Some(0));
        assert_eq!(read("consumerGroup=").group.as_deref(), Some(""));
        assert_eq!(read("consumerGroup=a%20b+c%2f%25%F0%9F%98%80%").group.as_deref(), Some("a b c/%😀%"));
        assert_eq!(read("conflation=false").conflation, Some(false));
        assert_eq!(read("batch=1&batch=2").batch, Some(2));
        assert_eq!(read("consumer%47roup=g").group.as_deref(), Some("g"));
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for query in [
            "batch=abc",
            "batch=",
            "batch",
            "batch=1.5",
            "batch=99999999999999999999",
            "partitions=x",
            "wait=yes",
            "wait=1",
            "wait=True",
            "wait=",
            "timeout=-1",
            "timeout=1s",
            "timeout=",
            "autoAck=TRUE",
            "leaseSeconds=1e3",
            "conflation=no",
            "autopilot=on",
            "frames=1",
            "consumerGroup=%ff",
            "%ff=1",
        ] {
            assert!(parse(query).is_err(), "{query}");
        }
    }
}
