use crate::command::{Codec, Command, Draft, DraftVerdict, Drained, Duplicate, Event, SpoolId, SpoolRecord, Verdict};
use crate::effect::{AppendOutcome, Call, LaneOutcome, LaneRow, Reply, StoreError};
use crate::fake::{Fake, lane, plain};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{Micros, Offset, PartitionId, Stamp, TenantId};
use crate::limits::COMMIT_SEGMENTS_MAX;
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
    push_drafts(fake, slot, partitions.iter().map(|n| draft_of(&n.to_string(), &[*n])).collect());
}

fn push_drafts(fake: &mut Fake, slot: u64, drafts: Vec<Draft>) {
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

/// What was in a refused commit goes by itself; what is pushed when that has gone to the disk was in none.
#[test]
fn doubt_does_not_outlive_the_drafts_that_it_is_about() {
    let mut fake = Fake::new();
    push(&mut fake, 9, &[3]);
    assert_eq!(commit(&mut fake, true), [3], "known from now on");
    push(&mut fake, 1, &[1, 2]);
    assert_eq!(commit(&mut fake, false), [1, 2]);
    // The first of the two goes alone: it has no answer, so that both are spooled.
    let (alone, _) = fake.appends.remove(0);
    fake.turn(vec![Event::Appended { commit: alone, result: Err(StoreError::Unavailable("away".into())) }]);
    let (alone, _) = fake.appends.remove(0);
    fake.turn(vec![Event::Appended { commit: alone, result: Err(StoreError::Unavailable("away".into())) }]);
    assert_eq!(fake.spooled.len(), 2);
    let written = false;
    let lost = std::mem::take(&mut fake.spooled).into_iter().map(|(token, _)| Event::Spooled { token, written });
    let lost: Vec<Event> = lost.chain([Event::Store { up: true }]).collect();
    fake.turn(lost);
    assert!(fake.reply(1).is_some());
    push(&mut fake, 2, &[1, 2, 3]);
    assert_eq!(commit(&mut fake, true), [1, 2, 3]);
    assert!(fake.reply(2).is_some());
}

/// Lanes that were to close, and then turned out to have older records on disk, are passed by: they take no place in the commit.
#[test]
fn a_lane_that_gives_nothing_takes_no_place_in_a_commit() {
    const N: u128 = COMMIT_SEGMENTS_MAX as u128;
    let mut fake = Fake::new();
    fake.turn(vec![Event::SpoolRead { all: true, but: Vec::new() }]);
    push(&mut fake, 1, &[1000]);
    let behind: Vec<u128> = (1..=N).collect();
    push(&mut fake, 2, &behind);
    push(&mut fake, 3, &[1001]);
    let lanes = behind.iter().map(|n| (draft_of(&n.to_string(), &[]).lane.hash(), 1)).collect();
    fake.turn(vec![Event::SpoolFound { lanes }]);
    assert_eq!(commit(&mut fake, true), [1000]);
    assert_eq!(commit(&mut fake, true), [1001], "in the turn after that");
    assert!(fake.reply(3).is_some() && fake.reply(2).is_none());
}

/// Written behind what another one wrote is written: a refusal beside it is the record's own.
#[test]
fn every_append_that_adds_something_is_counted_as_written() {
    let mut fake = Fake::new();
    for (slot, outcome) in [(1, 0), (2, 1), (3, 2)] {
        push_drafts(&mut fake, slot, vec![draft_of("1", &[slot.into()])]);
        let (commit, append) = fake.appends.remove(0);
        let (now, base) = (Stamp(fake.now as i64), Offset(10 + slot as i64));
        let lanes = vec![match outcome {
            0 => LaneOutcome::Appended { created_at: now },
            1 => LaneOutcome::Behind { base, created_at: now },
            _ => LaneOutcome::Busy,
        }];
        let stored = append.segments.iter().map(|segment| (Codec::Raw, segment.frames.clone())).collect();
        fake.turn(vec![Event::Appended { commit, result: Ok(AppendOutcome { now, lanes, stored }) }]);
        while !fake.calls.is_empty() {
            fake.answer(|call| match call {
                Call::ReadKeys { .. } => Ok(Reply::Keys { rows: Vec::new(), complete: true, now }),
                other => Ok(plain(other)),
            });
        }
    }
    assert_eq!(fake.shard.lanes_written, 2);
}

/// The spool's directory could not be read until a push was in flight: what is then found there is older than that push, however
/// its commit ends.
#[test]
fn a_record_that_comes_while_pushes_are_in_flight_is_in_front_of_them() {
    let outcome = |lane| {
        let now = Stamp(1 << 40);
        Ok(AppendOutcome { now, lanes: vec![lane], stored: Vec::new() })
    };
    for result in [
        Err(StoreError::Unknown("lost".into())),
        Err(StoreError::Unavailable("away".into())),
        Err(StoreError::Refused("not this".into())),
        outcome(LaneOutcome::Busy),
        outcome(LaneOutcome::Moved { last: Offset(3) }),
    ] {
        let (what, mut fake) = (format!("{result:?}"), Fake::new());
        fake.turn(vec![Event::SpoolRead { all: true, but: Vec::new() }]);
        push_drafts(&mut fake, 1, vec![draft_of("1", &[1]), draft_of("1", &[2])]);
        push_drafts(&mut fake, 2, vec![draft_of("1", &[3])]);
        let (commit, append) = fake.appends.remove(0);
        assert_eq!(append.lanes[0].count, 2, "the third one waits");
        let drained = |at, key| {
            let record = SpoolRecord { accepted_at: Stamp(7), draft: draft_of("1", &[key]) };
            Drained { id: SpoolId { file: 1, at }, record }
        };
        fake.turn(vec![Event::Drain { records: vec![drained(1, 10), drained(2, 11)] }]);
        fake.turn(vec![Event::Appended { commit, result }]);
        fake.now += 60_000_000;
        fake.turn(vec![Event::Store { up: false }]);
        let spooled: Vec<u8> = fake.spooled.iter().map(|(_, record)| record.draft.keys[0]).collect();
        assert_eq!(spooled, [1, 2, 3], "{what}");
        let at = fake.shard.lanes.find(&draft_of("1", &[]).lane).expect("it waits for the store");
        let kept: Vec<u8> = fake.shard.lanes[at].drafts.iter().map(|waiting| waiting.draft.keys[0]).collect();
        assert_eq!(kept, [10, 11], "{what}");
    }
}

/// From when on the keys are read for a record that was accepted now, while PostgreSQL's clock is two hours behind that.
/// `None`: it is taken for new as it is.
fn keys_read_since(found: bool, set_back: bool) -> Option<Option<Stamp>> {
    const BEHIND_US: i64 = 7_200_000_000;
    let mut fake = Fake::new();
    let (mut draft, now) = (draft_of("1", &[1]), Stamp(fake.now as i64));
    draft.all_minted = true;
    let stored = Stamp(now.0 - BEHIND_US);
    if set_back {
        let event = Event::Clock { now: stored, at: Micros(fake.now) };
        fake.turn(vec![event]);
    }
    fake.turn(vec![Event::SpoolFound { lanes: if found { vec![(draft.lane.hash(), 1)] } else { Vec::new() } }]);
    let record = SpoolRecord { accepted_at: now, draft };
    fake.turn(vec![Event::Drain { records: vec![Drained { id: SpoolId { file: 1, at: 1 }, record }] }]);
    fake.answer(|call| match call {
        Call::Provision { .. } => Ok(Reply::Lanes(vec![Some(LaneRow { last_created_at: stored, ..lane().row })])),
        other => Ok(plain(other)),
    });
    let since = fake.calls.iter().find_map(|(_, call)| match call {
        Call::ReadKeys { since, .. } => Some(*since),
        _ => None,
    });
    assert_eq!(since.is_none(), !fake.appends.is_empty());
    since
}

/// An earlier attempt may be stamped long before the acceptance: it was accepted by the machine's clock that ran ahead, or
/// PostgreSQL's was set back, be it by a failover.
#[test]
fn an_earlier_attempt_is_looked_for_whatever_the_clocks_say() {
    assert_eq!(keys_read_since(false, false), None, "nothing was stored since the acceptance");
    let since = keys_read_since(true, false).expect("of an earlier process").expect("not all of it is read");
    assert!(since < Stamp((1 << 40) - 7_200_000_000), "{since:?}");
    let since = keys_read_since(false, true).expect("the clock was set back").expect("not all of it is read");
    assert!(since < Stamp((1 << 40) - 7_200_000_000), "{since:?}");
}
