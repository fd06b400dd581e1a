//! What a binary body may ask for at most.

use crate::limits::ITEMS_MAX;
use crate::wire::{Refused, packed, plain};

const TEXT: &str = "more than 250000 items in one request";

/// Plain wire groups with so many items each, of one byte of JSON.
fn plain_body(groups: &[usize]) -> Vec<u8> {
    let mut body = (groups.len() as u32).to_le_bytes().to_vec();
    for items in groups {
        body.extend_from_slice(b"\x01\0q\x01\0p");
        body.extend_from_slice(&(*items as u32).to_le_bytes());
        (0..*items).for_each(|_| body.extend_from_slice(b"\x01\0\0\x001"));
    }
    body
}

/// Packed wire groups that say they have so many messages, with nothing in them.
fn packed_body(groups: &[u32]) -> Vec<u8> {
    let mut body = (groups.len() as u32).to_le_bytes().to_vec();
    for messages in groups {
        body.extend_from_slice(b"\x01\0q\x01\0p");
        body.extend_from_slice(&messages.to_le_bytes());
        body.extend_from_slice(&4u32.to_le_bytes());
        body.extend_from_slice(b"none");
    }
    body
}

#[test]
fn a_plain_push_has_no_more_items_than_a_json_push() {
    let most = plain_body(&[ITEMS_MAX - 1, 1]);
    let (_, items) = plain::items(&most, false).expect("as many as are allowed");
    assert_eq!(items.len(), ITEMS_MAX);
    for groups in [&[ITEMS_MAX + 1][..], &[ITEMS_MAX, 1]] {
        let place = groups.len() - 1;
        let refused = plain::items(&plain_body(groups), false).expect_err("one too many");
        assert_eq!(refused, Refused::Malformed(format!("wire group {place}: {TEXT}")));
    }
}

#[test]
fn a_packed_push_has_no_more_messages_than_a_json_push() {
    let most = ITEMS_MAX as u32;
    let text = |groups: &[u32]| match packed::walk(&packed_body(groups), 0, u64::MAX) {
        Err(Refused::Malformed(text)) => text,
        other => panic!("{other:?}"),
    };
    // As many as are allowed: what is refused is that there is no zstd frame.
    assert!(!text(&[most]).contains("items"));
    assert!(!text(&[most - 1, 1]).contains("items"));
    assert_eq!(text(&[most + 1]), format!("wire group 0: {TEXT}"));
    assert_eq!(text(&[most, 1]), format!("wire group 1: {TEXT}"));
    assert_eq!(text(&[1, u32::MAX, u32::MAX]), format!("wire group 1: {TEXT}"));
}
