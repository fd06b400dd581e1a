//! The bodies of a transaction: one shape for what was committed and for what was refused.
//!
//! The set of reasons is closed, clients branch on it and print the text. Source: data plane 7.4, 7.5.

use super::parse::{Operation, Parsed};
use super::{Done, Work};
use crate::http::Response;
use crate::http::json::{push_int, push_quoted, push_uuid};
use crate::http::push::answer as push;
use crate::http::push::plan::Fate;
use queen_shards::command::{AckOutcome, AckSet};
use queen_shards::ids::MessageId;
use queen_shards::place::LaneKey;

/// A refusal: nothing of the request happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No {
    pub status: u16,
    pub reason: &'static str,
    pub error: String,
}

/// Bytes of a result beside its names and ids.
const ENTRY_ROOM: usize = 128;
const ROLLED_BACK: &str = "transaction rolled back";

impl No {
    /// Malformed before anything was asked.
    pub fn bad_request(error: impl Into<String>) -> No {
        No { status: 400, reason: "bad_request", error: error.into() }
    }

    /// A rider this broker does not take yet. Source: data plane 7.5 (feature switches answer 403).
    pub fn disabled(reason: &'static str, rider: &str) -> No {
        No { status: 403, reason, error: format!("{rider} operations are disabled on this broker; {ROLLED_BACK}") }
    }

    fn ack_rejected(error: String) -> No {
        No { status: 200, reason: "ack_rejected", error }
    }

    pub fn ack_failed(set: &AckSet, why: &str) -> No {
        let (partition, group) = (set.partition, &set.group);
        No::ack_rejected(format!("QTXN ack failed for partition {partition} group {group}: {why}; {ROLLED_BACK}"))
    }

    pub fn unknown_key(set: &AckSet, transaction_id: &str) -> No {
        let (partition, group) = (set.partition, &set.group);
        No::ack_rejected(format!(
            "QTXN ack references unknown transactionId {transaction_id} in partition {partition} group {group}; {ROLLED_BACK}"
        ))
    }

    pub fn foreign(partition: &str) -> No {
        No::ack_rejected(format!("QTXN ack references partition {partition} not owned by this tenant; {ROLLED_BACK}"))
    }

    pub fn duplicate(lane: &LaneKey, transaction_id: &str) -> No {
        let (queue, partition) = (&lane.queue, &lane.partition);
        let error = format!(
            "QDUP transactionId {transaction_id} is already stored in queue {queue} partition {partition}; {ROLLED_BACK}"
        );
        No { status: 200, reason: "duplicate", error }
    }

    pub fn response(&self, id: MessageId) -> Response {
        let mut out = Vec::with_capacity(160 + self.error.len());
        out.extend_from_slice(b"{\"transactionId\":\"");
        push_uuid(&mut out, id.0);
        out.extend_from_slice(b"\",\"success\":false,\"reason\":");
        push_quoted(&mut out, self.reason);
        if self.status == 403 {
            out.extend_from_slice(b",\"code\":");
            push_quoted(&mut out, self.reason);
        }
        out.extend_from_slice(b",\"error\":");
        push_quoted(&mut out, &self.error);
        out.extend_from_slice(b",\"results\":[]}");
        Response::json(self.status, out)
    }
}

/// Any other refusal of the store.
pub fn db_error(why: &str) -> No {
    No { status: 200, reason: "db_error", error: format!("{why}; {ROLLED_BACK}") }
}

/// About how many bytes [`committed`] will make of this.
pub fn room(parsed: &Parsed<'_>) -> usize {
    let acked: usize = parsed.acks.iter().map(|ack| ack.transaction_id.len()).sum();
    push::room(&parsed.pushes) + ENTRY_ROOM * parsed.order.len() + acked
}

/// The body of a commit: one result per pushed item and per ack, in the order of the operations.
pub fn committed(id: MessageId, parsed: &Parsed<'_>, ids: &[MessageId], work: &Work, done: &Done) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + room(parsed));
    out.extend_from_slice(b"{\"transactionId\":\"");
    push_uuid(&mut out, id.0);
    out.extend_from_slice(b"\",\"success\":true,\"results\":[");
    for (index, operation) in parsed.order.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_int(&mut out, index);
        match *operation {
            Operation::Push { item } => push_result(&mut out, parsed, ids, work, done, item),
            Operation::Ack { ack } => ack_result(&mut out, parsed, work, done, ack),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

/// The body of a commit whose pushes and acks are counted. The riders' results stay, with their indexes in the full
/// index space. Source: binary forms 10.4.
pub fn counted(id: MessageId, parsed: &Parsed<'_>, work: &Work) -> Vec<u8> {
    let repeats = work.plan.fates.iter().filter(|fate| matches!(fate, Fate::Follows { .. })).count();
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"transactionId\":\"");
    push_uuid(&mut out, id.0);
    out.extend_from_slice(b"\",\"success\":true");
    let counts = [("pushed", work.plan.fates.len() - repeats), ("duplicate", repeats), ("acked", parsed.acks.len())];
    for (name, n) in counts {
        out.push(b',');
        push_quoted(&mut out, name);
        out.push(b':');
        push_int(&mut out, n);
    }
    out.extend_from_slice(b",\"results\":[]}");
    out
}

fn push_result(out: &mut Vec<u8>, parsed: &Parsed<'_>, ids: &[MessageId], work: &Work, done: &Done, item: usize) {
    let pushed = &parsed.pushes.items[item];
    let lane = &parsed.pushes.lanes[pushed.lane as usize];
    let leader = match work.plan.fates[item] {
        Fate::Follows { leader } => leader as usize,
        Fate::Leads { .. } | Fate::Refused => item,
    };
    out.extend_from_slice(b",\"type\":\"push\",\"success\":true,\"transactionId\":");
    match &pushed.transaction_id {
        Some(text) => push_quoted(out, text),
        None => {
            out.push(b'"');
            push_uuid(out, ids[item].0);
            out.push(b'"');
        }
    }
    out.extend_from_slice(b",\"messageId\":\"");
    push_uuid(out, ids[leader].0);
    out.extend_from_slice(b"\",\"queueName\":");
    push_quoted(out, &lane.queue);
    let base = work.plan.draft_of_lane[pushed.lane as usize].and_then(|draft| done.bases.get(draft as usize));
    if let (Fate::Leads { index }, Some(base)) = (work.plan.fates[leader], base) {
        out.extend_from_slice(b",\"offset\":");
        push_int(out, base.0 + index as i64);
    }
    if leader != item {
        out.extend_from_slice(b",\"duplicate\":true");
    }
}

fn ack_result(out: &mut Vec<u8>, parsed: &Parsed<'_>, work: &Work, done: &Done, ack: usize) {
    let (set, item) = work.place_of_ack[ack];
    let outcome = done.sets.get(set as usize).and_then(|set| set.items.get(item as usize));
    out.extend_from_slice(b",\"type\":\"ack\",\"success\":true,\"transactionId\":");
    push_quoted(out, &parsed.acks[ack].transaction_id);
    out.extend_from_slice(b",\"error\":null,\"dlq\":");
    out.extend_from_slice(if outcome == Some(&AckOutcome::DeadLettered) { b"true" } else { b"false" });
}
