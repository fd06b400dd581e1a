//! One pass over a JSON text that validates all of it and hands out slices of what matters.
//!
//!     body -> Scanner -> enter_object, next_key, text, value, ... -> end
//!
//! Holds: what a whole scan accepts is exactly what JSON's grammar (RFC 8259) accepts in UTF-8, nested at most
//! [`JSON_DEPTH_MAX`] deep; a value handed out is the sender's bytes, numbers and lone surrogate escapes included.
//! Never recurses (depth costs a bit), never allocates except to decode a text with escapes, never panics.
//! Does not interpret numbers.

use std::borrow::Cow;

/// Deepest nesting of arrays and objects that is read. Official readers stop at 127; ours and PostgreSQL's need no
/// more than this, and the bits that remember what is open stay in two cache lines. Source: reliability H4.
pub const JSON_DEPTH_MAX: usize = 1024;

/// Why a text is not JSON, or not of the form asked for, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    what: &'static str,
    at: usize,
}

impl JsonError {
    /// The message for people: what, line and column (in bytes, from 1).
    pub fn describe(&self, body: &[u8]) -> String {
        let before = &body[..self.at.min(body.len())];
        let line = 1 + memchr::memchr_iter(b'\n', before).count();
        let column = 1 + before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        format!("{} at line {line} column {column}", self.what)
    }
}

pub type Result<T> = std::result::Result<T, JsonError>;

/// What kind of value comes next, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    Text,
    Null,
    /// A number, a boolean, or no value at all.
    Other,
}

/// A JSON string as it was sent, without its quotes.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    pub raw: &'a str,
    /// Holds at least one backslash.
    pub escaped: bool,
    at: usize,
}

impl<'a> Text<'a> {
    /// The text it spells; borrowed unless it has escapes. A lone surrogate escape spells no text.
    pub fn decode(&self) -> Result<Cow<'a, str>> {
        if !self.escaped {
            return Ok(Cow::Borrowed(self.raw));
        }
        let refused = JsonError { what: "lone surrogate in a text", at: self.at };
        unescape(self.raw, |_| None).map(Cow::Owned).ok_or(refused)
    }

    /// Like [`Text::decode`], with U+FFFD for each lone surrogate.
    pub fn decode_lossy(&self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        Cow::Owned(unescape(self.raw, |_| Some('\u{fffd}')).unwrap_or_default())
    }

    /// Whether it spells `name`, however it is written.
    pub fn is(&self, name: &str) -> bool {
        if self.escaped { self.decode().is_ok_and(|text| text == name) } else { self.raw == name }
    }
}

/// Decodes a raw text that the scanner accepted; `lone` says what stands for a lone surrogate, `None` gives up.
fn unescape(raw: &str, lone: impl Fn(u16) -> Option<char>) -> Option<String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        out.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = hex_unit(rest)?;
                rest = &rest[4..];
                let low = || hex_unit(rest.strip_prefix("\\u")?).filter(|low| (0xdc00..0xe000).contains(low));
                match unit {
                    0xd800..0xdc00 => match low() {
                        Some(low) => {
                            rest = &rest[6..];
                            let code = 0x10000 + ((unit as u32 - 0xd800) << 10) + (low as u32 - 0xdc00);
                            char::from_u32(code)?
                        }
                        None => lone(unit)?,
                    },
                    0xdc00..0xe000 => lone(unit)?,
                    _ => char::from_u32(unit as u32)?,
                }
            }
            quote_backslash_or_slash => quote_backslash_or_slash as char,
        });
    }
    out.push_str(rest);
    Some(out)
}

fn hex_unit(text: &str) -> Option<u16> {
    let digits = text.as_bytes().first_chunk::<4>()?;
    digits.iter().try_fold(0u16, |unit, digit| Some(unit << 4 | (*digit as char).to_digit(16)? as u16))
}

/// Position of the first byte from `at` on that ends a plain run of a JSON string: a quote, a backslash, a control
/// character; the length when there is none. Sixteen bytes at a time.
#[inline]
pub fn next_special(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        let found = specials(chunk);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 16;
    }
    while let Some(byte) = bytes.get(at) {
        if matches!(byte, b'"' | b'\\' | ..0x20) {
            break;
        }
        at += 1;
    }
    at
}

/// Bit `i` is set where byte `i` ends a plain run.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn specials(chunk: &[u8; 16]) -> u32 {
    use std::arch::x86_64::*;
    // SAFETY: SSE2 is part of x86-64, and the load reads exactly the sixteen bytes of `chunk`, aligned or not.
    unsafe {
        let bytes = _mm_loadu_si128(chunk.as_ptr().cast());
        let quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
        let backslashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
        let controls = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, backslashes), controls)) as u32
    }
}

/// Bit `i` is set where byte `i` ends a plain run.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn specials(chunk: &[u8; 16]) -> u32 {
    let bit = |(i, byte): (usize, &u8)| u32::from(matches!(byte, b'"' | b'\\' | ..0x20)) << i;
    chunk.iter().enumerate().map(bit).sum()
}

/// See the module.
#[derive(Debug)]
pub struct Scanner<'a> {
    body: &'a str,
    at: usize,
    /// Arrays and objects open now.
    depth: usize,
    /// Bit `d`: the one at depth `d` is an object.
    nest: [u64; JSON_DEPTH_MAX / 64],
    /// An array or object was entered and nothing of it has been read.
    fresh: bool,
}

impl<'a> Scanner<'a> {
    /// Refuses a body that is not UTF-8.
    pub fn new(body: &'a [u8]) -> Result<Scanner<'a>> {
        let body = std::str::from_utf8(body)
            .map_err(|e| JsonError { what: "invalid unicode code point", at: e.valid_up_to() })?;
        Ok(Scanner { body, at: 0, depth: 0, nest: [0; JSON_DEPTH_MAX / 64], fresh: false })
    }

    /// An error at the present position: for what the grammar allows and the caller does not.
    pub fn error(&self, what: &'static str) -> JsonError {
        JsonError { what, at: self.at }
    }

    /// Kind of the next value.
    pub fn kind(&mut self) -> Kind {
        match self.peek() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::Text,
            b'n' => Kind::Null,
            _ => Kind::Other,
        }
    }

    /// Enters the object that comes next; `what` words the refusal of anything else.
    pub fn enter_object(&mut self, what: &'static str) -> Result<()> {
        self.enter(b'{', what)
    }

    /// Enters the array that comes next; `what` words the refusal of anything else.
    pub fn enter_array(&mut self, what: &'static str) -> Result<()> {
        self.enter(b'[', what)
    }

    /// The next key of the object entered last, its colon passed; `None` once the object is closed. Between two
    /// calls its value must have been read.
    pub fn next_key(&mut self) -> Result<Option<Text<'a>>> {
        if !self.next_member(b'}', "expected `,` or `}`")? {
            return Ok(None);
        }
        self.key().map(Some)
    }

    /// Whether the array entered last has another element, which must be read before the next call; `false` once
    /// the array is closed.
    pub fn next_element(&mut self) -> Result<bool> {
        self.next_member(b']', "expected `,` or `]`")
    }

    /// The string that comes next; `what` words the refusal of anything else.
    pub fn text(&mut self, what: &'static str) -> Result<Text<'a>> {
        if self.peek() != b'"' {
            return Err(self.refuse_value(what));
        }
        self.string()
    }

    /// The string that comes next, `None` for `null`; `what` words the refusal of anything else.
    pub fn text_or_null(&mut self, what: &'static str) -> Result<Option<Text<'a>>> {
        if self.peek() == b'n' {
            self.literal("null")?;
            return Ok(None);
        }
        self.text(what).map(Some)
    }

    /// Whether `null` comes next; if so it is passed.
    pub fn null(&mut self) -> Result<bool> {
        if self.peek() != b'n' {
            return Ok(false);
        }
        self.literal("null").map(|()| true)
    }

    /// The value that comes next, of any kind, verbatim and without the space around it.
    pub fn value(&mut self) -> Result<&'a str> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(&self.body[start..self.at])
    }

    /// Validates and passes the value that comes next.
    pub fn skip(&mut self) -> Result<()> {
        let floor = self.depth;
        loop {
            let opened = match self.peek() {
                b'"' => {
                    self.string()?;
                    false
                }
                open @ (b'{' | b'[') => {
                    self.open(open)?;
                    true
                }
                b'-' | b'0'..=b'9' => {
                    self.number()?;
                    false
                }
                b't' => self.literal("true").map(|()| false)?,
                b'f' => self.literal("false").map(|()| false)?,
                b'n' => self.literal("null").map(|()| false)?,
                _ => return Err(self.expected("expected value")),
            };
            self.fresh = opened;
            // A value is complete, or a container has just been opened: on to the next value, closing what ends.
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                if self.in_object() {
                    if self.next_member(b'}', "expected `,` or `}`")? {
                        self.key()?;
                        break;
                    }
                } else if self.next_member(b']', "expected `,` or `]`")? {
                    break;
                }
            }
        }
    }

    /// Accepts the end of the text and nothing else.
    pub fn end(&mut self) -> Result<()> {
        self.peek();
        if self.at < self.body.len() { Err(self.error("trailing characters")) } else { Ok(()) }
    }

    /// Passes space; the next byte, 0 at the end (which is no byte of JSON either).
    #[inline]
    fn peek(&mut self) -> u8 {
        let bytes = self.body.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return *byte,
                None => return 0,
            }
        }
    }

    fn expected(&self, what: &'static str) -> JsonError {
        if self.at == self.body.len() { self.error("unexpected end of JSON") } else { self.error(what) }
    }

    /// Refuses the next value for its kind; if it is no JSON at all, for that.
    fn refuse_value(&mut self, what: &'static str) -> JsonError {
        let here = self.error(what);
        match self.skip() {
            Ok(()) => here,
            Err(not_json) => not_json,
        }
    }

    fn enter(&mut self, open: u8, what: &'static str) -> Result<()> {
        if self.peek() != open {
            return Err(self.refuse_value(what));
        }
        self.open(open)?;
        self.fresh = true;
        Ok(())
    }

    #[inline]
    fn open(&mut self, open: u8) -> Result<()> {
        if self.depth == JSON_DEPTH_MAX {
            return Err(self.error("nested too deep (1024 levels at most)"));
        }
        let (word, bit) = (self.depth / 64, 1u64 << (self.depth % 64));
        if open == b'{' {
            self.nest[word] |= bit;
        } else {
            self.nest[word] &= !bit;
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    #[inline]
    fn in_object(&self) -> bool {
        let inner = self.depth - 1;
        self.nest[inner / 64] >> (inner % 64) & 1 == 1
    }

    /// Passes the comma before a further member, or closes; whether there is one.
    #[inline]
    fn next_member(&mut self, close: u8, what: &'static str) -> Result<bool> {
        let byte = self.peek();
        let fresh = std::mem::take(&mut self.fresh);
        if byte == close {
            self.at += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if fresh {
            return Ok(true);
        }
        if byte != b',' {
            return Err(self.expected(what));
        }
        self.at += 1;
        if self.peek() == close {
            return Err(self.error("trailing comma"));
        }
        Ok(true)
    }

    #[inline]
    fn key(&mut self) -> Result<Text<'a>> {
        if self.peek() != b'"' {
            return Err(self.expected("key must be a string"));
        }
        let key = self.string()?;
        if self.peek() != b':' {
            return Err(self.expected("expected `:`"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Passes the string whose opening quote is the next byte.
    #[inline]
    fn string(&mut self) -> Result<Text<'a>> {
        let bytes = self.body.as_bytes();
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            at = next_special(bytes, at);
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    at += match bytes.get(at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') if hex_digits(bytes, at + 2) => 6,
                        _ => return Err(JsonError { what: "invalid escape", at }),
                    };
                }
                Some(_) => return Err(JsonError { what: "control character in a string", at }),
                None => return Err(JsonError { what: "unexpected end of JSON", at }),
            }
        }
        self.at = at + 1;
        Ok(Text { raw: &self.body[start..at], escaped, at: start - 1 })
    }

    fn number(&mut self) -> Result<()> {
        let bytes = self.body.as_bytes();
        let digits = |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let refused = |at: usize| JsonError { what: "invalid number", at };
        let mut at = self.at + (bytes[self.at] == b'-') as usize;
        let integer = at;
        at = digits(at);
        if at == integer || (bytes[integer] == b'0' && at > integer + 1) {
            return Err(refused(at));
        }
        if bytes.get(at) == Some(&b'.') {
            let fraction = at + 1;
            at = digits(fraction);
            if at == fraction {
                return Err(refused(at));
            }
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            let exponent = at + 1 + matches!(bytes.get(at + 1), Some(b'+' | b'-')) as usize;
            at = digits(exponent);
            if at == exponent {
                return Err(refused(at));
            }
        }
        self.at = at;
        Ok(())
    }

    fn literal(&mut self, word: &'static str) -> Result<()> {
        if !self.body.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.expected("expected value"));
        }
        self.at += word.len();
        Ok(())
    }
}

/// The text of one document of JSON, the space around it included; refuses anything else.
pub fn document(bytes: &[u8]) -> Result<&str> {
    let mut scan = Scanner::new(bytes)?;
    scan.skip()?;
    scan.end()?;
    Ok(scan.body)
}

pub(super) fn hex_digits(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 4).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests;
