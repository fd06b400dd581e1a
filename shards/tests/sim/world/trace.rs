//! What a run did, as one number: the same seed does the same.

use super::World;
use crate::oracle::At;
use queen_shards::effect::Effect;

impl World {
    pub fn mix(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    pub(super) fn mix_effect(&mut self, at: At, effect: &Effect) {
        self.mix((at.0 * 16 + at.1) as u64);
        match effect {
            Effect::Reply { slot, verdict } => {
                self.mix(slot.0);
                match verdict {
                    queen_shards::command::Verdict::Pop(pop) => {
                        for claim in &pop.claims {
                            self.mix(claim.partition.0 as u64);
                            self.mix(claim.start.0 as u64 ^ (claim.end.0 as u64) << 32);
                        }
                    }
                    other => {
                        let text = format!("{other:?}");
                        text.bytes().for_each(|byte| self.mix(byte as u64));
                    }
                }
            }
            Effect::Wake { slot } => self.mix(slot.0 << 1),
            Effect::Spool { token, record } => self.mix(*token ^ record.accepted_at.0 as u64),
            Effect::Drained { id, .. } => self.mix(id.at),
            Effect::Append { append, .. } => {
                for lane in &append.lanes {
                    self.mix(lane.partition.0 as u64);
                    self.mix(lane.expect.0 as u64 ^ (lane.count as u64) << 32);
                }
            }
            Effect::Bundle { bundles, .. } => {
                for lane in bundles.iter().flat_map(|bundle| &bundle.lanes) {
                    self.mix(lane.draft.lane.hash() ^ lane.verified.0 as u64);
                }
            }
            Effect::Move { moves, .. } => {
                for step in moves {
                    self.mix(step.partition.0 as u64 ^ (step.group.0 as u64) << 40);
                    self.mix(step.version as u64);
                }
            }
            Effect::Call { call, ask } => {
                self.mix(call.0);
                self.mix(std::mem::discriminant(ask).hash_code());
            }
        }
    }
}

/// A number for a discriminant; only compared within one build.
trait HashCode {
    fn hash_code(&self) -> u64;
}
impl<T> HashCode for std::mem::Discriminant<T> {
    fn hash_code(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}
