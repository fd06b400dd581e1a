//! Framed pop answers: inflated, then the same three questions as of a JSON answer. Source: binary forms 12.

use crate::answer::Message;
use crate::payload::{STAMP_KEY, STAMP_LEN, read_hex};

/// A framed answer, inflated.
pub struct Opened {
    pub lease: Vec<u8>,
    claims: Vec<Claim>,
}

struct Claim {
    partition_id: String,
    start: u64,
    end: u64,
    /// Base offset, number of frames, frames.
    records: Vec<(u64, u32, Vec<u8>)>,
}

/// Whether a body is a framed answer.
pub fn is_framed(body: &[u8]) -> bool {
    body.starts_with(b"QPF1")
}

/// None: not such an answer, or cut, or damaged.
pub fn open(body: &[u8]) -> Option<Opened> {
    let mut read = Reader(body.strip_prefix(b"QPF1\x01")?);
    let own = read.u32()?;
    read.take(own as usize)?;
    read.text()?;
    let lease = read.text()?.to_vec();
    read.text()?;
    let count = read.u32()?;
    let mut claims = Vec::new();
    for _ in 0..count {
        let partition_id = read.u64()?.to_string();
        read.text()?;
        let (start, end) = (read.u64()?, read.u64()?);
        read.u32()?;
        let mut records = Vec::new();
        for _ in 0..read.u32()? {
            let base = read.u64()?;
            read.u64()?;
            let (count, codec, len) = (read.u32()?, read.take(1)?[0], read.u32()?);
            let bytes = read.take(len as usize)?;
            let frames = match codec {
                0 => bytes.to_vec(),
                1 => {
                    let len = zstd::zstd_safe::get_frame_content_size(bytes).ok()??;
                    zstd::bulk::decompress(bytes, usize::try_from(len).ok()?).ok()?
                }
                _ => return None,
            };
            records.push((base, count, frames));
        }
        claims.push(Claim { partition_id, start, end, records });
    }
    read.0.is_empty().then_some(Opened { lease, claims })
}

impl Opened {
    /// Calls `each` for every delivered message, in order. None: a record is damaged.
    pub fn messages<'a>(&'a self, mut each: impl FnMut(Message<'a>)) -> Option<usize> {
        let mut delivered = 0;
        for claim in &self.claims {
            for (base, count, frames) in &claim.records {
                let mut frames = Reader(frames);
                for offset in *base..*base + u64::from(*count) {
                    let len = frames.u32()? as usize;
                    let mut frame = Reader(frames.take(len)?);
                    frame.take(17)?;
                    let transaction_id = frame.text()?;
                    if (claim.start..=claim.end).contains(&offset) {
                        each(Message {
                            transaction_id,
                            partition_id: claim.partition_id.as_bytes(),
                            stamp: stamp(frame.0),
                        });
                        delivered += 1;
                    }
                }
            }
        }
        Some(delivered)
    }
}

fn stamp(payload: &[u8]) -> Option<u64> {
    read_hex(payload.strip_prefix(STAMP_KEY.as_bytes())?.get(..STAMP_LEN)?)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        self.take(len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of the contract's own vectors: two claims, three records, the last claim ends inside its record.
    #[test]
    fn the_vectors_are_read() {
        let vector =
            |name: &str| std::fs::read(format!("{}/../tests/vectors/{name}.bin", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let of = |name: &str| {
            let opened = open(&vector(name)).unwrap();
            let mut all = Vec::new();
            let count = opened.messages(|m| all.push((m.transaction_id.to_vec(), m.partition_id.to_vec()))).unwrap();
            assert_eq!(count, all.len());
            (String::from_utf8(opened.lease.clone()).unwrap(), all)
        };
        let (lease, all) = of("pop-zstd");
        assert_eq!((lease.as_str(), all.len()), ("0199b000-7d20-7e31-8c5d-6e7f8a900001", 3));
        assert_eq!(all[1], (b"w-1".to_vec(), b"7".to_vec()));
        assert_eq!(of("pop-window").1, [(b"w-1".to_vec(), b"7".to_vec())]);
        assert_eq!(of("pop-autoack").0, "");
        assert!(of("pop-two-claims").1.len() > 3);
        for cut in 0..255 {
            assert!(open(&vector("pop-raw")[..cut]).is_none());
        }
        assert!(open(&vector("pop-version9")).is_none() && open(&vector("pop-codec2")).is_none());
    }
}
