//! A process that can end without a word: from then on nothing that it still does reaches the store or the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use taskgate::replica::Incarnation;
use taskgate::store::{
    NewestCursor, PageRange, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage, TaskStore, Usage,
    WriteRole,
};
use taskgate::task::{Digest, ListFilter, Principal, ShortReference, Task, TaskKey, Timestamp};
use taskgate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, Handshake, ResumeToken,
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

    /// The process ends right after so many more commits, before the writer of the last one learns of it.
    pub(crate) fn ends_after(&self, writes: usize) {
        self.writes.store(writes, Ordering::SeqCst);
        if writes == 0 {
            self.end();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Runs a future as long as the process lives.
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

/// Forwards the store's methods: `writing` counts a commit.
macro_rules! store_while_living {
    ($($way:ident $name:ident($($argument:ident: $kind:ty),*) -> $found:ty;)*) => {
        #[async_trait]
        impl TaskStore for Mortal<GatedStore> {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$found, StoreError> {
                self.life.$way(self.inner.$name($($argument),*)).await
            })*

            fn changes(&self) -> BoxStream<'static, StoreHint> {
                self.inner.changes()
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
    };
}

store_while_living! {
    writing insert(task: &Task) -> Revision;
    living load(key: &TaskKey, now: Timestamp) -> Option<StoredTask>;
    living settled_bytes(key: &TaskKey) -> Option<usize>;
    writing replace(expected: Revision, role: WriteRole, task: &Task) -> Revision;
    writing remove(key: &TaskKey) -> ();
    living sweep(now: Timestamp, limit: usize) -> usize;
    writing sweep_one(key: &TaskKey, now: Timestamp) -> ();
    living overdue(now: Timestamp, limit: usize) -> Vec<TaskKey>;
    living page(owner: &Principal, range: PageRange) -> SummaryPage;
    living select(owner: &Principal, filter: &ListFilter, range: PageRange) -> SummaryPage;
    living resolve_write(key: &TaskKey, now: Timestamp) -> Option<StoredTask>;
    living claim(limit: usize, upstreams: &[Arc<str>]) -> Vec<TaskKey>;
    living revisions(keys: &[TaskKey]) -> Vec<Option<Revision>>;
    living held() -> Vec<TaskKey>;
    living find_idempotent(owner: &Principal, key: &Digest, now: Timestamp) -> Option<StoredTask>;
    living survey(range: PageRange<NewestCursor>) -> SummaryPage<NewestCursor>;
    living find_reference(reference: ShortReference, limit: usize) -> Vec<TaskKey>;
}

#[async_trait]
impl Upstream for Mortal<Scripted> {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        self.life.living(self.inner.handshake(context)).await
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

    fn subtask_token(&self, subtask: &Arc<str>) -> Option<ResumeToken> {
        self.inner.subtask_token(subtask)
    }
}
