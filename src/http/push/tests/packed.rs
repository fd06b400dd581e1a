//! What becomes of bytes that a client packed: kept, taken apart, or framed anew.

use super::keys;
use crate::http::push::binary::parse_packed;
use crate::http::push::parse::Parsed;
use crate::http::push::plan::{Fate, Plan, Sender, plan};
use crate::wire::{packed, push};
use bytes::Bytes;
use queen_shards::frames::{FLAG_PRODUCER, FrameHead, FrameWriter, Frames};
use queen_shards::ids::{MessageId, TenantId};

const LIMIT: u64 = 1 << 20;

/// A wire group for `queue`/`p`.
fn group(queue: &str, keys: &[&str], first_id: u128) -> (Vec<u8>, Bytes) {
    let mut frames = FrameWriter::default();
    for (n, key) in keys.iter().enumerate() {
        let head = FrameHead { id: MessageId(first_id + n as u128), transaction_id: key, ..FrameHead::default() };
        frames.push(&head, format!("{{\"k\":\"{key}\"}}").as_bytes());
    }
    let z = zstd::bulk::compress(frames.as_slice(), 1).unwrap();
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let sizes = [(keys.len() as u32).to_le_bytes(), (z.len() as u32).to_le_bytes()].concat();
    ([&text(queue)[..], &text("p"), &sizes, &z].concat(), z.into())
}

fn body(groups: &[&[u8]]) -> Bytes {
    [&(groups.len() as u32).to_le_bytes()[..], &groups.concat()].concat().into()
}

fn planned(rest: &Bytes, producer: Option<&str>, check: impl FnOnce(&Parsed<'_>, &[MessageId], Plan)) {
    let groups = packed::walk(rest, 0, LIMIT).unwrap();
    let frames: Vec<Bytes> = groups.iter().map(|group| group.inflate(0).unwrap()).collect();
    let (parsed, ids) = parse_packed(rest, &groups, &frames).unwrap();
    let plan = plan(Sender { tenant: TenantId::DEFAULT, producer, cipher: None }, &parsed, &ids, &keys(), 1);
    check(&parsed, &ids, plan);
}

fn stored_keys(frames: &[u8]) -> Vec<String> {
    Frames::new(frames).map(|frame| frame.unwrap().transaction_id.to_owned()).collect()
}

#[test]
fn a_clean_wire_group_is_kept() {
    let (bytes, z) = group("q", &["a", "b", "c"], 7);
    planned(&body(&[&bytes]), None, |parsed, ids, plan| {
        assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), [7, 8, 9], "the client's");
        let draft = &plan.drafts[0];
        assert_eq!((draft.packed.as_ref(), draft.count, draft.flags, draft.all_minted), (Some(&z), 3, 0, false));
        assert_eq!(draft.keys.len(), 48);
        assert_eq!(stored_keys(&draft.frames), ["a", "b", "c"]);
        let lane = &parsed.lanes[0];
        assert_eq!(draft.frames.as_ptr(), lane.came.as_ref().unwrap().frames.as_ptr(), "no copy of the frames");
    });
}

/// A large one is stored as it came, so its frames go once they were read; whoever must look into it inflates it.
#[test]
fn a_large_wire_group_is_held_packed_only() {
    let names: Vec<String> = (0..300).map(|n| format!("key-{n:04}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let (bytes, z) = group("q", &keys, 7);
    planned(&body(&[&bytes]), None, |parsed, _, plan| {
        let (draft, came) = (&plan.drafts[0], parsed.lanes[0].came.as_ref().unwrap());
        assert!(queen_shards::limits::MERGE_DRAFT_BYTES <= came.frames.len());
        assert_eq!((draft.frames.is_empty(), draft.packed.as_ref()), (true, Some(&z)));
        assert_eq!((draft.raw_len(), draft.raw()), (came.frames.len(), came.frames.clone()));
    });
    // With a repeat it is framed anew, and then the frames are what is stored.
    let (bytes, _) = group("q", &[&keys[..], &keys[..1]].concat(), 7);
    planned(&body(&[&bytes]), None, |_, _, plan| {
        assert_eq!(stored_keys(&plan.drafts[0].frames), keys);
    });
}

#[test]
fn a_repeat_takes_it_apart() {
    for (keys, left) in [
        (&["a", "a", "b"][..], &["a", "b"][..]),
        (&["a", "b", "b"], &["a", "b"]),
        (&["a", "b", "a", "c", "b"], &["a", "b", "c"]),
        (&["a", "a", "a"], &["a"]),
    ] {
        let (bytes, _) = group("q", keys, 7);
        planned(&body(&[&bytes]), None, |_, _, plan| {
            let draft = &plan.drafts[0];
            assert_eq!((draft.packed.is_none(), draft.count as usize), (true, left.len()));
            assert_eq!(stored_keys(&draft.frames), left);
            assert_eq!(draft.keys.len(), 16 * left.len());
            let leads = plan.fates.iter().filter(|fate| matches!(fate, Fate::Leads { .. })).count();
            assert_eq!((plan.fates.len(), leads), (keys.len(), left.len()));
        });
    }
}

#[test]
fn wire_groups_of_one_partition_become_one_draft() {
    let ((one, _), (other, z), (two, _)) =
        (group("q", &["a", "b"], 1), group("r", &["a"], 5), group("q", &["b", "c"], 8));
    planned(&body(&[&one, &other, &two]), None, |_, ids, plan| {
        assert_eq!((plan.drafts.len(), ids.len()), (2, 5));
        assert_eq!(stored_keys(&plan.drafts[0].frames), ["a", "b", "c"], "in wire order");
        assert_eq!(plan.fates[3], Fate::Follows { leader: 1 });
        assert_eq!(plan.drafts[1].packed.as_ref(), Some(&z));
    });
}

#[test]
fn a_small_part_of_a_body_does_not_hold_the_body() {
    let ((one, z), (large, _)) = (group("q", &["a"], 1), group("r", &["x"; 1], 5));
    let many: Vec<&[u8]> = std::iter::once(&one[..]).chain(std::iter::repeat_n(&large[..], 20)).collect();
    let rest = body(&many);
    planned(&rest, None, |_, _, plan| {
        let kept = plan.drafts[0].packed.clone().unwrap();
        assert_eq!(kept, z);
        assert!(!rest.as_ptr_range().contains(&kept.as_ptr()), "a copy");
    });
    let rest = body(&[&one]);
    planned(&rest, None, |_, _, plan| {
        let kept = plan.drafts[0].packed.clone().unwrap();
        assert!(rest.as_ptr_range().contains(&kept.as_ptr()), "a slice");
    });
}

/// The scenario `producer-stamp` of the vectors: flag 2, the producer in every frame, nothing else changed.
#[test]
fn a_producer_is_stamped_into_every_frame() {
    let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(vectors.join("index.json")).unwrap()).unwrap();
    let scenario = index["scenarios"].as_array().unwrap().iter().find(|s| s["id"] == "producer-stamp").unwrap();
    let bytes = Bytes::from(std::fs::read(vectors.join("frames-one.bin")).unwrap());
    let rest = push::open(&bytes, LIMIT).unwrap().rest().unwrap();
    planned(&rest, scenario["auth"]["sub"].as_str(), |_, _, plan| {
        let draft = &plan.drafts[0];
        let hex: String = draft.frames.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, scenario["steps"][1]["records"][0]["inflatedHex"]);
        assert_eq!((draft.packed.is_none(), draft.flags), (true, FLAG_PRODUCER));
    });
}
