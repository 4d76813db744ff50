//! Does what clients and operators ask of tasks. A change is finished whoever leaves.
//!
//! A request's future is dropped when its client goes, wherever it is just then. The store has the write by that time,
//! commits it, and nobody is left to do what follows from it. So each change runs in a task of its own ([`finish`]),
//! and the request only waits for it. Nothing here that a request awaits calls `apply` in any other way.
//!
//! [`finish`]: Engine::finish

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::apply::AppliedEvent;
use super::retry_delays::RetryDelays;
use super::{CancelResult, DeleteResult, Engine, TaskCursor, TaskError, TaskPage};
use crate::cause::CauseChain;
use crate::failpoint;
use crate::store::{StoreError, WriteRole};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Answer, Event, InputKey, ListFilter, ListPlace, Principal, Summary, Task, TaskKey, TaskVisibility, Timestamp,
};

/// Changes that are under way at a time; whoever comes then waits, and has changed nothing if it leaves meanwhile.
const CHANGES_MAX: usize = 1_024;

/// How long a change waits for a store without room, before the one who asks for it is refused.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);
/// How often it is tried meanwhile, at first and at last.
const ROOM_LOOKS: RetryDelays = RetryDelays::new(Duration::from_millis(100), Duration::from_secs(1));

/// Changes under way.
#[derive(Debug)]
pub(super) struct RunningChanges {
    places: Arc<Semaphore>,
    pub(super) tracker: TaskTracker,
}

impl Default for RunningChanges {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(CHANGES_MAX)), tracker: TaskTracker::new() }
    }
}

impl Engine {
    /// How a task stands, for its owner. Cancel safe.
    ///
    /// # Errors
    /// `Unknown` for ids that are unknown, foreign, expired or hidden alike, and for tasks of what their owner may not use any
    /// more; `Store`.
    pub async fn get(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        self.readable(self.shown(key).await?)
    }

    /// The same, whatever its owner may use by now: for operators, and for whoever ends it.
    ///
    /// # Errors
    /// As [`Engine::get`], but for the last of them.
    pub async fn shown(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        self.under_parent(visible(self.held(key).await?)?).await
    }

    /// The one place that decides what an owner reads of its tasks, by upstream and tool of the row.
    fn readable(&self, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        let is_readable = self.access.has_tool(&task.key.owner, &task.origin.upstream, &task.origin.tool);
        if is_readable { Ok(task) } else { Err(TaskError::Unknown) }
    }

    /// A subtask as far as it is there: not without a parent that names it, and not longer than its parent (SUB-05,
    /// SUB-17). Cancel safe.
    async fn under_parent(self: &Arc<Self>, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        let Some(parent) = task.tree.parent else { return Ok(task) };
        let key = TaskKey { owner: task.key.owner.clone(), id: parent };
        let parent = Box::pin(self.shown(&key)).await?;
        if !parent.tree.children.contains(&task.key.id) {
            return Err(TaskError::Unknown);
        }
        let left = parent.expires_at().since(task.created_at);
        if left >= task.ttl { Ok(task) } else { Ok(Arc::new(Task { ttl: left, ..Task::clone(&task) })) }
    }

    /// How a call stands that was held between two rounds of questions, whether or not it has a handle by now. Only for
    /// those who prove that the reference was given to them: no face shows a hidden task. Cancel safe.
    ///
    /// # Errors
    /// `Unknown` for ids that are unknown, foreign or expired alike; `Store`.
    pub async fn held(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let now = self.clock.now();
        let row = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
        if self.is_overdue(&row.task, now) {
            let (engine, key) = (Arc::clone(self), key.clone());
            return self.finish(async move { engine.expired(&key).await }).await;
        }
        Ok(row.task)
    }

    /// Tasks of one owner in the order of their creation, at most `limit`, beginning after the place that an
    /// earlier page ended at. Hidden ones are left out, so a page may hold fewer. No result is
    /// read for it. Cancel safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn list(
        self: &Arc<Self>,
        owner: &Principal,
        after: Option<TaskCursor>,
        limit: usize,
    ) -> Result<TaskPage, TaskError> {
        let now = self.clock.now();
        let page = self.store.page(owner, after, limit, now).await?;
        Ok(TaskPage { tasks: self.present_listed(page.tasks, now).await?, next: page.next })
    }

    /// The same of tasks that fit `filter`, in its order. A page looks at a bounded number of tasks, so it may hold few, or
    /// none, and not be the last. Cancel safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn list_filtered(
        self: &Arc<Self>,
        owner: &Principal,
        filter: &ListFilter,
        after: Option<ListPlace>,
        limit: usize,
    ) -> Result<TaskPage, TaskError> {
        let now = self.clock.now();
        let page = self.store.select(owner, filter, after, limit, now).await?;
        let mut tasks = self.present_listed(page.tasks, now).await?;
        // What settled just now may fit no more, or stand elsewhere.
        tasks.retain(|task| filter.fits(task));
        tasks.sort_by(|one, other| filter.compare(&filter.place(one), &filter.place(other)));
        Ok(TaskPage { tasks, next: page.next })
    }

    /// Those of a page that are shown, each as it is read by its id: what is overdue settles, what is gone meanwhile is
    /// left out.
    async fn present_listed(self: &Arc<Self>, found: Vec<Summary>, now: Timestamp) -> Result<Vec<Summary>, TaskError> {
        let mut tasks = Vec::with_capacity(found.len());
        for task in found.into_iter().filter(|task| task.shown == TaskVisibility::Handle) {
            if !self.access.has_tool(&task.key.owner, &task.origin.upstream, &task.origin.tool) {
                continue;
            }
            if task.tree.parent.is_none() && (task.is_settled() || task.expires_at() > now) {
                tasks.push(task);
                continue;
            }
            match self.get(&task.key).await {
                Ok(task) => tasks.push(Summary::of(&task)),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }

    /// Hands answers to a task's open questions; keys that are not open are ignored (EXT-39). The answers are part of
    /// the task when this returns (EXT-74). What was accepted before and has not left yet is looked at again. A call
    /// that is dropped has done all of it, or nothing.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn answer(self: &Arc<Self>, key: &TaskKey, answers: BTreeMap<InputKey, Answer>) -> Result<(), TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move {
            engine.readable(engine.under_parent(visible(engine.present(&key).await?)?).await?)?;
            failpoint::hit("answer-heard");
            let applied = engine.apply_with_room(&key, Event::Answered { answers }).await?;
            if !applied.changed && !applied.task.recovery.undelivered.is_empty() {
                engine.live.look_again(&key);
            }
            Ok(())
        })
        .await
    }

    /// Cancels a task. It is settled when this returns; the upstream is told in the background, and told of it if a
    /// cancel before this one did not reach it. A call that is dropped has done all of it, or nothing. Whoever may not use
    /// any more what the task was made with may still end it.
    ///
    /// # Errors
    /// As [`Engine::shown`].
    pub async fn cancel(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move { engine.cancelled(&key).await }).await
    }

    /// Removes a task that has settled, as its owner asked: nobody finds it any more when this returns. A call that is
    /// dropped has done all of it, or nothing.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn delete(self: &Arc<Self>, key: &TaskKey) -> Result<DeleteResult, TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move {
            let task = engine.readable(engine.under_parent(visible(engine.present(&key).await?)?).await?)?;
            if !task.is_settled() {
                return Ok(DeleteResult::Unsettled);
            }
            // Settled for good, so nothing is under way that could write it again.
            engine.remove_tree(&task).await?;
            engine.watchers.wake(&key);
            tracing::debug!(task = %LoggedTask(&key), principal = %LoggedPrincipal(&key.owner), "a client deleted a task");
            Ok(DeleteResult::Deleted)
        })
        .await
    }

    /// Removes a task, and what is left of its children: first the task, since a child without it is gone (SUB-05).
    pub(super) async fn remove_tree(&self, task: &Task) -> Result<(), StoreError> {
        self.store.remove(&task.key).await?;
        for child in &*task.tree.children {
            self.store.remove(&TaskKey { owner: task.key.owner.clone(), id: *child }).await?;
        }
        Ok(())
    }

    /// Cancels a task on behalf of an operator, as its owner would.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn cancel_for_operator(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move {
            let cancelled = engine.cancelled(&key).await?;
            if !cancelled.was_settled {
                tracing::info!(task = %LoggedTask(&key), principal = %LoggedPrincipal(&key.owner), "an operator cancelled a task");
            }
            Ok(cancelled)
        })
        .await
    }

    /// Cancels a task whose client left before it had its handle (T-27), in the background.
    pub fn cancel_unheard(self: &Arc<Self>, key: &TaskKey) {
        let (engine, key) = (Arc::clone(self), key.clone());
        let cancel = async move {
            if let Err(error) = engine.given_up(&key).await {
                tracing::warn!(task = %LoggedTask(&key), error = %CauseChain(&error), "a task that nobody knows was not cancelled");
            }
        };
        self.changes.tracker.spawn(cancel.in_current_span());
    }

    /// Cancels a call that is held between two rounds of questions, for a client that takes its request back. The
    /// upstream is told in the background. A call that is dropped has done all of it, or nothing.
    ///
    /// # Errors
    /// As [`Engine::held`].
    pub async fn let_go(self: &Arc<Self>, key: &TaskKey) -> Result<(), TaskError> {
        let (engine, key) = (Arc::clone(self), key.clone());
        self.finish(async move { engine.given_up(&key).await.map(|_| ()) }).await
    }

    /// Does a change to its end, whether or not somebody still waits for it. Waits for a place first; a call that is
    /// dropped before it has one changes nothing. Not to be called by what runs in it.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, TaskError>> + Send + 'static,
    ) -> Result<T, TaskError> {
        // Nobody closes it.
        let place = Arc::clone(&self.changes.places).acquire_owned().await.ok();
        let change = async move {
            let _place = place;
            change.await
        };
        match self.changes.tracker.spawn(change.in_current_span()).await {
            Ok(done) => done,
            Err(bug) => {
                tracing::error!(%bug, "a change of a task was not finished");
                Err(StoreError::Io(std::io::Error::other(bug)).into())
            }
        }
    }

    /// A task as it stands, whoever may see it; one whose time is over is settled first.
    async fn present(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        let now = self.clock.now();
        let row = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
        if self.is_overdue(&row.task, now) { self.expired(key).await } else { Ok(row.task) }
    }

    async fn expired(self: &Arc<Self>, key: &TaskKey) -> Result<Arc<Task>, TaskError> {
        self.apply(key, WriteRole::Command, Event::TtlElapsed).await.map(|applied| applied.task)
    }

    /// Makes a change for a client or an operator. One that finds the store without room is kept and tried again, for a while: it is
    /// refused where half of all changes that may be under way wait so. A cancel that waits goes before the outcome (L6).
    async fn apply_with_room(self: &Arc<Self>, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let (until, mut pauses) = (Instant::now() + ROOM_WAIT_MAX, ROOM_LOOKS);
        let mut waiting = None;
        loop {
            let applied = self.apply(key, WriteRole::Command, event.clone()).await;
            let may_wait = Instant::now() < until && self.changes.places.available_permits() > CHANGES_MAX / 2;
            if !matches!(applied, Err(TaskError::Store(StoreError::NoRoom))) || !may_wait {
                return applied;
            }
            if waiting.is_none() && matches!(event, Event::CancelRequested) {
                waiting = self.live.waits_to_cancel(key);
            }
            if self.leaving.run_until_cancelled(pauses.wait()).await.is_none() {
                return applied;
            }
        }
    }

    async fn cancelled(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        self.under_parent(visible(self.present(key).await?)?).await?;
        failpoint::hit("cancel-heard");
        self.given_up(key).await
    }

    async fn given_up(self: &Arc<Self>, key: &TaskKey) -> Result<CancelResult, TaskError> {
        let applied = self.apply_with_room(key, Event::CancelRequested).await?;
        if !applied.changed && applied.task.recovery.is_untold {
            self.live.abandon(key);
        }
        Ok(CancelResult { task: applied.task, was_settled: !applied.changed })
    }
}

fn visible(task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
    if task.shown == TaskVisibility::Handle { Ok(task) } else { Err(TaskError::Unknown) }
}
