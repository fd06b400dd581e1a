//! What every client of the simulation has: a broker, a connection's shard, inputs and actions.

use crate::coverage::Coverage;
use crate::frame::{self, Message};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::store::POISON;
use queen_shards::command::{Command, Verdict};
use queen_shards::ids::{MessageId, Slot};
use queen_shards::key::KeyHasher;
use queen_shards::lease_id::LeaseSeed;

/// What a client meets.
#[derive(Debug)]
pub enum Input {
    Timer(u64),
    Verdict(Slot, Verdict),
    Wake(Slot),
    /// The broker went away with everything that was asked of it, and is back.
    Reset,
    /// Faults are over: finish what you have, start nothing.
    Heal,
}

/// What a client does.
#[derive(Debug)]
pub enum Action {
    Send { shard: usize, slot: Slot, command: Command },
    Timer { after: u64, tag: u64 },
}

/// Where a client is.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    pub broker: usize,
    pub shards: usize,
    /// The connection's shard.
    pub conn: usize,
}

/// What all clients share.
pub struct Shared {
    pub slots: u64,
    pub ids: u128,
    pub leases: u64,
    pub hasher: KeyHasher,
    /// Transaction ids pushed before, per queue.
    pub recent: Vec<Vec<Box<[u8]>>>,
}

impl Shared {
    pub fn new(queues: usize) -> Shared {
        Shared { slots: 0, ids: 0, leases: 0, hasher: frame::hasher(), recent: vec![Vec::new(); queues] }
    }

    pub fn slot(&mut self, home: Home) -> Slot {
        self.slots += 1;
        Slot::new(home.conn, self.slots)
    }

    pub fn seed(&mut self, t: u64) -> LeaseSeed {
        self.leases += 1;
        LeaseSeed { millis: 1_790_000_000_000 + t / 1000, counter: self.leases as u16, wide: false }
    }

    /// A message nobody has pushed, or a new attempt at one that somebody has.
    pub fn message(&mut self, rng: &mut Rng, plan: &Plan, queue: usize, minted: bool) -> Message {
        self.ids += 1;
        let id = MessageId(0x0190_0000_0000_7000_8000_0000_0000_0000 + self.ids);
        let recent = &mut self.recent[queue];
        let transaction_id: Box<[u8]> = if minted {
            format!("{:032x}", id.0).into_bytes().into()
        } else if !recent.is_empty() && rng.chance(plan.repeats) {
            rng.pick(recent).clone()
        } else {
            let text: Box<[u8]> = format!("t{}", self.ids).into_bytes().into();
            if recent.len() < 40 {
                recent.push(text.clone());
            } else {
                let at = rng.index(recent.len());
                recent[at] = text.clone();
            }
            text
        };
        let payload = self.payload(rng, plan);
        let key = self.hasher.key(&transaction_id);
        Message { id, key, transaction_id, payload, producer: rng.chance(100) }
    }

    fn payload(&self, rng: &mut Rng, plan: &Plan) -> Box<[u8]> {
        if plan.faults.poison && rng.chance(12) {
            return POISON.into();
        }
        let len = if rng.chance(20) { rng.range(500, 2_000) } else { rng.range(1, 40) };
        (0..len).map(|i| b'a' + ((self.ids as u64 + i) % 26) as u8).collect()
    }
}

/// A client's view of one step.
pub struct Ctx<'a> {
    pub t: u64,
    /// Push maintenance is on at the client's broker.
    pub maintenance: bool,
    pub rng: &'a mut Rng,
    pub plan: &'a Plan,
    pub shared: &'a mut Shared,
    pub cover: &'a mut Coverage,
    pub actions: Vec<Action>,
}

impl Ctx<'_> {
    pub fn send(&mut self, shard: usize, slot: Slot, command: Command) {
        self.actions.push(Action::Send { shard, slot, command });
    }
    pub fn timer(&mut self, after: u64, tag: u64) {
        self.actions.push(Action::Timer { after, tag });
    }
}
