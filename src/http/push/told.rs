//! What the answer of a push says of its items whatever becomes of them, taken out of the body.
//!
//!     Parsed, ids --Told::of--> ready text of each item --(the commit)--> answer
//!
//! The commit takes milliseconds. What was inflated goes before it, so that the next request inflates into memory that is
//! still near, and the answer reads a few kilobytes in a row instead of a text in every frame.

use super::parse::Parsed;
use crate::http::json::text::{push_escaped, push_quoted, push_uuid};
use queen_shards::ids::MessageId;
use std::borrow::Cow;

/// See the module.
#[derive(Debug, Default)]
pub struct Told {
    /// One per item of the body, in its order.
    pub items: Vec<ToldItem>,
    pub lanes: Vec<ToldLane>,
    /// The transaction ids, as they stand in JSON, one behind the other.
    texts: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct ToldItem {
    /// Index into [`Told::lanes`].
    pub lane: u32,
    /// Where its text ends.
    end: usize,
}

#[derive(Debug)]
pub struct ToldLane {
    /// From behind a transaction id to before the status.
    pub named: Vec<u8>,
    /// Why its items are refused.
    pub refused: Option<&'static str>,
}

impl Told {
    /// `ids`: one per item; the transaction id of those that have none.
    pub fn of(parsed: &Parsed<'_>, ids: &[MessageId]) -> Told {
        const UUID_LEN: usize = 36;
        let mut told = Told {
            items: Vec::with_capacity(parsed.items.len()),
            lanes: Vec::with_capacity(parsed.lanes.len()),
            texts: Vec::with_capacity(parsed.items.len() * UUID_LEN),
        };
        for (item, id) in parsed.items.iter().zip(ids) {
            match &item.transaction_id {
                // Sent without an escape, so it needs none now.
                Some(Cow::Borrowed(text)) => told.texts.extend_from_slice(text.as_bytes()),
                Some(Cow::Owned(text)) => push_escaped(&mut told.texts, text),
                None => push_uuid(&mut told.texts, id.0),
            }
            told.items.push(ToldItem { lane: item.lane, end: told.texts.len() });
        }
        for lane in &parsed.lanes {
            let mut named = Vec::with_capacity(32 + lane.queue.len());
            named.extend_from_slice(b"\",\"queueName\":");
            push_quoted(&mut named, &lane.queue);
            named.extend_from_slice(b",\"status\":");
            told.lanes.push(ToldLane { named, refused: lane.refused });
        }
        told
    }

    /// The items in order with their transaction ids.
    pub fn each(&self) -> impl Iterator<Item = (&ToldItem, &[u8])> {
        let mut start = 0;
        self.items.iter().map(move |item| (item, &self.texts[std::mem::replace(&mut start, item.end)..item.end]))
    }

    /// Bytes of all that an answer takes from here.
    pub fn bytes(&self) -> usize {
        self.texts.len() + self.items.iter().map(|item| self.lanes[item.lane as usize].named.len()).sum::<usize>()
    }
}
