//! Defines the contract of every store.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::replica::{GuardedRow, GuardedWrite, Incarnation, WriteVerdict};
use crate::task::{Digest, ListFilter, ListPosition, Principal, ShortReference, Summary, Task, TaskKey, Timestamp};

/// Counts a row's writes. A writer names the revision that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    pub const FIRST: Self = Self(1);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRole {
    /// The holder, which alone knows the state of the call.
    Holder,
    /// A command by a client, an operator or a timer, which any replica executes. The holder stays the same.
    Command,
}

#[derive(Clone, Debug)]
pub struct StoredTask {
    pub task: Arc<Task>,
    pub revision: Revision,
    /// The replica that still has work for this row; `None` without such work: see [`needs_holder`].
    pub holder: Option<Incarnation>,
}

impl StoredTask {
    pub(super) fn held_by(holder: Incarnation, task: Arc<Task>, revision: Revision) -> Self {
        let holder = needs_holder(&task).then_some(holder);
        Self { task, revision, holder }
    }

    /// Whether the task is unsettled, or has not expired.
    pub(super) fn is_there(&self, now: Timestamp) -> bool {
        !self.task.is_settled() || self.task.expires_at() > now
    }

    pub(super) const fn guard(&self) -> GuardedRow {
        GuardedRow { revision: self.revision.0, holder: self.holder }
    }
}

/// Checks a write, and returns the row that it replaces. `Conflict`, `Fenced`: see [`TaskStore::replace`].
pub(super) fn written_over(
    found: Option<StoredTask>,
    role: WriteRole,
    writer: Incarnation,
    expected: Revision,
) -> Result<StoredTask, StoreError> {
    let write = match role {
        WriteRole::Holder => GuardedWrite::by_holder(writer, expected.0),
        WriteRole::Command => GuardedWrite::by_command(expected.0),
    };
    let guard = found.as_ref().map(StoredTask::guard);
    match (write.judge(guard), found) {
        (WriteVerdict::Made, Some(row)) => Ok(row),
        (WriteVerdict::Fenced, _) => Err(StoreError::Fenced),
        (WriteVerdict::Conflict | WriteVerdict::Made, _) => Err(StoreError::Conflict),
    }
}

/// Whether a task needs a holder: until it is settled and its effects are performed.
pub fn needs_holder(task: &Task) -> bool {
    !task.is_settled() || !task.recovery.pending_effects.is_empty()
}

/// The other processes that see the store's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: the contents end with the process.
    Process,
    /// A later process on the same machine, which may resume calls.
    Machine,
    /// Other replicas, at the same time.
    Shared,
}

impl Reach {
    pub const fn outlives_process(self) -> bool {
        matches!(self, Self::Machine | Self::Shared)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHint {
    Changed(TaskKey),
    /// Unknown rows were written or removed.
    Missed,
}

/// A sweep of a shared or disk store stops after this many bytes, regardless of its limit: longer ones delay writes.
pub const SWEEP_BYTES_MAX: usize = 32 << 20;

/// A page ends after this many bytes of summaries, regardless of its limit in tasks.
pub const PAGE_BYTES_MAX: usize = 256 << 10;

/// May be short or empty although more pages follow.
#[derive(Clone, Debug)]
pub struct SummaryPage<P = ListPosition> {
    pub tasks: Vec<Summary>,
    pub next: Option<P>,
}

/// A page of a filtered list ends after this many of the owner's rows, with or without a match.
pub const FILTERED_ROWS_MAX: usize = 2_000;

/// A position in the list of all tasks, newest first: after the task with this time and reference.
pub type NewestCursor = (Timestamp, ShortReference);

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another writer changed the task first")]
    Conflict,
    /// Only for a holder's write: its knowledge of the call is obsolete and must never be written again.
    #[error("another replica has taken the task over")]
    Fenced,
    #[error("a task with this key, or made under this idempotency key, exists")]
    Exists,
    /// The gateway's own limit: the write is refused until the store holds less.
    #[error("the stored tasks fill `limits.stored_bytes_max`")]
    Full,
    /// A temporary outage: nothing was written, and the same write succeeds once there is room.
    #[error("the disk below the store is full")]
    NoRoom,
    /// Reported by the engine, which knows the limit, for a new task.
    #[error("the owner has as much in the store as it may")]
    OwnerFull,
    /// Nothing was read or written, and the write will not happen later.
    #[error("the store failed")]
    Io(#[from] io::Error),
    /// Only for a write with an unknown commit, which [`TaskStore::resolve_write`] resolves. The row of such an insert
    /// may exist: this replica hides it, and the store removes it soon, unless another replica has written it.
    #[error("the store failed, and the result of the commit is unknown")]
    UnknownCommit(#[source] io::Error),
}

impl StoreError {
    /// Treats a write as failed if no caller needs its outcome.
    #[must_use]
    pub fn as_failed(self) -> Self {
        if let Self::UnknownCommit(cause) = self { Self::Io(cause) } else { self }
    }

    pub(super) fn closed() -> Self {
        Self::Io(io::Error::new(io::ErrorKind::BrokenPipe, "the store is closed"))
    }
}

/// The effect of one request to a store's writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    At(Revision),
    /// The number of rows that were freed, or of sums that were folded.
    Count(usize),
    Claimed(Vec<TaskKey>),
    Done,
}

impl WriteOutcome {
    pub(super) fn revision(self) -> Result<Revision, StoreError> {
        if let Self::At(revision) = self { Ok(revision) } else { Err(Self::of_another_write()) }
    }

    pub(super) fn count(self) -> Result<usize, StoreError> {
        if let Self::Count(count) = self { Ok(count) } else { Err(Self::of_another_write()) }
    }

    pub(super) fn claimed(self) -> Result<Vec<TaskKey>, StoreError> {
        if let Self::Claimed(keys) = self { Ok(keys) } else { Err(Self::of_another_write()) }
    }

    /// The error if a writer returned the outcome of another kind of write, which none does.
    fn of_another_write() -> StoreError {
        StoreError::Io(io::Error::other("another write's outcome"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Unsettled tasks, including reserved ones. Enforced by the engine's admission.
    pub tasks_max: usize,
    /// Size of all rows, including settled ones, up to which new rows are accepted. Enforced by the store.
    pub stored_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub tasks: usize,
    pub unsettled: usize,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct PageRange<P = ListPosition> {
    /// The position of the last row of the page before.
    pub after: Option<P>,
    pub limit: usize,
    /// Rows that have expired by then are left out.
    pub now: Timestamp,
}

impl<P> PageRange<P> {
    pub const fn new(after: Option<P>, limit: usize, now: Timestamp) -> Self {
        Self { after, limit, now }
    }
}

impl SummaryPage {
    pub(super) fn of_named(mut tasks: Vec<Summary>, filter: &ListFilter, range: PageRange) -> Self {
        let is_behind =
            |task: &Summary| range.after.is_none_or(|after| filter.compare(&after, &filter.position(task)).is_lt());
        tasks.retain(|task| filter.fits(task) && is_behind(task));
        tasks.sort_unstable_by(|one, other| filter.compare(&filter.position(one), &filter.position(other)));
        let has_more = tasks.len() > range.limit;
        tasks.truncate(range.limit);
        let next = tasks.last().filter(|_| has_more).map(|last| filter.position(last));
        Self { tasks, next }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStep {
    Show,
    Skip,
    /// The page ends before this row.
    End,
}

/// Decides which rows a page of a filtered list shows. Each store reads the owner's rows in the list's order.
#[derive(Debug)]
pub(super) struct FilteredPage<'a> {
    filter: &'a ListFilter,
    range: PageRange,
    shown: usize,
    bytes: usize,
    read: usize,
    last: Option<ListPosition>,
}

impl<'a> FilteredPage<'a> {
    pub(super) const fn new(filter: &'a ListFilter, range: PageRange) -> Self {
        Self { filter, range, shown: 0, bytes: 0, read: 0, last: range.after }
    }

    /// `task` is `None` if it is unreadable, which reading the whole row reports.
    pub(super) fn step(&mut self, position: ListPosition, task: Option<&Summary>) -> PageStep {
        if self.shown >= self.range.limit || self.bytes > PAGE_BYTES_MAX || self.read >= FILTERED_ROWS_MAX {
            return PageStep::End;
        }
        self.read += 1;
        // The position of an unreadable key may lie anywhere: the page never goes back.
        if self.last.is_none_or(|last| self.filter.compare(&last, &position).is_lt()) {
            self.last = Some(position);
        }
        if task.is_some_and(|task| task.is_gone(self.range.now) || !self.filter.fits(task)) {
            return PageStep::Skip;
        }
        self.shown += 1;
        self.bytes += task.map_or(size_of::<Summary>(), Summary::bytes);
        PageStep::Show
    }

    /// The position of the last row that was read, or the position before the page.
    pub(super) const fn last(&self) -> Option<ListPosition> {
        self.last
    }

    pub(super) const fn rest(&self) -> usize {
        FILTERED_ROWS_MAX - self.read
    }
}

/// A task store, open in one incarnation. All pass `contract`. Tasks must be exact ([`Task::is_exact`]), so that limits
/// in bytes are limits of memory. A row that needs a holder names the replica that inserted or claimed it.
///
/// A settled task never changes for clients, so it can be cached. A full store refuses writes and never evicts. A
/// dropped call happens completely or not at all. Each method may fail with `Io`; comments name further errors.
#[async_trait]
pub trait TaskStore: Send + Sync + std::fmt::Debug {
    /// Completes waiting writes; every later call fails.
    async fn close(&self) {}

    fn holder(&self) -> Incarnation;

    /// Whether the clock may be wrong by more than tasks live. Nothing is freed then, and no task ends by its `ttl`.
    fn is_time_distrusted(&self) -> bool {
        false
    }

    /// Inserts a task, held by this replica. Returns once the row would survive all that this store survives. `Exists`
    /// if the key is taken, or if [`TaskStore::load`] would find a task of the owner and idempotency key at this task's
    /// creation time. `Full`, `NoRoom`. `Io`: no later process finds the row; `UnknownCommit`: one may.
    async fn insert(&self, task: &Task) -> Result<Revision, StoreError>;

    /// `None` for unknown, foreign and expired settled tasks, but not for unsettled ones, which `apply` settles.
    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError>;

    /// The size of a settled row that [`TaskStore::load`] would copy into memory; `None` for any other row.
    async fn settled_bytes(&self, key: &TaskKey) -> Result<Option<usize>, StoreError>;

    /// Finds an owner's task by idempotency key, as [`TaskStore::load`] would. Its maker then treats it as seen.
    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError>;

    /// Replaces a task at the expected revision. The limit in bytes is for new tasks: a row may grow beyond it, in
    /// memory by a quarter. A row that does not grow is never refused, so a task can always settle with a fault.
    ///
    /// `Fenced` if the role is the holder's and another replica holds the row, at any revision. `Conflict` if another
    /// write came first, the row is gone, or the holder writes to a row that needs none any more: load it and decide
    /// again. `Full` beyond the maximum size, or in memory the limit of growth. `NoRoom`, `UnknownCommit`.
    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError>;

    /// A row's final state after an unknown commit: no earlier write appears or vanishes later. `Io` if not yet known.
    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError>;

    /// Removes a settled row, or one no client knows (T-27), unless held elsewhere. Absent: no error. `UnknownCommit`.
    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError>;

    /// Removes settled tasks past their `ttl`, at most `limit` and about [`SWEEP_BYTES_MAX`]; returns how many. Zero
    /// means that none can be removed now: another replica may be about to, or the clock may be wrong.
    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Removes a task if [`TaskStore::sweep`] could, but no newer task under that key; else no error. `UnknownCommit`.
    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError>;

    /// Returns at most `limit` unsettled tasks past their `ttl`.
    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// Returns one owner's tasks in order of creation, at most `limit` and about [`PAGE_BYTES_MAX`], after the task
    /// with the creation time and id in `after`. Reads summaries only. Takes time in proportion to the page, plus
    /// expired rows that are not yet swept. An unreadable row is left out or shown as failed, and counts for the page.
    async fn page(&self, owner: &Principal, range: PageRange) -> Result<SummaryPage, StoreError>;

    /// Returns one owner's tasks that match `filter`, in its order, after `after`; bounded as in [`TaskStore::page`].
    ///
    /// Reads at most [`FILTERED_ROWS_MAX`] of the owner's rows, so a page may be short or empty without being the last.
    /// A shared store also ends a page after a MiB of summaries, and sorts unsettled tasks by last update for each
    /// list. Ids in the filter cost time in proportion. Unreadable rows are left out, or count as failed.
    async fn select(&self, owner: &Principal, filter: &ListFilter, range: PageRange)
    -> Result<SummaryPage, StoreError>;

    /// Claims at most `limit` rows of dead incarnations; returns their keys. One replica claims a row, once; one that
    /// was itself declared dead claims none. A subtask follows its parent, even beyond the limit. If replicas with
    /// other upstreams may exist, rows of calls at none of `upstreams` are left to them for a while. Empty means that
    /// there are none now. After `Io`, a later call returns rows claimed nevertheless, maybe with rows already held.
    async fn claim(&self, limit: usize, upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError>;

    /// Returns the rows that this replica holds, without unclaimed ones.
    async fn held(&self) -> Result<Vec<TaskKey>, StoreError>;

    /// Hints may be lost, even without a [`StoreHint::Missed`]: callers must also poll. Empty without other writers.
    fn changes(&self) -> BoxStream<'static, StoreHint>;

    /// All owners' tasks, also settled ones, for operators. Newest first, with the limits of [`TaskStore::page`].
    async fn survey(&self, range: PageRange<NewestCursor>) -> Result<SummaryPage<NewestCursor>, StoreError>;

    /// Returns the tasks with this operator reference: one, rarely more. They may have expired.
    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// The revision of each row, without proof that it is durable; `None` if missing, or if only this replica writes.
    async fn revisions(&self, keys: &[TaskKey]) -> Result<Vec<Option<Revision>>, StoreError> {
        Ok(vec![None; keys.len()])
    }

    /// Returns the holder of each row, for operators of shared stores.
    async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, StoreError> {
        Ok(vec![None; keys.len()])
    }

    fn reach(&self) -> Reach;

    /// The size in bytes up to which the store accepts new tasks.
    fn bytes_max(&self) -> usize;

    fn usage(&self) -> Usage;

    fn usage_of(&self, owner: &Principal) -> Usage;
}
