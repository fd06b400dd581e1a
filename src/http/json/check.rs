//! Documents that lie side by side in one buffer, checked one after the other: yes, or ask the scanner.
//!
//! A push that a client packed has a hundred payloads of which nothing is read, so all that is wanted of each is whether
//! it is JSON. The bytes are looked at in blocks of 64, each once, whatever lies in it; where a text ends is then a
//! matter of counting zeros, not of a loop whose length nobody can predict.
//!
//! Holds: what is accepted here the [scanner](super::scan) accepts as well, given that it is UTF-8; what is not (deep
//! nesting, anything wrong) the scanner judges, and words. Never recurses, never allocates, never panics.

use super::scan::{hex_digits, specials};
use std::ops::Range;

/// Deepest nesting that is accepted here: one bit each in one word. Documents in use have a handful.
const DEPTH_MAX: u32 = 64;
const BLOCK: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Checker<'a> {
    bytes: &'a [u8],
    /// The block that `found` is of; none at first.
    block: usize,
    /// Bit `i`: byte `i` of the block ends a plain run of a text (see [`super::next_special`]).
    found: u64,
}

impl<'a> Checker<'a> {
    pub fn new(bytes: &'a [u8]) -> Checker<'a> {
        Checker { bytes, block: usize::MAX, found: 0 }
    }

    /// Whether no byte of the range is a quote, a backslash or a control character.
    pub fn is_plain(&mut self, range: Range<usize>) -> bool {
        range.end <= self.next_special(range.start)
    }

    /// Whether the bytes at `range` are one document, the space around it included. `false` only says that the scanner
    /// has to be asked. About 0.4 ns a byte.
    #[inline]
    pub fn accepts(&mut self, range: Range<usize>) -> bool {
        range.end <= self.bytes.len() && self.document(range.start, range.end).is_some()
    }

    fn document(&mut self, start: usize, end: usize) -> Option<()> {
        let bytes = &self.bytes[..end];
        // Bit `d`: what is open at depth `d` is an object.
        let (mut depth, mut objects) = (0u32, 0u64);
        let (mut at, mut byte) = next(bytes, start);
        loop {
            // A value comes.
            at = match byte {
                b'"' => self.text(bytes, at)?,
                b'{' => {
                    (at, byte) = next(bytes, at + 1);
                    if byte != b'}' {
                        objects = opened(objects, depth, true)?;
                        depth += 1;
                        (at, byte) = self.key(bytes, at, byte)?;
                        continue;
                    }
                    at + 1
                }
                b'[' => {
                    (at, byte) = next(bytes, at + 1);
                    if byte != b']' {
                        objects = opened(objects, depth, false)?;
                        depth += 1;
                        continue;
                    }
                    at + 1
                }
                b'-' | b'0'..=b'9' => number(bytes, at)?,
                b't' => literal(bytes, at, b"true")?,
                b'f' => literal(bytes, at, b"false")?,
                b'n' => literal(bytes, at, b"null")?,
                _ => return None,
            };
            // A value has ended: close what ends with it, on to the next one.
            loop {
                (at, byte) = next(bytes, at);
                if depth == 0 {
                    return (at == end).then_some(());
                }
                let in_object = objects >> (depth - 1) & 1 == 1;
                match (byte, in_object) {
                    (b',', true) => {
                        (at, byte) = next(bytes, at + 1);
                        (at, byte) = self.key(bytes, at, byte)?;
                        break;
                    }
                    (b',', false) => {
                        (at, byte) = next(bytes, at + 1);
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        at += 1;
                        depth -= 1;
                    }
                    _ => return None,
                }
            }
        }
    }

    /// Passes the key that begins with `byte` at `at`, and its colon; what comes next.
    #[inline(always)]
    fn key(&mut self, bytes: &[u8], at: usize, byte: u8) -> Option<(usize, u8)> {
        if byte != b'"' {
            return None;
        }
        let at = self.text(bytes, at)?;
        let (at, byte) = next(bytes, at);
        (byte == b':').then(|| next(bytes, at + 1))
    }

    /// One past the text whose opening quote is at `at`.
    #[inline(always)]
    fn text(&mut self, bytes: &[u8], at: usize) -> Option<usize> {
        let mut at = at + 1;
        loop {
            at = self.next_special(at);
            match *bytes.get(at)? {
                b'"' => return Some(at + 1),
                b'\\' => {
                    at += match *bytes.get(at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                        b'u' if hex_digits(bytes, at + 2) => 6,
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
    }

    /// [`super::next_special`] over all of the buffer.
    #[inline(always)]
    fn next_special(&mut self, at: usize) -> usize {
        if at / BLOCK != self.block {
            self.look(at / BLOCK);
        }
        let mut left = self.found >> (at % BLOCK);
        let mut from = at;
        while left == 0 {
            from = (self.block + 1) * BLOCK;
            if self.bytes.len() <= from {
                return self.bytes.len();
            }
            self.look(self.block + 1);
            left = self.found;
        }
        from + left.trailing_zeros() as usize
    }

    /// Looks at a block. What lies behind the end is plain.
    #[inline(never)]
    fn look(&mut self, block: usize) {
        self.block = block;
        let rest = self.bytes.get(block * BLOCK..).unwrap_or_default();
        self.found = match rest.first_chunk::<BLOCK>() {
            Some(chunk) => specials_of(chunk),
            None => {
                let mut padded = [b' '; BLOCK];
                padded[..rest.len()].copy_from_slice(rest);
                specials_of(&padded)
            }
        };
    }
}

#[inline]
fn specials_of(block: &[u8; BLOCK]) -> u64 {
    let (chunks, _) = block.as_chunks::<16>();
    chunks.iter().enumerate().fold(0, |found, (i, chunk)| found | u64::from(specials(chunk)) << (16 * i))
}

/// `objects` with what is opened at `depth`; `None` where that is too deep.
#[inline]
fn opened(objects: u64, depth: u32, object: bool) -> Option<u64> {
    let bit = (depth < DEPTH_MAX).then(|| 1u64 << depth)?;
    Some(if object { objects | bit } else { objects & !bit })
}

/// Passes space: the next byte and where it is, 0 at the end (which is no byte of JSON either).
#[inline(always)]
fn next(bytes: &[u8], mut at: usize) -> (usize, u8) {
    loop {
        match bytes.get(at) {
            Some(&byte) if b' ' < byte => return (at, byte),
            Some(b' ' | b'\n' | b'\r' | b'\t') => at += 1,
            Some(&byte) => return (at, byte),
            None => return (at, 0),
        }
    }
}

#[inline]
fn literal(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    bytes.get(at..at + word.len()).is_some_and(|found| found == word).then_some(at + word.len())
}

#[inline]
fn digits(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    (from < at).then_some(at)
}

#[inline]
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let integer = at + usize::from(bytes[at] == b'-');
    let mut at = digits(bytes, integer)?;
    if bytes[integer] == b'0' && integer + 1 < at {
        return None;
    }
    if bytes.get(at) == Some(&b'.') {
        at = digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at = digits(bytes, at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-'))))?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::json::document;
    use crate::http::json::nasty::{Nasty, SEEDS};

    /// Documents side by side behind some bytes that are none.
    fn buffer(nasty: &mut Nasty, documents: &[Vec<u8>]) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for document in documents {
            (0..nasty.below(70)).for_each(|_| bytes.push(nasty.byte()));
            ranges.push(bytes.len()..bytes.len() + document.len());
            bytes.extend_from_slice(document);
        }
        (bytes, ranges)
    }

    /// What lies around a document says nothing about it, and the scanner is the judge of what is accepted.
    #[test]
    fn it_accepts_what_the_scanner_accepts() {
        let mut accepted = 0;
        for seed in SEEDS {
            let mut nasty = Nasty::new(seed);
            for _ in 0..4000 {
                let documents: Vec<Vec<u8>> = (0..1 + nasty.below(4))
                    .map(|_| {
                        let mut value = nasty.value();
                        (0..nasty.below(3)).for_each(|_| nasty.damage(&mut value));
                        value
                    })
                    .collect();
                let (bytes, ranges) = buffer(&mut nasty, &documents);
                let mut checker = Checker::new(&bytes);
                for (document_bytes, range) in documents.iter().zip(ranges) {
                    // Only UTF-8 is ever asked about.
                    if std::str::from_utf8(document_bytes).is_err() {
                        continue;
                    }
                    let good = document(document_bytes).is_ok();
                    let text = String::from_utf8_lossy(document_bytes);
                    assert_eq!(checker.accepts(range.clone()), good, "{text:?} at {range:?}, seed {seed}");
                    accepted += usize::from(good);
                }
            }
        }
        assert!(accepted > 10_000, "{accepted} good documents");
    }

    #[test]
    fn what_is_nested_deeper_is_left_to_the_scanner() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth)).into_bytes();
            let (most, more) = (nested(64), nested(65));
            assert!(Checker::new(&most).accepts(0..most.len()));
            assert!(!Checker::new(&more).accepts(0..more.len()));
            assert!(document(&more).is_ok());
        }
    }

    #[test]
    fn a_range_is_plain_up_to_its_end() {
        for len in [0, 1, 63, 64, 65, 200] {
            for special in [b'"', b'\\', 0, 0x1f] {
                let mut bytes = vec![b'a'; len + 1];
                bytes[len] = special;
                assert!(Checker::new(&bytes).is_plain(0..len));
                assert!(!Checker::new(&bytes).is_plain(0..len + 1));
                assert!(Checker::new(&bytes[..len]).is_plain(0..len));
            }
        }
    }
}
