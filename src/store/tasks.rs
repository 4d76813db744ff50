//! Defines what every store promises.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::replica::{GuardedRow, GuardedWrite, Incarnation, WriteVerdict};
use crate::task::{
    Digest, ListFilter, ListPlace, Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp,
};

/// Counts the writes of one row; a writer names the one it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    /// Of a row that nobody has written since it was inserted.
    pub const FIRST: Self = Self(1);
}

/// On whose account a task is written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRole {
    /// Its holder's, who knows how its call stands: nobody else may say that.
    Holder,
    /// A command of a client's or an operator's, or of time, which any gateway carries out. The holder stays who it is.
    Command,
}

/// A row as it was read.
#[derive(Clone, Debug)]
pub struct StoredTask {
    pub task: Arc<Task>,
    pub revision: Revision,
    /// Who has to do something about it; `None` where nobody has to: see [`needs_holder`].
    pub holder: Option<Incarnation>,
}

impl StoredTask {
    /// A row that `holder` has to do something about, if anybody has to.
    pub(super) fn held_by(holder: Incarnation, task: Arc<Task>, revision: Revision) -> Self {
        let holder = needs_holder(&task).then_some(holder);
        Self { task, revision, holder }
    }

    /// What writes of it are guarded by.
    pub(super) const fn guard(&self) -> GuardedRow {
        GuardedRow { revision: self.revision.0, holder: self.holder }
    }
}

/// The row that a write goes over.
///
/// # Errors
/// `Conflict`, `Fenced`: see [`TaskStore::replace`].
pub(super) fn written_over(
    found: Option<StoredTask>,
    role: WriteRole,
    (writer, expected): (Incarnation, Revision),
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

/// Whether somebody has to do something about a task: until it has settled, and then until its upstream was told.
#[must_use]
pub fn needs_holder(task: &Task) -> bool {
    !task.is_settled() || task.recovery.is_untold
}

/// Who sees what a store holds, beside whoever opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody: it ends with the process.
    Process,
    /// A later process on the same machine, to which calls may be left.
    Machine,
    /// Other gateways, at the same time.
    Shared,
}

impl Reach {
    /// Whether what it holds is there after this process.
    #[must_use]
    pub const fn outlives_process(self) -> bool {
        matches!(self, Self::Machine | Self::Shared)
    }
}

/// What a store tells of the doings of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHint {
    /// This row was written, or removed.
    Changed(TaskKey),
    /// Some were, and nobody knows which.
    Missed,
}

/// A sweep of a store that is shared, or on a disk, ends beyond as many bytes of rows, however many were asked for: what frees more
/// keeps other writes waiting.
pub const SWEEP_BYTES_MAX: usize = 32 << 20;

/// A page of a list ends beyond as many bytes of summaries, however many tasks were asked for.
pub const PAGE_BYTES_MAX: usize = 256 << 10;

/// Some of the tasks of a list whose places are `P`. There may be few, or none, and others behind them.
#[derive(Clone, Debug)]
pub struct SummaryPage<P = ListPlace> {
    pub tasks: Vec<Summary>,
    /// Behind which place others may follow.
    pub next: Option<P>,
}

/// A page of a filtered list ends after as many places in the order that it looked at in vain. A task that it shows counts as
/// two of them.
pub const PLACES_MAX: usize = 112;

/// A place in the list of all tasks, the newest first: right behind the task that was made then and has this
/// reference.
pub type NewestCursor = (Timestamp, ShortReference);

/// Why a store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another writer changed the task first")]
    Conflict,
    /// Of a holder's write alone. What it knows of the call counts no more, and is never to be written again.
    #[error("another gateway has taken the task over")]
    Fenced,
    #[error("a task with this key, or made under this idempotency key, exists")]
    Exists,
    /// A bound of the gateway's own: the same write is refused for as long as the store holds as much.
    #[error("the store holds as many {what} as it may")]
    Full { what: &'static str },
    /// An outage that passes: nothing was written, and the same write is made once there is room.
    #[error("the disk below the store is full")]
    NoRoom,
    /// Of a new task. Said by the engine, which knows the bound.
    #[error("the owner has as much in the store as it may")]
    OwnerFull,
    /// Nothing was read or written, and what was to be written will not be.
    #[error("the store failed")]
    Io(#[from] std::io::Error),
    /// Of a write: it was made, or it was not; [`TaskStore::settle_doubt`] says which. The row of such an insert may be
    /// there: this life shows it to nobody, and the store removes it as soon as it can, unless another life has written it
    /// meanwhile; a process that ends before may leave it to the next one.
    #[error("the store failed, and whether it did what was asked is not known")]
    Unsure(#[source] std::io::Error),
}

impl StoreError {
    /// The same of a write of which nobody needs to know whether it was made: it failed.
    #[must_use]
    pub fn without_doubt(self) -> Self {
        if let Self::Unsure(cause) = self { Self::Io(cause) } else { self }
    }
}

/// The bounds on what is kept, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Unsettled tasks, reserved places included. Kept by the engine's admission.
    pub tasks_max: usize,
    /// All rows, settled ones too, for a new one to be taken. Kept by the store.
    pub stored_bytes_max: usize,
}

/// What a store holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub tasks: usize,
    pub unsettled: usize,
    pub bytes: usize,
}

impl SummaryPage {
    /// Of the tasks that are asked for by their ids.
    pub(super) fn of_named(
        mut tasks: Vec<Summary>,
        filter: &ListFilter,
        after: Option<ListPlace>,
        limit: usize,
    ) -> Self {
        let is_behind = |task: &Summary| after.is_none_or(|after| filter.compare(&after, &filter.place(task)).is_lt());
        tasks.retain(|task| filter.fits(task) && is_behind(task));
        tasks.sort_unstable_by(|one, other| filter.compare(&filter.place(one), &filter.place(other)));
        let has_more = tasks.len() > limit;
        tasks.truncate(limit);
        let next = tasks.last().filter(|_| has_more).map(|last| filter.place(last));
        Self { tasks, next }
    }
}

/// Judges the places of a list in turn, until a page is full or enough were looked at.
#[derive(Debug)]
pub(super) struct PageProgress {
    limit: usize,
    held: usize,
    bytes: usize,
    /// As [`PLACES_MAX`] counts.
    places: usize,
    last: Option<ListPlace>,
}

impl PageProgress {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, held: 0, bytes: 0, places: 0, last: None }
    }

    /// Where the next page begins, if this one ends before a place, of which an index says whether it may be shown.
    pub(super) fn ends_before(&mut self, place: ListPlace, may_fit: bool) -> Option<ListPlace> {
        let is_full = self.held >= self.limit || self.bytes > PAGE_BYTES_MAX;
        let ended = self.last.filter(|_| (is_full && may_fit) || self.places >= PLACES_MAX);
        self.places += 1;
        self.last = Some(place);
        ended
    }

    /// Takes the task of the last place.
    pub(super) const fn holds(&mut self, bytes: usize) {
        self.held += 1;
        self.places += 1;
        self.bytes += bytes;
    }
}

/// A keeper of tasks, as one life of a gateway has it open. Every implementation passes the suite in `contract`. What it is
/// given holds no more than it counts ([`Task::is_exact`]), so that bounds in bytes are bounds of memory.
///
/// A row that somebody has to do something about names its holder: whoever inserted it, or claimed it since.
///
/// What clients see of a settled task never changes, so any cache may hold it. A full store refuses; it never evicts.
/// All methods are cancel safe in this sense: a dropped call has either happened whole or not at all.
#[async_trait]
pub trait TaskStore: Send + Sync + std::fmt::Debug {
    /// Writes what waits and lets go of what the store has open; every later use fails. By default there is nothing.
    async fn close(&self) {}

    /// The life that has the store open.
    fn holder(&self) -> Incarnation;

    /// Whether the clock may be wrong by more than tasks live: nothing is freed then, and no task ends because its time is over. By
    /// default it never is, as where nothing outlives the process.
    fn is_time_distrusted(&self) -> bool {
        false
    }

    /// Adds a task, held by this life; returns once it would survive what this store survives.
    ///
    /// # Errors
    /// `Exists` if the key is taken, or its owner has a task under the same idempotency key that
    /// [`TaskStore::load`] would still find at this task's creation. `Full`, `NoRoom`. `Io`, after which the row is in no later life of
    /// the process either; `Unsure`, after which it may be.
    async fn insert(&self, task: &Task) -> Result<Revision, StoreError>;

    /// Returns `None` for unknown tasks, foreign ones, and settled ones past their `ttl` alike. An
    /// unsettled task past its `ttl` is still returned: `apply` settles it first.
    ///
    /// # Errors
    /// `Io`.
    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError>;

    /// The task that an owner made under an idempotency key, as long as [`TaskStore::load`] would find it. Whoever made it does not
    /// take it for one that nobody was told of from then on.
    ///
    /// # Errors
    /// `Io`.
    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError>;

    /// Writes a task over the revision that was read. The bound in bytes decides on new tasks alone: a row may grow beyond it, as by an
    /// outcome, in memory by a quarter of the bound at most. A row that does not grow is never refused by a bound, so a task can always
    /// be settled with a fault.
    ///
    /// # Errors
    /// `Fenced` if a holder's write finds that another life holds the row, whatever its revision.
    /// `Conflict` if another writer got there first, the row is gone, or a holder's write finds that nobody has to do anything
    /// about it any more: reload, decide again.
    /// `Full` if the row would be larger than any may be, or in memory grows beyond what rows may grow to. `NoRoom`, `Io`, `Unsure`.
    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError>;

    /// A row as it certainly stands, after a write of which nobody knows whether it was made: no write before this can appear
    /// or disappear any more. `None` as of [`TaskStore::load`].
    ///
    /// # Errors
    /// `Io`, if that cannot be known yet.
    async fn settle_doubt(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError>;

    /// Drops a row: a settled one, or one that nobody was told of (T-27). One that another life holds at the same time and that
    /// has not settled stays. Unknown keys are no error.
    ///
    /// # Errors
    /// `Io`, `Unsure`.
    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError>;

    /// Frees settled tasks past their `ttl`, at most `limit` and hardly more than [`SWEEP_BYTES_MAX`]; returns how many: none only
    /// if none may be freed at the moment, as where others are about to, or the clock may be wrong. Reclaims space only.
    ///
    /// # Errors
    /// `Io`.
    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Frees one task if [`TaskStore::sweep`] may: for whoever needs its key. What was made under the key since stays. Unknown keys
    /// are no error, nor is one that stays.
    ///
    /// # Errors
    /// `Io`, `Unsure`.
    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError>;

    /// Unsettled tasks whose `ttl` has passed, at most `limit`.
    ///
    /// # Errors
    /// `Io`.
    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// One owner's tasks in order of creation, at most `limit` and hardly more than [`PAGE_BYTES_MAX`], beginning after
    /// the one that `after` names by its time of creation and id. Reads no argument, question, answer or outcome. Takes
    /// time in proportion to the page, apart from rows that are gone and not yet swept. A row that cannot be read is
    /// left out, or shown as failed; it counts as one of the page.
    ///
    /// # Errors
    /// `Io`.
    async fn page(
        &self,
        owner: &Principal,
        after: Option<(Timestamp, TaskId)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError>;

    /// One owner's tasks that fit `filter`, in its order, beginning behind `after`; at most `limit` and hardly more than
    /// [`PAGE_BYTES_MAX`]. Looks at [`PLACES_MAX`] places at most, in an order that is kept for each phase and each
    /// [`crate::task::LagClass`], so that a page may hold few tasks, or none, and not be the last; takes time in proportion to
    /// these and reads none of the rows that do not fit; a store that others share puts unsettled tasks in order of their last
    /// change when it is asked, and takes time in proportion to those of the owner. Where the time that is not ordered by leaves no more than `limit`,
    /// there is one page alone. Where the filter names ids, it takes time in proportion to their number. A row that cannot
    /// be read is left out, or judged as one that failed.
    ///
    /// # Errors
    /// `Io`.
    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        after: Option<ListPlace>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError>;

    /// Takes over rows that lives hold which have ended, at most `limit`, and returns their keys: each is claimed by one life
    /// alone, and once in it; one that has been declared ended claims nothing. A subtask comes to whoever claims its parent,
    /// beyond the limit where that is reached. Where other lives may be there that have other upstreams, rows of calls at none of
    /// `upstreams` are left to them for a while (N6). An empty answer says that there are none at the moment. No row is read for
    /// it.
    ///
    /// # Errors
    /// `Io`. Rows that were taken over all the same come with a later answer, and rows with them that this life has held before.
    async fn claim(&self, limit: usize, upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError>;

    /// The unsettled rows that this life holds, but for those that it has not taken over yet.
    ///
    /// # Errors
    /// `Io`.
    async fn held(&self) -> Result<Vec<TaskKey>, StoreError>;

    /// What others write, from now on. Hints may be lost where the stream says so by [`StoreHint::Missed`], or without a word: what
    /// somebody waits for is to be looked at now and then. Where nobody else writes the stream never yields anything.
    fn changes(&self) -> BoxStream<'static, StoreHint>;

    /// All tasks, settled ones too, whoever owns them: for operators. The newest first, bounded as
    /// [`TaskStore::page`] is, and with the same promises.
    ///
    /// # Errors
    /// `Io`.
    async fn survey(
        &self,
        after: Option<NewestCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage<NewestCursor>, StoreError>;

    /// The tasks that operators call by this name: one, hardly ever more, and at most `limit`. They may be gone by now.
    ///
    /// # Errors
    /// `Io`.
    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// Who holds each of these rows, in their order, where others hold rows at the same time: for operators. By default it is said
    /// of none.
    ///
    /// # Errors
    /// `Io`.
    async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, StoreError> {
        Ok(vec![None; keys.len()])
    }

    fn reach(&self) -> Reach;

    /// How many bytes it may hold for new tasks to be taken.
    fn bytes_max(&self) -> usize;

    /// What the store holds, in all.
    fn usage(&self) -> Usage;

    /// What one owner holds.
    fn usage_of(&self, owner: &Principal) -> Usage;
}
