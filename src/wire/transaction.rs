//! `QTB1`, the body of a transaction with packed pushes: flags, a JSON head, packed wire groups. Source: binary forms 10.

use super::fields::Fields;
use super::{Refused, Result};

const MAGIC: [u8; 4] = *b"QTB1";
const COUNTS: u8 = 2;

/// A transaction body whose first fields are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open<'a> {
    /// Count the pushes and acks instead of listing them.
    pub counts: bool,
    /// The JSON of the transaction without its packed pushes; `{}` when it is empty on the wire.
    pub head: &'a [u8],
    /// For [`super::packed::walk`].
    pub groups: &'a [u8],
}

/// Reads up to the wire groups. That the head is JSON is its reader's business.
pub fn open(body: &[u8]) -> Result<Open<'_>> {
    let mut fields = Fields::of(body);
    if fields.bytes(MAGIC.len(), "magic")? != MAGIC {
        return Err(Refused::malformed("it does not begin with QTB1"));
    }
    let flags = fields.u8("flags")?;
    if flags & !COUNTS != 0 {
        return Err(Refused::malformed(format!("unknown flags {flags:#04x}")));
    }
    let len = fields.u32("head length")?;
    let head = fields.bytes(len as usize, "head")?;
    let head = if head.is_empty() { b"{}" } else { head };
    Ok(Open { counts: flags & COUNTS != 0, head, groups: fields.rest() })
}
