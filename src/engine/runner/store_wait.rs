//! Retries a runner's writes while the store is unavailable or a commit's result is unknown. A step's data stays with its
//! owner; this module has the time of the next try. It is a timer: commands precede all other events, so a call that
//! retried by commands would outlive its deadline. Each try begins with the row's confirmed state, so that every step
//! knows whether its last write was committed. A runner with an ended call retries in a loop, which only shutdown ends.

use std::sync::Arc;

use super::recorder::UnstoredStep;
use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::apply::AppliedEvent;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::store::{StoreError, WriteRole};
use crate::task::reference::LoggedTask;
use crate::task::{Event, Outcome, Phase, Task, TaskKey};

impl Runner {
    pub(super) fn wait_for_store(&mut self, step: UnstoredStep, error: &TaskError) -> RunnerFlow {
        if self.recorder.postpone(step) {
            tracing::warn!(?step, error = %CauseChain(error), "a call waits for the store");
        } else {
            tracing::debug!(?step, error = %CauseChain(error), "a call still waits for the store");
        }
        RunnerFlow::Continue(())
    }

    pub(super) async fn try_again(&mut self) -> RunnerFlow {
        let certain = match self.certain_task().await {
            Ok(certain) => certain,
            Err(StoreError::Fenced) => {
                self.stop_as_fenced();
                return RunnerFlow::Break(());
            }
            Err(error) => {
                tracing::debug!(error = %CauseChain(&error), "a call still waits for the store");
                self.recorder.schedule_store_retry();
                return RunnerFlow::Continue(());
            }
        };
        let steps = self.recorder.begin_try();
        let certain = certain.as_deref();
        if let Some(task) = certain.filter(|task| task.is_settled() && !steps.contains(&UnstoredStep::Mark)) {
            self.recorder.end_tries();
            // The command of the settlement may be lost: without it, a runner that waits for nothing else would never end.
            self.engine.follow_state(&task.key, task);
            return RunnerFlow::Continue(());
        }
        for step in steps {
            match step {
                UnstoredStep::Mark => self.dispatched(certain).await,
                UnstoredStep::Answers => self.deliver_again(certain).await,
                UnstoredStep::Questions => self.add_unstored_questions(certain).await,
                UnstoredStep::Withdrawals => self.withdraw_again(certain).await,
                UnstoredStep::Round => self.ask_client().await,
                UnstoredStep::Repeat => self.repeat_call().await,
                UnstoredStep::Subtasks => {
                    self.mirror_subtasks().await;
                    RunnerFlow::Continue(())
                }
                UnstoredStep::Progress => self.store_progress().await,
            }?;
        }
        self.recorder.schedule_store_retry();
        RunnerFlow::Continue(())
    }

    /// The task in its row's confirmed state; `None` if it has no row. Fails with `Fenced` if another process holds it.
    async fn certain_task(&mut self) -> Result<Option<Arc<Task>>, StoreError> {
        let Some(key) = self.recorder.key() else { return Ok(None) };
        match self.engine.load_resolved(&key, self.engine.clock.now(), true).await? {
            Some(row) if row.holder != Some(self.engine.store.holder()) => Err(StoreError::Fenced),
            row => Ok(row.map(|row| row.task)),
        }
    }
}

impl Engine {
    /// Stores a task's outcome, retrying while the store fails, until the calls end. A dropped outcome is lost.
    pub(super) async fn store_outcome(
        self: &Arc<Self>,
        key: &TaskKey,
        event: Event,
    ) -> Result<AppliedEvent, TaskError> {
        let mut pauses = RetryDelays::of_writers();
        let mut has_failed = false;
        loop {
            match self.apply(key, WriteRole::Holder, event.clone()).await {
                Err(error) if error.is_passing() => {
                    if !has_failed {
                        tracing::warn!(task = %LoggedTask(key), error = %CauseChain(&error), "an outcome is not stored yet");
                    }
                    has_failed = true;
                    if !self.pauses_for_store(&mut pauses).await {
                        return Err(error);
                    }
                }
                // A write that was reported as failed was committed after all.
                Ok(applied) if has_failed && has_outcome_of(&applied.task, &event) => {
                    return Ok(AppliedEvent { changed: true, ..applied });
                }
                done => return done,
            }
        }
    }

    /// Waits before the next try of a runner with an ended call; false once calls must end.
    pub(super) async fn pauses_for_store(&self, pauses: &mut RetryDelays) -> bool {
        self.calls_end.token().run_until_cancelled(pauses.wait()).await.is_some()
    }
}

fn has_outcome_of(task: &Task, event: &Event) -> bool {
    let Phase::Settled(outcome) = &task.phase else { return false };
    match (outcome, event) {
        (
            Outcome::Returned { result, is_error },
            Event::Returned { result: expected_result, is_error: expected_is_error, .. },
        ) => result == expected_result && is_error == expected_is_error,
        (Outcome::Faulted(failure), Event::Faulted { failure: expected, .. }) => failure == expected,
        (Outcome::Cancelled, Event::CancelRequested) => true,
        (Outcome::Returned { .. } | Outcome::Faulted(_) | Outcome::Cancelled, _) => false,
    }
}
