//! The golden vectors and scenarios of the binary forms, sent to a broker. Binary forms 18.

use crate::harness::{Broker, Setup};
use crate::wire::{self, Record};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn index() -> Value {
    serde_json::from_slice(&std::fs::read(dir().join("index.json")).unwrap()).unwrap()
}

fn vector<'a>(index: &'a Value, id: &Value) -> &'a Value {
    index["vectors"].as_array().unwrap().iter().find(|vector| vector["id"] == *id).unwrap_or_else(|| panic!("{id}"))
}

fn send(b: &Broker, vector: &Value) -> (u16, Value) {
    let request = &vector["request"];
    let text = |key: &str| request[key].as_str().unwrap();
    let body = std::fs::read(dir().join(vector["file"].as_str().unwrap())).unwrap();
    let answer = wire::send(b, text("method"), text("path"), text("contentType"), Some(&body));
    (answer.status, answer.json())
}

/// `got` has what `want` says; texts in angle brackets stand for what the broker makes up.
fn assert_says(got: &Value, want: &Value, made: &mut HashMap<String, Value>, root: &Value, at: &str) {
    match want {
        Value::String(text) if text == "<any text>" => {
            assert!(got.as_str().is_some_and(|text| !text.is_empty()), "{at}: {got}")
        }
        Value::String(text) if text.starts_with("<minted ") => {
            let id = got.as_str().unwrap_or_else(|| panic!("{at}: {got}"));
            assert_eq!((id.len(), &id[14..15]), (36, "7"), "{at}: a version-7 UUID");
            assert_eq!(made.entry(text.clone()).or_insert(got.clone()), got, "{at}");
        }
        Value::String(text) if text.starts_with("<message_id of ") => {
            let index: usize = text["<message_id of ".len()..text.len() - 1].parse().unwrap();
            assert_eq!(*got, root[index]["message_id"], "{at}");
        }
        Value::Object(fields) => {
            for (key, want) in fields {
                assert_says(&got[key], want, made, root, &format!("{at}.{key}"));
            }
        }
        Value::Array(list) => {
            assert_eq!(got.as_array().map(Vec::len), Some(list.len()), "{at}: {got}");
            for (i, want) in list.iter().enumerate() {
                assert_says(&got[i], want, made, root, &format!("{at}.{i}"));
            }
        }
        _ => assert!(got == want, "{at}: not {want}"),
    }
}

fn assert_answer(vector: &Value, answer: &Value, (status, body): (u16, Value)) {
    let id = vector["id"].as_str().unwrap();
    assert_eq!(json!(status), answer["status"], "{id}: {body}");
    let mut made = HashMap::new();
    for (key, want) in answer.as_object().unwrap() {
        match &**key {
            "status" => {}
            "body" => assert_says(&body, want, &mut made, &body, id),
            "summary" => {
                let entries = body.as_array().unwrap();
                let of = |status: &str| json!(entries.iter().filter(|entry| entry["status"] == status).count());
                assert_eq!(json!(entries.len()), want["items"], "{id}");
                for status in ["queued", "duplicate", "error"] {
                    assert_eq!(of(status), want[status], "{id}");
                }
            }
            _ => assert_says(&body[key], want, &mut made, &body, &format!("{id}.{key}")),
        }
    }
}

fn segments(b: &Broker) -> String {
    let sql = "select count(*) || ' ' || (select count(*) from queen.queues) from queen.segments";
    crate::harness::shared_postgres().query(b.database.as_ref().unwrap(), sql)
}

#[test]
fn every_request_is_answered_as_the_index_says() {
    let index = index();
    let b = Setup::clean().start();
    let (mut answered, mut riders) = (0, 0);
    for vector in index["vectors"].as_array().unwrap() {
        let kind = vector["kind"].as_str().unwrap();
        let of_a_scenario = vector["id"].as_str().unwrap().starts_with("scen-");
        if !["push", "transaction"].contains(&kind) || vector["answer"].is_null() || of_a_scenario {
            continue;
        }
        // A rider's own room answers for it; until it is there, the refusal says so, and nothing is stored.
        let before = segments(&b);
        let got = send(&b, vector);
        let head = &vector["parse"]["head"];
        let has_riders =
            ["kv", "timers"].iter().any(|rider| head[rider].as_array().is_some_and(|list| !list.is_empty()));
        if has_riders && got.0 == 403 {
            assert_eq!(got.1["success"], false, "{}", got.1);
            riders += 1;
        } else {
            assert_answer(vector, &vector["answer"], got);
        }
        if !vector["refusal"].is_null() {
            assert_eq!(segments(&b), before, "{}: nothing is stored", vector["id"]);
        }
        answered += 1;
    }
    assert!(answered - riders > 60, "{answered} answered, {riders} have riders");
}

/// Scenarios run on the default configuration; the others configure what they need in their own tests.
#[test]
fn the_scenarios_run_as_the_index_says() {
    let index = index();
    let mut ran = Vec::new();
    for scenario in index["scenarios"].as_array().unwrap() {
        let id = scenario["id"].as_str().unwrap();
        if ["producer-stamp", "encrypted-queue"].contains(&id) {
            continue;
        }
        let b = Setup::clean().start();
        run(&b, &index, scenario, true);
        // The same records once they come from PostgreSQL.
        b.restart();
        run(&b, &index, scenario, false);
        ran.push(id);
    }
    assert_eq!(ran, ["dedup-repack", "verbatim", "repeat-in-request", "order-of-groups"]);
}

fn run(b: &Broker, index: &Value, scenario: &Value, sends: bool) {
    let id = &scenario["id"];
    for step in scenario["steps"].as_array().unwrap() {
        if let Some(name) = step.get("send").filter(|_| sends) {
            let vector = vector(index, name);
            assert_answer(vector, &step["answer"], send(b, vector));
        }
        if let Some(pop) = step.get("pop") {
            let (path, query) = (pop["path"].as_str().unwrap(), pop["query"].as_str().unwrap());
            // Another group each time, so that every run reads from the beginning.
            let framed = wire::pop(b, &format!("{path}?{query}&consumerGroup=g-{sends}&subscriptionMode=all"));
            assert_records(&framed.records, step["records"].as_array().unwrap(), id);
        }
    }
}

/// Records as they must be. Two small wire groups of one partition may have become one record: then its frames must be
/// those of both.
fn assert_records(got: &[Record], want: &[Value], id: &Value) {
    if *id == "order-of-groups" {
        let count = |records: &[Value]| records.iter().map(|record| record["count"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(got.iter().map(|record| record.count as u64).sum::<u64>(), count(want), "{id}");
        let inflated: Vec<u8> = got.iter().flat_map(Record::inflated).collect();
        let body = std::fs::read(dir().join("frames-path.bin")).unwrap();
        assert_eq!(inflated, frames_of_path(&body), "{id}");
        return;
    }
    assert_eq!(got.len(), want.len(), "{id}");
    for (got, want) in got.iter().zip(want) {
        assert_eq!((json!(got.base), json!(got.count)), (want["baseOffset"].clone(), want["count"].clone()), "{id}");
        if let Some(hash) = want["bytesSha256"].as_str() {
            assert_eq!(
                (json!(got.codec), sha256(&got.bytes).as_str()),
                (want["codec"].clone(), hash),
                "{id}: verbatim"
            );
        }
        if let Some(hash) = want["inflatedSha256"].as_str() {
            assert_eq!(sha256(&got.inflated()), hash, "{id}");
            assert_eq!(json!(got.inflated().len()), want["inflatedLen"], "{id}");
        }
    }
}

/// The frames of both wire groups for partition `left` of `frames-path`.
fn frames_of_path(body: &[u8]) -> Vec<u8> {
    let inflate = |z: &[u8]| zstd::bulk::decompress(z, 1 << 20).unwrap();
    let first = wire::first_z(body);
    let third = body.len() - 39; // The last 39 bytes of the body: see `zLen` of its third wire group.
    [inflate(first), inflate(&body[third..])].concat()
}

/// By PostgreSQL: one hash is not worth a dependency.
fn sha256(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let sql = format!("select encode(sha256(decode('{hex}', 'hex')), 'hex')");
    crate::harness::shared_postgres().query("postgres", &sql)
}
