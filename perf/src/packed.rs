//! Packed pushes: what a client sends that frames and compresses its messages itself. Source: binary forms 4, 5, 11.
//!
//! The frames are a template, patched as the JSON items are; then they are compressed, and the body is put together.

use crate::payload::{ID_LEN, Ids, Payload, Rng, id_sum};
use crate::request::{partition_digits, write_digits, write_typed_head};
use zstd::bulk::Compressor;

/// The level of the official encoders.
const LEVEL: i32 = 1;
/// Flags of a body: its groups are packed by the client; its answer counts. Source: binary forms 4.1.
const PACKED: u8 = 8;
const COUNTS: u8 = 2;
/// A frame's fields in front of its transaction id: length, flags, message id, length of the transaction id.
const FRAME_HEAD: usize = 4 + 1 + 16 + 2;

pub struct PackedTemplate {
    host: String,
    queue: String,
    frames: Vec<u8>,
    stride: usize,
    batch: usize,
    flags: u8,
    payload: Payload,
    partitions: u32,
    rng: Rng,
    ids: Ids,
    compressor: Compressor<'static>,
    z: Vec<u8>,
    out: Vec<u8>,
}

impl PackedTemplate {
    /// `counts`: answers count messages instead of naming each.
    pub fn new(
        host: &str,
        queue: &str,
        partitions: u32,
        batch: u32,
        counts: bool,
        payload: Payload,
        seed: u64,
    ) -> PackedTemplate {
        let stride = FRAME_HEAD + ID_LEN + payload.len();
        let mut frame = ((stride - 4) as u32).to_le_bytes().to_vec();
        frame.push(0);
        frame.extend_from_slice(&[0; 16]);
        frame.extend_from_slice(&(ID_LEN as u16).to_le_bytes());
        frame.extend_from_slice(&[b'0'; ID_LEN]);
        frame.extend_from_slice(payload.template());
        let frames = frame.repeat(batch as usize);
        PackedTemplate {
            host: host.to_owned(),
            queue: queue.to_owned(),
            z: Vec::with_capacity(zstd::zstd_safe::compress_bound(frames.len())),
            frames,
            stride,
            batch: batch as usize,
            flags: if counts { PACKED | COUNTS } else { PACKED },
            payload,
            partitions,
            rng: Rng::new(seed),
            ids: Ids::new(seed.rotate_left(32)),
            compressor: Compressor::new(LEVEL).expect("memory for a compressor"),
            out: Vec::new(),
        }
    }

    /// The next request: new messages for one partition drawn at random, and the sum of their ids.
    pub fn next(&mut self, stamp: u64) -> (&[u8], u64) {
        let mut name = [b'p'; 11];
        let digits = partition_digits(self.partitions);
        write_digits(self.rng.below(self.partitions), &mut name[1..=digits]);
        let mut sum = 0u64;
        for frame in self.frames.chunks_exact_mut(self.stride) {
            // A version-7 UUID as far as anybody looks: a time, and bits that no other message has.
            frame[5..11].copy_from_slice(&(stamp >> 20).to_be_bytes()[2..]);
            frame[11..13].copy_from_slice(&(0x7000 | self.rng.next() as u16 >> 4).to_be_bytes());
            frame[13..21].copy_from_slice(&(1 << 63 | self.rng.next() >> 2).to_be_bytes());
            let id = &mut frame[FRAME_HEAD..FRAME_HEAD + ID_LEN];
            self.ids.write(id);
            sum = sum.wrapping_add(id_sum(id));
            self.payload.write(&mut self.rng, stamp, &mut frame[FRAME_HEAD + ID_LEN..]);
        }
        self.z.clear();
        self.compressor.compress_to_buffer(&self.frames, &mut self.z).expect("room for any frame");
        let text = |text: &[u8]| [&(text.len() as u16).to_le_bytes()[..], text].concat();
        let (queue, partition) = (text(self.queue.as_bytes()), text(&name[..=digits]));
        let counts = [(self.batch as u32).to_le_bytes(), (self.z.len() as u32).to_le_bytes()].concat();
        let groups = 1u32.to_le_bytes();
        let parts = [&b"QPB1"[..], &[self.flags], &groups, &queue, &partition, &counts, &self.z];
        self.out.clear();
        let len = parts.iter().map(|part| part.len()).sum();
        write_typed_head(&mut self.out, "POST", "/api/v1/push", &self.host, Some((len, "application/x-queen-push")));
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        (&self.out, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_packed_push_is_whole_and_its_messages_are_new_each_time() {
        let mut template = PackedTemplate::new("h:1", "perf-q", 200, 10, false, Payload::new(256), 1);
        let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
        for stamp in 0..50 {
            let (request, sum) = template.next(stamp << 30);
            let head_len = memchr::memmem::find(request, b"\r\n\r\n").unwrap() + 4;
            let (head, body) = request.split_at(head_len);
            let head = std::str::from_utf8(head).unwrap();
            assert!(head.contains("Content-Type: application/x-queen-push\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            let z_at = 9 + 2 + "perf-q".len() + 2 + "p000".len() + 8;
            let frames = zstd::bulk::decompress(&body[z_at..], 1 << 20).unwrap();
            assert_eq!(frames.len(), 10 * (FRAME_HEAD + ID_LEN + 256));
            let mut want = 0u64;
            for frame in frames.chunks_exact(frames.len() / 10) {
                assert!(ids.insert(frame[5..21].to_vec()), "a new message id");
                let key = &frame[FRAME_HEAD..FRAME_HEAD + ID_LEN];
                assert!(keys.insert(key.to_vec()), "a new transaction id");
                want = want.wrapping_add(id_sum(key));
                let payload: serde_json::Value = serde_json::from_slice(&frame[FRAME_HEAD + ID_LEN..]).unwrap();
                assert_eq!(payload["at"], format!("{:016x}", stamp << 30));
            }
            assert_eq!(sum, want);
        }
    }
}
