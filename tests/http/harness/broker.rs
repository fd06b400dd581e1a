//! A broker process and the requests tests send most.

use super::client::{Answer, Client, encode};
use super::postgres::{Postgres, shared_postgres};
use super::process::{free_port, scratch_dir, signal, spawn};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

pub struct Broker {
    pub port: u16,
    /// Its database on [`shared_postgres`], when it has one there.
    pub database: Option<String>,
    setup: Setup,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

/// How a broker is started: the environment it gets, nothing of the test's own.
#[derive(Clone, Default)]
pub struct Setup {
    env: Vec<(String, String)>,
    database: Option<String>,
    port: Option<u16>,
}

impl Setup {
    /// On the shared PostgreSQL, in an empty database of its own.
    pub fn clean() -> Setup {
        let database = shared_postgres().create_database();
        Setup::on(shared_postgres(), &database)
    }

    /// On this PostgreSQL and database.
    pub fn on(postgres: &Postgres, database: &str) -> Setup {
        Setup { env: postgres.env(database), database: Some(database.to_owned()), port: None }.env("QUEEN_SHARDS", "2")
    }

    /// With the embedded PostgreSQL under `data_dir`.
    pub fn embedded(data_dir: &Path) -> Setup {
        Setup::default().env("QUEEN_DATA_DIR", data_dir.to_str().expect("UTF-8")).env("QUEEN_SHARDS", "2")
    }

    pub fn env(mut self, name: &str, value: &str) -> Setup {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn port(mut self, port: u16) -> Setup {
        self.port = Some(port);
        self
    }

    /// Starts it and waits until `/health` is 200.
    #[track_caller]
    pub fn start(self) -> Broker {
        let broker = self.launch();
        broker.wait_ready();
        broker
    }

    /// Starts it and does not wait.
    pub fn launch(self) -> Broker {
        let port = self.port.unwrap_or_else(free_port);
        let log = scratch_dir("broker").join("log");
        let broker = Broker { port, database: self.database.clone(), setup: self, log, child: Mutex::new(None) };
        broker.launch_again();
        broker
    }
}

/// Started at first use; `None` when it did not start: later tests then fail at once instead of each waiting for it.
type Shared = OnceLock<Option<Broker>>;
static TWO_SHARDS: Shared = OnceLock::new();
static ONE_SHARD: Shared = OnceLock::new();

/// The shared broker on two shards, with the runtime it chooses itself.
pub fn two_shards() -> &'static Broker {
    shared(&TWO_SHARDS, Setup::clean)
}

/// The shared broker on one shard, driven by epoll.
pub fn one_shard() -> &'static Broker {
    shared(&ONE_SHARD, || Setup::clean().env("QUEEN_SHARDS", "1").env("QUEEN_RUNTIME", "epoll"))
}

fn shared(broker: &'static Shared, setup: impl FnOnce() -> Setup) -> &'static Broker {
    let started =
        broker.get_or_init(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| setup().start())).ok());
    started.as_ref().expect("the shared broker did not start, see the first failure")
}

pub fn stop_shared() {
    for broker in [&TWO_SHARDS, &ONE_SHARD].into_iter().flat_map(|b| b.get().and_then(Option::as_ref)) {
        broker.kill();
    }
}

/// The broker's binary: Cargo names it to the tests of its own package; to others it is a sibling of `deps/`.
fn binary() -> PathBuf {
    if let Some(path) = option_env!("CARGO_BIN_EXE_queen") {
        return path.into();
    }
    let test = std::env::current_exe().expect("the test's own path");
    let path = test.parent().and_then(Path::parent).expect("target/<profile>/deps").join("queen");
    assert!(path.exists(), "{} is missing: build the workspace first", path.display());
    path
}

/// One message of a pop answer, with its payload as the bytes that came.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: String,
    pub transaction_id: String,
    pub trace_id: Option<String>,
    pub data: Box<RawValue>,
    pub producer_sub: Option<String>,
    pub created_at: String,
    pub partition_id: String,
    pub partition: String,
    pub lease_id: String,
    pub consumer_group: String,
    pub delivery_attempt: i64,
    pub offset: i64,
}

/// A pop answer. The default value stands for 204.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pop {
    pub success: bool,
    pub queue: String,
    pub partition: String,
    pub partition_id: String,
    pub lease_id: String,
    pub consumer_group: String,
    pub messages: Vec<Message>,
    pub partitions_claimed: i64,
}

impl Pop {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn keys(&self) -> Vec<&str> {
        self.messages.iter().map(|m| m.transaction_id.as_str()).collect()
    }

    pub fn offsets(&self) -> Vec<i64> {
        self.messages.iter().map(|m| m.offset).collect()
    }
}

impl Message {
    /// An ack item for this message.
    pub fn ack(&self, status: &str) -> Value {
        json!({"transactionId": self.transaction_id, "partitionId": self.partition_id, "status": status,
               "leaseId": self.lease_id})
    }
}

impl Broker {
    fn launch_again(&self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).expect("log");
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PORT", self.port.to_string()).envs(self.setup.env.iter().cloned());
        if !self.setup.env.iter().any(|(n, _)| n == "QUEEN_DATA_DIR") {
            command.env("QUEEN_DATA_DIR", self.log.parent().expect("a directory").join("data"));
        }
        if !self.setup.env.iter().any(|(n, _)| n == "FILE_BUFFER_DIR") {
            command.env("FILE_BUFFER_DIR", self.spool_dir());
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("dup")).stderr(log);
        *self.child.lock().unwrap() = Some(spawn(command, libc::SIGKILL).expect("the broker starts"));
    }

    /// Where its spool is, unless its setup says otherwise.
    pub fn spool_dir(&self) -> PathBuf {
        self.log.parent().expect("a directory").join("buffers")
    }

    #[track_caller]
    pub fn wait_ready(&self) {
        let start = Instant::now();
        loop {
            if Client::new(self.port).get("/health").is_ok_and(|a| a.status == 200) {
                return;
            }
            if let Some(status) = self.try_wait() {
                panic!("the broker ended ({status}) before it was ready\n{}", self.log_tail());
            }
            assert!(start.elapsed() < 2 * super::PATIENCE, "not ready\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `kill -9`, and the end of the process.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            signal(child.id(), libc::SIGKILL);
            let _ = child.wait();
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().as_ref().expect("a running broker").id()
    }

    pub fn signal(&self, signal_number: i32) {
        signal(self.pid(), signal_number);
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait_end()
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub fn wait_end(&self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(start.elapsed() < 2 * super::PATIENCE, "the broker does not end\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().as_mut()?.try_wait().expect("wait")
    }

    /// Starts it again after [`Broker::kill`], and does not wait.
    pub fn start_again(&self) {
        self.launch_again();
    }

    /// Starts it again on the same port, database and directory, and waits until it is ready.
    #[track_caller]
    pub fn restart(&self) {
        self.kill();
        // The kernel takes a killed ring's sockets down on its own time.
        super::eventually("the port is free", || std::net::TcpListener::bind(("127.0.0.1", self.port)).ok());
        self.launch_again();
        self.wait_ready();
    }

    /// Where its log and its data directory are.
    pub fn dir(&self) -> &Path {
        self.log.parent().expect("a directory")
    }

    /// All it has printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(60);
        format!(
            "--- log of the broker on port {} ({} lines)\n{}\n---",
            self.port,
            lines.len(),
            lines[from..].join("\n")
        )
    }

    pub fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// One request on this thread's kept connection.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        thread_local!(static CLIENTS: RefCell<HashMap<u16, Client>> = RefCell::default());
        let answer = CLIENTS.with_borrow_mut(|clients| {
            let client = clients.entry(self.port).or_insert_with(|| self.client());
            let head: &[(&str, &str)] = if body.is_some() { &[("Content-Type", "application/json")] } else { &[] };
            client.send(method, path, head, body)
        });
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e}\n{}", self.log_tail()))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body.to_string().as_bytes()))
    }

    /// Pushes items; the verdicts. Fails on anything but 201.
    #[track_caller]
    pub fn push(&self, items: Value) -> Vec<Value> {
        self.push_raw(json!({ "items": items }).to_string().as_bytes())
    }

    /// Pushes a body as it is; the verdicts. Fails on anything but 201.
    #[track_caller]
    pub fn push_raw(&self, body: &[u8]) -> Vec<Value> {
        let answer = self.send("POST", "/api/v1/push", Some(body));
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json().as_array().expect("an array of verdicts").clone()
    }

    /// Pushes one message per key into one partition, payload `{"k": key}`; all must be `queued`.
    #[track_caller]
    pub fn push_keys(&self, queue: &str, partition: &str, keys: &[&str]) -> Vec<Value> {
        let item = |k: &&str| json!({"queue": queue, "partition": partition, "transactionId": k, "payload": {"k": k}});
        let verdicts = self.push(keys.iter().map(item).collect());
        for verdict in &verdicts {
            assert_eq!(verdict["status"], "queued", "{verdict}");
        }
        verdicts
    }

    /// Pushes `n` messages `prefix0`.. into one partition.
    #[track_caller]
    pub fn push_n(&self, queue: &str, partition: &str, prefix: &str, n: usize) -> Vec<Value> {
        let keys: Vec<String> = (0..n).map(|i| format!("{prefix}{i}")).collect();
        self.push_keys(queue, partition, &keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A wildcard pop: `queue` is encoded, `query` goes as it is. 204 is an empty answer.
    #[track_caller]
    pub fn pop(&self, queue: &str, query: &str) -> Pop {
        self.pop_path(&format!("/api/v1/pop/queue/{}?{query}", encode(queue)))
    }

    /// A pinned pop.
    #[track_caller]
    pub fn pop_pinned(&self, queue: &str, partition: &str, query: &str) -> Pop {
        self.pop_path(&format!("/api/v1/pop/queue/{}/partition/{}?{query}", encode(queue), encode(partition)))
    }

    #[track_caller]
    pub fn pop_path(&self, path: &str) -> Pop {
        let answer = self.get(path);
        match answer.status {
            204 => Pop::default(),
            200 => serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{path}: {e}: {}", answer.text())),
            status => panic!("{path}: {status} {}", answer.text()),
        }
    }

    /// Acks items for a group (`""` is queue mode); one result per item.
    #[track_caller]
    pub fn ack(&self, group: &str, items: &[Value]) -> Vec<Value> {
        let mut body = json!({ "acknowledgments": items });
        if !group.is_empty() {
            body["consumerGroup"] = group.into();
        }
        let answer = self.post("/api/v1/ack/batch", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().expect("an array of results").clone()
    }

    /// Acks items, all of which must succeed.
    #[track_caller]
    pub fn ack_ok(&self, group: &str, items: &[Value]) -> Vec<Value> {
        let results = self.ack(group, items);
        for result in &results {
            assert_eq!(result["success"], true, "{result}");
        }
        results
    }

    /// Completes all messages of a pop.
    #[track_caller]
    pub fn complete(&self, group: &str, pop: &Pop) -> Vec<Value> {
        self.ack_ok(group, &pop.messages.iter().map(|m| m.ack("completed")).collect::<Vec<_>>())
    }

    /// Configures a queue by merge; the effective options.
    #[track_caller]
    pub fn configure(&self, queue: &str, options: Value) -> Value {
        let answer = self.post("/api/v1/configure", &json!({"queue": queue, "options": options}));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["options"].clone()
    }

    /// `GET /resources/queues/:queue`, which must exist.
    #[track_caller]
    pub fn queue_detail(&self, queue: &str) -> Value {
        let answer = self.get(&format!("/api/v1/resources/queues/{}", encode(queue)));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// Dead letters of a queue, oldest first, as `group|transactionId|error|retryCount`.
    #[track_caller]
    pub fn dead_letters(&self, queue: &str) -> Vec<String> {
        let sql = format!(
            "select d.group_name || '|' || d.transaction_id || '|' || d.error || '|' || d.retry_count \
             from queen.dead_letters as d join queen.queues as q on q.id = d.queue_id \
             where q.name = '{queue}' order by d.failed_at, d.message_offset"
        );
        let rows = shared_postgres().query(self.database.as_ref().expect("a database"), &sql);
        rows.lines().map(str::to_owned).collect()
    }

    /// How many dead letters a queue has on a PostgreSQL of its own.
    #[track_caller]
    pub fn dead_letters_on(&self, postgres: &Postgres, queue: &str) -> Vec<String> {
        let sql = format!(
            "select d.transaction_id from queen.dead_letters as d join queen.queues as q on q.id = d.queue_id \
             where q.name = '{queue}'"
        );
        let rows = postgres.query(self.database.as_ref().expect("a database"), &sql);
        rows.lines().map(str::to_owned).collect()
    }

    /// A sample of `/metrics/prometheus`, by its full name with labels.
    #[track_caller]
    pub fn metric(&self, sample: &str) -> Option<f64> {
        let text = self.get("/metrics/prometheus").text();
        let line = text.lines().find(|l| l.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Polls parked on a queue now.
    #[track_caller]
    pub fn parked(&self, queue: &str) -> u64 {
        self.metric(&format!("queen_parked_long_polls{{queue=\"{queue}\"}}")).unwrap_or(0.0) as u64
    }

    /// Pops and completes until nothing comes; all messages.
    #[track_caller]
    pub fn drain(&self, queue: &str, query: &str, group: &str) -> Vec<Message> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let pop = self.pop(queue, query);
            if pop.is_empty() {
                return all;
            }
            if !pop.lease_id.is_empty() {
                self.complete(group, &pop);
            }
            all.extend(pop.messages);
        }
        panic!("{queue} does not run dry");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
        self.kill();
    }
}
