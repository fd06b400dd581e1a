//! Answers: where one ends, and whether it says what the run needs.
//!
//! Bodies are scanned, not parsed: the client asks three things of an answer (all queued? which messages?
//! all acked?) and each is a search for a text that the contract fixes. Nothing is assumed: an answer that
//! does not hold the expected count is an error of the run. Keys are searched, so a payload that contained
//! them would mislead the scan; the payloads are this client's own and contain none.

use crate::payload::{ID_LEN, STAMP_LEN, read_hex};
use memchr::memmem;

/// Longest answer that is read; beyond it the run fails. A pop of 1,000 messages of 4 KiB is 5 MB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest head that is read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is at the start of the received bytes.
#[derive(Debug, PartialEq)]
pub enum Framed {
    /// Nothing can be said before this many bytes are there.
    Need(usize),
    /// One whole answer: its status, where its body starts, where it ends.
    Whole { status: u16, body_at: usize, end: usize },
    /// Not an answer this client reads; the text says why.
    Unreadable(&'static str),
}

/// Finds the end of the answer that starts at `bytes[0]`.
pub fn frame(bytes: &[u8]) -> Framed {
    let Some(head_len) = memmem::find(bytes, b"\r\n\r\n") else {
        if bytes.len() > HEAD_BYTES_MAX {
            return Framed::Unreadable("head over 16 KiB");
        }
        return Framed::Need(bytes.len() + 1);
    };
    let head = &bytes[..head_len];
    if !head.starts_with(b"HTTP/1.1 ") {
        return Framed::Unreadable("not an HTTP/1.1 answer");
    }
    let Some(status) = head.get(9..12).and_then(number) else {
        return Framed::Unreadable("no status code");
    };
    let mut body_len = None;
    for line in head.split(|&c| c == b'\n').skip(1) {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            body_len = number(value);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Framed::Unreadable("chunked answers are not read");
        } else if name.eq_ignore_ascii_case(b"connection") && value.eq_ignore_ascii_case(b"close") {
            return Framed::Unreadable("the broker closes a keep-alive connection");
        }
    }
    let body_at = head_len + 4;
    let body_len = match (body_len, status) {
        (_, 204 | 304) => 0,
        (Some(len), _) => len as usize,
        (None, _) => return Framed::Unreadable("no content-length"),
    };
    let end = body_at + body_len;
    if end > ANSWER_BYTES_MAX {
        return Framed::Unreadable("answer over 64 MiB");
    }
    if bytes.len() < end {
        return Framed::Need(end);
    }
    Framed::Whole { status: status as u16, body_at, end }
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// How many items of a push answer are queued, named or counted. Source: data plane 3.2, binary forms 7.2.
pub fn queued(body: &[u8]) -> usize {
    const COUNTED: &[u8] = b"\"queued\":";
    if body.starts_with(b"{") {
        let Some(at) = memmem::find(body, COUNTED) else { return 0 };
        let digits = &body[at + COUNTED.len()..];
        let end = digits.iter().position(|c| !c.is_ascii_digit()).unwrap_or(digits.len());
        return number(&digits[..end]).unwrap_or(0) as usize;
    }
    memmem::find_iter(body, b"\"status\":\"queued\"").count()
}

/// How many items of an ack answer were accepted. Source: data plane 5.3.
pub fn acked(body: &[u8]) -> usize {
    memmem::find_iter(body, b"\"success\":true").count()
}

/// One delivered message; the texts are slices of the answer.
#[derive(Debug, PartialEq)]
pub struct Message<'a> {
    pub transaction_id: &'a [u8],
    pub partition_id: &'a [u8],
    /// When the producer was due to send it; None if its payload is not one of this client's.
    pub stamp: Option<u64>,
}

/// The lease id of a pop answer.
pub fn lease_id(body: &[u8]) -> Option<&[u8]> {
    let at = memmem::find(body, b"\"leaseId\":\"")?;
    string(body, at + "\"leaseId\":\"".len())
}

/// Calls `each` for every message of a pop answer, in its order. Source: data plane 4.6, 4.7 (and its key order).
///
/// One search per message, a second one only when several partitions were claimed. None: not such an answer.
pub fn messages<'a>(body: &'a [u8], mut each: impl FnMut(Message<'a>)) -> Option<usize> {
    const KEY: &[u8] = b"\"transactionId\":\"";
    const PARTITION: &[u8] = b"\"partitionId\":\"";
    let partition_at = memmem::find(body, PARTITION)? + PARTITION.len();
    let first_partition = string(body, partition_at)?;
    let tail = &body[body.len().saturating_sub(160)..];
    let one_partition = memmem::find(tail, b"\"partitionsClaimed\":1}").is_some()
        || memmem::find(tail, b"\"partitionsClaimed\":1,").is_some();
    let partition_finder = memmem::Finder::new(PARTITION);
    let mut count = 0;
    for at in memmem::find_iter(body, KEY) {
        let id_at = at + KEY.len();
        let transaction_id = string(body, id_at)?;
        let rest = &body[id_at + transaction_id.len()..];
        let partition_id = if one_partition {
            first_partition
        } else {
            let at = partition_finder.find(rest)? + PARTITION.len();
            string(rest, at)?
        };
        each(Message { transaction_id, partition_id, stamp: stamp(rest) });
        count += 1;
    }
    Some(count)
}

/// The stamp of the message whose bytes follow its transactionId in `rest`.
fn stamp(rest: &[u8]) -> Option<u64> {
    const USUAL: &[u8] = b"\",\"traceId\":null,\"data\":{\"at\":\"";
    const DATA: &[u8] = b"\"data\":{\"at\":\"";
    let at = if rest.starts_with(USUAL) {
        USUAL.len()
    } else {
        memmem::find(&rest[..rest.len().min(512)], DATA)? + DATA.len()
    };
    read_hex(rest.get(at..at + STAMP_LEN)?)
}

/// The JSON string content that starts at `at`, up to its quote. Ids hold no escapes.
fn string(body: &[u8], at: usize) -> Option<&[u8]> {
    let rest = body.get(at..)?;
    if rest.get(ID_LEN) == Some(&b'"') && !rest[..ID_LEN].contains(&b'"') {
        return Some(&rest[..ID_LEN]);
    }
    Some(&rest[..memchr::memchr(b'"', rest)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const POP: &str = concat!(
        "{\"success\":true,\"queue\":\"q\",\"partition\":\"p1\",\"partitionId\":\"57607\",",
        "\"leaseId\":\"01990a12-4410-7bbb-9bbb-0000000000f1\",\"consumerGroup\":\"__QUEUE_MODE__\",\"messages\":[",
        "{\"id\":\"01990a11-7c20-7d3e-8a41-5f0e6a7b1c01\",\"transactionId\":\"rf-1\",\"traceId\":null,",
        "\"data\":{\"at\":\"00000000000000ff\",\"x\":1},\"producerSub\":null,\"createdAt\":\"2026-09-12T08:15:30.123456Z\",",
        "\"partitionId\":\"57607\",\"partition\":\"p1\",\"leaseId\":\"01990a12-4410-7bbb-9bbb-0000000000f1\",",
        "\"consumerGroup\":\"__QUEUE_MODE__\",\"deliveryAttempt\":1,\"offset\":18},",
        "{\"id\":\"01990a11-7c20-7d3e-8a41-5f0e6a7b1c02\",\"transactionId\":\"0e3c1f4e-9a4b-4c1d-8e2f-5f0e6a7b1c02\",",
        "\"traceId\":\"t\",\"data\":{\"at\":\"0000000000000100\",\"x\":1},\"producerSub\":null,",
        "\"createdAt\":\"2026-09-12T08:15:30.123456Z\",\"partitionId\":\"57608\",\"partition\":\"p2\",",
        "\"leaseId\":\"01990a12-4410-7bbb-9bbb-0000000000f1\",\"consumerGroup\":\"__QUEUE_MODE__\",",
        "\"deliveryAttempt\":1,\"offset\":3}],\"partitionsClaimed\":2}"
    );

    fn collect(body: &str) -> Vec<(String, String, Option<u64>)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut all = Vec::new();
        messages(body.as_bytes(), |m| all.push((text(m.transaction_id), text(m.partition_id), m.stamp))).unwrap();
        all
    }

    #[test]
    fn a_pop_answer_gives_each_message_its_own_partition() {
        let second = "0e3c1f4e-9a4b-4c1d-8e2f-5f0e6a7b1c02";
        assert_eq!(
            collect(POP),
            [("rf-1".into(), "57607".into(), Some(255)), (second.into(), "57608".into(), Some(256))]
        );
        assert_eq!(lease_id(POP.as_bytes()), Some(b"01990a12-4410-7bbb-9bbb-0000000000f1".as_slice()));
        let one = POP.replace("\"partitionsClaimed\":2", "\"partitionsClaimed\":1").replace("57608", "57607");
        assert!(collect(&one).iter().all(|(_, partition, _)| partition == "57607"));
        assert_eq!(messages(b"{\"success\":false}", |_| ()), None);
    }

    #[test]
    fn foreign_payloads_have_no_stamp() {
        let body = POP.replace("\"at\":\"", "\"on\":\"");
        assert!(collect(&body).iter().all(|(_, _, stamp)| stamp.is_none()));
    }

    #[test]
    fn a_push_answer_counts_only_queued_items() {
        let body =
            br#"[{"index":0,"message_id":"m","transaction_id":"t","queueName":"q","status":"queued","offset":18},
            {"index":1,"message_id":"m","transaction_id":"t","queueName":"q","status":"duplicate","offset":18},
            {"index":2,"message_id":"m","transaction_id":"t","queueName":"q","status":"buffered"}]"#;
        assert_eq!(queued(body), 1);
        assert_eq!(queued(br#"{"count":100,"queued":98,"duplicate":2,"error":0}"#), 98);
        assert_eq!(queued(br#"{"error":"queued"}"#), 0);
    }

    #[test]
    fn an_ack_answer_counts_only_accepted_items() {
        let body = br#"[{"index":0,"transactionId":"a","success":true,"error":null,"leaseReleased":false},
            {"index":1,"transactionId":"b","success":false,"error":"invalid or expired lease"}]"#;
        assert_eq!(acked(body), 1);
    }

    #[test]
    fn answers_cut_anywhere_are_found_once_whole() {
        let stream = b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\nContent-Type: application/json\r\n\r\n[1,2]\
            HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 Internal Server Error\r\nContent-Length:0\r\n\r\n";
        for cut in 0..stream.len() {
            let (mut held, mut found) = (Vec::new(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                held.extend_from_slice(part);
                loop {
                    match frame(&held) {
                        Framed::Whole { status, body_at, end } => {
                            found.push((status, held[body_at..end].to_vec()));
                            held.drain(..end);
                        }
                        Framed::Need(need) => {
                            assert!(need > held.len());
                            break;
                        }
                        Framed::Unreadable(why) => panic!("{why} at cut {cut}"),
                    }
                }
            }
            assert_eq!(found, [(201, b"[1,2]".to_vec()), (204, vec![]), (500, vec![])], "cut {cut}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let unreadable = |text: &str| matches!(frame(text.as_bytes()), Framed::Unreadable(_));
        assert!(unreadable("SSH-2.0\r\n\r\n"));
        assert!(unreadable("HTTP/1.1 abc\r\n\r\n"));
        assert!(unreadable("HTTP/1.1 200 OK\r\n\r\n"));
        assert!(unreadable("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
        assert!(unreadable("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"));
        assert!(unreadable(&"x".repeat(HEAD_BYTES_MAX + 1)));
    }
}
