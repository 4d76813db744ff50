//! Holds the steps of a runner that wait for the store.

use tokio::time::Instant;

use crate::engine::retry_delays::RetryDelays;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::runner) enum UnstoredStep {
    /// Mark the call as sent, and send it.
    Mark,
    Answers,
    Questions,
    Withdrawals,
    /// Send the open questions to the waiting client.
    Round,
    /// Repeat the call, since its user has completed the URL elicitation.
    Repeat,
    Subtasks,
    Progress,
}

pub(super) struct UnstoredSteps {
    steps: Vec<UnstoredStep>,
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

    pub(super) fn rest(&mut self) {
        self.due = Instant::now() + self.pauses.take();
    }
}
