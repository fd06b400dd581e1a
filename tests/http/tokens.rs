//! Tokens over HTTP: who is let in, who is not, with which status and text. Operations 2; reliability 8, H6.

use crate::harness::{Answer, Broker, Client, Setup, eventually, unique};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub const SECRET: &str = "a secret of the tests, long enough";
const RSA: &[u8] = include_bytes!("../keys/rsa-private.pem");
const RSA_PUBLIC: &str = include_str!("../keys/rsa-public.pem");
const OTHER_RSA: &[u8] = include_bytes!("../keys/other-rsa.pem");
const ED: &[u8] = include_bytes!("../keys/ed.pem");
const ED_PUBLIC: &str = include_str!("../keys/ed-public.pem");

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() as i64
}

/// A token's header or payload as text, so that it can say what no library would.
#[derive(Clone)]
struct Json(Vec<(String, String)>);

impl Json {
    fn of(members: &[(&str, &str)]) -> Json {
        Json(members.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }
    fn with(mut self, name: &str, value: &str) -> Json {
        self.0.retain(|(k, _)| k != name);
        self.and(name, value)
    }
    /// Adds a member even when there is one of that name.
    fn and(mut self, name: &str, value: &str) -> Json {
        self.0.push((name.into(), value.into()));
        self
    }
    fn without(mut self, name: &str) -> Json {
        self.0.retain(|(k, _)| k != name);
        self
    }
    fn text(&self) -> String {
        let members: Vec<String> = self.0.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        format!("{{{}}}", members.join(","))
    }
}

fn claims() -> Json {
    let exp = (now() + 3600).to_string();
    let members = [("sub", "\"svc\""), ("role", "\"admin\""), ("iss", "\"https://issuer\""), ("aud", "\"queen\"")];
    Json::of(&members).and("exp", &exp)
}

fn header(algorithm: &str) -> Json {
    Json::of(&[]).and("typ", "\"JWT\"").and("alg", &format!("\"{algorithm}\""))
}

fn sign(header: &str, payload: &str, algorithm: Algorithm, key: &EncodingKey) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    format!("{signed}.{}", jsonwebtoken::crypto::sign(signed.as_bytes(), key, algorithm).expect("signed"))
}

fn secret(text: &str) -> EncodingKey {
    EncodingKey::from_secret(text.as_bytes())
}

/// An HS256 token with these claims.
fn hs(payload: &Json) -> String {
    sign(&header("HS256").text(), &payload.text(), Algorithm::HS256, &secret(SECRET))
}

fn hs_head(header: &Json) -> String {
    sign(&header.text(), &claims().text(), Algorithm::HS256, &secret(SECRET))
}

fn rs(header: &Json, algorithm: Algorithm) -> String {
    sign(&header.text(), &claims().text(), algorithm, &EncodingKey::from_rsa_pem(RSA).expect("a key"))
}

/// A token of one role, for tests of other rooms.
pub fn token_of(role: &str, subject: &str) -> String {
    hs(&claims().with("role", &json!(role).to_string()).with("sub", &json!(subject).to_string()))
}

/// A broker with a shared secret, issuer and audience.
fn with_secret() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| {
        let setup = Setup::clean().env("JWT_ENABLED", "true").env("JWT_SECRET", SECRET);
        setup
            .env("JWT_ISSUER", "https://issuer")
            .env("JWT_AUDIENCE", "queen")
            .env("QUEEN_BIND_ADDR", "127.0.0.1")
            .start()
    })
}

/// A broker with an RSA key in its settings.
fn with_pem() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| {
        let setup =
            Setup::clean().env("JWT_ENABLED", "1").env("JWT_ALGORITHM", "RS256").env("JWT_PUBLIC_KEY", RSA_PUBLIC);
        setup.env("JWT_SECRET", SECRET).env("JWT_REQUIRE_EXP", "yes").start()
    })
}

/// A broker whose keys are published.
fn with_published() -> &'static (Broker, Arc<AtomicUsize>) {
    static BROKER: OnceLock<(Broker, Arc<AtomicUsize>)> = OnceLock::new();
    BROKER.get_or_init(|| {
        let (url, fetches) = publish(key_set());
        let setup = Setup::clean().env("JWT_ENABLED", "on").env("JWT_ALGORITHM", "auto").env("JWT_JWKS_URL", &url);
        (setup.env("JWT_SECRET", SECRET).start(), fetches)
    })
}

fn der(pem: &str) -> Vec<u8> {
    STANDARD.decode(pem.lines().filter(|line| !line.starts_with("---")).collect::<String>()).expect("base64")
}

fn key_set() -> String {
    let (rsa, ed) = (der(RSA_PUBLIC), der(ED_PUBLIC));
    let modulus = &rsa[rsa.len() - 5 - 256..rsa.len() - 5];
    let key = json!({"kty": "RSA", "kid": "r1", "use": "sig", "n": URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB"});
    let x = URL_SAFE_NO_PAD.encode(&ed[ed.len() - 32..]);
    json!({"keys": [key, {"kty": "OKP", "crv": "Ed25519", "kid": "e1", "x": x}, {"kty": "EC", "kid": "c1"}]})
        .to_string()
}

/// Serves one document; how often it was asked for.
fn publish(document: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
    let fetches = Arc::new(AtomicUsize::new(0));
    let count = fetches.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut lines = BufReader::new(stream.try_clone().expect("dup")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            count.fetch_add(1, Ordering::SeqCst);
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{document}", document.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, fetches)
}

const PROBE: &str = "/api/v1/resources/queues";

fn ask(b: &Broker, authorization: &[&str], method: &str, path: &str, body: Option<&[u8]>) -> Answer {
    let head: Vec<(&str, &str)> = authorization.iter().map(|value| ("Authorization", *value)).collect();
    b.client().send(method, path, &head, body).expect("an answer")
}

#[track_caller]
fn refused(b: &Broker, what: &str, authorization: &[&str], status: u16, text: &str) {
    let answer = ask(b, authorization, "GET", PROBE, None);
    assert_eq!((answer.status, answer.text()), (status, format!("{{\"error\":\"{text}\"}}")), "{what}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
    assert!(answer.header("www-authenticate").is_none(), "{what}");
}

#[track_caller]
fn welcome(b: &Broker, what: &str, authorization: &str) {
    let answer = ask(b, &[authorization], "GET", PROBE, None);
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
}

const HEAD: &str = "Bad token header";
const ALG: &str = "Unsupported token algorithm";
const SIG: &str = "Invalid token signature";

#[test]
fn bad_tokens_are_refused_each_with_its_text() {
    let mut cases: Vec<(&Broker, String, String, &str)> = Vec::new();
    let b = with_secret();
    let good = hs(&claims());
    let mut bad = |b, what: &str, token: String, text| cases.push((b, what.to_owned(), token, text));

    // Not a token.
    let parts: Vec<&str> = good.split('.').collect();
    for (what, text) in [
        ("empty", String::new()),
        ("a scheme alone", "Bearer ".into()),
        ("another scheme", "Basic YTpi".into()),
        ("one part", parts[0].into()),
        ("two parts", format!("{}.{}", parts[0], parts[1])),
        ("four parts", format!("{good}.x")),
        ("dots", "...".into()),
        ("no header", format!(".{}.{}", parts[1], parts[2])),
        ("padding", format!("{}==.{}.{}", parts[0], parts[1], parts[2])),
        ("the other alphabet", format!("+/+/.{}.{}", parts[1], parts[2])),
        ("blank inside", format!("{} .{}.{}", parts[0], parts[1], parts[2])),
        ("no JSON", format!("{}.{}.{}", URL_SAFE_NO_PAD.encode("x"), parts[1], parts[2])),
        ("an array", format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(r#"["HS256"]"#), parts[1], parts[2])),
        ("not UTF-8", format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(b"{\"alg\":\"\xff\"}"), parts[1], parts[2])),
        ("a token in a token", format!("Bearer Bearer {good}")),
        ("deep header", {
            let deep = format!(r#"{{"alg":"HS256","x":{}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
            format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(deep), parts[1], parts[2])
        }),
    ] {
        bad(b, what, text, HEAD);
    }
    for (what, head) in [
        ("no alg", header("HS256").without("alg")),
        ("alg null", header("HS256").with("alg", "null")),
        ("alg a number", header("HS256").with("alg", "256")),
        ("alg a list", header("HS256").with("alg", "[\"HS256\"]")),
        ("alg twice", header("none").and("alg", "\"HS256\"")),
        ("typ JWE", header("HS256").with("typ", "\"JWE\"")),
        ("typ of another purpose", header("HS256").with("typ", "\"logout+jwt\"")),
        ("typ a number", header("HS256").with("typ", "1")),
        ("crit", header("HS256").and("crit", "[\"exp\"]").and("exp", "1")),
        ("crit empty", header("HS256").and("crit", "[]")),
        ("b64", header("HS256").and("crit", "[\"b64\"]").and("b64", "false")),
        ("kid a number", header("HS256").and("kid", "1")),
        ("kid null", header("HS256").and("kid", "null")),
        ("kid a list", header("HS256").and("kid", "[\"a\"]")),
    ] {
        bad(b, what, hs_head(&head), HEAD);
    }

    // Algorithms.
    for name in [
        "none", "None", "NONE", "nOnE", "NonE", "noNe", "", " HS256", "HS256 ", "hs256", "Hs256", "HS1", "ES256",
        "ES384", "PS256", "PS512", "RSA1_5", "dir", "A256GCM", "eddsa", "EDDSA", "HS384", "HS512", "RS256", "EdDSA",
    ] {
        bad(b, &format!("alg {name:?}"), hs_head(&header(name)), ALG);
        if name.eq_ignore_ascii_case("none") {
            let text = hs_head(&header(name));
            let unsigned = &text[..=text.rfind('.').expect("a dot")];
            bad(b, &format!("alg {name:?}, unsigned"), unsigned.to_owned(), ALG);
        }
    }

    // Signatures.
    for (what, text) in [
        ("cut", good[..good.len() - 2].to_owned()),
        ("none", format!("{}.{}.", parts[0], parts[1])),
        ("of another secret", sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret("another"))),
        ("of the empty secret", sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret(""))),
        ("of the public key", sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret(RSA_PUBLIC))),
        (
            "of another payload",
            format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims().with("sub", "\"x\"").text()), parts[2]),
        ),
        (
            "of another header",
            format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(header("HS256").and("x", "1").text()), parts[1], parts[2]),
        ),
        ("padded", format!("{good}=")),
        ("of a longer algorithm", sign(&header("HS256").text(), &claims().text(), Algorithm::HS512, &secret(SECRET))),
        (
            "by an RSA key",
            sign(
                &header("HS256").text(),
                &claims().text(),
                Algorithm::RS256,
                &EncodingKey::from_rsa_pem(RSA).expect("a key"),
            ),
        ),
    ] {
        bad(b, &format!("signature {what}"), text, SIG);
    }
    let mut bytes = URL_SAFE_NO_PAD.decode(parts[2]).expect("base64");
    bytes[7] ^= 1;
    bad(b, "a flipped bit", format!("{}.{}.{}", parts[0], parts[1], URL_SAFE_NO_PAD.encode(bytes)), SIG);

    // Payloads nobody can read.
    for payload in ["", "x", "[]", "null", "1", "\"x\"", "{\"sub\":\"a\"", "{\"sub\":\"\\ud800\"}"] {
        bad(
            b,
            &format!("payload {payload:?}"),
            sign(&header("HS256").text(), payload, Algorithm::HS256, &secret(SECRET)),
            SIG,
        );
    }
    for claim in ["exp", "nbf", "iat"] {
        for odd in ["\"9999999999\"", "null", "[9999999999]", "{}", "true", "1e400"] {
            bad(b, &format!("{claim} {odd}"), hs(&claims().with(claim, odd)), SIG);
        }
        bad(b, &format!("{claim} twice"), hs(&claims().with(claim, "9").and(claim, "9999999999")), SIG);
    }
    bad(b, "sub a number", hs(&claims().with("sub", "7")), SIG);
    bad(b, "role twice", hs(&claims().with("role", "\"read-only\"").and("role", "\"admin\"")), SIG);
    bad(b, "a deep claim", hs(&claims().and("x", &format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000)))), SIG);

    // Times, issuer, audience.
    let at = |secs: i64| (now() + secs).to_string();
    bad(b, "long expired", hs(&claims().with("exp", &at(-60))), "Token has expired");
    bad(b, "exp 0", hs(&claims().with("exp", "0")), "Token has expired");
    bad(b, "exp negative", hs(&claims().with("exp", "-1")), "Token has expired");
    bad(b, "exp a fraction", hs(&claims().with("exp", &format!("{}.5", now() - 60))), "Token has expired");
    bad(b, "nbf ahead", hs(&claims().with("nbf", &at(90))), "Token not yet valid");
    bad(b, "nbf far ahead", hs(&claims().with("nbf", "1e18")), "Token not yet valid");
    bad(b, "iat ahead", hs(&claims().with("iat", &at(90))), "Token issued in the future");
    for odd in ["\"https://issuer/\"", "\"HTTPS://ISSUER\"", "[\"https://issuer\"]", "null", "\"\"", "1"] {
        bad(b, &format!("iss {odd}"), hs(&claims().with("iss", odd)), "Invalid token issuer");
    }
    bad(b, "no iss", hs(&claims().without("iss")), "Invalid token issuer");
    for odd in ["\"queen2\"", "[\"a\",\"b\"]", "[]", "null", "{\"queen\":1}", "[[\"queen\"]]", "\"queen,other\""] {
        bad(b, &format!("aud {odd}"), hs(&claims().with("aud", odd)), "Invalid token audience");
    }
    bad(b, "no aud", hs(&claims().without("aud")), "Invalid token audience");

    // Public keys.
    let b = with_pem();
    let other = EncodingKey::from_rsa_pem(OTHER_RSA).expect("a key");
    bad(b, "another RSA key", sign(&header("RS256").text(), &claims().text(), Algorithm::RS256, &other), SIG);
    bad(
        b,
        "the public key as secret",
        sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret(RSA_PUBLIC)),
        ALG,
    );
    bad(
        b,
        "the trimmed public key as secret",
        sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret(RSA_PUBLIC.trim())),
        ALG,
    );
    bad(b, "the real secret", sign(&header("HS256").text(), &claims().text(), Algorithm::HS256, &secret(SECRET)), ALG);
    let jwk = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"}).to_string();
    bad(
        b,
        "its own key along",
        sign(&header("RS256").and("jwk", &jwk).text(), &claims().text(), Algorithm::RS256, &other),
        SIG,
    );
    for name in ["jku", "x5u"] {
        let head = header("RS256").and(name, "\"http://127.0.0.1:9/keys\"");
        bad(b, name, sign(&head.text(), &claims().text(), Algorithm::RS256, &other), SIG);
    }
    let eternal = sign(
        &header("RS256").text(),
        &claims().without("exp").text(),
        Algorithm::RS256,
        &EncodingKey::from_rsa_pem(RSA).expect("a key"),
    );
    bad(b, "no exp where one is required", eternal, "Token has no expiry");

    // Published keys.
    let (b, fetches) = with_published();
    for kid in [
        "../../etc/passwd",
        "/dev/null",
        "' or 1=1 --",
        "r1'; drop table queen.queues; --",
        "c1",
        "e1",
        "",
        "R1",
        "r1 ",
    ] {
        bad(
            b,
            &format!("kid {kid:?}"),
            rs(&header("RS256").and("kid", &json!(kid).to_string()), Algorithm::RS256),
            "Unknown key ID",
        );
    }
    bad(
        b,
        "another key of a known id",
        sign(&header("RS256").and("kid", "\"r1\"").text(), &claims().text(), Algorithm::RS256, &other),
        SIG,
    );
    let ed = EncodingKey::from_ed_pem(ED).expect("a key");
    bad(
        b,
        "an Ed25519 key for an RSA id",
        sign(&header("EdDSA").and("kid", "\"r1\"").text(), &claims().text(), Algorithm::EdDSA, &ed),
        "Unknown key ID",
    );

    let longest = cases.iter().fold(Duration::ZERO, |longest, (b, what, token, text)| {
        let began = Instant::now();
        refused(b, what, &[&format!("Bearer {token}")], 401, text);
        longest.max(began.elapsed())
    });
    assert!(cases.len() >= 80, "{}", cases.len());
    println!(
        "{} bad tokens refused, the slowest answer {longest:?}, {} fetches of keys",
        cases.len(),
        fetches.load(Ordering::SeqCst)
    );

    refused(with_secret(), "no header", &[], 401, "Authentication required");
    let bearer = format!("Bearer {good}");
    refused(with_secret(), "two headers", &[&bearer, &bearer], 401, HEAD);
    let huge = with_secret().client().send("GET", PROBE, &[("Authorization", &"x".repeat(1 << 20))], None);
    assert!(huge.is_err() || huge.is_ok_and(|a| a.status == 431), "a token of 1 MiB");
}

#[test]
fn good_tokens_are_let_in() {
    let mut n = 0;
    let mut good = |b: &Broker, what: &str, value: String| {
        welcome(b, what, &value);
        n += 1;
    };
    let b = with_secret();
    let token = hs(&claims());
    for scheme in ["Bearer ", "bearer ", "BEARER ", "bEaReR ", "", "Bearer   "] {
        good(b, scheme, format!("{scheme}{token}"));
    }
    let at = |secs: i64| (now() + secs).to_string();
    for (what, payload) in [
        ("no exp", claims().without("exp")),
        ("expired within the skew", claims().with("exp", &at(-5))),
        ("exp a fraction", claims().with("exp", &format!("{}.25", now() + 60))),
        ("exp with an exponent", claims().with("exp", "9.9e9")),
        ("exp beyond all time", claims().with("exp", "1e300")),
        ("exp of 64 bits", claims().with("exp", "18446744073709551615")),
        ("nbf within the skew", claims().with("nbf", &at(5))),
        ("nbf negative", claims().with("nbf", "-1")),
        ("iat within the skew", claims().with("iat", &at(5))),
        ("aud a list", claims().with("aud", "[\"a\",7,\"queen\"]")),
        ("no sub", claims().without("sub")),
        ("sub null", claims().with("sub", "null")),
        ("the role in the list", claims().without("role").and("roles", "[null,\"read-only\"]")),
        ("read-write", claims().with("role", "\"read-write\"")),
        ("read-only", claims().with("role", "\"read-only\"")),
        ("unknown claims", claims().and("x", "{\"a\":{\"a\":[1,{}]}}")),
        ("spaces", claims().with("sub", " \"x\" ")),
    ] {
        good(b, what, format!("Bearer {}", hs(&payload)));
    }
    for (what, head) in [
        ("no typ", header("HS256").without("typ")),
        ("typ jwt", header("HS256").with("typ", "\"jwt\"")),
        ("typ at+jwt", header("HS256").with("typ", "\"at+jwt\"")),
        ("an id", header("HS256").and("kid", "\"../x\"")),
        ("cty", header("HS256").and("cty", "\"JWT\"")),
    ] {
        good(b, what, format!("Bearer {}", hs_head(&head)));
    }
    for algorithm in [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512] {
        good(with_pem(), "RS", format!("Bearer {}", rs(&header(&format!("{algorithm:?}")), algorithm)));
    }
    good(
        with_pem(),
        "jku is not looked at",
        format!("Bearer {}", rs(&header("RS256").and("jku", "\"http://127.0.0.1:9/\""), Algorithm::RS256)),
    );
    let (b, _) = with_published();
    let ed = EncodingKey::from_ed_pem(ED).expect("a key");
    good(b, "published RSA", format!("Bearer {}", rs(&header("RS256").and("kid", "\"r1\""), Algorithm::RS256)));
    good(b, "published RSA without an id", format!("Bearer {}", rs(&header("RS512"), Algorithm::RS512)));
    good(
        b,
        "published Ed25519",
        format!(
            "Bearer {}",
            sign(&header("EdDSA").and("kid", "\"e1\"").text(), &claims().text(), Algorithm::EdDSA, &ed)
        ),
    );
    for (name, algorithm) in [("HS256", Algorithm::HS256), ("HS384", Algorithm::HS384), ("HS512", Algorithm::HS512)] {
        good(b, name, format!("Bearer {}", sign(&header(name).text(), &claims().text(), algorithm, &secret(SECRET))));
    }
    assert!(n >= 25, "{n}");
    println!("{n} good tokens let in");
}

#[test]
fn a_storm_of_unknown_ids_fetches_keys_once_in_five_seconds() {
    let (url, fetches) = publish(key_set());
    let setup = Setup::clean().env("JWT_ENABLED", "on").env("JWT_ALGORITHM", "RS256").env("JWT_JWKS_URL", &url);
    let b = setup.start();
    eventually("the keys were read at boot", || (fetches.load(Ordering::SeqCst) == 1).then_some(()));
    let storm = if std::env::var_os("QUEEN_FULL").is_some() { 10_000 } else { 400 };
    let began = Instant::now();
    let signature = rs(&header("RS256").and("kid", "\"x0\""), Algorithm::RS256);
    let rest = signature.split_once('.').expect("a dot").1.to_owned();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (rest, port) = (&rest, b.port);
            scope.spawn(move || {
                let mut client = Client::new(port);
                for n in 0..storm / 4 {
                    let head = URL_SAFE_NO_PAD.encode(header("RS256").and("kid", &format!("\"{thread}-{n}\"")).text());
                    let answer =
                        client.send("GET", PROBE, &[("Authorization", &format!("Bearer {head}.{rest}"))], None);
                    let answer = answer.expect("an answer");
                    assert_eq!((answer.status, answer.error().as_str()), (401, "Unknown key ID"));
                }
            });
        }
    });
    let (took, fetched) = (began.elapsed(), fetches.load(Ordering::SeqCst));
    println!("{storm} bad tokens in {took:?}: {} fetches", fetched - 1);
    assert!(fetched as u64 - 1 <= took.as_secs() / 5 + 1, "{fetched} fetches in {took:?}");
    assert_eq!(b.get("/health").status, 200);
}

#[test]
fn a_new_key_is_found_when_its_id_comes() {
    // Nothing is published yet when the broker boots.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let setup = Setup::clean().env("JWT_ENABLED", "on").env("JWT_ALGORITHM", "auto");
    let b = setup.env("JWT_JWKS_URL", &format!("http://{address}/keys")).env("JWT_JWKS_TIMEOUT_MS", "300").start();
    eventually("it says that it could not read them", || {
        b.log().contains("published keys cannot be read").then_some(())
    });
    let document = key_set();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{document}", document.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let token = format!("Bearer {}", rs(&header("RS256").and("kid", "\"r1\""), Algorithm::RS256));
    eventually("the key is read on demand", || (ask(&b, &[&token], "GET", PROBE, None).status == 200).then_some(()));
    let log = b.log();
    assert!(log.contains("JWT_JWKS_URL is not https"), "{log}");
}

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

#[test]
fn wrong_keys_forbid_a_start_and_name_what_is_missing() {
    for (env, want) in [
        (&[("JWT_ALGORITHM", "HS256")][..], "JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL"),
        (&[("JWT_ALGORITHM", "RS256"), ("JWT_SECRET", "x")], "needs JWT_PUBLIC_KEY or JWT_JWKS_URL"),
        (&[("JWT_ALGORITHM", "none"), ("JWT_SECRET", "x")], "HS256, HS384, HS512, RS256, RS384, RS512, EdDSA or auto"),
        (&[("JWT_ALGORITHM", "ES256"), ("JWT_PUBLIC_KEY", "x")], "is not an algorithm"),
        (&[("JWT_ALGORITHM", "hs256"), ("JWT_SECRET", "x")], "is not an algorithm"),
    ] {
        let mut setup = Setup::clean().env("JWT_ENABLED", "on");
        for (name, value) in env {
            setup = setup.env(name, value);
        }
        let b = setup.launch();
        assert_eq!(b.wait_end().code(), Some(1));
        assert!(b.log().contains("FATAL: ") && b.log().contains(want), "{}", b.log());
    }
}

#[test]
fn a_server_side_key_problem_is_a_500_with_its_text() {
    let setup = Setup::clean().env("JWT_ENABLED", "on").env("JWT_ALGORITHM", "auto");
    let b = setup.env("JWT_PUBLIC_KEY", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----").start();
    let rsa = format!("Bearer {}", rs(&header("RS256"), Algorithm::RS256));
    refused(&b, "a broken PEM", &[&rsa], 500, "invalid RSA public key PEM");
    let ed = sign(
        &header("EdDSA").text(),
        &claims().text(),
        Algorithm::EdDSA,
        &EncodingKey::from_ed_pem(ED).expect("a key"),
    );
    refused(&b, "a broken PEM", &[&format!("Bearer {ed}")], 500, "invalid Ed public key PEM");
    refused(&b, "no secret", &[&format!("Bearer {}", hs(&claims()))], 500, "HS secret not configured");
    assert!(b.log().contains("neither an RSA nor an Ed25519 public key"), "{}", b.log());
}

/// Redirects are not followed, a certificate nobody vouches for is not believed, and a document that is too long or none
/// at all replaces nothing.
#[test]
fn keys_come_from_the_named_place_or_not_at_all() {
    let (good, fetches) = publish(key_set());
    let serve = |answer: String| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(stream.try_clone().expect("dup")).lines();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        address
    };
    let with = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    let redirect =
        serve(format!("HTTP/1.1 302 Found\r\nLocation: {good}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    let long = serve(with("200 OK", &format!("{}{}", " ".repeat(1 << 20), key_set())));
    let wrong = serve(with("200 OK", "{\"nothing\":1}"));
    let failing = serve(with("500 Oops", &key_set()));
    let secured = {
        use rustls::pki_types::pem::PemObject;
        let cert = rustls::pki_types::CertificateDer::from_pem_slice(include_bytes!("../keys/server.pem"))
            .expect("a certificate");
        let key =
            rustls::pki_types::PrivateKeyDer::from_pem_slice(include_bytes!("../keys/server.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions");
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![cert], key).expect("a pair"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut tls = rustls::ServerConnection::new(config.clone()).expect("a session");
                let mut tls = rustls::Stream::new(&mut tls, &mut stream);
                let _ = tls.write_all(with("200 OK", &key_set()).as_bytes());
            }
        });
        address
    };
    let token = format!("Bearer {}", rs(&header("RS256").and("kid", "\"r1\""), Algorithm::RS256));
    for url in [
        format!("http://{redirect}/keys"),
        format!("http://{long}/keys"),
        format!("http://{wrong}/keys"),
        format!("http://{failing}/keys"),
        format!("https://localhost:{}/keys", secured.port()),
        "ftp://127.0.0.1/keys".to_owned(),
        "nonsense".to_owned(),
    ] {
        let setup = Setup::clean().env("JWT_ENABLED", "on").env("JWT_ALGORITHM", "RS256").env("JWT_JWKS_URL", &url);
        let b = setup.start();
        eventually("it says so", || b.log().contains("published keys cannot be read").then_some(()));
        refused(&b, &url, &[&token], 401, "Unknown key ID");
    }
    assert_eq!(fetches.load(Ordering::SeqCst), 0, "no redirect was followed");
}
