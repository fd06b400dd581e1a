//! `QPB1`, the body of a push: flags, and what stands behind them, inflated. Source: binary forms 4.

use super::fields::Fields;
use super::{Refused, Result, zstd_frame};
use bytes::Bytes;

const MAGIC: [u8; 4] = *b"QPB1";
const ZSTD: u8 = 1;
const COUNTS: u8 = 2;
const TXN: u8 = 4;
const PACKED: u8 = 8;

/// A push body whose first fields are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Answer with counts only.
    pub counts: bool,
    /// Every plain item carries its transaction id.
    pub ids: bool,
    /// The wire groups are packed: see [`super::packed`]; otherwise [`super::plain`].
    pub packed: bool,
    /// Bytes that [`Open::rest`] inflates to; 0 when nothing is to be inflated.
    pub raw_len: u64,
    /// Whether `body` is one zstd frame.
    zstd: bool,
    body: Bytes,
}

/// Reads magic and flags, and judges the size that is claimed against `limit`. Inflates nothing.
pub fn open(body: &Bytes, limit: u64) -> Result<Open> {
    let mut fields = Fields::of(body);
    if fields.bytes(MAGIC.len(), "magic")? != MAGIC {
        return Err(Refused::malformed("it does not begin with QPB1"));
    }
    let flags = fields.u8("flags")?;
    if flags & !(ZSTD | COUNTS | TXN | PACKED) != 0 {
        return Err(Refused::malformed(format!("unknown flags {flags:#04x}")));
    }
    let zstd = flags & ZSTD != 0;
    let raw_len = if zstd { fields.u32("raw length")? as u64 } else { 0 };
    if limit < raw_len {
        return Err(Refused::TooLarge { limit });
    }
    if zstd {
        let header = zstd_frame::header(fields.rest()).map_err(Refused::malformed)?;
        if header.content.is_some_and(|content| content != raw_len) || header.most < raw_len {
            return Err(Refused::malformed("the raw length is not what the zstd frame inflates to"));
        }
    }
    let body = body.slice(body.len() - fields.left()..);
    let (counts, ids, packed) = (flags & COUNTS != 0, flags & TXN != 0, flags & PACKED != 0);
    Ok(Open { counts, ids, packed, raw_len, zstd, body })
}

impl Open {
    /// What stands behind the flags, inflated where it must be.
    pub fn rest(&self) -> Result<Bytes> {
        if !self.zstd {
            return Ok(self.body.clone());
        }
        let inflated = zstd_frame::inflate(&self.body, self.raw_len as usize);
        let refused = || Refused::malformed("the zstd frame is damaged, or inflates to another length");
        inflated.map(Bytes::from).ok_or_else(refused)
    }
}
