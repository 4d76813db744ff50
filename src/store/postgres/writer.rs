//! The writer: a tokio task that commits all waiting writes as one transaction. A batch with an unknown commit ends its
//! connection. The next one gets a number that excludes unfinished transactions of the last, and first removes rows
//! with an unknown insert. From then on every write is resolved.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batch::{BatchOutcome, BatchPlan, GroupedWrites, WriterIdentity};
use super::columns::{self, holder_column};
use super::health::{PostgresHealth, in_words, is_full};
use super::hints;
use super::open_error::{PostgresOpenError, unavailable};
use super::schema;
use super::session::{DatabaseConnector, Session, back_off};
use super::state::StoreState;
use super::statements::{HELD, OWN_SUMS, TAKE_EPOCH, WriterStatements};
use super::sums::SumChange;
use super::task_write::TaskWrite;
use super::transaction::{CommitFailure, count_barrier, transact};
use crate::metric;
use crate::store::tasks::{StoreError, WriteOutcome};
use crate::task::TaskKey;

/// Tries of a batch that conflicts with another transaction.
const TRIES_MAX: usize = 5;

const LATER_MAX: usize = 1_024;

/// Interval between tries on a full disk.
const FULL_PROBE_EVERY: Duration = Duration::from_secs(5);

pub(super) type PendingWrite = (TaskWrite, WriteReply);
type WriteReply = oneshot::Sender<Result<WriteOutcome, StoreError>>;

#[derive(Debug)]
pub(super) struct PostgresWriter {
    pub(super) connector: Arc<DatabaseConnector>,
    pub(super) state: Arc<StoreState>,
    pub(super) queue: mpsc::Receiver<PendingWrite>,
    /// Writes that conflict with the last batch.
    pub(super) deferred: VecDeque<PendingWrite>,
    /// Since when the disk is full. Writes then run one by one, so that one without room fails alone.
    pub(super) full_since: Option<Instant>,
    pub(super) end: CancellationToken,
}

#[derive(Debug)]
pub(super) struct WriterLink {
    session: Session,
    statements: WriterStatements,
    epoch: i64,
}

impl PostgresWriter {
    /// Commits waiting writes until the store is closed and no write waits. `link` is the first connection.
    pub(super) async fn run(mut self, link: WriterLink) {
        let mut link = Some(link);
        let mut failures = 0;
        loop {
            let Some(open) = link.take_if(|link| !link.session.client.is_closed()) else {
                link = self.reconnect(&mut failures).await;
                if link.is_none() && self.end.is_cancelled() {
                    return self.refuse("the store is closed");
                }
                continue;
            };
            let Some(first) = self.next().await else { return };
            if open.session.client.is_closed() {
                // The connection ended while it was idle: this write was certainly not made.
                self.deferred.push_front(first);
                continue;
            }
            link = self.write(open, first).await;
        }
    }

    async fn next(&mut self) -> Option<PendingWrite> {
        if let Some(write) = self.deferred.pop_front() {
            return Some(write);
        }
        let is_full = self.full_since.is_some();
        tokio::select! {
            biased;
            write = self.queue.recv() => write,
            () = tokio::time::sleep(FULL_PROBE_EVERY), if is_full => Some((TaskWrite::Barrier, oneshot::channel().0)),
            () = self.end.cancelled() => {
                self.queue.close();
                self.queue.recv().await
            }
        }
    }

    /// Tries to connect once. A failure refuses all waiting writes, as the duration of the outage is unknown.
    async fn reconnect(&mut self, failures: &mut u32) -> Option<WriterLink> {
        let connecting = WriterLink::open(&self.connector, &self.state);
        match self.end.run_until_cancelled(connecting).await? {
            Ok(link) => {
                *failures = 0;
                // The other replicas may have missed hints: the last connection's may be lost with it.
                link.notify(&self.state, vec![hints::keyless(self.state.holder)]);
                let is_full = self.full_since.is_some();
                self.state.writer_is(if is_full { PostgresHealth::Full } else { PostgresHealth::Good });
                Some(link)
            }
            Err(error) => {
                self.state.writer_is(error.health());
                self.refuse(&error.to_string());
                *failures += 1;
                self.end.run_until_cancelled(tokio::time::sleep(back_off(*failures))).await;
                None
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        let queued = std::iter::from_fn(|| self.queue.try_recv().ok());
        for (_, reply) in self.deferred.drain(..).chain(queued) {
            let _ = reply.send(Err(StoreError::Io(io::Error::new(io::ErrorKind::NotConnected, why.to_owned()))));
        }
    }

    /// Commits a write together with other waiting ones. Returns the connection if it is still usable.
    async fn write(&mut self, link: WriterLink, first: PendingWrite) -> Option<WriterLink> {
        let (writes, replies) = self.gather(first);
        let begun = Instant::now();
        let made = self.attempt(&link, &writes).await;
        metrics::histogram!(metric::STORE_COMMIT_TIME).record(begun.elapsed().as_secs_f64());
        // Regardless of the outcome: cached rows may have expired or been replaced by now.
        for key in writes.iter().filter_map(TaskWrite::key) {
            self.state.settled.remove(key);
        }
        match made {
            Ok(made) => {
                self.made(&link, &writes, replies, made);
                Some(link)
            }
            Err(CommitFailure::NotMade(error)) if is_full(&error) => {
                self.found_full(writes, replies);
                Some(link)
            }
            Err(CommitFailure::NotMade(error)) => {
                let why = in_words(&error);
                tracing::warn!(%why, "the database refused to write");
                metrics::counter!(metric::STORE_FAILURES, "reason" => "io").increment(1);
                for reply in replies {
                    let _ = reply.send(Err(StoreError::Io(io::Error::other(why.clone()))));
                }
                // The server may have become a standby, or be about to stop.
                None
            }
            Err(failure) => {
                let trouble = failure.health();
                if matches!(trouble, PostgresHealth::NoStandby | PostgresHealth::Behind(_)) {
                    self.state.writer_is(trouble);
                }
                self.state.unresolved.add(&writes);
                drop(link);
                let why = failure.to_string();
                tracing::warn!(%why, writes = writes.len(), "the result of a batch's commit is unknown");
                for (write, reply) in writes.iter().zip(replies) {
                    let cause = io::Error::other(why.clone());
                    let _ = reply.send(Err(match write.key() {
                        // No caller looks up its rows by key.
                        None => StoreError::Io(cause),
                        Some(_) => {
                            metrics::counter!(metric::DATABASE_UNRESOLVED_WRITES).increment(1);
                            StoreError::UnknownCommit(cause)
                        }
                    }));
                }
                None
            }
        }
    }

    fn made(&mut self, link: &WriterLink, writes: &[TaskWrite], replies: Vec<WriteReply>, outcome: BatchOutcome) {
        let BatchOutcome { results, sums, folded, changed, sent } = outcome;
        self.connector.trust.lock().lane_write_passed(link.session.server, sent);
        self.state.settled.write_passed(link.session.server, sent);
        metrics::counter!(metric::STORE_COMMITS).increment(1);
        let size = u32::try_from(writes.len()).unwrap_or(u32::MAX);
        metrics::histogram!(metric::STORE_BATCH).record(f64::from(size));
        count(writes, &results);
        self.state.sums.add(sums);
        self.state.sums.take_over(folded);
        if writes.iter().all(|write| write.key().is_none()) {
            changed.iter().for_each(|key| self.state.settled.remove(key));
        }
        // Writes without new rows succeed on a full disk too.
        let has_room = writes.iter().any(|write| write.new_row().is_some());
        if self.full_since.is_some_and(|since| has_room || since.elapsed() >= FULL_PROBE_EVERY) {
            self.full_since = None;
            self.state.writer_is(PostgresHealth::Good);
        }
        for (reply, result) in replies.into_iter().zip(results) {
            let _ = reply.send(result);
        }
        link.hint(&self.state, &changed);
    }

    /// Handles a full disk: refuses a single write, and defers several to run one by one.
    fn found_full(&mut self, writes: Vec<TaskWrite>, replies: Vec<WriteReply>) {
        metrics::counter!(metric::STORE_FAILURES, "reason" => "full").increment(1);
        self.full_since = Some(Instant::now());
        self.state.writer_is(PostgresHealth::Full);
        let is_alone = writes.len() == 1;
        for pending in writes.into_iter().zip(replies).rev() {
            if is_alone {
                let _ = pending.1.send(Err(StoreError::NoRoom));
            } else {
                self.deferred.push_front(pending);
            }
        }
    }

    fn gather(&mut self, first: PendingWrite) -> (Vec<TaskWrite>, Vec<WriteReply>) {
        let mut plan = BatchPlan::default();
        let room = self.state.room();
        let (mut writes, mut replies) = (Vec::new(), Vec::new());
        let mut later = VecDeque::new();
        let mut next = Some(first);
        while let Some((write, reply)) = next {
            if plan.takes(&write, room) {
                writes.push(write);
                replies.push(reply);
            } else {
                later.push_back((write, reply));
            }
            let is_enough = self.full_since.is_some() || plan.is_full() || later.len() >= LATER_MAX;
            next = if is_enough { None } else { self.deferred.pop_front().or_else(|| self.queue.try_recv().ok()) };
        }
        later.append(&mut self.deferred);
        self.deferred = later;
        (writes, replies)
    }

    async fn attempt(&self, link: &WriterLink, writes: &[TaskWrite]) -> Result<BatchOutcome, CommitFailure> {
        let batch = GroupedWrites {
            session: &link.session,
            statements: &link.statements,
            identity: WriterIdentity { holder: self.state.holder, epoch: link.epoch },
            room: self.state.room(),
            clock_trust: self.state.clock_trust,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let made = batch.run(writes).await;
            match made {
                Err(failure) if tries < TRIES_MAX && matches!(failure.code(), Some("40P01" | "40001")) => (),
                made => return made,
            }
        }
    }
}

fn count(writes: &[TaskWrite], results: &[Result<WriteOutcome, StoreError>]) {
    if writes.iter().all(|write| matches!(write, TaskWrite::Barrier)) {
        count_barrier();
    }
    for result in results {
        match result {
            Ok(WriteOutcome::Claimed(keys)) => {
                metrics::counter!(metric::REPLICA_CLAIMED).increment(u64::try_from(keys.len()).unwrap_or(u64::MAX));
            }
            Err(StoreError::Fenced) => metrics::counter!(metric::REPLICA_FENCED).increment(1),
            Ok(_) | Err(_) => (),
        }
    }
}

impl WriterLink {
    /// Opens a connection behind which every write is resolved.
    pub(super) async fn open(connector: &DatabaseConnector, state: &StoreState) -> Result<Self, PostgresOpenError> {
        Self::of(connector.connect("writer", None).await?, state).await
    }

    pub(super) async fn of(session: Session, state: &StoreState) -> Result<Self, PostgresOpenError> {
        let settings = &state.settings;
        let opening = async {
            schema::judge_server(&session, settings.access.durability).await?;
            Self::begin(&session, state).await
        };
        let opened = tokio::time::timeout(settings.access.write_max * 2, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(PostgresOpenError::behind("a commit is not acknowledged")));
        let (statements, epoch) = opened?;
        Ok(Self { session, statements, epoch })
    }

    async fn begin(session: &Session, state: &StoreState) -> Result<(WriterStatements, i64), PostgresOpenError> {
        let statements = WriterStatements::prepare(session).await.map_err(unavailable)?;
        let take = session.client.prepare(TAKE_EPOCH).await.map_err(unavailable)?;
        let me = holder_column(state.holder);
        let made = transact(session, &[(&take, vec![&me])]).await;
        if made.as_ref().is_err_and(CommitFailure::wrote_nothing) {
            return Err(PostgresOpenError::unavailable("the database has no row of this replica"));
        }
        let made = made.map_err(CommitFailure::open_error)?;
        session.trust.lock().lane_write_passed(session.server, made.sent);
        count_barrier();
        let epoch = made.row().map_or(Ok(0), |row| row.try_get(0)).map_err(unavailable)?;
        // From here on no write of an earlier connection can appear.
        Self::resolve_writes(session, &statements, WriterIdentity { holder: state.holder, epoch }, state).await?;
        let rows = session.client.query(OWN_SUMS, &[&me]).await.map_err(unavailable)?;
        state.sums.reset_own(SumChange::all(&rows).map_err(unavailable)?);
        state.settled.clear();
        Ok((statements, epoch))
    }

    /// Removes rows with a refused insert, and finds rows that an unknown claim may have claimed.
    async fn resolve_writes(
        session: &Session,
        statements: &WriterStatements,
        identity: WriterIdentity,
        state: &StoreState,
    ) -> Result<(), PostgresOpenError> {
        let unresolved = state.unresolved.inserts();
        if !unresolved.is_empty() {
            let batch = GroupedWrites { session, statements, identity, room: 0, clock_trust: state.clock_trust };
            let writes: Vec<_> = unresolved.iter().cloned().map(TaskWrite::Withdraw).collect();
            let removed = batch.run(&writes).await.map_err(CommitFailure::open_error)?;
            tracing::warn!(
                refused = unresolved.len(),
                found = removed.changed.len(),
                "rows with an unknown commit were removed"
            );
            state.unresolved.decided(&unresolved);
        }
        if state.unresolved.is_claim() {
            let held = session.client.query(HELD, &[&holder_column(state.holder)]).await.map_err(unavailable)?;
            let held =
                held.iter().map(|row| columns::key(row, 0)).collect::<Result<Vec<_>, _>>().map_err(unavailable)?;
            tracing::warn!(
                held = held.len(),
                "it is not known whether tasks were taken over: all tasks of this replica are checked"
            );
            state.unresolved.holds(held);
        }
        Ok(())
    }

    /// Sends hints, which are optional: no write waits for them, and they may be lost.
    fn hint(&self, state: &StoreState, changed: &[TaskKey]) {
        if changed.is_empty() {
            return;
        }
        self.notify(state, changed.iter().map(|key| hints::text(state.holder, key)).collect());
    }

    fn notify(&self, state: &StoreState, texts: Vec<String>) {
        let channel = hints::channel(&state.settings.access.schema);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&channel, &texts];
        let sent = self.session.client.execute(&self.statements.hint, &values);
        // One poll sends it, ahead of the next batch; the answer is ignored.
        let _ = Box::pin(sent).now_or_never();
    }
}
