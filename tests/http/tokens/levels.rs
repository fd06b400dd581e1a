//! What a role reaches, in which order it is decided, and what becomes of the subject.

use super::*;

#[test]
fn levels_are_sets_and_the_decision_has_its_order() {
    let b = with_secret();
    let q = unique("levels");
    let push = json!({"items": [{"queue": q, "payload": 1}]}).to_string();
    let answer = |role: &str, method: &str, path: &str, body: Option<&[u8]>| {
        ask(b, &[&format!("Bearer {}", token_of(role, "s"))], method, path, body).status
    };
    let pop = format!("/api/v1/pop/queue/{q}");
    for (role, pushes, reads, pops, deletes) in [
        ("admin", 201, 200, 200, 200),
        ("read-write", 201, 200, 200, 403),
        ("read-only", 403, 200, 403, 403),
        ("write-only", 201, 403, 403, 403),
        ("nobody", 403, 403, 403, 403),
        ("Admin", 403, 403, 403, 403),
    ] {
        assert_eq!(answer("admin", "POST", "/api/v1/push", Some(push.as_bytes())), 201);
        assert_eq!(answer(role, "POST", "/api/v1/push", Some(push.as_bytes())), pushes, "{role}");
        assert_eq!(answer(role, "GET", PROBE, None), reads, "{role}");
        assert_eq!(answer(role, "GET", &format!("{pop}?autoAck=true"), None), pops, "{role}");
        assert_eq!(answer(role, "DELETE", &format!("/api/v1/resources/queues/{q}"), None), deletes, "{role}");
    }
    let both = hs(&claims().with("role", "\"read-only\"").and("roles", "[\"write-only\"]"));
    let both = format!("Bearer {both}");
    assert_eq!(ask(b, &[&both], "GET", PROBE, None).status, 200);
    assert_eq!(ask(b, &[&both], "POST", "/api/v1/push", Some(push.as_bytes())).status, 201);
    assert_eq!(ask(b, &[&both], "GET", &pop, None).status, 403, "reading and writing is not both at once");
    // HEAD has no rule of its own: it needs the default.
    assert_eq!(answer("read-only", "HEAD", PROBE, None), 403);
    assert_eq!(answer("read-write", "HEAD", PROBE, None), 200);

    // Who asks comes before what is asked.
    for (method, path) in [
        ("GET", "/api/v1/nope"),
        ("GET", "/nope"),
        ("PUT", "/api/v1/push"),
        ("OPTIONS", "/api/v1/push"),
        ("POST", "/api/v1/system/x"),
        ("GET", "/status"),
        ("GET", "/health/"),
        ("HEAD", "/api/v1/status"),
        ("GET", "/%68ealth/x"),
    ] {
        let refusal = ask(b, &[], method, path, None);
        assert_eq!(refusal.status, 401, "{method} {path}");
    }
    assert_eq!(answer("read-write", "GET", "/api/v1/nope", None), 404);
    assert_eq!(answer("read-write", "GET", "/api/v1/system/nope", None), 403);
    assert_eq!(answer("admin", "GET", "/api/v1/system/nope", None), 404);
    let mut client = b.client();
    let large = format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1u64 << 40);
    assert_eq!(client.exchange("POST", large.as_bytes()).expect("an answer").status, 401, "before the size");
    // Public paths look at no token.
    for path in ["/health", "/health/live", "/metrics", "/metrics/prometheus", "/"] {
        assert_eq!(ask(b, &["Bearer nonsense"], "GET", path, None).status, 200, "{path}");
    }
    assert_eq!(ask(b, &[], "GET", "/favicon.ico", None).status, 404);
}

#[test]
fn a_write_only_token_reaches_push_and_nothing_else() {
    let b = with_secret();
    let token = format!("Bearer {}", token_of("write-only", "w"));
    for crate::routes::Route { method, pattern, .. } in crate::routes::every() {
        let (method, path) = (method.as_str(), pattern.replace(':', "x"));
        let status = ask(b, &[&token], method, &path, (method == "POST").then_some(b"{}")).status;
        let public = matches!(path.as_str(), "/health" | "/health/live" | "/metrics" | "/metrics/prometheus" | "/");
        match (path.as_str(), public) {
            ("/api/v1/push", _) => assert_eq!(status, 400),
            (_, true) => assert_eq!(status, 200, "{path}"),
            _ => assert_eq!(status, 403, "{method} {path}"),
        }
    }
}

#[test]
fn the_subject_becomes_the_producer_and_nothing_of_the_body_does() {
    let b = with_secret();
    let q = unique("producer");
    let send = |token: &str, path: &str, body: String| {
        let answer = ask(b, &[&format!("Bearer {token}")], "POST", path, Some(body.as_bytes()));
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    };
    let items =
        |key: &str| json!({"items": [{"queue": q, "transactionId": key, "payload": 1, "producerSub": "forged"}]});
    send(&token_of("write-only", "svc-\u{e9}\"\\"), "/api/v1/push", items("a").to_string());
    send(&hs(&claims().without("sub")), "/api/v1/push", items("b").to_string());
    send(&hs(&claims().with("sub", "\"\"")), "/api/v1/push", items("c").to_string());
    let transaction = json!({"operations": [{"type": "push", "items": [{"queue": q, "transactionId": "d", "payload": 1, "producerSub": "forged"}]}]});
    send(&token_of("read-write", "tx"), "/api/v1/transaction", transaction.to_string());
    let many: Vec<_> =
        (0..300).map(|n| json!({"queue": q, "transactionId": format!("m{n}"), "payload": "x".repeat(100)})).collect();
    send(&token_of("read-write", "many"), "/api/v1/push", json!({ "items": many }).to_string());
    let token = format!("Bearer {}", token_of("read-write", "reader"));
    let pop = ask(b, &[&token], "GET", &format!("/api/v1/pop/queue/{q}?batch=1000&autoAck=true"), None).json();
    let subjects: Vec<_> =
        pop["messages"].as_array().expect("messages").iter().map(|m| m["producerSub"].clone()).collect();
    assert_eq!(subjects.len(), 304);
    assert_eq!(subjects[..4], [json!("svc-é\"\\"), json!(null), json!(null), json!("tx")]);
    assert!(subjects[4..].iter().all(|subject| subject == "many"));
}
