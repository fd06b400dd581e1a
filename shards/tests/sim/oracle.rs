//! What must hold, judged after every step of the world. Every panic carries the seed and the partition's story.
//!
//!     asked ─► delivered ─► (emits) ─► executed at the store ─► replied
//!
//! This file keeps the books and judges what is said of commands as a whole; pushes are judged in `judge_push`,
//! cursor moves in `explain`, deliveries in `judge_pop`, acks in `judge_ack`. Source: reliability 2.

use crate::coverage::{Coverage, Thing};
use crate::explain::Candidate;
use crate::frame;
use crate::ledger::{Ledger, Moment, Note};
use crate::store::{Planted, Store};
use bytes::Bytes;
use queen_shards::command::{AckSet, Command, Pop, PopFrom, QUEUE_MODE, Verdict};
use queen_shards::effect::{Append, CursorMove};
use queen_shards::ids::{CommitId, GroupId, Key, LeaseId, MessageId, Offset, PartitionId, Slot, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A shard of a broker.
pub type At = (usize, usize);

/// A draft as it was sent.
pub struct SentDraft {
    pub queue: Arc<str>,
    pub partition: Arc<str>,
    pub ids: Vec<MessageId>,
    pub keys: Vec<Key>,
    pub poison: bool,
    /// What clients had been told of these names when it was sent.
    pub floor: Vec<(PartitionId, Offset)>,
}

pub enum Ask {
    Push(Vec<SentDraft>),
    Pop(Pop),
    Ack(Vec<AckSet>),
    GiveBack {
        lease: LeaseId,
        claims: Vec<(PartitionId, GroupId)>,
    },
    /// Moves nothing by itself: [`Oracle::prepared`] remembers it for the bundle.
    Bundle(crate::judge_bundle::SentBundle),
    Changed,
}

/// One command and its life.
pub struct Asked {
    pub at: At,
    pub slot: Slot,
    pub sent: u64,
    pub delivered: Option<Moment>,
    /// When it was delivered, its shard knew what others had committed before this.
    pub heard: u64,
    pub answered: bool,
    pub ask: Ask,
    /// Nobody else of the group was busy at this shard while it was open.
    pub alone: bool,
    /// Per ack set: what cursor moves said about it.
    pub fates: Vec<Vec<crate::explain::Fate>>,
    /// Of a bundle: its sets move cursors with the bundle's commit.
    pub prepares: bool,
}

/// A message under way.
pub struct Pushed {
    pub queue: Arc<str>,
    pub partition: Arc<str>,
    pub key: Key,
    pub frames: Bytes,
    pub from: usize,
    pub to: usize,
    pub written: Option<(PartitionId, Offset)>,
    /// Index of the command.
    pub ask: usize,
}

#[derive(Default)]
struct Flying {
    append: Option<CommitId>,
    moves: Option<CommitId>,
    calls: usize,
}

/// Prepares that are remembered: more than clients can have open.
const PREPARED_MAX: usize = 64;
/// Cold calls a shard may have in flight at once.
const CALLS_MAX: usize = queen_shards::limits::CALLS_MAX;

pub struct Oracle {
    pub seed: u64,
    pub planted: Planted,
    /// One broker and nobody else: what it has answered it must see.
    pub solo: bool,
    /// When the last read of the commit log began whose news a shard has heard.
    pub log_began: BTreeMap<At, u64>,
    /// Cursors that a broker's own move may have changed without an answer.
    pub untold: BTreeSet<(PartitionId, GroupId)>,
    /// How far the clocks of a seed can disagree, and how late an answer can be.
    pub slack_us: i64,
    pub stale_us: i64,
    /// How long a claim may meet its row locked after it was decided, whatever locks rows: somebody who holds one, the
    /// deletion of a group, or chance.
    pub locked_us: i64,
    pub window_batch: u32,
    pub cover: Coverage,
    pub ledger: Ledger,
    pub asks: Vec<Asked>,
    /// Where an open command is found.
    pub by_slot: BTreeMap<(usize, Slot), usize>,
    /// Commands that may still move a cursor.
    pub movers: Vec<usize>,
    pub pushed: HashMap<MessageId, Pushed>,
    pub watches: BTreeSet<(At, Slot)>,
    /// Watches that ended in the turn under way: what happened before them in the turn may still wake them.
    pub leaving: Vec<(At, Slot)>,
    /// When a shard last met a fault, or a locked row.
    pub faults: BTreeMap<At, u64>,
    /// Shards of each broker.
    pub shards_of: Vec<usize>,
    /// Dead letters that moves have promised.
    pub letters: Vec<(PartitionId, GroupId, Offset)>,
    pub healed: Option<u64>,
    flying: BTreeMap<At, Flying>,
    /// Prepares whose bundles may still come, and shards with a bundle commit in flight.
    pub prepared: VecDeque<usize>,
    pub bundling: BTreeSet<At>,
    /// Versions that cursors were moved from by bundles.
    pub bundle_moves: BTreeSet<(PartitionId, GroupId, i64)>,
    /// When a bundle that moves a cursor was last answered.
    pub bundle_ends: BTreeMap<(PartitionId, GroupId), u64>,
    pub verbose: bool,
    /// Writes of the spool may fail.
    pub disk_fails: bool,
    /// Nothing goes wrong: see [`crate::plan::Plan::calm`].
    pub calm: bool,
    /// Messages that were answered `buffered` and are not decided, and those that are.
    pub awaited: BTreeMap<crate::judge_drain::Lane, Vec<crate::judge_drain::Awaited>>,
    pub decided: std::collections::HashSet<MessageId>,
}

impl Oracle {
    pub fn new(seed: u64, planted: Planted, cover: Coverage) -> Oracle {
        Oracle {
            seed,
            planted,
            solo: false,
            log_began: BTreeMap::new(),
            untold: BTreeSet::new(),
            slack_us: 0,
            stale_us: 0,
            locked_us: 0,
            window_batch: 0,
            cover,
            ledger: Ledger::default(),
            asks: Vec::new(),
            by_slot: BTreeMap::new(),
            movers: Vec::new(),
            pushed: HashMap::new(),
            watches: BTreeSet::new(),
            leaving: Vec::new(),
            faults: BTreeMap::new(),
            shards_of: Vec::new(),
            letters: Vec::new(),
            healed: None,
            flying: BTreeMap::new(),
            prepared: VecDeque::new(),
            bundling: BTreeSet::new(),
            bundle_moves: BTreeSet::new(),
            bundle_ends: BTreeMap::new(),
            verbose: false,
            disk_fails: false,
            calm: false,
            awaited: BTreeMap::new(),
            decided: Default::default(),
        }
    }

    /// Ends the run: something that must hold does not.
    #[track_caller]
    pub fn fail(&self, partition: Option<PartitionId>, what: &str) -> ! {
        panic!("SIM_SEED={} planted {:?}: {what}\n{}", self.seed, self.planted, self.ledger.story(partition));
    }

    #[track_caller]
    pub fn must(&self, holds: bool, partition: PartitionId, what: &str) {
        if !holds {
            self.fail(Some(partition), what);
        }
    }

    pub fn hit(&mut self, thing: Thing) {
        self.cover.hit(thing);
    }

    pub fn disturbed(&self, at: At, since: u64) -> bool {
        self.faults.get(&at).is_some_and(|t| *t >= since)
    }

    /// A client sends a command.
    pub fn sent(&mut self, now: Moment, at: At, slot: Slot, command: &Command) {
        let ask = match command {
            Command::Push { drafts } | Command::Spool { drafts } => Ask::Push(self.sent_drafts(now, drafts)),
            Command::Pop(pop) => Ask::Pop(pop.clone()),
            Command::Ack { sets } => Ask::Ack(sets.clone()),
            Command::GiveBack { lease, claims } => Ask::GiveBack { lease: *lease, claims: claims.clone() },
            Command::Prepare { sets, .. } => Ask::Ack(sets.clone()),
            Command::Bundle(bundle) => Ask::Bundle(self.sent_bundle(now, bundle)),
            Command::QueueChanged { .. }
            | Command::GroupChanged { .. }
            | Command::LaneGrew { .. }
            | Command::Heard { .. } => Ask::Changed,
            Command::Watch(_) | Command::Unwatch | Command::Withdraw => return,
        };
        let fates = match &ask {
            Ask::Ack(sets) => sets.iter().map(|_| Vec::new()).collect(),
            _ => Vec::new(),
        };
        let answered = matches!(ask, Ask::GiveBack { .. });
        let prepares = matches!(command, Command::Prepare { .. });
        if prepares {
            self.prepared.push_back(self.asks.len());
            if self.prepared.len() > PREPARED_MAX {
                self.prepared.pop_front();
            }
        }
        let asked =
            Asked { prepares, at, slot, sent: now.t, heard: 0, delivered: None, answered, ask, alone: true, fates };
        self.asks.push(asked);
        let index = self.asks.len() - 1;
        if self.by_slot.insert((at.0, slot), index).is_some() {
            self.fail(None, "the simulation used a slot twice");
        }
    }

    /// A command reaches its shard.
    pub fn delivered(&mut self, now: Moment, at: At, slot: Slot, command: &Command) {
        match command {
            Command::Watch(_) => {
                self.watches.insert((at, slot));
                return;
            }
            Command::Unwatch => {
                if self.watches.remove(&(at, slot)) {
                    self.leaving.push((at, slot));
                }
                return;
            }
            Command::Withdraw => {
                // It may leave what is there.
                if let Some(index) = self.by_slot.get(&(at.0, slot)) {
                    self.asks[*index].alone = false;
                }
                return;
            }
            _ => {}
        }
        let index = self.by_slot[&(at.0, slot)];
        self.asks[index].delivered = Some(now);
        self.asks[index].heard = self.log_began.get(&at).copied().unwrap_or(0);
        let group = self.group_asked(index);
        if let Some((queue, group)) = group {
            let mut company = false;
            for other in &self.movers {
                let theirs = self.group_asked(*other);
                let busy = !self.asks[*other].answered || matches!(self.asks[*other].ask, Ask::GiveBack { .. });
                let same = theirs.is_none_or(|(q, g)| g == group && (q.is_none() || queue.is_none() || q == queue));
                if busy && same && self.asks[*other].at == at {
                    self.asks[*other].alone = false;
                    company = true;
                }
            }
            self.asks[index].alone = !company;
        }
        if !matches!(self.asks[index].ask, Ask::Push(_) | Ask::Changed | Ask::Bundle(_)) {
            self.movers.push(index);
        }
        if let Ask::Ack(sets) = &self.asks[index].ask {
            for (partition, what) in sets.iter().map(|set| (set.partition, self.tell(set))).collect::<Vec<_>>() {
                self.ledger.note(now.t, partition, Note::Asked { slot, broker: at.0, what });
            }
        }
    }

    /// An ack set in short: offsets for keys.
    pub fn tell(&self, set: &AckSet) -> String {
        let part = self.ledger.parts.get(&set.partition);
        let offsets = |key: &Key| part.and_then(|part| part.offsets.get(key)).map(|offsets| format!("{offsets:?}"));
        let item = |item: &queen_shards::command::AckItem| {
            let at = offsets(&item.key).unwrap_or_else(|| "unknown".into()).replace("Offset", "");
            format!("{:?} {at} {}", item.word, item.error.as_deref().unwrap_or(""))
        };
        let items: Vec<String> = set.items.iter().map(item).collect();
        let lease = set.lease.map(|lease| lease.0 >> 64);
        format!("ack {:?} lease {lease:x?}: {}", set.group, items.join(", "))
    }

    /// Queue (when the command says) and group of a pop or ack; `None`: several, or none.
    fn group_asked(&self, index: usize) -> Option<(Option<Arc<str>>, Arc<str>)> {
        match &self.asks[index].ask {
            Ask::Pop(pop) => Some((Some(queue_of(&pop.from).clone()), pop.group.clone())),
            Ask::Ack(sets) => {
                let first = sets.first().filter(|first| sets.iter().all(|set| set.group == first.group));
                first.map(|set| (None, set.group.clone()))
            }
            _ => None,
        }
    }

    /// A shard answers a command.
    pub fn replied(&mut self, now: Moment, at: At, slot: Slot, verdict: &Verdict, store: &Store) {
        let Some(index) = self.by_slot.remove(&(at.0, slot)) else {
            self.fail(None, &format!("a verdict for slot {slot:?}, which waits for none: {verdict:?}"));
        };
        if self.asks[index].at != at || self.asks[index].delivered.is_none() {
            self.fail(None, &format!("slot {slot:?} is answered by {at:?}, which was not asked"));
        }
        self.asks[index].answered = true;
        match (&self.asks[index].ask, verdict) {
            (Ask::Push(_), Verdict::Push(drafts)) => self.judge_push(now, index, drafts),
            (Ask::Pop(_), Verdict::Pop(pop)) => self.judge_pop(now, index, pop, store),
            (Ask::Ack(_), Verdict::Prepared(_)) if self.asks[index].prepares => {}
            (Ask::Bundle(_), Verdict::Bundle(verdict)) => self.judge_bundle(now, index, verdict),
            (Ask::Ack(_), Verdict::Ack(sets)) => self.judge_ack(now, index, sets),
            (Ask::Changed, Verdict::Done) => {}
            _ => self.fail(None, &format!("slot {slot:?} has a verdict of another kind: {verdict:?}")),
        }
        self.movers.retain(|mover| *mover != index);
    }

    /// A watch fires: exactly once, and only while it is there.
    pub fn woke(&mut self, at: At, slot: Slot) {
        let left = self.leaving.iter().position(|watch| *watch == (at, slot));
        if let Some(left) = left {
            self.leaving.remove(left);
        } else if !self.watches.remove(&(at, slot)) {
            self.fail(None, &format!("{at:?} wakes slot {slot:?}, which does not watch"));
        }
    }

    pub fn emits_append(&mut self, at: At, commit: CommitId, append: &Append) {
        let flying = self.flying.entry(at).or_default();
        if flying.append.replace(commit).is_some() {
            self.fail(None, "two appends of one shard in flight");
        }
        self.check_shape(append);
    }

    /// Who may be behind each of the moves.
    pub fn emits_move(&mut self, at: At, commit: CommitId, moves: &[CursorMove]) -> Vec<Vec<Candidate>> {
        let flying = self.flying.entry(at).or_default();
        if flying.moves.replace(commit).is_some() {
            self.fail(None, "two cursor commits of one shard in flight");
        }
        if moves.is_empty() {
            self.fail(None, "an empty cursor commit");
        }
        moves.iter().map(|step| self.candidates(at, step.partition, step.group)).collect()
    }

    pub fn emits_call(&mut self, at: At) {
        let flying = self.flying.entry(at).or_default();
        flying.calls += 1;
        if flying.calls > CALLS_MAX {
            self.fail(None, "too many cold calls of one shard in flight");
        }
    }

    pub fn bundle_answered(&mut self, at: At) {
        self.bundling.remove(&at);
    }
    pub fn append_answered(&mut self, at: At) {
        self.flying.entry(at).or_default().append = None;
    }
    pub fn move_answered(&mut self, at: At) {
        self.flying.entry(at).or_default().moves = None;
    }
    pub fn call_answered(&mut self, at: At) {
        self.flying.entry(at).or_default().calls -= 1;
    }

    /// The engine of a broker is gone with all it knew; its commands have no verdict.
    pub fn restarted(&mut self, broker: usize) {
        self.flying.retain(|at, _| at.0 != broker);
        self.bundling.retain(|at| at.0 != broker);
        self.watches.retain(|(at, _)| at.0 != broker);
        self.by_slot.retain(|(of, _), _| *of != broker);
        for asked in self.asks.iter_mut().filter(|asked| asked.at.0 == broker) {
            asked.answered = true;
        }
        let asks = &self.asks;
        self.movers.retain(|mover| asks[*mover].at.0 != broker);
    }

    /// Everything is quiet: nobody waits, nothing flies, nothing is left to deliver.
    pub fn finish(&mut self, store: &Store) {
        let open = self.by_slot.values().find(|index| !self.asks[**index].answered);
        if let Some(index) = open {
            let asked = &self.asks[*index];
            self.fail(None, &format!("slot {:?} of {:?} never got its verdict", asked.slot, asked.at));
        }
        if let Some((at, slot)) = self.watches.first() {
            self.fail(None, &format!("a watch is left: {slot:?} at {at:?}"));
        }
        let busy = |flying: &Flying| flying.append.is_some() || flying.moves.is_some() || flying.calls > 0;
        if let Some((at, _)) = self.flying.iter().find(|(_, flying)| busy(flying)) {
            self.fail(None, &format!("{at:?} has store calls in flight for ever"));
        }
        self.check_awaited();
        for (id, row) in &store.partitions {
            let part = &self.ledger.parts[id];
            self.must(part.last_offset() == row.last_offset, *id, "the partition row and the ledger disagree");
            for segment in part.segments.iter().filter(|segment| segment.base >= row.log_start) {
                let stored = store.segments.get(&(*id, segment.base));
                let same = stored.is_some_and(|row| row.count == segment.count && row.body == segment.body);
                self.must(same, *id, "an accepted segment is lost or altered");
            }
        }
        for ((id, group), track) in self.ledger.tracks.iter().filter(|(_, track)| track.gone.is_none()) {
            let same = store.cursors.get(&(*id, *group)) == Some(&track.row);
            self.must(same, *id, "a cursor row is not what its moves made it");
        }
        let mut promised = self.letters.clone();
        promised.retain(|(id, _, _)| store.partitions.contains_key(id));
        let mut filed: Vec<_> = store.dead.iter().map(|row| (row.partition, row.group, row.letter.offset)).collect();
        promised.sort_unstable();
        filed.sort_unstable();
        if promised != filed {
            let lost = promised.iter().find(|letter| !filed.contains(letter)).map(|letter| letter.0);
            self.fail(lost, &format!("dead letters promised {promised:?}, filed {filed:?}"));
        }
    }

    /// Whether every group has completed everything; if not, an example.
    pub fn left_over(&self, store: &Store) -> Option<(PartitionId, GroupId)> {
        let all = store.cursors.iter().filter(|((id, _), cursor)| {
            let row = &store.partitions[id];
            cursor.committed.plus(1).max(row.log_start) <= row.last_offset
        });
        let unmet = || {
            let everywhere = |group: &crate::store::Group| group.mode.is_some() || &*group.name == QUEUE_MODE;
            store.groups.iter().filter(|(_, group)| everywhere(group)).find_map(|(id, group)| {
                let of_queue = store.partitions.iter().filter(|(_, row)| row.queue == group.queue);
                let missing = of_queue.filter(|(part, row)| {
                    let begins = store.seed_of(**part, *id).unwrap_or(Offset::NONE);
                    !store.cursors.contains_key(&(**part, *id)) && begins.plus(1).max(row.log_start) <= row.last_offset
                });
                missing.map(|(part, _)| (*part, *id)).next()
            })
        };
        all.map(|(at, _)| *at).next().or_else(unmet)
    }

    pub fn sent_drafts(&mut self, now: Moment, drafts: &[queen_shards::command::Draft]) -> Vec<SentDraft> {
        let mut sent = Vec::new();
        for draft in drafts {
            let names = (draft.lane.queue.clone(), draft.lane.partition.clone());
            let raw = draft.raw();
            let frames = frame::read(&raw).expect("the simulation writes frames");
            let mut at = 0;
            let (mut ids, mut keys) = (Vec::new(), Vec::new());
            for (i, one) in frames.iter().enumerate() {
                let len = u32::from_le_bytes(raw[at..at + 4].try_into().expect("4 bytes")) as usize + 4;
                let key = queen_shards::effect::key_at(&draft.keys, i);
                let pushed = Pushed {
                    queue: names.0.clone(),
                    partition: names.1.clone(),
                    key,
                    frames: raw.clone(),
                    from: at,
                    to: at + len,
                    written: None,
                    ask: self.asks.len(),
                };
                self.pushed.insert(one.id, pushed);
                ids.push(one.id);
                keys.push(key);
                at += len;
            }
            let parts = self.ledger.named.get(&names).into_iter().flatten();
            let floor = parts.map(|id| (*id, self.ledger.parts[id].answered_before(now.t))).collect();
            let poison = frames.iter().any(|one| one.payload.windows(6).any(|w| w == crate::store::POISON));
            sent.push(SentDraft { queue: names.0, partition: names.1, ids, keys, poison, floor });
        }
        sent
    }

    /// Stamp with the slack of the clocks taken off: surely past when this is.
    pub fn surely_after(&self, at: Stamp, now: Stamp) -> bool {
        at.0 + self.slack_us < now.0
    }
}

pub fn queue_of(from: &PopFrom) -> &Arc<str> {
    match from {
        PopFrom::Queue { queue, .. } => queue,
        PopFrom::Partition(lane) => &lane.queue,
    }
}
