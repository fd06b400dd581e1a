//! Laws of the readers of hostile bytes, as functions: any input, a panic where a law does not hold. Fuzzers call them
//! (`fuzz/`), and a test replays what they found worth keeping.

use super::body::ChunkDecoder;
use super::head::{self, HeadScan};
use super::{ack, push, transaction};
use crate::auth::keys::{KeySet, Own};
use crate::auth::token;
use crate::config::auth::Jwt;
use serde_json::value::RawValue;
use std::time::Duration;

/// Body limit of [`chunks`].
const CHUNKS_MAX: usize = 4096;

/// A head is found and read the same however it arrives, and its body has one length.
pub fn http_head(data: &[u8]) {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let whole = scan(bytes, bytes.len().max(1));
    let pieces = scan(bytes, cut as usize % 7 + 1);
    match (&whole, &pieces) {
        // Which limit is met first may depend on the pieces; that one is met may not.
        (Err(_), Err(_)) => {}
        (whole, pieces) => assert_eq!(whole, pieces),
    }
    if let Ok(Some(end)) = whole
        && let Ok(head) = head::parse(&bytes[..end])
    {
        assert!(!head.segments.is_empty() && head.path.starts_with(['/', '*']));
    }
}

fn scan(bytes: &[u8], step: usize) -> Result<Option<usize>, String> {
    let mut scan = HeadScan::default();
    let mut to = 0;
    while to < bytes.len() {
        to = (to + step).min(bytes.len());
        if let Some(end) = scan.feed(&bytes[..to]).map_err(|refusal| format!("{refusal:?}"))? {
            return Ok(Some(end));
        }
    }
    Ok(None)
}

/// A chunked body is the same however it arrives, never longer than the limit, and ends in one place.
pub fn http_chunks(data: &[u8]) {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let (whole, pieces) = (decode(bytes, bytes.len().max(1)), decode(bytes, cut as usize % 7 + 1));
    match (&whole, &pieces) {
        (None, None) => {}
        (whole, pieces) => assert_eq!(whole, pieces),
    }
}

/// The body and where it ended; `None`: refused, or not at its end.
fn decode(bytes: &[u8], step: usize) -> Option<(Vec<u8>, usize)> {
    let (mut decoder, mut body) = (ChunkDecoder::new(CHUNKS_MAX), Vec::new());
    let (mut taken, mut to) = (0, 0);
    while to < bytes.len() {
        to = (to + step).min(bytes.len());
        taken += decoder.feed(&bytes[taken..to], &mut body).ok()?;
        assert!(taken <= to && body.len() <= CHUNKS_MAX);
        if decoder.is_done() {
            return Some((body, taken));
        }
    }
    None
}

/// What the bodies of pushes, acks and transactions keep of the sender's bytes is JSON.
pub fn json_bodies(data: &[u8]) {
    if let Ok(parsed) = push::parse::parse(data) {
        for item in &parsed.items {
            assert!(serde_json::from_str::<&RawValue>(item.payload).is_ok());
            assert!((item.lane as usize) < parsed.lanes.len());
        }
        assert!(std::str::from_utf8(data).is_ok());
    }
    let _ = ack::parse::parse(data, ack::Form::Single);
    let _ = ack::parse::parse(data, ack::Form::Batch);
    let _ = transaction::parse::parse(data);
}

/// No text is a proved token of a secret that it was not made with.
pub fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rules = rules();
    let Ok(unproved) = token::read(token::of_header(text), &rules) else { return };
    assert!(Own::of(&rules).prove(&unproved, &KeySet::default()).is_err());
    let _ = token::judge(&unproved, &rules, 1_800_000_000);
    let _ = KeySet::parse(data);
}

fn rules() -> Jwt {
    use jsonwebtoken::Algorithm::{EdDSA, HS256, HS384, HS512, RS256, RS384, RS512};
    Jwt {
        algorithms: &[HS256, HS384, HS512, RS256, RS384, RS512, EdDSA],
        secret: "of the fuzzer".into(),
        public_key: String::new(),
        jwks_url: "https://x".into(),
        jwks_refresh: Duration::from_secs(1),
        jwks_timeout: Duration::from_secs(1),
        issuer: String::new(),
        audience: String::new(),
        clock_skew: 30,
        skip_paths: Vec::new(),
        roles_claim: "role".into(),
        roles_array_claim: "roles".into(),
        role_admin: "admin".into(),
        role_read_write: "read-write".into(),
        role_read_only: "read-only".into(),
        role_write_only: "write-only".into(),
        require_exp: false,
    }
}

#[cfg(test)]
mod tests;
