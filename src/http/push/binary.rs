//! A push in a binary form: the same parsed items, read from other bytes.
//!
//!     QPB1 plain:  body -> (inflated) -> wire groups, items ------------------------------> Parsed, minted ids
//!     QPB1 packed: body -> (inflated) -> wire groups -> inflated, checked -> messages ----> Parsed, the client's ids
//!
//! Holds: nothing is stored of a body with a fault anywhere; what is inflated is within QUEEN_MAX_INFLATED_BYTES a
//! request, and with bodies and answers within a budget of the shard: who finds no room waits. Source: binary forms 3 to 8.

use super::answer;
use super::parse::{Came, Item, Lanes, Parsed};
use super::protect;
use crate::core_thread::Core;
use crate::http::json::next_special;
use crate::http::refusals::Refusal;
use crate::http::{Request, Response};
use crate::limits::{INFLATE_TURN_BYTES, INFLATED_MESSAGE_BYTES};
use crate::rt;
use crate::wire::{self, PUSH_TYPE, Refused, packed, plain};
use bytes::Bytes;
use queen_shards::ids::MessageId;
use std::borrow::Cow;
use std::rc::Rc;

/// Whether the body of a push or of a transaction is in binary form: its media type alone says so.
pub fn is_binary(request: &Request) -> bool {
    request.content_type.as_deref() == Some(PUSH_TYPE)
}

/// Answers `POST /api/v1/push` with a body of [`PUSH_TYPE`].
pub async fn push(core: &Rc<Core>, request: &Request) -> Response {
    match read(core, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.response(),
    }
}

async fn read(core: &Rc<Core>, request: &Request) -> Result<Response, Refusal> {
    let limit = core.config.max_inflated_bytes as u64;
    let open = wire::push::open(&request.body, limit)?;
    if !open.packed || open.raw_len > 0 {
        request.room(open.raw_len as usize).await?;
        core.pass(request.body.len().max(open.raw_len as usize)).await;
    }
    let rest = open.rest()?;
    if !open.packed {
        let (groups, items) = plain::items(&rest, open.ids)?;
        let mut parsed = of_plain(&groups, &items);
        if !open.counts {
            request.room(answer::room(&parsed)).await?;
        }
        protect::mark(core, request.tenant, &mut parsed.lanes).await;
        let ids = core.mint_ids(parsed.items.len());
        let planned = super::planned(core, request, parsed, &ids);
        return Ok(super::finish(core, planned, &ids, open.counts).await);
    }
    let (planned, ids) = plan_packed(core, request, &rest, &open).await?;
    Ok(super::finish(core, planned, &ids, open.counts).await)
}

/// Inflates, checks and plans; what was inflated is gone when it returns.
async fn plan_packed(
    core: &Rc<Core>,
    request: &Request,
    rest: &Bytes,
    open: &wire::push::Open,
) -> Result<(super::Planned, Vec<MessageId>), Refusal> {
    let groups = packed::walk(rest, open.raw_len, core.config.max_inflated_bytes as u64)?;
    let frames = inflate(core, request, &groups).await?;
    let (mut parsed, ids) = parse_packed(rest, &groups, &frames)?;
    if !open.counts {
        request.room(answer::room(&parsed)).await?;
    }
    protect::mark(core, request.tenant, &mut parsed.lanes).await;
    Ok((super::planned(core, request, parsed, &ids), ids))
}

/// The messages of packed wire groups and their ids. `frames`: of each group, inflated; every one of them is checked.
pub fn parse_packed<'a>(
    rest: &'a Bytes,
    groups: &[packed::Group<'a>],
    frames: &'a [Bytes],
) -> Result<(Parsed<'a>, Vec<MessageId>), Refused> {
    let (mut lanes, mut items, mut ids) = (Lanes::default(), Vec::new(), Vec::new());
    of_packed(rest, groups, frames, &mut lanes, &mut items, &mut ids)?;
    Ok((Parsed { items, lanes: lanes.list }, ids))
}

/// The frames of all wire groups. Waits for room in the shard, then for its turn.
pub(crate) async fn inflate(
    core: &Rc<Core>,
    request: &Request,
    groups: &[packed::Group<'_>],
) -> Result<Vec<Bytes>, Refusal> {
    let total = groups.iter().map(|group| group.raw_len).sum::<u64>() as usize;
    let messages = groups.iter().map(|group| group.n as usize).sum::<usize>();
    request.room(total + messages.saturating_mul(INFLATED_MESSAGE_BYTES)).await?;
    core.pass(total).await;
    let mut frames = Vec::with_capacity(groups.len());
    let mut since = 0;
    for (g, group) in groups.iter().enumerate() {
        frames.push(group.inflate(g)?);
        since += group.raw_len as usize;
        if INFLATE_TURN_BYTES < since {
            rt::yield_now().await;
            since = 0;
        }
    }
    Ok(frames)
}

fn of_plain<'a>(groups: &[plain::Group<'a>], items: &[plain::Item<'a>]) -> Parsed<'a> {
    let mut lanes = Lanes::default();
    let mut read = Vec::with_capacity(items.len());
    let mut rest = items;
    for group in groups {
        let lane = lanes.find(Cow::Borrowed(group.queue), Cow::Borrowed(group.partition));
        let (own, after) = rest.split_at(group.items as usize);
        rest = after;
        for item in own {
            let transaction_id = item.transaction_id.map(quotable);
            lanes.list[lane as usize].count(transaction_id.as_deref(), item.payload);
            read.push(Item { lane, transaction_id, trace: None, payload: item.payload, frame: None });
        }
    }
    Parsed { items: read, lanes: lanes.list }
}

/// Adds the messages of packed wire groups in wire order; `frames`: of each group. A lane that one group alone names is
/// stored as it came.
pub(crate) fn of_packed<'a>(
    rest: &Bytes,
    groups: &[packed::Group<'a>],
    frames: &'a [Bytes],
    lanes: &mut Lanes<'a>,
    items: &mut Vec<Item<'a>>,
    ids: &mut Vec<MessageId>,
) -> Result<(), Refused> {
    for (g, (group, frames)) in groups.iter().zip(frames).enumerate() {
        let lane = lanes.find(Cow::Borrowed(group.queue), Cow::Borrowed(group.partition));
        items.reserve(group.n as usize);
        ids.reserve(group.n as usize);
        let checked = packed::messages(frames, group.n, ids.len(), |message| {
            let transaction_id = Some(match message.plain {
                true => Cow::Borrowed(message.transaction_id),
                false => Cow::Owned(message.transaction_id.to_owned()),
            });
            let (payload, frame) = (message.payload, Some(message.frame));
            items.push(Item { lane, transaction_id, trace: None, payload, frame });
            ids.push(message.id);
        });
        checked.map_err(|refused| refused.at(|| format!("wire group {g}")))?;
        let entry = &mut lanes.list[lane as usize];
        entry.came = (entry.items == 0).then(|| Came { z: kept(rest, group.z), frames: frames.clone() });
        entry.items += group.n;
        entry.frames_len += frames.len();
    }
    Ok(())
}

/// `z` for as long as a record lives: a part of the body keeps all of the body.
fn kept(body: &Bytes, z: &[u8]) -> Bytes {
    if body.len() <= 2 * z.len() { body.slice_ref(z) } else { Bytes::copy_from_slice(z) }
}

/// A text as the parsed form holds it: borrowed only where JSON needs no escape, so that the answer copies it.
fn quotable(text: &str) -> Cow<'_, str> {
    if next_special(text.as_bytes(), 0) == text.len() { Cow::Borrowed(text) } else { Cow::Owned(text.to_owned()) }
}
