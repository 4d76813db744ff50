//! The shell that drives transitions: the one writer of tasks, and the runners that own upstream calls.
//!
//! Knows no status word and never opens a payload. Read [`apply`] first (how a task changes), then
//! [`runner`] (how a call becomes one).

pub mod admission;
pub mod apply;
pub mod call;
pub mod recovery;
pub mod runner;
mod survey;
pub mod sweeper;
pub mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admission::{Admission, AdmissionLimits};
pub use apply::TaskError;
pub use call::{Aside, Asides, Askable, CallEnd, CallEvent, CallSpec, CallStream, Questions, Retry, Rounds};
pub use watch::Watchers;

use crate::store::TaskStore;
use crate::task::{Answer, Clock, Event, InputKey, Principal, Shown, Task, TaskId, TaskKey, Timestamp};

/// Draws the bits of a new task's id.
pub type DrawBits = dyn Fn() -> u128 + Send + Sync;

/// Everything that keeps tasks and moves them on. One per process; cheap to share.
pub struct Engine {
    store: Arc<dyn TaskStore>,
    clock: Arc<dyn Clock>,
    draw_bits: Box<DrawBits>,
    admission: Arc<Admission>,
    watchers: Watchers,
    live: runner::LiveRunners,
    runners: TaskTracker,
    /// Cancelled once the gateway ends: calls that a later life can go on with are left to it.
    leaving: CancellationToken,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Engine {
    #[must_use]
    pub fn new(
        store: Arc<dyn TaskStore>,
        clock: Arc<dyn Clock>,
        draw_bits: Box<DrawBits>,
        limits: AdmissionLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            draw_bits,
            admission: Arc::new(Admission::new(limits)),
            watchers: Watchers::default(),
            live: runner::LiveRunners::default(),
            runners: TaskTracker::new(),
            leaving: CancellationToken::new(),
        })
    }

    /// Runs one call: plainly, as a task, or whichever the grace period shows (see [`crate::task::Plan`]).
    ///
    /// The call goes on in a runner of its own. Dropping the stream before a handle came cancels it at
    /// the upstream; after that nothing does but a cancel of the task.
    pub fn call(self: &Arc<Self>, spec: CallSpec) -> CallStream {
        runner::start(Arc::clone(self), spec)
    }

    /// How a task stands.
    ///
    /// # Errors
    /// `Unknown` for ids that are unknown, foreign, expired or hidden alike; `Store`.
    pub async fn get(&self, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let task = self.held(key).await?;
        if task.shown == Shown::Hidden { Err(TaskError::Unknown) } else { Ok(task) }
    }

    /// How a call stands that was held between two rounds of questions, whether or not it has a handle by now. Only for
    /// those who prove that the reference was given to them: no face shows a hidden task.
    ///
    /// # Errors
    /// `Unknown` for ids that are unknown, foreign or expired alike; `Store`.
    pub async fn held(&self, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let now = self.clock.now();
        let row = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
        if !row.task.is_settled() && row.task.expires_at() <= now {
            return self.apply(key, Event::TtlElapsed).await.map(|applied| applied.task);
        }
        Ok(row.task)
    }

    /// Goes on with a held call: what the client says reaches the upstream, and the stream shows what comes of it as
    /// [`Engine::call`] does. Dropping the stream before it showed anything final cancels the call, unless another
    /// client waits for it too.
    ///
    /// `None` if nobody runs the call any more, or too many come back for it at once: see [`Engine::held`].
    #[must_use]
    pub fn retry(&self, key: &TaskKey, retry: Retry) -> Option<CallStream> {
        let (seat, stream) = CallStream::new();
        self.live.retry(key, seat, retry).then_some(stream)
    }

    /// Tasks of one owner in the order of their creation, at most `limit`, beginning after the place that an
    /// earlier page ended at. Hidden ones are left out, so a page may hold fewer.
    ///
    /// # Errors
    /// `Store`.
    pub async fn list(&self, owner: &Principal, after: Option<Place>, limit: usize) -> Result<Page, TaskError> {
        let now = self.clock.now();
        let mut rows = self.store.page(owner, after, limit + 1, now).await?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|row| (row.task.created_at, row.task.key.id));
        let mut tasks = Vec::with_capacity(rows.len());
        for row in rows.into_iter().filter(|row| row.task.shown == Shown::Handle) {
            let is_overdue = !row.task.is_settled() && row.task.expires_at() <= now;
            // Read as by its id: what is overdue settles, what is gone meanwhile is left out.
            match if is_overdue { self.get(&row.task.key).await } else { Ok(row.task) } {
                Ok(task) => tasks.push(task),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(Page { tasks, next })
    }

    /// Hands answers to a task's open questions; keys that are not open are ignored (EXT-39). The
    /// answers are part of the task when this returns (EXT-74).
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn answer(&self, key: &TaskKey, answers: BTreeMap<InputKey, Answer>) -> Result<(), TaskError> {
        self.get(key).await?;
        crate::failpoint::hit("answer-heard");
        self.apply(key, Event::Answered { answers }).await.map(|_| ())
    }

    /// Cancels a task. It is settled when this returns; the upstream is told in the background.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn cancel(&self, key: &TaskKey) -> Result<Cancelled, TaskError> {
        self.get(key).await?;
        crate::failpoint::hit("cancel-heard");
        let applied = self.apply(key, Event::CancelRequested).await?;
        Ok(Cancelled { task: applied.task, was_settled: !applied.changed })
    }

    /// Cancels a call that is held between two rounds of questions, for a client that takes its request back. The
    /// upstream is told in the background.
    ///
    /// # Errors
    /// As [`Engine::held`].
    pub async fn let_go(&self, key: &TaskKey) -> Result<(), TaskError> {
        self.apply(key, Event::CancelRequested).await.map(|_| ())
    }

    pub(crate) fn mint_key(&self, owner: &Principal) -> TaskKey {
        TaskKey { owner: owner.clone(), id: TaskId::from_bits((self.draw_bits)()) }
    }

    /// What the store holds, for metrics.
    #[must_use]
    pub fn usage(&self) -> crate::store::Usage {
        self.store.usage()
    }

    /// Places for unsettled tasks that are taken, those of calls that may yet become one included.
    #[must_use]
    pub fn places_taken(&self) -> usize {
        self.admission.taken()
    }

    /// Bounds on unsettled tasks from now on; those that are there stay.
    pub fn set_limits(&self, limits: AdmissionLimits) {
        self.admission.set_limits(limits);
    }

    /// Those who wait for changes of tasks.
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Stops making tasks and waits for the calls in progress, at most `patience`; then lets go of
    /// the rest. Returns how many were let go.
    ///
    /// Where the store outlives the process, calls that a later life can take up, and those that were not sent, are
    /// not waited for: where they stand is stored, and their upstreams are told nothing.
    pub async fn drain(&self, patience: Duration) -> usize {
        self.admission.close();
        self.leaving.cancel();
        self.runners.close();
        if tokio::time::timeout(patience, self.runners.wait()).await.is_err() {
            tracing::warn!(calls = self.runners.len(), "calls are still in progress and are let go");
        }
        self.runners.len()
    }
}

/// A place in one owner's tasks: between the one that was created then and has this id, and the next.
pub type Place = (Timestamp, TaskId);

/// Some of one owner's tasks.
#[derive(Clone, Debug)]
pub struct Page {
    pub tasks: Vec<Arc<Task>>,
    /// Where the next page begins, if there is one.
    pub next: Option<Place>,
}

/// What a cancel did.
#[derive(Clone, Debug)]
pub struct Cancelled {
    pub task: Arc<Task>,
    /// It came too late to change anything.
    pub was_settled: bool,
}
