//! TLS: the listener, its certificate, and the way to PostgreSQL. Operations 2.7, 1.3.

use crate::harness::{Broker, Postgres, Setup, eventually, give_to_postgres, scratch_dir, shared_postgres, unique};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CA: &str = include_str!("../keys/ca.pem");
const OTHER_CA: &str = include_str!("../keys/other-ca.pem");

fn key(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(name)
}

/// A broker on a PostgreSQL of the tests with this certificate; not waited for, because `/health` speaks TLS.
fn secured(dir: &Path) -> Broker {
    let setup = Setup::clean().env("QUEEN_TLS_CERT", dir.join("cert.pem").to_str().expect("UTF-8"));
    let b = setup.env("QUEEN_TLS_KEY", dir.join("key.pem").to_str().expect("UTF-8")).launch();
    eventually("it is ready", || {
        assert!(b.try_wait().is_none(), "{}", b.log());
        let mut client = Secure::connect(b.port, CA, "localhost", rustls::ALL_VERSIONS).ok()?;
        (client.send("GET", "/health", b"").0 == 200).then_some(())
    });
    b
}

fn install(dir: &Path, name: &str) {
    std::fs::copy(key(&format!("{name}.pem")), dir.join("cert.pem")).expect("copied");
    std::fs::copy(key(&format!("{name}.key")), dir.join("key.pem")).expect("copied");
}

/// A client that verifies.
struct Secure(StreamOwned<ClientConnection, TcpStream>);

impl Secure {
    fn connect(
        port: u16,
        ca: &str,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<Secure> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("a certificate")).expect("a CA");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut secure = StreamOwned::new(connection, stream);
        while secure.conn.is_handshaking() {
            secure.conn.complete_io(&mut secure.sock)?;
        }
        Ok(Secure(secure))
    }

    fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().expect("certificates")[0].to_vec()
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        self.0
            .write_all(head.as_bytes())
            .and_then(|()| self.0.write_all(body))
            .and_then(|()| self.0.flush())
            .expect("sent");
        self.answer()
    }

    fn answer(&mut self) -> (u16, Vec<u8>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("text");
        let length =
            head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        (head[9..12].parse().expect("a status"), body)
    }
}

#[test]
fn the_listener_speaks_tls_and_nothing_else() {
    let dir = scratch_dir("tls");
    install(&dir, "server");
    let b = secured(&dir);
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13][..]] {
        let mut client = Secure::connect(b.port, CA, "localhost", versions).expect("a handshake");
        let q = unique("secure");
        // Small and large, both ways, on one connection.
        let texts = ["x".repeat(10), "y".repeat(100_000), "z".repeat(5_000_000)];
        for text in &texts {
            let body = json!({"items": [{"queue": q, "payload": text}]}).to_string();
            let (status, answer) = client.send("POST", "/api/v1/push", body.as_bytes());
            assert_eq!(status, 201, "{}", String::from_utf8_lossy(&answer));
        }
        let (status, answer) = client.send("GET", &format!("/api/v1/pop/queue/{q}?batch=9&autoAck=true"), b"");
        let pop: Value = serde_json::from_slice(&answer).expect("JSON");
        let got: Vec<_> =
            pop["messages"].as_array().expect("messages").iter().map(|m| m["data"].as_str().expect("a text")).collect();
        assert_eq!((status, got), (200, texts.iter().map(String::as_str).collect::<Vec<_>>()));
        for _ in 0..200 {
            assert_eq!(client.send("GET", "/health/live", b"").0, 200);
        }
        // Many requests in one record, a parked poll that is woken, and a goodbye.
        let pipelined = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50);
        client.0.write_all(pipelined.as_bytes()).expect("sent");
        for _ in 0..50 {
            assert_eq!(client.answer().0, 200);
        }
        let poll = format!(
            "GET /api/v1/pop/queue/{q}?wait=true&timeout=20000&autoAck=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        );
        client.0.write_all(poll.as_bytes()).expect("sent");
        let mut other = Secure::connect(b.port, CA, "127.0.0.1", versions).expect("a handshake");
        let body = json!({"items": [{"queue": q, "payload": "woken"}]}).to_string();
        assert_eq!(other.send("POST", "/api/v1/push", body.as_bytes()).0, 201);
        let (status, answer) = client.answer();
        assert!(status == 200 && String::from_utf8_lossy(&answer).contains("woken"));
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).expect("a proper end: close_notify before the socket closes");
        assert!(rest.is_empty());
    }
    assert!(Secure::connect(b.port, OTHER_CA, "localhost", rustls::ALL_VERSIONS).is_err(), "a client that verifies");
    assert!(Secure::connect(b.port, CA, "elsewhere.example", rustls::ALL_VERSIONS).is_err());
    let mut plain = b.client();
    assert!(plain.get("/health/live").is_err(), "no answer in the clear");
}

#[test]
fn stalled_handshakes_cost_only_themselves() {
    let dir = scratch_dir("tls");
    install(&dir, "server");
    let b = secured(&dir);
    let stalled: Vec<TcpStream> = (0..200)
        .map(|n| {
            let mut stream = TcpStream::connect(("127.0.0.1", b.port)).expect("connected");
            let hello: &[u8] = match n % 4 {
                0 => b"",
                1 => b"\x16\x03\x01",
                2 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                _ => b"GET / HTTP/1.1\r\n\r\n",
            };
            stream.write_all(hello).expect("sent");
            stream
        })
        .collect();
    let began = Instant::now();
    let q = unique("beside");
    for n in 0..20 {
        let mut client = Secure::connect(b.port, CA, "localhost", rustls::ALL_VERSIONS).expect("a handshake");
        let body = json!({"items": [{"queue": q, "payload": n}]}).to_string();
        assert_eq!(client.send("POST", "/api/v1/push", body.as_bytes()).0, 201);
    }
    println!("20 handshakes and pushes beside {} stalled ones: {:?}", stalled.len(), began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(b.try_wait().is_none());
}

#[test]
fn sighup_reads_the_certificate_again() {
    let dir = scratch_dir("tls");
    install(&dir, "server");
    let b = secured(&dir);
    let connect = || Secure::connect(b.port, CA, "localhost", rustls::ALL_VERSIONS).expect("a handshake");
    let mut old = connect();
    let first = old.certificate();
    install(&dir, "server2");
    assert_eq!(connect().certificate(), first, "not before it is told");
    b.signal(libc::SIGHUP);
    eventually("new connections get the new one", || (connect().certificate() != first).then_some(()));
    assert_eq!(old.send("GET", "/health/live", b"").0, 200, "old connections go on");
    let second = connect().certificate();
    std::fs::write(dir.join("key.pem"), "nonsense").expect("written");
    b.signal(libc::SIGHUP);
    eventually("it says so", || b.log().contains("the certificate stays the old one").then_some(()));
    assert_eq!(connect().certificate(), second);
    assert!(b.terminate().success(), "{}", b.log());
    for (cert, key_file, why) in [("none.pem", "key.pem", "QUEEN_TLS_CERT"), ("cert.pem", "key.pem", "QUEEN_TLS_KEY")] {
        let setup = Setup::clean().env("QUEEN_TLS_CERT", dir.join(cert).to_str().expect("UTF-8"));
        let b = setup.env("QUEEN_TLS_KEY", dir.join(key_file).to_str().expect("UTF-8")).launch();
        assert_eq!(b.wait_end().code(), Some(1));
        assert!(b.log().contains(&format!("FATAL: {why}")), "{}", b.log());
    }
}

/// A PostgreSQL that speaks TLS with this certificate.
fn postgres_with(name: &str) -> Postgres {
    let dir = scratch_dir("pgtls");
    install(&dir, name);
    std::fs::set_permissions(dir.join("key.pem"), std::fs::Permissions::from_mode(0o600)).expect("a mode");
    for file in [dir.clone(), dir.join("cert.pem"), dir.join("key.pem")] {
        give_to_postgres(&file);
    }
    let file = |name: &str| dir.join(name).display().to_string();
    Postgres::start(&[
        "ssl = on",
        &format!("ssl_cert_file = '{}'", file("cert.pem")),
        &format!("ssl_key_file = '{}'", file("key.pem")),
    ])
}

#[test]
fn every_connection_to_postgresql_is_secured_or_there_is_none() {
    let good = postgres_with("server");
    let on = |postgres: &Postgres| Setup::on(postgres, "postgres").env("PG_USE_SSL", "true");
    let unsecured = "select count(*) from pg_stat_ssl as s join pg_stat_activity as a using (pid) \
                     where a.datname = current_database() and a.application_name like 'queen %' and not s.ssl";
    let secured = unsecured.replace("not s.ssl", "s.ssl");
    let check = |b: &Broker, trust: &str, verified: &str| {
        let q = unique("tls");
        b.push_n(&q, "p", "m", 50);
        let pop = b.pop(&q, "batch=100");
        b.complete("", &pop);
        assert_eq!(pop.messages.len(), 50);
        assert_eq!(good.query("postgres", unsecured), "0");
        assert!(good.query("postgres", &secured).parse::<u32>().expect("a number") >= 5);
        let log = b.log();
        assert!(log.contains(trust) && log.contains(&format!("ssl_verified={verified}")), "{trust} {verified}: {log}");
    };
    for host in ["127.0.0.1", "localhost"] {
        let b = on(&good).env("PG_HOST", host).env("PG_SSL_ROOT_CERT", &CA.replace('\n', "\\n")).start();
        check(&b, "supplied-ca", "true");
    }
    let url = format!("postgres://postgres@localhost:{}/postgres?sslmode=require", good.port);
    let b = Setup::embedded(&scratch_dir("url")).env("DATABASE_URL", &url).env("PG_SSL_ROOT_CERT", CA).start();
    check(&b, "supplied-ca", "true");
    drop(b);
    let b = on(&good).env("PG_SSL_REJECT_UNAUTHORIZED", "false").start();
    check(&b, "accept-any", "false");
    assert!(b.log().contains("whoever answers as PostgreSQL is believed"), "{}", b.log());
    drop(b);
    // Nothing is sent to a server that does not prove who it is, or that cannot speak TLS.
    let elsewhere = postgres_with("elsewhere");
    let refused = |setup: Setup, why: &str| {
        let b = setup.launch();
        eventually("it says why it waits", || b.log().contains("waiting for PostgreSQL").then_some(()));
        let log = b.log();
        assert!(log.to_lowercase().contains(why), "{why}: {log}");
        assert_eq!(b.get("/health").status, 503);
    };
    refused(on(&good), "certificate");
    refused(on(&good).env("PG_SSL_ROOT_CERT", OTHER_CA), "certificate");
    refused(on(&good).env("PG_SSL_ROOT_CERT", OTHER_CA).env("PG_SSL_REJECT_UNAUTHORIZED", "false"), "certificate");
    refused(on(&elsewhere).env("PG_SSL_ROOT_CERT", CA), "certificate");
    let database = shared_postgres().create_database();
    refused(Setup::on(shared_postgres(), &database).env("PG_USE_SSL", "true").env("PG_SSL_ROOT_CERT", CA), "tls");
}
