//! Performs the changes that clients and operators request. If a client disconnects, its request's future is dropped at
//! any await: the store may commit a write without its effects. So each change runs in a spawned task
//! ([`Engine::finish`]), and the request calls `apply` in no other way.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::apply::AppliedEvent;
use super::retry_delays::RetryDelays;
use super::{CancelResult, DeleteResult, Engine, TaskCursor, TaskError, TaskPage};
use crate::audit::AuditAct;
use crate::cause::CauseChain;
use crate::failpoint;
use crate::replica::Incarnation;
use crate::store::{NewestCursor, PageRange, StoreError, WriteRole};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Answer, CallOrigin, Caller, Event, InputKey, ListFilter, ListPosition, ShortReference, Summary, Task, TaskId,
    TaskKey, TaskVisibility, Timestamp,
};

/// Changes in progress at a time; a further one waits, and has changed nothing if its client disconnects meanwhile.
const CHANGES_MAX: usize = 1_024;

tokio::task_local! {
    static IN_CHANGE: ();
}

/// How long a change waits for room in the store before it is refused.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);
const ROOM_LOOKS: RetryDelays = RetryDelays::new(Duration::from_millis(100), Duration::from_secs(1));

#[derive(Debug)]
pub(super) struct RunningChanges {
    permits: Arc<Semaphore>,
    pub(super) tracker: TaskTracker,
}

impl Default for RunningChanges {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(CHANGES_MAX)), tracker: TaskTracker::new() }
    }
}

pub(super) enum HeldRow {
    Read(Arc<Task>),
    /// Settled. The size counts its other contents too.
    Large {
        key: TaskKey,
        bytes: usize,
    },
}

impl Engine {
    /// An owner's task. `Unknown` alike if missing, foreign, expired, hidden or of a tool out of reach. Cancel safe.
    pub async fn get(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Arc<Task>, TaskError> {
        self.check_access(caller, self.load_visible(&caller.task(id)).await?)
    }

    /// As [`Engine::get`], for the gateway's own reads: no client receives the state, so a denial is no event of the audit.
    pub async fn get_unaudited(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Arc<Task>, TaskError> {
        let task = self.load_visible(&caller.task(id)).await?;
        if self.may_read(caller, &task.origin) { Ok(task) } else { Err(TaskError::Unknown) }
    }

    /// Like [`Engine::get`], without the check of the owner's access: for operators, cancels and notifiers. A subtask
    /// exists only with a parent that lists it, and as long as the parent (SUB-05, SUB-17).
    pub async fn load_visible(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let task = require_visible(self.load_any(key).await?)?;
        let Some(parent) = task.parent_key() else { return Ok(task) };
        let parent = Box::pin(self.load_visible(&parent)).await?;
        require_listed(&parent, task)
    }

    /// The task, if the caller may read it. A denial is an event of the audit.
    fn check_access(&self, caller: &Caller, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        if self.may_read(caller, &task.origin) {
            return Ok(task);
        }
        self.audit_task(AuditAct::RuleDenied, &task);
        Err(TaskError::Unknown)
    }

    /// Decides whether a caller may read a task of its own, by the row's upstream and tool. The only such check.
    pub fn may_read(&self, caller: &Caller, origin: &CallOrigin) -> bool {
        caller.reaches(&origin.upstream) && self.access.has_tool(caller, &origin.upstream, &origin.tool)
    }

    /// As [`Self::load_visible`], within a change, which must not begin another one.
    async fn load_visible_for_change(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let task = require_visible(self.load_for_change(key).await?)?;
        let Some(parent) = task.parent_key() else { return Ok(task) };
        let parent = Box::pin(self.load_visible_for_change(&parent)).await?;
        require_listed(&parent, task)
    }

    /// Returns the state of a call that was held between two rounds of questions, with or without a handle. Only for
    /// callers that have verified the client's reference to it: no face shows a hidden task. Cancel safe.
    pub async fn load_any(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let now = self.clock.now();
        let row = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
        if self.is_overdue(&row.task, now) {
            let (engine, key) = (Arc::clone(self), key.clone());
            // Boxed: few tasks are overdue, and each read would hold the memory of a write.
            return Box::pin(self.finish(async move { engine.settle_expired(&key).await })).await;
        }
        Ok(row.task)
    }

    /// As [`Engine::load_any`], but leaves a settled row above `bytes_max` in a store that would copy it. Cancel safe.
    pub(super) async fn load_within(self: &Arc<Self>, key: &TaskKey, bytes_max: usize) -> Result<HeldRow, TaskError> {
        match self.store.settled_bytes(key).await? {
            Some(bytes) if bytes > bytes_max => Ok(HeldRow::Large { key: key.clone(), bytes }),
            Some(_) | None => Ok(HeldRow::Read(self.load_any(key).await?)),
        }
    }

    /// One owner's tasks by creation time, at most `limit`, after the cursor; hidden ones are left out. Cancel safe.
    pub async fn list(
        self: &Arc<Self>,
        caller: &Caller,
        after: Option<TaskCursor>,
        limit: usize,
    ) -> Result<TaskPage, TaskError> {
        let now = self.clock.now();
        let page = self.store.page(&caller.principal, PageRange { after, limit, now }).await?;
        Ok(TaskPage { tasks: self.load_listed(caller, page.tasks, now).await?, next: page.next })
    }

    /// As [`Engine::list`], for tasks that match `filter`, in its order; a page may be short or empty. Cancel safe.
    pub async fn list_filtered(
        self: &Arc<Self>,
        caller: &Caller,
        filter: &ListFilter,
        after: Option<ListPosition>,
        limit: usize,
    ) -> Result<TaskPage, TaskError> {
        let now = self.clock.now();
        let page = self.store.select(&caller.principal, filter, PageRange { after, limit, now }).await?;
        let mut tasks = self.load_listed(caller, page.tasks, now).await?;
        // A task that settled just now may no longer match, or sort differently.
        tasks.retain(|task| filter.fits(task));
        tasks.sort_by(|one, other| filter.compare(&filter.position(one), &filter.position(other)));
        Ok(TaskPage { tasks, next: page.next })
    }

    /// The visible tasks of a page, each as a read by id returns it: overdue tasks settle, and removed tasks are left out.
    async fn load_listed(
        self: &Arc<Self>,
        caller: &Caller,
        found: Vec<Summary>,
        now: Timestamp,
    ) -> Result<Vec<Summary>, TaskError> {
        let mut tasks = Vec::with_capacity(found.len());
        for task in found.into_iter().filter(|task| task.visibility == TaskVisibility::Handle) {
            if !self.may_read(caller, &task.origin) {
                continue;
            }
            if task.tree.parent.is_none() && (task.is_settled() || task.expires_at() > now) {
                tasks.push(task);
                continue;
            }
            match self.get(caller, task.key.id).await {
                Ok(task) => tasks.push(Summary::of(&task)),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }

    /// Adds answers to a task's open questions, and retries the delivery of earlier ones; keys that are not open are
    /// ignored (EXT-39). The answers are stored when this returns (EXT-74). A dropped call did all of it, or nothing.
    pub async fn answer(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        answers: BTreeMap<InputKey, Answer>,
    ) -> Result<(), TaskError> {
        let (engine, caller, key) = (Arc::clone(self), caller.clone(), caller.task(id));
        self.finish(async move {
            engine.check_access(&caller, engine.load_visible_for_change(&key).await?)?;
            failpoint::hit("answer-heard");
            let applied = engine.apply_with_room(&key, Event::Answered { answers }).await?;
            if applied.changed {
                engine.audit_task(AuditAct::TaskAnswered, &applied.task);
            }
            if !applied.changed && !applied.task.recovery.undelivered.is_empty() {
                engine.live.look_again(&key);
            }
            Ok(())
        })
        .await
    }

    /// Settles a task as cancelled, even for an owner without access to its tool. The upstream is notified in the
    /// background, also if the notification of an earlier cancel failed. A dropped call did all of it, or nothing.
    pub async fn cancel(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move {
            let cancelled = engine.cancel_visible(&key).await?;
            if !cancelled.was_settled {
                engine.audit_task(AuditAct::TaskCancelled, &cancelled.task);
            }
            Ok(cancelled)
        })
        .await
    }

    /// As [`Engine::cancel`], for a client: `Unknown` for a task beyond its audience, and for a settled one that it may not read.
    pub async fn cancel_for(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<CancelResult, TaskError> {
        let key = caller.task(id);
        if caller.audience.is_some() && !caller.reaches(&self.load_visible(&key).await?.origin.upstream) {
            return Err(TaskError::Unknown);
        }
        let mut cancelled = self.cancel(&key).await?;
        if cancelled.was_settled {
            cancelled.task = self.check_access(caller, cancelled.task)?;
        } else if !self.may_read(caller, &cancelled.task.origin) {
            Arc::make_mut(&mut cancelled.task).status_message = None;
        }
        Ok(cancelled)
    }

    /// Removes a settled task for its owner, durably once this returns. If the future is dropped, all of it was done or nothing.
    pub async fn delete(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<DeleteResult, TaskError> {
        let (engine, caller, key) = (Arc::clone(self), caller.clone(), caller.task(id));
        self.finish(async move {
            let task = engine.check_access(&caller, engine.load_visible_for_change(&key).await?)?;
            if !task.is_settled() {
                return Ok(DeleteResult::Unsettled);
            }
            // Settled is final, so no pending write can recreate the row.
            engine.remove_row(&key).await?;
            engine.watchers.wake(&key);
            engine.audit_task(AuditAct::TaskDeleted, &task);
            tracing::debug!(task = %LoggedTask(&key), principal = %LoggedPrincipal(&key.owner), "a client deleted a task");
            engine.remove_children(&task).await;
            Ok(DeleteResult::Deleted)
        })
        .await
    }

    /// Not tried again: the client may have used the id for another task meanwhile.
    async fn remove_row(&self, key: &TaskKey) -> Result<(), StoreError> {
        let removed = self.store.remove(key).await;
        let is_unknown = matches!(removed, Err(StoreError::UnknownCommit(_)));
        if is_unknown && matches!(self.store.resolve_write(key, self.clock.now()).await, Ok(None)) {
            return Ok(());
        }
        removed
    }

    /// Removes the children of a removed task: invisible without it (SUB-05), so one that cannot be removed may expire.
    async fn remove_children(&self, task: &Task) {
        for child in &*task.tree.children {
            let key = TaskKey { owner: task.key.owner.clone(), id: *child };
            if let Err(error) = self.store.remove(&key).await {
                tracing::warn!(task = %LoggedTask(&key), error = %CauseChain(&error), "a part of a deleted task stays until it expires");
            }
        }
    }

    pub async fn cancel_for_operator(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move {
            let cancelled = engine.cancel_visible(&key).await?;
            if !cancelled.was_settled {
                tracing::info!(task = %LoggedTask(&key), principal = %LoggedPrincipal(&key.owner), "an operator cancelled a task");
            }
            Ok(cancelled)
        })
        .await
    }

    /// Cancels a task in the background, because its client left before it received the handle (T-27).
    pub fn cancel_without_handle(self: &Arc<Self>, key: &TaskKey) {
        let (engine, key) = (Arc::clone(self), key.clone());
        let cancel = async move {
            if let Err(error) = engine.apply_cancel(&key).await {
                tracing::warn!(task = %LoggedTask(&key), error = %CauseChain(&error), "a task that no client knows was not cancelled");
            }
        };
        self.changes.tracker.spawn(cancel.in_current_span());
    }

    /// Cancels a held call; the upstream is notified in the background. A dropped call did all of it, or nothing.
    pub async fn cancel_held(self: &Arc<Self>, key: &TaskKey) -> Result<(), TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move { engine.apply_cancel(&key).await.map(|_| ()) }).await
    }

    /// Completes a change even if its caller is dropped, but changes nothing if that happens while it waits for its
    /// permit. Must not be called from within a change: changes that wait for a second permit would wait for each other.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, TaskError>> + Send + 'static,
    ) -> Result<T, TaskError> {
        debug_assert!(IN_CHANGE.try_with(|()| ()).is_err(), "a change began another one");
        // The semaphore is never closed.
        let permit = Arc::clone(&self.changes.permits).acquire_owned().await.ok();
        let change = async move {
            let _permit = permit;
            IN_CHANGE.scope((), change).await
        };
        match self.changes.tracker.spawn(change.in_current_span()).await {
            Ok(done) => done,
            Err(bug) => {
                tracing::error!(%bug, "a change of a task was not finished");
                Err(StoreError::Io(std::io::Error::other(bug)).into())
            }
        }
    }

    /// A task without a check of access; an overdue task is settled first.
    async fn load_for_change(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let now = self.clock.now();
        let row = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
        if self.is_overdue(&row.task, now) { Box::pin(self.settle_expired(key)).await } else { Ok(row.task) }
    }

    async fn settle_expired(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        self.apply(key, WriteRole::Command, Event::TtlElapsed).await.map(|applied| applied.task)
    }

    /// Applies a change for a client or an operator. While the store has no room, it is retried for a limited time; it
    /// is refused while half of all permits for changes wait like this. A waiting cancel precedes the task's outcome.
    async fn apply_with_room(self: &Arc<Self>, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let (until, mut pauses) = (Instant::now() + ROOM_WAIT_MAX, ROOM_LOOKS);
        let mut waiting = None;
        loop {
            let applied = self.apply(key, WriteRole::Command, event.clone()).await;
            let may_wait = Instant::now() < until && self.changes.permits.available_permits() > CHANGES_MAX / 2;
            if !matches!(applied, Err(TaskError::Store(StoreError::NoRoom))) || !may_wait {
                return applied;
            }
            if waiting.is_none() && matches!(event, Event::CancelRequested) {
                waiting = self.live.waits_to_cancel(key);
            }
            if self.drain_begun.run_until_cancelled(pauses.wait()).await.is_none() {
                return applied;
            }
        }
    }

    async fn cancel_visible(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        self.load_visible_for_change(key).await?;
        failpoint::hit("cancel-heard");
        self.apply_cancel(key).await
    }

    async fn apply_cancel(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let applied = self.apply_with_room(key, Event::CancelRequested).await?;
        if !applied.changed && applied.task.recovery.must_notify_upstream() {
            self.live.abandon(key);
        }
        Ok(CancelResult { task: applied.task, was_settled: !applied.changed })
    }
}

/// The task as its parent lets it be seen.
fn require_listed(parent: &Task, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
    if !parent.tree.children.contains(&task.key.id) {
        return Err(TaskError::Unknown);
    }
    let left = parent.expires_at().since(task.created_at);
    if left >= task.ttl { Ok(task) } else { Ok(Arc::new(Task { ttl: left, ..Task::clone(&task) })) }
}

fn require_visible(task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
    if task.visibility == TaskVisibility::Handle { Ok(task) } else { Err(TaskError::Unknown) }
}

/// Rows read in one step; other tasks run in between.
const SURVEY_STEP: usize = 128;

/// Rows that one survey reads; its caller resumes from the returned cursor.
pub const SURVEY_MAX: usize = 10_000;

/// Limit of tasks read for one reference: more than ever share one.
const SAME_MAX: usize = 8;

impl Engine {
    /// Calls `look` for every task with a handle, the newest first, starting after `after`, until `look` breaks or
    /// [`SURVEY_MAX`] rows were read: then it returns the cursor of the next survey. Cancel safe.
    pub async fn survey(
        &self,
        mut after: Option<NewestCursor>,
        mut look: impl FnMut(&Summary) -> ControlFlow<()> + Send,
    ) -> Result<Option<NewestCursor>, TaskError> {
        let mut looked_at = 0;
        loop {
            let step = SURVEY_STEP.min(SURVEY_MAX - looked_at);
            let page = self.store.survey(PageRange::new(after, step, self.clock.now())).await?;
            for task in page.tasks.iter().filter(|task| task.visibility == TaskVisibility::Handle) {
                if look(task).is_break() {
                    return Ok(None);
                }
            }
            looked_at += step;
            if page.next.is_none() || looked_at >= SURVEY_MAX {
                return Ok(page.next);
            }
            after = page.next;
            tokio::task::yield_now().await;
        }
    }

    /// The incarnation that is responsible for each of these tasks in a shared store: for operators. Cancel safe.
    pub async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, TaskError> {
        Ok(self.store.holders(keys).await?)
    }

    /// The tasks with this reference that have a handle, or are parts of such tasks: one at most, usually. Cancel safe.
    pub async fn named_by(self: &Arc<Self>, reference: ShortReference) -> Result<Vec<Arc<Task>>, TaskError> {
        let mut tasks = Vec::new();
        for key in self.store.find_reference(reference, SAME_MAX).await? {
            let found = match self.load_any(&key).await {
                // A part is listed in its parent's tree, though its owner does not see it.
                Ok(task) if task.visibility == TaskVisibility::Part => Ok(task),
                Ok(_) => self.load_visible(&key).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(task) => tasks.push(task),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }
}
