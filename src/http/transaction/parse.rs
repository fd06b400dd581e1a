//! The body of a transaction: which pushes and acks, in which order, or why it is refused before anything is asked.
//!
//! The fields of an operation may come in any order and mean something only with its `type`, so they are kept as the
//! sender's bytes until all of them are there. Source: data plane 7.1, 7.5.

use super::answer::No;
use crate::http::ack::parse::{clean, disposition};
use crate::http::json::{self, JsonError, Kind, Scanner, Text};
use crate::http::push::binary;
use crate::http::push::parse::{self as push, Item, Lanes};
use crate::limits::ITEMS_MAX;
use crate::wire::packed;
use bytes::Bytes;
use queen_shards::command::{Disposition, QUEUE_MODE};
use queen_shards::frames::{FRAME_OVERHEAD, TEXT_MAX};
use queen_shards::ids::{LeaseId, MessageId};
use std::borrow::Cow;
use std::collections::HashSet;

/// So many leases are looked through faster than they are hashed.
const LEASES_SOME: usize = 16;

/// A whole good body.
#[derive(Debug, Default)]
pub struct Parsed<'a> {
    /// All pushed items, of all operations in order.
    pub pushes: push::Parsed<'a>,
    pub acks: Vec<Ack<'a>>,
    /// One entry per result.
    pub order: Vec<Operation>,
    /// Distinct, in order of appearance.
    pub required_leases: Vec<LeaseId>,
    /// Ids of the last pushed items: a client packed these and minted them.
    pub ids: Vec<MessageId>,
}

/// The packed pushes of a binary transaction: they come after the operations of its head.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    pub body: &'a Bytes,
    pub groups: &'a [packed::Group<'a>],
    /// Of each group, inflated.
    pub frames: &'a [Bytes],
}

/// What a result is about: an index into the items or the acks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Push { item: usize },
    Ack { ack: usize },
}

#[derive(Debug)]
pub struct Ack<'a> {
    pub transaction_id: Cow<'a, str>,
    pub partition_id: Cow<'a, str>,
    /// [`QUEUE_MODE`] when none is named.
    pub group: Cow<'a, str>,
    /// A text that is no UUID is a lease that nobody holds.
    pub lease: Option<LeaseId>,
    pub word: Disposition,
    pub error: Option<Cow<'a, str>>,
}

/// Why a body is not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no JSON object: the text after `bad body: `.
    Body(String),
    /// Its wire groups are damaged.
    Wire(crate::wire::Refused),
    Request(No),
}

/// Reads a body. Two passes over what operations hold, one over the rest.
pub fn parse(body: &[u8]) -> Result<Parsed<'_>, Refused> {
    read(body, None)
}

/// Reads a binary body: its head, and what was packed. Source: binary forms 10.
pub fn parse_packed<'a>(head: &'a [u8], packed: Packed<'a>) -> Result<Parsed<'a>, Refused> {
    read(head, Some(packed).filter(|packed| !packed.groups.is_empty()))
}

fn read<'a>(body: &'a [u8], packed: Option<Packed<'a>>) -> Result<Parsed<'a>, Refused> {
    let top = top(body).map_err(|error| Refused::Body(error.describe(body)))?;
    interpret(&top, packed)
}

impl From<No> for Refused {
    fn from(no: No) -> Refused {
        Refused::Request(no)
    }
}

/// The values of the body's own keys, as sent; the last of each wins.
#[derive(Default)]
struct Top<'a> {
    operations: Option<&'a str>,
    required_leases: Option<&'a str>,
    kv: Option<&'a str>,
    timers: Option<&'a str>,
}

fn top(body: &[u8]) -> Result<Top<'_>, JsonError> {
    let mut scan = Scanner::new(body)?;
    let mut top = Top::default();
    scan.enter_object("expected an object with `operations`")?;
    while let Some(key) = scan.next_key()? {
        let at = match key {
            key if key.is("operations") => &mut top.operations,
            key if key.is("requiredLeases") => &mut top.required_leases,
            key if key.is("kv") => &mut top.kv,
            key if key.is("timers") => &mut top.timers,
            _ => {
                scan.skip()?;
                continue;
            }
        };
        *at = Some(scan.value()?).filter(|value| *value != "null");
    }
    scan.end()?;
    Ok(top)
}

fn interpret<'a>(top: &Top<'a>, packed: Option<Packed<'a>>) -> Result<Parsed<'a>, Refused> {
    let mut reader = Reader::default();
    let (kv, timers) = (rider(top.kv, "kv")?, rider(top.timers, "timers")?);
    match top.operations {
        Some(operations) => each(operations, "operations", |value, at| reader.operation(value, at))?,
        None if kv || timers || packed.is_some() => {}
        None => return Err(No::bad_request("operations is required").into()),
    }
    if let Some(packed) = packed {
        reader.packed(packed)?;
    }
    if let Some(leases) = top.required_leases {
        let mut many = HashSet::new();
        each(leases, "requiredLeases", |value, _| {
            // Entries that are not texts, or empty, are ignored.
            let text = if value.starts_with('"') { text(Some(value), "requiredLeases")? } else { None };
            if let Some(lease) = text.as_deref().and_then(lease_id)
                && is_new(&reader.required_leases, &mut many, lease)
            {
                reader.required_leases.push(lease);
            }
            Ok(())
        })?;
    }
    if kv {
        return Err(No::disabled("kv_disabled", "kv").into());
    }
    if timers {
        return Err(No::disabled("timers_disabled", "timers").into());
    }
    Ok(Parsed {
        pushes: push::Parsed { items: reader.items, lanes: reader.lanes.list },
        acks: reader.acks,
        order: reader.order,
        required_leases: reader.required_leases,
        ids: reader.ids,
    })
}

/// Whether a lease is none of those that were named before. `many`: these once there are many, as nothing bounds them but the body.
fn is_new(named: &[LeaseId], many: &mut HashSet<LeaseId>, lease: LeaseId) -> bool {
    if named.len() <= LEASES_SOME {
        return !named.contains(&lease);
    }
    if many.is_empty() {
        many.extend(named);
    }
    many.insert(lease)
}

/// Whether a rider is there and not empty.
fn rider(value: Option<&str>, name: &str) -> Result<bool, No> {
    match value {
        None => Ok(false),
        Some(array) if array.starts_with('[') => Ok(!array[1..].trim_start().starts_with(']')),
        Some(_) => Err(No::bad_request(format!("{name} must be an array"))),
    }
}

/// Runs `take` on every element of an array that is known to be JSON.
fn each<'a>(array: &'a str, name: &str, mut take: impl FnMut(&'a str, usize) -> Result<(), No>) -> Result<(), No> {
    let wrong = |_: JsonError| No::bad_request(format!("{name} must be an array"));
    let mut scan = Scanner::new(array.as_bytes()).map_err(wrong)?;
    scan.enter_array("").map_err(wrong)?;
    let mut at = 0;
    while scan.next_element().map_err(wrong)? {
        take(scan.value().map_err(wrong)?, at)?;
        at += 1;
    }
    Ok(())
}

#[derive(Default)]
struct Reader<'a> {
    items: Vec<Item<'a>>,
    lanes: Lanes<'a>,
    acks: Vec<Ack<'a>>,
    order: Vec<Operation>,
    required_leases: Vec<LeaseId>,
    ids: Vec<MessageId>,
}

/// The fields of an operation or of a push item, as sent. `null` is as absent, except as a payload.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a str>,
    items: Option<&'a str>,
    queue: Option<&'a str>,
    partition: Option<&'a str>,
    payload: Option<&'a str>,
    data: Option<&'a str>,
    transaction_id: Option<&'a str>,
    trace_id: Option<&'a str>,
    partition_id: Option<&'a str>,
    status: Option<&'a str>,
    group: Option<&'a str>,
    lease_id: Option<&'a str>,
    error: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn of(object: &'a str) -> Option<Fields<'a>> {
        let mut scan = Scanner::new(object.as_bytes()).ok()?;
        if scan.kind() != Kind::Object {
            return None;
        }
        let mut fields = Fields::default();
        scan.enter_object("").ok()?;
        while let Some(key) = scan.next_key().ok()? {
            let value = scan.value().ok()?;
            let decoded = key.decode().unwrap_or_default();
            let at = match &*decoded {
                "type" => &mut fields.kind,
                "items" => &mut fields.items,
                "queue" => &mut fields.queue,
                "partition" => &mut fields.partition,
                "transactionId" => &mut fields.transaction_id,
                "traceId" => &mut fields.trace_id,
                "partitionId" => &mut fields.partition_id,
                "status" => &mut fields.status,
                "consumerGroup" => &mut fields.group,
                "leaseId" => &mut fields.lease_id,
                "error" => &mut fields.error,
                "payload" => {
                    fields.payload = Some(value);
                    continue;
                }
                "data" => {
                    fields.data = Some(value);
                    continue;
                }
                _ => continue,
            };
            *at = Some(value).filter(|value| *value != "null");
        }
        Some(fields)
    }
}

impl<'a> Reader<'a> {
    fn operation(&mut self, value: &'a str, at: usize) -> Result<(), No> {
        let fields = Fields::of(value).ok_or_else(|| No::bad_request(format!("operation {at} must be an object")))?;
        let kind = text(fields.kind, "type").map_err(|no| no.of_operation(at))?;
        let read = match kind.as_deref() {
            Some("push") => self.push(&fields),
            Some("ack") => self.ack(&fields),
            Some("kv") => Err(No::bad_request("kv operations are the top-level array `kv`, not operations")),
            Some("timer") => Err(No::bad_request("timer operations are the top-level array `timers`, not operations")),
            Some(other) => Err(No::bad_request(format!("unknown type `{other}`"))),
            None => Err(No::bad_request("type is required")),
        };
        read.map_err(|no| no.of_operation(at))
    }

    fn push(&mut self, fields: &Fields<'a>) -> Result<(), No> {
        let Some(items) = fields.items else { return self.item(fields) };
        each(items, "items", |value, at| {
            let item = Fields::of(value).ok_or_else(|| No::bad_request(format!("item {at} must be an object")))?;
            self.item(&item)
        })
    }

    fn item(&mut self, fields: &Fields<'a>) -> Result<(), No> {
        self.room()?;
        let queue = text(fields.queue, "queue")?.unwrap_or_default();
        let partition = text(fields.partition, "partition")?.unwrap_or(Cow::Borrowed("Default"));
        let transaction_id = text(fields.transaction_id, "transactionId")?.filter(|text| !text.is_empty());
        for (name, value) in [("queue", &*queue), ("partition", &*partition)] {
            check_name(name, value)?;
        }
        if let Some(id) = &transaction_id {
            check_controls("transactionId", id)?;
            if id.len() > TEXT_MAX {
                return Err(No::bad_request(format!("transactionId exceeds the {TEXT_MAX}-byte limit")));
            }
        }
        let trace = fields.trace_id.filter(|value| value.starts_with('"')).and_then(uuid);
        let payload = fields.payload.or(fields.data).unwrap_or("{}");
        let lane = self.lanes.find(queue, partition);
        let entry = &mut self.lanes.list[lane as usize];
        entry.items += 1;
        let trace_len = if trace.is_some() { 16 } else { 0 };
        let key_len = transaction_id.as_ref().map_or(36, |text| text.len());
        entry.frames_len += FRAME_OVERHEAD + trace_len + key_len + payload.len();
        self.order.push(Operation::Push { item: self.items.len() });
        self.items.push(Item { lane, transaction_id, trace, payload, frame: None });
        Ok(())
    }

    fn packed(&mut self, packed: Packed<'a>) -> Result<(), Refused> {
        let Packed { body, groups, frames } = packed;
        let before = self.items.len();
        let come: usize = groups.iter().map(|group| group.n as usize).sum();
        if ITEMS_MAX < self.order.len() + come {
            return Err(No::bad_request(push::TOO_MANY).into());
        }
        binary::of_packed(body, groups, frames, &mut self.lanes, &mut self.items, &mut self.ids)
            .map_err(Refused::Wire)?;
        for group in groups {
            check_name("queue", group.queue)?;
            check_name("partition", group.partition)?;
        }
        self.order.extend((before..self.items.len()).map(|item| Operation::Push { item }));
        Ok(())
    }

    fn room(&self) -> Result<(), No> {
        if self.order.len() < ITEMS_MAX { Ok(()) } else { Err(No::bad_request(push::TOO_MANY)) }
    }

    fn ack(&mut self, fields: &Fields<'a>) -> Result<(), No> {
        self.room()?;
        let group = text(fields.group, "consumerGroup")?.filter(|text| !text.is_empty());
        let group = group.unwrap_or(Cow::Borrowed(QUEUE_MODE));
        check_name("consumerGroup", &group)?;
        let word = match fields.status {
            None => Disposition::Completed,
            Some(status) => disposition(&string(status, "status")?),
        };
        let error = fields.error.map(|error| string(error, "error")).transpose()?;
        let ack = Ack {
            transaction_id: text(fields.transaction_id, "transactionId")?.unwrap_or_default(),
            partition_id: text(fields.partition_id, "partitionId")?.unwrap_or_default(),
            lease: text(fields.lease_id, "leaseId")?.as_deref().and_then(lease_id),
            error: error.map(|error| clean(error.decode_lossy())),
            group,
            word,
        };
        self.order.push(Operation::Ack { ack: self.acks.len() });
        self.acks.push(ack);
        Ok(())
    }
}

impl No {
    fn of_operation(self, at: usize) -> No {
        No { error: format!("operation {at}: {}", self.error), ..self }
    }
}

fn check_name(what: &str, name: &str) -> Result<(), No> {
    json::check_name(what, name).map_err(No::bad_request)
}

fn check_controls(what: &str, text: &str) -> Result<(), No> {
    json::check_controls(what, text).map_err(No::bad_request)
}

/// The JSON string that `value` is.
fn string<'a>(value: &'a str, name: &str) -> Result<Text<'a>, No> {
    let scanned = Scanner::new(value.as_bytes()).and_then(|mut scan| scan.text(""));
    scanned.map_err(|_| No::bad_request(format!("{name} must be a string")))
}

fn text<'a>(value: Option<&'a str>, name: &str) -> Result<Option<Cow<'a, str>>, No> {
    let Some(value) = value else { return Ok(None) };
    let decoded = string(value, name)?.decode();
    decoded.map(Some).map_err(|_| No::bad_request(format!("{name} is no text: it has a lone surrogate")))
}

fn uuid(value: &str) -> Option<u128> {
    let text = string(value, "").ok()?.decode().ok()?;
    uuid::Uuid::try_parse(&text).ok().map(|id| id.as_u128())
}

/// `None` when empty.
fn lease_id(text: &str) -> Option<LeaseId> {
    crate::http::ack::lease_id(text)
}
