//! Requests as bytes: rendered once, then only ids, stamps, digits and the partition are patched in place.
//!
//! Holds: every push of a run has the same length, so its head never changes. One template serves all
//! connections; what a socket does not take at once is the connection's to keep.

use crate::made::Made;
use crate::packed::PackedTemplate;
use crate::payload::{ID_LEN, Ids, Payload, Rng, id_sum};
use crate::scenario::{AckMode, Form, Scenario};
use std::sync::LazyLock;

/// The pushes of a run, in its form.
pub enum Pushes {
    Json(PushTemplate),
    Packed(PackedTemplate),
    /// Of either form, made beforehand.
    Made(Made),
}

impl Pushes {
    pub fn new(host: &str, queue: &str, scenario: &Scenario, seed: u64) -> Pushes {
        let payload = Payload::new(scenario.payload as usize);
        let (partitions, batch) = (scenario.partitions, scenario.batch);
        let draw = Draw { partitions, spread: scenario.push_partitions, next: None };
        let pushes = match scenario.form {
            Form::Json => Pushes::Json(PushTemplate::new(host, queue, draw, batch, payload, seed)),
            Form::Packed | Form::PackedCounts => {
                let counts = scenario.form == Form::PackedCounts;
                Pushes::Packed(PackedTemplate::new(host, queue, partitions, batch, counts, payload, seed))
            }
        };
        match scenario.made {
            0 => pushes,
            made => Pushes::Made(Made::new(pushes, made as usize)),
        }
    }

    /// Pushes that go through all partitions in order, as many in each as its batch reaches.
    pub fn in_order(host: &str, queue: &str, scenario: &Scenario, seed: u64) -> Pushes {
        let (partitions, batch) = (scenario.partitions, scenario.batch);
        let draw = Draw { partitions, spread: batch.min(partitions), next: Some(0) };
        Pushes::Json(PushTemplate::new(host, queue, draw, batch, Payload::new(scenario.payload as usize), seed))
    }

    /// The next request, and the sum of its ids. `stamp`: when it was due, nanoseconds of the client's clock.
    pub fn next(&mut self, stamp: u64) -> (&[u8], u64) {
        match self {
            Pushes::Json(template) => template.next(stamp),
            Pushes::Packed(template) => template.next(stamp),
            Pushes::Made(made) => made.next(stamp),
        }
    }
}

/// Which partitions a push goes to: `spread` neighbours, beginning with one drawn at random or with the next.
pub struct Draw {
    pub partitions: u32,
    pub spread: u32,
    /// In order instead of at random: where the next push begins.
    pub next: Option<u32>,
}

impl Draw {
    fn first(&mut self, rng: &mut Rng) -> u32 {
        let Some(next) = &mut self.next else { return rng.below(self.partitions) };
        let first = *next;
        *next = ((u64::from(first) + u64::from(self.spread)) % u64::from(self.partitions)) as u32;
        first
    }

    /// The partition of item `n` of `batch`: items of one partition stand together.
    fn of_item(&self, first: u32, n: usize, batch: usize) -> u32 {
        let step = (n as u64 * u64::from(self.spread) / batch as u64) % u64::from(self.partitions);
        ((u64::from(first) + step) % u64::from(self.partitions)) as u32
    }
}

/// The push request of a run. Source: data plane 3.1.
pub struct PushTemplate {
    bytes: Vec<u8>,
    /// Where the first item starts; items are `stride` bytes apart.
    items_at: usize,
    stride: usize,
    batch: usize,
    /// Inside an item.
    partition_at: usize,
    id_at: usize,
    payload_at: usize,
    payload: Payload,
    draw: Draw,
    rng: Rng,
    ids: Ids,
}

/// Digits of a partition name, so that all names of a run are equally long.
pub fn partition_digits(partitions: u32) -> usize {
    (partitions.max(1) - 1).to_string().len()
}

/// Writes a number in decimal over all of `out`.
pub fn write_digits(mut n: u32, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
}

impl PushTemplate {
    pub fn new(host: &str, queue: &str, draw: Draw, batch: u32, payload: Payload, seed: u64) -> PushTemplate {
        let digits = partition_digits(draw.partitions);
        let mut item = format!("{{\"queue\":\"{queue}\",\"partition\":\"p").into_bytes();
        let partition_at = item.len();
        item.resize(item.len() + digits, b'0');
        item.extend_from_slice(b"\",\"transactionId\":\"");
        let id_at = item.len();
        item.resize(item.len() + ID_LEN, b'0');
        item.extend_from_slice(b"\",\"payload\":");
        let payload_at = item.len();
        item.extend_from_slice(payload.template());
        item.extend_from_slice(b"},");

        let batch = batch as usize;
        let body_len = "{\"items\":[".len() + batch * item.len() - 1 + "]}".len();
        let mut bytes = head("POST", "/api/v1/push", host, Some(body_len));
        bytes.extend_from_slice(b"{\"items\":[");
        let items_at = bytes.len();
        for _ in 0..batch {
            bytes.extend_from_slice(&item);
        }
        bytes.pop(); // The comma after the last item.
        bytes.extend_from_slice(b"]}");
        PushTemplate {
            bytes,
            items_at,
            stride: item.len(),
            batch,
            partition_at,
            id_at,
            payload_at,
            payload,
            draw,
            rng: Rng::new(seed),
            ids: Ids::new(seed.rotate_left(32)),
        }
    }

    /// The next request: new messages for the partitions that are its turn, and the sum of their ids.
    ///
    /// `stamp`: when it was due, nanoseconds of the client's clock.
    pub fn next(&mut self, stamp: u64) -> (&[u8], u64) {
        let digits = partition_digits(self.draw.partitions);
        let first = self.draw.first(&mut self.rng);
        let mut sum = 0u64;
        for n in 0..self.batch {
            let item = &mut self.bytes[self.items_at + n * self.stride..];
            let partition = self.draw.of_item(first, n, self.batch);
            write_digits(partition, &mut item[self.partition_at..self.partition_at + digits]);
            let id = &mut item[self.id_at..self.id_at + ID_LEN];
            self.ids.write(id);
            sum = sum.wrapping_add(id_sum(id));
            self.payload.write(&mut self.rng, stamp, &mut item[self.payload_at..self.payload_at + self.payload.len()]);
        }
        (&self.bytes, sum)
    }
}

/// A wildcard pop that waits; of a group that is not registered yet it subscribes to everything there is. Source: data plane 4.1, 4.4.
pub fn pop(host: &str, queue: &str, scenario: &Scenario, group: Option<&str>, wait_ms: u64) -> Vec<u8> {
    let Scenario { pop_batch, pop_partitions, .. } = scenario;
    let frames = if scenario.framed { "&frames=true" } else { "" };
    let auto = if scenario.ack == AckMode::Auto { "&autoAck=true" } else { "" };
    let group = group.map_or(String::new(), |group| format!("&consumerGroup={group}&subscriptionMode=all"));
    let path = format!(
        "/api/v1/pop/queue/{queue}?batch={pop_batch}&partitions={pop_partitions}&wait=true&timeout={wait_ms}{frames}{auto}{group}"
    );
    head("GET", &path, host, None)
}

/// A pop that registers a group, which gets what comes from now on, and gets nothing itself. Source: data plane 4.4.
pub fn register(host: &str, queue: &str, group: &str) -> Vec<u8> {
    plain("GET", &format!("/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=new"), host)
}

/// Creates the queue with options. Source: data plane 8.1.
pub fn configure(host: &str, queue: &str, options: &serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    let body = serde_json::json!({ "queue": queue, "options": options }).to_string();
    let mut out = head("POST", "/api/v1/configure", host, Some(body.len()));
    out.extend_from_slice(body.as_bytes());
    out
}

/// A request with no body.
pub fn plain(method: &str, path: &str, host: &str) -> Vec<u8> {
    head(method, path, host, None)
}

/// Renders acks from what a pop answered. Source: data plane 5.1.
pub struct AckWriter {
    host: String,
    body: Vec<u8>,
    out: Vec<u8>,
    items: u32,
}

impl AckWriter {
    pub fn new(host: &str) -> AckWriter {
        AckWriter { host: host.to_owned(), body: Vec::new(), out: Vec::new(), items: 0 }
    }

    pub fn start(&mut self) {
        self.body.clear();
        self.items = 0;
    }

    /// Adds one completed message. The texts are the JSON string contents that the pop answered, verbatim.
    pub fn add(&mut self, transaction_id: &[u8], partition_id: &[u8], lease_id: &[u8]) {
        if self.items > 0 {
            self.body.push(b',');
        }
        for part in [
            b"{\"transactionId\":\"".as_slice(),
            transaction_id,
            b"\",\"partitionId\":\"",
            partition_id,
            b"\",\"status\":\"completed\",\"leaseId\":\"",
            lease_id,
            b"\"}",
        ] {
            self.body.extend_from_slice(part);
        }
        self.items += 1;
    }

    /// The request and how many items it acks: the single route for one, the batch route for more.
    pub fn finish(&mut self, group: Option<&str>) -> (&[u8], u32) {
        let group = group.map_or(String::new(), |group| format!("\"consumerGroup\":\"{group}\","));
        let (path, open, close) = match self.items {
            1 => ("/api/v1/ack", format!("{{{group}"), ""),
            _ => ("/api/v1/ack/batch", format!("{{{group}\"acknowledgments\":["), "]}"),
        };
        // One item is the body itself: its own brace gives way to the one before the group.
        let items = if self.items == 1 { &self.body[1..] } else { &self.body[..] };
        self.out.clear();
        write_head(&mut self.out, "POST", path, &self.host, Some(open.len() + items.len() + close.len()));
        [open.as_bytes(), items, close.as_bytes()].iter().for_each(|part| self.out.extend_from_slice(part));
        (&self.out, self.items)
    }
}

/// What every request carries, where the broker asks for it. Not an argument, because results keep those.
static TOKEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("QUEEN_PERF_TOKEN").ok());

fn head(method: &str, path: &str, host: &str, body_len: Option<usize>) -> Vec<u8> {
    let mut out = Vec::new();
    write_head(&mut out, method, path, host, body_len);
    out
}

pub fn write_head(out: &mut Vec<u8>, method: &str, path: &str, host: &str, body_len: Option<usize>) {
    write_typed_head(out, method, path, host, body_len.map(|len| (len, "application/json")));
}

/// `body`: length and media type.
pub fn write_typed_head(out: &mut Vec<u8>, method: &str, path: &str, host: &str, body: Option<(usize, &str)>) {
    for part in [method, " ", path, " HTTP/1.1\r\nHost: ", host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some((len, media_type)) = body {
        out.extend_from_slice(format!("Content-Type: {media_type}\r\nContent-Length: {len}\r\n").as_bytes());
    }
    if let Some(token) = &*TOKEN {
        out.extend_from_slice(format!("Authorization: Bearer {token}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::HashSet;

    fn body(request: &[u8]) -> Value {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        assert_eq!(len.parse::<usize>().unwrap(), body.len());
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn a_push_is_one_partition_and_new_ids_each_time() {
        let draw = Draw { partitions: 200, spread: 1, next: None };
        let mut template = PushTemplate::new("h:1", "perf-q", draw, 10, Payload::new(256), 1);
        let (mut partitions, mut ids) = (HashSet::new(), HashSet::new());
        let len = template.bytes.len();
        for stamp in 0..500 {
            let (request, sum) = template.next(stamp);
            assert_eq!(request.len(), len);
            let value = body(request);
            let items = value["items"].as_array().unwrap();
            assert_eq!(items.len(), 10);
            let mut want = 0u64;
            for item in items {
                assert_eq!(item["queue"], "perf-q");
                assert_eq!(item["partition"], items[0]["partition"]);
                assert_eq!(item["payload"].to_string().len(), 256);
                assert_eq!(item["payload"]["at"], format!("{stamp:016x}"));
                let id = item["transactionId"].as_str().unwrap().to_owned();
                want = want.wrapping_add(id_sum(id.as_bytes()));
                assert!(ids.insert(id));
            }
            assert_eq!(sum, want);
            partitions.insert(items[0]["partition"].as_str().unwrap().to_owned());
        }
        assert!(partitions.len() > 150, "{} partitions of 200 in 500 requests", partitions.len());
        assert!(partitions.iter().all(|name| name.len() == 4 && name[1..].parse::<u32>().unwrap() < 200));
    }

    #[test]
    fn a_push_in_order_goes_through_all_partitions_and_begins_again() {
        let scenario = Scenario { partitions: 7, batch: 3, ..Scenario::default() };
        let mut pushes = Pushes::in_order("h:1", "q", &scenario, 1);
        let mut names = Vec::new();
        for _ in 0..7 {
            let items = body(pushes.next(1).0)["items"].as_array().unwrap().clone();
            names.extend(items.iter().map(|item| item["partition"].as_str().unwrap().to_owned()));
        }
        let want: Vec<String> = (0..21).map(|n| format!("p{}", n % 7)).collect();
        assert_eq!(names, want);
    }

    #[test]
    fn items_of_one_partition_stand_together() {
        let draw = Draw { partitions: 10, spread: 4, next: None };
        assert_eq!((0..8).map(|n| draw.of_item(8, n, 8)).collect::<Vec<_>>(), [8, 8, 9, 9, 0, 0, 1, 1]);
    }

    #[test]
    fn one_ack_takes_the_single_route_and_more_take_the_batch_route() {
        for group in [None, Some("g1")] {
            let mut ack = AckWriter::new("h:1");
            ack.start();
            ack.add(b"t1", b"7", b"l");
            let (request, items) = ack.finish(group);
            assert!(request.starts_with(b"POST /api/v1/ack HTTP/1.1\r\n"));
            let one = body(request);
            assert_eq!((one["partitionId"].as_str(), one["consumerGroup"].as_str(), items), (Some("7"), group, 1));
            ack.start();
            ack.add(b"t1", b"7", b"l");
            ack.add(b"t2", b"8", b"l");
            let (request, items) = ack.finish(group);
            assert!(request.starts_with(b"POST /api/v1/ack/batch HTTP/1.1\r\n"));
            let both = body(request);
            assert_eq!((both["acknowledgments"][1]["transactionId"].as_str(), items), (Some("t2"), 2));
            assert_eq!(both["consumerGroup"].as_str(), group);
        }
    }
}
