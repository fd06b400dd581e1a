//! One zstd frame, judged by its own bytes before anything is inflated (RFC 8878), then inflated into exactly its size.
//!
//! Readers of a stored record size their buffer from the frame's header and stop at its end, so what is taken here is one
//! whole frame and nothing beside it. Source: binary forms 6.2 (V9, V10), 16.

use bytes::Bytes;
use std::cell::RefCell;
use std::ops::Range;
use zstd::bulk::Decompressor;

/// First bytes of a frame.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest window a frame may ask for: RFC 8878 advises decoders to support it and encoders to stay below.
const WINDOW_MAX: u64 = 8 << 20;
/// Bytes one block inflates to at most.
const BLOCK_MAX: u64 = 128 << 10;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Inflated bytes, where the frame names them.
    pub content: Option<u64>,
    /// It cannot inflate to more than this, whatever it claims.
    pub most: u64,
}

/// Reads the header and walks the blocks. The error says what is wrong.
///
/// Cost: a few nanoseconds per block of up to 128 KiB.
pub fn header(z: &[u8]) -> Result<Header, &'static str> {
    let cut = "the zstd frame is cut short";
    let rest = z.strip_prefix(&MAGIC).ok_or("no zstd frame")?;
    let (&descriptor, mut rest) = rest.split_first().ok_or(cut)?;
    let single = descriptor & 0x20 != 0;
    if descriptor & 0x08 != 0 {
        return Err("a reserved bit of the zstd frame is set");
    }
    if descriptor & 0x03 != 0 {
        return Err("the zstd frame names a dictionary");
    }
    if !single {
        let (&window, after) = rest.split_first().ok_or(cut)?;
        let base = 1u64 << (10 + (window >> 3));
        if base + base / 8 * (window & 7) as u64 > WINDOW_MAX {
            return Err("the zstd window is larger than 8 MiB");
        }
        rest = after;
    }
    let width = match descriptor >> 6 {
        0 => single as usize,
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let (size, mut rest) = rest.split_at_checked(width).ok_or(cut)?;
    let content = (width > 0).then(|| {
        let named = size.iter().rev().fold(0u64, |n, &byte| n << 8 | byte as u64);
        if width == 2 { named + 256 } else { named }
    });
    let mut most = 0u64;
    loop {
        let (block, after) = rest.split_first_chunk::<3>().ok_or(cut)?;
        let block = u32::from_le_bytes([block[0], block[1], block[2], 0]);
        let (last, kind, size) = (block & 1 == 1, block >> 1 & 3, block >> 3);
        let (here, inflated) = match kind {
            0 => (size as usize, size as u64),
            1 => (1, size as u64),
            2 => (size as usize, BLOCK_MAX),
            _ => return Err("a reserved zstd block type"),
        };
        most += inflated.min(BLOCK_MAX);
        rest = after.get(here..).ok_or(cut)?;
        if last {
            break;
        }
    }
    if descriptor & 0x04 != 0 {
        rest = rest.get(4..).ok_or(cut)?;
    }
    if rest.is_empty() { Ok(Header { content, most }) } else { Err("bytes after the zstd frame") }
}

thread_local! {
    /// One context a thread (about 150 KB).
    static INFLATER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Inflates a frame of which [`header`] was judged, into a buffer of exactly `len` bytes. `None`: it is damaged, or is
/// longer or shorter.
pub fn inflate(z: &[u8], len: usize) -> Option<Vec<u8>> {
    inflate_into(z, len, Vec::with_capacity(len))
}

/// The same for bytes that are soon dropped: into memory that then goes back to the thread, so that the next frame is
/// inflated into lines that are still in a near cache.
pub fn inflate_briefly(z: &[u8], len: usize) -> Option<Bytes> {
    let inflated = inflate_into(z, len, Scratch::with_room(len))?;
    Some(Bytes::from_owner(Scratch(inflated)))
}

/// `out` is empty and has room for `len`.
fn inflate_into(z: &[u8], len: usize, mut out: Vec<u8>) -> Option<Vec<u8>> {
    INFLATER.with_borrow_mut(|inflater| {
        if inflater.is_none() {
            *inflater = Some(Decompressor::new().ok()?);
        }
        let inflated = inflater.as_mut()?.decompress_to_buffer(z, &mut out).ok()?;
        (inflated == len).then_some(out)
    })
}

/// Buffers that a thread keeps for frames to come: a request at a time inflates, mostly one frame.
const SCRATCH_BUFFERS: usize = 4;
/// Buffers above this are not kept, and those below that much are not worth it.
const SCRATCH_KEPT: Range<usize> = 4 << 10..1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer on loan from its thread.
struct Scratch(Vec<u8>);

impl Scratch {
    /// An empty buffer with room for `len` bytes: what an earlier frame needed, where that is worth it.
    fn with_room(len: usize) -> Vec<u8> {
        if !SCRATCH_KEPT.contains(&len) {
            return Vec::with_capacity(len);
        }
        let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
        buffer.reserve_exact(len);
        buffer
    }
}

impl AsRef<[u8]> for Scratch {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !SCRATCH_KEPT.contains(&self.0.capacity()) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        // A thread that ends has no pool any more.
        let _ = SCRATCH.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < SCRATCH_BUFFERS {
                pool.push(buffer);
            }
        });
    }
}
