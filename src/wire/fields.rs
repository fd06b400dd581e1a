//! Integers, texts and runs of bytes, one after the other, never beyond the end. Source: binary forms 2.

use super::{Refused, Result};
use crate::http::json::has_control;

/// What of a body has not been read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(*self.array(what)?))
    }

    pub fn bytes(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(|| cut(what))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A u16 length and so many bytes of UTF-8 without control characters.
    #[inline]
    pub fn text(&mut self, what: &str) -> Result<&'a str> {
        let len = u16::from_le_bytes(*self.array(what)?) as usize;
        let bytes = self.bytes(len, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Refused::malformed(format!("the {what} is not UTF-8")))?;
        if has_control(text) { Err(Refused::Control) } else { Ok(text) }
    }

    /// Nothing may be left.
    pub fn end(&self, after: &str) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(Refused::malformed(format!("{n} bytes after {after}"))),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<&'a [u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| cut(what))?;
        self.rest = rest;
        Ok(array)
    }
}

#[cold]
fn cut(what: &str) -> Refused {
    Refused::malformed(format!("cut short in the {what}"))
}
