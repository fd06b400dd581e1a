//! Chunked bodies, decoded strictly (RFC 9112 7.1), in pieces of any size.
//!
//!     bytes as they come -> ChunkDecoder -> the body's bytes, and how many of the input belonged to it
//!
//! Holds: every line ends in CRLF; sizes are plain hex without overflow; extensions and trailers are bounded and
//! ignored; the body never grows above the limit. Does not read sockets.

use super::refusals::Refusal;
use crate::limits::{CHUNK_EXTENSION_BYTES_MAX, TRAILER_BYTES_MAX};

/// Hex digits of a chunk size: 2^60 bytes is far above any limit, and 15 digits cannot overflow.
const SIZE_DIGITS_MAX: u8 = 15;

/// Where the decoder stands between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size {
        digits: u8,
    },
    /// Between a size and its `;`, where blanks are allowed, or inside the extension.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct ChunkDecoder {
    at: At,
    /// Of the size being read, then what is left of the chunk.
    size: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    body_max: usize,
}

impl ChunkDecoder {
    /// A body of at most `body_max` bytes.
    pub fn new(body_max: usize) -> ChunkDecoder {
        ChunkDecoder { at: At::Size { digits: 0 }, size: 0, extension_bytes: 0, trailer_bytes: 0, body_max }
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    /// Decodes what `input` has of the body behind `body`; returns how many bytes of `input` belonged to it: all of
    /// them, unless the body is done.
    pub fn feed(&mut self, input: &[u8], body: &mut Vec<u8>) -> Result<usize, Refusal> {
        let mut taken = 0;
        while taken < input.len() && self.at != At::Done {
            if self.at == At::Data {
                let piece = (input.len() - taken).min(usize::try_from(self.size).unwrap_or(usize::MAX));
                body.extend_from_slice(&input[taken..taken + piece]);
                taken += piece;
                self.size -= piece as u64;
                if self.size == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            self.at = self.step(input[taken], body.len())?;
            taken += 1;
        }
        Ok(taken)
    }

    /// One byte outside of data.
    fn step(&mut self, byte: u8, body_len: usize) -> Result<At, Refusal> {
        Ok(match (self.at, byte) {
            (At::Size { digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == SIZE_DIGITS_MAX {
                    return Err(Refusal::BadRequest("chunk size"));
                }
                self.size = self.size * 16 + (byte as char).to_digit(16).unwrap_or(0) as u64;
                At::Size { digits: digits + 1 }
            }
            (At::Size { digits: 1.. }, b'\r') => At::SizeLf,
            (At::Size { digits: 1.. } | At::Blank, b';') => At::Extension,
            (At::Size { digits: 1.. } | At::Blank, b' ' | b'\t') => self.extension(At::Blank)?,
            (At::Size { .. } | At::Blank, _) => return Err(Refusal::BadRequest("chunk size")),

            (At::Extension, b'\r') => At::SizeLf,
            (At::Extension, b'\t' | 0x20..=0x7e | 0x80..) => self.extension(At::Extension)?,
            (At::Extension, _) => return Err(Refusal::BadRequest("chunk extension")),

            (At::SizeLf, b'\n') if self.size == 0 => At::TrailerStart,
            (At::SizeLf, b'\n') => {
                if self.size > self.body_max.saturating_sub(body_len) as u64 {
                    return Err(Refusal::BodyTooLarge);
                }
                At::Data
            }
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0 },
            (At::SizeLf | At::DataCr | At::DataLf, _) => return Err(Refusal::BadRequest("chunk without CRLF")),

            (At::TrailerStart, b'\r') => At::EndLf,
            (At::TrailerStart | At::TrailerName, _) if is_token(byte) => self.trailer(At::TrailerName)?,
            (At::TrailerName, b':') => self.trailer(At::TrailerValue)?,
            (At::TrailerValue, b'\r') => At::TrailerLf,
            (At::TrailerValue, b'\t' | 0x20..=0x7e | 0x80..) => self.trailer(At::TrailerValue)?,
            (At::TrailerLf, b'\n') => At::TrailerStart,
            (At::EndLf, b'\n') => At::Done,
            (At::TrailerStart | At::TrailerName | At::TrailerValue | At::TrailerLf | At::EndLf, _) => {
                return Err(Refusal::BadRequest("trailer"));
            }
            (At::Data | At::Done, _) => unreachable!("not a byte of a line"),
        })
    }

    fn extension(&mut self, next: At) -> Result<At, Refusal> {
        self.extension_bytes += 1;
        match self.extension_bytes {
            ..=CHUNK_EXTENSION_BYTES_MAX => Ok(next),
            _ => Err(Refusal::BadRequest("chunk extensions too long")),
        }
    }

    fn trailer(&mut self, next: At) -> Result<At, Refusal> {
        self.trailer_bytes += 1;
        match self.trailer_bytes {
            ..=TRAILER_BYTES_MAX => Ok(next),
            _ => Err(Refusal::HeadTooLarge),
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY_MAX: usize = 64;

    /// Decodes `input` in pieces that end at each of `cuts`: body, then what is left over.
    fn decode(input: &[u8], cuts: &[usize]) -> Result<Option<(Vec<u8>, Vec<u8>)>, Refusal> {
        let mut decoder = ChunkDecoder::new(BODY_MAX);
        let mut body = Vec::new();
        let mut from = 0;
        for &to in cuts.iter().chain([&input.len()]) {
            from += decoder.feed(&input[from..to], &mut body)?;
            if decoder.is_done() {
                return Ok(Some((body, input[from..].to_vec())));
            }
        }
        Ok(None)
    }

    /// Decodes whole, at every single cut, and byte by byte; all must agree.
    fn check(input: &str, want: Result<Option<(&str, &str)>, Refusal>) {
        let want = want.map(|done| done.map(|(body, rest)| (body.as_bytes().to_vec(), rest.as_bytes().to_vec())));
        let bytes = input.as_bytes();
        assert_eq!(decode(bytes, &[]), want, "{input:?}");
        for cut in 0..bytes.len() {
            assert_eq!(decode(bytes, &[cut]), want, "{input:?} cut at {cut}");
        }
        let all: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(decode(bytes, &all), want, "{input:?} byte by byte");
    }

    #[test]
    fn whole_bodies_leave_the_next_request_alone() {
        check("0\r\n\r\nGET /", Ok(Some(("", "GET /"))));
        check("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nnext", Ok(Some(("abcde", "next"))));
        check("00000003\r\nabc\r\n000\r\n\r\n", Ok(Some(("abc", ""))));
        check("A\r\n0123456789\r\na;x=\"y z\"\r\n0123456789\r\n0\r\n\r\n", Ok(Some(("01234567890123456789", ""))));
        check("1 ;a\r\nx\r\n0 \t; b = c\r\nTrailer: one\r\nX-Y:\r\n\r\n", Ok(Some(("x", ""))));
        check("2\r\n\r\n\r\n0\r\n\r\n", Ok(Some(("\r\n", ""))));
        check("5\r\nab", Ok(None));
        check("3\r\nabc\r\n0\r\nA: b\r\n", Ok(None));
    }

    #[test]
    fn what_another_reader_could_take_otherwise_is_refused() {
        let bad = |why| Err(Refusal::BadRequest(why));
        for input in [
            "\r\n",
            ";a\r\n",
            " 3\r\nabc",
            "+3\r\nabc",
            "-3\r\nabc",
            "0x3\r\nabc",
            "3g\r\nabc",
            "3\nabc\n0\n\n",
            "g\r\n",
            "3 \r\nabc",
            "3 3\r\nabc",
            "3\t\r\nabc",
            "1000000000000000\r\n",
            "fffffffffffffffff\r\n",
            "0000000000000003\r\n",
            "3\u{0}\r\nabc",
            "3,3\r\nabc",
            "3.0\r\nabc",
            "3_0\r\n",
            "\n3\r\nabc",
            "3;a\u{0}",
            "3;a\nabc",
        ] {
            let refused = decode(input.as_bytes(), &[]);
            assert!(matches!(refused, Err(Refusal::BadRequest(_))), "{input:?} {refused:?}");
        }
        for input in ["3\r\nabcd", "3\r\nabc\n0\r\n\r\n", "3\r\nabc0\r\n\r\n", "3\rabc", "3\r\nabc\r\r\n"] {
            check(input, bad("chunk without CRLF"));
        }
        for input in [
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n: b\r\n\r\n",
            "0\r\nA b\r\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "0\r\nA : b\r\n\r\n",
            "0\r\nA: b\r\n folded\r\n\r\n",
            "0\r\nA: \u{0}\r\n\r\n",
            "0\r\nA\r\n\r\n",
            "0\r\n\rx",
        ] {
            check(input, bad("trailer"));
        }
    }

    #[test]
    fn bodies_extensions_and_trailers_are_bounded() {
        let forty = "28\r\n0123456789012345678901234567890123456789\r\n";
        check(&format!("{forty}18\r\n"), Ok(None));
        check(&format!("{forty}19\r\n"), Err(Refusal::BodyTooLarge));
        check("ffffffffffffff\r\n", Err(Refusal::BodyTooLarge));
        let long = |n: usize| "x".repeat(n);
        let extended = |n| decode(format!("1;{}\r\nx\r\n1;{}\r\n", long(9), long(n)).as_bytes(), &[]);
        assert_eq!(extended(CHUNK_EXTENSION_BYTES_MAX - 9), Ok(None));
        assert_eq!(extended(CHUNK_EXTENSION_BYTES_MAX - 8), Err(Refusal::BadRequest("chunk extensions too long")));
        let trailed = |n| decode(format!("0\r\nA:{}\r\n\r\n", long(n)).as_bytes(), &[]);
        assert_eq!(trailed(TRAILER_BYTES_MAX - 2), Ok(Some((vec![], vec![]))));
        assert_eq!(trailed(TRAILER_BYTES_MAX - 1), Err(Refusal::HeadTooLarge));
    }
}
