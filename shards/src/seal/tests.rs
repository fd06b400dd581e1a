use crate::command::{Codec, Command, Draft, DraftVerdict, Event, Verdict};
use crate::effect::{
    Append, AppendOutcome, Call, Effect, KeysRow, LaneOutcome, LaneRow, Options, QueueRow, Reply, RunRow, StoreError,
};
use crate::frames::{FrameHead, FrameWriter};
use crate::ids::{CallId, CommitId, Key, Micros, Offset, PartitionId, QueueId, Slot, Stamp, TenantId};
use crate::limits::{ShardConfig, WINDOW_IDLE_US};
use crate::place::LaneKey;
use crate::sealed::RunId;
use crate::shard::Shard;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

const PARTITION: PartitionId = PartitionId(4096);

fn key(n: u64) -> Key {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    };
    let high = mix(n.wrapping_add(0x9e3779b97f4a7c15));
    Key((high as u128) << 64 | mix(high) as u128)
}

fn lane() -> LaneKey {
    LaneKey::new(TenantId::DEFAULT, "q".into(), "p".into())
}

fn draft(keys: &[u64]) -> Draft {
    let mut frames = FrameWriter::default();
    keys.iter().for_each(|_| frames.push(&FrameHead::default(), b"1"));
    Draft {
        lane: lane(),
        count: keys.len() as u32,
        keys: keys.iter().flat_map(|&n| key(n).0.to_le_bytes()).collect::<Vec<u8>>().into(),
        all_minted: false,
        frames: frames.into_bytes(),
        packed: None,
        flags: 0,
    }
}

/// One partition of one queue, its sealed runs, and what a test does to the answers.
#[derive(Default)]
struct Store {
    log: Vec<KeysRow>,
    last: i64,
    dedup_secs: u32,
    runs: BTreeMap<RunId, (Bytes, Vec<Bytes>)>,
    refuse_seals: bool,
    sealed: u64,
    rows_read: u64,
    runs_read: u64,
    keys_read: u64,
}

impl Store {
    fn queue(&self) -> QueueRow {
        let options = Options {
            lease_secs: 60,
            retry_limit: 3,
            dead_letter: true,
            delay_secs: 0,
            window_secs: 0,
            dedup_secs: self.dedup_secs,
            fill_wait_ms: 0,
            encrypted: false,
            completed_secs: 0,
        };
        QueueRow { id: QueueId(7), options }
    }

    fn lane(&self) -> LaneRow {
        let last_created_at = self.log.last().map_or(Stamp(0), |row| row.created_at);
        let (last_offset, log_start) = (Offset(self.last), Offset(0));
        LaneRow { queue: self.queue(), partition: PARTITION, last_offset, log_start, last_created_at }
    }

    fn write(&mut self, now: Stamp, keys: Bytes) {
        let base = Offset(self.last + 1);
        self.last += keys.len() as i64 / 16;
        self.log.push(KeysRow { base, created_at: now, accepted_at: None, keys });
    }

    fn append(&mut self, now: Stamp, append: Append) -> AppendOutcome {
        let fits = append.lanes[0].expect.0 == self.last;
        let stored = append.segments.iter().map(|_| (Codec::Raw, Bytes::new())).collect();
        if !fits {
            return AppendOutcome { now, lanes: vec![LaneOutcome::Moved { last: Offset(self.last) }], stored };
        }
        append.segments.into_iter().for_each(|segment| self.write(now, segment.keys));
        AppendOutcome { now, lanes: vec![LaneOutcome::Appended { created_at: now }], stored }
    }

    fn call(&mut self, now: Stamp, ask: Call) -> Result<Reply, StoreError> {
        Ok(match ask {
            Call::Provision { lanes } => Reply::Lanes(lanes.iter().map(|_| Some(self.lane())).collect()),
            Call::FindLane { .. } => Reply::Lanes(vec![Some(self.lane())]),
            Call::FindQueue { .. } => Reply::Queue(Some(self.queue())),
            Call::ReadKeys { from, to, since, limit, .. } => {
                self.keys_read += 1;
                let end = |row: &KeysRow| row.base.0 + row.keys.len() as i64 / 16;
                let wanted =
                    |row: &&KeysRow| from.0 < end(row) && row.base <= to && since.is_none_or(|s| s <= row.created_at);
                let mut left = limit as i64;
                let (mut rows, mut complete) = (Vec::new(), true);
                for row in self.log.iter().filter(wanted) {
                    if left <= 0 {
                        complete = false;
                        break;
                    }
                    left -= row.keys.len() as i64 / 16;
                    rows.push(row.clone());
                }
                Reply::Keys { rows, complete, now }
            }
            Call::ReadRecords { .. } => Reply::Records { records: Vec::new(), log_start: Offset(0) },
            Call::SealRun { .. } if self.refuse_seals => return Err(StoreError::Unavailable("by the test".into())),
            Call::SealRun { slice, .. } => {
                self.sealed += 1;
                let sealed = slice.seal();
                self.runs.insert(sealed.run.id(), (sealed.run.encode(), sealed.rows));
                Reply::Sealed(sealed.run)
            }
            Call::ReadRuns { after, .. } => {
                self.runs_read += 1;
                // One a page.
                let mut later = self.runs.iter().filter(|(id, _)| after.is_none_or(|after| after < **id));
                let before = |id: &RunId| self.log.iter().rfind(|row| row.base < id.base).map(|row| row.created_at);
                let page = later.next().map(|(id, (run, _))| RunRow { id: *id, run: run.clone(), before: before(id) });
                Reply::Runs { runs: page.into_iter().collect(), complete: later.next().is_none() }
            }
            Call::ReadRunRows { rows, .. } => {
                self.rows_read += rows.len() as u64;
                Reply::RunRows(rows.iter().map(|id| Some(self.runs.get(&id.run)?.1[id.row as usize].clone())).collect())
            }
            Call::DropRuns { runs, .. } => {
                runs.iter().for_each(|id| drop(self.runs.remove(id)));
                Reply::Done
            }
            other => panic!("not asked in these tests: {other:?}"),
        })
    }
}

/// A shard with its store. The shard's clock and the store's are one.
struct World {
    shard: Shard,
    store: Store,
    now: u64,
    slots: u64,
    answers: HashMap<Slot, Vec<DraftVerdict>>,
    /// Answers held back.
    held: Vec<Event>,
    /// One in so many answers of calls is held back; 0 for none.
    hold: u64,
    random: u64,
    config: ShardConfig,
}

impl World {
    fn new(config: ShardConfig, dedup_secs: u32) -> World {
        let store = Store { dedup_secs, last: -1, ..Store::default() };
        let (slots, answers, held) = (0, HashMap::new(), Vec::new());
        let shard = Shard::new(config.clone());
        World { shard, store, now: 1 << 40, slots, answers, held, hold: 0, random: 1, config }
    }

    fn stamp(&self) -> Stamp {
        Stamp(self.now as i64)
    }

    /// The broker forgets everything.
    fn restart(&mut self) {
        self.settle();
        self.shard = Shard::new(self.config.clone());
    }

    fn send(&mut self, command: Command) -> Slot {
        self.slots += 1;
        let slot = Slot(self.slots);
        let clock = Event::Clock { now: self.stamp(), at: Micros(self.now) };
        self.turns(vec![clock, Event::Command { slot, command }]);
        slot
    }

    /// Turns until nothing happens any more; answers that are held stay held.
    fn turns(&mut self, mut events: Vec<Event>) {
        loop {
            let mut effects = Vec::new();
            self.shard.turn(Micros(self.now), &mut events, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Reply { slot, verdict: Verdict::Push(verdicts) } => {
                        assert!(self.answers.insert(slot, verdicts).is_none());
                    }
                    Effect::Reply { .. } | Effect::Wake { .. } => {}
                    Effect::Append { commit, append } => events.push(self.appended(commit, append)),
                    Effect::Call { call, ask } => {
                        let event = self.returned(call, ask);
                        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        if 0 < self.hold && (self.random >> 33).is_multiple_of(self.hold) {
                            self.held.push(event);
                        } else {
                            events.push(event);
                        }
                    }
                    Effect::Move { .. } | Effect::Bundle { .. } | Effect::Spool { .. } | Effect::Drained { .. } => {
                        panic!("nobody pops")
                    }
                }
            }
            let due = self.shard.deadline().is_some_and(|at| at <= Micros(self.now));
            if events.is_empty() && !due {
                return;
            }
        }
    }

    fn appended(&mut self, commit: CommitId, append: Append) -> Event {
        Event::Appended { commit, result: Ok(self.store.append(self.stamp(), append)) }
    }

    fn returned(&mut self, call: CallId, ask: Call) -> Event {
        Event::Returned { call, result: self.store.call(self.stamp(), ask) }
    }

    /// Held answers arrive, in any order.
    fn settle(&mut self) {
        let hold = std::mem::replace(&mut self.hold, 0);
        while !self.held.is_empty() {
            let mut events = std::mem::take(&mut self.held);
            let by = self.random as usize % events.len();
            events.rotate_left(by);
            self.turns(events);
        }
        self.hold = hold;
    }

    /// Pushes and waits.
    fn push(&mut self, keys: &[u64]) -> DraftVerdict {
        let slot = self.send(Command::Push { drafts: vec![draft(keys)] });
        self.settle();
        self.answers.remove(&slot).expect("a verdict").remove(0)
    }

    fn duplicates(&mut self, keys: &[u64]) -> Vec<(u32, Offset)> {
        match self.push(keys) {
            DraftVerdict::Stored { duplicates, .. } => duplicates.iter().map(|d| (d.index, d.offset)).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn tiny() -> ShardConfig {
    ShardConfig { window_bytes_max: 1500, seal_keys_min: 20, keys_page: 50, ..ShardConfig::default() }
}

#[derive(Clone, Debug)]
enum Step {
    /// Keys are drawn from `0..alphabet`. `drafts`: so many requests in one turn.
    Push {
        count: usize,
        drafts: usize,
        alphabet: u64,
    },
    Pass {
        secs: u64,
    },
    Restart,
    /// Another broker writes keys that nobody else does.
    Foreign {
        count: usize,
    },
    Configure {
        dedup_secs: u32,
    },
    /// Runs of the store go, all or one, as another broker's expiry or a clean-up has it.
    LoseRuns {
        which: Option<usize>,
    },
    RefuseSeals(bool),
    Hold(u64),
}

fn a_step() -> impl Strategy<Value = Step> {
    let alphabet = prop_oneof![1 => 1u64..30, 2 => 30u64..400, 4 => Just(1 << 40)];
    let push = (1usize..60, 1usize..4, alphabet);
    prop_oneof![
        20 => push.prop_map(|(count, drafts, alphabet)| Step::Push { count, drafts, alphabet }),
        4 => prop_oneof![Just(0u64), 1u64..4, Just(30)].prop_map(|secs| Step::Pass { secs }),
        1 => Just(Step::Restart),
        2 => (1usize..60).prop_map(|count| Step::Foreign { count }),
        1 => prop_oneof![Just(0u32), Just(5), Just(20), Just(3600)].prop_map(|dedup_secs| Step::Configure { dedup_secs }),
        2 => prop_oneof![1 => Just(None), 3 => (0usize..9).prop_map(Some)].prop_map(|which| Step::LoseRuns { which }),
        1 => any::<bool>().prop_map(Step::RefuseSeals),
        2 => (0u64..4).prop_map(Step::Hold),
    ]
}

/// Plays the steps; every verdict is that of a list of everything ever stored.
fn play(steps: &[Step]) -> World {
    let mut world = World::new(tiny(), 20);
    let mut stored: HashMap<u64, Vec<(Offset, Stamp)>> = HashMap::new();
    let (mut seed, mut foreign, mut newest) = (1u64, 1u64 << 50, BTreeSet::new());
    for step in steps {
        match *step {
            Step::Push { count, drafts, alphabet } => {
                let floor = Stamp(world.now as i64 - i64::from(world.store.dedup_secs) * 1_000_000);
                let mut asked = Vec::new();
                for _ in 0..drafts {
                    let mut seen = BTreeSet::new();
                    for _ in 0..count {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        seen.insert((seed >> 24) % alphabet);
                    }
                    // Some keys of long ago come again.
                    seen.extend(newest.iter().copied().skip(seed as usize % 50).step_by(97).take(count / 8));
                    let keys: Vec<u64> = seen.into_iter().collect();
                    asked.push((world.send(Command::Push { drafts: vec![draft(&keys)] }), keys));
                }
                world.settle();
                for (slot, keys) in asked {
                    let verdict = world.answers.remove(&slot).expect("a verdict").remove(0);
                    let DraftVerdict::Stored { base, duplicates } = verdict else { panic!("{verdict:?}") };
                    let mut next = base;
                    let mut duplicates = duplicates.iter().peekable();
                    for (index, n) in keys.into_iter().enumerate() {
                        let all = stored.entry(n).or_default();
                        let live = all.iter().find(|(_, at)| floor <= *at).filter(|_| world.store.dedup_secs > 0);
                        let told = duplicates.next_if(|d| d.index == index as u32).map(|d| d.offset);
                        assert_eq!(told, live.map(|hit| hit.0), "key {n}, message {index}");
                        if told.is_none() {
                            all.push((next, world.stamp()));
                            newest.insert(n);
                            next = next.plus(1);
                        }
                    }
                    assert_eq!(duplicates.next(), None);
                }
            }
            Step::Pass { secs } => world.now += secs * 1_000_000,
            Step::Restart => world.restart(),
            Step::Foreign { count } => {
                let at = world.stamp();
                let keys: Vec<u64> = (0..count as u64).map(|n| foreign + n).collect();
                foreign += count as u64;
                let base = Offset(world.store.last + 1);
                world.store.write(at, draft(&keys).keys);
                for (n, i) in keys.into_iter().zip(0..) {
                    stored.entry(n).or_default().push((base.plus(i), at));
                    newest.insert(n);
                }
            }
            Step::Configure { dedup_secs } => {
                world.store.dedup_secs = dedup_secs;
                world.send(Command::QueueChanged { tenant: TenantId::DEFAULT, queue: "q".into() });
                world.settle();
            }
            Step::LoseRuns { which } => {
                let nth = which.filter(|_| !world.store.runs.is_empty()).map(|n| n % world.store.runs.len());
                let one = nth.and_then(|n| world.store.runs.keys().nth(n).copied());
                world.store.runs.retain(|id, _| one.is_some_and(|one| one != *id));
            }
            Step::RefuseSeals(refuse) => world.store.refuse_seals = refuse,
            Step::Hold(hold) => world.hold = hold,
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Dedup with a window of no bytes to speak of is as exact as a list of everything ever stored.
    #[test]
    fn a_tiny_window_is_exact(steps in prop::collection::vec(a_step(), 1..80)) {
        play(&steps);
    }
}

/// Stores `count` keys from `from` on, 40 at a time.
fn fill(world: &mut World, from: u64, count: u64) {
    for first in (from..from + count).step_by(40) {
        let keys: Vec<u64> = (first..first + 40).collect();
        assert_eq!(world.duplicates(&keys), []);
    }
}

#[test]
fn a_busy_lane_over_the_budget_is_sealed_and_still_exact() {
    let mut world = World::new(tiny(), 3600);
    fill(&mut world, 0, 2000);
    assert!(world.store.sealed > 10, "{} runs", world.store.sealed);
    assert!(world.shard.sizes().window_bytes < 40 * 2000, "{:?}", world.shard.sizes());
    let before = world.store.rows_read;
    assert!(before < 10, "no key was pushed twice, and filters err once in 65,536 times");
    assert_eq!(world.duplicates(&[5, 1 << 30, 1000]), [(0, Offset(5)), (2, Offset(1000))]);
    assert_eq!(world.store.rows_read - before, 2);
}

#[test]
fn below_the_budget_nothing_of_it_runs() {
    let mut world = World::new(ShardConfig { seal_keys_min: 1, ..ShardConfig::default() }, 3600);
    fill(&mut world, 0, 20_000);
    world.restart();
    assert_eq!(world.duplicates(&[5]), [(0, Offset(5))]);
    let store = &world.store;
    assert_eq!((store.sealed, store.runs_read, store.rows_read, store.keys_read), (0, 0, 0, 1));
}

#[test]
fn a_restart_reads_filters_and_the_keys_above_them() {
    let mut world = World::new(tiny(), 3600);
    fill(&mut world, 0, 2000);
    let runs = world.store.runs.len() as u64;
    world.restart();
    let before = world.store.keys_read;
    assert_eq!(world.duplicates(&[7]), [(0, Offset(7))]);
    assert_eq!(world.store.runs_read, runs);
    assert!(world.store.keys_read - before < 6, "{} pages", world.store.keys_read - before);
}

#[test]
fn runs_that_expire_are_removed() {
    let mut world = World::new(tiny(), 10);
    fill(&mut world, 0, 1000);
    assert!(world.store.runs.len() > 3);
    world.now += 13_000_000;
    fill(&mut world, 0, 40);
    assert!(world.store.runs.keys().all(|id| 900 < id.base.0), "{:?}", world.store.runs.keys());
}

#[test]
fn a_run_that_comes_while_a_draft_is_probed_is_probed_too() {
    let mut world = World::new(tiny(), 3600);
    fill(&mut world, 0, 400);
    assert!(
        world.store.runs.contains_key(&RunId { base: Offset(0), last: world.store.runs.keys().next().unwrap().last })
    );
    world.hold = 1;
    let mut next = 400;
    while world.held.is_empty() {
        let keys: Vec<u64> = (next..next + 30).collect();
        world.send(Command::Push { drafts: vec![draft(&keys)] });
        next += 30;
    }
    // The run is stored, its answer on the way; none of its keys was dropped yet.
    let young = world.store.runs.keys().next_back().unwrap().base;
    let sealed = world.held.pop().unwrap();
    assert!(matches!(sealed, Event::Returned { result: Ok(Reply::Sealed(_)), .. }), "{sealed:?}");
    let slot = world.send(Command::Push { drafts: vec![draft(&[3, young.0 as u64])] });
    let rows = world.held.pop().expect("key 3 has its row read");
    world.turns(vec![sealed]);
    world.turns(vec![rows]);
    world.settle();
    let verdict = &world.answers[&slot][0];
    let DraftVerdict::Stored { duplicates, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(duplicates.iter().map(|d| d.offset).collect::<Vec<_>>(), [Offset(3), young]);
}

#[test]
fn a_hit_that_expires_while_a_draft_waits_uncovers_the_next_one() {
    let mut world = World::new(tiny(), 0);
    fill(&mut world, 0, 40);
    world.now += 1_000_000;
    fill(&mut world, 0, 40);
    world.store.dedup_secs = 10;
    world.send(Command::QueueChanged { tenant: TenantId::DEFAULT, queue: "q".into() });
    fill(&mut world, 1000, 400);
    assert!(world.store.runs.keys().next().is_some_and(|id| id.base == Offset(0) && id.last >= Offset(79)));
    world.now += 9_000_000;
    world.hold = 1;
    let slot = world.send(Command::Push { drafts: vec![draft(&[3])] });
    world.now += 500_000;
    world.settle();
    let verdict = &world.answers[&slot][0];
    let DraftVerdict::Stored { duplicates, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(duplicates.iter().map(|d| d.offset).collect::<Vec<_>>(), [Offset(43)]);
}

#[test]
fn a_run_may_end_within_a_stored_row() {
    let config = ShardConfig { window_bytes_max: 20_000, seal_keys_min: 1500, keys_page: 50, ..ShardConfig::default() };
    let mut world = World::new(config, 3600);
    fill(&mut world, 0, 2000);
    assert_eq!(world.store.runs.keys().next().map(|id| id.last), Some(Offset(1023)), "in a row of 40");
    world.restart();
    fill(&mut world, 2000, 4000);
    assert!(world.store.runs.len() > 2);
    for first in (0..6000).step_by(40) {
        let keys: Vec<u64> = (first..first + 40).collect();
        assert_eq!(world.duplicates(&keys).len(), 40, "from {first} on");
    }
}

#[test]
fn an_idle_lane_over_the_budget_goes_whole() {
    let mut world = World::new(ShardConfig { window_bytes_max: 0, seal_keys_min: 1 << 20, ..tiny() }, 3600);
    fill(&mut world, 0, 400);
    assert!(world.shard.sizes().window_bytes > 0);
    world.now += WINDOW_IDLE_US + 1;
    world.turns(Vec::new());
    assert_eq!(world.shard.sizes().window_bytes, 0);
    assert_eq!(world.duplicates(&[3]), [(0, Offset(3))]);
}

#[test]
fn a_raised_window_reaches_behind_the_runs() {
    let mut world = World::new(tiny(), 5);
    fill(&mut world, 0, 400);
    world.now += 30_000_000;
    fill(&mut world, 1000, 1000);
    world.store.dedup_secs = 3600;
    world.send(Command::QueueChanged { tenant: TenantId::DEFAULT, queue: "q".into() });
    assert_eq!(world.duplicates(&[3, 1003]), [(0, Offset(3)), (1, Offset(403))]);
    world.restart();
    assert_eq!(world.duplicates(&[4, 1004]), [(0, Offset(4)), (1, Offset(404))]);
}

#[test]
fn what_a_run_could_not_be_stored_for_stays_in_the_window() {
    let mut world = World::new(tiny(), 3600);
    world.store.refuse_seals = true;
    fill(&mut world, 0, 1000);
    assert_eq!(world.store.sealed, 0);
    world.store.refuse_seals = false;
    fill(&mut world, 1000, 400);
    assert_eq!(world.store.sealed, 0, "not at once");
    world.now += crate::limits::SEAL_RETRY_US;
    fill(&mut world, 1400, 400);
    assert!(world.store.sealed > 0);
    assert_eq!(world.duplicates(&[3, 1399]), [(0, Offset(3)), (1, Offset(1399))]);
}

/// Prints figures with `--nocapture`. `SEAL_MESSAGES`, `SEAL_BUDGET`: messages in drafts of 100, bytes of windows.
#[test]
fn figures() {
    let number = |name: &str, or: usize| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (messages, budget) = (number("SEAL_MESSAGES", 200_000) as u64, number("SEAL_BUDGET", 512 << 20));
    let config = ShardConfig { window_bytes_max: budget, ..ShardConfig::default() };
    let mut world = World::new(config, 3600);
    let (began, mut longest) = (Instant::now(), 0);
    for first in (0..messages).step_by(100) {
        let keys: Vec<u64> = (first..first + 100).collect();
        let pushed = Instant::now();
        assert_eq!(world.duplicates(&keys), []);
        longest = longest.max(pushed.elapsed().as_micros());
    }
    let each = began.elapsed().as_nanos() as u64 / messages;
    let (runs, bytes) = (world.store.sealed, world.shard.sizes().window_bytes as u64);
    println!(
        "{each} ns a message, the store included; {runs} runs; {} B of memory a key; longest {longest} us",
        bytes / messages
    );
}
