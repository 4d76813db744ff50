//! A store, in memory by default, that can delay its writes, counts them, and has the faults that a test sets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use parking_lot::Mutex;
use taskgate::replica::Incarnation;
use taskgate::store::{
    MemoryStore, NewestCursor, PageRange, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage, TaskStore,
    Usage, WriteRole,
};
use taskgate::task::{Digest, ListFilter, Principal, ShortReference, Task, TaskKey, Timestamp};
use tokio::sync::{Semaphore, oneshot};

use super::store_faults::{Method, StoreFault, StoreFaults};

/// See the module. Everything else is the store's own doing.
#[derive(Debug)]
pub(crate) struct GatedStore {
    /// As the current process has opened it.
    inner: Mutex<Arc<dyn TaskStore>>,
    /// The rows, which several gateways can open.
    memory: Option<MemoryStore>,
    /// Whether several have it open.
    is_shared: AtomicBool,
    /// Whether it gets no hints of others' writes.
    pub(crate) is_deaf: AtomicBool,
    pub(crate) faults: StoreFaults,
    /// One permit lets one insert through.
    pub(crate) inserts: Semaphore,
    /// Inserts that have stored their row but not yet returned wait here.
    pub(crate) returns: Semaphore,
    /// The next change waits for this.
    held_replace: Mutex<Option<oneshot::Receiver<()>>>,
    /// So many of the next changes fail.
    pub(crate) failures: AtomicUsize,
    /// Whether the clock may be wrong, as a store that outlives its process finds at a start.
    pub(crate) is_time_distrusted: AtomicBool,
    /// So many rows are freed at a time, however many may be.
    pub(crate) frees_max: AtomicUsize,
    /// Whether each operation waits for a turn before it begins, and again before it returns.
    pub(crate) pauses: AtomicBool,
    /// After the next change, with any result, so many reads fail.
    pub(crate) blind_after: AtomicUsize,
    /// Rows whose insert is unknown.
    doubtful: Mutex<BTreeSet<TaskKey>>,
    /// No change of this task is stored, and it is not removed.
    pub(crate) stuck: Mutex<Option<TaskKey>>,
    inserted: AtomicUsize,
    replaced: AtomicUsize,
    loaded: AtomicUsize,
}

/// The revision of a row that was not written since its insert.
const FIRST: Revision = Revision(1);
/// More permits than any test uses.
const OPEN: usize = 1 << 20;

impl GatedStore {
    pub(crate) fn new(stored_bytes_max: usize) -> Arc<Self> {
        let memory = MemoryStore::new(stored_bytes_max);
        Self::made(Arc::new(memory.join()), Some(memory))
    }

    /// The same over any store.
    pub(crate) fn over(inner: Arc<dyn TaskStore>) -> Arc<Self> {
        Self::made(inner, None)
    }

    fn made(inner: Arc<dyn TaskStore>, memory: Option<MemoryStore>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(inner),
            memory,
            is_shared: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            faults: StoreFaults::default(),
            inserts: Semaphore::new(OPEN),
            returns: Semaphore::new(OPEN),
            held_replace: Mutex::default(),
            failures: AtomicUsize::new(0),
            is_time_distrusted: AtomicBool::new(false),
            frees_max: AtomicUsize::new(usize::MAX),
            pauses: AtomicBool::new(false),
            blind_after: AtomicUsize::new(0),
            doubtful: Mutex::default(),
            stuck: Mutex::default(),
            inserted: AtomicUsize::new(0),
            replaced: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
        })
    }

    /// The process that used it has ended, and the next one begins.
    pub(crate) fn next_life(&self) {
        let Some(memory) = &self.memory else { return };
        let ended = std::mem::replace(&mut *self.inner.lock(), Arc::new(memory.join()));
        memory.end_incarnation(ended.holder());
    }

    /// The same rows for another gateway beside this one.
    pub(crate) fn beside(&self) -> Arc<Self> {
        let memory = self.memory.as_ref().expect("a store in memory").join();
        let other = Self::made(Arc::new(memory.join()), Some(memory));
        for store in [self, &*other] {
            store.is_shared.store(true, Ordering::Relaxed);
        }
        other
    }

    /// Declares the gateway that has this store open ended. It goes on, and does not know.
    pub(crate) fn is_declared_ended(&self) {
        self.memory.as_ref().expect("a store in memory").end_incarnation(self.holder());
    }

    /// The tasks that have not settled, in the order of their keys.
    pub(crate) async fn unsettled(&self) -> Vec<TaskKey> {
        let page = self.inner().survey(PageRange::new(None, 100, Timestamp::from_millis(0))).await.unwrap();
        let mut keys: Vec<_> = page.tasks.into_iter().filter(|task| !task.is_settled()).map(|task| task.key).collect();
        keys.sort();
        keys
    }

    /// Another gateway writes each unsettled task, as for one that it shows and did not insert. Returns their keys.
    pub(crate) async fn are_seen_by_others(&self) -> Vec<TaskKey> {
        let keys = self.unsettled().await;
        for key in &keys {
            let row = self.inner().load(key, Timestamp::from_millis(0)).await.unwrap().unwrap();
            self.inner().replace(row.revision, WriteRole::Command, &row.task).await.unwrap();
        }
        keys
    }

    fn inner(&self) -> Arc<dyn TaskStore> {
        Arc::clone(&self.inner.lock())
    }

    /// From now on each insert waits for a permit.
    pub(crate) fn hold_inserts(&self) {
        self.inserts.forget_permits(OPEN);
    }

    /// From now on each insert stores its row and then waits for a permit.
    pub(crate) fn hold_returns(&self) {
        self.returns.forget_permits(OPEN);
    }

    /// The next change waits until this is used; others overtake it.
    pub(crate) fn hold_next_replace(&self) -> oneshot::Sender<()> {
        let (release, held) = oneshot::channel();
        *self.held_replace.lock() = Some(held);
        release
    }

    /// Does something with the store, with a turn for others before and after it if that is wanted.
    async fn with<T>(
        &self,
        method: Method,
        doing: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.pause().await;
        let done = self.faults.with(method, doing).await;
        self.pause().await;
        done
    }

    async fn pause(&self) {
        if self.pauses.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    /// Inserts that were tried.
    pub(crate) fn inserted(&self) -> usize {
        self.inserted.load(Ordering::Relaxed)
    }

    /// Changes that were tried.
    pub(crate) fn replaced(&self) -> usize {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Whole rows that were read.
    pub(crate) fn loaded(&self) -> usize {
        self.loaded.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl TaskStore for GatedStore {
    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        self.inserted.fetch_add(1, Ordering::Relaxed);
        self.inserts.acquire().await.unwrap().forget();
        let inserted = self.with(Method::Insert, self.inner().insert(task)).await;
        if matches!(inserted, Err(StoreError::UnknownCommit(_))) {
            self.doubtful.lock().insert(task.key.clone());
        }
        let revision = inserted?;
        self.returns.acquire().await.unwrap().forget();
        Ok(revision)
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        self.with(Method::Load, self.inner().load(key, now)).await
    }

    async fn revisions(&self, keys: &[TaskKey]) -> Result<Vec<Option<Revision>>, StoreError> {
        self.with(Method::Page, self.inner().revisions(keys)).await
    }

    async fn settled_bytes(&self, key: &TaskKey) -> Result<Option<usize>, StoreError> {
        self.inner().settled_bytes(key).await
    }

    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        self.with(Method::Load, self.inner().find_idempotent(owner, key, now)).await
    }

    async fn survey(&self, range: PageRange<NewestCursor>) -> Result<SummaryPage<NewestCursor>, StoreError> {
        self.with(Method::Page, self.inner().survey(range)).await
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        self.with(Method::Page, self.inner().find_reference(reference, limit)).await
    }

    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError> {
        self.replaced.fetch_add(1, Ordering::Relaxed);
        let held = self.held_replace.lock().take();
        if let Some(held) = held {
            held.await.unwrap();
        }
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(std::io::Error::other("the disk is tired").into());
        }
        if self.stuck.lock().as_ref() == Some(&task.key) {
            return Err(std::io::Error::other("this row is stuck").into());
        }
        let done = self.with(Method::Replace, self.inner().replace(expected, role, task)).await;
        let blind = self.blind_after.swap(0, Ordering::Relaxed);
        if blind > 0 {
            self.faults.strike(Method::Load, StoreFault::Fails, blind);
        }
        done
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        if self.stuck.lock().as_ref() == Some(key) {
            return Err(std::io::Error::other("this row is stuck").into());
        }
        self.with(Method::Remove, self.inner().remove(key)).await
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let limit = limit.min(self.frees_max.load(Ordering::Relaxed));
        self.with(Method::Sweep, self.inner().sweep(now, limit)).await
    }

    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError> {
        let sweeping = async {
            match self.frees_max.load(Ordering::Relaxed) {
                0 => Ok(()),
                _ => self.inner().sweep_one(key, now).await,
            }
        };
        self.with(Method::SweepOne, sweeping).await
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        if self.is_time_distrusted() {
            return Ok(Vec::new());
        }
        self.with(Method::Overdue, self.inner().overdue(now, limit)).await
    }

    async fn page(&self, owner: &Principal, range: PageRange) -> Result<SummaryPage, StoreError> {
        self.with(Method::Page, self.inner().page(owner, range)).await
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        range: PageRange,
    ) -> Result<SummaryPage, StoreError> {
        self.with(Method::Page, self.inner().select(owner, filter, range)).await
    }

    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        // A store that cannot be read cannot do this either.
        let settled = async {
            let settle = async {
                let found = self.inner().resolve_write(key, now).await?;
                let is_new = found.as_ref().is_some_and(|row| row.revision == FIRST);
                if self.doubtful.lock().remove(key) && is_new {
                    self.inner().remove(key).await?;
                    return Ok(None);
                }
                Ok(found)
            };
            self.faults.with(Method::Load, settle).await
        };
        self.with(Method::SettleDoubt, settled).await
    }

    async fn claim(&self, limit: usize, upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError> {
        self.with(Method::Claim, self.inner().claim(limit, upstreams)).await
    }

    async fn held(&self) -> Result<Vec<TaskKey>, StoreError> {
        self.with(Method::Page, self.inner().held()).await
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        if self.is_deaf.load(Ordering::Relaxed) { stream::pending().boxed() } else { self.inner().changes() }
    }

    fn reach(&self) -> Reach {
        match &self.memory {
            // Its processes have followed one another.
            Some(_) if !self.is_shared.load(Ordering::Relaxed) => Reach::Process,
            Some(_) | None => self.inner().reach(),
        }
    }

    fn holder(&self) -> Incarnation {
        self.inner().holder()
    }

    fn is_time_distrusted(&self) -> bool {
        self.is_time_distrusted.load(Ordering::Relaxed)
    }

    fn bytes_max(&self) -> usize {
        self.inner().bytes_max()
    }

    fn usage(&self) -> Usage {
        self.inner().usage()
    }

    fn usage_of(&self, owner: &Principal) -> Usage {
        self.inner().usage_of(owner)
    }
}
