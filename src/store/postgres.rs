//! Stores tasks in PostgreSQL for several replicas. An acknowledged write survives any crash that `durability` covers.
//! `session` opens six connections: one for the `writer`, which commits waiting writes in one transaction (a `batch` of
//! `task_write`s); one for `control`: heartbeats and hints; four for `readers`, two of them for `lists`. `transaction`
//! judges a commit by [`crate::replica::commit_trust`], `readers` a read by [`crate::replica::read_trust`].

mod batch;
mod columns;
mod control;
mod health;
mod hints;
mod lists;
mod notices;
mod open_error;
mod opening;
mod readers;
mod replica_rows;
mod schema;
mod session;
mod settings;
mod settled_rows;
mod state;
mod statements;
mod sums;
mod task_write;
#[cfg(test)]
mod tests;
mod transaction;
mod upkeep;
mod writer;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::columns::{DamagedRow, EncodedRow, FetchedRow, SummaryRow};
use self::control::{HeartbeatContent, ReplicaControl};
use self::opening::{Beginning, begin};
use self::readers::{ListReaders, ReaderConnection, RowRequest};
use self::replica_rows::SharedReplicaView;
use self::session::DatabaseConnector;
use self::settled_rows::ReadSource;
use self::state::StoreState;
use self::task_write::{ClaimableRows, TaskWrite};
use self::writer::{PendingWrite, PostgresWriter};
use super::record::{LostRow, RecordError, condemned};
use super::tasks::{
    NewestCursor, PageRange, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage, TaskStore, Usage,
    WriteOutcome, WriteRole,
};
use crate::cause::CauseChain;
use crate::metric;
use crate::replica::{BootTime, Incarnation, OwnStanding, StoreGeneration, TaskClock};
use crate::system::since_boot;
use crate::task::{Clock, Digest, ListFilter, Principal, ShortReference, Summary, Task, TaskKey, Timestamp};

pub use self::health::PostgresHealth;
pub use self::open_error::{PostgresOpenError, Retry};
pub use self::replica_rows::{ReplicaView, ReplicaWatch, StoredReplica};
pub use self::settings::{
    DatabaseAccess, DatabaseUrl, Durability, PostgresSettings, PriorIncarnation, ReplicaDescription,
    check_database_url, is_schema_name,
};
pub use self::upkeep::ReplicaForgetting;

/// Capacity of the writer's queue. Further senders wait.
const QUEUE_MAX: usize = 1_024;
/// How often a row is read again after concurrent writes.
const NAMED_TRIES_MAX: usize = 4;
const POINT_READERS: usize = 2;
const LIST_READERS: usize = 2;

pub struct PostgresStore {
    queue: mpsc::Sender<PendingWrite>,
    rows: mpsc::Sender<RowRequest>,
    lists: ListReaders,
    state: Arc<StoreState>,
    connector: Arc<DatabaseConnector>,
    view: SharedReplicaView,
    content: watch::Sender<HeartbeatContent>,
    clock: Arc<SharedClock>,
    generation: StoreGeneration,
    tracker: TaskTracker,
    /// Stops heartbeats and looks at the other replicas' rows.
    silence: CancellationToken,
    end: CancellationToken,
}

debug_members!(PostgresStore, |store| holder: store.state.holder, usage: store.usage(), health: store.health());

impl PostgresStore {
    /// Opens the store as a new incarnation, and creates the schema if it is missing.
    ///
    /// Tries once; [`PostgresOpenError::retry`] says whether a later try may succeed. Takes as long as one heartbeat
    /// interval of other replicas, or the lease if a silent replica has other keys. Upgrading an earlier program's
    /// schema rewrites all rows: far longer. A failure, like dropping the future, may leave a created schema, dead
    /// incarnations (this replica's earlier one and silent ones), and a row of this incarnation without heartbeats.
    pub async fn open(settings: PostgresSettings) -> Result<Arc<Self>, PostgresOpenError> {
        if !is_schema_name(&settings.access.schema) {
            return Err(PostgresOpenError::SchemaName { schema: settings.access.schema });
        }
        let settings = Arc::new(settings);
        let tracker = TaskTracker::new();
        let connector = Arc::new(DatabaseConnector::new(Arc::clone(&settings), tracker.clone()));
        let (beginning, link) = begin(&connector, &settings).await?;
        let Beginning { membership, generation, clock, state, view } = beginning;
        let (state, clock) = (Arc::new(state), Arc::new(clock));
        tracing::info!(incarnation = %state.holder, schema = settings.access.schema, "the database is open");
        let end = CancellationToken::new();
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let writer = PostgresWriter {
            connector: Arc::clone(&connector),
            state: Arc::clone(&state),
            queue: waiting,
            deferred: std::collections::VecDeque::new(),
            full_since: None,
            end: end.clone(),
        };
        tracker.spawn(writer.run(link));
        let reader = |duty: String| Arc::new(ReaderConnection::new(duty, &connector, &state));
        let (rows, wanted) = mpsc::channel(readers::QUEUE_MAX);
        let wanted = Arc::new(Mutex::new(wanted));
        let points: Vec<_> = (0..POINT_READERS).map(|number| reader(format!("rows {number}"))).collect();
        let lists: Vec<_> = (0..LIST_READERS).map(|number| reader(format!("lists {number}"))).collect();
        for reader in &points {
            tracker.spawn(readers::serve(Arc::clone(reader), Arc::clone(&wanted), end.clone()));
        }
        let all = points.into_iter().chain(lists.iter().cloned()).collect();
        tracker.spawn(end.clone().run_until_cancelled_owned(readers::mend(all)));
        let lists = ListReaders::new(lists);
        let config_digest = settings.replica.config_digest.clone();
        let content = watch::Sender::new(HeartbeatContent { is_leaving: false, config_digest });
        let view = SharedReplicaView::new(view);
        let silence = end.child_token();
        let control = ReplicaControl {
            connector: Arc::clone(&connector),
            state: Arc::clone(&state),
            view: view.clone(),
            clock: Arc::clone(&clock),
            membership,
            content: content.subscribe(),
            end: silence.clone(),
            has_warned: false,
            dead: std::collections::BTreeSet::new(),
        };
        tracker.spawn(control.run());
        tracker.spawn(upkeep::run(queue.clone(), Arc::clone(&state), end.clone()));
        Ok(Arc::new(Self {
            queue,
            rows,
            lists,
            state,
            connector,
            view,
            content,
            clock,
            generation,
            tracker,
            silence,
            end,
        }))
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::<SharedClock>::clone(&self.clock)
    }

    pub fn as_prior(&self) -> PriorIncarnation {
        PriorIncarnation {
            generation: self.generation,
            holder: self.state.holder,
            heartbeat: self.view.now().heartbeat,
        }
    }

    pub fn health(&self) -> PostgresHealth {
        self.state.health()
    }

    pub fn watch_health(&self) -> watch::Receiver<PostgresHealth> {
        self.state.watch()
    }

    /// Updates the metrics that depend on the current time.
    pub fn refresh_metrics(&self) {
        let age = boot_time().since(self.view.now().heartbeat_sent);
        metrics::gauge!(metric::REPLICA_HEARTBEAT_AGE).set(age.as_secs_f64());
    }

    /// Announces with an immediate heartbeat that this replica leaves. It then claims no rows; the others take over.
    pub fn leave(&self) {
        self.content.send_modify(|content| content.is_leaving = true);
    }

    /// Announces a new configuration digest, with an immediate heartbeat.
    pub fn announce_config(&self, config_digest: Vec<u8>) {
        self.content.send_modify(|content| content.config_digest = config_digest);
    }

    /// Completes writes, releases this replica's rows, and closes. Without the database, others wait for the lease.
    pub async fn close(&self) {
        // A heartbeat after this incarnation was declared dead would report that it is fenced.
        self.silence.cancel();
        self.end.cancel();
        self.tracker.close();
        if matches!(self.view.now().standing, OwnStanding::Fenced | OwnStanding::StoreLost(_)) {
            return;
        }
        // Readers and heartbeats stop at once, and with them their connections' drivers.
        let ended = async { tokio::join!(self.lists.close(), self.tracker.wait()) };
        let _ = tokio::time::timeout(self.state.settings.access.write_max, ended).await;
        if let Err(error) = self.declare_dead(self.state.holder).await {
            tracing::warn!(error = %CauseChain(&error), "the other replicas were not notified that this one ends");
        }
    }

    async fn write(&self, write: TaskWrite) -> Result<WriteOutcome, StoreError> {
        let (reply, outcome) = oneshot::channel();
        self.queue.send((write, reply)).await.map_err(|_| StoreError::closed())?;
        outcome.await.unwrap_or_else(|_| Err(StoreError::UnknownCommit(io::Error::other("the store's writer ended"))))
    }

    async fn put(&self, write: TaskWrite) -> Result<Revision, StoreError> {
        self.write(write).await?.revision()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.end.cancel();
        self.tracker.close();
    }
}

#[async_trait]
impl TaskStore for PostgresStore {
    async fn close(&self) {
        Self::close(self).await;
    }

    fn holder(&self) -> Incarnation {
        self.state.holder
    }

    fn is_time_distrusted(&self) -> bool {
        self.state.clock_trust.is_distrusted()
    }

    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        self.view.now().may_insert(self.state.settings.terms, boot_time())?;
        self.put(TaskWrite::Insert(Box::new(EncodedRow::of(task)))).await
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        let now = self.state.clock_trust.expiry_time(now);
        let judge = |read: ReadSource| self.connector.trust.lock().judge(read.server, read.received, boot_time());
        if let Some(row) = self.state.settled.get(key, judge) {
            return Ok(row.is_there(now).then_some(row));
        }
        if self.state.unresolved.hides(key) {
            return Ok(None);
        }
        let ticket = self.state.settled.ticket(key);
        let (reply, found) = oneshot::channel();
        self.rows.send((key.clone(), reply)).await.map_err(|_| StoreError::closed())?;
        let Some((read, source)) = found.await.unwrap_or_else(|_| Err(StoreError::closed()))? else { return Ok(None) };
        if let FetchedRow::Whole(row) = &read {
            self.state.settled.keep(ticket, row, source, now);
        }
        self.present(read, now).await
    }

    async fn settled_bytes(&self, key: &TaskKey) -> Result<Option<usize>, StoreError> {
        if self.state.settled.has(key) {
            return Ok(None);
        }
        self.lists.reader()?.read(async |link| lists::settled_bytes(link, key).await).await
    }

    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        let now = self.state.clock_trust.expiry_time(now);
        for _ in 0..NAMED_TRIES_MAX {
            let found = self.lists.reader()?.read(async |link| lists::idempotent(link, owner, key, now).await).await?;
            let Some(found) = found else { return Ok(None) };
            let Some(row) = self.load(&found, now).await? else { return Ok(None) };
            if let Some(shown) = self.shown(row).await? {
                return Ok(Some(shown));
            }
        }
        Err(StoreError::Io(io::Error::other("concurrent writes changed the task at every try")))
    }

    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        self.put(TaskWrite::Replace { expected, role, row: Box::new(EncodedRow::of(task)) }).await
    }

    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        let (reader, now) = (self.lists.reader()?, self.state.clock_trust.expiry_time(now));
        for _ in 0..readers::SETTLE_TRIES_MAX {
            self.write(TaskWrite::Barrier).await.map_err(StoreError::as_failed)?;
            let Some(found) = reader.read_settled(async |link| readers::read_rows(link, &[key]).await).await? else {
                continue;
            };
            self.state.settled.remove(key);
            return match found.into_iter().find_map(|(_, row)| row) {
                Some(read) => self.present(read, now).await,
                None => Ok(None),
            };
        }
        Err(StoreError::Io(io::Error::new(io::ErrorKind::NotConnected, "the database's server was replaced")))
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        self.write(TaskWrite::Remove(key.clone())).await.map(|_| ())
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        if self.state.clock_trust.is_distrusted() {
            return Ok(0);
        }
        self.write(TaskWrite::Sweep { now, limit }).await?.count()
    }

    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError> {
        if self.state.clock_trust.is_distrusted() {
            return Ok(());
        }
        self.write(TaskWrite::SweepOne { key: key.clone(), now }).await.map(|_| ())
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        if self.state.clock_trust.is_distrusted() {
            return Ok(Vec::new());
        }
        self.lists.reader()?.read(async |link| lists::overdue(link, now, limit).await).await
    }

    async fn page(&self, owner: &Principal, range: PageRange) -> Result<SummaryPage, StoreError> {
        let (reader, range) = (self.lists.reader()?, self.unexpired(range));
        let (found, next) = reader.read(async |link| lists::page(link, owner, range).await).await?;
        Ok(SummaryPage { tasks: self.listed(found, range.now).await, next })
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        range: PageRange,
    ) -> Result<SummaryPage, StoreError> {
        if filter.is_empty() {
            return Ok(SummaryPage { tasks: Vec::new(), next: None });
        }
        let (reader, range) = (self.lists.reader()?, self.unexpired(range));
        if let Some(ids) = &filter.ids {
            let keys: Vec<_> = ids.iter().map(|id| TaskKey { owner: owner.clone(), id: *id }).collect();
            let found = reader.read(async |link| lists::named(link, &keys).await).await?;
            let tasks = self.listed(found, range.now).await.into_iter().filter(|task| !task.is_gone(range.now));
            return Ok(SummaryPage::of_named(tasks.collect(), filter, range));
        }
        let (found, next) = reader.read(async |link| lists::select(link, owner, filter, range).await).await?;
        let mut tasks = self.listed(found, range.now).await;
        // A row may have changed since its index entry was read.
        tasks.retain(|task| filter.fits(task));
        Ok(SummaryPage { tasks, next })
    }

    async fn claim(&self, limit: usize, upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError> {
        let held = self.state.unresolved.take_held(limit);
        if !held.is_empty() {
            return Ok(held);
        }
        let view = self.view.now();
        if !view.has_dead() || self.content.borrow().is_leaving {
            return Ok(Vec::new());
        }
        let rows = ClaimableRows::of(upstreams, &view.abandoned);
        // Rows of dead replicas are rare. This check needs no proof, and saves a commit.
        if !self.lists.reader()?.read_unproven(async |link| lists::has_claimable(link, &rows).await).await? {
            return Ok(Vec::new());
        }
        self.write(TaskWrite::Claim { limit, rows }).await?.claimed()
    }

    async fn held(&self) -> Result<Vec<TaskKey>, StoreError> {
        let holder = self.state.holder;
        let mut held = self.lists.reader()?.read(async |link| lists::held(link, holder).await).await?;
        held.retain(|key| !self.state.unresolved.hides(key));
        Ok(held)
    }

    async fn revisions(&self, keys: &[TaskKey]) -> Result<Vec<Option<Revision>>, StoreError> {
        self.lists.reader()?.read_unproven(async |link| lists::revisions(link, keys).await).await
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        hints::stream(self.state.hints.subscribe())
    }

    async fn survey(&self, range: PageRange<NewestCursor>) -> Result<SummaryPage<NewestCursor>, StoreError> {
        let (reader, range) = (self.lists.reader()?, self.unexpired(range));
        let (found, next) = reader.read(async |link| lists::survey(link, range).await).await?;
        Ok(SummaryPage { tasks: self.listed(found, range.now).await, next })
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let reader = self.lists.reader()?;
        let mut found = reader.read(async |link| lists::referred(link, reference, limit).await).await?;
        found.retain(|key| !self.state.unresolved.hides(key));
        Ok(found)
    }

    async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, StoreError> {
        self.lists.reader()?.read(async |link| lists::holders(link, keys).await).await
    }

    fn reach(&self) -> Reach {
        Reach::Shared
    }

    fn bytes_max(&self) -> usize {
        self.state.settings.stored_bytes_max
    }

    fn usage(&self) -> Usage {
        self.state.sums.usage()
    }

    fn usage_of(&self, owner: &Principal) -> Usage {
        self.state.sums.usage_of(owner)
    }
}

/// The clock of all tasks, steered by the other replicas' times.
#[derive(Debug)]
struct SharedClock(parking_lot::Mutex<TaskClock>);

impl SharedClock {
    fn steer(&self, highest: Timestamp, at: BootTime) {
        self.0.lock().steer(highest, at);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now(boot_time())
    }
}

fn boot_time() -> BootTime {
    BootTime(since_boot())
}

impl PostgresStore {
    fn unexpired<P>(&self, range: PageRange<P>) -> PageRange<P> {
        PageRange { now: self.state.clock_trust.expiry_time(range.now), ..range }
    }

    /// The task of a row; `None` if it has expired.
    async fn present(&self, read: FetchedRow, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if self.state.unresolved.hides(read.key()) {
            return Ok(None);
        }
        let row = match read {
            FetchedRow::Whole(row) => row,
            FetchedRow::Damaged(row) if row.error == RecordError::Damaged => self.condemn(row, now).await,
            FetchedRow::Damaged(row) => {
                self.state.unreadable.log(&row.key, "a task cannot be read, and is left as it is", &row.error);
                return Err(StoreError::Io(io::Error::other(row.error)));
            }
        };
        Ok(row.is_there(now).then_some(row))
    }

    /// Replaces a damaged row by a failed task (F56), for readers; in the store once the clock for its expiry is trusted.
    async fn condemn(&self, row: DamagedRow, now: Timestamp) -> StoredTask {
        let DamagedRow { key, revision, is_settled, created_at, expires_at, .. } = row;
        let task = condemned(key, LostRow { is_settled, created_at, expires_at }, now);
        if self.state.clock_trust.is_distrusted() {
            return StoredTask { task: task.into(), revision, holder: None };
        }
        metrics::counter!(metric::STORE_DAMAGED).increment(1);
        tracing::error!(task = %ShortReference::of(&task.key), "the stored row of a task is damaged");
        let encoded = Box::new(EncodedRow::of(&task));
        let write = TaskWrite::Replace { expected: revision, role: WriteRole::Command, row: encoded };
        let revision = self.put(write).await.unwrap_or(revision);
        StoredTask { task: task.into(), revision, holder: None }
    }

    /// The summaries of listed rows. Rows with a damaged summary are read as a whole.
    async fn listed(&self, rows: Vec<SummaryRow>, now: Timestamp) -> Vec<Summary> {
        let mut tasks = Vec::with_capacity(rows.len());
        for SummaryRow { key, summary, .. } in rows {
            if self.state.unresolved.hides(&key) {
                continue;
            }
            match summary {
                Some(summary) => tasks.push(summary),
                None => tasks.extend(self.load(&key, now).await.ok().flatten().map(|row| Summary::of(&row.task))),
            }
        }
        tasks
    }

    /// Marks a row as shown, if another replica inserted it and no write has followed: that replica may not know whether
    /// its insert was committed, and would otherwise remove it. `None` after a concurrent write.
    async fn shown(&self, row: StoredTask) -> Result<Option<StoredTask>, StoreError> {
        let is_untouched =
            row.revision == Revision::FIRST && row.holder.is_some_and(|holder| holder != self.state.holder);
        if !is_untouched {
            return Ok(Some(row));
        }
        match self.replace(row.revision, WriteRole::Command, &row.task).await {
            Ok(revision) => Ok(Some(StoredTask { revision, ..row })),
            Err(StoreError::Conflict) => Ok(None),
            // No row is shown, so it does not matter whether the mark was written.
            Err(error @ (StoreError::UnknownCommit(_) | StoreError::Io(_))) => Err(error.as_failed()),
            // The caller did not ask for this write.
            Err(error) => Err(StoreError::Io(io::Error::other(error))),
        }
    }
}
