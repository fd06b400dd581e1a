//! The final drain: what the database holds when everybody has gone, and what had to happen on the way there.

use crate::client::Client;
use crate::history::{DeadLetter, FinalLane, FinalSpool, Plan, Probe, Stored};
use crate::work::wire::{canary, encode, stamp};
use crate::world::World;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of one page of a read by offset.
const PAGE_BYTES: u64 = 4 << 20;

/// Messages that some group has not completed yet; `None` when the database does not say.
pub fn backlog(world: &World, plan: &Plan) -> Option<u64> {
    let sql = format!(
        "select coalesce(sum(greatest(p.last_offset - greatest(coalesce(c.committed, -1), p.log_start - 1), 0)), 0) \
         from queen.queues as q join queen.partitions as p on p.queue_id = q.id \
         join queen.groups as g on g.queue_id = q.id \
         left join queen.cursors as c on c.partition_id = p.id and c.group_id = g.id where q.name in ({})",
        names(plan)
    );
    let spooled: u64 =
        world.sides.iter().filter_map(|side| spool_of(side.broker.port)).map(|(pending, _)| pending).sum();
    Some(world.postgres.query(&sql).ok()?.trim().parse::<u64>().ok()? + spooled)
}

fn names(plan: &Plan) -> String {
    plan.queues.iter().map(|queue| format!("'{}'", queue.name)).collect::<Vec<_>>().join(", ")
}

/// (pending, failed) of a broker's spool; `None` when it has none.
pub fn spool_of(port: u16) -> Option<(u64, u64)> {
    let answer = Client::new(port, CLIENT_TIMEOUT).get("/api/v1/status/buffers").ok()?;
    let body: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)?;
    Some((body["pending"].as_u64()?, body["failed"].as_u64()?))
}

/// The spools of all brokers together; `None` when they have none: then nothing ever came into the directory, not even
/// its lock. Files set aside are counted as records: one each at least.
pub fn spool(world: &World) -> Option<FinalSpool> {
    let mut all = FinalSpool::default();
    let mut any = false;
    for side in &world.sides {
        let is_used = std::fs::read_dir(side.broker.spool_dir()).is_ok_and(|mut files| files.next().is_some());
        let Some((pending, _)) = spool_of(side.broker.port).filter(|_| is_used) else { continue };
        any = true;
        all.pending += pending;
        let aside = std::fs::read_dir(side.broker.spool_dir().join("failed"));
        all.quarantined += aside.map_or(0, |files| files.flatten().count() as u64);
    }
    any.then_some(all)
}

/// Everything stored in the queues of the plan, read by offset through one broker, straight from the database.
pub fn lanes(world: &World, plan: &Plan) -> Result<Vec<FinalLane>, String> {
    let sql = format!(
        "select q.name, p.name, p.log_start, p.last_offset from queen.queues as q \
         join queen.partitions as p on p.queue_id = q.id where q.name in ({}) order by q.name, p.name",
        names(plan)
    );
    let mut client = Client::new(world.sides[0].broker.port, CLIENT_TIMEOUT);
    let mut lanes = Vec::new();
    for row in world.postgres.query(&sql)?.lines() {
        let fields: Vec<&str> = row.split('\t').collect();
        let [queue, partition, log_start, last_offset] = fields[..] else { return Err(format!("odd row {row:?}")) };
        let number = |text: &str| text.parse::<i64>().map_err(|e| e.to_string());
        let mut lane = FinalLane {
            queue: queue.into(),
            partition: partition.into(),
            log_start: number(log_start)?,
            last_offset: number(last_offset)?,
            ..FinalLane::default()
        };
        // Retention may go on meanwhile: what was there when the reading began is what counts.
        let retained = plan.queues.iter().any(|q| q.name == lane.queue && q.retention_secs > 0);
        if !retained {
            read_log(&mut client, &mut lane)?;
            accepted(world, &mut lane)?;
        }
        lane.cursors = cursors(world, queue, partition)?;
        lanes.push(lane);
    }
    Ok(lanes)
}

fn read_log(client: &mut Client, lane: &mut FinalLane) -> Result<(), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Record {
        offset: i64,
        transaction_id: String,
        payload: Box<RawValue>,
        ts: String,
    }
    #[derive(Deserialize)]
    struct Entry {
        error: Option<String>,
        #[serde(default)]
        records: Vec<Record>,
    }
    #[derive(Deserialize)]
    struct Page {
        entries: Vec<Entry>,
    }
    let mut next = lane.log_start;
    while next <= lane.last_offset {
        let entry = json!({"queue": lane.queue, "partition": lane.partition, "offset": next, "maxBytes": PAGE_BYTES});
        let body = json!({ "entries": [entry] }).to_string();
        let answer = client.post("/api/v1/fetch", body.as_bytes()).map_err(|e| format!("{e:?}"))?;
        if answer.status != 200 {
            return Err(format!("fetch: {} {}", answer.status, answer.text()));
        }
        let page: Page = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        let entry = page.entries.into_iter().next().ok_or("no entry")?;
        if let Some(error) = entry.error {
            return Err(format!("{}/{}: {error}", lane.queue, lane.partition));
        }
        // Nothing readable below the end is for the checker to say.
        let Some(last) = entry.records.last() else { return Ok(()) };
        next = last.offset + 1;
        for record in entry.records {
            lane.stored.push(Stored {
                offset: record.offset,
                key: record.transaction_id,
                payload: record.payload.get().to_owned(),
                created: stamp(&record.ts).ok_or("a stamp that does not read")?,
                accepted: None,
            });
        }
    }
    Ok(())
}

/// Since when the messages that waited in a spool count for the window, which no answer of a broker says.
fn accepted(world: &World, lane: &mut FinalLane) -> Result<(), String> {
    let sql = format!(
        "select s.base_offset, s.count, (extract(epoch from s.accepted_at) * 1000000)::bigint \
         from queen.queues as q join queen.partitions as p on p.queue_id = q.id join queen.segments as s on s.partition_id = p.id \
         where q.name = '{}' and p.name = '{}' and s.accepted_at is not null",
        lane.queue, lane.partition
    );
    for row in world.postgres.query(&sql)?.lines() {
        let fields: Vec<i64> = row.split('\t').filter_map(|field| field.parse().ok()).collect();
        let [base, count, at] = fields[..] else { return Err(format!("odd row {row:?}")) };
        let segment = lane.stored.iter_mut().filter(|stored| (base..base + count).contains(&stored.offset));
        segment.for_each(|stored| stored.accepted = Some(at));
    }
    Ok(())
}

fn cursors(world: &World, queue: &str, partition: &str) -> Result<Vec<(String, i64)>, String> {
    let sql = format!(
        "select g.name, c.committed from queen.queues as q join queen.partitions as p on p.queue_id = q.id \
         join queen.cursors as c on c.partition_id = p.id join queen.groups as g on g.id = c.group_id \
         where q.name = '{queue}' and p.name = '{partition}'"
    );
    let rows = world.postgres.query(&sql)?;
    let row = |row: &str| {
        let (group, committed) = row.split_once('\t')?;
        Some((group.to_owned(), committed.parse().ok()?))
    };
    rows.lines().map(|line| row(line).ok_or(format!("odd row {line:?}"))).collect()
}

/// Dead letters, payloads as a reader sees them: encrypted ones come through the broker. Any queue may have some: while the
/// database is away the broker does not know which ones want it.
pub fn dead_letters(world: &World, plan: &Plan) -> Result<Vec<DeadLetter>, String> {
    let sql = format!(
        "select d.id, q.name, p.name, d.group_name, d.message_offset, d.transaction_id, \
         case when d.encrypted then '' else convert_from(d.payload, 'UTF8') end, d.error, d.retry_count \
         from queen.dead_letters as d join queen.queues as q on q.id = d.queue_id \
         join queen.partitions as p on p.id = d.partition_id where q.name in ({}) order by d.failed_at",
        names(plan)
    );
    let rows = world.postgres.query(&sql)?;
    let mut opened = HashMap::new();
    for queue in &plan.queues {
        opened.extend(listed(world.sides[0].broker.port, &queue.name)?);
    }
    let letter = |row: &str| {
        let fields: Vec<&str> = row.split('\t').collect();
        let [id, queue, partition, group, offset, key, payload, error, retries] = fields[..] else { return None };
        Some(DeadLetter {
            queue: queue.into(),
            partition: partition.into(),
            group: group.into(),
            offset: offset.parse().ok()?,
            key: key.into(),
            payload: opened.get(id).cloned().unwrap_or_else(|| payload.to_owned()),
            error: error.into(),
            retry_count: retries.parse().ok()?,
        })
    };
    rows.lines().map(|line| letter(line).ok_or(format!("odd row {line:?}"))).collect()
}

/// Payloads of a queue's dead letters by the id of their row.
fn listed(port: u16, queue: &str) -> Result<HashMap<String, String>, String> {
    #[derive(Deserialize)]
    struct Row {
        id: String,
        data: Box<RawValue>,
    }
    #[derive(Deserialize)]
    struct Page {
        messages: Vec<Row>,
    }
    let path = format!("/api/v1/dlq?queue={}&limit=100000", encode(queue));
    let answer = Client::new(port, CLIENT_TIMEOUT).get(&path).map_err(|e| format!("{e:?}"))?;
    if answer.status != 200 {
        return Err(format!("dlq: {} {}", answer.status, answer.text()));
    }
    let page: Page = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    Ok(page.messages.into_iter().map(|row| (row.id, row.data.get().to_owned())).collect())
}

/// Files of the database, the spools and the logs in which the canary of this seed lies in plain text.
pub fn canaries(world: &World, seed: u64) -> Result<Vec<String>, String> {
    let text = canary(seed);
    let finder = memchr::memmem::Finder::new(text.as_bytes());
    let mut hits = Vec::new();
    let mut dirs: Vec<PathBuf> = vec![world.postgres.dir().to_owned()];
    dirs.extend(world.sides.iter().map(|side| side.broker.dir().to_owned()));
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                // A file that goes meanwhile is no place any more.
                Ok(kind) if kind.is_file() => {
                    let bytes = std::fs::read(entry.path()).unwrap_or_default();
                    if finder.find(&bytes).is_some() {
                        hits.push(entry.path().display().to_string());
                    }
                }
                _ => {}
            }
        }
    }
    Ok(hits)
}

/// After the last heal, through each broker: a push is `queued`, and a pop delivers it.
pub fn recovery(world: &World, prefix: &str, limit: Duration) -> Vec<Probe> {
    let mut probes = Vec::new();
    let began = Instant::now();
    let took = |done: bool| done.then(|| began.elapsed().as_millis() as u64);
    for (n, side) in world.sides.iter().enumerate() {
        let queue = format!("{prefix}-probe{n}");
        let port = side.clients.port;
        let pushed = until(began, limit, || push_one(port, &queue, "p"));
        probes.push(Probe { what: format!("a push through broker {n} after the heal"), took_ms: took(pushed) });
        let popped = pushed && until(began, limit, || pop_one(port, &queue, 1000).is_some());
        probes.push(Probe { what: format!("a pop through broker {n} after the heal"), took_ms: took(popped) });
    }
    probes
}

/// What a broker with two shards and no clients has open: database connections, rings, files; with room to spare.
const DESCRIPTORS_MAX: usize = 96;

/// When all clients have gone, so have their descriptors.
pub fn descriptors(world: &World, limit: Duration) -> Vec<Probe> {
    let began = Instant::now();
    let open = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count());
    let probe = |n: usize, pid: u32| {
        let few = until(began, limit, || open(pid) <= DESCRIPTORS_MAX);
        let took_ms = few.then(|| began.elapsed().as_millis() as u64);
        Probe { what: format!("at most {DESCRIPTORS_MAX} descriptors of broker {n}, it has {}", open(pid)), took_ms }
    };
    let pids = world.sides.iter().enumerate().filter_map(|(n, side)| Some((n, side.broker.pid()?)));
    pids.map(|(n, pid)| probe(n, pid)).collect()
}

/// Polls whose clients have left take nothing: a message pushed afterwards reaches the live poll, at its first attempt.
pub fn dead_polls(world: &World, prefix: &str) -> Vec<Probe> {
    const POLLS: usize = 10;
    const LIMIT: Duration = Duration::from_secs(20);
    let port = world.sides[0].clients.port;
    let queue = format!("{prefix}-polls");
    let path = pop_path(&queue, 30_000);
    for _ in 0..POLLS {
        let mut client = Client::new(port, CLIENT_TIMEOUT);
        let _ = client.write("GET", &path, b"");
        std::thread::sleep(PAUSE);
        client.hang_up();
    }
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    let pushed = until(began, LIMIT, || push_one(port, &queue, "p"));
    let attempt = if pushed { pop_one(port, &queue, LIMIT.as_millis() as u64) } else { None };
    let what = format!("a message after {POLLS} clients left their polls, at attempt {}", attempt.unwrap_or(0));
    vec![Probe { what, took_ms: (attempt == Some(1)).then(|| began.elapsed().as_millis() as u64) }]
}

fn until(began: Instant, limit: Duration, mut ask: impl FnMut() -> bool) -> bool {
    loop {
        if ask() {
            return true;
        }
        if limit < began.elapsed() {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

fn push_one(port: u16, queue: &str, partition: &str) -> bool {
    let body = json!({"items": [{"queue": queue, "partition": partition, "payload": 1}]}).to_string();
    let answer = Client::new(port, Duration::from_secs(5)).post("/api/v1/push", body.as_bytes());
    let Ok(answer) = answer else { return false };
    let verdicts: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    verdicts[0]["status"] == "queued"
}

/// The attempt of the message that came.
fn pop_one(port: u16, queue: &str, wait_ms: u64) -> Option<i64> {
    let timeout = Duration::from_millis(wait_ms) + Duration::from_secs(5);
    let answer = Client::new(port, timeout).get(&pop_path(queue, wait_ms)).ok().filter(|a| a.status == 200)?;
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    body["messages"][0]["deliveryAttempt"].as_i64()
}

fn pop_path(queue: &str, wait_ms: u64) -> String {
    let queue = encode(queue);
    format!(
        "/api/v1/pop/queue/{queue}?consumerGroup=g&subscriptionMode=all&leaseSeconds=60&wait=true&timeout={wait_ms}"
    )
}

/// Removes the queues of an episode, so that the next one is not slower for it.
pub fn remove(world: &World, plan: &Plan, prefix: &str) {
    let mut client = Client::new(world.sides[0].broker.port, CLIENT_TIMEOUT);
    let probes = (0..world.sides.len()).map(|n| format!("{prefix}-probe{n}")).chain([format!("{prefix}-polls")]);
    for name in plan.queues.iter().map(|queue| queue.name.clone()).chain(probes) {
        let _ = client.send("DELETE", &format!("/api/v1/resources/queues/{}", encode(&name)), b"");
    }
}
