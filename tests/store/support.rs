//! A cluster that all tests share, and shorthands for what a test does to a database of its own.

use bytes::Bytes;
use queen::embedded::Embedded;
use queen::rt::{self, Choice};
pub use queen::store::Line;
use queen::store::{self, Client, Conn, Incarnation, On, StoreFacts, Target};
use queen_shards::command::Start;
use queen_shards::effect::{
    Append, AppendLane, AppendOutcome, AppendSegment, Call, Contact, CursorMove, CursorOutcome, CursorTo, GroupRow,
    LaneOutcome, LaneRow, LeaseMust, LeaseTo, Reply, SeededCursor, StoreError,
};
use queen_shards::ids::{GroupId, LeaseId, Offset, PartitionId, Stamp, TenantId};
use queen_shards::place::LaneKey;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Longest anything here may take on a busy machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What tests know of the shared cluster.
pub struct Cluster {
    pub target: Target,
    pub log: PathBuf,
    pub bin_dir: PathBuf,
    pub socket_dir: PathBuf,
}

/// The shared cluster. Its server ends with the thread that started it, so that thread lives as long as the process.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let dir = fresh_dir("cluster");
            let mut embedded = Embedded::prepare(&dir).expect("prepare the cluster");
            embedded.start();
            embedded.wait_ready(PATIENCE).expect("start the cluster");
            let cluster = Cluster {
                target: embedded.target(),
                log: embedded.log().to_owned(),
                bin_dir: embedded.bin_dir().to_owned(),
                socket_dir: dir.join("run"),
            };
            *RUNNING.lock().unwrap() = Some((embedded, dir));
            // SAFETY: a function that takes nothing and does not unwind.
            unsafe { libc::atexit(at_exit) };
            tell.send(cluster).unwrap();
            loop {
                std::thread::park();
            }
        });
        told.recv().expect("the cluster starts")
    })
}

static RUNNING: Mutex<Option<(Embedded, PathBuf)>> = Mutex::new(None);

extern "C" fn at_exit() {
    if let Some((mut embedded, dir)) = RUNNING.lock().ok().and_then(|mut running| running.take()) {
        embedded.stop();
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// A new directory that other users may enter.
pub fn fresh_dir(name: &str) -> PathBuf {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("queen-test-{}-{number}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("make a directory");
    dir
}

/// Runs a future on a runtime of its own; the drivers take turns, so both are tested.
pub fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    rt::run(Choice::Auto, future).expect("a runtime")
}

/// An empty database of the shared cluster.
pub fn empty_database(options: &str) -> Target {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = format!("t{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let target = cluster().target.clone();
    let sql = format!("create database {name} {options}");
    run(async move {
        let conn = Conn::new(target, "test");
        conn.get().await.unwrap().batch_execute(&sql).await.unwrap();
    });
    cluster().target.clone().database(&name)
}

/// A database with the schema.
pub struct Db {
    pub target: Target,
    pub facts: StoreFacts,
    pub client: Rc<Client>,
}

/// Runs a test on a database of its own.
pub fn on_store<F: AsyncFnOnce(Db) + 'static>(test: F) {
    on_database(empty_database(""), test);
}

/// Runs a test on a server of its own: what PostgreSQL may clear depends on what is open in other databases as well.
pub fn on_store_alone<F: AsyncFnOnce(Db) + 'static>(test: F) {
    let dir = fresh_dir("alone");
    let mut embedded = Embedded::prepare(&dir).expect("prepare the cluster");
    embedded.start();
    embedded.wait_ready(PATIENCE).expect("start the cluster");
    on_database(embedded.target(), test);
    embedded.stop();
    let _ = std::fs::remove_dir_all(dir);
}

fn on_database<F: AsyncFnOnce(Db) + 'static>(target: Target, test: F) {
    run(async move {
        let facts = store::boot(&target, true).await.expect("the schema applies");
        let client = connect(&target).await;
        test(Db { target: target.clone(), facts, client }).await;
        disconnect(&target).await;
    });
}

/// Ends the sessions of a database: a connection's task outlives the runtime that it is of.
async fn disconnect(target: &Target) {
    let sessions = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
        order by pid = pg_backend_pid()";
    // The last one is its own.
    let _ = connect(target).await.query_typed(sessions, &[]).await;
}

pub async fn connect(target: &Target) -> Rc<Client> {
    Conn::new(target.clone(), "test").get().await.expect("connect")
}

/// On whichever store is there.
pub fn any(client: &Client) -> On<'_> {
    On { client, means: None }
}

impl Db {
    /// Which store this is.
    pub async fn incarnation(&self) -> Incarnation {
        store::log::read(&self.client, 0, None).await.unwrap().incarnation
    }

    /// Another connection to the same database.
    pub async fn other(&self) -> Rc<Client> {
        connect(&self.target).await
    }

    pub async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// One bigint.
    pub async fn number(&self, sql: &str) -> i64 {
        let sql = format!("select ({sql})::bigint");
        self.client.query_typed(&sql, &[]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"))[0].get(0)
    }

    pub async fn call(&self, ask: Call) -> Reply {
        store::call(&any(&self.client), &ask).await.unwrap_or_else(|e| panic!("{ask:?}: {e}"))
    }

    pub async fn provision(&self, queue: &str, partitions: &[&str]) -> Vec<LaneRow> {
        let lanes = partitions.iter().map(|p| lane(queue, p)).collect();
        match self.call(Call::Provision { lanes }).await {
            Reply::Lanes(rows) => rows.into_iter().map(|row| row.expect("a provisioned lane is there")).collect(),
            other => panic!("{other:?}"),
        }
    }

    pub async fn open(&self, queue: &str, group: &str, contact: Contact) -> Option<GroupRow> {
        let ask = Call::OpenGroup { tenant: TenantId::DEFAULT, queue: queue.into(), group: group.into(), contact };
        match self.call(ask).await {
            Reply::Group(row) => row,
            other => panic!("{other:?}"),
        }
    }

    pub async fn seed(&self, group: GroupId, start: Start, partitions: &[PartitionId]) -> Vec<Option<SeededCursor>> {
        match self.call(Call::SeedCursors { group, start, partitions: partitions.to_vec() }).await {
            Reply::Cursors { rows, .. } => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Where the cursor of a group stands.
    pub async fn committed(&self, group: GroupId, partition: PartitionId) -> Option<i64> {
        let sql = format!(
            "select committed from queen.cursors where partition_id = {} and group_id = {}",
            partition.0, group.0
        );
        self.client.query_typed(&sql, &[]).await.unwrap().first().map(|row| row.get(0))
    }

    /// Pushes one segment of `count` messages and expects it stored.
    pub async fn push(&self, partition: PartitionId, expect: i64, count: u32) -> Stamp {
        let outcome = store::append(&self.client, &one_segment(partition, expect, count), 1, Line::NONE).await.unwrap();
        match outcome.lanes[..] {
            [LaneOutcome::Appended { created_at }] => created_at,
            ref other => panic!("{other:?}"),
        }
    }

    pub async fn move_one(&self, it: CursorMove) -> CursorOutcome {
        store::move_cursors(&self.client, &[it], Line::NONE).await.unwrap().moves[0]
    }
}

pub fn lane(queue: &str, partition: &str) -> LaneKey {
    LaneKey::new(TenantId::DEFAULT, queue.into(), partition.into())
}

/// A segment of `count` messages for lane `lane` of a commit.
pub fn segment(lane: u32, rel: u32, count: u32, seed: u64) -> AppendSegment {
    let keys: Vec<u8> = (0..count).flat_map(|i| ((seed as u128) << 32 | i as u128).to_le_bytes()).collect();
    let frames = Bytes::from(vec![b'f'; 40 * count as usize]);
    AppendSegment { lane, rel, count, flags: 1, accepted_at: None, keys: keys.into(), frames, packed: None }
}

pub fn one_segment(partition: PartitionId, expect: i64, count: u32) -> Append {
    Append {
        lanes: vec![AppendLane { partition, expect: Offset(expect), count }],
        segments: vec![segment(0, 0, count, (expect + 1) as u64)],
        ..Append::default()
    }
}

/// One segment of `count` messages for each of several lanes, which must be in ascending order.
pub fn one_each(lanes: &[(PartitionId, i64)], count: u32) -> Append {
    Append {
        lanes: lanes
            .iter()
            .map(|(partition, expect)| AppendLane { partition: *partition, expect: Offset(*expect), count })
            .collect(),
        segments: (0..lanes.len()).map(|i| segment(i as u32, 0, count, i as u64)).collect(),
        ..Append::default()
    }
}

pub async fn append(client: &Client, append: &Append) -> Result<AppendOutcome, StoreError> {
    store::append(client, append, 1, Line::NONE).await
}

/// A move of a cursor to `committed` with nothing leased.
pub fn to(committed: i64) -> CursorTo {
    CursorTo {
        committed: Offset(committed),
        lease: LeaseTo::Clear,
        batch_end: None,
        retry_count: 0,
        attempt_start: None,
        attempt_count: 0,
    }
}

pub fn lease_to(committed: i64, id: u128, secs: u32, batch_end: i64) -> CursorTo {
    CursorTo {
        lease: LeaseTo::Set { id: LeaseId(id), secs, conflating: false },
        batch_end: Some(Offset(batch_end)),
        attempt_start: Some(Offset(committed + 1)),
        attempt_count: 1,
        ..to(committed)
    }
}

pub fn cursor_move(partition: PartitionId, group: GroupId, version: i64, lease: LeaseMust, to: CursorTo) -> CursorMove {
    CursorMove { partition, group, version, lease, to: Some(to), dead_letter: None }
}

/// Waits until `condition` says yes.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "{what} does not come");
        rt::sleep(Duration::from_millis(5)).await;
    }
}

/// A file of this repository.
pub fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// PostgreSQL's clock.
pub async fn ping(client: &Client) -> Result<Stamp, StoreError> {
    store::log::read(client, 0, None).await.map(|news| news.now)
}
