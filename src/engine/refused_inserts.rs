//! Ends tasks whose inserts were refused while nobody could know whether they were made, and that are there after all.

use std::sync::Arc;

use super::retry_delays::RetryDelays;
use super::{Engine, TaskError};
use crate::cause::CauseChain;
use crate::store::{StoreError, WriteRole};
use crate::task::{Event, Executed, Failure, GatewayFault, Reason, TaskKey};

impl Engine {
    /// Ends the task of a call that was refused, whose insert is in doubt: once it is known that its row is there after all, as others
    /// may have seen it since. Until then nobody else runs it; where the gateway ends before, a later life finds it.
    pub(super) fn end_refused(self: &Arc<Self>, key: TaskKey) {
        let (engine, leaving) = (Arc::clone(self), self.leaving.clone());
        self.changes.tracker.spawn(async move {
            let _ = leaving.run_until_cancelled(engine.refuse_until_known(&key)).await;
            engine.live.remove(&key);
        });
    }

    async fn refuse_until_known(self: &Arc<Self>, key: &TaskKey) {
        let mut pauses = RetryDelays::of_writers();
        loop {
            pauses.wait().await;
            let ended = match self.store.settle_doubt(key, self.clock.now()).await {
                Ok(None) => return,
                Ok(Some(row)) => {
                    let failure = Failure::Gateway(GatewayFault::new(Reason::StoreFailed, Executed::No));
                    let event = Event::Faulted { attempt: row.task.attempt, failure };
                    self.apply(key, WriteRole::Holder, event).await
                }
                Err(error) => Err(error.into()),
            };
            match ended {
                Ok(_) | Err(TaskError::Unknown | TaskError::Store(StoreError::Fenced)) => return,
                Err(error) => {
                    tracing::debug!(error = %CauseChain(&error), "whether a task was stored is not known yet");
                }
            }
        }
    }
}
