//! Frames of drafts rewritten before they are stored: without their duplicates, or several drafts as one segment.
//!
//! Sizes and the place of flags only; what is in a frame is not looked at. Source: binary forms 11.

use bytes::{BufMut, Bytes, BytesMut};

/// Frames of one segment with their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub frames: Bytes,
    /// 16 bytes a message.
    pub keys: Bytes,
    pub count: u32,
    /// OR of the frames' flags.
    pub flags: u8,
}

/// What is left of a draft when the messages at `dropped` (ascending positions) are duplicates.
///
/// `None`: the bytes are not as many frames as there are keys. Copies once; cost is linear in the bytes.
pub fn without(frames: &Bytes, keys: &Bytes, dropped: &[u32]) -> Option<Part> {
    let mut left = Part { flags: 0, count: 0, ..Part::default() };
    let mut frames_left = BytesMut::with_capacity(frames.len());
    let mut keys_left = BytesMut::with_capacity(keys.len().saturating_sub(16 * dropped.len()));
    let mut dropped = dropped.iter().copied().peekable();
    let mut rest = &frames[..];
    for (i, key) in keys.chunks_exact(16).enumerate() {
        let (frame, after) = split_frame(rest)?;
        rest = after;
        if dropped.next_if_eq(&(i as u32)).is_some() {
            continue;
        }
        left.flags |= frame[4];
        left.count += 1;
        frames_left.put_slice(frame);
        keys_left.put_slice(key);
    }
    if !rest.is_empty() || !keys.len().is_multiple_of(16) {
        return None;
    }
    left.frames = frames_left.freeze();
    left.keys = keys_left.freeze();
    Some(left)
}

/// Several small drafts of one lane as one segment, in order.
pub fn merge(parts: &[Part]) -> Part {
    if let [one] = parts {
        return one.clone();
    }
    let sum = |len: fn(&Part) -> usize| parts.iter().map(len).sum();
    let mut frames = BytesMut::with_capacity(sum(|p| p.frames.len()));
    let mut keys = BytesMut::with_capacity(sum(|p| p.keys.len()));
    for part in parts {
        frames.put_slice(&part.frames);
        keys.put_slice(&part.keys);
    }
    Part {
        frames: frames.freeze(),
        keys: keys.freeze(),
        count: parts.iter().map(|p| p.count).sum(),
        flags: parts.iter().fold(0, |flags, p| flags | p.flags),
    }
}

/// The first frame, its length included, and what follows. `None` when it is cut short.
fn split_frame(frames: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_le_bytes(*frames.first_chunk::<4>()?) as usize;
    let (frame, rest) = frames.split_at_checked(len.checked_add(4)?)?;
    (4 < frame.len()).then_some((frame, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = ((1 + payload.len()) as u32).to_le_bytes().to_vec();
        out.push(flags);
        out.extend_from_slice(payload);
        out
    }

    fn packed(messages: &[(u8, Vec<u8>)]) -> Part {
        let frames: Vec<u8> = messages.iter().flat_map(|(flags, payload)| frame(*flags, payload)).collect();
        let keys: Vec<u8> = messages.iter().flat_map(|(_, p)| (p.len() as u128).to_le_bytes()).collect();
        Part {
            frames: frames.into(),
            keys: keys.into(),
            count: messages.len() as u32,
            flags: messages.iter().fold(0, |all, (flags, _)| all | flags),
        }
    }

    fn message() -> impl Strategy<Value = (u8, Vec<u8>)> {
        (prop::sample::select(vec![0u8, 1, 2, 4]), prop::collection::vec(any::<u8>(), 0..40))
    }

    proptest! {
        /// Leaving messages out of a draft is packing the others.
        #[test]
        fn without_is_packing_the_survivors(messages in prop::collection::vec((message(), any::<bool>()), 0..20)) {
            let all: Vec<_> = messages.iter().map(|(m, _)| m.clone()).collect();
            let kept: Vec<_> = messages.iter().filter(|(_, drop)| !drop).map(|(m, _)| m.clone()).collect();
            let dropped: Vec<u32> = (0..).zip(&messages).filter(|(_, (_, drop))| *drop).map(|(i, _)| i).collect();
            let all = packed(&all);
            prop_assert_eq!(without(&all.frames, &all.keys, &dropped), Some(packed(&kept)));
        }

        /// Merging drafts is packing all their messages in order.
        #[test]
        fn merge_is_packing_all(drafts in prop::collection::vec(prop::collection::vec(message(), 1..6), 1..6)) {
            let parts: Vec<_> = drafts.iter().map(|d| packed(d)).collect();
            prop_assert_eq!(merge(&parts), packed(&drafts.concat()));
        }

        /// Bytes that are not as many frames as keys are noticed, not trusted.
        #[test]
        fn damaged_frames_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), keys in 0usize..4) {
            let _ = without(&bytes.clone().into(), &vec![0; 16 * keys].into(), &[]);
            let two = packed(&[(0, vec![1]), (0, vec![2, 2])]);
            for cut in 0..two.frames.len() {
                prop_assert_eq!(without(&two.frames.slice(..cut), &two.keys, &[0]), None);
            }
            prop_assert_eq!(without(&two.frames, &two.keys.slice(..16), &[]), None);
        }
    }
}
