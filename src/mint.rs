//! Ids that are minted here, and what they are made of.

use queen_shards::ids::MessageId;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// 64 bits nobody can guess beforehand.
pub(crate) fn random_bits() -> u64 {
    let mut bits = [0u8; 8];
    // SAFETY: the buffer is ours and 8 bytes long. Up to 256 bytes come whole once the kernel's pool is ready.
    let read = unsafe { libc::getrandom(bits.as_mut_ptr().cast(), bits.len(), 0) };
    assert_eq!(read, 8, "the kernel's random numbers");
    u64::from_ne_bytes(bits)
}

/// One UUIDv7, for what mints few: nothing orders two of one millisecond.
pub fn new_message_id() -> String {
    let id = uuid_v7(unix_millis(), random_bits() as u32, random_bits() & ((1 << 42) - 1));
    uuid::Uuid::from_u128(id.0).hyphenated().to_string()
}

/// 48 bits of milliseconds, then 32 bits of counter (over `rand_a` and the top of `rand_b`), then 42 random bits.
pub(crate) fn uuid_v7(millis: u64, counter: u32, random: u64) -> MessageId {
    let high = (millis & 0xffff_ffff_ffff) << 16 | 0x7000 | (counter >> 20) as u64;
    let low = 1u64 << 63 | (counter as u64 & 0xf_ffff) << 42 | random;
    MessageId((high as u128) << 64 | low as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_ids_are_uuid_v7_and_rise_with_the_counter() {
        let ids: Vec<_> = (0..5).map(|i| uuid_v7(1_800_000_000_000, 0xf_fffe + i, 7)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        for id in ids {
            let id = uuid::Uuid::from_u128(id.0);
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        }
    }
}
