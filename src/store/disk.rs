//! Stores tasks in an SQLite file. An acknowledged write survives any crash. `writer` is the only thread that writes:
//! one transaction and fsync for all waiting writes. `readers` are read-only connections. `resident` holds live rows,
//! so that polls need no disk read, a cache of settled rows, and the sums.

mod batch;
mod check;
mod columns;
pub mod copies;
mod folder;
mod health;
mod readers;
mod reads;
mod resident;
mod rows;
mod schema;
mod settings;
mod starting;
#[cfg(test)]
mod tests;
mod upkeep;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use self::batch::RowWrite;
use self::check::FileCheck;
use self::columns::RowOutline;
use self::folder::FolderLock;
use self::health::StoreHealthMonitor;
use self::readers::ReaderPool;
use self::reads::{ListedRow, ReadRow};
use self::resident::{EarlierRows, OWN, ResidentRows, UnresolvedInserts};
use self::settings::{DiskTuning, FaultHooks};
use self::writer::WriterRequest;
use super::clock_trust::ClockTrust;
use super::record::{LostRow, RecordError, UnreadableRows, condemned};
use super::tasks::{
    NewestCursor, PageRange, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage, TaskStore, Usage,
    WriteOutcome, WriteRole,
};
use crate::metric;
use crate::replica::Incarnation;
use crate::task::{Digest, ListFilter, Principal, ShortReference, Summary, Task, TaskKey, Timestamp};

pub use self::health::StoreHealth;
pub use self::settings::DiskSettings;

/// Capacity of the writer's queue. Further senders wait.
const QUEUE_MAX: usize = 1_024;

type SharedFolderLock = Arc<Mutex<Option<FolderLock>>>;

pub struct DiskStore {
    queue: mpsc::Sender<WriterRequest>,
    readers: Arc<ReaderPool>,
    resident: Arc<ResidentRows>,
    monitor: Arc<StoreHealthMonitor>,
    seen: Arc<AtomicU64>,
    commits: Arc<AtomicU64>,
    unresolved: Arc<UnresolvedInserts>,
    earlier: EarlierRows,
    bytes_max: usize,
    writer: Mutex<Option<JoinHandle<()>>>,
    check: Arc<FileCheck>,
    clock: ClockTrust,
    /// Held while the writer's thread may have the file open; permanently after a bug ended that thread.
    _lock: SharedFolderLock,
    unreadable: UnreadableRows,
}

debug_members!(DiskStore, |store| usage: store.usage(), health: store.health());

/// Why a store cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}: {source}; name a folder that the gateway may write to", .path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{}: there is no store; name the folder of one, which `store.path` of its gateway names", .path.display())]
    NoStore { path: PathBuf },
    /// A copy would overwrite a file; `remedy` says how to avoid that.
    #[error("{}: there is a file already; {remedy}", .path.display())]
    FileExists { path: PathBuf, remedy: &'static str },
    #[error(
        "{}: is {medium}, which does not keep files reliably; name a folder on a local disk, or write `ephemeral = true` in \
         [store] if tasks may be lost", .path.display()
    )]
    Medium { path: PathBuf, medium: &'static str },
    #[error("{}: another gateway has the store open; end it, or name another folder as `store.path`", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: is not a database; move it away, and a new one is made in its place", .path.display())]
    NotADatabase { path: PathBuf },
    #[error("{}: is another program's database; name another folder as `store.path`", .path.display())]
    Foreign { path: PathBuf },
    #[error(
        "{}: was written by a newer taskgate (version {found}, this one knows {known}); run that one. The file is left \
         as it is", .path.display()
    )]
    Newer { path: PathBuf, found: i32, known: i32 },
    #[error(
        "{}: was written by an older taskgate (version {found}; this one reads {known} only); let that one finish its \
         tasks, then move it away together with the files beside it, and a new one is made in its place. The file is left as it is", .path.display()
    )]
    Older { path: PathBuf, found: i32, known: i32 },
    #[error(
        "{}: is damaged ({what}); restore a copy, or move it away together with the files beside it and keep them: the \
         gateway makes a new one in its place, without the tasks", .path.display()
    )]
    Corrupt { path: PathBuf, what: String },
    #[error("{}: cannot be opened: {what}", .path.display())]
    Failed { path: PathBuf, what: String },
}

/// Checks the store without a change. One in use is no error: see [`is_open_elsewhere`]. Fails as [`DiskStore::open`].
pub fn examine(settings: &DiskSettings) -> Result<(), OpenError> {
    folder::examine(&settings.folder)?;
    if let Some(medium) = folder::unfit_medium(&settings.folder).filter(|_| !settings.is_ephemeral) {
        return Err(OpenError::Medium { path: settings.folder.clone(), medium });
    }
    // A process that closes any handle to a file loses all its locks on the file, including SQLite's. So a process with an open
    // store must not open the file again; it was checked when the store was opened.
    if folder::is_locked(&settings.folder) { Ok(()) } else { schema::examine(&schema::file_in(&settings.folder)) }
}

pub fn is_open_elsewhere(folder: &Path) -> bool {
    folder::is_locked(folder)
}

impl DiskStore {
    /// Creates a missing store. Waits for an earlier process to close it. A failure changes nothing.
    pub async fn open(settings: DiskSettings) -> Result<Arc<Self>, OpenError> {
        Self::open_with(settings, FaultHooks::default()).await
    }

    pub fn health(&self) -> StoreHealth {
        self.monitor.now()
    }

    pub fn watch_health(&self) -> watch::Receiver<StoreHealth> {
        self.monitor.watch()
    }

    /// The waiting time of the oldest unfinished write: high if the disk stalls or is overloaded.
    pub fn waited(&self) -> Duration {
        self.monitor.waited()
    }

    /// The latest time used by this process or an earlier one. A clock that shows less was set back.
    pub fn last_seen(&self) -> Timestamp {
        Timestamp::from_millis(self.seen.load(Ordering::Relaxed))
    }

    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Completes waiting writes, closes the file and releases the lock. Every later call fails.
    pub async fn close(&self) {
        self.check.end();
        self.readers.close();
        let (reply, closed) = oneshot::channel();
        if self.queue.send(WriterRequest::Close(reply)).await.is_ok() {
            let _ = closed.await;
        }
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }

    /// Returns the latest time used so far, so that a clock that is set back revives no expired task (F58).
    fn raise(&self, now: Timestamp) -> Timestamp {
        let now = self.clock.expiry_time(now);
        let before = self.seen.fetch_max(now.as_millis(), Ordering::Relaxed);
        now.max(Timestamp::from_millis(before))
    }

    async fn write(&self, write: RowWrite) -> Result<WriteOutcome, StoreError> {
        let (reply, outcome) = oneshot::channel();
        let is_lost = !matches!(write, RowWrite::Sweep { .. } | RowWrite::Barrier);
        self.queue.send(WriterRequest::Write(write, Instant::now(), reply)).await.map_err(|_| StoreError::closed())?;
        match outcome.await {
            Ok(outcome) => outcome,
            // The writer ended during this write.
            Err(_) if is_lost => Err(StoreError::UnknownCommit(io::Error::other("the store's writer ended"))),
            Err(_) => Err(StoreError::closed()),
        }
    }

    async fn find(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if let Some(row) = self.resident.live(key) {
            return Ok(Some(row));
        }
        if let Some(row) = self.resident.settled(key) {
            return Ok(row.is_there(now).then_some(row));
        }
        let ticket = self.resident.ticket(key);
        let wanted = key.clone();
        let Some(read) = self.readers.read(move |conn| reads::read(conn, &wanted)).await? else { return Ok(None) };
        if let ReadRow::Whole(row) = &read
            && !self.unresolved.hides(key)
        {
            self.resident.keep(ticket, row, now);
        }
        self.present(read, now).await
    }

    async fn put(&self, write: RowWrite) -> Result<Revision, StoreError> {
        self.write(write).await?.revision()
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.check.end();
        self.readers.close();
    }
}

fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Io(io::Error::other(error))
}

#[async_trait]
impl TaskStore for DiskStore {
    async fn close(&self) {
        Self::close(self).await;
    }

    fn holder(&self) -> Incarnation {
        OWN
    }

    fn is_time_distrusted(&self) -> bool {
        self.clock.is_distrusted()
    }

    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        self.put(RowWrite::Insert(Arc::new(task.clone()))).await
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        Ok(self.find(key, self.raise(now)).await?.map(|row| self.earlier.named(row)))
    }

    async fn settled_bytes(&self, key: &TaskKey) -> Result<Option<usize>, StoreError> {
        if self.resident.live(key).is_some() || self.resident.settled(key).is_some() {
            return Ok(None);
        }
        let wanted = key.clone();
        self.readers.read(move |conn| reads::settled_bytes(conn, &wanted)).await
    }

    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        if role == WriteRole::Holder && self.earlier.holds(&task.key) {
            return Err(StoreError::Fenced);
        }
        let written = self.put(RowWrite::Replace { expected, role, task: Arc::new(task.clone()) }).await;
        if matches!(written, Err(StoreError::Conflict)) {
            // The cached copy of a settled row may be outdated, so the next read must use the disk.
            self.resident.remove_settled(&task.key);
        }
        written
    }

    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        self.write(RowWrite::Barrier).await.map_err(StoreError::as_failed)?;
        // Memory holds no unresolved row: the file was reopened before the barrier.
        self.load(key, now).await
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        self.write(RowWrite::Remove(key.clone())).await.map(|_| ())
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        if self.clock.is_distrusted() {
            return Ok(0);
        }
        self.write(RowWrite::Sweep { now: self.raise(now), limit }).await?.count()
    }

    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError> {
        if self.clock.is_distrusted() {
            return Ok(());
        }
        self.write(RowWrite::SweepOne { key: key.clone(), now: self.raise(now) }).await.map(|_| ())
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        if self.clock.is_distrusted() { Ok(Vec::new()) } else { Ok(self.resident.overdue(self.raise(now), limit)) }
    }

    async fn page(&self, owner: &Principal, range: PageRange) -> Result<SummaryPage, StoreError> {
        let (owner, range) = (owner.clone(), PageRange { now: self.raise(range.now), ..range });
        let (found, next) = self.readers.list(move |conn| reads::page(conn, &owner, range)).await?;
        Ok(SummaryPage { tasks: self.listed(found, range.now).await, next })
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        range: PageRange,
    ) -> Result<SummaryPage, StoreError> {
        let range = PageRange { now: self.raise(range.now), ..range };
        if filter.is_empty() {
            return Ok(SummaryPage { tasks: Vec::new(), next: None });
        }
        let (owner, wanted) = (owner.clone(), filter.clone());
        if let Some(ids) = &filter.ids {
            let ids = ids.clone();
            let found = self.readers.list(move |conn| reads::with_ids(conn, &owner, ids)).await?;
            let tasks = self.listed(found, range.now).await.into_iter().filter(|task| !task.is_gone(range.now));
            return Ok(SummaryPage::of_named(tasks.collect(), filter, range));
        }
        let selecting = self.readers.list(move |conn| reads::select(conn, &owner, &wanted, range));
        let (found, next) = selecting.await?;
        let mut tasks = self.listed(found, range.now).await;
        // A row in memory may be newer than the one read.
        tasks.retain(|task| filter.fits(task));
        Ok(SummaryPage { tasks, next })
    }

    async fn claim(&self, limit: usize, _upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError> {
        let left = std::iter::from_fn(|| self.earlier.take());
        // Some may be settled or set aside by now.
        Ok(left.filter(|key| self.resident.is_open(key)).take(limit).collect())
    }

    async fn held(&self) -> Result<Vec<TaskKey>, StoreError> {
        Ok(self.resident.with_work().into_iter().filter(|key| !self.earlier.is_left(key)).collect())
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        stream::pending().boxed()
    }

    async fn survey(&self, range: PageRange<NewestCursor>) -> Result<SummaryPage<NewestCursor>, StoreError> {
        let range = PageRange { now: self.raise(range.now), ..range };
        let (found, next) = self.readers.list(move |conn| reads::survey(conn, range)).await?;
        Ok(SummaryPage { tasks: self.listed(found, range.now).await, next })
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let mut found = self.readers.read(move |conn| reads::referred(conn, reference, limit)).await?;
        found.retain(|key| !self.unresolved.hides(key));
        Ok(found)
    }

    fn reach(&self) -> Reach {
        Reach::Machine
    }

    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        let now = self.raise(now);
        let (owner, key) = (owner.clone(), *key);
        match self.readers.read(move |conn| reads::named(conn, &owner, &key, now)).await? {
            Some(key) => self.load(&key, now).await,
            None => Ok(None),
        }
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn usage(&self) -> Usage {
        self.resident.usage()
    }

    fn usage_of(&self, owner: &Principal) -> Usage {
        self.resident.usage_of(owner)
    }
}

impl DiskStore {
    /// The task of a row; `None` if it has expired.
    async fn present(&self, read: ReadRow, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if self.unresolved.hides(read.key()) {
            return Ok(None);
        }
        let row = match read {
            // The row in memory is the visible one: an unfinished commit is visible nowhere or everywhere.
            ReadRow::Whole(row) => self.resident.live(&row.task.key).unwrap_or(row),
            ReadRow::Damaged {
                key,
                outline,
                error: error @ (RecordError::OtherVersion(_) | RecordError::Unknown),
                ..
            } => {
                self.resident.set_aside(&key, &outline);
                self.unreadable.log(&key, "a task cannot be read, and is left as it is", &error);
                return Err(StoreError::Io(io::Error::other(error)));
            }
            // The row in memory is intact, and its next write repairs the disk.
            ReadRow::Damaged { key, revision, outline, error: RecordError::Damaged } => {
                match self.resident.live(&key) {
                    Some(row) => row,
                    None => self.condemn(key, revision, outline, now).await,
                }
            }
        };
        Ok(row.is_there(now).then_some(row))
    }

    /// Replaces a damaged row by a failed task (F56), for readers; on the disk once the clock for its expiry is trusted.
    async fn condemn(&self, key: TaskKey, revision: Revision, outline: RowOutline, now: Timestamp) -> StoredTask {
        self.unreadable.log(&key, "the stored row of a task is damaged", &RecordError::Damaged);
        let RowOutline { is_settled, created_at, expires_at, .. } = outline;
        let task = Arc::new(condemned(key, LostRow { is_settled, created_at, expires_at }, now));
        if self.clock.is_distrusted() {
            return StoredTask::held_by(OWN, task, revision);
        }
        metrics::counter!(metric::STORE_DAMAGED).increment(1);
        let write = RowWrite::Condemn { expected: revision, task: Arc::clone(&task) };
        let written = self.put(write).await;
        if written.is_err() {
            // Another reader has replaced it, or it cannot be written: this process uses the row in memory.
            self.resident.set_aside(&task.key, &outline);
        }
        let row = StoredTask::held_by(OWN, task, written.unwrap_or(revision));
        self.resident.keep_settled(&row, now);
        row
    }

    /// Unreadable rows are shown as failed, or left out.
    async fn listed(&self, rows: Vec<ListedRow>, now: Timestamp) -> Vec<Summary> {
        let mut tasks = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                ListedRow::Whole(summary) if self.unresolved.hides(&summary.key) => (),
                ListedRow::Whole(summary) => {
                    let live = self.resident.live(&summary.key);
                    tasks.push(live.map_or(*summary, |row| Summary::of(&row.task)));
                }
                ListedRow::Unreadable(Some(key)) => match self.load(&key, now).await {
                    Ok(row) => tasks.extend(row.map(|row| Summary::of(&row.task))),
                    Err(error) => tracing::debug!(%error, task = %ShortReference::of(&key), "a list leaves a task out"),
                },
                ListedRow::Unreadable(None) => tracing::debug!("a list leaves out a row that cannot be read"),
            }
        }
        tasks
    }
}
