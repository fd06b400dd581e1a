//! The client of transactions: each connection has a partition of its own, and in each bundle acks one message it holds of
//! that and pushes one to the next queue.
//!
//!     push FILL messages > pop them under one lease > (ack one + push one) x FILL > push FILL messages > ...
//!
//! Filling costs one push and one pop for FILL bundles: about a hundredth of what they cost.

use crate::payload::{ID_LEN, Ids, Payload, Rng};
use crate::request::{plain, write_head};

/// Messages that a connection pops at a time.
const FILL: usize = 200;
/// Longer than any run: what is held stays held.
const LEASE_SECS: u32 = 3600;

/// What a connection holds.
#[derive(Clone, Debug, Default)]
pub struct Held {
    partition_id: Vec<u8>,
    lease_id: Vec<u8>,
    /// Transaction ids, the next one last.
    messages: Vec<Vec<u8>>,
}

impl Held {
    /// What a pop answered, in its order.
    pub fn take(&mut self, lease_id: &[u8], partition_id: &[u8], messages: Vec<Vec<u8>>) {
        (self.lease_id, self.partition_id, self.messages) = (lease_id.to_vec(), partition_id.to_vec(), messages);
        self.messages.reverse();
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Renders their requests. Source: data plane 3.1, 4.1, 7.1.
pub struct BundleWriter {
    host: String,
    queue: String,
    payload: Payload,
    rng: Rng,
    ids: Ids,
    body: Vec<u8>,
    out: Vec<u8>,
}

impl BundleWriter {
    pub fn new(host: &str, queue: &str, payload: Payload, seed: u64) -> BundleWriter {
        let (host, queue) = (host.to_owned(), queue.to_owned());
        let (rng, ids) = (Rng::new(seed), Ids::new(seed.rotate_left(32)));
        BundleWriter { host, queue, payload, rng, ids, body: Vec::new(), out: Vec::new() }
    }

    /// The queue that bundles push to.
    pub fn next_queue(queue: &str) -> String {
        format!("{queue}-next")
    }

    /// The push that fills a connection's partition, and how many messages it has.
    pub fn fill(&mut self, token: usize, stamp: u64) -> (&[u8], usize) {
        self.body.clear();
        self.body.extend_from_slice(b"{\"items\":[");
        for n in 0..FILL {
            if n > 0 {
                self.body.push(b',');
            }
            let queue = self.queue.clone();
            self.item(&queue, token, stamp);
        }
        self.body.extend_from_slice(b"]}");
        (self.post("/api/v1/push"), FILL)
    }

    /// The pop of all that.
    pub fn pop(&self, token: usize) -> Vec<u8> {
        let query = format!("batch={FILL}&leaseSeconds={LEASE_SECS}");
        plain("GET", &format!("/api/v1/pop/queue/{}/partition/t{token}?{query}", self.queue), &self.host)
    }

    /// The next bundle of a connection that holds something.
    pub fn next(&mut self, token: usize, held: &mut Held, stamp: u64) -> &[u8] {
        let message = held.messages.pop().unwrap_or_default();
        self.body.clear();
        for part in [
            b"{\"operations\":[{\"type\":\"ack\",\"status\":\"completed\",\"transactionId\":\"".as_slice(),
            &message,
            b"\",\"partitionId\":\"",
            &held.partition_id,
            b"\",\"leaseId\":\"",
            &held.lease_id,
            b"\"},{\"type\":\"push\",\"items\":[",
        ] {
            self.body.extend_from_slice(part);
        }
        self.item(&BundleWriter::next_queue(&self.queue.clone()), token, stamp);
        self.body.extend_from_slice(b"]}]}");
        self.post("/api/v1/transaction")
    }

    fn item(&mut self, queue: &str, token: usize, stamp: u64) {
        let mut id = [0; ID_LEN];
        self.ids.write(&mut id);
        let head = format!("{{\"queue\":\"{queue}\",\"partition\":\"t{token}\",\"transactionId\":\"");
        self.body.extend_from_slice(head.as_bytes());
        self.body.extend_from_slice(&id);
        self.body.extend_from_slice(b"\",\"payload\":");
        let at = self.body.len();
        self.body.extend_from_slice(self.payload.template());
        let end = self.body.len();
        self.payload.write(&mut self.rng, stamp, &mut self.body[at..end]);
        self.body.push(b'}');
    }

    fn post(&mut self, path: &str) -> &[u8] {
        self.out.clear();
        write_head(&mut self.out, "POST", path, &self.host, Some(self.body.len()));
        self.out.extend_from_slice(&self.body);
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn body(bytes: &[u8]) -> Value {
        let text = std::str::from_utf8(bytes).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    #[test]
    fn a_bundle_acks_one_held_message_and_pushes_one() {
        let mut writer = BundleWriter::new("h:1", "q", Payload::new(256), 1);
        let (bytes, n) = writer.fill(7, 5);
        let filled = body(bytes);
        let items = filled["items"].as_array().unwrap();
        assert_eq!((items.len(), items.len(), &items[0]["partition"]), (n, FILL, &Value::from("t7")));
        let ids = items.iter().map(|item| item["transactionId"].as_str().unwrap().as_bytes().to_vec()).collect();
        let mut held = Held::default();
        assert!(held.is_empty());
        held.take(b"lease", b"4096", ids);
        for item in items {
            assert!(!held.is_empty());
            let bundle = body(writer.next(7, &mut held, 5));
            let (ack, push) = (&bundle["operations"][0], &bundle["operations"][1]);
            assert_eq!((&ack["transactionId"], &ack["partitionId"]), (&item["transactionId"], &Value::from("4096")));
            assert_eq!((&ack["leaseId"], &push["items"][0]["queue"]), (&Value::from("lease"), &Value::from("q-next")));
        }
        assert!(held.is_empty());
    }
}
