//! Marks a call as sent in its row before its first byte is sent (GW-37). The call keeps its permit while the store
//! confirms the mark: other tasks that wait for a permit could not begin either, but plain calls may wait longer.

use super::recorder::UnstoredStep;
use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::failpoint;
use crate::store::StoreError;
use crate::task::{GatewayFault, Outcome, Task, TaskKey};

impl Runner {
    /// Sends a call that has its permit, once its row is marked. `certain` is the confirmed task on a retry.
    pub(super) async fn dispatched(&mut self, certain: Option<&Task>) -> RunnerFlow {
        let Some(key) = self.recorder.key() else {
            self.call_sent();
            return RunnerFlow::Continue;
        };
        match self.mark(&key, certain).await {
            Ok(true) => {
                self.call_sent();
                self.record_resend();
                failpoint::hit("intent-durable");
                RunnerFlow::Continue
            }
            // It settled while it waited: nothing is sent after an acknowledged cancel (L6).
            Ok(false) => {
                self.mark_notified().await;
                RunnerFlow::Stop
            }
            Err(error) if error.is_passing() => self.wait_for_store(UnstoredStep::Mark, &error),
            Err(TaskError::Store(StoreError::Fenced)) => RunnerFlow::Stop,
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the task could not be marked as sent and is not sent");
                self.end(Outcome::lost(GatewayFault::new(error.reason(), self.recorder.executed_so_far()))).await
            }
        }
    }

    /// Marks in the row that this process is about to send the call; false if the task has settled.
    async fn mark(&mut self, key: &TaskKey, certain: Option<&Task>) -> Result<bool, TaskError> {
        // The write that failed was committed.
        if certain.is_some_and(|task| self.recorder.is_sending_stored(task)) {
            return Ok(true);
        }
        let events = self.recorder.sending(|| self.stored_call());
        Ok(self.write(key, events).await?.changed)
    }

    pub(super) fn call_sent(&mut self) {
        self.call.mark_sent(self.spec.policy.deadline);
    }
}
