//! From parsed items to what the owners get: keys, frames, one draft per partition, and each item's fate.

use super::parse::{Came, Lane, Parsed};
use crate::cipher::{Cipher, envelope_len};
use crate::http::json::text::uuid_text;
use crate::planted;
use bytes::Bytes;
use queen_shards::command::Draft;
use queen_shards::frames::{self, FrameHead, FrameWriter};
use queen_shards::ids::{Key, MessageId, TenantId};
use queen_shards::key::KeyHasher;
use queen_shards::limits::MERGE_DRAFT_BYTES;
use queen_shards::place::LaneKey;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Frames are packed here, on the connection's shard, from this size on. Below it the owner merges small drafts of
/// one partition into a segment before it packs, and zstd on its own gains nothing. Source: binary forms 15.3, 15.4.
pub const PACK_MIN: usize = 4096;
/// Packed bytes are kept only if they save at least one part in this many. Source: binary forms 15.3.
const PACK_SAVES: usize = 10;
/// Scratch of the compressor that is kept between requests.
const SCRATCH_KEPT: usize = 1 << 20;

/// Who sends, of what all items of a request share.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    pub tenant: TenantId,
    /// `producerSub` of every message.
    pub producer: Option<&'a str>,
    /// For lanes that are encrypted; `None` without a key.
    pub cipher: Option<&'a Cipher>,
}

/// What becomes of one item, as far as its body tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its lane is refused.
    Refused,
    /// In its lane's draft, at this place.
    Leads { index: u32 },
    /// Same partition and key as this earlier item, whose outcome it shares.
    Follows { leader: u32 },
}

#[derive(Debug)]
pub struct Plan {
    /// In order of the lanes' first appearance.
    pub drafts: Vec<Draft>,
    /// By lane: its draft, `None` when it is refused.
    pub draft_of_lane: Vec<Option<u32>>,
    /// One per item.
    pub fates: Vec<Fate>,
}

/// Runs layer 1, and builds frames and keys once. `ids`: one minted id per item.
///
/// Linear in the body. Source: data plane 3.4, 3.5; architecture (The life of a push).
pub fn plan(sender: Sender<'_>, parsed: &Parsed<'_>, ids: &[MessageId], keys: &KeyHasher, zstd_level: i32) -> Plan {
    build(sender, parsed, ids, keys, zstd_level, Leaders::of(parsed))
}

/// The same without layer 1: in push maintenance each item is spooled on its own. Source: data plane 3.7.
pub fn plan_each(
    sender: Sender<'_>,
    parsed: &Parsed<'_>,
    ids: &[MessageId],
    keys: &KeyHasher,
    zstd_level: i32,
) -> Plan {
    build(sender, parsed, ids, keys, zstd_level, Leaders::none())
}

fn build(
    sender: Sender<'_>,
    parsed: &Parsed<'_>,
    ids: &[MessageId],
    keys: &KeyHasher,
    zstd_level: i32,
    mut leaders: Leaders,
) -> Plan {
    // What a client framed stays as it came unless its messages change: then they are framed here, from their items, as
    // those of any other form are. Source: binary forms 9, 15.3.
    let changes = |lane: &Lane| sender.producer.is_some() || (lane.encrypted && sender.cipher.is_some());
    let of_producer = sender.producer.map_or(0, |text| 2 + text.len());
    let of_envelope = of_producer + envelope_len(0);
    let mut builds: Vec<Build> = parsed
        .lanes
        .iter()
        .map(|lane| {
            let (frames, keys) = match lane.refused {
                Some(_) => (0, 0),
                // Envelopes of many small payloads together are no larger than this.
                None if lane.encrypted => {
                    (envelope_len(lane.frames_len) + of_envelope * lane.items as usize, 16 * lane.items as usize)
                }
                None => (lane.frames_len + of_producer * lane.items as usize, 16 * lane.items as usize),
            };
            let came = lane.came.clone().filter(|_| lane.refused.is_none() && !changes(lane));
            let frames = FrameWriter::with_capacity(if came.is_some() { 0 } else { frames });
            Build { frames, came, count: 0, keys: Vec::with_capacity(keys), all_minted: true }
        })
        .collect();
    let mut fates = Vec::with_capacity(parsed.items.len());
    let (mut uuid, mut envelope) = ([0; 36], Vec::new());
    for (i, item) in parsed.items.iter().enumerate() {
        if parsed.lanes[item.lane as usize].refused.is_some() {
            fates.push(Fate::Refused);
            continue;
        }
        let build = &mut builds[item.lane as usize];
        let transaction_id = match &item.transaction_id {
            Some(text) => text,
            None => uuid_text(ids[i].0, &mut uuid),
        };
        let key = keys.key(transaction_id.as_bytes());
        if item.transaction_id.is_some() {
            build.all_minted = false;
            if let Some(leader) = leaders.leader_of(item.lane, key, i as u32) {
                fates.push(Fate::Follows { leader });
                build.take_apart();
                continue;
            }
        }
        fates.push(Fate::Leads { index: build.count });
        build.count += 1;
        build.keys.extend_from_slice(&key.0.to_le_bytes());
        let lane = &parsed.lanes[item.lane as usize];
        if let Some(frame) = item.frame.filter(|_| !changes(lane)) {
            if build.came.is_none() {
                build.frames.push_frame(frame);
            }
            continue;
        }
        let cipher = sender.cipher.filter(|_| lane.encrypted);
        let sealed = cipher.is_some_and(|cipher| seals(cipher, item.payload, &mut envelope));
        let payload = planted::payload(item.payload);
        build.frames.push(
            &FrameHead { id: ids[i], trace: item.trace, transaction_id, producer: sender.producer, encrypted: sealed },
            if sealed { &envelope } else { payload.as_bytes() },
        );
    }
    let mut plan =
        Plan { drafts: Vec::with_capacity(builds.len()), draft_of_lane: Vec::with_capacity(builds.len()), fates };
    let mut queue: Option<Arc<str>> = None;
    for (lane, build) in parsed.lanes.iter().zip(builds) {
        if lane.refused.is_some() {
            plan.draft_of_lane.push(None);
            continue;
        }
        // Lanes of one queue mostly come together: they share its name.
        let name = match queue.take() {
            Some(name) if *name == *lane.queue => name,
            _ => Arc::from(&*lane.queue),
        };
        queue = Some(name.clone());
        plan.draft_of_lane.push(Some(plan.drafts.len() as u32));
        plan.drafts.push(build.draft(LaneKey::new(sender.tenant, name, Arc::from(&*lane.partition)), zstd_level));
    }
    plan
}

/// Whether the payload is an envelope now. If the cipher fails it is stored as it came. Source: operations 3.2.
fn seals(cipher: &Cipher, payload: &str, envelope: &mut Vec<u8>) -> bool {
    let sealed = cipher.seal(payload.as_bytes(), envelope);
    if sealed.is_err() {
        crate::warning_gated!("encryption", "encryption failed; stored plaintext");
    }
    sealed.is_ok()
}

struct Build {
    /// Messages that lead.
    count: u32,
    /// All of them so far, as a client packed them; taken apart by the first one that is left out.
    came: Option<Came>,
    frames: FrameWriter,
    keys: Vec<u8>,
    all_minted: bool,
}

impl Build {
    /// A message is left out: the frames before it go on as frames. Source: binary forms 8.4.
    fn take_apart(&mut self) {
        let Some(came) = self.came.take() else { return };
        self.frames = FrameWriter::with_capacity(came.frames.len());
        for range in frames::Frames::new(&came.frames).ranges().take(self.count as usize) {
            self.frames.push_frame(&came.frames[range]);
        }
    }

    fn draft(self, lane: LaneKey, zstd_level: i32) -> Draft {
        if let Some(Came { z, frames }) = self.came {
            let (keys, count) = (self.keys.into(), self.count);
            // Small ones may be merged with others; a large one is stored as it came, and its frames have been read.
            let frames = if frames.len() < MERGE_DRAFT_BYTES { frames } else { Bytes::new() };
            return Draft { lane, count, keys, all_minted: self.all_minted, packed: Some(z), flags: 0, frames };
        }
        let packed = pack(self.frames.as_slice(), zstd_level);
        Draft {
            lane,
            count: self.count,
            keys: self.keys.into(),
            all_minted: self.all_minted,
            packed: packed.map(Into::into),
            flags: self.frames.flags(),
            frames: self.frames.into_bytes(),
        }
    }
}

type Firsts = HashMap<(u32, u128), u32, BuildHasherDefault<Folded>>;

/// Entries that a thread keeps room for between requests (48 bytes each).
const FIRSTS_KEPT: usize = 4096;

thread_local! {
    static FIRSTS: RefCell<Firsts> = RefCell::default();
}

/// The first item of each key of each lane; empty unless two items name a key.
struct Leaders {
    first: Firsts,
    needed: bool,
}

impl Drop for Leaders {
    fn drop(&mut self) {
        if self.needed && self.first.capacity() <= 2 * FIRSTS_KEPT {
            self.first.clear();
            FIRSTS.set(std::mem::take(&mut self.first));
        }
    }
}

impl Leaders {
    /// Nobody follows.
    fn none() -> Leaders {
        Leaders { first: HashMap::default(), needed: false }
    }

    fn of(parsed: &Parsed<'_>) -> Leaders {
        let named = parsed.items.iter().filter(|item| item.transaction_id.is_some()).count();
        if named <= 1 {
            return Leaders::none();
        }
        let mut first = FIRSTS.take();
        first.reserve(named);
        Leaders { first, needed: true }
    }

    /// The earlier item with this lane and key; if there is none, `item` is now the first.
    fn leader_of(&mut self, lane: u32, key: Key, item: u32) -> Option<u32> {
        if !self.needed {
            return None;
        }
        match self.first.entry((lane, key.0)) {
            Entry::Occupied(leader) => Some(*leader.get()),
            Entry::Vacant(vacant) => {
                vacant.insert(item);
                None
            }
        }
    }
}

/// Hash of a key that is a keyed hash already: its low half, mixed with the lane.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "only a lane and a key are hashed, not {bytes:?}");
    }
    fn write_u32(&mut self, lane: u32) {
        self.0 ^= (lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u128(&mut self, key: u128) {
        self.0 ^= key as u64;
    }
}

thread_local! {
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
}

struct Packer {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    scratch: Vec<u8>,
}

/// `frames` as one zstd frame with its content size, if that is worth it. The compressor is kept per thread.
pub fn pack(frames: &[u8], level: i32) -> Option<Vec<u8>> {
    if frames.len() < PACK_MIN {
        return None;
    }
    PACKER.with_borrow_mut(|packer| {
        if packer.as_ref().is_none_or(|packer| packer.level != level) {
            let compressor = zstd::bulk::Compressor::new(level).ok()?;
            *packer = Some(Packer { level, compressor, scratch: Vec::new() });
        }
        let Packer { compressor, scratch, .. } = packer.as_mut()?;
        // Room for what is worth keeping and no more: zstd gives up where it does not fit.
        let worth = frames.len() - frames.len() / PACK_SAVES;
        scratch.clear();
        scratch.reserve(worth);
        let kept = match compressor.compress_to_buffer(frames, scratch) {
            Ok(len) if len <= worth => Some(scratch[..len].to_vec()),
            _ => None,
        };
        if scratch.capacity() > SCRATCH_KEPT {
            *scratch = Vec::new();
        }
        kept
    })
}
