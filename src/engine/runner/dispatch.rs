//! Marks a call as sent in its row before its first byte goes out (GW-37), however long the store takes to say that it
//! did.
//!
//! The call keeps its place at the server meanwhile. Others that wait for one there have tasks too, and could not begin
//! either; and what keeps its place keeps its turn. A plain call may have to wait for a place longer for that.

use tokio::time::Instant;

use super::row::store_retries;
use super::{Runner, RunnerFlow, lost};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::engine::retry_delays::RetryDelays;
use crate::failpoint;
use crate::store::{StoreError, WriteRole};
use crate::task::{GatewayFault, Phase, TaskKey};

/// A call that has its place, and that could not be marked as sent yet.
pub(super) struct UnmarkedCall {
    pauses: RetryDelays,
    due: Instant,
}

impl Runner {
    /// The call has its place: it is sent, once its row says so.
    pub(super) async fn dispatched(&mut self) -> RunnerFlow {
        self.queue_end = None;
        let Some(key) = self.row_key() else {
            self.place_taken();
            return RunnerFlow::Continue;
        };
        match self.mark(&key).await {
            Ok(true) => {
                self.unmarked = None;
                self.place_taken();
                self.is_sending();
                failpoint::hit("intent-durable");
                RunnerFlow::Continue
            }
            // It was settled while it waited: nothing is sent after an acknowledged cancel (L6).
            Ok(false) => {
                self.mark_told().await;
                RunnerFlow::Stop
            }
            Err(error) if error.is_passing() => {
                self.mark_later(&error);
                RunnerFlow::Continue
            }
            Err(TaskError::Store(StoreError::Fenced)) => self.end_with_gateway().await,
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the task could not be marked as sent and is not sent");
                self.end(lost(GatewayFault::new(error.reason(), self.executed_so_far()))).await
            }
        }
    }

    /// Whether the row says now that this life is about to send the call.
    async fn mark(&mut self, key: &TaskKey) -> Result<bool, TaskError> {
        let applied = self.engine.apply_all(key, WriteRole::Holder, self.sending()).await?;
        // After a write that failed a row that does not change may have it from that write.
        Ok(applied.changed || (self.unmarked.is_some() && self.is_marked(key).await?))
    }

    /// Whether the row, as it certainly stands, is marked by this life for this try.
    async fn is_marked(&mut self, key: &TaskKey) -> Result<bool, StoreError> {
        let task = self.own_task(key).await?;
        Ok(task.is_some_and(|task| matches!(task.phase, Phase::Working) && task.attempt == self.attempt_to_send()))
    }

    /// Orders, the end of the gateway and of the task's time are heard before the next try.
    fn mark_later(&mut self, error: &TaskError) {
        if self.unmarked.is_none() {
            tracing::warn!(error = %CauseChain(error), "a task could not be marked as sent yet and waits for the store");
        } else {
            tracing::debug!(error = %CauseChain(error), "a task could not be marked as sent again");
        }
        let unmarked = self
            .unmarked
            .get_or_insert_with(|| Box::new(UnmarkedCall { pauses: store_retries(), due: Instant::now() }));
        unmarked.due = Instant::now() + unmarked.pauses.take();
    }

    /// When it is tried again to mark the call as sent.
    pub(super) fn mark_due(&self) -> Option<Instant> {
        self.unmarked.as_ref().map(|unmarked| unmarked.due)
    }

    /// Whether this try was certainly not sent yet.
    pub(super) const fn is_waiting(&self) -> bool {
        self.unmarked.is_some() || self.stage.is_waiting()
    }

    pub(super) fn place_taken(&mut self) {
        self.queue_end = None;
        self.dispatched = Some(Instant::now());
        self.deadline = Some(Instant::now() + self.spec.policy.deadline);
    }
}
