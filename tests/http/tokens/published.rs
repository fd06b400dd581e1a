//! Keys: published ones, broken ones, none.

use super::*;

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
        let cert = rustls::pki_types::CertificateDer::from_pem_slice(include_bytes!("../../keys/server.pem"))
            .expect("a certificate");
        let key =
            rustls::pki_types::PrivateKeyDer::from_pem_slice(include_bytes!("../../keys/server.key")).expect("a key");
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
