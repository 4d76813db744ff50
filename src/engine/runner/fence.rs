//! Ends a runner whose task another gateway has: its server is told nothing, and nothing is decided again.
//!
//! All that a runner writes goes through here. One write that is fenced lets go of the exchange at once, so that whatever
//! the runner was about to do next says nothing to the server: an exchange that is over takes neither answers nor a cancel.
//! Each step then ends the runner, however it went on; and a client that waits is told that the gateway was replaced.

use super::{Runner, RunnerFlow};
use crate::engine::TaskError;
use crate::engine::apply::AppliedEvent;
use crate::store::{StoreError, WriteRole};
use crate::task::{Event, Executed, GatewayFault, TaskKey};

impl Runner {
    /// Applies events to a row in one commit, as its holder. Not cancel safe: see [`crate::engine::Engine::apply`].
    ///
    /// # Errors
    /// As [`crate::engine::Engine::apply_all`]. After `Fenced`, of whichever row, this life has ended: nothing can be said
    /// to the server any more.
    pub(super) async fn write(&mut self, key: &TaskKey, events: Vec<Event>) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.apply_all(key, WriteRole::Holder, events).await;
        self.heed_fence(written)
    }

    /// The same of how the call ended, however long the store fails.
    ///
    /// # Errors
    /// As [`Runner::write`], where the calls end before the store does it.
    pub(super) async fn write_outcome(&mut self, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.store_outcome(key, event).await;
        self.heed_fence(written)
    }

    fn heed_fence(&mut self, written: Result<AppliedEvent, TaskError>) -> Result<AppliedEvent, TaskError> {
        if matches!(written, Err(TaskError::Store(StoreError::Fenced))) {
            self.let_go_as_fenced();
        }
        written
    }

    /// Another gateway has the task: lets go of the exchange without a cancel.
    pub(super) fn let_go_as_fenced(&mut self) {
        if !std::mem::replace(&mut self.is_fenced, true) {
            self.stage.finish();
        }
    }

    /// What comes after a step, unless the runner was fenced in it: then it ends, and whoever waits is told why.
    pub(super) async fn unless_fenced(&mut self, next: RunnerFlow) -> RunnerFlow {
        if !self.is_fenced {
            return next;
        }
        if !self.has_handle() {
            let fault = GatewayFault::new(self.engine.why_lost(), Executed::Unknown);
            self.tell_waiting(fault).await;
        }
        RunnerFlow::Stop
    }
}
