//! Requests as text, answers as history. The rig's own reading of the contract.

use crate::client::Answer as HttpAnswer;
use crate::history::{AckItem, AckResult, Answer, Delivered, PushItem, PushResult, QueuePlan, Wall};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A payload that is only right byte for byte.
pub fn payload(key: &str, salt: u64) -> String {
    let pad = "x".repeat((salt % 48) as usize);
    format!(r#"{{"k":"{key}", "n":9007199254740993,"x":1e400,"z":-0,"e":1.0,"u":"\u00e9é","s":{salt},"p":"{pad}"}}"#)
}

/// What must lie in no file in plain text.
pub fn canary(seed: u64) -> String {
    format!("canary-{seed:016x}-of-a-sealed-queue")
}

/// A payload with the canary in it.
pub fn sealed_payload(key: &str, salt: u64, seed: u64) -> String {
    format!(r#"{{"k":"{key}","c":"{}","n":9007199254740993,"s":{salt}}}"#, canary(seed))
}

/// The body of a configure call.
pub fn configure(queue: &QueuePlan) -> Value {
    json!({"queue": queue.name, "options": {
        "retryLimit": queue.retry_limit, "dedupWindowSeconds": queue.dedup_secs,
        "delayedProcessing": queue.delay_secs, "leaseTime": super::LEASE_SECS,
        "encryptionEnabled": queue.encrypted,
        "retentionEnabled": queue.retention_secs > 0, "retentionSeconds": queue.retention_secs,
    }})
}

/// The items as a JSON array, payloads as they are.
pub fn items(items: &[PushItem]) -> String {
    let one = |item: &PushItem| {
        let (queue, partition, key) = (json!(item.queue), json!(item.partition), json!(item.key));
        let payload = &item.payload;
        format!(r#"{{"queue":{queue},"partition":{partition},"transactionId":{key},"payload":{payload}}}"#)
    };
    format!("[{}]", items.iter().map(one).collect::<Vec<_>>().join(","))
}

pub fn push_body(all: &[PushItem]) -> Vec<u8> {
    format!(r#"{{"items":{}}}"#, items(all)).into_bytes()
}

pub fn read_push(answer: &HttpAnswer) -> Result<Answer, String> {
    #[derive(Deserialize)]
    struct Result_ {
        status: String,
        message_id: String,
        offset: Option<i64>,
    }
    let results: Vec<Result_> = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let result = |r: Result_| PushResult { status: r.status, id: r.message_id, offset: r.offset };
    Ok(Answer::Push(results.into_iter().map(result).collect()))
}

pub fn read_pop(answer: &HttpAnswer) -> Result<Answer, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Message {
        id: String,
        transaction_id: String,
        data: Box<RawValue>,
        created_at: String,
        partition_id: String,
        partition: String,
        delivery_attempt: i64,
        offset: i64,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Pop {
        lease_id: String,
        messages: Vec<Message>,
    }
    if answer.status == 204 {
        return Ok(Answer::Pop { lease: String::new(), messages: Vec::new() });
    }
    let pop: Pop = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let messages = pop.messages.into_iter().map(|m| {
        Ok(Delivered {
            partition: m.partition,
            partition_id: m.partition_id,
            offset: m.offset,
            key: m.transaction_id,
            id: m.id,
            payload: m.data.get().to_owned(),
            created: stamp(&m.created_at).ok_or_else(|| format!("createdAt {}", m.created_at))?,
            attempt: m.delivery_attempt,
        })
    });
    Ok(Answer::Pop { lease: pop.lease_id, messages: messages.collect::<Result<_, String>>()? })
}

/// One item of an ack. Its error text names the offset, so that a dead letter shows whose nack made it.
fn ack(item: &AckItem, lease: &str) -> Value {
    json!({"transactionId": item.key, "partitionId": item.partition_id, "status": item.word.text(), "leaseId": lease,
           "error": format!("nacked {}", item.offset)})
}

pub fn ack_body(group: &str, lease: &str, items: &[AckItem]) -> Vec<u8> {
    let items: Vec<Value> = items.iter().map(|item| ack(item, lease)).collect();
    json!({"consumerGroup": group, "acknowledgments": items}).to_string().into_bytes()
}

pub fn read_ack(answer: &HttpAnswer) -> Result<Answer, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Result_ {
        success: bool,
        error: Option<String>,
        lease_released: bool,
        dlq: bool,
        noop: bool,
    }
    let results: Vec<Result_> = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let result = |r: Result_| AckResult {
        success: r.success,
        noop: r.noop,
        dlq: r.dlq,
        released: r.lease_released,
        error: r.error,
    };
    Ok(Answer::Ack(results.into_iter().map(result).collect()))
}

pub fn read_extend(answer: &HttpAnswer) -> Result<Answer, String> {
    let body: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let success = body["success"].as_bool().ok_or("no success")?;
    Ok(Answer::Extend { success })
}

pub fn transaction_body(group: &str, lease: &str, inputs: &[AckItem], outputs: &[PushItem]) -> Vec<u8> {
    let acks = inputs.iter().map(|item| {
        let mut one = ack(item, lease);
        one["type"] = "ack".into();
        one["consumerGroup"] = group.into();
        one.to_string()
    });
    let push = format!(r#"{{"type":"push","items":{}}}"#, items(outputs));
    let operations: Vec<String> = std::iter::once(push).chain(acks).collect();
    format!(r#"{{"operations":[{}],"requiredLeases":[{}]}}"#, operations.join(","), json!(lease)).into_bytes()
}

pub fn read_transaction(answer: &HttpAnswer) -> Result<Answer, String> {
    let body: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let success = body["success"].as_bool().ok_or("no success")?;
    let reason = body["reason"].as_str().unwrap_or_default().to_owned();
    Ok(Answer::Transaction { success, reason })
}

/// `2026-09-12T08:15:30.123456Z` as microseconds since 1970.
pub fn stamp(text: &str) -> Option<Wall> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let fraction = text.get(19..)?.strip_suffix('Z')?;
    let micros = match fraction.strip_prefix('.') {
        Some(digits) if digits.len() <= 6 => digits.parse::<i64>().ok()? * 10i64.pow(6 - digits.len() as u32),
        Some(_) => return None,
        None => 0,
    };
    // Days of the civil calendar, counted in years that begin in March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros)
}

/// Percent-encodes one path segment or query value.
pub fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let one = |byte: u8| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_to_the_microsecond() {
        assert_eq!(stamp("1970-01-01T00:00:00.000001Z"), Some(1));
        assert_eq!(stamp("2000-02-29T12:00:00Z"), Some(951_825_600_000_000));
        assert_eq!(stamp("2026-11-29T20:25:17.234032Z"), Some(1_795_983_917_234_032));
        assert_eq!(stamp("2026-11-29"), None);
    }

    #[test]
    fn a_payload_goes_into_the_body_as_it_is() {
        let item = PushItem { queue: "q".into(), partition: "p".into(), key: "k".into(), payload: payload("k", 3) };
        let body = String::from_utf8(push_body(std::slice::from_ref(&item))).expect("UTF-8");
        assert!(body.contains(&item.payload), "{body}");
        assert!(serde_json::from_str::<Box<RawValue>>(&body).is_ok(), "{body}");
    }
}
