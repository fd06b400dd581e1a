//! The stored frame: one message as it lies in a segment, in a framed pop and in what a client packed.
//!
//!     body_len u32 | flags u8 | message id 16 | [trace id 16] | transaction id text | [producer text] | payload
//!
//! Integers are little-endian, ids in the order in which they are printed, a text is a u16 length and that many
//! bytes of UTF-8. Frames lie back to back; nothing is between, before or after them.
//!
//! Holds: [`Frames`] yields what [`FrameWriter`] wrote, and never reads outside its input or panics, whatever the
//! bytes are. Knows nothing of compression, nor whether a payload is JSON. Source: binary forms 2 and 11.

use crate::ids::MessageId;
use bytes::Bytes;
use std::ops::Range;

/// Flag: a trace id follows the message id.
pub const FLAG_TRACE: u8 = 1;
/// Flag: a producer follows the transaction id.
pub const FLAG_PRODUCER: u8 = 2;
/// Flag: the payload is an encryption envelope.
pub const FLAG_ENCRYPTED: u8 = 4;

/// Longest `text` in bytes: its length is a u16.
pub const TEXT_MAX: usize = u16::MAX as usize;
/// Bytes of the length field, which `body_len` does not count.
const LEN_BYTES: usize = 4;
/// Smallest `body_len`: flags, message id, an empty transaction id, an empty payload.
const BODY_LEN_MIN: usize = 1 + 16 + 2;
/// Bytes of a frame beside its transaction id, its payload and what flags add.
pub const FRAME_OVERHEAD: usize = LEN_BYTES + BODY_LEN_MIN;

/// What a frame says beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameHead<'a> {
    pub id: MessageId,
    pub trace: Option<u128>,
    /// At most [`TEXT_MAX`] bytes.
    pub transaction_id: &'a str,
    /// At most [`TEXT_MAX`] bytes.
    pub producer: Option<&'a str>,
    pub encrypted: bool,
}

impl FrameHead<'_> {
    fn flags(&self) -> u8 {
        let trace = if self.trace.is_some() { FLAG_TRACE } else { 0 };
        let producer = if self.producer.is_some() { FLAG_PRODUCER } else { 0 };
        let encrypted = if self.encrypted { FLAG_ENCRYPTED } else { 0 };
        trace | producer | encrypted
    }

    /// Bytes that a frame with this head and a payload of `payload` bytes takes, its length field included.
    pub fn frame_len(&self, payload: usize) -> usize {
        let trace = if self.trace.is_some() { 16 } else { 0 };
        let producer = self.producer.map_or(0, |text| 2 + text.len());
        FRAME_OVERHEAD + trace + self.transaction_id.len() + producer + payload
    }
}

/// Builds the frames of one segment.
#[derive(Debug, Default)]
pub struct FrameWriter {
    frames: Vec<u8>,
    count: u32,
    flags: u8,
}

impl FrameWriter {
    /// `bytes`: of all frames to come, so that nothing moves.
    pub fn with_capacity(bytes: usize) -> FrameWriter {
        FrameWriter { frames: Vec::with_capacity(bytes), count: 0, flags: 0 }
    }

    /// Appends one message. Its texts are within [`TEXT_MAX`]: whoever took them from a client has checked that.
    pub fn push(&mut self, head: &FrameHead<'_>, payload: &[u8]) {
        let body_len = head.frame_len(payload.len()) - LEN_BYTES;
        let body_len = u32::try_from(body_len).expect("a frame is smaller than a request body");
        let flags = head.flags();
        let out = &mut self.frames;
        out.extend_from_slice(&body_len.to_le_bytes());
        out.push(flags);
        out.extend_from_slice(&head.id.0.to_be_bytes());
        if let Some(trace) = head.trace {
            out.extend_from_slice(&trace.to_be_bytes());
        }
        push_text(out, head.transaction_id);
        if let Some(producer) = head.producer {
            push_text(out, producer);
        }
        out.extend_from_slice(payload);
        self.count += 1;
        self.flags |= flags;
    }

    /// Appends a whole frame as it is.
    pub fn push_frame(&mut self, frame: &[u8]) {
        debug_assert!(FRAME_OVERHEAD <= frame.len(), "a frame that was read before");
        self.frames.extend_from_slice(frame);
        self.count += 1;
        self.flags |= frame.get(LEN_BYTES).copied().unwrap_or(0);
    }

    /// Number of frames so far.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// OR of the frames' flags.
    pub fn flags(&self) -> u8 {
        self.flags
    }
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.frames.len()
    }
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
    pub fn as_slice(&self) -> &[u8] {
        &self.frames
    }
    pub fn into_bytes(self) -> Bytes {
        self.frames.into()
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("a text of a frame was checked before");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Why bytes are not frames; positions are bytes from the start of all frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frames end within the length of the frame at {at}")]
    CutLength { at: usize },
    #[error("the frame at {at} is longer than what is left")]
    CutBody { at: usize },
    #[error("the frame at {at} is too short for its fields")]
    TooShort { at: usize },
    #[error("a text of the frame at {at} is not UTF-8")]
    NotUtf8 { at: usize },
    #[error("there are fewer than {wanted} frames")]
    TooFew { wanted: u32 },
}

/// One message, borrowed from the frames it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// As stored; bits above the three known ones mean nothing.
    pub flags: u8,
    pub id: MessageId,
    pub trace: Option<u128>,
    pub transaction_id: &'a str,
    pub producer: Option<&'a str>,
    /// Empty in old data only, and then to be read as `null`.
    pub payload: &'a [u8],
    /// Where the frame lies, its length field included.
    pub range: Range<usize>,
}

impl Frame<'_> {
    /// The payload is an encryption envelope.
    pub fn encrypted(&self) -> bool {
        self.flags & FLAG_ENCRYPTED != 0
    }
}

/// Walks frames that lie back to back. Strict: the first fault ends the walk with an error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    raw: &'a [u8],
    at: usize,
}

impl<'a> Frames<'a> {
    pub fn new(raw: &'a [u8]) -> Frames<'a> {
        Frames { raw, at: 0 }
    }

    /// Steps over the next frame by its length alone; `None` after the last one. About a nanosecond.
    pub fn hop(&mut self) -> Option<Result<Range<usize>, FrameError>> {
        let at = self.at;
        if at == self.raw.len() {
            return None;
        }
        let hopped = self.range_at(at);
        self.at = hopped.as_ref().map_or(self.raw.len(), |range| range.end);
        Some(hopped)
    }

    /// Where the frames lie, by their lengths alone; ends at a damaged one.
    pub fn ranges(mut self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        std::iter::from_fn(move || self.hop()?.ok())
    }

    fn range_at(&self, at: usize) -> Result<Range<usize>, FrameError> {
        let rest = &self.raw[at..];
        let len = rest.first_chunk::<LEN_BYTES>().ok_or(FrameError::CutLength { at })?;
        let body_len = u32::from_le_bytes(*len) as usize;
        if rest.len() - LEN_BYTES < body_len {
            return Err(FrameError::CutBody { at });
        }
        if body_len < BODY_LEN_MIN {
            return Err(FrameError::TooShort { at });
        }
        Ok(at..at + LEN_BYTES + body_len)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = self.hop()?.and_then(|range| read(self.raw, range));
        if frame.is_err() {
            self.at = self.raw.len();
        }
        Some(frame)
    }
}

/// Reads the frame that lies at `range`, as [`Frames::hop`] found it.
pub fn read(raw: &[u8], range: Range<usize>) -> Result<Frame<'_>, FrameError> {
    let at = range.start;
    let mut fields = Fields { rest: &raw[range.start + LEN_BYTES..range.end], at };
    let flags = fields.array::<1>()?[0];
    let id = MessageId(u128::from_be_bytes(*fields.array()?));
    let trace = if flags & FLAG_TRACE != 0 { Some(u128::from_be_bytes(*fields.array()?)) } else { None };
    let transaction_id = fields.text()?;
    let producer = if flags & FLAG_PRODUCER != 0 { Some(fields.text()?) } else { None };
    Ok(Frame { flags, id, trace, transaction_id, producer, payload: fields.rest, range })
}

/// Where the `count` frames from the `first` one (from 0) lie.
pub fn slice(raw: &[u8], first: u32, count: u32) -> Result<Range<usize>, FrameError> {
    let mut frames = Frames::new(raw);
    let wanted = first.saturating_add(count);
    for _ in 0..first {
        frames.hop().ok_or(FrameError::TooFew { wanted })??;
    }
    let start = frames.at;
    for _ in 0..count {
        frames.hop().ok_or(FrameError::TooFew { wanted })??;
    }
    Ok(start..frames.at)
}

/// Number of frames, by their lengths alone.
pub fn count(raw: &[u8]) -> Result<u32, FrameError> {
    let mut frames = Frames::new(raw);
    let mut n = 0;
    while let Some(range) = frames.hop() {
        range?;
        n += 1;
    }
    Ok(n)
}

/// What is left of one frame's body.
struct Fields<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], FrameError> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(FrameError::TooShort { at: self.at })?;
        self.rest = rest;
        Ok(array)
    }

    fn text(&mut self) -> Result<&'a str, FrameError> {
        let len = u16::from_le_bytes(*self.array()?) as usize;
        let (text, rest) = self.rest.split_at_checked(len).ok_or(FrameError::TooShort { at: self.at })?;
        self.rest = rest;
        std::str::from_utf8(text).map_err(|_| FrameError::NotUtf8 { at: self.at })
    }
}

#[cfg(test)]
mod tests;
