//! Every bound of the engine, beside its reason.

/// Segments in one fused push commit. Architecture 4: past about 256 a commit's latency grows, its cost does not fall.
pub const COMMIT_SEGMENTS_MAX: usize = 256;
/// Bytes in one fused push commit; one larger draft still goes alone.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;
/// Cursor rows in one fused claim and ack commit.
pub const COMMIT_MOVES_MAX: usize = 512;
/// Partition and cursor rows in one bundle commit; one larger bundle still goes alone.
pub const BUNDLE_ROWS_MAX: usize = 512;
/// Raw bytes that small drafts of one lane merge into; past it a segment costs readers more than a row saves.
pub const MERGE_BYTES_MAX: usize = 256 << 10;
/// Drafts at least this large become a segment of their own: a row costs a few hundred bytes.
pub const MERGE_DRAFT_BYTES: usize = 4 << 10;
/// A packed draft with at least so many messages is kept as it came even when it is small: fewer gain more from being
/// packed with others than a row costs. Source: binary forms 15.4.
pub const MERGE_PACKED_MESSAGES: u32 = 16;
/// Cold calls of one shard in flight; the rest waits in order.
pub const CALLS_MAX: usize = 32;
/// Partitions in one provisioning call: its row locks are held for one round trip.
pub const PROVISION_MAX: usize = 512;
/// Cursors in one seeding call.
pub const SEED_MAX: usize = 256;
/// Partitions with something for the group in one page of a scan.
pub const SCAN_PAGE: u32 = 2000;
/// Partitions that one page of a scan looks at, at most; it ends after 10 ms as well (queen.scan), because reads and seedings
/// wait behind it.
pub const SCAN_LOOK: u32 = 50_000;
/// Lanes in a ready ring below which the scan of a group goes on: what consumers take in some 100 ms.
pub const READY_LOW: usize = 8_192;
/// Lanes in a ready ring past which a lane is left to the next round of the scan. Lanes in a ring stay in memory.
pub const READY_MAX: usize = 4 * READY_LOW;
/// Keys in one page of a window load or an ack's search: 1 MiB.
pub const KEYS_PAGE: u32 = 65536;
/// Pages of keys below a cursor that are read for keys an ack names, however old they are: a million keys. Past them only
/// keys are looked for that [`ACK_MEMORY_SECS`], the dedup window or completed retention still covers, so that a key nobody ever pushed does not
/// cost a read of the whole partition.
pub const BELOW_PAGES_MAX: u32 = 16;
/// So long after its push an ack resolves in any case. Source: data plane 5.5, resolution window.
pub const ACK_MEMORY_SECS: u32 = 900;
/// Partitions in one call that reads them for acks, and cursors.
pub const FIND_MAX: usize = 512;
/// Such calls on their way: with fewer the connection would rest between two, with more pushes and pops would wait for them.
pub const FINDS_MAX: usize = 4;
/// Commits in a row that may find a lane's row locked or moved before it goes alone and waits for the row, and pauses
/// between tries when even that is in vain.
pub const BUSY_TRIES: u8 = 3;
/// That wait, in microseconds.
pub const BUSY_WAIT_US: u64 = 5_000;
/// Times a claim may meet a locked row before its pop goes on without it: 100 ms of [`BUSY_WAIT_US`].
pub const BUSY_CLAIMS_MAX: u16 = 20;
/// Times a move of a cursor may meet a locked row before it gives up: 5 s of [`BUSY_WAIT_US`].
pub const BUSY_MOVES_MAX: u16 = 1000;
/// Times one operation on a cursor may meet a changed row before it gives up: each time somebody else moved it.
pub const STALE_TRIES: u8 = 16;
/// Records of the spool that were accepted within one span of this length may share a segment, which has one acceptance
/// time: a dedup window is judged so much too short or too long, and no more.
pub const ACCEPTED_JOIN_US: i64 = 10_000;
/// While a commit was answered so recently, a probe elsewhere that failed says nothing of the store.
pub const ANSWERED_US: u64 = 1_000_000;
/// A draft whose row is locked for so long is spooled. Source: QUEEN_PUSH_COMMIT_TIMEOUT_MS.
pub const DRAFT_WAIT_US: u64 = 5_000_000;
/// A partition that was looked up and does not exist is believed absent for so long (pushes of this broker end it).
pub const ABSENT_US: u64 = 1_000_000;
/// PostgreSQL's clock is looked at as set, or this machine as having slept, where a reading is so far ahead of what was
/// known: more than an answer takes, by which a reading may be late, and less than the 5 s that nothing may stall for.
pub const LEAP_US: i64 = 1_000_000;
/// Parked pops are looked at again so often. Source: data plane 4.5, operations 7.1.
pub const RECHECK_US: u64 = 1_000_000;
/// Names in the table of absent partitions; past it the table starts anew.
pub const ABSENT_MAX: usize = 4096;
/// Partitions that a commit without an answer may have made and that could not be looked for; past it every group is scanned
/// again instead. More than bundles that are under way name.
pub const UNMET_MAX: usize = 1024;
/// A partition that could not be read after a commit without an answer is tried again this much later.
pub const REREAD_WAIT_US: u64 = 1_000_000;
/// Keys stay in memory so much longer than the window: two readings of the clock differ by their way here, and a floor
/// that goes back must not mean another load.
pub const WINDOW_MARGIN_US: i64 = 1_000_000;

/// How far the clock by which an earlier process accepted a record may have been ahead of PostgreSQL's. 26 hours: a machine
/// that takes local time for UTC after a reboot, from one end of the world's time zones to the other.
pub const CLOCK_ASTRAY_US: i64 = 26 * 3_600_000_000;
/// Lanes without a push for so long may lose their window when the budget is exceeded.
pub const WINDOW_IDLE_US: u64 = 2_000_000;
/// Bytes of the newest records of all lanes of a shard: a second of pushes at what one core takes, so that consumers that keep up
/// are served from memory; those that do not read cold, which is slower and no more.
pub const TAIL_BYTES_MAX: usize = 64 << 20;
/// Of one lane: one that nobody consumes must not push out all others.
pub const LANE_TAIL_BYTES_MAX: usize = 4 << 20;
/// Bytes of what leases handed out, kept for their acks: 100,000 leases of ten messages, or half a million messages of large ones.
pub const MEMO_BYTES_MAX: usize = 32 << 20;
/// Lanes a shard keeps in memory whether they are idle or not: some 600 bytes each without window and tail, 20 MB in all.
pub const LANES_KEPT: usize = 32_768;
/// Beyond that a lane without a push for so long is idle. Its next push reads the partition and its keys again.
pub const LANE_IDLE_US: u64 = 10_000_000;
/// Beyond so many already this long is idle: at 20,000 new partitions a second ten seconds of them would take 400 MB.
pub const LANES_CROWD: usize = 2 * LANES_KEPT;
pub const LANE_IDLE_CROWDED_US: u64 = 1_000_000;
/// A group that nobody asked for so long leaves memory: longer than consumers rest between two polls.
pub const GROUP_IDLE_US: u64 = 600_000_000;
/// Groups looked at per turn for that.
pub const GROUPS_LOOKED: usize = 4;
/// Lanes looked at for each that is made, beyond [`LANES_KEPT`].
pub const SWEEP_PER_LANE: usize = 4;
/// Lanes looked at per turn for either, at least.
pub const SWEEP_STEP: usize = 256;
/// Keys a window must have to be sealed: below, the run's row and its statement cost more than the memory is worth.
pub const SEAL_KEYS_MIN: usize = 16384;
/// A window is sealed when it has at least one in so many of the keys that its lane's runs have: filters take 2.3 bytes
/// a key, a window 23.
pub const SEAL_SHARE: usize = 8;
/// After a run could not be stored, the next one is tried so much later.
pub const SEAL_RETRY_US: u64 = 5_000_000;
/// Bytes of sealed runs in one page of a load: about four million keys, decoded in a few milliseconds.
pub const RUNS_PAGE_BYTES: u64 = 8 << 20;
/// Rows of sealed runs in one read: 2 MB.
pub const RUN_ROWS_MAX: usize = 256;
/// Runs removed by one call: about 13,000 rows.
pub const DROP_RUNS_MAX: usize = 4;
/// Lanes looked at per pop when only counting what is ready.
pub const COUNT_LANES_MAX: usize = 1024;

/// Settings of one shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub index: usize,
    pub shards: usize,
    /// Bytes of all windows of this shard, filters of sealed runs included.
    pub window_bytes_max: usize,
    /// See [`SEAL_KEYS_MIN`] and [`KEYS_PAGE`]; smaller in tests.
    pub seal_keys_min: usize,
    pub keys_page: u32,
    /// Bytes of all tails of this shard, and of one lane's.
    pub tail_bytes_max: usize,
    pub lane_tail_bytes_max: usize,
    /// See [`MEMO_BYTES_MAX`]; smaller in tests.
    pub memo_bytes_max: usize,
    /// See [`LANES_KEPT`] and [`LANE_IDLE_US`]; smaller in tests.
    pub lanes_kept: usize,
    pub lane_idle_us: u64,
    /// See [`GROUP_IDLE_US`]; smaller in tests.
    pub group_idle_us: u64,
    /// See [`READY_LOW`] and [`READY_MAX`]; smaller in tests.
    pub ready_low: usize,
    pub ready_max: usize,
    /// QUEEN_HOTLIST_WINDOW_BATCH: so many waiting messages end a windowBuffer early.
    pub window_batch: u32,
    /// Nothing is on disk when the shard starts; else `Event::SpoolFound` tells what is.
    pub spool_found: bool,
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            index: 0,
            shards: 1,
            window_bytes_max: 512 << 20,
            seal_keys_min: SEAL_KEYS_MIN,
            keys_page: KEYS_PAGE,
            tail_bytes_max: TAIL_BYTES_MAX,
            lane_tail_bytes_max: LANE_TAIL_BYTES_MAX,
            memo_bytes_max: MEMO_BYTES_MAX,
            lanes_kept: LANES_KEPT,
            lane_idle_us: LANE_IDLE_US,
            group_idle_us: GROUP_IDLE_US,
            ready_low: READY_LOW,
            ready_max: READY_MAX,
            window_batch: 100,
            spool_found: true,
        }
    }
}
