//! Resolves writes with an unknown commit.
//!
//! A commit that was reported as failed may still be in the log. If the write was committed, its effects are performed,
//! however late that becomes known. It is resolved when the row shows it or a later write; when another write to the
//! same base revision succeeds; or when the store confirms the row's state. Any change of the task may discover this;
//! otherwise a background task asks the store, with pauses.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Engine;
use super::retry_delays::RetryDelays;
use crate::cause::CauseChain;
use crate::store::{Revision, StoreError, StoredTask};
use crate::task::{Effect, Task, TaskKey, Timestamp};

/// Unresolved writes per task. Above this, the task's runner and its waiters read the row themselves.
const OF_ONE_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct UnknownCommit {
    pub(super) before: Arc<Task>,
    /// The revision that the write would replace.
    pub(super) upon: Revision,
    pub(super) written: Task,
    pub(super) effects: Vec<Effect>,
}

/// Unresolved writes by task; at most one entry per unsettled task.
#[derive(Debug, Default)]
pub(super) struct UnknownCommits(Mutex<HashMap<TaskKey, TaskUnknownCommits>>);

#[derive(Debug, Default)]
struct TaskUnknownCommits {
    writes: Vec<UnknownCommit>,
    /// Whether a background task asks the store.
    is_asked: bool,
}

impl UnknownCommits {
    fn add(&self, key: &TaskKey, write: UnknownCommit) {
        let mut all = self.0.lock();
        let of = all.entry(key.clone()).or_default();
        if of.writes.len() < OF_ONE_MAX {
            of.writes.push(write);
        }
    }

    /// Removes the writes that this row resolves.
    fn decide(&self, key: &TaskKey, row: &StoredTask) -> CommitDecision {
        let mut all = self.0.lock();
        let Some(of) = all.get_mut(key) else { return CommitDecision::Nothing };
        let made = of.writes.iter().position(|write| write.upon < row.revision && write.written == *row.task);
        let made = made.map(|at| Box::new(of.writes.swap_remove(at)));
        let before = of.writes.len();
        of.writes.retain(|write| write.upon >= row.revision);
        let is_hidden = of.writes.len() < before;
        if of.writes.is_empty() && !of.is_asked {
            all.remove(key);
        }
        match made {
            Some(write) => CommitDecision::Made(write),
            None if is_hidden => CommitDecision::Hidden,
            None => CommitDecision::Nothing,
        }
    }

    /// Removes the writes to `revision`: another write to it succeeded, or the row is confirmed to have it.
    fn none_upon(&self, key: &TaskKey, revision: Revision) {
        let mut all = self.0.lock();
        if let Some(of) = all.get_mut(key) {
            of.writes.retain(|write| write.upon > revision);
            if of.writes.is_empty() && !of.is_asked {
                all.remove(key);
            }
        }
    }

    fn wants_asking(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        all.get_mut(key).is_some_and(|of| !of.writes.is_empty() && !std::mem::replace(&mut of.is_asked, true))
    }

    fn is_over(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        let is_over = all.get(key).is_none_or(|of| of.writes.is_empty());
        if is_over {
            all.remove(key);
        }
        is_over
    }

    fn forget(&self, key: &TaskKey) {
        self.0.lock().remove(key);
    }
}

enum CommitDecision {
    Nothing,
    Made(Box<UnknownCommit>),
    /// Another write followed, after it or in its place.
    Hidden,
}

impl Engine {
    pub(super) fn add_unknown_commit(&self, key: &TaskKey, write: UnknownCommit) {
        self.unknown_commits.add(key, write);
    }

    /// Performs the effects of writes that a row shows as committed; whether its present state is such a write.
    fn decide(&self, key: &TaskKey, row: &StoredTask) -> bool {
        match self.unknown_commits.decide(key, row) {
            CommitDecision::Nothing => false,
            CommitDecision::Made(write) => {
                let UnknownCommit { before, written, effects, .. } = *write;
                // Not the row's task: a fault may have the number of a process, which is not stored.
                self.follow(key, &before, &written, effects);
                true
            }
            CommitDecision::Hidden => {
                self.follow_state(key, &row.task);
                false
            }
        }
    }

    /// Reads a row, and whether its present state is a write that was unresolved; performs that write's effects. With
    /// `is_confirmed`, the store confirms the row's state, and all writes to it are resolved.
    pub(super) async fn read_decided(
        &self,
        key: &TaskKey,
        now: Timestamp,
        is_confirmed: bool,
    ) -> Result<Option<(StoredTask, bool)>, StoreError> {
        let row = match is_confirmed {
            true => self.store.resolve_write(key, now).await?,
            false => self.store.load(key, now).await?,
        };
        Ok(row.map(|row| {
            let was_unresolved = self.decide(key, &row);
            if is_confirmed {
                self.decided_by(key, row.revision);
            }
            (row, was_unresolved)
        }))
    }

    /// Resolves writes to this revision: another one succeeded, or none was committed.
    pub(super) fn decided_by(&self, key: &TaskKey, upon: Revision) {
        self.unknown_commits.none_upon(key, upon);
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

    /// Asks the store until all writes of a task are resolved. Ends at shutdown: the next process starts from the
    /// stored state.
    pub(super) fn resolve_in_background(self: &Arc<Self>, key: &TaskKey) {
        if !self.unknown_commits.wants_asking(key) {
            return;
        }
        let (engine, key) = (Arc::clone(self), key.clone());
        let leaving = self.leaving.clone();
        self.changes.tracker.spawn(async move {
            if leaving.run_until_cancelled(engine.ask(&key)).await.is_none() {
                engine.unknown_commits.forget(&key);
            }
        });
    }

    async fn ask(&self, key: &TaskKey) {
        let mut pauses = RetryDelays::of_writers();
        loop {
            pauses.wait().await;
            match self.read_decided(key, self.clock.now(), true).await {
                Ok(Some(_)) if self.unknown_commits.is_over(key) => return,
                Ok(Some(_)) => pauses = RetryDelays::of_writers(),
                Ok(None) => {
                    self.watchers.wake(key);
                    self.unknown_commits.forget(key);
                    return;
                }
                Err(error) => tracing::debug!(error = %CauseChain(&error), "a commit is still unknown"),
            }
        }
    }
}
