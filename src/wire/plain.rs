//! Plain wire groups: names, then items with their payloads as they are. Source: binary forms 4.

use super::fields::Fields;
use super::{Refused, Result, within_items};
use crate::http::json::document;

/// A plain wire group takes at least so many bytes beside its items.
const GROUP_MIN: usize = 8;
/// And an item, with an empty payload (which is refused later) and without an id.
const ITEM_MIN: usize = 4;

/// Messages of one (queue, partition) that stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub queue: &'a str,
    pub partition: &'a str,
    /// At least 1.
    pub items: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// `None`: the broker mints it.
    pub transaction_id: Option<&'a str>,
    /// One JSON document, the space around it included.
    pub payload: &'a str,
}

/// All wire groups and, in wire order, their items. `ids`: every item carries a transaction id.
pub fn items(bytes: &[u8], ids: bool) -> Result<(Vec<Group<'_>>, Vec<Item<'_>>)> {
    let mut fields = Fields::of(bytes);
    let count = fields.u32("number of wire groups")?;
    if fields.left() / GROUP_MIN < count as usize {
        return Err(Refused::malformed(format!("{count} wire groups do not fit")));
    }
    let (mut groups, mut items) = (Vec::new(), Vec::new());
    for g in 0..count {
        let group = group(&mut fields, ids, &mut items);
        groups.push(group.map_err(|refused| refused.at(|| format!("wire group {g}")))?);
    }
    fields.end("the last wire group")?;
    Ok((groups, items))
}

fn group<'a>(fields: &mut Fields<'a>, ids: bool, items: &mut Vec<Item<'a>>) -> Result<Group<'a>> {
    let (queue, partition) = (fields.text("queue name")?, fields.text("partition name")?);
    let n = fields.u32("number of items")?;
    if n == 0 {
        return Err(Refused::malformed("no items"));
    }
    let each = ITEM_MIN + if ids { 2 } else { 0 };
    if fields.left() / each < n as usize {
        return Err(Refused::malformed(format!("{n} items do not fit")));
    }
    within_items(items.len().saturating_add(n as usize))?;
    for _ in 0..n {
        let index = items.len();
        items.push(item(fields, ids).map_err(|refused| refused.at(|| format!("item {index}")))?);
    }
    Ok(Group { queue, partition, items: n })
}

fn item<'a>(fields: &mut Fields<'a>, ids: bool) -> Result<Item<'a>> {
    let transaction_id = if ids { Some(fields.text("transaction id")?).filter(|id| !id.is_empty()) } else { None };
    let len = fields.u32("payload length")?;
    let bytes = fields.bytes(len as usize, "payload")?;
    let payload =
        document(bytes).map_err(|e| Refused::malformed(format!("the payload is not JSON: {}", e.describe(bytes))))?;
    Ok(Item { transaction_id, payload })
}
