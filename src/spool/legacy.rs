//! Files of the original broker, which are still drained: a u32 length and that many bytes of JSON per record.
//!
//! Their records have neither a message id (one is minted) nor an acceptance time (the file's name has one). Nothing is
//! checked but the JSON, so the first record that is cut ends the file, and one that does not parse is skipped.
//! Source: operations 4.2.

use bytes::Bytes;
use queen_shards::command::{Draft, SpoolRecord};
use queen_shards::frames::{FrameHead, FrameWriter, TEXT_MAX};
use queen_shards::ids::{MessageId, Stamp, TenantId};
use queen_shards::place::LaneKey;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    partition: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "transactionId")]
    transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "producerSub")]
    producer: Option<Cow<'a, str>>,
    #[serde(default)]
    encrypted: bool,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow)]
    tenant: Option<Cow<'a, str>>,
}

/// Records of a file and where each begins, and the bytes that are none. `None`: not such a file.
pub fn read(
    file: &[u8],
    accepted_at: Stamp,
    mut mint: impl FnMut() -> MessageId,
) -> Option<(Vec<(u64, SpoolRecord)>, u64)> {
    let (mut records, mut damage, mut at) = (Vec::new(), 0u64, 0usize);
    while let Some(head) = file.get(at..at + 4) {
        let len = u32::from_le_bytes(head.try_into().expect("4 bytes")) as usize;
        let Some(body) = file.get(at + 4..at + 4 + len) else { break };
        match record(body, accepted_at, &mut mint) {
            Some(record) => records.push((at as u64, record)),
            None => damage += 4 + len as u64,
        }
        at += 4 + len;
    }
    // What is cut is the end of a crash in their format, which has no checksum to tell.
    damage += (file.len() - at) as u64;
    (!records.is_empty()).then_some((records, damage))
}

fn record(body: &[u8], accepted_at: Stamp, mint: &mut impl FnMut() -> MessageId) -> Option<SpoolRecord> {
    let event: Event = serde_json::from_slice(body).ok()?;
    let tenant = match event.tenant.as_deref() {
        None | Some("") => TenantId::DEFAULT,
        Some(text) => TenantId(uuid::Uuid::parse_str(text).ok()?.as_u128()),
    };
    let id = mint();
    let minted = uuid::Uuid::from_u128(id.0).hyphenated().to_string();
    let transaction_id = event.transaction_id.as_deref().unwrap_or(&minted);
    let producer = event.producer.as_deref();
    let (queue, partition) = (&*event.queue, event.partition.as_deref().unwrap_or("Default"));
    let fits = |text: &str| text.len() <= TEXT_MAX && !text.contains('\0');
    if queue.is_empty() || partition.is_empty() || ![queue, partition, transaction_id].into_iter().all(fits) {
        return None;
    }
    let producer = producer.filter(|text| fits(text));
    let head = FrameHead { id, trace: None, transaction_id, producer, encrypted: event.encrypted };
    let payload = event.payload.get().as_bytes();
    let mut frames = FrameWriter::with_capacity(head.frame_len(payload.len()));
    frames.push(&head, payload);
    let draft = Draft {
        lane: LaneKey::new(tenant, queue.into(), partition.into()),
        count: 1,
        keys: Bytes::new(),
        all_minted: event.transaction_id.is_none(),
        flags: frames.flags(),
        frames: frames.into_bytes(),
        packed: None,
    };
    Some(SpoolRecord { accepted_at, draft })
}
