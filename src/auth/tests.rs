//! Tokens judged by a clock that the test holds. The matrix of H6 over HTTP is in `tests/http/tokens.rs`.

use super::keys::{KeySet, Own};
use super::token::{judge, of_header, read};
use super::{Denied, Identity, Roles};
use crate::config::Config;
use crate::config::auth::Jwt;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use std::collections::BTreeMap;

pub const SECRET: &str = "a secret of the tests, long enough";
const RSA: &[u8] = include_bytes!("../../tests/keys/rsa-private.pem");
const RSA_PUBLIC: &str = include_str!("../../tests/keys/rsa-public.pem");
const ED: &[u8] = include_bytes!("../../tests/keys/ed.pem");
const NOW: i64 = 1_800_000_000;

pub fn rules(vars: &[(&str, &str)]) -> Jwt {
    let mut all = BTreeMap::from([("JWT_ENABLED".to_owned(), "on".to_owned()), ("HOME".into(), "/h".into())]);
    all.insert("JWT_SECRET".into(), SECRET.into());
    all.extend(vars.iter().map(|(k, v)| (k.to_string(), v.to_string())));
    let config = Config::from_vars(&all, false).unwrap_or_else(|why| panic!("{why:?}"));
    (**config.jwt.as_ref().expect("it is on")).clone()
}

pub fn sign(header: &str, payload: &str, algorithm: Algorithm, key: &EncodingKey) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let signature = jsonwebtoken::crypto::sign(signed.as_bytes(), key, algorithm).expect("signed");
    format!("{signed}.{signature}")
}

pub fn hs(payload: &str) -> String {
    sign(r#"{"alg":"HS256"}"#, payload, Algorithm::HS256, &EncodingKey::from_secret(SECRET.as_bytes()))
}

fn verdict(token: &str, rules: &Jwt, keys: &KeySet) -> Result<(Identity, Option<i64>), Denied> {
    let unproved = read(token, rules)?;
    Own::of(rules).prove(&unproved, keys)?;
    judge(&unproved, rules, NOW)
}

#[track_caller]
fn check(payload: &str, rules: &Jwt, want: Result<Option<i64>, Denied>) {
    let got = verdict(&hs(payload), rules, &KeySet::default());
    assert_eq!(got.map(|(_, until)| until), want, "{payload}");
}

#[test]
fn times_count_to_the_second_and_the_skew() {
    let rules = rules(&[]);
    let at = |claim: &str, secs: i64| format!(r#"{{"{claim}":{}}}"#, NOW + secs);
    check(&at("exp", -29), &rules, Ok(Some(NOW + 1)));
    check(&at("exp", -30), &rules, Ok(Some(NOW)));
    check(&at("exp", -31), &rules, Err(Denied::Expired));
    check(&at("nbf", 29), &rules, Ok(None));
    check(&at("nbf", 30), &rules, Ok(None));
    check(&at("nbf", 31), &rules, Err(Denied::NotYetValid));
    check(&at("iat", 30), &rules, Ok(None));
    check(&at("iat", 31), &rules, Err(Denied::FromTheFuture));
    // Fractions are cut, floats beyond all time stay there.
    check(&format!(r#"{{"exp":{}.9}}"#, NOW - 30), &rules, Ok(Some(NOW)));
    check(&format!(r#"{{"exp":{}.9}}"#, NOW - 31), &rules, Err(Denied::Expired));
    check(r#"{"exp":1e300}"#, &rules, Ok(Some(i64::MAX)));
    check(r#"{"exp":18446744073709551615}"#, &rules, Ok(Some(i64::MAX)));
    check(r#"{"nbf":1e300}"#, &rules, Err(Denied::NotYetValid));
    check(r#"{"exp":-1e300}"#, &rules, Err(Denied::Expired));
    check(r#"{"nbf":-5,"iat":-5}"#, &rules, Ok(None));
    for odd in ["null", "\"9999999999\"", "[9999999999]", "{}", "true", "1e400"] {
        for claim in ["exp", "nbf", "iat"] {
            check(&format!(r#"{{"{claim}":{odd}}}"#), &rules, Err(Denied::Signature));
        }
    }
    check(r#"{"exp":9999999999,"exp":9999999999}"#, &rules, Err(Denied::Signature));
    check("{}", &rules, Ok(None));
    check("{}", &super::tests::rules(&[("JWT_REQUIRE_EXP", "on")]), Err(Denied::NoExpiry));
    check(&at("exp", 31), &super::tests::rules(&[("JWT_CLOCK_SKEW", "0")]), Ok(Some(NOW + 31)));
    check(&at("exp", -1), &super::tests::rules(&[("JWT_CLOCK_SKEW", "0")]), Err(Denied::Expired));
}

#[test]
fn roles_are_the_single_claim_and_the_list_together() {
    let rules =
        rules(&[("JWT_ROLES_CLAIM", "r"), ("JWT_ROLES_ARRAY_CLAIM", "https://x/roles"), ("JWT_ROLE_ADMIN", "root")]);
    let of = |payload: &str| {
        let (identity, _) = verdict(&hs(payload), &rules, &KeySet::default()).expect("a good token");
        let Roles { admin, read_write, read_only, write_only } = identity.roles;
        [admin, read_write, read_only, write_only]
    };
    assert_eq!(of(r#"{"r":"root"}"#), [true, false, false, false]);
    assert_eq!(of(r#"{"r":"read-only","https://x/roles":["write-only",7,null]}"#), [false, false, true, true]);
    assert_eq!(of(r#"{"https://x/roles":["read-write","root"]}"#), [true, true, false, false]);
    for none in [r#"{"r":["root"]}"#, r#"{"https://x/roles":"root"}"#, r#"{"role":"root"}"#, r#"{"r":"Root"}"#, "{}"] {
        assert_eq!(of(none), [false; 4], "{none}");
    }
    let unnamed = super::tests::rules(&[("JWT_ROLE_ADMIN", "")]);
    let (identity, _) = verdict(&hs(r#"{"role":""}"#), &unnamed, &KeySet::default()).expect("a good token");
    assert_eq!(identity.roles, Roles::default(), "a role without a name is held by nobody");
}

#[test]
fn the_subject_is_a_text_or_nothing() {
    let rules = rules(&[]);
    let of = |payload: &str| verdict(&hs(payload), &rules, &KeySet::default()).map(|(identity, _)| identity.subject);
    assert_eq!(of(r#"{"sub":"svc-é\u0000"}"#).unwrap().as_deref(), Some("svc-é\0"));
    for none in ["{}", r#"{"sub":""}"#, r#"{"sub":null}"#] {
        assert_eq!(of(none), Ok(None), "{none}");
    }
    for bad in [r#"{"sub":7}"#, r#"{"sub":["x"]}"#, r#"{"sub":"\ud800"}"#] {
        assert_eq!(of(bad), Err(Denied::Signature), "{bad}");
    }
}

#[test]
fn a_scheme_in_any_case_is_optional() {
    for header in ["Bearer abc", "bearer abc", "BEARER  abc ", "abc", " abc "] {
        assert_eq!(of_header(header), "abc");
    }
    assert_eq!(of_header("Basic abc"), "Basic abc");
    assert_eq!(of_header("Bearer"), "Bearer");
    assert_eq!(of_header("Bearér x"), "Bearér x", "no slice within a letter");
}

#[test]
fn published_keys_are_found_by_id_and_family() {
    let auto = rules(&[("JWT_ALGORITHM", "auto"), ("JWT_JWKS_URL", "https://x")]);
    let (n, e) = rsa_parts();
    let x = ed_part();
    let set = format!(
        r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"a","x":"AA","y":"AA"}},{{"kty":"OKP","crv":"Ed25519","x":"AA","kid":"short"}},
            {{"kty":"RSA","kid":"a","n":"{n}","e":"{e}","use":"sig","alg":"RS256"}},7,{{"kty":"oct","k":"AA"}},
            {{"kty":"OKP","crv":"Ed25519","x":"{x}"}},{{"kty":"RSA","n":5}}]}}"#
    );
    let keys = KeySet::parse(set.as_bytes()).expect("a set");
    assert_eq!(keys.len(), 2, "others are skipped silently");
    let rsa = EncodingKey::from_rsa_pem(RSA).unwrap();
    let ed = EncodingKey::from_ed_pem(ED).unwrap();
    let judged = |header: &str, algorithm, key| verdict(&sign(header, "{}", algorithm, key), &auto, &keys).map(|_| ());
    for alg in [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512] {
        assert_eq!(judged(&format!(r#"{{"alg":"{alg:?}","kid":"a"}}"#), alg, &rsa), Ok(()));
    }
    assert_eq!(judged(r#"{"alg":"RS256"}"#, Algorithm::RS256, &rsa), Ok(()), "without an id: the first of its kind");
    assert_eq!(judged(r#"{"alg":"EdDSA"}"#, Algorithm::EdDSA, &ed), Ok(()));
    assert_eq!(judged(r#"{"alg":"EdDSA","kid":""}"#, Algorithm::EdDSA, &ed), Ok(()), "a missing id is the empty one");
    assert_eq!(judged(r#"{"alg":"EdDSA","kid":"a"}"#, Algorithm::EdDSA, &ed), Err(Denied::UnknownKey));
    assert_eq!(judged(r#"{"alg":"RS256","kid":"b"}"#, Algorithm::RS256, &rsa), Err(Denied::UnknownKey));
    for bad in ["", "[]", "{}", r#"{"keys":{}}"#] {
        assert!(KeySet::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_public_key_in_the_settings_always_wins() {
    let rsa = EncodingKey::from_rsa_pem(RSA).unwrap();
    let ed = EncodingKey::from_ed_pem(ED).unwrap();
    let rs = sign(r#"{"alg":"RS256"}"#, "{}", Algorithm::RS256, &rsa);
    let edd = sign(r#"{"alg":"EdDSA"}"#, "{}", Algorithm::EdDSA, &ed);
    let judged = |token: &str, pem: &str| {
        let rules = rules(&[("JWT_ALGORITHM", "auto"), ("JWT_PUBLIC_KEY", pem), ("JWT_JWKS_URL", "https://x")]);
        verdict(token, &rules, &KeySet::default()).map(|_| ())
    };
    assert_eq!(judged(&rs, RSA_PUBLIC), Ok(()));
    assert_eq!(judged(&rs, &RSA_PUBLIC.replace('\n', "\\n")), Ok(()));
    assert_eq!(judged(&edd, RSA_PUBLIC), Err(Denied::BadEdPem));
    assert_eq!(judged(&edd, include_str!("../../tests/keys/ed-public.pem")), Ok(()));
    assert_eq!(judged(&rs, "nonsense"), Err(Denied::BadRsaPem));
    assert_eq!(
        judged(&rs, std::str::from_utf8(RSA).unwrap()),
        Err(Denied::BadRsaPem),
        "a private key is no public one"
    );
    // A public key is no secret, however the token is made.
    let confused = sign(r#"{"alg":"HS256"}"#, "{}", Algorithm::HS256, &EncodingKey::from_secret(RSA_PUBLIC.as_bytes()));
    assert_eq!(judged(&confused, RSA_PUBLIC), Err(Denied::Signature));
}

/// Modulus and exponent of the test's RSA key, out of its DER.
pub fn rsa_parts() -> (String, String) {
    let der = der(RSA_PUBLIC);
    // 2048 bits: the modulus is the last integer but one, 257 bytes with its leading zero, the exponent 65537.
    let at = der.len() - 5 - 256;
    (URL_SAFE_NO_PAD.encode(&der[at..at + 256]), "AQAB".into())
}

/// The test's Ed25519 public key.
pub fn ed_part() -> String {
    let der = der(include_str!("../../tests/keys/ed-public.pem"));
    URL_SAFE_NO_PAD.encode(&der[der.len() - 32..])
}

fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("---")).collect();
    base64::engine::general_purpose::STANDARD.decode(body).expect("base64")
}
