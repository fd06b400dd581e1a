//! Frames that are held packed only, and inflated where somebody has to look into them.
//!
//! What a client packed is stored and sent as it came, so its frames are gone once they are checked: kept, they would be
//! three times the bytes, in memory that is cold by the time anybody asks. Who leaves messages out, merges, or reads an
//! id inflates them again. Source: binary forms 15.3, 15.5.

use bytes::Bytes;

/// Bytes of the frames: `frames` where they are at hand, else what `packed`, one zstd frame, says that it inflates to.
pub fn raw_len(frames: &Bytes, packed: Option<&Bytes>) -> usize {
    match packed {
        Some(packed) if frames.is_empty() => content(packed).unwrap_or(0),
        _ => frames.len(),
    }
}

/// The frames, inflated where they are not at hand; empty where `packed` is damaged, which whoever took it has ruled out.
pub fn raw(frames: &Bytes, packed: Option<&Bytes>) -> Bytes {
    match packed {
        Some(packed) if frames.is_empty() => content(packed).and_then(|len| inflate(packed, len)).unwrap_or_default(),
        _ => frames.clone(),
    }
}

/// What one zstd frame of a known size inflates to; `None` where it is another or damaged.
pub fn inflate(packed: &[u8], len: usize) -> Option<Bytes> {
    let frames = zstd::bulk::decompress(packed, len).ok()?;
    (frames.len() == len).then(|| frames.into())
}

fn content(packed: &[u8]) -> Option<usize> {
    zstd::zstd_safe::get_frame_content_size(packed).ok()?.and_then(|len| usize::try_from(len).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_same_at_hand_and_packed() {
        let frames = Bytes::from(b"frames of a draft ".repeat(300));
        let packed = Bytes::from(zstd::bulk::compress(&frames, 1).expect("compresses"));
        for held in [frames.clone(), Bytes::new()] {
            assert_eq!(raw_len(&held, Some(&packed)), frames.len());
            assert_eq!(raw(&held, Some(&packed)), frames);
        }
        assert_eq!((raw_len(&frames, None), raw(&frames, None)), (frames.len(), frames.clone()));
        assert_eq!((raw_len(&Bytes::new(), None), raw(&Bytes::new(), None)), (0, Bytes::new()));
        let cut = packed.slice(..packed.len() - 1);
        assert_eq!(raw(&Bytes::new(), Some(&cut)), Bytes::new(), "damaged: nothing, and no panic");
        assert_eq!(inflate(&packed, frames.len() - 1), None);
        assert_eq!(inflate(&packed, frames.len() + 1), None);
    }
}
