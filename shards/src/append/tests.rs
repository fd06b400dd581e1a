use crate::command::{Codec, Command, Draft, DraftVerdict, Duplicate, Event, Verdict};
use crate::effect::{AppendOutcome, Call, LaneOutcome, LaneRow, Reply, StoreError};
use crate::fake::{Fake, lane, plain};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{Micros, Offset, PartitionId, Stamp, TenantId};
use crate::place::LaneKey;

fn draft(keys: &[u128]) -> Draft {
    draft_of("p", keys)
}

fn draft_of(partition: &str, keys: &[u128]) -> Draft {
    let mut frames = FrameWriter::default();
    keys.iter().for_each(|_| frames.push(&FrameHead::default(), b"1"));
    Draft {
        lane: LaneKey::new(TenantId::DEFAULT, "q".into(), partition.into()),
        count: keys.len() as u32,
        keys: keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>().into(),
        all_minted: false,
        frames: frames.into_bytes(),
        packed: None,
        flags: 0,
    }
}

/// A commit went behind what others wrote, and before its answer came the shard met another store and forgot the lane: the
/// offsets it answers are those at which the messages are.
#[test]
fn what_went_behind_is_answered_where_it_is_when_its_lane_was_forgotten_meanwhile() {
    let mut fake = Fake::new();
    fake.ask(1, Command::Push { drafts: vec![draft(&[7]), draft(&[7, 8])] });
    fake.answer(|call| match call {
        // Nothing of the window is stored.
        Call::Provision { .. } => Ok(Reply::Lanes(vec![Some(LaneRow { last_created_at: Stamp(0), ..lane().row })])),
        other => Ok(plain(other)),
    });
    let (commit, append) = fake.appends.remove(0);
    assert_eq!((append.lanes[0].expect, append.lanes[0].count), (Offset(0), 2));
    let now = Stamp(fake.now as i64);
    fake.turn(vec![Event::OtherStore { now, at: Micros(fake.now) }]);
    assert_eq!(fake.shard.sizes().lanes, 0, "forgotten");
    let lanes = vec![LaneOutcome::Behind { base: Offset(15), created_at: now }];
    let stored = append.segments.iter().map(|segment| (Codec::Raw, segment.frames.clone())).collect();
    fake.turn(vec![Event::Appended { commit, result: Ok(AppendOutcome { now, lanes, stored }) }]);
    let first = DraftVerdict::Stored { base: Offset(15), duplicates: Vec::new() };
    let again = vec![Duplicate { index: 0, offset: Offset(15), id: None }];
    let second = DraftVerdict::Stored { base: Offset(16), duplicates: again };
    let Some(Verdict::Push(verdicts)) = fake.reply(1) else { panic!("a verdict") };
    assert_eq!(verdicts, [first, second]);
}

/// Pushes one message to each partition; what they lack is known at once. Their names are numbers.
fn push(fake: &mut Fake, slot: u64, partitions: &[u128]) {
    let drafts = partitions.iter().map(|n| draft_of(&n.to_string(), &[*n])).collect();
    fake.ask(slot, Command::Push { drafts });
    while !fake.calls.is_empty() {
        fake.answer(|call| match call {
            Call::Provision { lanes } => {
                let number = |key: &LaneKey| PartitionId(key.partition.parse::<i64>().expect("a number") << 12);
                let row = |key| LaneRow { partition: number(key), last_created_at: Stamp(0), ..lane().row };
                Ok(Reply::Lanes(lanes.iter().map(|key| Some(row(key))).collect()))
            }
            other => Ok(plain(other)),
        });
    }
}

/// The partitions of the commit that waits, which is answered.
fn commit(fake: &mut Fake, stored: bool) -> Vec<i64> {
    let (commit, append) = fake.appends.remove(0);
    assert!(fake.appends.is_empty(), "one at a time");
    let now = Stamp(fake.now as i64);
    let outcome = AppendOutcome {
        now,
        lanes: vec![LaneOutcome::Appended { created_at: now }; append.lanes.len()],
        stored: append.segments.iter().map(|segment| (Codec::Raw, segment.frames.clone())).collect(),
    };
    let result = if stored { Ok(outcome) } else { Err(StoreError::Refused("not this".into())) };
    fake.turn(vec![Event::Appended { commit, result }]);
    append.lanes.iter().map(|lane| lane.partition.0 >> 12).collect()
}

/// Lanes of a refused commit go one by one, each a round trip: who was not in it does not wait behind all of them.
#[test]
fn between_two_lanes_that_go_alone_the_others_close() {
    let mut fake = Fake::new();
    push(&mut fake, 1, &[1, 2, 3, 4]);
    push(&mut fake, 2, &[5, 6]);
    assert_eq!(commit(&mut fake, false), [1, 2, 3, 4]);
    assert_eq!(commit(&mut fake, true), [5, 6], "who waited is first");
    push(&mut fake, 3, &[7, 8]);
    assert_eq!(commit(&mut fake, false), [1], "the one that was refused");
    push(&mut fake, 4, &[9]);
    assert_eq!(commit(&mut fake, true), [7, 8]);
    assert_eq!(commit(&mut fake, true), [2]);
    assert_eq!(commit(&mut fake, true), [9]);
    assert_eq!(commit(&mut fake, true), [3]);
    push(&mut fake, 5, &[3, 5]);
    assert_eq!(commit(&mut fake, true), [4], "nobody else waited");
    assert_eq!(commit(&mut fake, true), [3, 5]);
    assert!(fake.appends.is_empty());
    let Some(Verdict::Push(verdicts)) = fake.reply(1) else { panic!("a verdict") };
    assert!(matches!(verdicts[0], DraftVerdict::Refused(_)), "{verdicts:?}");
    assert!(verdicts[1..].iter().all(|verdict| matches!(verdict, DraftVerdict::Stored { .. })), "{verdicts:?}");
}
