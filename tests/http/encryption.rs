//! Encryption at rest: what lies on the disk, who reads it, what damage does. Operations 3; reliability 8, H14.

use crate::harness::{Broker, Postgres, Setup, eventually, shared_postgres, unique};
use serde_json::{Value, json};
use std::path::Path;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff";

fn with_key(setup: Setup) -> Setup {
    setup.env("QUEEN_ENCRYPTION_KEY", KEY)
}

fn full(ci: usize, full: usize) -> usize {
    if std::env::var_os("QUEEN_FULL").is_some() { full } else { ci }
}

/// Files under a directory that hold these bytes.
fn files_with(dir: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_with(&path, needle)),
            Ok(kind) if kind.is_file() => {
                let bytes = std::fs::read(&path).unwrap_or_default();
                if memchr::memmem::find(&bytes, needle).is_some() {
                    found.push(path.display().to_string());
                }
            }
            _ => {}
        }
    }
    found
}

fn push_one(b: &Broker, queue: &str, partition: &str, key: &str, payload: &str) {
    let body = format!(
        r#"{{"items":[{{"queue":"{queue}","partition":"{partition}","transactionId":"{key}","payload":{payload}}}]}}"#
    );
    assert_eq!(b.push_raw(body.as_bytes())[0]["status"], "queued");
}

#[test]
fn no_canary_of_an_encrypted_queue_is_on_the_disk() {
    let postgres = Postgres::start(&[]);
    let b = with_key(Setup::on(&postgres, "postgres")).start();
    let (secret, copy, open) = (unique("secret"), unique("copy"), unique("open"));
    b.configure(&secret, json!({"encryptionEnabled": true}));
    b.configure(&copy, json!({"encryptionEnabled": true}));
    let (canary, control) = ("CANARY-4711-c0ffee", "CONTROL-4711-c0ffee");
    let messages = full(300, 10_000);
    // Alone, many in one body (packed together), one large, and by a transaction.
    let odd = format!("{{ \"{canary}\" : 1.00e+40 , \"a\":[ ] }}");
    push_one(&b, &secret, "p", "odd", &odd);
    for batch in (0..messages).collect::<Vec<_>>().chunks(100) {
        let items: Vec<_> = batch.iter().map(|n| json!({"queue": secret, "partition": "p", "transactionId": n.to_string(), "payload": format!("{canary} {n}")})).collect();
        b.push(items.into());
    }
    push_one(&b, &secret, "p", "large", &format!("\"{}\"", format!("{canary} ").repeat(20_000)));
    let items = [json!({"queue": secret, "partition": "p", "transactionId": "tx", "payload": canary})];
    let done = b.post("/api/v1/transaction", &json!({"operations": [{"type": "push", "items": items}]}));
    assert_eq!(done.json()["success"], true, "{}", done.text());
    push_one(&b, &open, "p", "control", &format!("\"{control}\""));

    // A dead letter, its replay into another queue, and a redrive.
    for key in ["odd", "0"] {
        let pop = b.pop(&secret, "consumerGroup=g&subscriptionMode=all&batch=1");
        assert_eq!(pop.keys(), [key]);
        let mut ack = pop.messages[0].ack("dlq");
        ack["error"] = "bad".into();
        b.ack_ok("g", &[ack]);
    }
    let listed = b.get(&format!("/api/v1/dlq?queue={secret}"));
    assert!(listed.text().contains(&odd), "byte for byte: {}", listed.text());
    let letters = listed.json();
    assert!(letters["messages"].as_array().expect("letters").iter().all(|l| l["isEncrypted"] == true), "{letters}");
    let letter =
        letters["messages"].as_array().expect("letters").iter().find(|l| l["transactionId"] == "odd").expect("it");
    let replayed =
        b.post(&format!("/api/v1/dlq/{}/replay", letter["id"].as_str().expect("an id")), &json!({"queue": copy}));
    assert_eq!(replayed.json()["result"], "moved", "{}", replayed.text());
    b.post("/api/v1/dlq/redrive", &json!({"queue": secret, "toQueue": copy}));
    eventually("the redrive moves the other one", || b.dead_letters_in(&postgres, &secret).is_empty().then_some(()));

    for _ in 0..2 {
        postgres.query("postgres", "checkpoint");
    }
    for dir in [postgres.dir(), b.dir()] {
        assert_eq!(files_with(dir, canary.as_bytes()), Vec::<String>::new());
    }
    assert!(!files_with(postgres.dir(), control.as_bytes()).is_empty(), "the search finds what is there");

    // Restored byte for byte, from memory and from the disk.
    for round in 0..2 {
        if round == 1 {
            b.restart();
        }
        let group = format!("reader{round}");
        let query = format!("consumerGroup={group}&subscriptionMode=all&batch=1000");
        let all = b.drain(&secret, &query, &group);
        assert_eq!(all.len(), messages + 3);
        assert_eq!(all[0].data.get(), odd);
        assert_eq!(all[1].data.get(), format!("\"{canary} 0\""));
        assert_eq!(all[messages + 1].data.get().len(), 20_000 * (canary.len() + 1) + 2);
        assert_eq!(all[messages + 2].data.get(), format!("\"{canary}\""));
        let copies = b.drain(&copy, &query, &group);
        let mut texts: Vec<_> = copies.iter().map(|m| m.data.get().to_owned()).collect();
        texts.sort();
        assert_eq!(texts, [format!("\"{canary} 0\""), odd.clone()]);
    }
    println!("{messages} messages, 0 canaries on the disk");
}

impl Broker {
    /// Dead letters of a queue in a cluster of the test's own.
    fn dead_letters_in(&self, postgres: &Postgres, queue: &str) -> String {
        let sql = format!(
            "select d.id from queen.dead_letters as d join queen.queues as q on q.id = d.queue_id where q.name = '{queue}'"
        );
        postgres.query("postgres", &sql)
    }
}

/// Flags and body of each segment, a line each: an id may have a byte that reads as the end of one.
fn stored(b: &Broker, queue: &str) -> Vec<String> {
    let sql = format!(
        "select s.frame_flags || ' ' || replace(encode(s.body, 'escape'), e'\\n', ' ') from queen.segments as s join queen.partitions as p on p.id = s.partition_id \
         join queen.queues as q on q.id = p.queue_id where q.name = '{queue}' order by s.partition_id, s.base_offset"
    );
    shared_postgres().query(b.database.as_ref().expect("a database"), &sql).lines().map(str::to_owned).collect()
}

fn is_envelope(value: &Value) -> bool {
    let keys: Vec<_> = value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default();
    keys.len() == 3 && ["encrypted", "iv", "authTag"].iter().all(|key| value[key].is_string())
}

#[test]
fn readers_get_the_payload_with_the_key_and_the_envelope_without() {
    let database = shared_postgres().create_database();
    let (q, dead) = (unique("readers"), unique("dead"));
    let on = || Setup::on(shared_postgres(), &database);
    {
        let b = with_key(on()).start();
        assert!(b.log().contains("encryption service initialized (AES-256-GCM)"), "{}", b.log());
        b.configure(&q, json!({"encryptionEnabled": true}));
        b.configure(&dead, json!({"encryptionEnabled": true}));
        push_one(&b, &q, "p", "a", r#"{"card":"4111"}"#);
        push_one(&b, &dead, "p", "d", r#"{"card":"4222"}"#);
        let pop = b.pop(&dead, "consumerGroup=g&subscriptionMode=all");
        b.ack_ok("g", &[pop.messages[0].ack("dlq")]);
        // The flag decides at the next push, on every shard.
        b.configure(&q, json!({"encryptionEnabled": false}));
        push_one(&b, &q, "p", "b", r#"{"card":"5111"}"#);
        b.configure(&q, json!({"encryptionEnabled": true}));
        push_one(&b, &q, "p", "c", r#"{"card":"6111"}"#);
        let rows = stored(&b, &q);
        let plain: Vec<_> = rows.iter().map(|row| (&row[..1], row.contains("card"))).collect();
        assert_eq!(plain, [("4", false), ("0", true), ("4", false)], "{rows:?}");
    }
    let data = |b: &Broker, group: &str| -> Vec<Value> {
        let pop = b.pop(&q, &format!("consumerGroup={group}&subscriptionMode=all&batch=9&autoAck=true"));
        pop.messages.iter().map(|m| serde_json::from_str(m.data.get()).expect("JSON")).collect()
    };
    let plain = [json!({"card": "4111"}), json!({"card": "5111"}), json!({"card": "6111"})];
    let partition = {
        let b = with_key(on()).start();
        b.configure(&q, json!({"encryptionEnabled": false}));
        assert_eq!(data(&b, "right"), plain, "the flag is off now: what was written is read by its shape");
        let partition = b.pop(&q, "consumerGroup=x&subscriptionMode=all").partition_id;
        let detail = b.get(&format!("/api/v1/messages/{partition}/a")).json();
        assert_eq!((&detail["data"], &detail["isEncrypted"]), (&plain[0], &json!(true)));
        let list = b.get(&format!("/api/v1/messages?queue={q}")).json();
        let rows = list["messages"].as_array().expect("rows");
        assert!(rows.iter().all(|row| row["data"]["card"].is_string()), "{list}");
        let fetched =
            b.post("/api/v1/fetch", &json!({"entries": [{"queue": q, "partition": "p", "offset": 0}]})).json();
        let records: Vec<_> = fetched["entries"][0]["records"]
            .as_array()
            .expect("records")
            .iter()
            .map(|r| r["payload"].clone())
            .collect();
        assert_eq!(records, plain);
        partition
    };
    for (key, group) in [(None, "none"), (Some(OTHER_KEY), "wrong"), (Some("short"), "bad")] {
        let b = key.map_or(on(), |key| on().env("QUEEN_ENCRYPTION_KEY", key)).start();
        let got = data(&b, group);
        assert!(is_envelope(&got[0]) && is_envelope(&got[2]), "{group}: {got:?}");
        assert_eq!(got[1], plain[1]);
        let letters = b.get(&format!("/api/v1/dlq?queue={dead}")).json();
        let letter = &letters["messages"][0];
        assert!(is_envelope(&letter["data"]) && letter.get("isEncrypted").is_none(), "{group}: {letters}");
        let detail = b.get(&format!("/api/v1/messages/{partition}/a")).json();
        assert!(is_envelope(&detail["data"]) && detail["isEncrypted"] == true, "{group}: {detail}");
    }
    // Whoever replays it without the key moves the envelope, which the key opens afterwards.
    let b = on().start();
    let letter =
        b.get(&format!("/api/v1/dlq?queue={dead}")).json()["messages"][0]["id"].as_str().expect("an id").to_owned();
    let to = unique("to");
    assert_eq!(b.post(&format!("/api/v1/dlq/{letter}/replay"), &json!({"queue": to})).json()["result"], "moved");
    drop(b);
    let b = with_key(on()).start();
    assert_eq!(b.pop(&to, "autoAck=true").messages[0].data.get(), r#"{"card":"4222"}"#);
}

#[test]
fn a_plain_object_of_the_same_shape_stays_what_it_is() {
    let b = with_key(Setup::clean()).start();
    let q = unique("shape");
    let payload = r#"{"encrypted":"aGk=","iv":"oKGio6SlpqeoqaqrrK2urw==","authTag":"JB0jsw9DnK+/XgG4nbS9xA==" }"#;
    push_one(&b, &q, "p", "a", payload);
    b.configure(&q, json!({"encryptionEnabled": true}));
    push_one(&b, &q, "p", "b", payload);
    let all = b.drain(&q, "batch=9", "");
    assert_eq!(all.iter().map(|m| m.data.get()).collect::<Vec<_>>(), [payload, payload]);
}

#[test]
fn a_malformed_key_starts_warns_and_shows_and_required_it_does_not_start() {
    let b = Setup::clean().env("QUEEN_ENCRYPTION_KEY", &format!("{KEY}\n")).start();
    let q = unique("malformed");
    b.configure(&q, json!({"encryptionEnabled": true}));
    push_one(&b, &q, "p", "a", r#"{"card":"4111"}"#);
    assert!(stored(&b, &q)[0].contains("4111"), "plain at rest");
    let log = b.log();
    assert_eq!(log.matches("QUEEN_ENCRYPTION_KEY must be 64 hex chars; encryption DISABLED").count(), 1, "{log}");
    assert!(!log.contains(KEY), "the key is never printed");
    let health = b.get("/health");
    assert_eq!((health.status, health.json()["status"].as_str()), (200, Some("healthy")));
    assert_eq!(health.json()["encryption"], "disabled: malformed key");
    assert_eq!(b.metric("queen_encryption_key_malformed"), Some(1.0));
    let fine = crate::harness::two_shards();
    assert_eq!(fine.metric("queen_encryption_key_malformed"), Some(0.0));
    assert!(fine.get("/health").json().get("encryption").is_none());
    for key in ["", "short", &"x".repeat(64)] {
        let b = Setup::clean().env("QUEEN_ENCRYPTION_KEY", key).env("QUEEN_ENCRYPTION_REQUIRED", "true").launch();
        assert_eq!(b.wait_end().code(), Some(1));
        assert!(b.log().contains("FATAL: QUEEN_ENCRYPTION_REQUIRED is on, but there is no usable key"), "{}", b.log());
    }
    let b = with_key(Setup::clean()).env("QUEEN_ENCRYPTION_REQUIRED", "true").start();
    b.configure(&q, json!({"encryptionEnabled": true}));
    push_one(&b, &q, "p", "a", r#"{"card":"4111"}"#);
    assert!(!stored(&b, &q)[0].contains("4111"));
}

#[test]
fn a_flipped_bit_costs_its_own_message_and_no_other() {
    let b = with_key(Setup::clean()).start();
    let q = unique("flips");
    b.configure(&q, json!({"encryptionEnabled": true}));
    let n = full(60, 1000);
    let text = "the text of this message is long enough for bits of its own";
    let items: Vec<_> = (0..2 * n)
        .map(|i| json!({"queue": q, "partition": format!("p{i}"), "transactionId": i.to_string(), "payload": text}))
        .collect();
    for chunk in items.chunks(200) {
        b.push(chunk.to_vec().into());
    }
    // Every other message: one bit of the envelope's values, a different one in each.
    let sql = format!(
        "with numbered as (select s.partition_id, s.base_offset, s.body, substring(p.name from 2)::integer as n, \
           position(convert_to('\"encrypted\":\"', 'UTF8') in s.body) + 12 as first \
         from queen.segments as s join queen.partitions as p on p.id = s.partition_id \
         join queen.queues as q on q.id = p.queue_id where q.name = '{q}') \
         update queen.segments as s \
         set body = set_bit(s.body, b.bit, 1 - get_bit(s.body, b.bit)) \
         from (select n.*, n.first * 8 + (n.n * 37) % ((octet_length(n.body) - n.first - 2) * 8) as bit from numbered as n where n.n % 2 = 0) as b \
         where s.partition_id = b.partition_id and s.base_offset = b.base_offset"
    );
    shared_postgres().query(b.database.as_ref().expect("a database"), &sql);
    b.restart();
    let all = b.drain(&q, "batch=1000&partitions=1000", "");
    assert_eq!(all.len(), 2 * n, "every message is delivered");
    let (mut opened, mut damaged) = (0, 0);
    for message in &all {
        let number: usize = message.transaction_id.parse().expect("a number");
        let data: Value = serde_json::from_str(message.data.get()).expect("JSON, whatever was damaged");
        match number % 2 {
            1 => assert_eq!(data, text, "an untouched message is whole"),
            _ if data == text => opened += 1,
            _ => damaged += 1,
        }
    }
    // A flip can hit the four bytes of the IV that are stored and not used, or a name, whose damage shows as well.
    assert_eq!(opened + damaged, n);
    assert!(damaged >= n * 9 / 10, "{damaged} of {n} flips noticed, {opened} hit what is not used");
    println!("{n} flips: {damaged} noticed, {opened} in the unused bytes of the IV, 0 others affected");
}

/// A push that names many queues for the first time asks for all of them at once; each is stored as its own options say.
#[test]
fn a_push_to_many_new_queues_encrypts_those_that_are() {
    let postgres = Postgres::start(&[]);
    let b = with_key(Setup::on(&postgres, "postgres")).start();
    let queues: Vec<String> = (0..30).map(|_| unique("many")).collect();
    for queue in queues.iter().step_by(3) {
        b.configure(queue, json!({"encryptionEnabled": true}));
    }
    let items: Vec<_> = queues.iter().map(|queue| json!({"queue": queue, "partition": "p", "payload": 1})).collect();
    b.push(items.into());
    let sql = "select q.name || ' ' || (s.frame_flags & 4 = 4) from queen.segments s
               join queen.partitions p on p.id = s.partition_id join queen.queues q on q.id = p.queue_id";
    let mut stored: Vec<String> = postgres.query("postgres", sql).lines().map(str::to_owned).collect();
    let mut want: Vec<String> = queues.iter().enumerate().map(|(n, queue)| format!("{queue} {}", n % 3 == 0)).collect();
    stored.sort();
    want.sort();
    assert_eq!(stored, want);
}
