//! The body of a JSON push: which messages for which partitions, or why the whole request is refused.

use crate::http::json::{JsonError, Scanner, Text, has_control};
use crate::limits::{ITEMS_MAX, NAME_BYTES_MAX};
use bytes::Bytes;
use queen_shards::frames::{FRAME_OVERHEAD, TEXT_MAX};
use std::borrow::Cow;
use std::collections::HashMap;

/// Lanes found by looking at each before a table is built: a body rarely names more.
const LANES_SCANNED: usize = 8;

pub(crate) use crate::limits::TOO_MANY;
/// Source: data plane 3.1.
pub(crate) const CONTROL_CHARACTERS: &str = "control characters are not allowed in queue, partition or transactionId";

/// A whole good body.
#[derive(Debug, Default)]
pub struct Parsed<'a> {
    pub items: Vec<Item<'a>>,
    /// In order of first appearance.
    pub lanes: Vec<Lane<'a>>,
}

#[derive(Debug)]
pub struct Item<'a> {
    /// Index into [`Parsed::lanes`].
    pub lane: u32,
    /// `None`: the minted message id is the key.
    pub transaction_id: Option<Cow<'a, str>>,
    /// Of a transaction only: a push drops it.
    pub trace: Option<u128>,
    /// The sender's bytes.
    pub payload: &'a str,
    /// The frame a client made of it, as it came; `None` where the broker frames it.
    pub frame: Option<&'a [u8]>,
}

/// One (queue, partition) of a body.
#[derive(Debug)]
pub struct Lane<'a> {
    pub queue: Cow<'a, str>,
    pub partition: Cow<'a, str>,
    /// Why its items are refused, each alone; nothing of the lane is stored.
    pub refused: Option<&'static str>,
    /// Its payloads are encrypted; see `protect`.
    pub encrypted: bool,
    /// Items, repeated keys included.
    pub items: u32,
    /// Bytes their frames take at most.
    pub frames_len: usize,
    /// The record that a client packed of exactly these items.
    pub came: Option<Came>,
}

impl Lane<'_> {
    /// Takes one more item into account.
    pub fn count(&mut self, transaction_id: Option<&str>, payload: &str) {
        self.items += 1;
        self.frames_len += FRAME_OVERHEAD + transaction_id.map_or(36, str::len) + payload.len();
    }
}

/// What a client packed: stored as it came, if nothing of it is left out and nothing is added.
#[derive(Clone, Debug)]
pub struct Came {
    /// One zstd frame.
    pub z: Bytes,
    /// What it inflates to.
    pub frames: Bytes,
}

/// Reads a body. The error is the text of a 400; no part of the body is to be stored then.
///
/// One pass over the bytes; allocates for the lists and for texts with escapes. Source: data plane 3.1.
pub fn parse(body: &[u8]) -> Result<Parsed<'_>, String> {
    let mut reader = Reader::default();
    match reader.body(body) {
        Ok(()) => match reader.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(Parsed { items: reader.items, lanes: reader.lanes.list }),
        },
        Err(error) => Err(format!("bad body: {}", error.describe(body))),
    }
}

#[derive(Default)]
struct Reader<'a> {
    items: Vec<Item<'a>>,
    lanes: Lanes<'a>,
    /// The first thing that refuses a body which is otherwise well formed.
    refusal: Option<String>,
}

impl<'a> Reader<'a> {
    fn body(&mut self, body: &'a [u8]) -> Result<(), JsonError> {
        let mut scan = Scanner::new(body)?;
        let mut found = false;
        scan.enter_object("expected an object with `items`")?;
        while let Some(key) = scan.next_key()? {
            if key.is("items") {
                found = true;
                *self = Reader::default();
                self.items(&mut scan)?;
            } else {
                scan.skip()?;
            }
        }
        scan.end()?;
        if found { Ok(()) } else { Err(scan.error("items is required")) }
    }

    fn items(&mut self, scan: &mut Scanner<'a>) -> Result<(), JsonError> {
        scan.enter_array("items must be an array")?;
        while scan.next_element()? {
            if self.items.len() == ITEMS_MAX {
                return Err(scan.error(TOO_MANY));
            }
            self.item(scan)?;
        }
        Ok(())
    }

    fn item(&mut self, scan: &mut Scanner<'a>) -> Result<(), JsonError> {
        let (mut queue, mut partition, mut transaction_id, mut payload) = (None, None, None, None);
        scan.enter_object("an item must be an object")?;
        while let Some(key) = scan.next_key()? {
            match Field::of(&key) {
                Field::Queue => queue = Some(scan.text("queue must be a string")?),
                Field::Partition => partition = scan.text_or_null("partition must be a string or null")?,
                Field::TransactionId => transaction_id = scan.text_or_null("transactionId must be a string or null")?,
                Field::Payload => payload = Some(scan.value()?),
                Field::Other => scan.skip()?,
            }
        }
        let queue = queue.ok_or_else(|| scan.error("queue is required"))?;
        let payload = payload.ok_or_else(|| scan.error("payload is required"))?;
        let transaction_id = transaction_id.map(|text| text.decode()).transpose()?;
        let lane = self.lanes.of(queue, partition)?;
        self.check(lane, transaction_id.as_deref());
        self.lanes.list[lane as usize].count(transaction_id.as_deref(), payload);
        self.items.push(Item { lane, transaction_id, trace: None, payload, frame: None });
        Ok(())
    }

    /// Notes what refuses the whole request although it is well formed.
    fn check(&mut self, lane: u32, transaction_id: Option<&str>) {
        if self.refusal.is_some() {
            return;
        }
        let lane = &self.lanes.list[lane as usize];
        // A control character can only have come from an escape: raw ones are no JSON.
        let first_of_lane = lane.items == 0;
        if (first_of_lane && (has_control(&lane.queue) || has_control(&lane.partition)))
            || transaction_id.is_some_and(has_control)
        {
            self.refusal = Some(CONTROL_CHARACTERS.into());
        } else if transaction_id.is_some_and(|text| text.len() > TEXT_MAX) {
            let index = self.items.len();
            self.refusal = Some(format!("transactionId of item {index} exceeds the {TEXT_MAX}-byte limit"));
        }
    }
}

enum Field {
    Queue,
    Partition,
    TransactionId,
    Payload,
    Other,
}

impl Field {
    fn of(key: &Text<'_>) -> Field {
        let decoded;
        let name = if key.escaped {
            let Ok(text) = key.decode() else { return Field::Other };
            decoded = text;
            &*decoded
        } else {
            key.raw
        };
        match name {
            "queue" => Field::Queue,
            "partition" => Field::Partition,
            "transactionId" => Field::TransactionId,
            "payload" => Field::Payload,
            _ => Field::Other,
        }
    }
}

/// The lanes of a body. A body that names one partition over and over is the common case; one that names a
/// different one in each item costs a table look-up an item.
#[derive(Default)]
pub(crate) struct Lanes<'a> {
    pub(crate) list: Vec<Lane<'a>>,
    table: HashMap<(Cow<'a, str>, Cow<'a, str>), u32>,
    last: Option<(&'a str, &'a str, u32)>,
}

impl<'a> Lanes<'a> {
    fn of(&mut self, queue: Text<'a>, partition: Option<Text<'a>>) -> Result<u32, JsonError> {
        let raw_partition = partition.map_or("Default", |text| text.raw);
        if let Some((last_queue, last_partition, lane)) = self.last
            && last_queue == queue.raw
            && last_partition == raw_partition
        {
            return Ok(lane);
        }
        let partition = partition.map_or(Ok(Cow::Borrowed("Default")), |text| text.decode())?;
        let lane = self.find(queue.decode()?, partition);
        self.last = Some((queue.raw, raw_partition, lane));
        Ok(lane)
    }

    pub(crate) fn find(&mut self, queue: Cow<'a, str>, partition: Cow<'a, str>) -> u32 {
        if self.list.len() <= LANES_SCANNED {
            if let Some(at) = self.list.iter().position(|lane| lane.queue == queue && lane.partition == partition) {
                return at as u32;
            }
            if self.list.len() == LANES_SCANNED {
                let names = |(i, lane): (usize, &Lane<'a>)| ((lane.queue.clone(), lane.partition.clone()), i as u32);
                self.table = self.list.iter().enumerate().map(names).collect();
            }
        } else if let Some(lane) = self.table.get(&(queue.clone(), partition.clone())) {
            return *lane;
        }
        let lane = self.list.len() as u32;
        if LANES_SCANNED <= self.list.len() {
            self.table.insert((queue.clone(), partition.clone()), lane);
        }
        let refused = refused_names(&queue, &partition);
        self.list.push(Lane { queue, partition, refused, encrypted: false, items: 0, frames_len: 0, came: None });
        lane
    }
}

/// Why items for these names are refused alone. Source: data plane 1.6, 3.3.
fn refused_names(queue: &str, partition: &str) -> Option<&'static str> {
    if queue.is_empty() {
        Some("queue name is empty")
    } else if partition.is_empty() {
        Some("partition name is empty")
    } else if queue.len() > NAME_BYTES_MAX {
        Some("queue name exceeds the 1024-byte limit")
    } else if partition.len() > NAME_BYTES_MAX {
        Some("partition name exceeds the 1024-byte limit")
    } else {
        None
    }
}

const _: () = assert!(NAME_BYTES_MAX == 1024 && ITEMS_MAX == 250_000); // The texts above say so.
