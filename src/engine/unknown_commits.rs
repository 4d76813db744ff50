//! Resolves writes with an unknown commit: one that was reported as failed may still be in the log. If it was made, its
//! effects are performed, however late. A write is resolved when the row shows it or a later one; when another write to
//! the same base revision succeeds; or when the store confirms the row's state. Any change of the task may discover this;
//! otherwise a background task polls the store, with pauses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Engine;
use super::retry_delays::RetryDelays;
use crate::cause::CauseChain;
use crate::store::{Revision, StoreError, StoredTask};
use crate::task::{Effect, Task, TaskKey, Timestamp};

/// Unresolved writes per task. Above this, the task's runner and its waiters read the row themselves.
const WRITES_PER_TASK_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct UnknownCommit {
    pub(super) before: Arc<Task>,
    /// The revision that the write would replace.
    pub(super) base: Revision,
    pub(super) written: Task,
    pub(super) effects: Vec<Effect>,
    /// For the writer, which may not be the first to see its write in the row.
    pub(super) is_committed: Arc<AtomicBool>,
}

/// Unresolved writes by task; at most one entry per unsettled task.
#[derive(Debug, Default)]
pub(super) struct UnknownCommits(Mutex<HashMap<TaskKey, TaskUnknownCommits>>);

#[derive(Debug, Default)]
struct TaskUnknownCommits {
    writes: Vec<UnknownCommit>,
    is_polled: bool,
}

impl UnknownCommits {
    pub(super) fn add(&self, key: &TaskKey, write: UnknownCommit) {
        let mut all = self.0.lock();
        let pending = all.entry(key.clone()).or_default();
        if pending.writes.len() < WRITES_PER_TASK_MAX {
            pending.writes.push(write);
        }
    }

    fn resolve(&self, key: &TaskKey, row: &StoredTask) -> CommitResolution {
        let mut all = self.0.lock();
        let Some(pending) = all.get_mut(key) else { return CommitResolution::Unresolved };
        let committed = pending.writes.iter().position(|write| write.base < row.revision && write.written == *row.task);
        let committed = committed.map(|at| Box::new(pending.writes.swap_remove(at)));
        let before = pending.writes.len();
        pending.writes.retain(|write| write.base >= row.revision);
        let is_superseded = pending.writes.len() < before;
        if pending.writes.is_empty() && !pending.is_polled {
            all.remove(key);
        }
        match committed {
            Some(write) => CommitResolution::Committed(write),
            None if is_superseded => CommitResolution::Superseded,
            None => CommitResolution::Unresolved,
        }
    }

    /// Removes the writes to `revision`: another write to it succeeded, or the row is confirmed to have it.
    fn remove_at(&self, key: &TaskKey, revision: Revision) {
        let mut all = self.0.lock();
        if let Some(pending) = all.get_mut(key) {
            pending.writes.retain(|write| write.base > revision);
            if pending.writes.is_empty() && !pending.is_polled {
                all.remove(key);
            }
        }
    }

    fn needs_poll(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        all.get_mut(key)
            .is_some_and(|pending| !pending.writes.is_empty() && !std::mem::replace(&mut pending.is_polled, true))
    }

    fn is_over(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        let is_over = all.get(key).is_none_or(|pending| pending.writes.is_empty());
        if is_over {
            all.remove(key);
        }
        is_over
    }

    fn remove(&self, key: &TaskKey) {
        self.0.lock().remove(key);
    }
}

enum CommitResolution {
    Unresolved,
    Committed(Box<UnknownCommit>),
    /// Another write followed, after it or in its place.
    Superseded,
}

impl Engine {
    /// Performs the effects of writes that a row shows as committed.
    fn apply_resolution(&self, key: &TaskKey, row: &StoredTask) {
        match self.unknown_commits.resolve(key, row) {
            CommitResolution::Unresolved => (),
            CommitResolution::Committed(write) => {
                let UnknownCommit { before, written, effects, is_committed, .. } = *write;
                is_committed.store(true, Ordering::Relaxed);
                // Not the row's task: a fault may have the number of a process, which is not stored.
                self.follow(key, &before, &written, effects);
            }
            CommitResolution::Superseded => self.follow_state(key, &row.task),
        }
    }

    /// Reads a row; performs the effects of an unresolved write that it shows. With `is_confirmed`, the store confirms the
    /// row's state, and all writes to it are resolved.
    pub(super) async fn load_resolved(
        &self,
        key: &TaskKey,
        now: Timestamp,
        is_confirmed: bool,
    ) -> Result<Option<StoredTask>, StoreError> {
        let row =
            if is_confirmed { self.store.resolve_write(key, now).await? } else { self.store.load(key, now).await? };
        if let Some(row) = &row {
            self.apply_resolution(key, row);
            if is_confirmed {
                self.resolve_at(key, row.revision);
            }
        }
        Ok(row)
    }

    /// Resolves writes to this revision: another one succeeded, or none was committed.
    pub(super) fn resolve_at(&self, key: &TaskKey, base: Revision) {
        self.unknown_commits.remove_at(key, base);
    }

    /// Performs the effects that follow from the state alone.
    pub(super) fn follow_state(&self, key: &TaskKey, task: &Task) {
        self.watchers.wake(key);
        if task.recovery.must_notify_upstream() {
            self.live.abandon(key);
        } else if task.is_settled() {
            self.notified.wake(key);
            // Ends a runner that would still wait for its permit. The process of the runner may have ended.
            self.live.fence(key);
        }
        if !task.recovery.undelivered.is_empty() {
            self.live.look_again(key);
        }
    }

    /// Polls the store until all writes of a task are resolved, or until shutdown: the next process reads the stored state.
    pub(super) fn resolve_in_background(self: &Arc<Self>, key: &TaskKey) {
        if !self.unknown_commits.needs_poll(key) {
            return;
        }
        let (engine, key) = (Arc::clone(self), key.clone());
        let drain_begun = self.drain_begun.clone();
        self.changes.tracker.spawn(async move {
            if drain_begun.run_until_cancelled(engine.poll_store(&key)).await.is_none() {
                engine.unknown_commits.remove(&key);
            }
        });
    }

    async fn poll_store(&self, key: &TaskKey) {
        let mut pauses = RetryDelays::of_writers();
        loop {
            pauses.wait().await;
            match self.load_resolved(key, self.clock.now(), true).await {
                Ok(Some(_)) if self.unknown_commits.is_over(key) => return,
                Ok(Some(_)) => pauses = RetryDelays::of_writers(),
                Ok(None) => {
                    self.watchers.wake(key);
                    self.unknown_commits.remove(key);
                    return;
                }
                Err(error) => tracing::debug!(error = %CauseChain(&error), "a commit is still unknown"),
            }
        }
    }
}
