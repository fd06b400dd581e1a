//! Tenants: operations 2.8, and invariant 44 of the data plane on every route of the table.
//!
//! Method: tenant B sends each request with the names and ids of tenant A, tenant C the same request with names and
//! ids that nobody has. Their answers must not differ, and nothing of A may change.

use crate::harness::{Answer, Broker, Client, Setup, eventually, unique};
use serde_json::{Value, json};
use std::sync::OnceLock;

const A: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const B: &str = "bbbbbbbb-0000-4000-8000-000000000002";
const C: &str = "cccccccc-0000-4000-8000-000000000003";

fn broker() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| tenancy(Setup::clean()).start())
}

fn tenancy(setup: Setup) -> Setup {
    setup.env("QUEEN_TENANCY_HEADER", "on").env("QUEEN_KV_TRUSTED_PROXY", "on")
}

fn send(b: &Broker, tenant: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let body = body.map(Value::to_string);
    let answer = b.client().send(method, path, &[("x-queen-tenant", tenant)], body.as_deref().map(str::as_bytes));
    answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

#[track_caller]
fn ok(answer: Answer) -> Value {
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    answer.json()
}

fn post(b: &Broker, tenant: &str, path: &str, body: Value) -> Value {
    ok(send(b, tenant, "POST", path, Some(&body)))
}

fn get(b: &Broker, tenant: &str, path: &str) -> Value {
    ok(send(b, tenant, "GET", path, None))
}

/// What requests name, real or made up.
#[derive(Clone)]
struct Names {
    queue: String,
    partition: String,
    partition_id: String,
    transaction: String,
    group: String,
    lease: String,
    letter: String,
    redrive: String,
}

impl Names {
    fn fill(&self, pattern: &str) -> String {
        pattern
            .replace(":queue", &self.queue)
            .replace(":partitionId", &self.partition_id)
            .replace(":partition", &self.partition)
            .replace(":transactionId", &self.transaction)
            .replace(":group", &self.group)
            .replace(":leaseId", &self.lease)
    }
}

/// A queue with messages, a live lease, a dead letter, a group and a redrive; what they are called.
fn furnish(b: &Broker, tenant: &str) -> Names {
    let (queue, group) = (unique("mine"), unique("group"));
    let dead = unique("dead");
    post(b, tenant, "/api/v1/configure", json!({"queue": queue, "namespace": unique("ns"), "task": unique("task")}));
    let items: Vec<_> = (0..5)
        .map(|n| json!({"queue": queue, "partition": "p", "transactionId": format!("k{n}"), "payload": n}))
        .collect();
    post(b, tenant, "/api/v1/push", json!({ "items": items }));
    post(
        b,
        tenant,
        "/api/v1/push",
        json!({"items": [{"queue": dead, "partition": "p", "transactionId": "k0", "payload": 0}]}),
    );
    let pop = get(b, tenant, &format!("/api/v1/pop/queue/{dead}?consumerGroup={group}&subscriptionMode=all"));
    let message = &pop["messages"][0];
    let ack = json!({"transactionId": "k0", "partitionId": message["partitionId"], "leaseId": message["leaseId"],
                     "status": "dlq", "error": "bad", "consumerGroup": group});
    post(b, tenant, "/api/v1/ack", ack);
    let letters = get(b, tenant, &format!("/api/v1/dlq?queue={dead}"));
    let letter = letters["messages"][0]["id"].as_str().expect("a dead letter").to_owned();
    let pop = get(
        b,
        tenant,
        &format!("/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch=2&leaseSeconds=600"),
    );
    let redrive = post(b, tenant, "/api/v1/dlq/redrive", json!({"queue": dead, "error": "no letter says this"}));
    Names {
        queue,
        partition: "p".into(),
        partition_id: pop["messages"][0]["partitionId"].as_str().expect("a partition").into(),
        transaction: "k0".into(),
        group,
        lease: pop["leaseId"].as_str().expect("a lease").into(),
        letter,
        redrive: redrive["id"].as_str().unwrap_or_else(|| panic!("{redrive}")).into(),
    }
}

/// The request of a route for these names; its query and body.
fn request(method: &str, pattern: &str, n: &Names) -> Option<(String, Option<Value>)> {
    let path = n.fill(pattern);
    let message = json!({"transactionId": n.transaction, "partitionId": n.partition_id, "leaseId": n.lease,
                         "consumerGroup": n.group, "status": "completed"});
    let (query, body) = match (method, pattern) {
        ("POST", "/api/v1/push") => (
            "",
            json!({"items": [{"queue": n.queue, "partition": n.partition, "transactionId": n.transaction, "payload": 1}]}),
        ),
        ("GET", "/api/v1/pop/queue/:queue" | "/api/v1/pop/queue/:queue/partition/:partition") => {
            (&*format!("?consumerGroup={}&subscriptionMode=all", n.group), Value::Null)
        }
        ("GET", "/api/v1/pop") => ("?namespace=ns&task=task", Value::Null),
        ("POST", "/api/v1/ack") => ("", message),
        ("POST", "/api/v1/ack/batch") => ("", json!({"consumerGroup": n.group, "acknowledgments": [message]})),
        ("POST", "/api/v1/transaction") => (
            "",
            json!({"operations": [{"type": "ack", "transactionId": n.transaction,
            "partitionId": n.partition_id, "leaseId": n.lease, "consumerGroup": n.group, "status": "completed"}]}),
        ),
        ("POST", "/api/v1/lease/:leaseId/extend") => ("", json!({"seconds": 900})),
        ("POST", "/api/v1/configure") => ("", json!({"queue": n.queue, "options": {"leaseTime": 7}})),
        ("POST", "/api/v1/consumer-groups/:group/subscription") => {
            ("", json!({"subscriptionTimestamp": "2020-01-01T00:00:00Z"}))
        }
        ("POST", "/api/v1/consumer-groups/:group/queues/:queue/seek") => ("", json!({"toEnd": true})),
        ("POST", "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek") => {
            ("", json!({"offset": 0}))
        }
        ("POST", "/api/v1/fetch") => {
            ("", json!({"entries": [{"queue": n.queue, "partition": n.partition, "offset": 0}]}))
        }
        ("POST", "/api/v1/partitions/changed") => {
            ("", json!({"entries": [{"queue": n.queue, "since": "2020-01-01T00:00:00Z"}]}))
        }
        ("GET" | "DELETE", "/api/v1/dlq") => (&*format!("?queue={}", n.queue), Value::Null),
        ("POST", "/api/v1/dlq/redrive") => ("", json!({"queue": n.queue, "error": "no letter says this"})),
        ("POST", "/api/v1/dlq/:id/replay") => return Some((pattern.replace(":id", &n.letter), Some(json!({})))),
        (_, "/api/v1/dlq/redrive/:id") => return Some((pattern.replace(":id", &n.redrive), None)),
        ("POST", "/api/v1/messages/:partitionId/:transactionId/retry") => ("", json!({})),
        ("GET", "/api/v1/messages") => (&*format!("?queue={}", n.queue), Value::Null),
        ("GET", "/api/v1/consumer-groups/lagging") => ("?minLagSeconds=0", Value::Null),
        // Of the cell, not of a tenant. Source: operations 2.7, 2.8.
        (
            _,
            "/health"
            | "/health/live"
            | "/metrics"
            | "/metrics/prometheus"
            | "/"
            | "/status"
            | "/api/v1/status"
            | "/api/v1/status/buffers",
        ) => {
            return None;
        }
        _ => ("", Value::Null),
    };
    Some((format!("{path}{query}"), (!body.is_null()).then_some(body)))
}

/// An answer without what differs between any two answers: ids, times, numbers of partitions.
fn plain(answer: &Answer, names: &Names) -> String {
    fn walk(value: &mut Value) {
        match value {
            Value::String(text) => {
                let uuid = text.len() == 36 && text.bytes().filter(|b| *b == b'-').count() == 4;
                let time = text.len() > 18 && text.starts_with("20") && text.contains('T') && text.ends_with('Z');
                let number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                if uuid || time || number {
                    *text = "*".into();
                }
            }
            Value::Array(all) => all.iter_mut().for_each(walk),
            Value::Object(all) => all.values_mut().for_each(walk),
            _ => {}
        }
    }
    let mut text = answer.text();
    for (name, word) in [
        (&names.queue, "QUEUE"),
        (&names.group, "GROUP"),
        (&names.letter, "LETTER"),
        (&names.redrive, "REDRIVE"),
        (&names.lease, "LEASE"),
    ] {
        text = text.replace(name.as_str(), word);
    }
    text = text.replace(&format!(" {}", names.partition_id), " PARTITION");
    match serde_json::from_str::<Value>(&text) {
        Ok(mut value) => {
            walk(&mut value);
            format!("{} {value}", answer.status)
        }
        Err(_) => format!("{} {text}", answer.status),
    }
}

/// Everything A can see of its own, and what its consumers hold.
fn state_of(b: &Broker, tenant: &str, n: &Names) -> Vec<String> {
    let mut seen = Vec::new();
    for path in [
        format!("/api/v1/consumer-groups/{}", n.group),
        format!("/api/v1/resources/queues/{}", n.queue),
        format!("/api/v1/messages?queue={}", n.queue),
        "/api/v1/dlq".to_owned(),
        "/api/v1/resources/queues".to_owned(),
        "/api/v1/resources/namespaces".to_owned(),
        "/api/v1/resources/tasks".to_owned(),
        "/api/v1/consumer-groups".to_owned(),
        format!("/api/v1/dlq/redrive/{}", n.redrive),
    ] {
        let mut answer = get(b, tenant, &path);
        forget_ages(&mut answer);
        seen.push(format!("{path} {answer}"));
    }
    seen
}

/// Drops what grows while nothing happens.
fn forget_ages(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(forget_ages),
        Value::Object(all) => {
            all.retain(|key, _| {
                let key = key.to_ascii_lowercase();
                !(key.contains("age")
                    || key.contains("lag")
                    || key.contains("seconds")
                    || key.contains("updated")
                    || key == "state"
                    || key.contains("finished"))
            });
            all.values_mut().for_each(forget_ages);
        }
        _ => {}
    }
}

#[test]
fn nothing_of_another_tenant_can_be_read_changed_or_detected_on_any_route() {
    let b = broker();
    // Tenants of this test alone: nothing else happens to them.
    const A: &str = "aaaaaaaa-0000-4000-8000-00000000000a";
    const B: &str = "bbbbbbbb-0000-4000-8000-00000000000b";
    const C: &str = "cccccccc-0000-4000-8000-00000000000c";
    let mine = furnish(b, A);
    let before = state_of(b, A, &mine);
    let ghost = Names {
        queue: unique("none"),
        partition: mine.partition.clone(),
        partition_id: "4095999999999".into(),
        transaction: mine.transaction.clone(),
        group: unique("nogroup"),
        lease: "01a228fb-c0ce-730a-8000-0000ffff1b19".into(),
        letter: "01a228fb-c0ce-730a-8000-0000ffff1b20".into(),
        redrive: "01a228fb-c0ce-730a-8000-0000ffff1b21".into(),
    };
    let mut asked = 0;
    let mut differ = Vec::new();
    // What reads comes first, then what makes, then what deletes: both tenants go through the same states.
    let mut routes = crate::routes::every();
    routes.sort_by_key(|route| match route.method.as_str() {
        "GET" => 0,
        "DELETE" => 2,
        _ => 1,
    });
    for route in &routes {
        let Some((path, body)) = request(&route.method, &route.pattern, &mine) else { continue };
        let (other, other_body) = request(&route.method, &route.pattern, &ghost).expect("the same route");
        let theirs = send(b, B, &route.method, &path, body.as_ref());
        let nobodys = send(b, C, &route.method, &other, other_body.as_ref());
        assert!(theirs.status < 500, "{path}: {}", theirs.text());
        let (theirs, nobodys) = (plain(&theirs, &mine), plain(&nobodys, &ghost));
        if theirs != nobodys {
            differ.push(format!("{} {}\n  {theirs}\n  {nobodys}", route.method, route.pattern));
        }
        asked += 1;
    }
    assert!(differ.is_empty(), "B learns something:\n{}", differ.join("\n"));
    assert!(asked >= 38, "{asked} routes asked");
    let after = state_of(b, A, &mine);
    for (was, is) in before.iter().zip(&after) {
        assert_eq!(was, is);
    }
    // Data plane 5.4: one text for a partition of another tenant and for one that nobody has.
    let foreign = json!({"transactionId": "k", "partitionId": mine.partition_id, "consumerGroup": mine.group});
    let none = json!({"transactionId": "k", "partitionId": "9223372036854775807", "consumerGroup": mine.group});
    for ack in [foreign, none] {
        assert_eq!(post(b, B, "/api/v1/ack", ack)[0]["error"], "partition not owned by tenant");
    }
    // A's lease is alive, and what it holds can be acked.
    let extended = post(b, A, &format!("/api/v1/lease/{}/extend", mine.lease), json!({"seconds": 60}));
    assert_eq!((&extended["success"], &extended["renewed"]), (&json!(true), &json!(1)), "{extended}");
    for key in ["k0", "k1"] {
        let ack = json!({"transactionId": key, "partitionId": mine.partition_id, "leaseId": mine.lease,
                         "consumerGroup": mine.group, "status": "completed"});
        assert_eq!(post(b, A, "/api/v1/ack", ack)[0]["success"], true);
    }
    let rest =
        get(b, A, &format!("/api/v1/pop/queue/{}?consumerGroup={}&batch=9&autoAck=true", mine.queue, mine.group));
    let keys: Vec<_> =
        rest["messages"].as_array().expect("messages").iter().map(|m| m["transactionId"].clone()).collect();
    assert_eq!(keys, ["k2", "k3", "k4"]);
    let replayed = post(b, A, &format!("/api/v1/dlq/{}/replay", mine.letter), json!({}));
    assert_eq!(replayed["result"], "moved");
    println!("{asked} routes asked by another tenant");
}

#[test]
fn one_name_is_a_queue_of_its_own_in_each_tenant() {
    let b = broker();
    let q = unique("same");
    for (tenant, payload) in [(A, "a"), (B, "b"), ("", "default")] {
        let items = json!({"items": [{"queue": q, "transactionId": "k", "payload": payload}]});
        let verdicts = post(b, tenant, "/api/v1/push", items);
        assert_eq!(
            (&verdicts[0]["status"], &verdicts[0]["offset"]),
            (&json!("queued"), &json!(0)),
            "{tenant}: no duplicate"
        );
    }
    // Upper case is the same tenant; the default tenant can be named.
    for (tenant, payload) in
        [(&*A.to_ascii_uppercase(), "a"), (B, "b"), ("00000000-0000-0000-0000-000000000001", "default")]
    {
        let pop = get(b, tenant, &format!("/api/v1/pop/queue/{q}?autoAck=true&batch=9"));
        let all: Vec<_> = pop["messages"].as_array().expect("messages").iter().map(|m| m["data"].clone()).collect();
        assert_eq!(all, [json!(payload)], "{tenant}");
    }
    assert_eq!(send(b, C, "GET", &format!("/api/v1/pop/queue/{q}"), None).status, 204);
    let deleted = ok(send(b, B, "DELETE", &format!("/api/v1/resources/queues/{q}"), None));
    assert_eq!(deleted["existed"], true, "{deleted}");
    assert_eq!(send(b, A, "GET", &format!("/api/v1/resources/queues/{q}"), None).status, 200);
    assert_eq!(send(b, B, "GET", &format!("/api/v1/resources/queues/{q}"), None).status, 404);
}

#[test]
fn a_push_wakes_nobody_of_another_tenant() {
    let b = broker();
    let q = unique("parked");
    post(b, A, "/api/v1/configure", json!({"queue": q}));
    std::thread::scope(|scope| {
        let path = format!("/api/v1/pop/queue/{q}?wait=true&timeout=20000&autoAck=true");
        let waiting = scope.spawn(move || send(b, A, "GET", &path, None));
        eventually("A's poll is parked", || (b.parked(&q) > 0).then_some(()));
        for n in 0..20 {
            post(b, B, "/api/v1/push", json!({"items": [{"queue": q, "payload": n}]}));
        }
        assert!(!waiting.is_finished(), "B's pushes end A's wait");
        post(b, A, "/api/v1/push", json!({"items": [{"queue": q, "payload": "mine"}]}));
        let pop = ok(waiting.join().expect("an answer"));
        assert_eq!(pop["messages"].as_array().map(Vec::len), Some(1));
        assert_eq!(pop["messages"][0]["data"], "mine");
    });
}

#[test]
fn a_header_that_is_no_uuid_is_refused_and_without_tenancy_it_is_not_read() {
    let b = broker();
    let want = r#"{"error":"invalid x-queen-tenant header (must be a UUID)"}"#;
    for bad in [
        "x",
        "default",
        "aaaaaaaa00004000800000000000000a",
        "{aaaaaaaa-0000-4000-8000-000000000001}",
        "aaaaaaaa-0000-4000-8000-00000000000g",
        "aaaaaaaa-0000-4000-8000-0000000000011",
        "urn:uuid:aaaaaaaa-0000-4000-8000-000000000001",
    ] {
        let answer = send(b, bad, "GET", "/api/v1/resources/queues", None);
        assert_eq!((answer.status, answer.text().as_str()), (400, want), "{bad}");
    }
    let mut twice = Client::new(b.port);
    let answer = twice
        .send("GET", "/api/v1/resources/queues", &[("x-queen-tenant", A), ("X-Queen-Tenant", B)], None)
        .expect("an answer");
    assert_eq!(answer.status, 400, "two tenants are none");
    let off = crate::harness::two_shards();
    assert_eq!(send(off, "nonsense", "GET", "/api/v1/resources/queues", None).status, 200);
    let alone = Setup::clean().env("QUEEN_TENANCY_HEADER", "on").launch();
    assert_eq!(alone.wait_end().code(), Some(1));
    assert!(alone.log().contains("QUEEN_TENANCY_HEADER is on without QUEEN_KV_TRUSTED_PROXY"), "{}", alone.log());
}

/// Operations 2.7, column T, and 2.8: what is of the whole cell, or nothing at all, does not read the header.
#[test]
fn the_header_is_read_where_the_contract_says_so_and_nowhere_else() {
    let b = broker();
    let spec = include_str!("../../docs/spec/operations.md");
    let spec = spec.split_once("### 2.7 ").and_then(|(_, rest)| rest.split_once("### 2.8 ")).expect("the section").0;
    let reads = |route: &crate::routes::Route| {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let is_row = |cells: &Vec<String>| {
            cells.len() > 4
                && cells[1].split(", ").any(|method| method == route.method)
                && cells[2].split([' ', '·']).any(|path| path.trim_matches('`') == route.pattern)
        };
        let row = spec.lines().map(cells).find(is_row);
        // A route that this version adds: a redrive is of one tenant, the front door of nobody.
        row.map_or(route.pattern != "/", |cells| !cells[4].contains("no"))
    };
    let bad = "not-a-uuid";
    let (mut read, mut unread) = (0, 0);
    for route in crate::routes::every() {
        let path = route.pattern.replace(':', "x");
        let body = (route.method == "POST").then(|| json!({}));
        // A switch is not to be turned under the other tests: what comes of an empty body is its own affair.
        let answer = send(b, bad, &route.method, &path, body.as_ref());
        let refused = answer.text().contains("invalid x-queen-tenant header");
        assert_eq!(refused, reads(&route), "{} {}: {} {}", route.method, route.pattern, answer.status, answer.text());
        if refused { read += 1 } else { unread += 1 }
    }
    assert!(read >= 35 && unread >= 12, "{read} read it, {unread} do not");
    assert_eq!(send(b, bad, "GET", "/health", None).status, 200);
    let unknown = send(b, bad, "GET", "/api/v1/nope", None);
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("no_such_route")));
    assert_eq!(send(b, bad, "PUT", "/api/v1/push", None).status, 405);
}

#[test]
fn tenants_outlive_a_restart() {
    let b = tenancy(Setup::clean()).start();
    let q = unique("restart");
    post(&b, A, "/api/v1/push", json!({"items": [{"queue": q, "payload": 1}]}));
    b.restart();
    assert_eq!(send(&b, B, "GET", &format!("/api/v1/pop/queue/{q}"), None).status, 204);
    let pop = get(&b, A, &format!("/api/v1/pop/queue/{q}?autoAck=true"));
    assert_eq!(pop["messages"][0]["data"], 1);
}
