//! Who may call: tokens, the keys that prove them, roles.
//!
//!     head, level of its route -> Guard: cached? else token -> key -> signature -> claims -> Identity, or Denied
//!     jwks thread -> KeySet -> every shard's guard, by mail
//!
//! Holds: nothing of a token counts before its signature is proved; only proved tokens are remembered, by their hash,
//! never beyond their expiry or a change of keys; no shard ever waits for a fetch of keys with its thread.
//! Knows no route: levels come with the request. Source: operations 2.1 to 2.6.

pub mod guard;
pub mod jwks;
pub mod keys;
#[cfg(test)]
pub(crate) mod tests;
pub mod token;

pub use guard::Guard;
pub use jwks::Jwks;

use std::sync::Arc;

/// What a proved token says about its bearer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub roles: Roles,
    /// `sub`, unless absent or empty: the `producerSub` of what is pushed.
    pub subject: Option<Arc<str>>,
}

/// The roles a token holds: a set, no ladder. Source: operations 2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    pub admin: bool,
    pub read_write: bool,
    pub read_only: bool,
    pub write_only: bool,
}

/// Why a request is not let in. Status and text: `http/refusals.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    NoToken,
    /// Not a decodable token, or one that asks for what this reader does not know.
    BadHeader,
    Algorithm,
    /// Also a payload that cannot be read.
    Signature,
    Expired,
    /// JWT_REQUIRE_EXP is on and there is no `exp`.
    NoExpiry,
    NotYetValid,
    FromTheFuture,
    Issuer,
    Audience,
    UnknownKey,
    /// Proved, but its roles do not reach the route's level.
    Role,
    // ---- the operator's keys
    NoSecret,
    BadRsaPem,
    BadEdPem,
}
