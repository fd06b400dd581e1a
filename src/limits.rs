//! Every bound of the edge, once, beside its arithmetic. The engine's own bounds are in its crate.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// ---- one request ------------------------------------------------------------------------------------------------

/// Bytes of a request head: request line, header lines and the empty line. Above: 431.
/// A token of some kilobytes and a long query fit many times over.
pub const HEAD_BYTES_MAX: usize = 64 * KIB;
/// Bytes of a request target. Above: 414. Three names of 1024 bytes, each byte percent-encoded, are 9 KiB.
pub const TARGET_BYTES_MAX: usize = 16 * KIB;
/// Bytes a request line may have around its target: a method, two spaces, the version. Above: 414, like the target.
pub const REQUEST_LINE_EXTRA: usize = 64;
/// Header lines of a request. Above: 431.
pub const HEADERS_MAX: usize = 100;
/// Empty lines tolerated before a request line (RFC 9112 2.2 asks for one; old clients send one after a body).
pub const BLANK_LINES_MAX: usize = 2;
/// Bytes of chunk extensions of one body, all chunks together. Nobody sends any.
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 4 * KIB;
/// Bytes of the trailer section of one chunked body. It is read and ignored.
pub const TRAILER_BYTES_MAX: usize = 8 * KIB;
/// Default of QUEEN_MAX_BODY_BYTES. Above: 413.
pub const BODY_BYTES_MAX: usize = 64 * MIB;
/// Items of one push, acks of one batch, operations of one transaction. Above: 400. The smallest item is 26 bytes of body and
/// takes about 360 while it is on its way (parsed, keyed, framed, answered): a body of 64 MiB of them would take 900 MiB.
pub const ITEMS_MAX: usize = 250_000;
/// What is said of more.
pub const TOO_MANY: &str = "more than 250000 items in one request";
/// Bytes of a queue, partition or group name: an index entry has to hold it. Source: data plane 1.6.
pub const NAME_BYTES_MAX: usize = 1024;

// ---- one connection ---------------------------------------------------------------------------------------------

/// What a connection reads at a time outside of bodies: what the kernel holds for an idle one.
/// With the task (about 2 KiB) and an answer buffer of the same size an idle connection stays under 16 KiB.
pub const READ_BYTES: usize = 4 * KIB;
/// Buffers above this are given back to the allocator between requests.
pub const KEEP_BYTES: usize = 4 * KIB;
/// Bytes of further requests taken in while one is handled; more waits in the socket.
pub const READ_AHEAD_BYTES_MAX: usize = 16 * KIB;
/// First size of a body's buffer, and the part of a body that needs no leave of the shard's budget.
pub const BODY_FREE_BYTES: usize = 64 * KIB;
/// What is read at a time of a chunked body, and of one that is only thrown away. Also how far past the limit a body
/// can be read before its 413.
pub const BODY_READ_BYTES: usize = 64 * KIB;
/// A refused request's body up to this size is read and dropped, so that the connection can stay open.
pub const DISCARD_BYTES_MAX: usize = 64 * KIB;
/// Bodies of answers up to this size are copied behind their head; larger ones are written from where they are.
pub const ANSWER_COPY_BYTES_MAX: usize = 16 * KIB;
/// Requests of one connection handled without letting others run.
pub const REQUESTS_PER_TURN: usize = 32;
/// First byte of a head to its last.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which a body must bring [`BODY_PROGRESS_BYTES`] or its end.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// What counts as progress of a body: 136 bytes per second keep it alive, one byte now and then does not.
pub const BODY_PROGRESS_BYTES: usize = 4 * KIB;
/// Time in which a client must take any part of its answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer for which others wait, because it is beyond what a shard may hold, has that time and this for each byte, in all: a
/// MB a second.
pub const BEYOND_TIME_PER_BYTE: Duration = Duration::from_micros(1);
/// Time a connection may sit between requests. Longer than the idle time of common proxies (60 s), so that they
/// close first and no request meets a closing socket.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// After the last answer of a refused connection: how long, and how much, is read and dropped, so that the client
/// can read its answer before a reset destroys it.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
pub const LINGER_BYTES_MAX: usize = 64 * MIB;
/// The same while the broker shuts down.
pub const LINGER_CLOSING_TIMEOUT: Duration = Duration::from_millis(500);
/// Requests in flight get so long at a shutdown before their connections are cut. A broker is to end within five seconds, and
/// the spool's last file and the embedded PostgreSQL, which stops in a third of a second, come after. Source: operations 1.6.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(3500);
/// Between the last accept and the close of idle connections at shutdown: requests on their way are still answered.
pub const CLOSING_GRACE: Duration = Duration::from_millis(20);
/// How long a closed connection is watched until its peer has acknowledged an answer with claims; then the lease's
/// expiry takes over. Under the 1 s in which a message of a dead socket should be back.
pub const DELIVERY_CHECK: Duration = Duration::from_millis(800);

// ---- the store ------------------------------------------------------------------------------------------------------

/// A claim, an ack or a read without an answer for so long is given up with its connection: TCP notices a peer that is
/// gone, but not one behind a middlebox that acknowledges everything. Source: architecture, When PostgreSQL is away (noticed within 10 s).
pub const SILENT_STORE_MAX: Duration = Duration::from_secs(10);

// ---- several brokers --------------------------------------------------------------------------------------------------

/// The log of other brokers is read so often while polls are parked and hints are not heard: what others push is delivered
/// well within the second that is allowed, for four short queries a second.
pub const LOG_PARKED: Duration = Duration::from_millis(250);
/// The same after a read that brought something: who just wrote will probably write again.
pub const LOG_BUSY: Duration = Duration::from_millis(50);
/// After a hint its broker rests so many times as long as it took: a commit costs PostgreSQL most of what a hint does, and it
/// answers late when it has no time to spare.
pub const HINT_REST: u32 = 10;
/// That rest at least, and between two reads of the log for hints. Source: operations 7.3.
pub const HINT_PERIOD_MIN: Duration = Duration::from_millis(5);
/// That rest at most: a poll at another broker should wake within 50 ms.
pub const HINT_PERIOD_MAX: Duration = Duration::from_millis(20);
/// A hint that takes longer is lost, and LISTEN that does not hear its own hint for so long is in vain.
pub const HINT_PROBE_MAX: Duration = Duration::from_secs(2);
/// So long after the beginning of a log read that met no other broker, none can have answered a push: a broker that joins
/// waits longer than this before its first commit. Longer than a pulse, so that a lone broker never has to ask.
pub const ALONE_MAX: Duration = Duration::from_millis(750);
/// Longest a shard asks what became of a commit that was not answered, before its pushes go to the spool and the others have
/// failed: time for a new connection and for a backend that is just finishing.
pub const SETTLE_MAX: Duration = Duration::from_millis(500);
/// A writer's ring is removed a minute after its end; a reader that slept longer than this may have missed it.
pub const LOG_SILENCE_MAX: Duration = Duration::from_secs(30);

// ---- one shard --------------------------------------------------------------------------------------------------

/// Connections of one shard; more wait in the kernel's queue. At 16 KiB idle they are 160 MiB.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Tokens a shard remembers as proved: at 250 bytes each under 2 MiB, more than clients hold connections to one shard.
/// Beyond it all are forgotten and proved again, 30 us each.
pub const TOKENS_REMEMBERED_MAX: usize = 8192;
/// Kernel queue of connections not yet accepted (capped by net.core.somaxconn).
pub const BACKLOG: i32 = 4096;
/// Bytes of requests in flight of one shard: of bodies, of what they inflate to, and of large answers until they are written,
/// beyond the free part of each. Over it requests wait, except for one at a time, so that those that hold a part cannot block
/// each other for ever. One budget for all three, because a request that holds of one and waits for another could.
pub const BODY_BUDGET_BYTES: usize = 256 * MIB;
/// What of each, inflated bytes and answer, needs no leave of that budget, as with bodies: those of a hundred messages of a few
/// hundred bytes. 250,000 tiny items are answered with 55 MB.
pub const ROOM_FREE_BYTES: usize = BODY_FREE_BYTES;
/// Bytes of answers that one shard holds until their clients took them: as much as of bodies. Beyond it pops and fetches
/// get less, the last of these at the least, so that the slowest of ten thousand connections still get a message.
pub const ANSWERS_BYTES: u64 = BODY_BUDGET_BYTES as u64;
/// While half of that is free who asks is granted such a part of it: the largest pop, 16 MiB, where nothing is held.
pub const ANSWER_SHARE: u64 = 8;
/// And out of the other half so many: a few hundred messages of some hundred bytes, for five hundred at once.
pub const ANSWER_BYTES_USUAL: u64 = 256 << 10;
pub const ANSWER_BYTES_MIN: u64 = 64 << 10;
/// What an inflated message costs beside its own bytes: its item, id, key and fate, and the table of repeated keys. It
/// matters because 25 inflated bytes can be a message.
pub const INFLATED_MESSAGE_BYTES: usize = 256;
/// Inflated bytes of one request after which others run: about a millisecond.
pub const INFLATE_TURN_BYTES: usize = MIB;
/// How late a timeout may strike, and what the clock of connections costs: one wake a second and shard.
pub const TICK: Duration = Duration::from_secs(1);
/// Connections accepted without letting others run.
pub const ACCEPTS_PER_TURN: u32 = 32;
/// Pause after an accept that failed for want of descriptors or memory.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Entries of a shard's ring: submissions per kernel entry, not operations in flight.
pub const RING_ENTRIES: u32 = 1024;
/// Tries to set a ring up before epoll takes over, with [`RING_PAUSE`] doubling between them: about 3 s, because
/// the rings of a broker that just ended are released late.
pub const RING_TRIES: u32 = 6;
pub const RING_PAUSE: Duration = Duration::from_millis(50);
/// Filters of discovery pops whose queues a shard remembers; beyond it they are read anew.
pub const FILTERS_MAX: usize = 4096;

const _: () = assert!(TARGET_BYTES_MAX + REQUEST_LINE_EXTRA < HEAD_BYTES_MAX);
const _: () = assert!(READ_BYTES + KEEP_BYTES + 4 * KIB <= 16 * KIB);
