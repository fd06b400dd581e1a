//! The guard of one shard: lets requests in by their token, and remembers tokens that were proved.
//!
//! A proof costs 2 to 60 us, a remembered token its hash: a keep-alive producer pays the proof once.

use super::jwks::Wish;
use super::keys::Own;
use super::token;
use super::{Denied, Identity, Jwks};
use crate::config::auth::Jwt;
use crate::http::head::Head;
use crate::http::routes::Access;
use crate::limits::TOKENS_REMEMBERED_MAX;
use crate::rt;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Beyond the fetch's own deadline: for its thread to be scheduled.
const FETCH_GRACE: Duration = Duration::from_secs(2);

/// See the module. Lives on its shard's thread.
pub struct Guard {
    rules: Arc<Jwt>,
    own: Own,
    published: Option<Arc<Jwks>>,
    proved: RefCell<HashMap<[u8; 32], Proved>>,
    /// Version of the published keys that the proofs rest on.
    version: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

struct Proved {
    identity: Identity,
    /// The last second it holds; `None`: it has no expiry.
    until: Option<i64>,
}

impl Guard {
    pub fn new(rules: Arc<Jwt>, published: Option<Arc<Jwks>>) -> Guard {
        let own = Own::of(&rules);
        Guard { rules, own, published, proved: RefCell::default(), version: Cell::new(0), waiting: RefCell::default() }
    }

    /// Lets a request of this level in, or says why not. No identity where nobody is needed: a token is not looked at
    /// there. Source: operations 2.5.
    pub async fn admit(&self, head: &Head, access: Access) -> Result<Identity, Denied> {
        if access == Access::Public || self.skips(&head.path) {
            return Ok(Identity::default());
        }
        let header = head.authorization.as_deref().ok_or(Denied::NoToken)?;
        if head.authorization_repeated {
            return Err(Denied::BadHeader);
        }
        let identity = self.identity(token::of_header(header), unix_seconds).await?;
        if access.admits(identity.roles) { Ok(identity) } else { Err(Denied::Role) }
    }

    /// An entry matches exactly; one of two characters and more that ends in a slash is a prefix as well.
    fn skips(&self, path: &str) -> bool {
        let fits =
            |entry: &String| path == entry || (entry.len() > 1 && entry.ends_with('/') && path.starts_with(entry));
        self.rules.skip_paths.iter().any(fits)
    }

    async fn identity(&self, token: &str, now: impl Fn() -> i64) -> Result<Identity, Denied> {
        let hash = hash(token);
        if let Some(identity) = self.remembered(&hash, now()) {
            return Ok(identity);
        }
        let unproved = token::read(token, &self.rules)?;
        let mut proof = self.prove(&unproved);
        if proof == Err(Denied::UnknownKey) {
            self.fetched().await;
            // Also without a wait: a fetch may have ended meanwhile.
            proof = self.prove(&unproved);
        }
        proof?;
        let (identity, until) = token::judge(&unproved, &self.rules, now())?;
        self.remember(hash, Proved { identity: identity.clone(), until });
        Ok(identity)
    }

    fn prove(&self, unproved: &token::Unproved<'_>) -> Result<(), Denied> {
        let keys = self.published.as_ref().map(|published| published.keys()).unwrap_or_default();
        self.own.prove(unproved, &keys)
    }

    /// Waits for a fetch of newer keys, if there is to be one.
    async fn fetched(&self) {
        let Some(published) = &self.published else { return };
        let Wish::Underway(ended) = published.wish() else { return };
        let wait = std::future::poll_fn(|cx| {
            if published.ended() > ended {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        });
        // Its own deadline ends a fetch; this one is for a thread that is not there.
        let _ = rt::timeout(published.timeout() + FETCH_GRACE, wait).await;
    }

    /// A fetch has ended: those who wait look again.
    pub fn keys_changed(&self) {
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    // ---- memory

    fn remembered(&self, hash: &[u8; 32], now: i64) -> Option<Identity> {
        let mut proved = self.proved.borrow_mut();
        let version = self.published.as_ref().map_or(0, |published| published.version());
        if self.version.replace(version) != version {
            proved.clear();
        }
        let known = proved.get(hash)?;
        if known.until.is_some_and(|until| now > until) {
            proved.remove(hash);
            return None;
        }
        Some(known.identity.clone())
    }

    fn remember(&self, hash: [u8; 32], one: Proved) {
        let mut proved = self.proved.borrow_mut();
        if proved.len() >= TOKENS_REMEMBERED_MAX {
            proved.clear();
        }
        proved.insert(hash, one);
    }
}

fn hash(token: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}

fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests;
