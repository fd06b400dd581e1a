//! Frames as the edge writes them, with the engine's writer. Source: binary-forms 11. What is stored is read by a reader
//! of our own, and brokers that are not simulated write with a writer of our own, so that a mistake of the engine's is
//! seen.

use bytes::Bytes;
use queen_shards::frames::{FrameHead, FrameWriter, Frames};
use queen_shards::ids::{Key, MessageId};
use queen_shards::key::KeyHasher;

/// Flag of a frame with a producer.
const PRODUCER: u8 = 2;

/// What a client pushes: the id is new at every attempt, the transaction id is the client's.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: MessageId,
    pub key: Key,
    pub transaction_id: Box<[u8]>,
    pub payload: Box<[u8]>,
    pub producer: bool,
}

/// A frame as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub id: MessageId,
    pub transaction_id: &'a [u8],
    pub payload: &'a [u8],
}

/// Flags of a message's frame.
pub fn flags(message: &Message) -> u8 {
    if message.producer { PRODUCER } else { 0 }
}

/// Appends the frame of a message, without the engine.
pub fn write(out: &mut Vec<u8>, message: &Message) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(flags(message));
    out.extend_from_slice(&message.id.0.to_be_bytes());
    out.extend_from_slice(&(message.transaction_id.len() as u16).to_le_bytes());
    out.extend_from_slice(&message.transaction_id);
    if message.producer {
        out.extend_from_slice(&3u16.to_le_bytes());
        out.extend_from_slice(b"sub");
    }
    out.extend_from_slice(&message.payload);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Reads frames back to back; `None` when they do not fit.
pub fn read(mut bytes: &[u8]) -> Option<Vec<Frame<'_>>> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let body = bytes.get(4..4 + len)?;
        bytes = &bytes[4 + len..];
        let flags = *body.first()?;
        let id = MessageId(u128::from_be_bytes(body.get(1..17)?.try_into().ok()?));
        let mut at = 17;
        let mut text = || {
            let len = u16::from_le_bytes(body.get(at..at + 2)?.try_into().ok()?) as usize;
            at += 2 + len;
            body.get(at - len..at)
        };
        let transaction_id = text()?;
        if flags & PRODUCER != 0 {
            text()?;
        }
        frames.push(Frame { id, transaction_id, payload: &body[at..] });
    }
    Some(frames)
}

/// What a draft carries: keys, frames and flags of its messages.
pub fn pack(messages: &[Message]) -> (Bytes, Bytes, u8) {
    let mut keys = Vec::with_capacity(messages.len() * 16);
    let mut frames = FrameWriter::with_capacity(messages.len() * 96);
    for message in messages {
        keys.extend_from_slice(&message.key.0.to_le_bytes());
        let head = FrameHead {
            id: message.id,
            trace: None,
            transaction_id: std::str::from_utf8(&message.transaction_id).expect("clients write text"),
            producer: message.producer.then_some("sub"),
            encrypted: false,
        };
        frames.push(&head, &message.payload);
    }
    assert_eq!((frames.count() as usize, frames.is_empty()), (messages.len(), messages.is_empty()));
    let flags = frames.flags();
    (keys.into(), frames.into_bytes(), flags)
}

/// The same frames, put together one by one: what the edge does with a body that came packed.
pub fn repack(frames: &[u8]) -> Bytes {
    let mut again = FrameWriter::with_capacity(frames.len());
    Frames::new(frames).ranges().for_each(|range| again.push_frame(&frames[range]));
    assert_eq!(again.as_slice().len(), again.len());
    again.into_bytes()
}

/// The same as [`pack`], without the engine.
pub fn pack_by_hand(messages: &[Message]) -> (Bytes, Bytes, u8) {
    let mut keys = Vec::with_capacity(messages.len() * 16);
    let mut frames = Vec::with_capacity(messages.len() * 96);
    let mut all = 0;
    for message in messages {
        keys.extend_from_slice(&message.key.0.to_le_bytes());
        write(&mut frames, message);
        all |= flags(message);
    }
    (keys.into(), frames.into(), all)
}

/// The hasher of the simulated database.
pub fn hasher() -> KeyHasher {
    KeyHasher::new(b"a secret of test")
}
