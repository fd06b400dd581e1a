//! Performs a shard's effects: what the engine asks of the store, on the shard's own connections.
//!
//!     Effect::Append, Move, Bundle, Call > a task > with_conn > the store > the event that answers it
//!
//! Holds: replies and wakes are handed on at once; everything that waits does so in a task of its own. Does not decide
//! anything about an outcome: the engine does.

use super::{Answer, Connections, Core};
use crate::limits::{SETTLE_MAX, SILENT_STORE_MAX};
use crate::mail::{Mail, now};
use crate::rt;
use crate::state::{StateCall, StateFn};
use crate::store::{self, Client, Conn, Incarnation, Line, On};
use crate::telemetry::metrics::Op;
use crate::writer::Writer;
use queen_shards::command::{Command, Event};
use queen_shards::effect::{Call, Contact, Effect, Reply, StoreError};
use queen_shards::ids::PartitionId;
use queen_shards::planted::{Bug, is};
use queen_shards::sealed::Slice;
use std::rc::Rc;
use std::time::Duration;

/// Longest the store may take for a sealed run: 25 MB, at a moment's notice from nobody.
const SEAL_STORE_MAX: Duration = Duration::from_secs(30);

impl Core {
    pub(super) fn perform(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Reply { slot, verdict } if slot.shard() == self.index => {
                self.answer(slot, Answer::Verdict(verdict))
            }
            Effect::Reply { slot, verdict } => self.post(slot.shard(), Mail::Verdict { slot, verdict }),
            Effect::Wake { slot } if slot.shard() == self.index => self.answer(slot, Answer::Woken(self.index)),
            Effect::Wake { slot } => self.post(slot.shard(), Mail::Wake { slot, from: self.index }),
            Effect::Spool { token, record } => self.to_spool.borrow_mut().0.push((token, record)),
            Effect::Drained { id, verdict } => self.to_spool.borrow_mut().1.push((id, verdict)),
            Effect::Append { commit, append } => {
                let (core, on) = (self.clone(), self.incarnation.borrow().clone());
                rt::spawn(async move {
                    if is(Bug::AnswerBeforeCommit) {
                        core.enter(Event::Appended { commit, result: Ok(crate::planted::believed(&append)) });
                    }
                    let began = now();
                    let (level, limit) = (core.config.zstd_level, core.config.push_commit_timeout);
                    let write = async |client: &Client, line| store::append(client, &append, level, line).await;
                    let settle = async |client: &Client, line| store::settle_append(client, &append, level, line).await;
                    let result = core.commit(|c| &c.append, &core.writers.append, &on, limit, write, settle).await;
                    let items = append.lanes.iter().map(|lane| lane.count as u64).sum();
                    core.metrics.shard(core.index).batch(Op::Push, items, now().since(began));
                    core.enter(Event::Appended { commit, result });
                });
            }
            Effect::Move { commit, moves } => {
                let (core, on) = (self.clone(), self.incarnation.borrow().clone());
                rt::spawn(async move {
                    let began = now();
                    let limit = core.config.stmt_timeout.min(SILENT_STORE_MAX);
                    let write = async |client: &Client, line| store::move_cursors(client, &moves, line).await;
                    let settle =
                        async |client: &Client, line| store::settle_moves(client, &moves, line).await.map(Some);
                    let result = core.commit(|c| &c.moves, &core.writers.moves, &on, limit, write, settle).await;
                    let claims =
                        moves.iter().filter(|m| m.lease == queen_shards::effect::LeaseMust::Over).count() as u64;
                    let (metrics, micros) = (core.metrics.shard(core.index), now().since(began));
                    if claims > 0 {
                        metrics.batch(Op::Pop, claims, micros);
                    }
                    if claims < moves.len() as u64 {
                        metrics.batch(Op::Ack, moves.len() as u64 - claims, micros);
                    }
                    core.enter(Event::Moved { commit, result });
                });
            }
            Effect::Bundle { commit, bundles } => {
                let (core, on) = (self.clone(), self.incarnation.borrow().clone());
                rt::spawn(async move {
                    let (level, limit) = (core.config.zstd_level, core.config.push_commit_timeout);
                    let write = async |client: &Client, line| store::bundle(client, &bundles, level, line).await;
                    let settle = async |client: &Client, line| {
                        store::settle_bundle(client, &bundles, level, line).await.map(Some)
                    };
                    let result = core.commit(|c| &c.bundle, &core.writers.bundle, &on, limit, write, settle).await;
                    // Before anybody is answered: a pop after the answer must see what was stored.
                    let told = queen_shards::bundle::news(&bundles, &result, core.shards());
                    // All of a commit were prepared on the store that it was sent to.
                    let store = bundles.first().map_or(0, |bundle| bundle.store);
                    let told = told.into_iter().map(|(shard, news)| core.ask(shard, Command::Heard { store, news }));
                    futures_util::future::join_all(told).await;
                    core.enter(Event::Bundled { commit, result });
                });
            }
            Effect::Call { call, ask: Call::SealRun { partition, slice } } => {
                let (core, on) = (self.clone(), self.incarnation.borrow().clone());
                rt::spawn(async move {
                    let result = core.seal(partition, slice, &on).await;
                    core.enter(Event::Returned { call, result });
                });
            }
            Effect::Call { call, ask } => {
                let (core, on) = (self.clone(), self.incarnation.borrow().clone());
                rt::spawn(async move {
                    let limit = core.patience(&ask);
                    let run = async |client: &Client| store::call(&On { client, means: Some(&on) }, &ask).await;
                    let result = core.with_conn(|c| &c.cold, limit, run).await;
                    let made = makes_conflating(&ask, &result);
                    if made == Made::Yes {
                        // Before anybody is answered, and whoever has left by then.
                        core.tell_of_record(&ask).await;
                    }
                    core.enter(Event::Returned { call, result });
                    if made == Made::Unknown {
                        core.tell_of_record(&ask).await;
                    }
                });
            }
        }
    }

    /// A commit decided on the store `on`. Where its answer is lost, the log is asked what became of it, for [`SETTLE_MAX`]:
    /// `settle` gives the answer that was lost, or `None` when nothing was written and nothing will be.
    ///
    /// Source: rule 9.
    async fn commit<T>(
        &self,
        conn: impl Fn(&Connections) -> &Conn,
        writer: &Writer,
        on: &Incarnation,
        limit: Duration,
        write: impl AsyncFnOnce(&Client, Line) -> Result<T, StoreError>,
        settle: impl AsyncFnOnce(&Client, Line) -> Result<Option<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let mut sent = None;
        let commit = async |client: &Client| {
            let line = writer.line(client, on).await?;
            sent = Some(line);
            write(client, line).await
        };
        let mut result = self.with_conn(&conn, limit, commit).await;
        if let (Err(StoreError::Unknown(why)), Some(line)) = (&result, sent) {
            match Box::pin(self.with_conn(&conn, SETTLE_MAX, async |client| settle(client, line).await)).await {
                Ok(Some(outcome)) => result = Ok(outcome),
                Ok(None) => result = Err(StoreError::Unavailable(format!("not written: {why}"))),
                Err(_) => {}
            }
        }
        writer.settled(&result);
        if result.is_ok() {
            self.committed();
        }
        result
    }

    /// A group may have a record now that says conflation: pinned pops may have met it before, in other shards and brokers, where
    /// nobody registers it. Source: data plane 4.10.
    async fn tell_of_record(&self, ask: &Call) {
        let Call::OpenGroup { tenant, queue, group, .. } = ask else { return };
        let (tenant, args) = (*tenant, serde_json::json!({ "queue": &**queue }));
        let told = |shard| {
            let command = Command::GroupChanged { tenant, queue: Some(queue.clone()), group: group.clone() };
            self.ask(shard, command)
        };
        let others = (0..self.shards()).filter(|shard| *shard != self.index).map(told);
        let brokers = self.state(StateCall { function: StateFn::TouchQueue, tenant, args });
        let told = futures_util::future::join(futures_util::future::join_all(others), brokers);
        // Without an answer other brokers find out when they next read the queue.
        rt::timeout(SILENT_STORE_MAX, told).await;
    }

    /// How long a call may take: pushes wait for what a lane must know, everything else must notice a silent store.
    fn patience(&self, ask: &Call) -> Duration {
        let limit = match ask {
            Call::Provision { .. }
            | Call::FindLane { .. }
            | Call::ReadKeys { .. }
            | Call::ReadRuns { .. }
            | Call::ReadRunRows { .. } => self.config.push_commit_timeout,
            _ => SILENT_STORE_MAX,
        };
        limit.min(self.config.stmt_timeout)
    }

    /// Sorts a slice on the helper thread, then stores its run, on a connection for that alone: the cold one would make
    /// pops and first pushes wait for it.
    async fn seal(&self, partition: PartitionId, slice: Slice, on: &Incarnation) -> Result<Reply, StoreError> {
        let Some(connections) = self.store.get().cloned() else {
            return Err(StoreError::Unavailable("the store has not been reached yet".into()));
        };
        let sealed = rt::aside(move || slice.seal()).await.map_err(|e| StoreError::Unavailable(e.to_string()))?;
        let name = format!("queen {} shard {} seal", self.config.server_id, self.index);
        let conn = Conn::new(connections.cold.target().clone(), name);
        let store = async |client: &Client| store::store_run(&On { client, means: Some(on) }, partition, &sealed).await;
        let stored = store::within(&conn, SEAL_STORE_MAX, store).await;
        if let Err(error) = &stored {
            self.metrics.shard(self.index).db_error();
            store::log_error(error);
        }
        stored.map(|()| Reply::Sealed(sealed.run))
    }

    /// Runs `work` on one of the store connections, within `limit`. Past it the connection is given up and the outcome
    /// is unknown.
    async fn with_conn<T>(
        &self,
        conn: impl Fn(&Connections) -> &Conn,
        limit: Duration,
        work: impl AsyncFnOnce(&store::Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(connections) = self.store.get().cloned() else {
            return Err(StoreError::Unavailable("the store has not been reached yet".into()));
        };
        let metrics = self.metrics.shard(self.index);
        metrics.busy(1);
        let result = store::within(conn(&connections), limit, work).await;
        metrics.busy(-1);
        if let Err(error) = &result {
            self.metrics.shard(self.index).db_error();
            store::log_error(error);
        }
        result
    }
}

/// Whether a call made a group's record that says conflation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Yes,
    No,
    /// It has no answer.
    Unknown,
}

fn makes_conflating(ask: &Call, result: &Result<Reply, StoreError>) -> Made {
    let Call::OpenGroup { contact, .. } = ask else { return Made::No };
    let asks = matches!(contact, Contact::RegisterConflating(_) | Contact::PinnedConflating(_));
    match result {
        Ok(Reply::Group(Some(row))) if row.made && row.conflation => Made::Yes,
        Err(StoreError::Unknown(_)) if asks => Made::Unknown,
        _ => Made::No,
    }
}
