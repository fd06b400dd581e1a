//! Tokens over HTTP: who is let in, who is not, with which status and text. Operations 2; reliability 8, H6.

mod levels;
mod matrix;
mod published;

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
