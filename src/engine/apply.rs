//! The only writer of tasks: load, decide, store, and only then act.

use std::sync::Arc;

use super::Engine;
use crate::store::{StoreError, Stored};
use crate::task::{
    Effect, Event, Executed, Failure, GatewayFault, Outcome, Phase, Reason, Shown, Task, TaskKey, transition,
};

/// How often a lost race is run again. Each round somebody else got through, so this many means a bug.
const CONFLICTS_MAX: usize = 64;

/// Why a task could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("no such task")]
    Unknown,
    #[error("too many writers at once")]
    Contended,
    #[error("the store did not do it")]
    Store(#[from] StoreError),
}

impl TaskError {
    /// What a caller is told about it.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Store(StoreError::Full { .. }) => Reason::StoreFull,
            Self::Store(StoreError::Io(_) | StoreError::Conflict | StoreError::Exists)
            | Self::Contended
            | Self::Unknown => Reason::StoreFailed,
        }
    }
}

/// A task after an event.
#[derive(Clone, Debug)]
pub struct Applied {
    pub task: Arc<Task>,
    /// Whether the event still meant something.
    pub changed: bool,
}

impl Engine {
    /// Applies one event and performs what follows from it. Cancel safe: a dropped call has stored the
    /// event or not; effects that were lost with it are found again from the state.
    ///
    /// # Errors
    /// See [`TaskError`]. An outcome that the store has no room for settles the task with a fault that
    /// says so: it is never lost in silence (L8).
    pub async fn apply(&self, key: &TaskKey, mut event: Event) -> Result<Applied, TaskError> {
        for _ in 0..CONFLICTS_MAX {
            let now = self.clock.now();
            let Stored { task: before, revision } = self.store.load(key, now).await?.ok_or(TaskError::Unknown)?;
            let (task, effects) = transition((*before).clone(), event.clone(), now);
            if effects.is_empty() {
                return Ok(Applied { task: before, changed: false });
            }
            match self.store.replace(revision, &task).await {
                Ok(_) => {
                    record(&before, &task);
                    self.perform(key, effects);
                    return Ok(Applied { task: Arc::new(task), changed: true });
                }
                // Another writer was first: decide again from its state.
                Err(StoreError::Conflict) => (),
                Err(StoreError::Full { .. }) => match without_payload(&event) {
                    Some(smaller) => event = smaller,
                    None => return Err(StoreError::Full { what: "bytes" }.into()),
                },
                Err(error) => return Err(error.into()),
            }
        }
        Err(TaskError::Contended)
    }

    fn perform(&self, key: &TaskKey, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::NotifyWatchers => self.watchers.wake(key),
                Effect::Deliver(answers) => self.live.deliver(key, answers),
                Effect::Abandon => self.live.abandon(key),
            }
        }
    }
}

/// What to store instead of an outcome that the store has no room for.
fn without_payload(event: &Event) -> Option<Event> {
    let attempt = match event {
        Event::Returned { attempt, .. } | Event::Faulted { attempt, failure: Failure::Upstream(_) } => *attempt,
        Event::Faulted { failure: Failure::Gateway(_), .. }
        | Event::Dispatched { .. }
        | Event::Progressed { .. }
        | Event::Asked { .. }
        | Event::Withdrawn { .. }
        | Event::Answered { .. }
        | Event::Revealed
        | Event::CancelRequested
        | Event::TtlElapsed => return None,
    };
    let fault = GatewayFault::new(Reason::StoreFull, Executed::Yes);
    Some(Event::Faulted { attempt, failure: Failure::Gateway(fault) })
}

/// Counts and logs what a write changed; never payloads (design.md 6).
fn record(before: &Task, after: &Task) {
    let Phase::Settled(outcome) = &after.phase else { return };
    if before.is_settled() {
        return;
    }
    let label = outcome_label(outcome);
    if after.shown == Shown::Hidden {
        tracing::debug!(task = ?after.key.id, outcome = label, "a held call ended");
        return;
    }
    let upstream = Arc::clone(&after.origin.upstream);
    let age = after.updated_at.since(after.created_at);
    metrics::counter!(crate::metric::TASKS_SETTLED, "upstream" => Arc::clone(&upstream), "outcome" => label)
        .increment(1);
    metrics::gauge!(crate::metric::TASKS_IN_FLIGHT, "upstream" => Arc::clone(&upstream)).decrement(1.0);
    metrics::histogram!(crate::metric::TASK_AGE, "upstream" => Arc::clone(&upstream)).record(age.as_secs_f64());
    tracing::info!(task = ?after.key.id, %upstream, tool = %after.origin.tool, outcome = label, ?age, "task settled");
}

const fn outcome_label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Returned { is_error: false, .. } => "returned",
        Outcome::Returned { is_error: true, .. } => "tool_error",
        Outcome::Faulted(Failure::Upstream(_)) => "upstream_error",
        Outcome::Faulted(Failure::Gateway(_)) => "gateway_fault",
        Outcome::Cancelled => "cancelled",
    }
}
