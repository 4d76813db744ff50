//! A process that can end without a word: from then on nothing that it still does reaches the store or the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use taskgate::replica::Incarnation;
use taskgate::store::{
    NewestCursor, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage, TaskStore, Usage, WriteRole,
};
use taskgate::task::{Digest, ListFilter, ListPosition, Principal, ShortReference, Task, TaskId, TaskKey, Timestamp};
use taskgate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, ResumeToken, ServerFacts,
    ServerNotification, Upstream, UpstreamRequest,
};
use taskgate::wire::Payload;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::script::Scripted;
use super::stores::GatedStore;

/// One process. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    over: CancellationToken,
    /// Writes that are still made.
    writes: Arc<AtomicUsize>,
}

impl Default for Process {
    fn default() -> Self {
        Self { over: CancellationToken::new(), writes: Arc::new(AtomicUsize::new(usize::MAX)) }
    }
}

impl Process {
    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// The process ends right after so many more commits, before whoever made the last one learns of it.
    pub(crate) fn ends_after(&self, writes: usize) {
        self.writes.store(writes, Ordering::SeqCst);
        if writes == 0 {
            self.end();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Does something as long as the process lives.
    async fn living<T>(&self, doing: impl Future<Output = T>) -> T {
        match self.over.run_until_cancelled(doing).await {
            Some(done) if !self.is_over() => done,
            Some(_) | None => std::future::pending().await,
        }
    }

    async fn writing<T>(&self, write: impl Future<Output = T>) -> T {
        let counted = async {
            let written = write.await;
            if self.writes.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.end();
            }
            written
        };
        self.living(counted).await
    }
}

/// Something that a process uses and that outlives it.
#[derive(Debug)]
pub(crate) struct Mortal<T> {
    inner: Arc<T>,
    life: Process,
    outlives: bool,
}

impl<T> Mortal<T> {
    pub(crate) fn new(inner: &Arc<T>, life: &Process, outlives: bool) -> Self {
        Self { inner: Arc::clone(inner), life: life.clone(), outlives }
    }
}

#[async_trait]
impl TaskStore for Mortal<GatedStore> {
    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        self.life.writing(self.inner.insert(task)).await
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        self.life.living(self.inner.load(key, now)).await
    }

    async fn settled_bytes(&self, key: &TaskKey) -> Result<Option<usize>, StoreError> {
        self.life.living(self.inner.settled_bytes(key)).await
    }

    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError> {
        self.life.writing(self.inner.replace(expected, role, task)).await
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        self.life.writing(self.inner.remove(key)).await
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.life.living(self.inner.sweep(now, limit)).await
    }

    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError> {
        self.life.writing(self.inner.sweep_one(key, now)).await
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        self.life.living(self.inner.overdue(now, limit)).await
    }

    async fn page(
        &self,
        owner: &Principal,
        after: Option<(Timestamp, TaskId)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError> {
        self.life.living(self.inner.page(owner, after, limit, now)).await
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        after: Option<ListPosition>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError> {
        self.life.living(self.inner.select(owner, filter, after, limit, now)).await
    }

    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        self.life.living(self.inner.resolve_write(key, now)).await
    }

    async fn claim(&self, limit: usize, upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError> {
        self.life.living(self.inner.claim(limit, upstreams)).await
    }

    async fn held(&self) -> Result<Vec<TaskKey>, StoreError> {
        self.life.living(self.inner.held()).await
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        self.inner.changes()
    }

    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        self.life.living(self.inner.find_idempotent(owner, key, now)).await
    }

    async fn survey(
        &self,
        after: Option<NewestCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage<NewestCursor>, StoreError> {
        self.life.living(self.inner.survey(after, limit, now)).await
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        self.life.living(self.inner.find_reference(reference, limit)).await
    }

    fn reach(&self) -> Reach {
        match self.inner.reach() {
            Reach::Process if self.outlives => Reach::Machine,
            reach @ (Reach::Process | Reach::Machine | Reach::Shared) => reach,
        }
    }

    fn holder(&self) -> Incarnation {
        self.inner.holder()
    }

    fn is_time_distrusted(&self) -> bool {
        self.inner.is_time_distrusted()
    }

    fn bytes_max(&self) -> usize {
        self.inner.bytes_max()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn usage_of(&self, owner: &Principal) -> Usage {
        self.inner.usage_of(owner)
    }
}

#[async_trait]
impl Upstream for Mortal<Scripted> {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
        self.life.living(self.inner.facts(context)).await
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let inner = self.life.living(self.inner.begin(request, context)).await?;
        Ok(Box::new(MortalExchange { inner, life: self.life.clone() }))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let inner = self.life.living(self.inner.resume(token, context)).await?;
        Ok(Box::new(MortalExchange { inner, life: self.life.clone() }))
    }

    async fn notifications(
        &self,
        context: &CallContext,
    ) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        self.inner.notifications(context).await
    }
}

struct MortalExchange {
    inner: Box<dyn Exchange>,
    life: Process,
}

#[async_trait]
impl Exchange for MortalExchange {
    async fn next(&mut self) -> ExchangeEvent {
        self.life.living(self.inner.next()).await
    }

    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.life.living(self.inner.answer(ask, answer)).await
    }

    async fn cancel(&mut self, reason: &str) {
        self.life.living(self.inner.cancel(reason)).await;
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        self.inner.resume_token()
    }
}
