//! How a segment's frames are stored: raw when small or stubborn, else one zstd frame.

use bytes::Bytes;
use queen_shards::command::Codec;
use std::cell::RefCell;
use zstd::bulk::Compressor;

/// Frames shorter than this stay raw: zstd costs more there than the bytes it saves. Source: binary forms 15.3.
pub const RAW_BELOW: usize = 1024;

thread_local! {
    /// One context a thread (about 1 MB at level 1), with the level it was made for, and its output buffer.
    static PACKER: RefCell<Option<(i32, Compressor<'static>, Vec<u8>)>> = const { RefCell::new(None) };
}

/// The stored form of raw frames. About 9 ns a byte at level 1; one copy of the result.
///
/// Through the one-shot compressor, so that the content size is in the frame's header: readers size their buffer by it.
/// Raw again when zstd saves less than a tenth. Source: binary forms 15.3.
pub fn pack(frames: &Bytes, level: i32) -> (Codec, Bytes) {
    if frames.len() < RAW_BELOW {
        return (Codec::Raw, frames.clone());
    }
    PACKER.with_borrow_mut(|packer| {
        if packer.as_ref().is_none_or(|(made_for, ..)| *made_for != level) {
            *packer = Compressor::new(level).ok().map(|c| (level, c, Vec::new()));
        }
        let Some((_, compressor, buffer)) = packer else {
            return (Codec::Raw, frames.clone());
        };
        buffer.clear();
        buffer.reserve(zstd::zstd_safe::compress_bound(frames.len()));
        match compressor.compress_to_buffer(&frames[..], buffer) {
            Ok(len) if len <= frames.len() - frames.len() / 10 => (Codec::Zstd, Bytes::copy_from_slice(buffer)),
            _ => (Codec::Raw, frames.clone()),
        }
    })
}

/// The stored form of a segment: as it is where it came `packed`, or else of its raw frames.
pub(super) fn stored_form(packed: Option<&Bytes>, frames: &Bytes, level: i32) -> (Codec, Bytes) {
    match packed {
        Some(packed) => (Codec::Zstd, packed.clone()),
        None => pack(frames, level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_stubborn_frames_stay_raw() {
        let small = Bytes::from(vec![b'a'; RAW_BELOW - 1]);
        assert_eq!(pack(&small, 1), (Codec::Raw, small.clone()));
        let mut state = 88172645463325252u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .take(4096)
        .collect();
        let noise = Bytes::from(noise);
        assert_eq!(pack(&noise, 1), (Codec::Raw, noise.clone()));
    }

    #[test]
    fn a_packed_segment_names_its_content_size() {
        let frames = Bytes::from(b"{\"order\":1}".repeat(1000));
        let (codec, body) = pack(&frames, 1);
        assert_eq!(codec, Codec::Zstd);
        assert_eq!(zstd::zstd_safe::get_frame_content_size(&body).unwrap(), Some(frames.len() as u64));
        assert_eq!(zstd::bulk::decompress(&body, frames.len()).unwrap(), frames);
    }
}
