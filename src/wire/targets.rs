//! What fuzzing runs: each target takes any bytes, and panics if a law of the room does not hold for them.
//!
//! The cargo-fuzz targets under `fuzz/` and the replay of the corpus in the test suite call these, nothing else does.

use super::{Refused, packed, plain, push, transaction, zstd_frame};
use bytes::Bytes;
use queen_shards::frames::{FrameHead, FrameWriter, Frames};

/// Inflated bytes that a target allows: small, so that a claim over it is met often.
pub const LIMIT: u64 = 1 << 20;

/// A push body, all forms.
pub fn push_body(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    let Some(open) = judged(push::open(&body, LIMIT)) else { return };
    assert!(open.raw_len <= LIMIT);
    let Some(rest) = judged(open.rest()) else { return };
    assert!(open.raw_len == 0 || rest.len() as u64 == open.raw_len);
    if open.packed {
        return packed_groups(&rest, open.raw_len);
    }
    let Some((groups, items)) = judged(plain::items(&rest, open.ids)) else { return };
    assert_eq!(groups.iter().map(|group| group.items as usize).sum::<usize>(), items.len());
    for item in &items {
        assert_json(item.payload);
        assert!(item.transaction_id.is_none_or(|id| !id.is_empty()));
    }
    assert_eq!(rest, plain_again(&groups, &items, open.ids), "what was read, written again");
}

/// A transaction body up to its wire groups, and these.
pub fn transaction_body(data: &[u8]) {
    let Some(open) = judged(transaction::open(data)) else { return };
    packed_groups(open.groups, 0);
}

fn packed_groups(bytes: &[u8], spent: u64) {
    let Some(groups) = judged(packed::walk(bytes, spent, LIMIT)) else { return };
    assert!(spent + groups.iter().map(|group| group.raw_len).sum::<u64>() <= LIMIT);
    for (g, group) in groups.iter().enumerate() {
        let Some(frames) = judged(group.inflate(g)) else { return };
        assert_eq!(frames.len() as u64, group.raw_len);
        let mut writer = FrameWriter::default();
        let read = packed::messages(&frames, group.n, 0, |message| {
            assert_json(message.payload);
            let head = FrameHead { id: message.id, transaction_id: message.transaction_id, ..FrameHead::default() };
            writer.push(&head, message.payload.as_bytes());
            assert!(writer.as_slice().ends_with(message.frame));
        });
        if judged(read).is_some() {
            assert_eq!((writer.count(), writer.flags()), (group.n, 0));
            assert_eq!(writer.as_slice(), frames, "what was read, written again");
        }
    }
}

/// A zstd frame: what passes inflates as its header says, and alone.
pub fn zstd(data: &[u8]) {
    let Ok(header) = zstd_frame::header(data) else { return };
    let len = header.content.unwrap_or(header.most).min(LIMIT);
    if let Some(inflated) = zstd_frame::inflate(data, len as usize) {
        assert_eq!(inflated.len() as u64, len);
        assert!(len <= header.most, "the bound from the blocks holds");
        assert_eq!(zstd::zstd_safe::find_frame_compressed_size(data), Ok(data.len()), "one frame and nothing else");
    }
}

/// Stored frames.
pub fn frames(data: &[u8]) {
    let mut writer = FrameWriter::default();
    for frame in Frames::new(data) {
        let Ok(frame) = frame else { return };
        let before = writer.len();
        let (trace, producer) = (frame.trace, frame.producer);
        let (id, transaction_id, encrypted) = (frame.id, frame.transaction_id, frame.encrypted());
        writer.push(&FrameHead { id, trace, transaction_id, producer, encrypted }, frame.payload);
        if frame.flags < 8 {
            assert_eq!(&writer.as_slice()[before..], &data[frame.range], "what was read, written again");
        }
    }
    assert_eq!(queen_shards::frames::count(data).ok(), Some(writer.count()));
}

/// `None` for a refusal, which says something.
fn judged<T>(result: Result<T, Refused>) -> Option<T> {
    match result {
        Ok(read) => Some(read),
        Err(Refused::Malformed(what)) => {
            assert!(!what.is_empty());
            None
        }
        Err(Refused::Control) => None,
        Err(Refused::TooLarge { limit }) => {
            assert_eq!(limit, LIMIT);
            None
        }
    }
}

/// By another parser, which knows fewer documents: it recurses, and numbers must be within a double.
fn assert_json(text: &str) {
    if let Err(error) = serde_json::from_str::<&serde_json::value::RawValue>(text) {
        let text = error.to_string();
        assert!(text.contains("recursion limit"), "serde_json: {text}");
    }
}

fn plain_again(groups: &[plain::Group<'_>], items: &[plain::Item<'_>], ids: bool) -> Vec<u8> {
    let mut out = (groups.len() as u32).to_le_bytes().to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    let mut rest = items.iter();
    for group in groups {
        text(&mut out, group.queue);
        text(&mut out, group.partition);
        out.extend_from_slice(&group.items.to_le_bytes());
        for item in rest.by_ref().take(group.items as usize) {
            if ids {
                text(&mut out, item.transaction_id.unwrap_or(""));
            }
            out.extend_from_slice(&(item.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(item.payload.as_bytes());
        }
    }
    out
}
