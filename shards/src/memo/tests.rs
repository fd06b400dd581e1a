use super::Memo;
use crate::command::{Claim, Codec, Record};
use crate::fake::Fake;
use crate::ids::{GroupId, Micros, Offset, PartitionId, Stamp, TenantId};
use crate::limits::ShardConfig;
use crate::place::LaneKey;
use crate::slab::Ref;

/// A claim of a few messages in the midst of a large record.
fn claim(start: i64, end: i64, of: u32) -> Claim {
    let record = Record {
        base: Offset(10),
        created_at: Stamp(0),
        count: of,
        codec: Codec::Raw,
        flags: 0,
        raw_len: 0,
        body: Default::default(),
        frames: None,
        keys: (0..of as u128).flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>().into(),
    };
    let (partition, group, name, attempt) = (PartitionId(4096), GroupId(1), "p".into(), 1);
    let (start, end, records) = (Offset(start), Offset(end), vec![record]);
    Claim { partition, group, name, start, end, attempt, records }
}

#[test]
fn a_memo_holds_the_keys_of_its_span_alone() {
    let memo = Memo::of(&claim(15, 17, 10_000));
    let want: Vec<u8> = (5u128..=7).flat_map(|key| key.to_le_bytes()).collect();
    assert_eq!(memo.keys, [(Offset(15), want.into())]);
    assert!(memo.bytes() < 200, "{}", memo.bytes());
}

/// Lanes with a claim of 100 messages each, leased until then.
fn remembered(memo_bytes_max: usize, lanes: u32, leased_until: u64) -> (Fake, Vec<Ref>, Ref) {
    let mut fake = Fake::with(ShardConfig { memo_bytes_max, ..ShardConfig::default() });
    let queue = fake.shard.queues.entry(TenantId::DEFAULT, &"q".into());
    let group = fake.shard.queues.group_entry(queue, &"1".into(), Micros(fake.now));
    let lanes = (0..lanes).map(|n| {
        let lane = fake.shard.lane_entry(&LaneKey::new(TenantId::DEFAULT, "q".into(), n.to_string().into()));
        fake.shard.remember(lane, group, &claim(10, 109, 100));
        fake.shard.lanes[lane].cursor_entry(group).lease_until = Micros(leased_until);
        lane
    });
    let lanes = lanes.collect();
    (fake, lanes, group)
}

#[test]
fn memos_of_leases_that_are_over_go_when_all_take_too_much() {
    let one = Memo::of(&claim(10, 109, 100)).bytes();
    let (mut fake, lanes, group) = remembered(100 * one, 150, u64::MAX);
    for &lane in &lanes[..75] {
        fake.shard.lanes[lane].cursor_entry(group).lease_until = Micros(0);
    }
    fake.turn(Vec::new());
    let kept = |fake: &Fake, lanes: &[Ref]| {
        lanes.iter().filter(|lane| fake.shard.lanes[**lane].cursor(group).is_some_and(|c| c.memo.is_some())).count()
    };
    assert_eq!((kept(&fake, &lanes[..75]), kept(&fake, &lanes[75..])), (25, 75));
    assert_eq!(fake.shard.sizes().memo_bytes, 100 * one);
    assert_eq!(fake.shard.recounted(), fake.shard.sizes());
}

#[test]
fn memos_never_take_more_than_twice_their_budget_after_a_turn() {
    let one = Memo::of(&claim(10, 109, 100)).bytes();
    let (mut fake, ..) = remembered(100 * one, 1000, u64::MAX);
    fake.turn(Vec::new());
    assert_eq!(fake.shard.sizes().memo_bytes, 100 * one);
    assert_eq!(fake.shard.recounted(), fake.shard.sizes());
}

#[test]
fn a_memo_that_is_replaced_or_whose_lane_goes_is_not_counted() {
    let (mut fake, lanes, group) = remembered(1 << 20, 3, 0);
    fake.shard.remember(lanes[0], group, &claim(10, 10, 100));
    fake.shard.forget_lane(lanes[1]);
    assert_eq!(fake.shard.recounted(), fake.shard.sizes());
    assert!(fake.shard.sizes().memo_bytes > 0);
}
