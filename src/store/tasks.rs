//! Defines what every store promises.

use std::sync::Arc;

use async_trait::async_trait;

use crate::task::{
    Digest, ListFilter, ListPlace, Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp,
};

/// Counts the writes of one row; a writer names the one it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A row as it was read.
#[derive(Clone, Debug)]
pub struct StoredTask {
    pub task: Arc<Task>,
    pub revision: Revision,
}

/// A page of a list ends beyond as many bytes of summaries, however many tasks were asked for.
pub const PAGE_BYTES_MAX: usize = 256 << 10;

/// Some of the tasks of a list.
#[derive(Clone, Debug, Default)]
pub struct SummaryPage {
    pub tasks: Vec<Summary>,
    /// Whether others may follow the last of these.
    pub has_more: bool,
}

/// A page of a filtered list ends after as many places in the order that it looked at in vain. A task that it shows counts as
/// two of them.
pub const PLACES_MAX: usize = 112;

/// Some of the tasks that fit a filter, in its order.
#[derive(Clone, Debug, Default)]
pub struct SelectedPage {
    pub tasks: Vec<Summary>,
    /// Behind which place others may follow.
    pub next: Option<ListPlace>,
}

/// A place in the list of all tasks, the newest first: right behind the task that was made then and has this
/// reference.
pub type NewestCursor = (Timestamp, ShortReference);

/// Why a store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another writer changed the task first")]
    Conflict,
    #[error("a task with this key, or made under this idempotency key, exists")]
    Exists,
    #[error("the store holds as many {what} as it may")]
    Full { what: &'static str },
    /// Said by the engine, which knows the bound.
    #[error("the owner has as much in the store as it may")]
    OwnerFull,
    /// Of an insert: the row is not there, and will not be. Of any other write: it was made, or it was not.
    #[error("the store failed")]
    Io(#[from] std::io::Error),
    /// Of an insert alone: the row may be there. Nobody is shown it, and the store removes it as soon as it can; a process
    /// that ends before may leave it to the next one.
    #[error("the store failed, and whether the task was stored is not known")]
    Unsure(#[source] std::io::Error),
}

/// The bounds on what is kept, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Unsettled tasks, reserved places included. Kept by the engine's admission.
    pub tasks_max: usize,
    /// All rows, settled ones too. Kept by the store.
    pub stored_bytes_max: usize,
}

/// What a store holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub tasks: usize,
    pub unsettled: usize,
    pub bytes: usize,
}

impl SelectedPage {
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

/// A keeper of tasks. Every implementation passes the suite in `contract`. What it is given holds no more than it counts
/// ([`Task::is_exact`]), so that bounds in bytes are bounds of memory.
///
/// What clients see of a settled task never changes, so any cache may hold it. A full store refuses; it never evicts.
/// All methods are cancel safe in this sense: a dropped call has either happened whole or not at all.
#[async_trait]
pub trait TaskStore: Send + Sync + std::fmt::Debug {
    /// Adds a task; returns once it would survive what this store survives.
    ///
    /// # Errors
    /// `Exists` if the key is taken, or its owner has a task under the same idempotency key that
    /// [`TaskStore::load`] would still find at this task's creation. `Full`. `Io`, after which the row is in no later life of
    /// the process either; `Unsure`, after which it may be.
    async fn insert(&self, task: &Task) -> Result<Revision, StoreError>;

    /// Returns `None` for unknown tasks, foreign ones, and settled ones past their `ttl` alike. An
    /// unsettled task past its `ttl` is still returned: `apply` settles it first.
    ///
    /// # Errors
    /// `Io`.
    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError>;

    /// The task that an owner made under an idempotency key, as long as [`TaskStore::load`] would find it.
    ///
    /// # Errors
    /// `Io`.
    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError>;

    /// Writes a task over the revision that was read. A row that does not grow is never refused for
    /// lack of room, so a task can always be settled with a fault.
    ///
    /// # Errors
    /// `Conflict` if another writer got there first, or the row is gone: reload, decide again.
    /// `Full` if the row grows and there is no room for it. `Io`.
    async fn replace(&self, expected: Revision, task: &Task) -> Result<Revision, StoreError>;

    /// Drops a row that nobody was told of (T-27). Unknown keys are no error.
    ///
    /// # Errors
    /// `Io`.
    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError>;

    /// Frees settled tasks past their `ttl`, at most `limit`; returns how many. Reclaims space only.
    ///
    /// # Errors
    /// `Io`.
    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Unsettled tasks whose `ttl` has passed, at most `limit`.
    ///
    /// # Errors
    /// `Io`.
    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// One owner's tasks in order of creation, at most `limit` and hardly more than [`PAGE_BYTES_MAX`], beginning after
    /// the one that `after` names by its time of creation and id. Reads no argument, question, answer or outcome. Takes
    /// time in proportion to the page, apart from rows that are gone and not yet swept. A row that cannot be read is
    /// left out, or shown as failed.
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
    /// these and reads none of the rows that do not fit. Where the time that is not ordered by leaves no more than `limit`,
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
    ) -> Result<SelectedPage, StoreError>;

    /// The keys of all tasks that are not done with, in pages and in their order, whoever owns them: of unsettled ones,
    /// and of settled ones whose upstream is still to be told ([`crate::task::Recovery::is_untold`]). For recovery. A
    /// page that is not full is the last. No row is read for it.
    ///
    /// # Errors
    /// `Io`.
    async fn unsettled(&self, after: Option<&TaskKey>, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

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
    ) -> Result<SummaryPage, StoreError>;

    /// The tasks that operators call by this name: one, hardly ever more, and at most `limit`. They may be gone by now.
    ///
    /// # Errors
    /// `Io`.
    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError>;

    /// Whether what it holds is there after this process: then calls may be left to a later one.
    fn outlives_process(&self) -> bool {
        false
    }

    /// What the store holds, in all.
    fn usage(&self) -> Usage;

    /// What one owner holds.
    fn usage_of(&self, owner: &Principal) -> Usage;
}
