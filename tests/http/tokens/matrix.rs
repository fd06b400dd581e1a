//! Which tokens are refused, each with its text, and which are let in. H6.

use super::*;

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
