//! Keeps the outcome of a split call's element until all elements have ended.

use std::sync::Arc;

use crate::cause::CauseChain;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::task::reference::LoggedTask;
use crate::task::{Executed, GatewayFault, Outcome, Reason, Task, TaskKey};

#[derive(Clone)]
pub(super) enum ElementOutcome {
    Held(Outcome),
    /// A result in the element's row. It is read again once all elements have ended, so that memory holds none meanwhile.
    InRow(ResultInRow),
}

#[derive(Clone)]
pub(super) struct ResultInRow {
    engine: Arc<Engine>,
    key: TaskKey,
    bytes: usize,
}

impl ElementOutcome {
    /// The outcome in an element's row; `None` if the row was removed.
    pub(super) fn of_row(engine: &Arc<Engine>, task: Option<&Task>) -> Self {
        match task.and_then(|task| Some((task, task.outcome()?))) {
            Some((task, Outcome::Returned { result, .. })) => {
                Self::InRow(ResultInRow { engine: Arc::clone(engine), key: task.key.clone(), bytes: result.len() })
            }
            Some((_, outcome @ (Outcome::Faulted(_) | Outcome::Cancelled))) => Self::Held(outcome.clone()),
            None => Self::Held(row_removed(Executed::Unknown)),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Held(Outcome::Returned { result, .. }) => result.len(),
            Self::Held(Outcome::Faulted(_) | Outcome::Cancelled) => 0,
            Self::InRow(row) => row.bytes,
        }
    }

    /// The size of a result that is still to be read from its row.
    pub(super) const fn bytes_in_row(&self) -> usize {
        match self {
            Self::Held(_) => 0,
            Self::InRow(row) => row.bytes,
        }
    }

    /// The outcome, if this process holds it.
    pub(super) const fn held(&self) -> Option<&Outcome> {
        match self {
            Self::Held(outcome) => Some(outcome),
            Self::InRow(_) => None,
        }
    }

    /// The outcome, read from the row if it is there. Waits while the store is unavailable. Cancel safe.
    pub(super) async fn outcome(&self) -> Outcome {
        match self {
            Self::Held(outcome) => outcome.clone(),
            Self::InRow(row) => row.outcome().await,
        }
    }
}

impl ResultInRow {
    async fn outcome(&self) -> Outcome {
        let mut pauses = RetryDelays::of_writers();
        loop {
            match self.engine.held(&self.key).await {
                Ok(task) => return task.outcome().cloned().unwrap_or_else(|| row_removed(Executed::Yes)),
                Err(TaskError::Unknown) => return row_removed(Executed::Yes),
                Err(error) => {
                    tracing::warn!(task = %LoggedTask(&self.key), error = %CauseChain(&error), "a subtask's result could not be read yet");
                    pauses.wait().await;
                }
            }
        }
    }
}

fn row_removed(executed: Executed) -> Outcome {
    Outcome::lost(GatewayFault::new(Reason::GatewayRestart, executed))
}
