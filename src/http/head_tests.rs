//! Heads as data. The lists are also sent over real sockets by the connection's tests, each with a second request
//! behind it that must never run. Source: reliability H1.

use super::*;

/// Header lines of a POST that leave its length in doubt, or break the head. All are a 400.
pub const BAD_LINES: &[&str] = &[
    // Content-Length beside Transfer-Encoding, both orders, all spellings.
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "content-length: 0\r\ntransfer-encoding: chunked",
    "TRANSFER-ENCODING: CHUNKED\r\nCONTENT-LENGTH: 0",
    "Content-Length: 5\r\nTransfer-Encoding: identity",
    "Content-Length: 5\r\nTransfer-Encoding:",
    "Content-Length: 5\r\nX: y\r\nTransfer-Encoding: chunked",
    // Transfer-Encoding that is not exactly chunked.
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunke",
    "Transfer-Encoding: chunk",
    "Transfer-Encoding: cow",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: 'chunked'",
    "Transfer-Encoding: chunked chunked",
    "Transfer-Encoding: chun ked",
    "Transfer-Encoding: chunked\u{b}",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding: \u{c}chunked",
    "Transfer-Encoding: chunked\u{0}",
    "Transfer-Encoding: chunked\u{7f}",
    "Transfer-Encoding: chunked\u{a0}",
    "Transfer-Encoding: chun\u{212a}ed",
    "Transfer-Encoding: \u{feff}chunked",
    "Transfer-Encoding:",
    "Transfer-Encoding: ",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\ntransfer-encoding: cow",
    "Transfer-Encoding: x\r\nTransfer-encoding: chunked",
    "Transfer-Encoding:\r\nTransfer-Encoding: chunked",
    // White space where there is none.
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    "Transfer-Encoding\u{b}: chunked",
    "Transfer-Encoding\u{0}: chunked",
    " Transfer-Encoding: chunked",
    "\tTransfer-Encoding: chunked",
    "Transfer Encoding: chunked",
    "Transfer-Encoding chunked",
    "Transfer-Encoding",
    "Content-Length : 5",
    "Content-Length\t: 5",
    " Content-Length: 5",
    "\u{b}Content-Length: 5",
    "Content Length: 5",
    "Content-Length",
    // Folded lines.
    "X: a\r\n Content-Length: 5",
    "X: a\r\n\tTransfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chunked\r\n , identity",
    "Content-Length:\r\n 5",
    "Content-Length: 5\r\n 5",
    "X: a\r\n b",
    "X: a\r\n \r\n",
    // Line ends.
    "X: a\nContent-Length: 5",
    "X: a\n\rContent-Length: 5",
    "X: a\rContent-Length: 5",
    "X: a\r\rContent-Length: 5",
    "X: a\r\r\nContent-Length: 5",
    "X: a\nTransfer-Encoding: chunked",
    "X: a\rTransfer-Encoding: chunked",
    "X: a\u{0}\r\nContent-Length: 5",
    // Content-Length that is not one plain number.
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 5\r\ncontent-length: 5",
    "Content-Length: 0\r\nContent-Length: 0",
    "Content-Length:\r\nContent-Length: 5",
    "Content-Length: 5, 5",
    "Content-Length: 5,5",
    "Content-Length: 5,6",
    "Content-Length: 5,",
    "Content-Length: ,5",
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: -0",
    "Content-Length: 5 5",
    "Content-Length: 5\t5",
    "Content-Length: 0x5",
    "Content-Length: 0X5",
    "Content-Length: 5h",
    "Content-Length: a",
    "Content-Length: 5.0",
    "Content-Length: 5e0",
    "Content-Length: 5_0",
    "Content-Length: 5;",
    "Content-Length: \"5\"",
    "Content-Length: 5\u{0}",
    "Content-Length: \u{0}5",
    "Content-Length: 5\u{b}",
    "Content-Length: 5\u{c}",
    "Content-Length: \u{665}",
    "Content-Length: 5\u{a0}",
    "Content-Length:",
    "Content-Length: ",
    "Content-Length: 9223372036854775808",
    "Content-Length: 18446744073709551615",
    "Content-Length: 18446744073709551616",
    "Content-Length: 18446744073709551621",
    "Content-Length: 99999999999999999999",
    "Content-Length: 00000000000000000005",
    "Content-Length: 340282366920938463463374607431768211461",
    // Host.
    "Host: b",
    "host: a",
    "HOST:",
    // Names and values.
    ": a",
    "X\u{0}: a",
    "X\u{7f}: a",
    "X\u{1}: a",
    "X: a\u{0}b",
    "X: a\u{1}b",
    "X: a\u{7f}b",
    "X: a\u{8}b",
    "X: \u{1b}[2J",
    "X@: a",
    "X[]: a",
    "X(y): a",
    "X\"y\": a",
    "X/y: a",
    "X=y: a",
    "X,Y: a",
    "X\u{e9}: a",
    "X",
    "=",
];

/// Whole heads that are no request. All are a 400.
pub const BAD_HEADS: &[&str] = &[
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "GET / HTTP/1.1\r\nHost: a\n\r\n",
    "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a#b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: \u{e9}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: <a>\r\n\r\n",
    "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\tHTTP/1.1\r\nHost: a\r\n\r\n",
    " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\u{0} HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\u{7f} HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a\rb HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /?a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http:/a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\r\nHost: a\r\n\r\n",
    "GET\r\nHost: a\r\n\r\n",
    "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "GET / HTTP/1\r\nHost: a\r\n\r\n",
    "GET / HTTP/11\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
    "GET / HTTP/ 1.1\r\nHost: a\r\n\r\n",
    "GET / http/1.1\r\nHost: a\r\n\r\n",
    "GET / ICY/1.1\r\nHost: a\r\n\r\n",
    "G\u{0}T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\r\n\r\n",
    "\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "{\"queue\":\"q\"}\r\n\r\n",
    // HTTP/1.0 knows no Transfer-Encoding.
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
    "POST / HTTP/1.0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.0\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
];

/// A POST head with these further lines.
pub fn post_with(lines: &str) -> String {
    format!("POST /x HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n")
}

/// What arrives in pieces that end at `cuts`.
fn read(bytes: &[u8], cuts: impl Iterator<Item = usize>) -> Result<Option<(Head, usize)>, Refusal> {
    let mut scan = HeadScan::default();
    for to in cuts.chain([bytes.len()]) {
        if let Some(end) = scan.feed(&bytes[..to])? {
            return parse(&bytes[..end]).map(|head| Some((head, end)));
        }
    }
    Ok(None)
}

#[track_caller]
fn refused(head: &str) -> Refusal {
    match read(head.as_bytes(), std::iter::empty()) {
        Err(refusal) => refusal,
        other => panic!("{head:?} is read as {other:?}"),
    }
}

#[track_caller]
fn accepted(head: &str) -> Head {
    match read(head.as_bytes(), std::iter::empty()) {
        Ok(Some((read, end))) if end == head.len() => read,
        other => panic!("{head:?} is read as {other:?}"),
    }
}

#[test]
fn there_are_150_ways_to_smuggle_and_none_works() {
    assert!(BAD_LINES.len() + BAD_HEADS.len() >= 150);
    for head in BAD_LINES.iter().map(|lines| post_with(lines)).chain(BAD_HEADS.iter().map(|head| head.to_string())) {
        let refusal = refused(&head);
        assert!(matches!(refusal, Refusal::BadRequest(_)), "{head:?}: {refusal:?}");
    }
}

#[test]
fn the_same_head_is_read_the_same_however_it_is_cut() {
    let good = [
        "GET /a%20b/c?d=e&f HTTP/1.1\r\nHost: a\r\nContent-Type: Text/X; q=1\r\n\r\n".to_string(),
        "\r\nPOST / HTTP/1.0\r\nContent-Length: 12\r\nConnection: Keep-Alive\r\n\r\n".to_string(),
        post_with("Transfer-Encoding: \tChunked \r\nExpect: 100-Continue"),
    ];
    let bad = BAD_LINES.iter().step_by(7).map(|lines| post_with(lines));
    let bad = bad.chain(BAD_HEADS.iter().step_by(5).map(|head| head.to_string()));
    for head in good.into_iter().chain(bad) {
        let show = |cuts: &mut dyn Iterator<Item = usize>| match read(head.as_bytes(), cuts) {
            // Which of several faults is found first may depend on what has come; that it is refused may not.
            Err(Refusal::BadRequest(_)) => "refused".to_string(),
            other => format!("{other:?}"),
        };
        let whole = show(&mut std::iter::empty());
        for cut in 0..head.len() {
            assert_eq!(show(&mut [cut].into_iter()), whole, "{head:?} cut at {cut}");
        }
        assert_eq!(show(&mut (0..head.len())), whole, "{head:?} byte by byte");
    }
}

#[test]
fn lengths_are_read_as_rfc_9112_says() {
    let length = |lines: &str| accepted(&post_with(lines)).length;
    assert_eq!(length("X: y"), BodyLength::Fixed(0));
    assert_eq!(length("Content-Length: 5"), BodyLength::Fixed(5));
    assert_eq!(length("content-length:5"), BodyLength::Fixed(5));
    assert_eq!(length("Content-Length: \t 0005\t "), BodyLength::Fixed(5));
    assert_eq!(length("Content-Length: 9223372036854775807"), BodyLength::Fixed(i64::MAX as u64));
    assert_eq!(length("Transfer-Encoding: chunked"), BodyLength::Chunked);
    assert_eq!(length("transfer-encoding:\tCHUNKED \t"), BodyLength::Chunked);
    assert_eq!(length("X-Transfer-Encoding: chunked\r\nX-Content-Length: 7"), BodyLength::Fixed(0));
}

#[test]
fn a_head_says_what_the_connection_and_the_routes_need() {
    let head = accepted(
        "GET /api/v1/pop/queue/a%2Fb%20%25/x+y?q=%20+&r HTTP/1.1\r\nhost: [::1]:6632\r\nAUTHORIZATION: Bearer x\r\n\
         X-Queen-Tenant: t\r\nContent-Encoding: Identity\r\nContent-Type:\tApplication/JSON ; charset=x\r\n\r\n",
    );
    assert_eq!(head.method, Method::Get);
    assert_eq!(head.segments, ["api", "v1", "pop", "queue", "a/b %", "x+y"]);
    assert_eq!((head.path.as_str(), head.query.as_str()), ("/api/v1/pop/queue/a%2Fb%20%25/x+y", "q=%20+&r"));
    assert_eq!(head.content_type.as_deref(), Some("application/json"));
    assert_eq!((head.authorization.as_deref(), head.tenant.as_deref()), (Some("Bearer x"), Some("t")));
    assert_eq!((head.encoded, head.keep_alive, head.expects_continue), (false, true, false));
    assert!(accepted(&post_with("Content-Encoding: gzip")).encoded);
    assert!(accepted(&post_with("Authorization: a\r\nAuthorization: a")).authorization_repeated);
    assert_eq!(accepted(&post_with("X-Queen-Tenant: a\r\nX-Queen-Tenant: a")).tenant.as_deref(), Some("repeated"));
    assert_eq!(accepted("GET / HTTP/1.1\r\nHost:\r\n\r\n").segments, [""]);
    assert_eq!(accepted("GET HTTP://x:1/a?b HTTP/1.1\r\nHost: y\r\n\r\n").segments, ["a"]);
    assert_eq!(accepted("GET http://x?b HTTP/1.1\r\nHost: y\r\n\r\n").query, "b");
    assert_eq!(accepted("OPTIONS * HTTP/1.1\r\nHost: y\r\n\r\n").path, "*");
}

#[test]
fn connections_stay_or_close_as_the_versions_say() {
    let keeps = |version: &str, lines: &str| {
        accepted(&format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n\r\n")).keep_alive
    };
    assert!(keeps("1.1", "X: y") && keeps("1.1", "Connection: x, y") && keeps("1.0", "Connection: Keep-Alive"));
    assert!(!keeps("1.1", "Connection: upgrade, CLOSE") && !keeps("1.0", "X: y"));
    assert!(!keeps("1.0", "Connection: keep-alive\r\nConnection: close"));
    assert!(!accepted("GET / HTTP/1.0\r\n\r\n").keep_alive);
}

#[test]
fn only_100_continue_can_be_expected() {
    assert!(accepted(&post_with("Expect: 100-Continue")).expects_continue);
    assert_eq!(refused(&post_with("Expect: 200-ok")), Refusal::Expectation);
    assert_eq!(refused(&post_with("Expect:")), Refusal::Expectation);
    assert!(!accepted("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects_continue);
}

#[test]
fn path_segments_are_utf8_without_control_characters() {
    let segment = |raw: &str| accepted(&format!("GET /{raw} HTTP/1.1\r\nHost: a\r\n\r\n")).segments.remove(0);
    assert_eq!(segment("%F0%9F%90%9D"), "🐝");
    assert_eq!(segment("%2e%2e%2f"), "../");
    assert_eq!(segment("%252F"), "%2F");
    assert_eq!(segment("%zz%4"), "%zz%4");
    // What can be pushed can be named.
    assert_eq!((segment("%7f"), segment("%c2%80")), ("\u{7f}".to_owned(), "\u{80}".to_owned()));
    for bad in ["%00", "%01", "%1f", "%0a", "%ff", "%c3", "%ed%a0%80", "%c0%af"] {
        assert_eq!(refused(&format!("GET /{bad} HTTP/1.1\r\nHost: a\r\n\r\n")), Refusal::BadPath, "{bad}");
    }
}

#[test]
fn limits_are_exact_and_strike_before_the_end() {
    let get = |target_len: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(target_len - 1));
    accepted(&get(TARGET_BYTES_MAX));
    assert_eq!(refused(&get(TARGET_BYTES_MAX + 1)), Refusal::TargetTooLong);
    let endless = "GET /".to_string() + &"x".repeat(TARGET_BYTES_MAX + REQUEST_LINE_EXTRA);
    assert_eq!(refused(&endless), Refusal::TargetTooLong);

    let lines = |count: usize| post_with(&vec!["a: b"; count - 1].join("\r\n"));
    accepted(&lines(HEADERS_MAX));
    assert_eq!(refused(&lines(HEADERS_MAX + 1)), Refusal::HeadTooLarge);

    let padded = |total: usize| {
        let bare = post_with("a: ").len();
        post_with(&format!("a: {}", "x".repeat(total - bare)))
    };
    accepted(&padded(HEAD_BYTES_MAX));
    assert_eq!(refused(&padded(HEAD_BYTES_MAX + 1)), Refusal::HeadTooLarge);
    assert_eq!(refused(&padded(HEAD_BYTES_MAX + 9)[..HEAD_BYTES_MAX + 1]), Refusal::HeadTooLarge);
}
