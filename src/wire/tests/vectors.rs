//! Every golden vector: what a request body is read as or why it is refused, what a pop answer is written as.

use crate::http::json::document;
use crate::wire::pop::{ClaimHead, Head, Writer};
use crate::wire::{Refused, packed, plain, push, transaction};
use bytes::Bytes;
use queen_shards::command::Codec;
use queen_shards::frames::Frames;
use queen_shards::ids::{MessageId, Offset, PartitionId, Stamp};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn index() -> Value {
    serde_json::from_slice(&std::fs::read(dir().join("index.json")).unwrap()).unwrap()
}

fn vectors(kind: &str) -> Vec<(Value, Bytes)> {
    let index = index();
    let all = index["vectors"].as_array().unwrap().iter().filter(|vector| vector["kind"] == kind);
    let read = |vector: &Value| {
        let bytes = std::fs::read(dir().join(vector["file"].as_str().unwrap())).unwrap();
        assert_eq!(bytes.len() as u64, vector["size"].as_u64().unwrap(), "{}", vector["id"]);
        (vector.clone(), Bytes::from(bytes))
    };
    all.map(read).collect()
}

fn id_text(id: MessageId) -> String {
    uuid::Uuid::from_u128(id.0).to_string()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// What a body is read as, in the shape of the index, without what only a hash of says.
fn read(vector: &Value, body: &Bytes, limit: u64) -> Result<Value, Refused> {
    if vector["kind"] == "transaction" {
        let open = transaction::open(body)?;
        let head = document(open.head).map_err(|_| Refused::Malformed("head".into()))?;
        let head: Value = serde_json::from_str(head).unwrap();
        if !head.is_object() {
            return Err(Refused::Malformed("head".into()));
        }
        let groups = of_packed(open.groups, 0, limit)?;
        return Ok(json!({"magic": "QTB1", "flags": body[4], "head": head, "groups": groups}));
    }
    let open = push::open(body, limit)?;
    let raw_len = (body[4] & 1 == 1).then_some(open.raw_len);
    let rest = open.rest()?;
    let groups = if open.packed { of_packed(&rest, open.raw_len, limit)? } else { of_plain(&rest, open.ids)? };
    Ok(json!({"magic": "QPB1", "flags": body[4], "rawLen": raw_len, "groups": groups}))
}

fn of_plain(rest: &[u8], ids: bool) -> Result<Vec<Value>, Refused> {
    let (groups, items) = plain::items(rest, ids)?;
    let mut items = items.into_iter();
    let group = |group: &plain::Group<'_>| {
        let own = items.by_ref().take(group.items as usize);
        let own: Vec<Value> = own.map(|i| json!({"txn": i.transaction_id, "payload": i.payload})).collect();
        json!({"queue": group.queue, "partition": group.partition, "n": group.items, "items": own})
    };
    Ok(groups.iter().map(group).collect())
}

fn of_packed(rest: &[u8], spent: u64, limit: u64) -> Result<Vec<Value>, Refused> {
    let groups = packed::walk(rest, spent, limit)?;
    let mut all = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let frames = group.inflate(g)?;
        let mut items = Vec::new();
        packed::messages(&frames, group.n, 0, |m| {
            items.push(json!({"messageId": id_text(m.id), "txn": m.transaction_id, "payload": m.payload}));
        })?;
        all.push(json!({"queue": group.queue, "partition": group.partition, "n": group.n, "items": items,
                        "zLen": group.z.len(), "inflatedLen": frames.len()}));
    }
    Ok(all)
}

/// `got` has all that `want` says. Texts that the index gives by length only are compared by length.
fn assert_says(got: &Value, want: &Value, at: &str) {
    if let Some(begin) = want.as_str().and_then(|text| text.strip_suffix("...")) {
        return assert!(got.as_str().is_some_and(|text| text.starts_with(begin)), "{at}");
    }
    let Some(want) = want.as_object() else { return assert!(got == want, "{at}: not {want}") };
    for (key, want) in want {
        let at = format!("{at}.{key}");
        match (&**key, want) {
            ("headLen" | "zSha256" | "inflatedSha256" | "payloadSha256" | "txnSha256", _) => {}
            ("payloadLen", _) => assert_eq!(json!(got["payload"].as_str().unwrap().len()), *want, "{at}"),
            ("txnLen", _) => assert_eq!(json!(got["txn"].as_str().unwrap().len()), *want, "{at}"),
            ("firstItem", _) => assert_says(&got["items"][0], want, &at),
            ("lastItem", _) => assert_says(got["items"].as_array().unwrap().last().unwrap(), want, &at),
            ("itemsInAll", _) => assert_eq!(json!(got["items"].as_array().unwrap().len()), *want, "{at}"),
            ("head", _) => assert_eq!(got["head"], *want, "{at}"),
            (_, Value::Array(list)) => {
                assert_eq!(got[key].as_array().unwrap().len(), list.len(), "{at}");
                list.iter().enumerate().for_each(|(i, want)| assert_says(&got[key][i], want, &format!("{at}.{i}")));
            }
            _ => assert_says(&got[key], want, &at),
        }
    }
}

#[test]
fn every_request_is_read_or_refused_as_the_index_says() {
    let limit = index()["limits"]["inflatedBytesPerRequest"].as_u64().unwrap();
    let (mut read_ones, mut refused_ones) = (0, 0);
    for (vector, body) in vectors("push").into_iter().chain(vectors("transaction")) {
        let id = vector["id"].as_str().unwrap();
        if vector["request"]["contentType"] != "application/x-queen-push" {
            assert_eq!(vector["refusal"], "malformed", "{id}: sent as JSON, which it is not");
            continue;
        }
        // `bad-route` is a transaction on the push route: the route chooses the reader.
        match read(&vector, &body, limit) {
            Ok(got) => {
                assert!(vector["refusal"].is_null(), "{id} must be refused");
                assert_says(&got, &vector["parse"], id);
                read_ones += 1;
            }
            Err(refused) => {
                let want = match refused {
                    Refused::TooLarge { .. } => "too large",
                    _ => "malformed",
                };
                assert_eq!(vector["refusal"], want, "{id}: {refused:?}");
                refused_ones += 1;
            }
        }
    }
    assert!(read_ones > 40 && refused_ones > 20, "{read_ones} read, {refused_ones} refused");
}

#[test]
fn a_body_cut_anywhere_or_longer_is_refused() {
    for (vector, body) in vectors("push").into_iter().chain(vectors("transaction")) {
        if !vector["refusal"].is_null() || body.len() > 4096 {
            continue;
        }
        for cut in 0..body.len() {
            let refused = read(&vector, &body.slice(..cut), 1 << 26);
            assert!(matches!(refused, Err(Refused::Malformed(_))), "{} cut at {cut}: {refused:?}", vector["id"]);
        }
        let longer = Bytes::from([&body[..], b"\0"].concat());
        assert!(read(&vector, &longer, 1 << 26).is_err(), "{} with a byte more", vector["id"]);
    }
}

#[test]
fn every_pop_answer_is_written_as_its_bytes() {
    let mut written = 0;
    for (vector, want) in vectors("pop-answer") {
        let state = &vector["state"];
        if state.is_null() || state["version"] != 1 || vector["id"] == "pop-codec2" {
            continue; // Not to be sent, or by no broker of this version.
        }
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let own = text(&state["own"]);
        let claims = state["claims"].as_array().unwrap();
        let (queue, lease, group) = (text(&state["queue"]), text(&state["leaseId"]), text(&state["consumerGroup"]));
        let (own, claims_count) = (own.as_bytes(), claims.len() as u32);
        let head = Head { own, queue: &queue, lease: &lease, group: &group, claims: claims_count };
        let mut writer = Writer::new(&head, 0);
        for claim in claims {
            let records = claim["records"].as_array().unwrap();
            writer.claim(&ClaimHead {
                partition: PartitionId(claim["partitionId"].as_i64().unwrap()),
                name: claim["partition"].as_str().unwrap(),
                start: Offset(claim["start"].as_i64().unwrap()),
                end: Offset(claim["end"].as_i64().unwrap()),
                attempt: claim["deliveryAttempt"].as_u64().unwrap() as u32,
                records: records.len() as u32,
            });
            for record in records {
                let codec = if record["codec"] == 0 { Codec::Raw } else { Codec::Zstd };
                let (base, at) = (record["baseOffset"].as_i64().unwrap(), record["createdAtUs"].as_i64().unwrap());
                let count = record["count"].as_u64().unwrap() as u32;
                writer.record(Offset(base), Stamp(at), count, codec, &unhex(record["bytesHex"].as_str().unwrap()));
            }
        }
        assert_eq!(Bytes::from(writer.finish()), want, "{}", vector["id"]);
        written += 1;
    }
    assert!(written >= 10, "{written}");
}

#[test]
fn stored_frames_are_read_as_the_index_says() {
    for (vector, bytes) in vectors("stored-frames") {
        let want = vector["frames"].as_array().unwrap();
        let got: Vec<_> = Frames::new(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(got.len(), want.len(), "{}", vector["id"]);
        for (got, want) in got.iter().zip(want) {
            assert_eq!(
                (got.range.start, got.flags),
                (want["at"].as_u64().unwrap() as usize, want["flags"].as_u64().unwrap() as u8)
            );
            assert_eq!(id_text(got.id), want["messageId"]);
            assert_eq!((got.transaction_id, got.producer), (want["txn"].as_str().unwrap(), want["producer"].as_str()));
            assert_eq!(std::str::from_utf8(got.payload).unwrap(), want["payload"]);
        }
    }
}
