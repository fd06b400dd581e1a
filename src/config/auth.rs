//! Who may call: the settings of tokens. Source: operations 1.3, 2.1, 2.2.

use super::read::Reader;
use crate::auth::token::algorithm;
use jsonwebtoken::Algorithm;
use std::time::Duration;

const LEGAL: &str = "HS256, HS384, HS512, RS256, RS384, RS512, EdDSA or auto";

/// The rules tokens are judged by.
#[derive(Clone)]
pub struct Jwt {
    /// What a token's `alg` may say.
    pub algorithms: &'static [Algorithm],
    /// Raw bytes of the HS family's key.
    pub secret: String,
    /// PEM text.
    pub public_key: String,
    pub jwks_url: String,
    pub jwks_refresh: Duration,
    pub jwks_timeout: Duration,
    /// Empty: not checked. The same for the audience.
    pub issuer: String,
    pub audience: String,
    /// Seconds.
    pub clock_skew: i64,
    pub skip_paths: Vec<String>,
    pub roles_claim: String,
    pub roles_array_claim: String,
    pub role_admin: String,
    pub role_read_write: String,
    pub role_read_only: String,
    pub role_write_only: String,
    pub require_exp: bool,
}

impl Jwt {
    /// Whether a published key can ever decide about a token.
    pub fn wants_published(&self) -> bool {
        self.algorithms.iter().any(|one| !is_hs(*one))
    }
}

fn is_hs(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}

/// What a setting admits as a token's `alg`.
fn admitted(setting: &str) -> Option<&'static [Algorithm]> {
    use Algorithm::{EdDSA, HS256, HS384, HS512, RS256, RS384, RS512};
    Some(match setting {
        "auto" => &[HS256, HS384, HS512, RS256, RS384, RS512, EdDSA],
        "RS256" => &[RS256, RS384, RS512],
        other => match algorithm(other)? {
            HS256 => &[HS256],
            HS384 => &[HS384],
            HS512 => &[HS512],
            RS384 => &[RS384],
            RS512 => &[RS512],
            _ => &[EdDSA],
        },
    })
}

/// Reads the rows; `None` while JWT_ENABLED is off. What forbids a start goes to the reader's fatal list.
pub fn read(r: &mut Reader) -> Option<Jwt> {
    let enabled = r.bool("JWT_ENABLED");
    // Every row is read in any case, so that the boot print and the number rules see it.
    let setting = r.text("JWT_ALGORITHM");
    let secs = |n: i64| Duration::from_secs(n as u64);
    let jwt = Jwt {
        algorithms: admitted(&setting).unwrap_or_default(),
        secret: r.text("JWT_SECRET"),
        public_key: r.text("JWT_PUBLIC_KEY"),
        jwks_url: r.text("JWT_JWKS_URL"),
        jwks_refresh: secs(r.int("JWT_JWKS_REFRESH_INTERVAL")),
        jwks_timeout: Duration::from_millis(r.int("JWT_JWKS_TIMEOUT_MS") as u64),
        issuer: r.text("JWT_ISSUER"),
        audience: r.text("JWT_AUDIENCE"),
        clock_skew: r.int("JWT_CLOCK_SKEW"),
        skip_paths: skip_paths(&r.text("JWT_SKIP_PATHS")),
        roles_claim: r.text("JWT_ROLES_CLAIM"),
        roles_array_claim: r.text("JWT_ROLES_ARRAY_CLAIM"),
        role_admin: r.text("JWT_ROLE_ADMIN"),
        role_read_write: r.text("JWT_ROLE_READ_WRITE"),
        role_read_only: r.text("JWT_ROLE_READ_ONLY"),
        role_write_only: r.text("JWT_ROLE_WRITE_ONLY"),
        require_exp: r.bool("JWT_REQUIRE_EXP"),
    };
    r.holds("JWT_PUBLIC_KEY", super::read::masked(&jwt.public_key));
    if !enabled {
        return None;
    }
    if jwt.algorithms.is_empty() {
        r.fatal.push(format!("JWT_ALGORITHM=\"{setting}\" is not an algorithm (expected {LEGAL})"));
        return None;
    }
    let public = !jwt.public_key.is_empty() || !jwt.jwks_url.is_empty();
    let secret_counts = jwt.algorithms.iter().any(|one| is_hs(*one));
    if !public && (!secret_counts || jwt.secret.is_empty()) {
        let missing =
            if secret_counts { "JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL" } else { "JWT_PUBLIC_KEY or JWT_JWKS_URL" };
        r.fatal.push(format!("JWT_ENABLED is on, but no key is set: JWT_ALGORITHM={setting} needs {missing}"));
    }
    if jwt.wants_published() && jwt.jwks_url.starts_with("http://") {
        r.warn("auth", "JWT_JWKS_URL is not https: whoever is between can replace the keys");
    }
    if crate::auth::keys::Own::of(&jwt).has_broken_pem() {
        r.warn("auth", "JWT_PUBLIC_KEY is neither an RSA nor an Ed25519 public key: its tokens are answered with 500");
    }
    Some(jwt)
}

fn skip_paths(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|path| !path.is_empty()).map(str::to_owned).collect()
}
