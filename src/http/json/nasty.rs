//! Seeded makers of nasty JSON, for tests that compare two readers.

/// One generator state; xorshift64*.
pub struct Nasty(u64);

pub const SEEDS: [u64; 4] = [1, 0x5eed, 0xdead_beef, 20_261_129];

const LITERALS: &[&str] = &["null", "true", "false", "nul", "True", "NaN", "Infinity"];
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "1.0",
    "10",
    "0.5",
    "1e400",
    "1E+2",
    "1e-2",
    "-0.0e0",
    "9007199254740993",
    "18446744073709551616",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257827",
];
const NOT_NUMBERS: &[&str] = &["00", "01", "-", "+1", ".5", "1.", "1e", "1e+", "0x1", "1_0", "--1"];
const TEXTS: &[&str] = &[
    "",
    "a",
    "payload",
    "queue",
    "items",
    "plain text of some length, longer than two words",
    "\\\"",
    "\\\\",
    "\\/",
    "\\b\\f\\n\\r\\t",
    "\\u0041",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\udc00",
    "\\ud800\\u0041",
    "\\uD83D",
    "caf\\u00e9",
    "café",
    "😀",
    "\u{7f}",
    "\u{fffe}",
    "\u{2028}",
    "}",
    "]",
    "{\\\"payload\\\":1}",
    ",",
    ":",
];
const NOT_TEXTS: &[&str] = &["\\x", "\\u12", "\\u12g4", "\t", "\n", "\u{0}", "\\U0041"];
const SPACES: &[&str] = &["", "", "", " ", "\n", "\t", "\r\n", "  "];

impl Nasty {
    pub fn new(seed: u64) -> Nasty {
        Nasty(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() >> 33) as usize % n.max(1)
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    pub fn byte(&mut self) -> u8 {
        match self.below(4) {
            0 => self.draw() as u8,
            1 => b"\"\\{}[]:,/ut0"[self.below(12)],
            2 => 0x1f + self.below(3) as u8,
            _ => b'a' + self.below(26) as u8,
        }
    }

    pub fn space(&mut self, out: &mut Vec<u8>) {
        let space = self.pick(SPACES);
        out.extend_from_slice(space.as_bytes());
    }

    /// A JSON string of one to three pieces.
    pub fn text(&mut self, out: &mut Vec<u8>) {
        out.push(b'"');
        for _ in 0..=self.below(3) {
            let piece = self.pick(TEXTS);
            out.extend_from_slice(piece.as_bytes());
        }
        out.push(b'"');
    }

    /// A value with space around it, well formed almost always.
    pub fn value(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.space(&mut out);
        self.push_value(&mut out, 5);
        self.space(&mut out);
        out
    }

    pub fn push_value(&mut self, out: &mut Vec<u8>, levels: usize) {
        match self.below(if levels == 0 { 4 } else { 7 }) {
            0 => {
                let literal = if self.once_in(40) { self.pick(LITERALS) } else { self.pick(&LITERALS[..3]) };
                out.extend_from_slice(literal.as_bytes());
            }
            1 => {
                let number = if self.once_in(40) { self.pick(NOT_NUMBERS) } else { self.pick(NUMBERS) };
                out.extend_from_slice(number.as_bytes());
            }
            2 if self.once_in(40) => {
                let not = self.pick(NOT_TEXTS);
                out.extend_from_slice(format!("\"{not}\"").as_bytes());
            }
            2 | 3 => self.text(out),
            4 => self.push_members(out, b'[', b']', |nasty, out| nasty.push_value(out, levels - 1)),
            _ => self.push_members(out, b'{', b'}', |nasty, out| {
                nasty.text(out);
                nasty.space(out);
                out.push(b':');
                nasty.space(out);
                nasty.push_value(out, levels - 1);
            }),
        }
    }

    pub fn push_members(
        &mut self,
        out: &mut Vec<u8>,
        open: u8,
        close: u8,
        mut member: impl FnMut(&mut Nasty, &mut Vec<u8>),
    ) {
        out.push(open);
        self.space(out);
        for i in 0..self.below(5) {
            if i > 0 {
                out.push(b',');
            }
            self.space(out);
            member(self, out);
            self.space(out);
        }
        out.push(close);
    }

    /// Changes, removes, doubles or adds a few bytes, or cuts the rest off.
    pub fn damage(&mut self, body: &mut Vec<u8>) {
        let at = self.below(body.len());
        let byte = self.byte();
        match self.below(6) {
            _ if body.is_empty() => body.push(byte),
            0 => body[at] = byte,
            1 => drop(body.remove(at)),
            2 => body.insert(at, byte),
            3 => body.truncate(at),
            4 => body[at] ^= 1 << self.below(8),
            _ => {
                let end = (at + self.below(8)).min(body.len());
                let doubled = body[at..end].to_vec();
                body.splice(at..at, doubled);
            }
        }
    }
}
