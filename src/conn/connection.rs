//! One connection: requests in, answers out, one at a time and in order.
//!
//!     idle -> head -> admit -> body -> handle (reading on, to see the client leave) -> answer -> idle ...
//!
//! Holds: at most one read and one write in flight; every wait but the handler's has a limit; what was read past a
//! request stays for the next one.

use super::answer::{CONTINUE, Style, is_bodiless, write_head};
use super::budget::Share;
use super::serve::Shared;
use super::watch::{Phase, Watch};
use super::{Gone, Service};
use crate::http::body::ChunkDecoder;
use crate::http::head::{self, BodyLength, Head, HeadScan};
use crate::http::refusals::Refusal;
use crate::http::{Method, Request, Response};
use crate::limits::{
    ANSWER_COPY_BYTES_MAX, BEYOND_TIME_PER_BYTE, BODY_FREE_BYTES, BODY_PROGRESS_BYTES, BODY_READ_BYTES, DELIVERY_CHECK,
    DISCARD_BYTES_MAX, KEEP_BYTES, LINGER_BYTES_MAX, LINGER_CLOSING_TIMEOUT, READ_AHEAD_BYTES_MAX, READ_BYTES,
    REQUESTS_PER_TURN, ROOM_FREE_BYTES,
};
use crate::rt::{Delivery, Reader, Stream, Writer, sleep, yield_now};
use bytes::Bytes;
use queen_shards::ids::{GroupId, LeaseId, PartitionId, TenantId};
use queen_shards::planted::{Bug, is};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

pub(super) struct Connection<S: Service> {
    shared: Rc<Shared<S>>,
    /// What the shard holds for the request of the moment, then for its answer.
    share: Rc<Share>,
    /// When an answer that is beyond what the shard may hold has to be written.
    beyond_until: Option<Instant>,
    reader: Reader,
    writer: Writer,
    watch: Rc<Watch>,
    gone: Gone,
    /// What was read; everything before `taken` belonged to requests that are over.
    input: Vec<u8>,
    taken: usize,
    /// The read buffer, while no read is in flight.
    spare: Vec<u8>,
    /// The answer buffer.
    out: Vec<u8>,
    /// Nothing more comes: the client closed, at least its sending half.
    ended: bool,
    /// The client closed in order, at least its sending half. After a reset nobody knows what the client has read.
    left: bool,
    /// Claims of the last answer, until the client shows that it got them.
    unconfirmed: Option<Claims>,
}

type Claims = (LeaseId, Vec<(PartitionId, GroupId)>);

/// What a read brought.
enum Came {
    Bytes,
    End,
    TooLate,
}

/// Why a body is not there.
enum NoBody {
    Refused(Refusal),
    Gone,
}

impl From<Refusal> for NoBody {
    fn from(refusal: Refusal) -> NoBody {
        NoBody::Refused(refusal)
    }
}

/// How the connection goes on after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    /// An answer said that it closes: the client must be able to read it.
    Close,
    /// Nothing is on its way, or nobody reads it: close at once.
    Drop,
}

impl<S: Service> Connection<S> {
    pub(super) fn new(shared: Rc<Shared<S>>, stream: Stream) -> Connection<S> {
        let (reader, writer) = stream.split();
        Connection {
            watch: shared.clock.watch(),
            share: Rc::new(shared.budget.share()),
            beyond_until: None,
            shared,
            reader,
            writer,
            gone: Gone::default(),
            input: Vec::new(),
            taken: 0,
            spare: Vec::new(),
            out: Vec::new(),
            ended: false,
            left: false,
            unconfirmed: None,
        }
    }

    /// Its whole life.
    pub(super) async fn run(mut self) {
        let mut handled = 0;
        loop {
            match self.request().await {
                Next::Request => {}
                Next::Close => break self.linger().await,
                Next::Drop => break,
            }
            handled += 1;
            if handled % REQUESTS_PER_TURN == 0 {
                yield_now().await;
            }
        }
        self.confirm().await;
    }

    /// One request and its answer.
    async fn request(&mut self) -> Next {
        let head = match self.head().await {
            Ok(Some(head)) => head,
            Ok(None) => return Next::Drop,
            Err(refusal) => return self.refuse(refusal).await,
        };
        self.unconfirmed = None;
        let style = Style {
            head_only: head.method == Method::Head,
            close: !head.keep_alive || self.shared.clock.is_closing(),
            http_1_0: head.http_1_0,
        };
        let ticket = match self.admit(&head).await {
            Ok(ticket) => ticket,
            Err(response) => return self.turn_away(&head, response, style).await,
        };
        if head.expects_continue && head.length != BodyLength::Fixed(0) && self.taken == self.input.len() {
            self.out.extend_from_slice(CONTINUE);
            if self.flush().await.is_err() {
                return Next::Drop;
            }
        }
        let body = match self.body(head.length, self.shared.limits.body_bytes).await {
            Ok(body) => body,
            Err(NoBody::Refused(refusal)) => return self.refuse(refusal).await,
            Err(NoBody::Gone) => return Next::Drop,
        };
        let request = Request {
            method: head.method,
            segments: head.segments,
            query: head.query,
            tenant: TenantId::DEFAULT,
            producer: None,
            content_type: head.content_type,
            body,
            gone: self.gone.clone(),
            share: self.share.clone(),
        };
        let response = self.handle(ticket, request).await;
        // The broker may have begun to shut down meanwhile.
        let style = Style { close: style.close || self.shared.clock.is_closing(), ..style };
        self.answer(response, style).await
    }

    /// Judges a head: the service first (who asks comes before what is asked), then the body it announces.
    async fn admit(&self, head: &Head) -> Result<S::Ticket, Response> {
        let ticket = self.shared.service.admit(head).await?;
        if head.encoded {
            return Err(Refusal::Encoding.response());
        }
        match head.length {
            BodyLength::Fixed(bytes) if bytes > self.shared.limits.body_bytes as u64 => {
                Err(Refusal::BodyTooLarge.response())
            }
            _ => Ok(ticket),
        }
    }

    /// Answers a request that was refused by its head. A small body is read and dropped so that the connection can
    /// stay; otherwise, or when the client has not decided yet whether to send it, the connection closes.
    async fn turn_away(&mut self, head: &Head, response: Response, style: Style) -> Next {
        let small = match head.length {
            BodyLength::Fixed(0) => true,
            BodyLength::Fixed(bytes) => bytes <= DISCARD_BYTES_MAX as u64 && !head.expects_continue,
            BodyLength::Chunked => !head.expects_continue,
        };
        let close = !small || self.body(head.length, DISCARD_BYTES_MAX).await.is_err();
        self.answer(response, Style { close: close || style.close, ..style }).await
    }

    // ---- in

    /// The next head; `None` when there is no further request.
    async fn head(&mut self) -> Result<Option<Head>, Refusal> {
        self.shrink();
        let mut scan = HeadScan::default();
        let mut begun = false;
        self.shared.clock.begin(&self.watch, Phase::Idle, self.shared.limits.idle_timeout);
        loop {
            let bytes = &self.input[self.taken..];
            if let Some(end) = scan.feed(bytes)? {
                let head = head::parse(&bytes[..end]);
                self.taken += end;
                return head.map(Some);
            }
            if !begun && scan.has_begun(bytes) {
                begun = true;
                self.shared.clock.begin(&self.watch, Phase::Busy, self.shared.limits.head_timeout);
            }
            match self.read(READ_BYTES).await {
                Came::Bytes => {}
                Came::End => return Ok(None),
                Came::TooLate if begun => return Err(Refusal::TooSlow),
                Came::TooLate => return Ok(None),
            }
        }
    }

    async fn body(&mut self, length: BodyLength, max: usize) -> Result<Bytes, NoBody> {
        match length {
            BodyLength::Fixed(0) => Ok(Bytes::new()),
            BodyLength::Fixed(bytes) => self.fixed_body(bytes as usize).await,
            BodyLength::Chunked => self.chunked_body(max).await,
        }
    }

    /// A body of known length, at most the limit: read to where it stays.
    async fn fixed_body(&mut self, length: usize) -> Result<Bytes, NoBody> {
        let mut body = Vec::with_capacity(length.min(BODY_FREE_BYTES));
        self.take_input(&mut body, length);
        if body.len() == length {
            return Ok(body.into());
        }
        let mut progress = body.len();
        self.begin_body();
        while body.len() < length {
            if body.len() == body.capacity() {
                let room = length.min(body.capacity() * 2);
                self.raise(room).await;
                body.reserve_exact(room - body.len());
            }
            if self.reader.is_reading() {
                // Begun while the last request was handled, into the small buffer.
                self.came(READ_BYTES).await?;
                self.take_input(&mut body, length);
            } else if self.ended {
                return Err(NoBody::Gone);
            } else {
                self.reader.start(body);
                let done = timed(&self.watch, poll_fn(|cx| self.reader.poll_done(cx))).await;
                let (read, filled) = done.ok_or(Refusal::TooSlow)?;
                body = filled;
                self.judge(&read);
                // The buffer may be larger than what was asked for.
                if body.len() > length {
                    self.input.extend_from_slice(&body[length..]);
                    body.truncate(length);
                }
            }
            if body.len() - progress >= BODY_PROGRESS_BYTES {
                progress = body.len();
                self.begin_body();
            }
        }
        Ok(body.into())
    }

    async fn chunked_body(&mut self, max: usize) -> Result<Bytes, NoBody> {
        let mut decoder = ChunkDecoder::new(max);
        let mut body = Vec::new();
        let mut progress = 0;
        self.begin_body();
        loop {
            let used = decoder.feed(&self.input[self.taken..], &mut body)?;
            self.taken += used;
            if decoder.is_done() {
                return Ok(body.into());
            }
            if body.capacity() > BODY_FREE_BYTES {
                self.raise(body.capacity()).await;
            }
            self.came(if body.len() < READ_BYTES { READ_BYTES } else { BODY_READ_BYTES }).await?;
            if body.len() - progress >= BODY_PROGRESS_BYTES {
                progress = body.len();
                self.begin_body();
            }
        }
    }

    fn begin_body(&self) {
        self.shared.clock.begin(&self.watch, Phase::Busy, self.shared.limits.body_timeout);
    }

    /// Takes more of the shard's budget. While it waits the client is not to blame.
    async fn raise(&mut self, bytes: usize) {
        self.shared.clock.suspend(&self.watch);
        self.share.raise(bytes).await;
        self.begin_body();
    }

    /// Moves what has come of a body of `length` bytes behind `body`.
    fn take_input(&mut self, body: &mut Vec<u8>, length: usize) {
        let piece = (length - body.len()).min(self.input.len() - self.taken);
        body.extend_from_slice(&self.input[self.taken..self.taken + piece]);
        self.taken += piece;
    }

    /// [`Connection::read`] within a body.
    async fn came(&mut self, size: usize) -> Result<(), NoBody> {
        match self.read(size).await {
            Came::Bytes => Ok(()),
            Came::End => Err(NoBody::Gone),
            Came::TooLate => Err(NoBody::Refused(Refusal::TooSlow)),
        }
    }

    /// Waits for more input, up to `size` bytes if no read is in flight yet.
    async fn read(&mut self, size: usize) -> Came {
        if self.ended {
            return Came::End;
        }
        self.start_read(size);
        match timed(&self.watch, poll_fn(|cx| self.reader.poll_done(cx))).await {
            None => Came::TooLate,
            Some((read, buffer)) => {
                self.keep(&read, buffer);
                if self.ended { Came::End } else { Came::Bytes }
            }
        }
    }

    fn start_read(&mut self, size: usize) {
        if !self.reader.is_reading() {
            if self.taken == self.input.len() && self.spare.capacity() < self.input.capacity() {
                // Nothing of it is wanted any more: one buffer goes round.
                std::mem::swap(&mut self.spare, &mut self.input);
                self.input.clear();
                self.taken = 0;
            }
            let mut buffer = std::mem::take(&mut self.spare);
            buffer.clear();
            if buffer.capacity() < size {
                buffer = Vec::with_capacity(size);
            }
            self.reader.start(buffer);
        }
    }

    /// Puts what a read brought behind the input.
    fn keep(&mut self, read: &io::Result<usize>, mut buffer: Vec<u8>) {
        if self.taken == self.input.len() {
            std::mem::swap(&mut self.input, &mut buffer);
        } else {
            self.input.drain(..self.taken);
            self.input.extend_from_slice(&buffer);
        }
        self.taken = 0;
        self.spare = buffer;
        self.judge(read);
    }

    /// Notes the end of the stream.
    fn judge(&mut self, read: &io::Result<usize>) {
        match read {
            Ok(0) => (self.ended, self.left) = (true, true),
            Ok(_) => return,
            Err(_) => self.ended = true,
        }
        self.gone.set();
    }

    /// Gives large buffers back between requests.
    fn shrink(&mut self) {
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
        }
        for buffer in [&mut self.input, &mut self.spare, &mut self.out] {
            if buffer.capacity() > KEEP_BYTES && buffer.len() <= KEEP_BYTES {
                buffer.shrink_to(buffer.len());
            }
        }
    }

    // ---- the handler

    /// Runs the handler to its end. Meanwhile reads on: further requests up to a bound, and the end of the stream.
    async fn handle(&mut self, ticket: S::Ticket, request: Request) -> Response {
        self.shared.clock.suspend(&self.watch);
        let mut handler = self.shared.service.handle(ticket, request);
        let response = poll_fn(|cx| {
            if let Poll::Ready(response) = handler.as_mut().poll(cx) {
                return Poll::Ready(response);
            }
            while !self.ended && self.input.len() - self.taken < READ_AHEAD_BYTES_MAX {
                self.start_read(READ_BYTES);
                match self.reader.poll_done(cx) {
                    Poll::Ready((read, buffer)) => self.keep(&read, buffer),
                    Poll::Pending => break,
                }
            }
            Poll::Pending
        })
        .await;
        self.gone.request_over();
        response
    }

    // ---- out

    /// Answers a request whose bytes cannot be trusted any further.
    async fn refuse(&mut self, refusal: Refusal) -> Next {
        let style = Style { head_only: false, close: true, http_1_0: false };
        self.answer(refusal.response(), style).await
    }

    async fn answer(&mut self, mut response: Response, style: Style) -> Next {
        let mut claims = response.claims.take();
        if claims.is_some() && self.gone.is_gone() && !is(Bug::AnswerDeadPoll) {
            self.give_back(claims);
            return Next::Drop;
        }
        if style.head_only {
            self.give_back(claims.take());
        }
        match self.write_answer(response, style).await {
            Ok(next) => {
                self.unconfirmed = claims;
                next
            }
            Err(_) => {
                self.give_back(claims.filter(|_| !is(Bug::AnswerDeadPoll)));
                Next::Drop
            }
        }
    }

    /// One write: small bodies are copied behind their head, large ones go as a second piece.
    async fn write_answer(&mut self, response: Response, style: Style) -> io::Result<Next> {
        write_head(&mut self.out, &response, style, &self.shared.date());
        let body = if style.head_only || is_bodiless(response.status) { Vec::new() } else { response.body };
        // Those of pops and fetches were granted their bytes.
        let counts = response.hold.is_none() && body.len() > ROOM_FREE_BYTES;
        self.share.settle(if counts { body.len() } else { 0 });
        let in_all = self.shared.limits.write_timeout + BEYOND_TIME_PER_BYTE * body.len() as u32;
        self.beyond_until = self.share.is_beyond().then(|| Instant::now() + in_all);
        if body.len() <= ANSWER_COPY_BYTES_MAX {
            self.out.extend_from_slice(&body);
            drop(body);
            self.flush().await?;
        } else {
            Box::pin(self.flush_with(body)).await?;
        }
        self.share.settle(0);
        Ok(if style.close { Next::Close } else { Next::Request })
    }

    /// Writes the answer buffer.
    async fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        self.out = self.write_from(out, 0).await?;
        self.out.clear();
        Ok(())
    }

    /// Writes the answer buffer and a body.
    async fn flush_with(&mut self, body: Vec<u8>) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        self.begin_write();
        let both = timed(&self.watch, self.writer.write_both(out, body)).await;
        let (written, out, body) = both.ok_or(io::ErrorKind::TimedOut)?;
        let written = written?;
        let head_len = out.len();
        self.out = if written < head_len { self.write_from(out, written).await? } else { out };
        self.out.clear();
        self.write_from(body, written.saturating_sub(head_len)).await?;
        Ok(())
    }

    /// Writes the rest of `buffer` from `at` on, each piece within the write limit.
    async fn write_from(&mut self, mut buffer: Vec<u8>, mut at: usize) -> io::Result<Vec<u8>> {
        while at < buffer.len() {
            self.begin_write();
            let done = timed(&self.watch, self.writer.write(buffer, at)).await;
            let (written, back) = done.ok_or(io::ErrorKind::TimedOut)?;
            buffer = back;
            at += match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => written,
            };
        }
        Ok(buffer)
    }

    fn begin_write(&self) {
        let limit = match self.beyond_until {
            // Others wait for it.
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => self.shared.limits.write_timeout,
        };
        self.shared.clock.begin(&self.watch, Phase::Busy, limit);
    }

    // ---- the end

    /// Tells the client that no more answers come, and reads on for a while without looking: closing a socket with
    /// unread input resets it, which could destroy the last answer on its way.
    async fn linger(&mut self) {
        let limit = match self.shared.clock.is_closing() {
            true => self.shared.limits.linger_timeout.min(LINGER_CLOSING_TIMEOUT),
            false => self.shared.limits.linger_timeout,
        };
        self.shared.clock.begin(&self.watch, Phase::Busy, limit);
        if timed(&self.watch, self.writer.finish()).await.is_none() {
            return;
        }
        let mut dropped = 0;
        while dropped < LINGER_BYTES_MAX {
            self.input.clear();
            self.taken = 0;
            match self.read(BODY_READ_BYTES).await {
                Came::Bytes => dropped += self.input.len(),
                Came::End | Came::TooLate => return,
            }
        }
    }

    /// The last answer had claims and the connection is over. A client that had left before its kernel took all of the
    /// answer does not have them: they go back. One that was cut off may have read the answer and work on it; then the
    /// claims stay its own until their lease ends, as no two leases may overlap.
    ///
    /// Source: data plane 4.5; rule 23 (what cannot be *written* goes back).
    async fn confirm(&mut self) {
        if self.unconfirmed.is_none() || !self.left || is(Bug::AnswerDeadPoll) {
            return;
        }
        let mut pause = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        loop {
            match self.writer.delivery() {
                Delivery::Acknowledged => return,
                Delivery::Waiting if waited < DELIVERY_CHECK => {
                    sleep(pause).await;
                    waited += pause;
                    pause *= 2;
                }
                Delivery::Waiting | Delivery::Lost => {
                    let claims = self.unconfirmed.take();
                    return self.give_back(claims);
                }
            }
        }
    }

    fn give_back(&self, claims: Option<Claims>) {
        if let Some((lease, claims)) = claims {
            self.shared.service.give_back(lease, claims);
        }
    }
}

impl<S: Service> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.closed();
    }
}

/// The output of `future`, or `None` when the watch fires first; then `future` is dropped.
async fn timed<T>(watch: &Watch, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if watch.fired(cx) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}
