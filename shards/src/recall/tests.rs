use crate::command::{Codec, Command, Draft, Event};
use crate::effect::{AppendOutcome, Call, Effect, LaneOutcome, LaneRow, Options, QueueRow, Reply, StoreError};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{CallId, CommitId, Micros, Offset, PartitionId, QueueId, Slot, Stamp, TenantId};
use crate::limits::ShardConfig;
use crate::place::LaneKey;
use crate::shard::Shard;

const ROW: LaneRow = LaneRow {
    queue: QueueRow {
        id: QueueId(1),
        options: Options {
            lease_secs: 60,
            retry_limit: 3,
            dead_letter: true,
            delay_secs: 0,
            window_secs: 0,
            dedup_secs: 60,
            fill_wait_ms: 0,
            encrypted: false,
            completed_secs: 0,
        },
    },
    partition: PartitionId(4096),
    last_offset: Offset::NONE,
    log_start: Offset(0),
    last_created_at: Stamp(0),
};

fn away<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("away".into()))
}

/// A shard whose store answers what the test says.
struct World {
    shard: Shard,
    now: u64,
    slots: u64,
    effects: Vec<Effect>,
}

impl World {
    fn new() -> World {
        World { shard: Shard::new(ShardConfig::default()), now: 1 << 40, slots: 0, effects: Vec::new() }
    }

    fn turn(&mut self, event: Option<Event>) {
        let mut events = vec![Event::Clock { now: Stamp(self.now as i64), at: Micros(self.now) }];
        events.extend(event);
        self.shard.turn(Micros(self.now), &mut events, &mut self.effects);
    }

    fn push(&mut self) {
        let mut frames = FrameWriter::default();
        frames.push(&FrameHead::default(), b"1");
        let lane = LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into());
        let (keys, frames) = (vec![7; 16].into(), frames.into_bytes());
        let draft = Draft { lane, count: 1, keys, all_minted: false, frames, packed: None, flags: 0 };
        self.slots += 1;
        let command = Command::Push { drafts: vec![draft] };
        self.turn(Some(Event::Command { slot: Slot(self.slots), command }));
    }

    /// The one call that was made since the last look.
    #[track_caller]
    fn call(&mut self) -> (CallId, Call) {
        let at = self.effects.iter().position(|effect| matches!(effect, Effect::Call { .. })).expect("a call");
        match self.effects.remove(at) {
            Effect::Call { call, ask } => (call, ask),
            _ => unreachable!("it matched"),
        }
    }

    #[track_caller]
    fn commit(&mut self) -> CommitId {
        let commit = |effect: &Effect| if let Effect::Append { commit, .. } = effect { Some(*commit) } else { None };
        let found = self.effects.iter().find_map(commit).expect("a commit");
        self.effects.retain(|effect| commit(effect).is_none());
        found
    }

    fn returns(&mut self, call: CallId, result: Result<Reply, StoreError>) {
        self.turn(Some(Event::Returned { call, result }));
    }

    /// Drafts that left for the spool since the last look.
    fn spooled(&mut self) -> usize {
        let spooled = |effect: &Effect| matches!(effect, Effect::Spool { .. });
        let n = self.effects.iter().filter(|effect| spooled(effect)).count();
        self.effects.retain(|effect| !spooled(effect));
        n
    }

    /// The store answers again, elsewhere.
    fn store_is_back(&mut self) {
        self.turn(Some(Event::Store { up: true }));
    }
}

/// A commit without an answer may have stored its messages, and consumers wait for them. Whatever fails meanwhile must
/// not make the shard forget that it has to look.
#[test]
fn a_lane_of_unknown_outcome_is_read_again_until_it_is_known() {
    let mut world = World::new();
    world.push();
    let (call, _) = world.call();
    world.returns(call, Ok(Reply::Lanes(vec![Some(ROW)])));
    let commit = world.commit();
    world.turn(Some(Event::Appended { commit, result: Err(StoreError::Unknown("cut".into())) }));
    assert_eq!(world.spooled(), 1);
    for _ in 0..3 {
        world.push();
        assert_eq!(world.spooled(), 1);
        world.store_is_back();
        let (call, ask) = world.call();
        assert!(matches!(ask, Call::FindLane { .. }), "{ask:?}");
        world.returns(call, away());
    }
    world.store_is_back();
    let (call, ask) = world.call();
    assert!(matches!(ask, Call::FindLane { .. }), "nobody looks for what may be stored: {ask:?}");
    world.returns(call, Ok(Reply::Lanes(vec![Some(LaneRow { last_offset: Offset(0), ..ROW })])));
    assert!(world.effects.iter().all(|effect| !matches!(effect, Effect::Append { .. })));
}

/// Somebody else wrote behind the newest records: they go, and what they took is free.
#[test]
fn a_tail_that_is_cut_is_not_counted() {
    let mut world = World::new();
    world.push();
    let (call, _) = world.call();
    world.returns(call, Ok(Reply::Lanes(vec![Some(ROW)])));
    let outcome = |world: &World, lane| AppendOutcome {
        now: Stamp(world.now as i64),
        lanes: vec![lane],
        stored: vec![(Codec::Raw, bytes::Bytes::new())],
    };
    let commit = world.commit();
    let stored = outcome(&world, LaneOutcome::Appended { created_at: Stamp(world.now as i64) });
    world.turn(Some(Event::Appended { commit, result: Ok(stored) }));
    assert!(world.shard.sizes().tail_bytes > 0);
    world.push();
    let commit = world.commit();
    let moved = outcome(&world, LaneOutcome::Moved { last: Offset(5) });
    world.turn(Some(Event::Appended { commit, result: Ok(moved) }));
    assert_eq!(world.shard.sizes().tail_bytes, 0);
    assert_eq!(world.shard.recounted(), world.shard.sizes());
}
