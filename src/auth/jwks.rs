//! Published keys: one thread fetches them, every shard hears of it by mail.
//!
//!     boot, refresh interval, or a shard that met an unknown key id -> fetch -> set replaced -> mail to all shards
//!
//! Holds: one fetch at a time; those that shards ask for start 5 s apart at least, however many bad tokens come; no
//! connection but the one to JWT_JWKS_URL: no redirects, no proxy. Source: operations 2.2.

use super::keys::KeySet;
use crate::config::auth::Jwt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Between the starts of two fetches that tokens ask for. Source: operations 2.2.
const ASK_PAUSE: Duration = Duration::from_secs(5);
/// Bytes of a published set. Source: operations 2.2.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// What the thread and the shards share.
pub struct Jwks {
    url: String,
    refresh: Duration,
    timeout: Duration,
    keys: Mutex<Arc<KeySet>>,
    /// Counts replaced sets: what was proved with an older one is proved again.
    version: AtomicU64,
    /// Fetches that ended, well or not.
    ended: AtomicU64,
    state: Mutex<State>,
    asked: Condvar,
}

struct State {
    /// When the last fetch began.
    began: Option<Instant>,
    running: bool,
    asked: bool,
}

/// What becomes of a shard's wish for newer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The last fetch is too young: what is known is all there is.
    TooSoon,
    /// Wait until more fetches than this have ended.
    Underway(u64),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Jwks {
    /// `None`: these settings never need published keys. Source: operations 2.2.
    pub fn of(rules: &Jwt) -> Option<Jwks> {
        (rules.wants_published() && !rules.jwks_url.is_empty()).then(|| Jwks {
            url: rules.jwks_url.clone(),
            refresh: rules.jwks_refresh,
            timeout: rules.jwks_timeout,
            keys: Mutex::default(),
            version: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            state: Mutex::new(State { began: None, running: true, asked: false }),
            asked: Condvar::new(),
        })
    }

    pub fn keys(&self) -> Arc<KeySet> {
        lock(&self.keys).clone()
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A shard met an id it does not know. Cheap; never waits.
    pub fn wish(&self) -> Wish {
        let mut state = lock(&self.state);
        if !state.running && !state.asked {
            if state.began.is_some_and(|began| began.elapsed() < ASK_PAUSE) {
                return Wish::TooSoon;
            }
            state.asked = true;
            self.asked.notify_one();
        }
        Wish::Underway(self.ended())
    }

    /// The thread: fetches now, then whenever it is asked to or the interval has passed. `tell` is called after each.
    pub fn serve(&self, tell: impl Fn()) {
        let mut known = false;
        loop {
            lock(&self.state).began = Some(Instant::now());
            match self.fetch() {
                Ok(keys) => {
                    if !std::mem::replace(&mut known, true) {
                        crate::info!("auth", "published keys read", url = self.url, keys = keys.len());
                    }
                    *lock(&self.keys) = Arc::new(keys);
                    self.version.fetch_add(1, Ordering::AcqRel);
                }
                Err(why) => {
                    known = false;
                    crate::warning!("auth", "published keys cannot be read", url = self.url, error = why);
                }
            }
            lock(&self.state).running = false;
            self.ended.fetch_add(1, Ordering::AcqRel);
            tell();
            let (mut state, _) = self
                .asked
                .wait_timeout_while(lock(&self.state), self.refresh, |state| !state.asked)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            (state.asked, state.running) = (false, true);
        }
    }

    fn fetch(&self) -> Result<KeySet, String> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .max_redirects(0)
            .max_redirects_will_error(true)
            .proxy(None)
            .user_agent("queen")
            .build();
        let mut answer = ureq::Agent::new_with_config(config).get(&self.url).call().map_err(|e| e.to_string())?;
        if answer.status() != 200 {
            return Err(format!("status {}", answer.status().as_u16()));
        }
        let body =
            answer.body_mut().with_config().limit(DOCUMENT_BYTES_MAX).read_to_vec().map_err(|e| e.to_string())?;
        KeySet::parse(&body).map_err(|e| e.to_string())
    }
}
