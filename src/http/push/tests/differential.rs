//! The parser against a slow and plain one made of `serde_json` raw values.

use crate::http::json::nasty::{Nasty, SEEDS};
use crate::http::push::parse::parse;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Members of an object in order, duplicates kept. Keys are bytes: lone surrogates are legal there.
struct Members<'a>(Vec<(Vec<u8>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        de.deserialize_map(All)
    }
}

struct Key(Vec<u8>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Key, E> {
                Ok(Key(bytes.to_vec()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.as_bytes().to_vec()))
            }
        }
        de.deserialize_bytes(Bytes)
    }
}

/// queue, partition, transactionId, payload.
type Message = (String, String, Option<String>, String);

/// `None`: refused, for whatever reason.
fn plain(body: &[u8]) -> Option<Vec<Message>> {
    std::str::from_utf8(body).ok()?;
    // Keys read as bytes may hold raw control characters; read as a whole the body may not.
    serde_json::from_slice::<&RawValue>(body).ok()?;
    let Members(members) = serde_json::from_slice(body).ok()?;
    let mut messages = None;
    for (key, value) in members {
        if key == b"items" {
            let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            messages = Some(items.into_iter().map(message).collect::<Option<Vec<Message>>>()?);
        }
    }
    let messages = messages?;
    let control = |text: &str| text.bytes().any(|byte| byte < 0x20);
    let refused = |(queue, partition, id, _): &Message| {
        control(queue) || control(partition) || id.as_deref().is_some_and(|id| control(id) || id.len() > 65_535)
    };
    if messages.iter().any(refused) { None } else { Some(messages) }
}

fn message(item: &RawValue) -> Option<Message> {
    let Members(members) = serde_json::from_str(item.get()).ok()?;
    let (mut queue, mut partition, mut id, mut payload) = (None, None, None, None);
    for (key, value) in members {
        let raw = value.get();
        let is_text = raw.starts_with('"');
        match &*key {
            b"queue" if is_text => queue = Some(raw),
            b"partition" if is_text || raw == "null" => partition = Some(raw),
            b"transactionId" if is_text || raw == "null" => id = Some(raw),
            b"payload" => payload = Some(raw),
            b"queue" | b"partition" | b"transactionId" => return None,
            _ => {}
        }
    }
    let text = |raw: &str| serde_json::from_str::<Option<String>>(raw).ok();
    let partition = partition.map_or(Some(None), text)?.unwrap_or("Default".into());
    Some((text(queue?)??, partition, id.map_or(Some(None), text)?, payload?.into()))
}

fn ours(body: &[u8]) -> Option<Vec<Message>> {
    let parsed = parse(body).ok()?;
    let message = |item: &crate::http::push::parse::Item| {
        let lane = &parsed.lanes[item.lane as usize];
        let id = item.transaction_id.as_deref().map(Into::into);
        (lane.queue.to_string(), lane.partition.to_string(), id, item.payload.to_string())
    };
    Some(parsed.items.iter().map(message).collect())
}

const QUEUE: &[&str] = &["queue", "queue", "queue", "queue", "queue", "que\\u0075e", "que\\u0075e", "Queue", "xqueue"];
const PAYLOAD: &[&str] =
    &["payload", "payload", "payload", "payload", "payload", "payl\\u006fad", "\\u0070ayload", "data", "Payload"];
const OTHER: &[&str] = &[
    "partition",
    "transactionId",
    "partit\\u0069on",
    "traceId",
    "__proto__",
    "items",
    "queue",
    "payload",
    "\\ud800",
    "",
];
const NAMES: &[&str] =
    &["q", "q", "\\u0071", "r\\n", "é", "\\u00e9", "", "Default", "long enough for a word", "\\ud83d\\ude00"];

fn push_item(nasty: &mut Nasty, out: &mut Vec<u8>) {
    if nasty.once_in(60) {
        return nasty.push_value(out, 2);
    }
    let mut members = vec![(nasty.pick(QUEUE), true), (nasty.pick(PAYLOAD), false)];
    for _ in 0..nasty.below(4) {
        members.push((nasty.pick(OTHER), !nasty.once_in(12)));
    }
    for i in (1..members.len()).rev() {
        members.swap(i, nasty.below(i + 1));
    }
    out.push(b'{');
    for (i, (key, name)) in members.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        nasty.space(out);
        out.extend_from_slice(format!("\"{key}\"").as_bytes());
        nasty.space(out);
        out.push(b':');
        nasty.space(out);
        match name {
            true if nasty.once_in(40) => out.extend_from_slice(b"null"),
            true if nasty.once_in(40) => nasty.text(out),
            true => {
                let name = nasty.pick(NAMES);
                // A name that is refused once refuses all: keep those rare.
                let name = if name.contains("\\n") && !nasty.once_in(10) { "q" } else { name };
                out.extend_from_slice(format!("\"{name}\"").as_bytes());
            }
            false => nasty.push_value(out, 3),
        }
        nasty.space(out);
    }
    out.push(b'}');
}

fn body(nasty: &mut Nasty) -> Vec<u8> {
    let mut out = Vec::new();
    nasty.space(&mut out);
    out.push(b'{');
    let members = 1 + nasty.below(3);
    let at = nasty.below(members);
    for i in 0..members {
        if i > 0 {
            out.push(b',');
        }
        nasty.space(&mut out);
        if i == at || nasty.once_in(10) {
            let items = nasty.pick(&["items", "items", "it\\u0065ms"]);
            out.extend_from_slice(format!("\"{items}\":").as_bytes());
            nasty.space(&mut out);
            nasty.push_members(&mut out, b'[', b']', push_item);
        } else {
            nasty.text(&mut out);
            out.push(b':');
            nasty.push_value(&mut out, 3);
        }
        nasty.space(&mut out);
    }
    out.push(b'}');
    nasty.space(&mut out);
    out
}

#[test]
fn the_parser_takes_what_a_plain_one_takes() {
    for seed in SEEDS {
        let mut nasty = Nasty::new(seed ^ 0xabcd);
        let (mut accepted, mut refused, mut messages) = (0, 0, 0);
        for _ in 0..30_000 {
            let mut body = body(&mut nasty);
            if nasty.once_in(2) {
                nasty.damage(&mut body);
            }
            let plain = plain(&body);
            let why = parse(&body).err();
            assert_eq!(ours(&body), plain, "seed {seed}, {why:?}: {:?}", String::from_utf8_lossy(&body));
            match plain {
                Some(all) => (accepted, messages) = (accepted + 1, messages + all.len()),
                None => refused += 1,
            }
        }
        assert!(accepted > 5_000 && refused > 5_000 && messages > 5_000, "one-sided: {accepted} {refused} {messages}");
    }
}
