//! How a consumer acknowledges what it holds: all of it, some of it, wrongly, too late, twice. Source: data plane 5.7.

use crate::client::Ctx;
use queen_shards::command::{AckItem, AckSet, Claim, Disposition};
use queen_shards::effect::key_at;
use queen_shards::ids::{Key, LeaseId, Offset, PartitionId, TenantId};
use std::sync::Arc;

/// The keys of a delivery, in order.
pub fn keys(claim: &Claim) -> Vec<Key> {
    let inside = |offset: Offset| offset >= claim.start && offset <= claim.end;
    let of_record = |record: &queen_shards::command::Record| {
        let (base, keys) = (record.base, record.keys.clone());
        (0..record.count as usize).filter(move |i| inside(base.plus(*i as i64))).map(move |i| key_at(&keys, i))
    };
    claim.records.iter().flat_map(of_record).collect()
}

/// Completes a delivery.
pub fn complete(claim: &Claim, group: &Arc<str>, lease: Option<LeaseId>) -> AckSet {
    let items = keys(claim).into_iter().map(|key| item(key, Disposition::Completed)).collect();
    set(claim.partition, group, lease, items)
}

/// Acks of several deliveries, each in a way of its own.
pub fn sets(ctx: &mut Ctx, claims: &[Claim], group: &Arc<str>, lease: Option<LeaseId>) -> Vec<AckSet> {
    let mut sets = Vec::new();
    for claim in claims {
        let keys = keys(claim);
        let mut items = words(ctx, &keys);
        if items.is_empty() {
            continue;
        }
        if ctx.rng.chance(50) {
            items.push(item(Key(ctx.rng.next() as u128), random_word(ctx)));
        }
        let lease = match ctx.rng.below(100) {
            0..5 => None,
            5..7 => Some(LeaseId(lease.map_or(7, |lease| lease.0 ^ 1))),
            7..8 => Some(LeaseId::NONE),
            _ => lease,
        };
        let mut set = set(claim.partition, group, lease, items);
        match ctx.rng.below(1000) {
            0..8 => set.tenant = TenantId(99),
            8..14 => set.group = "nobody".into(),
            14..20 => set.partition = PartitionId(set.partition.0 + (1 << 40)),
            _ => {}
        }
        if set.items.len() > 1 && ctx.rng.chance(80) {
            // One call may hold several sets of one partition: here under another lease id.
            let half = set.items.split_off(set.items.len() / 2);
            let other = AckSet { items: half, lease: None, ..set.clone() };
            sets.push(other);
        }
        sets.push(set);
    }
    sets
}

/// A word for some of the keys.
fn words(ctx: &mut Ctx, keys: &[Key]) -> Vec<AckItem> {
    if keys.is_empty() {
        return Vec::new();
    }
    let at = ctx.rng.index(keys.len());
    let completed = |keys: &[Key]| keys.iter().map(|key| item(*key, Disposition::Completed)).collect::<Vec<_>>();
    match ctx.rng.below(100) {
        0..35 => completed(keys),
        35..50 => completed(&keys[keys.len() - 1..]),
        50..60 => completed(&keys[..=at]),
        60..75 => {
            // Completed below, a signal, and perhaps completed above.
            let mut items = completed(&keys[..at]);
            items.push(item(keys[at], signal(ctx)));
            if ctx.rng.chance(500) {
                items.extend(completed(&keys[at + 1..]));
            }
            with_errors(ctx, items)
        }
        75..82 => {
            let word = signal(ctx);
            with_errors(ctx, vec![item(keys[at], word)])
        }
        82..92 => {
            let mut items: Vec<AckItem> = Vec::new();
            for key in keys {
                if ctx.rng.chance(600) {
                    items.push(item(*key, random_word(ctx)));
                }
                if ctx.rng.chance(30) {
                    items.push(item(*key, random_word(ctx)));
                }
            }
            ctx.rng.shuffle(&mut items);
            with_errors(ctx, items)
        }
        _ => Vec::new(),
    }
}

fn with_errors(ctx: &mut Ctx, mut items: Vec<AckItem>) -> Vec<AckItem> {
    for (i, item) in items.iter_mut().enumerate() {
        if item.word != Disposition::Completed && ctx.rng.chance(600) {
            item.error = Some(format!("because {i}").into());
        }
    }
    items
}

fn signal(ctx: &mut Ctx) -> Disposition {
    *ctx.rng.pick(&[Disposition::Failed, Disposition::Failed, Disposition::Retry, Disposition::Dlq])
}

fn random_word(ctx: &mut Ctx) -> Disposition {
    if ctx.rng.chance(700) { Disposition::Completed } else { signal(ctx) }
}

fn item(key: Key, word: Disposition) -> AckItem {
    AckItem { key, word, error: None }
}

fn set(partition: PartitionId, group: &Arc<str>, lease: Option<LeaseId>, items: Vec<AckItem>) -> AckSet {
    AckSet { tenant: TenantId::DEFAULT, partition, group: group.clone(), lease, items }
}
