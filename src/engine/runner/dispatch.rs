//! Marks a call as sent in its row before its first byte goes out (GW-37), however long the store takes to say that it
//! did.
//!
//! The call keeps its place at the server meanwhile. Others that wait for one there have tasks too, and could not begin
//! either; and what keeps its place keeps its turn. A plain call may have to wait for a place longer for that.

use tokio::time::Instant;

use super::store_wait::UnstoredStep;
use super::{Runner, RunnerFlow, lost};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::failpoint;
use crate::store::StoreError;
use crate::task::{GatewayFault, Phase, Task, TaskKey};

impl Runner {
    /// The call has its place: it is sent, once its row says so. `certain` is how the task stands where this is tried again.
    pub(super) async fn dispatched(&mut self, certain: Option<&Task>) -> RunnerFlow {
        self.queue_end = None;
        let Some(key) = self.row_key() else {
            self.place_taken();
            return RunnerFlow::Continue;
        };
        match self.mark(&key, certain).await {
            Ok(true) => {
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
            Err(error) if error.is_passing() => self.wait_for_store(UnstoredStep::Mark, &error),
            Err(TaskError::Store(StoreError::Fenced)) => RunnerFlow::Stop,
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the task could not be marked as sent and is not sent");
                self.end(lost(GatewayFault::new(error.reason(), self.executed_so_far()))).await
            }
        }
    }

    /// Whether the row says now that this life is about to send the call.
    async fn mark(&mut self, key: &TaskKey, certain: Option<&Task>) -> Result<bool, TaskError> {
        // By the write that failed.
        let is_marked = |task: &Task| matches!(task.phase, Phase::Working) && task.attempt == self.attempt_to_send();
        if certain.is_some_and(is_marked) {
            return Ok(true);
        }
        Ok(self.write(key, self.sending()).await?.changed)
    }

    /// Whether this try was certainly not sent yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits_for_store(UnstoredStep::Mark) || self.stage.is_waiting()
    }

    pub(super) fn place_taken(&mut self) {
        self.queue_end = None;
        self.dispatched = Some(Instant::now());
        self.deadline = Some(Instant::now() + self.spec.policy.deadline);
    }
}
