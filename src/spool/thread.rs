//! The spool's thread: mail in, one write and one sync for all of it, records back out while the store answers.

use super::clock::Keeper;
use super::direct::Direct;
use super::disk::{self, Disk, Plain};
use super::files::{Files, FoundLanes, Limits, Outside, Surveyed, may_hold_records};
use super::lock::{Lock, LockError};
use super::status::Status;
use super::{Spool, ToSpool};
use crate::mail::{Hub, Mail, ToShard, now};
use crate::mint::unix_millis;
use glommio::{LocalExecutorBuilder, Placement};
use queen_shards::command::{DrainVerdict, Drained, SpoolId, SpoolRecord};
use queen_shards::frames::Frames;
use queen_shards::ids::MessageId;
use queen_shards::key::KeyHasher;
use queen_shards::place::owner_of_names;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

/// Read between two looks at the mail.
const READ_BYTES_MAX: usize = 4 << 20;
/// Between two tries of records that were refused, which wait at the shards, and of files that could not be read: what was
/// mended meanwhile costs nothing.
const ROUND_PAUSE: Duration = Duration::from_secs(1);
/// Memory of the ring's buffers; it counts against memlock, of which glommio wants half a megabyte.
const RING_MEMORY: usize = 1 << 20;
const RING_DEPTH: usize = 64;
/// Between tries to make a directory that cannot be made.
const DIR_PAUSE: Duration = Duration::from_secs(1);
/// What is written beside a backlog of which nothing was decided for so long is not only waiting for its turn. An outage is over
/// when the backlog has been drained for as long without such a gap.
const DRAINS_WITHIN: Duration = Duration::from_secs(2);
/// A full mailbox of a shard is tried again after this.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// What the thread needs.
pub struct Setup {
    pub dir: PathBuf,
    pub limits: Limits,
    /// `None`: the directory could not be made yet.
    pub lock: Option<Lock>,
    pub shards: usize,
    /// Plain files whatever the machine allows.
    pub plain: bool,
    pub hub: Hub,
}

/// Starts the thread.
pub fn start(spool: Spool, setup: Setup) -> io::Result<()> {
    std::thread::Builder::new().name("spool".into()).spawn(move || run(spool, setup)).map(|_| ())
}

fn run(spool: Spool, mut setup: Setup) {
    let mut keeper = Keeper::new(&setup.dir);
    let mut early = Early::default();
    loop {
        if setup.lock.is_none() {
            setup.lock = open_dir_again(&setup.dir, spool.status());
        }
        let ended = match setup.lock {
            Some(_) => serve_files(&spool, &setup, &mut keeper, &mut early),
            None => false,
        };
        if ended || refuse(&spool, &setup, &mut early) {
            return;
        }
    }
}

/// Serves with direct I/O where that can be had, else with plain files. True: the broker ends.
fn serve_files(spool: &Spool, setup: &Setup, keeper: &mut Keeper, early: &mut Early) -> bool {
    let dir = setup.dir.display();
    let direct = if setup.plain { Err("QUEEN_RUNTIME=epoll".to_string()) } else { executor() };
    let why = match direct {
        Ok(executor) => {
            let served = executor.run(async {
                let disk = Direct::new(&setup.dir).await.map_err(|error| error.to_string())?;
                crate::info!("spool", "ready", directory = dir, io = "direct, glommio");
                Ok::<bool, String>(serve(disk, spool, setup, keeper, early).await)
            });
            match served {
                Ok(ended) => return ended,
                Err(why) => why,
            }
        }
        Err(why) => why,
    };
    crate::info!("spool", "ready", directory = dir, io = "plain files", because = why);
    block_on(serve(Plain::new(&setup.dir), spool, setup, keeper, early))
}

/// Makes the directory and locks it.
pub fn open_dir(dir: &Path) -> Result<Lock, LockError> {
    disk::make_dir(dir)?;
    Lock::take(dir)
}

/// Tries again, without waiting: mail waits. Another broker may have made the directory meanwhile, and has it for good.
pub(super) fn open_dir_again(dir: &Path, status: &Status) -> Option<Lock> {
    let tried = disk::make_dir(dir).map_err(LockError::from).and_then(|()| Lock::try_take(dir));
    if let Err(LockError::Held) = tried {
        status.held(dir);
    }
    tried.ok()
}

/// A ring of glommio's, if the machine allows one. It is asked for a small one first: glommio gives up the process where
/// the kernel has none.
pub(super) fn executor() -> Result<glommio::LocalExecutor, String> {
    io_uring::IoUring::new(8).map_err(|error| format!("no io_uring: {error}"))?;
    LocalExecutorBuilder::new(Placement::Unbound)
        .name("spool")
        .io_memory(RING_MEMORY)
        .ring_depth(RING_DEPTH)
        .record_io_latencies(false)
        .make()
        .map_err(|error| error.to_string())
}

/// What was told before the files were open.
#[derive(Default)]
pub(super) struct Early {
    keys: Option<KeyHasher>,
    up: bool,
    maintenance: bool,
}

impl Early {
    fn drains(&self) -> bool {
        self.up && !self.maintenance && self.keys.is_some()
    }
}

/// Answers that nothing can be written, until the directory is to be tried again. True: the broker ends.
pub(super) fn refuse(spool: &Spool, setup: &Setup, early: &mut Early) -> bool {
    let began = Instant::now();
    // Where nothing is on disk shards need not wait for what is found there. Where something may be, pushes fail: they would
    // overtake it.
    if !may_hold_records(&setup.dir) {
        let nothing = || ToShard::SpoolFound { lanes: Vec::new(), counted: false };
        (0..setup.shards).for_each(|shard| tell(&setup.hub, shard, nothing()));
    }
    while began.elapsed() < DIR_PAUSE {
        while let Some(mail) = spool.take() {
            match mail {
                ToSpool::Write { shard, records } => {
                    spool.status().failed(records.iter().map(|(_, record)| record.draft.count as u64).sum());
                    let answers = records.into_iter().map(|(token, _)| (token, false)).collect();
                    tell(&setup.hub, shard, ToShard::Spooled(answers));
                }
                ToSpool::Decided { .. } => {}
                ToSpool::Ready { hash_secret } => early.keys = Some(KeyHasher::new(&hash_secret)),
                ToSpool::Store { clock } => early.up = clock.is_some(),
                ToSpool::Maintenance { on } => early.maintenance = on,
                ToSpool::Stop { done } => {
                    let _ = done.send(());
                    return true;
                }
            }
        }
        std::thread::sleep(FULL_PAUSE);
    }
    false
}

/// True: the broker ends. False: the directory cannot be read.
async fn serve<D: Disk>(disk: D, spool: &Spool, setup: &Setup, keeper: &mut Keeper, early: &mut Early) -> bool {
    let files = match Files::open(disk, World, setup.limits.clone(), spool.status().clone()).await {
        Ok(files) => files,
        Err(error) => {
            spool.status().write_failed(&error);
            return false;
        }
    };
    spool.status().recovering(files.has_any());
    let (surveying, round_began) = (Some(FoundLanes::new()), Instant::now());
    let told_read = (false, Vec::new());
    let (drains, drained, stores) = (None, false, Steady::default());
    let mut server =
        Server { files, spool, setup, keeper, early, surveying, told_read, round_began, drains, drained, stores };
    while server.turn().await {}
    true
}

struct Server<'a, D: Disk> {
    files: Files<D, World>,
    spool: &'a Spool,
    setup: &'a Setup,
    keeper: &'a mut Keeper,
    early: &'a mut Early,
    /// What was found so far of an earlier process; `None` once all is.
    surveying: Option<FoundLanes>,
    /// Whether the shards were told that all is read, and which lanes but for.
    told_read: (bool, Vec<u64>),
    /// When a round of tries of what was refused or could not be read began. The pulse of the store wakes the thread for the
    /// next one.
    round_began: Instant,
    /// When the store decided of a record last, or draining began.
    drains: Option<Instant>,
    /// Whether records were handed over at the last turn.
    drained: bool,
    /// Of the backlog, since the store last did not take what waits.
    stores: Steady,
}

/// Something that goes on: since when, and when last.
#[derive(Default)]
pub(super) struct Steady(Option<(Instant, Instant)>);

impl Steady {
    /// It went on. True: it has for [`DRAINS_WITHIN`], without a gap as long.
    pub(super) fn goes_on(&mut self, now: Instant) -> bool {
        let since = self.0.filter(|(_, last)| now - *last <= DRAINS_WITHIN).map_or(now, |(since, _)| since);
        self.0 = Some((since, now));
        DRAINS_WITHIN <= now - since
    }

    pub(super) fn stops(&mut self) {
        self.0 = None;
    }
}

impl<D: Disk> Server<'_, D> {
    /// Takes the mail there is and does what follows from it. False: the broker ends.
    async fn turn(&mut self) -> bool {
        let mut writes: Vec<(usize, u64)> = Vec::new();
        let mut records: Vec<SpoolRecord> = Vec::new();
        let mut decided: Vec<(SpoolId, DrainVerdict)> = Vec::new();
        let mut stop: Option<Sender<()>> = None;
        let mut worked = false;
        while let Some(mail) = self.spool.take() {
            worked = true;
            match mail {
                ToSpool::Write { shard, records: more } => {
                    for (token, record) in more {
                        writes.push((shard, token));
                        records.push(record);
                    }
                }
                ToSpool::Decided { verdicts } => decided.extend(verdicts),
                ToSpool::Ready { hash_secret } => self.early.keys = Some(KeyHasher::new(&hash_secret)),
                ToSpool::Store { clock } => {
                    self.early.up = clock.is_some();
                    match clock {
                        Some(read) => self.keeper.read(read, now()),
                        None => {
                            self.outage();
                            self.files.store_lost();
                        }
                    }
                }
                ToSpool::Maintenance { on } => {
                    if !on && self.early.maintenance {
                        self.files.close_active().await;
                    }
                    self.early.maintenance = on;
                }
                ToSpool::Stop { done } => stop = Some(done),
            }
        }
        let drains = self.early.drains() && self.surveying.is_none();
        if drains && !self.drained || !decided.is_empty() {
            self.drains = Some(Instant::now());
        }
        self.drained = drains;
        if !records.is_empty() {
            self.write(writes, &records).await;
        }
        let mut gone = Vec::new();
        let stored = decided.iter().any(|(_, verdict)| matches!(verdict, DrainVerdict::Stored { .. }));
        if stored && self.stores.goes_on(Instant::now()) {
            self.spool.status().recovered();
        }
        for (id, verdict) in decided {
            if self.files.decide(id, verdict).await {
                gone.push(id);
            }
        }
        self.tell_all(gone, ToShard::RefusedGone);
        if let Some(done) = stop {
            self.files.close_active().await;
            let _ = done.send(());
            return false;
        }
        if ROUND_PAUSE <= self.round_began.elapsed() {
            self.round_began = Instant::now();
            self.files.next_round();
        }
        worked |= self.survey().await;
        worked |= self.drain().await;
        self.tell_read(worked);
        if !worked {
            self.spool.wait().await;
        }
        true
    }

    async fn write(&mut self, writes: Vec<(usize, u64)>, records: &[SpoolRecord]) {
        let waited = self.spool.status().numbers().pending;
        let answers = self.files.append(records).await;
        // Beside a backlog that is being drained a push waits for its turn: that alone says nothing of the store.
        let drains = waited > 0 && self.drains.is_some_and(|at| at.elapsed() < DRAINS_WITHIN);
        if !drains && answers.contains(&true) {
            self.outage();
        }
        let mut by_shard: Vec<Vec<(u64, bool)>> = vec![Vec::new(); self.setup.shards];
        for ((shard, token), written) in writes.into_iter().zip(answers) {
            by_shard[shard].push((token, written));
        }
        for (shard, answers) in by_shard.into_iter().enumerate().filter(|(_, answers)| !answers.is_empty()) {
            tell(&self.setup.hub, shard, ToShard::Spooled(answers));
        }
    }

    /// The store does not take what waits here.
    fn outage(&mut self) {
        self.stores.stops();
        let pending = self.spool.status().numbers().pending;
        if 0 < pending && !self.early.maintenance {
            self.spool.status().outage(pending);
        }
    }

    /// Counts what one more file of an earlier process holds.
    async fn survey(&mut self) -> bool {
        let Some(found) = &mut self.surveying else { return false };
        match self.files.survey(found).await {
            Surveyed::One => return true,
            Surveyed::NotNow => return false,
            Surveyed::All => {}
        }
        let mut by_shard: Vec<Vec<(u64, u32)>> = vec![Vec::new(); self.setup.shards];
        for (hash, records) in self.surveying.take().unwrap_or_default() {
            by_shard[owner_of_names(hash, self.setup.shards)].push((hash, records));
        }
        for (shard, lanes) in by_shard.into_iter().enumerate() {
            tell(&self.setup.hub, shard, ToShard::SpoolFound { lanes, counted: true });
        }
        let numbers = self.spool.status().numbers();
        if numbers.pending > 0 {
            crate::info!("spool", "found undrained events", pending = numbers.pending, files = numbers.files);
        }
        true
    }

    /// Hands over the oldest records there is room for.
    async fn drain(&mut self) -> bool {
        if self.surveying.is_some() || !self.early.drains() {
            return false;
        }
        let again = self.files.try_again();
        self.tell_all(again, ToShard::RefusedAgain);
        let mut room = self.files.room();
        room.bytes = room.bytes.min(READ_BYTES_MAX);
        let drained = self.files.read(room).await;
        let worked = drained.is_some();
        let Some(keys) = &self.early.keys else { return false };
        let mut by_shard: Vec<Vec<Drained>> = (0..self.setup.shards).map(|_| Vec::new()).collect();
        for mut one in drained.into_iter().flatten() {
            let draft = &mut one.record.draft;
            let mut hashed = Vec::with_capacity(16 * draft.count as usize);
            for frame in Frames::new(&draft.raw()).filter_map(Result::ok) {
                hashed.extend_from_slice(&keys.key(frame.transaction_id.as_bytes()).0.to_le_bytes());
            }
            draft.keys = hashed.into();
            by_shard[draft.lane.owner(self.setup.shards)].push(one);
        }
        for (shard, records) in by_shard.into_iter().enumerate().filter(|(_, records)| !records.is_empty()) {
            tell(&self.setup.hub, shard, ToShard::Drain(records));
            crate::torture::point("boot-drain");
        }
        worked
    }

    /// Word of refused records, to all shards: each knows its own.
    fn tell_all(&self, records: Vec<SpoolId>, say: fn(Vec<SpoolId>) -> ToShard) {
        if !records.is_empty() {
            (0..self.setup.shards).for_each(|shard| tell(&self.setup.hub, shard, say(records.clone())));
        }
    }

    /// Told again after every change: shards then know that what they still miss is lost.
    fn tell_read(&mut self, worked: bool) {
        let all = self.surveying.is_none() && self.early.drains() && self.files.all_read();
        let but = if all { self.files.lanes_put_off() } else { Vec::new() };
        if (all && worked) || self.told_read != (all, but.clone()) {
            self.told_read = (all, but.clone());
            (0..self.setup.shards).for_each(|shard| {
                let but = but.iter().copied().filter(|lane| owner_of_names(*lane, self.setup.shards) == shard);
                tell(&self.setup.hub, shard, ToShard::SpoolRead { all, but: but.collect() });
            });
        }
    }
}

/// In order, waiting while the mailbox is full: shards never wait for this thread.
fn tell(hub: &Hub, shard: usize, said: ToShard) {
    let mut mail = Mail::Spool(said);
    while let Err(back) = hub.send(shard, mail) {
        mail = back;
        std::thread::sleep(FULL_PAUSE);
    }
}

/// The machine.
struct World;

impl Outside for World {
    fn unix_ms(&self) -> u64 {
        unix_millis()
    }

    fn random(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }

    fn message_id(&self) -> MessageId {
        MessageId(uuid::Uuid::now_v7().as_u128())
    }
}

/// Runs a future on this thread, which sleeps while it waits.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}
