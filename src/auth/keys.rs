//! The keys that prove tokens: the operator's own, and a published set. Source: operations 2.1, 2.2.

use super::Denied;
use super::token::Unproved;
use crate::config::auth::Jwt;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;

/// Which kind of key an algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Secret,
    Rsa,
    Ed,
}

impl Family {
    pub fn of(algorithm: Algorithm) -> Family {
        match algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => Family::Secret,
            Algorithm::EdDSA => Family::Ed,
            _ => Family::Rsa,
        }
    }
}

/// What the settings give, read once.
pub struct Own {
    secret: Option<DecodingKey>,
    /// JWT_PUBLIC_KEY is set: then no published key is ever asked for, even when the text is broken.
    has_pem: bool,
    rsa: Option<DecodingKey>,
    ed: Option<DecodingKey>,
}

impl Own {
    pub fn of(rules: &Jwt) -> Own {
        let pem = rules.public_key.replace("\\n", "\n");
        Own {
            secret: (!rules.secret.is_empty()).then(|| DecodingKey::from_secret(rules.secret.as_bytes())),
            has_pem: !rules.public_key.is_empty(),
            rsa: DecodingKey::from_rsa_pem(pem.as_bytes()).ok().filter(|_| pem.contains("PUBLIC KEY")),
            ed: DecodingKey::from_ed_pem(pem.as_bytes()).ok().filter(|_| pem.contains("PUBLIC KEY")),
        }
    }

    /// Whether the public key is set and can be used for nothing.
    pub fn has_broken_pem(&self) -> bool {
        self.has_pem && self.rsa.is_none() && self.ed.is_none()
    }

    /// The key for this family; `None`: a published one decides.
    fn key(&self, family: Family) -> Result<Option<&DecodingKey>, Denied> {
        match family {
            Family::Secret => self.secret.as_ref().map(Some).ok_or(Denied::NoSecret),
            Family::Rsa if self.has_pem => self.rsa.as_ref().map(Some).ok_or(Denied::BadRsaPem),
            Family::Ed if self.has_pem => self.ed.as_ref().map(Some).ok_or(Denied::BadEdPem),
            Family::Rsa | Family::Ed => Ok(None),
        }
    }

    /// Proves a token with the operator's key or a published one.
    pub fn prove(&self, token: &Unproved<'_>, published: &KeySet) -> Result<(), Denied> {
        let family = Family::of(token.algorithm);
        let key = match self.key(family)? {
            Some(own) => own,
            None => published.find(token.kid.as_deref(), family).ok_or(Denied::UnknownKey)?,
        };
        let signed = token.signed.as_bytes();
        match jsonwebtoken::crypto::verify(token.signature, signed, key, token.algorithm) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Denied::Signature),
        }
    }
}

/// Published keys; replaced as a whole.
#[derive(Default)]
pub struct KeySet(Vec<Published>);

struct Published {
    kid: String,
    family: Family,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

/// The members of a key that are looked at.
#[derive(Deserialize)]
struct Entry {
    kty: String,
    #[serde(default)]
    kid: String,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
}

impl KeySet {
    /// Reads a published set. Entries that are no RSA or Ed25519 key are skipped; `Err`: it is no set at all.
    pub fn parse(document: &[u8]) -> Result<KeySet, serde_json::Error> {
        let document: Document = serde_json::from_slice(document)?;
        Ok(KeySet(
            document.keys.into_iter().filter_map(|key| Published::of(serde_json::from_value(key).ok()?)).collect(),
        ))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of this id, or the first one for a token that names none.
    fn find(&self, kid: Option<&str>, family: Family) -> Option<&DecodingKey> {
        let fits = |key: &&Published| key.family == family && kid.is_none_or(|kid| key.kid == kid);
        self.0.iter().find(fits).map(|key| &key.key)
    }
}

impl Published {
    fn of(entry: Entry) -> Option<Published> {
        /// Base64url of 32 bytes, without padding.
        const ED_KEY_CHARS: usize = 43;
        let (family, key) = match (entry.kty.as_str(), entry.crv.as_deref()) {
            ("RSA", _) => (Family::Rsa, DecodingKey::from_rsa_components(&entry.n?, &entry.e?).ok()?),
            ("OKP", Some("Ed25519")) => {
                let x = entry.x.filter(|x| x.len() == ED_KEY_CHARS)?;
                (Family::Ed, DecodingKey::from_ed_components(&x).ok()?)
            }
            _ => return None,
        };
        Some(Published { kid: entry.kid, family, key })
    }
}
