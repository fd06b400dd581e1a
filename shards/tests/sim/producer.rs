//! A producer: pushes bodies over some partitions, waits for all verdicts, and sends what failed again, as often as
//! not under new message ids and the same keys.

use crate::client::{Ctx, Home, Input};
use crate::coverage::Thing;
use crate::frame::{self, Message};
use crate::store::zstd;
use queen_shards::command::{Command, Draft, DraftVerdict, Verdict};
use queen_shards::ids::{Slot, TenantId};
use queen_shards::place::LaneKey;
use std::collections::{BTreeMap, BTreeSet};

/// Messages for one partition.
struct Group {
    queue: usize,
    partition: usize,
    messages: Vec<Message>,
    minted: bool,
}

pub struct Producer {
    home: Home,
    tag: u64,
    /// What each open command carries.
    open: BTreeMap<Slot, Vec<Group>>,
    again: Vec<Group>,
    healed: bool,
}

impl Producer {
    pub fn new(home: Home) -> Producer {
        Producer { home, tag: 0, open: BTreeMap::new(), again: Vec::new(), healed: false }
    }

    pub fn idle(&self) -> bool {
        self.healed && self.open.is_empty()
    }

    pub fn step(&mut self, ctx: &mut Ctx, input: Input) {
        match input {
            Input::Timer(tag) if tag == self.tag && self.open.is_empty() && !self.healed => self.push(ctx),
            Input::Timer(_) | Input::Wake(_) => {}
            Input::Verdict(slot, Verdict::Push(verdicts)) => {
                let groups = self.open.remove(&slot).expect("asked");
                for (group, verdict) in groups.into_iter().zip(verdicts) {
                    if verdict == DraftVerdict::Failed && ctx.rng.chance(700) {
                        self.again.push(group);
                    }
                }
                if self.open.is_empty() {
                    self.pause(ctx);
                }
            }
            Input::Verdict(_, verdict) => unreachable!("{verdict:?} for a push"),
            Input::Reset => {
                for (_, groups) in std::mem::take(&mut self.open) {
                    self.again.extend(groups.into_iter().filter(|_| ctx.rng.chance(700)));
                }
                self.pause(ctx);
            }
            Input::Heal => self.healed = true,
        }
    }

    fn pause(&mut self, ctx: &mut Ctx) {
        self.tag += 1;
        let wait = if ctx.rng.chance(300) { ctx.rng.range(0, 500) } else { ctx.rng.range(1_000, 400_000) };
        ctx.timer(wait, self.tag);
    }

    fn push(&mut self, ctx: &mut Ctx) {
        let groups = match std::mem::take(&mut self.again) {
            again if !again.is_empty() => {
                ctx.cover.hit(Thing::PushRetried);
                self.anew(ctx, again)
            }
            _ => self.fresh(ctx),
        };
        let mut by_shard: BTreeMap<usize, (Vec<Draft>, Vec<Group>)> = BTreeMap::new();
        for group in groups {
            let queue = &ctx.plan.queues[group.queue];
            let lane = LaneKey::new(TenantId::DEFAULT, queue.name.clone(), queue.partitions[group.partition].clone());
            let (keys, frames, flags) = frame::pack(&group.messages);
            let packed = (frames.len() > 600 && ctx.rng.chance(100)).then(|| zstd(&frames));
            let (drafts, of_shard) = by_shard.entry(lane.owner(self.home.shards)).or_default();
            let count = group.messages.len() as u32;
            // Half of them as the edge leaves what a client packed: with no frames at hand.
            let frames = if packed.is_some() && count.is_multiple_of(2) { Default::default() } else { frames };
            drafts.push(Draft { lane, count, keys, all_minted: group.minted, frames, packed, flags });
            of_shard.push(group);
        }
        for (shard, (drafts, groups)) in by_shard {
            let slot = ctx.shared.slot(self.home);
            self.open.insert(slot, groups);
            let command = if ctx.maintenance {
                ctx.cover.hit(Thing::MaintenancePush);
                Command::Spool { drafts }
            } else {
                Command::Push { drafts }
            };
            ctx.send(shard, slot, command);
        }
    }

    /// Groups that failed, under new message ids.
    fn anew(&self, ctx: &mut Ctx, mut groups: Vec<Group>) -> Vec<Group> {
        let mut seen = BTreeSet::new();
        groups.retain(|group| seen.insert((group.queue, group.partition)));
        for message in groups.iter_mut().flat_map(|group| &mut group.messages) {
            ctx.shared.ids += 1;
            message.id = queen_shards::ids::MessageId(0x0190_0000_0000_7000_8000_0000_0000_0000 + ctx.shared.ids);
        }
        groups.iter_mut().for_each(|group| group.minted = false);
        groups
    }

    fn fresh(&self, ctx: &mut Ctx) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut seen = BTreeSet::new();
        for _ in 0..ctx.rng.range(1, 3) {
            let queue = ctx.rng.index(ctx.plan.queues.len());
            let partition = ctx.rng.index(ctx.plan.queues[queue].partitions.len());
            if !seen.insert((queue, partition)) {
                continue;
            }
            let minted = ctx.rng.chance(150);
            let count = match ctx.rng.below(100) {
                0..3 => ctx.rng.range(20, 60),
                3..40 => 1,
                _ => ctx.rng.range(2, 8),
            };
            let mut keys = BTreeSet::new();
            let mut messages: Vec<Message> =
                (0..count).map(|_| ctx.shared.message(ctx.rng, ctx.plan, queue, minted)).collect();
            messages.retain(|message| keys.insert(message.key));
            groups.push(Group { queue, partition, messages, minted });
        }
        groups
    }
}
