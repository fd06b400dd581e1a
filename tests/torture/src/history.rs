//! The history: what every client asked and what it was told, on one clock.
//!
//!     client > invoke(Call) .. request .. > end(Ok | Fail | Info)       fault > invoke(Fault) .. > end(Ok)
//!
//! Holds: `at` is CLOCK_MONOTONIC of the one driver process, so the real-time order of events is exact. `Fail` means
//! known not done; whatever may have been done (a time-out, a reset, a 5xx) is `Info`. Lines go to the file as they
//! happen; the checker reads the folded operations, from memory or from that file.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Microseconds of the monotonic clock since the rig started.
pub type Micros = u64;
/// Microseconds UTC of this machine, which is also PostgreSQL's: what `createdAt` is compared with.
pub type Wall = i64;

/// One instant on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    pub at: Micros,
    pub wall: Wall,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushItem {
    pub queue: String,
    pub partition: String,
    /// The wire's `transactionId`.
    pub key: String,
    /// The payload as the bytes that were sent.
    pub payload: String,
}

/// One message of an ack, by where its delivery said it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AckItem {
    pub partition: String,
    pub partition_id: String,
    pub offset: i64,
    pub key: String,
    pub word: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    Completed,
    Failed,
    Retry,
    Dlq,
}

impl Word {
    pub fn text(self) -> &'static str {
        match self {
            Word::Completed => "completed",
            Word::Failed => "failed",
            Word::Retry => "retry",
            Word::Dlq => "dlq",
        }
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    Push {
        items: Vec<PushItem>,
    },
    Pop {
        queue: String,
        group: String,
        auto_ack: bool,
        lease_secs: u64,
    },
    Ack {
        queue: String,
        group: String,
        lease: String,
        items: Vec<AckItem>,
    },
    Extend {
        lease: String,
        secs: u64,
    },
    Transaction {
        queue: String,
        group: String,
        lease: String,
        inputs: Vec<AckItem>,
        outputs: Vec<PushItem>,
    },
    /// Done by the nemesis; from invoke to end it lasts.
    Fault {
        kind: String,
    },
    /// From invoke to end the database is away for certain, and the broker is left alone.
    Away,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushResult {
    /// `queued`, `duplicate`, `buffered`, `failed` or `error`.
    pub status: String,
    pub id: String,
    pub offset: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivered {
    pub partition: String,
    pub partition_id: String,
    pub offset: i64,
    pub key: String,
    pub id: String,
    pub payload: String,
    pub created: Wall,
    pub attempt: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AckResult {
    pub success: bool,
    pub noop: bool,
    pub dlq: bool,
    pub released: bool,
    pub error: Option<String>,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Push(Vec<PushResult>),
    /// A 204 has no messages and no lease.
    Pop {
        lease: String,
        messages: Vec<Delivered>,
    },
    Ack(Vec<AckResult>),
    Extend {
        success: bool,
    },
    Transaction {
        success: bool,
        reason: String,
    },
    /// How often it struck: connections reset, processes killed.
    Fault {
        hits: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum End {
    Ok(Answer),
    /// Known not done.
    Fail(String),
    /// Nobody knows.
    Info(String),
}

/// One operation, folded. Without `ended` it was open when the history closed, which is `Info`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    pub client: u16,
    pub broker: u8,
    pub call: Call,
    pub invoked: Moment,
    pub ended: Option<(Moment, End)>,
}

impl Op {
    pub fn answer(&self) -> Option<&Answer> {
        match &self.ended {
            Some((_, End::Ok(answer))) => Some(answer),
            _ => None,
        }
    }

    /// When the answer was there; for an operation without one, never.
    pub fn done(&self) -> Micros {
        match &self.ended {
            Some((moment, End::Ok(_))) => moment.at,
            _ => Micros::MAX,
        }
    }

    /// Whether it may have been done without anybody knowing.
    pub fn is_unknown(&self) -> bool {
        !matches!(self.ended, Some((_, End::Ok(_) | End::Fail(_))))
    }
}

/// A queue of the run, with the options the rules need.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueuePlan {
    pub name: String,
    pub retry_limit: u32,
    pub dedup_secs: u64,
    pub delay_secs: u64,
    /// 0: nothing is ever removed.
    pub retention_secs: u64,
    /// Payloads are ciphertext wherever they lie.
    #[serde(default)]
    pub encrypted: bool,
    pub groups: Vec<GroupPlan>,
}

/// A group that subscribed to everything before the first push.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupPlan {
    pub name: String,
    pub auto_ack: bool,
    /// Its acks go through transactions that push one output per input; the queue of the outputs.
    pub outputs: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub brokers: u8,
    pub queues: Vec<QueuePlan>,
    /// Longest a liveness probe may take; see C13.
    pub recovery_ms: u64,
}

/// One stored message, as a read by offset shows it at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub offset: i64,
    pub key: String,
    pub payload: String,
    pub created: Wall,
    /// When the broker says that it accepted it, if it waited in a spool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<Wall>,
}

impl Stored {
    /// What its dedup window counts from.
    pub fn since(&self) -> Wall {
        self.accepted.unwrap_or(self.created)
    }
}

/// One partition at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalLane {
    pub queue: String,
    pub partition: String,
    pub log_start: i64,
    pub last_offset: i64,
    pub stored: Vec<Stored>,
    /// (group, committed).
    pub cursors: Vec<(String, i64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub queue: String,
    pub partition: String,
    pub group: String,
    pub offset: i64,
    pub key: String,
    pub payload: String,
    pub error: String,
    pub retry_count: u32,
}

/// What the spool says of itself after the last drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalSpool {
    pub pending: u64,
    /// Records in files set aside; 0 unless the rig damaged a file.
    pub quarantined: u64,
    /// Records the rig lost on purpose.
    pub damaged: u64,
}

/// One thing that had to happen after the last heal. `took_ms` `None`: it did not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub what: String,
    pub took_ms: Option<u64>,
}

/// The final drain: what the database holds when everybody has gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finals {
    pub lanes: Vec<FinalLane>,
    pub dead_letters: Vec<DeadLetter>,
    /// `None`: this broker has no spool.
    pub spool: Option<FinalSpool>,
    pub probes: Vec<Probe>,
    /// Ends of the broker that nobody asked for.
    pub crashes: Vec<String>,
    /// Where a plaintext canary was found; `None`: not looked for.
    pub canaries: Option<Vec<String>>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub plan: Plan,
    pub ops: Vec<Op>,
    pub finals: Finals,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Plan(Plan),
    Invoke { op: usize, client: u16, broker: u8, at: Moment, call: Call },
    End { op: usize, at: Moment, end: End },
    Finals(Finals),
}

/// Takes events from all threads.
pub struct Recorder {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ops: Vec<Op>,
    file: Option<BufWriter<File>>,
}

/// An operation that was invoked.
#[derive(Clone, Copy, Debug)]
pub struct OpId(usize);

impl Recorder {
    /// `path`: where the lines go; `started`: instant 0.
    pub fn new(started: Instant, path: Option<&Path>, plan: &Plan) -> std::io::Result<Recorder> {
        let file = path.map(File::create).transpose()?.map(BufWriter::new);
        let recorder = Recorder { started, state: Mutex::new(State { ops: Vec::new(), file }) };
        recorder.lock().write(&Line::Plan(plan.clone()));
        Ok(recorder)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as Wall);
        Moment { at: self.started.elapsed().as_micros() as Micros, wall }
    }

    /// Before the first byte is sent.
    pub fn invoke(&self, client: u16, broker: u8, call: Call) -> OpId {
        let mut state = self.lock();
        let invoked = self.now();
        let op = state.ops.len();
        state.write_invoke(op, client, broker, invoked, &call);
        state.ops.push(Op { client, broker, call, invoked, ended: None });
        OpId(op)
    }

    /// After the last byte of the answer was read.
    pub fn end(&self, op: OpId, end: End) {
        let at = self.now();
        let mut state = self.lock();
        if state.file.is_some() {
            state.write(&Line::End { op: op.0, at, end: end.clone() });
        }
        state.ops[op.0].ended = Some((at, end));
    }

    /// A copy of what is there by now, without an end.
    pub fn so_far(&self, plan: &Plan) -> History {
        History { plan: plan.clone(), ops: self.lock().ops.clone(), finals: Finals::default() }
    }

    /// Closes the history.
    pub fn close(self, plan: Plan, finals: Finals) -> History {
        let mut state = self.state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.write(&Line::Finals(finals.clone()));
        if let Some(file) = &mut state.file {
            let _ = file.flush();
        }
        History { plan, ops: state.ops, finals }
    }
}

impl State {
    fn write(&mut self, line: &Line) {
        let Some(file) = &mut self.file else { return };
        // A history that cannot be written is still judged from memory.
        if serde_json::to_writer(&mut *file, line).is_err() || file.write_all(b"\n").is_err() {
            self.file = None;
        }
    }

    fn write_invoke(&mut self, op: usize, client: u16, broker: u8, at: Moment, call: &Call) {
        if self.file.is_some() {
            self.write(&Line::Invoke { op, client, broker, at, call: call.clone() });
        }
    }
}

/// Reads a history back from its file.
pub fn read(path: &Path) -> Result<History, String> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut history = History::default();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|e| e.to_string())?;
        let line = serde_json::from_str(&line).map_err(|e| format!("line {}: {e}", number + 1))?;
        match line {
            Line::Plan(plan) => history.plan = plan,
            Line::Invoke { client, broker, at, call, .. } => {
                history.ops.push(Op { client, broker, call, invoked: at, ended: None });
            }
            Line::End { op, at, end } => {
                history.ops.get_mut(op).ok_or("an end without an invoke")?.ended = Some((at, end));
            }
            Line::Finals(finals) => history.finals = finals,
        }
    }
    Ok(history)
}
