//! Lets what a runner has to store wait for a store that is away, or that does not say whether it did it.
//!
//! What waits is kept where it belongs, a question with the questions; here is when it is tried again. That is a timer of the
//! runner and never an order: orders are heard before all else, and a call whose retry was one would outlive its deadline.
//! Between two tries the runner hears what it always hears: a cancel, its deadline, the end of the gateway (so that of
//! `alone_max`), and that another gateway has the task.
//!
//! Each try begins with the row as it certainly stands, so that whatever waits knows whether the write before was made.
//!
//! A runner whose call has ended waits in place: there is nothing left that it could hear, but the end of the gateway.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::apply::AppliedEvent;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::store::{StoreError, WriteRole};
use crate::task::reference::LoggedTask;
use crate::task::{Event, Outcome, Phase, Task, TaskKey};

/// What a runner does once the store is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnstoredStep {
    /// The call is marked as sent, and sent.
    Mark,
    /// Accepted answers are handed over.
    Answers,
    /// Questions are put to the client.
    Questions,
    /// Questions are taken off the task.
    Withdrawals,
    /// The client that waits is shown what is open.
    Round,
    /// The call is made again, since its user has been where the upstream sent it.
    Repeat,
    /// Subtasks that the upstream named become tasks.
    Subtasks,
    /// What the upstream said of its progress is shown.
    Progress,
}

/// What waits for the store, in the order in which it came, and until when.
pub(super) struct UnstoredSteps {
    steps: Vec<UnstoredStep>,
    /// What waited when this try began.
    tried: Vec<UnstoredStep>,
    pauses: RetryDelays,
    due: Instant,
}

impl UnstoredSteps {
    fn new() -> Self {
        let mut pauses = RetryDelays::of_writers();
        let due = Instant::now() + pauses.take();
        Self { steps: Vec::new(), tried: Vec::new(), pauses, due }
    }

    /// Adds a step; whether it did not wait before.
    fn add(&mut self, step: UnstoredStep) -> bool {
        if self.steps.contains(&step) {
            return false;
        }
        self.steps.push(step);
        !self.tried.contains(&step)
    }
}

impl Runner {
    /// Has a step tried again that the store did not do, for as long as it does not.
    pub(super) fn wait_for_store(&mut self, step: UnstoredStep, error: &TaskError) -> RunnerFlow {
        if self.postpone(step) {
            tracing::warn!(?step, error = %CauseChain(error), "a call waits for the store");
        } else {
            tracing::debug!(?step, error = %CauseChain(error), "a call waits for the store still");
        }
        RunnerFlow::Continue
    }

    /// The same without a word; whether the step did not wait before.
    pub(super) fn postpone(&mut self, step: UnstoredStep) -> bool {
        self.unstored.get_or_insert_with(|| Box::new(UnstoredSteps::new())).add(step)
    }

    pub(super) fn waits_for_store(&self, step: UnstoredStep) -> bool {
        self.unstored.as_ref().is_some_and(|wait| wait.steps.contains(&step))
    }

    /// When the store is asked again.
    pub(super) fn store_due(&self) -> Option<Instant> {
        self.unstored.as_ref().map(|wait| wait.due)
    }

    /// Tries again what waits for the store.
    pub(super) async fn try_again(&mut self) -> RunnerFlow {
        let certain = match self.certain_task().await {
            Ok(certain) => certain,
            Err(StoreError::Fenced) => {
                self.let_go_as_fenced();
                return RunnerFlow::Stop;
            }
            Err(error) => {
                tracing::debug!(error = %CauseChain(&error), "a call waits for the store still");
                self.rest_from_store();
                return RunnerFlow::Continue;
            }
        };
        let Some(wait) = &mut self.unstored else { return RunnerFlow::Continue };
        let steps = std::mem::take(&mut wait.steps);
        wait.tried.clone_from(&steps);
        let certain = certain.as_deref();
        if let Some(task) = certain.filter(|task| task.is_settled() && !steps.contains(&UnstoredStep::Mark)) {
            self.unstored = None;
            // Its order may have been given to nobody: a runner that waits for nothing else would never end.
            self.engine.follow_state(&task.key, task);
            return RunnerFlow::Continue;
        }
        for step in steps {
            let next = match step {
                UnstoredStep::Mark => self.dispatched(certain).await,
                UnstoredStep::Answers => self.deliver_again(certain).await,
                UnstoredStep::Questions => self.put_again(certain).await,
                UnstoredStep::Withdrawals => self.withdraw_again(certain).await,
                UnstoredStep::Round => self.ask_client().await,
                UnstoredStep::Repeat => self.repeat_call().await,
                UnstoredStep::Subtasks => self.mirror_again().await,
                UnstoredStep::Progress => self.store_progress().await,
            };
            if matches!(next, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        self.rest_from_store();
        RunnerFlow::Continue
    }

    /// Until the next try, if anything waits.
    fn rest_from_store(&mut self) {
        if let Some(wait) = self.unstored.as_mut().filter(|wait| !wait.steps.is_empty()) {
            wait.due = Instant::now() + wait.pauses.take();
        } else {
            self.unstored = None;
        }
    }

    /// The task as its row certainly stands; `None` if it has no row.
    ///
    /// # Errors
    /// `Fenced` if another life holds it; else as [`crate::store::TaskStore::settle_doubt`].
    async fn certain_task(&mut self) -> Result<Option<Arc<Task>>, StoreError> {
        let Some(key) = self.row_key() else { return Ok(None) };
        match self.engine.read_decided(&key, self.engine.clock.now(), true).await? {
            Some((row, _)) if row.holder != Some(self.engine.store.holder()) => Err(StoreError::Fenced),
            row => Ok(row.map(|(row, _)| row.task)),
        }
    }
}

impl Engine {
    /// Stores how a task ended, however long the store fails: an outcome that is dropped is lost (L8). Whoever ends the calls
    /// ends this, and the task is left as it is stored.
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
                // A write that was reported as failed was made after all.
                Ok(applied) if has_failed && says(&applied.task, &event) => {
                    return Ok(AppliedEvent { changed: true, ..applied });
                }
                done => return done,
            }
        }
    }

    /// Waits until the store is asked again by a runner whose call has ended; false once no call is waited for any more.
    pub(super) async fn pauses_for_store(&self, pauses: &mut RetryDelays) -> bool {
        self.calls_end.token().run_until_cancelled(pauses.wait()).await.is_some()
    }
}

/// Whether a task ended as an event says.
fn says(task: &Task, event: &Event) -> bool {
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
