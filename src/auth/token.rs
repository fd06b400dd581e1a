//! One token: text -> header -> (a key proves it) -> claims -> [`Identity`]. Pure; the clock comes in.
//!
//! Holds: three parts of unpadded base64url, two of them JSON objects without repeated keys; an `alg` that the setting
//! admits, so that a public key is never taken for a shared secret; `jku`, `x5u`, `jwk` and the like are never looked
//! at. Source: operations 2.1, 2.3; reliability 8, H6.

use super::{Denied, Identity, Roles};
use crate::config::auth::Jwt;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use std::collections::HashMap;

/// A token's parts, as far as they are known before its signature is.
#[derive(Debug)]
pub struct Unproved<'a> {
    pub algorithm: Algorithm,
    pub kid: Option<String>,
    /// What the signature is about: header and payload with their dot.
    pub signed: &'a str,
    pub signature: &'a str,
    payload: &'a str,
}

/// The token of an `Authorization` value: `Bearer ` in any case is optional.
pub fn of_header(value: &str) -> &str {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer ") => token.trim(),
        _ => value.trim(),
    }
}

/// The algorithm a name stands for. Exact spellings; everything else is none. Source: operations 2.1.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "HS256" => Algorithm::HS256,
        "HS384" => Algorithm::HS384,
        "HS512" => Algorithm::HS512,
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "EdDSA" => Algorithm::EdDSA,
        _ => return None,
    })
}

/// Reads what comes before the signature's proof.
pub fn read<'a>(token: &'a str, rules: &Jwt) -> Result<Unproved<'a>, Denied> {
    let (signed, signature) = token.rsplit_once('.').ok_or(Denied::BadHeader)?;
    let (header, payload) = signed.split_once('.').ok_or(Denied::BadHeader)?;
    if payload.contains('.') {
        return Err(Denied::BadHeader);
    }
    let header = object(header).ok_or(Denied::BadHeader)?;
    let Some(Value::String(name)) = header.get("alg") else { return Err(Denied::BadHeader) };
    let known_type = match header.get("typ") {
        None => true,
        Some(Value::String(kind)) => is_access_token(kind),
        Some(_) => false,
    };
    // RFC 7515 4.1.11: what `crit` names must be understood, and nothing it can name is.
    if !known_type || header.contains_key("crit") {
        return Err(Denied::BadHeader);
    }
    let kid = match header.get("kid") {
        None => None,
        Some(Value::String(kid)) => Some(kid.clone()),
        Some(_) => return Err(Denied::BadHeader),
    };
    let algorithm = algorithm(name).filter(|one| rules.algorithms.contains(one)).ok_or(Denied::Algorithm)?;
    Ok(Unproved { algorithm, kid, signed, signature, payload })
}

/// Types of tokens that are made to be shown to a service (RFC 7519 5.1, RFC 9068); others, such as `logout+jwt`, are
/// signed by the same issuer for another purpose (RFC 8725 3.11).
fn is_access_token(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    matches!(kind.strip_prefix("application/").unwrap_or(&kind), "jwt" | "at+jwt")
}

/// What the payload of a proved token says at `now` (seconds), and until when that holds (`None`: for ever).
pub fn judge(token: &Unproved<'_>, rules: &Jwt, now: i64) -> Result<(Identity, Option<i64>), Denied> {
    // Unreadable claims have one text with a bad signature. Source: operations 2.5.
    let claims = object(token.payload).ok_or(Denied::Signature)?;
    let (exp, nbf, iat) = (seconds(&claims, "exp")?, seconds(&claims, "nbf")?, seconds(&claims, "iat")?);
    let until = exp.map(|exp| exp.saturating_add(rules.clock_skew));
    if until.is_some_and(|until| now > until) {
        return Err(Denied::Expired);
    }
    if exp.is_none() && rules.require_exp {
        return Err(Denied::NoExpiry);
    }
    if nbf.is_some_and(|nbf| now.saturating_add(rules.clock_skew) < nbf) {
        return Err(Denied::NotYetValid);
    }
    if iat.is_some_and(|iat| iat > now.saturating_add(rules.clock_skew)) {
        return Err(Denied::FromTheFuture);
    }
    if !rules.issuer.is_empty() && claims.get("iss").and_then(Value::as_str) != Some(&rules.issuer) {
        return Err(Denied::Issuer);
    }
    if !rules.audience.is_empty() && !names(claims.get("aud"), &rules.audience) {
        return Err(Denied::Audience);
    }
    let subject = match claims.get("sub") {
        None | Some(Value::Null) => None,
        Some(Value::String(sub)) => Some(sub).filter(|sub| !sub.is_empty()).map(|sub| sub.as_str().into()),
        Some(_) => return Err(Denied::Signature),
    };
    Ok((Identity { roles: roles(&claims, rules), subject }, until))
}

/// A part of a token as an object; `None` when it is none, or says something twice.
fn object(part: &str) -> Option<HashMap<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice::<Once>(&bytes).ok().map(|once| once.0)
}

/// A time claim in whole seconds. A value that is no number is no claim one could ignore: the token is unreadable.
/// Source: operations 2.3 (fractions are truncated).
fn seconds(claims: &HashMap<String, Value>, name: &str) -> Result<Option<i64>, Denied> {
    match claims.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            // A float is cut, and one beyond what seconds can be stays at that end.
            Ok(number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)))
        }
        Some(_) => Err(Denied::Signature),
    }
}

/// Whether a claim that is a text or a list of texts has `wanted`.
fn names(claim: Option<&Value>, wanted: &str) -> bool {
    match claim {
        Some(Value::String(one)) => one == wanted,
        Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(wanted)),
        _ => false,
    }
}

fn roles(claims: &HashMap<String, Value>, rules: &Jwt) -> Roles {
    let single = claims.get(&rules.roles_claim).and_then(Value::as_str);
    let list = claims.get(&rules.roles_array_claim).and_then(Value::as_array);
    let holds = |role: &str| {
        !role.is_empty()
            && (single == Some(role) || list.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(role))))
    };
    Roles {
        admin: holds(&rules.role_admin),
        read_write: holds(&rules.role_read_write),
        read_only: holds(&rules.role_read_only),
        write_only: holds(&rules.role_write_only),
    }
}

/// An object in which no key comes twice: two readers could take different ones (RFC 7519 4).
struct Once(HashMap<String, Value>);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Once, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Once;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Once, A::Error> {
                let mut all = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if all.insert(key, value).is_some() {
                        return Err(A::Error::custom("a key comes twice"));
                    }
                }
                Ok(Once(all))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
