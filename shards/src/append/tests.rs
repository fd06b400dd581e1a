use crate::command::{Codec, Command, Draft, DraftVerdict, Duplicate, Event, Verdict};
use crate::effect::{AppendOutcome, Call, LaneOutcome, LaneRow, Reply};
use crate::fake::{Fake, lane, plain};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{Micros, Offset, Stamp, TenantId};
use crate::place::LaneKey;

fn draft(keys: &[u128]) -> Draft {
    let mut frames = FrameWriter::default();
    keys.iter().for_each(|_| frames.push(&FrameHead::default(), b"1"));
    Draft {
        lane: LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into()),
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
