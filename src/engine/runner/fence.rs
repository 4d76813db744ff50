//! Stops a runner that was fenced: another replica holds its task. The upstream is not cancelled. All writes of a
//! runner go through here. A fenced write drops the exchange at once, so later steps of the runner send nothing to the
//! server. After the step the runner ends, and a waiting client receives the reason.

use super::{Runner, RunnerFlow};
use crate::engine::TaskError;
use crate::engine::apply::AppliedEvent;
use crate::store::{StoreError, WriteRole};
use crate::task::{Event, Executed, GatewayFault, TaskKey};

impl Runner {
    /// Applies events to a row in one commit, as its holder. After `Fenced`, for any row, this incarnation has ended:
    /// the runner sends nothing more to the server. Not cancel safe: see [`crate::engine::Engine::apply`].
    pub(super) async fn write(&mut self, key: &TaskKey, events: Vec<Event>) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.apply_all(key, WriteRole::Holder, events).await;
        self.heed_fence(written)
    }

    /// Writes the outcome of the call, retrying as long as the store fails, but no longer than until the calls end.
    pub(super) async fn write_outcome(&mut self, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.store_outcome(key, event).await;
        self.heed_fence(written)
    }

    fn heed_fence(&mut self, written: Result<AppliedEvent, TaskError>) -> Result<AppliedEvent, TaskError> {
        if matches!(written, Err(TaskError::Store(StoreError::Fenced))) {
            self.stop_as_fenced();
        }
        written
    }

    /// Drops the exchange without a cancel, because another replica holds the task.
    pub(super) fn stop_as_fenced(&mut self) {
        if self.recorder.fence() {
            self.finish_exchanges();
        }
    }

    /// Returns `next`, unless the runner was fenced in this step: then it stops, and a waiting client receives the reason.
    pub(super) async fn unless_fenced(&mut self, next: RunnerFlow) -> RunnerFlow {
        if !self.recorder.is_fenced() {
            return next;
        }
        if !self.recorder.has_handle() {
            let fault = GatewayFault::new(self.engine.why_lost(), Executed::Unknown);
            self.answer_waiting(fault).await;
        }
        RunnerFlow::Stop
    }
}
