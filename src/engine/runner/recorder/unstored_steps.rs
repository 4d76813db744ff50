//! Holds the steps of a runner that wait for the store.

use tokio::time::Instant;

use crate::engine::retry_delays::RetryDelays;

/// A runner's step that waits for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::runner) enum UnstoredStep {
    /// Mark the call as sent, and send it.
    Mark,
    /// Deliver accepted answers.
    Answers,
    /// Make questions visible to the client.
    Questions,
    /// Remove questions from the task.
    Withdrawals,
    /// Send the open questions to the waiting client.
    Round,
    /// Repeat the call, since its user has completed the URL elicitation.
    Repeat,
    /// Create tasks for the subtasks that the upstream named.
    Subtasks,
    /// Store the upstream's progress text.
    Progress,
}

/// The steps that wait for the store, and the time of the next try.
pub(super) struct UnstoredSteps {
    steps: Vec<UnstoredStep>,
    /// The steps that waited when this try began.
    tried: Vec<UnstoredStep>,
    pauses: RetryDelays,
    due: Instant,
}

impl UnstoredSteps {
    pub(super) fn new() -> Self {
        let mut pauses = RetryDelays::of_writers();
        let due = Instant::now() + pauses.take();
        Self { steps: Vec::new(), tried: Vec::new(), pauses, due }
    }

    /// Adds a step; whether it is new.
    pub(super) fn add(&mut self, step: UnstoredStep) -> bool {
        if self.steps.contains(&step) {
            return false;
        }
        self.steps.push(step);
        !self.tried.contains(&step)
    }

    pub(super) fn has(&self, step: UnstoredStep) -> bool {
        self.steps.contains(&step)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// The steps to try now; those that fail again are added again.
    pub(super) fn begin_try(&mut self) -> Vec<UnstoredStep> {
        let steps = std::mem::take(&mut self.steps);
        self.tried.clone_from(&steps);
        steps
    }

    /// Schedules the next try.
    pub(super) fn rest(&mut self) {
        self.due = Instant::now() + self.pauses.take();
    }
}
