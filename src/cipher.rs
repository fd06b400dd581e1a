//! Encryption at rest: a payload becomes an envelope before it is stored, and the same bytes again when it is read.
//!
//!     payload --seal--> {"encrypted":"..","iv":"..","authTag":".."} --open--> payload | None: handed out as it is
//!
//! Holds: AES-256-GCM without additional data; 16 random bytes are stored as the IV and the first 12 are the nonce, as
//! other brokers read it. What opens is decided by the shape of the payload and the tag alone. Source: operations 3.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::Deserialize;
use std::borrow::Cow;
use std::cell::RefCell;

const IV_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// Random bytes drawn at a time: one system call for so many IVs.
const POOL_IVS: usize = 128;
/// Length of an envelope beside the ciphertext's base64.
const ENVELOPE_OVERHEAD: usize = 85;

/// What the setting says. Source: operations 3.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Unset,
    /// Set and of no use; the text says why.
    Malformed(&'static str),
    Usable([u8; 32]),
}

impl Key {
    /// Reads `QUEEN_ENCRYPTION_KEY`: 64 hex digits of either case, nothing around them.
    pub fn of(text: &str) -> Key {
        if text.is_empty() {
            return Key::Unset;
        }
        if text.chars().count() != 64 {
            return Key::Malformed("QUEEN_ENCRYPTION_KEY must be 64 hex chars");
        }
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let Some(digits) = digits else { return Key::Malformed("QUEEN_ENCRYPTION_KEY is not valid hex") };
        let mut key = [0; 32];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Key::Usable(key)
    }
}

/// Why a payload was not encrypted. Nothing that a client sends can bring it about.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the cipher failed")]
pub struct CipherError;

/// A key in use, on one thread.
pub struct Cipher {
    key: LessSafeKey,
    pool: RefCell<Pool>,
}

/// Random bytes not yet used.
struct Pool {
    bytes: [u8; POOL_IVS * IV_BYTES],
    used: usize,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    encrypted: Cow<'a, str>,
    #[serde(borrow)]
    iv: Cow<'a, str>,
    #[serde(borrow, rename = "authTag")]
    auth_tag: Cow<'a, str>,
}

/// Bytes that the envelope of a payload of `payload` bytes takes.
pub fn envelope_len(payload: usize) -> usize {
    ENVELOPE_OVERHEAD + payload.div_ceil(3) * 4
}

impl Cipher {
    /// `None` without a usable key.
    pub fn of(key: Key) -> Option<Cipher> {
        let Key::Usable(bytes) = key else { return None };
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
        Some(Cipher { key, pool: RefCell::new(Pool { bytes: [0; POOL_IVS * IV_BYTES], used: POOL_IVS * IV_BYTES }) })
    }

    /// Replaces `out` by the envelope of a payload. About 1 us and 2 ns a byte.
    pub fn seal(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let iv = self.draw()?;
        self.seal_with(iv, payload, out)
    }

    fn seal_with(&self, iv: [u8; IV_BYTES], payload: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let mut text = payload.to_vec();
        let tag = self.key.seal_in_place_separate_tag(nonce(&iv), Aad::empty(), &mut text).map_err(|_| CipherError)?;
        out.clear();
        out.reserve(envelope_len(payload.len()));
        out.extend_from_slice(br#"{"encrypted":""#);
        push_base64(out, &text);
        out.extend_from_slice(br#"","iv":""#);
        push_base64(out, &iv);
        out.extend_from_slice(br#"","authTag":""#);
        push_base64(out, tag.as_ref());
        out.extend_from_slice(br#""}"#);
        Ok(())
    }

    /// The payload of an envelope. `None`: no envelope, or one that this key did not make: it is handed out as it is.
    pub fn open(&self, stored: &[u8]) -> Option<Vec<u8>> {
        // Most payloads are none, and end here.
        if !stored.starts_with(b"{") || memchr::memmem::find(stored, br#""authTag""#).is_none() {
            return None;
        }
        let envelope: Envelope = serde_json::from_slice(stored).ok()?;
        let mut text = STANDARD.decode(&*envelope.encrypted).ok()?;
        let iv: [u8; IV_BYTES] = STANDARD.decode(&*envelope.iv).ok()?.try_into().ok()?;
        let tag: [u8; TAG_BYTES] = STANDARD.decode(&*envelope.auth_tag).ok()?.try_into().ok()?;
        text.extend_from_slice(&tag);
        let payload = self.key.open_in_place(nonce(&iv), Aad::empty(), &mut text).ok()?.len();
        text.truncate(payload);
        Some(text)
    }

    /// A dead letter's payload as its destination wants it, with its flag. What cannot be opened goes on as it is.
    /// Source: operations 3.2, data plane 10.3.
    pub fn replayed(&self, stored: &[u8], flagged: bool, encrypts: bool) -> (Vec<u8>, bool) {
        let opened = self.open(stored);
        if flagged && opened.is_none() {
            return (stored.to_vec(), true);
        }
        let plain = opened.unwrap_or_else(|| stored.to_vec());
        let mut sealed = Vec::new();
        match encrypts && self.seal(&plain, &mut sealed).is_ok() {
            true => (sealed, true),
            false => (plain, false),
        }
    }

    fn draw(&self) -> Result<[u8; IV_BYTES], CipherError> {
        let mut pool = self.pool.borrow_mut();
        if pool.used == pool.bytes.len() {
            ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut pool.bytes)
                .map_err(|_| CipherError)?;
            pool.used = 0;
        }
        let at = pool.used;
        pool.used += IV_BYTES;
        pool.bytes[at..at + IV_BYTES].try_into().map_err(|_| CipherError)
    }
}

fn nonce(iv: &[u8; IV_BYTES]) -> Nonce {
    let mut first = [0; NONCE_BYTES];
    first.copy_from_slice(&iv[..NONCE_BYTES]);
    Nonce::assume_unique_for_key(first)
}

fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let at = out.len();
    out.resize(at + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[at..]);
    debug_assert_eq!(written.ok(), Some(out.len() - at));
}

/// A payload as it goes out: opened where a key is there and fits, otherwise as stored. Bytes that were an envelope and
/// are no JSON any more go out as a text, so that one damaged message does not take the rest of its answer with it.
pub fn delivered<'a>(cipher: Option<&Cipher>, payload: &'a [u8], flagged: bool) -> Cow<'a, [u8]> {
    if let Some(opened) = cipher.and_then(|cipher| cipher.open(payload)) {
        return Cow::Owned(opened);
    }
    if flagged && !is_json(payload) {
        let text = serde_json::to_vec(&String::from_utf8_lossy(payload)).unwrap_or_else(|_| b"null".to_vec());
        return Cow::Owned(text);
    }
    Cow::Borrowed(payload)
}

fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

#[cfg(test)]
mod tests;
